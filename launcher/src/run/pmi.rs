//! PMI-1 for ranks that are programs of MPI: a task that serves those of this machine, over a
//! socket that each inherits. Until a rank speaks, that is all that it costs.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::driver::{Driver, Input};
use super::machine::{Event, PARTING_GRACE};
use super::report::How;
use super::spec::Spec;
use crate::inherited;
use crate::pmi::server::{Lines, Offer, Output, Pairs, PmiFault, Server, Told, mapping};

/// How long after a rank is gone those that wait for it are told so: the job knows by then how it
/// ended.
const BROKEN_AFTER: Duration = PARTING_GRACE.saturating_mul(2);
/// Bytes that are read of a rank at once.
const PIECE: usize = 4 << 10;

/// A rank's end of its socket, what names it to the rank, and this process' end.
pub(super) fn pair() -> io::Result<(OwnedFd, String, OwnedFd)> {
    let (ours, theirs) = Socket::pair()?;
    ours.set_nonblocking(true)?;
    let (theirs, name) = inherited::named(theirs)?;
    Ok((theirs, name, ours.into()))
}

/// What ranks are told, of nodes with so many ranks each.
pub(super) fn offer(spec: &Spec, job: &str, nodes: impl IntoIterator<Item = u32>) -> Option<Offer> {
    spec.pmi.then(|| Offer {
        space: format!("rma_{job}"),
        size: spec.ranks,
        mapping: mapping(nodes),
        firsts: [0].into_iter().chain(spec.more.iter().map(|program| program.first)).collect(),
    })
}

/// What the task is told.
#[derive(Debug)]
enum Heard {
    Started(u32, OwnedFd),
    Line(u32, Result<Vec<u8>, PmiFault>),
    Closed(u32),
    Gone(u32),
    Met(Pairs),
    Broken(u32),
}

/// The task that serves the ranks of this machine; it ends with this.
#[derive(Debug)]
pub(super) struct Pmi(UnboundedSender<Heard>);

impl Pmi {
    /// Serves those ranks.
    pub(super) fn start(offer: Offer, here: Range<u32>, inputs: UnboundedSender<Input>) -> Pmi {
        let (sender, heard) = unbounded_channel();
        let task = Task {
            is_alone: here.len() == offer.size as usize,
            server: Server::new(offer, here),
            answers: HashMap::new(),
            inputs,
            heard: sender.downgrade(),
        };
        tokio::spawn(task.serve(heard));
        Pmi(sender)
    }

    /// A rank runs, whose socket that is.
    pub(super) fn add(&self, rank: u32, socket: OwnedFd) {
        self.tell(Heard::Started(rank, socket));
    }

    /// The process of a rank has ended.
    pub(super) fn gone(&self, rank: u32) {
        let heard = self.0.clone();
        tokio::spawn(async move { part(rank, &heard).await });
    }

    /// All hosts have met, and their ranks have put that.
    pub(super) fn met(&self, pairs: Pairs) {
        self.tell(Heard::Met(pairs));
    }

    /// A rank, perhaps of another host, comes to no barrier any more.
    pub(super) fn broken(&self, rank: u32) {
        self.tell(Heard::Broken(rank));
    }

    fn tell(&self, heard: Heard) {
        // The task is there as long as this is.
        let _ = self.0.send(heard);
    }
}

struct Task {
    server: Server,
    answers: HashMap<u32, UnboundedSender<Vec<u8>>>,
    /// No rank of the job is elsewhere.
    is_alone: bool,
    inputs: UnboundedSender<Input>,
    /// For tasks that read.
    heard: tokio::sync::mpsc::WeakUnboundedSender<Heard>,
}

impl Task {
    async fn serve(mut self, mut heard: UnboundedReceiver<Heard>) {
        while let Some(heard) = heard.recv().await {
            match heard {
                Heard::Started(rank, socket) => self.start(rank, socket),
                Heard::Line(rank, line) => {
                    self.server.handle_line(rank, line.as_deref().map_err(|fault| *fault));
                }
                Heard::Closed(rank) => self.server.handle_closed(rank),
                Heard::Gone(rank) => self.server.handle_gone(rank),
                Heard::Met(pairs) => self.server.handle_met(pairs),
                Heard::Broken(rank) => self.server.handle_broken(rank),
            }
            while let Some(output) = self.server.poll_output() {
                self.carry_out(output);
            }
        }
    }

    fn start(&mut self, rank: u32, socket: OwnedFd) {
        let Some(heard) = self.heard.upgrade() else { return };
        // A rank whose socket cannot be watched is gone, for MPI.
        let Ok(stream) = UnixStream::from_std(Socket::from(socket)) else {
            return self.server.handle_gone(rank);
        };
        let (sender, answers) = unbounded_channel();
        self.answers.insert(rank, sender);
        tokio::spawn(converse(rank, stream, heard, answers));
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Answer { rank, bytes } => {
                // Fails when its connection is gone, which is told.
                if let Some(to) = self.answers.get(&rank) {
                    let _ = to.send(bytes);
                }
            }
            Output::HangUp { rank } => _ = self.answers.remove(&rank),
            Output::Told(Told::Met { pairs }) if self.is_alone => self.server.handle_met(pairs),
            Output::Told(told) => {
                // The driver is gone only when the job is over.
                let _ = self.inputs.send(Input::Pmi(told));
            }
        }
    }
}

/// Passes on what a rank says, a line at a time: the next one is read when that is answered. So a
/// rank takes no more memory than its longest line. Ends with the rank's connection, or with its
/// answers.
async fn converse(
    rank: u32,
    mut stream: UnixStream,
    heard: UnboundedSender<Heard>,
    mut answers: UnboundedReceiver<Vec<u8>>,
) {
    let mut lines = Lines::default();
    loop {
        let line = match lines.next() {
            Ok(Some(line)) => Ok(line),
            Err(fault) => Err(fault),
            Ok(None) => {
                tokio::select! {
                    ready = stream.readable() => if ready.is_err() { break },
                    // It has said nothing that could be answered: that is the end.
                    _ = answers.recv() => return,
                }
                if !read(&stream, &mut lines) {
                    break;
                }
                continue;
            }
        };
        if heard.send(Heard::Line(rank, line)).is_err() {
            return;
        }
        let Some(answer) = answers.recv().await else { return };
        if stream.write_all(&answer).await.is_err() {
            break;
        }
    }
    // The task that serves is gone only when the job is over.
    let _ = heard.send(Heard::Closed(rank));
    part(rank, &heard).await;
}

/// Says that a rank is gone: later, since mostly the job ends with it, and the others need not be
/// told.
async fn part(rank: u32, heard: &UnboundedSender<Heard>) {
    tokio::time::sleep(BROKEN_AFTER).await;
    // The task that serves is gone only when the job is over.
    let _ = heard.send(Heard::Gone(rank));
}

/// Reads what there is; false at the end.
fn read(stream: &UnixStream, lines: &mut Lines) -> bool {
    let mut piece = [0; PIECE];
    match stream.try_read(&mut piece) {
        Ok(0) => false,
        Ok(count) => {
            lines.push(&piece[..count]);
            true
        }
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

impl Driver<'_> {
    /// What ranks that speak PMI-1 do, means that for the job.
    pub(super) fn hear_pmi(&mut self, told: Told) {
        let event = match told {
            // Those here are answered, and hosts meet elsewhere.
            Told::Met { .. } => return,
            Told::Broken { rank } => return self.hosts.broken(rank),
            Told::Aborted { rank, status } => {
                Event::Broke { rank, how: How::Aborted(status.cast_signed()) }
            }
            Told::Faulty { rank, fault, said } => {
                if !said.is_empty() {
                    self.note_once(format!("rank {rank} said {said} at PMI_FD"));
                }
                Event::Broke { rank, how: How::Pmi(fault) }
            }
            // A rank of this runtime, besides: it says itself when it comes and goes.
            Told::Began { rank }
            | Told::Ended { rank }
            | Told::Closed { rank }
            | Told::Missed { rank, .. }
                if self.has_joined(rank) =>
            {
                return;
            }
            Told::Began { rank } => Event::Joined(rank),
            Told::Closed { rank } => Event::Disconnected(rank),
            Told::Ended { rank } => Event::Left { rank, failed: false, missed: None },
            Told::Missed { rank, of } => Event::Left { rank, failed: true, missed: Some(of) },
        };
        self.take(Input::Event(event));
    }
}
