//! Jobs in an environment that is short of something, stopped for a while or crowded. Limits and
//! counts hold for a whole process, so each test is a job of real processes.
use rma::testing::processes;
use rma::{Assert, Communicator, LockKind, Op, Rank, RmaError, Window, WindowError};
use rma_core::transport::{AllocateError, ImportError};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, getuid, kill_process, setrlimit};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

mod stopped;

use stopped::{is_stopped, stop};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
/// Set where /dev/shm is a private mount of 1 MiB.
const TINY: &str = "RMA_TEST_TINY_DEV_SHM";
const DEV_SHM: &str = "/dev/shm";

fn words(comm: &Communicator, count: usize) -> Window {
    comm.window(count, 8).allocate().unwrap()
}

/// A window of eight bytes a rank works. **Collective.**
fn still_works(comm: &Communicator) {
    let window = words(comm, 1);
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.put(comm.rank().on_ring(1, comm.size()), 0, &[u64::from(comm.rank())]).unwrap();
    epoch.end().unwrap();
    let left = u64::from(comm.rank().on_ring(-1, comm.size()));
    assert_eq!(window.local().load::<u64>(0).unwrap(), left);
    window.free().unwrap();
}

/// Sets the soft limit; the hard one stays, so that the limit can be lifted again.
fn limit(resource: Resource, current: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(current), maximum }).unwrap();
}

fn address_space_in_use() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

fn names_in_dev_shm() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(DEV_SHM) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn descriptors() -> Vec<PathBuf> {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    // One that another thread closes meanwhile has no link any more.
    entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).collect()
}

fn mappings() -> Vec<String> {
    fs::read_to_string("/proc/self/maps").unwrap().lines().map(str::to_owned).collect()
}

/// A shell command behind `unshare`, in a mount namespace where /dev/shm has 1 MiB.
fn with_tiny_dev_shm(then: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(if getuid().is_root() { &["-m"][..] } else { &["-r", "-m"] });
    let script = format!("mount -t tmpfs -o size=1m tmpfs {DEV_SHM} && {then}");
    command.args(["sh", "-c", &script, "sh"]);
    command
}

/// Windows of 64 MiB where /dev/shm has 1 MiB, and no name in it at any time.
#[test]
fn a_small_dev_shm_limits_nothing() {
    if std::env::var_os(TINY).is_none() {
        return in_tiny_dev_shm("a_small_dev_shm_limits_nothing");
    }
    if !rma_launcher::is_launched() {
        expect_tiny_dev_shm();
    }
    processes(4, |universe| {
        let world = universe.world();
        let window = world.window(64 * MIB, 1).allocate().unwrap();
        assert_eq!(names_in_dev_shm(), [] as [PathBuf; 0]);
        fill_and_check(&window);
        assert_eq!(names_in_dev_shm(), [] as [PathBuf; 0]);
        window.free().unwrap();
        universe.finalize().unwrap();
    });
    assert_eq!(names_in_dev_shm(), [] as [PathBuf; 0]);
}

/// The limit is real, and names are visible.
fn expect_tiny_dev_shm() {
    let file = Path::new(DEV_SHM).join("too-large");
    assert!(fs::write(&file, vec![1; 2 * MIB]).is_err(), "/dev/shm is larger than 1 MiB");
    assert_eq!(names_in_dev_shm(), [file.as_path()]);
    fs::remove_file(&file).unwrap();
}

/// Runs that test of this program again, where /dev/shm has 1 MiB.
fn in_tiny_dev_shm(test: &str) {
    let permitted = with_tiny_dev_shm("true").output();
    if !permitted.as_ref().is_ok_and(|output| output.status.success()) {
        // Not captured by the test harness, so that it is seen.
        let mut stderr = std::io::stderr();
        writeln!(stderr, "SKIPPED: {test}: no private mount of {DEV_SHM}: {permitted:?}").unwrap();
        return;
    }
    let mut command = with_tiny_dev_shm("exec \"$@\"");
    command.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let output = command.env(TINY, "1").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "{stdout}\n{stderr}");
}

/// Every byte is put by the left neighbour, and read back here and by the right one.
fn fill_and_check(window: &Window) {
    let (rank, ranks) = (window.rank(), window.ranks());
    let block = |of: Rank, at: u64| vec![u64::from(of) << 32 | at; MIB / 8];
    let blocks = || (0..window.size()).step_by(MIB);
    let (right, left) = (rank.on_ring(1, ranks), rank.on_ring(-1, ranks));
    let epoch = window.fence(Assert::NONE).unwrap();
    for at in blocks() {
        epoch.put(right, at, &block(rank, at)).unwrap();
    }
    let epoch = epoch.next(Assert::NONE).unwrap();
    let (mut own, mut got) = (vec![0u64; MIB / 8], vec![0u64; MIB / 8]);
    for at in blocks() {
        window.local().read(at, &mut own).unwrap();
        epoch.get(left, at, &mut got).unwrap();
        assert!(own == block(left, at), "own part at {at}");
        assert!(got == block(left.on_ring(-1, ranks), at), "part of {left} at {at}");
    }
    epoch.end().unwrap();
}

/// Memory of a job is behind descriptors only: small windows, large ones and messages alike.
#[test]
fn memory_has_no_name() {
    let before = names_in_dev_shm();
    processes(3, |universe| {
        let world = universe.world();
        let (small, large) = (words(world, 10), words(world, MIB));
        let epoch = large.lock_all().unwrap();
        world.ranks().for_each(|rank| epoch.put(rank, 0, &[1u64]).unwrap());
        epoch.unlock().unwrap();
        world.allgather(&[7u64; 1000]).unwrap();

        for descriptor in descriptors() {
            assert!(!descriptor.starts_with(DEV_SHM), "{descriptor:?}");
        }
        let mappings = mappings();
        // The fourth of the permissions is s for shared.
        let is_shared = |line: &&String| line.split(' ').nth(1).unwrap().ends_with('s');
        let shared = mappings.iter().filter(is_shared);
        let (memfds, others): (Vec<_>, Vec<_>) = shared.partition(|line| line.contains("/memfd:"));
        assert!(memfds.len() >= 3, "parts of three ranks are mapped: {mappings:#?}");
        assert!(others.is_empty(), "{others:#?}");
        world.barrier().unwrap();
        large.free().unwrap();
        small.free().unwrap();
    });
    // Other programs may make names meanwhile, but not with ours in them.
    let mine = |name: &&PathBuf| !before.contains(name) && name.to_string_lossy().contains("rma");
    assert_eq!(names_in_dev_shm().iter().find(mine), None);
}

#[test]
fn address_space_too_small_for_a_window() {
    processes(3, |universe| {
        let world = universe.world();
        limit(Resource::As, address_space_in_use() + 128 * MIB as u64);
        let Err(error) = world.window(GIB, 1).allocate() else { panic!("a window") };
        let WindowError::Allocate { rank, error: shortage } = error else { panic!("{error}") };
        let AllocateError::Shortage { requested, available, .. } = shortage else {
            panic!("{shortage}")
        };
        assert_eq!((rank, requested), (world.rank(), 3 * GIB as u64), "{error}");
        assert!(available <= 128 * MIB as u64, "{error}");
        let text = error.to_string();
        let remedies = ["ask for less", "fewer ranks", "raise", "RLIMIT_AS", "ulimit -v"];
        for part in remedies {
            assert!(text.contains(part), "{text}");
        }
        for number in [requested, available] {
            assert!(text.contains(&format!("{number} ")), "{text}");
        }
        still_works(world);

        limit(Resource::As, address_space_in_use() + 4 * GIB as u64);
        let window = world.window(64 * MIB, 1).allocate().unwrap();
        fill_and_check(&window);
        window.free().unwrap();
    });
}

/// One rank's limit fails the window on all; a rank that has enough does not claim to have too
/// little.
#[test]
fn address_space_of_one_rank_too_small() {
    processes(3, |universe| {
        let world = universe.world();
        if world.rank() == Rank(1) {
            limit(Resource::As, address_space_in_use() + 128 * MIB as u64);
        }
        world.barrier().unwrap();
        for size in [GIB / 4, GIB] {
            let Err(error) = world.window(size, 1).allocate() else { panic!("a window") };
            match (world.rank(), &error) {
                (Rank(1), WindowError::Allocate { rank: Rank(1), .. }) => {
                    assert!(error.to_string().contains("RLIMIT_AS"), "{error}");
                }
                (Rank(0 | 2), WindowError::Peer(Rank(1))) => {}
                _ => panic!("{error:?}: {error}"),
            }
            still_works(world);
        }
    });
}

/// One window with a descriptor of its own after the other, until there are none left.
#[test]
fn descriptors_run_out() {
    processes(2, |universe| {
        let world = universe.world();
        limit(Resource::Nofile, 64);
        let right = world.rank().on_ring(1, world.size());
        let mut windows = Vec::new();
        loop {
            let window = match world.window(MIB, 1).allocate() {
                Ok(window) => window,
                Err(error) => {
                    expect_no_descriptor_for_window(&error);
                    break;
                }
            };
            // Mapping the neighbour's part takes a descriptor, too.
            let origin = [windows.len() as u64];
            let put = window.lock_all().and_then(|epoch| epoch.put(right, 0, &origin));
            if let Err(error) = &put {
                expect_no_descriptor_for_put(error);
            }
            // Both ranks stop here, or none.
            if world.allreduce(&[u64::from(put.is_err())], Op::Max).unwrap()[0] > 0 {
                break;
            }
            windows.push(window);
            assert!(windows.len() < 64, "more windows than descriptors");
        }
        assert!(windows.len() > 10, "{} windows, {:#?}", windows.len(), descriptors());
        for (count, window) in windows.iter().enumerate() {
            let epoch = window.fence(Assert::NONE).unwrap();
            let mut got = [0u64];
            epoch.get(right, 0, &mut got).unwrap();
            epoch.end().unwrap();
            assert_eq!(got, [count as u64]);
        }
        windows.into_iter().for_each(|window| window.free().unwrap());
        let window = world.window(MIB, 1).allocate().unwrap();
        fill_and_check(&window);
        window.free().unwrap();
    });
}

/// Takes all descriptors that this process may have.
fn take_descriptors() -> Vec<fs::File> {
    limit(Resource::Nofile, 64);
    std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect()
}

/// One rank has no descriptor to map a shared window by: no rank gets it, and nothing of it stays.
#[test]
fn a_shared_window_that_one_rank_cannot_map() {
    processes(3, |universe| {
        let world = universe.world();
        let window = || world.window(MIB, 1).allocate_shared();
        // What is mapped at its first use.
        window().unwrap().free().unwrap();
        still_works(world);
        let before = descriptors().len();
        // A block of words that stays in each round would fill more than an arena.
        for culprit in [Rank(1), Rank(2)].into_iter().cycle().take(300) {
            let held = (world.rank() == culprit).then(take_descriptors);
            let error = window().err().unwrap();
            match error {
                WindowError::Import(ImportError::System { errno, .. }) => {
                    assert_eq!(world.rank(), culprit);
                    assert_eq!(errno, rustix::io::Errno::MFILE.raw_os_error());
                }
                _ => assert_eq!(error, WindowError::Peer(culprit)),
            }
            drop(held);
            world.barrier().unwrap();
        }
        assert_eq!(descriptors().len(), before);
        window().unwrap().free().unwrap();
    });
}

/// A rank that cannot reach the words of a lock does not stand in line for it: more often than
/// there are places for that. Those of its own part it has, and the global lock is at rank 0.
#[test]
fn a_lock_that_cannot_be_mapped_takes_no_place() {
    let mut config = rma::Config::default();
    // For what hangs.
    config.wait_timeout = Some(Duration::from_secs(100));
    let test = "a_lock_that_cannot_be_mapped_takes_no_place";
    rma::testing::processes_with(config, test, 2, |universe| {
        let world = universe.world();
        still_works(world);
        let window = world.window(MIB, 1).allocate().unwrap();
        if world.rank() == Rank(1) {
            let held = take_descriptors();
            for _ in 0..10 {
                let error = window.lock(Rank(1), LockKind::Exclusive).err().unwrap();
                expect_no_descriptor_for_put(&error);
            }
            drop(held);
            window.lock(Rank(1), LockKind::Exclusive).unwrap().unlock().unwrap();
        }
        window.free().unwrap();
        universe.finalize().unwrap();
    });
}

fn expect_no_descriptor_for_window(error: &WindowError) {
    let none = rustix::io::Errno::MFILE.raw_os_error();
    match error {
        WindowError::Allocate { error: AllocateError::System { errno, .. }, .. } => {
            assert_eq!(*errno, none, "{error}");
        }
        WindowError::Peer(_) => {}
        _ => panic!("{error:?}: {error}"),
    }
}

fn expect_no_descriptor_for_put(error: &RmaError) {
    let none = rustix::io::Errno::MFILE.raw_os_error();
    match error {
        RmaError::Import { error: ImportError::System { errno, .. }, .. } => {
            assert_eq!(*errno, none, "{error}");
        }
        _ => panic!("{error:?}: {error}"),
    }
}

/// What must not grow.
#[derive(Debug, Clone, Copy)]
struct Footprint {
    descriptors: usize,
    mappings: usize,
    resident_kib: u64,
}

impl Footprint {
    fn now() -> Self {
        // Counts pages, where VmRSS of /proc/self/status is off by what CPUs have not yet added.
        let smaps = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let resident = smaps.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        let resident_kib = resident.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        let (descriptors, mappings) = (descriptors().len(), mappings().len());
        Self { descriptors, mappings, resident_kib }
    }

    /// `self` came first; resident memory may have grown by `slack_kib`.
    fn expect_flat(self, after: Self, slack_kib: u64) {
        println!("before {self:?}, after {after:?}");
        assert!(after.descriptors <= self.descriptors, "{self:?} {after:?}");
        // The allocator may map a block of its own.
        assert!(after.mappings <= self.mappings + 4, "{self:?} {after:?}");
        assert!(after.resident_kib <= self.resident_kib + slack_kib, "{self:?} {after:?}");
    }
}

#[test]
fn ten_thousand_windows_leave_nothing() {
    processes(2, |universe| {
        let world = universe.world();
        let right = world.rank().on_ring(1, world.size());
        let mut after_a_few = None;
        for round in 1..=10_000u64 {
            // Some have a segment of their own.
            let window = words(world, if round % 50 == 0 { MIB / 8 } else { 64 });
            let epoch = window.lock(right, LockKind::Exclusive).unwrap();
            epoch.put(0, &[round]).unwrap();
            epoch.unlock().unwrap();
            window.free().unwrap();
            // Looking for the first time costs memory by itself.
            if round == 50 || round == 100 {
                after_a_few = Some(Footprint::now());
            }
        }
        // A leak of 64 bytes a round would be 618 KiB.
        after_a_few.unwrap().expect_flat(Footprint::now(), 512);
    });
}

#[test]
fn a_thousand_communicators_leave_nothing() {
    processes(2, |universe| {
        let world = universe.world();
        let mut after_a_few = None;
        for round in 1..=1_000 {
            let dup = world.dup().unwrap();
            let split = dup.split(Some(0), -i64::from(dup.rank().0)).unwrap().unwrap();
            assert_eq!(split.rank(), dup.rank().on_ring(1, 2));
            let none = split.split((split.rank() == Rank(0)).then_some(5), 0).unwrap();
            assert_eq!(none.is_some(), split.rank() == Rank(0));
            assert_eq!(split.allreduce(&[round], Op::Max).unwrap(), [round]);
            // Looking for the first time costs memory by itself.
            if round == 50 || round == 100 {
                after_a_few = Some(Footprint::now());
            }
        }
        // A leak of 320 bytes a round would be 281 KiB; code is loaded as it is used.
        after_a_few.unwrap().expect_flat(Footprint::now(), 256);
    });
}

/// Ranks 0 and 2 go on with the memory of rank 1 while that is stopped for two seconds.
#[test]
fn a_rank_that_is_stopped_holds_no_other_up() {
    processes(3, |universe| {
        let world = universe.world();
        let window = words(world, 1024);
        let pids = world.allgather(&[std::process::id()]).unwrap();
        let count = match world.rank() {
            Rank(0) => operate_while_stopped(&window, pids[1]),
            Rank(2) => (1..).find(|_| operate(&window)).unwrap(),
            _ => 0,
        };
        world.barrier().unwrap();
        let total = world.allreduce(&[count], Op::Sum).unwrap()[0];
        if world.rank() == STOPPED {
            assert_eq!(window.local().load::<u64>(GUARDED).unwrap(), total);
            assert_eq!(window.local().load::<u64>(ATOMIC).unwrap(), total);
        }
        still_works(world);
        window.free().unwrap();
        universe.finalize().unwrap();
    });
}

const STOPPED: Rank = Rank(1);
/// A word that is changed under an exclusive lock.
const GUARDED: u64 = 0;
/// A word that is changed by atomics.
const ATOMIC: u64 = 1;
/// A word that says that it is over.
const OVER: u64 = 2;

/// Two seconds of operations on a process in state T; returns how many.
fn operate_while_stopped(window: &Window, pid: u32) -> u64 {
    let process = Pid::from_raw(pid.cast_signed()).unwrap();
    stop(process);
    let since = Instant::now();
    let mut count = 0;
    while since.elapsed() < Duration::from_secs(2) || count == 0 {
        operate(window);
        count += 1;
    }
    assert!(is_stopped(process), "it was stopped all the time");
    let epoch = window.lock_all().unwrap();
    epoch.fetch_and_op(STOPPED, OVER, Op::Replace, 1u64).unwrap();
    epoch.unlock().unwrap();
    kill_process(process, Signal::CONT).unwrap();
    count
}

/// One of each operation on the memory of rank 1; returns whether it is over.
fn operate(window: &Window) -> bool {
    let epoch = window.lock(STOPPED, LockKind::Exclusive).unwrap();
    let mut value = [0u64];
    epoch.get(GUARDED, &mut value).unwrap();
    epoch.put(GUARDED, &[value[0] + 1]).unwrap();
    epoch.unlock().unwrap();

    let epoch = window.lock_all().unwrap();
    let old = epoch.fetch_and_op(STOPPED, ATOMIC, Op::Sum, 1u64).unwrap();
    let (mine, block) = (256 * (1 + u64::from(window.rank())), [old; 200]);
    epoch.put(STOPPED, mine, &block).unwrap();
    epoch.flush(STOPPED).unwrap();
    let mut got = [0; 200];
    epoch.get(STOPPED, mine, &mut got).unwrap();
    assert_eq!(got, block);
    assert_eq!(epoch.compare_and_swap(STOPPED, mine, old, !old).unwrap(), old);
    let over = epoch.fetch_and_op(STOPPED, OVER, Op::NoOp, 0u64).unwrap();
    epoch.unlock().unwrap();
    over != 0
}

#[test]
fn many_more_ranks_than_cores() {
    processes(32, |universe| {
        let world = universe.world();
        (0..200).for_each(|_| world.barrier().unwrap());
        let (rank, ranks) = (world.rank(), world.size());
        let window = words(world, 1);
        let mut value = u64::from(rank);
        // Every value goes around the ring once.
        let mut epoch = window.fence(Assert::NONE).unwrap();
        for step in 1..=i64::from(ranks) {
            epoch.put(rank.on_ring(1, ranks), 0, &[value]).unwrap();
            epoch = epoch.next(Assert::NONE).unwrap();
            value = window.local().load(0).unwrap();
            assert_eq!(value, u64::from(rank.on_ring(-step, ranks)));
            epoch = epoch.next(Assert::NONE).unwrap();
        }
        epoch.end().unwrap();
        window.free().unwrap();
        universe.finalize().unwrap();
    });
}
