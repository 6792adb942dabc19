//! Windows and communicators that come and go leave no descriptor and no mapping behind. One test:
//! it counts what the whole process has.
use rma::{Assert, Rank, Universe, local};
use std::fs;

fn counts() -> (usize, usize) {
    let maps = fs::read_to_string("/proc/self/maps").expect("the mappings of this process");
    let segments = maps.lines().filter(|line| line.contains("memfd:rma-")).count();
    (fs::read_dir("/proc/self/fd").expect("its descriptors").count(), segments)
}

fn cycles(universe: &Universe, count: usize) {
    let world = universe.world();
    for round in 0..count {
        let size = [0, 8, 5_000, 70_000][round % 4];
        let builder = world.window(size / 8, 8).hint("accumulate_ordering", "none").unwrap();
        let window = if round % 3 == 0 { builder.allocate_shared() } else { builder.allocate() };
        let window = window.unwrap();
        window.set_attribute(vec![round]);
        let epoch = window.fence(Assert::NONE).unwrap();
        if size > 0 {
            epoch.put(world.rank().on_ring(1, world.size()), 0, &[round as u64]).unwrap();
        }
        epoch.end().unwrap();
        window.free().unwrap();
        // Refused when all have its memory.
        let refused = world.window(0, 1).hint("rma_path", "load_store").unwrap();
        assert!(refused.create_dynamic().is_err());
        if round % 5 == 0 {
            let other = world.dup().unwrap();
            other.barrier().unwrap();
            let dynamic = other.window(0, 1).create_dynamic().unwrap();
            let _left_attached = dynamic.attach(vec![round; 9_000]).unwrap();
            dynamic.free().unwrap();
        }
    }
}

/// So many that the least piece of memory kept of each would fill arenas.
fn shared(universe: &Universe, count: usize) {
    for _ in 0..count {
        universe.world().window(1, 8).allocate_shared().unwrap().free().unwrap();
    }
}

/// S-A5
#[test]
fn thousands_of_windows_leave_nothing_behind() {
    let results = local(2, |universe| {
        let world = universe.world();
        cycles(&universe, 40);
        world.barrier().unwrap();
        let warm = counts();
        world.barrier().unwrap();
        cycles(&universe, 3_000);
        world.barrier().unwrap();
        let after = counts();
        world.barrier().unwrap();
        shared(&universe, 25_000);
        world.barrier().unwrap();
        let kept = counts();
        world.barrier().unwrap();
        (world.rank() == Rank(0)).then_some((warm, after, kept))
    });
    let (warm, after, kept) = results.unwrap()[0].expect("rank 0 has counted");
    // The heap keeps an arena or two that are not in use, and so does a neighbour that maps them.
    let few = |after, warm| after <= warm + 4;
    for end in [after, kept] {
        assert!(few(end.0, warm.0) && few(end.1, warm.1), "{end:?} after {warm:?}");
    }
}
