//! Ranks that are killed in the middle of a departure: they show how they left, and told no rank.
#![allow(unsafe_code)]

use super::*;
use std::convert::Infallible;
use std::sync::Barrier;

/// Joins `size` ranks from as many threads.
fn ranks(size: u32) -> Vec<Shm> {
    let (cards, posted) =
        (Mutex::new(vec![Vec::new(); size as usize]), Barrier::new(size as usize));
    let exchange = |rank: u32, card: &[u8]| {
        cards.lock().unwrap()[rank as usize] = card.to_vec();
        posted.wait();
        Ok::<_, Infallible>(cards.lock().unwrap().clone())
    };
    let join = |rank| {
        let config = ShmConfig { rank: WorldRank(rank), size, nodes: 1, cores: size, naps: false };
        // SAFETY: each rank joins once, and gets the cards of all.
        unsafe { Shm::join(config, |card| exchange(rank, card)) }.unwrap()
    };
    std::thread::scope(|scope| {
        let joining: Vec<_> = (0..size).map(|rank| scope.spawn(move || join(rank))).collect();
        joining.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A wait for all of a group believes what was told, and looks at each member before.
#[test]
fn who_left_and_told_nobody_has_told_whoever_looks() {
    let all = ranks(2);
    let (me, gone) = (&all[0], WorldRank(1));
    all[1].own.leave(Outcome::Departed);
    assert_eq!(me.told(gone), PeerState::Alive);
    assert_eq!(me.peer_state(gone), PeerState::Departed);
    assert_eq!((me.told(gone), me.failed()), (PeerState::Departed, None));
    // It finds out that it holds a lock, and is killed again before it tells.
    all[1].own.leave(Outcome::Holding);
    assert_eq!(me.peer_state(gone), PeerState::Holding);
    assert_eq!((me.told(gone), me.failed()), (PeerState::Holding, None));
}

#[test]
fn who_was_seen_to_leave_still_tells_that_it_holds_a_lock() {
    let all = ranks(2);
    let (me, gone) = (&all[0], WorldRank(1));
    all[1].own.leave(Outcome::Departed);
    assert_eq!(me.peer_state(gone), PeerState::Departed);
    all[1].tell_others(gone, Outcome::Departed);
    all[1].tell_others(gone, Outcome::Holding);
    assert_eq!(me.told(gone), PeerState::Holding);
}

#[test]
fn who_failed_and_told_nobody_is_known_to_all_when_one_looks() {
    let all = ranks(3);
    let gone = WorldRank(2);
    assert_eq!(all[0].peer_state(gone), PeerState::Alive);
    all[2].own.leave(Outcome::Failed);
    assert_eq!(all[0].peer_state(gone), PeerState::Failed);
    for shm in &all[..2] {
        assert_eq!((shm.told(gone), shm.failed()), (PeerState::Failed, Some(gone)));
    }
}

/// Its word to this rank is as good as what the system says of its process, and older.
#[test]
fn who_left_in_order_is_not_lost() {
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
