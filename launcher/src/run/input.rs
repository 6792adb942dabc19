//! What ranks read: nothing, this process' standard input, or what it passes on of that to one of
//! them or to all, here and on other hosts.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Cursor, ErrorKind, Read};
use std::ops::Range;
use std::process::{ChildStdin, Stdio};
use std::sync::{Arc, Condvar, Mutex};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::stdio::stdin;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use super::driver::Input;
use super::output::lock;
use super::spec::{Readers, Spec, Stdin};

/// Bytes that one reader may be behind the source.
const WINDOW: u64 = 64 << 10;
/// Bytes that are read at once.
const PIECE: usize = 16 << 10;

/// What ranks here have as their standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Streams {
    /// An empty file.
    Nothing,
    /// That rank has the one of this process.
    Inherited(u32),
    /// These have a pipe, into which this process writes.
    Piped(Readers),
}

impl Streams {
    pub(super) fn of_rank(self, rank: u32) -> Stdio {
        match self {
            Streams::Inherited(reader) if reader == rank => Stdio::inherit(),
            Streams::Piped(readers) if readers.has(rank) => Stdio::piped(),
            _ => Stdio::null(),
        }
    }
}

/// What is passed on to ranks.
pub(super) type Source = Box<dyn Read + Send>;

/// What the ranks of a job on this machine have, and what is passed on to them.
pub(super) fn of_machine(spec: &Spec) -> (Streams, Option<Source>) {
    match (&spec.stdin, spec.readers) {
        (Stdin::Inherit, Readers::One { rank }) if !is_terminal() => {
            (Streams::Inherited(rank), None)
        }
        (_, readers) => match passed_on(spec) {
            Some(input) => (Streams::Piped(readers), Some(input)),
            None => (Streams::Nothing, None),
        },
    }
}

/// What is passed on to ranks, wherever they are.
pub(super) fn passed_on(spec: &Spec) -> Option<Source> {
    match &spec.stdin {
        Stdin::Null => None,
        Stdin::Bytes(bytes) => Some(Box::new(Cursor::new(bytes.clone()))),
        // A terminal stops a process that reads it from the background, and one of another process
        // group than its own, as ranks are.
        Stdin::Inherit if is_terminal() && !(spec.dedicated && in_foreground()) => None,
        // As nohup leaves it.
        Stdin::Inherit if !may_be_read() => None,
        Stdin::Inherit => {
            let input = rustix::io::dup(stdin()).ok()?;
            Some(Box::new(File::from(input)))
        }
    }
}

fn is_terminal() -> bool {
    rustix::termios::isatty(stdin())
}

/// Whether standard input was opened for reading.
fn may_be_read() -> bool {
    fcntl_getfl(stdin()).is_ok_and(|flags| flags & OFlags::ACCMODE != OFlags::WRONLY)
}

/// Whether the terminal on standard input lets this process read.
fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(stdin()) == Ok(rustix::process::getpgrp())
}

/// How far those have come that read what this process passes on. The slowest holds the source
/// back; one that reads no more does not.
#[derive(Debug)]
pub(super) struct Flow {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug)]
struct Progress {
    sent: u64,
    /// Bytes that each has taken which may still read.
    taken: BTreeMap<u32, u64>,
}

impl Progress {
    /// Whether there is no room for a piece on the way to a rank.
    fn holds_back(&self, rank: u32) -> bool {
        self.taken.get(&rank).is_some_and(|taken| self.sent + PIECE as u64 > taken + WINDOW)
    }
}

impl Flow {
    pub(super) fn new(ranks: u32, readers: Readers) -> Flow {
        let taken = (0..ranks).filter(|rank| readers.has(*rank)).map(|rank| (rank, 0)).collect();
        Flow { progress: Mutex::new(Progress { sent: 0, taken }), changed: Condvar::new() }
    }

    /// A reader has got further.
    pub(super) fn note(&self, rank: u32, fed: Fed) {
        let mut progress = lock(&self.progress);
        let (holds_back, sent) = (progress.holds_back(rank), progress.sent);
        match (fed, progress.taken.get_mut(&rank)) {
            // Another host tells it, and no more was sent.
            (Fed::Took(bytes), Some(taken)) => *taken = taken.saturating_add(bytes).min(sent),
            (Fed::Ended, Some(_)) => _ = progress.taken.remove(&rank),
            (_, None) => {}
        }
        if holds_back || progress.taken.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Whether one of these ranks may still read.
    pub(super) fn is_read_by(&self, ranks: Range<u32>) -> bool {
        lock(&self.progress).taken.range(ranks).next().is_some()
    }

    /// Waits until there is room for a piece; false if no rank reads any more.
    fn wait_for_room(&self) -> bool {
        let mut progress = lock(&self.progress);
        loop {
            if progress.taken.is_empty() {
                return false;
            }
            if !progress.taken.keys().any(|rank| progress.holds_back(*rank)) {
                return true;
            }
            let waited = self.changed.wait(progress);
            progress = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

/// Reads all there is, in a thread, and gives it to `pass` piece by piece as there is room on the
/// way; the last piece is empty. Before that, `inputs` is told of an end that is an error.
pub(super) fn pour(
    mut input: Source,
    flow: Arc<Flow>,
    inputs: UnboundedSender<Input>,
    mut pass: impl FnMut(&[u8]) + Send + 'static,
) -> io::Result<()> {
    let pour = move || {
        let mut piece = vec![0; PIECE];
        while flow.wait_for_room() {
            let count = match input.read(&mut piece) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // A process that shares the file has made it so.
                    let _ = poll(&mut [PollFd::new(&stdin(), PollFlags::IN)], None);
                    continue;
                }
                Err(error) => {
                    let sent = lock(&flow.progress).sent;
                    // The driver is gone only when the job is over.
                    let _ = inputs.send(Input::Unreadable(failure(&error, sent)));
                    0
                }
            };
            lock(&flow.progress).sent += count as u64;
            pass(&piece[..count]);
            if count == 0 {
                return;
            }
        }
    };
    std::thread::Builder::new().name("input".into()).spawn(pour).map(drop)
}

fn failure(error: &io::Error, sent: u64) -> String {
    format!(
        "standard input cannot be read: {error}; ranks that read it get {sent} bytes and then its \
         end, and the job fails when they have ended: give it what can be read, or `--stdin none`"
    )
}

/// What becomes of a reader.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fed {
    Took(u64),
    Ended,
}

/// The pipes of ranks here that read what is passed on; each is written to as it takes that.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    queues: HashMap<u32, UnboundedSender<Arc<[u8]>>>,
    /// Of ranks that are not started yet.
    waiting: HashMap<u32, UnboundedReceiver<Arc<[u8]>>>,
    writing: HashMap<u32, AbortHandle>,
}

impl Feeds {
    /// Those of these ranks that read.
    pub(super) fn new(ranks: Range<u32>, readers: Readers) -> Feeds {
        let mut feeds = Feeds::default();
        for rank in ranks.filter(|rank| readers.has(*rank)) {
            let (queue, pieces) = unbounded_channel();
            feeds.queues.insert(rank, queue);
            feeds.waiting.insert(rank, pieces);
        }
        feeds
    }

    /// Passes on a piece to all that read; nothing is the end. What waits is bounded by what sends
    /// it: see [`Flow`].
    pub(super) fn pass(&self, piece: &[u8]) {
        let piece: Arc<[u8]> = piece.into();
        // Fails for a rank that reads no more.
        self.queues.values().for_each(|queue| _ = queue.send(Arc::clone(&piece)));
    }

    /// Where pieces go, for another thread.
    pub(super) fn passing(&self) -> impl FnMut(&[u8]) + Send + use<> {
        let feeds = Feeds { queues: self.queues.clone(), ..Feeds::default() };
        move |piece| feeds.pass(piece)
    }

    /// Begins to write to a rank that was started, and tells what it takes.
    pub(super) fn start(
        &mut self,
        rank: u32,
        stdin: ChildStdin,
        tell: impl Fn(Fed) + Send + 'static,
    ) -> io::Result<()> {
        let Some(pieces) = self.waiting.remove(&rank) else { return Ok(()) };
        let pipe = Sender::from_owned_fd(stdin.into())?;
        self.writing.insert(rank, tokio::spawn(feed(pipe, pieces, tell)).abort_handle());
        Ok(())
    }

    /// A rank has ended. What it has started may hold the pipe open, and is not waited for.
    pub(super) fn end(&mut self, rank: u32) {
        self.queues.remove(&rank);
        if let Some(writing) = self.writing.remove(&rank) {
            writing.abort();
        }
    }

    /// No more is passed on.
    pub(super) fn cut(&mut self) {
        self.queues.clear();
    }
}

async fn feed(
    mut pipe: Sender,
    mut pieces: UnboundedReceiver<Arc<[u8]>>,
    tell: impl Fn(Fed) + Send,
) {
    while let Some(piece) = pieces.recv().await {
        // Fails when the rank does not want to read more.
        if piece.is_empty() || pipe.write_all(&piece).await.is_err() {
            break;
        }
        tell(Fed::Took(piece.len() as u64));
    }
    tell(Fed::Ended);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A source without an end, and where its pieces arrive.
    fn poured(flow: &Arc<Flow>) -> mpsc::Receiver<usize> {
        let (sender, pieces) = mpsc::channel();
        let pass = move |piece: &[u8]| _ = sender.send(piece.len());
        let (inputs, _) = unbounded_channel();
        pour(Box::new(io::repeat(7)), Arc::clone(flow), inputs, pass).unwrap();
        pieces
    }

    #[test]
    fn the_slowest_reader_holds_the_source_back_until_it_ends() {
        let flow = Arc::new(Flow::new(3, Readers::All));
        let pieces = poured(&flow);
        let mut window = 0;
        while window < WINDOW as usize {
            window += pieces.recv().unwrap();
        }
        assert_eq!(window, WINDOW as usize);
        for rank in 0..2 {
            flow.note(rank, Fed::Took(WINDOW));
        }
        assert_eq!(lock(&flow.progress).sent, WINDOW, "rank 2 has taken nothing");
        flow.note(0, Fed::Took(u64::MAX));
        flow.note(2, Fed::Took(PIECE as u64));
        assert_eq!(pieces.recv().unwrap(), PIECE);
        assert!(pieces.try_recv().is_err() && flow.is_read_by(2..3));
        flow.note(2, Fed::Ended);
        let mut more = 0;
        while more < WINDOW as usize - PIECE {
            more += pieces.recv().unwrap();
        }
        assert_eq!(more, WINDOW as usize - PIECE);
        assert!(!flow.is_read_by(2..3) && flow.is_read_by(0..2));
        (0..2).for_each(|rank| flow.note(rank, Fed::Ended));
        assert!(pieces.recv().is_err(), "no rank reads any more");
        // What is told of more than was sent, or late of a rank that has ended, is of no account.
        flow.note(2, Fed::Took(1));
        assert!(!flow.is_read_by(0..3));
    }

    #[test]
    fn one_rank_reads_or_all_do() {
        assert_eq!([0, 1, 2].map(|rank| Readers::One { rank: 1 }.has(rank)), [false, true, false]);
        assert!((0..3).all(|rank| Readers::All.has(rank)));
        let flow = Flow::new(3, Readers::One { rank: 1 });
        assert_eq!([0..1, 1..2, 2..3].map(|ranks| flow.is_read_by(ranks)), [false, true, false]);
    }
}
