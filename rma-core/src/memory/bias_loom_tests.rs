//! Threads of which one combines alone until another comes, on words whose accesses are seen late.
use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
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

/// The system has all threads pass a fence; loom has no such thing, so each has one of its own.
fn fence_all() -> Result<(), ()> {
    loom::sync::atomic::fence(SeqCst);
    Ok(())
}

/// Adds one: by a load and a store alone, by an atomic where all combine. Says how many: none if
/// the holder was busy, which a message handler does not wait for.
fn add(words: &Words, rank: u32) -> u64 {
    match admit(words, Rank(rank), fence_all).unwrap() {
        Admission::Alone(_alone) => {
            words.element.store(words.element.load(Relaxed) + 1, Relaxed);
            words.plain.with_mut(|_| ());
            1
        }
        Admission::Shared => {
            words.element.fetch_add(1, Relaxed);
            words.plain.with(|_| ());
            1
        }
        Admission::Busy => 0,
    }
}

fn sum_of(times: u64, others: u32) {
    loom::model(move || {
        let words = Arc::new(Words::default());
        let others: Vec<_> = (1..=others)
            .map(|rank| {
                let words = words.clone();
                thread::spawn(move || add(&words, rank) + add(&words, rank))
            })
            .collect();
        let mine: u64 = (0..times).map(|_| add(&words, 0)).sum();
        let added = others.into_iter().fold(mine, |sum, other| sum + other.join().unwrap());
        assert_eq!(words.element.load(Relaxed), added);
        assert!(added > 0, "one of all is not busy");
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
