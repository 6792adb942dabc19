//! Which thread this is: `std` counts references of its handle up and down to say so, which an
//! operation by messages would pay for twice.
use core::cell::Cell;
use core::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::thread::{ThreadId, current};

/// Looks at what another thread is about to change, before this one leaves the CPU to it.
#[cfg(not(loom))]
const SPINS: u32 = 100;

thread_local! {
    static ID: Cell<Option<ThreadId>> = const { Cell::new(None) };
    static TOKEN: Cell<u16> = const { Cell::new(NO_TOKEN) };
}

/// Tokens of threads: from the first, to the last but one.
const TOKENS: [u16; 2] = [4, 1 << 14];

/// No thread has it.
const NO_TOKEN: u16 = 0;

/// A number of this thread that no other of the process has, now or later, or 0 if it has not
/// [asked](take_token) for one: 14 bits, and none of the first four numbers.
#[inline(always)]
pub(crate) fn token() -> u16 {
    TOKEN.get()
}

/// The [token](token) of this thread, which it has from now on; `None` if all are given out.
pub(crate) fn take_token() -> Option<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(TOKENS[0]);
    if token() == NO_TOKEN {
        TOKEN.set(next_token(&NEXT)?);
    }
    Some(token())
}

fn next_token(next: &AtomicU16) -> Option<u16> {
    let more = |next| (next < TOKENS[1]).then_some(next + 1);
    next.fetch_update(Relaxed, Relaxed, more).ok()
}

/// Of the calling thread.
pub(crate) fn id() -> ThreadId {
    ID.get().unwrap_or_else(|| {
        let id = current().id();
        ID.set(Some(id));
        id
    })
}

/// A moment, while another thread is in the middle of a change that takes no longer; `pauses`
/// counts.
pub(crate) fn pause(pauses: &mut u32) {
    *pauses += 1;
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    if *pauses < SPINS {
        core::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_end() {
        let next = AtomicU16::new(TOKENS[1] - 1);
        assert_eq!(next_token(&next), Some(TOKENS[1] - 1));
        assert_eq!([next_token(&next), next_token(&next)], [None; 2], "not from the first again");
    }
}
