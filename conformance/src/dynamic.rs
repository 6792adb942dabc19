//! Dynamic windows (FEATURES A1; MPI 4.1, section 12.2.4).
#![allow(unsafe_code)] // room: vouches for memory that is attached

use crate::created::disturb;
use crate::help::{neighbour, says, times};
use core::fmt::Debug;
use rma_core::{
    Assert, Attached, BasicElement, Communicator, ErrorClass, Flavor, Layout, LockKind, Op, Pair,
    Rank, RawPart, RmaError, Universe, Window,
};

fn dynamic(comm: &Communicator) -> Window {
    comm.window(0, 1).create_dynamic().unwrap()
}

/// The address of each rank. **Collective.**
fn addresses(comm: &Communicator, mine: u64) -> Vec<u64> {
    comm.allgather(&[mine]).unwrap()
}

/// Attached memory takes every operation, in every epoch, and comes back changed. S-L1 S-L4
/// S-J4
pub fn every_operation(universe: &Universe) {
    let world = universe.world();
    let (me, right, ranks) = (world.rank(), neighbour(world, 1), u64::from(world.size()));
    let window = dynamic(world);
    assert_eq!((window.flavor(), window.size()), (Flavor::Dynamic, 0));
    let attached = window.attach(vec![u64::from(me) * 100; 8]).unwrap();
    let at = addresses(world, attached.address());
    let base = at[usize::from(right)];
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.put(right, base + 8, &[1u64, 2]).unwrap();
    epoch.end().unwrap();
    let epoch = window.lock(right, LockKind::Exclusive).unwrap();
    let mut got = [0u64; 4];
    epoch.get(base, &mut got).unwrap();
    assert_eq!(got, [u64::from(right) * 100, 1, 2, u64::from(right) * 100]);
    epoch.unlock().unwrap();
    let epoch = window.lock_all().unwrap();
    for (target, base) in at.iter().enumerate() {
        let target = Rank(target as u32);
        epoch.fetch_and_op(target, base + 32, Op::Sum, 1u64).unwrap();
        epoch.accumulate(target, base + 32, Op::Sum, &[1u64, 1]).unwrap();
    }
    let old = epoch.compare_and_swap(right, base + 48, u64::from(right) * 100, 9u64).unwrap();
    assert_eq!(old, u64::from(right) * 100);
    let mut before = [0u64];
    epoch.get_accumulate(right, base + 48, Op::Replace, &[10u64], &mut before).unwrap();
    assert_eq!(before, [9]);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let first = u64::from(me) * 100;
    assert_eq!(window.region(&attached).unwrap().load::<u64>(48).unwrap(), 10);
    let back: Vec<u64> = window.detach(attached).unwrap();
    let sum = first + 2 * ranks;
    assert_eq!(back, [first, 1, 2, first, sum, first + ranks, 10, first]);
    window.free().unwrap();
}

/// Layouts find their bytes in a region. S-J1 S-L4
pub fn layouts(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = dynamic(world);
    let attached = window.attach(vec![0u64; 6]).unwrap();
    let base = addresses(world, attached.address())[usize::from(right)];
    let word = Layout::element::<u64>();
    let (every, flat) = (word.vector(3, 1, 2).unwrap(), word.times(3));
    let epoch = window.lock_all().unwrap();
    epoch.put(right, every.at(base), flat.of(&[1u64, 2, 3])).unwrap();
    epoch.flush(right).unwrap();
    let mut got = [0u64; 3];
    epoch.get(right, every.at(base), flat.of(&mut got)).unwrap();
    assert_eq!(got, [1, 2, 3]);
    // One after the other, whichever way each of them goes. S-H7
    for _ in 0..10 {
        epoch.accumulate(right, base, Op::Replace, &[1u16, 1, 1, 1]).unwrap();
        let (pair, two) =
            (Layout::element::<u16>().vector(2, 1, 2).unwrap(), Layout::element::<u16>());
        epoch.accumulate(right, pair.at(base), Op::Sum, two.times(2).of(&[5u16, 7])).unwrap();
        let mut old = [0u16; 4];
        epoch.get_accumulate(right, base, Op::Prod, &[2u16; 4], &mut old).unwrap();
        assert_eq!(old, [6, 1, 8, 1]);
    }
    epoch.accumulate(right, base, Op::Replace, &[1u64]).unwrap();
    epoch.flush(right).unwrap();
    let outside = epoch.put(right, every.at(base + 16), flat.of(&[7u64, 7, 7]));
    let outside = outside.and_then(|()| epoch.flush(right)).unwrap_err();
    assert!(matches!(outside, RmaError::NotAttached { .. }), "{outside}");
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let back: Vec<u64> = window.detach(attached).unwrap();
    assert_eq!(back, [1, 0, 2, 0, 3, 0]);
    window.free().unwrap();
}

/// Layouts of absolute addresses: position 0 is displacement 0, far below every region. S-J1 S-L2
/// S-L4
pub fn layouts_of_addresses(universe: &Universe) {
    by_address::<u64>(universe, u64::from);
    by_address::<f64>(universe, f64::from);
}

fn by_address<E: BasicElement + Debug + PartialEq>(universe: &Universe, of: fn(u32) -> E) {
    const LEN: u32 = 24;
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = dynamic(world);
    let attached = window.attach((0..LEN).map(of).collect::<Vec<_>>()).unwrap();
    let base = addresses(world, attached.address())[usize::from(right)];
    let mut model: Vec<E> = (0..LEN).map(of).collect();
    let (epoch, one) = (window.lock_all().unwrap(), Layout::element::<E>());
    for (layout, at, extent) in &addressed(&one, base as i64) {
        for count in 1..=2 {
            let places: Vec<usize> =
                (0..count).flat_map(|copy| at.iter().map(move |at| at + copy * extent)).collect();
            let n = places.len();
            let (there, flat) = (layout.times(count as u64), one.times(n as u64));
            let sevens: Vec<E> = (0..n as u32).map(|i| of(700 + i)).collect();
            let ones = vec![of(1); n];
            epoch.put(right, there.at(0), flat.of(&sevens)).unwrap();
            epoch.flush(right).unwrap();
            let mut got = vec![of(0); n];
            epoch.get(right, there.at(0), flat.of(&mut got)).unwrap();
            assert_eq!(got, sevens, "{layout:?}");
            epoch.accumulate(right, there.at(0), Op::Sum, flat.of(&ones)).unwrap();
            let (origin, mut old) = (flat.of(&ones), vec![of(0); n]);
            let result = flat.of(&mut old);
            epoch.get_accumulate(right, there.at(0), Op::Sum, origin, result).unwrap();
            assert_eq!(old, (0..n as u32).map(|i| of(701 + i)).collect::<Vec<_>>(), "{layout:?}");
            places.iter().zip(702..).for_each(|(at, value)| model[*at] = of(value));
            let mut all = vec![of(0); LEN as usize];
            epoch.get(right, base, &mut all).unwrap();
            assert_eq!(all, model, "{layout:?}");
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    drop(window.detach(attached).unwrap());
    window.free().unwrap();
}

/// Layouts of elements of eight bytes from the address `base` on; where the elements are, and the
/// extent, both in elements.
fn addressed(one: &Layout, base: i64) -> [(Layout, Vec<usize>, usize); 5] {
    let two = one.vector(2, 1, 2).unwrap();
    let nested = two.resized(0, 40).unwrap().contiguous(2).unwrap();
    let mixed = [(base, 1, two), (base + 24, 1, one.clone())];
    [
        (one.hindexed(&[(base + 8, 1)]).unwrap(), vec![1], 1),
        (one.vector(3, 1, 2).unwrap().hindexed(&[(base, 1)]).unwrap(), vec![0, 2, 4], 5),
        (one.hindexed(&[(base, 2), (base + 40, 1)]).unwrap(), vec![0, 1, 5], 6),
        (nested.hindexed(&[(base, 1)]).unwrap(), vec![0, 2, 5, 7], 10),
        (Layout::structure(&mixed).unwrap(), vec![0, 2, 3], 4),
    ]
}

/// Calls with and without layouts, and the owner's, exclude each other in every region. S-H4 S-H6
/// S-L4
pub fn layouts_beside_plain_calls(universe: &Universe) {
    let world = universe.world();
    let window = dynamic(world);
    let regions: Vec<_> = (0..2).map(|_| window.attach(vec![0.0f64; 3]).unwrap()).collect();
    let bases = regions.iter().map(|region| addresses(world, region.address())[0]);
    let bases: Vec<u64> = bases.collect();
    let rounds = times(universe, 20_000);
    let (float, pair) = (Layout::element::<f64>(), Layout::element::<Pair<f64, u64>>());
    let epoch = window.lock_all().unwrap();
    for round in 0..rounds {
        let found = [Pair::new(round as f64, u64::from(world.rank()))];
        for base in &bases {
            if (round + u64::from(world.rank())).is_multiple_of(2) {
                epoch.accumulate(Rank(0), *base, Op::Sum, &[1.0f64]).unwrap();
                epoch.accumulate(Rank(0), base + 8, Op::MaxLoc, &found).unwrap();
            } else {
                let at = base + 8;
                epoch.accumulate(Rank(0), float.at(*base), Op::Sum, float.of(&[1.0])).unwrap();
                epoch.accumulate(Rank(0), pair.at(at), Op::MaxLoc, pair.of(&found)).unwrap();
            }
        }
        if world.rank() == Rank(0) {
            for region in &regions {
                window.region(region).unwrap().fetch_and_op(0, Op::Sum, 1.0f64).unwrap();
            }
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let sum = rounds * (u64::from(world.size()) + 1);
    for region in regions {
        let back = window.detach(region).unwrap();
        if world.rank() == Rank(0) {
            assert_eq!(back, [sum as f64, (rounds - 1) as f64, f64::from_bits(0)]);
        }
    }
    window.free().unwrap();
}

/// Memory may be attached when peers are in their epochs already, with the hint for collective
/// attaching too. S-L3 S-L5
pub fn attached_late(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let hinted = world.window(0, 1).hint("coll_attach", "true").unwrap();
    let window = hinted.create_dynamic().unwrap();
    let epoch = window.lock_all().unwrap();
    world.barrier().unwrap();
    let first = window.attach(vec![1u32; 3]).unwrap();
    let second = window.attach(vec![2u32; 3].into_boxed_slice()).unwrap();
    for (address, value) in [(first.address(), 1), (second.address(), 2)] {
        let base = addresses(world, address)[usize::from(right)];
        let mut got = [0u32; 3];
        epoch.get(right, base, &mut got).unwrap();
        assert_eq!(got, [value; 3]);
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(window.detach(second).unwrap()[..], [2; 3]);
    assert_eq!(window.detach(first).unwrap(), [1; 3]);
    window.free().unwrap();
}

/// An address of what was detached is an error for ever, and harms nothing. S-L6
pub fn stale_addresses(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = dynamic(world);
    let first = window.attach(vec![1u64; 2]).unwrap();
    let stale = addresses(world, first.address())[usize::from(right)];
    let touch = || {
        let epoch = window.lock(right, LockKind::Shared).unwrap();
        let put = epoch.put(stale, &[13u64]).and_then(|()| epoch.flush());
        let get = epoch.get(stale, &mut [0u64]);
        let fetch = epoch.fetch_and_op(stale, Op::Sum, 1u64);
        epoch.unlock().unwrap();
        (put, get, fetch.map(drop))
    };
    assert_eq!(touch(), (Ok(()), Ok(()), Ok(())));
    world.barrier().unwrap();
    assert_eq!(window.detach(first).unwrap(), [14, 1]);
    world.barrier().unwrap();
    // The same slot and, very likely, the same memory.
    let second = window.attach(vec![2u64; 2]).unwrap();
    world.barrier().unwrap();
    let (put, get, fetch) = touch();
    for error in [put.unwrap_err(), get.unwrap_err(), fetch.unwrap_err()] {
        assert!(matches!(error, RmaError::NotAttached { target, .. } if target == right));
        assert_eq!(error.class(), ErrorClass::RmaRange);
        says(&error, &["attached", &format!("rank {right}")]);
    }
    world.barrier().unwrap();
    assert_eq!(window.detach(second).unwrap(), [2, 2]);
    window.free().unwrap();
}

/// No operation reaches past the end of a region, or below it. S-L2 S-L6 S-G8
pub fn ends_of_regions(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = dynamic(world);
    let regions: Vec<_> = (0..3).map(|_| window.attach(vec![5u8; 100]).unwrap()).collect();
    let base = addresses(world, regions[1].address())[usize::from(right)];
    let epoch = window.lock_all().unwrap();
    for (address, len) in [(base + 1, 100), (base - 1, 2), (base + 100, 1), (0, 1), (7, 0)] {
        let put = epoch.put(right, address, &vec![1u8; len]);
        let flushed = put.and_then(|()| epoch.flush(right));
        if len > 0 {
            let error = flushed.unwrap_err();
            assert!(matches!(error, RmaError::NotAttached { .. }), "{error}");
        }
    }
    let far_out = epoch.put(right, u64::MAX, &[1u8]).and_then(|()| epoch.flush(right));
    assert_eq!(far_out.unwrap_err().class(), ErrorClass::RmaRange);
    epoch.put(right, base, &[6u8; 100]).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let mut back = regions.into_iter().map(|region| window.detach(region).unwrap());
    assert_eq!(back.next().unwrap(), [5; 100]);
    assert_eq!(back.next().unwrap(), [6; 100]);
    assert_eq!(back.next().unwrap(), [5; 100]);
    window.free().unwrap();
}

/// What an accumulate did not find is told by the next flush, whatever else went well before it.
/// S-L6
pub fn failures_wait_for_a_flush(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = dynamic(world);
    let region = window.attach(vec![0u64; 2]).unwrap();
    let base = addresses(world, region.address())[usize::from(right)];
    let epoch = window.lock(right, LockKind::Shared).unwrap();
    let nowhere = [1 << 40, 1 << 41].map(|far| base + far);
    let at_once = nowhere.iter().find_map(|at| epoch.accumulate(*at, Op::Sum, &[1u64]).err());
    for _ in 0..3 {
        // Meanwhile answers come.
        epoch.get(base + 8, &mut [0u64]).unwrap();
        epoch.accumulate(base, Op::Sum, &[1u64]).unwrap();
    }
    let told = at_once.or_else(|| epoch.flush().err()).expect("no region is there");
    assert!(matches!(told, RmaError::NotAttached { .. }), "{told}");
    // The other, if it was answered later.
    _ = epoch.flush();
    assert_eq!(epoch.flush(), Ok(()), "each is told once");
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(window.detach(region).unwrap(), [3, 0]);
    window.free().unwrap();
}

/// Misuse of attach and detach is told, and gives back what it was given. S-L6
pub fn refusals(universe: &Universe) {
    let world = universe.world();
    let (window, other) = (dynamic(world), dynamic(world));
    let fixed = world.window(1, 8).allocate().unwrap();
    let refused = fixed.attach(vec![1u8, 2]).unwrap_err();
    assert_eq!((refused.value, refused.error.class()), (vec![1, 2], ErrorClass::RmaFlavor));
    let attached = window.attach(vec![1u8, 2]).unwrap();
    let refused = other.detach(attached).unwrap_err();
    assert_eq!(refused.error.class(), ErrorClass::RmaAttach);
    assert_eq!(window.detach(refused.value).unwrap(), [1, 2]);
    let error = window.shared_query(Rank(0)).map(|view| view.size()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::RmaShared);
    let mut memory = [0u64; 4];
    let base: *mut u8 = memory.as_mut_ptr().cast();
    // SAFETY: `memory` lives, and is not touched, until it is detached.
    let all = unsafe { RawPart::new(base, 32) };
    // SAFETY: as above.
    let end = unsafe { RawPart::new(base.wrapping_add(24), 8) };
    let attached = window.attach(all).unwrap();
    let refused = window.attach(end).unwrap_err();
    assert_eq!((refused.value, refused.error.class()), (end, ErrorClass::RmaAttach));
    assert_eq!(window.detach(attached).unwrap(), all);
    // SAFETY: as above.
    let first = unsafe { RawPart::new(base, 24) };
    for side_by_side in [[first, end], [end, first]] {
        for (part, attached) in side_by_side.map(|part| (part, window.attach(part).unwrap())) {
            assert_eq!(window.detach(attached).unwrap(), part);
        }
    }
    fixed.free().unwrap();
    window.free().unwrap();
    other.free().unwrap();
}

/// More regions than a directory begins with, at every rank: neighbours find each of them, also
/// what is attached in a place that was given back, and nothing where one was. S-L1 S-L6 S-L7
pub fn many_regions(universe: &Universe) {
    // More than the first page, and there more than the second.
    const MANY: u64 = if cfg!(miri) { 70 } else { 150 };
    let world = universe.world();
    let (me, right) = (u64::from(world.rank()), neighbour(world, 1));
    let window = dynamic(world);
    let attach = |number: u64| window.attach(vec![me, number, 0]).unwrap();
    let mut regions: Vec<_> = (0..MANY).map(attach).collect();
    let mine = |regions: &[Attached<Vec<u64>>]| {
        let mine: Vec<u64> = regions.iter().map(Attached::address).collect();
        world.allgather(&mine).unwrap()
    };
    let theirs = |all: Vec<u64>| -> Vec<u64> {
        all.chunks(MANY as usize).nth(usize::from(right)).unwrap().to_vec()
    };
    let at = theirs(mine(&regions));
    let epoch = window.lock_all().unwrap();
    // The last first: its page is known before those in front of it.
    for number in (0..MANY).rev() {
        let mut got = [0u64; 2];
        epoch.get(right, at[number as usize], &mut got).unwrap();
        assert_eq!(got, [u64::from(right), number]);
        epoch.put(right, at[number as usize] + 16, &[number + 1]).unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    for (number, region) in (0..).zip(&mut regions).step_by(7) {
        let old = core::mem::replace(region, attach(MANY + number));
        assert_eq!(window.detach(old).unwrap(), [me, number, number + 1]);
    }
    let (stale, at) = (at, theirs(mine(&regions)));
    let epoch = window.lock_all().unwrap();
    for number in (0..MANY as usize).rev() {
        let (replaced, mut got) = (number.is_multiple_of(7), [0u64; 3]);
        epoch.get(right, at[number], &mut got).unwrap();
        epoch.flush(right).unwrap();
        let expected = number as u64 + if replaced { MANY } else { 0 };
        assert_eq!(got[1], expected);
        assert_eq!(stale[number] == at[number], !replaced);
    }
    let gone = epoch.get(right, stale[0], &mut [0u64]).and_then(|()| epoch.flush(right));
    assert!(matches!(gone, Err(RmaError::NotAttached { .. })), "{gone:?}");
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// The budget says how many; it comes back with each detach. The window is freed with all of them
/// attached. S-L7
pub fn too_many(universe: &Universe) {
    let world = universe.world();
    let window = world.window(0, 1).hint("rma_dynamic_regions", "100").unwrap();
    let window = window.create_dynamic().unwrap();
    let mut regions = Vec::new();
    let refused = loop {
        match window.attach(vec![regions.len() as u8]) {
            Ok(region) => regions.push(region),
            Err(refused) => break refused,
        }
    };
    let limit = regions.len() as u32;
    assert_eq!(limit, 100);
    says(&refused.error, &["100 regions", "detach some", "rma_dynamic_regions"]);
    assert!(matches!(refused.error, RmaError::TooManyRegions { limit: told, .. } if told == limit));
    assert_eq!(refused.value, [limit as u8]);
    assert_eq!(window.detach(regions.swap_remove(0)).unwrap(), [0]);
    regions.push(window.attach(refused.value).unwrap());
    assert_eq!(window.set_info("rma_dynamic_regions", "101"), Ok(true));
    regions.push(window.attach(vec![0]).unwrap());
    assert!(window.attach(vec![0u8]).is_err());
    window.free().unwrap();
}

/// Raw memory is attached where it is. S-L1
pub fn raw_memory(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = dynamic(world);
    let mut memory = [3u64; 4];
    // SAFETY: `memory` lives, and is not touched, until it is detached.
    let part = unsafe { RawPart::new(memory.as_mut_ptr().cast(), 32) };
    let attached = window.attach(part).unwrap();
    let base = addresses(world, attached.address())[usize::from(right)];
    let epoch = window.lock(right, LockKind::Shared).unwrap();
    epoch.put(base + 8, &[4u64]).unwrap();
    epoch.accumulate(base + 16, Op::Sum, &[4u64]).unwrap();
    epoch.flush().unwrap();
    let mut got = [0u64; 4];
    epoch.get(base, &mut got).unwrap();
    assert_eq!(got, [3, 4, 7, 3]);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(window.detach(attached).unwrap(), part);
    assert_eq!(memory, [3, 4, 7, 3]);
    window.free().unwrap();
}

/// The owner combines by a view of its region while others do so by operations. S-H4 S-K9
pub fn owner_takes_part(universe: &Universe) {
    let world = universe.world();
    let window = dynamic(world);
    let region = window.attach(vec![0.0f64; 2048]).unwrap();
    let base = addresses(world, region.address())[0];
    let (rounds, ones) = (times(universe, 10_000), [1.0f64; 1024]);
    let view = window.region(&region).unwrap();
    let epoch = window.lock_all().unwrap();
    world.barrier().unwrap();
    for _ in 0..rounds {
        match world.rank() {
            Rank(0) => view.accumulate(1024 * 8, Op::Sum, &ones).unwrap(),
            _ => epoch.accumulate(Rank(0), base + 1024 * 8, Op::Sum, &ones).unwrap(),
        }
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let found = window.detach(region).unwrap();
    if world.rank() == Rank(0) {
        let all = (rounds * u64::from(world.size())) as f64;
        assert_eq!((&found[..1024], &found[1024..]), (&[0.0; 1024][..], &[all; 1024][..]));
    }
    window.free().unwrap();
}

/// A region says how much memory it is. S-L1
pub fn lengths(universe: &Universe) {
    let window = dynamic(universe.world());
    for len in [0, 1, 9] {
        let region = window.attach(vec![0u16; len]).unwrap();
        assert_eq!((region.len(), region.is_empty()), (2 * len as u64, len == 0));
        let view = window.region(&region).unwrap();
        assert_eq!(view.size(), region.len());
        window.detach(region).unwrap();
    }
    window.free().unwrap();
}

/// The owner of attached memory, raw and given away, computes and calls nothing; others operate
/// there all the same. S-E7 S-M5
pub fn while_the_owner_computes(universe: &Universe) {
    let world = universe.world();
    let window = dynamic(world);
    let mut memory = [1u64; 8];
    // SAFETY: `memory` lives, and is not touched, until it is detached.
    let part = unsafe { RawPart::new(memory.as_mut_ptr().cast(), 64) };
    let (raw, given) = (window.attach(part).unwrap(), window.attach(vec![1u64; 8]).unwrap());
    let raw_base = addresses(world, raw.address())[0];
    let given_base = addresses(world, given.address())[0];
    if world.rank() == Rank(0) {
        for view in [window.region(&raw).unwrap(), window.region(&given).unwrap()] {
            // Loads of a view serve nothing.
            while view.load::<u64>(56).unwrap() != 99 {
                universe.transport().relax(0);
            }
        }
    } else {
        let epoch = window.lock_all().unwrap();
        disturb(&epoch, given_base);
        disturb(&epoch, raw_base);
        epoch.unlock().unwrap();
    }
    world.barrier().unwrap();
    let given = window.detach(given).unwrap();
    assert_eq!(window.detach(raw).unwrap(), part);
    if world.rank() == Rank(0) {
        assert_eq!((memory, &given[..]), ([6, 2, 30, 4, 1, 5, 1, 99], &memory[..]));
    }
    window.free().unwrap();
}

/// Attaching and detaching for long, while peers use other regions. S-A5
pub fn cycles(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = dynamic(world);
    let kept = window.attach(vec![0u64; 1]).unwrap();
    let base = addresses(world, kept.address())[usize::from(right)];
    let rounds = times(universe, 300);
    let epoch = window.lock_all().unwrap();
    for round in 0..rounds {
        let passing = window.attach(vec![round; 600]).unwrap();
        assert_eq!(epoch.fetch_and_op(right, base, Op::Sum, 1u64).unwrap(), round);
        assert_eq!(window.detach(passing).unwrap(), vec![round; 600]);
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(window.detach(kept).unwrap(), [rounds]);
    window.free().unwrap();
}
