//! Programs of several ranks, as data.
use super::cell::Side;
use super::values::Type;
use core::fmt;
use rma_core::{Assert, Op};

/// What every rank of a job does.
#[derive(Debug, Clone)]
pub struct Program {
    /// Ranks of the job.
    pub ranks: u32,
    /// The windows, made in this order and there to the end.
    pub windows: Vec<WindowPlan>,
    /// One after the other; requests end with them.
    pub stretches: Vec<Stretch>,
}

/// A window.
#[derive(Debug, Clone)]
pub struct WindowPlan {
    /// Which call makes it.
    pub flavour: Flavour,
    /// The path that its hint asks for.
    pub path: Path,
    /// Whether accumulates of a rank stay in order.
    pub ordered: bool,
    /// Whether it is large, and many operations sweep over all of it.
    pub crowded: bool,
    /// The type of the accumulate family's operations on it.
    pub element: Type,
    /// By rank.
    pub parts: Vec<Part>,
}

/// One rank's part of a window.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Bytes; a multiple of the unit.
    pub size: usize,
    /// The displacement unit.
    pub unit: usize,
    /// What the rank brings along, if it brings something.
    pub memory: Memory,
}

/// Which call makes a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// `allocate`.
    Allocated,
    /// `allocate_shared` where ranks share memory, `allocate` elsewhere.
    Shared,
    /// `create`.
    Created,
    /// `create_dynamic`, and each rank attaches one region.
    Dynamic,
}

/// The value of the hint `rma_path`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// None: what the job says.
    OfJob,
    /// `cma`, where the system allows that.
    Cma,
    /// `messages`.
    Messages,
}

/// Memory of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// A vector.
    Vector,
    /// A boxed slice.
    Boxed,
    /// Memory that stays where it is.
    Raw,
}

impl WindowPlan {
    /// Bytes that are valid values when they are elements, different for each `salt`.
    pub fn contents(&self, salt: u32, at: usize) -> u8 {
        let (width, element) = (self.element.width(), at / self.element.width());
        let mixed = salt.wrapping_mul(0x9e37_79b1).wrapping_add(element as u32 * 0x85eb);
        self.element.value((mixed ^ mixed >> 15) as u16 % 1009)[at % width]
    }

    /// What a part holds at first.
    pub fn initial(&self, rank: usize) -> Vec<u8> {
        (0..self.parts[rank].size).map(|at| self.contents(77 + rank as u32, at)).collect()
    }
}

/// Rounds with the same windows.
#[derive(Debug, Clone)]
pub struct Stretch {
    /// Windows that are sealed before, and what each rank stores there, by rank: where and what.
    pub sealed: Vec<(usize, Vec<Stores>)>,
    /// One after the other. After each, every rank looks at its parts of all windows.
    pub rounds: Vec<Round>,
}

/// Where and what.
pub type Stores = Vec<(usize, Vec<u8>)>;

/// What happens between two looks at the windows.
#[derive(Debug, Clone)]
pub struct Round {
    /// Whether all ranks meet before.
    pub barrier_before: bool,
    /// Whether all ranks meet when the epochs are open, to be at work at the same time.
    pub together: bool,
    /// Whether all ranks meet after, before they look.
    pub barrier_after: bool,
    /// By window: which epochs there are.
    pub phases: Vec<Phase>,
    /// By rank.
    pub steps: Vec<Vec<Step>>,
}

/// The epochs of a window in a round.
#[derive(Debug, Clone)]
pub enum Phase {
    /// None, and no accesses.
    Idle,
    /// None; every rank loads and stores its own part.
    Local,
    /// A fence epoch.
    Fence {
        /// By rank.
        open: Vec<Assert>,
        /// By rank.
        close: Vec<Assert>,
        /// How it ends.
        end: FenceEnd,
    },
    /// Post, start, complete, wait.
    Pscw {
        /// By origin.
        targets: Vec<Vec<u32>>,
        /// Of the posts, by target.
        post: Vec<Assert>,
        /// Whether all posts are known to be there before `start`, which says so.
        no_check: bool,
        /// By rank: whether it starts before it posts.
        start_first: Vec<bool>,
        /// By rank: whether it tests instead of waiting.
        test: Vec<bool>,
    },
    /// All ranks open one `lock_all` epoch.
    LockAll {
        /// Whether they promise that there is no other lock.
        no_check: bool,
    },
    /// Each rank locks as its steps say.
    Locks,
}

impl Phase {
    /// Whether ranks must meet before and after, because nothing else orders their looks with
    /// the operations.
    pub fn is_passive(&self) -> bool {
        matches!(self, Self::LockAll { .. } | Self::Locks)
    }
}

/// How a fence epoch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceEnd {
    /// With the guard's `next`; the next round goes on with that epoch's `next`.
    Next,
    /// With the guard's `end`.
    End,
    /// The guard is dropped, then the window is fenced.
    Drop,
}

/// One thing that a rank does.
#[derive(Debug, Clone)]
pub enum Step {
    /// `None` is the null target.
    #[expect(missing_docs, reason = "the names say it")]
    Lock { window: usize, target: Option<u32>, exclusive: bool, no_check: bool },
    /// The guard is dropped or unlocked.
    #[expect(missing_docs, reason = "the names say it")]
    Unlock { window: usize, target: Option<u32>, drop: bool },
    #[expect(missing_docs, reason = "the names say it")]
    LockAll { window: usize, no_check: bool },
    #[expect(missing_docs, reason = "the names say it")]
    UnlockAll { window: usize, drop: bool },
    /// An operation that is locally complete when it returns.
    Do(Operation),
    /// An operation with a request.
    Request(Operation),
    /// Operations of one window that overlap.
    Scope(Vec<Operation>),
    /// All targets with `None`.
    #[expect(missing_docs, reason = "the names say it")]
    Flush { window: usize, target: Option<u32>, local: bool },
    /// The end of the request of that operation of this rank.
    #[expect(missing_docs, reason = "the names say it")]
    Finish { id: usize, how: Finish },
    /// A load or store of one's own part, or an atomic there. The target is oneself.
    View(Operation),
    /// `Window::sync`.
    #[expect(missing_docs, reason = "the names say it")]
    Sync { window: usize },
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// It is waited for.
    Wait,
    /// It is tested until it is complete.
    Test,
    /// It is dropped.
    Drop,
}

/// An operation.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Different for all operations of a rank.
    pub id: usize,
    /// The window.
    pub window: usize,
    /// `None` is the null target.
    pub target: Option<u32>,
    /// What.
    pub call: Call,
    /// What follows if it is refused, where it takes a form that does not wait.
    pub tried: Option<Otherwise>,
}

/// What follows when an operation that does not wait is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    /// It is tried again, some times, after a flush where the epoch has one; then it waits.
    Again,
    /// It waits.
    Waits,
    /// It is not issued.
    Left,
}

/// What an operation does. Offsets are in bytes from the beginning of the part.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Call {
    Put { to: Side, from: Side, data: Vec<u8> },
    Get { from: Side, to: Side },
    Accumulate { op: Op, to: Side, from: Side, values: Vec<u8> },
    GetAccumulate { op: Op, at: Side, from: Side, values: Vec<u8>, into: Side },
    FetchAndOp { op: Op, at: usize, value: Vec<u8> },
    CompareAndSwap { at: usize, compare: Vec<u8>, swap: Vec<u8> },
}

/// Bytes of an origin buffer that no operation wrote.
pub const UNTOUCHED: u8 = 0xA5;
/// Bytes around what takes part in an origin buffer.
pub const MARGIN: usize = 5;

impl Call {
    /// Whether only its origin has something to say: no result comes back.
    pub fn sends(&self) -> bool {
        matches!(self, Self::Put { .. } | Self::Accumulate { .. })
    }

    /// Bytes of the origin buffer of a put or get with that side.
    pub fn buffer_len(side: &Side) -> usize {
        let (low, high) = side.span();
        (high - low) as usize + 2 * MARGIN
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ranks", self.ranks)?;
        for (i, window) in self.windows.iter().enumerate() {
            writeln!(f, "window {i}: {window:?}")?;
        }
        for (s, stretch) in self.stretches.iter().enumerate() {
            for (window, stores) in &stretch.sealed {
                writeln!(f, "stretch {s}: window {window} is sealed; stores by rank {stores:?}")?;
            }
            for (r, round) in stretch.rounds.iter().enumerate() {
                let Round { barrier_before, together, barrier_after, .. } = round;
                writeln!(
                    f,
                    "stretch {s}, round {r}: barriers before {barrier_before}, in {together}, \
                     after {barrier_after}"
                )?;
                for (window, phase) in round.phases.iter().enumerate() {
                    writeln!(f, "  window {window}: {phase:?}")?;
                }
                for (rank, steps) in round.steps.iter().enumerate() {
                    writeln!(f, "  rank {rank}:")?;
                    steps.iter().try_for_each(|step| writeln!(f, "    {step:?}"))?;
                }
            }
        }
        Ok(())
    }
}
