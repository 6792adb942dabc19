//! What ranks print arrives as they print it.

mod support;

use std::io::{Read, Write};
use std::process::Stdio;

use support::*;

/// Bytes of every value, few of them line ends.
const BINARY: &str = "head -c 3000000 /dev/zero | tr '\\0' 'x'; printf 'a\\000b\\377'";

#[test]
fn the_output_of_one_rank_is_the_same_to_the_byte() {
    let mut expected = vec![b'x'; 3_000_000];
    expected.extend_from_slice(b"a\0b\xff");
    let alone = sh(&["-n", "1"], BINARY);
    succeeds_in(&alone);
    assert!(alone.stdout == expected, "{} bytes", alone.stdout.len());
    let beside = sh(&["-n", "4", "-q"], &format!("[ $RMA_RANK = 2 ] || exit 0; {BINARY}"));
    succeeds_in(&beside);
    assert!(beside.stdout == expected, "{} bytes", beside.stdout.len());
    let err = sh(&["-n", "1"], "printf 'no end' >&2");
    assert_eq!((&*err.stdout, &*err.stderr), (&b""[..], &b"no end"[..]));
}

#[track_caller]
fn succeeds_in(output: &std::process::Output) {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
}

#[test]
fn a_very_long_line_is_one_line() {
    // A rank that is silent in a line for long may be prompting: one process writes large blocks.
    let dir = tempfile::tempdir().unwrap();
    let line = long_line(dir.path());
    let script = format!(
        "if [ $RMA_RANK = 0 ]; then exec cat {}; \
         else i=0; while [ $i -lt 2000 ]; do echo short; i=$((i+1)); done; fi",
        line.display()
    );
    let output = sh(&["-n", "2", "-q", "--label"], &script);
    succeeds_in(&output);
    let lines = output.stdout.split(|byte| *byte == b'\n');
    let (long, short): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with(b"[0] "));
    assert_eq!(long.len(), 1);
    assert_eq!(long[0].len(), LONG_LINE + 4);
    assert_eq!(short.iter().filter(|line| **line == b"[1] short").count(), 2000);
    assert_eq!(short.len(), 2001, "and the empty rest");
}

#[test]
fn a_prompt_is_shown_before_its_line_ends() {
    for ranks in ["1", "2"] {
        let script =
            "[ $RMA_RANK = 1 ] && exit 0; printf 'name? '; read name; echo \"hello $name\"";
        let mut job = Running::start(&["-n", ranks, "-q", "sh", "-c", script]);
        let mut prompt = [0; 6];
        // The rank prints no more before it is answered.
        job.stdout.read_exact(&mut prompt).unwrap();
        assert_eq!(&prompt, b"name? ");
        job.child.stdin.as_mut().unwrap().write_all(b"you\n").unwrap();
        assert_eq!(job.line(), "hello you");
        assert_eq!(job.end().0, Some(0));
    }
}

#[test]
fn a_line_that_stands_open_holds_no_other_rank_up() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("go");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // Longer than what is kept of a line: rank 0 prints the beginning, and its end comes when rank
    // 1 has printed more than a pipe holds.
    let script = format!(
        "if [ $RMA_RANK = 0 ]; then head -c 300000 /dev/zero | tr '\\0' a; read x < {fifo}; \
         echo end; else head -c 300000 /dev/zero | tr '\\0' b; echo; echo > {fifo}; fi",
        fifo = fifo.display()
    );
    let output = sh(&["-n", "2", "-q", "--label"], &script);
    succeeds_in(&output);
    let text = stdout(&output);
    for (rank, letter) in [("[0] ", 'a'), ("[1] ", 'b')] {
        assert_eq!(text.chars().filter(|other| *other == letter).count(), 300_000, "{rank}");
    }
    assert!(text.ends_with("end\n"));
    for line in text.lines() {
        assert!(!(line.contains('a') && line.contains('b')), "lines are not mixed");
        assert!(line.starts_with('['), "{}", &line[..9]);
    }
}

#[test]
fn what_is_printed_is_held_back_by_a_slow_reader_and_none_is_lost() {
    const RANKS: usize = 16;
    const EACH: usize = 64 << 20;
    let script = format!("yes rank-$RMA_RANK-prints-much-of-this | head -c {EACH}");
    let options = ["-n", "16", "-q", "--oversubscribe", "sh", "-c"];
    let mut command = rma_run(&[&options[..], &[&script]].concat());
    command.stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let (mut bytes, mut ends, mut most, mut buffer) = (0, 0, 0, vec![0; 1 << 20]);
    loop {
        let count = out.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        bytes += count;
        ends += buffer[..count].iter().filter(|byte| **byte == b'\n').count();
        // What a pipe holds is less than what is still to come: so it has not ended.
        if bytes >> 24 > most && bytes < RANKS * EACH - (1 << 20) {
            most = bytes >> 24;
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let Some(line) = status.lines().find(|line| line.starts_with("VmHWM:")) else {
                continue;
            };
            let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
            assert!(kib < 64 << 10, "{kib} KiB after {bytes} bytes");
        }
    }
    assert!(child.wait().unwrap().success());
    assert!(most > 0, "looked at while it printed");
    // A line end is added where a rank was silent in the middle of a line, and another one printed.
    let printed = (0..RANKS).map(|rank| EACH / format!("rank-{rank}-prints-much-of-this\n").len());
    let printed: usize = printed.sum();
    assert_eq!(bytes - ends, RANKS * EACH - printed);
    assert!(ends >= printed, "{ends}");
}
