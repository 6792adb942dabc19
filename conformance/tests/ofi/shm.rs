//! The suite with ranks as real processes, which reach each other by libfabric's provider `shm`
//! only.
use processes::{Processes, Settings};
use rma::{Config, Universe};
use rma_conformance::{Exception, Harness};

#[path = "../generated/mod.rs"]
mod generated;
#[path = "mod.rs"]
mod ofi;
#[path = "../processes/mod.rs"]
mod processes;

struct Far;

impl Settings for Far {
    fn config() -> Config {
        ofi::config("shm", 1)
    }
}

type Whole = ofi::WhereLibfabricIs<Processes<Far>>;

/// But for what the provider cannot do.
struct OfiShm;

impl Harness for OfiShm {
    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        Whole::run(name, ranks, body);
    }

    fn run_failing(name: &str, ranks: u32, victim: u32, body: &(dyn Fn(Universe) + Sync)) {
        Whole::run_failing(name, ranks, victim, body);
    }

    fn exceptions() -> Vec<Exception> {
        let reason = "the provider answers no stale key ('error processing command')";
        let mut exceptions = Whole::exceptions();
        exceptions.push(Exception { tests: "detached::", reason, instead: None });
        exceptions
    }
}

rma_conformance::suite!(OfiShm);

/// Generated programs.
#[test]
fn generated_programs() {
    if ofi::is_here() {
        processes::play::<Far>("ofi_shm", 20);
    }
}
