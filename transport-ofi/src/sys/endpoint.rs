//! An endpoint: messages to and from others, in slots that it owns while they are on their way.
#![allow(unsafe_code)]

use super::infos::string;
use super::layout::{
    ADDR_UNSPEC, CqEntry, CqErrEntry, EAGAIN, EAVAIL, ENODATA, ENOSYS, MR_ENDPOINT, MR_LOCAL,
    PROGRESS_AUTO,
};
use super::library::Libfabric;
use super::object::{AddressVector, BareEndpoint, CompletionQueue, Domain, Fabric, Failed, Found};
use super::slots::{Buffers, Flight, Slot, Slots};
use crate::{Offer, OfiError};
use std::ffi::{c_char, c_int};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

/// Completions that one call of the provider gives.
const BATCH: usize = 32;
/// Key of the registration of slots, where the provider takes ours.
const KEY: u64 = 0x736c_6f74;

/// An open endpoint. Dropping it closes it first, so that the provider lets go of its slots, and
/// then gives up all it stands on.
pub(crate) struct Endpoint {
    bare: BareEndpoint,
    queue: Arc<CompletionQueue>,
    addresses: Arc<AddressVector>,
    buffers: Arc<Buffers>,
    fabric: Arc<Fabric>,
    file: Option<c_int>,
    address: Vec<u8>,
    /// Whether the provider makes its progress by itself.
    progresses: bool,
}

/// An operation that is over.
#[derive(Debug)]
pub(crate) enum Completion {
    /// The message has been sent, or not; its slot can be used again.
    Sent(Slot, Result<(), Failure>),
    /// A message of so many bytes has arrived, or something that is none.
    Received(Slot, Result<usize, Failure>),
    /// Something failed that has no slot.
    Stray,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The number of libfabric's error.
    pub(crate) code: i32,
    /// What the provider says.
    pub(crate) reason: String,
}

/// An operation that was not begun: the provider has no room now, or fails.
#[derive(Debug)]
pub(crate) struct Full(pub(crate) Slot, pub(crate) Option<Failure>);

impl Endpoint {
    /// Opens one with so many slots of so many bytes, and gives their handles. `host` is the
    /// address of this host that it uses, where addresses are those of the internet.
    pub(crate) fn open(
        library: &Libfabric,
        offer: &Offer,
        host: Option<&str>,
        (count, bytes): (u32, usize),
    ) -> Result<(Self, Vec<Slot>), OfiError> {
        let found = Found(library.infos_of(offer, host)?);
        let failed = |(call, code): Failed| OfiError::Open {
            provider: offer.provider.clone(),
            host: host.unwrap_or("any address").to_owned(),
            call,
            code,
            reason: library.says(code),
        };
        let unfit = |why| OfiError::Unfit { provider: offer.provider.clone(), why };
        let info = found.0.first();
        // SAFETY: libfabric gives back no empty list, nor one without these attributes.
        let attributes = unsafe { (*info).domain_attr };
        // SAFETY: as above.
        let modes = unsafe { (*attributes).mr_mode };
        // SAFETY: as above.
        let progress = unsafe { (*attributes).data_progress };
        let fabric = Arc::new(Fabric::open(library, found).map_err(failed)?);
        let domain = Arc::new(Domain::open(fabric.clone()).map_err(failed)?);
        let (slots, handles) =
            Slots::new(count, bytes).ok_or_else(|| failed(("alloc", libc::ENOMEM)))?;
        let region = if modes & MR_LOCAL == 0 {
            None
        } else if modes & MR_ENDPOINT != 0 {
            return Err(unfit("registers memory for each endpoint, which rma does not do"));
        } else {
            // SAFETY: the slots and the region live in one value, which the endpoint keeps.
            let region = unsafe { domain.register(slots.start(), slots.len(), KEY) };
            Some(region.map_err(failed)?)
        };
        let buffers = Arc::new(Buffers { region, slots });
        let room = count as usize + BATCH;
        let (queue, file) = CompletionQueue::open(domain.clone(), room).map_err(failed)?;
        let queue = Arc::new(queue);
        let addresses = Arc::new(AddressVector::open(domain.clone(), BATCH).map_err(failed)?);
        let bare = BareEndpoint::open(&domain, queue.clone(), addresses.clone(), buffers.clone())
            .map_err(failed)?;
        let address = bare.address().map_err(failed)?;
        let progresses = progress == PROGRESS_AUTO;
        let endpoint = Self { bare, queue, addresses, buffers, fabric, file, address, progresses };
        Ok((endpoint, handles))
    }

    /// Where peers reach it: bytes for [`insert`](Self::insert) at theirs.
    pub(crate) fn address(&self) -> &[u8] {
        &self.address
    }

    pub(crate) fn progresses(&self) -> bool {
        self.progresses
    }

    /// The number of a peer's address; `None` if it is none of this provider's, or for want of
    /// memory.
    pub(crate) fn insert(&self, address: &[u8]) -> Option<u64> {
        (address.len() == self.address.len()).then(|| self.addresses.insert(address))?
    }

    /// An address as the provider writes it.
    pub(crate) fn shown(&self, address: &[u8]) -> String {
        let mut aligned = [0_u64; 64];
        let words = aligned.iter_mut().zip(address.chunks(8));
        for (word, bytes) in words {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        // SAFETY: an open vector.
        let ops = unsafe { (*self.addresses.get()).ops };
        // SAFETY: its table.
        let straddr = unsafe { (*ops).straddr };
        let (mut text, mut len) = ([0 as c_char; 256], 255);
        let (from, to) = (aligned.as_ptr().cast(), text.as_mut_ptr());
        // SAFETY: an address with zeros behind it, and room for so many letters and a zero.
        unsafe { straddr(self.addresses.get(), from, to, &raw mut len) };
        string(text.as_ptr())
    }

    /// Bytes of a message.
    pub(crate) fn each(&self) -> usize {
        self.buffers.slots.each()
    }

    pub(crate) fn bytes<'s>(&'s self, slot: &'s Slot) -> &'s [u8] {
        self.buffers.slots.bytes(slot)
    }

    pub(crate) fn bytes_mut<'s>(&'s self, slot: &'s mut Slot) -> &'s mut [u8] {
        self.buffers.slots.bytes_mut(slot)
    }

    /// Sends the first `len` bytes of a slot to an address that was inserted.
    pub(crate) fn send(&self, slot: Slot, len: usize, to: u64) -> Result<(), Full> {
        assert!(len <= self.each(), "a message fits in its slot");
        // SAFETY: an open endpoint.
        let ops = unsafe { (*self.bare.get()).msg };
        // SAFETY: its table.
        let send = unsafe { (*ops).send };
        let (context, message) = self.buffers.slots.give(slot, Flight::Send);
        // SAFETY: the slot is the operation's from now on, and its memory the endpoint's until that
        // is closed. Providers refuse addresses that nobody inserted.
        let code = unsafe { send(self.bare.get(), message.cast(), len, self.desc(), to, context) };
        self.begun(code, context)
    }

    /// Has the next message that comes put into a slot.
    pub(crate) fn receive(&self, slot: Slot) -> Result<(), Full> {
        // SAFETY: an open endpoint.
        let ops = unsafe { (*self.bare.get()).msg };
        // SAFETY: its table.
        let receive = unsafe { (*ops).recv };
        let (context, message) = self.buffers.slots.give(slot, Flight::Receive);
        let (room, len) = (message.cast(), self.each());
        // SAFETY: as in `send`.
        let code =
            unsafe { receive(self.bare.get(), room, len, self.desc(), ADDR_UNSPEC, context) };
        self.begun(code, context)
    }

    fn desc(&self) -> *mut std::ffi::c_void {
        self.buffers.region.as_ref().map_or(ptr::null_mut(), |region| region.desc())
    }

    fn begun(&self, code: isize, context: *mut std::ffi::c_void) -> Result<(), Full> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: what was not begun is not touched.
        let taken = unsafe { self.buffers.slots.take(context) };
        let (slot, _) = taken.expect("the slot was given just now");
        let code = c_int::try_from(code.saturating_neg()).unwrap_or(ENOSYS);
        let failure = (code != EAGAIN).then(|| Failure { code, reason: String::new() });
        Err(Full(slot, failure))
    }

    /// Adds what is over to `over`, and makes the provider's progress. Says whether there may be
    /// more at once.
    pub(crate) fn read(&self, over: &mut Vec<Completion>) -> bool {
        // SAFETY: an open queue.
        let ops = unsafe { (*self.queue.get()).ops };
        // SAFETY: its table.
        let read = unsafe { (*ops).read };
        let empty = CqEntry { op_context: ptr::null_mut(), flags: 0, len: 0 };
        let mut entries = [empty; BATCH];
        let room = entries.as_mut_ptr().cast();
        // SAFETY: room for so many entries of the queue's format.
        let count = unsafe { read(self.queue.get(), room, BATCH) };
        let Ok(count) = usize::try_from(count) else {
            return count.saturating_neg() == EAVAIL as isize && self.read_error(over);
        };
        for entry in entries.iter().take(count) {
            // SAFETY: the provider has said that the operation is over.
            let taken = unsafe { self.buffers.slots.take(entry.op_context) };
            over.extend(taken.map(|(slot, flight)| match flight {
                Flight::Send => Completion::Sent(slot, Ok(())),
                Flight::Receive => Completion::Received(slot, Ok(entry.len.min(self.each()))),
            }));
        }
        count == BATCH
    }

    /// Whether there was an error to read.
    fn read_error(&self, over: &mut Vec<Completion>) -> bool {
        // SAFETY: an open queue.
        let ops = unsafe { (*self.queue.get()).ops };
        // SAFETY: its table.
        let readerr = unsafe { (*ops).readerr };
        let mut entry = CqErrEntry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
            tag: 0,
            olen: 0,
            err: ENODATA,
            prov_errno: 0,
            err_data: ptr::null_mut(),
            err_data_size: 0,
        };
        // SAFETY: room for one entry, and none for more of the provider.
        let count = unsafe { readerr(self.queue.get(), &raw mut entry, 0) };
        if count != 1 {
            return false;
        }
        let failure = Failure { code: entry.err, reason: self.says(&entry) };
        // SAFETY: as in `read`: an operation that failed is over, too.
        let taken = unsafe { self.buffers.slots.take(entry.op_context) };
        over.push(match taken {
            Some((slot, Flight::Send)) => Completion::Sent(slot, Err(failure)),
            Some((slot, Flight::Receive)) => Completion::Received(slot, Err(failure)),
            None => Completion::Stray,
        });
        true
    }

    fn says(&self, entry: &CqErrEntry) -> String {
        // SAFETY: an open queue.
        let ops = unsafe { (*self.queue.get()).ops };
        // SAFETY: its table.
        let strerror = unsafe { (*ops).strerror };
        let (queue, data) = (self.queue.get(), entry.err_data.cast_const());
        // SAFETY: what the provider has just said, and no room for its text: it returns one.
        let text = unsafe { strerror(queue, entry.prov_errno, data, ptr::null_mut(), 0) };
        string(text)
    }

    /// What can be waited at, if the provider has such a thing.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the provider's, open as long as the queue is.
        self.file.map(|file| unsafe { BorrowedFd::borrow_raw(file) })
    }

    /// Whether the file may be waited at: asked each time before; if not, there is something to
    /// read already.
    pub(crate) fn may_wait(&self) -> bool {
        self.fabric.try_wait(&self.queue)
    }
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
