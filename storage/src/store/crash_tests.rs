//! Crashes at every step of jobs of several ranks, on storage that loses what was not synchronised.
//!
//! After each crash, all ranks have one version: the last one whose commit returned or, if one was
//! under way, that; with exactly the bytes that were committed.
use super::catalog::{Catalog, key_of};
use super::format::{BLOCK, ElementType, Key, State};
use super::medium::Medium;
use super::part::{Decision, Opening, PartStore, read_range};
use super::simulated::{Mistake, Random, Simulated};
use super::work_file;
use crate::PersistentError;
use std::collections::BTreeMap;

const NAME: &str = "window";
const SIZES: [usize; 2] = [3 * BLOCK + 100, BLOCK / 2];
const COMMITS: usize = 4;

type Result<T> = std::result::Result<T, PersistentError>;
type Bytes = Vec<Vec<u8>>;
/// Or what is wrong.
type Outcome<T> = std::result::Result<T, String>;

/// A job of two ranks, which run one behind the other.
struct Job {
    medium: Simulated,
    stores: Vec<PartStore<Simulated>>,
    next: u64,
    keep: bool,
}

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
}

/// Blocks of each rank that were stored to.
type Stored = [Vec<bool>; 2];

fn nothing_stored() -> Stored {
    SIZES.map(|size| vec![false; size.div_ceil(BLOCK)])
}

/// Of each rank.
type Newest = [Option<u64>; 2];

fn decision(number: u64, serial: u64, alone: bool) -> Decision {
    let (highest, element) = (number, ElementType::default());
    Decision { number, serial, highest, time_ns: 0, state: State::Kept, alone, element }
}

fn key(medium: &Simulated) -> Result<Key> {
    // Another one if it is made anew.
    let (name, files) = (NAME.to_owned(), medium.files().len() as u8);
    key_of(medium, || Ok([files; 32]))?.ok_or(PersistentError::Arg { name, what: "no key" })
}

fn catalog(medium: &Simulated) -> Result<Catalog> {
    Ok(Catalog::read(medium, NAME, &key(medium)?)?)
}

impl Job {
    /// As the ranks of a job open their parts.
    fn open(medium: &Simulated, keep: bool, number: Option<u64>, hasty: bool) -> Result<Self> {
        let key = key(medium)?;
        medium.make_folder(NAME)?;
        medium.sync_folder("")?;
        medium.sync_folder(NAME)?;
        let catalog = Catalog::read(medium, NAME, &key)?;
        let mut stores = Vec::new();
        for (rank, size) in (0..).zip(SIZES) {
            let newest = match number {
                None => catalog.newest(rank)?,
                Some(number) => catalog.version(rank, number),
            };
            let opening = Opening { name: NAME, rank, ranks: 2, size: size as u64, base: newest };
            let mut store = PartStore::open(medium.clone(), key, &catalog, &opening)?;
            store.hasty = hasty;
            store.fill()?;
            stores.push(store);
        }
        let next = catalog.highest_number() + u64::from(!catalog.is_nothing());
        let mut job = Self { medium: medium.clone(), stores, next, keep };
        if catalog.is_nothing() {
            job.commit(None)?;
        }
        Ok(job)
    }

    /// Of all ranks; by the blocks of each that were stored to, or by comparison.
    fn commit(&mut self, stored: Option<&Stored>) -> Result<u64> {
        let serial = self.stores.iter().map(PartStore::highest_serial).max().unwrap_or(0) + 1;
        let mut parts = Vec::new();
        for (rank, store) in self.stores.iter_mut().enumerate() {
            parts.push(store.prepare(serial, stored.map(|stored| &*stored[rank]))?);
        }
        let decision = decision(self.next, serial, false);
        self.stores[0].decide(&decision, parts)?;
        for store in &mut self.stores {
            store.adopt(&decision, self.keep, u64::MAX)?;
        }
        self.next += 1;
        Ok(decision.number)
    }

    /// Of one rank.
    fn commit_alone(&mut self, rank: usize) -> Result<u64> {
        let store = &mut self.stores[rank];
        let serial = store.highest_serial() + 1;
        let part = store.prepare(serial, None)?;
        let decision = decision(self.next, serial, true);
        store.decide(&decision, vec![part])?;
        store.adopt(&decision, self.keep, u64::MAX)?;
        self.next += 1;
        Ok(decision.number)
    }

    fn bytes(&self) -> Result<Bytes> {
        let read = |rank: u32| self.medium.read(&work_file(NAME, rank));
        Ok((0..2)
            .map(|rank| read(rank).map(Option::unwrap_or_default))
            .collect::<super::medium::Result<_>>()?)
    }
}

impl Truth {
    fn new() -> Self {
        let now: Bytes = SIZES.iter().map(|size| vec![0; *size]).collect();
        let mut truth = Self { now, ..Self::default() };
        truth.tries(0, 0..2);
        truth
    }

    /// Changes some bytes of some blocks, and writes them to what the windows lie on.
    fn change(&mut self, medium: &Simulated, random: &mut Random) -> Result<()> {
        for (rank, bytes) in (0..).zip(&mut self.now) {
            for _ in 0..random.below(3) {
                let block = random.below(bytes.len().div_ceil(BLOCK));
                let end = bytes.len().min((block + 1) * BLOCK);
                let (at, value) =
                    (block * BLOCK + random.below(end - block * BLOCK), random.next());
                if medium.mistake != Mistake::LostMark || block > 0 {
                    let stored = self.stored.iter_mut();
                    stored.for_each(|stored| stored[rank as usize][block] = true);
                }
                match value % 5 {
                    0 => bytes[block * BLOCK..end].fill(0),
                    _ => bytes[at] = value as u8,
                }
            }
            let file = medium.open(&work_file(NAME, rank))?.expect("made when it was opened");
            medium.write_at(&file, bytes, 0)?;
        }
        Ok(())
    }

    /// A commit of these ranks begins.
    fn tries(&mut self, number: u64, ranks: impl Iterator<Item = u32>) {
        for rank in ranks {
            self.committed.insert((rank, number), self.now[rank as usize].clone());
            self.trying[rank as usize] = Some(number);
        }
    }

    /// Some commits, until nothing works any more.
    fn run(&mut self, job: &mut Job, commits: usize, random: &mut Random) -> Result<()> {
        for _ in 0..commits {
            self.change(&job.medium, random)?;
            match random.below(5) {
                rank @ 0..2 => {
                    self.tries(job.next, rank as u32..rank as u32 + 1);
                    job.commit_alone(rank)?;
                }
                _ => {
                    self.tries(job.next, 0..2);
                    job.commit(self.stored.as_ref())?;
                    self.stored = self.by_marks.then(nothing_stored);
                }
            }
            self.returned = self.trying;
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
        let job = Job::open(medium, keep, None, hasty).map_err(text)?;
        let after = catalog(medium).map_err(text)?;
        (self.returned, self.trying) = (newest(&after), newest(&after));
        self.now = job.bytes().map_err(text)?;
        self.stored = None;
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
                let mut bytes = Vec::new();
                read_range(medium, &key, NAME, rank, part, 0..part.size, |block| {
                    bytes.extend(block);
                    Ok(())
                })?;
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
        let mut job = Job::open(&medium, keep, None, hasty)?;
        truth.returned = truth.trying;
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

fn trials(seeds: std::ops::Range<u64>, mistake: Mistake, hasty: bool) -> Outcome<u64> {
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
    ] {
        assert!(trials(0..12, mistake, false).is_err(), "{mistake:?}");
    }
    assert!(trials(0..12, Mistake::None, true).is_err(), "slots are used again at once");
}

/// A store of several versions, all kept.
fn kept(random: &mut Random) -> (Simulated, Truth) {
    let medium = Simulated::new(Mistake::None);
    let mut truth = Truth::new();
    let mut job = Job::open(&medium, true, None, false).unwrap();
    truth.run(&mut job, 6, random).unwrap();
    (medium, truth)
}

/// All versions are what was committed, or refused; true if one was refused.
fn refuses(medium: &Simulated, truth: &Truth) -> bool {
    let Ok(found) = catalog(medium) else { return true };
    let mut refused = found.newest(0).is_err() || found.newest(1).is_err();
    for number in 0..=6 {
        let medium = medium.copy();
        let Ok(job) = Job::open(&medium, true, Some(number), false) else {
            refused = true;
            continue;
        };
        for (rank, bytes) in (0..).zip(job.bytes().unwrap()) {
            let zeros = || vec![0; SIZES[rank as usize]];
            // A rank that has no such version begins with zeros in these tests.
            let is_held = catalog(&medium).unwrap().version(rank, number).is_some();
            let wanted = if is_held { truth.committed[&(rank, number)].clone() } else { zeros() };
            assert!(bytes == wanted, "version {number} of rank {rank} has other bytes");
            refused |= is_held != truth.committed.contains_key(&(rank, number));
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
    let blocks = super::catalog::blocks_file(NAME, 0);
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
    let mut job = Job::open(&medium, true, None, false).unwrap();
    for _ in 0..3 {
        truth.change(&medium, &mut Random(job.next)).unwrap();
        job.commit(None).unwrap();
    }
    let mut job = Job::open(&medium, true, Some(1), false).unwrap();
    let old = job.bytes().unwrap();
    job.next = 2;
    let serial = job.stores[0].highest_serial() + 1;
    let parts = job.stores.iter_mut().map(|store| store.prepare(serial, None).unwrap()).collect();
    let decision = decision(2, serial, false);
    job.stores[0].decide(&decision, parts).unwrap();
    // A crash here leaves version 3 behind, which no longer counts.
    assert_eq!(catalog(&medium).unwrap().numbers(0), [0, 1, 2]);
    job.stores.iter_mut().for_each(|store| store.adopt(&decision, true, 2).unwrap());
    assert_eq!(catalog(&medium).unwrap().versions.len(), 3);
    let job = Job::open(&medium, true, None, false).unwrap();
    assert_eq!(job.bytes().unwrap(), old);
}

/// A commit that finds no space makes nothing, harms nothing, and the next one does.
#[test]
fn a_commit_without_space_leaves_all_as_it_was() {
    let medium = Simulated::new(Mistake::None);
    let (mut truth, mut random) = (Truth::new(), Random(3));
    let mut job = Job::open(&medium, true, None, false).unwrap();
    truth.run(&mut job, 3, &mut random).unwrap();
    let before = catalog(&medium).unwrap().versions;
    let blocks = super::blocks_file(NAME, 0);
    let full = medium.len(&medium.open(&blocks).unwrap().unwrap()).unwrap();
    medium.space.set(full);
    let file = medium.open(&work_file(NAME, 0)).unwrap().unwrap();
    truth.now[0] = vec![9; SIZES[0]];
    medium.write_at(&file, &truth.now[0], 0).unwrap();
    let serial = job.stores.iter().map(PartStore::highest_serial).max().unwrap() + 1;
    let error = job.stores[0].prepare(serial, None).unwrap_err();
    assert!(matches!(error, PersistentError::Space { .. }), "{error}");
    job.stores[0].abandon();
    assert_eq!(catalog(&medium).unwrap().versions, before);
    medium.space.set(u64::MAX);
    truth.tries(job.next, 0..2);
    job.commit(None).unwrap();
    truth.returned = truth.trying;
    truth.recover(&medium, true, false).unwrap();
}

/// Two ranks with all parts of the next version written, and what is to decide it.
fn prepared() -> (Simulated, Truth, Job, Decision, Vec<super::PartRef>) {
    let medium = Simulated::new(Mistake::None);
    let mut truth = Truth::new();
    let mut job = Job::open(&medium, true, None, false).unwrap();
    for (rank, bytes) in (0..).zip(&mut truth.now) {
        bytes.fill(7);
        let file = medium.open(&work_file(NAME, rank)).unwrap().unwrap();
        medium.write_at(&file, bytes, 0).unwrap();
    }
    truth.returned = truth.trying;
    truth.tries(job.next, 0..2);
    let serial = job.stores.iter().map(PartStore::highest_serial).max().unwrap() + 1;
    let parts = job.stores.iter_mut().map(|store| store.prepare(serial, None).unwrap()).collect();
    let decision = decision(job.next, serial, false);
    (medium, truth, job, decision, parts)
}

/// It hears of no agreement, while rank 0 has heard of all parts and decides.
#[test]
fn a_rank_that_does_not_hear_the_others_leaves_its_part() {
    let (medium, mut truth, mut job, decision, parts) = prepared();
    let (what, root) = ("allgather", rma_core::Rank(1));
    let lost = rma_core::CollectiveError::NoSuchRoot { what, root, last: root };
    job.stores[1].give_up(&lost.into());
    assert!(job.stores[1].is_poisoned());
    job.stores[0].decide(&decision, parts).unwrap();
    truth.returned = truth.trying;
    truth.recover(&medium, true, false).unwrap();
}

/// There is no space for the record of a version: nothing has its name, and the next commit works.
#[test]
fn a_record_without_space_leaves_all_as_it_was() {
    let (medium, mut truth, mut job, decision, parts) = prepared();
    let before = catalog(&medium).unwrap().versions;
    medium.space.set(10);
    let error = job.stores[0].decide(&decision, parts).unwrap_err();
    assert!(matches!(error, PersistentError::Space { .. }), "{error}");
    job.stores[1].abandon();
    assert!(job.stores.iter().all(|store| !store.is_poisoned()));
    let files = medium.files();
    let left = |file: &&String| file.ends_with(".new") || file.contains("00000002");
    assert_eq!((catalog(&medium).unwrap().versions, files.iter().find(left)), (before, None));
    medium.space.set(u64::MAX);
    job.commit(None).unwrap();
    truth.returned = truth.trying;
    truth.recover(&medium, true, false).unwrap();
}
