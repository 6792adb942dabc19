//! A layout on one side and none on another, in every operation (FEATURES A4).
use crate::accumulate_together::{apply, bytes};
use crate::help::{local_words, neighbour, says, still_works, words};
use bytemuck::{Pod, Zeroable};
use core::array::from_fn;
use core::fmt::Debug;
use rma_core::{
    BasicElement, Copies, ErrorClass, Layout, LockAll, Op, Rank, Refused, RmaError, Universe,
};

/// Puts and gets, of every kind of buffer. S-J1 S-J5 S-G12
pub fn put_and_get(universe: &Universe) {
    let world = universe.world();
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    let (window, word) = (words(world, 40), Layout::element::<u64>());
    let (third, back) = (word.vector(6, 1, 3).unwrap(), word.vector(6, 1, -2).unwrap());
    let dense = |rank: Rank| -> [u64; 6] { from_fn(|i| u64::from(rank) * 100 + i as u64 + 1) };
    let mine = dense(world.rank());
    let spread: Vec<u64> = mine.iter().rev().flat_map(|value| [50 + value, 99]).collect();
    let boxed: Box<[u64]> = mine.into();
    let epoch = window.lock_all().unwrap();
    epoch.put(right, third.at(2u8), &mine).unwrap();
    epoch.put(right, 20i32, back.of(&spread).starting_at(10)).unwrap();
    epoch.put(right, word.times(2).at(30), &mine[..2]).unwrap();
    epoch.put(right, 32u8, word.times(2).of(&boxed)).unwrap();
    epoch.put(right, word.times(3).at(34), &mine[3..].to_vec()).unwrap();
    epoch.flush(right).unwrap();
    let mut got = vec![0u64; 6];
    epoch.get(right, third.at(2), &mut got).unwrap();
    assert_eq!(got, mine);
    let mut got: Box<[u64]> = vec![99; 12].into();
    epoch.get(right, 20, back.of(&mut got).starting_at(10u16)).unwrap();
    assert_eq!(got[..], spread);
    let mut got = [7u64; 4];
    epoch.get(right, word.times(2).at(32), &mut got[1..3]).unwrap();
    assert_eq!(got, [7, mine[0], mine[1], 7]);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let (theirs, mut expected) = (dense(left), vec![0u64; 40]);
    (0..6).for_each(|i| expected[2 + 3 * i] = theirs[i]);
    (0..6).for_each(|i| expected[20 + i] = theirs[i] + 50);
    expected[30..32].copy_from_slice(&theirs[..2]);
    expected[32..34].copy_from_slice(&theirs[..2]);
    expected[34..37].copy_from_slice(&theirs[3..]);
    assert_eq!(local_words(&window), expected);
    window.free().unwrap();
}

/// A call with layouts where the bits of a number say so: at the target, of the operands, of the
/// result.
macro_rules! mixture {
    ($mask:expr, ($there:expr, $at:expr), ($from:expr, $operands:expr), ($into:expr, $result:expr),
        |$to:ident, $origin:ident, $fill:ident| $call:expr) => {{
        let from = |operands| $from.of(operands).starting_at(4);
        match $mask {
            0 => mixture!(($to, $origin, $fill), ($at, $operands, $result), $call),
            1 => mixture!(($to, $origin, $fill), ($there.at($at), $operands, $result), $call),
            2 => mixture!(($to, $origin, $fill), ($at, from($operands), $result), $call),
            3 => mixture!(($to, $origin, $fill), ($there.at($at), from($operands), $result), $call),
            4 => mixture!(($to, $origin, $fill), ($at, $operands, $into.of($result)), $call),
            5 => mixture!(
                ($to, $origin, $fill),
                ($there.at($at), $operands, $into.of($result)),
                $call
            ),
            6 => mixture!(($to, $origin, $fill), ($at, from($operands), $into.of($result)), $call),
            _ => mixture!(
                ($to, $origin, $fill),
                ($there.at($at), from($operands), $into.of($result)),
                $call
            ),
        }
    }};
    ($names:pat, $values:expr, $call:expr) => {{
        let $names = $values;
        $call
    }};
}

/// Layouts of five elements: at the target, of the operands, of the result.
type Sides = [Layout; 3];

/// Where the first of the five is at the target.
const AT: u64 = 4;

/// Combines and gives what was there, in one of three ways.
fn fetch<E: BasicElement>(
    (epoch, right): (&LockAll<'_>, Rank),
    [there, from, into]: &Sides,
    (way, mask, op): (u8, u8, Op),
    operands: &[E; 5],
    mut seen: Vec<E>,
) -> Vec<E> {
    match way {
        0 => {
            mixture!(mask, (there, AT), (from, operands), (into, &mut seen), |to, origin, fill| {
                epoch.get_accumulate(right, to, op, origin, fill).unwrap();
            })
        }
        1 => mixture!(mask, (there, AT), (from, operands), (into, seen), |to, origin, fill| {
            return epoch.rget_accumulate(right, to, op, origin, fill).unwrap().wait().unwrap();
        }),
        _ => epoch
            .ops(|ops| {
                mixture!(
                    mask,
                    (there, AT),
                    (from, operands),
                    (into, &mut seen),
                    |to, origin, fill| ops.get_accumulate(right, to, op, origin, fill)
                )
            })
            .unwrap(),
    }
    seen
}

/// Combines, in one of three ways.
fn combine<E: BasicElement>(
    (epoch, right): (&LockAll<'_>, Rank),
    [there, from, _]: &Sides,
    (way, mask, op): (u8, u8, Op),
    operands: &[E; 5],
) {
    match way {
        0 => mixture!(mask, (there, AT), (from, operands), (from, ()), |to, origin, _none| {
            epoch.accumulate(right, to, op, origin).unwrap();
        }),
        1 => mixture!(mask, (there, AT), (from, *operands), (from, ()), |to, origin, _none| {
            assert_eq!(
                bytes(&epoch.raccumulate(right, to, op, origin).unwrap().wait().unwrap()),
                bytes(operands)
            );
        }),
        _ => epoch
            .ops(|ops| {
                mixture!(mask, (there, AT), (from, operands), (from, ()), |to, origin, _none| {
                    ops.accumulate(right, to, op, origin)
                })
            })
            .unwrap(),
    }
}

/// Every mixture of sides with layouts and without, in every way.
fn mixtures<E: BasicElement + Debug>(universe: &Universe, of: fn(u32) -> E) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = world.window(16, size_of::<E>()).allocate().unwrap();
    let mut model: Vec<E> = (0..16).map(of).collect();
    window.local().write(0, &model).unwrap();
    world.barrier().unwrap();
    let one = Layout::element::<E>();
    let sides = [2, -1, 3].map(|stride| one.vector(5, 1, stride).unwrap());
    let epoch = window.lock_all().unwrap();
    let masks = (0..3).flat_map(|way| (0..8).map(move |mask| (way, mask)));
    let all =
        masks.flat_map(|(way, mask)| [Op::Sum, Op::Replace, Op::NoOp].map(|op| (way, mask, op)));
    for (way, mask, op) in all {
        let element = |bit: u8, start: usize, stride: isize, k: usize| {
            if mask >> bit & 1 == 1 { start.strict_add_signed(stride * k as isize) } else { k }
        };
        // At the target, the first is at the same place either way.
        let to = |k| AT as usize + element(0, 0, 2, k);
        let operands: [E; 5] = from_fn(|i| of(i as u32 + u32::from(mask) + 1));
        let seen = vec![of(9); if mask < 4 { 5 } else { 13 }];
        let mut expected = seen.clone();
        let mut step = |op, expected: Option<&mut Vec<E>>| {
            expected.into_iter().for_each(|expected| {
                (0..5).for_each(|k| expected[element(2, 0, 3, k)] = model[to(k)]);
            });
            for k in 0..5 {
                let operand = operands[element(1, 4, -1, k)];
                model[to(k)] = apply(op, model[to(k)], operand);
            }
        };
        step(op, Some(&mut expected));
        let seen = fetch((&epoch, right), &sides, (way, mask, op), &operands, seen);
        assert_eq!(bytes(&seen), bytes(&expected), "{} of {mask}, {way}", op.name());
        if op != Op::NoOp && mask < 4 {
            step(op, None);
            combine((&epoch, right), &sides, (way, mask, op), &operands);
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let mut part = vec![E::zeroed(); 16];
    window.local().read(0, &mut part).unwrap();
    assert_eq!(bytes(&part), bytes(&model));
    window.free().unwrap();
}

/// By atomics. S-H14 S-H7 S-J1 S-I3
pub fn mixtures_of_u32(universe: &Universe) {
    mixtures::<u32>(universe, |n| n);
}

/// Under locks. S-H14 S-H7 S-J1 S-I3
pub fn mixtures_of_f64(universe: &Universe) {
    mixtures::<f64>(universe, f64::from);
}

#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Particle {
    id: u64,
    charge: f64,
}

/// One field of structs is combined with elements that lie one behind the other, and the reverse;
/// of no_op, operands are ignored, whatever their layout. S-H10 S-H14
pub fn fields_and_no_op(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = world.window(8, 8).allocate().unwrap();
    let size = size_of::<Particle>() as i64;
    let charge = Layout::structure(&[(8, 1, Layout::element::<f64>())]).unwrap();
    let charge = charge.resized(0, size).unwrap();
    let particles: [Particle; 3] = from_fn(|i| Particle { id: 7, charge: i as f64 + 0.5 });
    let epoch = window.lock_all().unwrap();
    epoch.accumulate(right, 5, Op::Sum, charge.times(3).of(&particles)).unwrap();
    // Words 1, 3 and 5.
    epoch.accumulate(right, charge.times(3).at(0), Op::Sum, &[2.0f64, 4.0, 8.0]).unwrap();
    let wild = Layout::structure(&[(-100, 1, charge.clone()), (3, 9, Layout::element::<u8>())]);
    let wild = wild.unwrap();
    let mut seen = [-1.0f64; 3];
    let expected = [2.0, 4.0, 8.5];
    epoch.get_accumulate(right, charge.times(3).at(0), Op::NoOp, &[], &mut seen).unwrap();
    assert_eq!(seen, expected);
    let mut seen = [-1.0f64; 3];
    let (there, origin) = (charge.times(3).at(0), wild.times(u64::MAX).of(&[0.0f64; 2]));
    epoch.get_accumulate(right, there, Op::NoOp, origin, &mut seen).unwrap();
    assert_eq!(seen, expected);
    let request = epoch.rget_accumulate(right, 5, Op::NoOp, origin, [-1.0f64; 3]).unwrap();
    assert_eq!(request.wait().unwrap(), [8.5, 1.5, 2.5]);
    let mut seen = [Particle { id: 9, charge: -1.0 }; 3];
    let (none, result) = (wild.of(&particles[..0]), charge.times(3).of(&mut seen));
    epoch.get_accumulate(right, 5, Op::NoOp, none, result).unwrap();
    assert_eq!(seen, [8.5, 1.5, 2.5].map(|charge| Particle { id: 9, charge }));
    // Operands one behind the other, results in a field of structs.
    let mut seen = [Particle { id: 8, charge: -1.0 }; 3];
    let result = charge.times(3).of(bytemuck::cast_slice_mut(&mut seen));
    epoch.get_accumulate(right, 5, Op::Replace, &[8.5f64, 1.5, 2.5], result).unwrap();
    assert_eq!(seen, [8.5, 1.5, 2.5].map(|charge| Particle { id: 8, charge }));
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// The slice of one side is not what the layout of the other holds.
fn mismatch<E: BasicElement>(
    (epoch, right): (&LockAll<'_>, Rank),
    there: Copies<'_>,
    slice: &[E],
) -> RmaError {
    let (op, mut buffer) = (Op::Replace, slice.to_vec());
    let (there, one) = (there.at(0), [slice[0]; 1]);
    let put = epoch.put(right, there, slice).unwrap_err();
    let same = |result: Result<(), RmaError>| assert_eq!(result, Err(put));
    let refused = |refused: Option<Refused<Vec<E>>>| {
        let Refused { value, error } = refused.expect("it is refused");
        assert_eq!((bytes(&value), error), (bytes(slice), put));
    };
    same(epoch.get(right, there, &mut buffer));
    same(epoch.accumulate(right, there, op, slice));
    same(epoch.get_accumulate(right, there, op, slice, &mut buffer));
    same(epoch.get_accumulate(right, there, Op::NoOp, &one, &mut buffer));
    refused(epoch.rput(right, there, buffer.clone()).err());
    refused(epoch.rget(right, there, buffer.clone()).err());
    refused(epoch.raccumulate(right, there, op, buffer.clone()).err());
    refused(epoch.rget_accumulate(right, there, op, slice, buffer.clone()).err());
    let (mut got, mut fetched) = (buffer.clone(), buffer.clone());
    same(epoch.ops(|ops| ops.put(right, there, slice)));
    same(epoch.ops(|ops| ops.get(right, there, &mut got)));
    same(epoch.ops(|ops| ops.accumulate(right, there, op, slice)));
    same(epoch.ops(|ops| ops.get_accumulate(right, there, op, slice, &mut fetched)));
    for buffer in [buffer, got, fetched] {
        assert_eq!(bytes(&buffer), bytes(slice));
    }
    put
}

/// Slices of other types or lengths than the layout of the other side. S-G9 S-J8
pub fn mismatches(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 10);
    let right = neighbour(world, 1);
    let (word, float) = (Layout::element::<u64>(), Layout::element::<f64>());
    let mixed = Layout::structure(&[(0, 1, word.clone()), (8, 1, float)]).unwrap();
    let epoch = window.lock_all().unwrap();
    let at = (&epoch, right);
    let errors = [
        mismatch(at, word.times(2), &[1u64; 3]),
        mismatch(at, word.times(3), &[1u64; 2]),
        mismatch(at, word.times(2), &[1.0f64; 2]),
        mismatch(at, word.times(1), &[1u8; 8]),
        mismatch(at, word.times(2), &[1u32; 4]),
        mismatch(at, word.times(0), &[1u64]),
        mismatch(at, mixed.times(1), &[1u64; 2]),
        mismatch(at, word.times(u64::MAX), &[1u64; 2]),
    ];
    for error in errors {
        assert!(matches!(error, RmaError::SignatureMismatch { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Type);
    }
    says(&errors[0], &["2 × u64", "3 × u64", &window.id().to_string()]);
    // Of operands and result, one has the layout.
    let (two, three) = ([1u64; 2], [1u64; 3]);
    let (mut result, flat) = ([7u64; 3], word.times(2));
    let error = epoch.get_accumulate(right, 0, Op::Sum, flat.of(&two), &mut result).unwrap_err();
    assert!(matches!(error, RmaError::SignatureMismatch { .. }), "{error}");
    let error = epoch.get_accumulate(right, 0, Op::Sum, &three, flat.of(&mut result)).unwrap_err();
    assert!(matches!(error, RmaError::SignatureMismatch { .. }), "{error}");
    let (origin, into) = (word.times(3).of(&three), flat.of(&mut result));
    let error = epoch.get_accumulate(right, 0, Op::Sum, origin, into).unwrap_err();
    assert!(matches!(error, RmaError::SignatureMismatch { .. }), "{error}");
    assert_eq!(result, [7; 3]);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [0; 10]);
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// What reaches beyond the part or the buffer, or cannot be combined. S-G8 S-G10 S-H13
pub fn refused(universe: &Universe) {
    let world = universe.world();
    let (window, right) = (words(world, 10), neighbour(world, 1));
    let (word, float) = (Layout::element::<u64>(), Layout::element::<f64>());
    let (down, twice) = (word.vector(3, 1, -2).unwrap(), word.vector(3, 2, 1).unwrap());
    let mixed = Layout::structure(&[(0, 1, word.clone()), (8, 1, float)]).unwrap();
    let (mut buffer, six) = ([3u64; 6], [1u64; 6]);
    let epoch = window.lock_all().unwrap();
    let error = epoch.put(right, down.at(3), &six[..3]).unwrap_err();
    assert!(matches!(error, RmaError::LayoutOutOfRange { low: -8, high: 32, .. }), "{error}");
    let error = epoch.get(right, word.times(6).at(5), &mut buffer).unwrap_err();
    assert!(matches!(error, RmaError::LayoutOutOfRange { .. }), "{error}");
    let error = epoch.put(right, 8, word.times(3).of(&six)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::RmaRange);
    says(&error, &["displacement 8", "24"]);
    let error = epoch.get(right, -1, word.of(&mut buffer)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::RmaRange);
    let error = epoch.put(right, 0, down.of(&six)).unwrap_err();
    assert!(matches!(error, RmaError::OriginOutOfRange { low: -32, high: 8, .. }), "{error}");
    let error = epoch.get(right, 0, word.of(&mut buffer).starting_at(6)).unwrap_err();
    assert!(matches!(error, RmaError::OriginOutOfRange { .. }), "{error}");
    let error = epoch.put(right, 0, word.times(u64::MAX).of(&six)).unwrap_err();
    assert!(matches!(error, RmaError::LayoutTooLarge { .. }), "{error}");
    says(&epoch.put(right, twice.at(0), &six).unwrap_err(), &["target's layout", "overlap"]);
    says(&epoch.get(right, 0, twice.of(&mut buffer)).unwrap_err(), &["origin's layout", "overlap"]);
    let error = epoch.accumulate(right, 0, Op::Sum, mixed.of(&six)).unwrap_err();
    assert!(matches!(error, RmaError::NotBasic { .. }), "{error}");
    for result in [
        epoch.accumulate(right, 0, Op::NoOp, word.of(&six)),
        epoch.accumulate(right, word.at(0), Op::NoOp, &six[..1]),
        epoch.accumulate(right, word.at(0), Op::MinLoc, &six[..1]),
    ] {
        assert!(matches!(result, Err(RmaError::WrongOp { .. })), "{result:?}");
    }
    let error = epoch.put(Rank(77), 0, word.of(&six)).unwrap_err();
    assert!(matches!(error, RmaError::NoSuchRank { .. }), "{error}");
    epoch.put(Rank::NULL, word.times(9).at(-1), &six).unwrap();
    epoch.get(Rank::NULL, 99, down.of(&mut buffer)).unwrap();
    assert_eq!(buffer, [3; 6]);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [0; 10]);
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}
