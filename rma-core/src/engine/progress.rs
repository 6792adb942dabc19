//! Which rounds of progress look for messages.
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

/// Rounds of progress of all threads of a rank.
#[derive(Default)]
pub(super) struct Rounds {
    /// The last one did not look for messages.
    passed_over: AtomicBool,
}

impl Rounds {
    /// Whether a round that has ended so many transfers looks for messages, too. Most often a
    /// thread waits for just these, and a look at a network takes a good part of what a transfer
    /// takes. But peers wait for their messages: no two rounds in a row pass over them.
    pub(super) fn looks_for_messages(&self, ended: usize) -> bool {
        let has_before = self.passed_over.load(Relaxed);
        let passes = ended > 0 && !has_before;
        // Most often nothing changes. Threads may overwrite what others wrote: two that read this
        // at once may both pass over messages, and find so in their next rounds.
        if passes != has_before {
            self.passed_over.store(passes, Relaxed);
        }
        !passes
    }
}

#[cfg(test)]
mod tests {
    use super::Rounds;

    #[test]
    fn a_round_that_ended_transfers_passes_over_messages_never_twice_in_a_row() {
        let rounds = Rounds::default();
        let looks = |ended| rounds.looks_for_messages(ended);
        assert!(looks(0) && looks(0));
        assert!(!looks(1));
        assert!(looks(1), "the last one passed over them");
        assert!(!looks(3));
        assert!(looks(0));
        assert!(!looks(1), "a round in between has looked");
    }
}
