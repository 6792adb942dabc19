//! Jobs with persistent windows whose ranks are killed at random moments, as real processes: the
//! next one finds what was committed, at all ranks. More trials are had by `RMA_CRASH_TRIALS`.
mod mounts;

use rma::{
    Assert, DirtyTracking, PersistentHints, PersistentMemory, Rank, Root, Universe, initialize,
};
use rma_launcher::run::{Output, Report, Spec, run};
use rustix::process::{Signal, getpid, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const RANKS: u32 = 3;
const WORDS: usize = 20_000;
/// Words of a block of a version.
const BLOCK: usize = 2048;
const WATCHDOG: Duration = Duration::from_secs(120);
const TEST: &str = "killed_at_any_moment";

/// What word `at` of a rank holds in a version: each changes some of the blocks only.
fn word(version: u64, rank: u32, at: usize) -> u64 {
    let block = (at / BLOCK) as u64;
    let changed = (0..7).map(|back| version.saturating_sub(back));
    let last = changed.into_iter().find(|version| version % 7 == block % 7).unwrap_or(0);
    if last == 0 { 0 } else { last * 1000 + u64::from(rank) + at as u64 }
}

/// One rank: looks at what is there, and goes on until it is killed, or for `rounds`.
fn play(folder: &Path, seed: u64, rounds: u64) {
    let universe = initialize().unwrap();
    let world = universe.world();
    let root = Root::open(world, folder.join("root")).unwrap();
    let hints = PersistentHints::name("killed").keep_all_checkpoints(seed.is_multiple_of(3));
    let by_marks = (seed / 2).is_multiple_of(2);
    let tracking = if by_marks { DirtyTracking::WriteProtect } else { DirtyTracking::Compare };
    let hints = hints.dirty_tracking(tracking);
    let memory = PersistentMemory::open(&root, world, &hints, WORDS * 8).unwrap();
    let memory = Arc::new(memory);
    let window = world.window(WORDS, 8).create(memory.clone()).map_err(|not| not.error).unwrap();
    let (found, rank) = (memory.version().unwrap(), world.rank().0);
    assert!(world.allgather(&[found]).unwrap().iter().all(|other| *other == found));
    let log = folder.join("committed");
    let committed = fs::read_to_string(&log).map_or(0, |text| text.trim().parse().unwrap());
    assert!(found >= committed && found <= committed + 1, "{found}, and {committed} was committed");
    let mut words = vec![0; WORDS];
    window.local().read(0, &mut words).unwrap();
    // All have read what was noted before it changes.
    world.barrier().unwrap();
    let wrong = (0..WORDS).find(|at| words[*at] != word(found, rank, *at));
    assert_eq!(wrong, None, "version {found}");
    if rank == 0 {
        note(&log, found);
    }
    // From here on, others may be gone, which is no failure.
    if world.barrier().is_err() {
        return;
    }
    if rounds == u64::MAX && (seed.is_multiple_of(2) || seed % u64::from(RANKS) == u64::from(rank))
    {
        let pid = getpid();
        thread::spawn(move || {
            while COMMITS.load(Relaxed) < commits_before_the_end(seed) {
                thread::yield_now();
            }
            // Anywhere in some commit, and somewhere else in each trial.
            (0..seed.wrapping_mul(7919) % 20_000).for_each(|_| thread::yield_now());
            kill_process(pid, Signal::KILL).unwrap();
        });
    }
    if go_on(&universe, &memory, &window, (found, rounds), &log) {
        window.free().unwrap();
        universe.finalize().unwrap();
    }
}

/// Commits of this process.
static COMMITS: AtomicU64 = AtomicU64::new(0);

/// What ranks that are to be killed have committed by then, at least.
fn commits_before_the_end(seed: u64) -> u64 {
    seed % 4
}

/// For the next job, which must find it.
fn note(log: &Path, version: u64) {
    let new = log.with_extension("new");
    fs::write(&new, version.to_string()).unwrap();
    fs::rename(&new, log).unwrap();
}

/// False if others are gone.
fn go_on(
    universe: &Universe,
    memory: &PersistentMemory,
    window: &rma::Window,
    (found, rounds): (u64, u64),
    log: &Path,
) -> bool {
    let world = universe.world();
    let target = world.rank().on_ring(1, world.size());
    for version in (found + 1..).take(usize::try_from(rounds).unwrap_or(usize::MAX)) {
        let Ok(epoch) = window.fence(Assert::NONE) else { return false };
        for block in (0..WORDS.div_ceil(BLOCK)).filter(|block| *block as u64 % 7 == version % 7) {
            let start = block * BLOCK;
            let words: Vec<u64> =
                (start..WORDS.min(start + BLOCK)).map(|at| word(version, target.0, at)).collect();
            if epoch.put(target, start, &words).is_err() {
                return false;
            }
        }
        // All ways to commit.
        if version.is_multiple_of(3) {
            if epoch.end_persist().is_err() {
                return false;
            }
            assert_eq!(memory.version(), Some(version));
        } else {
            if epoch.end().is_err() {
                return false;
            }
            let made = match version % 3 {
                1 => memory.commit(world),
                _ => memory.request_commit(world).and_then(|request| {
                    // What no version is to have.
                    let own = |block: usize| word(version, world.rank().0, block * BLOCK);
                    let blocks = 0..WORDS.div_ceil(BLOCK);
                    let set = |block, word| window.local().store(block * BLOCK, word).unwrap();
                    blocks.clone().for_each(|block| set(block, u64::MAX));
                    let made = request.wait();
                    blocks.for_each(|block| set(block, own(block)));
                    made
                }),
            };
            match made {
                Ok(number) => assert_eq!(number, Some(version)),
                Err(_) => return false,
            }
        }
        COMMITS.fetch_add(1, Relaxed);
        if world.rank() == Rank(0) {
            note(log, version);
        }
    }
    true
}

fn job(folder: &Path, seed: u64, rounds: u64) -> Report {
    let mut spec = Spec::new(std::env::current_exe().unwrap(), RANKS);
    // The test of that name only; what is skipped is what it is told.
    let told = format!("{seed}:{rounds}:{}", folder.display());
    let args = ["--exact", TEST, "--nocapture", "--skip", &told];
    spec.args = args.iter().map(Into::into).collect();
    spec.output = Output::Capture;
    spec.oversubscribe = true;
    spec.timeout = Some(WATCHDOG);
    run(&spec).unwrap()
}

#[test]
fn killed_at_any_moment() {
    if rma_launcher::is_launched() {
        let told = std::env::args().next_back().unwrap();
        let mut parts = told.splitn(3, ':');
        let mut part = || parts.next().unwrap().to_owned();
        let (seed, rounds) = (part().parse().unwrap(), part().parse().unwrap());
        return play(&PathBuf::from(part()), seed, rounds);
    }
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("root")).unwrap();
    let trials = mounts::crash_trials(40);
    for seed in 1..=trials {
        let report = job(folder.path(), seed, u64::MAX);
        for output in &report.output {
            let text = [&output.stderr, &output.stdout]
                .map(|bytes| String::from_utf8_lossy(bytes))
                .concat();
            assert!(!text.contains("panicked"), "trial {seed}: {text}");
        }
        assert_ne!(report.exit_code(), 0, "trial {seed}: {report:?}");
    }
    let report = job(folder.path(), 3, 10);
    assert_eq!(report.exit_code(), 0, "{report:?}");
    let committed = fs::read_to_string(folder.path().join("committed")).unwrap();
    // The last job made ten of them.
    let least = 10 + (1..=trials).map(commits_before_the_end).sum::<u64>();
    assert!(committed.parse::<u64>().unwrap() >= least, "{committed} versions, of {least}");
    let root = Root::open_alone(folder.path().join("root")).unwrap();
    let verdicts = root.verify("killed", |_, _| {}).unwrap();
    assert!(verdicts.iter().all(|(_, flaw)| flaw.is_none()), "{verdicts:?}");
}
