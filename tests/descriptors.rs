//! What a process keeps of windows that were dropped. Alone in its process: it counts open files.
use rma::{Config, local_with};
use std::fs;

/// The memory of a window whose peers come by address stays, its file does not.
#[test]
fn windows_that_were_dropped_keep_no_files() {
    let files = || fs::read_dir("/proc/self/fd").unwrap().count();
    for path in ["auto", "messages", "cross"] {
        let mut config = Config::default();
        config.hint("rma_path", path).unwrap();
        let job = || {
            local_with(config, 2, |universe| {
                drop(universe.world().window(100_000, 8).allocate().unwrap());
                universe.finalize().unwrap();
            })
            .unwrap();
        };
        job();
        let before = files();
        (0..5).for_each(|_| job());
        assert_eq!(files(), before, "{path}");
    }
}
