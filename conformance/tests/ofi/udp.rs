//! The suite with ranks as real processes, which reach each other by libfabric's provider `udp`
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
        ofi::config("udp", 1)
    }
}

impl ofi::LeftOut for Far {
    fn left_out() -> Vec<Exception> {
        let reason = "the provider refuses a stale key for ever ('could not verify MR')";
        vec![Exception { tests: "detached::", reason, instead: None }]
    }
}

type OfiUdp = ofi::WhereLibfabricIs<Processes<Far>, Far>;

rma_conformance::suite!(OfiUdp);

/// Generated programs.
#[test]
fn generated_programs() {
    if ofi::is_here() {
        processes::play::<Far>("ofi_udp", 20);
    }
}
