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
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

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
    told: Told,
    /// A thread was told that there is no room.
    refused: bool,
    over: Vec<Completion>,
}

/// What the core is told, or will be.
#[derive(Default)]
struct Told {
    lanes: FxHashMap<WorldRank, Lane>,
    /// What no poll has handed out.
    complete: VecDeque<(WorldRank, u64, Result<(), DeviceError>)>,
}

/// An endpoint, and what it has under way.
struct Channel {
    endpoint: Ends,
    free: Vec<Slot>,
    /// By slot.
    under_way: Box<[Option<UnderWay>]>,
    /// What was cancelled with something else, in the order in which it was posted: it is tried
    /// again, one by one of each peer, so that what is refused takes nothing else with it.
    again: VecDeque<(Slot, UnderWay)>,
    /// When something was cancelled, the last time.
    cancelled_at: Option<Instant>,
    /// Numbers of peers' addresses.
    numbers: FxHashMap<WorldRank, u64>,
}

/// A transfer that is not complete.
struct UnderWay {
    peer: WorldRank,
    /// Its place among those of the peer.
    posted: u64,
    /// By which the core knows it, unless that was told already.
    id: Option<u64>,
    direction: Direction,
    /// Memory of a direct transfer, or where the bytes that a slot gets go; otherwise of no use.
    local: Lent,
    far: Far,
    /// How often the connection ended while it was under way, from the second time on with nothing
    /// else of its peer beside it; and how often there was none.
    cuts: u32,
    unsent: u32,
    /// Its peer was cut off: nobody hears of it.
    is_cut: bool,
}

/// Memory of the core or the program.
#[derive(Clone, Copy)]
struct Lent {
    at: *mut u8,
    len: usize,
}

// SAFETY: used under the mutex of the queue only, until the transfer is complete or cut off: as
// long says the caller of `post` that nothing else touches it.
unsafe impl Send for Lent {}

/// A transfer, as posted.
struct Order {
    /// `None` of a put whose bytes are taken at once.
    id: Option<u64>,
    local: Lent,
    direction: Direction,
}

impl Channel {
    fn open(device: &Device, size: (u32, usize)) -> Result<Self, DeviceError> {
        let (endpoint, free) = device.open(size)?;
        let under_way = free.iter().map(|_| None).collect();
        Ok(Self {
            endpoint,
            free,
            under_way,
            again: VecDeque::new(),
            cancelled_at: None,
            numbers: FxHashMap::default(),
        })
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
        self.busy() > 0
    }

    /// Transfers that are not complete.
    fn busy(&self) -> usize {
        self.under_way.len() - self.free.len()
    }

    /// Whether something to or from that peer is to be tried again.
    fn owes(&self, peer: WorldRank) -> bool {
        self.again.iter().any(|(_, under_way)| under_way.peer == peer)
    }

    /// Has the provider begin a transfer; `local` is memory of a direct one, and how many bytes.
    ///
    /// # Safety
    ///
    /// Memory of a direct transfer is as [`Ends::transfer_direct`] says.
    unsafe fn transfer(
        &self,
        slot: Slot,
        Lent { at, len }: Lent,
        direction: Direction,
        far: &Far,
    ) -> Result<(), Full> {
        if len > TRANSFER_BYTES {
            // SAFETY: says the caller.
            unsafe { self.endpoint.transfer_direct(slot, (at, len), direction, far) }
        } else {
            self.endpoint.transfer(slot, len, direction, far)
        }
    }

    /// Takes out what is to be tried again now: the first of each peer of which nothing else is
    /// under way.
    fn next_again(&mut self) -> Option<(Slot, UnderWay)> {
        if self.again.is_empty() || self.cancelled_at.is_some_and(|at| at.elapsed() < PAUSE) {
            return None;
        }
        let is_alone = |peer| self.under_way.iter().flatten().all(|other| other.peer != peer);
        let place = self.again.iter().position(|(_, first)| is_alone(first.peer))?;
        self.again.remove(place)
    }

    /// Closes the endpoint of direct transfers, so that their memory is touched no more.
    fn cut(self, device: &Device) {
        device.ended(self.busy());
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

/// Those of [`CUT`] that say that the connection was over before.
const UNSENT: [i32; 3] = [libc::ENOTCONN, libc::EPIPE, libc::ESHUTDOWN];

/// A transfer that was cut off once more has been refused: it was alone the last two times.
const CUTS: u32 = 2;

/// So often a transfer is tried again for which there is no connection.
const UNSENT_MOST: u32 = 1000;

/// So long after something was cancelled nothing is tried again: the provider may not have seen yet
/// that the connection is over.
const PAUSE: Duration = Duration::from_millis(1);

/// Errors of a key that is refused, and nothing else with it.
const NO_KEY: [i32; 5] =
    [libc::EACCES, libc::ENOKEY, libc::EKEYEXPIRED, libc::EKEYREVOKED, libc::EKEYREJECTED];

/// Why a transfer did not begin, or failed: told by `call`, of a peer that lives or not.
/// `is_refusal` says that a connection which ended while it was under way has refused it.
fn error_of(
    peer: WorldRank,
    (is_alive, is_refusal): (bool, bool),
    call: &'static str,
    code: i32,
) -> DeviceError {
    match code {
        code if !is_alive || NO_WAY.contains(&code) => DeviceError::Unreachable(peer),
        code if CUT.contains(&code) && is_refusal && !UNSENT.contains(&code) => {
            DeviceError::Refused
        }
        code if CUT.contains(&code) => DeviceError::Cancelled(peer),
        code if NO_KEY.contains(&code) => DeviceError::Refused,
        errno => DeviceError::System { call, errno },
    }
}

fn is_running(device: &Device, peer: WorldRank) -> bool {
    device.members.peer_state(peer) == PeerState::Alive
}

impl State {
    /// Makes the provider's progress, and takes what is over. True if the core has something to
    /// poll, or room that it was refused.
    fn read(&mut self, device: &Device) -> bool {
        let Self { slots, direct, told, refused, over } = self;
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
                    came |= told.take(device, channel, (slot, result));
                }
                if !more {
                    break;
                }
            }
            while let Some((slot, under_way)) = channel.next_again() {
                let UnderWay { local, direction, far, .. } = under_way;
                let index = slot.index();
                // SAFETY: not complete and not cut off, so the caller of `post` vouches for it.
                let begun = unsafe { channel.transfer(slot, local, direction, &far) };
                let Err(Full(slot, failure)) = begun else {
                    channel.under_way[index] = Some(under_way);
                    continue;
                };
                let Some(failure) = failure else {
                    channel.again.push_front((slot, under_way));
                    break;
                };
                is_room = true;
                came |= told.end(device, channel, (slot, under_way), Err(failure));
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
        let Order { id, local, direction } = *order;
        let peer = there.peer;
        let is_direct = local.len > TRANSFER_BYTES;
        if !is_direct && self.told.lane(peer).in_slots >= TRANSFERS_TO_ONE {
            return Ok(false);
        }
        let channel = match is_direct {
            false => &mut self.slots,
            true => match direct_to(&mut self.direct, device, peer)? {
                Some(channel) => channel,
                None => return Ok(false),
            },
        };
        if channel.owes(peer) {
            return Ok(false);
        }
        let number = channel.number(device, peer)?;
        let Some(mut slot) = channel.free.pop() else { return Ok(false) };
        let (key, start) = parse(&there.key);
        let far = Far { peer: number, key, at: start.wrapping_add(there.at) };
        let index = slot.index();
        if !is_direct && direction == Direction::Write && local.len > 0 {
            let room = channel.endpoint.bytes_mut(&mut slot).as_mut_ptr();
            // SAFETY: bytes that the caller of `post` vouches for, and a slot as long at least,
            // which has memory of its own.
            unsafe { room.copy_from_nonoverlapping(local.at, local.len) };
        }
        // SAFETY: the caller of `post` vouches for the memory until the transfer is complete or its
        // peer was cut off, which closes the endpoint of direct ones.
        let begun = unsafe { channel.transfer(slot, local, direction, &far) };
        if let Err(Full(slot, failure)) = begun {
            channel.free.push(slot);
            let Some(failure) = failure else { return Ok(false) };
            let call = if direction == Direction::Write { "fi_writemsg" } else { "fi_readmsg" };
            let state = (is_running(device, peer), false);
            return Err(error_of(peer, state, call, failure.code));
        }
        let lane = self.told.lane(peer);
        let posted = lane.post();
        lane.in_slots += usize::from(!is_direct);
        let under_way =
            UnderWay { peer, posted, id, direction, local, far, cuts: 0, unsent: 0, is_cut: false };
        channel.under_way[index] = Some(under_way);
        device.began();
        Ok(true)
    }

    fn cut_off(&mut self, device: &Device, peer: WorldRank) {
        // One that has nothing under way has nothing to lose.
        let is_meant = |(of, channel): &mut (WorldRank, Channel)| *of == peer && channel.is_busy();
        self.direct.extract_if(.., is_meant).for_each(|(_, channel)| channel.cut(device));
        for under_way in self.slots.under_way.iter_mut().flatten().filter(|it| it.peer == peer) {
            under_way.is_cut = true;
        }
        self.told.cut_off(device, peer, &mut self.slots);
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

impl Told {
    fn lane(&mut self, peer: WorldRank) -> &mut Lane {
        self.lanes.entry(peer).or_default()
    }

    /// Takes what is over, or lets it be tried again; true if the core has something to poll.
    fn take(
        &mut self,
        device: &Device,
        channel: &mut Channel,
        (slot, result): (Slot, Result<(), Failure>),
    ) -> bool {
        let Some(mut under_way) = channel.under_way[slot.index()].take() else { return false };
        let code = result.as_ref().err().map(|failure| failure.code);
        let code = code.filter(|code| CUT.contains(code) && !under_way.is_cut);
        let (count, most) = match code {
            Some(code) if UNSENT.contains(&code) => (&mut under_way.unsent, UNSENT_MOST),
            _ => (&mut under_way.cuts, CUTS),
        };
        if code.is_some() && *count < most && is_running(device, under_way.peer) {
            *count += 1;
            channel.cancelled_at = Some(Instant::now());
            let behind = |(_, other): &(Slot, UnderWay)| {
                other.peer != under_way.peer || other.posted < under_way.posted
            };
            let place = channel.again.iter().rposition(behind).map_or(0, |place| place + 1);
            channel.again.insert(place, (slot, under_way));
            return false;
        }
        self.end(device, channel, (slot, under_way), result)
    }

    /// A transfer is complete, or has failed; true if the core has something to poll.
    fn end(
        &mut self,
        device: &Device,
        channel: &mut Channel,
        (slot, under_way): (Slot, UnderWay),
        result: Result<(), Failure>,
    ) -> bool {
        let UnderWay { peer, posted, id, direction, local, cuts, is_cut, .. } = under_way;
        let is_slot = local.len <= TRANSFER_BYTES;
        if is_slot && direction == Direction::Read && !is_cut && result.is_ok() && local.len > 0 {
            let from = channel.endpoint.bytes(&slot).as_ptr();
            // SAFETY: not cut off, so the caller of `post` vouches for the memory, which nothing
            // else touches; the slot is as long at least, and memory of its own.
            unsafe { local.at.copy_from_nonoverlapping(from, local.len) };
        }
        channel.free.push(slot);
        device.ended(1);
        let lane = self.lane(peer);
        lane.in_slots -= usize::from(is_slot);
        if is_cut {
            return false;
        }
        let error = |Failure { code, .. }| {
            let state = (is_running(device, peer), cuts == CUTS);
            error_of(peer, state, "fi_cq_readerr", code)
        };
        let result = result.map_err(error);
        let (told, failed) = match (id, result) {
            (Some(id), result) => (Some((peer, id, result)), None),
            (None, result) => (None, result.err()),
        };
        if let Some(error) = failed {
            lane.lose(posted, error);
        }
        let flushed = lane.happened(posted);
        let is_told = told.is_some() || !flushed.is_empty();
        let flushed = flushed.into_iter();
        let flushed =
            flushed.map(|Waiting { id, error, .. }| (peer, id, error.map_or(Ok(()), Err)));
        self.complete.extend(told.into_iter().chain(flushed));
        is_told
    }

    /// Nobody hears any more of what is under way to that peer, and what is to be tried again is
    /// not.
    fn cut_off(&mut self, device: &Device, peer: WorldRank, slots: &mut Channel) {
        self.complete.retain(|(of, ..)| *of != peer);
        let mut left = self.lanes.remove(&peer).map_or(0, |lane| lane.in_slots);
        for (slot, under_way) in std::mem::take(&mut slots.again) {
            if under_way.peer == peer {
                slots.free.push(slot);
                device.ended(1);
                left -= 1;
            } else {
                slots.again.push_back((slot, under_way));
            }
        }
        if left > 0 {
            // They count as long as they have slots.
            self.lane(peer).in_slots = left;
        }
    }
}

impl Queue {
    pub(crate) fn open(device: Arc<Device>) -> Result<Self, DeviceError> {
        let state = State {
            slots: Channel::open(&device, (TRANSFERS, TRANSFER_BYTES))?,
            direct: Vec::new(),
            told: Told::default(),
            refused: false,
            over: Vec::new(),
        };
        let state = ManuallyDrop::new(Mutex::new(state));
        Ok(Self { device, state, turns: Turns::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// What the watcher does: whether the rank's threads are to look, and whether one may wait for
    /// room here.
    pub(crate) fn look(&self) -> (bool, bool) {
        // Who has it reads, or posts and reads later.
        let Ok(mut state) = self.state.try_lock() else { return (false, true) };
        (state.read(&self.device), state.refused)
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
        let (_, id, result) = self.lock().told.complete.pop_front()?;
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
        let direct = std::mem::take(&mut self.lock().direct);
        direct.into_iter().for_each(|(_, channel)| channel.cut(&self.device));
        self.device.ended(self.lock().slots.busy());
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
                local: Lent { at: from.cast_mut(), len },
                direction: Direction::Write,
            },
            Transfer::Get { into, len } => {
                Order { id: Some(id), local: Lent { at: into, len }, direction: Direction::Read }
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
        let Some(lane) = state.told.lanes.get_mut(&peer) else { return Ok(Posted::Done) };
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
        state.cut_off(&self.0.device, peer);
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
        for (code, state, expected) in [
            (libc::EKEYREJECTED, (true, false), DeviceError::Refused),
            (libc::ECANCELED, (true, false), cut),
            (libc::ECANCELED, (true, true), DeviceError::Refused),
            (libc::ENOTCONN, (true, true), cut),
            (libc::EIO, (true, true), broken),
            (libc::ETIMEDOUT, (true, true), gone),
            (libc::ECANCELED, (false, true), gone),
        ] {
            assert_eq!(error_of(peer, state, "fi_writemsg", code), expected, "{code} {state:?}");
        }
    }
}
