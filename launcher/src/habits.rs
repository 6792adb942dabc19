//! What users of mpiexec type: it is understood, or answered with what it is called here.

use std::ffi::{OsStr, OsString};

use clap::Command;

/// What becomes of an option.
enum Habit {
    /// It is this option of ours, with its value.
    Named(&'static str),
    /// It is this option of ours, which has no value.
    Flag(&'static str),
    /// What it asks for is so anyway.
    Always,
    /// It sets a variable, by a name and a value behind it, by this option of ours.
    Variable(&'static str),
    /// It passes a variable on, or sets it if a value is there.
    Export,
    /// It is refused, with that advice.
    Advice(&'static str),
}

const ENVIRONMENT: &str = "ranks inherit the environment of rma-run, with changes by --env \
                           KEY=VALUE: start rma-run under `env -i NAME=VALUE …` for less";
const NUMBERS: &str = "ranks are numbered in a row, host by host; --bind and --map-by say on which \
                       CPUs of its host each runs";
const FILES: &str = "--output-file 'log.{rank}' writes both streams of a rank to a file, \
                     'log.{rank}.{stream}' to one each ({rank} is %r and %t, {host} %h and %N); \
                     --tee prints them as well, --label and --timestamp mark lines";
const COLON: &str = "a \":\" begins the next program of the job, whose number of ranks is \
                     missing: write `: -n 1 PROGRAM`; one that is meant for the program itself \
                     needs `--` in front of the program";
const EXPLAIN: &str = "--explain says what is decided, and why";

/// Names without their dashes, of which people write one or two.
const HABITS: &[(&str, Habit)] = &[
    ("np", Habit::Named("-n")),
    ("c", Habit::Named("-n")),
    ("wd", Habit::Named("--wdir")),
    ("wdir", Habit::Named("--wdir")),
    ("chdir", Habit::Named("--wdir")),
    ("ppn", Habit::Named("--ppn")),
    ("perhost", Habit::Named("--ppn")),
    ("npernode", Habit::Named("--ppn")),
    ("N", Habit::Named("--ppn")),
    ("output-filename", Habit::Named("--output-dir")),
    ("prepend-rank", Habit::Flag("--label")),
    ("tag-output", Habit::Flag("--label")),
    ("timestamp-output", Habit::Flag("--timestamp")),
    ("allow-run-as-root", Habit::Always),
    ("envall", Habit::Always),
    ("genvall", Habit::Always),
    ("use-hwthread-cpus", Habit::Always),
    ("H", Habit::Named("--hosts")),
    ("host", Habit::Named("--hosts")),
    ("hosts", Habit::Named("--hosts")),
    ("f", Habit::Named("--hostfile")),
    ("hostfile", Habit::Named("--hostfile")),
    ("machinefile", Habit::Named("--hostfile")),
    ("launcher-exec", Habit::Named("--ssh-command")),
    ("stdin", Habit::Named("--stdin")),
    ("s", Habit::Named("--stdin")),
    ("input", Habit::Named("--stdin")),
    ("bind-to", Habit::Named("--bind")),
    ("env", Habit::Variable("--env")),
    ("genv", Habit::Variable("--env-of-all")),
    ("x", Habit::Export),
    ("envlist", Habit::Advice(ENVIRONMENT)),
    ("envnone", Habit::Advice(ENVIRONMENT)),
    ("genvlist", Habit::Advice(ENVIRONMENT)),
    ("genvnone", Habit::Advice(ENVIRONMENT)),
    ("map-by", Habit::Named("--map-by")),
    ("rank-by", Habit::Advice(NUMBERS)),
    ("rankfile", Habit::Advice(NUMBERS)),
    ("display-map", Habit::Advice(EXPLAIN)),
    ("report-bindings", Habit::Advice(EXPLAIN)),
    ("v", Habit::Advice(EXPLAIN)),
    ("verbose", Habit::Advice(EXPLAIN)),
    ("mca", Habit::Advice("--config KEY=VALUE is for our settings; --help-config lists them")),
    ("outfile-pattern", Habit::Advice(FILES)),
    ("errfile-pattern", Habit::Advice(FILES)),
    ("output", Habit::Advice(FILES)),
    ("output-directory", Habit::Named("--output-dir")),
];

/// A command line in options that `command` has; what begins with the program is left alone.
/// Several programs of one job have a ":" between them: what follows that is returned, too.
pub(crate) fn translate(
    command: &Command,
    args: impl IntoIterator<Item = OsString>,
) -> Result<(Vec<OsString>, Option<Vec<OsString>>), String> {
    let mut args = args.into_iter();
    let mut ours: Vec<OsString> = args.next().into_iter().collect();
    while let Some(arg) = args.next() {
        let text = arg.to_str().unwrap_or_default().to_owned();
        if !text.starts_with('-') || text == "-" {
            let mut rest: Vec<OsString> = args.collect();
            let next = next_program(&rest).map(|at| rest.split_off(at).split_off(1));
            if rest.iter().any(|arg| arg == ":") {
                return Err(COLON.to_owned());
            }
            ours.push(arg);
            ours.extend(rest);
            return Ok((ours, next));
        }
        if text == "--" {
            ours.push(arg);
            ours.extend(args);
            return Ok((ours, None));
        }
        let (dashed, attached) = match text.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (&*text, None),
        };
        let name = dashed.trim_start_matches('-');
        let known = dashed.starts_with("--")
            && command.get_arguments().any(|option| option.get_long() == Some(name));
        let habit = HABITS.iter().find(|(habit, _)| *habit == name).filter(|_| !known);
        let mut value = |what: &str| {
            let next = attached.clone().or_else(|| args.next());
            next.ok_or_else(|| format!("{dashed} needs {what} behind it"))
        };
        match habit.map(|(_, habit)| habit) {
            Some(Habit::Named(option)) => ours.extend([(*option).into(), value("a value")?]),
            Some(Habit::Flag(option)) => ours.push((*option).into()),
            Some(Habit::Always) => {}
            Some(Habit::Variable(option)) => {
                let (name, value) = (value("a name")?, args.next());
                let value = value.ok_or_else(|| format!("{dashed} needs a name and a value"))?;
                ours.extend([(*option).into(), joined(name, &value)]);
            }
            Some(Habit::Export) => {
                let variable = value("a name")?;
                // Without a value, ranks inherit it anyway.
                if variable.as_encoded_bytes().contains(&b'=') {
                    ours.extend(["--env".into(), variable]);
                }
            }
            Some(Habit::Advice(advice)) => return Err(format!("{dashed} is not known: {advice}")),
            None => {
                let takes_value = is_ours(command, &text)?;
                ours.push(arg);
                if takes_value && attached.is_none() {
                    ours.extend(args.next());
                }
            }
        }
    }
    Ok((ours, None))
}

/// Whether an option is followed by its value. Letters behind one dash that are no options here are
/// an error: with an `h` among them, they would be a request for help.
fn is_ours(command: &Command, text: &str) -> Result<bool, String> {
    let takes_value = |option: Option<&clap::Arg>| {
        option.is_some_and(|option| option.get_action().takes_values())
    };
    if let Some(long) = text.strip_prefix("--") {
        return Ok(takes_value(command.get_arguments().find(|arg| arg.get_long() == Some(long))));
    }
    let letters = text.trim_start_matches('-');
    for (at, letter) in letters.char_indices() {
        let option = command.get_arguments().find(|arg| arg.get_short() == Some(letter));
        if takes_value(option) {
            let value = &letters[at + letter.len_utf8()..];
            let number = value.bytes().all(|byte| byte.is_ascii_digit() || b"-=+".contains(&byte));
            return if number { Ok(value.is_empty()) } else { Err(unknown(text)) };
        }
        let help = matches!(letter, 'h' | 'V');
        if (help && letters.len() > 1) || (!help && option.is_none()) {
            return Err(unknown(text));
        }
    }
    Ok(false)
}

fn unknown(option: &str) -> String {
    format!("{option} is no option of rma-run; rma-run --help lists them")
}

/// Where a ":" stands that options follow: those of the next program.
fn next_program(args: &[OsString]) -> Option<usize> {
    let is_option =
        |at: usize| args.get(at).is_some_and(|arg| arg.as_encoded_bytes().starts_with(b"-"));
    (0..args.len()).find(|at| args[*at] == ":" && is_option(at + 1))
}

/// `NAME=VALUE`.
pub(crate) fn joined(name: OsString, value: &OsStr) -> OsString {
    let mut variable = name;
    variable.push("=");
    variable.push(value);
    variable
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn translated(line: &[&str]) -> Result<Vec<String>, String> {
        let args = ["rma-run"].iter().chain(line).map(OsString::from);
        let (ours, next) = translate(&crate::Cli::command(), args)?;
        assert_eq!(next, None);
        Ok(ours.into_iter().skip(1).map(|arg| arg.into_string().unwrap()).collect())
    }

    #[track_caller]
    fn becomes(line: &[&str], ours: &[&str]) {
        assert_eq!(translated(line).unwrap(), ours);
    }

    #[track_caller]
    fn refused(line: &[&str], part: &str) {
        let error = translated(line).unwrap_err();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn options_of_mpiexec_are_understood() {
        becomes(&["-np", "4", "prog", "-np", "5"], &["-n", "4", "prog", "-np", "5"]);
        becomes(&["--np", "4", "prog"], &["-n", "4", "prog"]);
        becomes(&["-host", "a:2,b:2", "a"], &["--hosts", "a:2,b:2", "a"]);
        becomes(&["-f", "hosts", "a"], &["--hostfile", "hosts", "a"]);
        becomes(&["-n", "2", "-wdir", "/x", "a"], &["-n", "2", "--wdir", "/x", "a"]);
        becomes(&["-ppn=2", "a"], &["--ppn", "2", "a"]);
        becomes(&["-genv", "A", "b c", "-n", "1", "a"], &["--env-of-all", "A=b c", "-n", "1", "a"]);
        becomes(&["-x", "PATH", "-x", "A=b", "a"], &["--env", "A=b", "a"]);
        becomes(&["--tag-output", "--bind-to", "core", "a"], &["--label", "--bind", "core", "a"]);
        becomes(&["--timestamp-output", "-n", "1", "a"], &["--timestamp", "-n", "1", "a"]);
        becomes(&["-stdin", "all", "-n", "1", "a"], &["--stdin", "all", "-n", "1", "a"]);
        becomes(&["-s", "1", "--stdin", "none", "a"], &["--stdin", "1", "--stdin", "none", "a"]);
        becomes(&["-genvall", "--allow-run-as-root", "a"], &["a"]);
    }

    #[test]
    fn a_colon_ends_a_program_if_options_follow() {
        let next = |line: &[&str]| {
            let args = ["rma-run"].iter().chain(line).map(OsString::from);
            let (ours, next) = translate(&crate::Cli::command(), args).unwrap();
            (ours.len() - 1, next.map(|next| next.join(std::ffi::OsStr::new(" "))))
        };
        let line = ["-n", "1", "a", "b", ":", "-np", "1", "c", ":", "-n", "2", "d"];
        assert_eq!(next(&line), (4, Some("-np 1 c : -n 2 d".into())));
        assert_eq!(next(&["-n", "1", "--", "a", ":", "-n", "1", "b"]), (8, None));
        assert_eq!(next(&["-n", "1", "--", "a", ":", "b"]), (6, None));
    }

    #[test]
    fn our_own_options_are_left_alone() {
        for line in [
            &["-n", "4", "-l", "prog", "-host", "x"][..],
            &["-n4", "-lq", "prog"],
            &["--env", "A=b", "--timeout", "5", "--", "prog", ":", "-n"],
            &["--help"],
            &["-h"],
            &["-V"],
            &["-n", "-1", "prog"],
            &["--bogus", "prog"],
        ] {
            becomes(line, line);
        }
    }

    #[test]
    fn what_is_not_understood_is_answered() {
        refused(&["-hello", "a"], "-hello is no option of rma-run");
        refused(&["-n", "1", "a", ":"], "`: -n 1 PROGRAM`");
        refused(&["-n", "1", "a", ":", "b"], "`--` in front of the program");
        refused(&["-n", "1", "a", ":", "b", ":", "-n", "1", "c"], "number of ranks is missing");
        refused(&["-lh", "a"], "-lh is no option");
        refused(&["-nope", "a"], "-nope is no option");
        refused(&["--rank-by", "node", "a"], "--bind and --map-by");
        refused(&["-genvnone", "a"], "env -i");
        refused(&["--mca", "btl", "tcp", "a"], "--help-config");
        refused(&["-outfile-pattern", "log.%r", "a"], "--output-file 'log.{rank}'");
        refused(&["--output=log.%t", "a"], "{host} %h and %N");
        refused(&["-np"], "needs a value");
        refused(&["-genv", "A"], "needs a name and a value");
    }
}
