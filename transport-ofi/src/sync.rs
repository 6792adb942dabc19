//! What the watcher and threads tell each other by: the real thing, or loom's models of it.

pub(crate) use imp::{AtomicBool, AtomicU32, Condvar, EventFile, Mutex, fence, wait_while};

#[cfg(not(loom))]
mod imp {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fd::OwnedFd;
    use std::sync::{MutexGuard, PoisonError};
    use std::time::Duration;

    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, fence};
    pub(crate) use std::sync::{Condvar, Mutex};

    /// A file that is readable once it is raised, until it is cleared.
    pub(crate) struct EventFile(OwnedFd);

    impl EventFile {
        pub(crate) fn new() -> rustix::io::Result<Self> {
            Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        }

        pub(crate) fn raise(&self) {
            // A counter that is full is readable all the same.
            _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
        }

        pub(crate) fn clear(&self) {
            _ = rustix::io::read(&self.0, &mut [0; 8]);
        }

        pub(crate) fn get(&self) -> &OwnedFd {
            &self.0
        }
    }

    /// Waits at most so long, and no longer than `holds`.
    pub(crate) fn wait_while(
        changed: &Condvar,
        turn: MutexGuard<'_, ()>,
        timeout: Duration,
        mut holds: impl FnMut() -> bool,
    ) {
        let waited = changed.wait_timeout_while(turn, timeout, |()| holds());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(loom)]
mod imp {
    use loom::sync::MutexGuard;
    use rustix::fd::OwnedFd;
    use std::time::Duration;

    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, fence};
    pub(crate) use loom::sync::{Condvar, Mutex};

    /// The kernel's promise: a file that is raised ends the sleep of whom waits at it.
    pub(crate) struct EventFile {
        raised: Mutex<bool>,
        changed: Condvar,
    }

    impl EventFile {
        pub(crate) fn new() -> rustix::io::Result<Self> {
            Ok(Self { raised: Mutex::new(false), changed: Condvar::new() })
        }

        pub(crate) fn raise(&self) {
            *self.raised.lock().unwrap() = true;
            self.changed.notify_all();
        }

        pub(crate) fn clear(&self) {
            *self.raised.lock().unwrap() = false;
        }

        pub(crate) fn get(&self) -> &OwnedFd {
            unreachable!("no watcher runs in a model")
        }

        pub(crate) fn wait(&self) {
            let mut raised = self.raised.lock().unwrap();
            while !*raised {
                raised = self.changed.wait(raised).unwrap();
            }
        }
    }

    /// Without an end by time: a wake-up that is lost is a deadlock, which loom finds.
    pub(crate) fn wait_while(
        changed: &Condvar,
        mut turn: MutexGuard<'_, ()>,
        _timeout: Duration,
        mut holds: impl FnMut() -> bool,
    ) {
        while holds() {
            turn = changed.wait(turn).unwrap();
        }
    }
}
