//! What flushes wait for, and which threads hear of failures: also where several of a rank flush.
use rma::{Assert, Config, Op, ProgressAgent, Rank, RmaError, Universe, local_with, simulate};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

fn by_messages() -> Config {
    let mut config = Config::default();
    config.hint("rma_path", "messages").unwrap();
    config
}

/// Two threads flush one target: what one of them put is there after its own flush.
#[test]
fn a_flush_beside_a_flush_waits_too() {
    const ROUNDS: u64 = 5000;
    let (flushed, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let ranks = local_with(by_messages(), 2, |universe| {
        let world = universe.world();
        let window = world.window(1, 8).allocate().unwrap();
        world.barrier().unwrap();
        if world.rank() == Rank(0) {
            while !stop.load(SeqCst) {
                let put = flushed.load(SeqCst);
                assert!(window.local().load::<u64>(0).unwrap() >= put, "{put} was flushed");
            }
        } else {
            let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    while flushed.load(SeqCst) < ROUNDS {
                        epoch.flush(Rank(0)).unwrap();
                    }
                });
                for i in 1..=ROUNDS {
                    epoch.put(Rank(0), 0, &[i]).unwrap();
                    epoch.flush(Rank(0)).unwrap();
                    flushed.store(i, SeqCst);
                }
            });
            epoch.unlock().unwrap();
            stop.store(true, SeqCst);
        }
        world.barrier().unwrap();
    });
    ranks.unwrap();
}

/// A flush that gives up says so, and so does each after it, of whichever thread, until what was
/// put is there.
#[test]
fn a_flush_gives_up_until_all_is_done() {
    let mut config = by_messages();
    config.progress_agent = ProgressAgent::Never;
    config.wait_timeout = Some(Duration::from_millis(500));
    let (serve, told, over) = (Barrier::new(2), Barrier::new(2), AtomicBool::new(false));
    let ranks = local_with(config, 2, |universe| {
        let world = universe.world();
        let window = world.window(4, 8).allocate().unwrap();
        world.barrier().unwrap();
        if world.rank() == Rank(0) {
            // Serves no origin until then.
            serve.wait();
            while !over.load(SeqCst) {
                universe.progress();
            }
            assert_eq!([0, 1].map(|i| window.local().load(i)), [Ok(7u64), Ok(8)]);
            return;
        }
        let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
        let fails = || {
            let flush = epoch.flush(Rank(0));
            assert!(matches!(flush, Err(RmaError::Timeout { .. })), "{flush:?}");
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                epoch.put(Rank(0), 0, &[7u64]).unwrap();
                told.wait();
                told.wait();
                fails();
                told.wait();
                told.wait();
                assert_eq!(epoch.flush(Rank(0)), Ok(()), "it is there now");
            });
            told.wait();
            fails();
            epoch.put(Rank(0), 1, &[8u64]).unwrap();
            fails();
            told.wait();
            told.wait();
            serve.wait();
            assert_eq!(epoch.flush(Rank(0)), Ok(()), "it is there now");
            assert_eq!(epoch.flush(Rank(0)), Ok(()), "and nothing else");
            told.wait();
        });
        over.store(true, SeqCst);
    });
    ranks.unwrap();
}

fn get_of_nothing(universe: Universe) {
    let world = universe.world();
    let window = world.window(0, 1).create_dynamic().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(1) {
        let epoch = window.lock_all().unwrap();
        // Nothing is attached there.
        let request = epoch.rget(Rank(0), 4096, vec![7u64; 4]).unwrap();
        let flushed = epoch.flush(Rank(0));
        assert!(matches!(flushed, Err(RmaError::NotAttached { .. })), "{flushed:?}");
        let end = request.wait().map_err(|refused| refused.error);
        assert!(matches!(end, Err(RmaError::NotAttached { .. })), "{end:?}");
        epoch.unlock().unwrap();
    }
    world.barrier().unwrap();
}

/// A get that failed says so to its request, whatever a flush has said before.
#[test]
fn a_request_hears_of_its_failure() {
    local_with(by_messages(), 2, get_of_nothing).unwrap();
    for seed in 0..20 {
        simulate(2, seed, get_of_nothing).unwrap();
    }
}

/// A flush that gives up leaves the get of a request to it, which gives up by itself.
#[test]
fn a_request_has_a_deadline_of_its_own() {
    let mut config = by_messages();
    config.wait_timeout = Some(Duration::from_millis(100));
    config.progress_agent = ProgressAgent::Never;
    let over = AtomicBool::new(false);
    let ranks = local_with(config, 2, |universe| {
        let world = universe.world();
        let window = world.window(4, 8).allocate().unwrap();
        world.barrier().unwrap();
        if world.rank() == Rank(0) {
            // Serves no origin.
            while !over.load(SeqCst) {
                thread::yield_now();
            }
            return;
        }
        let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
        let request = epoch.rget(Rank(0), 0, vec![7u64; 4]).unwrap();
        epoch.flush(Rank(0)).unwrap_err();
        let end = request.wait().map_err(|refused| refused.error);
        over.store(true, SeqCst);
        assert!(matches!(end, Err(RmaError::Timeout { .. })), "{end:?}");
    });
    ranks.unwrap();
}

/// A blocking fetch says that it failed, also beside the flushes of another thread.
#[test]
fn a_fetch_hears_of_its_failure() {
    let ranks = local_with(by_messages(), 2, |universe| {
        let world = universe.world();
        let window = world.window(0, 1).create_dynamic().unwrap();
        world.barrier().unwrap();
        if world.rank() == Rank(1) {
            let (epoch, stop) = (window.lock_all().unwrap(), AtomicBool::new(false));
            let fetched = thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(SeqCst) {
                        _ = epoch.flush(Rank(0));
                    }
                });
                let fetch = |_| epoch.fetch_and_op(Rank(0), 4096, Op::Sum, 1u64);
                let fetched = (0..2000).map(fetch).filter(Result::is_ok).count();
                stop.store(true, SeqCst);
                fetched
            });
            assert_eq!(fetched, 0, "nothing is attached there");
            _ = epoch.unlock();
        }
        world.barrier().unwrap();
    });
    ranks.unwrap();
}

fn flush_again(universe: Universe) {
    let world = universe.world();
    let window = world.window(0, 1).create_dynamic().unwrap();
    let mine = window.attach(vec![0u64; 64]).unwrap();
    let address = world.allgather(&[mine.address()]).unwrap()[0];
    if world.rank() == Rank(1) {
        let epoch = window.lock_all().unwrap();
        drop(epoch.rget(Rank(0), 64, vec![0u64; 1]));
        for i in 0..64u64 {
            epoch.put(Rank(0), address + 8 * i, &[1u64]).unwrap();
        }
        let first = epoch.flush(Rank(0));
        assert!(matches!(first, Err(RmaError::NotAttached { .. })), "{first:?}");
        epoch.flush(Rank(0)).unwrap();
        world.barrier().unwrap();
        epoch.unlock().unwrap();
    } else {
        world.barrier().unwrap();
        let mut all = [0u64; 64];
        window.region(&mine).unwrap().read(0, &mut all).unwrap();
        assert_eq!(all, [1; 64]);
    }
    world.barrier().unwrap();
}

/// A flush that reports a failure has waited for everything else, too.
#[test]
fn a_flush_that_fails_forgets_nothing() {
    for seed in 0..100 {
        simulate(2, seed, flush_again).unwrap();
    }
}

fn fence(universe: Universe) {
    let world = universe.world();
    let window = world.window(0, 1).create_dynamic().unwrap();
    let epoch = window.fence(Assert::NONE).unwrap();
    if world.rank() == Rank(1) {
        // Nothing is attached there; told later.
        epoch.put(Rank(0), 64, &[1u64]).unwrap();
    }
    let end = epoch.end();
    assert_eq!(end.is_err(), world.rank() == Rank(1), "{end:?}");
    world.barrier().unwrap();
}

fn free(universe: Universe) {
    let world = universe.world();
    let window = world.window(0, 1).create_dynamic().unwrap();
    let epoch = window.fence(Assert::NONE).unwrap();
    if world.rank() == Rank(1) {
        epoch.put(Rank(0), 64, &[1u64]).unwrap();
    }
    drop(epoch);
    let refused = window.free().unwrap_err();
    let why = matches!(refused.error, RmaError::NotAttached { .. });
    assert_eq!(why, world.rank() == Rank(1), "{refused}");
    // The failure was told: now it can be freed.
    refused.value.unwrap().free().unwrap();
}

/// An operation that failed is its origin's affair: that one takes part in a fence, or in a free,
/// all the same.
#[test]
fn a_rank_that_has_failed_takes_part() {
    local_with(by_messages(), 3, fence).unwrap();
    local_with(by_messages(), 3, free).unwrap();
    for seed in 0..20 {
        simulate(3, seed, fence).unwrap();
        simulate(3, seed, free).unwrap();
    }
}

fn detach(universe: Universe) {
    const LEN: usize = 30_000;
    let world = universe.world();
    let window = world.window(0, 1).create_dynamic().unwrap();
    let mine = window.attach(vec![1u64; LEN]).unwrap();
    let address = world.allgather(&[mine.address()]).unwrap()[0];
    if world.rank() == Rank(0) {
        assert_eq!(window.detach(mine).unwrap().len(), LEN);
    } else {
        let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
        let mut got = vec![0u64; LEN];
        let get = epoch.get(Rank(0), address, &mut got);
        assert!(matches!(get, Ok(()) | Err(RmaError::NotAttached { .. })), "{get:?}");
        let put = epoch.put(Rank(0), address, &got).and_then(|()| epoch.flush(Rank(0)));
        assert!(matches!(put, Ok(()) | Err(RmaError::NotAttached { .. })), "{put:?}");
        epoch.unlock().unwrap();
    }
    world.barrier().unwrap();
}

/// A region that is detached between two pieces of an operation is no window that was freed.
#[test]
fn a_region_may_go_in_the_middle_of_an_operation() {
    for seed in 0..50 {
        simulate(3, seed, detach).unwrap();
    }
}
