//! Faults that a rank's port meets, on a libfabric that is pretended, and on tcp where that is.

use super::tests::{KEY, ONE, OTHER, Said, port_of, until};
use super::{Leave, Port, SLOT_BYTES, lock};
use crate::frame::{Header, Kind};
use crate::seal::{JobKey, Sealer};
use crate::sys::pretended::{Does, Script, library, records};
use crate::sys::{Caps, Full, Opened, here};
use crate::watcher::tend;
use crate::{Wanted, choose};
use rma_core::transport::{Outcome, PeerState, SubmitError};
use std::sync::atomic::Ordering::Relaxed;

/// The port of rank 0 of two on a provider that is pretended, which knows where the other is.
fn opened() -> (Opened, &'static Script) {
    let (library, script) = library(records(include_str!("sys/recorded/tcp.txt")));
    let offers = library.offers().unwrap();
    let offer = choose(&offers, &Wanted::default()).unwrap();
    (Opened::open(&library, offer, None, Caps::Messages).unwrap(), script)
}

fn pretended() -> (Port, &'static Script) {
    let (opened, script) = opened();
    let port = port_of(&opened, (ONE, KEY), true);
    assert!(port.book.learn(OTHER, &99_u64.to_le_bytes()));
    (port, script)
}

fn polled(port: &Port) -> Vec<Vec<u8>> {
    let mut taken = Vec::new();
    // Errors stand between what is read at once.
    for _ in 0..4 {
        port.poll(&mut |_, message| taken.push(message.to_vec()));
    }
    taken
}

/// What rank 1 sends.
fn message(sealer: &mut Sealer, text: &[u8]) -> Vec<u8> {
    let mut message = Header { from: OTHER, kind: Kind::Data }.to_bytes().to_vec();
    message.extend(text);
    sealer.seal(&mut message);
    sealer.sent();
    message
}

/// Nothing that was sent is told of, so no peer is waited for, whether it was talked to or not.
#[test]
fn an_overrun_queue_is_the_end_of_all_peers() {
    let (mut port, script) = pretended();
    let said = Said::new(PeerState::Alive);
    port.members = said.clone();
    assert_eq!(port.send(OTHER, b"a", b""), Ok(()));
    assert!(!port.is_lost(OTHER));
    assert!(tend(&port, &mut None) && lock(&said.departed).is_none());
    script.overrun(Does::Send, 268);
    assert!(port.read().news, "threads that wait look again");
    assert!(port.is_lost(OTHER) && !port.is_lost(ONE));
    assert_eq!(port.lost(), Some(OTHER));
    assert_eq!(port.send(OTHER, b"a", b""), Err(SubmitError::PeerFailed(OTHER)));
    let why = "the network ended: fi_cq_read failed (error 268)";
    assert!(port.troubles().contains(why), "{}", port.troubles());
    // It may leave: no rank is to be told.
    assert!(port.answer_farewells() && port.say_farewell() && port.talk_of_keys());
    assert!(!port.read().news);
    // Its own memory and messages are not reached either: peers hear of that.
    assert!(tend(&port, &mut None));
    assert_eq!(*lock(&said.departed), Some(Outcome::Failed));
    assert!(matches!(*lock(&port.leave), Leave::Left { in_order: false }));
}

#[test]
fn a_message_that_could_not_be_sent_loses_its_peer() {
    let (port, script) = pretended();
    assert_eq!(port.send(OTHER, b"a", b""), Ok(()));
    script.complete(Does::Send, Err(libc::EIO));
    port.read();
    assert!(port.is_lost(OTHER));
    let why = "rank 1 was lost: what a provider says (error 5)";
    assert!(port.troubles().contains(why), "{}", port.troubles());
    assert_eq!(port.send(OTHER, b"a", b""), Err(SubmitError::PeerFailed(OTHER)));
}

/// A peer that leaves closes its endpoint once all have heard, and what was under way to it ends in
/// errors; the launcher's word that it left in order may come later.
#[test]
fn a_peer_that_has_said_farewell_is_not_taken_for_failed() {
    let (mut port, script) = pretended();
    let said = Said::new(PeerState::Alive);
    port.members = said.clone();
    let mut sealer = Sealer::new(&KEY, OTHER, ONE);
    for _ in 0..2 {
        assert_eq!(port.send(OTHER, b"a", b""), Ok(()));
    }
    let mut farewell = Header { from: OTHER, kind: Kind::Farewell }.to_bytes().to_vec();
    farewell.extend([&0_u64.to_le_bytes()[..], &99_u64.to_le_bytes()].concat());
    sealer.seal(&mut farewell);
    sealer.sent();
    script.arrive(&farewell);
    port.read();
    assert!(port.answer_farewells(), "it sent nothing, so all is here");
    script.complete(Does::Send, Err(libc::ECONNRESET));
    port.read();
    assert!(!port.is_lost(OTHER) && port.lost().is_none());
    // What is sent until there is word is given up with it.
    script.refuse(Does::Send, libc::ENOTCONN);
    assert_eq!(port.send(OTHER, b"b", b""), Ok(()));
    assert!(!port.is_lost(OTHER));
    assert!(port.say_farewell(), "it hears nothing any more");
    port.note_lost();
    assert_eq!(*lock(&said.notes), [""; 0]);
    *lock(&said.state) = PeerState::Departed;
    assert_eq!(port.send(OTHER, b"b", b""), Err(SubmitError::PeerFailed(OTHER)));
    assert!(!port.is_lost(OTHER));
}

/// So one that has sent something, and may have more under way, knows why that does not arrive. It
/// is not waited for in the end: nothing that it was sent can be lost.
#[test]
fn farewell_is_said_to_those_that_have_only_sent_something() {
    let (mut port, script) = pretended();
    let said = Said::new(PeerState::Alive);
    port.members = said.clone();
    let mut sealer = Sealer::new(&KEY, OTHER, ONE);
    script.arrive(&message(&mut sealer, b"a"));
    assert_eq!(polled(&port), [b"a"]);
    *lock(&port.leave) = Leave::Leaving(Outcome::Departed);
    let before = script.begun(Does::Send);
    let mut deadline = None;
    assert!(!tend(&port, &mut deadline), "it has not heard");
    assert_eq!(script.begun(Does::Send), before + 1);
    assert!(!tend(&port, &mut deadline) && script.begun(Does::Send) == before + 1, "said once");
    assert_eq!(*lock(&said.departed), None);
    deadline = deadline.map(|until| until - port.farewell);
    assert!(tend(&port, &mut deadline));
    assert_eq!(*lock(&said.departed), Some(Outcome::Departed));
}

/// The user is told where a peer is that a rank does not get through to: what is under way, what
/// the provider does not take, and what fails before anything has come from there.
#[test]
fn a_peer_that_is_not_reached_is_named_with_its_address() {
    let (mut port, _) = pretended();
    let said = Said::new(PeerState::Alive);
    port.members = said.clone();
    let told = |port: &Port| {
        port.note_unreached(true);
        std::mem::take(&mut *lock(&said.notes))
    };
    assert_eq!(told(&port), [""; 0]);
    assert_eq!(port.send(OTHER, b"a", b""), Ok(()));
    let under_way = told(&port);
    let [text] = &under_way[..] else { panic!("{under_way:?}") };
    let address = port.endpoint.shown(&99_u64.to_le_bytes());
    let named = format!("rank 0: rank 1 at {address}: nothing gets through; see");
    assert!(text.starts_with(&named) && text.contains("firewall"), "{text}");
    assert_eq!(told(&port), [""; 0], "it was named");
    let (mut port, script) = pretended();
    port.members = said.clone();
    assert_eq!(port.send(OTHER, b"a", b""), Ok(()));
    // A wait that was not at its deadline: the message may be on its way.
    port.note_unreached(false);
    // Here and the message.
    script.complete(Does::Send, Ok(0));
    script.complete(Does::Send, Ok(0));
    port.read();
    assert_eq!(told(&port), [""; 0]);
    assert_eq!(port.send(OTHER, b"b", b""), Ok(()));
    script.complete(Does::Send, Err(libc::ECONNREFUSED));
    port.read();
    let refused = told(&port);
    let why = format!("error {}) what a provider says; see whether", libc::ECONNREFUSED);
    assert!(refused.len() == 1 && refused[0].contains(&why), "{refused:?}");
    port.note_lost();
    assert_eq!(told(&port), [""; 0], "it was named");
    // One that has sent something is named as this rank leaves.
    let (mut port, script) = pretended();
    port.members = said.clone();
    assert_eq!(port.send(OTHER, b"b", b""), Ok(()));
    port.peer(OTHER).came.store(1, Relaxed);
    script.complete(Does::Send, Err(libc::ECONNREFUSED));
    port.read();
    assert_eq!(*lock(&said.notes), [""; 0]);
    port.note_lost();
    assert_eq!(*lock(&said.notes), refused);
    // Other ranks than those that something is sent to are not.
    lock(&said.notes).clear();
    let (mut port, script) = pretended();
    port.members = said.clone();
    script.refuse(Does::Send, libc::EAGAIN);
    assert_eq!(port.send(OTHER, b"b", b""), Err(SubmitError::Again));
    assert_eq!(told(&port), [""; 0], "the provider is busy since just now");
    let mut other = port_of(&opened().0, (OTHER, KEY), true);
    other.members = said.clone();
    assert!(!other.peer(ONE).noted.load(Relaxed));
    assert_eq!(told(&other), [""; 0], "nothing is under way to rank 0");
}

/// One that is cut short is counted, its slot is used again, and what comes later is taken.
#[test]
fn a_truncated_message_takes_no_other_with_it() {
    let (port, script) = pretended();
    let mut sealer = Sealer::new(&KEY, OTHER, ONE);
    let rooms = script.begun(Does::Receive);
    script.arrive(&message(&mut sealer, b"one"));
    script.complete(Does::Receive, Err(265));
    script.arrive(&message(&mut sealer, b"two"));
    let short = message(&mut sealer, b"three");
    script.arrive(&short[..short.len() - 1]);
    assert_eq!(polled(&port), [b"one", b"two"]);
    assert_eq!(script.begun(Does::Receive), rooms, "all slots are offered again");
    let counts = "; dropped 1 messages without a tag of the job, 0 that had come before, 1 not";
    assert!(port.troubles().starts_with(counts), "{}", port.troubles());
    assert!(!port.is_lost(OTHER));
}

/// A provider that takes no room for what comes would have its rank wait for ever, in silence.
#[test]
fn slots_that_are_refused_are_told_and_offered_again() {
    let (port, script) = pretended();
    let mut sealer = Sealer::new(&KEY, OTHER, ONE);
    script.arrive(&message(&mut sealer, b"one"));
    let rooms = script.begun(Does::Receive);
    script.refuse(Does::Receive, libc::ENOMEM);
    assert!(!port.lacks_slots());
    assert_eq!(polled(&port), [b"one"]);
    assert_eq!(script.begun(Does::Receive), rooms);
    assert!(port.lacks_slots(), "the watcher looks again, also if nothing comes");
    let why = "no room: fi_recv failed (error 12)";
    assert!(port.troubles().contains(why), "{}", port.troubles());
    script.refuse(Does::Receive, libc::EAGAIN);
    port.read();
    script.refuse(Does::Read, libc::EAGAIN);
    port.read();
    assert_eq!(script.begun(Does::Receive), rooms + 1);
    assert!(!port.lacks_slots());
}

/// A message that is longer than any of the job, of an end that is no rank's: the next is taken.
#[test]
fn a_message_too_long_for_its_slot_does_no_harm_on_tcp() {
    let Some((library, offer)) = here::provider("tcp", false) else { return };
    let open = || Opened::open(&library, &offer, Some("127.0.0.1"), Caps::Messages).unwrap();
    let port = port_of(&open(), (ONE, KEY), true);
    let genuine = message(&mut Sealer::new(&KEY, OTHER, ONE), b"text");
    // tcp ends the connection of who sent the first, and no other.
    for message in [vec![7; SLOT_BYTES + 4096], genuine] {
        let (end, mut slots) = open().endpoint((1, SLOT_BYTES + 4096)).unwrap();
        let to = end.insert(port.endpoint.address()).unwrap();
        let (mut slot, mut taken) = (slots.pop(), Vec::new());
        until(|| {
            if let Some(mut own) = slot.take() {
                end.bytes_mut(&mut own)[..message.len()].copy_from_slice(&message);
                slot = end.send(own, message.len(), to).err().map(|Full(own, _)| own);
            }
            end.read(&mut Vec::new());
            taken.extend(polled(&port));
            match message.len() > SLOT_BYTES {
                true => port.troubles().contains("1 not whole"),
                false => taken == [b"text"],
            }
        });
    }
    assert_eq!(port.lost(), None);
}

/// A process that is started anew where a rank was: it gets nothing of the job that is left, and
/// its first messages are not taken for the rank's, whether it has another key or the job's.
#[test]
fn a_process_at_the_address_of_a_rank_is_not_that_rank() {
    let Some((library, offer)) = here::provider("tcp", false) else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let service = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    let open = |service| {
        let place = (Some("127.0.0.1"), service);
        Opened::open_at(&library, &offer, place, Caps::Messages).unwrap()
    };
    let one = port_of(&open(None), (ONE, KEY), true);
    let at = |key| port_of(&open(Some(&*service)), (OTHER, key), true);
    let other = at(KEY);
    let address = other.endpoint.address().to_vec();
    assert!(one.book.learn(OTHER, &address) && other.book.learn(ONE, one.endpoint.address()));
    // Both are heard as long as the rank is there.
    let (mut is_sent, mut heard) = ([false; 2], [0; 2]);
    until(|| {
        is_sent[0] |= is_sent[0] || one.send(OTHER, b"to", b"").is_ok();
        is_sent[1] |= is_sent[1] || other.send(ONE, b"from", b"").is_ok();
        heard[0] += polled(&one).len();
        heard[1] += polled(&other).len();
        heard == [1, 1]
    });
    drop(other);
    for (key, text) in [(JobKey([8; 32]), "another job"), (KEY, "the same key")] {
        let other = at(key);
        assert_eq!(other.endpoint.address(), address);
        assert!(other.book.learn(ONE, one.endpoint.address()));
        // What one says arrives nowhere, or the rank counts as lost.
        let before = one.refused();
        let (mut is_sent, mut taken) = (false, 0);
        until(|| {
            is_sent |= is_sent || other.send(ONE, b"I am rank 1", b"").is_ok();
            taken += polled(&one).len();
            _ = polled(&other);
            taken > 0 || one.refused() > before
        });
        assert_eq!(taken, 0, "{text}");
        if text == "another job" {
            until(|| {
                _ = one.send(OTHER, b"secret", b"");
                taken += polled(&other).len();
                _ = polled(&one);
                one.is_lost(OTHER) || other.refused() > 0
            });
            assert_eq!(taken, 0, "{text}");
        }
    }
}
