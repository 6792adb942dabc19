//! Threads of a rank that take turns, on a word whose accesses are seen late. A thread that sleeps
//! and is not woken is a deadlock, which loom reports.
use super::*;
use loom::sync::atomic::AtomicU32;
use loom::sync::{Arc, Notify};
use loom::thread;

/// How a thread that finds the turn taken tries again before it sleeps.
type Again = fn(&AtomicU32) -> bool;

#[derive(Default)]
struct Threads {
    word: AtomicU32,
    bells: [Notify; 3],
    /// Turns that threads had: a load and a store.
    turns: AtomicU32,
}

impl Threads {
    fn run(&self, bell: usize) {
        if !try_take(&self.word) {
            while !take_or_await(&self.word) {
                self.bells[bell].wait();
            }
        }
        self.turns.store(self.turns.load(Relaxed) + 1, Relaxed);
        if give_back(&self.word) {
            self.bells.iter().for_each(Notify::notify);
        }
    }
}

fn check(count: usize, turns: u32) {
    let mut model = loom::model::Builder::new();
    if count > 2 {
        // More takes minutes.
        model.preemption_bound = Some(2);
    }
    model.check(move || {
        let threads = Arc::new(Threads::default());
        let run = move |threads: &Threads, bell| (0..turns).for_each(|_| threads.run(bell));
        let others = (1..count).map(|bell| {
            let threads = threads.clone();
            thread::spawn(move || run(&threads, bell))
        });
        let others = others.collect::<Vec<_>>();
        run(&threads, 0);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(threads.turns.load(Relaxed), turns * count as u32);
        assert!(try_take(&threads.word), "nobody has the turn");
    });
}

#[test]
fn loom_two_threads_take_turns_twice() {
    check(2, 2);
}

#[test]
fn loom_three_threads_take_turns() {
    check(3, 1);
}

/// A thread that finds the turn taken sleeps; the one that has it gives it back meanwhile, and
/// hears of that.
fn give_back_to_one_that_sleeps(again: Again) {
    loom::model(move || {
        let word = Arc::new(AtomicU32::new(TAKEN));
        let other = {
            let word = word.clone();
            thread::spawn(move || again(&word))
        };
        let told = give_back(&*word);
        let taken = other.join().unwrap();
        assert!(taken || told, "a thread sleeps, and nobody wakes it");
    });
}

#[test]
fn loom_to_give_the_turn_back_tells_of_a_thread_that_sleeps() {
    give_back_to_one_that_sleeps(take_or_await);
}

/// The model notices a thread that sleeps without having said so.
#[test]
#[should_panic(expected = "nobody wakes it")]
fn loom_a_thread_that_does_not_say_that_it_waits_is_not_woken() {
    give_back_to_one_that_sleeps(try_take);
}
