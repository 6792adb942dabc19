//! Operations that an epoch allows. S-G3 S-G4 S-G5 S-G7 S-G11 S-I2
use super::Ops;
use crate::element::{AtomicElement, BasicElement, Element, Op};
use crate::error::RmaError;
use crate::memory::target::{Permit, Span, Table};
use crate::memory::{accumulate, stripe};
use crate::operation::{Action, Operation, Side, Sink};
use crate::rank::Rank;
use crate::window::Window;
use bytemuck::{bytes_of, bytes_of_mut, cast_slice, cast_slice_mut};

pub(super) const PUT: (&str, Action) = ("a put", Action::Put);
pub(super) const GET: (&str, Action) = ("a get", Action::Get);

/// The right to operate on targets of a window: what every epoch gives. A function that takes an
/// `&Access` works in all of them.
///
/// [`Fence`](crate::Fence) and [`LockAll`](crate::LockAll) allow all targets,
/// [`Start`](crate::Start) those that it names, where the first operation waits for the target's
/// post, and [`Lock`](crate::Lock) those that this rank has locked.
pub struct Access<'w> {
    window: &'w Window,
    /// Those that load and store reach, as this epoch may.
    // Two words: guards that are moved right after they were made cost more if they are longer.
    targets: Table<'w>,
}

impl<'w> Access<'w> {
    pub(super) fn new(window: &'w Window, permit: Permit) -> Self {
        Self { window, targets: window.targets.table_of(permit) }
    }

    #[inline(always)]
    pub(super) fn window(&self) -> &'w Window {
        self.window
    }

    /// The hot path of every operation: the bytes, if nothing stands in the way of load and store.
    /// Otherwise [`Window::execute`] finds out what does.
    #[inline(always)]
    pub(super) fn near(&self, target: Rank, disp: u64, len: usize) -> Option<Span<'w>> {
        self.targets.get(target)?.span(disp, len)
    }

    /// All of a part, and where in it a displacement is, if nothing stands in the way.
    #[inline(always)]
    pub(super) fn near_part(&self, target: Rank, disp: u64) -> Option<(Span<'w>, u64)> {
        let entry = self.targets.get(target)?;
        Some((entry.part()?, disp.checked_mul(u64::from(entry.disp_unit()))?))
    }

    /// An operation of this epoch on bytes that lie one behind the other on both sides.
    pub(super) fn operation<'a>(
        &self,
        action: (&'static str, Action),
        target: Rank,
        disp: u64,
        len: usize,
        origin: &'a [u8],
    ) -> Operation<'a> {
        let from = Side::dense(origin.len());
        self.between(action, target, disp, Side::dense(len), (origin, from))
    }

    /// An operation of this epoch, whatever the bytes of either side.
    pub(super) fn between<'a>(
        &self,
        (what, action): (&'static str, Action),
        target: Rank,
        disp: u64,
        there: impl Into<Side<'a>>,
        (origin, from): (&'a [u8], Side<'a>),
    ) -> Operation<'a> {
        let (permit, there) = (self.targets.permit(), there.into());
        Operation { what, action, permit, target, disp, there, origin, from }
    }

    /// Combines one element and gives what was there, if nothing stands in the way; otherwise
    /// nothing happened.
    #[inline(always)]
    pub(super) fn combine_one<E: BasicElement>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        operand: E,
    ) -> Option<E> {
        let entry = self.targets.get(target)?;
        let span = entry.span(disp, size_of::<E>())?;
        if E::BASIC.is_atomic() {
            return span.fetch_and_op(op, operand);
        }
        if !op.is_defined_on::<E>() || !span.is_aligned(E::BASIC.align()) {
            return None;
        }
        // There is a span, so the product does not overflow.
        let offset = disp.wrapping_mul(u64::from(entry.disp_unit()));
        let _held = stripe::try_one(entry.block()?, offset, self.window.rank())?;
        Some(accumulate::one_under_lock(span, op, operand))
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
        match self.near(target, disp, origin.len()) {
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
        self.window.perform(&self.operation(PUT, target, disp, origin.len(), origin))
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
        match self.near(target, disp, origin.len()) {
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
        let get = self.operation(GET, target, disp, origin.len(), &[]);
        self.window.fetch(&get, Sink::new(origin))
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
        match self.combine_one(target, disp, op, operand) {
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
        let mut old = operand;
        let (basic, fetches) = (Some(E::BASIC), true);
        let combine = ("a fetch_and_op", Action::Combine { op, basic, fetches });
        let operands = if op == Op::NoOp { &[] } else { bytes_of(&operand) };
        let fetch = self.operation(combine, target, disp, size_of::<E>(), operands);
        self.window.fetch(&fetch, Sink::new(bytes_of_mut(&mut old)))?;
        Ok(old)
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
        let span = self.near(target, disp, size_of::<E>());
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
        let mut old = compare;
        let action = ("a compare_and_swap", Action::Swap { basic: E::BASIC });
        let values = [compare, swap];
        let swap = self.operation(action, target, disp, size_of::<E>(), bytes_of(&values));
        self.window.fetch(&swap, Sink::new(bytes_of_mut(&mut old)))?;
        Ok(old)
    }

    /// Runs `scope`, in which operations overlap, and completes all of them locally.
    ///
    /// Buffers handed to operations of the scope stay borrowed until it ends, and are yours again
    /// when `ops` returns, by a panic too. The epoch stays open.
    pub fn ops<'env, F, R>(&'env self, scope: F) -> Result<R, RmaError>
    where
        F: for<'scope> FnOnce(&'scope Ops<'scope, 'env>) -> R,
    {
        Ops::run(Self { ..*self }, scope)
    }
}
