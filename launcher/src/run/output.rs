//! Where lines go.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::driver::Input;
use super::lines::{Lines, Tail};
use super::machine::Event;
use super::report::RankOutput;

/// Bytes read at once.
const CHUNK: usize = 16 << 10;
/// Chunks that may wait to be written.
const QUEUED: usize = 64;
/// Captured bytes kept of each stream.
const CAPTURED: usize = 16 << 20;
/// How long a pipe that outlives its rank may be silent.
const SILENCE: Duration = Duration::from_millis(300);

/// Which of a process' streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// What is to be written; the permit bounds how much waits.
type Chunk = (Stream, Vec<u8>, Option<OwnedSemaphorePermit>);

/// A destination of lines.
#[derive(Debug, Clone)]
pub(super) enum Sink {
    /// This process' own streams, through a thread that may block.
    Print { chunks: UnboundedSender<Chunk>, permits: Arc<Semaphore> },
    /// Memory.
    Capture(Arc<Mutex<Captured>>),
}

/// What was printed, in memory.
#[derive(Debug, Default)]
pub(super) struct Captured {
    pub(super) ranks: Vec<RankOutput>,
    pub(super) notes: Vec<String>,
}

impl Sink {
    /// A sink that prints; the receiver resolves when everything is written and the sink gone.
    ///
    /// One thread writes both streams, so that lines stay whole when both are one terminal.
    pub(super) fn print(inputs: UnboundedSender<Input>) -> io::Result<(Sink, Printed)> {
        let (chunks, queue) = unbounded_channel();
        let (done, printed) = oneshot::channel();
        std::thread::Builder::new().name("output".into()).spawn(move || {
            print(queue, &inputs);
            // The driver does not wait for it after a second interrupt.
            let _ = done.send(());
        })?;
        Ok((Sink::Print { chunks, permits: Arc::new(Semaphore::new(QUEUED)) }, printed))
    }

    /// A sink that keeps everything.
    pub(super) fn capture(ranks: u32) -> Sink {
        let ranks = vec![RankOutput::default(); ranks as usize];
        Sink::Capture(Arc::new(Mutex::new(Captured { ranks, notes: Vec::new() })))
    }

    /// Something the launcher itself says.
    pub(super) fn note(&self, text: &str) {
        match self {
            Sink::Print { chunks, .. } => {
                let lines = text.lines().map(|line| format!("rma-run: {line}\n"));
                let lines = lines.collect::<String>().into_bytes();
                // The thread is gone only at the very end.
                let _ = chunks.send((Stream::Err, lines, None));
            }
            Sink::Capture(captured) => lock(captured).notes.push(text.to_owned()),
        }
    }

    async fn lines(&self, rank: u32, stream: Stream, lines: Vec<u8>) {
        if lines.is_empty() {
            return;
        }
        match self {
            Sink::Print { chunks, permits } => {
                let permit = Arc::clone(permits).acquire_owned().await.ok();
                let _ = chunks.send((stream, lines, permit));
            }
            Sink::Capture(captured) => {
                let mut captured = lock(captured);
                let Some(output) = captured.ranks.get_mut(rank as usize) else { return };
                let kept = match stream {
                    Stream::Out => &mut output.stdout,
                    Stream::Err => &mut output.stderr,
                };
                kept.extend_from_slice(&lines);
                if kept.len() > CAPTURED {
                    kept.drain(..kept.len() - CAPTURED / 2);
                }
            }
        }
    }

    /// Takes what was captured, if anything was.
    pub(super) fn take(&self) -> Captured {
        match self {
            Sink::Print { .. } => Captured::default(),
            Sink::Capture(captured) => std::mem::take(&mut *lock(captured)),
        }
    }
}

/// Resolves when everything was printed.
pub(super) type Printed = oneshot::Receiver<()>;

/// Locks; what a panicking thread left in there is only text.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a rank's stream until it ends, or stays silent once `stop` is set.
pub(super) async fn forward(
    (rank, stream): (u32, Stream),
    pipe: Receiver,
    mut lines: Lines,
    tail: Arc<Mutex<Tail>>,
    sink: Sink,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let ready = tokio::select! {
            biased;
            ready = pipe.readable() => ready,
            () = silence(&mut stop) => break,
        };
        let Ok(whole) = ready.and_then(|()| read(&pipe, &mut lines, &tail)) else { break };
        sink.lines(rank, stream, whole).await;
    }
    sink.lines(rank, stream, lines.finish()).await;
}

/// Reads what there is, and returns the lines that are whole then; the end of the stream is an
/// error. The buffer is of no rank in particular: each process that is started costs a copy of the
/// tables of what this one keeps.
fn read(pipe: &Receiver, lines: &mut Lines, tail: &Mutex<Tail>) -> io::Result<Vec<u8>> {
    let mut chunk = [0; CHUNK];
    match pipe.try_read(&mut chunk) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => {
            lock(tail).push(&chunk[..count]);
            Ok(lines.push(&chunk[..count]))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The receiving end of a rank's pipe.
pub(super) fn receiver(pipe: impl Into<OwnedFd>) -> io::Result<Receiver> {
    Receiver::from_owned_fd(pipe.into())
}

async fn silence(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        return;
    }
    tokio::time::sleep(SILENCE).await;
}

/// Longest line kept in memory, so that all ranks together stay within about 128 MiB.
pub(super) fn line_limit(ranks: u32) -> usize {
    const TOTAL: usize = 128 << 20;
    (TOTAL / 2 / (ranks.max(1) as usize)).clamp(16 << 10, 1 << 20)
}

/// Writes until every sink is gone.
fn print(mut queue: UnboundedReceiver<Chunk>, inputs: &UnboundedSender<Input>) {
    let mut usable = [true; 2];
    while let Some((stream, bytes, _permit)) = queue.blocking_recv() {
        let (to, usable) = match stream {
            Stream::Out => (rustix::stdio::stdout(), &mut usable[0]),
            Stream::Err => (rustix::stdio::stderr(), &mut usable[1]),
        };
        if !*usable {
            continue;
        }
        if let Err(error) = write_all(to, &bytes) {
            *usable = false;
            if stream == Stream::Out {
                let why = (error != rustix::io::Errno::PIPE).then(|| error.to_string());
                // The driver is gone only when the job is over.
                let _ = inputs.send(Input::Event(Event::OutputEnded(why)));
            }
        }
    }
}

/// Writes all of `bytes`, also where a process that shares the file has made it non-blocking.
fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(count) => bytes = &bytes[count.min(bytes.len())..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                match poll(&mut [PollFd::new(&to, PollFlags::OUT)], None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
