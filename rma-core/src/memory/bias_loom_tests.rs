//! Threads of which one combines alone until another comes, on words whose accesses are seen late.
use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU16, AtomicU64};
use loom::thread;

/// The words of a bias, and an element.
#[derive(Default)]
struct Words {
    bias: AtomicU64,
    busy: AtomicU64,
    element: AtomicU64,
    /// What only a thread that is alone changes, and others may read who come behind it.
    plain: UnsafeCell<u64>,
}

impl Biased for &Words {
    fn bias(&self) -> &impl Word<Value = u64> {
        &self.bias
    }

    fn busy(&self) -> &impl Word<Value = u64> {
        &self.busy
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
    match admit(words, Some(me), fence_all).unwrap() {
        Admission::Alone(_alone) => words.add_alone(),
        Admission::Shared => words.add_among_others(),
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
