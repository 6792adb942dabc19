//! Accumulate and get_accumulate with layouts (MPI 4.1, section 12.3.4).
//!
//! Elements are combined row by row, by the mechanisms of the calls without layouts: so element by
//! element they are atomic towards all of these. Operands are packed, and results unpacked, a few
//! KiB at a time. S-H9 S-H14 S-H15
#![allow(unsafe_code)]

use super::Window;
use super::accumulate_far::Touched;
use super::hints::Ordered;
use super::shaped::NearShape;
use super::shaped_far::{BOUNCE_BYTES, Batch, Placed, Room};
use crate::completion::{Buffer, Pending};
use crate::element::{BasicElement, BasicType, Visitor};
use crate::error::RmaError;
use crate::memory::accumulate;
use crate::memory::strided::Row;
use crate::memory::stripe::{self, Held, STRIPE};
use crate::memory::target::Span;
use crate::ops::Op;
use crate::ops::layout::{Cursor, Shape, pack, unpack};
use crate::protocol::message::{Head, Kind};
use crate::rank::Rank;
use bytemuck::{cast_slice, cast_slice_mut};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// An accumulate, or a get_accumulate, with a layout on each side.
#[derive(Clone, Copy)]
pub(crate) struct ShapedUpdate<'a> {
    pub(crate) target: Rank,
    pub(crate) disp: u64,
    pub(crate) there: Shape<'a>,
    pub(crate) op: Op,
    /// Where the operands are; neither is looked at for no_op.
    pub(crate) origin: &'a [u8],
    pub(crate) from: Shape<'a>,
}

/// A get_accumulate to a far target, checked.
#[derive(Clone, Copy)]
pub(crate) struct FarUpdate<'a> {
    update: ShapedUpdate<'a>,
    basic: BasicType,
    placed: Placed<'a>,
}

/// Where an update goes.
enum Way<'w, 'a> {
    /// It combines nothing.
    Nothing,
    Near(NearShape<'w, 'a>, BasicType),
    Far(FarUpdate<'a>),
}

/// The rows of a part that this rank reaches.
#[derive(Clone, Copy)]
struct Rows<'w, 'a> {
    part: Span<'w>,
    shape: Shape<'a>,
    basic: BasicType,
}

const GET: &str = "a get_accumulate";
const UPDATE: &str = "an accumulate";

impl Window {
    /// Combines elements of the origin into the target's part; captures the former. S-H16
    pub(crate) fn accumulate_shaped<const LAZY: bool>(
        &self,
        update: ShapedUpdate<'_>,
    ) -> Result<(), RmaError> {
        let ShapedUpdate { target, op, .. } = update;
        if target == Rank::NULL {
            return Ok(());
        }
        if op == Op::NoOp {
            let element = update.there.layout().signature(1).element;
            return Err(RmaError::WrongOp { window: self.id(), target, what: UPDATE, op, element });
        }
        match self.way::<LAZY>(UPDATE, update)? {
            Way::Nothing => Ok(()),
            Way::Near(near, basic) => self.combine_rows(update, &near, basic, None),
            Way::Far(far) => self.accumulate_shaped_far_cold(far),
        }
    }

    /// As [`accumulate_shaped`](Self::accumulate_shaped), and copies what was there to `into` of
    /// `result`.
    pub(crate) fn get_accumulate_shaped<const LAZY: bool>(
        &self,
        update: ShapedUpdate<'_>,
        result: &mut [u8],
        into: Shape<'_>,
    ) -> Result<(), RmaError> {
        match self.get_accumulate_shaped_near::<LAZY>(update, result, into)? {
            None => Ok(()),
            Some(far) => self.get_accumulate_shaped_far_cold(far, result, into),
        }
    }

    /// Does it if the target is near; otherwise gives what is to be sent.
    pub(crate) fn get_accumulate_shaped_near<'a, const LAZY: bool>(
        &self,
        mut update: ShapedUpdate<'a>,
        result: &mut [u8],
        into: Shape<'_>,
    ) -> Result<Option<FarUpdate<'a>>, RmaError> {
        let target = update.target;
        if target == Rank::NULL {
            return Ok(None);
        }
        if update.op == Op::NoOp {
            (update.origin, update.from) = (&[], update.there.layout().times(0));
        }
        self.check_shapes(target, update.there, into, result.len())?;
        if into.overlaps() {
            let side = "the result's layout of a get_accumulate";
            return Err(RmaError::Overlap { window: self.id(), target, side });
        }
        match self.way::<LAZY>(GET, update)? {
            Way::Nothing => Ok(None),
            Way::Near(near, basic) => {
                let result = Some((result, into));
                self.combine_rows(update, &near, basic, result).map(|()| None)
            }
            Way::Far(far) => Ok(Some(far)),
        }
    }

    /// All checks of an update to a target other than the null one. S-H13 S-H14 S-J8
    fn way<'a, const LAZY: bool>(
        &self,
        what: &'static str,
        update: ShapedUpdate<'a>,
    ) -> Result<Way<'_, 'a>, RmaError> {
        let (window, ShapedUpdate { target, disp, there, op, origin, from }) = (self.id(), update);
        if op != Op::NoOp {
            self.check_shapes(target, there, from, origin.len())?;
        }
        if there.overlaps() {
            let side = "the target's layout of an accumulate";
            return Err(RmaError::Overlap { window, target, side });
        }
        let there_is = there.layout().signature(there.count());
        // Of no elements there is no type, and none is needed.
        let basic = there.layout().basic();
        if there.bytes() != Some(0) {
            let basic =
                basic.ok_or(RmaError::NotBasic { window, target, what, there: there_is })?;
            if !basic.has(op) {
                let element = basic.name();
                return Err(RmaError::WrongOp { window, target, what, op, element });
            }
        }
        let near = self.near_shaped::<LAZY>(target, disp, there)?;
        let far = if near.is_some() { None } else { self.place_far::<LAZY>(target, disp, there)? };
        let Some(basic) = basic.filter(|_| there.bytes() != Some(0)) else {
            return Ok(Way::Nothing);
        };
        let aligned = |base: u64, shape: Shape<'_>| match shape.is_aligned(base, basic.align()) {
            true => Ok(()),
            false => Err(self.misaligned_cold(target, disp, basic.align())),
        };
        match (near, far) {
            (Some(near), _) => {
                aligned(near.span().into_raw().0.addr() as u64, near.shape)?;
                Ok(Way::Near(near, basic))
            }
            (None, Some(placed)) => {
                aligned(0, placed.shape)?;
                Ok(Way::Far(FarUpdate { update, basic, placed }))
            }
            (None, None) => Ok(Way::Nothing),
        }
    }

    fn combine_rows(
        &self,
        update: ShapedUpdate<'_>,
        near: &NearShape<'_, '_>,
        basic: BasicType,
        result: Option<(&mut [u8], Shape<'_>)>,
    ) -> Result<(), RmaError> {
        let rows = Rows { part: near.span(), shape: near.shape, basic };
        let work = Work { window: self, update, rows, result };
        rows.basic.visit(work).unwrap_or(Ok(()))
    }
}

/// Combines rows of a near target, for the type at hand.
struct Work<'a, 'r> {
    window: &'a Window,
    update: ShapedUpdate<'a>,
    rows: Rows<'a, 'a>,
    result: Option<(&'r mut [u8], Shape<'r>)>,
}

impl Visitor for Work<'_, '_> {
    type Output = Result<(), RmaError>;

    fn visit<E: BasicElement>(self) -> Self::Output {
        let Self { window, update, rows, result } = self;
        let (mut target, mut source) = (Cursor::new(rows.shape), Cursor::new(update.from));
        let mut sink = result.map(|(bytes, into)| (bytes, Cursor::new(into)));
        let (mut packed, mut old) = (Vec::new(), Vec::new());
        let mut locked = Locked { window, target: update.target, held: None };
        while let Some(row) = target.take(STRIPE) {
            let bytes = (row.len * row.count) as usize;
            let operands: &[E] = match update.op {
                Op::NoOp => &[],
                _ => next_operands(&mut source, bytes, update.origin, &mut packed),
            };
            let Some((result, sink)) = &mut sink else {
                locked.combine(rows.part, row, update.op, operands, None)?;
                continue;
            };
            old.resize(bytes / size_of::<E>(), E::zeroed());
            locked.combine(rows.part, row, update.op, operands, Some(&mut old[..]))?;
            unpack(sink, cast_slice(&old), result);
        }
        Ok(())
    }
}

/// The next operands: where they are, if they are together and aligned there, otherwise in
/// `packed`.
fn next_operands<'a, E: BasicElement>(
    source: &mut Cursor<'_>,
    bytes: usize,
    origin: &'a [u8],
    packed: &'a mut Vec<E>,
) -> &'a [E] {
    let solid = source.take_solid(bytes as u64).map(|at| &origin[at as usize..][..bytes]);
    if let Some(Ok(elements)) = solid.map(bytemuck::try_cast_slice) {
        return elements;
    }
    packed.resize(bytes / size_of::<E>(), E::zeroed());
    match solid {
        Some(solid) => cast_slice_mut(packed).copy_from_slice(solid),
        None => pack(source, origin, cast_slice_mut(packed)),
    }
    packed
}

/// A stripe of a target that is held while rows stay in it.
struct Locked<'a> {
    window: &'a Window,
    target: Rank,
    held: Option<(i64, Held<'a>)>,
}

impl Locked<'_> {
    fn combine<E: BasicElement>(
        &mut self,
        part: Span<'_>,
        row: Row,
        op: Op,
        operands: &[E],
        mut result: Option<&mut [E]>,
    ) -> Result<(), RmaError> {
        if E::BASIC.is_atomic() {
            accumulate::row_by_atomics(part, row, op, operands, result);
            return Ok(());
        }
        let (width, mut at) = (size_of::<E>(), 0);
        for piece in stripe::pieces(row, width as u64) {
            let stripe = piece.at / STRIPE as i64;
            if self.held.as_ref().is_none_or(|(held, _)| *held != stripe) {
                // One at a time: nobody waits for a stripe with another in hand.
                self.held = None;
                let block = self.window.block_of(self.target)?;
                self.held = Some((stripe, self.window.stripe(block, piece.at as u64)?));
            }
            let here = at..at + (piece.len * piece.count) as usize / width;
            at = here.end;
            let operands = operands.get(here.clone()).unwrap_or_default();
            let result = result.as_deref_mut().and_then(|result| result.get_mut(here));
            accumulate::row_under_lock(part, piece, op, operands, result);
        }
        Ok(())
    }
}

/// Where an update to a far target has come to.
struct Progress<'a> {
    target: Cursor<'a>,
    source: Cursor<'a>,
}

impl<'a> FarUpdate<'a> {
    fn progress(&self) -> Progress<'a> {
        let (target, source) = (Cursor::new(self.placed.shape), Cursor::new(self.update.from));
        Progress { target, source }
    }

    fn bytes(&self) -> u64 {
        self.placed.shape.bytes().unwrap_or(0)
    }

    /// From the first byte to the last: what later accumulates wait for. S-H7
    fn touched(&self, what: &'static str) -> Touched {
        let (low, high) = self.placed.shape.wide_span().unwrap_or_default();
        let how = match (what, self.update.op) {
            (UPDATE, _) => Ordered::Write,
            (_, Op::NoOp) => Ordered::Read,
            _ => Ordered::Update,
        };
        Touched { bytes: low as u64..high as u64, how }
    }
}

impl Window {
    #[cold]
    #[inline(never)]
    fn accumulate_shaped_far_cold(&self, far: FarUpdate<'_>) -> Result<(), RmaError> {
        let (touched, pending) = (far.touched(UPDATE), Arc::default());
        self.wait_for_earlier(UPDATE, far.placed.target, &touched)?;
        let progress = &mut far.progress();
        // SAFETY: no buffer.
        let sent = unsafe { self.send_rows(&far, progress, far.bytes(), Buffer::NONE, &pending) };
        self.far.add_accumulate(far.placed.target, touched, &pending);
        sent
    }

    /// In pieces, so that no more than one of them waits packed.
    #[cold]
    #[inline(never)]
    pub(crate) fn get_accumulate_shaped_far_cold(
        &self,
        far: FarUpdate<'_>,
        result: &mut [u8],
        into: Shape<'_>,
    ) -> Result<(), RmaError> {
        let target = far.placed.target;
        self.wait_for_earlier(GET, target, &far.touched(GET))?;
        let (mut progress, mut sink) = (far.progress(), Cursor::new(into));
        let mut left = far.bytes();
        while left > 0 {
            let mut packed = vec![0; left.min(BOUNCE_BYTES) as usize];
            let (bytes, pending) = (packed.len() as u64, Arc::default());
            let buffer = Buffer { at: packed.as_mut_ptr(), len: packed.len() };
            // SAFETY: `packed` is not touched before `drain` returns, which is on every way out.
            let sent = unsafe { self.send_rows(&far, &mut progress, bytes, buffer, &pending) };
            sent.and(self.drain(GET, target, &pending))?;
            unpack(&mut sink, &packed, result);
            left -= bytes;
        }
        Ok(())
    }

    /// Sends all of an update; what was there will be in `packed` when `pending` is done.
    ///
    /// # Safety
    ///
    /// As [`Slots::start`](crate::completion::Slots::start).
    pub(crate) unsafe fn start_get_accumulate_shaped(
        &self,
        far: FarUpdate<'_>,
        packed: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let touched = far.touched(GET);
        self.wait_for_earlier(GET, far.placed.target, &touched)?;
        let (progress, bytes) = (&mut far.progress(), packed.len as u64);
        // SAFETY: forwarded to the caller.
        let sent = unsafe { self.send_rows(&far, progress, bytes, packed, pending) };
        self.far.add_accumulate(far.placed.target, touched, pending);
        sent
    }

    /// Sends the next `bytes` of an update; what was there goes to `result`, if that has room.
    ///
    /// # Safety
    ///
    /// As [`Slots::start`](crate::completion::Slots::start).
    unsafe fn send_rows(
        &self,
        far: &FarUpdate<'_>,
        progress: &mut Progress<'_>,
        bytes: u64,
        result: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let FarUpdate { update, basic, placed } = far;
        let (body, width) = (self.process().body_max(), basic.width() as u64);
        let fetches = result.len > 0;
        let (what, kind) = match fetches {
            true => (GET, Kind::GetAccumulateRows),
            false => (UPDATE, Kind::AccumulateRows),
        };
        let mut head = Head::new(kind, self.id().0, 0);
        (head.op, head.basic) = (update.op as u8, basic.to_wire());
        let carried = update.op != Op::NoOp;
        let mut done = 0;
        while done < bytes {
            // What comes back fits into one message too.
            let most = (body as u64).max(width).min(bytes - done);
            let room = Room { body, bytes: most, carried, width };
            let batch = Batch::take(&mut progress.target, room);
            if batch.bytes == 0 {
                break;
            }
            let at = result.at.wrapping_add(done as usize);
            let buffer = match fetches {
                true => Buffer { at, len: batch.bytes as usize },
                false => Buffer::NONE,
            };
            head.tag = (batch.rows.len() as u32).into();
            head.length = batch.bytes.into();
            let body = match carried {
                true => batch.body(&mut progress.source, update.origin),
                false => batch.rows.as_bytes().to_vec(),
            };
            let wait = self.wait_for(what, placed.target);
            // SAFETY: a part of the buffer that the caller vouches for.
            unsafe { self.issue(wait, placed.world, head, &body, buffer, pending) }?;
            done += batch.bytes;
        }
        Ok(())
    }
}
