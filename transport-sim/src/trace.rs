//! Digest of everything that happened, in order.

use crate::random::mix;

/// What a run did: two runs with equal traces did the same things in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trace {
    /// Digest of which rank ran when, sent how many bytes to which, what devices did, which slept
    /// and which left.
    pub hash: u64,
    /// Yields of all ranks together.
    pub steps: u64,
    /// Virtual time at the end, in ticks.
    pub ticks: u64,
}

/// What is worth a place in the digest. Contents of messages are not: they may hold addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    /// The baton went to this rank, or to an agent: they count after the ranks.
    Run = 1,
    /// A message left: receiver, length, due time.
    Send,
    /// A queue was full: receiver.
    Refuse,
    /// A message was handed over: sender, length.
    Deliver,
    /// A rank went to sleep: deadline.
    Park,
    /// A rank rang another.
    Ring,
    /// A rank told the others that it leaves: how.
    Depart,
    /// A rank's code ended, or its agent's.
    Leave,
    /// A rank's agent started.
    Agent,
    /// A rank registered memory: how many bytes.
    Register,
    /// It dropped a registration.
    Deregister,
    /// It posted to its device: peer, length, what became of it.
    Post,
    /// It posted a flush: peer, what became of it.
    Flush,
    /// Its device took a step of a transfer: peer, which transfer, step.
    Step,
    /// It cut off what it posted: peer.
    Quiesce,
}

/// Digest under construction.
#[derive(Debug, Default)]
pub(crate) struct Tracer(u64);

/// Written without iterators, as every yield comes here and Miri pays for each call.
const fn fold(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Tracer {
    pub(crate) const fn note(&mut self, rank: u32, event: Event, [a, b, c]: [u64; 3]) {
        let head = (rank as u64) << 8 | event as u64;
        self.0 = fold(fold(fold(fold(self.0, head), a), b), c);
    }

    pub(crate) const fn hash(&self) -> u64 {
        mix(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(events: &[(u32, Event, [u64; 3])]) -> u64 {
        let mut tracer = Tracer::default();
        events.iter().for_each(|&(rank, event, details)| tracer.note(rank, event, details));
        tracer.hash()
    }

    #[test]
    fn every_part_of_an_event_and_the_order_count() {
        let one = (1, Event::Send, [1, 2, 3]);
        let others = [
            (2, Event::Send, [1, 2, 3]),
            (1, Event::Ring, [1, 2, 3]),
            (1, Event::Send, [9, 2, 3]),
            (1, Event::Send, [1, 9, 3]),
            (1, Event::Send, [1, 2, 9]),
        ];
        for other in others {
            assert_ne!(hash(&[one]), hash(&[other]), "{other:?}");
            assert_ne!(hash(&[one, other]), hash(&[other, one]), "{other:?}");
        }
        assert_ne!(hash(&[one]), hash(&[one, one]));
    }
}
