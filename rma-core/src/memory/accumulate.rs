//! Combining window bytes with operands, element by element.
use super::strided::Area;
use super::target::Span;
use crate::element::{AtomicElement, BasicElement, BasicType, Op};
use crate::layout::Row;
use bytemuck::{bytes_of, bytes_of_mut, cast_slice, cast_slice_mut};

/// Bytes combined at a time in private memory: stays in the first-level cache beside the window's
/// bytes and the operands.
const BLOCK: usize = 1024;

/// Blocks of a row with fewer bytes are combined several at a time, by copies.
const SMALL: u64 = 256;

#[repr(align(64))]
struct Aligned([u8; BLOCK]);

/// What combines integers of 32 and 64 bits in a window, whichever rank asks; other types are
/// combined under the locks of stripes in any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Integers {
    /// The machine's atomics, one element after the other.
    ByAtomics,
    /// As other types: an array in vectors, under one lock.
    ByLock,
}

impl Integers {
    /// Whether elements of that type are combined without a lock.
    #[inline(always)]
    pub(crate) fn are_atomic(self, basic: BasicType) -> bool {
        basic.is_atomic() && self == Self::ByAtomics
    }
}

/// Elements of a call: those of the result, which no_op alone needs, or the operands.
pub(crate) fn count<E>(operands: &[E], result: Option<&[E]>) -> usize {
    result.map_or(operands.len(), <[E]>::len)
}

/// Combines the span with `operands` by the machine's own atomics; `result` takes what was there.
/// The type must be [atomic](crate::element::BasicType::is_atomic), the span aligned.
pub(crate) fn by_atomics<E: BasicElement>(
    span: Span<'_>,
    op: Op,
    operands: &[E],
    mut result: Option<&mut [E]>,
) {
    for i in 0..count(operands, result.as_deref()) {
        let operand = operands.get(i).copied().unwrap_or_else(E::zeroed);
        let one = span.part(i * size_of::<E>(), size_of::<E>());
        let old = one.and_then(|one| one.fetch_and_op(op, operand));
        let place = result.as_deref_mut().and_then(|result| result.get_mut(i));
        if let (Some(place), Some(old)) = (place, old) {
            *place = old;
        }
    }
}

/// Combines the span, which is one element whose stripe the caller holds; gives what was there.
#[inline(always)]
pub(crate) fn one_under_lock<E: BasicElement>(span: Span<'_>, op: Op, operand: E) -> E {
    let mut old = E::zeroed();
    span.read(bytes_of_mut(&mut old));
    if op != Op::NoOp {
        span.write(bytes_of(&E::combine(op, old, operand)));
    }
    old
}

/// Combines the span, whose stripes the caller holds, with `operands`; `result` takes what was
/// there.
#[inline]
pub(crate) fn under_lock<E: BasicElement>(
    span: Span<'_>,
    op: Op,
    operands: &[E],
    result: Option<&mut [E]>,
) {
    match (op, operands, result) {
        (Op::NoOp, _, None) => {}
        (Op::NoOp, _, Some(result)) => span.read(cast_slice_mut(result)),
        (_, [operand], Some([place])) => *place = one_under_lock(span, op, *operand),
        (_, [operand], None) => _ = one_under_lock(span, op, *operand),
        (_, _, None) => {
            let done = span.combine_fused(E::BASIC, op, cast_slice(operands), None);
            if done < size_of_val(operands) {
                combine_copies(span, op, operands, done / size_of::<E>(), None);
            }
        }
        (_, _, Some(result)) => {
            let old = cast_slice_mut(result);
            let done = span.combine_fused(E::BASIC, op, cast_slice(operands), Some(old));
            if done < size_of_val(operands) {
                combine_copies(span, op, operands, done / size_of::<E>(), Some(result));
            }
        }
    }
}

/// As [`under_lock`], from the element `first` on, out of and back into the window.
#[inline(never)]
fn combine_copies<E: BasicElement>(
    span: Span<'_>,
    op: Op,
    operands: &[E],
    first: usize,
    mut result: Option<&mut [E]>,
) {
    let mut block = Aligned([0; BLOCK]);
    let step = BLOCK / size_of::<E>();
    for start in (first..operands.len()).step_by(step) {
        let here = start..operands.len().min(start + step);
        let bytes = &mut block.0[..here.len() * size_of::<E>()];
        let Some(part) = span.part(start * size_of::<E>(), bytes.len()) else { return };
        part.read(bytes);
        if let Some(result) = result.as_deref_mut().and_then(|result| result.get_mut(here.clone()))
        {
            result.copy_from_slice(cast_slice(bytes));
        }
        E::combine_all(op, cast_slice_mut(bytes), &operands[here]);
        part.write(bytes);
    }
}

/// As [`by_atomics`], for a row of `part`, which lies inside and whose blocks are aligned.
pub(crate) fn row_by_atomics<E: BasicElement>(
    part: Span<'_>,
    row: Row,
    op: Op,
    operands: &[E],
    result: Option<&mut [E]>,
) {
    each_block(part, row, operands, result, |block, operands, result| {
        by_atomics(block, op, operands, result);
    });
}

/// As [`under_lock`], for a row of `part`, which lies inside.
pub(crate) fn row_under_lock<E: BasicElement>(
    part: Span<'_>,
    row: Row,
    op: Op,
    operands: &[E],
    result: Option<&mut [E]>,
) {
    if row.count == 1 || row.len >= SMALL {
        return each_block(part, row, operands, result, |block, operands, result| {
            under_lock(block, op, operands, result);
        });
    }
    let operands: &[u8] = if op == Op::NoOp { &[] } else { cast_slice(operands) };
    row_in_blocks(part, row, operands, result.map(cast_slice_mut), &|block, operands| {
        E::combine_all(op, cast_slice_mut(block), cast_slice(operands));
    });
}

/// Combines a row of short blocks, many of them at a time, in private memory. Not of the elements'
/// type: there are many of these.
fn row_in_blocks(
    part: Span<'_>,
    row: Row,
    operands: &[u8],
    mut result: Option<&mut [u8]>,
    combine: &dyn Fn(&mut [u8], &[u8]),
) {
    let area = Area::new(part);
    let mut private = Aligned([0; BLOCK]);
    let (mut rest, mut at) = (row, 0);
    while rest.count > 0 {
        let some;
        (some, rest) = rest.split(BLOCK as u64 / row.len);
        let bytes = &mut private.0[..(some.len * some.count) as usize];
        let packed = Row { at: 0, stride: some.len.cast_signed(), ..some };
        area.read_row(some, bytes, packed);
        let end = at + bytes.len();
        if let Some(result) = result.as_deref_mut().and_then(|result| result.get_mut(at..end)) {
            result.copy_from_slice(bytes);
        }
        if let Some(operands) = operands.get(at..end) {
            combine(bytes, operands);
            area.write_row(some, bytes, packed);
        }
        at = end;
    }
}

/// Calls `combine` for each block of a row, with its operands and its result.
fn each_block<E: BasicElement>(
    part: Span<'_>,
    row: Row,
    operands: &[E],
    mut result: Option<&mut [E]>,
    combine: impl Fn(Span<'_>, &[E], Option<&mut [E]>),
) {
    let len = row.len as usize / size_of::<E>();
    for (i, start) in row.starts().enumerate() {
        let Some(block) = part.part(start as usize, row.len as usize) else { return };
        let here = i * len..(i + 1) * len;
        let operands = operands.get(here.clone()).unwrap_or_default();
        combine(block, operands, result.as_deref_mut().and_then(|result| result.get_mut(here)));
    }
}

/// Replaces `compare` by `swap` if that is what is there, and returns what was there. The caller
/// holds the stripe of the span, which is one element.
pub(crate) fn swap_under_lock<E: AtomicElement>(span: Span<'_>, compare: E, swap: E) -> E {
    let mut old = E::zeroed();
    span.read(bytes_of_mut(&mut old));
    if old == compare {
        // Through the bits: a `Bool` is written as 0 or 1.
        span.write(bytes_of(&E::from_bits(swap.to_bits())));
    }
    old
}
