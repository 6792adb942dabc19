//! Parts that targets make durable while their origins go on.
use crate::engine::Pending;
use crate::error::RmaError;
use crate::protocol::message::{Durable, Head, Kind, query};
use crate::rank::Rank;
use crate::transport::PersistError;
use crate::window::Window;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

const WHAT: &str = "making a target's part durable";

/// A target that was asked to make its part durable: [`wait`](Self::wait) says whether it has.
///
/// To drop it takes nothing back: the target does so all the same, and the origin does not hear
/// how it went. It is a [`Future`] of that as well, which makes progress when it is polled.
#[must_use = "whether the part is durable comes from `wait`"]
pub struct DurableRequest<'w> {
    window: &'w Window,
    target: Rank,
    /// None if no target was asked.
    pending: Option<Arc<Pending>>,
}

impl Window {
    /// As [`sync_remote`](Self::sync_remote), without waiting for the target's device: this rank
    /// flushes the target, asks it, and can do something else until that has an answer. What it
    /// puts there meanwhile may be durable, too, or not.
    ///
    /// Several may be under way at a time, also to the same target.
    ///
    /// # Errors
    ///
    /// Those of a flush, and [`RmaError::Persist`] of a window of which nothing can be durable. How
    /// it went at the target is told by [`DurableRequest::wait`].
    pub fn request_sync_remote(&self, target: Rank) -> Result<DurableRequest<'_>, RmaError> {
        let mut request = DurableRequest { window: self, target, pending: None };
        if target == Rank::NULL {
            return Ok(request);
        }
        self.flush_local(target)?;
        self.flush(target)?;
        // Its ranks may not know it yet: they wait for each other only where something is durable.
        if !self.settings.durable {
            return Err(request.failed(PersistError::Volatile));
        }
        let mut head = Head::new(Kind::Query, self.id().0, 0);
        head.offset = query::PERSIST.into();
        let (pending, world) = (Arc::<Pending>::default(), self.part.comm.world_rank(target));
        self.issue(self.wait_for(WHAT, target), world, head, &[], &pending)?;
        request.pending = Some(pending);
        Ok(request)
    }
}

impl DurableRequest<'_> {
    /// The target.
    pub fn target(&self) -> Rank {
        self.target
    }

    /// Whether [`wait`](Self::wait) does not wait: because the target has answered, or because it
    /// fails. Makes some progress.
    ///
    /// It may be tested for ever, for as long as the target takes part.
    pub fn test(&mut self) -> bool {
        let pending = self.pending.as_ref().filter(|pending| !pending.is_done());
        let Some(pending) = pending else { return true };
        let wait = self.window.wait_for(WHAT, self.target);
        let trouble = self.window.engine().progress_or_trouble(wait);
        pending.is_done() || trouble.is_some()
    }

    /// Waits until the target has made its part durable.
    ///
    /// # Errors
    ///
    /// [`RmaError::Persist`] of the target: its part ends with the job, or its system fails; see
    /// [`PersistError`]. Those of every wait: the target died or left, a deadline passed.
    pub fn wait(self) -> Result<(), RmaError> {
        self.finish()
    }

    fn finish(&self) -> Result<(), RmaError> {
        let Some(pending) = &self.pending else { return Ok(()) };
        self.window.drain(WHAT, self.target, pending)?;
        let gone = RmaError::Freed { window: self.window.id(), target: self.target };
        let durable = Durable(pending.value()).get().ok_or(gone)?;
        durable.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: PersistError) -> RmaError {
        let (window, rank) = (self.window.id(), self.target);
        let end = self.window.peers.get(rank).map_or(0, |peer| peer.size);
        RmaError::Persist { window, rank, start: 0, end, error }
    }
}

impl Future for DurableRequest<'_> {
    type Output = Result<(), RmaError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let request = self.get_mut();
        if !request.test() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(request.finish())
    }
}
