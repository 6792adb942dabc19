//! Jobs on hosts that join: real processes of `rma-run serve` and `rma-run join`, at 127.0.0.1.

mod between;
mod support;

use std::io::{BufRead, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use between::{Between, copied, fourth_altered, read_frame};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
use rustix::process::Signal;
use support::*;

/// A job that waits for hosts, or runs on them.
struct Served {
    folder: tempfile::TempDir,
    secret: String,
    job: Running,
    /// Where hosts join.
    address: String,
}

impl Served {
    fn new(joins: u32, rest: &[&str]) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let secret = write_secret(&folder, "secret");
        let joins = joins.to_string();
        let line =
            ["serve", "--joins", &joins, "--listen", "127.0.0.1:0", "--secret-file", &secret];
        Served::of(folder, &[&line[..], &["--oversubscribe"], rest].concat())
    }

    /// The port is one that the kernel has chosen, which is said.
    fn of(folder: tempfile::TempDir, line: &[&str]) -> Served {
        let mut job = Running::start(line);
        let said = said(&mut job);
        let (_, rest) = said.split_once("`rma-run join ").unwrap_or_else(|| panic!("{said}"));
        let address = rest.split(' ').next().unwrap().to_owned();
        Served { secret: path(&folder, "secret"), folder, job, address }
    }

    /// A host that joins, or tries to.
    fn join(&self, name: &str, rest: &[&str]) -> Running {
        Running::start(&[&self.join_line(&self.address, name)[..], rest].concat())
    }

    /// What joins at that address, where it is passed on to the job.
    fn join_line<'a>(&'a self, address: &'a str, name: &'a str) -> [&'a str; 6] {
        ["join", address, "--secret-file", &self.secret, "--name", name]
    }

    /// Hosts of those names, which join one after the other.
    fn joined(&mut self, names: &[&str]) -> Vec<Running> {
        let join = |name: &&str| {
            let host = self.join(name, &[]);
            let text = said(&mut self.job);
            assert!(text.contains(&format!("host {name} (127.0.0.1): ")), "{text}");
            host
        };
        names.iter().map(join).collect()
    }
}

fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

/// A file with a secret that no other test has.
fn write_secret(folder: &tempfile::TempDir, name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let path = path(folder, name);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    std::fs::write(&path, format!("{:016}{count:016}", std::process::id())).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path
}

/// The next line of standard error.
#[track_caller]
fn said(job: &mut Running) -> String {
    let mut line = String::new();
    assert!(job.stderr.read_line(&mut line).unwrap() > 0, "nothing more is said");
    line.trim_end().to_owned()
}

/// Waits for a line of standard error with that part; a busy machine may cause others.
#[track_caller]
fn wait_for(job: &mut Running, part: &str) {
    while !said(job).contains(part) {}
}

/// Options of a job of which no host is lost for silence.
const PATIENT: [&str; 2] = ["--host-timeout", "30"];
/// And of one of which a host that is stopped is lost soon.
const IMPATIENT: [&str; 2] = ["--host-timeout", "5"];

/// A rank that tells of its agent, and then stays.
const STAY: &str = "echo host $RMA_NODE pid $PPID; sleep 1000 & wait";

#[track_caller]
fn ends(job: Running, code: i32) -> (String, String) {
    let (ended, out, err) = job.end();
    assert_eq!(ended, Some(code), "{out}{err}");
    (out, err)
}

#[test]
fn a_job_starts_once_all_hosts_have_joined() {
    let script = "echo $RMA_RANK $RMA_SIZE $RMA_NODE $RMA_LOCAL_RANK $RMA_LOCAL_SIZE";
    let mut served = Served::new(3, &["-l", "-n", "5", "sh", "-c", script]);
    // By their names, in whatever order they come.
    let mut hosts = vec![served.join("n10", &["--slots", "2"])];
    let text = said(&mut served.job);
    let expected = "host n10 (127.0.0.1, takes 2 ranks): 1 of 3 hosts have joined";
    assert_eq!(text, format!("rma-run: {expected}"));
    hosts.extend(served.joined(&["n2"]));
    let twin = served.join("n2", &[]);
    assert!(said(&mut served.job).contains("host n2-2 (127.0.0.1): 3 of 3 hosts have joined"));
    hosts.push(twin);
    let (out, _) = ends(served.job, 0);
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    let expected =
        ["[0] 0 5 0 0 2", "[1] 1 5 0 1 2", "[2] 2 5 1 0 2", "[3] 3 5 1 1 2", "[4] 4 5 2 0 1"];
    assert_eq!(lines, expected);
    for host in hosts {
        let (out, err) = ends(host, 0);
        assert_eq!(out, "");
        assert!(err.contains("joined the job of 127.0.0.1:"), "{err}");
    }
}

#[test]
fn ranks_join_and_read_and_fail_as_on_one_machine() {
    let mut served = Served::new(2, &["-n", "4", &rank_program(), ""]);
    let hosts = served.joined(&["a", "b"]);
    let (out, _) = ends(served.job, 0);
    assert_eq!(out.lines().count(), 4, "{out}");
    hosts.into_iter().for_each(|host| _ = ends(host, 0));

    let script = "[ $RMA_RANK = 0 ] && { read line; exit $line; }; sleep 1000 & wait";
    let mark = mark("joins-fail");
    let mut served = Served::new(2, &["-n", "2", "--env", &mark, "sh", "-c", script]);
    served.job.child.stdin.as_mut().unwrap().write_all(b"7\n").unwrap();
    let hosts = served.joined(&["a", "b"]);
    let (_, err) = ends(served.job, 7);
    assert!(err.contains("rank 0 exited with status 7"), "{err}");
    hosts.into_iter().for_each(|host| _ = ends(host, 0));
    assert_eq!(left_behind(&mark), []);
}

#[test]
fn a_host_that_has_no_rank_is_told_so() {
    let mut served = Served::new(2, &["-n", "1", "echo", "ran"]);
    let hosts = served.joined(&["a", "b"]);
    assert_eq!(ends(served.job, 0).0, "ran\n");
    let mut texts = hosts.into_iter().map(|host| ends(host, 0).1);
    assert!(!texts.next().unwrap().contains("no rank"));
    assert!(texts.next().unwrap().contains("the job has no rank for this host"));
}

#[test]
fn a_host_that_dies_is_lost() {
    let mark = mark("joins-host");
    let mut served = Served::new(2, &["-n", "2", "--env", &mark, "sh", "-c", STAY]);
    let hosts = served.joined(&["a", "b"]);
    served.job.pids(2);
    assert!(TcpStream::connect(&served.address).is_err(), "all have joined");
    send(hosts[1].pid(), Signal::KILL);
    let (_, err) = ends(served.job, 1);
    assert!(err.contains("host b: its connection has ended") && err.contains("rank 1 is lost"));
    assert!(err.contains("rank 1 was lost with its host"), "{err}");
    assert_eq!(left_behind(&mark), []);
}

#[test]
fn hosts_end_their_ranks_without_a_launcher() {
    for (signal, silence) in [(Signal::KILL, PATIENT), (Signal::STOP, IMPATIENT)] {
        let mark = mark(&format!("joins-launcher-{}", signal.as_raw()));
        let rest = ["-n", "2", "--env", &mark, "sh", "-c", STAY];
        let mut served = Served::new(2, &[&silence[..], &rest].concat());
        let hosts = served.joined(&["a", "b"]);
        served.job.pids(2);
        send(served.job.pid(), signal);
        hosts.into_iter().for_each(|host| _ = ends(host, 1));
        assert_eq!(left_behind(&mark), [], "{signal:?}");
    }
}

/// What tells words of hosts apart: that a rank has exited, and that a stream of one has ended.
const EXITED: u8 = 9;
const OUTPUT_ENDED: u8 = 13;

/// A rank whose output ends behind it, when what it has started is ended with the job.
const SLOW_TO_END: &str = "sleep 1000 & echo ran";

/// What a rank has printed is of the job, also when its host is lost behind it.
#[test]
fn a_host_that_is_lost_with_what_its_rank_printed_fails_the_job() {
    let served = Served::new(1, &["-n", "1", "sh", "-c", SLOW_TO_END]);
    // The job is over by then.
    let words = |_, frame: Vec<u8>| if frame[4] == OUTPUT_ENDED { vec![] } else { vec![frame] };
    let between = Between::new(&served.address, words, copied);
    let host = host_behind(&served, &between);
    let (_, err) = ends(served.job, 1);
    let part = "host a: its connection has ended, so its agent is gone; the end of what rank 0 \
                printed may be missing: run the job again";
    assert!(err.contains(part), "{err}");
    between.end();
    host.end();

    // The others go on, and do what they should, or not: that is said besides.
    for code in [0, 3] {
        lost_behind_its_rank(code);
    }
}

/// A host is lost behind its rank; that of another host exits with `code` then.
fn lost_behind_its_rank(code: i32) {
    let folder = tempfile::tempdir().unwrap();
    let go = path(&folder, "go");
    std::fs::write(&go, "").unwrap();
    let script = format!("while [ -e {go} ]; do sleep 0.1; done; exit {code}");
    let line = ["-n", "1", "sh", "-c", SLOW_TO_END, ":", "-n", "1", "sh", "-c", &script];
    let mut served = Served::new(2, &line);
    let mut has_exited = false;
    let between = Between::new(
        &served.address,
        move |_, frame: Vec<u8>| {
            let is_behind = has_exited;
            has_exited |= frame[4] == EXITED;
            if is_behind { vec![] } else { vec![frame] }
        },
        copied,
    );
    let hosts = [host_behind(&served, &between), served.join("b", &[])];
    wait_for(&mut served.job, "host a: its connection has ended");
    std::fs::remove_file(&go).unwrap();
    let (_, err) = ends(served.job, code.max(1));
    assert!(err.contains("the end of what rank 0 printed may be missing"), "{err}");
    assert_eq!(err.contains("rank 1 exited with status 3"), code == 3, "{err}");
    between.end();
    hosts.into_iter().for_each(|host| _ = host.end());
}

#[test]
fn a_host_that_is_silent_or_asked_to_end_is_lost() {
    let mark = mark("joins-silent");
    let rest = ["-n", "2", "--env", &mark, "sh", "-c", STAY];
    let mut served = Served::new(2, &[&IMPATIENT[..], &rest].concat());
    let hosts = served.joined(&["a", "b"]);
    served.job.pids(2);
    send(hosts[0].pid(), Signal::STOP);
    let (_, err) = ends(served.job, 1);
    assert!(err.contains("host a: it has said nothing for 5 s; rank 0 is lost"), "{err}");
    send(hosts[0].pid(), Signal::CONT);
    assert_eq!(left_behind(&mark), []);

    let rest = ["-n", "1", "--env", &mark, "sh", "-c", STAY];
    let mut served = Served::new(1, &[&PATIENT[..], &rest].concat());
    let host = served.joined(&["a"]).pop().unwrap();
    served.job.pids(1);
    send(host.pid(), Signal::TERM);
    assert!(ends(host, 1).1.contains("got SIGTERM; ranks of this host are ended"));
    ends(served.job, 128 + 15);
    assert_eq!(left_behind(&mark), []);
}

/// A host that is asked to end has a launcher still: that gets what its ranks print.
#[test]
fn last_words_of_a_host_that_is_asked_to_end_arrive() {
    let script = "trap 'head -c 300000 /dev/zero; exit 3' TERM
                  echo pid $PPID; sleep 1000 & wait";
    let mut served = Served::new(1, &[&PATIENT[..], &["-n", "1", "sh", "-c", script]].concat());
    let host = served.joined(&["a"]).pop().unwrap();
    served.job.pids(1);
    send(host.pid(), Signal::TERM);
    let (out, err) = ends(served.job, 3);
    assert_eq!(out.len(), 300_000);
    assert!(err.contains("host a: got SIGTERM; its ranks are ended"), "{err}");
    ends(host, 1);
}

#[test]
fn a_host_that_leaves_before_the_start_makes_room() {
    let served =
        |silence: [&str; 2]| Served::new(2, &[&silence[..], &["-n", "2", "echo", "ran"]].concat());
    // One that is silent is gone, too.
    let mut impatient = served(IMPATIENT);
    let silent = impatient.join("silent", &[]);
    wait_for(&mut impatient.job, "host silent (127.0.0.1): 1 of 2 hosts have joined");
    send(silent.pid(), Signal::STOP);
    wait_for(&mut impatient.job, "host silent is gone again: 0 of 2 hosts have joined");
    drop((impatient, silent));

    let mut served = served(PATIENT);
    let mut hosts = served.joined(&["a"]);
    send(hosts[0].pid(), Signal::TERM);
    let text = said(&mut served.job);
    assert!(text.contains("host a is gone again: 0 of 2 hosts have joined"), "{text}");
    let (_, err) = ends(hosts.remove(0), 128 + 15);
    assert!(err.contains("got SIGTERM"), "{err}");
    let hosts = served.joined(&["a", "b"]);
    assert_eq!(ends(served.job, 0).0, "ran\nran\n");
    hosts.into_iter().for_each(|host| _ = ends(host, 0));
}

#[test]
fn hosts_wait_as_long_as_the_launcher_does() {
    let mut served = Served::new(2, &[&IMPATIENT[..], &["-n", "2", "echo", "ran"]].concat());
    let mut hosts = served.joined(&["a"]);
    // Longer than silence may last: time in which it must not end.
    let waiting = [hosts[0].pid(), served.job.pid()];
    assert!(!Watched::new(&waiting).wait_for(Duration::from_secs(8)), "it did not wait");
    send(served.job.pid(), Signal::TERM);
    let (_, err) = ends(served.job, 128 + 15);
    assert!(err.contains("got SIGTERM: no rank runs yet"), "{err}");
    assert!(ends(hosts.remove(0), 1).1.contains("rma-run is gone"));
}

/// One that died a moment before the last came, which the launcher had no time to notice.
#[test]
fn a_host_that_is_gone_when_the_last_comes_makes_room() {
    for _ in 0..3 {
        let mut served = Served::new(2, &[&PATIENT[..], &["-n", "2", "echo", "ran"]].concat());
        let first = served.joined(&["a"]).pop().unwrap();
        let (launcher, host) = (served.job.pid(), first.pid());
        // The hello of the last arrives while the launcher is stopped, and the first one dies.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stop = move || {
            send(launcher, Signal::STOP);
            wait_for_state(launcher, 'T');
        };
        let between = Between::of(listener, &served.address, stop, copied, copied);
        let second = Running::start(&served.join_line(&between.address, "b"));
        wait_for_state(launcher, 'T');
        let died = Watched::new(&[host]);
        send(host, Signal::KILL);
        died.wait();
        between.said_hello.recv().unwrap();
        send(launcher, Signal::CONT);
        wait_for(&mut served.job, "host a is gone again");
        let third = served.join("c", &[]);
        assert_eq!(ends(served.job, 0).0, "ran\nran\n");
        [second, third].into_iter().for_each(|host| _ = ends(host, 0));
        between.end();
    }
}

/// Ctrl-Z and Ctrl-C.
#[test]
fn a_launcher_that_waits_can_be_stopped_and_ended() {
    let mut served = Served::new(2, &[&IMPATIENT[..], &["-n", "2", "echo", "ran"]].concat());
    let host = served.joined(&["a"]).pop().unwrap();
    send(served.job.pid(), Signal::TSTP);
    wait_for_state(served.job.pid(), 'T');
    // Longer than silence may last: time in which it must not end.
    assert!(!Watched::new(&[host.pid()]).wait_for(Duration::from_secs(8)), "it did not wait");
    send(served.job.pid(), Signal::CONT);
    let second = served.join("b", &[]);
    let text = said(&mut served.job);
    assert!(text.contains("host b (127.0.0.1): 2 of 2 hosts have joined"), "{text}");
    assert_eq!(ends(served.job, 0).0, "ran\nran\n");
    [host, second].into_iter().for_each(|host| _ = ends(host, 0));

    let mut served = Served::new(2, &["-n", "2", "echo", "ran"]);
    let host = served.joined(&["a"]).pop().unwrap();
    send(served.job.pid(), Signal::INT);
    let (_, err) = ends(served.job, 128 + 2);
    assert!(err.contains("got SIGINT: no rank runs yet"), "{err}");
    assert!(ends(host, 1).1.contains("rma-run is gone"));
}

#[test]
fn a_wait_for_hosts_has_an_end() {
    let served = Served::new(2, &["--timeout", "0.5", "-n", "2", "echo", "ran"]);
    let (out, err) = ends(served.job, 124);
    assert!(out.is_empty() && err.contains("0 of 2 hosts have joined"), "{err}");
    let folder = tempfile::tempdir().unwrap();
    let secret = write_secret(&folder, "secret");
    let (_socket, port) = deaf_port();
    let line = ["join", &port, "--secret-file", &secret, "--timeout", "0.5"];
    let output = job(&line);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("within 0.5 s") && text.contains("refused"), "{text}");
}

/// A port that no other process has as long as the socket is there, which does not listen.
fn deaf_port() -> (OwnedFd, String) {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = SocketAddrV4::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, address.to_string())
}

/// Nor is a name waited for that no server answers for.
#[test]
fn a_name_that_is_not_found_in_time_ends_a_try() {
    const NETWORK: &str = "ip link add name v0 type veth peer name v1 && ip link set v0 up &&
        ip link set v1 up && ip addr add 192.0.2.2/24 dev v0 &&
        ip neigh add 192.0.2.1 lladdr 02:00:00:00:00:01 dev v0 nud permanent &&
        mount --bind \"$0\" /etc/resolv.conf";
    let folder = tempfile::tempdir().unwrap();
    let (secret, file) = (write_secret(&folder, "secret"), path(&folder, "resolv.conf"));
    // To that address, all is lost.
    std::fs::write(&file, "nameserver 192.0.2.1\noptions timeout:30 attempts:5\n").unwrap();
    let unshared = |script: &str, words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-mn", "sh", "-c", &format!("{NETWORK} && {script}"), &file]).args(words);
        command
    };
    let tried = unshared("true", &[]).output().unwrap();
    if !tried.status.success() {
        let why = stderr(&tried);
        eprintln!("a_name_that_is_not_found_in_time_ends_a_try is skipped: not permitted: {why}");
        return;
    }
    let words = [env!("CARGO_BIN_EXE_rma-run"), "join", "host.example:1", "--secret-file", &secret];
    let host = Running::of(unshared("exec \"$@\"", &[&words[..], &["--timeout", "0.5"]].concat()));
    // Far more than it takes, and less than the answer would.
    assert!(Watched::new(&[host.pid()]).wait_for(Duration::from_secs(100)), "it waits for a name");
    assert!(ends(host, 1).1.contains("within 0.5 s"));
}

#[test]
fn a_host_that_comes_first_tries_again() {
    let served = Served::new(1, &["-n", "1", "echo", "ran"]);
    let (socket, port) = deaf_port();
    let mut host = Running::start(&served.join_line(&port, "a"));
    let text = said(&mut host);
    assert!(text.contains("it is tried again for 60 s"), "{text}");
    listen(&socket, 8).unwrap();
    let between = Between::of(socket.into(), &served.address, || (), copied, copied);
    assert_eq!(ends(served.job, 0).0, "ran\n");
    ends(host, 0);
    between.end();
}

#[test]
fn a_host_that_does_not_know_the_secret_is_refused() {
    let mut served = Served::new(1, &["-n", "1", "echo", "ran"]);
    let wrong = write_secret(&served.folder, "wrong");
    let output = job(&["join", &served.address, "--secret-file", &wrong, "--timeout", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("it has another secret"), "{}", stderr(&output));
    let text = said(&mut served.job);
    assert!(text.contains("127.0.0.1 does not know the secret"), "{text}");
    let hosts = served.joined(&["a"]);
    assert_eq!(ends(served.job, 0).0, "ran\n");
    hosts.into_iter().for_each(|host| _ = ends(host, 0));
}

/// A process that answers in the launcher's place, and does not know the secret, gets nothing
/// started, and keeps no host from its launcher.
#[test]
fn a_launcher_that_does_not_know_the_secret_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut served = Served::new(1, &["-n", "1", "echo", "ran"]);
    let mut host = Running::start(&served.join_line(&address, "a"));
    let (mut stream, _) = listener.accept().unwrap();
    // A challenge of this version, and a welcome with a proof that is made up.
    let silence = [&10u64.to_le_bytes()[..], &0u32.to_le_bytes()].concat();
    let welcome = [&[0][..], &1u32.to_le_bytes(), b"a", &silence, &[2; 32]].concat();
    let challenge = read_frame(&mut TcpStream::connect(&served.address).unwrap()).unwrap();
    stream.write_all(&challenge).unwrap();
    read_frame(&mut stream).unwrap();
    stream.write_all(&framed(&welcome)).unwrap();
    wait_for(&mut host, "does not know the secret, so it is not the launcher");
    // A refusal that no launcher has proved.
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&challenge).unwrap();
    read_frame(&mut stream).unwrap();
    stream.write_all(&framed(&[1, 0])).unwrap();
    wait_for(&mut host, "refuses this host: it has another secret");
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n").unwrap();
    wait_for(&mut host, "is no `rma-run serve`");
    let between = Between::of(listener, &served.address, || (), copied, copied);
    wait_for(&mut served.job, "1 of 1 hosts have joined");
    assert_eq!(ends(served.job, 0).0, "ran\n");
    ends(host, 0);
    between.end();
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], body].concat()
}

/// Strangers that are silent, send noise or leave keep no host out.
#[test]
fn strangers_keep_no_host_out() {
    let mut served = Served::new(1, &["-n", "1", "echo", "ran"]);
    let call = || TcpStream::connect(&served.address).unwrap();
    let silent: Vec<_> = (0..200).map(|_| call()).collect();
    let mut noisy: Vec<_> = (0..50).map(|_| call()).collect();
    // A frame of 4 GiB; and one that is no hello.
    noisy.iter_mut().for_each(|stream| _ = stream.write_all(&[0xff; 64]));
    let mut odd = call();
    odd.write_all(&framed(&[1; 9])).unwrap();
    drop(call());
    // Of silent callers, the first are dropped, which ends their connection.
    let mut first = &silent[0];
    first.read_to_end(&mut Vec::new()).unwrap();
    let host = served.join("a", &[]);
    let mut text = said(&mut served.job);
    while text.contains("refused a connection") {
        text = said(&mut served.job);
    }
    assert!(text.contains("host a (127.0.0.1): 1 of 1 hosts have joined"), "{text}");
    assert_eq!(ends(served.job, 0).0, "ran\n");
    ends(host, 0);
}

#[test]
fn a_secret_that_others_may_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let secret = write_secret(&folder, "secret");
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o644)).unwrap();
    for line in [
        &["serve", "--joins", "1", "--secret-file", &secret, "-n", "1", "true"][..],
        &["join", "127.0.0.1:1", "--secret-file", &secret],
    ] {
        let output = job(line);
        assert_eq!(output.status.code(), Some(2), "{line:?}");
        assert!(stderr(&output).contains("(mode 0644)"), "{}", stderr(&output));
    }
}

/// A port that no user has chosen is told, whatever else is not.
#[test]
fn a_quiet_launcher_says_where_hosts_join() {
    let served = Served::new(1, &["--quiet", "-n", "1", "echo", "ran"]);
    let host = served.join("a", &[]);
    assert_eq!(ends(served.job, 0), ("ran\n".to_owned(), String::new()));
    ends(host, 0);
}

#[test]
fn what_is_wrong_is_said_before_hosts_are_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let secret = write_secret(&folder, "secret");
    let serve = |rest: &[&str]| {
        let output = job(&[&["serve", "--joins", "2", "--secret-file", &secret], rest].concat());
        assert_eq!(output.status.code(), Some(2), "{rest:?}");
        stderr(&output)
    };
    assert!(serve(&["--hosts", "a,b", "true"]).contains("leave --hosts out"));
    assert!(serve(&["--nodes", "2x2", "true"]).contains("leave --nodes out"));
    assert!(serve(&["--transport", "shm", "true"]).contains("does not reach other hosts"));
    assert!(serve(&["true", ":", "-n", "1", "true"]).contains("give each program its number"));
    let output = job(&["serve", "--joins", "1", "--secret-file", &secret, "no-such-program"]);
    assert_eq!(output.status.code(), Some(127), "{}", stderr(&output));
    assert!(stderr(&output).contains("\"no-such-program\" not found"), "{}", stderr(&output));
    // A subcommand is the very first word.
    let output = job(&["-n", "1", "--", "serve", "--joins", "2"]);
    assert_eq!(output.status.code(), Some(127), "{}", stderr(&output));
}

#[test]
fn a_file_says_how_many_hosts_join() {
    let folder = tempfile::tempdir().unwrap();
    let (secret, file) = (write_secret(&folder, "secret"), path(&folder, "job.toml"));
    let text = format!(
        "joins = 1\nlisten = '127.0.0.1:0'\nsecret-file = '{secret}'\nquiet = true\n
         [[program]]\nn = 2\ncommand = ['echo', 'ran']\n"
    );
    std::fs::write(&file, text).unwrap();
    let served = Served::of(folder, &["serve", "--file", &file]);
    let host = served.join("a", &[]);
    assert_eq!(ends(served.job, 0), ("ran\nran\n".to_owned(), String::new()));
    ends(host, 0);
}

#[test]
fn what_is_wrong_with_a_host_is_said_before_it_joins() {
    let folder = tempfile::tempdir().unwrap();
    let secret = write_secret(&folder, "secret");
    let (_socket, port) = deaf_port();
    let join = |option: &str, value: &str| {
        let output = job(&["join", &port, "--secret-file", &secret, option, value]);
        assert_eq!(output.status.code(), Some(2), "{option} {value}");
        stderr(&output)
    };
    let text = join("--name", "two words");
    assert!(text.contains("\"two words\" is no name of a host: a name has 1 to 64"), "{text}");
    let text = join("--slots", "0");
    assert!(text.contains("a host takes at least one rank"), "{text}");
}

fn host_behind(served: &Served, between: &Between) -> Running {
    Running::start(&served.join_line(&between.address, "a"))
}

#[test]
fn messages_that_are_sent_again_change_nothing() {
    let served = Served::new(1, &["-n", "1", "sh", "-c", "echo one; echo two; exit 5"]);
    let mut before: Vec<Vec<u8>> = Vec::new();
    let words = move |_, frame: Vec<u8>| {
        before.push(frame.clone());
        // Again at once, and the first one again.
        if before.len() > 20 { vec![frame] } else { vec![frame.clone(), frame, before[0].clone()] }
    };
    let between = Between::new(&served.address, words, copied);
    let host = host_behind(&served, &between);
    let (out, err) = ends(served.job, 5);
    assert_eq!(out, "one\ntwo\n");
    assert!(err.contains("host a: messages on its connection that are not its own"), "{err}");
    ends(host, 0);
    between.end();
}

/// What the launcher says is as safe as what hosts say.
#[test]
fn an_order_that_is_altered_ends_the_host() {
    let mark = mark("joins-order");
    let served = Served::new(1, &["-n", "1", "--env", &mark, "sh", "-c", STAY]);
    let between = Between::new(&served.address, copied, fourth_altered);
    let host = host_behind(&served, &between);
    let (_, err) = ends(host, 1);
    assert!(err.contains("message 3 is missing (1 refused: altered"), "{err}");
    let (_, err) = ends(served.job, 1);
    assert!(err.contains("host a: its connection has ended"), "{err}");
    assert!(err.contains("rank 0 was lost with its host"), "{err}");
    between.end();
    assert_eq!(left_behind(&mark), []);
}

#[test]
fn a_message_that_is_altered_loses_the_host() {
    let mark = mark("joins-altered");
    let served = Served::new(1, &["-n", "1", "--env", &mark, "sh", "-c", STAY]);
    let between = Between::new(&served.address, fourth_altered, copied);
    let host = host_behind(&served, &between);
    let (code, _, err) = served.job.end();
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("message 3 is missing (1 refused: altered"), "{err}");
    ends(host, 1);
    between.end();
    assert_eq!(left_behind(&mark), []);
}
