//! Limits of the machine: what they leave room for, and what is said where they do not.

mod support;

use std::process::{Command, Output};

use rustix::process::Signal;
use support::*;

/// `rma-run` with `args`, in a shell that first runs `before`.
fn under(before: &str, args: &[&str]) -> Output {
    let script = format!("{before} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_rma-run")]).args(args);
    command.output().unwrap()
}

/// Whether a shell may run that; the test is skipped, and says why, otherwise.
fn permitted(test: &str, script: &str) -> bool {
    let tried = Command::new("sh").args(["-c", script]).output().unwrap();
    if !tried.status.success() {
        eprintln!("{test} is skipped: not permitted: {script}: {}", stderr(&tried));
    }
    tried.status.success()
}

#[test]
fn few_descriptors_are_enough_for_few_ranks() {
    let program = rank_program();
    for (limit, ranks) in [("64", "4"), ("256", "32")] {
        let options = ["-n", ranks, "-q", "--oversubscribe", &program];
        let output = under(&format!("ulimit -n {limit}"), &options);
        succeeds(&output);
        assert_eq!(stdout(&output).lines().count(), ranks.parse::<usize>().unwrap());
    }
    // Files that rma-run writes are open as long as the job runs; ranks keep the limit of before.
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("{rank}.{stream}");
    let files = ["--tee", "--output-file", pattern.to_str().unwrap()];
    let options = [&["-n", "16", "-q", "--oversubscribe"], &files[..], &["sh", "-c", "ulimit -n"]];
    let soft = under("ulimit -S -n 64", &options.concat());
    succeeds(&soft);
    assert_eq!(stdout(&soft), "64\n".repeat(16));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 32);
    // There is room for ranks, and none for files as well.
    let options = [&["-n", "40", "-q", "--oversubscribe"], &files[..], &["echo", "ran"]].concat();
    let hosts = ["--hosts", "localhost:100", files[0], files[1], files[2], "echo", "ran"];
    for (line, part) in [
        (&options[..], "40 ranks were asked for, but the hard limit of 240 open files"),
        (&hosts, "at 2 a rank (0 without files of output), leaves room for 97"),
    ] {
        let hard = under("ulimit -n 240", line);
        assert_eq!((hard.status.code(), &*stdout(&hard)), (Some(2), ""));
        assert!(stderr(&hard).contains(part), "{}", stderr(&hard));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 32, "none was made");
    let soft = under("ulimit -S -n 8", &["-n", "1", "-q", "echo", "runs"]);
    succeeds(&soft);
    assert_eq!(stdout(&soft), "runs\n");
}

#[test]
fn a_root_is_a_folder_which_all_programs_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let path = path.to_str().unwrap();
    let say = ["sh", "-c", "echo $RMA_ROOT"];
    let first = [&["-n", "1", "-q", "--root", path], &say[..]].concat();
    let output = under("true", &[&first[..], &[":", "-n", "1"], &say[..]].concat());
    succeeds(&output);
    assert_eq!(stdout(&output), format!("{path}\n{path}\n"));
    for (wrong, why) in [("/proc/self/status", "no folder"), ("/no/such", "make the folder")] {
        let output = under("true", &["-n", "1", "--root", wrong, "true"]);
        assert!(!output.status.success() && stderr(&output).contains(why), "{}", stderr(&output));
    }
}

#[test]
fn a_loop_back_interface_that_is_down_is_named() {
    const TRY: &str = "unshare -n true";
    if !permitted("a_loop_back_interface_that_is_down_is_named", TRY) {
        return;
    }
    let mut command = Command::new("unshare");
    let output = command.args(["-n", env!("CARGO_BIN_EXE_rma-run"), "-n", "1", "true"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("127.0.0.1") && text.contains("ip link set lo up"), "{text}");
}

#[test]
fn a_machine_that_has_ipv6_alone_is_told_so() {
    const ALONE: &str =
        "ip link set lo up && ip -4 addr flush dev lo && ip -6 addr show lo | grep -q ::1";
    let test = "a_machine_that_has_ipv6_alone_is_told_so";
    if !permitted(test, &format!("unshare -n sh -c '{ALONE}'")) {
        return;
    }
    let script = format!("{ALONE}; exec \"$0\" -n 1 echo ran");
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", &script, env!("CARGO_BIN_EXE_rma-run")]);
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(1), ""));
    let text = stderr(&output);
    assert!(text.contains("by IPv6 (::1) alone") && text.contains("127.0.0.1/8 dev lo"), "{text}");
}

/// Hosts reach such a machine by its addresses of IPv6; those of IPv4 are none.
#[test]
fn a_machine_that_has_ipv6_alone_serves_there() {
    const ALONE: &str = "ip link set lo up && ip link add end0 type veth peer name end1 &&
        ip link set end0 up && ip link set end1 up && ip -6 addr add 2001:db8::1/64 dev end0 nodad";
    let test = "a_machine_that_has_ipv6_alone_serves_there";
    if !permitted(test, &format!("unshare -n sh -c '{ALONE}'")) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "x".repeat(32)).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let secret = secret.display();
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        let script = format!("{ALONE}; {script}");
        command.args(["-n", "sh", "-c", &script, env!("CARGO_BIN_EXE_rma-run")]);
        let output = command.output().unwrap();
        (output.status.code(), stdout(&output), stderr(&output))
    };
    let serve = format!("serve --joins 1 --secret-file {secret} -n 2 --oversubscribe echo ran");
    let script = format!(
        "\"$0\" {serve} 2> {0}/said & serve=$!
         timeout 60 sh -c 'until grep -q \"rma-run join\" {0}/said; do sleep 0.01; done' || exit 9
         port=$(sed -n 's/.*rma-run join [^ ]*:\\([0-9]*\\) .*/\\1/p' {0}/said)
         \"$0\" join \"[2001:db8::1]:$port\" --secret-file {secret} && wait $serve",
        folder.path().display()
    );
    let (code, out, err) = run(&script);
    assert_eq!((code, &*out), (Some(0), "ran\nran\n"), "{err}");
    let script =
        format!("\"$0\" serve --listen 0.0.0.0:0 --timeout 0.1 {}", &serve["serve ".len()..]);
    let (code, _, err) = run(&script);
    assert_eq!(code, Some(124), "{err}");
    assert!(err.contains("has addresses of IPv6 alone") && err.contains("'[::]:PORT'"), "{err}");
}

#[test]
fn without_proc_there_is_no_warden_and_the_job_goes_on() {
    const TRY: &str = "unshare -m sh -c 'umount -l /proc'";
    if !permitted("without_proc_there_is_no_warden_and_the_job_goes_on", TRY) {
        return;
    }
    let script = "umount -l /proc; exec \"$0\" -n 1 echo runs";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_rma-run")]);
    let output = command.output().unwrap();
    succeeds(&output);
    assert_eq!(stdout(&output), "runs\n");
    assert!(stderr(&output).contains("no warden watches over this job"), "{}", stderr(&output));
}

/// A control group of memory, version 1. Dropping it removes it.
struct MemoryGroup(std::path::PathBuf);

impl MemoryGroup {
    /// None, and why, where it is not permitted.
    fn new(test: &str, bytes: u64) -> Option<MemoryGroup> {
        let name = format!("/sys/fs/cgroup/memory/rma-test-{test}-{}", std::process::id());
        let group = MemoryGroup(name.into());
        let made = std::fs::create_dir(&group.0).and_then(|()| {
            std::fs::write(group.0.join("memory.limit_in_bytes"), bytes.to_string())
        });
        if let Err(error) = made {
            eprintln!("{test} is skipped: {}: {error}", group.0.display());
            return None;
        }
        Some(group)
    }

    fn run(&self, args: &[&str]) -> Output {
        under(&format!("echo $$ > {}/tasks", self.0.display()), args)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Fails while a process of the job is about to disappear: then it stays, empty.
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_rank_that_the_kernel_ends_for_lack_of_memory_is_named_so() {
    let Some(group) = MemoryGroup::new("oom", 64 << 20) else { return };
    // Keeps all of a line that never ends.
    let script = "[ $RMA_RANK = 1 ] || exec sleep 1000; exec tail /dev/zero";
    let output = group.run(&["-n", "2", "-q", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(137), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains("rank 1 was ended by signal 9"), "{text}");
    assert!(text.contains("ran out of memory"), "{text}");
}

#[test]
fn a_memory_group_bounds_the_number_of_ranks() {
    let Some(group) = MemoryGroup::new("room", 64 << 20) else { return };
    let output = group.run(&["-n", "400", "-q", "true"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("memory.limit_in_bytes"), "{}", stderr(&output));
}

/// Before anything is started.
#[test]
fn ranks_of_a_network_are_counted_with_its_memory() {
    const RANKS: u64 = 10_000;
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let free = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    let free: u64 = free.trim().trim_end_matches(" kB").parse().unwrap();
    // What an endpoint takes, in KiB.
    if free > RANKS * (64 << 10) {
        return eprintln!("skipped: there is room for {RANKS} ranks");
    }
    let line = ["-n", "10000", "--transport", "ofi", "--provider", "tcp", "echo", "ran"];
    let output = under("true", &line);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(2), ""));
    let said = stderr(&output);
    assert!(said.contains("10000 ranks were asked for, but"), "{said}");
    assert!(said.contains("ask for fewer"), "{said}");
}

#[test]
fn a_full_disk_under_the_output_folder_is_named() {
    const TRY: &str = "unshare -m mount -t tmpfs -o size=64k none /mnt";
    if !permitted("a_full_disk_under_the_output_folder_is_named", TRY) {
        return;
    }
    let script = "mount -t tmpfs -o size=64k none /mnt && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_rma-run"), "-n", "1"]);
    let prints = "head -c 1000000 /dev/zero || exit 3";
    let output = command.args(["--output-dir", "/mnt", "sh", "-c", prints]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("/mnt is full"), "{}", stderr(&output));
}

#[test]
fn a_failed_rank_s_last_words_are_shown_where_its_output_goes_to_files() {
    let dir = tempfile::tempdir().unwrap();
    let script = "for i in 1 2 3 4 5 6 7; do echo word $i >&2; done; exit 3";
    let folder = dir.path().to_str().unwrap();
    let output = sh(&["-n", "1", "--output-dir", folder], script);
    assert_eq!(output.status.code(), Some(3));
    let text = stderr(&output);
    let words =
        "  word 3\nrma-run:   word 4\nrma-run:   word 5\nrma-run:   word 6\nrma-run:   word 7\n";
    assert!(text.ends_with(words) && !text.contains("word 2"), "{text}");
}

#[test]
fn a_core_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    // Where this kernel writes none, the shell does not say so.
    let tried = format!(
        "ulimit -c unlimited && cd {folder} && \
         {{ sh -c 'kill -SEGV $$'; }} 2>&1 | grep -q 'core dumped'"
    );
    if !permitted("a_core_file_is_named", &tried) {
        return;
    }
    let options = ["-n", "1", "--wdir", folder, "sh", "-c", "kill -SEGV $$"];
    let output = under("ulimit -c unlimited", &options);
    assert_eq!(output.status.code(), Some(128 + 11), "{}", stderr(&output));
    assert!(stderr(&output).contains("; its core "), "{}", stderr(&output));
    let none = under("ulimit -c 0", &options);
    // A kernel that passes cores on to a program does so whatever the limit is.
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    assert_eq!(stderr(&none).contains("; its core "), pattern.starts_with('|'));
}

/// What the doctor tells of, for programs to rely on.
const TOPICS: [&str; 20] = [
    "versions",
    "CPUs",
    "CPU group",
    "ranks",
    "memory group",
    "open files",
    "locked memory",
    "/proc",
    "memory",
    "huge pages",
    "peers",
    "copies",
    "seccomp",
    "user namespace",
    "clock",
    "loop-back",
    "ports",
    "libfabric",
    "verbs",
    "ssh",
];

/// And keys of values.
const VALUES: [(&str, &str); 24] = [
    ("versions", "rma-run"),
    ("versions", "build"),
    ("versions", "kernel"),
    ("versions", "machine"),
    ("versions", "libc"),
    ("CPUs", "count"),
    ("CPUs", "numbers"),
    ("CPU group", "milli_cpus"),
    ("CPU group", "version"),
    ("ranks", "asked"),
    ("memory group", "bytes"),
    ("open files", "hard"),
    ("locked memory", "bytes"),
    ("huge pages", "shared_memory"),
    ("peers", "by"),
    ("copies", "process_vm_readv"),
    ("copies", "ptrace_scope"),
    ("seccomp", "mode"),
    ("user namespace", "name"),
    ("clock", "source"),
    ("ports", "count"),
    ("libfabric", "version"),
    ("verbs", "devices"),
    ("ssh", "client"),
];

#[test]
fn the_doctor_tries_what_jobs_need() {
    let output = job(&["doctor"]);
    succeeds(&output);
    let text = stdout(&output);
    for topic in TOPICS {
        let start = format!("{topic}: ");
        let of = |line: &&str| line.get(5..).is_some_and(|line| line.starts_with(&start));
        assert_eq!(text.lines().filter(of).count(), 1, "{topic}: {text}");
    }
    // None of what is tried in a process of its own was left out.
    assert!(!text.contains("not tried"), "{text}");
    let json = job(&["doctor", "--json"]);
    succeeds(&json);
    let json = stdout(&json);
    assert!(json.starts_with("[\n  {\"topic\": \"versions\", \"health\": \"good\""), "{json}");
    for (topic, key) in VALUES {
        let line = json.lines().find(|line| line.contains(&format!("\"topic\": \"{topic}\"")));
        let values = line.unwrap().split_once("\"values\": {").unwrap().1;
        assert!(values.contains(&format!("\"{key}\": \"")), "{topic}, {key}: {values}");
    }
    // Not the first word: a program.
    assert_eq!(job(&["-n", "1", "doctor"]).status.code(), Some(127));

    const TRY: &str = "unshare -n true";
    if permitted("the_doctor_tries_what_jobs_need, without loop-back,", TRY) {
        let mut command = Command::new("unshare");
        let output =
            command.args(["-n", env!("CARGO_BIN_EXE_rma-run"), "doctor"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stdout(&output).contains("BAD  loop-back: "), "{}", stdout(&output));
    }
}

/// A library in the place of libfabric, if there is a compiler of C. It does that when it is
/// loaded, or when it ends.
fn false_libfabric(code: &str) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("false.c");
    std::fs::write(&source, format!("#include <stdio.h>\n#include <unistd.h>\n{code}")).unwrap();
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-Wl,-z,nodelete", "-o"]);
    match command.arg(folder.path().join("libfabric.so.1")).arg(&source).output() {
        Ok(output) => succeeds(&output),
        Err(error) => {
            eprintln!("skipped: no cc: {error}");
            return None;
        }
    }
    Some(folder)
}

#[test]
fn a_library_that_prints_and_does_not_end_is_tried_by_the_doctor() {
    let code =
        "__attribute__((constructor)) static void load(void) { puts(\"x\"); fflush(stdout); }
        __attribute__((destructor)) static void end(void) { pause(); }";
    let Some(folder) = false_libfabric(code) else { return };
    let output = rma_run(&["doctor"]).env("LD_LIBRARY_PATH", folder.path()).output().unwrap();
    let text = stdout(&output);
    assert!(text.contains(" libfabric: ") && !text.contains("not tried"), "{text}");
}

#[test]
fn a_library_that_hangs_is_not_left_behind_by_a_doctor_that_is_killed() {
    let code = "__attribute__((constructor)) static void load(void) {
            FILE *up = fopen(UP, \"w\");
            fprintf(up, \"pid %d \\n\", (int)getpid());
            fclose(up);
            for (;;) pause();
        }";
    let fifo_folder = tempfile::tempdir().unwrap();
    let up = fifo_folder.path().join("up");
    assert!(Command::new("mkfifo").arg(&up).status().unwrap().success());
    let code = format!("#define UP \"{}\"\n{code}", up.display());
    let Some(folder) = false_libfabric(&code) else { return };
    let mut command = rma_run(&["doctor"]);
    command.env("LD_LIBRARY_PATH", folder.path());
    let doctor = Running::of(command);
    let probe = Watched::new(&[pid_in(&std::fs::read_to_string(&up).unwrap())]);
    send(doctor.pid(), Signal::KILL);
    probe.wait();
}

#[test]
fn the_doctor_reads_the_group_that_limits_memory() {
    let Some(group) = MemoryGroup::new("doctor", 256 << 20) else { return };
    let output = group.run(&["doctor", "--json"]);
    succeeds(&output);
    let text = stdout(&output);
    let line = text.lines().find(|line| line.contains("\"memory group\"")).unwrap();
    assert!(
        line.contains("\"bytes\": \"268435456\"") && line.contains("\"version\": \"1\""),
        "{line}"
    );
}

#[test]
fn the_doctor_names_a_user_namespace() {
    const TRY: &str = "unshare -U true";
    if !permitted("the_doctor_names_a_user_namespace", TRY) {
        return;
    }
    let mut command = Command::new("unshare");
    let output = command.args(["-U", env!("CARGO_BIN_EXE_rma-run"), "doctor"]).output().unwrap();
    let text = stdout(&output);
    let name = text.lines().find_map(|line| line.split_once("user namespace: ")).unwrap().1;
    assert!(name.starts_with("user:[") && name.contains("of a container"), "{text}");
    let outside = std::fs::read_link("/proc/self/ns/user").unwrap();
    assert!(!name.starts_with(outside.to_str().unwrap()), "{text}");
}
