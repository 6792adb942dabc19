//! The ranks' processes, and whatever they started.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, kill_process_group,
    pidfd_open, waitid, waitpid,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;

use super::driver::Input;
use super::machine::{Event, Exit};
use super::spawn::watch;
use super::warden::{Orders, Warden};

/// How long killed orphans may take to disappear.
const SWEEP_ROUNDS: u32 = 400;
const SWEEP_PAUSE: Duration = Duration::from_millis(5);

/// Every process of the job. Dropping it kills and reaps them.
///
/// A rank that ended stays a zombie until the job does: so its number, which is also the number
/// of its process group, cannot become another process' while we may still signal the group.
#[derive(Debug)]
pub(super) struct Processes {
    ranks: Vec<(Pid, Child)>,
    /// Number of the first of them.
    first: u32,
    /// Leaders of groups that are no ranks, and end with this process.
    helpers: Vec<Pid>,
    warden: Option<Warden>,
    /// Where orphans become children of this process: the children it had before, which `exec`
    /// in a script may leave it with.
    inherited: Option<Vec<u32>>,
}

impl Processes {
    /// Ranks count from `first` on.
    pub(super) fn new(dedicated: bool, first: u32) -> io::Result<Processes> {
        let mut inherited = None;
        if dedicated {
            // Any process number means yes.
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
            inherited = Some(children());
        }
        let (ranks, helpers) = (Vec::new(), Vec::new());
        Ok(Processes { ranks, first, helpers, warden: None, inherited })
    }

    /// Has a warden watch over the job from now on.
    pub(super) fn start_warden(&mut self, job: &str) -> io::Result<()> {
        self.warden = Some(Warden::start(job)?);
        Ok(())
    }

    /// The pipe that new processes tell their group.
    pub(super) fn warden(&self) -> Orders {
        self.warden.as_ref().map(Warden::orders).unwrap_or_default()
    }

    /// Takes charge of the next rank; its end will be told to `inputs`.
    pub(super) fn add(&mut self, child: Child, inputs: UnboundedSender<Input>) -> io::Result<()> {
        let rank = self.first + self.ranks.len() as u32;
        let pid = Pid::from_child(&child);
        self.ranks.push((pid, child));
        if let Some(warden) = &mut self.warden {
            warden.watch(pid);
        }
        let watched = watch(pidfd_open(pid, PidfdFlags::NONBLOCK)?)?;
        tokio::spawn(async move {
            let (exit, dumped) = ended(&watched).await;
            if dumped {
                let _ = inputs.send(Input::CoreDumped(rank));
            }
            // The driver is gone only when the job is over.
            let _ = inputs.send(Input::Event(Event::Exited { rank, exit }));
        });
        Ok(())
    }

    /// Has the warden watch over a group that is no rank's.
    pub(super) fn add_helper(&mut self, group: Pid) {
        self.helpers.push(group);
        if let Some(warden) = &mut self.warden {
            warden.watch(group);
        }
    }

    /// Its process is about to be reaped.
    pub(super) fn release_helper(&mut self, group: Pid) {
        self.helpers.retain(|helper| *helper != group);
        if let Some(warden) = &mut self.warden {
            warden.release(group);
        }
    }

    /// The process of a rank that was started.
    pub(super) fn id(&self, rank: u32) -> Option<u32> {
        let place = rank.checked_sub(self.first)?;
        self.ranks.get(place as usize).map(|(_, child)| child.id())
    }

    /// Sends a signal to every process of every rank.
    pub(super) fn signal(&self, signal: Signal) {
        for (group, _) in &self.ranks {
            // Fails when the group has no process left.
            let _ = kill_process_group(*group, signal);
        }
    }

    /// Sends a signal to every process of one rank.
    pub(super) fn signal_rank(&self, rank: u32, signal: Signal) {
        let place = rank.checked_sub(self.first);
        if let Some((group, _)) = place.and_then(|place| self.ranks.get(place as usize)) {
            let _ = kill_process_group(*group, signal);
        }
    }

    /// Has another warden watch if one ended; why not, if there is none any more.
    pub(super) fn keep_warden(&mut self) -> io::Result<()> {
        let Some(warden) = &mut self.warden else { return Ok(()) };
        let ranks = self.ranks.iter().map(|(group, _)| *group);
        let kept = warden.replace_if_gone(ranks.chain(self.helpers.iter().copied()));
        if kept.is_err() {
            self.warden = None;
        }
        kept
    }

    /// Reaps orphans that ended; called when any child ended.
    pub(super) fn reap_orphans(&self) {
        for pid in self.orphans() {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }

    /// Kills what is left of the job. `stuck` are ranks that do not even end by SIGKILL; orphans
    /// are not looked for while ranks are being started (`all_started` is false): a rank that is
    /// would be taken for one, and the kernel ends it with the thread that starts it.
    pub(super) async fn end(&mut self, stuck: &[u32], all_started: bool) {
        self.signal(Signal::KILL);
        let mut rank = self.first;
        let warden = &mut self.warden;
        self.ranks.retain_mut(|(pid, child)| {
            let keep = stuck.contains(&rank);
            rank += 1;
            if !keep {
                reap(*pid, child, warden.as_mut());
            }
            keep
        });
        if !all_started {
            return;
        }
        for _ in 0..SWEEP_ROUNDS {
            let orphans = self.orphans();
            if orphans.is_empty() {
                return;
            }
            for pid in orphans {
                let _ = kill_process(pid, Signal::KILL);
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
            tokio::time::sleep(SWEEP_PAUSE).await;
        }
    }

    /// Children of this process that are neither ranks nor the warden, nor helpers.
    fn orphans(&self) -> Vec<Pid> {
        let Some(inherited) = &self.inherited else { return Vec::new() };
        let ours = self.ranks.iter().map(|(_, child)| child.id());
        let helpers = self.helpers.iter().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        let ours = ours.chain(self.warden.iter().map(Warden::id)).chain(helpers);
        let ours: HashSet<u32> = ours.collect();
        children()
            .into_iter()
            .filter(|number| !ours.contains(number) && !inherited.contains(number))
            .filter_map(|number| Pid::from_raw(i32::try_from(number).ok()?))
            .collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for helper in &self.helpers {
            let _ = kill_process_group(*helper, Signal::KILL);
        }
        for (pid, mut child) in self.ranks.drain(..) {
            // Without waiting for one that does not end: init gets it.
            if let Some(warden) = &mut self.warden {
                warden.release(pid);
            }
            let _ = child.try_wait();
        }
    }
}

fn reap(pid: Pid, child: &mut Child, warden: Option<&mut Warden>) {
    if let Some(warden) = warden {
        warden.release(pid);
    }
    // Fails only if other code reaped it.
    let _ = child.wait();
}

/// Process numbers of all children of all threads; none on a kernel that does not tell.
fn children() -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let files = threads.filter_map(Result::ok).map(|thread| thread.path().join("children"));
    let texts = files.filter_map(|file| std::fs::read_to_string(file).ok());
    let text = texts.collect::<Vec<_>>().join(" ");
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Waits for the end of a process without reaping it; how it ended, and whether the kernel wrote
/// its memory to a core file.
async fn ended(watched: &AsyncFd<OwnedFd>) -> (Exit, bool) {
    use std::os::fd::AsFd;
    loop {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        match waitid(WaitId::PidFd(watched.get_ref().as_fd()), options) {
            Ok(Some(status)) => {
                let exit = match status.terminating_signal() {
                    Some(signal) => Exit::Signal(signal),
                    None => Exit::Status(status.exit_status().unwrap_or(0)),
                };
                return (exit, status.dumped());
            }
            Ok(None) => {}
            Err(rustix::io::Errno::INTR) => continue,
            // Other code reaped it, and knows its status alone.
            Err(_) => return (Exit::Status(1), false),
        }
        match watched.readable().await {
            Ok(mut guard) => guard.clear_ready(),
            Err(_) => return (Exit::Status(1), false),
        }
    }
}
