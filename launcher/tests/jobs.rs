//! Jobs of shell scripts: output, exit status, signals, and what is left behind.

mod support;

use std::io::{Read, Write};
use std::process::Stdio;

use rustix::process::Signal;
use support::*;

#[test]
fn lines_are_whole_and_labelled() {
    let script = "i=0; while [ $i -lt 200 ]; do printf 'rank %s ' $RMA_RANK; \
                  printf 'line %s\\n' $i; i=$((i+1)); done; printf 'no end'";
    let output = sh(&["-n", "4", "--label"], script);
    succeeds(&output);
    let text = stdout(&output);
    for rank in 0..4 {
        let label = format!("[{rank}] ");
        let mine: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&label)).collect();
        let mut expected: Vec<_> = (0..200).map(|i| format!("rank {rank} line {i}")).collect();
        expected.push("no end".to_owned());
        assert_eq!(mine, expected, "in order, nothing lost, nothing mixed");
    }
    assert_eq!(text.lines().count(), 4 * 201);
    assert!(text.ends_with("no end"), "nothing is added at the very end");
}

#[test]
fn standard_error_stays_standard_error() {
    let output = sh(&["-n", "2", "-q", "-l"], "echo out; echo err >&2");
    succeeds(&output);
    assert_eq!(sorted(&output), ["[0] out", "[1] out"]);
    assert!(stderr(&output).contains("[1] err\n"));
}

#[test]
fn the_job_exits_as_its_failing_rank_and_ends_the_others() {
    let mark = mark("exit-3");
    let script = "[ $RMA_RANK = 2 ] && exit 3; sleep 1000 & wait";
    let output = sh(&["-n", "4", "--env", &mark], script);
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("rank 2 exited with status 3"), "{}", stderr(&output));
    assert_eq!(marked(&mark), []);
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let mark = mark("ignores");
    // Rank 1 fails only when rank 0 is deaf already.
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("deaf");
    let fifo = fifo.to_str().unwrap();
    let script = format!(
        "if [ $RMA_RANK = 0 ]; then trap '' TERM; echo > {fifo}; while :; do sleep 1000; done; \
         else read x < {fifo}; exit 4; fi"
    );
    assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
    let output = sh(&["-n", "2", "--env", &mark], &script);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(marked(&mark), []);
}

#[test]
fn a_rank_that_dies_by_a_signal_is_named_with_it() {
    let script = "if [ $RMA_RANK = 1 ]; then echo out; echo last words >&2; kill -SEGV $$; fi";
    let output = sh(&["-n", "3"], &format!("{script}; sleep 1000"));
    assert_eq!(output.status.code(), Some(128 + 11));
    let text = stderr(&output);
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let said = format!("rank 1 was ended by signal 11 (SIGSEGV) on {host}");
    assert!(text.contains(&said), "{text}");
    assert!(text.ends_with("\nrma-run:   last words\n"), "{text}");
}

#[test]
fn programs_that_cannot_run_are_refused_as_shells_do() {
    let missing = job(&["-n", "4", "no-such-program-anywhere"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(stderr(&missing).contains("no-such-program-anywhere"), "{}", stderr(&missing));
    assert_eq!(job(&["-n", "4", "/no/such/program"]).status.code(), Some(127));
    let folder = job(&["-n", "4", "/"]);
    assert_eq!(folder.status.code(), Some(126));
    assert_eq!(job(&["-n", "4", "/etc/passwd"]).status.code(), Some(126));

    let dir = tempfile::tempdir().unwrap();
    let garbage = dir.path().join("garbage");
    std::fs::write(&garbage, [0x7f, b'E', b'L', b'F', 0, 0, 0]).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&garbage, mode).unwrap();
    let garbage = job(&["-n", "2", garbage.to_str().unwrap()]);
    assert!(matches!(garbage.status.code(), Some(126 | 127 | 2)), "{garbage:?}");
}

#[test]
fn numbers_of_ranks_that_make_no_sense_are_refused() {
    let none = job(&["-n", "0", "true"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("at least one rank"), "{}", stderr(&none));
    let many = job(&["-n", "4000000000", "true"]);
    assert_eq!(many.status.code(), Some(2));
    let text = stderr(&many);
    assert!(text.contains("4000000000 ranks") && text.contains("leaves room for"), "{text}");
}

#[test]
fn a_limit_of_descriptors_is_named() {
    let mut limited = std::process::Command::new("sh");
    let run = env!("CARGO_BIN_EXE_rma-run");
    let script = format!("ulimit -n 512; {run} --no-pmi -n 200 true; exec {run} -n 200 true");
    let output = limited.args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    let [without, with] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert!(without.contains("512 open files") && without.contains("room for 118"), "{text}");
    assert!(with.contains("5 a rank (4 with --no-pmi), leaves room for 94"), "{text}");
}

#[test]
fn ranks_get_their_soft_limit_of_descriptors_back() {
    let mut limited = std::process::Command::new("sh");
    let run = env!("CARGO_BIN_EXE_rma-run");
    let script = format!("ulimit -S -n 64; exec {run} -q -n 2 sh -c 'ulimit -S -n'");
    let output = limited.args(["-c", &script]).output().unwrap();
    succeeds(&output);
    assert_eq!(sorted(&output), ["64", "64"]);
}

#[test]
fn more_ranks_than_cpus_are_noted_once_unless_meant() {
    let ranks = std::thread::available_parallelism().unwrap().get() + 1;
    let ranks = ranks.to_string();
    let noted = job(&["-n", &ranks, "true"]);
    succeeds(&noted);
    assert_eq!(stderr(&noted).matches("--oversubscribe").count(), 1);
    for option in ["--oversubscribe", "--quiet"] {
        let silent = job(&["-n", &ranks, option, "true"]);
        succeeds(&silent);
        assert_eq!(stderr(&silent), "");
    }
}

#[test]
fn arguments_of_the_program_are_never_ours() {
    let output = job(&["-n", "1", "echo", "-n", "7", "--label", "--help"]);
    succeeds(&output);
    assert_eq!(stdout(&output), "7 --label --help");
}

#[test]
fn standard_input_goes_to_rank_0_only() {
    let mut job = Running::start(&["-n", "3", "-l", "-q", "cat"]);
    job.child.stdin.take().unwrap().write_all(b"one\ntwo").unwrap();
    let (code, out, _) = job.end();
    assert_eq!((code, out.as_str()), (Some(0), "[0] one\n[0] two"));
}

#[test]
fn variables_are_passed_with_the_ranks_own() {
    let secret = "$(wc -c < /proc/self/fd/${RMA_SECRET_FD%%:*})";
    let script = format!("echo $RMA_RANK $GREETING {secret} $RMA_BOOTSTRAP");
    let output = sh(&["-n", "2", "-q", "--env", "GREETING=a=b"], &script);
    succeeds(&output);
    let lines = sorted(&output);
    assert!(lines[0].starts_with("0 a=b 32 127.0.0.1:"), "{lines:?}");
    assert!(lines[1].starts_with("1 a=b 32 127.0.0.1:"), "{lines:?}");
}

#[test]
fn output_goes_to_files_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("new/folder");
    let options = ["-n", "2", "-q", "--output-dir", folder.to_str().unwrap()];
    // Rank 1 fails only when rank 0 has printed everything.
    let script = format!(
        "echo out $RMA_RANK; echo err $RMA_RANK >&2; [ $RMA_RANK = 0 ] || \
         until [ -s {}/rank-0.err ]; do sleep 0.01; done; exit $RMA_RANK",
        folder.display()
    );
    let output = sh(&options, &script);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    assert!(stderr(&output).contains("rank-1.err"), "{}", stderr(&output));
    let read = |name| std::fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!((read("rank-0.out"), read("rank-0.err")), ("out 0\n".into(), "err 0\n".into()));
    assert_eq!((read("rank-1.out"), read("rank-1.err")), ("out 1\n".into(), "err 1\n".into()));

    let refused = sh(&["-n", "2", "--output-dir", "/proc/nowhere"], "echo out");
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("/proc/nowhere"), "{}", stderr(&refused));
}

#[test]
fn ranks_are_bound_in_turn() {
    let script = "grep Cpus_allowed_list /proc/self/status";
    let cpus = |output: &std::process::Output| -> Vec<String> {
        let mut cpus: Vec<_> = stdout(output)
            .lines()
            .map(|l| l.split_whitespace().last().unwrap().to_owned())
            .collect();
        cpus.sort();
        cpus
    };
    let free = cpus(&sh(&["-n", "1", "-q"], script));
    let count = std::thread::available_parallelism().unwrap().get();
    let ranks = (count * 2).to_string();
    let bound = cpus(&sh(&["-n", &ranks, "-q", "--bind", "thread"], script));
    assert_eq!(bound.len(), count * 2);
    for pair in bound.chunks(2) {
        assert_eq!(pair[0], pair[1], "two ranks on each CPU");
        assert!(pair[0].parse::<usize>().is_ok(), "one CPU each, of {free:?}: {bound:?}");
    }
    // As many by thread, however cores are made of them.
    assert_eq!(cpus(&sh(&["-n", &ranks, "-q", "--map-by", "thread"], script)), bound);
    // More of them together are not less than that, and not more than there are.
    for place in ["core", "socket", "numa"] {
        let bound = cpus(&sh(&["-n", "1", "-q", "--bind", place], script));
        let numbers = |list: &str| -> Vec<usize> {
            let run = |run: &str| {
                let (first, last) = run.split_once('-').unwrap_or((run, run));
                first.parse::<usize>().unwrap()..=last.parse().unwrap()
            };
            list.split(',').flat_map(run).collect()
        };
        let (bound, free) = (numbers(&bound[0]), numbers(&free[0]));
        assert!(bound.iter().all(|cpu| free.contains(cpu)), "{place}: {bound:?} of {free:?}");
    }
}

#[test]
fn the_time_limit_ends_the_job_and_names_the_ranks_that_still_ran() {
    let mark = mark("timeout");
    let options = ["-n", "3", "--timeout", "0.5", "--env", &mark];
    let output = sh(&options, "[ $RMA_RANK = 1 ] && exit 0; sleep 1000 & wait");
    assert_eq!(output.status.code(), Some(124));
    assert!(stderr(&output).contains("ranks 0, 2 still ran"), "{}", stderr(&output));
    assert_eq!(marked(&mark), []);
}

#[test]
fn signals_are_passed_on() {
    let script = "trap 'echo usr1; exit 0' USR1; echo pid $$; while :; do sleep 0.01; done";
    let mut job = Running::start(&["-n", "2", "sh", "-c", script]);
    job.pids(2);
    send(job.pid(), Signal::USR1);
    let (code, out, err) = job.end();
    assert_eq!((code, out.as_str()), (Some(0), "usr1\nusr1\n"), "{err}");
}

#[test]
fn an_interrupt_ends_the_job_quietly_and_a_second_one_kills() {
    let mut job = Running::start(&["-n", "2", "-q", "sh", "-c", "echo pid $$; exec sleep 1000"]);
    let pids = Watched::new(&job.pids(2));
    send(job.pid(), Signal::INT);
    pids.wait();
    let (code, _, err) = job.end();
    assert_eq!((code, err.as_str()), (Some(130), "rma-run: the job was ended by SIGINT\n"));

    let deaf = "trap 'echo deaf' INT; trap '' TERM; echo pid $$; while :; do sleep 0.01; done";
    let mut job = Running::start(&["-n", "1", "-q", "sh", "-c", deaf]);
    let pids = Watched::new(&job.pids(1));
    send(job.pid(), Signal::INT);
    assert_eq!(job.line(), "deaf");
    send(job.pid(), Signal::INT);
    pids.wait();
    assert_eq!(job.end().0, Some(130));
}

#[test]
fn a_killed_launcher_leaves_no_process() {
    let mark = mark("killed");
    // A script that starts others; children of children are told nothing by the kernel.
    let script = "sleep 1000 & echo pid $!; sh -c 'echo pid $$; sleep 1000; :' & echo pid $$; wait";
    let mut job = Running::start(&["-n", "3", "-q", "--env", &mark, "sh", "-c", script]);
    job.pids(9);
    let all = loop {
        // Two shells and two sleeps per rank; the inner sleep says nothing.
        let all = marked(&mark);
        if all.len() == 12 {
            break all;
        }
        std::thread::yield_now();
    };
    let all: Vec<_> = all.into_iter().filter_map(rustix::process::Pid::from_raw).collect();
    let watched = Watched::new(&all);
    send(job.pid(), Signal::KILL);
    watched.wait();
    assert_eq!(marked(&mark), []);
}

#[test]
fn what_ranks_leave_behind_is_ended_with_the_job() {
    let mark = mark("daemon");
    let script = "setsid sleep 1000 & sleep 1000 & exit 0";
    let output = sh(&["-n", "2", "-q", "--env", &mark], script);
    succeeds(&output);
    assert_eq!(marked(&mark), []);
}

#[test]
fn the_warden_ends_with_its_job() {
    let mark = mark("warden");
    let mut command = rma_run(&["-n", "1", "-q", "sh", "-c", "echo pid $$; read x"]);
    let (name, value) = mark.split_once('=').unwrap();
    command.env(name, value).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(marked(&mark).len(), 3, "launcher, warden, rank");
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(marked(&mark), []);
}

#[test]
fn an_output_without_a_reader_ends_the_job_quietly() {
    let mut job = Running::start(&["-n", "2", "-q", "yes"]);
    assert_eq!(job.line(), "y");
    drop(std::mem::replace(&mut job.stdout, closed()));
    let mut err = String::new();
    job.stderr.read_to_string(&mut err).unwrap();
    assert_eq!((job.child.wait().unwrap().code(), err.as_str()), (Some(141), ""));
}

/// A pipe's end in place of one that is to be closed.
fn closed() -> std::io::BufReader<std::process::ChildStdout> {
    let mut child = std::process::Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
    child.wait().unwrap();
    std::io::BufReader::new(child.stdout.take().unwrap())
}

#[test]
fn a_full_disk_is_an_error() {
    // One that prints without end, and one that has ended before that is known.
    for program in [&["yes"][..], &["echo", "hi"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = rma_run(&[&["-n", "1", "-q"], program].concat());
        let output = command.stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let text = stderr(&output);
        assert_eq!(text.matches("standard output cannot be written").count(), 1, "{text}");
    }
}

#[test]
fn decisions_are_explained() {
    let output = job(&["-n", "2", "--explain", "--bind", "core", "true"]);
    succeeds(&output);
    let text = stderr(&output);
    for word in ["2 ranks on", "binding: core", "127.0.0.1:", "waiting:", "oversubscribed:"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    for (options, part) in [
        (&["--map-by", "thread"][..], "binding: thread, mapped by thread (ranks in turn on CPUs "),
        (&["--bind", "core", "--map-by", "thread"], "binding: core, mapped by thread (ranks in "),
    ] {
        let output = job(&[&["-n", "1", "--explain"], options, &["true"]].concat());
        succeeds(&output);
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    }
}

#[test]
fn help_shows_two_examples() {
    let output = job(&["--help"]);
    succeeds(&output);
    assert!(stdout(&output).matches("rma-run -n").count() >= 2);
}

#[test]
fn a_reader_that_stands_still_does_not_outlast_two_interrupts() {
    let mut job = Running::start(&["-n", "1", "-q", "sh", "-c", "trap '' INT; echo pid $$; yes"]);
    let pids = job.pids(1);
    let watched = Watched::new(&pids);
    // From here on the launcher's output is not read; every pipe on the way fills up.
    send(job.pid(), Signal::INT);
    send(job.pid(), Signal::TERM);
    watched.wait();
    // Signals that are sent at once arrive in any order; the one that came last is told.
    let code = job.child.wait().unwrap().code().unwrap();
    assert!([128 + 2, 128 + 15].contains(&code), "{code}");
}

#[test]
fn stopping_the_launcher_stops_the_ranks() {
    let state = |pid: rustix::process::Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    };
    let mut job = Running::start(&["-n", "1", "-q", "sh", "-c", "echo pid $$; read x; echo $x"]);
    let rank = job.pids(1)[0];
    send(job.pid(), Signal::TSTP);
    let options = rustix::process::WaitOptions::UNTRACED;
    let (_, stopped) = rustix::process::waitpid(Some(job.pid()), options).unwrap().unwrap();
    assert!(stopped.stopped());
    while state(rank) != 'T' {
        std::thread::yield_now();
    }
    send(job.pid(), Signal::CONT);
    job.child.stdin.as_mut().unwrap().write_all(b"on\n").unwrap();
    let (code, out, _) = job.end();
    assert_eq!((code, out.as_str()), (Some(0), "on\n"));
}

#[test]
fn children_from_before_are_left_alone() {
    let run = env!("CARGO_BIN_EXE_rma-run");
    // `exec` leaves the launcher with a child that is none of the job's.
    let script = format!("(read go; echo survived) <&3 & exec {run} -q -n 1 true");
    let (theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("exec 3<&0 </dev/null; {script}")]);
    shell.stdin(std::os::fd::OwnedFd::from(theirs)).stdout(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    drop(shell);
    assert!(child.wait().unwrap().success());
    (&ours).write_all(b"go\n").unwrap();
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(out, "survived\n");
}

#[test]
fn a_terminal_feeds_rank_0() {
    let script = std::process::Command::new("script").arg("--version").output();
    if script.is_err() {
        return;
    }
    let line = format!("{} -q -l -n 2 cat", env!("CARGO_BIN_EXE_rma-run"));
    let mut command = std::process::Command::new("script");
    command.args(["-qefc", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"typed\n").unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("[0] typed") {
        line.clear();
        assert_ne!(std::io::BufRead::read_line(&mut out, &mut line).unwrap(), 0);
    }
    stdin.write_all(b"\x04").unwrap();
    assert!(child.wait().unwrap().success());
}

/// Settings are checked before any rank is started; what cannot be used names what can.
#[test]
fn settings_that_do_not_exist_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.conf");
    std::fs::write(&file, "outstanding_messages = many\n").unwrap();
    let file = file.to_str().unwrap();
    for (options, parts) in [
        (["--config", "egaer_bytes=1"], ["did you mean \"eager_bytes\"?", "credit_messages"]),
        (["--config", "credit_messages=257"], ["credit_messages", "1 to 256"]),
        (["--config", "outstanding_messages"], ["KEY=VALUE", "--help-config"]),
        (["--config-file", file], ["line 1", "a number of messages, 1 to 1048576"]),
        (["--config-file", "/no/such"], ["/no/such", "cannot be read"]),
        (["--hint", "no_locks=maybe"], ["no_locks", "true or false"]),
    ] {
        let output = job(&["-n", "1", options[0], options[1], "true"]);
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        let said = stderr(&output);
        parts.iter().for_each(|part| assert!(said.contains(part), "{part:?} is not in {said}"));
    }
    succeeds(&job(&["-n", "1", "--config", "eager_bytes=64 KiB", "true"]));
}

#[test]
fn settings_are_listed() {
    let output = job(&["--help-config"]);
    succeeds(&output);
    for part in ["eager_bytes = 16 KiB\n", "wait_timeout = none\n", "rma_path = auto\n"] {
        assert!(stdout(&output).contains(part), "{}", stdout(&output));
    }
}

/// A script in `dir`, and its interpreter, which is another name of the shell.
fn interpreted(dir: &std::path::Path, script: &str) -> (std::path::PathBuf, std::path::PathBuf) {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (program, interpreter) = (dir.join("script"), dir.join("interpreter"));
    symlink("/bin/sh", &interpreter).unwrap();
    std::fs::write(&program, format!("#!{}\n{script}\n", interpreter.display())).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    (program, interpreter)
}

#[test]
fn a_script_without_its_interpreter_is_one_failure() {
    let dir = tempfile::tempdir().unwrap();
    let (program, interpreter) = interpreted(dir.path(), "exit 0");
    std::fs::remove_file(interpreter).unwrap();
    for _ in 0..20 {
        let output = job(&["-n", "100", "-q", program.to_str().unwrap()]);
        let text = stderr(&output);
        assert_ne!(output.status.code(), Some(0));
        assert!(text.contains("rank 0 of 100") && !text.contains("panicked"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn ranks_that_were_started_end_when_a_later_one_cannot_be() {
    let mark = mark("interpreter");
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let script = "sleep 1000 & setsid sleep 1000 & \
                      [ $RMA_RANK != 5 ] || rm -f ${0%script}interpreter; wait";
        let (program, _) = interpreted(dir.path(), script);
        let options = ["-n", "200", "-q", "--env", &mark, program.to_str().unwrap()];
        let output = job(&options);
        let text = stderr(&output);
        assert_ne!(output.status.code(), Some(0));
        assert!(text.contains("of 200") && !text.contains("panicked"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert_eq!(left_behind(&mark), []);
    }
}

#[test]
fn a_job_may_stand_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.toml");
    let file = path.to_str().unwrap();
    let text = r#"
        label = true
        oversubscribe = true
        env = { OF = "all" }

        [[program]]
        n = 1
        command = ["sh", "-c", "echo first $OF $OWN $RMA_SIZE"]
        env = { OWN = "a" }

        [[program]]
        n = 2
        command = ["sh", "-c", "echo second $OF $OWN; pwd"]
        wdir = "/"
    "#;
    std::fs::write(&path, text).unwrap();
    let output = job(&["--file", file]);
    succeeds(&output);
    let expected = ["[0] first all a 3", "[1] /", "[1] second all", "[2] /", "[2] second all"];
    assert_eq!(sorted(&output), expected);
    // What is typed goes before it.
    let output = job(&["--file", file, "--env", "OF=typed", "-n", "2", "sh", "-c", "echo $OF"]);
    assert_eq!(sorted(&output), ["[0] typed", "[1] typed"], "{}", stderr(&output));
    let output = job(&["--explain", "--file", file]);
    assert!(stderr(&output).contains(&format!("explain: options of {file}")), "{output:?}");

    std::fs::write(&path, "label = true\nlimit = 3\n").unwrap();
    let output = job(&["--file", file, "-n", "1", "echo", "ran"]);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(2), ""));
    assert!(stderr(&output).contains("job.toml, line 2: \"limit\" is not known"), "{output:?}");
}
