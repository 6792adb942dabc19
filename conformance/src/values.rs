//! Waiting for a value (OpenSHMEM 1.5, section 9.10).
use crate::help::{near, neighbour, reaches, times, words};
use core::time::Duration;
use rma_core::{
    AtomicElement, Bool, ErrorClass, LockKind, Op, Rank, RmaError, Universe, View, Window,
};
use std::thread;

/// Longer than any value of these cases takes, on a machine that is as slow as can be.
const LONG: Duration = Duration::from_secs(3600);
/// Of a wait for what does not come.
const SHORT: Duration = Duration::from_micros(300);

/// Data that are put and flushed before the flag are there when the flag is seen; around the ring,
/// by each way to store the flag. S-F1 S-M1 S-N5
pub fn by_operations(universe: &Universe) {
    let world = universe.world();
    let (window, right) = (words(world, 40), neighbour(world, 1));
    let (me, view) = (world.rank(), window.local());
    let epoch = window.lock_all().unwrap();
    let tell = |round: u64| {
        epoch.put(right, 1, &[round; 33]).unwrap();
        epoch.flush(right).unwrap();
        match round % 4 {
            0 => epoch.put(right, 0, &[round]).unwrap(),
            1 => _ = epoch.fetch_and_op(right, 0, Op::Sum, 1u64).unwrap(),
            2 => _ = epoch.compare_and_swap(right, 0, round - 1, round).unwrap(),
            _ => epoch.accumulate(right, 0, Op::Replace, &[round]).unwrap(),
        }
        epoch.flush(right).unwrap();
    };
    for round in 1..=times(universe, 200) {
        if me == Rank(0) {
            tell(round);
        }
        let seen = view.wait_until(0, |value: u64| value >= round).unwrap();
        let mut data = [0u64; 33];
        view.read(1, &mut data).unwrap();
        assert_eq!((seen, data), (round, [round; 33]));
        if me > Rank(0) {
            tell(round);
        }
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// Each type of at most eight bytes that can be compared; neighbours of it in memory change
/// meanwhile.
pub fn elements(universe: &Universe) {
    let world = universe.world();
    let (window, right) = (world.window(64, 1).allocate().unwrap(), neighbour(world, 1));
    fn one<E: AtomicElement>(window: &Window, right: Rank, disp: u64, value: E) {
        let epoch = window.lock(right, LockKind::Shared).unwrap();
        epoch.fetch_and_op(disp, Op::Replace, value).unwrap();
        epoch.unlock().unwrap();
        let seen = window.local().wait_until(disp, |seen: E| seen == value);
        assert_eq!(seen.map(AtomicElement::to_bits), Ok(value.to_bits()));
    }
    one(&window, right, 0, 200u8);
    one(&window, right, 1, -3i8);
    one(&window, right, 2, 60_000u16);
    one(&window, right, 4, -30_000i16);
    one(&window, right, 6, Bool::TRUE);
    one(&window, right, 8, u32::MAX);
    one(&window, right, 12, i32::MIN);
    one(&window, right, 16, u64::MAX);
    one(&window, right, 24, i64::MIN);
    one(&window, right, 32, usize::MAX);
    one(&window, right, 40, isize::MIN);
    world.barrier().unwrap();
    window.free().unwrap();
}

/// Any, all and some of several values, which come in an order that each rank knows. S-N5
pub fn of_several(universe: &Universe) {
    let world = universe.world();
    let (window, go) = (words(world, 8), words(world, 1));
    let (view, disps) = (window.local(), [6u64, 1, 3]);
    if world.rank() == Rank(0) {
        let tell = |value: u64| {
            let epoch = go.lock(Rank(1), LockKind::Shared).unwrap();
            epoch.fetch_and_op(0, Op::Replace, value).unwrap();
            epoch.unlock().unwrap();
        };
        let past = |limit: u64| move |_: usize, value: u64| value > limit;
        assert_eq!(view.test_any(&disps, past(0)), Ok(None));
        assert_eq!(view.test_some(&disps, past(0)), Ok(vec![]));
        tell(1);
        assert_eq!(view.wait_until_any(&disps, past(0)), Ok(Some((1, 11))));
        assert_eq!(view.wait_until_some(&disps, past(0)), Ok(vec![(1, 11)]));
        assert_eq!(view.test_all(&disps, past(0)), Ok(None));
        tell(2);
        assert_eq!(view.wait_until_all(&disps, past(0)), Ok(vec![16, 11, 13]));
        assert_eq!(view.test_all(&disps, past(10)), Ok(Some(vec![16, 11, 13])));
        assert_eq!(view.wait_until_some(&disps, past(12)), Ok(vec![(0, 16), (2, 13)]));
        assert_eq!(view.test_some(&disps, |at, _: u64| at == 1), Ok(vec![(1, 11)]));
        // The place in the list chooses what is waited for.
        let wanted = [17, 11, 14];
        assert_eq!(view.test_any(&disps, |at, value: u64| value == wanted[at]), Ok(Some((1, 11))));
        nothing(&view);
    } else if world.rank() == Rank(1) {
        let epoch = window.lock(Rank(0), LockKind::Shared).unwrap();
        go.local().wait_until(0, |value: u64| value >= 1).unwrap();
        epoch.put(1, &[11u64]).unwrap();
        epoch.flush().unwrap();
        go.local().wait_until(0, |value: u64| value >= 2).unwrap();
        epoch.put(3, &[13u64]).unwrap();
        epoch.flush().unwrap();
        epoch.put(6, &[16u64]).unwrap();
        epoch.unlock().unwrap();
    }
    world.barrier().unwrap();
    go.free().unwrap();
    window.free().unwrap();
}

/// A wait for no values is none.
fn nothing(view: &View<'_>) {
    let never = |_: usize, _: u64| false;
    assert_eq!(view.wait_until_any(&[0u64; 0], never), Ok(None));
    assert_eq!(view.wait_until_all(&[0u64; 0], never), Ok(vec![]));
    assert_eq!(view.wait_until_some(&[0u64; 0], never), Ok(vec![]));
    assert_eq!(view.wait_until_any_for(&[0u64; 0], LONG, never), Ok(None));
    assert_eq!(view.wait_until_all_for(&[0u64; 0], LONG, never), Ok(Some(vec![])));
    assert_eq!(view.wait_until_some_for(&[0u64; 0], LONG, never), Ok(vec![]));
    assert_eq!(view.test_any(&[0u64; 0], never), Ok(None));
    assert_eq!(view.test_all(&[0u64; 0], never), Ok(Some(vec![])));
    assert_eq!(view.test_some(&[0u64; 0], never), Ok(vec![]));
}

/// A wait with a limit ends without the value, or with it. S-M6
pub fn timed(universe: &Universe) {
    let world = universe.world();
    let (window, right) = (words(world, 2), neighbour(world, 1));
    let (view, now) = (window.local(), || universe.transport().now());
    for timeout in [Duration::ZERO, SHORT] {
        let before = now();
        assert_eq!(view.wait_until_for(1, timeout, |value: u64| value != 0), Ok(None));
        assert!(now() - before >= timeout);
        let never = |_: usize, value: u64| value != 0;
        assert_eq!(view.wait_until_any_for(&[1, 0], timeout, never), Ok(None));
        assert_eq!(view.wait_until_some_for(&[1, 0], timeout, never), Ok(vec![]));
        assert_eq!(view.wait_until_all_for(&[1, 0], timeout, never), Ok(None));
        assert!(now() - before >= 4 * timeout);
    }
    world.barrier().unwrap();
    let epoch = window.lock_all().unwrap();
    epoch.put(right, 1, &[5u64]).unwrap();
    epoch.unlock().unwrap();
    assert_eq!(view.wait_until_for(1, LONG, |value: u64| value != 0), Ok(Some(5)));
    assert_eq!(view.wait_until_for(1, Duration::ZERO, |value: u64| value != 0), Ok(Some(5)));
    for timeout in [Duration::ZERO, LONG] {
        let there = |_: usize, value: u64| value != 0;
        assert_eq!(view.wait_until_any_for(&[0, 1], timeout, there), Ok(Some((1, 5))));
        assert_eq!(view.wait_until_some_for(&[1, 0, 1], timeout, there), Ok(vec![(0, 5), (2, 5)]));
        assert_eq!(view.wait_until_all_for(&[1, 1], timeout, there), Ok(Some(vec![5, 5])));
    }
    // One of two is not there in time.
    let there = |_: usize, value: u64| value != 0;
    assert_eq!(view.wait_until_all_for(&[1, 0], SHORT, there), Ok(None));
    window.free().unwrap();
}

/// A rank that tests again and again, and calls nothing else, serves what comes by messages. S-N5
pub fn tested(universe: &Universe) {
    let world = universe.world();
    let (window, right) = (words(world, 2), neighbour(world, 1));
    let view = window.local();
    for round in 1..=times(universe, 100) {
        let epoch = window.lock(right, LockKind::Shared).unwrap();
        epoch.put(1, &[round]).unwrap();
        epoch.unlock().unwrap();
        while view.test(1, |value: u64| value >= round).unwrap().is_none() {
            thread::yield_now();
        }
        world.barrier().unwrap();
    }
    window.free().unwrap();
}

/// Each handle of a rank makes the same progress.
pub fn served(universe: &Universe) {
    let world = universe.world();
    let (window, view_of) = (words(world, 1), words(world, 1));
    let view = view_of.local();
    let rounds = [
        &(|| universe.progress()) as &dyn Fn() -> usize,
        &|| world.progress(),
        &|| window.progress(),
        &|| view.progress(),
    ];
    for (round, progress) in (1u64..).zip(rounds) {
        if world.rank() == Rank(0) {
            let epoch = window.lock(Rank(1), LockKind::Shared).unwrap();
            epoch.put(0, &[round]).unwrap();
            epoch.unlock().unwrap();
        } else {
            while world.rank() == Rank(1) && window.local().load(0) != Ok(round) {
                _ = progress();
                thread::yield_now();
            }
        }
        world.barrier().unwrap();
    }
    view_of.free().unwrap();
    window.free().unwrap();
}

/// What is not there cannot be waited for, nor what no load reads at once.
pub fn refused(universe: &Universe) {
    let world = universe.world();
    let window = world.window(20, 1).allocate().unwrap();
    let (view, rank, id) = (window.local(), world.rank(), window.id());
    let ready = |_: u32| true;
    for disp in [17, 20, u64::MAX] {
        let error = view.wait_until(disp, ready).unwrap_err();
        assert_eq!(error.class(), ErrorClass::RmaRange, "{error}");
        assert_eq!(view.test(disp, ready), Err(error));
        let several = view.wait_until_any(&[0, disp], |_, _: u32| true);
        assert_eq!(several.unwrap_err().class(), ErrorClass::RmaRange);
    }
    for disp in [1, 2, 15] {
        let misaligned = RmaError::Misaligned { window: id, target: rank, disp, width: 4 };
        assert_eq!(view.wait_until(disp, ready), Err(misaligned));
        assert_eq!(view.wait_until_for(disp, SHORT, ready), Err(misaligned));
        let several = view.wait_until_any_for(&[0, disp], SHORT, |_, _: u32| true);
        assert_eq!(several, Err(misaligned));
        assert_eq!(view.wait_until_all(&[0, disp], |_, _: u32| true), Err(misaligned));
        assert_eq!(view.test_some(&[disp], |_, _: u32| true), Err(misaligned));
    }
    assert_eq!(view.wait_until(16, ready), Ok(0));
    if near(universe) && reaches(universe, rank) {
        let other = window.shared_query(neighbour(world, 1)).unwrap();
        let target = other.rank();
        let misaligned = RmaError::Misaligned { window: id, target, disp: 2, width: 4 };
        assert_eq!(other.wait_until(2, ready), Err(misaligned));
    }
    window.free().unwrap();
}
