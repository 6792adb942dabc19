//! The simulated device as one rank sees it.
#![allow(unsafe_code)] // room: implements unsafe traits, lends memory to the device

use core::ops::Range;
use std::sync::Arc;

use rma_core::transport::{
    Atomic, DeviceError, Endpoint, Keys, LayoutCosts, Mapping, Moment, PostError, Posted, Purpose,
    RegisterError, Registration, Remote, RemoteKey, RemoteLimits, There, Transfer, WorldRank,
};
use rma_core::{BasicElement, BasicType, Op};

use crate::dma::{Lent, Registered};
use crate::flight::{Order, Work};
use crate::net::Shared;
use crate::queue::QueueId;
use crate::{Atomics, DeviceConfig, Sim};

/// `errno` of an argument that makes no sense, and of what the device does not do.
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

fn refuse(errno: i32) -> PostError {
    PostError::Device(DeviceError::System { call: "post", errno })
}

fn is_word(basic: BasicType) -> bool {
    basic == u64::BASIC || basic == i64::BASIC
}

impl Atomics {
    fn has(self, atomic: Atomic) -> bool {
        match (self, atomic) {
            (Self::None, _) => false,
            (Self::Words, Atomic::Combine(op, basic)) => op == Op::Sum && is_word(basic),
            (Self::Words, Atomic::Swap(basic)) => is_word(basic),
            (Self::All, _) => atomic.is_defined(),
        }
    }
}

impl Order {
    /// What `transfer` asks for; `None` if that makes no sense.
    ///
    /// # Safety
    ///
    /// As of [`Endpoint::post`], until the order is dropped.
    unsafe fn new(id: u64, transfer: &Transfer, there: &There) -> Option<Self> {
        let there = *there;
        Some(match *transfer {
            Transfer::Put { from, len } => {
                // SAFETY: caller: stays valid, and is not changed.
                let from = Some(unsafe { Lent::new(from.cast_mut(), len) });
                Self { id, work: Work::Put, len, from, into: None, there }
            }
            Transfer::Get { into, len } => {
                // SAFETY: caller: stays valid, and nothing else touches it.
                let into = Some(unsafe { Lent::new(into, len) });
                Self { id, work: Work::Get, len, from: None, into, there }
            }
            Transfer::Atomic { atomic, count, operands, fetched } => {
                let (each, needless) = match atomic {
                    Atomic::Combine(op, _) => (1, op == Op::NoOp),
                    Atomic::Swap(_) => (2, false),
                };
                let len = atomic.width().checked_mul(count)?;
                let from_len = len.checked_mul(each)?;
                if operands.is_null() && !needless {
                    return None;
                }
                let from = (!operands.is_null()).then(|| {
                    // SAFETY: caller: stays valid, and is not changed.
                    unsafe { Lent::new(operands.cast_mut(), from_len) }
                });
                let into = (!fetched.is_null()).then(|| {
                    // SAFETY: caller: stays valid, and nothing else touches it.
                    unsafe { Lent::new(fetched, len) }
                });
                Self { id, work: Work::Atomic { atomic, count }, len, from, into, there }
            }
        })
    }
}

impl Sim {
    fn device(&self) -> Option<&DeviceConfig> {
        self.shared().config().device.as_ref()
    }
}

// SAFETY: `Registered` checks each access, is reached by its rank and key alone, and is forgotten
// under the lock that all accesses hold when the registration is dropped; keys that the device
// chooses are never chosen again.
unsafe impl Remote for Sim {
    fn explain(&self) -> String {
        let Some(device) = self.device() else {
            return "no device in this simulated network".to_owned();
        };
        let RemoteLimits { addressing, keys, inject, bounce, transfer_max, run_min, .. } =
            device.limits;
        let narrow = device.narrow.map_or_else(String::new, |(rank, sizes)| {
            let RemoteLimits { inject, bounce, transfer_max, run_min, .. } = sizes;
            format!("; to rank {rank} {inject}, {bounce}, {transfer_max} and {run_min}")
        });
        format!(
            "simulated device: puts up to {inject} bytes are injected, transfers up to {bounce} \
             bounced, at most {transfer_max} in one, runs from {run_min} bytes on{narrow}; keys \
             {keys:?}, addressing {addressing:?}, atomics {:?}; up to {} us each step, {} in a \
             queue",
            device.atomics, device.delay_max, device.queue_max
        )
    }

    fn limits(&self) -> RemoteLimits {
        self.device().copied().unwrap_or_default().limits
    }

    fn limits_to(&self, peer: WorldRank) -> RemoteLimits {
        self.device().copied().unwrap_or_default().limits_to(peer.0)
    }

    fn costs_to(&self, _: WorldRank) -> Option<LayoutCosts> {
        self.device()?.costs
    }

    fn reaches(&self, peer: WorldRank) -> bool {
        self.device().is_some() && peer.0 < self.size()
    }

    fn does(&self, atomic: Atomic) -> bool {
        self.device().is_some_and(|device| device.atomics.has(atomic))
    }

    unsafe fn register(
        &self,
        memory: Mapping,
        key: Option<RemoteKey>,
    ) -> Result<Box<dyn Registration>, RegisterError> {
        let device = self.device().ok_or(RegisterError::Unsupported)?;
        let key = match device.limits.keys {
            Keys::Given if key.is_none() => {
                return Err(RegisterError::System { call: "register", errno: EINVAL });
            }
            Keys::Given => key,
            Keys::Chosen => None,
        };
        // SAFETY: caller: until the registration is dropped, which drops this before it returns.
        let memory = unsafe { Registered::new(memory) };
        let (shared, rank) = (Arc::clone(self.shared()), self.rank().0);
        let key =
            shared.settle(rank, |schedule, traced| schedule.register(rank, memory, key, traced))?;
        Ok(Box::new(Registering { shared, rank, key }))
    }

    fn endpoint(&self, _: Purpose) -> Result<Box<dyn Endpoint>, DeviceError> {
        let (shared, rank) = (Arc::clone(self.shared()), self.rank().0);
        let queue = shared.settle(rank, |schedule, _| schedule.open_queue(rank))?;
        Ok(Box::new(Posting { shared, queue }))
    }

    fn advise(&self, _registration: &dyn Registration, _range: Range<u64>, moment: Moment) {
        let rank = self.rank().0;
        self.shared().settle(rank, |schedule, _| schedule.advise(rank, moment));
    }
}

/// Memory of a rank that its device reaches.
struct Registering {
    shared: Arc<Shared>,
    rank: u32,
    key: RemoteKey,
}

impl Registration for Registering {
    fn key(&self) -> RemoteKey {
        self.key
    }
}

impl Drop for Registering {
    fn drop(&mut self) {
        self.shared.settle(self.rank, |schedule, traced| {
            schedule.deregister(self.rank, self.key, traced);
        });
    }
}

/// An endpoint of a rank.
struct Posting {
    shared: Arc<Shared>,
    queue: QueueId,
}

impl Posting {
    const fn rank(&self) -> u32 {
        self.queue.0
    }
}

/// Ends a poll on every way out.
struct Polling<'a>(&'a Posting);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        let Posting { shared, queue } = self.0;
        shared.settle(queue.0, |schedule, _| schedule.poll_queue_end(*queue));
    }
}

// SAFETY: lent memory is touched with the schedule's lock held alone. The lock is not given back
// between the last access and word that a transfer is complete; a thread that cuts off a peer drops
// what was lent for it under the lock, too.
unsafe impl Endpoint for Posting {
    unsafe fn post(
        &self,
        id: u64,
        transfer: &Transfer,
        there: &There,
    ) -> Result<Posted, PostError> {
        // SAFETY: caller: valid until the transfer is complete or cut off, when the order, or what
        // became of it, is dropped.
        let order = unsafe { Order::new(id, transfer, there) };
        let order = order.ok_or_else(|| refuse(EINVAL))?;
        let does = |device: &DeviceConfig| match order.work {
            Work::Atomic { atomic, .. } => device.atomics.has(atomic),
            _ => true,
        };
        if !self.shared.config().device.as_ref().is_some_and(does) {
            return Err(refuse(EOPNOTSUPP));
        }
        // No yield: another thread of this rank would wait for the lock that the core holds.
        self.shared.act(self.rank(), |schedule| schedule.post(self.queue, order))
    }

    fn flush(&self, id: u64, peer: WorldRank) -> Result<Posted, PostError> {
        self.shared.act(self.rank(), |schedule| schedule.flush(self.queue, id, peer.0))
    }

    fn poll(&self, sink: &mut dyn FnMut(u64, Result<(), DeviceError>)) -> usize {
        let complete =
            self.shared.look_then(self.rank(), |schedule| schedule.poll_queue(self.queue));
        let Some(complete) = complete else {
            return 0;
        };
        let _polling = Polling(self);
        for count in 0..complete {
            let taken = self.shared.act(self.rank(), |schedule| schedule.take_complete(self.queue));
            // The sink, or another thread meanwhile, may cut off a peer.
            let Some((id, result)) = taken else { return count };
            sink(id, result);
        }
        complete
    }

    fn quiesce(&self, peer: WorldRank) {
        self.shared.settle(self.rank(), |schedule, traced| {
            schedule.quiesce(self.queue, peer.0, traced);
        });
    }
}

impl Drop for Posting {
    fn drop(&mut self) {
        self.shared.settle(self.rank(), |schedule, traced| {
            schedule.close_queue(self.queue, traced);
        });
    }
}
