//! Jobs on several pretended nodes: what ranks tell each other to make windows.
use rma::{CollectiveError, Config, Op, Rank, WindowError, local_with};
use std::time::Duration;

fn on_two_nodes() -> Config {
    let mut config = Config::default();
    config.nodes = 2;
    config
}

/// The least that payloads of collectives may be is enough for the runtime.
#[test]
fn windows_are_made_with_the_least_payloads() {
    for nodes in [1, 2, 4, 8] {
        let mut config = on_two_nodes();
        (config.nodes, config.collective_bytes) = (nodes, 256);
        let ranks = local_with(config, 8, |universe| {
            let window = universe.world().window(1, 8).allocate().unwrap();
            let right = window.rank().on_ring(1, 8);
            let lock = window.lock_all().unwrap();
            lock.put(right, 0, &[u64::from(window.rank())]).unwrap();
            lock.unlock().unwrap();
            universe.world().barrier().unwrap();
            assert_eq!(window.local().load(0), Ok(u64::from(window.rank().on_ring(-1, 8))));
            window.free().unwrap();
        });
        ranks.unwrap();
    }
}

/// A rank that plays the part of the runtime, with operations of its own of just the lengths that
/// making a window takes, is not believed: no rank gets a window that is not its peers'.
#[test]
fn operations_of_users_make_no_window() {
    let mut config = on_two_nodes();
    config.wait_timeout = Some(Duration::from_secs(2));
    let ranks = local_with(config, 3, |universe| {
        let world = universe.world();
        if world.rank() != Rank(1) {
            let made = world.window(1, 8).allocate();
            let timeout = WindowError::Collective(CollectiveError::Timeout { what: "allreduce" });
            let left = |error: &WindowError| {
                matches!(error, WindowError::Collective(CollectiveError::PeerLeft { .. }))
            };
            let error = made.err().unwrap();
            assert!(error == timeout || left(&error), "{error}");
            return;
        }
        let (mut plan, mut share) = ([0u64; 14], [0u64; 19]);
        plan[..4].copy_from_slice(&[u64::MAX, 1, 0, u64::MAX]);
        for (place, word) in [(12, 8), (17, 2 << 32 | 1)] {
            share[place] = word;
        }
        world.allreduce(&plan, |a: u64, _: u64| a).unwrap_err();
        // Rank 0 takes part in nothing of this: what is sent to it stays there.
        _ = world.gather(&share, Rank(0));
        world.allreduce(&[u64::MAX], Op::Min).unwrap_err();
        world.barrier().unwrap_err();
    });
    ranks.unwrap();
}
