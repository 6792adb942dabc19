//! What the launcher sees of its job when it is asked.

use std::os::fd::AsFd;

use tokio::sync::oneshot;

use super::driver::{Driver, Input};
use super::query::{self, JobView, RankView, Seen};

impl Driver<'_> {
    /// The job as it is now; ranks on other hosts as these have told when they were
    /// [asked](super::hosts::Hosts::look) that, or later.
    pub(super) fn look(&self, number: u32) -> JobView {
        let seen = if self.hosts.is_empty() {
            let process = |rank: u32| {
                let joined = self.joined.get(rank as usize).copied().flatten();
                joined.or_else(|| self.processes.id(rank))
            };
            let bulletin = self.bulletin.as_ref().map(AsFd::as_fd);
            query::see(bulletin, self.spec.ranks, 0..self.spec.ranks, process)
        } else {
            self.hosts.seen(number)
        };
        let ranks = seen.into_iter().zip(0..).map(|(seen, rank)| {
            let Seen { process, usage, told } = seen;
            let stage = self.machine.stage(rank, self.gather.waits(rank));
            let host = self.hosts.name_of(rank).map(str::to_owned);
            RankView { stage, host, process, usage, told }
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

    /// Asks hosts what their ranks do, before the answer is given.
    pub(super) fn query_hosts(&mut self, answer: oneshot::Sender<JobView>) {
        let (looked, inputs) = (self.hosts.look(), self.sender.clone());
        tokio::spawn(async move {
            let number = looked.await;
            // The driver is gone only when the job is over.
            let _ = inputs.send(Input::Looked { number, answer });
        });
    }

    /// Keeps what ranks do before they are asked to end, for a user who asks why they did not
    /// before.
    pub(super) async fn look_before_the_end(&mut self) {
        if self.noted.last_look.is_none() && !self.spec.quiet && self.machine.anyone_joined() {
            let number = self.hosts.look().await;
            self.noted.last_look = Some(self.look(number));
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
