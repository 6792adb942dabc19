//! Transfers of one queue of the core: what is under way, and what is complete.
#![allow(unsafe_code)] // room: promises Endpoint, copies to and from memory of transfers

use crate::device::{
    DIRECT, DIRECT_ENDS, Device, TRANSFER_BYTES, TRANSFERS, TRANSFERS_TO_ONE, parse,
};
use crate::lane::{Lane, Waiting};
use crate::port::lock;
use crate::sys::{Completion, Direction, Endpoint as Ends, Failure, Far, Full, Slot, end};
use crate::turns::Turns;
use rma_core::transport::{
    DeviceError, Endpoint, PeerState, PostError, Posted, There, Transfer, WorldRank,
};
use std::collections::{HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard};

/// A queue of transfers.
pub(crate) struct Queue {
    device: Arc<Device>,
    state: ManuallyDrop<Mutex<State>>,
    turns: Turns,
}

struct State {
    /// For transfers through slots.
    slots: Channel,
    /// For those of memory of the program: each of one peer, as long as it has any under way.
    direct: Vec<(WorldRank, Channel)>,
    lanes: HashMap<WorldRank, Lane>,
    /// What no poll has handed out.
    complete: VecDeque<(WorldRank, u64, Result<(), DeviceError>)>,
    /// A thread was told that there is no room.
    refused: bool,
    over: Vec<Completion>,
}

/// An endpoint, and what it has under way.
struct Channel {
    endpoint: Ends,
    free: Vec<Slot>,
    /// By slot.
    under_way: Box<[Option<UnderWay>]>,
    /// Numbers of peers' addresses.
    numbers: HashMap<WorldRank, u64>,
}

/// A transfer that is not complete.
struct UnderWay {
    peer: WorldRank,
    /// Its place among those of the peer.
    posted: u64,
    /// By which the core knows it, unless that was told already.
    id: Option<u64>,
    /// Where the bytes in the slot go.
    into: Option<Lent>,
    /// Its peer was cut off: nobody hears of it.
    is_cut: bool,
}

/// Memory of the core or the program that fetched bytes go to.
struct Lent {
    at: *mut u8,
    len: usize,
}

// SAFETY: written under the mutex of the queue only, until the transfer is complete or cut off: as
// long says the caller of `post` that nothing else touches it.
unsafe impl Send for Lent {}

/// A transfer, as posted.
struct Order {
    /// `None` of a put whose bytes are taken at once.
    id: Option<u64>,
    memory: *mut u8,
    len: usize,
    direction: Direction,
}

impl Channel {
    fn open(device: &Device, size: (u32, usize)) -> Result<Self, DeviceError> {
        let (endpoint, free) = device.open(size)?;
        let under_way = free.iter().map(|_| None).collect();
        Ok(Self { endpoint, free, under_way, numbers: HashMap::new() })
    }

    fn number(&mut self, device: &Device, peer: WorldRank) -> Result<u64, DeviceError> {
        if let Some(number) = self.numbers.get(&peer) {
            return Ok(*number);
        }
        let number = self.endpoint.insert(device.address(peer));
        let errno = libc::ENOMEM;
        let number = number.ok_or(DeviceError::System { call: "fi_av_insert", errno })?;
        self.numbers.insert(peer, number);
        Ok(number)
    }

    fn is_busy(&self) -> bool {
        self.free.len() < self.under_way.len()
    }

    /// Closes the endpoint of direct transfers, so that their memory is touched no more.
    fn cut(self) {
        if let Err(code) = self.endpoint.close() {
            end("memory of a transfer", ("fi_close", code));
        }
    }
}

/// Errors of a network on which nobody answers.
const NO_WAY: [i32; 4] =
    [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ETIMEDOUT];

/// Errors of a transfer whose connection has ended. A provider that refuses a key by closing the
/// connection gives them to the transfer that it refused, and to those behind it.
const CUT: [i32; 6] = [
    libc::ECANCELED,
    libc::ECONNRESET,
    libc::ECONNABORTED,
    libc::ENOTCONN,
    libc::EPIPE,
    libc::ESHUTDOWN,
];

/// Errors of a key that is refused, and nothing else with it.
const NO_KEY: [i32; 5] =
    [libc::EACCES, libc::ENOKEY, libc::EKEYEXPIRED, libc::EKEYREVOKED, libc::EKEYREJECTED];

/// Why a transfer did not begin, or failed: told by `call`, of a peer that lives or not.
fn error_of(peer: WorldRank, is_alive: bool, call: &'static str, code: i32) -> DeviceError {
    match code {
        code if !is_alive || NO_WAY.contains(&code) => DeviceError::Unreachable(peer),
        code if CUT.contains(&code) => DeviceError::Cancelled(peer),
        code if NO_KEY.contains(&code) => DeviceError::Refused,
        errno => DeviceError::System { call, errno },
    }
}

fn is_running(device: &Device, peer: WorldRank) -> bool {
    device.members.peer_state(peer) == PeerState::Alive
}

impl State {
    fn lane(&mut self, peer: WorldRank) -> &mut Lane {
        self.lanes.entry(peer).or_default()
    }

    /// Makes the provider's progress, and takes what is over. True if the core has something to
    /// poll, or room that it was refused.
    fn read(&mut self, device: &Device) -> bool {
        let Self { slots, direct, lanes, complete, refused, over } = self;
        let (mut came, mut is_room) = (false, false);
        for channel in std::iter::once(slots).chain(direct.iter_mut().map(|(_, channel)| channel)) {
            if !channel.is_busy() && !*refused {
                continue;
            }
            loop {
                let more = channel.endpoint.read(over);
                for completion in over.drain(..) {
                    let Completion::Transferred(slot, result) = completion else { continue };
                    is_room = true;
                    came |= take(device, channel, lanes, complete, (slot, result));
                }
                if !more {
                    break;
                }
            }
        }
        came || is_room && std::mem::take(refused)
    }

    /// Begins a transfer; false if there is no room now.
    fn begin(
        &mut self,
        device: &Device,
        order: &Order,
        there: &There,
    ) -> Result<bool, DeviceError> {
        let Order { id, memory, len, direction } = *order;
        let peer = there.peer;
        let is_direct = len > TRANSFER_BYTES;
        if !is_direct && self.lane(peer).in_slots >= TRANSFERS_TO_ONE {
            return Ok(false);
        }
        let channel = match is_direct {
            false => &mut self.slots,
            true => match direct_to(&mut self.direct, device, peer)? {
                Some(channel) => channel,
                None => return Ok(false),
            },
        };
        let number = channel.number(device, peer)?;
        let Some(mut slot) = channel.free.pop() else { return Ok(false) };
        let (key, start) = parse(&there.key);
        let far = Far { peer: number, key, at: start.wrapping_add(there.at) };
        let index = slot.index();
        let begun = if is_direct {
            // SAFETY: the caller of `post` vouches for the memory until the transfer is complete or
            // its peer was cut off, which closes the endpoint.
            unsafe { channel.endpoint.transfer_direct(slot, (memory, len), direction, &far) }
        } else {
            if direction == Direction::Write && len > 0 {
                let room = channel.endpoint.bytes_mut(&mut slot).as_mut_ptr();
                // SAFETY: bytes that the caller of `post` vouches for, and a slot as long at least,
                // which has memory of its own.
                unsafe { room.copy_from_nonoverlapping(memory, len) };
            }
            channel.endpoint.transfer(slot, len, direction, &far)
        };
        if let Err(Full(slot, failure)) = begun {
            channel.free.push(slot);
            let Some(failure) = failure else { return Ok(false) };
            let call = if direction == Direction::Write { "fi_writemsg" } else { "fi_readmsg" };
            return Err(error_of(peer, is_running(device, peer), call, failure.code));
        }
        let is_fetched = direction == Direction::Read && !is_direct && len > 0;
        let into = is_fetched.then_some(Lent { at: memory, len });
        let lane = self.lanes.entry(peer).or_default();
        let posted = lane.post();
        lane.in_slots += usize::from(!is_direct);
        channel.under_way[index] = Some(UnderWay { peer, posted, id, into, is_cut: false });
        Ok(true)
    }

    fn cut_off(&mut self, peer: WorldRank) {
        // One that has nothing under way has nothing to lose.
        let is_meant = |(of, channel): &mut (WorldRank, Channel)| *of == peer && channel.is_busy();
        self.direct.extract_if(.., is_meant).for_each(|(_, channel)| channel.cut());
        let of_peer = self.slots.under_way.iter_mut().flatten().filter(|it| it.peer == peer);
        for under_way in of_peer {
            (under_way.into, under_way.is_cut) = (None, true);
        }
        self.complete.retain(|(of, ..)| *of != peer);
        let left = self.lanes.remove(&peer).map_or(0, |lane| lane.in_slots);
        if left > 0 {
            // They count as long as they have slots.
            self.lane(peer).in_slots = left;
        }
    }
}

/// The endpoint of direct transfers to a peer: its own, or one that has nothing under way, or a new
/// one; `None` if there are enough.
fn direct_to<'c>(
    direct: &'c mut Vec<(WorldRank, Channel)>,
    device: &Device,
    peer: WorldRank,
) -> Result<Option<&'c mut Channel>, DeviceError> {
    let its = direct.iter().position(|(of, _)| *of == peer);
    let place = its.or_else(|| direct.iter().position(|(_, channel)| !channel.is_busy()));
    let place = match place {
        Some(place) => place,
        None if direct.len() == DIRECT_ENDS => return Ok(None),
        None => {
            direct.push((peer, Channel::open(device, (DIRECT, 0))?));
            direct.len() - 1
        }
    };
    Ok(direct.get_mut(place).map(|(of, channel)| {
        *of = peer;
        channel
    }))
}

/// Takes what is over; true if the core has something to poll.
fn take(
    device: &Device,
    channel: &mut Channel,
    lanes: &mut HashMap<WorldRank, Lane>,
    complete: &mut VecDeque<(WorldRank, u64, Result<(), DeviceError>)>,
    (slot, result): (Slot, Result<(), Failure>),
) -> bool {
    let Some(under_way) = channel.under_way[slot.index()].take() else { return false };
    let UnderWay { peer, posted, id, into, is_cut } = under_way;
    if let (Some(Lent { at, len }), Ok(())) = (into, &result) {
        let from = channel.endpoint.bytes(&slot).as_ptr();
        // SAFETY: not cut off, so the caller of `post` vouches for the memory, which nothing else
        // touches; the slot is as long at least, and memory of its own.
        unsafe { at.copy_from_nonoverlapping(from, len) };
    }
    let is_slot = channel.endpoint.each() > 0;
    channel.free.push(slot);
    let lane = lanes.entry(peer).or_default();
    lane.in_slots -= usize::from(is_slot);
    if is_cut {
        return false;
    }
    let error =
        |Failure { code, .. }| error_of(peer, is_running(device, peer), "fi_cq_readerr", code);
    let result = result.map_err(error);
    match (id, result) {
        (Some(id), result) => complete.push_back((peer, id, result)),
        (None, Err(error)) => lane.lose(posted, error),
        (None, Ok(())) => {}
    }
    let flushed = lane.happened(posted);
    let is_told = id.is_some() || !flushed.is_empty();
    for Waiting { id, error, .. } in flushed {
        complete.push_back((peer, id, error.map_or(Ok(()), Err)));
    }
    is_told
}

impl Queue {
    pub(crate) fn open(device: Arc<Device>) -> Result<Self, DeviceError> {
        let state = State {
            slots: Channel::open(&device, (TRANSFERS, TRANSFER_BYTES))?,
            direct: Vec::new(),
            lanes: HashMap::new(),
            complete: VecDeque::new(),
            refused: false,
            over: Vec::new(),
        };
        let state = ManuallyDrop::new(Mutex::new(state));
        Ok(Self { device, state, turns: Turns::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// What the watcher does. True if the rank's threads are to look.
    pub(crate) fn look(&self) -> bool {
        // Who has it reads, or posts and reads later.
        self.state.try_lock().is_ok_and(|mut state| state.read(&self.device))
    }

    /// Whether something is under way, and whether the files of all its endpoints may be waited
    /// at. What is complete and was not polled yet is no reason to look again: whoever read it has
    /// woken the rank.
    pub(crate) fn rest(&self) -> (bool, bool) {
        let state = self.lock();
        let direct = state.direct.iter().map(|(_, channel)| channel);
        let mut channels = std::iter::once(&state.slots).chain(direct);
        let is_busy = channels.clone().any(Channel::is_busy);
        (is_busy, channels.all(|channel| channel.endpoint.may_wait()))
    }

    /// The next that no poll has handed out.
    fn pop(&self) -> Option<(u64, Result<(), DeviceError>)> {
        let (_, id, result) = self.lock().complete.pop_front()?;
        Some((id, result))
    }

    fn post(&self, order: &Order, there: &There) -> Result<(), PostError> {
        let device = &*self.device;
        if device.members.told(there.peer) != PeerState::Alive {
            return Err(PostError::Device(DeviceError::Unreachable(there.peer)));
        }
        let mut state = self.lock();
        if state.begin(device, order, there).map_err(PostError::Device)? {
            return Ok(());
        }
        // To read makes room, and the provider's progress: also that of connections.
        state.refused = true;
        if state.read(device) {
            device.wake();
        }
        if state.begin(device, order, there).map_err(PostError::Device)? {
            return Ok(());
        }
        drop(state);
        device.starve();
        Err(PostError::Again)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // A fork's copy of the provider shares its files with the rank, whose transfers go on.
        if self.device.members.is_fork() {
            return;
        }
        for (_, channel) in std::mem::take(&mut self.lock().direct) {
            channel.cut();
        }
        // SAFETY: dropped here only.
        unsafe { ManuallyDrop::drop(&mut self.state) };
    }
}

/// A queue, as the core has it.
pub(crate) struct Posting(pub(crate) Arc<Queue>);

// SAFETY: a provider is given slots, which an endpoint owns until it is closed, and memory of
// direct transfers, whose endpoint is closed before the peer counts as cut off and before the queue
// is gone; what is fetched is copied out of slots under the mutex of the queue, which a cut takes,
// too, and forgets where it would have gone.
unsafe impl Endpoint for Posting {
    unsafe fn post(
        &self,
        id: u64,
        transfer: &Transfer,
        there: &There,
    ) -> Result<Posted, PostError> {
        let order = match *transfer {
            Transfer::Put { from, len } => Order {
                id: (len > TRANSFER_BYTES).then_some(id),
                memory: from.cast_mut(),
                len,
                direction: Direction::Write,
            },
            Transfer::Get { into, len } => {
                Order { id: Some(id), memory: into, len, direction: Direction::Read }
            }
            Transfer::Atomic { .. } => {
                let error = DeviceError::System { call: "fi_atomic", errno: libc::EOPNOTSUPP };
                return Err(PostError::Device(error));
            }
        };
        self.0.post(&order, there)?;
        Ok(if order.id.is_some() { Posted::Pending } else { Posted::Done })
    }

    fn flush(&self, id: u64, peer: WorldRank) -> Result<Posted, PostError> {
        let mut state = self.0.lock();
        // Of what other threads wait for, the provider tells once.
        if state.read(&self.0.device) {
            self.0.device.wake();
        }
        let Some(lane) = state.lanes.get_mut(&peer) else { return Ok(Posted::Done) };
        if lane.is_clear() {
            return match lane.error.take() {
                Some(error) => Err(PostError::Device(error)),
                None => Ok(Posted::Done),
            };
        }
        lane.flush(id);
        Ok(Posted::Pending)
    }

    fn poll(&self, sink: &mut dyn FnMut(u64, Result<(), DeviceError>)) -> usize {
        let Queue { device, turns, .. } = &*self.0;
        let Some(turn) = turns.begin() else { return 0 };
        // Another thread may sleep that was refused room.
        let is_news = self.0.lock().read(device);
        let mut count = 0;
        // The sink may cut off a peer, and what was complete with it.
        while let Some((id, result)) = self.0.pop() {
            sink(id, result);
            count += 1;
        }
        if turns.end(turn) || is_news && count == 0 {
            device.wake();
        }
        count
    }

    fn quiesce(&self, peer: WorldRank) {
        let mut state = self.0.lock();
        state.cut_off(peer);
        if std::mem::take(&mut state.refused) {
            drop(state);
            self.0.device.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::error_of;
    use rma_core::transport::{DeviceError, WorldRank};

    #[test]
    fn only_a_refused_key_is_refused() {
        let peer = WorldRank(3);
        let (cut, gone) = (DeviceError::Cancelled(peer), DeviceError::Unreachable(peer));
        let broken = DeviceError::System { call: "fi_writemsg", errno: libc::EIO };
        for (code, is_alive, expected) in [
            (libc::EKEYREJECTED, true, DeviceError::Refused),
            (libc::ECANCELED, true, cut),
            (libc::EIO, true, broken),
            (libc::ETIMEDOUT, true, gone),
            (libc::ECANCELED, false, gone),
        ] {
            assert_eq!(error_of(peer, is_alive, "fi_writemsg", code), expected, "{code}");
        }
    }
}
