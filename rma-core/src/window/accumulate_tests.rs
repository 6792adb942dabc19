//! Far accumulates on a transport that delivers the newest message first, and on stripes that are
//! held.
#![allow(unsafe_code)]

use super::Window;
use crate::config::Config;
use crate::element::{BasicType, Element, Op};
use crate::engine::Engine;
use crate::error::RmaError;
use crate::group::Group;
use crate::layout::{Layout, Row};
use crate::memory::stripe::{self, STRIPE};
use crate::protocol::message::{Head, Kind, Status};
use crate::protocol::rows::WireRow;
use crate::rank::{Rank, WorldRank};
use crate::serve::Combined;
use crate::transport::*;
use crate::universe::Universe;
use bytemuck::Zeroable;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

type OnAnswer = Box<dyn FnOnce(&Loop) + Send>;

/// One rank that sends messages to itself.
#[derive(Default)]
pub(crate) struct Loop {
    queue: Mutex<Vec<Vec<u8>>>,
    /// The rank reaches its own memory by load and store.
    near: bool,
    /// Windows have a bias.
    pub(super) biased: AtomicBool,
    /// Fences of all ranks so far; refused from `u64::MAX` on.
    pub(super) fences: AtomicU64,
    /// Messages keep their order.
    pub(super) in_order: AtomicBool,
    /// Answers that were sent as such.
    pub(super) answers: AtomicUsize,
    /// Done once, when an answer is on its way.
    on_answer: Mutex<Option<OnAnswer>>,
    /// No message is taken.
    full: AtomicBool,
    /// A message comes whenever a thread looks.
    flooded: AtomicBool,
    /// Looks until what another thread has in its hands is handled.
    held: AtomicUsize,
    /// Of ranks that are not there otherwise.
    states: Mutex<HashMap<WorldRank, PeerState>>,
    /// The rank that takes no message.
    unreachable: Mutex<Option<WorldRank>>,
    /// Peers that the rank said that it missed.
    missed: Mutex<Vec<WorldRank>>,
    /// Peers whose state was asked for.
    asked: Mutex<HashSet<WorldRank>>,
    agent: Mutex<Option<thread::JoinHandle<()>>>,
    /// The agent's thread is in a sleep, or about to be.
    armed: AtomicBool,
    /// The agent is to wake up.
    rung: AtomicBool,
    /// How often the rank has said so.
    rings: AtomicUsize,
    /// Looks for what has arrived: the others go on sending.
    arrived: AtomicU64,
    /// Of how many of them what had arrived is handled; `None`: of all.
    handled: Mutex<Option<u64>>,
    /// A thread that takes messages panics.
    broken: AtomicBool,
    /// How the rank left.
    departed: Mutex<Vec<Outcome>>,
}

impl Loop {
    /// What the caller wrote before is seen by the agent before it sleeps again.
    fn wake(&self) {
        // Pairs with the one of `arm`.
        fence(SeqCst);
        self.rung.store(true, Relaxed);
    }

    fn queue(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does that once, when an answer is on its way.
    pub(crate) fn at_answer(&self, then: impl FnOnce(&Self) + Send + 'static) {
        *self.on_answer.lock().unwrap() = Some(Box::new(then));
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Relaxed);
        self.wake();
    }

    pub(crate) fn set_flooded(&self) {
        self.flooded.store(true, Relaxed);
        self.wake();
    }

    /// Another thread has something in its hands, and has handled it at that look.
    pub(crate) fn hold(&self, looks: usize) {
        self.held.store(looks, Relaxed);
    }

    pub(crate) fn holds(&self) -> bool {
        self.held.load(Relaxed) > 0
    }

    /// Whether the agent sleeps, and nothing is there to wake it.
    pub(crate) fn is_agent_asleep(&self) -> bool {
        let idle = self.queue().is_empty() && !self.rung.load(Relaxed);
        idle && self.armed.load(Relaxed)
    }

    pub(crate) fn rings(&self) -> usize {
        self.rings.load(Relaxed)
    }

    pub(crate) fn set_state(&self, rank: WorldRank, state: PeerState) {
        self.states.lock().unwrap().insert(rank, state);
    }

    /// From now on that rank, which has left in order, takes no message.
    pub(crate) fn set_unreachable(&self, rank: WorldRank) {
        self.set_state(rank, PeerState::Departed);
        *self.unreachable.lock().unwrap() = Some(rank);
    }

    pub(crate) fn take_missed(&self) -> Vec<WorldRank> {
        core::mem::take(&mut *self.missed.lock().unwrap())
    }

    /// What had arrived when a thread looked for it is handled, of the first `looks` of them.
    pub(crate) fn set_handled(&self, looks: u64) {
        *self.handled.lock().unwrap() = Some(looks);
    }

    pub(crate) fn set_broken(&self) {
        self.broken.store(true, Relaxed);
        self.wake();
    }

    pub(crate) fn departed(&self) -> Vec<Outcome> {
        self.departed.lock().unwrap().clone()
    }

    /// Whether the agent's thread has ended.
    pub(crate) fn is_agent_over(&self) -> bool {
        self.agent.lock().unwrap().as_ref().is_none_or(thread::JoinHandle::is_finished)
    }

    /// What the rank has sent and not taken.
    pub(crate) fn take_sent(&self) -> Vec<Vec<u8>> {
        core::mem::take(&mut *self.queue())
    }

    pub(crate) fn asked(&self) -> HashSet<WorldRank> {
        self.asked.lock().unwrap().clone()
    }

    /// A message that was on its way before.
    pub(crate) fn arrive(&self, message: Vec<u8>) {
        self.queue().push(message);
        self.wake();
    }
}

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

/// Memory of the rank.
#[derive(Debug)]
pub(crate) struct Owned(Box<[UnsafeCell<Line>]>, usize);

// SAFETY: only the address is taken.
unsafe impl Send for Owned {}
// SAFETY: only the address is taken.
unsafe impl Sync for Owned {}

// SAFETY: a boxed slice stays where it is and is writable through its cells; `len` bytes fit.
unsafe impl Mapped for Owned {
    fn mapping(&self) -> Mapping {
        Mapping { base: self.0.as_ptr().cast_mut().cast(), len: self.1 }
    }
}

impl Region for Owned {
    fn descriptor(&self) -> Descriptor {
        Descriptor([0; Descriptor::LEN])
    }
}

// SAFETY: its tests send what the core does, or forge what it must survive.
unsafe impl Messages for Loop {
    fn explain(&self) -> String {
        "for tests".into()
    }
    fn limits(&self) -> Limits {
        Limits { message_max: Head::LEN + 100 }
    }
    unsafe fn send(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        if *self.unreachable.lock().unwrap() == Some(to) {
            return Err(SubmitError::PeerFailed(to));
        }
        if self.full.load(Relaxed) {
            return Err(SubmitError::Again);
        }
        self.arrive([head, body].concat());
        Ok(())
    }
    unsafe fn answer(&self, to: WorldRank, head: &[u8], body: &[u8]) -> Result<(), SubmitError> {
        self.answers.fetch_add(1, Relaxed);
        let then = self.on_answer.lock().unwrap().take();
        // SAFETY: forwarded to the caller.
        let sent = unsafe { self.send(to, head, body) };
        then.into_iter().for_each(|then| then(self));
        sent
    }
    fn keeps_order(&self, _: WorldRank) -> bool {
        self.in_order.load(Relaxed)
    }
    fn poll(&self, sink: &mut dyn FnMut(WorldRank, &[u8])) -> usize {
        assert!(!self.broken.load(Relaxed), "this thread panics on purpose");
        let mut arrived = core::mem::take(&mut *self.queue());
        if self.flooded.load(Relaxed) {
            arrived.push(vec![0]);
        }
        if !self.in_order.load(Relaxed) {
            arrived.reverse();
        }
        arrived.iter().for_each(|message| sink(WorldRank(0), message));
        arrived.len()
    }
    fn arrived(&self) -> u64 {
        self.arrived.fetch_add(1, Relaxed)
    }
    fn is_handled(&self, mark: u64) -> bool {
        let before = self.held.fetch_update(Relaxed, Relaxed, |held| held.checked_sub(1));
        let handled = self.handled.lock().unwrap().is_none_or(|looks| mark < looks);
        before.unwrap_or(0) <= 1 && handled
    }
}

impl Sleep for Loop {
    fn ring(&self, _: WorldRank) {}
    fn arm(&self) -> Ticket {
        Ticket(0)
    }
    fn disarm(&self, _: Ticket) {}
    fn park(&self, _: Ticket, _: Option<Duration>) {
        thread::yield_now();
    }
    fn is_crowded(&self) -> bool {
        false
    }
    fn relax(&self, _: u32) -> bool {
        false
    }
    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

// SAFETY: nothing is said to be a fork.
unsafe impl Members for Loop {
    fn peer_state(&self, peer: WorldRank) -> PeerState {
        self.asked.lock().unwrap().insert(peer);
        self.told(peer)
    }
    fn told(&self, peer: WorldRank) -> PeerState {
        self.states.lock().unwrap().get(&peer).copied().unwrap_or(PeerState::Alive)
    }
    fn failed(&self) -> Option<WorldRank> {
        None
    }
    fn missed(&self, peer: WorldRank) {
        self.missed.lock().unwrap().push(peer);
    }
    fn depart(&self, outcome: Outcome) {
        self.departed.lock().unwrap().push(outcome);
    }
}

// SAFETY: regions are zeroed boxes of their own.
unsafe impl Shared for Loop {
    fn allocate(&self, len: usize, _: usize) -> Result<Box<dyn Region>, AllocateError> {
        let lines = (0..len.div_ceil(64)).map(|_| UnsafeCell::new(Line { _bytes: [0; 64] }));
        Ok(Box::new(Owned(lines.collect(), len)))
    }
    fn available(&self) -> (u64, &'static str) {
        (u64::MAX, "none")
    }
    fn is_near(&self, _: WorldRank) -> bool {
        self.near
    }
    unsafe fn describe(&self, extent: &Extent, _: u64) -> Result<Descriptor, DescribeError> {
        let Place::Region(descriptor) = extent.place else { panic!("no file is here") };
        Ok(descriptor)
    }
    fn import(&self, owner: WorldRank, _: &[Descriptor]) -> Result<Box<dyn Mapped>, ImportError> {
        Err(ImportError::Malformed(owner))
    }
    fn fences_near(&self) -> bool {
        self.biased.load(Relaxed)
    }
    fn fence_near(&self) -> Result<(), ImportError> {
        let more = |fences: u64| fences.checked_add(1);
        let fences = self.fences.fetch_update(Relaxed, Relaxed, more);
        fences.map(drop).map_err(|_| ImportError::Unfenced(WorldRank(0)))
    }
}

/// A thread that sleeps until it is rung, or not at all if that has a bound.
impl Agent for Loop {
    fn start(&self, body: AgentBody) -> Result<(), AgentError> {
        *self.agent.lock().unwrap() = Some(thread::spawn(body));
        Ok(())
    }
    fn join(&self) {
        let agent = self.agent.lock().unwrap().take();
        self.wake();
        assert_eq!(agent.unwrap().join().is_err(), self.broken.load(Relaxed));
    }
    fn attend(&self) {}
    fn leave(&self) -> bool {
        true
    }
    fn has_messages(&self) -> bool {
        !self.queue().is_empty()
    }
    fn ring(&self) {
        self.rings.fetch_add(1, Relaxed);
        self.wake();
    }
    fn arm(&self) -> Ticket {
        self.armed.store(true, Relaxed);
        // Pairs with the one of `wake`.
        fence(SeqCst);
        Ticket(0)
    }
    fn disarm(&self, _: Ticket) {
        self.armed.store(false, Relaxed);
    }
    fn park(&self, _: Ticket, timeout: Option<Duration>) {
        while !self.rung.swap(false, Relaxed) && timeout.is_none() {
            thread::yield_now();
        }
        self.armed.store(false, Relaxed);
    }
}

const ME: Rank = Rank(0);

/// A rank that reaches itself by messages only, and what they go through.
pub(crate) fn with_loop(config: Config, test: impl FnOnce(&Universe, &Loop)) {
    run(config, Loop::default(), None, test);
}

/// A rank that a device reaches, and messages.
pub(crate) fn with_device(config: Config, device: Arc<dyn Remote>, test: impl FnOnce(&Universe)) {
    run(config, Loop::default(), Some(device), |universe, _| test(universe));
}

/// A rank that reaches its own memory by load and store.
pub(crate) fn with_near(test: impl FnOnce(&Universe)) {
    let network = Loop { near: true, ..Loop::default() };
    run(Config::default(), network, None, |universe, _| test(universe));
}

/// As [`with_loop`], of a rank that is perhaps `near`; windows have a bias.
pub(crate) fn with_bias(near: bool, test: impl FnOnce(&Universe, &Loop)) {
    let network = Loop { near, biased: true.into(), ..Loop::default() };
    run(Config::default(), network, None, test);
}

fn run(
    config: Config,
    network: Loop,
    remote: Option<Arc<dyn Remote>>,
    test: impl FnOnce(&Universe, &Loop),
) {
    let network = Arc::new(network);
    let parts = Parts {
        job: Job { name: "loop", rank: WorldRank(0), size: 1 },
        messages: network.clone(),
        sleep: network.clone(),
        members: network.clone(),
        shared: network.clone(),
        cma: None,
        remote,
        agent: Some(network.clone()),
        views: None,
    };
    // SAFETY: the only universe that is made with them.
    let transport = unsafe { Transport::from_parts(parts) };
    test(&Universe::new(transport, config).unwrap(), &network);
}

/// As [`with_loop`].
pub(crate) fn with_universe(config: Config, test: impl FnOnce(&Universe)) {
    with_loop(config, |universe, _| test(universe));
}

/// A window of `count` words at a rank that reaches itself by messages only.
fn with_window(count: usize, test: impl FnOnce(&Window)) {
    with_universe(Config::default(), |universe| {
        let window = universe.world().window(count, 8).allocate().unwrap();
        test(&window);
        assert_eq!(universe.counters().messages_dropped(), 0);
        window.free().unwrap();
    });
}

/// Calls `operation`, and `give_back` once this rank has gone to sleep in it.
pub(super) fn asleep_in<R>(
    engine: &Engine,
    give_back: impl FnOnce() + Send,
    operation: impl FnOnce() -> R,
) -> R {
    thread::scope(|scope| {
        let parked = engine.counters.parked();
        scope.spawn(move || {
            while engine.counters.parked() == parked {
                thread::yield_now();
            }
            give_back();
        });
        operation()
    })
}

fn load<E: Element, const N: usize>(window: &Window) -> [E; N] {
    let mut values: [E; N] = [Zeroable::zeroed(); N];
    window.local().read(0, &mut values).unwrap();
    values
}

/// S-H7
#[test]
fn overtaking_messages_do_not_reorder() {
    with_window(64, |window| {
        let epoch = window.lock_all().unwrap();
        // Three messages, then one on what the second of them changes.
        epoch.accumulate(ME, 0, Op::Replace, &[2.0f64; 30]).unwrap();
        epoch.accumulate(ME, 15, Op::Sum, &[1.0f64]).unwrap();
        epoch.accumulate(ME, 0, Op::Prod, &[3.0f64; 30]).unwrap();
        let mut seen = [0.0f64; 30];
        epoch.get_accumulate(ME, 0, Op::NoOp, &[], &mut seen).unwrap();
        assert_eq!((seen[14], seen[15], seen[16]), (6.0, 9.0, 6.0));
        epoch.accumulate(ME, 40, Op::Replace, &[5u64]).unwrap();
        assert_eq!(epoch.compare_and_swap(ME, 40, 5u64, 6), Ok(5));
        epoch.unlock().unwrap();
        assert_eq!(load::<f64, 30>(window), seen);
    });
}

/// With layouts and without, many messages each. S-H7 S-H9
#[test]
fn overtaking_rows_do_not_reorder() {
    with_window(64, |window| {
        let epoch = window.lock_all().unwrap();
        let one = Layout::element::<f64>();
        let (odd, back) = (one.vector(30, 1, 2).unwrap(), one.vector(30, 1, -2).unwrap());
        let operands = |value: f64| [value; 30];
        let dense = one.times(30);
        epoch.accumulate(ME, odd.at(1), Op::Replace, dense.of(&operands(2.0))).unwrap();
        epoch.accumulate(ME, 31, Op::Sum, &[1.0f64]).unwrap();
        epoch.accumulate(ME, back.at(59), Op::Prod, dense.of(&operands(3.0))).unwrap();
        let mut seen = [0.0f64; 30];
        epoch.get_accumulate(ME, odd.at(1), Op::NoOp, &[], &mut seen).unwrap();
        assert_eq!((seen[14], seen[15], seen[16], seen[29]), (6.0, 9.0, 6.0, 6.0));
        let request = epoch
            .rget_accumulate(
                ME,
                odd.at(1),
                Op::Sum,
                dense.of(&operands(1.0)[..]),
                dense.of(vec![0.0f64; 30]),
            )
            .unwrap();
        epoch.accumulate(ME, 1, Op::Replace, &[0.5f64; 60]).unwrap();
        assert_eq!(request.wait().unwrap(), seen.to_vec());
        epoch.unlock().unwrap();
        assert_eq!(load::<f64, 61>(window)[1..], [0.5; 60]);
    });
}

/// Words before the second stripe.
const EDGE: u64 = STRIPE / 8;

#[test]
fn a_busy_stripe_puts_rows_off() {
    with_window(2 * EDGE as usize, |window| {
        let block = window.part.block.get();
        let (epoch, one) = (window.lock_all().unwrap(), Layout::element::<f64>());
        let held = stripe::try_one(block, STRIPE, Rank(7)).unwrap();
        let far_apart = one.vector(2, 1, 100).unwrap();
        epoch
            .accumulate(ME, far_apart.at(EDGE - 12), Op::Sum, one.times(2).of(&[1.0f64; 2]))
            .unwrap();
        epoch.accumulate(ME, one.at(1), Op::Sum, one.of(&[1.0f64])).unwrap();
        let engine = window.engine();
        while engine.progress() > 0 {}
        let at = |disp| window.local().load::<f64>(disp).unwrap();
        assert_eq!((at(EDGE - 12), at(1), at(EDGE + 88)), (0.0, 1.0, 0.0), "all or nothing");
        assert!(!engine.serving().deferred.is_empty() && !window.far.is_idle());
        drop(held);
        epoch.flush_all().unwrap();
        assert_eq!((at(EDGE - 12), at(1), at(EDGE + 88)), (1.0, 1.0, 1.0));
        epoch.unlock().unwrap();
    });
}

#[test]
fn other_bytes_are_not_waited_for() {
    with_window(8, |window| {
        let epoch = window.lock_all().unwrap();
        let sent = window.engine().counters.messages_sent();
        epoch.accumulate(ME, 0, Op::Sum, &[1.0f64]).unwrap();
        epoch.accumulate(ME, 1, Op::Sum, &[1.0f64]).unwrap();
        epoch.accumulate(ME, 3, Op::Sum, &[1.0f64]).unwrap();
        assert_eq!(window.engine().counters.messages_sent(), sent + 3);
        assert_eq!(load::<f64, 2>(window), [0.0, 0.0], "nothing was served yet");
        epoch.accumulate(ME, 0, Op::Sum, &[1.0f64; 2]).unwrap();
        assert_eq!(load::<f64, 2>(window), [1.0, 1.0], "the earlier ones were waited for");
        assert!(!window.far.is_idle());
        epoch.flush_all().unwrap();
        assert!(window.far.is_idle());
        assert_eq!(load::<f64, 4>(window), [2.0, 2.0, 0.0, 1.0]);
        epoch.unlock().unwrap();
    });
}

#[test]
fn a_busy_stripe_puts_a_message_off() {
    with_window(2 * EDGE as usize, |window| {
        let block = window.part.block.get();
        let epoch = window.lock_all().unwrap();
        let held = stripe::try_one(block, STRIPE, Rank(7)).unwrap();
        epoch.accumulate(ME, EDGE - 2, Op::Sum, &[1.0f64; 4]).unwrap();
        epoch.accumulate(ME, 0, Op::Sum, &[1.0f64]).unwrap();
        epoch.accumulate(ME, EDGE + 88, Op::Sum, &[1i64]).unwrap();
        let engine = window.engine();
        while engine.progress() > 0 {}
        assert!(!engine.serving().deferred.is_empty());
        let at = |disp| window.local().load::<f64>(disp).unwrap();
        assert_eq!((at(EDGE - 2), at(EDGE - 1), at(EDGE)), (0.0, 0.0, 0.0), "all or nothing");
        assert_eq!(at(0), 1.0, "another stripe");
        assert_eq!(window.local().load(EDGE + 88), Ok(1i64), "integers need no stripe");
        assert!(!window.far.is_idle());
        drop(held);
        epoch.flush_all().unwrap();
        assert!(engine.serving().deferred.is_empty());
        assert_eq!((at(EDGE - 2), at(EDGE - 1), at(EDGE), at(EDGE + 1)), (1.0, 1.0, 1.0, 1.0));
        epoch.unlock().unwrap();
    });
}

#[test]
fn waits_end_when_the_stripe_is_given_back() {
    with_window(2, |window| {
        let (engine, stripe) = (window.engine(), window.part.block.get().stripe(0));
        let epoch = window.lock_all().unwrap();
        let while_held = |operation: &dyn Fn() -> f32| {
            stripe.store(8, Relaxed);
            // pairs with the Acquire exchange in `stripe::try_one`.
            asleep_in(engine, || stripe.store(0, Release), operation)
        };
        let far = || epoch.fetch_and_op(ME, 0, Op::Sum, 2.0f32).unwrap();
        assert_eq!(while_held(&far), 0.0);
        assert!(engine.serving().deferred.is_empty());
        let view = || window.local().fetch_and_op(0, Op::Sum, 1.0f32).unwrap();
        assert_eq!(while_held(&view), 2.0);
        assert_eq!(window.local().load(0), Ok(3.0f32));
        epoch.unlock().unwrap();
    });
}

#[test]
fn a_view_waits_for_the_stripe_of_its_bytes_only() {
    let mut config = Config::default();
    config.wait_timeout = Some(Duration::ZERO);
    with_universe(config, |universe| {
        let window = universe.world().window(2 * EDGE as usize, 8).allocate().unwrap();
        let held = stripe::try_one(window.part.block.get(), 0, Rank(7)).unwrap();
        let add = |disp| window.local().fetch_and_op(disp, Op::Sum, 1.0f64);
        assert_eq!(add(EDGE), Ok(0.0));
        assert!(matches!(add(EDGE - 1), Err(RmaError::Timeout { .. })));
        drop(held);
        assert_eq!((add(EDGE - 1), add(EDGE)), (Ok(0.0), Ok(1.0)));
        window.free().unwrap();
    });
}

/// It needs a stripe less than the one before, and does not overtake it. S-H7
#[test]
fn what_was_sent_since_is_put_off_too() {
    with_loop(Config::default(), |universe, network| {
        let window = universe.world().window(2 * EDGE as usize, 8).allocate().unwrap();
        let (engine, block) = (universe.engine(), window.part.block.get());
        let replace = |offset: u64, values: &[f64]| {
            let mut head = Head::new(Kind::Accumulate, window.id().0, 0);
            (head.basic, head.op) = (BasicType::F64.to_wire(), Op::Replace as u8);
            (head.offset, head.length) = (offset.into(), (8 * values.len() as u64).into());
            network.arrive([head.as_bytes(), bytemuck::cast_slice(values)].concat());
            engine.progress();
        };
        let held = stripe::try_one(block, STRIPE, Rank(7)).unwrap();
        replace(STRIPE - 8, &[1.0, 1.0]);
        replace(STRIPE - 8, &[2.0]);
        let at = |disp| window.local().load::<f64>(disp).unwrap();
        assert_eq!((at(EDGE - 1), engine.retry_deferred()), (0.0, 0), "both wait");
        drop(held);
        assert_eq!(engine.retry_deferred(), 2);
        assert_eq!((at(EDGE - 1), at(EDGE)), (2.0, 1.0));
    });
}

/// A holder that has left gives nothing back: the origin hears that it cannot be done, and what
/// waits for others goes on waiting.
#[test]
fn what_was_put_off_ends_when_the_holder_has_left() {
    with_loop(Config::default(), |universe, network| {
        let mut window = universe.world().window(1, 8).allocate().unwrap();
        let (engine, id, it) = (universe.engine(), window.id(), Rank(1));
        // Of two ranks, as far as this one's part knows.
        engine.own_windows().remove(id);
        let part = Arc::get_mut(&mut window.part).unwrap();
        Arc::get_mut(&mut part.comm.inner).unwrap().group = Group::world(2);
        engine.own_windows().add(id.0, &window.part);
        let mut head = Head::new(Kind::Accumulate, id.0, 0);
        (head.basic, head.op, head.length) = (BasicType::F64.to_wire(), Op::Sum as u8, 8.into());
        let _held = stripe::try_one(window.part.block.get(), 0, it).unwrap();
        network.arrive([head.as_bytes(), &1.0f64.to_le_bytes()].concat());
        engine.progress();
        assert_eq!((engine.retry_deferred(), network.take_sent().len()), (0, 0));
        network.set_state(WorldRank(it.0), PeerState::Departed);
        assert_eq!(engine.retry_deferred(), 1);
        assert!(engine.serving().deferred.is_empty());
        let sent = network.take_sent();
        let answers: Vec<_> = sent.iter().map(|bytes| Head::parse(bytes).unwrap().0).collect();
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].kind(), Kind::Accumulate.answer());
        assert_eq!((answers[0].status(), answers[0].offset), (Some(Status::HolderLeft), 1.into()));
        assert_eq!(window.local().load(0), Ok(0.0f64));
    });
}

/// The agent takes up again what was put off: this rank calls nothing meanwhile. S-M5
#[test]
fn an_agent_takes_up_what_was_put_off() {
    with_window(1, |window| {
        let (comm, stripe) = (&window.part.comm, window.part.block.get().stripe(0));
        let engine = &comm.inner.engine;
        let epoch = window.lock_all().unwrap();
        stripe.store(8, Relaxed);
        epoch.accumulate(ME, 0, Op::Sum, &[2.0f32]).unwrap();
        engine.need_agent().unwrap();
        while engine.serving().deferred.is_empty() {
            thread::yield_now();
        }
        assert_eq!(window.local().load(0), Ok(0.0f32));
        // pairs with the Acquire exchange in `stripe::try_one`.
        stripe.store(0, Release);
        while window.local().load(0) == Ok(0.0f32) {
            thread::yield_now();
        }
        assert_eq!(window.local().load(0), Ok(2.0f32));
        engine.stop_agent();
        assert!(engine.counters.served_by_agent() > 0);
        epoch.unlock().unwrap();
    });
}

/// Every field of a message is checked where it arrives. S-H13
#[test]
fn forged_messages_change_nothing() {
    with_window(4, |window| {
        window.local().write(0, &[0x11u8; 32]).unwrap();
        let good = (Kind::Accumulate, BasicType::F64.to_wire(), Op::Sum as u8, 8u64, 8u64, 8usize);
        let serve = |message: (Kind, u8, u8, u64, u64, usize)| {
            let (kind, basic, op, offset, length, body) = message;
            let mut head = Head::new(kind, window.id().0, 0);
            (head.basic, head.op) = (basic, op);
            (head.offset, head.length) = (offset.into(), length.into());
            window
                .part
                .accumulate(kind, &head, &vec![0x3f; body], 100)
                .map(|answer| !matches!(answer, Combined::Busy(_)))
        };
        let f64 = BasicType::F64.to_wire();
        let u16 = BasicType::U16.to_wire();
        let malformed = [
            (Kind::Accumulate, 200, 0, 8, 8, 8),
            (Kind::Accumulate, f64, 200, 8, 8, 8),
            (Kind::Accumulate, f64, Op::BitAnd as u8, 8, 8, 8),
            (Kind::Accumulate, f64, Op::NoOp as u8, 8, 8, 0),
            (Kind::GetAccumulate, f64, Op::NoOp as u8, 8, 8, 8),
            (Kind::GetAccumulate, f64, Op::MinLoc as u8, 8, 8, 8),
            (Kind::Accumulate, f64, 0, 8, 0, 0),
            (Kind::Accumulate, f64, 0, 8, 7, 7),
            (Kind::Accumulate, f64, 0, 8, 16, 8),
            (Kind::Accumulate, f64, 0, 8, 8, 16),
            (Kind::Accumulate, f64, 0, 8, 104, 104),
            (Kind::GetAccumulate, f64, Op::NoOp as u8, 8, u64::MAX - 7, 0),
            (Kind::CompareSwap, f64, 0, 8, 8, 16),
            (Kind::CompareSwap, u16, 0, 8, 2, 2),
            (Kind::CompareSwap, u16, 0, 8, 2, 5),
            (Kind::CompareSwap, u16, 0, 8, 4, 4),
            (Kind::CompareSwap, u16, 0, 8, 4, 8),
        ];
        for message in malformed {
            assert_eq!(serve(message), Err(Status::Malformed), "{message:?}");
        }
        let misaligned = [
            (Kind::Accumulate, f64, 0, 4, 8, 8),
            (Kind::Accumulate, u16, 0, 1, 2, 2),
            (Kind::CompareSwap, u16, 0, 1, 2, 4),
        ];
        for message in misaligned {
            assert_eq!(serve(message), Err(Status::Misaligned), "{message:?}");
        }
        let outside = [
            (Kind::Accumulate, f64, 0, 32, 8, 8),
            (Kind::Accumulate, f64, 0, 24, 16, 16),
            (Kind::Accumulate, f64, 0, u64::MAX, 8, 8),
            (Kind::GetAccumulate, f64, Op::NoOp as u8, u64::MAX - 7, 8, 0),
            (Kind::CompareSwap, u16, 0, 32, 2, 4),
        ];
        for message in outside {
            assert_eq!(serve(message), Err(Status::OutOfRange), "{message:?}");
        }
        assert_eq!(load::<u8, 32>(window), [0x11; 32]);
        assert_eq!(serve(good), Ok(true));
        assert_ne!(load::<u8, 32>(window), [0x11; 32]);
    });
}

/// Every row of a message is checked where it arrives. S-H13 S-H14
#[test]
fn forged_rows_change_nothing() {
    with_window(4, |window| {
        window.local().write(0, &[0x11u8; 32]).unwrap();
        let (f64, sum) = (BasicType::F64.to_wire(), Op::Sum as u8);
        let pair = BasicType::COMPLEX_F64.to_wire();
        let row = Row { at: 0, stride: 16, len: 8, count: 2 };
        let serve = |kind, basic, op, row: Row, length: u64, operands: usize| {
            let mut head = Head::new(kind, window.id().0, 1);
            (head.basic, head.op, head.length) = (basic, op, length.into());
            let mut body = WireRow::new(row).unwrap().as_bytes().to_vec();
            body.extend(vec![0x3f; operands]);
            let answer = window.part.accumulate(kind, &head, &body, 100);
            answer.map(|answer| !matches!(answer, Combined::Busy(_)))
        };
        let (add, get) = (Kind::Accumulate, Kind::GetAccumulate);
        let no_op = Op::NoOp as u8;
        let malformed = [
            (add, 200, sum, row, 16, 16),
            (add, f64, 200, row, 16, 16),
            (add, f64, no_op, row, 16, 0),
            (add, f64, Op::BitOr as u8, row, 16, 16),
            (add, f64, sum, row, 16, 8),
            (add, f64, sum, row, 16, 24),
            (add, f64, sum, row, 8, 8),
            (add, f64, sum, row, 0, 0),
            (add, f64, sum, Row { len: 4, ..row }, 8, 8),
            (add, pair, sum, row, 16, 16),
            (add, f64, sum, Row { stride: 0, count: 13, ..row }, 104, 104),
            (get, f64, no_op, row, 16, 16),
            (get, f64, no_op, Row { stride: 0, count: 13, ..row }, 104, 0),
            (get, f64, no_op, Row { stride: 0, count: u32::MAX.into(), ..row }, 8 << 32, 0),
        ];
        for (kind, basic, op, row, length, operands) in malformed {
            let served = serve(kind, basic, op, row, length, operands);
            assert_eq!(served, Err(Status::Malformed), "{kind:?} {op} {row:?} {length} {operands}");
        }
        for row in [Row { at: 4, ..row }, Row { stride: 12, ..row }] {
            assert_eq!(serve(add, f64, sum, row, 16, 16), Err(Status::Misaligned), "{row:?}");
        }
        for row in
            [Row { at: 24, ..row }, Row { stride: -16, ..row }, Row { at: i64::MAX - 7, ..row }]
        {
            assert_eq!(serve(add, f64, sum, row, 16, 16), Err(Status::OutOfRange), "{row:?}");
        }
        assert_eq!(load::<u8, 32>(window), [0x11; 32]);
        assert_eq!(serve(add, f64, Op::Replace as u8, row, 16, 16), Ok(true));
        let (old, new) = ([0x11u8; 8], [0x3fu8; 8]);
        assert_eq!(load::<[u8; 8], 4>(window), [new, old, new, old]);
    });
}
