//! Ranks that are far ahead of a slow one in collective operations, with more than it keeps.
use rma::{CollectiveError, Config, Rank, local_with};
use rma_core::Universe;
use rma_core::transport::WorldRank;
use rma_transport_sim::{NetConfig, run};
use std::time::Duration;

const ROUNDS: u64 = 20;
/// Elements of a payload, of several parts and of one.
const LARGE: usize = 90_000;
const MIDDLE: usize = 4_000;

/// Room for one of the middle payloads, and for none of the large ones.
fn tight() -> Config {
    let mut config = Config::default();
    config.unexpected_bytes = 40_000;
    config.wait_timeout = Some(Duration::from_secs(100));
    config
}

/// Rank 2 comes late to each operation, which does not need it everywhere.
fn hurry(universe: &Universe, large: usize, pause: impl Fn()) {
    let world = universe.world();
    let other = world.dup().unwrap();
    let (me, last) = (u64::from(world.rank().0), u64::from(world.size() - 1));
    for round in 0..ROUNDS {
        if me == 2 {
            pause();
        }
        let mut values = vec![if me == 0 { round } else { 99 }; large];
        world.bcast(&mut values, Rank(0)).unwrap();
        assert_eq!(values, vec![round; large]);
        let all = other.gatherv(&vec![me + round; MIDDLE], Rank(2)).unwrap();
        let expected = || (0..=last).map(|rank| vec![rank + round; MIDDLE]).collect::<Vec<_>>();
        assert_eq!(all, (me == 2).then(expected));
        let below = other.exscan(&vec![1u64; MIDDLE], |a, b| a + b).unwrap();
        assert_eq!(below, (me > 0).then(|| vec![me; MIDDLE]));
        if round % 8 == 0 {
            let all = world.allgatherv(&vec![me; large / 4]).unwrap();
            assert!(all.iter().zip(0..).all(|(of, rank)| *of == vec![rank; large / 4]));
            let shares: Vec<Vec<u64>> = (0..=last).map(|to| vec![me * 8 + to; large / 4]).collect();
            let got = other.alltoallv(&shares).unwrap();
            assert!(got.iter().zip(0..).all(|(of, from)| *of == vec![from * 8 + me; large / 4]));
        }
    }
    world.barrier().unwrap();
}

#[test]
fn a_rank_that_is_ahead_waits_for_room_in_the_simulator() {
    for seed in 0..6 {
        let net = NetConfig { step_max: 20_000_000, ..NetConfig::new(4, seed) };
        let done = run(&net, |sim| {
            let universe = Universe::new(sim, tight()).unwrap();
            hurry(&universe, LARGE / 20, || {
                let until = universe.transport().now() + Duration::from_millis(5);
                while universe.transport().now() < until {
                    universe.transport().relax(0);
                }
            });
        });
        done.unwrap();
    }
}

#[test]
fn a_rank_that_is_ahead_waits_for_room_in_shared_memory() {
    local_with(tight(), 4, |universe| hurry(&universe, LARGE, || ())).unwrap();
}

/// Ranks that disagree about a length are told, though none keeps what it does not wait for: one
/// that waits for offers of memory hears what needs room, too.
#[test]
fn ranks_without_room_hear_that_they_disagree() {
    let mut config = tight();
    (config.unexpected_bytes, config.wait_timeout) = (0, Some(Duration::from_secs(20)));
    let ends = local_with(config, 3, |universe| {
        let world = universe.world();
        let len = if world.rank() == Rank(0) { 300_000 } else { 1_000 };
        world.allgather(&vec![1u64; len])
    });
    for end in ends.unwrap() {
        let error = end.unwrap_err();
        assert!(!matches!(error, CollectiveError::Timeout { .. }), "{error}");
    }
}

#[test]
fn a_payload_of_many_parts_takes_no_more_room_than_one() {
    let net = NetConfig { step_max: 20_000_000, ..NetConfig::new(3, 1) };
    let done = run(&net, |sim| {
        let mut config = tight();
        config.unexpected_bytes = 0;
        let universe = Universe::new(sim, config).unwrap();
        assert_eq!(universe.transport().rank(), WorldRank(universe.world().rank().0));
        hurry(&universe, LARGE, || ());
    });
    done.unwrap();
}
