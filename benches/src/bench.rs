//! What a benchmark works with, in each of its ranks.
use crate::Result;
use crate::benchmarks::NETWORK;
use crate::hop::hop_ns;
use crate::machine::cores;
use crate::measure::{Effort, Pace, Samples, Work, in_turn};
use crate::record::{Limit, Row, Summary, Unit};
use rma::transport::WorldRank;
use rma::{Communicator, Op, Rank, Universe, View, Window, WindowError};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::time::Duration;

/// In a sentence that says what is not measured, and why: it is passed on to the user.
pub(crate) const SKIPPED: &str = "(SKIPPED)";

/// A rank's side of a benchmark.
pub(crate) struct Bench<'u> {
    universe: &'u Universe,
    benchmark: &'static str,
    effort: Effort,
    is_smoke: bool,
    pinned: bool,
    /// Whether load and store do not reach all ranks.
    is_far: bool,
    hop_before: Option<f64>,
    rows: Vec<Row>,
}

/// A row to be measured.
pub(crate) struct Draft {
    name: String,
    bytes: Option<u64>,
    goal: Option<f64>,
}

/// Begins a row.
pub(crate) fn row(name: impl Into<String>) -> Draft {
    Draft { name: name.into(), bytes: None, goal: None }
}

impl Draft {
    /// Each operation moves so many bytes.
    pub(crate) fn bytes(self, bytes: usize) -> Self {
        Self { bytes: Some(bytes as u64), ..self }
    }

    /// At most so many times the first limit, or at most so many of what is counted.
    pub(crate) fn goal(self, goal: f64) -> Self {
        Self { goal: Some(goal), ..self }
    }
}

impl<'u> Bench<'u> {
    /// **Collective.**
    pub(crate) fn new(
        universe: &'u Universe,
        benchmark: &'static str,
        is_smoke: bool,
    ) -> Result<Self> {
        let effort = if is_smoke { Effort::SMOKE } else { Effort::FULL };
        let pinned = all_pinned(universe.world())?;
        let world = universe.world();
        let is_far = (0..world.size()).any(|rank| !world.transport().is_near(WorldRank(rank)));
        let hop_before = if is_far { None } else { Self::hop(world)? };
        let rows = Vec::new();
        Ok(Self { universe, benchmark, effort, is_smoke, pinned, is_far, hop_before, rows })
    }

    /// The rows, on rank 0. **Collective.**
    pub(crate) fn finish(mut self) -> Result<Vec<Row>> {
        let hop_after = if self.is_far { None } else { Self::hop(self.world())? };
        let hop_ns = self.hop_before.zip(hop_after).map(|(before, after)| [before, after]);
        self.rows.iter_mut().for_each(|row| row.finish(hop_ns));
        Ok(self.rows)
    }

    fn hop(world: &Communicator) -> Result<Option<f64>> {
        let is_measured = world.size() == 2 && cores_of(world)? >= 2;
        if is_measured { hop_ns(world).map(Some) } else { Ok(None) }
    }

    pub(crate) fn universe(&self) -> &'u Universe {
        self.universe
    }

    /// Its ranks.
    pub(crate) fn world(&self) -> &'u Communicator {
        self.universe.world()
    }

    /// Serves what has arrived.
    pub(crate) fn progress(&self) -> usize {
        self.universe.progress()
    }

    /// Messages that this rank has sent and has received so far.
    pub(crate) fn messages(&self) -> [u64; 2] {
        let counters = self.universe.counters();
        [counters.messages_sent(), counters.messages_received()]
    }

    /// Whether this rank measures what a single rank does.
    pub(crate) fn is_first(&self) -> bool {
        self.world().rank() == Rank(0)
    }

    pub(crate) fn is_smoke(&self) -> bool {
        self.is_smoke
    }

    /// Whether load and store do not reach all ranks.
    pub(crate) fn is_far(&self) -> bool {
        self.is_far
    }

    /// Refuses a rank that load and store reach from rank 0, or rank 0 from it: what is measured
    /// would not be the network.
    pub(crate) fn needs_far(&self, rank: Rank) -> Result<()> {
        let peer = if self.is_first() { rank } else { Rank(0) };
        let here = self.world().rank();
        if (here == rank || self.is_first())
            && self.world().transport().is_near(WorldRank(u32::from(peer)))
        {
            let name = self.benchmark;
            return Err(format!(
                "{name} is of ranks on nodes of their own, and rank {peer} shares memory with \
                 rank {here}: use rma-run --transport ofi, without nodes of several ranks"
            )
            .into());
        }
        Ok(())
    }

    /// The way that needs no work of a target, as a value of `rma_path`, if there is one.
    /// **Collective.**
    pub(crate) fn direct(&self) -> Result<Option<&'static str>> {
        if !self.is_far {
            return Ok(Some("load_store"));
        }
        // What a device reaches, all ranks agree on when a window is made.
        match self.world().window(1, 8).hint("rma_path", "device")?.allocate() {
            Ok(window) => {
                window.free()?;
                Ok(Some("device"))
            }
            Err(WindowError::NoPath { why, .. }) => {
                if self.is_first() {
                    let name = self.benchmark;
                    eprintln!("{name} is not measured by a device {SKIPPED}: it has {why}");
                }
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The ways that put and get can go, as values of `rma_path`. **Collective.**
    pub(crate) fn ways(&self) -> Result<impl Iterator<Item = &'static str> + use<>> {
        Ok(self.direct()?.into_iter().chain(["messages"]))
    }

    /// The part of `rank` where load and store reach it, otherwise as much memory of this rank:
    /// limits that use it are not measured then.
    pub(crate) fn part<'w>(&self, window: &'w Window, rank: Rank) -> Result<View<'w>> {
        let rank = if self.is_far { self.world().rank() } else { rank };
        Ok(window.shared_query(rank)?)
    }

    /// Fewer batches, because each takes long.
    pub(crate) fn set_rounds(&mut self, rounds: usize) {
        self.effort.rounds = rounds.min(self.effort.rounds);
    }

    /// Longer batches, because the scheduler takes part.
    pub(crate) fn set_batch(&mut self, batch: Duration) {
        if !self.is_smoke {
            self.effort.batch = batch;
        }
    }

    /// What one rank does alone goes on for so long before each batch.
    pub(crate) fn settle(&mut self, span: Duration) {
        if !self.is_smoke {
            self.effort.settle = span;
        }
    }

    /// Measures what this rank does while the others wait elsewhere.
    pub(crate) fn alone(
        &mut self,
        draft: Draft,
        ours: Work<'_>,
        limits: &mut [(&str, Work<'_>)],
    ) -> Result<()> {
        self.measure(Pace::Alone, draft, ours, limits)
    }

    /// Measures what all ranks do together. **Collective.**
    pub(crate) fn together(
        &mut self,
        draft: Draft,
        ours: Work<'_>,
        limits: &mut [(&str, Work<'_>)],
    ) -> Result<()> {
        self.measure(Pace::Together(self.universe.world()), draft, ours, limits)
    }

    fn measure(
        &mut self,
        pace: Pace<'_>,
        draft: Draft,
        ours: Work<'_>,
        limits: &mut [(&str, Work<'_>)],
    ) -> Result<()> {
        // Limits of memory say nothing of a network, which has those of its own benchmarks.
        let is_measured = !self.is_far || self.benchmark.starts_with(NETWORK);
        let (limits, draft) = match is_measured {
            true => (limits, draft),
            false => (&mut [][..], Draft { goal: None, ..draft }),
        };
        let (names, mut works): (Vec<&str>, Vec<Work<'_>>) =
            limits.iter_mut().map(|(name, work)| (*name, &mut **work as Work<'_>)).unzip();
        works.push(ours);
        let mut samples = in_turn(self.effort, pace, &mut works)?;
        let Some(ours) = samples.pop() else { return Ok(()) };
        let limit = |(name, samples): (&str, &Samples)| Limit {
            name: name.to_owned(),
            summary: samples.summary(),
            ratio: ours.ratio(samples),
        };
        let limits = names.into_iter().zip(&samples).map(limit).collect();
        self.push(draft, Unit::Nanoseconds, ours.summary(), limits)
    }

    /// Measures a transfer and a computation together, next to each of them alone, and notes which
    /// share of the shorter one is hidden behind the longer: none if both take as long as one
    /// after the other, all if as long as the longer.
    pub(crate) fn hidden(
        &mut self,
        draft: Draft,
        both: Work<'_>,
        alone: [(&str, Work<'_>); 2],
    ) -> Result<()> {
        let [(one_name, one), (other_name, other)] = alone;
        let samples = in_turn(self.effort, Pace::Alone, &mut [one, other, both])?;
        let [one, other, both] = &samples[..] else { return Ok(()) };
        let limit = |name: &str, samples: &Samples| {
            let (summary, ratio) = (samples.summary(), both.ratio(samples));
            Limit { name: name.to_owned(), summary, ratio }
        };
        let limits = vec![limit(one_name, one), limit(other_name, other)];
        let shares = one.ns.iter().zip(&other.ns).zip(&both.ns);
        let shares = shares
            .map(|((one, other), both)| ((one + other - both) / one.min(*other)).clamp(0.0, 1.0));
        let shares: Vec<f64> = shares.collect();
        let name = draft.name.clone();
        let time = Draft { name: format!("{name}, with computation"), ..draft };
        self.push(time, Unit::Nanoseconds, both.summary(), limits)?;
        self.note(row(format!("{name}: share that is hidden")), Unit::Share, &shares)
    }

    /// Notes figures that were measured otherwise.
    pub(crate) fn note(&mut self, draft: Draft, unit: Unit, values: &[f64]) -> Result<()> {
        self.push(draft, unit, Summary::of(values, 1), Vec::new())
    }

    /// The same, in turn with those of limits.
    pub(crate) fn note_beside(
        &mut self,
        draft: Draft,
        unit: Unit,
        ours: &[f64],
        limits: &[(&str, &[f64])],
    ) -> Result<()> {
        let limit = |(name, limit): &(&str, &[f64])| {
            let ratios = ours.iter().zip(*limit).map(|(ours, limit)| unit.ratio(*ours, *limit));
            let ratio = Summary::of(&ratios.collect::<Vec<_>>(), 0).median;
            Limit { name: (*name).to_owned(), summary: Summary::of(limit, 1), ratio }
        };
        // A limit of memory that is not near has no figures.
        let limits = limits.iter().filter(|(_, limit)| !limit.is_empty());
        self.push(draft, unit, Summary::of(ours, 1), limits.map(limit).collect())
    }

    fn push(&mut self, draft: Draft, unit: Unit, ours: Summary, limits: Vec<Limit>) -> Result<()> {
        if !self.is_first() {
            return Ok(());
        }
        let row = Row {
            benchmark: self.benchmark.to_owned(),
            name: draft.name,
            ranks: self.world().size(),
            launch: 1,
            bytes: draft.bytes,
            unit,
            ours,
            limits,
            peers: Vec::new(),
            lost: Vec::new(),
            goal: draft.goal,
            hop_ns: None,
            pinned: self.pinned,
            noisy: false,
        };
        if let Some(complaint) = row.complaint() {
            return Err(complaint.into());
        }
        self.rows.push(row);
        Ok(())
    }
}

/// Whether every rank may run on a single CPU, which is no other rank's. **Collective.**
fn all_pinned(world: &Communicator) -> Result<bool> {
    let set = sched_getaffinity(None)?;
    let mine: Vec<u32> =
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u32).collect();
    let only = if let [only] = mine[..] { only } else { u32::MAX };
    let mut all = world.allgather(&[only])?;
    all.sort_unstable();
    all.dedup();
    Ok(all.len() == world.size() as usize && !all.contains(&u32::MAX))
}

/// CPUs that the ranks may use together, where that can be told: as many as there are ranks if
/// they are pinned, otherwise those of the poorest rank. **Collective.**
fn cores_of(world: &Communicator) -> Result<u64> {
    let least = world.allreduce(&[cores() as u64], Op::Min)?[0];
    Ok(if all_pinned(world)? { u64::from(world.size()) } else { least })
}
