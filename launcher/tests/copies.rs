//! Programs that are copied to hosts that lack them. A script is the remote shell; it takes the
//! program away, or puts another in its place, before it starts an agent.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;

use rustix::process::Signal;
use support::*;

const SHELL: &str = r#"#!/bin/sh
here=${0%/*}
case $1 in
    other) printf '#!/bin/sh\necho other\n' > "$here/new"; chmod +x "$here/new"
        mv "$here/new" "$here/tool";;
    emptied) : > "$here/tool";;
esac
case $1 in 127.0.2.*) mv "$here/tool" "$here/away" 2> /dev/null; rm -f "$here/second";; esac
cd /
exec setsid --wait env -i PATH="$PATH" LANG=C AT="$here" sh -c "exec $2"
"#;

struct Host {
    folder: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        Host { folder: remote_shell(SHELL).0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program of that name.
    fn with(self, name: &str, bytes: &[u8]) -> Host {
        std::fs::write(self.path(name), bytes).unwrap();
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.path(name), executable).unwrap();
        self
    }

    fn line(&self, hosts: &str, options: &[&str], rest: &[&str]) -> Vec<String> {
        let (shell, tool) = (self.path("rsh"), self.path("tool"));
        let shell = shell.to_str().unwrap();
        let line = ["--hosts", hosts, "--ssh-command", shell, "--oversubscribe", "-q"];
        let all = line.iter().chain(options).copied().chain([tool.to_str().unwrap()]);
        all.chain(rest.iter().copied()).map(str::to_owned).collect()
    }

    /// Agents, and ranks, that stay.
    fn stays(&self) -> Vec<i32> {
        left_behind(&format!("AT={}", self.folder.path().display()))
    }

    fn job(&self, hosts: &str, options: &[&str], rest: &[&str]) -> Output {
        let line = self.line(hosts, options, rest);
        job(&line.iter().map(|word| &**word).collect::<Vec<_>>())
    }
}

#[test]
fn a_program_that_is_not_there_is_copied() {
    let program = std::fs::read(rank_program()).unwrap();
    let host = Host::new().with("tool", &program);
    let output = host.job("127.0.2.1:2,127.0.2.2:2", &["--copy"], &[""]);
    succeeds(&output);
    let expected: Vec<_> = (0..4).map(|rank| format!("rank {rank} of 4")).collect();
    assert_eq!(sorted(&output), expected);
    assert!(!host.path("tool").exists());
    let host = Host::new().with("tool", &program);
    let output = host.job("127.0.2.1:2", &[], &[""]);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(127), ""), "{output:?}");
    // Through hosts that reach others.
    let host = Host::new().with("tool", &program);
    let options = ["--copy", "--fan-out", "1"];
    let output = host.job("127.0.2.1:1,127.0.2.2:1,127.0.2.3:1", &options, &[""]);
    succeeds(&output);
    assert_eq!(sorted(&output), ["rank 0 of 3", "rank 1 of 3", "rank 2 of 3"]);
    assert_eq!(host.stays(), []);
}

#[test]
fn a_copy_goes_before_another_build() {
    let script = b"#!/bin/sh\necho \"$RMA_RANK: $*\"\n";
    let host = Host::new().with("tool", script);
    let output = host.job("other:2", &["--copy"], &["a", "b c"]);
    succeeds(&output);
    assert_eq!(sorted(&output), ["0: a b c", "1: a b c"]);
    let host = Host::new().with("tool", script);
    let output = host.job("other:2", &[], &[]);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(1), ""), "{output:?}");
    assert!(stderr(&output).contains("is another build than here"), "{output:?}");
    assert!(stderr(&output).contains("--copy"), "{output:?}");
}

/// The copy has no name, so that it is gone with its processes, whatever ends them.
#[test]
fn a_copy_is_in_memory() {
    let host = Host::new().with("tool", &std::fs::read("/usr/bin/readlink").unwrap());
    let output = host.job("127.0.2.1:1", &["--copy"], &["/proc/self/exe"]);
    succeeds(&output);
    assert_eq!(stdout(&output), "/memfd:tool (deleted)\n");
    let host = Host::new().with("tool", b"#!/bin/sh\necho pid $PPID; sleep 1000 & wait\n");
    let mark = mark("copies");
    let line = host.line("127.0.2.1:1", &["--copy", "--env", &mark], &[]);
    let mut job = Running::start(&line.iter().map(|word| &**word).collect::<Vec<_>>());
    let agent = job.pids(1)[0];
    send(agent, Signal::KILL);
    assert_eq!(job.end().0, Some(1));
    assert_eq!(left_behind(&mark), []);
    assert_eq!(host.stays(), []);
}

#[test]
fn a_copy_cannot_be_altered() {
    let script = br#"#!/bin/sh
{ echo x >> "$0" || echo x > "$0"; } 2> /dev/null && echo altered || echo sealed
"#;
    let host = Host::new().with("tool", script);
    let output = host.job("127.0.2.1:1", &["--copy"], &[]);
    succeeds(&output);
    assert_eq!(stdout(&output), "sealed\n");
}

#[test]
fn each_program_of_a_job_is_copied() {
    let host = Host::new();
    let host = host.with("tool", b"#!/bin/sh\necho first $RMA_RANK\n");
    let host = host.with("second", b"#!/bin/sh\necho second $RMA_RANK\n");
    let second = host.path("second").display().to_string();
    let output =
        host.job("127.0.2.1:2,127.0.2.2:2", &["--copy", "-n", "1"], &[":", "-n", "3", &second]);
    succeeds(&output);
    assert_eq!(sorted(&output), ["first 0", "second 1", "second 2", "second 3"]);
}

#[test]
fn what_changes_while_it_is_copied_does_not_run() {
    let host = Host::new().with("tool", b"#!/bin/sh\necho ran\n");
    let output = host.job("emptied:1", &["--copy"], &[]);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(1), ""), "{output:?}");
    assert!(stderr(&output).contains("was changed, or could not be read"), "{output:?}");
    assert_eq!(host.stays(), []);
}

#[test]
fn a_copy_is_explained() {
    let host = Host::new().with("tool", b"#!/bin/sh\necho ran\n");
    let line = host.line("127.0.2.1:1", &["--copy", "--explain"], &[]);
    let line: Vec<_> = line.iter().map(|word| &**word).filter(|word| *word != "-q").collect();
    let output = job(&line);
    succeeds(&output);
    let text = stderr(&output);
    assert!(
        text.contains("explain: host 127.0.2.1: ") && text.contains("is copied there"),
        "{text}"
    );
}
