//! A rank's side of the bootstrap.

use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::bulletin::{self, BulletinWords};
use crate::codec::{wire_enum, wire_struct};
use crate::seal::{self, Opener, Sealer, Side, With};
use crate::serve::Served;
use crate::start::{Settings, StartError};
use crate::wire::{
    self, Challenge, FromLauncher, HELLO_MAX, Hello, Proof, REPLY_MAX, Refusal, Reply, ToLauncher,
};

mod directory;
mod ear;
mod managed;

use self::ear::{Ear, End};
use self::managed::Guarded;

/// How long the whole hello may take: the launcher may be starting a thousand processes.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a rank that leaves waits for its turn to write, and then for room in the socket.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Letters of a note.
const NOTE_MAX: usize = 1000;
/// First pause before the hello is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// What the launcher tells each rank about the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// This process, 0-based.
    pub rank: u32,
    /// Processes of the job.
    pub size: u32,
    /// Nodes that this machine is to be taken for, 1 for itself: of as many ranks in a row each.
    pub nodes: u32,
    /// CPUs that the job may use.
    pub cores: u32,
    /// Whether the runtime is to print what it decides.
    pub explain: bool,
    /// How long a wait of the runtime may last before it fails.
    pub wait_timeout: Option<Duration>,
    /// Hints for every window, as keys and values.
    pub hints: Vec<(String, String)>,
    /// Settings of the runtime that the job was started with: keys, values, and their sources.
    pub config: Vec<(String, String, SettingSource)>,
    /// Whether a thread of the runtime may serve messages while the rank computes.
    pub progress_agent: bool,
    /// Where this rank is, in a job on several hosts.
    pub host: Option<Host>,
}

/// The part of a job that is on one of several hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its first rank.
    pub first: u32,
    /// Ranks on it, in a row.
    pub ranks: u32,
    /// An address of it that the other hosts reach.
    pub address: String,
}

impl Job {
    /// Ranks on the host of this one.
    pub fn here(&self) -> Range<u32> {
        self.host.as_ref().map_or(0..self.size, Host::range)
    }
}

impl Host {
    /// Its ranks.
    pub fn range(&self) -> Range<u32> {
        self.first..self.first + self.ranks
    }
}

/// How a rank left, as ranks of other hosts are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// In order.
    Departed,
    /// In order, but with locks that it held.
    Holding,
    /// It failed, or its host did.
    Failed,
}

/// Where a setting has its value from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingSource {
    /// A file, by its path.
    File(String),
    /// An option of the launcher.
    Option(String),
}

wire_enum!(SettingSource { 0 = File { 0: path }, 1 = Option { 0: option } });
wire_enum!(Fate { 0 = Departed {}, 1 = Holding {}, 2 = Failed {} });
wire_struct!(Host { first, ranks, address });
wire_struct!(Job {
    rank,
    size,
    nodes,
    cores,
    explain,
    wait_timeout,
    hints,
    config,
    progress_agent,
    host,
});

/// A rank's connection to its launcher.
#[derive(Debug)]
pub struct Client {
    settings: Settings,
    job: Job,
    /// The process that joined; a fork of it shares the connection.
    pid: u32,
    stream: TcpStream,
    /// Held from the request to its answer: one exchange at a time. What answers are opened by,
    /// unless the ear has it.
    exchange: Mutex<Option<Opener>>,
    writing: Turns,
    /// The thread that has the turn to write takes it.
    sealer: Mutex<Sealer>,
    left: AtomicBool,
    /// How it has left.
    failed: AtomicBool,
    departed: AtomicBool,
    /// This rank has ended its connection.
    is_cut: Arc<AtomicBool>,
    /// In a job on several hosts, or of a launcher of others, and where cards are asked for.
    ear: OnceLock<Ear>,
    /// 1 + the first rank that this one missed; 0 if none.
    missed: AtomicU64,
    /// If a launcher of others has started the job.
    managed: Option<Arc<Guarded>>,
    /// At rank 0 of such a job.
    served: Option<Served>,
}

impl Drop for Client {
    fn drop(&mut self) {
        // The thread has a copy of the connection, which a fork shares.
        if self.ear.get().is_none() || std::process::id() != self.pid {
            return;
        }
        let failed = !self.left.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed);
        if self.managed.is_some() {
            self.leave(true);
        }
        self.cut(Shutdown::Both);
        if let Some(served) = self.served.take() {
            served.join();
        }
        // The launcher ends the job of a rank that ends without.
        if let Some(managed) = self.managed.as_ref().filter(|_| !failed) {
            managed.session().finish();
        }
    }
}

impl Client {
    /// Joins the job: both sides prove that they know its secret, then the launcher describes it.
    ///
    /// From here on this process ends when its parent does (`PR_SET_PDEATHSIG`), so that a rank
    /// under a wrapper script does not outlive a killed launcher.
    ///
    /// # Errors
    ///
    /// When the launcher cannot be reached, is not the one that started this job, or refuses.
    pub fn connect(settings: &Settings) -> Result<Client, StartError> {
        end_with_parent()?;
        Self::greeted(settings)
    }

    /// Says hello, and again if the launcher has hung up.
    pub(crate) fn greeted(settings: &Settings) -> Result<Client, StartError> {
        Self::greeted_with(settings, None, HELLO_TIMEOUT, Instant::now() + HELLO_TIMEOUT)
    }

    /// The connection may take so long, and all of the hello until then.
    fn greeted_with(
        settings: &Settings,
        managed: Option<&Arc<Guarded>>,
        reached_in: Duration,
        deadline: Instant,
    ) -> Result<Client, StartError> {
        let mut pause = RETRY_PAUSE;
        loop {
            match greet(settings, managed, reached_in, deadline) {
                // The launcher drops callers when strangers flood its port.
                Err(StartError::Lost { source, .. })
                    if wire::is_end(&source) && Instant::now() + pause < deadline =>
                {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                result => return result,
            }
        }
    }

    /// Where this rank tells the launcher what it does, unless a wrapper has closed the descriptor
    /// that it inherits for that. The words stay mapped as long as this process lives.
    pub fn bulletin(&self) -> Option<&'static BulletinWords> {
        bulletin::map(self.settings.bulletin.as_deref()?, self.job.rank)
    }

    /// What the launcher said about the job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// What the ranks of the job can key their messages with. Zeros under `rma-run` on several
    /// hosts, each of which has a secret of its own.
    pub fn secret_of_messages(&self) -> [u8; 32] {
        match (&self.managed, &self.job.host) {
            (None, Some(_)) => [0; 32],
            _ => wire::mac(&self.settings.secret.0, &[b"rma messages 1"]).0,
        }
    }

    /// **Collective.** Exchanges a few bytes with every rank. The answer is ordered by rank, and
    /// tells of ranks in a row that say the same how many they are and what they say, once.
    ///
    /// Concurrent calls of several threads of one rank are carried out one after the other, in
    /// no particular order. Waits for the slowest rank; a rank that is gone ends the wait.
    ///
    /// # Errors
    ///
    /// When a rank or the launcher is gone, and when all parts together exceed 16 MiB.
    pub fn all_gather(&self, mine: &[u8]) -> Result<Vec<(u32, Vec<u8>)>, StartError> {
        let rank = self.job.rank;
        let size = u64::from(self.job.size);
        if !wire::gather_fits(size, mine.len() as u64) {
            return Err(StartError::TooLarge { requested: mine.len() as u64 });
        }
        let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = |source| lost(&self.settings, "exchanged data with every rank", source);
        {
            let _turn = self.writing.take(None);
            // Ordered by the turns: `leave` sets it before it takes one.
            if self.left.load(Ordering::Relaxed) {
                return Err(StartError::HasLeft { rank });
            }
            self.send(&ToLauncher::Gather { mine: mine.to_vec() }).map_err(lost)?;
        }
        let answer = match (self.ear.get(), &mut *exchange) {
            (None, Some(opener)) => ear::hear(&self.stream, opener, rank),
            (Some(ear), _) => ear.answer(),
            (None, None) => Err(ErrorKind::NotConnected.into()),
        };
        match answer.map_err(lost)? {
            FromLauncher::Gathered { runs } => {
                let parts: u64 = runs.iter().map(|(count, _)| u64::from(*count)).sum();
                if parts == size {
                    return Ok(runs);
                }
                let what = format!("{parts} parts instead of {size}");
                Err(lost(io::Error::new(ErrorKind::InvalidData, what)))
            }
            FromLauncher::Broken { rank } => Err(StartError::Broken { rank }),
            FromLauncher::TooLarge { total } => Err(StartError::TooLarge { requested: total }),
            FromLauncher::Gone { .. } | FromLauncher::Card { .. } => {
                let what = "an answer that nobody has asked for";
                Err(lost(io::Error::new(ErrorKind::InvalidData, what)))
            }
        }
    }

    /// Notes that this rank waited for `peer` in vain, which has left in order, or failed: if this
    /// rank fails now, that is why. The first call counts.
    pub fn missed(&self, peer: u32) {
        let (none, peer) = (0, u64::from(peer) + 1);
        // An error says that another one came first.
        _ = self.missed.compare_exchange(none, peer, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Has the launcher tell its user something, once for each text of all ranks. One that does not
    /// read is not waited for.
    pub fn note(&self, text: &str) {
        if std::process::id() != self.pid {
            return;
        }
        let Some(_turn) = self.writing.take(Some(LEAVE_TIMEOUT)) else { return };
        // Nothing follows a `Leave`.
        if self.left.load(Ordering::Relaxed) {
            return;
        }
        // Where there is any room, there is enough for a note.
        let mut room = [PollFd::new(&self.stream, PollFlags::OUT)];
        if poll(&mut room, Some(&Timespec::default())) != Ok(1) {
            return;
        }
        let text = text.chars().take(NOTE_MAX).collect();
        // Fails only when the launcher is gone, and then the note is of no use.
        let _ = self.send(&ToLauncher::Note { text });
    }

    /// Tells the launcher that this rank leaves, in order or (`failed`) because of an error.
    ///
    /// The first call counts; those of a forked child do not. A rank that ends without it fails its
    /// job: its peers may be waiting for it. Never blocks for long, never panics.
    pub fn leave(&self, failed: bool) {
        if std::process::id() != self.pid || self.left.swap(true, Ordering::Relaxed) {
            return;
        }
        self.failed.store(failed, Ordering::Relaxed);
        if let Some(managed) = &self.managed {
            managed.leave();
        }
        let Some(_turn) = self.writing.take(Some(LEAVE_TIMEOUT)) else {
            // A frame is stuck half-way in an exchange. Nothing can follow it; cutting the
            // connection tells the launcher, and frees the thread that waits.
            return self.cut(Shutdown::Both);
        };
        let missed = self.missed.load(Ordering::Relaxed).checked_sub(1).map(|rank| rank as u32);
        let sent = self.send_soon(&ToLauncher::Leave { failed, missed });
        match sent {
            // Word of what became of its messages follows.
            true if self.job.host.is_some() => {}
            true => self.cut(Shutdown::Write),
            false => self.cut(Shutdown::Both),
        }
    }

    /// Tells ranks of other hosts how this one left, when all that it sent them has arrived, or
    /// never will. The first call counts; those of a forked child do not.
    pub fn departed(&self, fate: Fate) {
        let is_known = || self.departed.swap(true, Ordering::Relaxed);
        if self.job.host.is_none() || std::process::id() != self.pid || is_known() {
            return;
        }
        // Only behind word that it leaves does this one count.
        self.leave(fate == Fate::Failed);
        // The launcher ends the connection as soon as it has heard that: to the ear, which may see
        // it before this thread goes on, it is this rank that has. pairs with its Acquire load.
        self.is_cut.store(true, Ordering::Release);
        let Some(_turn) = self.writing.take(Some(LEAVE_TIMEOUT)) else {
            return self.cut(Shutdown::Both);
        };
        let sent = self.send_soon(&ToLauncher::Departed { fate });
        self.cut(if sent { Shutdown::Write } else { Shutdown::Both });
    }

    /// Has `hear` told of ranks of other hosts that are gone: those that are already, and later
    /// ones, from a thread. One rank of a host hears of all, each of those that failed.
    pub fn on_gone(&self, hear: impl Fn(Range<u32>, Fate) + Send + 'static) {
        let Some(ear) = self.ear.get() else { return };
        let mut news = ear.news.lock().unwrap_or_else(PoisonError::into_inner);
        news.unheard.drain(..).for_each(|(ranks, fate)| hear(ranks, fate));
        news.hear = Some(Box::new(hear));
    }

    /// A message with its seal; the caller has the turn to write it.
    fn sealed(&self, message: &ToLauncher) -> io::Result<Vec<u8>> {
        let frame = wire::encode(message)?;
        Ok(self.sealer.lock().unwrap_or_else(PoisonError::into_inner).seal(frame))
    }

    /// Writes a message; the caller has the turn.
    fn send(&self, message: &ToLauncher) -> io::Result<()> {
        (&self.stream).write_all(&self.sealed(message)?)
    }

    /// The same, unless that takes longer than [`LEAVE_TIMEOUT`].
    fn send_soon(&self, message: &ToLauncher) -> bool {
        let Ok(frame) = self.sealed(message) else { return false };
        let (mut frame, deadline) = (&frame[..], Instant::now() + LEAVE_TIMEOUT);
        while !frame.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stream.set_write_timeout(Some(left)).is_err() {
                return false;
            }
            match (&self.stream).write(frame) {
                Ok(count @ 1..) => frame = &frame[count.min(frame.len())..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // `WouldBlock`: it took too long.
                Ok(0) | Err(_) => return false,
            }
        }
        true
    }

    fn cut(&self, how: Shutdown) {
        // pairs with the Acquire load of the ear, which finds the end of the connection later.
        self.is_cut.store(true, Ordering::Release);
        // Fails only when the launcher is gone, and then it needs none.
        let _ = self.stream.shutdown(how);
    }
}

/// Which thread's turn it is to write a frame: a mutex that can be waited for with a limit.
#[derive(Debug, Default)]
struct Turns {
    taken: Mutex<bool>,
    free: Condvar,
}

/// A turn; dropping it ends it.
struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for a turn, at most for `limit`.
    fn take(&self, limit: Option<Duration>) -> Option<Turn<'_>> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = match limit {
            None => {
                self.free.wait_while(taken, |taken| *taken).unwrap_or_else(PoisonError::into_inner)
            }
            Some(limit) => {
                let waited = self.free.wait_timeout_while(taken, limit, |taken| *taken);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if *taken {
            return None;
        }
        *taken = true;
        Some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.free.notify_one();
    }
}

/// One attempt at the hello.
fn greet(
    settings: &Settings,
    managed: Option<&Arc<Guarded>>,
    reached_in: Duration,
    deadline: Instant,
) -> Result<Client, StartError> {
    let lost = |source| lost(settings, "said hello", source);
    let left = deadline.saturating_duration_since(Instant::now()).max(RETRY_PAUSE);
    let stream = TcpStream::connect_timeout(&settings.bootstrap, left.min(reached_in));
    let stream = stream.map_err(lost)?;
    stream.set_nodelay(true).map_err(lost)?;
    stream.set_read_timeout(Some(left)).map_err(lost)?;
    stream.set_write_timeout(Some(left)).map_err(lost)?;

    let challenge: Challenge = wire::read(&stream, HELLO_MAX).map_err(lost)?;
    if challenge.magic != wire::MAGIC {
        return Err(StartError::NotTheLauncher(settings.bootstrap));
    }
    let nonce = wire::random()
        .map_err(|source| StartError::System { call: "drawing random bytes", source })?;
    let mut hello = Hello {
        version: wire::VERSION,
        rank: settings.rank,
        pid: std::process::id(),
        nonce,
        mac: [0; 32],
    };
    hello.mac = wire::rank_mac(&settings.secret.0, &challenge.nonce, &hello).0;
    wire::write(&stream, &hello).map_err(lost)?;

    let job = match wire::read(&stream, REPLY_MAX).map_err(lost)? {
        Reply::Refused(Refusal::Secret) => {
            return Err(StartError::Unknown { rank: settings.rank, address: settings.bootstrap });
        }
        Reply::Refused(why) => return Err(StartError::Refused { rank: settings.rank, why }),
        Reply::Welcome { mac, job } => {
            let expected =
                wire::launcher_mac(&settings.secret.0, &challenge.nonce, &hello.nonce, &job);
            if expected != Proof(mac) || job.rank != settings.rank || job.rank >= job.size {
                return Err(StartError::NotTheLauncher(settings.bootstrap));
            }
            job
        }
    };
    stream.set_read_timeout(None).map_err(lost)?;
    stream.set_write_timeout(None).map_err(lost)?;
    let is_cut = Arc::<AtomicBool>::default();
    let nonces = [&challenge.nonce, &hello.nonce];
    let seals = seal::pair(&settings.secret.0, With::Rank(job.rank), nonces, Side::Other);
    let end = End::of(&is_cut, &job, managed);
    let (sealer, opener, ear) = split(seals, &stream, &job, end)?;
    Ok(Client {
        settings: settings.clone(),
        job,
        pid: hello.pid,
        stream,
        exchange: Mutex::new(opener),
        writing: Turns::default(),
        sealer: Mutex::new(sealer),
        left: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        departed: AtomicBool::new(false),
        is_cut,
        ear: ear.map_or_else(OnceLock::new, OnceLock::from),
        missed: AtomicU64::new(0),
        managed: managed.cloned(),
        served: None,
    })
}

/// What answers are opened by is with the ear, where one is needed from the beginning.
fn split(
    (sealer, opener): (Sealer, Opener),
    stream: &TcpStream,
    job: &Job,
    end: End,
) -> Result<(Sealer, Option<Opener>, Option<Ear>), StartError> {
    match job.host.is_some() || end.managed.is_some() {
        true => Ok((sealer, None, Some(Ear::start(stream, job.rank, opener, end)?))),
        false => Ok((sealer, Some(opener), None)),
    }
}

fn lost(settings: &Settings, doing: &'static str, source: io::Error) -> StartError {
    StartError::Lost { rank: settings.rank, address: settings.bootstrap, doing, source }
}

/// Has the kernel end this process with its parent.
fn end_with_parent() -> Result<(), StartError> {
    let system = |source: io::Error| StartError::System { call: "prctl(PR_SET_PDEATHSIG)", source };
    let before = getppid();
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|errno| system(errno.into()))?;
    // A parent that died in between sends no signal any more.
    if getppid() != before {
        return Err(system(io::Error::other("the parent process ended meanwhile")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start::Secret;
    use crate::wire::FRAME_MAX;
    use std::net::TcpListener;

    fn is_shareable<T: Send + Sync>() {}

    fn settings(listener: &TcpListener) -> Settings {
        let bootstrap = listener.local_addr().unwrap();
        Settings { bootstrap, rank: 1, secret: Secret([7; 32]), bulletin: None }
    }

    /// Its end of a connection.
    struct Launcher {
        stream: TcpStream,
        sealer: Sealer,
        opener: Opener,
    }

    impl Launcher {
        fn hear(&mut self) -> io::Result<ToLauncher> {
            seal::read(&self.stream, FRAME_MAX, &mut self.opener)
        }

        fn sealed(&mut self, message: &FromLauncher) -> Vec<u8> {
            self.sealer.seal(wire::encode(message).unwrap())
        }
    }

    /// A launcher that answers one hello, with the secret it is given.
    fn launcher(
        listener: TcpListener,
        secret: [u8; 32],
        rank: u32,
        host: Option<Host>,
    ) -> Launcher {
        let (stream, _) = listener.accept().unwrap();
        let challenge = Challenge { magic: wire::MAGIC, version: wire::VERSION, nonce: [3; 32] };
        wire::write(&stream, &challenge).unwrap();
        let hello: Hello = wire::read(&stream, HELLO_MAX).unwrap();
        let job = Job {
            rank,
            size: 2,
            nodes: 1,
            cores: 2,
            explain: false,
            wait_timeout: Some(Duration::from_secs(3)),
            config: Vec::new(),
            hints: vec![("key".to_owned(), "value".to_owned())],
            progress_agent: false,
            host,
        };
        let mac = wire::launcher_mac(&secret, &[3; 32], &hello.nonce, &job);
        wire::write(&stream, &Reply::Welcome { mac: mac.0, job }).unwrap();
        let nonces = [&[3; 32], &hello.nonce];
        let (sealer, opener) = seal::pair(&secret, With::Rank(rank), nonces, Side::Launcher);
        Launcher { stream, sealer, opener }
    }

    fn against(secret: [u8; 32], rank: u32) -> (Result<Client, StartError>, Launcher) {
        beside(secret, rank, None)
    }

    fn beside(
        secret: [u8; 32],
        rank: u32,
        host: Option<Host>,
    ) -> (Result<Client, StartError>, Launcher) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = settings(&listener);
        let server = std::thread::spawn(move || launcher(listener, secret, rank, host));
        let client = greet(&settings, None, HELLO_TIMEOUT, Instant::now() + HELLO_TIMEOUT);
        (client, server.join().unwrap())
    }

    #[test]
    fn a_client_is_shareable_and_learns_its_job() {
        is_shareable::<Client>();
        let (client, _stream) = against([7; 32], 1);
        let client = client.unwrap();
        assert_eq!((client.job().rank, client.job().size), (1, 2));
        assert_eq!(client.job().wait_timeout, Some(Duration::from_secs(3)));
        assert_eq!(client.job().hints, [("key".to_owned(), "value".to_owned())]);
        assert!(!client.job().progress_agent);
    }

    #[test]
    fn a_launcher_without_the_secret_is_refused() {
        let (client, _stream) = against([8; 32], 1);
        assert!(matches!(client, Err(StartError::NotTheLauncher(_))), "{client:?}");
    }

    #[test]
    fn a_launcher_that_swaps_ranks_is_refused() {
        let (client, _stream) = against([7; 32], 0);
        assert!(matches!(client, Err(StartError::NotTheLauncher(_))), "{client:?}");
    }

    #[test]
    fn leaving_is_said_once_and_ends_exchanges() {
        let (client, mut launcher) = against([7; 32], 1);
        let client = client.unwrap();
        client.missed(7);
        client.missed(8);
        client.leave(true);
        client.leave(false);
        let said = launcher.hear().unwrap();
        assert_eq!(said, ToLauncher::Leave { failed: true, missed: Some(7) });
        let end = launcher.hear().unwrap_err();
        assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
        assert!(matches!(client.all_gather(b"x"), Err(StartError::HasLeft { rank: 1 })));
    }

    #[test]
    fn leaving_frees_a_thread_that_waits_in_an_exchange() {
        let (client, mut launcher) = against([7; 32], 1);
        let client = client.unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| client.all_gather(b"mine"));
            assert_eq!(launcher.hear().unwrap(), ToLauncher::Gather { mine: b"mine".to_vec() });
            client.leave(true);
            let left = ToLauncher::Leave { failed: true, missed: None };
            assert_eq!(launcher.hear().unwrap(), left);
            drop(launcher);
            assert!(matches!(waiting.join().unwrap(), Err(StartError::Lost { .. })));
        });
    }

    /// The launcher ends the connection as soon as it has heard how the rank left, perhaps before
    /// the thread that says so goes on; here, even in the middle of it.
    #[test]
    fn a_rank_that_leaves_takes_no_other_for_failed() {
        let host = Host { first: 1, ranks: 1, address: String::new() };
        let (client, launcher) = beside([7; 32], 1, Some(host));
        let client = client.unwrap();
        let gone = Arc::new(Mutex::new(Vec::new()));
        let its = gone.clone();
        client.on_gone(move |ranks, fate| its.lock().unwrap().push((ranks, fate)));
        client.leave(false);
        std::thread::scope(|scope| {
            let sealer = client.sealer.lock().unwrap();
            scope.spawn(|| client.departed(Fate::Departed));
            while !*client.writing.taken.lock().unwrap() {
                std::thread::yield_now();
            }
            drop(launcher);
            let ear = client.ear.get().unwrap();
            while Arc::strong_count(&ear.news) > 1 {
                std::thread::yield_now();
            }
            drop(sealer);
        });
        assert_eq!(*gone.lock().unwrap(), []);
    }

    fn gathered(what: &[u8]) -> FromLauncher {
        FromLauncher::Gathered { runs: vec![(2, what.to_vec())] }
    }

    /// What an exchange of a rank gives, if the launcher says that.
    fn answered(
        client: &Client,
        launcher: &mut Launcher,
        answer: &[u8],
    ) -> Result<Vec<(u32, Vec<u8>)>, StartError> {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| client.all_gather(b"mine"));
            assert_eq!(launcher.hear().unwrap(), ToLauncher::Gather { mine: b"mine".to_vec() });
            launcher.stream.write_all(answer).unwrap();
            waiting.join().unwrap()
        })
    }

    #[test]
    fn answers_that_are_not_the_launchers_are_refused_and_counted() {
        let (client, mut launcher) = against([7; 32], 1);
        let client = client.unwrap();
        let first = launcher.sealed(&gathered(b"first"));
        assert_eq!(answered(&client, &mut launcher, &first).unwrap(), [(2, b"first".to_vec())]);
        // Sent again, twice; then the right one.
        let second = launcher.sealed(&gathered(b"second"));
        let all = [&first, &first, &second].map(Vec::as_slice).concat();
        assert_eq!(answered(&client, &mut launcher, &all).unwrap(), [(2, b"second".to_vec())]);
        assert_eq!(client.exchange.lock().unwrap().as_ref().unwrap().refused(), 2);
        let made_up = wire::encode(&gathered(b"made up")).unwrap();
        let lost = answered(&client, &mut launcher, &made_up).unwrap_err();
        let StartError::Lost { source, .. } = &lost else { panic!("{lost}") };
        let text = source.to_string();
        assert!(text.contains("a message is not of the other end (3 refused"), "{text}");
    }

    #[test]
    fn garbage_from_a_listener_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = settings(&listener);
        let server = std::thread::spawn(move || {
            use std::io::Write;
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            stream
        });
        let client = greet(&settings, None, HELLO_TIMEOUT, Instant::now() + HELLO_TIMEOUT);
        assert!(matches!(client, Err(StartError::Lost { .. })), "{client:?}");
        server.join().unwrap();
    }

    #[test]
    fn too_much_data_is_refused_before_it_is_sent() {
        let (client, _stream) = against([7; 32], 1);
        let requested = client.unwrap().all_gather(&vec![0; FRAME_MAX]).unwrap_err();
        assert!(
            matches!(requested, StartError::TooLarge { requested } if requested == FRAME_MAX as u64)
        );
    }
}
