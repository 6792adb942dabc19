//! Every wait of the core ends when the one that is waited for dies, leaves or stops.
//!
//! `cargo xtask tidy` keeps [`names`] complete: each `wait_until` in the core says which it is.
use crate::help::{locked, taken};
use core::error::Error;
use core::mem::forget;
use core::time::Duration;
use rma_core::transport::WorldRank;
use rma_core::{Assert, CollectiveError, LockKind, Op, Rank, Request, RmaError, Universe, Window};
use std::thread;

/// The one that is waited for.
pub const VICTIM: Rank = Rank(1);
/// Ranks of each case: more than threads of a rank may stand in line.
pub const RANKS: u32 = 6;
const WORDS: usize = 50_000;

/// What becomes of the one that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It panics.
    Dies,
    /// It returns in order, too early.
    Leaves,
    /// It does nothing any more, and the others have a deadline.
    Stops,
}

type Step = fn(&Window);
type Waits = fn(&Universe, &Window) -> Result<(), Box<dyn Error>>;

/// One wait.
pub struct Case {
    /// As the core's sources name it.
    pub name: &'static str,
    /// What the victim does, when all ranks have a window.
    victim: Step,
    /// What the others do then, before the victim meets its fate.
    others: Step,
    /// What they wait in afterwards.
    wait: Waits,
    /// Whether it waits only where the victim is reached by messages.
    far: bool,
    /// Whether it takes threads of a rank.
    pub threads: bool,
    /// Whether it polls, which has no deadline.
    polls: bool,
    /// Whether it is for as long as any rank is left: not only the victim.
    anyone: bool,
}

impl Case {
    /// What the victim can do in it.
    pub fn fates(&self) -> &'static [Fate] {
        match (self.anyone, self.polls) {
            (false, false) => &[Fate::Dies, Fate::Leaves, Fate::Stops],
            (false, true) => &[Fate::Dies, Fate::Leaves],
            (true, false) => &[Fate::Dies, Fate::Stops],
            (true, true) => &[Fate::Dies],
        }
    }
}

/// Waits whose end is tested where a test can hold what they wait for: unit tests of the core.
const ELSEWHERE: [&str; 6] =
    ["accumulate", "door", "flush of another thread", "flush of transfers", "region", "transfer"];

/// Names of all waits.
pub fn names() -> Vec<&'static str> {
    let mut all: Vec<_> = cases().iter().map(|case| case.name).chain(ELSEWHERE).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn ended<V>(end: Result<V, impl Error + 'static>) -> Result<(), Box<dyn Error>> {
    end.map(drop).map_err(Into::into)
}

fn nothing(_: &Window) {}

fn case(name: &'static str, wait: Waits) -> Case {
    let (victim, others): (Step, Step) = (nothing, nothing);
    let (far, threads, polls, anyone) = (false, false, false, false);
    Case { name, victim, others, wait, far, threads, polls, anyone }
}

fn far(name: &'static str, wait: Waits) -> Case {
    Case { far: true, ..case(name, wait) }
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut all = meetings();
    all.extend(locks());
    all.extend(operations());
    all.extend(values());
    all
}

fn meetings() -> Vec<Case> {
    vec![
        case("flag", |_, window| ended(window.fence(Assert::NONE))),
        case("arrivals", |universe, _| ended(universe.world().barrier())),
        case("payload", |universe, _| ended(universe.world().bcast(&mut [0u64], VICTIM))),
        case("payload", |universe, _| ended(universe.world().scatter::<u64>(&[], VICTIM))),
        // Until the configuration's deadline, as in a barrier without one of its own.
        case("timed barrier", |universe, _| ended(universe.world().barrier_for(Duration::MAX))),
        Case { polls: true, ..case("timed barrier", poll_barrier) },
        // Of two threads of a rank, one waits for its turn.
        Case {
            threads: true,
            ..case("turn", |universe, _| {
                let world = universe.world();
                let bcast = || world.bcast(&mut [0u64], VICTIM);
                let (one, other) = thread::scope(|scope| {
                    let other = scope.spawn(bcast);
                    (bcast(), other.join().unwrap())
                });
                ended(one)?;
                ended(other)
            })
        },
        Case {
            threads: true,
            ..case("turn", |_, window| {
                let fence = || window.fence(Assert::NONE).map(drop);
                let (one, other) = thread::scope(|scope| {
                    let other = scope.spawn(fence);
                    (fence(), other.join().unwrap())
                });
                ended(one)?;
                ended(other)
            })
        },
        case("invitation", |universe, _| ended(universe.world().dup())),
        case("signal", |_, window| {
            let epoch = window.start(&[VICTIM], Assert::NONE)?;
            ended(epoch.put(VICTIM, 0, &[1u64]))
        }),
        case("signal", |_, window| ended(window.post(&[VICTIM], Assert::NONE)?.wait())),
        // Longer than any queue: to the victim directly, or to one that waits for it.
        case("room", |universe, _| exchange(universe, 60 << 10)),
        case("part", |universe, _| exchange(universe, 1 << 20)),
        // Near ranks, for the victim to read what was written, and for more to be written then.
        case("place for a piece", |universe, _| exchange(universe, 1 << 20)),
        case("place for a piece", broadcast),
        case("piece", broadcast),
        case("offers", |universe, _| ended(universe.world().allgather(&[0u64; 1 << 10]))),
    ]
}

fn locks() -> Vec<Case> {
    let holds: Step = |window| forget(locked(window, Rank(0), LockKind::Exclusive));
    let holds_each: Step = |window| {
        let each = (0..RANKS).map(Rank);
        each.for_each(|rank| forget(locked(window, rank, LockKind::Exclusive)));
    };
    let shares: Step = |window| forget(locked(window, Rank(0), LockKind::Shared));
    let has_all: Step = |window| forget(window.lock_all().unwrap());
    let lock: Waits = |_, window| ended(taken(window, Rank(0), LockKind::Exclusive));
    let read: Waits = |_, window| {
        let lock = window.lock(Rank(0), LockKind::Exclusive)?;
        // For what others may see, the thread waits, too; that it failed is the lock's.
        window.sync()?;
        ended(lock.get(0, &mut [0u64]))
    };
    vec![
        Case { victim: holds, ..case("queue", lock) },
        Case { victim: shares, ..case("queue", lock) },
        Case { victim: has_all, ..case("queue", lock) },
        Case {
            victim: holds,
            ..case("queue", |_, window| ended(taken(window, Rank(0), LockKind::Shared)))
        },
        Case { victim: holds, ..case("queue", |_, window| ended(window.lock_all())) },
        Case {
            victim: has_all,
            others: |window| forget(window.lock(window.rank(), LockKind::Shared).unwrap()),
            ..case("past the queue", |_, window| {
                ended(taken(window, window.rank().on_ring(1, RANKS), LockKind::Exclusive))
            })
        },
        Case { victim: holds_each, threads: true, ..case("node", crowd) },
        Case { victim: holds, ..far("grant", lock) },
        Case { victim: holds, ..far("grant", read) },
        far("grant", |_, window| ended(taken(window, VICTIM, LockKind::Exclusive))),
        Case {
            victim: holds,
            ..far("lock", |_, window| {
                let patience = Duration::from_secs(3600);
                let lock = window.try_lock_for(Rank(0), LockKind::Exclusive, patience)?;
                ended(lock.unwrap().unlock())
            })
        },
        Case {
            victim: holds,
            ..far("lock", |_, window| {
                ended(window.request_lock(Rank(0), LockKind::Exclusive)?.wait())
            })
        },
        Case { victim: holds, polls: true, ..case("queue", poll_lock) },
        Case { victim: holds, polls: true, ..far("lock", poll_lock) },
    ]
}

fn operations() -> Vec<Case> {
    vec![
        far("rendezvous", |_, window| {
            let epoch = window.lock_all_with(Assert::NO_CHECK)?;
            epoch.put(VICTIM, 0, &vec![1u64; WORDS])?;
            ended(epoch.flush(VICTIM))
        }),
        far("order", |_, window| {
            let epoch = window.lock_all_with(Assert::NO_CHECK)?;
            (0..1000).try_for_each(|_| epoch.accumulate(VICTIM, 0, Op::Sum, &[1.0f64]))?;
            ended(epoch.flush(VICTIM))
        }),
        far("slot", |_, window| {
            let epoch = window.lock_all_with(Assert::NO_CHECK)?;
            (0..1000).try_for_each(|_| epoch.put(VICTIM, 0, &[1u64]))?;
            ended(epoch.flush(VICTIM))
        }),
        far("answer", |_, window| {
            let (epoch, mut got) = (window.lock_all_with(Assert::NO_CHECK)?, [0u64; 5]);
            ended(epoch.ops(|ops| ops.get(VICTIM, 0, &mut got)))
        }),
        far("answer", |_, window| {
            let (epoch, mut got) = (window.lock_all_with(Assert::NO_CHECK)?, [0u64; 5]);
            ended(epoch.ops(|ops| ops.get_accumulate(VICTIM, 0, Op::Sum, &[1; 5], &mut got)))
        }),
        far("answer", |_, window| {
            let (epoch, mut got) = (window.lock_all_with(Assert::NO_CHECK)?, [0u64; 5]);
            ended(epoch.get(VICTIM, 0, &mut got))
        }),
        far("answer", |_, window| {
            let epoch = window.lock_all_with(Assert::NO_CHECK)?;
            ended(epoch.fetch_and_op(VICTIM, 0, Op::Sum, 1u64))
        }),
        far("answer", |_, window| {
            let epoch = window.lock_all_with(Assert::NO_CHECK)?;
            let request = epoch.rget(VICTIM, 0, vec![0u64; 5]).map_err(RmaError::from)?;
            ended(request.wait().map_err(RmaError::from))
        }),
        far("any request", |_, window| {
            let epoch = window.lock_all_with(Assert::NO_CHECK)?;
            let get = || epoch.rget(VICTIM, 0, [7u64; 5]);
            let requests: Result<Vec<_>, _> = [get(), get()].into_iter().collect();
            let mut requests = requests.map_err(RmaError::from)?;
            let (_, first) = Request::wait_any(&mut requests).expect("there are two");
            let (_, second) = Request::wait_any(&mut requests).expect("there is another");
            // Another is refused when it begins, or fails later.
            if let Err(third) = get().and_then(Request::wait) {
                assert_eq!(third.value, [7; 5]);
            }
            ended(first.and(second).map_err(RmaError::from))
        }),
        Case { polls: true, ..far("answer", poll) },
    ]
}

/// Any rank of the window may store a value.
fn values() -> Vec<Case> {
    vec![
        Case {
            anyone: true,
            ..case("value", |_, window| {
                ended(window.local().wait_until(1, |value: u64| value == 77))
            })
        },
        // Until the configuration's deadline.
        Case {
            anyone: true,
            ..case("value", |_, window| {
                let (view, ready) = (window.local(), |_: usize, value: u64| value == 77);
                ended(view.wait_until_any_for(&[1, 2], Duration::MAX, ready))
            })
        },
        Case {
            anyone: true,
            polls: true,
            ..case("value", |_, window| {
                let view = window.local();
                ended((0u64..).try_for_each(|_| view.test(1, |value: u64| value == 77).map(drop)))
            })
        },
    ]
}

fn exchange(universe: &Universe, len: usize) -> Result<(), Box<dyn Error>> {
    ended(universe.world().alltoallv(&vec![vec![0u8; len]; RANKS as usize]))
}

fn broadcast(universe: &Universe, _: &Window) -> Result<(), Box<dyn Error>> {
    let world = universe.world();
    world.bcast(&mut vec![0u64; 1 << 17], Rank(0))?;
    // By messages, some have all without the victim.
    ended(world.barrier())
}

/// Waits for a barrier by looking.
fn poll_barrier(universe: &Universe, _: &Window) -> Result<(), Box<dyn Error>> {
    while universe.world().barrier_for(Duration::ZERO)?.is_pending() {}
    Ok(())
}

/// Waits for an answer by testing.
fn poll(_: &Universe, window: &Window) -> Result<(), Box<dyn Error>> {
    let epoch = window.lock_all_with(Assert::NO_CHECK)?;
    let mut request = epoch.rget(VICTIM, 0, vec![0u64; 5]).map_err(RmaError::from)?;
    while !request.test() {}
    ended(request.wait().map_err(RmaError::from))
}

/// Waits for a lock by testing.
fn poll_lock(_: &Universe, window: &Window) -> Result<(), Box<dyn Error>> {
    let mut request = window.request_lock(Rank(0), LockKind::Exclusive)?;
    while !request.test()? {}
    ended(request.wait())
}

/// A thread for each target: more than may stand in line.
fn crowd(_: &Universe, window: &Window) -> Result<(), Box<dyn Error>> {
    let wait = |target| move || taken(window, Rank(target), LockKind::Exclusive);
    let mut ends: Vec<Result<(), RmaError>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..RANKS).map(|target| scope.spawn(wait(target))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ends.iter().all(Result::is_err), "{ends:?}");
    ended(ends.remove(0))
}

/// Plays one rank. `stay` keeps those that are left until all of them know, and the victim where it
/// stops.
pub fn play(universe: Universe, case: &Case, fate: Fate, stay: &dyn Fn(&Universe)) {
    let world = universe.world();
    let window = world.window(WORDS, 8).allocate().unwrap();
    // Peers have asked for what they need to know of each other.
    let epoch = window.lock_all_with(Assert::NO_CHECK).unwrap();
    world.ranks().for_each(|rank| epoch.put(rank, 0, &[0u64]).unwrap());
    epoch.unlock().unwrap();
    let ready = if world.rank() == VICTIM { case.victim } else { case.others };
    ready(&window);
    // Of the others, one may still be in it when the victim is gone.
    let met = world.barrier();
    if world.rank() == VICTIM {
        met.unwrap();
        match fate {
            Fate::Dies => panic!("{}", crate::failure::ON_PURPOSE),
            Fate::Leaves => {
                drop((window, universe));
                return;
            }
            Fate::Stops => return stay(&universe),
        }
    }
    let end = (case.wait)(&universe, &window);
    judge(case, fate, end);
    stay(&universe);
}

fn judge(case: &Case, fate: Fate, end: Result<(), Box<dyn Error>>) {
    let error = match end {
        Err(error) => error,
        Ok(()) if case.far => return,
        Ok(()) => panic!("{}: what came?", case.name),
    };
    let text = error.to_string();
    assert!(!text.contains("NULL"), "{}: {text}", case.name);
    let to_blame = |world: &WorldRank| world.0 == VICTIM.0;
    let (gone, late) = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(RmaError::PeerFailed { world, .. } | RmaError::PeerLeft { world, .. }), _) => {
            (to_blame(world), false)
        }
        // Its window went before it.
        (Some(RmaError::Freed { target, .. }), _) => (*target == VICTIM, false),
        // Or the thread whose turn it was before was late.
        (Some(RmaError::Timeout { .. } | RmaError::OutOfStep { .. }), _) => (false, true),
        (
            _,
            Some(
                CollectiveError::PeerFailed { world, .. } | CollectiveError::PeerLeft { world, .. },
            ),
        ) => (to_blame(world), false),
        (_, Some(CollectiveError::Timeout { .. } | CollectiveError::OutOfStep { .. })) => {
            (false, true)
        }
        _ => (false, false),
    };
    assert_eq!((gone, late), (fate != Fate::Stops, fate == Fate::Stops), "{}: {text}", case.name);
}
