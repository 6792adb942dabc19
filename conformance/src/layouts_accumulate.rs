//! Accumulates with layouts on both sides, and requests with layouts (FEATURES A3, A4).
use crate::accumulate::OPS;
use crate::accumulate_together::{Random, apply, bytes};
use crate::help::{local_words, neighbour, says, still_works, times, words};
use crate::layouts::{ROOM, WIDTH, ZERO, constructed, overlaps};
use bytemuck::{Pod, Zeroable};
use core::fmt::Debug;
use rma_core::transport::Transport;
use rma_core::{
    Assert, BasicElement, Complex, ErrorClass, Layout, LockKind, Op, Pair, Path, Rank, RmaError,
    Universe,
};

/// Each layout at the origin, to each at the target; gaps stay.
fn accumulate_each<T: Transport, E: BasicElement + Debug>(
    universe: &Universe<T>,
    of: fn(u32) -> E,
) {
    let world = universe.world();
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    let all = constructed::<E>();
    let len = all.len() * all.len() * ROOM as usize;
    let window = world.window(len, WIDTH as usize).allocate().unwrap();
    let mut expected: Vec<E> = (0..len as u32).map(|at| of(at % 11)).collect();
    window.local().write(0, &expected).unwrap();
    let value = |from: Rank, at: u64| of(from.0 * 100 + at as u32 + 1);
    let buffer: Vec<E> = (0..ROOM).map(|at| value(world.rank(), at)).collect();
    let epoch = window.fence(Assert::NONE).unwrap();
    for (i, (_, from, from_at)) in all.iter().enumerate() {
        for (j, (_, to, to_at)) in all.iter().enumerate() {
            let disp = (i * all.len() + j) as u64 * ROOM + ZERO;
            let from = from.starting_at(ZERO * WIDTH);
            epoch.accumulate_shaped(right, disp, to, Op::Sum, &buffer, from).unwrap();
            for (from, to) in from_at.iter().zip(to_at) {
                let to = disp.strict_add_signed(*to) as usize;
                let operand = value(left, ZERO.strict_add_signed(*from));
                expected[to] = apply(Op::Sum, expected[to], operand);
            }
        }
    }
    epoch.end().unwrap();
    let mut part = vec![E::zeroed(); len];
    window.local().read(0, &mut part).unwrap();
    for (k, (part, expected)) in
        part.chunks(ROOM as usize).zip(expected.chunks(ROOM as usize)).enumerate()
    {
        let (from, to) = (all[k / all.len()].0, all[k % all.len()].0);
        assert_eq!(bytes(part), bytes(expected), "{from} to {to}");
    }
    window.free().unwrap();
}

/// By atomics and under locks. S-J1 S-J2 S-J5 S-H14 S-G12
pub fn accumulate_each_to_each<T: Transport>(universe: &Universe<T>) {
    accumulate_each::<T, u32>(universe, |n| n);
    if !cfg!(miri) {
        accumulate_each::<T, f32>(universe, |n| n as f32);
    }
}

/// Each layout at the target, with each layout of the result; two of each; the operands always
/// stand backwards.
fn get_each<T: Transport, E: BasicElement + Debug>(universe: &Universe<T>, of: fn(u32) -> E) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let (all, len) = (constructed::<E>(), 3 * ROOM as usize);
    let window = world.window(len, WIDTH as usize).allocate().unwrap();
    let start: Vec<E> = (0..len as u32).map(|at| of(at + 1)).collect();
    window.local().write(0, &start).unwrap();
    let backwards = Layout::of::<E>().vector(12, 1, -1).unwrap();
    let operands: Vec<E> = (0..12).map(|at| of(50 - at)).collect();
    let extent = |layout: &Layout| layout.extent() / WIDTH as i64;
    let at = |copy: i64, layout: &Layout, at: i64| {
        ZERO.strict_add_signed(copy * extent(layout) + at) as usize
    };
    world.barrier().unwrap();
    // The model of the neighbour's part: nobody else changes it.
    let (epoch, mut model) = (window.lock_all().unwrap(), start);
    for (there_name, there, there_at) in &all {
        for (into_name, into, into_at) in &all {
            let twice = overlaps(there_at, extent(there)) || overlaps(into_at, extent(into));
            if twice {
                continue;
            }
            let mut buffer = vec![of(7); len];
            let mut expected = buffer.clone();
            for k in 0..12 {
                let there = at(k / 6, there, there_at[k as usize % 6]);
                expected[at(k / 6, into, into_at[k as usize % 6])] = model[there];
                model[there] = apply(Op::Sum, model[there], of(50 - 11 + k as u32));
            }
            let result = (&mut buffer[..], into.times(2).starting_at(ZERO * WIDTH));
            let origin = (&operands[..], backwards.starting_at(11 * WIDTH));
            let op = Op::Sum;
            epoch.get_accumulate_shaped(right, ZERO, there.times(2), op, origin, result).unwrap();
            assert_eq!(bytes(&buffer), bytes(&expected), "{there_name} into {into_name}");
        }
    }
    epoch.unlock().unwrap();
    let mut part = vec![E::zeroed(); len];
    world.barrier().unwrap();
    window.local().read(0, &mut part).unwrap();
    assert_eq!(bytes(&part), bytes(&model));
    window.free().unwrap();
}

/// Results have a layout of their own. S-J1 S-J2 S-H10 S-H14 S-G12
pub fn get_each_to_each<T: Transport>(universe: &Universe<T>) {
    get_each::<T, i32>(universe, |n| n as i32);
    if !cfg!(miri) {
        get_each::<T, f32>(universe, |n| n as f32);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Particle {
    id: u64,
    charge: f64,
    hits: [u32; 2],
}

/// One field of structs, at both sides and in the result. S-H14 S-J1
pub fn fields_of_structs<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let size = size_of::<Particle>() as i64;
    let particle = |i: u64| Particle { id: i, charge: i as f64 / 2.0, hits: [i as u32, 9] };
    let particles: Vec<Particle> = (0..20).map(particle).collect();
    let window = world.window(20, size as usize).allocate().unwrap();
    window.local().write(0, &particles).unwrap();
    let field = |layout: Layout, at: i64| {
        Layout::structure(&[(at, 1, layout)]).unwrap().resized(0, size).unwrap()
    };
    let charge = field(Layout::of::<f64>(), 8);
    let (hits, misses) = (field(Layout::of::<u32>(), 16), field(Layout::of::<u32>(), 20));
    world.barrier().unwrap();
    let epoch = window.lock(right, LockKind::Exclusive).unwrap();
    let op = Op::Sum;
    epoch.accumulate_shaped(0, charge.times(20), op, &particles, charge.times(20)).unwrap();
    let mut seen = vec![Particle::zeroed(); 20];
    let (origin, result) = ((&particles[..], misses.times(20)), (&mut seen[..], hits.times(20)));
    epoch.get_accumulate_shaped(0, hits.times(20), op, origin, result).unwrap();
    epoch.unlock().unwrap();
    for (i, seen) in (0..20).zip(seen) {
        assert_eq!(seen, Particle { hits: [i, 0], ..Particle::zeroed() });
    }
    world.barrier().unwrap();
    let mut mine = vec![Particle::zeroed(); 20];
    window.local().read(0, &mut mine).unwrap();
    for (i, mine) in (0..20).zip(mine) {
        let old = particle(i);
        let hits = [old.hits[0] + 9, 9];
        assert_eq!(mine, Particle { charge: 2.0 * old.charge, hits, ..old });
    }
    window.free().unwrap();
}

/// A layout of `count` elements in `0..len`, each at most once, and where they are.
fn random_layout<E: BasicElement>(
    random: &mut Random,
    count: usize,
    len: usize,
) -> (Layout, Vec<usize>) {
    let one = Layout::of::<E>();
    let stride = 1 + random.below(if count > 1 { (len - 1) / (count - 1).max(1) } else { 1 });
    let reach = stride * (count - 1);
    let first = random.below(len - reach);
    let at: Vec<usize> = (0..count).map(|i| first + i * stride).collect();
    let indices = |at: &[usize]| at.iter().map(|at| *at as i64).collect::<Vec<_>>();
    match random.below(3) {
        0 => {
            let vector = one.vector(count as u64, 1, stride as i64).unwrap();
            (one_block(&vector, first, size_of::<E>()), at)
        }
        1 => {
            let vector = one.vector(count as u64, 1, -(stride as i64)).unwrap();
            (one_block(&vector, first + reach, size_of::<E>()), at.into_iter().rev().collect())
        }
        _ => {
            // Halves swapped: no pattern in the middle.
            let (low, high) = at.split_at(count / 2);
            let at = [high, low].concat();
            (one.indexed_block(1, &indices(&at)).unwrap(), at)
        }
    }
}

fn one_block(layout: &Layout, at: usize, size: usize) -> Layout {
    layout.hindexed_block(1, &[(at * size) as i64]).unwrap()
}

/// One origin's operations on the same elements happen in program order, with layouts and without,
/// long and short, plain, requests and scopes. S-H7 S-H9 S-H15
fn in_order<T: Transport, E: BasicElement + Debug>(universe: &Universe<T>, of: fn(usize) -> E) {
    let world = universe.world();
    let len = if cfg!(miri) { 40 } else { 3000 };
    let window = world.window(len, size_of::<E>()).allocate().unwrap();
    let right = neighbour(world, 1);
    let mut random = Random(u64::from(world.rank()) * 77 + size_of::<E>() as u64);
    let mut model = vec![E::zeroed(); len];
    let ops: Vec<Op> = OPS.into_iter().filter(|op| op.is_defined_on::<E>()).collect();
    let epoch = window.lock_all().unwrap();
    for _ in 0..times(universe, 400) {
        let count = [1, 2, 3, 40, 1000][random.below(5)].min(len / 3);
        let (to, to_at) = random_layout::<E>(&mut random, count, len);
        let (from, from_at) = random_layout::<E>(&mut random, count, len);
        let (into, into_at) = random_layout::<E>(&mut random, count, len);
        let op = ops[random.below(ops.len())];
        let operands: Vec<E> = (0..len).map(|_| of(random.below(9))).collect();
        let mut seen = vec![of(3); len];
        let mut expected = seen.clone();
        for k in 0..count {
            let there = to_at[k];
            expected[into_at[k]] = model[there];
            model[there] = apply(op, model[there], operands[from_at[k]]);
        }
        let origin = (&operands[..], &from);
        match random.below(if op == Op::NoOp { 3 } else { 7 }) {
            0 => epoch
                .get_accumulate_shaped(right, 0, &to, op, origin, (&mut seen[..], &into))
                .unwrap(),
            1 => {
                let request =
                    epoch.rget_accumulate_shaped(right, 0, &to, op, origin, (seen, &into));
                let (result, done) = request.unwrap().wait();
                done.unwrap();
                seen = result;
            }
            2 => {
                let mut again = vec![E::zeroed(); len];
                epoch
                    .ops(|ops| {
                        let result = (&mut seen[..], &into);
                        ops.get_accumulate_shaped(right, 0, &to, op, origin, result)?;
                        ops.get_accumulate(right, 0, Op::NoOp, &[], &mut again)
                    })
                    .unwrap()
                    .unwrap();
                assert!(bytes(&again) == bytes(&model), "no_op behind");
            }
            3 => {
                epoch.accumulate_shaped(right, 0, &to, op, &operands, &from).unwrap();
                continue;
            }
            4 => {
                let all =
                    epoch.ops(|ops| ops.accumulate_shaped(right, 0, &to, op, &operands, &from));
                all.unwrap().unwrap();
                continue;
            }
            5 => {
                drop(epoch.raccumulate_shaped(right, 0, &to, op, operands, &from).unwrap());
                continue;
            }
            _ => {
                // One that has no layout, on elements that the others touched.
                epoch.accumulate_shaped(right, 0, &to, op, &operands, &from).unwrap();
                let start = random.below(len - count);
                epoch.accumulate(right, start as u64, op, &operands[..count]).unwrap();
                for (model, operand) in model[start..].iter_mut().zip(&operands[..count]) {
                    *model = apply(op, *model, *operand);
                }
                continue;
            }
        }
        assert!(bytes(&seen) == bytes(&expected), "{} of {to:?}", op.name());
    }
    epoch.unlock().unwrap();
    let mut found = vec![E::zeroed(); len];
    let epoch = window.lock_all().unwrap();
    epoch.get(right, 0, &mut found).unwrap();
    epoch.unlock().unwrap();
    assert!(bytes(&found) == bytes(&model), "{}", core::any::type_name::<E>());
    world.barrier().unwrap();
    window.free().unwrap();
}

/// By atomics.
pub fn order_of_i64<T: Transport>(universe: &Universe<T>) {
    in_order::<T, i64>(universe, |n| n as i64 - 4);
}

/// Under the lock of a stripe.
pub fn order_of_f64<T: Transport>(universe: &Universe<T>) {
    in_order::<T, f64>(universe, |n| [0.0, 0.5, 2.0, -1.0][n % 4]);
}

/// The narrowest.
pub fn order_of_u8<T: Transport>(universe: &Universe<T>) {
    in_order::<T, u8>(universe, |n| n as u8 * 31);
}

/// The widest.
pub fn order_of_pairs<T: Transport>(universe: &Universe<T>) {
    in_order::<T, Pair<u64, u64>>(universe, |n| Pair::new(n as u64 % 4, n as u64));
}

/// Everybody adds to the same elements, through layouts and without; nothing is lost.
fn sums<T: Transport, E: BasicElement + PartialEq>(universe: &Universe<T>, of: fn(u64) -> E) {
    let world = universe.world();
    let rounds = times(universe, 1_000);
    let len = if cfg!(miri) { 8u64 } else { 1500 };
    let window = world.window(len as usize, size_of::<E>()).allocate().unwrap();
    let one = Layout::of::<E>();
    let (even, odd) = (one.vector(len / 2, 1, 2).unwrap(), one.vector(len / 2, 1, -2).unwrap());
    let operands: Vec<E> = (0..len).map(|i| of((i + 1) % 3)).collect();
    let epoch = window.lock_all().unwrap();
    for round in 0..rounds {
        // The same sum three ways, differently interleaved at each rank.
        match (round + u64::from(world.rank())) % 3 {
            0 => {
                epoch.accumulate_shaped(Rank(0), 0, &even, Op::Sum, &operands, &even).unwrap();
                let last = (len - 1) * size_of::<E>() as u64;
                let from = odd.starting_at(last);
                epoch.accumulate_shaped(Rank(0), len - 1, &odd, Op::Sum, &operands, from).unwrap();
            }
            1 => epoch.accumulate(Rank(0), 0, Op::Sum, &operands).unwrap(),
            _ => {
                let all = one.indexed(&[((len / 2) as i64, len / 2), (0, len / 2)]).unwrap();
                epoch.accumulate_shaped(Rank(0), 0, &all, Op::Sum, &operands, &all).unwrap();
            }
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let mut found = vec![E::zeroed(); len as usize];
        window.local().read(0, &mut found).unwrap();
        let times = rounds * u64::from(world.size());
        let expected: Vec<E> = (0..len).map(|i| of((i + 1) % 3 * times)).collect();
        assert!(found == expected, "{}", core::any::type_name::<E>());
    }
    window.free().unwrap();
}

/// Exact sums under contention, by atomics and under locks. S-H4 S-H9
pub fn sums_are_exact<T: Transport>(universe: &Universe<T>) {
    sums::<T, f64>(universe, |n| n as f64);
    if cfg!(miri) {
        return;
    }
    sums::<T, u8>(universe, |n| n as u8);
    sums::<T, i16>(universe, |n| n as i16);
    sums::<T, i64>(universe, |n| n as i64);
}

/// What comes back is one history of each element, layouts or not: every ticket is drawn once, and
/// those of a rank rise. S-H5 S-H10
pub fn tickets<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let rounds = times(universe, 10_000);
    // The elements lie in two stripes.
    let window = world.window(520, 8).allocate().unwrap();
    let one = Layout::of::<f64>();
    let some = one.vector(4, 1, 3).unwrap();
    let mut mine = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let epoch = window.lock_all().unwrap();
    for round in 0..rounds {
        let mut seen = [0.0f64; 4];
        if round % 4 == 3 {
            for (k, seen) in (0..4).zip(&mut seen) {
                *seen = epoch.fetch_and_op(Rank(0), 507 + 3 * k, Op::Sum, 1.0f64).unwrap();
            }
        } else {
            let (origin, result) = ((&[1.0; 4][..], one.times(4)), (&mut seen[..], one.times(4)));
            epoch.get_accumulate_shaped(Rank(0), 507, &some, Op::Sum, origin, result).unwrap();
        }
        for (mine, seen) in mine.iter_mut().zip(seen) {
            assert!(mine.last().is_none_or(|last| *last < seen));
            mine.push(seen);
        }
    }
    epoch.unlock().unwrap();
    for mine in mine {
        let mut all = world.allgather(&mine).unwrap();
        all.sort_by(f64::total_cmp);
        assert!(all.iter().copied().eq((0..all.len()).map(|ticket| ticket as f64)));
    }
    window.free().unwrap();
}

/// Elements that straddle two stripes, in blocks of every length. S-H9 S-H14
pub fn stripe_borders<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let (right, one) = (neighbour(world, 1), Layout::of::<Complex<f64>>());
    let count = if cfg!(miri) { 300 } else { 1500 };
    let window = world.window(2 * count + 1, 8).allocate().unwrap();
    let blocks: &[u64] = if cfg!(miri) { &[3] } else { &[1, 2, 15, 16, 17, 255, 400] };
    let operands: Vec<_> = (0..count).map(|i| Complex::new(i as f64, 1.0)).collect();
    let mut model = vec![0.0f64; 2 * count + 1];
    let epoch = window.lock_all().unwrap();
    for &block in blocks {
        for shift in [0, 1] {
            let layout = one.vector(count as u64 / (block + 1), block, block as i64 + 1).unwrap();
            let elements = layout.size() / 16;
            epoch
                .accumulate_shaped(right, shift, &layout, Op::Sum, &operands, one.times(elements))
                .unwrap();
            let at = (0..count as u64).filter(|i| i % (block + 1) < block);
            for (k, at) in (0..elements as usize).zip(at) {
                model[(shift + 2 * at) as usize] += k as f64;
                model[(shift + 2 * at) as usize + 1] += 1.0;
            }
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let mut mine = vec![0.0; model.len()];
    window.local().read(0, &mut mine).unwrap();
    assert!(mine == model);
    window.free().unwrap();
}

/// Megabytes in one call, with a small one right behind. S-H15
pub fn large<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let count = if cfg!(miri) { 400 } else { 150_000u64 };
    let window = world.window(2 * count as usize, 8).allocate().unwrap();
    let (right, one) = (neighbour(world, 1), Layout::of::<f64>());
    let odd = one.vector(count, 1, 2).unwrap();
    let operands = vec![1.5f64; count as usize];
    let mut seen = vec![-1.0; 2 * count as usize];
    let epoch = window.lock_all().unwrap();
    epoch.accumulate_shaped(right, 1, &odd, Op::Sum, &operands, one.times(count)).unwrap();
    epoch.accumulate(right, 2 * count - 1, Op::Sum, &[2.0f64]).unwrap();
    let (origin, result) = ((&operands[..], one.times(count)), (&mut seen[..], &odd));
    epoch.get_accumulate_shaped(right, 1, &odd, Op::Prod, origin, result).unwrap();
    epoch.accumulate(right, 1, Op::Sum, &[0.25f64]).unwrap();
    epoch.unlock().unwrap();
    let (last, all) = (2 * count as usize - 2, 2 * count as usize);
    for (i, seen) in seen.iter().enumerate() {
        let expected = if i % 2 == 1 { -1.0 } else { [1.5, 3.5][usize::from(i == last)] };
        assert_eq!(*seen, expected, "result {i}");
    }
    world.barrier().unwrap();
    let mut mine = vec![0.0; all];
    window.local().read(0, &mut mine).unwrap();
    for (i, mine) in mine.iter().enumerate() {
        let expected = match i {
            1 => 2.5,
            _ if i == all - 1 => 5.25,
            _ if i % 2 == 1 => 2.25,
            _ => 0.0,
        };
        assert_eq!(*mine, expected, "element {i}");
    }
    window.free().unwrap();
}

/// Origin and layouts may go as soon as the call has returned. S-H16 S-J6 S-I2
pub fn captured<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let window = world.window(800, 4).allocate().unwrap();
    let right = neighbour(world, 1);
    let mut origin = vec![0.0f32; 400];
    let epoch = window.fence(Assert::NONE).unwrap();
    for round in 1..=4 {
        origin.fill(round as f32);
        let one = Layout::of::<f32>();
        let every = one.vector(400, 1, 2).unwrap();
        epoch.accumulate_shaped(right, 0, &every, Op::Sum, &origin, one.times(400)).unwrap();
        drop((one, every));
        origin.fill(1e9);
    }
    epoch.end().unwrap();
    let mut mine = vec![0.0f32; 800];
    window.local().read(0, &mut mine).unwrap();
    assert!(mine.chunks(2).all(|pair| pair == [10.0, 0.0]));
    window.free().unwrap();
}

/// Requests of each kind: waited for, tested, dropped, forgotten. S-I2 S-I3 S-I8
pub fn requests<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let (right, one) = (neighbour(world, 1), Layout::of::<u64>());
    let window = words(world, 90);
    let third = one.vector(30, 1, 3).unwrap();
    let epoch = window.lock_all().unwrap();
    let operands: Vec<u64> = (0..30).collect();
    let put = epoch.rput_shaped(right, 0, &third, operands.clone(), one.times(30)).unwrap();
    let (buffer, done) = put.wait();
    assert_eq!((buffer, done), (operands.clone(), Ok(())));
    epoch.flush(right).unwrap();

    let boxed: Box<[u64]> = vec![7; 60].into();
    let spread = one.vector(30, 1, 2).unwrap();
    let mut get = epoch.rget_shaped(right, 0, &third, boxed, &spread).unwrap();
    let got = loop {
        match get.test() {
            Ok((buffer, done)) => break done.map(|()| buffer).unwrap(),
            Err(again) => get = again,
        }
        std::thread::yield_now();
    };
    let expected: Vec<u64> = (0..30).flat_map(|i| [i, 7]).collect();
    assert_eq!(&got[..], &expected[..]);

    let twice = epoch.raccumulate_shaped(right, 0, &third, Op::Sum, operands, one.times(30));
    let (operands, done) = twice.unwrap().wait();
    done.unwrap();
    let origin = (&operands[..], one.times(30));
    let fetch = |buffer: Vec<u64>| {
        let result = (buffer, &spread);
        epoch.rget_accumulate_shaped(right, 0, &third, Op::Sum, origin, result).unwrap()
    };
    let (third_time, done) = fetch(vec![7; 60]).wait();
    done.unwrap();
    assert_eq!(third_time, (0..30).flat_map(|i| [2 * i, 7]).collect::<Vec<u64>>());
    drop(fetch(vec![0; 59]));
    core::mem::forget(fetch(vec![0; 59]));
    drop(epoch.rget_shaped(right, 0, &third, vec![0u64; 60], &spread).unwrap());
    core::mem::forget(epoch.rget_shaped(right, 0, &third, vec![0u64; 60], &spread).unwrap());
    let again = epoch.raccumulate_shaped(right, 0, &third, Op::Sum, operands, one.times(30));
    drop(again.unwrap());
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let expected: Vec<u64> = (0..30).flat_map(|i| [6 * i, 0, 0]).collect();
    assert_eq!(local_words(&window), expected);
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Waited for after their epoch, in epochs of another kind. S-I4 S-I5
pub fn requests_in_other_epochs<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let (right, one) = (neighbour(world, 1), Layout::of::<f64>());
    let window = world.window(100, 8).allocate().unwrap();
    let mine: Vec<f64> = (0..100).map(f64::from).collect();
    window.local().write(0, &mine).unwrap();
    world.barrier().unwrap();
    let every = one.vector(50, 1, 2).unwrap();
    let lock = window.lock(right, LockKind::Shared).unwrap();
    let get = lock.rget_shaped(1, &every, vec![0.0f64; 50], one.times(50)).unwrap();
    let origin = (&[0.5f64; 50][..], one.times(50));
    let result = (vec![0.0f64; 50], one.times(50));
    let fetch = lock.rget_accumulate_shaped(0, &every, Op::Sum, origin, result).unwrap();
    let put = lock.rput_shaped(1, one.times(1), vec![-3.0f64; 2], one.starting_at(8)).unwrap();
    let add = lock.raccumulate_shaped(3, one.times(2), Op::Max, vec![1e3f64; 2], one.times(2));
    lock.unlock().unwrap();
    world.barrier().unwrap();
    let Ok((got, Ok(()))) = get.test() else { panic!("complete since the unlock") };
    // The put to element 1 may have come before the get: they are not ordered.
    assert!(got[0] == 1.0 || got[0] == -3.0);
    assert!(got[2..].iter().enumerate().all(|(i, got)| *got == (2 * i + 5) as f64));
    let epoch = window.fence(Assert::NONE).unwrap();
    let (fetched, done) = fetch.wait();
    done.unwrap();
    assert!(fetched.iter().enumerate().all(|(i, old)| *old == (2 * i) as f64));
    drop(put);
    epoch.end().unwrap();
    assert_eq!(add.unwrap().wait().0, [1e3; 2]);
    let mut found = [0.0; 8];
    window.local().read(0, &mut found).unwrap();
    assert_eq!(found, [0.5, -3.0, 2.5, 1e3, 1e3, 5.0, 6.5, 7.0]);
    window.free().unwrap();
}

/// Operations of a scope overlap, and keep their order on an element. S-H7 S-J6
pub fn scopes<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let (right, one) = (neighbour(world, 1), Layout::of::<i16>());
    let window = world.window(300, 2).allocate().unwrap();
    let ones = vec![1i16; 300];
    let (mut first, mut second) = (vec![9i16; 300], vec![9i16; 200]);
    let epoch = window.lock_all().unwrap();
    epoch
        .ops(|ops| {
            let third = one.vector(100, 1, 3).unwrap();
            let origin = (&ones[..], one.times(100));
            ops.accumulate_shaped(right, 0, &third, Op::Sum, &ones, &third)?;
            let result = (&mut first[..], &third);
            ops.get_accumulate_shaped(right, 0, &third, Op::Sum, origin, result)?;
            let back = one.vector(100, 1, -2).unwrap();
            let result = (&mut second[..], back.starting_at(198 * 2));
            ops.get_accumulate_shaped(right, 0, &third, Op::NoOp, (&ones[..0], &one), result)?;
            ops.accumulate_shaped(right, 0, one.times(300), Op::Sum, &ones, one.times(300))
        })
        .unwrap()
        .unwrap();
    assert!(first.chunks(3).all(|three| three == [1, 9, 9]));
    assert!(second.chunks(2).all(|pair| pair == [2, 9]));
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let mut mine = vec![0i16; 300];
    window.local().read(0, &mut mine).unwrap();
    assert!(mine.chunks(3).all(|three| three == [3, 1, 1]));
    window.free().unwrap();
}

/// More than may wait packed: complete at once. S-H15
pub fn large_scopes_and_requests<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let (right, one) = (neighbour(world, 1), Layout::of::<u64>());
    let count = if cfg!(miri) { 20u64 } else { 140_000 };
    let window = words(world, 2 * count as usize);
    let odd = one.vector(count, 1, 2).unwrap();
    let ones = vec![1u64; count as usize];
    let mut seen = [vec![9u64; count as usize], vec![9u64; count as usize]];
    let epoch = window.lock_all().unwrap();
    epoch
        .ops(|ops| {
            for seen in &mut seen {
                let (origin, result) =
                    ((&ones[..], one.times(count)), (&mut seen[..], one.times(count)));
                ops.get_accumulate_shaped(right, 1, &odd, Op::Sum, origin, result).unwrap();
            }
        })
        .unwrap();
    for (i, seen) in (0..).zip(seen) {
        assert!(seen.iter().all(|seen| *seen == i), "scope {i}");
    }
    let (origin, result) =
        ((&ones[..], one.times(count)), (vec![9u64; count as usize], one.times(count)));
    let request = epoch.rget_accumulate_shaped(right, 1, &odd, Op::Sum, origin, result).unwrap();
    let (seen, done) = request.wait();
    assert!(done.is_ok() && seen.iter().all(|seen| *seen == 2));
    let get = epoch.rget_shaped(right, 1, &odd, vec![0u64; count as usize], one.times(count));
    let (seen, done) = get.unwrap().wait();
    assert!(done.is_ok() && seen.iter().all(|seen| *seen == 3));
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// The calls work in every kind of epoch.
pub fn in_every_epoch<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let one = Layout::of::<f64>();
    let pair = one.vector(2, 1, 2).unwrap();
    let window = world.window(4, 8).allocate().unwrap();
    let (add, zero) = ([1.0f64, 2.0], Rank(0));
    let mut seen = [0.0f64; 2];
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.accumulate_shaped(zero, 0, &pair, Op::Sum, &add, one.times(2)).unwrap();
    epoch.end().unwrap();
    for kind in [LockKind::Shared, LockKind::Exclusive] {
        let epoch = window.lock(zero, kind).unwrap();
        let (origin, result) = ((&add[..], one.times(2)), (&mut seen[..], one.times(2)));
        epoch.get_accumulate_shaped(0, &pair, Op::Sum, origin, result).unwrap();
        epoch
            .ops(|ops| ops.accumulate_shaped(zero, 0, &pair, Op::Sum, &add, one.times(2)))
            .unwrap()
            .unwrap();
        epoch.unlock().unwrap();
    }
    world.barrier().unwrap();
    let everybody: Vec<Rank> = world.ranks().collect();
    let exposure = (world.rank() == zero).then(|| window.post(&everybody, Assert::NONE).unwrap());
    let epoch = window.start(&[zero], Assert::NONE).unwrap();
    epoch.accumulate_shaped(zero, 0, &pair, Op::Sum, &add, one.times(2)).unwrap();
    epoch.complete().unwrap();
    exposure.into_iter().for_each(|exposure| exposure.wait().unwrap());
    if world.rank() == zero {
        let sum = 6.0 * f64::from(world.size());
        let mut mine = [0.0f64; 4];
        window.local().read(0, &mut mine).unwrap();
        assert_eq!(mine, [sum, 0.0, 2.0 * sum, 0.0]);
    }
    window.free().unwrap();
}

/// Nothing at the null target, nothing of nothing, of any types. S-G3 S-G4 S-I7
pub fn null_and_nothing<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let window = words(world, 2);
    let (word, float) = (Layout::of::<u64>(), Layout::of::<f32>());
    let particle = Layout::of::<Particle>();
    let mut buffer = [5u64; 2];
    let epoch = window.lock_all().unwrap();
    let targets = world.ranks().map(|rank| (rank, 2, 0));
    for (target, disp, count) in targets.chain([(Rank::NULL, 99, 7)]) {
        for (there, here) in [(&word, &word), (&word, &float), (&particle, &float)] {
            let (there, here) = (there.times(count), here.times(count));
            let op = Op::Sum;
            epoch.accumulate_shaped(target, disp, there, op, &[5u64; 7], here).unwrap();
            let origin = (&[1u64][..], here);
            epoch
                .get_accumulate_shaped(target, disp, there, op, origin, (&mut buffer[..], here))
                .unwrap();
            let put = epoch.rput_shaped(target, disp, there, vec![1u64], here).unwrap();
            assert_eq!(put.wait(), (vec![1], Ok(())));
            let get = epoch.rget_shaped(target, disp, there, vec![2u64], here).unwrap();
            assert_eq!(get.wait(), (vec![2], Ok(())));
            let add = epoch.raccumulate_shaped(target, disp, there, op, vec![3u64], here).unwrap();
            assert_eq!(add.wait(), (vec![3], Ok(())));
            let result = (vec![4u64], here);
            let fetch = epoch.rget_accumulate_shaped(target, disp, there, op, origin, result);
            assert_eq!(fetch.unwrap().wait(), (vec![4], Ok(())));
        }
    }
    epoch.unlock().unwrap();
    let lock = window.lock(Rank::NULL, LockKind::Shared).unwrap();
    lock.accumulate_shaped(0, &word, Op::Sum, &[1u8], &word).unwrap();
    lock.rput_shaped(0, &word, vec![1u8], &word).unwrap().wait().1.unwrap();
    lock.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!((buffer, local_words(&window)), ([5; 2], vec![0; 2]));
    window.free().unwrap();
}

/// Only elements of one basic type are combined. S-H13 S-H14
pub fn not_basic<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let window = words(world, 8);
    let right = neighbour(world, 1);
    let (word, float) = (Layout::of::<u64>(), Layout::of::<f64>());
    let mixed = Layout::structure(&[(0, 1, word.clone()), (8, 1, float.clone())]).unwrap();
    let structs = Layout::of::<Particle>();
    let mut buffer = [3u64; 8];
    let epoch = window.lock_all().unwrap();
    for layout in [&mixed, &structs, &Layout::of::<u128>()] {
        let error = epoch.accumulate_shaped(right, 0, layout, Op::Sum, &buffer, layout);
        let error = error.unwrap_err();
        assert!(matches!(error, RmaError::NotBasic { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Type);
        let element = layout.signature(1).element;
        says(&error, &[element, "an accumulate", "one basic type", &window.id().to_string()]);
        let result = (&mut buffer[..], layout);
        let origin = (&[3u64; 8][..], layout);
        let error = epoch.get_accumulate_shaped(right, 0, layout, Op::NoOp, origin, result);
        says(&error.unwrap_err(), &["a get_accumulate", &right.to_string()]);
    }
    // A put of the same bytes is legal, and so is each type by itself.
    epoch.put_shaped(right, 0, &mixed, &buffer, &mixed).unwrap();
    epoch.flush(right).unwrap();
    let first = Layout::structure(&[(0, 1, word.clone())]).unwrap();
    epoch.accumulate_shaped(right, 0, &first, Op::Sum, &buffer, &first).unwrap();
    let errors = [
        epoch.accumulate_shaped(right, 0, &word, Op::NoOp, &buffer, &word),
        epoch.accumulate_shaped(right, 0, &float, Op::BitOr, &buffer, &float),
        epoch.accumulate_shaped(right, 0, &word, Op::MinLoc, &buffer, &word),
    ];
    for error in errors.into_iter().map(Result::unwrap_err) {
        assert!(matches!(error, RmaError::WrongOp { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Op);
    }
    let result = (&mut buffer[..], &word);
    let error =
        epoch.get_accumulate_shaped(right, 0, &float, Op::NoOp, (&[0u8; 0][..], &word), result);
    assert!(matches!(error, Err(RmaError::SignatureMismatch { .. })), "{error:?}");
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window)[..3], [6, 3, 0]);
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Every element at the target is aligned; at the origin it need not be. S-H14
pub fn misaligned<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let window = world.window(64, 1).allocate().unwrap();
    let right = neighbour(world, 1);
    let (word, half) = (Layout::of::<u64>(), Layout::of::<i16>());
    let complex = Layout::of::<Complex<f64>>();
    let buffer = [1u8; 64];
    let epoch = window.lock_all().unwrap();
    let wrong = [
        (4, word.clone()),
        (0, word.hvector(2, 1, 12).unwrap()),
        (4, word.hindexed(&[(0, 1), (12, 1)]).unwrap()),
        (1, half.contiguous(3).unwrap()),
        (0, half.hvector(2, 2, 5).unwrap()),
        (4, complex.clone()),
    ];
    for (disp, layout) in &wrong {
        let mut buffer = buffer;
        let dense = layout.times(1);
        let error = epoch.accumulate_shaped(right, *disp, layout, Op::Sum, &buffer, dense);
        let error = error.unwrap_err();
        assert!(matches!(error, RmaError::Misaligned { .. }), "{layout:?}: {error}");
        says(&error, &["layout", &format!("displacement {disp}"), "natural alignment"]);
        let result = (&mut buffer[..], dense);
        let origin = (&[0u8; 0][..], dense);
        let error = epoch.get_accumulate_shaped(right, *disp, layout, Op::NoOp, origin, result);
        assert_eq!(error.unwrap_err().class(), ErrorClass::Disp);
    }
    let apart = word.resized(0, 12).unwrap();
    let error = epoch.accumulate_shaped(right, 0, apart.times(2), Op::Sum, &buffer, apart.times(2));
    assert!(matches!(error, Err(RmaError::Misaligned { .. })), "{error:?}");
    // Halves of its width are enough for a complex number, and so is what a layout makes good.
    epoch.accumulate_shaped(right, 8, &complex, Op::Replace, &[0u8; 16], &complex).unwrap();
    let back = word.hindexed(&[(-4, 1), (12, 1)]).unwrap();
    let from = word.hindexed(&[(3, 1), (17, 1)]).unwrap();
    epoch.accumulate_shaped(right, 12, &back, Op::Sum, &buffer, &from).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let mut mine = [0u8; 64];
    window.local().read(0, &mut mine).unwrap();
    let expected: Vec<u8> =
        (0..64).map(|at| u8::from((8..16).contains(&at) || at / 8 == 3)).collect();
    assert_eq!(&mine[..], &expected[..]);
    window.free().unwrap();
}

/// What does not fit is refused, and nothing is combined. S-G8 S-G9 S-G10 S-J8
pub fn refused<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let window = words(world, 10);
    let right = neighbour(world, 1);
    let word = Layout::of::<u64>();
    let (down, twice) = (word.vector(3, 1, -2).unwrap(), word.vector(3, 2, 1).unwrap());
    let mut buffer = [3u64; 10];
    let epoch = window.lock_all().unwrap();
    let mut refuse = |target: Rank, disp: u64, there: &Layout, here: &Layout, into: &Layout| {
        let (there, here, into) = (there.times(1), here.times(1), into.times(1));
        let origin = (&[3u64; 10][..], here);
        let result = (&mut buffer[..], into);
        let get = epoch.get_accumulate_shaped(target, disp, there, Op::Sum, origin, result);
        let get = get.unwrap_err();
        let result = (vec![0u64; 10], into);
        let request = epoch.rget_accumulate_shaped(target, disp, there, Op::Sum, origin, result);
        assert_eq!(request.err(), Some(get));
        get
    };
    let three = word.contiguous(3).unwrap();
    let error = refuse(right, 3, &down, &three, &three);
    assert!(matches!(error, RmaError::LayoutOutOfRange { low: -8, high: 32, .. }), "{error}");
    let error = refuse(right, u64::MAX, &three, &three, &three);
    assert!(matches!(error, RmaError::LayoutOutOfRange { .. }), "{error}");
    let error = refuse(right, 0, &three, &down, &three);
    assert!(matches!(error, RmaError::OriginOutOfRange { low: -32, high: 8, .. }), "{error}");
    let error = refuse(right, 0, &three, &three, &down);
    assert!(matches!(error, RmaError::OriginOutOfRange { .. }), "{error}");
    let error = refuse(right, 0, &three, &word, &three);
    assert!(matches!(error, RmaError::SignatureMismatch { .. }), "{error}");
    let error = refuse(right, 0, &three, &three, &word);
    assert!(matches!(error, RmaError::SignatureMismatch { .. }), "{error}");
    let error = refuse(Rank(77), 0, &three, &three, &three);
    assert!(matches!(error, RmaError::NoSuchRank { .. }), "{error}");
    let six = word.contiguous(6).unwrap();
    says(&refuse(right, 0, &twice, &six, &six), &["target's layout of an accumulate", "overlap"]);
    says(&refuse(right, 0, &six, &six, &twice), &["result's layout of a get_accumulate"]);
    assert_eq!(buffer, [3; 10]);
    let error = epoch.accumulate_shaped(right, 0, &twice, Op::Sum, &buffer, &six).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Type);
    // Operands may be read twice.
    epoch.accumulate_shaped(right, 4, &six, Op::Sum, &[1u64, 2, 3, 4], &twice).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [0, 0, 0, 0, 1, 2, 2, 3, 3, 4]);
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// A scope of a lock has one target.
pub fn other_target_of_a_lock<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let (window, word) = (words(world, 2), Layout::of::<u64>());
    let epoch = window.lock(Rank(0), LockKind::Shared).unwrap();
    let mut buffer = [0u64];
    let (add, get) = epoch
        .ops(|ops| {
            let add = ops.accumulate_shaped(Rank(1), 0, &word, Op::Sum, &[1u64], &word);
            let (origin, result) = ((&[1u64][..], &word), (&mut buffer[..], &word));
            (add, ops.get_accumulate_shaped(Rank(1), 0, &word, Op::Sum, origin, result))
        })
        .unwrap();
    assert!(matches!(add, Err(RmaError::NotLocked { .. })), "{add:?}");
    assert!(matches!(get, Err(RmaError::NotLocked { .. })), "{get:?}");
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    window.free().unwrap();
}

/// Counts beyond 32 bits: counted right, refused where they do not fit, cheap. S-J9
pub fn huge_counts<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let (window, right) = (words(world, 4), neighbour(world, 1));
    let word = Layout::of::<u64>();
    let (point, mut buffer) = (word.resized(0, 0).unwrap(), [0u64; 4]);
    let epoch = window.lock_all().unwrap();
    let mut ask = |there: &Layout, here: &Layout, count: u64| {
        let (there, here) = (there.times(count), here.times(count));
        let (origin, result) = ((&[1u64; 4][..], here), (&mut buffer[..], here));
        let fetch = epoch.get_accumulate_shaped(right, 0, there, Op::Sum, origin, result);
        let add = epoch.accumulate_shaped(right, 0, there, Op::Sum, &[1u64; 4], here);
        assert_eq!(fetch, add);
        let put = epoch.rput_shaped(right, 0, there, vec![1u64; 4], here).err();
        assert_eq!(put, add.err());
        add.unwrap_err()
    };
    for count in [1 << 60, 1 << 61, u64::MAX] {
        let error = ask(&word, &word, count);
        assert!(matches!(error, RmaError::LayoutTooLarge { .. }), "{error}");
    }
    for count in [1 << 29, 1 << 32, 1 << 40, (1 << 60) - 1] {
        let error = ask(&word, &word, count);
        let high = count as i64 * 8;
        let len = 32;
        assert_eq!(error.class(), ErrorClass::Count);
        assert!(
            matches!(error, RmaError::OriginOutOfRange { low: 0, high: h, len: l, .. } if (h, l) == (high, len)),
            "{error}"
        );
    }
    // All copies at one place: inside, but there more than once.
    let error = epoch.accumulate_shaped(
        right,
        0,
        point.times(1 << 40),
        Op::Sum,
        &[1u64],
        point.times(1 << 40),
    );
    assert!(matches!(error, Err(RmaError::Overlap { .. })), "{error:?}");
    let far = word.hvector(2, 1, 1 << 40).unwrap();
    let error = epoch.accumulate_shaped(right, 0, &far, Op::Sum, &[1u64; 2], word.times(2));
    assert!(matches!(error, Err(RmaError::LayoutOutOfRange { high, .. }) if high == (1 << 40) + 8));
    let nothing = Layout::structure(&[]).unwrap();
    let none = nothing.times(u64::MAX);
    epoch.accumulate_shaped(right, 0, none, Op::Sum, &[1u64; 2], word.times(0)).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!((buffer, local_words(&window)), ([0; 4], vec![0; 4]));
    window.free().unwrap();
}

/// Messages only where load and store do not reach; twenty blocks are one row of one of them.
pub fn paths<T: Transport>(universe: &Universe<T>) {
    let world = universe.world();
    let (window, right) = (words(world, 64), neighbour(world, 1));
    let one = Layout::of::<u64>();
    let every = one.vector(20, 1, 3).unwrap();
    let epoch = window.lock_all().unwrap();
    epoch.put(right, 0, &[1u64]).unwrap();
    epoch.flush(right).unwrap();
    let before = universe.counters().messages_sent();
    epoch.accumulate_shaped(right, 0, &every, Op::Sum, &[2u64; 20], one.times(20)).unwrap();
    let sent = universe.counters().messages_sent() - before;
    let by_messages = window.path(right) == Some(Path::Messages);
    assert_eq!(sent, u64::from(by_messages), "messages of an accumulate");
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    window.free().unwrap();
}
