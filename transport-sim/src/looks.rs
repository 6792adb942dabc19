//! Ranks that poll: when they yield, and when they do so in vain.

/// Looks at its memory that a rank may take in a row, each of them a yield; beyond them, it yields
/// once for as many: a rank that works through a large window does not take all steps of a run for
/// it.
const TOUCHES_MAX: u32 = 64;
/// Yields at which a rank looks for something, in a row and while nothing happens anywhere, before
/// it counts as one that polls in vain.
const LOOKS_MAX: u32 = 20_000;
/// The same once the run is lost: a rank that asks nothing does not see that it is.
const LOST_LOOKS_MAX: u32 = 1_000;

/// What a player that runs has looked for since anything happened that it could see.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Looks {
    /// How much had happened when it began.
    happenings: u64,
    since: u64,
    yields: u32,
    /// Looks at its memory, of which not each is a yield.
    touches: u32,
}

impl Looks {
    fn refresh(&mut self, happenings: u64, clock: u64) {
        if self.happenings != happenings {
            *self = Self { happenings, since: clock, ..Self::default() };
        }
    }

    /// The player yields at a look for something.
    pub(crate) fn look(&mut self, happenings: u64, clock: u64) {
        self.refresh(happenings, clock);
        self.yields += 1;
    }

    /// It looks at its memory; true if it has to yield before.
    pub(crate) fn touch(&mut self, happenings: u64, clock: u64) -> bool {
        self.refresh(happenings, clock);
        self.touches = self.touches.wrapping_add(1);
        self.touches < TOUCHES_MAX || self.touches.is_multiple_of(TOUCHES_MAX)
    }

    /// It does something that is not looking, or waits for time to pass.
    pub(crate) fn interrupt(&mut self, clock: u64) {
        (self.yields, self.since) = (0, clock);
    }

    /// Since when the player does nothing but look for what does not come, as far as one can tell.
    pub(crate) fn in_vain(&self, happenings: u64) -> Option<u64> {
        (self.happenings == happenings && self.yields >= LOOKS_MAX).then_some(self.since)
    }

    /// Whether it looks on although the run is lost.
    pub(crate) fn blind(&self) -> bool {
        self.yields >= LOST_LOOKS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_looks_at_memory_yield_once_for_some() {
        let mut looks = Looks::default();
        let mut yields = |count| (0..count).filter(|_| looks.touch(1, 0)).count() as u32;
        assert_eq!(yields(TOUCHES_MAX), TOUCHES_MAX);
        assert_eq!(yields(10 * TOUCHES_MAX), 10);
        assert!(looks.touch(2, 0), "something happened");
    }

    #[test]
    fn looks_are_in_vain_while_nothing_happens() {
        let mut looks = Looks::default();
        let mut look = |happenings, clock, count| {
            (0..count).for_each(|_| looks.look(happenings, clock));
            looks.in_vain(happenings)
        };
        assert_eq!(look(1, 7, LOOKS_MAX - 1), None);
        assert_eq!(look(1, 8, 1), Some(7));
        assert_eq!(look(2, 9, LOOKS_MAX - 1), None);
        looks.interrupt(11);
        assert_eq!(looks.in_vain(2), None);
        (0..LOOKS_MAX).for_each(|_| looks.look(2, 12));
        assert_eq!((looks.in_vain(2), looks.in_vain(3)), (Some(11), None));
    }
}
