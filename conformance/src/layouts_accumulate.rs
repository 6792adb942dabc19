//! Accumulates with layouts on both sides, and requests with layouts (FEATURES A3, A4).
use crate::accumulate::OPS;
use crate::accumulate_together::{
    Random, apply, bytes, each_drawn_once, expect_part, order_of_types,
};
use crate::help::{far, neighbour, times, words};
use crate::layouts::{ROOM, WIDTH, ZERO, constructed, overlaps};
use bytemuck::{Pod, Zeroable};
use core::fmt::Debug;
use rma_core::{
    Assert, BasicElement, Complex, Layout, LockAll, LockKind, Op, Pair, Rank, Universe,
};

/// Each layout at the origin, to each at the target; gaps stay.
fn accumulate_each<E: BasicElement + Debug>(universe: &Universe, of: fn(u32) -> E) {
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
            let from = from.of(&buffer).starting_at(ZERO);
            epoch.accumulate(right, to.at(disp), Op::Sum, from).unwrap();
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
pub fn accumulate_each_to_each(universe: &Universe) {
    accumulate_each::<u32>(universe, |n| n);
    if !cfg!(miri) {
        accumulate_each::<f32>(universe, |n| n as f32);
    }
}

/// Each layout at the target, with each layout of the result; two of each; the operands always
/// stand backwards.
fn get_each<E: BasicElement + Debug>(universe: &Universe, of: fn(u32) -> E) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let (all, len) = (constructed::<E>(), 3 * ROOM as usize);
    let window = world.window(len, WIDTH as usize).allocate().unwrap();
    let start: Vec<E> = (0..len as u32).map(|at| of(at + 1)).collect();
    window.local().write(0, &start).unwrap();
    let backwards = Layout::element::<E>().vector(12, 1, -1).unwrap();
    let operands: Vec<E> = (0..12).map(|at| of(50 - at)).collect();
    let extent = |layout: &Layout| layout.extent() / WIDTH as i64;
    let at = |copy: i64, layout: &Layout, at: i64| {
        ZERO.strict_add_signed(copy * extent(layout) + at) as usize
    };
    world.barrier().unwrap();
    // The model of the neighbour's part: no other rank changes it.
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
            let result = into.times(2).of(&mut buffer).starting_at(ZERO);
            let origin = backwards.of(&operands).starting_at(11);
            let op = Op::Sum;
            epoch.get_accumulate(right, there.times(2).at(ZERO), op, origin, result).unwrap();
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
pub fn get_each_to_each(universe: &Universe) {
    get_each::<i32>(universe, |n| n as i32);
    if !cfg!(miri) {
        get_each::<f32>(universe, |n| n as f32);
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
pub fn fields_of_structs(universe: &Universe) {
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
    let charge = field(Layout::element::<f64>(), 8);
    let (hits, misses) = (field(Layout::element::<u32>(), 16), field(Layout::element::<u32>(), 20));
    world.barrier().unwrap();
    let epoch = window.lock(right, LockKind::Exclusive).unwrap();
    let op = Op::Sum;
    epoch.accumulate(charge.times(20).at(0), op, charge.times(20).of(&particles)).unwrap();
    let mut seen = vec![Particle::zeroed(); 20];
    let (origin, result) = (misses.times(20).of(&particles), hits.times(20).of(&mut seen));
    epoch.get_accumulate(hits.times(20).at(0), op, origin, result).unwrap();
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
    let one = Layout::element::<E>();
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

/// An accumulate of [`in_order`], with a layout on each side.
struct Step<E> {
    op: Op,
    to: Layout,
    from: Layout,
    into: Layout,
    operands: Vec<E>,
    /// What the buffer of the result holds before.
    seen: Vec<E>,
}

/// Does it in one of the ways that give a result, which is `expected`; `after` is the whole part.
fn fetch<E: BasicElement>(
    epoch: &LockAll<'_>,
    right: Rank,
    way: usize,
    step: Step<E>,
    expected: &[E],
    after: &[E],
) {
    let Step { op, to, from, into, operands, mut seen } = step;
    let origin = from.of(&operands);
    match way {
        0 => {
            let result = into.of(&mut seen);
            epoch.get_accumulate(right, to.at(0), op, origin, result).unwrap();
        }
        1 => {
            let request = epoch.rget_accumulate(right, to.at(0), op, origin, into.of(seen));
            seen = request.unwrap().wait().unwrap();
        }
        _ => {
            let mut again = vec![E::zeroed(); after.len()];
            let both = epoch.ops(|ops| {
                let result = into.of(&mut seen);
                ops.get_accumulate(right, to.at(0), op, origin, result)?;
                ops.get_accumulate(right, 0, Op::NoOp, &[], &mut again)
            });
            both.unwrap();
            assert!(bytes(&again) == bytes(after), "no_op behind");
        }
    }
    assert!(bytes(&seen) == bytes(expected), "{} of {to:?}", op.name());
}

/// Does it in one of the ways without a result.
fn combine<E: BasicElement>(epoch: &LockAll<'_>, right: Rank, way: usize, step: Step<E>) {
    let Step { op, to, from, operands, .. } = step;
    match way {
        0 => epoch.accumulate(right, to.at(0), op, from.of(&operands)).unwrap(),
        1 => {
            let done = epoch.ops(|ops| ops.accumulate(right, to.at(0), op, from.of(&operands)));
            done.unwrap();
        }
        _ => drop(epoch.raccumulate(right, to.at(0), op, from.of(operands)).unwrap()),
    }
}

/// One origin's operations on the same elements happen in program order, with layouts and without,
/// long and short, plain, requests and scopes. S-H7 S-H9 S-H15
fn in_order<E: BasicElement + Debug>(universe: &Universe, of: fn(usize) -> E) {
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
        let op = ops[random.below(ops.len())];
        let operands: Vec<E> = (0..len).map(|_| of(random.below(9))).collect();
        let way = random.below(if op == Op::NoOp { 3 } else { 7 });
        if way == 6 {
            // Without a layout, on elements that the others touched.
            let start = random.below(len - count);
            epoch.accumulate(right, start as u64, op, &operands[..count]).unwrap();
            for (model, operand) in model[start..].iter_mut().zip(&operands[..count]) {
                *model = apply(op, *model, *operand);
            }
            continue;
        }
        let (to, to_at) = random_layout::<E>(&mut random, count, len);
        let (from, from_at) = random_layout::<E>(&mut random, count, len);
        let (into, into_at) = random_layout::<E>(&mut random, count, len);
        let seen = vec![of(3); len];
        let mut expected = seen.clone();
        for k in 0..count {
            let there = to_at[k];
            expected[into_at[k]] = model[there];
            model[there] = apply(op, model[there], operands[from_at[k]]);
        }
        let step = Step { op, to, from, into, operands, seen };
        match way.checked_sub(3) {
            None => fetch(&epoch, right, way, step, &expected, &model),
            Some(way) => combine(&epoch, right, way, step),
        }
    }
    epoch.unlock().unwrap();
    expect_part(&window, right, &model);
    world.barrier().unwrap();
    window.free().unwrap();
}

order_of_types!(in_order);

/// Every rank adds to the same elements, through layouts and without; nothing is lost.
fn sums<E: BasicElement + PartialEq>(universe: &Universe, of: fn(u64) -> E) {
    let world = universe.world();
    let rounds = times(universe, 1_000);
    let len = if cfg!(miri) { 8u64 } else { 1500 };
    let window = world.window(len as usize, size_of::<E>()).allocate().unwrap();
    let one = Layout::element::<E>();
    let (even, odd) = (one.vector(len / 2, 1, 2).unwrap(), one.vector(len / 2, 1, -2).unwrap());
    let operands: Vec<E> = (0..len).map(|i| of((i + 1) % 3)).collect();
    let epoch = window.lock_all().unwrap();
    for round in 0..rounds {
        // The same sum three ways, differently interleaved at each rank.
        match (round + u64::from(world.rank())) % 3 {
            0 => {
                epoch.accumulate(Rank(0), even.at(0), Op::Sum, even.of(&operands)).unwrap();
                let from = odd.of(&operands).starting_at(len - 1);
                epoch.accumulate(Rank(0), odd.at(len - 1), Op::Sum, from).unwrap();
            }
            1 => epoch.accumulate(Rank(0), 0, Op::Sum, &operands).unwrap(),
            _ => {
                let all = one.indexed(&[((len / 2) as i64, len / 2), (0, len / 2)]).unwrap();
                epoch.accumulate(Rank(0), all.at(0), Op::Sum, all.of(&operands)).unwrap();
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
pub fn sums_are_exact(universe: &Universe) {
    sums::<f64>(universe, |n| n as f64);
    if cfg!(miri) {
        return;
    }
    sums::<u8>(universe, |n| n as u8);
    sums::<i16>(universe, |n| n as i16);
    sums::<i64>(universe, |n| n as i64);
}

/// What comes back is one history of each element, layouts or not: every ticket is drawn once, and
/// those of a rank rise. S-H5 S-H10
pub fn tickets(universe: &Universe) {
    let world = universe.world();
    let rounds = times(universe, 10_000);
    // The elements lie in two stripes.
    let window = world.window(2056, 8).allocate().unwrap();
    let one = Layout::element::<f64>();
    let some = one.vector(4, 1, 3).unwrap();
    let mut mine = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let epoch = window.lock_all().unwrap();
    for round in 0..rounds {
        let mut seen = [0.0f64; 4];
        if round % 4 == 3 {
            for (k, seen) in (0..4).zip(&mut seen) {
                *seen = epoch.fetch_and_op(Rank(0), 2043 + 3 * k, Op::Sum, 1.0f64).unwrap();
            }
        } else {
            let (origin, result) = (one.times(4).of(&[1.0; 4]), one.times(4).of(&mut seen));
            epoch.get_accumulate(Rank(0), some.at(2043), Op::Sum, origin, result).unwrap();
        }
        for (mine, seen) in mine.iter_mut().zip(seen) {
            assert!(mine.last().is_none_or(|last| *last < seen));
            mine.push(seen);
        }
    }
    epoch.unlock().unwrap();
    each_drawn_once(world, &mine);
    window.free().unwrap();
}

/// Elements that straddle two stripes, in blocks of every length. S-H9 S-H14
pub fn stripe_borders(universe: &Universe) {
    let world = universe.world();
    let (right, one) = (neighbour(world, 1), Layout::element::<Complex<f64>>());
    let count = if cfg!(miri) { 1100 } else { 6000 };
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
                .accumulate(right, layout.at(shift), Op::Sum, one.times(elements).of(&operands))
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

/// Columns whose elements lie in stripes of their own, by all ranks at once, and one element in the
/// middle of each. S-H4 S-H6 S-H14
pub fn columns(universe: &Universe) {
    const APART: usize = 3 << 10;
    let world = universe.world();
    let (count, rounds) = if cfg!(miri) { (60, 2) } else { (300, 5) };
    let window = world.window(count * APART, 8).allocate().unwrap();
    let one = Layout::element::<f64>();
    let column = one.vector(count as u64, 1, APART as i64).unwrap();
    let (ones, middle) = (vec![1.0f64; count], count / 2 * APART);
    let epoch = window.lock_all().unwrap();
    for _ in 0..rounds {
        let operands = one.times(count).of(&ones);
        epoch.accumulate(Rank(0), column.at(0), Op::Sum, operands).unwrap();
        epoch.accumulate(Rank(0), middle, Op::Sum, &[1.0f64]).unwrap();
    }
    epoch.flush_all().unwrap();
    world.barrier().unwrap();
    let (mut sums, mut before) = (vec![0.0f64; count], vec![0.0f64; count]);
    epoch.get(Rank(0), column.at(0), one.times(count).of(&mut sums)).unwrap();
    let (nothing, into) = (&[0.0f64; 0], one.times(count).of(&mut before));
    epoch.get_accumulate(Rank(0), column.at(0), Op::NoOp, nothing, into).unwrap();
    epoch.unlock().unwrap();
    let each = f64::from(rounds * world.size());
    for (i, sum) in sums.iter().enumerate() {
        let expected = if i == count / 2 { 2.0 * each } else { each };
        assert_eq!(*sum, expected, "element {i}");
    }
    assert_eq!(before, sums);
    world.barrier().unwrap();
    window.free().unwrap();
}

/// Megabytes in one call, with a small one right behind. S-H15
pub fn large(universe: &Universe) {
    let world = universe.world();
    let count = if cfg!(miri) { 400 } else { 150_000u64 };
    let window = world.window(2 * count as usize, 8).allocate().unwrap();
    let (right, one) = (neighbour(world, 1), Layout::element::<f64>());
    let odd = one.vector(count, 1, 2).unwrap();
    let operands = vec![1.5f64; count as usize];
    let mut seen = vec![-1.0; 2 * count as usize];
    let epoch = window.lock_all().unwrap();
    epoch.accumulate(right, odd.at(1), Op::Sum, one.times(count).of(&operands)).unwrap();
    epoch.accumulate(right, 2 * count - 1, Op::Sum, &[2.0f64]).unwrap();
    let (origin, result) = (one.times(count).of(&operands), odd.of(&mut seen));
    epoch.get_accumulate(right, odd.at(1), Op::Prod, origin, result).unwrap();
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
pub fn captured(universe: &Universe) {
    let world = universe.world();
    let window = world.window(800, 4).allocate().unwrap();
    let right = neighbour(world, 1);
    let mut origin = vec![0.0f32; 400];
    let epoch = window.fence(Assert::NONE).unwrap();
    for round in 1..=4 {
        origin.fill(round as f32);
        let one = Layout::element::<f32>();
        let every = one.vector(400, 1, 2).unwrap();
        epoch.accumulate(right, every.at(0), Op::Sum, one.times(400).of(&origin)).unwrap();
        drop((one, every));
        origin.fill(1e9);
    }
    epoch.end().unwrap();
    let mut mine = vec![0.0f32; 800];
    window.local().read(0, &mut mine).unwrap();
    assert!(mine.chunks(2).all(|pair| pair == [10.0, 0.0]));
    window.free().unwrap();
}

/// Operations of a scope overlap, and keep their order on an element. S-H7 S-J6
pub fn scopes(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = world.window(300, 2).allocate().unwrap();
    let ones = vec![1i16; 300];
    let (mut first, mut second) = (vec![9i16; 300], vec![9i16; 200]);
    let epoch = window.lock_all().unwrap();
    epoch
        .ops(|ops| {
            // Layouts are not borrowed beyond the calls.
            let one = Layout::element::<i16>();
            let third = one.vector(100, 1, 3).unwrap();
            let origin = one.times(100).of(&ones);
            ops.accumulate(right, third.at(0), Op::Sum, third.of(&ones))?;
            let result = third.of(&mut first);
            ops.get_accumulate(right, third.at(0), Op::Sum, origin, result)?;
            let back = one.vector(100, 1, -2).unwrap();
            let result = back.of(&mut second).starting_at(198);
            ops.get_accumulate(right, third.at(0), Op::NoOp, one.of(&ones[..0]), result)?;
            ops.accumulate(right, one.times(300).at(0), Op::Sum, one.times(300).of(&ones))
        })
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

/// The calls work in every kind of epoch.
pub fn in_every_epoch(universe: &Universe) {
    let world = universe.world();
    let one = Layout::element::<f64>();
    let pair = one.vector(2, 1, 2).unwrap();
    let window = world.window(4, 8).allocate().unwrap();
    let (add, zero) = ([1.0f64, 2.0], Rank(0));
    let mut seen = [0.0f64; 2];
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.accumulate(zero, pair.at(0), Op::Sum, one.times(2).of(&add)).unwrap();
    epoch.end().unwrap();
    for kind in [LockKind::Shared, LockKind::Exclusive] {
        let epoch = window.lock(zero, kind).unwrap();
        let (origin, result) = (one.times(2).of(&add), one.times(2).of(&mut seen));
        epoch.get_accumulate(pair.at(0), Op::Sum, origin, result).unwrap();
        epoch.ops(|ops| ops.accumulate(zero, pair.at(0), Op::Sum, one.times(2).of(&add))).unwrap();
        epoch.unlock().unwrap();
    }
    world.barrier().unwrap();
    let all_ranks: Vec<Rank> = world.ranks().collect();
    let exposure = (world.rank() == zero).then(|| window.post(&all_ranks, Assert::NONE).unwrap());
    let epoch = window.start(&[zero], Assert::NONE).unwrap();
    epoch.accumulate(zero, pair.at(0), Op::Sum, one.times(2).of(&add)).unwrap();
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

/// Messages only where load and store do not reach; twenty blocks are one row of one of them.
pub fn paths(universe: &Universe) {
    let world = universe.world();
    let (window, right) = (words(world, 64), neighbour(world, 1));
    let one = Layout::element::<u64>();
    let every = one.vector(20, 1, 3).unwrap();
    // One rank alone: what it answers to others is counted, too.
    if world.rank() == Rank(0) {
        let epoch = window.lock_all().unwrap();
        epoch.put(right, 0, &[1u64]).unwrap();
        epoch.flush(right).unwrap();
        let before = (universe.counters().messages_sent(), window.operation_counts().messages);
        epoch.accumulate(right, every.at(0), Op::Sum, one.times(20).of(&[2u64; 20])).unwrap();
        let sent = universe.counters().messages_sent() - before.0;
        let by_messages = window.operation_counts().messages - before.1;
        assert!(by_messages == 0 || far(&window, right));
        assert_eq!(sent, by_messages, "messages of an accumulate");
        epoch.unlock().unwrap();
    }
    world.barrier().unwrap();
    window.free().unwrap();
}
