//! An endpoint: messages to and from others, in slots that it owns while they are on their way.
#![allow(unsafe_code)]

use super::atomics::{Combining, Form};
use super::infos::string;
use super::layout::{
    ADDR_UNSPEC, COMPLETION, CqEntry, CqErrEntry, DELIVERY_COMPLETE, EAGAIN, EAVAIL, ENODATA,
    ENOSYS, Ioc, Iovec, MsgAtomic, MsgRma, RmaIoc, RmaIov,
};
use super::object::{AddressVector, BareEndpoint, CompletionQueue, Fabric, aligned};
use super::opened::Caps;
use super::slots::{Buffers, Flight, Slot};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// Completions that one call of the provider gives.
const BATCH: usize = 32;

/// An open endpoint. Dropping it closes it first, so that the provider lets go of its slots, and
/// then gives up all it stands on.
pub(crate) struct Endpoint {
    pub(super) bare: BareEndpoint,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) addresses: Arc<AddressVector>,
    pub(super) buffers: Arc<Buffers>,
    pub(super) fabric: Arc<Fabric>,
    pub(super) file: Option<c_int>,
    pub(super) address: Vec<u8>,
    /// What it was asked for: calls of anything else have no table.
    pub(super) caps: Caps,
    /// It has [ended](Completion::Ended).
    pub(super) has_ended: AtomicBool,
    /// Of one that its provider must not close in the middle of what it fetches, and makes no
    /// progress of but in calls for this endpoint, which has a fabric of its own: how many of these
    /// were left open.
    pub(super) alone: Option<Arc<AtomicU32>>,
}

/// An operation that is over.
#[derive(Debug)]
pub(crate) enum Completion {
    /// The message has been sent, or not; its slot can be used again.
    Sent(Slot, Result<(), Failure>),
    /// A message of so many bytes has arrived, or something that is none.
    Received(Slot, Result<usize, Failure>),
    /// A transfer is complete, or has failed; its slot can be used again.
    Transferred(Slot, Result<(), Failure>),
    /// Something failed that has no slot.
    Stray,
    /// The queue of completions does not work any more (it was overrun, or its device is gone):
    /// nothing that the endpoint has under way is told, and it is of no use.
    Ended(Failure),
}

/// Which way the bytes of a transfer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To the peer; complete when they are in its memory.
    Write,
    /// From the peer.
    Read,
}

impl Direction {
    fn flight(self) -> Flight {
        match self {
            Self::Write => Flight::Transfer,
            Self::Read => Flight::Fetch,
        }
    }
}

/// Bytes of a peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Far {
    /// The number of its address.
    pub(crate) peer: u64,
    pub(crate) key: u64,
    /// Where they begin, as the provider counts.
    pub(crate) at: u64,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Of libfabric, which told so.
    pub(crate) call: &'static str,
    /// The number of libfabric's error.
    pub(crate) code: i32,
    /// What the provider says.
    pub(crate) reason: String,
}

/// An operation that was not begun: the provider has no room now, or fails.
#[derive(Debug)]
pub(crate) struct Full(pub(crate) Slot, pub(crate) Option<Failure>);

impl Endpoint {
    /// Where peers reach it: bytes for [`insert`](Self::insert) at theirs.
    pub(crate) fn address(&self) -> &[u8] {
        &self.address
    }

    /// The number of a peer's address; `None` if it is none of this provider's, or for want of
    /// memory.
    pub(crate) fn insert(&self, address: &[u8]) -> Option<u64> {
        (address.len() == self.address.len()).then(|| self.addresses.insert(address))?
    }

    /// An address as the provider writes it.
    pub(crate) fn shown(&self, address: &[u8]) -> String {
        let aligned = aligned(address);
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
        self.buffers.slots().each()
    }

    pub(crate) fn bytes<'s>(&'s self, slot: &'s Slot) -> &'s [u8] {
        self.buffers.slots().bytes(slot)
    }

    pub(crate) fn bytes_mut<'s>(&'s self, slot: &'s mut Slot) -> &'s mut [u8] {
        self.buffers.slots().bytes_mut(slot)
    }

    /// Sends the first `len` bytes of a slot to an address that was inserted.
    pub(crate) fn send(&self, slot: Slot, len: usize, to: u64) -> Result<(), Full> {
        assert!(len <= self.each(), "a message fits in its slot");
        // SAFETY: an open endpoint.
        let ops = unsafe { (*self.bare.get()).msg };
        // SAFETY: its table.
        let send = unsafe { (*ops).send };
        let (context, message) = self.buffers.slots().give(slot, Flight::Send);
        // SAFETY: the slot is the operation's from now on, and its memory the endpoint's until that
        // is closed. Providers refuse addresses that no caller inserted.
        let code =
            unsafe { send(self.bare.get(), message.cast(), len, self.buffers.desc(), to, context) };
        self.begun(("fi_send", code), context)
    }

    /// Has the next message that comes put into a slot.
    pub(crate) fn receive(&self, slot: Slot) -> Result<(), Full> {
        // SAFETY: an open endpoint.
        let ops = unsafe { (*self.bare.get()).msg };
        // SAFETY: its table.
        let receive = unsafe { (*ops).recv };
        let (context, message) = self.buffers.slots().give(slot, Flight::Receive);
        let (room, len) = (message.cast(), self.each());
        // SAFETY: as in `send`.
        let code = unsafe {
            receive(self.bare.get(), room, len, self.buffers.desc(), ADDR_UNSPEC, context)
        };
        self.begun(("fi_recv", code), context)
    }

    /// Moves `len` bytes between a slot, from its beginning on, and memory of a peer.
    pub(crate) fn transfer(
        &self,
        slot: Slot,
        len: usize,
        direction: Direction,
        there: &Far,
    ) -> Result<(), Full> {
        assert!(len <= self.each(), "a transfer fits in its slot");
        let (context, message) = self.buffers.slots().give(slot, direction.flight());
        let local = (message, self.buffers.desc());
        // SAFETY: as in `send`: the slot is the operation's from now on.
        unsafe { self.begin_transfer(context, local, len, direction, there) }
    }

    /// Where in a slot the parts of an atomic operation begin, each of at most so many bytes: its
    /// operands at 0, what is compared, and what was there.
    pub(crate) fn parts(&self) -> [usize; 3] {
        let each = self.each() / 3 / 16 * 16;
        [0, each, 2 * each]
    }

    /// Combines elements of a peer with those of a slot, whose [parts](Self::parts) are the
    /// operation's from now on.
    pub(crate) fn combine(
        &self,
        slot: Slot,
        combining: Combining,
        there: &Far,
    ) -> Result<(), Full> {
        let [_, second, third] = self.parts();
        assert!(self.caps == Caps::Atomics, "an endpoint that was asked for with atomics");
        assert!(combining.len() <= second, "a part of a slot holds the elements");
        let (context, message) = self.buffers.slots().give(slot, Flight::Transfer);
        let Combining { datatype, op, form, count, .. } = combining;
        let part = |at| Ioc { addr: message.wrapping_add(at).cast(), count };
        let (operands, compared, mut was) = (part(0), part(second), part(third));
        let [mut desc, mut desc_compared, mut desc_was] = [self.buffers.desc(); 3];
        let far = RmaIoc { addr: there.at, count, key: there.key };
        let message = MsgAtomic {
            msg_iov: &raw const operands,
            desc: &raw mut desc,
            iov_count: 1,
            addr: there.peer,
            rma_iov: &raw const far,
            rma_iov_count: 1,
            datatype,
            op,
            context,
            data: 0,
        };
        let (bare, message) = (self.bare.get(), &raw const message);
        // SAFETY: an open endpoint.
        let ops = unsafe { (*bare).atomic };
        let (was, desc_was) = (&raw mut was, &raw mut desc_was);
        // Combined there, and not only answered.
        let flags = COMPLETION | DELIVERY_COMPLETE;
        let (call, code) = match form {
            Form::Plain => {
                // SAFETY: its table, which it has, as it was asked for with FI_ATOMIC.
                let begin = unsafe { (*ops).writemsg };
                // SAFETY: as `begin_transfer`, of one run of elements on either side; the slot is
                // the operation's.
                ("fi_atomicmsg", unsafe { begin(bare, message, flags) })
            }
            Form::Fetch => {
                // SAFETY: as above.
                let begin = unsafe { (*ops).readwritemsg };
                // SAFETY: as above, with room for as many elements.
                let code = unsafe { begin(bare, message, was, desc_was, 1, flags) };
                ("fi_fetch_atomicmsg", code)
            }
            Form::Compare => {
                // SAFETY: as above.
                let begin = unsafe { (*ops).compwritemsg };
                let (with, desc) = (&raw const compared, &raw mut desc_compared);
                // SAFETY: as above, with as many elements to compare with.
                let code = unsafe { begin(bare, message, with, desc, 1, was, desc_was, 1, flags) };
                ("fi_compare_atomicmsg", code)
            }
        };
        self.begun((call, code), context)
    }

    /// As [`transfer`](Self::transfer), between memory of the caller and that of a peer; of the
    /// slot, only the provider's room is used. For providers that take memory which is not
    /// registered.
    ///
    /// # Safety
    ///
    /// Until it is complete, or this endpoint is closed, the `len` bytes stay valid, nothing
    /// changes them, and of a read nothing looks at them.
    pub(crate) unsafe fn transfer_direct(
        &self,
        slot: Slot,
        (local, len): (*mut u8, usize),
        direction: Direction,
        there: &Far,
    ) -> Result<(), Full> {
        let (context, _) = self.buffers.slots().give(slot, direction.flight());
        // SAFETY: says the caller.
        unsafe { self.begin_transfer(context, (local, ptr::null_mut()), len, direction, there) }
    }

    /// # Safety
    ///
    /// `context` is the provider's until the transfer is complete, and so are `len` bytes there.
    unsafe fn begin_transfer(
        &self,
        context: *mut std::ffi::c_void,
        (local, mut desc): (*mut u8, *mut std::ffi::c_void),
        len: usize,
        direction: Direction,
        there: &Far,
    ) -> Result<(), Full> {
        assert!(self.caps != Caps::Messages, "an endpoint that was asked for with memory");
        // SAFETY: an open endpoint.
        let ops = unsafe { (*self.bare.get()).rma };
        let (call, begin, flags) = match direction {
            Direction::Write => {
                // SAFETY: its table, which it has, as it was asked for with FI_RMA.
                ("fi_writemsg", unsafe { (*ops).writemsg }, COMPLETION | DELIVERY_COMPLETE)
            }
            // SAFETY: as above.
            Direction::Read => ("fi_readmsg", unsafe { (*ops).readmsg }, COMPLETION),
        };
        let here = Iovec { base: local.cast(), len };
        let far = RmaIov { addr: there.at, len, key: there.key };
        let message = MsgRma {
            msg_iov: &raw const here,
            desc: &raw mut desc,
            iov_count: 1,
            addr: there.peer,
            rma_iov: &raw const far,
            rma_iov_count: 1,
            context,
            data: 0,
        };
        // SAFETY: one run of bytes on either side, described by what lives through the call; the
        // bytes stay, says the caller. Providers refuse addresses that no caller inserted.
        let code = unsafe { begin(self.bare.get(), &raw const message, flags) };
        self.begun((call, code), context)
    }

    /// Closes it, so that nothing is touched any more that its operations were given; or the
    /// number of an error if libfabric refuses. One that is alone, and in the middle of what it
    /// fetches, is left open to the end of the process, and not used any more: without a call for
    /// it, its provider touches nothing.
    pub(crate) fn close(self) -> Result<(), c_int> {
        if let Some(left) = &self.alone
            && self.buffers.slots().is_fetching()
        {
            left.fetch_add(1, Relaxed);
            std::mem::forget(self);
            return Ok(());
        }
        self.bare.close().map(drop)
    }

    fn begun(
        &self,
        (call, code): (&'static str, isize),
        context: *mut std::ffi::c_void,
    ) -> Result<(), Full> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: what was not begun is not touched.
        let taken = unsafe { self.buffers.slots().take(context) };
        let (slot, _) = taken.expect("the slot was given just now");
        let code = c_int::try_from(code.saturating_neg()).unwrap_or(ENOSYS);
        let failure = (code != EAGAIN).then(|| Failure { call, code, reason: String::new() });
        Err(Full(slot, failure))
    }

    /// Adds what is over to `over`, and makes the provider's progress. Says whether there may be
    /// more at once.
    pub(crate) fn read(&self, over: &mut Vec<Completion>) -> bool {
        if self.has_ended() {
            return false;
        }
        // SAFETY: an open queue.
        let ops = unsafe { (*self.queue.get()).ops };
        // SAFETY: its table.
        let read = unsafe { (*ops).read };
        // Most often there is nothing: to clear the room first would take a good part of the look.
        let mut entries = [const { MaybeUninit::<CqEntry>::uninit() }; BATCH];
        let room = entries.as_mut_ptr().cast();
        // SAFETY: room for so many entries of the queue's format.
        let count = unsafe { read(self.queue.get(), room, BATCH) };
        let Ok(count) = usize::try_from(count) else {
            return self.read_error(count, over);
        };
        for entry in entries.iter().take(count) {
            // SAFETY: the provider has written as many entries as it says.
            let entry = unsafe { entry.assume_init_ref() };
            // SAFETY: the provider has said that the operation is over.
            let taken = unsafe { self.buffers.slots().take(entry.op_context) };
            over.extend(taken.map(|(slot, flight)| match flight {
                Flight::Send => Completion::Sent(slot, Ok(())),
                Flight::Receive => Completion::Received(slot, Ok(entry.len.min(self.each()))),
                Flight::Transfer | Flight::Fetch => Completion::Transferred(slot, Ok(())),
            }));
        }
        count == BATCH
    }

    /// What is to be read is an error, of an operation or of the queue; false if there was nothing.
    fn read_error(&self, code: isize, over: &mut Vec<Completion>) -> bool {
        match c_int::try_from(code.saturating_neg()).unwrap_or(ENOSYS) {
            EAVAIL => {}
            EAGAIN | libc::EINTR => return false,
            code => return self.end("fi_cq_read", code, over),
        }
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
        match c_int::try_from(count.saturating_neg()).unwrap_or(ENOSYS) {
            -1 => {}
            // Another thread has read it.
            0 | EAGAIN | libc::EINTR => return false,
            code => return self.end("fi_cq_readerr", code, over),
        }
        let (call, reason) = ("fi_cq_readerr", self.reason(&entry));
        let failure = Failure { call, code: entry.err, reason };
        // SAFETY: as in `read`: an operation that failed is over, too.
        let taken = unsafe { self.buffers.slots().take(entry.op_context) };
        over.push(match taken {
            Some((slot, Flight::Send)) => Completion::Sent(slot, Err(failure)),
            Some((slot, Flight::Receive)) => Completion::Received(slot, Err(failure)),
            Some((slot, Flight::Transfer | Flight::Fetch)) => {
                Completion::Transferred(slot, Err(failure))
            }
            None => Completion::Stray,
        });
        true
    }

    /// Nothing more is to be read.
    fn end(&self, call: &'static str, code: c_int, over: &mut Vec<Completion>) -> bool {
        // Told once, whichever thread sees it.
        if !self.has_ended.swap(true, Relaxed) {
            over.push(Completion::Ended(Failure { call, code, reason: String::new() }));
        }
        false
    }

    /// Whether it has [ended](Completion::Ended).
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Relaxed)
    }

    fn reason(&self, entry: &CqErrEntry) -> String {
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
        // Of one that has ended it may be readable for ever.
        self.own_file().filter(|_| !self.has_ended())
    }

    /// The same, also if it has ended.
    pub(crate) fn own_file(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the provider's, open as long as the queue is.
        self.file.map(|file| unsafe { BorrowedFd::borrow_raw(file) })
    }

    /// Whether the file may be waited at: asked each time before; if not, there is something to
    /// read already. Without a file the provider is not asked: it may.
    pub(crate) fn may_wait(&self) -> bool {
        self.file().is_none() || self.fabric.try_wait(&self.queue)
    }
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
