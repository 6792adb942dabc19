//! Connections of ranks to their launcher, or to the agent of their host: a relay on the way
//! repeats and alters what is said there.

mod between;
mod support;

use std::path::Path;
use std::process::Command;

use between::{Alter, Between, copied};
use support::*;

/// What a user is told of.
const TOLD: &str = "rank 1: messages on its connection that are altered, made up, or were sent";

/// Runs the example as two ranks, on one machine or on a host each; a relay is between rank 1 and
/// its launcher.
fn run_with(options: &[&str], words: impl Alter, orders: impl Alter) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let [asked, told] = ["asked", "told"].map(|name| folder.path().join(name));
    for pipe in [&asked, &told] {
        assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    }
    let script = format!(
        "if [ $RMA_RANK = 1 ]; then
             echo $RMA_BOOTSTRAP > {}; RMA_BOOTSTRAP=$(cat {}); export RMA_BOOTSTRAP
         fi
         exec {}",
        asked.display(),
        told.display(),
        rank_program()
    );
    let job = Running::start(&[options, &["--oversubscribe", "sh", "-c", &script]].concat());
    // Rank 1 may end before it writes there.
    let read = |pipe: &Path| {
        let output = Command::new("timeout").arg("60").arg("cat").arg(pipe).output().unwrap();
        assert!(output.status.success(), "rank 1 does not start");
        String::from_utf8(output.stdout).unwrap()
    };
    let between = Between::new(read(&asked).trim(), words, orders);
    std::fs::write(&told, &between.address).unwrap();
    let ran = job.ran(b"");
    between.end();
    ran
}

/// On one machine, and on two hosts.
fn everywhere(check: impl Fn(&[&str])) {
    check(&["-n", "2"]);
    let (_folder, shell) = remote_shell(SHELL);
    check(&["--hosts", "a:1,b:1", "--ssh-command", shell.to_str().unwrap()]);
}

/// Each frame again at once, and the first one again.
fn repeated() -> impl Alter {
    let mut first: Option<Vec<u8>> = None;
    move |_, frame: Vec<u8>| {
        let first = first.get_or_insert_with(|| frame.clone()).clone();
        vec![frame.clone(), frame, first]
    }
}

/// The second frame is another one.
fn second_altered(count: usize, mut frame: Vec<u8>) -> Vec<Vec<u8>> {
    if count == 1 {
        frame[5] ^= 1;
    }
    vec![frame]
}

#[test]
fn what_is_sent_again_to_or_by_a_rank_changes_nothing() {
    everywhere(|options| {
        let Ran { code, out, err } = run_with(options, repeated(), repeated());
        let out = String::from_utf8(out).unwrap();
        assert_eq!(code, Some(0), "{out}{err}");
        let mut lines: Vec<_> = out.lines().collect();
        lines.sort();
        assert_eq!(lines, ["rank 0 of 2", "rank 1 of 2"], "{err}");
        // By the launcher, and by the rank.
        assert!(err.contains(&format!("rma-run: {TOLD}")), "{err}");
        assert!(err.contains(&format!("rma: {TOLD}")), "{err}");
    });
}

#[test]
fn what_a_rank_says_and_is_altered_ends_its_connection() {
    everywhere(|options| {
        let Ran { code, err, .. } = run_with(options, second_altered, copied);
        assert_ne!(code, Some(0), "{err}");
        assert!(err.contains(TOLD), "{err}");
        let text = "rank 1 is not heard any more: a message is not of the other end (1 refused";
        assert!(err.contains(text), "{err}");
    });
}

#[test]
fn what_a_rank_is_told_and_is_altered_is_an_error_of_the_rank() {
    everywhere(|options| {
        let Ran { code, err, .. } = run_with(options, copied, second_altered);
        assert_ne!(code, Some(0), "{err}");
        assert!(err.contains("a message is not of the other end (1 refused"), "{err}");
    });
}
