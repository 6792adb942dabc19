//! Windows on storage, as a program makes them.
use rma::{
    Assert, ErrorClass, Op, Path as Route, PersistError, Rank, RmaError, StorageError,
    StorageFactor, StorageHints, StorageMemory,
};
use std::fs;
use std::io::{BufRead, BufReader, Lines};
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

    // SAFETY: leaked memory, whose address nobody else has.
    unsafe impl Send for Failing {}
    // SAFETY: as above.
    unsafe impl Sync for Failing {}
    // SAFETY: never freed.
    unsafe impl Mapped for Failing {
        fn mapping(&self) -> Mapping {
            self.0
        }
    }
    // SAFETY: no reference to it is left, and nobody maps it.
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
