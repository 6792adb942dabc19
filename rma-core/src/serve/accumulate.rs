//! The target's side of the accumulate family.
//!
//! A handler cannot wait. A message whose stripe a rank holds, or whose part one combines alone at,
//! is put off, and taken up again by the next progress of this rank; so are those that the same
//! origin has sent since: where messages keep their order, an origin need not wait for an answer
//! before it sends the next operation on the same bytes.
use super::Serving;
use crate::engine::{Cause, Engine};
use crate::memory::{bias, stripe};
use crate::protocol::credit::Credit;
use crate::protocol::message::{Head, Kind, Status};
use crate::rank::{Rank, WorldRank};
use crate::window::{Part, Windows};
use core::ops::{Deref, DerefMut, Range};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Messages that were put off. Bounded by the credit of the origins. S-H15
#[derive(Default)]
pub(crate) struct Deferred {
    queue: Mutex<VecDeque<Message>>,
    kept: Mutex<Credit>,
    /// Those in the queue, and those that some thread is just trying again.
    count: AtomicUsize,
    /// A thread is at it. One at a time: two would reorder what one origin has sent.
    retrying: AtomicBool,
}

/// The right to try again.
struct Retrying<'a>(&'a AtomicBool);

impl Drop for Retrying<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `Deferred::retry`.
        self.0.store(false, Release);
    }
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
        // The thread that makes it 1 from 0 does so within `poll`, and rings this rank afterwards.
        // Acquire pairs with the Release in `retry_deferred`: what was put off is done. S-H7
        self.count.load(Acquire) == 0
    }

    /// Whether something of this origin is put off. Asked by the thread that its messages are
    /// handed to, one at a time, which makes it so.
    fn keeps(&self, from: WorldRank) -> bool {
        !self.is_empty() && self.kept().is_used(from)
    }

    /// `None` if another thread is at it. It does not wait for that: no lock is held while a reply
    /// is sent.
    fn retry(&self) -> Option<Retrying<'_>> {
        // Acquire pairs with the Release in `Retrying::drop`.
        let taken = self.retrying.compare_exchange(false, true, Acquire, Relaxed);
        taken.ok().map(|_| Retrying(&self.retrying))
    }
}

/// What became of a message.
enum Served {
    /// Done: what its origin is to hear, and whether it made sense.
    Done(Option<(Head, Fetched)>, bool),
    /// Others keep it from its bytes; for ever if a rank that has left does.
    Busy { left: Option<WorldRank> },
}

impl Serving {
    /// Does what a peer asks, or puts it off; false if it makes no sense.
    pub(super) fn serve_accumulate(
        &self,
        engine: &Engine,
        from: WorldRank,
        kind: Kind,
        head: &Head,
        body: &[u8],
    ) -> bool {
        // What the origin sends after a message that is put off waits behind it. S-H7
        let served = if self.deferred.keeps(from) {
            Served::Busy { left: None }
        } else {
            engine.try_accumulate(&self.windows, kind, head, body)
        };
        match served {
            Served::Done(answer, sense) => {
                answer.iter().for_each(|(head, bytes)| engine.reply(from, head, bytes));
                sense
            }
            // No honest peer has so many unanswered.
            Served::Busy { .. } if !self.deferred.kept().take(from) => false,
            Served::Busy { .. } => {
                self.deferred.count.fetch_add(1, Relaxed);
                let message = Message { from, kind, head: *head, body: body.to_vec() };
                self.deferred.queue().push_back(message);
                true
            }
        }
    }
}

impl Engine {
    /// Tries again what was put off; returns how much of it is done.
    pub(crate) fn retry_deferred(&self) -> usize {
        if self.serving().deferred.is_empty() {
            return 0;
        }
        let Some(_retrying) = self.serving().deferred.retry() else { return 0 };
        // Out of the queue, so that no lock is held while sending a reply.
        let waiting = core::mem::take(&mut *self.serving().deferred.queue());
        let (mut again, mut done) = (VecDeque::<Message>::new(), 0);
        let mut blocked = FxHashSet::default();
        for message in waiting {
            let Message { from, kind, head, body } = &message;
            // S-H7
            if blocked.contains(from) {
                again.push_back(message);
                continue;
            }
            let answer = match self.try_accumulate(self.own_windows(), *kind, head, body) {
                Served::Busy { left: None } => {
                    blocked.insert(*from);
                    again.push_back(message);
                    continue;
                }
                Served::Busy { left: Some(holder) } => kind.answer().map(|kind| {
                    let mut reply = head.reply(kind, Status::HolderLeft);
                    reply.offset = u64::from(holder.0).into();
                    (reply, Fetched::default())
                }),
                Served::Done(answer, _) => answer,
            };
            // Before its origin hears of it, and sends another one instead.
            self.serving().deferred.kept().give_back(*from);
            // Release pairs with the Acquire in `is_empty`.
            self.serving().deferred.count.fetch_sub(1, Release);
            answer.iter().for_each(|(head, bytes)| self.reply(*from, head, bytes));
            done += 1;
        }
        // In front of what has come since.
        let mut queue = self.serving().deferred.queue();
        again.append(&mut queue);
        *queue = again;
        done
    }

    /// A rank that has left holding a stripe of these bytes, or in the middle of combining alone,
    /// and will never give it back. That a rank died with one is told to all, which ends the wait
    /// of the origin.
    pub(crate) fn has_left_with(&self, part: &Part, bytes: &Range<u64>) -> Option<WorldRank> {
        let block = part.block.get();
        let has_left = |holder: Rank| {
            let holder = part.comm.group().world_rank(holder)?;
            matches!(self.gone(holder), Some(Cause::PeerLeft(_))).then_some(holder)
        };
        let alone = || bias::holder(block).and_then(has_left).filter(|_| bias::is_busy(block));
        stripe::holders(block, bytes).find_map(has_left).or_else(alone)
    }

    fn try_accumulate(&self, windows: &Windows, kind: Kind, head: &Head, body: &[u8]) -> Served {
        let answer = match windows.get(head.object.get()) {
            None => Err(Status::Freed),
            Some(part) => match part.accumulate(kind, head, body, self.body_max()) {
                Ok(Combined::Busy(bytes)) => {
                    return Served::Busy { left: self.has_left_with(&part, &bytes) };
                }
                done => done,
            },
        };
        let status = answer.as_ref().err().copied().unwrap_or(Status::Ok);
        let Some(kind) = kind.answer() else { return Served::Done(None, false) };
        let (mut reply, mut bytes) = (head.reply(kind, status), Fetched::default());
        if let Ok(Combined::Bytes(result)) = answer {
            // In the origin's buffer, not in the window.
            reply.offset = 0.into();
            bytes = result;
        }
        Served::Done(Some((reply, bytes)), status != Status::Malformed)
    }
}

/// Bytes that go back to an origin: those of one element need no memory of the heap.
pub(crate) enum Fetched {
    Few([u8; Self::FEW], usize),
    Many(Vec<u8>),
}

impl Fetched {
    /// The widest element.
    const FEW: usize = 16;

    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut fetched = Self::zeroed(bytes.len());
        fetched.copy_from_slice(bytes);
        fetched
    }

    /// Room for so many bytes.
    pub(super) fn zeroed(len: usize) -> Self {
        match len {
            ..=Self::FEW => Self::Few([0; Self::FEW], len),
            _ => Self::Many(vec![0; len]),
        }
    }
}

impl Default for Fetched {
    fn default() -> Self {
        Self::Few([0; Self::FEW], 0)
    }
}

impl Deref for Fetched {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Few(bytes, len) => &bytes[..*len],
            Self::Many(bytes) => bytes,
        }
    }
}

impl DerefMut for Fetched {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Few(bytes, len) => &mut bytes[..*len],
            Self::Many(bytes) => bytes,
        }
    }
}

/// What goes back to the origin, if anything does already.
pub(crate) enum Combined {
    Done,
    Bytes(Fetched),
    /// Nothing happened: a rank holds a stripe of these bytes of the part, or combines there alone.
    Busy(Range<u64>),
}

#[cfg(test)]
#[path = "accumulate_tests.rs"]
mod tests;
