//! The accumulate family on near targets, and the way to far ones.
//!
//! Elements that the machine combines atomically are combined so, one by one; all others under
//! the lock of their stripe, a stripe at a time (docs/adr/0004-accumulate-mechanisms.md). All calls
//! of the family use the same mechanism for the same type. S-H4 S-H5 S-H6 S-H9 S-H10
use super::Window;
use super::direct::Region;
use crate::completion::{Buffer, On, Wait};
use crate::element::{AtomicElement, BasicElement, BasicType};
use crate::error::RmaError;
use crate::memory::accumulate;
use crate::memory::block::Block;
use crate::memory::stripe::{self, Held, STRIPE};
use crate::memory::target::Span;
use crate::ops::Op;
use crate::rank::Rank;
use bytemuck::{cast_slice, cast_slice_mut};
use core::slice;
use core::time::Duration;
use std::sync::Arc;

/// How often a thread that wants a stripe looks again: giving one back rings nobody.
pub(crate) const STRIPE_RECHECK: Duration = Duration::from_micros(100);

/// As errors name it.
const GET: &str = "a get_accumulate";

/// An operation of the accumulate family, its operands as bytes.
#[derive(Clone, Copy)]
pub(crate) struct Update<'a> {
    pub(super) what: &'static str,
    pub(super) target: Rank,
    pub(super) disp: u64,
    pub(super) basic: BasicType,
    pub(super) op: Op,
    pub(super) operands: &'a [u8],
}

/// A place in a part that this rank reaches: how the caller named it, and where that is.
#[derive(Clone, Copy)]
pub(super) struct Place<'w> {
    pub(super) target: Rank,
    pub(super) disp: u64,
    /// In bytes from the part's beginning.
    pub(super) offset: u64,
    pub(super) span: Span<'w>,
}

/// A place, and what keeps it there. S-L4
pub(super) enum Reached<'w> {
    InPart(Place<'w>),
    /// Of a dynamic window.
    InRegion {
        region: Region<'w>,
        target: Rank,
        address: u64,
    },
}

impl Reached<'_> {
    fn place(&self) -> Place<'_> {
        match self {
            Self::InPart(place) => *place,
            Self::InRegion { region, target, address } => {
                Place { target: *target, disp: *address, offset: *address, span: region.span() }
            }
        }
    }
}

impl Window {
    #[inline]
    fn near_place<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        len: usize,
    ) -> Result<Option<Reached<'_>>, RmaError> {
        let Some(span) = self.near::<LAZY>(target, disp, len)? else {
            let region = self.reach_region::<LAZY>(target, disp, len)?;
            return Ok(region.map(|region| Reached::InRegion { region, target, address: disp }));
        };
        // There is a span, so the target is in the table and the product does not overflow.
        let unit = self.targets.get(target).map_or(1, |entry| entry.disp_unit());
        let offset = disp.wrapping_mul(u64::from(unit));
        Ok(Some(Reached::InPart(Place { target, disp, offset, span })))
    }

    /// Combines one element and gives what was there, if nothing stands in the way; otherwise
    /// nothing happened.
    #[inline(always)]
    pub(crate) fn combine_one_hot<const LAZY: bool, E: BasicElement>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        operand: E,
    ) -> Option<E> {
        let span = self.near_hot::<LAZY>(target, disp, size_of::<E>())?;
        if E::BASIC.is_atomic() {
            return span.fetch_and_op(op, operand);
        }
        if !op.is_defined_on::<E>() || !span.is_aligned(E::BASIC.align()) {
            return None;
        }
        let entry = self.targets.get(target)?;
        // There is a span, so the product does not overflow.
        let offset = disp.wrapping_mul(u64::from(entry.disp_unit()));
        let _held = stripe::try_one(entry.block()?, offset, self.rank())?;
        Some(accumulate::one_under_lock(span, op, operand))
    }

    /// Combines `origin` into the target's part; captures it. S-H13 S-H16
    pub(crate) fn accumulate<const LAZY: bool, E: BasicElement>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &[E],
    ) -> Result<(), RmaError> {
        let what = "an accumulate";
        if op == Op::NoOp || !op.is_defined_on::<E>() {
            return Err(self.wrong_op_cold::<E>(what, target, op));
        }
        if let Some(place) = self.near_place::<LAZY>(target, disp, size_of_val(origin))? {
            return self.combine(place.place(), op, origin, None);
        }
        let operands = cast_slice(origin);
        self.accumulate_far_cold::<LAZY>(Update {
            what,
            target,
            disp,
            basic: E::BASIC,
            op,
            operands,
        })
    }

    /// As [`accumulate`](Self::accumulate), and copies what was there to `result`.
    pub(crate) fn get_accumulate<const LAZY: bool, E: BasicElement>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &[E],
        result: &mut [E],
    ) -> Result<(), RmaError> {
        self.fetch::<LAZY, E>(GET, target, disp, op, origin, result)
    }

    fn fetch<const LAZY: bool, E: BasicElement>(
        &self,
        what: &'static str,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &[E],
        result: &mut [E],
    ) -> Result<(), RmaError> {
        let far = self.fetch_near::<LAZY, E>(what, target, disp, op, origin, result)?;
        let Some(update) = far else { return Ok(()) };
        let pending = Arc::default();
        let bytes: &mut [u8] = cast_slice_mut(result);
        let buffer = Buffer { at: bytes.as_mut_ptr(), len: bytes.len() };
        // SAFETY: `result` is borrowed until `drain` returns, which is on every way out.
        #[allow(unsafe_code)]
        let started = unsafe { self.start_get_accumulate_cold::<LAZY>(update, buffer, &pending) };
        started.and(self.drain(update.what, target, &pending))
    }

    /// Does it if the target is near; otherwise gives what is to be sent.
    pub(crate) fn get_accumulate_near<'o, const LAZY: bool, E: BasicElement>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &'o [E],
        result: &mut [E],
    ) -> Result<Option<Update<'o>>, RmaError> {
        self.fetch_near::<LAZY, E>(GET, target, disp, op, origin, result)
    }

    fn fetch_near<'o, const LAZY: bool, E: BasicElement>(
        &self,
        what: &'static str,
        target: Rank,
        disp: u64,
        op: Op,
        origin: &'o [E],
        result: &mut [E],
    ) -> Result<Option<Update<'o>>, RmaError> {
        if !op.is_defined_on::<E>() {
            return Err(self.wrong_op_cold::<E>(what, target, op));
        }
        let origin = if op == Op::NoOp { &[] } else { origin };
        if op != Op::NoOp && origin.len() != result.len() {
            let (origin, result) = (origin.len() as u64, result.len() as u64);
            return Err(RmaError::WrongCount { window: self.id(), target, origin, result });
        }
        match self.near_place::<LAZY>(target, disp, size_of_val(result))? {
            Some(place) => self.combine(place.place(), op, origin, Some(result)).map(|()| None),
            None => {
                let operands = cast_slice(origin);
                Ok(Some(Update { what, target, disp, basic: E::BASIC, op, operands }))
            }
        }
    }

    /// As [`get_accumulate`](Self::get_accumulate), for one element; the operand itself comes back
    /// from the null target.
    pub(crate) fn fetch_and_op<const LAZY: bool, E: BasicElement>(
        &self,
        target: Rank,
        disp: u64,
        op: Op,
        operand: E,
    ) -> Result<E, RmaError> {
        let mut old = operand;
        let (origin, result) = (slice::from_ref(&operand), slice::from_mut(&mut old));
        self.fetch::<LAZY, E>("a fetch_and_op", target, disp, op, origin, result)?;
        Ok(old)
    }

    /// Swaps one element if it is `compare`; gives what was there.
    pub(crate) fn compare_and_swap<const LAZY: bool, E: AtomicElement>(
        &self,
        target: Rank,
        disp: u64,
        compare: E,
        swap: E,
    ) -> Result<E, RmaError> {
        match self.near_place::<LAZY>(target, disp, size_of::<E>())? {
            Some(place) => self.swap(place.place(), compare, swap),
            None => {
                let bits = (compare.to_bits(), swap.to_bits());
                let old = self.swap_far_cold::<LAZY>(target, disp, E::BASIC, bits.0, bits.1)?;
                Ok(E::from_bits(old))
            }
        }
    }

    /// Combines at a place that this rank reaches.
    pub(super) fn combine<E: BasicElement>(
        &self,
        place: Place<'_>,
        op: Op,
        operands: &[E],
        mut result: Option<&mut [E]>,
    ) -> Result<(), RmaError> {
        if !place.span.is_aligned(E::BASIC.align()) {
            return Err(self.misaligned_cold(place.target, place.disp, E::BASIC.align()));
        }
        let count = accumulate::count(operands, result.as_deref());
        if E::BASIC.is_atomic() {
            accumulate::by_atomics(place.span, op, operands, result);
            return Ok(());
        }
        let (block, size) = (self.block_of(place.target)?, size_of::<E>());
        let mut at = 0;
        while at < count {
            let first = place.offset + (at * size) as u64;
            // Elements whose first byte lies in the stripe.
            let rest = (STRIPE - first % STRIPE) as usize;
            let end = (at + rest.div_ceil(size)).min(count);
            let Some(span) = place.span.part(at * size, (end - at) * size) else { break };
            let operands = operands.get(at..end).unwrap_or_default();
            let result = result.as_deref_mut().and_then(|result| result.get_mut(at..end));
            let held = self.stripe(block, first)?;
            accumulate::under_lock(span, op, operands, result);
            drop(held);
            at = end;
        }
        Ok(())
    }

    /// Compares and swaps at a place that this rank reaches.
    pub(super) fn swap<E: AtomicElement>(
        &self,
        place: Place<'_>,
        compare: E,
        swap: E,
    ) -> Result<E, RmaError> {
        if !place.span.is_aligned(E::BASIC.align()) {
            return Err(self.misaligned_cold(place.target, place.disp, E::BASIC.align()));
        }
        if let Some(old) = place.span.compare_and_swap(compare, swap) {
            return Ok(old);
        }
        let _held = self.stripe(self.block_of(place.target)?, place.offset)?;
        Ok(accumulate::swap_under_lock(place.span, compare, swap))
    }

    /// The block with the stripes of a part that this rank reaches.
    pub(super) fn block_of(&self, target: Rank) -> Result<Block<'_>, RmaError> {
        if let Some(block) = self.targets.get(target).and_then(|entry| entry.block()) {
            return Ok(block);
        }
        if target == self.rank() {
            return Ok(self.part.block.get());
        }
        self.map_block(target).map_err(|error| self.import_failed(error))
    }

    #[inline]
    pub(super) fn stripe<'b>(&self, block: Block<'b>, offset: u64) -> Result<Held<'b>, RmaError> {
        match stripe::try_one(block, offset, self.rank()) {
            Some(held) => Ok(held),
            None => self.stripe_cold(block, offset),
        }
    }

    #[cold]
    #[inline(never)]
    fn stripe_cold<'b>(&self, block: Block<'b>, offset: u64) -> Result<Held<'b>, RmaError> {
        let holder = |_| {
            let holder = stripe::holder(block, offset)?;
            self.group().world_rank(holder)
        };
        let on = On::Whoever(&holder);
        let wait = Wait { what: "an accumulate", on, recheck: Some(STRIPE_RECHECK) };
        let taken = || stripe::try_one(block, offset, self.rank());
        // wait: stripe
        self.process().wait_until(wait, taken).map_err(|error| self.wait_failed(error))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn wrong_op_cold<E: BasicElement>(
        &self,
        what: &'static str,
        target: Rank,
        op: Op,
    ) -> RmaError {
        RmaError::WrongOp { window: self.id(), target, what, op, element: E::BASIC.name() }
    }
}
