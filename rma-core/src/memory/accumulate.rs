//! Combining window bytes with operands, element by element.
//!
//! Operands and results are bytes: code of the elements' type, of which there are many copies, is
//! what combines one element, and [`BasicType::combine`].
use super::fused::{AT_ONCE_LEAST, AT_ONCE_MOST};
use super::strided::Area;
use super::target::Span;
use crate::element::{AtomicElement, BasicElement, BasicType, Op, Visitor};
use crate::layout::Row;
use bytemuck::{bytes_of, bytes_of_mut, pod_read_unaligned};
use core::cell::RefCell;

/// Bytes combined at a time in private memory: stays in the first-level cache beside the window's
/// bytes and the operands.
const BLOCK: usize = 1024;

/// Blocks of a row with fewer bytes are combined several at a time, by copies.
const SMALL: u64 = 256;

#[repr(align(64))]
struct Aligned([u8; BLOCK]);

thread_local! {
    /// What a thread combines in: to clear as much for each call takes longer than a short call.
    static PRIVATE: RefCell<Aligned> = const { RefCell::new(Aligned([0; BLOCK])) };
}

/// What combines integers of 32 and 64 bits in a window, whichever rank asks, where several threads
/// combine at a part; other types are combined under the locks of stripes in any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Integers {
    /// The machine's atomics, one element after the other, or many in one of its transactions.
    ByAtomics,
    /// As other types: an array in vectors, under one lock.
    ByLock,
    /// By lock at a part where arrays come, as long as these gain more by that than single elements
    /// lose; by atomics otherwise, and for ever after that.
    AsTheyCome,
}

/// Whether the machine combines arrays by one atomic operation for all their elements.
pub(crate) fn combines_at_once() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        super::transaction::are_there()
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        false
    }
}

/// How many arrays, or pieces of arrays, this thread has combined so far by one atomic operation of
/// the machine for all their elements.
pub(crate) fn done_at_once() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        super::transaction::committed()
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        0
    }
}

/// Bytes of the elements of a call: those of the result, which no_op alone needs, or the operands.
#[inline(always)]
pub(crate) fn len(operands: &[u8], result: Option<&[u8]>) -> usize {
    result.map_or(operands.len(), <[u8]>::len)
}

/// Combines the span with `operands`, the bytes of elements of `basic` type, by the machine's own
/// atomics; `result` takes what was there. The type must be [atomic](BasicType::is_atomic), the
/// span aligned.
#[inline(never)]
pub(crate) fn by_atomics(
    span: Span<'_>,
    basic: BasicType,
    op: Op,
    operands: &[u8],
    result: Option<&mut [u8]>,
) {
    basic.visit_atomic(ByAtomics { span, op, operands, result });
}

/// As [`by_atomics`], for a row of `part`, which lies inside and whose blocks are aligned.
pub(crate) fn row_by_atomics(
    part: Span<'_>,
    row: Row,
    basic: BasicType,
    op: Op,
    operands: &[u8],
    result: Option<&mut [u8]>,
) {
    each_block(part, row, operands, result, |span, operands, result| {
        basic.visit_atomic(ByAtomics { span, op, operands, result });
    });
}

/// Combines a span element by element, for the type at hand.
struct ByAtomics<'a> {
    span: Span<'a>,
    op: Op,
    operands: &'a [u8],
    result: Option<&'a mut [u8]>,
}

impl Visitor for ByAtomics<'_> {
    type Output = ();

    fn visit<E: BasicElement>(self) {
        let Self { span, op, operands, mut result } = self;
        let (len, width) = (len(operands, result.as_deref()), size_of::<E>());
        // What is only looked at needs no exchange.
        let operands = if op == Op::NoOp { &[] } else { operands };
        let (mut at, mut tried) = (0, 0);
        while at < len {
            let next = len.min(at + AT_ONCE_MOST);
            if let (Some(operands), Some(place)) =
                (operands.get(at..next), span.part(at, next - at))
            {
                let mut result = result.as_deref_mut().and_then(|it| it.get_mut(at..next));
                let mut done = 0;
                // What could not be combined at once is not tried again.
                if at >= tried && operands.len() >= AT_ONCE_LEAST {
                    tried = next;
                    done = place.combine_at_once(E::BASIC, op, operands, result.as_deref_mut());
                }
                if done == 0 {
                    done = place.combine_wide::<E>(op, operands, result);
                }
                if done > 0 {
                    at += done;
                    continue;
                }
            }
            let here = at..at + width;
            let operand = operands.get(here.clone()).map_or_else(E::zeroed, pod_read_unaligned);
            let old = span.part(at, width).and_then(|one| one.fetch_and_op(op, operand));
            let place = result.as_deref_mut().and_then(|result| result.get_mut(here));
            if let (Some(place), Some(old)) = (place, old) {
                place.copy_from_slice(bytes_of(&old));
            }
            at += width;
        }
    }
}

/// Combines the span, which is one element whose stripe the caller holds, or whose part it combines
/// at alone, which is as good here and below; gives what was there.
#[inline(always)]
pub(crate) fn one_under_lock<E: BasicElement>(span: Span<'_>, op: Op, operand: E) -> E {
    let mut old = E::zeroed();
    span.read(bytes_of_mut(&mut old));
    if op != Op::NoOp {
        span.write(bytes_of(&E::combine(op, old, operand)));
    }
    old
}

/// Combines the span, whose stripes the caller holds, with `operands`, the bytes of elements of
/// `basic` type; `result` takes what was there.
#[inline]
pub(crate) fn under_lock(
    span: Span<'_>,
    basic: BasicType,
    op: Op,
    operands: &[u8],
    mut result: Option<&mut [u8]>,
) {
    if op == Op::NoOp {
        if let Some(result) = result {
            span.read(result);
        }
        return;
    }
    let done = span.combine_fused(basic, op, operands, result.as_deref_mut());
    if done == operands.len() {
        return;
    }
    let Some(rest) = span.part(done, operands.len() - done) else { return };
    let result = result.and_then(|result| result.get_mut(done..));
    let operands = &operands[done..];
    PRIVATE.with_borrow_mut(|private| {
        combine_copies(rest, basic, op, operands, result, &mut private.0);
    });
}

/// As [`under_lock`], out of and back into the window, as much at a time as `private` holds.
#[inline(never)]
fn combine_copies(
    span: Span<'_>,
    basic: BasicType,
    op: Op,
    operands: &[u8],
    mut result: Option<&mut [u8]>,
    private: &mut [u8; BLOCK],
) {
    for (i, operands) in operands.chunks(private.len()).enumerate() {
        let start = i * private.len();
        let here = start..start + operands.len();
        let bytes = &mut private[..operands.len()];
        let Some(part) = span.part(start, bytes.len()) else { return };
        part.read(bytes);
        if let Some(result) = result.as_deref_mut().and_then(|result| result.get_mut(here)) {
            result.copy_from_slice(bytes);
        }
        basic.combine(op, bytes, operands);
        part.write(bytes);
    }
}

/// As [`under_lock`], for a row of `part`, which lies inside.
pub(crate) fn row_under_lock(
    part: Span<'_>,
    row: Row,
    basic: BasicType,
    op: Op,
    operands: &[u8],
    result: Option<&mut [u8]>,
) {
    if row.count == 1 || row.len >= SMALL {
        return each_block(part, row, operands, result, |block, operands, result| {
            under_lock(block, basic, op, operands, result);
        });
    }
    let operands = if op == Op::NoOp { &[][..] } else { operands };
    PRIVATE.with_borrow_mut(|private| {
        row_in_blocks(part, row, basic, op, operands, result, &mut private.0);
    });
}

/// Combines a row of short blocks, as many of them at a time as fill a block of private memory.
#[inline(always)]
fn row_in_blocks(
    part: Span<'_>,
    row: Row,
    basic: BasicType,
    op: Op,
    operands: &[u8],
    mut result: Option<&mut [u8]>,
    private: &mut [u8; BLOCK],
) {
    let area = Area::new(part);
    // Its fields, so that the row need not be in memory.
    let Row { at: mut first, stride, len, count: mut left } = row;
    let (most, mut at) = (BLOCK as u64 / len, 0);
    while left > 0 {
        let some = Row { at: first, stride, len, count: left.min(most) };
        let packed = Row { at: 0, stride: len.cast_signed(), ..some };
        let bytes = &mut private[..(len * some.count) as usize];
        area.read_row(some, bytes, packed);
        let end = at + bytes.len();
        if let Some(result) = result.as_deref_mut().and_then(|result| result.get_mut(at..end)) {
            result.copy_from_slice(bytes);
        }
        if let Some(operands) = operands.get(at..end) {
            basic.combine(op, bytes, operands);
            area.write_row(some, bytes, packed);
        }
        at = end;
        first = first.wrapping_add(stride.wrapping_mul(some.count.cast_signed()));
        left -= some.count;
    }
}

/// Calls `combine` for each block of a row, with its operands and its result.
fn each_block(
    part: Span<'_>,
    row: Row,
    operands: &[u8],
    mut result: Option<&mut [u8]>,
    combine: impl Fn(Span<'_>, &[u8], Option<&mut [u8]>),
) {
    let len = row.len as usize;
    for (i, start) in row.starts().enumerate() {
        let Some(block) = part.part(start as usize, len) else { return };
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
