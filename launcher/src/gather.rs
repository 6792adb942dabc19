//! The exchange of small data between all ranks, as a state machine.

use crate::wire::{FromLauncher, gather_fits};

/// An answer to one rank's part.
#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) ranks: Vec<u32>,
    pub(crate) message: FromLauncher,
}

/// Parts of the exchange that is going on.
#[derive(Debug)]
pub(crate) struct Gather {
    parts: Vec<Option<Vec<u8>>>,
    waiting: usize,
    /// Bytes of all parts so far.
    total: u64,
    /// First rank that can take part in no exchange any more.
    gone: Option<u32>,
}

impl Gather {
    pub(crate) fn new(ranks: u32) -> Gather {
        Gather { parts: vec![None; ranks as usize], waiting: 0, total: 0, gone: None }
    }

    /// `rank` hands in its part. A rank has at most one part in an exchange: its connection sees
    /// to that.
    pub(crate) fn handle_part(&mut self, rank: u32, mine: Vec<u8>) -> Option<Answer> {
        if let Some(gone) = self.gone {
            return Some(Answer {
                ranks: vec![rank],
                message: FromLauncher::Broken { rank: gone },
            });
        }
        let size = self.parts.len() as u64;
        let part = self.parts.get_mut(rank as usize)?;
        self.total = self.total.saturating_add(mine.len() as u64);
        // What cannot be answered is not kept, either.
        let kept = if gather_fits(size, self.total) { mine } else { Vec::new() };
        if part.replace(kept).is_none() {
            self.waiting += 1;
        }
        if self.waiting < self.parts.len() {
            return None;
        }
        let total = self.total;
        let ranks = self.take_waiting();
        let runs = self.take_runs();
        let message = if gather_fits(size, total) {
            FromLauncher::Gathered { runs }
        } else {
            FromLauncher::TooLarge { total }
        };
        Some(Answer { ranks, message })
    }

    /// Whether `rank` waits for others in the exchange that is going on.
    pub(crate) fn waits(&self, rank: u32) -> bool {
        self.parts.get(rank as usize).is_some_and(Option::is_some)
    }

    /// `rank` takes part in no further exchange: the ranks that wait would wait for ever.
    pub(crate) fn handle_gone(&mut self, rank: u32) -> Option<Answer> {
        let gone = *self.gone.get_or_insert(rank);
        let ranks = self.take_waiting();
        self.parts.fill(None);
        let message = FromLauncher::Broken { rank: gone };
        (!ranks.is_empty()).then_some(Answer { ranks, message })
    }

    /// The parts, those of ranks in a row that are the same as one: mostly all are, and every
    /// rank gets the answer.
    fn take_runs(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut runs: Vec<(u32, Vec<u8>)> = Vec::new();
        for part in &mut self.parts {
            let part = part.take().unwrap_or_default();
            match runs.last_mut() {
                Some((count, last)) if *last == part => *count += 1,
                _ => runs.push((1, part)),
            }
        }
        runs
    }

    fn take_waiting(&mut self) -> Vec<u32> {
        self.waiting = 0;
        self.total = 0;
        let parts = self.parts.iter().zip(0..);
        parts.filter_map(|(part, rank)| part.is_some().then_some(rank)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FRAME_MAX;

    #[test]
    fn the_last_part_completes_an_exchange_in_rank_order() {
        let mut gather = Gather::new(3);
        for round in 0..2u8 {
            assert_eq!(gather.handle_part(2, vec![2, round]), None);
            assert_eq!(gather.handle_part(0, vec![0, round]), None);
            let answer = gather.handle_part(1, vec![]).unwrap();
            assert_eq!(answer.ranks, [0, 1, 2]);
            let runs = vec![(1, vec![0, round]), (1, vec![]), (1, vec![2, round])];
            assert_eq!(answer.message, FromLauncher::Gathered { runs });
        }
    }

    #[test]
    fn what_ranks_in_a_row_say_alike_is_said_once() {
        let mut gather = Gather::new(6);
        let parts = [b"one", b"two", b"two", b"two", b"one", b"one"];
        let answers =
            (0..).zip(parts).filter_map(|(rank, part)| gather.handle_part(rank, part.to_vec()));
        let answer = answers.last().unwrap();
        let runs = [(1, "one"), (3, "two"), (2, "one")].map(|(n, part)| (n, part.into())).to_vec();
        assert_eq!(answer.message, FromLauncher::Gathered { runs });
    }

    #[test]
    fn a_rank_that_goes_breaks_this_exchange_and_every_later_one() {
        let mut gather = Gather::new(3);
        assert_eq!(gather.handle_part(2, vec![1]), None);
        let answer = gather.handle_gone(1).unwrap();
        assert_eq!((answer.ranks, answer.message), (vec![2], FromLauncher::Broken { rank: 1 }));
        assert_eq!(gather.handle_gone(0), None);
        let answer = gather.handle_part(2, vec![]).unwrap();
        assert_eq!(answer.message, FromLauncher::Broken { rank: 1 });
    }

    #[test]
    fn parts_too_large_for_a_frame_are_an_answer_too() {
        let mut gather = Gather::new(2);
        assert_eq!(gather.handle_part(0, vec![0; FRAME_MAX / 2]), None);
        let answer = gather.handle_part(1, vec![0; FRAME_MAX / 2]).unwrap();
        assert_eq!(answer.message, FromLauncher::TooLarge { total: FRAME_MAX as u64 });
    }

    #[test]
    fn a_rank_out_of_range_is_ignored() {
        assert_eq!(Gather::new(1).handle_part(7, vec![]), None);
    }
}
