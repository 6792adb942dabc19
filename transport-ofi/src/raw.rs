//! Messages and transfers of a provider without the transport over it: the limits that
//! measurements compare with.

use crate::frame::{HEADER, Header, Kind};
use crate::profile::Seed;
use crate::seal::{JobKey, JobSecret, Opener, Sealer};
use crate::sys::{
    Caps, Combining, Completion, Direction, Endpoint, Exposed, Far, Full, Opened, Passive, Slot,
};
use crate::{Libfabric, OfiError, Wanted, choose};
use rma_core::transport::{Atomic, WorldRank};
use rma_core::{BasicElement, Op};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire};
use std::time::{Duration, Instant};

/// Both ends of a link seal as this rank to itself.
const ENDS: WorldRank = WorldRank(0);
const SLOTS: u32 = 32;
const BYTES: usize = 8 << 10;
/// So long an end looks for a message before it sleeps.
const SPIN: Duration = Duration::from_millis(1);
/// So long without a completion, and the link is broken: some providers do not tell of it.
const SILENCE: Duration = Duration::from_secs(10);
/// As many looks take milliseconds.
const SILENT_LOOKS: u32 = 1 << 16;
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// With atomics if the provider has them, or a layer of it says so.
fn opened(provider: Option<&str>, host: &str, needs_rma: bool) -> Result<Opened, OfiError> {
    let library = Libfabric::load()?;
    let offers = library.offers()?;
    let offer = choose(&offers, &Wanted { provider, needs_rma, ..Wanted::default() })?;
    let caps = Caps::of(needs_rma, offer.has_atomics);
    Opened::open(&library, offer, crate::join::host_of(offer, host), caps)
}

/// An endpoint that talks to one other. For benchmarks.
pub struct RawLink {
    endpoint: Endpoint,
    peer: u64,
    free: Vec<Slot>,
    /// Lengths of messages that arrived while it sent.
    came: Vec<usize>,
    over: Vec<Completion>,
    /// What makes and looks at tags.
    sealer: Sealer,
    opener: Opener,
}

impl RawLink {
    /// Opens one on the provider of that name or core, at an address of this host.
    ///
    /// # Errors
    /// [`OfiError`].
    pub fn open(provider: Option<&str>, host: &str) -> Result<Self, OfiError> {
        let opened = opened(provider, host, false)?;
        let ends = opened.endpoint((SLOTS, BYTES));
        let (endpoint, mut free) = ends.map_err(|failed| opened.failed(failed))?;
        let (came, over) = (Vec::new(), Vec::new());
        // None that a job has: what tags cost is measured, and not whether they keep others out.
        let key = JobKey::new(&JobSecret::default(), &Seed::default());
        let sealer = Sealer::new(&key, ENDS, ENDS);
        let opener = Opener::new(&key, ENDS, ENDS);
        let mut link =
            Self { endpoint, peer: u64::MAX, free: Vec::new(), came, over, sealer, opener };
        for slot in free.split_off(SLOTS as usize / 2) {
            link.receive_into(slot);
        }
        link.free = free;
        Ok(link)
    }

    /// Where it is reached.
    pub fn address(&self) -> &[u8] {
        self.endpoint.address()
    }

    /// Names the end that it talks to; false if that is no address of its provider.
    pub fn connect(&mut self, address: &[u8]) -> bool {
        let number = self.endpoint.insert(address);
        self.peer = number.unwrap_or(u64::MAX);
        number.is_some()
    }

    /// Sends so many bytes (8 KiB at most), as soon as there is room. False if the link is broken.
    /// Those that have room for it begin with a header, a tag and a number, as the transport's
    /// messages do; shorter ones are the provider's alone.
    pub fn send(&mut self, len: usize) -> bool {
        loop {
            if let Some(mut slot) = self.free.pop() {
                let len = len.min(BYTES);
                let message = &mut self.endpoint.bytes_mut(&mut slot)[..len];
                let is_sealed = message.first_chunk_mut::<HEADER>().map(|first| {
                    *first = Header { from: ENDS, kind: Kind::Data }.to_bytes();
                });
                if is_sealed.is_some() {
                    self.sealer.seal(message);
                }
                match self.endpoint.send(slot, len, self.peer) {
                    Ok(()) => {
                        if is_sealed.is_some() {
                            self.sealer.sent();
                        }
                        return true;
                    }
                    Err(Full(slot, None)) => self.free.push(slot),
                    Err(Full(_, Some(_))) => return false,
                }
            }
            if !self.read() {
                return false;
            }
        }
    }

    /// The length of the next message. `None` if `stop` is set before one comes, or the link is
    /// broken.
    pub fn receive(&mut self, stop: &AtomicBool) -> Option<usize> {
        let mut idle_from = None;
        loop {
            if !self.came.is_empty() {
                return Some(self.came.remove(0));
            }
            if stop.load(Acquire) || !self.read() {
                return None;
            }
            if self.came.is_empty() {
                let from: Instant = *idle_from.get_or_insert_with(Instant::now);
                if from.elapsed() > SPIN {
                    nap(&self.endpoint);
                }
            }
        }
    }

    fn receive_into(&mut self, slot: Slot) {
        // Without room now, there is a slot less.
        _ = self.endpoint.receive(slot);
    }

    fn read(&mut self) -> bool {
        let mut over = std::mem::take(&mut self.over);
        self.endpoint.read(&mut over);
        let mut is_whole = true;
        for completion in over.drain(..) {
            match completion {
                Completion::Sent(slot, Ok(())) => self.free.push(slot),
                Completion::Received(slot, Ok(len)) => {
                    let message = &self.endpoint.bytes(&slot)[..len];
                    is_whole &= len < HEADER || self.opener.open(message).is_ok();
                    self.came.push(len);
                    self.receive_into(slot);
                }
                _ => is_whole = false,
            }
        }
        self.over = over;
        is_whole
    }
}

fn nap(endpoint: &Endpoint) {
    if let Some(file) = endpoint.file()
        && endpoint.may_wait()
    {
        // One that is interrupted has ended.
        _ = poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&NAP));
    }
}

/// Bytes of memory that a peer reaches, and of the largest transfer.
const MEMORY: usize = 1 << 20;
const TRANSFERS: u32 = 32;

/// Memory for one other to reach, and an endpoint that reaches its. For benchmarks.
pub struct RawMemory {
    active: Endpoint,
    free: Vec<Slot>,
    over: Vec<Completion>,
    far: Far,
    /// What a fetch of a sum is, if the provider has it.
    sum: Option<Combining>,
    exposed: Exposed,
    passive: Arc<Passive>,
}

impl RawMemory {
    /// Opens both on the provider of that name or core, at an address of this host.
    ///
    /// # Errors
    /// [`OfiError`].
    pub fn open(provider: Option<&str>, host: &str) -> Result<Self, OfiError> {
        let opened = opened(provider, host, true)?;
        opened.check_memory(Caps::Memory)?;
        let failed = |failed| opened.failed(failed);
        let (passive, _) = opened.endpoint((1, 0)).map_err(failed)?;
        let passive = Arc::new(Passive::new(&opened, passive));
        let (active, free) = opened.active((TRANSFERS, MEMORY)).map_err(failed)?;
        let key = crate::join::random().map(u64::from_le_bytes).map_err(OfiError::random)?;
        let exposed = Exposed::fresh(&opened, passive.clone(), MEMORY, key);
        let exposed = exposed.map_err(failed)?;
        let far = Far { peer: u64::MAX, key: 0, at: 0 };
        let sum = Atomic::Combine(Op::Sum, u64::BASIC);
        let has = opened.atomics().has(sum);
        let sum = Combining::new(sum, 1, true).filter(|_| has);
        Ok(Self { active, free, over: Vec::new(), far, sum, exposed, passive })
    }

    /// Where the memory is reached: the key, where it begins, and the address.
    pub fn card(&self) -> Vec<u8> {
        let (key, start) = self.exposed.key();
        [&key.to_le_bytes(), &start.to_le_bytes(), self.passive.address()].concat()
    }

    /// Names the end whose memory it reaches; false if that is no card of its provider.
    pub fn connect(&mut self, card: &[u8]) -> bool {
        let parts = card.split_first_chunk().and_then(|(key, rest)| {
            let (start, address) = rest.split_first_chunk()?;
            Some((u64::from_le_bytes(*key), u64::from_le_bytes(*start), address))
        });
        let Some((key, at, address)) = parts else { return false };
        let peer = self.active.insert(address);
        self.far = Far { peer: peer.unwrap_or(u64::MAX), key, at };
        peer.is_some()
    }

    /// Whether it [fetches](Self::fetch).
    pub fn fetches(&self) -> bool {
        self.sum.is_some()
    }

    /// Adds to a word there so often, one after the other, and fetches what it was. False if that
    /// fails.
    pub fn fetch(&mut self, count: u64) -> bool {
        let Some(sum) = self.sum else { return false };
        (0..count).all(|_| self.begin_all(1, 0, |active, slot, far| active.combine(slot, sum, far)))
    }

    /// Writes so many bytes (1 MiB at most) so often to one place, several at a time, and waits
    /// until all are in the peer's memory. False if that fails.
    pub fn write(&mut self, len: usize, count: u64) -> bool {
        self.transfer((len, 0), count, Direction::Write)
    }

    /// The same, each behind the one before, and from the beginning again where the memory ends.
    pub fn write_along(&mut self, len: usize, count: u64) -> bool {
        self.transfer((len, len), count, Direction::Write)
    }

    /// Reads so many bytes (1 MiB at most) so often, several at a time. False if that fails.
    pub fn read(&mut self, len: usize, count: u64) -> bool {
        self.transfer((len, 0), count, Direction::Read)
    }

    fn transfer(&mut self, (len, step): (usize, usize), count: u64, direction: Direction) -> bool {
        let (len, step) = (len.min(MEMORY), step.min(MEMORY));
        self.begin_all(count, step as u64, |active, slot, far| {
            active.transfer(slot, len, direction, far)
        })
    }

    /// Of transfers that begin so many bytes apart.
    fn begin_all(
        &mut self,
        count: u64,
        step: u64,
        begin: impl Fn(&Endpoint, Slot, &Far) -> Result<(), Full>,
    ) -> bool {
        let (mut begun, mut ended) = (0, 0);
        let (mut far, mut place) = (self.far, 0);
        let (mut looks, mut silent_from) = (0u32, None);
        while ended < count {
            while begun < count
                && let Some(slot) = self.free.pop()
            {
                match begin(&self.active, slot, &far) {
                    Ok(()) => {
                        begun += 1;
                        place += step;
                        if place + step > MEMORY as u64 {
                            place = 0;
                        }
                        far.at = self.far.at.wrapping_add(place);
                    }
                    Err(Full(slot, None)) => {
                        self.free.push(slot);
                        break;
                    }
                    Err(Full(_, Some(_))) => return false,
                }
            }
            self.active.read(&mut self.over);
            if !self.over.is_empty() {
                (looks, silent_from) = (0, None);
            }
            looks = looks.wrapping_add(1);
            // To ask the clock each time would be measured, too.
            if looks.is_multiple_of(SILENT_LOOKS) {
                let from: &mut Instant = silent_from.get_or_insert_with(Instant::now);
                if from.elapsed() > SILENCE {
                    return false;
                }
            }
            for completion in self.over.drain(..) {
                let Completion::Transferred(slot, Ok(())) = completion else { return false };
                self.free.push(slot);
                ended += 1;
            }
        }
        true
    }

    /// Has the provider serve the peer until `stop` is set: it looks as long as something comes,
    /// and sleeps otherwise.
    pub fn serve(&self, stop: &AtomicBool) {
        let mut idle_from = Instant::now();
        while !stop.load(Acquire) {
            self.passive.read(&mut Vec::new());
            if !self.passive.may_wait() {
                idle_from = Instant::now();
            } else if idle_from.elapsed() > SPIN {
                nap(&self.passive);
                idle_from = Instant::now();
            }
        }
    }
}
