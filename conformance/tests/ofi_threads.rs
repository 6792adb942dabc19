//! The suite with ranks as threads of this process, each a node of its own, which the others reach
//! by libfabric only.
#![allow(unsafe_code)] // room: vouches for memory that a window is made of

use ofi::WhereLibfabricIs;
use ranks::{Settings, Threads};
use rma::{Config, Layout, Path, Rank, RawPart};
use rma_conformance::Harness;

mod generated;
mod ofi;
mod ranks;

struct Far;

impl Settings for Far {
    fn config() -> Config {
        ofi::config("tcp", 1)
    }
}

type OfiThreads = WhereLibfabricIs<Threads<Far>>;

rma_conformance::suite!(OfiThreads);

/// Generated programs.
#[test]
fn generated_programs() {
    if ofi::is_here() {
        generated::play::<OfiThreads>("ofi_threads", 100);
    }
}

/// Memory that the device cannot reach is reached by messages, and explained.
#[test]
fn private_memory() {
    OfiThreads::run("private_memory", 2, &|universe| {
        let world = universe.world();
        let mut memory = vec![0u64; 4];
        // SAFETY: the vector lives until the window is freed, and is used through it only.
        let part = unsafe { RawPart::new(memory.as_mut_ptr().cast(), 32) };
        let window = world.window(4, 8).create(part).unwrap();
        let text = window.explain();
        let why = "device: not used: memory that the device could not register";
        assert!(text.contains(why), "{text}");
        let other = Rank(1 - world.rank().0);
        assert_eq!(window.path(other), Some(Path::Messages));
        let epoch = window.lock_all().unwrap();
        epoch.put(other, 1, &[7u64 + u64::from(world.rank().0)]).unwrap();
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        assert_eq!(window.local().load::<u64>(1).unwrap(), 7 + u64::from(other.0));
        window.free_into::<RawPart>().unwrap();
        universe.finalize().unwrap();
    });
}

/// What is used is explained.
#[test]
fn explained() {
    ofi::explained::<OfiThreads>("tcp;ofi_rxm");
}

/// A layout goes the way that takes less by the costs of the provider: few long runs as transfers,
/// many short ones packed into a message.
#[test]
fn layouts_go_the_way_that_takes_less() {
    OfiThreads::run("layouts_go_the_way_that_takes_less", 2, &|universe| {
        let world = universe.world();
        let window = world.window(1 << 12, 8).allocate().unwrap();
        let text = window.explain();
        assert!(text.contains("packed: what takes less (10000 ns"), "{text}");
        let (other, word) = (Rank(1 - world.rank().0), Layout::element::<u64>());
        let epoch = window.lock_all().unwrap();
        for (runs, words, by_device) in [(4u64, 512, true), (2, 1, false), (64, 60, false)] {
            let apart = word.vector(runs, words, words as i64 + 1).unwrap();
            let sent = vec![runs; (runs * words) as usize];
            let before = window.operation_counts();
            epoch.put(other, apart.at(0), word.times(runs * words).of(&sent)).unwrap();
            epoch.flush(other).unwrap();
            let after = window.operation_counts();
            let by = (after.device - before.device, after.messages - before.messages);
            assert_eq!(by, if by_device { (1, 0) } else { (0, 1) }, "{runs} runs");
            let mut got = vec![0; sent.len()];
            epoch.get(other, apart.at(0), word.times(runs * words).of(&mut got)).unwrap();
            assert_eq!(got, sent);
        }
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        window.free().unwrap();
        universe.finalize().unwrap();
    });
}
