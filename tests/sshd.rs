//! Jobs over OpenSSH: each of three hosts is a namespace of the network with an sshd of its own;
//! `rma-run` is on the first of them. Keys are drawn for the test. Where there is no sshd, or no
//! namespace can be made, each test says so and passes.
//!
//! `cargo test --workspace` builds `rma-run` and the examples; otherwise build them before.
use cut::built;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use wires::Switch;

#[allow(dead_code)] // each test program uses its own part
mod cut;
mod libfabric;
mod wires;

const HOSTS: [&str; 3] = ["10.97.0.1", "10.97.0.2", "10.97.0.3"];
/// Longer than anything takes: what is there still is left behind.
const HANG: Duration = Duration::from_secs(60);
/// It has to be called by its whole path.
/// Seconds that a host may be silent, where tests share CPUs.
const PATIENT: &str = "600";
const SSHD: &str = "/usr/sbin/sshd";

/// Hosts, each with its sshd.
struct Network {
    prefix: String,
    switch: Switch,
    daemons: Vec<Child>,
    folder: tempfile::TempDir,
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let file = folder.join(name);
    fs::write(&file, text).unwrap();
    file
}

impl Network {
    /// None, and why, where it cannot be made.
    fn make(of: &str) -> Option<Network> {
        if !Path::new(SSHD).exists() {
            println!("skipped: no {SSHD}: apt-get install openssh-server");
            return None;
        }
        let prefix = format!("rma-{}-{of}", std::process::id());
        let switch = match Switch::connect(&prefix, &HOSTS.map(str::to_owned)) {
            Ok(switch) => switch,
            Err(why) => {
                println!("skipped: no namespaces of the network: {why}");
                return None;
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let mut network = Network { prefix, switch, daemons: Vec::new(), folder };
        network.draw_keys();
        for host in HOSTS {
            let daemon = network.daemon(host);
            network.daemons.push(daemon);
        }
        Some(network)
    }

    /// One of all hosts, and one of the user.
    fn draw_keys(&self) {
        let folder = self.folder.path();
        for name in ["host", "user"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(name));
            assert!(command.status().unwrap().success());
        }
        let at = folder.display();
        let text = format!(
            "IdentityFile {at}/user\nIdentitiesOnly yes\nBatchMode yes\nLogLevel ERROR\n\
             StrictHostKeyChecking yes\nUserKnownHostsFile {at}/known\n"
        );
        write(folder, "ssh_config", &text);
        let key = fs::read_to_string(folder.join("host.pub")).unwrap();
        write(folder, "known", &HOSTS.map(|host| format!("{host} {key}")).concat());
    }

    /// The sshd of that host, which listens.
    fn daemon(&self, host: &str) -> Child {
        let at = self.folder.path().display();
        let text = format!(
            "ListenAddress {host}\nHostKey {at}/host\nAuthorizedKeysFile {at}/user.pub\n\
             StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\n\
             PermitRootLogin prohibit-password\nMaxStartups 100\n\
             ClientAliveInterval 10\nClientAliveCountMax 2\n"
        );
        let config = write(self.folder.path(), &format!("sshd-{host}"), &text);
        // Where it separates its privileges.
        _ = fs::create_dir_all("/run/sshd");
        let mut command = self.on(host, Path::new(SSHD));
        command.args(["-D", "-e", "-f"]).arg(config).stdin(Stdio::null());
        let mut daemon = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(daemon.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("Server listening") {
            assert!(said.read_line(&mut line).unwrap() > 0, "{line}");
        }
        // It has a reader as long as it lives.
        std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
        daemon
    }

    /// A command on that host.
    fn on(&self, host: &str, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}-{host}", self.prefix)]).arg(program);
        command
    }

    /// A job with two ranks on each host.
    fn job(&self) -> Command {
        let hosts = HOSTS.map(|host| format!("{host}:2"));
        let mut command = self.on(HOSTS[0], &built("rma-run", "cargo build -p rma-launcher"));
        let config = self.folder.path().join("ssh_config");
        command.args(["--hosts", &hosts.join(","), "-q", "--provider", "tcp", "--oversubscribe"]);
        command.args(["--timeout", "300", "--ssh-command"]);
        command.arg(format!("ssh -T -F {}", config.display())).stdin(Stdio::null());
        command
    }

    /// Processes of that host, by their names.
    fn processes(&self, host: usize) -> Vec<(Pid, String)> {
        let name = format!("{}-{}", self.prefix, HOSTS[host]);
        let output = Command::new("ip").args(["netns", "pids", &name]).output().unwrap();
        let numbers = String::from_utf8(output.stdout).unwrap();
        let numbers = numbers.lines().filter_map(|line| line.trim().parse().ok());
        let of = |number: i32| {
            let name = fs::read_to_string(format!("/proc/{number}/comm")).ok()?;
            Some((Pid::from_raw(number)?, name.trim().to_owned()))
        };
        numbers.filter_map(of).collect()
    }

    /// Waits until a host has nothing but its sshd, and sessions of that whose agent has ended.
    #[track_caller]
    fn is_left_clean(&self, host: usize) {
        let since = Instant::now();
        loop {
            let mut left = self.processes(host);
            left.retain(|(_, name)| !name.starts_with("sshd"));
            if left.is_empty() {
                return;
            }
            assert!(since.elapsed() < HANG, "left behind on {}: {left:?}", HOSTS[host]);
            std::thread::yield_now();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            _ = daemon.kill();
            _ = daemon.wait();
        }
        // Sessions outlive the daemon; those left are of this test alone.
        let left = (0..HOSTS.len()).flat_map(|host| self.processes(host));
        left.for_each(|(process, _)| _ = kill_process(process, Signal::KILL));
    }
}

#[test]
fn a_job_computes_over_openssh_also_from_host_to_host() {
    if !libfabric::is_here() {
        return;
    }
    let Some(network) = Network::make("heat") else { return };
    for fan_out in ["0", "1"] {
        let mut command = network.job();
        command.args(["--fan-out", fan_out, "--host-timeout", PATIENT]);
        command.arg(built("examples/heat", "cargo build --examples")).args(["--size", "32"]);
        let output = command.output().unwrap();
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert_eq!(output.status.code(), Some(0), "{out}{err}");
        assert!(out.contains("checked against a sequential run: equal"), "{out}{err}");
        (0..HOSTS.len()).for_each(|host| network.is_left_clean(host));
    }
}

/// A job that runs on, with a shell on each place; once all are ready something happens, which
/// loses the second host.
fn loses_the_second_host(of: &str, patience: &str, happens: impl FnOnce(&Network)) {
    let Some(network) = Network::make(of) else { return };
    let mut command = network.job();
    command.args(["--host-timeout", patience, "sh", "-c", "echo ready; sleep 1000"]);
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(job.stdout.take().unwrap());
    let mut line = String::new();
    for _ in 0..2 * HOSTS.len() {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "the job ended early");
    }
    happens(&network);
    let mut said = String::new();
    job.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(job.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains(&format!("host {}: ", HOSTS[1])), "{said}");
    assert!(said.contains("rank 2 was lost with its host"), "{said}");
    (0..HOSTS.len()).for_each(|host| network.is_left_clean(host));
}

#[test]
fn a_session_of_sshd_that_is_killed_leaves_nothing() {
    loses_the_second_host("session", PATIENT, |network| {
        let daemon = Pid::from_child(&network.daemons[1]);
        let mut sessions = network.processes(1);
        sessions.retain(|(process, name)| name.starts_with("sshd") && *process != daemon);
        assert!(!sessions.is_empty());
        sessions.iter().for_each(|(process, _)| _ = kill_process(*process, Signal::KILL));
    });
}

#[test]
fn a_host_whose_cable_is_pulled_ends_its_ranks() {
    loses_the_second_host("cable", "20", |network| network.switch.cut(1));
}
