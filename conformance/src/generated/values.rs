//! Types and operations as the oracle knows them: written after MPI's tables, and not with the
//! functions of the library under test.
use rma_core::Op;
use std::cmp::Ordering;

/// What a number is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// An integer.
    Integer {
        /// Bytes.
        width: usize,
        /// Whether it may be negative.
        signed: bool,
    },
    /// A float of so many bytes.
    Float(usize),
}

impl Scalar {
    const fn width(self) -> usize {
        match self {
            Self::Integer { width, .. } | Self::Float(width) => width,
        }
    }

    fn integer(self, bytes: &[u8]) -> i128 {
        let Self::Integer { width, signed } = self else { unreachable!("a float") };
        let mut wide = [0; 16];
        wide[..width].copy_from_slice(&bytes[..width]);
        let (value, unused) = (i128::from_le_bytes(wide), 128 - 8 * width);
        if signed { (value << unused) >> unused } else { value }
    }

    fn float(self, bytes: &[u8]) -> f64 {
        match self.width() {
            4 => f32::from_le_bytes(bytes[..4].try_into().expect("four")).into(),
            _ => f64::from_le_bytes(bytes[..8].try_into().expect("eight")),
        }
    }

    /// `None` without an order: a NaN.
    fn compare(self, a: &[u8], b: &[u8]) -> Option<Ordering> {
        match self {
            Self::Integer { .. } => Some(self.integer(a).cmp(&self.integer(b))),
            Self::Float(_) => self.float(a).partial_cmp(&self.float(b)),
        }
    }

    fn arithmetic(self, op: Op, a: &[u8], b: &[u8]) -> Vec<u8> {
        let sum = op == Op::Sum;
        match self {
            Self::Integer { width, .. } => {
                let (a, b) = (self.integer(a), self.integer(b));
                let wide = if sum { a.wrapping_add(b) } else { a.wrapping_mul(b) };
                wide.to_le_bytes()[..width].to_vec()
            }
            Self::Float(4) => {
                let (a, b) = (self.float(a) as f32, self.float(b) as f32);
                (if sum { a + b } else { a * b }).to_le_bytes().to_vec()
            }
            Self::Float(_) => {
                let (a, b) = (self.float(a), self.float(b));
                (if sum { a + b } else { a * b }).to_le_bytes().to_vec()
            }
        }
    }
}

/// An element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// One number.
    Plain(Scalar),
    /// A truth value.
    Truth,
    /// Two floats of so many bytes.
    Complex(usize),
    /// A value and an index.
    Pair(Scalar, Scalar),
}

/// The basic types, and what calls generic code with the Rust type of one.
macro_rules! types { ($d:tt $($name:ident: $type:ty, $class:expr;)*) => {
    /// A basic type.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[expect(missing_docs, reason = "the names say it")]
    pub enum Type { $($name),* }

    impl Type {
        /// All of them.
        pub const ALL: &[Self] = &[$(Self::$name),*];

        /// What it is made of.
        pub const fn class(self) -> Class {
            use Scalar::{Float, Integer};
            match self { $(Self::$name => $class),* }
        }
    }

    /// Evaluates an expression in which `$E` is the Rust type.
    macro_rules! typed { ($d value:expr, $d E:ident => $d body:expr) => {
        match $d value { $($crate::generated::values::Type::$name => {
            type $d E = $type;
            $d body
        })* }
    } }
} }

const fn int(width: usize, signed: bool) -> Scalar {
    Scalar::Integer { width, signed }
}

types! { $
    U8: u8, Class::Plain(Integer { width: 1, signed: false });
    I8: i8, Class::Plain(Integer { width: 1, signed: true });
    U16: u16, Class::Plain(Integer { width: 2, signed: false });
    I16: i16, Class::Plain(Integer { width: 2, signed: true });
    U32: u32, Class::Plain(Integer { width: 4, signed: false });
    I32: i32, Class::Plain(Integer { width: 4, signed: true });
    U64: u64, Class::Plain(Integer { width: 8, signed: false });
    I64: i64, Class::Plain(Integer { width: 8, signed: true });
    Usize: usize, Class::Plain(Integer { width: size_of::<usize>(), signed: false });
    Isize: isize, Class::Plain(Integer { width: size_of::<isize>(), signed: true });
    F32: f32, Class::Plain(Float(4));
    F64: f64, Class::Plain(Float(8));
    Bool: rma_core::Bool, Class::Truth;
    ComplexF32: rma_core::Complex<f32>, Class::Complex(4);
    ComplexF64: rma_core::Complex<f64>, Class::Complex(8);
    PairI32I32: rma_core::Pair<i32, i32>, Class::Pair(int(4, true), int(4, true));
    PairI32U32: rma_core::Pair<i32, u32>, Class::Pair(int(4, true), int(4, false));
    PairU32I32: rma_core::Pair<u32, i32>, Class::Pair(int(4, false), int(4, true));
    PairU32U32: rma_core::Pair<u32, u32>, Class::Pair(int(4, false), int(4, false));
    PairF32I32: rma_core::Pair<f32, i32>, Class::Pair(Float(4), int(4, true));
    PairF32U32: rma_core::Pair<f32, u32>, Class::Pair(Float(4), int(4, false));
    PairI64I64: rma_core::Pair<i64, i64>, Class::Pair(int(8, true), int(8, true));
    PairI64U64: rma_core::Pair<i64, u64>, Class::Pair(int(8, true), int(8, false));
    PairU64I64: rma_core::Pair<u64, i64>, Class::Pair(int(8, false), int(8, true));
    PairU64U64: rma_core::Pair<u64, u64>, Class::Pair(int(8, false), int(8, false));
    PairF64I64: rma_core::Pair<f64, i64>, Class::Pair(Float(8), int(8, true));
    PairF64U64: rma_core::Pair<f64, u64>, Class::Pair(Float(8), int(8, false));
}
pub(super) use typed;

/// As `typed`, for the types that can be compared and swapped.
macro_rules! typed_atomic { ($value:expr, $E:ident => $body:expr) => {
    typed_atomic! { $value, $E => $body;
        U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, U64: u64, I64: i64,
        Usize: usize, Isize: isize, Bool: rma_core::Bool }
}; ($value:expr, $E:ident => $body:expr; $($name:ident: $type:ty),*) => {
    match $value {
        $($crate::generated::values::Type::$name => {
            type $E = $type;
            $body
        })*
        other => unreachable!("{other:?} cannot be compared and swapped"),
    }
} }
pub(super) use typed_atomic;

impl Type {
    /// Bytes of an element.
    pub const fn width(self) -> usize {
        match self.class() {
            Class::Plain(scalar) => scalar.width(),
            Class::Truth => 1,
            Class::Complex(width) => 2 * width,
            Class::Pair(value, index) => value.width() + index.width(),
        }
    }

    /// Whether it can be compared and swapped.
    pub const fn is_atomic(self) -> bool {
        matches!(self.class(), Class::Plain(Scalar::Integer { .. }) | Class::Truth)
    }

    /// The operations that it has, the atomic get last.
    pub const fn ops(self) -> &'static [Op] {
        use Op::{BitAnd, BitOr, BitXor, LogicalAnd, LogicalOr, LogicalXor};
        use Op::{Max, MaxLoc, Min, MinLoc, NoOp, Prod, Replace, Sum};
        match self.class() {
            Class::Plain(Scalar::Integer { .. }) => &[
                Sum, Replace, Max, Min, BitXor, BitAnd, BitOr, LogicalAnd, LogicalOr, LogicalXor,
                Prod, NoOp,
            ],
            Class::Plain(Scalar::Float(_)) => &[Sum, Replace, Max, Min, Prod, NoOp],
            Class::Truth => &[LogicalXor, Replace, LogicalAnd, LogicalOr, NoOp],
            Class::Complex(_) => &[Sum, Replace, Prod, NoOp],
            Class::Pair(..) => &[MaxLoc, Replace, MinLoc, NoOp],
        }
    }

    /// A value, not a NaN, made from any number; small ones for small numbers.
    pub fn value(self, number: u16) -> Vec<u8> {
        let scalar = |scalar: Scalar, number: u16| match scalar {
            // Some values lie at the ends of their range, so that sums wrap.
            Scalar::Integer { width, .. } if number.is_multiple_of(7) => {
                let mut bytes = vec![0xff; width];
                bytes[width - 1] = if number.is_multiple_of(2) { 0x7f } else { 0x80 };
                bytes
            }
            Scalar::Integer { width, .. } => {
                let wide = i64::from(number) - 9;
                wide.to_le_bytes()[..width].to_vec()
            }
            Scalar::Float(width) => {
                let half = f64::from(i32::from(number % 23) - 11) / 2.0;
                let value = if number.is_multiple_of(13) { -0.0 } else { half };
                if width == 4 {
                    (value as f32).to_le_bytes().to_vec()
                } else {
                    value.to_le_bytes().to_vec()
                }
            }
        };
        match self.class() {
            Class::Plain(one) => scalar(one, number),
            Class::Truth => vec![(number % 2) as u8],
            Class::Complex(width) => {
                let part = |number| scalar(Scalar::Float(width), number);
                [part(number % 7 + 8), part(number / 7 % 7 + 8)].concat()
            }
            Class::Pair(value, index) => {
                [scalar(value, number % 5 + 8), scalar(index, number / 5 % 64 + 9)].concat()
            }
        }
    }

    /// `op` of what is in the window and the operand; `None` if a NaN takes part or comes out,
    /// whose bits are not promised.
    pub fn combine(self, op: Op, old: &[u8], operand: &[u8]) -> Option<Vec<u8>> {
        if matches!(op, Op::Replace | Op::NoOp) {
            return Some(if op == Op::NoOp { old } else { operand }.to_vec());
        }
        match self.class() {
            Class::Plain(scalar) => plain(scalar, op, old, operand),
            Class::Truth => Some(vec![u8::from(logical(op, old[0] != 0, operand[0] != 0))]),
            Class::Complex(width) => complex(Scalar::Float(width), op, old, operand),
            Class::Pair(value, index) => {
                let split = value.width();
                let ((a, i), (b, j)) = (old.split_at(split), operand.split_at(split));
                let wins = match value.compare(b, a)? {
                    Ordering::Equal => index.compare(j, i)? == Ordering::Less,
                    Ordering::Less => op == Op::MinLoc,
                    Ordering::Greater => op == Op::MaxLoc,
                };
                Some(if wins { operand } else { old }.to_vec())
            }
        }
    }
}

fn logical(op: Op, a: bool, b: bool) -> bool {
    match op {
        Op::LogicalAnd => a && b,
        Op::LogicalOr => a || b,
        Op::LogicalXor => a != b,
        _ => unreachable!("{op:?} is not logical"),
    }
}

fn plain(scalar: Scalar, op: Op, old: &[u8], operand: &[u8]) -> Option<Vec<u8>> {
    let bitwise = |with: fn(u8, u8) -> u8| {
        old.iter().zip(operand).map(|(a, b)| with(*a, *b)).collect::<Vec<_>>()
    };
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    Some(match op {
        Op::Sum | Op::Prod => {
            let result = scalar.arithmetic(op, old, operand);
            scalar.compare(&result, &result)?;
            result
        }
        Op::Min | Op::Max => {
            let wanted = if op == Op::Min { Ordering::Less } else { Ordering::Greater };
            let mut order = scalar.compare(operand, old)?;
            if let (Ordering::Equal, Scalar::Float(width)) = (order, scalar) {
                // -0.0 is below 0.0.
                order = (operand[width - 1] < 128).cmp(&(old[width - 1] < 128));
            }
            if order == wanted { operand } else { old }.to_vec()
        }
        Op::BitAnd => bitwise(|a, b| a & b),
        Op::BitOr => bitwise(|a, b| a | b),
        Op::BitXor => bitwise(|a, b| a ^ b),
        _ => {
            let mut result = vec![0; old.len()];
            result[0] = u8::from(logical(op, !is_zero(old), !is_zero(operand)));
            result
        }
    })
}

fn complex(float: Scalar, op: Op, a: &[u8], b: &[u8]) -> Option<Vec<u8>> {
    let ((ar, ai), (br, bi)) = (a.split_at(float.width()), b.split_at(float.width()));
    let plus = |a: &[u8], b: &[u8]| float.arithmetic(Op::Sum, a, b);
    let times = |a: &[u8], b: &[u8]| float.arithmetic(Op::Prod, a, b);
    let minus = |a: &[u8], mut b: Vec<u8>| {
        *b.last_mut().expect("a float has bytes") ^= 0x80;
        plus(a, &b)
    };
    let (real, imaginary) = match op {
        Op::Sum => (plus(ar, br), plus(ai, bi)),
        _ => (minus(&times(ar, br), times(ai, bi)), plus(&times(ar, bi), &times(ai, br))),
    };
    float.compare(&real, &real)?;
    float.compare(&imaginary, &imaginary)?;
    Some([real, imaginary].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The oracle's values and operations, against numbers written out. S-H1 S-H17
    #[test]
    fn values_combine() {
        let i8s = |op, a: i8, b: i8| {
            Type::I8.combine(op, &a.to_le_bytes(), &b.to_le_bytes()).unwrap()[0] as i8
        };
        assert_eq!(i8s(Op::Sum, 127, 1), -128);
        assert_eq!(i8s(Op::Prod, -7, 5), -35);
        assert_eq!((i8s(Op::Min, -7, 5), i8s(Op::Max, -7, 5)), (-7, 5));
        assert_eq!((i8s(Op::BitXor, 6, 3), i8s(Op::LogicalXor, 6, 3)), (5, 0));
        let f64s = |op, a: f64, b: f64| {
            let result = Type::F64.combine(op, &a.to_le_bytes(), &b.to_le_bytes());
            result.map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()))
        };
        assert_eq!(f64s(Op::Prod, 1.5, -2.0), Some(-3.0));
        assert!(f64s(Op::Min, 0.0, -0.0).unwrap().is_sign_negative());
        assert!(f64s(Op::Max, -0.0, 0.0).unwrap().is_sign_positive());
        assert_eq!(f64s(Op::Max, 1.0, f64::NAN), None);
        let pair = |value: i32, index: u32| [value.to_le_bytes(), index.to_le_bytes()].concat();
        let minloc = |a: &[u8], b: &[u8]| Type::PairI32U32.combine(Op::MinLoc, a, b).unwrap();
        assert_eq!(minloc(&pair(3, 1), &pair(-2, 9)), pair(-2, 9));
        assert_eq!(minloc(&pair(3, 4), &pair(3, 2)), pair(3, 2), "the lower index");
        let complex = |re: f32, im: f32| [re.to_le_bytes(), im.to_le_bytes()].concat();
        let product = Type::ComplexF32.combine(Op::Prod, &complex(1.0, 2.0), &complex(3.0, -1.0));
        assert_eq!(product, Some(complex(5.0, 5.0)));
    }

    #[test]
    fn values_are_as_wide_as_their_type() {
        for element in Type::ALL {
            let width = typed!(*element, E => size_of::<E>());
            assert!((0..600).all(|number| element.value(number).len() == width));
            assert_eq!(element.width(), width);
            let is_defined = |op: &Op| typed!(*element, E => op.is_defined_on::<E>());
            assert!(element.ops().iter().all(is_defined), "{element:?}");
        }
    }
}
