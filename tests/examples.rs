//! The examples, run as real processes under the launcher, and the parts of the main one.
//!
//! `cargo test -p rma` builds the examples; with `--test examples` alone, build them before.
// Each example brings its own `common`.
#![allow(clippy::duplicate_mod)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rma_launcher::run::{Output, Report, Spec, run};

#[path = "../examples/wordcount/check.rs"]
mod check;
#[allow(dead_code)]
#[path = "../examples/wordcount/claim.rs"]
mod claim;
#[allow(dead_code)]
#[path = "../examples/heat.rs"]
mod heat;
#[path = "../examples/wordcount/input.rs"]
mod input;
#[allow(dead_code)]
#[path = "../examples/wordcount/table.rs"]
mod table;
#[allow(dead_code)]
#[path = "../examples/ticket_queue.rs"]
mod ticket_queue;

use claim::FileList;
use clap::Parser;
use table::{Added, Entry, Size, Table};

/// For what hangs. Nothing here takes longer than seconds.
const WATCHDOG: Duration = Duration::from_secs(300);
/// More than this machine may have cores.
const RANKS: [u32; 4] = [1, 2, 4, 9];
const EQUAL: &str = "checked against a sequential count: equal\n";

fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps");
    let program = profile.join("examples").join(name);
    assert!(program.exists(), "{} is missing: cargo build --examples", program.display());
    program
}

fn job(ranks: u32, name: &str, args: &[&str]) -> Report {
    job_on(1, ranks, name, args)
}

/// As [`job`], on so many pretended nodes.
fn job_on(nodes: u32, ranks: u32, name: &str, args: &[&str]) -> Report {
    let mut spec = Spec::new(example(name), ranks);
    spec.args = args.iter().map(Into::into).collect();
    spec.nodes = nodes;
    spec.output = Output::Capture;
    spec.oversubscribe = true;
    spec.timeout = Some(WATCHDOG);
    run(&spec).expect("starting the job")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// What rank 0 printed in a job that must succeed, and in which no other rank printed anything.
fn succeed(ranks: u32, name: &str, args: &[&str]) -> String {
    let report = job(ranks, name, args);
    assert_eq!(report.exit_code(), 0, "{report:?}");
    for output in &report.output[1..] {
        assert_eq!(text(&output.stdout), "", "only rank 0 reports");
    }
    text(&report.output[0].stdout)
}

/// What a job said that must fail, with exit code 1; only rank 0 may say something.
fn fail(ranks: u32, name: &str, args: &[&str]) -> String {
    let report = job(ranks, name, args);
    assert_eq!(report.exit_code(), 1, "{report:?}");
    assert_eq!(report.failure().map(|failure| failure.rank), Some(0), "{report:?}");
    for output in &report.output {
        assert_eq!(text(&output.stdout), "");
    }
    for output in &report.output[1..] {
        assert_eq!(text(&output.stderr), "", "only rank 0 complains");
    }
    text(&report.output[0].stderr)
}

/// Place, count and word of each line of the table that wordcount prints.
fn table_lines(stdout: &str) -> Vec<(usize, u64, String)> {
    let lines = stdout.lines().skip_while(|line| !line.ends_with("  word")).skip(1);
    let cells = lines.map_while(|line| {
        let mut cells = line.split_whitespace();
        let place = cells.next()?.parse().ok()?;
        let count = cells.next()?.replace(',', "").parse().ok()?;
        Some((place, count, cells.next()?.to_owned()))
    });
    cells.collect()
}

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (path, bytes) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder");
        fs::write(path, bytes).expect("a file");
    }
    folder
}

fn path(folder: &tempfile::TempDir) -> &str {
    folder.path().to_str().expect("UTF-8")
}

#[test]
fn wordcount_counts_what_it_should() {
    let files: [(&str, &[u8]); 9] = [
        ("a.rs", b"fn one() { Two(two); }"),
        ("deep/er/b.md", b"two TWO don't stop"),
        ("README.MD", "zwei ÄPFEL äpfel".as_bytes()),
        ("bytes.md", b"stop \xff stop"),
        (".hidden/c.rs", b"hidden"),
        ("target/d.rs", b"built"),
        ("e.txt", b"other"),
        ("rs", b"nameless"),
        ("empty.rs", b""),
    ];
    let folder = folder(&files);
    symlink("nowhere", folder.path().join("broken.rs")).unwrap();
    symlink("..", folder.path().join("deep/circle")).unwrap();
    symlink("../a.rs", folder.path().join("deep/link.rs")).unwrap();
    for ranks in RANKS {
        let stdout = succeed(ranks, "wordcount", &[path(&folder)]);
        let expected = [
            (1, 6, "two"),
            (2, 3, "stop"),
            (3, 2, "fn"),
            (4, 2, "one"),
            (5, 2, "äpfel"),
            (6, 1, "don't"),
            (7, 1, "zwei"),
        ];
        let expected = expected.map(|(place, count, word)| (place, count, word.to_owned()));
        assert_eq!(table_lines(&stdout), expected, "{stdout}");
        assert!(stdout.contains("17 words, 7 of them different, in 6 files"), "{stdout}");
        assert!(stdout.contains("could not be read, and are not counted: 1\n"), "{stdout}");
        assert!(stdout.contains("not UTF-8, counted as far as they are: 1\n"), "{stdout}");
        assert!(stdout.ends_with(EQUAL), "{stdout}");
        let took = |line: &str| {
            let (_, rest) = line.strip_prefix("rank ")?.split_once(" took ")?;
            rest.split(' ').next()?.parse::<u32>().ok()
        };
        let took: Vec<u32> = stdout.lines().filter_map(took).collect();
        assert_eq!((took.len(), took.iter().sum()), (ranks as usize, 6), "{stdout}");
    }
    let stdout = succeed(2, "wordcount", &[path(&folder), "--top", "2"]);
    assert_eq!(table_lines(&stdout).len(), 2, "{stdout}");
}

#[test]
fn wordcount_of_nothing() {
    let empty = folder(&[]);
    let other = folder(&[("a.txt", b"word"), (".git/b.md", b"word")]);
    for ranks in RANKS {
        for folder in [&empty, &other] {
            let report = job(ranks, "wordcount", &[path(folder)]);
            assert_eq!(report.exit_code(), 0, "{report:?}");
            let stdout = text(&report.output[0].stdout);
            assert!(stdout.starts_with("0 words, 0 of them different, in 0 files"), "{stdout}");
            assert!(stdout.ends_with(EQUAL), "{stdout}");
            let stderr = text(&report.output[0].stderr);
            assert!(stderr.contains("there is no .rs or .md file under"), "{stderr}");
        }
    }
}

#[test]
fn wordcount_refuses_what_is_no_folder() {
    let folder = folder(&[("a.rs", b"word")]);
    let missing = folder.path().join("missing").to_str().unwrap().to_owned();
    let file = folder.path().join("a.rs").to_str().unwrap().to_owned();
    for ranks in RANKS {
        for (what, why) in [(&missing, "No such file"), (&file, "Not a directory")] {
            let stderr = fail(ranks, "wordcount", &[what]);
            let message = format!("Error: cannot read the folder {what}: {why}");
            assert!(stderr.starts_with(&message), "{stderr}");
        }
    }
}

#[test]
fn wrong_arguments_are_reported_once() {
    for name in ["wordcount", "heat", "ticket_queue", "keys"] {
        let stderr = fail(3, name, &["--no-such"]);
        assert!(stderr.starts_with("Error: unexpected argument '--no-such'"), "{stderr}");
        let stdout = succeed(3, name, &["--help"]);
        assert!(stdout.contains(&format!("Usage: {name}")), "{stdout}");
    }
    let stderr = fail(2, "wordcount", &["--top", "many"]);
    assert!(stderr.contains("invalid value 'many' for '--top"), "{stderr}");
    let stderr = fail(2, "heat", &["--size", "0"]);
    assert!(stderr.contains("0 is not in 1..=8192"), "{stderr}");
}

#[test]
fn examples_run_without_a_launcher() {
    let folder = folder(&[("a.rs", b"one two two")]);
    let calls: [(&str, &[&str], &str); 4] = [
        ("wordcount", &[path(&folder)], EQUAL),
        ("heat", &["--size", "9", "--steps", "60"], "equal, bit by bit\n"),
        ("ticket_queue", &["--jobs", "50", "--work", "1"], "and the sum is right\n"),
        ("hello", &[], "counted 1\n"),
    ];
    for (name, args, end) in calls {
        let output = Command::new(example(name)).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(text(&output.stdout).ends_with(end), "{output:?}");
    }
}

#[test]
fn keys_are_put_replaced_listed_and_deleted() {
    for ranks in RANKS {
        let root = folder(&[]);
        let with =
            |args: &[&'static str]| [&["--root", path(&root), "--bytes", "2048"], args].concat();
        let works = |args: &[&'static str]| succeed(ranks, "keys", &with(args));
        let fails = |args: &[&'static str]| fail(ranks, "keys", &with(args));
        assert_eq!(works(&["list"]), "");
        assert_eq!(fails(&["get", "a"]), "Error: there is no key \"a\"\n");
        assert!(!root.path().join("keys").exists(), "who only reads makes no store");
        assert_eq!(works(&["put", "b", "two", "a", "1", "ä", "", "b", "2"]), "");
        assert_eq!(works(&["list"]), "a\t1\nb\t2\nä\t\n");
        assert_eq!(works(&["get", "b"]), "2\n");
        assert_eq!(works(&["put", "b", "three"]), "");
        assert_eq!(works(&["delete", "a"]), "");
        assert_eq!(works(&["list"]), "b\tthree\nä\t\n");
        assert_eq!(fails(&["get", "a"]), "Error: there is no key \"a\"\n");
        let gone = "Error: some of these keys were not there; the others are deleted\n";
        assert_eq!(fails(&["delete", "a"]), gone);
        let odd = fails(&["put", "a"]);
        assert!(odd.contains("2 values required") || odd.contains("no value behind"), "{odd}");
        assert!(fails(&["put", "a", "1", "c"]).contains("no value behind the key \"c\""));
        assert_eq!(works(&["list"]), "b\tthree\nä\t\n");
    }
}

/// What was replaced makes room; what does not fit changes nothing.
#[test]
fn keys_make_room_until_there_is_none() {
    let root = folder(&[]);
    let put = |value: &str| {
        job(2, "keys", &["--root", path(&root), "--bytes", "2048", "put", "k", value, "l", "1"])
    };
    let (value, large) = ("v".repeat(500), "w".repeat(5000));
    for _ in 0..9 {
        assert_eq!(put(&value).exit_code(), 0);
    }
    let report = put(&large);
    assert_eq!(report.exit_code(), 1, "{report:?}");
    assert!(text(&report.output[0].stderr).contains("no room: nothing was put"), "{report:?}");
    let found = succeed(2, "keys", &["--root", path(&root), "get", "k"]);
    assert_eq!(found, value + "\n");
    let other = job(3, "keys", &["--root", path(&root), "list"]);
    assert_eq!(other.exit_code(), 1);
    assert!(text(&other.output[0].stderr).contains("2 ranks"), "{other:?}");
    // Of two that change places, one grows before the other is smaller.
    let (root, long) = (folder(&[]), "v".repeat(1000));
    for (a, b) in [("s", &*long), (&*long, "s")] {
        let put = ["--root", path(&root), "--bytes", "2048", "put", "a", a, "b", b];
        succeed(1, "keys", &put);
        let all = succeed(1, "keys", &["--root", path(&root), "list"]);
        assert_eq!(all, format!("a\t{a}\nb\t{b}\n"));
    }
}

/// Killed at any moment of a put, the next command finds all of its pairs or none.
#[test]
fn keys_survive_a_kill() {
    let root = folder(&[]);
    let value = |trial: usize| trial.to_string();
    let mut last = 0;
    let begun = Instant::now();
    succeed(1, "keys", &["--root", path(&root), "put", "a", "0", "b", "0", "c", "0"]);
    let whole = begun.elapsed();
    let mut outcomes = [0, 0];
    for trial in 1..=30 {
        let new = value(trial);
        let args = ["--root", path(&root), "put", "a", &new, "b", &new, "c", &new];
        let begun = Instant::now();
        let mut child = Command::new(example("keys")).args(args).spawn().unwrap();
        // Another moment of its life each time; the last ones are given the time they want.
        while begun.elapsed() < whole * trial as u32 / 28 {
            std::thread::yield_now();
        }
        if trial < 28 {
            child.kill().unwrap();
        }
        let ended = child.wait().unwrap();
        let found = succeed(1, "keys", &["--root", path(&root), "list"]);
        let all = |of: usize| format!("a\t{of}\nb\t{of}\nc\t{of}\n");
        let is_new = found == all(trial);
        assert!(is_new || found == all(last) && !ended.success(), "trial {trial}: {found}");
        outcomes[usize::from(is_new)] += 1;
        last = if is_new { trial } else { last };
    }
    assert!(outcomes[1] >= 3, "{outcomes:?}");
}

/// What the newest checkpoint of wordcount is: the size of its table, and its version.
fn checkpoint_of(folder: &Path) -> Option<(u64, u64)> {
    let windows = rma::Root::look(folder).ok()?.windows().ok()?;
    let newest = |window: &rma::WindowSummary| {
        let version = window.versions.last()?.number;
        Some((window.name.split('-').nth(1)?.parse().ok()?, version))
    };
    windows.iter().filter_map(newest).max()
}

/// The processes of a job that this one has started, by an argument that no other job has.
fn ranks_with(argument: &str) -> Vec<rustix::process::Pid> {
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_it = |number: &i32| {
        let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    };
    numbers.filter(has_it).filter_map(rustix::process::Pid::from_raw).collect()
}

/// A rank is killed after some checkpoints, again and again; the last run goes on from where the
/// one before was, and comes to the result of a run that was left alone.
#[test]
fn wordcount_survives_kills() {
    const FILES: usize = 150;
    let text = |at: usize| (0..40).map(|word| format!("word{} ", word * at % 977)).collect();
    let texts: Vec<(String, String)> =
        (0..FILES).map(|at| (format!("{at}.md"), text(at))).collect();
    let files: Vec<(&str, &[u8])> =
        texts.iter().map(|(name, text)| (&**name, text.as_bytes())).collect();
    let (files, kept) = (folder(&files), folder(&[]));
    // Too small, so that it grows on the way.
    let small = ["--buckets", "8", "--heap", "64", path(&files)];
    let args = [&["--checkpoint", path(&kept)], &small[..]].concat();
    let mut last = None;
    for _ in 0..3 {
        let report = std::thread::scope(|scope| {
            let running = scope.spawn(|| job(3, "wordcount", &args));
            let mut seen = std::collections::BTreeSet::new();
            while seen.len() < 4 && !running.is_finished() {
                seen.extend(checkpoint_of(kept.path()).filter(|newest| Some(*newest) > last));
                std::thread::yield_now();
            }
            for rank in ranks_with(path(&kept)).into_iter().take(1) {
                _ = rustix::process::kill_process(rank, rustix::process::Signal::KILL);
            }
            running.join().unwrap()
        });
        assert_ne!(report.exit_code(), 0, "it was killed: {report:?}");
        last = checkpoint_of(kept.path());
    }
    let report = job(3, "wordcount", &args);
    assert_eq!(report.exit_code(), 0, "{report:?}");
    let said = text_of_first(&report);
    let (_, from) = said.1.split_once("going on from file ").expect("it goes on");
    let from: usize = from.split(' ').next().unwrap().parse().unwrap();
    assert!((9..=FILES).contains(&from), "{from}: at least three checkpoints of three files");
    assert!(said.0.ends_with(EQUAL), "{}", said.0);
    let alone = succeed(3, "wordcount", &small);
    let counts = |text: &str| text.lines().take(21).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(counts(&said.0), counts(&alone));
    // As of a run that was killed when the table had grown, before the smaller one was deleted.
    let smaller = rma::local(3, |universe| {
        let (root, world) = (rma::Root::open(universe.world(), kept.path())?, universe.world());
        let hints = rma::PersistentHints::name("wordcount-1-1");
        rma::PersistentMemory::open(&root, world, &hints, 8).map(drop)
    });
    smaller.unwrap().into_iter().for_each(|rank| rank.unwrap());
    assert!(kept.path().join("wordcount-1-1").exists());
    // With all files counted, there is only the result to tell, and other files are another count.
    let again = job(3, "wordcount", &args);
    assert!(!kept.path().join("wordcount-1-1").exists());
    assert!(text_of_first(&again).0.ends_with(EQUAL), "{again:?}");
    fs::write(files.path().join("one more.md"), "word").unwrap();
    let refused = job(3, "wordcount", &args);
    assert_ne!(refused.exit_code(), 0);
    assert!(text_of_first(&refused).1.contains("the files are not those"), "{refused:?}");
}

/// What rank 0 said, to standard output and to standard error.
fn text_of_first(report: &Report) -> (String, String) {
    (text(&report.output[0].stdout), text(&report.output[0].stderr))
}

/// Load and store inside of each node, messages between them.
#[test]
fn examples_run_on_several_nodes() {
    let files = folder(&[("a.rs", b"fn one() { Two(two); }"), ("b.rs", b"one two two")]);
    let stored = folder(&[]);
    let counter = format!("{}/counter", path(&stored));
    let runs: [(&str, &[&str], &str); 5] = [
        ("hello", &[], "counted "),
        ("wordcount", &[path(&files)], EQUAL),
        ("heat", &["--size", "20", "--steps", "100"], "sequential run: equal, bit by bit\n"),
        ("ticket_queue", &["--jobs", "500"], "executed exactly once, and the sum is right\n"),
        ("counter", &["--file", &counter, "--times", "10"], "durable "),
    ];
    for (nodes, ranks) in [(2, 2), (2, 4), (3, 6), (2, 9)] {
        for (name, args, said) in runs {
            let report = job_on(nodes, ranks, name, args);
            assert_eq!(report.exit_code(), 0, "{report:?}");
            let stdout = text(&report.output[0].stdout);
            assert!(stdout.contains(said), "{name} on {nodes} nodes: {stdout}");
        }
        // Parts by messages: what was linked is found by the next get.
        let root = folder(&[]);
        for (command, said) in
            [(&["put", "k", "1", "l", "2", "m", "3"][..], ""), (&["get", "l"], "2\n")]
        {
            let args = [&["--root", path(&root)], command].concat();
            let report = job_on(nodes, ranks, "keys", &args);
            assert_eq!(report.exit_code(), 0, "{report:?}");
            assert_eq!(text(&report.output[0].stdout), said);
        }
    }
}

#[test]
fn one_huge_line_and_one_huge_word() {
    let mut line = "same word ".repeat(50_000);
    line.push_str(&"x".repeat(4 << 20));
    let folder = folder(&[("line.md", line.as_bytes()), ("other.md", b"same")]);
    for ranks in RANKS {
        let stdout = succeed(ranks, "wordcount", &[path(&folder)]);
        let cut = format!("{}…", "x".repeat(60));
        let expected =
            [(1, 50_001, "same".to_owned()), (2, 50_000, "word".to_owned()), (3, 1, cut)];
        assert_eq!(table_lines(&stdout), expected);
        // A word that is longer than the heap at the beginning.
        assert!(stdout.contains("grown 1 times"), "{stdout}");
        assert!(stdout.ends_with(EQUAL), "{stdout}");
    }
}

#[test]
fn tables_that_are_too_small_overflow_and_grow() {
    let words: String = (0..4000).map(|i| format!("w{} long_identifier_{} ", i % 999, i)).collect();
    let files: Vec<String> = (0..12).map(|i| format!("{i}.rs")).collect();
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|file| (file.as_str(), words.as_bytes())).collect();
    let folder = folder(&files);
    for ranks in RANKS {
        for (sizes, grows) in [
            (&["--buckets", "1", "--heap", "1000000"][..], false),
            (&["--buckets", "1", "--heap", "0"], true),
            (&["--buckets", "2000", "--heap", "100"], true),
            (&["--buckets", "0", "--heap", "5000"], ranks == 1),
        ] {
            let args = [&[path(&folder), "--top", "1"], sizes].concat();
            let stdout = succeed(ranks, "wordcount", &args);
            assert_eq!(table_lines(&stdout), [(1, 60, "w0".to_owned())], "{stdout}");
            assert!(stdout.contains("96,000 words, 4,999 of them different"), "{stdout}");
            let grown = !stdout.contains("grown 0 times");
            assert!(grown == grows || sizes[3] == "5000", "{sizes:?}\n{stdout}");
            assert!(stdout.ends_with(EQUAL), "{stdout}");
        }
    }
}

#[test]
fn heat_is_the_same_on_any_number_of_ranks() {
    for (size, steps) in [("1", "120"), ("5", "0"), ("7", "300"), ("40", "777")] {
        let mut pictures = RANKS.map(|ranks| {
            let stdout = succeed(ranks, "heat", &["--size", size, "--steps", steps]);
            assert!(stdout.ends_with("sequential run: equal, bit by bit\n"), "{stdout}");
            let (picture, steps) = stdout.split_once(" points, ").expect("a summary");
            (picture.to_owned(), steps.split(',').next().map(str::to_owned))
        });
        assert_eq!(pictures[0].0.lines().count(), size.parse::<usize>().unwrap().min(24) + 1);
        pictures.rotate_left(1);
        assert!(pictures.iter().all(|picture| *picture == pictures[0]), "{pictures:?}");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path().to_str().expect("UTF-8");
    for (ranks, steps, found) in [(3, "60", 0), (3, "100", 40), (2, "140", 80), (4, "180", 120)] {
        let size = ["--size", "20", "--tolerance", "0", "--checkpoint", folder, "--every", "40"];
        let report = job(ranks, "heat", &[&size[..], &["--steps", steps]].concat());
        assert_eq!(report.exit_code(), 0, "{report:?}");
        let (stdout, stderr) = (text(&report.output[0].stdout), text(&report.output[0].stderr));
        assert!(stdout.ends_with("sequential run: equal, bit by bit\n"), "{stdout}");
        let says = stderr.contains(&format!("going on from step {found}\n"));
        assert_eq!(says, found > 0, "{stderr}");
    }
    let stdout = succeed(3, "heat", &["--size", "5", "--tolerance", "1"]);
    assert!(stdout.contains("5 x 5 points, 50 steps, 3 ranks"), "{stdout}");
}

#[test]
fn ticket_queue_executes_every_job_once() {
    let cases =
        [("1", "20000", "1"), ("2", "20000", "1"), ("3", "5000", "0"), ("64", "200", "100")];
    for ranks in RANKS {
        for (slots, jobs, work) in cases.into_iter().chain([("7", "0", "1")]) {
            let args = ["--slots", slots, "--jobs", jobs, "--work", work];
            let stdout = succeed(ranks, "ticket_queue", &args);
            let number = |line: &str, word: usize| {
                let word = line.split([' ', ':']).nth(word)?;
                word.parse::<u64>().ok()
            };
            // rank R made N jobs and executed N: …
            let lines: Vec<&str> =
                stdout.lines().filter(|line| line.starts_with("rank ")).collect();
            assert_eq!(lines.len(), ranks as usize, "{stdout}");
            for word in [3, 7] {
                let sum: u64 = lines.iter().map(|line| number(line, word).expect("a number")).sum();
                assert_eq!(sum.to_string(), jobs, "{stdout}");
            }
            assert!(stdout.ends_with("executed exactly once, and the sum is right\n"), "{stdout}");
        }
    }
}

#[test]
fn words_are_what_people_expect() {
    let words = |text: &str| {
        let mut words = Vec::new();
        input::for_each_word(text, |word| words.push(word.to_owned()));
        words
    };
    assert_eq!(
        words("Don't 'quote' x''y rock'n'roll it's' '"),
        ["don't", "quote", "x", "y", "rock'n'roll", "it's"]
    );
    assert_eq!(words("don\u{2019}t"), ["don't"]);
    assert_eq!(
        words("&'a str, fn snake_case(_x: u64) -> _ { __ }"),
        ["a", "str", "fn", "snake_case", "_x", "u64"]
    );
    assert_eq!(words("ÉCOLE Straße ΣΑ 1e9 0xff"), ["école", "straße", "σα", "1e9", "0xff"]);
    assert_eq!(words("a-b.c/d\u{fffd}e\nf\tg"), ["a", "b", "c", "d", "e", "f", "g"]);
    assert!(words("").is_empty() && words(" \n--- ' __ '").is_empty());
}

#[test]
fn files_are_found_in_the_same_order() {
    let files: [(&str, &[u8]); 4] =
        [("z.rs", b"12345"), ("b/a.rs", b"123"), ("a.md", b"123"), ("b/b.rs", b"1234")];
    let folder = folder(&files);
    let found = input::find(folder.path()).unwrap();
    let order = ["z.rs", "b/b.rs", "a.md", "b/a.rs"].map(|name| folder.path().join(name));
    assert_eq!((&found.files[..], found.bytes), (&order[..], 15));
    assert!(found.unreadable.is_empty());
    assert!(input::find(&folder.path().join("none")).is_err());
}

#[test]
fn a_wrong_result_is_found_wherever_it_is() {
    let folder = folder(&[("a.rs", b"one two two three"), ("b.md", b"two")]);
    let files = input::find(folder.path()).unwrap().files;
    let right = [("one", 1), ("three", 1), ("two", 3)];
    let right = right.map(|(word, count)| (word.to_owned(), count)).to_vec();
    let compare = |table: &[Entry]| check::compare(table, check::count(&files));
    assert_eq!(compare(&right), Ok(()));
    for at in 0..right.len() {
        let (word, count) = right[at].clone();
        let mut wrong = right.clone();
        wrong[at].1 += 1;
        let difference = compare(&wrong).unwrap_err();
        assert_eq!(
            (&difference.word, difference.table, difference.sequential),
            (&word, count + 1, count)
        );
        wrong.remove(at);
        let difference = compare(&wrong).unwrap_err();
        assert_eq!((&difference.word, difference.table, difference.sequential), (&word, 0, count));
        let twice = [right.clone(), vec![right[at].clone()]].concat();
        assert_eq!(compare(&twice).unwrap_err().word, word);
    }
    let more = [right, vec![("zero".into(), 4)]].concat();
    let message = compare(&more).unwrap_err().to_string();
    assert!(
        message.contains("\"zero\" was counted 4 times by all ranks together and 0"),
        "{message}"
    );
}

#[test]
fn entries_survive_the_way_to_rank_0() {
    let entries: Vec<Entry> = ["", "a", "12345678", "123456789", "äöü", "exactly_sixteen_"]
        .iter()
        .zip(1..)
        .map(|(word, count)| ((*word).to_owned(), count))
        .collect();
    let words = table::encode(&entries);
    assert_eq!(table::decode(&words), Some(entries));
    for cut in [1, words.len() - 1, 3] {
        assert_eq!(table::decode(&words[..cut]), None);
    }
    assert_eq!(table::decode(&[1, u64::MAX, 0]), None);
    assert_eq!(table::decode(&[1, 1, 0xff]), None);
}

/// Words of all lengths that many ranks insert at the same time, some of them of one bucket.
fn contended_words() -> Vec<String> {
    let longer = |i: usize| format!("a_word_that_is_longer_than_eight_bytes_{i}");
    (0..12).flat_map(|i| [format!("w{i}"), longer(i)]).collect()
}

/// Inserts on every rank, the words in an order of its own; returns this rank's part.
fn insert_all(universe: rma::Universe, size: Size) -> Vec<Entry> {
    let world = universe.world();
    let table = Table::new(world, size).unwrap();
    assert_eq!(table.size().buckets, size.buckets.max(1));
    let inserter = table.open().unwrap();
    let (mut words, mut waiting) = (contended_words(), Vec::new());
    words.rotate_left(world.rank().0 as usize % 3);
    for word in words.iter().chain(&words) {
        if inserter.add(word, 1).unwrap() == Added::Full {
            waiting.push((word.clone(), 1));
        }
    }
    inserter.close().unwrap();
    let (table, grown) = table.grow(world, waiting).unwrap();
    assert_eq!(grown > 0, size.heap < 100);
    let entries = table.into_entries().unwrap();
    universe.finalize().unwrap();
    entries
}

fn check_inserted(ranks: u32, parts: Vec<Vec<Entry>>) {
    let mut all: Vec<Entry> = parts.concat();
    all.sort();
    let expected: BTreeMap<String, u64> =
        contended_words().into_iter().map(|word| (word, 2 * u64::from(ranks))).collect();
    assert_eq!(all, expected.into_iter().collect::<Vec<_>>());
}

const SIZES: [Size; 3] = [
    Size { buckets: 16, heap: 4000 },
    Size { buckets: 1, heap: 4000 },
    Size { buckets: 0, heap: 7 },
];

/// By messages only, and with a device that moves bytes, in turn.
fn simulate<R: Send>(ranks: u32, seed: u64, body: impl Fn(rma::Universe) -> R + Sync) -> Vec<R> {
    let ended = match seed % 2 {
        0 => rma::simulate(ranks, seed, body),
        _ => rma::simulate_rdma(ranks, seed, body),
    };
    ended.unwrap()
}

#[test]
fn no_word_is_twice_in_the_table_in_any_order_of_events() {
    for seed in 0..24 {
        for size in SIZES {
            let parts = simulate(4, seed, |universe| insert_all(universe, size));
            check_inserted(4, parts);
        }
    }
}

#[test]
fn no_word_is_twice_in_the_table_in_shared_memory() {
    for round in 0..60 {
        let parts = rma::local(4, |universe| insert_all(universe, SIZES[round % 3])).unwrap();
        check_inserted(4, parts);
    }
}

#[test]
fn every_file_is_claimed_by_one_rank() {
    let files: Vec<PathBuf> = (0..50).map(|i| PathBuf::from("x/".repeat(i))).collect();
    let claim = |universe: rma::Universe| {
        let world = universe.world();
        let files = if world.rank() == claim::HOME { &files[..] } else { &[] };
        let list = FileList::new(world, files, 0).unwrap();
        let mut mine = Vec::new();
        while let Some(claim) = list.next().unwrap() {
            assert_eq!(claim.files, 50);
            mine.push((claim.number, claim.path));
        }
        list.free().unwrap();
        universe.finalize().unwrap();
        mine
    };
    for seed in 0..8 {
        let mut all = simulate(3, seed, claim).concat();
        all.sort();
        let expected: Vec<_> = (0..).zip(files.iter().cloned()).collect();
        assert_eq!(all, expected);
    }
}

#[test]
fn halos_arrive_in_time_in_any_order_of_events() {
    let arguments = ["heat", "--size", "6", "--steps", "60"];
    let arguments = heat::Arguments::parse_from(arguments);
    for seed in 0..24 {
        let solve = |universe| heat::solve(universe, &arguments).unwrap();
        let plates = simulate(4, seed, solve);
        assert_eq!(plates.iter().flatten().count(), 1);
        let plate = plates.into_iter().flatten().next().unwrap();
        assert_eq!(plate.steps, 60);
        heat::compare(&plate, &arguments).unwrap();
    }
}

#[test]
fn jobs_are_executed_once_in_any_order_of_events() {
    for (seed, slots) in (0..48).zip(["1", "2", "3", "5"].into_iter().cycle()) {
        let arguments = ["ticket_queue", "--jobs", "60", "--work", "1", "--slots", slots];
        let arguments = ticket_queue::Arguments::parse_from(arguments);
        let work_off = |universe| ticket_queue::work_off(universe, &arguments).unwrap();
        let outcomes = simulate(4, seed, work_off);
        let outcomes: Vec<_> = outcomes.into_iter().flatten().collect();
        assert_eq!(outcomes.len(), 1);
        assert_eq!(outcomes[0].problem, None);
    }
}
