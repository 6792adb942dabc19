//! Windows: memory of every rank of a group, addressable by target and displacement.
#[cfg(test)]
pub(crate) mod accumulate_tests;
mod attempt;
mod attributes;
#[cfg(test)]
mod bias_tests;
mod counts;
mod device;
mod door;
#[cfg(test)]
mod engine_tests;
pub(crate) mod epochs;
mod failure;
mod far;
mod issue;
mod known;
mod locks;
mod mapping;
mod memory;
mod order;
mod persist;
mod queried;
pub(crate) mod regions;
mod registry;
mod signals;
mod user;

pub use attributes::MemoryModel;
pub(crate) use attributes::Settings;
pub(crate) use counts::Counts;
pub(crate) use device::{Device, DeviceRoute, Registered, atomic_of};
pub(crate) use door::{Door, Entered};
pub(crate) use epochs::EpochState;
pub(crate) use far::{Far, Unflushed};
pub(crate) use issue::Drain;
pub(crate) use known::{Known, KnownRegion, Pages, RegionsOf, Where};
pub(crate) use locks::{GlobalLock, LockEnd, Locks, NodePool, Ungranted};
pub(crate) use memory::Memory;
pub(crate) use order::Touched;
pub(crate) use regions::{ADDRESSES, Regions};
pub(crate) use registry::Windows;
pub(crate) use signals::ByMessage;
pub(crate) use user::Contents;
pub use user::{RawPart, WindowMemory};

use crate::collective::Communicator;
use crate::config::PathHint;
use crate::engine::{Engine, On, Wait};
use crate::group::Group;
use crate::memory::accumulate::Integers;
use crate::memory::pool::{PeerBlock, SyncBlock};
use crate::memory::target::{Marks, Tables};
use crate::object::WindowId;
use crate::protocol::lock;
use crate::rank::Rank;
use crate::transport::{About, Descriptor, Mapped};
use bytemuck::{Pod, Zeroable};
use core::fmt;
use core::slice;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

/// Memory of every rank of a communicator (MPI 4.1, chapter 12).
///
/// Made by [`Communicator::window`]; operations are methods of the epochs that
/// [`lock`](Self::lock), [`lock_all`](Self::lock_all), [`fence`](Self::fence) and
/// [`start`](Self::start) open. A window may be used by several threads.
///
/// [`free`](Self::free) ends it on all ranks and gives the memory back. Dropping it is local and
/// never blocks: peers still reach this rank's part, which stays allocated until the universe ends.
pub struct Window {
    /// First, because each operation looks there.
    pub(crate) targets: Tables,
    pub(crate) rank: Rank,
    pub(crate) part: Arc<Part>,
    pub(crate) peers: Peers,
    pub(crate) far: Arc<Far>,
    pub(crate) nodes: NodePool,
    pub(crate) global_lock: GlobalLock,
    pub(crate) barriers: AtomicU64,
    /// How often ranks agreed to free, to seal or to open again.
    pub(crate) agreements: [AtomicU64; 2],
    pub(crate) before: BeforeFirst,
    pub(crate) settings: Settings,
    pub(crate) known: Known,
    /// Control words of every rank are reached by load and store.
    pub(crate) together: bool,
    /// Operations on every target go by load and store.
    pub(crate) all_loaded: bool,
    /// How a device is used for far targets, or why it is not.
    pub(crate) device: Result<Device, &'static str>,
    /// The path that the ranks asked for.
    pub(crate) path: PathHint,
    pub(crate) counts: Counts,
    /// Loads and stores are counted, too: every operation goes the long way.
    pub(crate) counts_all: bool,
}

/// What ranks tell each other.
pub(crate) mod kind {
    pub(crate) const PLAN: u64 = 1;
    pub(crate) const SHARE: u64 = 2;
    /// The rank that failed to make its part.
    pub(crate) const FAILED: u64 = 3;
    /// Whether the window is to be freed or sealed, and which rank refuses.
    pub(crate) const END: u64 = 4;
    /// A further extent of a part.
    pub(crate) const EXTENT: u64 = 5;
    /// How far a device reaches.
    pub(crate) const DEVICE: u64 = 6;
    /// Bytes of a file that a rank asks for.
    pub(crate) const CLAIM: u64 = 7;
    /// A plan and a share at once.
    pub(crate) const PROPOSAL: u64 = 8;
}

/// What was counted at rank 0 before the first barrier of a window.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BeforeFirst {
    /// [`ControlBlock::arrivals`](crate::memory::control_block::ControlBlock::arrivals).
    pub(crate) arrivals: u64,
    /// [`ControlBlock::agreements`](crate::memory::control_block::ControlBlock::agreements).
    pub(crate) agreements: [u64; 2],
}

/// What it takes to map the parts of the ranks on this node.
pub(crate) struct Peers {
    /// Of the first entry.
    pub(crate) first: Rank,
    /// `None` for ranks of other nodes that lie between.
    pub(crate) all: Box<[Option<PeerPart>]>,
}

impl Peers {
    pub(crate) fn get(&self, rank: Rank) -> Option<&PeerPart> {
        self.all.get(rank.0.checked_sub(self.first.0)? as usize)?.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Rank, &PeerPart)> {
        let peers = (self.first.0..).map(Rank).zip(&self.all);
        peers.filter_map(|(rank, peer)| Some((rank, peer.as_ref()?)))
    }
}

/// How to map the extents of a part. Mostly there is one, which lies here: a rank keeps these of
/// all near ranks, and makes them anew with each window.
#[derive(Clone)]
pub(crate) enum Extents {
    None,
    One(Descriptor),
    Several(Vec<Descriptor>),
}

impl Extents {
    pub(crate) fn as_slice(&self) -> &[Descriptor] {
        match self {
            Self::None => &[],
            Self::One(one) => slice::from_ref(one),
            Self::Several(all) => all,
        }
    }
}

/// What it takes to map a part.
pub(crate) struct PeerPart {
    /// The rank of the region that holds it.
    pub(crate) owner: Rank,
    /// Its extents; none if no other rank can map it.
    pub(crate) data: Extents,
    /// Where in that region the part begins, in bytes.
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) disp_unit: u32,
    /// Where it lies in its rank's process.
    pub(crate) address: u64,
    pub(crate) block: Descriptor,
    /// See [`mapped`](Self::mapped).
    pub(crate) mapped: OnceLock<Box<MappedPart>>,
}

/// What this rank has mapped of a part: few ranks reach all of their neighbours.
#[derive(Default)]
pub(crate) struct MappedPart {
    /// No memory if this rank owns the region.
    pub(crate) data: OnceLock<Option<Box<dyn Mapped>>>,
    pub(crate) block: OnceLock<PeerBlock>,
    /// Of a dynamic window.
    pub(crate) pages: Pages,
}

impl PeerPart {
    /// What is mapped of it, and stays so as long as the window.
    pub(crate) fn mapped(&self) -> &MappedPart {
        self.mapped.get_or_init(Box::default)
    }

    /// Whether no other rank can map it. S-K4
    pub(crate) fn stays(&self) -> bool {
        self.data.as_slice().is_empty()
    }
}

/// This rank's part of a window, as messages reach it.
pub(crate) struct Part {
    /// A communicator of its own, whatever becomes of the one that it was made over. S-A7
    pub(crate) comm: Communicator,
    pub(crate) id: WindowId,
    // Before the memory, which the device does not reach any more when that is dropped.
    pub(crate) registered: Registered,
    pub(crate) memory: Memory,
    pub(crate) offset: u64,
    /// As `MPI_WIN_SIZE`, in bytes. S-B1
    pub(crate) size: u64,
    pub(crate) disp_unit: u32,
    pub(crate) integers: Integers,
    /// Whether a thread may combine alone at a part, until another comes.
    pub(crate) biased: bool,
    pub(crate) block: SyncBlock,
    pub(crate) signals: ByMessage,
    /// Of a window whose ranks do not all reach its control words.
    pub(crate) locks: Locks,
    pub(crate) together: bool,
    /// Of a dynamic window; its memory is a directory of them.
    pub(crate) regions: Option<Regions>,
    pub(crate) door: Door,
    /// Threads of this rank that are inside regions of peers.
    pub(crate) inside_peers: AtomicU32,
    /// What this rank has open, and which targets it holds: here, because it is asked for when the
    /// rank leaves, also of windows that were forgotten. S-A14
    pub(crate) epoch: EpochState,
    pub(crate) marks: Marks,
    pub(crate) far: Arc<Far>,
}

impl Window {
    /// The window's name in errors.
    pub fn id(&self) -> WindowId {
        self.part.id
    }

    /// This process, in the window's group.
    #[inline]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// What combines its integers.
    pub(crate) fn integers(&self) -> Integers {
        self.part.integers
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.part.comm.size()
    }

    /// The processes of the window.
    pub fn group(&self) -> &Group {
        self.part.comm.group()
    }

    /// Bytes of this rank's part.
    pub fn size(&self) -> u64 {
        self.part.size
    }

    /// Bytes by which displacements at this rank count.
    pub fn disp_unit(&self) -> u32 {
        self.part.disp_unit
    }

    /// As [`Universe::progress`](crate::Universe::progress), of the whole rank.
    pub fn progress(&self) -> usize {
        self.engine().progress_in_passing()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.part.comm.inner.engine
    }

    pub(crate) fn wait_for(&self, what: &'static str, target: Rank) -> Wait<'static> {
        self.part.comm.inner.wait_for(what, target)
    }

    /// A wait of an operation on this window.
    pub(crate) fn wait_on<'a>(&self, what: &'static str, on: On<'a>) -> Wait<'a> {
        Wait::new(what, on).about(About::Window(self.id().0))
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({}, {:?}, rank {})", self.id(), self.flavor(), self.rank())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let engine = self.engine();
        // Not if it was freed.
        if engine.own_windows().get(self.id().0).is_some() {
            engine.own_windows().keep(&self.part);
            if engine.has_left() {
                engine.own_windows().let_go();
            }
        }
        if self.part.holds_locks() {
            engine.set_holding();
        }
    }
}

impl Part {
    /// Whether control words of every rank are reached by load and store.
    pub(crate) fn is_together(&self) -> bool {
        self.together
    }

    /// Whether this rank holds locks of the window or pins of peers' regions, or a thread of it
    /// stands in line for a lock.
    pub(crate) fn holds_locks(&self) -> bool {
        let waits = || lock::in_line(|word| self.block.get().word(word).load(Relaxed));
        self.epoch.is_lock_all()
            || self.marks.keep_out()
            || self.far.keeps_out()
            || self.inside_peers.load(SeqCst) > 0
            || waits()
    }
}
