//! `rma-run`: starts the ranks of a one-sided program, on this machine or on several hosts.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use allocation::Allocation;
use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use rma_core::{Config, Source};
use rma_launcher::run::{
    self, Bind, FilePattern, Fill, HostPart, HostSlots, MapBy, Remote, Spec, Stdin,
};

mod allocation;
mod habits;
mod job_file;
mod joins;
mod pages;
mod programs;
mod subcommands;
mod values;

use programs::Further;
use values::{
    BindTo, MapTo, Reading, WhenFailed, parse_grace, parse_hint, parse_name, parse_nodes,
    parse_ranks, parse_reading, parse_root, parse_seconds, parse_setting, parse_silence,
    parse_variable, shell_words,
};

/// What `rma-run` ends with where it was called wrongly, as clap has it.
const MISUSED: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  Run the word count with 4 ranks, each line marked with its rank:
      rma-run -n 4 --label target/release/examples/wordcount .

  Several programs as one job; -n, --env and --wdir are of each, other options of the job:
      rma-run --label -n 1 ./server : -n 3 --env ROLE=client ./client --retry

  Say what each rank of your job waits for; show what ranks use and do (--json for scripts):
      rma-run why
      rma-run top

  Examine this machine, by trying what jobs need (--json for scripts):
      rma-run doctor

  Run 4 ranks on each of two hosts, which ssh reaches without a password:
      rma-run --hosts node1:4,node2:4 /shared/bin/heat

  The same in containers or on hosts without ssh, which join (rma-run join --help):
      rma-run serve --joins 2 --listen 0.0.0.0:7070 --secret-file secret -n 8 /shared/bin/heat

  Complete command lines in bash, zsh or fish; install the manual page:
      source <(rma-run completions bash)
      rma-run man > ~/.local/share/man/man1/rma-run.1

  Run what a file says (options and [[program]]s), but with another limit:
      rma-run --file job.toml --timeout 60

  Pin each rank to a CPU, show what is decided, give up after a minute:
      rma-run -n 2 --bind core --explain --timeout 60 ./stencil --size 4096

Exit status:
  0    every rank exited with 0, in order
  N    the first failing rank exited with N
  128+S  the first failing rank, or the job, was ended by signal S
  1    a rank exited with 0 but kept its universe (as process::exit does), never initialized while
       others did, or left while another one still waited for it; or the job could not be started
  2    the command line is wrong, or asks for more than this machine holds
  124  the time limit was reached
  126, 127  PROGRAM cannot be run, or was not found

When a rank fails, the others get SIGTERM and, --kill-after seconds later, SIGKILL. Signals sent
to rma-run are passed on to all ranks; after one that asks to end (Ctrl-C, SIGTERM, SIGHUP,
SIGQUIT) ranks have as long to do so, and any second one kills. Rank 0 reads rma-run's standard
input, or those that --stdin says; the others read nothing. Ranks find each other through a port of
127.0.0.1 that only they can use.

With --hosts, rma-run and PROGRAM have to be there under the same paths as here, of the same build.
Ranks get variables RMA_*, FI_* and RUST_BACKTRACE of this environment, and those of --env; they run
in the folder that rma-run was started in, or --wdir, and reach other hosts by libfabric. A host
that is lost ends the job as a rank that fails does; when rma-run is lost, hosts end their ranks.";

/// Starts N processes ("ranks") of a program, on this machine or on hosts, and connects them.
#[derive(Debug, Clone, Parser)]
#[command(name = "rma-run", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(override_usage = "rma-run {-n <N> | --nodes <NODESxRANKS> | --hosts <LIST>} [OPTIONS] \
                      <PROGRAM> [ARGS]...")]
struct Cli {
    /// How many ranks to start; in a job of Slurm, PBS or LSF, as many as that has room for
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = parse_ranks)]
    ranks: Option<u32>,

    /// Pretend that the machine is so many nodes, of so many ranks each, that reach each other by
    /// messages only: "2x3" is 6 ranks on 2 nodes
    #[arg(long, value_name = "NODESxRANKS", value_parser = parse_nodes)]
    nodes: Option<(u32, u32)>,

    /// What reaches ranks of other nodes: shm (shared memory), ofi (libfabric), or what else the
    /// program has; with another than shm and without --nodes, each rank is a node of its own
    #[arg(long, value_name = "NAME")]
    transport: Option<String>,

    /// The provider of libfabric, by the name of its core (tcp, verbs, efa, …), instead of the best
    /// there is; for --transport ofi
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,

    /// Ranks on each host at most; without hosts, this machine is the only one, so it is how many
    /// there are
    #[arg(long, value_name = "N", value_parser = parse_ranks, conflicts_with = "nodes")]
    ppn: Option<u32>,

    /// Run on those hosts: "a:2,b:2" is 2 ranks on each, "a,b" as many on each as -n needs. ssh
    /// has to log in there without a password; "localhost" needs no ssh
    #[arg(long, value_name = "LIST", conflicts_with = "nodes")]
    hosts: Option<String>,

    /// Run on the hosts of FILE: one a line, as "a", "a:2" or "a slots=2", # for comments
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "hosts"])]
    hostfile: Option<PathBuf>,

    /// What starts a command on a host, instead of ssh: words, behind which the host and the
    /// command line are put
    #[arg(long, value_name = "CMD")]
    ssh_command: Option<String>,

    /// A host that says nothing for so long is lost; so is rma-run for a host. At least 2
    #[arg(long, value_name = "SECONDS", value_parser = parse_silence, default_value = "10")]
    host_timeout: Duration,

    /// Reach so many hosts at most from here, and so many from each host, which starts the agents
    /// of further ones; 0: all from here
    #[arg(long, value_name = "N", default_value = "64")]
    fan_out: u32,

    /// Copy PROGRAM to hosts that have it not, or of another build: into memory there, as long as
    /// the job lasts. rma-run, and libraries of PROGRAM, have to be there
    #[arg(long)]
    copy: bool,

    /// Take options and programs from FILE, where those of the command line go before; see
    /// docs/hosts.md
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// What the job is called, for `rma-run why NAME` and `top`
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,

    /// Run the ranks in that folder; PROGRAM is looked for from here
    #[arg(long, value_name = "DIR")]
    wdir: Option<PathBuf>,

    /// The folder that is this instance of the application: the root of its persistent windows
    #[arg(long, value_name = "DIR", value_parser = parse_root)]
    root: Option<(OsString, OsString)>,

    /// What happens when a rank fails: the others are ended, or go on
    #[arg(long, value_enum, default_value = "end")]
    on_failure: WhenFailed,

    // Help texts are for the terminal: "[rank]" is no link.
    #[allow(rustdoc::broken_intra_doc_links)]
    /// Put "[rank] " in front of every line that is printed
    #[arg(short, long)]
    label: bool,

    /// Put the time in front of every line that is printed, and of its label: that of its first
    /// byte, in UTC, such as 2026-01-31T23:59:59.123Z; by the clock of this host for all hosts
    #[arg(long)]
    timestamp: bool,

    /// Say nothing but why the job failed
    #[arg(short, long)]
    quiet: bool,

    /// Write output to DIR/rank-N.out and DIR/rank-N.err instead of printing it
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,

    /// Write output to files of such names instead of printing it: {rank}, {host}, {job} (--name,
    /// or the process of rma-run) and {stream} (out, err) are replaced. Without {stream}, both
    /// streams of a rank go to one file; two ranks never do
    #[arg(long, value_name = "PATTERN", value_parser = FilePattern::parse)]
    #[arg(conflicts_with = "output_dir")]
    output_file: Option<FilePattern>,

    /// With --output-dir or --output-file, print output as well
    #[arg(long)]
    tee: bool,

    /// Which rank reads rma-run's standard input, or that each reads all of it, or none does; the
    /// others read nothing
    #[arg(long, value_name = "RANK|all|none", value_parser = parse_reading, default_value = "0")]
    stdin: Reading,

    /// Where each rank runs: anywhere, or on a hardware thread, a core, a socket or a NUMA node of
    /// its own, in turn
    #[arg(long, value_enum)]
    bind: Option<BindTo>,

    /// In which order ranks get cores: socket by socket, or from another socket or NUMA node each;
    /// "thread" gives them hardware threads, one core after the other; "node" deals them to hosts
    /// in turn, instead of filling one after the other: how many each has, for ranks of a host have
    /// numbers in a row
    #[arg(long, value_enum, value_name = "BY")]
    map_by: Option<MapTo>,

    /// More ranks than CPUs are meant: do not mention it
    #[arg(long)]
    oversubscribe: bool,

    /// Set a variable in every rank's environment (may be repeated)
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_variable)]
    env: Vec<(OsString, OsString)>,

    /// Set a variable in the environment of every program's ranks: what -genv of mpiexec does
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_variable, hide = true)]
    env_of_all: Vec<(OsString, OsString)>,

    /// End the job, with exit status 124, after that time
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<Duration>,

    /// How long ranks that are asked to end may take, by a signal or because the job failed,
    /// until they are killed; a second signal kills at once
    #[arg(long, value_name = "SECONDS", value_parser = parse_grace, default_value = "10")]
    kill_after: Duration,

    /// Fail any single wait inside a rank (for a lock, a message, a barrier) after that time
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    wait_timeout: Option<Duration>,

    /// Give every window of the job that hint, unless it says otherwise (may be repeated); it is
    /// left aside, and rma-run says so, for windows that cannot have it
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_hint)]
    hint: Vec<(String, String)>,

    /// Give a setting of the runtime a value (may be repeated); it goes before files of settings,
    /// and these before what the program sets. --help-config lists all
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_setting)]
    config: Vec<(String, String)>,

    /// Take settings from FILE, one "key = value" a line, # for comments (may be repeated; later
    /// files go before earlier ones)
    #[arg(long, value_name = "FILE")]
    config_file: Vec<PathBuf>,

    /// List all settings: key, default, what it is and which values it takes
    #[arg(long, exclusive = true)]
    help_config: bool,

    /// Start no thread that serves messages of peers while a rank computes: they wait until the
    /// rank calls in
    #[arg(long)]
    no_progress_agent: bool,

    /// Offer no PMI-1, by which programs of MPI (MPICH and its kin) are ranks
    #[arg(long)]
    no_pmi: bool,

    /// Print what is decided, and why, to standard error
    #[arg(long)]
    explain: bool,

    /// The program and its arguments; what follows PROGRAM is never an option of rma-run
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// How many ranks there are, on how many nodes.
fn size(cli: &Cli) -> Result<(u32, u32), clap::Error> {
    if let (Some(ranks), Some(each)) = (cli.ranks, cli.ppn)
        && ranks > each
    {
        let why = format!(
            "--ppn {each} would place {ranks} ranks on several machines, and this is one: leave it \
             out, or pretend with --nodes"
        );
        return Err(Cli::command().error(ErrorKind::ArgumentConflict, why));
    }
    match (cli.ranks.or(cli.ppn), cli.nodes) {
        (asked, Some((nodes, each))) if asked.is_none_or(|asked| asked == nodes * each) => {
            Ok((nodes * each, nodes))
        }
        (Some(ranks), None) => Ok((ranks, 1)),
        (None, None) => {
            let why = "how many ranks? Say -n N, or --hosts; in a job of Slurm, PBS or LSF, that \
                       says so";
            Err(Cli::command().error(ErrorKind::MissingRequiredArgument, why))
        }
        (ranks, nodes) => {
            let (ranks, (nodes, each)) = (ranks.unwrap_or_default(), nodes.unwrap_or_default());
            let why = format!(
                "--nodes {nodes}x{each} is a job of {} ranks, not of the {ranks} that -n asks for: \
                 leave -n out",
                nodes * each
            );
            Err(Cli::command().error(ErrorKind::ArgumentConflict, why))
        }
    }
}

/// The settings of files, and those of the command line.
fn config(cli: &Cli, across_by: Option<&str>) -> Result<Config, clap::Error> {
    let mut config = Config::default();
    for path in &cli.config_file {
        let refused = |why| Cli::command().error(ErrorKind::InvalidValue, why);
        run::read_config(&mut config, path).map_err(refused)?;
    }
    let nodes = cli.nodes.map(|(nodes, _)| ("nodes", nodes.to_string(), "--nodes"));
    let transport = cli.transport.clone().map(|value| ("transport", value, "--transport"));
    let provider = cli.provider.clone().map(|value| ("provider", value, "--provider"));
    let lines = cli.config.iter().map(|(key, value)| (&**key, value.clone(), "--config"));
    for (key, value, option) in lines.chain(nodes).chain(transport).chain(provider) {
        let set = config.set_by(key, &value, Source::CommandLine(option.into()));
        set.map_err(|why| Cli::command().error(ErrorKind::InvalidValue, why))?;
    }
    if let Some(by) = across_by {
        across(&mut config, by)?;
    }
    // A file or --config may say what the transport is, too.
    if cli.provider.is_some() && config.get("transport").as_deref() != Some("ofi") {
        let why = "--provider chooses among providers of libfabric: add --transport ofi";
        return Err(Cli::command().error(ErrorKind::MissingRequiredArgument, why));
    }
    Ok(config)
}

/// Hosts that a job is to be on.
struct Given {
    hosts: Vec<HostSlots>,
    /// What has named them, behind "rma-run".
    by: String,
}

/// The hosts that ranks are on, if any are named, or a scheduler has given some. Of this machine
/// alone, it gives the number of ranks, if none is said.
fn hosts(cli: &mut Cli, vars: allocation::Vars) -> Result<Option<Given>, clap::Error> {
    let refused = |why: String| Cli::command().error(ErrorKind::ValueValidation, why);
    let given = |by: &str, hosts: Result<Vec<HostSlots>, String>| {
        hosts.map(|hosts| Given { hosts, by: by.to_owned() }).map_err(refused)
    };
    let given = match (&cli.hosts, &cli.hostfile) {
        (Some(list), _) => given("--hosts", run::parse_hosts(list))?,
        (None, Some(file)) => given("--hostfile", run::read_hosts(file))?,
        (None, None) => match allocated(cli, vars).map_err(refused)? {
            Some(given) => given,
            None if cli.ssh_command.is_some() => {
                return Err(refused("--ssh-command is for --hosts, which names none".to_owned()));
            }
            None => return Ok(None),
        },
    };
    Ok(Some(given))
}

/// The hosts that a scheduler has given, if there are others than this machine.
fn allocated(cli: &mut Cli, vars: allocation::Vars) -> Result<Option<Given>, String> {
    // Nodes that are pretended are on this machine.
    if cli.nodes.is_some() {
        return Ok(None);
    }
    let Some(Allocation { hosts, variable }) = allocation::find(vars)? else { return Ok(None) };
    if let [HostSlots { name, slots }] = &hosts[..]
        && allocation::is_here(name)
    {
        if cli.ppn.is_none() {
            cli.ranks = cli.ranks.or(*slots);
        }
        return Ok(None);
    }
    if cli.explain {
        let names: Vec<&str> = hosts.iter().map(|host| &*host.name).collect();
        complain(&format!("explain: hosts of {variable}: {}", names.join(", ")));
    }
    Ok(Some(Given { hosts, by: format!("with {variable}") }))
}

/// Ranks of several hosts reach each other by a network.
fn across(config: &mut Config, by: &str) -> Result<(), clap::Error> {
    let refused = |why: &str| Cli::command().error(ErrorKind::ArgumentConflict, why);
    let said = |key| config.source(key) != Some(Source::Default);
    if said("nodes") {
        return Err(refused("each host is a node: leave the setting \"nodes\" out"));
    }
    if said("transport") && config.get("transport").as_deref() != Some("ofi") {
        return Err(refused("shared memory does not reach other hosts: leave --transport out"));
    }
    let set = config.set_by("transport", "ofi", Source::CommandLine(by.into()));
    set.map_err(|why| Cli::command().error(ErrorKind::InvalidValue, why))
}

/// A job of as many ranks as its programs are to have, of which the first is not there yet, and
/// their places on hosts, if these are given.
fn ranks(
    cli: &Cli,
    further: Vec<Further>,
    hosts: Option<&[HostSlots]>,
) -> Result<(Spec, Option<Vec<HostPart>>), clap::Error> {
    let refused = |why: String| Cli::command().error(ErrorKind::ValueValidation, why);
    let is_counted = cli.ranks.is_some() && cli.nodes.is_none();
    if !further.is_empty() && !(is_counted && (cli.ppn.is_none() || hosts.is_some())) {
        let why = "give each program its number of ranks by -n; --nodes is for one program, and so \
                   is --ppn without hosts";
        return Err(programs::refused(ErrorKind::ArgumentConflict, why));
    }
    let fill = match cli.map_by {
        Some(MapTo::Node) => Fill::InTurn,
        _ => Fill::HostByHost,
    };
    let place =
        |hosts: &[HostSlots], ranks| run::place(hosts, ranks, cli.ppn, fill).map_err(refused);
    let ranks = match (hosts, cli.ranks) {
        (Some(_), Some(ranks)) => ranks,
        (Some(hosts), None) => place(hosts, None)?.iter().map(|part| part.ranks).sum(),
        (None, _) => size(cli)?.0,
    };
    let mut spec = Spec::new("", ranks);
    programs::add(&mut spec, further, &cli.env_of_all)?;
    let parts = hosts.map(|hosts| place(hosts, Some(spec.ranks))).transpose()?;
    Ok((spec, parts))
}

/// A job, on hosts if some are given.
fn spec(mut cli: Cli, further: Vec<Further>, given: Option<Given>) -> Result<Spec, clap::Error> {
    cli.env_of_all.extend(cli.root.take());
    let (mut spec, parts) = ranks(&cli, further, given.as_ref().map(|given| &*given.hosts))?;
    let is_across = parts.as_ref().is_some_and(|parts| parts.len() > 1);
    let across_by = given.filter(|_| is_across).map(|given| given.by);
    spec.config = config(&cli, across_by.as_deref())?;
    spec.nodes = spec.config.nodes_of(spec.ranks);
    let shell = cli.ssh_command.as_deref().map(shell_words).transpose();
    let shell = shell.map_err(|why| Cli::command().error(ErrorKind::ValueValidation, why))?;
    spec.remote = parts.map(|parts| {
        let mut remote = Remote::new(parts);
        (remote.shell, remote.silence) = (shell, cli.host_timeout);
        (remote.fan_out, remote.copy) = (cli.fan_out, cli.copy);
        remote
    });
    let mut command = cli.command.into_iter();
    spec.program = command.next().unwrap_or_default();
    spec.name = cli.name;
    spec.args = command.collect();
    let env = cli.env_of_all.into_iter().chain(cli.env);
    spec.env = env.map(|(name, value)| (name, Some(value))).collect();
    spec.label = cli.label;
    spec.timestamp = cli.timestamp;
    spec.quiet = cli.quiet;
    spec.output_file = cli.output_file;
    if let Some(folder) = cli.output_dir {
        spec.output_file = Some(FilePattern::in_folder(&folder));
    }
    if cli.tee && spec.output_file.is_none() {
        let why = "--tee prints what goes to files: add --output-dir or --output-file";
        return Err(Cli::command().error(ErrorKind::MissingRequiredArgument, why));
    }
    spec.tee = cli.tee;
    // An order of cores or threads is of ranks that are bound.
    let bound_to = cli.map_by.and_then(|by| match by {
        MapTo::Node => None,
        MapTo::Thread => Some(BindTo::Thread),
        MapTo::Core | MapTo::Socket | MapTo::Numa => Some(BindTo::Core),
    });
    spec.bind = cli.bind.or(bound_to).map(Bind::from).unwrap_or_default();
    spec.map_by = cli.map_by.map(MapBy::from).unwrap_or_default();
    spec.oversubscribe = cli.oversubscribe;
    spec.timeout = cli.timeout;
    spec.dir = cli.wdir;
    spec.on_failure = cli.on_failure.into();
    spec.kill_after = cli.kill_after;
    spec.wait_timeout = cli.wait_timeout;
    spec.hints = cli.hint;
    spec.progress_agent = !cli.no_progress_agent;
    spec.pmi = !cli.no_pmi;
    spec.explain = cli.explain;
    if let Reading::By(readers) = cli.stdin {
        (spec.stdin, spec.readers) = (Stdin::Inherit, readers);
    }
    spec.dedicated = true;
    Ok(spec)
}

fn main() -> ExitCode {
    if run::warden() {
        return ExitCode::SUCCESS;
    }
    let args: Vec<OsString> = std::env::args_os().collect();
    if args.get(1).is_some_and(|word| word == "agent") {
        return run::agent().into();
    }
    if let Some(code) = subcommands::run(&args) {
        return code;
    }
    let (matches, further) = parsed(Cli::command(), args);
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Some(code) = answered(&cli) {
        return code;
    }
    let given = hosts(&mut cli, &|name| std::env::var_os(name));
    let spec = given.and_then(|given| spec(cli, further, given));
    run_job(&spec.unwrap_or_else(|error| error.exit()))
}

/// What a command line says, with its `--file` if it has one, and the programs that follow its
/// first; where it is wrong, the process ends.
fn parsed(
    command: clap::Command,
    args: impl IntoIterator<Item = OsString>,
) -> (ArgMatches, Vec<Further>) {
    let (line, next) = habits::translate(&command, args).unwrap_or_else(|why| {
        command.clone().error(ErrorKind::UnknownArgument, why).exit();
    });
    let expanded = job_file::expand(&command, line, next);
    let (line, further) = expanded.unwrap_or_else(|error| error.exit());
    (command.get_matches_from(line), further)
}

/// What ends a call that runs no job: it asks for something else, or is one of several.
fn answered(cli: &Cli) -> Option<ExitCode> {
    if cli.help_config {
        return Some(print(&Config::settings_help()));
    }
    if let (true, Some(file)) = (cli.explain, &cli.file) {
        complain(&format!("explain: options of {}, where they are not typed", file.display()));
    }
    let (variable, value) = run::one_of_several()?;
    complain(&format!(
        "{variable}={value} says that this is one of several processes of rma-run, each of which \
         would run a job of its own; start one, outside of the other launcher, or have that start \
         the program itself (`srun --mpi=pmi2 PROGRAM`, `mpiexec -n N PROGRAM`); `env -u \
         {variable} rma-run` runs a job of its own on purpose"
    ));
    Some(MISUSED.into())
}

fn run_job(spec: &Spec) -> ExitCode {
    match run::run(spec) {
        Ok(report) => report.exit_code().into(),
        Err(error) => {
            complain(&error);
            error.exit_code().into()
        }
    }
}

/// The options, complete.
fn command() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    command
}

fn print(page: &str) -> ExitCode {
    use std::io::Write;
    match std::io::stdout().write_all(page.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn complain(error: &dyn std::fmt::Display) {
    use std::io::Write;
    // With nowhere to complain to, the exit status must do.
    let _ = writeln!(std::io::stderr(), "rma-run: {error}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str], vars: allocation::Vars) -> Result<Spec, clap::Error> {
        let mut cli = Cli::try_parse_from(line).unwrap();
        let given = hosts(&mut cli, vars)?;
        spec(cli, Vec::new(), given)
    }

    #[test]
    fn what_follows_the_program_belongs_to_it() {
        let line = ["rma-run", "-n", "2", "-l", "prog", "-n", "5", "--label", "--", "--help"];
        let cli = Cli::try_parse_from(line).unwrap();
        assert_eq!(cli.ranks, Some(2));
        assert_eq!(cli.command, ["prog", "-n", "5", "--label", "--", "--help"]);
    }

    #[test]
    fn bad_command_lines_are_refused() {
        for line in [
            vec!["rma-run", "-n", "2"],
            vec!["rma-run", "-n", "0", "prog"],
            vec!["rma-run", "-n", "-1", "prog"],
            vec!["rma-run", "-n", "two", "prog"],
            vec!["rma-run", "-n", "4294967296", "prog"],
            vec!["rma-run", "-n", "2", "--bogus", "prog"],
            vec!["rma-run", "-n", "2", "--timeout", "0", "prog"],
            vec!["rma-run", "-n", "2", "--timeout", "NaN", "prog"],
            vec!["rma-run", "-n", "2", "--env", "=x", "prog"],
            vec!["rma-run", "-n", "2", "--env", "x", "prog"],
            vec!["rma-run", "-n", "2", "--bind", "moon", "prog"],
            vec!["rma-run", "-n", "2", "--config", "outstanding_messages", "prog"],
            vec!["rma-run", "-n", "2", "--config", "outstanding_messages=0", "prog"],
            vec!["rma-run", "-n", "2", "--config", "pigeons=2", "prog"],
            vec!["rma-run", "-n", "2", "--help-config", "prog"],
            vec!["rma-run", "-n", "2", "--name", "4711", "prog"],
            vec!["rma-run", "-n", "2", "--name", "two words", "prog"],
            vec!["rma-run", "--nodes", "2", "prog"],
            vec!["rma-run", "--nodes", "0x2", "prog"],
            vec!["rma-run", "--nodes", "2x2x2", "prog"],
            vec!["rma-run", "--nodes", "65536x65536", "prog"],
        ] {
            assert!(Cli::try_parse_from(&line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn ranks_and_hosts_come_from_a_scheduler_unless_they_are_named() {
        let uname = rustix::system::uname();
        let here = uname.nodename().to_string_lossy().into_owned();
        let of = |line: &[&str], list: &str, tasks: &str| {
            let vars = |name: &str| match name {
                "SLURM_JOB_NODELIST" => Some(list.into()),
                "SLURM_TASKS_PER_NODE" => Some(tasks.into()),
                _ => None,
            };
            let line = [&["rma-run"], line, &["prog"]].concat();
            parsed(&line, &vars).map(|spec| {
                let hosts = spec.remote.map_or(0, |remote| remote.hosts.len());
                (spec.ranks, hosts)
            })
        };
        assert_eq!(of(&[], &here, "3").unwrap(), (3, 0));
        assert_eq!(of(&["-n", "5"], &here, "3").unwrap(), (5, 0), "as without a scheduler");
        assert_eq!(of(&["--nodes", "2x2"], "n[1-2]", "2(x2)").unwrap(), (4, 0));
        assert_eq!(of(&[], "n[1-2]", "2(x2)").unwrap(), (4, 2));
        assert_eq!(of(&["-n", "3"], "n[1-2]", "2(x2)").unwrap(), (3, 2));
        assert_eq!(of(&["--ppn", "1"], "n[1-2]", "2(x2)").unwrap(), (2, 2));
        assert_eq!(of(&["--hosts", "a:1"], "n[1-2]", "2(x2)").unwrap(), (1, 1));
        assert_eq!(of(&[], "elsewhere", "2").unwrap(), (2, 1), "a shell of salloc");
        assert!(of(&["-n", "5"], "n[1-2]", "2(x2)").is_err());
        assert!(of(&["-n", "5"], "n[", "2").is_err());
        let missing = parsed(&["rma-run", "prog"], &|_| None).unwrap_err().to_string();
        assert!(missing.contains("-n N"), "{missing}");
    }

    #[test]
    fn agents_are_switched_off_by_an_option() {
        let agents = |line: &[&str]| parsed(line, &|_| None).unwrap().progress_agent;
        assert!(agents(&["rma-run", "-n", "2", "prog"]));
        assert!(!agents(&["rma-run", "-n", "2", "--no-progress-agent", "prog"]));
    }

    #[test]
    fn settings_of_the_line_go_before_those_of_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let first = file("first", "outstanding_messages = 1\neager_bytes = 1 KiB\nnodes = 2");
        let second =
            file("second", "# again\noutstanding_messages = 2\nunexpected_bytes = 1 MiB\n");
        let line = ["rma-run", "-n", "4", "--config", "unexpected_bytes=7"];
        let files = ["--config-file", &first, "--config-file", &second, "prog"];
        let parsed = |line: &[&str]| parsed(line, &|_| None);
        let asked = parsed(&[&line[..], &files[..]].concat()).unwrap();
        let config = &asked.config;
        assert_eq!(
            (config.outstanding_messages, config.eager_bytes, config.unexpected_bytes),
            (2, 1024, 7)
        );
        assert_eq!(
            config.source("outstanding_messages"),
            Some(Source::File(second.as_str().into()))
        );
        assert_eq!(config.source("unexpected_bytes"), Some(Source::CommandLine("--config".into())));
        assert_eq!(asked.nodes, 2, "a setting, too");
        let nodes = parsed(&["rma-run", "--nodes", "1x4", "--config-file", &first, "prog"]);
        assert_eq!(nodes.unwrap().nodes, 1);

        let bad = file("bad", "outstanding_messages = 1\noutstanding_message = 1\n");
        let error = parsed(&["rma-run", "-n", "1", "--config-file", &bad, "prog"]).unwrap_err();
        let text = error.to_string();
        for part in [&*bad, "line 2", "\"outstanding_message\"", "mean \"outstanding_messages\""] {
            assert!(text.contains(part), "{text}");
        }
        let none = parsed(&["rma-run", "-n", "1", "--config-file", "/no/such", "prog"]);
        assert!(none.unwrap_err().to_string().contains("/no/such: cannot be read"));
    }

    #[test]
    fn transports_and_providers_are_settings() {
        let parsed = |line: &[&str]| parsed(line, &|_| None);
        let asked = ["rma-run", "-n", "2", "--transport", "ofi", "--provider", "tcp", "prog"];
        let config = parsed(&asked).unwrap().config;
        assert_eq!(config.provider(), Some("tcp"));
        assert_eq!(config.source("provider"), Some(Source::CommandLine("--provider".into())));
        assert_eq!(config.get("transport").as_deref(), Some("ofi"));
        let layers = ["--transport", "ofi", "--provider", "tcp;ofi_rxm", "prog"];
        let text = parsed(&[&["rma-run", "-n", "2"], &layers[..]].concat()).unwrap_err();
        let text = text.to_string();
        assert!(text.contains("\"tcp;ofi_rxm\"") && text.contains("lower-case"), "{text}");
        let text = parsed(&["rma-run", "-n", "2", "--transport", "a pigeon", "prog"]);
        assert!(text.unwrap_err().to_string().contains("lower-case"));
        let by_setting = ["--config", "transport=ofi", "--provider", "tcp", "prog"];
        let config = parsed(&[&["rma-run", "-n", "2"], &by_setting[..]].concat()).unwrap().config;
        assert_eq!(config.provider(), Some("tcp"));
        let text = parsed(&["rma-run", "-n", "2", "--provider", "tcp", "prog"]);
        assert!(text.unwrap_err().to_string().contains("--transport ofi"));
    }

    #[test]
    fn settings_are_listed_without_a_program() {
        assert!(Cli::try_parse_from(["rma-run", "--help-config"]).unwrap().help_config);
    }

    #[test]
    fn nodes_say_how_many_ranks_there_are() {
        let sizes = |line: &[&str]| size(&Cli::try_parse_from(line).unwrap());
        assert_eq!(sizes(&["rma-run", "-n", "4", "prog"]).unwrap(), (4, 1));
        assert_eq!(sizes(&["rma-run", "--nodes", "2x3", "prog"]).unwrap(), (6, 2));
        assert_eq!(sizes(&["rma-run", "--nodes", "2x2", "-n", "4", "prog"]).unwrap(), (4, 2));
        let error = sizes(&["rma-run", "--nodes", "2x2", "-n", "5", "prog"]).unwrap_err();
        assert!(error.to_string().contains("is a job of 4 ranks, not of the 5"), "{error}");
    }

    #[test]
    fn values_may_hold_an_equals_sign() {
        assert_eq!(parse_variable("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
    }
}
