//! What ranks and time do with the device.

use rma_core::transport::{
    DeviceError, Moment, Outcome, PeerState, PostError, Posted, RegisterError, RemoteKey, WorldRank,
};

use super::Schedule;
use crate::device::{Device, Times};
use crate::dma::Registered;
use crate::flight::Order;
use crate::queue::{Queue, QueueId};
use crate::trace::Event;

/// In the trace.
const fn code(posted: &Result<Posted, PostError>) -> u64 {
    match posted {
        Ok(Posted::Done) => 0,
        Ok(Posted::Pending) => 1,
        Err(PostError::Again) => 2,
        Err(PostError::Device(_)) => 3,
    }
}

impl Schedule {
    /// Takes the steps of transfers that are due.
    pub(super) fn fire_device(&mut self) {
        let clock = self.clock;
        while let Some(device) = &mut self.device
            && let Some(flight) = device.land(clock)
        {
            self.happenings += 1;
            let rank = flight.rank();
            self.trace.note(rank, Event::Step, flight.digest());
            let left = self.membership.left(flight.peer());
            let mut times = Times { clock, random: &mut self.random };
            if device.advance(flight, left, &mut times) {
                self.notify(rank);
            }
        }
    }

    /// `me` said that it leaves.
    pub(super) fn leave_device(&mut self, me: u32, outcome: Outcome) {
        if outcome == Outcome::Failed {
            self.with_device(|device| device.close_memory(me));
        }
    }

    /// The code of `me` has ended.
    pub(super) fn close_device(&mut self, me: u32, outcome: Outcome) {
        self.leave_device(me, outcome);
        self.with_device(|device| device.close_rank(me));
    }

    fn with_device(&mut self, act: impl FnOnce(&mut Device)) {
        if let Some(device) = &mut self.device {
            act(device);
        }
    }

    // ---- memory: also by threads without the baton, and is not traced then ----

    pub(crate) fn register(
        &mut self,
        me: u32,
        memory: Registered,
        key: Option<RemoteKey>,
        traced: bool,
    ) -> Result<RemoteKey, RegisterError> {
        let device = self.device.as_mut().ok_or(RegisterError::Unsupported)?;
        let key = device.register(me, memory, key);
        if traced {
            self.trace.note(me, Event::Register, [u64::from(key.is_ok()), 0, 0]);
        }
        key
    }

    pub(crate) fn deregister(&mut self, me: u32, key: RemoteKey, traced: bool) {
        self.with_device(|device| device.deregister(me, key));
        if traced {
            self.trace.note(me, Event::Deregister, [0; 3]);
        }
    }

    pub(crate) fn advise(&mut self, me: u32, moment: Moment) {
        self.with_device(|device| device.advise(me, moment));
    }

    pub(crate) fn advised(&self, me: u32, moment: Moment) -> u64 {
        self.device.as_ref().map_or(0, |device| device.advised(me, moment))
    }

    // ---- endpoints ----

    pub(crate) fn open_queue(&mut self, me: u32) -> Result<QueueId, DeviceError> {
        self.device.as_mut().ok_or(DeviceError::Ended)?.open(me)
    }

    pub(crate) fn close_queue(&mut self, queue: QueueId, traced: bool) {
        self.with_device(|device| device.close(queue));
        if traced {
            self.trace.note(queue.0, Event::Quiesce, [u64::MAX, queue.1, 0]);
        }
    }

    pub(crate) fn quiesce(&mut self, queue: QueueId, peer: u32, traced: bool) {
        let rings = self.device.as_mut().is_some_and(|device| device.quiesce(queue, peer));
        if traced {
            self.trace.note(queue.0, Event::Quiesce, [peer.into(), queue.1, 0]);
        }
        if rings {
            self.notify(queue.0);
        }
    }

    /// Does something with the device for `queue`, whose rank may have heard that `peer` failed.
    fn submit(
        &mut self,
        queue: QueueId,
        peer: u32,
        act: impl FnOnce(&mut Device, &mut Times<'_>) -> Result<Posted, PostError>,
    ) -> Result<Posted, PostError> {
        let gone = self.peer_state(queue.0, peer) == PeerState::Failed;
        let Some(device) = self.device.as_mut() else {
            return Err(PostError::Device(DeviceError::Ended));
        };
        if gone {
            return Err(PostError::Device(DeviceError::Unreachable(WorldRank(peer))));
        }
        let posted = act(device, &mut Times { clock: self.clock, random: &mut self.random });
        self.happenings += u64::from(posted.is_ok());
        posted
    }

    pub(crate) fn post(&mut self, queue: QueueId, order: Order) -> Result<Posted, PostError> {
        let (peer, len) = (order.there.peer.0, order.len as u64);
        let posted = self.submit(queue, peer, |device, times| device.post(queue, order, times));
        self.trace.note(queue.0, Event::Post, [peer.into(), len, code(&posted)]);
        posted
    }

    pub(crate) fn flush(
        &mut self,
        queue: QueueId,
        id: u64,
        peer: u32,
    ) -> Result<Posted, PostError> {
        let posted = self.submit(queue, peer, |device, times| device.flush(queue, id, peer, times));
        self.trace.note(queue.0, Event::Flush, [peer.into(), code(&posted), 0]);
        posted
    }

    /// Begins to poll an endpoint: how much is complete; `None` if another thread does so.
    pub(crate) fn poll_queue(&mut self, queue: QueueId) -> Option<usize> {
        self.device.as_mut()?.queue(queue)?.poll()
    }

    pub(crate) fn take_complete(
        &mut self,
        queue: QueueId,
    ) -> Option<(u64, Result<(), DeviceError>)> {
        let taken = self.device.as_mut()?.take(queue)?;
        self.happenings += 1;
        Some(taken)
    }

    pub(crate) fn poll_queue_end(&mut self, queue: QueueId) {
        let polled = self.device.as_mut().and_then(|device| device.queue(queue));
        if polled.is_some_and(Queue::poll_end) {
            self.notify(queue.0);
        }
    }
}
