//! The target's side of operations on its bytes: one range of them, or rows.
use super::accumulate::{Combined, Fetched};
use super::part::HeldSpan;
use crate::element::{AtomicElement, BasicType, Op, SwapVisitor};
use crate::layout::Row;
use crate::memory::accumulate;
use crate::memory::bias::{Admission, Mechanism};
use crate::memory::strided::Area;
use crate::memory::stripe;
use crate::memory::target::Span;
use crate::protocol::message::{Head, Kind, Status};
use crate::protocol::rows::{BadRows, Rows};
use crate::window::Part;
use core::ops::Range;

/// The bytes of this rank's part that a message is about.
struct Named<'p, 'm> {
    rows: Rows<'m>,
    /// Memory that holds them all.
    held: HeldSpan<'p>,
    /// Where in the part that begins.
    low: u64,
}

impl Part {
    /// What a message names, and what follows that in its payload.
    fn named<'m>(&self, head: &Head, body: &'m [u8]) -> Result<(Named<'_, 'm>, &'m [u8]), Status> {
        let (rows, rest) = Rows::parse(head, body, self.reach()).map_err(|bad| match bad {
            BadRows::Malformed => Status::Malformed,
            BadRows::OutOfRange => Status::OutOfRange,
        })?;
        // In a dynamic window, within one region.
        let whole = matches!(rows, Rows::Many(_)) && self.regions.is_none();
        let (low, high) = if whole { (0, self.size) } else { rows.hull() };
        let held = self.span(low, high.saturating_sub(low) as usize).ok_or(Status::OutOfRange)?;
        Ok((Named { rows, held, low }, rest))
    }

    pub(super) fn put(&self, head: &Head, body: &[u8]) -> Result<u64, Status> {
        let (named, data) = self.named(head, body)?;
        if data.len() as u64 != head.length.get() {
            return Err(Status::Malformed);
        }
        let area = Area::new(named.held.get());
        for (row, packed) in named.with_packed() {
            area.write_row(row, data, packed);
        }
        Ok(0)
    }

    /// The bytes of the rows, packed: as many as one message takes.
    pub(super) fn get_rows(
        &self,
        head: &Head,
        body: &[u8],
        body_max: usize,
    ) -> Result<Vec<u8>, Status> {
        let bytes = head.length.get();
        if bytes == 0 || bytes > body_max as u64 {
            return Err(Status::Malformed);
        }
        let (named, rest) = self.named(head, body)?;
        if !rest.is_empty() {
            return Err(Status::Malformed);
        }
        let area = Area::new(named.held.get());
        let mut data = vec![0; bytes as usize];
        for (row, packed) in named.with_packed() {
            area.read_row(row, &mut data, packed);
        }
        Ok(data)
    }

    /// Does what a message of the accumulate family asks.
    pub(crate) fn accumulate(
        &self,
        kind: Kind,
        head: &Head,
        body: &[u8],
        body_max: usize,
    ) -> Result<Combined, Status> {
        let basic = BasicType::from_wire(head.basic).ok_or(Status::Malformed)?;
        let (width, bytes) = (basic.width(), head.length.get());
        // The answer fits into one message, as the operands did. S-H15
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= body_max.max(width));
        let bytes = bytes.filter(|bytes| kind != Kind::CompareSwap || *bytes == width);
        let bytes = bytes.ok_or(Status::Malformed)?;
        let (named, operands) = self.named(head, body)?;
        let work = Work::parse(kind, head, basic)?;
        let operands_expected = match work {
            Work::Swap => 2 * width,
            Work::Combine { op: Op::NoOp, .. } => 0,
            Work::Combine { .. } => bytes,
        };
        let memory = named.held.get();
        let whole = |(row, _): (Row, Row)| row.len.is_multiple_of(width as u64);
        if operands.len() != operands_expected || !named.with_packed().all(whole) {
            return Err(Status::Malformed);
        }
        // The origin may not know where the part begins.
        if !named.with_packed().all(|(row, _)| is_aligned(memory, row, basic)) {
            return Err(Status::Misaligned);
        }
        let (first, end) = named.rows.hull();
        let combined = self.combine(&named, (basic, work), operands, (first..end, bytes))?;
        // What is put off counts when it is done.
        if !matches!(combined, Combined::Busy(_)) {
            self.weigh(self.block.get(), (basic, work.op()), bytes);
        }
        Ok(combined)
    }

    /// Combines what is named, under the locks of everything between its first byte and its last:
    /// more than needed, in one piece. S-H9
    fn combine(
        &self,
        named: &Named<'_, '_>,
        (basic, work): (BasicType, Work),
        operands: &[u8],
        (hull, bytes): (Range<u64>, usize),
    ) -> Result<Combined, Status> {
        let block = self.block.get();
        let mechanism = match self.admit(block) {
            Ok(Admission::Alone(alone)) => Some(Mechanism::Alone(alone)),
            Ok(Admission::Shared(note)) => note.mechanism(basic.is_atomic()),
            Ok(Admission::Busy) => None,
            Err(_) => return Err(Status::Unfenced),
        };
        let Some(mechanism) = mechanism else { return Ok(Combined::Busy(hull)) };
        let _locked = match mechanism {
            Mechanism::Stripes => match stripe::try_range(block, &hull, self.comm.rank()) {
                None => return Ok(Combined::Busy(hull)),
                locked => locked,
            },
            _ => None,
        };
        let by_atomics = mechanism.is_by_atomics(basic, block);
        Ok(match work {
            Work::Combine { op, fetches } => {
                let mut old = Fetched::zeroed(if fetches { bytes } else { 0 });
                let result = fetches.then_some(&mut *old);
                named.combine((basic, op), by_atomics, operands, result);
                if fetches { Combined::Bytes(old) } else { Combined::Done }
            }
            Work::Swap => {
                let swap = SwapServed { span: named.held.get(), operands, by_atomics };
                Combined::Bytes(basic.visit_swap(swap).flatten().ok_or(Status::Malformed)?)
            }
        })
    }
}

impl Named<'_, '_> {
    /// Each row, counted from the beginning of the memory, and where its bytes are in the packed
    /// data.
    fn with_packed(&self) -> impl Iterator<Item = (Row, Row)> {
        let (low, mut at) = (self.low, 0i64);
        self.rows.iter().map(move |row| {
            let packed = Row { at, stride: row.len.cast_signed(), ..row };
            // The sum was checked against the length of the data.
            at = at.wrapping_add_unsigned(row.len * row.count);
            // Every row begins behind the lowest byte of all.
            (Row { at: row.at.wrapping_sub_unsigned(low), ..row }, packed)
        })
    }

    /// Combines the rows, alone or with their stripes held if the type needs that; `result` takes
    /// what was there.
    fn combine(
        &self,
        (basic, op): (BasicType, Op),
        by_atomics: bool,
        operands: &[u8],
        mut result: Option<&mut [u8]>,
    ) {
        let memory = self.held.get();
        for (row, packed) in self.with_packed() {
            let at = packed.at as usize;
            let here = at..at + (row.len * row.count) as usize;
            let operands = operands.get(here.clone()).unwrap_or_default();
            let result = result.as_deref_mut().and_then(|result| result.get_mut(here));
            if by_atomics {
                accumulate::row_by_atomics(memory, row, basic, op, operands, result);
            } else {
                accumulate::row_under_lock(memory, row, basic, op, operands, result);
            }
        }
    }
}

/// What a message of the accumulate family asks for.
#[derive(Clone, Copy)]
enum Work {
    Combine { op: Op, fetches: bool },
    Swap,
}

impl Work {
    fn op(self) -> Op {
        match self {
            Self::Combine { op, .. } => op,
            Self::Swap => Op::Replace,
        }
    }

    fn parse(kind: Kind, head: &Head, basic: BasicType) -> Result<Self, Status> {
        if kind == Kind::CompareSwap {
            return Ok(Self::Swap);
        }
        let fetches = kind == Kind::GetAccumulate;
        let op = Op::from_wire(head.op).filter(|op| basic.has(*op));
        let op = op.filter(|op| *op != Op::NoOp || fetches).ok_or(Status::Malformed)?;
        Ok(Self::Combine { op, fetches })
    }
}

/// Whether all elements in the blocks of a row are aligned.
fn is_aligned(memory: Span<'_>, row: Row, basic: BasicType) -> bool {
    let align = basic.align() as u64;
    let start = memory.part(row.at as usize, 0);
    let aligned = start.is_some_and(|start| start.is_aligned(basic.align()));
    let steps = row.count == 1 || row.stride.unsigned_abs().is_multiple_of(align);
    aligned && steps
}

/// Compares and swaps one element, whose stripe is held if the type needs that.
struct SwapServed<'a> {
    span: Span<'a>,
    /// Two values.
    operands: &'a [u8],
    by_atomics: bool,
}

impl SwapVisitor for SwapServed<'_> {
    type Output = Option<Fetched>;

    fn visit<E: AtomicElement>(self) -> Option<Fetched> {
        let mut values = [E::zeroed(); 2];
        bytemuck::bytes_of_mut(&mut values).copy_from_slice(self.operands);
        let [compare, swap] = values;
        let old = if self.by_atomics {
            self.span.compare_and_swap(compare, swap)?
        } else {
            accumulate::swap_under_lock(self.span, compare, swap)
        };
        Some(Fetched::new(bytemuck::bytes_of(&old)))
    }
}
