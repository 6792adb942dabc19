//! Fences and barriers whose deadline passed, and that are called again: no rank passes one that
//! another rank was not at.
use rma::{Assert, CollectiveError, Config, Rank, RmaError, Universe, local_with};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

/// CPUs, nodes and the path of each way to meet: counted, by flags, by messages, and some of both.
const WAYS: [(u32, u32, &str); 4] =
    [(1, 1, "auto"), (64, 1, "auto"), (64, 1, "messages"), (64, 2, "auto")];

/// Has `ranks` ranks run `body` on every way at once, with a barrier outside of the library; then
/// `check` looks at what each gave back. No rank panics while others wait for it out there.
fn on_every_way<R: Send>(
    ranks: u32,
    body: impl Fn(Universe, &Barrier) -> R + Sync,
    check: impl Fn(&str, Vec<R>) + Sync,
) {
    thread::scope(|scope| {
        for (cpus, nodes, path) in WAYS {
            let (body, check) = (&body, &check);
            scope.spawn(move || {
                let mut config = Config::default();
                (config.cpus, config.nodes) = (Some(cpus), nodes);
                // Only a waiter for a rank that does not come waits as long.
                config.wait_timeout = Some(Duration::from_secs(2));
                config.hint("rma_path", path).unwrap();
                let met = Barrier::new(ranks as usize);
                let all = local_with(config, ranks, |universe| body(universe, &met)).unwrap();
                check(&format!("{cpus} CPUs, {nodes} nodes, {path}"), all);
            });
        }
    });
}

/// Rank 1 is at a fence, and then is not any more: what it does after that is not covered by a
/// fence that others pass because it had come.
#[test]
fn a_fence_that_failed_cannot_be_repeated() {
    let body = |universe: Universe, met: &Barrier| {
        let window = universe.world().window(1, 8).allocate().unwrap();
        let fence = || window.fence(Assert::NONE).map(drop);
        let mut ends = Vec::new();
        if window.rank() == Rank(1) {
            ends.push(fence());
        }
        met.wait();
        ends.extend((0..3).map(|_| fence()));
        met.wait();
        ends
    };
    on_every_way(3, body, |way, ranks| {
        let [Err(RmaError::Timeout { .. }), again @ ..] = &ranks[1][..] else {
            panic!("{way}: {:?}", ranks[1])
        };
        for end in again {
            assert!(matches!(end, Err(RmaError::OutOfStep { .. })), "{way}: {end:?}");
        }
        let passed = |rank: usize| ranks[rank].iter().filter(|end| end.is_ok()).count();
        assert!(passed(0) <= 1 && passed(2) <= 1, "{way}: {ranks:?}");
    });
}

/// As a fence. What is made of the communicator is another one, and works.
#[test]
fn a_barrier_that_failed_cannot_be_repeated() {
    let body = |universe: Universe, met: &Barrier| {
        let world = universe.world();
        let mut ends = Vec::new();
        if world.rank() == Rank(1) {
            ends.push(world.barrier());
        }
        met.wait();
        ends.extend((0..3).map(|_| world.barrier()));
        met.wait();
        let anew = || -> Result<(), rma::Error> {
            let (again, window) = (world.dup()?, world.window(1, 8).allocate()?);
            again.barrier()?;
            window.fence(Assert::NONE)?.end()?;
            Ok(window.free()?)
        };
        let anew = anew();
        met.wait();
        (ends, anew.map_err(|error| error.to_string()))
    };
    on_every_way(2, body, |way, ranks| {
        let [Err(CollectiveError::Timeout { .. }), again @ ..] = &ranks[1].0[..] else {
            panic!("{way}: {:?}", ranks[1])
        };
        for end in again {
            assert!(matches!(end, Err(CollectiveError::OutOfStep { .. })), "{way}: {end:?}");
        }
        assert!(ranks[0].0.iter().filter(|end| end.is_ok()).count() <= 1, "{way}: {ranks:?}");
        assert_eq!((&ranks[0].1, &ranks[1].1), (&Ok(()), &Ok(())), "{way}");
    });
}

/// The same goes for every operation in which a rank waits.
#[test]
fn an_operation_that_failed_ends_the_communicator() {
    let body = |universe: Universe, met: &Barrier| {
        let world = universe.world();
        let bcast = || world.bcast(&mut [0u64], Rank(0));
        let first = if world.rank() == Rank(1) { bcast() } else { Ok(()) };
        met.wait();
        let second = bcast();
        met.wait();
        (first, second)
    };
    on_every_way(2, body, |way, ranks| {
        assert_eq!(ranks[0].1, Ok(()), "{way}");
        let failed = CollectiveError::OutOfStep { what: "bcast", failed: "bcast" };
        assert!(matches!(ranks[1].0, Err(CollectiveError::Timeout { .. })), "{way}");
        assert_eq!(ranks[1].1, Err(failed), "{way}");
    });
}
