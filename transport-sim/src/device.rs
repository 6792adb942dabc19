//! A simulated device: what is registered, what is under way, what is complete.

use std::collections::BTreeMap;

use rma_core::transport::{
    Addressing, DeviceError, Moment, Outcome, PostError, Posted, RegisterError, RemoteKey, There,
};

use crate::DeviceConfig;
use crate::dma::Registered;
use crate::flight::{Flight, Order, Step, Work};
use crate::queue::{Lane, Queue, QueueId, Waiting};
use crate::random::{Random, mix};

/// `errno` of a key that is taken, and of a transfer that makes no sense.
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;

/// What a rank did with its device.
#[derive(Debug, Clone, Default)]
struct Owner {
    keys: u64,
    queues: u64,
    advice: Vec<(Moment, u64)>,
}

/// When things happen.
pub(crate) struct Times<'a> {
    pub(crate) clock: u64,
    pub(crate) random: &'a mut Random,
}

/// The devices of all ranks.
#[derive(Debug)]
pub(crate) struct Device {
    config: DeviceConfig,
    seed: u64,
    registered: BTreeMap<(u32, [u8; RemoteKey::LEN]), Registered>,
    owners: Vec<Owner>,
    queues: BTreeMap<QueueId, Queue>,
    /// By due time, then in the order in which steps began.
    flights: BTreeMap<(u64, u64), Flight>,
    /// Counts posts, and steps of transfers.
    counter: u64,
    /// Transfers posted.
    posts: u64,
    ended: bool,
}

impl Device {
    pub(crate) fn new(config: DeviceConfig, ranks: u32, seed: u64) -> Self {
        Self {
            config,
            seed,
            registered: BTreeMap::new(),
            owners: vec![Owner::default(); ranks as usize],
            queues: BTreeMap::new(),
            flights: BTreeMap::new(),
            counter: 0,
            posts: 0,
            ended: config.ends_after == Some(0),
        }
    }

    fn owner(&mut self, rank: u32) -> &mut Owner {
        &mut self.owners[rank as usize]
    }

    fn lane(&mut self, queue: QueueId, peer: u32) -> Option<&mut Lane> {
        self.queues.get_mut(&queue)?.lanes.get_mut(&peer)
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    // ---- memory ----

    /// Gives peers access to memory of `rank`; returns the key.
    pub(crate) fn register(
        &mut self,
        rank: u32,
        memory: Registered,
        key: Option<RemoteKey>,
    ) -> Result<RemoteKey, RegisterError> {
        let (requested, available) = (memory.len(), self.config.register_max);
        if requested > available {
            return Err(RegisterError::Shortage { requested, available, limit: "register_max" });
        }
        let key = match key {
            Some(key) => key,
            None => self.make_key(rank),
        };
        if self.registered.contains_key(&(rank, key.0)) {
            return Err(RegisterError::System { call: "register", errno: EEXIST });
        }
        self.registered.insert((rank, key.0), memory);
        Ok(key)
    }

    /// Differs from every other that is made: `mix` maps no two numbers to one. Not drawn, because
    /// ranks register before they have a turn, too.
    fn make_key(&mut self, rank: u32) -> RemoteKey {
        let owner = &mut self.owners[rank as usize];
        owner.keys += 1;
        let mut word = mix(self.seed).wrapping_add(u64::from(rank) << 40 | owner.keys);
        let mut key = [0; RemoteKey::LEN];
        for bytes in key.chunks_exact_mut(size_of::<u64>()) {
            word = mix(word);
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        RemoteKey(key)
    }

    pub(crate) fn deregister(&mut self, rank: u32, key: RemoteKey) {
        self.registered.remove(&(rank, key.0));
    }

    /// No peer reaches memory of `rank` any more.
    pub(crate) fn close_memory(&mut self, rank: u32) {
        self.registered.retain(|&(owner, _), _| owner != rank);
    }

    pub(crate) fn advise(&mut self, rank: u32, moment: Moment) {
        let advice = &mut self.owner(rank).advice;
        match advice.iter_mut().find(|(known, _)| *known == moment) {
            Some((_, count)) => *count += 1,
            None => advice.push((moment, 1)),
        }
    }

    pub(crate) fn advised(&self, rank: u32, moment: Moment) -> u64 {
        let mut advice = self.owners[rank as usize].advice.iter();
        advice.find(|(known, _)| *known == moment).map_or(0, |&(_, count)| count)
    }

    // ---- endpoints ----

    pub(crate) fn open(&mut self, rank: u32) -> Result<QueueId, DeviceError> {
        if self.ended {
            return Err(DeviceError::Ended);
        }
        let owner = self.owner(rank);
        owner.queues += 1;
        let queue = (rank, owner.queues);
        self.queues.insert(queue, Queue::default());
        Ok(queue)
    }

    /// Cuts off what an endpoint has under way, and ends it.
    pub(crate) fn close(&mut self, queue: QueueId) {
        self.cut_off(|flight| flight.queue == queue);
        self.queues.remove(&queue);
    }

    /// As [`quiesce`](Self::quiesce), for all endpoints and peers of `rank`.
    pub(crate) fn close_rank(&mut self, rank: u32) {
        self.cut_off(|flight| flight.rank() == rank);
        for (_, queue) in self.queues.range_mut((rank, 0)..=(rank, u64::MAX)) {
            queue.lanes.clear();
            queue.complete.clear();
        }
    }

    /// Cuts off what an endpoint has under way to a peer; true if a thread waits for the room.
    pub(crate) fn quiesce(&mut self, queue: QueueId, peer: u32) -> bool {
        self.cut_off(|flight| flight.queue == queue && flight.peer() == peer);
        let Some(queue) = self.queues.get_mut(&queue) else { return false };
        queue.complete.retain(|&(of, ..)| of != peer);
        queue.lanes.remove(&peer).is_some_and(|lane| lane.refused)
    }

    /// These have no origin any more. What was read there may be on its way, and arrive.
    fn cut_off(&mut self, is_meant: impl Fn(&Flight) -> bool) {
        self.flights.retain(|_, flight| {
            if !is_meant(flight) {
                return true;
            }
            flight.cut_off = true;
            flight.into = None;
            let has_left = matches!(&flight.step, Step::Arrive(bytes) if !bytes.is_empty());
            has_left && flight.survives
        });
    }

    pub(crate) fn queue(&mut self, queue: QueueId) -> Option<&mut Queue> {
        self.queues.get_mut(&queue)
    }

    pub(crate) fn take(&mut self, queue: QueueId) -> Option<(u64, Result<(), DeviceError>)> {
        let (_, id, result) = self.queues.get_mut(&queue)?.complete.pop_front()?;
        Some((id, result))
    }

    // ---- posting ----

    /// The transfer is known to be one that the device does.
    pub(crate) fn post(
        &mut self,
        queue: QueueId,
        order: Order,
        times: &mut Times<'_>,
    ) -> Result<Posted, PostError> {
        if self.ended {
            return Err(PostError::Device(DeviceError::Ended));
        }
        let (config, peer) = (self.config, order.there.peer.0);
        let limits = config.limits_to(order.there.peer.0);
        let most = match order.work {
            Work::Atomic { .. } => limits.atomic_max,
            _ => limits.transfer_max,
        };
        if order.len as u64 > most {
            let error = DeviceError::System { call: "post", errno: EINVAL };
            return Err(PostError::Device(error));
        }
        let posted = self.count();
        let lane = self.queues.entry(queue).or_default().lanes.entry(peer).or_default();
        if lane.transfers >= config.queue_max {
            lane.refused = true;
            return Err(PostError::Again);
        }
        lane.transfers += 1;
        lane.open.insert(posted);
        let Order { id, work, len, from, into, there } = order;
        let is_put = matches!(work, Work::Put);
        let told = is_put && len <= limits.inject;
        let step = match from {
            Some(from) if told => Step::Arrive(from.read()),
            Some(from) => Step::Read(from),
            None => Step::Arrive(Vec::new()),
        };
        let acknowledged = is_put && times.random.chance(1, 4);
        let survives = times.random.chance(1, 2);
        let flight = Flight {
            queue,
            id,
            posted,
            work,
            len,
            into,
            there,
            step,
            acknowledged,
            told,
            survives,
            cut_off: false,
        };
        self.launch(flight, times);
        self.posts += 1;
        if config.ends_after.is_some_and(|posts| self.posts >= posts) {
            self.end(times);
        }
        Ok(if told { Posted::Done } else { Posted::Pending })
    }

    pub(crate) fn flush(
        &mut self,
        queue: QueueId,
        id: u64,
        peer: u32,
        times: &mut Times<'_>,
    ) -> Result<Posted, PostError> {
        if self.ended {
            return Err(PostError::Device(DeviceError::Ended));
        }
        let (posted, queue_max) = (self.count(), self.config.queue_max);
        let lane = self.queues.entry(queue).or_default().lanes.entry(peer).or_default();
        if lane.flushes >= queue_max {
            lane.refused = true;
            return Err(PostError::Again);
        }
        let nothing = lane.open.is_empty() && lane.error.is_none();
        if nothing && times.random.chance(1, 2) {
            return Ok(Posted::Done);
        }
        lane.flushes += 1;
        lane.waiting.push(Waiting { id, posted, error: lane.error.take() });
        self.answer(queue, peer, times);
        Ok(Posted::Pending)
    }

    /// Lets the next step of a transfer happen later.
    fn launch(&mut self, flight: Flight, times: &mut Times<'_>) {
        let due = times.clock.saturating_add(times.random.delay(self.config.delay_max));
        let place = self.count();
        self.flights.insert((due, place), flight);
    }

    /// Completes the flushes before which everything has happened.
    fn answer(&mut self, queue: QueueId, peer: u32, times: &mut Times<'_>) {
        let Some(lane) = self.lane(queue, peer) else { return };
        for flush in lane.ready() {
            self.launch(Flight::flush(queue, peer, flush), times);
        }
    }

    /// No device works any more: what is under way fails.
    fn end(&mut self, times: &mut Times<'_>) {
        self.ended = true;
        for flight in core::mem::take(&mut self.flights).into_values() {
            if flight.cut_off {
                continue;
            }
            self.launch(Flight { step: Step::Return(Err(DeviceError::Ended)), ..flight }, times);
        }
        let lanes = |(&id, queue): (&QueueId, &mut Queue)| {
            for lane in queue.lanes.values_mut() {
                lane.open.clear();
                lane.waiting.iter_mut().for_each(|flush| flush.error = Some(DeviceError::Ended));
            }
            queue.lanes.keys().map(|&peer| (id, peer)).collect::<Vec<_>>()
        };
        let lanes: Vec<_> = self.queues.iter_mut().flat_map(lanes).collect();
        for (queue, peer) in lanes {
            self.answer(queue, peer, times);
        }
    }

    // ---- under way ----

    /// When the next step of a transfer happens.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.flights.first_key_value().map(|(&(due, _), _)| due)
    }

    /// A transfer that has something due at `clock`.
    pub(crate) fn land(&mut self, clock: u64) -> Option<Flight> {
        let first = self.flights.first_entry().filter(|entry| entry.key().0 <= clock)?;
        Some(first.remove())
    }

    /// Takes the next step of a transfer, whose peer has left or not. True if its origin has
    /// something to do.
    pub(crate) fn advance(
        &mut self,
        mut flight: Flight,
        left: Option<Outcome>,
        times: &mut Times<'_>,
    ) -> bool {
        let failed = left == Some(Outcome::Failed);
        let gone = DeviceError::Unreachable(flight.there.peer);
        match core::mem::replace(&mut flight.step, Step::Arrive(Vec::new())) {
            Step::Read(_) if failed => self.happened(flight, Err(gone), times),
            Step::Read(from) => {
                flight.step = Step::Arrive(from.read());
                let tells = matches!(flight.work, Work::Put) && !flight.acknowledged;
                if tells {
                    flight.told = true;
                    self.tell(&flight, Ok(()));
                }
                self.launch(flight, times);
                tells
            }
            Step::Arrive(bytes) => {
                let result = self.happen(&flight, &bytes, left.is_some());
                self.happened(flight, result, times)
            }
            // Its device has ended.
            Step::Return(_) if flight.told => self.finish(&flight),
            Step::Return(result) => {
                let is_flush = matches!(flight.work, Work::Flush);
                let result = if is_flush && failed { result.and(Err(gone)) } else { result };
                if let (Ok(bytes), Some(into)) = (&result, &flight.into) {
                    into.write(bytes);
                }
                self.tell(&flight, result.map(drop));
                self.finish(&flight);
                true
            }
        }
    }

    /// What it does at the peer: gives what comes back.
    fn happen(&self, flight: &Flight, bytes: &[u8], left: bool) -> Result<Vec<u8>, DeviceError> {
        let There { peer, key, at } = flight.there;
        let Some(memory) = self.registered.get(&(peer.0, key.0)) else {
            return Err(if left { DeviceError::Unreachable(peer) } else { DeviceError::Refused });
        };
        let start = match self.config.limits.addressing {
            Addressing::Offset => Some(at),
            Addressing::Virtual => at.checked_sub(memory.address()),
        };
        let done = start.and_then(|start| match flight.work {
            Work::Put => memory.write(start, bytes).map(|()| Vec::new()),
            Work::Get => memory.read(start, flight.len),
            Work::Atomic { atomic, count } => memory.perform(start, atomic, count, bytes),
            Work::Flush => Some(Vec::new()),
        });
        done.ok_or(DeviceError::Refused)
    }

    /// Nothing more happens to it at the peer. True if its origin has something to do.
    fn happened(
        &mut self,
        flight: Flight,
        result: Result<Vec<u8>, DeviceError>,
        times: &mut Times<'_>,
    ) -> bool {
        if flight.cut_off {
            return false;
        }
        let (queue, peer, posted) = (flight.queue, flight.peer(), flight.posted);
        let mut rings = false;
        if flight.told {
            if let (Err(error), Some(lane)) = (result, self.lane(queue, peer)) {
                lane.lose(posted, error);
            }
            rings = self.finish(&flight);
        } else {
            self.launch(Flight { step: Step::Return(result), ..flight }, times);
        }
        if let Some(lane) = self.lane(queue, peer) {
            lane.open.remove(&posted);
        }
        self.answer(queue, peer, times);
        rings
    }

    fn tell(&mut self, flight: &Flight, result: Result<(), DeviceError>) {
        if let Some(queue) = self.queues.get_mut(&flight.queue) {
            queue.complete.push_back((flight.peer(), flight.id, result));
        }
    }

    /// It is not under way any more; true if its origin waits for the room.
    fn finish(&mut self, flight: &Flight) -> bool {
        let Some(lane) = self.lane(flight.queue, flight.peer()) else { return false };
        match flight.work {
            Work::Flush => lane.flushes -= 1,
            _ => lane.transfers -= 1,
        }
        core::mem::take(&mut lane.refused)
    }
}
