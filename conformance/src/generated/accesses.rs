//! Which operations touched which bytes of a target in a round, and what is ordered with what.
use super::cell::Side;
use super::program::{Call, Finish, Operation, Phase, Program, Round, Step};
use super::record::Record;
use rma_core::Op;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// One operation as its target sees it.
#[derive(Debug)]
pub(super) struct Access<'p> {
    pub(super) rank: usize,
    pub(super) operation: &'p Operation,
    /// When it was issued, and when it was certainly complete: what is issued later finds it done.
    issued: usize,
    done: usize,
    /// The lock under which it was, and whether that was exclusive.
    pub(super) section: Option<(usize, bool)>,
    bytes: Bytes,
    /// The result, of accumulates in the order of elements; `None` if the origin did not look.
    pub(super) result: Option<Cow<'p, [u8]>>,
}

/// Which bytes of the part, and the index of each in the data or result.
#[derive(Debug)]
enum Bytes {
    Row { at: usize, len: usize, index: usize },
    Any(HashMap<usize, usize>),
}

impl Bytes {
    /// `there` in the part, which are those of `here` in a buffer.
    fn new(there: &Side, here: &Side) -> Self {
        if there.is_plain() && here.is_plain() {
            return Self::Row { at: there.start, len: there.size(), index: here.start };
        }
        Self::Any(there.positions().zip(here.positions()).collect())
    }

    fn index(&self, at: usize) -> Option<usize> {
        match self {
            Self::Row { at: first, len, index } => {
                at.checked_sub(*first).filter(|i| i < len).map(|i| index + i)
            }
            Self::Any(map) => map.get(&at).copied(),
        }
    }
}

impl Access<'_> {
    /// Whether it is of the accumulate family.
    pub(super) fn is_atomic(&self) -> bool {
        !matches!(self.operation.call, Call::Put { .. } | Call::Get { .. })
    }

    /// Whether it may change its target.
    pub(super) fn writes(&self) -> bool {
        !only_looks(&self.operation.call)
    }

    /// The index of a byte of the part in its data or result; `None` if it does not touch it.
    pub(super) fn index(&self, at: usize) -> Option<usize> {
        self.bytes.index(at)
    }

    /// Every byte that it touches.
    pub(super) fn touched(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        match &self.bytes {
            Bytes::Row { at, len, .. } => Box::new(*at..at + len),
            Bytes::Any(map) => Box::new(map.keys().copied()),
        }
    }

    /// Whether this one was complete before that one was issued.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        self.rank == other.rank && self.done < other.issued
    }

    /// Whether the two could meet on a byte, such that what comes of it is undefined.
    pub(super) fn races(&self, other: &Self) -> bool {
        let conflict =
            (self.writes() || other.writes()) && !(self.is_atomic() && other.is_atomic());
        conflict && !self.is_before(other) && !other.is_before(self) && !self.is_excluded(other)
    }

    fn is_excluded(&self, other: &Self) -> bool {
        match (self.section, other.section) {
            (Some((_, a)), Some((_, b))) => self.rank != other.rank && (a || b),
            _ => false,
        }
    }
}

/// Accesses by window and target, each rank's in program order.
pub(super) type Accesses<'p> = BTreeMap<(usize, u32), Vec<Access<'p>>>;

/// Walks through the steps of all ranks.
pub(super) fn collect<'p>(
    program: &Program,
    round: &'p Round,
    records: &'p [Record],
) -> Accesses<'p> {
    let mut all = Accesses::new();
    for (rank, steps) in round.steps.iter().enumerate() {
        let (record, held) = (&records[rank], HashMap::new());
        let mut walk = Walk { program, round, rank, record, tick: 0, held, all: &mut all };
        for (tick, step) in steps.iter().enumerate() {
            walk.tick = tick;
            walk.step(step);
        }
    }
    all
}

struct Walk<'a, 'p> {
    program: &'a Program,
    round: &'a Round,
    rank: usize,
    record: &'p Record,
    tick: usize,
    /// Locks held: window and target (`None` for all), with the section's number and kind.
    held: HashMap<(usize, Option<u32>), (usize, bool)>,
    all: &'a mut Accesses<'p>,
}

impl<'p> Walk<'_, 'p> {
    fn step(&mut self, step: &'p Step) {
        let now = self.tick;
        match step {
            Step::Lock { window, target: Some(target), exclusive, .. } => {
                self.held.insert((*window, Some(*target)), (now, *exclusive));
            }
            Step::LockAll { window, .. } => {
                _ = self.held.insert((*window, None), (now, false));
            }
            Step::Unlock { window, target: Some(target), .. } => {
                self.complete(*window, Some(*target));
                self.held.remove(&(*window, Some(*target)));
            }
            Step::UnlockAll { window, .. } => {
                self.complete(*window, None);
                self.held.remove(&(*window, None));
            }
            Step::Do(operation) => {
                let returns = !operation.call.sends();
                self.add(operation, if returns { now } else { usize::MAX });
            }
            Step::Request(operation) => self.add(operation, usize::MAX),
            Step::Scope(operations) => {
                for operation in operations {
                    let send = operation.call.sends();
                    self.add(operation, if send { usize::MAX } else { now });
                }
            }
            Step::View(operation) => self.add(operation, now),
            Step::Flush { window, target, local: false } => self.complete(*window, *target),
            Step::Finish { id, how: Finish::Wait | Finish::Test } => {
                let rank = self.rank;
                let mine = |access: &&mut Access<'_>| {
                    let operation = access.operation;
                    access.rank == rank && operation.id == *id && !operation.call.sends()
                };
                let all = self.all.values_mut().flatten();
                all.filter(mine).for_each(|access| access.done = access.done.min(now));
            }
            _ => {}
        }
    }

    /// Everything to that target (to all with `None`) is complete.
    fn complete(&mut self, window: usize, target: Option<u32>) {
        let (rank, now) = (self.rank, self.tick);
        let to = |key: &(usize, u32)| key.0 == window && target.is_none_or(|t| t == key.1);
        for (_, accesses) in self.all.iter_mut().filter(|(key, _)| to(key)) {
            let mine = accesses.iter_mut().filter(|access| access.rank == rank);
            mine.for_each(|access| access.done = access.done.min(now));
        }
    }

    fn add(&mut self, operation: &'p Operation, done: usize) {
        let Some(target) = operation.target else { return };
        if self.record.is_left(operation.id) {
            return;
        }
        let element = self.program.windows[operation.window].element;
        let row = |at: usize, len: usize| Bytes::Row { at, len, index: 0 };
        let bytes = match &operation.call {
            // Data is in the order of the type map.
            Call::Put { to, data, .. } => Bytes::new(to, &Side::bytes(0, data.len())),
            Call::Get { from, to } => Bytes::new(from, to),
            Call::Accumulate { to: at, .. } | Call::GetAccumulate { at, .. } => {
                Bytes::new(at, &Side::bytes(0, at.size()))
            }
            Call::FetchAndOp { at, .. } | Call::CompareAndSwap { at, .. } => {
                row(*at, element.width())
            }
        };
        let locks = matches!(self.round.phases[operation.window], Phase::Locks);
        let held = |target| self.held.get(&(operation.window, target)).copied();
        let section = if locks { held(None).or_else(|| held(Some(target))) } else { None };
        let result = self.record.results.get(&operation.id).map(Vec::as_slice);
        let result = result.map(|result| match &operation.call {
            Call::GetAccumulate { into, .. } => {
                Cow::Owned(into.positions().map(|at| result[at]).collect())
            }
            _ => Cow::Borrowed(result),
        });
        let (rank, issued) = (self.rank, self.tick);
        let access = Access { rank, operation, issued, done, section, bytes, result };
        self.all.entry((operation.window, target)).or_default().push(access);
    }
}

/// Whether an operation leaves its target as it is.
fn only_looks(call: &Call) -> bool {
    matches!(
        call,
        Call::Get { .. }
            | Call::GetAccumulate { op: Op::NoOp, .. }
            | Call::FetchAndOp { op: Op::NoOp, .. }
    )
}
