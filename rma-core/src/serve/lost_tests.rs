//! Windows that are dropped, in a panic and otherwise, as messages find them.
use super::Registry;
use crate::completion::{Asleep, On, Wait};
use crate::transport::WorldRank;
use crate::universe::{Config, Process, Universe};
use crate::window::WindowId;
use crate::window::accumulate_tests::with_universe;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A thread of the rank waits, for a moment.
fn waits(process: &Process) {
    let wait = Wait { what: "a test", on: On::Peer(WorldRank(1)), recheck: None };
    process.nap(wait, &mut Asleep::default()).unwrap();
}

fn names(windows: &Registry) -> usize {
    windows.0.lock().unwrap().len()
}

/// Waits and looks when it is dropped: in a panic.
struct Looks<'a>(&'a Universe, WindowId, &'a AtomicBool);

impl Drop for Looks<'_> {
    fn drop(&mut self) {
        waits(self.0.process());
        self.2.store(self.0.process().windows.get(self.1.0).is_some(), Relaxed);
    }
}

#[test]
fn what_is_lost_in_a_panic_is_served_until_somebody_has_caught_it() {
    with_universe(Config::default(), |universe| {
        let (process, served) = (universe.process(), AtomicBool::new(false));
        let window = universe.world().window(1, 8).allocate().unwrap();
        let id = window.id();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _looks = Looks(universe, id, &served);
            let _window = window;
            panic!("this window is lost on purpose");
        }));
        assert!(caught.is_err() && served.load(Relaxed));
        assert!(process.windows.get(id.0).is_some(), "nobody has noticed yet");
        waits(process);
        assert!(process.windows.get(id.0).is_none());
        assert_eq!(names(&process.windows), 0);
    });
}

/// A rank that makes and drops windows without end does not keep their names.
#[test]
fn what_is_dropped_is_forgotten() {
    with_universe(Config::default(), |universe| {
        let window = || universe.world().window(1, 8).allocate().unwrap();
        let (first, second) = (window(), window());
        let windows = &universe.process().windows;
        assert_eq!(names(windows), 2);
        drop(first);
        assert_eq!((names(windows), windows.all().len()), (1, 1));
        second.free().unwrap();
        assert_eq!(names(windows), 0);
    });
}
