//! Window memory of simulated ranks.
#![allow(unsafe_code)] // reads and writes raw window memory

use crate::common::config;
use rma_core::transport::{
    AllocateError, Descriptor, ImportError, Mapped, Mapping, Messages, Network, Parts,
    RemoteLimits, Shared, Transport, WorldRank,
};
use rma_transport_sim::{ConfigError, DeviceConfig, Net, NetConfig, run};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[test]
fn regions_are_zeroed_aligned_apart_and_stay_in_place() {
    run(&config(2, 0), |sim| {
        let mut spans = Vec::new();
        let mut regions = Vec::new();
        for (len, align) in [(1, 1), (100, 8), (4096, 4096), (65, 64), (0, 4096), (0, 1)] {
            let region = sim.allocate(len, align).unwrap();
            let base = region.mapping().base;
            assert_eq!(region.mapping().len, len);
            assert_eq!(base.addr() % align.max(64), 0);
            for at in 0..len {
                // SAFETY: `at` is inside the region's span.
                let byte = unsafe { base.add(at) };
                // SAFETY: the span is readable and this rank's alone.
                assert_eq!(unsafe { byte.read() }, 0);
                // SAFETY: the span is writable and this rank's alone.
                unsafe { byte.write(0xff) };
            }
            spans.push((base.addr(), base.addr() + len.max(1)));
            regions.push(region);
        }
        let moved = regions.into_iter().rev().collect::<Vec<_>>();
        let bases: Vec<_> = moved.iter().rev().map(|r| r.mapping().base.addr()).collect();
        assert!(bases.into_iter().eq(spans.iter().map(|span| span.0)));
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{spans:?}");
    })
    .unwrap();
}

#[test]
fn shortage_names_what_was_asked_and_what_there_is() {
    let net = Net::new(NetConfig { memory_max: 1000, ..config(2, 0) }).unwrap();
    let (one, other) = (net.rank(WorldRank(0)), net.rank(WorldRank(1)));
    let held = one.allocate(600, 8).unwrap();
    assert_eq!(other.available().0, 400);
    let error = other.allocate(401, 8).unwrap_err();
    assert!(matches!(error, AllocateError::Shortage { requested: 401, available: 400, .. }));
    assert!(error.to_string().contains("memory_max"), "{error}");
    drop(held);
    assert_eq!(other.available().0, 1000);
    assert!(other.allocate(401, 8).is_ok());
}

#[test]
fn sizes_and_alignments_that_make_no_sense_are_errors_and_cost_nothing() {
    let net = Net::new(NetConfig { memory_max: u64::MAX, ..config(1, 0) }).unwrap();
    let sim = net.rank(WorldRank(0));
    for (len, align) in [(usize::MAX, 8), (isize::MAX as usize, 64), (8, 96)] {
        let error = sim.allocate(len, align).unwrap_err();
        assert!(matches!(error, AllocateError::System { errno: 22, .. }), "{error}");
    }
    assert_eq!(sim.available().0, u64::MAX);
}

#[test]
fn nothing_is_near() {
    let net = Net::new(config(2, 0)).unwrap();
    let sim = net.rank(WorldRank(0));
    assert!(!sim.is_near(WorldRank(0)) && !sim.is_near(WorldRank(1)));
    let descriptor = sim.allocate(8, 8).unwrap().descriptor();
    let error = sim.import(WorldRank(1), &[descriptor]).unwrap_err();
    assert_eq!(error, ImportError::Malformed(WorldRank(1)));
}

/// What `region` is, as its neighbours have it.
fn word(region: &dyn Mapped) -> &AtomicU64 {
    let Mapping { base, len } = region.mapping();
    assert!(len >= 8 && base.addr() % 8 == 0);
    // SAFETY: mapped as long as `region`, long enough and aligned; tests touch it atomically alone.
    unsafe { AtomicU64::from_ptr(base.cast()) }
}

#[test]
fn ranks_of_a_node_map_what_others_allocate() {
    // Nodes of two ranks, the last of one.
    let net = Net::new(NetConfig { nodes: Some(3), ..config(5, 0) }).unwrap();
    let sims: Vec<_> = (0..5).map(|rank| net.rank(WorldRank(rank))).collect();
    for (rank, sim) in (0..).zip(&sims) {
        let near: Vec<u32> = (0..9).filter(|peer| sim.is_near(WorldRank(*peer))).collect();
        assert_eq!(near, [vec![0, 1], vec![2, 3], vec![4]][rank / 2]);
    }
    let (first, second) = (sims[0].allocate(8, 8).unwrap(), sims[0].allocate(16, 8).unwrap());
    let own = sims[0].import(WorldRank(0), &[first.descriptor()]).unwrap();
    let near = sims[1].import(WorldRank(0), &[second.descriptor()]).unwrap();
    word(&*first).store(1, Relaxed);
    word(&*near).store(2, Relaxed);
    assert_eq!((word(&*own).load(Relaxed), word(&*second).load(Relaxed)), (1, 2));
    assert_eq!(near.mapping().len, 16);

    // The rank that has it keeps it; no other finds it any more.
    let (descriptor, before) = (second.descriptor(), sims[0].available().0);
    drop(second);
    assert_eq!((word(&*near).load(Relaxed), sims[0].available().0), (2, before));
    let error = sims[1].import(WorldRank(0), &[descriptor]).unwrap_err();
    assert_eq!(error, ImportError::PeerGone(WorldRank(0)));
    drop(near);
    assert_eq!(sims[0].available().0, before + 16);
}

/// The device of a rank that has memory beside a network, by its limits.
fn device_beside(memory: Option<DeviceConfig>, network: Option<DeviceConfig>) -> Option<u64> {
    let parts = |device| -> Parts {
        let net = Net::new(NetConfig { device, ..config(1, 0) }).unwrap();
        Transport::from(net.rank(WorldRank(0))).into_parts()
    };
    let Parts { messages, members, remote, .. } = parts(network);
    let network = |_| Ok::<_, ()>(Network { name: "both", messages, members, remote });
    // SAFETY: no universe is made with them.
    let memory = unsafe { Transport::from_parts(parts(memory)) };
    // SAFETY: as above.
    let pair = unsafe { memory.beside(network) }.unwrap().into_parts();
    assert_eq!(pair.job.name, "both");
    pair.remote.map(|device| device.limits().run_min)
}

#[test]
fn the_device_is_the_network_s_if_it_has_one() {
    let device = |run_min| {
        let limits = RemoteLimits { run_min, ..DeviceConfig::LIMITS };
        Some(DeviceConfig { limits, ..DeviceConfig::new() })
    };
    assert_eq!(device_beside(None, None), None);
    assert_eq!(device_beside(device(1), None), Some(1));
    assert_eq!(device_beside(None, device(2)), Some(2));
    assert_eq!(device_beside(device(1), device(2)), Some(2));
}

#[test]
fn what_no_neighbour_described_is_refused() {
    let net = Net::new(NetConfig { nodes: Some(2), ..config(4, 0) }).unwrap();
    let sim = net.rank(WorldRank(1));
    let region = net.rank(WorldRank(2)).allocate(8, 8).unwrap();
    let own = sim.allocate(8, 8).unwrap().descriptor();
    let import =
        |owner, descriptors: &[Descriptor]| sim.import(WorldRank(owner), descriptors).unwrap_err();
    assert_eq!(import(2, &[region.descriptor()]), ImportError::Malformed(WorldRank(2)));
    let forged = Descriptor([0xff; Descriptor::LEN]);
    assert_eq!(import(0, &[forged]), ImportError::PeerGone(WorldRank(0)));
    for several in [&[][..], &[own, own]] {
        assert!(matches!(import(1, several), ImportError::Extents { .. }));
    }
    assert_eq!(
        Net::new(NetConfig { nodes: Some(0), ..config(1, 0) }).unwrap_err(),
        ConfigError::NoNodes
    );
}

#[test]
fn explain_says_what_decides() {
    let sim = Net::new(config(3, 77)).unwrap().rank(WorldRank(1));
    assert_eq!((sim.rank(), sim.size()), (WorldRank(1), 3));
    let line = sim.explain();
    assert!(line.contains("3 ranks") && line.contains("seed 77"), "{line}");
    assert!(line.contains("messages only"), "{line}");
    let on_nodes = NetConfig { nodes: Some(2), ..config(3, 77) };
    let near = Net::new(on_nodes).unwrap().rank(WorldRank(1)).explain();
    assert!(near.contains("each of 2 nodes"), "{near}");
    assert_eq!(line.lines().count(), 1);
}
