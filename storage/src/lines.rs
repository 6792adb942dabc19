//! Cache lines, which this CPU writes back to memory: what makes stores durable in persistent
//! memory that is mapped with `MAP_SYNC`.
#![allow(unsafe_code)] // room: instructions that write a line back, and a fence behind them

use core::ops::Range;
use core::ptr;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Of a mapping whose pages the system makes writable only when all that it has to write to find
/// them again is durable: what is stored there outlives the machine once it is in memory.
pub(crate) const SYNCHRONOUS: MapFlags = MapFlags::SHARED_VALIDATE.union(MapFlags::SYNC);

/// Whether the system maps the file with `MAP_SYNC`. Asked where nothing is lost by a refusal,
/// which may come after what was mapped at a fixed address is gone; of a file that is open, and of
/// any process, the answer stays what it is.
pub(crate) fn grants_synchronous(file: impl AsFd, offset: u64) -> Result<(), Errno> {
    let (len, prot) = (rustix::param::page_size(), ProtFlags::READ);
    // SAFETY: the kernel chooses an address where nothing is mapped.
    let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, SYNCHRONOUS, file, offset) }?;
    // SAFETY: mapped above; nothing refers to it.
    unsafe { rustix::mm::munmap(base, len) }
}

/// How this CPU writes a line back, whichever CPU of the machine has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instruction {
    /// The line stays in the cache.
    Clwb,
    /// It leaves the cache; lines are written at the same time.
    Clflushopt,
    /// It leaves the cache; one line behind the other.
    Clflush,
}

/// Lines of this CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lines {
    instruction: Instruction,
    /// Bytes of a line.
    len: usize,
}

/// The addresses of the lines that have these bytes.
fn lines_of(bytes: Range<usize>, len: usize) -> impl Iterator<Item = usize> {
    let first = bytes.start / len * len;
    let end = if bytes.is_empty() { first } else { bytes.end };
    (first..end).step_by(len)
}

impl Lines {
    /// None if this CPU has no such instruction, or none that is known here.
    pub(crate) fn of_cpu() -> Option<Self> {
        let all = Self::all();
        all.first().copied()
    }

    /// The best first.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn all() -> Vec<Self> {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        let basic = __cpuid(1);
        // CLFSH: with it, bits 8 to 15 of EBX count 8 bytes each.
        let len = (basic.ebx >> 8 & 0xff) as usize * 8;
        if basic.edx >> 19 & 1 == 0 || !len.is_power_of_two() {
            return Vec::new();
        }
        let extended = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        let known = [
            (extended >> 24 & 1, Instruction::Clwb),
            (extended >> 23 & 1, Instruction::Clflushopt),
            (1, Instruction::Clflush),
        ];
        let there = known.into_iter().filter(|(is_there, _)| *is_there == 1);
        there.map(|(_, instruction)| Self { instruction, len }).collect()
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fn all() -> Vec<Self> {
        Vec::new()
    }

    /// Writes back what any CPU has stored before in `len` bytes from `start` on: it is in memory,
    /// or on its way there with power that lasts, when this returns.
    ///
    /// # Safety
    ///
    /// The bytes are mapped, to be read at least, until this returns.
    pub(crate) unsafe fn write_back(self, start: *const u8, len: usize) {
        let bytes = start.addr()..start.addr().saturating_add(len);
        for line in lines_of(bytes, self.len) {
            let line = start.with_addr(line);
            // SAFETY: the caller's: some byte of the line is mapped, and so is all of it, since
            // pages are whole lines. The CPU is one that has the instruction, as `all` has asked.
            unsafe { self.write_line_back(line) };
        }
        Self::fence();
    }

    /// # Safety
    ///
    /// The line is mapped, and this CPU has the instruction.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe fn write_line_back(self, line: *const u8) {
        use core::arch::asm;
        // SAFETY, of each: the caller's. None of the instructions changes a byte that the program
        // sees, a register or a flag; to the compiler they may read all of memory, so that stores
        // before them are stores before them to the CPU, which orders them in the same line.
        match self.instruction {
            Instruction::Clwb => {
                // SAFETY: as above.
                unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) };
            }
            Instruction::Clflushopt => {
                // SAFETY: as above.
                unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) };
            }
            Instruction::Clflush => {
                // SAFETY: as above.
                unsafe { asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)) };
            }
        }
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    unsafe fn write_line_back(self, line: *const u8) {
        unreachable!("{self:?} at {line:p} is of another machine");
    }

    /// What was written back before is in memory before any later store is seen.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn fence() {
        // SAFETY: all CPUs of this kind have it; it changes no byte, register or flag.
        unsafe { core::arch::asm!("sfence", options(nostack, preserves_flags)) };
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fn fence() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_bytes() {
        for len in [16, 64, 128] {
            for start in 0..2 * len {
                for end in start..start + 3 * len {
                    let lines: Vec<_> = lines_of(start..end, len).collect();
                    let has = |at: usize| lines.contains(&(at / len * len));
                    assert!((start..end).all(has), "{start}..{end} of {len}");
                    let needed = |line: &usize| *line < end && line + len > start;
                    assert!(lines.iter().all(needed), "{start}..{end} of {len}: {lines:?}");
                    assert!(lines.is_sorted_by(|one, next| one + len == *next));
                }
            }
        }
        assert_eq!(lines_of(5..5, 64).count(), 0);
    }

    /// Each instruction of this CPU, on memory that is no device: bytes are as they were, and pages
    /// beside them that are not mapped are not touched.
    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn lines_are_written_back() {
        let page = rustix::param::page_size();
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let none = ProtFlags::empty();
        // SAFETY: the kernel chooses addresses where nothing is mapped.
        let all =
            unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), 3 * page, none, flags) };
        let all = all.unwrap();
        let at = all.wrapping_byte_add(page);
        let flags = flags | MapFlags::FIXED;
        // SAFETY: inside of what was mapped above, which only this test knows of.
        let middle = unsafe { rustix::mm::mmap_anonymous(at, page, prot, flags) }.unwrap();
        let middle = middle.cast::<u8>();
        // SAFETY: a page that is mapped and zero; nothing else refers to it until it is unmapped.
        let bytes = unsafe { core::slice::from_raw_parts_mut(middle, page) };
        (0..).zip(bytes).for_each(|(at, byte)| *byte = at as u8);
        let lines = Lines::all();
        assert!(!lines.is_empty(), "x86-64 has one at least");
        for lines in lines {
            for (start, len) in [(0, page), (1, 1), (63, 2), (page - 1, 1), (100, 0), (page, 0)] {
                // SAFETY: inside of the page in the middle.
                unsafe { lines.write_back(middle.wrapping_add(start), len) };
            }
            // SAFETY: as above; the borrow before has ended.
            let bytes = unsafe { core::slice::from_raw_parts(middle, page) };
            assert!((0..).zip(bytes).all(|(at, byte)| *byte == at as u8), "{lines:?}");
        }
        // SAFETY: mapped above; nothing refers to it any more.
        unsafe { rustix::mm::munmap(all, 3 * page) }.unwrap();
    }
}
