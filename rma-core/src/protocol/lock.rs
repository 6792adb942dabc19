//! The reader/writer queue lock of a window part, as a state machine without I/O.
//!
//! O(1) words per process and window: the lock itself is two words at the target (the *home*), and
//! queue nodes live at the waiters, which sleep on words of their own. Waiters are served in turn,
//! but for ranks that pass while the first of them is not awake yet (ADR 10).
//!
//! | word | holds |
//! | --- | --- |
//! | home, first | low half: its holders ([`HOLDERS`]); above: tail of the queue, [`RESERVED`] |
//! | home, second | the node at the queue's head, as a hint for releases |
//! | node [`NEXT`] | the node behind this one; [`LEFT`] if this one went before that was known |
//! | node [`PHASE`] | [`phase`] of the node |
//!
//! Without waiters a lock is one compare-and-swap on the state, and so is a release. A rank that
//! finds holders in the way swaps its node into the tail, links itself behind its predecessor and
//! sleeps until it is at the head. The head *reserves* the lock: one access sets [`RESERVED`] and
//! tells its holders. If there are any, the head sleeps until a release *kicks* it.
//!
//! A release leaves the lock free. A rank that asks for it then may take it past the queue, if it
//! is not held and not reserved: that is, from the release that wakes the head until the head runs.
//! From then on the lock is the head's as soon as its holders have left. So a wait is bounded: the
//! head is passed for as long as it needs to get a CPU, and then waits for the holders.
//!
//! A head is announced in the home's second word before any rank has to wake it: by itself, if it
//! is alone in line or inherits the headship, otherwise by the one that passes the headship on. A
//! release that finds the head kicked already leaves it alone, since a head takes the kick back and
//! reserves then; all this is sequentially consistent, so one of the two sees the other. A stale
//! announcement costs a kick that its node ignores, whatever it is used for by then.
//!
//! A waiter that takes the lock at the head of the queue passes the headship on; readers thus enter
//! one after the other without waiting. A writer does not wake the next head, which could only see
//! that it has to wait: the release does. A successor that is in the tail but has not linked itself
//! yet is not waited for: it finds `LEFT`, makes itself the head, and frees the node that was left.
//!
//! A waiter that gives up marks its node abandoned; the rank that would have made it head takes it
//! out. So no waiter sleeps but behind others or at the head, and there each can give up. A
//! reservation stays for the next head.
//!
//! The same machine runs the lock of each part, whose home is [`part`], and the [`global_lock`]
//! between `lock_all` and exclusive locks, one for a window. How those two use it:
//! [`super::global_lock`].

/// Words of a window's control block at each rank: the home words, in one cache line; the barrier's
/// flags in the second; what exclusive lockers of all parts read in the third; then the nodes.
const PART: u16 = 0;
const GLOBAL: u16 = 2;
const MARK: u16 = 4;
const WATCH: u16 = 16;
const MARKS: u16 = 17;
const NODE_FIRST: u16 = 24;
const NODE_WORDS: u16 = 2;
/// Nodes of each process and window: threads that can wait in line at the same time.
pub(crate) const NODES: u16 = 4;
/// Bytes of a control block.
pub(crate) const CONTROL_BYTES: usize = (NODE_FIRST + NODES * NODE_WORDS) as usize * 8;

const NEXT: u16 = 0;
const PHASE: u16 = 1;

/// In [`NEXT`]: its owner went. No node has this value.
const LEFT: u64 = u64::MAX;

/// Of a state: 0 if it is free, a count of those that share it, [`GROUP`] and a count of those in
/// the other group, or [`WRITER`] and the rank of the only holder.
const HOLDERS: u64 = 0xffff_ffff;
const WRITER: u64 = 0x8000_0000;
const GROUP: u64 = 0x4000_0000;

/// Of a state, above the tail: the head of the queue is next; no rank passes it.
const RESERVED: u64 = 1 << 63;

/// What a node is doing: the values of its [`PHASE`] word.
pub(crate) mod phase {
    /// Not in use: its rank may take it.
    pub(crate) const FREE: u64 = 0;
    /// Taken, and perhaps behind others.
    pub(crate) const WAITING: u64 = 1;
    /// At the head of the queue.
    pub(crate) const FIRST: u64 = 2;
    /// Its owner gave up; to be taken out of the queue.
    pub(crate) const ABANDONED: u64 = 3;
    /// At the head, and a release told it to look again.
    pub(crate) const KICKED: u64 = 4;
}

/// A queue node: the `index`-th of a rank. Zero means none, so the raw value is shifted by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct QueueNode(u32);

impl QueueNode {
    /// `None` if the rank is too high to be told apart in 31 bits.
    pub(crate) fn new(rank: u32, index: u16) -> Option<Self> {
        let raw = rank.checked_mul(u32::from(NODES))?.checked_add(u32::from(index) + 1)?;
        (raw >> 31 == 0).then_some(Self(raw))
    }

    fn from_raw(raw: u64) -> Option<Self> {
        u32::try_from(raw).ok().filter(|raw| *raw != 0).map(Self)
    }

    fn rank(self) -> u32 {
        (self.0 - 1) / u32::from(NODES)
    }

    fn word(self, word: u16) -> At {
        let index = ((self.0 - 1) % u32::from(NODES)) as u16;
        At { rank: self.rank(), word: NODE_FIRST + index * NODE_WORDS + word }
    }

    /// The word that says what the node is doing; swapping [`phase::FREE`] for
    /// [`phase::WAITING`] takes it.
    pub(crate) fn phase_word(self) -> u16 {
        self.word(PHASE).word
    }
}

/// Whether others wait for a node of a rank's control block, whose words `word` gives. One that is
/// left to the next in line ([`LEFT`]) is done with, though not free.
pub(crate) fn in_line(word: impl Fn(u16) -> u64) -> bool {
    let nodes = (0..NODES).map(|index| NODE_FIRST + index * NODE_WORDS);
    nodes.into_iter().any(|node| match word(node + PHASE) {
        phase::FREE => false,
        phase::FIRST | phase::KICKED => word(node + NEXT) != LEFT,
        _ => true,
    })
}

/// What a step at a node would have been answered, had its rank not left in order and taken the
/// words along: no rank stands in line there ([`in_line`]), so the node is left or free.
pub(crate) fn answer_of_the_gone(step: Step) -> Option<(u32, u64)> {
    let (Step::Swap { at, .. } | Step::Store { at, .. }) = step else { return None };
    let word = at.word.checked_sub(NODE_FIRST)? % NODE_WORDS;
    Some((at.rank, if word == NEXT { LEFT } else { phase::FREE }))
}

/// A word of the control block at a rank of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct At {
    pub(crate) rank: u32,
    pub(crate) word: u16,
}

/// What the machine wants done next; all accesses are sequentially consistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// Answer with what is there.
    Load(At),
    /// Replace `old` by `new` if it is there; answer with what was there. If `wake` is set and it
    /// was there, wake its rank.
    Swap { at: At, old: u64, new: u64, wake: bool },
    /// Store. Answer with anything.
    Store { at: At, value: u64 },
    /// Set bits; answer with what was there.
    Set { at: At, bits: u64 },
    /// Wait until this rank's own word is not `not`; answer with what it is then. The lock that is
    /// waited for is the one at `home`.
    Wait { at: At, not: u64, home: At },
    /// The lock is held, or released.
    Done,
}

impl At {
    /// Whether every rank has a word like that; the global lock's are at rank 0.
    #[inline(always)]
    pub(crate) fn is_of_part(self) -> bool {
        matches!(self.word, PART | MARK)
    }

    /// The word of a lock that its release reads: the node at the head, as a hint.
    fn head(self) -> Self {
        Self { word: self.word + 1, ..self }
    }
}

/// Home of the lock of a rank's part.
#[inline]
pub(crate) fn part(rank: u32) -> At {
    At { rank, word: PART }
}

/// Home of the window's global lock: `lock_all` shares it, exclusive lockers pass it as a group.
#[inline]
pub(crate) fn global_lock() -> At {
    At { rank: 0, word: GLOBAL }
}

/// Whether the global lock is watched; see [`super::global_lock`].
#[inline]
pub(crate) fn watch() -> At {
    At { rank: 0, word: WATCH }
}

/// The marks of the window's parts.
pub(crate) fn marks() -> At {
    At { rank: 0, word: MARKS }
}

/// Not 0 if the part of a rank has its mark.
#[inline]
pub(crate) fn mark(rank: u32) -> At {
    At { rank, word: MARK }
}

/// How a lock is wanted. Only holders of the same mode are together, and only if it is not
/// `Exclusive`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    Shared,
    Group,
    Exclusive,
}

/// The state word that takes a free lock without waiting: the fast path of [`Acquire`].
#[inline]
pub(crate) fn uncontended(mode: Mode, rank: u32) -> u64 {
    match mode {
        Mode::Shared => 1,
        Mode::Group => GROUP | 1,
        Mode::Exclusive => WRITER | u64::from(rank),
    }
}

/// Whether a state has an exclusive holder.
pub(crate) fn is_exclusive(state: u64) -> bool {
    state & WRITER != 0
}

/// The state with one more holder, if those that are there allow that. S-E1
fn with_holder(state: u64, mode: Mode, rank: u32) -> Option<u64> {
    let holders = state & HOLDERS;
    match mode {
        Mode::Shared if holders < GROUP - 1 => Some(state + 1),
        Mode::Group if holders == 0 => Some(state | GROUP | 1),
        Mode::Group if (GROUP..WRITER - 1).contains(&holders) => Some(state + 1),
        Mode::Exclusive if holders == 0 => Some(state | WRITER | u64::from(rank)),
        _ => None,
    }
}

fn tail(state: u64) -> Option<QueueNode> {
    QueueNode::from_raw((state & !RESERVED) >> 32)
}

/// With no rank in line, none has reserved the lock.
fn with_tail(state: u64, node: Option<QueueNode>) -> u64 {
    match node {
        Some(node) => (state & (HOLDERS | RESERVED)) | u64::from(node.0) << 32,
        None => state & HOLDERS,
    }
}

/// The state that takes the lock at once, if no holder is in the way: past those in line.
pub(crate) fn barge_past(seen: u64, mode: Mode, rank: u32) -> Option<u64> {
    with_holder(seen, mode, rank)
}

/// The state that takes the lock at once, if no rank is in line and no holder in the way.
pub(crate) fn barge(seen: u64, mode: Mode, rank: u32) -> Option<u64> {
    with_holder(seen, mode, rank).filter(|_| tail(seen).is_none())
}

/// The state that takes the lock past those in line, if it is not held and the head has not
/// reserved it.
pub(crate) fn pass(seen: u64, mode: Mode, rank: u32) -> Option<u64> {
    with_holder(seen, mode, rank).filter(|_| seen & (HOLDERS | RESERVED) == 0)
}

/// Where an [`Acquire`] is: each stage is one [`Step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Reset {
        seen: u64,
    },
    /// Take the lock if no rank is in line and no holder in the way; otherwise get in line.
    Enter {
        seen: u64,
    },
    Link {
        behind: QueueNode,
    },
    /// The node in front has gone already: its owner left it, and the headship, to this one.
    Inherit {
        from: QueueNode,
    },
    SleepBehind,
    Announce,
    ClearKick,
    Reserve,
    TryFirst {
        seen: u64,
        new: u64,
    },
    SleepFirst,
    /// Taking a node that gave up out of the queue's end, if it is there.
    CutTail {
        gone: QueueNode,
        seen: u64,
    },
    /// Learning which node stands behind one that goes, or leaving it to the one that comes.
    PassOn {
        from: QueueNode,
    },
    Free {
        gone: QueueNode,
        next: Option<QueueNode>,
    },
    /// Announcing the next head.
    Nominate {
        to: QueueNode,
    },
    Promote {
        to: QueueNode,
    },
    Done,
}

/// Acquires the lock whose home is `home`. S-E13
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Acquire {
    home: At,
    rank: u32,
    mode: Mode,
    node: QueueNode,
    stage: Stage,
    held: bool,
}

impl Acquire {
    /// `node` is this rank's, and taken; the machine frees it, or the rank that it leaves it to.
    /// `seen` is a guess, or what the fast path found, in the state word.
    pub(crate) fn new(home: At, rank: u32, mode: Mode, node: QueueNode, seen: u64) -> Self {
        let stage = Stage::Reset { seen };
        Self { home, rank, mode, node, stage, held: false }
    }

    /// Whether the lock is held, possibly with bookkeeping left to do.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// The next thing to do. Call [`handle`](Self::handle) with its answer.
    pub(crate) fn poll(&self) -> Step {
        let store = |at, value| Step::Store { at, value };
        let swap = |at, old, new| Step::Swap { at, old, new, wake: false };
        let state = self.home;
        match self.stage {
            Stage::Reset { .. } => store(self.node.word(NEXT), 0),
            Stage::Enter { seen } => {
                let queued = || with_tail(seen, Some(self.node));
                swap(state, seen, barge(seen, self.mode, self.rank).unwrap_or_else(queued))
            }
            Stage::Link { behind } => swap(behind.word(NEXT), 0, u64::from(self.node.0)),
            Stage::Inherit { from } => store(from.word(PHASE), phase::FREE),
            Stage::SleepBehind => self.wait_while(phase::WAITING),
            Stage::Announce => store(self.home.head(), u64::from(self.node.0)),
            Stage::ClearKick => store(self.node.word(PHASE), phase::FIRST),
            Stage::Reserve => Step::Set { at: state, bits: RESERVED },
            Stage::TryFirst { seen, new } => swap(state, seen, new),
            Stage::SleepFirst => self.wait_while(phase::FIRST),
            Stage::CutTail { seen, .. } => swap(state, seen, with_tail(seen, None)),
            Stage::PassOn { from } => swap(from.word(NEXT), 0, LEFT),
            Stage::Free { gone, .. } => store(gone.word(PHASE), phase::FREE),
            Stage::Nominate { to } => store(self.home.head(), u64::from(to.0)),
            Stage::Promote { to } => {
                let (at, old, new) = (to.word(PHASE), phase::WAITING, phase::FIRST);
                // A writer's release kicks it.
                let wake = !(self.held && self.mode == Mode::Exclusive);
                Step::Swap { at, old, new, wake }
            }
            Stage::Done => Step::Done,
        }
    }

    fn wait_while(&self, not: u64) -> Step {
        Step::Wait { at: self.node.word(PHASE), not, home: self.home }
    }

    /// Takes the answer to the last step.
    pub(crate) fn handle(&mut self, answer: u64) {
        self.stage = match self.stage {
            Stage::Reset { seen } => Stage::Enter { seen },
            Stage::Enter { seen } if answer == seen => self.entered(seen),
            Stage::Enter { .. } => Stage::Enter { seen: answer },
            Stage::Link { .. } if answer == 0 => Stage::SleepBehind,
            Stage::Link { behind } => Stage::Inherit { from: behind },
            Stage::Inherit { .. } => Stage::Announce,
            // Only after that: what a later kick is about is then seen, or kicks again.
            Stage::Announce | Stage::SleepBehind | Stage::SleepFirst => Stage::ClearKick,
            Stage::ClearKick => Stage::Reserve,
            Stage::Reserve => self.first(answer | RESERVED),
            Stage::TryFirst { seen, .. } if answer == seen => {
                self.held = true;
                if tail(seen) == Some(self.node) {
                    Stage::Free { gone: self.node, next: None }
                } else {
                    Stage::PassOn { from: self.node }
                }
            }
            Stage::TryFirst { .. } => self.first(answer),
            Stage::CutTail { gone, seen } if answer == seen => Stage::Free { gone, next: None },
            Stage::CutTail { gone, .. } if tail(answer) == Some(gone) => {
                Stage::CutTail { gone, seen: answer }
            }
            Stage::CutTail { gone, .. } => Stage::PassOn { from: gone },
            Stage::PassOn { from } => match QueueNode::from_raw(answer) {
                Some(next) => Stage::Free { gone: from, next: Some(next) },
                None => Stage::Done,
            },
            Stage::Free { next: Some(next), .. } => Stage::Nominate { to: next },
            Stage::Nominate { to } => Stage::Promote { to },
            // It gave up: it is taken out on its owner's behalf.
            Stage::Promote { to } if answer != phase::WAITING => take_out(to),
            Stage::Free { .. } | Stage::Promote { .. } | Stage::Done => Stage::Done,
        };
    }

    /// After the swap of the state from `seen`.
    fn entered(&mut self, seen: u64) -> Stage {
        if barge(seen, self.mode, self.rank).is_some() {
            self.held = true;
            return Stage::Free { gone: self.node, next: None };
        }
        tail(seen).map_or(Stage::Announce, |behind| Stage::Link { behind })
    }

    /// At the head, with `seen` in the state word: takes the lock, and an empty queue with it.
    fn first(&self, seen: u64) -> Stage {
        let new = with_holder(seen & !RESERVED, self.mode, self.rank);
        let Some(new) = new else { return Stage::SleepFirst };
        let last = tail(seen) == Some(self.node);
        Stage::TryFirst { seen, new: if last { with_tail(new, None) } else { new } }
    }

    /// To be done before [`abandon`](Self::abandon): marks a node that waits behind others.
    pub(crate) fn abandon_step(&self) -> Step {
        let at = self.node.word(PHASE);
        Step::Swap { at, old: phase::WAITING, new: phase::ABANDONED, wake: false }
    }

    /// Gives up instead of doing a [`Step::Wait`]; `phase_was` answered
    /// [`abandon_step`](Self::abandon_step). The machine is to be run on until [`Step::Done`]: at
    /// the head it has to pass that on. It does not wait any more, and does not take the lock.
    pub(crate) fn abandon(&mut self, phase_was: u64) {
        self.stage = match self.stage {
            // Stays in line until it would be the head.
            Stage::SleepBehind if phase_was == phase::WAITING => Stage::Done,
            Stage::SleepBehind | Stage::SleepFirst => take_out(self.node),
            stage => stage,
        }
    }
}

/// Takes a node at the head that gave up out of the queue. The guess: the lock is not held, and no
/// node is behind.
fn take_out(gone: QueueNode) -> Stage {
    Stage::CutTail { gone, seen: with_tail(0, Some(gone)) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ReleaseStage {
    Try { seen: u64 },
    ReadHead,
    Kick { head: QueueNode },
    Done,
}

/// Releases the lock whose home is `home`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Release {
    home: At,
    mode: Mode,
    stage: ReleaseStage,
}

impl Release {
    /// `seen` is a guess, or what the fast path found, in the state word.
    pub(crate) fn new(home: At, mode: Mode, seen: u64) -> Self {
        Self { home, mode, stage: ReleaseStage::Try { seen } }
    }

    fn without_holder(&self, seen: u64) -> u64 {
        match self.mode {
            Mode::Shared => seen - u64::from(seen & HOLDERS != 0),
            Mode::Group if seen & HOLDERS > GROUP | 1 => seen - 1,
            Mode::Group | Mode::Exclusive => seen & !HOLDERS,
        }
    }

    /// The next thing to do.
    pub(crate) fn poll(&self) -> Step {
        let at = self.home;
        match self.stage {
            ReleaseStage::Try { seen } => {
                Step::Swap { at, old: seen, new: self.without_holder(seen), wake: false }
            }
            ReleaseStage::ReadHead => Step::Load(self.home.head()),
            ReleaseStage::Kick { head } => {
                let (at, old, new) = (head.word(PHASE), phase::FIRST, phase::KICKED);
                Step::Swap { at, old, new, wake: true }
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
            // No head there yet: the one that comes will reserve the lock after announcing itself.
            ReleaseStage::ReadHead => match QueueNode::from_raw(answer) {
                Some(head) => ReleaseStage::Kick { head },
                None => ReleaseStage::Done,
            },
            ReleaseStage::Kick { .. } | ReleaseStage::Done => ReleaseStage::Done,
        };
    }
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
#[path = "lock_loom_tests.rs"]
pub(in crate::protocol) mod loom_tests;
