//! Operations that combine a value in a window with an operand.

/// A predefined reduction (MPI 4.1, section 6.9.2 and 12.3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Op {
    /// `old + operand`; integers wrap.
    Sum = 0,
    /// `old × operand`; integers wrap.
    Prod = 1,
    /// The smaller.
    Min = 2,
    /// The larger.
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
}

impl Op {
    const ALL: [Self; 9] = [
        Self::Sum,
        Self::Prod,
        Self::Min,
        Self::Max,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
        Self::Replace,
        Self::NoOp,
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
        }
    }

    /// Whether the operation is defined on floating-point numbers.
    pub fn allowed_on_floats(self) -> bool {
        !matches!(self, Self::BitAnd | Self::BitOr | Self::BitXor)
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
        for op in Op::ALL {
            assert_eq!(Op::from_wire(op as u8), Some(op));
        }
        assert_eq!(Op::from_wire(9), None);
    }
}
