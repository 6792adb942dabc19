//! What ranks tell each other by the roster.

use super::*;
use crate::control::control_len;
use crate::memory_limits::MemoryLimits;
use crate::segment::{Identity, Segment};
use rustix::process::getpid;

fn segment(len: usize) -> Segment {
    Segment::create("rma-test", len, len as u64, &MemoryLimits::discover(), true).unwrap()
}

/// The roster of so many ranks, as rank 0 sees it and as another one does.
fn rosters(ranks: u32) -> [Roster; 2] {
    let own = segment(roster_len(ranks).unwrap());
    let span = crate::segment::import(getpid(), own.descriptor(), own.identity, true).unwrap();
    let made = Roster::create(own.span, ranks).unwrap();
    [made, Roster::import(span, ranks).unwrap()]
}

#[test]
fn tables_lie_apart_and_inside() {
    for ranks in [1, 3, 64, 1_000] {
        let [roster, _] = rosters(ranks);
        let base = roster.span.base().addr();
        let bells = roster.bells().as_ptr_range();
        let cards = roster.cards().as_ptr_range();
        let states = roster.states().as_ptr_range();
        assert!(base + size_of::<Head>() <= bells.start.addr());
        assert!(bells.end.addr() <= cards.start.addr());
        assert!(cards.end.addr() <= states.start.addr());
        assert!(states.end.addr() <= base + roster.span.len());
        assert_eq!(bells.start.addr() % 128, 0, "no bell shares its lines");
        assert_eq!(roster.ranks(), ranks);
    }
    let per_rank = (roster_len(100_000).unwrap() - roster_len(1).unwrap()) / 99_999;
    assert!(per_rank <= 192, "{per_rank} bytes");
    assert_eq!(roster_len(u32::MAX).is_some(), usize::BITS == 64);
}

#[test]
fn all_read_what_one_says() {
    let [owner, peer] = rosters(70);
    assert_eq!((peer.state(WorldRank(3)), owner.failed()), (PeerState::Alive, None));
    peer.tell(WorldRank(69), Outcome::Failed);
    peer.tell(WorldRank(5), Outcome::Departed);
    peer.tell(WorldRank(6), Outcome::Holding);
    assert!(!peer.tell(WorldRank(70), Outcome::Departed));
    assert_eq!(owner.state(WorldRank(69)), PeerState::Failed);
    assert_eq!(owner.state(WorldRank(5)), PeerState::Departed);
    assert_eq!(owner.state(WorldRank(6)), PeerState::Holding);
    assert_eq!(owner.state(WorldRank(4)), PeerState::Alive);
    assert_eq!(owner.state(WorldRank(70)), PeerState::Alive);
    assert_eq!(owner.failed(), Some(WorldRank(69)));
    assert!(peer.tell(WorldRank(1), Outcome::Failed));
    assert_eq!(owner.failed(), Some(WorldRank(69)), "only the first one counts");
    owner.head().failed.store(71, Relaxed);
    assert_eq!(owner.failed(), None, "there is no rank 70");
    assert!(owner.bell(WorldRank(69)).is_some() && owner.bell(WorldRank(70)).is_none());
}

#[test]
fn cards_are_read_as_they_were_written() {
    let [owner, peer] = rosters(3);
    let control = Identity { device: 5, inode: 77, len: control_len() as u64 };
    let card = |rank| Card {
        rank,
        size: 3,
        pid: getpid(),
        descriptor: rank.cast_signed(),
        control,
        address: 0x1000,
    };
    for rank in [0, 2] {
        peer.introduce(WorldRank(rank), &card(rank));
    }
    peer.introduce(WorldRank(3), &card(3));
    assert_eq!(owner.card(WorldRank(0)), Some(card(0)));
    assert_eq!(owner.card(WorldRank(2)), Some(card(2)));
    assert_eq!(owner.card(WorldRank(1)), None, "it has not come");
    assert_eq!(owner.card(WorldRank(3)), None, "there is no rank 3");
}

/// Of two threads of a rank that leaves, each tells what it changed, and nothing else.
#[test]
fn a_rank_leaves_once_and_may_add_that_it_holds_locks() {
    use Outcome::{Departed, Failed, Holding};
    for (outcomes, changes, end) in [
        ([Departed, Holding], [true, true], PeerState::Holding),
        ([Holding, Departed], [true, false], PeerState::Holding),
        ([Holding, Failed], [true, false], PeerState::Holding),
        ([Departed, Departed], [true, false], PeerState::Departed),
        ([Departed, Failed], [true, false], PeerState::Departed),
        ([Failed, Departed], [true, false], PeerState::Failed),
        ([Failed, Holding], [true, false], PeerState::Failed),
    ] {
        let ([owner, peer], rank) = (rosters(8), WorldRank(3));
        assert_eq!(outcomes.map(|outcome| owner.tell(rank, outcome)), changes, "{outcomes:?}");
        assert_eq!(peer.state(rank), end, "{outcomes:?}");
        let failed = (end == PeerState::Failed).then_some(rank);
        assert_eq!(peer.failed(), failed, "{outcomes:?}");
    }
}

/// A rank is accused while it tells that it leaves in order: whichever word is first, all hear one
/// story.
#[test]
fn a_rank_that_left_in_order_never_counts_as_failed() {
    let [owner, peer] = rosters(2_000);
    let meet = std::sync::Barrier::new(2);
    for rank in (1..2_000).map(WorldRank) {
        let (left, accused) = std::thread::scope(|scope| {
            let leaver = scope.spawn(|| {
                meet.wait();
                peer.tell(rank, Outcome::Departed)
            });
            meet.wait();
            let accused = owner.tell(rank, Outcome::Failed);
            (leaver.join().unwrap(), accused)
        });
        assert!(left != accused, "one of them was first");
        let told = if left { PeerState::Departed } else { PeerState::Failed };
        assert_eq!(owner.state(rank), told);
        assert_eq!(owner.failed(), accused.then_some(rank));
        owner.head().failed.store(0, Relaxed);
    }
}

/// The teller was killed in between.
#[test]
fn a_rank_that_sees_a_failure_knows_the_first() {
    let [owner, peer] = rosters(8);
    peer.states()[5].store(to_code(Outcome::Failed), Relaxed);
    assert_eq!(owner.failed(), None);
    assert_eq!(owner.state(WorldRank(5)), PeerState::Failed);
    assert_eq!(owner.failed(), Some(WorldRank(5)));
    assert!(!owner.tell(WorldRank(5), Outcome::Departed), "it failed");
    assert!(!owner.tell(WorldRank(5), Outcome::Failed), "that is known");
    assert_eq!(owner.state(WorldRank(5)), PeerState::Failed);
}

#[test]
fn all_sleepers_are_woken() {
    let [owner, peer] = rosters(40);
    let armed: Vec<u32> = (0..40).map(|rank| owner.bell(WorldRank(rank)).unwrap().arm()).collect();
    peer.ring_all();
    for (rank, armed) in (0..).zip(armed) {
        owner.bell(WorldRank(rank)).unwrap().park(armed, None);
    }
}

#[test]
fn what_is_no_roster_of_this_job_is_refused() {
    let own = segment(roster_len(4).unwrap());
    let import = || crate::segment::import(getpid(), own.descriptor(), own.identity, true).unwrap();
    assert!(Roster::import(import(), 4).is_none(), "blank");
    let made = Roster::create(import(), 4);
    assert!(made.is_some() && Roster::import(import(), 4).is_some());
    assert!(Roster::import(import(), 5).is_none(), "of another job");
    assert!(Roster::import(import(), 1 << 20).is_none(), "too short");
}
