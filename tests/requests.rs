//! Lock requests that are refused, or not in line: what they leave alone.
mod watched;

use rma::{Assert, LockKind, Rank, RmaError, Window, local_with};
use std::mem::forget;
use std::sync::Barrier;
use watched::{by, patient, watched, words};

/// A request that is refused takes the mark of the lock that is held.
#[test]
fn a_refused_request_leaves_the_mark_of_the_lock() {
    for path in ["auto", "messages"] {
        watched(20, move || {
            local_with(by(path), 2, |universe| {
                let window = words(&universe, 1);
                let other = universe.world().rank().on_ring(1, 2);
                let lock = window.lock(other, LockKind::Exclusive).unwrap();
                let refused = window.request_lock(other, LockKind::Shared).map(drop);
                assert!(matches!(refused, Err(RmaError::AlreadyLocked { .. })));
                let again = window.try_lock(other, LockKind::Shared).map(|it| it.is_some());
                assert!(
                    matches!(again, Err(RmaError::AlreadyLocked { .. })),
                    "{path}: the mark is gone: {again:?}"
                );
                lock.unlock().unwrap();
                universe.world().barrier().unwrap();
            })
            .unwrap();
        });
    }
}

/// And so a rank leaves with a lock, and does not say so: others wait for ever.
#[test]
fn a_rank_that_leaves_after_a_refused_request_says_what_it_holds() {
    for path in ["auto", "messages"] {
        watched(20, move || {
            let left = Barrier::new(2);
            local_with(patient(path, 5), 2, |universe| {
                let window = words(&universe, 1);
                if universe.world().rank() == Rank(1) {
                    forget(window.lock(Rank(0), LockKind::Exclusive).unwrap());
                    drop(window.request_lock(Rank(0), LockKind::Shared));
                    drop((window, universe));
                    left.wait();
                } else {
                    left.wait();
                    let end = window.lock(Rank(0), LockKind::Exclusive).map(drop);
                    assert!(matches!(end, Err(RmaError::PeerLeft { .. })), "{path}: {end:?}");
                }
            })
            .unwrap();
        });
    }
}

/// And a start epoch loses a target.
#[test]
fn a_refused_request_leaves_a_start_epoch_alone() {
    for path in ["auto", "messages"] {
        watched(20, move || {
            local_with(by(path), 2, |universe| {
                let window = words(&universe, 1);
                let rank = universe.world().rank();
                let other = rank.on_ring(1, 2);
                let group = [other];
                if rank == Rank(0) {
                    let epoch = window.start(&group, Assert::NONE).unwrap();
                    drop(window.request_lock(other, LockKind::Shared));
                    let put = epoch.put(other, 0, &[7u64]);
                    epoch.complete().unwrap();
                    universe.world().barrier().unwrap();
                    put.unwrap_or_else(|error| panic!("{path}: {error}"));
                } else {
                    let epoch = window.post(&group, Assert::NONE).unwrap();
                    epoch.wait().unwrap();
                    universe.world().barrier().unwrap();
                }
            })
            .unwrap();
        });
    }
}

/// A request that is in no line opens its epoch later, whatever is open by then.
#[test]
fn a_request_does_not_open_what_is_refused() {
    for path in ["auto", "messages"] {
        watched(20, move || {
            let (held, asked) = (Barrier::new(2), Barrier::new(2));
            let given = Barrier::new(2);
            local_with(patient(path, 5), 2, |universe| {
                let window = words(&universe, 1);
                if universe.world().rank() == Rank(0) {
                    let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
                    held.wait();
                    asked.wait();
                    lock.unlock().unwrap();
                    given.wait();
                    universe.world().barrier().unwrap();
                } else {
                    held.wait();
                    let request = window.request_lock(Rank(0), LockKind::Shared).unwrap();
                    asked.wait();
                    given.wait();
                    let fence = window.start(&[Rank(0)], Assert::NO_CHECK);
                    let opened = fence.is_ok();
                    let lock = request.wait();
                    let both = opened && lock.is_ok();
                    _ = (lock.map(drop), fence.map(forget));
                    universe.world().barrier().unwrap();
                    assert!(!both, "{path}: a lock epoch beside a start epoch");
                }
            })
            .unwrap();
        });
    }
}

/// Lock_all is let in, and then excludes the request of its own rank.
#[test]
fn a_request_does_not_wait_for_its_own_lock_all() {
    for path in ["auto", "messages"] {
        watched(20, move || {
            let (held, asked) = (Barrier::new(2), Barrier::new(2));
            local_with(patient(path, 3), 2, |universe| {
                let window = words(&universe, 1);
                if universe.world().rank() == Rank(0) {
                    let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
                    held.wait();
                    asked.wait();
                    lock.unlock().unwrap();
                    universe.world().barrier().unwrap();
                } else {
                    held.wait();
                    let request = window.request_lock(Rank(0), LockKind::Exclusive).unwrap();
                    asked.wait();
                    let all = window.lock_all();
                    let end = request.wait().map(drop);
                    let opened = all.is_ok();
                    drop(all);
                    universe.world().barrier().unwrap();
                    assert!(
                        !(opened && matches!(end, Err(RmaError::Timeout { .. }))),
                        "{path}: it waited for its own lock_all until the deadline"
                    );
                }
            })
            .unwrap();
        });
    }
}

/// A request that its universe does not outlive.
#[test]
fn requests_after_their_universe() {
    for path in ["auto", "messages"] {
        for how in 0..4 {
            watched(30, move || {
                let (asked, left) = (Barrier::new(2), Barrier::new(2));
                let (given, over) = (Barrier::new(2), Barrier::new(2));
                local_with(patient(path, 10), 2, |universe| {
                    let window: &'static Window = Box::leak(Box::new(words(&universe, 1)));
                    universe.world().barrier().unwrap();
                    if universe.world().rank() == Rank(0) {
                        let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
                        universe.world().barrier().unwrap();
                        asked.wait();
                        left.wait();
                        lock.unlock().unwrap();
                        given.wait();
                        over.wait();
                    } else {
                        universe.world().barrier().unwrap();
                        let mut request = window.request_lock(Rank(0), LockKind::Shared).unwrap();
                        asked.wait();
                        drop(universe);
                        left.wait();
                        given.wait();
                        match how {
                            0 => drop(request),
                            1 => {
                                let end = request.test();
                                assert!(
                                    matches!(end, Err(RmaError::Left { .. })),
                                    "{path} {end:?}"
                                );
                            }
                            2 => {
                                let end = request.wait().map(drop);
                                assert!(
                                    matches!(end, Err(RmaError::Left { .. })),
                                    "{path} {end:?}"
                                );
                            }
                            _ => forget(request),
                        }
                        over.wait();
                    }
                })
                .unwrap();
            });
        }
    }
}
