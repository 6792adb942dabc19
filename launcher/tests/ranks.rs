//! Jobs of programs that join: the bootstrap, and every way to leave it.

mod support;

use std::io::{BufRead, Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;
use support::*;

#[test]
fn ranks_find_each_other_and_leave() {
    let output = ranks(&["-n", "3", "-l", "-q"], "");
    succeeds(&output);
    assert_eq!(sorted(&output), ["[0] rank 0 of 3", "[1] rank 1 of 3", "[2] rank 2 of 3"]);
    assert_eq!(stderr(&output), "");
}

#[test]
fn sixty_four_ranks_start() {
    let output = ranks(&["-n", "64", "-q"], "");
    succeeds(&output);
    let mut expected: Vec<_> = (0..64).map(|rank| format!("rank {rank} of 64")).collect();
    expected.sort();
    assert_eq!(sorted(&output), expected);
}

#[test]
fn a_rank_that_no_launcher_started_is_alone() {
    let output = std::process::Command::new(rank_program()).env_clear().output().unwrap();
    succeeds(&output);
    assert_eq!(stdout(&output), "alone\n");
    let refused = std::process::Command::new(rank_program())
        .env_clear()
        .env("OMPI_COMM_WORLD_SIZE", "2")
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(9));
    assert!(stderr(&refused).contains("OMPI_COMM_WORLD_SIZE"), "{}", stderr(&refused));
}

#[test]
fn ranks_learn_what_was_decided() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let plain = ranks(&["-n", "1", "-q"], "job");
    let expected = format!("cores {cores} explain false wait None\n");
    assert!(stdout(&plain).starts_with(&expected), "{}", stdout(&plain));

    let count = (cores + 1).to_string();
    let options = ["-n", &count, "-q", "--bind", "core", "--explain", "--wait-timeout", "2.5"];
    let output = ranks(&options, "job");
    succeeds(&output);
    let told: Vec<_> = sorted(&output).into_iter().filter(|l| l.starts_with("cores")).collect();
    assert_eq!(told.len(), cores + 1);
    for line in told {
        assert_eq!(line, format!("cores {cores} explain true wait Some(2.5s)"));
    }
}

#[test]
fn a_rank_that_exits_without_leaving_fails_the_job() {
    let output = ranks(&["-n", "3", "-q"], "never-leave");
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("rank 1 exited with status 0 without finalizing"), "{text}");
}

#[test]
fn a_rank_that_exits_before_joining_fails_the_job() {
    let output = ranks(&["-n", "3", "-q"], "never-join");
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("rank 1 exited with status 0 without initializing"), "{text}");
}

#[test]
fn the_rank_that_failed_first_is_blamed_not_those_that_fail_because_of_it() {
    let output = ranks(&["-n", "3", "-q"], "fail");
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stderr(&output).contains("rank 1 exited with status 7"), "{}", stderr(&output));
}

/// The launcher hears of the end of a rank that fails because of another before it hears of that
/// one's.
#[test]
fn a_rank_that_is_killed_is_blamed_though_another_that_misses_it_ended_before() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut job = Running::start(&["-n", "2", &rank_program(), "miss", pipe.to_str().unwrap()]);
    let mut lines = [job.line(), job.line()];
    lines.sort();
    let [killed, misses] = lines.map(|line| pid_in(&line));
    send(job.pid(), Signal::STOP);
    wait_for_state(job.pid(), 'T');
    let ended = |pid| Watched::new(&[pid]);
    let (first, second) = (ended(misses), ended(killed));
    std::fs::write(&pipe, "x").unwrap();
    first.wait();
    send(killed, Signal::KILL);
    second.wait();
    send(job.pid(), Signal::CONT);
    let (code, _, err) = job.end();
    assert_eq!(code, Some(128 + 9), "{err}");
    assert!(err.contains("rank 0 was ended by signal 9"), "{err}");
}

#[test]
fn a_rank_that_says_it_failed_but_lingers_does_not_hold_the_job_up() {
    let output = ranks(&["-n", "2", "-q"], "hang-after-failing");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("rank 1 reported that it failed"), "{}", stderr(&output));
}

#[test]
fn a_second_process_cannot_be_the_same_rank() {
    let output = ranks(&["-n", "2", "-q"], "join-twice");
    succeeds(&output);
    assert!(stdout(&output).contains("refused: another process is this rank already"));
}

#[test]
fn a_rank_under_a_script_ends_with_a_killed_launcher() {
    let script = format!("{} wait; exit $?", rank_program());
    let mut job = Running::start(&["-n", "2", "-q", "sh", "-c", &script]);
    let watched = Watched::new(&job.pids(2));
    send(job.pid(), Signal::KILL);
    watched.wait();
}

/// A job whose ranks joined and wait; rank 0 goes on with a line of input.
fn waiting() -> (Running, String, Vec<rustix::process::Pid>) {
    let program = rank_program();
    let mut job = Running::start(&["-n", "2", "--oversubscribe", &program, "wait"]);
    let lines = [job.line(), job.line()];
    let address = lines[0].split_once(" at ").unwrap().1.to_owned();
    (job, address, lines.iter().map(|line| pid_in(line)).collect())
}

fn goes_on(mut job: Running) {
    job.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let (code, out, err) = job.end();
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("rank 0 of 2\n") && out.contains("rank 1 of 2\n"), "{out}");
}

/// Sends `bytes` to the bootstrap port; returns once the launcher hung up.
fn stranger(address: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    // A reset is as good as an end.
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn garbage_on_the_bootstrap_port_does_not_disturb_the_job() {
    let (mut job, address, _) = waiting();
    stranger(&address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stranger(&address, &[0xff; 5000]);
    stranger(&address, &[0, 0, 0, 0]);
    stranger(&address, &[10, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    let mut note = String::new();
    job.stderr.read_line(&mut note).unwrap();
    assert!(note.contains("refused a connection to the bootstrap port"), "{note}");
    job.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let (code, _, rest) = job.end();
    assert_eq!((code, rest.as_str()), (Some(0), ""), "noted once");
}

#[test]
fn callers_that_vanish_are_not_mentioned() {
    let (mut job, address, _) = waiting();
    for _ in 0..10 {
        drop(TcpStream::connect(&address).unwrap());
    }
    job.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let (code, _, err) = job.end();
    assert_eq!((code, err.as_str()), (Some(0), ""));
}

#[test]
fn what_a_rank_starts_does_not_have_the_secret() {
    let (job, _, pids) = waiting();
    for pid in pids {
        let process = format!("/proc/{}", pid.as_raw_nonzero());
        let environment = std::fs::read(format!("{process}/environ")).unwrap();
        let mut variables = environment.split(|byte| *byte == 0);
        let name = variables.find_map(|entry| entry.strip_prefix(b"RMA_SECRET_FD=")).unwrap();
        let name = std::str::from_utf8(name).unwrap();
        let [descriptor, _, inode] = *name.split(':').collect::<Vec<_>>() else { panic!("{name}") };
        let pipe = format!("pipe:[{inode}]");
        for entry in std::fs::read_dir(format!("{process}/fd")).unwrap() {
            let entry = entry.unwrap();
            if std::fs::read_link(entry.path()).is_ok_and(|file| file.to_str() == Some(&pipe)) {
                assert_eq!(entry.file_name().to_str(), Some(descriptor));
                assert_eq!(std::fs::read(entry.path()).unwrap(), b"", "{pipe} is empty");
            }
        }
        let flags = std::fs::read_to_string(format!("{process}/fdinfo/{descriptor}")).unwrap();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
        assert_ne!(
            flags & rustix::fs::OFlags::CLOEXEC.bits(),
            0,
            "{flags:o}: programs would inherit {pipe}"
        );
    }
    goes_on(job);
}

#[test]
fn a_hello_without_the_secret_is_refused() {
    let (job, address, _) = waiting();
    let mut stream = TcpStream::connect(&address).unwrap();
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).unwrap();
    let mut challenge = vec![0; u32::from_le_bytes(prefix) as usize];
    stream.read_exact(&mut challenge).unwrap();
    assert_eq!(challenge[..8], *b"rma-boot");
    // A well-formed hello: a version, rank 0, process 1, a nonce, and a proof that is none.
    let mut hello = vec![74, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    hello.extend([0; 64]);
    stream.write_all(&hello).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer, [2, 0, 0, 0, 1, 3], "refused for its secret, and told no more");
    goes_on(job);
}

#[test]
fn hundreds_of_silent_strangers_do_not_keep_a_rank_out() {
    // The ranks join only after the strangers have come: the script waits for a line.
    let script = format!(
        "echo $RMA_BOOTSTRAP; if [ $RMA_RANK = 0 ]; then read go; else exec {0}; fi; exec {0}",
        rank_program()
    );
    let mut job = Running::start(&["-n", "1", "-q", "sh", "-c", &script]);
    let address = job.line();
    let strangers: Vec<_> = (0..300).map(|_| TcpStream::connect(&address).unwrap()).collect();
    job.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let (code, out, err) = job.end();
    assert_eq!((code, out.as_str()), (Some(0), "rank 0 of 1\n"), "{err}");
    drop(strangers);
}

#[test]
fn a_rank_that_is_stopped_for_two_seconds_breaks_nothing() {
    let (mut job, _, pids) = waiting();
    send(pids[1], Signal::STOP);
    job.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let stopped_for = std::time::Duration::from_secs(2);
    assert!(!Watched::new(&[job.pid()]).wait_for(stopped_for), "the job waits for the rank");
    send(pids[1], Signal::CONT);
    let (code, out, err) = job.end();
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("rank 0 of 2\n") && out.contains("rank 1 of 2\n"), "{out}");
}

#[test]
fn a_rank_that_is_killed_ends_the_job_while_another_is_stopped() {
    let (job, _, pids) = waiting();
    send(pids[0], Signal::STOP);
    send(pids[1], Signal::KILL);
    let (code, _, err) = job.end();
    assert_eq!(code, Some(128 + 9));
    assert!(err.contains("was ended by signal 9 (SIGKILL)"), "{err}");
}

#[test]
fn nothing_is_left_in_dev_shm() {
    let names = || {
        let folder = std::fs::read_dir("/dev/shm").unwrap();
        let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.contains("rma")).collect::<Vec<_>>()
    };
    let before = names();
    succeeds(&ranks(&["-n", "2", "-q"], ""));
    assert_eq!(names(), before);
}
