//! The engine against messages that no honest peer sends. Each is dropped and counted, or answered
//! by an error; no byte outside of what was meant is written, and what follows works.
use super::Window;
use super::accumulate_tests::{Loop, with_loop};
use crate::config::Config;
use crate::element::{BasicType, Op};
use crate::engine::{Buffer, Engine, Expected, Next, Pending, SlotId, Wait};
use crate::error::RmaError;
use crate::protocol::credit::CREDIT_MAX;
use crate::protocol::message::{Head, Kind};
use crate::rank::{Rank, WorldRank};
use crate::transport::PeerState;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use proptest::prelude::*;
use std::sync::Arc;
use std::thread;

const ME: Rank = Rank(0);
const WORLD: WorldRank = WorldRank(0);
const WORDS: usize = 100;
const SIZE: u64 = WORDS as u64 * 8;

/// Three messages of a hundred bytes may come by rendezvous at once.
fn config() -> Config {
    let mut config = Config::default();
    (config.eager_bytes, config.rendezvous_bytes) = (200, 300);
    config
}

fn with_window(test: impl FnOnce(&Window, &Loop)) {
    with_loop(config(), |universe, network| {
        let window = universe.world().window(WORDS, 8).allocate().unwrap();
        window.local().write(0, &[0x11u8; SIZE as usize]).unwrap();
        test(&window, network);
        still_works(&window);
        window.free().unwrap();
    });
}

fn part(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    window.local().read(0, &mut bytes).unwrap();
    bytes
}

/// Accumulates wait for no answer where messages keep their order, and answers go as such. S-H7
#[test]
fn in_order_accumulates_follow_each_other() {
    with_window(|window, network| {
        let (engine, epoch) = (window.engine(), window.lock_all().unwrap());
        let replace = |value| epoch.accumulate(ME, 0, Op::Replace, &[value]).unwrap();
        let served = || network.answers.load(Relaxed);
        replace(1u64);
        replace(2);
        assert_eq!(served(), 1, "the second may overtake the first");
        epoch.flush(ME).unwrap();
        network.in_order.store(true, Relaxed);
        let (sent, before) = (engine.counters.messages_sent(), served());
        (3..9u64).for_each(replace);
        assert_eq!((engine.counters.messages_sent(), served()), (sent + 6, before));
        assert_eq!(epoch.fetch_and_op(ME, 0, Op::Sum, 1), Ok(8), "all before it are done");
        epoch.flush(ME).unwrap();
        assert_eq!(window.local().load(0), Ok(9u64));
        assert_eq!(served(), before + 7);
        network.in_order.store(false, Relaxed);
        epoch.unlock().unwrap();
    });
}

/// Small, large and atomic operations do what they shall.
fn still_works(window: &Window) {
    let epoch = window.lock_all().unwrap();
    let bytes: Vec<u8> = (0..SIZE).map(|i| i as u8).collect();
    epoch.put(ME, 0, &bytes).unwrap();
    epoch.put(ME, 3, &[0xaau8; 8]).unwrap();
    epoch.flush(ME).unwrap();
    let mut got = vec![0u8; SIZE as usize];
    epoch.get(ME, 0, &mut got).unwrap();
    assert_eq!(
        (&got[..24], &got[24..32], &got[32..]),
        (&bytes[..24], &[0xaa; 8][..], &bytes[32..])
    );
    let word = u64::from_le_bytes([0xaa; 8]);
    assert_eq!(epoch.compare_and_swap(ME, 3, word, 1), Ok(word));
    epoch.unlock().unwrap();
}

fn head(window: &Window, kind: Kind, offset: u64, length: u64, slot: u64) -> Head {
    let mut head = Head::new(kind, window.id().0, 0);
    (head.offset, head.length, head.slot) = (offset.into(), length.into(), slot.into());
    head
}

/// Sends one message to this rank, lets it and what answers it arrive, and says how many were
/// dropped.
fn send(engine: &Engine, head: &Head, body: &[u8]) -> u64 {
    let before = engine.counters.messages_dropped();
    engine.transport.send(WORLD, head.as_bytes(), body).unwrap();
    while engine.progress() > 0 {}
    engine.counters.messages_dropped() - before
}

/// A request that waits for its answer, and the slot of it.
fn outstanding(window: &Window, kind: Kind, length: u64) -> (Arc<Pending>, u64) {
    let pending = Arc::default();
    // An answer to no request: what was asked gets lost.
    let head = head(window, kind, 0, length, 0);
    let expected = Expected::of(&head, Buffer::NONE);
    // SAFETY: no buffer.
    #[allow(unsafe_code)]
    let slot = unsafe { window.engine().outstanding.start(WORLD, expected, &pending) };
    (pending, slot.unwrap().0)
}

/// Requests that make no sense.
fn lies(window: &Window) -> Vec<(Head, Vec<u8>)> {
    let forge = |kind, offset, length, body: usize| {
        (head(window, kind, offset, length, 1 << 40), vec![0xffu8; body])
    };
    let mut forged = vec![
        forge(Kind::Put, 0, 8, 7),
        forge(Kind::Put, 0, 7, 8),
        forge(Kind::Put, 0, 0, 0),
        forge(Kind::Put, SIZE, 1, 1),
        forge(Kind::Put, SIZE - 7, 8, 8),
        forge(Kind::Put, u64::MAX, 8, 8),
        forge(Kind::Get, 0, 0, 0),
        forge(Kind::Get, 0, 8, 8),
        forge(Kind::Get, SIZE - 7, 8, 0),
        forge(Kind::Get, u64::MAX, 8, 0),
        forge(Kind::Get, 0, u64::MAX, 0),
        forge(Kind::Lock, 2, 0, 0),
        forge(Kind::Lock, 0, 0, 1),
        forge(Kind::Unlock, 2, 0, 0),
        forge(Kind::Unlock, 0, 0, 1),
        forge(Kind::Pass, 1 << 32, 0, 0),
        forge(Kind::Pass, 0, 0, 1),
        forge(Kind::Query, 2, 0, 0),
        forge(Kind::Query, 0, 0, 1),
        forge(Kind::Rts, 0, 0, 0),
        forge(Kind::Rts, 0, 8, 1),
        forge(Kind::Rts, SIZE - 7, 8, 0),
        forge(Kind::Rts, u64::MAX, 8, 0),
        forge(Kind::Rts, 8, u64::MAX, 0),
        forge(Kind::PutData, 0, 8, 8),
        forge(Kind::Cancel, 0, 0, 0),
        forge(Kind::Post, 0, 0, 1),
        forge(Kind::Complete, 0, 0, 0),
    ];
    for (offset, length, body) in [(SIZE, 8, 8), (0, 8, 7), (0, u64::MAX, 8), (0, 0, 0)] {
        for kind in [Kind::Accumulate, Kind::GetAccumulate, Kind::CompareSwap] {
            let (mut head, body) = forge(kind, offset, length, body);
            head.basic = BasicType::U64.to_wire();
            forged.push((head, body));
        }
    }
    // The payload is no row.
    for kind in [Kind::Put, Kind::Get] {
        let (mut head, body) = forge(kind, 0, 8, 8);
        head.tag = 1.into();
        forged.push((head, body));
    }
    forged
}

#[test]
fn requests_that_lie_touch_nothing() {
    with_window(|window, _| {
        let engine = window.engine();
        for (head, body) in lies(window) {
            // The answer finds no slot, if the request itself is not dropped.
            assert!(send(engine, &head, &body) > 0, "{head:?}");
            assert_eq!(part(window), [0x11; SIZE as usize], "{head:?}");
        }
        // No such window: answered, to no request.
        for kind in [Kind::Put, Kind::Get, Kind::Rts, Kind::Query, Kind::Accumulate] {
            let mut head = head(window, kind, 0, 8, 1 << 40);
            head.object = 0xdead_beef.into();
            assert!(send(engine, &head, &[]) > 0, "{head:?}");
        }
        // No message at all.
        engine.transport.send(WORLD, &[2; 39], &[]).unwrap();
        engine.transport.send(WORLD, &[0xff; 60], &[]).unwrap();
        let before = engine.counters.messages_dropped();
        engine.progress();
        assert_eq!(engine.counters.messages_dropped(), before + 2);
    });
}

#[test]
fn answers_without_a_request_are_dropped() {
    with_window(|window, _| {
        let engine = window.engine();
        let (pending, slot) = outstanding(window, Kind::Put, 8);
        let answer = |kind, length, slot| head(window, kind, 0, length, slot);
        let forged = [
            answer(Kind::Done, 8, slot + 1),
            answer(Kind::Done, 8, slot + (1 << 32)),
            answer(Kind::Done, 8, u64::MAX),
            answer(Kind::Done, 9, slot),
            answer(Kind::Done, 0, slot),
            answer(Kind::Data, 8, slot),
            answer(Kind::Value, 8, slot),
            answer(Kind::Cts, 8, slot),
        ];
        for head in forged {
            assert_eq!(send(engine, &head, &[]), 1, "{head:?}");
        }
        assert_eq!(send(engine, &answer(Kind::Done, 8, slot), &[0; 8]), 1, "bytes in it");
        let mut unknown = answer(Kind::Done, 8, slot).as_bytes().to_vec();
        unknown[3] = 77;
        engine.transport.send(WORLD, &unknown, &[]).unwrap();
        let before = engine.counters.messages_dropped();
        engine.progress();
        assert_eq!(engine.counters.messages_dropped(), before + 1, "no such status");
        assert!(!pending.is_done());
        assert_eq!(send(engine, &answer(Kind::Done, 8, slot), &[]), 0, "the real one");
        assert!(pending.is_done() && pending.failure().is_none());
        let (pending, slot) = outstanding(window, Kind::Query, 0);
        let mut value = answer(Kind::Value, 1, slot);
        value.offset = 77.into();
        assert_eq!(send(engine, &value, &[]), 0, "a value that was asked for");
        assert!(pending.is_done() && pending.failure().is_none());
        assert_eq!(pending.value(), 77);
    });
}

#[test]
fn grants_that_were_not_asked_for_are_refused() {
    with_window(|window, _| {
        let engine = window.engine();
        let grant = |slot, length| head(window, Kind::Cts, 0, length, slot);
        // Answered by a cancel, which finds nothing either.
        assert_eq!(send(engine, &grant(1 << 40, 8), &[]), 2);
        let (pending, slot) = outstanding(window, Kind::Rts, 250);
        for (length, body) in [(0, 0), (251, 0), (u64::MAX, 0), (8, 1)] {
            assert_eq!(send(engine, &grant(slot, length), &vec![0; body]), 1, "{length}");
        }
        assert_eq!(send(engine, &head(window, Kind::Done, 0, 1, slot), &[]), 1, "too early");
        assert!(!pending.is_done());
        engine.cancel(&pending);
    });
}

#[test]
fn data_stays_within_its_grants() {
    with_window(|window, _| {
        let engine = window.engine();
        let slot = 5 << 32;
        let send_data = |offset, len: usize| {
            let message = head(window, Kind::PutData, offset, len as u64, slot);
            send(engine, &message, &vec![0xeeu8; len])
        };
        assert_eq!(send_data(0, 8), 1, "nothing was granted");
        // The grants go to a slot that is not in use, whose origin cancels; so no slot waits for
        // what answers that: two dropped messages.
        let rts = |length| send(engine, &head(window, Kind::Rts, 16, length, slot), &[]);
        assert_eq!(rts(40), 2, "the grant");
        assert_eq!(send_data(0, 8), 1, "it was cancelled");
        assert_eq!(part(window), [0x11; SIZE as usize]);

        // An origin that holds its grant: this rank, with a slot.
        let (pending, slot) = outstanding(window, Kind::Rts, 400);
        let message = |kind, offset, length| head(window, kind, offset, length, slot);
        assert_eq!(send(engine, &message(Kind::Rts, 16, 400), &[]), 0);
        assert_eq!(send(engine, &message(Kind::Rts, 16, 400), &[]), 1, "again");
        let send_data = |offset, len: usize| {
            send(engine, &message(Kind::PutData, offset, len as u64), &vec![0xeeu8; len])
        };
        for (offset, len) in [(0, 0), (0, 301), (300, 1), (u64::MAX, 1), (250, 60)] {
            assert_eq!(send_data(offset, len), 1, "{len} bytes at {offset}");
        }
        let mut lie = message(Kind::PutData, 0, 9);
        assert_eq!(send(engine, &lie, &[0; 8]), 1, "another length");
        lie = message(Kind::PutData, 0, 8);
        lie.object = 77.into();
        assert_eq!(send(engine, &lie, &[0; 8]), 1, "another window");
        assert_eq!(part(window), [0x11; SIZE as usize]);
        assert_eq!(send_data(100, 100), 0);
        let mut expected = [0x11; SIZE as usize];
        expected[116..216].fill(0xee);
        assert_eq!(part(window), expected);
        assert_eq!(send_data(100, 100) + send_data(100, 100), 0, "the peer's own bytes");
        let slot = SlotId(slot);
        assert_eq!(engine.outstanding.next(slot, 1000), Next::Data(0..400), "granted since");
        assert_eq!(send_data(100, 100), 0);
        assert_eq!(send_data(100, 100), 1, "more than was asked for");
        assert_eq!(part(window), expected);
        assert!(pending.is_done());
    });
}

/// A flush of another thread that gives up cancels what this one has not sent yet: its credit is
/// gone, and so it is not sent.
#[test]
fn what_is_cancelled_while_there_is_no_room_is_not_sent() {
    with_window(|window, network| {
        let (engine, pending) = (window.engine(), Arc::<Pending>::default());
        let sent = || engine.counters.messages_sent();
        let (before, head) = (sent(), head(window, Kind::Put, 0, 8, 0));
        network.set_full(true);
        thread::scope(|scope| {
            let put = || {
                let wait = window.wait_for("a put", ME);
                window.issue(wait, WORLD, head, &[0xbb; 8], &pending)
            };
            let put = scope.spawn(put);
            // As soon as it has a slot, and credit.
            while !put.is_finished() {
                engine.cancel(&pending);
                thread::yield_now();
            }
            let put = put.join().unwrap();
            network.set_full(false);
            assert!(matches!(put, Err(RmaError::Timeout { .. })), "{put:?}");
        });
        while engine.progress() > 0 {}
        assert_eq!((sent() - before, part(window)[0]), (0, 0x11));
    });
}

/// What a target has not served yet counts against the credit at it, whether its origin waits
/// for it or not: the target would drop what is more.
#[test]
fn a_target_has_no_more_than_the_credit() {
    with_window(|window, network| {
        let engine = window.engine();
        let put = || {
            let (pending, head) = (Arc::<Pending>::default(), head(window, Kind::Put, 0, 8, 0));
            let wait = Wait { until: Some(Duration::ZERO), ..window.wait_for("a put", ME) };
            (window.issue(wait, WORLD, head, &[0xbb; 8], &pending), pending)
        };
        let credit = engine.config.credit_messages;
        let (mut sent, mut on_the_way) = (0, Vec::new());
        for _ in 0..2 * credit {
            let (issued, pending) = put();
            sent += usize::from(issued.is_ok());
            on_the_way.extend(network.take_sent());
            engine.cancel(&pending);
        }
        assert_eq!((sent, on_the_way.len()), (credit, credit));
        on_the_way.into_iter().for_each(|message| network.arrive(message));
        let dropped = engine.counters.messages_dropped();
        while engine.progress() > 0 {}
        assert_eq!(engine.counters.messages_dropped(), dropped, "late answers are expected");
        assert!(engine.outstanding.is_unused());
    });
}

/// A large put that is cancelled tells its target, though another put of its flush had failed
/// before; the answer to that frees the slot.
#[test]
fn a_cancelled_rendezvous_tells_its_target() {
    with_window(|window, _| {
        let (engine, pending) = (window.engine(), Arc::<Pending>::default());
        let wait = window.wait_for("a put", ME);
        let head_of = |kind, at, slot| head(window, kind, at, 300, slot);
        // Out of range.
        window.issue(wait, WORLD, head_of(Kind::Put, SIZE, 0), &[0; 300], &pending).unwrap();
        while engine.progress() > 0 {}
        assert!(pending.failure().is_some());
        // All that the target clears is another origin's.
        let (holder, rts) = (WorldRank(1), head_of(Kind::Rts, 16, 1 << 40));
        assert!(engine.serving().serve(engine, holder, Kind::Rts, &rts, &[]));
        thread::scope(|scope| {
            let (origin, pending) = ([0x77u8; 400], &pending);
            let put = move || {
                let wait = window.wait_for("a put", ME);
                window.put_by_rendezvous(wait, WORLD, 0, &origin, pending)
            };
            let put = scope.spawn(put);
            while !engine.serving().incoming.is_waited_for() {
                thread::yield_now();
            }
            // That flag orders nothing; the network's lock does, so the slot is seen by the cancel.
            engine.progress();
            engine.cancel(pending);
            let put = put.join().unwrap();
            assert!(matches!(put, Err(RmaError::Timeout { .. })), "{put:?}");
        });
        while engine.progress() > 0 {}
        assert!(!engine.serving().incoming.is_waited_for() && engine.outstanding.is_unused());
        assert_eq!(part(window), [0x11; SIZE as usize]);
        assert!(engine.take_cancel(holder, &head_of(Kind::Cancel, 0, 1 << 40), &[]));
    });
}

/// The agent finds out that the holder of grants is gone, which tells no rank: this one calls
/// nothing meanwhile. S-M5
#[test]
fn an_agent_takes_grants_back() {
    with_window(|window, network| {
        let engine = window.engine();
        let send_rts = |origin: WorldRank| {
            let rts = head(window, Kind::Rts, 16, 300, 1 << 40);
            assert!(engine.serving().serve(engine, origin, Kind::Rts, &rts, &[]));
        };
        engine.need_agent().unwrap();
        while !network.is_agent_asleep() {
            thread::yield_now();
        }
        // A thread that serves and has other things to do then.
        let (holder, waits) = (WorldRank(1), WorldRank(2));
        send_rts(holder);
        send_rts(waits);
        engine.progress_in_passing();
        while !network.is_agent_asleep() {
            thread::yield_now();
        }
        network.set_state(holder, PeerState::Failed);
        while engine.serving().incoming.is_waited_for() {
            thread::yield_now();
        }
        engine.stop_agent();
        assert!(engine.take_cancel(waits, &head(window, Kind::Cancel, 0, 0, 1 << 40), &[]));
    });
}

#[test]
fn a_peer_cannot_request_without_end() {
    with_window(|window, network| {
        let engine = window.engine();
        // Nothing leaves while the transport is full, so answers are kept.
        network.set_full(true);
        let get = head(window, Kind::Get, 0, 8, 1 << 40);
        let flood = CREDIT_MAX + 100;
        for _ in 0..flood {
            network.arrive(get.as_bytes().to_vec());
        }
        let before = engine.counters.messages_dropped();
        engine.progress();
        assert_eq!(engine.counters.messages_dropped() - before, 100, "what is beyond its credit");
        let mut put = head(window, Kind::Put, 0, 8, 1 << 40).as_bytes().to_vec();
        put.extend([0x33; 8]);
        network.arrive(put);
        engine.progress();
        assert_eq!(engine.counters.messages_dropped() - before, 101);
        assert_eq!(
            part(window),
            [0x11; SIZE as usize],
            "what no origin can be told of is not done"
        );
        network.set_full(false);
        let before = engine.counters.messages_dropped();
        while engine.progress() > 0 {}
        let answers = engine.counters.messages_dropped() - before;
        assert_eq!(answers, CREDIT_MAX as u64, "answers that no request waits for");
        assert_eq!(send(engine, &get, &[]), 1, "served again; its answer finds no request");
    });
}

#[test]
fn replies_are_read_when_they_are_sent() {
    with_window(|window, network| {
        let engine = window.engine();
        let mut buffer = [0u8; 250];
        let pending = Arc::default();
        network.set_full(true);
        let request = head(window, Kind::Get, 8, 250, 0);
        let at = Buffer { at: buffer.as_mut_ptr(), len: buffer.len() };
        let expected = Expected::of(&request, at);
        // SAFETY: `buffer` is read only after `pending` is done.
        #[allow(unsafe_code)]
        let slot = unsafe { engine.outstanding.start(WORLD, expected, &pending) }.unwrap();
        network.arrive(head(window, Kind::Get, 8, 250, slot.0).as_bytes().to_vec());
        engine.progress();
        window.local().write(1, &[0x22u8; 100]).unwrap();
        network.set_full(false);
        while engine.progress() > 0 {}
        assert!(pending.is_done());
        assert_eq!((&buffer[..100], &buffer[100..]), (&[0x22; 100][..], &[0x11; 150][..]));
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 200 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    /// Whatever arrives, nothing panics, and what follows works.
    #[test]
    fn any_message_is_survived(
        messages in proptest::collection::vec(
            (0u8..22, 0u8..5, any::<bool>(), 0u64..900, 0u64..900, 0u64..4, 0usize..100),
            1..20,
        ),
    ) {
        with_window(|window, _| {
            let engine = window.engine();
            for (kind, status, known, offset, length, slot, body) in messages {
                // The words of locks are not for peers to change, and contributions have their own
                // tests.
                if [1, 7, 8, 10].contains(&kind) {
                    continue;
                }
                let mut head = head(window, Kind::Put, offset, length, 1 << 32 | slot);
                if !known {
                    head.object = 99.into();
                }
                let mut bytes = head.as_bytes().to_vec();
                (bytes[0], bytes[3]) = (kind, status);
                bytes.resize(bytes.len() + body, 0x33);
                engine.transport.send(WORLD, &bytes, &[]).unwrap();
                engine.progress();
            }
            while engine.progress() > 0 {}
        });
    }
}
