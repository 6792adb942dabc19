//! Jobs that other launchers start, real ones: hydra's `mpiexec` (PMI-1), `srun` (PMI-2, PMIx; a
//! Slurm of this one machine, which the test starts), Open MPI's `mpirun` (PMIx). Their ranks run
//! the examples, or the test once more. Where a launcher is not installed, its test says so and
//! passes.
//!
//! `cargo build --examples` before.
use rma::initialize;
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

mod libfabric;

/// What ranks are to do that run a test once more.
const PART: &str = "RMA_TEST_PART";
/// The rank that is lost.
const LOST: &str = "RMA_TEST_LOST";

fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps");
    let program = profile.join(name);
    assert!(program.exists(), "{} is missing: cargo build --examples", program.display());
    program
}

/// Where a program is that a package brings, if that is installed.
fn installed(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect();
    let found = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let found = found.into_iter().find(|file| file.is_file());
    if found.is_none() {
        println!("skipped: {} is not installed", names[0]);
    }
    found
}

/// How a launcher is called, but for the program.
struct Launcher {
    words: Vec<String>,
    environment: Vec<(&'static str, String)>,
    /// Whether it leaves the others alone when a rank dies.
    is_patient: bool,
}

impl Launcher {
    fn new(program: &Path, words: &[&str]) -> Launcher {
        let mut all = vec![program.to_str().expect("a path of letters").to_owned()];
        all.extend(words.iter().map(|word| (*word).to_owned()));
        Launcher { words: all, environment: Vec::new(), is_patient: false }
    }

    fn command(&self, program: &Path, args: &[&str]) -> Command {
        // A job that hangs is a failure.
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "120"]).args(&self.words).arg(program).args(args);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command
    }

    fn example(&self, name: &str, args: &[&str]) -> Output {
        self.command(&built(&format!("examples/{name}")), args).output().unwrap()
    }

    /// The ranks run `take_part`.
    fn part(&self, part: &str, lost: u32) -> Command {
        let program = std::env::current_exe().unwrap();
        let mut command = self.command(&program, &["--exact", "take_part", "--nocapture"]);
        command.env(PART, part).env(LOST, lost.to_string());
        command
    }
}

#[track_caller]
fn said(output: &Output, is_good: bool, lines: &[&str]) {
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let [out, err] = &texts;
    assert_eq!(output.status.success(), is_good, "{:?}\n{out}{err}", output.status);
    for line in lines {
        assert!(out.contains(line) || err.contains(line), "{line:?} in {out}{err}");
    }
}

/// What a rank does in the tests below.
#[test]
fn take_part() {
    let Ok(part) = std::env::var(PART) else { return };
    let lost: u32 = std::env::var(LOST).unwrap().parse().unwrap();
    let universe = initialize().unwrap();
    let world = universe.world();
    let rank = world.rank().0;
    println!("process {} of rank {rank}\n", getpid().as_raw_nonzero());
    let met = world.barrier();
    if rank == lost {
        kill_process(getpid(), Signal::KILL).unwrap();
    }
    match &*part {
        "wait" => {
            // The rank may be lost while others are still on their way out of the first.
            let error = met.and_then(|()| world.barrier()).unwrap_err();
            println!("rank {rank} waits no more: {error}");
            panic!("{error}");
        }
        // As a rank that computes would, and asks no peer.
        _ => loop {
            std::thread::park();
        },
    }
}

/// Numbers of the ranks' processes.
fn processes(out: &str) -> Vec<Pid> {
    let numbers = out.lines().filter_map(|line| line.split_once("process ")?.1.split_once(" of"));
    numbers.filter_map(|(number, _)| Pid::from_raw(number.parse().ok()?)).collect()
}

/// Waits until none of these processes is there, or all that is left of them is their status.
fn gone(processes: &[Pid]) {
    for process in processes {
        let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
        while std::fs::read_to_string(&stat)
            .is_ok_and(|text| !text.rsplit(')').next().unwrap_or_default().starts_with(" Z"))
        {
            std::thread::yield_now();
        }
    }
}

fn examples_run(launcher: &Launcher) {
    let hello = launcher.example("hello", &[]);
    let ranks = ["rank 0 of 4", "rank 1 of 4", "rank 2 of 4", "rank 3 of 4", "counted 4"];
    said(&hello, true, &ranks);
    let heat = launcher.example("heat", &["--size", "32"]);
    said(&heat, true, &["4 ranks", "checked against a sequential run: equal"]);
}

fn losses_end_a_job(launcher: &Launcher) {
    let waiting = launcher.part("wait", 2).output().unwrap();
    // Others kill the rest before it can say anything.
    let lines: &[&str] =
        if launcher.is_patient { &["waits no more: a barrier: rank 2 "] } else { &[] };
    said(&waiting, false, lines);
    // Rank 0 serves; of any other, it has the launcher end the job.
    for lost in [0, 3] {
        let computing = launcher.part("compute", lost).output().unwrap();
        said(&computing, false, &[]);
        let ranks = processes(&String::from_utf8_lossy(&computing.stdout));
        assert_eq!(ranks.len(), 4, "{computing:?}");
        gone(&ranks);
    }
}

/// Nothing is left when the launcher is killed.
fn a_launcher_is_killed(launcher: &Launcher) {
    const NO_RANK: u32 = 99;
    let mut child = launcher.part("compute", NO_RANK).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut ranks = Vec::new();
    while ranks.len() < 4 {
        let mut line = String::new();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "{ranks:?}");
        ranks.extend(processes(&line));
    }
    // The only child of `timeout`.
    let timeout = child.id();
    let children = format!("/proc/{timeout}/task/{timeout}/children");
    let children = std::fs::read_to_string(children).unwrap();
    let launcher: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    kill_process(Pid::from_raw(launcher).unwrap(), Signal::KILL).unwrap();
    child.wait().unwrap();
    gone(&ranks);
}

#[test]
fn under_mpiexec_of_hydra() {
    let Some(mpiexec) = installed(&["mpiexec.hydra"]) else { return };
    for way in [&["-n", "4"][..], &["-pmi-port", "-n", "4"]] {
        examples_run(&Launcher::new(&mpiexec, way));
    }
    losses_end_a_job(&Launcher::new(&mpiexec, &["-n", "4"]));
    a_launcher_is_killed(&Launcher::new(&mpiexec, &["-n", "4"]));
    let alone = Launcher::new(&mpiexec, &["-n", "1"]).example("hello", &[]);
    said(&alone, true, &["rank 0 of 1", "counted 1"]);
}

#[test]
fn under_mpiexec_on_two_nodes() {
    let Some(mpiexec) = installed(&["mpiexec.hydra"]) else { return };
    if !libfabric::is_here() {
        return;
    }
    let two = ["-launcher", "fork", "-hosts", "localhost:2,127.0.0.1:2", "-n", "4"];
    let mut two = Launcher::new(&mpiexec, &two);
    two.environment.push(("FI_PROVIDER", "tcp".to_owned()));
    examples_run(&two);
    losses_end_a_job(&two);
    let turns = ["-launcher", "fork", "-hosts", "localhost,127.0.0.1", "-n", "4"];
    let turns = Launcher::new(&mpiexec, &turns).example("hello", &[]);
    said(&turns, false, &["not in a row", "--distribution=block"]);
}

#[test]
fn under_mpirun_of_open_mpi() {
    let Some(mpirun) = installed(&["mpirun.openmpi"]) else { return };
    let mut mpirun = Launcher::new(&mpirun, &["--oversubscribe", "-n", "4"]);
    // It refuses the superuser, which CI is.
    for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        mpirun.environment.push((name, "1".to_owned()));
    }
    examples_run(&mpirun);
    losses_end_a_job(&mpirun);
    a_launcher_is_killed(&mpirun);
}

#[test]
fn under_prterun() {
    let Some(prterun) = installed(&["prterun"]) else { return };
    let words = ["--map-by", "slot:OVERSUBSCRIBE", "-n", "4"];
    let mut prterun = Launcher::new(&prterun, &words);
    for name in ["PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        prterun.environment.push((name, "1".to_owned()));
    }
    examples_run(&prterun);
    losses_end_a_job(&prterun);
    a_launcher_is_killed(&prterun);
}

#[test]
fn a_process_that_cannot_find_the_others_refuses() {
    let refused = [
        (&["PMI_FD=99", "PMI_RANK=0", "PMI_SIZE=2"][..], "PMI_FD=99"),
        (&["PMI_FD=99", "PMI_SIZE=2"], "PMI_RANK"),
        (&["PMI_PORT=127.0.0.1:1", "PMI_ID=0"], "PMI_PORT=127.0.0.1:1"),
        (&["PMIX_RANK=0", "PMIX_NAMESPACE=x"], "PMIX_RANK=0"),
        (&["PMIX_RANK=0"], "PMIX_RANK=0"),
        (&["OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0"], "OMPI_COMM_WORLD_SIZE=2"),
        (&["PRTE_LAUNCHED=1"], "PRTE_LAUNCHED=1"),
        (&["SLURM_PROCID=0", "SLURM_NTASKS=2"], "SLURM_NTASKS=2"),
        (&["PBS_TASKNUM=2"], "PBS_TASKNUM=2"),
        (&["LSF_PM_TASKID=1"], "LSF_PM_TASKID=1"),
    ];
    let env = Path::new("/usr/bin/env");
    for (vars, named) in refused {
        let output = Launcher::new(env, vars).example("hello", &[]);
        said(&output, false, &[named, "rma-run"]);
        assert!(output.stdout.is_empty(), "{vars:?}: {output:?}");
    }
    for vars in [&["PMI_SIZE=1", "PMI_RANK=0", "PMI_FD=99"][..], &["PBS_TASKNUM=1"]] {
        said(&Launcher::new(env, vars).example("hello", &[]), true, &["rank 0 of 1"]);
    }
}

/// A Slurm of this machine alone.
struct Slurm {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
    srun: PathBuf,
}

impl Slurm {
    fn start() -> Option<Slurm> {
        let [srun, ctld, slurmd, stepd] = [
            installed(&["srun"])?,
            installed(&["slurmctld"])?,
            installed(&["slurmd"])?,
            installed(&["slurmstepd"])?,
        ];
        let folder = tempfile::tempdir().unwrap();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let user = Command::new("id").arg("-un").output().unwrap().stdout;
        let [host, user] = [host, String::from_utf8(user).unwrap()].map(|s| s.trim().to_owned());
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [first, second] = ports.map(|port| port.local_addr().unwrap().port());
        let at = folder.path().display();
        let settings = format!(
            "ClusterName=one\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser={user}\n\
             SlurmdUser={user}\nSlurmctldPort={first}\nSlurmdPort={second}\n\
             AuthType=auth/none\nCredType=cred/none\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nCommunicationParameters=NoCtldInAddrAny,NoInAddrAny\n\
             StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool\n\
             SlurmctldPidFile={at}/ctld.pid\nSlurmdPidFile={at}/slurmd.pid\n\
             SlurmctldLogFile={at}/ctld.log\nSlurmdLogFile={at}/slurmd.log\n\
             TmpFS={at}\nMailProg=/bin/true\nSelectType=select/cons_tres\nReturnToService=2\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN\n\
             SlurmdParameters=config_overrides\n\
             PartitionName=all Nodes={host} Default=YES State=UP\n"
        );
        for name in ["state", "spool"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let file = folder.path().join("slurm.conf");
        std::fs::write(&file, settings).unwrap();
        let daemon = |program: &Path, args: &[&str]| {
            // They end with this thread, whatever becomes of it.
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL"]).arg(program).arg("-D").arg("-f").arg(&file);
            command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let stepd = stepd.to_str().unwrap();
        let daemons = vec![daemon(&ctld, &[]), daemon(&slurmd, &["-N", &host, "-d", stepd])];
        Some(Slurm { folder, daemons, srun })
    }

    fn srun(&self, words: &[&str]) -> Launcher {
        let mut launcher = Launcher::new(&self.srun, words);
        let file = self.folder.path().join("slurm.conf");
        launcher.environment.push(("SLURM_CONF", file.to_str().unwrap().to_owned()));
        launcher.is_patient = true;
        launcher
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            // One that has ended is what this is for.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn under_srun() {
    let Some(slurm) = Slurm::start() else { return };
    // Waits until the daemons are there.
    let up = slurm.srun(&["-n", "1"]).command(Path::new("true"), &[]).output().unwrap();
    said(&up, true, &[]);
    let pmi2 = slurm.srun(&["--mpi=pmi2", "-n", "4"]);
    examples_run(&pmi2);
    losses_end_a_job(&pmi2);
    // Of one task, there is one rank.
    let alone = slurm.srun(&["--mpi=pmi2", "-n", "1"]).example("hello", &[]);
    said(&alone, true, &["rank 0 of 1", "counted 1"]);
    // Tasks that nothing connects.
    let none = slurm.srun(&["--mpi=none", "-n", "4"]).example("hello", &[]);
    said(&none, false, &["SLURM_STEP_NUM_TASKS=4", "srun --mpi=pmi2", "rma-run -n N"]);
    let pmix = slurm.srun(&["--mpi=pmix", "-n", "4"]);
    let known = pmix.command(Path::new("true"), &[]).output().unwrap();
    if !known.status.success() {
        println!("skipped: srun has no --mpi=pmix (it needs libpmix-dev)");
        return;
    }
    examples_run(&pmix);
    losses_end_a_job(&pmix);
}
