//! How the output of ranks is marked, and which files it goes to.

mod support;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use support::*;

/// This moment, as `--timestamp` writes it.
fn now() -> String {
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%S.%3NZ"]).output().unwrap();
    String::from_utf8(date.stdout).unwrap().trim().to_owned()
}

/// The time in front of a line, and what follows it.
#[track_caller]
fn split(line: &str) -> (&str, &str) {
    let (time, rest) = line.split_once(' ').unwrap_or_else(|| panic!("no time: {line:?}"));
    let form: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(form, "0000-00-00T00:00:00.000Z", "{line}");
    (time, rest)
}

/// Lines of ranks, in order: what rma-run itself says has no time.
#[track_caller]
fn untimed(text: &str, (from, to): (&str, &str)) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.starts_with("rma-run: "));
    let mut lines: Vec<String> = lines
        .map(|line| {
            let (time, rest) = split(line);
            assert!((from..=to).contains(&time), "{time} is not from {from} to {to}");
            rest.to_owned()
        })
        .collect();
    lines.sort();
    lines
}

#[test]
fn each_line_begins_with_its_time_and_then_its_label() {
    let script = "echo one; echo two; printf end >&2";
    for way in WAYS {
        let from = now();
        let ran = run_in(way, &["--timestamp", "-l", "sh", "-c", script], b"");
        let times = (&*from, &*now());
        assert_eq!(ran.code, Some(0), "{way}: {}", ran.err);
        let out = untimed(&String::from_utf8(ran.out).unwrap(), times);
        assert_eq!(out, ["[0] one", "[0] two", "[1] one", "[1] two"], "{way}");
        assert_eq!(untimed(&ran.err, times), ["[0] end", "[1] end"], "{way}");
    }
}

#[test]
fn times_need_no_labels() {
    let from = now();
    let output = sh(&["-n", "1", "-q", "--timestamp"], "echo a; echo; printf b");
    succeeds(&output);
    let text = stdout(&output);
    assert_eq!(untimed(&text, (&from, &now())), ["", "a", "b"]);
    assert!(!text.ends_with('\n'), "nothing is added behind the last line");
}

#[test]
fn a_prompt_begins_with_its_time_and_its_answer_does_not() {
    let script = "printf 'name? '; read name; echo \"hello $name\"";
    let mut job = Running::start(&["-n", "1", "-q", "--timestamp", "sh", "-c", script]);
    let mut prompt = [0; 31];
    job.stdout.read_exact(&mut prompt).unwrap();
    assert_eq!(split(std::str::from_utf8(&prompt).unwrap()).1, "name? ");
    job.child.stdin.as_mut().unwrap().write_all(b"you\n").unwrap();
    let (code, out, err) = job.end();
    assert_eq!((code, &*out), (Some(0), "hello you\n"), "{err}");
}

#[test]
fn a_very_long_line_has_one_time() {
    let dir = tempfile::tempdir().unwrap();
    let line = long_line(dir.path());
    // Others may print once a rank is silent for a while: these wait until its line is on its way.
    let fifo = dir.path().join("end");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let (line, fifo) = (line.display(), fifo.display());
    let script = format!(
        "if [ $RMA_RANK = 0 ]; then exec 3> {fifo}; exec cat {line}; else cat < {fifo}; \
         i=0; while [ $i -lt 500 ]; do echo short; i=$((i+1)); done; fi"
    );
    let output = sh(&["-n", "2", "-q", "--timestamp"], &script);
    succeeds(&output);
    let text = stdout(&output);
    let (long, short): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.len() > 100);
    assert_eq!(long.len(), 1);
    assert_eq!(split(long[0]).1.len(), LONG_LINE);
    assert_eq!(short.len(), 500);
    assert!(short.iter().all(|line| split(line).1 == "short"));
}

/// What is in a file.
#[track_caller]
fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Two ranks succeed, whose output goes to files.
#[track_caller]
fn prints_nothing(way: &str, rest: &[&str]) {
    let ran = run_in(way, rest, b"");
    assert_eq!((ran.code, &*ran.out), (Some(0), &b""[..]), "{way}: {}", ran.err);
}

/// The hosts of both ranks.
fn hosts(way: &str) -> [String; 2] {
    match way {
        "hosts" | "hosts that join" => ["a", "b"].map(str::to_owned),
        _ => [(); 2].map(|()| rustix::system::uname().nodename().to_str().unwrap().to_owned()),
    }
}

#[test]
fn names_of_files_are_made_of_ranks_hosts_jobs_and_streams() {
    let script = "echo out $RMA_RANK; echo err $RMA_RANK >&2";
    for way in WAYS {
        let folder = tempfile::tempdir().unwrap();
        let pattern = folder.path().join("{job}/{host}/{rank}-{{x}}.{stream}");
        let files = ["-q", "--name", "heat", "--output-file", pattern.to_str().unwrap()];
        prints_nothing(way, &[&files[..], &["sh", "-c", script]].concat());
        for (rank, host) in hosts(way).iter().enumerate() {
            for stream in ["out", "err"] {
                let text = read(folder.path(), &format!("heat/{host}/{rank}-{{x}}.{stream}"));
                assert_eq!(text, format!("{stream} {rank}\n"), "{way}");
            }
        }
    }
}

#[test]
fn both_streams_of_a_rank_go_to_one_file_that_is_named_alike() {
    let script = "echo one; echo two >&2; echo three";
    for way in WAYS {
        let folder = tempfile::tempdir().unwrap();
        let pattern = folder.path().join("{rank}.log");
        let rest = ["-q", "--output-file", pattern.to_str().unwrap(), "sh", "-c", script];
        prints_nothing(way, &rest);
        for name in ["0.log", "1.log"] {
            let text = read(folder.path(), name);
            let mut lines: Vec<_> = text.lines().collect();
            // Ranks of this machine write it themselves; from other hosts, streams come one by one.
            if way.starts_with("hosts") {
                lines.sort_by_key(|line| ["one", "two", "three"].iter().position(|l| l == line));
            }
            assert_eq!(lines, ["one", "two", "three"], "{way}");
        }
    }
    // The process of rma-run is the job that has no name.
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("{job}");
    let line = ["-n", "1", "-q", "--output-file", pattern.to_str().unwrap(), "echo", "hi"];
    let job = Running::start(&line);
    let name = job.pid().as_raw_nonzero().to_string();
    assert_eq!(job.end().0, Some(0));
    assert_eq!(read(folder.path(), &name), "hi\n");
}

#[test]
fn what_goes_to_files_is_printed_as_well_and_marked_alike() {
    let script = "for i in 1 2 3; do echo line $i; echo error $i >&2; done; printf end";
    for way in WAYS {
        let folder = tempfile::tempdir().unwrap();
        let pattern = folder.path().join("{rank}.{stream}");
        let files = ["--tee", "--output-file", pattern.to_str().unwrap(), "--timestamp", "-l"];
        let ran = run_in(way, &[&files[..], &["sh", "-c", script]].concat(), b"");
        assert_eq!(ran.code, Some(0), "{way}: {}", ran.err);
        let out = String::from_utf8(ran.out).unwrap();
        for (rank, stream, printed) in
            [(0, "out", &out), (1, "out", &out), (0, "err", &ran.err), (1, "err", &ran.err)]
        {
            let label = format!("[{rank}] ");
            let own =
                |line: &&str| !line.starts_with("rma-run: ") && split(line).1.starts_with(&label);
            let shown: Vec<_> = printed.lines().filter(own).collect();
            let text = read(folder.path(), &format!("{rank}.{stream}"));
            assert_eq!(text.lines().collect::<Vec<_>>(), shown, "{way}");
            assert_eq!(shown.len(), if stream == "out" { 4 } else { 3 }, "{way}");
            assert_eq!(text.ends_with('\n'), stream == "err", "{way}: no end is added in a file");
        }
    }
}

#[test]
fn bytes_in_files_are_those_that_were_printed() {
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let source = folder.path().join("source");
    std::fs::write(&source, &bytes).unwrap();
    let pattern = folder.path().join("{rank}");
    let files = ["-q", "--output-file", pattern.to_str().unwrap()];
    let cat = ["cat", source.to_str().unwrap()];
    let alone = job(&[&["-n", "1", "--tee"], &files[..], &cat].concat());
    succeeds(&alone);
    assert!(alone.stdout == bytes, "{} bytes", alone.stdout.len());
    assert!(std::fs::read(folder.path().join("0")).unwrap() == bytes);
    for way in WAYS {
        prints_nothing(way, &[&files[..], &cat].concat());
        for name in ["0", "1"] {
            assert!(std::fs::read(folder.path().join(name)).unwrap() == bytes, "{way}");
        }
    }
}

#[test]
fn files_that_cannot_be_are_refused_before_any_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str| folder.path().join(name).display().to_string();
    let (log, host, job_name) = (of("log"), of("{host}"), of("{job}"));
    let unknown = of("log.{rnak}.txt");
    let cases: [(&[&str], i32, &str); 8] = [
        (&["--output-file", &log], 2, "ranks 0 and 1 would both write"),
        (&["--output-file", &log], 2, "put {rank} into the name"),
        (&["--output-file", &host], 2, "ranks 0 and 1 would both write"),
        (&["--output-file", &unknown], 2, "\"{rnak}\" is not known: write {rank}, {host}"),
        (&["--tee"], 2, "add --output-dir or --output-file"),
        (&["--output-dir", "x", "--output-file", "y"], 2, "cannot be used with"),
        (&["--name", "a/b", "--output-file", &job_name], 2, "which names a folder"),
        (&["--name", "..", "--output-file", &job_name], 2, "which names a folder"),
    ];
    for (options, code, part) in cases {
        let output = job(&[&["-n", "2"], options, &["echo", "ran"]].concat());
        assert_eq!((output.status.code(), &*stdout(&output)), (Some(code), ""), "{options:?}");
        assert!(stderr(&output).contains(part), "{options:?}: {}", stderr(&output));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    // What is one file by a link or a folder is known once it is opened, and keeps what it holds.
    std::fs::write(folder.path().join("linked.0"), "kept").unwrap();
    std::os::unix::fs::symlink("linked.0", folder.path().join("linked.1")).unwrap();
    for pattern in ["linked.{rank}", "d{rank}/../linked.0"] {
        let output = job(&["-n", "2", "--output-file", &of(pattern), "echo", "ran"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("ranks 0 and 1 would both write"), "{}", stderr(&output));
        assert_eq!(read(folder.path(), "linked.0"), "kept");
    }
    // Both streams of a rank may be one, and the file is emptied.
    for mark in [&[][..], &["--label"]] {
        let files = ["-n", "1", "-q", "--output-file", &of("{rank}{stream}/../linked.0")];
        let output = sh(&[&files[..], mark].concat(), "echo one; echo two >&2");
        succeeds(&output);
        let mut lines: Vec<_> = Vec::new();
        lines.extend(read(folder.path(), "linked.0").lines().map(str::to_owned));
        lines.sort();
        let label = if mark.is_empty() { "" } else { "[0] " };
        assert_eq!(lines, [format!("{label}one"), format!("{label}two")]);
    }
    // Each host has one rank, which is known before hosts are.
    let serve = ["serve", "--joins", "2", "--secret-file", "none", "-n", "2"];
    let output = job(&[&serve[..], &["--output-file", &log, "echo", "ran"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("would both write"), "{}", stderr(&output));
}

#[track_caller]
fn fails_with(output: &Output, part: &str) {
    assert_eq!(output.status.code(), Some(1), "{}", stderr(output));
    assert!(stderr(output).contains(part), "{}", stderr(output));
}

#[test]
fn files_in_a_file_are_refused_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("afile");
    std::fs::write(&file, "kept").unwrap();
    let file = file.to_str().unwrap();
    for (option, name) in
        [("--output-file", "/{rank}"), ("--output-file", "/a/{rank}"), ("--output-dir", "")]
    {
        let output = job(&["-n", "2", option, &format!("{file}{name}"), "echo", "ran"]);
        assert_eq!((output.status.code(), &*stdout(&output)), (Some(1), ""));
        let text = stderr(&output);
        assert!(
            text.contains(&format!("a folder {file}, which is no folder: remove it")),
            "{text}"
        );
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "kept");
}

#[test]
fn a_file_that_cannot_be_written_ends_the_job() {
    let part = "/dev/full cannot be written: No space left on device (os error 28); the job was";
    // One that prints without end, and one that has ended before that is known.
    for program in [&["yes"][..], &["echo", "hi"]] {
        for mark in ["--tee", "--timestamp", "--label"] {
            let options = ["-n", "1", "--output-file", "/dev/full", mark];
            fails_with(&job(&[&options[..], program].concat()), part);
        }
        let (_folder, shell) = remote_shell(SHELL);
        let options = ["--hosts", "a:1", "--ssh-command", shell.to_str().unwrap()];
        let files = ["--output-file", "/dev/full"];
        fails_with(&job(&[&options[..], &files, program].concat()), part);
    }
}

#[test]
fn a_pipe_as_a_file_holds_ranks_back_and_no_signal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let name = path.to_str().unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    // No process reads it.
    let options = ["-n", "1", "--output-file", name];
    fails_with(&job(&[&options[..], &["echo", "ran"]].concat()), "pipe, which cannot be written");
    let fifo = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let line = ["--tee", "head", "-c", "10000000", "/dev/zero"];
    let job = Running::start(&[&options[..], &line].concat());
    until_full(&fifo);
    send(job.pid(), Signal::TERM);
    let (code, _, err) = job.end();
    assert_eq!(code, Some(128 + 15), "{err}");
}

#[test]
fn a_job_that_is_written_down_has_all_of_that() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.toml");
    let text = "timestamp = true\nlabel = true\ntee = true\nstdin = 1\noutput-file = 'typed'\n\
                [[program]]\nn = 2\ncommand = ['cat']\n";
    std::fs::write(&file, text).unwrap();
    let pattern = folder.path().join("{rank}");
    let line = ["--file", file.to_str().unwrap(), "--output-file", pattern.to_str().unwrap()];
    let mut job = Running::start(&line);
    job.child.stdin.as_mut().unwrap().write_all(b"hello\n").unwrap();
    let (code, out, err) = job.end();
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(split(out.trim_end()).1, "[1] hello");
    assert_eq!((read(folder.path(), "0"), read(folder.path(), "1")), (String::new(), out));
}
