//! A libfabric that is pretended: what `fi_getinfo` finds is read from records, and tests say what
//! becomes of each operation, and with which error. So providers of hardware that is not here are
//! chosen and opened by the very code that does it elsewhere, and faults come that no network
//! shows here.
//!
//! Its objects are structures of `layout.rs`, with tables of functions of their own, as a
//! provider's are.
#![allow(unsafe_code)]
#![expect(clippy::multiple_unsafe_ops_per_block, reason = "tests, and each is of one object")]

use super::super::library::{Calls, Libfabric};
use super::*;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An answer of `fi_getinfo`, as `fi_info -v` prints it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    caps: u64,
    mode: u64,
    inject: usize,
    kind: c_int,
    max_message: usize,
    domain: String,
    data_progress: c_int,
    mr_mode: c_int,
    key_size: usize,
    fabric: String,
    pub(crate) provider: String,
}

/// Names of bits, those that rma does not know beside others.
const BITS: [(&str, u64); 21] = [
    ("FI_MSG", MSG),
    ("FI_RMA", RMA),
    ("FI_ATOMIC", ATOMIC),
    ("FI_READ", READ),
    ("FI_WRITE", WRITE),
    ("FI_RECV", RECV),
    ("FI_SEND", SEND),
    ("FI_REMOTE_READ", REMOTE_READ),
    ("FI_REMOTE_WRITE", REMOTE_WRITE),
    ("FI_CONTEXT", CONTEXT),
    ("FI_CONTEXT2", CONTEXT2),
    ("FI_MSG_PREFIX", 1 << 58),
    ("FI_RX_CQ_DATA", 1 << 56),
    ("FI_BUFFERED_RECV", 1 << 51),
    ("FI_MR_LOCAL", MR_LOCAL as u64),
    ("FI_MR_RAW", 1 << 3),
    ("FI_MR_VIRT_ADDR", MR_VIRT_ADDR as u64),
    ("FI_MR_ALLOCATED", MR_ALLOCATED as u64),
    ("FI_MR_PROV_KEY", MR_PROV_KEY as u64),
    ("FI_MR_ENDPOINT", MR_ENDPOINT as u64),
    ("FI_MR_HMEM", 1 << 10),
];

/// The bits of a list in brackets: those of capabilities that only tell more are left out.
fn bits(list: &str) -> u64 {
    let names = list.trim_matches(['[', ']']).split(',').map(str::trim);
    let known = names.filter_map(|name| BITS.iter().find(|(its, _)| *its == name));
    known.fold(0, |bits, (_, bit)| bits | bit)
}

/// Reads records, one behind each `fi_info:`; text before the first is none.
pub(crate) fn records(text: &str) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    let mut section = "";
    for line in text.lines().map(str::trim) {
        if line == "fi_info:" {
            records.push(Record::default());
            section = "";
        }
        let Some(record) = records.last_mut() else { continue };
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let number = || value.parse().unwrap_or_else(|_| panic!("{line}"));
        match (section, name) {
            (_, "fi_tx_attr" | "fi_rx_attr" | "fi_ep_attr" | "fi_domain_attr" | "nic") => {
                section = name;
            }
            (_, "fi_fabric_attr") => section = name,
            ("", "caps") => record.caps = bits(value),
            ("", "mode") => record.mode = bits(value),
            ("fi_tx_attr", "inject_size") => record.inject = number(),
            ("fi_ep_attr", "type") if value == "FI_EP_RDM" => record.kind = EP_RDM,
            ("fi_ep_attr", "max_msg_size") => record.max_message = number(),
            ("fi_domain_attr", "name") => record.domain = value.to_owned(),
            // libfabric 2 has one line for both.
            ("fi_domain_attr", "data_progress" | "progress") => {
                record.data_progress = if value == "FI_PROGRESS_AUTO" { PROGRESS_AUTO } else { 2 };
            }
            ("fi_domain_attr", "mr_mode") => record.mr_mode = bits(value) as c_int,
            ("fi_domain_attr", "mr_key_size") => record.key_size = number(),
            ("fi_fabric_attr", "name") => record.fabric = value.to_owned(),
            ("fi_fabric_attr", "prov_name") => record.provider = value.to_owned(),
            _ => {}
        }
    }
    records
}

impl Record {
    /// Whether it is an answer to these hints: each mode that it has, its caller must be able to do
    /// (fi_getinfo(3)).
    ///
    /// # Safety
    ///
    /// Hints as libfabric gets them.
    unsafe fn answers(&self, hints: &Info) -> bool {
        // SAFETY: says the caller.
        let (ep, domain, fabric) =
            unsafe { (&*hints.ep_attr, &*hints.domain_attr, &*hints.fabric_attr) };
        let is_named = |wanted: *mut c_char, name: &str| {
            // SAFETY: null, or a string.
            wanted.is_null() || unsafe { CStr::from_ptr(wanted) }.to_bytes() == name.as_bytes()
        };
        hints.caps & !self.caps == 0
            && self.mode & !hints.mode == 0
            && ep.kind == self.kind
            && self.mr_mode & !domain.mr_mode == 0
            && is_named(domain.name, &self.domain)
            && is_named(fabric.prov_name, &self.provider)
    }
}

thread_local! {
    /// What `fi_getinfo` finds in this thread.
    static FOUND: RefCell<(Vec<Record>, Option<&'static Script>)> = const {
        RefCell::new((Vec::new(), None))
    };
}

/// The library, of which `fi_getinfo` finds those in this thread.
pub(crate) fn library(records: Vec<Record>) -> (Libfabric, &'static Script) {
    // As long as the process: endpoints may be dropped last of all.
    let script: &'static Script = Box::leak(Box::default());
    FOUND.set((records, Some(script)));
    let calls =
        Calls { getinfo, dupinfo, freeinfo, fabric: open_fabric, strerror: error_by_number };
    (Libfabric::pretended(calls), script)
}

/// A string of C, which `freeinfo` gives back.
fn copied(text: &str) -> *mut c_char {
    let text = CString::new(text).unwrap();
    // SAFETY: it ends in a zero.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// An allocation of zeros, which are a null or a 0 everywhere in `T`.
///
/// # Safety
///
/// That is so.
unsafe fn zeroed<T>() -> *mut T {
    // SAFETY: says the caller.
    Box::into_raw(Box::new(unsafe { std::mem::zeroed() }))
}

fn empty() -> *mut Info {
    // SAFETY: attributes are numbers and addresses.
    unsafe {
        let info: *mut Info = zeroed();
        (*info).tx_attr = zeroed();
        (*info).ep_attr = zeroed();
        (*info).domain_attr = zeroed();
        (*info).fabric_attr = zeroed();
        info
    }
}

unsafe extern "C" fn dupinfo(of: *const Info) -> *mut Info {
    assert!(of.is_null(), "rma asks for empty hints only");
    empty()
}

unsafe extern "C" fn freeinfo(mut info: *mut Info) {
    while !info.is_null() {
        // SAFETY: made by `empty`, and freed here only; strings are of `strdup`.
        unsafe {
            let next = (*info).next;
            libc::free((*(*info).domain_attr).name.cast());
            libc::free((*(*info).fabric_attr).name.cast());
            libc::free((*(*info).fabric_attr).prov_name.cast());
            drop(Box::from_raw((*info).tx_attr));
            drop(Box::from_raw((*info).ep_attr));
            drop(Box::from_raw((*info).domain_attr));
            drop(Box::from_raw((*info).fabric_attr));
            drop(Box::from_raw(info));
            info = next;
        }
    }
}

unsafe extern "C" fn getinfo(
    _: u32,
    _: *const c_char,
    _: *const c_char,
    _: u64,
    hints: *const Info,
    list: *mut *mut Info,
) -> c_int {
    let mut last = list;
    FOUND.with_borrow(|(records, script)| {
        // SAFETY: hints of `infos.rs`, and room for the list; what is written is of `empty`.
        unsafe {
            let hints = &*hints;
            for record in records.iter().filter(|record| record.answers(hints)) {
                let info = empty();
                // Only what was asked for.
                ((*info).caps, (*info).mode) = (hints.caps, record.mode);
                (*(*info).tx_attr).inject_size = record.inject;
                (*(*info).ep_attr).kind = record.kind;
                (*(*info).ep_attr).max_msg_size = record.max_message;
                let domain = &mut *(*info).domain_attr;
                domain.name = copied(&record.domain);
                domain.data_progress = record.data_progress;
                (domain.mr_mode, domain.mr_key_size) = (record.mr_mode, record.key_size);
                let fabric = &mut *(*info).fabric_attr;
                fabric.name = copied(&record.fabric);
                fabric.prov_name = copied(&record.provider);
                fabric.fabric = script.map_or(null_mut(), |script| (&raw const *script) as _);
                *last = info;
                last = &raw mut (*info).next;
            }
            if (*list).is_null() { -ENODATA } else { 0 }
        }
    })
}

unsafe extern "C" fn error_by_number(_: c_int) -> *const c_char {
    c"an error that is pretended".as_ptr()
}

/// What operations do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Send,
    Receive,
    Write,
    Read,
}

/// An operation that is not complete.
#[derive(Clone, Copy)]
struct Begun {
    does: Does,
    context: usize,
    queue: usize,
    at: usize,
    room: usize,
}

/// What is in a queue of completions.
struct Entry {
    queue: usize,
    context: usize,
    result: Result<usize, c_int>,
}

/// What tests say becomes of operations, and see of calls.
#[derive(Default)]
pub(crate) struct Script {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    begun: Vec<Begun>,
    entries: VecDeque<Entry>,
    /// Queues that give this error to each call that reads.
    overrun: Vec<(usize, c_int)>,
    /// What operations are refused with that are begun, and registrations one after the other.
    refuses: Option<(Does, c_int)>,
    refuses_keys: VecDeque<c_int>,
    /// Keys of registrations so far, and calls that bind and enable one.
    keys: Vec<u64>,
    calls: Vec<&'static str>,
    addresses: u64,
}

impl Script {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many operations of that kind are under way.
    pub(crate) fn begun(&self, does: Does) -> usize {
        self.lock().begun.iter().filter(|begun| begun.does == does).count()
    }

    /// The first operation of that kind is complete, with so many bytes, or has failed with that
    /// error.
    pub(crate) fn complete(&self, does: Does, result: Result<usize, c_int>) {
        let place = self.lock().begun.iter().position(|begun| begun.does == does);
        self.complete_at(place, result);
    }

    /// As [`complete`](Self::complete), of the last of that kind.
    pub(crate) fn complete_last(&self, does: Does, result: Result<usize, c_int>) {
        let place = self.lock().begun.iter().rposition(|begun| begun.does == does);
        self.complete_at(place, result);
    }

    fn complete_at(&self, place: Option<usize>, result: Result<usize, c_int>) {
        let mut state = self.lock();
        let Begun { context, queue, .. } = state.begun.remove(place.expect("one is under way"));
        state.entries.push_back(Entry { queue, context, result });
    }

    /// A message arrives, where one is received first.
    pub(crate) fn arrive(&self, message: &[u8]) {
        let state = self.lock();
        let room = state.begun.iter().find(|begun| begun.does == Does::Receive);
        let Begun { at, room, .. } = *room.expect("a slot is offered");
        assert!(message.len() <= room);
        // SAFETY: room for so many bytes, which the provider has as long as it receives.
        unsafe { (at as *mut u8).copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        drop(state);
        self.complete(Does::Receive, Ok(message.len()));
    }

    /// The queue of the first operation of that kind does not work any more.
    pub(crate) fn overrun(&self, does: Does, code: c_int) {
        let mut state = self.lock();
        let its = state.begun.iter().find(|begun| begun.does == does);
        let queue = its.expect("one is under way").queue;
        state.overrun.push((queue, code));
    }

    /// From now on, operations of that kind are refused with that error.
    pub(crate) fn refuse(&self, does: Does, code: c_int) {
        self.lock().refuses = Some((does, code));
    }

    /// The next registrations are refused with these errors.
    pub(crate) fn refuse_keys(&self, codes: &[c_int]) {
        self.lock().refuses_keys.extend(codes);
    }

    /// Keys of all registrations, and what was done with them and endpoints.
    pub(crate) fn keys(&self) -> Vec<u64> {
        self.lock().keys.clone()
    }

    pub(crate) fn calls(&self) -> Vec<&'static str> {
        self.lock().calls.clone()
    }
}

/// An object: the structure that rma sees, what it does, and its queue, if it is an endpoint.
#[repr(C)]
struct Object<T> {
    seen: T,
    script: &'static Script,
    name: &'static str,
    queue: usize,
}

/// A new object, whose structure is made with what it begins with.
fn opened<T>(
    (script, name): (&'static Script, &'static str),
    ops: &'static FidOps,
    make: impl FnOnce(Fid) -> T,
) -> *mut T {
    let fid = Fid { fclass: 0, context: null_mut(), ops };
    Box::into_raw(Box::new(Object { seen: make(fid), script, name, queue: 0 })).cast()
}

/// # Safety
///
/// An object of `opened`.
unsafe fn object<'o, T>(seen: *mut T) -> &'o mut Object<T> {
    // SAFETY: says the caller; no call uses one beside another.
    unsafe { &mut *seen.cast() }
}

unsafe extern "C" fn close<T>(fid: *mut Fid) -> c_int {
    // SAFETY: an object of `opened` with this structure, closed once.
    let object = unsafe { Box::from_raw(fid.cast::<Object<T>>()) };
    let mut state = object.script.lock();
    // Another queue may get its address.
    let State { begun, entries, overrun, .. } = &mut *state;
    begun.retain(|begun| begun.queue != fid as usize);
    entries.retain(|entry| entry.queue != fid as usize);
    overrun.retain(|(queue, _)| *queue != fid as usize);
    state.calls.push(match object.name {
        "endpoint" => "close endpoint",
        "region" => "close region",
        _ => "close",
    });
    0
}

unsafe extern "C" fn bind<T>(fid: *mut Fid, to: *mut Fid, _: u64) -> c_int {
    // SAFETY: an object of `opened` with this structure.
    let its = unsafe { object(fid.cast::<T>()) };
    // SAFETY: any object of `opened` has its name in the same place as a queue does: read by ops.
    let is_queue = ptr_eq(unsafe { (*to).ops }, &QUEUE);
    if is_queue {
        its.queue = to as usize;
    }
    if its.name == "region" {
        its.script.lock().calls.push("bind region");
    }
    0
}

fn ptr_eq(one: *const FidOps, other: &'static FidOps) -> bool {
    std::ptr::eq(one, other)
}

unsafe extern "C" fn control<T>(fid: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    // SAFETY: an object of `opened` with this structure.
    let its = unsafe { object(fid.cast::<T>()) };
    match command {
        ENABLE if its.name == "region" => {
            its.script.lock().calls.push("enable region");
            0
        }
        ENABLE => 0,
        // It has no file.
        _ => -ENOSYS,
    }
}

macro_rules! fid_ops {
    ($name:ident, $of:ty) => {
        static $name: FidOps =
            FidOps { size: 0, close: close::<$of>, bind: bind::<$of>, control: control::<$of> };
    };
}

fid_ops!(FABRIC, FidFabric);
fid_ops!(DOMAIN, FidDomain);
fid_ops!(ADDRESSES, FidAv);
fid_ops!(QUEUE, FidCq);
fid_ops!(ENDPOINT, FidEp);
fid_ops!(REGION, FidMr);

/// A table of functions: shared by all threads, as its null pointers are never changed.
struct Table<T>(T);

// SAFETY: written by no code.
unsafe impl<T> Sync for Table<T> {}

unsafe extern "C" fn open_fabric(
    attr: *mut FabricAttr,
    fabric: *mut *mut FidFabric,
    _: *mut c_void,
) -> c_int {
    static OPS: Table<FabricOps> = Table(FabricOps {
        size: size_of::<FabricOps>(),
        domain: open_domain,
        passive_ep: null(),
        eq_open: null(),
        wait_open: null(),
        trywait,
    });
    // SAFETY: attributes of `getinfo`, which names its script, and room for one pointer.
    unsafe {
        let script: &'static Script = &*(*attr).fabric.cast::<Script>();
        *fabric = opened((script, "fabric"), &FABRIC, |fid| FidFabric {
            fid,
            ops: &raw const OPS.0,
            api_version: version(1, 17),
        });
    }
    0
}

unsafe extern "C" fn trywait(_: *mut FidFabric, _: *mut *mut Fid, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn open_domain(
    fabric: *mut FidFabric,
    _: *mut Info,
    domain: *mut *mut FidDomain,
    _: *mut c_void,
) -> c_int {
    static OPS: Table<DomainOps> = Table(DomainOps {
        size: size_of::<DomainOps>(),
        av_open,
        cq_open,
        endpoint: open_endpoint,
        scalable_ep: null(),
        cntr_open: null(),
        poll_open: null(),
        stx_ctx: null(),
        srx_ctx: null(),
        query_atomic,
    });
    static MR: MrOps = MrOps { size: size_of::<MrOps>(), reg };
    // SAFETY: an object of `opened`, and room for one pointer.
    unsafe {
        let script = object(fabric).script;
        *domain = opened((script, "domain"), &DOMAIN, |fid| FidDomain {
            fid,
            ops: &raw const OPS.0,
            mr: &raw const MR,
        });
    }
    0
}

unsafe extern "C" fn query_atomic(
    _: *mut FidDomain,
    _: c_int,
    _: c_int,
    _: *mut AtomicAttr,
    _: u64,
) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn reg(
    domain: *mut Fid,
    _: *const c_void,
    _: usize,
    _: u64,
    _: u64,
    key: u64,
    _: u64,
    region: *mut *mut FidMr,
    _: *mut c_void,
) -> c_int {
    // SAFETY: an object of `opened`.
    let script = unsafe { object(domain.cast::<FidDomain>()) }.script;
    let mut state = script.lock();
    state.keys.push(key);
    if let Some(code) = state.refuses_keys.pop_front() {
        return -code;
    }
    let new = opened((script, "region"), &REGION, |fid| FidMr { fid, mem_desc: null_mut(), key });
    // SAFETY: room for one pointer.
    unsafe { *region = new };
    0
}

unsafe extern "C" fn av_open(
    domain: *mut FidDomain,
    _: *mut AvAttr,
    addresses: *mut *mut FidAv,
    _: *mut c_void,
) -> c_int {
    static OPS: Table<AvOps> = Table(AvOps {
        size: size_of::<AvOps>(),
        insert,
        insertsvc: null(),
        insertsym: null(),
        remove: null(),
        lookup: null(),
        straddr,
    });
    // SAFETY: an object of `opened`, and room for one pointer.
    unsafe {
        let script = object(domain).script;
        *addresses =
            opened((script, "addresses"), &ADDRESSES, |fid| FidAv { fid, ops: &raw const OPS.0 });
    }
    0
}

unsafe extern "C" fn insert(
    _: *mut FidAv,
    address: *const c_void,
    _: usize,
    number: *mut u64,
    _: u64,
    _: *mut c_void,
) -> c_int {
    // SAFETY: an address, which is a number here, and room for one.
    unsafe { *number = *address.cast::<u64>() };
    1
}

unsafe extern "C" fn straddr(
    _: *mut FidAv,
    _: *const c_void,
    text: *mut c_char,
    _: *mut usize,
) -> *const c_char {
    text
}

unsafe extern "C" fn cq_open(
    domain: *mut FidDomain,
    _: *mut CqAttr,
    queue: *mut *mut FidCq,
    _: *mut c_void,
) -> c_int {
    static OPS: Table<CqOps> = Table(CqOps {
        size: size_of::<CqOps>(),
        read,
        readfrom: null(),
        readerr,
        sread: null(),
        sreadfrom: null(),
        signal: null(),
        strerror,
    });
    // SAFETY: an object of `opened`, and room for one pointer.
    unsafe {
        let script = object(domain).script;
        *queue = opened((script, "queue"), &QUEUE, |fid| FidCq { fid, ops: &raw const OPS.0 });
    }
    0
}

unsafe extern "C" fn read(queue: *mut FidCq, room: *mut c_void, most: usize) -> isize {
    // SAFETY: an object of `opened`.
    let script = unsafe { object(queue) }.script;
    let mut state = script.lock();
    if let Some((_, code)) = state.overrun.iter().find(|(of, _)| *of == queue as usize) {
        return -(*code as isize);
    }
    // SAFETY: room for so many entries.
    let room = unsafe { std::slice::from_raw_parts_mut(room.cast::<CqEntry>(), most) };
    let mut count = 0;
    while count < most {
        let is_its = |entry: &Entry| entry.queue == queue as usize;
        let Some(place) = state.entries.iter().position(is_its) else { break };
        let Entry { context, result, .. } = state.entries[place];
        // An error is read by itself, in its turn.
        let Ok(len) = result else {
            return if count > 0 { count as isize } else { -(EAVAIL as isize) };
        };
        state.entries.remove(place);
        room[count] = CqEntry { op_context: context as *mut c_void, flags: 0, len };
        count += 1;
    }
    if count > 0 { count as isize } else { -(EAGAIN as isize) }
}

unsafe extern "C" fn readerr(queue: *mut FidCq, room: *mut CqErrEntry, _: u64) -> isize {
    // SAFETY: an object of `opened`.
    let script = unsafe { object(queue) }.script;
    let mut state = script.lock();
    let is_its = |entry: &Entry| entry.queue == queue as usize && entry.result.is_err();
    let place = state.entries.iter().position(is_its).expect("it was said that there is one");
    let Entry { context, result, .. } = state.entries.remove(place).unwrap();
    // SAFETY: room for one entry.
    let room = unsafe { &mut *room };
    (room.op_context, room.err) = (context as *mut c_void, result.unwrap_err());
    room.prov_errno = 7;
    1
}

unsafe extern "C" fn strerror(
    _: *mut FidCq,
    _: c_int,
    _: *const c_void,
    _: *mut c_char,
    _: usize,
) -> *const c_char {
    c"what a provider says".as_ptr()
}

unsafe extern "C" fn open_endpoint(
    domain: *mut FidDomain,
    _: *mut Info,
    endpoint: *mut *mut FidEp,
    _: *mut c_void,
) -> c_int {
    static CM: Table<CmOps> = Table(CmOps { size: size_of::<CmOps>(), setname: null(), getname });
    static MSG_OPS: Table<MsgOps> =
        Table(MsgOps { size: size_of::<MsgOps>(), recv, recvv: null(), recvmsg: null(), send });
    static RMA_OPS: Table<RmaOps> = Table(RmaOps {
        size: size_of::<RmaOps>(),
        read: null(),
        readv: null(),
        readmsg,
        write: null(),
        writev: null(),
        writemsg,
    });
    // SAFETY: an object of `opened`, and room for one pointer.
    unsafe {
        let script = object(domain).script;
        *endpoint = opened((script, "endpoint"), &ENDPOINT, |fid| FidEp {
            fid,
            ops: null(),
            cm: &raw const CM.0,
            msg: &raw const MSG_OPS.0,
            rma: &raw const RMA_OPS.0,
            tagged: null(),
            atomic: null(),
            collective: null(),
        });
    }
    0
}

unsafe extern "C" fn getname(endpoint: *mut Fid, room: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: an object of `opened`.
    let mut state = unsafe { object(endpoint.cast::<FidEp>()) }.script.lock();
    state.addresses += 1;
    // SAFETY: room for more than a number, and for its length.
    unsafe { (*room.cast::<u64>(), *len) = (state.addresses, size_of::<u64>()) };
    0
}

/// Begins an operation of that memory, unless such are refused.
///
/// # Safety
///
/// An endpoint of `opened`.
unsafe fn begin(
    endpoint: *mut FidEp,
    does: Does,
    (at, room): (*const c_void, usize),
    context: *mut c_void,
) -> isize {
    // SAFETY: says the caller.
    let its = unsafe { object(endpoint) };
    let mut state = its.script.lock();
    if let Some((refused, code)) = state.refuses
        && refused == does
    {
        return -(code as isize);
    }
    let (queue, context, at) = (its.queue, context as usize, at as usize);
    state.begun.push(Begun { does, context, queue, at, room });
    0
}

unsafe extern "C" fn recv(
    endpoint: *mut FidEp,
    room: *mut c_void,
    len: usize,
    _: *mut c_void,
    _: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of `opened`.
    unsafe { begin(endpoint, Does::Receive, (room, len), context) }
}

unsafe extern "C" fn send(
    endpoint: *mut FidEp,
    message: *const c_void,
    len: usize,
    _: *mut c_void,
    _: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of `opened`.
    unsafe { begin(endpoint, Does::Send, (message, len), context) }
}

unsafe extern "C" fn readmsg(endpoint: *mut FidEp, message: *const MsgRma, _: u64) -> isize {
    // SAFETY: an endpoint of `opened`, and one run of bytes.
    unsafe {
        let here = &*(*message).msg_iov;
        begin(endpoint, Does::Read, (here.base, here.len), (*message).context)
    }
}

unsafe extern "C" fn writemsg(endpoint: *mut FidEp, message: *const MsgRma, _: u64) -> isize {
    // SAFETY: an endpoint of `opened`, and one run of bytes.
    unsafe {
        let here = &*(*message).msg_iov;
        begin(endpoint, Does::Write, (here.base, here.len), (*message).context)
    }
}
