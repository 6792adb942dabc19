//! `rma-run serve`, which waits for hosts, and `rma-run join`, which makes a host one of them.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use rma_launcher::run::{self, HostSecret, HostSlots, Join, JoinPort, JoinedHosts};

use crate::programs::Further;
use crate::values::{parse_count, parse_seconds};
use crate::{Cli, Given, MISUSED, complain};

const SERVE_EXAMPLES: &str = "\
Example, for containers or hosts without ssh (the same file and programs on all of them):
  (umask 077; head -c 32 /dev/urandom | base64 > secret)
  here:        rma-run serve --joins 2 --listen 0.0.0.0:7070 --secret-file secret -n 8 /bin/heat
  on each of two hosts:   rma-run join HERE:7070 --secret-file secret

All other options are those of rma-run --hosts; ranks run on hosts that have joined, and on this one
only if it joins, too.";

/// Options of rma-run that say which hosts there are.
const ELSEWHERE: [&str; 4] = ["hosts", "hostfile", "nodes", "ssh_command"];

/// Runs a job on hosts that join it by `rma-run join`, without ssh
#[derive(Debug, Parser)]
#[command(name = "rma-run serve", version, max_term_width = 100)]
#[command(override_usage = "rma-run serve --joins <N> --secret-file <FILE> \
                      [--listen <ADDRESS:PORT>] [OPTIONS] <PROGRAM> [ARGS]...")]
pub(crate) struct Serve {
    /// Start as soon as so many hosts have joined
    #[arg(long, value_name = "N", value_parser = parse_joins)]
    joins: u32,

    /// Where they join; port 0 is any that is free, which is said with --quiet, too [default: all
    /// addresses of this machine, and such a port]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,

    /// What hosts have to know: a file of 32 bytes or more, that no other user may read
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,

    #[command(flatten)]
    cli: Cli,
}

impl Serve {
    /// Its options; what it is would be overwritten by what rma-run is.
    pub(crate) fn options() -> clap::Command {
        let about = "Runs a job on hosts that join it by `rma-run join`, without ssh";
        let command = Serve::command().about(about).long_about(None).after_help(SERVE_EXAMPLES);
        let hide = |command: clap::Command, name: &&str| {
            command.mut_arg(*name, |option| option.hide(true))
        };
        ELSEWHERE.iter().fold(command, hide)
    }
}

/// Joins the job of an `rma-run serve`, and starts its ranks of this host
#[derive(Debug, Parser)]
#[command(name = "rma-run join", bin_name = "rma-run join", max_term_width = 100)]
pub(crate) struct JoinJob {
    /// Where rma-run serve waits for hosts
    #[arg(value_name = "HOST:PORT")]
    launcher: String,

    /// The file that rma-run serve was given
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,

    /// Take so many ranks at most; without it, all hosts that do not say so take equal shares
    #[arg(long, value_name = "N", value_parser = parse_slots)]
    slots: Option<u32>,

    /// What this host is called, instead of the machine's name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Where ranks of other hosts reach those of this one, instead of the address by which it
    /// reaches rma-run serve
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,

    /// How long to try until rma-run serve lets this host in
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "60")]
    timeout: Duration,
}

fn parse_joins(text: &str) -> Result<u32, String> {
    parse_count(text, "a job has at least one host")
}

fn parse_slots(text: &str) -> Result<u32, String> {
    parse_count(text, "a host takes at least one rank: leave --slots out to have it take its share")
}

fn secret(path: &std::path::Path) -> Result<HostSecret, ExitCode> {
    HostSecret::read(path).map_err(|why| {
        complain(&why);
        MISUSED.into()
    })
}

pub(crate) fn join(asked: JoinJob) -> ExitCode {
    let JoinJob { launcher, secret_file, slots, name, address, timeout } = asked;
    let port = launcher.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    if port.is_none() {
        let why = format!("{launcher:?} has no port: write it as HOST:PORT");
        JoinJob::command().error(ErrorKind::ValueValidation, why).exit();
    }
    match secret(&secret_file) {
        Ok(secret) => run::join(&Join { launcher, secret, slots, name, address, timeout }).into(),
        Err(code) => code,
    }
}

pub(crate) fn serve(args: &[OsString]) -> ExitCode {
    let (matches, further) = crate::parsed(Serve::options(), args.iter().cloned());
    let asked = Serve::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Some(code) = crate::answered(&asked.cli) {
        return code;
    }
    if let Some(option) = ELSEWHERE.iter().find(|option| matches.contains_id(option)) {
        let option = option.replace('_', "-");
        let why = format!("the hosts of rma-run serve are those that join: leave --{option} out");
        Serve::options().error(ErrorKind::ArgumentConflict, why).exit();
    }
    served(asked, further).unwrap_or_else(|code| code)
}

fn served(asked: Serve, further: Vec<Further>) -> Result<ExitCode, ExitCode> {
    let Serve { joins, listen, secret_file, cli } = asked;
    let of = |hosts| Some(Given { hosts, by: "serve".to_owned() });
    // What is wrong with the job is said before hosts are waited for.
    let any = (0..joins).map(|at| HostSlots { name: at.to_string(), slots: None }).collect();
    let checked = crate::spec(cli.clone(), further.clone(), of(any));
    let checked = run::check(&checked.unwrap_or_else(|error| error.exit()));
    checked.map_err(|error| {
        complain(&error);
        ExitCode::from(error.exit_code())
    })?;

    let secret = secret(&secret_file)?;
    let failed = |error: run::JoinError| {
        complain(&error);
        ExitCode::from(error.exit_code())
    };
    let started = Instant::now();
    let listen = listen.unwrap_or_else(JoinPort::anywhere);
    let is_any = listen.port() == 0;
    let port = JoinPort::open(listen, secret).map_err(failed)?;
    let say = |text: &str| {
        if !cli.quiet {
            complain(&text);
        }
    };
    port.caution().into_iter().for_each(say);
    let hosts = if joins == 1 { "1 host".to_owned() } else { format!("{joins} hosts") };
    let (address, file) = (port.address(), secret_file.display());
    let waiting = format!("waiting for {hosts}: `rma-run join {address} --secret-file {file}`");
    // No user knows yet which port was free.
    if is_any {
        complain(&waiting)
    } else {
        say(&waiting)
    }
    let joined = port.wait(joins, cli.host_timeout, cli.timeout, say);
    let JoinedHosts { hosts, connections } = joined.map_err(failed)?;
    let mut spec = crate::spec(cli, further, of(hosts)).unwrap_or_else(|error| error.exit());
    spec.timeout = spec.timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
    if let Some(remote) = &mut spec.remote {
        remote.connections = Some(connections);
    }
    Ok(crate::run_job(&spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_waits_for_hosts_has_options_of_rma_run() {
        let line = [
            "rma-run serve",
            "--joins",
            "2",
            "--secret-file",
            "s",
            "-n",
            "3",
            "--label",
            "prog",
            "-n",
        ];
        let asked = Serve::try_parse_from(line).unwrap();
        assert_eq!((asked.joins, asked.listen, asked.cli.ranks), (2, None, Some(3)));
        assert_eq!(asked.cli.command, ["prog", "-n"]);
        for missing in [["--joins", "2"], ["--secret-file", "s"]] {
            let line = [&["rma-run serve"], &missing[..], &["-n", "3", "prog"]].concat();
            assert!(Serve::try_parse_from(line).is_err(), "{missing:?}");
        }
        let help = Serve::options().render_help().to_string();
        assert!(help.starts_with("Runs a job on hosts that join it"), "{help}");
        assert!(help.contains("rma-run join HERE:7070"), "{help}");
    }
}
