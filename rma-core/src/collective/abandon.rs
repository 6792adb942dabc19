//! Collective operations that cannot end, because a member left without taking part, or cannot go
//! on.
//!
//! Who waits for a member that left notices by itself. Others wait for ranks that have noticed, and
//! gone on with something else: so each that gives up tells all members from which operation on,
//! and their waits in that operation and later ones end. Each does, also who was told before: what
//! a rank tells may be lost when it leaves, and who waits for it sees it leave then. S-M7
use super::mail::{Step, step_head};
use crate::communicator::Inner;
use crate::completion::{Cause, On, Wait, WaitError};
use crate::protocol::message::Head;
use crate::rank::Rank;
use crate::transport::WorldRank;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A place in the order of a communicator's operations, which is the same at all of its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Tag of an operation by messages.
    pub(crate) tag: u32,
    /// Number of a barrier by flags. They are counted by themselves: one that fails is repeated.
    pub(crate) barrier: u64,
}

/// How a rank waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Messages,
    Flags,
}

/// Why members wait for each other in vain, and from where on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Abandoned {
    pub(crate) cause: Cause,
    pub(crate) from: Place,
}

/// What a rank knows of operations of a communicator that cannot end.
#[derive(Debug, Default)]
pub(crate) struct News(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    news: Option<Abandoned>,
    /// This rank has told the others.
    told: bool,
}

impl Place {
    /// What comes after the barrier by flags that was begun last.
    fn past_barrier(self) -> Self {
        Self { barrier: self.barrier + 1, ..self }
    }

    /// Whether a rank that is at `at` and waits like that is there, or past it.
    fn covers(self, at: Self, by: By) -> bool {
        match by {
            By::Messages => is_before(self.tag, at.tag),
            By::Flags => self.barrier <= at.barrier,
        }
    }

    fn first(self, other: Self) -> Self {
        let tag = if is_before(self.tag, other.tag) { self.tag } else { other.tag };
        Self { tag, barrier: self.barrier.min(other.barrier) }
    }
}

/// Whether a tag is that of an earlier operation, or the same. They wrap.
fn is_before(tag: u32, other: u32) -> bool {
    other.wrapping_sub(tag) <= u32::MAX / 2
}

impl News {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hear(&self, news: Abandoned) {
        let mut heard = self.heard();
        heard.news = Some(match heard.news {
            None => news,
            Some(first) => Abandoned { from: first.from.first(news.from), ..first },
        });
    }

    /// Why a rank that is at `at` waits in vain like that.
    pub(crate) fn ends(&self, at: Place, by: By) -> Option<Cause> {
        self.heard().news.filter(|news| news.from.covers(at, by)).map(|news| news.cause)
    }

    /// True once.
    fn is_to_be_told(&self) -> bool {
        !core::mem::replace(&mut self.heard().told, true)
    }
}

impl Inner {
    /// Does what waits for `peer` in a collective operation, or for all members. If that is in vain
    /// because somebody takes no part, all of them hear of it.
    pub(super) fn attempt<R>(
        &self,
        what: &'static str,
        (peer, by): (Option<Rank>, By),
        act: impl FnOnce(Wait<'_>) -> Result<R, WaitError>,
    ) -> Result<R, WaitError> {
        let at = self.current.place();
        let in_vain = || self.current.news().ends(at, by);
        let on = match peer {
            Some(peer) => On::Member(self.world_rank(peer), &in_vain),
            None => On::All(&self.group, &in_vain),
        };
        let done = act(Wait { what, on, recheck: None });
        if let Err(WaitError { cause, .. }) = done {
            // That a member has left, all see that wait for all.
            let seen = peer.is_none() && matches!(cause, Cause::PeerLeft(_));
            let from = if by == By::Flags { at } else { at.past_barrier() };
            if !seen {
                self.abandon(Abandoned { cause, from });
            }
        }
        done
    }

    /// Sends a message of a collective operation.
    pub(super) fn send(
        &self,
        what: &'static str,
        to: Rank,
        head: &Head,
        body: &[u8],
    ) -> Result<(), WaitError> {
        let world = self.world_rank(to);
        self.attempt(what, (Some(to), By::Messages), |wait| {
            self.process.send(world, head, body, wait)
        })
    }

    /// This rank takes no part any more, for a reason of its own.
    pub(crate) fn give_up(&self) {
        let cause = Cause::GaveUp(self.process.transport.job.rank);
        self.abandon(Abandoned { cause, from: self.current.place().past_barrier() });
    }

    /// Tells the members, once.
    fn abandon(&self, news: Abandoned) {
        let Some(head) = abandon_head(self.id, news) else { return };
        if !self.current.news().is_to_be_told() {
            return;
        }
        let own = self.process.transport.job.rank;
        for member in self.group.members().filter(|member| *member != own) {
            self.process.tell(member, &head);
        }
        self.process.see_off();
    }
}

/// The message that tells that; `None` if it is nothing to others.
fn abandon_head(id: u64, Abandoned { cause, from }: Abandoned) -> Option<Head> {
    let (whom, left) = match cause {
        Cause::PeerLeft(whom) => (whom, true),
        Cause::GaveUp(whom) => (whom, false),
        _ => return None,
    };
    let mut head = step_head(id, from.tag, Step::Abandon, from.barrier, whom.0.into());
    head.offset = u64::from(left).into();
    Some(head)
}

/// What such a message says.
pub(crate) fn read_abandon(head: &Head) -> Option<(WorldRank, Abandoned)> {
    let whom = WorldRank(u32::try_from(head.length.get()).ok()?);
    let cause = match head.offset.get() {
        0 => Cause::GaveUp(whom),
        1 => Cause::PeerLeft(whom),
        _ => return None,
    };
    let from = Place { tag: head.tag.get(), barrier: head.slot.get() };
    Some((whom, Abandoned { cause, from }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::mail::Current;

    const fn place(tag: u32, barrier: u64) -> Place {
        Place { tag, barrier }
    }

    #[test]
    fn what_was_begun_before_goes_on() {
        let news = News::default();
        let ends = |at, by| news.ends(at, by);
        let cause = Cause::PeerLeft(WorldRank(3));
        assert_eq!(ends(place(9, 9), By::Flags), None);
        news.hear(Abandoned { cause, from: place(5, 7) });
        for (at, messages, flags) in [
            (place(4, 6), None, None),
            (place(5, 6), Some(cause), None),
            (place(4, 7), None, Some(cause)),
            (place(6, 8), Some(cause), Some(cause)),
        ] {
            assert_eq!((ends(at, By::Messages), ends(at, By::Flags)), (messages, flags), "{at:?}");
        }
        // The earliest counts, and the first cause stands.
        news.hear(Abandoned { cause: Cause::GaveUp(WorldRank(2)), from: place(4, 9) });
        assert_eq!(ends(place(4, 6), By::Messages), Some(cause));
        assert_eq!(ends(place(4, 6), By::Flags), None);
        assert!(news.is_to_be_told() && !news.is_to_be_told());
    }

    #[test]
    fn a_barrier_that_was_begun_goes_on() {
        let current = Current::default();
        current.begin_barrier(7);
        let next = current.place().past_barrier();
        assert_eq!(next, place(current.place().tag, 8));
        assert!(!next.covers(current.place(), By::Flags));
    }

    #[test]
    fn tags_wrap() {
        assert!(is_before(u32::MAX - 1, 3) && !is_before(3, u32::MAX - 1) && is_before(3, 3));
    }

    #[test]
    fn a_message_says_all_of_it() {
        for cause in [Cause::PeerLeft(WorldRank(3)), Cause::GaveUp(WorldRank(3))] {
            let news = Abandoned { cause, from: place(512, 1 << 40) };
            let head = abandon_head(1, news).unwrap();
            assert_eq!(read_abandon(&head), Some((WorldRank(3), news)));
        }
        let from = place(0, 0);
        assert!(abandon_head(1, Abandoned { cause: Cause::Timeout, from }).is_none());
    }
}
