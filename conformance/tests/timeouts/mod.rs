//! Deadlines and budgets of [`Config`], which only a harness that makes universes itself can set.
use super::jobs;
use rma_core::{
    Assert, CollectiveError, Config, ErrorClass, LockKind, Op, Rank, RmaError, Universe, Window,
};
use std::task::Poll;
use std::time::Duration;

mod progress;
mod pscw;
mod sealed;

fn run(name: &str, ranks: u32, config: Config, body: &(dyn Fn(Universe) + Sync)) {
    jobs(config).run(name, ranks, body);
}

fn impatient() -> Config {
    let mut config = Config::default();
    config.wait_timeout = Some(Duration::from_millis(20));
    config
}

fn words(universe: &Universe, count: usize) -> Window {
    universe.world().window(count, 8).allocate().unwrap()
}

/// Lets virtual time pass, and serves the peers.
fn wait_for(universe: &Universe, own: &Window, end: Duration) {
    // Without locks: their words may be at a rank that has left.
    let epoch = own.lock_all_with(Assert::NO_CHECK).unwrap();
    while universe.transport().now() < end {
        epoch.fetch_and_op(own.rank(), 0, Op::NoOp, 0u64).unwrap();
    }
    epoch.unlock().unwrap();
}

#[test]
fn a_lock_that_never_comes_times_out_and_is_taken_later() {
    run("timeouts::a_lock_that", 4, impatient(), &|universe| {
        let world = universe.world();
        let (window, own) = (words(&universe, 1), words(&universe, 1));
        let held =
            (world.rank() == Rank(0)).then(|| window.lock(Rank(0), LockKind::Exclusive).unwrap());
        world.barrier().unwrap();
        // Each of the others may wait once in line and once at its head.
        let end = universe.transport().now() + Duration::from_millis(120);
        if held.is_none() {
            let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
            lock.put(0, &[7u64]).unwrap();
            let error = lock.flush().unwrap_err();
            // Whatever comes after it, and the end of the epoch.
            assert_eq!(lock.put(0, &[7u64]), Err(error));
            assert_eq!(lock.unlock(), Err(error));
            let RmaError::Timeout { window: id, .. } = error else { panic!("{error}") };
            assert_eq!((id, error.class()), (window.id(), ErrorClass::Other));
            let text = error.to_string();
            assert!(text.contains("timeout") && text.contains(&id.to_string()), "{text}");
        }
        wait_for(&universe, &own, end);
        drop(held);
        world.barrier().unwrap();
        for _ in 0..3 {
            let lock = window.lock(Rank(0), LockKind::Exclusive).unwrap();
            let mut value = [0u64];
            lock.get(0, &mut value).unwrap();
            lock.put(0, &[value[0] + 1]).unwrap();
            lock.unlock().unwrap();
        }
        world.barrier().unwrap();
        if world.rank() == Rank(0) {
            // Nothing that waited for the lock was performed.
            assert_eq!(window.local().load(0), Ok(3 * u64::from(world.size())));
        }
        window.free().unwrap();
        own.free().unwrap();
        universe.finalize().unwrap();
    });
}

#[test]
fn a_collective_that_a_rank_misses_times_out() {
    run("timeouts::a_collective_that", 3, impatient(), &|universe| {
        let world = universe.world();
        let own = words(&universe, 1);
        let comm = world.dup().unwrap();
        if world.rank() == Rank(2) {
            let end = universe.transport().now() + Duration::from_millis(120);
            wait_for(&universe, &own, end);
        } else {
            let error = comm.barrier().unwrap_err();
            assert!(matches!(error, CollectiveError::Timeout { .. }), "{error}");
            assert_eq!(error.class(), ErrorClass::Other);
        }
    });
}

/// However long a rank looks in vain, the deadline of the configuration is that of one wait.
#[test]
fn a_timed_barrier_that_a_rank_misses_times_out() {
    run("timeouts::a_timed_barrier_that", 3, impatient(), &|universe| {
        let (world, own) = (universe.world(), words(&universe, 1));
        let (comm, start) = (world.dup().unwrap(), universe.transport().now());
        if world.rank() != Rank(2) {
            while universe.transport().now() < start + Duration::from_millis(60) {
                let met = comm.barrier_for(Duration::from_millis(1));
                assert_eq!(met, Ok(Poll::Pending));
            }
            let error = comm.barrier_for(Duration::MAX).unwrap_err();
            assert!(matches!(error, CollectiveError::Timeout { what: "barrier_for" }), "{error}");
            for timeout in [Duration::ZERO, Duration::MAX] {
                let error = comm.barrier_for(timeout).unwrap_err();
                assert!(matches!(error, CollectiveError::OutOfStep { .. }), "{error}");
            }
        }
        // No rank leaves before the others have found out.
        wait_for(&universe, &own, start + Duration::from_millis(240));
    });
}

#[test]
fn a_payload_beyond_the_limit_is_refused() {
    let mut config = Config::default();
    config.collective_bytes = 1000;
    run("timeouts::a_payload_beyond", 2, config, &|universe| {
        let world = universe.world();
        let most = vec![3u8; 1000];
        assert_eq!(world.alltoallv(&[most.clone(), most.clone()]).unwrap(), [&most[..]; 2]);
        let mine = vec![0u8; 1001];
        let error = world.alltoallv(&[mine.clone(), mine]).unwrap_err();
        let CollectiveError::TooLarge { what, bytes, limit } = error else { panic!("{error}") };
        assert_eq!((what, bytes, limit), ("alltoallv", 1001, 1000));
        assert_eq!(error.class(), ErrorClass::Count);
        assert!(error.to_string().contains("send it in parts"));
        assert_eq!(world.allgather(&vec![1u8; 500]).unwrap(), vec![1; 1000]);
        universe.finalize().unwrap();
    });
}

#[test]
fn few_slots_and_a_small_cache_only_cost_time() {
    let mut config = Config::default();
    config.outstanding_messages = 1;
    config.target_cache = 1;
    run("timeouts::few_slots", 4, config, &|universe| {
        let world = universe.world();
        let window = world.window(10 + usize::from(world.rank()), 8).allocate().unwrap();
        let epoch = window.lock_all().unwrap();
        let mut got = [[1u64; 4]; 8];
        epoch
            .ops(|ops| {
                for (i, got) in got.iter_mut().enumerate() {
                    let target = world.rank().on_ring(i as i64, world.size());
                    ops.put(target, u64::from(world.rank()), &[7u64])?;
                    ops.get(target, 6, got)?;
                }
                Ok(())
            })
            .unwrap();
        epoch.unlock().unwrap();
        assert_eq!(got, [[0; 4]; 8]);
        world.barrier().unwrap();
        let mut words = [0u64; 4];
        window.local().read(0, &mut words).unwrap();
        assert_eq!(words, [7; 4]);
        window.free().unwrap();
        universe.finalize().unwrap();
    });
}
