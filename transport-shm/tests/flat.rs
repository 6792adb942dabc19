//! Descriptors and mappings stay as many as they were, and no name appears in /dev/shm. One test:
//! it counts what the whole process has.

mod common;

use std::collections::BTreeSet;
use std::fs;

use common::{ranks, word};
use rma_core::transport::{Mapped, Members, Region, Shared, WorldRank};
use rma_transport_shm::Shm;

#[derive(Debug, PartialEq)]
struct Counts {
    descriptors: usize,
    segments: usize,
}

fn counts() -> Counts {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    Counts {
        descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
        segments: maps.lines().filter(|line| line.contains("memfd:rma-")).count(),
    }
}

fn names() -> BTreeSet<std::ffi::OsString> {
    let Ok(folder) = fs::read_dir("/dev/shm") else { return BTreeSet::new() };
    folder.flatten().map(|entry| entry.file_name()).collect()
}

fn share(from: &Shm, to: &Shm, len: usize) -> (Box<dyn Region>, Box<dyn Mapped>) {
    let region = from.allocate(len, 64).unwrap();
    let import = to.import(from.rank(), &[region.descriptor()]).unwrap();
    (region, import)
}

#[test]
fn ten_thousand_regions_leave_nothing_behind() {
    let (fresh, before_names) = (counts(), names());
    let all = ranks(2, 2);
    let cycle = |n: usize| {
        let len = [8, 4_096, 65_536, 65_537, 300_000][n % 5];
        let (region, import) = share(&all[n % 2], &all[(n + 1) % 2], len);
        word(&import).store(n as u64, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(word(&region).load(std::sync::atomic::Ordering::Relaxed), n as u64);
    };
    (0..20).for_each(cycle);
    let warm = counts();
    (0..10_000).for_each(cycle);
    assert_eq!(counts(), warm);

    // Arenas come and go below an importer that keeps some of them mapped.
    for round in 0..300 {
        let held: Vec<_> = (0..10).map(|_| share(&all[0], &all[1], 65_536)).collect();
        for (n, (region, import)) in held.iter().enumerate() {
            assert_eq!(word(import).load(std::sync::atomic::Ordering::Relaxed), 0);
            let value = round * 100 + n as u64 + 1;
            word(region).store(value, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(word(import).load(std::sync::atomic::Ordering::Relaxed), value);
        }
    }
    let after = counts();
    assert_eq!(after.descriptors, warm.descriptors);
    assert!(after.segments <= warm.segments + 2, "{after:?} after {warm:?}");

    assert!(all[0].failed().is_none() && all[1].is_near(WorldRank(0)));
    drop(all);
    assert_eq!(counts(), fresh);
    assert_eq!(names(), before_names);
}
