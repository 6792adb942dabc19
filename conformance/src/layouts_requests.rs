//! Requests with layouts (FEATURES A4).
use crate::help::{local_words, neighbour, still_works, words};
use rma_core::{Assert, Layout, LockKind, Op, Universe};

/// Requests of each kind: waited for, tested, dropped, forgotten. S-I2 S-I3 S-I8
pub fn requests(universe: &Universe) {
    let world = universe.world();
    let (right, one) = (neighbour(world, 1), Layout::element::<u64>());
    let window = words(world, 90);
    let third = one.vector(30, 1, 3).unwrap();
    let epoch = window.lock_all().unwrap();
    let operands: Vec<u64> = (0..30).collect();
    let put = epoch.rput(right, third.at(0), one.times(30).of(operands.clone())).unwrap();
    assert_eq!(put.wait().unwrap(), operands);
    epoch.flush(right).unwrap();

    let boxed: Box<[u64]> = vec![7; 60].into();
    let spread = one.vector(30, 1, 2).unwrap();
    let mut get = epoch.rget(right, third.at(0), spread.of(boxed)).unwrap();
    while !get.test() {
        std::thread::yield_now();
    }
    let got = get.wait().unwrap();
    let expected: Vec<u64> = (0..30).flat_map(|i| [i, 7]).collect();
    assert_eq!(&got[..], &expected[..]);

    let twice = epoch.raccumulate(right, third.at(0), Op::Sum, one.times(30).of(operands));
    let operands = twice.unwrap().wait().unwrap();
    let origin = one.times(30).of(&operands);
    let fetch = |buffer: Vec<u64>| {
        let result = spread.of(buffer);
        epoch.rget_accumulate(right, third.at(0), Op::Sum, origin, result).unwrap()
    };
    let third_time = fetch(vec![7; 60]).wait().unwrap();
    assert_eq!(third_time, (0..30).flat_map(|i| [2 * i, 7]).collect::<Vec<u64>>());
    drop(fetch(vec![0; 59]));
    core::mem::forget(fetch(vec![0; 59]));
    drop(epoch.rget(right, third.at(0), spread.of(vec![0u64; 60])).unwrap());
    core::mem::forget(epoch.rget(right, third.at(0), spread.of(vec![0u64; 60])).unwrap());
    let again = epoch.raccumulate(right, third.at(0), Op::Sum, one.times(30).of(operands));
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
pub fn in_other_epochs(universe: &Universe) {
    let world = universe.world();
    let (right, one) = (neighbour(world, 1), Layout::element::<f64>());
    let window = world.window(100, 8).allocate().unwrap();
    let mine: Vec<f64> = (0..100).map(f64::from).collect();
    window.local().write(0, &mine).unwrap();
    world.barrier().unwrap();
    let every = one.vector(50, 1, 2).unwrap();
    let lock = window.lock(right, LockKind::Shared).unwrap();
    let mut get = lock.rget(every.at(1), one.times(50).of(vec![0.0f64; 50])).unwrap();
    let origin = one.times(50).of(&[0.5f64; 50]);
    let result = one.times(50).of(vec![0.0f64; 50]);
    let fetch = lock.rget_accumulate(every.at(0), Op::Sum, origin, result).unwrap();
    let put = lock.rput(one.times(1).at(1), one.of(vec![-3.0f64; 2]).starting_at(1)).unwrap();
    let add = lock.raccumulate(one.times(2).at(3), Op::Max, one.times(2).of(vec![1e3f64; 2]));
    lock.unlock().unwrap();
    world.barrier().unwrap();
    assert!(get.test(), "complete since the unlock");
    let got = get.wait().unwrap();
    // The put to element 1 may have come before the get: they are not ordered.
    assert!(got[0] == 1.0 || got[0] == -3.0);
    assert!(got[2..].iter().enumerate().all(|(i, got)| *got == (2 * i + 5) as f64));
    let epoch = window.fence(Assert::NONE).unwrap();
    let fetched = fetch.wait().unwrap();
    assert!(fetched.iter().enumerate().all(|(i, old)| *old == (2 * i) as f64));
    drop(put);
    epoch.end().unwrap();
    assert_eq!(add.unwrap().wait().unwrap(), [1e3; 2]);
    let mut found = [0.0; 8];
    window.local().read(0, &mut found).unwrap();
    assert_eq!(found, [0.5, -3.0, 2.5, 1e3, 1e3, 5.0, 6.5, 7.0]);
    window.free().unwrap();
}

/// More than may wait packed: complete at once. S-H15
pub fn large_scopes_and_requests(universe: &Universe) {
    let world = universe.world();
    let (right, one) = (neighbour(world, 1), Layout::element::<u64>());
    let count = if cfg!(miri) { 20u64 } else { 140_000 };
    let window = words(world, 2 * count as usize);
    let odd = one.vector(count, 1, 2).unwrap();
    let ones = vec![1u64; count as usize];
    let mut seen = [vec![9u64; count as usize], vec![9u64; count as usize]];
    let epoch = window.lock_all().unwrap();
    epoch
        .ops(|ops| {
            for seen in &mut seen {
                let (origin, result) = (one.times(count).of(&ones), one.times(count).of(seen));
                ops.get_accumulate(right, odd.at(1), Op::Sum, origin, result)?;
            }
            Ok(())
        })
        .unwrap();
    for (i, seen) in (0..).zip(seen) {
        assert!(seen.iter().all(|seen| *seen == i), "scope {i}");
    }
    let (origin, result) =
        (one.times(count).of(&ones), one.times(count).of(vec![9u64; count as usize]));
    let request = epoch.rget_accumulate(right, odd.at(1), Op::Sum, origin, result).unwrap();
    let seen = request.wait().unwrap();
    assert!(seen.iter().all(|seen| *seen == 2));
    let get = epoch.rget(right, odd.at(1), one.times(count).of(vec![0u64; count as usize]));
    let seen = get.unwrap().wait().unwrap();
    assert!(seen.iter().all(|seen| *seen == 3));
    epoch.unlock().unwrap();
    window.free().unwrap();
}
