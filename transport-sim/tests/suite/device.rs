//! What a device moves, and when.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::seeds;
use crate::party::{Memory, Party, behind, net};
use rma_core::transport::{
    Addressing, Keys, Messages, Moment, Parts, PostError, Posted, Purpose, Remote, RemoteKey,
    RemoteLimits, Sleep, Transfer, Transport, WorldRank,
};
use rma_transport_sim::{
    Atomics, Cause, ConfigError, DeviceConfig, Net, NetConfig, Run, run, run_traced,
};

const KEY: RemoteKey = RemoteKey([7; RemoteKey::LEN]);

/// One of the four kinds of devices, by seed.
fn kind(seed: u64) -> DeviceConfig {
    let addressing = [Addressing::Virtual, Addressing::Offset][(seed & 1) as usize];
    let keys = [Keys::Chosen, Keys::Given][(seed >> 1 & 1) as usize];
    let limits = RemoteLimits { addressing, keys, inject: 16, ..DeviceConfig::LIMITS };
    DeviceConfig { limits, queue_max: 3, ..DeviceConfig::new() }
}

/// Every rank puts to the next one, small and large, and gets it back.
fn round_trip(seed: u64) -> Run<Vec<u64>> {
    run_traced(&net(3, seed, kind(seed)), |sim| {
        let me = sim.rank().0;
        let window = Memory::new(&sim, 256);
        let small = Memory::of(&sim, &[me as u8 + 1; 8]);
        let large = Memory::of(&sim, &[me as u8 + 101; 100]);
        let back = Memory::new(&sim, 256);
        let mut party = Party::new(&sim);
        let registration = window.register(&sim, Some(KEY)).unwrap();
        let there = party.publish(&window, registration.key());
        let next = &there[(me as usize + 1) % 3];
        assert_eq!(party.post(&small.put(), &behind(next, 4)).1, Posted::Done);
        assert_eq!(party.post(&large.put(), &behind(next, 20)).1, Posted::Pending);
        assert_eq!(party.post(&small.put(), &behind(next, 248)).1, Posted::Done);
        party.flush(next.peer.0).unwrap();
        party.meet();

        let image = |of: u32| {
            let mut image = [0; 256];
            image[4..12].fill(of as u8 + 1);
            image[20..120].fill(of as u8 + 101);
            image[248..].fill(of as u8 + 1);
            image
        };
        assert_eq!(window.bytes(), image((me + 2) % 3), "seed {seed}");
        party.run(&back.get(), next).unwrap();
        assert_eq!(back.bytes(), image(me), "seed {seed}");
        party.meet();
        party.complete.iter().map(|&(id, _)| id).collect()
    })
}

#[test]
fn what_is_put_is_there_after_a_flush_and_can_be_got() {
    for seed in seeds(200) {
        round_trip(seed).outcome.unwrap();
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_others_give_others() {
    let mut hashes = BTreeSet::new();
    for seed in seeds(40) {
        let (first, second) = (round_trip(seed), round_trip(seed));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(first.outcome.unwrap(), second.outcome.unwrap(), "seed {seed}");
        hashes.insert(first.trace.hash);
    }
    assert_eq!(hashes.len() as u64, seeds(40).end);
}

#[test]
fn steps_of_transfers_are_in_the_trace() {
    let traced = |delay_max| {
        let device = DeviceConfig { delay_max, ..DeviceConfig::new() };
        let config = NetConfig { step_max: 100_000, ..net(1, 3, device) };
        let run = run_traced(&config, |sim| {
            let window = Memory::new(&sim, 8);
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, None).unwrap();
            let there = party.publish(&window, registration.key())[0];
            party.run(&Memory::new(&sim, 8).get(), &there).unwrap();
        });
        run.outcome.unwrap();
        run.trace.hash
    };
    assert_eq!(traced(200), traced(200));
    assert_ne!(traced(200), traced(150));
}

#[test]
fn transfers_overtake_each_other() {
    let (mut completions, mut winners) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..40 {
        let result = run(&net(1, seed, kind(seed)), |sim| {
            let window = Memory::new(&sim, 64);
            let ones = [1, 2, 3].map(|byte| Memory::of(&sim, &[byte; 64]));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key())[0];
            let ids = ones.each_ref().map(|one| party.post(&one.put(), &there).0);
            party.flush(0).unwrap();
            let order = party.complete.iter().filter_map(|(id, _)| {
                let place = ids.iter().position(|known| known == id)?;
                Some(place)
            });
            (order.collect::<Vec<_>>(), window.bytes()[0])
        });
        let (order, winner) = result.unwrap().remove(0);
        completions.insert(order);
        winners.insert(winner);
    }
    assert!(completions.iter().any(|order| !order.is_sorted()), "{completions:?}");
    assert_eq!(winners.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
}

/// On purpose, bytes are changed that a put has yet to read.
#[test]
fn a_large_put_is_read_before_it_is_complete_and_not_when_it_is_posted() {
    let limits = RemoteLimits { inject: 16, ..DeviceConfig::LIMITS };
    let device = DeviceConfig { limits, ..DeviceConfig::new() };
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let result = run(&net(1, seed, device), |sim| {
            let (window, origin) = (Memory::new(&sim, 64), Memory::of(&sim, &[1; 64]));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, None).unwrap();
            let there = party.publish(&window, registration.key())[0];
            let (id, posted) = party.post(&origin.put(), &there);
            assert_eq!(posted, Posted::Pending);
            while party.result(id).is_none() && sim.relax(0) && party.poll() == 0 {
                let byte = origin.bytes()[0];
                origin.fill(byte.saturating_add(1).min(200));
            }
            party.wait(id).unwrap();
            let last = origin.bytes()[0];
            origin.fill(255);
            let early = window.bytes()[0] == 0;
            party.flush(0).unwrap();
            let byte = window.bytes()[0];
            assert!(byte <= last, "read after it was complete");
            assert_eq!(window.bytes(), [byte; 64]);
            (byte > 1, early)
        });
        seen.insert(result.unwrap()[0]);
    }
    let (late, early): (BTreeSet<_>, BTreeSet<_>) = seen.into_iter().unzip();
    assert!(late.contains(&true), "always read when it was posted");
    assert_eq!(early.len(), 2, "it arrives before it is polled, and after");
}

#[test]
fn an_injected_put_is_read_when_it_is_posted() {
    for seed in seeds(40) {
        run(&net(1, seed, kind(seed)), |sim| {
            let (window, origin) = (Memory::new(&sim, 16), Memory::of(&sim, &[1; 16]));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key())[0];
            assert_eq!(party.post(&origin.put(), &there).1, Posted::Done);
            origin.fill(9);
            party.flush(0).unwrap();
            assert_eq!(window.bytes(), [1; 16]);
        })
        .unwrap();
    }
}

#[test]
fn a_flush_waits_for_what_was_posted_before_and_for_nothing_else() {
    let mut first = BTreeSet::new();
    for seed in 0..40 {
        let result = run(&net(1, seed, kind(seed)), |sim| {
            let (window, origin) = (Memory::new(&sim, 128), Memory::of(&sim, &[1; 64]));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key())[0];
            party.post(&origin.put(), &there);
            assert_eq!(party.endpoint.flush(77, WorldRank(0)), Ok(Posted::Pending));
            party.post(&origin.put(), &behind(&there, 64));
            party.wait(77).unwrap();
            assert_eq!(window.bytes()[..64], [1; 64]);
            let later = window.bytes()[64];
            party.flush(0).unwrap();
            assert_eq!(window.bytes(), [1; 128]);
            later
        });
        first.insert(result.unwrap()[0]);
    }
    assert_eq!(first.into_iter().collect::<Vec<_>>(), [0, 1]);
}

/// It sleeps without a timeout, so that only a ring wakes it.
#[test]
fn a_full_queue_says_again_and_rings_when_there_is_room() {
    for seed in seeds(60) {
        let device = DeviceConfig { queue_max: 1, ..kind(seed) };
        run(&net(1, seed, device), |sim| {
            let window = Memory::new(&sim, 64);
            let sizes = [8, 64].map(|len| Memory::of(&sim, &vec![5; len]));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key())[0];
            let mut refused = 0;
            for i in 0..20 {
                let transfer = sizes[i % 2].put();
                loop {
                    let ticket = sim.arm();
                    match party.try_post(&transfer, &there) {
                        Err(PostError::Again) => refused += 1,
                        posted => {
                            posted.unwrap();
                            sim.disarm(ticket);
                            break;
                        }
                    }
                    sim.park(ticket, None);
                }
            }
            assert!(refused > 0);
            party.flush(0).unwrap();
            assert_eq!(window.bytes(), [5; 64]);
        })
        .unwrap();
    }
}

#[test]
fn flushes_take_room_of_their_own() {
    let device = DeviceConfig { queue_max: 2, delay_max: 100_000, ..DeviceConfig::new() };
    run(&net(1, 0, device), |sim| {
        let (window, origin) = (Memory::new(&sim, 8), Memory::new(&sim, 8));
        let mut party = Party::new(&sim);
        let registration = window.register(&sim, None).unwrap();
        let there = party.publish(&window, registration.key())[0];
        party.post(&origin.get(), &there);
        party.post(&origin.put(), &there);
        assert_eq!(party.try_post(&origin.put(), &there), Err(PostError::Again));
        let flush = |id| party.endpoint.flush(id, WorldRank(0));
        assert_eq!((flush(90), flush(91)), (Ok(Posted::Pending), Ok(Posted::Pending)));
        assert_eq!(flush(92), Err(PostError::Again));
        party.wait(90).unwrap();
        party.wait(91).unwrap();
        party.flush(0).unwrap();
    })
    .unwrap();
}

/// Its agent serves what no thread waits for.
#[test]
fn a_completion_wakes_the_agent() {
    use rma_core::transport::Agent;
    for seed in seeds(20) {
        run(&net(1, seed, kind(seed)), |sim| {
            let (window, into) = (Memory::of(&sim, &[1; 8]), Memory::new(&sim, 8));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, Some(KEY)).unwrap();
            let there = party.publish(&window, registration.key())[0];
            let (agent, polled) = (sim.clone(), Arc::clone(&party.endpoint));
            let body = move || {
                let mut told = 0;
                while told < 3 {
                    let ticket = Agent::arm(&agent);
                    match polled.poll(&mut |_, result| result.unwrap()) {
                        0 => Agent::park(&agent, ticket, None),
                        some => {
                            told += some;
                            Agent::disarm(&agent, ticket);
                        }
                    }
                }
            };
            sim.start(Box::new(body)).unwrap();
            (0..3).for_each(|_| _ = party.try_post(&into.get(), &there).unwrap());
            party.pass_time();
            assert_eq!(into.bytes(), [1; 8]);
            Agent::join(&sim);
        })
        .unwrap();
    }
}

#[test]
fn a_rank_that_waits_for_no_transfer_is_a_deadlock_and_one_that_does_is_none() {
    let failure = run(&net(1, 0, DeviceConfig::new()), |sim| {
        let (window, origin) = (Memory::new(&sim, 64), Memory::new(&sim, 64));
        let mut party = Party::new(&sim);
        let registration = window.register(&sim, None).unwrap();
        let there = party.publish(&window, registration.key())[0];
        party.run(&origin.get(), &there).unwrap();
        assert_eq!(party.wait(99), Ok(()));
    });
    let failure = failure.unwrap_err();
    assert!(matches!(failure.cause, Cause::Deadlock { .. }), "{failure}");
}

/// A target that only looks at its memory sees what is put there.
#[test]
fn a_rank_that_looks_sees_what_arrives() {
    let device = DeviceConfig { delay_max: 100_000, ..DeviceConfig::new() };
    for seed in seeds(10) {
        run(&net(2, seed, device), |sim| {
            use rma_core::transport::{Touch, Views};
            let (window, origin) = (Memory::new(&sim, 8), Memory::of(&sim, &[1; 8]));
            let mut party = Party::new(&sim);
            let registration = window.register(&sim, None).unwrap();
            let there = party.publish(&window, registration.key());
            if sim.rank().0 == 0 {
                party.post(&origin.put(), &there[1]);
            } else {
                while window.bytes()[0] == 0 {
                    sim.touches(Touch::Look);
                }
            }
            party.meet();
        })
        .unwrap();
    }
}

#[test]
fn a_sink_may_cut_off_what_it_has_not_been_told() {
    run(&net(1, 5, DeviceConfig::new()), |sim| {
        let (window, origin) = (Memory::new(&sim, 8), Memory::new(&sim, 8));
        let mut party = Party::new(&sim);
        let registration = window.register(&sim, None).unwrap();
        let there = party.publish(&window, registration.key())[0];
        (0..4).for_each(|_| _ = party.post(&origin.get(), &there));
        party.pass_time();
        let endpoint = &party.endpoint;
        let told = endpoint.poll(&mut |_, _| {
            assert_eq!(endpoint.poll(&mut |_, _| panic!("inside of another")), 0);
            endpoint.quiesce(WorldRank(0));
        });
        assert_eq!((told, party.poll()), (1, 0));
    })
    .unwrap();
}

#[test]
fn zero_bytes_need_no_memory_at_the_origin() {
    run(&net(1, 5, DeviceConfig::new()), |sim| {
        let window = Memory::new(&sim, 8);
        let mut party = Party::new(&sim);
        let registration = window.register(&sim, None).unwrap();
        let there = party.publish(&window, registration.key())[0];
        let (from, into) = (core::ptr::null(), core::ptr::null_mut());
        for at in [0, 8] {
            party.run(&Transfer::Put { from, len: 0 }, &behind(&there, at)).unwrap();
            party.run(&Transfer::Get { into, len: 0 }, &behind(&there, at)).unwrap();
            party.flush(0).unwrap();
        }
        assert!(party.run(&Transfer::Get { into, len: 0 }, &behind(&there, 9)).is_err());
    })
    .unwrap();
}

#[test]
fn advice_is_counted() {
    run(&net(2, 0, DeviceConfig::new()), |sim| {
        let window = Memory::new(&sim, 8);
        let registration = window.register(&sim, None).unwrap();
        let count = sim.rank().0 + 2;
        (0..count).for_each(|_| sim.advise(&*registration, 0..8, Moment::Posted));
        assert_eq!(sim.advised(Moment::Posted), count.into());
        assert_eq!(sim.advised(Moment::LockRequested), 0);
    })
    .unwrap();
}

#[test]
fn a_transport_has_the_device_that_its_network_has() {
    let parts = |config| -> Parts {
        Transport::from(Net::new(config).unwrap().rank(WorldRank(0))).into_parts()
    };
    assert!(parts(NetConfig::new(2, 0)).remote.is_none());
    let limits = RemoteLimits { run_min: 99, coherent: true, ..kind(3).limits };
    let device = DeviceConfig { limits, ..kind(3) };
    let parts = parts(net(2, 0, device));
    let remote = parts.remote.unwrap();
    assert_eq!(remote.limits(), limits);
    assert!(remote.reaches(WorldRank(0)) && remote.reaches(WorldRank(1)));
    assert!(!remote.reaches(WorldRank(2)));
    let line = remote.explain();
    assert!(line.contains("99 bytes") && line.contains("Given"), "{line}");
    assert_eq!(line.lines().count(), 1);
    assert!(!parts.messages.explain().is_empty());
}

#[test]
fn a_network_without_a_device_refuses_what_would_need_one() {
    let sim = Net::new(NetConfig::new(1, 0)).unwrap().rank(WorldRank(0));
    assert!(!sim.reaches(WorldRank(0)) && sim.endpoint(Purpose::Parts).is_err());
    assert!(Memory::new(&sim, 8).register(&sim, None).is_err());
    assert_eq!(Remote::explain(&sim).lines().count(), 1);
    assert_eq!(sim.advised(Moment::LockRequested), 0);
    assert!(!Messages::explain(&sim).is_empty());
}

#[test]
fn devices_that_make_no_sense_are_refused() {
    let refused = |device| Net::new(net(1, 0, device)).unwrap_err();
    let usual = DeviceConfig::new();
    assert_eq!(refused(DeviceConfig { queue_max: 0, ..usual }), ConfigError::NoDeviceQueue);
    let transfers = |transfer_max| {
        let limits = RemoteLimits { transfer_max, ..DeviceConfig::LIMITS };
        DeviceConfig { limits, ..usual }
    };
    assert_eq!(refused(transfers(15)), ConfigError::ShortTransfers(15));
    assert!(Net::new(net(1, 0, transfers(16))).is_ok());
    let combines = |atomic_max, atomics| {
        let limits = RemoteLimits { atomic_max, ..DeviceConfig::LIMITS };
        DeviceConfig { limits, atomics, ..usual }
    };
    assert_eq!(refused(combines(15, Atomics::Words)), ConfigError::ShortAtomics(15));
    assert!(Net::new(net(1, 0, combines(0, Atomics::None))).is_ok());
}
