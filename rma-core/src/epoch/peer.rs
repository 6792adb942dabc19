//! A target of an epoch, and what can be done to it.
use super::Operands;
use crate::element::{AtomicElement, BasicElement, BasicType, Element, Op};
use crate::error::RmaError;
use crate::execute::Placed;
use crate::integer::Integer;
use crate::layout::{PlacedLayout, Row, Signature, only_pair};
use crate::memory::accumulate::{self, Integers};
use crate::memory::bias::{self, Mechanism};
use crate::memory::control_block::ControlBlock;
use crate::memory::strided::Area;
use crate::memory::stripe::{self, STRIPE};
use crate::memory::target::{Span, Table, Target};
use crate::operation::{Action, Displacement, Operation, Origin, OriginMut, Side, Sink, Spot};
use crate::rank::Rank;
use crate::window::Window;
use bytemuck::{bytes_of, bytes_of_mut, cast_slice, cast_slice_mut};

pub(super) const PUT: (&str, Action) = ("a put", Action::Put);
pub(super) const GET: (&str, Action) = ("a get", Action::Get);

/// The right to operate on one target of a window, which is looked up once:
/// [`Access::peer`](crate::Access::peer) of any epoch gives it, and [`Lock`](crate::Lock) is one.
///
/// Its methods are those of [`Access`](crate::Access), without the target.
pub struct Peer<'w> {
    window: &'w Window,
    table: Table<'w>,
    /// `None` if load and store never reach it.
    entry: Option<&'w Target>,
    target: Rank,
}

impl<'w> Peer<'w> {
    /// With the table of an epoch: there is none without one. S-G11
    #[inline(always)]
    pub(super) fn new(window: &'w Window, table: Table<'w>, target: Rank) -> Self {
        Self { window, table, entry: table.get(target), target }
    }

    #[inline(always)]
    pub(super) fn window(&self) -> &'w Window {
        self.window
    }

    #[inline(always)]
    pub(super) fn table(&self) -> Table<'w> {
        self.table
    }

    /// The target.
    #[inline(always)]
    pub fn target(&self) -> Rank {
        self.target
    }

    #[inline(always)]
    pub(super) fn entry(&self) -> Option<&'w Target> {
        self.entry
    }

    /// As this, for those of an epoch's guard that outlive a borrow of it.
    #[inline(always)]
    pub(super) fn again(&self) -> Self {
        Self { ..*self }
    }

    /// The hot path of every operation: the bytes, perhaps none, if nothing stands in the way of
    /// load and store. Otherwise [`Window::execute`] finds out what does. S-G3 S-G5 S-G7
    #[inline(always)]
    pub(super) fn near(&self, disp: u64, len: usize) -> Option<Span<'w>> {
        self.entry?.span(disp, len)
    }

    /// As [`near`](Self::near), of integers that are combined by atomics.
    #[inline(always)]
    pub(super) fn near_atomic(&self, disp: u64, len: usize) -> Option<Span<'w>> {
        let entry = self.entry?;
        // First, while most registers are free.
        if !entry.takes_atomics() {
            return None;
        }
        entry.span(disp, len)
    }

    /// All of the part, and where in it a displacement is, if nothing stands in the way.
    #[inline(always)]
    pub(super) fn near_part(&self, disp: u64) -> Option<(Span<'w>, u64)> {
        let entry = self.entry?;
        Some((entry.part()?, disp.checked_mul(u64::from(entry.disp_unit()))?))
    }

    /// The elements, if nothing stands in the way of load and store.
    pub(super) fn near_place(&self, disp: u64, len: usize) -> Option<Placed<'w>> {
        let (part, offset) = self.near_part(disp)?;
        let span = part.part(usize::try_from(offset).ok()?, len)?;
        Some(Placed { target: self.target, disp, offset, span })
    }

    /// The hottest path with layouts: how many bytes, if both sides are one run of them from their
    /// beginning on, and hold the same. Otherwise the long way looks at all that there is.
    #[inline(always)]
    pub(super) fn only_run<E: Element>(
        &self,
        spot: &Spot<'_>,
        here: Option<PlacedLayout<'_>>,
        count: usize,
    ) -> Option<usize> {
        // Whether they are runs first: that is told by a look.
        let (run, same) = match (&spot.placed, here) {
            (Some(there), Some(here)) => {
                let run = there.run()?;
                let same = here.run() == Some(run) && there.matches(&here);
                (run, same && there.start() | here.start() == 0)
            }
            (Some(one), None) => (one.run()?, one.holds::<E>(count) && one.start() == 0),
            (None, Some(one)) => (one.run()?, one.holds::<E>(count) && one.start() == 0),
            (None, None) => return None,
        };
        let len = usize::try_from(run).ok()?;
        (same && len <= count * size_of::<E>()).then_some(len)
    }

    /// The hot path with layouts: both sides are a row each and hold the same, and nothing stands
    /// in the way. Otherwise the long way finds out what does.
    #[inline(always)]
    pub(super) fn near_rows<E: Element>(
        &self,
        spot: &Spot<'_>,
        here: Option<&PlacedLayout<'_>>,
        count: usize,
    ) -> Option<(Span<'w>, Row, Row)> {
        let (part, offset) = self.near_part(spot.disp)?;
        let solid =
            |at: u64, len: u64| Some(Row { at: at.try_into().ok()?, stride: 0, len, count: 1 });
        let (there, here) = match (spot.placed.as_ref(), here) {
            (Some(there), Some(here)) if there.matches(here) => {
                (there.only_row(offset)?, here.only_row(0)?)
            }
            (Some(there), None) if there.holds::<E>(count) => {
                (there.only_row(offset)?, solid(0, (count * size_of::<E>()) as u64)?)
            }
            (None, Some(here)) if here.holds::<E>(count) => {
                (solid(offset, here.bytes()?)?, here.only_row(0)?)
            }
            _ => return None,
        };
        let (there, here) = only_pair(there, here)?;
        Some((part, there, here))
    }

    /// An operation on bytes that lie one behind the other on both sides.
    pub(super) fn operation<'a>(
        &self,
        action: (&'static str, Action),
        disp: u64,
        len: usize,
        origin: &'a [u8],
    ) -> Operation<'a> {
        let from = Side::dense(origin.len());
        self.between(action, disp, Side::dense(len), (origin, from))
    }

    /// An operation, whatever the bytes of either side.
    pub(super) fn between<'a>(
        &self,
        (what, action): (&'static str, Action),
        disp: u64,
        there: Side<'a>,
        (origin, from): (&'a [u8], Side<'a>),
    ) -> Operation<'a> {
        let (permit, target) = (self.table.permit(), self.target);
        Operation { what, action, permit, target, disp, there, origin, from, tries: false }
    }

    /// The side of the target, where `of` is the layout of a side.
    #[inline(always)]
    pub(super) fn there<'a>(
        &self,
        spot: Spot<'a>,
        of: &PlacedLayout<'_>,
    ) -> Result<Side<'a>, RmaError> {
        match spot.placed {
            Some(placed) => Ok(Side::Layout(placed)),
            // Without a layout, the same bytes lie one behind the other.
            None => match of.bytes() {
                Some(len) => Ok(Side::Bytes { at: 0, len }),
                None => {
                    let (window, target) = (self.window.id(), self.target);
                    Err(RmaError::LayoutTooLarge { window, target })
                }
            },
        }
    }

    /// The side of a buffer of so many elements, where `of` is the layout of a side. That two
    /// layouts hold the same is checked later.
    #[inline(always)]
    pub(super) fn here<'a, E: Element>(
        &self,
        placed: Option<PlacedLayout<'a>>,
        count: usize,
        of: &PlacedLayout<'_>,
    ) -> Result<Side<'a>, RmaError> {
        match placed {
            Some(placed) => Ok(Side::Layout(placed)),
            None if of.holds::<E>(count) => Ok(Side::dense(count * size_of::<E>())),
            None => Err(self.mismatch(of, Signature::of::<E>(count))),
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn mismatch(&self, there: &PlacedLayout<'_>, origin: Signature) -> RmaError {
        let (window, target) = (self.window.id(), self.target);
        let there = there.layout().signature(there.count());
        RmaError::SignatureMismatch { window, target, there, origin }
    }

    /// Combines one element and gives what was there, if nothing stands in the way; otherwise
    /// nothing happened. S-H11
    #[inline(always)]
    pub(super) fn combine_one<E: BasicElement>(&self, disp: u64, op: Op, operand: E) -> Option<E> {
        let entry = self.entry?;
        if E::BASIC.is_atomic() {
            // Otherwise it is not part of the caller's code.
            return self.near_atomic(disp, size_of::<E>())?.fetch_and_op(op, operand);
        }
        let (span, rank) = (entry.span(disp, size_of::<E>())?, self.window.rank());
        if !op.is_defined_on::<E>() || !span.is_aligned(E::BASIC.align()) {
            return None;
        }
        match entry.mechanism(E::BASIC, rank)? {
            Mechanism::Alone(_alone) => Some(accumulate::one_under_lock(span, op, operand)),
            Mechanism::Atomics => span.fetch_and_op(op, operand),
            Mechanism::Stripes => {
                // There is a span, so the product does not overflow.
                let offset = disp.wrapping_mul(u64::from(entry.disp_unit()));
                let _held = stripe::try_one(entry.block()?, offset, rank)?;
                Some(accumulate::one_under_lock(span, op, operand))
            }
        }
    }

    /// As [`combine_one`](Self::combine_one), which found something in its way: that may be that
    /// the window's integers are combined by lock.
    #[cold]
    #[inline(never)]
    pub(super) fn combine_one_by_lock<E: BasicElement>(
        &self,
        disp: u64,
        op: Op,
        operand: E,
    ) -> Option<E> {
        if self.window.integers() == Integers::ByAtomics || !op.is_defined_on::<E>() {
            return None;
        }
        let mut old = operand;
        let (what, result) = ((E::BASIC, op), Some(bytes_of_mut(&mut old)));
        let combined = self.combine_some(disp, what, bytes_of(&operand), result).is_ok();
        combined.then_some(old)
    }

    /// Whether so many bytes of elements are combined as under a lock, by a thread that holds a
    /// stripe: integers for which that pays no more go the long way.
    #[inline(always)]
    pub(super) fn is_under_lock(
        &self,
        block: ControlBlock<'_>,
        (basic, op): (BasicType, Op),
        bytes: usize,
    ) -> bool {
        let is_counted = || op != Op::NoOp && self.window.integers() == Integers::AsTheyCome;
        let pays = || !is_counted() || bias::earn(block, bytes) > 0;
        !basic.is_atomic() || bias::are_locked(block) && pays()
    }

    /// Combines elements one behind the other, if nothing stands in the way and, where this thread
    /// neither combines alone nor by atomics, one stripe holds them; otherwise nothing happened,
    /// and `result`, which takes what was there, is given back.
    #[inline(always)]
    pub(super) fn combine_some<'r>(
        &self,
        disp: u64,
        (basic, op): (BasicType, Op),
        operands: &[u8],
        result: Option<&'r mut [u8]>,
    ) -> Result<(), Option<&'r mut [u8]>> {
        let len = accumulate::len(operands, result.as_deref());
        let Some((entry, span)) =
            self.entry.and_then(|entry| Some((entry, entry.span(disp, len)?)))
        else {
            return Err(result);
        };
        if len == 0 || !span.is_aligned(basic.align()) {
            return Err(result);
        }
        let rank = self.window.rank();
        match entry.mechanism(basic, rank) {
            Some(Mechanism::Atomics) => {
                accumulate::by_atomics(span, basic, op, operands, result);
            }
            Some(Mechanism::Alone(alone)) if len as u64 <= STRIPE => {
                if basic.is_atomic() {
                    alone.earn(len);
                }
                accumulate::under_lock(span, basic, op, operands, result);
            }
            Some(Mechanism::Stripes) => {
                // There is a span, so the product does not overflow.
                let offset = disp.wrapping_mul(u64::from(entry.disp_unit()));
                if offset % STRIPE + len as u64 > STRIPE {
                    return Err(result);
                }
                let Some(block) = entry.block() else { return Err(result) };
                let Some(_held) = stripe::try_one(block, offset, rank) else { return Err(result) };
                if !self.is_under_lock(block, (basic, op), len) {
                    return Err(result);
                }
                accumulate::under_lock(span, basic, op, operands, result);
            }
            _ => return Err(result),
        }
        Ok(())
    }

    /// See [`Access::put`](crate::Access::put).
    #[inline]
    pub fn put(&self, disp: impl Displacement, origin: impl Origin) -> Result<(), RmaError> {
        self.put_elements::<_, false>(disp.spot(), origin.elements(), origin.placed())
    }

    /// See [`Access::try_put`](crate::Access::try_put).
    #[inline]
    pub fn try_put(&self, disp: impl Displacement, origin: impl Origin) -> Result<(), RmaError> {
        self.put_elements::<_, true>(disp.spot(), origin.elements(), origin.placed())
    }

    #[inline(always)]
    pub(super) fn put_elements<E: Element, const TRIES: bool>(
        &self,
        spot: Spot<'_>,
        elements: &[E],
        from: Option<PlacedLayout<'_>>,
    ) -> Result<(), RmaError> {
        match spot.placed.or(from) {
            None => {
                let bytes: &[u8] = cast_slice(elements);
                match self.near(spot.disp, bytes.len()) {
                    Some(span) => {
                        span.write(bytes);
                        Ok(())
                    }
                    None => {
                        let put = Self::put_cold::<TRIES>;
                        put(self.window, self.table, self.target, spot.disp, bytes)
                    }
                }
            }
            Some(of) => self.put_layout::<E, TRIES>(spot, of, elements, from),
        }
    }

    // Functions like this one do all that is left, so that the hot path ends in a jump to them and
    // keeps nothing on the stack; not even this, which is made again.
    #[cold]
    #[inline(never)]
    fn put_cold<const TRIES: bool>(
        window: &Window,
        table: Table<'_>,
        target: Rank,
        disp: u64,
        origin: &[u8],
    ) -> Result<(), RmaError> {
        let peer = Peer::new(window, table, target);
        window.perform(&peer.operation(PUT, disp, origin.len(), origin).trying(TRIES))
    }

    /// One side at least has a layout. S-J8
    #[inline(always)]
    fn put_layout<E: Element, const TRIES: bool>(
        &self,
        spot: Spot<'_>,
        of: PlacedLayout<'_>,
        origin: &[E],
        from: Option<PlacedLayout<'_>>,
    ) -> Result<(), RmaError> {
        let bytes: &[u8] = cast_slice(origin);
        match self.only_run::<E>(&spot, from, origin.len()) {
            // A length that the compiler knows.
            Some(len) if len == size_of::<E>() => {
                if let Some(span) = self.near(spot.disp, size_of::<E>()) {
                    span.write(&bytes[..size_of::<E>()]);
                    return Ok(());
                }
            }
            Some(len) => {
                if let Some(span) = self.near(spot.disp, len) {
                    span.write(&bytes[..len]);
                    return Ok(());
                }
            }
            None => {}
        }
        if self.put_rows(&spot, origin, &from) {
            return Ok(());
        }
        self.put_layout_long::<E, TRIES>(spot, of, origin, from)
    }

    #[inline(never)]
    fn put_layout_long<E: Element, const TRIES: bool>(
        &self,
        spot: Spot<'_>,
        of: PlacedLayout<'_>,
        origin: &[E],
        from: Option<PlacedLayout<'_>>,
    ) -> Result<(), RmaError> {
        // S-G4
        if self.target == Rank::NULL {
            return Ok(());
        }
        let there = self.there(spot, &of)?;
        let here = self.here::<E>(from, origin.len(), &of)?;
        let origin = cast_slice(origin);
        self.window.perform(&self.between(PUT, spot.disp, there, (origin, here)).trying(TRIES))
    }

    // Part of the caller, so that neither layouts nor rows need be in memory.
    #[inline(always)]
    fn put_rows<E: Element>(
        &self,
        spot: &Spot<'_>,
        origin: &[E],
        from: &Option<PlacedLayout<'_>>,
    ) -> bool {
        let once = !spot.placed.as_ref().is_some_and(PlacedLayout::overlaps);
        let rows = self.near_rows::<E>(spot, from.as_ref(), origin.len()).filter(|_| once);
        rows.is_some_and(|(part, sink, source)| {
            Area::new(part).try_write_row(sink, cast_slice(origin), source)
        })
    }

    /// See [`Access::get`](crate::Access::get).
    #[inline]
    pub fn get<'b>(
        &self,
        disp: impl Displacement,
        origin: impl OriginMut<'b>,
    ) -> Result<(), RmaError> {
        let spot = disp.spot();
        origin.lend(
            #[inline(always)]
            |elements, to| match spot.placed.or(to) {
                None => {
                    let bytes: &mut [u8] = cast_slice_mut(elements);
                    match self.near(spot.disp, bytes.len()) {
                        Some(span) => {
                            span.read(bytes);
                            Ok(())
                        }
                        None => {
                            Self::get_cold(self.window, self.table, self.target, spot.disp, bytes)
                        }
                    }
                }
                Some(of) => match self.get_layout(spot, of, elements, to)? {
                    None => Ok(()),
                    Some((get, into)) => {
                        self.window.fetch(&get, Sink { bytes: cast_slice_mut(elements), into })
                    }
                },
            },
        )
    }

    #[cold]
    #[inline(never)]
    fn get_cold(
        window: &Window,
        table: Table<'_>,
        target: Rank,
        disp: u64,
        origin: &mut [u8],
    ) -> Result<(), RmaError> {
        let get = Peer::new(window, table, target).operation(GET, disp, origin.len(), &[]);
        window.fetch(&get, Sink::new(origin))
    }

    /// Does it if that takes a row; otherwise gives the operation and the side of its buffer.
    #[inline(always)]
    pub(super) fn get_layout<'a, E: Element>(
        &self,
        spot: Spot<'a>,
        of: PlacedLayout<'a>,
        origin: &mut [E],
        to: Option<PlacedLayout<'a>>,
    ) -> Result<Option<(Operation<'a>, Side<'a>)>, RmaError> {
        let run = self.only_run::<E>(&spot, to, origin.len());
        let bytes: &mut [u8] = cast_slice_mut(origin);
        match run {
            // A length that the compiler knows.
            Some(len) if len == size_of::<E>() => {
                if let Some(span) = self.near(spot.disp, size_of::<E>()) {
                    span.read(&mut bytes[..size_of::<E>()]);
                    return Ok(None);
                }
            }
            Some(len) => {
                if let Some(span) = self.near(spot.disp, len) {
                    span.read(&mut bytes[..len]);
                    return Ok(None);
                }
            }
            None => {}
        }
        if self.get_rows(&spot, origin, &to) {
            return Ok(None);
        }
        self.get_layout_long::<E>(spot, of, origin.len(), to)
    }

    #[inline(never)]
    fn get_layout_long<'a, E: Element>(
        &self,
        spot: Spot<'a>,
        of: PlacedLayout<'a>,
        count: usize,
        to: Option<PlacedLayout<'a>>,
    ) -> Result<Option<(Operation<'a>, Side<'a>)>, RmaError> {
        // S-G4
        if self.target == Rank::NULL {
            return Ok(None);
        }
        let there = self.there(spot, &of)?;
        let here = self.here::<E>(to, count, &of)?;
        let nothing = (&[][..], Side::dense(0));
        Ok(Some((self.between(GET, spot.disp, there, nothing), here)))
    }

    // As `put_rows`.
    #[inline(always)]
    fn get_rows<E: Element>(
        &self,
        spot: &Spot<'_>,
        origin: &mut [E],
        to: &Option<PlacedLayout<'_>>,
    ) -> bool {
        let once = !to.as_ref().is_some_and(PlacedLayout::overlaps);
        let rows = self.near_rows::<E>(spot, to.as_ref(), origin.len()).filter(|_| once);
        rows.is_some_and(|(part, source, sink)| {
            Area::new(part).try_read_row(source, cast_slice_mut(origin), sink)
        })
    }

    /// See [`Access::accumulate`](crate::Access::accumulate).
    #[inline]
    pub fn accumulate(
        &self,
        disp: impl Displacement,
        op: Op,
        origin: impl Operands,
    ) -> Result<(), RmaError> {
        origin.accumulate::<false>(self, disp.spot(), op)
    }

    /// See [`Access::try_accumulate`](crate::Access::try_accumulate).
    #[inline]
    pub fn try_accumulate(
        &self,
        disp: impl Displacement,
        op: Op,
        origin: impl Operands,
    ) -> Result<(), RmaError> {
        origin.accumulate::<true>(self, disp.spot(), op)
    }

    /// See [`Access::get_accumulate`](crate::Access::get_accumulate).
    #[inline]
    pub fn get_accumulate<'b, O: Operands>(
        &self,
        disp: impl Displacement,
        op: Op,
        origin: O,
        result: impl OriginMut<'b, Element = O::Element>,
    ) -> Result<(), RmaError> {
        let spot = disp.spot();
        result.lend(
            #[inline(always)]
            |result, into| match origin.get_accumulate(self, spot, op, result, into)? {
                None => Ok(()),
                Some((fetch, into)) => {
                    self.window.fetch(&fetch, Sink { bytes: cast_slice_mut(result), into })
                }
            },
        )
    }

    /// See [`Access::fetch_and_op`](crate::Access::fetch_and_op).
    #[inline]
    pub fn fetch_and_op<E: BasicElement>(
        &self,
        disp: impl Integer,
        op: Op,
        operand: E,
    ) -> Result<E, RmaError> {
        let disp = disp.to_u64();
        match self.combine_one(disp, op, operand) {
            Some(old) => Ok(old),
            None => Self::fetch_cold(self.window, self.table, (self.target, op), disp, operand),
        }
    }

    #[cold]
    #[inline(never)]
    fn fetch_cold<E: BasicElement>(
        window: &Window,
        table: Table<'_>,
        (target, op): (Rank, Op),
        disp: u64,
        operand: E,
    ) -> Result<E, RmaError> {
        let mut old = operand;
        let peer = Peer::new(window, table, target);
        if let Some(old) = peer.combine_one_by_lock(disp, op, operand) {
            return Ok(old);
        }
        let (basic, fetches) = (Some(E::BASIC), true);
        let combine = ("a fetch_and_op", Action::Combine { op, basic, fetches });
        let operands = if op == Op::NoOp { &[] } else { bytes_of(&operand) };
        let fetch = peer.operation(combine, disp, size_of::<E>(), operands);
        window.fetch(&fetch, Sink::new(bytes_of_mut(&mut old)))?;
        Ok(old)
    }

    /// See [`Access::compare_and_swap`](crate::Access::compare_and_swap).
    #[inline]
    pub fn compare_and_swap<E: AtomicElement>(
        &self,
        disp: impl Integer,
        compare: E,
        swap: E,
    ) -> Result<E, RmaError> {
        let disp = disp.to_u64();
        match self
            .near_atomic(disp, size_of::<E>())
            .and_then(|span| span.compare_and_swap(compare, swap))
        {
            Some(old) => Ok(old),
            None => Self::swap_cold(self.window, self.table, self.target, disp, [compare, swap]),
        }
    }

    #[cold]
    #[inline(never)]
    fn swap_cold<E: AtomicElement>(
        window: &Window,
        table: Table<'_>,
        target: Rank,
        disp: u64,
        values: [E; 2],
    ) -> Result<E, RmaError> {
        let mut old = values[0];
        let action = ("a compare_and_swap", Action::Swap { basic: E::BASIC });
        let peer = Peer::new(window, table, target);
        let swap = peer.operation(action, disp, size_of::<E>(), bytes_of(&values));
        window.fetch(&swap, Sink::new(bytes_of_mut(&mut old)))?;
        Ok(old)
    }
}
