//! Jobs on many hosts, some of which are reached by others. A script is the remote shell; it writes
//! down which host has reached which.

mod support;

use std::io::{BufRead, Read, Write};
use std::process::Output;
use std::time::Duration;

use rustix::process::Signal;
use support::*;

const SHELL: &str = r#"#!/bin/sh
echo "${HOST:-launcher} $1" >> "${0%/*}/ways"
case $1 in
    nowhere) echo "ssh: Could not resolve hostname nowhere" >&2; exit 255;;
    noisy) echo "welcome" >&2; head -c 10000000 /dev/zero >&2;;
    endless) exec yes;;
    other) set -- "$1" "'${0%/*}/other-build' agent";;
esac
cd /
exec setsid --wait env -i PATH="$PATH" LANG=C AT="${0%/*}" HOST="$1" sh -c "exec $2"
"#;

struct Tree {
    folder: tempfile::TempDir,
    line: Vec<String>,
}

impl Tree {
    /// Those hosts.
    fn new(hosts: &str, fan_out: &str) -> Tree {
        let (folder, shell) = remote_shell(SHELL);
        let shell = shell.to_str().unwrap();
        let line = ["--hosts", hosts, "--ssh-command", shell, "--fan-out", fan_out];
        let line = line.iter().chain(&["--oversubscribe"]).map(|&word| word.to_owned()).collect();
        Tree { folder, line }
    }

    /// So many hosts, of a rank each.
    fn of(hosts: usize, fan_out: &str) -> Tree {
        let names: Vec<_> = (0..hosts).map(|host| format!("{}:1", name(host))).collect();
        Tree::new(&names.join(","), fan_out)
    }

    fn line<'a>(&'a self, rest: &[&'a str]) -> Vec<&'a str> {
        self.line.iter().map(|word| &**word).chain(rest.iter().copied()).collect()
    }

    fn job(&self, rest: &[&str]) -> Output {
        job(&self.line(rest))
    }

    fn start(&self, rest: &[&str]) -> Running {
        Running::start(&self.line(rest))
    }

    /// Agents, and remote shells that those have started, that stay.
    fn stays(&self) -> Vec<i32> {
        left_behind(&format!("AT={}", self.folder.path().display()))
    }

    /// Which host has reached which.
    fn ways(&self) -> Vec<String> {
        let ways = std::fs::read_to_string(self.folder.path().join("ways")).unwrap();
        let mut ways: Vec<_> = ways.lines().map(str::to_owned).collect();
        ways.sort();
        ways
    }
}

/// Of a host: an address, which takes no time to look up.
fn name(host: usize) -> String {
    format!("127.0.1.{host}")
}

/// Which launcher or host has reached which host, of those that are in a row.
fn row(hosts: usize) -> Vec<String> {
    let by = |host: usize| host.checked_sub(1).map_or("launcher".to_owned(), name);
    let mut ways: Vec<_> = (0..hosts).map(|host| format!("{} {}", by(host), name(host))).collect();
    ways.sort();
    ways
}

/// Ranks that tell of their agents, and stay.
const STAY: &str = "echo host $RMA_NODE pid $PPID; sleep 1000 & wait";

/// The agents of so many hosts, in their order.
fn agents(job: &mut Running, hosts: usize) -> Vec<rustix::process::Pid> {
    let mut agents: Vec<_> = (0..hosts)
        .map(|_| {
            let line = job.line();
            let host: usize = line.split(' ').nth(1).unwrap().parse().unwrap();
            (host, pid_in(&line))
        })
        .collect();
    agents.sort_by_key(|(host, _)| *host);
    agents.into_iter().map(|(_, pid)| pid).collect()
}

#[test]
fn many_hosts_are_reached_by_others() {
    let tree = Tree::of(24, "4");
    let output = tree.job(&[&rank_program(), ""]);
    succeeds(&output);
    let mut expected: Vec<_> = (0..24).map(|rank| format!("rank {rank} of 24")).collect();
    expected.sort();
    assert_eq!(sorted(&output), expected);
    let by = |host: usize| match host {
        0..4 => "launcher".to_owned(),
        _ => name(host / 4 - 1),
    };
    let mut ways: Vec<_> = (0..24).map(|host| format!("{} {}", by(host), name(host))).collect();
    ways.sort();
    assert_eq!(tree.ways(), ways);
}

#[test]
fn all_are_reached_from_here_where_that_is_asked_for() {
    let tree = Tree::of(3, "0");
    succeeds(&tree.job(&["true"]));
    assert_eq!(tree.ways(), [0, 1, 2].map(|host| format!("launcher {}", name(host))));
}

#[test]
fn a_rank_that_fails_on_the_last_host_of_a_row_ends_the_job() {
    let tree = Tree::of(5, "1");
    let mark = mark("tree-fails");
    let script = "[ $RMA_RANK = 4 ] && { echo why >&2; exit 3; }; sleep 1000 & wait";
    let output = tree.job(&["--env", &mark, "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains("why\n") && text.contains("rank 4 exited with status 3"), "{text}");
    assert_eq!(left_behind(&mark), []);
    assert_eq!(tree.stays(), []);
    assert_eq!(tree.ways(), row(5));
}

#[test]
fn signals_and_questions_reach_the_last_host_of_a_row() {
    let tree = Tree::of(4, "1");
    let mark = mark("tree-term");
    let script = "trap 'echo rank $RMA_RANK ends; exit 0' TERM; echo up; sleep 1000 & wait";
    let mut job = tree.start(&["--env", &mark, "sh", "-c", script]);
    (0..4).for_each(|_| assert_eq!(job.line(), "up"));
    let launcher = job.pid().as_raw_nonzero().to_string();
    let top = ["top", &launcher, "--once", "--interval", "0.01", "--json"];
    let seen = stdout(&rma_run(&top).output().unwrap());
    let uses = |rank: &str| rank.contains("resident_bytes\": ") && !rank.contains("bytes\": null");
    assert_eq!(seen.lines().filter(|rank| uses(rank)).count(), 4, "{seen}");
    send(job.pid(), Signal::TERM);
    let (code, out, err) = job.end();
    let mut ends: Vec<_> = out.lines().collect();
    ends.sort_unstable();
    assert_eq!(ends, ["rank 0 ends", "rank 1 ends", "rank 2 ends", "rank 3 ends"], "{err}");
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(left_behind(&mark), []);
    assert_eq!(tree.stays(), []);
}

#[test]
fn hosts_are_lost_with_the_one_that_reaches_them() {
    let tree = Tree::of(7, "2");
    let mark = mark("tree-agent");
    let mut job = tree.start(&["--env", &mark, "sh", "-c", STAY]);
    // It reaches hosts 2 and 3, and 2 reaches host 6.
    send(agents(&mut job, 7)[0], Signal::KILL);
    let (code, _, err) = job.end();
    assert_eq!(code, Some(1), "{err}");
    for (host, by) in [(2, 0), (3, 0), (6, 2)].map(|(host, by)| (name(host), name(by))) {
        let lost = format!("host {host}: host {by}, by which it is reached, is lost");
        assert!(err.contains(&lost), "{err}");
    }
    assert!(err.contains("rank 0 was lost with its host"), "{err}");
    assert_eq!(left_behind(&mark), []);
    assert_eq!(tree.stays(), []);
}

#[test]
fn hosts_go_on_when_one_that_reaches_none_is_lost() {
    let tree = Tree::of(4, "1");
    let script = format!("{STAY}; echo never");
    let mut job = tree.start(&["--on-failure", "continue", "sh", "-c", &script]);
    let agents = agents(&mut job, 4);
    send(agents[3], Signal::KILL);
    let mut text = String::new();
    while !text.contains("rank 3 is lost with it") {
        let mut byte = [0];
        job.stderr.read_exact(&mut byte).unwrap();
        text.push(byte[0].into());
    }
    // Others are there still.
    send(job.pid(), Signal::TERM);
    let (code, _, err) = job.end();
    assert!(!err.contains("is lost"), "{err}");
    assert_eq!(code, Some(1), "{err}");
    assert_eq!(tree.stays(), []);
}

#[test]
fn a_silent_host_is_lost_with_those_that_it_reaches() {
    let tree = Tree::of(3, "1");
    let mark = mark("tree-silent");
    // It has more to say than the one behind it, which was heard before it last.
    let more = "[ $RMA_RANK = 1 ] && while sleep 0.01; do echo more >&2; done";
    let script = STAY.replace("; sleep", &format!("; {more}; sleep"));
    let rest = ["--host-timeout", "2", "--env", &mark, "sh", "-c", &script];
    let mut job = tree.start(&rest);
    let agents = agents(&mut job, 3);
    (0..40).for_each(|_| _ = job.stderr.read_line(&mut String::new()).unwrap());
    send(agents[1], Signal::STOP);
    let (code, _, err) = job.end();
    assert_eq!(code, Some(1), "{err}");
    let silent = format!("host {}: it has said nothing for 2 s; rank 1 is lost with it", name(1));
    assert!(err.contains(&silent), "{err}");
    assert!(err.contains("rank 1 was lost with its host"), "{err}");
    let behind = format!("host {}: host {}, by which it is reached, is lost", name(2), name(1));
    assert!(err.contains(&behind), "{err}");
    // When it goes on, it finds its connection gone, unless the other host has ended it: here, it
    // is a process of the same machine.
    let _ = rustix::process::kill_process(agents[1], Signal::CONT);
    assert_eq!(left_behind(&mark), []);
    assert_eq!(tree.stays(), []);
}

#[test]
fn ranks_of_a_row_stop_and_go_on_with_the_launcher() {
    let tree = Tree::of(3, "1");
    let fifo = tree.folder.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // A reader of the pipe waits until there is a writer.
    let script = format!("echo pid $$; exec 3< {}; echo went on", fifo.display());
    let mut job = tree.start(&["--host-timeout", "2", "sh", "-c", &script]);
    let ranks = job.pids(3);
    send(job.pid(), Signal::TSTP);
    wait_for_state(job.pid(), 'T');
    // Time in which no rank must end: longer than that of hosts.
    assert!(!Watched::new(&ranks).wait_for(Duration::from_secs(4)), "a rank has ended");
    send(job.pid(), Signal::CONT);
    ranks.iter().for_each(|rank| wait_for_state(*rank, 'S'));
    let writer = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    let (code, out, err) = job.end();
    drop(writer);
    assert_eq!((code, out.matches("went on").count()), (Some(0), 3), "{err}");
}

#[test]
fn nothing_is_left_on_any_host_without_the_launcher() {
    for signal in [Signal::KILL, Signal::STOP] {
        let tree = Tree::of(4, "1");
        let mark = mark(&format!("tree-launcher-{}", signal.as_raw()));
        let rest = ["--host-timeout", "2", "--env", &mark, "sh", "-c", STAY];
        let mut job = tree.start(&rest);
        agents(&mut job, 4);
        send(job.pid(), signal);
        assert_eq!(left_behind(&mark), [], "{signal:?}");
        assert_eq!(tree.stays(), [], "{signal:?}");
        drop(job);
    }
}

#[test]
fn bytes_pass_through_other_hosts_unchanged() {
    let tree = Tree::of(4, "1");
    let script = "[ $RMA_RANK = 3 ] || exit 0; yes 0123456 | head -c 20000000; exit 7";
    let mut job = tree.start(&["sh", "-c", script]);
    let mut printed = Vec::new();
    job.stdout.read_to_end(&mut printed).unwrap();
    assert_eq!(job.child.wait().unwrap().code(), Some(7));
    let whole = b"0123456\n".repeat(20_000_000 / 8);
    assert!(printed == whole, "{} bytes", printed.len());
    assert_eq!(tree.stays(), []);
}

/// Rank 0 is on the first host, which passes on what is for others.
#[test]
fn input_is_read_while_others_print() {
    let tree = Tree::of(3, "1");
    let script =
        "case $RMA_RANK in 0) wc -c;; *) head -c 2000000 /dev/zero | tr '\\0' x; echo;; esac";
    let mut job = tree.start(&["sh", "-c", script]);
    let mut to = job.child.stdin.take().unwrap();
    let feed = std::thread::spawn(move || to.write_all(&vec![b'y'; 3_000_000]).unwrap());
    let mut printed = String::new();
    job.stdout.read_to_string(&mut printed).unwrap();
    feed.join().unwrap();
    assert_eq!(job.child.wait().unwrap().code(), Some(0));
    assert_eq!(printed.matches('x').count(), 4_000_000);
    assert!(printed.lines().any(|line| line.trim() == "3000000"));
}

#[test]
fn a_host_that_cannot_do_its_part_ends_with_those_behind_it() {
    let tree = Tree::new("a,other,b,c", "1");
    let other = tree.folder.path().join("other-build");
    std::fs::copy(env!("CARGO_BIN_EXE_rma-run"), &other).unwrap();
    std::fs::OpenOptions::new().append(true).open(&other).unwrap().write_all(b"x").unwrap();
    // Those behind it end by its end, and not by silence.
    let output = tree.job(&["--host-timeout", "600", "echo", "ran"]);
    let text = stderr(&output);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(1), ""), "{text}");
    assert!(text.contains("host other: ") && text.contains("another build"), "{text}");
    assert_eq!(tree.stays(), []);
}

#[test]
fn what_goes_wrong_behind_another_host_is_named_with_it() {
    let refused = |hosts: &str, part: &str| {
        let tree = Tree::new(hosts, "1");
        let output = tree.job(&["echo", "ran"]);
        let text = stderr(&output);
        assert_eq!((output.status.code(), &*stdout(&output)), (Some(1), ""), "{text}");
        assert!(text.contains(part), "{text}");
        assert_eq!(tree.stays(), [], "{hosts}");
    };
    refused("a,nowhere", "Could not resolve hostname nowhere");
    refused("a,nowhere", " on host a did not get there");
    let ways =
        "; hosts have to reach each other, or say --fan-out 0, which has all reached from here\n";
    refused("a,nowhere", ways);
    refused("a,nowhere,c", "host nowhere: ");
    refused("a,endless", "printed much, but showed no agent");
    let noisy = Tree::new("a,noisy", "1");
    succeeds(&noisy.job(&["-q", "true"]));
    // The other host has no such remote shell.
    let (folder, _) = remote_shell(&SHELL.replace("\"$PATH\"", "/usr/bin:/bin"));
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let line = ["--hosts", "a,b", "--ssh-command", "rsh", "--fan-out", "1", "echo", "ran"];
    let mut command = rma_run(&line);
    let output = command.env("PATH", path).output().unwrap();
    let text = stderr(&output);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(1), ""), "{text}");
    assert!(text.contains("host b: `rsh b ") && text.contains("cannot be started"), "{text}");
    assert!(text.contains(&format!("(on host a){ways}")), "{text}");
}
