//! Which thread this is: `std` counts references of its handle up and down to say so, which an
//! operation by messages would pay for twice.
use core::cell::Cell;
use std::thread::{ThreadId, current};

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
