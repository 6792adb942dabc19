//! What devices that are programs do to one element.
#![allow(unsafe_code)]

use super::accumulate::{one_under_lock, swap_under_lock};
use super::target::Span;
use crate::element::{AtomicElement, BasicElement, Op, SwapVisitor, Visitor};
use crate::transport::Atomic;
use bytemuck::bytes_of;

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
    let one = One { span, operands, fetched };
    let done = match atomic {
        Atomic::Combine(op, basic) => basic.visit(Combining(op, one)),
        Atomic::Swap(basic) => basic.visit_swap(Swapping(one)),
    };
    done.expect("an atomic of a type that has it");
}

struct One<'a> {
    span: Span<'a>,
    operands: &'a [u8],
    fetched: &'a mut [u8],
}

impl One<'_> {
    fn operand<E: BasicElement>(&self, which: usize) -> E {
        let bytes = self.operands.get(which * size_of::<E>()..).unwrap_or_default();
        bytemuck::pod_read_unaligned(&bytes[..size_of::<E>()])
    }

    fn fetch<E: BasicElement>(self, old: E) {
        if !self.fetched.is_empty() {
            self.fetched.copy_from_slice(bytes_of(&old));
        }
    }
}

struct Combining<'a>(Op, One<'a>);

impl Visitor for Combining<'_> {
    type Output = ();

    fn visit<E: BasicElement>(self) {
        let Self(op, one) = self;
        let operand = if op == Op::NoOp { E::zeroed() } else { one.operand(0) };
        let old = one.span.fetch_and_op(op, operand);
        let old = old.unwrap_or_else(|| one_under_lock(one.span, op, operand));
        one.fetch(old);
    }
}

struct Swapping<'a>(One<'a>);

impl SwapVisitor for Swapping<'_> {
    type Output = ();

    fn visit<E: AtomicElement>(self) {
        let Self(one) = self;
        let (compare, swap): (E, E) = (one.operand(0), one.operand(1));
        let old = one.span.compare_and_swap(compare, swap);
        let old = old.unwrap_or_else(|| swap_under_lock(one.span, compare, swap));
        one.fetch(old);
    }
}
