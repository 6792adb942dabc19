//! Transfers of one queue of the core: what is under way, and what is complete.
#![allow(unsafe_code)] // room: promises Endpoint, copies to and from memory of transfers

use crate::device::{
    DIRECT, DIRECT_ENDS, Device, TRANSFER_BYTES, TRANSFERS, TRANSFERS_TO_ONE, parse,
};
use crate::flights::{CUT, Flights, Key, UnderWay, Work};
use crate::lane::{Lane, Waiting};
use crate::looks::Looks;
use crate::port::lock;
use crate::sys::{
    Combining, Completion, Direction, Endpoint as Ends, Failure, Far, Form, Full, Slot, end,
};
use crate::turns::Turns;
use rma_core::transport::{
    DeviceError, Endpoint, PeerState, PostError, Posted, There, Transfer, WorldRank,
};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A queue of transfers.
pub(crate) struct Queue {
    device: Arc<Device>,
    state: ManuallyDrop<Mutex<State>>,
    turns: Turns,
    pub(crate) looks: Looks,
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
    flights: Flights<Slot>,
    /// Numbers of peers' addresses.
    numbers: FxHashMap<WorldRank, u64>,
    /// Why the endpoint has ended, and how many slots it keeps then.
    ended: Option<Failure>,
    kept: usize,
}

/// Memory of the core or the program.
#[derive(Clone, Copy)]
pub(crate) struct Lent {
    at: *mut u8,
    len: usize,
}

impl Lent {
    pub(crate) const NONE: Self = Self { at: std::ptr::null_mut(), len: 0 };
}

// SAFETY: used under the mutex of the queue only, until the transfer is complete or cut off: as
// long says the caller of `post` that nothing else touches it.
unsafe impl Send for Lent {}

/// A transfer, as posted.
struct Order {
    /// `None` of a put whose bytes are taken at once.
    id: Option<u64>,
    work: Work,
    /// Memory of a direct transfer, or where the bytes that a slot gets go.
    local: Lent,
    /// What goes into the slot first, unless the transfer is direct.
    operands: Lent,
}

impl Channel {
    fn open(device: &Device, size: (u32, usize)) -> Result<Self, DeviceError> {
        let (endpoint, free) = device.open(size)?;
        let flights = Flights::new(free.len());
        Ok(Self { endpoint, free, flights, numbers: FxHashMap::default(), ended: None, kept: 0 })
    }

    /// `None` as long as the peer's address is awaited.
    fn number(&mut self, device: &Device, peer: WorldRank) -> Result<Option<u64>, DeviceError> {
        if let Some(number) = self.numbers.get(&peer) {
            return Ok(Some(*number));
        }
        let address = match device.book.known(peer) {
            Ok(address) => address,
            Err(missing) => return missing.post(peer).map_or(Ok(None), Err),
        };
        let errno = libc::ENOMEM;
        let number = self.endpoint.insert(&address);
        let number = number.ok_or(DeviceError::System { call: "fi_av_insert", errno })?;
        self.numbers.insert(peer, number);
        Ok(Some(number))
    }

    fn is_busy(&self) -> bool {
        self.busy() > 0
    }

    /// Transfers that are not complete.
    fn busy(&self) -> usize {
        self.flights.slots() - self.free.len() - self.kept
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
        work: Work,
        far: &Far,
    ) -> Result<(), Full> {
        match work {
            Work::Combine(combining) => self.endpoint.combine(slot, combining, far),
            Work::Move(direction) if len > TRANSFER_BYTES => {
                // SAFETY: says the caller.
                unsafe { self.endpoint.transfer_direct(slot, (at, len), direction, far) }
            }
            Work::Move(direction) => self.endpoint.transfer(slot, len, direction, far),
        }
    }

    /// Copies what a transfer takes along into its slot.
    ///
    /// # Safety
    ///
    /// The operands are bytes that no thread changes.
    unsafe fn fill(&self, slot: &mut Slot, Order { work, operands, .. }: &Order) {
        let [_, compared, _] = self.endpoint.parts();
        let room = self.endpoint.bytes_mut(slot);
        if operands.len == 0 {
            return;
        }
        // SAFETY: says the caller.
        let operands = unsafe { std::slice::from_raw_parts(operands.at, operands.len) };
        let Work::Combine(Combining { form: Form::Compare, width, .. }) = *work else {
            return room[..operands.len()].copy_from_slice(operands);
        };
        // Two for each element: what it is compared with, and what it becomes.
        let (values, with) = room.split_at_mut(compared);
        for (at, both) in operands.chunks_exact(2 * width).enumerate() {
            let (old, new) = both.split_at(width);
            with[at * width..][..width].copy_from_slice(old);
            values[at * width..][..width].copy_from_slice(new);
        }
    }

    /// Where in a slot that is which `work` fetches.
    fn fetched<'s>(&'s self, slot: &'s Slot, work: Work) -> &'s [u8] {
        let [moved, _, was] = self.endpoint.parts();
        let at = if matches!(work, Work::Combine(_)) { was } else { moved };
        &self.endpoint.bytes(slot)[at..]
    }

    /// The core hears no more of what is under way to that peer, and what is to be tried again is
    /// not; how many that were.
    fn forget(&mut self, device: &Device, peer: WorldRank) -> usize {
        let slots = self.flights.cut_off(peer);
        let count = slots.len();
        self.free.extend(slots);
        device.ended(count);
        count
    }

    /// Closes the endpoint of direct transfers, so that their memory is touched no more.
    fn cut(self, device: &Device) {
        device.ended(self.busy());
        close_direct(device, self.endpoint);
    }
}

/// Afterwards memory of the program is touched no more.
fn close_direct(device: &Device, endpoint: Ends) {
    if let Err(code) = close(device, endpoint) {
        end("memory of a transfer", ("fi_close", code));
    }
}

/// Closes an endpoint, which the watcher does not look at any more: it may stay open.
fn close(device: &Device, endpoint: Ends) -> Result<(), c_int> {
    device.unwatch(&endpoint);
    endpoint.close()
}

/// Errors of a network on which no host answers.
const NO_WAY: [i32; 4] =
    [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ETIMEDOUT];

/// Errors of a key that is refused, and nothing else with it.
const NO_KEY: [i32; 5] =
    [libc::EACCES, libc::ENOKEY, libc::EKEYEXPIRED, libc::EKEYREVOKED, libc::EKEYREJECTED];

/// Why a transfer did not begin, or failed, of a peer that lives or not.
fn error_of(peer: WorldRank, is_alive: bool, &Failure { call, code, .. }: &Failure) -> DeviceError {
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
    /// Makes the provider's progress, and takes what is over. True if the core has something to
    /// poll, or room that it was refused.
    fn read(&mut self, device: &Device) -> bool {
        let Self { slots, direct, told, refused, over } = self;
        let (mut came, mut is_room) = (false, false);
        for channel in
            std::iter::once(&mut *slots).chain(direct.iter_mut().map(|(_, channel)| channel))
        {
            if !channel.is_busy() && !*refused {
                continue;
            }
            loop {
                let more = channel.endpoint.read(over);
                for completion in over.drain(..) {
                    match completion {
                        Completion::Transferred(slot, result) => {
                            came |= told.take(device, channel, (slot, result));
                        }
                        Completion::Ended(why) => channel.ended = Some(why),
                        _ => continue,
                    }
                    is_room = true;
                }
                if !more {
                    break;
                }
            }
            if channel.flights.is_waiting() {
                let (told, room) = told.try_again(device, channel);
                came |= told;
                is_room |= room;
            }
        }
        for (_, channel) in direct.extract_if(.., |(_, channel)| channel.ended.is_some()) {
            came |= told.end_direct(device, channel);
        }
        if slots.ended.is_some() && slots.is_busy() {
            came |= told.end_slots(device, slots);
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
        let Order { id, work, local, .. } = *order;
        let peer = there.peer;
        let is_direct = local.len > TRANSFER_BYTES;
        let lane = self.told.lanes.entry(peer).or_default();
        if !is_direct && lane.in_slots >= TRANSFERS_TO_ONE {
            return Ok(false);
        }
        let channel = match is_direct {
            false => {
                if self.slots.ended.is_some() {
                    // What that had under way has been told.
                    let channel = Channel::open(device, (TRANSFERS, TRANSFER_BYTES))?;
                    let old = std::mem::replace(&mut self.slots, channel);
                    // If it cannot be closed, its slots stay.
                    _ = close(device, old.endpoint);
                }
                &mut self.slots
            }
            true => match direct_to(&mut self.direct, device, peer)? {
                Some(channel) => channel,
                None => return Ok(false),
            },
        };
        if channel.flights.owes(peer) {
            return Ok(false);
        }
        let Some(number) = channel.number(device, peer)? else { return Ok(false) };
        let Some(mut slot) = channel.free.pop() else { return Ok(false) };
        let (key, start) = parse(&there.key);
        let far = Far { peer: number, key, at: start.wrapping_add(there.at) };
        let index = slot.index();
        if !is_direct {
            // SAFETY: the caller of `post` vouches for them.
            unsafe { channel.fill(&mut slot, order) };
        }
        // SAFETY: the caller of `post` vouches for the memory until the transfer is complete or its
        // peer was cut off, which closes the endpoint of direct ones.
        let begun = unsafe { channel.transfer(slot, local, work, &far) };
        if let Err(Full(slot, None)) = begun {
            channel.free.push(slot);
            return Ok(false);
        }
        let posted = lane.post();
        lane.in_slots += usize::from(!is_direct);
        let (cuts, unsent, queries, is_cut) = (0, 0, None, false);
        let under_way =
            UnderWay { peer, posted, id, work, local, far, start, cuts, unsent, queries, is_cut };
        channel.flights.begin(index, under_way);
        device.began();
        if let Err(Full(slot, Some(failure))) = begun {
            // Tried again, or told as what fails later is.
            self.told.take(device, channel, (slot, Err(failure)));
        }
        Ok(true)
    }

    fn channels(&self) -> impl Iterator<Item = &Channel> {
        std::iter::once(&self.slots).chain(self.direct.iter().map(|(_, channel)| channel))
    }

    /// Whether something is under way that goes on, or is tried again, when a thread looks.
    fn needs_looks(&self) -> bool {
        self.slots.flights.is_waiting() || self.direct.iter().any(|(_, it)| it.is_busy())
    }

    fn cut_off(&mut self, device: &Device, peer: WorldRank) {
        // One that has nothing under way has nothing to lose.
        let is_meant = |(of, channel): &mut (WorldRank, Channel)| *of == peer && channel.is_busy();
        self.direct.extract_if(.., is_meant).for_each(|(_, channel)| channel.cut(device));
        let forgotten = self.slots.forget(device, peer);
        self.told.cut_off(peer, forgotten);
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
    /// Takes what is over, or lets it be tried again; true if the core has something to poll.
    fn take(
        &mut self,
        device: &Device,
        channel: &mut Channel,
        (slot, result): (Slot, Result<(), Failure>),
    ) -> bool {
        let Some(under_way) = channel.flights.take(slot.index()) else { return false };
        match result {
            Err(failure) if is_running(device, under_way.peer) => {
                let (peer, key) = (under_way.peer, under_way.key());
                match channel.flights.fail((slot, under_way), failure.code, Instant::now()) {
                    Ok(queries) => {
                        if queries {
                            device.query(peer, key);
                        }
                        false
                    }
                    Err(over) => {
                        let (slot, under_way) = *over;
                        self.end(device, channel, (slot, &under_way), Err(failure))
                    }
                }
            }
            result => self.end(device, channel, (slot, &under_way), result),
        }
    }

    /// Begins what waits to be tried again, as far as it may: whether the core has something to
    /// poll, and whether there is more room.
    fn try_again(&mut self, device: &Device, channel: &mut Channel) -> (bool, bool) {
        // A provider may look for a way to one that is gone for ever, and it has slots meanwhile.
        // Nor does a target ever answer that cannot send here: it is asked as long as a wait lasts.
        let (now, patience) = (Instant::now(), device.wait_timeout);
        let is_over = |it: &UnderWay| {
            !is_running(device, it.peer) || patience.is_some_and(|most| it.is_unanswered(now, most))
        };
        let (mut came, mut is_room) =
            self.end_waiting(device, channel, libc::EHOSTUNREACH, is_over);
        let mut place = 0;
        for (peer, key) in channel.flights.unheard(now) {
            device.query(peer, key);
        }
        while let Some((slot, under_way)) = channel.flights.next_again(&mut place, now) {
            let UnderWay { local, work, far, .. } = under_way;
            let index = slot.index();
            // SAFETY: not complete and not cut off, so the caller of `post` vouches for it.
            let begun = unsafe { channel.transfer(slot, local, work, &far) };
            if let Err(Full(slot, None)) = begun {
                channel.flights.wait_longer(&mut place, (slot, under_way));
                continue;
            }
            channel.flights.begin(index, under_way);
            if let Err(Full(slot, Some(failure))) = begun {
                came |= self.take(device, channel, (slot, Err(failure)));
                is_room = true;
            }
        }
        (came, is_room)
    }

    /// Ends what waits and is meant, with that error: whether the core has something to poll, and
    /// whether there is more room.
    fn end_waiting(
        &mut self,
        device: &Device,
        channel: &mut Channel,
        code: i32,
        is_meant: impl Fn(&UnderWay) -> bool,
    ) -> (bool, bool) {
        let (mut came, mut is_room) = (false, false);
        while let Some((slot, under_way)) = channel.flights.take_waiting(&is_meant) {
            let why = Failure { call: "fi_writemsg", code, reason: String::new() };
            came |= self.end(device, channel, (slot, &under_way), Err(why));
            is_room = true;
        }
        (came, is_room)
    }

    /// The endpoint of direct transfers has ended, and with it all that it had under way: true if
    /// the core has something to poll.
    fn end_direct(&mut self, device: &Device, channel: Channel) -> bool {
        let Channel { endpoint, mut flights, ended, .. } = channel;
        // It goes on in memory of the program, for all that is known, until it is closed.
        close_direct(device, endpoint);
        let Some(why) = ended else { return false };
        let (under_way, waiting) = flights.take_all();
        let waiting = waiting.into_iter().map(|(_, waiting)| waiting);
        let all = under_way.into_iter().chain(waiting);
        all.fold(false, |came, it| self.tell(device, &it, Err(why.clone())) | came)
    }

    /// As [`end_direct`](Self::end_direct), where the endpoint has memory of its own only: it is
    /// closed when another one is needed.
    fn end_slots(&mut self, device: &Device, channel: &mut Channel) -> bool {
        let Some(why) = channel.ended.clone() else { return false };
        device.unwatch(&channel.endpoint);
        let (under_way, waiting) = channel.flights.take_all();
        channel.kept += under_way.len();
        let waiting = waiting.into_iter().map(|(slot, waiting)| {
            channel.free.push(slot);
            waiting
        });
        let all = under_way.into_iter().chain(waiting);
        all.fold(false, |came, it| self.tell(device, &it, Err(why.clone())) | came)
    }

    /// A transfer is complete, or has failed; true if the core has something to poll.
    fn end(
        &mut self,
        device: &Device,
        channel: &mut Channel,
        (slot, under_way): (Slot, &UnderWay),
        result: Result<(), Failure>,
    ) -> bool {
        let UnderWay { work, local, is_cut, .. } = *under_way;
        let is_slot = local.len <= TRANSFER_BYTES;
        let is_fetched = is_slot && work != Work::Move(Direction::Write) && local.len > 0;
        if is_fetched && !is_cut && result.is_ok() {
            let from = channel.fetched(&slot, work)[..local.len].as_ptr();
            // SAFETY: not cut off, so the caller of `post` vouches for the memory, which nothing
            // else touches; the slot is memory of its own.
            unsafe { local.at.copy_from_nonoverlapping(from, local.len) };
        }
        channel.free.push(slot);
        self.tell(device, under_way, result)
    }

    /// Has the core hear of a transfer that is over; true if it has something to poll.
    fn tell(&mut self, device: &Device, under_way: &UnderWay, result: Result<(), Failure>) -> bool {
        let UnderWay { peer, posted, id, local, is_cut, .. } = *under_way;
        device.ended(1);
        let Self { lanes, complete } = self;
        let lane = lanes.entry(peer).or_default();
        lane.in_slots -= usize::from(local.len <= TRANSFER_BYTES);
        if is_cut {
            return false;
        }
        let result = result.map_err(|failure| error_of(peer, is_running(device, peer), &failure));
        let before = complete.len();
        match (id, result) {
            (Some(id), result) => complete.push_back((peer, id, result)),
            (None, Err(error)) => lane.lose(posted, error),
            (None, Ok(())) => {}
        }
        lane.happened(posted, |Waiting { id, error, .. }| {
            complete.push_back((peer, id, error.map_or(Ok(()), Err)));
        });
        complete.len() > before
    }

    /// The core hears no more of that peer. So many slots that its transfers had are free.
    fn cut_off(&mut self, peer: WorldRank, freed: usize) {
        self.complete.retain(|(of, ..)| *of != peer);
        let left = self.lanes.remove(&peer).map_or(0, |lane| lane.in_slots - freed);
        if left > 0 {
            // They count as long as they have slots.
            self.lanes.entry(peer).or_default().in_slots = left;
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
        Ok(Self { device, state, turns: Turns::default(), looks: Looks::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// What the watcher does: whether the rank's threads are to look, and whether one may wait for
    /// room here.
    pub(crate) fn look(&self) -> (bool, bool) {
        // The thread that has it reads, or posts and reads later.
        let Ok(mut state) = self.state.try_lock() else { return (false, true) };
        (state.read(&self.device), state.refused)
    }

    /// What a target says of a key that was asked for: whether it has it, or, if it cannot be
    /// asked, nothing. True if the core has something to poll, or room that it was refused.
    pub(crate) fn hear_of(&self, peer: WorldRank, key: Option<(Key, bool)>) -> bool {
        let device = &*self.device;
        let mut state = self.lock();
        let State { slots, direct, told, refused, .. } = &mut *state;
        let (mut came, mut is_room) = (false, false);
        for channel in std::iter::once(slots).chain(direct.iter_mut().map(|(_, channel)| channel)) {
            let code = match key {
                Some((key, true)) => {
                    channel.flights.has_key(peer, &key);
                    continue;
                }
                Some((_, false)) => libc::EKEYREJECTED,
                None => libc::EHOSTUNREACH,
            };
            let is_meant = |it: &UnderWay| {
                it.queries.is_some()
                    && it.peer == peer
                    && key.is_none_or(|(key, _)| it.key() == key)
            };
            let (told, room) = told.end_waiting(device, channel, code, is_meant);
            came |= told;
            is_room |= room;
        }
        came || is_room && std::mem::take(refused)
    }

    /// Whether nothing is under way, and no thread waits for room.
    pub(crate) fn is_at_rest(&self) -> bool {
        // A thread that has it begins something, or reads.
        let state = self.state.try_lock();
        state.is_ok_and(|state| !state.refused && !state.channels().any(Channel::is_busy))
    }

    /// Whether something is under way, and whether the files of all its endpoints may be waited
    /// at. What is complete and was not polled yet is no reason to look again: the thread that
    /// read it has woken the rank.
    pub(crate) fn rest(&self) -> (bool, bool) {
        let state = self.lock();
        let is_busy = state.channels().any(Channel::is_busy);
        (is_busy, state.channels().all(|channel| channel.endpoint.may_wait()))
    }

    /// The next that no poll has handed out.
    fn pop(&self) -> Option<(u64, Result<(), DeviceError>)> {
        let (_, id, result) = self.lock().told.complete.pop_front()?;
        Some((id, result))
    }

    /// Begins a transfer, and says to the watcher whether that is to look; false if there is no
    /// room now.
    fn begin(&self, state: &mut State, order: &Order, there: &There) -> Result<bool, DeviceError> {
        let is_direct = order.local.len > TRANSFER_BYTES;
        // Who has posted small ones posts more, or waits, and looks at the latest when they have
        // all slots. What else is under way would stand still until then.
        if !is_direct && !state.needs_looks() {
            self.looks.note();
        }
        let has_begun = state.begin(&self.device, order, there)?;
        if has_begun && is_direct {
            self.looks.forget();
            self.device.call_back();
        }
        Ok(has_begun)
    }

    fn post(&self, order: &Order, there: &There) -> Result<(), PostError> {
        let device = &*self.device;
        if device.members.told(there.peer) != PeerState::Alive {
            return Err(PostError::Device(DeviceError::Unreachable(there.peer)));
        }
        let begun = self.begin(&mut self.lock(), order, there);
        if begun.map_err(PostError::Device)? {
            return Ok(());
        }
        // Without the queue's mutex: a launcher that does not read holds up the thread that
        // asks, and no other.
        let missing = device.book.address(there.peer).err();
        if let Some(error) = missing.and_then(|missing| missing.post(there.peer)) {
            return Err(PostError::Device(error));
        }
        self.looks.note();
        let mut state = self.lock();
        // To read makes room, and the provider's progress: also that of connections.
        state.refused = true;
        if state.read(device) {
            device.wake();
        }
        // The core is to poll first: it keeps what it has not heard of, and its program may go on.
        if state.told.complete.len() >= TRANSFERS as usize {
            return Err(PostError::Again);
        }
        if self.begin(&mut state, order, there).map_err(PostError::Device)? {
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
        // SAFETY: dropped here only.
        let state = unsafe { ManuallyDrop::take(&mut self.state) };
        let State { slots, direct, .. } =
            state.into_inner().unwrap_or_else(PoisonError::into_inner);
        direct.into_iter().for_each(|(_, channel)| channel.cut(&self.device));
        self.device.ended(slots.busy());
        // If it cannot be closed, its slots stay.
        _ = close(&self.device, slots.endpoint);
    }
}

/// A queue, as the core has it.
pub(crate) struct Posting(pub(crate) Arc<Queue>);

// SAFETY: a provider is given slots, which an endpoint owns until it is closed, and memory of
// direct transfers, whose endpoint is closed, or left without a call, before the peer counts as cut
// off and before the queue is gone. What is fetched is copied out of slots under the mutex of the
// queue. A cut takes that, too: afterwards nothing of the peer is copied, nor given to a provider
// once more.
unsafe impl Endpoint for Posting {
    unsafe fn post(
        &self,
        id: u64,
        transfer: &Transfer,
        there: &There,
    ) -> Result<Posted, PostError> {
        let order = match *transfer {
            Transfer::Put { from, len } => {
                let local = Lent { at: from.cast_mut(), len };
                let id = (len > TRANSFER_BYTES).then_some(id);
                Order { id, work: Work::Move(Direction::Write), local, operands: local }
            }
            Transfer::Get { into, len } => {
                let (local, work) = (Lent { at: into, len }, Work::Move(Direction::Read));
                Order { id: Some(id), work, local, operands: Lent::NONE }
            }
            Transfer::Atomic { atomic, count, operands, fetched } => {
                let combining = self.0.device.combining(atomic, count, !fetched.is_null());
                let combining = combining.map_err(PostError::Device)?;
                let len = combining.len();
                let each = if combining.form == Form::Compare { 2 } else { 1 };
                let lent = |at: *mut u8, len| match at.is_null() {
                    true => Lent::NONE,
                    false => Lent { at, len },
                };
                let (local, operands) = (lent(fetched, len), lent(operands.cast_mut(), each * len));
                Order { id: Some(id), work: Work::Combine(combining), local, operands }
            }
        };
        self.0.post(&order, there)?;
        Ok(if order.id.is_some() { Posted::Pending } else { Posted::Done })
    }

    fn flush(&self, id: u64, peer: WorldRank) -> Result<Posted, PostError> {
        self.0.looks.note();
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
        self.0.looks.note();
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
#[path = "queue_tests.rs"]
mod tests;
