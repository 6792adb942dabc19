//! Neighbours that take and give back the lock by load and store, while its home grants it to
//! others and has its pass recalled. Loom takes a sequentially consistent access for an acquiring
//! and releasing one; every access here is a compare-and-swap of one word, for which that will do.
use super::*;
use loom::sync::atomic::Ordering::Relaxed;
use loom::sync::atomic::{AtomicU64, AtomicUsize};
use loom::sync::{Arc, Mutex, Notify};
use loom::thread;

struct Shared {
    word: AtomicU64,
    home: Mutex<Side>,
    bells: [Notify; 2],
    granted: [AtomicUsize; 2],
    /// Changed by exclusive holders only, not at once.
    data: AtomicU64,
    returned: AtomicUsize,
}

/// The home's side, and rank 0's.
struct Side {
    home: Home,
    /// A rank has locked all parts: passes have to wait.
    all: bool,
    asked: Option<u32>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let home = Home { permission: Permission::Given, ..Home::default() };
        Arc::new(Self {
            word: AtomicU64::new(OPEN),
            home: Mutex::new(Side { home, all: false, asked: None }),
            bells: [Notify::new(), Notify::new()],
            granted: [AtomicUsize::new(0), AtomicUsize::new(0)],
            data: AtomicU64::new(0),
            returned: AtomicUsize::new(0),
        })
    }

    /// What the home's progress does with a message.
    fn at_home(&self, act: impl FnOnce(&mut Home, &AtomicU64)) {
        let mut side = self.home.lock().unwrap();
        act(&mut side.home, &self.word);
        self.tell(&mut side);
    }

    fn tell(&self, side: &mut Side) {
        while let Some(tell) = side.home.poll() {
            match tell {
                Tell::Answer { to, end, .. } => {
                    assert_eq!(end, End::Granted);
                    self.granted[to.0 as usize].store(1, SeqCst);
                    self.bells[to.0 as usize].notify();
                }
                Tell::Return { .. } => {
                    side.all = true;
                    self.returned.fetch_add(1, SeqCst);
                }
                Tell::Request { number, .. } => side.asked = Some(number),
                tell => panic!("{tell:?}"),
            }
            if let Some(number) = side.asked.take_if(|_| !side.all) {
                side.home.handle_pass(&self.word, number);
            }
        }
    }

    /// The rank that had locked all parts leaves.
    fn unlock_all(&self) {
        let mut side = self.home.lock().unwrap();
        side.all = false;
        if let Some(number) = side.asked.take() {
            side.home.handle_pass(&self.word, number);
        }
        self.tell(&mut side);
    }

    /// True if it was taken by load and store.
    fn lock(&self, rank: u32, mode: Mode) -> bool {
        let mut seen = self.word.load(SeqCst);
        while let Some(new) = take(seen, mode, rank) {
            match self.word.compare_exchange(seen, new, SeqCst, SeqCst) {
                Ok(_) => return true,
                Err(found) => seen = found,
            }
        }
        let (from, holds, tries) = (WorldRank(rank), false, false);
        let request = HomeRequest { from, rank, slot: 1, mode, holds, tries };
        self.at_home(|home, word| home.handle_request(word, request));
        while self.granted[rank as usize].load(SeqCst) == 0 {
            self.bells[rank as usize].wait();
        }
        false
    }

    fn unlock(&self, rank: u32, mode: Mode, direct: bool) {
        if !direct {
            return self.at_home(|home, word| home.handle_unlock(word, WorldRank(rank), 1));
        }
        let left = give(update(&self.word, |seen| give(seen, mode)), mode);
        if must_tell(left, mode) {
            self.at_home(|home, word| home.look(word));
        }
    }

    fn write(&self, rank: u32) {
        let direct = self.lock(rank, Mode::Exclusive);
        self.data.store(self.data.load(Relaxed) + 1, Relaxed);
        self.unlock(rank, Mode::Exclusive, direct);
    }
}

/// Of two writers, one may find the other inside: it is granted the lock, and none is lost.
#[test]
fn loom_two_writers_by_word_and_by_message() {
    loom::model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let thread = thread::spawn(move || other.write(1));
        shared.write(0);
        thread.join().unwrap();
        assert_eq!(shared.data.load(Relaxed), 2);
        assert_eq!(shared.word.load(SeqCst), OPEN);
    });
}

/// A reader that is inside keeps a writer waiting, and tells the home when it goes.
#[test]
fn loom_a_reader_wakes_the_writer() {
    loom::model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let thread = thread::spawn(move || other.write(1));
        let direct = shared.lock(0, Mode::Shared);
        let seen = shared.data.load(Relaxed);
        assert_eq!(shared.data.load(Relaxed), seen, "a writer is inside");
        shared.unlock(0, Mode::Shared, direct);
        thread.join().unwrap();
        assert_eq!((shared.data.load(Relaxed), shared.word.load(SeqCst)), (1, OPEN));
    });
}

/// A pass is back only when the writer has left that took the lock without asking.
#[test]
fn loom_a_pass_comes_back_when_the_writer_has_left() {
    loom::model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let thread = thread::spawn(move || other.write(1));
        shared.at_home(|home, word| home.handle_recall(word, 0));
        if shared.returned.load(SeqCst) == 1 {
            let seen = shared.data.load(Relaxed);
            assert_eq!(shared.data.load(Relaxed), seen, "a writer is inside");
            shared.unlock_all();
        }
        thread.join().unwrap();
        assert_eq!((shared.returned.load(SeqCst), shared.data.load(Relaxed)), (1, 1));
    });
}
