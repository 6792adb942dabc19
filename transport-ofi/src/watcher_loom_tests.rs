//! Interleavings of threads that sleep or ring and of the watcher. No wait here ends by time: a
//! wake-up that is lost is a deadlock, which fails a test by itself.
use super::{Bell, Woken};
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;

fn model(test: impl Fn(Arc<Bell>) + Sync + Send + 'static) {
    loom::model(move || test(Arc::new(Bell::new().unwrap())));
}

/// Has another thread do something to the bell.
fn meanwhile(bell: &Arc<Bell>, act: impl FnOnce(&Bell) + 'static) -> thread::JoinHandle<()> {
    let bell = Arc::clone(bell);
    thread::spawn(move || act(&bell))
}

#[test]
fn loom_a_thread_that_parks_has_a_watcher_that_stands_aside() {
    model(|bell| {
        let parks = meanwhile(&bell, Bell::park);
        bell.stand_aside(|| {
            bell.file.wait();
            Woken::Rung
        });
        parks.join().unwrap();
    });
}

#[test]
fn loom_a_watcher_stands_still_until_a_thread_parks_or_rings() {
    for act in [Bell::park, Bell::ring, Bell::end] {
        model(move |bell| {
            let acts = meanwhile(&bell, act);
            bell.stand_still();
            acts.join().unwrap();
        });
    }
}

#[test]
fn loom_one_that_starves_has_the_watcher_rung_once_a_thread_sleeps() {
    model(|bell| {
        let wants = Arc::new(AtomicBool::new(false));
        let parks = meanwhile(&bell, Bell::park);
        let starves = meanwhile(&bell, {
            let wants = Arc::clone(&wants);
            move |bell| {
                wants.store(true, Relaxed);
                bell.starve();
            }
        });
        loop {
            bell.answer();
            if wants.load(Relaxed) {
                break;
            }
            bell.file.wait();
        }
        parks.join().unwrap();
        starves.join().unwrap();
    });
}

/// What is done before a ring is seen, whether or not that found the bell rung.
#[test]
fn loom_what_was_rung_for_is_seen() {
    model(|bell| {
        let done = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let ringers = [0, 1].map(|at| {
            let done = Arc::clone(&done);
            meanwhile(&bell, move |bell| {
                done[at].store(true, Relaxed);
                bell.ring();
            })
        });
        loop {
            bell.answer();
            if done.iter().all(|done| done.load(Relaxed)) {
                break;
            }
            bell.file.wait();
        }
        ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
    });
}
