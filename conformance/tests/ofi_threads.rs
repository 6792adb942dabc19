//! The suite with ranks as threads of this process, each a node of its own, which the others reach
//! by libfabric only.
use ofi::WhereLibfabricIs;
use ranks::{Settings, Threads};
use rma::{Config, Universe};
use rma_conformance::shared::refused;
use rma_conformance::{Exception, Harness};

mod generated;
mod ofi;
mod ranks;

struct Far;

impl Settings for Far {
    fn config() -> Config {
        ofi::config(1)
    }

    fn exceptions() -> Vec<Exception> {
        let reason = "a shared window needs ranks that all share memory";
        vec![Exception { tests: "shared::", reason, instead: Some(refused) }]
    }
}

type OfiThreads = WhereLibfabricIs<Threads<Far>>;

rma_conformance::suite!(OfiThreads);

/// Generated programs.
#[test]
fn generated_programs() {
    let test = "generated_programs";
    if !ofi::is_here(test) {
        return;
    }
    let command = "cargo test -p rma-conformance --test ofi_threads generated_programs";
    let seeds = generated::seeds(100);
    let launch = |seed, ranks, body: &(dyn Fn(Universe) + Sync)| {
        let name = format!("{test} (RMA_GENERATED_SEED={seed})");
        generated::caught(|| OfiThreads::run(&name, ranks, body))
    };
    let coverage = rma_conformance::generated::check(seeds.iter().copied(), 5, command, &launch);
    generated::judge(seeds.len(), coverage);
}

/// What is used is explained.
#[test]
fn explained() {
    OfiThreads::run("explained", 4, &|universe| {
        let text = universe.explain();
        for part in
            ["provider tcp;ofi_rxm of libfabric", "127.0.0.1", "sleeps at the provider's file"]
        {
            assert!(text.contains(part), "{text}");
        }
        let window = universe.world().window(1, 8).allocate().unwrap();
        assert!(window.explain().contains("transport ofi"), "{}", window.explain());
        window.free().unwrap();
        universe.finalize().unwrap();
    });
}
