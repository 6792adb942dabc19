//! Names of the basic types: what messages and errors say of an element.
use super::{AtomicElement, BasicElement, Bool, Pair};
use crate::element::Op;
use core::any::TypeId;
use num_complex::Complex;

/// A basic type (MPI 4.1, section 6.9.2), as it stands in messages.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BasicType(u8);

/// What operations are defined on a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Integer,
    Float,
    Bool,
    Complex,
    Pair,
}

macro_rules! basic_types { ($($code:literal $name:ident: $type:ty, $text:literal, $class:ident,
    $align:literal;)*) => {
    impl BasicType {
        $(pub(crate) const $name: Self = Self($code);)*

        /// In the order of their codes.
        #[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
        pub(crate) const ALL: &[Self] = &[$(Self($code)),*];

        /// `None` if no type has this code.
        pub(crate) fn from_wire(byte: u8) -> Option<Self> {
            [$($code),*].contains(&byte).then_some(Self(byte))
        }

        /// The basic type that `E` is, if it is one.
        #[inline(always)]
        pub(crate) fn of<E: 'static>() -> Option<Self> {
            let id = TypeId::of::<E>();
            $(if id == TypeId::of::<$type>() {
                return Some(Self($code));
            })*
            match id {
                id if id == TypeId::of::<usize>() => Some(usize::BASIC),
                id if id == TypeId::of::<isize>() => Some(isize::BASIC),
                _ => None,
            }
        }

        /// The type as it is written in Rust.
        pub(crate) const fn name(self) -> &'static str {
            match self.0 { $($code => $text,)* _ => "" }
        }

        /// Bytes of an element.
        pub(crate) const fn width(self) -> usize {
            match self.0 { $($code => size_of::<$type>(),)* _ => 1 }
        }

        /// What an element's offset in a window is a multiple of: the width of its components.
        #[inline(always)]
        pub(crate) const fn align(self) -> usize {
            match self.0 { $($code => $align,)* _ => 1 }
        }

        const fn class(self) -> Class {
            match self.0 { $($code => Class::$class,)* _ => Class::Integer }
        }

        /// Calls `visitor` with the type.
        pub(crate) fn visit<V: Visitor>(self, visitor: V) -> Option<V::Output> {
            match self.0 { $($code => Some(visitor.visit::<$type>()),)* _ => None }
        }

        /// As [`visit`](Self::visit), with the basic type that `E` is, if it is one: compiled for
        /// that alone.
        #[inline(always)]
        pub(crate) fn visit_of<E: 'static, V: Visitor>(visitor: V) -> Option<V::Output> {
            match Self::of::<E>()?.0 { $($code => Some(visitor.visit::<$type>()),)* _ => None }
        }
    }

    $(const _: () = assert!(size_of::<$type>().is_multiple_of($align));)*
} }

basic_types! {
    0 U32: u32, "u32", Integer, 4;
    1 I32: i32, "i32", Integer, 4;
    2 U64: u64, "u64", Integer, 8;
    3 I64: i64, "i64", Integer, 8;
    4 U8: u8, "u8", Integer, 1;
    5 I8: i8, "i8", Integer, 1;
    6 U16: u16, "u16", Integer, 2;
    7 I16: i16, "i16", Integer, 2;
    8 F32: f32, "f32", Float, 4;
    9 F64: f64, "f64", Float, 8;
    10 BOOL: Bool, "Bool", Bool, 1;
    11 COMPLEX_F32: Complex<f32>, "Complex<f32>", Complex, 4;
    12 COMPLEX_F64: Complex<f64>, "Complex<f64>", Complex, 8;
    13 PAIR_I32_I32: Pair<i32, i32>, "Pair<i32, i32>", Pair, 4;
    14 PAIR_I32_U32: Pair<i32, u32>, "Pair<i32, u32>", Pair, 4;
    15 PAIR_U32_I32: Pair<u32, i32>, "Pair<u32, i32>", Pair, 4;
    16 PAIR_U32_U32: Pair<u32, u32>, "Pair<u32, u32>", Pair, 4;
    17 PAIR_F32_I32: Pair<f32, i32>, "Pair<f32, i32>", Pair, 4;
    18 PAIR_F32_U32: Pair<f32, u32>, "Pair<f32, u32>", Pair, 4;
    19 PAIR_I64_I64: Pair<i64, i64>, "Pair<i64, i64>", Pair, 8;
    20 PAIR_I64_U64: Pair<i64, u64>, "Pair<i64, u64>", Pair, 8;
    21 PAIR_U64_I64: Pair<u64, i64>, "Pair<u64, i64>", Pair, 8;
    22 PAIR_U64_U64: Pair<u64, u64>, "Pair<u64, u64>", Pair, 8;
    23 PAIR_F64_I64: Pair<f64, i64>, "Pair<f64, i64>", Pair, 8;
    24 PAIR_F64_U64: Pair<f64, u64>, "Pair<f64, u64>", Pair, 8;
}

/// Generic code to be run for a type that a message names.
pub(crate) trait Visitor {
    type Output;
    fn visit<E: BasicElement>(self) -> Self::Output;
}

/// As [`Visitor`], of types that can be compared and swapped.
pub(crate) trait SwapVisitor {
    type Output;
    fn visit<E: AtomicElement>(self) -> Self::Output;
}

impl BasicType {
    /// As it stands in messages.
    pub(crate) const fn to_wire(self) -> u8 {
        self.0
    }

    /// Whether the machine can combine it atomically by itself; otherwise a stripe's lock is taken.
    #[inline(always)]
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::U32 | Self::I32 | Self::U64 | Self::I64)
    }

    /// Calls `visitor` with the type, if it is [atomic](Self::is_atomic).
    pub(crate) fn visit_atomic<V: Visitor>(self, visitor: V) -> Option<V::Output> {
        Some(match self {
            Self::U32 => visitor.visit::<u32>(),
            Self::I32 => visitor.visit::<i32>(),
            Self::U64 => visitor.visit::<u64>(),
            Self::I64 => visitor.visit::<i64>(),
            _ => return None,
        })
    }

    /// Whether its elements can be compared and swapped.
    pub(crate) fn is_swapped(self) -> bool {
        struct Any;
        impl SwapVisitor for Any {
            type Output = ();
            fn visit<E: AtomicElement>(self) {}
        }
        self.visit_swap(Any).is_some()
    }

    /// Calls `visitor` with the type, if it can be compared and swapped.
    pub(crate) fn visit_swap<V: SwapVisitor>(self, visitor: V) -> Option<V::Output> {
        Some(match self {
            Self::U8 => visitor.visit::<u8>(),
            Self::I8 => visitor.visit::<i8>(),
            Self::U16 => visitor.visit::<u16>(),
            Self::I16 => visitor.visit::<i16>(),
            Self::U32 => visitor.visit::<u32>(),
            Self::I32 => visitor.visit::<i32>(),
            Self::U64 => visitor.visit::<u64>(),
            Self::I64 => visitor.visit::<i64>(),
            Self::BOOL => visitor.visit::<Bool>(),
            _ => return None,
        })
    }

    /// The unsigned integer as wide as a signed one; of other types, the type itself.
    pub(super) const fn unsigned(self) -> Self {
        match self {
            Self::I8 => Self::U8,
            Self::I16 => Self::U16,
            Self::I32 => Self::U32,
            Self::I64 => Self::U64,
            other => other,
        }
    }

    /// Whether `op` is defined on it.
    #[inline(always)]
    pub(crate) const fn has(self, op: Op) -> bool {
        self.class().ops() & 1 << op as u16 != 0
    }
}

impl Class {
    /// The operations that are defined on it, as bits.
    #[inline(always)]
    const fn ops(self) -> u16 {
        use Op::{
            BitAnd, BitOr, BitXor, LogicalAnd, LogicalOr, LogicalXor, Max, MaxLoc, Min, MinLoc,
            NoOp, Prod, Replace, Sum,
        };
        const ALL: u16 = bits(&[Replace, NoOp]);
        const NUMBERS: u16 = ALL | bits(&[Sum, Prod]);
        const ORDERED: u16 = NUMBERS | bits(&[Min, Max]);
        const LOGICAL: u16 = bits(&[LogicalAnd, LogicalOr, LogicalXor]);
        match self {
            Self::Integer => ORDERED | LOGICAL | bits(&[BitAnd, BitOr, BitXor]),
            Self::Float => ORDERED,
            Self::Complex => NUMBERS,
            Self::Bool => ALL | LOGICAL,
            Self::Pair => ALL | bits(&[MinLoc, MaxLoc]),
        }
    }
}

const fn bits(ops: &[Op]) -> u16 {
    let (mut bits, mut at) = (0, 0);
    while at < ops.len() {
        bits |= 1 << ops[at] as u16;
        at += 1;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Width;

    impl Visitor for Width {
        type Output = usize;

        fn visit<E: BasicElement>(self) -> usize {
            size_of::<E>()
        }
    }

    struct Check(BasicType);

    impl Visitor for Check {
        type Output = ();

        fn visit<E: BasicElement>(self) {
            // `usize` and `isize` share a code with the integer of their width.
            assert_eq!(E::BASIC, self.0, "{} says another code than the table", self.0.name());
            assert_eq!(size_of::<E>(), self.0.width());
            assert_eq!(BasicType::of::<E>(), Some(self.0));
            assert_eq!(BasicType::visit_of::<E, _>(Width), Some(self.0.width()));
        }
    }

    #[test]
    fn codes_and_types_agree() {
        for basic in BasicType::ALL {
            assert_eq!(BasicType::from_wire(basic.to_wire()), Some(*basic));
            assert_eq!(basic.visit(Check(*basic)), Some(()));
            assert!(!basic.name().is_empty());
        }
        assert_eq!(BasicType::ALL.len(), 25);
        assert_eq!(BasicType::from_wire(25), None);
        assert_eq!(BasicType::of::<usize>(), Some(usize::BASIC));
        assert_eq!((BasicType::of::<bool>(), BasicType::of::<u128>()), (None, None));
        assert_eq!(BasicType::visit_of::<usize, _>(Width), Some(size_of::<usize>()));
        assert_eq!(BasicType::visit_of::<u128, _>(Width), None);
    }

    /// S-H1 S-H11
    #[test]
    fn operations_by_class() {
        let has = |basic: BasicType| {
            Op::ALL.into_iter().filter(|op| basic.has(*op)).map(Op::name).collect::<Vec<_>>()
        };
        let integers = [
            "sum", "prod", "min", "max", "land", "lor", "lxor", "band", "bor", "bxor", "replace",
            "no_op",
        ];
        let mut expected = integers.to_vec();
        let mut found = has(BasicType::I8);
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
        assert_eq!(has(BasicType::F32), ["sum", "prod", "min", "max", "replace", "no_op"]);
        assert_eq!(has(BasicType::COMPLEX_F64), ["sum", "prod", "replace", "no_op"]);
        assert_eq!(has(BasicType::BOOL), ["replace", "no_op", "land", "lor", "lxor"]);
        assert_eq!(has(BasicType::PAIR_F32_I32), ["replace", "no_op", "minloc", "maxloc"]);
    }
}
