//! The target's side of active messages. Everything in a message is checked here.
use super::{Part, WindowId};
use crate::completion::{Answer, SlotId};
use crate::memory::block::WORDS;
use crate::protocol::message::{Head, Kind, Status};
use crate::transport::{Transport, WorldRank};
use crate::universe::Process;
use core::sync::atomic::Ordering::SeqCst;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Windows of one rank that messages may name.
pub(crate) struct Registry<T: Transport>(Mutex<HashMap<u64, Weak<Part<T>>>>);

impl<T: Transport> Default for Registry<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Transport> Registry<T> {
    pub(crate) fn add(&self, id: u64, part: &Arc<Part<T>>) {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.insert(id, Arc::downgrade(part));
    }

    pub(crate) fn remove(&self, id: WindowId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id.0);
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<Part<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&id)?.upgrade()
    }
}

impl<T: Transport> Process<T> {
    /// Takes the answer to a question of this rank; false if nobody asked.
    pub(crate) fn take_answer(&self, from: WorldRank, head: &Head, body: &[u8]) -> bool {
        let is_value = head.kind() == Some(Kind::Value);
        let answer = Answer {
            status: head.status(),
            value: if is_value { head.offset.get() } else { 0 },
            units: if is_value { 1 } else { head.length.get() },
            offset: if is_value { 0 } else { head.offset.get() },
        };
        self.slots.answer(from, SlotId(head.slot.get()), answer, body)
    }

    /// Does what a peer asks; false if the message makes no sense.
    pub(crate) fn serve(&self, from: WorldRank, kind: Kind, head: &Head, body: &[u8]) -> bool {
        if matches!(kind, Kind::Accumulate | Kind::GetAccumulate | Kind::CompareSwap) {
            return self.serve_accumulate(from, kind, head, body);
        }
        let Some(part) = self.windows.get(head.object.get()) else {
            self.reply(from, &answer_to(kind, head, Err(Status::Freed)), &[]);
            return true;
        };
        if kind == Kind::Get {
            return self.serve_get(from, head, &part);
        }
        if kind == Kind::GetRows {
            return self.serve_get_rows(from, head, body, &part);
        }
        let done = part.serve(kind, head, body);
        self.reply(from, &answer_to(kind, head, done), &[]);
        done != Err(Status::Malformed)
    }

    fn serve_get(&self, from: WorldRank, head: &Head, part: &Part<T>) -> bool {
        let (offset, length) = (head.offset.get(), head.length.get());
        let end = offset.checked_add(length).filter(|end| *end <= part.size);
        let Some(end) = end else {
            self.reply(from, &answer_to(Kind::Get, head, Err(Status::OutOfRange)), &[]);
            return true;
        };
        let mut piece = vec![0; self.body_max()];
        let mut at = offset;
        while at < end {
            let len = (end - at).min(piece.len() as u64) as usize;
            let Some(span) = part.span(at, len) else { return false };
            span.read(&mut piece[..len]);
            let mut reply = head.reply(Kind::Data, Status::Ok);
            // In the origin's buffer, not in the window.
            reply.offset = (at - offset).into();
            reply.length = (len as u64).into();
            self.reply(from, &reply, &piece[..len]);
            at += len as u64;
        }
        true
    }
}

/// The header of the answer to a question of this kind.
fn answer_to(kind: Kind, head: &Head, done: Result<u64, Status>) -> Head {
    let status = done.err().unwrap_or(Status::Ok);
    match kind {
        Kind::Put | Kind::PutRows => head.reply(Kind::Done, status),
        Kind::Get | Kind::GetRows => head.reply(Kind::Data, status),
        _ => {
            let mut reply = head.reply(Kind::Value, status);
            reply.offset = done.unwrap_or(0).into();
            reply
        }
    }
}

impl<T: Transport> Part<T> {
    fn serve(&self, kind: Kind, head: &Head, body: &[u8]) -> Result<u64, Status> {
        let offset = head.offset.get();
        let (operands, rest) = body.as_chunks::<8>();
        let operand = |i: usize| operands.get(i).map(|bytes| u64::from_le_bytes(*bytes));
        let operand = |i| operand(i).filter(|_| rest.is_empty()).ok_or(Status::Malformed);
        match kind {
            Kind::PutRows => self.put_rows(head, body),
            Kind::Put => {
                if head.length.get() != body.len() as u64 {
                    return Err(Status::Malformed);
                }
                self.span(offset, body.len()).ok_or(Status::OutOfRange)?.write(body);
                Ok(0)
            }
            Kind::ControlSwap | Kind::ControlStore | Kind::ControlLoad => {
                let word = u16::try_from(offset).ok().filter(|word| *word < WORDS);
                let word = self.block.get().word(word.ok_or(Status::OutOfRange)?);
                match kind {
                    Kind::ControlLoad => Ok(word.load(SeqCst)),
                    Kind::ControlStore => {
                        word.store(operand(0)?, SeqCst);
                        Ok(0)
                    }
                    _ => {
                        let (Ok(old) | Err(old)) =
                            word.compare_exchange(operand(0)?, operand(1)?, SeqCst, SeqCst);
                        Ok(old)
                    }
                }
            }
            Kind::Query => match offset {
                0 => Ok(self.size),
                1 => Ok(u64::from(self.disp_unit)),
                _ => Err(Status::Malformed),
            },
            _ => Err(Status::Malformed),
        }
    }
}
