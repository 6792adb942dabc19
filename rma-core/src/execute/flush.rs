//! Flushes: every operation that was issued before is done at its target.
use crate::error::RmaError;
use crate::memory::stores;
use crate::memory::target::Target;
use crate::rank::Rank;
use crate::window::Window;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;

impl Window {
    /// Returns when every operation of this rank to `target` is complete there. S-F1
    #[inline]
    pub(crate) fn flush(&self, target: Rank) -> Result<(), RmaError> {
        if self.targets.get(target).is_some_and(Target::is_loadable) {
            stores::complete();
            return Ok(());
        }
        self.flush_cold(target)
    }

    #[cold]
    #[inline(never)]
    fn flush_cold(&self, target: Rank) -> Result<(), RmaError> {
        let performed = self.wait_for_grant(target);
        // The system's copies to and from other processes are no fences.
        fence(SeqCst);
        // Also if some of what was queued failed: what did not is under way, and the lock goes.
        let flushed = self.flush_far_cold(target);
        performed.and(flushed)
    }

    /// As [`flush`](Self::flush), to all targets.
    #[inline]
    pub(crate) fn flush_targets(&self) -> Result<(), RmaError> {
        if self.all_loaded {
            stores::complete();
            return Ok(());
        }
        self.flush_all_cold()
    }

    #[cold]
    #[inline(never)]
    fn flush_all_cold(&self) -> Result<(), RmaError> {
        fence(SeqCst);
        self.flush_far_all()
    }

    /// Fails if there is no such target; that is all, because operations are locally complete when
    /// they return.
    pub(crate) fn flush_local(&self, target: Rank) -> Result<(), RmaError> {
        let exists = target.0 < self.ranks() || target == Rank::NULL;
        if exists { Ok(()) } else { Err(self.no_such_rank(target)) }
    }

    /// Waits until every operation on `target` that was issued before is done there.
    #[cold]
    #[inline(never)]
    pub(crate) fn flush_far_cold(&self, target: Rank) -> Result<(), RmaError> {
        self.flush_local(target)?;
        let flushed = self.flush_device(target);
        let (first, others) = self.far.outstanding(target);
        let all = first.iter().chain(&others);
        flushed.and(each(all.map(|pending| self.drain_for_flush(target, pending))))
    }

    /// As [`flush_far_cold`](Self::flush_far_cold), of all targets.
    pub(crate) fn flush_far_all(&self) -> Result<(), RmaError> {
        each(self.far.flushable().into_iter().map(|target| self.flush_far_cold(target)))
    }
}

/// Waits for one after the other, and says how the first fared that failed. Others are waited for
/// all the same, unless that would be in vain, or once more as long: the next flush finds them.
fn each(waits: impl Iterator<Item = Result<(), RmaError>>) -> Result<(), RmaError> {
    let mut first = Ok(());
    for waited in waits {
        first = first.and(waited);
        if makes_vain(&waited) {
            break;
        }
    }
    first
}

/// Whether to go on to the same target behind that would be in vain, or take once more as long.
pub(super) fn makes_vain(result: &Result<(), RmaError>) -> bool {
    use RmaError::{Left, PeerFailed, Timeout};
    matches!(result, Err(Timeout { .. } | PeerFailed { .. } | Left { .. }))
}
