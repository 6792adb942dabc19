//! Collective operations that cannot end, because a member left without taking part, or cannot go
//! on.
//!
//! A member that waits for one that left notices by itself. Others wait for ranks that have
//! noticed, and gone on with something else: so each that gives up tells all members from which
//! operation on, and their waits in that operation and later ones end. Each does, also one that was
//! told before: what a rank tells may be lost when it leaves, and a member that waits for it sees
//! it leave then.
//!
//! A rank that waited in vain for another reason, as when its deadline passed, has told others that
//! it came. They may go on with that, or may not, and it can take back nothing: so it takes no part
//! in later operations. They wait for it in vain, too, and end as it did.
//!
//! A rank that cannot go on with one operation for a reason of its own tells all members so, and
//! their waits in that operation end; later ones are as good as any.
use super::AHEAD_MAX;
use super::contributions::{CollectiveKind, step_head};
use crate::collective::Inner;
use crate::engine::{Cause, On, Wait, WaitError};
use crate::protocol::message::Head;
use crate::rank::{Rank, WorldRank};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A place in the order of a communicator's operations, which is the same at all of its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AbandonPlace {
    /// Tag of an operation by messages.
    pub(crate) tag: u32,
    /// Number of a barrier by flags. They are counted by themselves.
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
    pub(crate) from: AbandonPlace,
}

/// What a rank knows of operations of a communicator that cannot end. S-M7
#[derive(Debug, Default)]
pub(crate) struct News(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    news: Option<Abandoned>,
    /// Operations that a member could not go on with, by their tags, and which said so first. Those
    /// that this rank has passed are forgotten when the next comes, and before a tag repeats.
    operations: Vec<(u32, WorldRank)>,
    /// There was one, of this rank or another.
    any_operation: bool,
    /// This rank has told the others.
    told: bool,
}

impl AbandonPlace {
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
pub(super) fn is_before(tag: u32, other: u32) -> bool {
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

    /// A member gave up the operation of that tag. This rank is at `at`.
    pub(crate) fn hear_of_one(&self, (tag, whom): (u32, WorldRank), at: AbandonPlace) {
        let mut heard = self.heard();
        heard.any_operation = true;
        heard.operations.retain(|(other, _)| is_before(at.tag, *other));
        let known = heard.operations.iter().any(|(other, _)| *other == tag);
        // No rank is further ahead.
        if is_before(at.tag, tag) && !known && heard.operations.len() <= OPERATIONS {
            heard.operations.push((tag, whom));
        }
    }

    /// This rank is at `at`: what was given up before is of no use.
    pub(crate) fn forget_passed(&self, at: AbandonPlace) {
        self.heard().operations.retain(|(other, _)| is_before(at.tag, *other));
    }

    /// Whether messages may still come of operations that are over here.
    pub(crate) fn leaves_messages(&self) -> bool {
        self.heard().any_operation
    }

    /// The member that gave up the operation of that tag.
    fn given_up_by(&self, tag: u32) -> Option<WorldRank> {
        let heard = self.heard();
        heard.operations.iter().find(|(other, _)| *other == tag).map(|(_, whom)| *whom)
    }

    /// Why a rank that is at `at` waits in vain like that.
    pub(crate) fn ends(&self, at: AbandonPlace, by: By) -> Option<Cause> {
        let one = self.given_up_by(at.tag).filter(|_| by == By::Messages).map(Cause::GaveUp);
        let all = || self.heard().news.filter(|news| news.from.covers(at, by));
        one.or_else(|| all().map(|news| news.cause))
    }

    /// Why members wait for each other in vain, from wherever on.
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.heard().news.map(|news| news.cause)
    }

    /// True once.
    fn is_to_be_told(&self) -> bool {
        !core::mem::replace(&mut self.heard().told, true)
    }
}

impl Inner {
    /// Does what waits for `peer` in a collective operation, or for all members. If that is in vain
    /// because a member takes no part, all of them hear of it.
    pub(super) fn attempt<R>(
        &self,
        what: &'static str,
        whom: (Option<Rank>, By),
        act: impl FnOnce(Wait<'_>) -> Result<R, WaitError>,
    ) -> Result<R, WaitError> {
        let at = self.current.place();
        let done = self.attempt_once(what, at, whom, act);
        done.inspect_err(|error| self.missed(at, whom, *error))
    }

    /// As [`attempt`](Self::attempt), but for what becomes of an error: if the caller does not try
    /// again, [`missed`](Self::missed) is to be told.
    pub(super) fn attempt_once<R>(
        &self,
        what: &'static str,
        at: AbandonPlace,
        (peer, by): (Option<Rank>, By),
        act: impl FnOnce(Wait<'_>) -> Result<R, WaitError>,
    ) -> Result<R, WaitError> {
        let in_vain = || self.current.news().ends(at, by);
        let on = match peer {
            Some(peer) => On::Member(self.world_rank(peer), &in_vain),
            None => On::All(&self.group, &in_vain),
        };
        act(Wait::new(what, on).about(self.about()))
    }

    /// This rank waited in vain in an operation, at `at`.
    pub(super) fn missed(
        &self,
        at: AbandonPlace,
        (peer, by): (Option<Rank>, By),
        WaitError { what, cause }: WaitError,
    ) {
        self.keep_words();
        // That a member has left, all see that wait for all.
        let seen = peer.is_none() && matches!(cause, Cause::PeerLeft(_));
        // A member that gave up one operation has told all.
        let told =
            matches!(cause, Cause::GaveUp(_)) && self.current.news().given_up_by(at.tag).is_some();
        let from = if by == By::Flags { at } else { at.past_barrier() };
        if matches!(cause, Cause::Import(_)) {
            self.give_up_operation();
        } else if !seen && !told {
            self.abandon(Abandoned { cause, from });
            // Of barriers in shared memory, the caller knows what they are for.
            if peer.is_some() && by == By::Messages {
                self.lose_step(what);
            }
        }
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
            self.engine.send(world, head, body, wait)
        })
    }

    /// This rank takes no part any more, for a reason of its own.
    pub(crate) fn give_up(&self) {
        self.gives_up(self.current.place().past_barrier());
    }

    /// As [`give_up`](Self::give_up), in a barrier by flags.
    pub(crate) fn give_up_barrier(&self) {
        self.gives_up(self.current.place());
    }

    fn gives_up(&self, from: AbandonPlace) {
        self.keep_words();
        let cause = Cause::GaveUp(self.engine.transport.job.rank);
        self.abandon(Abandoned { cause, from });
    }

    /// Tells the members, once.
    fn abandon(&self, news: Abandoned) {
        let Some(head) = abandon_head(self.id, news) else { return };
        if self.current.news().is_to_be_told() {
            self.tell_members(&head);
        }
    }

    /// This rank cannot go on with the operation that it has begun last, by messages.
    pub(crate) fn give_up_operation(&self) {
        self.keep_words();
        self.current.news().heard().any_operation = true;
        let (own, tag) = (self.engine.transport.job.rank, self.current.place().tag);
        let mut head = step_head(self.id, tag, CollectiveKind::Abandon, 0, own.0.into());
        head.offset = ONE_OPERATION.into();
        self.tell_members(&head);
    }

    fn tell_members(&self, head: &Head) {
        let own = self.engine.transport.job.rank;
        for member in self.group.members().filter(|member| *member != own) {
            self.engine.tell(member, head);
        }
        self.engine.see_off();
    }
}

/// The message that tells that; `None` if it is nothing to others.
fn abandon_head(id: u64, Abandoned { cause, from }: Abandoned) -> Option<Head> {
    let (whom, left) = match cause {
        Cause::PeerLeft(whom) => (whom, true),
        Cause::GaveUp(whom) => (whom, false),
        _ => return None,
    };
    let mut head = step_head(id, from.tag, CollectiveKind::Abandon, from.barrier, whom.0.into());
    head.offset = u64::from(left).into();
    Some(head)
}

/// In the offset of such a message: it is about one operation.
const ONE_OPERATION: u64 = 2;

/// How many of these are remembered: more than ranks are ahead of each other.
const OPERATIONS: usize = 2 * AHEAD_MAX as usize;

/// The operation that such a message is about, if it is one, and the member that cannot go on with
/// it.
pub(crate) fn read_one_operation(head: &Head) -> Option<(u32, WorldRank)> {
    let whom = WorldRank(u32::try_from(head.length.get()).ok()?);
    (head.offset.get() == ONE_OPERATION).then(|| (head.tag.get(), whom))
}

/// What such a message says otherwise.
pub(crate) fn read_abandon(head: &Head) -> Option<(WorldRank, Abandoned)> {
    let whom = WorldRank(u32::try_from(head.length.get()).ok()?);
    let cause = match head.offset.get() {
        0 => Cause::GaveUp(whom),
        1 => Cause::PeerLeft(whom),
        _ => return None,
    };
    let from = AbandonPlace { tag: head.tag.get(), barrier: head.slot.get() };
    Some((whom, Abandoned { cause, from }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::contributions::Current;
    use crate::config::Config;
    use crate::group::Group;
    use crate::window::accumulate_tests::with_loop;
    use std::sync::Arc;

    const fn place(tag: u32, barrier: u64) -> AbandonPlace {
        AbandonPlace { tag, barrier }
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
    fn one_operation_is_given_up_and_the_next_goes_on() {
        let (news, whom) = (News::default(), WorldRank(3));
        news.hear_of_one((5, whom), place(4, 0));
        news.hear_of_one((3, whom), place(4, 0));
        let ends = |tag, by| news.ends(place(tag, 9), by);
        assert_eq!(ends(5, By::Messages), Some(Cause::GaveUp(whom)));
        for (tag, by) in [(3, By::Messages), (4, By::Messages), (6, By::Messages), (5, By::Flags)] {
            assert_eq!(ends(tag, by), None);
        }
        news.hear_of_one((7, whom), place(6, 0));
        assert_eq!((ends(5, By::Messages), ends(7, By::Messages).is_some()), (None, true));
        // However many give up what this rank has not come to, it hears of each operation.
        (0..1000).for_each(|member| news.hear_of_one((8, WorldRank(member)), place(6, 0)));
        news.hear_of_one((9, whom), place(6, 0));
        assert_eq!(ends(9, By::Messages), Some(Cause::GaveUp(whom)));
        (0..1000).for_each(|tag| news.hear_of_one((7 + tag, whom), place(6, 0)));
        assert!(news.heard().operations.len() <= OPERATIONS + 1, "forged");
        news.forget_passed(place(1 << 20, 0));
        assert!(ends(9, By::Messages).is_none() && news.heard().operations.is_empty());
        assert!(news.is_to_be_told());
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

    /// What the other one of two members hears, if a wait for that peer ends like that.
    fn told(peer: Option<Rank>, by: By, cause: Cause) -> Option<Abandoned> {
        let mut told = Vec::new();
        with_loop(Config::default(), |universe, network| {
            let mut comm = universe.world().internal(99);
            let inner = Arc::get_mut(&mut comm.inner).unwrap();
            inner.group = Group::world(2);
            inner.current.begin_barrier(7);
            let fails = |wait: Wait<'_>| Err::<(), _>(WaitError { what: wait.what, cause });
            inner.attempt("a test", (peer, by), fails).unwrap_err();
            let sent = network.take_sent();
            told.extend(sent.iter().map(|bytes| Head::parse(bytes).unwrap().0));
        });
        assert!(told.len() < 2, "to one member");
        told.first().map(|head| read_abandon(head).unwrap().1)
    }

    /// A barrier by flags is given up while this rank is in it. At messages, the last one was
    /// passed: others may still be in it, and come to its end.
    #[test]
    fn a_rank_that_gives_up_waiting_tells_from_where_on() {
        let (whom, peer) = (WorldRank(13), Some(Rank(1)));
        for cause in [Cause::PeerLeft(whom), Cause::GaveUp(whom)] {
            let news = |from| Some(Abandoned { cause, from });
            assert_eq!(told(peer, By::Flags, cause), news(place(0, 7)));
            assert_eq!(told(peer, By::Messages, cause), news(place(0, 8)));
        }
        // Members that wait for all see that by themselves.
        assert_eq!(told(None, By::Messages, Cause::PeerLeft(whom)), None);
        assert!(told(None, By::Messages, Cause::GaveUp(whom)).is_some());
    }
}
