//! Faults of providers, on a libfabric that is pretended: what an endpoint tells of them.

use super::atomics::Form;
use super::endpoint::{Completion, Direction, Endpoint, Failure, Far, Full};
use super::layout::pretended::{Does, Script, library, records};
use super::opened::{Caps, Opened};
use super::slots::Slot;
use crate::{Wanted, choose};
use std::ffi::c_int;

/// libfabric's own, `FI_ETRUNC` and `FI_EOVERRUN` of `fi_errno.h`.
const ETRUNC: c_int = 265;
const EOVERRUN: c_int = 268;

const TCP: &str = include_str!("recorded/tcp.txt");

/// A provider as that record says, and what becomes of its operations.
fn opened(record: &str) -> (Opened, &'static Script) {
    let (library, script) = library(records(record));
    let offers = library.offers().unwrap();
    let offer = choose(&offers, &Wanted::default()).unwrap();
    (Opened::open(&library, offer, None, Caps::Memory).unwrap(), script)
}

fn read(endpoint: &Endpoint) -> Vec<Completion> {
    let mut over = Vec::new();
    while endpoint.read(&mut over) {}
    over
}

fn ends() -> (Endpoint, Vec<Slot>, &'static Script) {
    let (opened, script) = opened(TCP);
    let (endpoint, slots) = opened.endpoint((4, 64)).unwrap();
    (endpoint, slots, script)
}

#[test]
fn an_overrun_queue_is_told_once_and_asked_no_more() {
    let (endpoint, mut slots, script) = ends();
    let far = Far { peer: 1, key: 2, at: 0 };
    endpoint.transfer(slots.pop().unwrap(), 8, Direction::Write, &far).unwrap();
    endpoint.receive(slots.pop().unwrap()).unwrap();
    script.overrun(Does::Write, EOVERRUN);
    let told = read(&endpoint);
    let [Completion::Ended(Failure { call: "fi_cq_read", code: EOVERRUN, .. })] = &*told else {
        panic!("{told:?}")
    };
    assert!(endpoint.has_ended() && read(&endpoint).is_empty(), "nobody is told twice");
    assert!(endpoint.may_wait() && endpoint.file().is_none(), "nobody looks without a pause");
    // What it has under way is its own until it is closed.
    assert_eq!(endpoint.close(), Ok(()));
    assert!(script.calls().contains(&"close endpoint"));
}

#[test]
fn an_error_of_one_operation_is_of_that_one() {
    let (endpoint, mut slots, script) = ends();
    for _ in 0..2 {
        assert!(endpoint.send(slots.pop().unwrap(), 8, 1).is_ok());
    }
    let second = slots.pop().unwrap();
    endpoint.receive(second).unwrap();
    script.complete(Does::Send, Err(libc::EIO));
    script.complete(Does::Receive, Err(ETRUNC));
    script.complete(Does::Send, Ok(8));
    let told = read(&endpoint);
    let [
        Completion::Sent(_, Err(Failure { call: "fi_cq_readerr", code: libc::EIO, reason })),
        Completion::Received(_, Err(Failure { code: ETRUNC, .. })),
        Completion::Sent(_, Ok(())),
    ] = &*told
    else {
        panic!("{told:?}")
    };
    assert_eq!(reason, "what a provider says");
}

#[test]
fn what_is_refused_at_once_gives_its_slot_back() {
    let (endpoint, mut slots, script) = ends();
    for (code, failure) in [(libc::EAGAIN, false), (libc::ENOKEY, true), (libc::EIO, true)] {
        script.refuse(Does::Read, code);
        let far = Far { peer: 1, key: 2, at: 0 };
        let slot = slots.pop().unwrap();
        let Err(Full(slot, why)) = endpoint.transfer(slot, 8, Direction::Read, &far) else {
            panic!("it was not refused")
        };
        assert_eq!(why.is_some(), failure, "{why:?}");
        assert!(why.is_none_or(|why| (why.call, why.code) == ("fi_readmsg", code)));
        slots.push(slot);
    }
    assert_eq!(Form::Plain.flags(), 0);
}
