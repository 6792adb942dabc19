//! Describes a window that is to be made.
use crate::collective::{Communicator, Node};
use crate::config::{Hint, HintError, Hints};
use crate::create::material::Material;
use crate::error::{Refused, WindowError};
use crate::group::Group;
use crate::integer::Integer;
use crate::object::Flavor;
use crate::window::{Window, WindowMemory};

/// Describes a window before it is made; from [`Communicator::window`].
pub struct WindowBuilder<'c> {
    pub(super) comm: &'c Communicator,
    count: usize,
    disp_unit: usize,
    pub(super) hints: Hints,
    /// Those that the allocator knows, each once.
    pub(super) requested: Vec<(&'static str, String)>,
}

impl Clone for WindowBuilder<'_> {
    fn clone(&self) -> Self {
        Self { requested: self.requested.clone(), ..*self }
    }
}

impl<'c> WindowBuilder<'c> {
    pub(crate) fn new(comm: &'c Communicator, count: usize, disp_unit: usize) -> Self {
        Self {
            comm,
            count,
            disp_unit,
            hints: comm.inner.engine.config.hints(),
            requested: Vec::new(),
        }
    }

    /// Says something about the use of the window. What is in force, defaults included, is what
    /// [`Window::info`] shows; other keys are ignored, those that mean nothing here too: MPI's
    /// `accumulate_ops` (MPI 4.1, section 12.2.1), MPICH's `alloc_shm`.
    ///
    /// | key | values, the default first | what comes of it |
    /// | --- | --- | --- |
    /// | `no_locks` * | `false`, `true` | locks of the window are refused |
    /// | `accumulate_ordering` | some of `rar,raw,war,waw` (all), `none` | others may overtake |
    /// | `mpi_accumulate_granularity` * | 0, bytes | of 9 or more: see [`Access::accumulate`] |
    /// | `same_size` *, `same_disp_unit` * | `false`, `true` | checked: all ranks pass the same |
    /// | `alloc_shared_noncontig` * | `false`, `true` | each part of a shared window by itself |
    /// | `rma_count` | `false`, `true` | see [`Window::operation_counts`] |
    /// | `rma_path` * | `auto`, `load_store`, `cma`, `messages`, `device` | see [`Path`] |
    /// | `rma_dynamic_regions` | a number | [`Config::dynamic_regions`] of this window and rank |
    /// | `rma_eager_bytes` | bytes | [`Config::eager_bytes`] of this window and rank |
    /// | `rma_target_cache` | a number | [`Config::target_cache`] of this window and rank |
    /// | `rma_device_run_bytes` | bytes | [`Config::device_run_bytes`] of this window and rank |
    /// | `alloc_type` * | `memory`, `storage` | allocated parts lie on storage |
    ///
    /// On storage, hints say where and how: the keys of `rma::StorageHints::from_info`. Made over
    /// memory that the program has, and made dynamic, a window has no `alloc_type`.
    ///
    /// Those with a star must be the same on all ranks. A hint never changes the results of a
    /// correct program, but one that is not true of the window, or asks for a path that does not
    /// reach it, is an error. What the whole job wishes, by
    /// [`Config::hint`](crate::Config::hint), is left aside where a window cannot have it.
    ///
    /// [`Access::accumulate`]: crate::Access::accumulate
    /// [`Path`]: crate::Path
    /// [`Config::dynamic_regions`]: crate::Config::dynamic_regions
    /// [`Config::eager_bytes`]: crate::Config::eager_bytes
    /// [`Config::target_cache`]: crate::Config::target_cache
    /// [`Config::device_run_bytes`]: crate::Config::device_run_bytes
    ///
    /// # Errors
    ///
    /// A value that a known key does not take.
    pub fn hint(mut self, key: &str, value: &str) -> Result<Self, HintError> {
        let config = &self.comm.inner.engine.config;
        self.hints.set(key, value, config)?;
        let known = config.allocator.map_or(Ok(None), |allocator| allocator.check(key, value))?;
        if let Some(known) = known {
            self.requested.retain(|(before, _)| *before != known);
            self.requested.push((known, value.to_owned()));
        }
        Ok(self)
    }

    /// Makes the window of zeroed memory of its own. **Collective** over the communicator.
    ///
    /// Space is reserved now, so that a shortage is an error here and never a signal later. If one
    /// rank fails, all do (MPI 4.1, section 12.2.2).
    pub fn allocate(self) -> Result<Window, WindowError> {
        let material = if self.requests_memory() { Material::Requested } else { Material::Zeros };
        self.make(Flavor::Allocate, &material)
    }

    /// As [`allocate`](Self::allocate), with the parts of all ranks in one piece, in rank order,
    /// for direct loads and stores through [`Window::shared_query`]. **Collective.**
    ///
    /// Refused where ranks do not share memory ([`WindowError::NotShared`],
    /// [`WindowError::NothingShared`]; MPI 4.1, section 12.2.3).
    pub fn allocate_shared(self) -> Result<Window, WindowError> {
        match self.comm.inner.node {
            Node::Whole => {}
            Node::One(_) => return Err(WindowError::NotShared(self.far_group())),
            Node::Apart => return Err(WindowError::NothingShared),
        }
        let apart = self.hints.is_set(Hint::AllocSharedNoncontig);
        let material = match (self.requests_memory(), apart) {
            (false, false) => Material::OnePiece,
            (false, true) => Material::Zeros,
            (true, false) => Material::RequestedOnePiece,
            (true, true) => Material::Requested,
        };
        self.make(Flavor::Shared, &material)
    }

    /// Makes the window over memory of the user. **Collective.** Each rank may bring another kind.
    ///
    /// A vector or boxed slice is given away: [`Window::free_into`] gives it back. It may be longer
    /// than the window (MPI 4.1, section 12.2.1).
    ///
    /// ```
    /// # // Run as two ranks by the guide of the crate `rma`; here for the compiler.
    /// # use rma_core::{Communicator, RmaError, WindowError};
    /// # fn example(world: &Communicator) -> Result<(), Box<dyn std::error::Error>> {
    /// let field = vec![0.5f64; 1000];
    /// let window = world.window(1000, size_of::<f64>()).create(field);
    /// // The vector comes back with an error; `?` drops it.
    /// let window = window.map_err(WindowError::from)?;
    /// // …
    /// let field: Vec<f64> = window.free_into().map_err(RmaError::from)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate), and [`WindowError::TooShort`]. The memory comes back with
    /// it; a raw part may be used again unless the error is [`WindowError::Collective`]. Of a
    /// [`Backing`](crate::Backing), the library keeps a clone then.
    pub fn create<M: WindowMemory>(mut self, memory: M) -> Result<Window, Refused<M, WindowError>> {
        self.hints.reset(Hint::AllocType);
        match self.make(Flavor::Create, &Material::User(memory.contents())) {
            Ok(window) => Ok(window),
            Err(error) => Err(Refused { value: memory, error }),
        }
    }

    /// Makes a window without memory, to [attach](Window::attach) some later. **Collective.**
    ///
    /// The builder's count must be 0 (MPI 4.1, section 12.2.4).
    pub fn create_dynamic(mut self) -> Result<Window, WindowError> {
        self.hints.reset(Hint::AllocType);
        // Addresses count bytes.
        self.disp_unit = 1;
        self.make(Flavor::Dynamic, &Material::Directory)
    }

    /// Whether parts are to be of an allocator's memory.
    fn requests_memory(&self) -> bool {
        self.hints.is_set(Hint::AllocType)
    }

    /// Ranks that share no memory with this one. S-K10
    fn far_group(&self) -> Group {
        let transport = &self.comm.inner.engine.transport;
        Group::from_members(
            self.comm.group().members().filter(|peer| !transport.shared.is_near(*peer)),
        )
    }

    /// Bytes of this rank's part, and its unit, if there can be one of that material. S-A2 S-A3
    pub(super) fn check(&self, material: &Material<'_>) -> Result<(u64, u32), WindowError> {
        let (count, unit) = (self.count as u64, self.disp_unit as u64);
        let disp_unit = u32::try_from(unit).ok().filter(|unit| *unit > 0);
        let disp_unit = disp_unit.ok_or(WindowError::DispUnit(unit))?;
        let size = self.count.checked_mul(self.disp_unit);
        // What Rust and the kernel call an object is at most this long.
        let size = size.filter(|size| isize::try_from(*size).is_ok());
        let size = size.ok_or(WindowError::SizeOverflow { count, disp_unit: unit })? as u64;
        match material {
            Material::User(contents) if (contents.len() as u64) < size => {
                Err(WindowError::TooShort { size, len: contents.len() as u64 })
            }
            Material::Directory if size > 0 => Err(WindowError::DynamicSize(size)),
            _ => Ok((size, disp_unit)),
        }
    }
}

impl Communicator {
    /// Starts to describe a window of `count` units of `disp_unit` bytes at this rank.
    ///
    /// Both may differ from rank to rank, and `count` may be 0. Nothing happens before
    /// [`allocate`](WindowBuilder::allocate).
    pub fn window(&self, count: impl Integer, disp_unit: impl Integer) -> WindowBuilder<'_> {
        // What this machine cannot address is refused with the sizes that it cannot allocate.
        let fit = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        WindowBuilder::new(self, fit(count.to_u64()), fit(disp_unit.to_u64()))
    }
}
