//! Ranks as threads of one process (`local`), on a simulated network (`simulate`), and a rank that
//! no launcher started.
use rma::{
    Assert, CollectiveError, Communicator, Config, Error, LockKind, Op, Rank, RmaError, StartError,
    Universe, Window, initialize, local, local_with, simulate,
};
use rma_core::Attached;
use rma_core::transport::WorldRank;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::process::Command;
use std::sync::{Barrier, Mutex};
use std::thread;

fn words(comm: &Communicator, count: usize) -> Window {
    comm.window(count, 8).allocate().unwrap()
}

/// Each rank gets a ticket of rank 0's window.
fn ticket(comm: &Communicator) -> u64 {
    let window = words(comm, 1);
    let epoch = window.lock_all().unwrap();
    let ticket = epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
    epoch.unlock().unwrap();
    window.free().unwrap();
    ticket
}

#[test]
fn results_come_by_rank() {
    for ranks in [1, 2, 7] {
        let results = local(ranks, |universe| {
            let world = universe.world();
            // The last rank is done first.
            if world.rank().0 + 1 < world.size() {
                let mut token = [0u64];
                world.bcast(&mut token, Rank(world.size() - 1)).unwrap();
            } else {
                world.bcast(&mut [0u64], world.rank()).unwrap();
            }
            format!("{} of {}", world.rank(), world.size())
        });
        let expected: Vec<String> = (0..ranks).map(|rank| format!("{rank} of {ranks}")).collect();
        assert_eq!(results.unwrap(), expected);
    }
}

/// Handles of regions are sent to other ranks, and shown to windows of other jobs, where address
/// and window have the same numbers: they name nothing there.
#[test]
fn a_handle_names_a_region_of_its_rank_only() {
    const LEN: usize = 20_000;
    fn refuses(window: &Window, foreign: Attached<Vec<u64>>) -> Attached<Vec<u64>> {
        assert!(matches!(window.region(&foreign), Err(RmaError::ForeignRegion { .. })));
        let refused = window.detach(foreign).unwrap_err();
        assert!(matches!(refused.error, RmaError::ForeignRegion { .. }), "{}", refused.error);
        refused.value
    }
    let handles = Mutex::new(Vec::new());
    // Ranks meet in barriers of their own, which fail if one of them panics.
    let ranks = local(2, |universe| {
        let world = universe.world();
        let window = world.window(0, 1).create_dynamic().unwrap();
        let mine = window.attach(vec![u64::from(world.rank()); LEN]).unwrap();
        if world.rank() == Rank(0) {
            handles.lock().unwrap().push(mine);
            world.barrier().unwrap();
            world.barrier().unwrap();
            let mine = handles.lock().unwrap().pop().unwrap();
            assert_eq!(window.detach(mine).unwrap(), vec![0; LEN]);
        } else {
            world.barrier().unwrap();
            let foreign = handles.lock().unwrap().pop().unwrap();
            assert_eq!(foreign.address(), mine.address());
            let view = window.region(&mine).unwrap();
            let foreign = refuses(&window, foreign);
            let other_job = local(1, |universe| {
                let window = universe.world().window(0, 1).create_dynamic().unwrap();
                window.attach(vec![5u64; LEN]).unwrap()
            });
            let other = other_job.unwrap().pop().unwrap();
            assert_eq!(other.address(), mine.address());
            drop(refuses(&window, other));
            assert_eq!(view.load::<u64>(8 * (LEN as u64 - 1)), Ok(1));
            handles.lock().unwrap().push(foreign);
            world.barrier().unwrap();
        }
        window.free().unwrap();
    });
    ranks.unwrap();
}

/// More regions than the first pages of the directory have slots, without a word of the program.
#[test]
fn a_directory_grows_as_regions_are_attached() {
    const MANY: u64 = 1500;
    let done = local(2, |universe| {
        let world = universe.world();
        let right = world.rank().on_ring(1, 2);
        let window = world.window(0, 1).create_dynamic()?;
        let regions: Result<Vec<_>, _> = (0..MANY).map(|n| window.attach(vec![n])).collect();
        let at: Vec<u64> = regions?.iter().map(Attached::address).collect();
        let theirs = world.allgather(&at)?.split_off(usize::from(right) * MANY as usize);
        let epoch = window.lock_all()?;
        for n in (0..MANY).rev() {
            assert_eq!(epoch.fetch_and_op(right, theirs[n as usize], Op::Sum, 1u64)?, n);
        }
        epoch.unlock()?;
        world.barrier()?;
        window.free()?;
        Ok::<_, Error>(())
    });
    done.unwrap().into_iter().for_each(|rank| rank.unwrap());
}

#[test]
fn results_may_be_errors() {
    let results = local(3, |universe| {
        let world = universe.world();
        let window = world.window(1, 8).allocate()?;
        let put = window.lock_all()?.put(Rank(world.rank().0 * 2), 0, &[1u64]);
        // No rank leaves before the others are done with its memory.
        world.barrier()?;
        Ok::<(), Error>(put?)
    });
    let results = results.unwrap();
    assert!(results[0].is_ok() && results[1].is_ok(), "{results:?}");
    assert!(
        matches!(results[2], Err(Error::Rma(RmaError::NoSuchRank { target: Rank(4), .. }))),
        "{results:?}"
    );
}

#[test]
fn no_ranks_are_an_error() {
    let error = local(0, |_| ()).unwrap_err();
    assert!(matches!(error, StartError::NoRanks), "{error:?}");
    assert!(error.to_string().contains("at least 1"), "{error}");
}

/// The payload of a panic in the job; what ranks returned besides is lost.
fn panic_of<R: Send>(
    ranks: u32,
    body: impl Fn(Universe) -> R + Sync,
) -> Box<dyn std::any::Any + Send> {
    catch_unwind(AssertUnwindSafe(|| local(ranks, body).map(|_| ()))).unwrap_err()
}

#[derive(Debug, PartialEq)]
struct Payload(u32);

#[test]
fn the_payload_of_a_panic_comes_out() {
    let panic = panic_of(3, |universe| {
        if universe.world().rank() == Rank(1) {
            panic_any(Payload(41));
        }
        _ = universe.world().barrier();
    });
    assert_eq!(panic.downcast_ref(), Some(&Payload(41)));
}

/// What a rank sees that calls `wait_for_victim` while rank 1 panics.
fn survivors_see<E: Send>(wait_for_victim: impl Fn(&Universe, &Window) -> E + Sync) -> Vec<E> {
    let seen = Mutex::new(Vec::new());
    // Of threads, because a rank that is still in a barrier of the job sees the failure there.
    let ready = Barrier::new(4);
    let panic = panic_of(4, |universe| {
        let window = words(universe.world(), 1);
        let held = (universe.world().rank() == Rank(1))
            .then(|| window.lock(Rank(2), LockKind::Exclusive).unwrap());
        ready.wait();
        if let Some(held) = held {
            // No rank gets the lock that it dies with.
            std::mem::forget(held);
            panic_any(Payload(1));
        }
        let error = wait_for_victim(&universe, &window);
        seen.lock().unwrap().push(error);
    });
    assert_eq!(panic.downcast_ref(), Some(&Payload(1)));
    seen.into_inner().unwrap()
}

const VICTIM: WorldRank = WorldRank(1);

fn expect_rma(errors: Vec<Result<(), RmaError>>) {
    assert_eq!(errors.len(), 3);
    for error in errors {
        let blamed = matches!(error, Err(RmaError::PeerFailed { world: VICTIM, .. }));
        assert!(blamed, "{error:?}");
    }
}

fn expect_collective(errors: Vec<Result<(), CollectiveError>>) {
    assert_eq!(errors.len(), 3);
    for error in errors {
        let blamed = matches!(error, Err(CollectiveError::PeerFailed { world: VICTIM, .. }));
        assert!(blamed, "{error:?}");
    }
}

#[test]
fn a_panic_ends_the_waits_of_the_others() {
    expect_collective(survivors_see(|universe, _| universe.world().barrier()));
    expect_collective(survivors_see(|universe, _| {
        universe.world().allreduce(&[1u64], Op::Sum).map(|_| ())
    }));
    expect_collective(survivors_see(|universe, _| universe.world().dup().map(|_| ())));
    expect_rma(survivors_see(|_, window| window.fence(Assert::NONE).map(|_| ())));
    expect_rma(survivors_see(|_, window| window.lock(Rank(2), LockKind::Exclusive).map(|_| ())));
    expect_rma(survivors_see(|_, window| window.lock(Rank(2), LockKind::Shared).map(|_| ())));
    let lock_all = |_: &Universe, window: &Window| {
        window.lock_all()?.fetch_and_op(Rank(2), 0, Op::Sum, 1u64).map(|_| ())
    };
    expect_rma(survivors_see(lock_all));
}

/// Freed windows and errors of creation, too; and the errors say which rank and what to do.
#[test]
fn a_panic_ends_collective_calls_on_windows() {
    let makes = survivors_see(|universe, _| {
        universe.world().window(1, 8).allocate().map(|_| ()).unwrap_err().to_string()
    });
    assert_eq!(makes.len(), 3);
    makes.iter().for_each(|text| assert!(text.contains("rank 1 of the job failed"), "{text}"));
    let (seen, ready) = (Mutex::new(0), Barrier::new(3));
    let panic = panic_of(3, |universe| {
        let window = words(universe.world(), 1);
        ready.wait();
        if universe.world().rank() == Rank(1) {
            panic_any(Payload(2));
        }
        let refused = window.free().unwrap_err();
        assert!(refused.value.is_none(), "some may have freed it");
        let failed = matches!(refused.error, RmaError::PeerFailed { world: VICTIM, .. });
        assert!(failed, "{:?}", refused.error);
        *seen.lock().unwrap() += 1;
    });
    assert_eq!((panic.downcast_ref(), *seen.lock().unwrap()), (Some(&Payload(2)), 2));
}

#[test]
fn a_rank_that_left_is_named() {
    let results = local(3, |universe| {
        let window = words(universe.world(), 1);
        if universe.world().rank() == Rank(2) {
            return None;
        }
        let barrier = universe.world().barrier();
        let fence = window.fence(Assert::NONE).map(|_| ());
        // What does not need it works.
        let epoch = window.lock_all().unwrap();
        let old = epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
        // Both stay until both know: only rank 2 has left.
        while epoch.fetch_and_op(Rank(0), 0, Op::NoOp, 0u64).unwrap() < 2 {
            thread::yield_now();
        }
        epoch.unlock().unwrap();
        Some((barrier, fence, old))
    });
    let results = results.unwrap();
    assert!(results[2].is_none());
    for result in &results[..2] {
        let (barrier, fence, old) = result.unwrap();
        let left = WorldRank(2);
        assert!(
            matches!(barrier, Err(CollectiveError::PeerLeft { world, .. }) if world == left),
            "{barrier:?}"
        );
        assert!(
            matches!(fence, Err(RmaError::PeerLeft { world, .. }) if world == left),
            "{fence:?}"
        );
        assert!(fence.unwrap_err().to_string().contains("finalize"));
        assert!(old < 2);
    }
}

/// In most jobs no rank calls `finalize`.
#[test]
fn dropping_the_universe_is_clean() {
    for round in 0..50 {
        let tickets = local(4, |universe| {
            let ticket = ticket(universe.world());
            if round % 2 == 0 {
                universe.finalize().unwrap();
            }
            ticket
        });
        let mut tickets = tickets.unwrap();
        tickets.sort_unstable();
        assert_eq!(tickets, [0, 1, 2, 3]);
    }
}

/// Handles that outlive the universe fail instead of hanging or worse.
#[test]
fn windows_may_outlive_the_universe() {
    let results = local(2, |universe| {
        let window = words(universe.world(), 4);
        let epoch = window.fence(Assert::NONE).unwrap();
        epoch.put(universe.world().rank().on_ring(1, 2), 1, &[7u64]).unwrap();
        epoch.end().unwrap();
        drop(universe);
        let value = window.local().load::<u64>(1).unwrap();
        (value, window.fence(Assert::NONE).map(|_| ()))
    });
    for (value, fence) in results.unwrap() {
        assert_eq!(value, 7);
        let left =
            |error: &RmaError| matches!(error, RmaError::PeerLeft { .. } | RmaError::Left { .. });
        assert!(fence.as_ref().err().is_none_or(left), "{fence:?}");
    }
}

#[test]
fn two_jobs_at_once() {
    let job = |ranks: u32| {
        let tickets =
            local(ranks, |universe| (0..100).map(|_| ticket(universe.world())).sum::<u64>());
        tickets.unwrap().iter().sum::<u64>()
    };
    thread::scope(|scope| {
        let jobs = [2, 3, 5].map(|ranks| (ranks, scope.spawn(move || job(ranks))));
        for (ranks, job) in jobs {
            let all = u64::from(ranks) * u64::from(ranks - 1) / 2 * 100;
            assert_eq!(job.join().unwrap_or_else(|panic| resume_unwind(panic)), all);
        }
    });
}

#[test]
fn a_job_inside_of_a_job() {
    let results = local(3, |universe| {
        let outer = universe.world();
        let window = words(outer, 1);
        let epoch = window.lock_all().unwrap();
        let inner = local(2, |universe| {
            let inner = universe.world();
            // A thread works with both jobs, and with an epoch that another thread opened.
            epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64 + u64::from(inner.rank())).unwrap();
            inner.barrier().unwrap();
            inner.size()
        });
        epoch.unlock().unwrap();
        outer.barrier().unwrap();
        let sum = window.shared_query(Rank(0)).unwrap().load::<u64>(0).unwrap();
        (inner.unwrap(), sum)
    });
    assert_eq!(results.unwrap(), vec![(vec![2, 2], 9); 3]);
}

#[test]
fn the_inner_job_may_fail() {
    let results = local(2, |universe| {
        let panic = panic_of(2, |universe| {
            assert_ne!(universe.world().rank(), Rank(0));
            _ = universe.world().barrier();
        });
        universe.world().barrier().unwrap();
        panic.is::<String>() || panic.is::<&str>()
    });
    assert_eq!(results.unwrap(), [true, true]);
}

/// The order in which five ranks get tickets, again and again.
fn order(seed: u64) -> Vec<Vec<u64>> {
    let tickets =
        simulate(5, seed, |universe| (0..6).map(|_| ticket(universe.world())).collect::<Vec<_>>());
    tickets.unwrap()
}

#[test]
fn a_seed_decides_the_order() {
    let orders: Vec<_> = (0..10).map(order).collect();
    for (seed, expected) in (0..).zip(&orders) {
        assert_eq!(order(seed), *expected, "seed {seed}");
    }
    let different = orders.iter().filter(|order| **order != orders[0]).count();
    assert!(different > 5, "{orders:?}");
}

#[test]
fn a_deadlock_is_found() {
    let failure = simulate(2, 7, |universe| {
        let world = universe.world();
        let (one, other) = (world.dup().unwrap(), world.dup().unwrap());
        // Each waits for the other in another communicator.
        if world.rank() == Rank(0) { one.barrier() } else { other.barrier() }
    });
    let text = failure.unwrap_err().to_string();
    for part in ["deadlock", "2 ranks with seed 7", "rank 0", "rank 1", "replay with seed 7"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

/// Rank 0 polls a flag by loads, which rank 1 sets if it is kind.
fn poll_flag(universe: &Universe, kind: bool) -> u64 {
    let world = universe.world();
    let window = world.window(2, 8).allocate().unwrap();
    if world.rank() == Rank(0) {
        while window.local().load::<u64>(0).unwrap() == 0 {}
    } else {
        let epoch = window.lock_all().unwrap();
        epoch.put(Rank(0), 1, &[7u64]).unwrap();
        epoch.flush(Rank(0)).unwrap();
        epoch.put(Rank(0), if kind { 0 } else { 1 }, &[7u64]).unwrap();
        epoch.unlock().unwrap();
    }
    _ = world.barrier();
    window.local().load(0).unwrap()
}

#[test]
fn a_flag_that_is_polled_by_loads_is_seen() {
    for seed in 0..30 {
        let seen = simulate(2, seed, |universe| poll_flag(&universe, true));
        assert_eq!(seen.unwrap(), [7, 0], "seed {seed}");
    }
}

#[test]
fn a_flag_that_no_rank_sets_is_a_deadlock_of_the_rank_that_polls_it() {
    for seed in 0..3 {
        let failure = simulate(2, seed, |universe| poll_flag(&universe, false)).unwrap_err();
        let text = failure.to_string();
        let replay = format!("replay with seed {seed}");
        for part in ["deadlock", "rank 0 polls in vain", "rank 1 parked", &replay] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
    }
}

/// As a wait that every change rings for: a waiter that looks by itself now and then waits, too.
#[test]
fn a_value_that_no_rank_stores_is_a_deadlock() {
    for seed in 0..3 {
        let failure = simulate(3, seed, |universe| {
            let window = universe.world().window(1, 8).allocate().unwrap();
            if window.rank() == Rank(1) {
                _ = window.local().wait_until(0, |value: u64| value == 1);
            }
            _ = universe.world().barrier();
        });
        let text = failure.unwrap_err().to_string();
        let replay = format!("replay with seed {seed}");
        let parts = ["deadlock", "rank 0 parked", "rank 1 polls in vain", "rank 2 parked", &replay];
        for part in parts {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
    }
}

#[test]
fn calls_that_poll_in_vain_are_a_deadlock() {
    let polled: [fn(&Universe); 3] = [
        |universe| while universe.progress() < 1_000_000 {},
        |universe| {
            let window = universe.world().window(1, 8).allocate().unwrap();
            while window.local().compare_and_swap(0, 1u64, 2).unwrap() == 0 {}
        },
        |universe| {
            let window = universe.world().window(1, 8).allocate().unwrap();
            let other = Rank(1 - window.rank().0);
            let mut exposure = window.post(&[other], Assert::NONE).unwrap();
            loop {
                match exposure.test() {
                    Ok(_) => return,
                    Err(open) => exposure = open,
                }
            }
        },
    ];
    for poll in polled {
        let failure = simulate(2, 5, |universe| poll(&universe)).unwrap_err();
        let text = failure.to_string();
        for part in
            ["deadlock", "rank 0 polls in vain", "rank 1 polls in vain", "replay with seed 5"]
        {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
    }
}

#[test]
fn a_panic_in_a_simulation_is_reported() {
    let failure = simulate(3, 11, |universe| {
        let sum = universe.world().allreduce(&[1u64], Op::Sum).unwrap();
        assert_ne!(universe.world().rank(), Rank(2), "on purpose, {}", sum[0]);
        _ = universe.world().barrier();
    });
    let text = failure.unwrap_err().to_string();
    for part in ["rank 2 panicked", "on purpose, 3", "replay with seed 11"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[test]
fn no_ranks_to_simulate_are_an_error() {
    let text = simulate(0, 1, |_| ()).unwrap_err().to_string();
    assert!(text.contains("at least 1"), "{text}");
}

/// `cargo test` is no launcher, so this is rank 0 of 1, on which everything works.
#[test]
fn a_rank_that_was_not_launched() {
    assert!(!rma_launcher::is_launched());
    let universe = initialize().unwrap();
    let world = universe.world();
    assert_eq!((world.rank(), world.size()), (Rank(0), 1));
    collectives_alone(world);
    windows_alone(world);
    let explanation = universe.explain();
    for part in ["transport: shm", "memfd", "1 ranks", "paths: load and store to 1 of 1 ranks"] {
        assert!(explanation.contains(part), "no {part:?} in:\n{explanation}");
    }
    universe.finalize().unwrap();
}

/// Never N silent singletons: under a launcher that cannot be used, `initialize` refuses.
#[test]
fn an_environment_that_cannot_be_used_is_refused() {
    if std::env::var_os("RMA_TEST_REFUSED").is_some() {
        let Err(error) = initialize() else { panic!("rank 0 of 1") };
        println!("refused: {error}");
        return;
    }
    let environments: [(&str, &str, &[&str]); 4] = [
        ("OMPI_COMM_WORLD_SIZE", "4", &["Open MPI", "OMPI_COMM_WORLD_SIZE=4", "rma-run -n"]),
        ("SLURM_NTASKS", "8", &["Slurm", "rma-run -n"]),
        ("RMA_RANK", "0", &["RMA_RANK is set but RMA_BOOTSTRAP is not"]),
        ("RMA_SECRET_FD", "zz", &["RMA_SECRET_FD is set but RMA_BOOTSTRAP is not"]),
    ];
    for (name, value, parts) in environments {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "an_environment_that_cannot_be_used_is_refused", "--nocapture"]);
        // What makes Slurm visible, besides a number of tasks.
        let slurm = if name.starts_with("SLURM") { "SLURM_PROCID" } else { "RMA_TEST_NOTHING" };
        command.env("RMA_TEST_REFUSED", "1").env(slurm, "3").env(name, value);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {text}");
        for part in parts.iter().chain(&["refused: "]) {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
    }
}

fn collectives_alone(world: &Communicator) {
    world.barrier().unwrap();
    let mut value = [3u64];
    world.bcast(&mut value, Rank(0)).unwrap();
    assert_eq!(world.gather(&value, Rank(0)).unwrap(), Some(vec![3]));
    assert_eq!(world.gatherv(&value, Rank(0)).unwrap(), Some(vec![vec![3]]));
    assert_eq!(world.allgather(&value).unwrap(), [3]);
    assert_eq!(world.allgatherv(&value).unwrap(), [[3]]);
    assert_eq!(world.reduce(&value, Op::Sum, Rank(0)).unwrap(), Some(vec![3]));
    assert_eq!(world.allreduce(&value, Op::Max).unwrap(), [3]);
    assert_eq!(world.reduce_scatter(&value, &[1], Op::Sum).unwrap(), [3]);
    assert_eq!(world.alltoall(&value).unwrap(), [3]);
    assert_eq!(world.alltoallv(&[vec![3u64, 4]]).unwrap(), [[3, 4]]);
    assert_eq!(world.exscan(&value, Op::Sum).unwrap(), None);
    let other = world.dup().unwrap().split(Some(1), 0).unwrap().unwrap();
    assert_eq!(other.split_by_node(0).unwrap().size(), 1);
    assert!(world.split(None, 0).unwrap().is_none());
    let root = world.gather(&value, Rank(1));
    assert!(matches!(root, Err(CollectiveError::NoSuchRoot { root: Rank(1), .. })), "{root:?}");
}

fn windows_alone(world: &Communicator) {
    let (window, me) = (words(world, 8), Rank(0));
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.put(me, 0, &[1u64, 2]).unwrap();
    epoch.next(Assert::NONE).unwrap().end().unwrap();
    let lock = window.lock(me, LockKind::Exclusive).unwrap();
    assert_eq!(lock.fetch_and_op(0, Op::Sum, 10u64).unwrap(), 1);
    assert_eq!(lock.compare_and_swap(0, 11u64, 12).unwrap(), 11);
    lock.flush().unwrap();
    lock.unlock().unwrap();
    let epoch = window.lock_all().unwrap();
    let (mut got, more) = ([0u64; 2], [5u64, 6]);
    epoch
        .ops(|ops| {
            ops.get(me, 0, &mut got)?;
            ops.put(me, 4, &more)
        })
        .unwrap();
    let owned = epoch.rget(me, 4, vec![0u64; 2]).unwrap().wait().unwrap();
    assert_eq!(owned, more);
    let past = epoch.put(me, 8, &[1u64]);
    assert!(matches!(past, Err(RmaError::OutOfRange { .. })), "{past:?}");
    let outside = epoch.put(Rank(1), 0, &[1u64]);
    assert!(matches!(outside, Err(RmaError::NoSuchRank { .. })), "{outside:?}");
    epoch.unlock().unwrap();
    assert_eq!(got, [12, 2]);
    let mut sealed = window.seal().unwrap();
    sealed.as_mut_slice::<u64>().unwrap()[0] = 99;
    let window = sealed.unseal().unwrap();
    assert_eq!(window.shared_query(me).unwrap().load::<u64>(0).unwrap(), 99);
    window.free().unwrap();
    world.window(3, 8).allocate_shared().unwrap().free().unwrap();
}

/// A rank that comes last to a meeting of others, which have gone on since one of them gave up what
/// it comes for, hears why; all meet in the next operation.
#[test]
fn a_late_rank_hears_why_others_have_gone_on() {
    const WORDS: usize = 1 << 13;
    for cpus in ["1", "3"] {
        let mut config = Config::default();
        config.set("cpus", cpus).unwrap();
        let gone_on = Barrier::new(3);
        let ranks = local_with(config, 3, |universe| {
            let world = universe.world();
            let mine = vec![u64::from(world.rank()); WORDS];
            for round in 0..50 {
                let gave_up = match u32::from(world.rank()) {
                    0 => {
                        let gave_up = world.allgather(&mine).unwrap_err();
                        gone_on.wait();
                        gave_up
                    }
                    1 => {
                        let gave_up = world.bcast(&mut [0u64; 2], Rank(9)).unwrap_err();
                        gone_on.wait();
                        gave_up
                    }
                    _ => {
                        gone_on.wait();
                        // Others may come first.
                        (0..round).for_each(|_| thread::yield_now());
                        world.allgather(&mine).unwrap_err()
                    }
                };
                match u32::from(world.rank()) {
                    1 => {
                        assert!(matches!(gave_up, CollectiveError::NoSuchRoot { .. }), "{gave_up}")
                    }
                    _ => assert!(matches!(gave_up, CollectiveError::GaveUp { .. }), "{gave_up}"),
                }
                let all = world.allgather(&mine).unwrap();
                for (rank, part) in (0..).zip(all.chunks(WORDS)) {
                    assert!(part.iter().all(|word| *word == rank), "{round}: of rank {rank}");
                }
            }
            universe.finalize().unwrap();
        });
        ranks.unwrap();
    }
}

/// What there is to choose is said: transport, paths, how waiting is done.
#[test]
fn a_universe_explains_itself() {
    let texts = local(64, |universe| universe.explain()).unwrap();
    for part in
        ["transport: shm", "64 ranks", "futex", "load and store to 64 of 64 ranks", "progress:"]
    {
        assert!(texts[63].contains(part), "no {part:?} in:\n{}", texts[63]);
    }
    let texts = simulate(2, 3, |universe| universe.explain()).unwrap();
    for part in ["transport: sim", "seed 3", "load and store to 0 of 2 ranks", "active messages"] {
        assert!(texts[0].contains(part), "no {part:?} in:\n{}", texts[0]);
    }
    let config = Config::default();
    assert!(config.wait_timeout.is_none());
    for part in [
        format!("puts up to {} bytes are sent at once", config.eager_bytes),
        format!("{} bytes on their way to one target", config.rendezvous_bytes),
        format!("{} messages unanswered by one target", config.credit_messages),
        format!("{} by all", config.outstanding_messages),
    ] {
        assert!(texts[0].contains(&part), "no {part:?} in:\n{}", texts[0]);
    }
}

/// What a rank gives back may be what it had in hand: all of that is over, and lies still.
#[test]
fn universes_and_windows_come_out_of_a_simulation() {
    for seed in 0..5 {
        let ranks = simulate(3, seed, |universe| {
            let comm = universe.world().dup().unwrap();
            let window = universe.world().window(1, 8).allocate().unwrap();
            (window, comm, universe)
        });
        drop(ranks.unwrap());
    }
}

/// S-G12
#[test]
fn threads_copy_large_blocks_at_once() {
    const LEN: usize = 700_001;
    const THREADS: usize = 3;
    local(2, |universe| {
        let window = universe.world().window(THREADS * (LEN + 5), 1).allocate().unwrap();
        let epoch = window.lock_all().unwrap();
        let other = Rank(1 - universe.world().rank().0);
        thread::scope(|scope| {
            for number in 0..THREADS {
                let epoch = &epoch;
                // More of them than it takes to try each way to copy.
                scope.spawn(move || {
                    for round in 0..20 {
                        let at = number * (LEN + 5) + round % 3;
                        let sent: Vec<u8> =
                            (0..LEN).map(|i| (i * 7 + round + number) as u8).collect();
                        epoch.put(other, at, &sent).unwrap();
                        epoch.flush(other).unwrap();
                        let mut back = vec![0u8; LEN];
                        epoch.get(other, at, &mut back).unwrap();
                        assert!(back == sent, "thread {number}, round {round}");
                    }
                });
            }
        });
        epoch.unlock().unwrap();
        window.free().unwrap();
        universe.finalize().unwrap();
    })
    .unwrap();
}
