//! Ranks on a simulated network: feature `simulate`.

use crate::start::with_storage;
use crate::{Config, Universe};
use rma_transport_sim::{DeviceConfig, NetConfig, SimFailure};

/// As [`local`](crate::local), on a simulated network without shared memory, whose order and delays
/// `seed` decides: the same seed gives the same run.
///
/// All operations travel as messages. A program that waits for ever is found and reported as a
/// deadlock. So is one that polls for ever: by loads of its own part,
/// [`Window::sync`](crate::Window::sync), [`Universe::progress`], `Request::test` or
/// `Exposure::test`. A rank polls in vain if it does nothing else for 20 000 steps in a row, while
/// all others wait, have ended or poll, too, and no message is on its way. A call that looks for
/// messages is a step. So is an access to the rank's own part; of many in a row, one in 64.
///
/// Ranks must not share locks, channels, barriers or other memory among each other, and must
/// call the library, views included, from their own thread only.
///
/// ```
/// let sums = rma::simulate(3, 42, |universe| {
///     let world = universe.world();
///     let window = world.window(1, 8).allocate().unwrap();
///     let epoch = window.lock_all().unwrap();
///     epoch.fetch_and_op(rma::Rank(0), 0, rma::Op::Sum, 1u64).unwrap();
///     epoch.unlock().unwrap();
///     world.barrier().unwrap();
///     window.local().load::<u64>(0).unwrap()
/// });
/// assert_eq!(sums.unwrap()[0], 3);
/// ```
///
/// # Errors
///
/// A rank panicked, or the run made no progress; the error says how to replay it.
pub fn simulate<R: Send>(
    ranks: u32,
    seed: u64,
    body: impl Fn(Universe) -> R + Sync,
) -> Result<Vec<R>, SimFailure> {
    simulate_with(Config::default(), ranks, seed, body)
}

/// As [`simulate`], with budgets and deadlines of one's own.
///
/// ```
/// let mut config = rma::Config::default();
/// config.set("dynamic_regions", "1").unwrap();
/// let refused = rma::simulate_with(config, 1, 42, |universe| {
///     let window = universe.world().window(0, 1).create_dynamic().unwrap();
///     let _first = window.attach(vec![0u64; 4]).unwrap();
///     window.attach(vec![0u64; 4]).is_err()
/// });
/// assert_eq!(refused.unwrap(), [true]);
/// ```
///
/// # Errors
///
/// As [`simulate`].
pub fn simulate_with<R: Send>(
    config: Config,
    ranks: u32,
    seed: u64,
    body: impl Fn(Universe) -> R + Sync,
) -> Result<Vec<R>, SimFailure> {
    on(&config, &NetConfig::new(ranks, seed), body)
}

/// As [`simulate`], on a network with a device that moves bytes without their target (RDMA): puts,
/// gets and atomics are its transfers, which happen and end in any order; the rest are messages.
///
/// ```
/// let got = rma::simulate_rdma(2, 42, |universe| {
///     let window = universe.world().window(1, 8).allocate().unwrap();
///     let right = universe.world().rank().on_ring(1, 2);
///     let epoch = window.fence(rma::Assert::NONE).unwrap();
///     epoch.put(right, 0, &[u64::from(right)]).unwrap();
///     epoch.end().unwrap();
///     assert_eq!(window.operation_counts().device, 1);
///     window.local().load::<u64>(0).unwrap()
/// });
/// assert_eq!(got.unwrap(), [0, 1]);
/// ```
///
/// # Errors
///
/// As [`simulate`].
pub fn simulate_rdma<R: Send>(
    ranks: u32,
    seed: u64,
    body: impl Fn(Universe) -> R + Sync,
) -> Result<Vec<R>, SimFailure> {
    simulate_rdma_with(Config::default(), ranks, seed, body)
}

/// As [`simulate_rdma`], with budgets and deadlines of one's own.
///
/// # Errors
///
/// As [`simulate`].
pub fn simulate_rdma_with<R: Send>(
    config: Config,
    ranks: u32,
    seed: u64,
    body: impl Fn(Universe) -> R + Sync,
) -> Result<Vec<R>, SimFailure> {
    let device = Some(DeviceConfig::new());
    on(&config, &NetConfig { device, ..NetConfig::new(ranks, seed) }, body)
}

/// On a network, with whatever that has.
fn on<R: Send>(
    config: &Config,
    net: &NetConfig,
    body: impl Fn(Universe) -> R + Sync,
) -> Result<Vec<R>, SimFailure> {
    rma_transport_sim::run(net, |sim| {
        match Universe::new(sim, with_storage(config.clone())) {
            Ok(universe) => {
                // A universe that comes out is over: nothing can be done there in its name.
                let _stay = universe.stay();
                body(universe)
            }
            Err(error) => panic!("making the world: {error}"),
        }
    })
}
