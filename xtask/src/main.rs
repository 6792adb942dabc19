//! Checks of the rma workspace: `cargo xtask tidy | asm | perf-gate | spec | api | ci | test`,
//! the main job, `demo`, and on request `miri | mutants`.

mod api;
mod asm;
mod ci;
mod costs;
mod mutants;
mod rooms;
mod spec;
mod tidy;
mod workspace;

use std::process::ExitCode;
use workspace::{Result, Workspace};

const USAGE: &str = "\
cargo xtask tidy             check dependency arrows, sizes, unsafe rooms and forbidden calls
cargo xtask tidy --rooms     print the files that may hold `unsafe`, and why
cargo xtask asm PROBE...     check instructions: put, kept_put, get, fetch_add; fence: stream
cargo xtask perf-gate        fail where a counted cost of an operation grew; report timed ones
cargo xtask spec             write docs/conformance.md, the ledger of rules
cargo xtask spec --check     fail if it is not up to date, or a rule is not shown
cargo xtask api              write docs/public-api.txt, the public items of rma and its layers
cargo xtask api --check      fail if it is not up to date
cargo xtask demo             run the main job: count words with 4 ranks, and check the result
cargo xtask test             build and run every test
cargo xtask ci               run every check, in order, until one fails
cargo xtask ci --list        name the steps
cargo xtask ci --only STEP   run one step (may be repeated)
cargo xtask miri             run all that Miri can run, which takes long; ci runs a part of it
cargo xtask mutants          change the code in small ways and see whether a test notices
                             [--file FILE] [--shard K/N]: takes hours";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["tidy"] => tidy::run(&Workspace::load()?),
        ["tidy", "--rooms"] => {
            rooms::print();
            Ok(())
        }
        ["asm", probes @ ..] if !probes.is_empty() => asm::run(&Workspace::load()?, probes),
        ["perf-gate"] => costs::run(&Workspace::load()?),
        ["spec"] => spec::run(&Workspace::load()?, false),
        ["spec", "--check"] => spec::run(&Workspace::load()?, true),
        ["api"] => api::run(&Workspace::load()?, false),
        ["api", "--check"] => api::run(&Workspace::load()?, true),
        ["demo"] => ci::run(&Workspace::load()?, &ci::Choice::parse(&["--only", "wordcount"])?),
        ["test"] => ci::run(&Workspace::load()?, &ci::Choice::Test),
        ["ci"] => ci::run(&Workspace::load()?, &ci::Choice::All),
        ["ci", "--list"] => {
            ci::list();
            Ok(())
        }
        ["ci", rest @ ..] => ci::run(&Workspace::load()?, &ci::Choice::parse(rest)?),
        ["miri"] => ci::run(&Workspace::load()?, &ci::Choice::parse(&["--only", "miri-all"])?),
        ["mutants", rest @ ..] => mutants::run(&Workspace::load()?, &mutants::Part::parse(rest)?),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("no such command\n{USAGE}").into()),
    }
}
