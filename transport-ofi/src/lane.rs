//! What a queue has under way to one peer, in the order in which it was posted.

use rma_core::transport::DeviceError;
use std::collections::VecDeque;

/// A flush that waits for what was posted before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) id: u64,
    /// Transfers that were posted before it.
    before: u64,
    pub(crate) error: Option<DeviceError>,
}

/// One peer of a queue.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// How many of the first have all happened.
    first: u64,
    /// Which of the later ones have.
    happened: VecDeque<bool>,
    waiting: VecDeque<Waiting>,
    /// Why a put failed that was complete already: the next flush tells.
    pub(crate) error: Option<DeviceError>,
    /// Slots that transfers to the peer have.
    pub(crate) in_slots: usize,
}

impl Lane {
    /// The place of a transfer that begins.
    pub(crate) fn post(&mut self) -> u64 {
        self.happened.push_back(false);
        self.posted() - 1
    }

    fn posted(&self) -> u64 {
        self.first + self.happened.len() as u64
    }

    /// Whether all that was posted has happened.
    pub(crate) fn is_clear(&self) -> bool {
        self.happened.is_empty()
    }

    /// A flush waits for all that was posted.
    pub(crate) fn flush(&mut self, id: u64) {
        let (before, error) = (self.posted(), self.error.take());
        self.waiting.push_back(Waiting { id, before, error });
    }

    /// A put that was complete has failed: each flush says so that waits for it, or else the next.
    pub(crate) fn lose(&mut self, place: u64, error: DeviceError) {
        let mut is_told = false;
        for flush in self.waiting.iter_mut().filter(|flush| flush.before > place) {
            flush.error.get_or_insert(error);
            is_told = true;
        }
        if !is_told {
            self.error.get_or_insert(error);
        }
    }

    /// That transfer has happened, or failed: hands out the flushes that waited for no other.
    pub(crate) fn happened(&mut self, place: u64, mut flushed: impl FnMut(Waiting)) {
        let at = place.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(happened) = at.and_then(|at| self.happened.get_mut(at)) {
            *happened = true;
        }
        while self.happened.front() == Some(&true) {
            self.happened.pop_front();
            self.first += 1;
        }
        while let Some(flush) = self.waiting.pop_front_if(|flush| flush.before <= self.first) {
            flushed(flush);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Lane, Waiting};
    use rma_core::transport::DeviceError;

    fn happened(lane: &mut Lane, place: u64) -> Vec<(u64, Option<DeviceError>)> {
        let mut flushed = Vec::new();
        lane.happened(place, |Waiting { id, error, .. }| flushed.push((id, error)));
        flushed
    }

    #[test]
    fn a_flush_waits_for_what_was_posted_before() {
        let mut lane = Lane::default();
        assert!(lane.is_clear());
        let [one, two] = [lane.post(), lane.post()];
        lane.flush(10);
        let three = lane.post();
        lane.flush(11);
        assert_eq!(happened(&mut lane, two), []);
        assert_eq!(happened(&mut lane, three), []);
        assert!(!lane.is_clear());
        assert_eq!(happened(&mut lane, one), [(10, None), (11, None)]);
        assert!(lane.is_clear());
        let four = lane.post();
        lane.flush(12);
        assert_eq!(happened(&mut lane, four), [(12, None)]);
    }

    #[test]
    fn what_is_lost_is_told_by_each_flush_that_waits_or_the_next() {
        let refused = Some(DeviceError::Refused);
        let mut lane = Lane::default();
        let one = lane.post();
        lane.flush(10);
        let two = lane.post();
        lane.flush(11);
        lane.lose(two, DeviceError::Refused);
        assert_eq!(happened(&mut lane, two), []);
        assert_eq!(happened(&mut lane, one), [(10, None), (11, refused)]);
        assert_eq!(lane.error, None);
        let three = lane.post();
        lane.lose(three, DeviceError::Refused);
        assert_eq!(happened(&mut lane, three), []);
        let four = lane.post();
        lane.flush(12);
        assert_eq!(happened(&mut lane, four), [(12, refused)], "told once, by the next");
        lane.post();
        lane.flush(13);
        assert_eq!(happened(&mut lane, 4), [(13, None)]);
    }
}
