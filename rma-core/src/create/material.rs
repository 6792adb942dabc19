//! What this rank makes its part of.
use crate::collective::Node;
use crate::config::PathHint;
use crate::create::WindowBuilder;
use crate::create::plan::{LARGE, Plan, Wish};
use crate::create::share::ToldOfPart;
use crate::error::WindowError;
use crate::memory::directory::DIRECTORY_BYTES;
use crate::memory::pool::SyncBlock;
use crate::rank::Rank;
use crate::transport::{AllocateError, Descriptor, ImportError, Mapped};
use crate::window::{ByMessage, Contents, Memory, Regions, kind};

/// What a part is made of.
pub(super) enum Material<'b> {
    /// Zeroed memory of its own. S-A12
    Zeros,
    /// Its share of zeroed memory at rank 0, where the parts of all ranks lie in rank order. S-K1
    OnePiece,
    /// Memory of its own, of the allocator that the configuration has.
    Requested,
    /// As `OnePiece`, of that allocator.
    RequestedOnePiece,
    /// What a user brought along.
    User(Contents<'b>),
    /// A directory of what will be attached.
    Directory,
}

impl Material<'_> {
    /// Bytes that this rank allocates for a part of `size`, if each had its own.
    pub(super) fn needs(&self, size: u64) -> u64 {
        match self {
            Self::Zeros | Self::OnePiece | Self::Requested | Self::RequestedOnePiece => size,
            Self::User(Contents::Bytes(bytes)) => bytes.len() as u64,
            Self::User(Contents::At(_) | Contents::On(_)) => 0,
            Self::Directory => DIRECTORY_BYTES as u64,
        }
    }

    /// Extents, at most, that neighbours map.
    pub(super) fn extents(&self) -> u64 {
        match self {
            Self::User(Contents::On(backing)) => backing.extents().len() as u64,
            // Memory and a file.
            Self::Requested | Self::RequestedOnePiece => 2,
            _ => 1,
        }
    }

    /// Whether a part of it may outlive the job, so that peers ask for that.
    pub(super) fn is_durable(&self) -> bool {
        match self {
            Self::Requested | Self::RequestedOnePiece | Self::Directory => true,
            Self::User(Contents::On(backing)) => backing.is_durable(),
            Self::Zeros | Self::OnePiece | Self::User(_) => false,
        }
    }

    /// Whether an allocator makes it.
    pub(super) fn is_requested(&self) -> bool {
        matches!(self, Self::Requested | Self::RequestedOnePiece)
    }

    /// Whether the parts of all ranks lie in memory of rank 0.
    pub(super) fn is_one_piece(&self) -> bool {
        matches!(self, Self::OnePiece | Self::RequestedOnePiece)
    }

    /// What is attached to a window of that material.
    pub(super) fn regions(&self) -> Option<Regions> {
        matches!(self, Self::Directory).then(Regions::new)
    }
}

/// What this rank made.
pub(super) struct Made {
    pub(super) memory: Memory,
    /// How neighbours map it; nothing if they cannot.
    pub(super) data: Vec<Descriptor>,
    pub(super) block: SyncBlock,
}

impl Made {
    /// There will be no window. Unless a rank may think that there is one, all is given back.
    pub(super) fn give_up(&self, error: &WindowError) {
        if !matches!(error, WindowError::Collective(_)) {
            self.give_back();
        }
    }

    /// No rank will reach it.
    pub(super) fn give_back(&self) {
        self.memory.unmake();
        self.block.set_left(true);
    }
}

impl WindowBuilder<'_> {
    pub(super) fn make_part(
        &self,
        plan: &Plan,
        material: &Material<'_>,
        wish: &Wish,
        before: u64,
    ) -> Result<Made, WindowError> {
        // An allocator looks for itself, and where its memory is.
        if !material.is_requested() {
            self.check_room(plan, wish)?;
        }
        self.make_of(material, self.len(plan, material, wish) as usize, before)
    }

    /// The part, if this rank makes it before it knows what the others want: a small one, of memory
    /// of its own. What is large is made when all ranks know that there is room for it.
    pub(super) fn make_early(
        &self,
        material: &Material<'_>,
        wish: &Wish,
    ) -> Option<Result<Made, WindowError>> {
        let own = match material {
            Material::Zeros | Material::Directory | Material::User(Contents::Bytes(_)) => true,
            Material::User(Contents::At(_) | Contents::On(_)) => false,
            Material::OnePiece | Material::Requested | Material::RequestedOnePiece => false,
        };
        let is_early = own && wish.needed < LARGE;
        is_early.then(|| self.make_of(material, wish.needed as usize, 0))
    }

    /// An early part, once it is known what the others want.
    pub(super) fn keep_early(
        &self,
        made: Result<Made, WindowError>,
        plan: &Plan,
        wish: &Wish,
    ) -> Result<Made, WindowError> {
        let made = made?;
        // Others may have told of theirs, but not of a window yet.
        self.check_room(plan, wish).inspect_err(|_| made.give_back())?;
        Ok(made)
    }

    fn make_of(
        &self,
        material: &Material<'_>,
        len: usize,
        before: u64,
    ) -> Result<Made, WindowError> {
        let (engine, rank) = (&self.comm.inner.engine, self.comm.rank());
        let failed = |error| WindowError::Allocate { rank, error };
        let block = SyncBlock::new(&engine.sync_blocks, &engine.transport).map_err(failed)?;
        // As long as no rank knows of it.
        block.set_left(true);
        let path = self.hints.path();
        let memory = match material {
            Material::User(contents) => Memory::of_user(engine, contents, path).map_err(failed),
            // A part of no bytes lies on nothing.
            Material::Requested | Material::RequestedOnePiece if len > 0 => {
                self.request(len as u64, before)
            }
            _ => Memory::allocate(engine, len, path).map_err(failed),
        };
        let memory = memory?;
        let described = memory.descriptors(engine).map_err(failed);
        let served = described.and_then(|data| {
            // Peers ask for it to be made durable.
            let by_message = path == PathHint::Cma || data.is_empty() || memory.is_durable();
            self.serve(by_message || matches!(material, Material::Directory))?;
            Ok(data)
        });
        // No other rank knows of it yet.
        let data = served.inspect_err(|_| memory.unmake())?;
        block.set_left(false);
        Ok(Made { memory, data, block })
    }

    /// Fails if there is not enough memory, at all ranks if that is of all. S-K8
    pub(super) fn check_room(&self, plan: &Plan, wish: &Wish) -> Result<(), WindowError> {
        let (available, limit) = wish.room;
        // Other nodes have memory of their own.
        let together = matches!(self.comm.inner.node, Node::Whole);
        let (requested, least) =
            if together { (plan.total, plan.available) } else { (wish.needed, available) };
        if requested <= least {
            return Ok(());
        }
        if requested <= available {
            return Err(WindowError::Peer(Rank(plan.shortest as u32)));
        }
        let error = AllocateError::Shortage { requested, available, limit };
        Err(WindowError::Allocate { rank: self.comm.rank(), error })
    }

    /// Bytes that this rank allocates. S-A13
    pub(super) fn len(&self, plan: &Plan, material: &Material<'_>, wish: &Wish) -> u64 {
        match (material, self.comm.rank()) {
            (Material::OnePiece | Material::RequestedOnePiece, Rank(0)) => plan.total,
            (Material::OnePiece | Material::RequestedOnePiece, _) => 0,
            _ => wish.needed,
        }
    }

    /// Asks for the agent, if this part or control words are reached by message.
    fn serve(&self, by_message: bool) -> Result<(), WindowError> {
        let ranks = self.comm.size();
        if ranks > 1 && (by_message || ByMessage::needed(self.is_together(), ranks)) {
            let failed = |error| WindowError::Agent { rank: self.comm.rank(), error };
            self.comm.inner.engine.need_agent().map_err(failed)?;
        }
        Ok(())
    }

    /// As `made`, whose memory is that of rank 0, or has no bytes: with that of rank 0.
    pub(super) fn share_one(
        &self,
        made: Made,
        first: &ToldOfPart,
        total: u64,
        material: &Material<'_>,
    ) -> Result<Made, WindowError> {
        let Made { memory, data, block } = made;
        let memory = if self.comm.rank() == Rank(0) {
            Ok(memory)
        } else {
            // No peer reaches it.
            memory.set_freed();
            let adopter = self.allocator().filter(|_| material.is_requested() && total > 0);
            self.import_first(first, total).map(|all| Memory::imported(all, adopter))
        };
        let failed = if memory.is_ok() { Rank::NULL } else { self.comm.rank() };
        let failed = Rank(self.comm.agree(kind::FAILED, u64::from(failed.0), u64::min)? as u32);
        // The ranks agree on whether one could not map it, and have no window to reach it by then.
        block.set_left(failed != Rank::NULL);
        let memory = memory?;
        if failed != Rank::NULL {
            memory.set_freed();
            return Err(WindowError::Peer(failed));
        }
        Ok(Made { memory, data, block })
    }

    /// The memory at rank 0 in which the parts of all ranks lie, `total` bytes.
    fn import_first(&self, told: &ToldOfPart, total: u64) -> Result<Box<dyn Mapped>, ImportError> {
        let first = self.comm.world_rank(Rank(0));
        let all =
            self.comm.inner.engine.transport.shared.import(first, told.extents().as_slice())?;
        if (all.mapping().len as u64) < total {
            Err(ImportError::Malformed(first))
        } else {
            Ok(all)
        }
    }
}
