//! Threads of which one combines alone until another comes, on words whose accesses are seen late.
use super::*;
use crate::memory::control_block::STRIPES;
use core::sync::atomic::AtomicU8;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU16, AtomicU64};
use loom::thread;

/// The words of a bias, and an element.
#[derive(Default)]
struct Words {
    bias: AtomicU64,
    busy: AtomicU64,
    earned: AtomicU64,
    /// By which [ways](Way) elements are combined, in all runs of a test.
    ways: std::sync::Arc<AtomicU8>,
    stripes: [AtomicU64; STRIPES],
    element: AtomicU64,
    /// What only a thread that is alone changes, and others may read who come behind it.
    plain: UnsafeCell<u64>,
}

impl Stripes for &Words {
    fn stripe(&self, index: usize) -> &impl Word<Value = u64> {
        &self.stripes[index]
    }
}

impl Biased for &Words {
    fn bias(&self) -> &impl Word<Value = u64> {
        &self.bias
    }

    fn busy(&self) -> &impl Word<Value = u64> {
        &self.busy
    }

    fn earned(&self) -> &impl Word<Value = u64> {
        &self.earned
    }
}

impl Words {
    fn add_alone(&self) -> u64 {
        self.element.store(self.element.load(Relaxed) + 1, Relaxed);
        self.plain.with_mut(|_| ());
        1
    }

    fn add_among_others(&self) -> u64 {
        self.element.fetch_add(1, Relaxed);
        self.plain.with(|_| ());
        1
    }

    fn check(&self, added: u64) {
        assert_eq!(self.element.load(Relaxed), added);
        assert!(added > 0, "one of all is not busy");
    }
}

/// The system has all threads pass a fence; loom has no such thing, so each has one of its own.
fn fence_all() -> Result<(), ()> {
    loom::sync::atomic::fence(SeqCst);
    Ok(())
}

impl From<u16> for Noted<AtomicU16> {
    fn from(note: u16) -> Self {
        Self(AtomicU16::new(note))
    }
}

/// A thread of rank 0, or the only one of another: loom's have the thread-locals of one.
fn thread_of(rank: u32, token: u16) -> Holder {
    Holder { rank: Rank(rank), token }
}

/// Adds one: by a load and a store alone, by an atomic where all combine. Says how many: none if
/// the holder was busy, which a message handler does not wait for.
fn add(words: &Words, me: Holder) -> u64 {
    match admit(words, Some(me), Integers::ByAtomics, fence_all).unwrap() {
        Admission::Alone(_alone) => words.add_alone(),
        Admission::Shared(_) => words.add_among_others(),
        Admission::Busy => 0,
    }
}

/// As [`add`], of a thread that first looks at what its rank knows, and notes what it finds.
fn add_noted(words: &Words, noted: &Noted<AtomicU16>, me: Holder) -> u64 {
    match noted.mechanism(true, me, || Some(words)) {
        Some(Mechanism::Alone(_alone)) => words.add_alone(),
        Some(Mechanism::Atomics) => words.add_among_others(),
        Some(Mechanism::Stripes) => unreachable!("integers are combined by atomics"),
        None => {
            let added = add(words, me);
            noted.set(note(words, me, Integers::ByAtomics));
            added
        }
    }
}

fn sum_of(times: u64, others: u32) {
    loom::model(move || {
        let words = Arc::new(Words::default());
        let others: Vec<_> = (1..=others)
            .map(|rank| {
                let (words, me) = (words.clone(), thread_of(rank, 4));
                thread::spawn(move || add(&words, me) + add(&words, me))
            })
            .collect();
        let mine: u64 = (0..times).map(|_| add(&words, thread_of(0, 4))).sum();
        words.check(others.into_iter().fold(mine, |sum, other| sum + other.join().unwrap()));
    });
}

#[test]
fn loom_no_sum_is_lost_when_a_bias_is_revoked() {
    sum_of(2, 1);
}

#[test]
fn loom_no_sum_is_lost_when_two_revoke_a_bias() {
    sum_of(1, 2);
}

/// Two threads of a rank, which note for each other what they know.
#[test]
fn loom_no_sum_is_lost_where_threads_share_what_they_know() {
    loom::model(|| {
        let words = Arc::new(Words::default());
        let noted = Arc::new(Noted::from(Note::NOTHING.0));
        let other = {
            let (words, noted, me) = (words.clone(), noted.clone(), thread_of(0, 5));
            thread::spawn(move || add_noted(&words, &noted, me) + add_noted(&words, &noted, me))
        };
        let me = thread_of(0, 4);
        let mine: u64 = (0..2).map(|_| add_noted(&words, &noted, me)).sum();
        words.check(mine + other.join().unwrap());
    });
}

/// An element of a type that is atomic, which the holder does not combine alone, but as all would.
#[test]
fn loom_single_atomics_of_the_holder_are_not_lost() {
    loom::model(|| {
        let words = Arc::new(Words::default());
        let noted = Noted::from(Note::NOTHING.0);
        let other = {
            let words = words.clone();
            thread::spawn(move || add(&words, thread_of(1, 4)))
        };
        let me = thread_of(0, 4);
        let mine = add_noted(&words, &noted, me);
        let single = if noted.takes_atomics(me.token) { words.add_among_others() } else { 0 };
        words.check(mine + single + other.join().unwrap());
    });
}

/// What a rank notes for each kind of epoch.
struct Tables([Noted<AtomicU16>; 2]);

impl Tables {
    fn new() -> Self {
        Self([(); 2].map(|()| Noted::from(Note::NOTHING.0)))
    }

    fn set(&self, note: Note) {
        self.0.iter().for_each(|noted| noted.set(note));
    }
}

/// As a window does it: adds one to an element of an array of so many bytes, by the means that it
/// finds. Says how many: none if it would have to wait.
fn add_as_it_comes(words: &Words, tables: &Tables, me: Holder, bytes: usize) -> u64 {
    weigh(words, bytes, me.rank);
    let mechanism = match tables.0[0].mechanism(true, me, || Some(words)) {
        Some(mechanism) => mechanism,
        None => {
            let admission = admit(words, Some(me), Integers::AsTheyCome, fence_all);
            let mechanism = match admission.unwrap() {
                Admission::Alone(alone) => Mechanism::Alone(alone),
                Admission::Shared(note) => note.mechanism(true).unwrap(),
                Admission::Busy => return 0,
            };
            tables.set(note(words, me, Integers::AsTheyCome));
            mechanism
        }
    };
    if let Mechanism::Stripes = mechanism {
        settle(words, me, |note| tables.set(note));
    }
    let held = match mechanism {
        Mechanism::Stripes => Some(stripe::try_one(words, 0, me.rank)),
        _ => None,
    };
    let way = match (&mechanism, mechanism.is_by_atomics(BasicType::I64, words)) {
        (Mechanism::Alone(_), _) => Way::Alone,
        (Mechanism::Atomics, _) => Way::Atomics,
        (Mechanism::Stripes, true) => Way::AtomicsUnderLock,
        (Mechanism::Stripes, false) => Way::UnderLock,
    };
    if matches!(held, Some(None)) {
        return 0;
    }
    words.ways.fetch_or(way as u8, Relaxed);
    match way {
        Way::Alone | Way::UnderLock => words.add_alone(),
        Way::Atomics | Way::AtomicsUnderLock => words.add_among_others(),
    }
}

/// How an element is combined.
#[derive(Debug, Clone, Copy)]
enum Way {
    Alone = 1,
    Atomics = 2,
    AtomicsUnderLock = 4,
    UnderLock = 8,
}

/// An element that is combined by an atomic, if what is noted for another kind of epoch allows it.
fn single(words: &Words, tables: &Tables, me: Holder) -> u64 {
    match tables.0[1].takes_atomics(me.token) {
        true => words.add_among_others(),
        false => 0,
    }
}

/// Arrays and single elements of the holder, and of another that comes; how much the first array
/// earns is whether all go by lock, or by atomics soon after.
fn as_they_come(earned: usize, expected: &[Way]) {
    let ways = std::sync::Arc::new(AtomicU8::new(0));
    let seen = ways.clone();
    loom::model(move || {
        let words = Arc::new(Words { ways: ways.clone(), ..Words::default() });
        let other = {
            let words = words.clone();
            thread::spawn(move || {
                let (noted, me) = (Tables::new(), thread_of(1, 4));
                let first = add_as_it_comes(&words, &noted, me, earned);
                first + add_as_it_comes(&words, &noted, me, 8) + single(&words, &noted, me)
            })
        };
        let (noted, me) = (Tables::new(), thread_of(0, 4));
        let mut mine = add_as_it_comes(&words, &noted, me, 8);
        mine += single(&words, &noted, me);
        mine += add_as_it_comes(&words, &noted, me, 8);
        mine += single(&words, &noted, me);
        words.check(mine + other.join().unwrap());
    });
    for way in expected {
        assert!(seen.load(Relaxed) & *way as u8 != 0, "no run has come to {way:?}");
    }
}

#[test]
fn loom_no_sum_is_lost_when_integers_go_by_lock() {
    as_they_come(1000, &[Way::Alone, Way::AtomicsUnderLock, Way::UnderLock]);
}

#[test]
fn loom_no_sum_is_lost_when_integers_go_by_atomics_again() {
    as_they_come(130, &[Way::Alone, Way::AtomicsUnderLock, Way::Atomics]);
}

/// The other is a thread of the same rank, and notes for both what it finds, one table after the
/// other.
#[test]
fn loom_no_sum_is_lost_when_integers_go_by_lock_in_threads_of_a_rank() {
    loom::model(|| {
        let shared = Arc::new((Words::default(), Tables::new()));
        let other = {
            let shared = shared.clone();
            thread::spawn(move || add_as_it_comes(&shared.0, &shared.1, thread_of(0, 5), 1000))
        };
        let ((words, noted), me) = (&*shared, thread_of(0, 4));
        let mut mine = add_as_it_comes(words, noted, me, 1000);
        mine += add_as_it_comes(words, noted, me, 1000);
        mine += single(words, noted, me);
        words.check(mine + other.join().unwrap());
    });
}
