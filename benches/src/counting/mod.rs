//! What work costs, as far as it can be counted: no clock, and no noise where no thread waits.
mod allocations;
mod tracer;

use crate::Result;
use crate::measure::Work;
pub(crate) use allocations::allocations;
use perf_event::Builder;
use perf_event::events::{Event, Hardware};
pub(crate) use tracer::serve;
use tracer::{Tracer, What};

/// The counters of this machine, for the thread that made them.
pub(crate) struct Counting {
    perf: Option<perf_event::Counter>,
    tracer: Option<Tracer>,
}

impl Counting {
    pub(crate) fn start() -> Self {
        Self { perf: counter(Hardware::INSTRUCTIONS), tracer: Tracer::start() }
    }

    /// How instructions are counted here, if they can be.
    pub(crate) fn how(&self) -> &'static str {
        if self.perf.is_some() { "by perf" } else { "step by step" }
    }

    /// Instructions of this thread, outside the kernel, for one operation.
    pub(crate) fn instructions(&mut self, n: u64, work: Work<'_>) -> Result<Option<f64>> {
        let Self { perf, tracer } = self;
        match (perf, tracer) {
            (Some(perf), _) => each(n, |n| during(perf, || work(n))).map(Some),
            (None, Some(tracer)) => each(n, |n| tracer.count(What::Steps, || work(n))).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// System calls of this thread for one operation.
    pub(crate) fn system_calls(&mut self, n: u64, work: Work<'_>) -> Result<Option<f64>> {
        let tracer = self.tracer.as_mut();
        let count = |tracer: &mut Tracer| each(n, |n| tracer.count(What::Calls, || work(n)));
        tracer.map(count).transpose()
    }

    /// Instructions of this thread that let nothing overtake the stores before them, for one
    /// operation; where they are known.
    pub(crate) fn fences(&mut self, n: u64, work: Work<'_>) -> Result<Option<f64>> {
        let tracer = self.tracer.as_mut().filter(|_| cfg!(target_arch = "x86_64"));
        let count = |tracer: &mut Tracer| each(n, |n| tracer.count(What::Fences, || work(n)));
        tracer.map(count).transpose()
    }
}

/// Of one operation: what `n` more of them add. What comes once, with the counting itself, does
/// not count.
fn each(n: u64, mut count: impl FnMut(u64) -> Result<u64>) -> Result<f64> {
    let (once, twice) = (count(n)?, count(2 * n)?);
    Ok(twice.saturating_sub(once) as f64 / n as f64)
}

/// Of this thread; none where the kernel does not let it, or has no such counter.
fn counter(event: impl Event) -> Option<perf_event::Counter> {
    Builder::new(event).build().ok()
}

fn during(counter: &mut perf_event::Counter, work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let before = counter.read()?;
    counter.enable()?;
    let done = work();
    counter.disable()?;
    done?;
    Ok(counter.read()? - before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;
    use std::hint::black_box;

    #[test]
    fn what_comes_once_does_not_count() {
        assert_eq!(each(10, |n| Ok(100 + 3 * n)).unwrap(), 3.0);
        assert_eq!(each(10, |n| Ok(20 - n)).unwrap(), 0.0, "noise is not less than nothing");
    }

    /// By an event that every machine has, where the kernel lets it.
    #[test]
    fn a_counter_counts_while_work_is_done() {
        let Some(mut faults) = counter(Software::PAGE_FAULTS) else { return };
        let touch = |pages: usize| {
            move || {
                black_box(vec![1u8; pages << 12]);
                Ok(())
            }
        };
        let few = during(&mut faults, touch(0)).unwrap();
        let many = during(&mut faults, touch(1 << 10)).unwrap();
        assert!(many >= few, "{many} faults of 4 MiB, {few} of none");
    }
}
