//! A conversation with the agent of a host, over the pipes of a remote shell, or the connection by
//! which the host has joined.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::io::unix::AsyncFd;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
};
use tokio::net::TcpStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::sync::watch::Sender as WatchSender;
use tokio::task::JoinSet;
use tokio::time::error::Elapsed;
use tokio::time::{MissedTickBehavior, timeout};

pub(in super::super) use super::super::output::Stream;

use super::super::bootstrap;
use super::super::driver::Input;
use super::super::lines::{Tail, last_lines};
use super::super::output::lock;
use super::super::query::Seen;
use super::super::report::LostOutput;
use super::super::spawn::{detach, watch};
use super::complaints::Complaints;
use super::port::Connection;
use super::remote::shown;
use super::talk::{ANY_GREETING, BEAT, FRAME_MAX, GREETING, Order, Task, Word};
use super::tree::{self, Branches, Stem};
use crate::seal::{self, Opener, SEAL, Sealer, Side};
use crate::wire;

/// How long a host may take until its agent speaks, and until that has looked around.
const GREETED_IN: Duration = Duration::from_secs(60);
/// Bytes that a login shell may print before the agent does.
pub(super) const CHATTER: u64 = 64 << 10;
/// What helps where a host does not get to another one.
const WAYS: &str =
    "; hosts have to reach each other, or say --fan-out 0, which has all reached from here";
/// How long the end of a remote shell may come after that of its output, and that of its standard
/// error after that.
pub(super) const PARTING: Duration = Duration::from_secs(2);

/// What becomes of a host.
#[derive(Debug)]
pub(in super::super) enum Said {
    Word(Word),
    /// Nothing more is said.
    Lost(String),
}

/// A stream of a rank elsewhere.
#[derive(Debug)]
pub(in super::super) struct Relayed {
    pieces: UnboundedReceiver<Vec<u8>>,
    orders: UnboundedSender<Order>,
    rank: u32,
    is_err: bool,
    /// Bytes that were handed out last.
    last: u32,
}

/// The two ends of it.
pub(super) fn relay(
    rank: u32,
    stream: Stream,
    orders: UnboundedSender<Order>,
) -> (Option<UnboundedSender<Vec<u8>>>, Relayed) {
    let (sender, pieces) = unbounded_channel();
    let is_err = stream == Stream::Err;
    (Some(sender), Relayed { pieces, orders, rank, is_err, last: 0 })
}

impl Relayed {
    /// What came next, `None` at the end. Loses nothing if it is dropped.
    pub(in super::super) async fn next(&mut self) -> Option<Vec<u8>> {
        let piece = self.pieces.recv().await?;
        self.last = piece.len() as u32;
        Some(piece)
    }

    /// It is printed, so there is room for more on the way.
    pub(in super::super) fn taken(&mut self) {
        let bytes = std::mem::take(&mut self.last);
        if bytes > 0 {
            // Fails when the host is gone.
            let _ = self.orders.send(Order::Taken { rank: self.rank, is_err: self.is_err, bytes });
        }
    }
}

/// Starts a remote shell.
pub(super) fn start(command: &[OsString]) -> io::Result<Child> {
    let (program, args) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    detach(&mut command);
    command.spawn()
}

pub(super) struct Conversation {
    host: usize,
    task: Task,
    /// None of a host that has joined.
    shell: Option<Shell>,
    to: Option<Mouth>,
    from: Ear,
    /// Its agent can do its part.
    is_ready: Arc<AtomicBool>,
    /// It has asked for a piece of a program, which is not written yet.
    pub(super) awaits_piece: Arc<AtomicBool>,
    /// Of each rank, standard output and standard error; none once it has ended.
    outputs: Vec<Option<UnboundedSender<Vec<u8>>>>,
    /// Hosts that are reached by this one.
    branches: Branches,
    /// How many other hosts are on the way to this one.
    depth: u32,
    /// How long its agent may say nothing of itself until it is ready.
    preparing: Duration,
    inputs: UnboundedSender<Input>,
    answered: Arc<WatchSender<Vec<Answered>>>,
}

/// A remote shell.
struct Shell {
    process: Process,
    command: String,
    errors: Box<dyn AsyncRead + Send + Unpin>,
    /// How long its agent may take to speak.
    patience: Duration,
}

/// Its process.
enum Process {
    /// A child of this one.
    Own { child: Child, watched: AsyncFd<OwnedFd> },
    /// A child of the agent of another host.
    Elsewhere { by: String, ended: oneshot::Receiver<Result<ExitStatus, String>> },
}

/// What orders are written to; with a seal, once both ends have a key.
struct Mouth {
    to: Box<dyn AsyncWrite + Send + Unpin>,
    sealer: Option<Sealer>,
}

impl Mouth {
    async fn write(&mut self, frame: Vec<u8>) -> io::Result<()> {
        let frame = match &mut self.sealer {
            Some(sealer) => sealer.seal(frame),
            None => frame,
        };
        self.to.write_all(&frame).await
    }
}

/// What words come from.
struct Ear {
    from: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    opener: Option<Opener>,
}

impl Ear {
    async fn word(&mut self) -> io::Result<Word> {
        let Some(opener) = &mut self.opener else {
            return bootstrap::read(&mut self.from, FRAME_MAX).await;
        };
        loop {
            let body = bootstrap::read_body(&mut self.from, FRAME_MAX + SEAL).await?;
            if let Some(message) = opener.open(&body)? {
                return wire::decode(message);
            }
        }
    }

    fn refused(&self) -> u64 {
        self.opener.as_ref().map_or(0, Opener::refused)
    }
}

/// What a host has answered last, kept where the driver finds it, which hears nothing while it
/// waits.
#[derive(Debug, Clone, Default)]
pub(super) struct Answered {
    /// Which `Pause`.
    pub(super) paused: u32,
    /// Which `Look`, and with what.
    pub(super) looked: u32,
    pub(super) seen: Vec<Seen>,
}

/// What is left of a conversation.
#[derive(Default)]
pub(super) struct Ended {
    /// The remote shell, which has ended, but is not reaped: until then its number, which is also
    /// that of its group, is no other process'.
    pub(super) shell: Option<Child>,
    /// What ranks have printed that was not passed on to its end.
    pub(super) lost: Option<LostOutput>,
}

/// What the ranks of a host print goes there, and what hosts say that are reached by it.
pub(super) struct Outlets {
    pub(super) outputs: Vec<Option<UnboundedSender<Vec<u8>>>>,
    pub(super) branches: Branches,
}

/// Where a conversation tells what it hears.
pub(super) type Told = (UnboundedSender<Input>, Arc<WatchSender<Vec<Answered>>>);

impl Conversation {
    /// With the agent behind a remote shell.
    pub(super) fn by_shell(
        task: Task,
        mut child: Child,
        command: &[OsString],
        outlets: Outlets,
        told: Told,
    ) -> io::Result<Conversation> {
        let no_pipe = || io::Error::other("no pipe");
        let to = child.stdin.take().ok_or_else(no_pipe)?;
        let from = child.stdout.take().ok_or_else(no_pipe)?;
        let errors = child.stderr.take().ok_or_else(no_pipe)?;
        let to = Mouth { to: Box::new(Sender::from_owned_fd(to.into())?), sealer: None };
        let from: Box<dyn AsyncRead + Send + Unpin> =
            Box::new(Receiver::from_owned_fd(from.into())?);
        let from = Ear { from: BufReader::new(from), opener: None };
        let watched = watch(pidfd_open(Pid::from_child(&child), PidfdFlags::NONBLOCK)?)?;
        let shell = Shell {
            process: Process::Own { child, watched },
            command: shown(command),
            errors: Box::new(Receiver::from_owned_fd(errors.into())?),
            patience: GREETED_IN,
        };
        Ok(Conversation::new(task, Some(shell), (to, from), outlets, told))
    }

    /// With the agent behind a remote shell that another one has started.
    pub(super) fn by_another(
        task: Task,
        stem: Stem,
        command: &[OsString],
        outlets: Outlets,
        told: Told,
    ) -> Conversation {
        let Stem { host, by, depth, orders, printed: [out, err], ended } = stem;
        let to = Mouth { to: Box::new(tree::Input { host, orders }), sealer: None };
        let from: Box<dyn AsyncRead + Send + Unpin> = Box::new(out);
        let from = Ear { from: BufReader::new(from), opener: None };
        let command = format!("{} on host {by}", shown(command));
        let process = Process::Elsewhere { by, ended };
        // Those on the way come first.
        let patience = GREETED_IN * (depth + 1);
        let shell = Shell { process, command, errors: Box::new(err), patience };
        Conversation { depth, ..Conversation::new(task, Some(shell), (to, from), outlets, told) }
    }

    /// With the agent of a host that has joined.
    pub(super) fn joined(
        task: Task,
        connection: Connection,
        outlets: Outlets,
        told: Told,
    ) -> io::Result<Conversation> {
        let Connection { stream, left, sealer, opener } = connection;
        let (from, to) = TcpStream::from_std(stream)?.into_split();
        let to = Mouth { to: Box::new(to), sealer: Some(sealer) };
        let from: Box<dyn AsyncRead + Send + Unpin> = Box::new(io::Cursor::new(left).chain(from));
        let from = Ear { from: BufReader::new(from), opener: Some(opener) };
        Ok(Conversation::new(task, None, (to, from), outlets, told))
    }

    fn new(
        task: Task,
        shell: Option<Shell>,
        (to, from): (Mouth, Ear),
        Outlets { outputs, branches }: Outlets,
        (inputs, answered): Told,
    ) -> Conversation {
        Conversation {
            host: task.host as usize,
            task,
            shell,
            to: Some(to),
            from,
            is_ready: Arc::default(),
            awaits_piece: Arc::default(),
            outputs,
            branches,
            depth: 0,
            preparing: GREETED_IN,
            inputs,
            answered,
        }
    }

    /// Until the connection has ended, and the remote shell, if there is one.
    pub(super) async fn carry_on(mut self, orders: UnboundedReceiver<Order>) -> Ended {
        let Some(to) = self.to.take() else { return Ended::default() };
        match self.shell.take() {
            Some(shell) => self.by_way_of(shell, to, orders).await,
            None => {
                let why = self.speak(to, orders).await;
                let why = why
                    .unwrap_or_else(|| "its connection has ended, so its agent is gone".to_owned());
                let cut = self.cut();
                Ended { shell: None, lost: self.lost(cut, why) }
            }
        }
    }

    /// Ends all output; gives the ranks whose output was not at its end.
    fn cut(&mut self) -> Vec<u32> {
        let outputs = std::mem::take(&mut self.outputs);
        let of_ranks = (self.task.first..).zip(outputs.chunks(2));
        let cut = of_ranks.filter(|(_, both)| both.iter().any(Option::is_some));
        cut.map(|(rank, _)| rank).collect()
    }

    /// Says that the host is lost, and gives what is missing therefore.
    fn lost(&self, cut: Vec<u32>, why: String) -> Option<LostOutput> {
        let why = match self.from.refused() {
            0 => why,
            count => format!("{why} ({count} messages that are not its own were refused)"),
        };
        self.tell(Said::Lost(why.clone()));
        let host = self.task.host_name().to_owned();
        if cut.is_empty() { None } else { Some(LostOutput { host, ranks: cut, why }) }
    }

    async fn by_way_of(
        mut self,
        shell: Shell,
        mut to: Mouth,
        orders: UnboundedReceiver<Order>,
    ) -> Ended {
        let Shell { mut process, command, errors, patience } = shell;
        let tail = Arc::new(Mutex::new(Tail::default()));
        let name = self.task.host_name().to_owned();
        let is_ready = Arc::clone(&self.is_ready);
        let complaints = Complaints { name, tail: Arc::clone(&tail), is_ready };
        let complaints = tokio::spawn(complaints.read(errors, self.inputs.clone()));
        let why = match timeout(patience, greeting(&mut self.from.from, GREETING)).await {
            Err(_) => {
                let patience = patience.as_secs();
                let ways = process.ways();
                Some(format!("{command} has shown no agent in {patience} s{ways}"))
            }
            Ok(Err(error)) if wire::is_end(&error) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Ok(Ok(())) => match self.agree(&mut to).await {
                Ok(()) => self.speak(to, orders).await,
                Err(error) if wire::is_end(&error) => None,
                Err(error) => Some(format!("its agent cannot be told a key: {error}")),
            },
        };
        let cut = self.cut();
        // One that hangs is killed by the driver, once told, and ends then.
        let why = match why {
            Some(why) => why,
            None => {
                let end = process.end().await;
                let _ = timeout(PARTING, complaints).await;
                let is_ready = self.is_ready.load(Ordering::Relaxed);
                match end {
                    Ok(status) => {
                        let said = lock(&tail).text();
                        explain(&command, status, is_ready, process.ways(), &said)
                    }
                    Err(why) => why,
                }
            }
        };
        let lost = self.lost(cut, why);
        // After word of this one, whose end is why.
        self.branches.clear();
        let Process::Own { child, watched } = process else { return Ended { shell: None, lost } };
        ended(&watched).await;
        Ended { shell: Some(child), lost }
    }

    /// Draws a key for all that is said from here on, and tells the agent.
    async fn agree(&mut self, to: &mut Mouth) -> io::Result<()> {
        let key = wire::random()?;
        to.write(wire::encode(&key)?).await?;
        let (sealer, opener) = seal::by_key(&key, Side::Launcher);
        (to.sealer, self.from.opener) = (Some(sealer), Some(opener));
        Ok(())
    }

    /// Tells the agent what is to be done, and passes on what it says; why it says no more, unless
    /// the connection has ended.
    async fn speak(&mut self, to: Mouth, orders: UnboundedReceiver<Order>) -> Option<String> {
        // What was ordered while the host logged in comes behind its task.
        let prepare = Order::Prepare { task: Box::new(self.task.clone()) };
        let mut writer = JoinSet::new();
        writer.spawn(write(to, prepare, orders, Arc::clone(&self.awaits_piece)));
        tokio::select! {
            why = self.listen() => why,
            Some(Ok(Err(error))) = writer.join_next() => {
                Some(format!("its agent cannot be told what is to be done: {error}"))
            }
        }
    }

    /// Passes on what the agent says; why it says no more, unless its output has ended.
    async fn listen(&mut self) -> Option<String> {
        let (mut is_noted, mut own) = (false, Instant::now());
        loop {
            let is_ready = self.is_ready.load(Ordering::Relaxed);
            // What an agent passes on for others does not say that its own task gets on.
            let (silence, limit) = match is_ready {
                true => (self.task.silence, self.task.silence),
                false => (self.preparing, self.preparing.saturating_sub(own.elapsed())),
            };
            let word = match self.hear(limit).await {
                Err(_) => {
                    return Some(format!("it has said nothing for {} s", silence.as_secs_f64()));
                }
                Ok(Err(error)) if wire::is_end(&error) => return None,
                Ok(Err(error)) => return Some(format!("its agent cannot be understood: {error}")),
                Ok(Ok(word)) => word,
            };
            if self.from.refused() > 0 && !std::mem::replace(&mut is_noted, true) {
                let name = self.task.host_name();
                let text = format!(
                    "host {name}: messages on its connection that are not its own, or were sent \
                     before, are refused; somebody interferes with it"
                );
                self.tell(Said::Word(Word::Note { text }));
            }
            if !matches!(word, Word::Passed { .. } | Word::Unopened { .. } | Word::Shut { .. }) {
                own = Instant::now();
            }
            match word {
                Word::Output { rank, is_err, bytes } => {
                    if let Some(Some(to)) = self.outputs.get(self.place(rank, is_err)) {
                        let _ = to.send(bytes);
                    }
                }
                Word::OutputEnded { rank, is_err } => {
                    let place = self.place(rank, is_err);
                    if let Some(to) = self.outputs.get_mut(place) {
                        *to = None;
                    }
                }
                Word::Passed { host, is_err, bytes } => {
                    if let Some(branch) = self.branches.get_mut(&host) {
                        branch.take(is_err, bytes);
                    }
                }
                Word::Unopened { host, why } => {
                    let why = format!("{why} (on host {}){WAYS}", self.task.host_name());
                    self.end_branch(host, Err(why));
                }
                Word::Shut { host, status } => {
                    self.end_branch(host, Ok(ExitStatus::from_raw(status.cast_signed())));
                }
                Word::Paused { number } => self.note(|answered| answered.paused = number),
                Word::Looked { number, ranks } => {
                    self.note(|answered| (answered.looked, answered.seen) = (number, ranks));
                }
                word => {
                    if let Word::Ready { .. } = word {
                        self.is_ready.store(true, Ordering::Relaxed);
                    }
                    self.tell(Said::Word(word));
                }
            }
        }
    }

    /// The next word, if it comes in time.
    async fn hear(&mut self, limit: Duration) -> Result<io::Result<Word>, Elapsed> {
        let mut word = pin!(self.from.word());
        let heard = timeout(limit, &mut word).await;
        if heard.is_ok() || self.depth == 0 {
            return heard;
        }
        // Each word of this host is one of those on the way, too: it is those that are silent
        // first, and what they have passed on is to be read.
        timeout(BEAT * 2 * self.depth, &mut word).await
    }

    fn end_branch(&mut self, host: u32, how: Result<ExitStatus, String>) {
        if let Some(branch) = self.branches.get_mut(&host) {
            branch.end(how);
        }
    }

    fn note(&self, note: impl FnOnce(&mut Answered)) {
        self.answered.send_modify(|all| {
            if let Some(answered) = all.get_mut(self.host) {
                note(answered);
            }
        });
    }

    fn tell(&self, said: Said) {
        // The driver is gone only when the job is over.
        let _ = self.inputs.send(Input::Host(self.host, said));
    }

    /// Where a stream stands among those of the host.
    fn place(&self, rank: u32, is_err: bool) -> usize {
        let place = rank.checked_sub(self.task.first);
        let place = place.map(|place| place as usize * 2 + usize::from(is_err));
        place.unwrap_or(usize::MAX)
    }
}

impl Process {
    /// What helps if it does not get there.
    fn ways(&self) -> &'static str {
        match self {
            Process::Own { .. } => "",
            Process::Elsewhere { .. } => WAYS,
        }
    }

    /// The status that it has ended with, if it does so soon; or why that is not to be had.
    async fn end(&mut self) -> Result<Option<ExitStatus>, String> {
        match self {
            Process::Own { watched, .. } => {
                let _ = timeout(PARTING, ended(watched)).await;
                Ok(status(watched))
            }
            Process::Elsewhere { by, ended } => match timeout(PARTING, ended).await {
                Ok(Ok(end)) => end.map(Some),
                Ok(Err(_)) => Err(format!("host {by}, by which it is reached, is lost")),
                Err(_) => Ok(None),
            },
        }
    }
}

/// Why a host is lost whose remote shell has ended with that status; `ways` helps if it did not get
/// there.
pub(super) fn explain(
    command: &str,
    status: Option<ExitStatus>,
    is_ready: bool,
    ways: &str,
    said: &str,
) -> String {
    const NO_COMMAND: i32 = 127;
    const NOT_EXECUTABLE: i32 = 126;
    let code = status.and_then(|status| status.code());
    let what = match (code, status) {
        (Some(NO_COMMAND), _) if !is_ready => {
            "found no rma-run there: install it under the same path as here, or put it into a \
             folder that the hosts share"
                .to_owned()
        }
        (Some(NOT_EXECUTABLE), _) if !is_ready => "found an rma-run that cannot be run".to_owned(),
        (Some(255), _) if !is_ready => {
            format!("did not get there: it has to log in without a password (try it by hand){ways}")
        }
        (_, Some(status)) if is_ready => format!("ended, so its agent is gone ({status})"),
        (_, Some(status)) => format!("ended before an agent spoke ({status}){ways}"),
        (_, None) if is_ready => "closed its output".to_owned(),
        (_, None) => format!("closed its output{ways}"),
    };
    // What an agent has said was shown.
    let said = if is_ready { String::new() } else { last_lines(said) };
    format!("{command} {what}{said}")
}

/// Reads until the agent's first line, which is to be that.
pub(super) async fn greeting(
    from: &mut (impl AsyncBufRead + Unpin),
    expected: &str,
) -> io::Result<()> {
    let mut from = from.take(CHATTER);
    let mut line = Vec::new();
    loop {
        line.clear();
        if from.read_until(b'\n', &mut line).await? == 0 {
            let why = "printed much, but showed no agent: see what its shell prints at login";
            let is_long = from.limit() == 0;
            let end = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(if is_long { io::Error::other(why) } else { end });
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text == expected {
            return Ok(());
        }
        if text.starts_with(ANY_GREETING) {
            let why = "rma-run there is of another version than here: install the same";
            return Err(io::Error::other(why));
        }
    }
}

/// Writes orders, and that this launcher is there, until the agent reads no more; the agent no
/// longer waits once the piece is written. An order that is too long is an error, for a rank may
/// wait for it.
async fn write(
    mut to: Mouth,
    first: Order,
    mut orders: UnboundedReceiver<Order>,
    awaits_piece: Arc<AtomicBool>,
) -> io::Result<()> {
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut next, mut is_paused) = (Some(first), false);
    while let Some(order) = next {
        match order {
            Order::Pause { .. } => is_paused = true,
            Order::Resume => is_paused = false,
            _ => {}
        }
        let frame = wire::encode_within(&order, FRAME_MAX)?;
        if to.write(frame).await.is_err() {
            // Its end is noticed where its words are read.
            break;
        }
        if let Order::Piece { .. } = order {
            awaits_piece.store(false, Ordering::Relaxed);
        }
        next = tokio::select! {
            order = orders.recv() => order,
            _ = beat.tick(), if !is_paused => Some(Order::Beat),
        };
    }
    Ok(())
}

/// How a process ended, if it did, without reaping it.
pub(super) fn status(watched: &AsyncFd<OwnedFd>) -> Option<ExitStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let status = waitid(WaitId::PidFd(watched.get_ref().as_fd()), options).ok()??;
    // As the kernel tells it to those that reap.
    let code = status.exit_status().map(|code| code << 8);
    code.or(status.terminating_signal()).map(ExitStatus::from_raw)
}

pub(super) async fn ended(watched: &AsyncFd<OwnedFd>) {
    // An error says that it cannot be watched; it is waited for then.
    let _ = watched.readable().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mouth(to: impl AsyncWrite + Send + Unpin + 'static) -> Mouth {
        Mouth { to: Box::new(to), sealer: None }
    }

    #[tokio::test]
    async fn an_order_that_is_too_long_is_an_error() {
        let (orders, ordered) = unbounded_channel();
        orders.send(Order::Input { bytes: vec![0; FRAME_MAX] }).unwrap();
        let error = write(mouth(tokio::io::sink()), Order::Start, ordered, Arc::default())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("are allowed"), "{error}");
    }

    #[tokio::test]
    async fn an_agent_may_request_again_once_a_piece_is_written() {
        for (room, may_request) in [(1 << 10, true), (16, false)] {
            let awaits_piece = Arc::new(AtomicBool::new(true));
            let (to, mut from) = tokio::io::duplex(room);
            let piece = Order::Piece { bytes: vec![7; 100] };
            let ordered = unbounded_channel().1;
            let writer = tokio::spawn(write(mouth(to), piece, ordered, Arc::clone(&awaits_piece)));
            from.read_u8().await.unwrap();
            assert_eq!(!awaits_piece.load(Ordering::Relaxed), may_request, "room for {room} bytes");
            writer.abort();
        }
    }

    #[tokio::test]
    async fn a_launcher_that_is_about_to_be_stopped_says_nothing() {
        let (orders, ordered) = unbounded_channel();
        let (to, mut from) = tokio::io::duplex(1 << 10);
        let writer =
            tokio::spawn(write(mouth(to), Order::Pause { number: 1 }, ordered, Arc::default()));
        let mut said = async || {
            let mut frame = vec![0; from.read_u32_le().await.unwrap() as usize];
            from.read_exact(&mut frame).await.unwrap();
            wire::decode::<Order>(&frame).unwrap()
        };
        assert_eq!(said().await, Order::Pause { number: 1 });
        // The beat that is due at once would come first.
        orders.send(Order::Resume).unwrap();
        assert_eq!(said().await, Order::Resume);
        assert_eq!(said().await, Order::Beat);
        writer.abort();
    }

    fn task() -> Task {
        let remote = super::super::Remote::new(Vec::new());
        let spec = super::super::super::spec::Spec::new("true", 1);
        let (task, _) = super::super::task::of_all(&spec, &remote, "job", &[], None).unwrap();
        Task { ranks: 1, ..task }
    }

    /// With an agent that says what is written to the other end.
    fn conversation() -> (Conversation, tokio::io::DuplexStream) {
        let (agent, from) = tokio::io::duplex(1 << 10);
        let from: Box<dyn AsyncRead + Send + Unpin> = Box::new(from);
        let from = Ear { from: BufReader::new(from), opener: None };
        let outlets = Outlets { outputs: Vec::new(), branches: Branches::new() };
        let told = (unbounded_channel().0, Arc::default());
        let ends = (mouth(tokio::io::sink()), from);
        (Conversation::new(task(), None, ends, outlets, told), agent)
    }

    /// An agent whose own task hangs passes on what those behind it say.
    #[tokio::test]
    async fn a_host_that_passes_on_words_and_is_never_ready_is_lost() {
        let (mut conversation, mut agent) = conversation();
        conversation.preparing = Duration::from_millis(100);
        let passed = Word::Passed { host: 1, is_err: false, bytes: vec![7] };
        let frame = wire::encode(&passed).unwrap();
        let passing = tokio::spawn(async move {
            let mut beat = tokio::time::interval(Duration::from_millis(1));
            // Far longer than that, but no test without end.
            for _ in 0..2000 {
                beat.tick().await;
                if agent.write_all(&frame).await.is_err() {
                    break;
                }
            }
        });
        let why = conversation.listen().await;
        assert_eq!(why.as_deref(), Some("it has said nothing for 0.1 s"));
        drop(conversation);
        passing.await.unwrap();
    }

    #[tokio::test]
    async fn a_status_is_read_without_reaping() {
        for (script, end) in [("exit 3", 3 << 8), ("kill -TERM $$", 15)] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pid = Pid::from_child(&child);
            let watched = watch(pidfd_open(pid, PidfdFlags::NONBLOCK).unwrap()).unwrap();
            ended(&watched).await;
            assert_eq!(status(&watched), Some(ExitStatus::from_raw(end)));
            assert_eq!(child.wait().unwrap(), ExitStatus::from_raw(end), "it was there still");
        }
    }

    #[test]
    fn the_end_of_a_remote_shell_is_explained() {
        let why = |code: i32, is_ready| {
            let status = ExitStatus::from_raw(code << 8);
            explain("`ssh a`", Some(status), is_ready, WAYS, "Permission denied.\n")
        };
        let ways = format!("{WAYS}\n  Permission denied.");
        assert!([255, 3].iter().all(|code| why(*code, false).ends_with(&ways)));
        assert!([127, 126].iter().all(|code| !why(*code, false).contains(WAYS)));
        assert!(!why(255, true).contains(WAYS));
        assert!(why(255, false).contains("without a password"));
        assert!(why(255, false).ends_with("\n  Permission denied."));
        assert!(why(127, false).contains("no rma-run there"));
        assert!(why(255, true).ends_with("its agent is gone (exit status: 255)"));
        assert!(why(3, false).contains("exit status: 3"));
    }
}
