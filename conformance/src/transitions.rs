//! Every call with every epoch open: what the table of transitions allows succeeds, and the rest is
//! refused and harmless.
use crate::help::{neighbour, still_works, words};
use rma_core::{
    Assert, EpochCall, EpochKind, ErrorClass, Exposure, Fence, Lock, LockAll, LockKind, RmaError,
    Start, Universe, Window,
};
use std::mem::forget;

/// A guard of any kind.
enum Guard<'w> {
    Fence(Fence<'w>),
    Start(Start<'w>),
    Exposure(Exposure<'w>),
    Lock(Lock<'w>),
    LockAll(LockAll<'w>),
}

impl<'w> Guard<'w> {
    /// Opens an epoch that no other rank has to match, except by a fence.
    fn open(window: &'w Window, call: EpochCall) -> Result<Self, RmaError> {
        let (own, other) = (window.rank(), window.rank().on_ring(1, window.ranks()));
        match call {
            EpochCall::Fence => window.fence(Assert::NONE).map(Self::Fence),
            EpochCall::Start => window.start(&[], Assert::NONE).map(Self::Start),
            EpochCall::Post => window.post(&[], Assert::NONE).map(Self::Exposure),
            EpochCall::LockOwn => window.lock(own, LockKind::Shared).map(Self::Lock),
            EpochCall::LockOther => window.lock(other, LockKind::Shared).map(Self::Lock),
            EpochCall::LockAll => window.lock_all().map(Self::LockAll),
            EpochCall::Free | EpochCall::Seal => panic!("{call:?} takes the window"),
        }
    }

    fn end(self) {
        let ended = match self {
            Self::Fence(guard) => guard.end(),
            Self::Start(guard) => guard.complete(),
            Self::Exposure(guard) => guard.wait(),
            Self::Lock(guard) => guard.unlock(),
            Self::LockAll(guard) => guard.unlock(),
        };
        ended.unwrap();
    }
}

/// The call that opens an epoch.
fn opener(kind: EpochKind) -> EpochCall {
    match kind {
        EpochKind::Fence => EpochCall::Fence,
        EpochKind::Start => EpochCall::Start,
        EpochKind::Exposure => EpochCall::Post,
        EpochKind::LockOwn => EpochCall::LockOwn,
        EpochKind::LockOther => EpochCall::LockOther,
        EpochKind::LockAll => EpochCall::LockAll,
    }
}

fn check_refusal(error: RmaError, window: &Window, pair: (EpochKind, EpochCall)) {
    let (kind, call) = pair;
    assert_eq!(error.class(), ErrorClass::RmaSync);
    let (id, target) = (window.id(), window.rank());
    let expected = match pair {
        (EpochKind::LockOwn, EpochCall::LockOwn) => RmaError::AlreadyLocked { window: id, target },
        _ => RmaError::EpochOpen { window: id, requested: call.name(), open: kind.name() },
    };
    assert_eq!(error, expected, "{pair:?}");
}

/// The whole table, with a second epoch inside a first. S-D7 S-E9 S-E10 S-C7
pub fn epochs(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    for kind in EpochKind::ALL {
        for call in EpochCall::ALL {
            if matches!(call, EpochCall::Free | EpochCall::Seal) {
                continue;
            }
            let first = Guard::open(&window, opener(kind)).unwrap();
            // A second lock of the same part is the same call, and has its own error.
            let again = (kind, call) == (EpochKind::LockOther, EpochCall::LockOther);
            match Guard::open(&window, call) {
                Err(RmaError::AlreadyLocked { target, .. }) if again => {
                    assert_eq!(target, neighbour(world, 1));
                    let third = window.lock(neighbour(world, 2), LockKind::Shared).unwrap();
                    third.unlock().unwrap();
                    first.end();
                }
                Err(error) => {
                    assert!(!call.allowed_in(kind), "{kind:?}, {call:?}: {error}");
                    check_refusal(error, &window, (kind, call));
                    first.end();
                }
                Ok(second) => {
                    assert!(call.allowed_in(kind), "{call:?} in {kind:?} is not refused");
                    if (kind, call) == (EpochKind::Fence, EpochCall::Fence) {
                        drop(first);
                        second.end();
                    } else if universe.world().rank().0.is_multiple_of(2) {
                        second.end();
                        first.end();
                    } else {
                        first.end();
                        second.end();
                    }
                }
            }
            world.barrier().unwrap();
        }
        still_works(&window);
    }
    window.free().unwrap();
}

/// `free` and `seal` with each kind of epoch left open by a forgotten guard. S-A10
pub fn forgotten(universe: &Universe) {
    let world = universe.world();
    for kind in EpochKind::ALL {
        let window = words(world, 1);
        forget(Guard::open(&window, opener(kind)).unwrap());
        world.barrier().unwrap();
        assert!(!EpochCall::Free.allowed_in(kind) && !EpochCall::Seal.allowed_in(kind));
        let refused = window.seal().err().unwrap();
        let window = *refused.value.unwrap();
        check_refusal(refused.error, &window, (kind, EpochCall::Seal));
        let refused = window.free().unwrap_err();
        let window = *refused.value.unwrap();
        check_refusal(refused.error, &window, (kind, EpochCall::Free));
    }
}

/// Three epochs at once: what excludes one of the open epochs is refused, whichever it is.
/// S-D7 S-E9
pub fn together(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1);
    let pairs =
        [(EpochKind::Exposure, EpochKind::Start), (EpochKind::LockOther, EpochKind::Exposure)];
    for (one, two) in pairs {
        let guards = [one, two].map(|kind| Guard::open(&window, opener(kind)).unwrap());
        for call in EpochCall::ALL {
            let both = call.allowed_in(one) && call.allowed_in(two);
            if both || matches!(call, EpochCall::Free | EpochCall::Seal) {
                continue;
            }
            let error = Guard::open(&window, call).err().expect("one of them refuses");
            let RmaError::EpochOpen { open, .. } = error else { panic!("{error}") };
            assert!([one, two].map(EpochKind::name).contains(&open), "{error}");
        }
        guards.into_iter().for_each(Guard::end);
        world.barrier().unwrap();
        still_works(&window);
    }
    window.free().unwrap();
}
