//! Messages on their way and messages that arrived.

use std::collections::{BTreeMap, VecDeque};

/// A message, at an offset that keeps receivers from relying on its alignment.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) from: u32,
    storage: Vec<u8>,
    offset: usize,
}

impl Message {
    pub(crate) fn new(from: u32, head: &[u8], body: &[u8], offset: usize) -> Self {
        let mut storage = Vec::with_capacity(offset + head.len() + body.len());
        storage.resize(offset, 0);
        storage.extend_from_slice(head);
        storage.extend_from_slice(body);
        Self { from, storage, offset }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.storage[self.offset..]
    }
}

/// One receiver's side.
#[derive(Debug, Default)]
struct Inbox {
    arrived: VecDeque<Message>,
    /// Sent to it and not yet polled, arrived or not.
    pending: usize,
    /// The senders that were refused since the last message was taken.
    refused: Vec<u32>,
    closed: bool,
}

/// All queues of the network.
#[derive(Debug)]
pub(crate) struct Traffic {
    queue_max: usize,
    inboxes: Vec<Inbox>,
    /// By due time, then in the order of sending.
    flights: BTreeMap<(u64, u64), (u32, Message)>,
    sent: u64,
}

impl Traffic {
    pub(crate) fn new(ranks: u32, queue_max: usize) -> Self {
        let inboxes = (0..ranks).map(|_| Inbox::default()).collect();
        Self { queue_max, inboxes, flights: BTreeMap::new(), sent: 0 }
    }

    fn inbox(&mut self, rank: u32) -> &mut Inbox {
        &mut self.inboxes[rank as usize]
    }

    /// Whether `to` takes another message; if not, `from` is told when it does.
    pub(crate) fn admit(&mut self, from: u32, to: u32) -> bool {
        let queue_max = self.queue_max;
        let inbox = self.inbox(to);
        if inbox.pending < queue_max {
            return true;
        }
        if !inbox.refused.contains(&from) {
            inbox.refused.push(from);
        }
        false
    }

    /// Sends off an admitted message.
    pub(crate) fn depart(&mut self, to: u32, due: u64, message: Message) {
        self.inbox(to).pending += 1;
        self.flights.insert((due, self.sent), (to, message));
        self.sent += 1;
    }

    /// When the last message on its way from `from` arrives, by receiver.
    pub(crate) fn last_dues(&self, from: u32) -> BTreeMap<u32, u64> {
        let own = self.flights.iter().filter(|(_, (_, message))| message.from == from);
        // In the order of due times, so that the last one stays.
        own.map(|(&(due, _), &(to, _))| (to, due)).collect()
    }

    /// When the next message arrives.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.flights.first_key_value().map(|(&(due, _), _)| due)
    }

    /// Lets one message arrive that is due at `clock`, and returns its receiver.
    pub(crate) fn land(&mut self, clock: u64) -> Option<u32> {
        let first = self.flights.first_entry().filter(|entry| entry.key().0 <= clock)?;
        let (to, message) = first.remove();
        let inbox = self.inbox(to);
        if !inbox.closed {
            inbox.arrived.push_back(message);
        }
        Some(to)
    }

    /// Messages that `rank` could take now.
    pub(crate) fn arrived(&self, rank: u32) -> usize {
        self.inboxes[rank as usize].arrived.len()
    }

    /// Takes the oldest arrival of `rank`, and names the senders that wait for the room it left.
    pub(crate) fn take(&mut self, rank: u32) -> Option<(Message, Vec<u32>)> {
        let inbox = self.inbox(rank);
        let message = inbox.arrived.pop_front()?;
        inbox.pending -= 1;
        Some((message, std::mem::take(&mut inbox.refused)))
    }

    /// Drops what arrived at `rank` and what will.
    pub(crate) fn close(&mut self, rank: u32) {
        let inbox = self.inbox(rank);
        inbox.closed = true;
        inbox.arrived.clear();
    }
}
