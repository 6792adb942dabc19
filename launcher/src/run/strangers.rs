//! A port that strangers may knock at: until one has said hello, it must hold up no other.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Connections that the kernel keeps until they are accepted: this process may be starting others.
pub(super) const BACKLOG: u16 = 4096;
/// Pause when no connection can be accepted, for lack of descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The port, and callers whose hello is awaited; of more than `max`, the oldest is dropped.
#[derive(Debug)]
pub(super) struct Strangers {
    listener: TcpListener,
    max: usize,
    awaited: VecDeque<AbortHandle>,
}

impl Strangers {
    pub(super) fn new(listener: TcpListener, max: usize) -> Strangers {
        Strangers { listener, max, awaited: VecDeque::new() }
    }

    /// The next caller. Loses none if it is dropped.
    pub(super) async fn accept(&self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => return accepted,
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    /// One more hello is awaited; says why another one is not any more, if there is no room.
    pub(super) fn await_hello(&mut self, hello: AbortHandle) -> Option<&'static str> {
        self.awaited.retain(|hello| !hello.is_finished());
        let has_room = self.awaited.len() < self.max;
        let oldest = if has_room { None } else { self.awaited.pop_front() };
        self.awaited.push_back(hello);
        oldest?.abort();
        Some("it kept silent while others came")
    }
}
