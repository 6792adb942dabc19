//! The accumulate family on targets that only messages reach.
//!
//! Messages may overtake each other, and MPI orders the accumulates of one origin on one element
//! (12.7.1). So an operation waits until the earlier ones of this window that touch some of its
//! bytes are answered, unless the hint `accumulate_ordering` lets it overtake them; others, and the
//! pieces of one operation, go out without waiting. S-H7 S-H8
use super::Window;
use super::accumulate::Update;
use super::choice::Path;
use super::hints::Ordered;
use crate::completion::{Buffer, Pending};
use crate::element::BasicType;
use crate::error::RmaError;
use crate::ops::Op;
use crate::protocol::message::{Head, Kind, Status};
use crate::rank::Rank;
use crate::transport::WorldRank;
use core::ops::Range;
use std::sync::Arc;

/// Where a far operation goes.
struct FarPlace {
    world: WorldRank,
    touched: Touched,
}

/// Accumulates to one target that may not have been answered.
#[derive(Default)]
pub(super) struct Unanswered(Vec<(Touched, Arc<Pending>)>);

/// Which bytes an accumulate touches, counted from the part's beginning, and how.
pub(super) struct Touched {
    pub(super) bytes: Range<u64>,
    pub(super) how: Ordered,
}

impl Unanswered {
    pub(super) fn add(&mut self, touched: Touched, pending: &Arc<Pending>) {
        let mut failures = 0;
        // A failure stays until a flush has reported it; one will do.
        self.0.retain(|(_, pending)| {
            let failed = pending.is_done() && pending.status() != Status::Ok;
            failures += usize::from(failed);
            !pending.is_done() || (failed && failures == 1)
        });
        self.0.push((touched, pending.clone()));
    }

    /// Those that touch some of these bytes and must not be overtaken.
    pub(super) fn before(&self, next: &Touched, ordering: u32) -> Vec<Arc<Pending>> {
        let bytes = &next.bytes;
        let touches = |other: &Range<u64>| other.start < bytes.end && bytes.start < other.end;
        let before = |earlier: &Touched| {
            touches(&earlier.bytes) && !next.how.may_overtake(earlier.how, ordering)
        };
        let all = self.0.iter().filter(|(earlier, pending)| before(earlier) && !pending.is_done());
        all.map(|(_, pending)| pending.clone()).collect()
    }

    /// Everything, for a flush. What has no answer yet is still kept here, for the order.
    pub(super) fn flush(&mut self) -> Vec<Arc<Pending>> {
        let all = self.0.iter().map(|(_, pending)| pending.clone()).collect();
        self.0.retain(|(_, pending)| !pending.is_done());
        all
    }

    pub(super) fn is_idle(&self) -> bool {
        self.0.iter().all(|(_, pending)| pending.is_done())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Window {
    /// Finds the place of `len` bytes; `None` for the null target. Waits for the operations that
    /// come before.
    fn far_place<const LAZY: bool>(
        &self,
        update: Update<'_>,
        len: usize,
        how: Ordered,
    ) -> Result<Option<FarPlace>, RmaError> {
        let Update { what, target, disp, basic, .. } = update;
        let Some(world) = self.far_target::<LAZY>(target)? else { return Ok(None) };
        self.counts.add(Path::Messages);
        let offset = self.far_offset(target, world, disp, len)?;
        if !offset.is_multiple_of(basic.align() as u64) {
            return Err(self.misaligned_cold(target, disp, basic.align()));
        }
        let touched = Touched { bytes: offset..offset + len as u64, how };
        self.wait_for_earlier(what, target, &touched)?;
        Ok(Some(FarPlace { world, touched }))
    }

    /// Waits for the accumulates that must not be overtaken.
    pub(super) fn wait_for_earlier(
        &self,
        what: &'static str,
        target: Rank,
        touched: &Touched,
    ) -> Result<(), RmaError> {
        let ordering = self.settings.hints.ordering();
        let wait = self.wait_for(what, target);
        for earlier in self.far.accumulates_before(target, touched, ordering) {
            let answered = || earlier.is_done().then_some(());
            // wait: order
            let answered = self.process().wait_until(wait, answered);
            answered.map_err(|error| self.wait_failed(error))?;
        }
        Ok(())
    }

    /// Bytes of payload in a message, as whole elements.
    fn fragment(&self, basic: BasicType) -> usize {
        let width = basic.width();
        (self.process().body_max() / width).max(1) * width
    }

    #[cold]
    #[inline(never)]
    pub(super) fn accumulate_far_cold<const LAZY: bool>(
        &self,
        update: Update<'_>,
    ) -> Result<(), RmaError> {
        let place = self.far_place::<LAZY>(update, update.operands.len(), Ordered::Write)?;
        let Some(place) = place else { return Ok(()) };
        let pending = Arc::default();
        let sent = self.send_accumulate(update, &place, &pending);
        self.far.add_accumulate(update.target, place.touched, &pending);
        sent
    }

    fn send_accumulate(
        &self,
        update: Update<'_>,
        place: &FarPlace,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let mut head = Head::new(Kind::Accumulate, self.id().0, 0);
        (head.op, head.basic) = (update.op as u8, update.basic.to_wire());
        let wait = self.wait_for(update.what, update.target);
        let mut offset = place.touched.bytes.start;
        for piece in update.operands.chunks(self.fragment(update.basic)) {
            head.offset = offset.into();
            head.length = (piece.len() as u64).into();
            // SAFETY: no buffer.
            #[allow(unsafe_code)]
            unsafe { self.issue(wait, place.world, head, piece, Buffer::NONE, pending) }?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Sends an update; what was there will be in `result` when `pending` is done. Must be
    /// followed by [`drain`](Self::drain), in success and failure.
    ///
    /// # Safety
    ///
    /// As [`Slots::start`](crate::completion::Slots::start).
    #[cold]
    #[inline(never)]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn start_get_accumulate_cold<const LAZY: bool>(
        &self,
        update: Update<'_>,
        result: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let how = if update.op == Op::NoOp { Ordered::Read } else { Ordered::Update };
        let place = self.far_place::<LAZY>(update, result.len, how)?;
        let Some(place) = place else { return Ok(()) };
        // SAFETY: forwarded to the caller.
        let sent = unsafe { self.send_get_accumulate(update, &place, result, pending) };
        self.far.add_accumulate(update.target, place.touched, pending);
        sent
    }

    /// # Safety
    ///
    /// As [`Slots::start`](crate::completion::Slots::start).
    #[allow(unsafe_code)]
    unsafe fn send_get_accumulate(
        &self,
        update: Update<'_>,
        place: &FarPlace,
        result: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let fragment = self.fragment(update.basic);
        let mut head = Head::new(Kind::GetAccumulate, self.id().0, 0);
        (head.op, head.basic) = (update.op as u8, update.basic.to_wire());
        for start in (0..result.len).step_by(fragment) {
            let len = fragment.min(result.len - start);
            let buffer = Buffer { at: result.at.wrapping_add(start), len };
            head.offset = (place.touched.bytes.start + start as u64).into();
            head.length = (len as u64).into();
            // Nothing for no_op.
            let operands = update.operands.get(start..start + len).unwrap_or_default();
            let wait = self.wait_for(update.what, update.target);
            // SAFETY: a part of the buffer that the caller vouches for.
            unsafe { self.issue(wait, place.world, head, operands, buffer, pending) }?;
        }
        Ok(())
    }

    /// Compares and swaps; values and result are bits, zero-extended. `compare` is what comes from
    /// the null target.
    #[cold]
    #[inline(never)]
    pub(super) fn swap_far_cold<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        basic: BasicType,
        compare: u64,
        swap: u64,
    ) -> Result<u64, RmaError> {
        let (what, op) = ("a compare_and_swap", Op::Replace);
        let update = Update { what, target, disp, basic, op, operands: &[] };
        let place = self.far_place::<LAZY>(update, basic.width(), Ordered::Update)?;
        let Some(place) = place else { return Ok(compare) };
        let mut head = Head::new(Kind::CompareSwap, self.id().0, 0);
        head.basic = basic.to_wire();
        head.offset = place.touched.bytes.start.into();
        let body = [compare.to_le_bytes(), swap.to_le_bytes()].concat();
        self.ask(what, target, place.world, head, &body)
    }
}
