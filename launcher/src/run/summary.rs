//! What is said of a job at its end.

use std::path::Path;

use rustix::process::Signal;

use super::driver::Driver;
use super::lines::last_lines;
use super::machine::Cause;
use super::output::lock;
use super::report::{Ending, Failure, How, LostOutput};
use super::spec::OnFailure;
use super::{cpus, look, signals};

impl Driver<'_> {
    pub(super) fn ending(&self) -> Ending {
        match self.machine.cause().cloned() {
            None => Ending::Success,
            Some(Cause::TimedOut { running }) => Ending::TimedOut { running },
            Some(Cause::Interrupted(signal)) => Ending::Interrupted(signal),
            Some(Cause::OutputEnded(None)) => Ending::OutputClosed,
            Some(Cause::OutputEnded(Some(why))) => Ending::OutputFailed(why),
            Some(Cause::Failed { rank, how }) => {
                let killed = how == How::Signal(Signal::KILL.as_raw());
                let here = self.hosts.is_empty() && self.oom_kills.are_more();
                let how = match killed && (here || self.noted.out_of_memory.contains(&rank)) {
                    true => How::OutOfMemory,
                    false => how,
                };
                let mut failure = Failure { rank, how, tail: String::new() };
                let failed = failure.failed();
                let tail = self.files.tail(failed);
                let printed = || self.tails.get(failed as usize).map(|tail| lock(tail).text());
                failure.tail = tail.or_else(printed).unwrap_or_default();
                Ending::Failed(failure)
            }
        }
    }

    /// Says which output may be missing of a job that did not fail by that. Of ranks that were
    /// lost with their hosts, that is known.
    pub(super) fn say_lost(&self, all: Vec<LostOutput>) {
        let missing = all.into_iter().filter_map(|mut lost| {
            lost.ranks.retain(|rank| !self.machine.is_lost(*rank));
            (!lost.ranks.is_empty()).then_some(lost)
        });
        let missing: Vec<_> = missing.collect();
        if !missing.is_empty() {
            self.sink.note(&lines_of(&missing));
        }
    }

    /// Says why the job ended, if not in order.
    pub(super) fn sum_up(&self, ending: &Ending, stuck: &[u32]) {
        let note = match ending {
            Ending::Success | Ending::OutputClosed => String::new(),
            // Said when it was known.
            Ending::InputFailed(_) => String::new(),
            Ending::Failed(failure) => {
                let Failure { rank, how, .. } = failure;
                let printed = match self.files.say(failure.failed()) {
                    Some(said) => said,
                    // The others may have printed much since.
                    None if how.is_crash() && self.spec.ranks > 1 => {
                        let tail = self.error_tails.get(*rank as usize);
                        tail.map(|tail| last_lines(&lock(tail).text())).unwrap_or_default()
                    }
                    None => String::new(),
                };
                let others = match how.ends_all() || self.spec.on_failure == OnFailure::End {
                    _ if self.spec.ranks == 1 => "",
                    true => "; the job was ended",
                    false => "; the others went on",
                };
                let dumped = self.noted.dumped.contains(rank);
                let core = if dumped { core_file(self.spec.dir_of(*rank)) } else { String::new() };
                let host = match how {
                    How::Signal(_) => match self.hosts.name_of(*rank) {
                        Some(host) => format!(" on {host}"),
                        None => format!(" on {}", look::host()),
                    },
                    _ => String::new(),
                };
                format!("rank {rank} {how}{host}{core}{others}{printed}")
            }
            Ending::TimedOut { running } => format!(
                "the job was ended after {} s (--timeout); {}{}",
                self.spec.timeout.unwrap_or_default().as_secs_f64(),
                still_ran(running),
                self.last_words(),
            ),
            Ending::Interrupted(signal) => {
                format!("the job was ended by {}{}", signals::name(*signal), self.last_words())
            }
            Ending::OutputFailed(why) => {
                format!("{why}; the job was ended")
            }
            Ending::OutputLost(all) => lines_of(all),
        };
        if !note.is_empty() {
            self.sink.note(&note);
        }
        if !self.noted.killed.is_empty() && !self.spec.quiet {
            let ranks = named(&self.noted.killed);
            let grace = self.spec.kill_after.as_secs_f64();
            let verb = if self.noted.killed.len() == 1 { "was" } else { "were" };
            self.sink.note(&match self.machine.hurried() {
                true => format!("{ranks} {verb} killed at the second signal"),
                false => format!(
                    "{ranks} did not end by themselves, and {verb} killed (--kill-after {grace})"
                ),
            });
        }
        if !stuck.is_empty() {
            self.sink.note(&format!("{} did not even end when killed", named(stuck)));
        }
    }
}

/// "rank 3", or "ranks 1-4".
pub(super) fn named(ranks: &[u32]) -> String {
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", cpus::ranges(ranks))
}

fn lines_of(all: &[LostOutput]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn still_ran(running: &[u32]) -> String {
    match running {
        [] => "no rank ran yet".to_owned(),
        _ => format!("{} still ran", named(running)),
    }
}

/// Where the kernel puts what it writes of a process that crashed.
fn core_file(dir: Option<&Path>) -> String {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let pattern = pattern.trim();
    match pattern.strip_prefix('|') {
        Some(program) => {
            format!("; its core went to {}", program.split(' ').next().unwrap_or_default())
        }
        // What a pattern stands for, the kernel does not tell.
        None if pattern.contains('%') => {
            format!("; its core file is named after the pattern {pattern}")
        }
        None if pattern.starts_with('/') => format!("; its core file is {pattern}"),
        None => {
            let dir = dir.map(Path::to_owned).or_else(|| std::env::current_dir().ok());
            let path = dir.unwrap_or_default().join(pattern);
            format!("; its core file is {}", path.display())
        }
    }
}
