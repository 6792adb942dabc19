//! Hosts whose ranks speak PMI-1: they meet, or one of them is gone.

use super::super::driver::Input;
use super::super::machine::Event;
use super::super::report::How;
use super::Hosts;
use super::talk::Order;
use crate::pmi::server::Pairs;

impl Hosts {
    /// All ranks of a host have met, and have put that.
    pub(super) fn meet(&mut self, host: usize, pairs: Pairs) -> Vec<Input> {
        match self.meeting.handle_met(host, pairs) {
            Ok(None) => Vec::new(),
            Ok(Some(pairs)) => {
                self.order(|| Order::Met { pairs: pairs.clone() });
                Vec::new()
            }
            // What all its ranks have put is said of the first.
            Err(fault) => {
                let rank = self.links[host].part.first;
                vec![Input::Event(Event::Broke { rank, how: How::Pmi(fault) })]
            }
        }
    }

    /// That rank comes to no barrier of PMI-1 any more.
    pub(in super::super) fn broken(&self, rank: u32) {
        self.order(|| Order::Broken { rank });
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::Said;
    use super::super::talk::Word;
    use super::super::tests::two;
    use super::*;
    use crate::pmi::server::{JOB_BUDGET, PmiFault, Told};

    #[test]
    fn hosts_meet_once_the_ranks_of_each_have() {
        let (mut hosts, mut ordered, _inputs) = two([1, 1]);
        let pair = |name: &str| (name.to_owned(), String::new());
        let met = |pairs| Said::Word(Word::Pmi { told: Told::Met { pairs } });
        assert!(hosts.hear(1, met(vec![pair("b")])).is_empty());
        assert!(ordered[0].try_recv().is_err(), "one of them has not met");
        assert!(hosts.hear(0, met(vec![pair("a")])).is_empty());
        for ordered in &mut ordered {
            let pairs = vec![pair("b"), pair("a")];
            assert_eq!(ordered.try_recv().unwrap(), Order::Met { pairs });
        }
        let too_much = vec![("a".to_owned(), "x".repeat(JOB_BUDGET))];
        let broke = hosts.hear(1, met(too_much));
        let is_of_first = |input: &Input| {
            let Input::Event(Event::Broke { rank: 1, how }) = input else { return false };
            *how == How::Pmi(PmiFault::TooMuchOfAll)
        };
        assert!(matches!(&broke[..], [input] if is_of_first(input)), "{broke:?}");
    }
}
