//! Windows on storage and persistent windows on the file systems that there are, each made by the
//! test: with room, full, with a quota, read-only, and one that dies in mid-run.
mod mounts;

use mounts::{Volume, in_namespace, run, skip};
use rma::{
    Assert, Error, ErrorClass, LockKind, OnStorage, PersistError, PersistentCode, PersistentError,
    PersistentHints, PersistentMemory, Rank, RmaError, Root, StorageFactor, StorageHints, Universe,
    Window,
};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// By name: how one is made, by which options it is mounted, and of how many bytes.
const VOLUMES: [(&str, &[&str], &str, u64); 4] = [
    ("tmpfs", &[], "mode=700", 16 * MIB),
    ("ext4", &["-q"], "errors=remount-ro", 16 * MIB),
    ("xfs", &["-q", "-m", "reflink=1"], "nodev", 320 * MIB),
    ("btrfs", &["-q"], "nodev", 256 * MIB),
];

/// A volume of that file system; if there is none, says why.
fn volume(test: &str, name: &str) -> Option<Volume> {
    let (kind, mkfs, options, bytes) = VOLUMES.iter().find(|volume| volume.0 == name).unwrap();
    let made = Volume::of(kind, mkfs, options, *bytes);
    made.inspect_err(|reason| skip(&format!("{test} on {name}"), reason)).ok()
}

/// Calls `body` with a volume of each of these.
fn on_volumes(test: &str, names: &[&str], body: impl Fn(&Volume, &str)) {
    if in_namespace(test) {
        let made = names.iter().filter_map(|name| Some((volume(test, name)?, name)));
        made.for_each(|(volume, name)| body(&volume, name));
    }
}

fn on_ranks<T: Send>(body: impl Fn(&Universe) -> Result<T, Error> + Sync) -> Vec<T> {
    let done = rma::local(2, |universe| body(&universe)).unwrap();
    done.into_iter().map(|rank| rank.unwrap()).collect()
}

/// The error of each rank.
fn refused(body: impl Fn(&Universe) -> Result<(), Error> + Sync) -> Vec<Error> {
    on_ranks(|universe| Ok(body(universe).unwrap_err()))
}

/// What word `at` of a rank holds in a version, or in round 0, 1, … of a window.
fn word(round: u64, rank: Rank, at: usize) -> u64 {
    if round == 0 { 0 } else { round << 32 | u64::from(rank) << 24 | at as u64 }
}

fn fill(window: &Window, round: u64, rank: Rank) -> Result<(), Error> {
    (0..WORDS).try_for_each(|at| Ok(window.local().store(at, word(round, rank, at))?))
}

fn holds(window: &Window, round: u64, rank: Rank) -> Result<(), Error> {
    let mut words = vec![0; WORDS];
    window.local().read(0, &mut words)?;
    let wrong = (0..WORDS).find(|at| words[*at] != word(round, rank, *at));
    assert_eq!(wrong, None, "round {round} of rank {rank}: {:x?}", wrong.map(|at| words[at]));
    Ok(())
}

/// Of each part.
const WORDS: usize = 40_000;

/// A window on files, by typed hints.
fn on_files(universe: &Universe, hints: &StorageHints) -> Result<Window, Error> {
    Ok(universe.world().window(WORDS, 8).on_storage(hints)?.allocate()?)
}

type Opened = (Arc<PersistentMemory>, Window);

fn persistent(universe: &Universe, path: &Path) -> Result<Opened, Error> {
    let world = universe.world();
    let root = Root::open(world, path)?;
    let hints = PersistentHints::name("state").keep_all_checkpoints(true);
    let memory = Arc::new(PersistentMemory::open(&root, world, &hints, WORDS * 8)?);
    let window = world.window(WORDS, 8).create(memory.clone())?;
    Ok((memory, window))
}

/// The next job finds that version of these words.
fn is_version(path: &Path, version: u64) {
    on_ranks(|universe| {
        let (memory, window) = persistent(universe, path)?;
        assert_eq!(memory.version(), Some(version));
        holds(&window, version, universe.world().rank())?;
        Ok(window.free()?)
    });
}

/// Windows and versions, with all that they ask of a file system.
fn works(path: &Path) {
    let part = StorageHints::file(path.join("part.{rank}"));
    let combined = StorageHints::file(path.join("half.{rank}")).unlink(true);
    let combined = combined.factor(StorageFactor::Share(0.5)).unwrap();
    for round in 0..3 {
        on_ranks(|universe| {
            let world = universe.world();
            let right = world.rank().on_ring(1, 2);
            let window = on_files(universe, &part)?;
            holds(&window, round, world.rank())?;
            let words: Vec<_> = (0..WORDS).map(|at| word(round + 1, right, at)).collect();
            let epoch = window.fence(Assert::NONE)?;
            epoch.put(right, 0, &words)?;
            epoch.end()?;
            window.sync_remote(right)?;
            window.free()?;
            let shared = StorageHints::file(path.join("shared"));
            let window = world.window(WORDS, 8).on_storage(&shared)?.allocate_shared()?;
            window.shared_query(right)?.store(7, round)?;
            window.sync()?;
            window.free()?;
            let window = on_files(universe, &combined)?;
            fill(&window, 1, world.rank())?;
            window.sync()?;
            Ok(window.free()?)
        });
    }
    let root = path.join("root");
    fs::create_dir(&root).unwrap();
    for version in 0..4 {
        is_version(&root, version);
        on_ranks(|universe| {
            let (memory, window) = persistent(universe, &root)?;
            fill(&window, version + 1, universe.world().rank())?;
            memory.commit(universe.world())?;
            Ok(window.free()?)
        });
    }
    let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.filter(|name| *name != "lost+found").collect();
    names.sort();
    assert_eq!(names, ["part.0", "part.1", "root", "shared"]);
}

#[test]
fn on_every_file_system() {
    const TEST: &str = "on_every_file_system";
    on_volumes(TEST, &["tmpfs", "ext4", "xfs", "btrfs"], |volume, name| {
        works(&volume.path());
        if name != "tmpfs" {
            // What is said to be durable is so when it is mounted again.
            volume.unmount().unwrap();
            volume.mount("nodev").unwrap();
            is_version(&volume.path().join("root"), 4);
        }
    });
}

/// Takes all space that is left.
fn take_all(path: &Path) -> File {
    let file = File::create(path).unwrap();
    let mut len = 0;
    for step in (12..=26).rev().map(|bits| 1 << bits) {
        while fallocate(&file, FallocateFlags::empty(), len, step).is_ok() {
            len += step;
        }
    }
    file
}

/// Nothing is made where there is no space, and it is said; a commit without space makes nothing,
/// and the next one does when there is some.
#[test]
fn full() {
    on_volumes("full", &["tmpfs", "ext4", "xfs", "btrfs"], |volume, name| {
        let path = volume.path();
        let root = path.join("root");
        fs::create_dir(&root).unwrap();
        is_version(&root, 0);
        let filler = path.join("filler");
        fs::write(path.join("part.0"), "four").unwrap();
        on_ranks(|universe| {
            let world = universe.world();
            let (memory, window) = persistent(universe, &root)?;
            fill(&window, 1, world.rank())?;
            let taken = (world.rank() == Rank(0)).then(|| take_all(&filler));
            world.barrier()?;
            let request = memory.request_commit(world)?;
            while !request.test() {
                std::thread::yield_now();
            }
            let synced = window.sync();
            let Err(RmaError::Persist { error: PersistError::NoSpace { .. }, .. }) = synced else {
                panic!("{name}: {synced:?}")
            };
            // Of the version that was asked for, and of another one.
            for _ in 0..2 {
                let error = memory.commit(world).unwrap_err();
                assert_eq!(error.code(), Some(PersistentCode::NoMem), "{name}: {error}");
            }
            let request = memory.request_commit(world)?;
            let error = request.wait().unwrap_err();
            assert_eq!(error.code(), Some(PersistentCode::NoMem), "{name}: {error}");
            window.sync()?;
            // A window over the same memory, which is freed all the same.
            let second = world.window(WORDS, 8).create(memory.clone())?;
            drop(memory.request_commit(world)?);
            let freed = second.free().map_err(|refused| refused.error);
            let Err(RmaError::Persist { error: PersistError::Refused { .. }, .. }) = freed else {
                panic!("{name}: {freed:?}")
            };
            let error = memory.commit(world).unwrap_err();
            assert_eq!(error.code(), Some(PersistentCode::NoMem), "{name}: {error}");
            if world.rank() == Rank(0) {
                drop(taken);
                fs::remove_file(&filler).unwrap();
                // Some file systems give space back when they write next.
                run("sync", &[&"-f", &path]).unwrap();
            }
            world.barrier()?;
            assert_eq!(memory.commit(world)?, Some(1));
            Ok(window.free()?)
        });
        is_version(&root, 1);
        let taken = take_all(&filler);
        // Neither of a new file nor of one that is there.
        let hints = StorageHints::file(path.join("part.{rank}"));
        for error in refused(|universe| on_files(universe, &hints).map(drop)) {
            let is_full = error.class() == ErrorClass::NoSpace
                && error.to_string().contains("the file system is full");
            let is_elsewhere = error.to_string().contains("its own error says why");
            assert!(is_full || is_elsewhere, "{name}: {:?}: {error}", error.class());
        }
        assert_eq!(fs::metadata(path.join("part.0")).unwrap().len(), 4, "{name}");
        assert!(!path.join("part.1").exists(), "{name}");
        drop(taken);
    });
}

/// The quota of a subvolume is used up, where the file system itself has space.
#[test]
fn quota() {
    on_volumes("quota", &["btrfs"], |volume, _| {
        let part = volume.path().join("part");
        run("btrfs", &[&"quota", &"enable", &volume.path()]).unwrap();
        run("btrfs", &[&"subvolume", &"create", &part]).unwrap();
        run("btrfs", &[&"qgroup", &"limit", &"4M", &part]).unwrap();
        // What is compressed is not written in place.
        run("chattr", &[&"+c", &part]).unwrap();
        is_version(&part, 0);
        let hints = StorageHints::file(part.join("large"));
        let errors = refused(|universe| {
            let window = universe.world().window(1 << 20, 8).on_storage(&hints)?;
            let window = window.allocate_shared()?;
            Ok(window.free()?)
        });
        let text = errors[0].to_string();
        assert!(text.contains("the quota is used up"), "{text}");
        assert_eq!(errors[0].class(), ErrorClass::Quota);
        assert!(!part.join("large").exists());
        // What is there goes on, until versions have taken all of it.
        let committed = on_ranks(|universe| {
            let (memory, window) = persistent(universe, &part)?;
            let rank = universe.world().rank();
            let mut versions = 1..;
            let (version, error) = loop {
                let version = versions.next().expect("no end");
                fill(&window, version, rank)?;
                if let Err(error) = memory.commit(universe.world()) {
                    break (version - 1, error);
                }
            };
            assert_eq!(error.code(), Some(PersistentCode::NoMem), "{error}");
            window.free()?;
            Ok(version)
        });
        run("btrfs", &[&"qgroup", &"limit", &"none", &part]).unwrap();
        is_version(&part, committed[0]);
    });
}

/// A file system for reading makes no window, and says so; what was committed is there when it may
/// be written again.
#[test]
fn mounted_for_reading() {
    on_volumes("mounted_for_reading", &["tmpfs", "ext4", "xfs", "btrfs"], |volume, name| {
        let path = volume.path();
        let hints = StorageHints::file(path.join("part.{rank}"));
        is_version(&path, 0);
        on_ranks(|universe| Ok(on_files(universe, &hints)?.free()?));
        run("mount", &[&"-o", &"remount,ro", &path]).unwrap();
        for error in refused(|universe| on_files(universe, &hints).map(drop)) {
            assert_eq!(error.class(), ErrorClass::ReadOnly, "{name}: {error}");
            assert!(error.to_string().contains("mounted for writing"), "{name}: {error}");
        }
        let errors = refused(|universe| persistent(universe, &path).map(drop));
        let text = errors[0].to_string();
        assert!(text.contains("cannot write there"), "{name}: {text}");
        // It may be looked at.
        assert_eq!(Root::look(&path).unwrap().windows().unwrap().len(), 1);
        run("mount", &[&"-o", &"remount,rw", &path]).unwrap();
        is_version(&path, 0);
    });
}

/// How a file system is brought down while it is used.
fn bring_down(volume: &Volume, name: &str) -> Result<(), String> {
    match name {
        // It finds an error, and lets no process write any more.
        "ext4" => {
            let source = run("findmnt", &[&"-n", &"-o", &"SOURCE", &volume.path()])?;
            let device = source.trim().trim_start_matches("/dev/").to_owned();
            let trigger = format!("/sys/fs/ext4/{device}/trigger_fs_error");
            fs::write(&trigger, "1").map_err(|error| format!("{trigger}: {error}"))
        }
        // As if its device were gone, with all that it had not written.
        _ => run("xfs_io", &[&"-x", &"-c", &"shutdown", &volume.path()]).map(drop),
    }
}

/// It becomes read-only, or is gone, in mid-run: all that is to be durable then is an error, again
/// and again; what was committed is there when it is mounted again.
#[test]
fn gone_in_mid_run() {
    const TEST: &str = "gone_in_mid_run";
    on_volumes(TEST, &["ext4", "xfs"], |volume, name| {
        let path = volume.path();
        let hints = StorageHints::file(path.join("part.{rank}"));
        let went = on_ranks(|universe| {
            let world = universe.world();
            let (memory, window) = persistent(universe, &path)?;
            let part = on_files(universe, &hints)?;
            fill(&window, 1, world.rank())?;
            fill(&part, 1, world.rank())?;
            assert_eq!(memory.commit(world)?, Some(1));
            part.sync()?;
            // What is touched is in memory: a page that is not there would end the process.
            fill(&window, 2, world.rank())?;
            fill(&part, 2, world.rank())?;
            let went = if world.rank() == Rank(0) { bring_down(volume, name) } else { Ok(()) };
            let all = world.allgather(&[u64::from(went.is_ok())])?;
            if all != [1, 1] {
                return Ok(went);
            }
            let synced = part.sync();
            let Err(RmaError::Persist { error: PersistError::System { .. }, .. }) = synced else {
                panic!("{name}: durable where nobody writes: {synced:?}")
            };
            let later = part.sync();
            let Err(RmaError::Persist { error: PersistError::Poisoned { .. }, .. }) = later else {
                panic!("{name}: {later:?}")
            };
            for _ in 0..2 {
                let error = memory.commit(world).unwrap_err();
                assert!(!matches!(error, PersistentError::Space { .. }), "{name}: {error}");
            }
            part.free()?;
            window.free()?;
            Ok(Ok(()))
        });
        if let Some(reason) = went.into_iter().find_map(Result::err) {
            return skip(&format!("{TEST} on {name}"), &reason);
        }
        volume.unmount().unwrap();
        if name == "ext4" {
            // It has found an error, and corrects it.
            _ = run("fsck.ext4", &[&"-p", &"-f", &volume.image()]);
        }
        volume.mount("nodev").unwrap();
        is_version(&path, 1);
        on_ranks(|universe| {
            let window = on_files(universe, &hints)?;
            let lock = window.lock(universe.world().rank(), LockKind::Exclusive)?;
            lock.unlock()?;
            Ok(window.free()?)
        });
    });
}

/// A loop device of a file of this folder, which goes with the last use of it.
fn device(folder: &Path) -> Result<(PathBuf, File), String> {
    let image = folder.join("image");
    let made = File::create(&image).and_then(|file| file.set_len(4 * MIB));
    made.map_err(|error| error.to_string())?;
    let path = run("losetup", &[&"--find", &"--show", &image])?;
    let path = PathBuf::from(path.trim());
    let open = File::open(&path).map_err(|error| format!("{}: {error}", path.display()));
    run("losetup", &[&"--detach", &path])?;
    Ok((path, open?))
}

/// Both ranks have their bytes of one device; it has those that it has, and is not to be removed.
#[test]
fn block_device() {
    const TEST: &str = "block_device";
    if !in_namespace(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, open) = match device(folder.path()) {
        Ok(device) => device,
        Err(reason) => return skip(TEST, &reason),
    };
    let hints = StorageHints::shared_file(&path).offset(MIB);
    for round in 0..2 {
        on_ranks(|universe| {
            let world = universe.world();
            let window = on_files(universe, &hints)?;
            let told = window.get_info("file_perm");
            assert_eq!(told, None, "nobody has made it");
            holds(&window, round, world.rank())?;
            let right = world.rank().on_ring(1, 2);
            let words: Vec<_> = (0..WORDS).map(|at| word(round + 1, right, at)).collect();
            let epoch = window.fence(Assert::NONE)?;
            epoch.put(right, 0, &words)?;
            epoch.end()?;
            window.sync()?;
            Ok(window.free()?)
        });
    }
    // It was all said to be durable.
    let image = fs::read(folder.path().join("image")).unwrap();
    assert_eq!(image[MIB as usize..][8..16], word(2, Rank(0), 1).to_le_bytes());
    for (hints, said, class) in [
        (hints.clone().offset(4 * MIB - 64), "the device ends before", ErrorClass::NoSpace),
        (hints.clone().unlink(true), "storage_alloc_unlink", ErrorClass::BadFile),
    ] {
        let errors = refused(|universe| on_files(universe, &hints).map(drop));
        let (text, classes) = (errors[0].to_string(), errors.iter().map(Error::class));
        assert!(text.contains(said) && text.contains(path.to_str().unwrap()), "{text}");
        assert!(classes.into_iter().any(|found| found == class), "{text}");
    }
    assert!(path.exists());
    drop(open);
}
