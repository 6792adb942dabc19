//! Waiting for a value in a part that load and store reach.
use super::View;
use crate::element::AtomicElement;
use crate::engine::{Cause, On, Wait, grant};
use crate::error::RmaError;
use crate::memory::target::Span;
use bytemuck::bytes_of_mut;
use core::sync::atomic::Ordering::Acquire;
use core::sync::atomic::fence;
use core::time::Duration;

/// How often a thread that sleeps looks whether its value has come, in the long run: a rank that
/// stores one does not know which ranks wait for it.
const RECHECK: Duration = Duration::from_millis(1);

/// Values that are waited for: they lie in the part, and are aligned. S-M1 S-N5
pub(super) struct Awaited<'v> {
    pub(super) view: &'v View<'v>,
    pub(super) spans: &'v [Span<'v>],
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

    pub(super) fn first<E: AtomicElement>(
        &self,
        predicate: &mut impl FnMut(usize, E) -> bool,
    ) -> Option<(usize, E)> {
        self.values().find(|(at, value)| predicate(*at, *value))
    }

    pub(super) fn some<E: AtomicElement>(
        &self,
        predicate: &mut impl FnMut(usize, E) -> bool,
    ) -> Option<Vec<(usize, E)>> {
        let some: Vec<_> = self.values().filter(|(at, value)| predicate(*at, *value)).collect();
        (!some.is_empty()).then_some(some)
    }

    /// Whether `found` has all of them: goes on where it ends.
    pub(super) fn all<E: AtomicElement>(
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
        let wait = self.view.window.wait_on("a wait for a value", on);
        Wait { recheck: Some(RECHECK), soon: true, until, ..wait }
    }

    pub(super) fn wait<R>(
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
    pub(super) fn wait_for<R>(
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
    pub(super) fn test<R>(
        &self,
        mut done: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, RmaError> {
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
