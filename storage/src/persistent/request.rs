//! Versions that ranks have asked for, which a thread writes while they go on.

use super::PersistentError;
use super::memory::PersistentMemory;
use super::transaction::Requested;
use crate::store::{Disk, PartRef, PartStore};
use rma_core::Communicator;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

type Result<T> = std::result::Result<T, PersistentError>;

/// What became of a version that was asked for, once that is known.
pub(super) type Outcome = Arc<OnceLock<Result<Option<u64>>>>;

/// A version that all ranks have asked for: [`wait`](Self::wait) makes it.
///
/// To drop or to forget it takes nothing back: the next commit or request of all ranks decides it
/// first, and tells of its errors. If none comes, there is no such version.
/// [`Window::free`](rma_core::Window::free) decides nothing, and says that there is one.
#[must_use = "the version is there when `wait` returns"]
pub struct CommitRequest<'m> {
    pub(super) memory: &'m PersistentMemory,
    pub(super) comm: &'m Communicator,
    pub(super) outcome: Outcome,
}

impl CommitRequest<'_> {
    /// Whether [`wait`](Self::wait) does not wait for this rank's storage: its part is written, or
    /// could not be, or the version is decided. Local; other ranks may not be as far.
    pub fn test(&self) -> bool {
        self.outcome.get().is_some() || self.memory.is_written()
    }

    /// Waits until the parts of all ranks are durable, and decides the version; returns its number,
    /// as [`commit`](PersistentMemory::commit) does. **Collective** over the ranks that asked for
    /// it, and a barrier, also if a later commit or request has decided it: all of them wait, or
    /// none does.
    ///
    /// # Errors
    ///
    /// As of [`commit`](PersistentMemory::commit). After [`PersistentError::Space`], at whichever
    /// rank, there is no such version, and the window goes on: what was stored since is there.
    pub fn wait(self) -> Result<Option<u64>> {
        self.memory.conclude(self.comm, &self.outcome)
    }
}

/// What a rank calls when it meets the others for a version: all call the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked<'o> {
    Commit,
    Request,
    /// Of the version that was asked for with this outcome.
    Wait(&'o Outcome),
}

impl Asked<'_> {
    pub(super) fn word(self) -> u64 {
        match self {
            Self::Commit => 0,
            Self::Request => 1,
            Self::Wait(_) => 2,
        }
    }
}

/// A version that is to be decided.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) requested: Requested,
    pub(super) writer: Writer,
    pub(super) outcome: Outcome,
}

/// What the thread leaves: the store that it had, and this rank's part.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) store: PartStore<Disk>,
    pub(super) prepared: Result<PartRef>,
}

impl Written {
    fn of(mut store: PartStore<Disk>, serial: u64) -> Box<Self> {
        let prepared = store.write(serial);
        Box::new(Self { store, prepared })
    }
}

/// Writes what was captured, and has the store meanwhile.
#[derive(Debug)]
pub(super) enum Writer {
    Writes(JoinHandle<Option<Box<Written>>>),
    /// Nothing if the thread has panicked.
    Over(Option<Box<Written>>),
}

impl Writer {
    /// By a thread; at once if the system starts none.
    pub(super) fn start(store: PartStore<Disk>, serial: u64) -> Self {
        // A thread that is not started takes along what it was to have.
        let (give, take) = channel();
        let write = move || take.recv().ok().map(|store| Written::of(store, serial));
        match Builder::new().name("rma-commit".into()).spawn(write) {
            Ok(thread) => match give.send(store) {
                Ok(()) => Self::Writes(thread),
                Err(unsent) => Self::Over(Some(Written::of(unsent.0, serial))),
            },
            Err(_) => Self::Over(Some(Written::of(store, serial))),
        }
    }

    /// What it leaves, if it has come to its end.
    pub(super) fn poll(&mut self) -> Option<Option<&Written>> {
        if let Self::Writes(thread) = self
            && !thread.is_finished()
        {
            return None;
        }
        let written = core::mem::replace(self, Self::Over(None)).join();
        *self = Self::Over(written);
        match self {
            Self::Over(written) => Some(written.as_deref()),
            Self::Writes(_) => None,
        }
    }

    /// Waits for its end.
    pub(super) fn join(self) -> Option<Box<Written>> {
        match self {
            Self::Writes(thread) => thread.join().ok().flatten(),
            Self::Over(written) => written,
        }
    }
}
