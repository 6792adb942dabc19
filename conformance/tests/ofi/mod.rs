//! Jobs over libfabric at loop-back.
use rma::{Config, Op, Path, Rank, Universe};
use rma_conformance::shared::refused;
use rma_conformance::{Exception, Harness};
use std::marker::PhantomData;

#[path = "../../../tests/libfabric/mod.rs"]
mod libfabric;

pub(crate) use libfabric::is_here;

/// Settings of a job on so many nodes, by that provider; of one node, each rank is a node.
pub(crate) fn config(provider: &str, nodes: u32) -> Config {
    let mut config = Config::default();
    config.nodes = nodes;
    config.set("transport", "ofi").expect("it is a setting");
    config.set("provider", provider).expect("it is a setting");
    config
}

/// What a provider cannot do.
pub(crate) trait LeftOut {
    fn left_out() -> Vec<Exception>;
}

/// Of providers that can do all.
pub(crate) struct Nothing;

impl LeftOut for Nothing {
    fn left_out() -> Vec<Exception> {
        Vec::new()
    }
}

/// As a harness of jobs of several nodes says, but for what is left out, where libfabric is;
/// elsewhere the tests say why not, and pass.
pub(crate) struct WhereLibfabricIs<H, L = Nothing>(PhantomData<(H, L)>);

impl<H: Harness, L: LeftOut> Harness for WhereLibfabricIs<H, L> {
    fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
        if is_here() {
            H::run(name, ranks, body);
        }
    }

    fn run_failing(name: &str, ranks: u32, victim: u32, body: &(dyn Fn(Universe) + Sync)) {
        if is_here() {
            H::run_failing(name, ranks, victim, body);
        }
    }

    fn exceptions() -> Vec<Exception> {
        let reason = "a shared window needs ranks that all share memory";
        let mut exceptions = L::left_out();
        exceptions.push(Exception { tests: "shared::", reason, instead: Some(refused) });
        exceptions
    }
}

/// Ranks of several nodes are told what they reach each other by.
#[allow(dead_code, reason = "a job of processes says the same")]
pub(crate) fn explained<H: Harness>(provider: &str) {
    H::run("explained", 4, &|universe| {
        let text = universe.explain();
        for part in [
            &format!("provider {provider} of libfabric"),
            "127.0.0.1",
            "sleeps at the provider's file",
            &format!("device: remote memory access of {provider}"),
        ] {
            assert!(text.contains(part), "{text}");
        }
        let world = universe.world();
        let window = world.window(1, 8).allocate().unwrap();
        let text = window.explain();
        assert!(text.contains("transport ofi") && text.contains("device"), "{text}");
        // The last rank is on another node than the first.
        let (first, last) = (Rank(0), Rank(world.size() - 1));
        let far = if world.rank() == first { last } else { first };
        let path = window.path(far);
        let is_far = world.rank() == first || world.rank() == last;
        assert!(!is_far || path == Some(Path::Device), "{path:?}");
        world.barrier().unwrap();
        window.free().unwrap();
        // No CPU combines elements there: the provider does, if it has atomics of its own.
        let window = world.window(1, 8).hint("rma_path", "device").unwrap().allocate().unwrap();
        let text = window.explain();
        let (atomics, count) = match provider {
            "sockets" => ("on u32, i32, u64, i64, u8, i8, u16, i16, Bool; others by messages", 1),
            _ => ("by messages, as the device has no type whole", 0),
        };
        assert!(text.contains(&format!("atomics: {atomics}")), "{text}");
        let epoch = window.lock_all().unwrap();
        epoch.fetch_and_op(first, 0, Op::Sum, 1u64).unwrap();
        assert_eq!(window.operation_counts().device, count, "{text}");
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        let sum = window.local().fetch_and_op(0, Op::NoOp, 0u64).unwrap();
        assert_eq!(sum, if world.rank() == first { u64::from(world.size()) } else { 0 });
        window.free().unwrap();
        let builder = world.window(1, 8).hint("rma_path", "messages").unwrap();
        let window = builder.allocate().unwrap();
        assert_eq!(window.path(far).filter(|_| is_far), is_far.then_some(Path::Messages));
        let text = window.explain();
        assert!(text.contains("device: not used: rma_path asks for another path"), "{text}");
        window.free().unwrap();
        universe.finalize().unwrap();
    });
}
