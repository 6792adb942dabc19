//! Ranks that leave in order, early, late or without a word: which ranks that disturbs or not.
use rma::{
    CollectiveError, Config, Lock, LockKind, Op, ProgressAgent, Rank, RmaError, Universe, Window,
    local, local_with,
};
use std::fs;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Operations go that way.
fn by(path: &str) -> Config {
    let mut config = Config::default();
    config.hint("rma_path", path).unwrap();
    config
}

fn words(universe: &Universe, count: usize) -> Window {
    universe.world().window(count, 8).allocate().unwrap()
}

/// A rank that has what another broadcast leaves at once, also one that would pass it on in a tree.
#[test]
fn a_rank_that_has_read_a_broadcast_may_leave() {
    for round in 0..300 {
        let mut config = Config::default();
        config.cpus = Some(1);
        let ranks = local_with(config, 8, |universe| {
            let mut bytes = vec![universe.world().rank().0 as u8; 16 << 10];
            universe.world().bcast(&mut bytes, Rank(0))?;
            assert!(bytes.iter().all(|byte| *byte == 0));
            Ok::<(), CollectiveError>(())
        });
        for (rank, end) in ranks.unwrap().into_iter().enumerate() {
            end.unwrap_or_else(|error| panic!("round {round}, rank {rank}: {error}"));
        }
    }
}

/// A rank that gives back every lock it took has nothing that others wait for, whatever is left to
/// do in the words of its queue nodes.
#[test]
fn a_rank_that_gave_its_locks_back_disturbs_no_other() {
    for round in 0..300u32 {
        let ranks = local(8, |universe| {
            let window = words(&universe, 1);
            let rank = universe.world().rank();
            for _ in 0..20 + (rank.0 * 7 + round) % 20 {
                let lock = window.lock(Rank(0), LockKind::Exclusive)?;
                lock.fetch_and_op(0, Op::Sum, 1u64)?;
                lock.unlock()?;
            }
            drop(window);
            Ok::<(), RmaError>(())
        });
        for (rank, end) in ranks.unwrap().into_iter().enumerate() {
            end.unwrap_or_else(|error| panic!("round {round}, rank {rank}: {error}"));
        }
    }
}

/// A rank that has left is not inside the region that another one is in.
#[test]
fn a_rank_that_has_left_keeps_no_region() {
    const LEN: usize = 4 << 20;
    for _ in 0..10 {
        let met = Barrier::new(3);
        let ranks = local(3, |universe| {
            let world = universe.world();
            let window = world.window(0, 1).create_dynamic().unwrap();
            let mine = (world.rank() == Rank(0)).then(|| window.attach(vec![1u64; LEN]).unwrap());
            let mut address = [mine.as_ref().map_or(0, |mine| mine.address())];
            world.bcast(&mut address, Rank(0)).unwrap();
            if world.rank() == Rank(2) {
                drop((window, universe));
                met.wait();
                return;
            }
            met.wait();
            match mine {
                Some(mine) => {
                    // The other's get is under way, has not begun, or is done.
                    thread::yield_now();
                    assert_eq!(window.detach(mine).unwrap().len(), LEN);
                }
                None => {
                    let mut got = vec![0u64; LEN];
                    let epoch = window.lock_all_with(rma::Assert::NO_CHECK).unwrap();
                    match epoch.get(Rank(0), address[0], &mut got) {
                        Ok(()) => assert_eq!(got[LEN - 1], 1),
                        Err(error) => assert!(matches!(error, RmaError::NotAttached { .. })),
                    }
                }
            }
        });
        ranks.unwrap();
    }
}

/// A rank that has left takes nothing that others would wait for, in windows that it leaked.
#[test]
fn a_rank_that_has_left_takes_no_lock() {
    for path in ["auto", "messages"] {
        let left = Barrier::new(2);
        let ranks = local_with(by(path), 2, |universe| {
            let window: &'static Window = Box::leak(Box::new(words(&universe, 1)));
            let dynamic = universe.world().window(0, 1).create_dynamic().unwrap();
            let dynamic: &'static Window = Box::leak(Box::new(dynamic));
            let mine = dynamic.attach(vec![1u64]).unwrap();
            let at = universe.world().allgather(&[mine.address()]).unwrap()[0];
            window.lock(Rank(0), LockKind::Shared).unwrap().unlock().unwrap();
            universe.world().barrier().unwrap();
            if universe.world().rank() == Rank(1) {
                let epoch = dynamic.lock_all_with(rma::Assert::NO_CHECK).unwrap();
                drop(universe);
                let refusal = RmaError::Left { window: window.id() };
                for kind in [LockKind::Shared, LockKind::Exclusive] {
                    assert_eq!(window.lock(Rank(0), kind).map(forget), Err(refusal), "{path}");
                    assert_eq!(window.lock(Rank(1), kind).map(forget), Err(refusal), "{path}");
                }
                assert_eq!(window.lock_all().map(forget), Err(refusal), "{path}");
                if path == "auto" {
                    let refusal = RmaError::Left { window: dynamic.id() };
                    assert_eq!(epoch.get(Rank(0), at, &mut [0u64]), Err(refusal));
                }
                left.wait();
                return;
            }
            left.wait();
            for target in universe.world().ranks().filter(|_| path == "auto") {
                window.lock(target, LockKind::Exclusive).unwrap().unlock().unwrap();
            }
            window.lock(Rank(0), LockKind::Exclusive).unwrap().unlock().unwrap();
            assert_eq!(dynamic.detach(mine).unwrap(), [1]);
        });
        ranks.unwrap();
    }
}

/// A rank that only tries for a lock, again and again, hears that its holder is gone with it.
#[test]
fn a_rank_that_tries_hears_that_the_holder_is_gone() {
    for (path, dies) in [("auto", false), ("messages", false), ("auto", true), ("messages", true)] {
        let held = Barrier::new(2);
        let ends = catch_unwind(AssertUnwindSafe(|| {
            local_with(by(path), 2, |universe| {
                let window = words(&universe, 1);
                if universe.world().rank() == Rank(1) {
                    forget(window.lock(Rank(0), LockKind::Exclusive).unwrap());
                    held.wait();
                    assert!(!dies, "on purpose");
                    return None;
                }
                held.wait();
                loop {
                    match window.try_lock(Rank(0), LockKind::Exclusive) {
                        Ok(None) => thread::yield_now(),
                        end => return Some(end.map(|lock| lock.map(forget))),
                    }
                }
            })
        }));
        let Ok(ends) = ends else {
            assert!(dies, "{path}");
            continue;
        };
        let end = ends.unwrap().remove(0);
        assert!(matches!(end, Some(Err(RmaError::PeerLeft { .. }))), "{path}: {end:?}");
    }
}

/// A rank that leaves says what it holds, also of windows that it leaked.
#[test]
fn what_a_leaver_holds_is_told() {
    for path in ["auto", "messages"] {
        let mut config = by(path);
        config.wait_timeout = Some(Duration::from_secs(20));
        let ranks = local_with(config, 2, |universe| {
            let window = words(&universe, 1);
            if universe.world().rank() == Rank(1) {
                forget(window.lock(Rank(0), LockKind::Exclusive).unwrap());
                universe.world().barrier().unwrap();
                forget(window);
                return;
            }
            universe.world().barrier().unwrap();
            let error = window.lock(Rank(0), LockKind::Exclusive).map(forget).unwrap_err();
            assert!(matches!(error, RmaError::PeerLeft { .. }), "{path}: {error}");
        });
        ranks.unwrap();
    }
}

/// Two threads of a rank do not take one lock, and what one of them forgets is told.
#[test]
fn threads_do_not_share_a_lock() {
    for path in ["auto", "messages"] {
        let mut config = by(path);
        config.wait_timeout = Some(Duration::from_secs(60));
        let (refused, left) = (AtomicBool::new(false), Barrier::new(2));
        let ranks = local_with(config, 2, |universe| {
            let window = words(&universe, 1);
            if universe.world().rank() == Rank(0) {
                let first = window.lock(Rank(0), LockKind::Exclusive).unwrap();
                universe.world().barrier().unwrap();
                while !refused.load(Relaxed) {
                    universe.progress();
                    thread::yield_now();
                }
                first.unlock().unwrap();
                left.wait();
                let error = window.lock(Rank(0), LockKind::Exclusive).err().unwrap();
                assert!(matches!(error, RmaError::PeerLeft { .. }), "{path}: {error}");
                return;
            }
            universe.world().barrier().unwrap();
            let lock = || {
                let lock = window.lock(Rank(0), LockKind::Shared);
                refused.fetch_or(lock.is_err(), Relaxed);
                lock.map(forget)
            };
            let ends = thread::scope(|scope| {
                let other = scope.spawn(lock);
                [lock(), other.join().unwrap()]
            });
            drop((window, universe));
            left.wait();
            let refusal = |end: &&_| matches!(end, Err(RmaError::AlreadyLocked { .. }));
            assert_eq!(ends.iter().filter(refusal).count(), 1, "{path}: {ends:?}");
            assert!(ends.iter().any(Result::is_ok), "{path}: {ends:?}");
        });
        ranks.unwrap();
    }
}

/// A rank that opened an epoch with `NO_CHECK` keeps none out, and holds no lock.
#[test]
fn an_unchecked_lock_is_nothing_to_others() {
    for path in ["auto", "messages"] {
        let mut config = by(path);
        // A waiter waits so long: long enough for the others on a busy machine.
        config.wait_timeout = Some(Duration::from_secs(5));
        let (left, over) = (Barrier::new(3), Barrier::new(2));
        let ranks = local_with(config, 3, |universe| {
            let window = words(&universe, 1);
            match universe.world().rank().0 {
                0 => {
                    left.wait();
                    let error = window.lock(Rank(0), LockKind::Exclusive).err().unwrap();
                    over.wait();
                    assert!(matches!(error, RmaError::Timeout { .. }), "{path}: {error}");
                }
                1 => {
                    let kind = LockKind::Shared;
                    let lock = window.lock_with(Rank(0), kind, rma::Assert::NO_CHECK).unwrap();
                    forget(lock);
                    let error = window.lock(Rank(0), kind).err().unwrap();
                    assert!(matches!(error, RmaError::AlreadyLocked { .. }), "{path}: {error}");
                    drop((window, universe));
                    left.wait();
                }
                _ => {
                    let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
                    left.wait();
                    over.wait();
                    drop(lock);
                }
            }
        });
        ranks.unwrap();
    }
}

/// A rank whose thread is over has left, whatever became of its universe.
#[test]
fn a_forgotten_universe_does_not_stay() {
    let ranks = local(2, |universe| {
        if universe.world().rank() == Rank(1) {
            forget(universe);
            return;
        }
        let error = universe.world().barrier().unwrap_err();
        assert!(matches!(error, CollectiveError::PeerLeft { .. }), "{error}");
    });
    ranks.unwrap();
}

/// Threads of a rank that look for regions at the same time find what is attached.
#[test]
fn what_is_attached_is_found_by_all_threads() {
    let ranks = local(2, |universe| {
        let world = universe.world();
        let window = world.window(0, 1).create_dynamic().unwrap();
        let over = world.window(1, 8).allocate().unwrap();
        let lasting = window.attach(vec![5u64]).unwrap();
        if world.rank() == Rank(0) {
            // New regions make others read the directory again.
            let epoch = over.lock_all().unwrap();
            world.allgather(&[lasting.address()]).unwrap();
            while epoch.fetch_and_op(Rank(0), 0, Op::NoOp, 0u64).unwrap() == 0 {
                drop(window.detach(window.attach(vec![0u8]).unwrap()).unwrap());
            }
            epoch.unlock().unwrap();
        } else {
            let at = world.allgather(&[lasting.address()]).unwrap()[0];
            let epoch = window.lock_all_with(rma::Assert::NO_CHECK).unwrap();
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        let nowhere = epoch.get(Rank(0), 8, &mut [0u8]);
                        assert!(matches!(nowhere, Err(RmaError::NotAttached { .. })));
                    }
                });
                for _ in 0..20_000 {
                    let mut got = [0u64];
                    epoch.get(Rank(0), at, &mut got).unwrap();
                    assert_eq!(got, [5]);
                }
                done.store(true, Relaxed);
            });
            epoch.unlock().unwrap();
            let epoch = over.lock_all().unwrap();
            epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
            epoch.unlock().unwrap();
        }
        world.barrier().unwrap();
        drop(window.detach(lasting).unwrap());
    });
    ranks.unwrap();
}

/// Bytes of shared memory that this process has touched.
fn shared_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssShmem:")).unwrap();
    1024 * line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
}

/// What is refused takes no memory.
#[test]
fn a_refused_attach_keeps_nothing() {
    let mut config = Config::default();
    config.dynamic_regions = 1;
    let ranks = local_with(config, 1, |universe| {
        let window = universe.world().window(0, 1).create_dynamic().unwrap();
        let first = window.attach(vec![0u8]).unwrap();
        let before = shared_memory();
        for _ in 0..40 {
            let refused = window.attach(vec![1u8; 32 << 20]).unwrap_err();
            assert!(matches!(refused.error, RmaError::TooManyRegions { limit: 1, .. }));
        }
        // Less than half of it: other tests of this process have windows, too.
        let grown = shared_memory().saturating_sub(before);
        assert!(grown < 20 * (32 << 20), "{grown} bytes more");
        drop(window.detach(first).unwrap());
    });
    ranks.unwrap();
}

/// A panic takes the window, and is caught.
fn lose(window: Window) {
    let panics = || {
        let _lost = window;
        panic!("on purpose");
    };
    catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
}

/// A rank that has caught a panic serves while it computes, whatever window the panic took.
#[test]
fn a_panic_that_was_caught_does_not_end_the_agent() {
    let (caught, served) = (Barrier::new(2), Barrier::new(2));
    let ranks = local_with(by("messages"), 2, |universe| {
        let (lost, window) = (words(&universe, 1), words(&universe, 1));
        if universe.world().rank() == Rank(0) {
            lose(lost);
            caught.wait();
        } else {
            caught.wait();
            let epoch = window.lock_all_with(rma::Assert::NO_CHECK).unwrap();
            assert_eq!(epoch.get(Rank(0), 0, &mut [1u64]), Ok(()));
            epoch.unlock().unwrap();
        }
        served.wait();
    });
    ranks.unwrap();
}

/// Nor is it ended by the waits that follow.
#[test]
fn a_panic_that_was_caught_ends_no_service() {
    let served = Barrier::new(2);
    let ranks = local_with(by("messages"), 2, |universe| {
        let (lost, window) = (words(&universe, 1), words(&universe, 1));
        if universe.world().rank() == Rank(0) {
            lose(lost);
        }
        // Each waits for an answer, and computes then.
        let other = universe.world().rank().on_ring(1, 2);
        let epoch = window.lock_all_with(rma::Assert::NO_CHECK).unwrap();
        assert_eq!(epoch.fetch_and_op(other, 0, Op::Sum, 1u64), Ok(0));
        epoch.unlock().unwrap();
        served.wait();
    });
    ranks.unwrap();
}

/// A rank that has done its part may leave: what it sent is not missed because another thread of
/// the receiver has just taken it, or a third rank's message is in front of it.
#[test]
fn a_rank_that_did_its_part_is_not_missed() {
    for round in 0..200 {
        let mut config = by("messages");
        config.cpus = Some(64);
        let over = AtomicBool::new(false);
        let ranks = local_with(config, 4, |universe| {
            let world = universe.world();
            let rank = world.rank();
            let pair = world.split((rank.0 < 2).then_some(0), 0).unwrap();
            let window = world.window(1 << 16, 1).allocate().unwrap();
            world.barrier().unwrap();
            let bcasts = || {
                let pair = pair.as_ref().unwrap();
                (0..20).try_for_each(|_| pair.bcast(&mut [0u64; 8], Rank(1)))
            };
            // The others fail once a rank has seen enough.
            match rank.0 {
                0 => thread::scope(|scope| {
                    scope.spawn(|| {
                        let epoch = window.lock_all_with(rma::Assert::NO_CHECK).unwrap();
                        while !over.load(Relaxed) {
                            _ = epoch.get(Rank(2), 0, &mut [0u8; 4000]);
                        }
                    });
                    let end = bcasts();
                    over.store(true, Relaxed);
                    end
                }),
                1 => bcasts(),
                _ => {
                    let epoch = window.lock_all_with(rma::Assert::NO_CHECK).unwrap();
                    while !over.load(Relaxed) {
                        _ = epoch.put(Rank(0), 0, &[1u8; 8000]);
                    }
                    _ = epoch.unlock();
                    Ok(())
                }
            }
        });
        for (rank, end) in ranks.unwrap().into_iter().enumerate() {
            end.unwrap_or_else(|error| panic!("round {round}, rank {rank}: {error}"));
        }
    }
}

/// A rank that gave up gets it later, and gives it back at once: to itself as to others.
#[test]
fn a_lock_that_timed_out_is_in_no_others_way() {
    let mut config = by("messages");
    config.progress_agent = ProgressAgent::Never;
    config.wait_timeout = Some(Duration::from_secs(1));
    let late = Barrier::new(2);
    let ranks = local_with(config, 2, |universe| {
        let (world, window) = (universe.world(), words(&universe, 1));
        world.barrier().unwrap();
        if world.rank() == Rank(1) {
            let lock = window.lock(Rank(0), LockKind::Exclusive).and_then(Lock::unlock);
            assert!(matches!(lock, Err(RmaError::Timeout { .. })), "{lock:?}");
            let all = window.lock_all().map(drop);
            assert!(matches!(all, Err(RmaError::Timeout { .. })), "{all:?}");
            late.wait();
        } else {
            // Serves no origin.
            late.wait();
        }
        world.barrier().unwrap();
        for _ in 0..2 {
            window.lock(Rank(0), LockKind::Exclusive).and_then(Lock::unlock).unwrap();
            window.lock_all().and_then(|all| all.unlock()).unwrap();
        }
        world.barrier().unwrap();
    });
    ranks.unwrap();
}
