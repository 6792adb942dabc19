//! What a layout is made of: the sequence of its elements' types, as a fingerprint.
use crate::element::{BasicType, Element};
use core::any::{TypeId, type_name};
use core::fmt;
use core::hash::{Hash, Hasher};
use std::hash::DefaultHasher;

/// How many elements of which type a layout holds; shown in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// Name of the type, or a word for several.
    pub element: &'static str,
    /// Number of elements.
    pub count: u64,
}

impl Signature {
    /// Of bytes that were not described.
    pub(crate) const OTHER: Self = Self { element: "an element that is not basic", count: 1 };

    /// Of so many elements of type `E`.
    pub(crate) fn of<E: Element>(count: usize) -> Self {
        Self { element: type_name::<E>(), count: count as u64 }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}", self.count, self.element)
    }
}

/// Arithmetic is modulo this prime.
const PRIME: u64 = (1 << 61) - 1;
/// Base of the polynomial whose coefficients are the elements.
const BASE: u64 = 0x0123_4567_89ab_cdef % PRIME;

fn times(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(PRIME)) as u64
}

fn plus(a: u64, b: u64) -> u64 {
    // Both are below 2^61.
    (a + b) % PRIME
}

/// `BASE` to the power of `exponent`.
fn power(mut exponent: u64) -> u64 {
    let (mut result, mut square) = (1, BASE);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = times(result, square);
        }
        square = times(square, square);
        exponent >>= 1;
    }
    result
}

/// The type signature of a layout (MPI 4.1, section 5.1): a polynomial over the sequence of
/// types, so that sequences are compared and repeated without being written out.
///
/// Two different sequences have the same fingerprint with a probability of about their length
/// over 2^61. Nothing but the detection of a mistake depends on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fingerprint {
    hash: u64,
    count: u64,
    /// The type, if all elements have the same.
    element: Option<Single>,
}

#[derive(Debug, Clone, Copy)]
struct Single {
    id: TypeId,
    name: &'static str,
    basic: Option<BasicType>,
}

impl Fingerprint {
    pub(super) const NOTHING: Self = Self { hash: 0, count: 0, element: None };

    pub(super) fn of<E: Element>() -> Self {
        let id = TypeId::of::<E>();
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let hash = hasher.finish() % (PRIME - 1) + 1;
        let element = Single { id, name: type_name::<E>(), basic: BasicType::of::<E>() };
        Self { hash, count: 1, element: Some(element) }
    }

    /// This sequence followed by another.
    pub(super) fn then(self, other: Self) -> Self {
        if self.count == 0 || other.count == 0 {
            return if self.count == 0 { other } else { self };
        }
        Self {
            hash: plus(times(self.hash, power(other.count)), other.hash),
            // Sizes were checked, and no element has less than a byte.
            count: self.count.saturating_add(other.count),
            element: self.element.filter(|mine| Some(mine.id) == other.element.map(|e| e.id)),
        }
    }

    /// This sequence `times` times.
    pub(crate) fn repeated(mut self, mut times: u64) -> Self {
        let mut result = Self::NOTHING;
        while times > 0 {
            if times & 1 == 1 {
                result = result.then(self);
            }
            times >>= 1;
            if times > 0 {
                self = self.then(self);
            }
        }
        result
    }

    /// Whether `times` of this are the same sequence as `other_times` of another.
    #[inline]
    pub(super) fn matches(&self, times: u64, other: &Self, other_times: u64) -> bool {
        if let (Some(mine), Some(theirs)) = (self.element, other.element) {
            let counts = (self.count.checked_mul(times), other.count.checked_mul(other_times));
            let nothing = counts == (Some(0), Some(0));
            return nothing || mine.id == theirs.id && counts.0 == counts.1;
        }
        self.matches_mixed(times, other, other_times)
    }

    #[cold]
    fn matches_mixed(&self, times: u64, other: &Self, other_times: u64) -> bool {
        let (mine, theirs) = (self.repeated(times), other.repeated(other_times));
        (mine.count, mine.hash) == (theirs.count, theirs.hash)
    }

    pub(super) fn signature(&self, times: u64) -> Signature {
        let several = if self.count == 0 { "nothing" } else { "elements of several types" };
        let element = self.element.map_or(several, |element| element.name);
        Signature { element, count: self.count.saturating_mul(times) }
    }

    /// How many elements.
    pub(super) fn len(&self) -> u64 {
        self.count
    }

    /// Whether all elements are of this type.
    pub(super) fn is_of<E: Element>(&self) -> bool {
        self.element.is_some_and(|element| element.id == TypeId::of::<E>())
    }

    /// The basic type of all elements, if they have one.
    pub(super) fn basic(&self) -> Option<BasicType> {
        self.element?.basic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_told_apart() {
        let (a, b) = (Fingerprint::of::<u32>(), Fingerprint::of::<f32>());
        let ab = a.then(b);
        assert!(ab.matches(3, &ab.then(ab).then(ab), 1));
        assert!(!ab.matches(1, &b.then(a), 1), "another order");
        assert!(!ab.matches(2, &ab, 1));
        assert!(!a.matches(1, &b, 1) && a.matches(0, &b, 0));
        assert!(a.matches(6, &a.repeated(2), 3));
        assert!(ab.matches(0, &Fingerprint::NOTHING, 7));
        assert!(!a.then(b).then(b).matches(1, &a.then(a).then(b), 1));
        // Where the sequence is cut does not matter.
        assert!(ab.then(a).then(b.then(ab)).matches(1, &ab, 3));
        assert_eq!(ab.signature(2).to_string(), "4 × elements of several types");
        assert_eq!(a.repeated(5).signature(2).to_string(), "10 × u32");
    }

    #[test]
    fn repeating_is_fast_and_right() {
        let ab = Fingerprint::of::<u8>().then(Fingerprint::of::<u16>());
        let slow = (0..1000).fold(Fingerprint::NOTHING, |all, _| all.then(ab));
        assert!(ab.matches(1000, &slow, 1));
        assert!(ab.matches(1 << 40, &ab.repeated(1 << 20), 1 << 20));
    }
}
