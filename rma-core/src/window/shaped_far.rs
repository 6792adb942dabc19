//! Put and get with layouts, by messages: the target's bytes travel as rows, this rank's own are
//! packed and unpacked here. S-J1
#![allow(unsafe_code)]

use super::Window;
use super::choice::Path;
use crate::completion::{Buffer, Pending};
use crate::error::RmaError;
use crate::ops::layout::{Cursor, Shape, pack, unpack};
use crate::protocol::message::{Head, Kind};
use crate::protocol::rows::WireRow;
use crate::rank::Rank;
use crate::transport::WorldRank;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes that one get, or all gets of a scope, keep packed at a time.
pub(crate) const BOUNCE_BYTES: u64 = 1 << 20;

/// A shape at its place in the part of a far target.
#[derive(Clone, Copy)]
pub(crate) struct Placed<'s> {
    pub(super) target: Rank,
    pub(super) world: WorldRank,
    pub(super) shape: Shape<'s>,
}

/// What one message may hold.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Bytes of payload.
    pub(super) body: usize,
    /// Bytes that its rows describe.
    pub(super) bytes: u64,
    /// Whether these travel in it.
    pub(super) carried: bool,
    /// Elements of this width stay whole.
    pub(super) width: u64,
}

/// The rows of one message.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) rows: Vec<WireRow>,
    /// Bytes that they describe.
    pub(super) bytes: u64,
}

impl Batch {
    /// The next bytes of a layout, as many as there is room for.
    pub(super) fn take(cursor: &mut Cursor<'_>, room: Room) -> Self {
        let mut batch = Self::default();
        loop {
            let rows = (batch.rows.len() as u64 + 1) * WireRow::LEN as u64;
            // There is room for one row, whatever a transport's messages hold.
            let body = (room.body as u64).max(WireRow::LEN as u64 + WIDTH_MAX);
            let limit = match body.checked_sub(rows) {
                None => 0,
                Some(_) if !room.carried => room.bytes - batch.bytes,
                Some(left) => left.saturating_sub(batch.bytes).min(room.bytes - batch.bytes),
            };
            let Some(row) = cursor.take(limit - limit % room.width) else { return batch };
            batch.bytes += row.len * row.count;
            batch.rows.push(WireRow::new(row).expect("cut to the size of a message"));
        }
    }

    /// The body of a message: the rows, and behind them their bytes, the next of `source`.
    pub(super) fn body(&self, source: &mut Cursor<'_>, origin: &[u8]) -> Vec<u8> {
        let mut body = self.rows.as_bytes().to_vec();
        let rows = body.len();
        body.resize(rows + self.bytes as usize, 0);
        pack(source, origin, &mut body[rows..]);
        body
    }
}

/// Bytes of the widest element that is not cut.
const WIDTH_MAX: u64 = 16;

impl Window {
    /// `None` for the null target.
    pub(crate) fn place_far<'s, const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        shape: Shape<'s>,
    ) -> Result<Option<Placed<'s>>, RmaError> {
        let Some(world) = self.far_target::<LAZY>(target)? else { return Ok(None) };
        self.counts.add(Path::Messages);
        let (size, disp_unit) = self.part_of(target, world)?;
        let shape = self.place_shape(target, disp, disp_unit, size, shape)?;
        Ok(Some(Placed { target, world, shape }))
    }

    /// The shapes were checked against each other and the origin.
    #[cold]
    #[inline(never)]
    pub(super) fn put_shaped_far_cold<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        to: Shape<'_>,
        origin: &[u8],
        from: Shape<'_>,
    ) -> Result<(), RmaError> {
        let Some(to) = self.place_far::<LAZY>(target, disp, to)? else { return Ok(()) };
        let bytes = to.shape.bytes().unwrap_or(0);
        if bytes == 0 {
            return Ok(());
        }
        let (what, process) = ("a put", self.process());
        let (wait, pending) = (self.wait_for(what, target), self.far.puts(target));
        let mut head = Head::new(Kind::PutRows, self.id().0, 0);
        let room = Room { body: process.body_max(), bytes, carried: true, width: 1 };
        let (mut sink, mut source) = (Cursor::new(to.shape), Cursor::new(from));
        loop {
            let batch = Batch::take(&mut sink, room);
            if batch.bytes == 0 {
                return Ok(());
            }
            head.tag = (batch.rows.len() as u32).into();
            head.length = batch.bytes.into();
            let body = batch.body(&mut source, origin);
            // SAFETY: no buffer.
            unsafe { self.issue(wait, to.world, head, &body, Buffer::NONE, &pending) }?;
        }
    }

    /// The shapes were checked against each other and the origin.
    #[cold]
    #[inline(never)]
    pub(crate) fn get_shaped_far_cold<const LAZY: bool>(
        &self,
        target: Rank,
        disp: u64,
        from: Shape<'_>,
        origin: &mut [u8],
        to: Shape<'_>,
    ) -> Result<(), RmaError> {
        let Some(from) = self.place_far::<LAZY>(target, disp, from)? else { return Ok(()) };
        let (mut source, mut sink) = (Cursor::new(from.shape), Cursor::new(to));
        let mut left = from.shape.bytes().unwrap_or(0);
        while left > 0 {
            let mut packed = vec![0; left.min(BOUNCE_BYTES) as usize];
            let pending = Arc::default();
            let buffer = Buffer { at: packed.as_mut_ptr(), len: packed.len() };
            // SAFETY: `packed` is not touched before `drain` returns, which is on every way out.
            let asked = unsafe { self.ask_rows(from, &mut source, buffer, &pending) };
            asked.and(self.drain("a get", target, &pending))?;
            unpack(&mut sink, &packed, origin);
            left -= packed.len() as u64;
        }
        Ok(())
    }

    /// Asks for all bytes of a shape, which will be in `buffer`, packed, when `pending` is done.
    ///
    /// # Safety
    ///
    /// As [`Slots::start`](crate::completion::Slots::start).
    pub(crate) unsafe fn start_get_shaped_far(
        &self,
        from: Placed<'_>,
        buffer: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        // SAFETY: forwarded to the caller.
        unsafe { self.ask_rows(from, &mut Cursor::new(from.shape), buffer, pending) }
    }

    /// Asks for the next bytes of a shape, as many as `buffer` holds.
    ///
    /// # Safety
    ///
    /// As [`Slots::start`](crate::completion::Slots::start).
    unsafe fn ask_rows(
        &self,
        Placed { target, world, .. }: Placed<'_>,
        source: &mut Cursor<'_>,
        buffer: Buffer,
        pending: &Arc<Pending>,
    ) -> Result<(), RmaError> {
        let (what, process) = ("a get", self.process());
        let mut done = 0;
        while done < buffer.len {
            // The answer is one message.
            let most = process.body_max().min(buffer.len - done) as u64;
            let room = Room { body: process.body_max(), bytes: most, carried: false, width: 1 };
            let Batch { rows, bytes } = Batch::take(source, room);
            if bytes == 0 {
                return Ok(());
            }
            let piece = Buffer { at: buffer.at.wrapping_add(done), len: bytes as usize };
            let mut head = Head::new(Kind::GetRows, self.id().0, rows.len() as u32);
            head.length = bytes.into();
            let wait = self.wait_for(what, target);
            // SAFETY: a part of the buffer that the caller vouches for.
            unsafe { self.issue(wait, world, head, rows.as_bytes(), piece, pending) }?;
            done += bytes as usize;
        }
        Ok(())
    }
}
