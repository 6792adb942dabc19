//! Operations that do not wait for room: issued as a whole, or not at all (FEATURES H6).
use crate::help::{far, lengths, local_words, neighbour, pattern, times, words};
use rma_core::{
    Assert, Layout, LockAll, LockKind, Op, OriginBuffer, Rank, Refused, Request, RmaError,
    Shortage, TryLimit, Universe, Window,
};

type Issued<'w, B> = Result<Request<'w, B>, Refused<B>>;

/// Calls again and again, and nothing else, until the operation is issued.
fn issued(mut call: impl FnMut() -> Result<(), RmaError>) {
    while let Err(error) = call() {
        assert!(error.shortage().is_some(), "{error}");
    }
}

/// As [`issued`], of a request, whose buffer comes back unchanged with each refusal.
fn requested<'w, B: OriginBuffer + Clone + PartialEq>(
    mut buffer: B,
    mut call: impl FnMut(B) -> Issued<'w, B>,
) -> Request<'w, B> {
    let before = buffer.clone();
    loop {
        match call(buffer) {
            Ok(request) => return request,
            Err(Refused { value, error }) => {
                assert!(error.shortage().is_some(), "{error}");
                assert!(value == before, "a buffer that was refused is as it was");
                buffer = value;
            }
        }
    }
}

/// Lengths that a form which does not wait takes everywhere: one message.
fn short() -> impl Iterator<Item = usize> {
    lengths().iter().copied().filter(|len| *len <= 100)
}

/// Values of a rank.
fn values(rank: Rank, len: usize) -> Vec<u64> {
    pattern(rank.0, len).into_iter().map(u64::from).collect()
}

fn with_window(universe: &Universe, count: usize, body: impl FnOnce(&Window, &LockAll<'_>)) {
    let window = words(universe.world(), count);
    let epoch = window.lock_all().unwrap();
    body(&window, &epoch);
    epoch.unlock().unwrap();
    window.free().unwrap();
}

/// Puts and gets do as those that wait. S-G2 S-H16
pub fn put_and_get(universe: &Universe) {
    let world = universe.world();
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    with_window(universe, 200, |window, epoch| {
        for len in short() {
            let mut mine = values(world.rank(), len);
            issued(|| epoch.try_put(right, 0, &mine));
            let peer = epoch.peer(right).unwrap();
            issued(|| peer.try_put(100, &mine));
            // It is the caller's again.
            mine.fill(u64::MAX);
            epoch.flush(right).unwrap();
            world.barrier().unwrap();
            window.sync().unwrap();
            let expected = values(left, len);
            let there = local_words(window);
            assert!(there[..len] == expected && there[100..][..len] == expected, "{len}");
            let get = requested(vec![0u64; len], |buffer| epoch.try_rget(right, 100, buffer));
            assert_eq!(get.wait().unwrap(), values(world.rank(), len));
            world.barrier().unwrap();
        }
    });
}

/// Requests do as those that wait. S-I2 S-I3
pub fn requests(universe: &Universe) {
    let world = universe.world();
    let (me, ranks) = (u64::from(world.rank()), u64::from(world.size()));
    let right = neighbour(world, 1);
    with_window(universe, 4, |window, epoch| {
        let put = requested(vec![me + 1], |buffer| epoch.try_rput(right, 0, buffer));
        assert_eq!(put.wait().unwrap(), [me + 1]);
        for target in world.ranks() {
            let sum = |buffer| epoch.try_raccumulate(target, 1, Op::Sum, buffer);
            assert_eq!(requested(vec![me + 1], sum).wait().unwrap(), [me + 1]);
            let sum = |buffer| epoch.try_rget_accumulate(target, 2, Op::Sum, &[1u64], buffer);
            let old = requested(vec![u64::MAX], sum).wait().unwrap()[0];
            assert!(old < ranks, "{old}");
        }
        epoch.flush_all().unwrap();
        world.barrier().unwrap();
        window.sync().unwrap();
        let left = u64::from(neighbour(world, -1));
        assert_eq!(local_words(window), [left + 1, ranks * (ranks + 1) / 2, ranks, 0]);
    });
}

/// Accumulates of one rank on one element happen in the order of its calls, whichever form each
/// is of. S-H7 S-H8
pub fn accumulates(universe: &Universe) {
    let world = universe.world();
    let (right, rounds) = (neighbour(world, 1), times(universe, 50));
    with_window(universe, 100, |window, epoch| {
        for round in 1..=rounds {
            let values = [round; 100];
            issued(|| epoch.try_accumulate(right, 0, Op::Replace, &values));
            epoch.accumulate(right, 50, Op::Sum, &values[..20]).unwrap();
            issued(|| epoch.try_accumulate(right, 40, Op::Prod, &[2u64; 20]));
            issued(|| epoch.try_accumulate(right, 99, Op::Sum, &[round]));
        }
        epoch.flush(right).unwrap();
        world.barrier().unwrap();
        window.sync().unwrap();
        let expected = (0..100).map(|at| match at {
            40..50 | 60..70 | 99 => 2 * rounds,
            50..60 => 4 * rounds,
            _ => rounds,
        });
        assert_eq!(local_words(window), expected.collect::<Vec<_>>());
    });
}

/// Layouts do, too. S-J1
pub fn layouts(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let column = Layout::element::<u64>().vector(20, 1, 3).unwrap();
    with_window(universe, 60, |window, epoch| {
        let mine = values(world.rank(), 20);
        issued(|| epoch.try_put(right, column.at(0), &mine));
        // Of runs of bytes, a device combines one after the other.
        let too_large = |error: &RmaError| {
            let transfer = |limit: &TryLimit| matches!(limit, TryLimit::Transfer { .. });
            matches!(error, RmaError::TooLargeToTry { limit, .. } if transfer(limit))
        };
        issued(|| match epoch.try_accumulate(right, column.at(1), Op::Sum, &mine) {
            Err(error) if too_large(&error) => {
                epoch.accumulate(right, column.at(1), Op::Sum, &mine)
            }
            done => done,
        });
        let wide = values(world.rank(), 60);
        issued(|| epoch.try_put(right, column.at(2), column.of(&wide)));
        epoch.flush(right).unwrap();
        let get = requested(vec![0u64; 20], |buffer| epoch.try_rget(right, column.at(1), buffer));
        assert_eq!(get.wait().unwrap(), mine);
        world.barrier().unwrap();
        window.sync().unwrap();
        let (left, there) = (neighbour(world, -1), local_words(window));
        let (theirs, wide) = (values(left, 20), values(left, 60));
        for (row, got) in there.chunks(3).enumerate() {
            assert_eq!(got, [theirs[row], theirs[row], wide[3 * row]], "row {row}");
        }
    });
}

/// A program that does nothing but try comes to its end: each call makes progress, for its own
/// operations and for those of others. S-M6
pub fn nothing_but_tries(universe: &Universe) {
    let world = universe.world();
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    let count = 10 * times(universe, 60);
    with_window(universe, count as usize, |window, epoch| {
        for at in 0..count {
            issued(|| epoch.try_put(right, at, &[at + u64::from(world.rank())]));
        }
        epoch.flush(right).unwrap();
        world.barrier().unwrap();
        window.sync().unwrap();
        let expected = (0..count).map(|at| at + u64::from(left));
        assert_eq!(local_words(window), expected.collect::<Vec<_>>());
    });
}

/// Those of several messages are issued whole or not at all, and what is too much for the budgets
/// is refused for good. S-G2
pub fn whole_or_nothing(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let most = if cfg!(miri) { 1 << 10 } else { 1 << 20 };
    with_window(universe, most, |window, epoch| {
        let mut done = 0;
        for len in [1, 400, 3_000, most].into_iter().filter(|len| *len <= most) {
            let round = vec![len as u64; len];
            match requested_or_too_large(&round, |buffer| epoch.try_rput(right, 0, buffer)) {
                Ok(()) => done = len,
                Err(error) => {
                    assert!(far(window, right), "{error}");
                    assert!(matches!(error, RmaError::TooLargeToTry { .. }), "{error}");
                    let error = epoch.try_put(right, 0, &round).unwrap_err();
                    assert!(error.shortage().is_none(), "{error}");
                }
            }
            epoch.flush(right).unwrap();
            world.barrier().unwrap();
            window.sync().unwrap();
            let there = local_words(window);
            assert!(there[..done].iter().all(|word| *word == done as u64), "{len}");
            assert!(there[done..].iter().all(|word| *word == 0), "{len}: nothing of what was not");
            world.barrier().unwrap();
        }
    });
}

fn requested_or_too_large<'w>(
    values: &[u64],
    call: impl Fn(Vec<u64>) -> Issued<'w, Vec<u64>>,
) -> Result<(), RmaError> {
    let mut buffer = values.to_vec();
    loop {
        match call(buffer) {
            Ok(request) => return request.wait().map(drop).map_err(Into::into),
            Err(Refused { value, error }) if error.shortage().is_some() => buffer = value,
            Err(Refused { value, error }) => {
                assert_eq!(value, values);
                return Err(error);
            }
        }
    }
}

/// In a start epoch, the target may not have posted yet; then it has. S-D2
pub fn before_the_post(universe: &Universe) {
    let world = universe.world();
    let told = words(world, 1);
    let window = words(world, 1);
    let (origin, target) = (Rank(0), Rank(1));
    if world.rank() == origin {
        let epoch = window.start(&[target], Assert::NONE).unwrap();
        let error = epoch.try_put(target, 0, &[7u64]).unwrap_err();
        assert_eq!(error.shortage(), Some(Shortage::Post), "{error}");
        let lock = told.lock(target, LockKind::Shared).unwrap();
        lock.put(0, &[1u64]).unwrap();
        lock.unlock().unwrap();
        issued(|| epoch.try_put(target, 0, &[8u64]));
        epoch.complete().unwrap();
    } else if world.rank() == target {
        told.local().wait_until(0, |value: u64| value == 1).unwrap();
        window.post(&[origin], Assert::NONE).unwrap().wait().unwrap();
        assert_eq!(local_words(&window), [8]);
    }
    window.free().unwrap();
    told.free().unwrap();
}

/// Under a lock that is only asked for, what has no room in its queue is refused; what had is
/// performed when the lock is granted. S-E1
pub fn before_the_grant(universe: &Universe) {
    let world = universe.world();
    let (window, told) = (words(world, 1), words(world, 1));
    request_and_try(universe, &window, &told);
    world.barrier().unwrap();
    if world.rank() == Rank(1) {
        window.sync().unwrap();
        assert_eq!(local_words(&window), local_words(&told));
    }
    window.free().unwrap();
    told.free().unwrap();
}

/// What is combined at rank 1 is what rank 0 tells there.
fn request_and_try(universe: &Universe, window: &Window, told: &Window) {
    let world = universe.world();
    let (origin, target) = (Rank(0), Rank(1));
    // Where it is near, the lock is there when the call returns.
    let is_far = world.bcast_value(u8::from(far(window, target)), origin).unwrap() == 1;
    let held = (is_far && world.rank() == target)
        .then(|| window.lock(target, LockKind::Exclusive).unwrap());
    let telling = (world.rank() == origin).then(|| told.lock_all().unwrap());
    world.barrier().unwrap();
    if let Some(telling) = telling {
        let lock = window.lock(target, LockKind::Exclusive).unwrap();
        let mut taken = 0u64;
        if is_far {
            let error = loop {
                match lock.try_accumulate(0, Op::Sum, &[1u64]) {
                    Ok(()) => taken += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(error.shortage(), Some(Shortage::Grant), "{error}");
            let refused = lock.try_rget(0, vec![5u64]).map(drop).unwrap_err();
            assert_eq!((refused.error.shortage(), refused.value), (Some(Shortage::Grant), vec![5]));
        }
        telling.fetch_and_op(target, 0, Op::Replace, taken + 1).unwrap();
        issued(|| lock.try_accumulate(0, Op::Sum, &[1u64]));
        let none = [0u64; 0];
        let get = |buffer| lock.try_rget_accumulate(0, Op::NoOp, &none, buffer);
        let get = requested(vec![0u64], get);
        assert_eq!(get.wait().unwrap(), [taken + 1]);
        lock.unlock().unwrap();
        telling.unlock().unwrap();
    } else if let Some(held) = held {
        told.local().wait_until(0, |value: u64| value > 0).unwrap();
        held.unlock().unwrap();
    }
}

/// What a target said of its part before that was sealed, and no operation came back for, does not
/// count afterwards. S-M4
pub fn across_a_seal(universe: &Universe) {
    let world = universe.world();
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    let (mut window, mut expected) = (words(world, 2), vec![0; 2]);
    for round in 1..=4u64 {
        let epoch = window.lock_all().unwrap();
        let tried = epoch.try_put(right, 1, &[round]);
        assert!(tried.as_ref().map_or_else(|e| e.shortage().is_some(), |()| true), "{tried:?}");
        epoch.put(right, 0, &[round]).unwrap();
        epoch.unlock().unwrap();
        let issued = world.allgather(&[u8::from(tried.is_ok())]).unwrap()[usize::from(left)];
        expected[0] = round;
        if issued == 1 {
            expected[1] = round;
        }
        let sealed = window.seal().unwrap();
        assert_eq!(sealed.as_slice::<u64>().unwrap(), expected);
        window = sealed.unseal().unwrap();
    }
    window.free().unwrap();
}
