//! Ranks that combine under the lock of a stripe, on words whose accesses are seen late.
use super::*;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

/// The words of a block.
#[derive(Default)]
struct Words([AtomicU64; STRIPES]);

impl Stripes for &Words {
    fn stripe(&self, index: usize) -> &impl Word<Value = u64> {
        &self.0[index]
    }
}

/// A rank that waits for a stripe looks again by itself.
fn taken<H>(attempt: impl Fn() -> Option<H>) -> H {
    loop {
        match attempt() {
            Some(held) => return held,
            None => thread::yield_now(),
        }
    }
}

/// Adds to an element as an accumulate does: by a load and a store.
fn add(element: &AtomicU64) {
    element.store(element.load(Relaxed) + 1, Relaxed);
}

#[test]
fn loom_no_sum_of_an_element_is_lost() {
    loom::model(|| {
        let shared = Arc::new((Words::default(), AtomicU64::new(0)));
        let run = |(words, element): &(Words, AtomicU64), rank| {
            let held = taken(|| try_one(words, 0, Rank(rank)));
            add(element);
            drop(held);
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || run(&shared, 1))
        };
        run(&shared, 0);
        other.join().unwrap();
        assert_eq!(shared.1.load(Relaxed), 2);
    });
}

/// One takes two stripes at once, the other one after the other.
#[test]
fn loom_no_sum_of_a_range_is_lost() {
    loom::model(|| {
        let elements = || [AtomicU64::new(0), AtomicU64::new(0)];
        let shared = Arc::new((Words::default(), elements()));
        let other = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (words, elements) = &*shared;
                for (stripe, element) in (0..).zip(elements) {
                    let held = taken(|| try_one(words, stripe * STRIPE, Rank(1)));
                    add(element);
                    drop(held);
                }
            })
        };
        let (words, elements) = &*shared;
        let held = taken(|| try_range(words, &(0..2 * STRIPE), Rank(0)));
        elements.iter().for_each(add);
        drop(held);
        other.join().unwrap();
        assert!(elements.iter().all(|element| element.load(Relaxed) == 2));
    });
}
