//! Windows of a rank that finds out late that it has no memory for its part: small ones are not
//! asked for before.
use crate::jobs;
use crate::sims::Jobs;
use rma_core::transport::AllocateError;
use rma_core::{Config, Rank, Universe, WindowError};
use rma_transport_sim::NetConfig;

const ALL: u64 = 256 << 10;
const TOO_MUCH: usize = 300 << 10;
/// Of each rank that has enough: a part that stays would be missed soon.
const SMALL: usize = 20 << 10;

fn play(universe: Universe) {
    let world = universe.world();
    for culprit in (0..30).map(|round| Rank(round % world.size())) {
        let own = world.rank() == culprit;
        let count = if own { TOO_MUCH } else { SMALL };
        let error = world.window(count, 1).allocate().err().unwrap();
        match error {
            WindowError::Allocate { rank, error: AllocateError::Shortage { requested, .. } } => {
                assert!(own && rank == culprit && requested == TOO_MUCH as u64, "{error}");
            }
            WindowError::Peer(Rank(rank)) => assert!(!own && rank == culprit.0, "{error}"),
            other => panic!("{other}"),
        }
    }
    world.window(SMALL, 1).allocate().unwrap().free().unwrap();
    universe.finalize().unwrap();
}

#[test]
fn a_rank_that_fails_late_tells_all_its_number_and_nothing_stays() {
    let net = |ranks, seed| NetConfig { memory_max: ALL, ..NetConfig::new(ranks, seed) };
    Jobs { seeds: 5, net, ..jobs(Config::default()) }.run("shortages", 3, &play);
}

/// Large payloads of collectives inside of a node that has so much memory, for lanes of 64 KiB.
fn play_collectives(memory: u64) {
    let mut config = Config::default();
    config.collective_lane_bytes = 64 << 10;
    let net = if memory == ALL { net_of::<ALL> } else { net_of::<{ 1 << 30 }> };
    let play = |universe: Universe| {
        use rma_conformance::lanes;
        lanes::from_one(&universe);
        lanes::to_one(&universe);
        lanes::from_all(&universe);
        lanes::combined(&universe);
        universe.finalize().unwrap();
    };
    Jobs { seeds: 3, net, ..jobs(config) }.run("shortages", 5, &play);
}

fn net_of<const MEMORY: u64>(ranks: u32, seed: u64) -> NetConfig {
    let net = NetConfig { memory_max: MEMORY, nodes: Some(1), ..NetConfig::new(ranks, seed) };
    NetConfig { step_max: 20_000_000, ..net }
}

#[test]
fn payloads_take_lanes_in_any_order() {
    play_collectives(1 << 30);
}

/// Some ranks get one.
#[test]
fn payloads_go_by_messages_where_there_is_no_memory() {
    play_collectives(ALL);
}
