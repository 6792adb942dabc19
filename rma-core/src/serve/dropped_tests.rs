//! Windows that are dropped and not freed, as messages find them.
use crate::config::Config;
use crate::protocol::message::{Head, Kind, Status};
use crate::universe::Universe;
use crate::window::Window;
use crate::window::accumulate_tests::with_loop;
use bytemuck::bytes_of_mut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;

fn words(universe: &Universe) -> Window {
    universe.world().window(1, size_of::<u64>()).allocate().unwrap()
}

/// Peers reach it as before, as they do by load and store: until this rank has left.
#[test]
fn what_is_dropped_is_served_until_the_rank_leaves() {
    let mut left = Weak::new();
    with_loop(Config::default(), |universe, network| {
        let (engine, window) = (universe.engine(), words(universe));
        let (id, part) = (window.id(), Arc::downgrade(&window.part));
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _window = window;
            panic!("this window is dropped on purpose");
        }));
        assert!(caught.is_err());
        drop(words(universe));
        assert_eq!((engine.own_windows().names(), engine.own_windows().all().len()), (2, 2));
        let mut put = Head::new(Kind::Put, id.0, 0);
        put.length = 8.into();
        network.arrive([put.as_bytes(), &7u64.to_le_bytes()].concat());
        engine.progress();
        let answer = network.take_sent().pop().unwrap();
        assert_eq!(Head::parse(&answer).unwrap().0.status(), Some(Status::Ok));
        let part = part.upgrade().unwrap();
        let mut there = 0u64;
        part.span(0, 8).unwrap().get().read(bytes_of_mut(&mut there));
        assert_eq!(there, 7);
        left = Arc::downgrade(&part);
    });
    assert!(left.upgrade().is_none(), "nothing keeps it any more");
}

/// What a part keeps goes elsewhere in the process, where a thread may be that comes here next.
#[test]
fn what_is_let_go_is_dropped_when_the_list_is_free() {
    with_loop(Config::default(), |universe, _| {
        let (engine, window) = (universe.engine(), words(universe));
        let part = Arc::downgrade(&window.part);
        drop(window);
        thread::scope(|scope| {
            // A part that is dropped closes its inbound.
            let contributions = engine.serving().contributions.hold();
            scope.spawn(|| engine.own_windows().let_go());
            while part.strong_count() > 0 {
                thread::yield_now();
            }
            assert!(engine.own_windows().is_dropped_free());
            drop(contributions);
        });
    });
}

#[test]
fn what_is_freed_is_forgotten() {
    with_loop(Config::default(), |universe, _| {
        let (first, second) = (words(universe), words(universe));
        let windows = universe.engine().own_windows();
        assert_eq!(windows.names(), 2);
        first.free().unwrap();
        assert_eq!((windows.names(), windows.all().len()), (1, 1));
        let sealed = second.seal().unwrap();
        assert_eq!(windows.names(), 1);
        sealed.unseal().unwrap().free().unwrap();
        assert_eq!(windows.names(), 0);
    });
}
