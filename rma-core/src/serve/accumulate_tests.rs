//! Accumulates that were put off, handed to several threads.
use crate::config::Config;
use crate::element::{BasicType, Op};
use crate::memory::stripe;
use crate::protocol::credit::CREDIT_MAX;
use crate::protocol::message::{Head, Kind};
use crate::rank::Rank;
use crate::window::accumulate_tests::with_loop;
use std::thread;

/// An origin with all its credit in what was put off sends another one as soon as the first is
/// answered, and another thread is handed that: it is taken.
#[test]
fn an_answer_gives_a_place_back_before_it_goes() {
    with_loop(Config::default(), |universe, network| {
        let window = universe.world().window(1, 8).allocate().unwrap();
        let engine = universe.world().inner.engine.clone();
        let mut head = Head::new(Kind::Accumulate, window.id().0, 0);
        (head.basic, head.op, head.length) = (BasicType::F64.to_wire(), Op::Sum as u8, 8.into());
        let one = [head.as_bytes(), &1.0f64.to_le_bytes()].concat();
        let held = stripe::try_one(window.part.block.get(), 0, Rank(7)).unwrap();
        (0..CREDIT_MAX).for_each(|_| network.arrive(one.clone()));
        engine.progress();
        drop(held);
        let other = engine.clone();
        network.at_answer(move |network| {
            network.take_sent();
            network.arrive(one);
            thread::spawn(move || _ = other.progress()).join().unwrap();
        });
        engine.retry_deferred();
        network.take_sent();
        engine.retry_deferred();
        assert_eq!(universe.counters().messages_dropped(), 0);
        assert_eq!(window.local().load::<f64>(0).unwrap(), CREDIT_MAX as f64 + 1.0);
    });
}

/// A message for every place that a peer has: more of them no honest one sends.
#[test]
fn a_peer_cannot_have_more_put_off_than_its_credit() {
    with_loop(Config::default(), |universe, network| {
        let window = universe.world().window(1, 8).allocate().unwrap();
        let (engine, block) = (universe.engine(), window.part.block.get());
        let mut head = Head::new(Kind::Accumulate, window.id().0, 0);
        (head.basic, head.op, head.length) = (BasicType::F64.to_wire(), Op::Sum as u8, 8.into());
        let held = stripe::try_one(block, 0, Rank(7)).unwrap();
        let one = [head.as_bytes(), &1.0f64.to_le_bytes()].concat();
        (0..CREDIT_MAX + 3).for_each(|_| network.arrive(one.clone()));
        engine.progress();
        assert_eq!(universe.counters().messages_dropped(), 3);
        assert_eq!(engine.retry_deferred(), 0, "no rank has given the stripe back");
        drop(held);
        assert_eq!(engine.retry_deferred(), CREDIT_MAX);
        assert_eq!(window.local().load(0), Ok(CREDIT_MAX as f64));
        // Its places are its own again.
        let held = stripe::try_one(block, 0, Rank(7)).unwrap();
        network.take_sent();
        network.arrive(one);
        engine.progress();
        assert_eq!(universe.counters().messages_dropped(), 3);
        drop(held);
        assert_eq!(engine.retry_deferred(), 1);
    });
}
