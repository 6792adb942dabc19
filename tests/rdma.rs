//! Hostile programs on a simulated device: ranks that leave, seal, and forget handles.
use rma::{Assert, LockKind, Op, Rank, RmaError};

/// One leaves in the middle; what the others do ends, and names it.
#[test]
fn leaves() {
    for seed in 0..300 {
        let ends = rma::simulate_rdma(3, seed, |universe| {
            let world = universe.world();
            let me = world.rank();
            let window = world.window(800, 8).allocate().unwrap();
            let epoch = window.lock_all().unwrap();
            world.barrier().unwrap();
            let right = Rank((me.0 + 1) % 3);
            for i in 0..(5 + seed % 7) {
                if me == Rank(1) && i == seed % 5 {
                    return;
                }
                let mut got = vec![0u64; 800];
                let all = [
                    epoch.put(right, 0, &vec![i; 800]),
                    epoch.put(right, 3, &[i]),
                    epoch.get(right, 0, &mut got),
                    epoch.fetch_and_op(right, 1, Op::Sum, 1u64).map(drop),
                    epoch.flush(right),
                ];
                for end in all {
                    if let Err(error) = end {
                        // Until the news is here, that it does not answer.
                        let silent =
                            matches!(error, RmaError::Device { target, .. } if target == right);
                        let left =
                            matches!(error, RmaError::PeerLeft { world, .. } if world.0 != me.0);
                        assert!(silent || left, "seed {seed} rank {me}: {error}");
                    }
                }
            }
            _ = epoch.unlock();
        });
        ends.unwrap();
    }
}

/// As above, of memory that is attached: its rank leaves with it, or detaches it and leaves then.
#[test]
fn leaves_with_attached_memory() {
    for seed in 0..300 {
        let ends = rma::simulate_rdma(3, seed, |universe| {
            let world = universe.world();
            let me = world.rank();
            let window = world.window(0, 1).create_dynamic().unwrap();
            let mut region = Some(window.attach(vec![0u64; 600]).unwrap());
            let mine = region.iter().map(|region| region.address()).collect::<Vec<_>>();
            let right = me.on_ring(1, 3);
            let at = world.allgather(&mine).unwrap()[right.0 as usize];
            let epoch = window.lock_all().unwrap();
            // None leaves before all have their epoch: a lock of a window that a rank left fails.
            world.barrier().unwrap();
            for i in 0..(5 + seed % 7) {
                if me == Rank(1) && i == seed % 5 {
                    if seed % 2 == 0 {
                        let region = region.take().unwrap();
                        assert!(window.detach(region).unwrap().iter().all(|word| *word < 20));
                    }
                    return;
                }
                let mut got = vec![0u64; 600];
                let all = [
                    epoch.put(right, at, &vec![i; 600]),
                    epoch.put(right, at + 8, &[i]),
                    epoch.get(right, at, &mut got),
                    epoch.fetch_and_op(right, at, Op::Sum, 1u64).map(drop),
                    epoch.flush(right),
                ];
                for error in all.into_iter().filter_map(Result::err) {
                    let silent =
                        matches!(error, RmaError::Device { target, .. } if target == right);
                    let detached = matches!(error, RmaError::NotAttached { .. }) && seed % 2 == 0;
                    let left = matches!(error, RmaError::PeerLeft { world, .. } if world.0 != me.0);
                    assert!(silent || left || detached, "seed {seed} rank {me}: {error}");
                }
            }
            _ = epoch.unlock();
        });
        ends.unwrap();
    }
}

/// A window that is sealed, opened and freed beside another one, in any order of transfers.
#[test]
fn seals() {
    for seed in 0..200 {
        let ends = rma::simulate_rdma(3, seed, |universe| {
            let world = universe.world();
            let right = world.rank().on_ring(1, 3);
            let other = world.window(600, 8).create(vec![7u64; 600]).unwrap();
            let mut window = world.window(600, 8).allocate().unwrap();
            for round in 0..3u64 {
                let epoch = window.lock(right, LockKind::Shared).unwrap();
                epoch.put(0, &vec![round; 600]).unwrap();
                drop(epoch.rget(0, vec![0u64; 600]).unwrap());
                epoch.unlock().unwrap();
                let fence = other.fence(Assert::NONE).unwrap();
                fence.put(right, 0, &[round]).unwrap();
                let mut sealed = window.seal().unwrap();
                assert_eq!(sealed.as_slice::<u64>().unwrap(), &vec![round; 600][..], "seed {seed}");
                sealed.as_mut_slice::<u64>().unwrap().fill(99);
                fence.end().unwrap();
                assert!(sealed.as_slice::<u64>().unwrap().iter().all(|it| *it == 99));
                assert_eq!(other.local().load(0), Ok(round));
                window = sealed.unseal().unwrap();
            }
            let back: Vec<u64> = other.free_into().unwrap();
            assert_eq!((back[0], back[1]), (2, 7));
            window.free().unwrap();
        });
        ends.unwrap();
    }
}

/// Handles that are forgotten, and another job in the process meanwhile.
#[test]
fn forgets() {
    for seed in 0..60 {
        let ends = rma::simulate_rdma(2, seed, |universe| {
            let right = universe.world().rank().on_ring(1, 2);
            let window = universe.world().window(600, 8).allocate().unwrap();
            let epoch = window.lock_all().unwrap();
            epoch.put(right, 0, &[5u64; 600]).unwrap();
            std::mem::forget(epoch.rget(right, 0, vec![0u64; 600]).unwrap());
            drop(epoch.rget(right, 0, vec![0u64; 600]).unwrap());
            let inner = rma::local(2, |universe| universe.world().size()).unwrap();
            assert_eq!(inner, [2, 2]);
            epoch.flush_all().unwrap();
            universe.world().barrier().unwrap();
            std::mem::forget(epoch);
            std::mem::forget(window);
        });
        ends.unwrap();
    }
}
