//! How long the watcher looks before it sleeps.

use std::time::Duration;

/// Where ranks share CPUs, it looks no longer than this: the next part of what comes is quick.
const LEAST: Duration = Duration::from_micros(50);
/// So long it looks at most: what peers write here, no completion tells, so that it cannot see how
/// long ago the last of it came.
const MOST: Duration = Duration::from_millis(1);
/// A sleep that was shorter has cost the peer more than it gave: to fall asleep and to be woken
/// take tens of microseconds.
const SHORT: Duration = Duration::from_micros(200);

/// Grows while sleeps are short, and shrinks while they are not.
pub(crate) struct Patience {
    most: Duration,
    now: Duration,
}

impl Patience {
    pub(crate) fn new(is_crowded: bool) -> Self {
        Self { most: if is_crowded { LEAST } else { MOST }, now: LEAST }
    }

    /// So long it looks after it was woken, or something has come.
    pub(crate) fn span(&self) -> Duration {
        self.now
    }

    /// It has slept for so long, until its bell was rung, something came by the network, or nothing
    /// did. What the rank itself rings for says nothing of the network.
    pub(crate) fn slept(&mut self, span: Duration, is_rung: bool) {
        if !is_rung {
            let next = if span < SHORT { self.now * 2 } else { self.now / 2 };
            self.now = next.clamp(LEAST, self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LEAST, MOST, Patience};
    use std::time::Duration;

    #[test]
    fn short_sleeps_are_avoided_and_long_ones_are_not() {
        let (short, long) = (Duration::from_micros(8), Duration::from_millis(8));
        let mut patience = Patience::new(false);
        assert_eq!(patience.span(), LEAST);
        patience.slept(short, false);
        assert_eq!(patience.span(), 2 * LEAST);
        (0..8).for_each(|_| patience.slept(short, false));
        assert_eq!(patience.span(), MOST);
        patience.slept(long, false);
        assert_eq!(patience.span(), MOST / 2);
        // The rank itself rings, not the network.
        (0..8).for_each(|_| patience.slept(long, true));
        assert_eq!(patience.span(), MOST / 2);
        (0..8).for_each(|_| patience.slept(long, false));
        assert_eq!(patience.span(), LEAST);
    }

    #[test]
    fn a_crowded_machine_is_never_looked_at_for_long() {
        let mut patience = Patience::new(true);
        (0..8).for_each(|_| patience.slept(Duration::ZERO, false));
        assert_eq!(patience.span(), LEAST);
    }
}
