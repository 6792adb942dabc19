//! What ranks tell each other when they join.

use super::{OfiJoinError, Told, read, seed_of};
use crate::profile::{Profile, Seed};
use crate::sys::Atomics;
use rma_core::transport::WorldRank;

const SEED: Seed = [5; 32];
const NONE: Seed = [0; 32];

/// The profile of a rank whose addresses have two bytes.
fn open(seed: Seed) -> Profile {
    let (provider, atomics) = ("tcp".to_owned(), Atomics::default());
    Profile::Open { seed, provider, address_len: 2, has_memory: true, atomics }
}

fn one(profile: &Profile) -> (u32, Vec<u8>) {
    (1, profile.to_bytes())
}

fn profiles(said: &[(u32, Vec<u8>)], size: u32) -> Result<Told, OfiJoinError<String>> {
    read(said, size, "tcp", 2)
}

/// What ranks in a row say alike is told once, as a launcher does.
fn gathered(profiles: impl Iterator<Item = Profile>) -> Vec<(u32, Vec<u8>)> {
    let mut runs: Vec<(u32, Vec<u8>)> = Vec::new();
    for profile in profiles.map(|profile| profile.to_bytes()) {
        match runs.last_mut() {
            Some((count, last)) if *last == profile => *count += 1,
            _ => runs.push((1, profile)),
        }
    }
    runs
}

#[test]
fn the_key_of_a_job_is_made_by_its_first_rank() {
    let said = [one(&open(SEED)), one(&open(NONE))];
    let told = Told { seed: SEED, without_memory: None, atomics: Atomics::default() };
    assert_eq!(profiles(&said, 2).unwrap(), told);
}

/// What a rank is told does not grow with the job, nor does what it keeps of that.
#[test]
fn what_is_told_is_as_much_in_a_large_job() {
    let [small, large] = [16, 256].map(|size| {
        let said = gathered((0..size).map(|rank| open(seed_of(WorldRank(rank)).unwrap())));
        profiles(&said, size).unwrap();
        said.into_iter().map(|(_, profile)| profile).collect::<Vec<_>>()
    });
    assert_eq!(small[1], large[1]);
    assert_eq!([small.len(), large.len()], [2; 2], "that of rank 0, and one for all others");
}

/// A device is one of all ranks: what each makes windows with.
#[test]
fn the_first_rank_without_a_device_is_told() {
    let mut said = [SEED, NONE, NONE].map(|seed| one(&open(seed)));
    for rank in [2, 1] {
        let (provider, atomics) = ("tcp".to_owned(), Atomics::default());
        let has_memory = false;
        let without = Profile::Open { seed: NONE, provider, address_len: 2, has_memory, atomics };
        said[rank as usize] = one(&without);
        assert_eq!(profiles(&said, 3).unwrap().without_memory, Some(WorldRank(rank)));
    }
}

/// What a rank asks of a peer's provider, that has to have.
#[test]
fn atomics_are_those_of_all_ranks() {
    let said = [[7, 0, 9, 0, 0, 0], [5, 1, 8, 0, 0, 0]].map(|bytes| {
        let (provider, atomics) = ("tcp".to_owned(), Atomics::from_bytes(bytes));
        one(&Profile::Open { seed: SEED, provider, address_len: 2, has_memory: true, atomics })
    });
    let all = Atomics::from_bytes([5, 0, 8, 0, 0, 0]);
    assert_eq!(profiles(&said, 2).unwrap().atomics, all);
}

#[test]
fn profiles_that_do_not_fit_together_name_the_rank() {
    let good = one(&open(SEED));
    let with = |provider: &str, address_len| {
        let (provider, atomics) = (provider.to_owned(), Atomics::default());
        one(&Profile::Open { seed: NONE, provider, address_len, has_memory: true, atomics })
    };
    let text = profiles(&[good.clone(), with("efa", 2)], 2).unwrap_err().to_string();
    assert!(text.starts_with("rank 1 uses provider \"efa\", this one \"tcp\": name"), "{text}");
    let closed = one(&Profile::Closed("no libfabric".to_owned()));
    let text = profiles(&[good.clone(), closed], 2).unwrap_err().to_string();
    assert_eq!(text, "rank 1 has no network: no libfabric");
    let error = profiles(&[good.clone(), with("tcp", 1)], 2).unwrap_err();
    assert!(matches!(error, OfiJoinError::Profile { rank: WorldRank(1) }));
    let error = profiles(&[(2, Vec::new())], 2).unwrap_err();
    assert!(matches!(error, OfiJoinError::Profile { rank: WorldRank(0) }));
    let error = profiles(&[good], 2).unwrap_err();
    assert!(matches!(error, OfiJoinError::Count { got: 1, size: 2 }));
}
