//! Programs of MPI as ranks: rma-run serves them PMI-1. One is compiled with MPICH (Debian:
//! `apt-get install libmpich-dev`); where that is not installed, its tests say so and pass. Others
//! are scripts that speak to their descriptor by themselves, in Bash, which knows those above 9.

mod support;

use std::process::{Command, Output};
use std::sync::OnceLock;

use support::*;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mpi/ring.c");

/// The program, compiled once; none where MPICH is not installed.
fn ring() -> Option<&'static str> {
    static RING: OnceLock<Option<(tempfile::TempDir, String)>> = OnceLock::new();
    let ring = RING.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("ring").to_str().unwrap().to_owned();
        let compiler = Command::new("mpicc.mpich").args(["-o", &program, SOURCE]).output();
        let Ok(compiler) = compiler else {
            println!("skipped: mpicc.mpich is not installed");
            return None;
        };
        succeeds(&compiler);
        Some((folder, program))
    });
    ring.as_ref().map(|(_, program)| &**program)
}

/// What the ranks print: their number, size, left neighbour, place on their node, and program.
fn lines(nodes: &[u32], programs: &[u32]) -> Vec<String> {
    let size: u32 = nodes.iter().sum();
    let places = nodes.iter().flat_map(|here| (0..*here).map(move |local| (local, *here)));
    let line = |(rank, (local, here)): (u32, (u32, u32))| {
        let left = (rank + size - 1) % size;
        let program = programs[rank as usize];
        format!(
            "rank {rank} of {size} heard of {left}, is {local} of {here} here, program {program}"
        )
    };
    (0..).zip(places).map(line).collect()
}

#[test]
fn ranks_of_mpi_find_each_other() {
    let Some(ring) = ring() else { return };
    let four = job(&["-q", "-n", "4", ring]);
    succeeds(&four);
    assert_eq!(sorted(&four), lines(&[4], &[0; 4]));
    let two = job(&["-q", "-n", "1", ring, ":", "-n", "2", ring]);
    succeeds(&two);
    assert_eq!(sorted(&two), lines(&[3], &[0, 1, 1]));
    let nodes = job(&["-q", "--nodes", "2x2", ring]);
    succeeds(&nodes);
    assert_eq!(sorted(&nodes), lines(&[2, 2], &[0; 4]));
    let alone = job(&["-q", "-n", "1", ring]);
    succeeds(&alone);
    assert_eq!(sorted(&alone), lines(&[1], &[0]));
}

/// A remote shell to this machine.
const SHELL: &str = "#!/bin/sh\nexec setsid --wait sh -c \"exec $2\"\n";

#[test]
fn ranks_of_mpi_are_on_several_hosts() {
    let Some(ring) = ring() else { return };
    let (_folder, shell) = remote_shell(SHELL);
    let on_hosts = |hosts: &str, words: &[&str]| {
        let shell = shell.to_str().unwrap();
        job(&[&["-q", "--hosts", hosts, "--ssh-command", shell, ring], words].concat())
    };
    for (hosts, nodes) in [("a:2,b:2", &[2, 2][..]), ("a:1,b:2,c:1", &[1, 2, 1])] {
        let output = on_hosts(hosts, &[]);
        succeeds(&output);
        assert_eq!(sorted(&output), lines(nodes, &[0; 4]));
    }
    let aborted = on_hosts("a:2,b:2", &["abort", "3"]);
    assert_eq!(aborted.status.code(), Some(7), "{}", stderr(&aborted));
    let killed = on_hosts("a:2,b:2", &["killed", "2"]);
    assert_eq!(killed.status.code(), Some(137), "{}", stderr(&killed));
}

#[test]
fn a_rank_of_mpi_that_fails_ends_the_job() {
    let Some(ring) = ring() else { return };
    for (what, code, why) in [
        ("abort", 7, "rank 2 called MPI_Abort with 7; the job was ended"),
        ("killed", 137, "rank 2 was ended by signal 9"),
        ("exit", 1, "rank 2 exited with status 0 without finalizing"),
    ] {
        let output = job(&["-q", "-n", "4", ring, what, "2"]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(why), "{text}");
    }
    // It ends all, whatever is said of ranks that fail.
    let output = job(&["-q", "--on-failure", "continue", "-n", "4", ring, "abort", "0"]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stderr(&output).contains("the job was ended"), "{}", stderr(&output));
}

/// What ranks need to speak for themselves.
const SPEAK: &str = r#"
say() { printf '%s\n' "$@" >&"$PMI_FD"; }
hear() { IFS= read -r heard <&"$PMI_FD" || exit 9; [ -z "$1" ] || [ "$heard" = "$1" ] || exit 8; }
begin() { say "cmd=init pmi_version=1 pmi_subversion=1"; hear; }
meet() { say cmd=barrier_in; hear cmd=barrier_out; }
end() { say cmd=finalize; hear cmd=finalize_ack; exit 0; }
"#;

/// Scripts as ranks.
fn speaking(options: &[&str], script: &str) -> Output {
    let script = format!("{SPEAK}{script}");
    job(&[options, &["-q", "--timeout", "60", "bash", "-c", &script]].concat())
}

#[test]
fn a_rank_may_be_anything_that_speaks_pmi_1() {
    let script = "
        begin; say cmd=get_my_kvsname; hear; space=${heard##*=}
        say \"cmd=put kvsname=$space key=k$PMI_RANK value=$PMI_RANK-$PMI_SIZE\"; hear; meet
        say \"cmd=get kvsname=$space key=k$(((PMI_RANK + 1) % PMI_SIZE))\"; hear
        echo \"$heard\"; meet; end";
    let output = speaking(&["-n", "3"], script);
    succeeds(&output);
    let found = |rank: u32| format!("cmd=get_result rc=0 msg=success value={rank}-3");
    assert_eq!(sorted(&output), [found(0), found(1), found(2)]);
}

#[test]
fn garbage_of_a_rank_ends_the_job_and_names_it() {
    let others = "[ $PMI_RANK = 1 ] || { begin; meet; exit 3; };";
    for (garbage, why) in [
        ("say 'GET / HTTP/1.1'; hear", "a line is no message"),
        ("begin; say cmd=reboot; hear", "there is no such command"),
        ("say cmd=get_maxes; hear", "nothing comes before `init`"),
        ("begin; begin; begin", "`init` comes once"),
        ("[ $PMI_RANK = 1 ] && begin; say cmd=finalize; hear; begin", "one program of MPI, once"),
        ("begin; say cmd=put; hear", "a field is missing"),
        ("cat /dev/zero >&$PMI_FD; sleep 1000", "a line has more than"),
        ("head -c 100000 /dev/urandom | tr -d '\\n' >&$PMI_FD; sleep 1000", "a line has more than"),
        (
            "begin; say cmd=get_my_kvsname; hear; value=$(printf %01000d 0)
             put=\"cmd=put kvsname=${heard##*=} key=k value=$value\"
             while :; do say \"$put\"; read <&$PMI_FD; done",
            "it has put more than",
        ),
    ] {
        let output = speaking(&["-n", "3"], &format!("{others} {garbage}"));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{garbage}: {text}");
        let named = "rank 1 broke the protocol of PMI-1 at its descriptor PMI_FD";
        assert!(text.contains(named) && text.contains(why), "{garbage}: {text}");
    }
    // It is shown what that was.
    let output = job(&["-n", "1", "bash", "-c", "echo 'GET /' >&$PMI_FD; cat <&$PMI_FD; sleep 9"]);
    assert!(stderr(&output).contains("rank 0 said \"GET /\" at PMI_FD"), "{}", stderr(&output));
}

/// Survivors that wait for a rank that is gone are told so, and do not hang.
#[test]
fn no_rank_waits_for_one_that_is_gone() {
    let closed = "exec {PMI_FD}>&-; sleep 1000";
    for (policy, gone, code) in
        [("continue", "exit 5", 5), ("continue", "end", 1), ("end", "end", 1), ("end", closed, 9)]
    {
        let script = format!(
            "begin; [ $PMI_RANK = 1 ] && {{ {gone}; }}
             say cmd=barrier_in; IFS= read -r heard <&$PMI_FD || {{ echo told; exit 9; }}"
        );
        let output = speaking(&["-n", "2", "--on-failure", policy], &script);
        let (out, err) = (stdout(&output), stderr(&output));
        // Where the survivor is slow, the job ends by the rank that is gone before it is told.
        if gone == closed && output.status.code() == Some(1) {
            continue;
        }
        assert_eq!((output.status.code(), &*out), (Some(code), "told\n"), "{gone}: {err}");
    }
}

#[test]
fn ranks_of_this_runtime_are_not_disturbed() {
    // Without what rma-run sets for it, a process is no rank, and PMI is not taken for another
    // launcher's.
    const WITHOUT: &str = "-u RMA_BOOTSTRAP -u RMA_RANK -u RMA_SECRET_FD";
    let program = rank_program();
    let without = |more: &str| {
        let script = format!("exec env {WITHOUT} {more} \"$0\"");
        let output = job(&["-q", "-n", "2", "sh", "-c", &script, &program]);
        succeeds(&output);
        sorted(&output)
    };
    assert_eq!(without(""), ["alone", "alone"]);
    // A wrapper that keeps variables of PMI alone leaves what a rank needs.
    let managed = ["managed rank 0 of 2", "managed rank 1 of 2"];
    assert_eq!(without("-u RMA_PMI_FD"), managed);
    let nested = job(&["-q", "-n", "2", env!("CARGO_BIN_EXE_rma-run"), "-n", "1", "echo", "runs"]);
    succeeds(&nested);
    assert_eq!(stdout(&nested), "runs\nruns\n");
}

/// A rank of this runtime may have begun with PMI-1, too; that it leaves that is no failure.
#[test]
fn a_rank_of_both_runtimes_is_judged_by_this_one() {
    // Rank 0 waits for a line, while the other end of PMI_FD sees that it is closed.
    let script = format!(
        "{SPEAK} begin; exec 3< <(\"$0\" wait < <(sleep 2; echo) {{PMI_FD}}>&-)
         read -r line <&3; exec {{PMI_FD}}>&-; cat <&3"
    );
    let (_folder, shell) = remote_shell(SHELL);
    let on_hosts = ["--hosts", "a:1,b:1", "--ssh-command", shell.to_str().unwrap()];
    for place in [&[][..], &on_hosts] {
        let line = ["-q", "-n", "2", "bash", "-c", &script, &rank_program()];
        let output = job(&[place, &line].concat());
        succeeds(&output);
        assert_eq!(sorted(&output), ["rank 0 of 2", "rank 1 of 2"], "{place:?}");
    }
}

#[test]
fn pmi_is_offered_unless_that_is_not_wanted() {
    let shown = "echo ${PMI_FD:+fd} $PMI_RANK $PMI_SIZE ${RMA_PMI_FD:+name} $PMI_PORT $PMI_ID";
    let outer = |options: &[&str]| {
        let mut command = rma_run(&[options, &["-q", "-n", "1", "sh", "-c", shown]].concat());
        command.env("PMI_PORT", "a:1").env("PMI_ID", "0").output().unwrap()
    };
    assert_eq!(stdout(&outer(&[])), "fd 0 1 name\n");
    assert_eq!(stdout(&outer(&["--no-pmi"])), "a:1 0\n");
    for (options, said) in [(&[][..], "served by PMI-1"), (&["--no-pmi"], "not served (--no-pmi)")]
    {
        let output = job(&[&["--explain", "-n", "1"], options, &["true"]].concat());
        let line = format!("explain: programs of MPI: {said}");
        assert!(stderr(&output).contains(&line), "{}", stderr(&output));
    }
}
