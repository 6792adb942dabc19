//! The gate between `lock_all` and exclusive locks of a window (ADR 1). S-E1 S-E8
//!
//! `lock_all` shares the gate, a rank with exclusive locks passes it as one of a group: so a
//! `lock_all` is a shared lock of every part without taking each. A rank passes once, however many
//! exclusive locks its threads hold.
use super::Window;
use crate::error::RmaError;
use crate::protocol::lock::{self, Mode};
use crate::transport::Transport;
use core::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

/// Low half: exclusive locks of this rank. High half: how often it passed the gate for them, which
/// is more than once if several threads came at the same time.
#[derive(Debug, Default)]
pub(crate) struct Passes(AtomicU64);

const LOCKS: u64 = 0xffff_ffff;
const PASS: u64 = 1 << 32;

impl<T: Transport> Window<T> {
    /// To be called before an exclusive lock is taken.
    ///
    /// A rank that holds a lock already goes past those in line: one of them may wait for a rank
    /// that waits for that lock.
    pub(crate) fn pass_gate(&self, holds_a_lock: bool) -> Result<(), RmaError> {
        // pairs with the AcqRel changes of other threads.
        let mut seen = self.passes.0.load(Acquire);
        while seen & LOCKS != 0 {
            match self.passes.0.compare_exchange(seen, seen + 1, AcqRel, Acquire) {
                Ok(_) => return Ok(()),
                Err(found) => seen = found,
            }
        }
        if holds_a_lock {
            self.acquire_past(lock::gate(), Mode::Group)?;
        } else {
            self.acquire_at(lock::gate(), Mode::Group)?;
        }
        // pairs with the Acquire loads of other threads.
        self.passes.0.fetch_add(PASS + 1, AcqRel);
        Ok(())
    }

    /// To be called after an exclusive lock was given back.
    pub(crate) fn leave_gate(&self) -> Result<(), RmaError> {
        // pairs with the AcqRel changes of other threads.
        let mut seen = self.passes.0.load(Acquire);
        loop {
            let left = if seen & LOCKS == 1 { 0 } else { seen - 1 };
            match self.passes.0.compare_exchange(seen, left, AcqRel, Acquire) {
                Ok(_) if left == 0 => break,
                Ok(_) => return Ok(()),
                Err(found) => seen = found,
            }
        }
        (0..seen / PASS).try_for_each(|_| self.release_at(lock::gate(), Mode::Group))
    }

    /// Keeps exclusive lockers of every part out.
    pub(crate) fn share_gate(&self) -> Result<(), RmaError> {
        self.acquire_at(lock::gate(), Mode::Shared)
    }

    /// Takes back [`share_gate`](Self::share_gate).
    pub(crate) fn unshare_gate(&self) -> Result<(), RmaError> {
        self.release_at(lock::gate(), Mode::Shared)
    }
}
