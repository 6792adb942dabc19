//! The launcher's side of the bootstrap.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::driver::Input;
use super::machine::Event;
use super::output::lock;
use super::report::RunError;
use super::strangers::{BACKLOG, Strangers};
use crate::Job;
use crate::codec::Wire;
use crate::seal::{self, Opener, SEAL, Sealer, Side, With};
use crate::start::Secret;
use crate::wire::{
    self, Challenge, FRAME_MAX, Frame, HELLO_MAX, Hello, Proof, Refusal, Reply, ToLauncher,
};

/// How long a caller may take to say hello; a rank may be stopped in the middle of it.
const HELLO_TIMEOUT: Duration = Duration::from_secs(30);

/// What the launcher tells ranks, and how it knows them.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) secret: Secret,
    /// As told to rank 0.
    pub(super) job: Job,
    /// The CPUs that each rank is bound to, in turn; empty when they are not bound.
    pub(super) places: Vec<Vec<u32>>,
}

impl Plan {
    /// The CPUs that `rank` is bound to, if it is.
    pub(super) fn place(&self, rank: u32) -> Option<&[u32]> {
        let turn =
            (rank.checked_sub(self.here().start)? as usize).checked_rem(self.places.len())?;
        self.places.get(turn).map(Vec::as_slice)
    }

    /// Ranks on this machine.
    pub(super) fn here(&self) -> Range<u32> {
        self.job.here()
    }

    fn job(&self, rank: u32) -> Job {
        Job { rank, ..self.job.clone() }
    }
}

/// Shared by all connections.
#[derive(Debug)]
struct Shared {
    plan: Arc<Plan>,
    taken: Mutex<Vec<bool>>,
    inputs: UnboundedSender<Input>,
}

/// How long a connection to this machine itself may take.
pub(super) const REACHED_IN: Duration = Duration::from_secs(5);

/// Opens the port, on loop-back only.
pub(super) fn listen() -> Result<(TcpListener, SocketAddr), RunError> {
    let opened = open().map_err(no_port)?;
    // What is sent to an interface that is down does not arrive, nor what a firewall drops.
    std::net::TcpStream::connect_timeout(&opened.1, REACHED_IN).map_err(no_port)?;
    Ok(opened)
}

/// Why there is none: no address of IPv4, where there is one of IPv6, or something else.
pub(super) fn no_port(error: io::Error) -> RunError {
    let sixth = || {
        let listener = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0))?;
        std::net::TcpStream::connect_timeout(&listener.local_addr()?, REACHED_IN)
    };
    match lacks_address(&error) && sixth().is_ok() {
        true => RunError::OnlyIpv6(error),
        false => RunError::Port(error),
    }
}

/// Whether this machine lacks the address, or all of its kind, rather than a way to reach it.
fn lacks_address(error: &io::Error) -> bool {
    let lacking = [Errno::ADDRNOTAVAIL, Errno::NETUNREACH, Errno::AFNOSUPPORT];
    Errno::from_io_error(error).is_some_and(|errno| lacking.contains(&errno))
}

fn open() -> io::Result<(TcpListener, SocketAddr)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let listener = socket.listen(BACKLOG.into())?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Lets ranks in, until it is dropped. When the hello of `strangers` callers besides ranks is
/// awaited, the oldest is dropped.
pub(super) async fn serve(
    listener: TcpListener,
    plan: Arc<Plan>,
    inputs: UnboundedSender<Input>,
    strangers: usize,
) {
    let ranks = plan.here().len();
    let shared = Arc::new(Shared { plan, taken: Mutex::new(vec![false; ranks]), inputs });
    let mut port = Strangers::new(listener, ranks + strangers);
    loop {
        let (stream, _) = port.accept().await;
        let hello = tokio::spawn(receive(stream, Arc::clone(&shared)));
        if let Some(why) = port.await_hello(hello.abort_handle()) {
            shared.refuse(why);
        }
    }
}

impl Shared {
    fn refuse(&self, why: impl std::fmt::Display) {
        self.tell(Input::Refused(why.to_string()));
    }

    fn tell(&self, input: Input) {
        // The driver is gone only when the job is over.
        let _ = self.inputs.send(input);
    }
}

/// One caller's hello; the connection of a rank goes on in tasks of its own.
async fn receive(stream: TcpStream, shared: Arc<Shared>) {
    match tokio::time::timeout(HELLO_TIMEOUT, hello(stream, &shared)).await {
        Ok(Ok(Joined { rank, stream, answers, seals: (sealer, opener) })) => {
            let (from, to) = stream.into_split();
            let waits = Arc::new(AtomicBool::new(false));
            tokio::spawn(answer((to, sealer), answers, Arc::clone(&waits)));
            tokio::spawn(async move {
                listen_to(rank, (from, opener), &shared, &waits).await;
                shared.tell(Input::Event(Event::Disconnected(rank)));
            });
        }
        // No caller was refused: a rank that dies in its hello is told of elsewhere.
        Ok(Err(error)) if wire::is_end(&error) => {}
        Ok(Err(error)) => shared.refuse(error),
        Err(_) => shared.refuse("it did not say hello in time"),
    }
}

/// A rank that has joined.
struct Joined {
    rank: u32,
    stream: TcpStream,
    answers: UnboundedReceiver<Frame>,
    seals: (Sealer, Opener),
}

async fn hello(mut stream: TcpStream, shared: &Shared) -> io::Result<Joined> {
    let plan = &shared.plan;
    stream.set_nodelay(true)?;
    let nonce = wire::random()?;
    let challenge = Challenge { magic: wire::MAGIC, version: wire::VERSION, nonce };
    write(&mut stream, &challenge).await?;
    let hello: Hello = read(&mut stream, HELLO_MAX).await?;

    let expected = wire::rank_mac(&plan.secret.0, &nonce, &hello);
    if expected != Proof(hello.mac) {
        write(&mut stream, &Reply::Refused(Refusal::Secret)).await?;
        return Err(io::Error::other("it does not know the secret of this job"));
    }
    let admitted = wire::admit(&hello, plan.here(), plan.job.size, &mut lock(&shared.taken));
    if let Err(why) = admitted {
        write(&mut stream, &Reply::Refused(why)).await?;
        return Err(io::Error::other(format!(
            "process {} claims to be rank {}, but {why}",
            hello.pid, hello.rank
        )));
    }
    let (to, answers) = unbounded_channel();
    shared.tell(Input::Joined { rank: hello.rank, process: hello.pid, answers: to });
    let job = plan.job(hello.rank);
    let mac = wire::launcher_mac(&plan.secret.0, &nonce, &hello.nonce, &job);
    let welcome = Reply::Welcome { mac: mac.0, job };
    // A rank that is gone by now is noticed by its reader, like any that goes later.
    let _ = write(&mut stream, &welcome).await;
    let nonces = [&nonce, &hello.nonce];
    let seals = seal::pair(&plan.secret.0, With::Rank(hello.rank), nonces, Side::Launcher);
    Ok(Joined { rank: hello.rank, stream, answers, seals })
}

/// Takes what a rank says until it says no more, or something it must not say.
async fn listen_to(
    rank: u32,
    (from, opener): (OwnedReadHalf, Opener),
    shared: &Shared,
    waits: &AtomicBool,
) {
    let mut from = FromRank { rank, from, opener, refused: 0 };
    let mut has_left = false;
    while let Some(message) = from.next(shared).await {
        match message {
            ToLauncher::Gather { .. }
            | ToLauncher::Card { .. }
            | ToLauncher::Query { .. }
            | ToLauncher::Note { .. }
            | ToLauncher::Leave { .. }
                if has_left =>
            {
                return;
            }
            ToLauncher::Gather { mine } => {
                // One thread runs all of this; `answer` clears it before the rank can know.
                if waits.swap(true, Ordering::Relaxed) {
                    return;
                }
                shared.tell(Input::Part { rank, mine });
            }
            ToLauncher::Card { card } => shared.tell(Input::Card { rank, card }),
            ToLauncher::Query { rank: of } => shared.tell(Input::Query { rank, of }),
            ToLauncher::Note { text } => shared.tell(Input::Note(text)),
            ToLauncher::Leave { failed, missed } => {
                shared.tell(Input::Event(Event::Left { rank, failed, missed }));
                has_left = true;
            }
            ToLauncher::Departed { fate } if has_left => {
                return shared.tell(Input::Departed { rank, fate });
            }
            // Nothing else follows.
            ToLauncher::Departed { .. } => return,
        }
    }
}

/// What a rank says.
struct FromRank {
    rank: u32,
    from: OwnedReadHalf,
    opener: Opener,
    /// How many messages the user was told of that were refused.
    refused: u64,
}

impl FromRank {
    /// What it says next; `None` if that is nothing, or cannot be understood.
    async fn next(&mut self, shared: &Shared) -> Option<ToLauncher> {
        loop {
            let body = match read_body(&mut self.from, FRAME_MAX + SEAL).await {
                Ok(body) => body,
                Err(error) => return self.lose(shared, &error),
            };
            let message = self.opener.open(&body);
            if let Some(note) = self.opener.note(&mut self.refused) {
                shared.tell(Input::Note(format!("rank {}: {note}", self.rank)));
            }
            match message {
                Ok(None) => {}
                Ok(Some(message)) => match wire::decode(message) {
                    Ok(message) => return Some(message),
                    Err(error) => return self.lose(shared, &error),
                },
                Err(error) => return self.lose(shared, &error),
            }
        }
    }

    /// Says why, unless the connection has just ended.
    fn lose(&self, shared: &Shared, error: &io::Error) -> Option<ToLauncher> {
        if !wire::is_end(error) {
            let text = format!("rank {} is not heard any more: {error}", self.rank);
            shared.tell(Input::Note(text));
        }
        None
    }
}

/// Passes answers to a rank.
async fn answer(
    (mut to, mut sealer): (OwnedWriteHalf, Sealer),
    mut answers: UnboundedReceiver<Frame>,
    waits: Arc<AtomicBool>,
) {
    while let Some(frame) = answers.recv().await {
        waits.store(false, Ordering::Relaxed);
        for part in sealer.seal_shared(&frame) {
            if to.write_all(part.as_ref()).await.is_err() {
                return;
            }
        }
    }
}

/// Writes a frame.
pub(super) async fn write<T: Wire>(stream: &mut TcpStream, message: &T) -> io::Result<()> {
    stream.write_all(&wire::encode(message)?).await
}

/// Reads a frame of at most `max` bytes.
pub(super) async fn read<T: Wire>(
    from: &mut (impl AsyncReadExt + Unpin),
    max: usize,
) -> io::Result<T> {
    wire::decode(&read_body(from, max).await?)
}

/// The same, without understanding it.
pub(super) async fn read_body(
    from: &mut (impl AsyncReadExt + Unpin),
    max: usize,
) -> io::Result<Vec<u8>> {
    let mut prefix = [0; 4];
    from.read_exact(&mut prefix).await?;
    let mut body = vec![0; wire::announced(prefix, max)?];
    from.read_exact(&mut body).await?;
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_there_and_blocked_is_not_said_to_be_lacking() {
        for blocked in [Errno::PERM, Errno::CONNREFUSED, Errno::TIMEDOUT, Errno::MFILE] {
            let error = no_port(blocked.into());
            assert!(matches!(error, RunError::Port(_)), "{error}");
        }
        assert!(matches!(no_port(io::ErrorKind::TimedOut.into()), RunError::Port(_)));
        for lacking in [Errno::ADDRNOTAVAIL, Errno::NETUNREACH, Errno::AFNOSUPPORT] {
            assert!(lacks_address(&lacking.into()), "{lacking}");
        }
    }

    #[test]
    fn ranks_are_bound_in_turn() {
        let job = Job {
            rank: 0,
            size: 3,
            nodes: 1,
            cores: 2,
            explain: false,
            wait_timeout: None,
            hints: Vec::new(),
            config: Vec::new(),
            progress_agent: true,
            host: None,
        };
        let mut plan = Plan { secret: Secret([0; 32]), job, places: vec![vec![4], vec![6, 7]] };
        let first: &[u32] = &[4];
        assert_eq!(
            [0, 1, 2].map(|rank| plan.place(rank)),
            [Some(first), Some(&[6, 7]), Some(first)]
        );
        plan.places.clear();
        assert_eq!([0, 1, 2].map(|rank| plan.place(rank)), [None; 3]);
    }
}
