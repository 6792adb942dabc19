//! Operations that an epoch allows. S-G3 S-G4 S-G5 S-G7 S-G11 S-I2
use crate::element::{AtomicElement, BasicElement, Element};
use crate::error::RmaError;
use crate::ops::{Op, Ops};
use crate::rank::Rank;
use crate::window::Window;
use bytemuck::{cast_slice, cast_slice_mut};

/// The right to operate on the targets of a window: what [`Fence`](crate::Fence),
/// [`LockAll`](crate::LockAll) and [`Start`](crate::Start) give.
///
/// `LAZY`, in start epochs: the first operation to a target finds out whether it may, and waits for
/// the target's post.
pub struct Access<'w, const LAZY: bool> {
    window: &'w Window,
}

impl<'w, const LAZY: bool> Access<'w, LAZY> {
    pub(super) fn new(window: &'w Window) -> Self {
        Self { window }
    }

    #[inline(always)]
    pub(super) fn window(&self) -> &'w Window {
        self.window
    }

    /// Copies `origin` to displacement `disp` of `target`, in the target's units.
    ///
    /// `origin` is yours again on return. The data is at the target after a flush or the end of
    /// the epoch. Puts of an epoch are not ordered among each other.
    ///
    /// # Errors
    ///
    /// [`RmaError::OutOfRange`], [`RmaError::NoSuchRank`]: nothing was written. A put to
    /// [`Rank::NULL`] does nothing (MPI 4.1, section 12.3.1).
    #[inline]
    pub fn put<E: Element>(&self, target: Rank, disp: u64, origin: &[E]) -> Result<(), RmaError> {
        let origin = cast_slice(origin);
        match self.window.near_hot::<LAZY>(target, disp, origin.len()) {
            Some(span) => {
                span.write(origin);
                Ok(())
            }
            None => self.put_cold(target, disp, origin),
        }
    }

    // Functions like this one do all that is left, so that the hot path ends in a jump to them
    // and keeps nothing on the stack.
    #[cold]
    #[inline(never)]
    fn put_cold(&self, target: Rank, disp: u64, origin: &[u8]) -> Result<(), RmaError> {
        match self.window.near_cold::<LAZY>(target, disp, origin.len())? {
            Some(span) => {
                span.write(origin);
                Ok(())
            }
            None => self.window.put_far_cold::<LAZY>(target, disp, origin),
        }
    }

    /// Copies from displacement `disp` of `target` into `origin`, which holds it on return.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put); `origin` is then unchanged, or unspecified if a peer failed (MPI 4.1,
    /// section 12.3.2).
    #[inline]
    pub fn get<E: Element>(
        &self,
        target: Rank,
        disp: u64,
        origin: &mut [E],
    ) -> Result<(), RmaError> {
        let origin = cast_slice_mut(origin);
        match self.window.near_hot::<LAZY>(target, disp, origin.len()) {
            Some(span) => {
                span.read(origin);
                Ok(())
            }
            None => self.get_cold(target, disp, origin),
        }
    }

    #[cold]
    #[inline(never)]
    fn get_cold(&self, target: Rank, disp: u64, origin: &mut [u8]) -> Result<(), RmaError> {
        match self.window.near_cold::<LAZY>(target, disp, origin.len())? {
            Some(span) => {
                span.read(origin);
                Ok(())
            }
            None => self.window.get_far_cold::<LAZY>(target, disp, origin),
        }
    }

    /// Combines the value at `disp` of `target` with `operand`, atomically; returns what was
    /// there.
    ///
    /// Atomic towards every other operation of the accumulate family on that element with the same
    /// type, of any rank. To [`Rank::NULL`] it does nothing and returns `operand`.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put), [`RmaError::Misaligned`], and [`RmaError::WrongOp`] if `E` does not
    /// have `op` (MPI 4.1, section 12.3.4).
    #[inline]
    pub fn fetch_and_op<E: BasicElement>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        operand: E,
    ) -> Result<E, RmaError> {
        match self.window.combine_one_hot::<LAZY, E>(target, disp, op, operand) {
            Some(old) => Ok(old),
            None => self.fetch_cold(target, disp, op, operand),
        }
    }

    #[cold]
    #[inline(never)]
    fn fetch_cold<E: BasicElement>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        operand: E,
    ) -> Result<E, RmaError> {
        self.window.fetch_and_op::<LAZY, E>(target, disp, op, operand)
    }

    /// Replaces the value at `disp` of `target` by `swap` if it is `compare`, atomically; returns
    /// what was there.
    ///
    /// Atomic as [`fetch_and_op`](Self::fetch_and_op). To [`Rank::NULL`] it does nothing and
    /// returns `compare`.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put), and [`RmaError::Misaligned`] (MPI 4.1, section 12.3.4).
    #[inline]
    pub fn compare_and_swap<E: AtomicElement>(
        &self,
        target: Rank,
        disp: u64,
        compare: E,
        swap: E,
    ) -> Result<E, RmaError> {
        let span = self.window.near_hot::<LAZY>(target, disp, size_of::<E>());
        match span.and_then(|span| span.compare_and_swap(compare, swap)) {
            Some(old) => Ok(old),
            None => self.swap_cold(target, disp, compare, swap),
        }
    }

    #[cold]
    #[inline(never)]
    fn swap_cold<E: AtomicElement>(
        &self,
        target: Rank,
        disp: u64,
        compare: E,
        swap: E,
    ) -> Result<E, RmaError> {
        self.window.compare_and_swap::<LAZY, E>(target, disp, compare, swap)
    }

    /// Runs `scope`, in which operations overlap, and completes all of them locally.
    ///
    /// Buffers handed to operations of the scope stay borrowed until it ends, and are yours again
    /// when `ops` returns, by a panic too. The epoch stays open.
    pub fn ops<'env, F, R>(&'env self, scope: F) -> Result<R, RmaError>
    where
        F: for<'scope> FnOnce(&'scope Ops<'scope, 'env, LAZY>) -> R,
    {
        Ops::run(self.window, None, scope)
    }
}
