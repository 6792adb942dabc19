//! Ranks that are killed in the middle of a departure: they say how they left, and wake no rank.
#![allow(unsafe_code)]

use super::*;
use std::convert::Infallible;
use std::sync::Barrier;

/// Joins `size` ranks from as many threads.
fn ranks(size: u32) -> Vec<Shm> {
    let (said, meet) = (Mutex::new(vec![Vec::new(); size as usize]), Barrier::new(size as usize));
    let exchange = |rank: u32, mine: &[u8]| {
        said.lock().unwrap()[rank as usize] = mine.to_vec();
        meet.wait();
        let all = said.lock().unwrap().iter().map(|said| (1, said.clone())).collect();
        meet.wait();
        Ok::<_, Infallible>(all)
    };
    let join = |rank| {
        let config = ShmConfig { rank: WorldRank(rank), size, nodes: 1, cores: size, naps: false };
        // SAFETY: each rank joins once, and gets what all say.
        unsafe { Shm::join(config, |mine| exchange(rank, mine)) }.unwrap()
    };
    std::thread::scope(|scope| {
        let joining: Vec<_> = (0..size).map(|rank| scope.spawn(move || join(rank))).collect();
        joining.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_rank_that_left_and_woke_no_other_is_known_to_each_that_looks() {
    let all = ranks(2);
    let (me, gone) = (&all[0], WorldRank(1));
    all[1].roster.tell(gone, Outcome::Departed);
    assert_eq!((me.told(gone), me.peer_state(gone)), (PeerState::Departed, PeerState::Departed));
    // It finds out that it holds a lock.
    all[1].roster.tell(gone, Outcome::Holding);
    assert_eq!((me.told(gone), me.failed()), (PeerState::Holding, None));
}

#[test]
fn a_rank_that_failed_and_woke_no_other_is_known_to_all() {
    let all = ranks(3);
    let gone = WorldRank(2);
    assert_eq!(all[0].peer_state(gone), PeerState::Alive);
    all[2].roster.tell(gone, Outcome::Failed);
    for shm in &all[..2] {
        assert_eq!((shm.peer_state(gone), shm.failed()), (PeerState::Failed, Some(gone)));
    }
}

#[test]
fn a_rank_that_finds_another_gone_wakes_all() {
    let all = ranks(3);
    let tickets = [0, 1].map(|rank| all[rank].arm());
    assert_eq!(all[0].lost(WorldRank(2)), PeerState::Failed);
    for (shm, ticket) in all.iter().zip(tickets) {
        shm.park(ticket, None);
        assert_eq!(shm.failed(), Some(WorldRank(2)));
    }
}

#[test]
fn a_rank_that_leaves_wakes_all() {
    let all = ranks(3);
    let tickets = [0, 1].map(|rank| all[rank].arm());
    all[2].depart(Outcome::Departed);
    for (shm, ticket) in all.iter().zip(tickets) {
        shm.park(ticket, None);
        assert_eq!(shm.told(WorldRank(2)), PeerState::Departed);
    }
}

/// A rank knows nothing of peers that it has nothing to do with, also when it leaves.
#[test]
fn a_rank_that_leaves_opens_no_segment() {
    let all = ranks(8);
    all[3].depart(Outcome::Departed);
    assert!(all[3].neighbours.iter().all(|neighbour| neighbour.get().is_none()));
}

/// A rank that has left accuses none: it was not there to hear why.
#[test]
fn a_rank_that_has_left_tells_nothing_of_others() {
    let all = ranks(3);
    all[0].depart(Outcome::Departed);
    assert_eq!(all[0].lost(WorldRank(2)), PeerState::Failed);
    assert_eq!((all[1].told(WorldRank(2)), all[1].failed()), (PeerState::Alive, None));
}

/// Its word to this rank is as good as what the system says of its process, and older.
#[test]
fn a_rank_that_left_in_order_is_not_lost() {
    let all = ranks(2);
    let (me, gone) = (&all[0], WorldRank(1));
    all[1].depart(Outcome::Departed);
    assert_eq!(me.lost(gone), PeerState::Departed);
    assert_eq!((me.told(gone), me.failed()), (PeerState::Departed, None));
}

/// One thread is about to say that the rank leaves, when another one does.
#[test]
fn of_two_that_leave_together_none_keeps_silent() {
    let all = ranks(2);
    let (me, gone) = (&all[0], WorldRank(1));
    all[1].left.store(true, Relaxed);
    all[1].depart(Outcome::Holding);
    assert_eq!((me.told(gone), me.peer_state(gone)), (PeerState::Holding, PeerState::Holding));
    all[1].depart(Outcome::Departed);
    assert_eq!((me.told(gone), me.peer_state(gone)), (PeerState::Holding, PeerState::Holding));
}
