//! Scopes in which operations overlap.
use crate::help::{local_words, near, neighbour, still_works, times, words};
use rma_core::{Assert, LockKind, Rank, RmaError, Universe, Window};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Fills this rank's part with `100 × rank + i` and waits until all have done so.
fn filled(universe: &Universe, count: usize) -> Window {
    let window = words(universe.world(), count);
    let first = u64::from(window.rank()) * 100;
    window.local().write(0, &(first..first + count as u64).collect::<Vec<_>>()).unwrap();
    universe.world().barrier().unwrap();
    window
}

/// Gets from every rank, each into a buffer of its own.
pub fn gets_overlap(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 50);
    let mut buffers = vec![[0u64; 50]; world.size() as usize];
    let epoch = window.lock_all().unwrap();
    epoch
        .ops(|ops| {
            for (target, buffer) in world.ranks().zip(&mut buffers) {
                ops.get(target, 0, buffer)?;
            }
            Ok(())
        })
        .unwrap();
    for (rank, buffer) in buffers.iter().enumerate() {
        assert!(buffer.iter().copied().eq(rank as u64 * 100..rank as u64 * 100 + 50));
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// Puts and gets of one scope; the puts are complete after a flush.
pub fn puts_and_gets(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 20);
    let right = neighbour(world, 1);
    let (halo, mut big) = ([u64::from(world.rank()) + 7; 5], vec![0u64; 10]);
    let epoch = window.lock_all().unwrap();
    epoch
        .ops(|ops| {
            ops.get(right, 10, &mut big)?;
            ops.put(right, 0, &halo)?;
            ops.put(right, 5, &halo)
        })
        .unwrap();
    let first = u64::from(right) * 100 + 10;
    assert!(big.iter().copied().eq(first..first + 10));
    epoch.flush(right).unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window)[..10], [u64::from(neighbour(world, -1)) + 7; 10]);
    world.barrier().unwrap();
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// A buffer is free again after its scope, while the epoch stays open.
pub fn buffers_come_back(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 10);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let (mut source, mut sink) = (vec![0u64; 10], vec![0u64; 10]);
    for round in 1..=times(universe, 50) {
        source.fill(round);
        epoch.ops(|ops| ops.put(right, 0, &source)).unwrap();
        source.fill(u64::MAX);
        epoch.flush(right).unwrap();
        epoch.ops(|ops| ops.get(right, 0, &mut sink)).unwrap();
        assert_eq!(sink, [round; 10]);
        sink.fill(0);
    }
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// An error inside ends the scope as the program likes; what came before it is complete.
pub fn error_inside(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 4);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let (mut good, mut bad) = ([0u64; 4], [9u64; 4]);
    let error: Result<(), RmaError> = epoch.ops(|ops| {
        ops.get(right, 0, &mut good)?;
        ops.get(right, 1, &mut bad)?;
        panic!("the second get is out of range");
    });
    assert!(matches!(error, Err(RmaError::OutOfRange { disp: 1, len: 32, size: 32, .. })));
    let first = u64::from(right) * 100;
    assert_eq!((good, bad), ([first, first + 1, first + 2, first + 3], [9; 4]));
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// A panic inside leaves buffers, epoch and window intact.
pub fn panic_inside(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 4_000);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let mut buffer = vec![0u64; 4_000];
    let caught = catch_unwind(AssertUnwindSafe(|| {
        epoch.ops(|ops| -> Result<(), RmaError> {
            ops.get(right, 0, &mut buffer)?;
            // Without the message that `panic!` prints.
            resume_unwind(Box::new("on purpose"));
        })
    }));
    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"on purpose"));
    // Nothing arrives here any more, whatever is on its way.
    buffer.fill(u64::MAX);
    world.barrier().unwrap();
    epoch.flush_all().unwrap();
    assert!(buffer.iter().all(|word| *word == u64::MAX));
    let mut again = [0u64];
    epoch.get(right, 0, &mut again).unwrap();
    assert_eq!(again, [u64::from(right) * 100]);
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Scopes in fence epochs.
pub fn in_fence(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let mut epoch = window.fence(Assert::NONE).unwrap();
    for round in 0..times(universe, 30) {
        let (right, left) = (neighbour(world, 1), neighbour(world, -1));
        let value = [round * 10 + u64::from(world.rank())];
        let put = epoch.ops(|ops| ops.put(left, 1, &value).and(ops.put(right, 0, &value)));
        put.unwrap();
        epoch = epoch.next(Assert::NONE).unwrap();
        let expected = [left, right].map(|rank| round * 10 + u64::from(rank));
        assert_eq!(local_words(&window), expected);
        epoch = epoch.next(Assert::NONE).unwrap();
    }
    epoch.end().unwrap();
    window.free().unwrap();
}

/// Scopes under a lock on one target name that target, or none.
pub fn in_lock(universe: &Universe) {
    let world = universe.world();
    let window = filled(universe, 4);
    let (right, mut got) = (neighbour(world, 1), [0u64; 2]);
    let lock = window.lock(right, LockKind::Shared).unwrap();
    let done = lock.ops(|ops| {
        ops.put(Rank::NULL, 99, &[1u8])?;
        ops.get(right, 2, &mut got)
    });
    done.unwrap();
    assert_eq!(got, [u64::from(right) * 100 + 2, u64::from(right) * 100 + 3]);
    lock.unlock().unwrap();
    window.free().unwrap();
}

/// More operations than there are slots.
pub fn many(universe: &Universe) {
    let world = universe.world();
    let count = if cfg!(miri) {
        10
    } else if near(universe) {
        2_000
    } else {
        400
    };
    let window = filled(universe, count);
    let mut buffers = vec![0u64; count];
    let epoch = window.lock_all().unwrap();
    epoch
        .ops(|ops| {
            for (i, buffer) in buffers.chunks_mut(1).enumerate() {
                ops.get(neighbour(world, i as i64), i, buffer)?;
            }
            Ok(())
        })
        .unwrap();
    epoch.unlock().unwrap();
    for (i, value) in buffers.iter().enumerate() {
        assert_eq!(*value, u64::from(neighbour(world, i as i64)) * 100 + i as u64);
    }
    world.barrier().unwrap();
    window.free().unwrap();
}

/// The null target in scopes. S-G4
pub fn null(universe: &Universe) {
    let window = filled(universe, 1);
    let mut untouched = [5u64; 3];
    let epoch = window.lock_all().unwrap();
    let done = epoch
        .ops(|ops| ops.get(Rank::NULL, 7, &mut untouched).and(ops.put(Rank::NULL, 7, &[1u64; 9])));
    done.unwrap();
    assert_eq!(untouched, [5; 3]);
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// What the closure returns comes out.
pub fn result(universe: &Universe) {
    let window = filled(universe, 1);
    let epoch = window.lock_all().unwrap();
    assert_eq!(epoch.ops(|_| Ok("nothing at all")), Ok("nothing at all"));
    assert_eq!(epoch.ops(|ops| Ok(ops.put(Rank(0), 0, &[3u64]).is_ok())), Ok(true));
    epoch.unlock().unwrap();
    assert_eq!(local_words(&window), [3]);
    window.free().unwrap();
}
