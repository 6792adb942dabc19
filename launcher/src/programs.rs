//! Several programs in one job: `rma-run -n 1 a : -n 3 b`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use rma_launcher::run::{Program, Spec};

use crate::habits;
use crate::values::{parse_ranks, parse_variable};

const BEFORE: &str = "\
Behind \":\" stand options of one program: -n, --env and --wdir. Those of the whole job stand before
its first program. If the \":\" is meant for a program, write -- in front of that program.";

/// What stands behind a ":".
#[derive(Debug, Clone, Parser)]
#[command(name = "rma-run … :", disable_help_flag = true, after_help = BEFORE)]
#[command(override_usage = "rma-run … : -n <N> [--env KEY=VALUE] [--wdir DIR] <PROGRAM> [ARGS]...")]
pub(crate) struct Further {
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = parse_ranks)]
    pub(crate) ranks: u32,

    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_variable)]
    pub(crate) env: Vec<(OsString, OsString)>,

    #[arg(long, value_name = "DIR")]
    pub(crate) wdir: Option<PathBuf>,

    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

/// What is said of several programs is wrong.
pub(crate) fn refused(kind: ErrorKind, why: &str) -> clap::Error {
    Further::command().error(kind, format!("{why}\n\n{BEFORE}"))
}

/// The programs that `args` name.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Vec<Further>, clap::Error> {
    let (mut all, mut next) = (Vec::new(), Some(args));
    while let Some(args) = next {
        let line = [vec![OsString::from("rma-run")], args].concat();
        let (line, rest) = habits::translate(&Further::command(), line)
            .map_err(|why| refused(ErrorKind::UnknownArgument, &why))?;
        next = rest;
        all.push(Further::try_parse_from(line)?);
    }
    Ok(all)
}

/// Adds further programs to a job, which has its first one already. `everywhere` are variables of
/// all.
pub(crate) fn add(
    spec: &mut Spec,
    further: Vec<Further>,
    everywhere: &[(OsString, OsString)],
) -> Result<(), clap::Error> {
    for Further { ranks, env, wdir, command } in further {
        let Some(all) = spec.ranks.checked_add(ranks) else {
            let why = format!("{ranks} more ranks than {} are too many", spec.ranks);
            return Err(refused(ErrorKind::InvalidValue, &why));
        };
        let mut command = command.into_iter();
        let env = everywhere.iter().cloned().chain(env);
        spec.more.push(Program {
            first: std::mem::replace(&mut spec.ranks, all),
            program: command.next().unwrap_or_default(),
            args: command.collect(),
            dir: wdir,
            env: env.map(|(name, value)| (name, Some(value))).collect(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(line: &[&str]) -> Result<Spec, clap::Error> {
        let mut spec = Spec::new("a", 2);
        let everywhere = [("ALL".into(), "1".into())];
        let further = parse(line.iter().map(OsString::from).collect())?;
        add(&mut spec, further, &everywhere)?;
        Ok(spec)
    }

    #[test]
    fn ranks_of_further_programs_follow() {
        let line = ["-np", "3", "--env", "A=b", "b", "-x", ":", "-n", "1", "-wdir", "/", "c"];
        let spec = added(&line).unwrap();
        assert_eq!(spec.ranks, 6);
        let pair = |name: &str, value: &str| (name.into(), Some(value.into()));
        let b = Program {
            first: 2,
            program: "b".into(),
            args: vec!["-x".into()],
            dir: None,
            env: vec![pair("ALL", "1"), pair("A", "b")],
        };
        let c = Program {
            first: 5,
            program: "c".into(),
            args: vec![],
            dir: Some("/".into()),
            env: vec![pair("ALL", "1")],
        };
        assert_eq!(spec.more, [b, c]);
    }

    #[test]
    fn options_of_the_job_stand_before_its_first_program() {
        for line in [
            &["-n", "1", "--label", "b"][..],
            &["-n", "1", "-l", "b"],
            &["-n", "1"],
            &["--wdir", "/", "b"],
            &["-n", "4294967295", "b"],
            &["-n", "0", "b"],
        ] {
            assert!(added(line).is_err(), "{line:?}");
        }
        let text = added(&["-n", "1", "-l", "b"]).unwrap_err().to_string();
        assert!(text.contains("stand before\nits first program"), "{text}");
    }
}
