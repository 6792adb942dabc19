//! Makes a legal program of any numbers.
//!
//! No program waits for ever: collective calls come in one order at all ranks; posts are made
//! before anything waits; a rank that holds a lock asks only for locks of higher targets and
//! windows, and holds none when it comes to a collective call or a wait.
use super::operations::{Drafter, number};
use super::program::{Call, Operation, Phase, Program, Round, Step, Stores, Stretch};
use super::program::{FenceEnd, Flavour, Memory, Part, Path, WindowPlan};
use super::strategy::{Draft, RoundDraft, WINDOWS, WindowDraft};
use super::values::Type;
use rma_core::{Assert, Op};

const UNITS: [usize; 8] = [1, 8, 4, 2, 16, 3, 24, 1];
const FLAVOURS: [Flavour; 8] = {
    use Flavour::{Allocated, Created, Dynamic, Shared};
    [Allocated, Shared, Created, Dynamic, Allocated, Created, Dynamic, Dynamic]
};
/// Elements of a part of a crowded window, at least.
const CROWD: usize = 300;
/// Types of crowded windows: mostly such that are not combined by one instruction.
const CROWDED: &[Type] = {
    use Type::{ComplexF32, ComplexF64, F32, F64, I8, PairF64I64, PairI32U32, U16, U64};
    &[F64, F32, ComplexF64, U16, PairF64I64, I8, ComplexF32, F64, PairI32U32, U64]
};

/// The program of a draft.
pub fn legalise(draft: &Draft) -> Program {
    // Few programs are of one rank.
    let ranks = [2, 3, 4, 2, 3, 4, 4, 1][usize::from(draft.ranks) % 8];
    let plan = |window: &WindowDraft| window_plan(window, ranks);
    let windows: Vec<WindowPlan> = draft.windows.iter().map(plan).collect();
    let mut program = Program { ranks: ranks as u32, windows, stretches: Vec::new() };
    let mut drafters: Vec<Drafter> = (0..ranks).map(Drafter::new).collect();
    let mut fenced = vec![false; WINDOWS];
    for (i, round) in draft.rounds.iter().enumerate() {
        // Five in eight rounds begin no stretch.
        if i == 0 || round.seal % 8 >= 5 {
            end_stretch(&mut program, &mut drafters);
            let sealed = if i == 0 { Vec::new() } else { sealed(&program, round) };
            program.stretches.push(Stretch { sealed, rounds: Vec::new() });
            fenced.fill(false);
        }
        let last = draft.rounds.get(i + 1).is_none_or(|next| next.seal % 8 >= 5);
        let kinds = |round: &RoundDraft, window: usize| kind(round.phases[window].0);
        let goes_on = |window| !last && kinds(&draft.rounds[i + 1], window) == Kind::Fence;
        let mut next = one_round(&program, round, &mut drafters, &fenced);
        for (window, phase) in next.phases.iter_mut().enumerate() {
            fenced[window] = false;
            if let Phase::Fence { end, .. } = phase {
                *end = match round.phases[window].1 >> 60 & 3 {
                    0 => FenceEnd::Drop,
                    1 => FenceEnd::End,
                    _ if goes_on(window) => FenceEnd::Next,
                    _ => FenceEnd::End,
                };
                fenced[window] = true;
            }
        }
        let stretch = program.stretches.last_mut().expect("the first round begins one");
        stretch.rounds.push(next);
    }
    end_stretch(&mut program, &mut drafters);
    program
}

fn window_plan(draft: &WindowDraft, ranks: usize) -> WindowPlan {
    let flavour = FLAVOURS[usize::from(draft.flavour) % FLAVOURS.len()];
    let crowded = draft.hints >> 5 == 7;
    let types = if crowded { CROWDED } else { Type::ALL };
    let element = types[usize::from(draft.element) % types.len()];
    let part = |(elements, more): &(u16, u8)| {
        let (unit, multiple) = match (flavour, UNITS[*more as usize % 8]) {
            // Addresses are in bytes.
            (Flavour::Dynamic, _) => (1, 1),
            // All parts of a shared window are aligned for every type.
            (Flavour::Shared, _) => (UNITS[*more as usize % 5], 16),
            (_, unit) => (unit, unit),
        };
        let elements = usize::from(*elements).max(if crowded { CROWD } else { 0 });
        let size = (elements * element.width()).div_ceil(multiple) * multiple;
        let memory = [Memory::Vector, Memory::Boxed, Memory::Raw][usize::from(*more >> 4) % 3];
        Part { size, unit, memory }
    };
    let path = match draft.hints & 7 {
        0..=4 => Path::OfJob,
        5 => Path::Cma,
        _ => Path::Messages,
    };
    let ordered = draft.hints >> 3 & 3 != 3;
    let parts = draft.parts[..ranks].iter().map(part).collect();
    WindowPlan { flavour, path, ordered, crowded, element, parts }
}

/// Requests end with the stretch, whose windows may be sealed afterwards.
fn end_stretch(program: &mut Program, drafters: &mut [Drafter]) {
    let Some(round) = program.stretches.last_mut().and_then(|last| last.rounds.last_mut()) else {
        return;
    };
    for (drafter, steps) in drafters.iter_mut().zip(&mut round.steps) {
        steps.extend(drafter.finish_all());
    }
}

fn sealed(program: &Program, round: &RoundDraft) -> Vec<(usize, Vec<Stores>)> {
    let chosen = |window: &usize| *window == 0 || round.seal >> (window + 2) & 1 == 1;
    let stores = |window: usize| {
        let plan = &program.windows[window];
        let store = |rank: usize| {
            let size = plan.parts[rank].size;
            let bits = number(round.phases[window].1, rank as u32 * 16, 16);
            let (at, len) = (bits % size.max(1), bits >> 8 & 31);
            let end = (at + len).min(size);
            let salt = bits as u32 ^ 0xbeef;
            vec![(at, (at..end).map(|at| plan.contents(salt, at)).collect())]
        };
        (window, (0..program.ranks as usize).map(store).collect())
    };
    (0..program.windows.len()).filter(chosen).map(stores).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fence,
    LockAll,
    Locks,
    Pscw,
    Local,
    Idle,
}

fn kind(number: u8) -> Kind {
    match number % 16 {
        0..=3 => Kind::Fence,
        4..=6 => Kind::LockAll,
        7..=10 => Kind::Locks,
        11..=13 => Kind::Pscw,
        14 => Kind::Local,
        _ => Kind::Idle,
    }
}

fn one_round(
    program: &Program,
    draft: &RoundDraft,
    drafters: &mut [Drafter],
    fenced: &[bool],
) -> Round {
    let ranks = program.ranks as usize;
    let mut phases: Vec<Phase> = (0..program.windows.len())
        .map(|window| phase(kind(draft.phases[window].0), draft.phases[window].1, ranks))
        .collect();
    let mut steps: Vec<Vec<Step>> =
        drafters.iter_mut().map(|drafter| drafter.round(program, &phases, draft)).collect();
    for (window, phase) in phases.iter_mut().enumerate() {
        let bits = draft.phases[window].1;
        promise(phase, window, bits, &steps, fenced[window]);
        if matches!(phase, Phase::Locks) {
            withdraw_no_check(window, &mut steps);
        }
    }
    let passive = phases.iter().any(Phase::is_passive);
    let crowded = program.windows.iter().any(|plan| plan.crowded);
    let (barrier_before, together) = (draft.barrier || passive, draft.together || crowded);
    Round { barrier_before, together, barrier_after: passive, phases, steps }
}

fn phase(kind: Kind, bits: u64, ranks: usize) -> Phase {
    let flags = |first: u32| {
        (0..ranks as u32).map(|rank| bits >> (first + rank) & 1 == 1).collect::<Vec<_>>()
    };
    let none = vec![Assert::NONE; ranks];
    match kind {
        Kind::Idle => Phase::Idle,
        Kind::Local => Phase::Local,
        Kind::Fence => {
            let end = FenceEnd::End;
            Phase::Fence { open: none.clone(), close: none, end }
        }
        Kind::LockAll => Phase::LockAll { no_check: bits & 1 == 1 },
        Kind::Locks => Phase::Locks,
        Kind::Pscw => {
            let of = |origin: usize| {
                let row = number(bits, origin as u32 * 4, 4);
                (0..ranks as u32).filter(|target| row >> target & 1 == 1).collect()
            };
            Phase::Pscw {
                targets: (0..ranks).map(of).collect(),
                post: none,
                no_check: bits >> 16 & 3 == 3,
                start_first: flags(18),
                test: flags(22),
            }
        }
    }
}

/// Which rank writes to which part: by rank, whether it is stored to by itself, and by operations.
fn written(window: usize, steps: &[Vec<Step>]) -> (Vec<bool>, Vec<bool>) {
    let (mut stored, mut put) = (vec![false; steps.len()], vec![false; steps.len()]);
    for (rank, steps) in steps.iter().enumerate() {
        for step in steps {
            let (operations, own) = match step {
                Step::Do(operation) | Step::Request(operation) => {
                    (core::slice::from_ref(operation), false)
                }
                Step::View(operation) => (core::slice::from_ref(operation), true),
                Step::Scope(operations) => (&operations[..], false),
                _ => continue,
            };
            for operation in operations.iter().filter(|op| op.window == window && writes(op)) {
                let Some(target) = operation.target else { continue };
                if own { stored[rank] = true } else { put[target as usize] = true }
            }
        }
    }
    (stored, put)
}

fn writes(operation: &Operation) -> bool {
    !matches!(
        operation.call,
        Call::Get { .. }
            | Call::GetAccumulate { op: Op::NoOp, .. }
            | Call::FetchAndOp { op: Op::NoOp, .. }
    )
}

/// Whether any rank operates on a window, whatever that changes.
fn any_operation(window: usize, steps: &[Vec<Step>]) -> bool {
    steps.iter().flatten().any(|step| match step {
        Step::Do(operation) | Step::Request(operation) => operation.window == window,
        Step::Scope(operations) => operations.iter().any(|operation| operation.window == window),
        _ => false,
    })
}

/// Chooses among the asserts that are true. S-C3 S-C4 S-D6
fn promise(phase: &mut Phase, window: usize, bits: u64, steps: &[Vec<Step>], fenced: bool) {
    let (stored, put) = written(window, steps);
    let idle = !any_operation(window, steps);
    let join = |asserts: &mut Assert, true_one: bool, wanted: u64, assert: Assert| {
        if true_one && bits >> wanted & 1 == 1 {
            *asserts = *asserts | assert;
        }
    };
    match phase {
        Phase::Fence { open, close, .. } => {
            for rank in 0..steps.len() {
                let of_rank = 4 * rank as u64;
                join(&mut open[rank], true, 30, Assert::NO_PRECEDE);
                join(&mut open[rank], fenced, of_rank, Assert::NO_STORE);
                join(&mut open[rank], !put[rank], of_rank + 1, Assert::NO_PUT);
                join(&mut close[rank], idle, 31, Assert::NO_PRECEDE);
                join(&mut close[rank], !stored[rank], of_rank + 2, Assert::NO_STORE);
            }
        }
        Phase::Pscw { post, no_check, .. } => {
            for (rank, post) in post.iter_mut().enumerate() {
                let of_rank = 40 + 2 * rank as u64;
                join(post, !put[rank], of_rank, Assert::NO_PUT);
                if *no_check {
                    *post = *post | Assert::NO_CHECK;
                }
            }
        }
        _ => {}
    }
}

/// One lock of a round: by which rank, on which target (all with `None`), exclusive or not.
type Held = (usize, Option<u32>, bool);

/// A lock says `NO_CHECK` only if no other rank's lock in this round would conflict.
fn withdraw_no_check(window: usize, steps: &mut [Vec<Step>]) {
    let held = |rank: usize, step: &Step| -> Option<Held> {
        match *step {
            Step::Lock { window: on, target: Some(target), exclusive, .. } if on == window => {
                Some((rank, Some(target), exclusive))
            }
            Step::LockAll { window: on, .. } if on == window => Some((rank, None, false)),
            _ => None,
        }
    };
    let of_rank = |(rank, steps): (usize, &Vec<Step>)| {
        steps.iter().filter_map(|step| held(rank, step)).collect::<Vec<_>>()
    };
    let all: Vec<Held> = steps.iter().enumerate().flat_map(of_rank).collect();
    let conflict = |(rank, target, exclusive): Held| {
        all.iter().any(|other| {
            let meets = target.is_none() || other.1.is_none() || target == other.1;
            other.0 != rank && meets && (exclusive || other.2)
        })
    };
    for (rank, steps) in steps.iter_mut().enumerate() {
        for step in steps {
            let conflicts = held(rank, step).is_some_and(conflict);
            if let Step::Lock { no_check, .. } | Step::LockAll { no_check, .. } = step {
                *no_check &= !conflicts;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::program;

    const EVERYTHING: &[&str] = &[
        "1 ranks",
        "4 ranks",
        "Allocated",
        "Shared",
        "Created",
        "Dynamic",
        "Vector",
        "Boxed",
        "Raw",
        "OfJob",
        "Cma",
        "Messages",
        "ordered: false",
        "crowded: true",
        "size: 0",
        "unit: 24",
        "sealed",
        "before false",
        "before true",
        "in true",
        "Idle",
        "Local",
        "LockAll",
        "Locks",
        "Pscw",
        "end: Next",
        "end: End",
        "end: Drop",
        "start_first: [true",
        "test: [true",
        "targets: [[]",
        "no_check: true",
        "no_check: false",
        "exclusive: true",
        "exclusive: false",
        "drop: true",
        "drop: false",
        "local: true",
        "UnlockAll",
        "Do(",
        "tried: None",
        "tried: Some(Again)",
        "tried: Some(Waits)",
        "tried: Some(Left)",
        "Request(",
        "Scope(",
        "View(",
        "Sync",
        "how: Wait",
        "how: Test",
        "how: Drop",
        "target: None",
        "Put",
        "Get {",
        "Accumulate",
        "GetAccumulate",
        "FetchAndOp",
        "CompareAndSwap",
        "Rows",
        "Scattered",
        "Nested",
        "backwards: true",
        "Record",
        "Packed",
        "Below",
        "Word(8)",
        "Element(PairF64I64)",
        "cells: 0",
        "values: []",
        "Sum",
        "Prod",
        "Min",
        "Max",
        "BitAnd",
        "BitOr",
        "BitXor",
        "Replace",
        "NoOp",
        "LogicalAnd",
        "LogicalOr",
        "LogicalXor",
        "MinLoc",
        "MaxLoc",
    ];

    /// Some seeds show everything that there is.
    #[test]
    fn everything_comes() {
        let types = Type::ALL.iter().map(|element| format!("element: {element:?},"));
        let mut missing: Vec<String> =
            EVERYTHING.iter().map(|word| (*word).to_owned()).chain(types).collect();
        for seed in 0..400 {
            let text = program(seed).to_string();
            missing.retain(|word| !text.contains(word));
        }
        assert!(missing.is_empty(), "never seen: {missing:?}");
    }

    /// The same seed gives the same program, and another seed another.
    #[test]
    fn a_seed_is_a_program() {
        assert_eq!(program(7).to_string(), program(7).to_string());
        assert_ne!(program(7).to_string(), program(8).to_string());
    }
}
