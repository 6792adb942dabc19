//! The port at which hosts join a job, before it begins.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::super::bootstrap;
use super::super::driver::{Input, until};
use super::super::look;
use super::super::machine::ENDING;
use super::super::output::lock;
use super::super::report::nonzero;
use super::super::signals;
use super::super::strangers::{BACKLOG, Strangers};
use super::ANSWERING;
use super::hello::{self, Challenge, Hello, HostSecret, MAGIC, Refusal, Reply, Welcome};
use super::list::HostSlots;
use super::talk::{BEAT, Order, VERSION, Word};
use crate::addresses;
use crate::notes::Notes;
use crate::seal::{self, Opener, SEAL, Sealer, Side, With};
use crate::wire::{self, HELLO_MAX, Nonce, Proof};

/// How long a caller may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Callers whose hello is awaited; of more, the oldest is dropped.
const STRANGERS: usize = 64;
/// How long a host that has no rank may take to be told so.
const DISMISSED_IN: Duration = Duration::from_secs(1);

/// Why a job has not got its hosts.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The time is up.
    #[error(
        "the time is up (--timeout): {came} of {joins} hosts have joined; does `rma-run join` run \
         on the others, with that address and this secret?"
    )]
    TimedOut {
        /// Hosts that have joined.
        came: u32,
        /// Hosts that were to join.
        joins: u32,
    },
    /// This process was asked to end.
    #[error("got {}: no rank runs yet", signals::name(*.0))]
    Interrupted(i32),
    /// No port can be opened there.
    #[error("hosts cannot join at {address}: {source}; choose another by --listen ADDRESS:PORT")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the operating system says.
        source: io::Error,
    },
    /// The operating system refused something.
    #[error("{what} failed: {source}")]
    System {
        /// What was asked.
        what: &'static str,
        /// What it says.
        source: io::Error,
    },
}

crate::debug_as_display!(JoinError);

impl JoinError {
    /// What a launcher exits with.
    pub fn exit_code(&self) -> u8 {
        match self {
            JoinError::TimedOut { .. } => 124,
            JoinError::Interrupted(signal) => nonzero(128 + signal),
            _ => 1,
        }
    }
}

/// A port at which hosts join.
#[derive(Debug)]
pub struct JoinPort {
    listener: std::net::TcpListener,
    secret: HostSecret,
}

impl JoinPort {
    /// Listens there; port 0 is any that is free.
    ///
    /// # Errors
    ///
    /// [`JoinError::Listen`].
    pub fn open(address: SocketAddr, secret: HostSecret) -> Result<JoinPort, JoinError> {
        let failed = |source| JoinError::Listen { address, source };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        rustix::net::listen(&listener, BACKLOG.into()).map_err(|error| failed(error.into()))?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(JoinPort { listener, secret })
    }

    /// All addresses of this machine, and a port that is free: those of IPv4, unless others reach
    /// it by IPv6 alone.
    pub fn anywhere() -> SocketAddr {
        match addresses::are_of_ipv6_alone() {
            true => (Ipv6Addr::UNSPECIFIED, 0).into(),
            false => (Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }

    /// Why hosts may not reach it, if that is to be seen here.
    pub fn caution(&self) -> Option<&'static str> {
        let address = self.listener.local_addr().ok()?;
        let is_in_vain = address.ip() == Ipv4Addr::UNSPECIFIED && addresses::are_of_ipv6_alone();
        is_in_vain.then_some(
            "this machine has addresses of IPv6 alone, and 0.0.0.0 is all of IPv4: hosts do not \
             reach it there; leave --listen out, or say --listen '[::]:PORT'",
        )
    }

    /// Where hosts find it: by the name of this machine, if it listens at all addresses.
    pub fn address(&self) -> String {
        match self.listener.local_addr() {
            Ok(address) if address.ip().is_unspecified() => {
                format!("{}:{}", look::host(), address.port())
            }
            Ok(address) => address.to_string(),
            Err(_) => String::new(),
        }
    }

    /// Waits until `joins` hosts have joined, and then listens no more. `say` tells the user of it;
    /// a host that is silent for `silence` has not joined any more.
    ///
    /// # Errors
    ///
    /// They have not within `timeout`, or a signal asks for the end.
    pub fn wait(
        self,
        joins: u32,
        silence: Duration,
        timeout: Option<Duration>,
        say: impl FnMut(&str),
    ) -> Result<JoinedHosts, JoinError> {
        let what = "starting the event loop";
        let failed = |source| JoinError::System { what, source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(failed)?.block_on(async {
            let (sender, signals) = unbounded_channel();
            let what = "watching for signals";
            signals::listen(&sender).map_err(|source| JoinError::System { what, source })?;
            let listener = TcpListener::from_std(self.listener).map_err(failed)?;
            let secret = Arc::new(self.secret);
            let waits = Waits {
                joins,
                silence,
                secret,
                strangers: Strangers::new(listener, STRANGERS),
                hellos: JoinSet::new(),
                hosts: Vec::new(),
                kept: JoinSet::new(),
                answers: unbounded_channel(),
                looks: 0,
                pauses: 0,
                notes: Notes::default(),
                say,
            };
            waits.carry_on(signals, timeout.map(|time| Instant::now() + time)).await
        })
    }
}

struct Waits<F> {
    joins: u32,
    silence: Duration,
    secret: Arc<HostSecret>,
    strangers: Strangers,
    hellos: JoinSet<io::Result<Caller>>,
    /// Those that have joined, in the order in which they came; no two have one name.
    hosts: Vec<Host>,
    /// The connections of hosts, which are there as long as these are, by their names.
    kept: JoinSet<(String, Option<Connection>)>,
    /// What hosts have answered.
    answers: (UnboundedSender<Answer>, UnboundedReceiver<Answer>),
    /// How often hosts were asked whether they are there.
    looks: u32,
    /// Stops of this process.
    pauses: u32,
    notes: Notes,
    say: F,
}

/// A host that has joined.
struct Host {
    slots: HostSlots,
    /// What it is told; at their end, its connection is at rest.
    orders: UnboundedSender<Order>,
    /// Which `Look` it has answered last, and which `Pause`.
    looked: u32,
    paused: u32,
}

/// What the host of that name has said.
type Answer = (String, Word);

impl<F: FnMut(&str)> Waits<F> {
    async fn carry_on(
        mut self,
        mut signals: UnboundedReceiver<Input>,
        deadline: Option<Instant>,
    ) -> Result<JoinedHosts, JoinError> {
        while !self.all_are_there() {
            let has_room = self.came() < self.joins;
            tokio::select! {
                biased;
                Some(input) = signals.recv() => match input {
                    Input::Signal(signal) if ENDING.contains(&signal) => {
                        return Err(JoinError::Interrupted(signal.as_raw()));
                    }
                    Input::Signal(Signal::TSTP) => self.stop().await,
                    _ => {}
                },
                () = until(deadline) => {
                    return Err(JoinError::TimedOut { came: self.came(), joins: self.joins });
                }
                Some(ended) = self.kept.join_next() => {
                    if let Ok((name, _)) = ended {
                        self.gone(&name);
                    }
                }
                Some(answer) = self.answers.1.recv() => self.hear(answer),
                // If one of those that have joined is gone, there is room for another.
                Some(heard) = self.hellos.join_next(), if has_room => match heard {
                    Ok(Ok(caller)) => self.admit(caller),
                    // A caller that looks whether a launcher listens says no more.
                    Ok(Err(error)) if wire::is_end(&error) => {}
                    Ok(Err(error)) => self.refused(&error.to_string()),
                    // It was dropped.
                    Err(_) => {}
                },
                (stream, from) = self.strangers.accept() => self.receive(stream, from.ip()),
            }
        }
        drop(self.strangers);
        // With that, hosts are told nothing more.
        let mut hosts: Vec<_> = self.hosts.into_iter().map(|host| host.slots).collect();
        hosts.sort_by(|a, b| order(&a.name).cmp(&order(&b.name)));
        let mut connections = HashMap::new();
        while let Some(kept) = self.kept.join_next().await {
            let Ok((name, Some(connection))) = kept else { continue };
            connections.insert(name, connection);
        }
        let what = "starting a thread for connections";
        let connections = Connections::rest(connections);
        let connections = connections.map_err(|source| JoinError::System { what, source })?;
        Ok(JoinedHosts { hosts, connections })
    }

    /// Whether all have joined, and none has gone behind the last that came.
    fn all_are_there(&self) -> bool {
        let looks = self.looks;
        self.came() == self.joins && self.hosts.iter().all(|host| host.looked == looks)
    }

    fn order(&self, order: impl Fn() -> Order) {
        // Fails for a host that is gone.
        self.hosts.iter().for_each(|host| _ = host.orders.send(order()));
    }

    fn hear(&mut self, (name, word): Answer) {
        let host = self.hosts.iter_mut().find(|host| host.slots.name == name);
        match (host, word) {
            (Some(host), Word::Looked { number, .. }) => host.looked = number,
            (Some(host), Word::Paused { number }) => host.paused = number,
            _ => {}
        }
    }

    /// Stops this process. Hosts take the silence for no failure.
    async fn stop(&mut self) {
        self.pauses += 1;
        let number = self.pauses;
        self.order(|| Order::Pause { number });
        let answered = async {
            while self.hosts.iter().any(|host| host.paused != number) {
                tokio::select! {
                    Some(answer) = self.answers.1.recv() => self.hear(answer),
                    Some(Ok((name, _))) = self.kept.join_next() => self.gone(&name),
                }
            }
        };
        let _ = tokio::time::timeout(ANSWERING, answered).await;
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        self.order(|| Order::Resume);
    }

    fn came(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// A caller, whose hello is awaited.
    fn receive(&mut self, stream: TcpStream, from: IpAddr) {
        let secret = Arc::clone(&self.secret);
        let hello = async move {
            match tokio::time::timeout(HELLO_TIMEOUT, receive(stream, from, &secret)).await {
                Ok(heard) => heard,
                Err(_) => Err(io::Error::other(format!("{from} did not say hello in time"))),
            }
        };
        let hello = self.hellos.spawn(hello);
        if let Some(why) = self.strangers.await_hello(hello) {
            self.refused(why);
        }
    }

    fn refused(&mut self, why: &str) {
        if self.notes.is_new(why) {
            (self.say)(&format!("refused a connection to the port for hosts: {why}"));
        }
    }

    /// A host that has proved that it knows the secret.
    fn admit(&mut self, caller: Caller) {
        let Caller { stream, from, challenge, hello } = caller;
        let is_taken = |name: &str| self.hosts.iter().any(|host| host.slots.name == name);
        let mut name = hello.name.clone();
        let mut count = 1;
        while is_taken(&name) {
            count += 1;
            name = format!("{}-{count}", hello.name);
        }
        let mut welcome = Welcome { name: name.clone(), silence: self.silence, mac: [0; 32] };
        welcome.mac = hello::launcher_mac(&self.secret, &challenge, &hello.nonce, &welcome).0;
        let secret = &self.secret.0.0;
        let (sealer, opener) =
            seal::pair(secret, With::Host, [&challenge, &hello.nonce], Side::Launcher);
        let connection = Connection { stream, left: Vec::new(), sealer, opener };
        let (orders, ordered) = unbounded_channel();
        let (of, answers) = (name.clone(), self.answers.0.clone());
        self.kept.spawn(async move {
            let kept = connection.keep(welcome, ordered, (&of, answers)).await;
            (of, kept)
        });
        let takes = match hello.slots {
            Some(slots) => format!(", takes {slots} ranks"),
            None => String::new(),
        };
        let slots = HostSlots { name: name.clone(), slots: hello.slots };
        self.hosts.push(Host { slots, orders, looked: 0, paused: 0 });
        let (came, joins) = (self.came(), self.joins);
        if came == joins {
            self.looks += 1;
            let number = self.looks;
            self.order(|| Order::Look { number });
        }
        (self.say)(&format!("host {name} ({from}{takes}): {came} of {joins} hosts have joined"));
    }

    fn gone(&mut self, name: &str) {
        self.hosts.retain(|host| host.slots.name != name);
        let (came, joins) = (self.came(), self.joins);
        (self.say)(&format!("host {name} is gone again: {came} of {joins} hosts have joined"));
    }
}

/// In which order hosts get ranks: `n2` before `n10`.
fn order(name: &str) -> (usize, &str) {
    (name.len(), name)
}

/// A host that knows the secret.
struct Caller {
    stream: TcpStream,
    from: IpAddr,
    challenge: Nonce,
    hello: Hello,
}

/// Hears the hello of a caller, and refuses it, unless it may join.
async fn receive(mut stream: TcpStream, from: IpAddr, secret: &HostSecret) -> io::Result<Caller> {
    stream.set_nodelay(true)?;
    let challenge = wire::random()?;
    bootstrap::write(&mut stream, &Challenge { magic: MAGIC, version: VERSION, nonce: challenge })
        .await?;
    let hello: Hello = bootstrap::read(&mut stream, HELLO_MAX).await.map_err(|error| {
        let is_end = wire::is_end(&error);
        if is_end { error } else { io::Error::other(format!("{from} is no host: {error}")) }
    })?;
    let refusal = if hello::host_mac(secret, &challenge, &hello) != Proof(hello.mac) {
        Some(Refusal::Secret)
    } else if hello.version != VERSION {
        Some(Refusal::Version { launcher: VERSION })
    } else if !hello::is_name(&hello.name) || hello.slots == Some(0) {
        Some(Refusal::Name)
    } else {
        None
    };
    let Some(why) = refusal else { return Ok(Caller { stream, from, challenge, hello }) };
    bootstrap::write(&mut stream, &Reply::Refused(why)).await?;
    Err(io::Error::other(match why {
        Refusal::Secret => format!("{from} does not know the secret"),
        Refusal::Version { .. } => format!("{from} has another version of rma-run"),
        Refusal::Name => format!("{from} has no name that a host can have"),
    }))
}

/// The connection to a host that has joined: one that is kept while others join, or by
/// default one that is not used until the job takes it.
pub(super) struct Connection<S = std::net::TcpStream> {
    pub(super) stream: S,
    /// What came on it already.
    pub(super) left: Vec<u8>,
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
}

impl Connection<TcpStream> {
    /// Welcomes the host, and sees that it stays until there are no more orders; `None` if it does
    /// not.
    async fn keep(
        mut self,
        welcome: Welcome,
        mut orders: UnboundedReceiver<Order>,
        (name, answers): (&str, UnboundedSender<Answer>),
    ) -> Option<Connection> {
        let silence = welcome.silence;
        bootstrap::write(&mut self.stream, &Reply::Welcome(welcome)).await.ok()?;
        let mut beat = tokio::time::interval(BEAT);
        let mut heard = Instant::now();
        loop {
            let silent = Some(heard + silence);
            let order = tokio::select! {
                biased;
                // What was said while this process was stopped ends the silence.
                body = self.body() => {
                    let body = body.ok()?;
                    // One that is refused is not heard.
                    let Some(message) = self.opener.open(&body).ok()? else { continue };
                    match wire::decode(message).ok()? {
                        Word::Beat => {}
                        word @ (Word::Looked { .. } | Word::Paused { .. }) => {
                            answers.send((name.to_owned(), word)).ok()?;
                        }
                        _ => return None,
                    }
                    heard = Instant::now();
                    continue;
                }
                order = orders.recv() => match order {
                    Some(order) => order,
                    None => break,
                },
                () = until(silent) => return None,
                _ = beat.tick() => Order::Beat,
            };
            let frame = self.sealer.seal(wire::encode(&order).ok()?);
            let written = self.stream.write_all(&frame);
            tokio::time::timeout(silence, written).await.ok()?.ok()?;
        }
        let Connection { stream, left, sealer, opener } = self;
        Some(Connection { stream: stream.into_std().ok()?, left, sealer, opener })
    }

    /// The body of the next frame. Loses nothing if it is dropped.
    async fn body(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(body) = wire::whole(&self.left, HELLO_MAX + SEAL)? {
                let body = body.to_vec();
                self.left.drain(..4 + body.len());
                return Ok(body);
            }
            self.left.reserve(HELLO_MAX);
            if self.stream.read_buf(&mut self.left).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl Connection {
    /// Says that this launcher is there. A host that has no room for that reads nothing.
    fn beat(&mut self) -> io::Result<()> {
        let frame = self.sealer.seal(wire::encode(&Order::Beat)?);
        let written = io::Write::write(&mut self.stream, &frame)?;
        if written == frame.len() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }
}

type ByName = HashMap<String, Connection>;

/// The connections of hosts, by the names of these; each is used by one job.
#[derive(Clone)]
pub struct Connections {
    at_rest: Arc<Mutex<ByName>>,
    /// At its end, so is the thread that beats on them, if it is there still.
    _beats: mpsc::Sender<()>,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(lock(&self.at_rest).keys()).finish()
    }
}

impl Connections {
    /// Puts them at rest: until they are taken, a thread tells hosts that this launcher is there.
    fn rest(connections: ByName) -> io::Result<Connections> {
        let at_rest = Arc::new(Mutex::new(connections));
        let (_beats, ended) = mpsc::channel::<()>();
        let beats = Arc::clone(&at_rest);
        let beat = move || {
            while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                let mut at_rest = lock(&beats);
                at_rest.retain(|_, connection| connection.beat().is_ok());
                // None comes to rest later.
                if at_rest.is_empty() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("beats".into()).spawn(beat)?;
        Ok(Connections { at_rest, _beats })
    }

    pub(super) fn take(&self, host: &str) -> Option<Connection> {
        lock(&self.at_rest).remove(host)
    }

    /// Tells hosts that were not taken that the job does without them.
    pub(super) fn dismiss(&self) {
        for (_, mut connection) in lock(&self.at_rest).drain() {
            let Ok(frame) = wire::encode(&Order::End { stuck: Vec::new() }) else { continue };
            // A host that is gone hears nothing.
            let _ = connection.stream.set_nonblocking(false);
            let _ = connection.stream.set_write_timeout(Some(DISMISSED_IN));
            let _ = io::Write::write_all(&mut connection.stream, &connection.sealer.seal(frame));
        }
    }
}

/// Hosts that have joined a job.
#[derive(Debug)]
pub struct JoinedHosts {
    /// Their names and ranks, in the order in which they get ranks: by their names.
    pub hosts: Vec<HostSlots>,
    /// The connections to them, for [`Remote::connections`](super::Remote).
    pub connections: Connections,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_in_the_order_of_their_numbers() {
        let mut names = ["n10", "n2", "n1", "m3"];
        names.sort_by_key(|name| order(name));
        assert_eq!(names, ["m3", "n1", "n2", "n10"]);
    }

    /// What is between the last that joins and the start may take its time.
    #[test]
    fn hosts_whose_connections_are_at_rest_hear_that_the_launcher_is_there() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let host = std::net::TcpStream::connect(port.local_addr().unwrap()).unwrap();
        let (stream, _) = port.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let (secret, nonces) = ([1; 32], [[2; 32], [3; 32]]);
        let pair = |own| seal::pair(&secret, With::Host, [&nonces[0], &nonces[1]], own);
        let ((sealer, opener), (_, mut heard)) = (pair(Side::Launcher), pair(Side::Other));
        let connection = Connection { stream, left: Vec::new(), sealer, opener };
        let connections = Connections::rest([("a".to_owned(), connection)].into()).unwrap();
        // Far more than it takes.
        host.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        for _ in 0..2 {
            let order: Order = seal::read(&host, HELLO_MAX, &mut heard).unwrap();
            assert_eq!(order, Order::Beat);
        }
        let connection = connections.take("a").unwrap();
        drop(connection);
        let ended = seal::read::<Order>(&host, HELLO_MAX, &mut heard).unwrap_err();
        assert!(wire::is_end(&ended), "one that was taken is left alone: {ended}");
    }
}
