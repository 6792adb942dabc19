//! The suite with ranks as threads of this process, and every window forced onto messages.
use ranks::{Settings, Threads};
use rma::Config;
use rma_conformance::Exception;

mod backings;
mod generated;
mod ranks;

struct Messages;

impl Settings for Messages {
    fn config() -> Config {
        let mut config = Config::default();
        config.hint("rma_path", "messages").expect("a path");
        config
    }

    fn exceptions() -> Vec<Exception> {
        let reason = "a target serves messages inside its own calls";
        vec![Exception { tests: "shared::polled", reason, instead: None }]
    }
}

type ShmMessages = Threads<Messages>;

rma_conformance::suite!(ShmMessages);

backings::all!(ShmMessages);

/// Generated programs.
#[test]
fn generated_programs() {
    generated::play::<ShmMessages>("shm_messages", 400);
}
