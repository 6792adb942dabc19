//! How messages are written: fields one behind the other, integers little-endian, lengths and which
//! case of an enum it is in front. A value has one form only, which proofs cover.

use std::time::Duration;

/// What travels.
pub(crate) trait Wire: Sized {
    /// Appends it.
    fn put(&self, to: &mut Vec<u8>);

    /// What it is put as.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        bytes
    }

    /// Takes it from the front; `None` if that is none.
    fn take(from: &mut &[u8]) -> Option<Self>;

    /// Several, one behind the other.
    fn put_all(all: &[Self], to: &mut Vec<u8>) {
        all.iter().for_each(|one| one.put(to));
    }

    /// As many as that.
    fn take_all(count: usize, from: &mut &[u8]) -> Option<Vec<Self>> {
        // Memory grows with what is there, not with what is announced.
        (0..count).map(|_| Self::take(from)).collect()
    }
}

fn take_bytes<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (bytes, rest) = from.split_at_checked(count)?;
    *from = rest;
    Some(bytes)
}

impl<const N: usize> Wire for [u8; N] {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        take_bytes(from, N)?.try_into().ok()
    }
}

impl Wire for u8 {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(*self);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        <[u8; 1]>::take(from).map(|[byte]| byte)
    }

    fn put_all(all: &[u8], to: &mut Vec<u8>) {
        to.extend_from_slice(all);
    }

    fn take_all(count: usize, from: &mut &[u8]) -> Option<Vec<u8>> {
        take_bytes(from, count).map(<[u8]>::to_vec)
    }
}

macro_rules! integers { ($($integer:ty),*) => { $(
    impl Wire for $integer {
        fn put(&self, to: &mut Vec<u8>) {
            self.to_le_bytes().put(to);
        }

        fn take(from: &mut &[u8]) -> Option<Self> {
            Wire::take(from).map(Self::from_le_bytes)
        }
    }
)* } }
integers!(u16, u32, u64);

impl Wire for bool {
    fn put(&self, to: &mut Vec<u8>) {
        u8::from(*self).put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        // What is longer than a frame is refused there.
        u32::try_from(self.len()).unwrap_or(u32::MAX).put(to);
        T::put_all(self, to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let count = u32::take(from)?;
        T::take_all(usize::try_from(count).ok()?, from)
    }
}

impl Wire for String {
    fn put(&self, to: &mut Vec<u8>) {
        u32::try_from(self.len()).unwrap_or(u32::MAX).put(to);
        to.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Self::from_utf8(Wire::take(from)?).ok()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        self.iter().for_each(|one| one.put(to));
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        if bool::take(from)? { T::take(from).map(Some) } else { Some(None) }
    }
}

impl<T: Wire> Wire for Box<T> {
    fn put(&self, to: &mut Vec<u8>) {
        (**self).put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        T::take(from).map(Self::new)
    }
}

impl Wire for Duration {
    fn put(&self, to: &mut Vec<u8>) {
        self.as_secs().put(to);
        self.subsec_nanos().put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let (seconds, nanos) = (u64::take(from)?, u32::take(from)?);
        (nanos < 1_000_000_000).then(|| Self::new(seconds, nanos))
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?))
    }
}

impl<A: Wire, B: Wire, C: Wire> Wire for (A, B, C) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
        self.2.put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?, C::take(from)?))
    }
}

/// Writes a struct as its fields, in the order given.
macro_rules! wire_struct { ($name:ident { $($field:ident),* $(,)? }) => {
    impl $crate::codec::Wire for $name {
        fn put(&self, to: &mut Vec<u8>) {
            let Self { $($field),* } = self;
            $($field.put(to);)*
        }

        fn take(from: &mut &[u8]) -> Option<Self> {
            Some(Self { $($field: $crate::codec::Wire::take(from)?),* })
        }
    }
} }
pub(crate) use wire_struct;

/// Writes an enum as the number of its case, and what that holds.
macro_rules! wire_enum {
    ($name:ident { $($tag:literal = $case:ident { $($field:tt: $as:ident),* }),* $(,)? }) => {
        impl $crate::codec::Wire for $name {
            fn put(&self, to: &mut Vec<u8>) {
                match self { $(
                    Self::$case { $($field: $as),* } => {
                        to.push($tag);
                        $($as.put(to);)*
                    }
                )* }
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                match u8::take(from)? {
                    $($tag => Some(Self::$case {
                        $($field: $crate::codec::Wire::take(from)?),*
                    }),)*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use wire_enum;
