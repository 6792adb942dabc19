//! Epochs that end with persistence: which versions they make, and what else they make durable.
use persistent_table::{Opened, WORDS, hints, on_ranks, open};
use rma::{
    Assert, Config, DirtyTracking, Error, ErrorClass, LockKind, OnStorage, PersistError,
    PersistentError, PersistentMemory, Rank, RmaError, Root, StorageHints, Universe, Window,
};
use rma_launcher::run::{Output, RankOutput, Spec, run};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

mod libfabric;
mod persistent_table;

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

/// As within a node, where ranks meet by messages.
#[test]
fn a_fence_with_persistence_of_ranks_on_two_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let mut config = Config::default();
    config.nodes = 2;
    let commit = |universe: Universe| -> Result<(), Error> {
        let world = universe.world();
        let (memory, window) = open(&universe, root, &hints())?;
        let mut epoch = window.fence(Assert::NONE)?;
        // More than ranks may be ahead of each other.
        for version in 1..=20u64 {
            epoch.put(world.rank().on_ring(1, world.size()), 0, &[version])?;
            epoch = epoch.next_persist(Assert::NONE)?;
            assert_eq!(memory.version(), Some(version));
        }
        epoch.end()?;
        Ok(window.free()?)
    };
    let done = rma::local_with(config, 4, commit).unwrap();
    done.into_iter().for_each(|rank| rank.unwrap());
    assert_eq!(found(root, 4), [(20, 0, Some(20)); 4]);
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
        let third = window.fence(Assert::NONE)?;
        let error = third.next_persist(Assert::NONE).map(drop).unwrap_err();
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
        let error = window.fence(Assert::NONE)?.end_persist().unwrap_err();
        assert_eq!(error.class(), ErrorClass::RmaSync, "{error}");
        assert!(error.to_string().contains("set it again"), "{error}");
        assert_eq!(memory.version(), Some(0));
        memory.dont_use_transactions(false);
        assert_eq!(memory.commit(universe.world())?, Some(1));
        Ok(window.free()?)
    });
}

/// What a memory tells of itself is told while a commit of another thread waits for other ranks.
#[test]
fn what_is_told_of_a_window_waits_for_no_commit() {
    let folder = tempfile::tempdir().unwrap();
    let (asked, was_asked) = std::sync::mpsc::channel();
    let (asked, was_asked) = (Mutex::new(asked), Mutex::new(was_asked));
    on_ranks(2, |universe| {
        let world = universe.world();
        let (memory, window) = open(&universe, folder.path(), &hints())?;
        if world.rank() == Rank(1) {
            was_asked.lock().unwrap().recv().unwrap();
            memory.commit(world)?;
            return Ok(window.free()?);
        }
        std::thread::scope(|scope| {
            let commit = scope.spawn(|| memory.commit(world));
            let under_way =
                |error: &PersistentError| matches!(error, PersistentError::Committing { .. });
            while !memory.commit_alone().as_ref().is_err_and(under_way) {
                std::thread::yield_now();
            }
            let before = memory.version().unwrap();
            memory.keep_all_checkpoints(true);
            let key = "pmem_keep_all_checkpoints";
            assert_eq!(window.get_info(key).as_deref(), Some("true"));
            asked.lock().unwrap().send(()).unwrap();
            let made = commit.join().unwrap()?;
            assert_eq!((made, memory.version()), (Some(before + 1), Some(before + 1)));
            Ok::<_, Error>(())
        })?;
        Ok(window.free()?)
    });
}

/// Two threads of each rank commit one memory by two windows, in no order: each commit is a version
/// or an error at all ranks, and none waits for the other.
#[test]
fn one_memory_is_committed_by_two_windows() {
    const COMMITS: u32 = 40;
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |universe| {
        let world = universe.world();
        let (memory, first) = open(&universe, folder.path(), &hints())?;
        let second = world.window(WORDS, 8).create(memory.clone())?;
        let commit = |window: &Window| {
            let commits = (0..COMMITS).map(|_| window.fence(Assert::NONE).unwrap().end_persist());
            commits.map(|done| done.map(drop)).collect::<Vec<_>>()
        };
        let [one, two] = std::thread::scope(|scope| {
            let other = scope.spawn(|| commit(&second));
            [commit(&first), other.join().unwrap()]
        });
        let mut made = 0;
        for done in one.iter().chain(&two) {
            match done {
                Ok(()) => made += 1,
                Err(RmaError::Persist { error: PersistError::Committing, .. }) => {}
                Err(RmaError::Persist { error: PersistError::Elsewhere { .. }, .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(memory.version(), Some(made));
        let told = world.allgather(&[made])?;
        assert_eq!(told[0], told[1]);
        world.barrier()?;
        memory.commit(world)?;
        assert_eq!(memory.version(), Some(made + 1));
        second.free()?;
        Ok(first.free()?)
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

/// A region with transactions is durable by commits only, and a dynamic window makes those of one
/// rank: what would make none says so.
#[test]
fn a_region_with_transactions_of_a_dynamic_window() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |universe| {
        let world = universe.world();
        let root = Root::open(world, folder.path())?;
        let memory = Arc::new(PersistentMemory::open(&root, world, &hints(), WORDS * 8)?);
        let window = world.window(0, 1).create_dynamic()?;
        let region = match world.rank() {
            Rank(0) => Some(window.attach(memory.clone())?),
            _ => None,
        };
        world.barrier()?;
        let Err(RmaError::Persist { error, .. }) = window.sync_remote(Rank(0)) else {
            panic!("a flush makes no version")
        };
        assert_eq!(error, PersistError::Volatile);
        let Err(RmaError::Persist { error, .. }) = window.fence(Assert::NONE)?.end_persist() else {
            panic!("no version of all ranks")
        };
        let expected = match world.rank() {
            Rank(0) => PersistError::Regions,
            _ => PersistError::Elsewhere { rank: Rank(0), no_space: false },
        };
        assert_eq!((error, memory.version()), (expected, Some(0)));
        window.post_persist(&[], Assert::NONE)?.wait_persist()?;
        assert_eq!(memory.version(), Some(if world.rank() == Rank(0) { 2 } else { 0 }));
        world.barrier()?;
        if let Some(region) = region {
            window.detach(region)?;
        }
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

/// Words of a part that takes some time to compare.
const MANY: usize = 1 << 16;

fn open_many(universe: &Universe, root: &Path, how: DirtyTracking) -> Result<Opened, Error> {
    let world = universe.world();
    let hints = hints().dirty_tracking(how);
    let memory =
        Arc::new(PersistentMemory::open(&Root::open(world, root)?, world, &hints, MANY * 8)?);
    let window = world.window(MANY, 8).create(memory.clone())?;
    Ok((memory, window))
}

fn words_of(window: &Window) -> Result<Vec<u64>, Error> {
    let mut words = vec![0; MANY];
    window.local().read(0, &mut words)?;
    Ok(words)
}

fn tracking_of(window: &Window) -> String {
    window.get_info("pmem_dirty_tracking").unwrap()
}

/// Why the system has no marks, if that is what the window says and this test finds so as well.
fn no_marks(window: &Window) -> Option<String> {
    let way = tracking_of(window);
    let why = way.strip_prefix("compare (")?.strip_suffix(')')?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let is_old = (numbers.next(), numbers.next()) < (Some(6), Some(7));
    let is_so = match why {
        "the system is older than Linux 6.7" => is_old,
        "the system has no userfaultfd for this process" => true,
        "/proc/self/pagemap cannot be opened" => fs::File::open("/proc/self/pagemap").is_err(),
        _ => false,
    };
    is_so.then(|| why.to_owned())
}

/// Anywhere in the pages that this rank has to itself, of both parts.
fn place(state: &mut u64, rank: u32) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    let page = (*state >> 40) as usize % (MANY / 512) / 2 * 2 + rank as usize;
    page * 512 + (*state >> 20) as usize % 512
}

struct Done {
    committed: Vec<u64>,
    /// How each commit found out what had changed.
    ways: Vec<String>,
    /// Why the system has no marks.
    no_marks: Option<String>,
}

/// Commits, between which this rank and the other store in both parts by every way there is.
fn store_and_commit(universe: &Universe, (memory, mut window): Opened) -> Result<Done, Error> {
    let world = universe.world();
    let (me, peer) = (u32::from(world.rank()), world.rank().on_ring(1, 2));
    let over = || world.window(MANY, 8).create(memory.clone());
    let mut state = 77 + u64::from(me);
    let mut ways = Vec::new();
    let no_marks = no_marks(&window);
    for commit in 1..=12u64 {
        let epoch = window.fence(Assert::NONE)?;
        for value in 0..commit {
            epoch.put(peer, place(&mut state, me), &[commit << 32 | value])?;
            window.local().store(place(&mut state, me), commit << 32 | value)?;
        }
        epoch.end()?;
        if commit % 3 == 1 {
            // A mapping that ends before the commit, and one that is new.
            let other = over()?;
            let lock = other.lock(peer, LockKind::Exclusive)?;
            lock.put(place(&mut state, me), &[commit])?;
            lock.unlock()?;
            other.free()?;
        }
        if commit % 6 == 4 {
            window.free()?;
            window = over()?;
        }
        if commit % 4 == 2 {
            world.barrier()?;
            memory.commit_alone()?;
            world.barrier()?;
            window.local().store(place(&mut state, me), commit)?;
        }
        memory.commit(world)?;
        ways.push(tracking_of(&window));
    }
    let committed = words_of(&window)?;
    world.barrier()?;
    // What is rolled back.
    window.local().store(place(&mut state, me), 1u64)?;
    window.free()?;
    Ok(Done { committed, ways, no_marks })
}

/// What a commit says to be a version is, whatever finds out what has changed.
fn stored_and_found_again(how: DirtyTracking) {
    let folder = tempfile::tempdir().unwrap();
    let open = |universe: &Universe| open_many(universe, folder.path(), how);
    let committed = on_ranks(2, |universe| store_and_commit(&universe, open(&universe)?));
    let again = on_ranks(2, |universe| {
        let (_, window) = open(&universe)?;
        let found = words_of(&window)?;
        window.free()?;
        Ok(found)
    });
    for (rank, (done, found)) in committed.into_iter().zip(again).enumerate() {
        let Done { committed, ways, no_marks } = done;
        let differs = (0..MANY).find(|at| committed[*at] != found[*at]);
        assert_eq!(differs, None, "rank {rank}, {how:?}");
        let by_marks = ways.iter().filter(|way| *way == "write_protect").count();
        match how {
            DirtyTracking::Compare => assert_eq!(by_marks, 0, "{ways:?}"),
            _ => match no_marks {
                Some(why) => eprintln!("skipped: marks: {why}"),
                None => assert_eq!(by_marks, ways.len(), "{ways:?}"),
            },
        }
    }
}

#[test]
fn commits_by_marks_lose_no_store() {
    stored_and_found_again(DirtyTracking::WriteProtect);
}

#[test]
fn commits_by_comparison_lose_no_store() {
    stored_and_found_again(DirtyTracking::Compare);
}

/// A driver writes through a mapping of its own, of which no marks tell.
#[test]
fn what_a_device_puts_is_in_the_version() {
    if !libfabric::is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let hints = hints().dirty_tracking(DirtyTracking::WriteProtect);
    let mut config = Config::default();
    config.set("transport", "ofi").unwrap();
    config.set("provider", "tcp").unwrap();
    let done = rma::local_with(config, 2, |universe| {
        let world = universe.world();
        let (memory, window) = open(&universe, root, &hints).unwrap();
        let right = world.rank().on_ring(1, world.size());
        for value in [5u64, 6] {
            let epoch = window.fence(Assert::NONE).unwrap();
            epoch.put(right, 0, &[value]).unwrap();
            epoch.put(right, 1, &[value + 10]).unwrap();
            epoch.end().unwrap();
            memory.commit(world).unwrap();
        }
        let path = window.path(right);
        window.free().unwrap();
        universe.finalize().unwrap();
        path
    });
    assert_eq!(done.unwrap(), [Some(rma::Path::Device); 2]);
    let found = found(root, 2).into_iter().map(|(first, second, _)| (first, second));
    assert_eq!(found.collect::<Vec<_>>(), [(6, 16); 2]);
}

/// Marks are kept by themselves where little changes, and not where much does.
#[test]
fn marks_are_kept_where_little_changes() {
    const BYTES: usize = 4 << 20;
    let folder = tempfile::tempdir().unwrap();
    on_ranks(1, |universe| {
        let world = universe.world();
        let root = Root::open(world, folder.path())?;
        let hints = hints().dirty_tracking(DirtyTracking::Auto);
        let memory = Arc::new(PersistentMemory::open(&root, world, &hints, BYTES)?);
        let window = world.window(BYTES / 8, 8).create(memory.clone())?;
        let way = || window.get_info("pmem_dirty_tracking").unwrap();
        if let Some(why) = no_marks(&window) {
            eprintln!("skipped: marks: {why}");
            return Ok(window.free()?);
        }
        assert_eq!(way(), "write_protect");
        assert!(window.explain().contains("pmem_dirty_tracking=write_protect"));
        for at in (0..BYTES / 8).step_by(512) {
            window.local().store(at, 2u64)?;
        }
        memory.commit(world)?;
        memory.commit(world)?;
        assert_eq!(way(), "compare (until the next commit)", "behind one that changed much");
        window.local().store(0, 3u64)?;
        memory.commit(world)?;
        memory.commit(world)?;
        assert_eq!(way(), "write_protect");
        Ok(window.free()?)
    });
}

/// Threads of each rank that fence windows in memory hinder no commit of another thread.
#[test]
fn threads_fence_other_windows_while_one_commits() {
    const ROUNDS: u64 = 20;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    on_ranks(3, |universe| {
        let world = universe.world();
        let (memory, window) = open(&universe, root, &hints())?;
        let right = world.rank().on_ring(1, world.size());
        let others = [world.window(1, 8).allocate()?, world.window(1, 8).allocate()?];
        thread::scope(|scope| {
            for other in &others {
                scope.spawn(move || {
                    for round in 1..=5 * ROUNDS {
                        let epoch = other.fence(Assert::NONE).unwrap();
                        epoch.put(right, 0, &[round]).unwrap();
                        epoch.end().unwrap();
                        assert_eq!(other.local().load(0), Ok(round));
                        // Before the next put, all have looked.
                        other.fence(Assert::NONE).unwrap().end().unwrap();
                    }
                });
            }
            let mut epoch = window.fence(Assert::NONE)?;
            for version in 1..=ROUNDS {
                epoch.put(right, 0, &[version])?;
                epoch = epoch.next_persist(Assert::NONE)?;
                assert_eq!(memory.version(), Some(version));
            }
            epoch.end()
        })?;
        Ok(window.free()?)
    });
    assert_eq!(found(root, 3), [(ROUNDS, 0, Some(ROUNDS)); 3]);
}

/// Threads that fence the very window while another one commits it, against what its documentation
/// asks for: each call ends, and what the next job finds is one version, the same at all ranks. The
/// ranks are processes: memory of a window that was not freed is in use until its process ends.
#[test]
fn threads_fence_the_window_that_another_commits() {
    if rma_launcher::is_launched() {
        let root = std::env::args().next_back().unwrap();
        return fence_and_commit(Path::new(&root));
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let mut spec = Spec::new(std::env::current_exe().unwrap(), 2);
    let test = "threads_fence_the_window_that_another_commits";
    spec.args = ["--exact", test, "--nocapture"].map(Into::into).to_vec();
    // A filter that matches no test.
    spec.args.push(root.into());
    (spec.output, spec.oversubscribe) = (Output::Capture, true);
    spec.config.wait_timeout = Some(Duration::from_secs(2));
    spec.timeout = Some(Duration::from_secs(120));
    let report = run(&spec).unwrap();
    let said = |output: &RankOutput| String::from_utf8_lossy(&output.stdout).into_owned();
    let passed = |output| said(output).contains("1 passed");
    assert!(report.failure().is_none() && report.output.iter().all(passed), "{report:?}");
    let [first, second] = found(root, 2)[..] else { panic!("two ranks") };
    assert_eq!(first, second);
    assert_eq!(Some(first.0), first.2, "a version has the word of that commit");
}

/// One rank of it.
fn fence_and_commit(root: &Path) {
    let universe = rma::initialize().unwrap();
    let (memory, window) = open(&universe, root, &hints()).unwrap();
    let ended = |error: RmaError| {
        let of_rules = [ErrorClass::Assert, ErrorClass::RmaSync, ErrorClass::Count];
        let of_peers = [ErrorClass::ProcFailed, ErrorClass::Other];
        let class = error.class();
        assert!(of_rules.contains(&class) || of_peers.contains(&class), "{error}");
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..40 {
                    window.fence(Assert::NONE).map(drop).unwrap_or_else(ended);
                }
            });
        }
        for _ in 0..40 {
            window.local().store(0, memory.version().unwrap() + 1).unwrap();
            let fenced = window.fence(Assert::NONE).and_then(|epoch| epoch.end_persist());
            fenced.unwrap_or_else(ended);
        }
    });
}
