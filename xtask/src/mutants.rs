//! `cargo xtask mutants`: cargo-mutants over the code that everything else stands on, with the
//! tests that are there for it. What it leaves out, and why, is in `.cargo/mutants.toml`.

use crate::workspace::{Result, Workspace};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Which mutants to try.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// Those of these files (or patterns of files); of [`ROUNDS`] if there is none.
    files: Vec<String>,
    /// Those of one part of several, as `2/8`.
    shard: Option<String>,
}

/// Mutants of one package, and the tests that they have to pass by, cheapest first: what is left
/// over by one is tried on the next.
struct Round {
    package: &'static str,
    /// Folders below the root.
    folders: &'static [&'static str],
    suites: &'static [Suite],
}

struct Suite {
    package: &'static str,
    /// Arguments of `cargo test`.
    tests: &'static [&'static str],
}

const CASES: Suite =
    Suite { package: "rma-conformance", tests: &["--test=sim", "--test=shm_threads"] };

const ROUNDS: &[Round] = &[
    Round {
        package: "rma-core",
        folders: &["rma-core/src/protocol"],
        suites: &[Suite { package: "rma-core", tests: &["--lib"] }, CASES],
    },
    Round {
        package: "rma-core",
        folders: &[
            "rma-core/src/memory",
            "rma-core/src/engine",
            "rma-core/src/sync",
            "rma-core/src/serve",
            "rma-core/src/create",
            "rma-core/src/window",
            "rma-core/src/collective",
        ],
        // The lock is played through by itself, which takes a minute.
        suites: &[
            Suite { package: "rma-core", tests: &["--lib", "--", "--skip=protocol::lock::tests"] },
            CASES,
        ],
    },
    Round {
        package: "rma-transport-shm",
        folders: &["transport-shm/src"],
        suites: &[Suite { package: "rma-transport-shm", tests: &["--tests"] }, CASES],
    },
];

/// A mutant costs a build and a run: few cases are enough to notice what changes each of them.
const ENV: &[(&str, &str)] =
    &[("RMA_SIM_SEEDS", "1"), ("RMA_GENERATED_PROGRAMS", "40"), ("PROPTEST_CASES", "32")];

impl Part {
    /// Reads `--file FILE`, once or more often, and `--shard K/N`.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self> {
        let mut part = Self::default();
        for pair in arguments.chunks(2) {
            match pair {
                ["--file", file] => part.files.push((*file).into()),
                ["--shard", shard] if part.shard.is_none() => part.shard = Some((*shard).into()),
                _ => {
                    let given = pair.join(" ");
                    let taken = "--file FILE (repeatable) and --shard K/N";
                    return Err(
                        format!("`{given}` is not understood: mutants takes {taken}").into()
                    );
                }
            }
        }
        Ok(part)
    }

    /// Files of a round; none if it has nothing to do.
    fn files(&self, round: &Round) -> Vec<String> {
        let within = |file: &&String| round.folders.iter().any(|folder| file.starts_with(folder));
        if self.files.is_empty() {
            return round.folders.iter().map(|folder| format!("{folder}/**")).collect();
        }
        self.files.iter().filter(within).cloned().collect()
    }
}

/// Tries the mutants; an error names those that no test noticed.
pub(crate) fn run(workspace: &Workspace, part: &Part) -> Result<()> {
    let probe = Command::new("cargo").args(["mutants", "--version"]).stdout(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        return Err("cargo-mutants is missing: `cargo install cargo-mutants --locked`".into());
    }
    let folder = workspace.target_dir()?.join("mutants");
    let mut left = Vec::new();
    let mut tried = false;
    for (round, number) in ROUNDS.iter().zip(1..) {
        let files = part.files(round);
        if !files.is_empty() {
            tried = true;
            let folder = folder.join(format!("round-{number}"));
            left.extend(play(workspace, &folder, part, round, &files)?);
        }
    }
    match left.len() {
        0 if tried => Ok(()),
        0 => Err("no such file is among those that have mutants".into()),
        count => {
            let list = left.join("\n");
            Err(format!("no test noticed {count} mutants (logs in {}):\n{list}", folder.display())
                .into())
        }
    }
}

/// Mutants of a round that no suite noticed.
fn play(
    workspace: &Workspace,
    folder: &Path,
    part: &Part,
    round: &Round,
    files: &[String],
) -> Result<Vec<String>> {
    let mut left: Option<Vec<String>> = None;
    for suite in round.suites {
        let output = folder.join(format!("by-{}", suite.package));
        fs::create_dir_all(&output)?;
        let mut command = Command::new("cargo");
        command.current_dir(&workspace.root).args(["mutants", "--jobs", "1", "--no-shuffle"]);
        command.args(["--package", round.package, "--test-package", suite.package]);
        command.arg("--output").arg(&output).envs(ENV.iter().copied());
        command.args(files.iter().flat_map(|file| ["--file", file]));
        match &left {
            None => command.args(part.shard.iter().flat_map(|shard| ["--shard", shard])),
            Some(left) => command.args(left.iter().map(|name| format!("--re=^{}$", literal(name)))),
        };
        // Its exit says whether all were noticed; the lists below say which were not.
        let status = command.arg("--").args(suite.tests).status()?;
        let missed = fs::read_to_string(output.join("mutants.out/missed.txt"));
        if !status.code().is_some_and(|code| MUTANTS_WERE_TRIED.contains(&code)) {
            return Err(format!("cargo mutants: {status}").into());
        }
        let missed: Vec<String> = missed?.lines().map(Into::into).collect();
        if missed.is_empty() {
            return Ok(missed);
        }
        left = Some(missed);
    }
    Ok(left.unwrap_or_default())
}

/// Exit codes of cargo-mutants: all were caught; some were missed; some took too long.
const MUTANTS_WERE_TRIED: &[i32] = &[0, 2, 3];

/// A pattern that matches this text only. (`\<` would be the beginning of a word.)
fn literal(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_files_and_a_shard() {
        let part = Part::parse(&["--file", "transport-shm/src/ring.rs", "--shard", "1/4"]).unwrap();
        assert_eq!(part.shard.as_deref(), Some("1/4"));
        let files: Vec<_> = ROUNDS.iter().map(|round| part.files(round)).collect();
        assert_eq!(files, [vec![], vec![], vec!["transport-shm/src/ring.rs".to_string()]]);
        let all = Part::parse(&[]).unwrap();
        assert_eq!(all.files(&ROUNDS[2]), ["transport-shm/src/**"]);
        for wrong in [&["--file"][..], &["ring.rs"], &["--shard", "1/2", "--shard", "2/2"]] {
            assert!(Part::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn names_of_mutants_are_taken_literally() {
        assert_eq!(literal("a.rs:3:5: replace + with *"), r"a\.rs:3:5: replace \+ with \*");
        assert_eq!(literal("f::<'a> -> [u8] with 1"), r"f::<'a> -> \[u8\] with 1");
    }
}
