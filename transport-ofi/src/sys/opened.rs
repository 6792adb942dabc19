//! A provider that was opened: endpoints, and memory that it gives peers access to.
#![allow(unsafe_code)]

use super::alias::{Alias, NoAlias};
use super::atomics::Atomics;
use super::end::end;
use super::endpoint::Endpoint;
use super::layout::{
    ATOMIC, MR_ENDPOINT, MR_LOCAL, MR_PROV_KEY, MR_VIRT_ADDR, MSG, PROGRESS_AUTO, REMOTE_READ,
    REMOTE_WRITE, RMA,
};
use super::library::Libfabric;
use super::object::{
    AddressVector, BareEndpoint, CompletionQueue, Domain, Fabric, Failed, Found, LOCAL,
    MemoryRegion,
};
use super::slots::{Buffers, Slot, Slots};
use crate::{Offer, OfiError};
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Addresses that an endpoint expects, and completions that it may have beyond its slots.
const BATCH: usize = 32;
/// The first key of registrations of slots, where the provider takes ours.
const FIRST_KEY: u64 = 0x736c_6f74 << 32;

/// Why a provider is not taken that wants slots registered before their endpoint is there.
const SLOTS_PER_ENDPOINT: &str =
    "wants local memory registered for each endpoint, which rma does not do";

/// Endpoints of a rank that may be [left open](Endpoint::close), each with what its provider takes.
const LEFT_MOST: u32 = 8;

/// What endpoints of a provider are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caps {
    /// Messages.
    Messages,
    /// Messages, and memory of peers.
    Memory,
    /// The same, and atomics there.
    Atomics,
}

impl Caps {
    pub(crate) fn of(memory: bool, atomics: bool) -> Self {
        match (memory, atomics) {
            (false, _) => Self::Messages,
            (true, false) => Self::Memory,
            (true, true) => Self::Atomics,
        }
    }

    fn bits(self) -> u64 {
        match self {
            Self::Messages => MSG,
            Self::Memory => MSG | RMA,
            Self::Atomics => MSG | RMA | ATOMIC,
        }
    }
}

/// A provider that was opened.
pub(crate) struct Opened {
    library: Libfabric,
    offer: Offer,
    /// The address of this host that endpoints use.
    host: Option<String>,
    domain: Arc<Domain>,
    modes: c_int,
    /// What endpoints were asked for.
    caps: Caps,
    /// Bytes of a key.
    key_size: usize,
    /// Whether the provider makes its progress by itself.
    progresses: bool,
    /// Whether the provider was told to touch memory without a call, too.
    pub(crate) acts_by_itself: bool,
    /// The key of the next slots that are registered.
    next_key: AtomicU64,
    /// Endpoints that were left open.
    left: Arc<AtomicU32>,
}

impl Opened {
    /// `host` is the address of this host that endpoints use, where addresses are those of the
    /// internet.
    pub(crate) fn open(
        library: &Libfabric,
        offer: &Offer,
        host: Option<&str>,
        caps: Caps,
    ) -> Result<Self, OfiError> {
        Self::open_at(library, offer, (host, None), caps)
    }

    /// As [`open`](Self::open), at that port of the address.
    pub(crate) fn open_at(
        library: &Libfabric,
        offer: &Offer,
        (host, service): (Option<&str>, Option<&str>),
        caps: Caps,
    ) -> Result<Self, OfiError> {
        let found = Found(library.infos_of(offer, (host, service), caps.bits())?);
        let (offer, host) = (offer.clone(), host.map(ToOwned::to_owned));
        let failed = |failed| refused(library, (&offer, host.as_deref()), failed);
        let info = found.0.first();
        // SAFETY: libfabric gives back no empty list, nor one without these attributes.
        let attributes = unsafe { (*info).domain_attr };
        // SAFETY: as above.
        let modes = unsafe { (*attributes).mr_mode };
        // SAFETY: as above.
        let progress = unsafe { (*attributes).data_progress };
        // SAFETY: as above.
        let key_size = unsafe { (*attributes).mr_key_size };
        let fabric = Arc::new(Fabric::open(library, found).map_err(failed)?);
        let domain = Arc::new(Domain::open(fabric).map_err(failed)?);
        let (library, progresses) = (*library, progress == PROGRESS_AUTO);
        let (next_key, left) = (AtomicU64::new(FIRST_KEY), Arc::default());
        let opened = Self {
            library,
            offer,
            host,
            domain,
            modes,
            caps,
            key_size,
            progresses,
            acts_by_itself: false,
            next_key,
            left,
        };
        // Its slots would have to be registered.
        if opened.wants_registered() && modes & MR_ENDPOINT != 0 {
            return Err(opened.unfit(SLOTS_PER_ENDPOINT));
        }
        Ok(opened)
    }

    pub(crate) fn failed(&self, failed: (&'static str, c_int)) -> OfiError {
        refused(&self.library, (&self.offer, self.host.as_deref()), failed)
    }

    fn unfit(&self, why: &'static str) -> OfiError {
        OfiError::Unfit { provider: self.offer.provider.clone(), why }
    }

    /// Whether operations take registered memory only.
    pub(crate) fn wants_registered(&self) -> bool {
        self.modes & MR_LOCAL != 0
    }

    /// Whether the provider chooses the keys of memory.
    pub(crate) fn chooses_keys(&self) -> bool {
        self.modes & MR_PROV_KEY != 0
    }

    /// Bits of the keys that the provider takes.
    pub(crate) fn key_bits(&self) -> u32 {
        u32::try_from(8 * self.key_size).unwrap_or(u64::BITS).min(u64::BITS)
    }

    /// As much of a key as the provider takes.
    fn fitting(&self, key: u64) -> u64 {
        key & u64::MAX.checked_shr(u64::BITS - self.key_bits()).unwrap_or(0)
    }

    /// Whether places in memory of peers are addresses there.
    pub(crate) fn counts_by_address(&self) -> bool {
        self.modes & MR_VIRT_ADDR != 0
    }

    /// Whether the provider makes its progress by itself.
    pub(crate) fn progresses(&self) -> bool {
        self.progresses
    }

    /// What it has of the core's atomics, if it was opened for them.
    pub(crate) fn atomics(&self) -> Atomics {
        if self.caps != Caps::Atomics {
            return Atomics::default();
        }
        Atomics::query(|datatype, op, form| self.domain.query_atomic(datatype, op, form.flags()))
    }

    /// Refuses providers that were opened without access to memory, or whose memory cannot be
    /// registered as rma does.
    pub(crate) fn check_memory(&self, caps: Caps) -> Result<(), OfiError> {
        if caps == Caps::Messages {
            return Err(self.unfit("has no remote memory access"));
        }
        if self.key_size > size_of::<u64>() {
            return Err(self.unfit("has keys of more than 8 bytes, which rma does not pass on"));
        }
        if self.chooses_keys() && !self.counts_by_address() {
            return Err(
                self.unfit("chooses keys, perhaps old ones again, for memory without addresses")
            );
        }
        Ok(())
    }

    /// An endpoint with so many slots of so many bytes, and the handles of these.
    pub(crate) fn endpoint(&self, size: (u32, usize)) -> Result<(Endpoint, Vec<Slot>), Failed> {
        self.endpoint_of(&self.domain, size)
    }

    /// The same, for transfers to and from memory of peers: by `tcp` with a fabric of its own,
    /// whose domain no call for another endpoint makes progress of.
    /// That provider lists an answer that is half here twice, as the next that is expected and as
    /// what is being read, and when its connection is closed then, it tells of both and frees
    /// both; `ofi_rxm` reads what was freed (seen with 1.17: the process ends by SIGSEGV).
    ///
    /// # Errors
    ///
    /// The provider's, or `EBUSY` if so many were left open that there may not be more.
    pub(crate) fn active(&self, size: (u32, usize)) -> Result<(Endpoint, Vec<Slot>), Failed> {
        if self.progresses || self.acts_by_itself || !self.offer.provider.starts_with("tcp") {
            return self.endpoint(size);
        }
        if self.left.load(Relaxed) >= LEFT_MOST {
            return Err(("fi_close", libc::EBUSY));
        }
        let infos =
            self.library.infos_of(&self.offer, (self.host.as_deref(), None), self.caps.bits());
        let found = Found(infos.map_err(|_| ("fi_getinfo", libc::ENODATA))?);
        let domain = Arc::new(Domain::open(Arc::new(Fabric::open(&self.library, found)?))?);
        let (endpoint, slots) = self.endpoint_of(&domain, size)?;
        Ok((Endpoint { alone: Some(self.left.clone()), ..endpoint }, slots))
    }

    fn endpoint_of(
        &self,
        domain: &Arc<Domain>,
        (count, bytes): (u32, usize),
    ) -> Result<(Endpoint, Vec<Slot>), Failed> {
        let (slots, handles) = Slots::new(count, bytes).ok_or(("alloc", libc::ENOMEM))?;
        let buffers = if self.wants_registered() {
            // No two registrations of a domain may have one key.
            let (span, key) = (slots.span(), self.fitting(self.next_key.fetch_add(1, Relaxed)));
            // SAFETY: memory of the slots, on the heap.
            let region = unsafe { domain.register(span, LOCAL, key, slots) };
            Buffers::Registered(region?)
        } else {
            Buffers::Plain(slots)
        };
        let (buffers, room) = (Arc::new(buffers), count as usize + BATCH);
        let (queue, file) = CompletionQueue::open(domain.clone(), room)?;
        let queue = Arc::new(queue);
        let addresses = Arc::new(AddressVector::open(domain.clone(), BATCH)?);
        let below = (queue.clone(), addresses.clone(), buffers.clone());
        let bare = BareEndpoint::open(domain, below)?;
        let address = bare.address()?;
        let fabric = Arc::clone(&domain.below);
        let caps = self.caps;
        let (has_ended, alone) = (AtomicBool::new(false), None);
        let endpoint = Endpoint {
            bare,
            queue,
            addresses,
            buffers,
            fabric,
            file,
            address,
            caps,
            has_ended,
            alone,
        };
        Ok((endpoint, handles))
    }
}

fn refused(
    library: &Libfabric,
    (offer, host): (&Offer, Option<&str>),
    (call, code): (&'static str, c_int),
) -> OfiError {
    let (provider, reason) = (offer.provider.clone(), library.says(code));
    let host = host.unwrap_or("any address").to_owned();
    OfiError::Open { provider, host, call, code, reason }
}

/// An endpoint by which peers reach memory of this rank, which closes it before it gives up what
/// it may still touch.
pub(crate) struct Passive {
    endpoint: ManuallyDrop<Endpoint>,
    /// What was left of memory that peers reached: a transfer may be in the middle of it.
    remains: ManuallyDrop<Mutex<Vec<super::alias::Remains>>>,
    /// Whether no message may come while it is closed.
    pub(crate) is_delicate: bool,
    stays_open: AtomicBool,
}

impl Passive {
    /// An endpoint of `opened`.
    pub(crate) fn new(opened: &Opened, endpoint: Endpoint) -> Self {
        // The layer uses what it has freed if a message comes meanwhile; over tcp, thousands that
        // were closed have not shown that.
        let is_delicate = opened.offer.provider.ends_with(";ofi_rxm")
            && !opened.offer.provider.starts_with("tcp");
        let (endpoint, stays_open) = (ManuallyDrop::new(endpoint), AtomicBool::new(false));
        Self { endpoint, remains: ManuallyDrop::default(), is_delicate, stays_open }
    }

    /// As one of a provider whose endpoints are closed when no message may come.
    #[cfg(test)]
    pub(crate) fn delicate(mut self) -> Self {
        self.is_delicate = true;
        self
    }

    /// Whether it, and what it may touch, is to stay as long as the process.
    pub(crate) fn stay_open(&self, stays: bool) {
        self.stays_open.store(stays, Relaxed);
    }
}

impl Deref for Passive {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Drop for Passive {
    fn drop(&mut self) {
        // SAFETY: dropped here only.
        let endpoint = unsafe { ManuallyDrop::take(&mut self.endpoint) };
        if *self.stays_open.get_mut() {
            std::mem::forget(endpoint);
        } else if endpoint.close().is_ok() {
            // SAFETY: as above.
            unsafe { ManuallyDrop::drop(&mut self.remains) };
        }
    }
}

/// Memory that peers reach by a passive endpoint, until this is dropped.
pub(crate) struct Exposed {
    region: ManuallyDrop<MemoryRegion<Alias>>,
    passive: Arc<Passive>,
    /// Where the first byte is, as the provider counts.
    start: u64,
}

impl Exposed {
    /// Gives peers access to `len` bytes at `base`, with that key if the provider takes keys.
    ///
    /// # Errors
    ///
    /// Memory that has no second mapping, or the provider's error.
    ///
    /// # Safety
    ///
    /// The memory stays mapped until this is dropped, and others read and write it at any time.
    pub(crate) unsafe fn new(
        opened: &Opened,
        passive: Arc<Passive>,
        (base, len): (*mut u8, usize),
        key: u64,
    ) -> Result<Self, NoAlias> {
        // SAFETY: mapped, says the caller.
        let alias = unsafe { Alias::new(base, len) }?;
        Ok(Self::of(opened, passive, alias, key)?)
    }

    /// Gives peers access to new memory, which has no other owner.
    ///
    /// # Errors
    ///
    /// The system's, or the provider's.
    pub(crate) fn fresh(
        opened: &Opened,
        passive: Arc<Passive>,
        len: usize,
        key: u64,
    ) -> Result<Self, Failed> {
        Self::of(opened, passive, Alias::fresh(len)?, key)
    }

    fn of(opened: &Opened, passive: Arc<Passive>, alias: Alias, key: u64) -> Result<Self, Failed> {
        let (first, len) = alias.span();
        let start = if opened.counts_by_address() { first.expose_provenance() as u64 } else { 0 };
        let (span, access) = ((first.cast_const(), len), REMOTE_READ | REMOTE_WRITE);
        // SAFETY: addresses of the alias, which it keeps wherever it is moved.
        let region = unsafe { opened.domain.register(span, access, opened.fitting(key), alias) }?;
        if opened.modes & MR_ENDPOINT != 0 {
            region.enable_at(&passive.bare)?;
        }
        Ok(Self { region: ManuallyDrop::new(region), passive, start })
    }

    /// The key, and where the first byte is: what peers must know.
    pub(crate) fn key(&self) -> (u64, u64) {
        (self.region.key(), self.start)
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        // SAFETY: dropped here only.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        let (_, alias) = match region.close() {
            Ok(below) => below,
            // Hardware may go on in these pages, whatever is mapped.
            Err(code) => end("memory of a window", ("fi_close", code)),
        };
        // A provider in the middle of a transfer goes on in what is left.
        let remains = alias.cut();
        self.passive.remains.lock().unwrap_or_else(PoisonError::into_inner).push(remains);
    }
}
