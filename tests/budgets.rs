//! Operations that give up at any point, with budgets that are small: no wait hangs, no target gets
//! more than the credit says, and all budgets are whole again when everything was answered.
//! Programs, and the order and delay of messages, are generated from a seed.
use rma::{Assert, Config, LockAll, Op, ProgressAgent, Rank, RmaError, Universe};
use rma_transport_sim::{Cause, NetConfig, SimFailure, run};
use std::time::Duration;

const CREDIT: u64 = 2;
/// Words of each part.
const WORDS: u64 = 100;
/// Milliseconds in which ranks operate; until all is answered; and for each rank that tries its
/// credit out.
const CHAOS: u64 = 200;
const QUIET: u64 = 400;
const TRIAL: u64 = 80;

fn tight(seed: u64) -> Config {
    let mut config = Config::default();
    (config.outstanding_messages, config.credit_messages) = (3, CREDIT as usize);
    (config.eager_bytes, config.rendezvous_bytes) = (100, 300);
    config.progress_agent = ProgressAgent::Never;
    config.wait_timeout = Some(Duration::from_millis([3, 6, 12][seed as usize % 3]));
    config
}

/// How a rank ends in the middle.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Never,
    Leaves,
    Dies,
}

/// A program, drawn from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }
}

fn millis(universe: &Universe) -> u64 {
    universe.transport().now().as_millis() as u64
}

/// What is left of the time until then.
fn left(universe: &Universe, until: u64) -> Option<Duration> {
    let left = Duration::from_millis(until).saturating_sub(universe.transport().now());
    (!left.is_zero()).then_some(left)
}

/// Serves no rank until then.
fn idle(universe: &Universe, until: u64) {
    while let Some(left) = left(universe, until) {
        universe.transport().park(left);
    }
}

/// Serves all ranks until then.
fn serve(universe: &Universe, until: u64) {
    while let Some(left) = left(universe, until) {
        universe.progress();
        universe.transport().park(left.min(Duration::from_micros(100)));
    }
}

/// Whether an operation was done; it may have given up, or have missed a rank that is gone.
fn is_done(end: Result<(), RmaError>, of: End) -> bool {
    match end {
        Ok(()) => true,
        Err(RmaError::Timeout { .. }) => false,
        // Its window goes first.
        Err(RmaError::PeerLeft { .. } | RmaError::Freed { .. }) if of == End::Leaves => false,
        Err(RmaError::PeerFailed { .. }) if of == End::Dies => false,
        Err(error) => panic!("{error}"),
    }
}

/// Some operation on some target.
fn operate(draw: &mut Draw, epoch: &LockAll<'_>, ranks: u64) -> Result<(), RmaError> {
    let (target, at) = (Rank(draw.below(ranks) as u32), draw.below(WORDS / 2));
    let many = vec![draw.below(9); 1 + draw.below(WORDS / 2) as usize];
    match draw.below(9) {
        0 => epoch.put(target, at, &many[..1]),
        1 => epoch.put(target, at, &many),
        2 => epoch.get(target, at, &mut vec![0u64; many.len()]),
        3 => epoch.fetch_and_op(target, at, Op::Sum, 1u64).map(drop),
        4 => epoch.accumulate(target, at, Op::Sum, &many),
        5 => epoch.rget(target, at, vec![0u64; many.len()]).map(drop).map_err(|it| it.error),
        6 => {
            let request = epoch.rput(target, at, many).map_err(|refused| refused.error)?;
            request.wait().map(drop).map_err(|refused| refused.error)
        }
        7 => epoch.flush(target),
        _ => epoch.flush_all(),
    }
}

/// Puts to a target that serves no rank, until that takes no more: as many as the credit says, and
/// no message besides. What was put is there when it serves again.
fn try_credit(universe: &Universe, epoch: &LockAll<'_>, target: Rank) -> u64 {
    let before = universe.counters().messages_sent();
    let mut taken = 0;
    while is_done(epoch.put(target, 0, &[taken]), End::Never) {
        taken += 1;
        assert!(taken <= CREDIT, "more than the credit");
    }
    assert!(!is_done(epoch.flush(target), End::Never), "it has served nobody");
    assert_eq!(universe.counters().messages_sent() - before, taken);
    taken
}

fn play(universe: Universe, seed: u64, end: End) {
    let world = universe.world();
    let (me, ranks) = (u64::from(world.rank().0), u64::from(world.size()));
    let window = world.window(WORDS as usize, 8).allocate().unwrap();
    let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
    let mut draw = Draw(seed << 8 | me);
    let gone_at =
        if end != End::Never && me + 1 == ranks { draw.below(CHAOS / 2) } else { u64::MAX };
    while millis(&universe) < CHAOS {
        if millis(&universe) >= gone_at {
            assert!(end == End::Leaves, "dies");
            drop(epoch);
            drop((window, universe));
            return;
        }
        is_done(operate(&mut draw, &epoch, ranks), end);
        match draw.below(6) {
            0 => idle(&universe, millis(&universe) + draw.below(20)),
            1 => serve(&universe, millis(&universe) + 1),
            _ => {}
        }
    }
    serve(&universe, QUIET);
    if end == End::Dies {
        return;
    }
    // What is told once is told; what was late has come.
    is_done(epoch.flush_all(), end);
    assert!(is_done(epoch.flush_all(), end), "nothing is under way");
    let there = if end == End::Leaves { ranks - 1 } else { ranks };
    for turn in 0..there {
        let begin = QUIET + 1 + turn * TRIAL;
        serve(&universe, begin);
        if turn == me {
            let target = Rank(((me + 1) % there) as u32);
            // The target does not serve any more.
            serve(&universe, begin + 1);
            assert_eq!(try_credit(&universe, &epoch, target), CREDIT, "what was given up is lost");
            serve(&universe, begin + TRIAL);
            assert_eq!(epoch.flush(target), Ok(()));
        } else {
            idle(&universe, begin + TRIAL / 2);
        }
    }
    serve(&universe, QUIET + (there + 1) * TRIAL);
    drop(epoch);
}

fn played(seed: u64, ranks: u32, end: End) -> Result<Vec<()>, SimFailure> {
    let net = NetConfig {
        queue_max: [2, 64][seed as usize % 2],
        delay_max: [20, 300][seed as usize / 2 % 2],
        ..NetConfig::new(ranks, seed)
    };
    run(&net, |sim| play(Universe::new(sim, tight(seed)).unwrap(), seed, end))
}

/// Whatever operations gave up, and when.
#[test]
fn budgets_are_whole_again() {
    for seed in 0..24 {
        played(seed, 2 + seed as u32 % 3, End::Never).unwrap();
    }
}

/// What was sent to a rank that has left, and not answered, keeps nothing from those that stay.
#[test]
fn budgets_outlive_a_rank_that_leaves() {
    for seed in 0..12 {
        played(seed, 3, End::Leaves).unwrap();
    }
}

/// No wait outlives a rank that dies.
#[test]
fn a_death_ends_everything_that_waits() {
    for seed in 0..12 {
        let failure = played(seed, 3, End::Dies).unwrap_err();
        assert!(matches!(failure.cause, Cause::Panic(_)), "{failure}");
        assert!(failure.panics.iter().all(|panic| panic.message.contains("dies")), "{failure}");
    }
}
