//! Asking for more than there is: an error that says so, and a process that lives on. Limits are
//! set in child processes, because they hold for a whole process.

#![allow(unsafe_code)] // room: writes whole regions

mod common;

use common::{Children, child, ranks};
use rma_core::transport::{AllocateError, Mapped, Members, Outcome, PeerState, Shared, WorldRank};
use rma_transport_shm::Shm;
use rustix::process::{Resource, Rlimit, setrlimit};

const MIB: usize = 1 << 20;

#[track_caller]
fn expect_shortage(shm: &Shm, len: usize, part: &str) {
    match shm.allocate(len, 64) {
        Err(error @ AllocateError::Shortage { requested, available, limit }) => {
            assert_eq!(requested, len as u64);
            assert!(available < requested, "{error}");
            assert!(limit.contains(part), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// It still works, and touching all of it is no fault.
fn expect_room(shm: &Shm, len: usize) {
    let region = shm.allocate(len, 64).unwrap();
    let mapping = region.mapping();
    // SAFETY: mapped, writable, and known to this test alone.
    unsafe { mapping.base.write_bytes(1, mapping.len) };
}

fn limit(resource: Resource, bytes: u64) {
    setrlimit(resource, Rlimit { current: Some(bytes), maximum: Some(bytes) }).unwrap();
}

#[test]
fn a_tebibyte_and_more() {
    let all = ranks(1, 1);
    for len in [1 << 40, 1 << 50, isize::MAX as usize, usize::MAX] {
        expect_shortage(&all[0], len, "");
    }
    let (available, limit) = all[0].available();
    assert!(available < 1 << 40 && !limit.is_empty());
    expect_room(&all[0], MIB);
}

/// Under limited address space.
#[test]
fn address_space() {
    if child().is_none() {
        return Children::start("address_space", 1).expect_success();
    }
    let all = ranks(1, 1);
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    let used = pages * rustix::param::page_size() as u64;
    limit(Resource::As, used + 32 * MIB as u64);
    expect_shortage(&all[0], 64 * MIB, "RLIMIT_AS");
    assert!(all[0].available().0 <= 32 * MIB as u64);
    expect_room(&all[0], 8 * MIB);
}

/// Under limited file size: a memfd is a file, and exceeding that limit is a deadly signal.
#[test]
fn file_size() {
    if child().is_none() {
        return Children::start("file_size", 1).expect_success();
    }
    let all = ranks(1, 1);
    limit(Resource::Fsize, 128 << 10);
    expect_shortage(&all[0], MIB, "RLIMIT_FSIZE");
    assert!(all[0].available().0 > 128 << 10, "in several segments");
    // Less than an arena, so these get segments of their own.
    expect_room(&all[0], 100_000);
    expect_room(&all[0], 64);
}

/// Without descriptors left.
#[test]
fn descriptors() {
    if child().is_none() {
        return Children::start("descriptors", 1).expect_success();
    }
    let all = ranks(1, 1);
    limit(Resource::Nofile, 64);
    let mut held = Vec::new();
    let error = loop {
        match all[0].allocate(100_000, 64) {
            Ok(region) => held.push(region),
            Err(error) => break error,
        }
    };
    let errno = rustix::io::Errno::MFILE.raw_os_error();
    assert_eq!(error, AllocateError::System { requested: 100_000, call: "memfd_create", errno });
    assert!(held.len() > 10);
    held.pop();
    expect_room(&all[0], 100_000);
}

/// A rank that leaves without descriptors left tells also those that it never mapped, and again
/// when it finds out that it holds a lock.
#[test]
fn leaving_without_descriptors() {
    if child().is_none() {
        return Children::start("leaving_without_descriptors", 1).expect_success();
    }
    let mut all = ranks(3, 3);
    let gone = all.pop().unwrap();
    limit(Resource::Nofile, 64);
    let rest = || std::fs::File::open("/dev/null").ok();
    let mut held: Vec<_> = std::iter::from_fn(rest).collect();
    assert!(held.len() > 10);
    for (outcome, state) in
        [(Outcome::Departed, PeerState::Departed), (Outcome::Holding, PeerState::Holding)]
    {
        gone.depart(outcome);
        for shm in &all {
            assert_eq!((shm.told(WorldRank(2)), shm.failed()), (state, None));
        }
        // What the rank has in reserve is out of the program's reach again.
        held.extend(std::iter::from_fn(rest));
    }
}
