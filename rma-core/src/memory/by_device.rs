//! What devices that are programs do to one element.
#![allow(unsafe_code)]

use super::accumulate::{by_atomics, swap_under_lock, under_lock};
use super::target::Span;
use crate::element::{AtomicElement, Op, SwapVisitor};
use crate::transport::Atomic;
use bytemuck::{bytes_of, bytes_of_mut};

impl Atomic {
    /// Does it to one element, for devices that are programs: integers of 4 and 8 bytes as
    /// atomically as CPUs do it. Of other types, callers take turns, and are not
    /// [coherent](crate::transport::RemoteLimits::coherent) with CPUs.
    ///
    /// `operands` has one element, or two for a swap, or none; what was there goes to `fetched`,
    /// which has one, or none.
    ///
    /// # Panics
    ///
    /// When an operand is missing, or the operation is not [defined](Self::is_defined).
    ///
    /// # Safety
    ///
    /// `at` is mapped for the width, and aligned. There is no reference to it.
    pub unsafe fn perform(self, at: *mut u8, operands: &[u8], fetched: &mut [u8]) {
        let width = self.width();
        // SAFETY: caller: mapped for the width, and there is no reference to it.
        let span = unsafe { Span::of_part(at, width as u64, 0, width) };
        let span = span.expect("all of it");
        perform(self, span, operands, fetched);
    }
}

fn perform(atomic: Atomic, span: Span<'_>, operands: &[u8], fetched: &mut [u8]) {
    let fetched = (!fetched.is_empty()).then_some(fetched);
    match atomic {
        Atomic::Combine(op, basic) => {
            assert!(basic.has(op), "an operation of a type that has it");
            let operands = if op == Op::NoOp { &[][..] } else { &operands[..basic.width()] };
            match basic.is_atomic() {
                true => by_atomics(span, basic, op, operands, fetched),
                false => under_lock(span, basic, op, operands, fetched),
            }
        }
        Atomic::Swap(basic) => {
            let swapped = basic.visit_swap(Swapping { span, operands, fetched });
            swapped.expect("a swap of a type that has it");
        }
    }
}

struct Swapping<'a> {
    span: Span<'a>,
    /// Two values.
    operands: &'a [u8],
    fetched: Option<&'a mut [u8]>,
}

impl SwapVisitor for Swapping<'_> {
    type Output = ();

    fn visit<E: AtomicElement>(self) {
        let Self { span, operands, fetched } = self;
        let mut values = [E::zeroed(); 2];
        bytes_of_mut(&mut values).copy_from_slice(operands);
        let [compare, swap] = values;
        let old = span.compare_and_swap(compare, swap);
        let old = old.unwrap_or_else(|| swap_under_lock(span, compare, swap));
        if let Some(fetched) = fetched {
            fetched.copy_from_slice(bytes_of(&old));
        }
    }
}
