//! Somebody on the way between a host, or a rank, and its launcher.
#![allow(dead_code)] // each test program uses its own part

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

/// A frame, with its length.
pub(crate) fn read_frame(from: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut prefix = [0; 4];
    from.read_exact(&mut prefix)?;
    let mut body = vec![0; u32::from_le_bytes(prefix) as usize];
    from.read_exact(&mut body)?;
    Ok([&prefix[..], &body].concat())
}

/// What stands between a host or a rank and its launcher, and passes on frames as it likes.
pub(crate) struct Between {
    pub(crate) address: String,
    relay: JoinHandle<()>,
    pub(crate) said_hello: Receiver<()>,
    ended: Receiver<()>,
}

/// Passes on all as it is.
pub(crate) fn copied(_: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
    vec![frame]
}

impl Between {
    /// `words` gets each frame that the host sends after its hello, and how many came before it;
    /// `orders` each that the launcher sends after its welcome.
    pub(crate) fn new(to: &str, words: impl Alter, orders: impl Alter) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Between::of(listener, to, || (), words, orders)
    }

    /// At that port; `before_hello` comes before the hello of the host is passed on.
    pub(crate) fn of(
        listener: TcpListener,
        to: &str,
        before_hello: impl FnOnce() + Send + 'static,
        words: impl Alter,
        orders: impl Alter,
    ) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let to = to.to_owned();
        let ((end, ended), (hello, said_hello)) = (channel(), channel());
        let relay = std::thread::spawn(move || {
            let (mut host, _) = listener.accept().unwrap();
            let mut launcher = TcpStream::connect(to).unwrap();
            let (mut from, mut back) = (launcher.try_clone().unwrap(), host.try_clone().unwrap());
            let relay = std::thread::spawn(move || {
                // The challenge and the welcome.
                pass_on(&mut from, &mut back, 2, orders);
            });
            let said = read_frame(&mut host).unwrap();
            before_hello();
            launcher.write_all(&said).unwrap();
            // Fails when the test does not wait for it.
            let _ = hello.send(());
            pass_on(&mut host, &mut launcher, 0, words);
            relay.join().unwrap();
            let _ = end.send(());
        });
        Between { address, relay, said_hello, ended }
    }

    pub(crate) fn end(self) {
        self.ended.recv().unwrap();
        self.relay.join().unwrap();
    }
}

/// What becomes of a frame, before which so many came; nothing is the end of the connection.
pub(crate) trait Alter: FnMut(usize, Vec<u8>) -> Vec<Vec<u8>> + Send + 'static {}

impl<F: FnMut(usize, Vec<u8>) -> Vec<Vec<u8>> + Send + 'static> Alter for F {}

/// Passes on frames, the first ones as they are, until the end of either.
fn pass_on(from: &mut TcpStream, to: &mut TcpStream, hello: usize, mut alter: impl Alter) {
    let mut count = 0;
    while let Ok(frame) = read_frame(from) {
        let frames = if count < hello { vec![frame] } else { alter(count - hello, frame) };
        if frames.is_empty() {
            break;
        }
        frames.iter().for_each(|frame| _ = to.write_all(frame));
        count += 1;
    }
    let _ = to.shutdown(Shutdown::Both);
}

pub(crate) fn fourth_altered(count: usize, mut frame: Vec<u8>) -> Vec<Vec<u8>> {
    if count == 3 {
        frame[5] ^= 1;
    }
    vec![frame]
}
