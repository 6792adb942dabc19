//! Where peers are reached: asked for when one is first talked to, and kept of those alone.

use crate::port::lock;
use rma_core::transport::{DeviceError, ImportError, SubmitError, Waker, WorldRank};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

/// What a directory does with a card: the rank it is of, and its bytes. `None` says that it will
/// tell of no further ones.
pub type Told = Box<dyn Fn(Option<(WorldRank, &[u8])>) + Send + Sync>;

/// A launcher, or its stand-in, which knows where the ranks of a job are reached, so that no rank
/// knows all.
pub trait Directory: Send + Sync + 'static {
    /// Why this rank could not say where it is.
    type Error;

    /// Says where this rank is reached: its card. `told` hears the cards that are asked for later,
    /// on any thread, also before `query` returns, and when there will be no more. Called once,
    /// before `join` exchanges anything.
    ///
    /// # Errors
    ///
    /// The directory's own; also if a card is larger than it keeps.
    fn publish(&self, card: &[u8], told: Told) -> Result<(), Self::Error>;

    /// Asks for the card of a rank, without waiting for that; to ask may take seconds. False if
    /// there is no launcher to ask.
    fn query(&self, rank: WorldRank) -> bool;
}

const GONE: &str = "the launcher cannot be asked; see whether rma-run runs";
const OF_ANOTHER: &str = "the launcher has told of another rank; run the same build everywhere";
const NO_ADDRESS: &str = "what the launcher tells is no address; run the same build everywhere";

/// Why there is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It was asked for; there is word when it is here.
    Awaited,
    /// It is not to be had, and why.
    Unknown(&'static str),
}

impl Missing {
    pub(crate) fn submit(self, owner: WorldRank) -> SubmitError {
        match self {
            Self::Awaited => SubmitError::Again,
            Self::Unknown(why) => SubmitError::Unreachable(ImportError::NoAddress { owner, why }),
        }
    }

    /// `None` as long as it is awaited.
    pub(crate) fn post(self, peer: WorldRank) -> Option<DeviceError> {
        match self {
            Self::Awaited => None,
            Self::Unknown(why) => Some(DeviceError::NoAddress { peer, why }),
        }
    }
}

/// What is known of one rank.
enum Entry {
    Queried,
    Here(Arc<[u8]>),
    Wrong(&'static str),
}

impl Entry {
    fn address(&self) -> Result<Arc<[u8]>, Missing> {
        match self {
            Self::Queried => Err(Missing::Awaited),
            Self::Here(address) => Ok(address.clone()),
            Self::Wrong(why) => Err(Missing::Unknown(why)),
        }
    }
}

/// Addresses of peers that this rank has talked to.
pub(crate) struct Book {
    size: u32,
    /// Bytes of an address.
    len: usize,
    query: Box<dyn Fn(WorldRank) -> bool + Send + Sync>,
    waker: Arc<OnceLock<Waker>>,
    entries: Mutex<FxHashMap<WorldRank, Entry>>,
    /// Cards of ranks that this one had not asked for.
    unsought: AtomicU64,
}

/// What a rank gives the directory: its number, and where it is.
pub(crate) fn card(rank: WorldRank, address: &[u8]) -> Vec<u8> {
    [&rank.0.to_le_bytes(), address].concat()
}

impl Book {
    /// Of a job of so many ranks, whose addresses have so many bytes.
    pub(crate) fn new(
        (size, len): (u32, usize),
        query: Box<dyn Fn(WorldRank) -> bool + Send + Sync>,
        waker: Arc<OnceLock<Waker>>,
    ) -> Self {
        let (entries, unsought) = (Mutex::default(), AtomicU64::new(0));
        Self { size, len, query, waker, entries, unsought }
    }

    /// Ranks of the job.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// The address of a peer, as far as it is known: the directory is not asked.
    pub(crate) fn known(&self, peer: WorldRank) -> Result<Arc<[u8]>, Missing> {
        lock(&self.entries).get(&peer).map_or(Err(Missing::Awaited), Entry::address)
    }

    /// The address of a peer, which is asked for if it is not known. That may take seconds, where
    /// the launcher does not read.
    pub(crate) fn address(&self, peer: WorldRank) -> Result<Arc<[u8]>, Missing> {
        {
            let mut entries = lock(&self.entries);
            if let Some(entry) = entries.get(&peer) {
                return entry.address();
            }
            // One thread asks, and others that come meanwhile do not.
            entries.insert(peer, Entry::Queried);
        }
        // The directory may answer at once, and the peer say it itself meanwhile.
        let is_queried = (self.query)(peer);
        let mut entries = lock(&self.entries);
        let entry = entries.entry(peer).or_insert(Entry::Queried);
        if !is_queried && matches!(entry, Entry::Queried) {
            *entry = Entry::Wrong(GONE);
        }
        entry.address()
    }

    /// The directory tells nothing any more: what was asked for does not come.
    pub(crate) fn end(&self) {
        for entry in lock(&self.entries).values_mut() {
            if matches!(entry, Entry::Queried) {
                *entry = Entry::Wrong(GONE);
            }
        }
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// The directory tells where a rank is. Only what was asked for is taken, and once.
    pub(crate) fn told(&self, peer: WorldRank, card: &[u8]) {
        if let Some(entry @ Entry::Queried) = lock(&self.entries).get_mut(&peer) {
            *entry = match card.split_first_chunk() {
                Some((owner, _)) if u32::from_le_bytes(*owner) != peer.0 => {
                    Entry::Wrong(OF_ANOTHER)
                }
                Some((_, address)) if address.len() == self.len => Entry::Here(address.into()),
                _ => Entry::Wrong(NO_ADDRESS),
            };
        } else {
            self.unsought.fetch_add(1, Relaxed);
        }
        self.wake();
    }

    /// A peer says itself where it is. False if that is no address.
    pub(crate) fn learn(&self, peer: WorldRank, address: &[u8]) -> bool {
        let is_address = address.len() == self.len;
        if is_address {
            let mut entries = lock(&self.entries);
            let entry = entries.entry(peer).or_insert(Entry::Queried);
            if !matches!(entry, Entry::Here(_)) {
                *entry = Entry::Here(address.into());
            }
        }
        is_address
    }

    /// How many addresses there are, for `explain`.
    pub(crate) fn shown(&self) -> String {
        let here = |entry: &&Entry| matches!(entry, Entry::Here(_));
        let known = lock(&self.entries).values().filter(here).count();
        let mut text = format!("; the addresses of {known} of {} ranks are known", self.size);
        let unsought = self.unsought.load(Relaxed);
        if unsought > 0 {
            text += &format!(", {unsought} were told that nobody had asked for");
        }
        text
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
