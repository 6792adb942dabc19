//! Operations that do not wait, to a target that serves no rank for a while: what finds room is
//! issued and arrives later, what does not is refused by name, and nothing of it arrives. On a
//! simulated network, which decides order and delay by a seed.
use rma::{
    Config, Layout, LockAll, LockKind, Op, ProgressAgent, Rank, RmaError, Shortage, TryLimit,
    Universe, Window,
};
use rma_transport_sim::{Cause, DeviceConfig, NetConfig, run};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

/// What each of the tests tries at most.
const MANY: u64 = 3_000;
const WORDS: usize = 4_096;

fn config(outstanding: usize, credit: usize) -> Config {
    let mut config = Config::default();
    (config.outstanding_messages, config.credit_messages) = (outstanding, credit);
    config.progress_agent = ProgressAgent::Never;
    config
}

/// What threads of ranks tell each other.
#[derive(Default)]
struct Told {
    /// Ranks that serve no rank.
    deaf: AtomicU32,
    over: AtomicBool,
}

impl Told {
    /// Serves no rank until it is over.
    fn idle(&self, universe: &Universe) {
        self.deaf.fetch_add(1, Relaxed);
        while !self.over.load(Relaxed) {
            universe.transport().park(Duration::from_millis(1));
        }
    }

    /// Serves all until all others are deaf.
    fn wait(&self, universe: &Universe) {
        while self.deaf.load(Relaxed) + 1 < universe.world().size() {
            universe.progress();
            universe.transport().park(Duration::from_millis(1));
        }
    }
}

/// Runs `origin` at rank 0 of several, whose others serve no rank meanwhile, and then `target` at
/// those, when all that was issued is there. The origin says how much that is.
fn with_deaf(
    net: NetConfig,
    config: &Config,
    window: impl Fn(&Universe) -> Window + Sync,
    origin: impl Fn(&Universe, &LockAll<'_>) -> u64 + Sync,
    target: impl Fn(&Window, u64) + Sync,
) {
    let told = Told::default();
    run(&net, |sim| {
        let universe = Universe::new(sim, config.clone()).unwrap();
        let (world, window) = (universe.world(), window(&universe));
        let epoch = window.lock_all().unwrap();
        world.barrier().unwrap();
        let mut issued = 0;
        if world.rank() == Rank(0) {
            told.wait(&universe);
            let parked = universe.counters().parked();
            issued = origin(&universe, &epoch);
            assert_eq!(universe.counters().parked(), parked, "none of it waits");
            told.over.store(true, Relaxed);
        } else {
            told.idle(&universe);
        }
        epoch.flush_all().unwrap();
        let issued = world.bcast_value(issued, Rank(0)).unwrap();
        epoch.unlock().unwrap();
        if world.rank() != Rank(0) {
            window.sync().unwrap();
            target(&window, issued);
        }
        window.free().unwrap();
        universe.finalize().unwrap();
    })
    .unwrap();
}

fn words(universe: &Universe) -> Window {
    universe.world().window(WORDS, 8).allocate().unwrap()
}

fn all_of(window: &Window) -> Vec<u64> {
    let mut all = vec![0; WORDS];
    window.local().read(0, &mut all).unwrap();
    all
}

/// Tries so often, and says how often that was issued, and what the rest was short of.
fn tried(mut call: impl FnMut(u64) -> Result<(), RmaError>) -> (u64, Option<Shortage>) {
    let (mut issued, mut shortage) = (0, None);
    for _ in 0..MANY {
        match call(issued) {
            Ok(()) => {
                assert!(shortage.is_none(), "there was no room just before");
                issued += 1;
            }
            Err(error) => shortage = Some(error.shortage().unwrap_or_else(|| panic!("{error}"))),
        }
    }
    (issued, shortage)
}

/// No more than the credit is issued, however often it is tried; requests give their buffers back.
#[test]
fn credit_is_short() {
    let origin = |universe: &Universe, epoch: &LockAll<'_>| {
        let sent = universe.counters().messages_sent();
        let put = |at: u64| epoch.try_put(Rank(1), at, &[at + 1]);
        let short = Shortage::Credit { needed: 1, free: 0, limit: 5 };
        assert_eq!(tried(put), (5, Some(short)));
        assert_eq!(universe.counters().messages_sent() - sent, 5);
        let error = epoch.try_accumulate(Rank(1), 9, Op::Sum, &[1u64]).unwrap_err();
        assert_eq!(error.shortage(), Some(short));
        for text in ["was not issued", "takes 1 messages, and 0 of the 5", "credit_messages=N"] {
            assert!(error.to_string().contains(text), "{error}");
        }
        let refused = epoch.try_rput(Rank(1), 9, vec![3u64; 2]).map(drop).unwrap_err();
        assert_eq!((refused.error.shortage(), refused.value), (Some(short), vec![3; 2]));
        let refused = epoch.try_rget(Rank(1), 0, vec![4u64; 2]).map(drop).unwrap_err();
        assert_eq!((refused.error.shortage(), refused.value), (Some(short), vec![4; 2]));
        let add = epoch.try_rget_accumulate(Rank(1), 9, Op::Sum, &[1u64], vec![5u64]);
        let refused = add.map(drop).unwrap_err();
        assert_eq!((refused.error.shortage(), refused.value), (Some(short), vec![5]));
        // Another target has its own.
        epoch.try_put(Rank(2), 0, &[1u64]).unwrap();
        5
    };
    let target = |window: &Window, issued: u64| {
        let count = if window.rank() == Rank(1) { issued } else { 1 };
        let mut expected: Vec<u64> = (1..=count).collect();
        expected.resize(WORDS, 0);
        assert_eq!(all_of(window), expected);
    };
    for seed in 0..4 {
        let net = NetConfig { in_order: seed % 2 == 1, ..NetConfig::new(3, seed) };
        with_deaf(net, &config(100, 5), words, origin, target);
    }
}

/// So it is with messages of this rank to all targets.
#[test]
fn messages_are_short() {
    let origin = |_: &Universe, epoch: &LockAll<'_>| {
        let put = |at: u64| epoch.try_put(Rank(1 + (at % 2) as u32), at, &[at + 1]);
        let short = Shortage::Messages { needed: 1, free: 0, limit: 7 };
        assert_eq!(tried(put), (7, Some(short)));
        7
    };
    let target = |window: &Window, issued: u64| {
        let there = all_of(window).iter().filter(|word| **word > 0).count() as u64;
        assert_eq!(there, if window.rank() == Rank(1) { issued.div_ceil(2) } else { issued / 2 });
    };
    with_deaf(NetConfig::new(3, 1), &config(7, 5), words, origin, target);
}

/// A queue that its owner does not read takes no more; slots and credit are whole again.
#[test]
fn the_queue_is_short() {
    let origin = |_: &Universe, epoch: &LockAll<'_>| {
        let put = |at: u64| epoch.try_put(Rank(1), at, &[at + 1]);
        let (issued, shortage) = tried(put);
        assert!((1..=3).contains(&issued), "{issued}");
        assert_eq!(shortage, Some(Shortage::Queue));
        issued
    };
    let target = |window: &Window, issued: u64| {
        let there = all_of(window).iter().filter(|word| **word > 0).count() as u64;
        assert_eq!(there, issued);
    };
    for seed in 0..4 {
        let net = NetConfig { queue_max: 3, ..NetConfig::new(2, seed) };
        with_deaf(net, &config(100, 50), words, origin, target);
    }
}

/// An operation of several messages is issued when there is room for the first in the queue, and
/// slots for all; what it is short of is told otherwise, and that there never is enough.
#[test]
fn several_messages_are_issued_together() {
    let origin = |_: &Universe, epoch: &LockAll<'_>| {
        let three = vec![7u64; 600];
        epoch.try_put(Rank(1), 0, &three).unwrap();
        let short = Some(Shortage::Credit { needed: 3, free: 2, limit: 5 });
        let error = epoch.try_accumulate(Rank(1), 700, Op::Sum, &three).unwrap_err();
        assert_eq!(error.shortage(), short);
        let column = Layout::element::<u64>().vector(600, 1, 2).unwrap();
        let error = epoch.try_put(Rank(1), column.at(700), &three).unwrap_err();
        assert_eq!(error.shortage(), short);
        let error = epoch.try_put(Rank(1), 700, &vec![9u64; 1_300]).unwrap_err();
        let RmaError::TooLargeToTry { limit, .. } = error else { panic!("{error}") };
        assert_eq!(limit, TryLimit::Messages { needed: 6, limit: 5 });
        let two = epoch.try_accumulate(Rank(1), 3_000, Op::Sum, &three[..400]);
        match two {
            Ok(()) => 400,
            Err(error) => {
                assert_eq!(error.shortage(), Some(Shortage::Queue));
                0
            }
        }
    };
    let target = |window: &Window, issued: u64| {
        let there = all_of(window);
        assert_eq!(there[..600], [7; 600]);
        assert!(there[3_000..][..issued as usize].iter().all(|word| *word == 7));
        assert_eq!(there.iter().sum::<u64>(), 7 * (600 + issued), "nothing of what was refused");
    };
    for seed in 0..4 {
        // A queue for one message, or for all: the rest waits in the outbox.
        let (queue_max, message_max) = (1 + seed as usize % 2 * 60, 2_048);
        let in_order = seed >= 2;
        let net = NetConfig { queue_max, in_order, message_max, ..NetConfig::new(2, seed) };
        with_deaf(net, &config(100, 5), words, origin, target);
    }
}

/// Where parts differ, the target is asked how long its own is, and the call does not wait for the
/// answer.
#[test]
fn the_size_of_a_part_is_asked_for() {
    let window = |universe: &Universe| {
        let world = universe.world();
        let count = WORDS + 8 * world.rank().0 as usize;
        world.window(count, 8).allocate().unwrap()
    };
    let origin = |_: &Universe, epoch: &LockAll<'_>| {
        let put = |at: u64| epoch.try_put(Rank(1), at, &[at + 1]);
        assert_eq!(tried(put), (0, Some(Shortage::Memory)));
        0
    };
    let target = |window: &Window, _: u64| assert!(all_of(window).iter().all(|word| *word == 0));
    with_deaf(NetConfig::new(2, 3), &config(100, 5), window, origin, target);
}

/// A device takes so many transfers.
#[test]
fn transfers_are_short() {
    let origin = |universe: &Universe, epoch: &LockAll<'_>| {
        // The device needs nothing of the target: it is full between two looks only.
        let put = |at: u64| epoch.try_put(Rank(1), at % 4_000, &[at % 4_000 + 1]);
        let mut short = 0;
        for at in 0..MANY {
            match put(at) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.shortage(), Some(Shortage::Transfers), "{error}");
                    short += 1;
                }
            }
        }
        assert!(short > 0 && universe.counters().transfers() > 0, "{short}");
        // What is not one transfer goes by messages.
        let before = universe.counters().transfers();
        epoch.try_put(Rank(1), 0, &vec![1u64; 1_000]).unwrap();
        assert_eq!(universe.counters().transfers(), before);
        0
    };
    let target = |window: &Window, _: u64| {
        assert_eq!(all_of(window)[..1_000], [1; 1_000]);
    };
    let asked = |universe: &Universe| {
        let window = words(universe);
        // Where the part lies is known then.
        window.lock_all().unwrap().get(Rank(1), 0, &mut [0u64]).unwrap();
        window
    };
    let device = DeviceConfig { queue_max: 3, ..DeviceConfig::new() };
    let net = NetConfig { device: Some(device), ..NetConfig::new(2, 1) };
    with_deaf(net, &config(100, 5), asked, origin, target);
}

/// A target that dies is no shortage.
#[test]
fn a_death_is_an_error_of_its_own() {
    let told = Told::default();
    let failure = run(&NetConfig::new(2, 1), |sim| {
        let universe = Universe::new(sim, config(100, 5)).unwrap();
        let (world, window) = (universe.world(), words(&universe));
        let epoch = window.lock_all().unwrap();
        world.barrier().unwrap();
        if world.rank() == Rank(1) {
            told.idle(&universe);
            panic!("dies");
        }
        told.over.store(true, Relaxed);
        let error = loop {
            match epoch.try_put(Rank(1), 0, &[1u64]) {
                Ok(()) => {}
                Err(error) if error.shortage().is_some() => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(error, RmaError::PeerFailed { .. }), "{error}");
        drop(epoch);
    })
    .unwrap_err();
    assert!(matches!(failure.cause, Cause::Panic(_)), "{failure}");
    assert!(failure.panics.iter().all(|panic| panic.message.contains("dies")), "{failure}");
}

/// What waits for a grant was issued by its callers, and is lost by no call behind it that does not
/// wait: where it would take a wait, it stays for one that does.
#[test]
fn what_waits_for_a_grant_stays() {
    for seed in 0..4 {
        let is_requested = AtomicBool::new(false);
        let net = NetConfig { message_max: 2_048, ..NetConfig::new(2, seed) };
        run(&net, |sim| {
            let universe = Universe::new(sim, config(100, 2)).unwrap();
            let (world, window) = (universe.world(), words(&universe));
            if world.rank() == Rank(1) {
                let held = window.lock(Rank(1), LockKind::Exclusive).unwrap();
                world.barrier().unwrap();
                while !is_requested.load(Relaxed) {
                    universe.progress();
                    universe.transport().park(Duration::from_millis(1));
                }
                held.unlock().unwrap();
            } else {
                world.barrier().unwrap();
                try_behind_what_waits(&universe, &window, &is_requested);
            }
            world.barrier().unwrap();
            if world.rank() == Rank(1) {
                window.sync().unwrap();
                let mut expected = vec![1u64; 600];
                expected.resize(WORDS, 0);
                expected[700] = 1;
                assert_eq!(all_of(&window), expected);
            }
            window.free().unwrap();
            universe.finalize().unwrap();
        })
        .unwrap();
    }
}

/// At rank 0, while rank 1 holds the lock until it is requested.
fn try_behind_what_waits(universe: &Universe, window: &Window, is_requested: &AtomicBool) {
    let lock = window.lock(Rank(1), LockKind::Exclusive).unwrap();
    // Of three messages, and the target has credit for two.
    lock.accumulate(0, Op::Sum, &[1u64; 600]).unwrap();
    let put = || lock.try_put(700, &[1u64]);
    // Those that wait behind it, until there is no room for more.
    let error = std::iter::from_fn(|| Some(put())).find_map(Result::err).unwrap();
    assert_eq!(error.shortage(), Some(Shortage::Grant));
    is_requested.store(true, Relaxed);
    let error = loop {
        match put() {
            Err(error) if error.shortage().is_some() => {
                universe.transport().park(Duration::from_millis(1));
            }
            refused => break refused.unwrap_err(),
        }
    };
    let RmaError::TooLargeToTry { what, limit, .. } = error else { panic!("{error}") };
    assert_eq!((what, limit), ("an accumulate", TryLimit::Messages { needed: 3, limit: 2 }));
    lock.flush().unwrap();
    put().unwrap();
    lock.unlock().unwrap();
}
