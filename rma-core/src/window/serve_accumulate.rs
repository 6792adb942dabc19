//! The target's side of the accumulate family. S-H15
//!
//! A handler cannot wait. A message whose stripe somebody holds is put off, and taken up again by
//! the next progress of this rank. That reorders nothing that MPI orders: an origin does not send
//! an operation before the earlier ones on the same bytes are answered.
use super::Part;
use crate::completion::Cause;
use crate::element::{AtomicElement, BasicElement, BasicType, Bool, Visitor};
use crate::memory::target::Span;
use crate::memory::{accumulate, stripe};
use crate::ops::Op;
use crate::protocol::credit::Credit;
use crate::protocol::message::{Head, Kind, Status};
use crate::transport::WorldRank;
use crate::universe::Process;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Messages that were put off. Bounded by the credit of the origins.
#[derive(Default)]
pub(crate) struct Deferred {
    queue: Mutex<VecDeque<Message>>,
    kept: Mutex<Credit>,
    /// Those in the queue, and those that some thread is just trying again.
    count: AtomicUsize,
}

struct Message {
    from: WorldRank,
    kind: Kind,
    head: Head,
    body: Vec<u8>,
}

impl Deferred {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Message>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Credit> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a thread that goes to sleep must look again by itself.
    pub(crate) fn is_empty(&self) -> bool {
        // Who makes it 1 from 0 does so within `poll`, and rings this rank afterwards.
        self.count.load(Relaxed) == 0
    }
}

/// What became of a message.
enum Served {
    /// Answered; false if it made no sense.
    Done(bool),
    /// A stripe is held by somebody.
    Busy,
}

impl Process {
    /// Does what a peer asks, or puts it off; false if it makes no sense.
    pub(super) fn serve_accumulate(
        &self,
        from: WorldRank,
        kind: Kind,
        head: &Head,
        body: &[u8],
    ) -> bool {
        match self.try_accumulate(from, kind, head, body) {
            Served::Done(sense) => sense,
            // No honest peer has so many unanswered.
            Served::Busy if !self.deferred.kept().take(from) => false,
            Served::Busy => {
                self.deferred.count.fetch_add(1, Relaxed);
                let message = Message { from, kind, head: *head, body: body.to_vec() };
                self.deferred.queue().push_back(message);
                true
            }
        }
    }

    /// Tries again what was put off; returns how much of it is done.
    pub(crate) fn retry_deferred(&self) -> usize {
        if self.deferred.is_empty() {
            return 0;
        }
        let mut done = 0;
        let waiting = self.deferred.queue().len();
        for _ in 0..waiting {
            // One at a time, so that no lock is held while sending a reply.
            let Some(message) = self.deferred.queue().pop_front() else { break };
            let Message { from, kind, head, body } = &message;
            let busy = matches!(self.try_accumulate(*from, *kind, head, body), Served::Busy);
            if busy && !self.is_stuck(head.object.get()) {
                self.deferred.queue().push_back(message);
                continue;
            }
            if let (true, Some(kind)) = (busy, kind.answer()) {
                self.reply(*from, &head.reply(kind, Status::Freed), &[]);
            }
            self.deferred.kept().give_back(*from);
            self.deferred.count.fetch_sub(1, Relaxed);
            done += 1;
        }
        done
    }

    /// Whether a stripe of a part will never be given back, because who held it has left. That
    /// somebody died with one is told to all, which ends the wait of the origin.
    fn is_stuck(&self, window: u64) -> bool {
        let Some(part) = self.windows.get(window) else { return false };
        let holders = stripe::holders(part.block.get());
        let gone = |holder| self.gone(part.comm.group().world_rank(holder)?);
        holders.filter_map(gone).any(|cause| matches!(cause, Cause::PeerLeft(_)))
    }

    fn try_accumulate(&self, from: WorldRank, kind: Kind, head: &Head, body: &[u8]) -> Served {
        let answer = match self.windows.get(head.object.get()) {
            None => Err(Status::Freed),
            Some(part) => match part.accumulate(kind, head, body, self.body_max()) {
                Ok(None) => return Served::Busy,
                Ok(Some(answer)) => Ok(answer),
                Err(status) => Err(status),
            },
        };
        let status = answer.as_ref().err().copied().unwrap_or(Status::Ok);
        let Some(kind) = kind.answer() else { return Served::Done(false) };
        let (mut reply, mut bytes) = (head.reply(kind, status), Vec::new());
        match answer {
            Ok(Answer::Value(value)) => reply.offset = value.into(),
            Ok(Answer::Bytes(result)) => {
                // In the origin's buffer, not in the window.
                reply.offset = 0.into();
                bytes = result;
            }
            Ok(Answer::Done) | Err(_) => {}
        }
        self.reply(from, &reply, &bytes);
        Served::Done(status != Status::Malformed)
    }
}

/// What goes back to the origin.
pub(super) enum Answer {
    Done,
    Value(u64),
    Bytes(Vec<u8>),
}

impl Part {
    /// Does what a message asks. `None` if a stripe is held by somebody: nothing happened then.
    pub(super) fn accumulate(
        &self,
        kind: Kind,
        head: &Head,
        body: &[u8],
        body_max: usize,
    ) -> Result<Option<Answer>, Status> {
        if matches!(kind, Kind::AccumulateRows | Kind::GetAccumulateRows) {
            return self.accumulate_rows(kind, head, body, body_max);
        }
        let basic = BasicType::from_wire(head.basic).ok_or(Status::Malformed)?;
        let (offset, width) = (head.offset.get(), basic.width());
        let len = if kind == Kind::CompareSwap { width as u64 } else { head.length.get() };
        // The answer to a get_accumulate fits into one message, as its operands did.
        let len = usize::try_from(len).ok().filter(|len| *len <= body_max.max(width));
        let len = len.filter(|len| *len > 0 && len.is_multiple_of(width));
        let len = len.ok_or(Status::Malformed)?;
        let held = self.span(offset, len).ok_or(Status::OutOfRange)?;
        let span = held.get();
        let work = Work::parse(kind, head, body, len, basic)?;
        if !span.is_aligned(basic.align()) {
            return Err(Status::Malformed);
        }
        let _held = if basic.is_atomic() {
            None
        } else {
            let block = self.block.get();
            match stripe::try_range(block, offset, len as u64, self.comm.rank()) {
                None => return Ok(None),
                held => held,
            }
        };
        Ok(Some(work.perform(span, basic)?))
    }
}

/// A request that makes sense.
enum Work<'m> {
    /// The operands are empty if there are none; `result` is a number of bytes, 0 if nobody wants
    /// to know.
    Combine {
        op: Op,
        operands: &'m [u8],
        result: usize,
    },
    Swap {
        compare: u64,
        swap: u64,
    },
}

impl<'m> Work<'m> {
    fn parse(
        kind: Kind,
        head: &Head,
        body: &'m [u8],
        len: usize,
        basic: BasicType,
    ) -> Result<Self, Status> {
        if kind == Kind::CompareSwap {
            let (values, rest) = body.as_chunks::<8>();
            return match (values, rest) {
                ([compare, swap], []) => {
                    let (compare, swap) = (u64::from_le_bytes(*compare), u64::from_le_bytes(*swap));
                    Ok(Self::Swap { compare, swap })
                }
                _ => Err(Status::Malformed),
            };
        }
        let op = Op::from_wire(head.op).filter(|op| basic.has(*op)).ok_or(Status::Malformed)?;
        let fetches = kind == Kind::GetAccumulate;
        let expected = if op == Op::NoOp { 0 } else { len };
        if body.len() != expected || (op == Op::NoOp && !fetches) {
            return Err(Status::Malformed);
        }
        Ok(Self::Combine { op, operands: body, result: if fetches { len } else { 0 } })
    }

    /// The span is aligned, and its stripes are held if the type needs that.
    fn perform(self, span: Span<'_>, basic: BasicType) -> Result<Answer, Status> {
        match self {
            Self::Combine { op, operands, result } => {
                let combine = Combine { span, op, operands, result };
                let bytes = basic.visit(combine).ok_or(Status::Malformed)?;
                Ok(if result == 0 { Answer::Done } else { Answer::Bytes(bytes) })
            }
            Self::Swap { compare, swap } => {
                let old = swap_bits(basic, span, compare, swap).ok_or(Status::Malformed)?;
                Ok(Answer::Value(old))
            }
        }
    }
}

struct Combine<'a> {
    span: Span<'a>,
    op: Op,
    operands: &'a [u8],
    result: usize,
}

impl Visitor for Combine<'_> {
    type Output = Vec<u8>;

    fn visit<E: BasicElement>(self) -> Vec<u8> {
        let operands: Vec<E> = bytemuck::pod_collect_to_vec(self.operands);
        let mut old = vec![E::zeroed(); self.result / size_of::<E>()];
        let result = (self.result > 0).then_some(&mut old[..]);
        if E::BASIC.is_atomic() {
            accumulate::by_atomics(self.span, self.op, &operands, result);
        } else {
            accumulate::under_lock(self.span, self.op, &operands, result);
        }
        bytemuck::cast_slice(&old).to_vec()
    }
}

/// `None` for a type that has no compare-and-swap.
fn swap_bits(basic: BasicType, span: Span<'_>, compare: u64, swap: u64) -> Option<u64> {
    fn typed<E: AtomicElement>(span: Span<'_>, compare: u64, swap: u64) -> Option<u64> {
        let (compare, swap) = (E::from_bits(compare), E::from_bits(swap));
        if E::BASIC.is_atomic() {
            return span.compare_and_swap(compare, swap).map(E::to_bits);
        }
        Some(accumulate::swap_under_lock(span, compare, swap).to_bits())
    }
    match basic {
        BasicType::U8 => typed::<u8>(span, compare, swap),
        BasicType::I8 => typed::<i8>(span, compare, swap),
        BasicType::U16 => typed::<u16>(span, compare, swap),
        BasicType::I16 => typed::<i16>(span, compare, swap),
        BasicType::U32 => typed::<u32>(span, compare, swap),
        BasicType::I32 => typed::<i32>(span, compare, swap),
        BasicType::U64 => typed::<u64>(span, compare, swap),
        BasicType::I64 => typed::<i64>(span, compare, swap),
        BasicType::BOOL => typed::<Bool>(span, compare, swap),
        _ => None,
    }
}
