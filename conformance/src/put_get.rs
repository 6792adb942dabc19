//! Put and get (FEATURES A2).
use crate::help::{local_words, near, neighbour, pattern, times, words};
use bytemuck::{Pod, Zeroable};
use rma_core::{Assert, LockKind, Op, Rank, Universe};

/// Lengths at which copies, messages and pieces of gets change their ways.
fn sizes(universe: &Universe) -> Vec<usize> {
    if cfg!(miri) {
        return vec![0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 100];
    }
    let mut sizes: Vec<usize> = (0..=130).collect();
    sizes.extend([255, 256, 257, 1000, 4095, 4096, 4097, 16_343, 16_344, 16_345, 65_535, 65_537]);
    if !near(universe) {
        sizes.retain(|size| *size < 20 || size.is_multiple_of(13) || *size > 4000);
    }
    sizes
}

const GUARD: usize = 64;

/// Lengths, shifts: what is beside the range is not touched. S-G1 S-G12
pub fn put_of_any_size(universe: &Universe) {
    let world = universe.world();
    let (right, left) = (neighbour(world, 1), neighbour(world, -1).0);
    let largest = sizes(universe).into_iter().max().unwrap_or(0);
    let window = world.window(largest + 3 * GUARD, 1).allocate().unwrap();
    let mut epoch = window.fence(Assert::NONE).unwrap();
    for len in sizes(universe) {
        let start = GUARD + len % 17;
        epoch.put(right, start as u64, &pattern(world.rank().0, len)).unwrap();
        epoch = epoch.next(Assert::NONE).unwrap();
        let mut bytes = vec![0; len + 3 * GUARD];
        window.local().read(0, &mut bytes).unwrap();
        assert_eq!(bytes[start..start + len], pattern(left, len), "{len} bytes");
        let zeros = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        assert!(zeros(&bytes[..start]) && zeros(&bytes[start + len..]), "beside {len} bytes");
        window.local().write(start as u64, &vec![0u8; len]).unwrap();
        epoch = epoch.next(Assert::NONE).unwrap();
    }
    epoch.end().unwrap();
    window.free().unwrap();
}

/// Lengths, shifts: what is beside the buffer is not touched. S-G1 S-G12
pub fn get_of_any_size(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let largest = sizes(universe).into_iter().max().unwrap_or(0);
    let window = world.window(largest + GUARD, 1).allocate().unwrap();
    window.local().write(0, &pattern(world.rank().0, largest + GUARD)).unwrap();
    let theirs = pattern(right.0, largest + GUARD);
    let epoch = window.fence(Assert::NONE).unwrap();
    for len in sizes(universe) {
        let (start, at) = (len % 13, GUARD + len % 17);
        let mut buffer = vec![0xee; len + 3 * GUARD];
        epoch.get(right, start as u64, &mut buffer[at..at + len]).unwrap();
        assert_eq!(buffer[at..at + len], theirs[start..start + len], "{len} bytes");
        let beside = buffer[..at].iter().chain(&buffer[at + len..]);
        assert!(beside.into_iter().all(|byte| *byte == 0xee), "beside {len} bytes");
    }
    epoch.end().unwrap();
    window.free().unwrap();
}

/// A megabyte each way. S-G1
pub fn one_mebibyte(universe: &Universe) {
    large(universe, 1 << 20);
}

/// More than 16 MiB each way; less where a simulator moves it in pieces. S-G1
pub fn sixteen_mebibytes(universe: &Universe) {
    large(universe, if near(universe) { (16 << 20) + 13 } else { (2 << 20) + 13 });
}

fn large(universe: &Universe, len: usize) {
    let world = universe.world();
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    let len = if cfg!(miri) { 1000 } else { len };
    let window = world.window(len + 2, 1).allocate().unwrap();
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.put(right, 1, &pattern(world.rank().0, len)).unwrap();
    let epoch = epoch.next(Assert::NONE).unwrap();
    let mut buffer = vec![0u8; len + 2];
    epoch.get(world.rank(), 0, &mut buffer).unwrap();
    assert!(buffer[1..=len] == pattern(left.0, len), "the left neighbour's bytes");
    assert_eq!((buffer[0], buffer[len + 1]), (0, 0));
    epoch.get(right, 0, &mut buffer).unwrap();
    assert!(buffer[1..=len] == pattern(world.rank().0, len), "this rank's bytes, back again");
    epoch.end().unwrap();
    window.free().unwrap();
}

/// A rank may be its own target. S-G1 S-G5
pub fn self_target(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 8);
    let epoch = window.lock(world.rank(), LockKind::Exclusive).unwrap();
    epoch.put(2, &[1u64, 2, 3]).unwrap();
    epoch.flush().unwrap();
    let mut got = [0u64; 3];
    epoch.get(3, &mut got).unwrap();
    assert_eq!(got, [2, 3, 0]);
    assert_eq!(epoch.fetch_and_op(4, Op::Sum, 5u64), Ok(3));
    assert_eq!(epoch.compare_and_swap(4, 8u64, 9), Ok(8));
    epoch.unlock().unwrap();
    assert_eq!(local_words(&window), [0, 0, 1, 2, 9, 0, 0, 0]);
    window.free().unwrap();
}

/// The null target: nothing happens, in every epoch. S-G4 S-E12
pub fn null_target(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let mut untouched = [7u64];
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.put(Rank::NULL, u64::MAX, &[1u64; 9]).unwrap();
    epoch.get(Rank::NULL, u64::MAX, &mut untouched).unwrap();
    assert_eq!(epoch.fetch_and_op(Rank::NULL, 1, Op::Sum, 5u64), Ok(5));
    assert_eq!(epoch.compare_and_swap(Rank::NULL, 3, 5u32, 6), Ok(5));
    epoch.end().unwrap();
    let epoch = window.lock_all().unwrap();
    epoch.put(Rank::NULL, 9, &[1u8]).unwrap();
    epoch.get(Rank::NULL, 9, &mut untouched).unwrap();
    assert_eq!(epoch.fetch_and_op(Rank::NULL, 1, Op::NoOp, 5i32), Ok(5));
    assert_eq!(epoch.compare_and_swap(Rank::NULL, 1, -5i64, 6), Ok(-5));
    epoch.flush(Rank::NULL).unwrap();
    epoch.unlock().unwrap();
    let epoch = window.lock(Rank::NULL, LockKind::Exclusive).unwrap();
    epoch.put(9, &[1u8]).unwrap();
    epoch.get(9, &mut untouched).unwrap();
    assert_eq!(epoch.fetch_and_op(1, Op::Sum, 5u32), Ok(5));
    epoch.unlock().unwrap();
    assert_eq!((untouched, local_words(&window)), ([7], vec![0]));
    window.free().unwrap();
}

/// Nothing can be put and got anywhere inside, the end included. S-G3
pub fn zero_count(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 3);
    let epoch = window.lock_all().unwrap();
    for disp in 0..=3 {
        for target in world.ranks() {
            epoch.put(target, disp, &[0u64; 0]).unwrap();
            epoch.get(target, disp, &mut [[0u8; 3]; 0]).unwrap();
            // Some elements of no size.
            epoch.put(target, disp, &[[0u8; 0]; 5]).unwrap();
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [0, 0, 0]);
    window.free().unwrap();
}

/// Puts that overlap without order are no error, and nothing beside them changes. S-G6 S-G12
pub fn conflicting_puts(universe: &Universe) {
    let world = universe.world();
    let window = world.window(200, 1).allocate().unwrap();
    for round in 0..times(universe, 100) {
        let epoch = window.lock_all().unwrap();
        let start = 50 + u64::from(world.rank()) * 7;
        epoch.put(Rank(0), start, &[world.rank().0 as u8 + 1; 40]).unwrap();
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        if world.rank() == Rank(0) {
            let mut bytes = [0u8; 200];
            window.local().read(0, &mut bytes).unwrap();
            let end = 50 + (world.size() as usize - 1) * 7 + 40;
            assert_eq!(bytes[..50], [0; 50], "round {round}");
            assert!(bytes[end..].iter().all(|byte| *byte == 0), "round {round}");
            let ranks = 1..=world.size() as u8;
            assert!(bytes[50..end].iter().all(|byte| ranks.contains(byte)), "round {round}");
            assert_eq!(bytes[50..57], [1; 7], "rank 0's alone");
        }
        world.barrier().unwrap();
    }
    window.free().unwrap();
}

/// A get that races a put is no error; bytes are the old or the new ones. S-G6
pub fn put_against_get(universe: &Universe) {
    let world = universe.world();
    let window = world.window(333, 1).allocate().unwrap();
    let epoch = window.lock_all().unwrap();
    for round in 0..times(universe, 300) {
        let fresh = (round % 250 + 1) as u8;
        if world.rank() == Rank(0) {
            epoch.put(Rank(1), 3, &[fresh; 300]).unwrap();
            epoch.flush(Rank(1)).unwrap();
        } else {
            let mut got = [0xffu8; 300];
            epoch.get(Rank(1), 3, &mut got).unwrap();
            assert!(got.iter().all(|byte| *byte <= 250), "{got:?}");
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    window.free().unwrap();
}

/// Many operations are outstanding at once. S-G2
pub fn many_outstanding(universe: &Universe) {
    let world = universe.world();
    let count = if cfg!(miri) {
        10
    } else if near(universe) {
        5_000
    } else {
        300
    };
    let window = words(world, count * world.size() as usize);
    let first = u64::from(world.rank()) * count as u64;
    let epoch = window.lock_all().unwrap();
    for i in 0..count as u64 {
        epoch.put(neighbour(world, i as i64), first + i, &[first + i]).unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    for (at, value) in local_words(&window).into_iter().enumerate() {
        let (origin, i) = (Rank((at / count) as u32), (at % count) as i64);
        let mine = origin.on_ring(i, world.size()) == world.rank();
        assert_eq!(value, if mine { at as u64 } else { 0 });
    }
    window.free().unwrap();
}

/// Every rank puts to all.
pub fn all_to_all(universe: &Universe) {
    let world = universe.world();
    let window = words(world, world.size() as usize);
    let mut epoch = window.fence(Assert::NONE).unwrap();
    for round in 0..times(universe, 50) {
        for target in world.ranks() {
            let value = round * 100 + u64::from(world.rank()) * 10 + u64::from(target);
            epoch.put(target, u64::from(world.rank()), &[value]).unwrap();
        }
        epoch = epoch.next(Assert::NONE).unwrap();
        let of = |from: Rank| round * 100 + u64::from(from) * 10 + u64::from(world.rank());
        assert_eq!(local_words(&window), world.ranks().map(of).collect::<Vec<_>>());
        epoch = epoch.next(Assert::NONE).unwrap();
    }
    epoch.end().unwrap();
    window.free().unwrap();
}

#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Cell {
    tag: [u8; 6],
    kind: u16,
    value: f64,
}

/// Elements of every kind, at addresses that do not suit them.
pub fn elements(universe: &Universe) {
    let world = universe.world();
    let window = world.window(200, 1).allocate().unwrap();
    let right = neighbour(world, 1);
    let cell = Cell { tag: *b"abcdef", kind: 7, value: -0.5 };
    let epoch = window.lock_all().unwrap();
    epoch.put(right, 1, &[cell; 3]).unwrap();
    epoch.put(right, 55, &[1.5f32, -2.5]).unwrap();
    epoch.put(right, 71, &[-1i16]).unwrap();
    epoch.put(right, 81, &[u128::MAX - 1]).unwrap();
    epoch.put(right, 101, &[[1u16, 2, 3]]).unwrap();
    epoch.flush(right).unwrap();
    let (mut cells, mut floats) = ([Cell::zeroed(); 3], [0f32; 2]);
    let (mut short, mut wide, mut array) = ([0i16], [0u128], [[0u16; 3]]);
    epoch.get(right, 1, &mut cells).unwrap();
    epoch.get(right, 55, &mut floats).unwrap();
    epoch.get(right, 71, &mut short).unwrap();
    epoch.get(right, 81, &mut wide).unwrap();
    epoch.get(right, 101, &mut array).unwrap();
    epoch.unlock().unwrap();
    assert_eq!((cells, floats, short), ([cell; 3], [1.5, -2.5], [-1]));
    assert_eq!((wide, array), ([u128::MAX - 1], [[1, 2, 3]]));
    world.barrier().unwrap();
    assert_eq!(window.local().load::<Cell>(17), Ok(cell));
    window.free().unwrap();
}

/// A flush between them orders puts and gets. S-G7
pub fn flush_orders(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 40);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    for round in 1..=times(universe, 200) {
        epoch.put(right, 0, &[round - 1; 40]).unwrap();
        epoch.flush(right).unwrap();
        epoch.put(right, 20, &[round; 20]).unwrap();
        epoch.flush(right).unwrap();
        let mut got = [0; 40];
        epoch.get(right, 0, &mut got).unwrap();
        assert_eq!(
            (got[..20].to_vec(), got[20..].to_vec()),
            (vec![round - 1; 20], vec![round; 20])
        );
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}
