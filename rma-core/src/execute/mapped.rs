//! Operations by load and store, on bytes that this rank reaches.
//!
//! A thread that is the only one to combine elements of a part does so
//! [alone](crate::memory::bias). As soon as there are others, elements that the machine combines
//! atomically are combined so, one by one, unless integers of the part go by lock; all others under
//! the lock of their stripe, a stripe at a time (docs/adr/0004-accumulate-mechanisms.md). At any
//! time, all calls of the family use mechanisms that exclude each other for the same type of a
//! part: so, element by element, calls with layouts and without are atomic towards each other.
use crate::element::{AtomicElement, BasicType, Op, SwapVisitor};
use crate::engine::{On, Wait};
use crate::error::RmaError;
use crate::layout::{Cursor, Row, next_planes, pack, unpack};
use crate::memory::accumulate;
use crate::memory::bias::{self, Admission, Holder, Mechanism};
use crate::memory::control_block::ControlBlock;
use crate::memory::strided::Area;
use crate::memory::stripe::{self, ALL_STRIPES, HeldStripe, STRIPE};
use crate::memory::target::Span;
use crate::operation::{Action, Operation, Side, Sink};
use crate::rank::Rank;
use crate::window::Window;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

/// Blocks of a row that is in all stripes which are combined while these are held: about as many
/// lines of memory as a whole stripe has.
pub(crate) const FAR_APART: u64 = 256;

/// Elements in a part that this rank reaches: how the caller named them, and where they are.
#[derive(Clone, Copy)]
pub(crate) struct Placed<'w> {
    pub(crate) target: Rank,
    pub(crate) disp: u64,
    /// In bytes from the part's beginning.
    pub(crate) offset: u64,
    pub(crate) span: Span<'w>,
}

/// Memory that this rank reaches, and the bytes of it that an operation is about. S-G12
#[derive(Clone, Copy)]
pub(super) struct Reached<'w, 'a> {
    pub(super) memory: Span<'w>,
    /// Where it begins in the part; a multiple of all stripes.
    pub(super) begin: u64,
    /// Counted from there.
    pub(super) there: Side<'a>,
}

impl Window {
    /// Performs an operation that was checked.
    pub(super) fn execute_mapped(
        &self,
        operation: &Operation<'_>,
        reached: Reached<'_, '_>,
        mut sink: Sink<'_>,
    ) -> Result<(), RmaError> {
        let Operation { target, disp, .. } = *operation;
        let Reached { memory, begin, there } = reached;
        let area = Area::new(memory);
        let mut at_target = there.cursor();
        match operation.action {
            Action::Put => {
                let mut source = operation.from.cursor();
                while let Some((to, from)) = next_planes(&mut at_target, &mut source) {
                    area.write_plane(to, operation.origin, from);
                }
            }
            Action::Get => {
                let mut into = sink.into.cursor();
                while let Some((from, to)) = next_planes(&mut at_target, &mut into) {
                    area.read_plane(from, sink.bytes, to);
                }
            }
            Action::Combine { basic: None, .. } => {}
            Action::Combine { basic: Some(basic), op, fetches } => {
                self.check_aligned(operation, memory.address(), there, basic)?;
                let sink = fetches.then_some(&mut sink);
                return self.combine_rows(operation, reached, (basic, op), sink);
            }
            Action::Swap { basic } => {
                let (offset, width) = (there.start(), basic.width());
                let span = memory.part(offset as usize, width);
                let span = span.ok_or_else(|| self.misaligned_cold(target, disp, width))?;
                let place = Placed { target, disp, offset: begin + offset, span };
                let swap = SwapPlaced { window: self, place, origin: operation.origin, sink };
                return basic.visit_swap(swap).unwrap_or(Ok(()));
            }
        }
        Ok(())
    }

    /// Fails if an element of `basic` type would not be aligned in memory that begins at `base`.
    pub(super) fn check_aligned(
        &self,
        operation: &Operation<'_>,
        base: u64,
        there: Side<'_>,
        basic: BasicType,
    ) -> Result<(), RmaError> {
        match there.is_aligned(base, basic.align()) {
            true => Ok(()),
            false => Err(self.misaligned_cold(operation.target, operation.disp, basic.align())),
        }
    }

    /// Counts which of what `combine` does is done at once, if that is asked for.
    fn counting_at_once(&self, combine: impl FnOnce()) {
        let before = accumulate::done_at_once();
        combine();
        if self.counts_all || self.part.regions.is_some() {
            self.counts.at_once.fetch_add(accumulate::done_at_once() - before, Relaxed);
        }
    }

    /// Combines the elements of `basic` type at a place, one behind the other, with those whose
    /// bytes are in `operands`. S-H4
    pub(crate) fn combine(
        &self,
        place: Placed<'_>,
        (basic, op): (BasicType, Op),
        operands: &[u8],
        mut result: Option<&mut [u8]>,
    ) -> Result<(), RmaError> {
        let len = accumulate::len(operands, result.as_deref());
        // Nothing is not misaligned. S-G3
        if len == 0 {
            return Ok(());
        }
        if !place.span.is_aligned(basic.align()) {
            return Err(self.misaligned_cold(place.target, place.disp, basic.align()));
        }
        let block = self.block_of(place.target)?;
        self.part.weigh(block, (basic, op), len);
        let mut at = 0;
        while at < len {
            let first = place.offset + at as u64;
            let mechanism = self.mechanism(place.target, block, basic)?;
            if let Mechanism::Atomics = mechanism {
                let Some(rest) = place.span.part(at, len - at) else { break };
                let operands = operands.get(at..).unwrap_or_default();
                let result = result.and_then(|result| result.get_mut(at..));
                self.counting_at_once(|| {
                    accumulate::by_atomics(rest, basic, op, operands, result);
                });
                return Ok(());
            }
            // Elements whose first byte lies in the stripe: each under one lock. S-H6
            let rest = (STRIPE - first % STRIPE) as usize;
            let here = at..(at + rest.next_multiple_of(basic.width())).min(len);
            let Some(span) = place.span.part(at, here.len()) else { break };
            at = here.end;
            let operands = operands.get(here.clone()).unwrap_or_default();
            let result = result.as_deref_mut().and_then(|result| result.get_mut(here));
            let _held = match mechanism {
                Mechanism::Stripes => Some(self.stripe(block, first)?),
                _ => None,
            };
            match self.is_by_atomics(place.target, block, &mechanism, basic) {
                true => accumulate::by_atomics(span, basic, op, operands, result),
                false => accumulate::under_lock(span, basic, op, operands, result),
            }
        }
        Ok(())
    }

    /// Combines rows. Operands are packed, and results unpacked, a few KiB at a time. S-H14 S-H15
    fn combine_rows(
        &self,
        operation: &Operation<'_>,
        reached: Reached<'_, '_>,
        (basic, op): (BasicType, Op),
        sink: Option<&mut Sink<'_>>,
    ) -> Result<(), RmaError> {
        let (mut target, mut source) = (reached.there.cursor(), operation.from.cursor());
        let mut sink = sink.map(|sink| (&mut *sink.bytes, sink.into.cursor()));
        let (mut packed, mut old) = (Vec::new(), Vec::new());
        if let Some(bytes) = reached.there.bytes() {
            self.part.weigh(self.block_of(operation.target)?, (basic, op), bytes as usize);
        }
        let target_rank = operation.target;
        let mut locked =
            Locked { window: self, target: target_rank, takes_stripes: None, held: None };
        while let Some(row) = target.take(STRIPE) {
            let bytes = (row.len * row.count) as usize;
            let operands = match op {
                Op::NoOp => &[],
                _ => next_operands(&mut source, bytes, operation.origin, &mut packed),
            };
            let Some((result, sink)) = &mut sink else {
                locked.combine(&reached, row, (basic, op), operands, None)?;
                continue;
            };
            // What was there before this update. S-H10
            old.resize(bytes, 0);
            locked.combine(&reached, row, (basic, op), operands, Some(&mut old[..]))?;
            unpack(sink, &old, result);
        }
        Ok(())
    }

    /// Compares and swaps the element at a place, by the means of [`combine`](Self::combine). S-H5
    pub(crate) fn swap<E: AtomicElement>(
        &self,
        place: Placed<'_>,
        compare: E,
        swap: E,
    ) -> Result<E, RmaError> {
        if !place.span.is_aligned(E::BASIC.align()) {
            return Err(self.misaligned_cold(place.target, place.disp, E::BASIC.align()));
        }
        let (block, basic) = (self.block_of(place.target)?, E::BASIC);
        self.part.weigh(block, (basic, Op::Replace), size_of::<E>());
        let mechanism = self.mechanism(place.target, block, basic)?;
        let _held = match mechanism {
            Mechanism::Stripes => Some(self.stripe(block, place.offset)?),
            _ => None,
        };
        if self.is_by_atomics(place.target, block, &mechanism, basic)
            && let Some(old) = place.span.compare_and_swap(compare, swap)
        {
            return Ok(old);
        }
        Ok(accumulate::swap_under_lock(place.span, compare, swap))
    }

    /// How this thread combines elements of `basic` type at a target. Waits for one that did so
    /// alone, so the caller holds no stripe.
    fn mechanism<'b>(
        &'b self,
        target: Rank,
        block: ControlBlock<'b>,
        basic: BasicType,
    ) -> Result<Mechanism<ControlBlock<'b>>, RmaError> {
        let noted = self.targets.get(target).and_then(|it| it.mechanism(basic, self.rank()));
        let mechanism = match noted {
            Some(mechanism) => {
                // A table may have been made since that was noted.
                if !self.targets.agree_on_bias(target) {
                    self.note(target, block);
                }
                mechanism
            }
            None => self.come(target, block, basic)?,
        };
        if let Mechanism::Stripes = mechanism {
            let set = |note| self.targets.set_bias(target, note);
            bias::settle(block, Holder::this(self.rank()), set);
        }
        Ok(mechanism)
    }

    /// As [`mechanism`](Self::mechanism), where nothing is noted.
    #[cold]
    fn come<'b>(
        &'b self,
        target: Rank,
        block: ControlBlock<'b>,
        basic: BasicType,
    ) -> Result<Mechanism<ControlBlock<'b>>, RmaError> {
        let come = || match self.part.admit(block) {
            Ok(Admission::Alone(alone)) => Some(Ok(Mechanism::Alone(alone))),
            Ok(Admission::Shared(note)) => note.mechanism(basic.is_atomic()).map(Ok),
            Ok(Admission::Busy) => None,
            Err(error) => Some(Err(error)),
        };
        let come = match come() {
            Some(come) => come,
            None => self.wait_for_holder(&|| bias::holder(block), come)?,
        };
        let mechanism = come.map_err(|error| self.import_failed(error))?;
        self.note(target, block);
        Ok(mechanism)
    }

    /// Notes what became of the bias of a target's part.
    fn note(&self, target: Rank, block: ControlBlock<'_>) {
        if self.part.biased {
            let note = bias::note(block, Holder::this(self.rank()), self.part.integers);
            self.targets.set_bias(target, note);
        }
    }

    /// See [`Mechanism::is_by_atomics`]; notes it if that is news.
    fn is_by_atomics(
        &self,
        target: Rank,
        block: ControlBlock<'_>,
        mechanism: &Mechanism<ControlBlock<'_>>,
        basic: BasicType,
    ) -> bool {
        let is_it = mechanism.is_by_atomics(basic, block);
        if is_it && matches!(mechanism, Mechanism::Stripes) {
            self.note(target, block);
        }
        is_it
    }

    /// Waits until `end`, which a `holder` keeps from: of a stripe, or of the part's bias.
    #[cold]
    #[inline(never)]
    fn wait_for_holder<T>(
        &self,
        holder: &dyn Fn() -> Option<Rank>,
        end: impl FnMut() -> Option<T>,
    ) -> Result<T, RmaError> {
        let holder = |_| self.group().world_rank(holder()?);
        let on = On::Named(&holder);
        let wait = Wait { recheck: Some(stripe::RECHECK), ..self.wait_on("an accumulate", on) };
        // wait: accumulate
        self.engine().wait_until(wait, end).map_err(|error| self.wait_failed(error))
    }

    #[inline]
    fn stripe<'b>(&self, block: ControlBlock<'b>, offset: u64) -> Result<HeldStripe<'b>, RmaError> {
        let taken = || stripe::try_one(block, offset, self.rank());
        match taken() {
            Some(held) => Ok(held),
            None => self.wait_for_holder(&|| stripe::holder(block, offset), taken),
        }
    }
}

/// The bytes of the next operands: where they are, if they are together, otherwise in `packed`.
fn next_operands<'a>(
    source: &mut Cursor<'_>,
    bytes: usize,
    origin: &'a [u8],
    packed: &'a mut Vec<u8>,
) -> &'a [u8] {
    if let Some(at) = source.take_solid(bytes as u64) {
        return &origin[at as usize..][..bytes];
    }
    packed.resize(bytes, 0);
    pack(source, origin, packed);
    packed
}

/// What keeps others from elements of a target while rows are combined: the bias of the part, for a
/// row at a time, or a stripe that is held while rows stay in it. S-H9
struct Locked<'a> {
    window: &'a Window,
    target: Rank,
    /// Whether elements take stripes, once others are known to combine there.
    takes_stripes: Option<bool>,
    held: Option<(u64, HeldStripe<'a>)>,
}

impl Locked<'_> {
    fn combine(
        &mut self,
        reached: &Reached<'_, '_>,
        row: Row,
        (basic, op): (BasicType, Op),
        operands: &[u8],
        mut result: Option<&mut [u8]>,
    ) -> Result<(), RmaError> {
        let (window, target) = (self.window, self.target);
        let block = window.block_of(target)?;
        if self.takes_stripes.is_none() {
            // No stripe is held yet.
            let mechanism = window.mechanism(target, block, basic)?;
            if let Mechanism::Alone(_) = mechanism {
                let memory = reached.memory;
                accumulate::row_under_lock(memory, row, basic, op, operands, result);
                return Ok(());
            }
            self.takes_stripes = Some(matches!(mechanism, Mechanism::Stripes));
        }
        if self.takes_stripes == Some(false) {
            window.counting_at_once(|| {
                accumulate::row_by_atomics(reached.memory, row, basic, op, operands, result);
            });
            return Ok(());
        }
        let mut each = |row: Row, here: Range<usize>| {
            let operands = operands.get(here.clone()).unwrap_or_default();
            let result = result.as_deref_mut().and_then(|result| result.get_mut(here));
            match window.is_by_atomics(target, block, &Mechanism::Stripes, basic) {
                true => {
                    accumulate::row_by_atomics(reached.memory, row, basic, op, operands, result)
                }
                false => {
                    accumulate::row_under_lock(reached.memory, row, basic, op, operands, result);
                }
            }
        };
        self.by_stripes(reached.begin, row, basic.width() as u64, &mut each)
    }

    /// Calls `each` for all of a row of elements of `width` bytes, with what holds its stripes and
    /// which of its bytes these are.
    fn by_stripes(
        &mut self,
        begin: u64,
        row: Row,
        width: u64,
        each: &mut dyn FnMut(Row, Range<usize>),
    ) -> Result<(), RmaError> {
        let hull = row.hull();
        if row.count == 1 || hull.end - hull.start < ALL_STRIPES.end {
            return self.in_pieces(begin, row, width, 0, each);
        }
        let (mut rest, mut at) = (row, 0);
        while rest.count > 0 {
            let some;
            (some, rest) = rest.split(FAR_APART);
            let here = at..at + (some.len * some.count) as usize;
            at = here.end;
            self.held = None;
            let block = self.window.block_of(self.target)?;
            // No rank waits for all: one that does not get them takes them one by one.
            match stripe::try_range(block, &ALL_STRIPES, self.window.rank()) {
                Some(_held) => each(some, here),
                None => self.in_pieces(begin, some, width, here.start, each)?,
            }
        }
        Ok(())
    }

    /// As [`by_stripes`](Self::by_stripes), a stripe at a time; `at`: which byte is the first.
    fn in_pieces(
        &mut self,
        begin: u64,
        row: Row,
        width: u64,
        mut at: usize,
        each: &mut dyn FnMut(Row, Range<usize>),
    ) -> Result<(), RmaError> {
        for piece in stripe::pieces(row, width) {
            let offset = begin + piece.at.cast_unsigned();
            let stripe = offset / STRIPE;
            if self.held.as_ref().is_none_or(|(held, _)| *held != stripe) {
                // One at a time: no rank waits for a stripe with another in hand.
                self.held = None;
                let block = self.window.block_of(self.target)?;
                self.held = Some((stripe, self.window.stripe(block, offset)?));
            }
            let here = at..at + (piece.len * piece.count) as usize;
            at = here.end;
            each(piece, here);
        }
        Ok(())
    }
}

/// A compare-and-swap, for the type at hand.
struct SwapPlaced<'c, 's> {
    window: &'c Window,
    place: Placed<'c>,
    origin: &'c [u8],
    sink: Sink<'s>,
}

impl SwapVisitor for SwapPlaced<'_, '_> {
    type Output = Result<(), RmaError>;

    fn visit<E: AtomicElement>(self) -> Self::Output {
        let mut values = [E::zeroed(); 2];
        bytemuck::bytes_of_mut(&mut values).copy_from_slice(self.origin);
        let old = self.window.swap(self.place, values[0], values[1])?;
        self.sink.bytes.copy_from_slice(bytemuck::bytes_of(&old));
        Ok(())
    }
}
