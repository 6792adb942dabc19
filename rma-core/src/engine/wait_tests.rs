//! What ends a wait.
use crate::config::Config;
use crate::engine::wait::GLANCED;
use crate::engine::{Asleep, Cause, On, Wait, WaitError};
use crate::error::RmaError;
use crate::group::Group;
use crate::protocol::message::{Head, Kind, Status};
use crate::rank::{Rank, WorldRank};
use crate::transport::{ImportError, Outcome, PeerState};
use crate::window::accumulate_tests::with_loop;
use core::cell::Cell;
use core::time::Duration;
use std::collections::HashSet;
use std::thread;

const OTHERS: u32 = 20;

fn impatient() -> Config {
    let mut config = Config::default();
    config.wait_timeout = Some(Duration::ZERO);
    config
}

/// Why a wait for something that never comes ends, if rank 13 is like that.
fn end_of(on: On<'_>, state: PeerState) -> Option<Cause> {
    let mut end = None;
    with_loop(impatient(), |universe, network| {
        let engine = universe.engine();
        network.set_state(WorldRank(13), state);
        let wait = Wait::new("a test", on);
        let waited = engine.wait_until(wait, || None::<()>);
        let WaitError { what, cause } = waited.unwrap_err();
        assert_eq!(what, "a test");
        end = Some(cause).filter(|cause| *cause != Cause::Timeout);
    });
    end
}

#[test]
fn a_wait_is_ended_by_the_rank_it_is_on_and_no_other() {
    let (it, other, group) = (WorldRank(13), WorldRank(12), Group::world(OTHERS));
    let (left, failed) = (Some(Cause::PeerLeft(it)), Some(Cause::PeerFailed(it)));
    let (names_it, names_other) = (|_| Some(it), |_| Some(other));
    for (state, gone, of_group, of_holders) in [
        (PeerState::Alive, None, None, None),
        (PeerState::Departed, left, left, None),
        (PeerState::Holding, left, left, left),
        (PeerState::Failed, failed, left, None),
    ] {
        assert_eq!(end_of(On::Peer(it), state), gone);
        assert_eq!(end_of(On::Peer(other), state), None);
        assert_eq!(end_of(On::Named(&names_it), state), gone);
        assert_eq!(end_of(On::Named(&names_other), state), None);
        assert_eq!(end_of(On::Named(&|_| None), state), None);
        // Of a failure, transports tell by themselves.
        assert_eq!(end_of(On::All(&group, &|| None), state), of_group);
        assert_eq!(end_of(On::Holders(&group, None), state), of_holders);
        assert_eq!(end_of(On::Holders(&group, Some(other)), state), of_holders);
        assert_eq!(end_of(On::Holders(&group, Some(it)), state), gone);
    }
}

/// As long as one is there, what any rank may do may come. A rank that is alone has threads.
#[test]
fn the_last_that_leaves_ends_what_anyone_may_do() {
    with_loop(impatient(), |universe, network| {
        let group = Group::world(4);
        let end = |group| {
            let wait = Wait::new("a test", On::AnyOf(group));
            universe.engine().wait_until(wait, || None::<()>).unwrap_err().cause
        };
        for peer in [3, 1, 2].map(WorldRank) {
            assert_eq!(end(&group), Cause::Timeout);
            network.set_state(peer, PeerState::Holding);
        }
        assert!(matches!(end(&group), Cause::PeerLeft(peer) if peer.0 > 0));
        assert_eq!(end(&Group::world(1)), Cause::Timeout);
    });
}

/// All that any of them sent is handled before.
#[test]
fn what_a_rank_sent_before_it_left_is_not_missed() {
    let end = |handled: u64| {
        let (naps, mut end) = (Cell::new(0), None);
        with_loop(Config::default(), |universe, network| {
            let group = Group::world(4);
            network.set_handled(0);
            (1..4).for_each(|peer| network.set_state(WorldRank(peer), PeerState::Departed));
            let done = || {
                naps.set(naps.get() + 1);
                if naps.get() == 50 {
                    network.set_handled(handled);
                }
                (naps.get() > 100).then_some(())
            };
            let wait = Wait::new("a test", On::AnyOf(&group));
            end = universe.engine().wait_until(wait, done).err().map(|error| error.cause);
        });
        end
    };
    assert_eq!(end(2), None, "three marks, one behind the other");
    assert_eq!(end(3), Some(Cause::PeerLeft(WorldRank(3))));
}

#[test]
fn a_wait_looks_again_soon_and_then_less_often() {
    let millis = Duration::from_millis;
    let wait = Wait { recheck: Some(millis(1)), ..Wait::new("a test", On::Peer(WorldRank(1))) };
    let mut asleep = Asleep::default();
    assert_eq!([(); 3].map(|()| asleep.recheck(wait)), [Some(millis(1)); 3]);
    assert_eq!(asleep.recheck(Wait { recheck: None, soon: true, ..wait }), None);
    let wait = Wait { soon: true, ..wait };
    let micros = [20, 30, 45].map(|micros| Some(Duration::from_micros(micros)));
    assert_eq!([(); 3].map(|()| asleep.recheck(wait)), micros);
    let naps: Vec<_> = (0..20).map_while(|_| asleep.recheck(wait)).collect();
    assert!(naps.is_sorted() && naps.len() == 20);
    assert_eq!(naps.iter().filter(|nap| **nap == millis(1)).count(), 13);
}

/// A rank that does its part between two looks, and then leaves, is named no more: another is
/// waited for.
#[test]
fn a_rank_that_did_its_part_may_leave() {
    let looks = Cell::new(0);
    let named = |_| Some(WorldRank(if looks.replace(looks.get() + 1) == 0 { 13 } else { 12 }));
    assert_eq!(end_of(On::Named(&named), PeerState::Departed), None);
    assert_eq!(looks.get(), 2);
}

/// A process that was killed tells no rank: one has to ask about each.
#[test]
fn members_are_looked_at_in_turn() {
    with_loop(Config::default(), |universe, network| {
        let (engine, group) = (universe.engine(), Group::world(OTHERS));
        let naps = Cell::new(0);
        let wait = Wait::new("a test", On::Holders(&group, None));
        let done = || {
            naps.set(naps.get() + 1);
            (naps.get() > 20).then_some(())
        };
        engine.wait_until(wait, done).unwrap();
        let all: HashSet<_> = (1..OTHERS).map(WorldRank).collect();
        assert_eq!(network.asked(), all);
    });
}

/// Several hold what is waited for: one of them that is gone ends the wait, whichever it is.
#[test]
fn holders_are_looked_at_in_turn() {
    let named = |at: usize| Some(WorldRank(12 + at as u32 % 3));
    for gone in [12, 13, 14].map(WorldRank) {
        with_loop(Config::default(), |universe, network| {
            network.set_state(gone, PeerState::Departed);
            let naps = Cell::new(0);
            let wait = Wait::new("a test", On::Named(&named));
            let done = || {
                naps.set(naps.get() + 1);
                (naps.get() > 100).then_some(())
            };
            let end = universe.engine().wait_until(wait, done).unwrap_err();
            assert_eq!(end.cause, Cause::PeerLeft(gone));
        });
    }
}

/// What the last thread that serves leaves over is the agent's, as is what comes from a thread that
/// does not serve. No message rings for it.
#[test]
fn what_is_left_over_is_the_agents() {
    with_loop(Config::default(), |universe, network| {
        let (engine, me) = (universe.engine(), WorldRank(0));
        let head = Head::new(Kind::Query, 0, 0).reply(Kind::Value, Status::Ok);
        engine.need_agent().unwrap();
        network.set_full(true);
        engine.reply(me, &head, &[]);
        assert_eq!(network.rings(), 0, "whoever serves goes on");
        drop(engine.attend());
        assert_eq!(network.rings(), 1);
        engine.tell(me, &head);
        assert_eq!(network.rings(), 2);
        engine.stop_agent();
        network.set_full(false);
        while engine.progress() > 0 {}
        drop(engine.attend());
        assert_eq!(network.rings(), 2, "nothing is left");
        let counters = universe.counters();
        assert_eq!((counters.messages_sent(), counters.messages_received()), (2, 2));
    });
}

/// The one thread that is rung for room finds the outbox in the hands of another, which has just
/// found none.
#[test]
fn room_is_not_missed_while_a_message_is_tried() {
    with_loop(Config::default(), |universe, network| {
        let (engine, me) = (universe.engine(), WorldRank(0));
        network.set_full(true);
        engine.reply(me, &Head::new(Kind::Query, 0, 0).reply(Kind::Value, Status::Ok), &[]);
        let rung = engine.me.upgrade().unwrap();
        network.at_answer(move |network| {
            network.set_full(false);
            // As another thread would: no lock is held.
            assert_eq!(rung.progress(), 0, "it does not see the message");
        });
        engine.send_outbox();
        assert_eq!(universe.counters().messages_sent(), 1);
        assert!(engine.outgoing.is_empty());
    });
}

/// A rank whose peers are always there when it looks serves messages all the same.
#[test]
fn what_comes_at_once_keeps_no_message_waiting() {
    with_loop(Config::default(), |universe, _| {
        let engine = universe.engine();
        engine.tell(WorldRank(0), &Head::new(Kind::Query, 0, 0).reply(Kind::Value, Status::Ok));
        let received = || universe.counters().messages_received();
        assert_eq!(received(), 0);
        assert!((0..GLANCED).all(|_| engine.comes_at_once(|| true)));
        assert_eq!(received(), 1);
    });
}

/// Others that ask this rank for something without end keep no wait from its end.
#[test]
fn a_flood_of_messages_hides_nothing() {
    with_loop(impatient(), |universe, network| {
        let engine = universe.engine();
        network.set_flooded();
        let wait = Wait::new("a test", On::Peer(WorldRank(1)));
        let end = |wait| engine.wait_until(wait, || None::<()>).unwrap_err().cause;
        assert_eq!(end(wait), Cause::Timeout);
    });
    with_loop(Config::default(), |universe, network| {
        let engine = universe.engine();
        network.set_flooded();
        network.set_state(WorldRank(1), PeerState::Departed);
        let wait = Wait::new("a test", On::Peer(WorldRank(1)));
        let end = engine.wait_until(wait, || None::<()>).unwrap_err().cause;
        assert_eq!(end, Cause::PeerLeft(WorldRank(1)));
    });
}

/// What it sent may be in the hands of another thread.
fn is_missed_when_all_it_sent_is_handled(flooded: bool) {
    let it = WorldRank(1);
    let wait = Wait::new("a test", On::Peer(it));
    with_loop(Config::default(), |universe, network| {
        let engine = universe.engine();
        if flooded {
            network.set_flooded();
        }
        network.set_state(it, PeerState::Departed);
        network.hold(3);
        let end = engine.wait_until(wait, || None::<()>).unwrap_err().cause;
        assert_eq!((end, network.holds()), (Cause::PeerLeft(it), false));
        // That is what was waited for.
        network.hold(3);
        engine.wait_until(wait, || (!network.holds()).then_some(())).unwrap();
    });
}

#[test]
fn a_rank_that_left_is_missed_only_when_all_it_sent_is_handled() {
    is_missed_when_all_it_sent_is_handled(false);
}

#[test]
fn a_flood_of_messages_does_not_change_that() {
    is_missed_when_all_it_sent_is_handled(true);
}

/// Whichever comes first ends it: that, or the deadline of the configuration.
#[test]
fn a_wait_may_have_a_deadline_of_its_own() {
    let later = Duration::from_secs(1);
    for (config, until, ends) in [
        (Config::default(), None, true),
        (Config::default(), Some(later), true),
        // The clock stands at that.
        (Config::default(), Some(Duration::ZERO), false),
        (impatient(), Some(later), false),
    ] {
        with_loop(config, |universe, _| {
            let looks = Cell::new(0);
            let done = || {
                looks.set(looks.get() + 1);
                (looks.get() > 20).then_some(())
            };
            let wait = Wait { until, ..Wait::new("a test", On::Peer(WorldRank(1))) };
            let late = WaitError { what: "a test", cause: Cause::Timeout };
            let expected = if ends { Ok(()) } else { Err(late) };
            assert_eq!(universe.engine().wait_until(wait, done), expected, "{until:?}");
        });
    }
}

/// The wait itself keeps in mind what it found.
#[test]
fn a_wait_that_naps_misses_no_rank_too_early() {
    let it = WorldRank(1);
    let wait = Wait::new("a test", On::Peer(it));
    with_loop(Config::default(), |universe, network| {
        network.set_state(it, PeerState::Departed);
        network.hold(2);
        let mut asleep = Asleep::default();
        assert_eq!(universe.engine().nap(wait, &mut asleep), Ok(()));
        let end = universe.engine().nap(wait, &mut asleep).unwrap_err();
        assert_eq!(end.cause, Cause::PeerLeft(it));
    });
}

/// Nothing else waits for other threads.
#[test]
fn what_is_in_other_hands_hides_no_failure() {
    let it = WorldRank(1);
    let wait = Wait::new("a test", On::Peer(it));
    for (state, cause) in
        [(PeerState::Departed, Cause::Timeout), (PeerState::Failed, Cause::PeerFailed(it))]
    {
        with_loop(impatient(), |universe, network| {
            let engine = universe.engine();
            network.hold(usize::MAX);
            network.set_state(it, state);
            assert_eq!(engine.wait_until(wait, || None::<()>).unwrap_err().cause, cause);
        });
    }
}

/// A call that does not wait says nothing yet, and does not wait for it either.
#[test]
fn a_look_in_passing_misses_no_rank_too_early() {
    let it = WorldRank(1);
    let wait = Wait::new("a test", On::Peer(it));
    with_loop(Config::default(), |universe, network| {
        let engine = universe.engine();
        assert_eq!(engine.progress_or_trouble(wait), None);
        network.set_state(it, PeerState::Departed);
        network.hold(usize::MAX);
        assert_eq!(engine.progress_or_trouble(wait), None);
        network.hold(2);
        assert_eq!(engine.progress_or_trouble(wait), Some(Cause::PeerLeft(it)));
        assert!(!network.holds());
        network.hold(usize::MAX);
        network.set_state(it, PeerState::Failed);
        assert_eq!(engine.progress_or_trouble(wait), Some(Cause::PeerFailed(it)));
    });
}

/// What one has sent lies below what had arrived when it was first seen to have left: the others go
/// on sending.
#[test]
fn each_that_left_has_a_mark_of_its_own() {
    let (first, second) = (WorldRank(12), WorldRank(13));
    // One look at the first, if at all; of what had arrived at a look, so many are handled.
    let end = |looks: usize, handled: u64| {
        let (naps, mut end) = (Cell::new(0), None);
        with_loop(Config::default(), |universe, network| {
            network.set_handled(0);
            network.set_state(first, PeerState::Departed);
            network.set_state(second, PeerState::Departed);
            let named = |at: usize| Some(if at < looks { first } else { second });
            let wait = Wait::new("a test", On::Named(&named));
            let done = || {
                naps.set(naps.get() + 1);
                if naps.get() == 50 {
                    network.set_handled(handled);
                }
                (naps.get() > 100).then_some(())
            };
            end = universe.engine().wait_until(wait, done).err().map(|error| error.cause);
        });
        end
    };
    assert_eq!(end(0, 1), Some(Cause::PeerLeft(second)));
    assert_eq!(end(1, 1), None, "the second one sent more than was there before");
    assert_eq!(end(1, 2), Some(Cause::PeerLeft(second)));
}

/// Peers do not see that thread end: they would wait for what it was to serve.
#[test]
fn a_rank_whose_agent_panics_has_failed() {
    with_loop(Config::default(), |universe, network| {
        let engine = universe.engine();
        engine.need_agent().unwrap();
        engine.stop_agent();
        assert_eq!(network.departed(), [], "its end is nothing to others");
    });
    with_loop(Config::default(), |universe, network| {
        let engine = universe.engine();
        engine.need_agent().unwrap();
        network.set_broken();
        while !network.is_agent_over() {
            thread::yield_now();
        }
        assert_eq!(network.departed(), [Outcome::Failed]);
    });
}

/// Its place is another's: the only one, and all of its credit at the target.
#[test]
fn what_was_not_sent_takes_no_place() {
    let mut config = impatient();
    config.outstanding_messages = 1;
    with_loop(config, |universe, network| {
        let window = universe.world().window(1, 8).allocate().unwrap();
        let epoch = window.lock_all().unwrap();
        for value in [1u64, 2] {
            network.set_full(true);
            let error = epoch.put(Rank(0), 0, &[0u64]).unwrap_err();
            assert!(matches!(error, RmaError::Timeout { .. }), "{error}");
            network.set_full(false);
            epoch.put(Rank(0), 0, &[value]).unwrap();
            epoch.flush(Rank(0)).unwrap();
            assert_eq!(window.local().load(0), Ok(value));
        }
        epoch.unlock().unwrap();
    });
}

/// What takes no wait at all can fail because a peer has left, too: a message that it does not
/// take, memory that is gone. The launcher hears of each.
#[test]
fn the_rank_that_was_missed_is_told_however_that_was_noticed() {
    with_loop(Config::default(), |universe, network| {
        let (engine, peer) = (universe.engine(), WorldRank(1));
        let window = universe.world().window(1, 8).allocate().unwrap();
        network.set_unreachable(peer);
        let wait = Wait::new("a test", On::Peer(peer));
        let sent = engine.send(peer, &Head::new(Kind::Put, window.id().0, 0), &[], wait);
        assert_eq!(sent.map_err(|error| error.cause), Err(Cause::PeerLeft(peer)));
        assert_eq!(network.take_missed(), [peer]);
        let gone = window.import_failed(ImportError::PeerGone(peer));
        assert!(matches!(gone, RmaError::PeerLeft { .. }), "{gone}");
        assert!(network.take_missed().contains(&peer));
        // Whatever an error of a window is made of; a rank that failed is missed as one that left.
        for cause in [Cause::PeerLeft(peer), Cause::PeerFailed(peer)] {
            window.wait_failed(WaitError { what: "a test", cause });
            assert_eq!(network.take_missed(), [peer]);
        }
    });
}
