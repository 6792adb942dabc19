//! The suite with ranks as threads of this process, on two pretended nodes: load and store inside
//! each of them, messages between them.
use ranks::{Settings, Threads};
use rma::Config;
use rma_conformance::Exception;
use rma_conformance::shared::refused;

mod backings;
mod generated;
mod ranks;

struct Mixed;

impl Settings for Mixed {
    fn config() -> Config {
        let mut config = Config::default();
        config.nodes = 2;
        config
    }

    fn exceptions() -> Vec<Exception> {
        let reason = "a shared window needs ranks that all share memory";
        vec![Exception { tests: "shared::", reason, instead: Some(refused) }]
    }
}

type ShmMixed = Threads<Mixed>;

rma_conformance::suite!(ShmMixed);

backings::all!(ShmMixed);

/// Generated programs.
#[test]
fn generated_programs() {
    generated::play::<ShmMixed>("shm_mixed", 400);
}
