//! Integers as they stand in messages: little-endian, at any address.
use bytemuck::{Pod, Zeroable};

macro_rules! integers { ($($name:ident: $int:ident),*) => { $(
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
    #[repr(transparent)]
    pub(crate) struct $name([u8; size_of::<$int>()]);

    impl $name {
        pub(crate) const fn get(self) -> $int {
            $int::from_le_bytes(self.0)
        }
    }

    impl From<$int> for $name {
        fn from(value: $int) -> Self {
            Self(value.to_le_bytes())
        }
    }

    impl From<$name> for $int {
        fn from(value: $name) -> Self {
            value.get()
        }
    }
)* } }
integers!(U32: u32, U64: u64, I64: i64);
