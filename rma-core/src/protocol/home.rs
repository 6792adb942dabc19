//! Locks that their *home*, the owner of a part, runs for ranks that ask it by message, and that
//! ranks take without asking where they reach the part's word by load and store: without I/O.
//!
//! | bits of the word | hold |
//! | --- | --- |
//! | low half | the holders: a count of those that share the lock, or [`WRITER`] and a rank |
//! | [`WAITERS`] | a rank waits at the home: every rank asks there, and waits in turn |
//! | [`OPEN`] | the home has a pass: exclusive locks may be taken |
//!
//! A lock that is free, or shared by others that do not wait, is one compare-and-swap for ranks
//! that reach the word. One that finds anything else asks the home, which grants in the order of
//! asking and says so by message. A holder that gives the lock back by load and store, and finds
//! that the home waits for just that, [tells it](must_tell) to look.
//!
//! A shared lock of all parts (`lock_all`) is had from rank 0 alone, without going to each home. It
//! excludes *passes*: a home needs one to let any rank have its part exclusively, and keeps it
//! until rank 0 [recalls](Tell::Recall) it. Which of several asked first is rank 0's to say
//! ([`Passes`]). So both kinds of epoch cost one request and one message to give back, as long as
//! the program does not mix them.
//!
//! A rank that holds a lock and asks for another one goes past those that wait for a pass to come
//! or to go: they may be waiting for it. Messages may overtake each other: everything carries the
//! slot or number of what it is about.
use super::lock::Mode;
use crate::rank::WorldRank;
use crate::word::Word;
use core::sync::atomic::Ordering::SeqCst;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

const WAITERS: u64 = 1 << 63;
const OPEN: u64 = 1 << 62;
const HOLDERS: u64 = 0xffff_ffff;
const WRITER: u64 = 1 << 31;

/// The state with one more holder, if those that are there allow that. S-E1
fn with(seen: u64, mode: Mode, rank: u32) -> Option<u64> {
    match mode {
        Mode::Shared if seen & HOLDERS < WRITER - 1 => Some(seen + 1),
        Mode::Exclusive if seen & HOLDERS == 0 => Some(seen | WRITER | u64::from(rank)),
        _ => None,
    }
}

/// The state that takes the lock without asking the home.
pub(crate) fn take(seen: u64, mode: Mode, rank: u32) -> Option<u64> {
    let waits = seen & WAITERS != 0 || (mode == Mode::Exclusive && seen & OPEN == 0);
    if waits { None } else { with(seen, mode, rank) }
}

/// The state that gives the lock back.
pub(crate) fn give(seen: u64, mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => seen & !HOLDERS,
        _ => seen - u64::from((1..WRITER).contains(&(seen & HOLDERS))),
    }
}

/// Whether the home waits for the lock that was given back, which left that state.
pub(crate) fn must_tell(left: u64, mode: Mode) -> bool {
    let closes = mode == Mode::Exclusive && left & OPEN == 0;
    left & HOLDERS == 0 && (left & WAITERS != 0 || closes)
}

fn update(word: &impl Word<Value = u64>, change: impl Fn(u64) -> u64) -> u64 {
    let mut seen = word.load(SeqCst);
    loop {
        match word.compare_exchange(seen, change(seen), SeqCst, SeqCst) {
            Ok(_) => return seen,
            Err(found) => seen = found,
        }
    }
}

/// What a rank asks of a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HomeRequest {
    pub(crate) from: WorldRank,
    /// In the window.
    pub(crate) rank: u32,
    /// Of the message, at its sender: names the request and what is granted. Of two, the later one
    /// has the higher slot, and counts.
    pub(crate) slot: u64,
    pub(crate) mode: Mode,
    /// It holds locks of the window already.
    pub(crate) holds: bool,
    /// It does not wait.
    pub(crate) tries: bool,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Granted,
    /// Others have the lock, and it was only a try; or its sender has asked again since.
    Busy,
    /// That process has left with what it would have needed.
    Left(WorldRank),
    /// The window is gone.
    Freed,
}

/// What a home, or rank 0, has to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tell {
    /// The end of the request with that slot.
    Answer { to: WorldRank, slot: u64, end: End },
    /// To rank 0: this home wants a pass.
    Request { number: u32, holds: bool },
    /// To rank 0: the pass comes back.
    Return { number: u32 },
    /// To a home: it comes, but not now.
    Wait { to: WorldRank, number: u32 },
    /// To a home: here it is.
    Pass { to: WorldRank, number: u32 },
    /// To a home: as soon as no rank holds the part exclusively, it is to come back.
    Recall { to: WorldRank, number: u32 },
}

/// Whether a home may have its part locked exclusively.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Permission {
    #[default]
    None,
    /// It was asked for; whether for a rank that holds a lock, and whether it was recalled before
    /// it came.
    Requested {
        holds: bool,
        recalled: bool,
    },
    Given,
    /// It goes back as soon as possible.
    Recalled,
}

/// The lock of one part, as its home runs it. S-E13
#[derive(Debug, Default)]
pub(crate) struct Home {
    waiting: VecDeque<HomeRequest>,
    /// Those that were granted it by message.
    granted: FxHashMap<WorldRank, HomeRequest>,
    permission: Permission,
    /// Of the pass that is asked for, or here.
    number: u32,
    /// It does not come at once.
    is_late: bool,
    /// How every request ends from now on.
    closed: Option<End>,
    tells: VecDeque<Tell>,
}

impl Home {
    /// What is to be told next.
    pub(crate) fn poll(&mut self) -> Option<Tell> {
        self.tells.pop_front()
    }

    /// Whether a rank waits here.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether it waits for rank 0.
    pub(crate) fn is_requesting(&self) -> bool {
        matches!(self.permission, Permission::Requested { .. })
    }

    fn end(&mut self, request: &HomeRequest, end: End) {
        let HomeRequest { from: to, slot, .. } = *request;
        self.tells.push_back(Tell::Answer { to, slot, end });
    }

    /// A rank asks for the lock. What it asked for before it has given back, or up.
    pub(crate) fn handle_request(&mut self, word: &impl Word<Value = u64>, request: HomeRequest) {
        if let Some(end) = self.closed {
            return self.end(&request, end);
        }
        let at = self.waiting.iter().position(|other| other.from == request.from);
        let waits = at.and_then(|at| self.waiting.get(at));
        let known = waits.or_else(|| self.granted.get(&request.from)).copied();
        if known.is_some_and(|known| known.slot >= request.slot) {
            return self.end(&request, End::Busy);
        }
        match (at, known) {
            (Some(at), Some(earlier)) => {
                self.waiting.remove(at);
                self.end(&earlier, End::Busy);
            }
            (None, Some(earlier)) => self.handle_unlock(word, request.from, earlier.slot),
            (_, None) => {}
        }
        self.waiting.push_back(request);
        self.look(word);
        // Whether there is a pass is not known yet.
        let open = self.is_requesting() && !self.is_late && self.waiting.len() == 1;
        if request.tries && !open {
            self.end_tries(word);
        }
    }

    /// Those that do not wait are not to.
    fn end_tries(&mut self, word: &impl Word<Value = u64>) {
        if self.end_all(End::Busy, |request| request.tries) {
            self.look(word);
        }
    }

    /// Ends those of the requests that wait; false if there are none.
    fn end_all(&mut self, end: End, those: impl Fn(&HomeRequest) -> bool) -> bool {
        let (ended, kept): (VecDeque<HomeRequest>, _) = self.waiting.drain(..).partition(those);
        self.waiting = kept;
        ended.iter().for_each(|request| self.end(request, end));
        !ended.is_empty()
    }

    /// The pass does not come now.
    pub(crate) fn handle_wait(&mut self, word: &impl Word<Value = u64>, number: u32) {
        if self.is_requesting() && number == self.number {
            self.is_late = true;
            self.end_tries(word);
        }
    }

    /// A lock that was granted by message is given back; or was before, by a request that this
    /// comes later than. Or it is not waited for any more.
    pub(crate) fn handle_unlock(
        &mut self,
        word: &impl Word<Value = u64>,
        from: WorldRank,
        slot: u64,
    ) {
        if let Some(held) = self.granted.get(&from).filter(|held| held.slot == slot).copied() {
            self.granted.remove(&from);
            update(word, |seen| give(seen, held.mode));
            self.look(word);
        } else if self.end_all(End::Busy, |request| (request.from, request.slot) == (from, slot)) {
            self.look(word);
        }
    }

    /// The pass has come.
    pub(crate) fn handle_pass(&mut self, word: &impl Word<Value = u64>, number: u32) {
        let Permission::Requested { recalled, .. } = self.permission else {
            return self.send_back(number);
        };
        if number != self.number {
            return self.send_back(number);
        }
        if recalled {
            self.permission = Permission::Recalled;
        } else {
            self.permission = Permission::Given;
            update(word, |seen| seen | OPEN);
        }
        self.look(word);
        self.end_tries(word);
    }

    /// The pass is to go back.
    pub(crate) fn handle_recall(&mut self, word: &impl Word<Value = u64>, number: u32) {
        match self.permission {
            Permission::Requested { holds, .. } if number == self.number => {
                self.permission = Permission::Requested { holds, recalled: true };
            }
            Permission::Given | Permission::Recalled if number == self.number => {
                self.permission = Permission::Recalled;
                update(word, |seen| seen & !OPEN);
                self.look(word);
            }
            _ => self.send_back(number),
        }
    }

    /// One that is not here any more, or never was: rank 0 shall not wait for it.
    fn send_back(&mut self, number: u32) {
        self.tells.push_back(Tell::Return { number });
    }

    /// Rank 0 has left: there are no passes any more.
    pub(crate) fn handle_loss(&mut self, word: &impl Word<Value = u64>, first: WorldRank) {
        self.permission = Permission::None;
        self.end_all(End::Left(first), |request| request.mode == Mode::Exclusive);
        self.look(word);
    }

    /// No rank waits here any more, and none locks the part exclusively: its home leaves, or the
    /// window is gone.
    pub(crate) fn handle_close(&mut self, word: &impl Word<Value = u64>, end: End) {
        self.end_all(end, |_| true);
        let left = update(word, |seen| seen & !(OPEN | WAITERS));
        // One that is on its way here, too.
        if self.is_requesting() || (self.permission != Permission::None && left & WRITER == 0) {
            self.send_back(self.number);
        }
        (self.permission, self.closed) = (Permission::None, Some(end));
    }

    /// Grants what can be granted. To be called whenever something may have changed.
    pub(crate) fn look(&mut self, word: &impl Word<Value = u64>) {
        loop {
            while let Some(at) = self.next() {
                let (request, more) = (self.waiting[at], self.waiting.len() > 1);
                if !grant(word, &request, more) {
                    break;
                }
                self.waiting.remove(at);
                self.granted.insert(request.from, request);
                self.end(&request, End::Granted);
            }
            if self.waiting.is_empty() {
                update(word, |seen| seen & !WAITERS);
            } else {
                update(word, |seen| seen | WAITERS);
            }
            let idle = word.load(SeqCst) & WRITER == 0 && !self.is_holder_waiting();
            if self.permission != Permission::Recalled || !idle {
                return;
            }
            self.send_back(self.number);
            self.permission = Permission::None;
        }
    }

    /// The place of the request whose turn it is. Asks for a pass if that is what the first one
    /// needs.
    fn next(&mut self) -> Option<usize> {
        let first = *self.waiting.front()?;
        if self.may(&first) {
            return Some(0);
        }
        self.request_pass(self.is_holder_waiting());
        self.waiting.iter().position(|waits| waits.holds && self.may(waits))
    }

    /// Whether a rank that holds a lock of the window waits for a pass.
    fn is_holder_waiting(&self) -> bool {
        self.waiting.iter().any(|waits| waits.holds && waits.mode == Mode::Exclusive)
    }

    fn may(&self, request: &HomeRequest) -> bool {
        match self.permission {
            Permission::Given => true,
            Permission::Recalled => request.mode == Mode::Shared || request.holds,
            Permission::None | Permission::Requested { .. } => request.mode == Mode::Shared,
        }
    }

    fn request_pass(&mut self, holds: bool) {
        match self.permission {
            Permission::None => {
                self.number = self.number.wrapping_add(1);
                self.is_late = false;
                self.permission = Permission::Requested { holds, recalled: false };
            }
            Permission::Requested { holds: false, recalled } if holds => {
                self.permission = Permission::Requested { holds, recalled };
            }
            _ => return,
        }
        self.tells.push_back(Tell::Request { number: self.number, holds });
    }
}

/// Takes the lock for a request, if no holder is in the way; says in the word whether others wait,
/// or this one.
fn grant(word: &impl Word<Value = u64>, request: &HomeRequest, more: bool) -> bool {
    let mut seen = word.load(SeqCst);
    loop {
        let taken = with(seen, request.mode, request.rank);
        let waits = if more || taken.is_none() { WAITERS } else { 0 };
        let new = taken.unwrap_or(seen) & !WAITERS | waits;
        match word.compare_exchange(seen, new, SeqCst, SeqCst) {
            Ok(_) => return taken.is_some(),
            Err(found) => seen = found,
        }
    }
}

/// What a rank waits for at rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    /// A lock of all parts, by the request with that slot.
    All { slot: u64 },
    /// A pass; whether for a rank that holds a lock.
    Pass { number: u32, holds: bool },
}

impl Want {
    fn is_pass(self) -> bool {
        matches!(self, Self::Pass { .. })
    }
}

/// Whether a pass was asked for later than another one, by the same home.
fn is_newer(number: u32, than: u32) -> bool {
    number.wrapping_sub(than).cast_signed() > 0
}

/// A pass that a home has.
#[derive(Debug, Clone, Copy)]
struct Given {
    number: u32,
    recalled: bool,
}

/// Which ranks may lock all parts, and which homes have passes: kept by rank 0. S-E8
#[derive(Debug, Default)]
pub(crate) struct Passes {
    waiting: VecDeque<(WorldRank, Want)>,
    /// Those that have locked all parts.
    all: FxHashMap<WorldRank, u64>,
    given: FxHashMap<WorldRank, Given>,
    /// Passes that came back, or were not wanted any more, before they were asked for.
    returned: FxHashMap<WorldRank, u32>,
    tells: VecDeque<Tell>,
}

impl Passes {
    /// What is to be told next.
    pub(crate) fn poll(&mut self) -> Option<Tell> {
        self.tells.pop_front()
    }

    /// Whether a rank waits here.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A rank locks all parts. What it asked for before it has given back, or up.
    pub(crate) fn handle_request(&mut self, request: &HomeRequest) {
        let HomeRequest { from: to, slot, .. } = *request;
        let waits = self.waiting.iter().find_map(|(from, want)| match want {
            Want::All { slot } if *from == to => Some(*slot),
            _ => None,
        });
        let known = waits.or_else(|| self.all.get(&to).copied());
        if known.is_some_and(|known| known >= slot) {
            return self.tells.push_back(Tell::Answer { to, slot, end: End::Busy });
        }
        self.all.remove(&to);
        if let Some(slot) = waits {
            self.waiting.retain(|(from, want)| *from != to || want.is_pass());
            self.tells.push_back(Tell::Answer { to, slot, end: End::Busy });
        }
        self.waiting.push_back((to, Want::All { slot }));
        self.look();
    }

    /// A lock of all parts is given back, unless it was before; or it is not waited for any more.
    pub(crate) fn handle_unlock(&mut self, from: WorldRank, slot: u64) {
        let asked = (from, Want::All { slot });
        if self.all.get(&from) == Some(&slot) {
            self.all.remove(&from);
        } else if let Some(at) = self.waiting.iter().position(|waits| *waits == asked) {
            self.waiting.remove(at);
            self.tells.push_back(Tell::Answer { to: from, slot, end: End::Busy });
        }
        self.look();
    }

    /// A home wants a pass.
    pub(crate) fn handle_pass_request(&mut self, home: WorldRank, number: u32, holds: bool) {
        // What was asked for twice comes twice, and the second time perhaps late. An earlier pass
        // comes back later than this.
        if self.given.get(&home).is_some_and(|given| !is_newer(number, given.number))
            || self.returned.get(&home).is_some_and(|last| !is_newer(number, *last))
        {
            return;
        }
        self.returned.remove(&home);
        let of_home = |(from, want): &&mut (WorldRank, Want)| *from == home && want.is_pass();
        match self.waiting.iter_mut().find(of_home) {
            Some((_, Want::Pass { number: asked, holds: held })) => {
                if is_newer(number, *asked) {
                    (*asked, *held) = (number, holds);
                } else if *asked == number {
                    *held |= holds;
                }
            }
            _ => self.waiting.push_back((home, Want::Pass { number, holds })),
        }
        self.look();
        if self.waiting.iter().any(|(from, want)| *from == home && want.is_pass()) {
            self.tells.push_back(Tell::Wait { to: home, number });
        }
    }

    /// A pass comes back.
    pub(crate) fn handle_return(&mut self, home: WorldRank, number: u32) {
        let given = self.given.get(&home).is_some_and(|given| given.number == number);
        if given {
            self.given.remove(&home);
        }
        let all = self.waiting.len();
        self.waiting.retain(|(from, want)| match want {
            Want::Pass { number: asked, .. } => *from != home || *asked != number,
            Want::All { .. } => true,
        });
        let last = self.returned.get(&home);
        if !given && all == self.waiting.len() && last.is_none_or(|last| is_newer(number, *last)) {
            self.returned.insert(home, number);
        }
        self.look();
    }

    /// Homes whose passes a rank waits for.
    pub(crate) fn keepers(&self) -> impl Iterator<Item = WorldRank> {
        let waits = matches!(self.waiting.front(), Some((_, Want::All { .. })));
        self.given.keys().copied().filter(move |_| waits)
    }

    /// That home has left with its pass: it is not known which rank has its part.
    pub(crate) fn handle_loss(&mut self, home: WorldRank) {
        while let Some((to, Want::All { slot })) = self.waiting.front().copied() {
            self.waiting.pop_front();
            self.tells.push_back(Tell::Answer { to, slot, end: End::Left(home) });
        }
        self.look();
    }

    /// No rank waits here any more.
    pub(crate) fn handle_close(&mut self, end: End) {
        for (to, want) in self.waiting.drain(..) {
            if let Want::All { slot } = want {
                self.tells.push_back(Tell::Answer { to, slot, end });
            }
        }
    }

    /// Grants what can be granted, in the order of asking.
    fn look(&mut self) {
        while let Some((to, want)) = self.waiting.front().copied() {
            match want {
                Want::All { slot } if self.given.is_empty() => {
                    self.waiting.pop_front();
                    self.all.insert(to, slot);
                    self.tells.push_back(Tell::Answer { to, slot, end: End::Granted });
                }
                Want::Pass { number, .. } if self.all.is_empty() => {
                    self.waiting.pop_front();
                    self.give(to, number);
                }
                Want::All { .. } => return self.recall(),
                Want::Pass { .. } => return,
            }
        }
    }

    fn give(&mut self, to: WorldRank, number: u32) {
        self.given.insert(to, Given { number, recalled: false });
        self.tells.push_back(Tell::Pass { to, number });
    }

    /// A rank waits for passes to come back. Ranks that hold a lock and want another one are not
    /// waited for in vain: they get theirs.
    fn recall(&mut self) {
        let mut kept = VecDeque::new();
        for (home, want) in core::mem::take(&mut self.waiting) {
            match want {
                Want::Pass { number, holds: true } => self.give(home, number),
                want => kept.push_back((home, want)),
            }
        }
        self.waiting = kept;
        let mut homes: Vec<WorldRank> = self.given.keys().copied().collect();
        // A seed of the simulator decides all.
        homes.sort_unstable();
        for to in homes {
            let Some(given) = self.given.get_mut(&to).filter(|given| !given.recalled) else {
                continue;
            };
            given.recalled = true;
            self.tells.push_back(Tell::Recall { to, number: given.number });
        }
    }
}

#[cfg(test)]
#[path = "home_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
#[path = "home_loom_tests.rs"]
mod loom_tests;
