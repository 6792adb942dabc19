//! Carries out what the job's state machine decides.

use std::collections::HashSet;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::arrivals::Arrivals;
use super::bootstrap::{self, Plan};
use super::capacity::{self, Descriptors};
use super::files::{Files, Paths};
use super::hosts::{HostSaid, Hosts};
use super::input::{self, Fed, Feeds, Flow};
use super::lines::Tail;
use super::machine::{Action, Cause, ENDING, Event, Exit, Machine};
use super::output::{Printed, Sink, lock};
use super::pmi::{self, Pmi};
use super::processes::Processes;
use super::query::{self, JobView};
use super::report::{Ending, Report, RunError};
use super::spec::{Output, Readers, Spec};
use super::{config, cpus, groups, program, signals, start, topology};
use crate::cards::Cards;
use crate::client::Fate;
use crate::gather::{Answer, Gather};
use crate::notes::Notes;
use crate::pmi::server::Told;
use crate::seal::SharedFrame;
use crate::start::Secret;
use crate::wire::{self, Frame};
use crate::{Job, bulletin};

/// How long pipes may outlive their ranks before the processes that hold them are killed.
const DRAIN: Duration = Duration::from_millis(250);
/// How long printing may last once the user asked for the end.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// How long printing may last once the time is up.
const OVERTIME: Duration = Duration::from_secs(5);

/// How long the start of a rank may last once another one failed to start.
const START_GRACE: Duration = Duration::from_secs(5);

/// How often ranks are given that time to end a line, at most, before they are ended themselves.
const LINE_ROUNDS: u32 = 20;
const LINE_PAUSE: Duration = Duration::from_millis(5);

/// What happens to a job, from all sides.
#[derive(Debug)]
pub(super) enum Input {
    /// Something the state machine wants to know.
    Event(Event),
    /// A rank was started.
    Started(start::Newborn),
    /// A rank could not be started.
    NotStarted(RunError),
    /// The kernel wrote a rank's memory to a core file.
    CoreDumped(u32),
    /// A rank joined; its answers go there.
    Joined { rank: u32, process: u32, answers: UnboundedSender<Frame> },
    /// A rank's part of an exchange.
    Part { rank: u32, mine: Vec<u8> },
    /// Where a rank is reached.
    Card { rank: u32, card: Vec<u8> },
    /// A rank asks where another is.
    Query { rank: u32, of: u32 },
    /// A caller at the port was refused.
    Refused(String),
    /// All that a rank has sent has arrived, or never will.
    Departed { rank: u32, fate: Fate },
    /// What a host has said.
    Host(usize, HostSaid),
    /// Why a host is lost, and which ranks with it.
    HostLost(String),
    /// The kernel of a rank's host ended it for lack of memory.
    OutOfMemory(u32),
    /// Why standard input cannot be read to its end.
    Unreadable(String),
    /// Something that the user may want to know.
    Note(String),
    /// What a rank that speaks PMI-1 does.
    Pmi(Told),
    /// This process got a signal.
    Signal(Signal),
    /// A child of this process ended.
    ChildEnded,
    /// A user wants to know what the job does.
    Queried(oneshot::Sender<JobView>),
    /// Hosts have told what a user who asked is to be told.
    Looked { number: u32, answer: oneshot::Sender<JobView> },
}

/// A job that runs.
pub(super) struct Driver<'a> {
    pub(super) spec: &'a Spec,
    pub(super) processes: Processes,
    pub(super) sink: Sink,
    pub(super) files: Files,
    /// How far ranks are in what they read, if that is passed on to them.
    pub(super) flow: Option<Arc<Flow>>,
    /// Pipes to those of this machine that read it.
    pub(super) feeds: Feeds,
    /// The end of what each rank printed, and of its standard error.
    pub(super) tails: Vec<Arc<Mutex<Tail>>>,
    pub(super) error_tails: Vec<Arc<Mutex<Tail>>>,
    pub(super) readers: JoinSet<()>,
    pub(super) stop: watch::Sender<bool>,
    pub(super) sender: UnboundedSender<Input>,
    pub(super) hosts: Hosts,
    inputs: UnboundedReceiver<Input>,
    pub(super) machine: Machine,
    arrivals: Arrivals,
    pub(super) gather: Gather,
    cards: Cards,
    answers: Vec<Option<UnboundedSender<Frame>>>,
    /// The processes of ranks that have joined.
    pub(super) joined: Vec<Option<u32>>,
    /// What serves PMI-1 to ranks of this machine.
    pub(super) pmi: Option<Pmi>,
    /// The words in which ranks of this machine tell what they do.
    pub(super) bulletin: Option<Arc<OwnedFd>>,
    pub(super) started: Instant,
    /// Processes that the kernel had ended for lack of memory before.
    pub(super) oom_kills: groups::OomKills,
    /// What ranks are started from; see [`start::Starter`].
    hold: mpsc::Sender<()>,
    pub(super) noted: Noted,
}

/// What was noted of a job on its way.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// Why a rank could not be started.
    not_started: Option<RunError>,
    /// Ranks that did not end in time, and were killed.
    pub(super) killed: Vec<u32>,
    /// Ranks of which there is a core file.
    pub(super) dumped: HashSet<u32>,
    /// Ranks that the kernel of another host ended for lack of memory.
    pub(super) out_of_memory: HashSet<u32>,
    /// Whether the user knows where ranks are.
    pub(super) is_introduced: bool,
    /// A caller at the port was refused.
    refused: bool,
    /// Why standard input cannot be read to its end.
    input_failed: Option<String>,
    /// What ranks have said to the user.
    notes: Notes,
    /// What ranks did when they were asked to end.
    pub(super) last_look: Option<JobView>,
}

/// See [`super::check`]; gives the programs, and the names of files that output goes to.
pub(super) fn check(spec: &Spec) -> Result<(Vec<program::Found>, Paths), RunError> {
    if spec.ranks == 0 {
        return Err(RunError::NoRanks);
    }
    start::check_environment(spec)?;
    config::check(spec)?;
    let paths = Paths::of(spec)?;
    match spec.readers {
        Readers::One { rank } if rank >= spec.ranks => {
            Err(RunError::NoReader { rank, ranks: spec.ranks })
        }
        _ => Ok((program::find(spec)?, paths)),
    }
}

/// See [`super::run`].
pub(super) fn run(spec: &Spec) -> Result<Report, RunError> {
    let (programs, paths) = check(spec)?;
    let open = capacity::Open::of(spec);
    let room = capacity::check(spec.ranks, open)?;
    let descriptors = capacity::raise_descriptors(spec.ranks, open);
    let system = |what| move |source| RunError::System { what, source };
    let cpus = cpus::available().map_err(system("asking for this process' CPUs"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("starting the event loop"))?;
    runtime.block_on(run_job(spec, (programs, paths), &cpus, &room, descriptors))
}

async fn run_job(
    spec: &Spec,
    (programs, paths): (Vec<program::Found>, Paths),
    cpus: &[u32],
    room: &str,
    descriptors: Descriptors,
) -> Result<Report, RunError> {
    let system = |what| move |source| RunError::System { what, source };
    let (sender, inputs) = unbounded_channel();
    if spec.dedicated {
        signals::listen(&sender).map_err(system("watching for signals"))?;
    }
    let (sink, printed) = output(spec, &sender)?;
    let job = job_name().map_err(system("drawing random bytes"))?;
    let mut processes = watched_over(spec, &job, &sink)?;
    let mut files = Files::open(spec, paths, &sender)?;
    let files_of_ranks = files.of_ranks(spec.ranks);
    let (hosts, streams) = match &spec.remote {
        Some(remote) => Hosts::connect(spec, remote, &job, &programs, &mut processes, &sender)?,
        None => (Hosts::none(), Vec::new()),
    };
    let (hold, held) = mpsc::channel();
    let mut driver = Driver::new(spec, (processes, hosts), (sink, files), (sender, inputs), hold);
    driver.take_questions();
    if !driver.hosts.is_empty() {
        driver.flow = driver.hosts.flow();
        driver.read_hosts(streams);
        return driver.see_through(printed).await;
    }
    let created = bulletin::create(spec.ranks);
    let (bulletin, name) = created.map_err(system("reserving memory for what ranks tell"))?;
    driver.bulletin = Some(Arc::clone(&bulletin));
    let nodes = start::ranks_of_nodes(spec.ranks, spec.nodes());
    let offer = pmi::offer(spec, &job, nodes);
    let (told, all) = (&driver.sender, 0..spec.ranks);
    driver.pmi = offer.map(|offer| Pmi::start(offer, all, told.clone()));
    let plan = Arc::new(plan(spec, cpus).map_err(system("drawing a secret"))?);
    let (listener, address) = bootstrap::listen()?;
    let reading = driver.pass_on_input().map_err(system("starting a thread for input"))?;
    driver.introduce(&plan, cpus, &programs, address, room);
    let (told, strangers) = (driver.sender.clone(), descriptors.strangers);
    let port = tokio::spawn(bootstrap::serve(listener, Arc::clone(&plan), told, strangers));
    let starter = start::Starter {
        spec: spec.clone(),
        common: start::Common {
            job,
            programs,
            plan,
            address,
            descriptors: descriptors.ranks,
            bulletin: (bulletin, name),
            oom_score: start::oom_score(),
            input: reading,
            node: None,
        },
        files: files_of_ranks,
        warden: driver.processes.warden(),
        inputs: driver.sender.clone(),
        hold: held,
    };
    starter.start().map_err(system("starting a thread that starts ranks"))?;
    let report = driver.see_through(printed).await;
    port.abort();
    report
}

fn plan(spec: &Spec, cpus: &[u32]) -> io::Result<Plan> {
    let job = Job { cores: cpus.len() as u32, ..spec.job(spec.nodes()) };
    let places = topology::places(cpus, spec.bind, spec.map_by);
    Ok(Plan { secret: Secret(wire::random()?), job, places })
}

impl<'a> Driver<'a> {
    fn new(
        spec: &'a Spec,
        (processes, hosts): (Processes, Hosts),
        (sink, files): (Sink, Files),
        (sender, inputs): (UnboundedSender<Input>, UnboundedReceiver<Input>),
        hold: mpsc::Sender<()>,
    ) -> Driver<'a> {
        Driver {
            spec,
            processes,
            sink,
            files,
            flow: None,
            feeds: Feeds::default(),
            tails: (0..spec.ranks).map(|_| Arc::default()).collect(),
            error_tails: (0..spec.ranks).map(|_| Arc::default()).collect(),
            readers: JoinSet::new(),
            stop: watch::Sender::new(false),
            sender,
            hosts,
            inputs,
            machine: Machine::new(spec.ranks, spec.timeout, spec.kill_after, spec.on_failure),
            arrivals: Arrivals::new(spec.ranks),
            gather: Gather::new(spec.ranks),
            cards: Cards::new(spec.ranks),
            answers: (0..spec.ranks).map(|_| None).collect(),
            joined: vec![None; spec.ranks as usize],
            pmi: None,
            bulletin: None,
            started: Instant::now(),
            oom_kills: groups::OomKills::begin(),
            hold,
            noted: Noted::default(),
        }
    }
}

impl Driver<'_> {
    /// Passes on what ranks of this machine read, if that is to be done; gives what they have.
    fn pass_on_input(&mut self) -> io::Result<input::Streams> {
        let (streams, input) = input::of_machine(self.spec);
        if let Some(input) = input {
            let (ranks, readers) = (self.spec.ranks, self.spec.readers);
            let flow = Arc::new(Flow::new(ranks, readers));
            self.feeds = Feeds::new(0..ranks, readers);
            let inputs = self.sender.clone();
            input::pour(input, Arc::clone(&flow), inputs, self.feeds.passing())?;
            self.flow = Some(flow);
        }
        Ok(streams)
    }

    /// Until the job is over.
    async fn see_through(mut self, printed: Option<Printed>) -> Result<Report, RunError> {
        self.carry_on().await;
        if let Some(error) = self.noted.not_started.take() {
            self.give_up_start().await;
            return Err(error);
        }
        Ok(self.finish(printed).await)
    }

    /// Answers users who ask what the job does; without that it goes on, too.
    fn take_questions(&self) {
        if let Err(error) = query::serve(self.sender.clone())
            && !self.spec.quiet
        {
            self.sink.note(&format!("`rma-run why` and `top` will not find this job: {error}"));
        }
    }

    /// Until every process ended, or a rank could not be started.
    async fn carry_on(&mut self) {
        loop {
            while let Some(action) = self.machine.poll_action() {
                match action {
                    Action::Forward(signal) => {
                        if ENDING.contains(&signal) {
                            self.arrivals.handle_end();
                            self.look_before_the_end().await;
                        }
                        self.pass_on(signal).await;
                    }
                    Action::Kill => {
                        self.noted.killed = self.machine.running();
                        self.signal(Signal::KILL);
                    }
                    Action::KillRank(rank) => {
                        self.processes.signal_rank(rank, Signal::KILL);
                        self.hosts.signal_rank(rank, Signal::KILL);
                    }
                    Action::Terminate => {
                        if matches!(self.machine.cause(), Some(Cause::TimedOut { .. })) {
                            self.look_before_the_end().await;
                        }
                        self.let_lines_end().await;
                        self.signal(Signal::TERM);
                        // A stopped process ends in order, too.
                        self.signal(Signal::CONT);
                    }
                }
            }
            if self.machine.finished() || self.noted.not_started.is_some() {
                return;
            }
            if self.machine.ending() {
                // Fails only when the thread that starts ranks is gone.
                let _ = self.hold.send(());
                if self.hosts.hold() {
                    self.machine.handle(Event::StartEnded, self.started.elapsed());
                    continue;
                }
            }
            let deadlines = [self.machine.deadline(), self.arrivals.deadline()];
            let deadline = deadlines.into_iter().flatten().min().map(|at| self.started + at);
            tokio::select! {
                () = until(deadline) => {
                    let now = self.started.elapsed();
                    let unready = self.hosts.unready();
                    let late = self.arrivals.handle_tick(now, unready.as_deref());
                    self.note_unless_quiet(late);
                    self.machine.handle(Event::Tick, now);
                }
                input = self.inputs.recv() => {
                    if let Some(input) = input {
                        self.take(input);
                    }
                }
            }
        }
    }

    /// Ends all ranks, and those that are being started, too.
    async fn give_up_start(&mut self) {
        if !self.hosts.is_empty() {
            self.hosts.end(&[]);
            // No rank has printed anything that counts.
            let _ = self.hosts.close(&mut self.processes, true).await;
            return;
        }
        // Fails only when the thread that starts ranks is gone.
        let _ = self.hold.send(());
        let end = Instant::now() + START_GRACE;
        while self.machine.starting() {
            tokio::select! {
                () = until(Some(end)) => break,
                // This drops a rank that was started meanwhile, and so ends it.
                input = self.inputs.recv() => {
                    if let Some(Input::Event(Event::StartEnded)) = input {
                        self.machine.handle(Event::StartEnded, self.started.elapsed());
                    }
                }
            }
        }
        self.processes.end(&[], !self.machine.starting()).await;
    }

    /// Ranks may be about to say why they fail, too.
    async fn let_lines_end(&self) {
        for _ in 0..LINE_ROUNDS {
            // Meanwhile readers take what is printed.
            tokio::time::sleep(LINE_PAUSE).await;
            let running = self.machine.running();
            let tails = running.iter().filter_map(|rank| self.tails.get(*rank as usize));
            if !tails.into_iter().any(|tail| lock(tail).is_cut()) {
                return;
            }
        }
    }

    pub(super) fn take(&mut self, input: Input) {
        let event = match input {
            Input::Event(event) => {
                if event == Event::StartEnded {
                    self.processes.reap_orphans();
                }
                event
            }
            Input::Signal(signal) => Event::Signal(signal),
            Input::Started(newborn) => {
                let rank = newborn.rank;
                if let Err(error) = self.adopt(newborn) {
                    return self.noted.not_started = Some(error);
                }
                Event::Started(rank)
            }
            Input::NotStarted(error) => return self.noted.not_started = Some(error),
            Input::Joined { rank, process, answers } => {
                self.note_joined(rank, process, answers);
                Event::Joined(rank)
            }
            Input::Host(host, said) => {
                let inputs = self.hosts.hear(host, said);
                self.introduce_hosts();
                return inputs.into_iter().for_each(|input| self.take(input));
            }
            Input::HostLost(text) => return self.sink.note(&text),
            Input::Unreadable(why) => {
                self.sink.note(&why);
                return self.noted.input_failed = Some(why);
            }
            Input::OutOfMemory(rank) => return self.noted.out_of_memory.extend([rank]),
            // Of a rank of this machine, whose peers see it by themselves.
            Input::Departed { .. } => return,
            Input::CoreDumped(rank) => return self.noted.dumped.extend([rank]),
            Input::Part { rank, mine } => {
                let answer = self.gather.handle_part(rank, mine);
                return self.send(answer);
            }
            Input::Card { rank, card } => return self.cards.keep(rank, card),
            Input::Query { rank, of } => return self.send(Some(self.cards.answer(rank, of))),
            Input::Refused(why) => return self.note_refused(&why),
            Input::Note(text) => return self.note_once(text),
            Input::Pmi(told) => return self.hear_pmi(told),
            Input::Queried(answer) => return self.query_hosts(answer),
            Input::Looked { number, answer } => {
                // Fails when the caller is gone.
                return drop(answer.send(self.look(number)));
            }
            Input::ChildEnded => {
                if let Err(error) = self.processes.keep_warden()
                    && !self.spec.quiet
                {
                    self.sink.note(&unwatched(&error));
                }
                // A rank that is being started would be taken for one.
                if !self.machine.starting() {
                    self.processes.reap_orphans();
                }
                return;
            }
        };
        self.tell_of_gone(&event);
        self.note_arrival(&event);
        self.machine.handle(event, self.started.elapsed());
    }

    /// Has ranks told that wait for one that is gone.
    fn tell_of_gone(&mut self, event: &Event) {
        let (Event::Left { rank, .. } | Event::Disconnected(rank) | Event::Exited { rank, .. }) =
            *event
        else {
            return;
        };
        let answer = self.gather.handle_gone(rank);
        self.send(answer);
        if let Event::Exited { .. } = event {
            self.feeds.end(rank);
            self.flow.iter().for_each(|flow| flow.note(rank, Fed::Ended));
        }
        match event {
            Event::Exited { exit: Exit::Lost, .. } => self.hosts.broken(rank),
            Event::Exited { .. } => self.pmi.iter().for_each(|pmi| pmi.gone(rank)),
            Event::Disconnected(_) => {
                self.answers.get_mut(rank as usize).into_iter().for_each(|slot| *slot = None);
            }
            _ => {}
        }
    }

    fn note_unless_quiet(&self, text: Option<String>) {
        if let Some(text) = text.filter(|_| !self.spec.quiet) {
            self.sink.note(&text);
        }
    }

    fn note_joined(&mut self, rank: u32, process: u32, answers: UnboundedSender<Frame>) {
        if let Some(slot) = self.answers.get_mut(rank as usize) {
            *slot = Some(answers);
        }
        if let Some(joined) = self.joined.get_mut(rank as usize) {
            *joined = Some(process);
        }
    }

    /// Whether a rank has joined as one of this runtime, on whatever host.
    pub(super) fn has_joined(&self, rank: u32) -> bool {
        let here = self.joined.get(rank as usize).is_some_and(Option::is_some);
        here || self.hosts.has_joined(rank)
    }

    /// Notes which ranks are up, on whatever host.
    fn note_arrival(&mut self, event: &Event) {
        let now = self.started.elapsed();
        match event {
            Event::Started(rank) => self.arrivals.handle_started(*rank, now),
            Event::Joined(rank) => {
                let all = self.arrivals.handle_joined(*rank, now);
                self.note_unless_quiet(all);
            }
            Event::Left { .. } | Event::Disconnected(_) | Event::Exited { .. } => {
                self.arrivals.handle_end();
            }
            _ => {}
        }
    }

    fn send(&self, answer: Option<Answer>) {
        let Some(Answer { ranks, message }) = answer else { return };
        // `Gather` answers with `TooLarge` before a frame could become too long.
        let Ok(frame) = SharedFrame::of(&message) else { return };
        self.hosts.answer(&ranks, &frame);
        for rank in ranks {
            if let Some(Some(to)) = self.answers.get(rank as usize) {
                // Fails when the rank is gone.
                let _ = to.send(Arc::clone(&frame));
            }
        }
    }

    fn note_refused(&mut self, why: &str) {
        if !self.noted.refused && !self.spec.quiet {
            self.sink.note(&format!(
                "refused a connection to the bootstrap port: {why}; the job goes on, and further \
                 ones are refused silently"
            ));
        }
        self.noted.refused = true;
    }

    /// Says something that ranks say, once.
    pub(super) fn note_once(&mut self, text: String) {
        if !self.spec.quiet && self.noted.notes.is_new(&text) {
            self.sink.note(&text);
        }
    }

    /// To all ranks.
    fn signal(&self, signal: Signal) {
        self.processes.signal(signal);
        self.hosts.signal(signal);
    }

    async fn pass_on(&mut self, signal: Signal) {
        if signal != Signal::TSTP {
            self.signal(signal);
            if ENDING.contains(&signal) {
                // A stopped process ends in order, too.
                self.signal(Signal::CONT);
            }
            return;
        }
        // Ranks are not in the terminal's group, so they stop and go on with us.
        self.processes.signal(Signal::STOP);
        self.hosts.stop().await;
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        self.processes.signal(Signal::CONT);
        self.hosts.resume();
    }

    /// Ends what is left, prints what is left, and sums up.
    async fn finish(mut self, printed: Option<Printed>) -> Report {
        let stuck = self.machine.running();
        let drained = async { while self.readers.join_next().await.is_some() {} };
        // A process that still holds a pipe is ended next; what it printed until then is kept.
        let _ = tokio::time::timeout(DRAIN, drained).await;
        self.processes.end(&stuck, !self.machine.starting()).await;
        self.hosts.end(&stuck);
        // Readers watch it; with none left, it is of no use.
        let _ = self.stop.send(true);
        let mut ending = self.ending();
        // The reader of our output may be slow or stopped; ordinarily that is waited for.
        let patience = match ending {
            Ending::Interrupted(_) => Some(IMPATIENCE),
            Ending::TimedOut { .. } => Some(OVERTIME),
            _ => None,
        };
        let give_up = patience.map(|patience| Instant::now() + patience);
        let drained = async { while self.readers.join_next().await.is_some() {} };
        let (all_read, cut_by) = tokio::select! {
            () = drained => (true, None),
            () = until(give_up) => (false, None),
            signal = interrupt(&mut self.inputs, &mut self.machine, self.started) => {
                (false, Some(signal))
            }
        };
        let lost = self.hosts.close(&mut self.processes, all_read).await;
        let mut beside = Vec::new();
        ending = match (cut_short(ending, cut_by), self.files.failure()) {
            (Ending::Success, None) if !lost.is_empty() => Ending::OutputLost(lost),
            (Ending::Success, Some(why)) => {
                beside = lost;
                Ending::OutputFailed(why)
            }
            (ending, _) => {
                beside = lost;
                ending
            }
        };
        if let (Ending::Success, Some(why)) = (&ending, self.noted.input_failed.take()) {
            ending = Ending::InputFailed(why);
        }
        self.sum_up(&ending, &stuck);
        self.say_lost(beside);
        let captured = self.sink.take();
        self.readers.shutdown().await;
        drop(self.sink);
        if let (Some(printed), true) = (printed, all_read) {
            let (failure, cut_by) = tokio::select! {
                // An error says that the thread is gone, and so is everything it had.
                printed = printed => (printed.ok().flatten(), None),
                () = until(give_up) => (None, None),
                signal = interrupt(&mut self.inputs, &mut self.machine, self.started) => {
                    (None, Some(signal))
                }
            };
            ending = match (cut_short(ending, cut_by), failure) {
                // All ranks had ended before that was known.
                (Ending::Success | Ending::InputFailed(_), Some(why)) => {
                    // With nowhere to complain to, the exit status must do.
                    let _ = writeln!(io::stderr(), "rma-run: {why}; the job has ended");
                    Ending::OutputFailed(why)
                }
                (ending, _) => ending,
            };
        }
        Report { ending, output: captured.ranks, notes: captured.notes }
    }
}

/// Where ranks' output goes, and what tells when all of it is there.
fn output(
    spec: &Spec,
    sender: &UnboundedSender<Input>,
) -> Result<(Sink, Option<Printed>), RunError> {
    if spec.output == Output::Capture {
        return Ok((Sink::capture(spec.ranks), None));
    }
    let what = "starting a thread for output";
    let failed = |source| RunError::System { what, source };
    let (sink, printed) = Sink::print(sender.clone()).map_err(failed)?;
    Ok((sink, Some(printed)))
}

/// What takes charge of the job's processes; with a warden, where that is possible.
fn watched_over(spec: &Spec, job: &str, sink: &Sink) -> Result<Processes, RunError> {
    let what = "becoming the parent of orphans";
    let failed = |source| RunError::System { what, source };
    // What remote shells leave behind is theirs: no orphan of the job.
    let adopts = spec.dedicated && spec.remote.is_none();
    let mut processes = Processes::new(adopts, 0).map_err(failed)?;
    if spec.dedicated
        && let Err(error) = processes.start_warden(job)
        && !spec.quiet
    {
        sink.note(&unwatched(&error));
    }
    Ok(processes)
}

/// A name that no other job has.
fn job_name() -> io::Result<String> {
    let random = wire::random()?;
    let digits: String = random.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{digits}", std::process::id()))
}

pub(super) fn unwatched(why: &io::Error) -> String {
    format!(
        "no warden watches over this job, which /proc/self/exe would be: {why} (is /proc \
         mounted?); the job goes on, but if rma-run is killed, what ranks have started may stay"
    )
}

pub(super) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits for a signal that asks for the end.
async fn interrupt(
    inputs: &mut UnboundedReceiver<Input>,
    machine: &mut Machine,
    started: Instant,
) -> Signal {
    while let Some(input) = inputs.recv().await {
        if let Input::Signal(signal) = input
            && machine.is_request(signal, started.elapsed())
        {
            return signal;
        }
    }
    std::future::pending().await
}

/// How a job ended whose output was cut short by that signal, if by any.
fn cut_short(ending: Ending, signal: Option<Signal>) -> Ending {
    match (ending, signal) {
        (Ending::Success, Some(signal)) => Ending::Interrupted(signal.as_raw()),
        (ending, _) => ending,
    }
}
