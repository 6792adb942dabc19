//! What remote shells of this machine, and those of others, print on their standard error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::mpsc::UnboundedSender;

use super::super::driver::Input;
use super::super::lines::Tail;
use super::super::output::lock;
use super::link::CHATTER;
use crate::notes::Notes;

/// What the remote shell prints on its standard error.
pub(super) struct Complaints {
    /// Of the host.
    pub(super) name: String,
    pub(super) tail: Arc<Mutex<Tail>>,
    pub(super) is_ready: Arc<AtomicBool>,
}

impl Complaints {
    /// Until a host is ready, that is kept for the sentence that says why it is not. Then each line
    /// is told once, and no more of them than the driver shows: a shell that prints without end
    /// would have signals, and what agents say, wait behind its lines.
    pub(super) async fn read(self, errors: impl AsyncRead + Unpin, inputs: UnboundedSender<Input>) {
        let mut lines = BufReader::new(errors);
        let (mut line, mut told) = (Vec::new(), Notes::default());
        loop {
            line.clear();
            let read = (&mut lines).take(CHATTER).read_until(b'\n', &mut line).await;
            if !read.is_ok_and(|count| count > 0) {
                return;
            }
            lock(&self.tail).push(&line);
            if !self.is_ready.load(Ordering::Relaxed) || told.is_full() {
                continue;
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            if told.is_new(text) {
                let _ = inputs.send(Input::Note(format!("host {}: {text}", self.name)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use tokio::net::unix::pipe::Receiver;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::notes::NOTES_MAX;

    #[tokio::test]
    async fn a_remote_shell_that_prints_without_end_is_told_of_so_much() {
        let told = async |lines: fn(usize) -> String| {
            let (errors, mut shell) = io::pipe().unwrap();
            let prints = std::thread::spawn(move || {
                (0..20 * NOTES_MAX).for_each(|at| shell.write_all(lines(at).as_bytes()).unwrap());
            });
            let errors = Receiver::from_owned_fd(errors.into()).unwrap();
            let is_ready = Arc::new(AtomicBool::new(true));
            let complaints = Complaints { name: "a".into(), tail: Arc::default(), is_ready };
            let (inputs, told) = unbounded_channel();
            complaints.read(errors, inputs).await;
            prints.join().unwrap();
            told.len()
        };
        assert_eq!(told(|_| "noise\n".into()).await, 1);
        assert_eq!(told(|at| format!("noise {at}\n")).await, NOTES_MAX);
    }
}
