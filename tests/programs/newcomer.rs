//! What goes wrong for a newcomer, each in a program with the `main` of the README.
//! `tests/newcomer.rs` runs it.
use rma::{Assert, LockKind, Op, Rank, Universe};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn main() -> Result<(), rma::Error> {
    let case = std::env::args().nth(1).unwrap_or_default();
    if case == "peer fails" {
        return peer_fails();
    }
    let universe = rma::initialize()?;
    match case.as_str() {
        "no memory" => no_memory(&universe),
        "a peer leaves" if universe.world().rank() == Rank(1) => Ok(()),
        "a peer leaves" => Ok(universe.world().barrier()?),
        "a peer is stuck" if universe.world().rank() == Rank(2) => stay(),
        "a peer is stuck" => Ok(universe.world().barrier()?),
        "free in an epoch" => free_in_an_epoch(&universe),
        _ => with_window(&universe, &case),
    }
}

/// Until the job is ended.
fn stay() -> ! {
    loop {
        std::thread::park();
    }
}

fn with_window(universe: &Universe, case: &str) -> Result<(), rma::Error> {
    let world = universe.world();
    if case == "malformed hint" {
        world.window(4, 8).hint("no_locks", "yes")?;
    }
    let window = world.window(4, 8).allocate()?;
    match case {
        "beyond the end" => window.lock_all()?.put(Rank(0), 3, &[1u64, 2])?,
        "no such rank" => window.lock_all()?.put(Rank(7), 0, &[1u64])?,
        "not aligned" => {
            let bytes = world.window(32, 1).allocate()?;
            let epoch = bytes.lock_all()?;
            epoch.fetch_and_op(Rank(0), 3, Op::Sum, 1u64)?;
        }
        "no such operation" => {
            let epoch = window.lock_all()?;
            epoch.fetch_and_op(Rank(0), 0, Op::MaxLoc, 1u64)?;
        }
        "an epoch in another" => {
            let _epoch = window.fence(Assert::NONE)?;
            let _other = window.lock(Rank(0), LockKind::Shared)?;
        }
        "no such root" => world.bcast(&mut [1u64], Rank(9))?,
        other => panic!("no case named {other:?}"),
    }
    Ok(())
}

fn no_memory(universe: &Universe) -> Result<(), rma::Error> {
    let maximum = getrlimit(Resource::As).maximum;
    let current = Some(4 << 30);
    setrlimit(Resource::As, Rlimit { current, maximum }).expect("a lower limit");
    universe.world().window(1u64 << 40, 1).allocate()?;
    Ok(())
}

fn free_in_an_epoch(universe: &Universe) -> Result<(), rma::Error> {
    let window = universe.world().window(1, 8).allocate()?;
    if universe.world().rank() == Rank(1) {
        std::mem::forget(window.lock_all()?);
        assert!(window.free().is_err());
        stay();
    }
    Ok(window.free()?)
}

/// As threads: a process whose peer fails may be ended before it has said so.
fn peer_fails() -> Result<(), rma::Error> {
    let ranks = rma::local(2, |universe| {
        if universe.world().rank() == Rank(0) {
            return Ok(universe.world().barrier()?);
        }
        let fails = AssertUnwindSafe(|| {
            let _universe = universe;
            std::panic::resume_unwind(Box::new("without a word"));
        });
        _ = catch_unwind(fails);
        Ok(())
    })?;
    ranks.into_iter().collect()
}
