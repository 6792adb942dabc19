//! Sentences of docs/security.md that no other test tries.

mod support;

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::Command;

use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;
use support::*;

/// A user that is neither this one nor the superuser.
const STRANGER: u32 = 65534;

/// Whether this process may act for other users; otherwise the test is skipped, and says so.
fn may_be_others(test: &str) -> bool {
    let may = geteuid().is_root();
    if !may {
        eprintln!("{test} is skipped: it needs to be root");
    }
    may
}

/// The name of the socket at which a launcher is asked; waits until there is one.
fn socket_of(launcher: rustix::process::Pid) -> String {
    let part = format!("/{}/", launcher.as_raw_nonzero());
    loop {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let names = sockets.lines().filter_map(|line| line.split_once(" @").map(|(_, name)| name));
        let name =
            names.into_iter().find(|name| name.starts_with("rma-run/") && name.contains(&part));
        if let Some(name) = name {
            return name.to_owned();
        }
        std::thread::yield_now();
    }
}

/// What the launcher at that socket answers to that user, who asks in a version that none has.
fn answer(socket: &str, user: u32) -> Vec<u8> {
    let query = move || {
        // Of this thread alone.
        let user = Uid::from_raw(user);
        set_thread_res_uid(user, user, user).unwrap();
        let address = SocketAddr::from_abstract_name(socket).unwrap();
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        // One that hangs up at once may do so before this is written.
        let _ = stream.write_all(&[2, 0, 0, 0, 0, 0]);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    std::thread::scope(|scope| scope.spawn(query).join().unwrap())
}

#[test]
fn other_users_are_not_told_of_a_job() {
    if !may_be_others("other_users_are_not_told_of_a_job") {
        return;
    }
    let job = Running::start(&["-n", "1", "-q", "cat"]);
    let socket = socket_of(job.pid());
    assert_eq!(answer(&socket, STRANGER), b"");
    // The answer to the same question, of the user whose job it is.
    let answered = answer(&socket, geteuid().as_raw());
    assert_eq!((answered.len(), answered[4]), (7, 1), "its version: {answered:?}");
    assert_eq!(answer(&socket, STRANGER), b"");
    let (code, _, err) = job.end();
    assert_eq!((code, &*err), (Some(0), ""));
}

#[test]
fn the_superuser_is_told_of_jobs_of_others_and_they_of_none_but_their_own() {
    if !may_be_others("the_superuser_is_told_of_jobs_of_others_and_they_of_none_but_their_own") {
        return;
    }
    // Where others may run it.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let run = folder.path().join("rma-run");
    std::fs::copy(env!("CARGO_BIN_EXE_rma-run"), &run).unwrap();
    let stranger = |words: &[&str]| {
        let user = format!("--reuid={STRANGER}");
        let mut command = Command::new("setpriv");
        command.args([&user, "--regid=65534", "--clear-groups", "--"]).arg(&run).args(words);
        command.current_dir("/");
        command
    };
    let theirs = Running::of(stranger(&["-n", "1", "-q", "--name", "theirs", "cat"]));
    let ours = Running::start(&["-n", "1", "-q", "--name", "ours", "cat"]);
    for job in [&theirs, &ours] {
        socket_of(job.pid());
    }
    let asked = |command: &mut Command| {
        let output = command.output().unwrap();
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let why = |name: &str| asked(&mut rma_run(&["why", name]));
    for name in ["theirs", "ours"] {
        let (code, text) = why(name);
        assert!(code == Some(0) && text.contains(name), "{text}");
    }
    let of_stranger = |words: &[&str]| asked(&mut stranger(words));
    let (code, text) = of_stranger(&["why", "theirs"]);
    assert!(code == Some(0) && text.contains("theirs"), "{text}");
    let process = ours.pid().as_raw_nonzero().to_string();
    for words in [&["why", "ours"][..], &["why", &process], &["top", &process, "--once"]] {
        let (code, text) = of_stranger(words);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("no job of yours is called"), "{text}");
    }
    for job in [theirs, ours] {
        let (code, _, err) = job.end();
        assert_eq!((code, &*err), (Some(0), ""));
    }
}

/// Hosts that are this machine, and share what a script of the test writes.
const SHELL: &str = "#!/bin/sh\nexec setsid --wait env -i PATH=\"$PATH\" sh -c \"exec $2\"\n";

/// A job of scripts on such hosts.
fn on_hosts(hosts: &str, script: &str) -> std::process::Output {
    let (_folder, shell) = remote_shell(SHELL);
    let shell = shell.to_str().unwrap();
    let line = ["--hosts", hosts, "--ssh-command", shell, "--oversubscribe", "-q"];
    job(&[&line[..], &["sh", "-c", script]].concat())
}

#[test]
fn each_host_has_a_secret_of_its_own() {
    let script = "echo $RMA_RANK $(od -An -v -tx1 /proc/self/fd/${RMA_SECRET_FD%%:*})";
    let output = on_hosts("a:2,b:1", script);
    succeeds(&output);
    let lines = sorted(&output);
    let secrets: Vec<_> = lines.iter().map(|line| line.split_once(' ').unwrap().1).collect();
    let [first, second, elsewhere] = secrets[..] else { panic!("{lines:?}") };
    assert_eq!((first, first.split(' ').count()), (second, 32), "{lines:?}");
    assert_ne!(first, elsewhere);
}

#[test]
fn a_rank_cannot_join_at_another_host_in_the_place_of_a_rank_there() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.display();
    let script = format!(
        "if [ $RMA_RANK = 1 ]; then echo $RMA_BOOTSTRAP > {pipe}; exec sleep 1000; fi
         RMA_BOOTSTRAP=$(cat {pipe}) RMA_RANK=1 exec {}",
        rank_program()
    );
    let output = on_hosts("a:1,b:1", &script);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(9), "{text}");
    assert!(text.contains("refused rank 1: its secret is that of another job"), "{text}");
    // With the secret of its own host, it is a rank.
    let program = rank_program();
    let output = on_hosts("a:1,b:1", &format!("exec {program}"));
    succeeds(&output);
    assert_eq!(sorted(&output), ["rank 0 of 2", "rank 1 of 2"]);
}
