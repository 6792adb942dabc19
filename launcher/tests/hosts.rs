//! Jobs on several hosts. A script is the remote shell: it runs the agent on this machine, with an
//! environment and a session of its own, as one elsewhere would be.

mod support;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use rustix::process::Signal;
use support::*;

/// Hosts of some kinds, by their names; all others are in order.
const SHELL: &str = r#"#!/bin/sh
case $1 in
    nowhere) echo "ssh: Could not resolve hostname nowhere" >&2; exit 255;;
    bare) exec sh -c "exec /no/such/rma-run agent";;
    silent) exit 0;;
    slow) echo here > "${0%/*}/asked"; cat "${0%/*}/let-in";;
    chatty) echo "Welcome to $1"; printf 'no end of a line';;
    older) echo "rma-run agent 0"; exec cat;;
    altered) sh -c "exec $2" | LC_ALL=C stdbuf -o0 tr A B; exit;;
    other) set -- "$1" "'${0%/*}/other-build' ${2#*\' }";;
    udp) set -- "$1" "env FI_PROVIDER=udp $2";;
esac
[ "$1" = chatty ] && echo
cd /
exec setsid --wait env -i PATH="$PATH" LANG=C sh -c "exec $2"
"#;

struct Remote {
    folder: tempfile::TempDir,
}

/// A copy of rma-run that is another build.
fn other_build(remote: &Remote) {
    let other = remote.path("other-build");
    std::fs::copy(env!("CARGO_BIN_EXE_rma-run"), &other).unwrap();
    std::fs::OpenOptions::new().append(true).open(&other).unwrap().write_all(b"x").unwrap();
}

impl Remote {
    fn new() -> Remote {
        Remote { folder: remote_shell(SHELL).0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn line<'a>(&self, hosts: &'a str, rest: &[&'a str]) -> Vec<String> {
        let shell = self.path("rsh").display().to_string();
        let line = ["--hosts", hosts, "--ssh-command", &shell, "--oversubscribe"];
        line.iter().chain(rest).map(|&word| word.to_owned()).collect()
    }

    fn job(&self, hosts: &str, rest: &[&str]) -> Output {
        let line = self.line(hosts, rest);
        job(&line.iter().map(|word| &**word).collect::<Vec<_>>())
    }

    fn start(&self, hosts: &str, rest: &[&str]) -> Running {
        let line = self.line(hosts, rest);
        Running::start(&line.iter().map(|word| &**word).collect::<Vec<_>>())
    }

    #[track_caller]
    fn refused(&self, hosts: &str, code: i32, part: &str) {
        let output = self.job(hosts, &["echo", "ran"]);
        let text = stderr(&output);
        assert_eq!((output.status.code(), &*stdout(&output)), (Some(code), ""), "{text}");
        assert!(text.contains(part), "{text}");
    }
}

/// A rank that tells of its agent, and then stays.
const STAY: &str = "echo host $RMA_NODE pid $PPID; sleep 1000 & wait";

/// The agents of those hosts, as ranks that [`STAY`] tell of them.
fn agents(job: &mut Running, hosts: usize) -> Vec<rustix::process::Pid> {
    let mut lines: Vec<String> = (0..hosts).map(|_| job.line()).collect();
    lines.sort();
    lines.iter().map(|line| pid_in(line)).collect()
}

#[test]
fn ranks_of_all_hosts_know_their_place() {
    let remote = Remote::new();
    let script = "echo $RMA_RANK $RMA_SIZE $RMA_NODE $RMA_LOCAL_RANK $RMA_LOCAL_SIZE";
    let output = remote.job("a:2,b:1", &["-l", "sh", "-c", script]);
    succeeds(&output);
    assert_eq!(sorted(&output), ["[0] 0 3 0 0 2", "[1] 1 3 0 1 2", "[2] 2 3 1 0 1"]);
    let hosts = remote.path("hosts");
    std::fs::write(&hosts, "a slots=1 # one\nb:2\n").unwrap();
    let shell = remote.path("rsh").display().to_string();
    let line = ["--hostfile", hosts.to_str().unwrap(), "--ssh-command", &shell, "-q", "-n", "2"];
    let output = job(&[&line[..], &["sh", "-c", script]].concat());
    assert_eq!(sorted(&output), ["0 2 0 0 1", "1 2 1 0 1"]);
}

#[test]
fn ranks_are_dealt_to_hosts_in_turn() {
    let remote = Remote::new();
    let script = "echo $RMA_RANK on $RMA_NODE";
    let output = remote.job("a:4,b:4", &["-n", "3", "--map-by", "node", "sh", "-c", script]);
    succeeds(&output);
    assert_eq!(sorted(&output), ["0 on 0", "1 on 0", "2 on 1"]);
    let output = remote.job("a:4,b:4", &["-n", "3", "sh", "-c", script]);
    assert_eq!(sorted(&output), ["0 on 0", "1 on 0", "2 on 0"]);
    // Nodes that are pretended have equal shares anyway; and no rank is bound by that.
    let line = ["--nodes", "2x2", "--map-by", "node", "--explain", "true"];
    let output = job(&line);
    succeeds(&output);
    assert!(stderr(&output).contains("explain: binding: none"), "{}", stderr(&output));
    let script = "grep Cpus_allowed_list /proc/self/status";
    let output = remote.job("a:1,b:1", &["--map-by", "thread", "--explain", "sh", "-c", script]);
    succeeds(&output);
    let text = stderr(&output);
    assert!(text.contains("explain: binding: thread, mapped by thread (on each host"), "{text}");
    let cpus = sorted(&output);
    assert!(cpus.len() == 2 && cpus[0] == cpus[1], "the first thread of each: {cpus:?}");
}

#[test]
fn a_job_of_several_programs_is_on_several_hosts() {
    let remote = Remote::new();
    let say = |word: &str| format!("echo {word} $RMA_RANK of $RMA_SIZE on $RMA_NODE $OWN");
    let (first, second, third) = (say("a"), say("b"), say("c"));
    let line = [
        &["-n", "1", "--env", "OWN=x", "sh", "-c", &first][..],
        &[":", "-n", "2", "--env", "OWN=y", "sh", "-c", &second],
        &[":", "-n", "1", "sh", "-c", &third],
    ];
    let output = remote.job("a:2,b:3", &line.concat());
    succeeds(&output);
    let expected = ["a 0 of 4 on 0 x", "b 1 of 4 on 0 y", "b 2 of 4 on 1 y", "c 3 of 4 on 1"];
    assert_eq!(sorted(&output), expected);
    // Of each program, its own error; and no rank runs.
    let line = ["-n", "1", "echo", "ran", ":", "-n", "1", "no-such-program"];
    let output = remote.job("a,b", &line);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(127), ""));
    let line = ["echo", "ran", ":", "-n", "1", "echo", "ran"];
    let output = remote.job("a:1,b:1", &line);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(2), ""));
    assert!(stderr(&output).contains("give each program its number of ranks"), "{output:?}");
    let line = ["-n", "2", "echo", "ran", ":", "-n", "2", "echo", "ran"];
    let output = remote.job("a:1,b:2", &line);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(2), ""));
    assert!(stderr(&output).contains("4 ranks were asked for, but the hosts take 3"), "{output:?}");
}

#[test]
fn the_environment_is_passed_by_rule() {
    let remote = Remote::new();
    let folder = remote.folder.path().canonicalize().unwrap();
    let folder = folder.to_str().unwrap();
    let script = "echo $RMA_TEST_A-$FI_TEST_B-$OTHER_C-$SAID_D; pwd";
    let rest = ["--env", "SAID_D=d", "--wdir", folder, "sh", "-c", script];
    let line = remote.line("a", &rest);
    let mut command = rma_run(&line.iter().map(|word| &**word).collect::<Vec<_>>());
    command.envs([("RMA_TEST_A", "a"), ("FI_TEST_B", "b"), ("OTHER_C", "c")]);
    let output = command.output().unwrap();
    succeeds(&output);
    assert_eq!(stdout(&output), format!("a-b--d\n{folder}\n"));
}

#[test]
fn ranks_of_all_hosts_join() {
    let remote = Remote::new();
    let output = remote.job("a:2,b:2", &[&rank_program(), ""]);
    succeeds(&output);
    let expected: Vec<_> = (0..4).map(|rank| format!("rank {rank} of 4")).collect();
    assert_eq!(sorted(&output), expected);
}

#[test]
fn a_failing_rank_ends_the_job_on_all_hosts() {
    let remote = Remote::new();
    let mark = mark("hosts-3");
    let script = "[ $RMA_RANK = 2 ] && exit 3; sleep 1000 & wait";
    let output = remote.job("a:2,b:2", &["--env", &mark, "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("rank 2 exited with status 3"), "{}", stderr(&output));
    assert_eq!(left_behind(&mark), []);
    let script = "[ $RMA_RANK = 1 ] && kill -SEGV $$; sleep 1000";
    let output = remote.job("a,b", &["sh", "-c", script]);
    assert_eq!(output.status.code(), Some(128 + 11));
}

#[test]
fn bytes_are_what_ranks_read_and_print() {
    let remote = Remote::new();
    let mut job = remote.start("a:1,b:1", &["sh", "-c", "cat; head -c 3000000 /dev/zero"]);
    let input: Vec<u8> = (0..1_000_000u32).map(|at| (at % 251) as u8 | 0x80).collect();
    let mut to = job.child.stdin.take().unwrap();
    let feed = std::thread::spawn({
        let input = input.clone();
        move || to.write_all(&input).unwrap()
    });
    let mut printed = Vec::new();
    job.stdout.read_to_end(&mut printed).unwrap();
    feed.join().unwrap();
    assert_eq!(job.child.wait().unwrap().code(), Some(0));
    let zeros = printed.iter().filter(|byte| **byte == 0).count();
    printed.retain(|byte| *byte >= 0x80);
    let (len, same) = (printed.len(), printed == input);
    // A line of one rank that another cuts is ended, which adds no byte of these.
    assert_eq!((zeros, len, same), (6_000_000, input.len(), true));
}

/// Bytes that something between changes.
#[test]
fn what_is_altered_on_the_way_is_not_taken_for_what_ranks_print() {
    let remote = Remote::new();
    let output = remote.job("altered:1", &["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' A"]);
    let text = stderr(&output);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(1), ""), "{text}");
    assert!(text.contains("somebody interferes with"), "{text}");
    assert!(text.contains("messages that are not its own were refused"), "{text}");
}

/// What is under way when a rank ends reaches a reader that takes its time.
#[test]
fn a_slow_reader_gets_all_that_was_printed() {
    const BYTES: usize = 1_500_000;
    let remote = Remote::new();
    let script = format!("echo pid $PPID; echo pid $$; exec head -c {BYTES} /dev/zero");
    let mut job = remote.start("a:1", &["sh", "-c", &script]);
    let pids = job.pids(2);
    // The rank ends when the last of it fits into the pipes on the way: room is made bit by bit.
    let (mut count, mut piece) = (0, [0; 4096]);
    while !Watched::new(&pids[1..]).wait_for(Duration::from_millis(20)) {
        count += job.stdout.read(&mut piece).unwrap();
    }
    // Its agent has to stay until the rest is taken; time in which it must not end.
    Watched::new(&pids[..1]).wait_for(Duration::from_secs(2));
    let (code, rest, err) = job.end();
    assert_eq!((code, count + rest.len()), (Some(0), BYTES), "{err}");
}

#[test]
fn output_goes_to_files_here() {
    let remote = Remote::new();
    let folder = remote.path("out");
    let script = "echo out $RMA_RANK; echo err >&2";
    let rest = ["--output-dir", folder.to_str().unwrap(), "sh", "-c", script];
    succeeds(&remote.job("a:1,b:1", &rest));
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!((&*read("rank-0.out"), &*read("rank-1.out")), ("out 0\n", "out 1\n"));
    assert_eq!(read("rank-1.err"), "err\n");
}

/// A disk that takes nothing holds up neither hosts nor signals.
#[test]
fn a_file_that_cannot_be_written_loses_no_host() {
    let remote = Remote::new();
    let folder = remote.path("out");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("rank-0.out");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let fifo = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let mark = mark("hosts-disk");
    let script = "head -c 1000000 /dev/zero";
    let rest = ["--output-dir", folder.to_str().unwrap(), "--env", &mark, "sh", "-c", script];
    let job = remote.start("a:1", &rest);
    until_full(&fifo);
    send(job.pid(), Signal::TERM);
    let (code, _, err) = job.end();
    assert_eq!(code, Some(128 + 15), "{err}");
    assert_eq!(left_behind(&mark), []);
}

#[test]
fn signals_reach_ranks_of_all_hosts() {
    let remote = Remote::new();
    let mark = mark("hosts-term");
    let mut job = remote.start("a:1,b:1", &["--env", &mark, "sh", "-c", STAY]);
    agents(&mut job, 2);
    send(job.pid(), Signal::TERM);
    let (code, _, err) = job.end();
    assert_eq!(code, Some(128 + 15), "{err}");
    assert_eq!(left_behind(&mark), []);
}

/// A host that logs in until the pipe of that name is written to and closed; it has told that it is
/// there.
fn logging_in(remote: &Remote, rest: &[&str]) -> (Running, PathBuf) {
    let [asked, let_in] = ["asked", "let-in"].map(|name| remote.path(name));
    for fifo in [&asked, &let_in] {
        assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
    }
    let job = remote.start("slow:1", rest);
    assert_eq!(std::fs::read_to_string(asked).unwrap(), "here\n");
    (job, let_in)
}

#[test]
fn signals_while_a_host_logs_in_do_no_harm() {
    let remote = Remote::new();
    let (mut job, let_in) = logging_in(&remote, &["sh", "-c", "echo ran; cat"]);
    for signal in [Signal::WINCH, Signal::USR1, Signal::TSTP] {
        send(job.pid(), signal);
    }
    wait_for_state(job.pid(), 'T');
    send(job.pid(), Signal::CONT);
    std::fs::write(let_in, "").unwrap();
    assert_eq!(job.line(), "ran");
    let (code, _, err) = job.end();
    assert_eq!((code, &*err), (Some(0), ""));
}

#[test]
fn a_signal_ends_a_job_whose_hosts_log_in() {
    let remote = Remote::new();
    let (job, _) = logging_in(&remote, &["echo", "ran"]);
    send(job.pid(), Signal::TERM);
    let (code, out, err) = job.end();
    assert_eq!((code, &*out), (Some(128 + 15), ""), "{err}");
}

#[test]
fn a_time_limit_ends_a_job_whose_hosts_log_in() {
    let remote = Remote::new();
    let let_in = remote.path("let-in");
    assert!(std::process::Command::new("mkfifo").arg(&let_in).status().unwrap().success());
    let output = remote.job("slow:1", &["--timeout", "0.5", "echo", "ran"]);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(124), ""));
    assert!(stderr(&output).contains("(--timeout); no rank ran yet\n"), "{}", stderr(&output));
}

#[test]
fn a_killed_agent_ends_the_job() {
    let remote = Remote::new();
    let mark = mark("hosts-agent");
    let mut job = remote.start("a:1,b:1", &["--env", &mark, "sh", "-c", STAY]);
    let agents = agents(&mut job, 2);
    send(agents[1], Signal::KILL);
    let (code, _, err) = job.end();
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("host b: ") && err.contains("rank 1 is lost with it"), "{err}");
    assert!(err.contains("rank 1 was lost with its host"), "{err}");
    assert_eq!(left_behind(&mark), []);
}

#[test]
fn a_silent_host_is_lost() {
    let remote = Remote::new();
    let mark = mark("hosts-silent");
    let rest = ["--host-timeout", "2", "--env", &mark, "sh", "-c", STAY];
    let mut job = remote.start("a:1,b:1", &rest);
    let agents = agents(&mut job, 2);
    send(agents[0], Signal::STOP);
    let (code, _, err) = job.end();
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("host a: it has said nothing for 2 s; rank 0 is lost"), "{err}");
    // When it goes on, it finds its connection gone.
    send(agents[0], Signal::CONT);
    assert_eq!(left_behind(&mark), []);
}

#[test]
fn hosts_end_their_ranks_when_the_launcher_is_gone() {
    let remote = Remote::new();
    for signal in [Signal::KILL, Signal::STOP] {
        let mark = mark(&format!("hosts-launcher-{}", signal.as_raw()));
        let rest = ["--host-timeout", "2", "--env", &mark, "sh", "-c", STAY];
        let mut job = remote.start("a:1,b:1", &rest);
        agents(&mut job, 2);
        send(job.pid(), signal);
        assert_eq!(left_behind(&mark), [], "{signal:?}");
        drop(job);
    }
}

#[test]
fn hosts_are_queried_what_their_ranks_do() {
    let remote = Remote::new();
    let script = format!("echo agent pid $PPID; exec {} wait", rank_program());
    let mut job = remote.start("a:1,b:1", &["--host-timeout", "600", "-l", "sh", "-c", &script]);
    let launcher = job.pid().as_raw_nonzero().to_string();
    // Before it listens, nothing is said.
    let asked = |words: &[&str]| stdout(&rma_run(words).output().unwrap());
    let why = || asked(&["why", &launcher, "--json"]);
    // Rank 0 waits for its input, and rank 1 for rank 0.
    let both = ["\"state\": \"tells nothing\"", "\"state\": \"joins\""];
    while !both.iter().all(|state| why().contains(state)) {}
    let top = asked(&["top", &launcher, "--once", "--interval", "0.01", "--json"]);
    let uses = |rank: &str| rank.contains("resident_bytes\": ") && !rank.contains("bytes\": null");
    assert_eq!(top.lines().filter(|rank| uses(rank)).count(), 2, "{top}");
    // Ranks tell of themselves, too.
    let mut line = job.line();
    while !line.starts_with("[0] agent ") {
        line = job.line();
    }
    let agent = pid_in(&line);
    send(agent, Signal::STOP);
    let silent = why();
    assert!(silent.contains("\"state\": \"on a, which does not answer\""), "{silent}");
    assert!(silent.contains(both[1]), "{silent}");
    send(agent, Signal::CONT);
    while !why().contains(both[0]) {}
    let (code, _, err) = job.end();
    assert_eq!(code, Some(0), "{err}");
}

/// Ranks that have lost the launcher may print, which no process reads, before they are ended.
#[test]
fn last_words_without_a_launcher_end_no_rank() {
    let remote = Remote::new();
    let mark = mark("hosts-words");
    let told = remote.path("told");
    let script = format!(
        "trap 'head -c 1000000 /dev/zero && echo told > {}; exit' TERM
         echo ready; sleep 1000 & wait",
        told.display()
    );
    let mut job = remote.start("a:1", &["--env", &mark, "sh", "-c", &script]);
    assert_eq!(job.line(), "ready");
    send(job.pid(), Signal::KILL);
    assert_eq!(left_behind(&mark), []);
    assert_eq!(std::fs::read_to_string(told).unwrap(), "told\n");
}

#[test]
fn ranks_stop_and_go_on_with_the_launcher() {
    let remote = Remote::new();
    let fifo = remote.path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // A reader of the pipe waits until there is a writer.
    let script = format!("echo pid $$; exec 3< {}; echo went on", fifo.display());
    let rest = ["--host-timeout", "2", "sh", "-c", &script];
    let mut job = remote.start("a:1,b:1", &rest);
    let ranks = job.pids(2);
    // Time in which no rank must end: longer than that of hosts, and none.
    for time in [Duration::from_secs(4), Duration::ZERO, Duration::ZERO] {
        send(job.pid(), Signal::TSTP);
        wait_for_state(job.pid(), 'T');
        ranks.iter().for_each(|rank| wait_for_state(*rank, 'T'));
        assert!(!Watched::new(&ranks).wait_for(time), "a rank has ended");
        send(job.pid(), Signal::CONT);
        ranks.iter().for_each(|rank| wait_for_state(*rank, 'S'));
    }
    let writer = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    let (code, out, err) = job.end();
    drop(writer);
    assert_eq!((code, out.matches("went on").count()), (Some(0), 2), "{err}");
}

#[test]
fn hosts_that_cannot_do_their_part_are_named() {
    let remote = Remote::new();
    other_build(&remote);

    remote.refused("nowhere", 1, "Could not resolve hostname nowhere");
    remote.refused("a,nowhere", 1, "host nowhere: ");
    remote.refused("bare", 1, "found no rma-run there");
    remote.refused("silent", 1, "ended before an agent spoke");
    remote.refused("older", 1, "of another version");
    remote.refused("other", 1, "is another build than here");
    remote.refused("a,a", 2, "host a stands there twice");
    remote.refused("a:0", 2, "from 1 on");
    remote.refused("a,-oX", 2, "\"-oX\" is no name of a host");
    remote.refused("a,..", 2, "\"..\" is no name of a host");
    let output = remote.job("a:2,b:1", &["-n", "4", "true"]);
    assert!(stderr(&output).contains("take 3 (a:2,b:1)"), "{}", stderr(&output));
    let output = remote.job("a", &["--wdir", "/proc/self/fd/0/none", "true"]);
    assert!(stderr(&output).contains("ranks cannot run in"), "{}", stderr(&output));
    succeeds(&remote.job("chatty", &["true"]));
    let output = job(&["--hosts", "localhost:2", "-q", "echo", "here"]);
    assert_eq!(stdout(&output), "here\nhere\n", "{}", stderr(&output));
}

#[test]
fn hosts_and_pretended_nodes_do_not_mix() {
    for (line, part) in [
        (&["--hosts", "a,b", "--transport", "shm", "true"][..], "does not reach other hosts"),
        (&["--hosts", "a,b", "--config", "nodes=2", "true"], "each host is a node"),
        (&["--hosts", "a,b", "--nodes", "2x1", "true"], "--nodes"),
        (&["--ssh-command", "rsh", "-n", "1", "true"], "--hosts"),
        (&["--hosts", "a,b", "--host-timeout", "1", "true"], "at least 2"),
        (&["--hosts", "a,b", "--ssh-command", " ", "true"], "--ssh-command is empty"),
        (&["--hosts", "a:2000000000", "true"], "2000000000 ranks on hosts were asked for"),
    ] {
        let output = job(line);
        assert_eq!(output.status.code(), Some(2), "{line:?}");
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

/// What the doctor is called with for those hosts.
fn doctor(remote: &Remote, hosts: &str, rest: &[&str]) -> std::process::Command {
    let shell = remote.path("rsh").display().to_string();
    rma_run(&[&["doctor", "--hosts", hosts, "--ssh-command", &shell], rest].concat())
}

#[test]
fn hosts_are_examined_where_their_ranks_would_run() {
    let remote = Remote::new();
    let output = doctor(&remote, "a:2", &[]).output().unwrap();
    succeeds(&output);
    let text = stdout(&output);
    let (here, host) = text.split_once("\nhost a:\n").unwrap();
    assert!(here.starts_with("here:\n") && here.contains("ssh: "), "{text}");
    for topic in ["versions", "ranks", "peers", "copies", "libfabric", "time"] {
        assert!(host.contains(&format!("{topic}: ")), "{topic}: {text}");
    }
    assert!(!text.contains("differences:") && !text.contains("not tried"), "{text}");
    let hosts = remote.path("hosts");
    std::fs::write(&hosts, "a slots=3\n").unwrap();
    let shell = remote.path("rsh").display().to_string();
    let line = ["doctor", "--hostfile", hosts.to_str().unwrap(), "--ssh-command", &shell, "--json"];
    let json = stdout(&job(&line));
    assert!(json.contains("\"values\": {\"asked\": \"3\"}"), "{json}");
    // A script that is here has the limits of this process.
    let limited = "ulimit -n 256 && exec \"$0\" doctor --hosts a:1000 --ssh-command \"$1\"";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_rma-run"), &shell]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("BAD  ranks: 1000 ranks were asked for"), "{output:?}");
}

#[test]
fn hosts_that_are_not_reached_or_differ_are_named_by_the_doctor() {
    let remote = Remote::new();
    other_build(&remote);
    let hosts = "a,nowhere,bare,silent,older,other,chatty";
    let output = doctor(&remote, hosts, &[]).output().unwrap();
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}{}", stderr(&output));
    for (host, part) in [
        ("nowhere", "Could not resolve hostname nowhere"),
        ("bare", "found no rma-run there"),
        ("silent", "ended before an agent spoke"),
        ("older", "of another version than here"),
    ] {
        let told = text.split_once(&format!("\nhost {host}:\nBAD  not reached: ")).unwrap().1;
        assert!(told.split("\nhost ").next().unwrap().contains(part), "{host}: {text}");
    }
    let differences = text.split_once("\ndifferences:\n").unwrap().1;
    let build = differences.lines().find(|line| line.starts_with("BAD  versions build: ")).unwrap();
    assert!(build.contains("(here, a, chatty)") && build.contains("(other)"), "{build}");
    let json = stdout(&doctor(&remote, hosts, &["--json"]).output().unwrap());
    let lost = "{\"host\": \"nowhere\", \"reached\": false, \"why\": \"";
    assert!(json.contains(lost), "{json}");
    assert!(json.contains("{\"topic\": \"versions build\", \"health\": \"bad\""), "{json}");
}

/// Where there is no libfabric, that is what is bad on both.
#[test]
fn the_doctor_hears_of_libfabric_what_ranks_of_a_host_would() {
    let remote = Remote::new();
    let output = doctor(&remote, "a,udp", &[]).output().unwrap();
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    if text.contains("BAD  libfabric: libfabric cannot be loaded") {
        return;
    }
    let provider = text.lines().find(|line| line.starts_with("BAD  libfabric provider: "));
    let provider = provider.unwrap_or_else(|| panic!("{text}"));
    assert!(provider.contains("udp") && provider.contains("(udp); "), "{provider}");
    // Variables of libfabric go to hosts, as they go to ranks.
    let mut command = doctor(&remote, "a,b", &[]);
    let output = command.env("FI_PROVIDER", "udp").output().unwrap();
    let text = stdout(&output);
    let by = text.lines().filter(|line| line.contains("ranks reach other hosts by udp"));
    assert_eq!((output.status.code(), by.count()), (Some(0), 2), "{text}");
}

#[test]
fn a_host_that_takes_too_long_is_not_reached_and_leaves_nothing() {
    let remote = Remote::new();
    let let_in = remote.path("let-in");
    assert!(std::process::Command::new("mkfifo").arg(&let_in).status().unwrap().success());
    let mark = mark("doctor-slow");
    let (name, value) = mark.split_once('=').unwrap();
    let mut command = doctor(&remote, "slow", &["--timeout", "0.5"]);
    let output = command.env(name, value).output().unwrap();
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("has shown no agent in 0.5 s (--timeout)"), "{text}");
    assert_eq!(left_behind(&mark), []);
}

#[test]
fn a_signal_ends_the_doctor_and_leaves_nothing() {
    let remote = Remote::new();
    let [asked, let_in] = ["asked", "let-in"].map(|name| remote.path(name));
    for fifo in [&asked, &let_in] {
        assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
    }
    let mark = mark("doctor-term");
    let (name, value) = mark.split_once('=').unwrap();
    let mut command = doctor(&remote, "slow", &[]);
    command.env(name, value);
    let job = Running::of(command);
    assert_eq!(std::fs::read_to_string(asked).unwrap(), "here\n");
    send(job.pid(), Signal::TSTP);
    wait_for_state(job.pid(), 'T');
    send(job.pid(), Signal::CONT);
    send(job.pid(), Signal::TERM);
    let (code, out, err) = job.end();
    assert_eq!((code, &*out), (Some(128 + 15), ""), "{err}");
    assert_eq!(left_behind(&mark), []);
}

#[test]
fn hosts_that_are_none_are_refused_by_the_doctor() {
    for (line, part) in [
        (&["doctor", "--hosts", "a,a"][..], "host a stands there twice"),
        (&["doctor", "--hosts", "a", "--ssh-command", " "], "--ssh-command is empty"),
        (&["doctor", "--ssh-command", "rsh"], "--hosts"),
        (&["doctor", "--hostfile", "/no/such/file"], "/no/such/file: cannot be read"),
        (&["doctor", "--hosts", "a", "--hostfile", "b"], "cannot be used with"),
    ] {
        let output = job(line);
        assert_eq!((output.status.code(), &*stdout(&output)), (Some(2), ""), "{line:?}");
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}
