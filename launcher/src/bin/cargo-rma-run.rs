//! `cargo rma-run -n 4 --example wordcount -- .`: builds a program, and runs it as ranks.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

const HELP: &str = "\
Builds a program of this package with cargo, and runs it under rma-run.

Usage: cargo rma-run [OPTIONS OF rma-run AND OF cargo build] [-- ARGS]

  cargo rma-run -n 4 --release --example wordcount -- .
  cargo rma-run -n 2 --label --bin stencil -p simulations -- --size 4096

These go to cargo build: --example, --bin, -p/--package, --features, --all-features,
--no-default-features, --release, --profile, --target, --target-dir, --manifest-path, --jobs,
--locked, --offline, --frozen. Everything else before -- goes to rma-run (rma-run --help), and what
follows to the program.
";

/// Options of `cargo build`, and whether a value follows.
const BUILD: &[(&str, bool)] = &[
    ("--example", true),
    ("--bin", true),
    ("-p", true),
    ("--package", true),
    ("--features", true),
    ("-F", true),
    ("--profile", true),
    ("--target", true),
    ("--target-dir", true),
    ("--manifest-path", true),
    ("--jobs", true),
    ("--all-features", false),
    ("--no-default-features", false),
    ("--release", false),
    ("--locked", false),
    ("--offline", false),
    ("--frozen", false),
];

/// A command line, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts {
    build: Vec<OsString>,
    run: Vec<OsString>,
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Cargo names the subcommand again.
    if args.first().is_some_and(|first| first == "rma-run") {
        args.remove(0);
    }
    if args.is_empty() || args[0] == "--help" || args[0] == "-h" {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match run(parts(args)) {
        Ok(never) => match never {},
        Err(why) => {
            eprintln!("cargo rma-run: {why}");
            ExitCode::FAILURE
        }
    }
}

fn parts(args: Vec<OsString>) -> Parts {
    let mut parts = Parts::default();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            parts.program.extend(args.by_ref());
            break;
        }
        let text = arg.to_string_lossy().into_owned();
        let name = text.split('=').next().unwrap_or_default();
        match BUILD.iter().find(|(option, _)| *option == name) {
            Some((_, takes_value)) => {
                parts.build.push(arg);
                if *takes_value && !text.contains('=') {
                    parts.build.extend(args.next());
                }
            }
            None => parts.run.push(arg),
        }
    }
    parts
}

/// Returns only if something cannot be started.
fn run(parts: Parts) -> Result<std::convert::Infallible, String> {
    let program = build(&parts.build)?;
    let rma_run = rma_run();
    let mut command = Command::new(&rma_run);
    command.args(parts.run).arg("--").arg(program).args(parts.program);
    let error = command.exec();
    Err(format!("{} cannot be run: {error}", rma_run.display()))
}

/// The one that was installed with this program, or that of `PATH`.
fn rma_run() -> PathBuf {
    let beside = std::env::current_exe().map(|path| path.with_file_name("rma-run"));
    beside.ok().filter(|path| path.exists()).unwrap_or_else(|| "rma-run".into())
}

/// Builds, and returns the one program that came of it.
fn build(options: &[OsString]) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.arg("build").arg("--message-format=json-render-diagnostics").args(options);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    let out = child.stdout.take().ok_or("cargo has no output")?;
    let mut programs: Vec<String> = BufReader::new(out)
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| executable(&line))
        .collect();
    programs.sort();
    programs.dedup();
    let status = child.wait().map_err(|error| error.to_string())?;
    if !status.success() {
        return Err("cargo build failed".to_owned());
    }
    match &programs[..] {
        [program] => Ok(program.into()),
        [] => Err("cargo built no program: name one with --bin or --example".to_owned()),
        many => Err(format!("cargo built several programs: choose one of {}", many.join(", "))),
    }
}

/// The program that a message of cargo says was built.
fn executable(message: &str) -> Option<String> {
    if !message.contains(r#""reason":"compiler-artifact""#) {
        return None;
    }
    let (_, rest) = message.split_once(r#""executable":""#)?;
    let (mut path, mut letters) = (String::new(), rest.chars());
    loop {
        match letters.next()? {
            '"' => return Some(path),
            '\\' => path.push(letters.next()?),
            letter => path.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(args: &[&str]) -> Vec<OsString> {
        args.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_line_is_taken_apart() {
        let line = ["-n", "4", "--example", "wordcount", "--release", "-l", "--", ".", "--bin"];
        let expected = Parts {
            build: owned(&["--example", "wordcount", "--release"]),
            run: owned(&["-n", "4", "-l"]),
            program: owned(&[".", "--bin"]),
        };
        assert_eq!(parts(owned(&line)), expected);
        let line = parts(owned(&["--bin=x", "-n", "2"]));
        assert_eq!((line.build, line.run), (owned(&["--bin=x"]), owned(&["-n", "2"])));
    }

    #[test]
    fn the_program_is_found_in_cargos_messages() {
        let line = |executable: &str| {
            format!(r#"{{"reason":"compiler-artifact","target":{{}},"executable":{executable}}}"#)
        };
        assert_eq!(executable(&line(r#""/a/\"b\\c""#)).as_deref(), Some(r#"/a/"b\c"#));
        assert_eq!(executable(&line("null")), None);
        assert_eq!(executable(r#"{"reason":"build-finished","executable":"/a"}"#), None);
    }
}
