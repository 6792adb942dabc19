//! Forged messages to the engine: see `rma_conformance::forged`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rma_conformance::forged;
use rma_core::Universe;
use rma_transport_sim::NetConfig;

fuzz_target!(|input: &[u8]| {
    let net = NetConfig { step_max: 20_000_000, ..NetConfig::new(2, input.len() as u64) };
    let run = rma_transport_sim::run(&net, |sim| {
        let config = forged::config(sim.rank());
        forged::play(Universe::new(sim, config).expect("the world can be made"), input);
    });
    if let Err(failure) = run {
        panic!("{failure}\n{:#?}", forged::decode(input));
    }
});
