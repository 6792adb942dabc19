//! An endpoint: what it has under way to each peer, and what is complete.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rma_core::transport::DeviceError;

/// An endpoint: its rank, and which of that.
pub(crate) type QueueId = (u32, u64);

/// A flush that waits for what was posted before.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) id: u64,
    pub(crate) posted: u64,
    pub(crate) error: Option<DeviceError>,
}

/// One peer of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Transfers under way.
    pub(crate) transfers: usize,
    /// Flushes under way.
    pub(crate) flushes: usize,
    /// Transfers that have not happened at the peer, by place in the order of posts.
    pub(crate) open: BTreeSet<u64>,
    pub(crate) waiting: Vec<Waiting>,
    /// Why a put failed that was complete already: told by the next flush.
    pub(crate) error: Option<DeviceError>,
    /// A post was refused since there was room.
    pub(crate) refused: bool,
}

/// An endpoint.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) lanes: BTreeMap<u32, Lane>,
    /// What is complete and not polled: peer, id, and how it went.
    pub(crate) complete: VecDeque<(u32, u64, Result<(), DeviceError>)>,
    polling: bool,
    /// Another thread was turned away meanwhile.
    turned_away: bool,
}

impl Lane {
    /// A put that was complete has failed: each flush says so that waits for it, or else the next.
    pub(crate) fn lose(&mut self, posted: u64, error: DeviceError) {
        let mut is_told = false;
        for flush in self.waiting.iter_mut().filter(|flush| flush.posted > posted) {
            flush.error.get_or_insert(error);
            is_told = true;
        }
        if !is_told {
            self.error.get_or_insert(error);
        }
    }

    /// Takes the flushes before which everything has happened.
    pub(crate) fn ready(&mut self) -> Vec<Waiting> {
        let first = self.open.first().copied().unwrap_or(u64::MAX);
        self.waiting.extract_if(.., |flush| flush.posted < first).collect()
    }
}

impl Queue {
    /// Begins to poll: how much is complete; `None` if another thread polls already.
    pub(crate) fn poll(&mut self) -> Option<usize> {
        if self.polling {
            self.turned_away = true;
            return None;
        }
        self.polling = true;
        Some(self.complete.len())
    }

    /// True if another thread of the rank may have parked because this one polled.
    pub(crate) const fn poll_end(&mut self) -> bool {
        self.polling = false;
        core::mem::replace(&mut self.turned_away, false)
    }
}
