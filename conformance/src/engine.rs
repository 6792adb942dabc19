//! The message engine: payloads of all sizes, many origins at one target, and everything at once.
//! Where parts are mapped, the same cases check the copy kernels.
use crate::help::{local_words, near, neighbour, pattern, times, words};
use rma_core::{Assert, Op, Rank, Universe};

/// Bytes of a large transfer.
fn large() -> usize {
    if cfg!(miri) { 20_000 } else { 1 << 20 }
}

/// Lengths around those at which messages, eager puts and CTS begin and end.
fn sizes() -> &'static [usize] {
    const MANY: &[usize] = &[
        1, 8, 455, 456, 457, 4095, 16_343, 16_344, 16_345, 16_384, 16_385, 20_000, 65_536, 65_537,
        262_145,
    ];
    if cfg!(miri) { &[1, 8, 16_384, 16_385] } else { MANY }
}

/// All ranks put to one at once, which waits in a barrier. S-G1 S-G6
pub fn puts_to_one(universe: &Universe) {
    let (world, len) = (universe.world(), large());
    let mine = world.rank() == Rank(0);
    let count = if mine { len * world.size() as usize } else { 0 };
    let window = world.window(count, 1).allocate().unwrap();
    let epoch = window.lock_all().unwrap();
    let start = u64::from(world.rank()) * len as u64;
    epoch.put(Rank(0), start, &pattern(world.rank().0, len)).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if mine {
        let mut bytes = vec![0u8; len];
        for origin in world.ranks() {
            window.local().read(u64::from(origin) * len as u64, &mut bytes).unwrap();
            assert!(bytes == pattern(origin.0, len), "what rank {origin} has put");
        }
    }
    window.free().unwrap();
}

/// All ranks get from one at once. S-G1 S-G6
pub fn gets_from_one(universe: &Universe) {
    let (world, len) = (universe.world(), large());
    let window = world.window(len + 3, 1).allocate().unwrap();
    window.local().write(3, &pattern(world.rank().0, len)).unwrap();
    window.fence(Assert::NONE).unwrap().end().unwrap();
    let epoch = window.lock_all().unwrap();
    let (mut first, mut second) = (vec![0u8; len], vec![0u8; len - 5]);
    epoch
        .ops(|ops| {
            ops.get(Rank(0), 3, &mut first)?;
            ops.get(Rank(0), 8, &mut second)
        })
        .unwrap();
    epoch.unlock().unwrap();
    let expected = pattern(0, len);
    assert!(first == expected && second == expected[5..]);
    window.free().unwrap();
}

/// Large payloads in both directions at once, through both sides' queues. S-G1
pub fn both_ways(universe: &Universe) {
    let (world, len) = (universe.world(), large());
    let window = world.window(2 * len, 1).allocate().unwrap();
    window.local().write(0, &pattern(world.rank().0, len)).unwrap();
    let mut epoch = window.fence(Assert::NONE).unwrap();
    let (mut got, mine) = (vec![0u8; len], pattern(100 + world.rank().0, len));
    for distance in [1, -1] {
        let (to, from) = (neighbour(world, distance), neighbour(world, -distance));
        epoch
            .ops(|ops| {
                ops.get(to, 0, &mut got)?;
                ops.put(to, len as u64, &mine)
            })
            .unwrap();
        epoch = epoch.next(Assert::NONE).unwrap();
        assert!(got == pattern(to.0, len), "what was got from rank {to}");
        let mut put = vec![0u8; len];
        window.local().read(len as u64, &mut put).unwrap();
        assert!(put == pattern(100 + from.0, len), "what rank {from} has put");
        epoch = epoch.next(Assert::NONE).unwrap();
    }
    epoch.end().unwrap();
    window.free().unwrap();
}

/// Sizes of every kind one after the other to all targets, with atomics in between, and one flush
/// at the end. S-G2 S-G7
pub fn mixed_sizes(universe: &Universe) {
    let world = universe.world();
    let all: usize = sizes().iter().sum();
    let ranks = world.size() as usize;
    // A counter, then a place for each origin.
    let window = world.window(8 + all * ranks, 1).allocate().unwrap();
    let first = 8 + all as u64 * u64::from(world.rank());
    let rounds = times(universe, 20).min(3);
    for round in 0..rounds as u32 {
        let epoch = window.lock_all().unwrap();
        let mut start = first;
        for (i, len) in sizes().iter().enumerate() {
            for distance in 0..i64::from(world.size()) {
                let target = neighbour(world, distance);
                let origin = pattern(round * 1000 + world.rank().0 * 10 + i as u32, *len);
                epoch.put(target, start, &origin).unwrap();
                epoch.accumulate(target, 0, Op::Sum, &[1u64]).unwrap();
            }
            start += *len as u64;
        }
        epoch.flush_all().unwrap();
        let mut start = first;
        for (i, len) in sizes().iter().enumerate() {
            let mut got = vec![0u8; *len];
            epoch.get(neighbour(world, i as i64), start, &mut got).unwrap();
            let origin = pattern(round * 1000 + world.rank().0 * 10 + i as u32, *len);
            assert!(got == origin, "{len} bytes in round {round}");
            start += *len as u64;
        }
        epoch.unlock().unwrap();
        world.barrier().unwrap();
    }
    let each = rounds * (sizes().len() * ranks) as u64;
    assert_eq!(window.local().load(0), Ok(each));
    window.free().unwrap();
}

/// A rank is its own target, with more than fits anywhere. S-G5
pub fn self_target(universe: &Universe) {
    let (world, len) = (universe.world(), large());
    let window = world.window(len, 1).allocate().unwrap();
    let epoch = window.lock_all().unwrap();
    let bytes = pattern(1, len);
    epoch.put(world.rank(), 0, &bytes).unwrap();
    epoch.put(world.rank(), 7, &[0xffu8]).unwrap();
    epoch.flush(world.rank()).unwrap();
    let mut got = vec![0u8; len];
    epoch.get(world.rank(), 0, &mut got).unwrap();
    epoch.unlock().unwrap();
    // The two puts are not ordered.
    assert!([bytes[7], 0xff].contains(&got[7]));
    got[7] = bytes[7];
    assert!(got == bytes);
    window.free().unwrap();
}

/// More gets at once than a target answers at a time. S-G2
pub fn many_gets(universe: &Universe) {
    let world = universe.world();
    let count = if cfg!(miri) { 20 } else { 1000 };
    let window = words(world, count);
    let base = u64::from(world.rank()) * 10_000;
    let mine: Vec<u64> = (0..count as u64).map(|i| base + i).collect();
    window.local().write(0, &mine).unwrap();
    window.fence(Assert::NONE).unwrap().end().unwrap();
    let epoch = window.lock_all().unwrap();
    let mut got = vec![0u64; count];
    epoch
        .ops(|ops| {
            for (i, got) in got.chunks_mut(1).enumerate() {
                ops.get(neighbour(world, i as i64), i, got)?;
            }
            Ok(())
        })
        .unwrap();
    epoch.unlock().unwrap();
    for (i, got) in got.into_iter().enumerate() {
        let target = u64::from(neighbour(world, i as i64));
        assert_eq!(got, target * 10_000 + i as u64);
    }
    world.barrier().unwrap();
    assert_eq!(local_words(&window), mine);
    window.free().unwrap();
}

/// Accumulates on the same elements in many messages, next to large puts to the same target: the
/// order of accumulates holds. S-H7
pub fn accumulates_beside_puts(universe: &Universe) {
    let world = universe.world();
    let (count, len) = if cfg!(miri) { (600, 17_000) } else { (5000, 100_000) };
    let window = world.window(count * 8 + len, 1).allocate().unwrap();
    let epoch = window.lock_all().unwrap();
    let mine = if near(universe) { 200 } else { 20 };
    if world.rank() == Rank(0) {
        for round in 1..=times(universe, mine) {
            epoch.accumulate(Rank(1), 0, Op::Replace, &vec![round; count]).unwrap();
            epoch.put(Rank(1), count as u64 * 8, &pattern(round as u32, len)).unwrap();
            epoch.accumulate(Rank(1), 0, Op::Sum, &vec![round; count]).unwrap();
            let mut seen = vec![0u64; count];
            epoch.get_accumulate(Rank(1), 0, Op::NoOp, &[], &mut seen).unwrap();
            assert!(seen.iter().all(|value| *value == 2 * round), "round {round}");
            epoch.flush(Rank(1)).unwrap();
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    window.free().unwrap();
}
