//! A window that is larger than the memory its ranks may use, as real processes in a control group.
#[path = "../benches/src/group.rs"]
mod group;
mod mounts;

use group::MemoryGroup;
use rma::{AccessStyle, Assert, OnStorage, StorageFactor, StorageHints};
use rma_launcher::run::{Output, Spec, run};
use std::path::Path;
use std::time::Duration;

const RANKS: u32 = 2;
/// Bytes that all ranks may have together: code, stacks, messages, and pages of files.
const MEMORY: usize = 96 << 20;
/// Words of each part.
const WORDS: usize = MEMORY / 8;
/// Words of a put.
const PIECE: usize = 32 << 10;
const WATCHDOG: Duration = Duration::from_secs(300);
const TEST: &str = "a_window_is_larger_than_memory";

/// What word `at` of a rank's part holds.
fn word(rank: u32, at: usize) -> u64 {
    (u64::from(rank) << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// One rank: all parts are written by others, and are what they should be, there and in the file.
fn play(folder: &Path, share: f64) {
    let universe = rma::initialize().unwrap();
    let world = universe.world();
    let hints = StorageHints::file(folder.join("part.{rank}"));
    let hints = hints.factor(StorageFactor::Share(share)).unwrap();
    let hints = hints.access_style(&[AccessStyle::Sequential]);
    let window = world.window(WORDS, 8).on_storage(&hints).unwrap().allocate().unwrap();
    let target = world.rank().on_ring(1, world.size());
    let pieces = || (0..WORDS).step_by(PIECE).map(|at| at..WORDS.min(at + PIECE));
    let epoch = window.fence(Assert::NO_PRECEDE).unwrap();
    for piece in pieces() {
        let words: Vec<u64> = piece.clone().map(|at| word(target.0, at)).collect();
        epoch.put(target, piece.start, &words).unwrap();
    }
    epoch.end().unwrap();
    window.sync().unwrap();
    let mut words = vec![0; PIECE];
    for piece in pieces() {
        let words = &mut words[..piece.len()];
        window.local().read(piece.start, words).unwrap();
        let wrong = piece.clone().find(|at| words[at - piece.start] != word(world.rank().0, *at));
        assert_eq!(wrong, None, "word of rank {}", world.rank());
    }
    window.free().unwrap();
    universe.finalize().unwrap();
}

#[test]
fn a_window_is_larger_than_memory() {
    if rma_launcher::is_launched() {
        let told = std::env::args().next_back().unwrap();
        let (name, rest) = told.split_once(':').unwrap();
        let (share, folder) = rest.split_once(':').unwrap();
        MemoryGroup::of(name).unwrap().enter().unwrap();
        return play(Path::new(folder), share.parse().unwrap());
    }
    // Whole on storage, and a quarter of it in memory.
    for share in ["1", "0.75"] {
        let name = format!("rma-test-{}", std::process::id());
        let group = match MemoryGroup::make(&name, MEMORY as u64) {
            Ok(group) => group,
            Err(error) => return mounts::skip(TEST, &error.to_string()),
        };
        // Beside the program: what is temporary may lie in memory.
        let beside = std::env::current_exe().unwrap().with_file_name("");
        let folder = tempfile::tempdir_in(beside).unwrap();
        let mut spec = Spec::new(std::env::current_exe().unwrap(), RANKS);
        let told = format!("{name}:{share}:{}", folder.path().display());
        let args = ["--exact", TEST, "--nocapture", "--skip", &told];
        spec.args = args.iter().map(Into::into).collect();
        spec.output = Output::Capture;
        spec.oversubscribe = true;
        spec.timeout = Some(WATCHDOG);
        let report = run(&spec).unwrap();
        assert_eq!(report.exit_code(), 0, "{report:?}");
        assert!(group.was_full().unwrap(), "the ranks had more memory than they needed");
        for rank in 0..RANKS {
            // What is on storage is the end of the part.
            let path = folder.path().join(format!("part.{rank}"));
            let bytes = std::fs::read(path).unwrap();
            let first = WORDS - bytes.len() / 8;
            let words =
                bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
            let wrong = words.zip(first..).find(|(found, at)| *found != word(rank, *at));
            assert_eq!(wrong, None);
        }
    }
}
