//! The input of rank 0, when that is on another host.

use std::io::Read;
use std::sync::mpsc;

use tokio::sync::mpsc::UnboundedSender;

use super::super::spec::{Spec, Stdin};
use super::super::start::in_foreground;
use super::talk::Order;

/// Bytes of it that are on their way at most.
const INPUT_WINDOW: usize = 64 << 10;

/// What rank 0 is to read.
pub(super) fn input_of(spec: &Spec) -> Option<Box<dyn Read + Send>> {
    match &spec.stdin {
        Stdin::Null => None,
        Stdin::Bytes(bytes) => Some(Box::new(std::io::Cursor::new(bytes.clone()))),
        // A terminal stops a process that reads it from the background.
        Stdin::Inherit
            if rustix::termios::isatty(rustix::stdio::stdin())
                && !(spec.dedicated && in_foreground()) =>
        {
            None
        }
        Stdin::Inherit => {
            let input = rustix::io::dup(rustix::stdio::stdin()).ok()?;
            Some(Box::new(std::fs::File::from(input)))
        }
    }
}

/// Sends it, as much as there is room for on the way.
pub(super) fn read_input(
    mut input: Box<dyn Read + Send>,
    takes: &mpsc::Receiver<usize>,
    orders: &UnboundedSender<Order>,
) {
    let mut room = INPUT_WINDOW;
    let mut piece = [0; 4096];
    loop {
        while room < piece.len() {
            let Ok(taken) = takes.recv() else { return };
            room += taken;
        }
        room += takes.try_iter().sum::<usize>();
        // What cannot be read is at its end.
        let count = input.read(&mut piece).unwrap_or(0);
        if orders.send(Order::Input { bytes: piece[..count].to_vec() }).is_err() || count == 0 {
            return;
        }
        room -= count;
    }
}
