//! Remote shells that an agent starts for its launcher, to further hosts: what those print is
//! passed on, and what is for them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::Arc;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::super::processes::Processes;
use super::super::spawn::watch;
use super::link::{CHATTER, PARTING, ended, start};
use super::remote::shown;
use super::talk::{Order, PIECE, WINDOW, Word};
use super::voice::Voice;

/// The remote shells of an agent.
#[derive(Default)]
pub(super) struct Shells {
    open: HashMap<u32, Open>,
    /// Each ends with its process, which is not reaped.
    talks: JoinSet<(u32, Child)>,
}

struct Open {
    group: Pid,
    to: UnboundedSender<Vec<u8>>,
}

impl Shells {
    /// Obeys an order that is for them; gives back another one.
    pub(super) fn obey(
        &mut self,
        order: Order,
        voice: &Voice,
        processes: &mut Processes,
    ) -> Option<Order> {
        match order {
            Order::Open { host, command } => self.open(host, command, voice, processes),
            Order::Pass { host, bytes } => self.pass(host, bytes),
            Order::Shut { host } => self.shut(host),
            order => return Some(order),
        }
        None
    }

    /// Starts that command, which is to start the agent of `host`; tells why that fails.
    fn open(&mut self, host: u32, command: Vec<Vec<u8>>, voice: &Voice, processes: &mut Processes) {
        let command: Vec<_> = command.into_iter().map(OsString::from_vec).collect();
        if let Err(error) = self.try_open(host, &command, voice, processes) {
            let why = format!("{} cannot be started: {error}", shown(&command));
            voice.say(&Word::Unopened { host, why });
        }
    }

    fn try_open(
        &mut self,
        host: u32,
        command: &[OsString],
        voice: &Voice,
        processes: &mut Processes,
    ) -> io::Result<()> {
        let mut child = start(command)?;
        let group = Pid::from_child(&child);
        processes.add_helper(group);
        let no_pipe = || io::Error::other("no pipe");
        let to = Sender::from_owned_fd(child.stdin.take().ok_or_else(no_pipe)?.into())?;
        let out = Receiver::from_owned_fd(child.stdout.take().ok_or_else(no_pipe)?.into())?;
        let err = Receiver::from_owned_fd(child.stderr.take().ok_or_else(no_pipe)?.into())?;
        let watched = watch(pidfd_open(group, PidfdFlags::NONBLOCK)?)?;
        let (passing, passed) = unbounded_channel();
        tokio::spawn(feed(to, passed));
        let complaints = tokio::spawn(pass(host, true, err, voice.clone()));
        let voice = voice.clone();
        self.talks.spawn(async move {
            pass(host, false, out, voice).await;
            ended(&watched).await;
            // Something that it leaves behind may keep its standard error.
            let _ = tokio::time::timeout(PARTING, complaints).await;
            (host, child)
        });
        self.open.insert(host, Open { group, to: passing });
        Ok(())
    }

    /// For its standard input.
    fn pass(&self, host: u32, bytes: Vec<u8>) {
        if let Some(open) = self.open.get(&host) {
            // Fails when it reads no more.
            let _ = open.to.send(bytes);
        }
    }

    /// Kills one, and what it has started here.
    fn shut(&self, host: u32) {
        if let Some(open) = self.open.get(&host) {
            // Fails when the group has no process left.
            let _ = kill_process_group(open.group, Signal::KILL);
        }
    }

    /// There is no launcher any more: the agents behind them end their ranks when they read that.
    pub(super) fn cut(&mut self) {
        self.open.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.talks.is_empty()
    }

    /// Waits until one has ended.
    pub(super) async fn next(&mut self) -> Option<(u32, Child)> {
        // None has panicked, and none is aborted.
        self.talks.join_next().await?.ok()
    }

    /// Tells how that one has ended.
    pub(super) fn ended(
        &mut self,
        (host, mut child): (u32, Child),
        voice: &Voice,
        processes: &mut Processes,
    ) {
        self.open.remove(&host);
        processes.release_helper(Pid::from_child(&child));
        // It has ended: an error says that other code reaped it.
        let status = child.wait().map_or(0, ExitStatusExt::into_raw);
        voice.say(&Word::Shut { host, status: status.cast_unsigned() });
    }
}

/// Writes what comes to the standard input of a remote shell, until there is no launcher.
async fn feed(mut to: Sender, mut passed: UnboundedReceiver<Vec<u8>>) {
    while let Some(bytes) = passed.recv().await {
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Passes on what a remote shell prints, no faster than the launcher reads; of its standard error,
/// only so much as a user may read.
async fn pass(host: u32, is_err: bool, mut from: Receiver, voice: Voice) {
    let room = Arc::new(Semaphore::new(WINDOW as usize));
    let mut passed = 0;
    let mut piece = vec![0; PIECE];
    // A semaphore that no task closes.
    while let Ok(permit) = Arc::clone(&room).acquire_many_owned(PIECE as u32).await {
        let count = match from.read(&mut piece).await {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        passed += count as u64;
        if !is_err || passed <= CHATTER {
            let bytes = piece[..count].to_vec();
            voice.say_with(&Word::Passed { host, is_err, bytes }, Some(permit));
        }
    }
    voice.say(&Word::Passed { host, is_err, bytes: Vec::new() });
}
