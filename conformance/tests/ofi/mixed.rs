//! The suite with ranks as threads of this process, on two pretended nodes: load and store inside
//! each of them, libfabric between them.
use ofi::WhereLibfabricIs;
use ranks::{Settings, Threads};
use rma::Config;

#[path = "../generated/mod.rs"]
mod generated;
#[path = "mod.rs"]
mod ofi;
#[path = "../ranks/mod.rs"]
mod ranks;

struct Mixed;

impl Settings for Mixed {
    fn config() -> Config {
        ofi::config("tcp", 2)
    }
}

type OfiMixed = WhereLibfabricIs<Threads<Mixed>>;

rma_conformance::suite!(OfiMixed);

/// Generated programs.
#[test]
fn generated_programs() {
    if ofi::is_here() {
        generated::play::<OfiMixed>("ofi_mixed", 100);
    }
}

/// What is used is explained.
#[test]
fn explained() {
    ofi::explained::<OfiMixed>("tcp;ofi_rxm");
}
