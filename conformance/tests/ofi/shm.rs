//! The suite with ranks as real processes, which reach each other by libfabric's provider `shm`
//! only.
use processes::{Processes, Settings};
use rma::Config;
use rma_conformance::Exception;

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

impl ofi::LeftOut for Far {
    fn left_out() -> Vec<Exception> {
        let reason = "the provider answers no stale key ('error processing command')";
        vec![Exception { tests: "detached::", reason, instead: None }]
    }
}

type OfiShm = ofi::WhereLibfabricIs<Processes<Far>, Far>;

rma_conformance::suite!(OfiShm);

/// Generated programs.
#[test]
fn generated_programs() {
    if ofi::is_here() {
        processes::play::<Far>("ofi_shm", 20);
    }
}
