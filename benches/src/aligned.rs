//! Private memory that is aligned as the peers' program aligns its own: copies of the machine take
//! up to twice as long where the destination is not.
use std::ops::{Deref, DerefMut};

/// The peers' program aligns all its buffers to this.
const PAGE: usize = 4096;

/// Elements that begin with a page.
pub(crate) struct Aligned<T> {
    memory: Vec<T>,
    first: usize,
    len: usize,
}

impl<T: Clone> Aligned<T> {
    pub(crate) fn new(value: T, len: usize) -> Self {
        // So that a page begins with an element.
        const { assert!(PAGE.is_multiple_of(size_of::<T>()) && align_of::<T>() == size_of::<T>()) };
        let memory = vec![value; len + PAGE / size_of::<T>()];
        let first = memory.as_ptr().align_offset(PAGE);
        Self { memory, first, len }
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory[self.first..self.first + self.len]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.first..self.first + self.len]
    }
}

/// Bytes of a vector that is given away, aligned to a cache line.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u8; 64]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_begin_with_a_page() {
        for len in [0, 1, 513] {
            let mut buffer = Aligned::new(1.5f64, len);
            assert!(buffer.as_ptr().addr().is_multiple_of(PAGE) && *buffer == vec![1.5; len]);
            buffer.fill(2.5);
            assert_eq!(*buffer, vec![2.5; len]);
        }
    }
}
