//! Lanes: memory of a rank through which it hands large payloads of collective operations to its
//! neighbours, piece by piece. In front of the pieces stand the words that say how many are there,
//! and how many of them each neighbour has done with.
//!
//! A piece may be overwritten while a peer copies it, if that is wrong or has failed: as window
//! bytes, pieces are copied, and never referred to. For the same reason memory that was a lane is
//! one as long as its rank is there, as the blocks of [`pool`](super::pool) are what they were: a
//! peer that takes an operation for another may write its word at any time.
#![allow(unsafe_code)]

use super::{atomic, copy};
use crate::memory::pool::SyncPool;
use crate::rank::{Rank, WorldRank};
use crate::transport::{AllocateError, Descriptor, ImportError, Mapped, Region, Transport};
use crate::word::Word;
use core::marker::PhantomData;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Acquire;
use std::sync::Arc;

/// Pieces of a lane, in whatever budget. Half of them are written while the others are read.
pub(crate) const PIECES: u32 = 8;
/// Bytes of a piece that are worth it, at least, and that it has at most.
const PIECE_LEAST: u64 = 1 << 10;
const PIECE_MOST: u64 = 1 << 20;
/// Where the words of the readers begin, behind the line of the writer.
const READERS_AT: usize = 64;

/// How a lane is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneGeometry {
    readers: u32,
    pieces: u32,
    piece_bytes: u32,
}

impl LaneGeometry {
    /// For so many readers; `None` if pieces of `budget` bytes together are too small to be of use.
    pub(crate) fn within(budget: u64, readers: u32) -> Option<Self> {
        let piece = budget / u64::from(PIECES) / 64 * 64;
        let piece_bytes = piece.min(PIECE_MOST) as u32;
        (piece >= PIECE_LEAST).then_some(Self { readers, pieces: PIECES, piece_bytes })
    }

    /// Of a peer that says so; `None` if there is no such lane.
    pub(crate) fn of_peer(readers: u32, pieces: u32, piece_bytes: u32) -> Option<Self> {
        let is_possible = pieces == PIECES
            && u64::from(piece_bytes) <= PIECE_MOST
            && u64::from(piece_bytes) >= PIECE_LEAST
            && piece_bytes.is_multiple_of(64);
        is_possible.then_some(Self { readers, pieces, piece_bytes })
    }

    /// How many pieces there are at once.
    pub(crate) fn pieces(self) -> u32 {
        self.pieces
    }

    /// Bytes of a piece.
    pub(crate) fn piece_bytes(self) -> usize {
        self.piece_bytes as usize
    }

    pub(crate) fn bytes(self) -> usize {
        pieces_at(self.readers) + self.pieces as usize * self.piece_bytes()
    }
}

fn pieces_at(readers: u32) -> usize {
    (READERS_AT + readers as usize * 8).next_multiple_of(64)
}

/// A mapped lane.
#[derive(Clone, Copy)]
pub(crate) struct Lane<'a> {
    base: *mut u8,
    geometry: LaneGeometry,
    life: PhantomData<&'a AtomicU64>,
}

impl<'a> Lane<'a> {
    /// # Safety
    ///
    /// All bytes of the geometry from `base` on stay mapped for `'a`, are aligned to 64, and are
    /// accessed through values of this type only, in every process.
    unsafe fn new(base: *mut u8, geometry: LaneGeometry) -> Self {
        Self { base, geometry, life: PhantomData }
    }

    /// How many pieces were written.
    pub(crate) fn written(self) -> &'a AtomicU64 {
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(self.base) }
    }

    /// The number behind the last piece that a reader has done with.
    pub(crate) fn read_by(self, reader: u32) -> &'a AtomicU64 {
        assert!(reader < self.geometry.readers, "a word for each reader");
        // SAFETY: in range, so the word lies before the pieces.
        let at = unsafe { self.base.add(READERS_AT + reader as usize * 8) };
        // SAFETY: mapped and aligned, by the contract of `new`.
        unsafe { atomic::word(at) }
    }

    /// Where a piece lies, of which `len` bytes are accessed.
    fn piece(self, number: u64, len: usize) -> *mut u8 {
        assert!(len <= self.geometry.piece_bytes(), "a piece is as long as its place at most");
        let place = (number % u64::from(self.geometry.pieces)) as usize;
        let offset = pieces_at(self.geometry.readers) + place * self.geometry.piece_bytes();
        // SAFETY: the place is one of the pieces, which lie inside the lane.
        unsafe { self.base.add(offset) }
    }

    /// Whether its reader has done with that piece.
    pub(crate) fn is_read(self, piece: UnreadPiece) -> bool {
        is_read(self.read_by(piece.reader.0), piece.number)
    }

    fn bounds(self) -> copy::CellBounds {
        copy::CellBounds::of(self.base, self.geometry.bytes())
    }

    /// Writes the piece of that number.
    pub(crate) fn put(self, number: u64, bytes: &[u8]) {
        let to = self.piece(number, bytes.len());
        // SAFETY: `bytes` is private, and the piece as long; it lies in the lane, which is mapped
        // and accessed by copies and words of this type only, by the contract of `new`.
        unsafe { copy::write(to, bytes.as_ptr(), bytes.len(), self.bounds()) };
    }

    /// Reads the piece of that number, as much as fits.
    pub(crate) fn get(self, number: u64, bytes: &mut [u8]) {
        let from = self.piece(number, bytes.len());
        // SAFETY: as in `put`.
        unsafe { copy::read(bytes.as_mut_ptr(), from, bytes.len(), self.bounds()) };
    }
}

/// Whether a count of pieces, which only grows, has come past that number. Whatever a peer writes,
/// it is yes or no.
pub(crate) fn is_past(count: u64, number: u64) -> bool {
    count.wrapping_sub(number).wrapping_sub(1) < u64::MAX / 2
}

/// Whether a reader, whose word counts what it has read, has done with the piece of that number: it
/// may be overwritten.
pub(crate) fn is_read(read: &impl Word<Value = u64>, number: u64) -> bool {
    // pairs with the Release store of the reader: what it has read is what was there.
    is_past(read.load(Acquire), number)
}

/// A piece that a reader may not have done with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnreadPiece {
    pub(crate) reader: Rank,
    pub(crate) number: u64,
}

/// Memory of this rank that is a lane of that geometry, whichever rank writes there, until the rank
/// leaves.
pub(crate) struct LaneMemory {
    region: Box<dyn Region>,
    geometry: LaneGeometry,
    /// Of the next piece. In a right program no reader's word is ahead of it: a writer that goes on
    /// from here finds none that says too much.
    next: u64,
    /// What was left to be read when the communicator was dropped that had it last.
    unread: Vec<UnreadPiece>,
}

impl LaneMemory {
    pub(crate) fn geometry(&self) -> LaneGeometry {
        self.geometry
    }

    fn lane(&self) -> Lane<'_> {
        // SAFETY: as long and aligned as asked for in `OwnLane::new`; lives as long as `self`; used
        // as a lane only, here and by every rank that was told of it, now or before, for this is
        // nothing else in its life.
        unsafe { Lane::new(self.region.mapping().base, self.geometry) }
    }

    /// Whether no rank of the communicator that had it last has anything to read there.
    pub(crate) fn is_read(&self) -> bool {
        let lane = self.lane();
        self.unread.iter().all(|piece| lane.is_read(*piece))
    }
}

/// A lane of this rank; goes back to the pool when dropped.
pub(crate) struct OwnLane {
    pool: Arc<SyncPool>,
    // `Some` until drop.
    memory: Option<LaneMemory>,
    /// See [`set_idle`](Self::set_idle).
    is_idle: bool,
}

impl OwnLane {
    pub(crate) fn new(
        pool: &Arc<SyncPool>,
        transport: &Transport,
        geometry: LaneGeometry,
    ) -> Result<Self, AllocateError> {
        let memory = match pool.take_lane(geometry) {
            Some(memory) => memory,
            None => {
                let region = transport.shared.allocate(geometry.bytes(), 64)?;
                LaneMemory { region, geometry, next: 0, unread: Vec::new() }
            }
        };
        Ok(Self { pool: pool.clone(), memory: Some(memory), is_idle: true })
    }

    fn memory(&self) -> &LaneMemory {
        self.memory.as_ref().expect("taken by drop only")
    }

    pub(crate) fn get(&self) -> Lane<'_> {
        self.memory().lane()
    }

    pub(crate) fn geometry(&self) -> LaneGeometry {
        self.memory().geometry
    }

    pub(crate) fn descriptor(&self) -> Descriptor {
        self.memory().region.descriptor()
    }

    /// The number of the next piece.
    pub(crate) fn next(&self) -> u64 {
        self.memory().next
    }

    /// The next piece is written.
    pub(crate) fn advance(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.next = memory.next.wrapping_add(1);
        }
    }

    /// Whether ranks read no more there than what is [left](Self::set_unread) to them, if the
    /// program is right: another communicator may have the lane after that, when this is dropped.
    /// Otherwise none has it again.
    pub(crate) fn set_idle(&mut self, is_idle: bool) {
        self.is_idle = is_idle;
    }

    /// What ranks may still read when this is dropped.
    pub(crate) fn set_unread(&mut self, unread: impl Iterator<Item = UnreadPiece>) {
        if let Some(memory) = &mut self.memory {
            memory.unread.clear();
            memory.unread.extend(unread);
        }
    }
}

impl Drop for OwnLane {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.keep_lane(memory, self.is_idle);
        }
    }
}

/// A lane of a near peer.
pub(crate) struct PeerLane {
    mapped: Box<dyn Mapped>,
    geometry: LaneGeometry,
}

impl PeerLane {
    pub(crate) fn import(
        transport: &Transport,
        owner: WorldRank,
        descriptor: Descriptor,
        geometry: LaneGeometry,
    ) -> Result<Self, ImportError> {
        if !transport.shared.is_near(owner) {
            return Err(ImportError::Malformed(owner));
        }
        let mapped = transport.shared.import(owner, &[descriptor])?;
        let mapping = mapped.mapping();
        if mapping.len < geometry.bytes() || !mapping.base.addr().is_multiple_of(64) {
            return Err(ImportError::Malformed(owner));
        }
        Ok(Self { mapped, geometry })
    }

    pub(crate) fn get(&self) -> Lane<'_> {
        // SAFETY: long enough and aligned, as `import` checked; mapped while `self` lives; the
        // owner described an `OwnLane`, whose memory is a lane of that geometry and nothing else
        // until the owner leaves, at every rank that has it there: all use it as a lane only.
        unsafe { Lane::new(self.mapped.mapping().base, self.geometry) }
    }

    pub(crate) fn geometry(&self) -> LaneGeometry {
        self.geometry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::window::accumulate_tests::with_universe;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_lane_stays_within_its_budget() {
        for readers in [1, 7, 8, 9, 1000] {
            for budget in [0, 100, 8 << 10, 9 << 10, 17_000, 1 << 20, 1 << 30] {
                let Some(geometry) = LaneGeometry::within(budget, readers) else {
                    assert!(budget < PIECE_LEAST * 8);
                    continue;
                };
                let words = pieces_at(readers) as u64;
                assert!(geometry.bytes() as u64 <= budget + words && geometry.pieces() == PIECES);
                let of_peer = LaneGeometry::of_peer(readers, PIECES, geometry.piece_bytes);
                assert_eq!(of_peer, Some(geometry));
            }
        }
        for (pieces, bytes) in [(0, 1024), (9, 1024), (8, 0), (8, 960), (8, 1030), (8, 1 << 21)] {
            assert_eq!(LaneGeometry::of_peer(3, pieces, bytes), None);
        }
    }

    #[test]
    fn memory_of_a_lane_is_only_ever_a_lane() {
        with_universe(Config::default(), |universe| {
            let engine = &universe.world().inner.engine;
            let geometry = LaneGeometry::within(8 << 10, 1).unwrap();
            let new =
                |geometry| OwnLane::new(&engine.sync_blocks, &engine.transport, geometry).unwrap();
            let at = |lane: &OwnLane| lane.get().base;
            let mut first = new(geometry);
            (0..5).for_each(|_| first.advance());
            let base = at(&first);
            drop(first);
            let others: Vec<_> = (0..20)
                .map(|_| engine.transport.shared.allocate(geometry.bytes(), 64).unwrap())
                .collect();
            let lies_there = |region: &dyn Region| {
                let start = region.mapping().base.addr();
                (start..start + region.mapping().len).contains(&base.addr())
            };
            assert!(!others.iter().any(|region| lies_there(&**region)), "given to another use");
            assert_ne!(
                at(&new(LaneGeometry::within(9 << 10, 1).unwrap())),
                base,
                "of another geometry"
            );
            let mut second = new(geometry);
            assert_eq!((at(&second), second.next()), (base, 5));
            second.set_idle(false);
            drop(second);
            assert_ne!(at(&new(geometry)), base, "a rank may read it");
        });
    }

    #[test]
    fn a_lane_is_another_communicators_when_all_have_read_it() {
        with_universe(Config::default(), |universe| {
            let engine = &universe.world().inner.engine;
            let geometry = LaneGeometry::within(8 << 10, 2).unwrap();
            let new = || OwnLane::new(&engine.sync_blocks, &engine.transport, geometry).unwrap();
            let mut first = new();
            (0..2).for_each(|_| first.advance());
            let base = first.get().base;
            let unread = |reader, number| UnreadPiece { reader: Rank(reader), number };
            first.set_unread([unread(0, 0), unread(1, 1)].into_iter());
            drop(first);
            let second = new();
            assert_ne!(second.get().base, base, "nobody has read it");
            let lane = |base| {
                // SAFETY: the region of the first lane, which the pool keeps as a lane.
                unsafe { Lane::new(base, geometry) }
            };
            lane(base).read_by(0).store(1, Relaxed);
            lane(base).read_by(1).store(1, Relaxed);
            let third = new();
            assert_ne!(third.get().base, base, "one has not read its piece");
            lane(base).read_by(1).store(2, Relaxed);
            let fourth = new();
            assert_eq!((fourth.get().base, fourth.next()), (base, 2));
        });
    }

    #[test]
    fn counts_are_compared_as_they_grow() {
        for (count, number, past) in
            [(0, 0, false), (1, 0, true), (1, 1, false), (9, 3, true), (0, u64::MAX, true)]
        {
            assert_eq!(is_past(count, number), past, "{count} {number}");
        }
    }

    #[test]
    fn pieces_and_words_have_places_of_their_own() {
        let geometry = LaneGeometry::within(10 << 10, 9).unwrap();
        let mut memory = vec![0u128; geometry.bytes() / 16 + 5];
        let base = memory.as_mut_ptr().cast::<u8>();
        let base = base.wrapping_add(base.align_offset(64));
        // SAFETY: long enough from there on, aligned, and used as a lane only.
        let lane = unsafe { Lane::new(base, geometry) };
        lane.written().store(u64::MAX, Relaxed);
        (0..9).for_each(|reader| lane.read_by(reader).store(u64::from(reader), Relaxed));
        let whole = geometry.piece_bytes();
        let of = |number: u64, len: usize| -> Vec<u8> { vec![number as u8 + 1; len] };
        (0..8).for_each(|number| lane.put(number, &of(number, whole)));
        lane.put(8 + 3, &of(11, 5));
        for number in 0..8 {
            let mut got = vec![0; whole];
            lane.get(number, &mut got);
            let changed = if number == 3 { 5 } else { 0 };
            assert_eq!(got[..changed], of(11, changed));
            assert_eq!(got[changed..], of(number, whole - changed));
        }
        assert_eq!(lane.written().load(Relaxed), u64::MAX);
        assert!((0..9).all(|reader| lane.read_by(reader).load(Relaxed) == u64::from(reader)));
    }
}
