//! Which way operations go, asked, forced and counted (FEATURES B1).
use crate::help::{far, near, neighbour, reaches, says};
use rma_core::{ErrorClass, Layout, Op, Path, Universe, Window, WindowError};

/// Ten operations of every kind on the right neighbour; checks what they did.
fn ten_operations(window: &Window) {
    let right = window.rank().on_ring(1, window.ranks());
    let pair = Layout::element::<u64>().vector(2, 1, 2).unwrap();
    let flat = pair.clone();
    let epoch = window.lock_all().unwrap();
    epoch.put(right, 0, &[1u64, 2, 3, 4]).unwrap();
    epoch.put(right, pair.at(4), flat.of(&[5u64, 0, 6])).unwrap();
    _ = epoch.rput(right, 7, vec![8u64]).unwrap().wait();
    epoch.flush(right).unwrap();
    let (mut got, mut with_layout) = ([0u64; 8], [9u64; 3]);
    epoch.get(right, 0, &mut got).unwrap();
    assert_eq!(got, [1, 2, 3, 4, 5, 0, 6, 8]);
    epoch.get(right, pair.at(4), flat.of(&mut with_layout)).unwrap();
    assert_eq!(with_layout, [5, 9, 6]);
    assert_eq!(epoch.rget(right, 6, vec![0u64; 2]).unwrap().wait().unwrap(), [6, 8]);
    epoch.accumulate(right, 0, Op::Sum, &[10u64, 10]).unwrap();
    let mut before = [0u64; 2];
    epoch.get_accumulate(right, 0, Op::Sum, &[100u64, 100], &mut before).unwrap();
    assert_eq!(before, [11, 12]);
    assert_eq!(epoch.fetch_and_op(right, 0, Op::Replace, 0u64).unwrap(), 111);
    assert_eq!(epoch.compare_and_swap(right, 1, 112u64, 0).unwrap(), 112);
    epoch.unlock().unwrap();
}

/// Each path does the same, and only that path is taken. S-B10
pub fn forced_and_counted(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let paths = [
        ("load_store", Path::LoadStore),
        ("cma", Path::Cma),
        ("device", Path::Device),
        ("messages", Path::Messages),
    ];
    for (name, path) in paths {
        let builder = world.window(8, 8).hint("rma_count", "true").unwrap();
        let window = match builder.hint("rma_path", name).unwrap().allocate() {
            Ok(window) => window,
            Err(error) => {
                // A container may forbid copies between processes; few transports have a device.
                let may_lack = matches!(path, Path::Cma | Path::Device) || !near(universe);
                assert!(path != Path::Messages && may_lack);
                assert_eq!(error.class(), ErrorClass::Info);
                says(&error, &["rma_path", name]);
                continue;
            }
        };
        assert_eq!(window.path(right), Some(path));
        assert_eq!(window.path(rma_core::Rank(world.size())), None);
        ten_operations(&window);
        let counts = window.operation_counts();
        let expected = match path {
            Path::LoadStore => (10, 0, 0),
            Path::Cma => (0, 4, 6),
            _ => (0, 0, 10),
        };
        let far = counts.device + counts.messages;
        let counted = (counts.load_store.unwrap(), counts.cma, far);
        assert_eq!(counted, expected, "by {path}");
        // At least what is dense.
        assert_eq!(counts.device >= 4, path == Path::Device);
        says(&window.explain(), &[&format!("2 targets by {path}"), "rma_path="]);
        world.barrier().unwrap();
        window.free().unwrap();
    }
}

/// A window without the hint takes the fastest path, and does not count loads and stores.
pub fn by_default(universe: &Universe) {
    let world = universe.world();
    let window = world.window(8, 8).allocate().unwrap();
    ten_operations(&window);
    let counts = window.operation_counts();
    assert_eq!((counts.load_store, counts.cma), (None, 0));
    let right = neighbour(world, 1);
    let far = far(&window, right);
    assert_eq!(counts.messages + counts.device, if far { 10 } else { 0 });
    let forced = window.get_info("rma_path").unwrap() == "messages";
    assert_eq!(far, forced || !reaches(universe, right));
    world.barrier().unwrap();
    window.free().unwrap();
}

/// A path that does not lead there is refused at every rank. S-B7
pub fn refused(universe: &Universe) {
    let world = universe.world();
    let dynamic = world.window(0, 1).hint("rma_path", "load_store").unwrap();
    let error = dynamic.create_dynamic().unwrap_err();
    assert!(matches!(error, WindowError::NoPath { path: "load_store", .. }), "{error}");
}

/// Attached memory that others can map is reached by load and store, other by a device if there is
/// one.
pub fn to_attached_memory(universe: &Universe) {
    let world = universe.world();
    let right = neighbour(world, 1);
    let window = world.window(0, 1).hint("rma_count", "true").unwrap().create_dynamic().unwrap();
    let region = window.attach(vec![0u64; 2]).unwrap();
    let base = world.allgather(&[region.address()]).unwrap()[usize::from(right)];
    let epoch = window.lock_all().unwrap();
    epoch.put(right, base, &[1u64]).unwrap();
    assert_eq!(epoch.fetch_and_op(right, base + 8, Op::Sum, 2u64), Ok(0));
    epoch.unlock().unwrap();
    let counts = window.operation_counts();
    let forced = window.get_info("rma_path").unwrap() == "messages";
    let far = far(&window, right);
    assert_eq!(far, forced || !reaches(universe, right));
    assert_eq!(counts.messages + counts.device, if far { 2 } else { 0 });
    // At least what is put.
    assert_eq!(counts.device > 0, window.path(right) == Some(Path::Device));
    assert_eq!(counts.cma, 0);
    world.barrier().unwrap();
    assert_eq!(window.detach(region).unwrap(), [1, 2]);
    window.free().unwrap();
}

/// Where there is a device, it reaches attached memory of every rank if that is asked for.
pub fn to_attached_memory_by_device(universe: &Universe) {
    let world = universe.world();
    let builder = world.window(0, 1).hint("rma_path", "device").unwrap();
    let window = match builder.create_dynamic() {
        Ok(window) => window,
        Err(error) => return says(&error, &["rma_path", "device"]),
    };
    let region = window.attach(vec![0u64; 2]).unwrap();
    let at = world.allgather(&[region.address()]).unwrap();
    let (epoch, mut got) = (window.lock_all().unwrap(), [0u64]);
    for (target, at) in world.ranks().zip(at) {
        assert_eq!(window.path(target), Some(Path::Device));
        epoch.put(target, at + 8 * u64::from(world.rank()), &[1u64]).unwrap();
        epoch.flush(target).unwrap();
        epoch.get(target, at + 8 * u64::from(world.rank()), &mut got).unwrap();
        assert_eq!(got, [1]);
    }
    epoch.unlock().unwrap();
    let counts = window.operation_counts();
    assert_eq!((counts.load_store, counts.device, counts.messages), (Some(0), 4, 0));
    world.barrier().unwrap();
    assert_eq!(window.detach(region).unwrap(), [1, 1]);
    window.free().unwrap();
}
