//! Ranks that are killed in the middle of an operation, where no launcher sees it: the others find
//! out by themselves. Each rank is the child of a shell, and that of the victim stays.
use rma::{Error, LockKind, Op, Rank, RmaError, Universe, initialize};
use rma_core::ErrorClass;
use rma_core::transport::WorldRank;
use rma_launcher::run::{How, Output, Spec, run};
use rustix::process::{Signal, getpid, kill_process};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use std::{fs, thread};

const VICTIM: Rank = Rank(1);
const WATCHDOG: Duration = Duration::from_secs(120);

/// Runs its arguments behind the directory of pipes. The victim's waits until the others are done.
const SHELL: &str = r#"
pipes="$0"
"$@"
status=$?
if [ "$RMA_RANK" = 1 ]; then
    for other in 0 2 3; do cat "$pipes/$other" >"$pipes/read.$other"; done
    exit 0
fi
echo $status >"$pipes/$RMA_RANK"
exit $status
"#;

/// `operation` again and again, until it fails; the victim is killed in one of the first.
fn play(operation: impl Fn(&Universe, &rma::Window, u64) -> Result<(), RmaError>) {
    let universe = initialize().unwrap();
    let world = universe.world();
    let window = world.window(4, 8).allocate().unwrap();
    let (count, pid) = (AtomicU64::new(0), getpid());
    let victim = world.rank() == VICTIM;
    world.barrier().unwrap();
    let error = thread::scope(|scope| {
        if victim {
            // Anywhere in an operation, and in another one from run to run.
            let last = 3_000 + u64::from(pid.as_raw_nonzero().get().unsigned_abs()) * 7 % 5_000;
            let count = &count;
            scope.spawn(move || {
                while count.load(Relaxed) < last {
                    thread::yield_now();
                }
                kill_process(pid, Signal::KILL).unwrap();
            });
        }
        for round in 0..u64::MAX {
            if let Err(error) = operation(&universe, &window, round) {
                return Error::from(error);
            }
            count.store(round, Relaxed);
            // Nothing is in the way of the others if the victim died outside of what it holds.
            if !victim && round == 20_000 {
                return Error::from(world.barrier().unwrap_err());
            }
        }
        unreachable!("more rounds than a u64 can count")
    });
    let blamed = match error {
        Error::Rma(RmaError::PeerFailed { world, .. } | RmaError::PeerLeft { world, .. }) => world,
        Error::Collective(error) => {
            assert_eq!(error.class(), ErrorClass::ProcFailed, "{error}");
            return;
        }
        error => panic!("{error}"),
    };
    // Or another survivor, which went home because of it.
    assert_ne!(blamed, WorldRank(world.rank().0));
}

fn jobs(test: &str, operation: impl Fn(&Universe, &rma::Window, u64) -> Result<(), RmaError>) {
    if rma_launcher::is_launched() {
        return play(operation);
    }
    for path in ["auto", "messages"] {
        for _ in 0..3 {
            let pipes = tempfile::tempdir().unwrap();
            for rank in [0, 2, 3] {
                let pipe = pipes.path().join(rank.to_string());
                let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                let fifo = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).unwrap();
            }
            let mut spec = Spec::new("sh", 4);
            let this = std::env::current_exe().unwrap();
            let args = [pipes.path().as_os_str(), this.as_os_str(), "--exact".as_ref()];
            spec.args = ["-c".into(), SHELL.into()].into();
            spec.args.extend(args.map(Into::into));
            spec.args.extend([test.into(), "--nocapture".into()]);
            if path != "auto" {
                spec.hints = vec![("rma_path".into(), path.into())];
            }
            spec.output = Output::Capture;
            spec.oversubscribe = true;
            spec.timeout = Some(WATCHDOG);
            let report = run(&spec).unwrap();
            // All that the launcher saw is a rank that went without a word.
            let failed = report.failure().map(|failure| (failure.rank, &failure.how));
            assert_eq!(failed, Some((VICTIM.0, &How::NeverLeft)), "{test} by {path}: {report:?}");
            for rank in [0, 2, 3] {
                let status = fs::read_to_string(pipes.path().join(format!("read.{rank}")));
                assert_eq!(status.unwrap(), "0\n", "{test} by {path}: {report:?}");
            }
        }
    }
}

#[test]
fn in_exclusive_locks() {
    jobs("in_exclusive_locks", |_, window, _| {
        let lock = window.lock(Rank(0), LockKind::Exclusive)?;
        lock.put(0, &[1u64])?;
        lock.unlock()
    });
}

#[test]
fn in_locks_of_both_kinds() {
    jobs("in_locks_of_both_kinds", |_, window, round| {
        if round % 3 == 0 {
            return window.lock_all()?.unlock();
        }
        let kind = if round % 3 == 1 { LockKind::Shared } else { LockKind::Exclusive };
        window.lock(Rank((round % 4) as u32), kind)?.unlock()
    });
}

#[test]
fn in_accumulates_of_floats() {
    jobs("in_accumulates_of_floats", |_, window, _| {
        let epoch = window.lock_all()?;
        epoch.accumulate(Rank(0), 0, Op::Sum, &[1.0f64; 4])?;
        epoch.fetch_and_op(Rank(2), 1, Op::Sum, 1.0f64)?;
        epoch.unlock()
    });
}
