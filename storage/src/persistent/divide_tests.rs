//! Windows that are divided anew, with crashes at every change of storage.
use super::PersistentHints;
use super::simulation::{Fault, Job, Result, all_of, key};
use crate::PersistentError;
use crate::store::simulated::{Mistake, Random, Simulated};
use crate::store::{BLOCK, Catalog, Chosen, Medium, divide};

const NAME: &str = "window";
/// How an array of as many bytes is divided, again and again.
const DIVISIONS: [&[u64]; 4] = [
    &[3 * B + 100, B / 2, 2 * B],
    &[B, 4 * B + B / 2 + 100],
    &[1, B, B / 2 + 99, 2 * B, 2 * B],
    &[5 * B + B / 2 + 100],
];
const B: u64 = BLOCK as u64;

fn whole() -> u64 {
    DIVISIONS[0].iter().sum()
}

/// As ranks with parts of these sizes open the window.
fn open(medium: &Simulated, sizes: &[u64], random: &mut Random) -> Result<Job> {
    let hints = PersistentHints::name(NAME).block_distribution(true);
    Job::open(medium, &hints, sizes, Fault::None, random)
}

fn commit(job: &mut Job, random: &mut Random) -> Result<()> {
    all_of(job.commit(None, Fault::None, random)).map(drop)
}

/// Of all parts, one behind the other.
fn bytes(job: &Job) -> Result<Vec<u8>> {
    Ok(job.bytes()?.concat())
}

fn write(job: &Job, sizes: &[u64], bytes: &[u8]) -> Result<()> {
    let mut at = 0;
    for (rank, size) in sizes.iter().enumerate() {
        let end = at + *size as usize;
        job.write(rank, &bytes[at..end])?;
        at = end;
    }
    Ok(())
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
            let mut job = open(&medium, sizes, &mut random)?;
            assert!(bytes(&job)? == *committed, "other bytes in {sizes:?}");
            for _ in 0..2 {
                let at = random.below(now.len());
                now[at] = random.next() as u8 | 1;
                write(&job, sizes, now)?;
                trying.clone_from(now);
                commit(&mut job, &mut random)?;
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
    let mut job = open(&medium, sizes, &mut random).map_err(text)?;
    let found = bytes(&job).map_err(text)?;
    if found != committed && found != trying {
        return Err(format!("neither what was committed nor what was to be, in {sizes:?}"));
    }
    commit(&mut job, &mut random).map_err(text)?;
    // What ranks had that are no more is gone when the window is opened again.
    let job = open(&medium, sizes, &mut random).map_err(text)?;
    assert!(bytes(&job).map_err(text)? == found);
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
    drop(open(&medium, DIVISIONS[0], &mut Random(0)).unwrap());
    let catalog = Catalog::read(&medium, NAME, &key(&medium).unwrap()).unwrap();
    let error = divide(&catalog, Chosen::Newest, 0, &[whole() + 1]).unwrap_err();
    let (held, requested) = (whole(), whole() + 1);
    assert_eq!(error, PersistentError::Total { name: NAME.into(), held, requested });
    let error = divide(&catalog, Chosen::Number(9), 0, &[whole()]).unwrap_err();
    assert!(matches!(error, PersistentError::NoVersion { .. }), "{error}");
    assert_eq!(divide(&catalog, Chosen::Newest, 1, DIVISIONS[0]).unwrap(), None);
}
