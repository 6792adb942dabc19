//! Ranks that are killed in the middle of an operation, where no launcher sees it: the others find
//! out by themselves. Each rank is the child of a shell, and that of the victim stays.
use rma::{Assert, Error, LockKind, Op, Rank, RmaError, Universe, initialize};
use rma_core::ErrorClass;
use rma_core::transport::WorldRank;
use rma_launcher::run::{How, Output, Spec, run};
use rustix::process::{Signal, getpid, kill_process};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use std::{fs, thread};

mod libfabric;

const VICTIM: Rank = Rank(1);
const WATCHDOG: Duration = Duration::from_secs(120);

/// Operations before which no rank is killed, and among how many it is; after how many more the
/// others stop.
const FIRST: u64 = 3_000;
const AMONG: u64 = 5_000;
const LAST: u64 = 20_000;
/// How many times fewer these are where each takes as much longer.
const FEWER: u64 = 20;

/// How the ranks of a job reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Auto,
    Messages,
    Libfabric,
    /// Two nodes of two ranks, libfabric between them.
    Mixed,
}

impl Carrier {
    const ALL: [Self; 4] = [Self::Auto, Self::Messages, Self::Libfabric, Self::Mixed];

    fn tell(self, spec: &mut Spec) {
        let nodes = match self {
            Self::Auto => return,
            Self::Messages => return spec.hints = vec![("rma_path".into(), "messages".into())],
            Self::Libfabric => "1",
            Self::Mixed => "2",
        };
        for (key, value) in [("transport", "ofi"), ("provider", "tcp"), ("nodes", nodes)] {
            spec.config.set(key, value).unwrap();
        }
    }

    fn is_here(self) -> bool {
        !matches!(self, Self::Libfabric | Self::Mixed) || libfabric::is_here()
    }
}

/// Words of each part: more than a put that goes at once may have.
const WORDS: usize = 10_000;

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

/// `operation` again and again, until it fails; the victim is killed in one of the first. Then
/// rank 0 looks at its part by `check`.
fn play(
    operation: impl Fn(&Universe, &rma::Window, u64) -> Result<(), Error>,
    check: impl Fn(&rma::Window),
) {
    let universe = initialize().unwrap();
    let world = universe.world();
    let window = world.window(WORDS, 8).allocate().unwrap();
    let fewer = if universe.explain().contains("libfabric") { FEWER } else { 1 };
    let (count, pid) = (AtomicU64::new(0), getpid());
    let victim = world.rank() == VICTIM;
    world.barrier().unwrap();
    let error = thread::scope(|scope| {
        if victim {
            // Anywhere in an operation, and in another one from run to run.
            let chance = u64::from(pid.as_raw_nonzero().get().unsigned_abs()) * 7 % AMONG;
            let last = (FIRST + chance) / fewer;
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
                return error;
            }
            count.store(round, Relaxed);
            // Nothing is in the way of the others if the victim died outside of what it holds.
            if !victim && round == LAST / fewer {
                return Error::from(world.barrier().unwrap_err());
            }
        }
        unreachable!("more rounds than a u64 can count")
    });
    if world.rank() == Rank(0) {
        check(&window);
    }
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

fn jobs(test: &str, operation: impl Fn(&Universe, &rma::Window, u64) -> Result<(), Error>) {
    jobs_and_check(test, operation, |_| ());
}

fn jobs_and_check(
    test: &str,
    operation: impl Fn(&Universe, &rma::Window, u64) -> Result<(), Error>,
    check: impl Fn(&rma::Window),
) {
    if rma_launcher::is_launched() {
        return play(operation, check);
    }
    for carrier in Carrier::ALL.into_iter().filter(|carrier| carrier.is_here()) {
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
            carrier.tell(&mut spec);
            spec.output = Output::Capture;
            spec.oversubscribe = true;
            spec.timeout = Some(WATCHDOG);
            let report = run(&spec).unwrap();
            // All that the launcher saw is a rank that went without a word.
            let failed = report.failure().map(|failure| (failure.rank, &failure.how));
            assert_eq!(
                failed,
                Some((VICTIM.0, &How::NeverLeft)),
                "{test} by {carrier:?}: {report:?}"
            );
            for rank in [0, 2, 3] {
                let status = fs::read_to_string(pipes.path().join(format!("read.{rank}")));
                assert_eq!(status.unwrap(), "0\n", "{test} by {carrier:?}: {report:?}");
            }
        }
    }
}

#[test]
fn in_exclusive_locks() {
    jobs("in_exclusive_locks", |_, window, _| {
        let lock = window.lock(Rank(0), LockKind::Exclusive)?;
        lock.put(0, &[1u64])?;
        Ok(lock.unlock()?)
    });
}

#[test]
fn in_locks_of_both_kinds() {
    jobs("in_locks_of_both_kinds", |_, window, round| {
        if round % 3 == 0 {
            return Ok(window.lock_all()?.unlock()?);
        }
        let kind = if round % 3 == 1 { LockKind::Shared } else { LockKind::Exclusive };
        Ok(window.lock(Rank((round % 4) as u32), kind)?.unlock()?)
    });
}

#[test]
fn in_accumulates_of_floats() {
    jobs("in_accumulates_of_floats", |_, window, _| {
        let epoch = window.lock_all()?;
        epoch.accumulate(Rank(0), 0, Op::Sum, &[1.0f64; 4])?;
        epoch.fetch_and_op(Rank(2), 1, Op::Sum, 1.0f64)?;
        Ok(epoch.unlock()?)
    });
}

/// Each element counts the rounds of each rank, in 16 bits for each. An array is combined element
/// by element, or many at a time, from its first to its last: the last of the victim's is whole in
/// some and missing behind them, and none is there twice or in part; nothing of the others is lost.
#[test]
fn in_arrays_of_integers() {
    const ARRAY: usize = 1024;
    let of = |value: &u64, rank: Rank| value >> (16 * rank.0) & 0xffff;
    jobs_and_check(
        "in_arrays_of_integers",
        |universe, window, round| {
            let rank = universe.world().rank();
            let mut before = [0u64; ARRAY];
            let operands = [1u64 << (16 * rank.0); ARRAY];
            let epoch = window.lock_all_with(Assert::NO_CHECK)?;
            epoch.get_accumulate(Rank(0), 0, Op::Sum, &operands, &mut before)?;
            epoch.unlock()?;
            assert!(round < 0xffff, "a count runs over into the next rank's");
            assert!(before.iter().all(|value| of(value, rank) == round), "{rank}, round {round}");
            Ok(())
        },
        |window| {
            let read = || {
                let mut values = [0u64; ARRAY];
                window.local().read(0, &mut values).unwrap();
                values
            };
            // This rank's agent may be in the middle of what the victim has sent. Counts only grow:
            // what two passes agree on was there between them, all at once.
            let mut values = read();
            loop {
                let again = read();
                if std::mem::replace(&mut values, again) == again {
                    break;
                }
            }
            let counts = values.each_ref().map(|value| of(value, VICTIM));
            assert!(counts.is_sorted_by(|a, b| a >= b), "{counts:?}");
            assert!(counts[0] - counts[ARRAY - 1] <= 1, "{counts:?}");
            assert!(counts[0] > 0);
        },
    );
}

/// Small puts, and large ones, which ask their target first.
#[test]
fn in_puts() {
    let large = [7u64; WORDS];
    jobs("in_puts", |universe, window, round| {
        let epoch = window.lock_all_with(Assert::NO_CHECK)?;
        let to = universe.world().rank().on_ring(1 + (round % 3) as i64, 4);
        if round % 16 == 0 {
            epoch.put(to, 0, &large)?;
        }
        epoch.put(to, 1, &[round])?;
        epoch.flush(to)?;
        Ok(epoch.unlock()?)
    });
}

/// Of payloads that go at once and through lanes, with a tree and without, and of barriers.
#[test]
fn in_collectives() {
    jobs("in_collectives", |universe, window, round| {
        let world = universe.world();
        match round % 4 {
            0 => _ = world.allreduce(&[round; 4], Op::Sum)?,
            1 => world.bcast(&mut [round; WORDS], Rank((round / 4 % 4) as u32))?,
            2 => _ = world.allgather(&[round])?,
            _ => window.fence(Assert::NONE)?.end()?,
        }
        Ok(())
    });
}
