//! How far sinks have come.
use super::{Inbox, Wake};
use crate::ring::Ring;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn push(ring: &Ring<8, 1, 1>, sender: u32) -> u64 {
    ring.push(sender, &[7], &[]).unwrap();
    ring.claimed()
}

#[test]
fn a_message_is_handled_when_its_sink_has_returned() {
    let (ring, inbox) = (Ring::new(), Inbox::new());
    assert!(inbox.is_handled(ring.claimed()));
    let marks = [push(&ring, 0), push(&ring, 1)];
    let mut seen = Vec::new();
    let mut sink = |_, _: &[u8]| seen.push(marks.map(|mark| inbox.is_handled(mark)));
    let wake = |_| panic!("the caller hears of them");
    assert_eq!(inbox.drain(&ring, 2, &mut sink, wake), 2);
    assert_eq!(seen, [[false, false], [true, false]]);
    assert!(inbox.is_handled(marks[1]));
    assert!(!inbox.is_handled(push(&ring, 0)), "no thread has looked");
}

/// A message of several slots is one that the caller hears of.
#[test]
fn a_long_message_wakes_no_rank() {
    let (ring, inbox) = (Ring::<8, 1, 2>::new(), Inbox::new());
    ring.push(1, &[7], &[8]).unwrap();
    assert_eq!(ring.claimed(), 2, "it takes two slots");
    let wake = |_| panic!("the caller hears of it");
    assert_eq!(inbox.drain(&ring, 2, &mut |_, bytes| assert_eq!(bytes, [7, 8]), wake), 1);
}

/// The caller does not hear of those, so others are woken.
#[test]
fn nonsense_and_panics_are_handled_too() {
    let (ring, inbox) = (Ring::new(), Inbox::new());
    let mut woken = 0;
    let mut wake = |wake: Wake| woken += u32::from(wake.own);
    let mark = push(&ring, 9);
    assert_eq!(inbox.drain(&ring, 2, &mut |_, _| {}, &mut wake), 0);
    assert!(inbox.is_handled(mark));
    assert_eq!(inbox.corrupt(), 1);
    let (mark, later) = (push(&ring, 1), push(&ring, 1));
    let mut panics = |_, _: &[u8]| panic!("on purpose");
    let drain = || inbox.drain(&ring, 2, &mut panics, &mut wake);
    catch_unwind(AssertUnwindSafe(drain)).unwrap_err();
    assert!(inbox.is_handled(mark) && !inbox.is_handled(later));
    assert_eq!(inbox.drain(&ring, 2, &mut |_, _| {}, &mut wake), 1);
    assert!(inbox.is_handled(later));
    assert_eq!(woken, 2);
}
