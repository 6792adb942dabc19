//! What the tests share.

use core::time::Duration;

use rma_core::transport::{Members, Messages, Sleep, SubmitError, WorldRank};
use rma_transport_sim::{NetConfig, Sim};

/// Seeds to try: fewer under Miri, which is slow.
pub(crate) fn seeds(native: u64) -> std::ops::Range<u64> {
    0..if cfg!(miri) { 2 } else { native }
}

pub(crate) fn config(ranks: u32, seed: u64) -> NetConfig {
    NetConfig::new(ranks, seed)
}

/// Waits as the trait says, until `ready`; panics when a rank failed.
pub(crate) fn wait_until(sim: &Sim, mut ready: impl FnMut() -> bool) {
    let mut round = 0;
    while !ready() {
        if sim.relax(round) {
            round += 1;
            continue;
        }
        let ticket = sim.arm();
        if ready() {
            sim.disarm(ticket);
            return;
        }
        if let Some(rank) = sim.failed() {
            sim.disarm(ticket);
            panic!("rank {rank} failed while {} waited", sim.rank());
        }
        sim.park(ticket, None);
        round = 0;
    }
}

/// Sends, and hands what arrives meanwhile to `sink`.
pub(crate) fn send(sim: &Sim, to: u32, bytes: &[u8], sink: &mut dyn FnMut(WorldRank, &[u8])) {
    let (head, body) = bytes.split_at(bytes.len() / 2);
    wait_until(sim, || match submit(sim, WorldRank(to), head, body) {
        Ok(()) => true,
        Err(SubmitError::Again) => {
            sim.poll(sink);
            false
        }
        Err(error) => panic!("sending to {to}: {error:?}"),
    });
}

/// Waits for `count` messages; returns senders and bytes in the order of arrival.
pub(crate) fn receive(sim: &Sim, count: usize) -> Vec<(u32, Vec<u8>)> {
    let mut got = Vec::new();
    wait_until(sim, || {
        sim.poll(&mut |from, bytes| got.push((from.0, bytes.to_vec())));
        got.len() >= count
    });
    got
}

/// Hands to `sink` what arrives until the virtual time `end`.
pub(crate) fn poll_until(sim: &Sim, end: Duration, sink: &mut dyn FnMut(WorldRank, &[u8])) {
    loop {
        let ticket = sim.arm();
        sim.poll(sink);
        let left = end.saturating_sub(sim.now());
        if left.is_zero() {
            sim.disarm(ticket);
            return;
        }
        sim.park(ticket, Some(left));
    }
}

/// Sends a message.
#[allow(unsafe_code)]
pub(crate) fn submit(
    sim: &Sim,
    to: WorldRank,
    head: &[u8],
    body: &[u8],
) -> Result<(), SubmitError> {
    // SAFETY: no core receives it.
    unsafe { sim.send(to, head, body) }
}
