//! Jobs on several hosts: an agent on each starts the ranks there. A remote shell starts it, whose
//! standard input and output are the connection to it: no port listens, and nothing but the remote
//! shell decides which user may start what where. Or hosts have joined, at a port that listens
//! until all have.

mod address;
mod agent;
mod branch;
mod complaints;
mod copy;
mod hello;
mod input;
mod join;
mod link;
mod list;
mod meet;
mod parting;
mod port;
mod remote;
mod streams;
mod talk;
mod task;
mod tree;
mod visit;
mod voice;

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::copy::Sources;
use self::link::{Answered, Ended, Outlets, Said, Stream};
use self::remote::shown;
use self::talk::{Order, Task, Word};
use self::tree::{Stem, Wires};
use super::cpus::ranges;
use super::driver::Input;
use super::input::{Fed, Flow, Source};
use super::machine::{Event, Exit};
use super::processes::Processes;
use super::program;
use super::query::Seen;
use super::report::{LostOutput, RunError};
use super::spec::Spec;
use crate::pmi::server::{Meeting, Told};
use crate::rumours::{Message, Rumours};
use crate::seal::SharedFrame;

pub use self::agent::agent;
pub use self::hello::HostSecret;
pub use self::join::{Join, join};
pub(super) use self::link::{Relayed, Said as HostSaid};
pub use self::list::{Fill, HostPart, HostSlots, parse_hosts, place, read_hosts};
pub use self::port::{Connections, JoinError, JoinPort, JoinedHosts};
pub use self::remote::Remote;
pub(super) use self::talk::Print;
pub(super) use self::visit::{DOCTOR, answer, visit};

/// How long agents may take to end when all is over, and the remote shells after them.
const CLOSING: Duration = Duration::from_secs(3);
/// How long all hosts may take to stop their ranks, or to look at them.
const ANSWERING: Duration = Duration::from_secs(1);

/// A host, as the launcher knows it.
#[derive(Debug)]
struct Link {
    part: HostPart,
    orders: UnboundedSender<Order>,
    carrier: Carrier,
    is_ready: bool,
    /// It has asked for a piece of a program, which is not on its way yet.
    awaits_piece: Arc<AtomicBool>,
    has_started: bool,
    is_lost: bool,
    /// What its agent told of it.
    cpus: u32,
    address: String,
    /// Ranks that run there.
    running: Vec<u32>,
    /// Ranks that have not ended, started or not.
    left: Vec<u32>,
}

/// What the connection to a host ends with.
#[derive(Debug)]
enum Carrier {
    /// A remote shell, which leads a group.
    Shell(Pid),
    /// A remote shell of another host, which is told.
    Elsewhere(UnboundedSender<Order>, u32),
    /// A socket.
    Socket(OwnedFd),
    /// A remote shell that was reaped.
    Gone,
}

impl Link {
    fn new(
        part: &HostPart,
        orders: UnboundedSender<Order>,
        carrier: Carrier,
        awaits_piece: Arc<AtomicBool>,
    ) -> Link {
        Link {
            part: part.clone(),
            orders,
            carrier,
            is_ready: false,
            awaits_piece,
            has_started: false,
            is_lost: false,
            cpus: 0,
            address: String::new(),
            running: Vec::new(),
            left: part.range().collect(),
        }
    }

    /// Kills the remote shell, and what that has started here; or ends the connection.
    fn kill(&self) {
        // Fails when the group has no process left, or the connection has ended.
        match &self.carrier {
            Carrier::Shell(shell) => _ = kill_process_group(*shell, Signal::KILL),
            // Fails when that host is gone.
            Carrier::Elsewhere(by, host) => _ = by.send(Order::Shut { host: *host }),
            Carrier::Socket(socket) => _ = shutdown(socket, Shutdown::Both),
            Carrier::Gone => {}
        }
    }

    /// Its remote shell is about to be reaped, if it is that.
    fn forget(&mut self, reaped: Pid) {
        if matches!(self.carrier, Carrier::Shell(shell) if shell == reaped) {
            self.carrier = Carrier::Gone;
        }
    }
}

/// The hosts of a job, none if its ranks are on this machine.
pub(super) struct Hosts {
    links: Vec<Link>,
    rumours: Rumours,
    /// Ranks that have joined the job, whether they are still part of it or not.
    joined: HashSet<u32>,
    meeting: Meeting,
    /// Each ends with its remote shell, if it has one.
    conversations: JoinSet<Ended>,
    /// Where to remind the driver; none if there are no hosts.
    inputs: Option<UnboundedSender<Input>>,
    /// By each host.
    answered: Arc<watch::Sender<Vec<Answered>>>,
    /// Stops of this process.
    stops: u32,
    /// How often hosts were asked what they see.
    looks: u32,
    /// What is passed on to ranks, from their start on.
    input: Option<Source>,
    /// How far they are in it, if something is.
    flow: Option<Arc<Flow>>,
    /// What is copied to hosts, if that is wanted.
    sources: Sources,
    is_started: bool,
    is_held: bool,
    is_over: bool,
}

/// How a host is reached.
enum Way {
    Shell(Vec<OsString>),
    /// The same, of another host.
    Elsewhere(Vec<OsString>, Stem),
    /// The connection by which it has joined, if it has.
    Joined(Option<port::Connection>),
}

impl Way {
    /// Begins a conversation with its agent, or says why that fails.
    fn begin(
        self,
        task: Task,
        outlets: Outlets,
        told: link::Told,
    ) -> Result<(Carrier, link::Conversation), String> {
        match self {
            Way::Shell(command) => {
                let failed = |source| format!("{} cannot be started: {source}", shown(&command));
                let shell = link::start(&command).map_err(failed)?;
                let carrier = Carrier::Shell(Pid::from_child(&shell));
                let begun = link::Conversation::by_shell(task, shell, &command, outlets, told);
                Ok((carrier, begun.map_err(failed)?))
            }
            Way::Elsewhere(command, stem) => {
                let words = command.iter().map(|word| word.as_bytes().to_vec());
                let (host, by) = (stem.host, stem.orders.clone());
                // Fails when that host is gone.
                let _ = by.send(Order::Open { host, command: words.collect() });
                let begun = link::Conversation::by_another(task, stem, &command, outlets, told);
                Ok((Carrier::Elsewhere(by, host), begun))
            }
            Way::Joined(None) => Err("it has joined another job, or left".to_owned()),
            Way::Joined(Some(connection)) => {
                let failed = |source| format!("its connection cannot be used: {source}");
                let socket = connection.stream.as_fd().try_clone_to_owned().map_err(failed)?;
                let begun = link::Conversation::joined(task, connection, outlets, told);
                Ok((Carrier::Socket(socket), begun.map_err(failed)?))
            }
        }
    }
}

/// Streams of ranks on other hosts.
pub(super) type Streams = Vec<(u32, Stream, Relayed)>;

impl Hosts {
    /// Starts an agent on each host, unless that has joined; it looks whether its part can be done.
    pub(super) fn connect(
        spec: &Spec,
        remote: &Remote,
        name: &str,
        files: &[program::Found],
        processes: &mut Processes,
        inputs: &UnboundedSender<Input>,
    ) -> Result<(Hosts, Streams), RunError> {
        let system = |what| move |source| RunError::System { what, source };
        let agent = std::env::current_exe().map_err(system("asking where rma-run is"))?;
        let (input, readers) = input::of(spec);
        let (task, programs) = task::of_all(spec, remote, name, files, readers)?;
        let mut hosts = Hosts::unconnected(&remote.hosts);
        hosts.flow = readers.map(|readers| Arc::new(Flow::new(spec.ranks, readers)));
        hosts.input = input;
        hosts.inputs = Some(inputs.clone());
        if remote.copy {
            hosts.sources = Sources::open(files)?;
        }
        let mut streams = Vec::new();
        for ((host, part), wires) in (0..).zip(&remote.hosts).zip(tree::wires(remote)) {
            let task = Task {
                // Each has a name of its own: hosts may be containers that see each other's
                // processes.
                name: format!("{name}.{host}"),
                host,
                first: part.first,
                ranks: part.ranks,
                programs: task::with_ranks(&programs, &part.range()),
                ..task.clone()
            };
            let Wires { orders, said, branches, stem } = wires;
            let command = |elsewhere| remote.command(&part.name, &agent, "agent", elsewhere);
            let way = match (&remote.connections, stem) {
                (Some(connections), _) => Way::Joined(connections.take(&part.name)),
                (None, Some(stem)) => Way::Elsewhere(command(true), stem),
                (None, None) => Way::Shell(command(false)),
            };
            let mut outputs = Vec::new();
            for rank in part.range() {
                for stream in [Stream::Out, Stream::Err] {
                    let (sender, relayed) = link::relay(rank, stream, orders.clone());
                    outputs.push(sender);
                    streams.push((rank, stream, relayed));
                }
            }
            let failed = |why| RunError::Host { host: part.name.clone(), why, code: 1 };
            let told = (inputs.clone(), Arc::clone(&hosts.answered));
            let outlets = Outlets { outputs, branches };
            let (carrier, conversation) = way.begin(task, outlets, told).map_err(failed)?;
            let awaits_piece = Arc::clone(&conversation.awaits_piece);
            hosts.conversations.spawn(conversation.carry_on(said));
            if let Carrier::Shell(shell) = carrier {
                processes.add_helper(shell);
            }
            hosts.links.push(Link::new(part, orders, carrier, awaits_piece));
        }
        remote.connections.iter().for_each(Connections::dismiss);
        Ok((hosts, streams))
    }

    /// A job on this machine.
    pub(super) fn none() -> Hosts {
        Hosts::unconnected(&[])
    }

    fn unconnected(parts: &[HostPart]) -> Hosts {
        Hosts {
            links: Vec::new(),
            rumours: Rumours::new(parts.iter().map(HostPart::range).collect()),
            joined: HashSet::new(),
            meeting: Meeting::new(parts.len()),
            conversations: JoinSet::new(),
            inputs: None,
            answered: Arc::new(watch::Sender::new(vec![Answered::default(); parts.len()])),
            stops: 0,
            looks: 0,
            input: None,
            flow: None,
            sources: Sources::default(),
            is_started: false,
            is_held: false,
            is_over: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// What a host has said means that for the job. Things to be said to the user are notes.
    pub(super) fn hear(&mut self, host: usize, said: Said) -> Vec<Input> {
        let Some(link) = self.links.get_mut(host) else { return Vec::new() };
        let word = match said {
            Said::Word(word) => word,
            Said::Lost(why) => return self.lost(host, why),
        };
        let rank = match word {
            Word::Ready { cpus, address } => {
                link.is_ready = true;
                (link.cpus, link.address) = (cpus, address);
                self.start_if_ready();
                return Vec::new();
            }
            Word::NotStarted { why, code } => {
                let host = link.part.name.clone();
                return vec![Input::NotStarted(RunError::Host { host, why, code })];
            }
            Word::StartEnded => {
                link.has_started = true;
                return self.start_ended();
            }
            Word::Note { text } => return vec![Input::Note(text)],
            // One that is ready has its programs.
            Word::Lacks { .. } if link.is_ready => return Vec::new(),
            Word::Lacks { first, at } => return self.send_piece(host, first, at),
            Word::Pmi { told: Told::Met { pairs } } => return self.meet(host, pairs),
            Word::Stranger { why } => return vec![Input::Refused(why)],
            // Told where they arrive.
            Word::Beat | Word::Paused { .. } | Word::Looked { .. } => return Vec::new(),
            Word::Output { .. } | Word::OutputEnded { .. } => return Vec::new(),
            Word::Passed { .. } | Word::Unopened { .. } | Word::Shut { .. } => return Vec::new(),
            Word::Started { rank }
            | Word::Joined { rank }
            | Word::Part { rank, .. }
            | Word::Card { rank, .. }
            | Word::Query { rank, .. }
            | Word::Left { rank, .. }
            | Word::Departed { rank, .. }
            | Word::Disconnected { rank }
            | Word::Exited { rank, .. }
            | Word::CoreDumped { rank }
            | Word::OutOfMemory { rank }
            | Word::InputTaken { rank, .. }
            | Word::InputEnded { rank } => rank,
            Word::Pmi {
                told:
                    Told::Began { rank }
                    | Told::Ended { rank }
                    | Told::Closed { rank }
                    | Told::Missed { rank, .. }
                    | Told::Broken { rank }
                    | Told::Aborted { rank, .. }
                    | Told::Faulty { rank, .. },
            } => rank,
        };
        if !link.part.range().contains(&rank) {
            return self.lost(host, format!("its agent told of rank {rank}, which is elsewhere"));
        }
        self.hear_of(host, rank, word).into_iter().collect()
    }

    /// A piece of a program.
    fn send_piece(&mut self, host: usize, first: u32, at: u64) -> Vec<Input> {
        let link = &self.links[host];
        // Each is memory of this process until it is written.
        if link.awaits_piece.swap(true, Ordering::Relaxed) {
            return self.lost(host, "its agent asks for more than it takes".to_owned());
        }
        // Fails for a host that is gone.
        let _ = link.orders.send(Order::Piece { bytes: self.sources.piece(first, at) });
        Vec::new()
    }

    fn hear_of(&mut self, host: usize, rank: u32, word: Word) -> Option<Input> {
        let link = self.links.get_mut(host)?;
        let event = match word {
            Word::Started { .. } => {
                link.running.push(rank);
                Event::Started(rank)
            }
            Word::Joined { .. } => {
                self.joined.insert(rank);
                let messages = self.rumours.joined(rank);
                self.tell(messages);
                Event::Joined(rank)
            }
            Word::Pmi { told } => return Some(Input::Pmi(told)),
            Word::Part { mine, .. } => return Some(Input::Part { rank, mine }),
            Word::Card { card, .. } => return Some(Input::Card { rank, card }),
            Word::Query { of, .. } => return Some(Input::Query { rank, of }),
            Word::Left { failed, missed, .. } => {
                if failed {
                    let messages = self.rumours.gone(rank, crate::Fate::Failed);
                    self.tell(messages);
                }
                Event::Left { rank, failed, missed }
            }
            Word::Departed { fate, .. } => {
                let messages = self.rumours.gone(rank, fate);
                self.tell(messages);
                return None;
            }
            Word::Disconnected { .. } => {
                let messages = self.rumours.disconnected(rank);
                self.tell(messages);
                Event::Disconnected(rank)
            }
            Word::Exited { status, by_signal, .. } => {
                link.running.retain(|other| *other != rank);
                link.left.retain(|other| *other != rank);
                let number = status.cast_signed();
                let exit = if by_signal { Exit::Signal(number) } else { Exit::Status(number) };
                if by_signal {
                    let messages = self.rumours.gone(rank, crate::Fate::Failed);
                    self.tell(messages);
                }
                Event::Exited { rank, exit }
            }
            Word::CoreDumped { .. } => return Some(Input::CoreDumped(rank)),
            Word::OutOfMemory { .. } => return Some(Input::OutOfMemory(rank)),
            Word::InputTaken { bytes, .. } => return self.note_input(rank, Fed::Took(bytes)),
            Word::InputEnded { .. } => return self.note_input(rank, Fed::Ended),
            _ => return None,
        };
        Some(Input::Event(event))
    }

    /// A host is gone, or not to be believed.
    fn lost(&mut self, host: usize, why: String) -> Vec<Input> {
        let link = &mut self.links[host];
        if link.is_lost || self.is_over {
            link.is_lost = true;
            return Vec::new();
        }
        link.is_lost = true;
        // It may hang.
        link.kill();
        let name = link.part.name.clone();
        if !self.is_started {
            return vec![Input::NotStarted(RunError::Host { host: name, why, code: 1 })];
        }
        let (running, left) = (std::mem::take(&mut link.running), std::mem::take(&mut link.left));
        let ranks = match left.len() {
            0 => String::new(),
            1 => format!("; rank {} is lost with it", left[0]),
            _ => format!("; ranks {} are lost with it", ranges(&left)),
        };
        let mut inputs = vec![Input::HostLost(format!("host {name}: {why}{ranks}"))];
        for rank in left {
            let messages = self.rumours.gone(rank, crate::Fate::Failed);
            self.tell(messages);
            if !running.contains(&rank) {
                inputs.push(Input::Event(Event::Started(rank)));
            }
            inputs.push(Input::Event(Event::Exited { rank, exit: Exit::Lost }));
        }
        inputs.extend(self.start_ended());
        inputs
    }

    fn start_ended(&self) -> Vec<Input> {
        let all = self.links.iter().all(|link| link.has_started || link.is_lost);
        if all { vec![Input::Event(Event::StartEnded)] } else { Vec::new() }
    }

    fn start_if_ready(&mut self) {
        if self.is_started || self.is_held || !self.links.iter().all(|link| link.is_ready) {
            return;
        }
        self.is_started = true;
        self.order(|| Order::Start);
        self.pour_input();
    }

    /// What there is to say of the hosts once ranks are started there: whether they share CPUs, and
    /// a line for each.
    pub(super) fn map(&self) -> Option<(bool, Vec<String>)> {
        if !self.is_started {
            return None;
        }
        let over = self.links.iter().any(|link| link.part.ranks > link.cpus);
        let line = |link: &Link| {
            let Link { part, cpus, address, .. } = link;
            let ranks: Vec<u32> = part.range().collect();
            let (name, ranks) = (&part.name, ranges(&ranks));
            format!("host {name}: ranks {ranks} on {cpus} CPUs, reached at {address}")
        };
        Some((over, self.links.iter().map(line).collect()))
    }

    /// Hosts that all others wait for; none if this machine starts the ranks.
    pub(super) fn unready(&self) -> Option<Vec<&str>> {
        let unready = self.links.iter().filter(|link| !link.is_ready && !link.is_lost);
        (!self.is_empty()).then(|| unready.map(|link| link.part.name.as_str()).collect())
    }

    fn order(&self, order: impl Fn() -> Order) {
        // Fails for a host that is gone.
        self.links.iter().for_each(|link| _ = link.orders.send(order()));
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.order(|| Order::Signal { rank: None, number: signal.as_raw().unsigned_abs() });
    }

    pub(super) fn signal_rank(&self, rank: u32, signal: Signal) {
        let number = signal.as_raw().unsigned_abs();
        if let Some(link) = self.of(rank) {
            let _ = link.orders.send(Order::Signal { rank: Some(rank), number });
        }
    }

    /// The name of the host of a rank, if it is not on this machine.
    pub(super) fn name_of(&self, rank: u32) -> Option<&str> {
        self.of(rank).map(|link| link.part.name.as_str())
    }

    /// Whether a rank of this runtime has joined from there.
    pub(super) fn has_joined(&self, rank: u32) -> bool {
        self.joined.contains(&rank)
    }

    fn of(&self, rank: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.part.range().contains(&rank))
    }

    /// Starts no more ranks; says so the first time, and whether none was started at all.
    pub(super) fn hold(&mut self) -> bool {
        if std::mem::replace(&mut self.is_held, true) || self.links.is_empty() {
            return false;
        }
        self.order(|| Order::Hold);
        !self.is_started
    }

    /// Passes on what ranks are answered.
    pub(super) fn answer(&self, ranks: &[u32], frame: &SharedFrame) {
        for link in &self.links {
            let part = link.part.range();
            let ranks: Vec<u32> =
                ranks.iter().copied().filter(|rank| part.contains(rank)).collect();
            if !ranks.is_empty() {
                let _ =
                    link.orders.send(Order::Answer { ranks, message: frame.message().to_vec() });
            }
        }
    }

    fn tell(&self, messages: Vec<Message>) {
        for (ranks, message) in messages {
            if let Ok(frame) = SharedFrame::of(&message) {
                self.answer(&ranks, &frame);
            }
        }
    }

    /// Stops all ranks, as this process is about to be. Hosts are silent until
    /// [`resume`](Self::resume).
    pub(super) async fn stop(&mut self) {
        self.stops += 1;
        let number = self.stops;
        self.signal(Signal::STOP);
        self.order(|| Order::Pause { number });
        // A host that does not answer may take the silence for a failure.
        self.all_answered(move |answered| answered.paused == number).await;
    }

    /// Asks hosts what they [see](Self::seen) of their ranks, and waits for that, but not for long;
    /// gives the number of the question.
    pub(super) fn look(&mut self) -> impl Future<Output = u32> + use<> {
        self.looks += 1;
        let number = self.looks;
        self.order(|| Order::Look { number });
        // An answer to a later question is as good.
        let answered = self.all_answered(move |answered| answered.looked >= number);
        async move {
            answered.await;
            number
        }
    }

    /// Waits until all hosts that may answer have done so.
    fn all_answered<F: Fn(&Answered) -> bool>(
        &self,
        has_answered: F,
    ) -> impl Future<Output = ()> + use<F> {
        let may_answer = |link: &Link| link.is_ready && !link.is_lost;
        let asked: Vec<_> = self.links.iter().map(may_answer).collect();
        let mut answered = self.answered.subscribe();
        async move {
            let all = |answered: &Vec<Answered>| {
                let mut those = asked.iter().zip(answered).filter(|(asked, _)| **asked);
                those.all(|(_, answered)| has_answered(answered))
            };
            let _ = tokio::time::timeout(ANSWERING, answered.wait_for(all)).await;
        }
    }

    /// What hosts that have answered that [`look`](Self::look), or a later one, see of their ranks,
    /// and nothing of others; in the order of ranks.
    pub(super) fn seen(&self, number: u32) -> Vec<Seen> {
        let answered = self.answered.borrow();
        let all = self.links.iter().zip(&*answered).flat_map(|(link, answered)| {
            let is_new = answered.looked >= number && !link.is_lost;
            let seen = if is_new { &answered.seen[..] } else { &[] };
            let of = |at: usize| seen.get(at).cloned().unwrap_or_default();
            (0..link.part.ranks as usize).map(of)
        });
        all.collect()
    }

    /// This process goes on, and so do all ranks.
    pub(super) fn resume(&self) {
        self.order(|| Order::Resume);
        self.signal(Signal::CONT);
    }

    /// Kills what is left everywhere; hosts end when what was printed there is here.
    pub(super) fn end(&mut self, stuck: &[u32]) {
        self.is_over = true;
        self.order(|| Order::End { stuck: stuck.to_vec() });
        for link in self.links.iter().filter(|link| !link.is_ready && !link.is_lost) {
            // A shell may be about to log in. A host that has joined is told, and ends by itself.
            if let Carrier::Shell(_) | Carrier::Elsewhere(..) = link.carrier {
                link.kill();
            }
        }
    }

    /// Waits for all agents to end, but not for long; not at all if what they have to send is not
    /// waited for (`all_read` is false): an agent ends when all that its ranks printed is taken.
    /// Says which output may be cut short.
    pub(super) async fn close(
        &mut self,
        processes: &mut Processes,
        all_read: bool,
    ) -> Vec<LostOutput> {
        let mut lost = Vec::new();
        let patience = if all_read { CLOSING } else { Duration::ZERO };
        for patience in [patience, CLOSING] {
            let ended = async {
                while let Some(ended) = self.conversations.join_next().await {
                    let Ok(Ended { shell, lost: of_it }) = ended else { continue };
                    lost.extend(of_it);
                    let Some(mut shell) = shell else { continue };
                    // Before it is reaped: then its number may be another's.
                    let pid = Pid::from_child(&shell);
                    processes.release_helper(pid);
                    self.links.iter_mut().for_each(|link| link.forget(pid));
                    let _ = shell.wait();
                }
            };
            if tokio::time::timeout(patience, ended).await.is_ok() {
                break;
            }
            self.links.iter().for_each(Link::kill);
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FromLauncher;
    use std::io::Read;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    /// Hosts `a` and `b` of so many ranks, and what is ordered there.
    pub(super) fn two(
        ranks: [u32; 2],
    ) -> (Hosts, [UnboundedReceiver<Order>; 2], UnboundedReceiver<Input>) {
        let part = |name: &str, first, ranks| HostPart { name: name.into(), first, ranks };
        let parts = [part("a", 0, ranks[0]), part("b", ranks[0], ranks[1])];
        let (sender, inputs) = unbounded_channel();
        let mut hosts = Hosts::unconnected(&parts);
        hosts.inputs = Some(sender);
        let orders = parts.map(|part| {
            let (orders, ordered) = unbounded_channel();
            let link = Link::new(&part, orders, Carrier::Gone, Arc::default());
            hosts.links.push(Link { is_ready: true, cpus: 1, ..link });
            ordered
        });
        (hosts, orders, inputs)
    }

    #[test]
    fn each_rank_has_a_host() {
        let (hosts, ..) = two([2, 1]);
        let names = [0, 1, 2, 3].map(|rank| hosts.name_of(rank));
        assert_eq!(names, [Some("a"), Some("a"), Some("b"), None]);
    }

    #[test]
    fn a_rank_that_has_joined_stays_known() {
        let (mut hosts, ..) = two([1, 1]);
        hosts.hear(1, Said::Word(Word::Joined { rank: 1 }));
        hosts.hear(1, Said::Word(Word::Disconnected { rank: 1 }));
        assert_eq!([0, 1].map(|rank| hosts.has_joined(rank)), [false, true]);
        // Another host's rank is not its to tell of.
        hosts.hear(1, Said::Word(Word::Joined { rank: 0 }));
        assert!(!hosts.has_joined(0));
    }

    #[test]
    fn a_host_that_requests_more_than_it_takes_is_lost() {
        let (mut hosts, [mut a, mut b], _inputs) = two([1, 1]);
        let lacks = || Said::Word(Word::Lacks { first: 0, at: 0 });
        assert!(hosts.hear(0, lacks()).is_empty() && a.try_recv().is_err(), "it is ready");
        hosts.links[1].is_ready = false;
        for _ in 0..2 {
            assert!(hosts.hear(1, lacks()).is_empty());
            assert_eq!(b.try_recv().unwrap(), Order::Piece { bytes: Vec::new() });
            // As the writer does.
            hosts.links[1].awaits_piece.store(false, Ordering::Relaxed);
        }
        assert!(hosts.hear(1, lacks()).is_empty());
        let inputs = hosts.hear(1, lacks());
        let [Input::NotStarted(error)] = &inputs[..] else { panic!("{inputs:?}") };
        assert!(error.to_string().contains("its agent asks for more than it takes"), "{error}");
        assert_eq!(b.try_recv().unwrap(), Order::Piece { bytes: Vec::new() });
        assert!(b.try_recv().is_err(), "a second one is not read");
    }

    #[test]
    fn the_end_is_ordered_of_hosts_that_are_not_ready() {
        let (mut hosts, [_a, mut b], _inputs) = two([1, 1]);
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        hosts.links[1].carrier = Carrier::Socket(ours.into());
        hosts.links[1].is_ready = false;
        hosts.end(&[]);
        assert_eq!(b.try_recv().unwrap(), Order::End { stuck: Vec::new() });
        theirs.set_nonblocking(true).unwrap();
        let error = theirs.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "it is not cut");
    }

    /// Two that look at a time get what was seen for them, or later.
    #[test]
    fn an_answer_is_of_its_question_or_an_earlier_one() {
        let (mut hosts, ..) = two([1, 1]);
        drop((hosts.look(), hosts.look()));
        let seen = |process| Seen { process: Some(process), ..Seen::default() };
        hosts.answered.send_modify(|all| (all[0].looked, all[0].seen) = (1, vec![seen(7)]));
        assert_eq!(hosts.seen(1), [seen(7), Seen::default()]);
        assert_eq!(hosts.seen(2), [Seen::default(), Seen::default()]);
        hosts.answered.send_modify(|all| (all[1].looked, all[1].seen) = (2, vec![seen(8)]));
        assert_eq!(hosts.seen(1), [seen(7), seen(8)]);
        assert_eq!(hosts.seen(2), [Seen::default(), seen(8)]);
    }

    /// Its agent says that its connection has ended a while after it has: word of how it left is
    /// behind neither.
    #[test]
    fn a_rank_that_exits_is_gone_for_other_hosts_when_its_agent_says_so() {
        let (mut hosts, [_a, mut b], _inputs) = two([1, 1]);
        for rank in 0..2 {
            hosts.hear(rank as usize, Said::Word(Word::Joined { rank }));
        }
        let exited = Word::Exited { rank: 0, status: 3, by_signal: false };
        assert_eq!(hosts.hear(0, Said::Word(exited)).len(), 1);
        assert!(b.try_recv().is_err(), "it may have said how it left");
        hosts.hear(0, Said::Word(Word::Disconnected { rank: 0 }));
        let gone = FromLauncher::Gone { first: 0, count: 1, fate: crate::Fate::Failed };
        let message = SharedFrame::of(&gone).unwrap().message().to_vec();
        assert_eq!(b.try_recv().unwrap(), Order::Answer { ranks: vec![1], message });
    }
}
