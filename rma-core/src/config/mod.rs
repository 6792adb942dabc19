//! What a rank is told when it starts, and what windows are asked for: budgets, deadlines, hints.
mod allocator;
mod error;
mod form;
mod hints;
mod name;
mod path;
mod settings;
mod source;

pub use allocator::{Allocator, AllocatorError, Claim, RequestedPart};
pub use error::ConfigError;
pub use hints::HintError;
pub(crate) use hints::{Hint, Hints, InForce, Ordered, digest};
pub(crate) use path::{PATHS, PathHint};
pub(crate) use settings::COLLECTIVE_LEAST;
pub use source::Source;

use core::time::Duration;
use name::Name;
use std::path::PathBuf;

/// Budgets and deadlines of one rank.
///
/// Each field but `on_window` and `root` is a *setting*, which [`set`](Self::set) also takes by its
/// name, and `rma-run` by `--config KEY=VALUE` and from files (`--config-file`). What the user who
/// runs a job says goes before what its program says: options of `rma-run`, then files, then the
/// program, then the defaults; what a window is told by a [hint](crate::WindowBuilder::hint) of its
/// own goes before all of them. [`explain`](Self::explain) says what is in force, and the source of
/// each value.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// How long any wait may take before it ends in an error; `None` waits for ever.
    pub wait_timeout: Option<Duration>,
    /// CPUs for the ranks of a job of threads; `None`: those that this process may use. If they are
    /// fewer than the ranks, a thread that waits gives its CPU to others at once, instead of
    /// looking for a while whether the wait is over. Ranks that are processes have those of their
    /// launcher.
    pub cpus: Option<u32>,
    /// Nodes that the machine is pretended to be, 1 for none: so many of a job of threads, of as
    /// many ranks in a row each (the last may have fewer). Load and store reach the ranks of the
    /// same node; others are reached by messages only, as in a job on several machines, which a
    /// program can be tested for so. Ranks that are processes have those of their launcher
    /// (`rma-run --nodes`).
    pub nodes: u32,
    transport: Name,
    provider: Option<Name>,
    /// Whether a rank that sleeps in a wait looks around now and then although no rank woke it: so
    /// it notices a process that was killed and could tell no other. Without it, a wake-up that the
    /// library forgets is a hang and not a delay: for the library's own tests. Only transports that
    /// sleep take naps.
    pub naps: bool,
    /// Messages of far operations that may be unanswered at once, 1 to 2^20; one more waits for a
    /// place.
    pub outstanding_messages: usize,
    /// Those of them that may be unanswered by one target, 1 to 256: what a target has to keep
    /// for this rank in the worst case, whatever the network does against congestion.
    pub credit_messages: usize,
    /// Largest put to a far target that is sent at once, in bytes. A larger one asks first, and
    /// sends what the target grants. Also what is kept of operations under a far lock that is not
    /// granted yet. A window may have its own: hint `rma_eager_bytes`.
    pub eager_bytes: usize,
    /// Bytes of such larger puts that may be on their way to this rank at once, from all origins
    /// together.
    pub rendezvous_bytes: u64,
    /// Largest payload of a collective to one rank, in bytes; at least 256. Every rank of a job
    /// has the same.
    pub collective_bytes: u64,
    /// Payloads of collectives that this rank keeps until it takes part, in bytes of all together.
    /// Ranks get ahead of a slow one by 17 operations at most, and wait when what they send it does
    /// not fit. What it waits for itself always does: 256 KiB at a time of each communicator. So do
    /// payloads of up to 4 KiB.
    pub unexpected_bytes: u64,
    /// Shared memory through which a rank passes payloads of collectives to ranks of its node, in
    /// bytes, besides a word for each rank: of each communicator in which it has such payloads, and
    /// taken with the first. Later communicators of as many ranks use it again. They go by messages
    /// where that is less than 8 KiB, or there is no such memory. 8 MiB are used at most. A rank
    /// loses that of a communicator in an operation that fails in the middle, and keeps it until it
    /// leaves; when it has lost 32 MiB, new communicators go by messages. Every rank of a job has
    /// the same.
    pub collective_lane_bytes: u64,
    /// Payloads of collectives of fewer bytes go by messages also inside of a node. Every rank of a
    /// job has the same.
    pub collective_lane_from: u64,
    /// Targets whose size and displacement unit are remembered, per window without symmetry; of a
    /// dynamic window, regions that a device reaches. A window may have its own: hint
    /// `rma_target_cache`.
    pub target_cache: usize,
    /// Regions that may be attached to one dynamic window of this rank at once, 65,536 unless told
    /// otherwise, 2^26 at most; one of several extents counts as many. Memory for them (80 bytes
    /// each) is taken as they are attached. A window may have its own: hint `rma_dynamic_regions`.
    pub dynamic_regions: usize,
    /// Puts and gets with layouts go by a device, a transfer for each run of bytes at the target,
    /// if these have at least so many bytes on average; otherwise packed into messages. `None`:
    /// by the costs that the device tells, or else by its own limit, as
    /// [`Window::explain`](crate::Window::explain) says. A window may have its own: hint
    /// `rma_device_run_bytes`.
    pub device_run_bytes: Option<u64>,
    /// Folder that is this instance of the application: the root of its persistent windows. What
    /// `rma-run --root` says goes before it.
    pub root: Option<PathBuf>,
    /// Told the [explanation](crate::Window::explain) of each new window, on the first rank of it.
    pub on_window: Option<fn(&str)>,
    /// Whether a thread serves the messages of peers while this rank computes.
    pub progress_agent: ProgressAgent,
    pub(crate) allocator: Option<&'static dyn Allocator>,
    hints: hints::OfJob,
    /// The source of each setting's value, by place in the table.
    sources: [Source; settings::COUNT],
}

impl Config {
    /// How many nodes that many ranks of one machine are on: over a network, and unless told
    /// otherwise, each is one.
    pub fn nodes_of(&self, ranks: u32) -> u32 {
        let is_asked_for = self.source("nodes") != Some(Source::Default);
        if self.transport == Name::SHM || is_asked_for { self.nodes } else { ranks }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            wait_timeout: None,
            cpus: None,
            nodes: 1,
            transport: Name::SHM,
            provider: None,
            naps: true,
            outstanding_messages: 128,
            credit_messages: 32,
            eager_bytes: 16 << 10,
            rendezvous_bytes: 1 << 20,
            collective_bytes: 1 << 30,
            unexpected_bytes: 4 << 30,
            collective_lane_bytes: 1 << 20,
            collective_lane_from: 8 << 10,
            target_cache: 64,
            dynamic_regions: 1 << 16,
            device_run_bytes: None,
            root: None,
            on_window: None,
            progress_agent: ProgressAgent::Auto,
            allocator: None,
            hints: hints::OfJob::default(),
            sources: Default::default(),
        }
    }
}

impl Config {
    /// Gives every window that hint, unless it says otherwise itself; see
    /// [`WindowBuilder::hint`](crate::WindowBuilder::hint). Every rank of a job says the same.
    /// Unknown keys are ignored.
    ///
    /// It is a wish: where a window cannot have it (a `rma_path` that does not reach all of it, a
    /// `same_size` that is not true), it is left aside for that window. Its
    /// [explanation](crate::Window::explain) says so, and so does `rma-run`, once for each kind
    /// of window.
    ///
    /// # Errors
    ///
    /// A value that a known key does not take.
    pub fn hint(&mut self, key: &str, value: &str) -> Result<(), HintError> {
        self.hints.wish(key, value, Source::Program).map(drop)
    }

    /// As [`hint`](Self::hint), and notes the source of the value.
    ///
    /// # Errors
    ///
    /// As [`hint`](Self::hint).
    pub fn hint_by(&mut self, key: &str, value: &str, source: Source) -> Result<(), HintError> {
        self.hints.wish(key, value, source).map(drop)
    }

    /// Gives windows whose hint `alloc_type` says `storage` their memory. The functions of the
    /// crate `rma` that start a job have done this; without, such windows are refused.
    pub fn set_allocator(&mut self, allocator: &'static dyn Allocator) {
        self.allocator = Some(allocator);
    }

    /// What reaches ranks of other nodes, by its name: the setting `transport`, which
    /// [`set`](Self::set) also takes: `shm`, shared memory, or a network that the program was built
    /// with. Every rank of a job has the same.
    pub fn transport(&self) -> &str {
        self.transport.as_str()
    }

    /// The provider of libfabric that is asked for, by the name of its core: the setting
    /// `provider`, which [`set`](Self::set) takes.
    pub fn provider(&self) -> Option<&str> {
        self.provider.as_ref().map(Name::as_str)
    }

    /// The hints that a window begins with.
    pub(crate) fn hints(&self) -> Hints {
        self.hints.of_window(self)
    }
}

/// Whether a rank has an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ProgressAgent {
    /// A thread, parked while there is nothing to do, as soon as a window needs it.
    /// Also once members of a communicator are to hear that a collective operation failed, and
    /// there is no room to tell them.
    #[default]
    Auto,
    /// None: messages are served inside the target's own calls only.
    Never,
}
