//! The target's side of active messages. Everything in a message is checked here. S-E7
mod combine;
#[cfg(test)]
mod dropped_tests;
mod get;
mod grant;
pub(crate) mod lock;
mod part;
mod rows;

#[cfg(test)]
pub(crate) use combine::Answer;
pub(crate) use combine::Deferred;
pub(crate) use grant::Incoming;
pub(crate) use lock::{Lines, Locks};

use crate::completion::{self, SlotId};
use crate::protocol::message::{Head, Kind, Status};
use crate::transport::WorldRank;
use crate::universe::Process;
use crate::window::{Part, WindowId};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Windows of one rank that messages may name.
#[derive(Default)]
pub(crate) struct Registry(Mutex<FxHashMap<u64, Weak<Part>>>);

/// Parts of windows that were dropped and not freed. Peers may still come there, whatever way they
/// take: messages find them, and locks are passed on, until this rank has left.
#[derive(Default)]
pub(crate) struct Dropped(Mutex<Vec<Arc<Part>>>);

impl Dropped {
    fn parts(&self) -> MutexGuard<'_, Vec<Arc<Part>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, part: &Arc<Part>) {
        self.parts().push(part.clone());
    }

    /// Lets go of all. They have the process, which has them.
    pub(crate) fn let_go(&self) {
        // Bound first, so that the lock is given back: what a part keeps goes elsewhere in the
        // process, and may come back here.
        let parts = core::mem::take(&mut *self.parts());
        drop(parts);
    }
}

impl Registry {
    pub(crate) fn add(&self, id: u64, part: &Arc<Part>) {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.insert(id, Arc::downgrade(part));
    }

    pub(crate) fn remove(&self, id: WindowId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id.0);
    }

    /// Those that are not freed.
    pub(crate) fn all(&self) -> Vec<Arc<Part>> {
        let windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<Part>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&id)?.upgrade()
    }
}

impl Process {
    /// Takes the answer to a question of this rank; false if nobody asked.
    pub(crate) fn take_answer(&self, from: WorldRank, head: &Head, body: &[u8]) -> bool {
        let (Some(kind), Some(status)) = (head.kind(), head.status()) else { return false };
        let is_value = kind == Kind::Value;
        let answer = completion::Answer {
            kind,
            status,
            value: if is_value { head.offset.get() } else { 0 },
            units: if is_value { 1 } else { head.length.get() },
            offset: if is_value && status == Status::Ok { 0 } else { head.offset.get() },
        };
        self.slots.answer(from, SlotId(head.slot.get()), answer, body)
    }

    /// Does what a peer asks; false if the message makes no sense.
    pub(crate) fn serve(&self, from: WorldRank, kind: Kind, head: &Head, body: &[u8]) -> bool {
        if kind.accumulates() {
            return self.serve_accumulate(from, kind, head, body);
        }
        let Some(answer) = kind.answer() else { return false };
        let Some(part) = self.windows.get(head.object.get()) else {
            let mut reply = head.reply(answer, Status::Freed);
            // Also to those who do not say how much they want.
            reply.length = 1.into();
            self.reply(from, &reply, &[]);
            return true;
        };
        match kind {
            Kind::Get => return self.serve_get(from, head, body, &part),
            Kind::Ask => return self.serve_ask(from, head, body, &part),
            Kind::Card => return self.serve_card(from, head, body, &part),
            _ => {}
        }
        let done = part.serve(kind, head, body);
        let mut reply = head.reply(answer, done.err().unwrap_or(Status::Ok));
        if answer == Kind::Value {
            reply.offset = done.unwrap_or(0).into();
        }
        self.reply(from, &reply, &[]);
        done != Err(Status::Malformed)
    }
}

/// What a [`Kind::Query`] asks for, as its offset says.
pub(crate) mod query {
    /// Where the raw part lies whose address in the window is in the payload.
    pub(crate) const RAW_BASE: u64 = 0;
    /// Its bytes.
    pub(crate) const RAW_LEN: u64 = 1;
}

impl Part {
    fn answer_query(&self, which: u64, body: &[u8]) -> Result<u64, Status> {
        match (which, body.as_chunks::<8>()) {
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
