//! Accesses to window bytes from two threads at once. Under Miri every pair of them is asked
//! whether it may race.
#![allow(unsafe_code)]

use super::strided::Area;
use super::target::Span;
use super::{accumulate, cells};
use crate::element::{BasicType, Op};
use crate::layout::Row;
use bytemuck::{bytes_of, cast_slice, cast_slice_mut};
use std::thread;

#[repr(align(8))]
struct Memory<const LEN: usize>([u8; LEN]);

/// What several threads access.
#[derive(Clone, Copy)]
struct Shared {
    base: *mut u8,
    size: usize,
}

// SAFETY: the bytes are accessed through spans only, which may be on any thread.
unsafe impl Sync for Shared {}

impl Shared {
    /// `len` bytes at `offset` of the part.
    fn span(&self, offset: u64, len: usize) -> Span<'_> {
        // SAFETY: each test keeps the memory until its threads are joined, without a reference.
        unsafe { Span::of_part(self.base, self.size as u64, offset, len) }.expect("inside the part")
    }
}

type Access = fn(Shared);

/// Every kind of access to the first bytes of a part, in every width.
const ACCESSES: &[(&str, Access)] = &[
    ("put of 8", |part| part.span(0, 8).write(&[1; 8])),
    ("get of 8", |part| part.span(0, 8).read(&mut [0; 8])),
    ("put of 4", |part| part.span(4, 4).write(&[2; 4])),
    ("put of 20 that are not aligned", |part| part.span(3, 20).write(&[3; 20])),
    ("get of 20 that are not aligned", |part| part.span(1, 20).read(&mut [0; 20])),
    ("put of rows", |part| {
        let row = Row { at: 1, stride: 8, len: 4, count: 2 };
        Area::new(part.span(0, 16)).write_row(row, &[4; 16], row);
    }),
    ("get of rows", |part| {
        let row = Row { at: 0, stride: 4, len: 2, count: 4 };
        Area::new(part.span(0, 16)).read_row(row, &mut [0; 16], row);
    }),
    ("fetch_and_op of 8", |part| _ = part.span(0, 8).fetch_and_op(Op::Sum, 1u64)),
    ("atomic get of 8", |part| _ = part.span(0, 8).fetch_and_op(Op::NoOp, 0u64)),
    ("fetch_and_op of 4", |part| _ = part.span(4, 4).fetch_and_op(Op::Max, 1i32)),
    ("atomic get of 4", |part| _ = part.span(0, 4).fetch_and_op(Op::NoOp, 0u32)),
    ("compare_and_swap of 8", |part| _ = part.span(0, 8).compare_and_swap(0u64, 5)),
    ("compare_and_swap of 4", |part| _ = part.span(4, 4).compare_and_swap(0u32, 5)),
    ("accumulate by atomics", |part| {
        accumulate::by_atomics(
            part.span(0, 16),
            BasicType::U32,
            Op::Sum,
            bytes_of(&[1u32; 4]),
            None,
        );
    }),
    ("accumulate under lock", |part| {
        accumulate::under_lock(
            part.span(0, 16),
            BasicType::F32,
            Op::Sum,
            bytes_of(&[1f32; 4]),
            None,
        );
    }),
];

/// Names the pair: Miri stops at the first that is undefined.
fn race(names: (&str, &str), one: Access, other: Access) {
    let mut memory = Memory([0; 24]);
    let shared = Shared { base: memory.0.as_mut_ptr(), size: 24 };
    println!("{names:?}");
    thread::scope(|scope| {
        let shared = &shared;
        scope.spawn(move || one(*shared));
        other(*shared);
    });
}

#[test]
fn every_access_may_race_with_every_other() {
    for (i, (one, first)) in ACCESSES.iter().enumerate() {
        for (other, second) in &ACCESSES[i..] {
            race((one, other), *first, *second);
        }
    }
}

/// A part ends, and another one or the owner's own memory begins, in the middle of a word.
#[test]
fn what_lies_beside_a_part_is_not_accessed() {
    let mut memory = Memory([0u8; 16]);
    let base = memory.0.as_mut_ptr();
    let part = Shared { base: base.wrapping_add(3), size: 10 };
    let beside = Shared { base, size: 3 };
    let behind = Shared { base: base.wrapping_add(13), size: 3 };
    thread::scope(|scope| {
        let (part, beside, behind) = (&part, &beside, &behind);
        scope.spawn(move || {
            part.span(0, 10).write(&[1; 10]);
            part.span(1, 4).fetch_and_op(Op::Sum, 1u32).expect("it is aligned");
        });
        for other in [beside, behind] {
            // SAFETY: no span of the part holds these bytes.
            unsafe { other.base.write_bytes(7, other.size) };
        }
    });
    let one = u32::from_ne_bytes([1; 4]) + 1;
    let mut expected = [1; 16];
    expected[4..8].copy_from_slice(&one.to_ne_bytes());
    expected[..3].fill(7);
    expected[13..].fill(7);
    assert_eq!(memory.0, expected);
}

/// Threads that write into different bytes of a cell do not undo what the others write.
#[test]
fn no_update_of_a_cell_is_lost() {
    const TIMES: u32 = if cfg!(miri) { 20 } else { 20_000 };
    let mut memory = Memory([0u8; 8]);
    let shared = Shared { base: memory.0.as_mut_ptr(), size: 8 };
    thread::scope(|scope| {
        let shared = &shared;
        scope.spawn(move || {
            for i in 1..=TIMES {
                let part = cells::CellBounds::of(shared.base, 8);
                // SAFETY: a byte of the cell, which is live.
                unsafe { cells::write(shared.base, &(i as u8), 1, part) };
                let mut seen = 0;
                // SAFETY: as above.
                unsafe { cells::read(&mut seen, shared.base, 1, part) };
                assert_eq!(seen, i as u8, "no other thread writes it");
            }
        });
        for _ in 0..TIMES {
            let part = cells::CellBounds::of(shared.base, 8);
            let at = shared.base.wrapping_add(4);
            // SAFETY: the half of the cell, which is live.
            unsafe { cells::fetch_and_op32(at, Op::Sum, 1u32, part) };
        }
    });
    let mut expected = [TIMES as u8, 0, 0, 0, 0, 0, 0, 0];
    expected[4..].copy_from_slice(&TIMES.to_ne_bytes());
    assert_eq!(memory.0, expected);
}

/// Arrays, whichever way they are combined, beside single elements of theirs: what each adds is in
/// the sum, and what each fetched was there once.
#[test]
fn no_sum_is_lost_between_arrays_and_single_elements() {
    const ELEMENTS: usize = if cfg!(miri) { 20 } else { 1200 };
    const TIMES: u64 = if cfg!(miri) { 3 } else { 2000 };
    let mut memory = vec![0u64; ELEMENTS];
    let size = ELEMENTS * 8;
    let shared = Shared { base: memory.as_mut_ptr().cast(), size };
    let array = |shared: &Shared, one: u64| {
        let (operands, mut old) = (vec![one; ELEMENTS], vec![0u64; ELEMENTS]);
        let mut before = vec![0u64; ELEMENTS];
        for time in 0..TIMES {
            let result = (time % 2 == 1).then(|| cast_slice_mut(&mut old));
            let operands = cast_slice(&operands);
            accumulate::by_atomics(shared.span(0, size), BasicType::U64, Op::Sum, operands, result);
            assert!(old.iter().zip(&before).all(|(old, before)| old >= before));
            before.copy_from_slice(&old);
        }
    };
    thread::scope(|scope| {
        let (shared, array) = (&shared, &array);
        scope.spawn(move || array(shared, 1));
        scope.spawn(move || array(shared, 1 << 20));
        for time in 0..TIMES {
            for at in (time % 7..ELEMENTS as u64).step_by(7) {
                shared.span(8 * at, 8).fetch_and_op(Op::Sum, 1u64 << 40).expect("it is aligned");
            }
        }
    });
    for (at, sum) in (0..).zip(memory) {
        let singles = (0..TIMES).filter(|time| time % 7 == at % 7).count() as u64;
        assert_eq!(sum, TIMES + (TIMES << 20) + (singles << 40), "at {at}");
    }
}
