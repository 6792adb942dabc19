//! Words that ranks or threads share: the machine's, or loom's models of them. What is generic over
//! [`Word`] is played by loom itself, and not a copy of it.
use core::sync::atomic::Ordering;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, AtomicUsize, fence};
#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell as Content;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, fence};

/// What words of threads guard.
#[cfg(not(loom))]
pub(crate) struct Content<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> Content<T> {
    pub(crate) fn new(content: T) -> Self {
        Self(core::cell::UnsafeCell::new(content))
    }

    /// Has `act` use it, as loom does.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, act: impl FnOnce(*mut T) -> R) -> R {
        act(self.0.get())
    }
}

/// An atomic word.
pub(crate) trait Word {
    type Value: Copy;

    fn load(&self, order: Ordering) -> Self::Value;
    fn store(&self, value: Self::Value, order: Ordering);
    fn swap(&self, value: Self::Value, order: Ordering) -> Self::Value;
    fn fetch_add(&self, value: Self::Value, order: Ordering) -> Self::Value;
    fn compare_exchange(
        &self,
        old: Self::Value,
        new: Self::Value,
        success: Ordering,
        failure: Ordering,
    ) -> Result<Self::Value, Self::Value>;
    fn fetch_update(
        &self,
        success: Ordering,
        failure: Ordering,
        change: impl FnMut(Self::Value) -> Option<Self::Value>,
    ) -> Result<Self::Value, Self::Value>;
}

macro_rules! words {
    ($($word:ty: $value:ty),*) => {
        $(impl Word for $word {
            type Value = $value;

            #[inline(always)]
            fn load(&self, order: Ordering) -> $value {
                self.load(order)
            }

            #[inline(always)]
            fn store(&self, value: $value, order: Ordering) {
                self.store(value, order);
            }

            #[inline(always)]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.swap(value, order)
            }

            #[inline(always)]
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.fetch_add(value, order)
            }

            #[inline(always)]
            fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }

            #[inline(always)]
            fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.fetch_update(success, failure, change)
            }
        })*
    };
}

words! {
    core::sync::atomic::AtomicU16: u16,
    core::sync::atomic::AtomicU32: u32,
    core::sync::atomic::AtomicU64: u64
}
#[cfg(loom)]
words! {
    loom::sync::atomic::AtomicU16: u16,
    loom::sync::atomic::AtomicU32: u32,
    loom::sync::atomic::AtomicU64: u64
}
