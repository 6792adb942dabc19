//! The suite with ranks as threads of this process, each a node of its own, which the others reach
//! by libfabric only.
use ofi::WhereLibfabricIs;
use ranks::{Settings, Threads};
use rma::Config;

mod generated;
mod ofi;
mod ranks;

struct Far;

impl Settings for Far {
    fn config() -> Config {
        ofi::config(1)
    }
}

type OfiThreads = WhereLibfabricIs<Threads<Far>>;

rma_conformance::suite!(OfiThreads);

/// Generated programs.
#[test]
fn generated_programs() {
    if ofi::is_here("generated_programs") {
        generated::play::<OfiThreads>("ofi_threads", 100);
    }
}

/// What is used is explained.
#[test]
fn explained() {
    ofi::explained::<OfiThreads>();
}
