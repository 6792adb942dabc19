//! The suite on shared memory, with ranks as threads of this process.
use ranks::{Settings, Threads};
use rma::Config;

mod backings;
mod generated;
mod ranks;
mod sealed;
mod waits;

struct LoadStore;

impl Settings for LoadStore {}

type ShmThreads = Threads<LoadStore>;

rma_conformance::suite!(ShmThreads);

backings::all!(ShmThreads);

mod calls {
    use super::*;

    rma_conformance::differing! { ShmThreads, calls;
        calls_differ(2) as calls_differ_of_2, calls_differ(3) as calls_differ_of_3, calls_differ(4),
    }
}

/// As if each rank had a CPU of its own: they wait in other ways then.
struct Apart;

impl Settings for Apart {
    fn config() -> Config {
        let mut config = Config::default();
        config.cpus = Some(64);
        // Payloads of a few bytes, too.
        config.collective_lane_from = 1;
        config
    }
}

mod apart {
    type ShmApart = crate::Threads<crate::Apart>;

    rma_conformance::tests! { ShmApart;
        collectives {
            barrier(5), barrier_orders(4), mixed_in_a_row(5),
        }
        windows {
            left_late(3), over_split(5), over_reversed(4), free_waits(3), two_in_one_fence(3),
        }
        seal {
            free_is_refused(3), forgotten_lock(3),
        }
        fence {
            cycles(4), third_rank_sees(3), empty_epochs(5), next_and_end(4),
        }
        lanes {
            from_one(2), from_all(3), of_odd_sizes(2), in_several_communicators(4), and_gone(2),
        }
        threads {
            communicators_of_their_own(2),
        }
    }

    mod calls {
        use super::*;

        rma_conformance::differing! { ShmApart, calls;
            one_is_small(2), one_is_almost_large(2), one_is_large(2), all_are_large(2),
            where_some_have_none(2), calls_differ(2),
        }
    }

    mod failure {
        use super::*;

        rma_conformance::failing! { ShmApart;
            in_a_barrier(4), in_a_fence(4), in_a_collective(5), in_an_allocation(3),
            in_a_large_collective(2),
        }
    }
}

/// Generated programs.
#[test]
fn generated_programs() {
    generated::play::<ShmThreads>("shm_threads", 400);
}
