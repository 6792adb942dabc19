//! The agent: `rma-run agent` or `join`, which starts the ranks of a host for a launcher elsewhere,
//! and tells it all that a launcher knows of ranks that are its own. It ends with its connection.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;

use super::super::bootstrap::{self, Plan};
use super::super::driver::{Input, until};
use super::super::input::{self, Fed, Feeds};
use super::super::machine::{ENDING, Event, Exit, PARTING_GRACE};
use super::super::output::{Stream, receiver};
use super::super::pmi::Pmi;
use super::super::processes::Processes;
use super::super::query;
use super::super::report::{RunError, nonzero};
use super::super::spec::{Program, Spec};
use super::super::start::{self, Newborn, Starter};
use super::super::{capacity, cpus, doctor, groups, program, signals, topology};
use super::address;
use super::branch::Shells;
use super::copy::Copier;
use super::parting;
use super::streams::{StreamOfRank, relay};
use super::talk::{BEAT, Order, Print, Task, TaskProgram, WINDOW, Word};
use super::voice::{self, Spoken, Voice, complain, listen};
use crate::bulletin;
use crate::client::{Fate, Host};
use crate::seal::{Opener, Sealer, SharedFrame};
use crate::start::Secret;
use crate::wire::{self, Frame, FromLauncher};

/// An address that this host alone reaches.
const LOOP_BACK: &str = "127.0.0.1";
/// How long the launcher may take for its first order.
const PATIENCE: Duration = Duration::from_secs(60);
/// Ranks that lost the launcher have so long to notice, and to say why, before they get SIGTERM.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// From SIGKILL until ranks that do not end are given up.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Is the agent of a launcher that is at the other end of standard input and output, or, if more
/// words stand behind the first argument, what a doctor has started; returns what to exit with.
pub fn agent() -> u8 {
    if let Some(code) = doctor::assist(std::env::args_os().skip(2)) {
        return code;
    }
    if rustix::termios::isatty(rustix::stdio::stdin()) {
        return complain("the agent is started by rma-run --hosts, which speaks with it");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("starting the event loop failed: {error}")),
    };
    let seals = match voice::greet(PATIENCE) {
        Ok(seals) => seals,
        // A launcher that was ended at once.
        Err(error) if wire::is_end(&error) => return 1,
        Err(error) => return complain(&format!("the launcher did not begin with a key: {error}")),
    };
    let ssh = std::env::var("SSH_CONNECTION").ok();
    let ends = Ends {
        from: Box::new(io::stdin()),
        to: Box::new(io::stdout()),
        seals,
        has_joined: false,
        patience: PATIENCE,
        address: Whereabouts::Ssh(ssh),
    };
    runtime.block_on(async {
        let (sender, inputs) = unbounded_channel();
        match signals::listen(&sender) {
            Ok(()) => serve(ends, (sender, inputs)).await,
            Err(error) => complain(&format!("watching for signals failed: {error}")),
        }
    })
}

/// The connection to the launcher.
pub(super) struct Ends {
    pub(super) from: Box<dyn Read + Send>,
    pub(super) to: Box<dyn Write + Send>,
    pub(super) seals: (Sealer, Opener),
    /// It has joined; else a remote shell has started it.
    pub(super) has_joined: bool,
    /// Silence after which a launcher that has not said yet what is to be done is gone.
    pub(super) patience: Duration,
    pub(super) address: Whereabouts,
}

/// What this host knows of its own address.
pub(super) enum Whereabouts {
    /// What ssh says of its connection, if it does.
    Ssh(Option<String>),
    /// It is that one, if there is one.
    Known(Option<String>),
}

/// Waits until the launcher says what is to be done; else what to exit with.
async fn task(
    orders: &mut UnboundedReceiver<Order>,
    inputs: &mut UnboundedReceiver<Input>,
    (voice, has_joined): (&Voice, bool),
    patience: Duration,
) -> Result<Task, u8> {
    let mut beat = tokio::time::interval(BEAT);
    let (mut heard, mut is_paused) = (Instant::now(), false);
    loop {
        let silent = (!is_paused).then(|| heard + patience);
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(Order::Prepare { task }) => return Ok(*task),
                Some(Order::Beat) if has_joined => heard = Instant::now(),
                Some(Order::Look { number }) if has_joined => {
                    voice.say(&Word::Looked { number, ranks: Vec::new() });
                }
                Some(Order::Pause { number }) if has_joined => {
                    is_paused = true;
                    voice.say(&Word::Paused { number });
                }
                Some(Order::Resume) if has_joined => (heard, is_paused) = (Instant::now(), false),
                Some(Order::End { .. }) if has_joined => {
                    complain("the job has no rank for this host");
                    return Err(0);
                }
                None if has_joined => {
                    return Err(complain("rma-run is gone, or its connection; no rank was started"));
                }
                // A launcher that was ended at once.
                None | Some(Order::End { .. }) => return Err(1),
                Some(_) => return Err(complain("the launcher did not begin with a job")),
            },
            Some(input) = inputs.recv() => if let Input::Signal(signal) = input
                && ENDING.contains(&signal)
            {
                complain(&format!("got {}", signals::name(signal.as_raw())));
                return Err(nonzero(128 + signal.as_raw()));
            },
            _ = beat.tick(), if has_joined => voice.say(&Word::Beat),
            () = until(silent) => {
                let patience = patience.as_secs_f64();
                return Err(complain(&format!("the launcher has said nothing for {patience} s")));
            }
        }
    }
}

type Inputs = (UnboundedSender<Input>, UnboundedReceiver<Input>);

/// Is the agent of the launcher at the other end, and gets this process' signals from `inputs`.
pub(super) async fn serve(ends: Ends, (sender, mut inputs): Inputs) -> u8 {
    let (has_joined, (sealer, opener)) = (ends.has_joined, ends.seals);
    let (started, listening) = (Voice::start(ends.to, sealer), listen(ends.from, opener));
    let ((voice, spoken), mut orders) = match (started, listening) {
        (Ok(voice), Ok(orders)) => (voice, orders),
        (Err(error), _) | (_, Err(error)) => {
            return complain(&format!("starting a thread failed: {error}"));
        }
    };
    let task = task(&mut orders, &mut inputs, (&voice, has_joined), ends.patience).await;
    let task = match task {
        Ok(task) => task,
        Err(code) => return code,
    };
    let (mut shells, mut early) = (Shells::default(), Vec::new());
    let prepared = match watched_over(&task, &voice) {
        Ok(mut processes) => {
            let meanwhile = (&mut shells, &voice, &mut processes);
            prepare(task, ends.address, (&mut orders, &mut inputs), &mut early, meanwhile)
                .await
                .map(|prepared| (prepared, processes))
        }
        Err(error) => Err(Unprepared::Declined(error)),
    };
    let (prepared, processes) = match prepared {
        Ok(prepared) => prepared,
        Err(Unprepared::Declined(error)) => {
            // What they print would be waited for.
            shells.cut();
            return decline(&error, voice, spoken, has_joined).await;
        }
        Err(Unprepared::Ended(code)) => return code,
    };
    let Prepared { cpus, address, .. } = &prepared;
    if prepared.task.hosts.len() > 1 && address == LOOP_BACK {
        let remedy = match has_joined {
            false => "name hosts by addresses, or by names that they can look up",
            true => "join by an address that other hosts have, too, or say --address",
        };
        let text = format!(
            "host {}: no address of it is known that other hosts reach, so its ranks are at \
             {LOOP_BACK}: {remedy}",
            prepared.task.host_name()
        );
        voice.say(&Word::Note { text });
    }
    voice.say(&Word::Ready { cpus: cpus.len() as u32, address: address.clone() });
    let kept = (processes, shells);
    let mut agent = match Agent::new(prepared, (voice.clone(), has_joined), sender, kept).await {
        Ok(agent) => agent,
        Err(error) => return decline(&error, voice, spoken, has_joined).await,
    };
    // The last voice is the agent's.
    drop(voice);
    for order in early {
        agent.obey(order).await;
    }
    let code = agent.carry_on(inputs, orders).await;
    // A connection that was cut takes nothing, and a launcher that takes nothing for so long is
    // gone.
    let patience = if agent.is_cut { Duration::ZERO } else { agent.task.silence };
    drop(agent);
    let _ = tokio::time::timeout(patience, spoken).await;
    code
}

/// What takes charge of the processes of this host.
fn watched_over(task: &Task, voice: &Voice) -> Result<Processes, RunError> {
    let what = "becoming the parent of orphans";
    let processes = Processes::new(true, task.first);
    let mut processes = processes.map_err(|source| RunError::System { what, source })?;
    if let Err(error) = processes.start_warden(&task.name) {
        voice.say(&Word::Note { text: super::super::driver::unwatched(&error) });
    }
    Ok(processes)
}

/// Why a task cannot be done here.
enum Unprepared {
    Declined(RunError),
    /// There is no launcher any more, or this process is to end; what to exit with.
    Ended(u8),
}

/// Looks whether a task can be done here, which takes as long as files and names do; meanwhile,
/// hosts are reached by this one. Other orders are kept.
async fn prepare(
    task: Task,
    address: Whereabouts,
    (orders, inputs): (&mut UnboundedReceiver<Order>, &mut UnboundedReceiver<Input>),
    early: &mut Vec<Order>,
    (shells, voice, processes): (&mut Shells, &Voice, &mut Processes),
) -> Result<Prepared, Unprepared> {
    let (done, mut prepared) = oneshot::channel();
    let (passing, pieces) = mpsc::channel();
    let copier = Copier {
        voice: voice.clone(),
        pieces,
        copies: task.copies,
        explains: task.job.explain,
        host: task.host_name().to_owned(),
    };
    // Fails when the agent no longer waits for it.
    let prepare = move || _ = done.send(Prepared::new(task, address, &copier));
    let started = std::thread::Builder::new().name("prepare".into()).spawn(prepare);
    let what = "starting a thread";
    started.map_err(|source| Unprepared::Declined(RunError::System { what, source }))?;
    loop {
        tokio::select! {
            prepared = &mut prepared => {
                let died = || RunError::System { what, source: io::ErrorKind::Other.into() };
                return prepared.unwrap_or_else(|_| Err(died())).map_err(Unprepared::Declined);
            }
            order = orders.recv() => match order {
                None | Some(Order::End { .. }) => return Err(Unprepared::Ended(1)),
                // Fails when that thread no longer waits for it.
                Some(Order::Piece { bytes }) => _ = passing.send(bytes),
                Some(order) => early.extend(shells.obey(order, voice, processes)),
            },
            Some(input) = inputs.recv() => if let Input::Signal(signal) = input
                && ENDING.contains(&signal)
            {
                complain(&format!("got {}", signals::name(signal.as_raw())));
                return Err(Unprepared::Ended(nonzero(128 + signal.as_raw())));
            },
            Some(ended) = shells.next(), if !shells.is_empty() => {
                shells.ended(ended, voice, processes);
            }
        }
    }
}

/// Tells the launcher why no rank can be started here; what to exit with.
async fn decline(error: &RunError, voice: Voice, spoken: Spoken, has_joined: bool) -> u8 {
    voice.say(&Word::NotStarted { why: error.to_string(), code: error.exit_code() });
    drop(voice);
    let _ = tokio::time::timeout(PATIENCE, spoken).await;
    // A user who has started the agent by a remote shell reads it from the launcher.
    if has_joined { complain(&error.to_string()) } else { 1 }
}

/// A task that can be done here.
struct Prepared {
    task: Task,
    spec: Spec,
    programs: Vec<program::Found>,
    cpus: Vec<u32>,
    descriptors: capacity::Descriptors,
    address: String,
    copies: Vec<File>,
}

impl Prepared {
    fn new(task: Task, address: Whereabouts, copier: &Copier) -> Result<Prepared, RunError> {
        let system = |what| move |source| RunError::System { what, source };
        let own = Print::of(Path::new("/proc/self/exe"))
            .map_err(system("reading the program of the agent"))?;
        if own != task.launcher_print {
            let path = std::env::current_exe().unwrap_or_default();
            return Err(RunError::OtherBuild { path, what: "rma-run" });
        }
        let spec = spec(&task);
        start::check_environment(&spec)?;
        let (programs, copies) = copier.programs(&spec, &task.programs)?;
        let open = capacity::Open::of_ranks(spec.pmi);
        capacity::check(task.ranks, open)?;
        let descriptors = capacity::raise_descriptors(task.ranks, open);
        let cpus = cpus::available().map_err(system("asking for this process' CPUs"))?;
        let address = match address {
            Whereabouts::Known(address) => address,
            Whereabouts::Ssh(ssh) => address::of_host(&task.hosts, task.host as usize, ssh),
        };
        // Networks that are no internet have addresses of their own.
        let address = address.unwrap_or_else(|| LOOP_BACK.to_owned());
        Ok(Prepared { task, spec, programs, cpus, descriptors, address, copies })
    }
}

/// What one machine's launcher would be told.
fn spec(task: &Task) -> Spec {
    let os = |bytes: &Vec<u8>| OsString::from_vec(bytes.clone());
    let program = |task: &TaskProgram| Program {
        first: task.first,
        program: os(&task.program),
        args: task.args.iter().map(os).collect(),
        dir: Some(os(&task.dir).into()),
        env: task.env.iter().map(|(name, value)| (os(name), value.as_ref().map(os))).collect(),
    };
    let mut programs = task.programs.iter().map(program);
    let mut spec = Spec::new("", task.job.size);
    if let Some(Program { first: _, program, args, dir, env }) = programs.next() {
        (spec.program, spec.args, spec.dir, spec.env) = (program, args, dir, env);
    }
    spec.more = programs.collect();
    spec.dedicated = true;
    spec.pmi = task.pmi.is_some();
    spec
}

/// What the ranks here are told, and how they are known: by a secret of this host alone.
fn plan(task: &Task, cpus: Vec<u32>, address: String) -> io::Result<Plan> {
    let host = Host { first: task.first, ranks: task.ranks, address };
    let job = crate::Job { cores: cpus.len() as u32, host: Some(host), ..task.job.clone() };
    let places = topology::places(&cpus, task.bind, task.map_by);
    Ok(Plan { secret: Secret(wire::random()?), job, places })
}

struct Agent {
    task: Task,
    voice: Voice,
    has_joined: bool,
    /// To hosts that are reached by this one.
    shells: Shells,
    /// Programs that are copied here, which are gone when these are closed.
    _copies: Vec<File>,
    sender: UnboundedSender<Input>,
    processes: Processes,
    pmi: Option<Pmi>,
    /// Not yet started.
    starter: Option<Starter>,
    hold: mpsc::Sender<()>,
    is_starting: bool,
    running: Vec<u32>,
    /// What ranks tell, and the processes of those that have joined.
    bulletin: Arc<OwnedFd>,
    joined: HashMap<u32, u32>,
    answers: HashMap<u32, UnboundedSender<Frame>>,
    readers: JoinSet<()>,
    stop: watch::Sender<bool>,
    /// Bytes that may be sent of each stream.
    windows: HashMap<StreamOfRank, Arc<Semaphore>>,
    /// Pipes to ranks that read what the launcher sends.
    feeds: Feeds,
    oom_kills: groups::OomKills,
    heard: Instant,
    is_paused: bool,
    /// There is no launcher any more.
    is_cut: bool,
    /// Ranks are ended before the job is.
    is_leaving: bool,
    is_ending: bool,
    term_at: Option<Instant>,
    kill_at: Option<Instant>,
    give_up_at: Option<Instant>,
}

impl Agent {
    async fn new(
        prepared: Prepared,
        (voice, has_joined): (Voice, bool),
        sender: UnboundedSender<Input>,
        (processes, shells): (Processes, Shells),
    ) -> Result<Agent, RunError> {
        let Prepared { task, spec, programs, cpus, descriptors, address, copies } = prepared;
        let system = |what| move |source| RunError::System { what, source };
        let plan = plan(&task, cpus, address).map_err(system("drawing a secret"))?;
        let plan = Arc::new(plan);
        let (listener, port) = bootstrap::listen()?;
        let (told, strangers) = (sender.clone(), descriptors.strangers);
        tokio::spawn(bootstrap::serve(listener, Arc::clone(&plan), told, strangers));
        let here = task.first..task.first + task.ranks;
        let pmi = task.pmi.clone().map(|offer| Pmi::start(offer, here, sender.clone()));
        let (hold, held) = mpsc::channel();
        let created = bulletin::create(task.job.size);
        let (bulletin, named) = created.map_err(system("reserving memory for what ranks tell"))?;
        let starter = Starter {
            spec,
            common: start::Common {
                job: task.name.clone(),
                programs,
                plan,
                address: port,
                descriptors: descriptors.ranks,
                bulletin: (Arc::clone(&bulletin), named),
                oom_score: start::oom_score(),
                input: task.input.map_or(input::Streams::Nothing, input::Streams::Piped),
                node: Some(task.host),
            },
            files: (0..task.ranks).map(|_| [None, None]).collect(),
            warden: processes.warden(),
            inputs: sender.clone(),
            hold: held,
        };
        let here = task.first..task.first + task.ranks;
        let feeds = task.input.map_or_else(Feeds::default, |readers| Feeds::new(here, readers));
        Ok(Agent {
            task,
            voice,
            has_joined,
            shells,
            _copies: copies,
            sender,
            processes,
            pmi,
            starter: Some(starter),
            hold,
            is_starting: false,
            running: Vec::new(),
            bulletin,
            joined: HashMap::new(),
            answers: HashMap::new(),
            readers: JoinSet::new(),
            stop: watch::Sender::new(false),
            windows: HashMap::new(),
            feeds,
            oom_kills: groups::OomKills::begin(),
            heard: Instant::now(),
            is_paused: false,
            is_cut: false,
            is_leaving: false,
            is_ending: false,
            term_at: None,
            kill_at: None,
            give_up_at: None,
        })
    }

    /// Until nothing is left here; returns what to exit with.
    async fn carry_on(
        &mut self,
        mut inputs: UnboundedReceiver<Input>,
        mut orders: UnboundedReceiver<Order>,
    ) -> u8 {
        let mut beat = tokio::time::interval(BEAT);
        loop {
            let all_ended = !self.is_starting && self.running.is_empty();
            let gives_up = self.give_up_at.is_some_and(|at| at <= Instant::now());
            if (self.is_cut && all_ended) || gives_up {
                let stuck = std::mem::take(&mut self.running);
                self.processes.end(&stuck, !self.is_starting).await;
                return 1;
            }
            if self.is_leaving && all_ended && !self.is_ending {
                // Ranks need no end any more, and the launcher may take its time to read.
                (self.term_at, self.kill_at, self.give_up_at) = (None, None, None);
                self.end(&[]).await;
            }
            if self.is_ending && self.readers.is_empty() && self.shells.is_empty() {
                return u8::from(self.is_leaving);
            }
            let silent = (!self.is_paused && !self.is_cut).then(|| self.heard + self.task.silence);
            let deadline = [silent, self.term_at, self.kill_at, self.give_up_at];
            tokio::select! {
                order = orders.recv(), if !self.is_cut => match order {
                    Some(order) => {
                        self.heard = Instant::now();
                        self.obey(order).await;
                    }
                    None => self.cut("rma-run is gone, or its connection"),
                },
                input = inputs.recv() => if let Some(input) = input { self.take(input) },
                _ = beat.tick() => self.voice.say(&Word::Beat),
                _ = self.readers.join_next(), if !self.readers.is_empty() => {}
                Some(ended) = self.shells.next(), if !self.shells.is_empty() => {
                    self.shells.ended(ended, &self.voice, &mut self.processes);
                }
                () = until(deadline.into_iter().flatten().min()) => self.tick(),
            }
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if !self.is_paused && !self.is_cut && self.heard + self.task.silence <= now {
            let silence = self.task.silence.as_secs_f64();
            self.cut(&format!("rma-run has said nothing for {silence} s"));
        }
        if self.term_at.take_if(|at| *at <= now).is_some() {
            self.processes.signal(Signal::TERM);
            // A stopped process ends in order, too.
            self.processes.signal(Signal::CONT);
            self.kill_at = Some(now + self.task.kill_after);
        }
        if self.kill_at.take_if(|at| *at <= now).is_some() {
            self.processes.signal(Signal::KILL);
            self.give_up_at = Some(now + KILL_GRACE);
        }
    }

    /// There is no launcher any more.
    fn cut(&mut self, why: &str) {
        self.is_cut = true;
        self.shells.cut();
        if self.is_ending {
            self.give_up_at.get_or_insert(Instant::now());
            return;
        }
        if !self.is_leaving {
            self.leave(why);
        }
        // No launcher reads any more what ranks print.
        self.windows.values().for_each(|window| window.close());
        self.feeds.cut();
    }

    /// This host ends before the job does: its ranks hear that all others are gone, and are ended.
    /// What they print until then is the launcher's, if there is one.
    fn leave(&mut self, why: &str) {
        if std::mem::replace(&mut self.is_leaving, true) {
            self.give_up_at.get_or_insert(Instant::now());
            return;
        }
        if self.is_ending {
            return;
        }
        let _ = complain(&format!("{why}; ranks of this host are ended"));
        self.hold();
        let (first, behind) = (self.task.first, self.task.first + self.task.ranks);
        for others in [0..first, behind..self.task.job.size] {
            let count = others.len() as u32;
            let gone = FromLauncher::Gone { first: others.start, count, fate: Fate::Failed };
            if let Ok(frame) = SharedFrame::of(&gone)
                && count > 0
            {
                self.answers.values().for_each(|to| _ = to.send(Arc::clone(&frame)));
            }
        }
        self.term_at = Some(Instant::now() + LAST_WORDS);
    }

    /// Ends what is left here, but for ranks that even a kill does not end; when what was printed
    /// is taken, all is over.
    async fn end(&mut self, stuck: &[u32]) {
        self.hold();
        self.is_ending = true;
        self.processes.end(stuck, !self.is_starting).await;
        self.stop.send_replace(true);
    }

    fn hold(&mut self) {
        self.starter = None;
        // Fails only when the thread that starts ranks is gone.
        let _ = self.hold.send(());
    }

    async fn obey(&mut self, order: Order) {
        let order = self.shells.obey(order, &self.voice, &mut self.processes);
        let Some(order) = order else { return };
        match order {
            Order::Start => {
                let Some(starter) = self.starter.take() else { return };
                self.is_starting = true;
                if let Err(error) = starter.start() {
                    self.is_starting = false;
                    let why = format!("starting a thread that starts ranks failed: {error}");
                    self.voice.say(&Word::NotStarted { why, code: 1 });
                }
            }
            Order::Hold => self.hold(),
            Order::Signal { rank, number } => {
                let signal = i32::try_from(number).ok().and_then(Signal::from_named_raw);
                match (rank, signal) {
                    (Some(rank), Some(signal)) => self.processes.signal_rank(rank, signal),
                    (None, Some(signal)) => self.processes.signal(signal),
                    (_, None) => {}
                }
            }
            Order::Answer { ranks, message } => {
                let Ok(frame) = SharedFrame::from_bytes(message) else { return };
                for rank in ranks {
                    if let Some(to) = self.answers.get(&rank) {
                        // Fails when the rank is gone.
                        let _ = to.send(Arc::clone(&frame));
                    }
                }
            }
            Order::Taken { rank, is_err, bytes } => {
                if let Some(window) = self.windows.get(&(rank, is_err)) {
                    window.add_permits(bytes.min(WINDOW) as usize);
                }
            }
            Order::Input { bytes } => self.feeds.pass(&bytes),
            Order::Met { pairs } => {
                if let Some(pmi) = &self.pmi {
                    pmi.met(pairs);
                }
            }
            Order::Broken { rank } => self.pmi.iter().for_each(|pmi| pmi.broken(rank)),
            Order::Pause { number } => {
                self.is_paused = true;
                self.voice.say(&Word::Paused { number });
            }
            Order::Resume => self.is_paused = false,
            Order::Look { number } => {
                let ranks = self.task.first..self.task.first + self.task.ranks;
                let process = |rank: u32| {
                    let joined = self.joined.get(&rank).copied();
                    joined.or_else(|| self.processes.id(rank))
                };
                let bulletin = Some(self.bulletin.as_fd());
                let ranks = query::see(bulletin, self.task.job.size, ranks, process);
                self.voice.say(&Word::Looked { number, ranks });
            }
            Order::End { stuck } => self.end(&stuck).await,
            // Those of shells are obeyed.
            _ => {}
        }
    }

    fn take(&mut self, input: Input) {
        let word = match input {
            Input::Started(newborn) => match self.adopt(newborn) {
                Ok(rank) => Word::Started { rank },
                Err(error) => Word::NotStarted { why: error.to_string(), code: 1 },
            },
            Input::NotStarted(error) => {
                Word::NotStarted { why: error.to_string(), code: error.exit_code() }
            }
            Input::Event(Event::StartEnded) => {
                self.is_starting = false;
                self.processes.reap_orphans();
                Word::StartEnded
            }
            Input::Event(Event::Left { rank, failed, missed }) => {
                Word::Left { rank, failed, missed }
            }
            // Once: when the connection has ended, or the rank a while ago.
            Input::Event(Event::Disconnected(rank)) if self.answers.remove(&rank).is_some() => {
                Word::Disconnected { rank }
            }
            Input::Event(Event::Exited { rank, exit }) => return self.exited(rank, exit),
            Input::Departed { rank, fate } => Word::Departed { rank, fate },
            Input::CoreDumped(rank) => Word::CoreDumped { rank },
            Input::Joined { rank, process, answers } => {
                self.joined.insert(rank, process);
                self.answers.insert(rank, answers);
                Word::Joined { rank }
            }
            Input::Part { rank, mine } => Word::Part { rank, mine },
            Input::Card { rank, card } => Word::Card { rank, card },
            Input::Query { rank, of } => Word::Query { rank, of },
            Input::Refused(why) => Word::Stranger { why },
            Input::Note(text) => Word::Note { text },
            Input::Pmi(told) => Word::Pmi { told },
            Input::Signal(signal) => {
                if ENDING.contains(&signal) {
                    let why = format!("got {}", signals::name(signal.as_raw()));
                    // Of a remote shell, the launcher reads what is complained.
                    if self.has_joined && !self.is_leaving {
                        let host = self.task.host_name();
                        let text = format!("host {host}: {why}; its ranks are ended");
                        self.voice.say(&Word::Note { text });
                    }
                    self.leave(&why);
                }
                return;
            }
            Input::ChildEnded => {
                if let Err(error) = self.processes.keep_warden() {
                    self.voice.say(&Word::Note { text: super::super::driver::unwatched(&error) });
                }
                // A rank that is being started would be taken for one.
                if !self.is_starting {
                    self.processes.reap_orphans();
                }
                return;
            }
            // Those of a launcher.
            Input::Event(_)
            | Input::Host(..)
            | Input::HostLost(_)
            | Input::OutOfMemory(_)
            | Input::Queried(_)
            | Input::Looked { .. }
            | Input::Unreadable(_) => return,
        };
        self.tell(&word);
    }

    /// Tells the launcher, unless there is none: one that hears this although its orders do not
    /// arrive would take what ranks do when they are ended for why the job fails.
    fn tell(&self, word: &Word) {
        if !self.is_cut {
            self.voice.say(word);
        }
    }

    fn exited(&mut self, rank: u32, exit: Exit) {
        self.running.retain(|other| *other != rank);
        self.feeds.end(rank);
        self.pmi.iter().for_each(|pmi| pmi.gone(rank));
        let killed = exit == Exit::Signal(Signal::KILL.as_raw());
        if killed && self.oom_kills.are_more() {
            self.tell(&Word::OutOfMemory { rank });
        }
        let (number, by_signal) = match exit {
            Exit::Status(status) => (status, false),
            Exit::Signal(signal) => (signal, true),
            Exit::Lost => return,
        };
        self.tell(&Word::Exited { rank, status: number.cast_unsigned(), by_signal });
        if !by_signal && self.answers.contains_key(&rank) {
            let grace = tokio::time::sleep(PARTING_GRACE);
            parting::part(rank, self.sender.clone(), grace);
        }
    }

    /// Looks after a rank that was started.
    fn adopt(&mut self, mut newborn: Newborn) -> io::Result<u32> {
        let rank = newborn.rank;
        let Some(mut child) = newborn.child.take() else { return Ok(rank) };
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        self.running.push(rank);
        self.processes.add(child, self.sender.clone())?;
        if let (Some(pmi), Some(socket)) = (&self.pmi, newborn.pmi.take()) {
            pmi.add(rank, socket);
        }
        if let Some(stdin) = pipes.0 {
            let voice = self.voice.clone();
            let tell = move |fed| match fed {
                Fed::Took(bytes) => voice.say(&Word::InputTaken { rank, bytes }),
                Fed::Ended => voice.say(&Word::InputEnded { rank }),
            };
            self.feeds.start(rank, stdin, tell)?;
        }
        let out = pipes.1.map(receiver).transpose()?;
        let err = pipes.2.map(receiver).transpose()?;
        for (stream, pipe) in [(Stream::Out, out), (Stream::Err, err)] {
            let Some(pipe) = pipe else { continue };
            let is_err = stream == Stream::Err;
            let window = Arc::new(Semaphore::new(WINDOW as usize));
            self.windows.insert((rank, is_err), Arc::clone(&window));
            let (voice, stop) = (self.voice.clone(), self.stop.subscribe());
            self.readers.spawn(relay((rank, is_err), pipe, window, voice, stop));
        }
        if self.is_leaving {
            self.processes.signal_rank(rank, Signal::KILL);
        }
        Ok(rank)
    }
}
