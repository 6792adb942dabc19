//! Memory on real files, without a universe.
#![allow(unsafe_code)]

use super::*;
use std::fs;

const PAGE: usize = 4096;
const ROOM: (u64, &str) = (1 << 30, "a test");

fn open(hints: &StorageHints, len: usize) -> StorageMemory {
    StorageMemory::open_as(3, ROOM, hints, len).unwrap()
}

/// Whatever the file lies on.
fn open_by_msync(hints: &StorageHints, len: usize) -> StorageMemory {
    StorageMemory::open_at(hints.path_of(3), ROOM, hints, len, Some("a test")).unwrap()
}

/// Stores as an operation of another rank does.
fn write(memory: &StorageMemory, at: usize, bytes: &[u8]) {
    let Mapping { base, len } = memory.mapping();
    assert!(at + bytes.len() <= len);
    let to = base.wrapping_add(at);
    // SAFETY: inside of the mapping, which only this thread touches.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

fn read(memory: &StorageMemory, at: usize, len: usize) -> Vec<u8> {
    let mapping = memory.mapping();
    assert!(at + len <= mapping.len);
    let (from, mut bytes) = (mapping.base.wrapping_add(at), vec![0; len]);
    // SAFETY: as above.
    unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len) };
    bytes
}

#[test]
fn bytes_are_in_the_file_and_there_again() {
    let folder = tempfile::tempdir().unwrap();
    let hints = StorageHints::file(folder.path().join("part.{rank}"));
    let memory = open(&hints, 10_000);
    assert_eq!((memory.len(), memory.stored()), (10_000, 0..10_000));
    assert!(read(&memory, 0, 10_000).iter().all(|byte| *byte == 0));
    write(&memory, 9_990, b"the last.!");
    memory.persist(0..10_000).unwrap();
    memory.close().unwrap();
    let path = folder.path().join("part.3");
    let bytes = fs::read(&path).unwrap();
    assert_eq!((bytes.len(), &bytes[9_990..]), (10_000, &b"the last.!"[..]));
    // A window that is shorter does not cut it, one that is longer lets it grow.
    assert_eq!(read(&open(&hints, 5), 0, 5), [0; 5]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
    let longer = open(&hints, 20_000);
    assert_eq!(read(&longer, 9_990, 12), b"the last.!\0\0");
    assert_eq!(fs::metadata(&path).unwrap().len(), 20_000);
}

/// The system writes what is rarely written, into the bytes that are mapped.
#[test]
fn large_stores_go_by_the_file_until_they_are_many() {
    const LARGE: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let hints = StorageHints::file(folder.path().join("file")).offset(5000);
    let memory = open_by_msync(&hints, 3 * LARGE);
    let store = |at: usize, fill| memory.store(at as u64, &vec![fill; LARGE]);
    for fill in 1..=Written::MOST {
        assert!(store(LARGE, fill));
        assert_eq!(read(&memory, LARGE, LARGE), vec![fill; LARGE]);
    }
    assert!(read(&memory, 0, LARGE).iter().all(|byte| *byte == 0));
    assert!(!store(LARGE, 99) && !store(LARGE / 2, 99), "blocks that are written often");
    assert_eq!(read(&memory, LARGE, 1), [Written::MOST]);
    memory.persist(0..3 * LARGE as u64).unwrap();
    assert!(store(LARGE, 99));
    assert!(!store(2 * LARGE + 1, 1), "behind the end");
    let bytes = fs::read(folder.path().join("file")).unwrap();
    assert_eq!(bytes.len(), 5000 + 3 * LARGE);
    assert_eq!(bytes[5000 + LARGE..5000 + 2 * LARGE], vec![99; LARGE]);
}

/// A sync of some bytes is no reason to write others ahead: it may be all that is asked for.
#[test]
fn only_a_sync_of_all_has_the_system_write_ahead() {
    const LARGE: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let memory = open_by_msync(&StorageHints::file(folder.path().join("file")), 2 * LARGE);
    assert!(memory.store(0, &[1; LARGE]));
    for range in [0..LARGE as u64, 1..3 * LARGE as u64, 0..1] {
        memory.persist(range).unwrap();
        assert!(!memory.ahead.is_worth_it());
    }
    memory.persist(0..2 * LARGE as u64).unwrap();
    assert!(memory.ahead.is_worth_it());
}

/// Part of it lies in memory, which no file has.
#[test]
fn large_stores_beside_storage_are_not_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let hints = StorageHints::file(folder.path().join("file"));
    let hints = hints.factor(StorageFactor::Share(0.5)).unwrap();
    let memory = open_by_msync(&hints, 64 * PAGE);
    assert_eq!(memory.stored(), 32 * PAGE..64 * PAGE);
    assert!(!memory.store(31 * PAGE as u64, &[1; 2 * PAGE]) && !memory.store(0, &[1; PAGE]));
    assert!(memory.store(32 * PAGE as u64, &[2; PAGE]));
    assert_eq!(fs::read(folder.path().join("file")).unwrap()[..PAGE], [2; PAGE]);
}

/// A file that was cut is not made whole again: `persist` tells of it by its length.
#[test]
fn large_stores_let_no_file_grow() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let memory = open_by_msync(&StorageHints::file(&path), 64 * PAGE);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(32 * PAGE as u64).unwrap();
    assert!(!memory.store(16 * PAGE as u64, &[1; 17 * PAGE]));
    assert!(memory.store(0, &[1; 17 * PAGE]));
    let (len, needed) = (32 * PAGE as u64, 64 * PAGE as u64);
    assert_eq!(memory.persist(0..needed), Err(PersistError::Cut { len, needed }));
    assert_eq!(fs::metadata(&path).unwrap().len(), len);
}

#[test]
fn an_offset_inside_of_a_page_is_mapped_from_the_page_below() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let memory = open(&StorageHints::file(&path).offset(5000), 100);
    write(&memory, 0, b"here");
    assert!(memory.extents().is_empty());
    let beside = StorageHints::file(&path).offset(8191).factor(StorageFactor::Share(0.5)).unwrap();
    let refused = StorageMemory::open_as(0, ROOM, &beside, 3 * PAGE).unwrap_err();
    assert!(matches!(refused, StorageError::InsidePage { memory: 4096, .. }), "{refused}");
    memory.close().unwrap();
    assert_eq!(fs::read(&path).unwrap()[4998..5006], *b"\0\0here\0\0");
}

/// One range of addresses, of which a part is in the file.
#[test]
fn memory_and_storage_lie_side_by_side() {
    for (order, stored) in
        [(StorageOrder::MemoryFirst, PAGE..10_000), (StorageOrder::StorageFirst, 0..2 * PAGE)]
    {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let hints = StorageHints::file(&path).factor(StorageFactor::Share(0.5)).unwrap();
        let memory = open(&hints.order(order), 10_000);
        assert_eq!(memory.stored(), stored);
        let lens: Vec<_> = memory.extents().iter().map(|extent| extent.len).collect();
        let (first, second) = (stored.start.max(PAGE), 10_000 - stored.start.max(PAGE));
        let lens_expected = match order {
            StorageOrder::MemoryFirst => [first as u64, second as u64],
            StorageOrder::StorageFirst => [2 * PAGE as u64, 10_000 - 2 * PAGE as u64],
        };
        assert_eq!(lens, lens_expected);
        let seam = if stored.start == 0 { stored.end } else { stored.start };
        write(&memory, seam - 4, b"seamless");
        assert_eq!(read(&memory, seam - 4, 8), b"seamless");
        memory.persist(0..10_000).unwrap();
        memory.close().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), stored.len());
        match order {
            StorageOrder::MemoryFirst => assert!(bytes.starts_with(b"less")),
            StorageOrder::StorageFirst => assert!(bytes.ends_with(b"seam")),
        }
    }
}

#[test]
fn what_fits_stays_in_memory() {
    let hints = StorageHints::file("f").factor(StorageFactor::Auto).unwrap();
    let division = |len, available| Division::new(&hints, len, available, PAGE);
    assert_eq!(division(9_000, 9_000), Division { memory: 9_000, storage: 0, stored_at: 9_000 });
    let most = Division { memory: PAGE, storage: 9_000 - PAGE, stored_at: PAGE };
    assert_eq!(division(9_000, 8_000), most);
    assert_eq!(division(9_000, 0), Division { memory: 0, storage: 9_000, stored_at: 0 });
    // No file is needed then, and nothing is durable.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let memory = open(&StorageHints::file(&path).factor(StorageFactor::Auto).unwrap(), 9_000);
    assert_eq!((memory.stored().len(), memory.is_durable(), path.exists()), (0, false, false));
    assert_eq!(memory.persist(0..1), Err(PersistError::Volatile));
    let all = StorageHints::file(&path).factor(StorageFactor::Share(0.0)).unwrap();
    let short = StorageMemory::open_as(0, (4096, "a small room"), &all, 9_000).unwrap_err();
    assert!(short.to_string().contains("a small room"), "{short}");
}

proptest::proptest! {
    /// Whatever is asked for, the parts are all of it, side by side, and begin with pages.
    #[test]
    fn parts_are_the_whole(
        share in 0.0..=1.0f64, len in 1usize..100_000, auto in proptest::bool::ANY,
        available in 0u64..100_000, first in proptest::bool::ANY,
    ) {
        let factor = if auto { StorageFactor::Auto } else { StorageFactor::Share(share) };
        let order = if first { StorageOrder::StorageFirst } else { StorageOrder::MemoryFirst };
        let hints = StorageHints::file("f").factor(factor).unwrap().order(order);
        let Division { memory, storage, stored_at } = Division::new(&hints, len, available, PAGE);
        assert_eq!(memory + storage, len);
        assert!(stored_at == if first && storage > 0 { 0 } else { memory });
        let ahead = if first { storage } else { memory };
        assert!(memory == len || storage == len || ahead.is_multiple_of(PAGE));
        assert!(!auto || memory as u64 <= available);
    }
}

#[test]
fn ranges_that_overlap_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let first = open(&StorageHints::file(&path), 2 * PAGE);
    let overlap = StorageHints::file(&path).offset(PAGE as u64);
    let refused = StorageMemory::open_as(1, ROOM, &overlap, PAGE).unwrap_err();
    assert!(matches!(&refused, StorageError::InUse { start: 4096, end: 8192, .. }), "{refused}");
    assert!(refused.to_string().contains(path.to_str().unwrap()), "{refused}");
    // Those beside are not, in the same page either.
    let beside = StorageHints::file(&path).offset(2 * PAGE as u64);
    open(&beside, 100);
    open(&StorageHints::file(&path).offset(2 * PAGE as u64 + 100), 100);
    first.close().unwrap();
    open(&overlap, PAGE);
}

#[test]
fn what_cannot_be_mapped_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let name = |name: &str| folder.path().join(name);
    let refused = |hints: StorageHints, len| {
        let error = StorageMemory::open_as(0, ROOM, &hints, len).unwrap_err();
        assert!(error.to_string().contains(folder.path().to_str().unwrap()), "{error}");
        error
    };
    let error = refused(StorageHints::file(folder.path()), 1);
    assert!(matches!(error, StorageError::NotStorage { kind: "a folder", .. }), "{error}");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        name("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let error = refused(StorageHints::file(name("pipe")), 1);
    assert!(matches!(error, StorageError::NotStorage { kind: "a pipe", .. }), "{error}");
    let error = refused(StorageHints::file(name("no/file")), 1);
    assert!(error.to_string().contains("make the folder first"), "{error}");
    fs::write(name("plain"), b"bytes").unwrap();
    let error = refused(StorageHints::file(name("plain/file")), 1);
    assert!(error.to_string().contains("is no folder"), "{error}");
    let error = refused(StorageHints::file(name("far")).offset(i64::MAX as u64), 1);
    assert!(matches!(error, StorageError::TooFar { .. }), "{error}");
    let unnamed = StorageMemory::open_as(0, ROOM, &StorageHints::file(""), 1).unwrap_err();
    assert_eq!(unnamed, StorageError::NoFile);
    let error = refused(StorageHints::file(name("empty")), 0);
    assert!(matches!(error, StorageError::Empty { .. }), "{error}");
    let first = StorageHints::file(name("far")).order(StorageOrder::StorageFirst);
    let error = refused(first, usize::MAX);
    assert!(matches!(error, StorageError::TooFar { .. }), "{error}");
    let error = refused(StorageHints::file(name("far")), 1 << 50);
    assert!(matches!(error, StorageError::Space { .. } | StorageError::System { .. }), "{error}");
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["pipe", "plain"], "nothing is left of what failed");
}

#[test]
fn a_file_goes_with_its_memory_if_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let hints = StorageHints::file(&path);
    drop(open(&hints.clone().unlink(true), 100));
    assert!(!path.exists());
    let discarded = open(&hints.clone().discard(true), 100);
    write(&discarded, 0, b"kept by the page cache");
    discarded.close().unwrap();
    assert!(path.exists());
    open(&hints.unlink(true), 100).close().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_new_file_has_the_permissions_that_were_asked_for() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mode = |name: &str, hints: StorageHints| {
        drop(open(&hints, 1));
        fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777
    };
    let file = |name: &str| StorageHints::file(folder.path().join(name));
    assert_eq!(mode("plain", file("plain")), 0o600);
    assert_eq!(mode("open", file("open").file_perm(0o400).unwrap()), 0o400);
}

/// A process that was forked has the file open until it executes another program.
#[test]
fn bytes_are_given_back_although_a_copy_of_the_file_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let hints = StorageHints::file(folder.path().join("file"));
    let memory = open(&hints, 100);
    let copy = memory.file.as_ref().unwrap().descriptor.try_clone().unwrap();
    memory.close().unwrap();
    open(&hints, 100).close().unwrap();
    drop(copy);
}

/// After a write has failed, what is durable is not known: no later call says that all is well.
#[test]
fn memory_that_lost_a_write_is_poisoned() {
    let folder = tempfile::tempdir().unwrap();
    let mut memory = open_by_msync(&StorageHints::file(folder.path().join("file")), 3 * PAGE);
    memory.persist(0..100).unwrap();
    // As a device that fails: the system finds a page gone that is to be written.
    let gone = memory.mapping().base.wrapping_add(PAGE).cast();
    // SAFETY: a page of the mapping, which no thread touches afterwards.
    unsafe { rustix::mm::munmap(gone, PAGE) }.unwrap();
    let errno = Errno::NOMEM.raw_os_error();
    let first = memory.persist(0..3 * PAGE as u64);
    assert_eq!(first, Err(PersistError::System { call: "msync", errno }));
    let later = memory.persist(0..100);
    assert_eq!(later, Err(PersistError::Poisoned { call: "msync", errno }));
    assert_eq!(memory.end(), Err(PersistError::Poisoned { call: "msync", errno }));
    // Another thread may have something where the page was.
    core::mem::forget(memory);
}

/// Cache lines where the file system says that the file's bytes are persistent memory; the system's
/// call everywhere else. Which is told.
#[test]
fn what_makes_a_file_durable_is_told() {
    use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
    let folder = tempfile::tempdir().unwrap();
    let hints = StorageHints::file(folder.path().join("file"));
    let told = |memory: &StorageMemory| {
        let info = memory.info().into_iter().find(|(key, _)| *key == "rma_storage_durable_by");
        let part = memory.attribute().unwrap().downcast::<StoragePart>().unwrap();
        (part.durable_by, info.unwrap().1)
    };
    let memory = open(&hints, 3 * PAGE);
    let file = &memory.file.as_ref().unwrap().descriptor;
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::empty()).unwrap();
    let is_dax = stat.stx_attributes.contains(StatxAttributes::DAX);
    // Told by `.ci/dax`, whose files are so.
    assert!(is_dax || std::env::var_os("RMA_TEST_DAX").is_none());
    match (is_dax, Lines::of_cpu()) {
        (true, Some(_)) => {
            assert_eq!(told(&memory), (DurableBy::CacheLines, "cache_lines".to_owned()));
        }
        (true, None) => assert_eq!(told(&memory).0, DurableBy::Msync),
        (false, _) => {
            let why = "msync (the system does not map it with MAP_SYNC)";
            assert_eq!(told(&memory), (DurableBy::Msync, why.to_owned()));
        }
    }
    drop(memory);
    let memory = open_by_msync(&hints, 3 * PAGE);
    assert_eq!(told(&memory), (DurableBy::Msync, "msync (a test)".to_owned()));
    assert!(
        memory
            .extents()
            .iter()
            .all(|extent| { matches!(extent.place, Place::File { synchronous: false, .. }) })
    );
}

/// Also of a file that was cut, no line is touched that is nowhere; and what the system would write
/// without waiting for the device is stored to the addresses.
#[test]
fn cache_lines_are_written_back() {
    let Some(lines) = Lines::of_cpu() else {
        return eprintln!("skipped: cache lines: this CPU writes none back");
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let half = StorageHints::file(&path).factor(StorageFactor::Share(0.5)).unwrap();
    let mut memory = open(&half, 64 * PAGE);
    // Of a mapping without MAP_SYNC, too, lines can be written back; but not all is durable then.
    memory.means = Means::Lines(lines);
    write(&memory, 32 * PAGE - 1, &[1, 2, 3]);
    memory.persist(0..64 * PAGE as u64).unwrap();
    memory.persist(33 * PAGE as u64 - 1..33 * PAGE as u64 + 1).unwrap();
    assert_eq!(fs::read(&path).unwrap()[..3], [2, 3, 0]);
    assert!(!memory.store(32 * PAGE as u64, &[1; 17 * PAGE]));
    let is_synchronous =
        |extent: &Extent| matches!(extent.place, Place::File { synchronous: true, .. });
    // Memory, and then the file.
    let told: Vec<_> = memory.extents().iter().map(is_synchronous).collect();
    assert_eq!(told, [false, true]);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(PAGE as u64).unwrap();
    let (len, needed) = (PAGE as u64, 32 * PAGE as u64);
    assert_eq!(memory.persist(0..64 * PAGE as u64), Err(PersistError::Cut { len, needed }));
}

/// The system would send a signal to a process that writes beyond: a test in a process of its own.
#[test]
fn files_are_no_longer_than_the_process_may_write() {
    const LIMITED: &str = "RMA_STORAGE_TEST_LIMITED";
    if let Some(path) = std::env::var_os(LIMITED) {
        let hints = StorageHints::file(&path);
        let refused = StorageMemory::open_as(0, ROOM, &hints, 1 << 20).unwrap_err();
        assert!(refused.to_string().contains("ulimit -f"), "{refused}");
        let beside = hints.clone().factor(StorageFactor::Share(0.0)).unwrap();
        let refused = StorageMemory::open_as(0, ROOM, &beside, 1 << 20).unwrap_err();
        assert!(refused.to_string().contains("ulimit -f"), "{refused}");
        return open(&hints, 100).close().unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let name = "memory::tests::files_are_no_longer_than_the_process_may_write";
    let run = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 64; exec \"$0\" --exact \"$1\""])
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .env(LIMITED, folder.path().join("file"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{}: {said}", run.status);
}

/// Bytes that a process has are refused to another, which names the file and them.
#[test]
fn other_processes_do_not_get_the_same_bytes() {
    const SECOND: &str = "RMA_STORAGE_TEST_SECOND";
    if let Some(path) = std::env::var_os(SECOND) {
        let hints = StorageHints::file(&path);
        let beside = hints.clone().offset(2 * PAGE as u64);
        StorageMemory::open_as(0, ROOM, &beside, PAGE).unwrap().close().unwrap();
        let refused = StorageMemory::open_as(0, ROOM, &hints, PAGE).unwrap_err();
        assert!(matches!(refused, StorageError::InUse { start: 0, end: 4096, .. }), "{refused}");
        assert!(refused.to_string().contains("in use by another window"), "{refused}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let memory = open(&StorageHints::file(&path), 2 * PAGE);
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::tests::other_processes_do_not_get_the_same_bytes"])
        .env(SECOND, &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{}: {said}", run.status);
    memory.close().unwrap();
}

/// Another program cuts the file: `sync` says so, and the process that touches a page that is gone
/// ends by a signal (ADR 30): a test in a process of its own.
#[test]
fn a_page_that_is_lost_ends_the_process_that_touches_it() {
    const CUT: &str = "RMA_STORAGE_TEST_CUT";
    if let Some(path) = std::env::var_os(CUT) {
        let memory = open(&StorageHints::file(&path), 3 * PAGE);
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(PAGE as u64).unwrap();
        let cut = PersistError::Cut { len: PAGE as u64, needed: 3 * PAGE as u64 };
        assert_eq!(memory.persist(0..3 * PAGE as u64), Err(cut));
        // What is left is as it was.
        write(&memory, 0, b"still here");
        assert_eq!(read(&memory, 0, 5), b"still");
        println!("touches");
        write(&memory, 2 * PAGE, b"gone");
        println!("goes on");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "memory::tests::a_page_that_is_lost_ends_the_process_that_touches_it",
            "--nocapture",
        ])
        .env(CUT, folder.path().join("file"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(run.status.signal(), Some(libc::SIGBUS), "{said}");
    assert!(said.contains("touches") && !said.contains("goes on"), "{said}");
}

/// What the system says of the mapping that begins with the memory, or that byte of it.
fn told_of_mapping(memory: &StorageMemory, at: usize, key: &str) -> String {
    let start = format!("{:x}-", memory.mapping().base.addr() + at);
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut of_it = maps.lines().skip_while(|line| !line.starts_with(&start));
    let line = of_it.find_map(|line| line.strip_prefix(key));
    line.unwrap_or_else(|| panic!("{maps}")).trim().to_owned()
}

/// Memory beside a file lies where huge pages can, and asks for them.
#[test]
fn memory_is_in_huge_pages() {
    let folder = tempfile::tempdir().unwrap();
    for order in [StorageOrder::MemoryFirst, StorageOrder::StorageFirst] {
        let hints = StorageHints::file(folder.path().join("file")).order(order);
        let memory = open(&hints.factor(StorageFactor::Share(0.3)).unwrap(), 10 << 20);
        let at = if memory.stored().start == 0 { memory.stored().end } else { 0 };
        assert_eq!((memory.mapping().base.addr() + at) % HUGE, 0);
        write(&memory, at + 12_345, b"memory");
        assert_eq!(read(&memory, at + 12_345, 6), b"memory");
        if fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap() {
            let flags = told_of_mapping(&memory, at, "VmFlags:");
            assert!(flags.split(' ').any(|flag| flag == "hg"), "{flags}");
        }
    }
    // What is too small for one is not moved for it.
    let small = StorageHints::file("f").factor(StorageFactor::Share(0.0)).unwrap();
    assert_eq!(read(&open(&small, PAGE), 0, PAGE), [0; PAGE]);
}

/// How many pages of the memory's first MiB are in the page cache.
fn resident(memory: &StorageMemory) -> usize {
    let Mapping { base, len } = memory.mapping();
    assert!(len >= 1 << 20);
    let mut pages = vec![0u8; (1 << 20) / PAGE];
    // SAFETY: a mapping of that length at least, and a byte for each of its pages.
    let told = unsafe { libc::mincore(base.cast(), 1 << 20, pages.as_mut_ptr()) };
    assert_eq!(told, 0);
    pages.iter().filter(|page| **page & 1 == 1).count()
}

/// What a style has the system expect of the file; of the others it expects what it would anyway.
#[test]
fn styles_are_advice() {
    use rustix::fs::Advice;
    for (style, advice) in [
        (AccessStyle::Sequential, Some(Advice::Sequential)),
        (AccessStyle::Random, Some(Advice::Random)),
        (AccessStyle::ReverseSequential, Some(Advice::Random)),
        (AccessStyle::ReadOnce, Some(Advice::NoReuse)),
        (AccessStyle::WriteOnce, Some(Advice::NoReuse)),
        (AccessStyle::ReadMostly, None),
        (AccessStyle::WriteMostly, None),
    ] {
        assert_eq!(style.advice(), advice, "{style:?}");
    }
}

/// Styles reach the mapping and the file: a program that reads in no order reads nothing ahead.
#[test]
fn styles_are_told_to_the_system() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    for (style, flag) in [
        (AccessStyle::Sequential, "sr"),
        (AccessStyle::Random, "rr"),
        (AccessStyle::ReverseSequential, "rr"),
    ] {
        let memory = open(&StorageHints::file(&path).access_style(&[style]), 1 << 20);
        let flags = told_of_mapping(&memory, 0, "VmFlags:");
        assert!(flags.split(' ').any(|one| one == flag), "{style:?}: {flags}");
        memory.sync(0..1 << 20).unwrap();
        let file = &memory.file.as_ref().unwrap().descriptor;
        rustix::fs::fsync(file).unwrap();
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let before = resident(&memory);
        rustix::io::pread(file, &mut [0; 1], (1 << 20) - 1).unwrap();
        rustix::io::pread(file, &mut [0; 1], 0).unwrap();
        // Where these are not read at once, they may be read later, or not at all.
        if flag == "rr" {
            assert!(resident(&memory) <= before + 2, "{style:?}: {}", resident(&memory));
        }
    }
}
