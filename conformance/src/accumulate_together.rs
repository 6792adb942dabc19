//! Accumulates of many ranks at once, and the order of those of one (FEATURES A3).
//!
//! Where operations take nanoseconds there are many of them, so that ranks really meet.
use crate::accumulate::OPS;
use crate::help::{neighbour, times, words};
use core::fmt::Debug;
use rma_core::{
    AtomicElement, BasicElement, Bool, Communicator, Layout, LockAll, Op, Pair, Rank, Universe,
    Window,
};

/// Every rank adds to the same array; nothing is lost. S-H4
fn sums<E: BasicElement + PartialEq>(universe: &Universe, of: fn(u64) -> E, len: usize) {
    let world = universe.world();
    let rounds = times(universe, 3_000);
    let window = world.window(len, size_of::<E>()).allocate().unwrap();
    let operands: Vec<E> = (0..len).map(|i| of((i as u64 + 1) % 3)).collect();
    let epoch = window.lock_all().unwrap();
    for round in 0..rounds {
        // Whole arrays, and parts that begin and end somewhere.
        epoch.accumulate(Rank(0), 0, Op::Sum, &operands).unwrap();
        let from = (round as usize * 37) % len;
        epoch.accumulate(Rank(0), from as u64, Op::Sum, &operands[from..]).unwrap();
        epoch.accumulate(Rank(0), 0, Op::Sum, &operands[..from]).unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let mut found = vec![E::zeroed(); len];
        window.local().read(0, &mut found).unwrap();
        let times = 2 * rounds * u64::from(world.size());
        let expected: Vec<E> = (0..len).map(|i| of((i as u64 + 1) % 3 * times)).collect();
        assert!(found == expected, "{}", core::any::type_name::<E>());
    }
    window.free().unwrap();
}

fn length() -> usize {
    if cfg!(miri) { 5 } else { 1500 }
}

/// Exact sums under contention, by atomics and under locks. S-H4 S-H9
pub fn sums_are_exact(universe: &Universe) {
    sums::<f64>(universe, |n| n as f64, length());
    if cfg!(miri) {
        return;
    }
    sums::<u8>(universe, |n| n as u8, length());
    sums::<i16>(universe, |n| n as i16, length());
    sums::<u32>(universe, |n| n as u32, length());
    sums::<i64>(universe, |n| n as i64, length());
    sums::<f32>(universe, |n| n as f32, 1);
}

/// Extremes and bits of what all ranks give. S-H4
pub fn extremes_and_bits(universe: &Universe) {
    let world = universe.world();
    let window = world.window(4, 8).allocate().unwrap();
    let (rounds, me) = (times(universe, 20_000), u64::from(world.rank()));
    let value = |rank: u64, round: u64| ((round * 7919 + rank * 104_729) % 1_000_003) as f64;
    let epoch = window.lock_all().unwrap();
    for round in 0..rounds {
        epoch.accumulate(Rank(0), 0, Op::Max, &[value(me, round)]).unwrap();
        epoch.accumulate(Rank(0), 1, Op::Min, &[-value(me, round)]).unwrap();
        epoch.accumulate(Rank(0), 2, Op::BitXor, &[1u64 << (me % 60), round]).unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let ranks = u64::from(world.size());
        let all = (0..ranks).flat_map(|rank| (0..rounds).map(move |round| value(rank, round)));
        let highest = all.fold(0.0, f64::max);
        let view = window.local();
        assert_eq!((view.load(0), view.load(1)), (Ok(highest), Ok(-highest)));
        let bits = if rounds % 2 == 0 { 0 } else { (1u64 << ranks) - 1 };
        let each = (0..rounds).fold(0, |xor, round| xor ^ round);
        let every = if ranks % 2 == 0 { 0 } else { each };
        assert_eq!((view.load(2), view.load(3)), (Ok(bits), Ok(every)));
    }
    window.free().unwrap();
}

/// One rank combines arrays alone until the others come, at some moment in the middle of that, with
/// arrays and elements, and then all combine both in turn: nothing is lost. S-H4 S-H5
pub fn others_come(universe: &Universe) {
    let len = if cfg!(miri) { 5u64 } else { 1000 };
    let world = universe.world();
    let (me, size) = (u64::from(world.rank()), u64::from(world.size()));
    let adds = if cfg!(miri) { 2 } else { 20 };
    let (integers, reals) = (vec![1i64; len as usize], vec![1f64; len as usize]);
    for round in 0..times(universe, 1_000) {
        // A bias lives as long as its window.
        let window = world.window(2 * len, 8).allocate().unwrap();
        let epoch = window.lock_all().unwrap();
        world.barrier().unwrap();
        let is_first = me == round % size;
        if !is_first {
            for _ in 0..(round * 7 + me) % 150 {
                epoch.get(Rank(0), 0, &mut [0i64; 8]).unwrap();
            }
            epoch.fetch_and_op(Rank(0), len - 1, Op::Sum, 1i64).unwrap();
            epoch.accumulate(Rank(0), 2 * len - 1, Op::Sum, &[1f64]).unwrap();
        }
        for _ in 0..if is_first { adds } else { 2 } {
            epoch.accumulate(Rank(0), 0, Op::Sum, &integers).unwrap();
            epoch.accumulate(Rank(0), len, Op::Sum, &reals).unwrap();
        }
        // As many elements as all arrays have earned, and as few as those of one.
        let singles = if round % 10 == 9 { 1_200 } else { round % 3 * 40 };
        for _ in 0..singles {
            epoch.fetch_and_op(Rank(0), len - 1, Op::Sum, 1i64).unwrap();
        }
        epoch.accumulate(Rank(0), 0, Op::Sum, &integers).unwrap();
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        if me == 0 {
            let (mut sums, mut real_sums) = (integers.clone(), reals.clone());
            window.local().read(0, &mut sums).unwrap();
            window.local().read(len, &mut real_sums).unwrap();
            let of_all = adds + 2 * (size - 1);
            let sum = |at: usize, last: u64| of_all + if at as u64 == len - 1 { last } else { 0 };
            let of_integers = |at| size + sum(at, size - 1 + singles * size);
            let lost = (0..len as usize).find(|at| sums[*at] != of_integers(*at) as i64);
            assert_eq!(lost, None, "an integer of round {round}");
            let lost = (0..len as usize).find(|at| real_sums[*at] != sum(*at, size - 1) as f64);
            assert_eq!(lost, None, "a real number of round {round}");
        }
        window.free().unwrap();
    }
}

fn increments<E: AtomicElement>(epoch: &LockAll<'_>, disp: u64, rounds: u64, one: E) {
    for _ in 0..rounds {
        epoch.accumulate(Rank(0), disp, Op::Sum, &[one]).unwrap();
        epoch.fetch_and_op(Rank(0), disp, Op::Sum, one).unwrap();
        epoch.get_accumulate(Rank(0), disp, Op::Sum, &[one], &mut [E::zeroed()]).unwrap();
        let mut seen = [E::zeroed()];
        epoch.get_accumulate(Rank(0), disp, Op::NoOp, &[], &mut seen).unwrap();
        loop {
            let more = E::from_bits(seen[0].to_bits() + 1);
            let found = epoch.compare_and_swap(Rank(0), disp, seen[0], more).unwrap();
            if found == seen[0] {
                break;
            }
            seen = [found];
        }
    }
}

/// All calls of the family on one element. S-H5
pub fn mixed_calls(universe: &Universe) {
    let world = universe.world();
    let window = world.window(2, 8).allocate().unwrap();
    let rounds = times(universe, 10_000);
    let epoch = window.lock_all().unwrap();
    increments(&epoch, 0, rounds, 1u16);
    increments(&epoch, 1, rounds, 1i64);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let expected = 4 * rounds * u64::from(world.size());
        assert_eq!(window.local().load(0), Ok(expected as u16));
        assert_eq!(window.local().load(1), Ok(expected));
    }
    window.free().unwrap();
}

/// Integers of a window that combines arrays of them under locks: arrays, columns and single
/// elements by every call, also of the owner by its view, are atomic towards each other. S-H4 S-H5
pub fn integers_by_lock(universe: &Universe) {
    const LEN: usize = 9;
    let world = universe.world();
    let window = world.window(2 * LEN, 8).hint("mpi_accumulate_granularity", "4096").unwrap();
    let window = window.allocate().unwrap();
    let rounds = times(universe, 10_000);
    let column = Layout::element::<i64>().vector(LEN as u64, 1, 2).unwrap();
    let epoch = window.lock_all().unwrap();
    for _ in 0..rounds {
        epoch.accumulate(Rank(0), 0, Op::Sum, &[1i64; 2 * LEN]).unwrap();
        epoch.accumulate(Rank(0), column.at(0), Op::Sum, &[1i64; LEN]).unwrap();
        increments(&epoch, 0, 1, 1i64);
        increments(&epoch, 1, 1, 1i64);
        let mut seen = [0i64; LEN];
        epoch.get_accumulate(Rank(0), LEN, Op::Sum, &[1; LEN], &mut seen).unwrap();
        epoch.batch(&[(Rank(0), 2), (Rank(0), 3)]).accumulate(Op::Sum, &[1i64, 1]).unwrap();
        if world.rank() == Rank(0) {
            window.local().fetch_and_op(4, Op::Sum, 1i64).unwrap();
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let mut found = [0i64; 2 * LEN];
        window.local().read(0, &mut found).unwrap();
        let (owner, each) = (rounds as i64, (rounds * u64::from(world.size())) as i64);
        let times = |at| 1 + i64::from(at % 2 == 0) + i64::from(at >= LEN);
        let mut expected: Vec<_> = (0..2 * LEN).map(|at| each * times(at)).collect();
        (expected[0], expected[1]) = (expected[0] + 4 * each, expected[1] + 4 * each);
        (expected[2], expected[3]) = (expected[2] + each, expected[3] + each);
        expected[4] += owner;
        assert_eq!(found[..], expected);
    }
    window.free().unwrap();
}

/// What get_accumulate returns is one history of each element: every ticket is drawn once, and a
/// rank's tickets rise. S-H10
pub fn tickets(universe: &Universe) {
    let world = universe.world();
    let rounds = times(universe, 40_000);
    // The third element lies in another stripe, under Miri too.
    let window = world.window(2050, 8).allocate().unwrap();
    let mut mine = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let epoch = window.lock_all().unwrap();
    for _ in 0..rounds {
        let mut seen = [0.0f64; 4];
        epoch.get_accumulate(Rank(0), 2046, Op::Sum, &[1.0; 4], &mut seen).unwrap();
        for (mine, seen) in mine.iter_mut().zip(seen) {
            assert!(mine.last().is_none_or(|last| *last < seen));
            mine.push(seen);
        }
    }
    epoch.unlock().unwrap();
    each_drawn_once(world, &mine);
    window.free().unwrap();
}

/// **Collective.** Each ticket of a sort was drawn by one rank.
pub(crate) fn each_drawn_once(world: &Communicator, mine: &[Vec<f64>]) {
    for mine in mine {
        let mut all = world.allgather(mine).unwrap();
        all.sort_by(f64::total_cmp);
        assert!(all.iter().copied().eq((0..all.len()).map(|ticket| ticket as f64)));
    }
}

/// All add to the same page until a rank has found often that another rank was there since
/// its last turn: so often that ranks ran side by side, or stopped in the middle of it. Nothing is
/// lost. S-H4 S-H6
pub fn a_crowded_page(universe: &Universe) {
    const MEETINGS: u32 = 300;
    const EVERY: u64 = 16;
    let world = universe.world();
    let (most, len) = (times(universe, 1_000_000), if cfg!(miri) { 4 } else { 512 });
    let (window, enough) = (world.window(len, 8).allocate().unwrap(), words(world, 1));
    let (ones, mut seen) = (vec![1.0f64; len], vec![0.0f64; len]);
    let (epoch, ends) = (window.lock_all().unwrap(), enough.lock_all().unwrap());
    let (mut rounds, mut meetings, mut expected) = (0, 0, 0.0);
    world.barrier().unwrap();
    while rounds < most {
        epoch.get_accumulate(Rank(0), 0, Op::Sum, &ones, &mut seen).unwrap();
        rounds += 1;
        meetings += u32::from(seen[0] != expected);
        expected = seen[0] + 1.0;
        if meetings >= MEETINGS {
            ends.accumulate(Rank(0), 0, Op::Replace, &[1u64]).unwrap();
            break;
        }
        if rounds % EVERY == 0 && ends.fetch_and_op(Rank(0), 0, Op::NoOp, 0u64).unwrap() != 0 {
            break;
        }
    }
    ends.unlock().unwrap();
    epoch.unlock().unwrap();
    let all = world.allreduce(&[rounds], Op::Sum).unwrap()[0];
    expect_part(&window, Rank(0), &vec![all as f64; len]);
    world.barrier().unwrap();
    enough.free().unwrap();
    window.free().unwrap();
}

/// Arrays that begin here and there before a border of stripes, and single elements behind it:
/// all that combine an element take the same lock. S-H4
pub fn across_a_border_of_stripes(universe: &Universe) {
    const BORDER: u64 = 2048;
    let world = universe.world();
    let window = world.window(BORDER as usize + 64, 8).allocate().unwrap();
    let rounds = times(universe, 10_000);
    let one = Layout::element::<f64>();
    let (blocks, ones, one) = (one.vector(8, 8, 16).unwrap(), [1.0; 64], one.times(64));
    let epoch = window.lock_all().unwrap();
    for _ in 0..rounds {
        epoch.accumulate(Rank(0), BORDER - 64, Op::Sum, &[1.0; 128]).unwrap();
        epoch.accumulate(Rank(0), BORDER - 1, Op::Sum, &[1.0; 65]).unwrap();
        epoch.fetch_and_op(Rank(0), BORDER + 32, Op::Sum, 1.0).unwrap();
        epoch.accumulate(Rank(0), blocks.at(BORDER - 64), Op::Sum, one.of(&ones)).unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let mut found = [0.0; 128];
        window.local().read(BORDER - 64, &mut found).unwrap();
        let each = (rounds * u64::from(world.size())) as f64;
        let times = |at| 1 + i32::from(at >= 63) + i32::from(at == 96) + i32::from(at / 8 % 2 == 0);
        let expected: Vec<_> = (0..128).map(|at| each * f64::from(times(at))).collect();
        assert_eq!(found[..], expected);
    }
    window.free().unwrap();
}

/// A pair is one element: value and index always belong together. S-H6
pub fn pairs_are_never_torn(universe: &Universe) {
    let world = universe.world();
    // Eight bytes off: the pair at displacement 2047 straddles two stripes.
    let window = world.window(2052, 8).allocate().unwrap();
    let me = i64::from(world.rank().0);
    let epoch = window.lock_all().unwrap();
    for round in 0..times(universe, 20_000) as i64 {
        let pair = Pair::new((me * 1000 + round) as f64, -(me * 1000 + round));
        epoch.accumulate(Rank(0), 2047, Op::Replace, &[pair; 2]).unwrap();
        let mut seen = [Pair::new(0.0, 0i64); 2];
        epoch.get_accumulate(Rank(0), 2047, Op::NoOp, &[], &mut seen).unwrap();
        assert!(seen.iter().all(|pair| pair.value == -pair.index as f64), "{seen:?}");
        epoch.accumulate(Rank(0), 2049, Op::MaxLoc, &[pair]).unwrap();
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// The place of the extreme that any rank gives. S-H6
pub fn extremes_are_located(universe: &Universe) {
    let world = universe.world();
    let window = world.window(2, 8).allocate().unwrap();
    let me = world.rank().0;
    let view = window.local();
    view.store(0, Pair::new(i32::MAX, u32::MAX)).unwrap();
    view.store(1, Pair::new(i32::MIN, u32::MAX)).unwrap();
    world.barrier().unwrap();
    let epoch = window.lock_all().unwrap();
    for round in 0..times(universe, 100) as i32 {
        let value = (round * 31 + me as i32 * 17) % 100;
        epoch.accumulate(Rank(0), 0, Op::MinLoc, &[Pair::new(value / 50, me)]).unwrap();
        epoch.accumulate(Rank(0), 1, Op::MaxLoc, &[Pair::new(7, me)]).unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if me == 0 {
        assert_eq!(view.load(0), Ok(Pair::new(0i32, 0u32)), "rank 0 begins with 0");
        assert_eq!(view.load(1), Ok(Pair::new(7i32, 0u32)), "of equal values the lower index");
    }
    window.free().unwrap();
}

/// A lock that is made of a truth value. S-H12
pub fn test_and_set(universe: &Universe) {
    let world = universe.world();
    let window = world.window(2, 8).allocate().unwrap();
    let rounds = times(universe, 1_000);
    let epoch = window.lock_all().unwrap();
    for _ in 0..rounds {
        while epoch.compare_and_swap(Rank(0), 0, Bool::FALSE, Bool::TRUE).unwrap().get() {}
        let mut count = [0u64];
        epoch.get(Rank(0), 1, &mut count).unwrap();
        epoch.put(Rank(0), 1, &[count[0] + 1]).unwrap();
        epoch.flush(Rank(0)).unwrap();
        epoch.fetch_and_op(Rank(0), 0, Op::Replace, Bool::FALSE).unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        assert_eq!(window.local().load(1), Ok(rounds * u64::from(world.size())));
    }
    window.free().unwrap();
}

/// The owner combines its own part while the others do. S-K9
pub fn owner_takes_part(universe: &Universe) {
    let world = universe.world();
    let len = length();
    let window = world.window(len, 2).allocate().unwrap();
    let rounds = times(universe, 1_000);
    let ones = vec![1u16; len];
    let epoch = window.lock_all().unwrap();
    for _ in 0..rounds {
        window.local().accumulate(0, Op::Sum, &ones).unwrap();
        for target in world.ranks() {
            epoch.accumulate(target, 0, Op::Sum, &ones).unwrap();
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let mut found = vec![0u16; len];
    window.local().read(0, &mut found).unwrap();
    let expected = rounds * (u64::from(world.size()) + 1);
    assert_eq!(found, vec![expected as u16; len]);
    window.free().unwrap();
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) as usize) % bound
    }
}

/// One origin's operations on the same elements happen in program order: long and short ones,
/// single elements, every operation, plain calls, requests and scopes. S-H7 S-H9 S-H15
fn in_order<E: BasicElement + Debug>(universe: &Universe, of: fn(usize) -> E) {
    let world = universe.world();
    let len = if cfg!(miri) { 16 } else { 6000 };
    let window = world.window(len, size_of::<E>()).allocate().unwrap();
    let right = neighbour(world, 1);
    let mut random = Random(u64::from(world.rank()) * 77 + size_of::<E>() as u64);
    let mut model = vec![E::zeroed(); len];
    let ops: Vec<Op> = OPS.into_iter().filter(|op| op.is_defined_on::<E>()).collect();
    let epoch = window.lock_all().unwrap();
    for _ in 0..times(universe, 400) {
        let count = [1, 1, 3, 40, 5000][random.below(5)].min(len);
        // Often near each other, so that they overlap.
        let start = random.below(len - count + 1).min(random.below(60) + 1);
        let start = start.min(len - count);
        let op = ops[random.below(ops.len())];
        let operands: Vec<E> = (0..count).map(|_| of(random.below(9))).collect();
        let (at, before) = (start as u64, model[start..start + count].to_vec());
        for (model, operand) in model[start..].iter_mut().zip(&operands) {
            *model = apply(op, *model, *operand);
        }
        let mut seen = vec![E::zeroed(); count];
        match random.below(if op == Op::NoOp { 3 } else { 6 }) {
            0 => epoch.get_accumulate(right, at, op, &operands, &mut seen).unwrap(),
            1 => {
                let request = epoch.rget_accumulate(right, at, op, &operands, seen).unwrap();
                seen = request.wait().unwrap();
            }
            2 => {
                let mut again = vec![E::zeroed(); count];
                let both = epoch.ops(|ops| {
                    ops.get_accumulate(right, at, op, &operands, &mut seen)?;
                    ops.get_accumulate(right, at, Op::NoOp, &[], &mut again)
                });
                both.unwrap();
                assert_eq!(bytes(&again), bytes(&model[start..start + count]), "no_op behind");
            }
            3 => {
                epoch.accumulate(right, at, op, &operands).unwrap();
                continue;
            }
            4 => {
                epoch.ops(|ops| ops.accumulate(right, at, op, &operands)).unwrap();
                continue;
            }
            _ => {
                drop(epoch.raccumulate(right, at, op, operands).unwrap());
                continue;
            }
        }
        assert_eq!(bytes(&seen), bytes(&before), "{} of {count} from {start}", op.name());
    }
    epoch.unlock().unwrap();
    expect_part(&window, right, &model);
    world.barrier().unwrap();
    window.free().unwrap();
}

/// The part of that rank begins with these elements.
pub(crate) fn expect_part<E: BasicElement>(window: &Window, rank: Rank, model: &[E]) {
    let mut found = vec![E::zeroed(); model.len()];
    let epoch = window.lock_all().unwrap();
    epoch.get(rank, 0, &mut found).unwrap();
    epoch.unlock().unwrap();
    assert!(bytes(&found) == bytes(model), "{}", core::any::type_name::<E>());
}

pub(crate) fn bytes<E: BasicElement>(elements: &[E]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

/// What an operation makes of two values, by a reduction over one rank's own values.
pub(crate) fn apply<E: BasicElement>(op: Op, old: E, operand: E) -> E {
    rma_core::Reduction::combine(&op, old, operand)
}

/// Cases of an order of operations, for types of each mechanism and width.
macro_rules! order_of_types {
    ($in_order:ident) => {
        /// By atomics.
        pub fn order_of_i64(universe: &Universe) {
            $in_order::<i64>(universe, |n| n as i64 - 4);
        }

        /// Under the lock of a stripe.
        pub fn order_of_f64(universe: &Universe) {
            $in_order::<f64>(universe, |n| [0.0, 0.5, 2.0, -1.0][n % 4]);
        }

        /// The narrowest.
        pub fn order_of_u8(universe: &Universe) {
            $in_order::<u8>(universe, |n| n as u8 * 31);
        }

        /// The widest.
        pub fn order_of_pairs(universe: &Universe) {
            $in_order::<Pair<u64, u64>>(universe, |n| Pair::new(n as u64 % 4, n as u64));
        }
    };
}
pub(crate) use order_of_types;

order_of_types!(in_order);
