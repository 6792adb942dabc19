//! Operations that combine a value in a window with an operand.
use crate::element::BasicElement;

/// A predefined reduction (MPI 4.1, section 6.9.2 and 12.3.4).
///
/// Which types have which is told by [`BasicElement`] and [`is_defined_on`](Self::is_defined_on).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Op {
    /// `old + operand`; integers wrap.
    Sum = 0,
    /// `old × operand`; integers wrap.
    Prod = 1,
    /// The smaller. A NaN loses against any number; −0.0 is smaller than 0.0.
    Min = 2,
    /// The larger. A NaN loses against any number; −0.0 is smaller than 0.0.
    Max = 3,
    /// Bitwise and.
    BitAnd = 4,
    /// Bitwise or.
    BitOr = 5,
    /// Bitwise exclusive or.
    BitXor = 6,
    /// `operand`: an atomic put.
    Replace = 7,
    /// `old`: an atomic get.
    NoOp = 8,
    /// 1 if both are not 0, otherwise 0.
    LogicalAnd = 9,
    /// 1 if one or both are not 0, otherwise 0.
    LogicalOr = 10,
    /// 1 if exactly one is not 0, otherwise 0.
    LogicalXor = 11,
    /// The [`Pair`](crate::Pair) with the smaller value; of equal values that with the lower
    /// index. A NaN loses against any number.
    MinLoc = 12,
    /// The [`Pair`](crate::Pair) with the larger value; of equal values that with the lower
    /// index. A NaN loses against any number.
    MaxLoc = 13,
}

impl Op {
    pub(crate) const ALL: [Self; 14] = [
        Self::Sum,
        Self::Prod,
        Self::Min,
        Self::Max,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
        Self::Replace,
        Self::NoOp,
        Self::LogicalAnd,
        Self::LogicalOr,
        Self::LogicalXor,
        Self::MinLoc,
        Self::MaxLoc,
    ];

    /// The operation's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::BitAnd => "band",
            Self::BitOr => "bor",
            Self::BitXor => "bxor",
            Self::Replace => "replace",
            Self::NoOp => "no_op",
            Self::LogicalAnd => "land",
            Self::LogicalOr => "lor",
            Self::LogicalXor => "lxor",
            Self::MinLoc => "minloc",
            Self::MaxLoc => "maxloc",
        }
    }

    /// Whether values of the type `E` can be combined so.
    #[inline]
    pub fn is_defined_on<E: BasicElement>(self) -> bool {
        E::BASIC.has(self)
    }

    /// What to do instead, where it is not defined.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::NoOp => "use get_accumulate or fetch_and_op for an atomic get",
            Self::MinLoc | Self::MaxLoc => "use a Pair of a value and its index",
            Self::BitAnd | Self::BitOr | Self::BitXor => "use an integer type",
            Self::LogicalAnd | Self::LogicalOr | Self::LogicalXor => "use Bool or an integer type",
            Self::Min | Self::Max => "use an integer or floating-point type",
            Self::Sum | Self::Prod | Self::Replace => "use a type of numbers",
        }
    }

    pub(crate) fn from_wire(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u8 == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_bytes_round_trip() {
        for (byte, op) in (0..).zip(Op::ALL) {
            assert_eq!(op as u8, byte);
            assert_eq!(Op::from_wire(byte), Some(op));
        }
        assert_eq!(Op::from_wire(14), None);
    }
}
