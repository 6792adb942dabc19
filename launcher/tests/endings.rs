//! Signals that end jobs, and what is left of jobs whose launcher or warden is killed.

mod support;

use std::io::Read;
use std::process::Command;

use rustix::process::{Pid, Signal};
use support::*;

/// Ranks that hear of a signal and go on.
const DEAF: &str = "for s in INT TERM HUP QUIT; do trap \"echo $s\" $s; done; echo pid $$; \
                    while :; do sleep 0.01; done";

fn code(signal: Signal) -> Option<i32> {
    Some(128 + signal.as_raw())
}

#[test]
fn ranks_that_go_on_are_killed_after_a_grace() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        let options = ["-n", "2", "--kill-after", "0.2", "sh", "-c", DEAF];
        let mut job = Running::start(&options);
        job.pids(2);
        send(job.pid(), signal);
        let (status, _, err) = job.end();
        assert_eq!(status, code(signal), "{err}");
        assert!(err.contains("ranks 0-1 did not end by themselves, and were killed"), "{err}");
    }
}

#[test]
fn any_second_signal_kills() {
    // Without Ctrl-C, two signals at once are one request.
    let signals = [
        (Signal::TERM, "TERM", Signal::INT),
        (Signal::HUP, "HUP", Signal::INT),
        (Signal::QUIT, "QUIT", Signal::INT),
        (Signal::INT, "INT", Signal::TERM),
        (Signal::INT, "INT", Signal::QUIT),
    ];
    for (first, name, second) in signals {
        // Only the second signal ends it before the watchdog of these tests does.
        let options = ["-n", "1", "--kill-after", "10000", "sh", "-c", DEAF];
        let mut job = Running::start(&options);
        job.pids(1);
        send(job.pid(), first);
        assert_eq!(job.line(), name);
        send(job.pid(), second);
        let (status, _, err) = job.end();
        assert_eq!(status, code(second), "{err}");
        assert!(err.contains("rank 0 was killed at the second signal"), "{err}");
    }
}

#[test]
fn a_rank_that_saves_its_state_has_the_time_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("go");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let saves = format!(
        "if [ $RMA_RANK = 0 ]; then trap 'read x < {}; echo saved; exit 0' TERM; echo pid $$; \
         while :; do sleep 0.01; done; else echo pid $$; exec sleep 1000; fi",
        fifo.display()
    );
    let mut job = Running::start(&["-n", "2", "sh", "-c", &saves]);
    let watched = Watched::new(&job.pids(2));
    send(job.pid(), Signal::TERM);
    // Rank 1, which has no use for the signal, is gone first.
    assert!(watched.wait_for(std::time::Duration::from_secs(60)));
    std::fs::write(&fifo, "go\n").unwrap();
    let (status, out, err) = job.end();
    assert_eq!((status, out.as_str()), (code(Signal::TERM), "saved\n"), "{err}");
}

#[test]
fn stopped_ranks_end_as_well() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let options = ["-n", "2", "--kill-after", "10000", "sh", "-c"];
        let script = "echo pid $$; kill -STOP $$; exec sleep 1000";
        let mut job = Running::start(&[&options[..], &[script]].concat());
        for pid in job.pids(2) {
            wait_for_state(pid, 'T');
        }
        send(job.pid(), signal);
        let (status, _, err) = job.end();
        assert_eq!(status, code(signal), "{err}");
    }
}

#[test]
fn a_stopped_warden_does_not_hold_a_job_up() {
    let mut job =
        Running::start(&["-n", "2", "sh", "-c", "echo pid $$; [ $RMA_RANK = 1 ] || read x; :"]);
    job.pids(2);
    let warden = warden_of(job.pid(), None);
    send(warden, Signal::STOP);
    wait_for_state(warden, 'T');
    let (status, _, err) = job.end();
    assert_eq!(status, Some(0), "{err}");
}

#[test]
fn signals_that_were_blocked_are_heard() {
    let mut command = Command::new("env");
    command.args(["--default-signal", "--block-signal=TERM", env!("CARGO_BIN_EXE_rma-run")]);
    command.args(["-n", "1", "-q", "sh", "-c", "echo pid $$; exec sleep 1000"]);
    let mut job = Running::of(command);
    job.pids(1);
    send(job.pid(), Signal::TERM);
    let (status, _, err) = job.end();
    assert_eq!(status, code(Signal::TERM), "{err}");
}

#[test]
fn a_signal_while_ranks_are_started_ends_the_job() {
    let mark = mark("starting");
    let options = ["-n", "300", "-q", "--env", &mark, "--kill-after", "10000", "sh", "-c"];
    let script = "trap '' HUP; echo pid $$; exec sleep 1000";
    let mut job = Running::start(&[&options[..], &[script]].concat());
    job.pids(1);
    send(job.pid(), Signal::TERM);
    let (status, _, err) = job.end();
    assert_eq!(
        (status, err.as_str()),
        (code(Signal::TERM), "rma-run: the job was ended by SIGTERM\n")
    );
    assert_eq!(left_behind(&mark), []);
}

#[test]
fn a_launcher_that_is_killed_while_it_starts_ranks_leaves_nothing() {
    const RANKS: usize = 16;
    let mark = mark("start-killed");
    let options = ["-n", "16", "-q", "--oversubscribe", "--env", &mark, "sh", "-c"];
    // Children that a rank has at once, one of them in a session of its own.
    let script = "sleep 1000 & setsid sleep 1000 & echo pid $$; wait";
    for round in 0..100 {
        let mut job = Running::start(&[&options[..], &[script]].concat());
        // Killed somewhere between the first rank's first word and the last one's.
        job.pids(1 + round * 7 % RANKS);
        send(job.pid(), Signal::KILL);
        drop(job);
        assert_eq!(left_behind(&mark), [], "round {round}");
    }
}

#[test]
fn what_left_its_group_ends_with_a_killed_launcher() {
    let mark = mark("left-group");
    let script = "setsid sh -c 'echo pid $$; setsid sleep 1000 & wait' & wait";
    let mut job = Running::start(&["-n", "2", "-q", "--env", &mark, "sh", "-c", script]);
    job.pids(2);
    send(job.pid(), Signal::KILL);
    drop(job);
    assert_eq!(left_behind(&mark), []);
}

#[test]
fn a_killed_warden_is_replaced() {
    let mark = mark("warden-killed");
    let script = "sleep 1000 & echo pid $$; wait";
    let mut job = Running::start(&["-n", "2", "-q", "--env", &mark, "sh", "-c", script]);
    job.pids(2);
    let first: Pid = warden_of(job.pid(), None);
    send(first, Signal::KILL);
    let second = warden_of(job.pid(), Some(first));
    assert_ne!(first, second);
    send(job.pid(), Signal::KILL);
    drop(job);
    assert_eq!(left_behind(&mark), []);
}

#[test]
fn a_warden_that_is_killed_while_ranks_are_started_takes_none_with_it() {
    for round in 0..10 {
        let options = ["-n", "80", "-q", "--oversubscribe", "sh", "-c", "echo pid $$; read x; :"];
        let mut job = Running::start(&options);
        let mut warden = None;
        // Killed again and again, fewer times than it is replaced, while ranks are started.
        for rank in 0..80 {
            job.pids(1);
            if rank % 8 == round % 8 && rank < 64 {
                let next = warden_of(job.pid(), warden);
                // It may have been replaced meanwhile.
                let _ = rustix::process::kill_process(next, Signal::KILL);
                warden = Some(next);
            }
        }
        let (status, _, err) = job.end();
        assert_eq!((status, err.as_str()), (Some(0), ""), "round {round}");
    }
}

#[test]
fn a_signal_that_cuts_output_short_is_the_job_s_end() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("ended");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for signal in [Signal::TERM, Signal::QUIT, Signal::INT] {
        // More than one pipe holds and less than two do, and the test reads none: the rank ends
        // before.
        let script = format!("head -c 100000 /dev/zero; echo ended > {}", fifo.display());
        let mut job = Running::start(&["-n", "1", "-q", "sh", "-c", &script]);
        assert_eq!(std::fs::read(&fifo).unwrap(), b"ended\n");
        without_children(job.pid());
        send(job.pid(), signal);
        assert_eq!(job.child.wait().unwrap().code(), code(signal));
    }
}

/// Waits until a launcher has only its warden.
fn without_children(launcher: Pid) {
    let launcher = launcher.as_raw_nonzero();
    let children = || {
        let threads = std::fs::read_dir(format!("/proc/{launcher}/task")).unwrap();
        let files = threads.map(|thread| thread.unwrap().path().join("children"));
        files.filter_map(|file| std::fs::read_to_string(file).ok()).collect::<String>()
    };
    while children().split_whitespace().count() > 1 {
        std::thread::yield_now();
    }
}

/// The table of what ranks do follows the reason why a job was ended.
#[test]
fn a_job_that_is_ended_says_what_its_ranks_did() {
    let mut job = Running::start(&["-n", "2", "--name", "ended", &rank_program(), "wait"]);
    let launcher = job.pid().as_raw_nonzero().to_string();
    let seen = || stdout(&rma_run(&["why", &launcher, "--json"]).output().unwrap());
    // Rank 1 waits for rank 0 in an exchange, which that comes to when it is told to.
    let both = ["\"state\": \"tells nothing\"", "\"state\": \"joins\""];
    while !both.iter().all(|state| seen().contains(state)) {}
    send(job.pid(), Signal::TERM);
    // Rank 0 goes on when its standard input ends, which is not before it is asked to end.
    let mut err = String::new();
    job.stderr.read_to_string(&mut err).unwrap();
    let (status, _, _) = job.end();
    assert_eq!(status, code(Signal::TERM), "{err}");
    assert!(err.contains("ended by SIGTERM\nrma-run:   RANKS  STATE"), "{err}");
    assert!(err.contains("rma-run:   1      joins"), "{err}");
}

#[test]
fn jobs_are_found_by_name_while_they_run() {
    let mut job = Running::start(&["-n", "1", "--name", "found", "sh", "-c", "echo up; read x"]);
    let why = |name: &str| rma_run(&["why", name]).output().unwrap();
    assert_eq!(job.line(), "up");
    let heading = format!("job {} (found) on ", job.pid().as_raw_nonzero());
    let found = why("found");
    succeeds(&found);
    assert!(stdout(&found).starts_with(&heading), "{}", stdout(&found));
    // A launcher of another test that does not answer, since it is stopped, may be the one.
    let mut other = why("not-found");
    while stderr(&other).contains("does not answer") {
        other = why("not-found");
    }
    assert_eq!(other.status.code(), Some(2), "{}", stderr(&other));
    assert!(stderr(&other).contains(&heading), "{}", stderr(&other));
    let line = ["top", "found", "--once", "--interval", "0.01", "--json"];
    let top = rma_run(&line).output().unwrap();
    succeeds(&top);
    assert!(stdout(&top).contains("\"state\": \"has not joined\""), "{}", stdout(&top));
    job.end();
    let gone = why("found");
    assert!(!gone.status.success() && !stderr(&gone).contains(&heading), "{}", stderr(&gone));
}
