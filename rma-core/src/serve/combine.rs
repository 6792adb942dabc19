//! The target's side of the accumulate family. S-H15
//!
//! A handler cannot wait. A message whose stripe somebody holds is put off, and taken up again by
//! the next progress of this rank; so are those that the same origin has sent since: where messages
//! keep their order, an origin need not wait for an answer before it sends the next operation on
//! the same bytes. S-H7
use crate::engine::{Cause, Engine};
use crate::memory::stripe;
use crate::protocol::credit::Credit;
use crate::protocol::message::{Head, Kind, Status};
use crate::rank::WorldRank;
use crate::window::Part;
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Messages that were put off. Bounded by the credit of the origins.
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
        // Who makes it 1 from 0 does so within `poll`, and rings this rank afterwards.
        // Acquire pairs with the Release in `retry_deferred`: what was put off is done. S-H7
        self.count.load(Acquire) == 0
    }

    /// Whether something of this origin is put off. Asked by whom its messages are handed to, one
    /// at a time, who makes it so.
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
    /// Answered; false if it made no sense.
    Done(bool),
    /// A stripe is held; for ever if by somebody who has left.
    Busy { left: Option<WorldRank> },
}

impl Engine {
    /// Does what a peer asks, or puts it off; false if it makes no sense.
    pub(super) fn serve_accumulate(
        &self,
        from: WorldRank,
        kind: Kind,
        head: &Head,
        body: &[u8],
    ) -> bool {
        let served = if self.serving().deferred.keeps(from) {
            Served::Busy { left: None }
        } else {
            self.try_accumulate(from, kind, head, body)
        };
        match served {
            Served::Done(sense) => sense,
            // No honest peer has so many unanswered.
            Served::Busy { .. } if !self.serving().deferred.kept().take(from) => false,
            Served::Busy { .. } => {
                self.serving().deferred.count.fetch_add(1, Relaxed);
                let message = Message { from, kind, head: *head, body: body.to_vec() };
                self.serving().deferred.queue().push_back(message);
                true
            }
        }
    }

    /// Tries again what was put off; returns how much of it is done.
    pub(crate) fn retry_deferred(&self) -> usize {
        if self.serving().deferred.is_empty() {
            return 0;
        }
        let Some(_retrying) = self.serving().deferred.retry() else { return 0 };
        // Out of the queue, so that no lock is held while sending a reply.
        let waiting = core::mem::take(&mut *self.serving().deferred.queue());
        let (mut again, mut done) = (VecDeque::<Message>::new(), 0);
        for message in waiting {
            let Message { from, kind, head, body } = &message;
            if again.iter().any(|earlier| earlier.from == *from) {
                again.push_back(message);
                continue;
            }
            match self.try_accumulate(*from, *kind, head, body) {
                Served::Busy { left: None } => {
                    again.push_back(message);
                    continue;
                }
                Served::Busy { left: Some(holder) } => {
                    if let Some(kind) = kind.answer() {
                        let mut reply = head.reply(kind, Status::HolderLeft);
                        reply.offset = u64::from(holder.0).into();
                        self.reply(*from, &reply, &[]);
                    }
                }
                Served::Done(_) => {}
            }
            self.serving().deferred.kept().give_back(*from);
            // Release pairs with the Acquire in `is_empty`.
            self.serving().deferred.count.fetch_sub(1, Release);
            done += 1;
        }
        // In front of what has come since.
        let mut queue = self.serving().deferred.queue();
        again.append(&mut queue);
        *queue = again;
        done
    }

    /// Who has left holding a stripe of these bytes, and will never give it back. That somebody
    /// died with one is told to all, which ends the wait of the origin.
    fn has_left_with(&self, part: &Part, bytes: &Range<u64>) -> Option<WorldRank> {
        let holders = stripe::holders(part.block.get(), bytes);
        let mut gone = holders.filter_map(|holder| part.comm.group().world_rank(holder));
        gone.find(|holder| matches!(self.gone(*holder), Some(Cause::PeerLeft(_))))
    }

    fn try_accumulate(&self, from: WorldRank, kind: Kind, head: &Head, body: &[u8]) -> Served {
        let answer = match self.own_windows().get(head.object.get()) {
            None => Err(Status::Freed),
            Some(part) => match part.accumulate(kind, head, body, self.body_max()) {
                Ok(Combined::Busy(bytes)) => {
                    return Served::Busy { left: self.has_left_with(&part, &bytes) };
                }
                done => done,
            },
        };
        let status = answer.as_ref().err().copied().unwrap_or(Status::Ok);
        let Some(kind) = kind.answer() else { return Served::Done(false) };
        let (mut reply, mut bytes) = (head.reply(kind, status), Vec::new());
        if let Ok(Combined::Bytes(result)) = answer {
            // In the origin's buffer, not in the window.
            reply.offset = 0.into();
            bytes = result;
        }
        self.reply(from, &reply, &bytes);
        Served::Done(status != Status::Malformed)
    }
}

/// What goes back to the origin, if anything does already.
pub(crate) enum Combined {
    Done,
    Bytes(Vec<u8>),
    /// Nothing happened: somebody holds a stripe of these bytes of the part.
    Busy(Range<u64>),
}
