//! Where lines go.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::driver::Input;
use super::files::OutputFile;
use super::hosts::Relayed;
use super::lines::{Lines, Piece, Tail};
use super::machine::Event;
use super::report::RankOutput;

/// Bytes read at once.
const CHUNK: usize = 64 << 10;
/// The same where something goes in front of each line, which may be many times as long.
const MARKED_CHUNK: usize = 16 << 10;
/// Bytes that may wait to be written; a piece counts as one of [`CHUNK`] bytes at least.
const QUEUED: usize = 64 * CHUNK;
/// Captured bytes kept of each stream.
const CAPTURED: usize = 16 << 20;
/// After that silence of its rank, the beginning of a line is printed without its end, and other
/// ranks need no longer wait for that.
const PROMPT: Duration = Duration::from_millis(100);
/// How long a pipe that outlives its rank may be silent.
const SILENCE: Duration = Duration::from_millis(300);

/// Which of a process' streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// What is to be written.
#[derive(Debug)]
pub(super) struct Chunk {
    stream: Stream,
    /// The rank that it is of; none for the launcher itself.
    rank: Option<u32>,
    piece: Piece,
    /// Of a line that continues, should another one have come in between.
    label: Vec<u8>,
    /// Bounds how much waits.
    _permit: Option<OwnedSemaphorePermit>,
}

/// A destination of lines.
#[derive(Debug, Clone)]
pub(super) enum Sink {
    /// This process' own streams, through a thread that may block.
    Print {
        chunks: UnboundedSender<Chunk>,
        permits: Arc<Semaphore>,
        /// The right to print on each stream; kept in the middle of a line.
        turns: [Arc<tokio::sync::Mutex<()>>; 2],
    },
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
        let one_file = is_one_file();
        std::thread::Builder::new().name("output".into()).spawn(move || {
            let failure = print(queue, &inputs, one_file);
            // The driver does not wait for it after a second interrupt.
            let _ = done.send(failure);
        })?;
        let out = Arc::new(tokio::sync::Mutex::new(()));
        let err = if one_file { Arc::clone(&out) } else { Arc::default() };
        let permits = Arc::new(Semaphore::new(QUEUED));
        Ok((Sink::Print { chunks, permits, turns: [out, err] }, printed))
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
                let piece = Piece { bytes: lines, continues: false };
                let (rank, label) = (None, Vec::new());
                // The thread is gone only at the very end.
                let _ =
                    chunks.send(Chunk { stream: Stream::Err, rank, piece, label, _permit: None });
            }
            Sink::Capture(captured) => lock(captured).notes.push(text.to_owned()),
        }
    }

    /// Prints what `lines` has cut. `turn` is the rank's right to print, which it keeps in the
    /// middle of a line unless it was silent.
    async fn print_piece(
        &self,
        (rank, stream): (u32, Stream),
        piece: Piece,
        lines: &Lines,
        turn: &mut Option<OwnedMutexGuard<()>>,
    ) {
        if piece.bytes.is_empty() {
            return;
        }
        match self {
            Sink::Print { chunks, permits, turns } => {
                if turn.is_none() {
                    let free = Arc::clone(&turns[stream as usize]);
                    *turn = Some(free.lock_owned().await);
                }
                let bytes = piece.bytes.len().clamp(CHUNK, QUEUED) as u32;
                let permit = Arc::clone(permits).acquire_many_owned(bytes).await.ok();
                let label = if piece.continues { lines.label().to_vec() } else { Vec::new() };
                let rank = Some(rank);
                let _ = chunks.send(Chunk { stream, rank, piece, label, _permit: permit });
                if !lines.is_begun() {
                    *turn = None;
                }
            }
            Sink::Capture(captured) => {
                let mut captured = lock(captured);
                let Some(output) = captured.ranks.get_mut(rank as usize) else { return };
                let kept = match stream {
                    Stream::Out => &mut output.stdout,
                    Stream::Err => &mut output.stderr,
                };
                kept.extend_from_slice(&piece.bytes);
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

/// Where a stream of a rank goes.
pub(super) struct Outlet {
    pub(super) of: (u32, Stream),
    /// None if it goes to a file alone.
    pub(super) sink: Option<Sink>,
    pub(super) file: Option<OutputFile>,
}

impl Outlet {
    /// Writes what `lines` has cut, and then prints it; `turn` is as of [`Sink::print_piece`].
    async fn pass_on(
        &self,
        mut piece: Piece,
        lines: &Lines,
        turn: &mut Option<OwnedMutexGuard<()>>,
    ) {
        if let (Some(file), false) = (&self.file, piece.bytes.is_empty()) {
            piece.bytes = file.write(piece.bytes).await;
        }
        if let Some(sink) = &self.sink {
            sink.print_piece(self.of, piece, lines, turn).await;
        }
    }
}

/// Resolves when everything was printed, to why standard output could not be written, if that is so
/// and its reader is not just gone.
pub(super) type Printed = oneshot::Receiver<Option<String>>;

/// Locks; what a panicking thread left in there is only text.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a stream of a rank comes from.
#[derive(Debug)]
pub(super) enum Source {
    Pipe(Receiver),
    /// Another host, which says when it ends. It is told what was taken.
    Host(Relayed),
}

impl Source {
    /// Waits for something, and returns what can be printed then; the end of the stream is an
    /// error. Takes nothing if it is dropped.
    async fn next(&mut self, lines: &mut Lines, tails: &[Arc<Mutex<Tail>>]) -> io::Result<Piece> {
        match self {
            Source::Pipe(pipe) => {
                pipe.readable().await?;
                read(pipe, lines, tails)
            }
            Source::Host(relayed) => {
                let bytes = relayed.next().await.ok_or(io::ErrorKind::UnexpectedEof)?;
                tails.iter().for_each(|tail| lock(tail).push(&bytes));
                Ok(lines.push(&bytes))
            }
        }
    }

    /// What follows that silence is of no rank.
    fn may_be_cut(&self) -> bool {
        matches!(self, Source::Pipe(_))
    }

    fn taken(&mut self) {
        if let Source::Host(relayed) = self {
            relayed.taken();
        }
    }
}

/// Reads a rank's stream until it ends, or stays silent once `stop` is set.
pub(super) async fn forward(
    mut source: Source,
    mut lines: Lines,
    tails: Vec<Arc<Mutex<Tail>>>,
    outlet: Outlet,
    mut stop: watch::Receiver<bool>,
) {
    let mut turn = None;
    let may_be_cut = source.may_be_cut();
    loop {
        let waits = lines.waits() || turn.is_some();
        let piece = tokio::select! {
            biased;
            piece = source.next(&mut lines, &tails) => Some(piece),
            () = tokio::time::sleep(PROMPT), if waits => None,
            () = silence(&mut stop), if may_be_cut => break,
        };
        let Some(piece) = piece else {
            let piece = lines.rest();
            outlet.pass_on(piece, &lines, &mut turn).await;
            turn = None;
            continue;
        };
        let Ok(piece) = piece else { break };
        outlet.pass_on(piece, &lines, &mut turn).await;
        source.taken();
    }
    let piece = lines.rest();
    outlet.pass_on(piece, &lines, &mut turn).await;
}

/// Reads what there is, and returns what can be printed then; the end of the stream is an error.
/// The buffer is of no rank in particular: each process that is started costs a copy of the tables
/// of what this one keeps.
fn read(pipe: &Receiver, lines: &mut Lines, tails: &[Arc<Mutex<Tail>>]) -> io::Result<Piece> {
    let mut chunk = [0; CHUNK];
    let at_once = if lines.is_marked() { MARKED_CHUNK } else { CHUNK };
    match pipe.try_read(&mut chunk[..at_once]) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => {
            tails.iter().for_each(|tail| lock(tail).push(&chunk[..count]));
            Ok(lines.push(&chunk[..count]))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Piece::default()),
        Err(error) => Err(error),
    }
}

/// The receiving end of a rank's pipe.
pub(super) fn receiver(pipe: impl Into<OwnedFd>) -> io::Result<Receiver> {
    Receiver::from_owned_fd(pipe.into())
}

pub(super) async fn silence(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        return;
    }
    tokio::time::sleep(SILENCE).await;
}

/// How much of a line waits for its end, so that all ranks together stay within about 64 MiB. The
/// lines of a rank that is alone mix with no other's.
pub(super) fn line_limit(ranks: u32) -> usize {
    const TOTAL: usize = 64 << 20;
    match ranks {
        0 | 1 => 0,
        _ => (TOTAL / 2 / (ranks as usize)).clamp(4 << 10, 64 << 10),
    }
}

/// Whether standard output and standard error are one terminal, pipe or file.
fn is_one_file() -> bool {
    let file = |stream: BorrowedFd<'_>| {
        rustix::fs::fstat(stream).map(|stat| (stat.st_dev, stat.st_ino, stat.st_rdev))
    };
    let (out, err) = (file(rustix::stdio::stdout()), file(rustix::stdio::stderr()));
    out.is_ok() && out == err
}

/// Lines that were begun on this process' streams.
#[derive(Debug, Default)]
struct Begun {
    /// Of which rank, for each stream.
    ranks: [Option<u32>; 2],
    one_file: bool,
}

impl Begun {
    /// What goes in front of a chunk: the end of a line that another rank has begun, and the label
    /// of a line that was cut so. Notes the line that the chunk begins.
    fn before(&mut self, chunk: &Chunk) -> Vec<u8> {
        let index = if self.one_file { 0 } else { chunk.stream as usize };
        let begun = &mut self.ranks[index];
        let (same, mut before) = (chunk.rank.is_some() && *begun == chunk.rank, Vec::new());
        if begun.is_some() && !same {
            before.push(b'\n');
        }
        if chunk.piece.continues && !same {
            before.extend_from_slice(&chunk.label);
        }
        let ends = chunk.piece.bytes.ends_with(b"\n");
        *begun = chunk.rank.filter(|_| !ends);
        before
    }
}

/// Writes until every sink is gone; see [`Printed`].
fn print(
    mut queue: UnboundedReceiver<Chunk>,
    inputs: &UnboundedSender<Input>,
    one_file: bool,
) -> Option<String> {
    let (mut usable, mut failure) = ([true; 2], None);
    let mut begun = Begun { one_file, ..Begun::default() };
    while let Some(chunk) = queue.blocking_recv() {
        let (to, usable) = match chunk.stream {
            Stream::Out => (rustix::stdio::stdout(), &mut usable[0]),
            Stream::Err => (rustix::stdio::stderr(), &mut usable[1]),
        };
        if !*usable {
            continue;
        }
        let mut bytes = begun.before(&chunk);
        let bytes = if bytes.is_empty() {
            &chunk.piece.bytes
        } else {
            bytes.extend_from_slice(&chunk.piece.bytes);
            &bytes
        };
        if let Err(error) = write_all(to, bytes) {
            *usable = false;
            if chunk.stream == Stream::Out {
                let why = || format!("standard output cannot be written: {error}");
                let why = (error != rustix::io::Errno::PIPE).then(why);
                failure.clone_from(&why);
                // The driver is gone only when the job is over.
                let _ = inputs.send(Input::Event(Event::OutputEnded(why)));
            }
        }
    }
    failure
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

#[cfg(test)]
mod tests {
    use super::super::lines::Front;
    use super::*;

    fn chunk(rank: u32, stream: Stream, text: &str, continues: bool) -> Chunk {
        let piece = Piece { bytes: text.into(), continues };
        let label = format!("[{rank}] ").into_bytes();
        Chunk { stream, rank: Some(rank), piece, label, _permit: None }
    }

    #[test]
    fn a_line_is_ended_only_when_another_rank_prints() {
        use Stream::{Err, Out};
        let mut begun = Begun::default();
        assert_eq!(begun.before(&chunk(0, Out, "na", false)), b"");
        assert_eq!(begun.before(&chunk(0, Out, "me? ", true)), b"");
        assert_eq!(begun.before(&chunk(1, Err, "elsewhere\n", false)), b"");
        assert_eq!(begun.before(&chunk(1, Out, "mine\n", false)), b"\n");
        assert_eq!(begun.before(&chunk(0, Out, "rest\n", true)), b"[0] ");
        assert_eq!(begun.before(&chunk(2, Out, "next\n", false)), b"");
    }

    /// Short lines become many times as long where something goes in front of each.
    #[test]
    fn what_waits_is_bounded_in_bytes() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, theirs) = rustix::pipe::pipe().unwrap();
            let lines = [b'\n'; CHUNK];
            assert_eq!(rustix::io::write(&theirs, &lines).unwrap(), CHUNK);
            let pipe = receiver(ours).unwrap();
            pipe.readable().await.unwrap();
            let mut lines = Lines::new(Front::new(None, Some(7)), 0);
            let piece = read(&pipe, &mut lines, &[]).unwrap();
            assert_eq!(piece.bytes.len(), MARKED_CHUNK * "[7] \n".len());

            let ((chunks, _queue), permits) =
                (unbounded_channel(), Arc::new(Semaphore::new(QUEUED)));
            let turns = [Arc::default(), Arc::default()];
            let sink = Sink::Print { chunks, permits: Arc::clone(&permits), turns };
            let mut free = QUEUED;
            for (len, counted) in [(1, CHUNK), (3 * CHUNK, 3 * CHUNK)] {
                let piece = Piece { bytes: vec![b'\n'; len], continues: false };
                sink.print_piece((7, Stream::Out), piece, &lines, &mut None).await;
                free -= counted;
                assert_eq!(permits.available_permits(), free);
            }
        });
    }

    #[test]
    fn one_terminal_has_one_line() {
        use Stream::{Err, Out};
        let mut begun = Begun { one_file: true, ..Begun::default() };
        assert_eq!(begun.before(&chunk(0, Out, "name? ", false)), b"");
        assert_eq!(begun.before(&chunk(0, Err, "a warning", false)), b"", "its own");
        let mut note = chunk(0, Err, "rma-run: a note\n", false);
        note.rank = None;
        assert_eq!(begun.before(&note), b"\n");
    }
}
