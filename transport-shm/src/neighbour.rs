//! A rank of this node as another one knows it: where its segments are, and which are mapped.
#![allow(unsafe_code)] // room: promises `Mapped`; copies by address

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rma_core::transport::{
    Announced, FileId, FileMapping, ImportError, Mapped, Mapping, WorldRank,
};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::card::{Card, PeerPlace};
use crate::cma;
use crate::control::{ControlSegment, HEADER_LEN, header_bytes};
use crate::segment::{self, Identity, Piece, Span};

/// Arenas of a neighbour that stay mapped while no region of them is imported. A bound, because
/// the owner may have given them up already.
const KEPT_ARENAS: usize = 2;

/// How often the operating system is asked whether a neighbour still lives.
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(crate) struct Neighbour {
    card: Card,
    control: OnceLock<ControlSegment>,
    imports: Mutex<Imports>,
    /// When the operating system was asked last, in nanoseconds.
    looked: AtomicU64,
    /// What the probe of copying by address found, or why not.
    reaches: OnceLock<Result<Process, Errno>>,
}

/// A process whose memory is copied by address.
#[derive(Debug)]
enum Process {
    /// That of this rank, which is there as long as it asks. A child that it forks copies from its
    /// parent by that number, and must not: it has no part in the world (`Members::is_fork`).
    Own,
    Other(OwnedFd),
}

impl Process {
    fn has_ended(&self) -> bool {
        match self {
            Self::Own => false,
            Self::Other(process) => segment::exited(process),
        }
    }
}

/// A peer's segment in this address space.
#[derive(Debug)]
struct PeerSegment {
    span: Span,
    identity: Identity,
    is_arena: bool,
}

/// Segments are found again by their id, which the owner never uses twice.
#[derive(Default)]
struct Imports {
    known: HashMap<u64, Weak<PeerSegment>>,
    kept: VecDeque<Arc<PeerSegment>>,
    /// Size of `known` at which dead entries are removed.
    sweep_at: usize,
}

/// A region of a peer; mapped as long as this value lives.
#[derive(Debug)]
pub(crate) struct Import {
    segment: Arc<PeerSegment>,
    offset: usize,
    len: usize,
}

// SAFETY: the range lies inside the segment (`card::read` checked it against the length that
// `segment::import` verified), which stays mapped until `segment` is dropped with this value.
unsafe impl Mapped for Import {
    fn mapping(&self) -> Mapping {
        Mapping { base: self.segment.span.at(self.offset), len: self.len }
    }
}

/// Pieces of a peer's files, side by side; mapped as long as this value lives.
#[derive(Debug)]
pub(crate) struct Joined {
    /// Files that are no segments; before they are unmapped.
    _files: Vec<Announced>,
    span: Span,
    len: usize,
}

// SAFETY: the span is as long as the pieces together, and mapped until it is dropped with this
// value. Segments do not shrink; for other files their owner's backing vouches.
unsafe impl Mapped for Joined {
    fn mapping(&self) -> Mapping {
        Mapping { base: self.span.base(), len: self.len }
    }
}

impl Neighbour {
    pub(crate) fn new(card: Card) -> Self {
        let (control, imports) = (OnceLock::new(), Mutex::new(Imports::default()));
        Self { card, control, imports, looked: AtomicU64::new(0), reaches: OnceLock::new() }
    }

    /// Whether this process may copy to and from the neighbour's memory by address. Tried once.
    pub(crate) fn reaches(&self) -> Result<(), Errno> {
        self.process().map(|_| ())
    }

    fn process(&self) -> Result<&Process, Errno> {
        self.reaches.get_or_init(|| self.probe()).as_ref().map_err(|errno| *errno)
    }

    /// Copies the header of its control segment, which also shows that it is the right process.
    fn probe(&self) -> Result<Process, Errno> {
        let Card { rank, size, pid, address, .. } = self.card;
        let process = match pid == rustix::process::getpid() {
            true => Process::Own,
            false => Process::Other(rustix::process::pidfd_open(pid, PidfdFlags::empty())?),
        };
        let mut found = [0; HEADER_LEN];
        cma::read(pid, address, &mut found)?;
        // If it has not ended, the number was its own when it was opened and when it was read.
        let right = found == header_bytes(rank, size) && !process.has_ended();
        if right { Ok(process) } else { Err(Errno::SRCH) }
    }

    /// Fills `bytes` from `address` on in the neighbour's memory. After an error, they may be
    /// anything.
    pub(crate) fn copy_from(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.read_with(|pid| cma::read(pid, address, bytes))
    }

    /// Reads by the number of the process, which the system gives to another one once the process
    /// has ended: if it has not ended after that, what was read was its own, unless it has become
    /// another program (`execve`), which is not noticed.
    fn read_with(&self, read: impl FnOnce(Pid) -> Result<(), Errno>) -> Result<(), Errno> {
        let process = self.process()?;
        let found = read(self.card.pid);
        if process.has_ended() { Err(Errno::SRCH) } else { found }
    }

    /// # Safety
    ///
    /// The neighbour lets others overwrite these bytes at any time.
    pub(crate) unsafe fn copy_to(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        // Asked before, for a write to another process cannot be taken back. One that ends and has
        // its number given away between the two is not noticed.
        if self.process()?.has_ended() {
            return Err(Errno::SRCH);
        }
        // SAFETY: the caller's, for the process that the probe found, and that was there just now.
        unsafe { cma::write(self.card.pid, address, bytes) }
    }

    fn rank(&self) -> WorldRank {
        WorldRank(self.card.rank)
    }

    /// The control segment; mapped at the first call.
    #[inline]
    pub(crate) fn control(&self) -> Result<&ControlSegment, ImportError> {
        match self.control.get() {
            Some(control) => Ok(control),
            None => self.map_control(),
        }
    }

    #[cold]
    fn map_control(&self) -> Result<&ControlSegment, ImportError> {
        let Card { rank, size, pid, descriptor, control, .. } = self.card;
        let span = segment::import(pid, descriptor, control, true)
            .map_err(|error| error.of(self.rank()))?;
        let control = ControlSegment::import(span, WorldRank(rank), size)
            .ok_or(ImportError::Malformed(WorldRank(rank)))?;
        // Another thread may have been faster; then this mapping goes away again.
        Ok(self.control.get_or_init(|| control))
    }

    /// Maps what lies in these places, side by side.
    pub(crate) fn import_all(&self, places: &[PeerPlace]) -> Result<Joined, ImportError> {
        let piece = |place: &PeerPlace| {
            let PeerPlace { descriptor, offset, len, inode, segment_len, .. } = *place;
            let (is_segment, is_synchronous) = (place.device.is_none(), place.is_synchronous);
            let device = place.device.unwrap_or(self.card.control.device);
            let file = Identity { device, inode, len: segment_len };
            Piece { descriptor, file, is_segment, is_synchronous, offset, len }
        };
        let pieces: Vec<_> = places.iter().map(piece).collect();
        let joined = segment::import_side_by_side(self.card.pid, &pieces);
        let (span, len) = joined.map_err(|error| error.of(self.rank()))?;
        let mut at = 0;
        let mut files = Vec::new();
        for Piece { file, is_segment, offset, len, .. } in pieces {
            let id = FileId { device: file.device, inode: file.inode };
            let mapping = Mapping { base: span.at(at), len };
            if !is_segment {
                files.push(FileMapping::announce(id, offset as u64, mapping));
            }
            at += len;
        }
        Ok(Joined { _files: files, span, len })
    }

    /// Maps the segment of `place`, or finds it mapped.
    pub(crate) fn import(&self, place: PeerPlace) -> Result<Import, ImportError> {
        let PeerPlace { id, is_arena, offset, len, .. } = place;
        let (device, inode) = (self.card.control.device, place.inode);
        let identity = Identity { device, inode, len: place.segment_len };
        // Every change of `Imports` is whole before anything can panic.
        let mut imports = self.imports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(segment) = imports.known.get(&id).and_then(Weak::upgrade) {
            return if segment.identity == identity && segment.is_arena == is_arena {
                Ok(Import { segment, offset, len })
            } else {
                Err(ImportError::Malformed(self.rank()))
            };
        }
        let span = segment::import(self.card.pid, place.descriptor, identity, is_arena)
            .map_err(|error| error.of(self.rank()))?;
        let segment = Arc::new(PeerSegment { span, identity, is_arena });
        let evicted = imports.insert(id, &segment);
        // Unmapping takes a while; not under the lock.
        drop(imports);
        drop(evicted);
        Ok(Import { segment, offset, len })
    }

    /// Whether the process lives and has its control segment open, as far as can be told; looks at
    /// most every [`LOOK_EVERY`], and says yes in between.
    pub(crate) fn is_there(&self, now: Duration) -> bool {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let last = self.looked.load(Relaxed);
        if now.saturating_sub(last) < LOOK_EVERY.as_nanos() as u64 {
            return true;
        }
        self.looked.store(now, Relaxed);
        segment::is_open(self.card.pid, self.card.descriptor, self.card.control)
    }
}

impl Imports {
    /// Remembers a segment; what is returned is no longer kept.
    fn insert(&mut self, id: u64, segment: &Arc<PeerSegment>) -> Option<Arc<PeerSegment>> {
        if self.known.len() >= self.sweep_at {
            self.known.retain(|_, segment| segment.strong_count() > 0);
            self.sweep_at = (self.known.len() * 2).max(16);
        }
        self.known.insert(id, Arc::downgrade(segment));
        if !segment.is_arena {
            return None;
        }
        self.kept.push_back(segment.clone());
        if self.kept.len() > KEPT_ARENAS { self.kept.pop_front() } else { None }
    }
}

#[cfg(test)]
#[path = "neighbour_tests.rs"]
mod tests;
