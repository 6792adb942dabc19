//! Epochs that end with persistence: which versions they make, and what else they make durable.
use rma::{
    Assert, Error, ErrorClass, OnStorage, PersistError, PersistentError, PersistentHints,
    PersistentMemory, Rank, RmaError, Root, StorageHints, Universe, Window,
};
use std::fs;
use std::path::Path;
use std::sync::Arc;

const WORDS: usize = 5000;

type Opened = (Arc<PersistentMemory>, Window);

fn hints() -> PersistentHints {
    PersistentHints::name("table").elements::<u64>()
}

fn open(universe: &Universe, root: &Path, hints: &PersistentHints) -> Result<Opened, Error> {
    let world = universe.world();
    let root = Root::open(world, root)?;
    let memory = Arc::new(PersistentMemory::open(&root, world, hints, WORDS * 8)?);
    let window = world.window(WORDS, 8).create(memory.clone())?;
    Ok((memory, window))
}

fn on_ranks<T: Send>(ranks: u32, body: impl Fn(Universe) -> Result<T, Error> + Sync) -> Vec<T> {
    let done = rma::local(ranks, &body).unwrap();
    done.into_iter().map(|rank| rank.unwrap()).collect()
}

/// The words at 0 and 1 of each rank, and its version, as the next job finds them.
fn found(root: &Path, ranks: u32) -> Vec<(u64, u64, Option<u64>)> {
    on_ranks(ranks, |universe| {
        let (memory, window) = open(&universe, root, &hints())?;
        let view = window.local();
        let found = (view.load(0)?, view.load(1)?, memory.version());
        window.free()?;
        Ok(found)
    })
}

#[test]
fn a_fence_with_persistence_is_a_version_of_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    on_ranks(3, |universe| {
        let world = universe.world();
        let (memory, window) = open(&universe, root, &hints())?;
        let right = world.rank().on_ring(1, world.size());
        let epoch = window.fence(Assert::NONE)?;
        epoch.put(right, 0, &[1u64])?;
        // A plain form commits nothing.
        let epoch = epoch.next(Assert::NONE)?;
        assert_eq!(memory.version(), Some(0));
        epoch.put(right, 0, &[2u64])?;
        let epoch = epoch.next_persist(Assert::NONE)?;
        assert_eq!(memory.version(), Some(1));
        epoch.put(right, 1, &[3u64])?;
        epoch.end_persist()?;
        assert_eq!(memory.version(), Some(2));
        let epoch = window.fence(Assert::NO_PRECEDE)?;
        epoch.put(right, 0, &[4u64])?;
        epoch.end()?;
        Ok(window.free()?)
    });
    assert_eq!(found(root, 3), [(2, 3, Some(2)); 3]);
}

/// An assert that no fence takes is refused before anything happens, and so is a fence that would
/// end an epoch of another guard.
#[test]
fn a_wrong_fence_commits_nothing() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |universe| {
        let (memory, window) = open(&universe, folder.path(), &hints())?;
        let epoch = window.fence(Assert::NONE)?;
        let error = epoch.next_persist(Assert::NO_SUCCEED).map(drop).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Assert, "{error}");
        let [first, second] = [window.fence(Assert::NONE)?, window.fence(Assert::NONE)?];
        let error = first.end_persist().unwrap_err();
        assert_eq!(error.class(), ErrorClass::Assert, "{error}");
        assert_eq!(memory.version(), Some(0));
        second.end_persist()?;
        assert_eq!(memory.version(), Some(1));
        Ok(window.free()?)
    });
}

/// Rank 0 is the master: its posts, waits and tests make versions of its own; workers make none.
#[test]
fn exposures_make_versions_of_one_rank() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    on_ranks(2, |universe| {
        let world = universe.world();
        let (memory, window) = open(&universe, root, &hints())?;
        if world.rank() == Rank(0) {
            window.local().store(1, 7u64)?;
            let exposure = window.post_persist(&[Rank(1)], Assert::NONE)?;
            assert_eq!(memory.version(), Some(1), "what is local, before others may write");
            exposure.wait_persist()?;
            assert_eq!((memory.version(), window.local().load::<u64>(0)?), (Some(2), 1));

            let mut exposure = window.post(&[Rank(1)], Assert::NONE)?;
            // Rank 1 has not begun: it waits at the barrier.
            for _ in 0..3 {
                exposure = exposure.test_persist().map(drop).unwrap_err();
                assert_eq!(memory.version(), Some(2), "nothing until it succeeds");
            }
            world.barrier()?;
            loop {
                match exposure.test_persist() {
                    Ok(done) => break done?,
                    Err(open) => exposure = open,
                }
            }
            assert_eq!((memory.version(), window.local().load::<u64>(0)?), (Some(3), 2));

            window.post(&[Rank(1)], Assert::NONE)?.wait()?;
            assert_eq!((memory.version(), window.local().load::<u64>(0)?), (Some(3), 3));
        } else {
            for value in 1..=3u64 {
                if value == 2 {
                    world.barrier()?;
                }
                let epoch = window.start(&[Rank(0)], Assert::NONE)?;
                epoch.put(Rank(0), 0, &[value])?;
                epoch.complete()?;
            }
            assert_eq!(memory.version(), Some(0));
        }
        Ok(window.free()?)
    });
    assert_eq!(found(root, 2), [(2, 7, Some(3)), (0, 0, Some(0))]);
}

/// An exposure that is open already is said before a version is made.
#[test]
fn a_second_post_commits_nothing() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(1, |universe| {
        let (memory, window) = open(&universe, folder.path(), &hints())?;
        let exposure = window.post(&[], Assert::NONE)?;
        let error = window.post_persist(&[], Assert::NONE).map(drop).unwrap_err();
        assert!(matches!(error, RmaError::EpochOpen { .. }), "{error}");
        let error = window.post_persist(&[Rank(9)], Assert::NONE).map(drop).unwrap_err();
        assert!(matches!(error, RmaError::NoSuchRank { .. }), "{error}");
        assert_eq!(memory.version(), Some(0));
        exposure.wait()?;
        Ok(window.free()?)
    });
}

/// Transactions are turned off and on again at commits of all ranks, and what holds is what was
/// flushed, or committed.
#[test]
fn transactions_are_turned_off_and_on() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let key = "pmem_dont_use_transactions";
    let fence = |window: &Window, at: usize, value: u64| -> Result<(), Error> {
        let epoch = window.fence(Assert::NONE)?;
        window.local().store(at, value)?;
        Ok(epoch.end_persist()?)
    };
    on_ranks(2, |universe| {
        let (memory, window) = open(&universe, root, &hints())?;
        assert_eq!(window.get_info("pmem_name").as_deref(), Some("table"));
        assert_eq!(window.set_info(key, "true"), Ok(false), "not before a commit of all ranks");
        assert_eq!(window.get_info(key).as_deref(), Some("false"));
        fence(&window, 0, 1)?;
        assert_eq!((memory.version(), window.get_info(key).as_deref()), (Some(1), Some("true")));
        assert_eq!(window.get_info("pmem_keep_all_checkpoints"), None, "it means nothing now");
        fence(&window, 0, 2)?;
        window.local().store(1, 3u64)?;
        window.sync()?;
        window.sync_remote(Rank(0))?;
        assert_eq!(memory.version(), Some(1));
        Ok(window.free()?)
    });
    assert!(Root::look(root).unwrap().window("table").unwrap().is_plain);
    on_ranks(2, |universe| {
        let (memory, window) = open(&universe, root, &hints().dont_use_transactions(true))?;
        let (first, second) = (window.local().load::<u64>(0)?, window.local().load::<u64>(1)?);
        assert_eq!((first, second), (2, 3));
        assert_eq!(window.set_info(key, "false"), Ok(false));
        fence(&window, 0, 4)?;
        assert_eq!((memory.version(), window.get_info(key).as_deref()), (Some(2), Some("false")));
        assert_eq!(window.set_info("pmem_keep_all_checkpoints", "true"), Ok(true));
        fence(&window, 0, 5)?;
        assert_eq!(window.set_info(key, "false"), Ok(true), "as it is");
        let error = window.set_info(key, "perhaps").unwrap_err();
        assert_eq!((error.key, &*error.value), (key, "perhaps"));
        window.local().store(0, 6u64)?;
        Ok(window.free()?)
    });
    assert_eq!(found(root, 2), [(5, 3, Some(3)); 2]);
    let versions = Root::look(root).unwrap().window("table").unwrap().versions;
    assert_eq!(versions.iter().map(|version| version.number).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn ranks_that_turn_transactions_off_alone_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |universe| {
        let (memory, window) = open(&universe, folder.path(), &hints())?;
        memory.dont_use_transactions(universe.world().rank() == Rank(1));
        let error = memory.commit(universe.world()).unwrap_err();
        assert!(matches!(error, PersistentError::Arg { .. }), "{error}");
        memory.dont_use_transactions(false);
        assert_eq!(memory.commit(universe.world())?, Some(1));
        Ok(window.free()?)
    });
}

/// Parts with transactions and without make no version together.
#[test]
fn a_window_of_which_one_part_is_persistent() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |universe| {
        let world = universe.world();
        let root = Root::open(world, folder.path())?;
        let memory = Arc::new(PersistentMemory::open(&root, world, &hints(), WORDS * 8)?);
        let window = match world.rank() {
            Rank(0) => world.window(WORDS, 8).create(vec![0u64; WORDS])?,
            _ => world.window(WORDS, 8).create(memory.clone())?,
        };
        let Err(RmaError::Persist { error, .. }) = window.fence(Assert::NONE)?.end_persist() else {
            panic!("one part has no versions")
        };
        assert_eq!(error, PersistError::Mixed { with: Rank(1), without: Rank(0) });
        assert_eq!(memory.version(), Some(0));
        // One part by itself is no concern of the other.
        window.post_persist(&[], Assert::NONE)?.wait()?;
        let alone = if world.rank() == Rank(0) { Some(0) } else { Some(1) };
        assert_eq!(memory.version(), alone);
        Ok(window.free()?)
    });
}

/// Where there are no transactions, all ranks hear of one that could not flush.
#[test]
fn a_fence_with_persistence_flushes_storage() {
    const BYTES: usize = 2 * 4096;
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |universe| {
        let world = universe.world();
        let hints = StorageHints::file(folder.path().join("{rank}"));
        let window = world.window(BYTES, 1).on_storage(&hints)?.allocate()?;
        let epoch = window.fence(Assert::NONE)?;
        epoch.put(world.rank().on_ring(1, 2), 0, &[5u8])?;
        epoch.end_persist()?;
        if world.rank() == Rank(0) {
            let file = fs::OpenOptions::new().write(true).open(folder.path().join("0"));
            file.and_then(|file| file.set_len(4096)).unwrap();
        }
        let Err(RmaError::Persist { error, .. }) = window.fence(Assert::NONE)?.end_persist() else {
            panic!("half of a part is nowhere")
        };
        let expected = match world.rank() {
            Rank(0) => PersistError::Cut { len: 4096, needed: 8192 },
            _ => PersistError::Elsewhere { rank: Rank(0), no_space: false },
        };
        assert_eq!(error, expected);
        Ok(window.free()?)
    });
    assert_eq!(fs::read(folder.path().join("1")).unwrap()[0], 5);
}

#[test]
fn memory_that_ends_with_the_job_has_nothing_to_persist() {
    on_ranks(2, |universe| {
        let world = universe.world();
        let window = world.window(1, 8).allocate()?;
        let epoch = window.fence(Assert::NONE)?;
        epoch.put(world.rank().on_ring(1, 2), 0, &[9u64])?;
        epoch.next_persist(Assert::NONE)?.end_persist()?;
        assert_eq!(window.local().load::<u64>(0)?, 9);
        window.post_persist(&[], Assert::NONE)?.wait_persist()?;
        Ok(window.free()?)
    });
}
