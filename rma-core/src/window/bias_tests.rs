//! Parts at which one thread combines alone, and what others do that come.
use super::Window;
use crate::element::{BasicType, Op};
use crate::engine::Engine;
use crate::epoch::{Assert, LockAll};
use crate::error::RmaError;
use crate::group::Group;
use crate::layout::Layout;
use crate::memory::accumulate::Integers;
use crate::memory::bias::{self, Admission, Mechanism, Note};
use crate::memory::control_block::{ControlBlock, STRIPES};
use crate::memory::stripe;
use crate::memory::target::{Permit, Target};
use crate::protocol::message::{Head, Kind, Status};
use crate::rank::{Rank, WorldRank};
use crate::serve::Combined;
use crate::sync::LockKind;
use crate::transport::{ImportError, PeerState};
use crate::window::accumulate_tests::{Loop, asleep_in, with_bias};
use core::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::Arc;
use std::thread;

const ME: Rank = Rank(0);
const OTHER: Rank = Rank(1);

fn block(window: &Window) -> ControlBlock<'_> {
    window.part.block.get()
}

/// Which rank's thread has the bias of the part; `None` if all combine.
fn holder(window: &Window) -> Option<Rank> {
    bias::holder(block(window))
}

/// Calls `test` in an epoch of a window of one part; `near`: not by messages.
fn with_epoch(near: bool, test: impl FnOnce(&Window, &LockAll<'_>, &Loop)) {
    with_bias(near, |universe, network| {
        let window = universe.world().window(4096, 8).allocate().unwrap();
        let epoch = window.lock_all().unwrap();
        test(&window, &epoch, network);
        epoch.unlock().unwrap();
        window.free().unwrap();
    });
}

fn in_another_thread(act: impl FnOnce() + Send) {
    thread::scope(|scope| {
        scope.spawn(act);
    });
}

/// Whether all are known to combine at a part.
fn takes_stripes(entry: &Target) -> bool {
    matches!(entry.mechanism(BasicType::F64, ME), Some(Mechanism::Stripes))
}

/// Whatever the machine has, as if it combined no array by one atomic operation.
fn as_they_come(engine: &Engine, window: &mut Window) {
    engine.own_windows().remove(window.id());
    Arc::get_mut(&mut window.part).unwrap().integers = Integers::AsTheyCome;
    engine.own_windows().add(window.id().0, &window.part);
}

/// As [`with_epoch`], of a window whose integers are combined as they come.
fn with_epoch_as_they_come(test: impl FnOnce(&Window, &LockAll<'_>)) {
    with_bias(true, |universe, _| {
        let mut window = universe.world().window(1024, 8).allocate().unwrap();
        as_they_come(universe.engine(), &mut window);
        let epoch = window.lock_all().unwrap();
        test(&window, &epoch);
        epoch.unlock().unwrap();
        window.free().unwrap();
    });
}

/// Of two ranks, as far as this one's part knows.
fn as_one_of_two(engine: &Engine, window: &mut Window) {
    engine.own_windows().remove(window.id());
    let part = Arc::get_mut(&mut window.part).unwrap();
    Arc::get_mut(&mut part.comm.inner).unwrap().group = Group::world(2);
    engine.own_windows().add(window.id().0, &window.part);
}

#[test]
fn what_one_thread_combines_takes_no_lock() {
    with_epoch(true, |window, epoch, _| {
        // Nothing that is done alone asks for one.
        let all = stripe::try_range(block(window), &(0..1 << 20), OTHER).unwrap();
        let at = |disp: u64| window.local().load::<i64>(disp).unwrap();
        let many = vec![1i64; if cfg!(miri) { 30 } else { 3000 }];
        for _ in 0..2 {
            epoch.accumulate(ME, 1, Op::Sum, &[2i64, 3, 4]).unwrap();
            epoch.accumulate(ME, 8, Op::Sum, &[1.5f64; 9]).unwrap();
            epoch.accumulate(ME, 30, Op::Sum, &[0.5f64]).unwrap();
            // Longer than a stripe.
            epoch.accumulate(ME, 1000, Op::Sum, &many).unwrap();
        }
        assert_eq!(holder(window), Some(ME));
        assert_eq!(epoch.fetch_and_op(ME, 1, Op::Sum, 5i64), Ok(4));
        assert_eq!(epoch.compare_and_swap(ME, 2, 6i64, 7), Ok(6));
        assert_eq!(window.local().fetch_and_op(3, Op::Sum, 1i64), Ok(8));
        assert_eq!((at(1), at(2), at(3), at(999 + many.len() as u64)), (9, 7, 9, 2));
        assert_eq!(window.local().load::<f64>(16), Ok(3.0));
        assert_eq!(window.local().load::<f64>(30), Ok(1.0));
        drop(all);
    });
}

/// The thread that is second takes the bias from the first, for as long as the window lives.
#[test]
fn another_thread_of_the_rank_is_another_holder() {
    with_bias(true, |universe, _| {
        let window = universe.world().window(8, 8).allocate().unwrap();
        let epoch = window.lock_all().unwrap();
        epoch.accumulate(ME, 0, Op::Sum, &[1i64; 8]).unwrap();
        assert_eq!(holder(&window), Some(ME));
        in_another_thread(|| epoch.accumulate(ME, 0, Op::Sum, &[1i64; 8]).unwrap());
        assert_eq!(holder(&window), None);
        epoch.accumulate(ME, 0, Op::Sum, &[1i64; 8]).unwrap();
        epoch.accumulate(ME, 0, Op::Sum, &[1i64]).unwrap();
        assert_eq!(holder(&window), None, "not taken again");
        assert_eq!(window.local().load(0), Ok(4i64));
        assert_eq!(window.local().load(7), Ok(3i64));
        epoch.unlock().unwrap();
        let next = universe.world().window(8, 8).allocate().unwrap();
        assert!(matches!(next.part.admit(block(&next)), Ok(Admission::Alone(_))));
        next.free().unwrap();
        window.free().unwrap();
    });
}

/// Every call waits for a holder that is in the middle of something, and wakes up by itself.
#[test]
fn a_wait_for_the_holder_ends_when_it_is_done() {
    with_epoch(true, |window, epoch, _| {
        let while_busy = |operation: &dyn Fn() -> i64| {
            bias::hold_as(block(window), OTHER, true);
            window.targets.set_bias(ME, Note::NOTHING);
            let busy = block(window).busy();
            // pairs with the Acquire load in `bias::admit`.
            asleep_in(window.engine(), || busy.store(0, Release), operation)
        };
        assert_eq!(while_busy(&|| epoch.fetch_and_op(ME, 0, Op::Sum, 2i64).unwrap()), 0);
        assert_eq!(while_busy(&|| epoch.compare_and_swap(ME, 0, 2i64, 3).unwrap()), 2);
        let local = || window.local().fetch_and_op(0, Op::Sum, 1i64).unwrap();
        assert_eq!(while_busy(&local), 3);
        let array = || {
            let mut old = [0i64; 8];
            epoch.get_accumulate(ME, 0, Op::Sum, &[1i64; 8], &mut old).unwrap();
            old[0]
        };
        assert_eq!(while_busy(&array), 4);
        let one = Layout::element::<i64>();
        let layout = one.vector(2, 1, 4).unwrap();
        let column = || {
            epoch.accumulate(ME, layout.at(0), Op::Sum, one.times(2).of(&[1i64; 2])).unwrap();
            1
        };
        assert_eq!(while_busy(&column), 1);
        assert_eq!(window.local().load(0), Ok(6i64));
        assert_eq!(window.local().load(4), Ok(2i64));
        assert_eq!(holder(window), None);
    });
}

/// A holder that has gone in the middle of something ends the wait for it.
#[test]
fn a_wait_for_the_holder_ends_when_it_is_gone() {
    for gone in [PeerState::Departed, PeerState::Failed] {
        with_bias(true, |universe, network| {
            let mut window = universe.world().window(8, 8).allocate().unwrap();
            as_one_of_two(universe.engine(), &mut window);
            let epoch = window.lock_all().unwrap();
            bias::hold_as(block(&window), OTHER, true);
            network.set_state(WorldRank(OTHER.0), gone);
            let ends = [
                epoch.accumulate(ME, 0, Op::Sum, &[1i64; 8]).unwrap_err(),
                epoch.fetch_and_op(ME, 0, Op::Sum, 1i64).unwrap_err(),
            ];
            for end in ends {
                let is_it = match gone {
                    PeerState::Departed => {
                        matches!(end, RmaError::PeerLeft { world, .. } if world.0 == 1)
                    }
                    _ => matches!(end, RmaError::PeerFailed { world, .. } if world.0 == 1),
                };
                assert!(is_it, "{end}");
            }
            assert_eq!(window.local().load(0), Ok(0i64));
            drop(epoch);
        });
    }
}

/// A handler does not wait: what comes while the holder is in the middle of something is put off,
/// and ends if the holder has left.
#[test]
fn messages_are_put_off_while_the_holder_is_busy() {
    with_bias(false, |universe, network| {
        let mut window = universe.world().window(1, 8).allocate().unwrap();
        let (engine, id) = (universe.engine(), window.id());
        as_one_of_two(engine, &mut window);
        let mut head = Head::new(Kind::Accumulate, id.0, 0);
        (head.basic, head.op, head.length) = (BasicType::I64.to_wire(), Op::Sum as u8, 8.into());
        let one = [head.as_bytes(), &1i64.to_le_bytes()].concat();
        bias::hold_as(block(&window), OTHER, true);
        network.arrive(one.clone());
        engine.progress();
        assert_eq!((engine.retry_deferred(), window.local().load(0)), (0, Ok(0i64)));
        assert_eq!((engine.retry_deferred(), engine.retry_deferred()), (0, 0));
        assert_eq!(network.fences.load(Relaxed), 1, "one for all looks");
        block(&window).busy().store(0, Release);
        assert_eq!((engine.retry_deferred(), window.local().load(0)), (1, Ok(1i64)));
        assert_eq!(holder(&window), None);
        network.take_sent();

        bias::hold_as(block(&window), OTHER, true);
        network.arrive(one);
        engine.progress();
        assert_eq!(engine.retry_deferred(), 0);
        network.set_state(WorldRank(OTHER.0), PeerState::Departed);
        assert_eq!(engine.retry_deferred(), 1);
        let sent = network.take_sent();
        let answers: Vec<_> = sent.iter().map(|bytes| Head::parse(bytes).unwrap().0).collect();
        assert_eq!(answers.len(), 1);
        assert_eq!((answers[0].status(), answers[0].offset), (Some(Status::HolderLeft), 1.into()));
        assert_eq!(window.local().load(0), Ok(1i64));
    });
}

/// The holder is done and leaves after a message has found it busy: nothing is kept for ever, so
/// the message is put off once more, and then done.
#[test]
fn a_holder_that_was_done_before_it_left_keeps_nothing() {
    with_bias(false, |universe, network| {
        let mut window = universe.world().window(1, 8).allocate().unwrap();
        let engine = universe.engine();
        as_one_of_two(engine, &mut window);
        bias::hold_as(block(&window), OTHER, true);
        assert!(matches!(window.part.admit(block(&window)), Ok(Admission::Busy)));
        let left = || engine.has_left_with(&window.part, &(0..8));
        assert_eq!(left(), None, "it is there");
        network.set_state(WorldRank(OTHER.0), PeerState::Departed);
        assert_eq!(left(), Some(WorldRank(OTHER.0)));
        block(&window).busy().store(0, Release);
        assert_eq!(left(), None);
        assert!(matches!(window.part.admit(block(&window)), Ok(Admission::Shared(_))));
    });
}

/// A thread for which there is no token takes no bias, and revokes that of another.
#[test]
fn a_thread_without_a_token_is_never_alone() {
    with_epoch(true, |window, epoch, network| {
        let fence_all = || network.fences.fetch_add(1, Relaxed);
        let admit = || {
            bias::admit(block(window), None, Integers::ByAtomics, || Ok::<_, ()>(_ = fence_all()))
        };
        epoch.accumulate(ME, 0, Op::Sum, &[1i64; 8]).unwrap();
        assert_eq!(holder(window), Some(ME));
        assert!(matches!(admit(), Ok(Admission::Shared(_))));
        assert_eq!((holder(window), network.fences.load(Relaxed)), (None, 1));
        block(window).bias().store(0, Relaxed);
        assert!(matches!(admit(), Ok(Admission::Shared(_))), "the first to come");
        assert_eq!((holder(window), network.fences.load(Relaxed)), (None, 1));
    });
}

/// The system refuses what it let the rank do before: all say so, and nothing is combined. The
/// holder itself needs no fence to share what it has no more.
#[test]
fn a_fence_that_is_refused_is_an_error() {
    with_epoch(true, |window, epoch, network| {
        network.fences.store(u64::MAX, Relaxed);
        let is_it = |error: RmaError| {
            let refused = ImportError::Unfenced(WorldRank(0));
            matches!(error, RmaError::Import { error, .. } if error == refused)
        };
        bias::hold_as(block(window), OTHER, false);
        assert!(is_it(epoch.accumulate(ME, 0, Op::Sum, &[1i64; 8]).unwrap_err()));
        assert!(is_it(epoch.fetch_and_op(ME, 0, Op::Sum, 1i64).unwrap_err()));
        let mut head = Head::new(Kind::Accumulate, window.id().0, 0);
        (head.basic, head.op, head.length) = (BasicType::I64.to_wire(), Op::Sum as u8, 8.into());
        let served = window.part.accumulate(Kind::Accumulate, &head, &[1; 8], 100);
        assert_eq!(served.err(), Some(Status::Unfenced));
        assert_eq!(window.local().load(0), Ok(0i64));
    });
}

/// Integers that are combined by lock: the holder of a bias uses no atomics that others would not.
#[test]
fn integers_by_lock_are_combined_alone_by_no_atomics() {
    with_bias(true, |universe, _| {
        let window = universe.world().window(8, 8);
        let window = window.hint("mpi_accumulate_granularity", "64").unwrap().allocate().unwrap();
        let epoch = window.lock_all().unwrap();
        let entry = window.targets.get(ME).unwrap();
        for _ in 0..2 {
            epoch.accumulate(ME, 0, Op::Sum, &[1i64; 8]).unwrap();
            epoch.accumulate(ME, 0, Op::Sum, &[1i64]).unwrap();
            assert!(!entry.takes_atomics() && !takes_stripes(entry));
        }
        in_another_thread(|| epoch.accumulate(ME, 0, Op::Sum, &[1i64]).unwrap());
        epoch.accumulate(ME, 0, Op::Sum, &[1i64]).unwrap();
        assert!(!entry.takes_atomics() && takes_stripes(entry));
        assert_eq!(window.local().load(0), Ok(6i64));
        epoch.unlock().unwrap();
        window.free().unwrap();
    });
}

/// The next window that has the block has a bias of its own.
#[test]
fn a_bias_ends_with_its_window() {
    with_bias(true, |universe, _| {
        let mut blocks = Vec::new();
        for _ in 0..2 {
            let window = universe.world().window(8, 8).allocate().unwrap();
            blocks.push(block(&window).as_ptr());
            let epoch = window.lock_all().unwrap();
            epoch.accumulate(ME, 0, Op::Sum, &[1i64; 8]).unwrap();
            assert_eq!(holder(&window), Some(ME));
            in_another_thread(|| epoch.accumulate(ME, 0, Op::Sum, &[1i64; 8]).unwrap());
            assert_eq!(holder(&window), None);
            epoch.unlock().unwrap();
            window.free().unwrap();
        }
        assert_eq!(blocks[0], blocks[1], "the same block");
    });
}

/// What ranks do by messages, the thread that is handed them combines alone, too.
#[test]
fn messages_are_combined_alone() {
    with_epoch(false, |window, epoch, _| {
        let all = stripe::try_range(block(window), &(0..1 << 20), OTHER).unwrap();
        epoch.accumulate(ME, 0, Op::Sum, &[1.5f64; 20]).unwrap();
        assert_eq!(epoch.fetch_and_op(ME, 30, Op::Sum, 2i64), Ok(0));
        assert_eq!(epoch.compare_and_swap(ME, 30, 2i64, 5), Ok(2));
        epoch.flush_all().unwrap();
        assert_eq!(window.local().load(19), Ok(1.5f64));
        assert_eq!(window.local().load(30), Ok(5i64));
        assert_eq!(holder(window), Some(ME));
        assert_eq!(block(window).busy().load(Relaxed), 0);
        drop(all);
    });
}

/// Where the system lets none take it back, no thread has a bias.
#[test]
fn where_none_may_revoke_all_combine() {
    with_bias(true, |universe, network| {
        network.biased.store(false, Relaxed);
        let window = universe.world().window(8, 8).allocate().unwrap();
        let epoch = window.lock_all().unwrap();
        epoch.accumulate(ME, 0, Op::Sum, &[1i64; 8]).unwrap();
        assert_eq!((block(&window).bias().load(Relaxed), holder(&window)), (0, None));
        assert!(window.explain().contains("membarrier"), "{}", window.explain());
        let held = stripe::try_one(block(&window), 0, OTHER).unwrap();
        let entry = window.targets.get(ME).unwrap();
        assert!(takes_stripes(entry) && entry.takes_atomics());
        drop(held);
        epoch.unlock().unwrap();
        window.free().unwrap();
    });
}

/// The tables of start and lock epochs are made late, and know then what the one of all knows.
#[test]
fn a_table_made_late_is_told() {
    with_bias(true, |universe, _| {
        let window = universe.world().window(64, 8).allocate().unwrap();
        window.lock_all().unwrap().accumulate(ME, 0, Op::Sum, &[1.0f64]).unwrap();
        let takes_atomics = |permit| {
            let table = window.targets.table_of(permit);
            table.get(ME).unwrap().takes_atomics()
        };
        assert!(takes_atomics(Permit::All) && !takes_atomics(Permit::Locked));
        let lock = window.lock(ME, LockKind::Shared).unwrap();
        assert_eq!(lock.access().fetch_and_op(ME, 1, Op::Sum, 1i64), Ok(0));
        assert!(takes_atomics(Permit::Locked) && !takes_atomics(Permit::Started));
        lock.unlock().unwrap();
        let exposure = window.post(&[ME], Assert::NONE).unwrap();
        let start = window.start(&[ME], Assert::NONE).unwrap();
        assert_eq!(start.fetch_and_op(ME, 1, Op::Sum, 1i64), Ok(1));
        assert!(takes_atomics(Permit::Started));
        start.complete().unwrap();
        exposure.wait().unwrap();
        window.free().unwrap();
    });
}

/// Arrays of several threads take locks, as single elements do then, which are counted: when no
/// array comes any more, all go by atomics.
#[test]
fn integers_take_locks_as_long_as_arrays_earn() {
    with_epoch_as_they_come(|window, epoch| {
        let (entry, block) = (window.targets.get(ME).unwrap(), block(window));
        let array = || epoch.accumulate(ME, 0, Op::Sum, &[1i64; 512]).unwrap();
        let single = || epoch.fetch_and_op(ME, 0, Op::Sum, 1i64).unwrap();
        array();
        in_another_thread(array);
        assert!(!bias::are_locked(block), "the former holder has not come since");
        assert!(entry.mechanism(BasicType::I64, ME).is_some() && !entry.takes_atomics());
        array();
        assert!(bias::are_locked(block));
        assert_eq!((single(), single(), holder(window)), (3, 4, None));
        let held = stripe::try_one(block, 0, OTHER).unwrap();
        while bias::earn(block, 0) > 0 {}
        bias::weigh(block, 8, ME);
        assert!(bias::are_locked(block) && !entry.takes_atomics(), "some thread is at it");
        drop(held);
        assert_eq!((single(), single()), (5, 6));
        assert!(entry.takes_atomics() && !bias::are_locked(block));
        in_another_thread(array);
        in_another_thread(|| assert_eq!(single(), 8));
        array();
        assert!(entry.takes_atomics(), "for good");
        assert_eq!(window.local().load(511), Ok(5i64));
    });
}

/// A former holder that never comes again keeps others from plain vectors, and not for ever from
/// atomics without locks.
#[test]
fn a_holder_that_never_comes_ends_the_locks() {
    // Under Miri, elements take longer than calls.
    const LEN: usize = if cfg!(miri) { 16 } else { 512 };
    with_epoch_as_they_come(|window, epoch| {
        let (entry, block) = (window.targets.get(ME).unwrap(), block(window));
        let array = || epoch.accumulate(ME, 0, Op::Sum, &[1i64; LEN]).unwrap();
        array();
        bias::hold_as(block, OTHER, false);
        window.targets.set_bias(ME, Note::NOTHING);
        let mut arrays = 1;
        while !entry.takes_atomics() {
            assert!(arrays < 1000, "arrays earn nothing by that");
            array();
            assert!(!bias::are_locked(block));
            arrays += 1;
        }
        assert!(arrays > 10, "time to come");
        assert_eq!(window.local().load(LEN - 1), Ok(arrays));
    });
}

/// A message that adds one to the first element, where this many were seen.
fn serve_one(window: &Window, kind: Kind, seen: i64) -> Combined {
    let mut head = Head::new(kind, window.id().0, 0);
    (head.basic, head.op) = (BasicType::I64.to_wire(), Op::Sum as u8);
    head.length = 8.into();
    let body = match kind {
        Kind::CompareSwap => [seen, seen + 1].map(i64::to_le_bytes).concat(),
        _ => 1i64.to_le_bytes().to_vec(),
    };
    window.part.accumulate(kind, &head, &body, 100).unwrap()
}

/// Every call of the family waits for the locks as long as arrays earn, does what it is to do, and
/// takes none afterwards; what only looks at elements does not count.
#[test]
fn all_calls_take_the_locks_of_integers() {
    with_epoch_as_they_come(|window, epoch| {
        let (entry, block) = (window.targets.get(ME).unwrap(), block(window));
        epoch.accumulate(ME, 0, Op::Sum, &[1i64; 512]).unwrap();
        in_another_thread(|| epoch.accumulate(ME, 0, Op::Sum, &[1i64; 512]).unwrap());
        let at = |disp: u64| window.local().load::<i64>(disp).unwrap();
        let one = Layout::element::<i64>();
        let column = one.vector(2, 1, 4).unwrap();
        // Each adds one to the first element.
        let calls: [&dyn Fn(); 6] = [
            &|| epoch.accumulate(ME, 0, Op::Sum, &[1i64; 512]).unwrap(),
            &|| _ = epoch.fetch_and_op(ME, 0, Op::Sum, 1i64).unwrap(),
            &|| {
                let seen = at(0);
                assert_eq!(epoch.compare_and_swap(ME, 0, seen, seen + 1), Ok(seen));
            },
            &|| {
                let two = one.times(2);
                epoch.accumulate(ME, column.at(0), Op::Sum, two.of(&[1i64; 2])).unwrap();
            },
            &|| _ = window.local().fetch_and_op(0, Op::Sum, 1i64).unwrap(),
            &|| {
                let seen = at(0);
                assert_eq!(window.local().compare_and_swap(0, seen, seen + 1), Ok(seen));
            },
        ];
        let stripes: Vec<_> = (0..STRIPES).map(|index| block.stripe(index)).collect();
        let served = |kind| serve_one(window, kind, at(0));
        let (mut sum, kinds) = (2, [Kind::Accumulate, Kind::CompareSwap]);
        calls[0]();
        sum += 1;
        for (i, call) in calls.iter().enumerate() {
            stripes.iter().for_each(|stripe| stripe.store(8, Relaxed));
            // pairs with the Acquire exchange in `stripe::try_one`.
            let give_back = || stripes.iter().for_each(|stripe| stripe.store(0, Release));
            asleep_in(window.engine(), give_back, call);
            sum += 1;
            assert!(bias::are_locked(block) && !entry.takes_atomics(), "{i}");
            assert_eq!(at(0), sum, "{i}");
        }
        for kind in kinds {
            let held = stripe::try_one(block, 0, OTHER).unwrap();
            assert!(matches!(served(kind), Combined::Busy(_)), "{kind:?}");
            drop(held);
            assert!(!matches!(served(kind), Combined::Busy(_)), "{kind:?}");
            sum += 1;
            assert_eq!(at(0), sum, "{kind:?}");
        }
        for _ in 0..2000 {
            assert_eq!(epoch.fetch_and_op(ME, 0, Op::NoOp, 0i64), Ok(sum));
        }
        assert!(bias::are_locked(block));
        while !entry.takes_atomics() {
            calls[1]();
            sum += 1;
            assert!(sum < 3000);
        }
        let held = stripe::try_range(block, &stripe::ALL_STRIPES, OTHER).unwrap();
        calls.iter().for_each(|call| call());
        sum += calls.len() as i64;
        assert!(kinds.iter().all(|kind| !matches!(served(*kind), Combined::Busy(_))));
        assert_eq!(at(0), sum + 2);
        drop(held);
    });
}
