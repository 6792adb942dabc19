//! Payloads of collective operations, put together from the messages they came in.
use crate::protocol::message::Head;
use crate::transport::WorldRank;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Which payload: communicator, tag, sender.
pub(crate) type Key = (u64, u32, WorldRank);

#[derive(Debug, Default)]
pub(crate) struct Mail {
    partial: Mutex<HashMap<Key, Partial>>,
}

#[derive(Debug)]
struct Partial {
    bytes: Vec<u8>,
    left: u64,
}

impl Mail {
    /// Takes one piece; false if it does not fit what came before it, or is longer than `limit`.
    pub(crate) fn deliver(&self, from: WorldRank, head: &Head, body: &[u8], limit: u64) -> bool {
        let (total, offset) = (head.length.get(), head.offset.get());
        let end = offset.checked_add(body.len() as u64);
        if total > limit || end.is_none_or(|end| end > total) || (body.is_empty() && total > 0) {
            return false;
        }
        let key = (head.object.get(), head.tag.get(), from);
        let mut partial = self.partial.lock().unwrap_or_else(PoisonError::into_inner);
        let payload = partial
            .entry(key)
            .or_insert_with(|| Partial { bytes: vec![0; total as usize], left: total });
        if payload.bytes.len() as u64 != total || payload.left < body.len() as u64 {
            return false;
        }
        // Both ends are below `total`, which is the length of a vector.
        payload.bytes[offset as usize..][..body.len()].copy_from_slice(body);
        payload.left -= body.len() as u64;
        true
    }

    /// The payload, if all of it is there.
    pub(crate) fn take(&self, key: &Key) -> Option<Vec<u8>> {
        let mut partial = self.partial.lock().unwrap_or_else(PoisonError::into_inner);
        if partial.get(key)?.left > 0 {
            return None;
        }
        partial.remove(key).map(|payload| payload.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::message::Kind;

    fn piece(offset: u64, total: u64) -> Head {
        let mut head = Head::new(Kind::Collective, 5, 256);
        head.offset = offset.into();
        head.length = total.into();
        head
    }

    #[test]
    fn pieces_in_any_order_make_a_payload() {
        let mail = Mail::default();
        let key = (5, 256, WorldRank(2));
        assert!(mail.deliver(WorldRank(2), &piece(2, 3), b"c", 100));
        assert_eq!(mail.take(&key), None);
        assert!(mail.deliver(WorldRank(2), &piece(0, 3), b"ab", 100));
        assert_eq!(mail.take(&key).as_deref(), Some(&b"abc"[..]));
        assert_eq!(mail.take(&key), None);
    }

    #[test]
    fn pieces_that_lie_are_refused() {
        let mail = Mail::default();
        assert!(!mail.deliver(WorldRank(2), &piece(2, 3), b"cd", 100), "past the end");
        assert!(!mail.deliver(WorldRank(2), &piece(u64::MAX, 3), b"c", 100), "overflow");
        assert!(!mail.deliver(WorldRank(2), &piece(0, 101), b"c", 100), "beyond the limit");
        assert!(mail.deliver(WorldRank(2), &piece(0, 3), b"ab", 100));
        assert!(!mail.deliver(WorldRank(2), &piece(0, 4), b"ab", 100), "another length");
        assert!(!mail.deliver(WorldRank(2), &piece(1, 3), b"ab", 100), "more than is left");
    }

    #[test]
    fn empty_payloads_arrive() {
        let mail = Mail::default();
        assert!(mail.deliver(WorldRank(2), &piece(0, 0), b"", 100));
        assert_eq!(mail.take(&(5, 256, WorldRank(2))), Some(Vec::new()));
    }
}
