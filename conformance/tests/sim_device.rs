//! The suite on simulated networks with a device that moves bytes by itself, in each form: both
//! ways to count positions, keys given and chosen, with all, some and no atomics.
use rma_conformance::{Exception, Harness};
use rma_core::transport::{Addressing, Keys};
use rma_core::{Config, Universe};
use rma_transport_sim::{Atomics, DeviceConfig, NetConfig};
use sims::Jobs;

mod generated;
mod sims;

fn net(ranks: u32, seed: u64, device: DeviceConfig) -> NetConfig {
    let step_max = 50_000_000;
    NetConfig { step_max, device: Some(device), ..NetConfig::new(ranks, seed) }
}

/// A form of the device, its jobs and the suite on it.
macro_rules! form {
    ($name:ident, $device:expr) => {
        mod $name {
            use super::*;

            struct OnDevice;

            fn jobs(config: Config) -> Jobs {
                let net = |ranks, seed| net(ranks, seed, $device);
                Jobs { binary: "sim_device", seeds: 3, config, net }
            }

            impl Harness for OnDevice {
                fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
                    jobs(Config::default()).run(name, ranks, body);
                }

                fn run_failing(
                    name: &str,
                    ranks: u32,
                    victim: u32,
                    body: &(dyn Fn(Universe) + Sync),
                ) {
                    jobs(Config::default()).run_failing(name, ranks, victim, body);
                }

                fn exceptions() -> Vec<Exception> {
                    sims::exceptions()
                }
            }

            rma_conformance::suite!(OnDevice);

            /// Generated programs, each with an order and delays of its own.
            #[test]
            fn generated_programs() {
                let command = concat!(
                    "cargo test -p rma-conformance --test sim_device ",
                    stringify!($name),
                    "::generated_programs"
                );
                let seeds = generated::seeds(if cfg!(miri) { 1 } else { 100 });
                let launch = |seed, ranks, body: &(dyn Fn(Universe) + Sync)| {
                    let run = jobs(Config::default()).simulate(ranks, seed, body);
                    run.map(drop).map_err(|failure| failure.to_string())
                };
                let coverage =
                    rma_conformance::generated::check(seeds.iter().copied(), 1, command, &launch);
                generated::judge(seeds.len(), coverage);
            }
        }
    };
}

// As most libfabric providers: hardly anything goes directly, all atomics.
form!(addresses, DeviceConfig::new());
// Symmetric windows need to tell each other nothing.
form!(
    offsets,
    DeviceConfig {
        addressing: Addressing::Offset,
        keys: Keys::Given,
        atomics: Atomics::Words,
        coherent: true,
        inject: 8,
        bounce: 64,
        transfer_max: 256,
        run_min: 1,
        ..DeviceConfig::new()
    }
);
// All that moves does so directly, one transfer at a time.
form!(
    direct,
    DeviceConfig {
        atomics: Atomics::None,
        inject: 0,
        bounce: 0,
        queue_max: 1,
        run_min: 1,
        ..DeviceConfig::new()
    }
);
