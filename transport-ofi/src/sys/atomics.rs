//! Atomic operations: which of the core's libfabric has, and what it calls them.

use super::layout::{
    ATOMIC_READ, ATOMIC_WRITE, BAND, BOR, BXOR, COMPARE_ATOMIC, CSWAP, FETCH_ATOMIC, INT8, INT16,
    INT32, INT64, LAND, LOR, LXOR, MAX, MIN, PROD, SUM, UINT8, UINT16, UINT32, UINT64,
};
use rma_core::transport::Atomic;
use rma_core::{BasicElement, BasicType, Bool, Op};
use std::ffi::c_int;

/// Types of which both mean the same by each operation. Reals are none: by [`Op::Min`], libfabric
/// may say that a NaN is the smaller.
const TYPES: [(BasicType, c_int); 9] = [
    (u8::BASIC, UINT8),
    (i8::BASIC, INT8),
    (u16::BASIC, UINT16),
    (i16::BASIC, INT16),
    (u32::BASIC, UINT32),
    (i32::BASIC, INT32),
    (u64::BASIC, UINT64),
    (i64::BASIC, INT64),
    (Bool::BASIC, UINT8),
];

const OPS: [(Op, c_int); 12] = [
    (Op::Sum, SUM),
    (Op::Prod, PROD),
    (Op::Min, MIN),
    (Op::Max, MAX),
    (Op::BitAnd, BAND),
    (Op::BitOr, BOR),
    (Op::BitXor, BXOR),
    (Op::Replace, ATOMIC_WRITE),
    (Op::NoOp, ATOMIC_READ),
    (Op::LogicalAnd, LAND),
    (Op::LogicalOr, LOR),
    (Op::LogicalXor, LXOR),
];

/// What a call does with what was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Nothing.
    Plain,
    /// Gives it back.
    Fetch,
    /// Gives it back, and compares it first.
    Compare,
}

impl Form {
    /// Flags of `fi_query_atomic`.
    pub(super) fn flags(self) -> u64 {
        match self {
            Self::Plain => 0,
            Self::Fetch => FETCH_ATOMIC,
            Self::Compare => COMPARE_ATOMIC,
        }
    }
}

/// An atomic operation on elements of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Combining {
    pub(super) datatype: c_int,
    pub(super) op: c_int,
    pub(crate) form: Form,
    /// Elements, and bytes in each.
    pub(crate) count: usize,
    pub(crate) width: usize,
}

impl Combining {
    /// `None` of what libfabric does not have.
    pub(crate) fn new(atomic: Atomic, count: usize, fetches: bool) -> Option<Self> {
        let (basic, op, form) = match atomic {
            Atomic::Combine(op, basic) => {
                let form = if fetches { Form::Fetch } else { Form::Plain };
                (basic, OPS.iter().find(|(its, _)| *its == op)?.1, form)
            }
            Atomic::Swap(basic) => (basic, CSWAP, Form::Compare),
        };
        let datatype = TYPES.iter().find(|(its, _)| *its == basic)?.1;
        count.checked_mul(atomic.width())?;
        Some(Self { datatype, op, form, count, width: atomic.width() })
    }

    /// Bytes of all elements.
    pub(crate) fn len(self) -> usize {
        self.count * self.width
    }
}

/// What a provider has: whole types, as the core uses no others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Atomics {
    /// As bits, by their places in [`TYPES`].
    types: u16,
    /// Bytes that one operation combines at most, of any of them.
    most: u32,
}

/// Bytes that the core may give to any atomic of a device.
const LEAST: usize = 16;

impl Atomics {
    /// `has` says how many elements of a type the provider combines so at once, if any.
    pub(super) fn query(has: impl Fn(c_int, c_int, Form) -> Option<usize>) -> Self {
        let mut all = Self { types: 0, most: u32::MAX };
        for (place, (basic, _)) in TYPES.into_iter().enumerate() {
            let combines = OPS.map(|(op, _)| Atomic::Combine(op, basic));
            let combines = combines.into_iter().filter(|atomic| atomic.is_defined());
            let mut calls: Vec<_> = combines
                .flat_map(|atomic| [false, true].map(|fetches| (atomic, fetches)))
                // It would do nothing.
                .filter(|asked| *asked != (Atomic::Combine(Op::NoOp, basic), false))
                .collect();
            calls.push((Atomic::Swap(basic), true));
            let bytes = |(atomic, fetches)| {
                let Combining { datatype, op, form, width, .. } =
                    Combining::new(atomic, 1, fetches)?;
                has(datatype, op, form).filter(|count| *count > 0)?.checked_mul(width)
            };
            let most: Option<Vec<usize>> = calls.into_iter().map(bytes).collect();
            let most = most.and_then(|most| most.into_iter().min());
            if let Some(most) = most.filter(|most| *most >= LEAST) {
                all.types |= 1 << place;
                all.most = all.most.min(u32::try_from(most).unwrap_or(u32::MAX));
            }
        }
        all
    }

    /// Whether it has that.
    pub(crate) fn has(self, atomic: Atomic) -> bool {
        let (Atomic::Combine(_, basic) | Atomic::Swap(basic)) = atomic;
        let place = TYPES.iter().position(|(its, _)| *its == basic);
        place.is_some_and(|place| self.types & 1 << place != 0) && atomic.is_defined()
    }

    pub(crate) fn is_empty(self) -> bool {
        self.types == 0
    }

    /// Bytes that one operation combines at most.
    pub(crate) fn most(self) -> usize {
        self.most as usize
    }

    /// What another provider has, too.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { types: self.types & other.types, most: self.most.min(other.most) }
    }

    /// As ranks tell each other.
    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let ([a, b], [c, d, e, f]) = (self.types.to_le_bytes(), self.most.to_le_bytes());
        [a, b, c, d, e, f]
    }

    pub(crate) const LEN: usize = 6;

    pub(crate) fn from_bytes([a, b, c, d, e, f]: [u8; Self::LEN]) -> Self {
        let (types, most) = (u16::from_le_bytes([a, b]), u32::from_le_bytes([c, d, e, f]));
        Self { types, most }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ATOMIC_READ, ATOMIC_WRITE, Atomics, BXOR, CSWAP, Combining, Form, INT32, SUM, UINT8, UINT32,
    };
    use rma_core::transport::Atomic;
    use rma_core::{BasicElement, Bool, Op};

    #[test]
    fn each_operation_has_its_name_and_form() {
        let sum = Atomic::Combine(Op::Sum, i32::BASIC);
        let plain = Combining::new(sum, 5, false).unwrap();
        assert_eq!((plain.datatype, plain.op, plain.form), (INT32, SUM, Form::Plain));
        assert_eq!(plain.len(), 20);
        let fetch = Combining::new(sum, 5, true).unwrap();
        assert_eq!(fetch, Combining { form: Form::Fetch, ..plain });
        let swap = Combining::new(Atomic::Swap(Bool::BASIC), 1, true).unwrap();
        assert_eq!((swap.datatype, swap.op, swap.form), (UINT8, CSWAP, Form::Compare));
        assert_eq!(Combining::new(Atomic::Combine(Op::Sum, f64::BASIC), 1, true), None);
    }

    /// One operation that is not there, in one form, takes its type away, and no other.
    #[test]
    fn a_type_is_whole_or_not_had() {
        let has = |atomics: Atomics, basic| atomics.has(Atomic::Combine(Op::Sum, basic));
        let all =
            Atomics::query(|_, op, form| (op != ATOMIC_READ || form == Form::Fetch).then_some(17));
        assert!(has(all, u32::BASIC) && all.has(Atomic::Swap(u32::BASIC)));
        assert!(!has(all, f32::BASIC) && !all.is_empty());
        assert!(!all.has(Atomic::Combine(Op::Sum, Bool::BASIC)), "Bools have no sum");
        assert_eq!(all.most(), 17, "of bytes");
        assert_eq!(Atomics::from_bytes(all.to_bytes()), all);
        for missing in [
            (UINT32, BXOR, Form::Plain),
            (UINT32, ATOMIC_WRITE, Form::Fetch),
            (UINT32, CSWAP, Form::Compare),
        ] {
            let most = Atomics::query(|datatype, op, form| {
                ((datatype, op, form) != missing).then_some(64)
            });
            assert!(!has(most, u32::BASIC) && has(most, i32::BASIC), "{missing:?}");
            assert_eq!(all.and(most), Atomics { most: 17, ..most });
        }
        assert!(Atomics::query(|_, _, _| None).is_empty());
        assert!(Atomics::query(|_, _, _| Some(0)).is_empty());
        assert!(Atomics::query(|_, _, _| Some(1)).is_empty(), "too few for an element and more");
    }
}
