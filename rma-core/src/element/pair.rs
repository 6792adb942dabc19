//! A value and where it was found.
#![allow(unsafe_code)]

use bytemuck::{Pod, Zeroable};

/// A value with an index: what [`Op::MinLoc`](crate::Op::MinLoc) and
/// [`Op::MaxLoc`](crate::Op::MaxLoc) compare.
///
/// One element: value and index are never seen apart (MPI 4.1, section 6.9.4). Components are as
/// wide as each other, so that there is no padding: values `i32`, `u32`, `f32` with indices `i32`
/// or `u32`; `i64`, `u64`, `f64` with `i64` or `u64`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Pair<V, I> {
    /// What is compared.
    pub value: V,
    /// Where the value was found; of equal values the lower index wins.
    pub index: I,
}

impl<V, I> Pair<V, I> {
    /// A value and its index.
    pub const fn new(value: V, index: I) -> Self {
        Self { value, index }
    }
}

macro_rules! plain { ($($value:ty, $index:ty;)*) => { $(
    // SAFETY: both fields are `Zeroable`.
    unsafe impl Zeroable for Pair<$value, $index> {}
    // SAFETY: `repr(C)`, both fields are `Pod`, and, as asserted, there is no padding.
    unsafe impl Pod for Pair<$value, $index> {}
    const _: () = assert!(
        size_of::<Pair<$value, $index>>() == size_of::<$value>() + size_of::<$index>()
    );
)* } }
plain! {
    i32, i32; i32, u32; u32, i32; u32, u32; f32, i32; f32, u32;
    i64, i64; i64, u64; u64, i64; u64, u64; f64, i64; f64, u64;
}
