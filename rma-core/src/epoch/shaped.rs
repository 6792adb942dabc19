//! Put and get with layouts (MPI 4.1, sections 12.3.1 and 12.3.2, chapter 5).
use super::{Access, Lock};
use crate::element::Element;
use crate::error::RmaError;
use crate::ops::Shape;
use crate::rank::Rank;
use crate::transport::Transport;
use bytemuck::{cast_slice, cast_slice_mut};

impl<T: Transport, const LAZY: bool> Access<'_, T, LAZY> {
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
    /// # fn example<T: Transport>(window: &Window<T>) -> Result<(), Box<dyn std::error::Error>> {
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
        let (to, from) = (to.into(), from.into());
        self.window().put_shaped::<LAZY>(target, disp, to, cast_slice(origin), from)
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
        let (from, to) = (from.into(), to.into());
        self.window().get_shaped::<LAZY>(target, disp, from, cast_slice_mut(origin), to)
    }
}

impl<T: Transport> Lock<'_, T> {
    /// See [`Access::put_shaped`].
    pub fn put_shaped<'l, E: Element>(
        &self,
        disp: u64,
        to: impl Into<Shape<'l>>,
        origin: &[E],
        from: impl Into<Shape<'l>>,
    ) -> Result<(), RmaError> {
        self.access.put_shaped(self.target(), disp, to, origin, from)
    }

    /// See [`Access::get_shaped`].
    pub fn get_shaped<'l, E: Element>(
        &self,
        disp: u64,
        from: impl Into<Shape<'l>>,
        origin: &mut [E],
        to: impl Into<Shape<'l>>,
    ) -> Result<(), RmaError> {
        self.access.get_shaped(self.target(), disp, from, origin, to)
    }
}
