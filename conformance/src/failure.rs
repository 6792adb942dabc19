//! Ranks that panic or leave: the others are told, and none waits for ever.
use crate::Harness;
use crate::help::{local_words, locked, neighbour, says, taken, times, words};
use core::mem::forget;
use core::time::Duration;
use rma_core::transport::{DeviceError, WorldRank};
use rma_core::{
    Assert, CollectiveError, Communicator, ErrorClass, LockKind, Op, Rank, RmaError, Universe,
    Window, WindowError,
};

/// What the panic of the victim says.
pub const ON_PURPOSE: &str = "this rank panics on purpose";

/// Not the first and not the last.
const VICTIM: u32 = 1;

/// Runs a case in which one rank panics.
pub fn run<H: Harness>(test: &str, ranks: u32, case: fn(&Universe)) {
    H::run_failing(test, ranks, VICTIM, &|universe| case(&universe));
}

/// Whether this rank is the one to panic. It comes here last: the others have done what was before.
fn is_victim(universe: &Universe) -> bool {
    universe.world().gatherv(&[0u8], Rank(VICTIM)).unwrap().is_some()
}

fn die() -> ! {
    panic!("{ON_PURPOSE}");
}

/// Fails unless the victim is blamed, or a survivor that has gone home already because of it.
fn expect_collective(error: CollectiveError) {
    assert_eq!(error.class(), ErrorClass::ProcFailed, "{error}");
    match error {
        CollectiveError::PeerFailed { world, .. } => {
            assert_eq!(world, WorldRank(VICTIM));
            says(&error, &["rank 1 of the job failed"]);
        }
        CollectiveError::PeerLeft { world, .. } => assert_ne!(world, WorldRank(VICTIM)),
        other => panic!("{other}"),
    }
}

/// As [`expect_collective`].
fn expect_rma(error: RmaError, window: &Window) {
    // A survivor on its way home drops the window first.
    if let RmaError::Freed { target, .. } = error {
        assert_ne!(target, Rank(VICTIM));
        return;
    }
    assert_eq!(error.class(), ErrorClass::ProcFailed, "{error}");
    says(&error, &[&window.id().to_string()]);
    match error {
        RmaError::PeerFailed { world, .. } => {
            assert_eq!(world, WorldRank(VICTIM));
            says(&error, &["rank 1 of the job failed"]);
        }
        RmaError::PeerLeft { world, .. } => assert_ne!(world, WorldRank(VICTIM)),
        // A device may notice before the news is here.
        RmaError::Device { error: DeviceError::Unreachable(_), .. } => {}
        other => panic!("{other}"),
    }
}

/// Repeats what must fail sooner or later.
fn until_it_fails<E>(mut what: impl FnMut() -> Result<(), E>) -> E {
    loop {
        if let Err(error) = what() {
            return error;
        }
    }
}

/// The others wait in a barrier; every later barrier fails too.
pub fn in_a_barrier(universe: &Universe) {
    if is_victim(universe) {
        die();
    }
    for _ in 0..3 {
        expect_collective(universe.world().barrier().unwrap_err());
    }
}

/// The others wait in a barrier that each of them takes up again and again.
pub fn in_a_timed_barrier(universe: &Universe) {
    let world = universe.world();
    if is_victim(universe) {
        die();
    }
    let timeout = Duration::from_micros(u64::from(world.rank().0) * 100);
    expect_collective(until_it_fails(|| world.barrier_for(timeout).map(drop)));
    expect_collective(world.barrier_for(Duration::MAX).unwrap_err());
}

/// The others wait in a collective with data, of whatever root.
pub fn in_a_collective(universe: &Universe) {
    let world = universe.world();
    if is_victim(universe) {
        die();
    }
    expect_collective(until_it_fails(|| world.allreduce(&[1u64], Op::Sum).map(drop)));
    expect_collective(until_it_fails(|| world.allgather(&[1u64; 5]).map(drop)));
    expect_collective(until_it_fails(|| world.scan(&[1u64], Op::Sum).map(drop)));
    expect_collective(until_it_fails(|| world.alltoall_in_place(&mut [1u64; 20])));
    for root in world.ranks() {
        expect_collective(until_it_fails(|| world.bcast(&mut [1u64], root)));
        let all = vec![1u64; world.size() as usize];
        expect_collective(until_it_fails(|| world.scatter(&all, root).map(drop)));
    }
}

/// The others are in the middle of a collective with much data, which passes in pieces: each in a
/// communicator of its own, for one that has failed goes by messages.
pub fn in_a_large_collective(universe: &Universe) {
    let world = universe.world();
    let mine = vec![1u64; 100_000];
    let mut all = mine.repeat(world.size() as usize);
    let comms: Vec<_> = (0..12).map(|_| world.dup().unwrap()).collect();
    if is_victim(universe) {
        die();
    }
    for (root, comms) in [Rank(0), Rank(VICTIM)].into_iter().zip(comms.chunks(4)) {
        expect_collective(until_it_fails(|| comms[0].bcast(&mut mine.clone(), root)));
        expect_collective(until_it_fails(|| comms[1].scatter(&all, root).map(drop)));
        expect_collective(until_it_fails(|| comms[2].gather(&mine, root).map(drop)));
        expect_collective(until_it_fails(|| comms[3].reduce(&mine, Op::Sum, root).map(drop)));
    }
    expect_collective(until_it_fails(|| comms[8].allreduce(&mine, Op::Sum).map(drop)));
    expect_collective(until_it_fails(|| comms[9].allgather_in_place(&mut all)));
    expect_collective(until_it_fails(|| comms[10].alltoall(&all).map(drop)));
    expect_collective(until_it_fails(|| comms[11].scan(&mine, Op::Sum).map(drop)));
}

/// The others wait in a fence.
pub fn in_a_fence(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let epoch = window.fence(Assert::NONE).unwrap();
    if is_victim(universe) {
        die();
    }
    // To a rank that is there, or to the victim: both may succeed or fail.
    _ = epoch.put(neighbour(world, 1), 0, &[1u64]);
    expect_rma(epoch.end().unwrap_err(), &window);
    expect_rma(window.fence(Assert::NONE).err().unwrap(), &window);
}

/// The others wait for a lock that a healthy rank holds, and never gives back.
pub fn in_a_lock(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    if world.rank() == Rank(0) {
        forget(locked(&window, Rank(0), LockKind::Exclusive));
    }
    world.barrier().unwrap();
    if is_victim(universe) {
        die();
    }
    if world.rank() == Rank(0) {
        expect_collective(world.barrier().unwrap_err());
    } else {
        expect_rma(taken(&window, Rank(0), LockKind::Shared).unwrap_err(), &window);
    }
}

/// The victim itself holds the lock.
pub fn holding_a_lock(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    if world.rank() == Rank(VICTIM) {
        forget(locked(&window, Rank(0), LockKind::Exclusive));
    }
    world.barrier().unwrap();
    if is_victim(universe) {
        die();
    }
    expect_rma(taken(&window, Rank(0), LockKind::Exclusive).unwrap_err(), &window);
    expect_rma(taken(&window, Rank(0), LockKind::Shared).unwrap_err(), &window);
}

/// The others are making a window.
pub fn in_an_allocation(universe: &Universe) {
    let world = universe.world();
    if is_victim(universe) {
        die();
    }
    let error = world.window(1, 8).allocate().err().unwrap();
    assert_eq!(error.class(), ErrorClass::ProcFailed);
    let WindowError::Collective(error) = error else { panic!("{error}") };
    expect_collective(error);
}

/// As [`in_an_allocation`], after a window that all have made and freed: ranks that know the id of
/// the next one make their parts before they meet.
pub fn in_a_later_allocation(universe: &Universe) {
    let world = universe.world();
    for _ in 0..2 {
        words(world, 1).free().unwrap();
    }
    if is_victim(universe) {
        die();
    }
    // Again and again: what was made in vain is given back.
    for _ in 0..3 {
        let error = world.window(1, 8).allocate().err().unwrap();
        assert_eq!(error.class(), ErrorClass::ProcFailed);
        let WindowError::Collective(error) = error else { panic!("{error}") };
        expect_collective(error);
    }
}

/// The others free a window.
pub fn in_a_free(universe: &Universe) {
    let window = words(universe.world(), 1);
    if is_victim(universe) {
        die();
    }
    let id = window.id().to_string();
    let refused = window.free().unwrap_err();
    assert!(refused.value.is_none(), "some may have freed it");
    assert_eq!(refused.error.class(), ErrorClass::ProcFailed, "{}", refused.error);
    says(&refused.error, &[&id]);
}

/// The others operate on the victim's part: what is told as complete is, and the rest fails.
pub fn in_operations(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 4);
    let epoch = window.lock_all().unwrap();
    epoch.put(Rank(VICTIM), 0, &[1u64]).unwrap();
    epoch.flush(Rank(VICTIM)).unwrap();
    if is_victim(universe) {
        die();
    }
    for _ in 0..20 {
        let mut got = [0u64; 3];
        let get = epoch.get(Rank(VICTIM), 1, &mut got);
        let put = epoch.put(Rank(VICTIM), 1, &[0u64; 3]);
        let flush = epoch.flush(Rank(VICTIM));
        let sum = epoch.fetch_and_op(Rank(VICTIM), 0, Op::Sum, 1u64).map(drop);
        let swap = epoch.compare_and_swap(Rank(VICTIM), 1, 1u64, 2).map(drop);
        let scope = epoch.ops(|ops| ops.get(Rank(VICTIM), 1, &mut got));
        for result in [get, put, flush, sum, swap, scope] {
            result.err().into_iter().for_each(|error| expect_rma(error, &window));
        }
        assert_eq!(got, [0; 3]);
    }
    // Load and store need no help of the target, so the end may come without an error.
    epoch.unlock().err().into_iter().for_each(|error| expect_rma(error, &window));
    expect_collective(until_it_fails(|| world.barrier()));
}

/// The others put and get a lot, to and from the victim and each other: none waits for
/// bytes that a target cleared for the victim, or for what the victim owes.
pub fn in_large_operations(universe: &Universe) {
    let world = universe.world();
    let len = if cfg!(miri) { 20_000 } else { 300_000 };
    let window = world.window(len, 1).allocate().unwrap();
    let epoch = window.lock_all().unwrap();
    let (right, mut bytes) = (neighbour(world, 1), vec![1u8; len]);
    epoch.put(right, 0, &bytes).unwrap();
    epoch.flush(right).unwrap();
    if is_victim(universe) {
        // On its way, or granted to it, when it dies.
        epoch.put(right, 0, &bytes).unwrap();
        die();
    }
    for i in 0..12 {
        let target = neighbour(world, i);
        let put = epoch.put(target, 0, &bytes);
        let get = epoch.get(target, 0, &mut bytes);
        let flush = epoch.flush(target);
        for result in [put, get, flush] {
            result.err().into_iter().for_each(|error| expect_rma(error, &window));
        }
    }
    epoch.unlock().err().into_iter().for_each(|error| expect_rma(error, &window));
    expect_collective(until_it_fails(|| world.barrier()));
}

/// The others wait for the victim's post, in an operation and at the end of the epoch.
pub fn in_a_start(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let epoch = window.start(&[Rank(VICTIM)], Assert::NONE).unwrap();
    if is_victim(universe) {
        die();
    }
    expect_rma(epoch.put(Rank(VICTIM), 0, &[1u64]).unwrap_err(), &window);
    expect_rma(epoch.complete().unwrap_err(), &window);
}

/// The others wait for the victim's complete; a healthy origin has completed, or not.
pub fn in_an_exposure(universe: &Universe) {
    let world = universe.world();
    let (window, tested) = (words(world, 1), words(world, 1));
    let all: Vec<Rank> = world.ranks().collect();
    let exposure = window.post(&all, Assert::NONE).unwrap();
    let mut polled = tested.post(&[Rank(VICTIM)], Assert::NONE).unwrap();
    if is_victim(universe) {
        die();
    }
    expect_rma(exposure.wait().unwrap_err(), &window);
    let error = loop {
        match polled.test() {
            Ok(result) => break result.unwrap_err(),
            Err(again) => polled = again,
        }
    };
    expect_rma(error, &tested);
    // The victim may have written until it died: the part is not the owner's alone again.
    let error = window.post(&all, Assert::NONE).err().unwrap();
    assert_eq!(error.class(), ErrorClass::RmaSync);
}

/// The others wait for a value that the victim, or any other rank, could store.
pub fn waiting_for_a_value(universe: &Universe) {
    let window = words(universe.world(), 2);
    if is_victim(universe) {
        die();
    }
    let (view, never) = (window.local(), |value: u64| value == 77);
    let long = Duration::from_secs(3600);
    expect_rma(view.wait_until(0, never).unwrap_err(), &window);
    expect_rma(view.wait_until_for(1, long, never).unwrap_err(), &window);
    let some = view.wait_until_some(&[0, 1], |_, value| never(value));
    expect_rma(some.unwrap_err(), &window);
    expect_rma(view.test(0, never).unwrap_err(), &window);
    // What is there is not lost.
    assert_eq!(view.wait_until(0, |value: u64| value == 0), Ok(0));
}

/// Of three ranks, two leave in order: a value may come as long as one is there, and no longer.
/// S-M8
pub fn run_leaving_alone<H: Harness>(test: &str) {
    H::run(test, 3, &|universe| {
        let world = universe.world().clone();
        let window = words(&world, 2);
        world.barrier().unwrap();
        let me = u64::from(world.rank());
        if me > 0 {
            let epoch = window.lock(Rank(0), LockKind::Shared).unwrap();
            epoch.put(me - 1, &[me]).unwrap();
            epoch.unlock().unwrap();
            drop((window, universe));
            return;
        }
        let view = window.local();
        for me in [1, 2] {
            assert_eq!(view.wait_until(me - 1, |value: u64| value == me), Ok(me));
        }
        let never = |value: u64| value == 77;
        let tested = until_it_fails(|| view.test(0, never).map(drop));
        for error in [tested, view.wait_until(0, never).unwrap_err()] {
            let RmaError::PeerLeft { world, window: id, .. } = error else { panic!("{error}") };
            assert!(world.0 > 0 && id == window.id());
            says(&error, &["of the job has left", "a wait for a value can never end"]);
        }
        assert_eq!(view.test(1, |value: u64| value == 2), Ok(Some(2)));
    });
}

/// One of two ranks leaves in order, and neither posts nor completes: the other is told.
pub fn run_leaving_a_pair<H: Harness>(test: &str) {
    H::run(test, 2, &|universe| {
        let world = universe.world().clone();
        let (window, tested) = (words(&world, 1), words(&world, 1));
        if world.rank() == Rank(1) {
            world.barrier().unwrap();
            drop((window, tested, universe));
            return;
        }
        let partner = [Rank(1)];
        let epoch = window.start(&partner, Assert::NONE).unwrap();
        let exposure = window.post(&partner, Assert::NONE).unwrap();
        let mut polled = tested.post(&partner, Assert::NONE).unwrap();
        world.barrier().unwrap();
        let error = loop {
            match polled.test() {
                Ok(result) => break result.unwrap_err(),
                Err(again) => polled = again,
            }
        };
        let put = epoch.put(Rank(1), 0, &[1u64]);
        for error in [Err(error), put, epoch.complete(), exposure.wait()].map(Result::unwrap_err) {
            let RmaError::PeerLeft { world, .. } = error else { panic!("{error}") };
            assert_eq!((world, error.class()), (WorldRank(1), ErrorClass::ProcFailed));
            says(&error, &["rank 1 of the job has left", "the wait for", "finalize"]);
        }
    });
}

/// One of three ranks has finished and leaves, while the others go on with each other. S-M8
pub fn run_working_on<H: Harness>(test: &str) {
    H::run(test, 3, &|universe| {
        let rank = universe.world().rank();
        let pair = universe.world().split((rank < Rank(2)).then_some(0), 0).unwrap();
        let Some(pair) = pair else {
            drop(universe);
            return;
        };
        let other = neighbour(&pair, 1);
        for round in 1..=times(&universe, 100) {
            let window = words(&pair, 200);
            let epoch = window.lock_all().unwrap();
            epoch.put(other, 0, &[round + u64::from(other); 200]).unwrap();
            epoch.flush(other).unwrap();
            assert_eq!(epoch.fetch_and_op(other, 0, Op::Sum, 5u64), Ok(round + u64::from(other)));
            epoch.unlock().unwrap();
            pair.barrier().unwrap();
            let mine = round + u64::from(pair.rank());
            let mut expected = [mine; 200];
            expected[0] += 5;
            assert_eq!(local_words(&window), expected);
            window.free().unwrap();
        }
    });
}

/// One of two ranks leaves in order, too early: the other is told, in every wait.
pub fn run_leaving<H: Harness>(test: &str) {
    H::run(test, 2, &|universe| {
        let world = universe.world().clone();
        let window = words(&world, 1);
        world.barrier().unwrap();
        if world.rank() == Rank(1) {
            drop((window, universe));
            return;
        }
        for _ in 0..3 {
            let error = world.barrier().unwrap_err();
            let CollectiveError::PeerLeft { world, .. } = error else { panic!("{error}") };
            assert_eq!((world, error.class()), (WorldRank(1), ErrorClass::ProcFailed));
            says(&error, &["rank 1 of the job has left", "same order"]);
        }
        let error = window.fence(Assert::NONE).err().unwrap();
        let RmaError::PeerLeft { world, window: id, .. } = error else { panic!("{error}") };
        assert_eq!((world, id), (WorldRank(1), window.id()));
        assert_eq!(error.class(), ErrorClass::ProcFailed);
        says(&error, &["rank 1 of the job has left", &id.to_string(), "finalize"]);
    });
}

/// Makes every rank lose its lane. All have heard of the failure then.
fn lose_lanes(world: &Communicator, comm: &Communicator) {
    let len = if comm.rank() == Rank(VICTIM) { 2000 } else { 3000 };
    comm.allgather(&vec![1u64; len]).unwrap_err();
    world.barrier().unwrap();
}

/// A broadcast of much data goes by a tree, and its root has left when some of them come to it.
pub fn run_leaving_a_tree<H: Harness>(test: &str) {
    H::run(test, 4, &|universe| {
        let world = universe.world().clone();
        let [comm, other] = [(); 2].map(|()| world.dup().unwrap());
        lose_lanes(&world, &comm);
        let rank = world.rank();
        if rank == Rank(2) {
            // The root never comes to this one.
            let error = other.bcast(&mut [0u64], Rank(0)).unwrap_err();
            assert!(matches!(error, CollectiveError::PeerLeft { .. }), "{error}");
        }
        let mut buffer = vec![u64::from(rank) + 7; 2000];
        comm.bcast(&mut buffer, Rank(0)).unwrap();
        assert_eq!(buffer, [7; 2000]);
        drop(universe);
    });
}

/// In such a broadcast, one of the ranks that pass the data on leaves without it. The one behind it
/// is told while the root is still there.
pub fn run_leaving_inside_a_tree<H: Harness>(test: &str) {
    H::run(test, 4, &|universe| {
        let world = universe.world().clone();
        let comm = world.dup().unwrap();
        let is_last = |rank: Rank| (1..3).contains(&rank.0);
        let last = world.split(is_last(world.rank()).then_some(0), 0).unwrap();
        let others = world.split((world.rank() != Rank(2)).then_some(0), 0).unwrap();
        lose_lanes(&world, &comm);
        let mut bytes = vec![u64::from(world.rank()); 2000];
        let Some(others) = others else {
            last.unwrap().barrier().unwrap();
            drop(universe);
            return;
        };
        let end = comm.bcast(&mut bytes, Rank(0));
        if world.rank() == Rank(3) {
            let error = end.unwrap_err();
            let CollectiveError::PeerLeft { world, .. } = error else { panic!("{error}") };
            assert_eq!(world, WorldRank(2));
        } else {
            end.unwrap();
        }
        // The last one that the root sends to.
        if let Some(last) = last {
            last.barrier().unwrap();
        }
        others.barrier().unwrap();
    });
}
