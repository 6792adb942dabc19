//! Command lines as users of mpiexec, or cargo, write them.

mod support;

use std::process::Command;

use support::*;

#[test]
fn options_of_mpiexec_work() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().canonicalize().unwrap();
    let folder = folder.to_str().unwrap();
    let line = ["-np", "2", "-host", "localhost", "-l", "-wdir", folder, "-genv", "GREETING", "hi"];
    let output = job(&[&line[..], &["-q", "sh", "-c", "echo $GREETING from $PWD"]].concat());
    succeeds(&output);
    let expected = [format!("[0] hi from {folder}"), format!("[1] hi from {folder}")];
    assert_eq!(sorted(&output), expected);
}

#[test]
fn what_is_not_understood_runs_nothing() {
    let lines: [&[&str]; 5] = [
        &["-host", "far-away.invalid", "-n", "1", "echo", "ran"],
        &["-hello", "echo", "ran"],
        &["-n", "1", "echo", "ran", ":", "-n", "1", "-l", "echo", "ran"],
        &["-n", "4", "-ppn", "2", "echo", "ran"],
        &["-n", "1", "--wdir", "/no/such/folder", "echo", "ran"],
    ];
    for line in lines {
        let output = job(line);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{line:?}");
        assert_eq!(stdout(&output), "", "{line:?}");
        assert!(!stderr(&output).is_empty());
    }
}

#[test]
fn wrappers_learn_where_a_rank_is() {
    let script = "echo $RMA_RANK $RMA_SIZE $RMA_NODE $RMA_LOCAL_RANK $RMA_LOCAL_SIZE";
    let output = sh(&["--nodes", "2x2", "-q"], script);
    succeeds(&output);
    assert_eq!(sorted(&output), ["0 4 0 0 2", "1 4 0 1 2", "2 4 1 0 2", "3 4 1 1 2"]);
}

#[test]
fn survivors_go_on_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("failed");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // Rank 1 goes on after rank 0 has failed: the pipe ends with that.
    let script = format!(
        "if [ $RMA_RANK = 0 ]; then exec 3> {0}; exit 7; else read x < {0}; echo went on; fi",
        fifo.display()
    );
    let output = sh(&["-n", "2", "-q", "--on-failure", "continue"], &script);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(stdout(&output), "went on\n");
    assert!(stderr(&output).contains("rank 0 exited with status 7; the others went on"));
}

#[test]
fn one_launcher_of_several_is_refused() {
    let with = |vars: &[(&str, &str)]| {
        rma_run(&["-n", "1", "true"]).envs(vars.iter().copied()).output().unwrap()
    };
    let several = [
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("PMI_SIZE", "2"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("PMI_ID", "1"),
        ("PMIX_RANK", "3"),
        ("PBS_TASKNUM", "2"),
        ("LSF_PM_TASKID", "1"),
        ("MV2_COMM_WORLD_SIZE", "2"),
        ("PALS_SIZE", "2"),
    ];
    for (name, value) in several {
        let output = with(&[(name, value)]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        let text = stderr(&output);
        assert!(text.contains(&format!("{name}={value}")), "{text}");
        assert!(text.contains(&format!("env -u {name}")), "{text}");
    }
    let one = [
        // The step of one task in a job of many, and the script of a batch job.
        &[("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")][..],
        &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")],
        &[("PMI_SIZE", "1"), ("PMI_RANK", "0")],
        &[("OMPI_COMM_WORLD_SIZE", "1"), ("PMIX_RANK", "0")],
        &[("PBS_TASKNUM", "1")],
        &[("LSF_PM_TASKID", "1"), ("LSB_DJOB_NUMPROC", "1")],
        &[("LSB_DJOB_NUMPROC", "4")],
    ];
    for vars in one {
        let output = with(vars);
        succeeds(&output);
        assert_eq!(stderr(&output), "", "{vars:?}");
    }
}

#[test]
fn shells_take_the_completions() {
    let output = job(&["completions", "bash"]);
    succeeds(&output);
    let script = format!(
        "{}\nCOMP_WORDS=(rma-run --kill); COMP_CWORD=1; _rma_run; echo \"${{COMPREPLY[*]}}\"",
        stdout(&output)
    );
    let completed = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(stdout(&completed), "--kill-after\n", "{}", stderr(&completed));
    let manual = job(&["man"]);
    succeeds(&manual);
    assert!(stdout(&manual).starts_with(".TH RMA-RUN 1"));
}

#[test]
fn cargo_builds_and_runs() {
    // A package of its own, without dependencies: nothing is fetched.
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("src")).unwrap();
    let manifest =
        "[package]\nname = \"hi\"\nversion = \"0.0.0\"\nedition = \"2021\"\n[workspace]\n";
    std::fs::write(dir.path().join("Cargo.toml"), manifest).unwrap();
    let main = "fn main() { println!(\"{:?}\", std::env::args().nth(1)); }";
    std::fs::write(dir.path().join("src/main.rs"), main).unwrap();
    let mut cargo = Command::new(env!("CARGO_BIN_EXE_cargo-rma-run"));
    cargo.current_dir(dir.path()).env_remove("CARGO_TARGET_DIR");
    let output =
        cargo.args(["rma-run", "-n", "2", "-q", "--bin", "hi", "--", "-n"]).output().unwrap();
    succeeds(&output);
    assert_eq!(stdout(&output), "Some(\"-n\")\nSome(\"-n\")\n");
}

#[test]
fn several_programs_are_one_job() {
    let line = ["-q", "-genv", "ALL", "1", "-n", "1", "--env", "OWN=a", "sh", "-c", SAY, "x", ":"];
    let next = ["-n", "2", "-wdir", "/", "sh", "-c", SAY, "y", ":", "-np", "1", "sh", "-c", SAY];
    let output = job(&[&line[..], &next].concat());
    succeeds(&output);
    let here = std::env::current_dir().unwrap();
    let here = here.display();
    let expected = [
        format!("0 of 4 x {here} 1 a"),
        "1 of 4 y / 1 -".to_owned(),
        "2 of 4 y / 1 -".to_owned(),
        format!("3 of 4 sh {here} 1 -"),
    ];
    assert_eq!(sorted(&output), expected);
}

/// What a rank has been told.
const SAY: &str = "echo $RMA_RANK of $RMA_SIZE $0 $PWD $ALL ${OWN:--}";

#[test]
fn a_program_that_is_missing_is_named_before_any_runs() {
    let output = job(&["-n", "1", "echo", "ran", ":", "-n", "1", "no-such-program"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(127), String::new()));
    assert!(stderr(&output).contains("\"no-such-program\" not found"), "{}", stderr(&output));
}
