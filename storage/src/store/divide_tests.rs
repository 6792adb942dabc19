//! Windows that are divided anew, with crashes at every change of storage.
use super::catalog::Catalog;
use super::divide::{Chosen, Piece, divide};
use super::format::{BLOCK, ElementType, Key, State};
use super::medium::Medium;
use super::part::{Decision, Opening, PartStore};
use super::simulated::{Mistake, Random, Simulated};
use super::work_file;
use crate::PersistentError;

const NAME: &str = "window";
const KEY: Key = [7; 32];
/// How an array of as many bytes is divided, again and again.
const DIVISIONS: [&[u64]; 4] = [
    &[3 * B + 100, B / 2, 2 * B],
    &[B, 4 * B + B / 2 + 100],
    &[1, B, B / 2 + 99, 2 * B, 2 * B],
    &[5 * B + B / 2 + 100],
];
const B: u64 = BLOCK as u64;

type Result<T> = std::result::Result<T, PersistentError>;

fn whole() -> u64 {
    DIVISIONS[0].iter().sum()
}

struct Job {
    medium: Simulated,
    sizes: &'static [u64],
    stores: Vec<PartStore<Simulated>>,
    next: u64,
}

impl Job {
    /// As ranks with parts of these sizes open the window.
    fn open(medium: &Simulated, sizes: &'static [u64]) -> Result<Self> {
        medium.make_folder(NAME)?;
        medium.sync_folder("")?;
        medium.sync_folder(NAME)?;
        let catalog = Catalog::read(medium, NAME, &KEY)?;
        let (mut stores, ranks) = (Vec::new(), sizes.len() as u32);
        let mut begins = catalog.is_nothing();
        for (rank, size) in (0..).zip(sizes.iter().copied()) {
            let pieces: Option<Vec<Piece>> = divide(&catalog, Chosen::Newest, rank, sizes)?;
            let base = catalog.newest(rank)?.filter(|_| pieces.is_none());
            let opening = Opening { name: NAME, rank, ranks, size, base };
            let store = PartStore::open(medium.clone(), KEY, &catalog, &opening)?;
            match &pieces {
                Some(pieces) => store.fill_from(pieces)?,
                None => store.fill()?,
            }
            begins |= pieces.is_some();
            stores.push(store);
        }
        let next = catalog.highest_number() + u64::from(!catalog.is_nothing());
        let mut job = Self { medium: medium.clone(), sizes, stores, next };
        if begins {
            job.commit()?;
        }
        Ok(job)
    }

    fn commit(&mut self) -> Result<()> {
        let serial = self.stores.iter().map(PartStore::highest_serial).max().unwrap_or(0) + 1;
        let parts = self.stores.iter_mut().map(|store| store.prepare(serial, None));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let (number, element) = (self.next, ElementType::default());
        let (highest, state, alone, time_ns) = (number, State::Kept, false, 0);
        let decision = Decision { number, serial, highest, time_ns, state, alone, element };
        self.stores[0].decide(&decision, parts)?;
        self.stores.iter_mut().try_for_each(|store| store.adopt(&decision, false, u64::MAX))?;
        self.next += 1;
        Ok(())
    }

    /// Of all parts, one behind the other.
    fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for (rank, size) in (0..).zip(self.sizes) {
            let part = self.medium.read(&work_file(NAME, rank))?.unwrap_or_default();
            bytes.extend(&part[..*size as usize]);
        }
        Ok(bytes)
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut at = 0;
        for (rank, size) in (0..).zip(self.sizes) {
            let end = at + *size as usize;
            let file = self.medium.open(&work_file(NAME, rank))?.expect("made when it was opened");
            self.medium.write_at(&file, &bytes[at..end], 0)?;
            at = end;
        }
        Ok(())
    }
}

/// Jobs one after the other, each of other ranks, until one ends; then what the next finds. False
/// if none has.
fn trial(seed: u64, freeze: u64) -> std::result::Result<bool, String> {
    let mut random = Random(seed);
    let medium = Simulated::new(Mistake::None);
    medium.freeze_after(freeze);
    let mut now = vec![0; whole() as usize];
    let (mut committed, mut trying) = (now.clone(), now.clone());
    let mut is_over = true;
    for sizes in DIVISIONS.into_iter().cycle().take(6) {
        let mut run = |now: &mut Vec<u8>, committed: &mut Vec<u8>, trying: &mut Vec<u8>| {
            let mut job = Job::open(&medium, sizes)?;
            assert!(job.bytes()? == *committed, "other bytes in {sizes:?}");
            for _ in 0..2 {
                let at = random.below(now.len());
                now[at] = random.next() as u8 | 1;
                job.write(now)?;
                trying.clone_from(now);
                job.commit()?;
                committed.clone_from(now);
            }
            Ok::<_, PersistentError>(())
        };
        if run(&mut now, &mut committed, &mut trying).is_err() {
            is_over = false;
            break;
        }
    }
    let mut random = Random(seed ^ freeze.rotate_left(32));
    medium.power_cut(&mut random);
    let sizes = DIVISIONS[random.below(DIVISIONS.len())];
    let text = |error: PersistentError| error.to_string();
    let mut job = Job::open(&medium, sizes).map_err(text)?;
    let found = job.bytes().map_err(text)?;
    if found != committed && found != trying {
        return Err(format!("neither what was committed nor what was to be, in {sizes:?}"));
    }
    job.commit().map_err(text)?;
    // What ranks had that are no more is gone when the window is opened again.
    let job = Job::open(&medium, sizes).map_err(text)?;
    assert!(job.bytes().map_err(text)? == found);
    let files = medium.list(NAME).map_err(|error| text(error.into()))?.unwrap_or_default();
    let is_left = |file: &&String| {
        let rank = file.split('.').nth(1).and_then(|rank| rank.parse::<usize>().ok());
        !file.starts_with("version.") && rank.is_some_and(|rank| rank >= sizes.len())
    };
    match files.iter().find(is_left) {
        Some(file) => Err(format!("{file} of {} ranks", sizes.len())),
        None => Ok(!is_over),
    }
}

#[test]
fn every_crash_of_a_division_leaves_a_committed_array() {
    let mut count = 0;
    for seed in 0..3 {
        for freeze in 0.. {
            count += 1;
            let went = trial(seed, freeze);
            match went.map_err(|error| format!("seed {seed}, after {freeze}: {error}")) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(count > 300, "{count} trials");
}

#[test]
fn what_is_another_array_is_refused_by_name() {
    let medium = Simulated::new(Mistake::None);
    let job = Job::open(&medium, DIVISIONS[0]).unwrap();
    drop(job);
    let catalog = Catalog::read(&medium, NAME, &KEY).unwrap();
    let error = divide(&catalog, Chosen::Newest, 0, &[whole() + 1]).unwrap_err();
    let (held, requested) = (whole(), whole() + 1);
    assert_eq!(error, PersistentError::Total { name: NAME.into(), held, requested });
    let error = divide(&catalog, Chosen::Number(9), 0, &[whole()]).unwrap_err();
    assert!(matches!(error, PersistentError::NoVersion { .. }), "{error}");
    assert_eq!(divide(&catalog, Chosen::Newest, 1, DIVISIONS[0]).unwrap(), None);
}
