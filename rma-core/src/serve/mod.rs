//! The target's side of active messages. Everything in a message is checked here.
mod accumulate;
#[cfg(test)]
mod dropped_tests;
mod get;
pub(crate) mod lock;
mod part;
mod rendezvous;
mod rows;
mod signals;

#[cfg(test)]
pub(crate) use accumulate::Combined;

use crate::collective::Contributions;
use crate::engine::{self, Engine, Sent, Service, SlotId};
use crate::memory::stripe;
use crate::protocol::message::{Durable, Head, Kind, Status, query};
use crate::protocol::outbox::GetCursor;
use crate::protocol::pscw::Signal;
use crate::rank::WorldRank;
use crate::window::{Part, Windows};
use accumulate::Deferred;
use core::any::Any;
use core::time::Duration;
use lock::Lines;
use rendezvous::Incoming;
use std::sync::Arc;

/// How often a sleeping thread looks whether holders of locks that ranks wait for here are gone.
const LINES_RECHECK: Duration = Duration::from_millis(20);

/// What a rank keeps to serve its peers.
pub(crate) struct Serving {
    contributions: Arc<Contributions>,
    windows: Windows,
    pub(crate) deferred: Deferred,
    pub(crate) lines: Lines,
    pub(crate) incoming: Incoming,
}

impl Serving {
    /// Clears as many bytes of large puts at once, in messages of at most so many bytes.
    pub(crate) fn new(
        contributions: &Arc<Contributions>,
        rendezvous_bytes: u64,
        message_max: usize,
    ) -> Self {
        Self {
            contributions: contributions.clone(),
            windows: Windows::default(),
            deferred: Deferred::default(),
            lines: Lines::default(),
            incoming: Incoming::new(rendezvous_bytes, message_max),
        }
    }
}

impl Service for Serving {
    fn handle(
        &self,
        engine: &Engine,
        from: WorldRank,
        kind: Kind,
        head: &Head,
        body: &[u8],
    ) -> bool {
        match kind {
            Kind::Collective => self.contributions.handle(engine, from, head, body),
            Kind::Done | Kind::Data | Kind::Value => engine.take_answer(from, head, body),
            Kind::Cts => engine.take_cts(from, head, body),
            Kind::PutData => engine.take_data(from, head, body),
            Kind::Cancel => engine.take_cancel(from, head, body),
            Kind::Lock => engine.take_request(from, head, body),
            Kind::Granted => engine.take_granted(from, head, body),
            Kind::Unlock => engine.take_unlock(from, head, body),
            Kind::Pass => engine.take_pass(from, head, body),
            Kind::Post => engine.take_signal(from, Signal::Post, head, body),
            Kind::Complete => engine.take_signal(from, Signal::Complete, head, body),
            _ => engine.outgoing.accepts(from) && self.serve(engine, from, kind, head, body),
        }
    }

    fn retry(&self, engine: &Engine) -> usize {
        if self.deferred.is_empty() { 0 } else { engine.retry_deferred() }
    }

    fn look_around(&self, engine: &Engine) -> usize {
        if self.lines.are_waited_for() { engine.look_after_lines() } else { 0 }
    }

    fn recover(&self, engine: &Engine) {
        if self.incoming.is_waited_for() {
            engine.recover_cts();
        }
    }

    fn send_piece(&self, engine: &Engine, to: WorldRank, cursor: &mut GetCursor) -> Sent {
        engine.send_piece(to, cursor)
    }

    fn has_put_off(&self) -> bool {
        !self.deferred.is_empty()
    }

    fn is_cts_due(&self) -> bool {
        self.incoming.is_waited_for()
    }

    fn recheck(&self, naps: bool) -> Option<Duration> {
        let deferred = self.has_put_off().then_some(stripe::RECHECK);
        let lines = (naps && self.lines.are_waited_for()).then_some(LINES_RECHECK);
        deferred.into_iter().chain(lines).min()
    }

    fn windows(&self) -> &dyn Any {
        &self.windows
    }
}

impl Engine {
    /// What this rank keeps to serve its peers.
    pub(crate) fn serving(&self) -> &Serving {
        let service: &dyn Any = self.service();
        service.downcast_ref().expect("there is no other service")
    }

    /// Takes the answer to a question of this rank; false if it did not ask.
    pub(crate) fn take_answer(&self, from: WorldRank, head: &Head, body: &[u8]) -> bool {
        let (Some(kind), Some(status)) = (head.kind(), head.status()) else { return false };
        let is_value = kind == Kind::Value;
        let answer = engine::Answer {
            kind,
            status,
            value: if is_value { head.offset.get() } else { 0 },
            units: if is_value { 1 } else { head.length.get() },
            offset: if is_value && status == Status::Ok { 0 } else { head.offset.get() },
        };
        self.outstanding.answer(from, SlotId(head.slot.get()), answer, body)
    }
}

impl Serving {
    /// Does what a peer asks; false if the message makes no sense. S-E7
    pub(crate) fn serve(
        &self,
        engine: &Engine,
        from: WorldRank,
        kind: Kind,
        head: &Head,
        body: &[u8],
    ) -> bool {
        if kind.accumulates() {
            return self.serve_accumulate(engine, from, kind, head, body);
        }
        let Some(answer) = kind.answer() else { return false };
        let Some(part) = self.windows.get(head.object.get()) else {
            let mut reply = head.reply(answer, Status::Freed);
            // Also to origins that do not say how much they want.
            reply.length = 1.into();
            engine.reply(from, &reply, &[]);
            return true;
        };
        match kind {
            Kind::Get => return engine.serve_get(from, head, body, &part),
            Kind::Rts => return engine.serve_rts(from, head, body, &part),
            Kind::Card => return engine.serve_card(from, head, body, &part),
            _ => {}
        }
        let done = part.serve(kind, head, body);
        let mut reply = head.reply(answer, done.err().unwrap_or(Status::Ok));
        if answer == Kind::Value {
            reply.offset = done.unwrap_or(0).into();
        }
        engine.reply(from, &reply, &[]);
        done != Err(Status::Malformed)
    }
}

impl Part {
    fn answer_query(&self, which: u64, body: &[u8]) -> Result<u64, Status> {
        match (which, body.as_chunks::<8>()) {
            (query::PERSIST, ([], [])) => {
                // Not while the memory is given back.
                let _entered = self.door.enter().ok_or(Status::Freed)?;
                Ok(Durable::new(self.persist_all()).0)
            }
            (query::RAW_BASE | query::RAW_LEN, ([start], [])) => {
                let regions = self.regions.as_ref().ok_or(Status::Malformed)?;
                let raw = regions.raw_at(u64::from_le_bytes(*start));
                let (base, len) = raw.ok_or(Status::OutOfRange)?;
                Ok(if which == query::RAW_BASE { base } else { len })
            }
            _ => Err(Status::Malformed),
        }
    }

    fn serve(&self, kind: Kind, head: &Head, body: &[u8]) -> Result<u64, Status> {
        let offset = head.offset.get();
        match kind {
            Kind::Put => self.put(head, body),
            Kind::Query => self.answer_query(offset, body),
            _ => Err(Status::Malformed),
        }
    }
}
