//! Polling by turns: one thread polls, and a thread that comes meanwhile is told when that is over.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, fence};
use std::sync::{Mutex, MutexGuard};

/// Which thread's turn it is to poll.
#[derive(Default)]
pub(crate) struct Turns {
    polling: Mutex<()>,
    turned_away: AtomicBool,
}

impl Turns {
    /// The turn, until it is given to [`end`](Self::end); `None` if another thread has it.
    pub(crate) fn begin(&self) -> Option<MutexGuard<'_, ()>> {
        let begin = || self.polling.try_lock().ok();
        begin().or_else(|| {
            self.turned_away.store(true, SeqCst);
            // Pairs with the fence in `end`: either that sees the flag, or this the free lock.
            fence(SeqCst);
            begin()
        })
    }

    /// The turn is over. True if threads were turned away, which are to be woken.
    pub(crate) fn end(&self, turn: MutexGuard<'_, ()>) -> bool {
        drop(turn);
        fence(SeqCst);
        self.turned_away.swap(false, SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;

    #[test]
    fn a_thread_that_is_turned_away_is_told_of_once() {
        let turns = Turns::default();
        let turn = turns.begin().unwrap();
        assert!(!turns.end(turn), "nobody came");
        let turn = turns.begin().unwrap();
        assert!(turns.begin().is_none());
        assert!(turns.end(turn));
        let turn = turns.begin().unwrap();
        assert!(!turns.end(turn), "told already");
    }
}
