//! Objects of libfabric, each with what it stands on.
#![allow(unsafe_code)]

use super::infos::Infos;
use super::layout::{
    AV_TABLE, AtomicAttr, AvAttr, CQ_FORMAT_MSG, CqAttr, DomainOps, ENABLE, Fid, FidAv, FidCq,
    FidDomain, FidEp, FidFabric, FidMr, GETWAIT, READ, RECV, SEND, WAIT_FD, WAIT_NONE, WRITE,
};
use super::library::Libfabric;
use super::slots::Buffers;
use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, offset_of};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// An object that libfabric opened, and what has to outlive it. It is closed once, when this is
/// dropped; if libfabric refuses, what it stands on stays, too.
pub(super) struct Object<T: IsFid, Below> {
    fid: NonNull<T>,
    pub(super) below: ManuallyDrop<Below>,
}

/// Its structure begins with a `struct fid`.
///
/// # Safety
///
/// That is so.
pub(super) unsafe trait IsFid {}

// SAFETY: as `layout.rs` has it.
unsafe impl IsFid for FidFabric {}
// SAFETY: as above.
unsafe impl IsFid for FidDomain {}
// SAFETY: as above.
unsafe impl IsFid for FidAv {}
// SAFETY: as above.
unsafe impl IsFid for FidCq {}
// SAFETY: as above.
unsafe impl IsFid for FidEp {}
// SAFETY: as above.
unsafe impl IsFid for FidMr {}

// SAFETY: domains are asked for threads that share their objects (FI_THREAD_SAFE), and libfabric
// gives none that cannot; what this type gives out is an address.
unsafe impl<T: IsFid, Below: Send + Sync> Send for Object<T, Below> {}
// SAFETY: as above.
unsafe impl<T: IsFid, Below: Send + Sync> Sync for Object<T, Below> {}

impl<T: IsFid, Below> Drop for Object<T, Below> {
    fn drop(&mut self) {
        // SAFETY: dropped here only, and `close` forgets what it has closed.
        let code = unsafe { self.close_fid() };
        if code == 0 {
            // SAFETY: as above.
            unsafe { ManuallyDrop::drop(&mut self.below) };
        }
    }
}

impl<T: IsFid, Below> Object<T, Below> {
    /// The object that a call opened, or the number of its error.
    ///
    /// # Safety
    ///
    /// If `code` is 0, libfabric opened `fid` just now, on what `below` keeps.
    unsafe fn opened(code: c_int, fid: *mut T, below: Below) -> Result<Self, c_int> {
        match NonNull::new(fid) {
            Some(fid) if code == 0 => Ok(Self { fid, below: ManuallyDrop::new(below) }),
            _ if code == 0 => Err(libc::ENOMEM),
            _ => Err(code.saturating_neg()),
        }
    }

    /// Closes it: what it stood on, or the number of an error if libfabric refuses; then that
    /// stays.
    pub(super) fn close(self) -> Result<Below, c_int> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: forgotten, so this is the only time.
        match unsafe { this.close_fid() } {
            // SAFETY: as above.
            0 => Ok(unsafe { ManuallyDrop::take(&mut this.below) }),
            code => Err(code.saturating_neg()),
        }
    }

    /// # Safety
    ///
    /// Called once, after which nothing uses the object.
    unsafe fn close_fid(&mut self) -> c_int {
        let fid = self.fid.cast::<Fid>();
        // SAFETY: libfabric opened it; every `T` begins with a `Fid`.
        let ops = unsafe { (*fid.as_ptr()).ops };
        // SAFETY: the table of an open object.
        let close = unsafe { (*ops).close };
        // SAFETY: nothing uses it any more: what stands on it keeps it.
        unsafe { close(fid.as_ptr()) }
    }

    /// Its address, good as long as this lives.
    pub(super) fn get(&self) -> *mut T {
        self.fid.as_ptr()
    }

    fn fid(&self) -> *mut Fid {
        self.fid.cast().as_ptr()
    }
}

/// What `fi_getinfo` found, and the fabric that was opened with it.
pub(super) type Fabric = Object<FidFabric, Found>;
pub(super) type Domain = Object<FidDomain, Arc<Fabric>>;
pub(super) type AddressVector = Object<FidAv, Arc<Domain>>;
pub(super) type CompletionQueue = Object<FidCq, Arc<Domain>>;
/// Memory that the provider reaches.
pub(super) type MemoryRegion<Memory> = Object<FidMr, (Arc<Domain>, Memory)>;
/// An endpoint, with its queue, its addresses, and the memory that its operations use.
pub(super) type BareEndpoint = Object<FidEp, EndpointBelow>;
pub(super) type EndpointBelow = (Arc<CompletionQueue>, Arc<AddressVector>, Arc<Buffers>);

/// What `fi_getinfo` found.
pub(super) struct Found(pub(super) Infos);

// SAFETY: written by libfabric only, while it opens something with it, which `open` does in one
// thread before it gives anything away.
unsafe impl Send for Found {}
// SAFETY: as above.
unsafe impl Sync for Found {}

/// A call that failed, and how.
pub(super) type Failed = (&'static str, c_int);

fn of(call: &'static str) -> impl Fn(c_int) -> Failed {
    move |code| (call, code)
}

impl Fabric {
    pub(super) fn open(library: &Libfabric, found: Found) -> Result<Self, Failed> {
        // SAFETY: libfabric gives back no empty list.
        let attr = unsafe { (*found.0.first()).fabric_attr };
        let mut fid = ptr::null_mut();
        // SAFETY: attributes that libfabric made, and room for one pointer.
        let code = unsafe { (library.calls.fabric)(attr, &raw mut fid, ptr::null_mut()) };
        // SAFETY: opened just now.
        unsafe { Self::opened(code, fid, found) }.map_err(of("fi_fabric"))
    }

    /// Whether the wait object of `queue` may be waited at; if not, there is something to read.
    pub(super) fn try_wait(&self, queue: &CompletionQueue) -> bool {
        // SAFETY: an open fabric.
        let ops = unsafe { (*self.get()).ops };
        // SAFETY: its table.
        let trywait = unsafe { (*ops).trywait };
        let mut fid = queue.fid();
        // SAFETY: one queue of this fabric, which is open.
        let code = unsafe { trywait(self.get(), &raw mut fid, 1) };
        code == 0
    }
}

impl Domain {
    pub(super) fn open(fabric: Arc<Fabric>) -> Result<Self, Failed> {
        // SAFETY: an open fabric.
        let ops = unsafe { (*fabric.get()).ops };
        // SAFETY: its table.
        let open = unsafe { (*ops).domain };
        let (info, mut fid) = (fabric.below.0.first(), ptr::null_mut());
        // SAFETY: what libfabric found for this fabric, and room for one pointer.
        let code = unsafe { open(fabric.get(), info, &raw mut fid, ptr::null_mut()) };
        // SAFETY: opened just now.
        unsafe { Self::opened(code, fid, fabric) }.map_err(of("fi_domain"))
    }

    /// Lets the provider do what `access` says with `len` bytes at `start`, which are of `memory`.
    ///
    /// # Safety
    ///
    /// They are there as long as `memory` is, wherever that is moved.
    pub(super) unsafe fn register<Memory>(
        self: &Arc<Self>,
        (start, len): (*const u8, usize),
        access: u64,
        key: u64,
        memory: Memory,
    ) -> Result<MemoryRegion<Memory>, Failed> {
        // SAFETY: an open domain.
        let ops = unsafe { (*self.get()).mr };
        // SAFETY: its table.
        let register = unsafe { (*ops).reg };
        let (mut fid, context) = (ptr::null_mut(), ptr::null_mut());
        let start = start.cast::<c_void>();
        // SAFETY: memory that stays, says the caller, and room for one pointer.
        let code =
            unsafe { register(self.fid(), start, len, access, 0, key, 0, &raw mut fid, context) };
        // SAFETY: opened just now.
        unsafe { Object::opened(code, fid, (self.clone(), memory)) }.map_err(of("fi_mr_reg"))
    }
}

impl Domain {
    /// How many elements of that type the provider combines at once by that operation, in the form
    /// that `flags` name; `None` if it does not.
    pub(super) fn query_atomic(&self, datatype: c_int, op: c_int, flags: u64) -> Option<usize> {
        // SAFETY: an open domain.
        let ops = unsafe { (*self.get()).ops };
        // SAFETY: its table.
        let size = unsafe { (*ops).size };
        if size < offset_of!(DomainOps, query_atomic) + size_of::<usize>() {
            return None;
        }
        // SAFETY: the table has that place.
        let query = unsafe { (*ops).query_atomic };
        let mut attr = AtomicAttr { count: 0, size: 0 };
        // SAFETY: an open domain, and room for attributes.
        let code = unsafe { query(self.get(), datatype, op, &raw mut attr, flags) };
        (code == 0).then_some(attr.count)
    }
}

/// What operations do with memory of their own rank.
pub(super) const LOCAL: u64 = SEND | RECV | READ | WRITE;

impl<Memory> MemoryRegion<Memory> {
    /// Has an endpoint give access to it, where the provider registers memory for one of them
    /// (FI_MR_ENDPOINT). The endpoint is to be closed later.
    pub(super) fn enable_at(&self, endpoint: &BareEndpoint) -> Result<(), Failed> {
        // SAFETY: an open region.
        let ops = unsafe { (*self.fid()).ops };
        // SAFETY: its table.
        let bind = unsafe { (*ops).bind };
        // SAFETY: both are open, and of one domain.
        let code = unsafe { bind(self.fid(), endpoint.fid(), 0) };
        if code != 0 {
            return Err(("fi_mr_bind", code.saturating_neg()));
        }
        // SAFETY: an open region; the command takes nothing.
        let code = unsafe { control(self.fid(), ENABLE, ptr::null_mut()) };
        if code != 0 { Err(("fi_mr_enable", code.saturating_neg())) } else { Ok(()) }
    }

    /// By what peers name it.
    pub(super) fn key(&self) -> u64 {
        // SAFETY: an open region.
        unsafe { (*self.get()).key }
    }

    /// What operations name it by.
    pub(super) fn desc(&self) -> *mut c_void {
        // SAFETY: an open region.
        unsafe { (*self.get()).mem_desc }
    }
}

impl AddressVector {
    /// For so many addresses, perhaps more.
    pub(super) fn open(domain: Arc<Domain>, count: usize) -> Result<Self, Failed> {
        // SAFETY: an open domain.
        let ops = unsafe { (*domain.get()).ops };
        // SAFETY: its table.
        let open = unsafe { (*ops).av_open };
        let mut attr = AvAttr {
            kind: AV_TABLE,
            rx_ctx_bits: 0,
            count,
            ep_per_node: 0,
            name: ptr::null(),
            map_addr: ptr::null_mut(),
            flags: 0,
        };
        let mut fid = ptr::null_mut();
        // SAFETY: attributes, and room for one pointer.
        let code = unsafe { open(domain.get(), &raw mut attr, &raw mut fid, ptr::null_mut()) };
        // SAFETY: opened just now.
        unsafe { Self::opened(code, fid, domain) }.map_err(of("fi_av_open"))
    }

    /// The number of an address, which is as long as this provider's are.
    pub(super) fn insert(&self, address: &[u8]) -> Option<u64> {
        // SAFETY: an open vector.
        let ops = unsafe { (*self.get()).ops };
        // SAFETY: its table.
        let insert = unsafe { (*ops).insert };
        let aligned = aligned(address);
        let (start, mut number) = (aligned.as_ptr().cast(), u64::MAX);
        // SAFETY: one address with zeros behind it, room for one number, no event asked for.
        let count = unsafe { insert(self.get(), start, 1, &raw mut number, 0, ptr::null_mut()) };
        (count == 1 && number != u64::MAX).then_some(number)
    }
}

impl CompletionQueue {
    /// With a file to wait at if the provider has one, which is the second.
    pub(super) fn open(domain: Arc<Domain>, size: usize) -> Result<(Self, Option<c_int>), Failed> {
        let queue = Self::open_with(domain.clone(), size, WAIT_FD);
        if let Ok(queue) = queue
            && let Some(file) = queue.file()
        {
            return Ok((queue, Some(file)));
        }
        Ok((Self::open_with(domain, size, WAIT_NONE).map_err(of("fi_cq_open"))?, None))
    }

    fn open_with(domain: Arc<Domain>, size: usize, wait_obj: c_int) -> Result<Self, c_int> {
        // SAFETY: an open domain.
        let ops = unsafe { (*domain.get()).ops };
        // SAFETY: its table.
        let open = unsafe { (*ops).cq_open };
        let mut attr = CqAttr {
            size,
            flags: 0,
            format: CQ_FORMAT_MSG,
            wait_obj,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: ptr::null_mut(),
        };
        let mut fid = ptr::null_mut();
        // SAFETY: attributes, and room for one pointer.
        let code = unsafe { open(domain.get(), &raw mut attr, &raw mut fid, ptr::null_mut()) };
        // SAFETY: opened just now.
        unsafe { Self::opened(code, fid, domain) }
    }

    fn file(&self) -> Option<c_int> {
        let mut file: c_int = -1;
        // SAFETY: an open queue with a file: the command takes room for its number.
        let code = unsafe { control(self.fid(), GETWAIT, (&raw mut file).cast()) };
        (code == 0 && file >= 0).then_some(file)
    }
}

impl BareEndpoint {
    /// An endpoint that is ready: at its address, messages and transfers can come.
    pub(super) fn open(domain: &Domain, below: EndpointBelow) -> Result<Self, Failed> {
        // SAFETY: an open domain.
        let ops = unsafe { (*domain.get()).ops };
        // SAFETY: its table.
        let open = unsafe { (*ops).endpoint };
        let (info, mut fid) = (domain.below.below.0.first(), ptr::null_mut());
        // SAFETY: what libfabric found for this domain, and room for one pointer.
        let code = unsafe { open(domain.get(), info, &raw mut fid, ptr::null_mut()) };
        // SAFETY: opened just now; queue and addresses keep the domain.
        let endpoint = unsafe { Self::opened(code, fid, below) }.map_err(of("fi_endpoint"))?;
        let (queue, addresses, _) = &*endpoint.below;
        endpoint.bind(queue.fid(), SEND | RECV).map_err(of("fi_ep_bind"))?;
        endpoint.bind(addresses.fid(), 0).map_err(of("fi_ep_bind"))?;
        // SAFETY: an open endpoint; the command takes nothing.
        let code = unsafe { control(endpoint.fid(), ENABLE, ptr::null_mut()) };
        if code != 0 { Err(("fi_enable", code.saturating_neg())) } else { Ok(endpoint) }
    }

    /// `to` is of this endpoint's own domain, and kept by it.
    fn bind(&self, to: *mut Fid, flags: u64) -> Result<(), c_int> {
        // SAFETY: an open endpoint.
        let ops = unsafe { (*self.fid()).ops };
        // SAFETY: its table.
        let bind = unsafe { (*ops).bind };
        // SAFETY: both are open.
        let code = unsafe { bind(self.fid(), to, flags) };
        if code == 0 { Ok(()) } else { Err(code.saturating_neg()) }
    }

    /// Where peers reach it.
    pub(super) fn address(&self) -> Result<Vec<u8>, Failed> {
        // SAFETY: an open endpoint.
        let ops = unsafe { (*self.get()).cm };
        // SAFETY: its table.
        let name = unsafe { (*ops).getname };
        let (mut bytes, mut len) = ([0_u64; 64], size_of::<[u64; 64]>());
        // SAFETY: room for so many bytes.
        let code = unsafe { name(self.fid(), bytes.as_mut_ptr().cast(), &raw mut len) };
        if code != 0 || len > size_of_val(&bytes) {
            return Err(("fi_getname", code.saturating_neg()));
        }
        let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // Those that are text differ in length from rank to rank; zeros behind it are no part.
        let len = if bytes.starts_with(TEXT) { len.next_multiple_of(TEXT_BYTES) } else { len };
        bytes.get(..len).map(<[u8]>::to_vec).ok_or(("fi_getname", libc::ENOBUFS))
    }
}

/// How addresses of the provider `shm` begin, and of how many bytes a multiple they are told as.
const TEXT: &[u8] = b"fi_shm://";
const TEXT_BYTES: usize = 64;

/// An address as providers look at it: as a structure, with zeros behind it.
pub(super) fn aligned(address: &[u8]) -> Vec<u64> {
    let mut words = vec![0; address.len().div_ceil(8) + 16];
    for (word, bytes) in words.iter_mut().zip(address.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    words
}

/// # Safety
///
/// `fid` is open, and `room` is what the command takes.
unsafe fn control(fid: *mut Fid, command: c_int, room: *mut c_void) -> c_int {
    // SAFETY: says the caller.
    let ops = unsafe { (*fid).ops };
    // SAFETY: the table of an open object.
    let control = unsafe { (*ops).control };
    // SAFETY: says the caller.
    unsafe { control(fid, command, room) }
}
