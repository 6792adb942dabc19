//! What hosts are told whose ranks speak PMI-1: they meet, or one of them is gone.

use super::Hosts;
use super::talk::Order;
use crate::pmi::server::Pairs;

impl Hosts {
    /// The first rank of a host.
    pub(in super::super) fn first_of(&self, host: usize) -> Option<u32> {
        self.links.get(host).map(|link| link.part.first)
    }

    /// Ranks of all hosts have met by PMI-1, and have put that.
    pub(in super::super) fn met(&self, pairs: &Pairs) {
        self.order(|| Order::Met { pairs: pairs.clone() });
    }

    /// That rank comes to no barrier of PMI-1 any more.
    pub(in super::super) fn broken(&self, rank: u32) {
        self.order(|| Order::Broken { rank });
    }
}
