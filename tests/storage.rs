//! Windows on storage, as a program makes them.
use core::pin::pin;
use core::task::{Context, Waker};
use rma::{
    Assert, DurableBy, ErrorClass, LockKind, OnStorage, Op, Path as Route, PersistError, Rank,
    RmaError, StorageError, StorageFactor, StorageHints, StorageMemory, StoragePart, WindowError,
};
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PAGE: usize = 4096;

/// Ranks share one file, each with its own bytes of it, and put into each other's.
#[test]
fn ranks_share_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all");
    let done = rma::local(3, |universe| {
        let world = universe.world();
        let (me, right) = (u64::from(world.rank()), world.rank().on_ring(1, world.size()));
        let hints = StorageHints::file(&path).offset(me * PAGE as u64);
        let memory = StorageMemory::open(&universe, &hints, PAGE)?;
        let window = world.window(PAGE / 8, 8).create(Arc::new(memory))?;
        assert_eq!(window.path(right), Some(Route::LoadStore), "{}", window.explain());
        let epoch = window.fence(Assert::NONE)?;
        epoch.put(right, 7, &[me + 100])?;
        epoch.end()?;
        window.sync()?;
        window.free()?;
        Ok::<_, rma::Error>(())
    });
    done.unwrap().into_iter().for_each(|rank| rank.unwrap());
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 3 * PAGE);
    let word = |rank: usize| bytes[rank * PAGE + 56..][..8].try_into().map(u64::from_le_bytes);
    assert_eq!([0, 1, 2].map(|rank| word(rank).unwrap()), [102, 100, 101]);
}

/// Listing 1 of the paper, offset 0 everywhere: one rank has the bytes, the other says so.
#[test]
fn ranks_that_want_the_same_bytes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all");
    let opened = rma::local(2, |universe| {
        let memory = StorageMemory::open(&universe, &StorageHints::file(&path), PAGE);
        universe.world().barrier()?;
        let error = memory.as_ref().err().cloned();
        universe.world().barrier()?;
        Ok::<_, rma::Error>(error)
    });
    let errors: Vec<_> = opened.unwrap().into_iter().filter_map(Result::unwrap).collect();
    let [error @ StorageError::InUse { start: 0, end: 4096, .. }] = &errors[..] else {
        panic!("{errors:?}")
    };
    assert_eq!(error.class(), ErrorClass::FileInUse);
}

/// Listing 3: a region of a dynamic window. `sync` makes it durable, and leaves others alone.
#[test]
fn attached_to_a_dynamic_window() {
    let folder = tempfile::tempdir().unwrap();
    let found = rma::local(2, |universe| {
        let world = universe.world();
        let right = world.rank().on_ring(1, world.size());
        let hints = StorageHints::file(folder.path().join("{rank}"));
        let hints = hints.factor(StorageFactor::Share(0.5))?;
        let window = world.window(0, 1).create_dynamic()?;
        let plain = window.attach(vec![0u64; 4])?;
        let memory = StorageMemory::open(&universe, &hints, 2 * PAGE)?;
        let region = window.attach(Arc::new(memory))?;
        let there = world.allgather(&[region.address()])?[usize::from(right)];
        let epoch = window.lock_all()?;
        // Across the border of memory and file.
        epoch.put(right, there + PAGE as u64 - 8, &[1u64, 2])?;
        epoch.fetch_and_op(right, there + PAGE as u64, Op::Sum, 40u64)?;
        epoch.unlock()?;
        world.barrier()?;
        window.sync()?;
        window.detach(plain)?;
        let memory = Arc::into_inner(window.detach(region)?).unwrap();
        assert_eq!(memory.stored(), PAGE..2 * PAGE);
        memory.close()?;
        window.free()?;
        Ok::<_, rma::Error>(())
    });
    found.unwrap().into_iter().for_each(|rank| rank.unwrap());
    for rank in ["0", "1"] {
        let bytes = fs::read(folder.path().join(rank)).unwrap();
        assert_eq!((bytes.len(), &bytes[..8]), (PAGE, &42u64.to_le_bytes()[..]));
    }
}

/// `sync` says when it could not make a part durable, or a region, and goes on saying so.
#[test]
fn sync_fails_where_storage_fails() {
    let done = rma::local(1, |universe| {
        let world = universe.world();
        let refused = PersistError::System { call: "a device", errno: 5 };
        let window = world.window(1, 8).create(Arc::new(failing::Failing::new()))?;
        for _ in 0..2 {
            let Err(RmaError::Persist { rank: Rank(0), start: 0, end: 8, error, .. }) =
                window.sync()
            else {
                panic!("it is not durable")
            };
            assert_eq!(error, refused);
        }
        window.free()?;
        let memory = world.window(1, 8).allocate()?;
        memory.sync()?;
        memory.free()?;
        let dynamic = world.window(0, 1).create_dynamic()?;
        let region = dynamic.attach(Arc::new(failing::Failing::new()))?;
        let at = region.address();
        let Err(RmaError::Persist { start, end, error, .. }) = dynamic.sync() else {
            panic!("its region is not durable")
        };
        assert_eq!((start, end, error), (at, at + 64, refused));
        let inverted = dynamic.persist(at + 10..at + 5);
        assert!(matches!(inverted, Err(RmaError::OutOfRange { .. })), "{inverted:?}");
        dynamic.detach(region)?;
        dynamic.sync()?;
        dynamic.free()?;
        Ok::<_, rma::Error>(())
    });
    done.unwrap().into_iter().for_each(|rank| rank.unwrap());
}

/// A region that another thread takes away while all are synchronised is no failure, and comes back
/// as its user's alone.
#[test]
fn regions_leave_while_their_window_is_synchronised() {
    let folder = tempfile::tempdir().unwrap();
    let done = rma::local(1, |universe| {
        let hints = StorageHints::file(folder.path().join("file"));
        let window = universe.world().window(0, 1).create_dynamic()?;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let synced = scope.spawn(|| {
                while !over.load(Relaxed) {
                    window.sync()?;
                }
                Ok::<_, rma::Error>(())
            });
            for _ in 0..200 {
                let memory = StorageMemory::open(&universe, &hints, PAGE)?;
                let region = window.attach(Arc::new(memory))?;
                let memory = window.detach(region)?;
                assert!(Arc::into_inner(memory).is_some());
            }
            over.store(true, Relaxed);
            synced.join().expect("no panic")
        })?;
        window.free()?;
        Ok::<_, rma::Error>(())
    });
    done.unwrap().into_iter().for_each(|rank| rank.unwrap());
}

/// Storage by hints and by typed hints: each rank's own file; what is in force is told, and what
/// was written is there after `free`.
#[test]
fn windows_lie_on_storage_by_hints() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("part.{rank}");
    let name = file.to_str().unwrap();
    let done = rma::local(2, |universe| {
        let world = universe.world();
        let (me, right) = (world.rank(), world.rank().on_ring(1, 2));
        let hints = StorageHints::file(&file).factor(StorageFactor::Share(0.5))?;
        let typed = world.window(PAGE / 4, 8).on_storage(&hints)?.allocate()?;
        let own = folder.path().join(format!("part.{me}"));
        let part = typed.attribute::<StoragePart>().unwrap();
        assert_eq!((&part.path, part.offset, part.len), (&own, 0, 2 * PAGE));
        assert_eq!(part.stored, PAGE..2 * PAGE);
        assert!(typed.explain().contains("storage_alloc_factor=0.5"), "{}", typed.explain());
        // An operator across the border of memory and file.
        let epoch = typed.fence(Assert::NONE)?;
        epoch.put(right, PAGE as u64 / 8 - 1, &[1u64, 70 + u64::from(me)])?;
        epoch.end()?;
        typed.free()?;

        let builder = world.window(PAGE / 8, 8).hint("alloc_type", "storage")?;
        let builder =
            builder.hint("storage_alloc_filename", name)?.hint("access_style", "random")?;
        let builder = builder.hint("striping_unit", "65536")?.hint("file_perm", "0640")?;
        let window = builder.allocate()?;
        assert_eq!(window.path(right), Some(Route::LoadStore), "{}", window.explain());
        assert_eq!(window.local().load::<u64>(0)?, 70 + u64::from(right));
        let own = own.to_str().unwrap();
        for (key, value) in [
            ("alloc_type", Some("storage")),
            ("storage_alloc_filename", Some(own)),
            ("storage_alloc_offset", Some("0")),
            ("storage_alloc_factor", Some("1")),
            ("storage_alloc_order", Some("memory_first")),
            ("storage_alloc_unlink", Some("false")),
            ("storage_alloc_discard", Some("false")),
            ("access_style", Some("random")),
            // The file was there, and no file system here stripes.
            ("file_perm", None),
            ("striping_unit", None),
        ] {
            assert_eq!(window.get_info(key).as_deref(), value, "{key}");
        }
        window.local().store(1, 5u64)?;
        window.free()?;
        let plain = world.window(1, 8).allocate()?;
        assert_eq!(plain.get_info("alloc_type").as_deref(), Some("memory"));
        assert!(plain.attribute::<StoragePart>().is_none());
        plain.free()?;
        Ok::<_, rma::Error>(())
    });
    done.unwrap().into_iter().for_each(|rank| rank.unwrap());
    let bytes = fs::read(folder.path().join("part.1")).unwrap();
    assert_eq!((bytes.len(), bytes[0], bytes[8]), (PAGE, 70, 5));
}

/// Hints that do not make a window are refused: by key and value, by file, by both ranks.
#[test]
fn windows_on_storage_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all");
    let done = rma::local(3, |universe| {
        let world = universe.world();
        for (key, value) in [
            ("alloc_type", "disk"),
            ("storage_alloc_offset", "9223372036854775808"),
            ("storage_alloc_factor", "nan"),
            ("storage_alloc_factor", "-1"),
            ("storage_alloc_factor", "2"),
            ("access_style", "sometimes"),
        ] {
            let error = world.window(1, 8).hint(key, value).err().unwrap().to_string();
            assert!(error.contains(key) && error.contains(value), "{error}");
        }
        // Listing 1 of the paper: offset 0 everywhere, but at the first rank.
        let at = if world.rank() == Rank(0) { 8 * PAGE as u64 } else { 0 };
        let same = StorageHints::file(&path).offset(at);
        let same = world.window(PAGE, 1).on_storage(&same)?.allocate().unwrap_err();
        let both = WindowError::SameBytes { first: Rank(1), second: Rank(2), start: 0, end: 4096 };
        assert_eq!((&same, same.class()), (&both, ErrorClass::FileInUse));
        world.barrier()?;
        if world.rank() == Rank(0) {
            // It was new, and one of its makers may not have been the last to give it up.
            _ = fs::remove_file(&path);
        }
        // One rank's folder is not there.
        let name = if world.rank() == Rank(1) { "nowhere/{rank}" } else { "{rank}" };
        let file = StorageHints::file(folder.path().join(name));
        let refused = world.window(PAGE, 1).on_storage(&file)?.allocate().unwrap_err();
        match (world.rank(), &refused) {
            (Rank(1), WindowError::Allocator { rank: Rank(1), error }) => {
                assert!(matches!(error.get(), Some(StorageError::System { call: "open", .. })));
                assert_eq!(refused.class(), ErrorClass::NoSuchFile);
            }
            (Rank(0 | 2), WindowError::Peer(Rank(1))) => {}
            _ => panic!("{refused}"),
        }
        let unnamed = world.window(1, 8).hint("alloc_type", "storage")?.allocate().unwrap_err();
        assert_eq!(unnamed.class(), ErrorClass::InfoValue, "{unnamed}");
        let kind = if world.rank() == Rank(2) { "storage" } else { "memory" };
        let differs = world.window(1, 8).hint("alloc_type", kind)?.allocate().unwrap_err();
        let WindowError::HintDiffers { key: "alloc_type", rank: Rank(2), .. } = differs else {
            panic!("{differs}")
        };
        Ok::<_, rma::Error>(())
    });
    done.unwrap().into_iter().for_each(|rank| rank.unwrap());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "files are left");
}

/// It is to go with its window, and there is none.
#[test]
fn a_file_that_was_there_stays_if_no_window_came_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = |rank| folder.path().join(rank);
    fs::write(file("0"), b"four").unwrap();
    let done = rma::local(2, |universe| {
        let world = universe.world();
        let name = if world.rank() == Rank(1) { "nowhere/{rank}" } else { "{rank}" };
        let hints = StorageHints::file(file(name)).unlink(true);
        world.window(PAGE, 1).on_storage(&hints)?.allocate().unwrap_err();
        Ok::<_, rma::Error>(())
    });
    done.unwrap().into_iter().for_each(|rank| rank.unwrap());
    assert_eq!(fs::read(file("0")).unwrap()[..4], *b"four");
}

/// The parts of all ranks in one file: one behind the other, or in one piece for load and store.
#[test]
fn all_parts_in_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let (each, one) = (folder.path().join("each"), folder.path().join("one"));
    let done = rma::local(3, |universe| {
        let world = universe.world();
        let (me, right) = (world.rank(), world.rank().on_ring(1, 3));
        // The second rank has no bytes.
        let len = [100, 0, 8][usize::from(me)];
        let hints = StorageHints::shared_file(&each).offset(PAGE as u64);
        let window = world.window(len, 1).on_storage(&hints)?.allocate()?;
        let offset = window.attribute::<StoragePart>().map(|part| part.offset);
        let page = PAGE as u64;
        assert_eq!(offset, [Some(page), None, Some(page + 65536)][usize::from(me)]);
        if len > 0 {
            window.local().store(0, me.0 as u8 + 1)?;
        }
        window.sync()?;
        window.free()?;

        // 12 bytes each: no part but the first begins a page.
        let window = world.window(3, 4).on_storage(&StorageHints::file(&one))?.allocate_shared()?;
        let neighbour = window.shared_query(right)?;
        neighbour.store(2, 7 + me.0)?;
        world.barrier()?;
        assert_eq!(window.get_info("alloc_type").as_deref(), Some("storage"));
        assert_eq!(window.local().load::<u32>(2)?, 7 + right.on_ring(1, 3).0);
        window.sync()?;
        window.free()?;

        // Each by itself.
        let apart = StorageHints::file(folder.path().join("apart.{rank}"));
        let apart =
            world.window(1, 8).on_storage(&apart)?.hint("alloc_shared_noncontig", "true")?;
        let apart = apart.allocate_shared()?;
        apart.shared_query(right)?.store(0, 9u64)?;
        apart.free()?;
        Ok::<_, rma::Error>(())
    });
    done.unwrap().into_iter().for_each(|rank| rank.unwrap());
    let bytes = fs::read(&each).unwrap();
    assert_eq!((bytes.len(), bytes[PAGE], bytes[PAGE + 65536]), (PAGE + 65536 + 8, 1, 3));
    let bytes = fs::read(&one).unwrap();
    let words: Vec<u32> = bytes.as_chunks().0.iter().copied().map(u32::from_le_bytes).collect();
    assert_eq!(words, [0, 0, 9, 0, 0, 7, 0, 0, 8]);
    let apart = |rank: u32| fs::read(folder.path().join(format!("apart.{rank}"))).unwrap()[0];
    assert_eq!([0, 1, 2].map(apart), [9, 9, 9]);
}

/// One file has the parts of all ranks, and rank 0 has it open: the others hear as well that it was
/// cut, each of its own part.
#[test]
fn a_file_of_all_ranks_that_was_cut_is_an_error_at_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shared");
    let done = rma::local(3, |universe| {
        let world = universe.world();
        let hints = StorageHints::file(&path);
        let window = world.window(2 * PAGE, 1).on_storage(&hints)?.allocate_shared()?;
        window.local().store(0, 1u8)?;
        window.sync()?;
        world.barrier()?;
        if world.rank() == Rank(0) {
            let file = fs::OpenOptions::new().write(true).open(&path);
            file.and_then(|file| file.set_len(3 * PAGE as u64)).unwrap();
        }
        world.barrier()?;
        let told = match window.sync() {
            Ok(()) => None,
            Err(RmaError::Persist { error, .. }) => Some(error),
            Err(error) => return Err(error.into()),
        };
        window.free()?;
        Ok::<_, rma::Error>(told)
    });
    let told: Vec<_> = done.unwrap().into_iter().map(|rank| rank.unwrap()).collect();
    let cut = PersistError::Cut { len: 3 * PAGE as u64, needed: 6 * PAGE as u64 };
    let there = Some(PersistError::CutThere);
    assert_eq!(told, [Some(cut), there, there]);
}

/// Listing 4: an origin locks a part, writes a checkpoint and has the target make it durable, while
/// the target computes and no rank waits for another. By load and store, and by messages.
#[test]
fn an_origin_makes_a_target_durable() {
    for path in ["auto", "messages"] {
        let folder = tempfile::tempdir().unwrap();
        let written = AtomicBool::new(false);
        let done = rma::Builder::new().hint("rma_path", path).unwrap().local(2, |universe| {
            let world = universe.world();
            let hints = StorageHints::file(folder.path().join("{rank}"));
            let window = world.window(PAGE / 8, 8).on_storage(&hints)?.allocate()?;
            if world.rank() == Rank(1) {
                // Computes: it makes no call of the library.
                while !written.load(Relaxed) {
                    std::thread::yield_now();
                }
            } else {
                let lock = window.lock(Rank(1), LockKind::Exclusive)?;
                lock.put(3, &[42u64])?;
                let durable = window.sync_remote(Rank(1));
                written.store(true, Relaxed);
                durable?;
                lock.put(4, &[43u64])?;
                let mut request = window.request_sync_remote(Rank(1))?;
                while !request.test() {
                    std::thread::yield_now();
                }
                assert!(request.test() && request.target() == Rank(1));
                request.wait()?;
                // Two at a time, one of which no thread waits for.
                drop(window.request_sync_remote(Rank(1))?);
                let mut durable = pin!(window.request_sync_remote(Rank(1))?);
                let mut context = Context::from_waker(Waker::noop());
                while durable.as_mut().poll(&mut context)?.is_pending() {}
                window.request_sync_remote(Rank::NULL)?.wait()?;
                lock.unlock()?;
                window.sync_remote(Rank(0))?;
                window.sync_remote(Rank::NULL)?;
                let missing = window.sync_remote(Rank(2)).unwrap_err();
                assert!(matches!(missing, RmaError::NoSuchRank { .. }), "{missing}");
            }
            world.barrier()?;
            window.free()?;

            // What its target cannot make durable is an error of the origin.
            let failing = world.window(1, 8).create(Arc::new(failing::Failing::new()))?;
            let memory = world.window(1, 8).allocate()?;
            if world.rank() == Rank(0) {
                let request = failing.request_sync_remote(Rank(1))?;
                for durable in [request.wait(), failing.sync_remote(Rank(1))] {
                    let Err(RmaError::Persist { rank: Rank(1), error, .. }) = durable else {
                        panic!("it is not durable")
                    };
                    assert!(matches!(error, PersistError::System { errno: 5, .. }), "{error}");
                }
            }
            world.barrier()?;
            failing.free()?;
            let volatile = memory.sync_remote(world.rank()).unwrap_err();
            assert!(volatile.to_string().contains("ends with the job"), "{volatile}");
            memory.free()?;
            Ok::<_, rma::Error>(())
        });
        done.unwrap().into_iter().for_each(|rank| rank.unwrap());
        let bytes = fs::read(folder.path().join("1")).unwrap();
        assert_eq!((bytes[24], bytes[32]), (42, 43));
    }
}

/// Of each mapping of the file in this process, whether it is one with `MAP_SYNC`.
fn synchronous_mappings(path: &Path) -> Vec<bool> {
    // By its number: a file that had no name when it was opened is not told with one.
    let inode = fs::metadata(path).unwrap().ino().to_string();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_it, mut found) = (false, Vec::new());
    for line in maps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let is_synchronous = flags.split_whitespace().any(|flag| flag == "sf");
            found.extend(Some(is_synchronous).filter(|_| is_it));
        } else if line.contains('-') {
            is_it = line.split_whitespace().nth(4) == Some(&*inode);
        }
    }
    found
}

/// Where the owner of a part writes back cache lines, its neighbours map it with `MAP_SYNC`, as it
/// does: what they store there is durable by that.
#[test]
fn ranks_map_a_part_alike() {
    let folder = tempfile::tempdir().unwrap();
    let done = rma::local(2, |universe| {
        let world = universe.world();
        let hints = StorageHints::file(folder.path().join("{rank}"));
        let window = world.window(PAGE / 8, 8).on_storage(&hints)?.allocate()?;
        let own = window.attribute::<StoragePart>().unwrap();
        let other = Rank(1 - u32::from(world.rank()));
        let lock = window.lock(other, LockKind::Shared)?;
        lock.put(3, &[7u64])?;
        window.sync_remote(other)?;
        lock.unlock()?;
        world.barrier()?;
        let found = synchronous_mappings(&own.path);
        assert!(found.len() >= 2, "this rank's and its neighbour's: {found:?}");
        let by_lines = own.durable_by == DurableBy::CacheLines;
        assert!(found.iter().all(|is| *is == by_lines), "{found:?}, {:?}", own.durable_by);
        assert!(window.explain().contains(if by_lines { "cache_lines" } else { "msync (" }));
        window.sync()?;
        world.barrier()?;
        window.free()?;
        Ok::<_, rma::Error>(())
    });
    done.unwrap().into_iter().for_each(|rank| rank.unwrap());
}

/// A program that cuts the file of a window makes a later `sync` fail, also one that another rank
/// asks for; and the window can be freed.
#[test]
fn a_file_that_was_cut_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let done = rma::local(2, |universe| {
        let world = universe.world();
        let hints = StorageHints::file(folder.path().join("{rank}"));
        let window = world.window(2 * PAGE, 1).on_storage(&hints)?.allocate()?;
        window.sync()?;
        world.barrier()?;
        if world.rank() == Rank(0) {
            let file = fs::OpenOptions::new().write(true).open(folder.path().join("0"));
            file.and_then(|file| file.set_len(PAGE as u64)).unwrap();
            for _ in 0..2 {
                let Err(RmaError::Persist { error, .. }) = window.sync() else {
                    panic!("half of it is nowhere")
                };
                assert_eq!(error, PersistError::Cut { len: 4096, needed: 8192 });
            }
        }
        world.barrier()?;
        if world.rank() == Rank(1) {
            let Err(RmaError::Persist { rank: Rank(0), error, .. }) = window.sync_remote(Rank(0))
            else {
                panic!("half of it is nowhere")
            };
            assert_eq!(error, PersistError::CutThere);
        }
        window.free()?;
        Ok::<_, rma::Error>(())
    });
    done.unwrap().into_iter().for_each(|rank| rank.unwrap());
}

/// A device that writes nothing.
mod failing {
    #![allow(unsafe_code)] // room: vouches for memory that is leaked
    use rma::{Backing, Extent, Mapped, Mapping, PersistError};
    use std::ops::Range;

    #[derive(Debug)]
    pub(super) struct Failing(Mapping);

    impl Failing {
        pub(super) fn new() -> Self {
            let words = Box::leak(Box::new([0u64; 8]));
            Self(Mapping { base: words.as_mut_ptr().cast(), len: 64 })
        }
    }

    // SAFETY: leaked memory, whose address no other code has.
    unsafe impl Send for Failing {}
    // SAFETY: as above.
    unsafe impl Sync for Failing {}
    // SAFETY: never freed.
    unsafe impl Mapped for Failing {
        fn mapping(&self) -> Mapping {
            self.0
        }
    }
    // SAFETY: no reference to it is left, and no process maps it.
    unsafe impl Backing for Failing {
        fn extents(&self) -> Vec<Extent> {
            Vec::new()
        }
        fn is_durable(&self) -> bool {
            true
        }
        fn persist(&self, _: Range<u64>) -> Result<(), PersistError> {
            Err(PersistError::System { call: "a device", errno: 5 })
        }
    }
}

/// A run of the example, and the numbers that it says.
struct Counter {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Counter {
    fn start(file: &Path, rounds: &str) -> Self {
        let test = std::env::current_exe().expect("the path of this test");
        let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps");
        let program: PathBuf = profile.join("examples/counter");
        let mut command = Command::new(program);
        command.args(["--times", "100", "--rounds", rounds, "--file"]).arg(file);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("cargo build --examples");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, lines }
    }

    fn says(&mut self, what: &str) -> u64 {
        let line = self.lines.next().expect("a line").unwrap();
        let number = line.strip_prefix(what).and_then(|rest| rest.strip_prefix(' '));
        number.unwrap_or_else(|| panic!("{line}")).parse().unwrap()
    }
}

/// Killed in the middle, it goes on at least from what it said to be durable.
#[test]
fn a_counter_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counter");
    let mut least = 0;
    for kills in 0..5 {
        let mut counter = Counter::start(&file, "1000000000");
        let found = counter.says("found");
        assert!(found >= least && (kills > 0 || found == 0), "{found} after {least}");
        for _ in 0..=kills {
            least = counter.says("durable");
        }
        counter.child.kill().unwrap();
        counter.child.wait().unwrap();
    }
    let mut last = Counter::start(&file, "1");
    let found = last.says("found");
    assert!(found >= least);
    assert_eq!(last.says("durable"), found + 100);
    assert!(last.child.wait().unwrap().success());
    // Nothing else is left.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
