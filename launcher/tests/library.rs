//! Jobs run from within a test, as `rma`'s own test helper does.

mod support;

use std::time::Duration;

use rma_launcher::run::{Ending, How, Output, RunError, Spec, Stdin, run};
use support::rank_program;

fn captured(program: &str, args: &[&str], ranks: u32) -> Spec {
    let mut spec = Spec::new(program, ranks);
    spec.args = args.iter().map(Into::into).collect();
    spec.output = Output::Capture;
    spec
}

#[test]
fn output_is_captured_by_rank() {
    let mut spec = captured("sh", &["-c", "echo out $RMA_RANK $X $Y; echo err >&2; cat"], 2);
    spec.stdin = Stdin::Bytes(b"input".to_vec());
    spec.env = vec![("X".into(), Some("x".into())), ("HOME".into(), None)];
    let report = run(&spec).unwrap();
    assert_eq!((&report.ending, report.exit_code()), (&Ending::Success, 0));
    assert_eq!(report.output[0].stdout, b"out 0 x\ninput");
    assert_eq!(report.output[1].stdout, b"out 1 x\n");
    assert_eq!(report.output[1].stderr, b"err\n");
}

#[test]
fn a_failure_comes_with_the_end_of_what_its_rank_printed() {
    let script = "[ $RMA_RANK = 1 ] || exec sleep 1000; seq 10000; echo the reason >&2; exit 3";
    let report = run(&captured("sh", &["-c", script], 2)).unwrap();
    assert_eq!(report.exit_code(), 3);
    let failure = report.failure().unwrap();
    assert_eq!((failure.rank, failure.how), (1, How::Exited(3)));
    assert!(failure.tail.contains("the reason\n"), "{}", failure.tail);
    assert!(failure.tail.len() <= 8192);
    assert!(report.notes.iter().any(|note| note.contains("rank 1 exited with status 3")));
}

#[test]
fn ranks_join_jobs_that_run_side_by_side() {
    std::thread::scope(|scope| {
        for ranks in [1, 2, 5] {
            scope.spawn(move || {
                let report = run(&captured(&rank_program(), &[], ranks)).unwrap();
                assert_eq!(report.ending, Ending::Success, "{report:?}");
                for (rank, output) in report.output.iter().enumerate() {
                    let expected = format!("rank {rank} of {ranks}\n");
                    assert_eq!(output.stdout, expected.as_bytes());
                }
            });
        }
    });
}

#[test]
fn the_time_limit_ends_a_job() {
    let mut spec = captured("sleep", &["1000"], 2);
    spec.timeout = Some(Duration::from_millis(200));
    let report = run(&spec).unwrap();
    assert_eq!(report.ending, Ending::TimedOut { running: vec![0, 1] });
    assert_eq!(report.exit_code(), 124);
}

#[test]
fn a_pipe_that_outlives_its_rank_does_not_hold_the_job_up() {
    let report = run(&captured("sh", &["-c", "echo done; sleep 1000 & exit 0"], 2)).unwrap();
    assert_eq!(report.ending, Ending::Success);
    assert_eq!(report.output[0].stdout, b"done\n");
}

#[test]
fn what_cannot_be_run_is_an_error() {
    assert!(matches!(run(&captured("true", &[], 0)), Err(RunError::NoRanks)));
    assert!(matches!(run(&captured("no-such", &[], 1)), Err(RunError::NotFound { .. })));
    assert!(matches!(run(&captured("true", &[], u32::MAX)), Err(RunError::TooMany(_))));
    for name in ["", "a=b", "a\0b"] {
        let mut spec = captured("true", &[], 1);
        spec.env = vec![(name.into(), None)];
        assert!(matches!(run(&spec), Err(RunError::BadVariable { .. })), "{name:?}");
    }
    let zero = run(&captured("true", &["a\0b"], 1));
    assert!(matches!(zero, Err(RunError::Spawn { rank: 0, .. })), "{zero:?}");
}

#[test]
fn descriptors_and_children_do_not_add_up() {
    let count = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let children = tasks
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).ok());
        (open, children.map(|text| text.split_whitespace().count()).sum::<usize>())
    };
    // In a process of its own: other tests of this program open and start things, too.
    if std::env::var_os("COUNT_ALONE").is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "descriptors_and_children_do_not_add_up", "--test-threads=1"]);
        let output = child.env("COUNT_ALONE", "1").output().unwrap();
        assert!(output.status.success(), "{}", support::stdout(&output));
        return;
    }
    run(&captured("true", &[], 2)).unwrap();
    let before = count();
    for _ in 0..20 {
        run(&captured("sh", &["-c", "exit $RMA_RANK"], 2)).unwrap();
    }
    assert_eq!(count(), before);
}
