//! Which rank runs, what time it is, which sleep: the simulation without its threads.

mod remote;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use rma_core::transport::{Outcome, PeerState, SubmitError, WorldRank};

use crate::device::Device;
use crate::failure::{Cause, RankPanic, SimFailure, Waiter};
use crate::looks::Looks;
use crate::membership::Membership;
use crate::random::Random;
use crate::trace::{Event, Trace, Tracer};
use crate::traffic::{Message, Traffic};
use crate::{ConfigError, NetConfig};

/// A deadline that never comes.
const NEVER: u64 = u64::MAX;
/// Questions (the time, which rank failed…) a rank may ask in a row before they cost a yield: a
/// loop that only asks must not stop the others, nor time.
const QUERIES_MAX: u32 = 64;

/// What a player does: the thread of a rank, or of its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Runs when it is chosen; the value is its place in `Schedule::runnable`.
    Runnable(usize),
    Parked {
        since: u64,
        deadline: u64,
        unwinding: bool,
    },
    Ended,
}

#[derive(Debug)]
struct Player {
    stage: Stage,
    /// Counts rings; a ticket is its value at `arm`.
    rings: u32,
    queries: u32,
    looks: Looks,
    /// Yields after the run was given up for lost and its grace was over.
    overtime: u64,
}

#[derive(Debug, Clone, Default)]
struct RankState {
    /// One of its threads polls.
    polling: bool,
    /// Its other thread was turned away meanwhile.
    turned_away: bool,
    /// Messages it took, and those of them that are handled: all but the one in hand.
    taken: u64,
    handled: u64,
    refused_by: Option<u32>,
    /// Its threads that wait, and serve messages meanwhile.
    attending: u32,
}

/// How a player may go on at a yield point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Term {
    /// As it likes.
    Free,
    /// It is to be unwound: the run is lost and it did not end in time, or it is the agent of a
    /// rank that ended.
    Over,
    /// It did not even end while it was unwound.
    LongOver,
}

/// State of a whole network. The holder of the baton is the only one to change it.
#[derive(Debug)]
pub(crate) struct Schedule {
    config: NetConfig,
    random: Random,
    trace: Tracer,
    traffic: Traffic,
    membership: Membership,
    device: Option<Device>,
    clock: u64,
    steps: u64,
    /// Counts what a rank that polls could wait for: messages, news, and what wakes others.
    happenings: u64,
    /// The holder of the baton.
    current: u32,
    ranks: Vec<RankState>,
    /// The ranks, then their agents.
    players: Vec<Player>,
    runnable: Vec<u32>,
    /// Deadlines of parked players.
    alarms: BTreeSet<(u64, u32)>,
    /// Out of 8: how often the same rank goes on although others could.
    stickiness: u64,
    /// A rank that is chosen rarely.
    slow: Option<u32>,
    cause: Option<Cause>,
    panics: Vec<RankPanic>,
    /// The step after which ranks are unwound, once the run is given up for lost.
    grace_end: Option<u64>,
}

impl Schedule {
    pub(crate) fn new(config: NetConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let mut random = Random::new(config.seed);
        let stickiness = [0, 0, 4, 7][random.index(4)];
        let slow = random.chance(1, 3).then(|| random.below(config.ranks.into()) as u32);
        let looks = Looks::default();
        let player = |stage| Player { stage, rings: 0, queries: 0, looks, overtime: 0 };
        let ranks = config.ranks as usize;
        let of_ranks = (0..ranks).map(|place| player(Stage::Runnable(place)));
        let of_agents = (0..ranks).map(|_| player(Stage::Ended));
        Ok(Self {
            config,
            random,
            trace: Tracer::default(),
            traffic: Traffic::new(config.ranks, config.queue_max),
            membership: Membership::new(config.ranks),
            device: config.device.map(|device| Device::new(device, config.ranks, config.seed)),
            clock: 0,
            steps: 0,
            happenings: 0,
            current: 0,
            ranks: vec![RankState::default(); ranks],
            players: of_ranks.chain(of_agents).collect(),
            runnable: (0..config.ranks).collect(),
            alarms: BTreeSet::new(),
            stickiness,
            slow,
            cause: None,
            panics: Vec::new(),
            grace_end: None,
        })
    }

    pub(crate) const fn now(&self) -> Duration {
        Duration::from_micros(self.clock)
    }

    pub(crate) const fn trace(&self) -> Trace {
        Trace { hash: self.trace.hash(), steps: self.steps, ticks: self.clock }
    }

    pub(crate) fn failure(&self) -> Option<SimFailure> {
        Some(SimFailure {
            seed: self.config.seed,
            ranks: self.config.ranks,
            cause: self.cause.clone()?,
            panics: self.panics.clone(),
            trace: self.trace(),
        })
    }

    fn rank(&mut self, rank: u32) -> &mut RankState {
        &mut self.ranks[rank as usize]
    }

    fn player(&mut self, player: u32) -> &mut Player {
        &mut self.players[player as usize]
    }

    /// The agent of a rank, as a player.
    pub(crate) const fn agent_of(&self, rank: u32) -> u32 {
        self.config.ranks + rank
    }

    // ---- the baton ----

    /// Chooses the player that goes on after `me` yields; `me` itself must be able to run or be
    /// parked.
    pub(crate) fn yield_from(&mut self, me: u32) -> u32 {
        self.player(me).queries = 0;
        self.steps += 1;
        if self.grace_end.is_none() && self.steps > self.config.step_max {
            self.give_up(Cause::Livelock { steps: self.steps, waiting: self.waiting() });
        }
        self.clock = self.clock.saturating_add(1);
        self.fire();
        if self.grace_end.is_none() && self.all_poll_in_vain() {
            self.skip();
        }
        self.pick().expect("a player that has not ended can be chosen")
    }

    /// Chooses the player that goes on; none once all players ended.
    pub(crate) fn pick(&mut self) -> Option<u32> {
        loop {
            if let Some(next) = self.choose() {
                self.current = next;
                self.trace.note(next, Event::Run, [self.clock, 0, 0]);
                return Some(next);
            }
            if self.players.iter().all(|player| player.stage == Stage::Ended) {
                return None;
            }
            self.skip();
        }
    }

    /// Goes on to what happens next, as no player does anything before; if nothing happens any
    /// more, the run is lost. A player that looks again and again by an alarm, and in vain, does
    /// nothing.
    fn skip(&mut self) {
        let does = |alarm: &&(u64, u32)| self.polls_in_vain(alarm.1).is_none();
        let alarm = self.alarms.iter().find(does).map(|&(deadline, _)| deadline);
        let transfer = self.device.as_ref().and_then(Device::next_due);
        let arrivals = [self.traffic.next_due(), self.membership.next_due(), transfer];
        match arrivals.into_iter().flatten().chain(alarm).min() {
            Some(next) => {
                self.clock = self.clock.max(next);
                self.fire();
            }
            None => {
                let waiting = self.waiting();
                self.give_up(Cause::Deadlock { at: self.now(), waiting });
            }
        }
    }

    fn choose(&mut self) -> Option<u32> {
        if self.runnable.is_empty() {
            return None;
        }
        let current = self.current;
        let goes_on = matches!(self.player(current).stage, Stage::Runnable(_));
        if goes_on && self.random.chance(self.stickiness, 8) {
            return Some(current);
        }
        let mut chosen = self.runnable[self.random.index(self.runnable.len())];
        if Some(chosen) == self.slow && self.random.chance(7, 8) {
            chosen = self.runnable[self.random.index(self.runnable.len())];
        }
        Some(chosen)
    }

    /// Lets everything happen that is due.
    fn fire(&mut self) {
        while let Some(receiver) = self.traffic.land(self.clock) {
            self.happenings += 1;
            self.notify(receiver);
        }
        self.fire_device();
        // After the messages: what was sent before a departure arrives before its news.
        while let Some(hearer) = self.membership.land(self.clock) {
            self.happenings += 1;
            self.notify(hearer);
        }
        while let Some(&(deadline, player)) = self.alarms.first() {
            if deadline > self.clock {
                break;
            }
            self.wake(player);
        }
    }

    fn wake(&mut self, player: u32) {
        if let Stage::Parked { deadline, .. } = self.player(player).stage {
            self.alarms.remove(&(deadline, player));
            self.begin(player);
        }
    }

    /// Lets a player run that does not.
    fn begin(&mut self, player: u32) {
        self.player(player).stage = Stage::Runnable(self.runnable.len());
        self.runnable.push(player);
    }

    fn wake_by_ring(&mut self, player: u32) {
        let state = self.player(player);
        state.rings = state.rings.wrapping_add(1);
        self.wake(player);
    }

    /// There is work for a rank: for its agent too, if no thread attends.
    fn notify(&mut self, rank: u32) {
        self.wake_by_ring(rank);
        self.ring_agent(rank);
    }

    fn ring_all(&mut self) {
        (0..2 * self.config.ranks).for_each(|player| self.wake_by_ring(player));
    }

    fn stop(&mut self, player: u32, stage: Stage) {
        if let Stage::Runnable(place) = self.player(player).stage {
            self.runnable.swap_remove(place);
            if let Some(&moved) = self.runnable.get(place) {
                self.player(moved).stage = Stage::Runnable(place);
            }
        }
        self.player(player).stage = stage;
    }

    // ---- polling ----

    fn looks(&mut self) -> &mut Looks {
        &mut self.players[self.current as usize].looks
    }

    /// The holder of the baton yields at a look for something.
    pub(crate) fn look(&mut self) {
        let (happenings, clock) = (self.happenings, self.clock);
        self.looks().look(happenings, clock);
    }

    /// It looks at its memory; true if it has to yield before.
    pub(crate) fn touch(&mut self) -> bool {
        let (happenings, clock) = (self.happenings, self.clock);
        self.looks().touch(happenings, clock)
    }

    /// It does something that is not looking, or waits for time to pass.
    pub(crate) fn interrupt_looks(&mut self) {
        let clock = self.clock;
        self.looks().interrupt(clock);
    }

    /// It changes memory, perhaps that of a neighbour that looks at it.
    pub(crate) fn change(&mut self) {
        self.interrupt_looks();
        self.happenings += u64::from(self.config.nodes.is_some());
    }

    fn polls_in_vain(&self, player: u32) -> Option<u64> {
        self.players[player as usize].looks.in_vain(self.happenings)
    }

    /// Whether all that run do so because they cannot sleep for what they wait for.
    fn all_poll_in_vain(&self) -> bool {
        let in_vain = |player: &u32| self.polls_in_vain(*player).is_some();
        in_vain(&self.current) && self.runnable.iter().all(in_vain)
    }

    // ---- agents ----

    /// The agent of `me` takes part from now on.
    pub(crate) fn start_agent(&mut self, me: u32) {
        let agent = self.agent_of(me);
        self.trace.note(agent, Event::Agent, [0; 3]);
        self.begin(agent);
    }

    /// The agent of `of` is done, perhaps by a panic that said `panic`.
    pub(crate) fn end_agent(&mut self, of: u32, panic: Option<String>) {
        self.note_panic(of, panic);
        let agent = self.agent_of(of);
        self.trace.note(agent, Event::Leave, [0; 3]);
        self.stop(agent, Stage::Ended);
        // It may wait for this.
        self.wake_by_ring(of);
    }

    /// The agent of `me` shall see that it is to end.
    pub(crate) fn dismiss_agent(&mut self, me: u32) {
        self.wake_by_ring(self.agent_of(me));
    }

    pub(crate) fn ring_agent(&mut self, rank: u32) {
        if self.rank(rank).attending == 0 {
            self.wake_by_ring(self.agent_of(rank));
        }
    }

    pub(crate) fn attend(&mut self, me: u32) {
        self.rank(me).attending += 1;
    }

    /// Takes back an `attend`; true if no thread attends any more.
    pub(crate) fn leave_attendance(&mut self, me: u32) -> bool {
        let state = self.rank(me);
        state.attending -= 1;
        state.attending == 0
    }

    pub(crate) fn has_messages(&self, me: u32) -> bool {
        self.traffic.arrived(me) > 0
    }

    // ---- sleeping ----

    pub(crate) fn arm(&self) -> u32 {
        self.players[self.current as usize].rings
    }

    /// Puts the holder of the baton to sleep, unless it was rung since `ticket`; sometimes early,
    /// as is allowed.
    pub(crate) fn park(&mut self, ticket: u32, timeout: Option<Duration>, unwinding: bool) {
        let (me, spurious) = (self.current, self.random.chance(1, 32));
        if self.grace_end.is_some() || spurious || self.player(me).rings != ticket {
            return;
        }
        let ticks =
            |timeout: Duration| u64::try_from(timeout.as_nanos().div_ceil(1000)).unwrap_or(NEVER);
        let deadline = self.clock.saturating_add(timeout.map_or(NEVER, ticks));
        if deadline != NEVER {
            self.alarms.insert((deadline, me));
        }
        self.trace.note(me, Event::Park, [deadline, 0, 0]);
        self.stop(me, Stage::Parked { since: self.clock, deadline, unwinding });
    }

    pub(crate) fn ring(&mut self, me: u32, peer: u32) {
        self.trace.note(me, Event::Ring, [peer.into(), 0, 0]);
        // The ringer has changed something, perhaps words of a neighbour that looks at them.
        self.happenings += u64::from(self.config.nodes.is_some());
        if peer < self.config.ranks {
            self.wake_by_ring(peer);
        }
    }

    /// Whether waiting round `round` goes on without sleeping.
    pub(crate) fn relax(&mut self, round: u32) -> bool {
        round == 0 || (round == 1 && self.random.chance(1, 2))
    }

    /// Counts a question; true if the holder of the baton has to yield before the answer.
    pub(crate) fn query(&mut self) -> bool {
        let state = self.player(self.current);
        state.queries += 1;
        state.queries > QUERIES_MAX
    }

    // ---- messages ----

    pub(crate) fn send(
        &mut self,
        me: u32,
        to: u32,
        head: &[u8],
        body: &[u8],
    ) -> Result<(), SubmitError> {
        if self.peer_state(me, to) != PeerState::Alive {
            return Err(SubmitError::PeerFailed(WorldRank(to)));
        }
        if !self.traffic.admit(me, to) {
            self.trace.note(me, Event::Refuse, [to.into(), 0, 0]);
            self.rank(me).refused_by = Some(to);
            return Err(SubmitError::Again);
        }
        self.rank(me).refused_by = None;
        let mut due = self.clock.saturating_add(self.random.delay(self.config.delay_max));
        if self.config.in_order {
            // Of those that are due at the same time, what was sent first lands first.
            due = due.max(self.traffic.last_dues(me).get(&to).copied().unwrap_or(0));
        }
        self.happenings += 1;
        let message = Message::new(me, head, body, self.random.index(8));
        self.trace.note(me, Event::Send, [to.into(), message.bytes().len() as u64, due]);
        self.traffic.depart(to, due, message);
        Ok(())
    }

    /// Begins to poll: how many messages `me` may take; `None` if it is polling already.
    pub(crate) fn poll(&mut self, me: u32) -> Option<usize> {
        let state = self.rank(me);
        if state.polling {
            state.turned_away = true;
            return None;
        }
        state.polling = true;
        Some(self.traffic.arrived(me))
    }

    /// The other thread of `me` may have parked because this one polled.
    pub(crate) fn poll_end(&mut self, me: u32) {
        let state = self.rank(me);
        state.polling = false;
        state.handled = state.taken;
        if core::mem::take(&mut state.turned_away) {
            self.notify(me);
        }
    }

    /// All messages that arrived at `me`, taken or not.
    pub(crate) fn arrived(&self, me: u32) -> u64 {
        self.ranks[me as usize].taken + self.traffic.arrived(me) as u64
    }

    /// Whether so many messages are handled.
    pub(crate) fn is_handled(&self, me: u32, mark: u64) -> bool {
        self.ranks[me as usize].handled >= mark
    }

    /// The oldest message that arrived at `me`.
    pub(crate) fn take(&mut self, me: u32) -> Option<Message> {
        let (message, refused) = self.traffic.take(me)?;
        let state = self.rank(me);
        state.handled = state.taken;
        state.taken += 1;
        self.happenings += 1;
        let details = [message.from.into(), message.bytes().len() as u64, 0];
        self.trace.note(me, Event::Deliver, details);
        for sender in refused {
            self.rank(sender).refused_by = None;
            self.notify(sender);
        }
        Some(message)
    }

    // ---- leaving ----

    pub(crate) fn peer_state(&self, me: u32, peer: u32) -> PeerState {
        self.membership.peer_state(me, peer)
    }

    pub(crate) fn failed(&self, me: u32) -> Option<u32> {
        self.membership.failed(me)
    }

    /// `me` leaves, and the news travels; the first call counts.
    pub(crate) fn depart(&mut self, me: u32, outcome: Outcome) {
        if !self.membership.may_leave(me, outcome) {
            return;
        }
        self.trace.note(me, Event::Depart, [u64::from(outcome == Outcome::Failed), 0, 0]);
        self.leave_device(me, outcome);
        let dues = match outcome {
            Outcome::Departed | Outcome::Holding => self.traffic.last_dues(me),
            Outcome::Failed => BTreeMap::new(),
        };
        let (clock, longest, random) = (self.clock, self.config.delay_max, &mut self.random);
        self.membership.depart(me, outcome, |rank| {
            let due = clock.saturating_add(random.delay(longest));
            dues.get(&rank).map_or(due, |&last| due.max(last))
        });
    }

    /// The thread of `me` is done, in order or by a panic that said `panic`.
    pub(crate) fn leave(&mut self, me: u32, outcome: Outcome, panic: Option<String>) {
        self.note_panic(me, panic);
        self.depart(me, outcome);
        self.trace.note(me, Event::Leave, [0; 3]);
        self.stop(me, Stage::Ended);
        self.traffic.close(me);
        self.close_device(me, outcome);
        self.membership.end(me);
        // One that was not dismissed before is unwound.
        self.dismiss_agent(me);
    }

    fn note_panic(&mut self, of: u32, panic: Option<String>) {
        if let Some(message) = panic {
            let panic = RankPanic { rank: WorldRank(of), message };
            self.cause.get_or_insert_with(|| Cause::Panic(panic.clone()));
            self.panics.push(panic);
        }
    }

    // ---- a lost run ----

    fn waiting(&self) -> Vec<Waiter> {
        // An agent that is parked waits for nothing.
        let waiter = |(rank, state): (u32, &RankState)| {
            let in_vain = self.polls_in_vain(rank);
            let (since, unwinding, polls) = match self.players[rank as usize].stage {
                Stage::Parked { since, unwinding, .. } => {
                    (in_vain.unwrap_or(since), unwinding, in_vain.is_some())
                }
                Stage::Runnable(_) => (in_vain?, false, true),
                Stage::Ended => return None,
            };
            Some(Waiter {
                rank: WorldRank(rank),
                since: Duration::from_micros(since),
                polls,
                unread: self.traffic.arrived(rank),
                refused_by: state.refused_by.map(WorldRank),
                unwinding,
            })
        };
        (0..).zip(&self.ranks).filter_map(waiter).collect()
    }

    /// Makes all ranks fail that have not left, and wakes them so that they see it and end.
    pub(crate) fn give_up(&mut self, cause: Cause) {
        let grace = self.config.step_max / 8 + 100 * u64::from(self.config.ranks);
        self.grace_end = Some(self.steps.saturating_add(grace));
        self.cause.get_or_insert(cause);
        self.happenings += 1;
        self.membership.give_up();
        self.ring_all();
    }

    /// Whether `me` still has time to end by itself.
    pub(crate) fn term(&mut self, me: u32) -> Term {
        let rank = me.checked_sub(self.config.ranks);
        let is_left = rank.is_some_and(|rank| self.player(rank).stage == Stage::Ended);
        let blind = self.player(me).looks.blind();
        let has_time = |end| self.steps <= end && !blind;
        if !is_left && self.grace_end.is_none_or(has_time) {
            return Term::Free;
        }
        let limit = self.config.step_max;
        let overtime = &mut self.player(me).overtime;
        *overtime += 1;
        if *overtime > limit { Term::LongOver } else { Term::Over }
    }
}
