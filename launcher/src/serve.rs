//! What `rma-run` does for the bootstrap of its ranks, where no `rma-run` is: a thread of rank 0
//! lets the ranks in, exchanges what they say, tells those of other nodes which ranks are gone, and
//! has the launcher of the job end it when a rank is lost.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::addresses;
use crate::cards::Cards;
use crate::client::{Fate, Host, Job, SettingSource};
use crate::codec::Wire;
use crate::gather::{Answer, Gather};
use crate::notes::Notes;
use crate::rumours::{Message, Rumours};
use crate::seal::{self, FramePart, Opener, SEAL, Sealer, SharedFrame, Side, With};
use crate::start::Secret;
use crate::wire::{
    self, Challenge, FRAME_MAX, FromLauncher, HELLO_MAX, Hello, Nonce, Proof, Refusal, Reply,
    ToLauncher,
};

/// How long ranks may take to come, all of which have met before; and a caller, to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);
/// Callers besides ranks whose hello is awaited; of more, the oldest is dropped.
const STRANGERS: usize = 64;
/// Pause when no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long ranks have to end in an error of their own when one is lost.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// Addresses that ranks of other nodes are told, at most.
const ADDRESSES: usize = 8;
/// Bytes that are read from a caller before others have their turn.
const TURN: usize = 1 << 20;

/// Has the launcher of the job end it.
pub(crate) type Abort = Box<dyn Fn() + Send>;

/// A port where ranks of the job will be let in.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
    secret: Secret,
    nodes: Vec<Range<u32>>,
}

/// The thread that serves.
#[derive(Debug)]
pub(crate) struct Served(JoinHandle<()>);

impl Served {
    /// Waits until all ranks have left, or the job is being ended.
    pub(crate) fn join(self) {
        // It has said what went wrong, if it panicked.
        let _ = self.0.join();
    }
}

impl Door {
    /// Listens where all of the nodes reach it.
    pub(crate) fn open(nodes: Vec<Range<u32>>) -> io::Result<Door> {
        let any = if nodes.len() > 1 { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
        let listener = TcpListener::bind((any, 0))?;
        listener.set_nonblocking(true)?;
        Ok(Door { listener, secret: Secret(wire::random()?), nodes })
    }

    /// The secret of the job.
    pub(crate) fn secret(&self) -> [u8; 32] {
        self.secret.0
    }

    /// Where it listens, as this rank reaches it.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        Ok((Ipv4Addr::LOCALHOST, self.listener.local_addr()?.port()).into())
    }

    /// Where ranks may reach it, those of other nodes first.
    pub(crate) fn addresses(&self) -> io::Result<Vec<String>> {
        let here = self.address()?;
        let mut addresses = Vec::new();
        if self.nodes.len() > 1 {
            let own = addresses::own().into_iter().take(ADDRESSES);
            addresses.extend(own.map(|address| SocketAddr::from((address, here.port()))));
        }
        addresses.push(here);
        Ok(addresses.into_iter().map(|address| address.to_string()).collect())
    }

    /// Lets ranks in.
    pub(crate) fn serve(self, abort: Abort) -> io::Result<Served> {
        let Door { listener, secret, nodes } = self;
        let size = nodes.last().map_or(0, |last| last.end);
        let server = Server {
            listener,
            secret,
            size,
            gather: Gather::new(size),
            cards: Cards::new(size),
            rumours: Rumours::new(nodes.clone()),
            nodes,
            joined: vec![false; size as usize],
            noted: Notes::default(),
            callers: Vec::new(),
            elsewhere: None,
            started: Instant::now(),
            lost: None,
            abort,
        };
        let builder = std::thread::Builder::new().name("rma-bootstrap".into());
        builder.spawn(move || server.run()).map(Served)
    }
}

/// A process that is connected.
#[derive(Debug)]
struct Caller {
    stream: TcpStream,
    since: Instant,
    stage: Stage,
    input: Vec<u8>,
    /// Bytes of that which were taken.
    taken: usize,
    /// Frames that are not written yet, and how much of the first one is.
    output: VecDeque<FramePart>,
    written: usize,
    /// To be dropped when all is written.
    is_over: bool,
    /// It hung up, or is to be dropped at once.
    is_gone: bool,
}

#[derive(Debug)]
enum Stage {
    /// Its hello is awaited.
    Stranger { nonce: Nonce },
    /// It knows the secret, and waits for its part of the job.
    Guest { nonce: Nonce, hello: Hello },
    /// A rank of the job.
    Rank { rank: u32, has_left: bool, seals: Box<(Sealer, Opener)>, refused: u64 },
}

struct Server {
    listener: TcpListener,
    secret: Secret,
    size: u32,
    nodes: Vec<Range<u32>>,
    joined: Vec<bool>,
    gather: Gather,
    cards: Cards,
    rumours: Rumours,
    /// What was printed already.
    noted: Notes,
    callers: Vec<Caller>,
    /// The address of this host that ranks of other nodes came to.
    elsewhere: Option<IpAddr>,
    started: Instant,
    /// When a rank was lost first.
    lost: Option<Instant>,
    abort: Abort,
}

impl Server {
    fn run(mut self) {
        while self.goes_on() {
            self.wait();
            self.accept();
            for at in 0..self.callers.len() {
                self.hear(at);
            }
            self.welcome_guests();
            self.look_around();
            self.callers.iter_mut().for_each(Caller::write);
            for at in 0..self.callers.len() {
                if self.callers[at].is_gone {
                    self.forget(at);
                }
            }
            self.callers.retain(|caller| !caller.is_gone);
        }
        if self.lost.is_some() && !self.callers.is_empty() {
            (self.abort)();
        }
    }

    /// Whether ranks are there, or come, and none was lost a while ago.
    fn goes_on(&self) -> bool {
        let is_open = self.callers.iter().any(Caller::is_rank) || self.joined.contains(&false);
        is_open && self.lost.is_none_or(|since| since.elapsed() < GRACE)
    }

    /// Until something can be read or written, or a time limit is near.
    fn wait(&self) {
        let limits = [
            self.lost.map(|since| since + GRACE),
            self.joined.contains(&false).then_some(self.started + HELLO_TIMEOUT),
        ];
        let hellos = self.callers.iter().filter(|caller| caller.is_stranger());
        let hellos = hellos.map(|caller| caller.since + HELLO_TIMEOUT);
        let limit = limits.into_iter().flatten().chain(hellos).min();
        let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
        // A little later than the limit, so that it is past.
        let left = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
        let mut all = vec![PollFd::new(&self.listener, PollFlags::IN)];
        all.extend(self.callers.iter().map(|caller| {
            let write = if caller.output.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            PollFd::new(&caller.stream, PollFlags::IN | write)
        }));
        // If that fails, for a signal, all are looked at.
        let _ = poll(&mut all, left.as_ref());
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                // One that cannot be had does not come.
                Ok((stream, _)) => drop(self.greet(stream)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // For lack of descriptors, for example.
                Err(_) => break std::thread::sleep(ACCEPT_PAUSE),
            }
        }
        let strangers = self.callers.iter().filter(|caller| caller.is_stranger()).count();
        let most = self.size as usize + STRANGERS;
        let many = self.callers.iter_mut().filter(|caller| caller.is_stranger());
        many.take(strangers.saturating_sub(most)).for_each(|caller| caller.is_gone = true);
    }

    fn greet(&mut self, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let nonce = wire::random()?;
        let challenge = Challenge { magic: wire::MAGIC, version: wire::VERSION, nonce };
        let mut caller = Caller {
            stream,
            since: Instant::now(),
            stage: Stage::Stranger { nonce },
            input: Vec::new(),
            taken: 0,
            output: VecDeque::new(),
            written: 0,
            is_over: false,
            is_gone: false,
        };
        caller.send(&challenge);
        self.callers.push(caller);
        Ok(())
    }

    /// Takes what a caller has said.
    fn hear(&mut self, at: usize) {
        self.callers[at].read();
        self.take_all(at);
        let caller = &mut self.callers[at];
        caller.input.drain(..std::mem::take(&mut caller.taken));
    }

    fn take_all(&mut self, at: usize) {
        loop {
            let caller = &mut self.callers[at];
            if caller.is_over {
                return;
            }
            let taken = match &mut caller.stage {
                &mut Stage::Stranger { nonce } => match caller.take(HELLO_MAX) {
                    Ok(Some(hello)) => {
                        self.admit(at, nonce, hello);
                        continue;
                    }
                    taken => taken.map(drop),
                },
                // It waits for an answer.
                Stage::Guest { .. } => return,
                &mut Stage::Rank { rank, has_left, .. } => match caller.take_sealed() {
                    Ok(Some(said)) => {
                        self.listen(at, rank, has_left, said);
                        continue;
                    }
                    taken => taken.map(drop),
                },
            };
            if let Err(error) = taken {
                let caller = &mut self.callers[at];
                caller.is_gone = true;
                if let Stage::Rank { rank, .. } = caller.stage {
                    self.note(&format!("rank {rank} is not heard any more: {error}"));
                }
            }
            return;
        }
    }

    fn admit(&mut self, at: usize, nonce: Nonce, hello: Hello) {
        let knows = wire::rank_mac(&self.secret.0, &nonce, &hello) == Proof(hello.mac);
        let admitted = match knows {
            true => wire::admit(&hello, 0..self.size, self.size, &mut self.joined),
            false => Err(Refusal::Secret),
        };
        let is_here = self.nodes.first().is_some_and(|first| first.contains(&hello.rank));
        let caller = &mut self.callers[at];
        match admitted {
            Err(why) => caller.end_with(&Reply::Refused(why)),
            Ok(()) => {
                if !is_here && let Ok(address) = caller.stream.local_addr() {
                    self.elsewhere.get_or_insert(address.ip());
                }
                caller.stage = Stage::Guest { nonce, hello };
            }
        }
    }

    /// Tells guests of their job; those of this node as soon as it is known at which address ranks
    /// of other nodes reach it.
    fn welcome_guests(&mut self) {
        for at in 0..self.callers.len() {
            let caller = &mut self.callers[at];
            let Stage::Guest { nonce, hello } = &caller.stage else { continue };
            let rank = hello.rank;
            let Ok(host) = host_of(&self.nodes, rank, &caller.stream, self.elsewhere) else {
                continue;
            };
            let job = job(rank, self.size, host);
            let mac = wire::launcher_mac(&self.secret.0, nonce, &hello.nonce, &job);
            let nonces = [nonce, &hello.nonce];
            let seals = seal::pair(&self.secret.0, With::Rank(rank), nonces, Side::Launcher);
            caller.send(&Reply::Welcome { mac: mac.0, job });
            let seals = Box::new(seals);
            caller.stage = Stage::Rank { rank, has_left: false, seals, refused: 0 };
            let messages = self.rumours.joined(rank);
            self.pass_on(messages);
        }
    }

    /// Takes one word of a rank.
    fn listen(&mut self, at: usize, rank: u32, has_left: bool, said: ToLauncher) {
        match said {
            ToLauncher::Departed { fate } if has_left => {
                let messages = self.rumours.gone(rank, fate);
                self.pass_on(messages);
            }
            ToLauncher::Gather { mine } if !has_left && !self.gather.waits(rank) => {
                let answer = self.gather.handle_part(rank, mine);
                self.answer(answer);
            }
            ToLauncher::Card { card } if !has_left => self.cards.keep(rank, card),
            ToLauncher::Query { rank: of } if !has_left => {
                let answer = self.cards.answer(rank, of);
                self.answer(Some(answer));
            }
            ToLauncher::Note { text } if !has_left => self.note(&text),
            ToLauncher::Leave { failed, missed } if !has_left => {
                if let Stage::Rank { has_left, .. } = &mut self.callers[at].stage {
                    *has_left = true;
                }
                let answer = self.gather.handle_gone(rank);
                self.answer(answer);
                if failed {
                    if let Some(peer) = missed {
                        say(&format!(
                            "rank {rank} failed because it waited for rank {peer}, which was gone"
                        ));
                    }
                    self.lost.get_or_insert_with(Instant::now);
                    let messages = self.rumours.gone(rank, Fate::Failed);
                    self.pass_on(messages);
                }
            }
            // Nothing else may be said then.
            _ => self.callers[at].is_gone = true,
        }
    }

    /// A caller is no more.
    fn forget(&mut self, at: usize) {
        let rank = match &self.callers[at].stage {
            Stage::Stranger { .. } => return,
            Stage::Guest { hello, .. } => hello.rank,
            Stage::Rank { rank, has_left: true, .. } => {
                let messages = self.rumours.disconnected(*rank);
                return self.pass_on(messages);
            }
            Stage::Rank { rank, .. } => *rank,
        };
        let answer = self.gather.handle_gone(rank);
        self.answer(answer);
        let messages = self.rumours.disconnected(rank);
        self.pass_on(messages);
        if self.lost.is_none() {
            self.lost = Some(Instant::now());
            say(&format!("rank {rank} ended without leaving its job, which ends with it"));
        }
    }

    /// Which callers or ranks take too long?
    fn look_around(&mut self) {
        for caller in &mut self.callers {
            if caller.is_stranger() && caller.since.elapsed() > HELLO_TIMEOUT {
                caller.is_gone = true;
            }
        }
        if self.started.elapsed() > HELLO_TIMEOUT && self.lost.is_none() {
            let missing = (0..).zip(&self.joined).find(|(_, joined)| !**joined);
            if let Some((rank, _)) = missing {
                self.lost = Some(Instant::now());
                let limit = HELLO_TIMEOUT.as_secs();
                say(&format!("rank {rank} has not come within {limit} s; the job ends"));
            }
        }
    }

    fn answer(&mut self, answer: Option<Answer>) {
        if let Some(Answer { ranks, message }) = answer {
            self.tell(&ranks, &message);
        }
    }

    fn pass_on(&mut self, messages: Vec<Message>) {
        messages.iter().for_each(|(ranks, message)| self.tell(ranks, message));
    }

    fn tell(&mut self, ranks: &[u32], message: &FromLauncher) {
        let Ok(frame) = SharedFrame::of(message) else { return };
        for caller in &mut self.callers {
            let Stage::Rank { rank, seals, .. } = &mut caller.stage else { continue };
            if ranks.binary_search(rank).is_ok() {
                caller.output.extend(seals.0.seal_shared(&frame));
            }
        }
    }

    /// Says what a rank says, once.
    fn note(&mut self, text: &str) {
        if self.noted.is_new(text) {
            say(text);
        }
    }
}

fn say(text: &str) {
    // Standard error may have no reader any more.
    let _ = writeln!(io::stderr(), "rma: {text}");
}

/// Which part of the job is where the rank is: none if there is one node only, and an error if its
/// address is not known yet.
fn host_of(
    nodes: &[Range<u32>],
    rank: u32,
    stream: &TcpStream,
    elsewhere: Option<IpAddr>,
) -> io::Result<Option<Host>> {
    let [first, _, ..] = nodes else { return Ok(None) };
    let Some(node) = nodes.iter().find(|node| node.contains(&rank)) else { return Ok(None) };
    let address = match node == first {
        true => elsewhere.ok_or(ErrorKind::WouldBlock)?,
        false => stream.peer_addr()?.ip(),
    };
    let ranks = node.end - node.start;
    Ok(Some(Host { first: node.start, ranks, address: address.to_string() }))
}

/// What a rank is told; it counts CPUs itself.
fn job(rank: u32, size: u32, host: Option<Host>) -> Job {
    let network = ("transport", "ofi", "the nodes of the job");
    let config = host.iter().map(|_| {
        let (key, value, source) = network;
        (key.to_owned(), value.to_owned(), SettingSource::Option(source.to_owned()))
    });
    Job {
        rank,
        size,
        nodes: 1,
        cores: 1,
        explain: false,
        wait_timeout: None,
        hints: Vec::new(),
        config: config.collect(),
        progress_agent: true,
        host,
    }
}

impl Caller {
    fn is_rank(&self) -> bool {
        matches!(self.stage, Stage::Rank { .. })
    }

    /// It has proved nothing.
    fn is_stranger(&self) -> bool {
        matches!(self.stage, Stage::Stranger { .. })
    }

    /// Reads what is there.
    fn read(&mut self) {
        let mut bytes = [0; 16 << 10];
        let mut read = 0;
        while read < TURN && !self.is_gone {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.is_gone = true,
                Ok(count) if self.is_over => read += count,
                Ok(count) => {
                    self.input.extend_from_slice(&bytes[..count]);
                    read += count;
                    // A caller that has not proved anything says no more than a hello.
                    if !self.is_rank() && self.input.len() > HELLO_MAX + 4 {
                        self.is_gone = true;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.is_gone = true,
            }
        }
    }

    /// The next message of at most `max` bytes, if all of it is there.
    fn take<T: Wire>(&mut self, max: usize) -> io::Result<Option<T>> {
        let Some(body) = wire::whole(&self.input[self.taken..], max)? else { return Ok(None) };
        let message = wire::decode(body)?;
        self.taken += 4 + body.len();
        Ok(Some(message))
    }

    /// The next message of a rank, if all of it is there; those that are refused are left out.
    fn take_sealed(&mut self) -> io::Result<Option<ToLauncher>> {
        let Stage::Rank { rank, seals, refused, .. } = &mut self.stage else { return Ok(None) };
        loop {
            let Some(body) = wire::whole(&self.input[self.taken..], FRAME_MAX + SEAL)? else {
                return Ok(None);
            };
            self.taken += 4 + body.len();
            let message = seals.1.open(body);
            if let Some(note) = seals.1.note(refused) {
                say(&format!("rank {rank}: {note}"));
            }
            if let Some(message) = message? {
                return wire::decode(message).map(Some);
            }
        }
    }

    fn send<T: Wire>(&mut self, message: &T) {
        match wire::encode(message) {
            Ok(frame) => self.output.push_back(FramePart::Own(frame)),
            Err(_) => self.is_gone = true,
        }
    }

    fn end_with<T: Wire>(&mut self, message: &T) {
        self.send(message);
        self.is_over = true;
    }

    /// Writes what can be written.
    fn write(&mut self) {
        while let Some(frame) = self.output.front().filter(|_| !self.is_gone) {
            let bytes = frame.as_ref();
            match self.stream.write(&bytes[self.written..]) {
                Ok(count @ 1..) => {
                    self.written += count;
                    if self.written == bytes.len() {
                        self.output.pop_front();
                        self.written = 0;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Its end is read, too.
                Ok(0) | Err(_) => {
                    self.output.clear();
                    self.written = 0;
                }
            }
        }
        if self.is_over {
            self.is_gone = true;
        }
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
