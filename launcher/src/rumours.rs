//! What ranks of a host are told of those of other hosts: which have left, and how. One rank of
//! each host, its herald, hears of all, and tells the others through the memory that they share; of
//! a failure every rank hears at once.

use std::ops::Range;

use crate::client::Fate;
use crate::wire::FromLauncher;

/// For which ranks, and what.
pub(crate) type Message = (Vec<u32>, FromLauncher);

#[derive(Debug)]
pub(crate) struct Rumours {
    hosts: Vec<Range<u32>>,
    fates: Vec<Option<Fate>>,
    /// Ranks that listen.
    listening: Vec<bool>,
    /// Of each host.
    heralds: Vec<Option<u32>>,
}

impl Rumours {
    /// No rank has joined.
    pub(crate) fn new(hosts: Vec<Range<u32>>) -> Rumours {
        let ranks = hosts.last().map_or(0, |last| last.end) as usize;
        let heralds = vec![None; hosts.len()];
        Rumours { hosts, fates: vec![None; ranks], listening: vec![false; ranks], heralds }
    }

    /// `rank` listens from now on.
    pub(crate) fn joined(&mut self, rank: u32) -> Vec<Message> {
        self.listens(rank, true);
        self.choose_heralds()
    }

    /// `rank` listens no more. If it never said how it left, it failed.
    pub(crate) fn disconnected(&mut self, rank: u32) -> Vec<Message> {
        self.listens(rank, false);
        let told = self.fates.get(rank as usize).copied().flatten();
        match told {
            None => self.gone(rank, Fate::Failed),
            Some(_) => self.choose_heralds(),
        }
    }

    /// `rank` is no part of the job any more. The first word of it stands, but one that left in
    /// order may find out later that it holds locks.
    pub(crate) fn gone(&mut self, rank: u32, fate: Fate) -> Vec<Message> {
        let Some(known) = self.fates.get_mut(rank as usize) else { return Vec::new() };
        match (*known, fate) {
            (None, _) | (Some(Fate::Departed), Fate::Holding) => *known = Some(fate),
            _ => return Vec::new(),
        }
        self.listens(rank, false);
        let mut messages = Vec::new();
        for (host, ranks) in self.hosts.iter().enumerate() {
            if ranks.contains(&rank) {
                continue;
            }
            let hear: Vec<u32> = match fate {
                Fate::Failed => ranks.clone().filter(|rank| self.is_listening(*rank)).collect(),
                Fate::Departed | Fate::Holding => self.heralds[host].into_iter().collect(),
            };
            if !hear.is_empty() {
                messages.push((hear, FromLauncher::Gone { first: rank, count: 1, fate }));
            }
        }
        messages.extend(self.choose_heralds());
        messages
    }

    fn listens(&mut self, rank: u32, whether: bool) {
        if let Some(listening) = self.listening.get_mut(rank as usize) {
            *listening = whether;
        }
    }

    fn is_listening(&self, rank: u32) -> bool {
        self.listening.get(rank as usize).copied().unwrap_or(false)
    }

    /// A new herald is told all, for the one before it may have passed on nothing.
    fn choose_heralds(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        for host in 0..self.hosts.len() {
            let ranks = self.hosts[host].clone();
            let herald = ranks.clone().find(|rank| self.is_listening(*rank));
            if herald == self.heralds[host] {
                continue;
            }
            self.heralds[host] = herald;
            let Some(herald) = herald else { continue };
            for (rank, fate) in (0..).zip(&self.fates) {
                if let Some(fate) = *fate
                    && !ranks.contains(&rank)
                {
                    let news = FromLauncher::Gone { first: rank, count: 1, fate };
                    messages.push((vec![herald], news));
                }
            }
        }
        messages
    }
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use super::*;

    fn gone(rank: u32, fate: Fate) -> FromLauncher {
        FromLauncher::Gone { first: rank, count: 1, fate }
    }

    fn joined() -> Rumours {
        let mut rumours = Rumours::new(vec![0..2, 2..4, 4..5]);
        for rank in 0..5 {
            assert_eq!(rumours.joined(rank), []);
        }
        rumours
    }

    #[test]
    fn a_departure_is_told_to_the_herald_of_each_other_host() {
        let mut rumours = joined();
        let told = rumours.gone(3, Fate::Departed);
        let news = || gone(3, Fate::Departed);
        assert_eq!(told, [(vec![0], news()), (vec![4], news())]);
        assert_eq!(rumours.disconnected(3), [], "it said how");
        assert_eq!(rumours.gone(3, Fate::Failed), [], "the first word stands");
        let told = rumours.gone(3, Fate::Holding);
        assert_eq!(told[0], (vec![0], gone(3, Fate::Holding)));
    }

    #[test]
    fn a_failure_is_told_to_all_of_other_hosts() {
        let mut rumours = joined();
        let told = rumours.disconnected(4);
        let news = || gone(4, Fate::Failed);
        assert_eq!(told, [(vec![0, 1], news()), (vec![2, 3], news())]);
    }

    #[test]
    fn a_new_herald_is_told_all() {
        let mut rumours = joined();
        rumours.gone(2, Fate::Departed);
        let told = rumours.gone(0, Fate::Departed);
        let expected = [
            (vec![3], gone(0, Fate::Departed)),
            (vec![4], gone(0, Fate::Departed)),
            (vec![1], gone(2, Fate::Departed)),
        ];
        assert_eq!(told, expected);
        assert_eq!(rumours.gone(1, Fate::Departed).len(), 2, "nobody is left to hear there");
    }
}
