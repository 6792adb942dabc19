//! What a process keeps of windows that were dropped. Alone in its process: it counts open files.
use rma::{Config, local_with};
use std::fs;

/// The memory of a window whose peers come by address stays, its file does not.
#[test]
fn windows_that_were_dropped_keep_no_files() {
    let files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let shared = || fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:").count();
    for (path, nodes) in [("auto", 1), ("messages", 1), ("cma", 1), ("cma", 2)] {
        let mut config = Config::default();
        config.hint("rma_path", path).unwrap();
        config.nodes = nodes;
        let job = || {
            local_with(config.clone(), 4, |universe| {
                let world = universe.world();
                drop(world.window(100_000, 8).allocate().unwrap());
                drop(world.window(10, 8).allocate().unwrap());
                let dynamic = world.window(0, 1).create_dynamic().unwrap();
                _ = dynamic.attach(vec![0u64; 100_000]).unwrap();
                drop(dynamic);
                universe.finalize().unwrap();
            })
            .unwrap();
        };
        job();
        let before = (files(), shared());
        (0..5).for_each(|_| job());
        // By address: a segment of each rank, and an arena, in each job.
        let kept = if (path, nodes) == ("cma", 1) { 5 * 4 * 2 } else { 0 };
        assert_eq!((files(), shared()), (before.0, before.1 + kept), "{path}, {nodes} nodes");
    }
}
