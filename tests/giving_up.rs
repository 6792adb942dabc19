//! Collective operations that some ranks give up, and ranks that go on after they have left: which
//! ranks' waits end because of that, and which do not.
use rma::testing::processes;
use rma::{Assert, CollectiveError, Communicator, Config, LockKind, Op, Rank, RmaError, Universe};
use rma::{Window, local_with};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

/// With a deadline, so that a wait without an end is an error that no test expects.
fn patient(cpus: u32) -> Config {
    let mut config = Config::default();
    config.cpus = Some(cpus);
    config.wait_timeout = Some(Duration::from_secs(120));
    config
}

/// A barrier in which all ranks took part ends well, although some are in the next already, and
/// give that up.
#[test]
fn what_all_took_part_in_ends_well() {
    for _ in 0..400 {
        let over = Barrier::new(8);
        let ranks = local_with(patient(64), 8, |universe| {
            let world = universe.world().clone();
            let first = world.barrier();
            if world.rank() == Rank(0) {
                drop((world, universe));
            } else {
                let second = world.barrier();
                assert!(matches!(second, Err(CollectiveError::PeerLeft { .. })), "{second:?}");
            }
            over.wait();
            first.unwrap();
        });
        ranks.unwrap();
    }
}

/// Rank 0 leaves before it takes part. Rank 1 waits for it, gives up, tells 2 and 3, and leaves,
/// while the message ring of 3 is full. So 3 hears of it from 2 only.
#[test]
fn what_is_told_is_told_by_each() {
    const PAIRS: usize = 40;
    for cpus in [1, 64] {
        let (left, gave_up, over) = (Barrier::new(2), Barrier::new(2), Barrier::new(2));
        let (full, gone) = (Barrier::new(2), Barrier::new(3));
        let sent = AtomicU64::new(0);
        let ranks = local_with(patient(cpus), 5, |universe| {
            let world = universe.world();
            let mine = [3, 4].contains(&world.rank().0).then_some(0);
            // 4 is their root, and stops when the message ring of 3 is full.
            let pair = |_| world.split(mine, -i64::from(world.rank().0)).unwrap();
            let pairs: Vec<Communicator> = (0..PAIRS).filter_map(pair).collect();
            world.barrier().unwrap();
            let bcast = || world.bcast(&mut [0u64], Rank(0)).unwrap_err();
            let by_zero =
                |error| matches!(error, CollectiveError::PeerLeft { world, .. } if world.0 == 0);
            match world.rank().0 {
                0 => {
                    drop((pairs, universe));
                    left.wait();
                    return;
                }
                1 => {
                    full.wait();
                    left.wait();
                    assert!(by_zero(bcast()));
                    gave_up.wait();
                    drop((pairs, universe));
                    gone.wait();
                    return;
                }
                2 => {
                    gave_up.wait();
                    assert!(by_zero(bcast()));
                    gone.wait();
                }
                3 => {
                    // So many are in the message ring, or wait for room there.
                    while sent.load(SeqCst) < 11 {
                        thread::yield_now();
                    }
                    full.wait();
                    gone.wait();
                    let error = bcast();
                    let left = matches!(error, CollectiveError::PeerLeft { .. });
                    assert!(left, "{error}");
                }
                _ => {
                    for pair in &pairs {
                        for _ in 0..15 {
                            if pair.bcast(&mut [0u64; 512], Rank(0)).is_ok() {
                                sent.fetch_add(1, SeqCst);
                            }
                        }
                    }
                }
            }
            if world.rank() != Rank(4) {
                over.wait();
            }
        });
        ranks.unwrap();
    }
}

/// No peer answers a rank that has left, and so it waits for none.
#[test]
fn a_rank_that_has_left_waits_for_no_other() {
    type Act = fn(&Communicator) -> Result<(), CollectiveError>;
    let acts: [Act; 5] = [
        |world| world.barrier(),
        |world| world.allgather(&[1u64]).map(drop),
        |world| world.allreduce(&[1u64], Op::Sum).map(drop),
        |world| world.dup().map(drop),
        |world| world.bcast(&mut [1u64], Rank(1)),
    ];
    for (cpus, act) in [1, 64].into_iter().flat_map(|cpus| acts.map(|act| (cpus, act))) {
        let (left, over) = (Barrier::new(2), Barrier::new(3));
        let ranks = local_with(patient(cpus), 3, |universe| {
            let world = universe.world().clone();
            world.barrier().unwrap();
            let end = match world.rank() {
                Rank(0) => {
                    drop(universe);
                    left.wait();
                    act(&world)
                }
                Rank(1) => {
                    left.wait();
                    act(&world)
                }
                _ => act(&world),
            };
            over.wait();
            // Where no peer has to answer, all may find each other in a barrier.
            let ended = match (world.rank(), end) {
                (_, Ok(())) => true,
                (Rank(0), Err(error)) => matches!(error, CollectiveError::Left { .. }),
                (_, Err(error)) => matches!(error, CollectiveError::PeerLeft { .. }),
            };
            assert!(ended, "{end:?}");
        });
        ranks.unwrap();
    }
}

/// Nor for what it asked for by messages, before it left or after.
#[test]
fn a_rank_that_has_left_waits_for_no_answer() {
    type Act = fn(&Window) -> Result<(), RmaError>;
    let acts: [Act; 4] = [
        |window| window.lock_all_with(Assert::NO_CHECK)?.get(Rank(0), 0, &mut [0u64]),
        |window| window.lock_all_with(Assert::NO_CHECK)?.put(Rank(0), 0, &vec![1u64; 50_000]),
        |window| {
            let epoch = window.lock_all_with(Assert::NO_CHECK)?;
            epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).map(drop)
        },
        |window| {
            let epoch = window.lock_all_with(Assert::NO_CHECK)?;
            epoch.put(Rank(0), 0, &[1u64])?;
            epoch.unlock()
        },
    ];
    let mut config = patient(2);
    config.hint("rma_path", "messages").unwrap();
    for act in acts {
        let over = Barrier::new(2);
        let ranks = local_with(config.clone(), 2, |universe: Universe| {
            let window = universe.world().window(50_000, 8).allocate().unwrap();
            if universe.world().rank() == Rank(1) {
                let lock = window.lock(Rank(0), LockKind::Shared).unwrap();
                drop(universe);
                let ends = [lock.unlock(), act(&window)];
                over.wait();
                assert_eq!(ends, [Err(RmaError::Left { window: window.id() }); 2]);
            } else {
                over.wait();
            }
        });
        ranks.unwrap();
    }
}

/// Leaves the process no descriptor until they are dropped.
fn use_up_descriptors() -> Vec<File> {
    let mut open = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        open.push(file);
        assert!(open.len() < 1 << 20, "descriptors have a limit");
    }
    open
}

/// A rank that could not map what a new communicator shares goes on, and so do the others.
#[test]
fn a_communicator_is_made_everywhere_or_nowhere() {
    processes(9, |universe| {
        let world = universe.world();
        world.barrier().unwrap();
        let open = (world.rank() == Rank(4)).then(use_up_descriptors);
        let mut made = Vec::new();
        let error = loop {
            match world.dup() {
                Ok(comm) => made.push(comm),
                Err(error) => break error,
            }
        };
        drop(open);
        match world.rank() {
            Rank(4) => assert!(matches!(error, CollectiveError::Import(_)), "{error}"),
            _ => assert!(
                matches!(error, CollectiveError::GaveUp { world, .. } if world.0 == 4),
                "{error}"
            ),
        }
        world.barrier().unwrap();
        let counts = world.allgather(&[made.len() as u64]).unwrap();
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    });
}

/// A rank that is short of something says so, and blames no other.
#[test]
fn a_rank_that_cannot_reach_others_blames_none() {
    processes(9, |universe| {
        let world = universe.world();
        world.barrier().unwrap();
        let open = (world.rank() == Rank(1)).then(use_up_descriptors);
        let end = world.alltoall(&[1u64; 9]);
        drop(open);
        if world.rank() == Rank(1) {
            // Unless it slept before, and so has looked at all the others already.
            assert!(matches!(end, Ok(_) | Err(CollectiveError::Import(_))), "{end:?}");
        }
        // The others wait for it, and hear what became of it.
    });
}

/// What combines elements may not use the communicator that it is used in.
#[test]
fn a_reduction_inside_of_another_is_refused() {
    let ranks = local_with(patient(2), 2, |universe| {
        let world = universe.world();
        let add = |a: u64, b: u64| {
            let nested = world.barrier();
            assert!(matches!(nested, Err(CollectiveError::Nested { .. })), "{nested:?}");
            a + b
        };
        let sum = world.reduce(&[1u64], add, Rank(0)).unwrap();
        assert_eq!(sum, (world.rank() == Rank(0)).then(|| vec![2]));
        world.barrier().unwrap();
    });
    ranks.unwrap();
}

/// A thread that is in a wait when its rank leaves is let go, and keeps no other rank.
#[test]
fn a_wait_under_way_ends_when_its_rank_leaves() {
    for cpus in [1, 64] {
        let (waits, over) = (Barrier::new(2), Barrier::new(2));
        let ranks = local_with(patient(cpus), 2, |universe| {
            let world = universe.world().clone();
            if world.rank() == Rank(1) {
                waits.wait();
                let end = world.barrier();
                over.wait();
                // Rank 0 may have arrived before it left.
                let ends = matches!(end, Ok(()) | Err(CollectiveError::PeerLeft { .. }));
                assert!(ends, "{end:?}");
                return;
            }
            let end = thread::scope(|scope| {
                let thread = scope.spawn(|| world.barrier());
                // It waits, or comes to it when the rank has left.
                thread::yield_now();
                drop(universe);
                thread.join().unwrap()
            });
            waits.wait();
            over.wait();
            assert!(matches!(end, Err(CollectiveError::Left { .. })), "{end:?}");
        });
        ranks.unwrap();
    }
}

/// A panic inside of a reduction, caught, leaves a communicator that others may use.
#[test]
fn a_reduction_that_panics_is_no_operation_under_way() {
    let ranks = local_with(patient(2), 2, |universe| {
        let pair = universe.world().dup().unwrap();
        if pair.rank() == Rank(0) {
            let panics = |_: u64, _: u64| -> u64 { panic!("on purpose") };
            let reduce = || pair.reduce(&[1u64], panics, Rank(0));
            catch_unwind(AssertUnwindSafe(reduce)).unwrap_err();
        } else {
            assert_eq!(pair.reduce(&[1u64], Op::Sum, Rank(0)).unwrap(), None);
        }
        pair.barrier().unwrap();
        universe.world().barrier().unwrap();
    });
    ranks.unwrap();
}

/// A rank that cannot go on with an operation gives up that, and the next ends well: payloads
/// beyond the limit, of the rank's own or passed on for others; lengths that differ; a panic in a
/// reduction.
#[test]
fn what_one_rank_cannot_go_on_with_ends_for_all() {
    type Operation = fn(&Communicator) -> Result<(), CollectiveError>;
    fn of(world: &Communicator, mine: usize, others: usize) -> Vec<u8> {
        vec![0; if world.rank() == Rank(1) { mine } else { others }]
    }
    let cases: [(&str, Operation); 6] = [
        ("bcast", |world| world.bcast(&mut [0u8; 1001], Rank(0))),
        ("gatherv", |world| world.gatherv(&of(world, 1001, 10), Rank(0)).map(drop)),
        ("allgather", |world| world.allgather(&[0u8; 600]).map(drop)),
        ("allgatherv", |world| world.allgatherv(&of(world, 900, 110)).map(drop)),
        ("reduce", |world| world.reduce(&of(world, 9, 10), Op::Sum, Rank(0)).map(drop)),
        ("panic", |world| {
            if world.rank() > Rank(0) {
                return world.reduce(&[1u64; 100], Op::Sum, Rank(1)).map(drop);
            }
            let panics = |_: u64, _: u64| -> u64 { panic!("on purpose") };
            let reduce = || world.reduce(&[1u64; 100], panics, Rank(1));
            catch_unwind(AssertUnwindSafe(reduce)).unwrap_err();
            Ok(())
        }),
    ];
    for (name, operation) in cases {
        for cpus in [1, 64] {
            let mut config = patient(cpus);
            config.collective_bytes = 1000;
            let ends = local_with(config, 5, |universe| {
                let world = universe.world();
                let end = operation(world);
                world.barrier().unwrap();
                assert_eq!(world.allreduce(&[1u64], Op::Sum), Ok(vec![5]), "{name}");
                end
            });
            let ends = ends.unwrap();
            assert!(ends.iter().any(Result::is_err), "{name}: {ends:?}");
            let known = |end: &Result<(), CollectiveError>| {
                use CollectiveError::{GaveUp, LengthMismatch, TooLarge};
                matches!(end, Ok(()) | Err(GaveUp { .. } | LengthMismatch { .. } | TooLarge { .. }))
            };
            assert!(ends.iter().all(known), "{name}: {ends:?}");
        }
    }
}

/// A thread that waits for its turn on a communicator has a deadline, as every wait: two
/// reductions, each of which uses the other's communicator, in two threads.
#[test]
fn a_rank_that_waits_for_its_turn_has_a_deadline() {
    let mut config = patient(1);
    config.wait_timeout = Some(Duration::from_millis(200));
    let meet = Barrier::new(2);
    let ranks = local_with(config, 2, |universe| {
        let world = universe.world();
        let other = world.dup().unwrap();
        if world.rank() == Rank(1) {
            _ = world.reduce(&[1u64], Op::Sum, Rank(0));
            _ = other.reduce(&[1u64], Op::Sum, Rank(0));
            return;
        }
        let within = |comm: &Communicator, used: &Communicator| {
            let add = |a: u64, b: u64| {
                meet.wait();
                let end = used.barrier();
                // The second gets its turn when the first has given up, and finds rank 1 gone.
                let ends = matches!(
                    end,
                    Err(CollectiveError::Timeout { .. } | CollectiveError::PeerLeft { .. })
                );
                assert!(ends, "{end:?}");
                a + b
            };
            comm.reduce(&[1u64], add, Rank(0)).unwrap();
        };
        thread::scope(|scope| {
            scope.spawn(|| within(world, &other));
            scope.spawn(|| within(&other, world));
        });
    });
    ranks.unwrap();
}

/// A communicator is made of payloads, whatever a program allows its own.
#[test]
fn a_world_of_few_bytes_is_made() {
    for bytes in [0, 63] {
        let mut config = patient(1);
        config.collective_bytes = bytes;
        local_with(config, 3, |universe| universe.world().dup().unwrap().barrier().unwrap())
            .unwrap();
    }
}

/// The words of a communicator in which an operation failed are no other's: a peer that does
/// not know yet may still come there.
#[test]
fn words_of_a_failed_operation_are_kept() {
    for cpus in [1, 64] {
        let (left, came) = (Barrier::new(3), AtomicU64::new(0));
        let ranks = local_with(patient(cpus), 3, |universe| {
            let world = universe.world();
            let pair = world.split((world.rank() != Rank(2)).then_some(0), 0).unwrap();
            let all = world.dup().unwrap();
            if world.rank() == Rank(2) {
                drop((all, pair, universe));
                left.wait();
                return;
            }
            left.wait();
            let pair = pair.unwrap();
            if world.rank() == Rank(1) {
                let end = all.gather(&[1u64], Rank(1));
                assert!(matches!(end, Err(CollectiveError::PeerLeft { .. })), "{end:?}");
                // No good any more.
                drop(all);
                let window = pair.window(1, 8).allocate().unwrap();
                let fence = window.fence(Assert::NONE).unwrap();
                assert_eq!(came.load(SeqCst), 1, "a fence ends when all have come");
                fence.end().unwrap();
            } else {
                assert_eq!(all.gather(&[1u64], Rank(1)), Ok(None));
                let window = pair.window(1, 8).allocate().unwrap();
                // It cannot know yet that a peer has left.
                let end = all.barrier();
                assert!(matches!(end, Err(CollectiveError::PeerLeft { .. })), "{end:?}");
                // Time for the other to go on, if something lets it.
                (0..10_000).for_each(|_| thread::yield_now());
                came.store(1, SeqCst);
                window.fence(Assert::NONE).unwrap().end().unwrap();
            }
        });
        ranks.unwrap();
    }
}

/// Memory that peers reach by its address is never anything else's, also when its rank has left.
#[test]
fn memory_that_is_reached_by_address_is_not_given_back() {
    const LEN: usize = 4 << 20;
    let mut config = patient(1);
    config.hint("rma_path", "cma").unwrap();
    let (left, put) = (Barrier::new(2), Barrier::new(2));
    let ranks = local_with(config, 2, |universe| {
        let world = universe.world().clone();
        let window = world.window(LEN, 1).allocate().unwrap();
        world.barrier().unwrap();
        if world.rank() == Rank(0) {
            drop((window, world, universe));
            // Its own, and no other rank's.
            let mine: Vec<Vec<u8>> = (0..3).map(|_| vec![0u8; LEN - 8192]).collect();
            left.wait();
            put.wait();
            assert!(mine.iter().flatten().all(|byte| *byte == 0));
        } else {
            left.wait();
            let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
            let end = epoch.put(Rank(0), 0, &vec![0xabu8; LEN]);
            put.wait();
            end.unwrap();
        }
    });
    ranks.unwrap();
}

/// A rank whose window is of no use says why, and not that a peer is stuck: ranks that are in
/// different calls, of which one tells more than the other.
#[test]
fn ranks_in_different_calls_hear_of_it() {
    let ranks = local_with(patient(2), 2, |universe| {
        let window = universe.world().window(1, 8).hint("rma_path", "messages").unwrap();
        let window = window.allocate().unwrap();
        let error = if window.rank() == Rank(0) {
            window.fence(Assert::NONE).map(drop).unwrap_err()
        } else {
            window.free().unwrap_err().error
        };
        let class = error.class();
        let of_both = matches!(
            error,
            RmaError::Collective {
                error: CollectiveError::LengthMismatch { .. } | CollectiveError::GaveUp { .. },
                ..
            }
        );
        assert!(of_both, "{error}");
        universe.world().barrier().unwrap();
        (error.to_string(), class)
    });
    let errors = ranks.unwrap();
    let told = errors.iter().filter(|(_, class)| *class == rma::ErrorClass::Count);
    assert!(told.count() >= 1, "{errors:?}");
}

/// Arguments that one rank gets wrong end the operation for all, and the next ends well.
#[test]
fn others_hear_of_arguments_that_are_refused() {
    type Act = fn(&Communicator, bool) -> Result<(), CollectiveError>;
    let acts: [Act; 8] = [
        |world, wrong| world.scan(&[1u64], if wrong { Op::MaxLoc } else { Op::Sum }).map(drop),
        |world, wrong| world.scatter(&[1u64; 4], Rank(if wrong { 9 } else { 0 })).map(drop),
        |world, wrong| {
            world.scatterv::<u64>(&vec![vec![]; 4 - usize::from(wrong)], Rank(2)).map(drop)
        },
        |world, wrong| world.allgather_in_place(&mut vec![1u64; if wrong { 3 } else { 4 }]),
        |world, wrong| world.bcast(&mut [1u64], if wrong { Rank(9) } else { Rank(0) }),
        |world, wrong| world.allreduce(&[1u64], if wrong { Op::MaxLoc } else { Op::Sum }).map(drop),
        |world, wrong| world.alltoall(&vec![1u64; if wrong { 3 } else { 4 }]).map(drop),
        |world, wrong| {
            let counts: &[usize] = if wrong { &[1; 3] } else { &[1; 4] };
            world.reduce_scatter(&[1u64; 4], counts, Op::Sum).map(drop)
        },
    ];
    let ranks = local_with(patient(2), 4, |universe| {
        let world = universe.world();
        for act in acts {
            let wrong = world.rank() == Rank(2);
            match act(world, wrong) {
                Err(CollectiveError::GaveUp { world, .. }) if !wrong => assert_eq!(world.0, 2),
                // Some are done before they need anything of it.
                Ok(()) if !wrong => {}
                end => assert!(wrong && end.is_err(), "{end:?}"),
            }
            world.barrier().unwrap();
        }
        act_well(world);
    });
    ranks.unwrap();
}

fn act_well(world: &Communicator) {
    assert_eq!(world.allreduce(&[1u64], Op::Sum).unwrap(), [u64::from(world.size())]);
}
