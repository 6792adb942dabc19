//! What may come of a program, compared with what came.
//!
//! After each round every rank looked at its parts, so that a round begins with known contents.
//! In a round, every byte that no two accesses race for has an explanation by an order of all
//! accesses, which is searched for ([`super::linearize`]), for each element of the window alone. A
//! byte that puts and gets race for holds what one of the puts wrote that was not certainly
//! overwritten; and a get finds such a byte, or what was there before: MPI says less (undefined),
//! this library says so (docs/soundness.md S2). An element for which others race with an
//! accumulate may hold anything.
use super::accesses::{Access, Accesses, collect};
use super::linearize::{Act, Event, Location, Verdict};
use super::program::{Call, Operation, Program, Step, UNTOUCHED};
use super::record::{Record, Tried};
use super::values::Type;
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write;

/// Elements that are explained together, at most.
const TOGETHER: usize = 32;

/// How much the oracle could say, in elements that were accessed in a round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Had to have an explanation.
    pub explained: u64,
    /// Of these, accessed by several ranks.
    pub contended: u64,
    /// Held bytes out of a set.
    pub sets: u64,
    /// Could hold anything.
    pub anything: u64,
    /// Could not be explained within the budget, or held a NaN.
    pub given_up: u64,
    /// Operations that were tried and not refused.
    pub accepted: u64,
    /// Operations that were refused, and issued all the same.
    pub issued: u64,
    /// Operations that were refused and not issued.
    pub left: u64,
}

impl Coverage {
    /// The counts, to be added up by a reduction.
    pub fn counts(&self) -> [u64; 8] {
        let Self { explained, contended, sets, anything, given_up, accepted, issued, left } = *self;
        [explained, contended, sets, anything, given_up, accepted, issued, left]
    }

    /// The inverse of [`counts`](Self::counts).
    ///
    /// # Panics
    ///
    /// If there are not eight.
    pub fn from_counts(counts: &[u64]) -> Self {
        let [explained, contended, sets, anything, given_up, accepted, issued, left] = *counts
        else {
            panic!("eight counts")
        };
        Self { explained, contended, sets, anything, given_up, accepted, issued, left }
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: Self) {
        self.explained += other.explained;
        self.contended += other.contended;
        self.sets += other.sets;
        self.anything += other.anything;
        self.given_up += other.given_up;
        self.accepted += other.accepted;
        self.issued += other.issued;
        self.left += other.left;
    }

    fn count(&mut self, tried: Tried) {
        match tried {
            Tried { issued: None, .. } => self.left += 1,
            Tried { refused: 0, .. } => self.accepted += 1,
            _ => self.issued += 1,
        }
    }
}

/// Compares what the ranks saw with what they may have seen; an error says where, in words.
pub fn check(program: &Program, records: &[Record]) -> Result<Coverage, String> {
    let ranks = program.ranks as usize;
    let mut coverage = Coverage::default();
    let mut parts: Vec<Vec<Vec<u8>>> = program
        .windows
        .iter()
        .map(|plan| (0..ranks).map(|rank| plan.initial(rank)).collect())
        .collect();
    records.iter().flat_map(|record| record.tried.values()).for_each(|t| coverage.count(*t));
    let mut look = 0;
    for (s, stretch) in program.stretches.iter().enumerate() {
        for (window, stores) in &stretch.sealed {
            for rank in 0..ranks {
                let part = &mut parts[*window][rank];
                same(part, &records[rank].looks[look]).map_err(|at| {
                    format!("window {window} sealed before stretch {s}: rank {rank}, {at}")
                })?;
                for (at, bytes) in &stores[rank] {
                    part[*at..][..bytes.len()].copy_from_slice(bytes);
                }
            }
            look += 1;
        }
        for (r, round) in stretch.rounds.iter().enumerate() {
            let place = |problem| format!("stretch {s}, round {r}: {problem}");
            for (rank, steps) in round.steps.iter().enumerate() {
                results(steps, rank, &records[rank]).map_err(place)?;
            }
            let accesses = collect(program, round, records);
            for (window, parts) in parts.iter_mut().enumerate() {
                for (rank, before) in parts.iter_mut().enumerate() {
                    let after = &records[rank].looks[look];
                    let part = PartCheck { program, window, rank, before, after };
                    coverage.add(part.check(&accesses).map_err(place)?);
                    before.clone_from(after);
                }
                look += 1;
            }
        }
    }
    for (window, parts) in parts.iter().enumerate() {
        for (rank, part) in parts.iter().enumerate() {
            same(part, &records[rank].looks[look])
                .map_err(|at| format!("window {window} given back: rank {rank}, {at}"))?;
        }
        look += 1;
    }
    Ok(coverage)
}

fn same(expected: &[u8], found: &[u8]) -> Result<(), String> {
    match expected.iter().zip(found).position(|(a, b)| a != b) {
        Some(at) => Err(format!("byte {at} is {} and not {}", found[at], expected[at])),
        None if expected.len() != found.len() => Err(format!("{} bytes", found.len())),
        None => Ok(()),
    }
}

/// Checks what operations filled that no target decides: gaps, and results of the null target.
fn results(steps: &[Step], rank: usize, record: &Record) -> Result<(), String> {
    for step in steps {
        let operations = match step {
            Step::Do(operation) | Step::View(operation) | Step::Request(operation) => {
                core::slice::from_ref(operation)
            }
            Step::Scope(operations) => &operations[..],
            _ => continue,
        };
        for operation in operations {
            let found = record.results.get(&operation.id).map(Vec::as_slice);
            let dropped = matches!(step, Step::Request(_)) && found.is_none();
            if record.is_left(operation.id) && found.is_none() || dropped {
                continue;
            }
            result(operation, found)
                .map_err(|problem| format!("rank {rank}, {operation:?}: {problem}"))?;
        }
    }
    Ok(())
}

fn result(operation: &Operation, found: Option<&[u8]>) -> Result<(), String> {
    let found = match (&operation.call, found) {
        (Call::Put { .. } | Call::Accumulate { .. }, None) => return Ok(()),
        (_, None) => return Err("no result".to_owned()),
        (_, Some(found)) => found,
    };
    let null = operation.target.is_none();
    match &operation.call {
        Call::Get { to, .. } | Call::GetAccumulate { into: to, .. } => {
            let filled: HashSet<usize> =
                if null { HashSet::new() } else { to.positions().collect() };
            let wrong = |at: &usize| found[*at] != UNTOUCHED && !filled.contains(at);
            match (0..found.len()).find(wrong) {
                Some(at) => Err(format!("byte {at} of the buffer was written: {}", found[at])),
                None => Ok(()),
            }
        }
        Call::FetchAndOp { value: back, .. } | Call::CompareAndSwap { compare: back, .. }
            if null =>
        {
            same(back, found)
        }
        _ => Ok(()),
    }
}

/// One rank's part in one round.
struct PartCheck<'p, 's> {
    program: &'p Program,
    window: usize,
    rank: usize,
    before: &'s [u8],
    after: &'p [u8],
}

impl<'p> PartCheck<'p, '_> {
    fn element(&self) -> Type {
        self.program.windows[self.window].element
    }

    /// What no access touches stays, and every element has an explanation. S-G12
    fn check(&self, accesses: &Accesses<'p>) -> Result<Coverage, String> {
        let mut coverage = Coverage::default();
        let none = Vec::new();
        let all = accesses.get(&(self.window, self.rank as u32)).unwrap_or(&none);
        let width = self.element().width();
        // By element, and in program order of each rank.
        let mut cells: BTreeMap<usize, Vec<&Access<'p>>> = BTreeMap::new();
        for access in all {
            let touched: BTreeSet<usize> = access.touched().map(|at| at / width).collect();
            touched.into_iter().for_each(|cell| cells.entry(cell).or_default().push(access));
        }
        let mut expected = self.after.to_vec();
        let untouched = |cell: &usize| !cells.contains_key(cell);
        for cell in (0..self.before.len().div_ceil(width)).filter(untouched) {
            let bytes = self.bytes(cell);
            expected[bytes.clone()].copy_from_slice(&self.before[bytes]);
        }
        let of = || format!("part of rank {} of window {}", self.rank, self.window);
        same(&expected, self.after).map_err(|at| format!("{}, not accessed: {at}", of()))?;
        for (&cell, accesses) in &cells {
            let kind = self.cell(cell, accesses).map_err(|problem| {
                let history = self.history(cell, accesses);
                format!("{}, element {cell}: {problem}\n{history}", of())
            })?;
            coverage.add(kind);
        }
        self.sections(all, &cells).map_err(|problem| format!("{}: {problem}", of()))?;
        Ok(coverage)
    }

    /// The bytes of an element.
    fn bytes(&self, cell: usize) -> Range<usize> {
        let width = self.element().width();
        cell * width..((cell + 1) * width).min(self.before.len())
    }

    /// Those of them that some accesses race for.
    fn racy(bytes: Range<usize>, accesses: &[&Access<'p>]) -> BTreeSet<usize> {
        if accesses.iter().all(|access| access.is_atomic()) {
            return BTreeSet::new();
        }
        let races = |at: &usize| {
            let here: Vec<&Access<'p>> =
                accesses.iter().copied().filter(|access| access.index(*at).is_some()).collect();
            let later = |i: usize| here[i + 1..].iter();
            here.iter().enumerate().any(|(i, a)| later(i).any(|b| a.races(b)))
        };
        bytes.filter(races).collect()
    }

    /// Elements that only exclusive sections change have an explanation together: a section is
    /// seen whole or not at all. S-E1
    fn sections(
        &self,
        all: &[Access<'p>],
        cells: &BTreeMap<usize, Vec<&Access<'p>>>,
    ) -> Result<(), String> {
        let locked = |access: &&Access<'p>| {
            access.section.is_some_and(|(_, exclusive)| exclusive || !access.writes())
        };
        let whole = |(cell, accesses): &(&usize, &Vec<&Access<'p>>)| {
            accesses.iter().all(locked) && Self::racy(self.bytes(**cell), accesses).is_empty()
        };
        let cells: Vec<usize> =
            cells.iter().filter(whole).map(|(cell, _)| *cell).take(TOGETHER).collect();
        let width = self.element().width();
        if !self.program.windows[self.window].ordered {
            return Ok(());
        }
        let mut ranks: Vec<Vec<Event<'_>>> = (0..self.program.ranks).map(|_| Vec::new()).collect();
        for access in all {
            let mut acts = Vec::new();
            for (i, cell) in cells.iter().enumerate() {
                let bytes = self.bytes(*cell);
                if bytes.clone().any(|at| access.index(at).is_some()) {
                    let act = self.act(access, bytes, &BTreeSet::new())?;
                    acts.extend(act.map(|act| (i * width, act)));
                }
            }
            ranks[access.rank].push(Event { acts, section: access.section, after: Vec::new() });
        }
        ranks.iter_mut().for_each(|events| events.retain(|event| !event.acts.is_empty()));
        let of =
            |part: &[u8]| cells.iter().flat_map(|cell| part[self.bytes(*cell)].to_vec()).collect();
        let (initial, last): (_, Vec<u8>) = (of(self.before), of(self.after));
        let last = last.into_iter().map(Some).collect();
        match (Location { element: self.element(), ranks, initial, last }).explain() {
            Verdict::Impossible => Err(format!(
                "no order of the locked sections explains the elements {cells:?} together"
            )),
            _ => Ok(()),
        }
    }

    /// An order of all accesses to an element makes what they found and what is there at the end.
    /// S-H4 S-H5 S-H10
    fn cell(&self, cell: usize, accesses: &[&Access<'p>]) -> Result<Coverage, String> {
        let bytes = self.bytes(cell);
        let racy = Self::racy(bytes.clone(), accesses);
        if !racy.is_empty() && accesses.iter().any(|access| access.is_atomic()) {
            return Ok(Coverage { anything: 1, ..Coverage::default() });
        }
        for at in &racy {
            self.one_of(*at, accesses)?;
        }
        let part = |at: usize| (!racy.contains(&at)).then(|| self.after[at]);
        let ranks = self.lanes(accesses, &racy, bytes.clone())?;
        let contended = accesses.iter().any(|access| access.rank != accesses[0].rank);
        let location = Location {
            element: self.element(),
            ranks,
            initial: self.before[bytes.clone()].to_vec(),
            last: bytes.map(part).collect(),
        };
        match location.explain() {
            Verdict::Explained if racy.is_empty() => {
                let contended = contended.into();
                Ok(Coverage { explained: 1, contended, ..Coverage::default() })
            }
            Verdict::Explained => Ok(Coverage { sets: 1, ..Coverage::default() }),
            Verdict::Unknown => Ok(Coverage { given_up: 1, ..Coverage::default() }),
            Verdict::Impossible => Err("no order of these accesses explains this".to_owned()),
        }
    }

    /// What the accesses of an element did to the bytes that are not raced for: of each rank in
    /// its order, or all apart where accumulates need not stay in order: then one comes before
    /// another if it was complete. S-H7 S-H8
    fn lanes<'b>(
        &self,
        accesses: &[&'b Access<'p>],
        racy: &BTreeSet<usize>,
        bytes: Range<usize>,
    ) -> Result<Vec<Vec<Event<'b>>>, String> {
        let mut lanes: Vec<Vec<Event<'_>>> = (0..self.program.ranks).map(|_| Vec::new()).collect();
        if self.program.windows[self.window].ordered {
            for access in accesses {
                let act = self.act(access, bytes.clone(), racy)?;
                let (section, after) = (access.section, Vec::new());
                let event = |act| Event { acts: vec![(0, act)], section, after };
                lanes[access.rank].extend(act.map(event));
            }
            return Ok(lanes);
        }
        let mut apart: Vec<(&Access<'_>, Event<'_>)> = Vec::new();
        for access in accesses {
            let Some(act) = self.act(access, bytes.clone(), racy)? else { continue };
            // The others are atomic, or do not write, or are raced with for their bytes.
            let before =
                |(_, (other, _)): &(usize, &(&Access<'_>, Event<'_>))| other.is_before(access);
            let after = apart.iter().enumerate().filter(before).map(|(lane, _)| lane).collect();
            apart.push((*access, Event { acts: vec![(0, act)], section: None, after }));
        }
        Ok(apart.into_iter().map(|(_, event)| vec![event]).collect())
    }

    /// What an access did to the bytes of an element that are not raced for.
    fn act<'b>(
        &self,
        access: &'b Access<'_>,
        bytes: Range<usize>,
        racy: &BTreeSet<usize>,
    ) -> Result<Option<Act<'b>>, String> {
        let (first, operation) = (bytes.start, access.operation);
        let result = access.result.as_deref();
        let mine = |data: &[u8]| {
            let index = |at: usize| access.index(at).map(|index| (at - first, data[index]));
            bytes.clone().filter(|at| !racy.contains(at)).filter_map(index).collect::<Vec<_>>()
        };
        // An element of the accumulate family, from the first of the operation's on.
        let width = self.element().width();
        let element = access.index(first).unwrap_or(0);
        fn slice(data: &[u8], element: usize, width: usize) -> &[u8] {
            &data[element..][..width]
        }
        Ok(Some(match &operation.call {
            Call::Put { data, .. } => Act::Write(mine(data)),
            Call::Get { .. } => match result {
                Some(result) => Act::Read(mine(result)),
                None => return Ok(None),
            },
            Call::Accumulate { op, values, .. } => {
                Act::Combine(*op, slice(values, element, width), None)
            }
            Call::GetAccumulate { op, values, .. } => {
                let seen = result.map(|result| slice(result, element, width));
                // An atomic get may come without operands.
                let values = match values.is_empty() {
                    true => &NO_OPERAND[..width],
                    false => slice(values, element, width),
                };
                Act::Combine(*op, values, seen)
            }
            Call::FetchAndOp { op, value, .. } => Act::Combine(*op, value, result),
            Call::CompareAndSwap { compare, swap, .. } => {
                let seen = result.ok_or("a compare_and_swap without a result")?;
                Act::Swap(compare, swap, seen)
            }
        }))
    }

    /// A byte that puts and gets race for is one that was written there. S-G6 S-G7
    fn one_of(&self, at: usize, accesses: &[&Access<'p>]) -> Result<(), String> {
        let puts: Vec<(&Access<'p>, u8)> = accesses
            .iter()
            .filter_map(|access| match &access.operation.call {
                Call::Put { data, .. } => Some((*access, data[access.index(at)?])),
                _ => None,
            })
            .collect();
        // Found by a get, or at the end.
        let allowed = |reader: Option<&Access<'p>>| {
            let before = |a: &Access<'p>| reader.is_none_or(|reader| a.is_before(reader));
            let hidden = |put: &Access<'p>| {
                puts.iter().any(|(other, _)| put.is_before(other) && before(other))
            };
            let late = |put: &Access<'p>| reader.is_some_and(|reader| reader.is_before(put));
            let mut bytes: BTreeSet<u8> = puts
                .iter()
                .filter(|(put, _)| !hidden(put) && !late(put))
                .map(|put| put.1)
                .collect();
            if !puts.iter().any(|(put, _)| before(put)) {
                bytes.insert(self.before[at]);
            }
            bytes
        };
        let end = allowed(None);
        if !end.contains(&self.after[at]) {
            return Err(format!("byte {at} is {}, which is none of {end:?}", self.after[at]));
        }
        for access in accesses.iter().filter(|access| !access.writes()) {
            let (Some(index), Some(result)) = (access.index(at), &access.result) else { continue };
            let bytes = allowed(Some(access));
            if !bytes.contains(&result[index]) {
                let (rank, id) = (access.rank, access.operation.id);
                let found = result[index];
                return Err(format!(
                    "operation {id} of rank {rank} found {found} in byte {at}, which is none of \
                     {bytes:?}"
                ));
            }
        }
        Ok(())
    }

    /// The accesses of an element, for a person to read.
    fn history(&self, cell: usize, accesses: &[&Access<'p>]) -> String {
        let bytes = self.bytes(cell);
        let (before, after) = (&self.before[bytes.clone()], &self.after[bytes.clone()]);
        let mut text = format!("  {:?} {before:?} became {after:?}\n", self.element());
        for access in accesses {
            let act = match self.act(access, bytes.clone(), &BTreeSet::new()) {
                Ok(Some(act)) => format!("{act:?}"),
                other => format!("{other:?}"),
            };
            let (rank, id, section) = (access.rank, access.operation.id, access.section);
            _ = write!(text, "  rank {rank}, operation {id}");
            if let Some((section, exclusive)) = section {
                let kind = if exclusive { "exclusive" } else { "shared" };
                _ = write!(text, ", {kind} section {section}");
            }
            _ = writeln!(text, ": {act}");
        }
        text
    }
}

/// What an atomic get without operands is combined with, which changes nothing.
const NO_OPERAND: [u8; 16] = [0; 16];
