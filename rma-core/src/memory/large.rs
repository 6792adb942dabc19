//! Which kernel copies a large block.
//!
//! Whether a copy through the caches is faster than one past them depends on the CPU, on what else
//! uses its caches, and on where the block was before: a hypervisor does not tell that, so it is
//! measured on the copies of the program itself. Per size, a run of a few copies by each kernel
//! finds the fastest; it is found again after ever longer times.
use core::fmt::Write;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// Copies of fewer bytes are the C library's: both blocks fit caches of the second level.
pub(crate) const MIN: usize = 512 << 10;

/// Ways to copy a large block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// The C library's `memcpy`.
    Library,
    /// The CPU's own instruction for it.
    Movsb,
    /// Stores past the caches, one line after the other, fetched in advance.
    Lines,
    /// The same, of two pages in turn, so that two rows of memory are open.
    Pages,
}

impl Kernel {
    pub(super) const ALL: [Self; 4] = [Self::Library, Self::Movsb, Self::Lines, Self::Pages];

    fn name(self) -> &'static str {
        match self {
            Self::Library => "memcpy",
            Self::Movsb => "rep movsb",
            Self::Lines => "past the caches by lines",
            Self::Pages => "past the caches by pages",
        }
    }
}

/// Copies of one kernel in a row that tell how fast it is. The first does not count: it finds in
/// the caches what the kernel before it left there.
const RUN: u32 = 4;
/// Copies before the kernels are compared again: at first, and at most.
const PAUSE_MIN: u32 = 128;
const PAUSE_MAX: u32 = 8192;
const LIBRARY: usize = Kernel::Library as usize;
/// Another kernel than the library's takes less by one part in so many, or is not chosen.
const BETTER: u64 = 25;

/// What is known of copies of about one size.
#[derive(Debug)]
struct Trials {
    /// Of the kernels in the order of [`Kernel::ALL`], in picoseconds for a KiB; the least of its
    /// last run.
    took: [u64; Kernel::ALL.len()],
    fastest: usize,
    /// The one that is tried; the fastest in a pause.
    tried: usize,
    /// Copies of the run.
    run: u32,
    /// The one that was the fastest of the last trials, if it has to be of these, too; otherwise
    /// the library's.
    winner: usize,
    /// Kernels that are still to be tried, before the pause.
    left: u32,
    /// Copies that are left of the pause.
    rest: u32,
    pause: u32,
}

impl Trials {
    const NEW: Self = Self {
        took: [u64::MAX; Kernel::ALL.len()],
        fastest: LIBRARY,
        winner: LIBRARY,
        tried: 0,
        run: 0,
        left: Kernel::ALL.len() as u32,
        rest: 0,
        pause: PAUSE_MIN,
    };

    /// The kernel for the next copy, and whether it is to be measured.
    fn next(&mut self) -> (Kernel, bool) {
        if self.left == 0 {
            match self.rest.checked_sub(1) {
                Some(rest) => self.rest = rest,
                None => {
                    self.left = Kernel::ALL.len() as u32;
                    self.begin(self.fastest);
                }
            }
        }
        (Kernel::ALL[self.tried], self.left > 0)
    }

    /// A measured copy by that kernel took so long for a KiB.
    fn note(&mut self, kernel: Kernel, took: u64) {
        // Of a thread that asked before the last change.
        if self.left == 0 || kernel != Kernel::ALL[self.tried] {
            return;
        }
        self.run += 1;
        if self.run > 1 {
            self.took[self.tried] = self.took[self.tried].min(took);
        }
        // What takes far longer than the fastest is not tried any longer.
        let far_longer = self.took[self.fastest].saturating_mul(if self.run > 1 { 5 } else { 8 });
        let hopeless = self.tried != self.fastest && took.saturating_mul(4) > far_longer;
        if self.run >= RUN || hopeless {
            self.end_run();
        }
    }

    fn begin(&mut self, kernel: usize) {
        self.tried = kernel;
        self.took[kernel] = u64::MAX;
        self.run = 0;
    }

    fn end_run(&mut self) {
        self.left -= 1;
        if self.left > 0 {
            return self.begin((self.tried + 1) % Kernel::ALL.len());
        }
        let fastest = (0..Kernel::ALL.len()).min_by_key(|kernel| self.took[*kernel]);
        // Within what measures vary, the library's: it knows the machine.
        let least = self.took[LIBRARY] - self.took[LIBRARY] / BETTER;
        let fastest = fastest.filter(|kernel| self.took[*kernel] < least).unwrap_or(LIBRARY);
        // All are tried again at once before another one than the library's replaces what is used:
        // where the machine slows down in the middle of the trials, they say nothing.
        if ![self.fastest, self.winner, LIBRARY].contains(&fastest) {
            (self.winner, self.left) = (fastest, Kernel::ALL.len() as u32);
            return self.begin(self.fastest);
        }
        self.pause = match self.fastest == fastest {
            true => (self.pause * 4).min(PAUSE_MAX),
            false => PAUSE_MIN,
        };
        (self.fastest, self.winner, self.tried, self.rest) =
            (fastest, LIBRARY, fastest, self.pause);
    }
}

/// Sizes that are told apart: two in each power of two.
const CLASSES: usize = 24;

static TRIALS: [Mutex<Trials>; CLASSES] = [const { Mutex::new(Trials::NEW) }; CLASSES];

fn class(len: usize) -> usize {
    let octave = len.max(MIN).ilog2();
    let upper = len >> (octave - 1) & 1;
    ((octave - MIN.ilog2()) as usize * 2 + upper).min(CLASSES - 1)
}

/// The least length of a class.
fn least(class: usize) -> usize {
    (MIN << (class / 2)) / 2 * (2 + class % 2)
}

/// Nothing while another thread has them: no thread waits for a choice.
fn trials(len: usize) -> Option<MutexGuard<'static, Trials>> {
    TRIALS[class(len)].try_lock().ok()
}

/// Copies `len` bytes, at least [`MIN`], by `copy` with the kernel that is chosen.
pub(crate) fn by_kernel(len: usize, copy: impl FnOnce(Kernel)) {
    let (kernel, measured) =
        trials(len).map_or((Kernel::Library, false), |mut trials| trials.next());
    if !measured {
        return copy(kernel);
    }
    let begin = Instant::now();
    copy(kernel);
    let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    if let Some(mut trials) = trials(len) {
        trials.note(kernel, took.saturating_mul(1000) / (len as u64 >> 10));
    }
}

/// What was chosen in this process so far, in a line.
pub(crate) fn explain() -> String {
    let mut text =
        String::from("copies: from 512 KiB on, the fastest kernel for the size, measured");
    let mut none = true;
    for (class, trials) in TRIALS.iter().enumerate() {
        let Ok(trials) = trials.try_lock() else { continue };
        let took = trials.took[trials.fastest];
        if took != u64::MAX && trials.left == 0 {
            let (from, rate) = (least(class) >> 10, (1024.0 * 1000.0) / took as f64);
            let name = Kernel::ALL[trials.fastest].name();
            _ = write!(
                text,
                "{} from {from} KiB {name} ({rate:.1} GB/s)",
                if none { ";" } else { "," }
            );
            none = false;
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes copies that take what `took` says; how many each kernel made.
    fn run(trials: &mut Trials, copies: u32, took: impl Fn(Kernel) -> u64) -> [u32; 4] {
        let mut made = [0; 4];
        for _ in 0..copies {
            let (kernel, measured) = trials.next();
            made[kernel as usize] += 1;
            if measured {
                trials.note(kernel, took(kernel));
            }
        }
        made
    }

    fn fast(fastest: Kernel) -> impl Fn(Kernel) -> u64 {
        move |kernel| if kernel == fastest { 100 } else { 200 }
    }

    #[test]
    fn the_fastest_is_found_and_used() {
        for kernel in Kernel::ALL {
            let mut trials = Trials::NEW;
            run(&mut trials, 8 * RUN, fast(kernel));
            assert_eq!(trials.next(), (kernel, false));
            let made = run(&mut trials, 100_000, fast(kernel));
            let others: u32 = made.iter().sum::<u32>() - made[kernel as usize];
            assert!(others < 300, "others are tried now and then: {made:?}");
            assert!(others > 20, "others are tried again: {made:?}");
        }
    }

    #[test]
    fn what_becomes_faster_is_noticed() {
        let mut trials = Trials::NEW;
        run(&mut trials, 200_000, fast(Kernel::Library));
        run(&mut trials, PAUSE_MAX + 8 * RUN, fast(Kernel::Lines));
        assert_eq!(trials.next(), (Kernel::Lines, false));
        let made = run(&mut trials, PAUSE_MIN + 4 * RUN, fast(Kernel::Lines));
        assert!(made[Kernel::Library as usize] > 0, "soon after a change it is tried again");
    }

    #[test]
    fn one_slow_copy_decides_nothing() {
        let mut trials = Trials::NEW;
        for _ in 0..8 {
            for copy in 0..RUN {
                let (kernel, _) = trials.next();
                let slow = copy == 1 || kernel != Kernel::Movsb;
                trials.note(kernel, if slow { 130 } else { 100 });
            }
        }
        assert_eq!(trials.next(), (Kernel::Movsb, false));
    }

    /// One after the other, until all have been tried.
    fn round(trials: &mut Trials, fastest: Kernel) {
        let mut left = Kernel::ALL.len() as u32;
        while trials.left == left || trials.left + 1 == left && left > 1 {
            left = trials.left;
            let (kernel, _) = trials.next();
            trials.note(kernel, fast(fastest)(kernel));
        }
    }

    #[test]
    fn one_slow_round_decides_nothing() {
        let mut trials = Trials::NEW;
        round(&mut trials, Kernel::Lines);
        assert_eq!(trials.next(), (Kernel::Library, true), "all are tried again");
        round(&mut trials, Kernel::Library);
        assert_eq!(trials.next(), (Kernel::Library, false));
        let mut trials = Trials::NEW;
        round(&mut trials, Kernel::Pages);
        round(&mut trials, Kernel::Lines);
        assert_eq!(trials.next(), (Kernel::Library, true), "two that differ decide nothing");
        round(&mut trials, Kernel::Lines);
        assert_eq!(trials.next(), (Kernel::Lines, false));
    }

    #[test]
    fn what_comes_late_is_left_aside() {
        let mut trials = Trials::NEW;
        run(&mut trials, 8 * RUN, fast(Kernel::Pages));
        trials.note(Kernel::Library, 1);
        assert_eq!(trials.next(), (Kernel::Pages, false));
        let mut trials = Trials::NEW;
        trials.note(Kernel::Movsb, 1);
        assert_eq!((trials.next(), trials.run), ((Kernel::Library, true), 0));
    }

    #[test]
    fn sizes_have_classes() {
        assert_eq!((class(MIN), class(MIN + MIN / 2 - 1), class(MIN + MIN / 2)), (0, 0, 1));
        assert_eq!((class(2 * MIN), class(usize::MAX)), (2, CLASSES - 1));
        for of in 0..CLASSES {
            assert_eq!(
                (class(least(of)), class(least(of).max(MIN + 1) - 1)),
                (of, of.saturating_sub(1))
            );
        }
    }
}
