//! Messages arrive once and whole, in any order, through queues that may be full.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::common::{config, poll_until, receive, seeds, send, submit, wait_until};
use rma_core::transport::{Messages, Sleep, SubmitError, WorldRank};
use rma_transport_sim::{NetConfig, Sim, run};

#[test]
fn ping_pong() {
    for seed in seeds(20) {
        let last = run(&config(2, seed), |sim| {
            let peer = 1 - sim.rank().0;
            let mut ball = 0;
            for _ in 0..10 {
                if sim.rank().0 == 0 {
                    send(&sim, peer, &[ball], &mut |_, _| panic!("nothing is expected"));
                }
                let got = receive(&sim, 1);
                assert_eq!(got, [(peer, vec![ball])], "on {}", sim.rank());
                ball += 1;
                if sim.rank().0 == 1 {
                    send(&sim, peer, &[ball - 1], &mut |_, _| panic!("nothing is expected"));
                }
            }
            ball
        });
        assert_eq!(last.unwrap(), [10, 10]);
    }
}

/// Contents that only the right sender, receiver and number give.
fn payload(from: u32, to: u32, number: u32) -> Vec<u8> {
    let word = from.wrapping_mul(31) ^ to.wrapping_mul(1009) ^ number.wrapping_mul(77_773);
    let mut bytes = vec![number as u8];
    bytes.resize(1 + word as usize % 300, word as u8);
    bytes
}

fn all_to_all(sim: &Sim, each: u32) {
    let mut got = BTreeMap::new();
    let mut sink = |from: WorldRank, bytes: &[u8]| {
        let known = got.insert((from.0, bytes[0]), bytes.to_vec());
        assert!(known.is_none(), "message {} of {from} came twice", bytes[0]);
    };
    for number in 0..each {
        for to in 0..sim.size() {
            send(sim, to, &payload(sim.rank().0, to, number), &mut sink);
        }
    }
    let expected = (each * sim.size()) as usize;
    // Time enough for a message too many to show up.
    poll_until(sim, Duration::from_millis(20), &mut sink);
    assert_eq!(got.len(), expected);
    for ((from, number), bytes) in got {
        assert_eq!(bytes, payload(from, sim.rank().0, number.into()));
    }
}

#[test]
fn all_to_all_with_random_sizes() {
    for seed in seeds(100) {
        let each = if cfg!(miri) { 2 } else { 6 };
        run(&config(5, seed), |sim| all_to_all(&sim, each)).unwrap();
    }
}

#[test]
fn back_pressure_with_room_for_one_message() {
    let mut refused = 0;
    for seed in seeds(50) {
        let config = NetConfig { queue_max: 1, ..config(3, seed) };
        let refusals = run(&config, |sim| {
            if sim.rank().0 == 0 {
                assert_eq!(receive(&sim, 16).len(), 16);
                return 0;
            }
            let mut refusals = 0;
            for number in 0..8 {
                wait_until(&sim, || match submit(&sim, WorldRank(0), &[number], &[]) {
                    Ok(()) => true,
                    Err(SubmitError::Again) => {
                        refusals += 1;
                        false
                    }
                    Err(error) => panic!("{error:?}"),
                });
            }
            refusals
        });
        refused += refusals.unwrap().iter().sum::<u32>();
    }
    assert!(refused > 0, "a queue for one message was never full");
}

#[test]
fn a_full_queue_holds_exactly_queue_max() {
    let config = NetConfig { queue_max: 3, ..config(1, 5) };
    run(&config, |sim| {
        let me = sim.rank();
        for _ in 0..3 {
            submit(&sim, me, &[], &[]).unwrap();
        }
        assert_eq!(submit(&sim, me, &[], &[]), Err(SubmitError::Again));
        receive(&sim, 3);
        assert_eq!(submit(&sim, me, &[], &[]), Ok(()));
    })
    .unwrap();
}

#[test]
fn messages_overtake_each_other() {
    let orders = seeds(50).map(|seed| {
        let orders = run(&config(2, seed), |sim| {
            if sim.rank().0 == 0 {
                (0..8).for_each(|number| send(&sim, 1, &[number], &mut |_, _| {}));
                return Vec::new();
            }
            receive(&sim, 8).into_iter().map(|(_, bytes)| bytes[0]).collect()
        });
        orders.unwrap().pop().unwrap()
    });
    let mut shuffled = 0;
    for order in orders {
        let mut sorted: Vec<u8> = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6, 7]);
        shuffled += u32::from(order != sorted);
    }
    assert!(shuffled > 0, "no seed let a message overtake another");
}

#[test]
fn messages_keep_their_order_without_delay_or_where_the_network_does() {
    for seed in seeds(40) {
        let in_order = seed % 2 == 0;
        let delay_max = if in_order { 200 } else { 0 };
        let config = NetConfig { delay_max, in_order, ..config(2, seed) };
        run(&config, |sim| {
            if sim.rank().0 == 0 {
                (0..8).for_each(|number| send(&sim, 1, &[number], &mut |_, _| {}));
            } else {
                let order = receive(&sim, 8).into_iter().map(|(_, bytes)| bytes[0]);
                assert!(order.eq(0..8));
            }
        })
        .unwrap();
    }
}

#[test]
fn a_sink_may_send_and_a_poll_inside_it_finds_nothing() {
    run(&config(2, 9), |sim| {
        let peer = WorldRank(1 - sim.rank().0);
        if sim.rank().0 == 0 {
            submit(&sim, peer, b"question", &[]).unwrap();
            assert_eq!(receive(&sim, 1), [(1, b"answer".to_vec())]);
            return;
        }
        let mut answered = false;
        wait_until(&sim, || {
            sim.poll(&mut |from, _| {
                assert_eq!(sim.poll(&mut |_, _| panic!("nested")), 0);
                submit(&sim, from, b"answer", &[]).unwrap();
                answered = true;
            });
            answered
        });
        submit(&sim, sim.rank(), b"again", &[]).unwrap();
        assert_eq!(receive(&sim, 1), [(1, b"again".to_vec())], "poll works after a nested one");
    })
    .unwrap();
}

#[test]
fn a_nested_poll_leaves_the_rest_to_the_outer_one() {
    let config = NetConfig { delay_max: 0, ..config(1, 2) };
    run(&config, |sim| {
        (0..3).for_each(|number| submit(&sim, sim.rank(), &[number], &[]).unwrap());
        let mut order = Vec::new();
        let count = sim.poll(&mut |_, bytes| {
            order.push(bytes[0]);
            assert_eq!(sim.poll(&mut |_, _| panic!("nested")), 0);
        });
        assert_eq!((count, order), (3, vec![0, 1, 2]));
    })
    .unwrap();
}

/// A message in hand is not handled yet, whatever a second poll says.
#[test]
fn what_arrived_is_handled_when_its_sink_has_returned() {
    let config = NetConfig { delay_max: 0, ..config(1, 2) };
    run(&config, |sim| {
        (0..2).for_each(|number| submit(&sim, sim.rank(), &[number], &[]).unwrap());
        let mut seen = Vec::new();
        let count = sim.poll(&mut |_, _| {
            assert_eq!(sim.arrived(), 2);
            seen.push([1, 2].map(|mark| sim.is_handled(mark)));
        });
        assert_eq!((count, seen), (2, vec![[false, false], [true, false]]));
        assert!(sim.is_handled(sim.arrived()));
    })
    .unwrap();
}

#[test]
fn a_message_of_the_largest_size_passes_and_a_larger_one_is_a_bug() {
    let config = NetConfig { message_max: 100, ..config(1, 0) };
    run(&config, |sim| {
        assert_eq!(sim.limits().message_max, 100);
        send(&sim, 0, &[7; 100], &mut |_, _| {});
        assert_eq!(receive(&sim, 1)[0].1, [7; 100]);
    })
    .unwrap();
    let failure = run(&config, |sim| submit(&sim, sim.rank(), &[0; 50], &[0; 51])).unwrap_err();
    assert!(failure.to_string().contains("sends 101 bytes in one message, 100 are allowed"));
}

#[test]
fn a_rank_that_does_not_exist_is_unreachable() {
    run(&config(1, 0), |sim| {
        let gone = WorldRank(1);
        assert_eq!(submit(&sim, gone, &[], &[]), Err(SubmitError::PeerFailed(gone)));
        sim.ring(gone);
        sim.ring(WorldRank(u32::MAX));
    })
    .unwrap();
}
