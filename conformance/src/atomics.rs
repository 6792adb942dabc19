//! Fetch-and-op and compare-and-swap (FEATURES A2, A3).
use crate::help::{local_words, neighbour, times, words};
use core::fmt::Debug;
use rma_core::{Assert, AtomicElement, LockKind, Op, Rank, Universe};
use std::collections::BTreeSet;

const OPS: [Op; 9] =
    [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::BitAnd, Op::BitOr, Op::BitXor, Op::Replace, Op::NoOp];

/// Applies every operation to every pair of values at the right neighbour. S-H10 S-H11
fn every_op<E: AtomicElement + Debug>(
    universe: &Universe,
    values: &[E],
    expected: fn(Op, E, E) -> E,
) {
    let world = universe.world();
    let window = world.window(4, size_of::<E>()).allocate().unwrap();
    let (right, guard) = (neighbour(world, 1), values[1]);
    let epoch = window.lock_all().unwrap();
    epoch.put(right, 0, &[guard, guard, guard, guard]).unwrap();
    epoch.flush(right).unwrap();
    for op in OPS {
        for old in values {
            for operand in values {
                epoch.fetch_and_op(right, 2, Op::Replace, *old).unwrap();
                assert_eq!(epoch.fetch_and_op(right, 2, op, *operand), Ok(*old), "{}", op.name());
                let mut after = [guard; 4];
                epoch.get(right, 0, &mut after).unwrap();
                let new = expected(op, *old, *operand);
                assert_eq!(after, [guard, guard, new, guard], "{old:?} {} {operand:?}", op.name());
            }
        }
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

macro_rules! integer {
    ($name:ident, $int:ty) => {
        /// Every operation, at the ends of the type's range too. S-H1 S-H17
        pub fn $name(universe: &Universe) {
            let expected = |op: Op, old: $int, operand: $int| match op {
                Op::Sum => old.wrapping_add(operand),
                Op::Prod => old.wrapping_mul(operand),
                Op::Min => {
                    if operand < old {
                        operand
                    } else {
                        old
                    }
                }
                Op::Max => {
                    if operand > old {
                        operand
                    } else {
                        old
                    }
                }
                Op::BitAnd => old & operand,
                Op::BitOr => old | operand,
                Op::BitXor => old ^ operand,
                Op::Replace => operand,
                Op::NoOp => old,
                other => panic!("no case for {}", other.name()),
            };
            let values = [0, 1, <$int>::MIN, <$int>::MAX, <$int>::MAX / 3 * 2, 5];
            every_op(universe, if cfg!(miri) { &values[2..4] } else { &values }, expected);
        }
    };
}
integer!(every_op_u32, u32);
integer!(every_op_i32, i32);
integer!(every_op_u64, u64);
integer!(every_op_i64, i64);

/// Swaps when it is equal and only then; says what was there. S-H12
pub fn compare_and_swap(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 3);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    assert_eq!(epoch.compare_and_swap(right, 1, 0u64, u64::MAX), Ok(0));
    assert_eq!(epoch.compare_and_swap(right, 1, 0u64, 5), Ok(u64::MAX), "not equal");
    assert_eq!(epoch.compare_and_swap(right, 1, -1i64, i64::MIN), Ok(-1), "the same bits");
    assert_eq!(epoch.compare_and_swap(right, 1, 0u32, 9), Ok(0), "the low half");
    assert_eq!(epoch.compare_and_swap(right, 1, 9i32, -9), Ok(9));
    assert_eq!(epoch.compare_and_swap(right, 1, 0i32, 1), Ok(-9), "no sign extension");
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let word = 1 << 63 | u64::from((-9i32).cast_unsigned());
    assert_eq!(local_words(&window), [0, word, 0]);
    window.free().unwrap();
}

/// Every rank counts at rank 0: nothing is lost, nothing is seen twice. S-H4
pub fn counter(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let rounds = times(universe, 2_000);
    let epoch = window.lock_all().unwrap();
    let draw = |_| epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
    let tickets: Vec<u64> = (0..rounds).map(draw).collect();
    epoch.unlock().unwrap();
    assert!(tickets.is_sorted_by(|a, b| a < b), "later tickets are higher");
    let all: BTreeSet<u64> = world.allgather(&tickets).unwrap().into_iter().collect();
    assert_eq!(all, (0..rounds * u64::from(world.size())).collect());
    window.free().unwrap();
}

/// Of many that compare with the same value exactly one wins. S-H5
pub fn one_winner(universe: &Universe) {
    let world = universe.world();
    let rounds = times(universe, 300);
    let window = words(world, rounds as usize);
    let me = u64::from(world.rank()) + 1;
    let epoch = window.lock_all().unwrap();
    let won: Vec<u64> =
        (0..rounds).map(|round| epoch.compare_and_swap(Rank(0), round, 0, me).unwrap()).collect();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let mut winners = vec![0; rounds as usize];
    let epoch = window.lock_all().unwrap();
    epoch.get(Rank(0), 0, &mut winners).unwrap();
    epoch.unlock().unwrap();
    for (seen, winner) in won.iter().zip(&winners) {
        assert_eq!(*seen, if *winner == me { 0 } else { *winner });
    }
    window.free().unwrap();
}

/// Additions, swaps and other widths of window words side by side. S-H5 S-E14
pub fn mixed(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let rounds = times(universe, 500);
    let epoch = window.lock_all().unwrap();
    for _ in 0..rounds {
        epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
        let mut seen = epoch.fetch_and_op(Rank(0), 0, Op::NoOp, 0u64).unwrap();
        loop {
            let found = epoch.compare_and_swap(Rank(0), 0, seen, seen + 1).unwrap();
            if found == seen {
                break;
            }
            seen = found;
        }
        epoch.fetch_and_op(Rank(0), 0, Op::BitOr, 1u64 << 60).unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let expected = (1 << 60) | (2 * rounds * u64::from(world.size()));
    if world.rank() == Rank(0) {
        assert_eq!(local_words(&window), [expected]);
    }
    window.free().unwrap();
}

/// Every rank pushes nodes of its own memory onto one list; all are found once. S-H5 S-E14
pub fn linked_list(universe: &Universe) {
    let world = universe.world();
    let count = times(universe, 300);
    // Word 0 is the head; node `i` is words `2 i` (next) and `2 i + 1` (value).
    let window = words(world, 2 + 2 * count as usize);
    let link = |rank: Rank, node: u64| (u64::from(rank) + 1) << 32 | node;
    let epoch = window.lock_all().unwrap();
    let mut head = 0u64;
    for node in 1..=count {
        let value = u64::from(world.rank()) * 10_000 + node;
        loop {
            epoch.put(world.rank(), 2 * node, &[head, value]).unwrap();
            epoch.flush(world.rank()).unwrap();
            let mine = link(world.rank(), node);
            let found = epoch.compare_and_swap(Rank(0), 0, head, mine).unwrap();
            if found == head {
                head = mine;
                break;
            }
            head = found;
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let epoch = window.lock_all().unwrap();
        let (mut at, mut values) = ([0u64, 0], Vec::new());
        epoch.get(Rank(0), 0, &mut at[..1]).unwrap();
        while at[0] != 0 {
            let (rank, node) = (Rank((at[0] >> 32) as u32 - 1), at[0] & 0xffff_ffff);
            epoch.get(rank, 2 * node, &mut at).unwrap();
            values.push(at[1]);
        }
        epoch.unlock().unwrap();
        values.sort_unstable();
        let of = |rank| (1..=count).map(move |node| u64::from(rank) * 10_000 + node);
        assert_eq!(values, world.ranks().flat_map(of).collect::<Vec<_>>());
    }
    window.free().unwrap();
}

/// An atomic put and an atomic get never show half of a word. S-H3
pub fn replace_and_no_op(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let epoch = window.lock_all().unwrap();
    for round in 0..times(universe, 1_000) {
        let value = if world.rank() == Rank(0) {
            epoch.fetch_and_op(Rank(1), 0, Op::Replace, round << 32 | round).unwrap()
        } else {
            epoch.fetch_and_op(Rank(1), 0, Op::NoOp, u64::MAX).unwrap()
        };
        assert_eq!(value >> 32, value & 0xffff_ffff);
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// Four ranks count in the halves of two words without disturbing each other.
pub fn halves_of_a_word(universe: &Universe) {
    let world = universe.world();
    let window = world.window(4, 4).allocate().unwrap();
    let rounds = times(universe, 1_000) as u32;
    let slot = u64::from(world.rank()) % 4;
    let epoch = window.lock_all().unwrap();
    for round in 0..rounds {
        assert_eq!(
            epoch.fetch_and_op(Rank(0), slot, Op::Sum, u32::MAX),
            Ok(0u32.wrapping_sub(round))
        );
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let mut counts = [0u32; 4];
        window.local().read(0, &mut counts).unwrap();
        assert_eq!(counts, [0u32.wrapping_sub(rounds); 4]);
    }
    window.free().unwrap();
}

/// Atomics of one origin to one place happen in program order. S-H7
pub fn program_order(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let mut expected = 0u64;
    for round in 1..=times(universe, 200) {
        let steps = [(Op::Sum, round), (Op::Prod, 3), (Op::BitXor, 0xff), (Op::Max, 9)];
        for (op, operand) in steps {
            assert_eq!(epoch.fetch_and_op(right, 0, op, operand), Ok(expected));
            expected = match op {
                Op::Sum => expected.wrapping_add(operand),
                Op::Prod => expected.wrapping_mul(operand),
                Op::BitXor => expected ^ operand,
                _ => expected.max(operand),
            };
        }
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// Atomics work in every kind of epoch, and on this rank's view.
pub fn in_every_epoch(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
    epoch.end().unwrap();
    for kind in [LockKind::Shared, LockKind::Exclusive] {
        let epoch = window.lock(Rank(0), kind).unwrap();
        epoch.fetch_and_op(0, Op::Sum, 1u64).unwrap();
        epoch.unlock().unwrap();
    }
    let epoch = window.lock_all().unwrap();
    epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let view = window.local();
        let sum = 4 * u64::from(world.size());
        assert_eq!(view.fetch_and_op(0, Op::Sum, 1u64), Ok(sum));
        assert_eq!(view.compare_and_swap(0, sum + 1, 5u64), Ok(sum + 1));
        assert_eq!(view.load(0), Ok(5u64));
    }
    window.free().unwrap();
}
