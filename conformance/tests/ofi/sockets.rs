//! The suite with ranks as threads of this process, each a node of its own, by libfabric's provider
//! `sockets`: puts, gets and atomics are its own, of a rank's own part, too.
use ofi::WhereLibfabricIs;
use ranks::{Settings, Threads};
use rma::Config;

#[path = "mod.rs"]
mod ofi;
#[path = "../ranks/mod.rs"]
mod ranks;

struct Far;

impl Settings for Far {
    fn config() -> Config {
        let mut config = ofi::config("sockets", 1);
        config.hint("rma_path", "device").expect("a path");
        config
    }
}

type OfiSockets = WhereLibfabricIs<Threads<Far>>;

rma_conformance::suite!(OfiSockets);

/// What is used is explained.
#[test]
fn explained() {
    ofi::explained::<OfiSockets>("sockets");
}
