//! Waiting for a value in a part that load and store reach.
use super::View;
use crate::element::AtomicElement;
use crate::engine::{Cause, On, Wait, grant};
use crate::error::RmaError;
use crate::integer::Integer;
use crate::memory::target::Span;
use bytemuck::bytes_of_mut;
use core::sync::atomic::Ordering::Acquire;
use core::sync::atomic::fence;
use core::time::Duration;

/// How often a thread that sleeps looks whether its value has come, in the long run: a rank that
/// stores one does not know which ranks wait for it.
const RECHECK: Duration = Duration::from_millis(1);

/// Waiting for a value that others store, by whatever operation or by a view.
impl View<'_> {
    /// Waits until the value at displacement `disp` satisfies the predicate, and returns it.
    ///
    /// When it is seen, so is everything that was done before it was stored: what was put and
    /// flushed, or combined. (A neighbour that stores both through a view calls
    /// [`Window::sync`](crate::Window::sync) in between.) Each look is an atomic load. Any rank
    /// with a view of the part may wait, and any number of threads.
    ///
    /// The wait makes progress: what messages bring, it sees at once. Of what is stored without
    /// one, no rank tells: it spins, then sleeps and looks again by itself, first after 20 us, each
    /// time half as long again, at last each ms. So it leaves the CPU to others, and sees a value
    /// that came late a third of what it had waited later, 1 ms at most.
    ///
    /// The predicate is asked again and again, and is not to wait itself.
    ///
    /// # Errors
    ///
    /// At once [`RmaError::OutOfRange`], or [`RmaError::Misaligned`]: a value lies at a multiple of
    /// its size. As the value may come from any rank of the window, [`RmaError::PeerFailed`] if a
    /// rank of the job failed, [`RmaError::PeerLeft`] if all others of the window have left; of a
    /// window of one rank, its other threads may store it. [`RmaError::Left`] if this rank has
    /// left, [`RmaError::Timeout`] after [`Config::wait_timeout`](crate::Config::wait_timeout). A
    /// value that is there is returned, whatever became of the others.
    ///
    /// This is `shmem_wait_until` (OpenSHMEM 1.5, section 9.10); MPI has loads and
    /// [`MPI_Win_sync`](crate::Window::sync) for it (MPI 4.1, section 12.7).
    pub fn wait_until<E: AtomicElement>(
        &self,
        disp: impl Integer,
        mut predicate: impl FnMut(E) -> bool,
    ) -> Result<E, RmaError> {
        let spans = [self.aligned::<E>(disp.to_u64())?];
        let awaited = Awaited { view: self, spans: &spans };
        awaited.wait(None, || awaited.first(&mut |_, value| predicate(value)).map(|it| it.1))
    }

    /// As [`wait_until`](Self::wait_until), for `timeout` at most: `None` then. With a `timeout` of
    /// zero it is [`test`](Self::test).
    ///
    /// [`RmaError::Timeout`] only if the deadline of the configuration comes first.
    pub fn wait_until_for<E: AtomicElement>(
        &self,
        disp: impl Integer,
        timeout: Duration,
        mut predicate: impl FnMut(E) -> bool,
    ) -> Result<Option<E>, RmaError> {
        let spans = [self.aligned::<E>(disp.to_u64())?];
        let awaited = Awaited { view: self, spans: &spans };
        let first = || awaited.first(&mut |_, value| predicate(value)).map(|it| it.1);
        awaited.wait_for(timeout, first)
    }

    /// Waits until one of the values at `disps` satisfies the predicate; returns its place in the
    /// list, and the value (`shmem_wait_until_any`). Of an empty list it is `None`, at once.
    ///
    /// Of several that do, it is the first in the list: begin the next list elsewhere if all are to
    /// have their turn.
    pub fn wait_until_any<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Option<(usize, E)>, RmaError> {
        if disps.is_empty() {
            return Ok(None);
        }
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        awaited.wait(None, || awaited.first(&mut predicate)).map(Some)
    }

    /// As [`wait_until_any`](Self::wait_until_any), for `timeout` at most: `None` then, and at once
    /// of an empty list. With a `timeout` of zero it is [`test_any`](Self::test_any).
    ///
    /// [`RmaError::Timeout`] only if the deadline of the configuration comes first.
    pub fn wait_until_any_for<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        timeout: Duration,
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Option<(usize, E)>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        awaited.wait_for(timeout, || awaited.first(&mut predicate))
    }

    /// Waits until each of the values at `disps` has satisfied the predicate; returns them as they
    /// were then (`shmem_wait_until_all`). Of an empty list there are none, at once.
    ///
    /// Each does so at some time during the call: they are looked at one after the other, and not
    /// again.
    pub fn wait_until_all<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Vec<E>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        let mut found = Vec::with_capacity(disps.len());
        awaited.wait(None, || awaited.all(&mut found, &mut predicate).then_some(()))?;
        Ok(found)
    }

    /// As [`wait_until_all`](Self::wait_until_all), for `timeout` at most: `None` if one of them
    /// has not satisfied the predicate by then. With a `timeout` of zero it is
    /// [`test_all`](Self::test_all).
    ///
    /// [`RmaError::Timeout`] only if the deadline of the configuration comes first.
    pub fn wait_until_all_for<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        timeout: Duration,
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Option<Vec<E>>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        let mut found = Vec::with_capacity(disps.len());
        let all =
            awaited.wait_for(timeout, || awaited.all(&mut found, &mut predicate).then_some(()))?;
        Ok(all.map(|()| found))
    }

    /// Waits until at least one of the values at `disps` satisfies the predicate; returns all that
    /// do, with their places in the list, in its order (`shmem_wait_until_some`). Of an empty list
    /// there are none, at once.
    pub fn wait_until_some<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Vec<(usize, E)>, RmaError> {
        if disps.is_empty() {
            return Ok(Vec::new());
        }
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        awaited.wait(None, || awaited.some(&mut predicate))
    }

    /// As [`wait_until_some`](Self::wait_until_some), for `timeout` at most: there are none then.
    /// With a `timeout` of zero it is [`test_some`](Self::test_some).
    ///
    /// [`RmaError::Timeout`] only if the deadline of the configuration comes first.
    pub fn wait_until_some_for<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        timeout: Duration,
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Vec<(usize, E)>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        Ok(awaited.wait_for(timeout, || awaited.some(&mut predicate))?.unwrap_or_default())
    }

    /// The value at displacement `disp` if it satisfies the predicate now; otherwise `None`, after
    /// some progress (`shmem_test`).
    ///
    /// It may be called for ever, for as long as others take part: there is no deadline. A loop of
    /// it should do something else meanwhile, or yield.
    pub fn test<E: AtomicElement>(
        &self,
        disp: impl Integer,
        mut predicate: impl FnMut(E) -> bool,
    ) -> Result<Option<E>, RmaError> {
        let spans = [self.aligned::<E>(disp.to_u64())?];
        let awaited = Awaited { view: self, spans: &spans };
        awaited.test(|| awaited.first(&mut |_, value| predicate(value)).map(|it| it.1))
    }

    /// As [`test`](Self::test), of several: the first in the list that satisfies the predicate
    /// (`shmem_test_any`).
    pub fn test_any<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Option<(usize, E)>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        awaited.test(|| awaited.first(&mut predicate))
    }

    /// As [`test`](Self::test), of several: the values, if each of them satisfies the predicate
    /// (`shmem_test_all`). Those of an empty list do.
    pub fn test_all<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Option<Vec<E>>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        awaited.test(|| {
            let mut found = Vec::with_capacity(disps.len());
            awaited.all(&mut found, &mut predicate).then_some(found)
        })
    }

    /// As [`test`](Self::test), of several: all that satisfy the predicate, perhaps none, with
    /// their places in the list (`shmem_test_some`).
    pub fn test_some<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
        mut predicate: impl FnMut(usize, E) -> bool,
    ) -> Result<Vec<(usize, E)>, RmaError> {
        let spans = self.all_aligned::<E>(disps)?;
        let awaited = Awaited { view: self, spans: &spans };
        Ok(awaited.test(|| awaited.some(&mut predicate))?.unwrap_or_default())
    }

    fn aligned<E: AtomicElement>(&self, disp: u64) -> Result<Span<'_>, RmaError> {
        let width = size_of::<E>();
        let span = self.checked(disp, width)?;
        let misaligned = || self.window.misaligned_cold(self.rank, disp, width);
        if span.is_aligned(width) { Ok(span) } else { Err(misaligned()) }
    }

    fn all_aligned<E: AtomicElement>(
        &self,
        disps: &[impl Integer],
    ) -> Result<Vec<Span<'_>>, RmaError> {
        disps.iter().map(|disp| self.aligned::<E>(disp.to_u64())).collect()
    }
}

/// Values that are waited for: they lie in the part, and are aligned. S-M1 S-N5
struct Awaited<'v> {
    view: &'v View<'v>,
    spans: &'v [Span<'v>],
}

impl Awaited<'_> {
    fn load<E: AtomicElement>(&self, span: Span<'_>) -> E {
        let mut value = E::zeroed();
        // In the simulator, a step of it.
        self.view.looks();
        span.read(bytes_of_mut(&mut value));
        // pairs with the fence of the flush, or of `Window::sync`, before the value was stored.
        fence(Acquire);
        value
    }

    /// All values, with their places.
    fn values<E: AtomicElement>(&self) -> impl Iterator<Item = (usize, E)> {
        self.spans.iter().map(|span| self.load(*span)).enumerate()
    }

    fn first<E: AtomicElement>(
        &self,
        predicate: &mut impl FnMut(usize, E) -> bool,
    ) -> Option<(usize, E)> {
        self.values().find(|(at, value)| predicate(*at, *value))
    }

    fn some<E: AtomicElement>(
        &self,
        predicate: &mut impl FnMut(usize, E) -> bool,
    ) -> Option<Vec<(usize, E)>> {
        let some: Vec<_> = self.values().filter(|(at, value)| predicate(*at, *value)).collect();
        (!some.is_empty()).then_some(some)
    }

    /// Whether `found` has all of them: goes on where it ends.
    fn all<E: AtomicElement>(
        &self,
        found: &mut Vec<E>,
        predicate: &mut impl FnMut(usize, E) -> bool,
    ) -> bool {
        let rest = self.spans.iter().enumerate().skip(found.len());
        let values = rest.map(|(at, span)| (at, self.load(*span)));
        found.extend(values.take_while(|(at, value)| predicate(*at, *value)).map(|it| it.1));
        found.len() == self.spans.len()
    }

    fn on_anyone(&self, until: Option<Duration>) -> Wait<'_> {
        let on = On::AnyOf(self.view.window.group());
        let wait = Wait::new("a wait for a value", on);
        Wait { recheck: Some(RECHECK), soon: true, until, ..wait }
    }

    fn wait<R>(
        &self,
        until: Option<Duration>,
        done: impl FnMut() -> Option<R>,
    ) -> Result<R, RmaError> {
        let (window, wait) = (self.view.window, self.on_anyone(until));
        if !grant::wait(until) {
            let cause = Cause::Timeout;
            return Err(window.wait_failed(window.engine().given_up(wait, cause)));
        }
        // wait: value
        window.engine().wait_until(wait, done).map_err(|error| window.wait_failed(error))
    }

    /// For `timeout` at most, and not at all for none of them.
    fn wait_for<R>(
        &self,
        timeout: Duration,
        done: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, RmaError> {
        if timeout.is_zero() || self.spans.is_empty() {
            return self.test(done);
        }
        let sleep = &self.view.window.engine().transport.sleep;
        let until = sleep.now().saturating_add(timeout);
        match self.wait(Some(until), done) {
            Err(RmaError::Timeout { .. }) if sleep.now() >= until => Ok(None),
            waited => waited.map(Some),
        }
    }

    /// Looks, makes progress, and looks again.
    fn test<R>(&self, mut done: impl FnMut() -> Option<R>) -> Result<Option<R>, RmaError> {
        if let Some(value) = done() {
            return Ok(Some(value));
        }
        if self.spans.is_empty() {
            return Ok(None);
        }
        let (window, wait) = (self.view.window, self.on_anyone(None));
        // Before the last look, which sees what others did before they left.
        let trouble = window.engine().progress_or_trouble(wait);
        match (done(), trouble) {
            (None, Some(cause)) => Err(window.wait_failed(window.engine().given_up(wait, cause))),
            (value, _) => Ok(value),
        }
    }
}
