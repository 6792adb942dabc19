//! What the launcher sees of its job when it is asked.

use std::os::fd::AsFd;

use super::driver::Driver;
use super::query::{self, JobView, RankView, Usage};

impl Driver<'_> {
    /// The job as it is now.
    pub(super) fn look(&self) -> JobView {
        let told = match &self.bulletin {
            Some(bulletin) => query::read(bulletin.as_fd(), self.spec.ranks),
            None => (0..self.spec.ranks).map(|_| None).collect(),
        };
        let ranks = told.into_iter().zip(0..).map(|(told, rank)| {
            let process = self.joined.get(rank as usize).copied().flatten();
            let process = process.or_else(|| self.processes.id(rank));
            let stage = self.machine.stage(rank, self.gather.waits(rank));
            let host = self.hosts.name_of(rank);
            // The number of a process means nothing on another machine.
            let usage = process.filter(|_| host.is_none()).and_then(Usage::of);
            RankView { stage, host: host.map(str::to_owned), process, usage, told }
        });
        let programs = self.spec.programs();
        let programs = programs.iter().map(|program| program.program.to_string_lossy());
        let programs: Vec<_> = programs.collect();
        JobView {
            launcher: std::process::id(),
            name: self.spec.name.clone(),
            program: programs.join(" : "),
            host: host(),
            age: self.started.elapsed(),
            ranks: ranks.collect(),
        }
    }

    /// Keeps what ranks do before they are asked to end, for whoever asks why they did not before.
    pub(super) fn look_before_the_end(&mut self) {
        if self.noted.last_look.is_none() && !self.spec.quiet && self.machine.anyone_joined() {
            self.noted.last_look = Some(self.look());
        }
    }

    /// What they did then, in lines.
    pub(super) fn last_words(&self) -> String {
        let lines = self.noted.last_look.iter().flat_map(query::lines);
        lines.map(|line| format!("\n  {line}")).collect()
    }
}

/// The machine's name.
pub(super) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
