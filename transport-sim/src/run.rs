//! Runs one closure as all ranks of a network.

#[cfg(not(miri))]
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use rma_core::transport::WorldRank;

use crate::failure::{Cause, SimFailure};
use crate::net::Evicted;
use crate::{Net, NetConfig, Sim, Trace};

/// A run and what is known about it.
#[derive(Debug)]
pub struct Run<R> {
    /// What the ranks returned, by rank, or why the run failed.
    pub outcome: Result<Vec<R>, SimFailure>,
    /// What happened.
    pub trace: Trace,
}

/// Runs `body` as every rank of the network `config` and returns the results by rank.
///
/// A rank whose body returns departs in order, unless it departed before. A rank whose body
/// panics fails; the others see it through `failed()`, and the run reports the panic.
///
/// # Errors
///
/// A panic, a deadlock or a livelock, with the seed that replays it.
pub fn run<R: Send>(
    config: &NetConfig,
    body: impl Fn(Sim) -> R + Sync,
) -> Result<Vec<R>, SimFailure> {
    run_traced(config, body).outcome
}

/// As [`run`], and tells what happened.
pub fn run_traced<R: Send>(config: &NetConfig, body: impl Fn(Sim) -> R + Sync) -> Run<R> {
    let net = match Net::new(*config) {
        Ok(net) => net,
        Err(error) => {
            let NetConfig { seed, ranks, .. } = *config;
            let (cause, trace) = (Cause::Config(error), Trace::default());
            let failure = SimFailure { seed, ranks, cause, panics: Vec::new(), trace };
            return Run { outcome: Err(failure), trace };
        }
    };
    let results = start(&net, &body);
    net.join_agents();
    let trace = net.trace();
    let outcome = match (net.failure(), results) {
        (None, Some(results)) => Ok(results),
        (Some(failure), _) => Err(failure),
        (None, None) => unreachable!("a rank without a result has left a failure"),
    };
    Run { outcome, trace }
}

/// Starts the threads and waits for them: the results, if every rank has one.
fn start<R: Send>(net: &Net, body: &(impl Fn(Sim) -> R + Sync)) -> Option<Vec<R>> {
    let ranks = net.rank_count();
    thread::scope(|scope| {
        let mut threads = Vec::with_capacity(ranks as usize);
        let one_cpu = OneCpu::new();
        for rank in 0..ranks {
            let sim = net.rank(WorldRank(rank));
            let thread = thread::Builder::new().name(format!("rank {rank}"));
            match thread.spawn_scoped(scope, move || play(sim, body)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    net.cancel(Cause::Threads { started: rank, reason: error.to_string() });
                    break;
                }
            }
        }
        drop(one_cpu);
        // `play` catches what the body throws.
        let join = |thread: thread::ScopedJoinHandle<'_, Option<R>>| thread.join().ok().flatten();
        threads.into_iter().map(join).collect()
    })
}

/// Is one rank: its result, unless it panicked or the run did not start.
fn play<R>(sim: Sim, body: &impl Fn(Sim) -> R) -> Option<R> {
    let seat = sim.try_enter()?;
    match catch_unwind(AssertUnwindSafe(|| body(sim))) {
        Ok(result) => Some(result),
        Err(payload) => {
            seat.fail(message(payload.as_ref()));
            None
        }
    }
}

/// What a panic said; nothing if the simulation itself unwound the rank.
pub(crate) fn message(payload: &(dyn Any + Send)) -> Option<String> {
    if payload.is::<Evicted>() {
        return None;
    }
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    Some(text.unwrap_or("(a payload that is not text)").to_owned())
}

/// Threads that the calling one starts meanwhile stay on the CPU that it is on now: one of them
/// works at a time, and to wake the next on another CPU takes longer than what it does then. The
/// caller may go where it might before, once this is dropped.
#[cfg(not(miri))]
struct OneCpu(Option<CpuSet>);

#[cfg(not(miri))]
impl OneCpu {
    /// Where the system refuses, threads run where they may.
    fn new() -> Self {
        let Ok(before) = sched_getaffinity(None) else { return Self(None) };
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        Self(sched_setaffinity(None, &one).is_ok().then_some(before))
    }
}

#[cfg(not(miri))]
impl Drop for OneCpu {
    fn drop(&mut self) {
        // It was taken before; where it is refused now, the caller stays.
        self.0.iter().for_each(|before| _ = sched_setaffinity(None, before));
    }
}

/// Miri runs one thread at a time by itself.
#[cfg(miri)]
struct OneCpu;

#[cfg(miri)]
impl OneCpu {
    fn new() -> Self {
        Self
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::{run, sched_getaffinity};
    use crate::NetConfig;

    #[test]
    fn ranks_share_a_cpu_and_their_caller_is_let_go() {
        let before = sched_getaffinity(None).unwrap();
        let sets = run(&NetConfig::new(3, 1), |_| sched_getaffinity(None).unwrap()).unwrap();
        assert!(sets.iter().all(|set| set.count() == 1 && *set == sets[0]), "{sets:?}");
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
