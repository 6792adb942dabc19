//! A job that hangs says why to a user who asks: real processes, asked while they wait.
use rma::{LockKind, Rank, initialize};
use rma_launcher::run::query::{self, JobView, Stage, WhomView, Why};
use rma_launcher::run::{Output, Spec, run};
use std::path::Path;
use std::time::Duration;
use std::{env, fs, thread};

const NAME: &str = "asked-while-it-waits";
const WATCHDOG: Duration = Duration::from_secs(120);
/// The rank whose lock is waited for.
const HOME: Rank = Rank(1);

/// Rank 2 keeps a lock until its pipe is written; rank 0 waits for the lock, rank 1 in a barrier.
fn play(pipe: &Path) {
    let universe = initialize().unwrap();
    let world = universe.world();
    let window = world.window(4, 8).allocate().unwrap();
    if world.rank() == Rank(2) {
        let held = window.lock(HOME, LockKind::Exclusive).unwrap();
        world.barrier().unwrap();
        fs::read(pipe).unwrap();
        held.unlock().unwrap();
    } else {
        world.barrier().unwrap();
    }
    if world.rank() == Rank(0) {
        window.lock(HOME, LockKind::Exclusive).unwrap().unlock().unwrap();
    }
    world.barrier().unwrap();
    window.free().unwrap();
    universe.finalize().unwrap();
}

/// Whether all of it is there to be seen.
fn is_stuck(view: &JobView) -> bool {
    let waits = |rank: usize| {
        let told = view.ranks[rank].told.as_ref();
        told.map(|told| &told.waits[..]).unwrap_or_default()
    };
    let is_in = |rank, what| waits(rank).iter().any(|wait| wait.what == what);
    is_in(0, "a lock") && is_in(1, "a barrier") && waits(2).is_empty()
}

#[test]
fn a_job_that_hangs_says_why() {
    if let Some(pipe) = env::var_os("PIPE") {
        return play(pipe.as_ref());
    }
    thread::spawn(|| {
        thread::park_timeout(WATCHDOG);
        eprintln!("watchdog: the job hangs");
        std::process::abort();
    });
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let mut spec = Spec::new(env::current_exe().unwrap(), 3);
    spec.args = ["a_job_that_hangs_says_why", "--exact"].map(Into::into).into();
    spec.env = vec![("PIPE".into(), Some(pipe.clone().into()))];
    spec.name = Some(NAME.to_owned());
    spec.output = Output::Capture;
    let job = thread::spawn(move || run(&spec).unwrap());
    let view = loop {
        assert!(!job.is_finished(), "{:?}", job.join());
        match query::find(Some(NAME)) {
            Ok(view) if is_stuck(&view) => break view,
            _ => thread::yield_now(),
        }
    };
    fs::write(&pipe, "go on").unwrap();
    assert_eq!(job.join().unwrap().exit_code(), 0);

    assert_eq!(view.launcher, std::process::id());
    assert!(view.ranks.iter().all(|rank| rank.stage == Stage::Joined));
    assert!(view.ranks.iter().all(|rank| rank.told.as_ref().unwrap().windows == 1));
    assert!(view.ranks.iter().all(|rank| rank.usage.as_ref().unwrap().resident > 0));
    let wait = &view.ranks[0].told.as_ref().unwrap().waits[0];
    assert!(wait.at.starts_with("window #"), "{wait:?}");
    assert_eq!(wait.whom, WhomView::Holders(vec![(0, 2)], 3, None));
    let wait = &view.ranks[1].told.as_ref().unwrap().waits[0];
    assert_eq!(wait.at, "the world");
    let text = Why(&view).text();
    assert!(text.contains("who holds it, of ranks 0-2"), "{text}");
    assert!(text.starts_with(&format!("job {} ({NAME}) on ", view.launcher)), "{text}");
}
