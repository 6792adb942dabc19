//! Safe programs that break the rules: what they forget, mix up, leave in the middle of or race for
//! harms no byte but those that they write, and no wait of theirs lasts for ever.
use rma::{Assert, Config, ErrorClass, Layout, LockKind, Op, Rank, RmaError, Universe, Window};
use rma::{Element, local_with};
use std::fmt::Debug;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

mod libfabric;

/// Ends a wait that nothing else ends.
const WATCHDOG: Duration = Duration::from_secs(60);

/// How the ranks of a job reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    LoadStore,
    Messages,
    /// By messages, with room for hardly any.
    Tight,
    Nodes,
    Libfabric,
}

const WAYS: [Way; 5] = [Way::LoadStore, Way::Messages, Way::Tight, Way::Nodes, Way::Libfabric];

/// Those that are here.
fn ways() -> impl Iterator<Item = Way> {
    WAYS.into_iter().filter(|way| *way != Way::Libfabric || libfabric::is_here())
}

impl Way {
    fn config(self) -> Config {
        let mut config = Config::default();
        config.wait_timeout = Some(WATCHDOG);
        match self {
            Self::LoadStore => {}
            Self::Messages => config.hint("rma_path", "messages").unwrap(),
            Self::Tight => {
                config.hint("rma_path", "messages").unwrap();
                (config.outstanding_messages, config.credit_messages) = (2, 1);
                (config.eager_bytes, config.rendezvous_bytes) = (0, 1 << 16);
            }
            Self::Nodes => config.nodes = 2,
            Self::Libfabric => {
                config.set("transport", "ofi").unwrap();
                config.set("provider", "tcp").unwrap();
            }
        }
        config
    }
}

/// A job that every rank of comes to its end.
fn job<R: Send>(config: &Config, ranks: u32, body: impl Fn(&Universe) -> R + Sync) -> Vec<R> {
    let play = |universe: Universe| {
        let result = body(&universe);
        universe.finalize().unwrap();
        result
    };
    local_with(config.clone(), ranks, play).unwrap()
}

fn words(universe: &Universe, count: usize) -> Window {
    universe.world().window(count, 8).allocate().unwrap()
}

/// Requests, scopes' results, locks and epochs that no destructor ends: no other owner gets their
/// buffers, and other windows hear nothing of it.
#[test]
fn what_is_forgotten_harms_nothing() {
    for of in ways() {
        job(&of.config(), 4, |universe| {
            let world = universe.world();
            let right = world.rank().on_ring(1, world.size());
            let (lost, kept) = (words(universe, 512), words(universe, 512));
            let epoch = lost.lock_all().unwrap();
            let mut fresh = Vec::new();
            for round in 0..50u64 {
                forget(epoch.rput(right, 0, vec![round; 512]).unwrap());
                forget(epoch.rget(right, 0, vec![0u64; 512]).unwrap());
                forget(epoch.raccumulate(right, 0, Op::Sum, vec![1u64; 8]).unwrap());
                // What the allocator gives now may have been theirs, if they had given it back.
                fresh.push(vec![round; 512]);
            }
            forget(epoch);
            let refused = lost.free().unwrap_err();
            assert_eq!(refused.error.class(), ErrorClass::RmaSync, "{refused:?}");
            drop(refused.value);
            let is_kept = |(round, words): (u64, Vec<u64>)| words.iter().all(|word| *word == round);
            assert!((0..).zip(fresh).all(is_kept));

            let locked = kept.lock(right, LockKind::Shared).unwrap();
            locked.put(0, &[9u64; 512]).unwrap();
            locked.unlock().unwrap();
            world.barrier().unwrap();
            assert_eq!(kept.local().load(511), Ok(9u64));
            kept.free().unwrap();
        });
    }
}

/// A panic in a scope with operations on their way, in a closure that a wait calls, and in one that
/// reduces: the stack below is reused at once, and the window goes on.
#[test]
fn panics_inside_of_calls() {
    for of in ways() {
        job(&of.config(), 3, |universe| {
            let world = universe.world();
            let right = world.rank().on_ring(1, world.size());
            let window = words(universe, 4096);
            window.local().write(0, &[7u64; 4096]).unwrap();
            world.barrier().unwrap();
            let epoch = window.lock_all().unwrap();
            for _ in 0..20 {
                let thrown = catch_unwind(AssertUnwindSafe(|| {
                    let mut got = [0u64; 1024];
                    let (first, second) = got.split_at_mut(512);
                    let done: Result<(), RmaError> = epoch.ops(|ops| {
                        ops.get(right, 0, first).unwrap();
                        ops.get(right, 8, second).unwrap();
                        panic!("in a scope");
                    });
                    done.unwrap();
                }));
                assert!(thrown.is_err());
                // Where the buffer was.
                let stack = [1u64; 2048];
                universe.progress();
                assert!(std::hint::black_box(&stack).iter().all(|word| *word == 1));
            }
            epoch.unlock().unwrap();
            let thrown = catch_unwind(AssertUnwindSafe(|| {
                window.local().wait_until(0, |_: u64| panic!("in a wait"))
            }));
            assert!(thrown.is_err());
            world.barrier().unwrap();
            window.local().store(0, 8u64).unwrap();
            let seen = window.local().wait_until(0, |value: u64| value == 8);
            assert_eq!(seen, Ok(8));
            let epoch = window.fence(Assert::NONE).unwrap();
            epoch.put(right, 1, &[5u64]).unwrap();
            epoch.end().unwrap();
            assert_eq!(window.local().load(1), Ok(5u64));
            window.free().unwrap();
        });
    }
}

/// A value of one rank or job in the hands of another one names nothing there.
#[test]
fn handles_in_the_wrong_hands() {
    let outer = Mutex::new(None);
    job(&Way::LoadStore.config(), 2, |universe| {
        let world = universe.world();
        let window = Arc::new(world.window(0, 1).create_dynamic().unwrap());
        let region = window.attach(vec![1u64; 64]).unwrap();
        if world.rank() == Rank(0) {
            *outer.lock().unwrap() = Some((window.clone(), region));
        }
        world.barrier().unwrap();
        if world.rank() == Rank(1) {
            let (foreign, region) = outer.lock().unwrap().take().unwrap();
            let mine = window.detach(region).unwrap_err();
            assert_eq!(mine.error.class(), ErrorClass::RmaAttach, "{mine:?}");
            // A window of a rank is that rank's in whichever thread.
            let region = mine.value;
            let view = foreign.region(&region).unwrap();
            assert_eq!(view.load(0), Ok(1u64));
            let inner = Way::Messages.config();
            let turn = Mutex::new(());
            job(&inner, 2, |inner| {
                let window = inner.world().window(0, 1).create_dynamic().unwrap();
                let own = window.attach(vec![2u64; 64]).unwrap();
                assert!(window.region(&region).is_err());
                assert_eq!(foreign.rank(), Rank(0));
                let address = own.address();
                // An address of this job, in the other: attached there, too, or an error. The ranks
                // of this job are threads of one rank of that, which has one such epoch at a time.
                let turn = turn.lock().unwrap();
                let lock = foreign.lock_all().unwrap();
                let mut got = [0u64; 64];
                let read = lock.get(Rank(0), address, &mut got);
                assert!(got == [if read.is_ok() { 1 } else { 0 }; 64], "{read:?} {got:?}");
                lock.unlock().unwrap();
                drop(turn);
                assert_eq!(window.detach(own).unwrap(), [2; 64]);
                window.free().unwrap();
            });
            assert_eq!(foreign.detach(region).unwrap(), [1; 64]);
        }
        world.barrier().unwrap();
        let window = Arc::into_inner(window).expect("the other rank has dropped its clone");
        window.free().unwrap();
    });
}

/// Blocks that one rank puts again and again, and the gaps between them that another one puts at
/// the same time: each finds what it put, whatever the width of both.
fn blocks_and_gaps<E: Element + PartialEq + Debug>(way: Way, of: fn(u64) -> E) {
    const RUNS: u64 = 500;
    job(&way.config(), 3, |universe| {
        let world = universe.world();
        for (block, gap) in [(1u64, 1u64), (1, 3), (2, 1), (3, 5), (5, 2)] {
            let stride = block + gap;
            let window = world.window(RUNS * stride, size_of::<E>()).allocate().unwrap();
            // Rank 0 has the blocks, rank 1 the gaps, both at rank 2.
            let me = u64::from(world.rank());
            let (first, len) = if me == 0 { (0, block) } else { (block, gap) };
            let element = Layout::element::<E>();
            let rows = element.vector(RUNS, len, stride as i64).unwrap();
            let count = (RUNS * len) as usize;
            let dense = element.times(count as u64);
            let epoch = window.lock_all().unwrap();
            world.barrier().unwrap();
            if me < 2 {
                for round in 1..=100u64 {
                    let mine: Vec<E> = (0..count).map(|_| of(round * 2 + me)).collect();
                    epoch.put(Rank(2), rows.at(first), dense.of(&mine)).unwrap();
                    epoch.flush(Rank(2)).unwrap();
                    let mut got: Vec<E> = (0..count).map(|_| of(0)).collect();
                    epoch.get(Rank(2), rows.at(first), dense.of(&mut got)).unwrap();
                    assert!(got == mine, "{block} and {gap} by {way:?}: {got:?} {mine:?}");
                }
            }
            epoch.unlock().unwrap();
            world.barrier().unwrap();
            window.free().unwrap();
        }
    });
}

#[test]
fn gaps_are_their_writers() {
    for of in ways() {
        blocks_and_gaps(of, |value| value as u8);
        blocks_and_gaps(of, |value| value as u16);
        blocks_and_gaps(of, |value| value as u32);
        blocks_and_gaps(of, |value| value);
    }
}

/// Combined elements between which another rank puts.
#[test]
fn gaps_between_what_is_combined() {
    const RUNS: u64 = 200;
    fn combine<E: rma::BasicElement + PartialEq + Debug>(way: Way, of: fn(u64) -> E) {
        job(&way.config(), 3, |universe| {
            let world = universe.world();
            let window = world.window(RUNS * 2, size_of::<E>()).allocate().unwrap();
            let element = Layout::element::<E>();
            let (rows, dense) = (element.vector(RUNS, 1, 2).unwrap(), element.times(RUNS));
            let epoch = window.lock_all().unwrap();
            world.barrier().unwrap();
            let all = |value: u64| (0..RUNS).map(|_| of(value)).collect::<Vec<E>>();
            match world.rank().0 {
                0 => {
                    for _ in 0..100 {
                        let ones = all(1);
                        epoch.accumulate(Rank(2), rows.at(0), Op::Sum, dense.of(&ones)).unwrap();
                    }
                }
                1 => {
                    for round in 0..100 {
                        let (mine, mut got) = (all(round), all(0));
                        epoch.put(Rank(2), rows.at(1), dense.of(&mine)).unwrap();
                        epoch.flush(Rank(2)).unwrap();
                        epoch.get(Rank(2), rows.at(1), dense.of(&mut got)).unwrap();
                        assert!(got == mine, "{way:?}: {got:?} {mine:?}");
                    }
                }
                _ => {}
            }
            epoch.unlock().unwrap();
            world.barrier().unwrap();
            if world.rank() == Rank(2) {
                let mut got = all(0);
                let own = window.lock(Rank(2), LockKind::Shared).unwrap();
                own.get(rows.at(0), dense.of(&mut got)).unwrap();
                own.unlock().unwrap();
                assert!(got == all(100), "{way:?}: {got:?}");
            }
            world.barrier().unwrap();
            window.free().unwrap();
        });
    }
    for of in ways() {
        combine(of, |value| value as u8);
        combine(of, |value| value as u16);
        combine(of, |value| value as u32);
        combine(of, |value| value as f32);
    }
}

/// A window that its other rank has dropped in the middle: waits end when that rank is gone, at the
/// latest.
#[test]
fn a_window_that_a_peer_drops() {
    type Act = fn(&Window) -> Result<(), RmaError>;
    let acts: [(&str, Act); 5] = [
        ("fence", |window| window.fence(Assert::NONE)?.end()),
        ("exclusive", |window| window.lock(Rank(0), LockKind::Exclusive)?.unlock()),
        ("all", |window| window.lock_all()?.unlock()),
        ("start", |window| {
            let epoch = window.start(&[Rank(0)], Assert::NONE)?;
            epoch.put(Rank(0), 0, &[1u64])?;
            epoch.complete()
        }),
        ("value", |window| window.local().wait_until(0, |value: u64| value == 1).map(drop)),
    ];
    for of in ways() {
        for (name, act) in acts {
            let over = Barrier::new(2);
            let ends = local_with(of.config(), 2, |universe| {
                let window = words(&universe, 1);
                universe.world().barrier().unwrap();
                if universe.world().rank() == Rank(0) {
                    drop((window, universe));
                    over.wait();
                    return Ok(());
                }
                let end = act(&window);
                over.wait();
                end
            });
            let end = &ends.unwrap()[1];
            let classes = [ErrorClass::ProcFailed, ErrorClass::RmaSync];
            let told = |error: &RmaError| classes.contains(&error.class());
            // The words of a lock stay where they are.
            let passes = ["exclusive", "all"].contains(&name);
            assert!(end.as_ref().map_or_else(told, |()| passes), "{name} by {of:?}: {end:?}");
        }
    }
}

/// A rank whose thread ends without a word, with an epoch open and a lock held.
#[test]
fn a_universe_that_is_forgotten() {
    for of in ways() {
        let ends = local_with(of.config(), 3, |universe| {
            let window = words(&universe, 1);
            let world = universe.world().clone();
            world.barrier().unwrap();
            if world.rank() == Rank(0) {
                forget(window.lock(Rank(1), LockKind::Exclusive).unwrap());
                world.barrier().unwrap();
                forget((window, universe));
                return Ok(());
            }
            world.barrier().unwrap();
            window.lock(Rank(1), LockKind::Exclusive).and_then(rma::Lock::unlock)
        });
        for end in &ends.unwrap()[1..] {
            let class = end.as_ref().map_err(RmaError::class);
            assert_eq!(class, Err(ErrorClass::ProcFailed), "{of:?}: {end:?}");
        }
    }
}

/// Threads of each rank fence one window as they come, while another one makes windows, and frees
/// them: fences of one window may meet those of any thread, and all come to an end.
#[test]
fn threads_fence_while_another_makes_windows() {
    const ROUNDS: usize = 50;
    for of in ways() {
        job(&of.config(), 3, |universe| {
            let world = universe.world();
            let (window, other) = (words(universe, 1), world.dup().unwrap());
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..ROUNDS {
                            let epoch = window.fence(Assert::NONE).unwrap();
                            epoch.fetch_and_op(Rank(0), 0, Op::Sum, 1u64).unwrap();
                            // Another thread's guard may be open: only the fence ends it.
                            drop(epoch);
                        }
                    });
                }
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let short = other.window(16, 8).allocate().unwrap();
                        short.fence(Assert::NONE).unwrap().end().unwrap();
                        short.free().unwrap();
                    }
                });
            });
            window.fence(Assert::NONE).unwrap().end().unwrap();
            if world.rank() == Rank(0) {
                let all = 2 * ROUNDS as u64 * u64::from(world.size());
                assert_eq!(window.local().load(0), Ok(all));
            }
            world.barrier().unwrap();
            window.free().unwrap();
        });
    }
}
