//! The steps of one rank: what it locks, and which operations it issues.
use super::cell::{Cell, Pattern, Side};
use super::program::{Call, Finish, MARGIN, Operation, Phase, Program, Step};
use super::strategy::{RoundDraft, StepDraft};
use rma_core::Op;

/// A bit of the numbers that a step is made of: whether it has layouts.
const LAYOUTS: u32 = 0x400;

/// Some bits of a number.
pub(super) fn number(bits: u64, first: u32, count: u32) -> usize {
    (bits >> first & ((1 << count) - 1)) as usize
}

/// Makes the steps of a rank, round by round.
pub(super) struct Drafter {
    rank: usize,
    next_id: usize,
    /// Operations with requests that have not ended.
    pending: Vec<usize>,
    /// Locks that are held: window, target (`None` for all), in ascending order.
    held: Vec<(usize, Option<u32>)>,
    /// Whether a lock of the null target is held, by window.
    null: Vec<usize>,
    steps: Vec<Step>,
}

impl Drafter {
    pub(super) fn new(rank: usize) -> Self {
        let (held, null) = (Vec::new(), Vec::new());
        Self { rank, next_id: 0, pending: Vec::new(), held, null, steps: Vec::new() }
    }

    pub(super) fn round(
        &mut self,
        program: &Program,
        phases: &[Phase],
        round: &RoundDraft,
    ) -> Vec<Step> {
        let steer = |draft: &StepDraft| steer(*draft, round, program);
        let drafts: Vec<StepDraft> = round.steps[self.rank].iter().map(steer).collect();
        let mut drafts = drafts.iter();
        while let Some(draft) = drafts.next() {
            let window = usize::from(draft.window) % phases.len();
            match (draft.what % 32, &phases[window]) {
                (_, Phase::Idle) => {}
                (28, _) if !self.pending.is_empty() => self.finish(draft),
                (29, _) => self.steps.push(Step::Sync { window }),
                (25, _) | (_, Phase::Local) => self.view(program, &phases[window], window, draft),
                (26 | 27, Phase::Locks) => self.unlock_from(window, 0, draft.more & 1 == 1),
                (22 | 23, phase) => self.flush(program, phase, window, draft),
                (24, phase) => {
                    let count = usize::from(draft.len) % 5 + 1;
                    let mut operations = Vec::new();
                    let Some(first) = self.admit(program, phase, window, draft) else { continue };
                    for draft in drafts.by_ref().take(count) {
                        // A lock has one target; other epochs can reach several.
                        let target = match phase {
                            Phase::Locks => first,
                            _ => match self.admit(program, phase, window, draft) {
                                Some(target) => target,
                                None => continue,
                            },
                        };
                        let operation = self.operation(program, window, target, draft);
                        if !matches!(
                            operation.call,
                            Call::FetchAndOp { .. } | Call::CompareAndSwap { .. }
                        ) {
                            operations.push(returning(operation));
                        }
                    }
                    self.steps.push(Step::Scope(operations));
                }
                (_, phase) => {
                    let Some(target) = self.admit(program, phase, window, draft) else { continue };
                    let operation = self.operation(program, window, target, draft);
                    self.issue(phase, operation, draft);
                }
            }
        }
        self.unlock_from(0, 0, false);
        core::mem::take(&mut self.steps)
    }

    /// Ends the requests that are left.
    pub(super) fn finish_all(&mut self) -> Vec<Step> {
        let end = |id| Step::Finish { id, how: Finish::Wait };
        self.pending.drain(..).map(end).collect()
    }

    fn finish(&mut self, draft: &StepDraft) {
        let id = self.pending.remove(usize::from(draft.at) % self.pending.len());
        let how = [Finish::Wait, Finish::Test, Finish::Drop][draft.more as usize % 3];
        self.steps.push(Step::Finish { id, how });
    }

    fn issue(&mut self, phase: &Phase, operation: Operation, draft: &StepDraft) {
        let single =
            matches!(operation.call, Call::FetchAndOp { .. } | Call::CompareAndSwap { .. });
        if phase.is_passive() && !single && draft.more >> 30 == 3 {
            self.pending.push(operation.id);
            self.steps.push(Step::Request(operation));
        } else {
            self.steps.push(Step::Do(returning(operation)));
        }
    }

    /// A target that may be operated on, after locking it if it needs that; `None` if there is
    /// none. The inner `None` is the null target.
    #[expect(clippy::option_option, reason = "no target, and the null target")]
    fn admit(
        &mut self,
        program: &Program,
        phase: &Phase,
        window: usize,
        draft: &StepDraft,
    ) -> Option<Option<u32>> {
        let target = u32::from(draft.target) % program.ranks;
        let null = draft.target >= 250;
        match phase {
            Phase::Fence { .. } | Phase::LockAll { .. } => Some((!null).then_some(target)),
            Phase::Pscw { targets, .. } => {
                let group = &targets[self.rank];
                if null || group.is_empty() {
                    return Some(None);
                }
                Some(Some(group[usize::from(draft.target) % group.len()]))
            }
            Phase::Locks => Some(self.lock(window, (!null).then_some(target), draft)),
            Phase::Idle | Phase::Local => None,
        }
    }

    /// Locks the target, or takes one that is locked already.
    fn lock(&mut self, window: usize, target: Option<u32>, draft: &StepDraft) -> Option<u32> {
        let mine = || self.held.iter().filter(|held| held.0 == window);
        let (all, any) = (mine().any(|held| held.1.is_none()), mine().next().copied());
        if all || any.is_some_and(|held| held.1 == target) {
            return target;
        }
        if let (Some(held), true) = (any, draft.more & 0x30 != 0) {
            return held.1;
        }
        let no_check = draft.more >> 8 & 3 == 3;
        let Some(target) = target else {
            if any.is_some() {
                return any.and_then(|held| held.1);
            }
            if !self.null.contains(&window) {
                self.null.push(window);
                let exclusive = draft.more & 0x40 != 0;
                self.steps.push(Step::Lock { window, target: None, exclusive, no_check });
            }
            return None;
        };
        if draft.more & 3 == 0 {
            self.unlock_from(window, 0, draft.more & 4 != 0);
            self.held.push((window, None));
            self.steps.push(Step::LockAll { window, no_check });
        } else {
            self.unlock_from(window, target, draft.more & 4 != 0);
            self.held.push((window, Some(target)));
            let exclusive = draft.more & 3 > 1;
            self.steps.push(Step::Lock { window, target: Some(target), exclusive, no_check });
        }
        Some(target)
    }

    /// Gives back every lock from that one on, and the null locks from that window on.
    fn unlock_from(&mut self, window: usize, target: u32, drop: bool) {
        let keep = |held: &(usize, Option<u32>)| {
            held.0 < window || held.0 == window && held.1.is_some_and(|held| held < target)
        };
        let given: Vec<_> = self.held.iter().copied().filter(|held| !keep(held)).collect();
        self.held.retain(keep);
        for (window, target) in given {
            self.steps.push(match target {
                Some(_) => Step::Unlock { window, target, drop },
                None => Step::UnlockAll { window, drop },
            });
        }
        let null: Vec<_> = self.null.iter().copied().filter(|held| *held >= window).collect();
        self.null.retain(|held| *held < window);
        let unlock = |window| Step::Unlock { window, target: None, drop };
        self.steps.extend(null.into_iter().map(unlock));
    }

    fn flush(&mut self, program: &Program, phase: &Phase, window: usize, draft: &StepDraft) {
        let local = draft.more & 7 == 0;
        match phase {
            Phase::LockAll { .. } => {
                let target = u32::from(draft.target) % program.ranks;
                let target = (draft.target < 160).then_some(target);
                self.steps.push(Step::Flush { window, target, local });
            }
            Phase::Locks => {
                if let Some((_, target)) = self.held.iter().rev().find(|held| held.0 == window) {
                    self.steps.push(Step::Flush { window, target: *target, local });
                }
            }
            _ => {}
        }
    }

    /// A load, store or atomic of this rank's own part.
    fn view(&mut self, program: &Program, phase: &Phase, window: usize, draft: &StepDraft) {
        let me = self.rank as u32;
        let holds = [Some(me), None].map(|target| self.held.contains(&(window, target)));
        if matches!(phase, Phase::Locks) && holds == [false, false] {
            return;
        }
        let atomics = phase.is_passive() || matches!(phase, Phase::Local);
        let what = if atomics { draft.what } else { draft.what % 7 };
        // Views take bytes and elements in a row.
        let draft = StepDraft { what, more: draft.more & !LAYOUTS, ..*draft };
        let operation = self.operation(program, window, Some(me), &draft);
        match &operation.call {
            Call::Put { .. } | Call::Get { .. } => {}
            // Views have no such call.
            Call::GetAccumulate { .. } => return,
            _ => {
                // Orders it with this rank's own accumulates, which may be on their way.
                if phase.is_passive() {
                    let target = holds[0].then_some(me);
                    self.steps.push(Step::Flush { window, target, local: false });
                }
            }
        }
        self.steps.push(Step::View(Operation { tried: None, ..operation }));
    }

    fn operation(
        &mut self,
        program: &Program,
        window: usize,
        target: Option<u32>,
        draft: &StepDraft,
    ) -> Operation {
        let id = self.next_id;
        self.next_id += 1;
        let plan = &program.windows[window];
        // To the null target, displacements mean nothing.
        let part = target.map_or_else(|| plan.parts[0], |target| plan.parts[target as usize]);
        let kind = draft.what % 32;
        let call = match kind {
            7..=21 => atomic(plan, part, kind, draft),
            31 => nothing(part, draft),
            _ => None,
        };
        let salt = (self.rank as u32) << 20 | id as u32;
        let call = call.unwrap_or_else(|| transfer(plan, part, kind, draft, salt));
        Operation { id, window, target, call, tried: draft.tried }
    }
}

/// A call whose result is there on return has no form that does not wait.
fn returning(mut operation: Operation) -> Operation {
    operation.tried = operation.tried.filter(|_| operation.call.sends());
    operation
}

/// Lets ranks meet: half of the steps go to one place, and some windows see operations of one
/// family only, so that nothing there is undefined.
fn steer(mut draft: StepDraft, round: &RoundDraft, program: &Program) -> StepDraft {
    let focused = draft.more & 0x200 != 0;
    if focused {
        (draft.window, draft.target, draft.at) = round.focus;
    }
    let kind = draft.what % 32;
    let window = usize::from(draft.window) % program.windows.len();
    if focused && program.windows[window].crowded && kind < 22 {
        // Sums over everything, of which some return what they found.
        let what = if kind == 0 { 16 } else { 7 };
        return StepDraft { what, at: 0, len: 1000, more: draft.more & !(LAYOUTS | 0xf0), ..draft };
    }
    match round.phases[window].1 >> 50 & 3 {
        1 | 2 if kind < 7 => draft.what = 7 + (kind + draft.target % 8) % 15,
        3 if (7..22).contains(&kind) => draft.what = kind % 7,
        _ => {}
    }
    draft
}

/// A put or get.
fn transfer(
    plan: &super::program::WindowPlan,
    part: super::program::Part,
    kind: u8,
    draft: &StepDraft,
    salt: u32,
) -> Call {
    let (there, here) = if draft.more & LAYOUTS == 0 {
        plain_sides(part, draft)
    } else {
        let [there, here, _] = sides_with_layouts(part, draft, cells(draft), 1);
        (there, here)
    };
    if kind < 4 || kind > 6 && kind.is_multiple_of(2) {
        let data = there.positions().map(|at| plan.contents(salt, at)).collect();
        Call::Put { to: there, from: here, data }
    } else {
        Call::Get { from: there, to: here }
    }
}

fn plain_sides(part: super::program::Part, draft: &StepDraft) -> (Side, Side) {
    let at = usize::from(draft.at) % (part.size + 1) / part.unit * part.unit;
    let len = usize::from(draft.len).min(part.size - at);
    (Side::bytes(at, len), Side::bytes(MARGIN, len))
}

/// What a put or get repeats on both sides.
fn cells(draft: &StepDraft) -> (Cell, Cell) {
    let bits = u64::from(draft.more);
    let words = [1, 2, 4, 8].map(Cell::Word);
    let records = [Cell::Record, Cell::Packed, Cell::Below];
    let record = number(bits, 11, 2) == 3;
    if record {
        (records[number(bits, 13, 4) % 3], records[number(bits, 15, 4) % 3])
    } else {
        let word = words[number(bits, 13, 2)];
        (word, word)
    }
}

/// Three sides with the same elements, of which the first is the target's: it lies in the part and
/// begins at a multiple of `align`. The others are those of buffers.
fn sides_with_layouts(
    part: super::program::Part,
    draft: &StepDraft,
    cells: (Cell, Cell),
    align: usize,
) -> [Side; 3] {
    let bits = u64::from(draft.more) | u64::from(draft.value) << 32;
    // Whole blocks of both sides.
    let lengths = [1 + number(bits, 17, 2) as u64, 1 + number(bits, 19, 1) as u64];
    let block = lengths[0] * lengths[1];
    let count = u64::from(draft.len).div_ceil(block).min(60) * block;
    let pattern = |first: u32, length: u64, blocks: u64| {
        let gap = number(bits, first + 2, 2) as u64;
        let backwards = number(bits, first + 4, 1) == 1;
        match number(bits, first, 2) {
            0 => Pattern::Dense,
            1 => Pattern::Rows { length, gap, backwards },
            2 => Pattern::Scattered { length, gap, first: u64::from(draft.value) % blocks.max(1) },
            _ => Pattern::Nested { length, gap, backwards },
        }
    };
    let side = |cell, length, first, count: u64| {
        let pattern = pattern(first, length, count / length);
        Side { start: 0, cell, cells: count, pattern }
    };
    // As many blocks as the part has room for.
    let mut count = count;
    let mut there = side(cells.0, lengths[0], 20, count);
    while count > 0 && (there.span().1 - there.span().0) as usize > part.size {
        count = count / 2 / block * block;
        there = side(cells.0, lengths[0], 20, count);
    }
    let (low, high) = there.span();
    let room = part.size - (high - low) as usize;
    // Nothing is at the very beginning, wherever position 0 of something would be.
    if count > 0 {
        let first = usize::from(draft.at) % (room + 1) / align * align;
        there.start = first.strict_add_signed(-low as isize);
    }
    let here = [25, 34].map(|first| {
        let mut here = side(cells.1, lengths[1], first, count);
        let low = if count == 0 { 0 } else { here.span().0 };
        here.start = MARGIN.strict_add_signed(-low as isize);
        here
    });
    [there, here[0], here[1]]
}

/// An operation on no elements at the end of the part.
fn nothing(part: super::program::Part, draft: &StepDraft) -> Option<Call> {
    let (at, none) = (part.size, Side::bytes(0, 0));
    Some(match draft.more % 4 {
        0 => Call::Put { to: Side::bytes(at, 0), from: Side::bytes(MARGIN, 0), data: Vec::new() },
        1 => Call::Get { from: Side::bytes(at, 0), to: Side::bytes(MARGIN, 0) },
        // The end is aligned for no element but that of bytes, and 0 for all.
        2 => Call::Accumulate { op: Op::Replace, to: none, from: none, values: Vec::new() },
        _ => {
            let values = Vec::new();
            Call::GetAccumulate { op: Op::NoOp, at: none, from: none, values, into: none }
        }
    })
}

/// An operation of the accumulate family; `None` if the part has no room for an element.
fn atomic(
    plan: &super::program::WindowPlan,
    part: super::program::Part,
    kind: u8,
    draft: &StepDraft,
) -> Option<Call> {
    let element = plan.element;
    let width = element.width();
    let step = lcm(width, part.unit);
    let places = part.size.checked_sub(width)? / step + 1;
    let at = usize::from(draft.at) % places * step;
    let count = (usize::from(draft.len) % 1500).clamp(1, (part.size - at) / width);
    let values = |count: usize| {
        let value = |i| element.value(draft.value.wrapping_add(i as u16) % 512);
        (0..count).flat_map(value).collect::<Vec<_>>()
    };
    let sides = if draft.more & LAYOUTS == 0 {
        [at, 0, 0].map(|start| Side::elements(element, start, count))
    } else {
        let cell = Cell::Element(element);
        sides_with_layouts(part, draft, (cell, cell), width)
    };
    let ops = element.ops();
    let op = ops[(draft.more >> 4) as usize % ops.len()];
    Some(match kind {
        7..=11 => {
            let op = if op == Op::NoOp { Op::Replace } else { op };
            let [to, from, _] = sides;
            Call::Accumulate { op, to, from, values: values(to.cells as usize) }
        }
        12..=15 => Call::FetchAndOp { op, at, value: values(1) },
        19..=21 if element.is_atomic() => {
            // What is there at first, or what others write.
            let likely = (at..at + width).map(|at| plan.contents(77 + draft.more % 4, at));
            let compare = if draft.more & 0x80 == 0 { likely.collect() } else { values(1) };
            Call::CompareAndSwap { at, compare, swap: element.value(draft.value % 5 + 1) }
        }
        _ => {
            let none = op == Op::NoOp && draft.more & 0x100 == 0;
            let [at, from, into] = sides;
            let (from, values) = if none {
                (Side::bytes(0, 0), Vec::new())
            } else {
                (from, values(at.cells as usize))
            };
            Call::GetAccumulate { op, at, from, values, into }
        }
    })
}

fn lcm(a: usize, b: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    a / gcd(a, b) * b
}
