//! Ranks that lock parts of each other, near and far, and all parts, on a network that delivers in
//! any order.
use super::*;
use core::sync::atomic::AtomicU64;
use proptest::prelude::*;
use std::collections::BTreeMap;

const RANKS: u32 = 4;

/// What a rank has, or wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lock {
    Part { of: u32, exclusive: bool },
    All,
}

#[derive(Debug)]
enum Message {
    Request { to: u32, request: HomeRequest, all: bool },
    Unlock { to: u32, from: u32, slot: u64, all: bool },
    Look { to: u32 },
    Told { from: u32, tell: Tell },
}

/// What a rank does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    /// Waits for the answer to that slot.
    Requested(Lock, u64),
}

struct World {
    words: Vec<AtomicU64>,
    homes: Vec<Home>,
    passes: Passes,
    messages: Vec<Message>,
    states: Vec<State>,
    /// Requests that no rank waits for any more, and that are not answered.
    given_up: Vec<(u32, Lock, u64)>,
    /// What each rank has, and the slot that it was granted by, if it asked.
    held: Vec<BTreeMap<Lock, Option<u64>>>,
    slots: u64,
    random: u64,
    /// Locks that ranks still want.
    left: Vec<u32>,
    /// How many locks a rank may have at a time.
    depth: usize,
}

fn mode(exclusive: bool) -> Mode {
    if exclusive { Mode::Exclusive } else { Mode::Shared }
}

impl World {
    fn new(seed: u64, rounds: u32, depth: usize) -> Self {
        let ranks = RANKS as usize;
        Self {
            words: (0..RANKS).map(|_| AtomicU64::new(0)).collect(),
            homes: (0..RANKS).map(|_| Home::default()).collect(),
            passes: Passes::default(),
            messages: Vec::new(),
            states: vec![State::Idle; ranks],
            given_up: Vec::new(),
            held: vec![BTreeMap::new(); ranks],
            slots: 0,
            random: seed | 1,
            left: vec![rounds; ranks],
            depth,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % bound
    }

    /// Two nodes of two ranks.
    fn is_near(a: u32, b: u32) -> bool {
        a / 2 == b / 2
    }

    fn drain(&mut self) {
        for from in 0..RANKS {
            while let Some(tell) = self.homes[from as usize].poll() {
                self.messages.push(Message::Told { from, tell });
            }
        }
        while let Some(tell) = self.passes.poll() {
            self.messages.push(Message::Told { from: 0, tell });
        }
    }

    fn deliver(&mut self) {
        let at = self.below(self.messages.len());
        match self.messages.swap_remove(at) {
            Message::Request { request, all: true, .. } => self.passes.handle_request(&request),
            Message::Request { to, request, .. } => {
                self.homes[to as usize].handle_request(&self.words[to as usize], request);
            }
            Message::Unlock { from, slot, all: true, .. } => {
                self.passes.handle_unlock(WorldRank(from), slot);
            }
            Message::Unlock { to, from, slot, .. } => {
                let word = &self.words[to as usize];
                self.homes[to as usize].handle_unlock(word, WorldRank(from), slot);
            }
            Message::Look { to } => self.homes[to as usize].look(&self.words[to as usize]),
            Message::Told { from, tell } => self.told(from, tell),
        }
        self.drain();
    }

    fn told(&mut self, from: u32, tell: Tell) {
        let home = WorldRank(from);
        match tell {
            Tell::Answer { to, slot, end } => self.answered(to.0, slot, end),
            Tell::Request { number, holds } => self.passes.handle_pass_request(home, number, holds),
            Tell::Return { number } => self.passes.handle_return(home, number),
            Tell::Wait { to, number } => {
                self.homes[to.0 as usize].handle_wait(&self.words[to.0 as usize], number);
            }
            Tell::Pass { to, number } => {
                self.homes[to.0 as usize].handle_pass(&self.words[to.0 as usize], number);
            }
            Tell::Recall { to, number } => {
                self.homes[to.0 as usize].handle_recall(&self.words[to.0 as usize], number);
            }
        }
    }

    fn answered(&mut self, rank: u32, slot: u64, end: End) {
        let at = rank as usize;
        match self.states[at] {
            State::Requested(lock, mine) if mine == slot => {
                self.states[at] = State::Idle;
                if end == End::Granted {
                    self.enter(rank, lock, Some(slot));
                } else {
                    assert_eq!(end, End::Busy, "no rank left");
                }
            }
            state => {
                let it = self.given_up.iter().position(|given| (given.0, given.2) == (rank, slot));
                let it = it.unwrap_or_else(|| panic!("{rank} never sent {slot}: {state:?}"));
                let (_, lock, _) = self.given_up.swap_remove(it);
                if end == End::Granted {
                    self.send_back(rank, lock, slot);
                }
            }
        }
    }

    fn send_back(&mut self, from: u32, lock: Lock, slot: u64) {
        let (to, all) = match lock {
            Lock::Part { of, .. } => (of, false),
            Lock::All => (0, true),
        };
        self.messages.push(Message::Unlock { to, from, slot, all });
    }

    /// No rank is inside that may not be there at the same time.
    fn enter(&mut self, rank: u32, lock: Lock, slot: Option<u64>) {
        for (other, held) in
            self.held.iter().enumerate().filter(|(other, _)| *other != rank as usize)
        {
            for there in held.keys() {
                let together = match (lock, *there) {
                    (Lock::All, Lock::All) => true,
                    (Lock::All, Lock::Part { exclusive, .. })
                    | (Lock::Part { exclusive, .. }, Lock::All) => !exclusive,
                    (Lock::Part { of, exclusive }, Lock::Part { of: other, exclusive: too }) => {
                        of != other || !(exclusive || too)
                    }
                };
                assert!(together, "{rank} enters {lock:?}, where {other} has {there:?}");
            }
        }
        self.held[rank as usize].insert(lock, slot);
        self.left[rank as usize] -= 1;
    }

    fn want(&mut self, rank: u32) {
        // In order, so that the ranks do not wait for each other whatever the locks do.
        let above = match self.held[rank as usize].keys().next_back() {
            None => 0,
            Some(Lock::Part { of, .. }) => of + 1,
            Some(Lock::All) => RANKS,
        };
        if above >= RANKS {
            return;
        }
        let all = self.held[rank as usize].is_empty() && self.below(4) == 0;
        let of = above + self.below((RANKS - above) as usize) as u32;
        let exclusive = self.below(2) == 0;
        let lock = if all { Lock::All } else { Lock::Part { of, exclusive } };
        if !all && Self::is_near(rank, of) {
            let word = &self.words[of as usize];
            let seen = word.load(SeqCst);
            if let Some(new) = take(seen, mode(exclusive), rank) {
                word.store(new, SeqCst);
                return self.enter(rank, lock, None);
            }
        }
        self.slots += 1;
        let holds = !self.held[rank as usize].is_empty();
        let tries = self.below(5) == 0;
        let mode = mode(exclusive && !all);
        let (from, slot) = (WorldRank(rank), self.slots);
        let tries = tries && !all;
        let request = HomeRequest { from, rank, slot, mode, holds, tries };
        let to = if all { 0 } else { of };
        self.messages.push(Message::Request { to, request, all });
        self.states[rank as usize] = State::Requested(lock, slot);
    }

    fn release(&mut self, rank: u32) {
        let Some((lock, slot)) = self.held[rank as usize].pop_last() else { return };
        match (slot, lock) {
            (Some(slot), lock) => self.send_back(rank, lock, slot),
            (None, Lock::Part { of, exclusive }) => {
                let word = &self.words[of as usize];
                let left = give(word.load(SeqCst), mode(exclusive));
                word.store(left, SeqCst);
                if must_tell(left, mode(exclusive)) {
                    self.messages.push(Message::Look { to: of });
                }
            }
            (None, Lock::All) => panic!("it is asked for"),
        }
    }

    fn act(&mut self, rank: u32) {
        let (at, depth) = (rank as usize, self.depth);
        match self.states[at] {
            State::Idle if self.held[at].len() < depth && self.left[at] > 0 => {
                if self.held[at].is_empty() || self.below(2) == 0 {
                    self.want(rank);
                } else {
                    self.release(rank);
                }
            }
            State::Idle => self.release(rank),
            State::Requested(lock, slot) => {
                if self.below(40) == 0 {
                    self.states[at] = State::Idle;
                    self.given_up.push((rank, lock, slot));
                    self.send_back(rank, lock, slot);
                }
            }
        }
    }

    /// Whether nothing can happen any more.
    fn is_over(&self) -> bool {
        let idle = |rank: usize| {
            self.states[rank] == State::Idle && self.held[rank].is_empty() && self.left[rank] == 0
        };
        self.messages.is_empty() && self.given_up.is_empty() && (0..RANKS as usize).all(idle)
    }

    fn play(mut self) {
        for _ in 0..200_000 {
            if self.is_over() {
                let free = |word: &AtomicU64| word.load(SeqCst) & !OPEN == 0;
                assert!(self.words.iter().all(free), "{:?}", self.words);
                assert!(
                    self.homes.iter().all(|home| !home.is_waited_for() && !home.is_requesting())
                );
                assert!(!self.passes.is_waited_for());
                return;
            }
            let actor = self.below(RANKS as usize + 3);
            if actor < RANKS as usize {
                self.act(actor as u32);
            } else if !self.messages.is_empty() {
                self.deliver();
            }
        }
        panic!("they wait for ever: {:?} {:?} {:?}", self.states, self.held, self.messages);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 5000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn each_rank_has_a_turn_and_no_two_exclude_each_other(
        seed: u64, rounds in 1u32..12, depth in 1usize..4,
    ) {
        World::new(seed, rounds, depth).play();
    }
}

/// Requests for a pass that came after it had been there and gone.
#[test]
fn late_requests_for_a_pass_change_nothing() {
    World::new(1055082816648811042, 6, 3).play();
    World::new(11766706718936010048, 3, 2).play();
}

fn request(from: u32, slot: u64, mode: Mode) -> HomeRequest {
    let (rank, from) = (from, WorldRank(from));
    HomeRequest { from, rank, slot, mode, holds: false, tries: false }
}

fn tells(home: &mut Home) -> Vec<Tell> {
    core::iter::from_fn(|| home.poll()).collect()
}

fn answer(to: u32, slot: u64, end: End) -> Tell {
    Tell::Answer { to: WorldRank(to), slot, end }
}

/// With a pass, an exclusive lock is one request and one grant, whichever rank had it before.
#[test]
fn a_pass_stays_as_long_as_no_rank_locks_all() {
    let (word, mut home, mut first) = (AtomicU64::new(0), Home::default(), Passes::default());
    home.handle_request(&word, request(1, 10, Mode::Exclusive));
    assert_eq!(tells(&mut home), [Tell::Request { number: 1, holds: false }]);
    first.handle_pass_request(WorldRank(5), 1, false);
    assert_eq!(first.poll(), Some(Tell::Pass { to: WorldRank(5), number: 1 }));
    home.handle_pass(&word, 1);
    assert_eq!(tells(&mut home), [answer(1, 10, End::Granted)]);
    for slot in 11..20 {
        home.handle_unlock(&word, WorldRank(1), slot - 1);
        home.handle_request(&word, request(1, slot, Mode::Exclusive));
        assert_eq!(tells(&mut home), [answer(1, slot, End::Granted)]);
    }
    // By load and store, now that it is free.
    home.handle_unlock(&word, WorldRank(1), 19);
    assert!(take(word.load(SeqCst), Mode::Exclusive, 3).is_some());
    first.handle_request(&request(2, 30, Mode::Shared));
    assert_eq!(first.poll(), Some(Tell::Recall { to: WorldRank(5), number: 1 }));
    home.handle_recall(&word, 1);
    assert_eq!(tells(&mut home), [Tell::Return { number: 1 }]);
    assert!(take(word.load(SeqCst), Mode::Exclusive, 3).is_none());
    first.handle_return(WorldRank(5), 1);
    assert_eq!(first.poll(), Some(answer(2, 30, End::Granted)));
}

/// In the order of asking, whatever ranks ask for, and also those that could go at once.
#[test]
fn the_first_request_is_granted_first() {
    let (word, mut home) = (AtomicU64::new(OPEN), Home::default());
    home.permission = Permission::Given;
    home.handle_request(&word, request(1, 1, Mode::Shared));
    home.handle_request(&word, request(2, 2, Mode::Exclusive));
    home.handle_request(&word, request(3, 3, Mode::Shared));
    assert_eq!(tells(&mut home), [answer(1, 1, End::Granted)]);
    assert_eq!(take(word.load(SeqCst), Mode::Shared, 7), None, "a rank waits");
    home.handle_unlock(&word, WorldRank(1), 1);
    assert_eq!(tells(&mut home), [answer(2, 2, End::Granted)]);
    home.handle_unlock(&word, WorldRank(2), 2);
    assert_eq!(tells(&mut home), [answer(3, 3, End::Granted)]);
    assert!(take(word.load(SeqCst), Mode::Shared, 7).is_some());
}

/// Its reply says so at once; it leaves no trace.
#[test]
fn a_request_that_only_tries_does_not_wait() {
    let (word, mut home) = (AtomicU64::new(OPEN), Home::default());
    home.permission = Permission::Given;
    home.handle_request(&word, request(1, 1, Mode::Exclusive));
    let tries = HomeRequest { tries: true, ..request(2, 2, Mode::Shared) };
    home.handle_request(&word, tries);
    assert_eq!(tells(&mut home), [answer(1, 1, End::Granted), answer(2, 2, End::Busy)]);
    assert!(!home.is_waited_for());
    home.handle_unlock(&word, WorldRank(1), 1);
    home.handle_request(&word, HomeRequest { slot: 3, ..tries });
    assert_eq!(tells(&mut home), [answer(2, 3, End::Granted)]);
    home.handle_unlock(&word, WorldRank(2), 3);
    // Without a pass, rank 0 is asked, but not waited for.
    home.permission = Permission::None;
    let exclusive = HomeRequest { mode: Mode::Exclusive, slot: 4, ..tries };
    home.handle_request(&word, exclusive);
    assert_eq!(tells(&mut home), [Tell::Request { number: 1, holds: false }]);
    let mut first = Passes::default();
    first.handle_request(&request(3, 9, Mode::Shared));
    first.handle_pass_request(WorldRank(0), 1, false);
    let all: Vec<Tell> = core::iter::from_fn(|| first.poll()).collect();
    let wait = Tell::Wait { to: WorldRank(0), number: 1 };
    assert_eq!(all, [answer(3, 9, End::Granted), wait]);
    home.handle_wait(&word, 1);
    assert_eq!(tells(&mut home), [answer(2, 4, End::Busy)]);
    // It still waits for the pass, and says so without asking again.
    home.handle_request(&word, HomeRequest { slot: 6, ..exclusive });
    assert_eq!(tells(&mut home), [answer(2, 6, End::Busy)]);
    home.handle_pass(&word, 1);
    home.handle_recall(&word, 1);
    assert_eq!(tells(&mut home), [Tell::Return { number: 1 }]);
    home.handle_request(&word, HomeRequest { slot: 7, ..exclusive });
    assert_eq!(tells(&mut home), [Tell::Request { number: 2, holds: false }]);
    home.handle_wait(&word, 1);
    assert_eq!(tells(&mut home), [], "of the one before");
    home.handle_wait(&word, 2);
    assert_eq!(tells(&mut home), [answer(2, 7, End::Busy)]);
    home.handle_pass(&word, 2);
    home.handle_request(&word, HomeRequest { slot: 5, ..exclusive });
    assert_eq!(tells(&mut home), [answer(2, 5, End::Granted)]);
}

/// The next in line has its turn, and nothing is granted to a rank that does not want it.
#[test]
fn a_rank_that_gives_up_is_not_in_line() {
    let (word, mut home) = (AtomicU64::new(0), Home::default());
    home.handle_request(&word, request(1, 1, Mode::Shared));
    home.handle_request(&word, request(2, 2, Mode::Exclusive));
    home.handle_request(&word, request(3, 3, Mode::Shared));
    let pass = Tell::Request { number: 1, holds: false };
    assert_eq!(tells(&mut home), [answer(1, 1, End::Granted), pass]);
    for (from, slot) in [(2, 3), (3, 2)] {
        home.handle_unlock(&word, WorldRank(from), slot);
        assert_eq!(tells(&mut home), [], "another rank's");
    }
    home.handle_unlock(&word, WorldRank(2), 2);
    assert_eq!(tells(&mut home), [answer(2, 2, End::Busy), answer(3, 3, End::Granted)]);
    assert!(!home.is_waited_for());
    let mut first = Passes::default();
    first.handle_pass_request(WorldRank(5), 1, false);
    assert_eq!(first.poll(), Some(Tell::Pass { to: WorldRank(5), number: 1 }));
    first.handle_request(&request(1, 1, Mode::Shared));
    assert_eq!(first.poll(), Some(Tell::Recall { to: WorldRank(5), number: 1 }));
    first.handle_unlock(WorldRank(1), 2);
    first.handle_unlock(WorldRank(2), 1);
    assert!(first.poll().is_none() && first.is_waited_for());
    first.handle_unlock(WorldRank(1), 1);
    assert_eq!(first.poll(), Some(answer(1, 1, End::Busy)));
    assert!(first.poll().is_none() && !first.is_waited_for());
}

/// Nothing is given back twice, or by a rank that it was not given to.
#[test]
fn what_was_not_granted_is_not_taken_back() {
    let (word, mut home) = (AtomicU64::new(0), Home::default());
    home.handle_request(&word, request(1, 1, Mode::Shared));
    home.handle_request(&word, request(2, 2, Mode::Shared));
    for (from, slot, left) in [(3, 1, 2), (2, 1, 2), (1, 2, 2), (1, 1, 1), (1, 1, 1), (2, 2, 0)] {
        home.handle_unlock(&word, WorldRank(from), slot);
        assert_eq!(word.load(SeqCst), left, "{from} {slot}");
    }
    let mut first = Passes::default();
    first.handle_request(&request(1, 1, Mode::Shared));
    first.handle_pass_request(WorldRank(5), 1, false);
    assert_eq!(first.poll(), Some(answer(1, 1, End::Granted)));
    assert_eq!(first.poll(), Some(Tell::Wait { to: WorldRank(5), number: 1 }));
    for (from, slot) in [(1, 2), (2, 1)] {
        first.handle_unlock(WorldRank(from), slot);
        assert_eq!(first.poll(), None, "{from} {slot}");
    }
    first.handle_unlock(WorldRank(1), 1);
    assert_eq!(first.poll(), Some(Tell::Pass { to: WorldRank(5), number: 1 }));
}

/// Ranks that wait hear of it, and passes come back, or are lost with a home that has left.
#[test]
fn a_rank_that_leaves_ends_the_waits_that_are_on_it() {
    let (word, mut home) = (AtomicU64::new(0), Home::default());
    home.handle_request(&word, request(1, 1, Mode::Exclusive));
    home.handle_request(&word, request(2, 2, Mode::Shared));
    assert!(home.is_requesting());
    assert_eq!(tells(&mut home), [Tell::Request { number: 1, holds: false }]);
    let gone = WorldRank(0);
    home.handle_loss(&word, gone);
    assert_eq!(tells(&mut home), [answer(1, 1, End::Left(gone)), answer(2, 2, End::Granted)]);
    let mut first = Passes::default();
    first.handle_pass_request(WorldRank(5), 1, false);
    first.handle_request(&request(2, 3, Mode::Shared));
    assert_eq!(first.keepers().collect::<Vec<_>>(), [WorldRank(5)]);
    first.handle_loss(WorldRank(5));
    let all: Vec<Tell> = core::iter::from_fn(|| first.poll()).collect();
    assert_eq!(all.last(), Some(&answer(2, 3, End::Left(WorldRank(5)))));
    // It leaves itself.
    let (word, mut home) = (AtomicU64::new(OPEN), Home::default());
    (home.permission, home.number) = (Permission::Given, 4);
    home.handle_close(&word, End::Left(WorldRank(9)));
    assert_eq!(tells(&mut home), [Tell::Return { number: 4 }]);
    assert_eq!(take(word.load(SeqCst), Mode::Exclusive, 3), None);
}

/// It leaves while it waits for a pass: rank 0 gives it none, and it asks for no other.
#[test]
fn a_home_that_is_closed_wants_no_pass() {
    let (word, mut home, mut first) = (AtomicU64::new(0), Home::default(), Passes::default());
    let (me, end) = (WorldRank(5), End::Left(WorldRank(5)));
    first.handle_request(&request(2, 1, Mode::Shared));
    home.handle_request(&word, request(1, 1, Mode::Exclusive));
    first.handle_pass_request(me, 1, false);
    home.handle_close(&word, end);
    let asked = Tell::Request { number: 1, holds: false };
    assert_eq!(tells(&mut home), [asked, answer(1, 1, end), Tell::Return { number: 1 }]);
    first.handle_return(me, 1);
    first.handle_unlock(WorldRank(2), 1);
    first.handle_request(&request(2, 2, Mode::Shared));
    let all: Vec<Tell> = core::iter::from_fn(|| first.poll()).collect();
    let granted = |slot| answer(2, slot, End::Granted);
    assert_eq!(all, [granted(1), Tell::Wait { to: me, number: 1 }, granted(2)]);
    for mode in [Mode::Shared, Mode::Exclusive] {
        home.handle_request(&word, request(3, 1, mode));
        assert_eq!(tells(&mut home), [answer(3, 1, end)]);
    }
    assert!(!home.is_waited_for() && !home.is_requesting());
}

/// Messages overtake each other: what a home that leaves sends last may come first.
#[test]
fn a_pass_that_comes_back_before_it_was_asked_for_is_not_given() {
    let (mut first, me) = (Passes::default(), WorldRank(5));
    first.handle_return(me, 2);
    first.handle_return(me, 1);
    first.handle_pass_request(me, 2, false);
    first.handle_pass_request(me, 1, false);
    assert_eq!(first.poll(), None);
    first.handle_request(&request(2, 1, Mode::Shared));
    assert_eq!(first.poll(), Some(answer(2, 1, End::Granted)), "no home has a pass");
    first.handle_unlock(WorldRank(2), 1);
    first.handle_pass_request(me, 3, false);
    assert_eq!(first.poll(), Some(Tell::Pass { to: me, number: 3 }));
}

/// Of two messages that ask for a pass, the first comes when the pass has been there and gone.
#[test]
fn a_pass_that_no_rank_wants_goes_back() {
    let (word, mut home) = (AtomicU64::new(0), Home::default());
    home.handle_pass(&word, 7);
    assert_eq!(tells(&mut home), [Tell::Return { number: 7 }]);
    home.handle_recall(&word, 7);
    assert_eq!(tells(&mut home), [Tell::Return { number: 7 }]);
    home.handle_request(&word, request(1, 1, Mode::Exclusive));
    assert_eq!(tells(&mut home), [Tell::Request { number: 1, holds: false }]);
    home.handle_pass(&word, 0);
    home.handle_recall(&word, 0);
    assert_eq!(tells(&mut home), [Tell::Return { number: 0 }, Tell::Return { number: 0 }]);
    home.handle_pass(&word, 1);
    assert_eq!(tells(&mut home), [answer(1, 1, End::Granted)]);
}

/// A state of shared holders does not overflow into the writer's.
#[test]
fn holders_are_counted_within_their_bits() {
    assert_eq!(take(WRITER - 2, Mode::Shared, 0), Some(WRITER - 1));
    assert_eq!(take(WRITER - 1, Mode::Shared, 0), None);
    assert_eq!(give(0, Mode::Shared), 0);
    assert_eq!(give(WRITER | 7, Mode::Shared), WRITER | 7, "it is not shared");
}
