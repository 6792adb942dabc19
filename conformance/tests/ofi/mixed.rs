//! The suite with ranks as threads of this process, on two pretended nodes: load and store inside
//! each of them, libfabric between them.
use ofi::WhereLibfabricIs;
use ranks::{Settings, Threads};
use rma::{Config, Universe};
use rma_conformance::shared::refused;
use rma_conformance::{Exception, Harness};

#[path = "../generated/mod.rs"]
mod generated;
#[path = "mod.rs"]
mod ofi;
#[path = "../ranks/mod.rs"]
mod ranks;

struct Mixed;

impl Settings for Mixed {
    fn config() -> Config {
        ofi::config(2)
    }

    fn exceptions() -> Vec<Exception> {
        let reason = "a shared window needs ranks that all share memory";
        vec![Exception { tests: "shared::", reason, instead: Some(refused) }]
    }
}

type OfiMixed = WhereLibfabricIs<Threads<Mixed>>;

rma_conformance::suite!(OfiMixed);

/// Generated programs.
#[test]
fn generated_programs() {
    let test = "generated_programs";
    if !ofi::is_here(test) {
        return;
    }
    let command = "cargo test -p rma-conformance --test ofi_mixed generated_programs";
    let seeds = generated::seeds(100);
    let launch = |seed, ranks, body: &(dyn Fn(Universe) + Sync)| {
        let name = format!("{test} (RMA_GENERATED_SEED={seed})");
        generated::caught(|| OfiMixed::run(&name, ranks, body))
    };
    let coverage = rma_conformance::generated::check(seeds.iter().copied(), 5, command, &launch);
    generated::judge(seeds.len(), coverage);
}

/// What is used is explained.
#[test]
fn explained() {
    OfiMixed::run("explained", 4, &|universe| {
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
