//! Credit and CTS of targets that do not listen, that free, and of origins that are gone.
#![allow(unsafe_code)] // room: forges a message

use super::{jobs, net, tight};
use rma_core::transport::WorldRank;
use rma_core::{Assert, Config, LockAll, Op, ProgressAgent, Rank, RmaError, Universe, Window};
use rma_transport_sim::NetConfig;
use std::time::Duration;

fn run(name: &str, ranks: u32, config: Config, body: &(dyn Fn(Universe) + Sync)) {
    jobs(config).run(name, ranks, body);
}

/// Without agents, which would serve for a rank that ignores its messages.
fn impatient() -> Config {
    let mut config = tight();
    config.wait_timeout = Some(Duration::from_millis(20));
    config.progress_agent = ProgressAgent::Never;
    config
}

/// A put of several messages, and thus of several CTS.
const LEN: usize = 10_000;

fn bytes(universe: &Universe, count: usize) -> Window {
    universe.world().window(count, 1).allocate().unwrap()
}

/// Without locks, whose words may be at a rank that does not answer.
fn unlocked(window: &Window) -> LockAll<'_> {
    window.lock_all_with(Assert::NO_CHECK).unwrap()
}

/// Lets virtual time pass, and serves the peers.
fn serve_until(universe: &Universe, own: &Window, end: Duration) {
    let epoch = unlocked(own);
    while universe.transport().now() < end {
        epoch.fetch_and_op(own.rank(), 0, Op::NoOp, 0u64).unwrap();
    }
    epoch.unlock().unwrap();
}

/// Until all ranks have left the barrier before.
const SOON: Duration = Duration::from_millis(2);

/// Lets virtual time pass, and does not look at any message.
fn ignore_until(universe: &Universe, end: Duration) {
    let transport = universe.transport();
    while let Some(left) = end.checked_sub(transport.now()).filter(|left| !left.is_zero()) {
        transport.park(left);
    }
}

/// Every rank puts to rank 0, which checks what came.
fn all_put(universe: &Universe) {
    let (world, window) = (universe.world(), bytes(universe, 3 * LEN));
    let epoch = unlocked(&window);
    let start = u64::from(world.rank()) * LEN as u64;
    epoch.put(Rank(0), start, &vec![world.rank().0 as u8 + 1; LEN]).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    if world.rank() == Rank(0) {
        let mut got = vec![0u8; 3 * LEN];
        window.local().read(0, &mut got).unwrap();
        let whole = got.chunks(LEN).zip(1u8..).all(|(bytes, put)| bytes.iter().all(|b| *b == put));
        assert!(whole);
    }
    window.free().unwrap();
}

#[test]
fn a_put_that_gives_up_gives_its_grant_back() {
    run("budgets::a_put_that", 3, impatient(), &|universe| {
        let world = universe.world();
        let (window, own) = (bytes(&universe, LEN), bytes(&universe, 8));
        world.barrier().unwrap();
        let end = universe.transport().now() + Duration::from_millis(60);
        if world.rank() == Rank(0) {
            ignore_until(&universe, end);
        } else {
            serve_until(&universe, &own, universe.transport().now() + SOON);
            let epoch = unlocked(&window);
            let error = epoch.put(Rank(0), 0, &[7u8; LEN]).unwrap_err();
            let RmaError::Timeout { window: id, what } = error else { panic!("{error}") };
            assert_eq!((id, what), (window.id(), "a put"));
            epoch.unlock().unwrap();
            serve_until(&universe, &own, end);
        }
        world.barrier().unwrap();
        assert_eq!(window.local().load(0), Ok(0u8), "nothing was granted in time");
        all_put(&universe);
        window.free().unwrap();
        own.free().unwrap();
        universe.finalize().unwrap();
    });
}

#[test]
fn credit_bounds_what_a_target_has_to_keep() {
    let mut config = impatient();
    (config.credit_messages, config.outstanding_messages, config.eager_bytes) = (5, 100, 1000);
    let mut jobs = jobs(config);
    jobs.net = |ranks, seed| NetConfig { queue_max: 1000, ..net(ranks, seed) };
    jobs.run("budgets::credit_bounds", 2, &|universe| {
        let world = universe.world();
        let (window, own) = (bytes(&universe, 8 * 20), bytes(&universe, 8));
        world.barrier().unwrap();
        let end = universe.transport().now() + Duration::from_millis(60);
        if world.rank() == Rank(0) {
            ignore_until(&universe, end);
        } else {
            serve_until(&universe, &own, universe.transport().now() + SOON);
            let epoch = unlocked(&window);
            let puts = (0u64..20).take_while(|i| epoch.put(Rank(0), 8 * i, &[i + 1]).is_ok());
            assert_eq!(puts.count(), 5, "the rest would wait at the target");
            serve_until(&universe, &own, end);
            // They were sent, and arrive in the end; the one that gave up never was.
            epoch.unlock().unwrap();
        }
        world.barrier().unwrap();
        if world.rank() == Rank(0) {
            let mut got = [0u64; 20];
            window.local().read(0, &mut got).unwrap();
            assert_eq!(got[..6], [1, 2, 3, 4, 5, 0]);
        }
        window.free().unwrap();
        own.free().unwrap();
        universe.finalize().unwrap();
    });
}

#[test]
fn a_window_that_is_dropped_grants_on() {
    run("budgets::a_window_that_is_dropped", 3, tight(), &|universe| {
        let world = universe.world();
        let (window, own) = (bytes(&universe, LEN), bytes(&universe, 8));
        world.barrier().unwrap();
        if world.rank() == Rank(0) {
            serve_until(&universe, &own, universe.transport().now() + Duration::from_millis(1));
            drop(window);
        } else {
            let epoch = unlocked(&window);
            for value in [7u8, 8] {
                epoch.put(Rank(0), 0, &[value; LEN]).unwrap();
                epoch.flush(Rank(0)).unwrap();
            }
            epoch.unlock().unwrap();
        }
        world.barrier().unwrap();
        all_put(&universe);
        own.free().unwrap();
        universe.finalize().unwrap();
    });
}

/// An RTS, as a message; that it is taken proves the layout.
fn forged_rts(window: &Window, length: u64) -> [u8; 40] {
    let id = window.id().to_string();
    let (high, low) = id.trim_start_matches('#').split_once('.').unwrap();
    let object = high.parse::<u64>().unwrap() << 32 | low.parse::<u64>().unwrap();
    let mut head = [0; 40];
    head[0] = 17;
    head[8..16].copy_from_slice(&object.to_le_bytes());
    head[24..32].copy_from_slice(&length.to_le_bytes());
    head
}

#[test]
fn an_origin_that_leaves_gives_its_grant_back() {
    run("budgets::an_origin_that", 3, tight(), &|universe| {
        let world = universe.world();
        let (window, flag) = (bytes(&universe, LEN), bytes(&universe, 8));
        world.barrier().unwrap();
        if world.rank() == Rank(1) {
            // Asks, and is gone before it could send or cancel.
            let rts = forged_rts(&window, LEN as u64);
            // SAFETY: an ask tells the receiver of nothing but a length.
            let send = || unsafe { universe.transport().send(WorldRank(0), &rts, &[]) };
            while send().is_err() {}
            return;
        }
        if world.rank() == Rank(2) {
            serve_until(&universe, &flag, universe.transport().now() + SOON);
        }
        let epoch = unlocked(&flag);
        match world.rank() {
            Rank(0) => {
                while epoch.fetch_and_op(Rank(0), 0, Op::NoOp, 0u64).unwrap() == 0 {}
                let mut got = [0u8; LEN];
                window.local().read(0, &mut got).unwrap();
                assert_eq!(got, [7; LEN]);
                assert_eq!(universe.counters().messages_dropped(), 0);
            }
            _ => {
                let puts = unlocked(&window);
                puts.put(Rank(0), 0, &[7u8; LEN]).unwrap();
                puts.unlock().unwrap();
                epoch.fetch_and_op(Rank(0), 0, Op::Replace, 1u64).unwrap();
            }
        }
        epoch.unlock().unwrap();
    });
}
