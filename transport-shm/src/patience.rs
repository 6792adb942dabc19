//! How a thread passes the rounds of a wait: by spinning, by giving its CPU away, or not at all.
//! Without I/O.
//!
//! To spin is best as long as the rank that is waited for runs at the same time, on another CPU. On
//! a CPU that others want, too, it steals their time; to sleep soon is best there, because a
//! sleeper that is rung gets a CPU at once, also beside a process that never sleeps. What tells is
//! the time of a yield: one that comes back at once found no other. It is no way to wait: beside a
//! process that never sleeps it takes milliseconds. So there is one at the end of a spin that was
//! in vain, and after a slow one the next waits hardly spin: the longer, the more often in a row it
//! was slow.
//!
//! How long to spin depends on what a sleep costs. A CPU that has stopped, in a virtual machine,
//! takes up to 100 microseconds to run a thread again, which its peer waits for, too: if that then
//! sleeps as well, each keeps the other asleep. So spins become longer after sleeps that were
//! short, and shorter after long ones (as KVM polls before it stops a CPU), unless others want the
//! CPU.
//!
//! Where ranks outnumber CPUs, yields find each other; one that found a process that
//! never sleeps is so slow that the next waits sleep at once.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Rounds of a wait on a CPU of its own, at least and at most: 10 to 50 microseconds with the
/// caller's own work, and eight times as long.
const SPINS: [u32; 2] = [1_000, 8_000];
/// Of a sleep that was no longer, a spin of most rounds would have seen the end.
const SHORT_SLEEP: Duration = Duration::from_micros(150);
/// The first of them without a pause, which takes longer than the caller's own work: an answer
/// that comes at all soon, within a microsecond, is found twice as soon.
const LOOKS: u32 = 64;
/// The same on a CPU that others want, too.
const SHARED_SPINS: u32 = 32;
/// Yields of each wait where ranks outnumber CPUs, by those that share one: all wait for others
/// that yield, too. Where few do, one finds the same rank again while another works on another CPU
/// for as long as a piece of a payload takes; where many do, each is a turn of all of them.
const CROWDED_YIELDS: u32 = 32;
const CROWDED_YIELDS_LEAST: u32 = 2;
/// A yield that took longer let another thread run. One that did not takes about 0.3 microseconds,
/// and two switches of threads take longer than this.
const SLOW_YIELD: Duration = Duration::from_nanos(1_500);
/// One that took no longer than this may have been slow by itself, as the first call of the system
/// on a CPU that had stopped: another one right behind it tells.
const DOUBTFUL_YIELD: Duration = Duration::from_micros(20);
/// The same where ranks outnumber CPUs, for each that shares one: they may work a little before
/// they yield. For a few it is shorter than what the system gives to a process that never does; of
/// many, such a one is not told apart.
const CROWDED_SLOW_YIELD: Duration = Duration::from_micros(250);
/// So many waits after a slow yield, it is tried again; twice as many after each that is slow
/// again, up to the second number.
const REMEMBERED_WAITS: [u32; 2] = [32, 4096];
/// Where ranks outnumber CPUs, a quick yield takes one in so many of these waits back.
const CROWDED_FORGETS: u32 = 64;

/// What to do in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Nothing: look again at once.
    Look,
    Spin,
    Yield,
    Sleep,
}

/// Of one rank; all its threads learn together.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Ranks outnumber CPUs: no wait spins.
    crowded: bool,
    /// Of a wait, if so.
    yields: u32,
    /// What is a slow yield.
    slow: Duration,
    /// Rounds of a wait, if not.
    spins: AtomicU32,
    /// The last yield was slow, perhaps by itself.
    in_doubt: AtomicBool,
    /// Waits that are to begin before the CPU counts as not shared.
    shared_for: AtomicU32,
    /// What that will be after the next slow yield.
    shared_next: AtomicU32,
}

impl Patience {
    /// Where so many ranks share a CPU.
    pub(crate) fn new(sharing: u32) -> Self {
        let [first, _] = REMEMBERED_WAITS;
        let crowded = sharing > 1;
        let slow = if crowded { CROWDED_SLOW_YIELD * sharing } else { SLOW_YIELD };
        let yields = (CROWDED_YIELDS / sharing.max(1)).max(CROWDED_YIELDS_LEAST);
        let (shared_for, shared_next) = (AtomicU32::new(0), AtomicU32::new(first));
        let spins = AtomicU32::new(SPINS[0]);
        let in_doubt = AtomicBool::new(false);
        Self { crowded, yields, slow, spins, in_doubt, shared_for, shared_next }
    }

    /// What to do in round `round` of a wait.
    #[inline]
    pub(crate) fn pass(&self, round: u32) -> Pass {
        if self.shared_for.load(Relaxed) != 0 {
            return self.shared(round);
        }
        if self.crowded {
            return if round < self.yields { Pass::Yield } else { Pass::Sleep };
        }
        let spins = self.spins.load(Relaxed);
        match round {
            ..LOOKS => Pass::Look,
            _ if round < spins => Pass::Spin,
            _ if round == spins => Pass::Yield,
            _ if round == spins + 1 && self.in_doubt.load(Relaxed) => Pass::Yield,
            _ => Pass::Sleep,
        }
    }

    /// A sleep took so long.
    pub(crate) fn slept(&self, took: Duration) {
        if self.crowded || self.shared_for.load(Relaxed) != 0 {
            return;
        }
        let ([least, most], spins) = (SPINS, self.spins.load(Relaxed));
        let is_short = took <= SHORT_SLEEP;
        let next = if is_short { (2 * spins).min(most) } else { (spins / 2).max(least) };
        // Threads that learn at once differ by a step.
        self.spins.store(next, Relaxed);
    }

    /// Many threads may count down at once: a few waits more or less do not matter.
    #[cold]
    fn shared(&self, round: u32) -> Pass {
        if round == 0 {
            let left = self.shared_for.load(Relaxed);
            self.shared_for.store(left.saturating_sub(1), Relaxed);
        }
        if round < SHARED_SPINS && !self.crowded { Pass::Spin } else { Pass::Sleep }
    }

    /// A yield took so long.
    pub(crate) fn yielded(&self, took: Duration) {
        let [first, most] = REMEMBERED_WAITS;
        let waits = self.shared_next.load(Relaxed);
        let is_slow = took >= self.slow;
        let is_doubtful = is_slow && !self.crowded && took <= DOUBTFUL_YIELD;
        let was_in_doubt = self.in_doubt.swap(is_doubtful, Relaxed);
        if is_doubtful && !was_in_doubt {
            return;
        }
        let next = if is_slow {
            self.shared_for.store(waits, Relaxed);
            waits.saturating_mul(2).min(most)
        } else if self.crowded {
            // It found another rank, and the next one may find a process that never sleeps.
            (waits - waits.div_ceil(CROWDED_FORGETS)).max(first)
        } else {
            first
        };
        self.shared_next.store(next, Relaxed);
    }

    /// In words.
    pub(crate) fn explain(&self) -> String {
        let [first, most] = REMEMBERED_WAITS;
        if self.crowded {
            let (yields, slow) = (self.yields, self.slow.as_micros());
            return format!(
                "oversubscribed: {yields} yields, then futex sleep; no yield for {first} \
                 to {most} waits after one of {slow} us or more"
            );
        }
        let (slow, spins, [least, most]) = (self.slow.as_nanos(), self.spins.load(Relaxed), SPINS);
        let short = SHORT_SLEEP.as_micros();
        format!(
            "spins {spins} rounds ({least} to {most}: more after sleeps of {short} us at most), \
             yields once, then futex sleep; {SHARED_SPINS} rounds and no \
             yield for {first} to {most} waits after a yield of {slow} ns or more, in which \
             somebody else ran"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: u64 = 300;
    const SPIN: u64 = 20;
    const SWITCH: u64 = 1_000;
    const WAKE: u64 = 4_000;

    /// The rank that makes what is waited for.
    #[derive(Clone, Copy, PartialEq)]
    enum Peer {
        /// Works on another CPU.
        Beside,
        /// Works on this one, while this thread does not.
        Here,
        /// Works on another one, and a process that never sleeps on this one.
        BesideHog,
    }

    /// What a wait of so many nanoseconds of the peer's work costs; whether it slept.
    fn wait(patience: &Patience, work: u64, peer: Peer) -> (u64, bool) {
        let mut ns = 0;
        for round in 0.. {
            match patience.pass(round) {
                Pass::Look | Pass::Spin => ns += SPIN,
                Pass::Yield => {
                    let took = match peer {
                        Peer::Beside => QUICK,
                        Peer::Here => 2 * SWITCH + work,
                        Peer::BesideHog => 4_000_000,
                    };
                    patience.yielded(Duration::from_nanos(took));
                    ns += took;
                    if peer == Peer::Here {
                        return (ns, false);
                    }
                }
                Pass::Sleep if peer == Peer::Here => return (ns + work + WAKE, true),
                Pass::Sleep => {
                    let end = ns.max(work) + WAKE;
                    patience.slept(Duration::from_nanos(end - ns));
                    return (end, true);
                }
            }
            if peer != Peer::Here && ns >= work {
                return (ns, false);
            }
        }
        unreachable!("rounds do not end");
    }

    fn mean(patience: &Patience, waits: u64, work: u64, peer: Peer) -> u64 {
        (0..waits).map(|_| wait(patience, work, peer).0).sum::<u64>() / waits
    }

    #[test]
    fn an_answer_from_another_cpu_costs_spins_only() {
        let patience = Patience::new(1);
        for work in [600, 10_000, 20_000] {
            assert_eq!(wait(&patience, work, Peer::Beside), (work, false));
        }
        assert_eq!(wait(&patience, 1_000_000, Peer::Beside), (1_000_000 + WAKE, true));
        assert_eq!(wait(&patience, 20_000, Peer::Beside), (20_000, false), "the yield was quick");
    }

    /// The work of each of two is what the other waits for, and to wake up is slow.
    #[test]
    fn two_that_sleep_do_not_keep_each_other_asleep() {
        const SLOW_WAKE: u64 = 60_000;
        let both = [(); 2].map(|()| Patience::new(1));
        let mut slept = 0;
        let mut late = 1_000_000;
        for turn in 0..1_000 {
            let (_, sleeps) = wait(&both[turn % 2], 2_000 + late, Peer::Beside);
            late = if sleeps { SLOW_WAKE } else { 0 };
            slept += u32::from(sleeps);
        }
        assert!(slept < 10, "{slept}");
        // Who waits for long does not spin for long.
        let patience = &both[0];
        (0..3).for_each(|_| _ = wait(patience, 1_000_000, Peer::Beside));
        assert_eq!(patience.pass(SPINS[0]), Pass::Yield);
    }

    #[test]
    fn a_yield_that_is_slow_by_itself_is_repeated() {
        let patience = Patience::new(1);
        let ends = |patience: &Patience| [0, 1].map(|more| patience.pass(SPINS[0] + more));
        assert_eq!(ends(&patience), [Pass::Yield, Pass::Sleep]);
        patience.yielded(DOUBTFUL_YIELD);
        assert_eq!(ends(&patience), [Pass::Yield, Pass::Yield]);
        patience.yielded(Duration::from_nanos(QUICK));
        assert_eq!(ends(&patience), [Pass::Yield, Pass::Sleep]);
        (0..2).for_each(|_| patience.yielded(SLOW_YIELD));
        assert_eq!(ends(&patience), [Pass::Sleep, Pass::Sleep]);
    }

    #[test]
    fn short_sleeps_where_others_want_the_cpu_make_no_spin_longer() {
        for patience in [Patience::new(1), Patience::new(2)] {
            patience.yielded(Duration::from_millis(4));
            (0..10).for_each(|_| patience.slept(SHORT_SLEEP));
            assert_eq!(patience.spins.load(Relaxed), SPINS[0]);
        }
    }

    #[test]
    fn a_rank_that_shares_its_cpu_with_the_one_it_waits_for_soon_stops_to_steal_it() {
        let patience = Patience::new(1);
        let yielding = u64::from(SPINS[0]) * SPIN + 2 * SWITCH + 600;
        for _ in 0..2 {
            assert_eq!(wait(&patience, 600, Peer::Here), (yielding, false));
        }
        let sleeping = u64::from(SHARED_SPINS) * SPIN + 600 + WAKE;
        assert_eq!(wait(&patience, 600, Peer::Here), (sleeping, true));
        let mean = mean(&patience, 20_000, 600, Peer::Here);
        assert!(mean < sleeping * 11 / 10, "{mean} ns, asleep at once it were {sleeping}");
    }

    #[test]
    fn a_rank_that_shares_its_cpu_with_a_busy_program_seldom_yields_to_it() {
        for sharing in [1, 2, 8] {
            let patience = Patience::new(sharing);
            let mean = mean(&patience, 50_000, 30_000, Peer::BesideHog);
            assert!(mean < 30_000 + WAKE + 2_000, "{mean} ns, {sharing} ranks");
        }
    }

    #[test]
    fn where_ranks_outnumber_cpus_some_quick_yields_prove_nothing() {
        let patience = Patience::new(2);
        let (mut yields, mut slow) = (0, 0);
        for _ in 0..50_000 {
            if patience.pass(0) == Pass::Yield {
                yields += 1;
                let is_slow = yields % 3 == 0;
                slow += u32::from(is_slow);
                patience.yielded(Duration::from_nanos(if is_slow { 4_000_000 } else { QUICK }));
            }
        }
        assert!(slow < 50, "{slow}");
    }

    #[test]
    fn it_is_forgotten_when_the_cpu_is_no_longer_shared() {
        let patience = Patience::new(1);
        let yielded = 2 * DOUBTFUL_YIELD;
        let slow = |times: u32| (0..times).for_each(|_| patience.yielded(yielded));
        let waits = || (0..10_000).filter(|_| wait(&patience, 10_000, Peer::Beside).1).count();
        slow(1);
        assert_eq!(waits(), 31, "not the last, which begins anew");
        slow(1);
        assert_eq!(waits(), 63);
        slow(20);
        assert_eq!(waits(), 4095);
        patience.yielded(Duration::from_nanos(QUICK));
        slow(1);
        assert_eq!(waits(), 31);
    }

    #[test]
    fn where_ranks_outnumber_cpus_no_rank_spins() {
        let patience = Patience::new(2);
        for (sharing, yields) in [(2, 16), (4, 8), (16, 2), (1000, 2)] {
            let patience = Patience::new(sharing);
            assert!((0..yields).all(|round| patience.pass(round) == Pass::Yield));
            assert_eq!(patience.pass(yields), Pass::Sleep);
        }
        // Yields to each other stay, as long as each works up to some hundred microseconds.
        for work in [600, 400_000] {
            assert!(
                (0..10_000)
                    .all(|_| wait(&patience, work, Peer::Here) == (2 * SWITCH + work, false))
            );
        }
        assert!(patience.explain().contains("oversubscribed"));
        let sleeps = || (0..).take_while(|_| patience.pass(0) == Pass::Sleep).count();
        (0..20).for_each(|_| patience.yielded(2 * CROWDED_SLOW_YIELD));
        assert_eq!(sleeps(), 4096);
        (0..1_000).for_each(|_| patience.yielded(Duration::from_nanos(QUICK)));
        patience.yielded(2 * CROWDED_SLOW_YIELD);
        assert_eq!(sleeps(), 32, "forgotten by and by");
        let many = Patience::new(32);
        assert!((0..10_000).all(|_| wait(&many, 6_000_000, Peer::Here) == (6_002_000, false)));
    }
}
