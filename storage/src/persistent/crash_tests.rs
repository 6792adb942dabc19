//! Crashes at every step of jobs of several ranks, on storage that loses what was not synchronised.
//!
//! After each crash, all ranks have one version: the last one whose commit returned or, if one was
//! under way, that; with exactly the bytes that were committed.
use super::simulation::{Fault, Job, Outcomes, Result, all_of, key};
use super::transaction::Slip;
use super::{PersistentError, PersistentHints, PersistentMode};
use crate::store::simulated::{Mistake, Random, Simulated};
use crate::store::{BLOCK, Catalog, Key, Medium, PartRef, PartStore, blocks_file, read_range};
use core::ops::Range;
use std::collections::BTreeMap;

const NAME: &str = "window";
const SIZES: [u64; 2] = [3 * BLOCK as u64 + 100, BLOCK as u64 / 2];
const COMMITS: usize = 4;

type Bytes = Vec<Vec<u8>>;
/// Or what is wrong.
type Outcome<T> = std::result::Result<T, String>;

/// What tests know of a job, whatever storage says.
#[derive(Default, Clone)]
struct Truth {
    /// Of each version, by rank and number.
    committed: BTreeMap<(u32, u64), Vec<u8>>,
    /// The last versions of the ranks whose commits have returned.
    returned: Newest,
    /// What they become if the commit that is under way does come to its end.
    trying: Newest,
    /// What the ranks have now.
    now: Bytes,
    /// Commits look at what has a mark, as soon as marks are known.
    by_marks: bool,
    /// Since the last commit of all in this job, if there was one.
    stored: Option<Stored>,
    /// The number of each rank's next version.
    next: [u64; 2],
    /// That of the version that all ranks have asked for.
    requested: Option<u64>,
}

/// Blocks of each rank that were stored to.
type Stored = [Vec<bool>; 2];

fn nothing_stored() -> Stored {
    SIZES.map(|size| vec![false; size.div_ceil(BLOCK as u64) as usize])
}

/// Of each rank.
type Newest = [Option<u64>; 2];

fn catalog(medium: &Simulated) -> Result<Catalog> {
    Ok(Catalog::read(medium, NAME, &key(medium)?)?)
}

fn hints(keep: bool) -> PersistentHints {
    PersistentHints { keep_all: keep, ..PersistentHints::name(NAME) }
}

/// As `hints` open it, without a fault.
fn open(medium: &Simulated, hints: &PersistentHints, hasty: bool) -> Result<Job> {
    // Which rank comes first makes no difference to any; the seeds of trials choose it in commits.
    let mut job = Job::open(medium, hints, &SIZES, Fault::None, &mut Random(1))?;
    let stores = job.transactions.iter_mut().filter_map(|transaction| transaction.store.as_mut());
    stores.for_each(|store| {
        (store.hasty, store.late) = (hasty, medium.mistake == Mistake::LateBlocks);
    });
    Ok(job)
}

/// A commit of all ranks, by comparison and without a fault.
fn commit(job: &mut Job) -> Result<u64> {
    Ok(all_of(job.commit(None, Fault::None, &mut Random(1)))?[0])
}

/// Of a part of a version.
fn bytes_of(medium: &Simulated, key: &Key, rank: u32, part: &PartRef) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_range(medium, key, NAME, rank, part, 0..part.size, |block| {
        bytes.extend(block);
        Ok(())
    })?;
    Ok(bytes)
}

impl Truth {
    fn new() -> Self {
        let now: Bytes = SIZES.iter().map(|size| vec![0; *size as usize]).collect();
        let mut truth = Self { now, ..Self::default() };
        truth.tries(0..2);
        truth
    }

    /// The first job has the window open.
    fn opened(&mut self) {
        (self.returned, self.next) = (self.trying, [1; 2]);
    }

    /// Changes some bytes of some blocks, and writes them to what the windows lie on.
    fn change(&mut self, job: &Job, random: &mut Random) -> Result<()> {
        self.alter(job.medium.mistake, random);
        self.now.iter().enumerate().try_for_each(|(rank, bytes)| job.write(rank, bytes))
    }

    /// As [`change`](Self::change), which is to be written.
    fn alter(&mut self, mistake: Mistake, random: &mut Random) {
        for (rank, bytes) in self.now.iter_mut().enumerate() {
            for _ in 0..random.below(3) {
                let block = random.below(bytes.len().div_ceil(BLOCK));
                let end = bytes.len().min((block + 1) * BLOCK);
                let (at, value) =
                    (block * BLOCK + random.below(end - block * BLOCK), random.next());
                if mistake != Mistake::LostMark || block > 0 {
                    let stored = self.stored.iter_mut();
                    stored.for_each(|stored| stored[rank][block] = true);
                }
                match value % 5 {
                    0 => bytes[block * BLOCK..end].fill(0),
                    _ => bytes[at] = value as u8,
                }
            }
        }
    }

    /// What these ranks have now is to be a version, which will have that number.
    fn keeps(&mut self, ranks: Range<u32>) -> u64 {
        let number = ranks.clone().map(|rank| self.next[rank as usize]).max().unwrap_or(0);
        for rank in ranks {
            self.committed.insert((rank, number), self.now[rank as usize].clone());
        }
        number
    }

    /// A commit of these ranks begins, which will have that number.
    fn tries(&mut self, ranks: Range<u32>) -> u64 {
        let number = self.keeps(ranks.clone());
        ranks.for_each(|rank| self.trying[rank as usize] = Some(number));
        number
    }

    /// And ends: if one rank says so, the version is there.
    fn ends(&mut self, ranks: Range<u32>, number: u64, outcomes: Outcomes<u64>) -> Result<()> {
        for made in outcomes.iter().flatten().filter_map(|outcome| outcome.as_ref().ok()) {
            if *made != number {
                let what = "another number";
                return Err(PersistentError::Arg { name: NAME.into(), what });
            }
            self.returned = self.trying;
        }
        all_of(outcomes)?;
        ranks.for_each(|rank| self.next[rank as usize] = number + 1);
        Ok(())
    }

    /// All ranks ask for a version, and store what comes next; one may have a fault.
    fn request(&mut self, job: &mut Job, fault: Fault, random: &mut Random) -> Result<()> {
        self.conclude(job, Fault::None, random)?;
        let number = self.keeps(0..2);
        job.marks.tells = self.by_marks;
        let stored = self.stored.take();
        self.stored = self.by_marks.then(nothing_stored);
        self.alter(job.medium.mistake, random);
        let room = [0, BLOCK + 1, usize::MAX][random.below(3)];
        let stored = stored.as_ref().map(|stored| &stored[..]);
        job.requested = all_of(job.request(stored, room, &self.now, fault, random))?;
        self.requested = Some(number);
        Ok(())
    }

    /// The version that ranks have asked for, if they have, is decided: not before this begins.
    fn conclude(&mut self, job: &mut Job, fault: Fault, random: &mut Random) -> Result<()> {
        let Some(number) = self.requested.take() else { return Ok(()) };
        self.trying = [Some(number); 2];
        let outcomes = job.conclude(fault, random);
        self.ends(0..2, number, outcomes)
    }

    /// A commit of all ranks, one of which may have a fault.
    fn commit(&mut self, job: &mut Job, fault: Fault, random: &mut Random) -> Result<()> {
        self.conclude(job, Fault::None, random)?;
        let number = self.tries(0..2);
        job.marks.tells = self.by_marks;
        let stored = self.stored.take();
        let outcomes = job.commit(stored.as_ref().map(|stored| &stored[..]), fault, random);
        self.ends(0..2, number, outcomes)?;
        self.stored = self.by_marks.then(nothing_stored);
        Ok(())
    }

    /// Some commits, until nothing works any more. A version may have been asked for behind them.
    fn run(&mut self, job: &mut Job, commits: usize, random: &mut Random) -> Result<()> {
        for _ in 0..commits {
            self.change(job, random)?;
            match random.below(8) {
                rank @ 0..2 if self.requested.is_none() => {
                    let ranks = rank as u32..rank as u32 + 1;
                    let number = self.tries(ranks.clone());
                    self.ends(ranks, number, vec![Some(job.commit_alone(rank))])?;
                }
                2..5 => self.request(job, Fault::None, random)?,
                _ => self.commit(job, Fault::None, random)?,
            }
        }
        Ok(())
    }

    /// Opens what a crash has left, and says what is wrong with it.
    fn recover(&mut self, medium: &Simulated, keep: bool, hasty: bool) -> Outcome<Job> {
        let text = |error: PersistentError| error.to_string();
        let found = catalog(medium).map_err(text)?;
        let newest = |catalog: &Catalog| [0, 1].map(|rank| catalog.numbers(rank).last().copied());
        let numbers = newest(&found);
        if numbers != self.returned && numbers != self.trying {
            let Self { returned, trying, .. } = self;
            return Err(format!("versions {numbers:?} of {returned:?} or {trying:?}"));
        }
        let job = open(medium, &hints(keep), hasty).map_err(text)?;
        let after = catalog(medium).map_err(text)?;
        (self.returned, self.trying) = (newest(&after), newest(&after));
        self.next = [after.highest_number() + 1; 2];
        self.now = job.bytes().map_err(text)?;
        (self.stored, self.requested) = (None, None);
        for (rank, number) in (0..).zip(self.returned) {
            let committed = number.and_then(|number| self.committed.get(&(rank, number)));
            if committed != Some(&self.now[rank as usize]) {
                return Err(format!("version {number:?} has other bytes at rank {rank}"));
            }
        }
        self.verify(medium, &after).map_err(text)?;
        Ok(job)
    }

    /// All versions that there are have the bytes that were committed.
    fn verify(&self, medium: &Simulated, catalog: &Catalog) -> Result<()> {
        let key = key(medium)?;
        for rank in 0..2 {
            for version in catalog.kept(rank) {
                let part = version.part_of(rank).expect("part of a version of all");
                let bytes = bytes_of(medium, &key, rank, part)?;
                let what = "version of other bytes";
                if self.committed.get(&(rank, version.number)) != Some(&bytes) {
                    return Err(PersistentError::Arg { name: NAME.into(), what });
                }
            }
        }
        Ok(())
    }
}

/// How a job ends before its time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    PowerCut,
    /// The processes are killed, others go on, and then the power goes.
    KillAndPowerCut,
}

/// A job that ends after so many changes of storage; a second one that recovers, goes on, and ends
/// somewhere as well; a third one that recovers. False if the first comes to its end.
fn trial(seed: u64, freeze: u64, end: End, mistake: Mistake, hasty: bool) -> Outcome<bool> {
    let mut random = Random(seed);
    let keep = seed % 3 == 2;
    let medium = Simulated::new(mistake);
    let mut truth = Truth { by_marks: seed % 2 == 1, ..Truth::new() };
    medium.freeze_after(freeze);
    let run = |truth: &mut Truth, random: &mut Random| {
        let mut job = open(&medium, &hints(keep), hasty)?;
        truth.opened();
        truth.run(&mut job, COMMITS, random)
    };
    let is_over = run(&mut truth, &mut random).is_ok();
    let mut random = Random(seed ^ freeze.rotate_left(32));
    match end {
        End::PowerCut => medium.power_cut(&mut random),
        End::KillAndPowerCut => medium.restart(),
    }
    let mut job = truth.recover(&medium, keep, hasty)?;
    medium.freeze_after(random.below(80) as u64);
    _ = truth.run(&mut job, COMMITS, &mut random);
    medium.power_cut(&mut random);
    let mut job = truth.recover(&medium, keep, hasty)?;
    truth.run(&mut job, 2, &mut random).map_err(|error| error.to_string())?;
    truth.recover(&medium, keep, hasty)?;
    Ok(!is_over)
}

fn trials(seeds: Range<u64>, mistake: Mistake, hasty: bool) -> Outcome<u64> {
    let mut count = 0;
    for seed in seeds {
        for end in [End::PowerCut, End::KillAndPowerCut] {
            for freeze in 0.. {
                count += 1;
                let went = trial(seed, freeze, end, mistake, hasty);
                if !went.map_err(|error| format!("seed {seed}, {end:?} after {freeze}: {error}"))? {
                    break;
                }
            }
        }
    }
    Ok(count)
}

#[test]
fn every_crash_leaves_a_committed_version() {
    let count = trials(0..12, Mistake::None, false).unwrap_or_else(|error| panic!("{error}"));
    assert!(count > 1000, "{count} trials");
}

/// One mistake each, which the trials must notice.
#[test]
fn mistakes_of_a_store_are_noticed() {
    for mistake in [
        Mistake::FileSync("/blocks."),
        Mistake::FileSync("/part."),
        Mistake::FileSync("/version."),
        Mistake::FolderSyncAfter("part"),
        Mistake::FolderSyncAfter("version"),
        Mistake::FolderSyncAfter("open"),
        Mistake::LostMark,
        Mistake::LateBlocks,
    ] {
        assert!(trials(0..12, mistake, false).is_err(), "{mistake:?}");
    }
    assert!(trials(0..12, Mistake::None, true).is_err(), "slots are used again at once");
}

/// A job with so many versions, all kept.
fn open_with(versions: usize, random: &mut Random) -> (Simulated, Job, Truth) {
    let medium = Simulated::new(Mistake::None);
    let mut truth = Truth::new();
    let mut job = open(&medium, &hints(true), false).unwrap();
    truth.opened();
    truth.run(&mut job, versions, random).unwrap();
    truth.conclude(&mut job, Fault::None, random).unwrap();
    (medium, job, truth)
}

/// A store of several versions, all kept.
fn kept(random: &mut Random) -> (Simulated, Truth) {
    let (medium, _, truth) = open_with(6, random);
    (medium, truth)
}

/// All versions are what was committed, or refused; true if one was refused.
fn refuses(medium: &Simulated, truth: &Truth) -> bool {
    let Ok(found) = catalog(medium) else { return true };
    let mut refused = found.newest(0).is_err() || found.newest(1).is_err();
    for number in 0..=6 {
        // Each rank's by itself, and all together, as they are returned to.
        let mut all = true;
        for rank in 0..2 {
            let Some(version) = found.version(rank, number) else {
                refused |= truth.committed.contains_key(&(rank, number));
                all = false;
                continue;
            };
            let part = version.part_of(rank).expect("part of a version of it");
            let key = key(medium).unwrap();
            match bytes_of(medium, &key, rank, part) {
                Ok(bytes) => assert_eq!(truth.committed.get(&(rank, number)), Some(&bytes)),
                Err(_) => refused = true,
            }
        }
        let (mode, checkpoint_version) = (PersistentMode::Checkpoint, Some(number));
        let hints = PersistentHints { mode, checkpoint_version, append: true, ..hints(true) };
        match open(&medium.copy(), &hints, false) {
            Err(_) => refused |= all,
            Ok(job) => {
                assert!(all, "version {number} is of both ranks");
                for (rank, bytes) in (0..).zip(job.bytes().unwrap()) {
                    assert!(truth.committed[&(rank, number)] == bytes, "{number} of rank {rank}");
                }
            }
        }
    }
    refused
}

/// Bits that flip, files that are cut, lost or swapped: bytes that were not committed are never
/// taken for a version, and what was not touched stays usable.
#[test]
fn damage_is_refused() {
    let mut random = Random(5);
    let (mut flips, mut noticed) = (0, 0);
    for _ in 0..4 {
        let (medium, truth) = kept(&mut random);
        assert!(!refuses(&medium, &truth));
        let files = medium.files();
        let files: Vec<_> = files.iter().filter(|file| !file.contains("work.")).collect();
        for file in &files {
            for _ in 0..4 {
                let medium = medium.copy();
                let number = random.next() as usize;
                medium.damage(file, |bytes| {
                    let bit = number % (bytes.len() * 8);
                    bytes[bit / 8] ^= 1 << (bit % 8);
                });
                flips += 1;
                noticed += u32::from(refuses(&medium, &truth));
            }
            let cut = medium.copy();
            cut.damage(file, |bytes| bytes.truncate(bytes.len() / 2));
            assert!(refuses(&cut, &truth) || file.contains("rma-root"), "{file} was cut");
            let lost = medium.copy();
            lost.remove(file).unwrap();
            assert!(refuses(&lost, &truth), "{file} was lost");
            let other = files[random.below(files.len())];
            let swapped = medium.copy();
            let (here, there) = (swapped.read(file).unwrap(), swapped.read(other).unwrap());
            swapped.damage(file, |bytes| *bytes = there.unwrap());
            swapped.damage(other, |bytes| *bytes = here.unwrap());
            assert!(file == &other || refuses(&swapped, &truth), "{file} and {other} swapped");
        }
    }
    // The second record of a key, and what lies between, may flip unnoticed; blocks may have bytes
    // behind the end of a part.
    assert!(noticed * 4 > flips * 3, "{noticed} of {flips}");
}

#[test]
fn a_store_that_does_not_check_blocks_is_noticed() {
    let (mut medium, truth) = kept(&mut Random(5));
    medium.mistake = Mistake::BlockChecksums;
    let blocks = blocks_file(NAME, 0);
    medium.damage(&blocks, |bytes| bytes[7] ^= 1);
    let checked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| refuses(&medium, &truth)));
    assert!(checked.is_err(), "bytes that nobody committed");
}

/// Also if a crash comes before they are removed.
#[test]
fn later_versions_are_replaced_by_the_one_that_was_restored() {
    let medium = Simulated::new(Mistake::None);
    let mut truth = Truth::new();
    let mut job = open(&medium, &hints(true), false).unwrap();
    for seed in 0..3 {
        truth.change(&job, &mut Random(seed)).unwrap();
        commit(&mut job).unwrap();
    }
    let newest = job.bytes().unwrap();
    drop(job);
    let (mode, checkpoint_version) = (PersistentMode::Checkpoint, Some(1));
    let restored = PersistentHints { mode, checkpoint_version, ..hints(true) };
    let (mut before, mut between) = (0, 0);
    for changes in 0.. {
        let medium = medium.copy();
        let mut job = open(&medium, &restored, false).unwrap();
        let old = job.bytes().unwrap();
        assert!(old != newest);
        medium.freeze_after(changes);
        let is_over = commit(&mut job).is_ok();
        medium.restart();
        // What was made later does not count any more, as soon as there is another version 2.
        let numbers = catalog(&medium).unwrap().numbers(0);
        let left = catalog(&medium).unwrap().versions.len();
        let bytes = open(&medium, &hints(true), false).unwrap().bytes().unwrap();
        match &*numbers {
            [0, 1, 2, 3] => {
                assert!(bytes == newest);
                before += 1;
            }
            [0, 1, 2] => assert!(bytes == old),
            numbers => panic!("{numbers:?}"),
        }
        between += u32::from(numbers.len() == 3 && left > 3);
        if is_over {
            assert_eq!((numbers.len(), left), (3, 3));
            break;
        }
    }
    assert!(before > 0 && between > 0, "{before} and {between}");
}

/// A commit that finds no space makes nothing, harms nothing, and the next one does: at the rank
/// that has none for its blocks, and where there is none for the record.
#[test]
fn a_commit_without_space_leaves_all_as_it_was() {
    for is_record in [false, true] {
        let mut random = Random(3);
        let (medium, mut job, mut truth) = open_with(3, &mut random);
        let (before, files) = (catalog(&medium).unwrap().versions, medium.files());
        for (rank, size) in SIZES.into_iter().enumerate() {
            // What a rank has not changed takes no space.
            truth.now[rank] = vec![9; if is_record { 0 } else { size as usize }];
            job.write(rank, &truth.now[rank]).unwrap();
        }
        let blocks = medium.open(&blocks_file(NAME, 0)).unwrap().unwrap();
        medium.space.set(if is_record { 10 } else { medium.len(&blocks).unwrap() });
        let outcomes = job.commit(None, Fault::None, &mut random);
        let codes = outcomes.iter().flatten().map(|outcome| outcome.as_ref().unwrap_err().code());
        let no_space = Some(super::PersistentCode::NoMem);
        assert_eq!(codes.collect::<Vec<_>>(), [no_space; 2]);
        assert_eq!((catalog(&medium).unwrap().versions, medium.files()), (before, files));
        medium.space.set(u64::MAX);
        truth.now = job.bytes().unwrap();
        truth.commit(&mut job, Fault::None, &mut random).unwrap();
        truth.recover(&medium, true, false).unwrap();
    }
}

/// So does a version that was asked for, whose copies find room or not; what was stored since is in
/// the next one.
#[test]
fn a_request_without_space_leaves_all_as_it_was() {
    for room in [0, BLOCK, usize::MAX] {
        let mut random = Random(3);
        let (medium, mut job, mut truth) = open_with(3, &mut random);
        let (before, files) = (catalog(&medium).unwrap().versions, medium.files());
        for (rank, size) in SIZES.into_iter().enumerate() {
            job.write(rank, &vec![9; size as usize]).unwrap();
        }
        truth.now = SIZES.map(|size| vec![8; size as usize]).to_vec();
        let blocks = medium.open(&blocks_file(NAME, 0)).unwrap().unwrap();
        medium.space.set(medium.len(&blocks).unwrap());
        let no_space = Some(super::PersistentCode::NoMem);
        let asked = job.request(None, room, &truth.now, Fault::None, &mut random);
        let codes: Vec<_> = if room < usize::MAX {
            // Blocks that had no room were to be written at once.
            truth.now.iter().enumerate().for_each(|(rank, now)| job.write(rank, now).unwrap());
            asked.iter().flatten().map(|asked| asked.as_ref().unwrap_err().code()).collect()
        } else {
            job.requested = all_of(asked).unwrap();
            let outcomes = job.conclude(Fault::None, &mut random);
            outcomes.iter().flatten().map(|made| made.as_ref().unwrap_err().code()).collect()
        };
        assert_eq!(codes, [no_space; 2], "{room}");
        assert_eq!((catalog(&medium).unwrap().versions, medium.files()), (before, files));
        medium.space.set(u64::MAX);
        truth.commit(&mut job, Fault::None, &mut random).unwrap();
        truth.recover(&medium, true, false).unwrap();
    }
}

/// A store that went with the thread that had it makes no version, and none that is told of.
#[test]
fn without_a_store_no_rank_makes_a_version() {
    let mut job = open(&Simulated::new(Mistake::None), &hints(false), false).unwrap();
    job.transactions[0].store = None;
    let made = job.commit_alone(0);
    assert!(matches!(made, Err(PersistentError::Poisoned { .. })), "{made:?}");
    let outcomes = job.commit(None, Fault::None, &mut Random(3));
    assert!(matches!(outcomes[0], Some(Err(PersistentError::Poisoned { .. }))), "{outcomes:?}");
    assert!(matches!(outcomes[1], Some(Err(PersistentError::Elsewhere { .. }))), "{outcomes:?}");
}

/// All ranks have their store poisoned, and none says that there is no version.
fn are_poisoned<T>(job: &Job, outcomes: &Outcomes<T>) -> bool {
    let is_told = |outcome: &Option<Result<T>>| match outcome {
        Some(Err(error)) => error.code().is_none(),
        _ => false,
    };
    let stores = job.transactions.iter().filter_map(|transaction| transaction.store.as_ref());
    outcomes.iter().all(is_told) && stores.map(PartStore::is_poisoned).eq([true; 2])
}

/// A call that finds no space once the version is decided: no rank hears that there is none, and
/// all have to open it again, which finds it.
#[test]
fn without_space_behind_a_decision_no_rank_says_that_there_is_no_version() {
    let medium = Simulated::new(Mistake::None);
    let (mut truth, mut random) = (Truth::new(), Random(3));
    let mut job = open(&medium, &hints(false), false).unwrap();
    truth.opened();
    truth.change(&job, &mut random).unwrap();
    truth.tries(0..2);
    medium.full.set("remove");
    let outcomes = job.commit(None, Fault::None, &mut random);
    assert!(are_poisoned(&job, &outcomes), "{outcomes:?}");
    medium.full.set("");
    truth.returned = truth.trying;
    let mut job = truth.recover(&medium, false, false).unwrap();
    // Transactions end behind a version.
    truth.change(&job, &mut random).unwrap();
    truth.commit(&mut job, Fault::None, &mut random).unwrap();
    medium.full.set("sync");
    let outcomes = job.end(Fault::None, &mut random);
    assert!(are_poisoned(&job, &outcomes), "{outcomes:?}");
    medium.full.set("");
    truth.recover(&medium, false, false).unwrap();
}

/// In which a rank has a fault.
#[derive(Debug, Clone, Copy)]
enum Call {
    Open,
    Commit,
    Request,
    /// Of a version that was asked for.
    Conclude,
}

/// A job in which one rank has a fault in a call; then one that recovers and goes on. False if the
/// fault did not come.
fn faulty(seed: u64, fault: Fault, call: Call, slip: Option<Slip>) -> Outcome<bool> {
    let text = |error: PersistentError| error.to_string();
    let (mut random, medium) = (Random(seed), Simulated::new(Mistake::None));
    let keep = seed % 3 == 2;
    let mut truth = Truth { by_marks: seed % 2 == 1, ..Truth::new() };
    let came = if let Call::Open = call {
        if !seed.is_multiple_of(4) {
            let mut job = open(&medium, &hints(keep), false).map_err(text)?;
            truth.opened();
            truth.run(&mut job, seed as usize % 4, &mut random).map_err(text)?;
            // What was not committed is rolled back.
            truth.change(&job, &mut random).map_err(text)?;
        }
        Job::open(&medium, &hints(keep), &SIZES, fault, &mut random).is_err()
    } else {
        let mut job = open(&medium, &hints(keep), false).map_err(text)?;
        truth.opened();
        truth.run(&mut job, seed as usize % 4, &mut random).map_err(text)?;
        truth.conclude(&mut job, Fault::None, &mut random).map_err(text)?;
        truth.change(&job, &mut random).map_err(text)?;
        job.transactions.iter_mut().for_each(|transaction| transaction.slip = slip);
        let (of_request, of_end) = match call {
            Call::Request => (fault, Fault::None),
            _ => (Fault::None, fault),
        };
        let went = match call {
            Call::Open | Call::Commit => truth.commit(&mut job, fault, &mut random),
            Call::Request | Call::Conclude => truth
                .request(&mut job, of_request, &mut random)
                .and_then(|()| truth.conclude(&mut job, of_end, &mut random)),
        };
        match went {
            // Of no storage, and of no rank that has ended.
            Err(error @ PersistentError::Arg { .. }) => return Err(text(error)),
            went => went.is_err(),
        }
    };
    match random.below(3) {
        0 => medium.power_cut(&mut random),
        // Other ranks have ended with their job, or open the window again.
        _ => medium.restart(),
    }
    let mut job = truth.recover(&medium, keep, false)?;
    truth.run(&mut job, 2, &mut random).map_err(text)?;
    medium.power_cut(&mut random);
    truth.recover(&medium, keep, false)?;
    Ok(came)
}

/// How ranks end while they turn transactions off.
#[derive(Debug, Clone, Copy)]
enum Ending {
    /// All, after so many changes of storage.
    All(u64),
    One(Fault),
}

/// A job that turns transactions off behind a commit, and ends there; what the window holds is what
/// was committed, whichever record says so, and also behind one more version. False if the end did
/// not come before.
fn turned_off(seed: u64, ending: Ending, mistake: Mistake) -> Outcome<bool> {
    let text = |error: PersistentError| error.to_string();
    let (mut random, medium) = (Random(seed), Simulated::new(mistake));
    let keep = seed % 3 == 2;
    let mut truth = Truth::new();
    let mut job = open(&medium, &hints(keep), false).map_err(text)?;
    truth.opened();
    truth.run(&mut job, 1 + seed as usize % 3, &mut random).map_err(text)?;
    truth.commit(&mut job, Fault::None, &mut random).map_err(text)?;
    let fault = match ending {
        Ending::All(changes) => {
            medium.freeze_after(changes);
            Fault::None
        }
        Ending::One(fault) => fault,
    };
    let outcomes = job.end(fault, &mut random);
    drop(job);
    let is_over = all_of(outcomes).is_ok();
    match random.below(3) {
        0 => medium.restart(),
        _ => medium.power_cut(&mut random),
    }
    let is_plain = |catalog: Catalog| catalog.is_plain(0) && catalog.is_plain(1);
    if is_over && !is_plain(catalog(&medium).map_err(text)?) {
        return Err("it has transactions".to_owned());
    }
    let plain = seed % 2 == 1;
    let mut job = open(&medium, &PersistentHints { plain, ..hints(keep) }, false).map_err(text)?;
    if job.bytes().map_err(text)? != truth.now {
        return Err("it holds other bytes".to_owned());
    }
    // Transactions again, if they were off.
    commit(&mut job).map_err(text)?;
    medium.power_cut(&mut random);
    let job = open(&medium, &hints(keep), false).map_err(text)?;
    if job.bytes().map_err(text)? != truth.now {
        return Err("the next version has other bytes".to_owned());
    }
    Ok(!is_over)
}

fn turned_off_at_any_step(seeds: Range<u64>, mistake: Mistake) -> Outcome<u64> {
    let kinds: [fn(u64) -> Ending; 7] = [
        Ending::All,
        |step| Ending::One(Fault::AtChange(0, step)),
        |step| Ending::One(Fault::AtChange(1, step)),
        |step| Ending::One(Fault::Told(0, step as usize)),
        |step| Ending::One(Fault::Told(1, step as usize)),
        |step| Ending::One(Fault::Deaf(0, step as usize)),
        |step| Ending::One(Fault::Deaf(1, step as usize)),
    ];
    let mut count = 0;
    for seed in seeds {
        for kind in kinds {
            for step in 0.. {
                let ending = kind(step);
                count += 1;
                let went = turned_off(seed, ending, mistake);
                if !went.map_err(|error| format!("seed {seed}, {ending:?}: {error}"))? {
                    break;
                }
            }
        }
    }
    Ok(count)
}

#[test]
fn transactions_that_are_turned_off_leave_what_was_committed() {
    let count =
        turned_off_at_any_step(0..12, Mistake::None).unwrap_or_else(|error| panic!("{error}"));
    assert!(count > 300, "{count} trials");
    assert!(turned_off_at_any_step(0..12, Mistake::FileSync("work.")).is_err());
}

/// All faults of both ranks, at every step.
fn all_faults(seeds: Range<u64>, slip: Option<Slip>) -> Outcome<u64> {
    let kinds: [fn(usize, usize) -> Fault; 3] =
        [|rank, step| Fault::AtChange(rank, step as u64), Fault::Told, Fault::Deaf];
    let mut count = 0;
    for seed in seeds {
        for (kind, rank) in kinds.into_iter().flat_map(|kind| [(kind, 0), (kind, 1)]) {
            for call in [Call::Open, Call::Commit, Call::Request, Call::Conclude] {
                for step in 0.. {
                    let fault = kind(rank, step);
                    let went = faulty(seed, fault, call, slip);
                    count += 1;
                    let told = |error| format!("seed {seed}, {fault:?}, {call:?}: {error}");
                    if !went.map_err(told)? {
                        break;
                    }
                }
            }
        }
    }
    Ok(count)
}

#[test]
fn a_rank_that_ends_or_hears_nothing_at_any_step_leaves_a_committed_version() {
    let count = all_faults(0..24, None).unwrap_or_else(|error| panic!("{error}"));
    assert!(count > 1000, "{count} trials");
}

#[test]
fn mistakes_of_ranks_that_hear_nothing_are_noticed() {
    for slip in [
        Slip::AbandonsUnheard,
        Slip::AbandonsUndecided,
        Slip::ReturnsUndecided,
        Slip::OwnNumber,
        Slip::CopiesLate,
        Slip::GoesOnEarly,
    ] {
        assert!(all_faults(0..24, Some(slip)).is_err(), "{slip:?}");
    }
}
