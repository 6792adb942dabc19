//! The suite with ranks that are made of two transports: memory and message rings inside of each of
//! two nodes, a network between them, which wakes the ranks that sleep at the bell of their node.
use ranks::{Settings, Threads};
use rma::{Config, Universe};
use rma_conformance::shared::refused;
use rma_conformance::{Exception, Harness};

mod generated;
mod pairs;
mod ranks;

struct Pair;

impl Settings for Pair {
    fn exceptions() -> Vec<Exception> {
        let reason = "a shared window needs ranks that all share memory";
        vec![Exception { tests: "shared::", reason, instead: Some(refused) }]
    }

    fn job(config: Config, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        pairs::job(config, ranks, body);
    }
}

type ShmPair = Threads<Pair>;

rma_conformance::suite!(ShmPair);

/// Generated programs.
#[test]
fn generated_programs() {
    generated::play::<ShmPair>("shm_pair", 200);
}

/// A rank hears of its halves by their names, and of both.
#[test]
fn explained() {
    ShmPair::run("explained", 4, &|universe| {
        let text = universe.explain();
        assert!(text.contains("other nodes by shm:"), "{text}");
        assert!(text.contains("load and store to 2 of 4 ranks"), "{text}");
        let window = universe.world().window(1, 8).allocate().unwrap();
        assert!(window.explain().contains("transport shm twice"), "{}", window.explain());
        window.free().unwrap();
    });
}
