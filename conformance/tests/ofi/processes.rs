//! The suite with ranks as real processes, which reach each other by libfabric only.
use processes::{Processes, Settings};
use rma::Config;

#[path = "../generated/mod.rs"]
mod generated;
#[path = "mod.rs"]
mod ofi;
#[path = "../processes/mod.rs"]
mod processes;

struct Far;

impl Settings for Far {
    fn config() -> Config {
        ofi::config("tcp", 1)
    }
}

type OfiProcesses = ofi::WhereLibfabricIs<Processes<Far>>;

rma_conformance::suite!(OfiProcesses);

/// Generated programs.
#[test]
fn generated_programs() {
    if ofi::is_here() {
        processes::play::<Far>("ofi_processes", 100);
    }
}
