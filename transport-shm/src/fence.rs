//! A fence that all ranks of a machine pass, wherever their threads are: the system interrupts the
//! CPUs that run one (`membarrier`, Linux 4.16).
use std::sync::OnceLock;

use rustix::io;
use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

/// Has this process pass the fences of all; whether the system lets it do so, and fence others.
/// Takes a microsecond in a process with one thread, and else some milliseconds, but once.
pub(crate) fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        membarrier_query().contains_command(MembarrierCommand::GlobalExpedited)
            && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
    })
}

/// All threads of registered processes have passed a fence when it returns.
pub(crate) fn all() -> io::Result<()> {
    membarrier(MembarrierCommand::GlobalExpedited)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst, compiler_fence};
    use std::thread;

    /// Lines that one thread writes and the other reads.
    #[repr(align(128))]
    #[derive(Default)]
    struct Line(AtomicU32);

    /// Of two threads that each store, and then load what the other stores, one at least sees the
    /// other's: with a fence of the system's in one, and none in the other.
    #[test]
    fn a_thread_that_has_no_fence_passes_one() {
        const ROUNDS: u32 = 20_000;
        if !register() {
            return println!("SKIPPED: the system refuses membarrier");
        }
        let [with, without, come] = [(); 3].map(|()| Line::default());
        let meet = |round: u32| {
            come.0.fetch_add(1, SeqCst);
            let mut looks = 0;
            while come.0.load(SeqCst) < 2 * (round + 1) {
                looks += 1;
                if looks < 1000 { hint::spin_loop() } else { thread::yield_now() }
            }
        };
        let play = |mine: &Line, other: &Line, fence: &dyn Fn()| -> Vec<bool> {
            let round = |round: u32| {
                meet(2 * round);
                mine.0.store(round + 1, Relaxed);
                fence();
                let seen = other.0.load(Relaxed) == round + 1;
                meet(2 * round + 1);
                seen
            };
            (0..ROUNDS).map(round).collect()
        };
        let (a, b) = thread::scope(|scope| {
            let light = || play(&without, &with, &|| compiler_fence(SeqCst));
            let light = scope.spawn(light);
            let heavy = play(&with, &without, &|| all().unwrap());
            (heavy, light.join().unwrap())
        });
        let lost = a.iter().zip(&b).filter(|(a, b)| !**a && !**b).count();
        assert_eq!(lost, 0, "rounds in which neither saw the other");
    }
}
