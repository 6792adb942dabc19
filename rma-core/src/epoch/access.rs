//! Operations that an epoch allows.
use super::{Operands, Ops, Peer};
use crate::element::{AtomicElement, BasicElement, Op};
use crate::error::RmaError;
use crate::integer::Integer;
use crate::memory::target::{Permit, Table};
use crate::operation::{Displacement, Origin, OriginMut};
use crate::rank::Rank;
use crate::window::Window;

/// The right to operate on targets of a window: what every epoch gives. A function that takes an
/// `&Access` works in all of them.
///
/// [`Fence`](crate::Fence) and [`LockAll`](crate::LockAll) allow all targets,
/// [`Start`](crate::Start) those that it names, where the first operation waits for the target's
/// post, and [`Lock`](crate::Lock) those that this rank has locked.
///
/// Operations take a displacement, in the target's units, or a [layout at](crate::Layout::at) one;
/// and a slice of the origin, or a [layout of](crate::Layout::of) one. Where one side has a layout
/// and the other has none, the bytes of that lie one behind the other, and its elements are those
/// of the layout. Both sides hold the same sequence of types; how they arrange it is each side's
/// own affair. Layouts are yours again on return.
///
/// A call waits where budgets or queues are full, until its target has made room or a deadline
/// passes. Those whose names begin with `try_` do not: they are issued, all of them, or they end in
/// [`RmaError::WouldBlock`], which says what there was too little of, and nothing of them has
/// happened. To a near target there is always room, and they are the same code as the others; what
/// an accumulate does wait for is another rank that is just combining the same elements. Calls
/// whose result is there on return ([`get`](Self::get), [`fetch_and_op`](Self::fetch_and_op) and
/// the like) wait by their nature: [`try_rget`](crate::LockAll::try_rget) and
/// [`try_rget_accumulate`](crate::LockAll::try_rget_accumulate) do not.
pub struct Access<'w> {
    window: &'w Window,
    /// Those that load and store reach, as this epoch may.
    // Two words: guards that are moved right after they were made cost more if they are longer.
    targets: Table<'w>,
}

impl<'w> Access<'w> {
    /// For the guard of an epoch: none is made without one. S-G11
    pub(super) fn new(window: &'w Window, permit: Permit) -> Self {
        Self { window, targets: window.targets.table_of(permit) }
    }

    #[inline(always)]
    pub(super) fn window(&self) -> &'w Window {
        self.window
    }

    /// One target, whether it exists or not. S-G3 S-G4 S-G5 S-G7
    #[inline(always)]
    pub(super) fn to(&self, target: Rank) -> Peer<'w> {
        Peer::new(self.window, self.targets, target)
    }

    /// One target, looked up once: for many operations on it.
    ///
    /// # Errors
    ///
    /// [`RmaError::NoSuchRank`]. [`Rank::NULL`] is a target to which nothing is done.
    pub fn peer(&self, target: Rank) -> Result<Peer<'_>, RmaError> {
        if target != Rank::NULL && target.0 >= self.window.ranks() {
            return Err(self.window.no_such_rank(target));
        }
        Ok(self.to(target))
    }

    /// Copies `origin` to displacement `disp` of `target`.
    ///
    /// `origin` is yours again on return. The data is at the target after a flush or the end of
    /// the epoch. Puts of an epoch are not ordered among each other. Bytes that a layout does not
    /// describe are not touched.
    ///
    /// ```
    /// # // Run as two ranks by the crate `rma`; here for the compiler.
    /// # use rma_core::{Layout, Rank, Window};
    /// # fn example(window: &Window) -> Result<(), Box<dyn std::error::Error>> {
    /// # let neighbour = Rank(1);
    /// // The last column of a 4 × 6 matrix here becomes the first of the neighbour's.
    /// let matrix = [0.5f64; 24];
    /// let column = Layout::element::<f64>().vector(4, 1, 6)?;
    /// let epoch = window.lock_all()?;
    /// epoch.put(neighbour, column.at(0), column.of(&matrix[5..]))?;
    /// // And a row of values, its second.
    /// epoch.put(neighbour, column.at(1), &[1.0, 2.0, 3.0, 4.0])?;
    /// epoch.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing was written if it is [`RmaError::OutOfRange`] or [`RmaError::NoSuchRank`]; or, with
    /// layouts, [`RmaError::LayoutOutOfRange`], [`RmaError::OriginOutOfRange`],
    /// [`RmaError::SignatureMismatch`], [`RmaError::LayoutTooLarge`], or [`RmaError::Overlap`]:
    /// blocks at the target that overlap are refused where that is seen without comparing each with
    /// each, and write one of the values where not. A put of no bytes, or to [`Rank::NULL`], does
    /// nothing (MPI 4.1, section 12.3.1).
    #[inline]
    pub fn put(
        &self,
        target: Rank,
        disp: impl Displacement,
        origin: impl Origin,
    ) -> Result<(), RmaError> {
        self.to(target).put(disp, origin)
    }

    /// As [`put`](Self::put), issued at once or not at all: it waits for no room, no lock and no
    /// peer. A call that finds no room makes some progress and looks again, so that a loop of such
    /// calls comes to an end if the target serves messages.
    ///
    /// What a call of `put` may do later, this one may refuse: a put that is larger than
    /// [`eager_bytes`](crate::Config::eager_bytes) goes at once, too, in as many messages as there
    /// is room for.
    ///
    /// ```
    /// # // Run as two ranks by the crate `rma`; here for the compiler.
    /// # use rma_core::{Rank, RmaError, Window};
    /// # fn work() {}
    /// # fn example(window: &Window) -> Result<(), Box<dyn std::error::Error>> {
    /// let epoch = window.lock_all()?;
    /// for (disp, value) in (0..1_000u64).zip(1u64..) {
    ///     while let Err(error) = epoch.try_put(Rank(1), disp, &[value]) {
    ///         // Which says what is short; all other errors are those of `put`.
    ///         error.shortage().ok_or(error)?;
    ///         work();
    ///     }
    /// }
    /// epoch.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RmaError::WouldBlock`] if there is no room now, [`RmaError::TooLargeToTry`] if there never
    /// is enough: nothing of the put was issued then. Otherwise as [`put`](Self::put).
    #[inline]
    pub fn try_put(
        &self,
        target: Rank,
        disp: impl Displacement,
        origin: impl Origin,
    ) -> Result<(), RmaError> {
        self.to(target).try_put(disp, origin)
    }

    /// Copies from displacement `disp` of `target` into `origin`, which holds it on return.
    ///
    /// Bytes that a layout of `origin` does not describe are not touched.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put), with the roles swapped: blocks of `origin` must not overlap, those at
    /// the target may. `origin` is then unchanged, or unspecified if a peer failed (MPI 4.1,
    /// section 12.3.2).
    #[inline]
    pub fn get<'b>(
        &self,
        target: Rank,
        disp: impl Displacement,
        origin: impl OriginMut<'b>,
    ) -> Result<(), RmaError> {
        self.to(target).get(disp, origin)
    }

    /// Combines the elements from displacement `disp` of `target` on with those of `origin`, each
    /// atomically and in order: `target[i] = target[i] op origin[i]`.
    ///
    /// `origin` is yours again on return. The result is at the target after a flush or the end of
    /// the epoch. Accumulates of this rank on one element happen in program order, whatever their
    /// lengths and layouts; towards all ranks each element is combined as a whole, against every
    /// other operation of the accumulate family with the same element type. Nothing more: two
    /// elements of one call may be seen apart. To [`Rank::NULL`] it does nothing.
    ///
    /// As long as one thread of one rank is the only one that combines elements at a target, arrays
    /// are combined at the speed of a plain loop. From when a second one has come, for the life of
    /// the window, elements take a lock; integers of 32 and 64 bits only as long as arrays of them
    /// come, and not where the CPU has transactions, which arrays are combined in then. When more
    /// single ones have come than these pay for, integers at that target are combined by
    /// instructions of the CPU, one after the other: the fastest way for one element. The
    /// [hint](crate::WindowBuilder::hint) `mpi_accumulate_granularity`, with as many bytes as an
    /// array has, makes the window combine them by lock, whatever comes.
    ///
    /// Layouts are made of one [`BasicElement`] type and of nothing else; it says what is combined,
    /// and a buffer with a layout may have elements of another type, of which the layout picks
    /// fields.
    ///
    /// ```
    /// # // Run as two ranks by the crate `rma`; here for the compiler.
    /// # use rma_core::{Layout, Op, Rank, Window};
    /// # fn example(window: &Window) -> Result<(), Box<dyn std::error::Error>> {
    /// // A row of values is added to a column of a 4 × 6 matrix of the neighbour.
    /// let column = Layout::element::<f64>().vector(4, 1, 6)?;
    /// let epoch = window.lock_all()?;
    /// epoch.accumulate(Rank(1), column.at(0), Op::Sum, &[1.5f64, 0.25, 3.0, 4.0])?;
    /// epoch.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put), [`RmaError::Misaligned`] if an element at the target is not aligned
    /// to the width of its components, [`RmaError::WrongOp`] if its type does not have `op`, or if
    /// `op` is [`Op::NoOp`], and [`RmaError::NotBasic`] if a layout is not made of one basic type.
    /// Nothing was combined then (MPI 4.1, section 12.3.4).
    #[inline]
    pub fn accumulate(
        &self,
        target: Rank,
        disp: impl Displacement,
        op: Op,
        origin: impl Operands,
    ) -> Result<(), RmaError> {
        self.to(target).accumulate(disp, op, origin)
    }

    /// As [`accumulate`](Self::accumulate), issued at once or not at all, as
    /// [`try_put`](Self::try_put). Where messages may overtake each other, an earlier accumulate on
    /// the same elements that is not answered yet is in the way, too.
    ///
    /// # Errors
    ///
    /// [`RmaError::WouldBlock`] if there is no room now, [`RmaError::TooLargeToTry`] if there never
    /// is enough: nothing was issued then. Otherwise as [`accumulate`](Self::accumulate).
    #[inline]
    pub fn try_accumulate(
        &self,
        target: Rank,
        disp: impl Displacement,
        op: Op,
        origin: impl Operands,
    ) -> Result<(), RmaError> {
        self.to(target).try_accumulate(disp, op, origin)
    }

    /// As [`accumulate`](Self::accumulate), and copies to `result` what was there before, each
    /// element as its own update found it.
    ///
    /// `origin` and `result` are yours on return, the latter filled (unchanged if the target is
    /// [`Rank::NULL`]); bytes that its layout does not describe are not touched. With [`Op::NoOp`]
    /// it is an atomic get: `origin` is ignored, its layout included, and may be empty.
    ///
    /// Both buffers have elements of one type, which an empty `origin` has from `result`. A layout
    /// that picks a field of structs is of their bytes all the same if they are lent as elements of
    /// the field's type: `layout.of(bytemuck::cast_slice_mut(&mut structs))`.
    ///
    /// # Errors
    ///
    /// As [`accumulate`](Self::accumulate); [`RmaError::WrongCount`] if `origin` and `result` have
    /// different lengths; [`RmaError::Overlap`] also for the layout of the result (MPI 4.1, section
    /// 12.3.4).
    #[inline]
    pub fn get_accumulate<'b, O: Operands>(
        &self,
        target: Rank,
        disp: impl Displacement,
        op: Op,
        origin: O,
        result: impl OriginMut<'b, Element = O::Element>,
    ) -> Result<(), RmaError> {
        self.to(target).get_accumulate(disp, op, origin, result)
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
        disp: impl Integer,
        op: Op,
        operand: E,
    ) -> Result<E, RmaError> {
        self.to(target).fetch_and_op(disp, op, operand)
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
        disp: impl Integer,
        compare: E,
        swap: E,
    ) -> Result<E, RmaError> {
        self.to(target).compare_and_swap(disp, compare, swap)
    }

    /// Runs `scope`, in which operations overlap, and completes all of them locally.
    ///
    /// Buffers handed to operations of the scope stay borrowed until it ends, and are yours again
    /// when `ops` returns, by a panic too. The epoch stays open.
    ///
    /// # Errors
    ///
    /// What `scope` returns; otherwise the first failure of an operation that was under way. An
    /// error of another type is part of what a scope gives: one type here is what lets a `?` in it
    /// stand without a word about types.
    #[inline]
    pub fn ops<'env, F, R>(&'env self, scope: F) -> Result<R, RmaError>
    where
        F: for<'scope> FnOnce(&'scope Ops<'scope, 'env>) -> Result<R, RmaError>,
    {
        Ops::run(Self { ..*self }, scope)
    }
}
