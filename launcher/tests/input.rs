//! What ranks read of the standard input of rma-run.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use support::*;

/// Bytes of every value, more than pipes and windows hold.
fn bytes() -> Vec<u8> {
    (0..1_000_003u32).map(|at| (at % 251) as u8 ^ (at / 65_536) as u8).collect()
}

/// What `cksum` says of bytes.
fn sum_of(bytes: &[u8]) -> String {
    let mut command = Command::new("cksum");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim().to_owned()
}

/// Has each rank say what it reads.
const SUM: &str = "echo $RMA_RANK $(cksum)";

fn lines(out: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = std::str::from_utf8(out).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn one_rank_reads_or_all_do_or_none() {
    let (bytes, empty) = (bytes(), sum_of(b""));
    let sum = sum_of(&bytes);
    for way in WAYS {
        for (readers, sums) in [
            (&[][..], [&sum, &empty]),
            (&["--stdin", "0"], [&sum, &empty]),
            (&["--stdin", "1"], [&empty, &sum]),
            (&["--stdin", "all"], [&sum, &sum]),
            (&["--stdin", "none"], [&empty, &empty]),
        ] {
            let ran = run_in(way, &[readers, &["-q", "sh", "-c", SUM]].concat(), &bytes);
            assert_eq!(ran.code, Some(0), "{way} {readers:?}: {}", ran.err);
            let expected = [format!("0 {}", sums[0]), format!("1 {}", sums[1])];
            assert_eq!(lines(&ran.out), expected, "{way} {readers:?}");
        }
    }
}

#[test]
fn a_rank_that_reads_no_more_holds_no_other_up() {
    let bytes = bytes();
    let sum = sum_of(&bytes);
    for way in WAYS {
        let folder = tempfile::tempdir().unwrap();
        let read = folder.path().join("read");
        // Rank 0 has ended, with a child that keeps its pipe; or it lives, and has closed it.
        let ended = "sleep 1000 <&0 & exit 0".to_owned();
        let closed =
            format!("exec <&-; until [ -e {} ]; do sleep 0.01; done; exit 0", read.display());
        for of_rank_0 in [ended, closed] {
            let script =
                format!("[ $RMA_RANK = 0 ] && {{ {of_rank_0}; }}; {SUM}; touch {}", read.display());
            let ran = run_in(way, &["-q", "--stdin", "all", "sh", "-c", &script], &bytes);
            assert_eq!(ran.code, Some(0), "{way}: {}", ran.err);
            assert_eq!(lines(&ran.out), [format!("1 {sum}")], "{way}: {of_rank_0}");
            std::fs::remove_file(&read).unwrap();
        }
    }
}

#[test]
fn a_slow_rank_holds_the_source_back() {
    let bytes = [bytes(), bytes(), bytes(), bytes()].concat();
    let sum = sum_of(&bytes);
    let (_shell_folder, shell) = remote_shell(SHELL);
    let hosts = ["--hosts", "a:1,b:1", "--ssh-command", shell.to_str().unwrap()];
    for place in [&["-n", "2"][..], &hosts] {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("go");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let script = format!("[ $RMA_RANK = 0 ] && read go < {}; {SUM}", fifo.display());
        let options = ["-q", "--oversubscribe", "--stdin", "all", "sh", "-c", &script];
        let mut job = Running::start(&[place, &options].concat());
        let mut stdin = job.child.stdin.take().unwrap();
        let flags = rustix::fs::fcntl_getfl(&stdin).unwrap();
        rustix::fs::fcntl_setfl(&stdin, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        let mut taken = 0;
        loop {
            match stdin.write(&bytes[taken..]) {
                Ok(count) => taken += count,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            assert!(taken < bytes.len(), "all was taken, though rank 0 has read nothing");
            let patience = std::time::Duration::from_millis(500).try_into().unwrap();
            let mut fds = [PollFd::new(&stdin, PollFlags::OUT)];
            // Both ranks run: rank 1 has taken more than rma-run and pipes hold without it.
            if poll(&mut fds, Some(&patience)).unwrap() == 0 && taken >= 128 << 10 {
                break;
            }
        }
        assert!(taken <= 512 << 10, "{taken} bytes were taken");
        rustix::fs::fcntl_setfl(&stdin, flags).unwrap();
        std::fs::write(&fifo, "go\n").unwrap();
        stdin.write_all(&bytes[taken..]).unwrap();
        drop(stdin);
        let (code, out, err) = job.end();
        assert_eq!(code, Some(0), "{err}");
        assert_eq!(lines(out.as_bytes()), [format!("0 {sum}"), format!("1 {sum}")]);
    }
}

#[test]
fn what_there_is_not_is_nothing_to_read() {
    let empty = sum_of(b"");
    let rma_run = env!("CARGO_BIN_EXE_rma-run");
    for readers in ["0", "1", "all"] {
        let script = format!("exec {rma_run} -n 2 -q --stdin {readers} sh -c '{SUM}' <&-");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        succeeds(&output);
        assert_eq!(sorted(&output), [format!("0 {empty}"), format!("1 {empty}")], "{readers}");
    }
}

#[test]
fn what_cannot_be_read_is_told_and_fails_the_job() {
    let empty = sum_of(b"");
    let (_folder, shell) = remote_shell(SHELL);
    let hosts = ["--hosts", "a:1,b:1", "--ssh-command", shell.to_str().unwrap()];
    for place in [&["-n", "2"][..], &hosts] {
        for (source, script, code) in
            [("/", SUM, 1), ("/", &*format!("{SUM}; exit 3"), 3), ("write only", SUM, 0)]
        {
            let options = [place, &["-q", "--stdin", "all", "sh", "-c", script]].concat();
            let mut command = rma_run(&options);
            // So nohup leaves it: there is nothing to read, and that is no error.
            let write_only = std::fs::File::options().write(true).open("/dev/null");
            let source = std::fs::File::open(source).or(write_only).unwrap();
            let output = command.stdin(source).output().unwrap();
            let (out, err) = (sorted(&output), stderr(&output));
            assert_eq!(output.status.code(), Some(code), "{place:?}: {err}");
            let part = "standard input cannot be read: Is a directory (os error 21); ranks that \
                        read it get 0 bytes";
            assert_eq!(err.matches(part).count(), usize::from(code > 0), "{place:?}: {err}");
            if code != 3 {
                assert_eq!(out, [format!("0 {empty}"), format!("1 {empty}")], "{place:?}");
            }
        }
    }
}

/// A process that shares a file may make reads of it return at once.
#[test]
fn what_is_not_there_yet_is_waited_for() {
    let sum = sum_of(b"late");
    let flags = rustix::pipe::PipeFlags::NONBLOCK | rustix::pipe::PipeFlags::CLOEXEC;
    let (theirs, ours) = rustix::pipe::pipe_with(flags).unwrap();
    let script = format!("echo up; {SUM}");
    let mut command = rma_run(&["-n", "2", "-q", "--stdin", "all", "sh", "-c", &script]);
    command.stdin(theirs).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The pipe that rma-run reads is this process' no more.
    drop(command);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    (0..2).for_each(|_| wait_for(&mut out, "up"));
    rustix::io::write(&ours, b"late").unwrap();
    drop(ours);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut out, &mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(lines(rest.as_bytes()), [format!("0 {sum}"), format!("1 {sum}")]);
}

#[test]
fn readers_that_are_none_are_refused() {
    let (_folder, shell) = remote_shell(SHELL);
    let hosts = ["--hosts", "a:1,b:1", "--ssh-command", shell.to_str().unwrap()];
    for place in [&["-n", "2"][..], &hosts] {
        let output = job(&[place, &["--stdin", "2", "echo", "ran"]].concat());
        assert_eq!((output.status.code(), &*stdout(&output)), (Some(2), ""));
        let part = "standard input is for rank 2, but ranks are 0 to 1: name one of these, or all";
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
    for odd in ["1,2", "-1", "some", ""] {
        let output = job(&["-n", "2", &format!("--stdin={odd}"), "echo", "ran"]);
        assert_eq!((output.status.code(), &*stdout(&output)), (Some(2), ""), "{odd}");
        let part = "write the number of one rank, all or none";
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

/// A job whose standard input is a terminal that it has, if there are such here.
fn on_a_terminal(
    line: &str,
) -> Option<(std::process::Child, BufReader<std::process::ChildStdout>)> {
    if let Err(error) = Command::new("script").arg("--version").output() {
        eprintln!("skipped: no script: {error}");
        return None;
    }
    // A shell may have started the tests with signals ignored that a terminal sends.
    let line = format!("env --default-signal {} {line}", env!("CARGO_BIN_EXE_rma-run"));
    let mut command = Command::new("script");
    command.args(["-qefc", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    Some((child, out))
}

/// Reads until a line has that part.
fn wait_for(out: &mut impl BufRead, part: &str) {
    let mut line = String::new();
    while !line.contains(part) {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "no {part}");
    }
}

#[test]
fn a_terminal_feeds_all_ranks_until_its_end() {
    let Some((mut child, mut out)) = on_a_terminal("-q -l -n 2 --stdin all sh -c 'head -n 1; cat'")
    else {
        return;
    };
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"typed\n").unwrap();
    // In any order.
    let mut seen = [false; 2];
    while seen != [true; 2] {
        let mut line = String::new();
        assert_ne!(out.read_line(&mut line).unwrap(), 0);
        for (rank, seen) in seen.iter_mut().enumerate() {
            *seen |= line.contains(&format!("[{rank}] typed"));
        }
    }
    stdin.write_all(b"\x04").unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_terminal_that_feeds_all_ranks_interrupts_them() {
    let line = "-q -n 2 --stdin all sh -c 'read line; echo has $line; cat'";
    let Some((mut child, mut out)) = on_a_terminal(line) else { return };
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"one\n").unwrap();
    (0..2).for_each(|_| wait_for(&mut out, "has one"));
    stdin.write_all(b"\x03").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 2));
}
