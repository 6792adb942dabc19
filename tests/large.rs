//! Windows and transfers beyond 31 bits. One test: it needs the memory to itself.
use rma::{Assert, LockKind, Rank, Universe, WindowError, local};
use std::fs;

const GIB: usize = 1 << 30;

/// Bytes of shared memory that this process has in use.
fn shared_in_use() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("the status of this process");
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse().ok());
    kib.map_or(0, |kib: usize| kib << 10)
}

/// A gibibyte at every rank: every end of it can be reached.
fn gibibytes(universe: &Universe) -> Result<(), WindowError> {
    let world = universe.world();
    let (me, right) = (u64::from(world.rank()), world.rank().on_ring(1, world.size()));
    for round in 0..2u64 {
        let window = world.window(GIB / 8, 8).allocate_shared()?;
        let last = (GIB / 8 - 1) as u64;
        let epoch = window.fence(Assert::NONE).unwrap();
        epoch.put(right, 0, &[round + me]).unwrap();
        epoch.put(right, last, &[round + me + 10]).unwrap();
        assert!(epoch.put(right, last + 1, &[0u8]).is_err());
        epoch.end().unwrap();
        let left = u64::from(world.rank().on_ring(-1, world.size()));
        assert_eq!(window.local().load(0), Ok(round + left));
        assert_eq!(window.local().load(last), Ok(round + left + 10));
        let view = window.shared_query(right).unwrap();
        assert_eq!(view.load(last), Ok(round + me + 10));
        window.free().unwrap();
    }
    Ok(())
}

/// One put of more than 2 GiB, to a place beyond 2 GiB from the part's beginning as well.
fn one_put(universe: &Universe) -> Result<(), WindowError> {
    let world = universe.world();
    let (len, margin) = (2 * GIB + 12_345, 100);
    let window = world.window(if world.rank() == Rank(1) { len + margin } else { 0 }, 1);
    let window = window.allocate()?;
    if world.rank() == Rank(0) {
        let mut origin = vec![0u8; len];
        for at in [0, GIB, 2 * GIB - 1, 2 * GIB, len - 1] {
            origin[at] = (at % 251) as u8 + 1;
        }
        let epoch = window.lock(Rank(1), LockKind::Exclusive).unwrap();
        epoch.put(margin as u64, &origin).unwrap();
        let mut end = [0u8; 3];
        epoch.get((2 * GIB + margin - 1) as u64, &mut end).unwrap();
        epoch.unlock().unwrap();
        assert_eq!(end, [origin[2 * GIB - 1], origin[2 * GIB], 0]);
    }
    world.barrier().unwrap();
    if world.rank() == Rank(1) {
        for at in [0, GIB, 2 * GIB - 1, 2 * GIB, len - 1] {
            assert_eq!(window.local().load((at + margin) as u64), Ok((at % 251) as u8 + 1));
        }
        assert_eq!(window.local().load((margin - 1) as u64), Ok(0u8));
    }
    window.free().unwrap();
    Ok(())
}

/// S-J9 S-K8
#[test]
fn gibibytes_work_and_are_given_back() {
    let before = shared_in_use();
    let results = local(2, |universe| {
        let outcome = gibibytes(&universe).and_then(|()| one_put(&universe));
        universe.finalize().unwrap();
        outcome
    });
    for outcome in results.unwrap() {
        match outcome {
            Ok(()) => {}
            Err(WindowError::Allocate { error, .. }) => eprintln!("does not apply here: {error}"),
            Err(WindowError::Peer(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(shared_in_use() < before + (256 << 20), "{before} bytes have grown");
}
