//! The suite on simulated networks with a device that moves bytes by itself, in each form: both
//! ways to count positions, keys given and chosen, with all, some and no atomics.
use core::time::Duration;
use rma_conformance::{Exception, Harness};
use rma_core::transport::{
    Addressing, DeviceError, Keys, LayoutCosts, Moment, RemoteLimits, Sleep,
};
use rma_core::{Assert, Config, Layout, LockKind, Op, Rank, RmaError, Universe};
use rma_transport_sim::{Atomics, DeviceConfig, NetConfig};
use sims::Jobs;

mod generated;
mod homes;
mod lines;
mod shortages;
mod sims;
mod timeouts;

/// Of a rank that takes less at a time than others.
const NARROW: RemoteLimits = RemoteLimits {
    inject: 8,
    bounce: 24,
    transfer_max: 64,
    atomic_max: 48,
    run_min: 4,
    ..DeviceConfig::LIMITS
};

fn net(ranks: u32, seed: u64, device: DeviceConfig) -> NetConfig {
    let step_max = 50_000_000;
    NetConfig { step_max, device: Some(device), ..NetConfig::new(ranks, seed) }
}

/// Those of tests that are no cases of the suite.
fn jobs(config: Config) -> Jobs {
    let net = |ranks, seed| net(ranks, seed, DeviceConfig::new());
    Jobs { binary: "sim_device", seeds: 20, config, net }
}

/// A form of the device, its jobs and the suite on it.
macro_rules! form {
    ($name:ident, $device:expr $(, nodes: $nodes:expr)?) => {
        mod $name {
            use super::*;

            struct OnDevice;

            fn jobs(config: Config) -> Jobs {
                let net = |ranks, seed| NetConfig {
                    $(nodes: Some($nodes),)?
                    ..net(ranks, seed, $device)
                };
                Jobs { binary: "sim_device", seeds: 3, config, net }
            }

            impl Harness for OnDevice {
                fn run(name: &str, ranks: u32, body: &(dyn Fn(Universe) + Sync)) {
                    jobs(Config::default()).run(name, ranks, body);
                }

                fn run_failing(
                    name: &str,
                    ranks: u32,
                    victim: u32,
                    body: &(dyn Fn(Universe) + Sync),
                ) {
                    jobs(Config::default()).run_failing(name, ranks, victim, body);
                }

                fn exceptions() -> Vec<Exception> {
                    sims::exceptions()
                }
            }

            rma_conformance::suite!(OnDevice);

            /// Generated programs, each with an order and delays of its own.
            #[test]
            fn generated_programs() {
                let command = concat!(
                    "cargo test -p rma-conformance --test sim_device ",
                    stringify!($name),
                    "::generated_programs"
                );
                let seeds = generated::seeds(if cfg!(miri) { 1 } else { 100 });
                // With every other seed so few transfers at a time that some are refused. Mistakes
                // of before were found with more.
                let net = |ranks, seed| {
                    let device: DeviceConfig = $device;
                    let few = seed % 2 == 0 && !rma_conformance::generated::FOUND.contains(&seed);
                    let queue_max = if few { 2 } else { device.queue_max };
                    let net = net(ranks, seed, DeviceConfig { queue_max, ..device });
                    NetConfig { $(nodes: Some($nodes),)? ..net }
                };
                let jobs = Jobs { net, ..jobs(Config::default()) };
                let launch = |seed, ranks, body: &(dyn Fn(Universe) + Sync)| {
                    let run = jobs.simulate(ranks, seed, body);
                    run.map(drop).map_err(|failure| failure.to_string())
                };
                let coverage =
                    rma_conformance::generated::check(seeds.iter().copied(), 1, command, &launch);
                generated::judge(seeds.len(), coverage);
            }
        }
    };
}

// As most libfabric providers: hardly anything goes directly, all atomics.
form!(addresses, DeviceConfig::new());
// Symmetric windows need to tell each other nothing.
form!(
    offsets,
    DeviceConfig {
        limits: RemoteLimits {
            addressing: Addressing::Offset,
            keys: Keys::Given,
            coherent: true,
            inject: 8,
            bounce: 64,
            transfer_max: 256,
            atomic_max: 32,
            run_min: 1,
        },
        atomics: Atomics::Words,
        ..DeviceConfig::new()
    }
);
// All that moves does so directly, one transfer at a time. Keys are given, addresses virtual.
form!(
    direct,
    DeviceConfig {
        limits: RemoteLimits {
            keys: Keys::Given,
            inject: 0,
            bounce: 0,
            run_min: 16,
            ..DeviceConfig::LIMITS
        },
        atomics: Atomics::None,
        queue_max: 1,
        ..DeviceConfig::new()
    }
);

// As on several machines: load and store inside each, the device between them, which chooses keys
// and counts from the first byte. One rank takes less at a time than the others.
form!(
    nodes,
    DeviceConfig {
        limits: RemoteLimits { addressing: Addressing::Offset, ..DeviceConfig::LIMITS },
        narrow: Some((1, NARROW)),
        ..DeviceConfig::new()
    },
    nodes: 2
);

/// Operations fail by what the device says, and messages go on.
#[test]
fn a_device_that_ends() {
    let mut ended = 0;
    for seed in 0..20 {
        let device = DeviceConfig { ends_after: Some(10 + seed), ..DeviceConfig::new() };
        let ends = rma_transport_sim::run(&net(3, seed, device), |sim| {
            let universe = Universe::new(sim, Config::default()).unwrap();
            let (world, mut failures) = (universe.world(), 0);
            let window = world.window(600, 8).allocate().unwrap();
            let right = Rank((world.rank().0 + 1) % 3);
            let epoch = window.lock_all().unwrap();
            for value in 0..10u64 {
                let put = epoch.put(right, 0, &[value; 600]);
                let (flush, mut got) = (epoch.flush(right), [value; 600]);
                let get = epoch.get(right, 0, &mut got);
                let all = [put, flush, get];
                assert!(all.iter().any(Result::is_err) || got == [value; 600], "{all:?}");
                for end in all {
                    let ended = DeviceError::Ended;
                    let told = matches!(end, Err(RmaError::Device { error, .. }) if error == ended);
                    assert!(end.is_ok() || told, "{end:?}");
                    failures += usize::from(end.is_err());
                }
            }
            epoch.unlock().unwrap();
            world.barrier().unwrap();
            let builder = world.window(1, 8).hint("rma_path", "messages").unwrap();
            let other = builder.allocate().unwrap();
            let epoch = other.fence(Assert::NONE).unwrap();
            epoch.put(right, 0, &[7u64]).unwrap();
            epoch.end().unwrap();
            assert_eq!(other.local().load(0), Ok(7u64));
            other.free().unwrap();
            failures
        });
        ended += ends.unwrap().iter().sum::<usize>();
    }
    assert!(ended > 0, "no device ended");
}

/// Elements that CPUs of a node combine too are the device's only if it is coherent with them. S-H5
#[test]
fn atomics_beside_cpus() {
    let integers = "32 and 64-bit integers what the device has";
    for (nodes, coherent, [words, reals], why) in [
        (Some(2), false, [0, 0], "CPUs of the target's node combine, too"),
        (Some(2), true, [2, 0], "coherent with the target's CPUs"),
        (None, false, [4, 4], "on every type"),
        (None, true, [4, 4], "on every type"),
    ] {
        let limits = RemoteLimits { coherent, ..DeviceConfig::LIMITS };
        let device = DeviceConfig { limits, ..DeviceConfig::new() };
        rma_transport_sim::run(&NetConfig { nodes, ..net(4, 1, device) }, |sim| {
            let universe = Universe::new(sim, Config::default()).unwrap();
            let world = universe.world();
            let window = world.window(2, 8).allocate().unwrap();
            let epoch = window.lock_all().unwrap();
            let by_device = |type_: &str, expected: u64, combine: &dyn Fn(Rank)| {
                let before = window.operation_counts().device;
                world.ranks().for_each(combine);
                let count = window.operation_counts().device - before;
                assert_eq!(count, expected, "{type_}, {nodes:?} nodes, coherent: {coherent}");
            };
            by_device("words", words, &|target| {
                epoch.fetch_and_op(target, 0, Op::Sum, 1u64).unwrap();
            });
            by_device("reals", reals, &|target| {
                epoch.fetch_and_op(target, 1, Op::Sum, 1f64).unwrap();
            });
            epoch.unlock().unwrap();
            world.barrier().unwrap();
            assert_eq!((window.local().load(0), window.local().load(1)), (Ok(4u64), Ok(4f64)));
            let text = window.explain();
            assert!(text.contains(why), "{text}");
            assert_eq!(text.contains(integers), coherent && nodes.is_some(), "{text}");
            window.free().unwrap();
        })
        .unwrap();
    }
}

/// What goes to one peer keeps to the limits of that peer: the device would refuse what is larger,
/// and takes runs that others get packed.
#[test]
fn limits_of_one_peer() {
    let device = DeviceConfig { narrow: Some((1, NARROW)), ..DeviceConfig::new() };
    let run = rma_transport_sim::run(&net(3, 1, device), |sim| {
        let universe = Universe::new(sim, Config::default()).unwrap();
        let world = universe.world();
        let window = world.window(40, 8).allocate().unwrap();
        let epoch = window.lock_all().unwrap();
        if world.rank() == Rank(0) {
            let apart = Layout::element::<u64>().vector(4, 1, 2).unwrap();
            for (target, [by_device, by_messages]) in [(Rank(1), [3, 0]), (Rank(2), [2, 1])] {
                let (before, mut got) = (window.operation_counts(), [0u64; 40]);
                epoch.put(target, 0, &[7u64; 40]).unwrap();
                epoch.put(target, apart.at(0), &[8u64; 4]).unwrap();
                epoch.flush(target).unwrap();
                epoch.get(target, 0, &mut got).unwrap();
                assert_eq!(got[..8], [8, 7, 8, 7, 8, 7, 8, 7]);
                assert_eq!(got[8..], [7; 32]);
                let after = window.operation_counts();
                assert_eq!(after.device - before.device, by_device, "to rank {target}");
                assert_eq!(after.messages - before.messages, by_messages, "to rank {target}");
            }
        }
        epoch.unlock().unwrap();
        window.free().unwrap();
    });
    run.unwrap();
}

/// Layouts whose ways are timed: runs, and elements in each.
const LAYOUTS: [(u64, u64); 12] = [
    (2, 1),
    (4, 64),
    (8, 512),
    (16, 1),
    (16, 1024),
    (64, 1),
    (64, 256),
    (64, 2048),
    (256, 1),
    (256, 64),
    (1024, 1),
    (1024, 32),
];

/// What a get of one of [`LAYOUTS`] takes.
#[derive(Debug, Default, Clone, Copy)]
struct Took {
    /// By the simulated clock, of all seeds together.
    time: Duration,
    transfers: u64,
    messages: u64,
}

/// Gets each of [`LAYOUTS`]: those of `least` bytes and more on average run by run, or as `costs`
/// say.
fn time_layouts(least: Option<u64>, costs: Option<LayoutCosts>) -> [Took; LAYOUTS.len()] {
    let mut all = [Took::default(); LAYOUTS.len()];
    for seed in 0..SEEDS {
        let mut config = Config::default();
        // The job says it, or the window.
        let of_window = least.filter(|_| seed % 2 == 1);
        config.device_run_bytes = least.filter(|_| of_window.is_none());
        let net = net(2, seed, DeviceConfig { costs, ..DeviceConfig::new() });
        let ranks = rma_transport_sim::run(&net, |sim| {
            let clock = sim.clone();
            let universe = Universe::new(sim, config.clone()).unwrap();
            let world = universe.world();
            let builder = world.window(1 << 18, 8);
            let window = match of_window {
                Some(bytes) => builder.hint("rma_device_run_bytes", &bytes.to_string()).unwrap(),
                None => builder,
            };
            let window = window.allocate().unwrap();
            let explained = window.explain();
            let by = match (least, of_window) {
                (None, _) => "what takes less",
                (_, None) => "(device_run_bytes, program)",
                (_, Some(_)) => "(hint rma_device_run_bytes)",
            };
            assert!(explained.contains(by), "{explained}");
            let mut took = [Took::default(); LAYOUTS.len()];
            let epoch = window.lock_all().unwrap();
            world.barrier().unwrap();
            if world.rank() == Rank(0) {
                let word = Layout::element::<u64>();
                let sent = || universe.counters().messages_sent();
                let transfers = || universe.counters().transfers();
                // The window's card is asked for once.
                epoch.get(Rank(1), 0, &mut [0u64]).unwrap();
                for ((runs, elements), took) in LAYOUTS.into_iter().zip(&mut took) {
                    let apart = word.vector(runs, elements, elements as i64 + 1).unwrap();
                    let mut got = vec![1u64; (runs * elements) as usize];
                    let dense = word.times(runs * elements);
                    let (messages, posted, begun) = (sent(), transfers(), clock.now());
                    epoch.get(Rank(1), apart.at(0), dense.of(&mut got)).unwrap();
                    took.time = clock.now() - begun;
                    (took.messages, took.transfers) = (sent() - messages, transfers() - posted);
                    assert!(got.iter().all(|word| *word == 0));
                }
            }
            epoch.unlock().unwrap();
            world.barrier().unwrap();
            window.free().unwrap();
            took
        });
        for (sum, took) in all.iter_mut().zip(ranks.unwrap()[0]) {
            *sum = Took { time: sum.time + took.time, ..took };
        }
    }
    all
}

/// Each with delays of its own.
const SEEDS: u64 = 10;

/// What a device would measure: the times of a full queue of transfers and of many, of one message
/// and of many.
fn measured(by_transfers: &[Took], packed: &[Took]) -> LayoutCosts {
    let mean = |took: &Took| took.time.as_nanos() as u64 / SEEDS;
    let line = |few: (u64, u64), many: (u64, u64)| {
        let next = many.0.saturating_sub(few.0) / (many.1 - few.1);
        (few.0.saturating_sub(next * (few.1 - 1)), next)
    };
    let transfers = |place: usize| (mean(&by_transfers[place]), LAYOUTS[place].0);
    let messages = |place: usize| {
        let (runs, elements) = LAYOUTS[place];
        (mean(&packed[place]), (8 * runs * elements).div_ceil(16 << 10))
    };
    // 16 runs, which fill a queue, and 1,024; 16 bytes and 1 MiB.
    let (transfer_ns, next_transfer_ns) = line(transfers(3), transfers(10));
    let (message_ns, next_message_ns) = line(messages(0), messages(7));
    LayoutCosts { transfer_ns, next_transfer_ns, message_ns, next_message_ns }
}

/// Where the device tells what transfers and messages cost, layouts go the way that takes less, by
/// the simulated clock.
#[test]
fn layouts_go_the_way_that_takes_less() {
    let [by_transfers, packed] = [1, 1 << 40].map(|least| time_layouts(Some(least), None));
    let costs = measured(&by_transfers, &packed);
    println!("{costs:?}");
    let chosen = time_layouts(None, Some(costs));
    let (mut sums, mut ways) = ([Duration::ZERO; 3], [0; 2]);
    for (place, (runs, elements)) in LAYOUTS.into_iter().enumerate() {
        let all = [by_transfers[place], packed[place], chosen[place]];
        let row = format!("{runs} runs of {} B: {all:?}", 8 * elements);
        println!("{row}");
        sums.iter_mut().zip(all).for_each(|(sum, took)| *sum += took.time);
        let [by_transfers, packed, chosen] = all;
        assert_eq!((by_transfers.transfers, by_transfers.messages), (runs, 0), "{row}");
        assert!(packed.transfers == 0 && packed.messages > 0, "{row}");
        let by_device = chosen.transfers > 0;
        ways[usize::from(by_device)] += 1;
        let way = if by_device { by_transfers } else { packed };
        assert_eq!((chosen.transfers, chosen.messages), (way.transfers, way.messages), "{row}");
    }
    println!("all of them: {sums:?}, {ways:?} packed and by transfers");
    let [by_transfers, packed, chosen] = sums;
    assert!(chosen < by_transfers && chosen < packed, "{sums:?}");
    assert!(ways.iter().all(|count| *count > 0), "one way for all: {ways:?}");
}

/// `explain` says how ranks are reached, and tells of the device.
#[test]
fn explained() {
    let paths = |nodes, part: &str| {
        let net = NetConfig { nodes, ..net(5, 1, DeviceConfig::new()) };
        let texts = rma_transport_sim::run(&net, |sim| {
            let universe = Universe::new(sim, Config::default()).unwrap();
            let dynamic = universe.world().window(0, 1).create_dynamic().unwrap();
            let text = universe.explain() + &dynamic.explain();
            dynamic.free().unwrap();
            text
        });
        for text in texts.unwrap() {
            assert!(text.contains(part) && text.contains("for the rest"), "{text}");
            assert!(text.contains("device: 0 regions attached here are registered"), "{text}");
        }
    };
    paths(None, "load and store to 0 of 5 ranks, the device to 5 others");
    // Nodes of three and of two ranks.
    paths(Some(2), " of 5 ranks, the device to ");
}

/// What the device does not take of attached memory, messages reach and CPUs combine, that of its
/// owner too. S-H4 S-L4
#[test]
fn regions_that_are_not_registered() {
    for seed in 0..10 {
        let device = DeviceConfig { register_max: 100, ..DeviceConfig::new() };
        let run = rma_transport_sim::run(&net(3, seed, device), |sim| {
            let universe = Universe::new(sim, Config::default()).unwrap();
            let world = universe.world();
            let window = world.window(0, 1).create_dynamic().unwrap();
            let regions = [8, 20].map(|len| window.attach(vec![0f64; len]).unwrap());
            let at = regions.each_ref().map(|region| {
                let mine = [region.address()];
                world.allgather(&mine).unwrap()[0]
            });
            let epoch = window.lock_all().unwrap();
            for (region, at) in regions.iter().zip(at) {
                let before = window.operation_counts();
                for _ in 0..20 {
                    if world.rank() == Rank(0) {
                        let view = window.region(region).unwrap();
                        view.fetch_and_op(8, Op::Sum, 1f64).unwrap();
                    } else {
                        epoch.fetch_and_op(Rank(0), at + 8, Op::Sum, 1f64).unwrap();
                    }
                }
                let counts = window.operation_counts();
                let counts = [counts.device - before.device, counts.messages - before.messages];
                let all = match (region.len() <= 100, world.rank()) {
                    (true, _) => [20, 0],
                    (false, Rank(0)) => [0, 0],
                    (false, _) => [0, 20],
                };
                assert_eq!(counts, all);
            }
            epoch.unlock().unwrap();
            world.barrier().unwrap();
            let text = window.explain();
            let refused = "1 are not, and reached by messages: 160 bytes to be registered";
            assert!(text.contains(refused) && text.contains("asked for on demand"), "{text}");
            for region in regions {
                let found = window.detach(region).unwrap();
                assert!(world.rank() != Rank(0) || found[1] == 60.0, "{found:?}");
            }
            window.free().unwrap();
        });
        run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// A device is told why memory is about to be used.
#[test]
fn moments_are_named() {
    rma_transport_sim::run(&net(2, 1, DeviceConfig::new()), |sim| {
        let device = sim.clone();
        let universe = Universe::new(sim, Config::default()).unwrap();
        let (world, first) = (universe.world(), universe.world().rank() == Rank(0));
        let window = world.window(1, 8).allocate().unwrap();
        window.fence(Assert::NONE).unwrap().end().unwrap();
        let idle = |time| {
            let (transport, start) = (universe.transport(), universe.transport().now());
            while transport.now() < start + time {
                transport.park(time);
            }
        };
        let second = Duration::from_secs(1);
        for late in [true, false] {
            if first {
                let exposure = window.post(&[Rank(1)], Assert::NONE).unwrap();
                idle(if late { Duration::ZERO } else { 2 * second });
                exposure.wait().unwrap();
            } else {
                idle(if late { second } else { Duration::ZERO });
                window.start(&[Rank(0)], Assert::NONE).unwrap().complete().unwrap();
            }
            world.barrier().unwrap();
        }
        if !first {
            window.lock(Rank(0), LockKind::Exclusive).unwrap().unlock().unwrap();
        }
        world.barrier().unwrap();
        let told = |moment| device.advised(moment);
        let locks = [Moment::LockRequested, Moment::LockGranted].map(told);
        let others = [Moment::Exposed, Moment::Posted, Moment::Late].map(told);
        assert_eq!(locks, if first { [1, 1] } else { [0, 0] });
        assert_eq!(others, if first { [1, 2, 1] } else { [1, 0, 0] });
        window.free().unwrap();
    })
    .unwrap();
}
