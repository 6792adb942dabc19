//! A thread that stands in for the rank's threads at the network while they sleep or compute.
//!
//! It sleeps at the provider's wait object, and wakes the rank when something has come. While a
//! thread of the rank looks by itself, it stands still: two that read take turns, and cost a core.

use crate::device::Device;
use crate::patience::Patience;
use crate::port::{Brought, Leave, Port, lock};
use crate::sync::{AtomicBool, AtomicU32, Condvar, EventFile, Mutex, fence, wait_while};
use rma_core::transport::Outcome;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

/// So long it stands still, or aside, or leaves a queue to a thread that has looked at it, before
/// it looks whether the rank's threads still look by themselves.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// The same for what the provider does not tell: room after it had none, peers that hear.
const RETRY: Duration = Duration::from_millis(1);
/// It grows to so long while nothing comes, where ranks share CPUs: many watchers that look each
/// millisecond leave the ranks none.
const RETRY_MOST: Duration = Duration::from_millis(4);
/// So often it looks, where ranks share CPUs, before it lets a provider be that may not be waited
/// at.
const LOOKS: u32 = 32;
/// So long a rank that leaves waits for peers to hear of it, at most. Then they are told that it
/// failed: what it sent them may be lost.
pub(crate) const FAREWELL: Duration = Duration::from_secs(10);
/// So long the last messages may take to be out of this process, which ends, and the last of peers
/// to come.
const LINGER: Duration = Duration::from_secs(1);

/// How the watcher is told to look.
///
/// Whatever one side stores for the other, it passes a sequentially consistent fence before it
/// loads what the other stores: so one of them sees the other.
pub(crate) struct Bell {
    file: EventFile,
    rung: AtomicBool,
    over: AtomicBool,
    /// Threads of the rank that sleep, or are about to.
    parked: AtomicU32,
    /// One of them found no room, and the watcher was not told.
    starving: AtomicBool,
    still: AtomicBool,
    /// The watcher sleeps without an eye on transfers.
    aside: AtomicBool,
    turn: Mutex<()>,
    changed: Condvar,
}

impl Bell {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            file: EventFile::new()?,
            rung: AtomicBool::new(false),
            over: AtomicBool::new(false),
            parked: AtomicU32::new(0),
            starving: AtomicBool::new(false),
            still: AtomicBool::new(false),
            aside: AtomicBool::new(false),
            turn: Mutex::new(()),
            changed: Condvar::new(),
        })
    }

    /// There is something to do for it.
    pub(crate) fn ring(&self) {
        // Pairs with the swap in `answer`: what was done before is seen then.
        if !self.rung.swap(true, AcqRel) {
            self.file.raise();
            self.go();
        }
    }

    /// The rank leaves: the watcher ends as soon as it can.
    pub(crate) fn end(&self) {
        // Pairs with the Acquire load in `watch`.
        self.over.store(true, Release);
        self.rung.store(false, Relaxed);
        self.ring();
    }

    /// A thread of the rank is about to sleep.
    pub(crate) fn park(&self) {
        self.parked.fetch_add(1, Relaxed);
        // Pairs with the fences in `stand_aside` and `starve`.
        fence(SeqCst);
        self.call_back();
        self.tell_starving();
        self.go();
    }

    /// There is something to look at for a watcher that stands aside.
    pub(crate) fn call_back(&self) {
        // At the latest when its sleep is over, it sees that nothing is left to threads.
        if self.aside.load(Relaxed) {
            self.ring();
        }
    }

    /// A thread of the rank found no room for a transfer. As long as it looks by itself it tries
    /// again; once it sleeps, the watcher looks soon, also where the provider tells nothing.
    pub(crate) fn starve(&self) {
        // Pairs with the swap in `tell_starving`: what was done before is seen by the watcher.
        self.starving.store(true, Release);
        // Pairs with the fence in `park`.
        fence(SeqCst);
        if self.is_parked() {
            self.tell_starving();
        }
    }

    fn tell_starving(&self) {
        if self.starving.load(Relaxed) && self.starving.swap(false, AcqRel) {
            self.ring();
        }
    }

    /// It is awake again.
    pub(crate) fn unpark(&self) {
        self.parked.fetch_sub(1, Relaxed);
    }

    /// Has it go on, if it stands still.
    fn go(&self) {
        // Pairs with the fence in `stand_still`.
        fence(SeqCst);
        if self.still.load(Relaxed) {
            drop(self.turn.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    fn is_parked(&self) -> bool {
        self.parked.load(Relaxed) > 0
    }

    fn is_rung(&self) -> bool {
        self.rung.load(Relaxed)
    }

    fn is_wanted(&self) -> bool {
        self.is_parked() || self.is_rung()
    }

    fn stand_still(&self) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.still.store(true, Relaxed);
        // Pairs with the fence in `go`: either this sees why not to stand, or that one that it
        // does, and waits for its turn then.
        fence(SeqCst);
        wait_while(&self.changed, turn, TICK, || !self.is_wanted());
        self.still.store(false, Relaxed);
    }

    /// Sleeps without an eye on transfers: a thread of the rank that looks at them rings before it
    /// sleeps itself. The agent, which looks as well, waits for none.
    fn stand_aside(&self, sleep: impl FnOnce() -> Woken) -> Woken {
        self.aside.store(true, Relaxed);
        // Pairs with the fence in `park`: either this sees that a thread is about to sleep,
        // or that thread sees this.
        fence(SeqCst);
        let woken = if self.is_wanted() { Woken::Rung } else { sleep() };
        self.aside.store(false, Relaxed);
        woken
    }

    /// [Stands aside](Self::stand_aside) again and again, until something has ended a sleep early,
    /// or it is not to stay any more.
    fn stay_aside(&self, mut sleep: impl FnMut() -> Woken, stays: impl Fn() -> bool) -> Woken {
        loop {
            let woken = self.stand_aside(&mut sleep);
            if woken != Woken::Late || !stays() {
                return woken;
            }
        }
    }

    fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(self.file.get(), PollFlags::IN)
    }

    /// What was rung for is about to be done. The file is emptied first: a ring that finds the
    /// flag set has been seen, and one that writes later is another wake-up.
    fn answer(&self) {
        self.file.clear();
        // Read and written as one: what ringers wrote before is seen from here on.
        self.rung.swap(false, AcqRel);
    }
}

/// What the watcher's thread runs.
pub(crate) fn watch(port: &Port, is_crowded: bool) {
    let bell = &*port.bell;
    let mut rest = Rest { is_crowded, patience: Patience::new(is_crowded), retry: RETRY, looks: 0 };
    let (mut polls, mut farewell, mut leaving) = (0, None, Leaving::default());
    let mut is_rung = true;
    let mut quiet_from = Instant::now();
    loop {
        let polled = port.polls.load(Relaxed);
        if polled != polls && !bell.is_wanted() {
            polls = polled;
            // Looks of before: the thread may compute from here on.
            port.device.iter().for_each(|device| device.note_looks(Instant::now()));
            bell.stand_still();
            continue;
        }
        polls = polled;
        if std::mem::take(&mut is_rung) || bell.is_rung() {
            bell.answer();
            rest.disturb();
        }
        let Brought { news, room } = port.read();
        // A thread that looks at its transfers by itself, as one that puts again and again when out
        // of room, has them for itself. It need not look for messages.
        let device = port.device.as_deref();
        let looked = device.map(|device| device.look(bell.is_wanted()));
        let (has_moved, are_left) = looked.unwrap_or_default();
        if news {
            port.wake();
        } else if has_moved {
            device.iter().for_each(|device| device.wake());
        }
        if news || has_moved {
            rest.disturb();
            // The thread that was woken may have this one's CPU: it goes first.
            if bell.is_parked() {
                std::thread::yield_now();
            }
            quiet_from = Instant::now();
        }
        // A thread that was told that there is no room looks again.
        let is_starved = port.is_starved();
        if room || is_starved {
            port.fed();
        }
        if room {
            rest.disturb();
        }
        let is_settled = tend(port, &mut farewell);
        let is_over = bell.over.load(Acquire);
        if is_over && leaving.may_end(port, is_settled) {
            return end(port);
        }
        // No thread computes where this one looks if a thread of the rank sleeps. To ask whether
        // the files may be waited at takes several times as long as to read.
        if bell.is_parked() && quiet_from.elapsed() < rest.patience.span() {
            continue;
        }
        let is_hasty = is_starved || !is_settled || is_over || port.is_hasty();
        let woken = rest.take(port, device.filter(|_| !are_left), is_hasty);
        is_rung = woken == Woken::Rung;
        // Where nothing has come, there is no more of it to look for.
        if woken != Woken::Late {
            quiet_from = Instant::now();
        }
    }
}

/// Until when a rank that leaves waits.
#[derive(Default)]
struct Leaving {
    /// Once it is settled, for messages that are under way.
    linger: Option<Instant>,
    /// For peers that cannot be answered: they hold up no rank that leaves.
    last: Option<Instant>,
}

impl Leaving {
    fn may_end(&mut self, port: &Port, is_settled: bool) -> bool {
        let now = Instant::now();
        if is_settled {
            let until = *self.linger.get_or_insert(now + LINGER);
            // It says what is to be said yet: then the port is not idle.
            let may_close = port.may_close();
            if port.is_idle() && may_close != Some(false) || now > until {
                return true;
            }
        }
        now > *self.last.get_or_insert(now + port.farewell + LINGER)
    }
}

/// How the watcher sleeps.
struct Rest {
    is_crowded: bool,
    patience: Patience,
    /// How long, where the provider does not tell of everything.
    retry: Duration,
    /// How often it has looked since the provider might be waited at.
    looks: u32,
}

impl Rest {
    /// Something has come, or the rank has rung.
    fn disturb(&mut self) {
        (self.retry, self.looks) = (RETRY, 0);
    }

    /// Sleeps, if the provider may be waited at; without a device, its transfers are others'.
    fn take(&mut self, port: &Port, device: Option<&Device>, is_hasty: bool) -> Woken {
        let is_blind = port.endpoint.file().is_none();
        let may_wait = port.endpoint.may_wait();
        let (is_busy, may_wait_there) = device.map_or((false, true), Device::rest);
        if may_wait && may_wait_there {
            self.looks = 0;
            if device.is_none()
                && let Some(left) = &port.device
            {
                // A message that came would have ended the sleep; one that another thread sent
                // meanwhile may be the provider's still.
                let has_to_look = || is_hasty || is_blind || port.is_hasty();
                let stays = || !has_to_look() && left.are_left(Instant::now());
                return port.bell.stay_aside(|| sleep(port, None, Some(TICK)), stays);
            }
            let timeout = (is_hasty || is_blind || is_busy).then_some(self.retry);
            let from = Instant::now();
            let woken = sleep(port, device, timeout);
            self.patience.slept(from.elapsed(), woken == Woken::Rung);
            if woken == Woken::Late && self.is_crowded && !is_blind {
                self.retry = (2 * self.retry).min(RETRY_MOST);
            }
            return woken;
        }
        self.looks += 1;
        if !self.is_crowded || self.looks <= LOOKS {
            return Woken::Told;
        }
        self.looks = 0;
        wait(&mut [port.bell.poll_fd()], Some(RETRY))
    }
}

/// The rank takes no more messages: its endpoint is closed, or stays as it is.
fn end(port: &Port) {
    let may_close = port.may_close() == Some(true) && port.is_idle();
    port.endpoint.stay_open(port.endpoint.is_delicate && !may_close);
}

/// What ended a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    Rung,
    /// The provider has something.
    Told,
    /// The time was over.
    Late,
}

/// Sleeps until something comes or the time is over.
fn sleep(port: &Port, device: Option<&Device>, timeout: Option<Duration>) -> Woken {
    let others = [port.endpoint.file(), device.map(Device::file)];
    let mut files = vec![port.bell.poll_fd()];
    files.extend(
        others.into_iter().flatten().map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN)),
    );
    wait(&mut files, timeout)
}

/// Waits at files, the bell's first.
fn wait(files: &mut [PollFd<'_>], timeout: Option<Duration>) -> Woken {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let ready = poll(files, timeout.as_ref());
    let is_rung = files.first().is_some_and(|bell| !bell.revents().is_empty());
    match ready {
        Ok(0) => Woken::Late,
        Ok(_) if is_rung => Woken::Rung,
        // An interrupted sleep is one that has ended.
        _ => Woken::Told,
    }
}

/// Talks of keys, and takes part in the leaving of peers and of this rank; false if there is more
/// to do soon.
pub(crate) fn tend(port: &Port, deadline: &mut Option<Instant>) -> bool {
    let mut is_settled = port.talk_of_keys();
    if port.due.swap(false, Relaxed) && !port.answer_farewells() {
        port.due.store(true, Release);
        is_settled = false;
    }
    let mut leave = lock(&port.leave);
    // Peers that wait for this rank hear that it cannot be reached, whatever it computes.
    if port.has_ended() && !matches!(*leave, Leave::Left { .. }) {
        *leave = Leave::Left { in_order: false };
        drop(leave);
        port.members.depart(Outcome::Failed);
        return is_settled;
    }
    let Leave::Leaving(outcome) = *leave else { return is_settled };
    let until = *deadline.get_or_insert_with(|| Instant::now() + port.farewell);
    let have_heard = port.say_farewell();
    if !have_heard && Instant::now() < until {
        return false;
    }
    let in_order = have_heard || !port.is_owed();
    port.members.depart(if in_order { outcome } else { Outcome::Failed });
    *leave = Leave::Left { in_order };
    is_settled
}

#[cfg(all(test, loom))]
#[path = "watcher_loom_tests.rs"]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Bell, Duration, Woken, wait};
    use std::cell::Cell;
    use std::thread;

    const LONG: Option<Duration> = Some(Duration::from_secs(60));

    #[test]
    fn a_thread_that_is_about_to_sleep_rings_for_a_watcher_that_stands_aside() {
        let bell = Bell::new().unwrap();
        let woken = bell.stand_aside(|| {
            thread::scope(|scope| _ = scope.spawn(|| bell.park()));
            wait(&mut [bell.poll_fd()], LONG)
        });
        assert!(woken == Woken::Rung);
        bell.answer();
        let woken = bell.stand_aside(|| unreachable!("a thread sleeps already"));
        assert!(woken == Woken::Rung);
        bell.unpark();
        bell.park();
        let rung = wait(&mut [bell.poll_fd()], Some(Duration::ZERO));
        assert!(rung == Woken::Late, "no watcher stands aside");
    }

    /// It sleeps on while transfers are left to threads, whatever a thread does besides, and comes
    /// back at once for a message, for a thread that is about to sleep, and when they are not.
    #[test]
    fn a_watcher_stays_aside_as_long_as_transfers_are_left_to_threads() {
        let bell = Bell::new().unwrap();
        let slept = Cell::new(0);
        let late_but_at = |end: u32, told: Woken| {
            slept.set(0);
            let slept = &slept;
            move || {
                slept.set(slept.get() + 1);
                if slept.get() == end { told } else { Woken::Late }
            }
        };
        let woken = bell.stay_aside(late_but_at(3, Woken::Told), || true);
        assert!(woken == Woken::Told && slept.get() == 3, "a message");
        let woken = bell.stay_aside(late_but_at(9, Woken::Told), || slept.get() < 4);
        assert!(woken == Woken::Late && slept.get() == 4, "not left any more");
        // Between two sleeps, where no look of the thread falls into one.
        let parks = || {
            if slept.get() == 2 {
                bell.park();
            }
            true
        };
        let woken = bell.stay_aside(late_but_at(9, Woken::Told), parks);
        assert!(woken == Woken::Rung && slept.get() == 2, "a thread is about to sleep");
    }
}
