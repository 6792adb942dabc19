use super::*;
use crate::collective::abandon::By;
use crate::engine::Cause;

const ID: u64 = 5;
const FIRST: u32 = 1 << ROUND_BITS;
const SENDER: WorldRank = WorldRank(2);
const LARGE: u64 = 60_000;

/// For three ranks, in their first operation.
fn contributions(payload_max: u64, budget: u64) -> (Contributions, Current) {
    let contributions = Contributions::new(payload_max, budget);
    let current = contributions.open(ID, Group::world(3));
    assert_eq!(current.next_tag(), FIRST);
    (contributions, current)
}

fn piece_of(tag: u32, offset: u64, total: u64) -> Head {
    let mut head = step_head(ID, tag, CollectiveKind::Piece, 0, total);
    head.offset = offset.into();
    head
}

fn piece(offset: u64, total: u64) -> Head {
    piece_of(FIRST, offset, total)
}

fn deliver(contributions: &Contributions, head: &Head, bytes: &[u8]) -> bool {
    contributions.deliver(SENDER, head, bytes).is_some()
}

/// Delivers a whole part of that many bytes.
fn send(contributions: &Contributions, tag: u32, bytes: u64) -> bool {
    deliver(contributions, &piece_of(tag, 0, bytes), &vec![7; bytes as usize])
}

/// Sends the RTS of a part; the tags and parts that are cleared.
fn request(
    contributions: &Contributions,
    tag: u32,
    number: u64,
    rest: u64,
) -> Option<Vec<(u32, u64)>> {
    let head = step_head(ID, tag, CollectiveKind::Rts, number, rest);
    contributions.deliver(SENDER, &head, &[]).map(tags)
}

fn tags(cts: CtsHeads) -> Vec<(u32, u64)> {
    let of = |(to, head): (WorldRank, Head)| {
        assert_eq!((to, head.op, head.object.get()), (SENDER, CollectiveKind::Cts as u8, ID));
        (head.tag.get(), head.slot.get())
    };
    cts.into_iter().map(of).collect()
}

/// Tags and numbers of parts that are cleared.
type Cleared = Vec<(u32, u64)>;

/// Takes a part: its bytes and what is cleared then.
fn take(contributions: &Contributions, tag: u32, number: u64) -> Option<(Vec<u8>, Cleared)> {
    let (part, cts) = contributions.take(&(ID, tag, SENDER), number)?;
    Some((part.unwrap().bytes, tags(cts)))
}

#[test]
fn pieces_in_any_order_make_a_payload() {
    let (contributions, _) = contributions(100, 100);
    assert!(deliver(&contributions, &piece(2, 3), b"c"));
    assert_eq!(take(&contributions, FIRST, 0), None);
    assert!(deliver(&contributions, &piece(0, 3), b"ab"));
    assert_eq!(take(&contributions, FIRST, 0), Some((b"abc".to_vec(), vec![])));
    assert_eq!(take(&contributions, FIRST, 0), None);
}

#[test]
fn pieces_that_lie_are_refused() {
    let (contributions, _) = contributions(100, 1000);
    assert!(!deliver(&contributions, &piece(2, 3), b"cd"), "past the end");
    assert!(!deliver(&contributions, &piece(u64::MAX, 3), b"c"), "overflow");
    assert!(!deliver(&contributions, &piece(0, 101), b"c"), "beyond the limit");
    assert!(!deliver(&contributions, &piece(0, 3), b""), "nothing");
    assert!(deliver(&contributions, &piece(0, 3), b"ab"));
    assert!(!deliver(&contributions, &piece(0, 4), b"ab"), "another length");
    assert!(!deliver(&contributions, &piece(1, 3), b"ab"), "more than is left");
    let mut other = piece(0, 3);
    other.op = 3;
    assert!(!deliver(&contributions, &other, b"c"), "no step");
    let mut news = step_head(ID, FIRST, CollectiveKind::Abandon, 1, 1);
    (news.offset, news.op) = (1.into(), 0xff);
    assert!(!deliver(&contributions, &news, b""), "no step");
}

#[test]
fn empty_payloads_arrive() {
    let (contributions, _) = contributions(100, 0);
    assert!(deliver(&contributions, &piece(0, 0), b""));
    assert_eq!(take(&contributions, FIRST, 0), Some((vec![], vec![])));
}

#[test]
fn contributions_of_strangers_are_not_taken() {
    let (contributions, _) = contributions(100, 100);
    assert!(contributions.deliver(WorldRank(3), &piece(0, 1), b"a").is_none(), "no member");
    let mut head = piece(0, 1);
    head.object = (ID + 1).into();
    assert!(!deliver(&contributions, &head, b"a"), "no communicator");
    assert_eq!(contributions.close(ID).len(), 0);
    assert!(!deliver(&contributions, &piece(0, 1), b"a"), "none any more");
}

#[test]
fn operations_that_no_rank_can_be_in_are_not_expected() {
    let (contributions, current) = contributions(100, 100);
    let tag = |operation: u32| operation << ROUND_BITS;
    assert!(!send(&contributions, tag(0), 1), "before the present one");
    assert!(send(&contributions, tag(AHEAD_MAX + 2), 1), "the barrier of one that is ahead");
    assert!(!send(&contributions, tag(AHEAD_MAX + 3), 1), "beyond it");
    assert!(request(&contributions, tag(AHEAD_MAX + 3), 0, 1).is_none(), "beyond it");
    assert!(!send(&contributions, 1 << 31, 1), "far away");
    // Also where tags begin again.
    let last = u32::MAX >> ROUND_BITS;
    current.0.operation.store(last, Relaxed);
    assert!(
        send(&contributions, tag(last), 1) && send(&contributions, tag(last.wrapping_add(1)), 1)
    );
    assert!(!send(&contributions, tag(last - 1), 1));
}

#[test]
fn a_sender_has_few_payloads_in_each_operation() {
    let (contributions, _) = contributions(100, 100);
    assert!(send(&contributions, FIRST, 1) && send(&contributions, FIRST | 32, 1));
    assert_eq!(request(&contributions, FIRST | 34, 0, 1), Some(vec![(FIRST | 34, 0)]));
    assert!(
        !send(&contributions, FIRST | 33, 1) && request(&contributions, FIRST | 33, 0, 1).is_none()
    );
    let other = contributions.deliver(WorldRank(1), &piece_of(FIRST | 33, 0, 1), b"a");
    assert!(other.is_some(), "by another");
    assert_eq!(take(&contributions, FIRST, 0), Some((vec![7], vec![])));
}

#[test]
fn what_was_not_cleared_is_refused() {
    let (contributions, _) = contributions(LARGE, 100_000);
    assert!(send(&contributions, FIRST, SMALL) && !send(&contributions, FIRST | 1, SMALL + 1));
    let second = step_head(ID, FIRST, CollectiveKind::Piece, 1, 1);
    assert!(!deliver(&contributions, &second, b"a"), "a later part");
    assert_eq!(request(&contributions, FIRST | 1, 0, LARGE), Some(vec![(FIRST | 1, 0)]));
    assert!(request(&contributions, FIRST | 1, 0, LARGE).is_none(), "twice");
    assert!(!send(&contributions, FIRST | 1, LARGE - 1), "another length than was asked for");
    assert!(send(&contributions, FIRST | 1, LARGE));
}

#[test]
fn a_sender_of_an_rts_waits_until_there_is_room() {
    let (contributions, current) = contributions(LARGE, 100_000);
    let (second, third) = (FIRST << 1, 3 * FIRST);
    assert_eq!(request(&contributions, FIRST, 0, LARGE), Some(vec![(FIRST, 0)]));
    assert_eq!(request(&contributions, second, 0, 40_001), Some(vec![]));
    assert_eq!(request(&contributions, third, 0, 40_000), Some(vec![(third, 0)]), "this one fits");
    assert!(
        send(&contributions, FIRST, LARGE)
            && !send(&contributions, second, 40_001)
            && send(&contributions, third, 40_000)
    );
    assert_eq!(contributions.table().held, 100_000);
    let (_, cts) = take(&contributions, FIRST, 0).unwrap();
    assert_eq!(cts, [(second, 0)]);
    assert_eq!(contributions.table().held, 80_001);
    // What is of an operation that is over is not taken.
    assert_eq!((current.next_tag(), current.next_tag()), (second, third));
    assert_eq!(request(&contributions, third | 1, 0, LARGE), Some(vec![(third | 1, 0)]));
    assert_eq!(contributions.table().held, 100_000);
    assert_eq!(contributions.close(ID).len(), 0);
    assert_eq!(contributions.table().held, 0);
}

#[test]
fn rounds_request_for_themselves() {
    let (contributions, _) = contributions(LARGE, 100_000);
    assert_eq!(request(&contributions, FIRST, 0, LARGE), Some(vec![(FIRST, 0)]));
    assert_eq!(request(&contributions, FIRST | 1, 0, 40_001), Some(vec![]));
    assert_eq!(request(&contributions, FIRST | 2, 0, 40_000), Some(vec![(FIRST | 2, 0)]));
}

#[test]
fn what_is_awaited_is_cleared_beyond_the_budget() {
    let (contributions, _) = contributions(LARGE, LARGE);
    let later = FIRST << 1;
    assert_eq!(request(&contributions, later, 0, LARGE), Some(vec![(later, 0)]));
    assert_eq!(request(&contributions, FIRST, 0, LARGE), Some(vec![]));
    assert_eq!(request(&contributions, FIRST | 1, 0, LARGE), Some(vec![]));
    assert_eq!(tags(contributions.expect(&[(ID, FIRST, SENDER)])), [(FIRST, 0)]);
    assert_eq!(contributions.table().held, 2 * LARGE, "one part more");
    assert!(send(&contributions, FIRST, LARGE));
    assert_eq!(take(&contributions, FIRST, 0).unwrap().1, [], "nothing else is awaited");
    assert_eq!(tags(contributions.expect(&[(ID, FIRST | 1, SENDER)])), [(FIRST | 1, 0)]);
}

/// Of several that may come first, one is cleared beyond the budget.
#[test]
fn one_of_those_that_are_awaited_is_cleared() {
    let (contributions, _) = contributions(LARGE, 0);
    let any = [FIRST | 1, FIRST | 2].map(|tag| (ID, tag, SENDER));
    assert!(contributions.expect(&any).is_empty());
    assert_eq!(request(&contributions, FIRST, 0, LARGE), Some(vec![]));
    assert_eq!(request(&contributions, FIRST | 2, 0, LARGE), Some(vec![(FIRST | 2, 0)]));
    assert_eq!(request(&contributions, FIRST | 1, 0, LARGE), Some(vec![]));
    assert_eq!(tags(contributions.expect(&any[..1])), [(FIRST | 1, 0)]);
}

#[test]
fn parts_are_granted_one_after_another() {
    let (contributions, _) = contributions(1 << 30, 1 << 30);
    let total = 2 * PART + 1;
    assert_eq!(request(&contributions, FIRST, 0, total), Some(vec![(FIRST, 0)]));
    assert_eq!(request(&contributions, FIRST, 1, total - PART), Some(vec![]));
    let whole = vec![1; PART as usize];
    assert!(deliver(&contributions, &piece(0, total), &whole));
    let (bytes, cts) = take(&contributions, FIRST, 0).unwrap();
    assert_eq!((bytes, cts), (whole, vec![(FIRST, 1)]));
}

#[test]
fn a_cts_is_for_its_sender() {
    let (contributions, _) = contributions(LARGE, LARGE);
    let key = (ID, FIRST, SENDER);
    let cts = |number| step_head(ID, FIRST, CollectiveKind::Cts, number, LARGE);
    assert!(!deliver(&contributions, &cts(0), &[]), "no RTS was sent");
    contributions.request(key, 3);
    assert!(!deliver(&contributions, &cts(0), &[]), "for another part");
    assert!(contributions.deliver(WorldRank(1), &cts(3), &[]).is_none(), "of another rank");
    assert!(!contributions.is_cleared(&key));
    assert!(deliver(&contributions, &cts(3), &[]) && contributions.is_cleared(&key));
    contributions.withdraw(&key);
    assert!(!contributions.is_cleared(&key));
}

#[test]
fn what_is_longer_than_any_is_refused() {
    let (contributions, _) = contributions(LARGE, LARGE);
    assert_eq!(request(&contributions, FIRST, 0, LARGE + 1), Some(vec![]));
    let (refused, _) = contributions.take(&(ID, FIRST, SENDER), 0).unwrap();
    assert_eq!(refused, Err(NoRoom { bytes: LARGE + 1, limit: LARGE }));
}

#[test]
fn small_payloads_always_have_room() {
    let (contributions, _) = contributions(LARGE, LARGE);
    assert_eq!(request(&contributions, FIRST, 0, LARGE), Some(vec![(FIRST, 0)]));
    assert!(send(&contributions, FIRST | 1, 8));
    assert_eq!(take(&contributions, FIRST | 1, 0), Some((vec![7; 8], vec![])));
    assert_eq!(contributions.table().held, LARGE);
}

#[test]
fn what_was_taken_makes_room() {
    let (contributions, _) = contributions(LARGE, LARGE);
    for round in [1, 2, 3] {
        assert_eq!(
            request(&contributions, FIRST | round, 0, LARGE),
            Some(vec![(FIRST | round, 0)])
        );
        assert!(send(&contributions, FIRST | round, LARGE));
        assert_eq!(take(&contributions, FIRST | round, 0).unwrap().1, []);
        assert_eq!(contributions.table().held, 0);
    }
}

/// A rank that is said to have left is a member, as is the one that says it.
#[test]
fn members_hear_which_rank_left() {
    let (contributions, current) = contributions(100, 100);
    let abandon = |id, whom: u64, left: u64| {
        let mut head = step_head(id, FIRST, CollectiveKind::Abandon, 1, whom);
        head.offset = left.into();
        head
    };
    let hears = |from, head: Head| contributions.deliver(from, &head, &[]).is_some();
    let heard = || current.news().ends(current.place(), By::Messages);
    assert!(!hears(SENDER, abandon(ID + 1, 1, 1)), "no such communicator");
    assert!(!hears(WorldRank(3), abandon(ID, 1, 1)), "from a stranger");
    assert!(!hears(SENDER, abandon(ID, 3, 1)), "about a stranger");
    assert!(!hears(SENDER, abandon(ID, 1 << 32 | 1, 1)), "no rank");
    assert!(!hears(SENDER, abandon(ID, 1, 2)), "no cause");
    assert_eq!(heard(), None);
    assert!(hears(SENDER, abandon(ID, 1, 1)));
    assert_eq!(heard(), Some(Cause::PeerLeft(WorldRank(1))));
}

/// Tags repeat: what a failed operation left is forgotten before another has the same.
#[test]
fn what_is_stale_is_forgotten_before_tags_repeat() {
    let (contributions, current) = contributions(LARGE, 100_000);
    assert!(send(&contributions, FIRST, 8));
    let begun = FORGET_EVERY >> ROUND_BITS;
    (2..begun).for_each(|_| _ = contributions.begin(&current));
    assert_eq!(contributions.table().held, 8);
    let next = FORGET_EVERY + FIRST;
    assert!(send(&contributions, next, 16), "of a rank that is ahead");
    assert_eq!(contributions.begin(&current), FORGET_EVERY);
    assert_eq!(contributions.table().held, 16);
    assert!(take(&contributions, FIRST, 0).is_none());
    assert_eq!(contributions.begin(&current), next);
    assert_eq!(take(&contributions, next, 0).unwrap().0, [7; 16]);
}

#[test]
fn an_offer_is_a_payload_of_one_message() {
    let (contributions, _) = contributions(LARGE, 10);
    let offer = |tag, number, bytes| step_head(ID, tag, CollectiveKind::Offer, number, bytes);
    assert!(!deliver(&contributions, &offer(FIRST, 1, LARGE), b"there"), "no later part");
    assert!(!deliver(&contributions, &offer(FIRST, 0, 9), &[0; SMALL as usize + 1]));
    assert!(!deliver(&contributions, &offer(FIRST << 8, 0, 9), b"there"), "far ahead");
    assert!(deliver(&contributions, &offer(FIRST, 0, LARGE), b"there"));
    assert!(!deliver(&contributions, &offer(FIRST, 0, LARGE), b"there"), "twice");
    assert!(!deliver(&contributions, &piece(0, 3), b"abc"), "it is no part");
    let (part, cts) = contributions.take(&(ID, FIRST, SENDER), 0).unwrap();
    let expected = PayloadPart { bytes: b"there".to_vec(), rest: LARGE, is_offer: true };
    assert_eq!((part, tags(cts)), (Ok(expected), vec![]));
    assert!(deliver(&contributions, &offer(FIRST, 0, LARGE + 1), b"there"));
    let (refused, _) = contributions.take(&(ID, FIRST, SENDER), 0).unwrap();
    assert_eq!(refused, Err(NoRoom { bytes: LARGE + 1, limit: LARGE }));
}
