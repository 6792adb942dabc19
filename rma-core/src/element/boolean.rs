//! Truth values that may travel.
use bytemuck::{Pod, Zeroable};
use core::fmt;
use core::hash::{Hash, Hasher};

/// A truth value of one byte: any byte but 0 reads as true, 1 is written.
///
/// `bool` itself cannot travel: a byte that is neither 0 nor 1 is not one.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// True.
    pub const TRUE: Self = Self(1);
    /// False.
    pub const FALSE: Self = Self(0);

    /// From a `bool`.
    #[inline]
    pub const fn new(value: bool) -> Self {
        Self(value as u8)
    }

    /// To a `bool`.
    #[inline]
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Self::new(value)
    }
}

impl From<Bool> for bool {
    fn from(value: Bool) -> Self {
        value.get()
    }
}

// Not derived: 1 and 2 are the same value.
impl PartialEq for Bool {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}

impl Hash for Bool {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.get().hash(state);
    }
}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_a_value() {
        let two: Bool = bytemuck::cast(2u8);
        assert!(two.get());
        assert_eq!(two, Bool::TRUE);
        assert_ne!(two, Bool::FALSE);
        assert_eq!(bytemuck::cast::<Bool, u8>(Bool::new(true)), 1);
        assert_eq!(format!("{two:?}"), "true");
    }
}
