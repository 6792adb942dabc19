//! Threads, and the engine, over shared memory with hardly any room: every window is forced onto
//! messages, with one message of credit, every put by rendezvous, and a CTS for each message.
use ranks::{Settings, Threads};
use rma::Config;

mod ranks;

struct Tight;

impl Settings for Tight {
    fn config() -> Config {
        let mut config = Config::default();
        config.hint("rma_path", "messages").expect("a path");
        config.outstanding_messages = 3;
        config.credit_messages = 1;
        config.eager_bytes = 0;
        config.rendezvous_bytes = 500;
        config
    }
}

type ShmTight = Threads<Tight>;

rma_conformance::tests! { ShmTight;
    engine {
        puts_to_one(4), gets_from_one(4), both_ways(2), mixed_sizes(3), self_target(1),
        many_gets(3), accumulates_beside_puts(3),
    }
    flush {
        third_rank_sees(3), all_targets(4), alternating(2),
    }
    threads {
        atomics(2), puts_and_flushes(2), locks_of_different_targets(3), more_waiters_than_nodes(6),
        requests_cross_threads(2), large_payloads(2), a_lock_that_waits_keeps_no_credit(3),
    }
}

mod failure {
    use super::*;

    rma_conformance::failing! { ShmTight; in_operations(3), in_large_operations(3) }
}
