//! Operations that own their buffer.
use crate::help::{local_words, near, neighbour, still_works, words};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use rma_core::{
    Assert, Layout, LockAll, LockKind, Op, OriginBuffer, Pair, Rank, Refused, Request, RmaError,
    Universe, Window,
};

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
    while !request.test() {
        std::thread::yield_now();
    }
    request.wait().unwrap()
}

/// The buffer comes back; the data is there after a flush. S-I2
pub fn put(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 10);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let request = epoch.rput(right, 0, contents(world.rank(), 10)).unwrap();
    let mut buffer = request.wait().unwrap();
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
        let buffer = epoch.rget(target, 1, vec![0u64; 2_999]).unwrap().wait().unwrap();
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
    for (at, mut request) in requests.into_iter().enumerate() {
        assert!(request.test(), "complete since the flush");
        let got = request.wait().unwrap();
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
    let mut get = epoch.rget(right, 0, vec![0u64; 100]).unwrap();
    let put = epoch.rput(right, 100, vec![u64::from(world.rank()); 100]).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    // Complete at the target although the origin has not waited for the request.
    assert_eq!(local_words(&window)[100..], [u64::from(neighbour(world, -1)); 100]);
    assert!(get.test(), "complete since the unlock");
    let got = get.wait().unwrap();
    assert_eq!(got, contents(right, 100));
    assert_eq!(put.wait().unwrap(), [u64::from(world.rank()); 100]);
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
    assert_eq!(first.wait().unwrap(), contents(right, 10));
    epoch.unlock().unwrap();
    let epoch = window.fence(Assert::NONE).unwrap();
    assert_eq!(second.wait().unwrap(), contents(right, 10)[5..]);
    epoch.end().unwrap();
    window.free().unwrap();
}

/// The origin waits for none: buffers stay with the runtime until they are no longer needed. S-I8
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
    let mut get = epoch.rget(Rank::NULL, 9, vec![5u64; 3]).unwrap();
    let put = epoch.rput(Rank::NULL, 9, vec![5u64; 3]).unwrap();
    assert!(get.test(), "complete at once");
    assert_eq!(get.wait().unwrap(), [5; 3]);
    assert_eq!(put.wait().unwrap(), [5; 3]);
    epoch.unlock().unwrap();
    let lock = window.lock(Rank::NULL, LockKind::Shared).unwrap();
    assert_eq!(lock.rget(0, vec![1u8]).unwrap().wait().unwrap(), [1]);
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
    let got = epoch.rget(right, 0, boxed).unwrap().wait().unwrap();
    assert_eq!(*got, contents(right, 4)[..]);
    epoch.rput(right, 0, got).unwrap().wait().unwrap();
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
        assert_eq!(request.wait().unwrap(), [u64::from(target(i)) * 1000 + i as u64]);
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// A request that cannot be made is refused with its buffer, and nothing happens.
pub fn refused(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let epoch = window.lock_all().unwrap();
    let right = neighbour(world, 1);
    let beyond = |error| match error {
        RmaError::OutOfRange { target, disp: 1, len: 16, .. } => target == right,
        _ => false,
    };
    let put = epoch.rput(right, 1, vec![1u64, 2]).err().unwrap();
    assert!(put.value == [1, 2] && beyond(put.error), "{put}");
    let get = epoch.rget(right, 1, [3u64, 4]).err().unwrap();
    assert!(get.value == [3, 4] && beyond(get.error), "{get}");
    let add = epoch.raccumulate(right, 1, Op::Sum, vec![5u64, 6]).err().unwrap();
    assert!(add.value == [5, 6] && beyond(add.error), "{add}");
    let result = vec![7u64, 8].into_boxed_slice();
    let fetch = epoch.rget_accumulate(right, 1, Op::Sum, &[1u64; 2], result).err().unwrap();
    assert!(*fetch.value == [7, 8] && beyond(fetch.error), "{fetch}");
    let uneven = epoch.rget_accumulate(right, 0, Op::Sum, &[1u64; 2], 9u64).err().unwrap();
    assert!(uneven.value == 9 && matches!(uneven.error, RmaError::WrongCount { .. }), "{uneven}");
    // By layouts of either side, too.
    let (word, pair) = (Layout::element::<u64>(), Layout::element::<u64>().contiguous(2).unwrap());
    let put = epoch.rput(right, pair.at(1), vec![1u64, 2]).err().unwrap();
    assert!(put.value == [1, 2], "{put}");
    let get = epoch.rget(right, 1, pair.of([3u64, 4])).err().unwrap();
    assert!(get.value == [3, 4] && beyond(get.error), "{get}");
    let add = epoch.raccumulate(right, pair.at(0), Op::Sum, word.of(vec![5u64])).err().unwrap();
    assert!(add.value == [5] && matches!(add.error, RmaError::SignatureMismatch { .. }), "{add}");
    let fetch =
        epoch.rget_accumulate(right, pair.at(0), Op::Sum, &[1u64; 2], [9u64]).err().unwrap();
    assert!(fetch.value == [9], "{fetch}");
    let get = epoch.rget(Rank(world.size()), 0, vec![0u64]).err().unwrap();
    assert!(matches!(get.error, RmaError::NoSuchRank { .. }));
    let get = epoch.rget(right, u64::MAX, 5u64).err().unwrap();
    assert!(get.value == 5 && matches!(get.error, RmaError::OutOfRange { disp: u64::MAX, .. }));
    let asked = || -> Result<u64, RmaError> { Ok(epoch.rget(right, 2, 0u64)?.wait()?) };
    assert!(matches!(asked(), Err(RmaError::OutOfRange { disp: 2, .. })));
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
    let mut get = lock.rget(0, vec![0u64; 10]).unwrap();
    let put = lock.rput(10, vec![3u64; 10]).unwrap();
    lock.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window)[10..], [3; 10]);
    assert!(get.test(), "complete since the unlock");
    let got = get.wait().unwrap();
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
    assert!(epoch.rget(right, 2, Vec::<u64>::new()).unwrap().wait().unwrap().is_empty());
    assert!(epoch.rput(right, 2, Vec::<u64>::new()).unwrap().wait().unwrap().is_empty());
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// Arrays and single values are buffers too. S-I2 S-I3
pub fn arrays_and_values(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 20);
    let (right, word) = (neighbour(world, 1), Layout::element::<u64>());
    let (theirs, every) = (contents(right, 20), word.vector(3, 1, 2).unwrap());
    let epoch = window.lock_all().unwrap();
    assert_eq!(epoch.rget(right, 2, [0u64; 3]).unwrap().wait().unwrap(), theirs[2..5]);
    assert_eq!(epoch.rget(right, 5, 0u64).unwrap().wait().unwrap(), theirs[5]);
    assert_eq!(epoch.rget(right, 0, [0u64; 0]).unwrap().wait().unwrap(), [0u64; 0]);
    let got = epoch.rget(right, every.at(4), [0u64; 3]).unwrap().wait().unwrap();
    assert_eq!(got, [theirs[4], theirs[6], theirs[8]]);
    let got = epoch.rget(right, 4, every.of([7u64; 6]).starting_at(1)).unwrap().wait().unwrap();
    assert_eq!(got, [7, theirs[4], 7, theirs[5], 7, theirs[6]]);
    assert_eq!(epoch.rget(right, word.at(9), 0u64).unwrap().wait().unwrap(), theirs[9]);

    assert_eq!(epoch.rput(right, 0, 70u64).unwrap().wait().unwrap(), 70);
    let pair = Pair { value: 2.5f64, index: 8u64 };
    drop(epoch.rput(right, 12, pair).unwrap());
    drop(epoch.rput(right, 1, [71u64, 72]).unwrap());
    drop(epoch.rput(right, every.at(14), [1u64, 2, 3]).unwrap());
    epoch.flush(right).unwrap();
    assert_eq!(epoch.raccumulate(right, 0, Op::Sum, 5u64).unwrap().wait().unwrap(), 5);
    drop(epoch.raccumulate(right, 1, Op::Sum, [5u64, 6]).unwrap());
    let old = epoch.rget_accumulate(right, 0, Op::Sum, &[1u64], 0u64).unwrap();
    assert_eq!(old.wait().unwrap(), 75);
    let old = epoch.rget_accumulate(right, 1, Op::NoOp, &[], [0u64; 2]).unwrap();
    let found = epoch.rget(right, 12, Pair { value: 0.0f64, index: 0u64 }).unwrap();
    core::mem::forget(epoch.rget(right, 0, [0u64; 20]).unwrap());
    epoch.unlock().unwrap();
    assert_eq!((old.wait().unwrap(), found.wait().unwrap()), ([76, 78], pair));
    world.barrier().unwrap();
    let (mine, before) = (local_words(&window), contents(world.rank(), 20));
    assert_eq!(mine[..3], [76, 76, 78]);
    assert_eq!(mine[14..19], [1, before[15], 2, before[17], 3]);
    window.free().unwrap();
}

/// Gets from two targets, and what they are to find.
fn from_two<'w>(epoch: &LockAll<'w>, targets: [Rank; 2]) -> (Vec<Get<'w>>, Vec<Vec<u64>>) {
    let places = (0..10).flat_map(|i| targets.map(|target| (target, i * 7)));
    places
        .map(|(target, at)| {
            let get = epoch.rget(target, at, vec![0u64; 20]).unwrap();
            (get, contents(target, 100)[at..at + 20].to_vec())
        })
        .unzip()
}

type Get<'w> = Request<'w, Vec<u64>>;

/// Several are waited for together. S-I4 S-I6
pub fn all_of_them(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 100);
    let epoch = window.lock_all().unwrap();
    let targets = [neighbour(world, 1), neighbour(world, 2)];
    let (requests, expected) = from_two(&epoch, targets);
    let got: Result<Vec<_>, Refused<_>> = Request::wait_all(requests).into_iter().collect();
    assert_eq!(got.unwrap(), expected);
    assert!(Request::wait_all(Vec::<Get<'_>>::new()).is_empty());
    let (requests, expected) = from_two(&epoch, targets);
    epoch.unlock().unwrap();
    let got = Request::wait_all(requests).into_iter().map(Result::unwrap);
    assert!(got.eq(expected));
    window.free().unwrap();
}

/// Whichever is complete, until none is left. S-I4 S-I6
pub fn any_of_them(universe: &Universe) {
    let world = universe.world();
    let (window, other) = (filled(universe, 100), filled(universe, 1));
    let epoch = window.lock_all().unwrap();
    let right = neighbour(world, 1);
    let targets = [right, neighbour(world, 2)];
    let (mut requests, mut expected) = from_two(&epoch, targets);
    while let Some((index, got)) = Request::wait_any(&mut requests) {
        assert_eq!(got.unwrap(), expected.remove(index));
    }
    assert!(expected.is_empty());

    (requests, expected) = from_two(&epoch, targets);
    while !requests.is_empty() {
        let Some(index) = Request::test_any(&mut requests) else {
            std::thread::yield_now();
            continue;
        };
        let mut complete = requests.remove(index);
        assert!(complete.test(), "it stays so");
        assert_eq!(complete.wait().unwrap(), expected.remove(index));
    }
    assert_eq!(Request::test_any(&mut requests), None);

    // Of two windows, puts among them, and one that is complete.
    let lock = other.lock(right, LockKind::Shared).unwrap();
    let put = epoch.rput(Rank::NULL, 0, vec![1u64]).unwrap();
    (requests, expected) =
        (vec![lock.rget(0, vec![0u64]).unwrap(), put], vec![contents(right, 1), vec![1]]);
    while let Some((index, got)) = Request::wait_any(&mut requests) {
        assert_eq!(got.unwrap(), expected.remove(index));
    }
    assert!(requests.is_empty() && expected.is_empty());
    lock.unlock().unwrap();
    (requests, expected) = from_two(&epoch, targets);
    epoch.unlock().unwrap();
    assert_eq!(Request::test_any(&mut requests), Some(0), "complete since the unlock");
    let (index, got) = Request::wait_any(&mut requests).unwrap();
    assert_eq!(got.unwrap(), expected[index]);
    drop(requests);
    window.free().unwrap();
    other.free().unwrap();
}

/// As futures: polled by hand, and awaited. S-I6
pub fn polled(universe: &Universe) {
    /// Polls until it is ready.
    fn run<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            std::thread::yield_now();
        }
    }
    let world = universe.world();
    let window = filled(universe, 200);
    let right = neighbour(world, 1);
    let theirs = contents(right, 200);
    let epoch = window.lock_all().unwrap();
    let get = epoch.rget(right, 3, vec![0u64; 100]).unwrap();
    let word = run(epoch.rget(right, 5, 0u64).unwrap()).unwrap();
    assert_eq!((run(get).unwrap(), word), (theirs[3..103].to_vec(), theirs[5]));
    let awaited = async {
        let first = epoch.rget(right, 0, [0u64; 3])?;
        let second = epoch.rget(right, 100, vec![0u64; 100])?;
        let (second, first) = (second.await?, first.await?);
        epoch.rput(right, 0, [9u64]).unwrap().await?;
        epoch.rget(right, 200, 0u64)?.await?;
        Ok::<_, RmaError>((first, second))
    };
    let error = run(awaited).unwrap_err();
    assert!(matches!(error, RmaError::OutOfRange { disp: 200, .. }), "{error}");
    let awaited = async {
        let second = epoch.rget(right, 100, vec![0u64; 100])?;
        let first = epoch.rget(right, 1, [0u64; 3])?.await?;
        Ok::<_, RmaError>((first, second.await?))
    };
    let (first, second) = run(awaited).unwrap();
    assert_eq!((&first[..], &second[..]), (&theirs[1..4], &theirs[100..]));
    // Polled once, and waited for.
    let mut get = epoch.rget(right, 3, vec![0u64; 100]).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let polled = Pin::new(&mut get).poll(&mut context);
    let got = match polled {
        Poll::Ready(got) => {
            drop(get);
            got
        }
        Poll::Pending => get.wait(),
    };
    assert_eq!(got.unwrap(), theirs[3..103]);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window)[..2], [9, u64::from(world.rank()) * 1000 + 1]);
    window.free().unwrap();
}
