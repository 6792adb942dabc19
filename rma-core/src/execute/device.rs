//! Operations by a device, which moves the bytes without the target. Small puts are injected,
//! others go through memory of the transfer or, if that is worth it, directly.
#![allow(unsafe_code)]

use super::sending::Sending;
use super::{BOUNCE_BYTES, Left};
use crate::engine::{Buffer, Lost, Pending, Queue, UnderWay, Wait, What};
use crate::error::{RmaError, Shortage};
use crate::layout::pack;
use crate::memory::target::Permit;
use crate::operation::{Action, Operation, Side, Sink};
use crate::rank::{Rank, WorldRank};
use crate::transport::{
    Count, DeviceError, PostError, Purpose, Remote, RemoteLimits, There, Transfer,
};
use crate::window::{DeviceRoute, Drain, Unflushed, Window, atomic_of};
use std::borrow::Cow;
use std::sync::Arc;

/// The transfers of one operation.
struct Posting<'w> {
    window: &'w Window,
    route: &'w DeviceRoute,
    limits: RemoteLimits,
    queue: &'w Queue,
    operation: &'w Operation<'w>,
    pending: &'w Arc<Pending>,
    /// Of puts whose bytes the device reads where their caller has them, if there may be any.
    direct: Option<&'w Arc<Pending>>,
}

impl<'a> Sending<'_, 'a> {
    /// Posts transfers of the next `bytes` of the operation; what comes back goes to `result`, if
    /// that has room.
    ///
    /// # Safety
    ///
    /// As [`Outstanding::start`](crate::engine::Outstanding::start).
    pub(super) unsafe fn send_by_device(
        &mut self,
        (remote, route): (&dyn Remote, &DeviceRoute),
        bytes: u64,
        result: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let (window, operation) = (self.window, self.operation);
        // SAFETY: forwarded to the caller; what is direct is waited for.
        let post = |posting: &Posting<'_>| unsafe { self.post_all(posting, bytes, result) };
        window.by_device((remote, route), operation, bytes, pending, post)
    }

    /// # Safety
    ///
    /// As [`send_by_device`](Self::send_by_device), and the caller waits for what is direct.
    unsafe fn post_all(
        &mut self,
        posting: &Posting<'_>,
        bytes: u64,
        result: Buffer,
    ) -> Result<(), RmaError> {
        let action = posting.operation.action;
        let width = action.basic().map_or(1, |basic| basic.width()) as u64;
        // What is copied first takes memory.
        let dense = matches!(self.operation.from, Side::Bytes { .. });
        let moves = matches!(action, Action::Put | Action::Get);
        // What does not wait is one transfer, of no more than the device copies itself.
        let whole = dense && moves || self.operation.tries;
        let bounced = if whole { u64::MAX } else { BOUNCE_BYTES };
        let RemoteLimits { transfer_max, atomic_max, .. } = posting.limits;
        let taken = if moves { transfer_max } else { atomic_max };
        let mut done = 0;
        while done < bytes {
            let most = taken.min(bounced).min(bytes - done);
            let Some(row) = self.there.next_row((most / width).max(1) * width) else { break };
            for at in row.starts() {
                let len = row.len as usize;
                let data = self.data(len);
                let into = match result.len {
                    0 => Buffer::NONE,
                    _ => Buffer { at: result.at.wrapping_add(done as usize), len },
                };
                // `route` has seen that it lies in the part.
                let there = posting.there(at.cast_unsigned());
                // SAFETY: a part of the buffer that the caller vouches for, and bytes of the
                // operation, which the caller waits for.
                unsafe { posting.post(&there, len, data, into) }?;
                done += row.len;
            }
        }
        Ok(())
    }

    /// What goes along with the next `len` bytes at the target.
    fn data(&mut self, len: usize) -> Cow<'a, [u8]> {
        let Operation { action, origin, .. } = *self.operation;
        match action {
            // Two values for one.
            Action::Swap { .. } => origin.into(),
            action if !action.carries() => Cow::default(),
            _ => match self.from.take_solid(len as u64) {
                Some(at) => origin[at as usize..][..len].into(),
                None => {
                    let mut packed = vec![0; len];
                    pack(&mut self.from, origin, &mut packed);
                    packed.into()
                }
            },
        }
    }
}

impl Posting<'_> {
    /// Those bytes of the target's part.
    fn there(&self, at: u64) -> There {
        let DeviceRoute { world, key, begin, .. } = *self.route;
        There { peer: world, key, at: begin.wrapping_add(at) }
    }

    /// Posts one transfer of `len` bytes at the target. S-G1
    ///
    /// # Safety
    ///
    /// As [`Outstanding::start`](crate::engine::Outstanding::start), of `into`. Bytes that are
    /// borrowed stay until `self.direct` is done or cancelled.
    unsafe fn post(
        &self,
        there: &There,
        len: usize,
        data: Cow<'_, [u8]>,
        into: Buffer,
    ) -> Result<(), RmaError> {
        let bounces = len <= self.limits.bounce;
        let (mut bounce, mut what, mut pending) = (Vec::new(), What::Bounced, self.pending);
        let (fetched, transfer) = match self.operation.action {
            Action::Put if len <= self.limits.inject => {
                (Buffer::NONE, Transfer::Put { from: data.as_ptr(), len })
            }
            Action::Put if bounces || matches!(data, Cow::Owned(_)) => {
                bounce = data.into_owned();
                (Buffer::NONE, Transfer::Put { from: bounce.as_ptr(), len })
            }
            Action::Put => {
                let direct = self.direct.expect("larger than what bounces");
                (what, pending) = (What::Direct, direct);
                (Buffer::NONE, Transfer::Put { from: data.as_ptr(), len })
            }
            Action::Get if bounces => {
                bounce = vec![0; len];
                (into, Transfer::Get { into: bounce.as_mut_ptr(), len })
            }
            Action::Get => {
                what = What::Direct;
                (Buffer::NONE, Transfer::Get { into: into.at, len })
            }
            Action::Combine { .. } | Action::Swap { .. } => {
                let operands = data.len();
                bounce = data.into_owned();
                bounce.resize(operands + into.len, 0);
                (into, self.atomic(len, &mut bounce, operands))
            }
        };
        let pending = Some(pending.clone());
        let (peer, at) = (there.peer, Some(there.at.wrapping_sub(self.route.begin)));
        let under_way = UnderWay { peer, pending, bounce, at, into: fetched, what };
        // SAFETY: forwarded to the caller: what is not the caller's is in `bounce`.
        unsafe { self.post_when_there_is_room(under_way, &transfer, there) }
    }

    /// What is done to `len` bytes of elements, whose operands are in the first bytes of `bounce`;
    /// what was there goes behind them.
    fn atomic(&self, len: usize, bounce: &mut [u8], operands: usize) -> Transfer {
        let (atomic, basic) = atomic_of(self.operation.action).expect("of the accumulate family");
        let null = core::ptr::null_mut();
        let (first, rest) = bounce.split_at_mut(operands);
        Transfer::Atomic {
            atomic,
            count: len / basic.width(),
            operands: if first.is_empty() { null } else { first.as_mut_ptr() },
            fetched: if rest.is_empty() { null } else { rest.as_mut_ptr() },
        }
    }

    /// # Safety
    ///
    /// As [`Queue::post`].
    unsafe fn post_when_there_is_room(
        &self,
        under_way: UnderWay,
        transfer: &Transfer,
        there: &There,
    ) -> Result<(), RmaError> {
        let window = self.window;
        let (peer, at) = (under_way.peer, under_way.at);
        let mut under_way = Some(under_way);
        // Again and again while too many are under way. S-G2
        let mut post = || {
            // SAFETY: forwarded to the caller.
            match unsafe { self.queue.post(&mut under_way, transfer, there) } {
                Ok(()) => Some(Ok(())),
                Err(PostError::Again) => None,
                Err(PostError::Device(error)) => Some(Err(error)),
            }
        };
        let Operation { what, target, tries, .. } = *self.operation;
        let wait = window.wait_for(what, target);
        let posted = if tries {
            window.try_for(self.operation, wait, Shortage::Transfers, &mut post)?
        } else {
            // wait: transfer
            let posted = window.engine().wait_until(wait, &mut post);
            posted.map_err(|error| window.wait_failed(error))?
        };
        let failed = |error| window.transfer_failed(target, Lost { error, peer, at });
        posted.map_err(failed)?;
        window.engine().counters.add(Count::Transfers, 1);
        Ok(())
    }
}

impl Window {
    /// Puts bytes that lie one behind the other on either side, and are one transfer.
    pub(super) fn put_by_device(
        &self,
        (remote, route): (&dyn Remote, &DeviceRoute),
        operation: &Operation<'_>,
        (at, data): (u64, &[u8]),
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let post = |posting: &Posting<'_>| {
            // SAFETY: no buffer; the bytes are borrowed until what is direct was waited for.
            unsafe { posting.post(&posting.there(at), data.len(), data.into(), Buffer::NONE) }
        };
        self.by_device((remote, route), operation, data.len() as u64, pending, post)
    }

    /// Has `post` post transfers of so many bytes of an operation, and waits for what is direct.
    fn by_device(
        &self,
        (remote, route): (&dyn Remote, &DeviceRoute),
        operation: &Operation<'_>,
        bytes: u64,
        pending: &Arc<Pending>,
        post: impl FnOnce(&Posting<'_>) -> Result<(), RmaError>,
    ) -> Result<(), RmaError> {
        let Operation { what, target, action, tries, .. } = *operation;
        let purpose = if self.part.regions.is_some() { Purpose::Regions } else { Purpose::Parts };
        let queue = self.engine().queues.mine(remote, purpose);
        let queue = queue.map_err(|error| self.device_failed(target, error))?;
        let limits = remote.limits_to(route.world);
        // Waits on every way out: these bytes are the caller's again then.
        let may_be_direct = action == Action::Put && bytes > limits.bounce as u64;
        let drain = may_be_direct.then(|| Drain::new(self, what, target));
        let direct = drain.as_ref().map(|drain| &drain.pending);
        let before = queue.losses(route.world);
        let posted =
            post(&Posting { window: self, route, limits, queue, operation, pending, direct });
        let finished = drain.as_ref().map_or(Ok(()), Drain::finish);
        if action == Action::Put && (posted.is_ok() || !tries) {
            // Whatever was posted: a flush makes sure that it is at its place.
            // Of what was cut off because this call gave up, it tells itself.
            let losses = if finished.is_ok() { before } else { queue.losses(route.world) };
            self.far.add_unflushed(target, (queue.bit, losses), pending, route.start);
        }
        posted.and(finished)
    }

    /// Waits until all that this rank's device has put at a target is there.
    pub(crate) fn flush_device(&self, target: Rank) -> Result<(), RmaError> {
        if self.remote().is_none() {
            return Ok(());
        }
        let wait = self.wait_for("a flush", target);
        let mut flushing = loop {
            match self.begin_flush(target) {
                Ok(None) => return Ok(()),
                Ok(Some(flushing)) => break flushing,
                // What the other thread cannot make sure of, this one tries again.
                Err(over) => {
                    // wait: flush of another thread
                    let over = self.engine().wait_until(wait, || over.is_done().then_some(()));
                    over.map_err(|error| self.wait_failed(error))?;
                }
            }
        };
        let posted = Arc::default();
        let world = self.part.comm.world_rank(target);
        let queues = flushing.unflushed.iter().fold(0, |bits, it| bits | it.queue);
        let begun = self.post_flushes(wait, (target, world), queues, &posted);
        let flushed = self.drain("a flush", target, &posted).and(begun);
        if !matches!(flushed, Ok(()) | Err(RmaError::Device { .. })) {
            // The next flush tries again.
            return flushed;
        }
        let (mut refusal, mut any_lost) = (None, false);
        for Unflushed { queue, losses, puts, places } in flushing.unflushed.drain(..) {
            let mut queues = self.engine().queues.with(queue);
            let lost = queues.find_map(|queue| queue.lost_since(world, losses));
            let Some(error) = lost else { continue };
            let mut at = None;
            if error.may_be_refusal() && self.part.regions.is_some() {
                // The device does not say which put that was, nor of which window.
                let refused = |at| Some((at, self.refusal_at(target, world, at)?));
                if let Some((place, why)) = places.iter().find_map(refused) {
                    (at, refusal) = (Some(place), refusal.or(Some(why)));
                } else if error == DeviceError::Refused {
                    // What is refused takes nothing else with it.
                    continue;
                }
            }
            any_lost = true;
            // Each thread that put something hears it from a flush of its own.
            puts.fail_by_device(Lost { error, peer: world, at });
            // As no thread waits for puts that are complete, it may be here only.
            self.far.add_get(target, &puts);
        }
        match (refusal, flushed) {
            (Some(why), _) => Err(why),
            (None, Err(RmaError::Device { error: DeviceError::Refused, .. })) if !any_lost => {
                Ok(())
            }
            (None, flushed) => flushed,
        }
    }

    /// Whether the device refuses a region of a target: the error, if so. A region has one key as
    /// long as it is attached, so what reads a byte there now was not refused before.
    fn refusal_at(&self, target: Rank, world: WorldRank, address: u64) -> Option<RmaError> {
        let gone = self.is_gone(target, address);
        gone.or_else(|| match self.device_route((target, world), (address, 1), None) {
            Ok(Some(route)) => self.read_by_device(target, &route, address).err(),
            Ok(None) => Some(self.device_failed(target, DeviceError::Refused)),
            Err(error) => Some(error),
        })
    }

    /// Has the device read one byte of a region.
    fn read_by_device(
        &self,
        target: Rank,
        route: &DeviceRoute,
        address: u64,
    ) -> Result<(), RmaError> {
        let there = Side::Bytes { at: address, len: 1 };
        let (action, permit, from) = (Action::Get, Permit::All, Side::dense(0));
        let (what, disp, origin, tries) = ("a flush", 0, &[][..], false);
        let get = Operation { what, action, permit, target, disp, there, origin, from, tries };
        let left = Left { world: route.world, device: Some(*route), there };
        self.fetch_left(&get, left, Sink::new(&mut [0]))
    }

    /// Has each of those queues flush a target. An error of a device does not keep others from it.
    fn post_flushes(
        &self,
        wait: Wait<'_>,
        (target, world): (Rank, WorldRank),
        queues: u32,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let mut first = Ok(());
        for queue in self.engine().queues.with(queues) {
            let mut post = || match queue.flush(world, pending) {
                Ok(()) => Some(Ok(())),
                Err(PostError::Again) => None,
                Err(PostError::Device(error)) => Some(Err(error)),
            };
            // wait: flush of transfers
            let posted = self.engine().wait_until(wait, &mut post);
            let posted = posted.map_err(|error| self.wait_failed(error))?;
            first = first.and(posted.map_err(|error| self.device_failed(target, error)));
        }
        first
    }
}
