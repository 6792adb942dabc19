//! The reader/writer queue lock of a window part, as a state machine without I/O.
//!
//! FIFO and O(1) words per process and window: the lock itself is two words at the target (the
//! *home*), and queue nodes live at the waiters, who sleep on words of their own.
//!
//! | word | holds |
//! | --- | --- |
//! | home [`STATE`] | low half: holders (0, a count of readers, or [`WRITER`] and its rank); high half: the node at the queue's tail, 0 if nobody waits |
//! | home [`HEAD`] | the node at the queue's head, as a hint for whoever releases |
//! | node [`NEXT`] | the node behind this one |
//! | node [`PHASE`] | [`Phase`] of the node |
//! | node [`KICK`] | set by a release: the head looks at the state again |
//!
//! Without waiters a lock is one compare-and-swap on `STATE`, and so is a release. Whoever finds
//! holders in the way or a queue swaps its node into the tail, links itself behind its predecessor
//! and sleeps until it is at the head. The head announces itself in `HEAD`, looks at `STATE` again
//! and sleeps until a release kicks it; announcing and looking, and releasing and reading `HEAD`,
//! are sequentially consistent, so one of the two sees the other. Who takes the lock from the head
//! of the queue passes the headship on; readers thus enter one after the other without waiting.
//! A stale `HEAD` costs a kick that its node ignores.
//!
//! A waiter that gives up marks its node abandoned; whoever would have made it head skips it.

/// Words of a window's control block at each rank: the home words, then the nodes.
pub(crate) const STATE: u16 = 0;
/// See the module's table.
pub(crate) const HEAD: u16 = 1;
const NODE_FIRST: u16 = 16;
const NODE_WORDS: u16 = 4;
/// Nodes of each process and window: threads that can wait in line at the same time.
pub(crate) const NODES: u16 = 4;
/// Bytes of a control block.
pub(crate) const CONTROL_BYTES: usize = (NODE_FIRST + NODES * NODE_WORDS) as usize * 8;

const NEXT: u16 = 0;
const PHASE: u16 = 1;
const KICK: u16 = 2;

const HOLDERS: u64 = 0xffff_ffff;
const WRITER: u64 = 0x8000_0000;

/// What a node is doing; the values of its [`PHASE`] word.
pub(crate) mod phase {
    /// Not in a queue.
    pub(crate) const FREE: u64 = 0;
    /// Behind others.
    pub(crate) const WAITING: u64 = 1;
    /// At the head of the queue.
    pub(crate) const FIRST: u64 = 2;
    /// Its owner gave up; to be taken out of the queue.
    pub(crate) const ABANDONED: u64 = 3;
    /// Abandoned and out of the queue: its owner may use it again.
    pub(crate) const RECLAIM: u64 = 4;
}

/// A queue node: the `index`-th of a rank. Zero means none, so the raw value is shifted by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node(u32);

impl Node {
    /// `None` if the rank is too high to be told apart in 32 bits.
    pub(crate) fn new(rank: u32, index: u16) -> Option<Self> {
        Some(Self(rank.checked_mul(u32::from(NODES))?.checked_add(u32::from(index) + 1)?))
    }

    fn from_raw(raw: u64) -> Option<Self> {
        u32::try_from(raw).ok().filter(|raw| *raw != 0).map(Self)
    }

    pub(crate) fn rank(self) -> u32 {
        (self.0 - 1) / u32::from(NODES)
    }

    fn word(self, word: u16) -> At {
        let index = self.index() as u16;
        At { rank: self.rank(), word: NODE_FIRST + index * NODE_WORDS + word }
    }

    pub(crate) fn index(self) -> u32 {
        (self.0 - 1) % u32::from(NODES)
    }

    /// The word that tells whether an abandoned node has been skipped.
    pub(crate) fn phase_word(self) -> u16 {
        self.word(PHASE).word
    }
}

/// A word of the control block at a rank of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) rank: u32,
    pub(crate) word: u16,
}

/// What the machine wants done next; all accesses are sequentially consistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Answer with what is there.
    Load(At),
    /// Replace `old` by `new` if it is there; answer with what was there. If `wake` is set and it
    /// was there, wake its rank.
    Swap { at: At, old: u64, new: u64, wake: bool },
    /// Store and wake the rank, if `wake` is set. Answer with anything.
    Store { at: At, value: u64, wake: bool },
    /// Wait until this rank's own word is not `not`; answer with what it is then.
    Wait { at: At, not: u64 },
    /// The lock is held, or released.
    Done,
}

/// How a lock is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

/// The state word that takes a free lock without waiting: the fast path of [`Acquire`].
#[inline]
pub(crate) fn uncontended(mode: Mode, rank: u32) -> u64 {
    match mode {
        Mode::Shared => 1,
        Mode::Exclusive => WRITER | u64::from(rank),
    }
}

fn with_holder(state: u64, mode: Mode, rank: u32) -> Option<u64> {
    let holders = state & HOLDERS;
    match mode {
        Mode::Shared if holders < WRITER - 1 => Some(state + 1),
        Mode::Exclusive if holders == 0 => Some(state | WRITER | u64::from(rank)),
        _ => None,
    }
}

fn tail(state: u64) -> Option<Node> {
    Node::from_raw(state >> 32)
}

fn with_tail(state: u64, node: Option<Node>) -> u64 {
    (state & HOLDERS) | node.map_or(0, |node| u64::from(node.0)) << 32
}

/// The state that takes the lock at once, if nobody is in line and no holder in the way.
pub(crate) fn barge(seen: u64, mode: Mode, rank: u32) -> Option<u64> {
    with_holder(seen, mode, rank).filter(|_| tail(seen).is_none())
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Take the lock if nobody is in line; otherwise get ready to queue.
    Try {
        seen: u64,
    },
    ResetNext {
        seen: u64,
    },
    ResetKick {
        seen: u64,
    },
    ResetPhase {
        seen: u64,
    },
    Queue {
        seen: u64,
    },
    Link {
        behind: Node,
    },
    BeFirst,
    Announce,
    Look,
    TryFirst {
        seen: u64,
    },
    SleepFirst,
    ClearKick {
        seen: u64,
    },
    /// The successor swapped itself into the tail; its link is on the way.
    AwaitNext,
    Promote {
        to: Node,
    },
    /// Taking a node that gave up out of the queue: this rank's own, or the one behind it.
    LookBehind {
        gone: Node,
    },
    CutTail {
        gone: Node,
        seen: u64,
    },
    ReadNext {
        gone: Node,
    },
    Free {
        gone: Node,
        next: Option<Node>,
    },
    Leave,
    Done,
}

/// Acquires the lock whose home is `home`.
#[derive(Debug)]
pub(crate) struct Acquire {
    home: u32,
    rank: u32,
    mode: Mode,
    node: Node,
    stage: Stage,
    held: bool,
}

impl Acquire {
    /// `seen` is a guess, or what the fast path found, in the state word.
    pub(crate) fn new(home: u32, rank: u32, mode: Mode, node: Node, seen: u64) -> Self {
        let stage = Stage::Try { seen };
        Self { home, rank, mode, node, stage, held: false }
    }

    fn state(&self) -> At {
        At { rank: self.home, word: STATE }
    }

    /// Whether the lock is held, possibly with bookkeeping left to do.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// The next thing to do. Call [`handle`](Self::handle) with its answer.
    pub(crate) fn poll(&mut self) -> Step {
        let quiet = |at, value| Step::Store { at, value, wake: false };
        match self.stage {
            Stage::Try { seen } => match barge(seen, self.mode, self.rank) {
                Some(new) => Step::Swap { at: self.state(), old: seen, new, wake: false },
                None => {
                    self.stage = Stage::ResetNext { seen };
                    self.poll()
                }
            },
            Stage::ResetNext { .. } => quiet(self.node.word(NEXT), 0),
            Stage::ResetKick { .. } => quiet(self.node.word(KICK), 0),
            Stage::ResetPhase { .. } => quiet(self.node.word(PHASE), phase::WAITING),
            Stage::Queue { seen } => {
                let new = with_tail(seen, Some(self.node));
                Step::Swap { at: self.state(), old: seen, new, wake: false }
            }
            Stage::Link { behind } => {
                Step::Store { at: behind.word(NEXT), value: u64::from(self.node.0), wake: true }
            }
            Stage::BeFirst => Step::Wait { at: self.node.word(PHASE), not: phase::WAITING },
            Stage::Announce => quiet(At { rank: self.home, word: HEAD }, u64::from(self.node.0)),
            Stage::Look => Step::Load(self.state()),
            Stage::TryFirst { seen } => match with_holder(seen, self.mode, self.rank) {
                Some(new) => {
                    let last = tail(seen) == Some(self.node);
                    let new = if last { with_tail(new, None) } else { new };
                    Step::Swap { at: self.state(), old: seen, new, wake: false }
                }
                None => {
                    self.stage = Stage::SleepFirst;
                    self.poll()
                }
            },
            Stage::SleepFirst => Step::Wait { at: self.node.word(KICK), not: 0 },
            Stage::ClearKick { seen } => {
                Step::Swap { at: self.node.word(KICK), old: seen, new: 0, wake: false }
            }
            Stage::AwaitNext => Step::Wait { at: self.node.word(NEXT), not: 0 },
            Stage::Promote { to } => Step::Swap {
                at: to.word(PHASE),
                old: phase::WAITING,
                new: phase::FIRST,
                wake: true,
            },
            Stage::LookBehind { .. } => Step::Load(self.state()),
            Stage::CutTail { seen, .. } => {
                let new = with_tail(seen, None);
                Step::Swap { at: self.state(), old: seen, new, wake: false }
            }
            Stage::ReadNext { gone } => Step::Load(gone.word(NEXT)),
            Stage::Free { gone, .. } => quiet(gone.word(PHASE), phase::RECLAIM),
            Stage::Leave => quiet(self.node.word(PHASE), phase::FREE),
            Stage::Done => Step::Done,
        }
    }

    /// Takes the answer to the last step.
    pub(crate) fn handle(&mut self, answer: u64) {
        self.stage = match self.stage {
            Stage::Try { seen } if answer == seen => {
                self.held = true;
                Stage::Done
            }
            Stage::Try { .. } => Stage::Try { seen: answer },
            Stage::ResetNext { seen } => Stage::ResetKick { seen },
            Stage::ResetKick { seen } => Stage::ResetPhase { seen },
            Stage::ResetPhase { seen } => Stage::Queue { seen },
            Stage::Queue { seen } if answer == seen => match tail(seen) {
                None => Stage::Announce,
                Some(behind) => Stage::Link { behind },
            },
            // The lock changed hands before this rank was in line: perhaps it is free now.
            Stage::Queue { .. } => match tail(answer) {
                None => Stage::Try { seen: answer },
                Some(_) => Stage::Queue { seen: answer },
            },
            Stage::Link { .. } => Stage::BeFirst,
            Stage::BeFirst => Stage::Announce,
            Stage::Announce => Stage::Look,
            Stage::Look => Stage::TryFirst { seen: answer },
            Stage::TryFirst { seen } if answer == seen => {
                self.held = true;
                if tail(seen) == Some(self.node) { Stage::Leave } else { Stage::AwaitNext }
            }
            Stage::TryFirst { .. } => Stage::TryFirst { seen: answer },
            Stage::SleepFirst => Stage::ClearKick { seen: answer },
            Stage::ClearKick { .. } => Stage::Look,
            Stage::AwaitNext => self.promote(answer),
            Stage::Promote { .. } if answer == phase::WAITING => Stage::Leave,
            // The node behind gave up: it is taken out on its owner's behalf.
            Stage::Promote { to } => Stage::LookBehind { gone: to },
            Stage::CutTail { gone, seen } if answer == seen => self.taken_out(gone, None),
            Stage::LookBehind { gone } | Stage::CutTail { gone, .. } => {
                if tail(answer) == Some(gone) {
                    Stage::CutTail { gone, seen: answer }
                } else {
                    Stage::ReadNext { gone }
                }
            }
            Stage::ReadNext { gone } => match Node::from_raw(answer) {
                Some(next) => self.taken_out(gone, Some(next)),
                None => Stage::ReadNext { gone },
            },
            Stage::Free { next, .. } => next.map_or(Stage::Leave, |to| Stage::Promote { to }),
            Stage::Leave | Stage::Done => Stage::Done,
        };
    }

    fn promote(&self, next: u64) -> Stage {
        Node::from_raw(next).map_or(Stage::AwaitNext, |to| Stage::Promote { to })
    }

    /// `gone` is out of the queue; `next` stood behind it and is to be the head.
    fn taken_out(&self, gone: Node, next: Option<Node>) -> Stage {
        match next {
            _ if gone != self.node => Stage::Free { gone, next },
            Some(to) => Stage::Promote { to },
            None => Stage::Leave,
        }
    }

    /// Gives up. Returns whether the machine is to be run on until [`Step::Done`] (it was at the
    /// head and has to pass that on, or holds the lock already); otherwise the node stays behind,
    /// abandoned, until its phase word says that it is free.
    pub(crate) fn abandon(&mut self, phase_was: u64) -> bool {
        match self.stage {
            Stage::BeFirst if phase_was == phase::WAITING => false,
            Stage::BeFirst | Stage::Announce | Stage::Look | Stage::SleepFirst => {
                self.stage = Stage::LookBehind { gone: self.node };
                true
            }
            _ => true,
        }
    }

    /// The swap that [`abandon`](Self::abandon) wants done before it: marks a waiting node.
    pub(crate) fn abandon_step(&self) -> Step {
        let at = self.node.word(PHASE);
        Step::Swap { at, old: phase::WAITING, new: phase::ABANDONED, wake: false }
    }
}

#[derive(Debug, Clone, Copy)]
enum ReleaseStage {
    Try { seen: u64 },
    ReadHead,
    Kick { head: Node },
    Done,
}

/// Releases the lock whose home is `home`.
#[derive(Debug)]
pub(crate) struct Release {
    home: u32,
    mode: Mode,
    stage: ReleaseStage,
}

impl Release {
    /// `seen` is a guess, or what the fast path found, in the state word.
    pub(crate) fn new(home: u32, mode: Mode, seen: u64) -> Self {
        Self { home, mode, stage: ReleaseStage::Try { seen } }
    }

    fn without_holder(&self, seen: u64) -> u64 {
        match self.mode {
            Mode::Shared => seen - u64::from(seen & HOLDERS != 0),
            Mode::Exclusive => seen & !HOLDERS,
        }
    }

    /// The next thing to do.
    pub(crate) fn poll(&self) -> Step {
        let at = At { rank: self.home, word: STATE };
        match self.stage {
            ReleaseStage::Try { seen } => {
                Step::Swap { at, old: seen, new: self.without_holder(seen), wake: false }
            }
            ReleaseStage::ReadHead => Step::Load(At { rank: self.home, word: HEAD }),
            ReleaseStage::Kick { head } => {
                Step::Store { at: head.word(KICK), value: 1, wake: true }
            }
            ReleaseStage::Done => Step::Done,
        }
    }

    /// Takes the answer to the last step.
    pub(crate) fn handle(&mut self, answer: u64) {
        self.stage = match self.stage {
            ReleaseStage::Try { seen } if answer != seen => ReleaseStage::Try { seen: answer },
            ReleaseStage::Try { seen } => {
                let left = self.without_holder(seen);
                let waiters = tail(left).is_some();
                if waiters && left & HOLDERS == 0 {
                    ReleaseStage::ReadHead
                } else {
                    ReleaseStage::Done
                }
            }
            // Nobody there yet: whoever comes will look at the state after announcing itself.
            ReleaseStage::ReadHead => match Node::from_raw(answer) {
                Some(head) => ReleaseStage::Kick { head },
                None => ReleaseStage::Done,
            },
            ReleaseStage::Kick { .. } | ReleaseStage::Done => ReleaseStage::Done,
        };
    }
}
