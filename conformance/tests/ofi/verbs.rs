//! The suite with ranks as real processes, which reach each other by libfabric's provider
//! `verbs;ofi_rxm` only: `.ci/verbs` runs it in a VM, whose device is software (Soft-RoCE).
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
        ofi::config("verbs", 1)
    }
}

type OfiVerbs = ofi::WhereLibfabricIs<Processes<Far>>;

rma_conformance::suite!(OfiVerbs);

/// Generated programs.
#[test]
fn generated_programs() {
    if ofi::is_here() {
        processes::play::<Far>("ofi_verbs", 20);
    }
}
