//! The accumulate family on every type and operation, against a sequential expectation (FEATURES
//! A2, A3).
use crate::help::{neighbour, pattern, says};
use core::fmt::Debug;
use rma_core::{
    Assert, AtomicElement, BasicElement, Bool, Complex, ErrorClass, LockAll, LockKind, Op, Pair,
    Rank, RmaError, Universe, Window,
};

pub(crate) const OPS: [Op; 14] = [
    Op::Sum,
    Op::Prod,
    Op::Min,
    Op::Max,
    Op::LogicalAnd,
    Op::LogicalOr,
    Op::LogicalXor,
    Op::BitAnd,
    Op::BitOr,
    Op::BitXor,
    Op::MinLoc,
    Op::MaxLoc,
    Op::Replace,
    Op::NoOp,
];

/// `None` where the type does not have the operation.
type Oracle<E> = fn(Op, E, E) -> Option<E>;

fn counts() -> &'static [usize] {
    if cfg!(miri) { &[3] } else { &[1, 3, 1000] }
}

fn bytes<E: BasicElement>(elements: &[E]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

/// What is around the elements under test, and must not change.
const MARGIN: usize = 32;

/// A window of bytes at every rank, and what the right neighbour's part should hold.
struct Bench<'u> {
    universe: &'u Universe,
    window: Window,
    right: Rank,
}

impl<'u> Bench<'u> {
    fn new(universe: &'u Universe, bytes: usize) -> Self {
        let world = universe.world();
        let window = world.window(bytes + 2 * MARGIN, 1).allocate().unwrap();
        Self { universe, window, right: neighbour(world, 1) }
    }

    /// Puts `old` between pattern bytes, runs `operation`, and compares everything afterwards.
    /// S-G12
    fn check<E: BasicElement>(
        &self,
        epoch: &LockAll<'_>,
        old: &[E],
        new: &[E],
        what: &str,
        operation: impl FnOnce(u64),
    ) {
        let frame = |middle: &[E]| {
            let (before, after) = (pattern(7, MARGIN), pattern(8, MARGIN));
            [&before[..], bytes(middle), &after].concat()
        };
        if cfg!(miri) {
            // Miri does not stand bytes that are stored where a word was combined before.
            let behind = (MARGIN + size_of_val(old)) as u64;
            epoch.put(self.right, 0, &pattern(7, MARGIN)).unwrap();
            epoch.put(self.right, behind, &pattern(8, MARGIN)).unwrap();
            epoch.accumulate(self.right, MARGIN as u64, Op::Replace, old).unwrap();
        } else {
            epoch.put(self.right, 0, &frame(old)).unwrap();
        }
        epoch.flush(self.right).unwrap();
        operation(MARGIN as u64);
        epoch.flush(self.right).unwrap();
        let mut found = frame(old);
        epoch.get(self.right, 0, &mut found).unwrap();
        assert_eq!(found, frame(new), "{what}");
    }

    fn free(self) {
        self.universe.world().barrier().unwrap();
        self.window.free().unwrap();
    }
}

/// Every operation on every number of elements, in all forms. S-H1 S-H2 S-H3 S-H10 S-H11 S-H13
fn every_op<E: BasicElement + Debug>(universe: &Universe, samples: &[E], oracle: Oracle<E>) {
    let bench = Bench::new(universe, 1000 * size_of::<E>());
    let (epoch, right) = (bench.window.lock_all().unwrap(), bench.right);
    let name = core::any::type_name::<E>();
    for op in OPS {
        assert_eq!(op.is_defined_on::<E>(), oracle(op, samples[0], samples[0]).is_some(), "{op:?}");
        if cfg!(miri) && !matches!(op, Op::Sum | Op::LogicalXor | Op::MinLoc) {
            continue;
        }
        for &count in counts() {
            let n = samples.len();
            let old: Vec<E> = (0..count).map(|i| samples[i % n]).collect();
            let operands: Vec<E> = (0..count).map(|i| samples[(i / n + i) % n]).collect();
            let what = format!("{} on {count} of {name}", op.name());
            if !op.is_defined_on::<E>() {
                let refused = |at| refused(&epoch, right, at, op, &operands);
                bench.check(&epoch, &old, &old, &what, refused);
                continue;
            }
            let pairs = old.iter().zip(&operands);
            let new: Vec<E> = pairs.map(|(a, b)| oracle(op, *a, *b).unwrap()).collect();
            if op != Op::NoOp {
                bench.check(&epoch, &old, &new, &what, |at| {
                    epoch.accumulate(right, at, op, &operands).unwrap();
                });
            }
            bench.check(&epoch, &old, &new, &what, |at| {
                let mut result = vec![E::zeroed(); count];
                epoch.get_accumulate(right, at, op, &operands, &mut result).unwrap();
                assert_eq!(bytes(&result), bytes(&old), "result of {what}");
            });
            if count == 3 {
                let one = [&new[..1], &old[1..]].concat();
                bench.check(&epoch, &old, &one, &what, |at| {
                    let found = epoch.fetch_and_op(right, at, op, operands[0]).unwrap();
                    assert_eq!(bytes(&[found]), bytes(&old[..1]), "fetch_and_op {what}");
                });
            }
        }
    }
    epoch.unlock().unwrap();
    bench.free();
}

fn refused<E: BasicElement + Debug>(
    epoch: &LockAll<'_>,
    target: Rank,
    at: u64,
    wrong: Op,
    operands: &[E],
) {
    let mut result = operands.to_vec();
    let errors = [
        epoch.accumulate(target, at, wrong, operands).unwrap_err(),
        epoch.get_accumulate(target, at, wrong, operands, &mut result).unwrap_err(),
        epoch.fetch_and_op(target, at, wrong, operands[0]).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, RmaError::WrongOp { op, .. } if op == wrong), "{error}");
        assert_eq!(error.class(), ErrorClass::Op);
        says(&error, &[wrong.name(), "not defined"]);
    }
}

macro_rules! integers { ($universe:expr, $($int:ty),*) => { $(
    every_op::<$int>(
        $universe,
        &[0, 1, <$int>::MIN, <$int>::MAX, <$int>::MAX / 3 * 2, 5],
        |op, old, operand| Some(match op {
            Op::Sum => old.wrapping_add(operand),
            Op::Prod => old.wrapping_mul(operand),
            Op::Min => if operand < old { operand } else { old },
            Op::Max => if operand > old { operand } else { old },
            Op::LogicalAnd => <$int>::from(old != 0 && operand != 0),
            Op::LogicalOr => <$int>::from(old != 0 || operand != 0),
            Op::LogicalXor => <$int>::from((old == 0) != (operand == 0)),
            Op::BitAnd => old & operand,
            Op::BitOr => old | operand,
            Op::BitXor => old ^ operand,
            Op::Replace => operand,
            Op::NoOp => old,
            _ => return None,
        }),
    );
)* } }

/// The widths that the machine does not combine in one call of a window. S-H17
pub fn small_integers(universe: &Universe) {
    integers!(universe, i16);
    if !cfg!(miri) {
        integers!(universe, u8, i8, u16);
    }
}

/// The widths that the machine combines atomically. S-H17
pub fn large_integers(universe: &Universe) {
    integers!(universe, i64);
    if !cfg!(miri) {
        integers!(universe, u32, i32, u64, usize, isize);
    }
}

macro_rules! floats { ($universe:expr, $($float:ty),*) => { $(
    every_op::<$float>(
        $universe,
        &[0.0, -0.0, 1.5, -2.25, <$float>::MAX, <$float>::MIN_POSITIVE],
        |op, old, operand| {
            let by_sign = |below: bool| if old.is_sign_negative() == below { old } else { operand };
            Some(match op {
                Op::Sum => old + operand,
                Op::Prod => old * operand,
                Op::Min if operand == old => by_sign(true),
                Op::Max if operand == old => by_sign(false),
                Op::Min => if operand < old { operand } else { old },
                Op::Max => if operand > old { operand } else { old },
                Op::Replace => operand,
                Op::NoOp => old,
                _ => return None,
            })
        },
    );
)* } }

/// Negative zero is below zero. S-H17
pub fn floats(universe: &Universe) {
    floats!(universe, f64);
    if !cfg!(miri) {
        floats!(universe, f32);
    }
}

/// A NaN loses against every number, and wins in sums. S-H17
pub fn not_a_number(universe: &Universe) {
    let world = universe.world();
    let window = world.window(4, 8).allocate().unwrap();
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let old = [f64::NAN, 1.0, f64::NAN, 1.0];
    let operands = [2.0, f64::NAN, f64::NAN, -3.0];
    for (op, expected) in [
        (Op::Min, [2.0, 1.0, f64::NAN, -3.0]),
        (Op::Max, [2.0, 1.0, f64::NAN, 1.0]),
        (Op::Sum, [f64::NAN, f64::NAN, f64::NAN, -2.0]),
    ] {
        epoch.accumulate(right, 0, Op::Replace, &old).unwrap();
        epoch.accumulate(right, 0, op, &operands).unwrap();
        let mut found = [0.0; 4];
        epoch.get_accumulate(right, 0, Op::NoOp, &[], &mut found).unwrap();
        let same = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan());
        assert!(found.iter().zip(&expected).all(same), "{}: {found:?}", op.name());
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// Truth values; any byte but 0 is true, and 1 is written.
pub fn bools(universe: &Universe) {
    every_op::<Bool>(universe, &[Bool::FALSE, Bool::TRUE, Bool::TRUE], |op, old, operand| {
        Some(Bool::new(match op {
            Op::LogicalAnd => old.get() && operand.get(),
            Op::LogicalOr => old.get() || operand.get(),
            Op::LogicalXor => old.get() != operand.get(),
            Op::Replace => operand.get(),
            Op::NoOp => old.get(),
            _ => return None,
        }))
    });
    let window = universe.world().window(4, 1).allocate().unwrap();
    let right = neighbour(universe.world(), 1);
    let epoch = window.lock_all().unwrap();
    epoch.put(right, 0, &[9u8]).unwrap();
    epoch.flush(right).unwrap();
    assert_eq!(epoch.fetch_and_op(right, 0, Op::LogicalAnd, Bool::TRUE), Ok(Bool::TRUE));
    assert_eq!(epoch.fetch_and_op(right, 0, Op::NoOp, 0u8), Ok(1));
    epoch.unlock().unwrap();
    window.free().unwrap();
}

macro_rules! complex { ($universe:expr, $($float:ty),*) => { $(
    let c = |re, im| Complex::<$float>::new(re, im);
    every_op(
        $universe,
        &[c(0.0, 0.0), c(1.0, -2.0), c(0.5, 3.0), c(-1.0, 0.0), c(2.0, 4.0)],
        |op, a, b| Some(match op {
            Op::Sum => Complex::new(a.re + b.re, a.im + b.im),
            Op::Prod => Complex::new(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re),
            Op::Replace => b,
            Op::NoOp => a,
            _ => return None,
        }),
    );
)* } }

/// Complex numbers add, multiply and are exchanged.
pub fn complex_numbers(universe: &Universe) {
    complex!(universe, f64);
    if !cfg!(miri) {
        complex!(universe, f32);
    }
}

macro_rules! pairs { ($universe:expr, $($value:ty, $index:ty);*) => { $(
    let p = |value: u8, index: u8| Pair::<$value, $index>::new(value.into(), index as $index);
    every_op(
        $universe,
        &[p(0, 0), p(3, 7), p(3, 2), p(9, 1), p(0, 5), p(200, 200)],
        |op, a, b| Some(match op {
            Op::Replace => b,
            Op::NoOp => a,
            Op::MinLoc | Op::MaxLoc if a.value == b.value => {
                Pair::new(a.value, if a.index < b.index { a.index } else { b.index })
            }
            Op::MinLoc => if b.value < a.value { b } else { a },
            Op::MaxLoc => if b.value > a.value { b } else { a },
            _ => return None,
        }),
    );
)* } }

/// Values with indices; the lower index wins a tie. S-H6
pub fn pairs(universe: &Universe) {
    pairs!(universe, f64, i64);
    if !cfg!(miri) {
        pairs!(universe, i32, i32; u32, u32; f32, i32; i64, i64; u64, u64; f64, u64);
    }
}

/// The less usual mixtures of signed and unsigned. S-H6
pub fn more_pairs(universe: &Universe) {
    pairs!(universe, f32, u32);
    if !cfg!(miri) {
        pairs!(universe, i32, u32; u32, i32; i64, u64; u64, i64);
    }
}

/// Arrays that begin and end anywhere, elements that straddle two stripes among them. S-H9 S-H15
pub fn stripe_borders(universe: &Universe) {
    let len = if cfg!(miri) { 16384 + 64 } else { 6 * 16384 };
    let bench = Bench::new(universe, len);
    let (epoch, right) = (bench.window.lock_all().unwrap(), bench.right);
    let old: Vec<Complex<f64>> = (0..len / 16).map(|i| Complex::new(i as f64, 0.5)).collect();
    // Element 1022 begins at a border; shifted, element 1021 straddles it.
    let starts: &[usize] = if cfg!(miri) { &[1018] } else { &[0, 1, 1018, 1021, 1022, 1023, 2047] };
    for &start in starts {
        let lens: &[usize] = if cfg!(miri) { &[8] } else { &[1, 2, 8, 1024, 1025, 3000] };
        for &count in lens {
            for shift in [0, 8] {
                let operands: Vec<_> = (0..count).map(|i| Complex::new(1.0, i as f64)).collect();
                // Shifted by half an element, imaginary parts come before real ones.
                let mut new: Vec<f64> = bytemuck::cast_slice(&old).to_vec();
                let summands: &[f64] = bytemuck::cast_slice(&operands);
                let from = 2 * start + shift / 8;
                for (new, summand) in new[from..].iter_mut().zip(summands) {
                    *new += summand;
                }
                let new: &[Complex<f64>] = bytemuck::cast_slice(&new);
                bench.check(&epoch, &old, new, &format!("{count} from {start}"), |at| {
                    let at = at + (16 * start + shift) as u64;
                    epoch.accumulate(right, at, Op::Sum, &operands).unwrap();
                });
            }
        }
    }
    epoch.unlock().unwrap();
    bench.free();
}

/// A mebibyte in one call, with a small one right behind. S-H15
pub fn one_mebibyte(universe: &Universe) {
    let count = if cfg!(miri) { 530 } else { 1 << 17 };
    let world = universe.world();
    let window = world.window(count, 8).allocate().unwrap();
    let (right, operands) = (neighbour(world, 1), vec![1.5f64; count]);
    let mut seen = vec![-1.0; count];
    let epoch = window.lock_all().unwrap();
    epoch.accumulate(right, 0, Op::Sum, &operands).unwrap();
    epoch.accumulate(right, count as u64 - 1, Op::Sum, &[2.0f64]).unwrap();
    epoch.get_accumulate(right, 0, Op::Prod, &operands, &mut seen).unwrap();
    epoch.unlock().unwrap();
    assert!(seen[..count - 1].iter().all(|value| *value == 1.5));
    assert_eq!(seen[count - 1], 3.5);
    world.barrier().unwrap();
    let mut mine = vec![0.0; count];
    window.local().read(0, &mut mine).unwrap();
    assert!(mine[..count - 1].iter().all(|value| *value == 2.25));
    assert_eq!(mine[count - 1], 5.25);
    window.free().unwrap();
}

fn swap<E: AtomicElement + Debug>(universe: &Universe, values: [E; 3]) {
    let bench = Bench::new(universe, 3 * size_of::<E>());
    let (epoch, right) = (bench.window.lock_all().unwrap(), bench.right);
    let ([a, b, c], size) = (values, size_of::<E>() as u64);
    bench.check(&epoch, &[a, b, c], &[a, c, c], "equal", |at| {
        assert_eq!(epoch.compare_and_swap(right, at + size, b, c), Ok(b));
    });
    bench.check(&epoch, &[a, b, c], &[a, b, c], "not equal", |at| {
        assert_eq!(epoch.compare_and_swap(right, at + size, a, c), Ok(b));
    });
    epoch.unlock().unwrap();
    bench.free();
}

/// Every type that can be compared and swapped. S-H12
pub fn compare_and_swap(universe: &Universe) {
    swap(universe, [1i16, -2, i16::MIN]);
    swap(universe, [Bool::TRUE, Bool::FALSE, Bool::TRUE]);
    if cfg!(miri) {
        return;
    }
    swap(universe, [0u8, 255, 7]);
    swap(universe, [0i8, -1, 7]);
    swap(universe, [1u16, 65_535, 0]);
    swap(universe, [1u32, u32::MAX, 0]);
    swap(universe, [1i32, -2, i32::MIN]);
    swap(universe, [1u64, u64::MAX, 0]);
    swap(universe, [1i64, -2, i64::MIN]);
    swap(universe, [1usize, usize::MAX, 0]);
    swap(universe, [1isize, -1, 5]);
}

/// Nothing happens at the null target, nor with zero elements. S-G3 S-G4 S-I7
pub fn null_and_empty(universe: &Universe) {
    let world = universe.world();
    let window = world.window(2, 8).allocate().unwrap();
    let epoch = window.lock_all().unwrap();
    let mut result = [5.0f64; 2];
    epoch.accumulate(Rank::NULL, 9, Op::Sum, &[1.0f64; 2]).unwrap();
    epoch.get_accumulate(Rank::NULL, 9, Op::Sum, &[1.0; 2], &mut result).unwrap();
    assert_eq!(result, [5.0; 2]);
    assert_eq!(epoch.fetch_and_op(Rank::NULL, 9, Op::Sum, 3.0f32), Ok(3.0));
    assert_eq!(epoch.compare_and_swap(Rank::NULL, 9, 3u16, 4), Ok(3));
    let request = epoch.raccumulate(Rank::NULL, 0, Op::Sum, vec![1.0f64]).unwrap();
    assert_eq!(request.wait().unwrap(), [1.0]);
    let request = epoch.rget_accumulate(Rank::NULL, 0, Op::NoOp, &[], vec![2.0f64]).unwrap();
    assert_eq!(request.wait().unwrap(), [2.0]);

    let right = neighbour(world, 1);
    epoch.accumulate(right, 0, Op::Sum, &[0.0f64; 0]).unwrap();
    epoch.accumulate(right, 2, Op::Sum, &[0u64; 0]).unwrap();
    epoch.get_accumulate(right, 0, Op::Sum, &[0u8; 0], &mut []).unwrap();
    epoch.get_accumulate(right, 0, Op::NoOp, &[1u8, 2], &mut []).unwrap();
    let empty = epoch.raccumulate(right, 0, Op::Sum, Vec::<f32>::new()).unwrap();
    assert!(empty.wait().unwrap().is_empty());
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(window.local().load::<u128>(0).unwrap(), 0);
    window.free().unwrap();
}

/// What is wrong is refused, and nothing is combined. S-G8 S-G10 S-H13
pub fn errors(universe: &Universe) {
    let world = universe.world();
    let window = world.window(64, 1).allocate().unwrap();
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let no_op = epoch.accumulate(right, 0, Op::NoOp, &[1u64]).unwrap_err();
    says(&no_op, &["no_op", "get_accumulate", "u64"]);
    assert_eq!(no_op.class(), ErrorClass::Op);
    let no_op = epoch.accumulate(right, 0, Op::NoOp, &[1u8, 2]).unwrap_err();
    assert!(matches!(no_op, RmaError::WrongOp { op: Op::NoOp, element: "u8", .. }));

    let mut result = [0u16; 3];
    let count = epoch.get_accumulate(right, 0, Op::Sum, &[1u16; 2], &mut result).unwrap_err();
    assert!(matches!(count, RmaError::WrongCount { origin: 2, result: 3, .. }));
    assert_eq!(count.class(), ErrorClass::Count);

    let misaligned = [
        epoch.accumulate(right, 1, Op::Sum, &[1u16]),
        epoch.accumulate(right, 2, Op::Sum, &[1.0f32; 2]),
        epoch.accumulate(right, 4, Op::Sum, &[1u64; 2]),
        epoch.accumulate(right, 4, Op::Sum, &[Complex::new(1.0f64, 1.0)]),
        epoch.accumulate(right, 4, Op::MinLoc, &[Pair::new(1i64, 1i64)]),
        epoch.get_accumulate(right, 1, Op::NoOp, &[], &mut result),
        epoch.fetch_and_op(right, 4, Op::Sum, 1.0f64).map(|_| ()),
        epoch.compare_and_swap(right, 3, 1i16, 2).map(|_| ()),
    ];
    for (i, error) in misaligned.into_iter().enumerate() {
        assert!(matches!(error, Err(RmaError::Misaligned { .. })), "{i}: {error:?}");
    }
    // Aligned to the components is enough.
    epoch.accumulate(right, 4, Op::Replace, &[Pair::new(0i32, 0i32)]).unwrap();

    let outside = [
        epoch.accumulate(right, 60, Op::Sum, &[1.0f64]),
        epoch.accumulate(right, 0, Op::Sum, &[1.0f64; 9]),
        epoch.accumulate(right, u64::MAX, Op::Sum, &[1u8]),
        epoch.get_accumulate(right, 60, Op::NoOp, &[], &mut result),
        epoch.fetch_and_op(right, 64, Op::Sum, 1u8).map(|_| ()),
        epoch.compare_and_swap(right, 64, 0u8, 1).map(|_| ()),
    ];
    for (i, error) in outside.into_iter().enumerate() {
        assert!(matches!(error, Err(RmaError::OutOfRange { .. })), "{i}: {error:?}");
    }
    let outside = epoch.accumulate(Rank(world.size()), 0, Op::Sum, &[1.0f64]);
    assert!(matches!(outside, Err(RmaError::NoSuchRank { .. })));
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let mut mine = [1u8; 64];
    window.local().read(0, &mut mine).unwrap();
    assert_eq!(mine, [0; 64]);
    window.free().unwrap();
}

/// The origin may change as soon as the call has returned. S-H16 S-I2
pub fn origin_is_captured(universe: &Universe) {
    let world = universe.world();
    let window = world.window(400, 8).allocate().unwrap();
    let right = neighbour(world, 1);
    let mut origin = vec![0.0f64; 400];
    let epoch = window.fence(Assert::NONE).unwrap();
    for round in 1..=4 {
        origin.fill(f64::from(round));
        epoch.accumulate(right, 0, Op::Sum, &origin).unwrap();
        origin.fill(1e9);
    }
    epoch.end().unwrap();
    let mut mine = vec![0.0f64; 400];
    window.local().read(0, &mut mine).unwrap();
    assert_eq!(mine, [10.0; 400]);
    window.free().unwrap();
}

/// Scopes, requests and views combine as plain calls do. S-I3 S-I4
pub fn scopes_requests_and_views(universe: &Universe) {
    let world = universe.world();
    let window = world.window(300, 4).allocate().unwrap();
    let right = neighbour(world, 1);
    let ones = vec![1.0f32; 300];
    let (mut first, mut second) = (vec![9.0f32; 300], vec![9.0f32; 300]);
    let epoch = window.lock_all().unwrap();
    epoch
        .ops(|ops| {
            ops.accumulate(right, 0, Op::Sum, &ones)?;
            ops.get_accumulate(right, 0, Op::Sum, &ones, &mut first)?;
            ops.get_accumulate(right, 0, Op::NoOp, &[], &mut second)
        })
        .unwrap();
    assert_eq!((first, second), (vec![1.0; 300], vec![2.0; 300]));
    epoch.raccumulate(right, 0, Op::Prod, vec![4.0f32; 300]).unwrap().wait().unwrap();
    let boxed: Box<[f32]> = vec![0.0; 300].into();
    let request = epoch.rget_accumulate(right, 0, Op::Sum, &ones, boxed).unwrap();
    drop(epoch.rget_accumulate(right, 0, Op::Sum, &ones, vec![0.0; 300]).unwrap());
    core::mem::forget(epoch.raccumulate(right, 0, Op::Sum, ones.clone()).unwrap());
    epoch.unlock().unwrap();
    assert_eq!(request.wait().unwrap()[..], [8.0; 300]);

    let epoch = window.lock(right, LockKind::Shared).unwrap();
    epoch.raccumulate(0, Op::Sum, ones.clone()).unwrap().wait().unwrap();
    let request = epoch.rget_accumulate(0, Op::NoOp, &[], vec![0.0f32; 300]).unwrap();
    assert_eq!(request.wait().unwrap(), [12.0; 300]);
    epoch.unlock().unwrap();
    world.barrier().unwrap();

    let view = window.local();
    view.accumulate(0, Op::Sum, &ones).unwrap();
    assert_eq!(view.fetch_and_op(299, Op::Max, 14.0f32), Ok(13.0));
    assert_eq!(view.load(299), Ok(14.0f32));
    assert_eq!(view.compare_and_swap(0, 0u16, 1), Ok(0), "the low half of 13.0");
    assert!(matches!(view.accumulate(0, Op::NoOp, &ones), Err(RmaError::WrongOp { .. })));
    let error = view.fetch_and_op(0, Op::BitOr, 1.0f32).unwrap_err();
    says(&error, &["bor", "f32"]);
    window.free().unwrap();
}

/// The family works in every kind of epoch.
pub fn in_every_epoch(universe: &Universe) {
    let world = universe.world();
    let window = world.window(2, 8).allocate().unwrap();
    let add = [1.0f64, 2.0];
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.accumulate(Rank(0), 0, Op::Sum, &add).unwrap();
    epoch.end().unwrap();
    for kind in [LockKind::Shared, LockKind::Exclusive] {
        let epoch = window.lock(Rank(0), kind).unwrap();
        epoch.accumulate(0, Op::Sum, &add).unwrap();
        epoch.unlock().unwrap();
    }
    let epoch = window.lock_all().unwrap();
    epoch.accumulate(Rank(0), 0, Op::Sum, &add).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let sum = 4.0 * f64::from(world.size());
        let mut mine = [0.0f64; 2];
        window.local().read(0, &mut mine).unwrap();
        assert_eq!(mine, [sum, 2.0 * sum]);
    }
    window.free().unwrap();
}
