//! Says which ranks are not there yet, when others wait for them and nothing has been heard for a
//! while. No process, no clock.

use std::time::Duration;

use super::summary::named;

/// Silence after which it is said for the first time; each further time after twice as long.
const SILENCE: Duration = Duration::from_secs(2);

/// Which ranks have come; times count from the start of the job.
#[derive(Debug)]
pub(super) struct Arrivals {
    ranks: u32,
    started: Vec<bool>,
    joined: Vec<bool>,
    /// A rank has ended: what is missing may never come, and the job's end says why.
    over: bool,
    /// When to say something.
    due: Duration,
    silence: Duration,
    said: bool,
}

impl Arrivals {
    pub(super) fn new(ranks: u32) -> Arrivals {
        Arrivals {
            ranks,
            started: vec![false; ranks as usize],
            joined: vec![false; ranks as usize],
            over: false,
            due: SILENCE,
            silence: SILENCE,
            said: false,
        }
    }

    /// A process was started.
    pub(super) fn handle_started(&mut self, rank: u32, now: Duration) {
        if let Some(started) = self.started.get_mut(rank as usize) {
            *started = true;
        }
        self.due = now + self.silence;
    }

    /// A rank joined; what to say, if the user was told that some are late.
    pub(super) fn handle_joined(&mut self, rank: u32, now: Duration) -> Option<String> {
        if let Some(joined) = self.joined.get_mut(rank as usize) {
            *joined = true;
        }
        self.due = now + self.silence;
        let all = || format!("all {} ranks are up, after {:.1} s", self.ranks, now.as_secs_f64());
        (self.said && missing(&self.joined).is_empty()).then(all)
    }

    /// A process ended, or is to end.
    pub(super) fn handle_end(&mut self) {
        self.over = true;
    }

    /// When to call [`handle_tick`](Self::handle_tick), if something may have to be said then.
    pub(super) fn deadline(&self) -> Option<Duration> {
        // Of programs that never join, nothing is known but that they were started.
        let joins = self.joined.contains(&true);
        let waits = self.started.contains(&false) || (joins && self.joined.contains(&false));
        (waits && !self.over).then_some(self.due)
    }

    /// Time went by; what to say. `unready` are hosts that all others wait for, if ranks are
    /// started by hosts, each of which does so by itself.
    pub(super) fn handle_tick(
        &mut self,
        now: Duration,
        unready: Option<&[&str]>,
    ) -> Option<String> {
        self.deadline().filter(|due| *due <= now)?;
        self.silence *= 2;
        self.due = now + self.silence;
        self.said = true;
        let ranks = self.ranks;
        let rest = missing(&self.started);
        if let Some(next) = rest.first() {
            let started = ranks as usize - rest.len();
            let waits = match unready {
                None => format!("rank {next} is next"),
                Some([]) => format!("waiting for {}", named(&rest)),
                Some([host]) => format!("waiting for host {host}"),
                Some(hosts) => format!("waiting for hosts {}", hosts.join(", ")),
            };
            return Some(format!("{started} of {ranks} ranks are started; {waits}"));
        }
        let rest = missing(&self.joined);
        let up = ranks as usize - rest.len();
        Some(format!("{up} of {ranks} ranks are up; waiting for {}", named(&rest)))
    }
}

/// Ranks that are not there.
fn missing(there: &[bool]) -> Vec<u32> {
    let ranks = there.iter().zip(0..);
    ranks.filter_map(|(there, rank)| (!there).then_some(rank)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn started(ranks: u32) -> Arrivals {
        let mut arrivals = Arrivals::new(ranks);
        (0..ranks).for_each(|rank| arrivals.handle_started(rank, seconds(0)));
        arrivals
    }

    #[test]
    fn ranks_that_others_wait_for_are_named_after_a_silence() {
        let mut arrivals = started(64);
        for rank in (0..64).filter(|rank| ![3, 17].contains(rank)) {
            assert_eq!(arrivals.handle_joined(rank, seconds(1)), None);
        }
        assert_eq!(arrivals.deadline(), Some(seconds(3)));
        assert_eq!(arrivals.handle_tick(seconds(2), None), None);
        let text = "62 of 64 ranks are up; waiting for ranks 3, 17";
        assert_eq!(arrivals.handle_tick(seconds(3), None).as_deref(), Some(text));
        assert_eq!(arrivals.deadline(), Some(seconds(7)), "less and less often");
        assert_eq!(arrivals.handle_joined(3, seconds(6)), None);
        let text = "63 of 64 ranks are up; waiting for rank 17";
        assert_eq!(arrivals.handle_tick(seconds(10), None).as_deref(), Some(text));
        let text = "all 64 ranks are up, after 11.0 s";
        assert_eq!(arrivals.handle_joined(17, seconds(11)).as_deref(), Some(text));
        assert_eq!(arrivals.deadline(), None);
    }

    #[test]
    fn programs_that_never_join_are_not_waited_for() {
        let mut arrivals = started(2);
        assert_eq!(arrivals.deadline(), None);
        assert_eq!(arrivals.handle_tick(seconds(9), None), None);
    }

    #[test]
    fn a_quick_start_says_nothing() {
        let mut arrivals = started(1);
        assert_eq!(arrivals.handle_joined(0, seconds(1)), None);
        assert_eq!(arrivals.deadline(), None);
    }

    #[test]
    fn processes_that_take_long_to_start_are_counted() {
        let mut arrivals = Arrivals::new(3);
        arrivals.handle_started(0, seconds(1));
        let text = "1 of 3 ranks are started; rank 1 is next";
        assert_eq!(arrivals.handle_tick(seconds(3), None).as_deref(), Some(text));
    }

    #[test]
    fn hosts_that_are_not_ready_are_named_and_then_ranks_in_any_order() {
        let mut arrivals = Arrivals::new(5);
        let text = "0 of 5 ranks are started; waiting for host b";
        assert_eq!(arrivals.handle_tick(seconds(2), Some(&["b"])).as_deref(), Some(text));
        let text = "0 of 5 ranks are started; waiting for hosts b, c";
        assert_eq!(arrivals.handle_tick(seconds(9), Some(&["b", "c"])).as_deref(), Some(text));
        [3, 1].into_iter().for_each(|rank| arrivals.handle_started(rank, seconds(10)));
        let text = "2 of 5 ranks are started; waiting for ranks 0, 2, 4";
        assert_eq!(arrivals.handle_tick(seconds(99), Some(&[])).as_deref(), Some(text));
    }

    #[test]
    fn where_a_rank_has_ended_nothing_is_waited_for() {
        let mut arrivals = started(2);
        assert_eq!(arrivals.handle_joined(0, seconds(1)), None);
        arrivals.handle_end();
        assert_eq!(arrivals.deadline(), None);
    }
}
