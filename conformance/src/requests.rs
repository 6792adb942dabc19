//! Operations that own their buffer.
use crate::help::{local_words, near, neighbour, still_works, words};
use rma_core::{Assert, LockKind, OriginBuffer, Rank, Request, RmaError, Universe, Window};

/// Fills this rank's part with `1000 × rank + i` and waits until all have done so.
fn filled(universe: &Universe, count: usize) -> Window {
    let window = words(universe.world(), count);
    window.local().write(0, &contents(window.rank(), count)).unwrap();
    universe.world().barrier().unwrap();
    window
}

fn contents(rank: Rank, count: usize) -> Vec<u64> {
    (0..count as u64).map(|i| u64::from(rank) * 1000 + i).collect()
}

/// Waits by testing.
fn poll<B: OriginBuffer>(mut request: Request<'_, B>) -> B {
    loop {
        match request.test() {
            Ok((buffer, result)) => {
                result.unwrap();
                return buffer;
            }
            Err(again) => request = again,
        }
        std::thread::yield_now();
    }
}

/// The buffer comes back; the data is there after a flush. S-I2
pub fn put(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 10);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let request = epoch.rput(right, 0, contents(world.rank(), 10)).unwrap();
    let (mut buffer, result) = request.wait();
    result.unwrap();
    assert_eq!(buffer, contents(world.rank(), 10));
    buffer.fill(7);
    epoch.flush(right).unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), contents(neighbour(world, -1), 10));
    world.barrier().unwrap();
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// The buffer comes back filled. S-I3
pub fn get(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 3_000);
    for target in world.ranks() {
        let epoch = window.lock_all().unwrap();
        let (buffer, result) = epoch.rget(target, 1, vec![0u64; 2_999]).unwrap().wait();
        result.unwrap();
        assert_eq!(buffer, contents(target, 3_000)[1..]);
        epoch.unlock().unwrap();
    }
    window.free().unwrap();
}

/// A flush completes every request to its target, the first as the last. S-I4
pub fn flushed(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 100);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let get = |at| epoch.rget(right, at, vec![0u64; 10]).unwrap();
    let requests: Vec<_> = (0..90).map(get).collect();
    epoch.flush(right).unwrap();
    for (at, request) in requests.into_iter().enumerate() {
        let Ok((got, Ok(()))) = request.test() else { panic!("complete since the flush") };
        assert_eq!(got, contents(right, 100)[at..at + 10]);
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// Testing makes progress by itself. S-I6
pub fn test(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 100);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let get = epoch.rget(right, 0, vec![0u64; 50]).unwrap();
    let put = epoch.rput(right, 50, vec![u64::from(world.rank()); 50]).unwrap();
    assert_eq!(poll(get), contents(right, 50));
    assert_eq!(poll(put), [u64::from(world.rank()); 50]);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window)[50..], [u64::from(neighbour(world, -1)); 50]);
    window.free().unwrap();
}

/// The end of the epoch completes requests; waiting afterwards is allowed. S-I4 S-I5 S-E6
pub fn wait_after_unlock(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 200);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let get = epoch.rget(right, 0, vec![0u64; 100]).unwrap();
    let put = epoch.rput(right, 100, vec![u64::from(world.rank()); 100]).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    // Complete at the target although nobody has waited for the request.
    assert_eq!(local_words(&window)[100..], [u64::from(neighbour(world, -1)); 100]);
    let Ok((got, Ok(()))) = get.test() else { panic!("complete since the unlock") };
    assert_eq!(got, contents(right, 100));
    assert_eq!(put.wait().0, [u64::from(world.rank()); 100]);
    window.free().unwrap();
}

/// Waiting in another epoch, of another kind. S-I4
pub fn wait_in_another_epoch(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 10);
    let right = neighbour(world, 1);
    let lock = window.lock(right, LockKind::Shared).unwrap();
    let first = lock.rget(0, vec![0u64; 10]).unwrap();
    lock.unlock().unwrap();
    let epoch = window.lock_all().unwrap();
    let second = epoch.rget(right, 5, vec![0u64; 5]).unwrap();
    assert_eq!(first.wait().0, contents(right, 10));
    epoch.unlock().unwrap();
    let epoch = window.fence(Assert::NONE).unwrap();
    assert_eq!(second.wait().0, contents(right, 10)[5..]);
    epoch.end().unwrap();
    window.free().unwrap();
}

/// Nobody waits: the buffers stay with the runtime until they are no longer needed. S-I8
pub fn dropped(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 100);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    for i in 0..20u64 {
        drop(epoch.rget(right, 0, vec![0u64; 50]).unwrap());
        drop(epoch.rput(right, 50, vec![i; 50]).unwrap());
    }
    epoch.flush(right).unwrap();
    drop(epoch.rget(right, 0, vec![0u64; 100]).unwrap());
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert!(local_words(&window)[50..].iter().all(|word| *word < 20));
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Forgetting a request leaks its buffer and nothing else.
pub fn forgotten(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 100);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    core::mem::forget(epoch.rget(right, 0, vec![0u64; 100]).unwrap());
    core::mem::forget(epoch.rput(right, 0, vec![1u64; 100]).unwrap());
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [1; 100]);
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// A request to the null target is complete at once. S-I7 S-G4
pub fn null(universe: &Universe) {
    let window = filled(universe, 1);
    let epoch = window.lock_all().unwrap();
    let get = epoch.rget(Rank::NULL, 9, vec![5u64; 3]).unwrap();
    let put = epoch.rput(Rank::NULL, 9, vec![5u64; 3]).unwrap();
    let Ok((buffer, Ok(()))) = get.test() else { panic!("complete at once") };
    assert_eq!(buffer, [5; 3]);
    assert_eq!(put.wait(), (vec![5; 3], Ok(())));
    epoch.unlock().unwrap();
    let lock = window.lock(Rank::NULL, LockKind::Shared).unwrap();
    assert_eq!(lock.rget(0, vec![1u8]).unwrap().wait(), (vec![1], Ok(())));
    lock.unlock().unwrap();
    window.free().unwrap();
}

/// Boxed slices are buffers too.
pub fn boxed(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 4);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let boxed: Box<[u64]> = vec![0; 4].into();
    let (got, result) = epoch.rget(right, 0, boxed).unwrap().wait();
    result.unwrap();
    assert_eq!(*got, contents(right, 4)[..]);
    let (_, result) = epoch.rput(right, 0, got).unwrap().wait();
    result.unwrap();
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// More requests than there are slots, waited for in another order than issued. S-G2
pub fn many(universe: &Universe) {
    let world = universe.world();
    let count = if cfg!(miri) {
        10
    } else if near(universe) {
        2_000
    } else {
        300
    };
    let window = filled(universe, count);
    let epoch = window.lock_all().unwrap();
    let target = |i: usize| neighbour(world, i as i64);
    let start = |i| epoch.rget(target(i), i as u64, vec![0u64]).unwrap();
    let requests: Vec<_> = (0..count).map(start).collect();
    for (i, request) in requests.into_iter().enumerate().rev() {
        let (buffer, result) = request.wait();
        result.unwrap();
        assert_eq!(buffer, [u64::from(target(i)) * 1000 + i as u64]);
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// A request that cannot be made is refused, and nothing happens.
pub fn refused(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let epoch = window.lock_all().unwrap();
    let right = neighbour(world, 1);
    let put = epoch.rput(right, 1, vec![1u64; 2]).err().unwrap();
    assert!(
        matches!(put, RmaError::OutOfRange { target, disp: 1, len: 16, .. } if target == right)
    );
    let get = epoch.rget(Rank(world.size()), 0, vec![0u64]).err().unwrap();
    assert!(matches!(get, RmaError::NoSuchRank { .. }));
    let get = epoch.rget(right, u64::MAX, vec![0u64]).err().unwrap();
    assert!(matches!(get, RmaError::OutOfRange { disp: u64::MAX, .. }));
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [0, 0]);
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Requests under a lock on one target; unlocking completes them. S-I5
pub fn in_a_lock(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 20);
    let right = neighbour(world, 1);
    let lock = window.lock(right, LockKind::Exclusive).unwrap();
    let get = lock.rget(0, vec![0u64; 10]).unwrap();
    let put = lock.rput(10, vec![3u64; 10]).unwrap();
    lock.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window)[10..], [3; 10]);
    let Ok((got, Ok(()))) = get.test() else { panic!("complete since the unlock") };
    assert_eq!(got, contents(right, 10));
    drop(put);
    window.free().unwrap();
}

/// Requests of nothing. S-I7
pub fn empty(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 2);
    let epoch = window.lock_all().unwrap();
    let right = neighbour(world, 1);
    assert_eq!(epoch.rget(right, 2, Vec::<u64>::new()).unwrap().wait(), (vec![], Ok(())));
    assert_eq!(epoch.rput(right, 2, Vec::<u64>::new()).unwrap().wait(), (vec![], Ok(())));
    epoch.unlock().unwrap();
    window.free().unwrap();
}
