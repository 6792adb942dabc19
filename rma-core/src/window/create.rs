//! Collective creation. S-A2 S-A3 S-A12 S-A13 S-B7 S-K1 S-K2 S-K8 S-K10
use super::attributes::{Flavor, Settings};
use super::control::NodePool;
use super::door::Door;
use super::dynamic::{ADDRESSES, Regions};
use super::far::Far;
use super::gate::Gate;
use super::hints::{Hint, HintError, Hints};
use super::memory::Memory;
use super::signals::ByMessage;
use super::user::{Contents, WindowMemory};
use super::{Before, Part, Peer, Peers, Window, WindowId, kind};
use crate::collective::node::Node;
use crate::communicator::Communicator;
use crate::epoch::EpochState;
use crate::error::{CollectiveError, WindowError};
use crate::group::Group;
use crate::memory::block::Agreement;
use crate::memory::target::Tables;
use crate::rank::Rank;
use crate::route::{Asked, Counts, Known};
use crate::serve::Locks;
use crate::sync_block::SyncBlock;
use crate::transport::{AllocateError, Descriptor, ImportError, Mapped};
use crate::universe::NO_OBJECT;
use bytemuck::{Pod, Zeroable};
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Parts of at least this many bytes are worth asking how much memory there is.
const LARGE: u64 = 1 << 20;
const PAGE: usize = 4096;

/// Describes a window before it is made; from [`Communicator::window`].
pub struct WindowBuilder<'c> {
    comm: &'c Communicator,
    count: usize,
    disp_unit: usize,
    hints: Hints,
}

impl Clone for WindowBuilder<'_> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

/// What ranks agree on before anybody allocates.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Plan {
    /// Of the window; the first rank chooses.
    id: u64,
    /// The first rank of those whose plan this is.
    first: u64,
    total: u64,
    /// What the rank that can have the least can have.
    available: u64,
    /// That rank.
    shortest: u64,
    size_min: u64,
    size_max: u64,
    unit_min: u64,
    unit_max: u64,
    /// The lowest rank whose arguments are wrong.
    wrong: u64,
    /// Of the hints that must be the same everywhere.
    hints_min: u64,
    hints_max: u64,
    flavor_min: u64,
    flavor_max: u64,
}

/// What each rank says of its part.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Share {
    data: [u8; Descriptor::LEN],
    block: [u8; Descriptor::LEN],
    size: u64,
    /// Where the part lies in this process.
    address: u64,
    /// What is counted in the block already.
    before: Before,
    disp_unit: u32,
    /// One of [`made`].
    made: u32,
    /// Of the window: who makes several at the same time may be at another.
    id: u64,
}

/// What became of a part.
mod made {
    pub(super) const NOT: u32 = 0;
    /// In memory that others can map.
    pub(super) const SHARED: u32 = 1;
    /// In memory that stays where its user put it.
    pub(super) const STAYS: u32 = 2;
}

/// What a part is made of.
#[derive(Clone, Copy)]
enum Source<'b> {
    Zeros,
    User(Contents<'b>),
    /// A directory of what will be attached.
    Directory,
}

/// Memory that was not made a window of, given back, and why.
pub struct NotCreated<M> {
    /// What the call was given.
    pub buffer: M,
    /// Why.
    pub error: WindowError,
}

crate::debug_as_display!(NotCreated<M>);

impl<M> fmt::Display for NotCreated<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> core::error::Error for NotCreated<M> {}

impl<M> From<NotCreated<M>> for WindowError {
    fn from(not_created: NotCreated<M>) -> Self {
        not_created.error
    }
}

const NOBODY: u64 = u64::MAX;

/// What the ranks of this node say, in rank order.
type Shares = Vec<(Rank, Share)>;

/// Bytes that a rank can have, and which of its limits says so.
type Room = (u64, &'static str);

impl<'c> WindowBuilder<'c> {
    pub(crate) fn new(comm: &'c Communicator, count: usize, disp_unit: usize) -> Self {
        Self { comm, count, disp_unit, hints: comm.inner.process.config.hints() }
    }

    /// Says something about the use of the window. What is in force, defaults included, is what
    /// [`Window::info`] shows; keys that nobody knows are ignored (MPI 4.1, section 12.2.1).
    ///
    /// | key | values, the default first | what comes of it |
    /// | --- | --- | --- |
    /// | `no_locks` * | `false`, `true` | locks of the window are refused |
    /// | `accumulate_ordering` | some of `rar,raw,war,waw` (all), `none` | others may overtake |
    /// | `same_size` *, `same_disp_unit` * | `false`, `true` | checked: all ranks pass the same |
    /// | `alloc_shared_noncontig` * | `false`, `true` | each part of a shared window by itself |
    /// | `rma_count` | `false`, `true` | see [`Window::operation_counts`] |
    /// | `rma_path` * | `auto`, `load_store`, `cross`, `messages` | see [`Path`](crate::Path) |
    /// | `accumulate_ops` | `same_op_no_op`, `same_op` | nothing |
    /// | `mpi_accumulate_granularity` * | `0`, any number of bytes | nothing |
    /// | `alloc_shm` | `true`, `false` | nothing |
    /// | `coll_attach` | `false`, `true` | nothing |
    /// | `which_accumulate_ops` | some of MPICH's names (all), `none` | nothing |
    /// | `disable_shm_accumulate` | `false`, `true` | nothing |
    ///
    /// Those with a star must be the same on all ranks. A hint never changes the results of a
    /// correct program, but one that is not true of the window, or asks for a path that does not
    /// reach it, is an error. A path that the whole job wishes for, by
    /// [`Config::hint`](crate::Config::hint), is left aside where it does not reach.
    ///
    /// # Errors
    ///
    /// A value that a known key does not take.
    pub fn hint(mut self, key: &str, value: &str) -> Result<Self, HintError> {
        self.hints.set(key, value)?;
        Ok(self)
    }

    /// Makes the window of zeroed memory of its own. **Collective** over the communicator.
    ///
    /// Space is reserved now, so that a shortage is an error here and never a signal later. If one
    /// rank fails, all do (MPI 4.1, section 12.2.2).
    pub fn allocate(self) -> Result<Window, WindowError> {
        self.make(Flavor::Allocate, Source::Zeros)
    }

    /// As [`allocate`](Self::allocate), with the parts of all ranks in one piece, in rank order,
    /// for direct loads and stores through [`Window::shared_query`]. **Collective.**
    ///
    /// Refused where ranks do not share memory (MPI 4.1, section 12.2.3).
    pub fn allocate_shared(self) -> Result<Window, WindowError> {
        if !matches!(self.comm.inner.node, Node::Whole) {
            return Err(WindowError::NotShared(self.far_group()));
        }
        self.make(Flavor::Shared, Source::Zeros)
    }

    /// Makes the window over memory of the user. **Collective.** Each rank may bring another kind.
    ///
    /// A vector or boxed slice is given away: [`Window::free_into`] gives it back. It may be longer
    /// than the window (MPI 4.1, section 12.2.1). S-A1 S-A4 S-K7
    ///
    /// ```text
    /// let window = world.window(1000, size_of::<f64>()).create(field)?;
    /// …
    /// let field: Vec<f64> = window.free_into()?;
    /// ```
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate), and [`WindowError::TooShort`]. The memory comes back with
    /// it; a raw part may be used again unless the error is [`WindowError::Collective`].
    pub fn create<M: WindowMemory>(self, memory: M) -> Result<Window, NotCreated<M>> {
        match self.make(Flavor::Create, Source::User(memory.contents())) {
            Ok(window) => Ok(window),
            Err(error) => Err(NotCreated { buffer: memory, error }),
        }
    }

    /// Makes a window without memory, to [attach](Window::attach) some later. **Collective.**
    ///
    /// The builder's count must be 0 (MPI 4.1, section 12.2.4).
    pub fn create_dynamic(mut self) -> Result<Window, WindowError> {
        // Addresses count bytes.
        self.disp_unit = 1;
        self.make(Flavor::Dynamic, Source::Directory)
    }

    fn far_group(&self) -> Group {
        let transport = &self.comm.inner.process.transport;
        Group::from_members(
            self.comm.group().members().filter(|peer| !transport.shared.is_near(*peer)),
        )
    }

    fn check(&self, source: Source<'_>) -> Result<(u64, u32), WindowError> {
        let (count, unit) = (self.count as u64, self.disp_unit as u64);
        let disp_unit = u32::try_from(unit).ok().filter(|unit| *unit > 0);
        let disp_unit = disp_unit.ok_or(WindowError::DispUnit(unit))?;
        let size = self.count.checked_mul(self.disp_unit);
        // What Rust and the kernel call an object is at most this long.
        let size = size.filter(|size| isize::try_from(*size).is_ok());
        let size = size.ok_or(WindowError::SizeOverflow { count, disp_unit: unit })? as u64;
        match source {
            Source::User(contents) if (contents.len() as u64) < size => {
                Err(WindowError::TooShort { size, len: contents.len() as u64 })
            }
            Source::Directory if size > 0 => Err(WindowError::DynamicSize(size)),
            _ => Ok((size, disp_unit)),
        }
    }

    /// Bytes that this rank needs for a part of `size`, by itself.
    fn needs(&self, source: Source<'_>, size: u64) -> u64 {
        match source {
            Source::Zeros => size,
            Source::User(Contents::Bytes(bytes)) => bytes.len() as u64,
            Source::User(Contents::At(_)) => 0,
            Source::Directory => Regions::bytes(self.slots()) as u64,
        }
    }

    fn slots(&self) -> usize {
        self.comm.inner.process.config.dynamic_regions.clamp(1, u32::MAX as usize)
    }

    fn make(mut self, flavor: Flavor, source: Source<'_>) -> Result<Window, WindowError> {
        let apart = self.hints.is_set(Hint::AllocSharedNoncontig);
        let contiguous = flavor == Flavor::Shared && !apart;
        let checked = self.check(source);
        let (size, disp_unit) = *checked.as_ref().unwrap_or(&(0, 1));
        let needed = self.needs(source, size);
        let room = self.room(needed);
        let plan = self.agree(flavor, (size, disp_unit), needed, room, checked.is_err())?;
        plan.check(flavor)?;
        checked?;
        if plan.wrong != NOBODY {
            return Err(WindowError::Peer(Rank(plan.wrong as u32)));
        }
        self.check_hints(&plan)?;
        // Before the shares are exchanged, after which peers may send messages of it.
        let comm = self.comm.internal(plan.id);
        let mine = self.make_part(&plan, source, needed, room, contiguous);
        let shares = self
            .exchange(&mine, plan.id, size, disp_unit)
            .and_then(|shares| self.check_shares(flavor, shares));
        if let (Err(error), Ok((memory, block))) = (&shares, &mine)
            && !matches!(error, WindowError::Collective(_))
        {
            // All agree, so no rank has a window to reach it by.
            memory.set_freed();
            block.set_left(true);
        }
        let ((memory, block), shares) = (mine?, shares?);
        let memory = if contiguous {
            // As above, if the ranks agree that one could not map it.
            let agreed = |error: &_| !matches!(error, WindowError::Collective(_));
            let shared = self.share_one(memory, &shares[0].1, plan.total);
            shared.inspect_err(|error| block.set_left(agreed(error)))?
        } else {
            memory
        };
        let dynamic = flavor == Flavor::Dynamic;
        let near: &[_] = if self.is_apart() { &[] } else { &shares };
        let peers = peers(near, contiguous, dynamic.then_some(needed));
        let offset = peers.get(self.comm.rank()).map_or(0, |peer| peer.offset);
        // The sum of what peers said.
        if offset.checked_add(size).is_none_or(|end| end > memory.mapping().len as u64) {
            return Err(ImportError::Malformed(self.comm.world_rank(Rank(0))).into());
        }
        let targets = self.targets(&peers);
        let far = if dynamic { Some((ADDRESSES, 1)) } else { plan.symmetric() };
        let far = Arc::new(Far::new(far));
        let part = Part {
            comm,
            id: WindowId(plan.id),
            memory,
            offset,
            size,
            disp_unit,
            block,
            signals: ByMessage::new(self.is_together(), self.comm.size()),
            locks: Locks::default(),
            together: self.is_together(),
            regions: dynamic.then(|| Regions::new(self.slots())),
            door: Door::new(),
            inside_peers: AtomicU32::new(0),
            epoch: EpochState::default(),
            marks: targets.marks(),
            far,
        };
        self.assemble(flavor, targets, part, peers, shares[0].1.before)
    }

    /// The memory at rank 0 in which the parts of all ranks lie; `mine` is that, or has no bytes.
    fn share_one(&self, mine: Memory, first: &Share, total: u64) -> Result<Memory, WindowError> {
        let memory = if self.comm.rank() == Rank(0) {
            Ok(mine)
        } else {
            // No peer reaches it.
            mine.set_freed();
            self.import_all(first, total).map(Memory::Imported)
        };
        let failed = if memory.is_ok() { Rank::NULL } else { self.comm.rank() };
        let failed = Rank(self.comm.agree(kind::FAILED, u64::from(failed.0), u64::min)? as u32);
        match memory {
            Ok(memory) if failed == Rank::NULL => Ok(memory),
            Ok(memory) => {
                // No rank has a window to reach it by.
                memory.set_freed();
                Err(WindowError::Peer(failed))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The memory at rank 0 in which the parts of all ranks lie, `total` bytes.
    fn import_all(&self, share: &Share, total: u64) -> Result<Box<dyn Mapped>, ImportError> {
        let (transport, first) =
            (&self.comm.inner.process.transport, self.comm.world_rank(Rank(0)));
        let all = transport.shared.import(first, &Descriptor(share.data))?;
        if (all.mapping().len as u64) < total {
            Err(ImportError::Malformed(first))
        } else {
            Ok(all)
        }
    }

    /// The tables of the ranks that are reached by load and store.
    fn targets(&self, peers: &Peers) -> Tables {
        let near = !self.is_apart() && self.hints.path() != Asked::Messages;
        let near = peers.all.iter().filter(|_| near);
        Tables::new(peers.first, near.map(|peer| peer.as_ref().map(|peer| peer.disp_unit)))
    }

    /// Whether this rank shares memory with nobody, itself included.
    fn is_apart(&self) -> bool {
        matches!(self.comm.inner.node, Node::Apart)
    }

    /// Whether control words of all ranks are reached by load and store.
    fn is_together(&self) -> bool {
        matches!(self.comm.inner.node, Node::Whole) && self.hints.path() != Asked::Messages
    }

    fn assemble(
        &self,
        flavor: Flavor,
        targets: Tables,
        part: Part,
        peers: Peers,
        before: Before,
    ) -> Result<Window, WindowError> {
        let (part, dynamic) = (Arc::new(part), flavor == Flavor::Dynamic);
        let (process, id) = (&self.comm.inner.process, part.id);
        let forced_to_cross = self.hints.path() == Asked::Cross;
        let stays = peers.iter().any(|(_, peer)| peer.stays);
        let window = Window {
            targets,
            rank: self.comm.rank(),
            far: part.far.clone(),
            part,
            peers,
            nodes: NodePool::default(),
            gate: Gate::default(),
            barriers: AtomicU64::new(0),
            agreements: Default::default(),
            before,
            settings: Settings::new(flavor, &self.hints),
            known: Known::default(),
            together: self.is_together(),
            all_loaded: self.is_together() && !dynamic && !forced_to_cross && !stays,
            forced_to_cross,
            counts: Counts::default(),
            counts_all: self.hints.is_set(Hint::Count),
        };
        window.map_own();
        process.windows.add(id.0, &window.part);
        if process.has_left() {
            window.part.epoch.set_left();
        }
        // No message may come before it is registered.
        if window.part.signals.is_used() || !window.all_loaded {
            self.comm.meet()?;
        }
        if let Some(tell) = process.config.on_window.filter(|_| self.comm.rank() == Rank(0)) {
            tell(&window.explain());
        }
        Ok(window)
    }

    fn room(&self, size: u64) -> Room {
        let transport = &self.comm.inner.process.transport;
        if size >= LARGE { transport.shared.available() } else { (u64::MAX, "not asked") }
    }

    fn agree(
        &self,
        flavor: Flavor,
        (size, disp_unit): (u64, u32),
        needed: u64,
        room: Room,
        wrong: bool,
    ) -> Result<Plan, WindowError> {
        let flavor = flavor as u64;
        let (unit, hints) = (u64::from(disp_unit), self.hints.digest());
        let mine = Plan {
            id: self.comm.inner.process.new_object_id(),
            first: u64::from(self.comm.rank()),
            total: needed,
            available: room.0,
            shortest: u64::from(self.comm.rank()),
            size_min: size,
            size_max: size,
            unit_min: unit,
            unit_max: unit,
            wrong: if wrong { u64::from(self.comm.rank()) } else { NOBODY },
            hints_min: hints,
            hints_max: hints,
            flavor_min: flavor,
            flavor_max: flavor,
        };
        let all = self.comm.agree(kind::PLAN, mine, |a, b| Plan {
            id: if a.first < b.first { a.id } else { b.id },
            first: a.first.min(b.first),
            total: a.total.saturating_add(b.total),
            available: a.available.min(b.available),
            shortest: (a.available, a.shortest).min((b.available, b.shortest)).1,
            size_min: a.size_min.min(b.size_min),
            size_max: a.size_max.max(b.size_max),
            unit_min: a.unit_min.min(b.unit_min),
            unit_max: a.unit_max.max(b.unit_max),
            wrong: a.wrong.min(b.wrong),
            hints_min: a.hints_min.min(b.hints_min),
            hints_max: a.hints_max.max(b.hints_max),
            flavor_min: a.flavor_min.min(b.flavor_min),
            flavor_max: a.flavor_max.max(b.flavor_max),
        })?;
        Ok(all)
    }

    /// Whether ranks say the same where they must, and what they say is true. All ranks agree on
    /// the answer.
    fn check_hints(&self, plan: &Plan) -> Result<(), WindowError> {
        if plan.hints_min != plan.hints_max {
            return Err(self.hints_differ()?);
        }
        let untrue = |key, of, min, max| Err(WindowError::HintUntrue { key, of, min, max });
        if self.hints.is_set(Hint::SameSize) && plan.size_min != plan.size_max {
            return untrue("same_size", "sizes", plan.size_min, plan.size_max);
        }
        if self.hints.is_set(Hint::SameDispUnit) && plan.unit_min != plan.unit_max {
            return untrue("same_disp_unit", "displacement units", plan.unit_min, plan.unit_max);
        }
        Ok(())
    }

    /// Which hint differs, and at the lowest rank that says something else than rank 0.
    fn hints_differ(&self) -> Result<WindowError, WindowError> {
        let mut first = self.hints.common();
        let runtime = self.comm.runtime();
        runtime.bcast(&mut first, Rank(0))?;
        let mine = self.hints.difference(&first).map_or(NOBODY, |_| u64::from(self.comm.rank()));
        let rank = runtime.allreduce(&[mine], crate::Op::Min)?[0];
        let rank = Rank(u32::try_from(rank).unwrap_or(0));
        let mut theirs = self.hints.common();
        runtime.bcast(&mut theirs, rank)?;
        let difference = Hints::of_common(&theirs).difference(&first);
        let (key, value, expected) = difference.unwrap_or_default();
        Ok(WindowError::HintDiffers { key, rank, value, expected })
    }

    /// What every rank made, if all did and the path that was asked for leads there.
    fn check_shares(&mut self, flavor: Flavor, shares: Shares) -> Result<Shares, WindowError> {
        if let Some((rank, _)) = shares.iter().find(|(_, share)| share.made == made::NOT) {
            return Err(WindowError::Peer(*rank));
        }
        // Ranks agree on the hint, and on what the job wishes.
        let wished = self.hints.path() == self.comm.inner.process.config.hints().path();
        match self.check_path(flavor, &shares) {
            Err(WindowError::NoPath { why, .. }) if wished => self.hints.leave_path(why),
            checked => checked?,
        }
        Ok(shares)
    }

    /// Whether the path that was asked for leads to all ranks. They agree on the answer.
    fn check_path(&self, flavor: Flavor, shares: &Shares) -> Result<(), WindowError> {
        let asked = self.hints.path();
        let shared = matches!(self.comm.inner.node, Node::Whole);
        let no = |path, why| Err(WindowError::NoPath { path, why });
        let process = &self.comm.inner.process;
        let stays = shares.iter().any(|(_, share)| share.made == made::STAYS);
        match asked {
            Asked::LoadStore if !shared => no("load_store", "ranks that do not share memory"),
            Asked::LoadStore if flavor == Flavor::Dynamic => no("load_store", "attached memory"),
            Asked::LoadStore if stays => no("load_store", "memory of the user that stays there"),
            Asked::Cross if flavor == Flavor::Dynamic => no("cross", "attached memory"),
            Asked::Cross => {
                let crosses = |peer| process.transport.cma_with(peer).is_some();
                let mine = u64::from(shared && self.comm.group().members().all(crosses));
                match self.comm.agree(kind::FAILED, mine, u64::min)? {
                    1 => Ok(()),
                    _ => no("cross", "ranks whose memory the system does not let others copy"),
                }
            }
            Asked::Auto | Asked::LoadStore | Asked::Messages => Ok(()),
        }
    }

    fn make_part(
        &self,
        plan: &Plan,
        source: Source<'_>,
        needed: u64,
        room: Room,
        contiguous: bool,
    ) -> Result<(Memory, SyncBlock), WindowError> {
        let process = &self.comm.inner.process;
        let failed = |error| WindowError::Allocate { rank: self.comm.rank(), error };
        // Other nodes have memory of their own.
        let together = matches!(self.comm.inner.node, Node::Whole);
        let (asked, least) = if together { (plan.total, plan.available) } else { (needed, room.0) };
        if asked > least {
            let (available, limit) = room;
            if asked <= available {
                return Err(WindowError::Peer(Rank(plan.shortest as u32)));
            }
            return Err(failed(AllocateError::Shortage { asked, available, limit }));
        }
        let len = match (contiguous, self.comm.rank()) {
            (false, _) => needed,
            (true, Rank(0)) => plan.total,
            (true, _) => 0,
        };
        let align = if len >= PAGE as u64 { PAGE } else { 64 };
        let block = SyncBlock::new(process).map_err(failed)?;
        let ranks = self.comm.size();
        let stays = matches!(source, Source::User(Contents::At(_)) | Source::Directory)
            || self.hints.path() == Asked::Cross;
        if ranks > 1 && (stays || ByMessage::needed(self.is_together(), ranks)) {
            let no_agent = |error| WindowError::Agent { rank: self.comm.rank(), error };
            process.need_agent().map_err(no_agent)?;
        }
        if let Source::User(Contents::At(part)) = source {
            return Ok((Memory::Raw(part), block));
        }
        let region = process.transport.shared.allocate(len as usize, align).map_err(failed)?;
        let memory = Memory::own(process, region, self.hints.path() == Asked::Cross);
        if let Source::User(Contents::Bytes(bytes)) = source {
            memory.fill(bytes);
        }
        Ok((memory, block))
    }

    fn exchange(
        &self,
        mine: &Result<(Memory, SyncBlock), WindowError>,
        id: u64,
        size: u64,
        disp_unit: u32,
    ) -> Result<Shares, WindowError> {
        let mut share = Share { id, size, disp_unit, ..Share::zeroed() };
        if let Ok((memory, block)) = mine {
            share.made = made::STAYS;
            if let Some(descriptor) = memory.export() {
                (share.made, share.data) = (made::SHARED, descriptor.0);
            }
            share.address = memory.mapping().base.expose_provenance() as u64;
            share.block = block.descriptor().0;
            let words = block.get();
            share.before.arrivals = words.arrivals().load(Relaxed);
            share.before.agreements =
                [Agreement::Free, Agreement::Seal].map(|on| words.agreements(on).load(Relaxed));
        }
        let near = self.comm.share_near(kind::SHARE, share)?;
        let near: Shares = self.comm.near_ranks().zip(near).collect();
        if let Some((from, _)) = near.iter().find(|(_, share)| share.id != id) {
            let (what, from) = ("making a window", *from);
            return Err(CollectiveError::Malformed { what, from }.into());
        }
        if matches!(self.comm.inner.node, Node::Whole) {
            return Ok(near);
        }
        // Of ranks on other nodes, it matters only whether they failed.
        let failed = if share.made == made::NOT { u64::from(self.comm.rank()) } else { NOBODY };
        match self.comm.agree(kind::FAILED, failed, u64::min)? {
            NOBODY => Ok(near),
            failed => {
                mine.as_ref().map_err(Clone::clone)?;
                Err(WindowError::Peer(Rank(failed as u32)))
            }
        }
    }
}

impl Plan {
    /// Whether there can be a window of that flavor. All ranks agree on the answer.
    fn check(&self, flavor: Flavor) -> Result<(), WindowError> {
        if self.id == NO_OBJECT {
            return Err(CollectiveError::TooManyObjects { what: "making a window" }.into());
        }
        if self.flavor_min != self.flavor_max {
            return Err(WindowError::FlavorDiffers(flavor));
        }
        Ok(())
    }

    /// Size and unit, if all ranks have the same.
    fn symmetric(&self) -> Option<(u64, u32)> {
        let same = self.size_min == self.size_max && self.unit_min == self.unit_max;
        same.then_some((self.size_min, self.unit_min as u32))
    }
}

/// `directory`: of a dynamic window, how long one is.
fn peers(shares: &[(Rank, Share)], contiguous: bool, directory: Option<u64>) -> Peers {
    let mut next = 0u64;
    let mut peer = |(rank, share): &(Rank, Share)| {
        let offset = next;
        // Checked against the mapping where it is used: no peer is trusted to say what is true.
        next = if contiguous { offset.saturating_add(share.size) } else { 0 };
        let (owner, has) = if contiguous { &shares[0] } else { &(*rank, *share) };
        Peer {
            owner: *owner,
            data: Descriptor(has.data),
            offset,
            size: directory.unwrap_or(share.size),
            disp_unit: share.disp_unit,
            address: has.address.saturating_add(offset),
            stays: share.made == made::STAYS,
            block: Descriptor(share.block),
            mapped_data: OnceLock::new(),
            mapped_block: OnceLock::new(),
        }
    };
    let first = shares.first().map_or(0, |(rank, _)| rank.0);
    let mut all: Vec<Option<Peer>> = Vec::new();
    for share in shares {
        all.resize_with((share.0.0 - first) as usize, || None);
        all.push(Some(peer(share)));
    }
    Peers { first: Rank(first), all: all.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes are what peers say: parts that lie outside of what there is have an end that says so.
    #[test]
    fn offsets_are_sums_that_do_not_wrap() {
        let share = |size| Share { size, address: 64, ..Share::zeroed() };
        let shares = [share(8), share(u64::MAX - 4), share(16), share(16)];
        let shares: Shares = (0..).map(Rank).zip(shares).collect();
        let all = peers(&shares, true, None);
        let all: Vec<_> = all.iter().map(|(_, peer)| peer).collect();
        let places: Vec<_> = all.iter().map(|peer| (peer.offset, peer.size)).collect();
        let end = u64::MAX;
        assert_eq!(places, [(0, 8), (8, end - 4), (end, 16), (end, 16)]);
        assert!(all.iter().skip(1).all(|peer| peer.offset.checked_add(peer.size).is_none()));
        assert_eq!(all[2].address, end);
    }
}
