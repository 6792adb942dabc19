//! Whether a history has an explanation: an order of all accesses, each rank's in its own order,
//! in which each finds what it found (after Wing and Gong).
//!
//! Locks take part: while a rank is in the middle of an exclusive section, no other rank's section
//! goes on.
use super::values::Type;
use rma_core::Op;
use std::collections::HashSet;

/// Steps after which the search gives up.
const BUDGET: usize = 50_000;

/// An access.
#[derive(Debug, Clone)]
pub struct Event<'a> {
    /// What it did, and to the element that begins where.
    pub acts: Vec<(usize, Act<'a>)>,
    /// The locked section in which it was, of its rank, and whether that was exclusive.
    pub section: Option<(usize, bool)>,
    /// The lanes that come to their ends before.
    pub after: Vec<usize>,
}

/// What an access did to an element. Positions are in that.
#[derive(Debug, Clone)]
pub enum Act<'a> {
    /// Wrote these bytes.
    Write(Vec<(usize, u8)>),
    /// Found these bytes.
    Read(Vec<(usize, u8)>),
    /// Combined, and found that before, if it looked.
    Combine(Op, &'a [u8], Option<&'a [u8]>),
    /// Compared, swapped, and found that before.
    Swap(&'a [u8], &'a [u8], &'a [u8]),
}

/// Whether there is such an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There is.
    Explained,
    /// There is none: a rank saw what none could.
    Impossible,
    /// The search was given up, or met a NaN.
    Unknown,
}

/// What follows from an event.
enum Outcome {
    /// It found something else.
    Contradicted,
    Unknown,
    State(Vec<u8>),
}

impl Event<'_> {
    fn apply(&self, element: Type, state: &[u8]) -> Outcome {
        let mut next = state.to_vec();
        for (first, act) in &self.acts {
            let end = (first + element.width()).min(next.len());
            match act.apply(element, &next[*first..end]) {
                Outcome::State(part) => next[*first..end].copy_from_slice(&part),
                other => return other,
            }
        }
        Outcome::State(next)
    }
}

impl Act<'_> {
    fn apply(&self, element: Type, state: &[u8]) -> Outcome {
        let mut next = state.to_vec();
        match self {
            Self::Write(bytes) => bytes.iter().for_each(|(at, byte)| next[*at] = *byte),
            Self::Read(bytes) => {
                if bytes.iter().any(|(at, byte)| state[*at] != *byte) {
                    return Outcome::Contradicted;
                }
            }
            Self::Combine(op, operand, seen) => {
                if seen.is_some_and(|seen| seen != state) {
                    return Outcome::Contradicted;
                }
                match element.combine(*op, state, operand) {
                    Some(combined) => next = combined,
                    None => return Outcome::Unknown,
                }
            }
            Self::Swap(compare, swap, seen) => {
                if *seen != state {
                    return Outcome::Contradicted;
                }
                if *compare == state {
                    next = swap.to_vec();
                }
            }
        }
        Outcome::State(next)
    }
}

/// Some elements of a part, and their history.
#[derive(Debug)]
pub struct Location<'a> {
    /// Their type.
    pub element: Type,
    /// By rank, in program order; or in other lanes whose events have an order.
    pub ranks: Vec<Vec<Event<'a>>>,
    /// What it held before.
    pub initial: Vec<u8>,
    /// What it held after; `None` where that may be anything.
    pub last: Vec<Option<u8>>,
}

impl Location<'_> {
    /// Searches for an order.
    pub fn explain(&self) -> Verdict {
        let mut search = Search { location: self, seen: HashSet::new(), budget: BUDGET };
        search.from(&mut vec![0; self.ranks.len()], &self.initial)
    }

    /// The section in the middle of which a rank is.
    fn inside(&self, rank: usize, done: usize) -> Option<(usize, bool)> {
        let events = &self.ranks[rank];
        let (before, next) = (events.get(done.checked_sub(1)?)?.section, events.get(done)?.section);
        before.filter(|section| next == Some(*section))
    }

    fn is_held_up(&self, rank: usize, done: &[u8]) -> bool {
        let Some((_, exclusive)) = self.ranks[rank][usize::from(done[rank])].section else {
            return false;
        };
        (0..done.len()).any(|other| {
            let inside = self.inside(other, done[other].into());
            other != rank && inside.is_some_and(|(_, other)| other || exclusive)
        })
    }
}

struct Search<'l, 'a> {
    location: &'l Location<'a>,
    /// How far each rank was, and what the location held: from there it was tried.
    seen: HashSet<(Vec<u8>, Vec<u8>)>,
    budget: usize,
}

impl Search<'_, '_> {
    fn from(&mut self, done: &mut Vec<u8>, state: &[u8]) -> Verdict {
        let location = self.location;
        let mut all_done = true;
        for rank in 0..done.len() {
            let Some(event) = location.ranks[rank].get(usize::from(done[rank])) else { continue };
            all_done = false;
            let late = |lane: &usize| usize::from(done[*lane]) < location.ranks[*lane].len();
            if event.after.iter().any(late) || location.is_held_up(rank, done) {
                continue;
            }
            let next = match event.apply(location.element, state) {
                Outcome::Contradicted => continue,
                Outcome::Unknown => return Verdict::Unknown,
                Outcome::State(next) => next,
            };
            done[rank] += 1;
            let verdict = self.visit(done, &next);
            done[rank] -= 1;
            if verdict != Verdict::Impossible {
                return verdict;
            }
        }
        let ends =
            state.iter().zip(&location.last).all(|(is, was)| was.is_none_or(|was| was == *is));
        if all_done && ends { Verdict::Explained } else { Verdict::Impossible }
    }

    fn visit(&mut self, done: &mut Vec<u8>, state: &[u8]) -> Verdict {
        if self.budget == 0 {
            return Verdict::Unknown;
        }
        self.budget -= 1;
        if !self.seen.insert((done.clone(), state.to_vec())) {
            return Verdict::Impossible;
        }
        self.from(done, state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(operand: &[u8], seen: Option<u8>) -> Event<'_> {
        const BYTES: [[u8; 1]; 256] = {
            let mut bytes = [[0]; 256];
            let mut i = 0;
            while i < 256 {
                bytes[i] = [i as u8];
                i += 1;
            }
            bytes
        };
        let seen = seen.map(|seen| &BYTES[seen as usize][..]);
        Event {
            acts: vec![(0, Act::Combine(Op::Sum, operand, seen))],
            section: None,
            after: Vec::new(),
        }
    }

    fn verdict(ranks: Vec<Vec<Event<'_>>>, last: u8) -> Verdict {
        let (initial, last) = (vec![0], vec![Some(last)]);
        Location { element: Type::U8, ranks, initial, last }.explain()
    }

    #[test]
    fn tickets() {
        let one = &[1][..];
        let tickets =
            |a, b, c| vec![vec![sum(one, Some(a)), sum(one, Some(b))], vec![sum(one, Some(c))]];
        assert_eq!(verdict(tickets(0, 1, 2), 3), Verdict::Explained);
        assert_eq!(verdict(tickets(0, 2, 1), 3), Verdict::Explained);
        assert_eq!(verdict(tickets(1, 2, 0), 3), Verdict::Explained);
        assert_eq!(verdict(tickets(2, 1, 0), 3), Verdict::Impossible, "against program order");
        assert_eq!(verdict(tickets(0, 1, 1), 3), Verdict::Impossible, "a ticket given twice");
        assert_eq!(verdict(tickets(0, 1, 2), 2), Verdict::Impossible, "an update lost");
    }

    /// Operations that do not commute.
    #[test]
    fn mixed_operations() {
        let replace = || Event {
            acts: vec![(0, Act::Combine(Op::Replace, &[10], None))],
            section: None,
            after: Vec::new(),
        };
        let swap = |seen| {
            let seen: &'static [u8] = if seen == 10 { &[10] } else { &[13] };
            Event {
                acts: vec![(0, Act::Swap(&[10], &[20], seen))],
                section: None,
                after: Vec::new(),
            }
        };
        let history = |seen| vec![vec![replace(), swap(seen)], vec![sum(&[3], None)]];
        assert_eq!(verdict(history(10), 23), Verdict::Explained, "sum at the end");
        assert_eq!(verdict(history(10), 20), Verdict::Explained, "sum at the beginning");
        assert_eq!(verdict(history(13), 13), Verdict::Explained, "sum in between");
        assert_eq!(verdict(history(13), 20), Verdict::Impossible, "the swap failed");
        assert_eq!(verdict(history(10), 13), Verdict::Impossible, "the swap did not");
    }

    /// A put and a get in an exclusive section are not interrupted.
    #[test]
    fn sections_exclude_each_other() {
        let section = |id: usize, exclusive: bool, put: u8, got: u8| {
            let within = |act| Event {
                acts: vec![(0, act)],
                section: Some((id, exclusive)),
                after: Vec::new(),
            };
            vec![within(Act::Write(vec![(0, put)])), within(Act::Read(vec![(0, got)]))]
        };
        let both = |a, b, exclusive| vec![section(0, exclusive, 1, a), section(0, exclusive, 2, b)];
        assert_eq!(verdict(both(1, 2, true), 2), Verdict::Explained);
        assert_eq!(verdict(both(1, 2, true), 1), Verdict::Explained);
        assert_eq!(verdict(both(2, 2, true), 2), Verdict::Impossible);
        assert_eq!(verdict(both(2, 2, false), 2), Verdict::Explained, "shared locks let in");
    }

    /// Two elements written in one exclusive section belong together.
    #[test]
    fn sections_are_seen_whole() {
        let put = |at: usize, byte: u8| (at, Act::Write(vec![(0, byte)]));
        let section = |byte: u8| Event {
            acts: vec![put(0, byte), put(1, byte)],
            section: Some((0, true)),
            after: Vec::new(),
        };
        let of = |last: [u8; 2]| Location {
            element: Type::U8,
            ranks: vec![vec![section(1)], vec![section(2)]],
            initial: vec![0, 0],
            last: last.map(Some).to_vec(),
        };
        assert_eq!(of([1, 1]).explain(), Verdict::Explained);
        assert_eq!(of([2, 2]).explain(), Verdict::Explained);
        assert_eq!(of([1, 2]).explain(), Verdict::Impossible);
    }

    /// A torn value is one that no order gives.
    #[test]
    fn torn_values() {
        let replace = |operand: &'static [u8]| Event {
            acts: vec![(0, Act::Combine(Op::Replace, operand, None))],
            section: None,
            after: Vec::new(),
        };
        let of = |last: [u8; 2]| Location {
            element: Type::U16,
            ranks: vec![vec![replace(&[1, 1])], vec![replace(&[2, 2])]],
            initial: vec![0, 0],
            last: last.map(Some).to_vec(),
        };
        assert_eq!(of([1, 1]).explain(), Verdict::Explained);
        assert_eq!(of([2, 2]).explain(), Verdict::Explained);
        assert_eq!(of([1, 2]).explain(), Verdict::Impossible);
        assert_eq!(of([0, 0]).explain(), Verdict::Impossible);
    }

    /// Where order is not asked for, a later operation may come first, unless it is known to be
    /// later.
    #[test]
    fn lanes_overtake() {
        let event = |operand: &'static [u8], seen, after: &[usize]| Event {
            after: after.to_vec(),
            ..sum(operand, seen)
        };
        let of = |after: &[usize]| {
            verdict(vec![vec![event(&[1], Some(5), &[])], vec![event(&[5], Some(0), after)]], 6)
        };
        assert_eq!(of(&[]), Verdict::Explained);
        assert_eq!(of(&[0]), Verdict::Impossible);
    }
}
