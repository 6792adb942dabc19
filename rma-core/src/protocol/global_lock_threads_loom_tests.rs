//! Threads of a rank that pass and share the global lock together, and another rank.
//!
//! The locks are ideal, and words of other ranks are never seen late: what a thread learns late is
//! what threads of its rank tell each other.
use super::super::lock::uncontended;
use super::*;
use core::convert::Infallible;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// The part that is locked.
const PART: u32 = 0;

/// How often it is held, and in which mode.
#[derive(Default)]
struct Lock {
    held: Mutex<(u32, Option<Mode>)>,
    changed: Condvar,
}

impl Lock {
    fn acquire(&self, mode: Mode) {
        let mut held = self.held.lock().unwrap();
        while held.0 > 0 && (mode == Mode::Exclusive || held.1 != Some(mode)) {
            held = self.changed.wait(held).unwrap();
        }
        *held = (held.0 + 1, Some(mode));
    }

    fn release(&self) {
        self.held.lock().unwrap().0 -= 1;
        self.changed.notify_all();
    }

    fn is_exclusive(&self) -> bool {
        matches!(*self.held.lock().unwrap(), (1.., Some(Mode::Exclusive)))
    }
}

#[derive(Default)]
struct Shared {
    global_lock: Lock,
    part: Lock,
    watch: AtomicU64,
    marks: AtomicU64,
    mark: AtomicU64,
    /// Of the rank whose threads share them.
    told: Told<AtomicU64>,
    /// Each equal, but for a writer inside.
    data: [[AtomicU64; 2]; 3],
}

impl Shared {
    fn lock(&self, home: At) -> &Lock {
        if home == lock::global_lock() { &self.global_lock } else { &self.part }
    }

    fn word(&self, at: At) -> &AtomicU64 {
        match at {
            at if at == lock::watch() => &self.watch,
            at if at == lock::marks() => &self.marks,
            _ => &self.mark,
        }
    }

    fn write(&self, index: usize) {
        self.check(index);
        let [left, right] = &self.data[index];
        left.store(left.load(Relaxed) + 1, Relaxed);
        right.store(right.load(Relaxed) + 1, Relaxed);
    }

    fn check(&self, index: usize) {
        let [left, right] = &self.data[index];
        assert_eq!(left.load(Relaxed), right.load(Relaxed), "a writer is inside");
    }
}

impl LockOps for Shared {
    type Error = Infallible;

    fn load(&self, at: At) -> Result<u64, Infallible> {
        if at == lock::part(PART) {
            let holder = uncontended(Mode::Exclusive, 1);
            return Ok(if self.part.is_exclusive() { holder } else { 0 });
        }
        Ok(self.word(at).fetch_add(0, SeqCst))
    }

    fn swap(&self, at: At, old: u64, new: u64) -> Result<u64, Infallible> {
        let (Ok(found) | Err(found)) = self.word(at).compare_exchange(old, new, SeqCst, SeqCst);
        Ok(found)
    }

    fn acquire(&self, home: At, mode: Mode) -> Result<(), Infallible> {
        self.lock(home).acquire(mode);
        Ok(())
    }

    fn release(&self, home: At, _: Mode) -> Result<(), Infallible> {
        self.lock(home).release();
        Ok(())
    }
}

fn check<const N: usize>(watch: u64, scripts: [fn(&Shared); N]) {
    loom::model(move || {
        let shared = Arc::new(Shared { watch: AtomicU64::new(watch), ..Default::default() });
        let threads = scripts.map(|script| {
            let shared = shared.clone();
            thread::spawn(move || script(&shared))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(shared.global_lock.held.lock().unwrap().0, 0, "the global_lock is free");
        (0..shared.data.len()).for_each(|index| shared.check(index));
    });
}

/// Writes what is its own, between looks at what a `lock_all` of another rank writes.
fn pass(shared: &Shared, mine: usize) {
    let Ok(()) = shared.told.pass(|| shared.acquire(lock::global_lock(), Mode::Group));
    shared.check(2);
    shared.write(mine);
    let Ok(()) = shared.told.leave(shared);
}

/// A `lock_all` of another rank.
fn look_at_all(shared: &Shared) {
    let Ok(()) = shared.acquire(lock::global_lock(), Mode::Shared);
    shared.check(0);
    shared.check(1);
    shared.write(2);
    let Ok(()) = shared.release(lock::global_lock(), Mode::Shared);
}

#[test]
fn loom_threads_of_a_rank_pass_together() {
    check(0, [|shared| pass(shared, 0), |shared| pass(shared, 1), look_at_all]);
}

/// A `lock_all` of one of this rank's threads.
fn share_all(shared: &Shared) {
    let Ok(()) = shared.told.share(shared, 1);
    shared.check(0);
    let Ok(()) = shared.release(lock::global_lock(), Mode::Shared);
}

/// An exclusive locker of another rank.
fn write_past(shared: &Shared) {
    if lock_unwatched(shared, PART) == Ok(true) {
        shared.write(0);
        let Ok(()) = shared.release(lock::part(PART), Mode::Exclusive);
    }
}

#[test]
fn loom_a_thread_goes_by_what_another_has_watched() {
    check(1, [share_all, share_all, write_past]);
}
