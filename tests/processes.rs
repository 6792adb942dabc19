//! The test helper that runs a test as real processes: what it says when a rank fails, and that
//! none hangs then. In each test, the process that `cargo test` started is the launcher, and
//! looks at the message; its ranks run the test once more, and are done after the job.
use rma::testing::{processes, processes_in};
use rma::{
    Assert, CollectiveError, Lock, LockKind, Op, Rank, RmaError, Universe, Window, initialize,
};
use rma_core::transport::WorldRank;
use rma_launcher::run::{How, Output, Spec, run};
use rustix::process::{Signal, getpid, kill_process};
use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::exit;
use std::thread;
use std::time::Duration;

/// Why the job failed, as the test that runs it would say; `None` in its ranks.
fn failure(job: impl FnOnce()) -> Option<String> {
    if rma_launcher::is_launched() {
        job();
        return None;
    }
    let panic = catch_unwind(AssertUnwindSafe(job)).expect_err("a job that fails");
    Some(panic.downcast_ref::<String>().expect("a message").clone())
}

#[track_caller]
fn expect(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "no {part:?} in:\n{message}");
    }
}

fn words(universe: &Universe) -> Window {
    universe.world().window(1, 8).allocate().unwrap()
}

fn kill_myself() -> ! {
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("after SIGKILL")
}

#[test]
fn the_message_holds_what_the_failing_rank_printed() {
    let message = failure(|| {
        processes(4, |universe| {
            let rank = universe.world().rank();
            println!("{rank} to stdout");
            eprintln!("{rank} to stderr");
            assert_ne!(rank, Rank(2), "on purpose");
            universe.world().barrier().unwrap();
        });
    });
    let Some(message) = message else { return };
    let name = "the_message_holds_what_the_failing_rank_printed: rank 2 failed\n";
    let at = format!("panicked at {}:", file!());
    expect(&message, &[name, "2 to stdout\n", "2 to stderr\n", &at, "on purpose"]);
    for other in ["0 to stdout", "1 to stderr", "3 to stdout"] {
        assert!(!message.contains(other), "{message}");
    }
}

/// Of many that fail, that one is named which the others failed because of.
#[test]
fn the_first_rank_that_fails_is_named() {
    let message = failure(|| {
        processes(5, |universe| {
            let world = universe.world();
            let window = words(&universe);
            world.barrier().unwrap();
            match world.rank() {
                Rank(3) => panic!("the first of all"),
                Rank(0) => window.fence(Assert::NONE).unwrap().end().unwrap(),
                Rank(1) => world.barrier().unwrap(),
                _ => assert_eq!(world.allreduce(&[1u64], Op::Sum).unwrap(), [5]),
            }
        });
    });
    let Some(message) = message else { return };
    expect(&message, &["rank 3 failed", "the first of all", "status 101"]);
}

#[test]
fn a_rank_that_exits_in_the_middle() {
    let message = failure(|| {
        processes(3, |universe| {
            universe.world().barrier().unwrap();
            if universe.world().rank() == Rank(1) {
                exit(7);
            }
            _ = universe.world().allreduce(&[1u64], Op::Sum);
        });
    });
    let Some(message) = message else { return };
    expect(&message, &["rank 1 failed", "rank 1 exited with status 7"]);
}

/// With status 0, which by itself looks like success.
#[test]
fn a_rank_that_exits_without_leaving() {
    let message = failure(|| {
        processes(3, |universe| {
            if universe.world().rank() == Rank(2) {
                exit(0);
            }
            _ = universe.world().barrier();
        });
    });
    let Some(message) = message else { return };
    expect(&message, &["rank 2 failed", "without finalizing"]);
}

#[test]
fn a_rank_that_is_killed_in_the_middle_of_a_collective() {
    let message = failure(|| {
        processes(4, |universe| {
            let world = universe.world();
            if world.rank() == Rank(1) {
                println!("dying");
                kill_myself();
            }
            // Some ranks of the tree wait for it at once, some in the next round.
            while world.allreduce(&[1u64], Op::Sum).is_ok() {}
        });
    });
    let Some(message) = message else { return };
    expect(&message, &["rank 1 failed", "signal 9 (SIGKILL)", "dying\n"]);
}

#[test]
fn a_rank_that_is_killed_with_a_lock() {
    let message = failure(|| {
        processes(3, |universe| {
            let world = universe.world();
            let window = words(&universe);
            if world.rank() == Rank(2) {
                let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
                world.barrier().unwrap();
                lock.put(0, &[1u64]).unwrap();
                kill_myself();
            }
            world.barrier().unwrap();
            _ = window.lock(Rank(0), LockKind::Exclusive).map(|_| ());
        });
    });
    let Some(message) = message else { return };
    expect(&message, &["rank 2 failed", "signal 9 (SIGKILL)"]);
}

#[test]
fn a_rank_that_aborts() {
    let message = failure(|| {
        processes(2, |universe| match universe.world().rank() {
            Rank(0) => std::process::abort(),
            _ => _ = universe.world().barrier(),
        });
    });
    let Some(message) = message else { return };
    expect(&message, &["rank 0 failed", "signal 6 (SIGABRT)"]);
}

/// It has left in order, so only what needs it fails, and the job succeeds.
#[test]
fn a_rank_that_returns_early_has_left() {
    processes(3, |universe| {
        let world = universe.world();
        let window = words(&universe);
        let left = WorldRank(2);
        if world.rank() == Rank(2) {
            window.local().store(0, 5u64).unwrap();
            return;
        }
        let barrier = world.barrier();
        assert!(
            matches!(barrier, Err(CollectiveError::PeerLeft { world, .. }) if world == left),
            "{barrier:?}"
        );
        let fence = window.fence(Assert::NONE).map(|_| ());
        assert!(
            matches!(fence, Err(RmaError::PeerLeft { world, .. }) if world == left),
            "{fence:?}"
        );
        // Both stay until both know: only rank 2 has left.
        let epoch = window.lock_all().unwrap();
        epoch.accumulate(Rank(0), 0, Op::Sum, &[1u64]).unwrap();
        while epoch.fetch_and_op(Rank(0), 0, Op::NoOp, 0u64).unwrap() < 2 {
            thread::yield_now();
        }
        epoch.unlock().unwrap();
    });
}

/// It is named, and not a rank that failed because of it: also if a message that no rank takes any
/// more was all that there was to notice.
#[test]
fn a_rank_that_leaves_too_early_is_named() {
    let message = failure(|| {
        processes(2, |universe| {
            let world = universe.world();
            let pids = world.allgather(&[std::process::id()]).unwrap();
            let builder = world.window(1, 8).hint("rma_path", "messages").unwrap();
            let window = builder.allocate().unwrap();
            if world.rank() == Rank(0) {
                return;
            }
            while Path::new(&format!("/proc/{}/exe", pids[0])).exists() {
                thread::yield_now();
            }
            let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
            epoch.put(Rank(0), 0, &[1u64]).unwrap();
        });
    });
    let Some(message) = message else { return };
    expect(&message, &["rank 0 left while rank 1 still waited for it"]);
}

/// A process ends while threads of it take locks and give them back, and read from regions, in
/// windows that it leaked: whatever they were in the middle of, the wait for it ends.
#[test]
fn a_rank_that_returns_while_threads_of_it_go_on() {
    const LEAVERS: u32 = 12;
    processes(1 + LEAVERS, |universe| {
        let world = universe.world();
        let pids = world.allgather(&[std::process::id()]).unwrap();
        // Of two ranks each, so that no leaver ends waits for another.
        let mut pairs = Vec::new();
        for leaver in 1..=LEAVERS {
            let takes_part = [0, leaver].contains(&world.rank().0);
            let pair = world.split(takes_part.then_some(0), 0).unwrap();
            let Some(pair) = pair else { continue };
            let locks: &'static Window = Box::leak(Box::new(pair.window(1, 8).allocate().unwrap()));
            let regions = Box::new(pair.window(0, 1).create_dynamic().unwrap());
            let regions: &'static Window = Box::leak(regions);
            let mine = regions.attach(vec![1u64; 1000]).unwrap();
            let at = pair.allgather(&[mine.address()]).unwrap()[0];
            pairs.push((locks, regions, mine, at));
        }
        if world.rank() == Rank(0) {
            for (i, (locks, regions, mine, _)) in pairs.into_iter().enumerate() {
                while Path::new(&format!("/proc/{}/exe", pids[1 + i])).exists() {
                    thread::yield_now();
                }
                let left = |end: Result<(), RmaError>| match end {
                    Err(RmaError::PeerLeft { world, .. }) => assert_eq!(world.0, 1 + i as u32),
                    end => end.unwrap(),
                };
                left(locks.lock(Rank(0), LockKind::Exclusive).and_then(Lock::unlock));
                left(regions.detach(mine).map(drop).map_err(|it| it.error));
            }
            return;
        }
        let (locks, regions, _, at) = pairs.remove(0);
        let lock = |kind| locks.lock(Rank(0), kind).is_ok();
        thread::spawn(move || while lock(LockKind::Exclusive) && lock(LockKind::Shared) {});
        thread::spawn(move || {
            let epoch = regions.lock_all_with(Assert::NO_CHECK).unwrap();
            while epoch.get(Rank(0), at, &mut [0u64; 1000]).is_ok() {}
        });
        for _ in 0..world.rank().0 {
            thread::yield_now();
        }
    });
}

/// Runs the command, and if that was rank 1, waits until two others have written a byte to the
/// pipe. As long as this process is there, the launcher does not end the job.
const GUARDIAN: &str = r#"
    fifo=$1; shift; "$@"; status=$?
    if [ $RMA_RANK = 1 ]; then exec 3<>"$fifo"; head -c 2 <&3 >"$fifo.done"; fi
    exit $status"#;
/// The pipe, in the environment of the ranks.
const FIFO: &str = "RMA_TEST_FIFO";

/// A real process is killed and says nothing; with a guardian in its place, its launcher says
/// nothing either, so that the others find out by themselves.
#[test]
fn survivors_find_out_that_a_rank_was_killed() {
    let Some(fifo) = std::env::var_os(FIFO) else {
        return with_guardians("survivors_find_out_that_a_rank_was_killed");
    };
    let universe = initialize().unwrap();
    let world = universe.world();
    let window = words(&universe);
    let pids = world.allgather(&[std::process::id()]).unwrap();
    if world.rank() == VICTIM {
        let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
        world.barrier().unwrap();
        lock.put(0, &[1u64]).unwrap();
        kill_myself();
    }
    world.barrier().unwrap();
    while Path::new(&format!("/proc/{}", pids[1])).exists() {
        std::thread::yield_now();
    }
    let dead = WorldRank(1);
    let barrier = world.barrier();
    let collective =
        |error| matches!(error, CollectiveError::PeerFailed { world, .. } if world == dead);
    assert!(barrier.is_err_and(collective), "{barrier:?}");
    let rma = |error| matches!(error, RmaError::PeerFailed { world, .. } if world == dead);
    let fence = window.fence(Assert::NONE).map(|_| ());
    assert!(fence.is_err_and(rma), "{fence:?}");
    let lock = window.lock(Rank(0), LockKind::Exclusive).map(|_| ());
    assert!(lock.is_err_and(rma), "{lock:?}");
    fs::OpenOptions::new().write(true).open(fifo).unwrap().write_all(b"x").unwrap();
}

const VICTIM: Rank = Rank(1);

fn with_guardians(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let mut spec = Spec::new("sh", 3);
    spec.args = ["-c", GUARDIAN, "sh"].map(Into::into).to_vec();
    spec.args.extend([fifo.clone().into(), std::env::current_exe().unwrap().into()]);
    spec.args.extend(["--exact", test, "--nocapture"].map(Into::into));
    spec.env = vec![(FIFO.into(), Some(fifo.clone().into()))];
    spec.output = Output::Capture;
    spec.timeout = Some(Duration::from_secs(300));
    let report = run(&spec).unwrap();
    // A shell says 128 plus the signal.
    let failure = report.failure().expect("a rank was killed");
    assert_eq!((failure.rank, failure.how), (1, How::Exited(128 + 9)), "{report:#?}");
    assert_eq!(fs::read(fifo.with_extension("done")).unwrap(), b"xx");
}

fn not_a_test() {
    processes(2, |_| panic!("no rank comes here"));
}

#[test]
fn a_job_outside_of_a_test_function() {
    // A rank would be a test of that name.
    let message = failure(not_a_test).unwrap();
    expect(&message, &["ran no test named not_a_test", "directly in the test function"]);
}

#[test]
fn no_rank_at_all() {
    let message = failure(|| processes(0, |_| {})).unwrap();
    expect(&message, &["starting 0 processes", "at least one rank"]);
}

mod inner {
    use super::{processes, processes_in};

    #[test]
    fn tests_in_modules_are_found() {
        processes(2, |universe| {
            assert_eq!(universe.world().size(), 2);
            universe.finalize().unwrap();
        });
    }

    fn by_name(ranks: u32) {
        let test = "inner::tests_may_be_named";
        processes_in(test, ranks, |universe| assert_eq!(universe.world().size(), ranks));
    }

    #[test]
    fn tests_may_be_named() {
        by_name(3);
    }
}

/// A job of this test with that value of the hint `rma_path`, with agents or not; its ranks check
/// that.
fn with_path(test: &str, value: &str, progress_agent: bool) -> rma_launcher::run::Report {
    let mut spec = Spec::new(std::env::current_exe().unwrap(), 2);
    spec.args = ["--exact", test, "--nocapture"].map(Into::into).to_vec();
    spec.hints = vec![("rma_path".to_owned(), value.to_owned())];
    spec.progress_agent = progress_agent;
    spec.output = Output::Capture;
    spec.timeout = Some(Duration::from_secs(300));
    run(&spec).unwrap()
}

#[test]
fn hints_of_the_job_are_those_of_its_windows() {
    if rma_launcher::is_launched() {
        let universe = initialize().unwrap();
        let window = words(&universe);
        assert_eq!(window.get_info("rma_path").as_deref(), Some("messages"));
        assert_eq!(window.path(Rank(0)), Some(rma::Path::Messages));
        let own = universe.world().window(1, 8).hint("rma_path", "auto").unwrap();
        assert_eq!(own.allocate().unwrap().path(Rank(0)), Some(rma::Path::LoadStore));
        assert!(universe.explain().contains("it runs here"), "{}", universe.explain());
        return universe.finalize().unwrap();
    }
    let report = with_path("hints_of_the_job_are_those_of_its_windows", "messages", true);
    assert_eq!(report.exit_code(), 0, "{report:#?}");
}

#[test]
fn agents_of_the_job_can_be_switched_off() {
    if rma_launcher::is_launched() {
        let universe = initialize().unwrap();
        let window = words(&universe);
        assert!(universe.explain().contains("progress_agent is Never"), "{}", universe.explain());
        drop(window);
        return universe.finalize().unwrap();
    }
    let report = with_path("agents_of_the_job_can_be_switched_off", "messages", false);
    assert_eq!(report.exit_code(), 0, "{report:#?}");
}

#[test]
fn a_malformed_hint_of_the_job_is_refused() {
    let mut spec = Spec::new("true", 1);
    spec.hints = vec![("rma_path".to_owned(), "pigeon".to_owned())];
    let error = run(&spec).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    expect(&error.to_string(), &["rma_path", "pigeon", "load_store", "messages"]);
}

/// What the job wishes reaches no attached memory; what a window asks for itself is refused.
#[test]
fn a_path_that_the_job_wishes_is_left_aside_where_it_does_not_reach() {
    if rma_launcher::is_launched() {
        let universe = initialize().unwrap();
        let world = universe.world();
        let window = world.window(0, 1).create_dynamic().unwrap();
        assert_eq!(window.path(Rank(0)), Some(rma::Path::ByRegion));
        assert_eq!(window.get_info("rma_path").as_deref(), Some("auto"));
        expect(&window.explain(), &["rma_path=cma", "the job", "attached memory"]);
        let own = world.window(0, 1).hint("rma_path", "load_store").unwrap();
        assert!(own.create_dynamic().is_err());
        window.free().unwrap();
        return universe.finalize().unwrap();
    }
    let test = "a_path_that_the_job_wishes_is_left_aside_where_it_does_not_reach";
    let report = with_path(test, "cma", true);
    assert_eq!(report.exit_code(), 0, "{report:#?}");
}
