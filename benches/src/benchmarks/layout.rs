//! Operations with layouts, next to loops by hand.
#![allow(unsafe_code)]

use super::TARGET;
use crate::Result;
use crate::bench::{Bench, row};
use rma::{BasicElement, Element, Layout, Op, View};
use std::hint::black_box;
use std::ops::Add;

/// For an accumulate, in times of a loop that nobody else may interrupt.
const GOAL_ADD: f64 = 2.0;

/// Blocks of one element, with gaps of one at the target.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    for blocks in [1 << 10, 1 << 20] {
        vector(bench, blocks, 1u8, "1 B blocks")?;
        vector(bench, blocks / 8, 1u64, "8 B blocks")?;
        accumulate(bench, blocks / 8, 1.0f64, f64::add, "f64")?;
        accumulate(bench, blocks / 8, 1u8, u8::wrapping_add, "u8")?;
    }
    Ok(())
}

/// Every other element of a part, without any runtime in between.
struct EveryOther<'w, E> {
    first: *mut E,
    count: usize,
    _view: View<'w>,
}

impl<'w, E: Element> EveryOther<'w, E> {
    fn new(view: View<'w>) -> Self {
        let count = view.size() as usize / size_of::<E>() / 2;
        Self { first: view.as_ptr().cast(), count, _view: view }
    }

    /// As a programmer would write it who knows that nobody else is there.
    #[inline(never)]
    fn write(&self, origin: &[E]) {
        // One bound, so that the compiler unrolls.
        for (i, element) in origin[..origin.len().min(self.count)].iter().enumerate() {
            // SAFETY: `2 * i` is below the number of elements of the part.
            let at = unsafe { self.first.add(2 * i) };
            // SAFETY: inside the part, which is aligned to 64 and which nobody else accesses: the
            // other rank waits in a barrier.
            unsafe { at.write(*element) };
        }
    }

    #[inline(never)]
    fn add(&self, origin: &[E], add: impl Fn(E, E) -> E) {
        for (i, element) in origin[..origin.len().min(self.count)].iter().enumerate() {
            // SAFETY: as in `write`.
            let at = unsafe { self.first.add(2 * i) };
            // SAFETY: as in `write`.
            let sum = add(unsafe { at.read() }, *element);
            // SAFETY: as in `write`.
            unsafe { at.write(sum) };
        }
    }

    #[inline(never)]
    fn read(&self, origin: &mut [E]) {
        let len = origin.len().min(self.count);
        for (i, element) in origin[..len].iter_mut().enumerate() {
            // SAFETY: as in `write`.
            let at = unsafe { self.first.add(2 * i) };
            // SAFETY: as in `write`.
            *element = unsafe { at.read() };
        }
    }
}

fn vector<E: Element>(bench: &mut Bench<'_>, blocks: usize, element: E, name: &str) -> Result<()> {
    let window = bench.world().window(2 * blocks, size_of::<E>()).allocate()?;
    if bench.is_first() {
        let by_hand = EveryOther::<E>::new(window.shared_query(TARGET)?);
        let dense = Layout::element::<E>();
        let every_other = dense.vector(blocks as u64, 1, 2)?;
        let (mut buffer, mut other) = (vec![element; blocks], vec![element; blocks]);
        let bytes = size_of_val(&buffer[..]);
        let epoch = window.lock_all()?;
        bench.alone(
            row(format!("put {name}")).bytes(bytes).goal(1.2),
            &mut |n| {
                for _ in 0..n {
                    let (origin, from) = (black_box(&buffer[..]), dense.times(blocks as u64));
                    epoch.put(TARGET, every_other.at(0), from.of(origin))?;
                }
                Ok(())
            },
            &mut [("loop", &mut |n| {
                for _ in 0..n {
                    by_hand.write(black_box(&other[..]));
                }
                Ok(())
            })],
        )?;
        bench.alone(
            row(format!("get {name}")).bytes(bytes).goal(1.2),
            &mut |n| {
                for _ in 0..n {
                    let (origin, to) = (black_box(&mut buffer[..]), dense.times(blocks as u64));
                    epoch.get(TARGET, every_other.at(0), to.of(origin))?;
                }
                Ok(())
            },
            &mut [("loop", &mut |n| {
                for _ in 0..n {
                    by_hand.read(black_box(&mut other[..]));
                }
                Ok(())
            })],
        )?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// Sums into every other element.
fn accumulate<E: BasicElement>(
    bench: &mut Bench<'_>,
    blocks: usize,
    one: E,
    add: impl Fn(E, E) -> E + Copy,
    name: &str,
) -> Result<()> {
    let window = bench.world().window(2 * blocks, size_of::<E>()).allocate()?;
    if bench.is_first() {
        let by_hand = EveryOther::<E>::new(window.shared_query(TARGET)?);
        let dense = Layout::element::<E>();
        let every_other = dense.vector(blocks as u64, 1, 2)?;
        let operands = vec![one; blocks];
        let epoch = window.lock_all()?;
        bench.alone(
            row(format!("accumulate {name} blocks"))
                .bytes(size_of_val(&operands[..]))
                .goal(GOAL_ADD),
            &mut |n| {
                for _ in 0..n {
                    let (origin, from) = (black_box(&operands[..]), dense.times(blocks as u64));
                    epoch.accumulate(TARGET, every_other.at(0), Op::Sum, from.of(origin))?;
                }
                Ok(())
            },
            &mut [("loop", &mut |n| {
                for _ in 0..n {
                    by_hand.add(black_box(&operands[..]), add);
                }
                Ok(())
            })],
        )?;
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}
