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
//! sleeps as well, each keeps the other asleep. So behind its yield a wait spins on, the longer the
//! more sleeps were short, and not after long ones (as KVM polls before it stops a CPU), nor where
//! others want the CPU.
//!
//! Where ranks outnumber CPUs, yields find each other; one that found a process that
//! never sleeps is so slow that the next waits sleep at once.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Rounds of a wait on a CPU of its own, up to its yield: 10 to 50 microseconds with the caller's
/// own work.
const SPINS: u32 = 1_000;
/// So long a wait spins on behind its yield, first, twice as long each time, and at most.
const SPINS_ON: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(160)];
/// So often in these rounds it asks how long it has spun.
const ROUNDS_TIMED: u32 = 32;
/// With so many rounds it stops even if other threads of the rank have begun anew meanwhile.
const SPINS_MOST: u32 = 16_000;
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
/// on a CPU that had stopped: another one soon tells.
const DOUBTFUL_YIELD: Duration = Duration::from_micros(20);
const SOON: Duration = Duration::from_millis(1);
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
    /// How long a wait spins on behind its yield; in nanoseconds, as all times here.
    spins_on: AtomicU64,
    /// When the last one began to.
    spins_from: AtomicU64,
    /// When a yield was slow, perhaps by itself; 0 if it was not.
    doubt_from: AtomicU64,
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
        let [spins_on, spins_from, doubt_from] = [(); 3].map(|()| AtomicU64::new(0));
        Self { crowded, yields, slow, spins_on, spins_from, doubt_from, shared_for, shared_next }
    }

    /// What to do in round `round` of a wait, at a time that is seldom asked for.
    #[inline]
    pub(crate) fn pass(&self, round: u32, now: impl FnOnce() -> Duration) -> Pass {
        if self.shared_for.load(Relaxed) != 0 {
            return self.shared(round);
        }
        if self.crowded {
            return if round < self.yields { Pass::Yield } else { Pass::Sleep };
        }
        match round {
            ..LOOKS => Pass::Look,
            LOOKS..SPINS => Pass::Spin,
            SPINS => Pass::Yield,
            _ => self.behind_yield(round - SPINS, now),
        }
    }

    #[cold]
    fn behind_yield(&self, round: u32, now: impl FnOnce() -> Duration) -> Pass {
        if round == 1 && self.doubt_from.load(Relaxed) != 0 {
            return Pass::Yield;
        }
        let spins_on = self.spins_on.load(Relaxed);
        if spins_on == 0 || round > SPINS_MOST {
            return Pass::Sleep;
        }
        if round <= 2 {
            self.spins_from.store(nanos(now()), Relaxed);
        } else if round.is_multiple_of(ROUNDS_TIMED) {
            let spun = nanos(now()).saturating_sub(self.spins_from.load(Relaxed));
            if spun >= spins_on {
                return Pass::Sleep;
            }
        }
        Pass::Spin
    }

    /// A wait slept so long. Nothing is learned of sleeps that `is_rung` did not end: a wait that
    /// looks again by itself would not have looked sooner.
    pub(crate) fn slept(&self, from: Duration, to: Duration, is_rung: bool) {
        if !is_rung || self.crowded || self.shared_for.load(Relaxed) != 0 {
            return;
        }
        let [first, most] = SPINS_ON.map(nanos);
        let spins_on = self.spins_on.load(Relaxed);
        // With what it has spun behind its yield.
        let from = if spins_on == 0 { nanos(from) } else { self.spins_from.load(Relaxed) };
        let next = match nanos(to).saturating_sub(from) {
            missed if missed <= most => (2 * spins_on).clamp(first, most),
            _ if spins_on > first => spins_on / 2,
            _ => 0,
        };
        // Threads that learn at once differ by a step.
        self.spins_on.store(next, Relaxed);
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
    pub(crate) fn yielded(&self, from: Duration, to: Duration) {
        let [first, most] = REMEMBERED_WAITS;
        let waits = self.shared_next.load(Relaxed);
        let took = to.saturating_sub(from);
        let is_slow = took >= self.slow;
        let is_doubtful = is_slow && !self.crowded && took <= DOUBTFUL_YIELD;
        let since = self.doubt_from.load(Relaxed);
        let is_soon = since != 0 && nanos(from).saturating_sub(since) <= nanos(SOON);
        if is_doubtful && !is_soon {
            return self.doubt_from.store(nanos(to).max(1), Relaxed);
        }
        self.doubt_from.store(0, Relaxed);
        if is_slow {
            self.spins_on.store(0, Relaxed);
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
        let (slow, spins_on) = (self.slow.as_nanos(), self.spins_on.load(Relaxed) / 1_000);
        let longest = SPINS_ON[1].as_micros();
        format!(
            "spins {SPINS} rounds, yields once, spins on for {spins_on} us (up to {longest}, as \
             long as sleeps are short), then futex sleep; {SHARED_SPINS} rounds and no yield for \
             {first} to {most} waits after a yield of {slow} ns or more, in which somebody else ran"
        )
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::ops::Deref;

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

    /// A rank, and its clock in nanoseconds.
    struct Waiting {
        patience: Patience,
        clock: Cell<u64>,
    }

    impl Deref for Waiting {
        type Target = Patience;

        fn deref(&self) -> &Patience {
            &self.patience
        }
    }

    impl Waiting {
        fn new(sharing: u32) -> Self {
            Self { patience: Patience::new(sharing), clock: Cell::new(1_000_000) }
        }

        fn now(&self) -> Duration {
            Duration::from_nanos(self.clock.get())
        }

        fn passes(&self, round: u32) -> Pass {
            self.pass(round, || self.now())
        }

        /// How long `ns` took.
        fn take(&self, ns: u64) -> (Duration, Duration) {
            let from = self.now();
            self.clock.set(self.clock.get() + ns);
            (from, self.now())
        }

        fn yields(&self, took: Duration) {
            let (from, to) = self.take(took.as_nanos() as u64);
            self.yielded(from, to);
        }

        fn sleeps(&self, took: Duration, is_rung: bool) {
            let (from, to) = self.take(took.as_nanos() as u64);
            self.slept(from, to, is_rung);
        }

        /// What a wait of so many nanoseconds of the peer's work costs; whether it slept.
        fn wait(&self, work: u64, peer: Peer) -> (u64, bool) {
            let begin = self.clock.get();
            let spent = || self.clock.get() - begin;
            for round in 0.. {
                match self.passes(round) {
                    Pass::Look | Pass::Spin => _ = self.take(SPIN),
                    Pass::Yield => {
                        self.yields(Duration::from_nanos(match peer {
                            Peer::Beside => QUICK,
                            Peer::Here => 2 * SWITCH + work,
                            Peer::BesideHog => 4_000_000,
                        }));
                        if peer == Peer::Here {
                            return (spent(), false);
                        }
                    }
                    Pass::Sleep => {
                        let left = if peer == Peer::Here { work } else { work - spent() };
                        self.sleeps(Duration::from_nanos(left + WAKE), true);
                        return (spent(), true);
                    }
                }
                if peer != Peer::Here && spent() >= work {
                    return (spent(), false);
                }
            }
            unreachable!("rounds do not end");
        }

        fn mean(&self, waits: u64, work: u64, peer: Peer) -> u64 {
            (0..waits).map(|_| self.wait(work, peer).0).sum::<u64>() / waits
        }
    }

    #[test]
    fn an_answer_from_another_cpu_costs_spins_only() {
        let rank = Waiting::new(1);
        for work in [600, 10_000, 20_000] {
            assert_eq!(rank.wait(work, Peer::Beside), (work, false));
        }
        assert_eq!(rank.wait(1_000_000, Peer::Beside), (1_000_000 + WAKE, true));
        assert_eq!(rank.wait(20_000, Peer::Beside), (20_000, false), "the yield was quick");
    }

    /// The work of each of two is what the other waits for, and to wake up is slow.
    #[test]
    fn two_that_sleep_do_not_keep_each_other_asleep() {
        const SLOW_WAKE: u64 = 80_000;
        let both = [(); 2].map(|()| Waiting::new(1));
        let (mut slept, mut late) = (0, 1_000_000);
        for turn in 0..1_000 {
            let (_, sleeps) = both[turn % 2].wait(2_000 + late, Peer::Beside);
            late = if sleeps { SLOW_WAKE } else { 0 };
            slept += u32::from(sleeps);
        }
        assert!(slept < 10, "{slept}");
    }

    /// As long as waits end soon behind the yield, none sleeps; of those that take longer, none
    /// spins on.
    #[test]
    fn a_rank_that_waits_for_long_does_not_spin_on() {
        let rank = Waiting::new(1);
        let spins_on = || (0..3).map(|_| rank.wait(100_000, Peer::Beside).1).last();
        (0..10).for_each(|_| _ = rank.wait(100_000, Peer::Beside));
        assert_eq!(spins_on(), Some(false));
        for work in [1_000_000, 300_000] {
            (0..10).for_each(|_| _ = rank.wait(work, Peer::Beside));
            assert_eq!(rank.passes(SPINS + 1), Pass::Sleep, "{work}");
        }
        (0..10).for_each(|_| rank.sleeps(SPINS_ON[0], false));
        assert_eq!(rank.passes(SPINS + 1), Pass::Sleep, "time-outs teach nothing");
    }

    /// Where a round takes long, as over a network, it is time that ends the spin.
    #[test]
    fn spins_end_by_time() {
        let rank = Waiting::new(1);
        (0..10).for_each(|_| rank.sleeps(SPINS_ON[0], true));
        let from = rank.now();
        let rounds = (SPINS + 1..).take_while(|round| {
            rank.take(1_000);
            rank.passes(*round) == Pass::Spin
        });
        assert!(rounds.count() < 200);
        assert!(rank.now() - from < 2 * SPINS_ON[1]);
    }

    #[test]
    fn a_rank_that_shares_its_cpu_with_the_one_it_waits_for_soon_stops_to_steal_it() {
        for learned in [0, 10] {
            let rank = Waiting::new(1);
            (0..learned).for_each(|_| rank.sleeps(SPINS_ON[0], true));
            let yielding = u64::from(SPINS) * SPIN + 2 * SWITCH + 600;
            for _ in 0..2 {
                assert_eq!(rank.wait(600, Peer::Here), (yielding, false));
            }
            let sleeping = u64::from(SHARED_SPINS) * SPIN + 600 + WAKE;
            assert_eq!(rank.wait(600, Peer::Here), (sleeping, true));
            let mean = rank.mean(20_000, 600, Peer::Here);
            assert!(mean < sleeping * 11 / 10, "{mean} ns, asleep at once it were {sleeping}");
            assert_eq!(rank.spins_on.load(Relaxed), 0);
        }
    }

    #[test]
    fn a_rank_that_shares_its_cpu_with_a_busy_program_seldom_yields_to_it() {
        for sharing in [1, 2, 8] {
            let rank = Waiting::new(sharing);
            let mean = rank.mean(50_000, 30_000, Peer::BesideHog);
            assert!(mean < 30_000 + WAKE + 2_000, "{mean} ns, {sharing} ranks");
        }
    }

    /// Unless it was long ago that another one was.
    #[test]
    fn a_yield_that_is_slow_by_itself_is_repeated() {
        let rank = Waiting::new(1);
        let ends = || [0, 1].map(|more| rank.passes(SPINS + more));
        assert_eq!(ends(), [Pass::Yield, Pass::Sleep]);
        rank.yields(DOUBTFUL_YIELD);
        assert_eq!(ends(), [Pass::Yield, Pass::Yield]);
        rank.yields(Duration::from_nanos(QUICK));
        assert_eq!(ends(), [Pass::Yield, Pass::Sleep]);
        rank.yields(SLOW_YIELD);
        rank.take(2_000_000);
        rank.yields(SLOW_YIELD);
        assert_eq!(ends(), [Pass::Yield, Pass::Yield]);
        rank.yields(SLOW_YIELD);
        assert_eq!(ends(), [Pass::Sleep, Pass::Sleep]);
    }

    #[test]
    fn where_ranks_outnumber_cpus_some_quick_yields_prove_nothing() {
        let rank = Waiting::new(2);
        let (mut yields, mut slow) = (0, 0);
        for _ in 0..50_000 {
            if rank.passes(0) == Pass::Yield {
                yields += 1;
                let is_slow = yields % 3 == 0;
                slow += u32::from(is_slow);
                rank.yields(Duration::from_nanos(if is_slow { 4_000_000 } else { QUICK }));
            }
        }
        assert!(slow < 50, "{slow}");
    }

    #[test]
    fn it_is_forgotten_when_the_cpu_is_no_longer_shared() {
        let rank = Waiting::new(1);
        let slow = |times: u32| (0..times).for_each(|_| rank.yields(2 * DOUBTFUL_YIELD));
        let waits = || (0..10_000).filter(|_| rank.wait(10_000, Peer::Beside).1).count();
        slow(1);
        assert_eq!(waits(), 31, "not the last, which begins anew");
        slow(1);
        assert_eq!(waits(), 63);
        slow(20);
        assert_eq!(waits(), 4095);
        rank.yields(Duration::from_nanos(QUICK));
        slow(1);
        assert_eq!(waits(), 31);
    }

    #[test]
    fn where_ranks_outnumber_cpus_no_rank_spins() {
        for (sharing, yields) in [(2, 16), (4, 8), (16, 2), (1000, 2)] {
            let rank = Waiting::new(sharing);
            (0..10).for_each(|_| rank.sleeps(SPINS_ON[0], true));
            assert!((0..yields).all(|round| rank.passes(round) == Pass::Yield));
            assert_eq!(rank.passes(yields), Pass::Sleep);
        }
        let rank = Waiting::new(2);
        // Yields to each other stay, as long as each works up to some hundred microseconds.
        for work in [600, 400_000] {
            let yielding = (2 * SWITCH + work, false);
            assert!((0..10_000).all(|_| rank.wait(work, Peer::Here) == yielding));
        }
        assert!(rank.explain().contains("oversubscribed"));
        let sleeps = || (0..).take_while(|_| rank.passes(0) == Pass::Sleep).count();
        (0..20).for_each(|_| rank.yields(2 * CROWDED_SLOW_YIELD));
        assert_eq!(sleeps(), 4096);
        (0..1_000).for_each(|_| rank.yields(Duration::from_nanos(QUICK)));
        rank.yields(2 * CROWDED_SLOW_YIELD);
        assert_eq!(sleeps(), 32, "forgotten by and by");
        let many = Waiting::new(32);
        assert!((0..10_000).all(|_| many.wait(6_000_000, Peer::Here) == (6_002_000, false)));
    }
}
