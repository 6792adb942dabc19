//! The end of a window on all ranks, and what it has in common with sealing.
use crate::engine::{On, Wait};
use crate::error::{Refused, RmaError};
use crate::memory::control_block::Agreement;
use crate::object::Flavor;
use crate::sync::EpochCall;
use crate::window::{Regions, Window, WindowMemory};
use core::time::Duration;

/// How often a rank that closes its part looks whether its threads that serve messages there are
/// done.
const RECHECK: Duration = Duration::from_micros(200);

/// Why a window is not freed or sealed.
pub(super) enum No {
    /// Every rank knows.
    Agreed(RmaError),
    /// Others may think that it is.
    Unknown(RmaError),
}

impl Window {
    /// Frees the window on all ranks and gives its memory back. **Collective.**
    ///
    /// Waits until every rank has come here.
    ///
    /// # Errors
    ///
    /// [`RmaError::Persist`] if what this rank's part has on storage could not be made durable, or
    /// a version that ranks have asked for is not decided; the window is freed all the same.
    /// Everywhere, if some rank has an epoch open: the window comes back, as it was before the
    /// call, on every rank. It does not if the ranks could not agree because one failed or timed
    /// out: some may have freed it then (MPI 4.1, section 12.2.5).
    pub fn free(self) -> Result<(), Refused<Option<Box<Self>>>> {
        match self.agree_idle(EpochCall::Free, None).and_then(|()| self.end_use(|| ())) {
            Ok(()) => Ok(()),
            Err(no) => Err(self.refused(no)),
        }
    }

    /// As [`free`](Self::free), and gives the memory of this rank's part back: what the window was
    /// [created](crate::WindowBuilder::create) over, or a copy of what it allocated.
    /// **Collective**, with `free` at other ranks if they like.
    ///
    /// # Errors
    ///
    /// As [`free`](Self::free); everywhere, also if this rank's part is not made of memory like
    /// that: only raw parts come back as [`RawPart`](crate::RawPart), only a
    /// [`Backing`](crate::Backing) as an `Arc` of its type, and a vector needs a whole number of
    /// elements.
    pub fn free_into<M: WindowMemory>(self) -> Result<M, Refused<Option<Box<Self>>>> {
        // A buffer may be longer than the window that was made of it.
        let whole = self.part.memory.mapping().len;
        let len = if self.flavor() == Flavor::Create { whole } else { self.size() as usize };
        let brought = self.part.memory.brought();
        let (window, requested) = (self.id(), "free_into");
        let needed = "a buffer of the kind that the window is made of";
        let fits = M::fits(brought.as_deref(), len);
        drop(brought);
        let wrong = (!fits).then_some(RmaError::WrongFlavor { window, requested, needed });
        let rebuild = || self.part.memory.rebuild(self.part.offset, len);
        let agreed = self.agree_idle(EpochCall::Free, wrong);
        match agreed.and_then(|()| self.end_use(rebuild)) {
            Ok(memory) => memory.ok_or(Refused {
                value: None,
                error: RmaError::WrongFlavor { window, requested, needed },
            }),
            Err(no) => Err(self.refused(no)),
        }
    }

    /// All ranks have agreed to free the window: `last` is the last that is done with this rank's
    /// part, then its memory may be given back.
    fn end_use<R>(&self, last: impl FnOnce() -> R) -> Result<R, No> {
        self.shut_door("free").map_err(No::Unknown)?;
        self.part.regions.iter().for_each(Regions::deregister);
        self.engine().own_windows().remove(self.id());
        self.engine().count_windows(-1);
        self.engine().close_lines(&self.part, None);
        let result = last();
        // Rank 0 may have the memory of all parts: then all must have taken what they want of it.
        // If one of them cannot say so any more, the memory is not used again.
        if self.lies_elsewhere() && self.agree(Agreement::Free, false).is_err() {
            return Ok(result);
        }
        let durable = self.part.memory.release();
        self.part.memory.set_freed();
        self.part.block.set_left(true);
        // Those that are still attached. S-L7
        if let Some(regions) = &self.part.regions {
            regions.set_freed();
        }
        let (window, rank, end) = (self.id(), self.rank(), self.size());
        durable.map_err(|error| {
            No::Unknown(RmaError::Persist { window, rank, start: 0, end, error })
        })?;
        Ok(result)
    }

    /// Whether parts lie in memory of another rank than their own. All ranks say the same.
    fn lies_elsewhere(&self) -> bool {
        self.peers.iter().any(|(rank, peer)| peer.owner != rank)
    }

    /// Ends the serving of messages and of transfers in this rank's part, whose memory is its
    /// owner's alone then: an operation that its origin gave up may still be on its way.
    pub(super) fn shut_door(&self, what: &'static str) -> Result<(), RmaError> {
        let door = &self.part.door;
        door.shut();
        // Those inside are threads of this rank, in the middle of one message each.
        let own = self.engine().transport.job.rank;
        let wait = Wait { recheck: Some(RECHECK), ..self.wait_on(what, On::Peer(own)) };
        let empty = || door.is_empty().then_some(());
        // wait: door
        self.engine().wait_until(wait, empty).map_err(|error| self.wait_failed(error))?;
        self.part.registered.take();
        Ok(())
    }

    /// Waits until every rank has come here with no epoch open and nothing in flight, and no other
    /// reason to refuse. S-A9 S-A10
    pub(super) fn agree_idle(&self, call: EpochCall, refuse: Option<RmaError>) -> Result<(), No> {
        let (open, requested) = (self.check(call).err().or(refuse), call.name());
        // Whatever became of this rank's operations: others wait for it.
        let open = open.or(self.flush_far_all().err());
        let on = if call == EpochCall::Free { Agreement::Free } else { Agreement::Seal };
        let refused = self.agree(on, open.is_some()).map_err(No::Unknown)?;
        let window = self.id();
        let by_other = |by| RmaError::RefusedBy { window, by, requested };
        match open.or(refused.map(by_other)) {
            Some(error) => Err(No::Agreed(error)),
            None => Ok(()),
        }
    }

    /// The window goes back to its user only if no rank has sealed or freed it. S-A11
    pub(super) fn refused(self, no: No) -> Refused<Option<Box<Self>>> {
        match no {
            No::Agreed(error) => Refused { value: Some(Box::new(self)), error },
            No::Unknown(error) => Refused { value: None, error },
        }
    }
}
