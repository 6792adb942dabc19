//! Atomics, the message cell and the futex: the real ones, or loom's models of them.

pub(crate) use imp::{AtomicU32, AtomicU64, Futex, MessageCell, fence};

#[cfg(not(loom))]
mod imp {
    use core::cell::UnsafeCell;
    use core::sync::atomic::Ordering;
    use core::time::Duration;
    use rustix::thread::futex;

    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, fence};

    /// `UnsafeCell` with the interface of loom's.
    #[repr(transparent)]
    pub(crate) struct MessageCell<T>(UnsafeCell<T>);

    impl<T> MessageCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        #[inline(always)]
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// A word that threads of any process sleep on.
    #[repr(transparent)]
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        #[cfg(test)]
        pub(crate) fn new() -> Self {
            Self(AtomicU32::new(0))
        }

        pub(crate) fn load(&self, order: Ordering) -> u32 {
            self.0.load(order)
        }

        pub(crate) fn increment(&self, order: Ordering) {
            self.0.fetch_add(1, order);
        }

        pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
            self.0.swap(value, order)
        }

        /// Sleeps while the word is `expected`; may return early.
        pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) {
            // A timeout that no timespec holds is as good as none.
            let timeout = timeout.and_then(|t| futex::Timespec::try_from(t).ok());
            // Every error (the word changed, the time is up, a signal) is an early return. The
            // flags lack PRIVATE: the waker may be another process.
            let _ = futex::wait(&self.0, futex::Flags::empty(), expected, timeout.as_ref());
        }

        /// Wakes every sleeper.
        pub(crate) fn wake_all(&self) {
            // Fails only for an address that is no futex, which a mapped aligned word is.
            let _ = futex::wake(&self.0, futex::Flags::empty(), i32::MAX as u32);
        }
    }
}

#[cfg(loom)]
mod imp {
    use core::sync::atomic::Ordering;
    use core::time::Duration;
    use loom::sync::{Condvar, Mutex};

    pub(crate) use loom::cell::UnsafeCell as MessageCell;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

    /// The kernel's promise: comparing the word and falling asleep is one step for a waker.
    pub(crate) struct Futex {
        word: AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Futex {
        pub(crate) fn new() -> Self {
            Self { word: AtomicU32::new(0), queue: Mutex::new(()), woken: Condvar::new() }
        }

        pub(crate) fn load(&self, order: Ordering) -> u32 {
            self.word.load(order)
        }

        pub(crate) fn increment(&self, order: Ordering) {
            self.word.fetch_add(1, order);
        }

        pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
            self.word.swap(value, order)
        }

        pub(crate) fn wait(&self, expected: u32, _timeout: Option<Duration>) {
            let queue = self.queue.lock().unwrap();
            if self.word.load(Ordering::Relaxed) == expected {
                drop(self.woken.wait(queue).unwrap());
            }
        }

        pub(crate) fn wake_all(&self) {
            let _queue = self.queue.lock().unwrap();
            self.woken.notify_all();
        }
    }
}
