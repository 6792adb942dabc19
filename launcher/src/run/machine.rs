//! When a job ends and how, as a state machine: no process, no clock.

use std::collections::VecDeque;
use std::time::Duration;

use rustix::process::Signal;

use super::query::Stage;
use super::report::How;
use super::spec::OnFailure;

/// Signals that ask a job to end.
pub(super) const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Another signal sooner than that is the same request, told twice: `timeout` signals its child and
/// then its group, a shell that ends does so after the terminal did, systemd sends SIGTERM and
/// SIGHUP together. Not Ctrl-C, which people press twice.
const REPEAT: Duration = Duration::from_millis(100);
/// From SIGKILL until a process that does not end is given up.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// How long a rank that seems to fail may take to exit by itself.
const SUSPECT_GRACE: Duration = Duration::from_millis(500);
/// How long the end of a connection may come after the end of its process.
pub(super) const PARTING_GRACE: Duration = Duration::from_millis(200);

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    Status(i32),
    Signal(i32),
    /// Its host was lost, and it with that.
    Lost,
}

/// Something happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// A rank's process was started.
    Started(u32),
    /// No further rank will be started.
    StartEnded,
    /// A rank joined the job.
    Joined(u32),
    /// A rank said that it leaves.
    Left {
        rank: u32,
        failed: bool,
        /// The first rank that it waited for in vain, because that had left in order, or failed.
        missed: Option<u32>,
    },
    /// A rank's connection ended.
    Disconnected(u32),
    /// A rank's process ended.
    Exited { rank: u32, exit: Exit },
    /// A rank ends the job, or makes it end, without an end of its process.
    Broke { rank: u32, how: How },
    /// The launcher got a signal that is to be passed on.
    Signal(Signal),
    /// The launcher's standard output is of no use any more; why, unless its reader is gone.
    OutputEnded(Option<String>),
    /// Time went by.
    Tick,
}

/// Something to do to every rank that still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Pass this signal on.
    Forward(Signal),
    /// Ask to end.
    Terminate,
    /// End.
    Kill,
    /// End that one, which was started when the job was ending already.
    KillRank(u32),
}

/// Why the job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    Failed { rank: u32, how: How },
    TimedOut { running: Vec<u32> },
    Interrupted(i32),
    OutputEnded(Option<String>),
}

#[derive(Debug, Clone, Default)]
struct Rank {
    started: bool,
    joined: bool,
    left: Option<Left>,
    missed: Option<u32>,
    disconnected: bool,
    exit: Option<Exit>,
    /// Exited with a status, but not all that it said has been read; judged by then at the latest.
    judge_at: Option<Duration>,
}

/// A rank that seems to fail, and is the cause if others fail before it exits: ranks that wait for
/// it may well be faster.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    rank: u32,
    /// It said so; otherwise its connection ended without a word, as when a process dies.
    said: bool,
    until: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    InOrder,
    Failed,
}

/// The state of a job; times count from its start.
#[derive(Debug)]
pub(super) struct Machine {
    ranks: Vec<Rank>,
    /// Ranks that were started and did not end.
    running: usize,
    starting: bool,
    timeout: Option<Duration>,
    /// From the request to end until ranks are killed.
    kill_after: Duration,
    /// Ranks go on when another one fails.
    goes_on: bool,
    /// The first failure, where the others go on.
    failed: Option<Cause>,
    cause: Option<Cause>,
    suspect: Option<Suspect>,
    /// The first failure, until it is known what caused it.
    held: Option<(u32, How)>,
    /// Signals passed on that ask programs to end.
    interrupted: Vec<Signal>,
    /// The last of those, and when it came.
    last: Option<(Signal, Duration)>,
    /// A second signal cut the time short that ranks have to end.
    hurried: bool,
    kill_at: Option<Duration>,
    give_up_at: Option<Duration>,
    gave_up: bool,
    actions: VecDeque<Action>,
}

impl Machine {
    pub(super) fn new(
        ranks: u32,
        timeout: Option<Duration>,
        kill_after: Duration,
        on_failure: OnFailure,
    ) -> Machine {
        Machine {
            ranks: vec![Rank::default(); ranks as usize],
            running: 0,
            starting: true,
            timeout,
            kill_after,
            goes_on: on_failure == OnFailure::Continue,
            failed: None,
            cause: None,
            suspect: None,
            held: None,
            interrupted: Vec::new(),
            last: None,
            hurried: false,
            kill_at: None,
            give_up_at: None,
            gave_up: false,
            actions: VecDeque::new(),
        }
    }

    /// What to do next.
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call with [`Event::Tick`] at the latest.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let deciding = self.cause.is_none();
        let suspect = self.suspect.filter(|_| deciding).map(|suspect| suspect.until);
        let timeout = self.timeout.filter(|_| deciding && self.runs());
        let judgements = self.ranks.iter().filter_map(|rank| rank.judge_at).filter(|_| deciding);
        [suspect, timeout, self.kill_at, self.give_up_at]
            .into_iter()
            .flatten()
            .chain(judgements)
            .min()
    }

    /// Whether every process ended (or cannot be ended), and it is known how the job did.
    pub(super) fn finished(&self) -> bool {
        let judged = self.cause.is_some() || self.ranks.iter().all(|rank| rank.judge_at.is_none());
        self.gave_up || (!self.runs() && judged)
    }

    /// Whether ranks run, or are being started.
    fn runs(&self) -> bool {
        self.running > 0 || self.starting
    }

    /// Whether ranks are being started.
    pub(super) fn starting(&self) -> bool {
        self.starting
    }

    /// Whether the job is to end, so that no further rank need be started.
    pub(super) fn ending(&self) -> bool {
        self.cause.is_some() || !self.interrupted.is_empty()
    }

    /// Whether ranks were killed before their time to end was up.
    pub(super) fn hurried(&self) -> bool {
        self.hurried
    }

    /// Why the job ended, unless in order.
    pub(super) fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref().or(self.failed.as_ref())
    }

    /// How far a rank has come; `meets` says that it is in an exchange with all.
    pub(super) fn stage(&self, rank: u32, meets: bool) -> Stage {
        match self.ranks.get(rank as usize) {
            Some(Rank { exit: Some(_), .. }) => Stage::Ended,
            Some(Rank { left: Some(_), .. }) => Stage::Left,
            Some(Rank { joined: true, .. }) if meets => Stage::Meeting,
            Some(Rank { joined: true, .. }) => Stage::Joined,
            Some(Rank { started: true, .. }) => Stage::Started,
            _ => Stage::Waiting,
        }
    }

    /// Whether a rank was lost with its host.
    pub(super) fn is_lost(&self, rank: u32) -> bool {
        self.ranks.get(rank as usize).is_some_and(|rank| rank.exit == Some(Exit::Lost))
    }

    /// Whether a rank has joined the job.
    pub(super) fn anyone_joined(&self) -> bool {
        self.ranks.iter().any(|rank| rank.joined)
    }

    /// Ranks whose process runs.
    pub(super) fn running(&self) -> Vec<u32> {
        let ranks = self.ranks.iter().zip(0..);
        let runs = |rank: &Rank| rank.started && rank.exit.is_none();
        ranks.filter_map(|(rank, number)| runs(rank).then_some(number)).collect()
    }

    /// Something happened at `now`.
    pub(super) fn handle(&mut self, event: Event, now: Duration) {
        match event {
            Event::Started(rank) => self.started(rank),
            Event::StartEnded => self.starting = false,
            Event::Joined(rank) => self.joined(rank, now),
            Event::Left { rank, failed, missed } => self.left(rank, failed, missed, now),
            Event::Disconnected(rank) => {
                let Some(state) = self.ranks.get_mut(rank as usize) else { return };
                state.disconnected = true;
                if state.left.is_none() {
                    self.suspect(rank, false, now);
                }
                self.judge(rank, now);
            }
            Event::Exited { rank, exit } => self.exited(rank, exit, now),
            Event::Broke { rank, how } => self.end(Cause::Failed { rank, how }, now),
            Event::Signal(signal) => self.signal(signal, now),
            Event::OutputEnded(why) => self.end(Cause::OutputEnded(why), now),
            Event::Tick => self.tick(now),
        }
    }

    fn started(&mut self, rank: u32) {
        let Some(state) = self.ranks.get_mut(rank as usize) else { return };
        if !std::mem::replace(&mut state.started, true) {
            self.running += 1;
        }
        if self.ending() {
            self.actions.push_back(Action::KillRank(rank));
        }
    }

    fn joined(&mut self, rank: u32, now: Duration) {
        let Some(state) = self.ranks.get_mut(rank as usize) else { return };
        state.joined = true;
        state.disconnected = false;
        for rank in 0..self.ranks.len() as u32 {
            self.judge(rank, now);
        }
    }

    fn left(&mut self, rank: u32, failed: bool, missed: Option<u32>, now: Duration) {
        let Some(state) = self.ranks.get_mut(rank as usize) else { return };
        state.left = Some(if failed { Left::Failed } else { Left::InOrder });
        state.missed = missed;
        if failed {
            self.suspect(rank, true, now);
        }
        self.judge(rank, now);
    }

    fn suspect(&mut self, rank: u32, said: bool, now: Duration) {
        let runs = self.ranks.get(rank as usize).is_some_and(|rank| rank.exit.is_none());
        if runs && self.suspect.is_none() {
            self.suspect = Some(Suspect { rank, said, until: now + SUSPECT_GRACE });
        }
    }

    fn exited(&mut self, rank: u32, exit: Exit, now: Duration) {
        let Some(state) = self.ranks.get_mut(rank as usize) else { return };
        if state.exit.replace(exit).is_some() {
            return;
        }
        self.running -= 1;
        match exit {
            Exit::Status(0) => {
                state.judge_at = Some(now + PARTING_GRACE);
                self.judge(rank, now);
            }
            Exit::Status(status) => {
                let heard = !state.joined || state.left.is_some() || state.disconnected;
                state.judge_at = (!heard).then_some(now + PARTING_GRACE);
                self.fail(rank, How::Exited(status), now);
            }
            Exit::Signal(signal) => self.fail(rank, How::Signal(signal), now),
            Exit::Lost => self.fail(rank, How::HostLost, now),
        }
    }

    /// Decides whether a rank that exited with 0 did so in order, and why another one did not, if
    /// that can be told yet.
    fn judge(&mut self, number: u32, now: Duration) {
        let anyone_joined = self.anyone_joined();
        let asked_to_end = !self.interrupted.is_empty();
        let Some(rank) = self.ranks.get_mut(number as usize) else { return };
        let due = rank.judge_at.is_some_and(|at| at <= now);
        if rank.exit != Some(Exit::Status(0)) {
            let heard = rank.left.is_some() || rank.disconnected || due;
            if heard && rank.judge_at.take().is_some() {
                self.decide(true, now);
            }
            return;
        }
        let how = match rank.left {
            _ if asked_to_end => None,
            Some(Left::InOrder) => None,
            Some(Left::Failed) => Some(How::Announced),
            None if !rank.joined => anyone_joined.then_some(How::NeverJoined),
            None if rank.disconnected || due => Some(How::NeverLeft),
            None => return,
        };
        rank.judge_at = None;
        if let Some(how) = how {
            return self.fail(number, how, now);
        }
        self.suspect.take_if(|suspect| suspect.rank == number);
        // The first failure may have been held back for this one.
        self.decide(true, now);
    }

    fn fail(&mut self, rank: u32, how: How, now: Duration) {
        if self.suspect.is_some_and(|suspect| suspect.rank == rank) {
            self.suspect = None;
            self.hold_suspect(rank, how);
        }
        self.held.get_or_insert((rank, how));
        self.decide(true, now);
    }

    /// A suspect was the first failure, and not the one that is held; unless it has failed because
    /// of that itself.
    fn hold_suspect(&mut self, rank: u32, how: How) {
        let chain = std::iter::successors(Some(rank), |rank| {
            self.ranks.get(*rank as usize).and_then(|rank| rank.missed)
        });
        // A rank may say anything: even a circle has an end.
        let mut missed = chain.skip(1).take(self.ranks.len());
        if !self.held.is_some_and(|(held, _)| missed.any(|rank| rank == held)) {
            self.held = Some((rank, how));
        }
    }

    /// Names the cause of the first failure, unless more about it is to come; `patient` says
    /// whether to wait for the exit of a rank that others have missed.
    fn decide(&mut self, patient: bool, now: Duration) {
        let runs = |rank: u32| self.ranks[rank as usize].exit.is_none();
        let suspected = self.suspect.is_some_and(|suspect| runs(suspect.rank));
        let Some((rank, how)) = self.held.filter(|_| !suspected && self.cause.is_none()) else {
            return;
        };
        if self.ranks[rank as usize].judge_at.is_some() {
            return;
        }
        let (missed_by, rank) = (rank, self.missed_by(rank, patient));
        let missed = &self.ranks[rank as usize];
        let how = match (missed.exit, missed.left) {
            _ if rank == missed_by => how,
            // It may be about to fail by itself, or dead, which is not known yet.
            (None, _) if patient => return self.suspect(rank, false, now),
            // What it said last is on its way.
            _ if missed.judge_at.is_some() => return,
            (None | Some(Exit::Status(0)), Some(Left::InOrder)) => How::LeftEarly { missed_by },
            (None | Some(Exit::Status(0)), Some(Left::Failed)) => How::Announced,
            (None | Some(Exit::Status(0)), None) => How::NeverLeft,
            (Some(Exit::Status(status)), _) => How::Exited(status),
            (Some(Exit::Signal(signal)), _) => How::Signal(signal),
            (Some(Exit::Lost), _) => How::HostLost,
        };
        let cause = match how {
            How::Signal(signal) if self.interrupted.iter().any(|i| i.as_raw() == signal) => {
                Cause::Interrupted(signal)
            }
            _ => Cause::Failed { rank, how },
        };
        if self.goes_on {
            self.held = None;
            self.failed.get_or_insert(cause);
            return;
        }
        self.end(cause, now);
    }

    /// The rank whose end made `start` fail: the one that was missed by the one that it missed, and
    /// so on; or itself, also if they have missed each other in a circle. Ranks that seem to be in
    /// order are among them only if that is to be `awaited`.
    fn missed_by(&self, start: u32, awaited: bool) -> u32 {
        let mut rank = start;
        let is_gone = |rank: &u32| {
            let missed = self.ranks.get(*rank as usize);
            missed.is_some_and(|missed| awaited || missed.left.is_some() || missed.exit.is_some())
        };
        // A rank may say anything: even a circle has an end.
        for _ in 0..self.ranks.len() {
            match self.ranks[rank as usize].missed.filter(is_gone) {
                Some(missed) if missed == start => return start,
                Some(missed) => rank = missed,
                None => break,
            }
        }
        rank
    }

    fn end(&mut self, cause: Cause, now: Duration) {
        if self.cause.is_some() {
            return;
        }
        self.cause = Some(cause);
        if self.runs() {
            // Ranks that were asked already are given time: a second request may cut it short.
            if self.interrupted.is_empty() {
                self.actions.push_back(Action::Terminate);
            }
            self.kill_after_grace(now);
        }
    }

    fn kill_after_grace(&mut self, now: Duration) {
        self.kill_at.get_or_insert(now + self.kill_after);
    }

    fn signal(&mut self, signal: Signal, now: Duration) {
        if !ENDING.contains(&signal) {
            return self.actions.push_back(Action::Forward(signal));
        }
        if !self.is_request(signal, now) {
            return;
        }
        if !self.interrupted.is_empty() {
            // A user who asks again does not want to wait.
            if matches!(self.cause, None | Some(Cause::Interrupted(_))) {
                self.cause = Some(Cause::Interrupted(signal.as_raw()));
            }
            self.kill_at = Some(Duration::ZERO);
            self.hurried = true;
            return;
        }
        self.interrupted.push(signal);
        if self.starting {
            // Ranks that never are cannot end in order.
            self.cause.get_or_insert(Cause::Interrupted(signal.as_raw()));
        }
        self.actions.push_back(Action::Forward(signal));
        self.kill_after_grace(now);
    }

    /// Whether that signal asks for the end, and not only tells again what another one just did.
    pub(super) fn is_request(&mut self, signal: Signal, now: Duration) -> bool {
        if !ENDING.contains(&signal) {
            return false;
        }
        let last = self.last.replace((signal, now));
        let told_twice = last.is_some_and(|(last, then)| {
            now < then + REPEAT && last != Signal::INT && signal != Signal::INT
        });
        !told_twice
    }

    fn tick(&mut self, now: Duration) {
        if let Some(suspect) = self.suspect.take_if(|suspect| suspect.until <= now) {
            if suspect.said {
                self.hold_suspect(suspect.rank, How::Announced);
            }
            self.decide(false, now);
        }
        for rank in 0..self.ranks.len() as u32 {
            if self.ranks[rank as usize].judge_at.is_some_and(|at| at <= now) {
                self.judge(rank, now);
            }
        }
        if self.runs() && self.timeout.is_some_and(|at| at <= now) {
            self.end(Cause::TimedOut { running: self.running() }, now);
        }
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = None;
            if let Some(signal) = self.interrupted.first() {
                self.cause.get_or_insert(Cause::Interrupted(signal.as_raw()));
            }
            self.give_up_at = Some(now + KILL_GRACE);
            self.actions.push_back(Action::Kill);
        }
        if self.give_up_at.is_some_and(|at| at <= now) {
            self.give_up_at = None;
            self.gave_up = true;
        }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
