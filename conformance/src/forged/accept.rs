//! That rank 0 acts upon valid messages: a forged message that it drops shows nothing.
use super::{
    ANSWERS, LARGE, Message, Named, Windows, between, drain, fenced, number, pause, submit,
};
use crate::help::pattern;
use core::time::Duration;
use rma_core::{Assert, LockAll, LockKind, Rank, RawPart, Universe};

/// They change memory of rank 0.
const WRITES: [&str; 5] = ["Put", "Accumulate", "GetAccumulate", "CompareSwap", "PutData"];

/// One of two ranks of a job that was made with [`config`](super::config). Rank 1 sends messages of
/// that kind, in the last stage, after those that they need. Panics unless rank 0 acts upon each;
/// of [`ANSWERS`], upon one, to what it asks for. It asks for no value here: no rank of the
/// simulator writes to memory of another process.
pub fn accept(universe: Universe, kind: &str, stages: &[Vec<Message>]) {
    let listens = universe.world().rank() == Rank(0);
    let memory = between(|over, at| accept_between(universe, over, at, (kind, stages)));
    // What combines refuses memory that is not aligned, as this may be.
    let written = listens && matches!(kind, "Put" | "PutData");
    for memory in memory {
        assert!(!written || memory != fenced(), "{kind} wrote nothing");
    }
}

fn accept_between(
    universe: Universe,
    over: RawPart,
    at: RawPart,
    (kind, stages): (&str, &[Vec<Message>]),
) {
    let world = universe.world();
    let windows = Windows::new(&universe, over, at);
    let region = world.allgather(&[windows.attached.address()]).unwrap()[0];
    let ids = [&windows.allocated, &windows.created, &windows.dynamic];
    let named = Named { windows: ids.map(number), region };
    let epoch = windows.left.lock_all().unwrap();
    drain(&universe);
    if world.rank() == Rank(1) {
        // Nothing is served here until rank 0 has looked.
        pause(&universe, 5);
        for message in stages.iter().flat_map(|stage| stage.iter().map(Some).chain([None])) {
            let Some(message) = message else {
                pause(&universe, 2);
                continue;
            };
            let (head, body) = message.parts(&named);
            submit(&universe, &head, &body).unwrap();
        }
        pause(&universe, 30);
    } else {
        let sent = stages.iter().map(Vec::len).sum::<usize>() as u64;
        hear(&universe, &windows, &epoch, (kind, sent));
    }
    drain(&universe);
    // Rank 0 may have lost what it waits for.
    let unlocked = epoch.unlock();
    assert!(world.rank() == Rank(0) || unlocked.is_ok(), "{unlocked:?}");
    drop(windows);
    universe.finalize().unwrap();
}

/// Rank 0 of [`accept`]: asks for what a message of that kind answers, and looks what comes of it.
fn hear(universe: &Universe, windows: &Windows, left: &LockAll<'_>, (kind, sent): (&str, u64)) {
    let count = || {
        let counters = universe.counters();
        (counters.messages_received(), counters.messages_dropped())
    };
    // Rank 1 may still be on its way out of a barrier, and serve.
    pause(universe, 2);
    let before = count();
    let serve = || {
        let end = universe.transport().now() + Duration::from_millis(15);
        while universe.transport().now() < end {
            universe.progress();
            universe.transport().relax(0);
        }
        let after = count();
        assert_eq!(after.0 - before.0, sent, "{kind}: all have arrived, and nothing else");
        let accepted = sent - (after.1 - before.1);
        match kind {
            "Value" => assert_eq!(accepted, 0, "{kind}"),
            _ if ANSWERS.contains(&kind) => assert_eq!(accepted, 1, "{kind} of {sent}"),
            _ => assert_eq!(accepted, sent, "{kind}"),
        }
    };
    match kind {
        "Done" => {
            let mut put = left.rput(Rank(1), 1, vec![1u64]).unwrap();
            serve();
            assert!(put.test());
            put.wait().unwrap();
        }
        "Data" => {
            let got = left.rget(Rank(1), 1, vec![0u8; 8]).unwrap();
            serve();
            assert_eq!(got.wait().unwrap(), [5; 8], "what rank 1 does not have");
        }
        "Cts" => {
            let put = left.rput(Rank(1), 8, pattern(1, LARGE)).unwrap();
            serve();
            // Its end may get lost: rank 1 has cleared nothing.
            _ = put.wait();
        }
        "Granted" => {
            let mut request = windows.allocated.request_lock(Rank(1), LockKind::Shared).unwrap();
            assert!(!request.test().unwrap());
            serve();
            assert!(request.test().unwrap());
            request.wait().unwrap().unlock().unwrap();
        }
        "Complete" => {
            let exposure = windows.allocated.post(&[Rank(1)], Assert::NONE).unwrap();
            serve();
            exposure.wait().unwrap();
        }
        _ => serve(),
    }
    let mut bytes = [0u8; 8];
    windows.allocated.local().read(0, &mut bytes).unwrap();
    assert_eq!(bytes != [0; 8], WRITES.contains(&kind), "{kind}: {bytes:?}");
}
