//! Requests with layouts (FEATURES A4).
use crate::help::{local_words, neighbour, still_works, words};
use rma_core::{Assert, Layout, LockKind, Op, Universe};

/// Requests of each kind: waited for, tested, dropped, forgotten. S-I2 S-I3 S-I8
pub fn requests(universe: &Universe) {
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
pub fn in_other_epochs(universe: &Universe) {
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

/// More than may wait packed: complete at once. S-H15
pub fn large_scopes_and_requests(universe: &Universe) {
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
