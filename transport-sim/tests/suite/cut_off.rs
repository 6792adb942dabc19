//! What a device refuses, and what it leaves alone.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::common::{receive, seeds, send};
use crate::party::{Memory, Party, behind, net};
use rma_core::transport::{
    Addressing, Atomic, DeviceError, Endpoint, Keys, Members, Outcome, PeerState, PostError,
    Posted, Purpose, RegisterError, Remote, RemoteKey, RemoteLimits, Sleep, There, Transfer,
    WorldRank,
};
use rma_core::{BasicElement, Op};
use rma_transport_sim::{DeviceConfig, run, run_traced};

const KEY: RemoteKey = RemoteKey([7; RemoteKey::LEN]);
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;

fn kind(seed: u64) -> DeviceConfig {
    let addressing = [Addressing::Virtual, Addressing::Offset][(seed & 1) as usize];
    let keys = [Keys::Chosen, Keys::Given][(seed >> 1 & 1) as usize];
    let limits = RemoteLimits { addressing, keys, ..DeviceConfig::LIMITS };
    DeviceConfig { limits, ..DeviceConfig::new() }
}

/// Transfers of each kind, of 8 and of 80 bytes.
struct Kinds {
    small: Memory,
    large: Memory,
}

impl Kinds {
    fn new(sim: &rma_transport_sim::Sim) -> Self {
        Self { small: Memory::of(sim, &[0xee; 8]), large: Memory::of(sim, &[0xee; 80]) }
    }

    fn all(&self) -> [Transfer; 4] {
        let atomic = Atomic::Combine(Op::Replace, u64::BASIC);
        let atomic = self.small.atomic(atomic, 1, None);
        [self.small.put(), self.large.put(), self.small.get(), atomic]
    }

    /// Each of them fails so, once: when it completes, or when it is flushed.
    fn fail(&self, party: &mut Party<'_>, there: &There, error: DeviceError, what: &str) {
        for (kind, transfer) in self.all().into_iter().enumerate() {
            let (id, posted) = party.post(&transfer, there);
            assert_eq!(posted == Posted::Done, kind == 0);
            let told = if posted == Posted::Done { Ok(()) } else { party.wait(id) };
            let flushed = party.flush(there.peer.0);
            assert_eq!(told.and(flushed), Err(error), "{what}, transfer {kind}");
            assert!([told, flushed].contains(&Ok(())), "{what} is told twice");
            assert!(told.is_ok() || kind != 0, "{what}");
            assert!(told.is_err() || kind < 2, "{what}: only puts complete before");
            assert_eq!(party.flush(there.peer.0), Ok(()), "{what} is told twice");
        }
        assert_eq!(self.small.bytes(), [0xee; 8], "{what}: nothing was got");
    }
}

/// A window of 128 bytes with other memory before and behind.
#[test]
fn what_is_not_registered_is_refused_and_stays() {
    for seed in seeds(40) {
        run(&net(1, seed, kind(seed)), |sim| {
            let (window, kinds) = (Memory::new(&sim, 512), Kinds::new(&sim));
            let mut party = Party::new(&sim);
            let registration = window.register_part(&sim, Some(KEY), 192..320).unwrap();
            let first = party.publish(&window, registration.key())[0];
            let skipped = if first.at == 0 { 0 } else { 192 };
            let first = behind(&first, skipped);
            let mut fail = |there: There, what| {
                kinds.fail(&mut party, &there, DeviceError::Refused, what);
            };
            fail(behind(&first, 121), "across the end");
            fail(behind(&first, 128), "behind the end");
            fail(behind(&first, u64::MAX), "before the start");
            fail(behind(&first, 1 << 63), "half around");
            let last = [u64::MAX, u64::MAX - 7, u64::MAX - 3, 1 << 63, u64::MAX - 79];
            last.into_iter().for_each(|at| fail(There { at, ..first }, "at the end of all"));
            let mut key = first.key;
            key.0[RemoteKey::LEN - 1] ^= 1;
            fail(There { key, ..first }, "a wrong key");
            drop(registration);
            fail(first, "a dropped registration");
            assert_eq!(window.bytes(), [0; 512], "seed {seed}");
        })
        .unwrap();
    }
}

#[test]
fn what_is_under_way_when_its_target_is_dropped_fails_or_has_happened() {
    let mut results = BTreeSet::new();
    for seed in 0..40 {
        let result = run(&net(1, seed, kind(seed)), |sim| {
            let (window, into) = (Memory::of(&sim, &[1; 80]), Memory::new(&sim, 80));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key())[0];
            let (id, _) = party.post(&into.get(), &there);
            (0..seed % 16).for_each(|_| _ = party.poll());
            drop(registration);
            window.fill(9);
            let result = party.wait(id);
            assert_eq!(into.bytes(), [u8::from(result.is_ok()); 80]);
            format!("{result:?}")
        });
        results.extend(result.unwrap());
    }
    assert_eq!(results.len(), 2, "{results:?}");
}

/// What is cut off touches no origin, and says nothing.
#[test]
fn what_is_cut_off_touches_its_origin_no_more_and_may_arrive() {
    let mut arrived = BTreeSet::new();
    for seed in 0..if cfg!(miri) { 6 } else { 120 } {
        let result = run(&net(2, seed, kind(seed)), |sim| {
            let window = Memory::of(&sim, &[1; 512]);
            let kinds = Kinds::new(&sim);
            let into = [(); 4].map(|()| Memory::new(&sim, 80));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key());
            if sim.rank().0 == 0 {
                cut_off(seed, &mut party, &there, &kinds, &into);
            }
            party.meet();
            let bytes = window.bytes();
            // They arrive as they were posted, or not at all.
            assert!(bytes[..80] == [1; 80] || bytes[..80] == [0xee; 80], "seed {seed}");
            assert!(bytes[80..88] == [1; 8] || bytes[80..88] == [0xee; 8], "seed {seed}");
            (sim.rank().0 == 1).then(|| (bytes[0], bytes[80]))
        });
        arrived.extend(result.unwrap().into_iter().flatten());
    }
    assert!(arrived.len() > 2 || cfg!(miri), "{arrived:?}");
}

fn cut_off(seed: u64, party: &mut Party<'_>, there: &[There], kinds: &Kinds, into: &[Memory; 4]) {
    let sim = party.sim;
    let sum = Atomic::Combine(Op::Sum, u64::BASIC);
    party.post(&kinds.large.put(), &there[1]);
    party.post(&kinds.small.put(), &behind(&there[1], 80));
    into[..2].iter().for_each(|into| _ = party.post(&into.get(), &behind(&there[1], 88)));
    let zero = Memory::new(sim, 8);
    party.post(&zero.atomic(sum, 1, Some(&into[2])), &behind(&there[1], 256));
    let (other, _) = party.post(&into[3].get(), &there[0]);
    party.endpoint.flush(99, WorldRank(1)).unwrap();
    for _ in 0..seed % 24 {
        sim.relax(0);
    }
    if seed.is_multiple_of(5) {
        party.pass_time();
    }
    // What is complete already may have been polled while it was posted.
    let polled = party.complete.len();
    let is_dropped = seed.is_multiple_of(2);
    let expected = party.result(other).is_none() && !is_dropped;
    if is_dropped {
        party.endpoint = sim.endpoint(Purpose::Parts).unwrap().into();
    } else {
        party.endpoint.quiesce(WorldRank(1));
    }
    into[..3].iter().for_each(|into| into.fill(9));
    kinds.large.fill(8);
    kinds.small.fill(8);
    party.pass_time();
    party.poll();
    assert!(into[..3].iter().all(|into| into.bytes() == [9; 80]), "seed {seed}");
    let told = &party.complete[polled..];
    assert_eq!(told, if expected { vec![(other, Ok(()))] } else { vec![] }, "seed {seed}");
    // It starts anew.
    assert_eq!(party.flush(1), Ok(()));
    party.run(&into[0].get(), &behind(&there[1], 88)).unwrap();
    assert_eq!(into[0].bytes(), [1; 80]);
}

#[test]
fn what_was_read_when_it_is_cut_off_arrives_later_or_never() {
    let mut found = BTreeSet::new();
    for seed in 0..100 {
        let result = run(&net(1, seed, kind(seed)), |sim| {
            let (window, origin) = (Memory::new(&sim, 80), Memory::of(&sim, &[1; 80]));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key())[0];
            party.post(&origin.put(), &there);
            (0..seed % 32).for_each(|_| _ = sim.relax(0));
            party.endpoint.quiesce(WorldRank(0));
            origin.fill(9);
            let before = window.bytes()[0];
            party.pass_time();
            (before, window.bytes()[0])
        });
        found.extend(result.unwrap());
    }
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [(0, 0), (0, 1), (1, 1)]);
}

#[test]
fn a_device_that_ends_fails_what_is_under_way_and_does_nothing_more() {
    let mut results = BTreeSet::new();
    for seed in seeds(60) {
        let device = DeviceConfig { ends_after: Some(6), ..kind(seed) };
        let result = run(&net(2, seed, device), |sim| {
            let (window, kinds) = (Memory::new(&sim, 80), Kinds::new(&sim));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key())[1];
            if sim.rank().0 == 1 {
                party.meet();
                let error = party.try_post(&kinds.small.get(), &there).unwrap_err();
                assert_eq!(error, PostError::Device(DeviceError::Ended));
                return BTreeSet::new();
            }
            let mut posts = kinds.all().into_iter().cycle();
            let mut ids = Vec::new();
            for _ in 0..5 {
                let (id, posted) = party.post(&posts.next().unwrap(), &there);
                ids.extend((posted == Posted::Pending).then_some(id));
            }
            (0..seed % 16).for_each(|_| _ = party.poll());
            let flush = party.endpoint.flush(99, WorldRank(1)).unwrap();
            let (last, posted) = party.post(&kinds.large.get(), &there);
            assert_eq!(posted, Posted::Pending);
            let (there_was, here) = (window.bytes(), kinds.large.bytes());
            // It may be complete before the end.
            ids.extend((flush == Posted::Pending).then_some(99));
            assert_eq!(party.wait(last), Err(DeviceError::Ended));
            let told = ids.iter().map(|&id| format!("{:?}", party.wait(id))).collect();
            assert_eq!(party.flush(1), Err(DeviceError::Ended));
            assert_eq!(sim.endpoint(Purpose::Parts).err(), Some(DeviceError::Ended));
            party.pass_time();
            assert_eq!((window.bytes(), kinds.large.bytes()), (there_was, here));
            party.meet();
            told
        });
        results.extend(result.unwrap().into_iter().flatten());
    }
    assert_eq!(results.len(), 2, "{results:?}");
    let device = DeviceConfig { ends_after: Some(0), ..kind(0) };
    let ends = run(&net(1, 0, device), |sim| sim.endpoint(Purpose::Parts).err());
    assert_eq!(ends.unwrap(), [Some(DeviceError::Ended)]);
}

/// They sleep without a timeout while their queues are full.
#[test]
fn a_device_that_ends_wakes_the_rank_that_waits_for_room() {
    for seed in seeds(100) {
        let device = DeviceConfig { ends_after: Some(30), queue_max: 1, ..kind(seed) };
        run(&net(2, seed, device), |sim| {
            let (window, kinds) = (Memory::new(&sim, 80), Kinds::new(&sim));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key())[0];
            let transfer = if sim.rank().0 == 0 { kinds.small.put() } else { kinds.large.get() };
            let error = loop {
                let ticket = sim.arm();
                match party.try_post(&transfer, &there) {
                    Ok(_) => sim.disarm(ticket),
                    Err(PostError::Again) => sim.park(ticket, None),
                    Err(PostError::Device(error)) => {
                        sim.disarm(ticket);
                        break error;
                    }
                }
            };
            assert_eq!(error, DeviceError::Ended);
            // Nothing else may wake the first rank, such as the news that the other left.
            if sim.rank().0 == 0 {
                send(&sim, 1, &[1, 2], &mut |_, _| ());
            } else {
                receive(&sim, 1);
            }
            // What is under way is complete before its memory is gone.
            party.pass_time();
        })
        .unwrap();
    }
}

/// It keeps its registration, which is of no use any more.
#[test]
fn transfers_to_a_rank_that_failed_say_so() {
    let unreachable = DeviceError::Unreachable(WorldRank(1));
    let mut told = BTreeSet::new();
    for seed in 0..80 {
        let failed = AtomicBool::new(false);
        let result = run(&net(2, seed, kind(seed)), |sim| {
            let (window, kinds) = (Memory::new(&sim, 80), Kinds::new(&sim));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key())[1];
            // Until both know where to go.
            party.pass_time();
            if sim.rank().0 == 1 {
                sim.depart(Outcome::Failed);
                failed.store(true, Relaxed);
                let there_was = window.bytes();
                party.pass_time();
                assert_eq!(window.bytes(), there_was);
                return Vec::new();
            }
            sim.park(sim.arm(), Some(Duration::from_micros(seed)));
            // Not all know that it has failed: what is posted now is lost.
            let lost = failed.load(Relaxed);
            let (mut told, mut pending) = (Vec::new(), Vec::new());
            for transfer in kinds.all() {
                match party.try_post(&transfer, &there) {
                    Err(error) => assert_eq!(error, PostError::Device(unreachable)),
                    Ok((id, posted)) => pending.extend((posted == Posted::Pending).then_some(id)),
                }
            }
            match party.endpoint.flush(99, WorldRank(1)) {
                Err(error) => assert_eq!(error, PostError::Device(unreachable)),
                Ok(posted) => pending.extend((posted == Posted::Pending).then_some(99)),
            }
            party.pass_time();
            party.poll();
            for id in pending {
                let result = party.result(id).unwrap();
                assert!(!lost || result == Err(unreachable), "seed {seed}, transfer {id}");
                assert!(result.is_ok() || result == Err(unreachable));
                told.push((lost, id, result.is_ok()));
            }
            assert_eq!(sim.peer_state(WorldRank(1)), PeerState::Failed);
            let error = party.try_post(&kinds.small.get(), &there).unwrap_err();
            assert_eq!(error, PostError::Device(unreachable));
            told
        });
        told.extend(result.unwrap().into_iter().flatten());
    }
    let kinds = |lost| told.iter().filter(|told| told.0 == lost && told.2 != lost).count();
    assert!(kinds(true) >= 4 && kinds(false) >= 4, "{told:?}");
}

/// A panic, or an orderly departure: its registrations are dropped.
#[test]
fn transfers_to_a_rank_that_is_gone_say_so() {
    for (seed, panics) in seeds(20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let run = run_traced(&net(2, seed, kind(seed)), |sim| {
            let (window, into) = (Memory::new(&sim, 8), Memory::new(&sim, 8));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key())[1];
            party.pass_time();
            if sim.rank().0 == 1 {
                assert!(!panics, "on purpose");
                return;
            }
            party.pass_time();
            let posted = party.try_post(&into.get(), &there);
            party.pass_time();
            party.poll();
            let unreachable = DeviceError::Unreachable(WorldRank(1));
            match posted {
                Ok((id, _)) => assert_eq!(party.result(id), Some(Err(unreachable))),
                Err(error) => assert_eq!(error, PostError::Device(unreachable)),
            }
        });
        match run.outcome {
            Ok(_) => assert!(!panics),
            Err(failure) => {
                let ranks: Vec<_> = failure.panics.iter().map(|panic| panic.rank.0).collect();
                assert_eq!((ranks, panics), (vec![1], true), "{failure}");
            }
        }
    }
}

/// Whichever thread drops them, and whenever: none panics, and nothing is touched.
#[test]
fn registrations_and_endpoints_may_outlive_their_rank() {
    for seed in seeds(20) {
        let left = run(&net(2, seed, kind(seed)), |sim| {
            let (window, into) = (Memory::of(&sim, &[1; 8]), Memory::new(&sim, 8));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key());
            let me = sim.rank().0 as usize;
            if me == 0 {
                while sim.peer_state(WorldRank(1)) == PeerState::Alive {
                    party.pass_time();
                }
                // What has left in order can be reached until it is dropped.
                party.run(&into.get(), &there[1]).unwrap();
                assert_eq!(into.bytes(), [1; 8]);
                into.fill(9);
            }
            into.fill(9);
            party.try_post(&into.get(), &there[0]).unwrap();
            let endpoint: Arc<dyn Endpoint> = party.endpoint;
            (endpoint, registration, window, into)
        });
        for (endpoint, registration, window, into) in left.unwrap() {
            assert_eq!(into.bytes(), [9; 8]);
            assert_ne!(registration.key(), RemoteKey([0; RemoteKey::LEN]));
            endpoint.quiesce(WorldRank(0));
            drop((endpoint, registration, window, into));
        }
    }
}

#[test]
fn a_given_key_names_one_registration_of_a_rank() {
    let limits = RemoteLimits { keys: Keys::Given, ..DeviceConfig::LIMITS };
    let device = DeviceConfig { limits, ..DeviceConfig::new() };
    run(&net(2, 0, device), |sim| {
        let window = Memory::new(&sim, 64);
        let first = window.register(&sim, Some(KEY)).unwrap();
        assert_eq!(first.key(), KEY);
        let errno = |key| match window.register(&sim, key).err() {
            Some(RegisterError::System { call: "register", errno }) => errno,
            other => panic!("{other:?}"),
        };
        assert_eq!((errno(Some(KEY)), errno(None)), (EEXIST, EINVAL));
        drop(first);
        assert_eq!(window.register(&sim, Some(KEY)).unwrap().key(), KEY);
    })
    .unwrap();
}

#[test]
fn a_chosen_key_is_never_chosen_again() {
    let keys = |seed| {
        let keys = run(&net(3, seed, DeviceConfig::new()), |sim| {
            let window = Memory::new(&sim, 64);
            let key = || window.register(&sim, Some(KEY)).unwrap().key().0;
            (0..50).map(|_| key()).collect::<Vec<_>>()
        });
        keys.unwrap().concat()
    };
    let (first, again, other) = (keys(1), keys(1), keys(2));
    assert_eq!(first, again);
    let all: BTreeSet<_> = first.iter().chain(&other).collect();
    assert_eq!(all.len(), 300);
}
