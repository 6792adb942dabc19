//! The table of near targets: the one place that turns (target, displacement, length) into an
//! address. Checked once, then plain arithmetic.
#![allow(unsafe_code)]

use super::atomic::WIDE;
use super::copy::{self, CellBounds};
use super::{atomic, fused, stores};
use crate::element::{AtomicElement, BasicElement, BasicType, Op};
use crate::layout::Row;
use crate::memory::bias::{Holder, Mechanism, Note, Noted};
use crate::memory::control_block::ControlBlock;
use crate::rank::Rank;
use crate::thread;
use core::iter;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU64};
use std::sync::{Arc, OnceLock};

/// What an operation needs to know about one near target: half a cache line.
#[repr(C, align(32))]
pub(crate) struct Target {
    /// One more than the bytes of the part; 0 until it is mapped, and for ever if operations do not
    /// go by load and store. S-G8 S-J9
    limit: AtomicU64,
    /// Where the part begins, if `limit` is not 0.
    base: AtomicPtr<u8>,
    /// The target's block; null until mapped.
    block: AtomicPtr<u8>,
    /// The target's. S-A3
    disp_unit: u32,
    /// How this rank may operate on the target; see [`held`].
    held: AtomicU16,
    bias: Noted,
}

const _: () = assert!(size_of::<Target>() == 32);

/// Instead of the displacement unit of a part that is not near: no unit is 0.
const FAR: u32 = 0;

/// Values of [`Target::held`].
pub(crate) mod held {
    pub(crate) const NOT: u16 = 0;
    pub(crate) const BY_LOCK: u16 = 1;
    /// Not locked, but exposed to a start epoch of this rank.
    pub(crate) const BY_START: u16 = 2;
    /// A thread of this rank is about to lock it, and perhaps waits for that; or could not give it
    /// back.
    pub(crate) const LOCKING: u16 = 3;
    /// As if locked, but no rank is kept out.
    pub(crate) const UNCHECKED: u16 = 4;
    /// As [`BY_LOCK`], and it stands in the table of locked targets.
    pub(crate) const LISTED: u16 = 5;
    /// Its lock is asked for, and perhaps granted, which no thread of this rank has seen yet.
    pub(crate) const REQUESTED: u16 = 6;

    /// Whether operations of a lock epoch are allowed.
    pub(crate) fn is_locked(how: u16) -> bool {
        matches!(how, BY_LOCK | LISTED | UNCHECKED)
    }

    /// Whether a lock epoch is open.
    pub(crate) fn is_open(how: u16) -> bool {
        is_locked(how) || how == REQUESTED
    }

    /// Whether others may be kept out, now or soon.
    pub(crate) fn keeps_out(how: u16) -> bool {
        matches!(how, BY_LOCK | LISTED | LOCKING | REQUESTED)
    }
}

/// By which epoch of this rank an operation may reach its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permit {
    /// Of a fence or a lock_all.
    All,
    /// Of a start that names the target; it waits for the target's post.
    Started,
    /// Of a lock of the target.
    Locked,
}

/// Near targets by rank, as epochs of one kind reach them: an entry that is not mapped is no
/// permission. Ranks of other nodes that lie between have entries that are never mapped. Empty if
/// this rank shares memory with no other.
pub(crate) struct Targets {
    /// The [head](Target::head), and an entry for each rank from the first to the last.
    entries: Arc<[Target]>,
    /// The first of these ranks, here too: code that has all of this need not look at the head.
    first: u32,
}

/// As [`Targets`], in one word: what an operation looks at is one load behind it.
#[derive(Clone, Copy)]
pub(crate) struct Table<'w> {
    head: NonNull<Target>,
    targets: PhantomData<&'w Targets>,
}

// SAFETY: as `&Targets`, which is what it stands for.
unsafe impl Send for Table<'_> {}
// SAFETY: as above.
unsafe impl Sync for Table<'_> {}

/// The tables of a window, one for each kind of epoch.
pub(crate) struct Tables {
    /// All near targets, once they are mapped.
    all: Targets,
    /// Made by the first `start`, or `access` of a lock: many windows have none.
    started: OnceLock<Targets>,
    locked: OnceLock<Targets>,
    /// What is known of the bias of all parts before there is an epoch.
    note: Note,
}

/// What a table says of which targets are held, which may outlive what its entries are mapped to.
pub(crate) struct Marks(Arc<[Target]>);

/// Window bytes inside a target's part; the only way to touch them is to copy or atomically.
#[derive(Clone, Copy)]
pub(crate) struct Span<'w> {
    at: *mut u8,
    len: usize,
    part: CellBounds,
    window: PhantomData<&'w Targets>,
}

impl<'w> Table<'w> {
    #[inline(always)]
    fn head(self) -> &'w Target {
        // SAFETY: the first of the `Targets`, which live for `'w`.
        unsafe { self.head.as_ref() }
    }

    /// The epochs that it is for.
    pub(crate) fn permit(self) -> Permit {
        let of = self.head().held.load(Relaxed);
        let all = [Permit::All, Permit::Started, Permit::Locked];
        all.into_iter().find(|permit| *permit as u16 == of).unwrap_or(Permit::Locked)
    }

    /// The entry of a rank, which may be one that is never mapped.
    #[inline(always)]
    pub(crate) fn get(self, target: Rank) -> Option<&'w Target> {
        let place = u64::from(target.0.wrapping_sub(self.head().disp_unit));
        // SAFETY: nothing changes a head, so a plain load will do; it is part of the comparison.
        if place >= unsafe { *self.head().limit.as_ptr() } {
            return None;
        }
        // SAFETY: behind the head are as many entries as it says.
        let entry = unsafe { self.head.add(1 + place as usize) };
        // SAFETY: as in `head`.
        Some(unsafe { entry.as_ref() })
    }
}

impl Targets {
    fn new(first: Rank, units: impl ExactSizeIterator<Item = u32>, permit: Permit) -> Self {
        // Of all there are, which is what the head says.
        let head = Target::head(units.len() as u64, first, permit);
        let entries = units.map(|unit| Target::new(0, unit, held::NOT));
        Self { entries: iter::once(head).chain(entries).collect(), first: first.0 }
    }

    /// As many entries, none of which is mapped.
    fn unmapped(&self, permit: Permit, note: Note) -> Self {
        let units = self.entries().iter().map(|entry| entry.disp_unit);
        let unmapped = Self::new(Rank(self.first), units, permit);
        unmapped.set_bias_of_all(note);
        unmapped
    }

    fn set_bias_of_all(&self, note: Note) {
        self.iter().for_each(|entry| entry.bias.set(note));
    }

    #[inline(always)]
    pub(crate) fn table(&self) -> Table<'_> {
        // From the slice, so that it leads to all of it.
        let head = self.entries.as_ptr().cast_mut();
        // SAFETY: no slice begins at null.
        Table { head: unsafe { NonNull::new_unchecked(head) }, targets: PhantomData }
    }

    fn entries(&self) -> &[Target] {
        &self.entries[1..]
    }

    pub(crate) fn marks(&self) -> Marks {
        Marks(self.entries.clone())
    }

    /// The entry of a rank, which may be one that is never mapped.
    #[inline(always)]
    pub(crate) fn get(&self, target: Rank) -> Option<&Target> {
        self.entries.get(self.place(target) + 1)
    }

    /// The entry of a near rank.
    pub(crate) fn near(&self, target: Rank) -> Option<&Target> {
        self.get(target).filter(|entry| entry.disp_unit != FAR)
    }

    /// Where the entry of a rank is, if it has one; the same at all ranks of the node.
    #[inline(always)]
    pub(crate) fn place(&self, target: Rank) -> usize {
        target.0.wrapping_sub(self.first) as usize
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Target> {
        self.entries().iter()
    }

    /// Entries, those of far ranks among them.
    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    /// Near ranks.
    pub(crate) fn count(&self) -> usize {
        self.iter().filter(|entry| entry.disp_unit != FAR).count()
    }
}

impl Tables {
    /// Of the displacement units from that rank on; `None` for a far one.
    pub(crate) fn new(first: Rank, units: impl ExactSizeIterator<Item = Option<u32>>) -> Self {
        let units = units.map(|unit| unit.unwrap_or(FAR));
        let all = Targets::new(first, units, Permit::All);
        Self { all, started: OnceLock::new(), locked: OnceLock::new(), note: Note::NOTHING }
    }

    /// Notes what is known of the bias of a target's part. A table that is made later knows nothing
    /// of it until it is [told](Self::agree_on_bias): what was known may be true no longer.
    pub(crate) fn set_bias(&self, target: Rank, note: Note) {
        self.entries(target).for_each(|entry| entry.bias.set(note));
    }

    /// Whether all tables know the same of the bias of a target's part.
    pub(crate) fn agree_on_bias(&self, target: Rank) -> bool {
        let mut entries = self.entries(target);
        let first = entries.next();
        first.is_none_or(|first| entries.all(|entry| entry.bias.is_as(&first.bias)))
    }

    /// The entries of a target, in the tables that are made.
    fn entries(&self, target: Rank) -> impl Iterator<Item = &Target> {
        let made = [Some(&self.all), self.started.get(), self.locked.get()];
        made.into_iter().flatten().filter_map(move |it| it.get(target))
    }

    /// As [`set_bias`](Self::set_bias), of all parts and for ever.
    pub(crate) fn set_bias_of_all(&mut self, note: Note) {
        self.note = note;
        self.all.set_bias_of_all(note);
    }

    /// For the guard of an epoch.
    #[inline(always)]
    pub(crate) fn table_of(&self, permit: Permit) -> Table<'_> {
        self.of(permit).table()
    }

    #[inline(always)]
    fn of(&self, permit: Permit) -> &Targets {
        match permit {
            Permit::All => &self.all,
            Permit::Started => self.started.get_or_init(|| self.all.unmapped(permit, self.note)),
            Permit::Locked => self.locked.get_or_init(|| self.all.unmapped(permit, self.note)),
        }
    }

    /// Enters a target into the table of an epoch that may reach it, as far as it is mapped.
    #[inline(always)]
    pub(crate) fn open(&self, permit: Permit, target: Rank) {
        let entries = (self.of(permit).get(target), self.all.get(target));
        if let (Some(entry), Some(mapped)) = entries {
            // pairs with the Release store in `map`: what the pointers stand for is as it is for
            // `all`, and lives as long.
            let limit = mapped.limit.load(Acquire);
            entry.base.store(mapped.base.load(Relaxed), Relaxed);
            // pairs with the Acquire load in `span`.
            entry.limit.store(limit, Release);
            // pairs with the Acquire load in `block`, as above.
            entry.block.store(mapped.block.load(Acquire), Release);
        }
    }

    /// Takes a target out of that table, if one was entered. Operations of the epoch are over,
    /// because its guard is given away.
    #[inline(always)]
    pub(crate) fn close(&self, permit: Permit, target: Rank) {
        let made = match permit {
            Permit::All => None,
            Permit::Started => self.started.get(),
            Permit::Locked => self.locked.get(),
        };
        if let Some(entry) = made.and_then(|it| it.get(target)) {
            entry.limit.store(0, Relaxed);
            entry.block.store(null_mut(), Relaxed);
        }
    }
}

impl Deref for Tables {
    type Target = Targets;

    #[inline(always)]
    fn deref(&self) -> &Targets {
        &self.all
    }
}

impl Marks {
    /// Whether a target is held such that others are kept out.
    pub(crate) fn keep_out(&self) -> bool {
        // Sequentially consistent, see `EpochState::set_left`.
        self.0[1..].iter().any(|target| held::keeps_out(target.held.load(SeqCst)))
    }
}

impl Target {
    fn new(limit: u64, disp_unit: u32, held: u16) -> Self {
        let (base, block) = (AtomicPtr::default(), AtomicPtr::default());
        let (limit, held) = (AtomicU64::new(limit), AtomicU16::new(held));
        Self { limit, base, block, disp_unit, held, bias: Note::NOTHING.into() }
    }

    /// What is first in a table, and no target: how many entries follow, the rank of the first, and
    /// the epochs that the table is for.
    fn head(entries: u64, first: Rank, permit: Permit) -> Self {
        Self::new(entries, first.0, permit as u16)
    }

    /// Makes the target reachable.
    ///
    /// # Safety
    ///
    /// A part, if there is one, is so many bytes that stay mapped as long as the `Targets` live,
    /// and there is no reference into them while an operation of the table's window is possible.
    /// The same holds for `BLOCK_BYTES` from `block` on, aligned to 64. An entry is given the same
    /// part whenever it is given one.
    pub(crate) unsafe fn map(&self, part: Option<(*mut u8, u64)>, block: *mut u8) {
        if let Some((base, size)) = part {
            self.base.store(base, Relaxed);
            // pairs with the Acquire load in `span`.
            self.limit.store(size.saturating_add(1), Release);
        }
        // pairs with the Acquire load in `block`.
        self.block.store(block, Release);
    }

    #[inline(always)]
    pub(crate) fn is_mapped(&self) -> bool {
        self.block().is_some()
    }

    /// Whether operations go by load and store, and the part is mapped.
    #[inline(always)]
    pub(crate) fn is_loadable(&self) -> bool {
        self.limit.load(Relaxed) != 0
    }

    /// The target's block, if mapped.
    #[inline(always)]
    pub(crate) fn block(&self) -> Option<ControlBlock<'_>> {
        // pairs with the Release store in `map`.
        let block = self.block.load(Acquire);
        // SAFETY: mapped and aligned as long as the `Targets` live (contract of `map`), which gave
        // this reference out: `Marks` give out none.
        (!block.is_null()).then(|| unsafe { ControlBlock::new(block) })
    }

    pub(crate) fn disp_unit(&self) -> u32 {
        self.disp_unit
    }

    #[inline(always)]
    pub(crate) fn held(&self) -> u16 {
        // pairs with the Release store in `set_held`.
        self.held.load(Acquire)
    }

    /// The target must be mapped to be held.
    #[inline(always)]
    pub(crate) fn set_held(&self, held: u16) {
        assert!(held == held::NOT || self.is_mapped(), "a held target is mapped");
        // pairs with the Acquire load in `held`.
        self.held.store(held, Release);
    }

    /// As [`set_held`](Self::set_held), unless the target is held: of several threads, one does.
    #[inline(always)]
    pub(crate) fn claim(&self, held: u16) -> bool {
        assert!(self.is_mapped(), "a held target is mapped");
        // pairs with the Acquire load in `held`, and the Release store in `set_held`; sequentially
        // consistent for `EpochState::set_left`.
        self.held.compare_exchange(held::NOT, held, SeqCst, Relaxed).is_ok()
    }

    /// Whether this thread may combine integers of 32 and 64 bits by atomics, and need not look at
    /// the part's bias for that.
    #[inline(always)]
    pub(crate) fn takes_atomics(&self) -> bool {
        self.bias.takes_atomics(thread::token())
    }

    /// How this thread of `rank` combines elements of `basic` type, if nothing stands in the way.
    #[inline(always)]
    pub(crate) fn mechanism(
        &self,
        basic: BasicType,
        rank: Rank,
    ) -> Option<Mechanism<ControlBlock<'_>>> {
        self.bias.mechanism(basic.is_atomic(), Holder::this(rank), || self.block())
    }

    /// `len` bytes at `disp`, if they lie inside the part and it is mapped.
    #[inline(always)]
    pub(crate) fn span(&self, disp: u64, len: usize) -> Option<Span<'_>> {
        // Signed, because that takes fewer instructions: a mapped part has at most `i64::MAX`
        // bytes, and a negative product is a number far beyond them.
        let offset = disp.cast_signed().checked_mul(i64::from(self.disp_unit))?.cast_unsigned();
        // pairs with the Release store in `map`.
        let limit = self.limit.load(Acquire);
        if len as u64 >= limit.checked_sub(offset)? {
            return None;
        }
        let (base, size) = (self.base.load(Relaxed), (limit - 1) as usize);
        // SAFETY: `limit` is not 0, so `size` bytes are mapped at `base` (contract of `map`), and
        // `offset <= size`.
        let at = unsafe { base.add(offset as usize) };
        Some(Span { at, len, part: CellBounds::of(base, size), window: PhantomData })
    }

    /// All of the part, if it is mapped.
    #[inline(always)]
    pub(crate) fn part(&self) -> Option<Span<'_>> {
        self.span(0, self.limit.load(Relaxed).checked_sub(1)? as usize)
    }
}

impl<'w> Span<'w> {
    /// `len` bytes at `offset` of a part, as a peer's message may name them.
    ///
    /// # Safety
    ///
    /// `size` bytes from `base` on stay mapped for `'w`, and there is no reference into them. They
    /// are the whole part, for every rank that accesses it meanwhile.
    pub(crate) unsafe fn of_part(
        base: *mut u8,
        size: u64,
        offset: u64,
        len: usize,
    ) -> Option<Self> {
        if len as u64 > size.checked_sub(offset)? {
            return None;
        }
        // SAFETY: `offset <= size`.
        let at = unsafe { base.add(offset as usize) };
        Some(Self { at, len, part: CellBounds::of(base, size as usize), window: PhantomData })
    }

    /// Copies `origin`, of the span's length, into the window.
    #[inline(always)]
    pub(crate) fn write(self, origin: &[u8]) {
        let len = origin.len().min(self.len);
        stores::made();
        // SAFETY: `len` bytes of the span are mapped window memory; `origin` is private memory,
        // because no reference to window memory exists.
        unsafe { copy::write(self.at, origin.as_ptr(), len, self.part) }
    }

    /// Copies the window's bytes into `origin`, of the span's length.
    #[inline(always)]
    pub(crate) fn read(self, origin: &mut [u8]) {
        let len = origin.len().min(self.len);
        // SAFETY: as `write`, with the roles swapped.
        unsafe { copy::read(origin.as_mut_ptr(), self.at, len, self.part) }
    }

    /// `len` bytes at `offset` of the span.
    #[inline(always)]
    pub(crate) fn part(self, offset: usize, len: usize) -> Option<Self> {
        if len > self.len.checked_sub(offset)? {
            return None;
        }
        // SAFETY: `offset <= self.len`.
        let at = unsafe { self.at.add(offset) };
        Some(Self { at, len, ..self })
    }

    /// Combines the span, whose stripes the caller holds or which it has alone, with operands of
    /// `basic` type as far as that is possible in place; `result` takes what was there. Returns how
    /// many bytes that were.
    #[inline]
    pub(crate) fn combine_fused(
        self,
        basic: BasicType,
        op: Op,
        operands: &[u8],
        result: Option<&mut [u8]>,
    ) -> usize {
        let operands = &operands[..operands.len().min(self.len)];
        stores::made();
        // SAFETY: as many bytes of the span are mapped window memory.
        unsafe { fused::combine(self.at, basic, op, operands, result) }
    }

    /// Combines the first bytes of the span with operands of `basic` type, by one atomic operation
    /// for all their elements; `result` takes what was there. Returns how many bytes that were:
    /// none if the machine cannot, or others came between.
    #[inline]
    pub(crate) fn combine_at_once(
        self,
        basic: BasicType,
        op: Op,
        operands: &[u8],
        result: Option<&mut [u8]>,
    ) -> usize {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let operands = &operands[..operands.len().min(self.len)];
            // No store that a flush would have to wait for: what ends it orders as an atomic.
            // SAFETY: as many bytes of the span are mapped window memory.
            unsafe { fused::combine_at_once(self.at, basic, op, operands, result) }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        {
            _ = (basic, op, operands, result);
            0
        }
    }

    /// Whether the span begins at a multiple of `align` bytes, a power of two: no division, where
    /// the type is not known.
    #[inline(always)]
    pub(crate) fn is_aligned(self, align: usize) -> bool {
        self.at.addr() & (align - 1) == 0
    }

    #[inline(always)]
    fn atomic<E: BasicElement>(self) -> Option<*mut u8> {
        let (basic, width) = (E::BASIC, size_of::<E>());
        (basic.is_atomic() && self.len >= width && self.is_aligned(width)).then_some(self.at)
    }

    /// `None` if the span is misaligned or too short, if `E` is not
    /// [atomic](crate::element::BasicType::is_atomic) or does not have `op`.
    #[inline(always)]
    pub(crate) fn fetch_and_op<E: BasicElement>(self, op: Op, operand: E) -> Option<E> {
        let at = self.atomic::<E>()?;
        // SAFETY: mapped for the width, aligned, and `E` is atomic, as `atomic` checked.
        unsafe { atomic::fetch_and_op(at, op, operand, self.part) }
    }

    /// As [`fetch_and_op`](Self::fetch_and_op), of the elements at the start of the span, [`WIDE`]
    /// bytes of them at a time; `result` takes what was there. Returns how many bytes that were:
    /// none if the machine cannot combine so many at once, or the span is not aligned to as many.
    #[inline]
    pub(crate) fn combine_wide<E: BasicElement>(
        self,
        op: Op,
        operands: &[u8],
        result: Option<&mut [u8]>,
    ) -> usize {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Some(at) = self.atomic::<E>()
            && self.is_aligned(WIDE)
            && op.is_defined_on::<E>()
            && atomic::has_wide()
        {
            let (operands, _) = operands[..operands.len().min(self.len)].as_chunks::<WIDE>();
            let result = result.map(|result| result.as_chunks_mut().0);
            // SAFETY: mapped for as many bytes as there are operands, aligned to `WIDE`, `E` is
            // atomic and the machine has it, as was checked.
            unsafe { atomic::fetch_and_op_wide::<E>(at, op, operands, result) };
            return operands.len() * WIDE;
        }
        _ = (op, operands, result);
        0
    }

    /// `None` if the span is misaligned or too short, or `E` is not
    /// [atomic](crate::element::BasicType::is_atomic).
    #[inline(always)]
    pub(crate) fn compare_and_swap<E: AtomicElement>(self, compare: E, swap: E) -> Option<E> {
        let at = self.atomic::<E>()?;
        // SAFETY: mapped for the width, aligned, and `E` is atomic, as `atomic` checked.
        Some(unsafe { atomic::compare_and_swap(at, compare, swap, self.part) })
    }

    /// Where it begins.
    pub(crate) fn address(self) -> u64 {
        self.at.addr() as u64
    }

    /// Whether all blocks of a row lie in the span.
    #[inline]
    pub(crate) fn holds(self, row: Row) -> bool {
        row.fits(self.len as u64)
    }

    /// Of the part that it lies in.
    pub(super) fn bounds(self) -> CellBounds {
        self.part
    }

    /// Address and length, for a sealed window.
    pub(crate) fn into_raw(self) -> (*mut u8, usize) {
        (self.at, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Row;
    use crate::memory::accumulate::Integers;
    use crate::memory::strided::Area;

    /// A table that is made later knows of a bias what holds for ever, and nothing that may have
    /// changed meanwhile; from then on it is told.
    #[test]
    fn a_table_made_later_knows_what_holds_for_ever() {
        let (here, shared) = (Rank(0), Note::shared(Integers::ByAtomics));
        let knows = |tables: &Tables, permit| {
            let entry = tables.of(permit).near(here).unwrap();
            entry.mechanism(BasicType::I64, here).is_some()
        };
        let tables = Tables::new(here, [Some(8), None].into_iter());
        tables.set_bias(here, shared);
        assert!(knows(&tables, Permit::All) && !knows(&tables, Permit::Locked));
        tables.set_bias(here, shared);
        assert!(knows(&tables, Permit::Locked) && !knows(&tables, Permit::Started));
        let mut tables = Tables::new(here, [Some(8), None].into_iter());
        tables.set_bias_of_all(shared);
        for permit in [Permit::All, Permit::Started, Permit::Locked] {
            let table = tables.of(permit);
            assert!(knows(&tables, permit) && table.near(Rank(1)).is_none(), "{permit:?}");
            assert_eq!((table.len(), table.table().permit()), (2, permit));
        }
    }

    #[test]
    fn spans_stay_inside_the_part() {
        let mut memory = [0u64; 4];
        let targets = Targets::new(Rank(0), [8].into_iter(), Permit::All);
        let target = targets.get(Rank(0)).unwrap();
        assert!(target.span(0, 8).is_none(), "not mapped yet");
        // SAFETY: the memory outlives the table; the block is never asked for.
        unsafe { target.map(Some((memory.as_mut_ptr().cast(), 32)), core::ptr::null_mut()) };
        assert!(target.span(3, 8).is_some());
        assert!(target.span(4, 0).is_some());
        assert!(target.span(3, 9).is_none());
        assert!(target.span(4, 1).is_none());
        assert!(target.span(5, 0).is_none());
        assert!(target.span(u64::MAX, 1).is_none());
        assert!(target.span(u64::MAX / 8 + 2, 1).is_none(), "the product wraps to 8");
        assert!(target.span(0, usize::MAX).is_none());
        let part = || target.span(0, 16).unwrap().part(8, 4).unwrap();
        assert!(part().part(0, 4).is_some() && part().part(4, 0).is_some());
        assert!(part().part(1, 4).is_none() && part().part(5, 0).is_none(), "a part of a part");
        target.span(1, 8).unwrap().write(&7u64.to_ne_bytes());
        assert_eq!(memory, [0, 7, 0, 0]);
        assert!(targets.get(Rank(1)).is_none());
    }

    #[test]
    fn atomics_refuse_misalignment() {
        let mut memory = [0u64; 2];
        let targets = Targets::new(Rank(0), [1].into_iter(), Permit::All);
        let target = targets.get(Rank(0)).unwrap();
        // SAFETY: the memory outlives the table; the block is never asked for.
        unsafe { target.map(Some((memory.as_mut_ptr().cast(), 16)), core::ptr::null_mut()) };
        let at = |disp, len| target.span(disp, len).unwrap();
        assert_eq!(at(4, 8).fetch_and_op(Op::Sum, 1u64), None);
        assert_eq!(at(4, 4).fetch_and_op(Op::Sum, 1u32), Some(0));
        assert_eq!(at(8, 4).compare_and_swap(0u64, 1), None, "too short");
        assert_eq!(at(8, 8).compare_and_swap(0u64, 1), Some(0));
    }

    /// Whether a flush after `act` on 128 bytes of window memory is a fence.
    fn fences_after(act: impl FnOnce(Span<'_>)) -> bool {
        let mut memory = [0f64; 16];
        // SAFETY: the memory is mapped until this returns, and nothing else has it.
        let span = unsafe { Span::of_part(memory.as_mut_ptr().cast(), 128, 0, 128) };
        stores::complete();
        act(span.unwrap());
        stores::is_fence_due()
    }

    #[test]
    fn stores_of_every_kind_make_the_next_flush_a_fence() {
        let row = Row { at: 0, stride: 16, len: 8, count: 4 };
        assert!(fences_after(|span| span.write(&[1; 8])));
        assert!(fences_after(|span| span.write(&[1; 100])));
        assert!(fences_after(|span| Area::new(span).write_row(row, &[1; 64], row)));
        assert!(fences_after(|span| {
            span.combine_fused(BasicType::F64, Op::Sum, &[0; 128], None);
        }));
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn a_flush_completes_what_was_stored_before() {
        assert!(fences_after(|span| span.write(&[1; 8])));
        stores::complete();
        assert!(!stores::is_fence_due());
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn loads_and_atomic_updates_do_not() {
        let row = Row { at: 0, stride: 16, len: 8, count: 4 };
        assert!(!fences_after(|_| ()));
        assert!(!fences_after(|span| span.read(&mut [0; 128])));
        assert!(!fences_after(|span| Area::new(span).read_row(row, &mut [0; 64], row)));
        assert!(!fences_after(|span| assert_eq!(span.fetch_and_op(Op::Sum, 1u64), Some(0))));
        assert!(!fences_after(|span| assert_eq!(span.compare_and_swap(0u64, 1), Some(0))));
    }
}
