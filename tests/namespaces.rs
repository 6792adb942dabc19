//! Jobs on four hosts, each of which is a namespace of the network behind a switch: ranks that say
//! hello, and processes of all kinds that are killed at random moments. `RMA_KILLS` says how many
//! are. Where no libfabric is, or no namespace can be made, each test says so and passes.
//!
//! `cargo test --workspace` builds `rma-run` and the examples; otherwise build them before.
use cut::{built, remote_shell};
use rma::{Op, Rank, initialize};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use wires::Switch;

#[allow(dead_code)] // each test program uses its own part
mod cut;
mod libfabric;
mod wires;

const HOSTS: usize = 4;
/// Longer than anything takes: what is there still hangs, or is left behind.
const HANG: Duration = Duration::from_secs(60);
/// In the environment of all processes of a job.
const MARK: &str = "RMA_TEST_MARK";

/// Hosts, the switch between them, and the remote shell that reaches them.
struct Network {
    shell: PathBuf,
    _switch: Switch,
    _folder: tempfile::TempDir,
}

impl Network {
    fn address(host: usize) -> String {
        format!("10.98.0.{}", host + 1)
    }

    /// None, and why, where it cannot be made.
    fn make(of: &str) -> Option<Network> {
        if !libfabric::is_here() {
            return None;
        }
        let prefix = format!("rma-{}-{of}", std::process::id());
        // Hosts that each took all CPUs of this machine for their own would starve each other.
        let script = format!(
            "#!/bin/sh\ncase $1 in\n{}esac\n\
             exec setsid --wait ip netns exec {prefix}-$1 taskset -c $cpu env -i PATH=\"$PATH\" \
             {MARK}=\"${MARK}\" sh -c \"exec $2\"\n",
            cpus()
        );
        let (folder, shell) = remote_shell(&script);
        match Switch::connect(&prefix, &(0..HOSTS).map(Self::address).collect::<Vec<_>>()) {
            Ok(switch) => Some(Network { shell, _switch: switch, _folder: folder }),
            Err(why) => {
                println!("skipped: no namespaces of the network: {why}");
                None
            }
        }
    }

    /// A job with so many ranks on each host.
    fn job(&self, each: u32) -> Command {
        let hosts: Vec<_> =
            (0..HOSTS).map(|host| format!("{}:{each}", Self::address(host))).collect();
        let mut command = Command::new(built("rma-run", "cargo build -p rma-launcher"));
        command.args(["--hosts", &hosts.join(","), "-q", "--provider", "tcp", "--oversubscribe"]);
        // A machine that is busy is no host that is lost, and silence ends no job that hangs.
        command.args(["--host-timeout", "600"]);
        command.arg("--ssh-command").arg(&self.shell).stdin(Stdio::null());
        command
    }
}

/// A CPU for each host, as cases of a shell, in turn of those that there are.
fn cpus() -> String {
    let set = sched_getaffinity(None).unwrap();
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    let case = |host| format!("{}) cpu={};;\n", Network::address(host), cpus[host % cpus.len()]);
    (0..HOSTS).map(case).collect()
}

#[test]
fn sixty_four_ranks_on_four_hosts_say_hello() {
    const RANKS: u32 = 64;
    let Some(network) = Network::make("hello") else { return };
    let start = Instant::now();
    let mut command = network.job(RANKS / HOSTS as u32);
    command.args(["--timeout", "300"]);
    let output = command.arg(built("examples/hello", "cargo build --examples")).output().unwrap();
    let took = start.elapsed();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    for rank in 0..RANKS {
        assert!(out.contains(&format!("rank {rank} of {RANKS} came as number ")), "{out}");
    }
    assert!(out.contains(&format!("counted {RANKS}\n")), "{out}");
    println!("{RANKS} ranks on {HOSTS} hosts started, said hello and ended in {took:?}");
}

/// What a rank does until it is ended: it combines in the memory of the next one, and meets all.
fn play() -> ! {
    let universe = initialize().unwrap();
    let world = universe.world();
    let window = world.window(1, 8).allocate().unwrap();
    let next = Rank((world.rank().0 + 1) % world.size());
    println!("ready");
    loop {
        let epoch = window.lock_all().unwrap();
        epoch.accumulate(next, 0, Op::Sum, &[1u64]).unwrap();
        epoch.unlock().unwrap();
        world.barrier().unwrap();
    }
}

/// Which process of a job is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Launcher,
    Agent,
    Rank,
}

const KINDS: [Kind; 3] = [Kind::Launcher, Kind::Agent, Kind::Rank];

/// Arguments of processes with that mark, and their numbers.
fn marked(mark: &str) -> Vec<(Pid, Vec<String>)> {
    let mark = format!("{MARK}={mark}");
    let numbers = fs::read_dir("/proc").unwrap();
    let numbers = numbers.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let of = |number: i32| {
        let read = |name: &str| fs::read(format!("/proc/{number}/{name}")).unwrap_or_default();
        let is_it = read("environ").split(|byte| *byte == 0).any(|one| one == mark.as_bytes());
        let line = read("cmdline");
        let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into());
        is_it.then(|| (Pid::from_raw(number), words.collect()))
    };
    numbers.filter_map(of).filter_map(|(pid, words)| Some((pid?, words))).collect()
}

/// Agents, and what is about to be a rank; or ranks.
fn victims(mark: &str, kind: Kind) -> Vec<Pid> {
    let is_it = |words: &[String]| match kind {
        Kind::Launcher => false,
        Kind::Agent => {
            words[0].ends_with("/rma-run") && words.get(1).is_some_and(|word| word == "agent")
        }
        // The launcher has the same words behind its own.
        Kind::Rank => words.get(1).is_some_and(|word| word == "--exact"),
    };
    let mut found = marked(mark);
    found.retain(|(_, words)| is_it(words));
    found.into_iter().map(|(pid, _)| pid).collect()
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// A job that is over when its launcher is.
struct Job {
    launcher: Child,
    out: BufReader<std::process::ChildStdout>,
    mark: String,
}

impl Job {
    fn start(network: &Network, trial: usize) -> Job {
        let mark = format!("{}-{trial}", std::process::id());
        let mut command = network.job(2);
        command.env(MARK, &mark).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "processes_that_are_killed_leave_nothing", "--nocapture"]);
        let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let out = BufReader::new(launcher.stdout.take().unwrap());
        Job { launcher, out, mark }
    }

    /// Whether its launcher ends within that time.
    fn ends_within(&self, time: Duration) -> bool {
        let launcher = pidfd_open(Pid::from_child(&self.launcher), PidfdFlags::empty()).unwrap();
        let time = time.try_into().unwrap();
        poll(&mut [PollFd::new(&launcher, PollFlags::IN)], Some(&time)).unwrap() > 0
    }

    fn wait_until_all_are_ready(&mut self) {
        let (mut ready, mut line) = (0, String::new());
        while ready < 2 * HOSTS {
            line.clear();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "the job ended early");
            ready += usize::from(line.trim_end().ends_with("ready"));
        }
    }

    /// Kills one of that kind, or of the next one that there is; which.
    fn kill(&mut self, kind: Kind, random: &mut Random) -> Kind {
        let order = KINDS.iter().cycle().skip_while(|next| **next != kind).take(KINDS.len());
        for kind in order {
            let victims = match kind {
                Kind::Launcher => vec![Pid::from_child(&self.launcher)],
                _ => victims(&self.mark, *kind),
            };
            if victims.is_empty() {
                continue;
            }
            let victim = victims[random.below(victims.len())];
            // One that was found may have ended meanwhile.
            if kill_process(victim, Signal::KILL).is_ok() {
                return *kind;
            }
        }
        unreachable!("a launcher that is not reaped can be killed")
    }

    /// Waits until nothing is left of it; how its launcher ended, and how long that and all took.
    fn end(mut self, what: &str) -> (ExitStatus, Duration, Duration) {
        let killed = Instant::now();
        assert!(self.ends_within(HANG), "{what}: the launcher hangs");
        let ended = killed.elapsed();
        loop {
            let left = marked(&self.mark);
            // The launcher itself, which is not reaped yet, has no environment any more.
            if left.is_empty() {
                break;
            }
            assert!(killed.elapsed() < HANG, "{what}: left behind: {left:?}");
            std::thread::yield_now();
        }
        let gone = killed.elapsed();
        self.out.read_to_string(&mut String::new()).unwrap();
        (self.launcher.wait().unwrap(), ended, gone)
    }
}

/// How long it took at most, and how often it was tried.
#[derive(Debug, Default)]
struct Longest {
    count: u32,
    ended: Duration,
    gone: Duration,
}

#[test]
fn processes_that_are_killed_leave_nothing() {
    if rma_launcher::is_launched() {
        play();
    }
    let Some(network) = Network::make("kills") else { return };
    let told = std::env::var("RMA_KILLS").ok();
    let kills: usize = told.map_or(6, |told| told.parse().expect("RMA_KILLS is a number"));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    // How long a start takes here, within which the moments of some are.
    let mut job = Job::start(&network, kills);
    let start = Instant::now();
    job.wait_until_all_are_ready();
    let start = start.elapsed();
    job.kill(Kind::Launcher, &mut random);
    job.end("the first job");
    // By kind, and whether the job ran.
    let mut longest: [[Longest; 2]; 3] = Default::default();
    for trial in 0..kills {
        let (runs, kind) = (trial % 2 == 1, KINDS[trial / 2 % KINDS.len()]);
        let mut job = Job::start(&network, trial);
        if runs {
            job.wait_until_all_are_ready();
        } else {
            let moment = start.mul_f64(random.below(1000) as f64 / 1000.0);
            assert!(!job.ends_within(moment), "trial {trial}: the job ended by itself");
        }
        let kind = job.kill(kind, &mut random);
        let what =
            format!("trial {trial}, {kind:?}, {}", if runs { "running" } else { "starting" });
        let (status, ended, gone) = job.end(&what);
        assert!(!status.success(), "{what}: {status}");
        if runs && kind == Kind::Rank {
            assert_eq!(status.code(), Some(128 + 9), "{what}: {status}");
        }
        let longest = &mut longest[kind as usize][usize::from(runs)];
        longest.count += 1;
        longest.ended = longest.ended.max(ended);
        longest.gone = longest.gone.max(gone);
    }
    for (kind, [starting, running]) in KINDS.iter().zip(longest) {
        for (when, Longest { count, ended, gone }) in [("starting", starting), ("running", running)]
        {
            println!(
                "{kind:?} killed {count} times while {when}: the launcher ended within {ended:?}, \
                 all within {gone:?}"
            );
        }
    }
}
