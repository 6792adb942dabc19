//! Versions that ranks ask for, and that are made while they go on.
use persistent_table::{Opened, WORDS, hints, on_ranks, open, open_below};
use rma::{
    Assert, Backing, DirtyTracking, Error, PersistError, PersistentError, PersistentHints,
    PersistentMemory, Rank, RmaError, Root, Universe,
};
use std::path::Path;

mod persistent_table;

/// Words of a block of a version.
const BLOCK: usize = 2048;

/// Each rank puts a value to some blocks of its right neighbour.
fn put(universe: &Universe, (_, window): &Opened, value: u64) -> Result<(), Error> {
    let world = universe.world();
    let right = world.rank().on_ring(1, world.size());
    let epoch = window.fence(Assert::NONE)?;
    (0..WORDS).step_by(BLOCK).try_for_each(|at| epoch.put(right, at, &[value]))?;
    Ok(epoch.end()?)
}

/// The next job of two ranks finds these values, of that version.
fn assert_holds(root: &Path, hints: &PersistentHints, value: u64, version: u64) {
    on_ranks(2, |universe| {
        let (memory, window) = open(&universe, root, hints)?;
        assert_eq!(memory.version(), Some(version));
        for at in (0..WORDS).step_by(BLOCK) {
            assert_eq!(window.local().load::<u64>(at)?, value, "{at}");
        }
        Ok(window.free()?)
    });
}

/// A version has what there was when it was asked for, whether its copies find room or not, and
/// however a commit finds out what has changed.
#[test]
fn a_version_is_what_there_was_when_it_was_asked_for() {
    for tracking in [DirtyTracking::Compare, DirtyTracking::WriteProtect] {
        for room in [0, 3 << 13, 1 << 20] {
            let folder = tempfile::tempdir().unwrap();
            let hints = hints().snapshot_bytes(room).dirty_tracking(tracking);
            on_ranks(2, |universe| {
                let opened = open(&universe, folder.path(), &hints)?;
                let (memory, window) = &opened;
                for value in 1..4 {
                    put(&universe, &opened, value)?;
                    let request = memory.request_commit(universe.world())?;
                    put(&universe, &opened, 100 + value)?;
                    assert_eq!(memory.version(), Some(value - 1));
                    assert_eq!(request.wait()?, Some(value));
                    assert_eq!(memory.version(), Some(value));
                }
                let told = |key| window.get_info(key).unwrap().parse::<u64>().unwrap();
                assert_eq!(told("pmem_snapshot_bytes"), room);
                // All blocks have changed, the last of which is a short one.
                let all = WORDS as u64 * 8;
                let written = match room {
                    0 => all,
                    few if few < all => all - few / (8 * BLOCK as u64) * (8 * BLOCK as u64),
                    _ => 0,
                };
                assert_eq!(told("rma_pmem_written_in_request"), written);
                Ok(opened.1.free()?)
            });
            assert_holds(folder.path(), &hints, 3, 3);
        }
    }
}

/// A request that is forgotten is decided by the next commit or request, and knows of it. A window
/// that is freed before says so.
#[test]
fn what_was_asked_for_is_decided_by_the_next_call_of_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let kept = hints().keep_all_checkpoints(true);
    on_ranks(2, |universe| {
        let world = universe.world();
        let opened = open(&universe, folder.path(), &kept)?;
        let (memory, _) = &opened;
        put(&universe, &opened, 1)?;
        core::mem::forget(memory.request_commit(world)?);
        put(&universe, &opened, 2)?;
        assert_eq!(memory.commit(world)?, Some(2));
        put(&universe, &opened, 3)?;
        let early = memory.request_commit(world)?;
        put(&universe, &opened, 4)?;
        let late = memory.request_commit(world)?;
        assert!(early.test());
        assert_eq!((early.wait()?, memory.version()), (Some(3), Some(3)));
        put(&universe, &opened, 5)?;
        opened.1.fence(Assert::NONE)?.end_persist()?;
        assert_eq!((late.wait()?, memory.version()), (Some(4), Some(5)));
        put(&universe, &opened, 6)?;
        drop(memory.request_commit(world)?);
        put(&universe, &opened, 7)?;
        let (memory, window) = opened;
        let freed = window.free().unwrap_err();
        let RmaError::Persist { error: PersistError::Refused { .. }, .. } = freed.error else {
            panic!("{freed}")
        };
        assert_eq!(memory.commit(world)?, Some(7));
        Ok(())
    });
    for value in 1..=7 {
        assert_holds(folder.path(), &kept.clone().checkpoint_version(value), value, value);
    }
    assert_holds(folder.path(), &kept, 7, 7);
}

/// Until it is decided, there is no such version, although all of it may be written.
#[test]
fn what_is_never_decided_is_no_version() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |universe| {
        let opened = open(&universe, folder.path(), &hints())?;
        put(&universe, &opened, 1)?;
        opened.0.commit(universe.world())?;
        put(&universe, &opened, 2)?;
        let (memory, window) = opened;
        window.free()?;
        let request = memory.request_commit(universe.world())?;
        while !request.test() {
            std::thread::yield_now();
        }
        Ok(())
    });
    assert_holds(folder.path(), &hints(), 1, 1);
}

/// A rank makes no version by itself meanwhile.
#[test]
fn commits_of_one_rank_wait_for_what_all_have_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |universe| {
        let world = universe.world();
        let opened = open(&universe, folder.path(), &hints())?;
        put(&universe, &opened, 1)?;
        let request = opened.0.request_commit(world)?;
        let alone = opened.0.commit_alone().unwrap_err();
        assert!(matches!(alone, PersistentError::Requested { .. }), "{alone}");
        let Err(RmaError::Persist { error, .. }) = opened.1.persist(0..8) else { panic!() };
        assert!(matches!(error, PersistError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("wait for its request first"), "{error}");
        opened.1.sync()?;
        assert_eq!(request.wait()?, Some(1));
        if world.rank() == Rank(0) {
            assert_eq!(opened.0.commit_alone()?, Some(2));
        }
        world.barrier()?;
        Ok(opened.1.free()?)
    });
}

/// Without transactions there is nothing to wait for, nor where they are turned on.
#[test]
fn requests_without_transactions_flush() {
    let folder = tempfile::tempdir().unwrap();
    let plain = hints().dont_use_transactions(true);
    on_ranks(2, |universe| {
        let world = universe.world();
        let opened = open(&universe, folder.path(), &plain)?;
        put(&universe, &opened, 1)?;
        let request = opened.0.request_commit(world)?;
        assert!(request.test());
        assert_eq!(request.wait()?, None);
        // What turns transactions on is a version at once.
        opened.0.dont_use_transactions(false);
        let request = opened.0.request_commit(world)?;
        assert!(request.test());
        assert_eq!(request.wait()?, opened.0.version());
        assert!(opened.0.commit_alone()?.is_some());
        world.barrier()?;
        Ok(opened.1.free()?)
    });
}

fn assert_refused<T: core::fmt::Debug>(made: Result<T, PersistentError>, text: &str) {
    let Err(PersistentError::Arg { what, .. }) = &made else { panic!("{made:?}") };
    assert!(what.contains(text), "{what}");
}

/// Opens a window that ranks mean and another one, which each rank but the first takes for it: they
/// commit both crosswise, wait crosswise, and are refused; both go on, and so does the next job.
fn assert_told_apart(open: impl Fn(&Universe) -> Result<[Opened; 2], Error> + Sync) {
    on_ranks(2, |universe| {
        let world = universe.world();
        let opened = open(&universe)?;
        let of = if world.rank() == Rank(0) { [0, 1] } else { [1, 0] };
        let [first, second] = of.map(|index| &opened[index].0);
        let different = "for different windows";
        for (value, both) in (1..).zip(&opened) {
            put(&universe, both, value)?;
        }
        assert_refused(first.commit(world), different);
        assert_refused(first.request_commit(world).map(drop), different);
        let requests =
            opened.each_ref().map(|(memory, _)| memory.request_commit(world).map(Some).unwrap());
        let [mut left, mut right] = requests;
        let mut wait = |index| if index == 0 { left.take() } else { right.take() }.unwrap().wait();
        assert_refused(wait(of[0]), different);
        assert_refused(wait(of[1]), different);
        assert_refused(second.commit(world), different);
        for (memory, _) in &opened {
            assert_eq!(memory.commit(world)?, Some(2));
        }
        opened.into_iter().try_for_each(|(_, window)| Ok(window.free()?))
    });
    on_ranks(2, |universe| {
        for (value, (memory, window)) in (1..).zip(open(&universe)?) {
            assert_eq!(memory.version(), Some(2));
            assert_eq!(window.local().load::<u64>(BLOCK)?, value);
            window.free()?;
        }
        Ok(())
    });
}

/// Two roots have windows of one name, of which one is a copy of the other: the roots are opened by
/// all ranks, and the windows crosswise by none.
#[test]
fn windows_of_one_name_below_two_roots_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let roots = ["one", "two"].map(|name| folder.path().join(name));
    std::fs::create_dir(&roots[0]).unwrap();
    on_ranks(2, |universe| Ok(open(&universe, &roots[0], &hints())?.1.free()?));
    let copied = std::process::Command::new("cp").arg("-r").args(&roots).status().unwrap();
    assert!(copied.success());
    on_ranks(2, |universe| {
        let world = universe.world();
        let opened = roots.each_ref().map(|path| Root::open(world, path).unwrap());
        let root = &opened[usize::from(world.rank() == Rank(1))];
        let crossed = PersistentMemory::open(root, world, &hints(), WORDS * 8).map(drop);
        assert_refused(crossed, "different hints or roots");
        Ok(())
    });
    assert_told_apart(|universe| {
        let [one, two] = roots.each_ref().map(|root| open(universe, root, &hints()));
        Ok([one?, two?])
    });
}

/// So are those of two names below one root that have the same checksum.
#[test]
fn windows_of_names_with_one_checksum_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    assert_told_apart(|universe| {
        let root = Root::open(universe.world(), folder.path())?;
        let window = |name| open_below(&root, universe, &PersistentHints::name(name));
        Ok([window("plumless")?, window("buckeroo")?])
    });
}

/// Ranks that do not call the same are refused before anything is decided, whether a version was
/// asked for or not.
#[test]
fn ranks_that_commit_request_and_wait_are_refused() {
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Call {
        Commit,
        Request,
        Wait,
    }
    use Call::{Commit, Request, Wait};
    let folder = tempfile::tempdir().unwrap();
    let newest = on_ranks(2, |universe| {
        let world = universe.world();
        let opened = open(&universe, folder.path(), &hints())?;
        let memory = &opened.0;
        let mut version = 0;
        for calls in [Commit, Request, Wait].iter().flat_map(|call| {
            [[*call, Commit], [*call, Request], [*call, Wait]].into_iter().filter(|[a, b]| a != b)
        }) {
            // For a call that waits there is one always.
            for is_asked in [false, true].into_iter().filter(|is| *is || !calls.contains(&Wait)) {
                put(&universe, &opened, version + 1)?;
                let request = is_asked.then(|| memory.request_commit(world)).transpose()?;
                let made = match calls[usize::from(world.rank() == Rank(1))] {
                    Commit => memory.commit(world),
                    Request => memory.request_commit(world).map(|_| None),
                    Wait => request.unwrap().wait(),
                };
                assert_refused(made, "commit, request or wait where others do another");
                assert_eq!(memory.version(), Some(version), "{calls:?}");
                version += 1 + u64::from(is_asked);
                put(&universe, &opened, version)?;
                assert_eq!(memory.commit(world)?, Some(version), "{calls:?}");
            }
        }
        opened.1.free()?;
        Ok(version)
    });
    assert_holds(folder.path(), &hints(), newest[0], newest[0]);
}

/// Ranks wait for two versions, of which one is decided: who waits for that hears what became of
/// it, the other one is refused, and what it waits for is decided by the next commit.
#[test]
fn ranks_that_wait_for_different_versions_are_refused() {
    for first_waits_early in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        on_ranks(2, |universe| {
            let world = universe.world();
            let opened = open(&universe, folder.path(), &hints())?;
            let memory = &opened.0;
            put(&universe, &opened, 1)?;
            let early = memory.request_commit(world)?;
            put(&universe, &opened, 2)?;
            let late = memory.request_commit(world)?;
            if (world.rank() == Rank(0)) == first_waits_early {
                assert_eq!(early.wait()?, Some(1));
            } else {
                assert_refused(late.wait(), "wait for different commits");
            }
            put(&universe, &opened, 3)?;
            assert_eq!(memory.commit(world)?, Some(3));
            Ok(opened.1.free()?)
        });
        assert_holds(folder.path(), &hints(), 3, 3);
    }
}

/// A rank that cannot meet the others does not know whether they have decided: it makes no version
/// until the window is opened again, and nothing is asked for any more.
#[test]
fn a_rank_that_does_not_hear_of_a_version_opens_the_window_again() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |universe| {
        let world = universe.world();
        let opened = open(&universe, folder.path(), &hints())?;
        put(&universe, &opened, 1)?;
        opened.0.commit(world)?;
        put(&universe, &opened, 2)?;
        let (memory, window) = opened;
        window.free()?;
        let request = memory.request_commit(world)?;
        if world.rank() == Rank(1) {
            return Ok(());
        }
        let waited = request.wait().unwrap_err();
        assert!(matches!(waited, PersistentError::Collective(_)), "{waited}");
        let alone = memory.commit_alone().unwrap_err();
        assert!(matches!(alone, PersistentError::Poisoned { .. }), "{alone}");
        assert_eq!(Backing::release(&*memory), Ok(()));
        assert_eq!(memory.version(), Some(1));
        Ok(())
    });
    assert_holds(folder.path(), &hints(), 1, 1);
}

/// A thread waits for a version while another one commits: one of both is refused where they meet,
/// perhaps another at another rank, and no rank waits for ever.
#[test]
fn threads_that_wait_and_commit_at_once_do_not_hang() {
    const ROUNDS: u64 = 20;
    let folder = tempfile::tempdir().unwrap();
    let newest = on_ranks(2, |universe| {
        let world = universe.world();
        let opened = open(&universe, folder.path(), &hints())?;
        let (memory, window) = &opened;
        let is_refused = |error: &PersistentError| {
            use PersistentError::{Committing, Elsewhere};
            matches!(error, Committing { .. } | Elsewhere { .. })
        };
        let mut newest = 0;
        for value in 1..=ROUNDS {
            put(&universe, &opened, value)?;
            let request = memory.request_commit(world)?;
            let (waited, ended) = std::thread::scope(|scope| {
                let waiter = scope.spawn(|| request.wait());
                let ended = window.fence(Assert::NONE).and_then(|fence| fence.end_persist());
                (waiter.join().unwrap(), ended)
            });
            assert!(waited.as_ref().err().is_none_or(is_refused), "{waited:?}");
            if let Err(error) = ended {
                assert!(matches!(error, RmaError::Persist { .. }), "{error}");
            }
            newest = memory.commit(world)?.unwrap();
            let all = world.allgather(&[newest])?;
            assert_eq!(all, [newest; 2]);
        }
        opened.1.free()?;
        Ok(newest)
    });
    assert_holds(folder.path(), &hints(), ROUNDS, newest[0]);
}

/// What became of a version is known also where ranks can meet no more.
#[test]
fn what_was_decided_is_told_although_a_rank_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let told = on_ranks(2, |universe| {
        let world = universe.world();
        let (memory, window) = open(&universe, folder.path(), &hints())?;
        let request = memory.request_commit(world)?;
        assert_eq!(memory.commit(world)?, Some(2));
        window.free()?;
        if world.rank() == Rank(1) {
            return Ok(None);
        }
        Ok(request.wait()?)
    });
    assert_eq!(told, [Some(1), None]);
}
