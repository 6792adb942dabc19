//! Transfers of a device that does what a test tells it to: holds them, refuses them, fails.
#![allow(unsafe_code)]

use crate::config::Config;
use crate::element::Op;
use crate::engine::{Buffer, Pending, Queue, UnderWay, What};
use crate::epoch::LockAll;
use crate::error::RmaError;
use crate::layout::Layout;
use crate::rank::{Rank, WorldRank};
use crate::transport::{
    Addressing, Atomic, DeviceError, Endpoint, Keys, Mapping, PostError, Posted, Purpose,
    RegisterError, Registration, Remote, RemoteKey, RemoteLimits, There, Transfer,
};
use crate::universe::Universe;
use crate::window::Window;
use crate::window::accumulate_tests::with_device;
use core::time::Duration;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;

const ME: Rank = Rank(0);
/// Larger transfers go directly.
const BOUNCE: usize = 16;

/// A device with one endpoint at a time.
#[derive(Clone, Default)]
struct Device(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// There is no room.
    full: bool,
    /// Nor is there after so many posts.
    room: Option<usize>,
    /// Posts without room.
    refused: usize,
    /// Endpoints that there are for each purpose at most, and those that were opened.
    endpoints: Option<usize>,
    opened: [usize; 2],
    /// Nothing happens to what is posted, before [`Device::go_on`].
    held: bool,
    /// How everything ends.
    fails: Option<DeviceError>,
    orders: Vec<Order>,
    /// To these nothing happens any more.
    stuck: Vec<Order>,
    complete: Vec<(u64, Result<(), DeviceError>)>,
    flushes: usize,
    quiesced: usize,
    /// Registrations that live.
    registered: usize,
    /// It takes no memory.
    registers_nothing: bool,
}

struct Order {
    id: u64,
    /// `None` for a flush.
    transfer: Option<Transfer>,
    at: u64,
}

// SAFETY: what the addresses name is the transfer's, and tests are one thread.
unsafe impl Send for Order {}

impl Device {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything happens that was posted, the last first.
    fn go_on(&self) {
        let mut state = self.state();
        let (orders, fails) = (core::mem::take(&mut state.orders), state.fails);
        for order in orders.iter().rev() {
            if fails.is_none() {
                order.perform();
            }
            state.complete.push((order.id, fails.map_or(Ok(()), Err)));
        }
    }

    fn begin(&self, order: Order) -> Result<Posted, PostError> {
        let mut state = self.state();
        if state.full || state.room == Some(0) {
            state.refused += 1;
            return Err(PostError::Again);
        }
        state.room = state.room.map(|room| room - 1);
        state.flushes += usize::from(order.transfer.is_none());
        state.orders.push(order);
        let held = state.held;
        drop(state);
        if !held {
            self.go_on();
        }
        Ok(Posted::Pending)
    }
}

impl Order {
    fn perform(&self) {
        let there = core::ptr::with_exposed_provenance_mut::<u8>(self.at as usize);
        match self.transfer {
            None => {}
            // SAFETY: the part is registered, the origin's bytes are the transfer's.
            Some(Transfer::Put { from, len }) => unsafe { there.copy_from(from, len) },
            // SAFETY: as above.
            Some(Transfer::Get { into, len }) => unsafe { into.copy_from(there, len) },
            Some(Transfer::Atomic { atomic, operands, fetched, .. }) => {
                let (width, values) =
                    (atomic.width(), 1 + usize::from(matches!(atomic, Atomic::Swap(_))));
                // SAFETY: operands of one element are the transfer's; none for no_op.
                let operands = unsafe { bytes(operands, values * width) };
                let mut old = vec![0; if fetched.is_null() { 0 } else { width }];
                // SAFETY: in the registered part, and aligned, as the core checks.
                unsafe { atomic.perform(there, &operands, &mut old) };
                // SAFETY: room for an element, or nothing is copied.
                unsafe { fetched.copy_from(old.as_ptr(), old.len()) };
            }
        }
    }
}

/// # Safety
///
/// So many bytes are there, unless the address is null.
unsafe fn bytes(at: *const u8, len: usize) -> Vec<u8> {
    if at.is_null() {
        return Vec::new();
    }
    // SAFETY: forwarded to the caller.
    unsafe { core::slice::from_raw_parts(at, len) }.to_vec()
}

// SAFETY: transfers touch what their posts name, and are forgotten by `quiesce`.
unsafe impl Remote for Device {
    fn explain(&self) -> String {
        "a device that is a program".to_owned()
    }
    fn limits(&self) -> RemoteLimits {
        RemoteLimits {
            addressing: Addressing::Virtual,
            keys: Keys::Chosen,
            inject: 0,
            bounce: BOUNCE,
            // One element of an atomic at a time.
            transfer_max: 64,
            atomic_max: 64,
            run_min: 8,
            coherent: false,
        }
    }
    fn reaches(&self, _: WorldRank) -> bool {
        true
    }
    fn does(&self, atomic: Atomic) -> bool {
        atomic.width() == 8
    }
    unsafe fn register(
        &self,
        _: Mapping,
        _: Option<RemoteKey>,
    ) -> Result<Box<dyn Registration>, RegisterError> {
        if self.state().registers_nothing {
            return Err(RegisterError::Unsupported);
        }
        self.state().registered += 1;
        Ok(Box::new(Registered(self.clone())))
    }
    fn endpoint(&self, purpose: Purpose) -> Result<Box<dyn Endpoint>, DeviceError> {
        let mut state = self.state();
        let most = state.endpoints.unwrap_or(usize::MAX);
        let opened = &mut state.opened[usize::from(purpose == Purpose::Regions)];
        if *opened >= most {
            return Err(DeviceError::System { call: "endpoint", errno: 12 });
        }
        *opened += 1;
        Ok(Box::new(self.clone()))
    }
}

struct Registered(Device);

impl Registration for Registered {
    fn key(&self) -> RemoteKey {
        RemoteKey([7; RemoteKey::LEN])
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.state().registered -= 1;
    }
}

// SAFETY: as of `Remote`.
unsafe impl Endpoint for Device {
    unsafe fn post(
        &self,
        id: u64,
        transfer: &Transfer,
        there: &There,
    ) -> Result<Posted, PostError> {
        assert_eq!(there.key, RemoteKey([7; RemoteKey::LEN]));
        self.begin(Order { id, transfer: Some(*transfer), at: there.at })
    }
    fn flush(&self, id: u64, _: WorldRank) -> Result<Posted, PostError> {
        self.begin(Order { id, transfer: None, at: 0 })
    }
    fn poll(&self, sink: &mut dyn FnMut(u64, Result<(), DeviceError>)) -> usize {
        let complete = core::mem::take(&mut self.state().complete);
        complete.iter().for_each(|(id, result)| sink(*id, *result));
        complete.len()
    }
    fn quiesce(&self, _: WorldRank) {
        let mut state = self.state();
        state.orders.clear();
        state.stuck.clear();
        state.quiesced += 1;
    }
}

fn with_window(test: impl FnOnce(&Device, &Universe, &Window)) {
    let device = Device::default();
    let mut config = Config::default();
    config.wait_timeout = Some(Duration::ZERO);
    with_device(config, Arc::new(device.clone()), |universe| {
        let window = universe.world().window(64, 8).allocate().unwrap();
        test(&device, universe, &window);
        assert_eq!(universe.counters().messages_dropped(), 0);
        window.free().unwrap();
        assert_eq!(device.state().registered, 0);
    });
}

/// All that a device does for a window costs no message but one, which asks where the part is.
#[test]
fn a_device_costs_no_message() {
    with_window(|_, universe, window| {
        let epoch = window.lock_all().unwrap();
        let before = universe.counters().messages_sent();
        let values: Vec<u64> = (0..40).collect();
        epoch.put(ME, 0, &values).unwrap();
        epoch.put(ME, 40, &[1u64]).unwrap();
        epoch.flush(ME).unwrap();
        let mut got = [0u64; 41];
        epoch.get(ME, 0, &mut got).unwrap();
        assert_eq!((&got[..40], got[40]), (&values[..], 1));
        epoch.accumulate(ME, 40, Op::Sum, &[2u64]).unwrap();
        assert_eq!(epoch.fetch_and_op(ME, 40, Op::NoOp, 0u64), Ok(3));
        assert_eq!(epoch.compare_and_swap(ME, 40, 3u64, 9), Ok(3));
        let every = Layout::element::<u64>().vector(5, 1, 2).unwrap();
        let mut five = [0u64; 5];
        let flat = Layout::element::<u64>();
        epoch.get(ME, every.at(32), flat.times(5).of(&mut five)).unwrap();
        assert_eq!(five, [32, 34, 36, 38, 9]);
        // The question and its answer.
        assert_eq!(universe.counters().messages_sent() - before, 2);
        assert!(universe.counters().transfers() > 10);
        let counts = window.operation_counts();
        assert_eq!((counts.device, counts.messages), (7, 0));
        // No type of 4 bytes is the device's.
        epoch.accumulate(ME, 0, Op::Sum, &[1u32]).unwrap();
        assert_eq!(window.operation_counts().messages, 1);
        epoch.unlock().unwrap();
    });
}

/// Nor for a region of a dynamic window, once it is known where that is.
#[test]
fn a_known_region_costs_no_message() {
    let device = Device::default();
    with_device(Config::default(), Arc::new(device.clone()), |universe| {
        let window = universe.world().window(0, 1).create_dynamic().unwrap();
        let regions = [4, 4].map(|len| window.attach(vec![0u64; len]).unwrap());
        let sent = || universe.counters().messages_sent();
        let epoch = window.lock_all().unwrap();
        for at in regions.each_ref().map(|region| region.address()) {
            let before = sent();
            for value in 1..10u64 {
                epoch.put(ME, at + 8, &[value]).unwrap();
                epoch.flush(ME).unwrap();
                let mut got = [0u64; 4];
                epoch.get(ME, at, &mut got).unwrap();
                assert_eq!(got, [0, value, 0, 0]);
                assert_eq!(epoch.fetch_and_op(ME, at + 8, Op::Sum, 1u64), Ok(value));
                // Of each region, the question and its answer.
                assert_eq!(sent() - before, 2);
            }
            let outside = epoch.put(ME, at + 32, &[1u64]);
            assert!(matches!(outside, Err(RmaError::NotAttached { .. })), "{outside:?}");
            // The target does not answer by what another region is.
            assert_eq!(sent() - before, 4);
        }
        epoch.unlock().unwrap();
        window.free().unwrap();
    });
}

/// Memory is registered as long as it is attached; what the device does not take, messages reach,
/// and CPUs combine.
#[test]
fn attached_memory_is_registered() {
    let device = Device::default();
    with_device(Config::default(), Arc::new(device.clone()), |universe| {
        let window = universe.world().window(0, 1).create_dynamic().unwrap();
        let registered = || device.state().registered;
        let first = window.attach(vec![0u64; 4]).unwrap();
        let _empty = window.attach(Vec::<u64>::new()).unwrap();
        assert_eq!(registered(), 1);
        device.state().registers_nothing = true;
        let refused = window.attach(vec![5u64; 4]).unwrap();
        assert_eq!(registered(), 1);
        let says = |text: &str| assert!(window.explain().contains(text), "{}", window.explain());
        says("device: 1 regions attached here are registered");
        says("device: 1 are not, and reached by messages: the device cannot reach");
        let (epoch, transfers) = (window.lock_all().unwrap(), || universe.counters().transfers());
        for (region, by_device) in [(&first, true), (&refused, false)] {
            let (before, view) = (transfers(), window.region(region).unwrap());
            epoch.put(ME, region.address() + 8, &[2u64]).unwrap();
            epoch.flush(ME).unwrap();
            assert_eq!(epoch.fetch_and_op(ME, region.address() + 8, Op::Sum, 3u64), Ok(2));
            assert_eq!(view.fetch_and_op(8, Op::Sum, 4u64), Ok(5));
            assert_eq!(view.compare_and_swap(8, 9u64, 1), Ok(9));
            view.accumulate(8, Op::Sum, &[1u64]).unwrap();
            assert_eq!(view.load(8), Ok(2u64));
            assert_eq!(transfers() - before, if by_device { 5 } else { 0 });
            let outside = view.fetch_and_op(32, Op::Sum, 1u64);
            assert!(matches!(outside, Err(RmaError::OutOfRange { disp: 32, .. })), "{outside:?}");
        }
        epoch.unlock().unwrap();
        assert_eq!(window.detach(refused).unwrap(), [5, 2, 5, 5]);
        assert_eq!((window.detach(first).unwrap(), registered()), (vec![0, 2, 0, 0], 0));
        device.state().registers_nothing = false;
        let _kept = window.attach(vec![0u64; 4]).unwrap();
        let window = window.seal().unwrap().unseal().unwrap();
        assert_eq!(registered(), 1);
        window.free().unwrap();
        assert_eq!(registered(), 0);
        let window = universe.world().window(0, 1).create_dynamic().unwrap();
        let _kept = window.attach(vec![0u64; 4]).unwrap();
        drop(window);
        assert_eq!(registered(), 1, "peers may still come");
    });
    assert_eq!(device.state().registered, 0);
}

/// A detach that gives up leaves the region to the device as before.
#[test]
fn a_detach_that_gives_up_leaves_it_registered() {
    let device = Device::default();
    let mut config = Config::default();
    config.wait_timeout = Some(Duration::ZERO);
    with_device(config, Arc::new(device.clone()), |universe| {
        let window = universe.world().window(0, 1).create_dynamic().unwrap();
        let attached = window.attach(vec![0u64; 4]).unwrap();
        let at = attached.address();
        let inside = window.part.attached(at, 8).unwrap();
        let attached = window.detach(attached).unwrap_err().value;
        drop(inside);
        let epoch = window.lock_all().unwrap();
        epoch.put(ME, at, &[1u64]).unwrap();
        epoch.unlock().unwrap();
        assert_eq!((window.operation_counts().device, device.state().registered), (1, 1));
        assert_eq!(window.detach(attached).unwrap(), [1, 0, 0, 0]);
        window.free().unwrap();
    });
}

/// A thread that waits for room, to post or to flush, has a deadline, and can go on later.
#[test]
fn waiting_for_room_ends() {
    with_window(|device, _, window| {
        let epoch = window.lock_all().unwrap();
        device.state().full = true;
        let put = epoch.put(ME, 0, &[1u64]);
        assert!(matches!(put, Err(RmaError::Timeout { .. })), "{put:?}");
        device.state().full = false;
        epoch.put(ME, 0, &[2u64]).unwrap();
        device.state().full = true;
        let flush = epoch.flush(ME);
        assert!(matches!(flush, Err(RmaError::Timeout { .. })), "{flush:?}");
        device.state().full = false;
        let flushes = device.state().flushes;
        epoch.flush(ME).unwrap();
        assert_eq!(device.state().flushes, flushes + 1, "nothing is forgotten");
        epoch.flush(ME).unwrap();
        assert_eq!(device.state().flushes, flushes + 1, "nothing was put since");
        epoch.unlock().unwrap();
    });
}

/// After a wait that failed, the device does not touch what it was given.
#[test]
fn what_is_given_up_is_cut_off() {
    with_window(|device, universe, window| {
        let epoch = window.lock_all().unwrap();
        epoch.put(ME, 0, &[1u64; 8]).unwrap();
        epoch.flush(ME).unwrap();
        device.state().held = true;
        // Directly: the memory may be anything's after the call.
        let mut large = vec![5u64; 8];
        let get = epoch.get(ME, 0, &mut large);
        assert!(matches!(get, Err(RmaError::Timeout { .. })), "{get:?}");
        let put = epoch.put(ME, 0, &large);
        assert!(matches!(put, Err(RmaError::Timeout { .. })), "{put:?}");
        assert!(device.state().quiesced == 2 && device.state().orders.is_empty());
        drop(large);
        // In memory of the transfer, which lives as long as the device needs it.
        let mut small = [5u64];
        let get = epoch.get(ME, 0, &mut small);
        assert!(matches!(get, Err(RmaError::Timeout { .. })), "{get:?}");
        let state = device.state();
        assert_eq!((state.quiesced, state.orders.len()), (2, 1));
        drop(state);
        device.state().held = false;
        device.go_on();
        universe.progress();
        assert_eq!(small, [5]);
        epoch.get(ME, 0, &mut small).unwrap();
        assert_eq!(small, [1]);
        epoch.unlock().unwrap();
    });
}

/// A request that is dropped leaves its buffer to the device.
#[test]
fn dropped_requests_keep_their_buffers() {
    with_window(|device, universe, window| {
        let epoch = window.lock_all().unwrap();
        epoch.put(ME, 0, &[1u64]).unwrap();
        epoch.flush(ME).unwrap();
        device.state().held = true;
        drop(epoch.rget(ME, 0, vec![0u64; 8]).unwrap());
        drop(epoch.rget(ME, 0, vec![0u64; 1]).unwrap());
        device.state().held = false;
        device.go_on();
        universe.progress();
        assert!(device.state().complete.is_empty());
        epoch.unlock().unwrap();
    });
}

/// What the device could not do is told once, by the call that waits for it.
#[test]
fn failures_are_told() {
    with_window(|device, _, window| {
        let epoch = window.lock_all().unwrap();
        let failed = |end: &Result<(), RmaError>| {
            let refused = DeviceError::Refused;
            matches!(end, Err(RmaError::Device { target: ME, error, .. }) if *error == refused)
        };
        device.state().fails = Some(DeviceError::Refused);
        let get = epoch.get(ME, 0, &mut [0u64]);
        assert!(failed(&get), "{get:?}");
        let put = epoch.put(ME, 0, &[0u64; 8]);
        assert!(failed(&put), "{put:?}");
        epoch.put(ME, 0, &[0u64]).unwrap();
        let flush = epoch.flush(ME);
        assert!(failed(&flush), "{flush:?}");
        device.state().fails = None;
        epoch.flush(ME).unwrap();
        epoch.unlock().unwrap();
    });
}

/// A put that was complete is not forgotten when the device is cut off: a flush says so, once.
#[test]
fn what_is_lost_is_told() {
    with_window(|device, _, window| {
        let epoch = window.lock_all().unwrap();
        epoch.put(ME, 0, &[1u64]).unwrap();
        device.state().held = true;
        let get = epoch.get(ME, 0, &mut [0u64; 8]);
        assert!(matches!(get, Err(RmaError::Timeout { .. })), "{get:?}");
        device.state().held = false;
        let flush = epoch.flush(ME);
        let cut = DeviceError::CutOff(WorldRank(0));
        let told = |error| matches!(error, RmaError::Device { error, .. } if error == cut);
        assert!(flush.is_err_and(told), "{flush:?}");
        epoch.flush(ME).unwrap();
        epoch.unlock().unwrap();
    });
}

/// Another thread puts something, and then this one loses it: the next flush of the other says so,
/// once.
fn another_hears_what_is_lost<R>(lose: impl FnOnce(&Device, &LockAll<'_>) -> R) -> R {
    let mut lost = None;
    with_window(|device, _, window| {
        let epoch = window.lock_all().unwrap();
        let (put, flushed) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                epoch.put(ME, 0, &[1u64]).unwrap();
                put.wait();
                flushed.wait();
                [epoch.flush(ME), epoch.flush(ME)]
            });
            put.wait();
            lost = Some(lose(device, &epoch));
            device.state().fails = None;
            flushed.wait();
            let [first, second] = other.join().unwrap();
            assert!(matches!(first, Err(RmaError::Device { .. })), "{first:?}");
            second.unwrap();
        });
        epoch.unlock().unwrap();
    });
    lost.unwrap()
}

/// Each thread hears what became of its own puts, whichever thread has flushed them.
#[test]
fn each_thread_hears_of_its_own_puts() {
    let mine = another_hears_what_is_lost(|device, epoch| {
        device.state().fails = Some(DeviceError::Refused);
        epoch.flush(ME)
    });
    assert!(mine.is_err());
}

/// Also if a flush of another thread gave up before it knew.
#[test]
fn a_flush_that_gives_up_hides_no_loss() {
    let [gave_up, mine] = another_hears_what_is_lost(|device, epoch| {
        device.state().held = true;
        let gave_up = epoch.flush(ME);
        let mut state = device.state();
        (state.held, state.fails) = (false, Some(DeviceError::Refused));
        drop(state);
        [gave_up, epoch.flush(ME)]
    });
    assert!(matches!(gave_up, Err(RmaError::Timeout { .. })), "{gave_up:?}");
    assert!(matches!(mine, Err(RmaError::Device { .. })), "{mine:?}");
}

/// Without any endpoint, operations say why.
#[test]
fn a_device_without_endpoints() {
    with_window(|device, _, window| {
        let epoch = window.lock_all().unwrap();
        device.state().endpoints = Some(0);
        let none = epoch.put(ME, 0, &[1u64]);
        let errno = |error| matches!(error, DeviceError::System { errno: 12, .. });
        assert!(matches!(none, Err(RmaError::Device { error, .. }) if errno(error)), "{none:?}");
        epoch.unlock().unwrap();
    });
}

/// Of more threads than the device has endpoints, some share one.
#[test]
fn threads_share_endpoints() {
    let device = Device::default();
    device.state().endpoints = Some(1);
    with_device(Config::default(), Arc::new(device.clone()), |universe| {
        let window = universe.world().window(64, 8).allocate().unwrap();
        let epoch = window.lock_all().unwrap();
        thread::scope(|scope| {
            for i in 0..20u64 {
                let epoch = &epoch;
                scope.spawn(move || {
                    epoch.put(ME, i, &[i]).unwrap();
                    epoch.flush(ME).unwrap();
                    let mut got = [0u64];
                    epoch.get(ME, i, &mut got).unwrap();
                    assert_eq!(got, [i]);
                });
            }
        });
        assert_eq!(device.state().opened, [1, 0]);
        epoch.unlock().unwrap();
        window.free().unwrap();
    });
}

/// Threads that have used up the endpoints for one purpose leave those for the other alone.
#[test]
fn purposes_share_no_endpoint() {
    let device = Device::default();
    device.state().endpoints = Some(1);
    with_device(Config::default(), Arc::new(device.clone()), |universe| {
        let queues = &universe.engine().queues;
        let bits = |purpose| {
            thread::scope(|scope| {
                let mine = || queues.mine(&device, purpose).unwrap().bit;
                let threads: Vec<_> = (0..20).map(|_| scope.spawn(mine)).collect();
                let bits = threads.into_iter().map(|thread| thread.join().unwrap());
                bits.collect::<std::collections::BTreeSet<_>>()
            })
        };
        let (parts, regions) = (bits(Purpose::Parts), bits(Purpose::Regions));
        assert_eq!((parts.len(), regions.len(), device.state().opened), (1, 1, [1, 1]));
        assert_ne!(parts, regions);
    });
}

/// What another thread cuts off, which has the same queue, is told to the thread that
/// has just put something there, and is not done with the rest.
#[test]
fn what_another_thread_cut_off_is_told() {
    let device = Device::default();
    with_device(Config::default(), Arc::new(device.clone()), |universe| {
        let window = universe.world().window(64, 8).allocate().unwrap();
        let (epoch, engine) = (window.lock_all().unwrap(), universe.engine());
        let (direct, mut buffer) = (Arc::<Pending>::default(), [0u64; 4]);
        let puts = || {
            device.state().held = true;
            let queue = engine.queues.mine(&device, Purpose::Parts).unwrap();
            begin_get(queue, &direct, &mut buffer);
            let mut state = device.state();
            (state.stuck, state.held) = (core::mem::take(&mut state.orders), false);
            state.room = Some(1);
            drop(state);
            let (runs, flat) =
                (Layout::element::<u64>().vector(2, 2, 4).unwrap(), Layout::element::<u64>());
            epoch.put(ME, runs.at(0), flat.times(4).of(&[1u64, 2, 3, 4])).unwrap();
            [epoch.flush(ME), epoch.flush(ME)]
        };
        thread::scope(|scope| {
            let other = scope.spawn(puts);
            // The second run waits for room, and the first is complete.
            while device.state().refused < 2 {
                thread::yield_now();
            }
            engine.queues.cancel(&direct);
            assert_eq!(device.state().quiesced, 1);
            device.state().room = None;
            let [first, second] = other.join().unwrap();
            let cut = DeviceError::CutOff(WorldRank(0));
            let told = |error| matches!(error, RmaError::Device { error, .. } if error == cut);
            assert!(first.is_err_and(told), "{first:?}");
            second.unwrap();
        });
        epoch.unlock().unwrap();
        window.free().unwrap();
    });
}

/// Begins a get that goes directly, as one of a thread which has that queue.
fn begin_get(queue: &Queue, pending: &Arc<Pending>, into: &mut [u64]) {
    let peer = WorldRank(0);
    let transfer = Transfer::Get { into: into.as_mut_ptr().cast(), len: size_of_val(into) };
    let there = There { peer, key: RemoteKey([7; RemoteKey::LEN]), at: 0 };
    let (pending, what) = (Some(pending.clone()), What::Direct);
    let get = UnderWay { peer, pending, bounce: Vec::new(), at: None, into: Buffer::NONE, what };
    // SAFETY: nothing happens to it before it is cut off.
    unsafe { queue.post(&mut Some(get), &transfer, &there) }.unwrap();
}

/// Elements that only the device combines are its own in views, too; puts and gets there are not.
#[test]
fn views_leave_atomics_to_the_device() {
    with_window(|_, universe, window| {
        let local = window.local();
        local.store(0, 5u64).unwrap();
        assert_eq!(local.load(0), Ok(5u64));
        let transfers = || universe.counters().transfers();
        let before = transfers();
        assert_eq!(local.fetch_and_op(0, Op::Sum, 2u64), Ok(5));
        local.accumulate(0, Op::Prod, &[3u64]).unwrap();
        assert_eq!(local.compare_and_swap(0, 21u64, 9), Ok(21));
        assert_eq!(local.compare_and_swap(0, 21u64, 8), Ok(9));
        assert_eq!((local.fetch_and_op(0, Op::NoOp, 0u64), transfers() - before), (Ok(9), 5));
        // No type of 4 bytes is the device's.
        assert_eq!(local.fetch_and_op(2, Op::Sum, 2u32), Ok(0));
        assert_eq!((local.compare_and_swap(2, 2u32, 3), transfers() - before), (Ok(2), 5));
        let far = local.fetch_and_op(64, Op::Sum, 2u64);
        assert!(matches!(far, Err(RmaError::OutOfRange { disp: 64, .. })), "{far:?}");
    });
}

/// No device reaches a part that is plain memory.
#[test]
fn a_sealed_part_is_not_registered() {
    let device = Device::default();
    with_device(Config::default(), Arc::new(device.clone()), |universe| {
        let window = universe.world().window(4, 8).allocate().unwrap();
        assert_eq!(device.state().registered, 1);
        let mut sealed = window.seal().unwrap();
        assert_eq!(device.state().registered, 0);
        sealed.as_mut_slice::<u64>().unwrap()[0] = 4;
        let window = sealed.unseal().unwrap();
        assert_eq!(device.state().registered, 1);
        let (epoch, mut got) = (window.lock_all().unwrap(), [0u64]);
        epoch.get(ME, 0, &mut got).unwrap();
        epoch.unlock().unwrap();
        assert_eq!((got, window.operation_counts().device), ([4], 1));
        drop(window);
        assert_eq!(device.state().registered, 1, "peers may still come");
    });
    assert_eq!(device.state().registered, 0);
}
