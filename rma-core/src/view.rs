//! Direct loads and stores: this rank's own part, and parts of ranks that share memory.
#![allow(unsafe_code)]

mod durable;
mod value;

use crate::element::{AtomicElement, BasicElement, BasicType, Element, Op};
use crate::engine::grant;
use crate::error::RmaError;
use crate::execute::Placed;
use crate::integer::Integer;
use crate::memory::target::{Permit, Span};
use crate::operation::{Action, Operation, Side, Sink};
use crate::rank::Rank;
use crate::transport::Touch;
use crate::window::regions::OwnRegion;
use crate::window::{Memory, PeerPart, Window};
use bytemuck::{bytes_of, bytes_of_mut, cast_slice, cast_slice_mut};
use core::time::Duration;
use std::sync::Arc;
use value::Awaited;

pub use durable::DurableRequest;

/// From so many bytes on, what a part lies on is asked to store them. See [`Backing::store`].
///
/// [`Backing::store`]: crate::Backing::store
const LARGE: usize = 64 << 10;

/// A part of a window in this address space, to be loaded and stored without an epoch.
///
/// Other ranks may write the same bytes at any time, so there is no slice of it: values are copied
/// in and out. What they mean while others write is the program's affair (locks, fences,
/// [`Window::sync`] with a barrier); a racing read may be torn, never undefined.
pub struct View<'w> {
    window: &'w Window,
    /// The lowest one with bytes, if none was named. S-K3
    rank: Rank,
    /// Where operations act, too: there is one copy of the part. S-M1
    base: *mut u8,
    /// Of an empty part, 0. S-K5
    size: u64,
    disp_unit: u32,
    /// Of its first byte in the part.
    offset: u64,
    /// Whether a device reaches it, if one reaches the window.
    registered: bool,
    /// Keeps a region of a dynamic window mapped; other parts are as long as their window.
    region: Option<Arc<Memory>>,
}

// SAFETY: the address is shared memory that is only accessed through the copy and atomic kernels,
// which any number of threads may do at once; everything else in it is `Send`.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl Window {
    /// This rank's own part.
    pub fn local(&self) -> View<'_> {
        let (base, size, disp_unit) = (self.part.base(), self.size(), self.disp_unit());
        let (rank, registered) = (self.rank(), true);
        View { window: self, rank, base, size, disp_unit, offset: 0, registered, region: None }
    }

    /// The part of `rank`, where load and store reach it (MPI 4.1, section 12.2.3).
    ///
    /// [`Rank::NULL`] asks for the lowest rank whose part is not empty.
    pub fn shared_query(&self, rank: Rank) -> Result<View<'_>, RmaError> {
        let filled = || self.peers.iter().find(|(_, peer)| peer.size > 0);
        let first = || filled().map_or(Rank(0), |(rank, _)| rank);
        let rank = if rank == Rank::NULL { first() } else { rank };
        if rank.0 >= self.ranks() {
            return Err(self.no_such_rank(rank));
        }
        let window = self.id();
        let reachable = |peer: &&PeerPart| {
            self.part.regions.is_none() && (!peer.stays() || rank == self.rank())
        };
        let Some(peer) = self.peers.get(rank).filter(reachable) else {
            return Err(RmaError::NotShared { window, target: rank });
        };
        let (size, disp_unit) = (peer.size, peer.disp_unit);
        // The memory that operations act on, in every epoch: a load sees what a flush completed.
        // S-F2 S-K6
        let base = self.map_data(rank).map_err(|error| self.import_failed(error))?;
        let (offset, registered) = (0, true);
        Ok(View { window: self, rank, base, size, disp_unit, offset, registered, region: None })
    }

    /// Orders this rank's loads and stores with those of others, and with operations on the
    /// window (MPI 4.1, section 12.5.4). It completes nothing.
    ///
    /// Where this rank's part lies on storage, what was there before the call is durable when it
    /// returns, as by [`persist`](Self::persist); in a dynamic window, in all its regions. What a
    /// memory of versions keeps back for its next version is not.
    ///
    /// # Errors
    ///
    /// [`RmaError::Persist`] where the part lies on storage; memory has none.
    #[inline]
    pub fn sync(&self) -> Result<(), RmaError> {
        grant::wait(None);
        self.engine().transport.touches(Touch::Look);
        // Its own stores before, and loads after, are in order with operations. S-F8 S-F9 S-M2 S-M4
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
        self.persist_part()
    }

    /// Flushes a target, and has it make its part durable; in a dynamic window, all its regions
    /// that can be. What this rank has put there before, and whatever else was stored there,
    /// outlives a crash of the machine then.
    ///
    /// The target's agent does so, as it serves any message, and serves no other meanwhile; without
    /// one, the target's next call of the library.
    ///
    /// # Errors
    ///
    /// [`RmaError::Persist`] of the target: its part ends with the job, or its system fails; see
    /// [`PersistError`](crate::PersistError). Those of a flush.
    pub fn sync_remote(&self, target: Rank) -> Result<(), RmaError> {
        self.request_sync_remote(target)?.wait()
    }
}

/// What is fetched and combined.
fn combines(op: Op, basic: BasicType) -> Action {
    Action::Combine { op, basic: Some(basic), fetches: true }
}

impl<'w> View<'w> {
    /// Of attached memory of this rank, at `start` in the window.
    pub(crate) fn of_region(window: &'w Window, own: &OwnRegion, start: u64) -> Self {
        let (base, size) = (own.memory.mapping().base, own.len);
        let (rank, region) = (window.rank(), Some(own.memory.clone()));
        let registered = matches!(own.registered, Some(Ok(_)));
        Self { window, rank, base, size, disp_unit: 1, offset: start, registered, region }
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The displacement unit, in bytes.
    pub fn disp_unit(&self) -> u32 {
        self.disp_unit
    }

    /// The rank of the part.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// First byte, for code that takes addresses; null if the part was never mapped. Reading or
    /// writing through it is `unsafe` and races with every other access to the window.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base
    }

    /// As [`Universe::progress`](crate::Universe::progress), of the whole rank.
    pub fn progress(&self) -> usize {
        self.window.progress()
    }

    /// Copies values from displacement `disp` on into `values`.
    pub fn read<E: Element>(&self, disp: impl Integer, values: &mut [E]) -> Result<(), RmaError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        self.span(disp.to_u64(), bytes.len())?.read(bytes);
        Ok(())
    }

    /// Copies `values` to displacement `disp` on.
    pub fn write<E: Element>(&self, disp: impl Integer, values: &[E]) -> Result<(), RmaError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.changes();
        let span = self.span(disp.to_u64(), bytes.len())?;
        if bytes.len() < LARGE || !self.stored(span, bytes) {
            span.write(bytes);
        }
        Ok(())
    }

    /// Whether the memory that the part lies on has stored the bytes by itself.
    fn stored(&self, span: Span<'_>, bytes: &[u8]) -> bool {
        let memory = match &self.region {
            Some(region) => &**region,
            None if self.rank == self.window.rank() => &self.window.part.memory,
            None => return false,
        };
        memory.is_durable() && memory.store(span.address(), bytes)
    }

    /// The value at displacement `disp`.
    pub fn load<E: Element>(&self, disp: impl Integer) -> Result<E, RmaError> {
        let mut value = [E::zeroed()];
        self.read(disp, &mut value)?;
        Ok(value[0])
    }

    /// Stores one value at displacement `disp`.
    pub fn store<E: Element>(&self, disp: impl Integer, value: E) -> Result<(), RmaError> {
        self.write(disp, &[value])
    }

    /// Combines one value; returns what was there. Atomic as
    /// [`Access::fetch_and_op`](crate::Access::fetch_and_op), towards the operations of all epochs.
    /// What a device combines at this part, it combines here, too, and may fail as an operation.
    pub fn fetch_and_op<E: BasicElement>(
        &self,
        disp: impl Integer,
        op: Op,
        operand: E,
    ) -> Result<E, RmaError> {
        let disp = disp.to_u64();
        if !op.is_defined_on::<E>() {
            return Err(self.wrong_op::<E>("a fetch_and_op", op));
        }
        if self.is_left_to_device(E::BASIC) {
            let (mut old, operand) = (E::zeroed(), [operand]);
            let action = ("a fetch_and_op", combines(op, E::BASIC));
            self.by_device(action, disp, bytes_of(&operand), bytes_of_mut(&mut old))?;
            return Ok(old);
        }
        if op != Op::NoOp {
            self.changes();
        }
        let (place, mut old) = (self.place(disp, size_of::<E>())?, [E::zeroed()]);
        let (what, result) = ((E::BASIC, op), Some(cast_slice_mut(&mut old)));
        self.window.combine(place, what, bytes_of(&operand), result)?;
        Ok(old[0])
    }

    /// Combines the values from displacement `disp` on with those of `operands`, each atomically
    /// as [`Access::accumulate`](crate::Access::accumulate) does.
    pub fn accumulate<E: BasicElement>(
        &self,
        disp: impl Integer,
        op: Op,
        operands: &[E],
    ) -> Result<(), RmaError> {
        let disp = disp.to_u64();
        if op == Op::NoOp || !op.is_defined_on::<E>() {
            return Err(self.wrong_op::<E>("an accumulate", op));
        }
        if self.is_left_to_device(E::BASIC) {
            // What was there is fetched to know that it is done.
            let mut old = vec![E::zeroed(); operands.len()];
            let action = ("an accumulate", combines(op, E::BASIC));
            return self.by_device(action, disp, cast_slice(operands), cast_slice_mut(&mut old));
        }
        self.changes();
        let place = self.place(disp, size_of_val(operands))?;
        self.window.combine(place, (E::BASIC, op), cast_slice(operands), None)
    }

    /// Replaces `compare` by `swap` atomically, if it is there; returns what was there.
    pub fn compare_and_swap<E: AtomicElement>(
        &self,
        disp: impl Integer,
        compare: E,
        swap: E,
    ) -> Result<E, RmaError> {
        let disp = disp.to_u64();
        if self.is_left_to_device(E::BASIC) {
            let (mut old, values) = (compare, [compare, swap]);
            let action = ("a compare_and_swap", Action::Swap { basic: E::BASIC });
            self.by_device(action, disp, bytes_of(&values), bytes_of_mut(&mut old))?;
            return Ok(old);
        }
        self.window.swap(self.place(disp, size_of::<E>())?, compare, swap)
    }

    /// Whether elements of that type are combined by the device alone, here too.
    fn is_left_to_device(&self, basic: BasicType) -> bool {
        let device = self.window.remote();
        self.registered
            && device.is_some_and(|(remote, device)| device.excludes_cpus(remote, basic))
    }

    /// Combines as an epoch does; what was there is in `old`.
    fn by_device(
        &self,
        (what, action): (&'static str, Action),
        disp: u64,
        origin: &[u8],
        old: &mut [u8],
    ) -> Result<(), RmaError> {
        let (target, there, from) = (self.rank, Side::dense(old.len()), Side::dense(origin.len()));
        if self.region.is_some() {
            self.checked(disp, old.len())?;
        }
        // Of a region, displacements count from its beginning here, and in bytes.
        let (permit, disp) = (Permit::All, self.offset.wrapping_add(disp));
        let tries = false;
        let operation =
            Operation { what, action, permit, target, disp, there, origin, from, tries };
        self.window.fetch(&operation, Sink::new(old))
    }

    /// Elements that operations of epochs combine, too. S-K9
    fn place(&self, disp: u64, len: usize) -> Result<Placed<'_>, RmaError> {
        let span = self.span(disp, len)?;
        // There is a span, so the product does not overflow.
        let offset = self.offset + disp.wrapping_mul(u64::from(self.disp_unit));
        Ok(Placed { target: self.rank, disp, offset, span })
    }

    fn wrong_op<E: BasicElement>(&self, what: &'static str, op: Op) -> RmaError {
        self.window.wrong_op(what, self.rank, op, E::BASIC.name())
    }

    fn changes(&self) {
        self.window.engine().transport.touches(Touch::Change);
    }

    fn span(&self, disp: u64, len: usize) -> Result<Span<'_>, RmaError> {
        // A compare-and-swap too: one that fails changes nothing, and may be tried for ever.
        self.looks();
        self.checked(disp, len)
    }

    fn looks(&self) {
        self.window.engine().transport.touches(Touch::Look);
    }

    /// Bytes that are not looked at yet.
    fn checked(&self, disp: u64, len: usize) -> Result<Span<'_>, RmaError> {
        let offset = disp.checked_mul(u64::from(self.disp_unit));
        // SAFETY: `size` bytes from `base` on are mapped as long as the window, which is borrowed,
        // or as long as `region`; what a user attached as a raw part is so until `detach`, whose
        // handle is borrowed for `'w`. A reference into a part exists only while the window is
        // sealed, and then it is not borrowed; into a region, there is none.
        let span = |offset| unsafe { Span::of_part(self.base, self.size, offset, len) };
        offset.and_then(span).ok_or(RmaError::OutOfRange {
            window: self.window.id(),
            target: self.rank,
            disp,
            disp_unit: self.disp_unit,
            len: len as u64,
            size: self.size,
        })
    }
}

/// Waiting for a value that others store, by whatever operation or by a view.
impl View<'_> {
    /// Waits until the value at displacement `disp` satisfies the predicate, and returns it.
    ///
    /// When it is seen, so is everything that was done before it was stored: what was put and
    /// flushed, or combined. (A neighbour that stores both through a view calls
    /// [`Window::sync`](crate::Window::sync) in between.) Each look is an atomic load. Any rank
    /// with a view of the part may wait, and any number of threads.
    ///
    /// The wait makes progress: what messages bring, it sees at once. Of what is stored without
    /// one, no rank tells: it spins, then sleeps and looks again by itself, first after 20 us, each
    /// time half as long again, at last each ms. So it leaves the CPU to others, and sees a value
    /// that came late a third of what it had waited later, 1 ms at most.
    ///
    /// The predicate is asked again and again, and is not to wait itself.
    ///
    /// # Errors
    ///
    /// At once [`RmaError::OutOfRange`], or [`RmaError::Misaligned`]: a value lies at a multiple of
    /// its size. As the value may come from any rank of the window, [`RmaError::PeerFailed`] if a
    /// rank of the job failed, [`RmaError::PeerLeft`] if all others of the window have left; of a
    /// window of one rank, its other threads may store it. [`RmaError::Left`] if this rank has
    /// left, [`RmaError::Timeout`] after [`Config::wait_timeout`](crate::Config::wait_timeout). A
    /// value that is there is returned, whatever became of the others.
    ///
    /// This is `shmem_wait_until` (OpenSHMEM 1.5, section 9.10); MPI has loads and
    /// [`MPI_Win_sync`](crate::Window::sync) for it (MPI 4.1, section 12.7).
    pub fn wait_until<E: AtomicElement>(
        &self,
        disp: impl Integer,
        mut predicate: impl FnMut(E) -> bool,
    ) -> Result<E, RmaError> {
        let spans = [self.aligned::<E>(disp.to_u64())?];
        let awaited = Awaited { view: self, spans: &spans };
        awaited.wait(None, || awaited.first(&mut |_, value| predicate(value)).map(|it| it.1))
    }

    /// As [`wait_until`](Self::wait_until), for `timeout` at most: `None` then. With a `timeout` of
    /// zero it is [`test`](Self::test).
    ///
    /// [`RmaError::Timeout`] only if the deadline of the configuration comes first.
    pub fn wait_until_for<E: AtomicElement>(
        &self,
        disp: impl Integer,
        timeout: Duration,
        mut predicate: impl FnMut(E) -> bool,
    ) -> Result<Option<E>, RmaError> {
        let spans = [self.aligned::<E>(disp.to_u64())?];
        let awaited = Awaited { view: self, spans: &spans };
        let first = || awaited.first(&mut |_, value| predicate(value)).map(|it| it.1);
        awaited.wait_for(timeout, first)
    }

    /// Waits until one of the values at `disps` satisfies the predicate; returns its place in the
    /// list, and the value (`shmem_wait_until_any`). Of an empty list it is `None`, at once.
    ///
    /// Of several that do, it is the first in the list: begin the next list elsewhere if all are to
    /// have their turn.
    pub fn wait_until_any<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Option<(usize, E)>, RmaError> {
        if disps.is_empty() {
            return Ok(None);
        }
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        awaited.wait(None, || awaited.first(&mut predicate)).map(Some)
    }

    /// As [`wait_until_any`](Self::wait_until_any), for `timeout` at most: `None` then, and at once
    /// of an empty list. With a `timeout` of zero it is [`test_any`](Self::test_any).
    ///
    /// [`RmaError::Timeout`] only if the deadline of the configuration comes first.
    pub fn wait_until_any_for<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        timeout: Duration,
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Option<(usize, E)>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        awaited.wait_for(timeout, || awaited.first(&mut predicate))
    }

    /// Waits until each of the values at `disps` has satisfied the predicate; returns them as they
    /// were then (`shmem_wait_until_all`). Of an empty list there are none, at once.
    ///
    /// Each does so at some time during the call: they are looked at one after the other, and not
    /// again.
    pub fn wait_until_all<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Vec<E>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        let mut found = Vec::with_capacity(disps.len());
        awaited.wait(None, || awaited.all(&mut found, &mut predicate).then_some(()))?;
        Ok(found)
    }

    /// As [`wait_until_all`](Self::wait_until_all), for `timeout` at most: `None` if one of them
    /// has not satisfied the predicate by then. With a `timeout` of zero it is
    /// [`test_all`](Self::test_all).
    ///
    /// [`RmaError::Timeout`] only if the deadline of the configuration comes first.
    pub fn wait_until_all_for<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        timeout: Duration,
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Option<Vec<E>>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        let mut found = Vec::with_capacity(disps.len());
        let all =
            awaited.wait_for(timeout, || awaited.all(&mut found, &mut predicate).then_some(()))?;
        Ok(all.map(|()| found))
    }

    /// Waits until at least one of the values at `disps` satisfies the predicate; returns all that
    /// do, with their places in the list, in its order (`shmem_wait_until_some`). Of an empty list
    /// there are none, at once.
    pub fn wait_until_some<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Vec<(usize, E)>, RmaError> {
        if disps.is_empty() {
            return Ok(Vec::new());
        }
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        awaited.wait(None, || awaited.some(&mut predicate))
    }

    /// As [`wait_until_some`](Self::wait_until_some), for `timeout` at most: there are none then.
    /// With a `timeout` of zero it is [`test_some`](Self::test_some).
    ///
    /// [`RmaError::Timeout`] only if the deadline of the configuration comes first.
    pub fn wait_until_some_for<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        timeout: Duration,
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Vec<(usize, E)>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        Ok(awaited.wait_for(timeout, || awaited.some(&mut predicate))?.unwrap_or_default())
    }

    /// The value at displacement `disp` if it satisfies the predicate now; otherwise `None`, after
    /// some progress (`shmem_test`).
    ///
    /// It may be called for ever, for as long as others take part: there is no deadline. A loop of
    /// it should do something else meanwhile, or yield.
    pub fn test<E: AtomicElement>(
        &self,
        disp: impl Integer,
        mut predicate: impl FnMut(E) -> bool,
    ) -> Result<Option<E>, RmaError> {
        let spans = [self.aligned::<E>(disp.to_u64())?];
        let awaited = Awaited { view: self, spans: &spans };
        awaited.test(|| awaited.first(&mut |_, value| predicate(value)).map(|it| it.1))
    }

    /// As [`test`](Self::test), of several: the first in the list that satisfies the predicate
    /// (`shmem_test_any`).
    pub fn test_any<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Option<(usize, E)>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        awaited.test(|| awaited.first(&mut predicate))
    }

    /// As [`test`](Self::test), of several: the values, if each of them satisfies the predicate
    /// (`shmem_test_all`). Those of an empty list do.
    pub fn test_all<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Option<Vec<E>>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        awaited.test(|| {
            let mut found = Vec::with_capacity(disps.len());
            awaited.all(&mut found, &mut predicate).then_some(found)
        })
    }

    /// As [`test`](Self::test), of several: all that satisfy the predicate, perhaps none, with
    /// their places in the list (`shmem_test_some`).
    pub fn test_some<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Vec<(usize, E)>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        Ok(awaited.test(|| awaited.some(&mut predicate))?.unwrap_or_default())
    }

    fn aligned<E: AtomicElement>(&self, disp: u64) -> Result<Span<'_>, RmaError> {
        let width = size_of::<E>();
        let span = self.checked(disp, width)?;
        let misaligned = || self.window.misaligned_cold(self.rank, disp, width);
        if span.is_aligned(width) { Ok(span) } else { Err(misaligned()) }
    }

    fn all_aligned<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
    ) -> Result<Vec<Span<'_>>, RmaError> {
        disps.iter().map(|disp| self.aligned::<E>(disp.to_u64())).collect()
    }
}
