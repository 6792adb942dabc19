//! What `rma-run` does besides running jobs. A subcommand is one only as the very first word: after
//! an option or `--` the word is a program.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use rma_launcher::run::query::{self, QueryError, Stage, Top, Why};
use rma_launcher::run::{self, Fill, Remote, doctor};

use crate::joins::{self, JoinJob, Serve};
use crate::values::shell_words;
use crate::{complain, pages, parse_seconds, print};

/// From one look at a job to the next.
const INTERVAL: &str = "1";
/// Lines of a terminal that hold no rank.
const BESIDES: usize = 5;

/// Examines this machine, or hosts, by trying what a job needs; fails where one cannot run
#[derive(Debug, Parser)]
#[command(name = "rma-run doctor")]
struct Doctor {
    /// Print an array of objects, or with hosts an object, for programs
    #[arg(long)]
    json: bool,

    /// Examine those hosts, written as for a job: "a:2,b:2"
    #[arg(long, value_name = "LIST")]
    hosts: Option<String>,

    /// Examine the hosts of FILE
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    hostfile: Option<PathBuf>,

    /// What starts a command on a host, instead of ssh
    #[arg(long, value_name = "CMD")]
    ssh_command: Option<String>,

    /// A host that has not answered after that time is not reached
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "30")]
    timeout: Duration,
}

/// Says what each rank of a job waits for, whom, at which window and how long
#[derive(Debug, Parser)]
#[command(name = "rma-run why")]
struct WhyJob {
    /// The process of rma-run, or the --name of the job; not needed if you run only one
    #[arg(value_name = "JOB")]
    job: Option<String>,

    /// Print an object, for programs
    #[arg(long)]
    json: bool,
}

/// Shows the ranks of a job: CPU, memory, windows, operations and messages a second
#[derive(Debug, Parser)]
#[command(name = "rma-run top")]
struct TopJob {
    /// The process of rma-run, or the --name of the job; not needed if you run only one
    #[arg(value_name = "JOB")]
    job: Option<String>,

    /// Look twice, print what was between, and end
    #[arg(long)]
    once: bool,

    /// Print objects, for programs
    #[arg(long)]
    json: bool,

    /// From one look to the next
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = INTERVAL)]
    interval: Duration,
}

/// Prints a script that completes command lines in a shell
#[derive(Debug, Parser)]
#[command(name = "rma-run completions")]
struct Completions {
    /// Which shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: pages::Shell,
}

/// Prints a manual page
#[derive(Debug, Parser)]
#[command(name = "rma-run man")]
struct Man {}

/// A subcommand.
pub(crate) struct Subcommand {
    pub(crate) name: &'static str,
    run: fn(&[OsString]) -> ExitCode,
    /// Its options.
    pub(crate) command: fn() -> clap::Command,
}

/// All of them.
pub(crate) const ALL: &[Subcommand] = &[
    Subcommand { name: "why", run: |args| why(WhyJob::parse_from(args)), command: WhyJob::command },
    Subcommand { name: "top", run: |args| top(TopJob::parse_from(args)), command: TopJob::command },
    Subcommand {
        name: "doctor",
        run: |args| doctor(Doctor::parse_from(args)),
        command: Doctor::command,
    },
    Subcommand { name: "serve", run: joins::serve, command: Serve::options },
    Subcommand {
        name: "join",
        run: |args| joins::join(JoinJob::parse_from(args)),
        command: JoinJob::command,
    },
    Subcommand {
        name: "completions",
        run: |args| {
            let Completions { shell } = Completions::parse_from(args);
            print(&pages::completions(shell, &crate::command()))
        },
        command: Completions::command,
    },
    Subcommand {
        name: "man",
        run: |args| {
            let Man {} = Man::parse_from(args);
            print(&pages::manual(&crate::command()))
        },
        command: Man::command,
    },
];

/// Runs the subcommand that the first word names, if it names one.
pub(crate) fn run(args: &[OsString]) -> Option<ExitCode> {
    let word = args.get(1)?;
    let subcommand = ALL.iter().find(|subcommand| word == subcommand.name)?;
    Some((subcommand.run)(&args[1..]))
}

fn doctor(asked: Doctor) -> ExitCode {
    let json = asked.json;
    let (text, is_bad) = match examined(asked) {
        Err(why) => Doctor::command().error(ErrorKind::ValueValidation, why).exit(),
        Ok(None) => {
            let findings = doctor::examine();
            let text = if json { doctor::json(&findings) } else { doctor::text(&findings) };
            (text, doctor::is_bad(&findings))
        }
        Ok(Some((remote, patience))) => match doctor::visit(&remote, patience) {
            Ok(Ok(visits)) => {
                let text = if json { visits.json() } else { visits.text() };
                (text, visits.is_bad())
            }
            Ok(Err(code)) => return code.into(),
            Err(error) => {
                complain(&format!("waiting for hosts failed: {error}"));
                return ExitCode::FAILURE;
            }
        },
    };
    let printed = print(&text);
    if is_bad { ExitCode::FAILURE } else { printed }
}

/// The hosts that are to be examined, if any are, and how long each may take.
fn examined(asked: Doctor) -> Result<Option<(Remote, Duration)>, String> {
    let hosts = match (asked.hosts, asked.hostfile) {
        (Some(list), _) => run::parse_hosts(&list)?,
        (None, Some(file)) => run::read_hosts(&file)?,
        (None, None) if asked.ssh_command.is_some() => {
            return Err("--ssh-command is for --hosts, which names none".to_owned());
        }
        (None, None) => return Ok(None),
    };
    let mut remote = Remote::new(run::place(&hosts, None, None, Fill::HostByHost)?);
    remote.shell = asked.ssh_command.as_deref().map(shell_words).transpose()?;
    Ok(Some((remote, asked.timeout)))
}

fn refused(error: &QueryError) -> ExitCode {
    // With nowhere to complain to, the exit status must do.
    let _ = writeln!(std::io::stderr(), "rma-run: {error}");
    error.exit_code().into()
}

fn why(asked: WhyJob) -> ExitCode {
    match query::find(asked.job.as_deref()) {
        Ok(view) if asked.json => print(&Why(&view).json()),
        Ok(view) => print(&Why(&view).text()),
        Err(error) => refused(&error),
    }
}

fn top(asked: TopJob) -> ExitCode {
    if asked.interval > Duration::from_secs(3600) {
        let why = "an hour is the longest --interval";
        TopJob::command().error(ErrorKind::InvalidValue, why).exit();
    }
    let mut before = match query::find(asked.job.as_deref()) {
        Ok(view) => view,
        Err(error) => return refused(&error),
    };
    let job = before.launcher.to_string();
    loop {
        std::thread::sleep(asked.interval);
        let now = match query::find(Some(&job)) {
            Ok(view) => view,
            // It was there before: it is over.
            Err(QueryError::NoSuchJob { .. }) => return ended(&job, asked.once),
            Err(error) => return refused(&error),
        };
        let top = Top { before: &before, now: &now };
        let text = match (asked.json, screen().filter(|_| !asked.once)) {
            (true, _) => top.json(),
            (false, None) => top.text(None),
            // From the upper left, without what was there before.
            (false, Some(rows)) => {
                format!("\x1b[H\x1b[J{}", top.text(Some(rows.saturating_sub(BESIDES))))
            }
        };
        let printed = print(&text);
        let over = now.ranks.iter().all(|rank| rank.stage == Stage::Ended);
        if asked.once || over || printed != ExitCode::SUCCESS {
            return printed;
        }
        before = now;
    }
}

fn ended(job: &str, once: bool) -> ExitCode {
    // With nowhere to say so, the exit status must do.
    let _ = writeln!(std::io::stderr(), "rma-run: job {job} has ended");
    if once { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Lines of the terminal that is written to, if it is one.
fn screen() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok()?;
    Some(size.ws_row.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_subcommands_are_sound() {
        for subcommand in ALL {
            (subcommand.command)().debug_assert();
            let command = (subcommand.command)();
            assert_eq!(command.get_name(), format!("rma-run {}", subcommand.name));
            assert!(command.get_about().is_some());
        }
    }
}
