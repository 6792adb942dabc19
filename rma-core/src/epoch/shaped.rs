//! Operations with layouts (MPI 4.1, sections 12.3.1, 12.3.2 and 12.3.4, chapter 5).
use super::access::{GET, PUT};
use super::accumulate::{ACCUMULATE, GET_ACCUMULATE};
use super::{Access, Lock};
use crate::element::{Element, Op};
use crate::error::RmaError;
use crate::layout::{Row, Shape, only_pair};
use crate::memory::strided::Area;
use crate::operation::{Action, Operation, Side, Sink};
use crate::rank::Rank;
use bytemuck::{cast_slice, cast_slice_mut};

impl Access<'_> {
    /// The hot path: both sides are a row each of a near target, and nothing stands in the way.
    /// Otherwise the long way finds out what does.
    #[inline]
    fn near_rows(
        &self,
        target: Rank,
        disp: u64,
        there: &Shape<'_>,
        here: &Shape<'_>,
    ) -> Option<(Area<'_>, Row, Row)> {
        let (part, offset) = self.near_part(target, disp)?;
        if !there.matches(here) {
            return None;
        }
        let (there, here) = only_pair(there, offset, here)?;
        Some((Area::new(part), there, here))
    }

    /// Copies what `from` describes of `origin` to where `to` describes it, at displacement `disp`
    /// of `target`, in the target's units. Both describe the same sequence of types; how they
    /// arrange it is each side's own affair.
    ///
    /// `origin` and the layouts are yours again on return. The data is at the target after a flush
    /// or the end of the epoch. Bytes that `to` does not describe are not touched. Elements of
    /// `origin` need not be those of the layout: a layout may pick fields out of structs.
    ///
    /// ```
    /// # // Run as two ranks by the crate `rma`; here for the compiler.
    /// # use rma_core::{Layout, Rank, Window, transport::Transport, RmaError, LayoutError};
    /// # fn example(window: &Window) -> Result<(), Box<dyn std::error::Error>> {
    /// # let neighbour = Rank(1);
    /// // The last column of a 4 × 6 matrix here becomes the first of the neighbour's.
    /// let matrix = [0.5f64; 24];
    /// let column = Layout::of::<f64>().vector(4, 1, 6)?;
    /// let epoch = window.lock_all()?;
    /// epoch.put_shaped(neighbour, 0, &column, &matrix, column.starting_at(5 * 8))?;
    /// epoch.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing was written if it is one of [`RmaError::LayoutOutOfRange`],
    /// [`RmaError::OriginOutOfRange`], [`RmaError::SignatureMismatch`],
    /// [`RmaError::LayoutTooLarge`], [`RmaError::NoSuchRank`], or [`RmaError::Overlap`]: blocks of
    /// `to` that overlap are refused where that is seen without comparing each with each, and
    /// write one of the values where not (S-J8). A put of no bytes, or to [`Rank::NULL`], does
    /// nothing (MPI 4.1, section 12.3.1).
    pub fn put_shaped<'l, E: Element>(
        &self,
        target: Rank,
        disp: u64,
        to: impl Into<Shape<'l>>,
        origin: &[E],
        from: impl Into<Shape<'l>>,
    ) -> Result<(), RmaError> {
        let (to, from, origin) = (to.into(), from.into(), cast_slice(origin));
        match self.near_rows(target, disp, &to, &from) {
            Some((area, sink, source))
                if !to.overlaps() && area.try_write_row(sink, origin, source) =>
            {
                Ok(())
            }
            _ => self.window().perform(&self.between(PUT, target, disp, to, (origin, from.into()))),
        }
    }

    /// Copies what `from` describes at displacement `disp` of `target` to where `to` describes it
    /// in `origin`, which holds it on return. Other bytes of `origin` are not touched.
    ///
    /// # Errors
    ///
    /// As [`put_shaped`](Self::put_shaped), with the roles swapped: blocks of `to` must not
    /// overlap, those of `from` may. `origin` is then unchanged, or unspecified if a peer failed
    /// (MPI 4.1, section 12.3.2).
    pub fn get_shaped<'l, E: Element>(
        &self,
        target: Rank,
        disp: u64,
        from: impl Into<Shape<'l>>,
        origin: &mut [E],
        to: impl Into<Shape<'l>>,
    ) -> Result<(), RmaError> {
        let (from, to, origin) = (from.into(), to.into(), cast_slice_mut(origin));
        match self.near_rows(target, disp, &from, &to) {
            Some((area, source, sink))
                if !to.overlaps() && area.try_read_row(source, origin, sink) =>
            {
                Ok(())
            }
            _ => {
                let get = self.between(GET, target, disp, from, (&[], Side::dense(0)));
                self.window().fetch(&get, Sink { bytes: origin, into: to.into() })
            }
        }
    }

    /// Combines the elements that `to` describes at displacement `disp` of `target` with those that
    /// `from` describes in `origin`, each atomically, in the order of both layouts.
    ///
    /// The layouts are made of one [`BasicElement`](crate::BasicElement) type and of nothing else;
    /// it says what is combined, and `origin` may have elements of another type, of which the
    /// layout picks fields. `origin` and the layouts are yours again on return. The result is at
    /// the target after a flush or the end of the epoch. Order and atomicity are those of
    /// [`accumulate`](Self::accumulate), towards calls with layouts and without.
    ///
    /// ```
    /// # // Run as two ranks by the crate `rma`; here for the compiler.
    /// # use rma_core::{Layout, Op, Rank, Window, transport::Transport};
    /// # fn example(window: &Window) -> Result<(), Box<dyn std::error::Error>> {
    /// // A row of values is added to a column of a 4 × 6 matrix of the neighbour.
    /// let (value, sums) = (Layout::of::<f64>(), [1.5f64, 0.25, 3.0, 4.0]);
    /// let column = value.vector(4, 1, 6)?;
    /// let epoch = window.lock_all()?;
    /// epoch.accumulate_shaped(Rank(1), 0, &column, Op::Sum, &sums, value.times(4))?;
    /// epoch.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`put_shaped`](Self::put_shaped), overlaps of `to` included (S-J8); and
    /// [`RmaError::NotBasic`] if the layouts are not made of one basic type,
    /// [`RmaError::Misaligned`] if an element at the target is not aligned to the width of its
    /// components, [`RmaError::WrongOp`] if the type does not have `op`, or `op` is
    /// [`Op::NoOp`]. Nothing was combined then (MPI 4.1, section 12.3.4).
    pub fn accumulate_shaped<'l, E: Element>(
        &self,
        target: Rank,
        disp: u64,
        to: impl Into<Shape<'l>>,
        op: Op,
        origin: &[E],
        from: impl Into<Shape<'l>>,
    ) -> Result<(), RmaError> {
        let (to, from): (Shape<'_>, Shape<'_>) = (to.into(), from.into());
        let action = Action::Combine { op, basic: to.layout().basic(), fetches: false };
        let origin = (cast_slice(origin), from.into());
        self.window().perform(&self.between((ACCUMULATE, action), target, disp, to, origin))
    }

    /// As [`accumulate_shaped`](Self::accumulate_shaped), and copies to what `result` describes
    /// what was there before, each element as its own update found it. `origin` and `result` are
    /// each a buffer and the layout in it.
    ///
    /// All buffers and layouts are yours on return, `result` filled (unchanged if the target is
    /// [`Rank::NULL`]); bytes that its layout does not describe are not touched. With [`Op::NoOp`]
    /// it is an atomic get, and `origin` is ignored, its layout included.
    ///
    /// # Errors
    ///
    /// As [`accumulate_shaped`](Self::accumulate_shaped); [`RmaError::Overlap`] also for the
    /// layout of the result (MPI 4.1, section 12.3.4).
    pub fn get_accumulate_shaped<'l, E: Element, F: Element>(
        &self,
        target: Rank,
        disp: u64,
        at: impl Into<Shape<'l>>,
        op: Op,
        (origin, from): (&[E], impl Into<Shape<'l>>),
        (result, into): (&mut [F], impl Into<Shape<'l>>),
    ) -> Result<(), RmaError> {
        let origin = (cast_slice(origin), from.into());
        let fetch = self.get_accumulate_operation(target, disp, at.into(), op, origin);
        let into: Shape<'_> = into.into();
        self.window().fetch(&fetch, Sink { bytes: cast_slice_mut(result), into: into.into() })
    }

    pub(super) fn get_accumulate_operation<'a>(
        &self,
        target: Rank,
        disp: u64,
        at: Shape<'a>,
        op: Op,
        (origin, from): (&'a [u8], Shape<'a>),
    ) -> Operation<'a> {
        let action = Action::Combine { op, basic: at.layout().basic(), fetches: true };
        // Of no_op, the origin is ignored.
        let origin = match op {
            Op::NoOp => (&[][..], Side::dense(0)),
            _ => (origin, from.into()),
        };
        self.between((GET_ACCUMULATE, action), target, disp, at, origin)
    }
}

impl Lock<'_> {
    /// See [`Access::put_shaped`].
    pub fn put_shaped<'l, E: Element>(
        &self,
        disp: u64,
        to: impl Into<Shape<'l>>,
        origin: &[E],
        from: impl Into<Shape<'l>>,
    ) -> Result<(), RmaError> {
        self.own().put_shaped(self.target(), disp, to, origin, from)
    }

    /// See [`Access::get_shaped`].
    pub fn get_shaped<'l, E: Element>(
        &self,
        disp: u64,
        from: impl Into<Shape<'l>>,
        origin: &mut [E],
        to: impl Into<Shape<'l>>,
    ) -> Result<(), RmaError> {
        self.own().get_shaped(self.target(), disp, from, origin, to)
    }

    /// See [`Access::accumulate_shaped`].
    pub fn accumulate_shaped<'l, E: Element>(
        &self,
        disp: u64,
        to: impl Into<Shape<'l>>,
        op: Op,
        origin: &[E],
        from: impl Into<Shape<'l>>,
    ) -> Result<(), RmaError> {
        self.own().accumulate_shaped(self.target(), disp, to, op, origin, from)
    }

    /// See [`Access::get_accumulate_shaped`].
    pub fn get_accumulate_shaped<'l, E: Element, F: Element>(
        &self,
        disp: u64,
        at: impl Into<Shape<'l>>,
        op: Op,
        origin: (&[E], impl Into<Shape<'l>>),
        result: (&mut [F], impl Into<Shape<'l>>),
    ) -> Result<(), RmaError> {
        self.own().get_accumulate_shaped(self.target(), disp, at, op, origin, result)
    }
}
