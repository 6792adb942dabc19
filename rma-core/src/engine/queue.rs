//! Transfers that are under way: a queue for each thread, which is an endpoint of the device and
//! what becomes of each transfer that ends there.
//!
//! Bytes that were fetched are dealt out under the mutex of their queue, and the device is cut off
//! under it from what it writes directly: so when [`Pending::is_done`] says so, or
//! [`Queue::cancel`] has returned, nothing is written any more and the buffer may die.
#![allow(unsafe_code)]

use crate::engine::{Buffer, Lost, Pending};
use crate::rank::WorldRank;
use crate::thread;
use crate::transport::{
    DeviceError, Endpoint, PostError, Posted, Purpose, Remote, There, Transfer,
};
use core::hash::BuildHasher;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Queues that a rank has for each purpose, at most: of more threads, some share one.
const QUEUES: usize = 16;

/// The queues of one rank.
#[derive(Default)]
pub(crate) struct Queues {
    all: [OnceLock<Queue>; 2 * QUEUES],
    /// Those that there are, or will be at once, as bits.
    made: AtomicU32,
    /// Held by a thread that makes a queue: as bits, places of purposes for which the device has no
    /// more.
    refused: Mutex<u32>,
}

/// An endpoint, and what is under way on it.
pub(crate) struct Queue {
    // First: when it is gone, nothing is touched that transfers were given.
    endpoint: Box<dyn Endpoint>,
    table: Mutex<TransferTable>,
    /// There is a [loss](Self::losses): without, the table need not be asked.
    has_lost: AtomicBool,
    /// Its bit.
    pub(crate) bit: u32,
}

#[derive(Default)]
struct TransferTable {
    /// Ids so far: they do not repeat.
    ids: u64,
    under_way: FxHashMap<u64, UnderWay>,
    /// What was put at a peer and lost, and why it was that was not refused, the last time.
    losses: FxHashMap<WorldRank, (Losses, Option<DeviceError>)>,
}

/// How often a queue has lost something that it had put at a peer. A count of an earlier time is
/// less.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Losses {
    /// It was [refused](DeviceError::Refused): of what was put to other memory, that says nothing.
    refused: u64,
    /// What has become of anything that was put there is not known.
    unknown: u64,
}

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A transfer to or from memory of its own.
    Bounced,
    /// A transfer to or from memory of the caller.
    Direct,
    Flush,
}

/// A transfer that is not complete.
pub(crate) struct UnderWay {
    pub(crate) peer: WorldRank,
    /// `None` once no operation waits for it.
    pub(crate) pending: Option<Arc<Pending>>,
    /// What the device reads, and behind it what it writes, unless these are the caller's.
    // Not a box: moving that asserts that nothing else has the address of its bytes.
    pub(crate) bounce: Vec<u8>,
    /// Where in the peer's part it begins; `None` for a flush.
    pub(crate) at: Option<u64>,
    /// Where the last bytes of it go.
    pub(crate) into: Buffer,
    pub(crate) what: What,
}

// SAFETY: the address in `into` is only written through under the mutex of the queue, and what it
// points to is exclusively the transfer's until that is complete or cancelled (contract of
// `Queue::post`).
unsafe impl Send for UnderWay {}

impl UnderWay {
    /// The end of the transfer: what was fetched goes where it belongs.
    fn end(&self, result: Result<(), DeviceError>) {
        let Some(pending) = &self.pending else { return };
        match result {
            Ok(()) if self.into.len > 0 => {
                let from = &self.bounce[self.bounce.len() - self.into.len..];
                // SAFETY: the caller of `Queue::post` vouched for the buffer until the transfer is
                // complete or cancelled, which it is not: `pending` is here, and not released.
                unsafe { self.into.at.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
            }
            Ok(()) => {}
            Err(error) => {
                pending.fail_by_device(Lost { error, peer: self.peer, at: self.at });
            }
        }
        pending.release();
    }
}

/// A transfer that is posted just now. It goes to the table, unless it is taken out: also where the
/// device panics, which may have its memory then. A thread that polls meanwhile waits for the
/// table.
struct Begun<'t> {
    table: &'t mut TransferTable,
    id: u64,
    transfer: Option<UnderWay>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let transfer = self.transfer.take();
        transfer.into_iter().for_each(|it| _ = self.table.under_way.insert(self.id, it));
    }
}

/// The first place of queues for a purpose.
const fn first(purpose: Purpose) -> usize {
    match purpose {
        Purpose::Parts => 0,
        Purpose::Regions => QUEUES,
    }
}

/// All of those places, as bits.
const fn places(purpose: Purpose) -> u32 {
    ((1 << QUEUES) - 1) << first(purpose)
}

impl Queues {
    /// That of this thread; if the device has no endpoint for it, that of another one.
    pub(crate) fn mine(
        &self,
        remote: &dyn Remote,
        purpose: Purpose,
    ) -> Result<&Queue, DeviceError> {
        let place = FxBuildHasher.hash_one(thread::id()) as usize % QUEUES;
        let place = first(purpose) + place;
        let queue = &self.all[place];
        match queue.get() {
            Some(queue) => Ok(queue),
            None => self.make(remote, purpose, place),
        }
    }

    #[cold]
    fn make(
        &self,
        remote: &dyn Remote,
        purpose: Purpose,
        place: usize,
    ) -> Result<&Queue, DeviceError> {
        // One thread at a time: one that is refused finds the queue that another has made just
        // before.
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let others = || self.with(places(purpose)).next().or_else(|| self.all().next());
        let shared = || others().filter(|_| *refused & places(purpose) != 0);
        let queue = &self.all[place];
        if let Some(queue) = queue.get().or_else(shared) {
            return Ok(queue);
        }
        let endpoint = match remote.endpoint(purpose) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                *refused |= places(purpose);
                return others().ok_or(error);
            }
        };
        let bit = 1 << place;
        // Before any thread can use it: one that looks for queues finds it then.
        self.made.fetch_or(bit, Relaxed);
        Ok(queue.get_or_init(|| Queue::new(endpoint, bit)))
    }

    /// Those with these bits.
    pub(crate) fn with(&self, bits: u32) -> impl Iterator<Item = &Queue> {
        let mut bits = bits & self.made.load(Relaxed);
        let places = core::iter::from_fn(move || {
            let place = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(place)
        });
        places.filter_map(|place| self.all[place].get())
    }

    fn all(&self) -> impl Iterator<Item = &Queue> {
        self.with(u32::MAX)
    }

    /// Ends what is complete; returns how many transfers that were.
    pub(crate) fn poll(&self) -> usize {
        if self.made.load(Relaxed) == 0 {
            return 0;
        }
        self.all().map(Queue::poll).sum()
    }

    /// See [`Queue::cancel`].
    pub(crate) fn cancel(&self, pending: &Arc<Pending>) {
        self.all().for_each(|queue| queue.cancel(pending));
    }

    /// A peer that `pending` waits for. `turn` chooses one of several.
    pub(crate) fn debtor(&self, pending: &Arc<Pending>, turn: usize) -> Option<WorldRank> {
        let mut peers = Vec::new();
        self.all().for_each(|queue| queue.debtors(pending, &mut peers));
        peers.sort_unstable();
        peers.get(turn.checked_rem(peers.len())?).copied()
    }
}

impl Queue {
    fn new(endpoint: Box<dyn Endpoint>, bit: u32) -> Self {
        Self { endpoint, table: Mutex::default(), has_lost: AtomicBool::new(false), bit }
    }

    fn lock(&self) -> MutexGuard<'_, TransferTable> {
        // Nothing in here panics half-way through a change.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a transfer, which is taken out of `under_way` and counted in its `pending`.
    ///
    /// # Safety
    ///
    /// `transfer` names memory of `under_way`; or, if that says so, the caller's. That, and the
    /// buffer that bytes go to, stays valid, and is touched by nothing else, until `pending` is
    /// done or was [cancelled](Self::cancel); or `pending` [keeps](Pending::keep) its owner. Of a
    /// put that the device injects, it is valid during the call.
    pub(crate) unsafe fn post(
        &self,
        under_way: &mut Option<UnderWay>,
        transfer: &Transfer,
        there: &There,
    ) -> Result<(), PostError> {
        // SAFETY: forwarded to the caller.
        self.begin(under_way, |id| unsafe { self.endpoint.post(id, transfer, there) })
    }

    fn lose(&self, table: &mut TransferTable, peer: WorldRank, why: DeviceError) {
        let (losses, last) = table.losses.entry(peer).or_default();
        if why == DeviceError::Refused {
            losses.refused += 1;
        } else {
            losses.unknown += 1;
            *last = Some(why);
        }
        self.has_lost.store(true, Relaxed);
    }

    /// How often something was lost that this queue had put at a peer.
    pub(crate) fn losses(&self, peer: WorldRank) -> Losses {
        // What another thread loses just now is before or after.
        if !self.has_lost.load(Relaxed) {
            return Losses::default();
        }
        self.lock().losses.get(&peer).map_or(Losses::default(), |(losses, _)| *losses)
    }

    /// Why something was lost that this queue has put at a peer, if it was since that count:
    /// [`Refused`](DeviceError::Refused) only if that is all.
    pub(crate) fn lost_since(&self, peer: WorldRank, before: Losses) -> Option<DeviceError> {
        let table = self.lock();
        let (now, last) = table.losses.get(&peer)?;
        let refused = (now.refused != before.refused).then_some(DeviceError::Refused);
        last.filter(|_| now.unknown != before.unknown).or(refused)
    }

    /// Counts in `pending` that all has happened at `peer` that was posted here before. If it has
    /// not, that is a [loss](Self::losses).
    pub(crate) fn flush(&self, peer: WorldRank, pending: &Arc<Pending>) -> Result<(), PostError> {
        let pending = Some(pending.clone());
        let (bounce, into, what) = (Vec::new(), Buffer::NONE, What::Flush);
        let mut flush = Some(UnderWay { peer, pending, bounce, at: None, into, what });
        let begun = self.begin(&mut flush, |id| self.endpoint.flush(id, peer));
        if let Err(PostError::Device(error)) = begun {
            self.lose(&mut self.lock(), peer, error);
        }
        begun
    }

    fn begin(
        &self,
        under_way: &mut Option<UnderWay>,
        post: impl FnOnce(u64) -> Result<Posted, PostError>,
    ) -> Result<(), PostError> {
        let mut table = self.lock();
        let Some(begun) = under_way.take() else { return Ok(()) };
        begun.pending.iter().for_each(|pending| pending.hold());
        table.ids += 1;
        let id = table.ids;
        let mut begun = Begun { table: &mut table, id, transfer: Some(begun) };
        let posted = post(id);
        if posted == Ok(Posted::Pending) {
            return Ok(());
        }
        let ended = begun.transfer.take();
        drop(begun);
        if let Err(error) = posted {
            ended.iter().flat_map(|it| &it.pending).for_each(|pending| _ = pending.release());
            *under_way = ended;
            return Err(error);
        }
        ended.iter().for_each(|ended| ended.end(Ok(())));
        drop(table);
        // Perhaps with the last reference to what is kept: dropped outside the mutex.
        drop(ended);
        Ok(())
    }

    fn poll(&self) -> usize {
        self.endpoint.poll(&mut |id, result| {
            let mut table = self.lock();
            let ended = table.under_way.remove(&id);
            if let (Some(UnderWay { what: What::Flush, peer, .. }), Err(error)) = (&ended, result) {
                self.lose(&mut table, *peer, error);
            }
            ended.iter().for_each(|ended| ended.end(result));
            drop(table);
            drop(ended);
        })
    }

    /// Takes back the buffers of `pending`. What the device moves directly is cut off, and with it
    /// all that is under way to the same peers.
    fn cancel(&self, pending: &Arc<Pending>) {
        let mut table = self.lock();
        let (mut cut, mut ended) = (Vec::new(), Vec::new());
        for under_way in table.under_way.values_mut() {
            let counted = under_way.pending.as_ref();
            if !counted.is_some_and(|counted| Arc::ptr_eq(counted, pending)) {
                continue;
            }
            if under_way.what == What::Direct {
                cut.push(under_way.peer);
            } else if let Some(counted) = under_way.pending.take() {
                // The device goes on in memory of the transfer.
                under_way.into = Buffer::NONE;
                counted.cancel();
                // Not the last reference: the caller has one.
                drop(counted);
            }
        }
        cut.sort_unstable();
        cut.dedup();
        for peer in cut {
            self.endpoint.quiesce(peer);
            self.lose(&mut table, peer, DeviceError::CutOff(peer));
            ended.extend(table.under_way.extract_if(|_, under_way| under_way.peer == peer));
        }
        let cancelled = ended.iter().flat_map(|(_, under_way)| &under_way.pending);
        cancelled.for_each(|pending| pending.cancel());
        drop(table);
        drop(ended);
    }

    fn debtors(&self, pending: &Arc<Pending>, peers: &mut Vec<WorldRank>) {
        let table = self.lock();
        let counted =
            |it: &&UnderWay| it.pending.as_ref().is_some_and(|it| Arc::ptr_eq(it, pending));
        peers.extend(table.under_way.values().filter(counted).map(|it| it.peer));
    }
}
