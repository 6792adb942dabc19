//! What an accumulate combines with the elements at its target. S-G4 S-H2 S-H3 S-H11 S-H12
#![expect(private_interfaces, reason = "hidden methods of sealed traits")]

use super::Peer;
use crate::element::{BasicElement, BasicType, Element, Op};
use crate::error::RmaError;
use crate::layout::{LayoutOf, PlacedLayout};
use crate::memory::target::Table;
use crate::operation::{
    Action, Operation, Origin, OriginBuffer, OwnedOrigin, Side, Slice, Spot, for_each_slice,
};
use crate::rank::Rank;
use crate::window::Window;
use bytemuck::cast_slice;

pub(super) const ACCUMULATE: &str = "an accumulate";
pub(super) const GET_ACCUMULATE: &str = "a get_accumulate";

/// An operation that is left to be done, and the side of the buffer that it fills.
type Unfetched<'a> = Option<(Operation<'a>, Side<'a>)>;

/// What an accumulate combines with the elements at its target: a slice of elements that can be
/// combined, or a [layout of](crate::Layout::of) a slice that is made of one such type.
///
/// Implemented for references to slices, arrays, vectors and boxed slices of
/// [`BasicElement`]s, and for [`LayoutOf`] one of any element.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be combined with elements of a window",
    note = "slices of integers, floats, `rma::Bool`, `rma::Complex` and `rma::Pair` can, and \
            `layout.of(&values)`"
)]
pub trait Operands: Origin {
    #[doc(hidden)]
    fn accumulate(&self, peer: &Peer<'_>, at: Spot<'_>, op: Op) -> Result<(), RmaError>;

    /// Does it if nothing stands in the way of load and store; otherwise gives the operation.
    #[doc(hidden)]
    fn get_accumulate<'a>(
        &'a self,
        peer: &Peer<'_>,
        at: Spot<'a>,
        op: Op,
        result: &mut [Self::Element],
        into: Option<PlacedLayout<'a>>,
    ) -> Result<Unfetched<'a>, RmaError>;
}

macro_rules! slices { ($($buffer:ty $(, $n:ident)?;)*) => { $(
    #[diagnostic::do_not_recommend]
    impl<E: BasicElement $(, const $n: usize)?> Operands for &$buffer {
        #[inline(always)]
        fn accumulate(&self, peer: &Peer<'_>, at: Spot<'_>, op: Op) -> Result<(), RmaError> {
            peer.accumulate_elements(at, op, &self[..])
        }
        #[inline(always)]
        fn get_accumulate<'a>(
            &'a self,
            peer: &Peer<'_>,
            at: Spot<'a>,
            op: Op,
            result: &mut [E],
            into: Option<PlacedLayout<'a>>,
        ) -> Result<Unfetched<'a>, RmaError> {
            peer.get_accumulate_elements(at, op, &self[..], result, into)
        }
    }
)* } }
for_each_slice!(slices);

impl<B: Origin + Slice> Operands for LayoutOf<'_, B> {
    fn accumulate(&self, peer: &Peer<'_>, at: Spot<'_>, op: Op) -> Result<(), RmaError> {
        peer.accumulate_layout(at, op, self.elements(), self.placed())
    }

    fn get_accumulate<'a>(
        &'a self,
        peer: &Peer<'_>,
        at: Spot<'a>,
        op: Op,
        result: &mut [B::Element],
        into: Option<PlacedLayout<'a>>,
    ) -> Result<Unfetched<'a>, RmaError> {
        let origin = (self.elements(), self.placed());
        peer.get_accumulate_between(at, op, origin, result.len(), into)
    }
}

/// What an accumulate that gives a request combines with the elements at its target: as
/// [`Operands`], in a buffer that the request owns.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be combined with elements of a window",
    note = "buffers of integers, floats, `rma::Bool`, `rma::Complex` and `rma::Pair` can, and \
            `layout.of(…)` of one"
)]
pub trait OwnedOperands: OwnedOrigin {
    #[doc(hidden)]
    fn accumulate(
        buffer: &Self::Buffer,
        from: Option<PlacedLayout<'_>>,
        peer: &Peer<'_>,
        at: Spot<'_>,
        op: Op,
    ) -> Result<(), RmaError>;
}

impl<B: OriginBuffer<Element: BasicElement>> OwnedOperands for B {
    #[inline(always)]
    fn accumulate(
        buffer: &B,
        _: Option<PlacedLayout<'_>>,
        peer: &Peer<'_>,
        at: Spot<'_>,
        op: Op,
    ) -> Result<(), RmaError> {
        peer.accumulate_elements(at, op, buffer.as_elements())
    }
}

impl<B: OriginBuffer> OwnedOperands for LayoutOf<'_, B> {
    fn accumulate(
        buffer: &B,
        from: Option<PlacedLayout<'_>>,
        peer: &Peer<'_>,
        at: Spot<'_>,
        op: Op,
    ) -> Result<(), RmaError> {
        peer.accumulate_layout(at, op, buffer.as_elements(), from)
    }
}

impl Peer<'_> {
    #[inline(always)]
    fn accumulate_elements<E: BasicElement>(
        &self,
        at: Spot<'_>,
        op: Op,
        origin: &[E],
    ) -> Result<(), RmaError> {
        if let [operand] = origin
            && at.placed.is_none()
            && op != Op::NoOp
            && self.combine_one(at.disp, op, *operand).is_some()
        {
            return Ok(());
        }
        if at.placed.is_some() {
            return self.accumulate_layout(at, op, origin, None);
        }
        Self::accumulate_array(self.window(), self.table(), (self.target(), op), at.disp, origin)
    }

    #[inline(never)]
    fn accumulate_array<E: BasicElement>(
        window: &Window,
        table: Table<'_>,
        (target, op): (Rank, Op),
        disp: u64,
        origin: &[E],
    ) -> Result<(), RmaError> {
        let peer = Peer::new(window, table, target);
        if op != Op::NoOp && op.is_defined_on::<E>() {
            if peer.combine_some(disp, op, origin, None).is_ok() {
                return Ok(());
            }
            if let Some(place) = peer.near_place(disp, size_of_val(origin)) {
                return window.combine(place, op, origin, None);
            }
        }
        let action = Action::Combine { op, basic: Some(E::BASIC), fetches: false };
        let bytes: &[u8] = cast_slice(origin);
        window.perform(&peer.operation((ACCUMULATE, action), disp, bytes.len(), bytes))
    }

    /// One of both sides has a layout.
    fn accumulate_layout<E: Element>(
        &self,
        at: Spot<'_>,
        op: Op,
        elements: &[E],
        from: Option<PlacedLayout<'_>>,
    ) -> Result<(), RmaError> {
        let Some(of) = at.placed.or(from).filter(|_| self.target() != Rank::NULL) else {
            return Ok(());
        };
        let there = self.there(at, &of)?;
        let from = self.here::<E>(from, elements.len(), &of)?;
        let action = Action::Combine { op, basic: of.layout().basic(), fetches: false };
        let origin = (cast_slice(elements), from);
        self.window().perform(&self.between((ACCUMULATE, action), at.disp, there, origin))
    }

    #[inline(always)]
    fn get_accumulate_elements<'a, E: BasicElement>(
        &self,
        at: Spot<'a>,
        op: Op,
        origin: &'a [E],
        result: &mut [E],
        into: Option<PlacedLayout<'a>>,
    ) -> Result<Unfetched<'a>, RmaError> {
        if at.placed.or(into).is_some() {
            return self.get_accumulate_between(at, op, (origin, None), result.len(), into);
        }
        // Of no_op, the origin is ignored.
        let operand = match origin {
            _ if op == Op::NoOp => Some(E::zeroed()),
            [operand] => Some(*operand),
            _ => None,
        };
        if let (Some(operand), [place]) = (operand, &mut *result)
            && let Some(old) = self.combine_one(at.disp, op, operand)
        {
            *place = old;
            return Ok(None);
        }
        let place = (self.target(), at.disp, op);
        Self::get_accumulate_array(self.window(), self.table(), place, origin, result)
    }

    #[inline(never)]
    fn get_accumulate_array<'a, E: BasicElement>(
        window: &Window,
        table: Table<'_>,
        (target, disp, op): (Rank, u64, Op),
        origin: &'a [E],
        result: &mut [E],
    ) -> Result<Unfetched<'a>, RmaError> {
        let (peer, len) = (Peer::new(window, table, target), size_of_val(result));
        let origin = if op == Op::NoOp { &[] } else { origin };
        if op.is_defined_on::<E>() {
            if op != Op::NoOp && origin.len() != result.len() {
                let window = window.id();
                let (origin, result) = (origin.len() as u64, result.len() as u64);
                return Err(RmaError::WrongCount { window, target, origin, result });
            }
            let Err(result) = peer.combine_some(disp, op, origin, Some(&mut *result)) else {
                return Ok(None);
            };
            if let Some(place) = peer.near_place(disp, len) {
                return window.combine(place, op, origin, result).map(|()| None);
            }
        }
        let action = Action::Combine { op, basic: Some(E::BASIC), fetches: true };
        let fetch = peer.operation((GET_ACCUMULATE, action), disp, len, cast_slice(origin));
        Ok(Some((fetch, Side::dense(len))))
    }

    /// One of the three sides has a layout, perhaps that of which nothing is combined.
    fn get_accumulate_between<'a, E: Element>(
        &self,
        at: Spot<'a>,
        op: Op,
        (origin, from): (&'a [E], Option<PlacedLayout<'a>>),
        result: usize,
        into: Option<PlacedLayout<'a>>,
    ) -> Result<Unfetched<'a>, RmaError> {
        // Of no_op, the origin is ignored.
        let (origin, from) = if op == Op::NoOp { (&[][..], None) } else { (origin, from) };
        if self.target() == Rank::NULL {
            return Ok(None);
        }
        let Some(of) = at.placed.or(into).or(from) else {
            let (len, basic) = (result * size_of::<E>(), BasicType::of::<E>());
            let action = (GET_ACCUMULATE, Action::Combine { op, basic, fetches: true });
            return Ok(Some((self.operation(action, at.disp, len, &[]), Side::dense(len))));
        };
        let (there, into) = (self.there(at, &of)?, self.here::<E>(into, result, &of)?);
        let from = match op {
            Op::NoOp => Side::dense(0),
            _ => self.here::<E>(from, origin.len(), &of)?,
        };
        if let (Side::Bytes { .. }, Side::Layout(from)) = (there, from)
            && !of.matches(&from)
        {
            return Err(self.mismatch(&of, from.layout().signature(from.count())));
        }
        let action = Action::Combine { op, basic: of.layout().basic(), fetches: true };
        let action = (GET_ACCUMULATE, action);
        let fetch = self.between(action, at.disp, there, (cast_slice(origin), from));
        Ok(Some((fetch, into)))
    }
}
