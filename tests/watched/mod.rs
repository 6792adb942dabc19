//! Ranks that are given up on, rather than hanging.
use rma::{Config, Universe, Window};
use std::thread;
use std::time::Duration;

#[allow(dead_code, reason = "not every test names its path")]
pub(crate) fn by(path: &str) -> Config {
    let mut config = Config::default();
    config.hint("rma_path", path).unwrap();
    config
}

pub(crate) fn patient(path: &str, seconds: u64) -> Config {
    let mut config = by(path);
    config.wait_timeout = Some(Duration::from_secs(seconds));
    config
}

pub(crate) fn words(universe: &Universe, count: usize) -> Window {
    universe.world().window(count, 8).allocate().unwrap()
}

/// Fails rather than hanging.
pub(crate) fn watched<R: Send + 'static>(
    seconds: u64,
    act: impl FnOnce() -> R + Send + 'static,
) -> R {
    let (send, get) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || drop(send.send(act())));
    match get.recv_timeout(Duration::from_secs(seconds)) {
        Ok(value) => value,
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().unwrap_err())
        }
        Err(_) => panic!("hangs"),
    }
}
