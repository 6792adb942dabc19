//! The order of accumulates on targets that only messages reach, or a device.
//!
//! MPI orders the accumulates of one origin on one element (12.7.1). Where a transport keeps the
//! order of messages, that is all; elsewhere they may overtake each other. So an operation waits
//! until the earlier ones of this window that touch some of its bytes are answered, unless the hint
//! `accumulate_ordering` lets it overtake them; others, and the pieces of one operation, go out
//! without waiting.
use crate::config::Ordered;
use crate::element::Op;
use crate::engine::Pending;
use crate::error::{RmaError, Shortage};
use crate::operation::{Action, Operation, Side};
use crate::window::Window;
use core::ops::Range;
use std::sync::Arc;
use std::thread::ThreadId;

/// Operations on one target that a flush waits for; of accumulates, what they touch.
#[derive(Default)]
pub(crate) struct Unanswered {
    all: Vec<(Option<Touched>, Arc<Pending>)>,
    /// With so many, those that are over are looked for: twice as many as were found not to be, so
    /// that a look at each costs every one that is added a few; 0 while one keeps a buffer.
    sweep_at: usize,
}

/// The least for [`Unanswered::sweep_at`].
const SWEEP_LEAST: usize = 16;

/// Which bytes an accumulate touches, counted from the part's beginning, and how.
pub(crate) struct Touched {
    bytes: Range<u64>,
    how: Ordered,
}

impl Unanswered {
    pub(crate) fn add(&mut self, touched: Option<Touched>, pending: Arc<Pending>) {
        let same = |other: &Arc<Pending>| Arc::ptr_eq(other, &pending);
        match touched {
            // Each that comes looks at all of these.
            Some(_) => self.sweep_at = 0,
            // A scope counts all its operations in one.
            None if self.all.iter().any(|(it, other)| it.is_none() && same(other)) => return,
            None => {}
        }
        self.add_new(touched, pending);
    }

    /// As [`add`](Self::add), of what counts nothing that was added before.
    pub(crate) fn add_new(&mut self, touched: Option<Touched>, pending: Arc<Pending>) {
        if self.all.len() >= self.sweep_at {
            self.sweep();
        }
        self.all.push((touched, pending));
    }

    fn sweep(&mut self) {
        let mut failed = Vec::new();
        // A failure stays until a flush of its thread has reported it; one will do, and one that no
        // other thread has heard of.
        self.all.retain(|(_, pending)| {
            if !pending.is_done() {
                return true;
            }
            let kind = (pending.by(), pending.is_heard());
            let first = !pending.is_over() && !failed.contains(&kind);
            failed.extend(first.then_some(kind));
            first
        });
        let keeps = self.all.iter().any(|(_, pending)| pending.keeps());
        self.sweep_at = if keeps { 0 } else { (2 * self.all.len()).max(SWEEP_LEAST) };
    }

    /// One of them keeps a buffer, which is given back as soon as it can be.
    pub(crate) fn set_keeping(&mut self) {
        self.sweep_at = 0;
    }

    /// Those that touch some of these bytes and must not be overtaken. S-H8
    pub(crate) fn before(&self, next: &Touched, ordering: u32) -> Vec<Arc<Pending>> {
        let bytes = &next.bytes;
        let touches = |other: &Range<u64>| other.start < bytes.end && bytes.start < other.end;
        let before = |earlier: &Touched| {
            touches(&earlier.bytes) && !next.how.may_overtake(earlier.how, ordering)
        };
        let earlier = |touched: &Option<Touched>| touched.as_ref().is_some_and(before);
        let all =
            self.all.iter().filter(|(touched, pending)| earlier(touched) && !pending.is_done());
        all.map(|(_, pending)| pending.clone()).collect()
    }

    /// What a flush of this thread waits for, or tells of: mostly one.
    pub(crate) fn flush(&mut self) -> (Option<Arc<Pending>>, Vec<Arc<Pending>>) {
        self.all.retain(|(_, pending)| !pending.is_over());
        let all = self.all.iter().map(|(_, pending)| pending);
        let mut all = all.filter(|pending| !pending.is_over_here()).cloned();
        (all.next(), all.collect())
    }

    /// One that ended well, and that a thread may count other operations in.
    pub(crate) fn take_unused(&mut self, by: Option<ThreadId>) -> Option<Arc<Pending>> {
        let unused = |(touched, pending): &(Option<Touched>, Arc<Pending>)| {
            let ended = touched.is_none() && pending.is_over() && pending.failure().is_none();
            // No other thread has it, which might count something.
            ended && pending.by() == by && Arc::strong_count(pending) == 1
        };
        let place = self.all.iter().position(unused)?;
        Some(self.all.swap_remove(place).1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.all.iter().all(|(_, pending)| pending.is_done())
    }
}

impl Touched {
    /// What an operation touches, from the first byte to the last; `None` if it is not ordered.
    pub(crate) fn of(operation: &Operation<'_>, there: Side<'_>) -> Option<Self> {
        let how = match operation.action {
            Action::Put | Action::Get => return None,
            Action::Combine { fetches: false, .. } => Ordered::Write,
            Action::Combine { op: Op::NoOp, .. } => Ordered::Read,
            Action::Combine { .. } | Action::Swap { .. } => Ordered::Update,
        };
        let (low, high) = there.hull()?;
        // They lie in a part.
        Some(Self { bytes: low as u64..high as u64, how })
    }
}

impl Window {
    /// Waits for the accumulates that must not be overtaken. S-H7
    pub(crate) fn wait_for_earlier(
        &self,
        operation: &Operation<'_>,
        touched: &Touched,
    ) -> Result<(), RmaError> {
        let ordering = self.settings.hints.ordering();
        let (what, target) = (operation.what, operation.target);
        let wait = self.wait_for(what, target);
        for earlier in self.far.accumulates_before(target, touched, ordering) {
            let answered = || earlier.is_done().then_some(());
            if operation.tries {
                self.try_for(operation, wait, Shortage::Order, answered)?;
                continue;
            }
            // wait: order
            let answered = self.engine().wait_until(wait, answered);
            answered.map_err(|error| self.wait_failed(error))?;
        }
        Ok(())
    }
}
