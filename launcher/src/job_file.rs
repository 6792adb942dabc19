//! Jobs that are written down: `rma-run --file job.toml`. What the file says becomes options in
//! front of those of the command line.

use std::ffi::OsString;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::de::{DeTable, DeValue};

use crate::habits::joined;
use crate::programs::{self, Further};
use crate::values::parse_ranks;

/// Options that a file does not have: those of programs stand in their own tables, and those that
/// ask for no job are typed.
const NO_KEYS: [&str; 7] =
    ["file", "ranks", "wdir", "env-of-all", "help-config", "help", "version"];
/// Of those of a row, only one says what is to be: one that is typed goes before all of them. Where
/// ranks are, and where their output goes.
const RIVALS: [&[&str]; 2] = [&["hosts", "hostfile", "nodes"], &["output-dir", "output-file"]];

/// Options of hosts, which pretended nodes have none of.
const OF_HOSTS: [&str; 2] = ["ppn", "ssh-command"];
/// Options that do not go together, and why.
const PAIRS: [(&str, &str, &str); 6] = [
    ("nodes", "ppn", PLACED),
    ("nodes", "ssh-command", PLACED),
    ("nodes", "hosts", PLACED),
    ("nodes", "hostfile", PLACED),
    ("hosts", "hostfile", PLACED),
    ("output-dir", "output-file", "both say where output goes"),
];
const PLACED: &str = "a job is on hosts, of a list or of a file, or on nodes that are pretended, \
                      which are on this machine; --ppn and --ssh-command are for hosts";

/// Bytes of a file at most; what has no end is no job.
const FILE_MAX: u64 = 16 << 20;

/// A command line with what its `--file` says, if there is one, and the programs that follow its
/// first. `next` are the arguments of further programs on the command line.
pub(crate) fn expand(
    command: &Command,
    line: Vec<OsString>,
    next: Option<Vec<OsString>>,
) -> Result<(Vec<OsString>, Vec<Further>), clap::Error> {
    let further = next.map(programs::parse).transpose()?.unwrap_or_default();
    // Most jobs are in no file.
    if !line.iter().any(|word| word.as_encoded_bytes().starts_with(b"--file")) {
        return Ok((line, further));
    }
    let lenient = lenient(command);
    // What is wrong with the command line is said where it is taken for good.
    let Ok(typed) = lenient.clone().try_get_matches_from(&line) else { return Ok((line, further)) };
    let Some(path) = typed.get_one::<PathBuf>("file") else { return Ok((line, further)) };
    let refused = |why: String| command.clone().error(ErrorKind::ValueValidation, why);
    let unread = |error| refused(format!("job of {}: cannot be read: {error}", path.display()));
    let mut text = String::new();
    let opened = std::fs::File::open(path).map_err(unread)?;
    opened.take(FILE_MAX + 1).read_to_string(&mut text).map_err(unread)?;
    if text.len() as u64 > FILE_MAX {
        let why = format!("job of {}: it has more than {FILE_MAX} bytes", path.display());
        return Err(refused(why));
    }
    let file = File { path, text: &text, lenient: &lenient, typed: &typed };
    file.expand(line, further).map_err(refused)
}

/// Options of which none has to be there.
fn lenient(command: &Command) -> Command {
    command.clone().mut_args(|option| option.required(false))
}

struct File<'a> {
    path: &'a Path,
    text: &'a str,
    lenient: &'a Command,
    /// The command line.
    typed: &'a ArgMatches,
}

/// A program of the file.
#[derive(Default)]
struct Table {
    ranks: Option<u32>,
    env: Vec<(OsString, OsString)>,
    wdir: Option<PathBuf>,
    command: Vec<OsString>,
}

impl File<'_> {
    fn expand(
        &self,
        mut line: Vec<OsString>,
        mut further: Vec<Further>,
    ) -> Result<(Vec<OsString>, Vec<Further>), String> {
        let parsed = DeTable::parse(self.text)
            .map_err(|error| self.at(error.span().unwrap_or_default(), error.message()))?;
        self.check_pairs(parsed.get_ref())?;
        let mut options = Vec::new();
        let mut tables = Vec::new();
        for (span, key, value) in entries(parsed.get_ref()) {
            match (key, value) {
                ("program", DeValue::Array(all)) => {
                    for program in all {
                        tables.push(self.table(program.span(), program.get_ref())?);
                    }
                }
                ("program", _) => return Err(self.at(span, "write programs as [[program]]")),
                _ => options.extend(self.option(span, key, value)?),
            }
        }
        let typed = self.typed.get_many::<OsString>("command").map_or(0, Iterator::count);
        let mut program = line.split_off(line.len() - typed);
        if program.is_empty() {
            (program, further) = self.programs(tables, &mut options)?;
        }
        // The name of this program stands in front of options, and "--" behind.
        let name = line.drain(..1.min(line.len())).collect();
        if line.last().is_some_and(|last| last == "--") {
            line.pop();
        }
        let dashes = if program.is_empty() { Vec::new() } else { vec![OsString::from("--")] };
        Ok(([name, options, line, dashes, program].concat(), further))
    }

    /// Refuses two options that stand there and do not go together, unless the command line goes
    /// before one of them.
    fn check_pairs(&self, table: &DeTable) -> Result<(), String> {
        let counts = |key: &str| !rivals(&key).iter().any(|rival| self.is_typed(rival));
        let there = |key: &str| entries(table).into_iter().find(|(_, other, _)| *other == key);
        for (one, other, why) in PAIRS {
            if let (Some(_), Some((span, ..))) = (there(one), there(other))
                && counts(one)
                && counts(other)
            {
                return Err(self.at(
                    span,
                    &format!(
                        "{other:?} does not go with {one:?}, which stands there, too: {why}; leave \
                     one of the two out"
                    ),
                ));
            }
        }
        Ok(())
    }

    /// The first program, whose options are added to those of the job, and the others.
    fn programs(
        &self,
        tables: Vec<Table>,
        options: &mut Vec<OsString>,
    ) -> Result<(Vec<OsString>, Vec<Further>), String> {
        let several = tables.len() > 1;
        let mut tables = tables.into_iter();
        let Some(first) = tables.next() else { return Ok((Vec::new(), Vec::new())) };
        for option in ["ranks", "wdir"] {
            if several && self.is_typed(option) {
                return Err(format!(
                    "{}: each of its programs has a number of ranks and a folder of its own: leave \
                     -n and --wdir out, or name a program on the command line",
                    self.path.display()
                ));
            }
        }
        if let Some(ranks) = first.ranks.filter(|_| !self.is_typed("ranks")) {
            options.push(format!("--ranks={ranks}").into());
        }
        if let Some(wdir) = first.wdir.filter(|_| !self.is_typed("wdir")) {
            options.push(joined("--wdir".into(), wdir.as_os_str()));
        }
        let variable =
            |(name, value): (OsString, OsString)| joined("--env".into(), &joined(name, &value));
        options.extend(first.env.into_iter().map(variable));
        // What is typed is of all programs.
        let typed = self.typed.get_many::<(OsString, OsString)>("env");
        let typed: Vec<_> = typed.into_iter().flatten().cloned().collect();
        let further = tables.map(|Table { ranks, env, wdir, command }| {
            let why = || format!("{}: each of several programs needs n", self.path.display());
            let env = env.into_iter().chain(typed.iter().cloned()).collect();
            Ok(Further { ranks: ranks.ok_or_else(why)?, env, wdir, command })
        });
        Ok((first.command, further.collect::<Result<_, String>>()?))
    }

    /// Whether the command line has that option.
    fn is_typed(&self, option: &str) -> bool {
        let argument = self.lenient.get_arguments().find(|known| known.get_long() == Some(option));
        let source = argument.map(|known| self.typed.value_source(known.get_id().as_str()));
        source.flatten() == Some(ValueSource::CommandLine)
    }

    /// An option of the job, as it would be typed.
    fn option(
        &self,
        span: Range<usize>,
        key: &str,
        value: &DeValue,
    ) -> Result<Vec<OsString>, String> {
        let is_key = |known: &&Arg| known.get_long() == Some(key) && !NO_KEYS.contains(&key);
        let Some(known) = self.lenient.get_arguments().find(is_key) else {
            return Err(self.at(span, &match key {
                "n" | "ranks" | "wdir" | "command" => {
                    format!("{key:?} is of a program: write it behind [[program]]")
                }
                _ => format!(
                    "{key:?} is not known; keys are options of rma-run without their dashes, and \
                     [[program]]"
                ),
            }));
        };
        let words = self.words(span.clone(), key, known, value)?;
        // An error of the command line would not name the file.
        let line = [vec![OsString::from("rma-run")], words.clone()].concat();
        if let Err(error) = self.lenient.clone().try_get_matches_from(line) {
            let text = error.to_string();
            let what = text.lines().next().unwrap_or_default();
            return Err(self.at(span, what.trim_start_matches("error: ")));
        }
        let is_list = matches!(known.get_action(), ArgAction::Append);
        let goes_before = !is_list && rivals(&key).iter().any(|rival| self.is_typed(rival));
        let against = match key {
            "nodes" => OF_HOSTS.into_iter().find(|other| self.is_typed(other)),
            _ if OF_HOSTS.contains(&key) && self.is_typed("nodes") => Some("nodes"),
            _ => None,
        };
        match against {
            _ if goes_before => Ok(Vec::new()),
            None => Ok(words),
            Some(other) => Err(self.at(span, &format!(
                "{key:?} does not go with --{other} of the command line: {PLACED}; leave one of \
                 the two out"
            ))),
        }
    }

    fn words(
        &self,
        span: Range<usize>,
        key: &str,
        known: &Arg,
        value: &DeValue,
    ) -> Result<Vec<OsString>, String> {
        let takes_value = known.get_action().takes_values();
        let is_list = matches!(known.get_action(), ArgAction::Append);
        // Variables of all programs.
        let option = if key == "env" { "env-of-all" } else { key };
        let word = |value: String| OsString::from(format!("--{option}={value}"));
        match value {
            DeValue::Boolean(is_set) if !takes_value => {
                Ok(if *is_set { vec![format!("--{key}").into()] } else { Vec::new() })
            }
            _ if !takes_value => Err(self.at(span, &format!("{key:?} is true or false"))),
            DeValue::Table(pairs) if is_list => {
                let pair = |(span, name, value): (Range<usize>, &str, &DeValue)| {
                    if key == "env" {
                        self.check_variable(span.clone(), name)?;
                    }
                    Ok(word(format!("{name}={}", self.text_of(span, name, value)?)))
                };
                entries(pairs).into_iter().map(pair).collect()
            }
            DeValue::Array(all) => {
                let texts = all.iter().map(|one| self.text_of(one.span(), key, one.get_ref()));
                let texts = texts.collect::<Result<Vec<_>, String>>()?;
                match (is_list, key) {
                    (true, _) => Ok(texts.into_iter().map(word).collect()),
                    (false, "hosts") => Ok(vec![word(texts.join(","))]),
                    (false, _) => Err(self.at(span, &format!("{key:?} has one value"))),
                }
            }
            value => Ok(vec![word(self.text_of(span, key, value)?)]),
        }
    }

    /// A variable of another name than was written would be set, or none.
    fn check_variable(&self, span: Range<usize>, name: &str) -> Result<(), String> {
        if name.is_empty() || name.contains(['=', '\0']) {
            let why = format!("{name:?} is no name of an environment variable");
            return Err(self.at(span, &why));
        }
        Ok(())
    }

    /// A value as it would be typed.
    fn text_of(&self, span: Range<usize>, key: &str, value: &DeValue) -> Result<String, String> {
        match value {
            DeValue::String(text) if text.contains('\0') => {
                Err(self
                    .at(span, &format!("{key:?} has a zero byte, which no program can be given")))
            }
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Boolean(is_set) => Ok(is_set.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
            DeValue::Float(number) => Ok(number.as_str().to_owned()),
            _ => Err(self.at(span, &format!("{key:?} is a text or a number"))),
        }
    }

    fn table(&self, span: Range<usize>, value: &DeValue) -> Result<Table, String> {
        let DeValue::Table(entries_of) = value else {
            return Err(self.at(span, "write programs as [[program]]"));
        };
        let mut table = Table::default();
        for (span, key, value) in entries(entries_of) {
            let text = || self.text_of(span.clone(), key, value);
            match (key, value) {
                ("n", _) => {
                    let ranks = parse_ranks(&text()?);
                    table.ranks = Some(ranks.map_err(|why| self.at(span.clone(), &why))?);
                }
                ("wdir", _) => table.wdir = Some(text()?.into()),
                ("command", DeValue::Array(words)) => {
                    for word in words {
                        let word = self.text_of(word.span(), key, word.get_ref())?;
                        table.command.push(word.into());
                    }
                }
                ("command", _) => table.command = vec![text()?.into()],
                ("env", DeValue::Table(pairs)) => {
                    for (span, name, value) in entries(pairs) {
                        self.check_variable(span.clone(), name)?;
                        let value = self.text_of(span, name, value)?;
                        table.env.push((name.into(), value.into()));
                    }
                }
                _ => {
                    let why = format!(
                        "{key:?} is not known here; a program has n, command, wdir, and env as a \
                         table"
                    );
                    return Err(self.at(span, &why));
                }
            }
        }
        if table.command.is_empty() {
            let why = "the program has no command: write command = [\"PROGRAM\", \"ARGUMENT\"]";
            return Err(self.at(span, why));
        }
        Ok(table)
    }

    /// A sentence about that place.
    fn at(&self, span: Range<usize>, what: &str) -> String {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line = 1 + before.matches('\n').count();
        format!("{}, line {line}: {what}", self.path.display())
    }
}

/// Those that stand for the same as a key, which is one of them.
fn rivals<'a>(key: &'a &'a str) -> &'a [&'a str] {
    let of_key = RIVALS.into_iter().find(|rivals| rivals.contains(key));
    of_key.unwrap_or(std::slice::from_ref(key))
}

/// What a table holds, in the order of the file.
fn entries<'a>(table: &'a DeTable) -> Vec<(Range<usize>, &'a str, &'a DeValue<'a>)> {
    let mut all: Vec<_> =
        table.iter().map(|(key, value)| (key.span(), &**key.get_ref(), value.get_ref())).collect();
    all.sort_by_key(|(span, ..)| span.start);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    /// What becomes of a command line with that file.
    fn expanded(text: &str, line: &[&str]) -> Result<(Vec<String>, Vec<Further>), String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job.toml");
        std::fs::write(&path, text).unwrap();
        let file = format!("--file={}", path.display());
        let line = [&["rma-run", &file], line].concat();
        let line = line.into_iter().map(OsString::from).collect();
        let (line, further) =
            expand(&Cli::command(), line, None).map_err(|error| error.to_string())?;
        let words = line.into_iter().map(|word| word.into_string().unwrap());
        Ok((words.filter(|word| *word != file).skip(1).collect(), further))
    }

    #[track_caller]
    fn becomes(text: &str, line: &[&str], words: &[&str]) {
        assert_eq!(expanded(text, line).unwrap().0, words);
    }

    #[track_caller]
    fn refused(text: &str, part: &str) {
        let error = expanded(text, &[]).unwrap_err();
        assert!(error.contains(part), "{error}");
    }

    const JOB: &str = r#"
name = "heat"
hosts = ["a:2", "b"]
timeout = 1.5
label = true
quiet = false
env = { SEED = 1 }
config = { wait_timeout = 3 }

[[program]]
n = 3
command = ["./heat", "--size", 64]
wdir = "scratch"
env = { OWN = "x y" }
"#;

    #[test]
    fn what_a_file_says_becomes_options() {
        let options =
            ["--name=heat", "--hosts=a:2,b", "--timeout=1.5", "--label", "--env-of-all=SEED=1"];
        let rest = ["--config=wait_timeout=3", "--ranks=3", "--wdir=scratch", "--env=OWN=x y"];
        let program = ["--", "./heat", "--size", "64"];
        becomes(JOB, &[], &[&options[..], &rest, &program].concat());
    }

    #[test]
    fn options_that_are_typed_go_before_those_of_the_file() {
        let typed = ["-n", "5", "--timeout", "9", "--hostfile", "h", "--config", "transport=ofi"];
        let file = ["--name=heat", "--label", "--env-of-all=SEED=1", "--config=wait_timeout=3"];
        let program = ["--wdir=scratch", "--env=OWN=x y"];
        let line = [&file[..], &program, &typed, &["--", "./heat", "--size", "64"]].concat();
        becomes(JOB, &typed, &line);
        // And a program before those of the file, with all that is said of them.
        let line = [&file[..], &typed, &["--", "other", "-n"]].concat();
        becomes(JOB, &[&typed[..], &["other", "-n"]].concat(), &line);
        becomes(JOB, &[&typed[..], &["--", "other", "-n"]].concat(), &line);
    }

    #[test]
    fn several_programs_are_one_job() {
        let text = "[[program]]\nn = 1\ncommand = 'a'\n[[program]]\nn = 2\nenv = { A = 'b' }\n\
                    command = ['b', ':', '-n']\n";
        let (line, further) = expanded(text, &["--env", "C=d"]).unwrap();
        assert_eq!(line, ["--ranks=1", "--env", "C=d", "--", "a"]);
        let [Further { ranks, env, wdir, command }] = &further[..] else { panic!("{further:?}") };
        assert_eq!((*ranks, wdir), (2, &None));
        assert_eq!(*command, ["b", ":", "-n"]);
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        assert_eq!(*env, [pair("A", "b"), pair("C", "d")]);
        let error = expanded(text, &["-n", "3"]).unwrap_err();
        assert!(error.contains("leave -n and --wdir out"), "{error}");
    }

    #[test]
    fn what_does_not_go_with_what_is_typed_is_named_with_both_places() {
        for (text, typed) in [
            ("\nppn = 2", ["--nodes", "2x2"]),
            ("\nssh-command = 'rsh'", ["--nodes", "2x2"]),
            ("\nnodes = '2x2'", ["--ppn", "2"]),
            ("\nnodes = '2x2'", ["--ssh-command", "rsh"]),
        ] {
            let error = expanded(text, &typed).unwrap_err();
            let (key, _) = text.trim().split_once(' ').unwrap();
            let part = format!("job.toml, line 2: {key:?} does not go with {} of", typed[0]);
            assert!(error.contains(&part), "{error}");
        }
        // Hosts that are typed go before nodes, and nodes before hosts.
        becomes("nodes = '2x2'", &["--hosts", "a", "--ppn", "2"], &["--hosts", "a", "--ppn", "2"]);
    }

    #[test]
    fn what_does_not_go_together_is_named_by_both() {
        refused("nodes = '2x2'\nppn = 2", "line 2: \"ppn\" does not go with \"nodes\"");
        refused("ssh-command = 'a'\nnodes = '2x2'", "line 1: \"ssh-command\" does not go");
        refused("hosts = 'a'\nnodes = '2x2'", "line 1: \"hosts\" does not go with \"nodes\"");
        refused("hosts = 'a'\nhostfile = 'b'", "line 2: \"hostfile\" does not go with \"hosts\"");
        let files = "output-dir = 'a'\noutput-file = 'b'";
        refused(files, "line 2: \"output-file\" does not go with \"output-dir\"");
        becomes(files, &["--output-dir", "c"], &["--output-dir", "c"]);
        // Hosts that are typed go before both.
        becomes("nodes = '2x2'\nppn = 2", &["--hosts", "a"], &["--ppn=2", "--hosts", "a"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        refused("name = 'a'\ntmeout = 3\n", "job.toml, line 2: \"tmeout\" is not known");
        refused("\n\ntimeout = 'soon'", "line 3: invalid value 'soon' for '--timeout <SECONDS>'");
        refused("n = 3", "line 1: \"n\" is of a program");
        refused("label = 'yes'", "line 1: \"label\" is true or false");
        refused("timeout = true", "line 1: invalid value 'true'");
        refused("timeout = [1, 2]", "\"timeout\" has one value");
        refused("name = 1979-05-27", "\"name\" is a text or a number");
        refused("name = 'a'\nname = 'b'", "line 2: duplicate key");
        refused("name = ", "line 1: ");
        refused("\noutput-file = 'log.{rnak}'", "line 2: invalid value 'log.{rnak}' for");
        refused("file = 'x'", "\"file\" is not known");
        refused("env-of-all = ['A=b']", "\"env-of-all\" is not known");
        refused("\nenv = { 'A=B' = 'c' }", "line 2: \"A=B\" is no name of an environment variable");
        refused("env = { '' = 'c' }", "line 1: \"\" is no name of an environment variable");
        refused("[[program]]\ncommand = 'a'\nenv = { \"A\\u0000\" = 1 }", "line 3: \"A\\0\" is no");
        refused("[[program]]\ncommand = 'a'\nenv = { 'A=B' = 1 }", "line 3: \"A=B\" is no name");
        refused("[program]\nn = 1", "line 1: write programs as [[program]]");
        refused("[[program]]\nn = 1", "line 1: the program has no command");
        refused("[[program]]\nn = 0\ncommand = 'a'", "line 2: a job has at least one rank");
        refused(
            "[[program]]\nn = 1\nranks = 2\ncommand = 'a'",
            "line 3: \"ranks\" is not known here",
        );
        refused(
            "[[program]]\ncommand = 'a'\n[[program]]\ncommand = 'a'",
            "several programs needs n",
        );
        refused("\nname = \"a\\u0000\"", "line 2: \"name\" has a zero byte");
        for program in
            ["'a', \"b\\u0000\"]", "'a']\nwdir = \"b\\u0000\"", "'a']\nenv.A = \"\\u0000\""]
        {
            refused(&format!("[[program]]\nn = 1\ncommand = [{program}"), "\" has a zero byte");
        }
        let of_file = |path: &str| {
            let line = ["rma-run", "--file", path].map(OsString::from).to_vec();
            expand(&Cli::command(), line, None).unwrap_err().to_string()
        };
        let error = of_file("/no/such.toml");
        assert!(error.contains("job of /no/such.toml: cannot be read"), "{error}");
        let error = of_file("/dev/zero");
        assert!(error.contains("job of /dev/zero: it has more than 16777216 bytes"), "{error}");
    }
}
