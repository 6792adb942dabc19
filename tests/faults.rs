//! Storage that fails at every call it is asked for, one after the other: what is told is a typed
//! error with the reason, or nothing has happened; and what was committed is there.
mod mounts;

use mounts::{Disk, crash_trials, in_namespace, job, text, told};
use rma::{
    Assert, Error, OnStorage, PersistError, PersistentCode, PersistentHints, PersistentMemory,
    Rank, RmaError, Root, StorageHints, Universe, Window,
};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

const PAGE: usize = 4096;
const WORDS: usize = 10_000;
const COMMITS: u64 = 3;
/// What the disk returns, and how that is told.
const ERRORS: [(&str, &[&str]); 5] = [
    ("EIO", &["os error 5", "it cannot be read"]),
    ("ENOSPC", &["the file system is full", "os error 28"]),
    ("EDQUOT", &["the quota is used up", "os error 122"]),
    ("ENOLCK", &["os error 37"]),
    ("short", &[]),
];

fn ranks(body: impl Fn(&Universe) -> Result<(), Error> + Sync) {
    // What tests say of themselves ends in this line.
    println!();
    let done = rma::local(2, |universe| body(&universe).map_err(|error| (error.class(), error)));
    for (rank, done) in done.unwrap().into_iter().enumerate() {
        match done {
            Ok(()) => println!("rank {rank}: ok"),
            Err((class, error)) => println!("rank {rank}: {class:?}: {error}"),
        }
    }
}

/// A window on a file of each rank: made, written by the neighbour, synchronised, and given back.
fn with_files(folder: &Path) {
    ranks(|universe| {
        let world = universe.world();
        let hints = StorageHints::file(folder.join("file.{rank}"));
        let make = || world.window(5 * PAGE, 1).on_storage(&hints)?.allocate();
        let window = make()?;
        let epoch = window.fence(Assert::NONE)?;
        epoch.put(world.rank().on_ring(1, 2), PAGE, &[7u8; 2 * PAGE])?;
        epoch.end()?;
        let synced = window.sync();
        if synced.is_err() {
            // It goes on saying so, and may be freed.
            let later = window.sync();
            let Err(RmaError::Persist { error: PersistError::Poisoned { .. }, .. }) = later else {
                panic!("{synced:?}, and then {later:?}")
            };
        }
        let freed = window.free();
        // A failure is over when it is opened again.
        let window = make()?;
        let (again, gone) = (window.sync(), window.free());
        synced?;
        freed?;
        again?;
        Ok(gone?)
    });
}

const ROUNDS: u64 = 6;

/// A window on a file of each rank, whose pages are numbered anew in each round, and synchronised.
fn with_rounds(folder: &Path) {
    ranks(|universe| {
        let (world, rank) = (universe.world(), universe.world().rank());
        let hints = StorageHints::file(folder.join("file.{rank}"));
        let window = world.window(8 * PAGE / 8, 8).on_storage(&hints)?.allocate()?;
        let synced = (1..=ROUNDS).try_for_each(|round| {
            (0..8).try_for_each(|page| window.local().store(page * PAGE / 8, round))?;
            window.sync()?;
            println!("synced.{rank} {round}");
            Ok::<_, RmaError>(())
        });
        let freed = window.free();
        synced?;
        Ok(freed?)
    });
}

/// What word `at` of a rank holds in a version: each changes a third of the blocks.
fn word(version: u64, rank: u32, at: usize) -> u64 {
    let block = (at / 2048) as u64;
    let last = (0..3).filter_map(|back| version.checked_sub(back));
    let last = last.into_iter().find(|version| version % 3 == block % 3).unwrap_or(0);
    if last == 0 { 0 } else { last * 1000 + u64::from(rank) + at as u64 }
}

/// A persistent window: looks at what is there, and commits some versions.
fn with_versions(folder: &Path, commits: u64) {
    ranks(|universe| {
        let world = universe.world();
        let root = Root::open(world, folder)?;
        let hints = PersistentHints::name("state");
        let memory = Arc::new(PersistentMemory::open(&root, world, &hints, WORDS * 8)?);
        let window = world.window(WORDS, 8).create(memory.clone())?;
        let found = memory.version().expect("a version");
        check(&window, found, world.rank());
        if world.rank() == Rank(0) {
            println!("found {found}");
        }
        for version in found + 1..=found + commits {
            for at in 0..WORDS {
                window.local().store(at, word(version, world.rank().0, at))?;
            }
            // Every second one is asked for, and is not what the window has when it is made.
            let committed = if version.is_multiple_of(2) {
                memory.request_commit(world).and_then(|request| {
                    let set = |word| window.local().store(WORDS / 2, word).expect("in the window");
                    set(u64::MAX);
                    let made = request.wait();
                    set(word(version, world.rank().0, WORDS / 2));
                    made
                })
            } else {
                memory.commit(world)
            };
            // It may go on, and then with this very version; or nothing works until it is opened.
            let committed = committed.or_else(|first| {
                let later = memory.commit(world);
                let must_go_on = first.code() == Some(PersistentCode::NoMem);
                later.map_err(|later| if must_go_on { later } else { first })
            });
            match committed {
                Ok(number) => assert_eq!(number, Some(version)),
                Err(error) => {
                    window.free()?;
                    return Err(error.into());
                }
            }
            if world.rank() == Rank(0) {
                println!("committed {version}");
            }
        }
        Ok(window.free()?)
    });
}

fn check(window: &Window, version: u64, rank: Rank) {
    let mut words = vec![0; WORDS];
    window.local().read(0, &mut words).unwrap();
    let wrong = (0..WORDS).find(|at| words[*at] != word(version, rank.0, *at));
    assert_eq!(wrong, None, "version {version} of rank {rank}");
}

/// Runs a part of a test if this is a process of its own for that.
fn is_job() -> bool {
    let Some(told) = told() else { return false };
    let (what, folder) = told.split_once(' ').unwrap();
    match what {
        "files" => with_files(Path::new(folder)),
        "rounds" => with_rounds(Path::new(folder)),
        "versions" => with_versions(Path::new(folder), COMMITS),
        _ => with_versions(Path::new(folder), 1),
    }
    true
}
/// Whether a page of a mapped file could not be read, which kills the process that tries (ADR 30).
fn is_lost_page(output: &Output, hit: &str) -> bool {
    output.status.signal() == Some(libc::SIGBUS) && hit.contains("Read ")
}

/// A process has ended as it should: with results, or errors of this kind that say so. Whether all
/// went well.
fn judge(output: &Output, hit: &str, texts: &[&str]) -> bool {
    if is_lost_page(output, hit) {
        return false;
    }
    let said = text(output);
    assert!(output.status.success(), "{hit}: {}: {said}", output.status);
    let results: Vec<_> = said.lines().filter(|line| line.starts_with("rank ")).collect();
    assert_eq!(results.len(), 2, "{hit}: {said}");
    let failed: Vec<_> = results.iter().filter(|line| !line.ends_with(": ok")).collect();
    let told = |line: &&&str| texts.iter().any(|text| line.contains(text));
    let elsewhere = |line: &&&str| line.contains("its own error says why");
    assert!(failed.iter().all(|line| told(line) || elsewhere(line)), "{hit}: {said}");
    assert!(failed.is_empty() || failed.iter().any(told), "{hit}: {said}");
    failed.is_empty()
}

/// As [`judge`], of a job whose disk answers nothing any more behind some call: reading a page may
/// be the next, whatever was the first.
fn judge_cut(output: &Output, about: &str) {
    if output.status.signal() != Some(libc::SIGBUS) {
        judge(output, about, texts_of("EIO"));
    }
}

/// Calls `trial` with a disk whose call `number` fails, for every number that there is.
fn at_every_call(
    test: &str,
    how: &[&str],
    kinds: &[&str],
    mut trial: impl FnMut(&mut Disk, &str, u64) -> Option<String>,
) {
    for kind in kinds {
        for number in 0.. {
            let Some(mut disk) = Disk::mount(test, how) else { return };
            if trial(&mut disk, kind, number).is_none() {
                assert!(number > 0, "{kind} hits nothing");
                break;
            }
        }
    }
}

fn texts_of(kind: &str) -> &'static [&'static str] {
    ERRORS.iter().find(|(known, _)| *known == kind).unwrap().1
}

/// Files of windows, with every call failing once: the error is told by its name, and is over when
/// the window is made again.
#[test]
fn files_on_a_disk_that_fails() {
    const TEST: &str = "files_on_a_disk_that_fails";
    if is_job() || !in_namespace(TEST) {
        return;
    }
    let trial = |disk: &mut Disk, kind: &str, count: u64| {
        let told = format!("files {}", disk.path().display());
        disk.fail(kind, count);
        let output = job(TEST, &told);
        let hit = disk.hit();
        let is_well = judge(&output, hit.as_deref().unwrap_or_default(), texts_of(kind));
        let Some(hit) = hit else {
            assert!(is_well, "{}", text(&output));
            return None;
        };
        let output = job(TEST, &told);
        assert!(judge(&output, "", &[]), "{kind} {hit}: {}", text(&output));
        Some(hit)
    };
    at_every_call(TEST, &[], &["EIO", "ENOSPC", "EDQUOT", "ENOLCK"], trial);
    at_every_call(TEST, &["--no-fallocate"], &["EIO", "ENOSPC", "EDQUOT", "short"], trial);
}

/// The number behind a word that rank 0 says; the highest one, if it says some.
fn number(said: &str, word: &str) -> Option<u64> {
    let numbers = said.lines().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok());
    numbers.max()
}

/// What must be there: the last version that was committed, or the one that was under way.
#[derive(Debug, Default)]
struct Committed(u64);

impl Committed {
    /// A job has said this, and may have been in the next commit then.
    fn note(&mut self, said: &str) {
        let known = [number(said, "found "), number(said, "committed ")];
        self.0 = known.into_iter().flatten().max().unwrap_or(0).max(self.0);
    }

    /// The next job finds one of the two; it checks the bytes.
    fn is_found(&mut self, test: &str, disk: &Disk, about: &str) {
        let output = job(test, &format!("version {}", disk.path().display()));
        let said = text(&output);
        assert!(judge(&output, about, &[]), "{about}: {said}");
        let found = number(&said, "found ").unwrap();
        assert!(found == self.0 || found == self.0 + 1, "{about}, {self:?}: {said}");
        self.note(&said);
    }
}

/// Persistent windows, with every call failing once: the next job finds what was committed, also if
/// the power goes between the two; and what a sync that failed was to write never is on the disk.
#[test]
fn versions_on_a_disk_that_fails() {
    const TEST: &str = "versions_on_a_disk_that_fails";
    if is_job() || !in_namespace(TEST) {
        return;
    }
    let trial = |disk: &mut Disk, kind: &str, count: u64, is_new: bool| {
        let mut committed = Committed::default();
        if !is_new {
            committed.is_found(TEST, disk, "a new window");
            // So that all is read from the disk.
            disk.cut(count);
        }
        disk.fail(kind, count);
        let output = job(TEST, &format!("versions {}", disk.path().display()));
        let hit = disk.hit();
        let about = format!("{kind} {count} {hit:?}");
        let is_well = judge(&output, &about, texts_of(kind));
        committed.note(&text(&output));
        if hit.is_none() {
            assert!(is_well, "{}", text(&output));
            return None;
        }
        if count.is_multiple_of(2) {
            disk.cut(count);
        }
        committed.is_found(TEST, disk, &about);
        disk.cut(count);
        committed.is_found(TEST, disk, &about);
        hit
    };
    let new = |disk: &mut Disk, kind: &str, count| trial(disk, kind, count, true);
    at_every_call(TEST, &[], &["EIO", "ENOSPC", "EDQUOT", "ENOLCK", "short"], new);
    at_every_call(TEST, &["--no-fallocate"], &["ENOSPC", "short"], new);
    at_every_call(TEST, &[], &["EIO", "ENOSPC"], |disk, kind, count| {
        trial(disk, kind, count, false)
    });
}

/// The power goes at any call of a job, and again in the next one, which recovers from that: there
/// is what was durable, and any part of the rest. More trials are had by `RMA_CRASH_TRIALS`.
#[test]
fn power_cut_at_any_moment() {
    const TEST: &str = "power_cut_at_any_moment";
    if is_job() || !in_namespace(TEST) {
        return;
    }
    let (trials, mut cuts) = (crash_trials(60), 0);
    for seed in 0..trials {
        let Some(mut disk) = Disk::mount(TEST, &[]) else { return };
        let mut committed = Committed::default();
        // Somewhere else in each trial, in the whole of a job that is not cut.
        for (round, last) in [(0, 280), (1, 200)] {
            let at = (seed * 2 + round).wrapping_mul(0x9e37_79b9_7f4a_7c15) % last;
            disk.fail("cut", at);
            let output = job(TEST, &format!("versions {}", disk.path().display()));
            let about = format!("trial {seed}, round {round}, call {at}: {:?}", disk.hit());
            cuts += u64::from(disk.hit().is_some());
            judge_cut(&output, &about);
            committed.note(&text(&output));
            disk.cut(seed);
        }
        committed.is_found(TEST, &disk, &format!("trial {seed}"));
    }
    assert!(cuts > trials, "{cuts} cuts in {trials} trials");
}

/// What `sync` has said to be durable is so, on each page, whenever the power goes.
#[test]
fn power_cut_behind_a_sync() {
    const TEST: &str = "power_cut_behind_a_sync";
    if is_job() || !in_namespace(TEST) {
        return;
    }
    let (mut cuts, mut synced) = (0, 0);
    for seed in 0..60 {
        let Some(mut disk) = Disk::mount(TEST, &[]) else { return };
        disk.fail("cut", seed * 2);
        let output = job(TEST, &format!("rounds {}", disk.path().display()));
        let about = format!("trial {seed}: {:?}", disk.hit());
        cuts += u64::from(disk.hit().is_some());
        judge_cut(&output, &about);
        disk.cut(seed);
        for rank in 0..2 {
            let least = number(&text(&output), &format!("synced.{rank} ")).unwrap_or(0);
            synced += u64::from(least > 0);
            let bytes = std::fs::read(disk.path().join(format!("file.{rank}"))).unwrap_or_default();
            assert!(least == 0 || bytes.len() == 8 * PAGE, "{about}");
            let rounds = bytes.chunks(PAGE).filter_map(|page| page.first_chunk());
            let rounds: Vec<_> = rounds.map(|word| u64::from_le_bytes(*word)).collect();
            let is_there = |round: &u64| (least..=ROUNDS.min(least + 1)).contains(round);
            assert!(rounds.iter().all(is_there), "{about}: {rounds:?}, and {least} was durable");
        }
    }
    assert!(cuts > 20 && synced > 20, "{cuts} cuts, {synced} files were synchronised");
}

/// Ranks whose program lies on a disk that answers nothing do not start, and `rma-run` goes on: it
/// tells of that, and hears signals.
#[test]
fn a_program_on_a_disk_that_stands_still_makes_no_launcher_deaf() {
    let test = "a_program_on_a_disk_that_stands_still_makes_no_launcher_deaf";
    if !in_namespace(test) {
        return;
    }
    let Some(disk) = Disk::mount(test, &[]) else { return };
    let [other, program] = ["other", "program"].map(|name| disk.path().join(name));
    for path in [&other, &program] {
        std::fs::copy("/bin/true", path).unwrap();
        // The system keeps what the disk says of it, and asks no more before it is opened.
        std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    // The disk does not know who may do what, which the system hears once.
    rustix::fs::access(&other, rustix::fs::Access::EXEC_OK).unwrap();
    let this = std::env::current_exe().unwrap();
    let launcher = this.parent().and_then(Path::parent).unwrap().join("rma-run");
    let mut command = Command::new(launcher);
    command.args(["--kill-after", "1", "-n", "2"]).arg(&program).stderr(Stdio::piped());
    disk.stand_still();
    let mut job = command.spawn().expect("cargo build -p rma-launcher");
    let mut said = BufReader::new(job.stderr.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    assert!(first.contains("0 of 2 ranks are started; rank 0 is next"), "{first}");
    kill_process(Pid::from_child(&job), Signal::TERM).unwrap();
    let rest: Vec<_> = said.map_while(Result::ok).collect();
    assert_eq!(job.wait().unwrap().code(), Some(143), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("the job was ended by SIGTERM")), "{rest:?}");
}
