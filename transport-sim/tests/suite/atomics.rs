//! Atomics of a device.

use std::collections::BTreeSet;

use crate::common::seeds;
use crate::party::{Memory, Party, behind, net};
use rma_core::bytemuck::{cast_slice, pod_collect_to_vec};
use rma_core::transport::{
    Atomic, DeviceError, PostError, Remote, RemoteLimits, Transfer, WorldRank,
};
use rma_core::{BasicElement, Bool, Complex, Op, Pair};
use rma_transport_sim::{Atomics, DeviceConfig, Net, Sim, run};

const COUNT: usize = 3;

/// A rank with a window whose elements are the given ones, between others that stay.
struct Case<'a, 's> {
    party: &'a mut Party<'s>,
    seed: u64,
}

impl Case<'_, '_> {
    /// Does it, and looks for what it makes of `old`.
    fn check<E: BasicElement + PartialEq + core::fmt::Debug>(
        &mut self,
        atomic: Atomic,
        old: [E; COUNT],
        operands: &[E],
        expected: [E; COUNT],
    ) {
        let Self { party, seed } = self;
        let sim = party.sim;
        let padded = |middle: [E; COUNT]| {
            let ends = [E::zeroed()];
            [&ends[..], &middle[..], &ends[..]].concat()
        };
        let window = Memory::of(sim, cast_slice(&padded(old)));
        let fetched = Memory::new(sim, COUNT * size_of::<E>());
        // Operands need no alignment.
        let bytes = [&[0], cast_slice::<E, u8>(operands)].concat();
        let storage = Memory::of(sim, &bytes);
        let start = storage.base().wrapping_add(1).cast_const();
        let from = if operands.is_empty() { core::ptr::null() } else { start };
        let registration = window.register(sim, None).unwrap();
        let there = party.publish(&window, registration.key())[0];
        let there = behind(&there, size_of::<E>() as u64);
        let fetches = !seed.is_multiple_of(3);
        let into = if fetches { fetched.base() } else { core::ptr::null_mut() };
        let transfer = Transfer::Atomic { atomic, count: COUNT, operands: from, fetched: into };
        party.run(&transfer, &there).unwrap();

        let found: Vec<E> = pod_collect_to_vec(&window.bytes());
        assert_eq!(found, padded(expected), "{atomic}");
        let was: Vec<E> = pod_collect_to_vec(&fetched.bytes());
        let there_was = if fetches { old } else { [E::zeroed(); COUNT] };
        assert_eq!(was, there_was, "{atomic}");
        assert!(sim.does(atomic));
    }

    fn combine<E: BasicElement + PartialEq + core::fmt::Debug>(
        &mut self,
        op: Op,
        old: [E; COUNT],
        operands: [E; COUNT],
        expected: [E; COUNT],
    ) {
        self.check(Atomic::Combine(op, E::BASIC), old, &operands, expected);
    }
}

fn alone(seed: u64, body: impl Fn(&mut Case<'_, '_>) + Sync) {
    run(&net(1, seed, DeviceConfig::new()), |sim| {
        let mut party = Party::new(&sim);
        body(&mut Case { party: &mut party, seed });
    })
    .unwrap();
}

#[test]
fn words_are_combined_as_their_operation_says() {
    type Model = fn(u64, u64) -> u64;
    let models: [(Op, Model); 9] = [
        (Op::Sum, u64::wrapping_add),
        (Op::Prod, u64::wrapping_mul),
        (Op::Min, Ord::min),
        (Op::Max, Ord::max),
        (Op::BitAnd, |a, b| a & b),
        (Op::BitOr, |a, b| a | b),
        (Op::BitXor, |a, b| a ^ b),
        (Op::Replace, |_, b| b),
        (Op::LogicalAnd, |a, b| u64::from(a != 0 && b != 0)),
    ];
    for seed in seeds(12) {
        alone(seed, |case| {
            let (old, operands) = ([7, u64::MAX, 0], [12, 3, seed]);
            for (op, model) in models {
                let expected = [0, 1, 2].map(|i: usize| model(old[i], operands[i]));
                case.combine(op, old, operands, expected);
            }
            let no_op = Atomic::Combine(Op::NoOp, u64::BASIC);
            case.check(no_op, old, &[], old);
            case.check(no_op, old, &operands, old);
        });
    }
}

#[test]
fn every_type_is_combined() {
    for seed in seeds(6) {
        alone(seed, |case| {
            case.combine::<u8>(Op::Sum, [250, 0, 1], [10, 2, 3], [4, 2, 4]);
            case.combine::<i16>(Op::Min, [-5, 0, 1], [10, -2, 3], [-5, -2, 1]);
            case.combine::<f64>(Op::Sum, [0.5, 1.0, -2.0], [0.25, 0.0, 2.0], [0.75, 1.0, 0.0]);
            let (yes, no) = (Bool::TRUE, Bool::new(false));
            case.combine(Op::LogicalXor, [yes, no, no], [yes, yes, no], [no, yes, no]);
            let complex = |re, im| Complex::<f32> { re, im };
            case.combine(
                Op::Prod,
                [complex(0.0, 1.0), complex(2.0, 0.0), complex(1.0, 1.0)],
                [complex(0.0, 1.0), complex(0.0, 3.0), complex(1.0, 0.0)],
                [complex(-1.0, 0.0), complex(0.0, 6.0), complex(1.0, 1.0)],
            );
            let pair = Pair::<i32, u32>::new;
            case.combine(
                Op::MinLoc,
                [pair(4, 9), pair(4, 1), pair(1, 1)],
                [pair(4, 2), pair(3, 7), pair(2, 0)],
                [pair(4, 2), pair(3, 7), pair(1, 1)],
            );
        });
    }
}

#[test]
fn only_what_is_equal_is_swapped() {
    for seed in seeds(6) {
        alone(seed, |case| {
            let swap = Atomic::Swap(i32::BASIC);
            case.check::<i32>(swap, [5, -6, 7], &[5, 50, 6, 60, 7, 70], [50, -6, 70]);
            case.check::<u8>(Atomic::Swap(u8::BASIC), [5, 6, 7], &[5, 1, 6, 2, 8, 3], [1, 2, 7]);
        });
    }
}

#[test]
fn each_of_many_sums_happens_once() {
    const EACH: usize = if cfg!(miri) { 3 } else { 10 };
    for seed in seeds(30) {
        let fetched = run(&net(3, seed, DeviceConfig::new()), |sim: Sim| {
            let window = Memory::new(&sim, 8);
            let one = Memory::of(&sim, &1u64.to_ne_bytes());
            let results: Vec<_> = (0..EACH).map(|_| Memory::new(&sim, 8)).collect();
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, None).unwrap();
            let there = party.publish(&window, registration.key())[0];
            let sum = Atomic::Combine(Op::Sum, u64::BASIC);
            for result in &results {
                party.post(&one.atomic(sum, 1, Some(result)), &there);
            }
            party.flush(0).unwrap();
            party.meet();
            if sim.rank() == WorldRank(0) {
                assert_eq!(window.bytes(), (3 * EACH as u64).to_ne_bytes());
            }
            // What was there may come back later.
            party.pass_time();
            results.iter().map(|result| result.bytes()[0]).collect::<Vec<_>>()
        });
        let fetched: BTreeSet<_> = fetched.unwrap().into_iter().flatten().collect();
        assert_eq!(fetched.len(), 3 * EACH);
    }
}

#[test]
fn a_device_does_what_it_says_and_refuses_the_rest() {
    let all = [
        (Atomic::Combine(Op::Sum, u64::BASIC), true, true),
        (Atomic::Combine(Op::Sum, i64::BASIC), true, true),
        (Atomic::Swap(u64::BASIC), true, true),
        (Atomic::Swap(i64::BASIC), true, true),
        (Atomic::Combine(Op::NoOp, u64::BASIC), false, true),
        (Atomic::Combine(Op::Replace, u64::BASIC), false, true),
        (Atomic::Combine(Op::Sum, u32::BASIC), false, true),
        (Atomic::Combine(Op::Sum, Bool::BASIC), false, false),
        (Atomic::Combine(Op::MinLoc, u64::BASIC), false, false),
        (Atomic::Combine(Op::MaxLoc, <Pair<f64, u64>>::BASIC), false, true),
        (Atomic::Swap(u32::BASIC), false, true),
        (Atomic::Swap(Bool::BASIC), false, true),
        (Atomic::Swap(f64::BASIC), false, false),
    ];
    for (atomic, words, full) in all {
        for (atomics, does) in
            [(Atomics::None, false), (Atomics::Words, words), (Atomics::All, full)]
        {
            let device = DeviceConfig { atomics, ..DeviceConfig::new() };
            let sim = Net::new(net(1, 0, device)).unwrap().rank(WorldRank(0));
            assert_eq!(sim.does(atomic), does, "{atomic} of {atomics:?}");
        }
    }
}

#[test]
fn atomics_that_make_no_sense_are_refused() {
    let limits = RemoteLimits { atomic_max: 16, ..DeviceConfig::LIMITS };
    let device = DeviceConfig { limits, ..DeviceConfig::new() };
    run(&net(1, 0, device), |sim| {
        let (window, operands) = (Memory::new(&sim, 64), Memory::new(&sim, 64));
        let mut party = Party::new(&sim);
        let registration = window.register(&sim, None).unwrap();
        let there = party.publish(&window, registration.key())[0];
        let sum = Atomic::Combine(Op::Sum, u64::BASIC);
        let error = |party: &mut Party<'_>, transfer: &Transfer| match party
            .try_post(transfer, &there)
            .unwrap_err()
        {
            PostError::Device(DeviceError::System { call: "post", errno }) => errno,
            other => panic!("{other:?}"),
        };
        let undone = Atomic::Swap(f64::BASIC);
        assert_eq!(error(&mut party, &operands.atomic(undone, 1, None)), 95);
        assert_eq!(error(&mut party, &operands.atomic(sum, 3, None)), 22);
        assert_eq!(error(&mut party, &operands.atomic(sum, usize::MAX, None)), 22);
        let (none, fetched) = (core::ptr::null(), operands.base());
        let missing = Transfer::Atomic { atomic: sum, count: 1, operands: none, fetched };
        assert_eq!(error(&mut party, &missing), 22);
        let aslant = party.run(&operands.atomic(sum, 1, None), &behind(&there, 4));
        assert_eq!(aslant, Err(DeviceError::Refused));
        party.run(&operands.atomic(sum, 2, None), &behind(&there, 8)).unwrap();
        assert_eq!(party.run(&operands.atomic(sum, 0, None), &there), Ok(()));
    })
    .unwrap();
}
