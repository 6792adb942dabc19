//! What the launcher sees of its job when it is asked.

use std::os::fd::AsFd;

use super::driver::Driver;
use super::query::{self, JobView, RankView, Usage};

impl Driver<'_> {
    /// The job as it is now.
    pub(super) fn look(&self) -> JobView {
        let told = query::read(self.bulletin.as_fd(), self.spec.ranks);
        let ranks = told.into_iter().zip(0..).map(|(told, rank)| {
            let process = self.joined.get(rank as usize).copied().flatten();
            let process = process.or_else(|| self.processes.id(rank));
            let stage = self.machine.stage(rank, self.gather.waits(rank));
            // Of a process of another host, this one knows the number only.
            let usage = process.filter(|_| self.hosts.is_empty()).and_then(Usage::of);
            RankView { stage, process, usage, told }
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
        if self.last_look.is_none() && !self.spec.quiet && self.machine.anyone_joined() {
            self.last_look = Some(self.look());
        }
    }

    /// Where a rank runs.
    pub(super) fn host_of(&self, rank: u32) -> String {
        self.hosts.name_of(rank).map_or_else(host, str::to_owned)
    }

    /// What they did then, in lines.
    pub(super) fn last_words(&self) -> String {
        let lines = self.last_look.iter().flat_map(query::lines);
        lines.map(|line| format!("\n  {line}")).collect()
    }
}

/// The machine's name.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
