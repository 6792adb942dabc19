//! Messages of a provider without the transport over it: the limit that measurements compare with.

use crate::sys::{Caps, Completion, Endpoint, Full, Opened, Slot};
use crate::{Libfabric, OfiError, Wanted, choose};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicBool, Ordering::Acquire};
use std::time::{Duration, Instant};

const SLOTS: u32 = 32;
const BYTES: usize = 8 << 10;
/// So long an end looks for a message before it sleeps.
const SPIN: Duration = Duration::from_millis(1);
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// An endpoint that talks to one other. For benchmarks.
pub struct RawLink {
    endpoint: Endpoint,
    peer: u64,
    free: Vec<Slot>,
    /// Lengths of messages that arrived while it sent.
    came: Vec<usize>,
    over: Vec<Completion>,
}

impl RawLink {
    /// Opens one on the provider of that name or core, at an address of this host.
    ///
    /// # Errors
    /// [`OfiError`].
    pub fn open(provider: Option<&str>, host: &str) -> Result<Self, OfiError> {
        let library = Libfabric::load()?;
        let offers = library.offers()?;
        let offer = choose(&offers, &Wanted { provider, ..Wanted::default() })?;
        let host = crate::join::host_of(offer, host);
        let opened = Opened::open(&library, offer, host, Caps::Messages)?;
        let (endpoint, mut free) = opened.endpoint((SLOTS, BYTES))?;
        let mut link =
            Self { endpoint, peer: u64::MAX, free: Vec::new(), came: Vec::new(), over: Vec::new() };
        for slot in free.split_off(SLOTS as usize / 2) {
            link.receive_into(slot);
        }
        link.free = free;
        Ok(link)
    }

    /// Where it is reached.
    pub fn address(&self) -> &[u8] {
        self.endpoint.address()
    }

    /// Names whom it talks to; false if that is no address of its provider.
    pub fn connect(&mut self, address: &[u8]) -> bool {
        let number = self.endpoint.insert(address);
        self.peer = number.unwrap_or(u64::MAX);
        number.is_some()
    }

    /// Sends so many bytes (8 KiB at most), as soon as there is room. False if the link is broken.
    pub fn send(&mut self, len: usize) -> bool {
        loop {
            if let Some(slot) = self.free.pop() {
                match self.endpoint.send(slot, len.min(BYTES), self.peer) {
                    Ok(()) => return true,
                    Err(Full(slot, None)) => self.free.push(slot),
                    Err(Full(_, Some(_))) => return false,
                }
            }
            if !self.read() {
                return false;
            }
        }
    }

    /// The length of the next message. `None` if `stop` is set before one comes, or the link is
    /// broken.
    pub fn receive(&mut self, stop: &AtomicBool) -> Option<usize> {
        let mut idle_from = None;
        loop {
            if !self.came.is_empty() {
                return Some(self.came.remove(0));
            }
            if stop.load(Acquire) || !self.read() {
                return None;
            }
            if self.came.is_empty() {
                let from: Instant = *idle_from.get_or_insert_with(Instant::now);
                if from.elapsed() > SPIN {
                    self.nap();
                }
            }
        }
    }

    fn nap(&self) {
        if let Some(file) = self.endpoint.file()
            && self.endpoint.may_wait()
        {
            // One that is interrupted has ended.
            _ = poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&NAP));
        }
    }

    fn receive_into(&mut self, slot: Slot) {
        // Without room now, there is a slot less.
        _ = self.endpoint.receive(slot);
    }

    fn read(&mut self) -> bool {
        let mut over = std::mem::take(&mut self.over);
        self.endpoint.read(&mut over);
        let mut is_whole = true;
        for completion in over.drain(..) {
            match completion {
                Completion::Sent(slot, Ok(())) => self.free.push(slot),
                Completion::Received(slot, Ok(len)) => {
                    self.came.push(len);
                    self.receive_into(slot);
                }
                _ => is_whole = false,
            }
        }
        self.over = over;
        is_whole
    }
}
