//! Persistent windows, as a program makes them.
use persistent_table::{Opened, WORDS, hints, on_ranks, open};
use rma::{
    Assert, DirtyTracking, Error, ErrorClass, PersistError, PersistentCode, PersistentError,
    PersistentHints, PersistentMemory, PersistentMode, Rank, RmaError, Root, StorageHints,
    StorageMemory, Universe,
};
use std::fs;
use std::path::Path;
use std::sync::Arc;

mod persistent_table;

fn open_and_free(universe: &Universe, root: &Path, hints: &PersistentHints) -> Result<(), Error> {
    Ok(open(universe, root, hints)?.1.free()?)
}

/// Each rank puts a value to its right, and all commit.
fn put_and_commit(universe: &Universe, opened: &Opened, value: u64) -> Result<u64, Error> {
    let (memory, window) = opened;
    let world = universe.world();
    let epoch = window.fence(Assert::NONE)?;
    epoch.put(world.rank().on_ring(1, world.size()), 7, &[value + u64::from(world.rank())])?;
    epoch.end()?;
    Ok(memory.commit(world)?.expect("transactions"))
}

/// What the rank to the left has put.
fn found(universe: &Universe, (_, window): &Opened) -> Result<u64, Error> {
    let world = universe.world();
    let left = world.rank().on_ring(-1, world.size());
    Ok(window.local().load::<u64>(7)?.saturating_sub(u64::from(left)))
}

/// The next job of two ranks finds these values, of that version.
fn assert_holds(root: &Path, hints: &PersistentHints, value: u64, version: u64) {
    on_ranks(2, |universe| {
        let opened = open(&universe, root, hints)?;
        assert_eq!((found(&universe, &opened)?, opened.0.version()), (value, Some(version)));
        Ok(opened.1.free()?)
    });
}

/// The error of each rank.
fn refused(ranks: u32, body: impl Fn(&Universe) -> Result<(), Error> + Sync) -> Vec<Error> {
    on_ranks(ranks, |universe| Ok(body(&universe).unwrap_err()))
}

/// The root is the job's, as the program names it; a job that was told of none says so.
#[test]
fn a_job_is_told_of_its_root() {
    let root = tempfile::tempdir().unwrap();
    let job = |builder: rma::Builder| {
        builder.local(2, |universe| Root::of_job(&universe).map(|_| universe.root().is_some()))
    };
    let named = job(rma::Builder::new().root(root.path())).unwrap();
    assert!(named.into_iter().all(|found| found.unwrap()));
    assert!(root.path().join("rma-root").exists(), "made a root");
    let not_there = job(rma::Builder::new().root(root.path().join("none"))).unwrap();
    let unnamed = job(rma::Builder::new()).unwrap();
    for error in not_there.into_iter().chain(unnamed).map(|found| found.unwrap_err()) {
        let code = error.code().expect("of class Pmem");
        assert_eq!(code, PersistentCode::RootPath, "{error}");
    }
    let unnamed = job(rma::Builder::new()).unwrap().remove(0).unwrap_err().to_string();
    assert!(unnamed.contains("rma-run --root DIR"), "{unnamed}");
}

/// Of hosts that have other file systems at the path of the root: none makes a root beside that of
/// rank 0, and two that were there before are told apart.
#[test]
fn hosts_without_a_common_file_system_are_refused() {
    let [first, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let refused = || {
        let errors = refused(2, |universe| {
            let world = universe.world();
            let folder = if world.rank() == Rank(0) { &first } else { &other };
            Ok(Root::open(world, folder.path()).map(drop)?)
        });
        let text = |error: &Error| {
            let Error::Persistent(error) = error else { panic!("{error}") };
            assert_eq!(error.code(), Some(PersistentCode::RootPath), "{error}");
            error.to_string()
        };
        errors.iter().map(text).collect::<Vec<_>>()
    };
    let share = "choose a folder on a file system that all hosts share";
    let without = refused();
    assert!(without[0].contains("rank 1 failed") && without[1].contains(share), "{without:?}");
    assert!(!other.path().join("rma-root").exists(), "rank 0 makes it");
    drop(Root::open_alone(other.path()).unwrap());
    let different = refused();
    assert!(different.iter().all(|error| error.contains(share)), "{different:?}");
    // A copy has the key of its original.
    for file in ["rma-root", "rma-root.lock"] {
        fs::copy(first.path().join(file), other.path().join(file)).unwrap();
    }
    let copied = refused();
    assert!(copied[0].contains("rank 1 failed"), "{copied:?}");
    assert!(copied[1].contains("it is a copy of the root that rank 0 has"), "{copied:?}");
}

/// Elements of an array that all ranks have together.
const ELEMENTS: u32 = 10_007;

/// As many elements for each rank, or one more, and the one that it begins with.
fn share(rank: u32, ranks: u32) -> (u32, usize) {
    let start = |rank: u32| (u64::from(ELEMENTS) * u64::from(rank) / u64::from(ranks)) as u32;
    (start(rank), (start(rank + 1) - start(rank)) as usize)
}

fn open_array(universe: &Universe, root: &Path, hints: &PersistentHints) -> Result<Opened, Error> {
    let world = universe.world();
    let (_, len) = share(world.rank().into(), world.size());
    let memory = PersistentMemory::open(&Root::open(world, root)?, world, hints, len * 4)?;
    let memory = Arc::new(memory);
    let window = world.window(len, 4).create(memory.clone())?;
    Ok((memory, window))
}

/// An array of blocks is opened by any number of ranks, of which each finds its piece; what was not
/// committed is rolled back, whichever ranks open it.
#[test]
fn an_array_is_divided_among_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let hints = PersistentHints::name("array").elements::<u32>().keep_all_checkpoints(true);
    let hints = hints.block_distribution(true);
    let value = |round: u32, at: u32| at.wrapping_mul(round);
    for (round, ranks) in (1..).zip([3, 1, 5, 5, 2]) {
        on_ranks(ranks, |universe| {
            let world = universe.world();
            let (memory, window) = open_array(&universe, folder.path(), &hints)?;
            let (start, len) = share(world.rank().into(), ranks);
            let mut found = vec![0; len];
            window.local().read(0, &mut found)?;
            let differs = (start..).zip(&found).find(|(at, is)| value(round - 1, *at) != **is);
            assert_eq!(differs, None, "{round}: {ranks} ranks");
            // What there was is one version, and what was not committed is none.
            let version = memory.version();
            let values: Vec<_> = (start..).take(len).map(|at| value(round, at)).collect();
            window.local().write(0, &values)?;
            assert_eq!(memory.commit(world)?, version.map(|number| number + 1));
            window.local().write(0, &[u32::MAX])?;
            Ok(window.free()?)
        });
        let versions = Root::look(folder.path()).unwrap().window("array").unwrap().versions.len();
        // Those of other ranks are dropped.
        assert_eq!(versions, if round == 4 { 3 } else { 2 }, "{round}");
    }
    // Nothing is left of ranks that there are no more, once it is opened again.
    on_ranks(2, |universe| Ok(open_array(&universe, folder.path(), &hints)?.1.free()?));
    let files = fs::read_dir(folder.path().join("array")).unwrap();
    let names: Vec<_> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let of_others = |name: &&String| {
        let rank = name.split('.').nth(1).and_then(|rank| rank.parse::<u32>().ok());
        !name.starts_with("version") && rank.is_some_and(|rank| rank > 1)
    };
    assert_eq!(names.iter().find(of_others), None, "{names:?}");
}

#[test]
fn what_is_no_array_is_not_divided() {
    let folder = tempfile::tempdir().unwrap();
    let hints = || PersistentHints::name("array");
    on_ranks(3, |universe| Ok(open_array(&universe, folder.path(), &hints())?.1.free()?));
    for error in refused(2, |universe| open_array(universe, folder.path(), &hints()).map(drop)) {
        assert_eq!(error.class(), ErrorClass::Pmem);
        assert!(error.to_string().contains("pmem_block_distribution"), "{error}");
    }
    let blocks = || hints().block_distribution(true);
    let more = |universe: &Universe| -> Result<(), Error> {
        let world = universe.world();
        let root = Root::open(world, folder.path())?;
        PersistentMemory::open(&root, world, &blocks(), 4 * ELEMENTS as usize)?;
        Ok(())
    };
    for error in refused(2, more) {
        assert_eq!(error.class(), ErrorClass::Size, "{error}");
        let text = format!("has {} bytes", 4 * ELEMENTS);
        assert!(error.to_string().contains(&text), "{error}");
    }
    let gone = blocks().checkpoint_version(7);
    for error in refused(2, |universe| open_array(universe, folder.path(), &gone).map(drop)) {
        let Error::Persistent(error) = error else { panic!("{error}") };
        assert_eq!(error.code(), Some(PersistentCode::CheckpointVersion), "{error}");
    }
    // Nothing of that has changed it.
    on_ranks(3, |universe| Ok(open_array(&universe, folder.path(), &hints())?.1.free()?));
    // Without transactions, what it holds is no version that could be copied.
    let plain = hints().dont_use_transactions(true);
    on_ranks(3, |universe| Ok(open_array(&universe, folder.path(), &plain)?.1.free()?));
    for error in refused(2, |universe| open_array(universe, folder.path(), &blocks()).map(drop)) {
        let Error::Persistent(error) = error else { panic!("{error}") };
        assert_eq!(error.code(), Some(PersistentCode::Mode), "{error}");
    }
}

#[test]
fn what_was_committed_is_there_again_and_what_was_not_is_rolled_back() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    on_ranks(3, |universe| {
        let opened = open(&universe, root, &hints())?;
        assert_eq!((found(&universe, &opened)?, opened.0.version()), (0, Some(0)));
        assert_eq!(put_and_commit(&universe, &opened, 100)?, 1);
        assert_eq!(put_and_commit(&universe, &opened, 200)?, 2);
        opened.1.local().store(7, 5u64)?;
        // RMA's own synchronisation makes no version.
        opened.1.sync()?;
        Ok(opened.1.free()?)
    });
    on_ranks(3, |universe| {
        let opened = open(&universe, root, &hints())?;
        assert_eq!((found(&universe, &opened)?, opened.0.version()), (200, Some(2)));
        assert_eq!(put_and_commit(&universe, &opened, 300)?, 3);
        Ok(opened.1.free()?)
    });
    let window = &Root::look(root).unwrap().windows().unwrap()[0];
    assert_eq!((&*window.name, window.ranks, &*window.element), ("table", 3, "<u8"));
    assert_eq!(window.bytes, 3 * 8 * WORDS as u64);
    assert_eq!(window.versions.iter().map(|version| version.number).collect::<Vec<_>>(), [3]);
}

/// Parts of persistent memory are shared as those of `allocate_shared` are, apart from each other.
#[test]
fn what_neighbours_store_is_in_the_version() {
    for tracking in [DirtyTracking::Compare, DirtyTracking::WriteProtect] {
        let folder = tempfile::tempdir().unwrap();
        let hints = hints().dirty_tracking(tracking);
        for round in 1..4 {
            on_ranks(3, |universe| {
                let (memory, window) = open(&universe, folder.path(), &hints)?;
                let world = universe.world();
                let (left, right) = (world.rank().on_ring(-1, 3), world.rank().on_ring(1, 3));
                let value = |round: u64, rank: Rank| {
                    if round > 0 { round * 10 + u64::from(rank) } else { 0 }
                };
                let mine = window.local();
                assert_eq!(mine.load::<u64>(7)?, value(round - 1, left));
                world.barrier()?;
                let neighbours = window.shared_query(right)?;
                neighbours.store(7, value(round, world.rank()))?;
                window.sync()?;
                assert_eq!(memory.commit(world)?, Some(round));
                assert_eq!(mine.load::<u64>(7)?, value(round, left));
                world.barrier()?;
                // Of no version.
                neighbours.store(7, u64::MAX)?;
                Ok(window.free()?)
            });
        }
    }
}

#[test]
fn versions_are_returned_to() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let keep = || hints().keep_all_checkpoints(true);
    on_ranks(2, |universe| {
        let opened = open(&universe, root, &keep())?;
        for value in 1..=4 {
            assert_eq!(put_and_commit(&universe, &opened, value * 100)?, value);
        }
        Ok(opened.1.free()?)
    });
    // Numbered on behind the highest, nothing is lost; after the restored one, later ones are.
    for (append, next, left) in [(true, 5, 6), (false, 3, 4)] {
        on_ranks(2, |universe| {
            let hints = keep().checkpoint_version(2).append_checkpoints(append);
            let opened = open(&universe, root, &hints)?;
            assert_eq!((found(&universe, &opened)?, opened.0.version()), (200, Some(2)));
            let keys = opened.0.info();
            assert!(keys.contains(&("pmem_checkpoint_version", "2".to_owned())), "{keys:?}");
            assert_eq!(put_and_commit(&universe, &opened, 500)?, next);
            Ok(opened.1.free()?)
        });
        assert_eq!(Root::look(root).unwrap().window("table").unwrap().versions.len(), left);
    }
    assert_holds(root, &hints().mode(PersistentMode::Checkpoint), 500, 3);
    for error in
        refused(2, |universe| open_and_free(universe, root, &hints().checkpoint_version(9)))
    {
        assert!(matches!(&error, Error::Persistent(PersistentError::NoVersion { .. })), "{error}");
        assert!(error.to_string().contains("there are: 0, 1, 2, 3"), "{error}");
        assert_eq!(error.class(), ErrorClass::Pmem);
    }
}

/// A rank that commits alone has a newer version than the others; the newest of each is taken, or
/// the newest that all have.
#[test]
fn ranks_that_commit_alone() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    on_ranks(2, |universe| {
        let opened = open(&universe, root, &hints())?;
        put_and_commit(&universe, &opened, 100)?;
        if universe.world().rank() == Rank(1) {
            opened.1.local().store(7, 777u64)?;
            assert_eq!(opened.0.commit_alone()?, Some(2));
            opened.1.local().store(7, 888u64)?;
            // What RMA calls to persist a part is the same.
            opened.1.persist(0..8)?;
        }
        universe.world().barrier()?;
        Ok(opened.1.free()?)
    });
    on_ranks(2, |universe| {
        let opened = open(&universe, root, &hints())?;
        let is_one = universe.world().rank() == Rank(1);
        let newest = if is_one { (888, Some(3)) } else { (101, Some(1)) };
        assert_eq!((opened.1.local().load::<u64>(7)?, opened.0.version()), newest);
        Ok(opened.1.free()?)
    });
    on_ranks(2, |universe| {
        let hints = hints().mode(PersistentMode::Checkpoint).global_checkpoint(true);
        let opened = open(&universe, root, &hints)?;
        assert_eq!((found(&universe, &opened)?, opened.0.version()), (100, Some(1)));
        assert_eq!(put_and_commit(&universe, &opened, 200)?, 2);
        Ok(opened.1.free()?)
    });
    // The version that rank 1 had made alone counts no more.
    assert_holds(root, &hints(), 200, 2);
}

#[test]
fn a_window_grows() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    on_ranks(2, |universe| {
        let opened = open(&universe, root, &hints().keep_all_checkpoints(true))?;
        put_and_commit(&universe, &opened, 100)?;
        Ok(opened.1.free()?)
    });
    let longer = |universe: &Universe, hints: &PersistentHints, commits: bool| {
        let world = universe.world();
        let root = Root::open(world, root)?;
        let memory = PersistentMemory::open(&root, world, hints, 4 * WORDS * 8)?;
        let window = world.window(4 * WORDS, 8).create(Arc::new(memory))?;
        assert_eq!(window.local().load::<u64>(7)?.saturating_sub(1), 100 - u64::from(world.rank()));
        let mut behind = vec![1u64; 3 * WORDS];
        window.local().read(WORDS, &mut behind)?;
        assert!(commits || behind.iter().all(|word| *word == 0));
        window.local().store(4 * WORDS - 1, 9u64)?;
        let memory: Arc<PersistentMemory> = window.free_into()?;
        if commits {
            memory.commit(world)?;
        }
        Ok::<_, Error>(())
    };
    let expand = hints().mode(PersistentMode::Expand).keep_all_checkpoints(true);
    for error in refused(2, |universe| longer(universe, &hints(), false)) {
        assert!(matches!(&error, Error::Persistent(PersistentError::Size { .. })), "{error}");
        assert_eq!(error.class(), ErrorClass::Size);
    }
    on_ranks(2, |universe| longer(&universe, &expand, false));
    // It was not committed: all is as it was.
    on_ranks(2, |universe| open_and_free(&universe, root, &hints()));
    on_ranks(2, |universe| longer(&universe, &expand, true));
    let versions = Root::look(root).unwrap().window("table").unwrap().versions;
    assert_eq!(versions.iter().map(|version| version.number).collect::<Vec<_>>(), [2]);
    on_ranks(2, |universe| longer(&universe, &expand, true));
}

/// Double buffering by hand: what was flushed is there, and becomes a version with transactions.
#[test]
fn without_transactions() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let plain = hints().dont_use_transactions(true);
    for round in 0..3u64 {
        on_ranks(2, |universe| {
            let opened = open(&universe, root, &plain)?;
            let other = usize::try_from(round % 2).unwrap();
            assert_eq!(opened.1.local().load::<u64>(1 - other)?, round);
            opened.1.local().store(other, round + 1)?;
            assert_eq!(opened.0.commit(universe.world())?, None);
            opened.1.sync()?;
            Ok(opened.1.free()?)
        });
    }
    assert!(Root::look(root).unwrap().window("table").unwrap().is_plain);
    let returns = hints().mode(PersistentMode::Checkpoint);
    for error in refused(2, |universe| open_and_free(universe, root, &returns)) {
        assert!(matches!(&error, Error::Persistent(PersistentError::Mode { .. })), "{error}");
    }
    for _ in 0..2 {
        on_ranks(2, |universe| {
            let opened = open(&universe, root, &hints())?;
            assert_eq!(opened.0.version(), Some(1));
            assert_eq!(opened.1.local().load::<u64>(0)?, 3);
            opened.1.local().store(0, 9u64)?;
            Ok(opened.1.free()?)
        });
    }
    // What it holds then is no version, and would be gone.
    on_ranks(2, |universe| open_and_free(&universe, root, &plain));
    let error = Root::open_alone(root).unwrap().restore("table", 1).unwrap_err();
    assert_eq!(error.code(), Some(PersistentCode::Mode), "{error}");
}

#[test]
fn a_volatile_window_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let volatile = hints().volatile(true);
    for _ in 0..2 {
        on_ranks(2, |universe| {
            let opened = open(&universe, root, &volatile)?;
            assert_eq!(opened.1.local().load::<u64>(0)?, 0);
            opened.1.local().store(0, 9u64)?;
            assert_eq!(opened.0.commit(universe.world())?, None);
            let Err(RmaError::Persist { error, .. }) = opened.1.persist(0..8) else { panic!() };
            assert_eq!(error, PersistError::Volatile);
            Ok(opened.1.free()?)
        });
        assert!(Root::look(root).unwrap().windows().unwrap().is_empty());
        assert!(!root.join("table").exists());
    }
    on_ranks(2, |universe| open_and_free(&universe, root, &hints()));
    for error in refused(2, |universe| open_and_free(universe, root, &volatile)) {
        let Error::Persistent(error) = error else { panic!("{error}") };
        assert_eq!(error.code(), Some(PersistentCode::Name), "{error}");
    }
}

#[test]
fn what_cannot_be_opened_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    on_ranks(2, |universe| open_and_free(&universe, root, &hints()));
    let file = root.join("file");
    fs::write(&file, "").unwrap();
    for path in [root.join("missing"), file] {
        for error in refused(2, |universe| open_and_free(universe, &path, &hints())) {
            let Error::Persistent(error) = error else { panic!("{error}") };
            assert_eq!(error.code(), Some(PersistentCode::RootPath), "{error}");
        }
    }
    for error in refused(3, |universe| open_and_free(universe, root, &hints())) {
        let text = error.to_string();
        assert!(text.contains("made by 2 ranks, and here are 3"), "{text}");
    }
    let floats = PersistentHints::name("table").elements::<f64>();
    for error in refused(2, |universe| open_and_free(universe, root, &floats)) {
        assert!(error.to_string().contains("<u8"), "{error}");
        assert_eq!(error.class(), ErrorClass::Type);
    }
    for error in refused(2, |universe| {
        let keep = universe.world().rank() == Rank(1);
        open_and_free(universe, root, &hints().keep_all_checkpoints(keep))
    }) {
        assert!(error.to_string().contains("different hints"), "{error}");
    }
    // A second instance, and the same window once more.
    let errors = on_ranks(1, |universe| {
        let path = folder.path().join("own");
        fs::create_dir_all(&path).unwrap();
        let first = open(&universe, &path, &hints())?;
        let second = Root::open(universe.world(), &path).unwrap_err();
        let alone = Root::open_alone(&path).unwrap_err();
        let world = universe.world();
        let again = PersistentMemory::open(first.0.root(), world, &hints(), WORDS * 8);
        let deleted = first.0.root().delete("table");
        Ok([second, alone, again.unwrap_err(), deleted.unwrap_err()])
    });
    let process = format!("process {} on ", std::process::id());
    assert!(errors[0][0].to_string().contains(&process), "{}", errors[0][0]);
    assert_eq!(errors[0][1].class(), ErrorClass::FileInUse);
    for error in &errors[0][2..] {
        assert_eq!(error.code(), Some(PersistentCode::Windows), "{error}");
    }
}

/// What is wrong with the newest version is said, and older ones are there to be returned to.
#[test]
fn a_damaged_version_is_refused_and_older_ones_are_usable() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let keep = hints().keep_all_checkpoints(true);
    on_ranks(2, |universe| {
        let opened = open(&universe, root, &keep)?;
        (1..4).try_for_each(|value| put_and_commit(&universe, &opened, value * 100).map(drop))?;
        Ok(opened.1.free()?)
    });
    let blocks = root.join("table/blocks.1");
    let mut bytes = fs::read(&blocks).unwrap();
    *bytes.iter_mut().rfind(|byte| **byte != 0).unwrap() ^= 4;
    fs::write(&blocks, bytes).unwrap();
    let errors = refused(2, |universe| open_and_free(universe, root, &keep));
    let [Error::Persistent(other), Error::Persistent(own)] = &errors[..] else { panic!() };
    assert!(matches!(own, PersistentError::Damaged { .. }), "{own}");
    assert!(own.to_string().contains("blocks.1"), "{own}");
    assert!(matches!(other, PersistentError::Elsewhere { rank: Rank(1), .. }), "{other}");
    assert_eq!(other.code(), Some(PersistentCode::CheckpointVersion));
    let management = Root::open_alone(root).unwrap();
    let verdicts = management.verify("table", |_, _| {}).unwrap();
    let intact: Vec<_> = verdicts.iter().map(|(_, flaw)| flaw.is_none()).collect();
    assert_eq!(intact, [true, true, true, false]);
    assert!(management.restore("table", 3).is_err());
    assert_eq!(management.restore("table", 2).unwrap(), 4);
    drop(management);
    assert_holds(root, &keep, 200, 4);
}

#[test]
fn versions_are_managed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let keep = hints().keep_all_checkpoints(true);
    on_ranks(2, |universe| {
        let opened = open(&universe, path, &keep)?;
        (1..4).try_for_each(|value| put_and_commit(&universe, &opened, value * 100).map(drop))?;
        Ok(opened.1.free()?)
    });
    let root = Root::open_alone(path).unwrap();
    // Only the first block of each rank has changed.
    let first = || std::iter::once(0..16384).collect::<Vec<_>>();
    assert_eq!(root.diff("table", 1, 2).unwrap(), [(0, first()), (1, first())]);
    assert_eq!(root.diff("table", 2, 2).unwrap(), [(0, vec![]), (1, vec![])]);
    let mut npy = Vec::new();
    root.export("table", 2, None, true, &mut npy).unwrap();
    assert_eq!(npy.len(), 128 + 2 * WORDS * 8);
    assert!(npy.starts_with(b"\x93NUMPY\x01\x00"));
    let mut raw = Vec::new();
    root.export("table", 2, Some(1), false, &mut raw).unwrap();
    assert_eq!(raw[56..64], 200u64.to_le_bytes());
    root.delete_version("table", 3).unwrap();
    root.delete_version("table", 1).unwrap();
    let error = root.delete_version("table", 3).unwrap_err();
    assert!(error.to_string().contains("there are: 0, 2"), "{error}");
    root.delete_version("table", 0).unwrap();
    let error = root.delete_version("table", 2).unwrap_err();
    assert_eq!(error.code(), Some(PersistentCode::Versions), "{error}");
    drop(root);
    // The number of a version that was deleted is not given again.
    on_ranks(2, |universe| {
        let opened = open(&universe, path, &keep)?;
        assert_eq!((found(&universe, &opened)?, opened.0.version()), (200, Some(2)));
        assert_eq!(put_and_commit(&universe, &opened, 500)?, 4);
        Ok(opened.1.free()?)
    });
    let root = Root::open_alone(path).unwrap();
    root.delete("table").unwrap();
    assert_eq!(root.window("table").unwrap_err().code(), Some(PersistentCode::Name));
    assert!(root.windows().unwrap().is_empty());
}

/// Without transactions, what the window lies on is all that there is.
#[test]
fn a_file_that_was_cut_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let plain = hints().dont_use_transactions(true);
    let (len, needed) = (WORDS as u64 * 4, WORDS as u64 * 8);
    let errors = refused(2, |universe| {
        let world = universe.world();
        let (memory, window) = open(universe, folder.path(), &plain)?;
        memory.commit(world)?;
        if world.rank() == Rank(0) {
            let file = folder.path().join("table/work.0");
            let file = fs::OpenOptions::new().write(true).open(file);
            file.and_then(|file| file.set_len(len)).unwrap();
        }
        let committed = memory.commit(world);
        let freed = window.free();
        assert!(freed.is_err() || world.rank() != Rank(0), "it says so again");
        Ok(committed.map(drop)?)
    });
    let path = "table/work.0".to_owned();
    let [Error::Persistent(own), Error::Persistent(other)] = &errors[..] else { panic!() };
    assert_eq!(*own, PersistentError::Cut { path, len, needed });
    assert!(own.to_string().contains("put it back from a copy"), "{own}");
    assert_eq!(own.class(), ErrorClass::Io);
    assert!(matches!(other, PersistentError::Elsewhere { rank: Rank(0), .. }), "{other}");
}

/// Nor does it at a target whose origin has memory that can be durable.
#[test]
fn another_rank_makes_no_version_of_this_ones_part() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |universe| {
        let world = universe.world();
        let root = Root::open(world, folder.path())?;
        let memory = Arc::new(PersistentMemory::open(&root, world, &hints(), WORDS * 8)?);
        let file = StorageHints::file(folder.path().join("rma-root.file"));
        let window = match world.rank() {
            Rank(0) => world.window(WORDS, 8).create(memory.clone())?,
            _ => {
                let file = StorageMemory::open(&universe, &file, WORDS * 8).unwrap();
                world.window(WORDS, 8).create(Arc::new(file))?
            }
        };
        if world.rank() == Rank(1) {
            let refused = window.sync_remote(Rank(0));
            let Err(RmaError::Persist { error, .. }) = refused else { panic!("{refused:?}") };
            assert_eq!(error, PersistError::Volatile);
            window.sync_remote(Rank(1))?;
        }
        world.barrier()?;
        assert_eq!(memory.version(), Some(0));
        Ok(window.free()?)
    });
}

/// One rank grows, and the others begin as they were: all of them make the record.
#[test]
fn one_rank_grows_without_transactions() {
    let folder = tempfile::tempdir().unwrap();
    let plain = hints().dont_use_transactions(true);
    for more in [0, 8] {
        let hints = plain.clone().mode(PersistentMode::Expand);
        on_ranks(2, |universe| {
            let world = universe.world();
            let len = WORDS * 8 + if world.rank() == Rank(1) { more } else { 0 };
            let root = Root::open(world, folder.path())?;
            assert_eq!(PersistentMemory::open(&root, world, &hints, len)?.len(), len);
            Ok(world.barrier()?)
        });
        let window = Root::look(folder.path()).unwrap().window("table").unwrap();
        assert_eq!(window.bytes, 2 * 8 * WORDS as u64 + more as u64);
    }
}

/// Names are names: `{rank}` in them is no placeholder. A root is found wherever the process is.
#[test]
fn roots_and_windows_of_unusual_names() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.{rank}");
    fs::create_dir(&root).unwrap();
    let named = PersistentHints::name("table.{rank}").elements::<u64>();
    for value in [0, 100] {
        on_ranks(2, |universe| {
            let opened = open(&universe, &root, &named)?;
            assert_eq!(found(&universe, &opened)?, value);
            put_and_commit(&universe, &opened, value + 100)?;
            Ok(opened.1.free()?)
        });
    }
    assert!(root.join("table.{rank}/work.1").exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let here = std::env::current_dir().unwrap();
    let relative = "../".repeat(here.components().count() - 1) + &root.to_str().unwrap()[1..];
    let path = Path::new(&relative);
    let opened = on_ranks(1, |universe| Ok(Root::open(universe.world(), path)?.path().to_owned()));
    let alone = Root::open_alone(path).unwrap();
    for found in [&*opened[0], alone.path(), Root::look(path).unwrap().path()] {
        assert!(found.is_absolute(), "{}", found.display());
    }
}

/// A version of one rank hides those of all that it took the place of, also when it is deleted.
#[test]
fn a_deleted_version_brings_nothing_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let keep = hints().keep_all_checkpoints(true);
    on_ranks(2, |universe| {
        let opened = open(&universe, path, &keep)?;
        (1..4).try_for_each(|value| put_and_commit(&universe, &opened, value * 100).map(drop))?;
        Ok(opened.1.free()?)
    });
    on_ranks(2, |universe| {
        let opened = open(&universe, path, &keep.clone().checkpoint_version(1))?;
        if universe.world().rank() == Rank(0) {
            opened.1.local().store(7, 777u64)?;
            assert_eq!(opened.0.commit_alone()?, Some(2));
        }
        universe.world().barrier()?;
        Ok(opened.1.free()?)
    });
    let root = Root::open_alone(path).unwrap();
    let held = |rank: u32, number: u64| {
        root.export("table", number, Some(rank), false, &mut Vec::new()).is_ok()
    };
    let all = |rank: u32| [0, 1, 2, 3].map(|number| held(rank, number));
    assert_eq!((all(0), all(1)), ([true, true, true, false], [true; 4]));
    root.delete_version("table", 2).unwrap();
    let [zero, one] = [[true, true, false, false], [true, true, false, true]];
    assert_eq!((all(0), all(1)), (zero, one));
}

/// A file whose name has the last number there is, which no commit has given.
#[test]
fn numbers_that_are_used_up_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    on_ranks(2, |universe| open_and_free(&universe, path, &hints()));
    fs::write(path.join(format!("table/version.{}", u64::MAX)), "").unwrap();
    let error = Root::open_alone(path).unwrap().restore("table", 0).unwrap_err();
    assert!(error.to_string().contains("move that file away"), "{error}");
    for error in refused(2, |universe| {
        let opened = open(universe, path, &hints().checkpoint_version(0))?;
        let committed = opened.0.commit(universe.world());
        opened.1.free()?;
        committed.map(drop).map_err(Error::Persistent)
    }) {
        assert!(error.to_string().contains("move that file away"), "{error}");
    }
}

/// In a process of its own, which may write files of 64 MiB: blocks of more are an error, and no
/// signal; and the window goes on.
#[test]
fn a_limit_of_the_length_of_files_is_no_space() {
    const INSIDE: &str = "RMA_TEST_INSIDE_LIMIT";
    if std::env::var_os(INSIDE).is_none() {
        let run =
            "ulimit -f 131072; exec \"$0\" --exact a_limit_of_the_length_of_files_is_no_space";
        let mut command = std::process::Command::new("sh");
        let this = std::env::current_exe().unwrap();
        let done = command.args(["-c", run]).arg(this).env(INSIDE, "1").output().unwrap();
        assert!(done.status.success(), "{done:?}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (len, keep) = (12 << 20, hints().keep_all_checkpoints(true));
    let fits = on_ranks(1, |universe| {
        let world = universe.world();
        let root = Root::open(world, folder.path())?;
        let memory = Arc::new(PersistentMemory::open(&root, world, &keep, len)?);
        let window = world.window(len / 8, 8).create(memory.clone())?;
        let mut fits = 0;
        loop {
            (0..len / 16384).try_for_each(|block| window.local().store(block * 2048, fits + 1))?;
            match memory.commit(world) {
                Ok(version) => fits = version.unwrap(),
                Err(error) => {
                    break assert!(matches!(error, PersistentError::Space { .. }), "{error}");
                }
            }
        }
        assert_eq!(memory.version(), Some(fits));
        let refused = window.fence(Assert::NONE)?.end_persist();
        let Err(RmaError::Persist { error, .. }) = refused else { panic!("{refused:?}") };
        assert!(matches!(error, PersistError::NoSpace { .. }), "{error}");
        // As it was: nothing has changed, and that needs no block.
        (0..len / 16384).try_for_each(|block| window.local().store(block * 2048, fits))?;
        assert_eq!(memory.commit(world)?, Some(fits + 1));
        window.free()?;
        Ok(fits)
    });
    assert_eq!(fits, [5], "64 MiB have room for five times 12 MiB");
}
