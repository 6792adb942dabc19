//! Ranks as threads of one process: messages, sleeping, memory, leaving.

mod common;

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use common::{join, ranks, submit, wait_until, word};
use rma_core::transport::{
    Cma, CmaError, Descriptor, ImportError, Mapped, Members, Messages, Outcome, PeerState, Shared,
    Sleep, SubmitError, WorldRank,
};
use rma_transport_shm::{JoinError, Said, Shm, ShmConfig};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound
    }
}

/// Number and length determine every byte, so a torn or misplaced one shows.
fn body(sender: u32, n: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (sender as usize * 31 + n as usize * 7 + i) as u8).collect()
}

/// Every rank sends `each` messages of random size to random ranks (itself too), and receives
/// until all have arrived, sleeping when there is nothing to do.
fn exchange(all: &[Shm], each: u32) {
    let size = all.len();
    let sent: Vec<AtomicUsize> = (0..size).map(|_| AtomicUsize::new(0)).collect();
    let senders_left = AtomicUsize::new(size);
    std::thread::scope(|scope| {
        for shm in all {
            let (sent, senders_left) = (&sent, &senders_left);
            scope.spawn(move || {
                let me = shm.rank().0;
                let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ u64::from(me + 1));
                let mut received = 0;
                let receive = |received: &mut usize| {
                    let mut sink = |from: WorldRank, bytes: &[u8]| {
                        let n = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                        assert_eq!(bytes[4..], body(from.0, n, bytes.len() - 4));
                        *received += 1;
                    };
                    // A poll takes half of the ring at most, and no bell rings for the other half.
                    while shm.poll(&mut sink) > 0 {}
                };
                for n in 0..each {
                    let to = random.below(size);
                    let len = random.below(shm.limits().message_max - 3);
                    let (head, body) = (n.to_le_bytes(), body(me, n, len));
                    wait_until(shm, || {
                        receive(&mut received);
                        match submit(shm, WorldRank(to as u32), &head, &body) {
                            Ok(()) => true,
                            Err(SubmitError::Again) => false,
                            Err(error) => panic!("{error:?}"),
                        }
                    });
                    sent[to].fetch_add(1, SeqCst);
                }
                if senders_left.fetch_sub(1, SeqCst) == 1 {
                    (0..size).for_each(|rank| shm.ring(WorldRank(rank as u32)));
                }
                wait_until(shm, || {
                    receive(&mut received);
                    senders_left.load(SeqCst) == 0 && received == sent[me as usize].load(SeqCst)
                });
                assert_eq!(shm.poll(&mut |_, _| ()), 0);
                assert_eq!(shm.corrupt_messages(), 0);
            });
        }
    });
    assert_eq!(sent.iter().map(|n| n.load(SeqCst)).sum::<usize>(), size * each as usize);
}

#[test]
fn two_spinning_ranks_exchange_messages() {
    exchange(&ranks(2, 2), 20_000);
}

#[test]
fn sixteen_ranks_on_two_cores_exchange_messages() {
    exchange(&ranks(16, 2), 2_000);
}

#[test]
fn seventy_ranks_share_bits_of_the_refused_word() {
    exchange(&ranks(70, 2), 300);
}

#[test]
fn a_single_rank_sends_to_itself() {
    exchange(&ranks(1, 1), 1_000);
}

#[test]
fn a_full_message_ring_refuses_and_takes_again_after_a_drain() {
    let all = ranks(2, 2);
    let mut taken = 0u32;
    let refused = loop {
        match submit(&all[0], WorldRank(1), &taken.to_le_bytes(), b"") {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, SubmitError::Again);
    assert!(taken >= 64, "{taken}");
    // Armed before the drain: the drain itself has to ring, or this sleeps into the watchdog.
    let armed = all[0].arm();
    let mut expected = 0u32;
    let drained = all[1].poll(&mut |from, bytes| {
        assert_eq!((from, bytes), (WorldRank(0), &expected.to_le_bytes()[..]));
        expected += 1;
    });
    assert!(drained > 0);
    let before = all[0].now();
    all[0].park(armed, Some(Duration::from_secs(30)));
    assert!(all[0].now() - before < Duration::from_secs(29), "no peer rang");
    assert_eq!(submit(&all[0], WorldRank(1), b"", b"last"), Ok(()));
}

#[test]
fn a_message_wakes_a_parked_receiver() {
    let all = ranks(2, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..500 {
                wait_until(&all[1], || all[1].poll(&mut |_, _| ()) > 0);
                submit(&all[1], WorldRank(0), b"pong", b"").unwrap();
            }
        });
        for _ in 0..500 {
            submit(&all[0], WorldRank(1), b"ping", b"").unwrap();
            wait_until(&all[0], || all[0].poll(&mut |_, _| ()) > 0);
        }
    });
}

#[test]
fn a_sink_may_send_to_its_own_rank() {
    let all = ranks(1, 1);
    let me = &all[0];
    submit(me, WorldRank(0), &[20], b"").unwrap();
    let mut seen = Vec::new();
    while me.poll(&mut |from, bytes| {
        seen.push(bytes[0]);
        if bytes[0] > 0 {
            submit(me, from, &[bytes[0] - 1], b"").unwrap();
        }
    }) > 0
    {}
    assert_eq!(seen, (0..=20).rev().collect::<Vec<u8>>());
}

#[test]
fn a_panicking_sink_loses_its_message_only() {
    let all = ranks(1, 1);
    submit(&all[0], WorldRank(0), b"1", b"").unwrap();
    submit(&all[0], WorldRank(0), b"2", b"").unwrap();
    let poll = || all[0].poll(&mut |_, _| panic!("deliberate"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll)).is_err());
    let mut seen = Vec::new();
    assert_eq!(all[0].poll(&mut |_, bytes| seen.extend_from_slice(bytes)), 1);
    assert_eq!(seen, b"2");
}

/// A thread that finds the drain busy sleeps; it must hear when the drain is over.
#[test]
fn a_thread_that_is_turned_away_is_rung() {
    let all = ranks(1, 2);
    let me = &all[0];
    submit(me, WorldRank(0), b"a", b"").unwrap();
    submit(me, WorldRank(0), b"b", b"").unwrap();
    let (inside, armed) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            me.poll(&mut |_, _| {
                inside.store(true, SeqCst);
                while !armed.load(SeqCst) {
                    std::thread::yield_now();
                }
            })
        });
        while !inside.load(SeqCst) {
            std::thread::yield_now();
        }
        let ticket = me.arm();
        assert_eq!(me.poll(&mut |_, _| panic!("two drains at once")), 0);
        armed.store(true, SeqCst);
        let before = me.now();
        me.park(ticket, Some(Duration::from_secs(30)));
        assert!(me.now() - before < Duration::from_secs(29), "no peer rang");
    });
}

#[test]
fn regions_are_shared_both_ways() {
    let all = ranks(3, 3);
    for len in [8, 4_000, 65_536, 65_537, 1 << 20] {
        let region = all[0].allocate(len, 64).unwrap();
        let descriptor = region.descriptor();
        let imports: Vec<_> =
            all.iter().map(|shm| shm.import(WorldRank(0), &[descriptor]).unwrap()).collect();
        for (n, import) in imports.iter().enumerate() {
            assert_eq!(import.mapping().len, len);
            assert_eq!(import.mapping().base as usize % 64, 0);
            assert_ne!(import.mapping().base, region.mapping().base);
            word(&**import).fetch_add(1 << n, SeqCst);
        }
        assert_eq!(word(&*region).load(SeqCst), 7);
        drop(region);
        word(&*imports[1]).fetch_add(1, SeqCst);
        assert_eq!(word(&*imports[2]).load(SeqCst), 8, "an import outlives the region");
    }
    let empty = all[0].allocate(0, 1).unwrap();
    assert_eq!(all[1].import(WorldRank(0), &[empty.descriptor()]).unwrap().mapping().len, 0);
}

#[test]
fn descriptors_that_lie_are_refused() {
    let all = ranks(2, 2);
    let region = all[0].allocate(100_000, 64).unwrap();
    let good = region.descriptor();
    for at in 0..Descriptor::LEN {
        for bit in 0..8 {
            let mut bad = good;
            bad.0[at] ^= 1 << bit;
            // A changed id or offset may still be in range; anything else must be noticed.
            match all[1].import(WorldRank(0), &[bad]) {
                Ok(import) => assert!(import.mapping().len <= 131_072),
                Err(error) => assert_eq!(error, ImportError::Malformed(WorldRank(0))),
            }
        }
    }
    drop(region);
    let stale = all[1].import(WorldRank(0), &[good]);
    assert_eq!(stale.unwrap_err(), ImportError::Malformed(WorldRank(0)));
    let outside = all[1].import(WorldRank(9), &[good]);
    assert_eq!(outside.unwrap_err(), ImportError::PeerGone(WorldRank(9)));
}

#[test]
fn ranks_that_leave_in_order() {
    let mut all = ranks(3, 3);
    let gone = all.pop().unwrap();
    let region = gone.allocate(100, 8).unwrap();
    let descriptor = region.descriptor();
    submit(&all[0], WorldRank(2), b"", b"").unwrap();
    let (zero, one) = (all[0].arm(), all[1].arm());
    drop(region);
    drop(gone);
    for (shm, ticket) in all.iter().zip([zero, one]) {
        // Mapped it before (rank 0) or never (rank 1): both were rung, and both know.
        let before = shm.now();
        shm.park(ticket, Some(Duration::from_secs(30)));
        assert!(shm.now() - before < Duration::from_secs(29), "no peer rang");
        assert_eq!(shm.peer_state(WorldRank(2)), PeerState::Departed);
        assert_eq!(shm.failed(), None);
        assert_eq!(submit(shm, WorldRank(2), b"", b""), Err(SubmitError::PeerFailed(WorldRank(2))));
        let error = shm.import(WorldRank(2), &[descriptor]).unwrap_err();
        assert_eq!(error, ImportError::PeerGone(WorldRank(2)));
        shm.ring(WorldRank(2));
    }
    assert_eq!(all[0].peer_state(WorldRank(1)), PeerState::Alive);
    assert_eq!(all[0].peer_state(WorldRank(0)), PeerState::Alive);
}

#[test]
fn a_failure_is_known_to_all_and_the_first_one_counts() {
    let all = ranks(4, 4);
    assert!(all.iter().all(|shm| shm.failed().is_none()));
    all[2].depart(Outcome::Failed);
    all[2].depart(Outcome::Departed);
    all[1].depart(Outcome::Failed);
    for shm in &all {
        assert_eq!(shm.failed(), Some(WorldRank(2)));
        assert_eq!(shm.peer_state(WorldRank(2)), PeerState::Failed);
        assert_eq!(shm.peer_state(WorldRank(1)), PeerState::Failed);
    }
    assert_eq!(all[0].peer_state(WorldRank(3)), PeerState::Alive);
}

#[test]
fn a_rank_that_panics_has_failed() {
    let mut all = ranks(2, 2);
    let panicking = all.pop().unwrap();
    let thread = std::thread::spawn(move || {
        let _shm = panicking;
        panic!("deliberate");
    });
    assert!(thread.join().is_err());
    assert_eq!(all[0].failed(), Some(WorldRank(1)));
    assert_eq!(all[0].peer_state(WorldRank(1)), PeerState::Failed);
}

#[test]
fn ranks_out_of_range_have_failed() {
    let all = ranks(1, 1);
    for outside in [WorldRank(1), WorldRank(u32::MAX)] {
        assert!(!all[0].is_near(outside));
        assert_eq!(all[0].reaches(outside), Err(CmaError::PeerGone(outside)));
        assert_eq!(all[0].peer_state(outside), PeerState::Failed);
        assert_eq!(submit(&all[0], outside, b"", b""), Err(SubmitError::PeerFailed(outside)));
        all[0].ring(outside);
    }
    assert!(all[0].is_near(WorldRank(0)));
    assert_eq!(all[0].size(), 1);
}

#[test]
fn joining_with_nonsense_is_an_error() {
    let config =
        |rank, size| ShmConfig { rank: WorldRank(rank), size, nodes: 1, cores: 1, naps: false };
    let echo = |mine: &[u8]| -> Result<Said, String> { Ok(vec![(1, mine.to_vec())]) };
    assert!(matches!(join(config(0, 0), echo), Err(JoinError::Config { .. })));
    assert!(matches!(join(config(3, 3), echo), Err(JoinError::Config { .. })));
    let count = join(config(0, 2), echo);
    assert!(matches!(count, Err(JoinError::Count { got: 1, size: 2 })));
    let failed = join(config(0, 1), |_| Err("no network".to_owned()));
    assert!(matches!(failed, Err(JoinError::Exchange(why)) if why == "no network"));
    let torn = join(config(0, 1), |mine| Ok(vec![(1, mine[1..].to_vec())]));
    let Err(error @ JoinError::Card { .. }) = torn else { panic!("took a torn notice") };
    assert!(error.to_string().contains("rank 0"), "{error}");
    // A run of one that no rank says, then one of rank 0 and rank 1 that say the same.
    let alike = join(config(0, 2), |mine| Ok(vec![(0, vec![]), (2, mine.to_vec())]));
    assert!(matches!(alike, Err(JoinError::Card { rank: WorldRank(1), .. })));
    let many = join(config(0, 2), |mine| Ok(vec![(u32::MAX, mine.to_vec()); 2]));
    assert!(matches!(many, Err(JoinError::Count { size: 2, .. })));
    assert!(join(config(0, 1), echo).is_ok());
}

#[test]
fn waiting_spins_only_with_a_core_for_each() {
    let rounds = |shm: &Shm| (0..).find(|&round| !shm.relax(round)).unwrap();
    let (roomy, crowded) = (ranks(2, 2), ranks(3, 2));
    // At least up to the first yield, which may tell that another thread wants this CPU.
    assert!(rounds(&roomy[0]) > 60);
    // Yields only: three ranks on two CPUs, so two of them share one.
    assert!(rounds(&crowded[0]) <= 16);
    assert!(crowded[0].explain().contains("oversubscribed"), "{}", crowded[0].explain());
    assert!(roomy[0].explain().contains("spins"), "{}", roomy[0].explain());
    assert!(!roomy[0].explain().contains('\n'));
    assert!(crowded[0].is_crowded() && !roomy[0].is_crowded());
    assert!(roomy[0].now() > Duration::ZERO);
}
