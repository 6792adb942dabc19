//! What an accumulate combines with the elements at its target.
#![expect(private_interfaces, reason = "hidden methods of sealed traits")]

use super::Peer;
use crate::element::{BasicElement, BasicType, Element, Op, Visitor};
use crate::error::RmaError;
use crate::execute::FAR_APART;
use crate::layout::{LayoutOf, PlacedLayout, Row, only_pair};
use crate::memory::accumulate;
use crate::memory::bias::Mechanism;
use crate::memory::stripe::{self, STRIPE};
use crate::memory::target::{Span, Table};
use crate::operation::{
    Action, Operation, Origin, OriginBuffer, OwnedOrigin, Side, Slice, Spot, for_each_slice,
};
use crate::rank::Rank;
use crate::window::Window;
use bytemuck::{bytes_of, cast_slice, cast_slice_mut, pod_read_unaligned};
use core::ops::Range;

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
    fn accumulate<const TRIES: bool>(
        &self,
        peer: &Peer<'_>,
        at: Spot<'_>,
        op: Op,
    ) -> Result<(), RmaError>;

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
        fn accumulate<const TRIES: bool>(
            &self,
            peer: &Peer<'_>,
            at: Spot<'_>,
            op: Op,
        ) -> Result<(), RmaError> {
            peer.accumulate_elements::<E, TRIES>(at, op, &self[..])
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
    #[inline(always)]
    fn accumulate<const TRIES: bool>(
        &self,
        peer: &Peer<'_>,
        at: Spot<'_>,
        op: Op,
    ) -> Result<(), RmaError> {
        peer.accumulate_layout::<_, TRIES>(at, op, self.elements(), self.placed())
    }

    #[inline(always)]
    fn get_accumulate<'a>(
        &'a self,
        peer: &Peer<'_>,
        at: Spot<'a>,
        op: Op,
        result: &mut [B::Element],
        into: Option<PlacedLayout<'a>>,
    ) -> Result<Unfetched<'a>, RmaError> {
        let origin = (self.elements(), self.placed());
        peer.get_accumulate_between(at, op, origin, result, into)
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
    fn accumulate<const TRIES: bool>(
        buffer: &Self::Buffer,
        from: Option<PlacedLayout<'_>>,
        peer: &Peer<'_>,
        at: Spot<'_>,
        op: Op,
    ) -> Result<(), RmaError>;
}

impl<B: OriginBuffer<Element: BasicElement>> OwnedOperands for B {
    #[inline(always)]
    fn accumulate<const TRIES: bool>(
        buffer: &B,
        _: Option<PlacedLayout<'_>>,
        peer: &Peer<'_>,
        at: Spot<'_>,
        op: Op,
    ) -> Result<(), RmaError> {
        peer.accumulate_elements::<_, TRIES>(at, op, buffer.as_elements())
    }
}

impl<B: OriginBuffer> OwnedOperands for LayoutOf<'_, B> {
    fn accumulate<const TRIES: bool>(
        buffer: &B,
        from: Option<PlacedLayout<'_>>,
        peer: &Peer<'_>,
        at: Spot<'_>,
        op: Op,
    ) -> Result<(), RmaError> {
        peer.accumulate_layout::<_, TRIES>(at, op, buffer.as_elements(), from)
    }
}

impl Peer<'_> {
    #[inline(always)]
    fn accumulate_elements<E: BasicElement, const TRIES: bool>(
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
            return self.accumulate_layout::<E, TRIES>(at, op, origin, None);
        }
        let place = (self.target(), at.disp);
        let what = (E::BASIC, op);
        let origin = cast_slice(origin);
        Self::accumulate_array::<TRIES>(self.window(), self.table(), place, what, origin)
    }

    #[inline(never)]
    fn accumulate_array<const TRIES: bool>(
        window: &Window,
        table: Table<'_>,
        (target, disp): (Rank, u64),
        (basic, op): (BasicType, Op),
        origin: &[u8],
    ) -> Result<(), RmaError> {
        let peer = Peer::new(window, table, target);
        if op != Op::NoOp
            && basic.has(op)
            && peer.combine_some(disp, (basic, op), origin, None).is_ok()
        {
            return Ok(());
        }
        Self::accumulate_array_long::<TRIES>(window, table, (target, disp), (basic, op), origin)
    }

    /// Apart, so that what is done at once needs no room for an operation.
    #[inline(never)]
    fn accumulate_array_long<const TRIES: bool>(
        window: &Window,
        table: Table<'_>,
        (target, disp): (Rank, u64),
        (basic, op): (BasicType, Op),
        origin: &[u8],
    ) -> Result<(), RmaError> {
        let peer = Peer::new(window, table, target);
        if op != Op::NoOp
            && basic.has(op)
            && let Some(place) = peer.near_place(disp, origin.len())
        {
            return window.combine(place, (basic, op), origin, None);
        }
        let action = Action::Combine { op, basic: Some(basic), fetches: false };
        let combine = peer.operation((ACCUMULATE, action), disp, origin.len(), origin);
        window.perform(&combine.trying(TRIES))
    }

    /// One of both sides has a layout.
    #[inline(always)]
    fn accumulate_layout<E: Element, const TRIES: bool>(
        &self,
        at: Spot<'_>,
        op: Op,
        elements: &[E],
        from: Option<PlacedLayout<'_>>,
    ) -> Result<(), RmaError> {
        if let Some(of) = at.placed.or(from)
            && let Some(len) = self.only_run::<E>(&at, from, elements.len())
            && let bytes = cast_slice(elements)
            && op != Op::NoOp
            && self.combine_single::<E>(at.disp, op, &of, &bytes[..len], &mut [])
        {
            return Ok(());
        }
        let basic = at.placed.as_ref().or(from.as_ref()).and_then(|of| of.layout().basic());
        if op != Op::NoOp && self.combine_row(&at, (op, basic), (elements, &from), None) {
            return Ok(());
        }
        self.accumulate_layout_long::<E, TRIES>(at, op, elements, from)
    }

    #[inline(never)]
    fn accumulate_layout_long<E: Element, const TRIES: bool>(
        &self,
        at: Spot<'_>,
        op: Op,
        elements: &[E],
        from: Option<PlacedLayout<'_>>,
    ) -> Result<(), RmaError> {
        // S-G4
        let Some(of) = at.placed.or(from).filter(|_| self.target() != Rank::NULL) else {
            return Ok(());
        };
        let there = self.there(at, &of)?;
        let from = self.here::<E>(from, elements.len(), &of)?;
        let (basic, origin) = (of.layout().basic(), (cast_slice(elements), from));
        let action = Action::Combine { op, basic, fetches: false };
        let combine = self.between((ACCUMULATE, action), at.disp, there, origin);
        self.window().perform(&combine.trying(TRIES))
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
            return self.get_accumulate_between(at, op, (origin, None), result, into);
        }
        // Of no_op, the origin is ignored: it is an atomic get. S-H2 S-H3
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
        let (place, what) = ((self.target(), at.disp), (E::BASIC, op));
        let (origin, result) = (cast_slice(origin), cast_slice_mut(result));
        Self::get_accumulate_array(self.window(), self.table(), place, what, origin, result)
    }

    #[inline(never)]
    fn get_accumulate_array<'a>(
        window: &Window,
        table: Table<'_>,
        (target, disp): (Rank, u64),
        (basic, op): (BasicType, Op),
        origin: &'a [u8],
        result: &mut [u8],
    ) -> Result<Unfetched<'a>, RmaError> {
        let (peer, len) = (Peer::new(window, table, target), result.len());
        let origin = if op == Op::NoOp { &[] } else { origin };
        if basic.has(op) {
            if op != Op::NoOp && origin.len() != len {
                let window = window.id();
                let elements = |bytes: usize| (bytes / basic.width()) as u64;
                let (origin, result) = (elements(origin.len()), elements(len));
                return Err(RmaError::WrongCount { window, target, origin, result });
            }
            let what = (basic, op);
            let Err(result) = peer.combine_some(disp, what, origin, Some(&mut *result)) else {
                return Ok(None);
            };
            if let Some(place) = peer.near_place(disp, len) {
                return window.combine(place, what, origin, result).map(|()| None);
            }
        }
        let action = Action::Combine { op, basic: Some(basic), fetches: true };
        let fetch = peer.operation((GET_ACCUMULATE, action), disp, len, origin);
        Ok(Some((fetch, Side::dense(len))))
    }

    /// One of the three sides has a layout, perhaps that of which nothing is combined.
    #[inline(always)]
    fn get_accumulate_between<'a, E: Element>(
        &self,
        at: Spot<'a>,
        op: Op,
        (origin, from): (&'a [E], Option<PlacedLayout<'a>>),
        result: &mut [E],
        into: Option<PlacedLayout<'a>>,
    ) -> Result<Unfetched<'a>, RmaError> {
        let count = result.len();
        if let Some(there) = at.placed
            && let Some(len) = self.only_run::<E>(&at, into, count)
            && (op == Op::NoOp || self.only_run::<E>(&at, from, origin.len()) == Some(len))
            && let operands = if op == Op::NoOp { &[][..] } else { &cast_slice(origin)[..len] }
            && let old = &mut cast_slice_mut(result)[..len]
            && self.combine_single::<E>(at.disp, op, &there, operands, old)
        {
            return Ok(None);
        }
        self.get_accumulate_long(at, op, (origin, from), result, into)
    }

    #[inline(never)]
    fn get_accumulate_long<'a, E: Element>(
        &self,
        at: Spot<'a>,
        op: Op,
        (origin, from): (&'a [E], Option<PlacedLayout<'a>>),
        result: &mut [E],
        into: Option<PlacedLayout<'a>>,
    ) -> Result<Unfetched<'a>, RmaError> {
        // Of no_op, the origin is ignored. S-H2
        let (origin, from) = if op == Op::NoOp { (&[][..], None) } else { (origin, from) };
        // S-G4
        if self.target() == Rank::NULL {
            return Ok(None);
        }
        let Some(of) = at.placed.or(into).or(from) else {
            let (len, basic) = (size_of_val(result), BasicType::of::<E>());
            let action = (GET_ACCUMULATE, Action::Combine { op, basic, fetches: true });
            return Ok(Some((self.operation(action, at.disp, len, &[]), Side::dense(len))));
        };
        let basic = of.layout().basic();
        let old = Some((&mut *result, &into));
        if self.combine_row(&at, (op, basic), (origin, &from), old) {
            return Ok(None);
        }
        let (there, into) = (self.there(at, &of)?, self.here::<E>(into, result.len(), &of)?);
        let from = match op {
            Op::NoOp => Side::dense(0),
            _ => self.here::<E>(from, origin.len(), &of)?,
        };
        if let (Side::Bytes { .. }, Side::Layout(from)) = (there, from)
            && !of.matches(&from)
        {
            return Err(self.mismatch(&of, from.layout().signature(from.count())));
        }
        let action = (GET_ACCUMULATE, Action::Combine { op, basic, fetches: true });
        Ok(Some((self.between(action, at.disp, there, (cast_slice(origin), from)), into)))
    }

    /// The hottest path with layouts, of which `of` is one: an element of the type of the buffer,
    /// which the compiler knows, at the displacement. Without bytes for it, what was there is not
    /// asked for. Says whether that was possible: otherwise nothing happened.
    #[inline(always)]
    fn combine_single<E: Element>(
        &self,
        disp: u64,
        op: Op,
        of: &PlacedLayout<'_>,
        operand: &[u8],
        old: &mut [u8],
    ) -> bool {
        let is_one = |bytes: &[u8]| bytes.len() == size_of::<E>();
        if of.layout().basic() != BasicType::of::<E>()
            || !(op == Op::NoOp || is_one(operand))
            || !(old.is_empty() || is_one(old))
        {
            return false;
        }
        BasicType::visit_of::<E, _>(CombineSingle { peer: self, disp, op, operand, old })
            .unwrap_or(false)
    }

    /// The hot path with layouts: the target's side is a row, each other lies together, and nothing
    /// stands in the way. Otherwise nothing happened: the long way finds out what does.
    #[inline(never)]
    fn combine_row<E: Element>(
        &self,
        spot: &Spot<'_>,
        (op, basic): (Op, Option<BasicType>),
        (origin, from): (&[E], &Option<PlacedLayout<'_>>),
        result: Option<(&mut [E], &Option<PlacedLayout<'_>>)>,
    ) -> bool {
        let combined = || {
            let basic = basic.filter(|basic| basic.has(op))?;
            if spot.placed.as_ref().is_some_and(PlacedLayout::overlaps) {
                return None;
            }
            let beside = |side: &Option<PlacedLayout<'_>>, count: usize| {
                let (part, there, here) = match (&spot.placed, side) {
                    // Any part of the elements lies together there.
                    (None, Some(side)) => {
                        let ((part, offset), len) = (self.near_part(spot.disp)?, side.bytes()?);
                        let solid = Row { at: offset.try_into().ok()?, stride: 0, len, count: 1 };
                        let (there, here) = only_pair(solid, side.only_row(0)?)?;
                        (part, there, here)
                    }
                    _ => self.near_rows::<E>(spot, side.as_ref(), count)?,
                };
                Some((part, there, together(here)?))
            };
            let operands = match op {
                Op::NoOp => None,
                _ => Some(beside(from, origin.len())?),
            };
            let (memory, operands, result) = match (operands, result) {
                (Some((part, row, here)), None) => {
                    ((part, row), cast_slice(origin).get(here)?, None)
                }
                (operands, Some((old, into))) => {
                    let (part, row, there) = beside(into, old.len())?;
                    let operands = match operands {
                        Some((_, same, here)) if same == row => cast_slice(origin).get(here)?,
                        Some(_) => return None,
                        None => &[][..],
                    };
                    ((part, row), operands, Some(cast_slice_mut(old).get_mut(there)?))
                }
                (None, None) => return None,
            };
            let (part, row) = memory;
            // Of one type, whose width is a multiple of its alignment.
            let first = part.address().wrapping_add_signed(row.at);
            let steps = if row.count > 1 { row.stride.cast_unsigned() } else { 0 };
            if (first | steps) & (basic.align() as u64 - 1) != 0 || !part.holds(row) {
                return None;
            }
            self.combine_near(memory, (basic, op), operands, result)
        };
        combined().is_some()
    }

    /// Combines a row of a part, which lies inside, and whose blocks are aligned. `None` if that
    /// was not possible, and nothing happened.
    #[inline(always)]
    fn combine_near(
        &self,
        (part, row): (Span<'_>, Row),
        (basic, op): (BasicType, Op),
        operands: &[u8],
        result: Option<&mut [u8]>,
    ) -> Option<()> {
        let (entry, rank) = (self.entry()?, self.window().rank());
        let bytes = row.len * row.count;
        match entry.mechanism(basic, rank)? {
            Mechanism::Atomics => {
                accumulate::row_by_atomics(part, row, basic, op, operands, result);
            }
            Mechanism::Alone(alone) if bytes <= STRIPE => {
                if basic.is_atomic() {
                    alone.earn(bytes as usize);
                }
                accumulate::row_under_lock(part, row, basic, op, operands, result);
            }
            Mechanism::Alone(_) => return None,
            Mechanism::Stripes => {
                let (block, hull) = (entry.block()?, row.hull());
                let _held = if hull.start % STRIPE + (hull.end - hull.start) <= STRIPE {
                    stripe::try_one(block, hull.start, rank)?
                } else if row.count <= FAR_APART && row.len <= SHORT {
                    // All or none: no rank waits with a lock in hand.
                    stripe::try_range(block, &hull, rank)?
                } else {
                    return None;
                };
                if !self.is_under_lock(block, (basic, op), bytes as usize) {
                    return None;
                }
                accumulate::row_under_lock(part, row, basic, op, operands, result);
            }
        }
        Some(())
    }
}

/// The bytes of a row, if they lie one behind the other.
#[inline(always)]
fn together(row: Row) -> Option<Range<usize>> {
    if row.count != 1 && row.stride.cast_unsigned() != row.len {
        return None;
    }
    let begin = usize::try_from(row.at).ok()?;
    let len = usize::try_from(row.len.checked_mul(row.count)?).ok()?;
    Some(begin..begin.checked_add(len)?)
}

/// Combines one element, for the type at hand.
struct CombineSingle<'c, 'w> {
    peer: &'c Peer<'w>,
    disp: u64,
    op: Op,
    /// An element, of which no_op looks at none.
    operand: &'c [u8],
    /// An element, or nothing.
    old: &'c mut [u8],
}

impl Visitor for CombineSingle<'_, '_> {
    type Output = bool;

    #[inline(always)]
    fn visit<E: BasicElement>(self) -> bool {
        let operand = match self.op {
            Op::NoOp => E::zeroed(),
            _ => pod_read_unaligned(self.operand),
        };
        let Some(old) = self.peer.combine_one(self.disp, self.op, operand) else { return false };
        if !self.old.is_empty() {
            self.old.copy_from_slice(bytes_of(&old));
        }
        true
    }
}

/// Longer blocks, of which there are several, are combined a stripe at a time.
const SHORT: u64 = 64;
