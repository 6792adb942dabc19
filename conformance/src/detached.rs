//! Memory that is detached while peers operate there (MPI 4.1, section 12.2.4).
use crate::help::{neighbour, times, words};
use rma_core::{LockAll, Op, Rank, RmaError, Universe};

/// Words of a region: all but the last are put, the last counts.
const LEN: usize = 40;
/// Instead of an address.
const OVER: u64 = u64::MAX;

/// Whether an operation is done; if not, nothing was attached there.
fn is_done(end: Result<(), RmaError>) -> bool {
    let not_attached = matches!(end, Err(RmaError::NotAttached { target: Rank(0), .. }));
    assert!(end.is_ok() || not_attached, "{end:?}");
    end.is_ok()
}

/// Regions come and go at one rank, the next in the place of the one before, while others operate
/// on what they have last heard of: all is done where it was meant to be, or refused, and what was
/// detached is its owner's alone. S-L6 S-L7
pub fn come_and_gone(universe: &Universe) {
    let world = universe.world();
    let window = world.window(0, 1).create_dynamic().unwrap();
    let flags = words(world, 1);
    let (told, epoch) = (flags.lock_all().unwrap(), window.lock_all().unwrap());
    let mut stale = 0;
    if world.rank() == Rank(0) {
        let mut back = Vec::new();
        for _ in 0..times(universe, 400) {
            let region = window.attach(vec![0u64; LEN]).unwrap();
            let address = region.address();
            told.fetch_and_op(Rank(0), 0, Op::Replace, address).unwrap();
            // Others use it meanwhile, as the chance will have it.
            for rank in world.ranks() {
                told.fetch_and_op(rank, 0, Op::NoOp, 0u64).unwrap();
            }
            std::thread::yield_now();
            let words = window.detach(region).unwrap();
            let meant = words[..LEN - 1].iter().all(|word| [0, address].contains(word));
            assert!(meant && words[LEN - 1] < address, "at {address}: {words:?}");
            back.push((words.clone(), words));
        }
        told.fetch_and_op(Rank(0), 0, Op::Replace, OVER).unwrap();
        world.barrier().unwrap();
        assert!(back.iter().all(|(words, after)| words == after), "changed by others");
    } else {
        loop {
            match told.fetch_and_op(Rank(0), 0, Op::NoOp, 0u64).unwrap() {
                OVER => break,
                0 => _ = universe.transport().relax(0),
                address => {
                    stale = address;
                    use_region(&epoch, address);
                }
            }
        }
        world.barrier().unwrap();
        let get = |address| epoch.get(Rank(0), address, &mut [0u64]);
        assert!(stale == 0 || !is_done(get(stale)), "attached for ever");
    }
    told.unlock().unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    flags.free().unwrap();
    window.free().unwrap();
}

/// Every kind of operation on a region that may be gone.
fn use_region(epoch: &LockAll<'_>, address: u64) {
    let counter = address + 8 * (LEN as u64 - 1);
    let put = epoch.put(Rank(0), address, &[address; LEN - 1]);
    let small = epoch.put(Rank(0), address, &[address]);
    let mut got = [0u64; LEN - 1];
    if is_done(epoch.get(Rank(0), address, &mut got)) {
        assert!(got.iter().all(|word| [0, address].contains(word)), "at {address}: {got:?}");
    }
    is_done(epoch.fetch_and_op(Rank(0), counter, Op::Sum, 1u64).map(drop));
    is_done(epoch.compare_and_swap(Rank(0), counter, OVER, 0u64).map(drop));
    let put = is_done(put) & is_done(small);
    let flushed = is_done(epoch.flush(Rank(0)));
    let accumulated = epoch.accumulate(Rank(0), counter, Op::Sum, &[1u64]);
    is_done(accumulated.and_then(|()| epoch.flush(Rank(0))));
    if put && flushed && is_done(epoch.get(Rank(0), address, &mut got)) {
        assert_eq!(got, [address; LEN - 1], "it was there, and is");
    }
    // What more than one of them had to tell.
    is_done(epoch.flush(Rank(0)));
    epoch.flush(Rank(0)).unwrap();
}

/// What a stale address costs, it costs its window: what comes behind is done, also where a device
/// ends the connection, and in other dynamic windows. S-L6
pub fn beside_others(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let (window, other) = (world.window(0, 1).create_dynamic().unwrap(), words(world, 64));
    let region = window.attach(vec![0u64; 64]).unwrap();
    let at = world.allgather(&[region.address()]).unwrap()[usize::from(right)];
    let steady = world.window(0, 1).create_dynamic().unwrap();
    let kept = steady.attach(vec![0u64; 64]).unwrap();
    let kept_at = world.allgather(&[kept.address()]).unwrap()[usize::from(right)];
    let (epoch, others) = (window.lock_all().unwrap(), other.lock_all().unwrap());
    let steadily = steady.lock_all().unwrap();
    epoch.put(right, at, &[1u64]).unwrap();
    epoch.flush(right).unwrap();
    world.barrier().unwrap();
    assert_eq!(window.detach(region).unwrap()[0], 1);
    world.barrier().unwrap();
    // A rank that has heard of it asks before it puts there again: so the first time is half
    // the ranks'.
    let early = world.rank().0.is_multiple_of(2);
    for (first, value) in [(early, 8), (!early, 9)] {
        let stale = epoch.put(right, at, &[2u64]);
        others.put(right, 0, &[7u64; 64]).unwrap();
        let behind = steadily.put(right, kept_at, &[value; 64]);
        let flush = || stale.and_then(|()| epoch.flush(right));
        let told = first.then(flush);
        others.flush(right).unwrap();
        behind.and_then(|()| steadily.flush(right)).unwrap();
        let mut got = [0u64; 64];
        steadily.get(right, kept_at, &mut got).unwrap();
        assert_eq!(got, [value; 64]);
        let told = told.unwrap_or_else(flush);
        assert!(matches!(told, Err(RmaError::NotAttached { .. })), "{told:?}");
        epoch.flush(right).unwrap();
    }
    epoch.unlock().unwrap();
    others.unlock().unwrap();
    steadily.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(other.local().load(63), Ok(7u64));
    assert_eq!(steady.detach(kept).unwrap(), [9; 64]);
    steady.free().unwrap();
    other.free().unwrap();
    window.free().unwrap();
}

/// Gets memory that is gone, time after time, with `act` behind each get, on memory of `kept` that
/// stays; gives what is there in the end.
fn behind_stale_ones(
    universe: &Universe,
    kept: Vec<u64>,
    mut act: impl FnMut(&LockAll<'_>, Rank, u64),
) -> Vec<u64> {
    const WORDS: usize = 64;
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = world.window(0, 1).create_dynamic().unwrap();
    let kept = window.attach(kept).unwrap();
    let kept_at = world.allgather(&[kept.address()]).unwrap()[usize::from(right)];
    let attach = |_| window.attach(vec![5u64; WORDS]).unwrap();
    let gone: Vec<_> = (0..times(universe, 20)).map(attach).collect();
    let mine: Vec<_> = gone.iter().map(|region| region.address()).collect();
    let all = world.allgather(&mine).unwrap();
    let stale = &all[usize::from(right) * mine.len()..][..mine.len()];
    let epoch = window.lock_all().unwrap();
    // From now on their addresses are known here.
    stale.iter().for_each(|at| epoch.get(right, *at, &mut [0u64]).unwrap());
    world.barrier().unwrap();
    gone.into_iter().for_each(|region| _ = window.detach(region).unwrap());
    world.barrier().unwrap();
    for at in stale {
        let refused = epoch.rget(right, *at, vec![0u64; WORDS]);
        act(&epoch, right, kept_at);
        let error = refused.and_then(|get| get.wait()).unwrap_err().error;
        assert!(matches!(error, RmaError::NotAttached { .. }), "{error}");
        epoch.flush(right).unwrap();
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let kept = window.detach(kept).unwrap();
    window.free().unwrap();
    kept
}

/// A get of memory that is gone takes none with it that was begun behind it. S-L6
pub fn gets_behind_stale_ones(universe: &Universe) {
    const WORDS: usize = 64;
    let kept = behind_stale_ones(universe, vec![6; WORDS], |epoch, right, at| {
        let begin = |_| epoch.rget(right, at, vec![0u64; WORDS]).unwrap();
        let behind: Vec<_> = (0..8).map(begin).collect();
        behind.into_iter().for_each(|get| assert_eq!(get.wait().unwrap(), [6u64; WORDS]));
    });
    assert_eq!(kept, [6; WORDS]);
}

/// Nor does it take atomics: those that were begun behind it happen, each once. S-L6 S-H1
pub fn atomics_behind_stale_ones(universe: &Universe) {
    let mut done = 0;
    let kept = behind_stale_ones(universe, vec![0; 2], |epoch, right, at| {
        for _ in 0..4 {
            assert_eq!(epoch.fetch_and_op(right, at, Op::Sum, 1u64), Ok(done));
            epoch.accumulate(right, at + 8, Op::Sum, &[2u64]).unwrap();
            done += 1;
        }
    });
    assert_eq!(kept, [done, 2 * done]);
}
