//! Which thread this is: `std` counts references of its handle up and down to say so, which an
//! operation by messages would pay for twice.
use core::cell::Cell;
use std::thread::{ThreadId, current};

/// Looks at what another thread is about to change, before this one leaves the CPU to it.
#[cfg(not(loom))]
const SPINS: u32 = 100;

thread_local! {
    static ID: Cell<Option<ThreadId>> = const { Cell::new(None) };
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
