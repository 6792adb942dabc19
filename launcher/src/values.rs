//! What options of the command line are set to.

use std::ffi::OsString;
use std::time::Duration;

use clap::ValueEnum;
use rma_core::Config;
use rma_launcher::ROOT_VAR;
use rma_launcher::run::{Bind, MapBy, OnFailure, Readers};

/// The words of a remote shell.
pub(crate) fn shell_words(line: &str) -> Result<Vec<OsString>, String> {
    let words: Vec<_> = line.split_whitespace().map(OsString::from).collect();
    match words.is_empty() {
        true => Err("--ssh-command is empty: name a remote shell".to_owned()),
        false => Ok(words),
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum WhenFailed {
    End,
    Continue,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum BindTo {
    None,
    #[value(alias = "hwthread")]
    Thread,
    Core,
    #[value(alias = "package")]
    Socket,
    Numa,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MapTo {
    #[value(alias = "hwthread")]
    Thread,
    #[value(alias = "slot")]
    Core,
    #[value(alias = "package")]
    Socket,
    Numa,
    #[value(alias = "host")]
    Node,
}

/// Which ranks read standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    NoRank,
    By(Readers),
}

pub(crate) fn parse_reading(text: &str) -> Result<Reading, String> {
    match text {
        "none" => Ok(Reading::NoRank),
        "all" => Ok(Reading::By(Readers::All)),
        _ => match text.parse() {
            Ok(rank) => Ok(Reading::By(Readers::One { rank })),
            Err(_) => Err("write the number of one rank, all or none".to_owned()),
        },
    }
}

impl From<WhenFailed> for OnFailure {
    fn from(when: WhenFailed) -> OnFailure {
        match when {
            WhenFailed::End => OnFailure::End,
            WhenFailed::Continue => OnFailure::Continue,
        }
    }
}

impl From<BindTo> for Bind {
    fn from(to: BindTo) -> Bind {
        match to {
            BindTo::None => Bind::None,
            BindTo::Thread => Bind::Thread,
            BindTo::Core => Bind::Core,
            BindTo::Socket => Bind::Socket,
            BindTo::Numa => Bind::Numa,
        }
    }
}

impl From<MapTo> for MapBy {
    /// Hosts are dealt to before their cores are.
    fn from(to: MapTo) -> MapBy {
        match to {
            MapTo::Thread => MapBy::Thread,
            MapTo::Core | MapTo::Node => MapBy::Core,
            MapTo::Socket => MapBy::Socket,
            MapTo::Numa => MapBy::Numa,
        }
    }
}

pub(crate) fn parse_hint(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as KEY=VALUE".to_owned()),
    }
}

pub(crate) fn parse_setting(text: &str) -> Result<(String, String), String> {
    let Some((key, value)) = text.split_once('=') else {
        return Err("write it as KEY=VALUE; rma-run --help-config lists the keys".to_owned());
    };
    let setting = (key.trim().to_owned(), value.trim().to_owned());
    let known = Config::default().set(&setting.0, &setting.1);
    known.map(|()| setting).map_err(|error| error.to_string())
}

pub(crate) fn parse_grace(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { parse_seconds(text) }
}

pub(crate) fn parse_silence(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_secs(2);
    let silence = parse_seconds(text)?;
    if silence < LEAST {
        Err("hosts speak once a second: at least 2".to_owned())
    } else {
        Ok(silence)
    }
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    const LONGEST: f64 = 1e9;
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= LONGEST => Ok(Duration::from_secs_f64(seconds)),
        Ok(_) => Err("a time is more than 0 and at most 1000000000 seconds".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn parse_ranks(text: &str) -> Result<u32, String> {
    parse_count(text, "a job has at least one rank")
}

/// A number, or why 0 is none.
pub(crate) fn parse_count(text: &str, no_zero: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err(no_zero.to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn parse_nodes(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once('x').and_then(|(nodes, ranks)| {
        let number = |text: &str| text.parse().ok().filter(|number: &u32| *number > 0);
        let (nodes, ranks) = (number(nodes)?, number(ranks)?);
        nodes.checked_mul(ranks).map(|_| (nodes, ranks))
    });
    numbers.ok_or_else(|| "write it as NODESxRANKS, such as 2x4 for 2 nodes of 4 ranks".to_owned())
}

pub(crate) fn parse_variable(text: &str) -> Result<(OsString, OsString), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write it as KEY=VALUE".to_owned()),
    }
}

/// A folder that is there, as the variable that tells ranks of it.
pub(crate) fn parse_root(text: &str) -> Result<(OsString, OsString), String> {
    match std::fs::canonicalize(text) {
        Ok(path) if path.is_dir() => Ok((ROOT_VAR.into(), path.into())),
        Ok(_) => Err("it is no folder: name one".to_owned()),
        Err(error) => Err(format!("{error}: make the folder first")),
    }
}

/// What a job is called.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let odd = |letter: char| letter.is_control() || letter.is_whitespace();
    match text {
        "" => Err("a name has a letter at least".to_owned()),
        _ if text.parse::<u64>().is_ok() => {
            Err("a number would be a process of rma-run: use a letter, too".to_owned())
        }
        _ if text.chars().any(odd) => Err("a name has no spaces".to_owned()),
        _ => Ok(text.to_owned()),
    }
}
