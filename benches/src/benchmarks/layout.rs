//! Operations with layouts, next to loops by hand.
#![allow(unsafe_code)]

use super::TARGET;
use crate::Result;
use crate::aligned::Aligned;
use crate::bench::{Bench, row};
use rma::{BasicElement, Element, Layout, Op, View};
use std::hint::black_box;
use std::ops::Add;

/// For an accumulate, in times of a loop that no other rank may interrupt.
const GOAL_ADD: f64 = 2.0;
/// For a transpose, in times of two plain loops.
const GOAL_TRANSPOSE: f64 = 0.67;
/// Rows and columns of the matrix that is transposed.
const SIDE: usize = 1024;

/// Blocks of one element, with gaps of one at the target.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    for blocks in [1 << 10, 1 << 20] {
        vector(bench, blocks, 1u8, "1 B blocks")?;
        vector(bench, blocks / 8, 1u64, "8 B blocks")?;
        accumulate::<_, 2>(bench, blocks / 8, 1.0f64, f64::add, "f64 blocks")?;
        accumulate::<_, 2>(bench, blocks / 8, 1u8, u8::wrapping_add, "u8 blocks")?;
    }
    accumulate::<_, SIDE>(bench, SIDE, 1.0f64, f64::add, "f64 column")?;
    // In several stripes, too.
    accumulate::<_, SIDE>(bench, 8, 1.0f64, f64::add, "8 f64 of a column")?;
    transposes(bench, "f64", 1.0f64)
}

/// A square matrix that is a part, without any runtime in between.
struct Matrix<'w, E> {
    first: *mut E,
    _view: View<'w>,
}

impl<'w, E: Element> Matrix<'w, E> {
    fn new(view: View<'w>) -> Self {
        assert!(view.size() as usize >= SIDE * SIDE * size_of::<E>());
        Self { first: view.as_ptr().cast(), _view: view }
    }

    /// Rows of the buffer to columns, or columns of the buffer to rows.
    #[inline(never)]
    fn write(&self, buffer: &[E], rows_there: bool) {
        let buffer = &buffer[..SIDE * SIDE];
        for i in 0..SIDE {
            for j in 0..SIDE {
                let (row, column) = (i * SIDE + j, j * SIDE + i);
                let (there, here) = if rows_there { (row, column) } else { (column, row) };
                // SAFETY: both indices are below the number of elements of the part.
                let at = unsafe { self.first.add(there) };
                // SAFETY: inside the part, which is aligned to 64 and which no other thread
                // accesses: the other rank waits in a barrier.
                unsafe { at.write(buffer[here]) };
            }
        }
    }

    /// Rows there to columns of the buffer, or columns there to rows of the buffer.
    #[inline(never)]
    fn read(&self, buffer: &mut [E], rows_there: bool) {
        let buffer = &mut buffer[..SIDE * SIDE];
        for i in 0..SIDE {
            for j in 0..SIDE {
                let (row, column) = (i * SIDE + j, j * SIDE + i);
                let (there, here) = if rows_there { (row, column) } else { (column, row) };
                // SAFETY: as in `write`.
                let at = unsafe { self.first.add(there) };
                // SAFETY: as in `write`.
                buffer[here] = unsafe { at.read() };
            }
        }
    }
}

/// A matrix whose rows are the columns at the target.
fn transposes<E: Element>(bench: &mut Bench<'_>, name: &str, one: E) -> Result<()> {
    let window = bench.world().window(SIDE * SIDE, size_of::<E>()).allocate()?;
    if bench.is_first() {
        let by_hand = Matrix::<E>::new(bench.part(&window, TARGET)?);
        let dense = Layout::element::<E>();
        let column = dense.vector(SIDE as u64, 1, SIDE as i64)?;
        let columns = column.resized(0, size_of::<E>() as i64)?;
        let (mut buffer, mut other) =
            (Aligned::new(one, SIDE * SIDE), Aligned::new(one, SIDE * SIDE));
        let bytes = size_of_val(&buffer[..]);
        let epoch = window.lock_all()?;
        for rows_there in [false, true] {
            let (all, count) = (dense.times((SIDE * SIDE) as u64), SIDE as u64);
            let (there, here) = match rows_there {
                true => (all, columns.times(count)),
                false => (columns.times(count), all),
            };
            let way = if rows_there { "columns to rows" } else { "rows to columns" };
            bench.alone(
                row(format!("put {name} {way}")).bytes(bytes).goal(GOAL_TRANSPOSE),
                &mut |n| {
                    for _ in 0..n {
                        epoch.put(TARGET, there.at(0), here.of(black_box(&buffer[..])))?;
                    }
                    Ok(())
                },
                &mut [("loop", &mut |n| {
                    (0..n).for_each(|_| by_hand.write(black_box(&other[..]), rows_there));
                    Ok(())
                })],
            )?;
            let way = if rows_there { "rows to columns" } else { "columns to rows" };
            bench.alone(
                row(format!("get {name} {way}")).bytes(bytes).goal(GOAL_TRANSPOSE),
                &mut |n| {
                    for _ in 0..n {
                        epoch.get(TARGET, there.at(0), here.of(black_box(&mut buffer[..])))?;
                    }
                    Ok(())
                },
                &mut [("loop", &mut |n| {
                    (0..n).for_each(|_| by_hand.read(black_box(&mut other[..]), rows_there));
                    Ok(())
                })],
            )?;
        }
        epoch.unlock()?;
    }
    bench.world().barrier()?;
    Ok(window.free()?)
}

/// Elements of a part at equal distances, without any runtime in between.
struct Spaced<'w, E, const APART: usize> {
    first: *mut E,
    count: usize,
    _view: View<'w>,
}

impl<'w, E: Element, const APART: usize> Spaced<'w, E, APART> {
    fn new(view: View<'w>) -> Self {
        let count = view.size() as usize / size_of::<E>() / APART;
        Self { first: view.as_ptr().cast(), count, _view: view }
    }

    /// As written by a programmer who knows that no other rank is there.
    #[inline(never)]
    fn write(&self, origin: &[E]) {
        // One bound, so that the compiler unrolls.
        for (i, element) in origin[..origin.len().min(self.count)].iter().enumerate() {
            // SAFETY: `APART * i` is below the number of elements of the part.
            let at = unsafe { self.first.add(APART * i) };
            // SAFETY: inside the part, which is aligned to 64 and which no other thread accesses:
            // the other rank waits in a barrier.
            unsafe { at.write(*element) };
        }
    }

    #[inline(never)]
    fn add(&self, origin: &[E], add: impl Fn(E, E) -> E) {
        for (i, element) in origin[..origin.len().min(self.count)].iter().enumerate() {
            // SAFETY: as in `write`.
            let at = unsafe { self.first.add(APART * i) };
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
            let at = unsafe { self.first.add(APART * i) };
            // SAFETY: as in `write`.
            *element = unsafe { at.read() };
        }
    }
}

fn vector<E: Element>(bench: &mut Bench<'_>, blocks: usize, element: E, name: &str) -> Result<()> {
    let window = bench.world().window(2 * blocks, size_of::<E>()).allocate()?;
    if bench.is_first() {
        let by_hand = Spaced::<E, 2>::new(bench.part(&window, TARGET)?);
        let dense = Layout::element::<E>();
        let every_other = dense.vector(blocks as u64, 1, 2)?;
        let (mut buffer, mut other) =
            (Aligned::new(element, blocks), Aligned::new(element, blocks));
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

/// Sums into elements that are so many elements apart.
fn accumulate<E: BasicElement, const APART: usize>(
    bench: &mut Bench<'_>,
    blocks: usize,
    one: E,
    add: impl Fn(E, E) -> E + Copy,
    name: &str,
) -> Result<()> {
    let window = bench.world().window(APART * blocks, size_of::<E>()).allocate()?;
    if bench.is_first() {
        let by_hand = Spaced::<E, APART>::new(bench.part(&window, TARGET)?);
        let dense = Layout::element::<E>();
        let spaced = dense.vector(blocks as u64, 1, APART as i64)?;
        let operands = Aligned::new(one, blocks);
        let epoch = window.lock_all()?;
        bench.alone(
            row(format!("accumulate {name}")).bytes(size_of_val(&operands[..])).goal(GOAL_ADD),
            &mut |n| {
                for _ in 0..n {
                    let (origin, from) = (black_box(&operands[..]), dense.times(blocks as u64));
                    epoch.accumulate(TARGET, spaced.at(0), Op::Sum, from.of(origin))?;
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
