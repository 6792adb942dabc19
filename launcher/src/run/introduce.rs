//! What the user is told before ranks run, or when it is known where.

use std::net::SocketAddr;
use std::time::Duration;

use super::bootstrap::Plan;
use super::cpus;
use super::driver::Driver;
use super::program;
use super::spec::{Bind, Spec};

/// Places of ranks that are written out.
const PLACES_SHOWN: usize = 32;

impl Driver<'_> {
    /// Says what there is to say before the first rank runs.
    pub(super) fn introduce(
        &self,
        plan: &Plan,
        cpus: &[u32],
        programs: &[program::Found],
        address: SocketAddr,
        room: &str,
    ) {
        let (ranks, cores) = (self.spec.ranks, cpus.len());
        // As ranks take it.
        let shared = self.spec.config.cpus.unwrap_or(cores as u32);
        let over = ranks > shared;
        if over && !self.spec.oversubscribe && !self.spec.quiet {
            self.sink.note(&format!(
                "{ranks} ranks share {shared} CPUs: waiting ranks will sleep instead of spinning \
                 (--oversubscribe says that this is meant)"
            ));
        }
        if !self.spec.explain {
            return;
        }
        let waiting = match over {
            true => "ranks sleep at once (more ranks than CPUs)",
            false => "ranks spin briefly, yield, then sleep",
        };
        let nodes = match self.spec.nodes() {
            1 => "this machine".to_owned(),
            nodes => format!(
                "{nodes} of {} ranks each, pretended: messages only between them",
                ranks.div_ceil(nodes)
            ),
        };
        let binding = self.binding(plan);
        let mpi = match self.spec.pmi {
            true => "served by PMI-1 at PMI_FD (--no-pmi does without)",
            false => "not served (--no-pmi)",
        };
        let limit = |limit: Option<Duration>| match limit {
            Some(limit) => format!("{} s", limit.as_secs_f64()),
            None => "none".to_owned(),
        };
        for (program, file) in programs {
            let from = match program.first {
                0 => String::new(),
                first => format!(", from rank {first} on"),
            };
            self.sink.note(&format!("explain: program {}{from}", file.display()));
        }
        self.sink.note(&format!(
            "explain: {ranks} ranks on {cores} CPUs ({}), oversubscribed: {over}\n\
             explain: nodes: {nodes}\n\
             explain: binding: {binding}\n\
             explain: bootstrap: {address}, hello keyed with a secret of this job\n\
             explain: programs of MPI: {mpi}\n\
             explain: waiting: {waiting}; longest wait: {}\n\
             explain: time limit of the job: {}\n\
             explain: room: {room}",
            cpus::ranges(cpus),
            limit(self.spec.wait_timeout),
            limit(self.spec.timeout),
        ));
    }

    /// On which CPUs of this machine ranks are.
    fn binding(&self, plan: &Plan) -> String {
        let Spec { bind, map_by, .. } = self.spec;
        if *bind == Bind::None {
            return "none".to_owned();
        }
        let places = plan.places.iter().take(PLACES_SHOWN).map(|place| cpus::ranges(place));
        let places = places.collect::<Vec<_>>().join("; ");
        let more = match plan.places.len() {
            0..=PLACES_SHOWN => String::new(),
            count => format!("; … {count} places"),
        };
        format!("{bind}, mapped by {map_by} (ranks in turn on CPUs {places}{more})")
    }

    /// The same, of hosts, as soon as all are known.
    pub(super) fn introduce_hosts(&mut self) {
        if self.noted.is_introduced {
            return;
        }
        let Some((over, lines)) = self.hosts.map() else { return };
        self.noted.is_introduced = true;
        if over && !self.spec.oversubscribe && !self.spec.quiet {
            self.sink.note(
                "some hosts have fewer CPUs than ranks: waiting ranks will sleep there instead of \
                 spinning (--oversubscribe says that this is meant)",
            );
        }
        if self.spec.explain {
            let Spec { bind, map_by, .. } = self.spec;
            self.sink.note(&match bind {
                Bind::None => "explain: binding: none".to_owned(),
                _ => format!(
                    "explain: binding: {bind}, mapped by {map_by} (on each host, its ranks in turn)"
                ),
            });
            lines.iter().for_each(|line| self.sink.note(&format!("explain: {line}")));
        }
    }
}
