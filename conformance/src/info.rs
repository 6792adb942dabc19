//! What a window is told and tells: hints, name, attributes (FEATURES A1).
use crate::help::{far, local_words, neighbour, says, still_works, times, words};
use rma_core::{
    Assert, ErrorClass, Flavor, LockKind, MemoryModel, Op, Rank, RmaError, Universe, Window,
    WindowError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Every known hint and values that it takes, the default first.
const TAKEN: [(&str, &[&str]); 8] = [
    ("no_locks", &["false", "true"]),
    ("accumulate_ordering", &["rar,raw,war,waw", "none", "rar", "war,waw", "raw"]),
    ("mpi_accumulate_granularity", &["0", "8", "64"]),
    ("same_size", &["false", "true"]),
    ("same_disp_unit", &["false", "true"]),
    ("alloc_shared_noncontig", &["false", "true"]),
    ("rma_count", &["false", "true"]),
    ("alloc_type", &["memory"]),
];

/// Budgets of a window: those of the rank, unless a hint says otherwise.
const BUDGETS: [&str; 4] =
    ["rma_device_run_bytes", "rma_dynamic_regions", "rma_eager_bytes", "rma_target_cache"];

/// Values that a hint does not take.
const REFUSED: [(&str, &[&str], &str); 10] = [
    ("alloc_type", &["", "disk", "Storage"], "memory or storage"),
    ("no_locks", &["", "yes", "1", "TRUE"], "true or false"),
    ("accumulate_ordering", &["", "rar,", "none,rar", "all"], "some of rar, raw, war, waw"),
    ("mpi_accumulate_granularity", &["", "-1", "page"], "bytes, 0 to"),
    ("same_size", &["2"], "true or false"),
    ("same_disp_unit", &["8"], "true or false"),
    ("alloc_shared_noncontig", &["noncontig"], "true or false"),
    ("rma_dynamic_regions", &["0", "-1", "67108865", "many"], "regions, 1 to 67108864"),
    ("rma_eager_bytes", &["-1", "1 KB", "1.5 KiB"], "bytes, 0 B to 64 TiB"),
    ("rma_target_cache", &["0", ""], "targets, 1 to"),
];

/// A window of two words at every rank, made with one hint.
fn hinted(universe: &Universe, key: &str, value: &str) -> Window {
    universe.world().window(2, 8).hint(key, value).unwrap().allocate().unwrap()
}

/// No rank gave a hint: `info` shows the defaults, of every key. S-B9
pub fn defaults(universe: &Universe) {
    let window = words(universe.world(), 2);
    let expected = TAKEN.map(|(key, values)| (key, values[0].to_owned()));
    let mut info = window.info();
    // The harness forces a path, or does not, and has budgets.
    info.retain(|(key, _)| *key != "rma_path" && !BUDGETS.contains(key));
    info.sort_unstable();
    let mut sorted = expected.to_vec();
    sorted.sort_unstable();
    assert_eq!(info, sorted);
    for (key, default) in expected {
        assert_eq!(window.get_info(key), Some(default));
    }
    assert_eq!(window.get_info("no_such_hint"), None);
    window.free().unwrap();
}

/// Every hint is taken with each of its values, and `info` shows them; the window works the
/// same. S-B8 S-B9 S-B10
pub fn accepted(universe: &Universe) {
    for (key, values) in TAKEN {
        for value in values {
            let window = hinted(universe, key, value);
            assert_eq!(window.get_info(key).as_deref(), Some(*value));
            if (key, *value) != ("no_locks", "true") {
                still_works(&window);
            }
            if *value != values[0] {
                says(&window.explain(), &[key, value]);
            }
            window.free().unwrap();
        }
    }
    let mut all = TAKEN.iter().filter(|(key, _)| *key != "no_locks");
    let all = all.try_fold(universe.world().window(2, 8), |builder, (key, values)| {
        builder.hint(key, values[values.len() - 1])
    });
    let window = all.unwrap().allocate().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// A window has the budgets of its rank, or those that it is told, before it is made and after.
/// S-B9
pub fn budgets(universe: &Universe) {
    let plain = words(universe.world(), 2);
    for key in BUDGETS {
        let window = hinted(universe, key, "7");
        let of_rank = plain.get_info(key).unwrap();
        assert_ne!(window.get_info(key).unwrap(), of_rank);
        assert!(window.get_info(key).unwrap().starts_with('7'));
        says(&window.explain(), &[&format!("{key}=7")]);
        still_works(&window);
        assert_eq!(window.set_info(key, "setting"), Ok(true));
        assert_eq!(window.get_info(key).unwrap(), of_rank);
        window.free().unwrap();
    }
    plain.free().unwrap();
}

/// Keys that are not known are ignored, whatever they say. S-B8 S-A13
pub fn unknown_is_ignored(universe: &Universe) {
    let builder = universe.world().window(2, 8);
    let builder = builder.hint("no_such_hint", "\u{0}").unwrap().hint("", "").unwrap();
    // Of MPI and MPICH: nothing here asks for these.
    let builder = builder.hint("accumulate_ops", "same_op").unwrap();
    let builder = builder.hint("alloc_shm", "false").unwrap();
    let builder = builder.hint("disable_shm_accumulate", "true").unwrap();
    let window = builder.hint("No_Locks", "maybe").unwrap().allocate().unwrap();
    for key in ["no_such_hint", "accumulate_ops"] {
        assert_eq!(window.get_info(key), None);
        assert_eq!(window.set_info(key, "again"), Ok(false));
    }
    still_works(&window);
    window.free().unwrap();
}

/// A malformed value of a known hint is refused by name, before the window and after. S-B8
pub fn malformed_is_refused(universe: &Universe) {
    let window = words(universe.world(), 2);
    let before = window.info();
    for (key, values, allowed) in REFUSED {
        for value in values {
            let error = universe.world().window(1, 8).hint(key, value).err().unwrap();
            assert_eq!((error.key, error.value.as_str()), (key, *value));
            says(&error, &[key, &format!("{value:?}"), allowed, "leave the hint out"]);
            assert_eq!(window.set_info(key, value), Err(error.clone()));
            assert_eq!(WindowError::from(error).class(), ErrorClass::InfoValue);
        }
    }
    assert_eq!(window.info(), before);
    still_works(&window);
    window.free().unwrap();
}

/// `set_info` changes what may change, `info` shows it, and the window goes on. S-B9
pub fn changed(universe: &Universe) {
    let window = words(universe.world(), 2);
    let mut changed = 0;
    for (key, values) in TAKEN {
        for value in values.iter().rev() {
            let taken = window.set_info(key, value).unwrap();
            assert_eq!(taken, window.get_info(key).as_deref() == Some(*value));
            changed += usize::from(taken && *value != values[0]);
            still_works(&window);
        }
        assert_eq!(window.get_info(key).as_deref(), Some(values[0]), "the default again");
    }
    assert!(changed >= 4, "the order of accumulates can change");
    window.free().unwrap();
}

/// What must be the same everywhere is compared: every rank learns which rank
/// says something else than rank 0, and of what. What each rank may choose for itself is not.
pub fn ranks_disagree(universe: &Universe) {
    let world = universe.world();
    for (key, value, default) in [
        ("no_locks", "true", "false"),
        ("same_size", "true", "false"),
        ("same_disp_unit", "true", "false"),
        ("alloc_shared_noncontig", "true", "false"),
    ] {
        for other in world.ranks() {
            let mine = if world.rank() == other { value } else { default };
            let error = world.window(1, 8).hint(key, mine).unwrap().allocate().err().unwrap();
            // Seen from rank 0, all others are wrong if it is rank 0 that differs.
            let (rank, value, expected) = match other {
                Rank(0) => (Rank(1), default.to_owned(), value.to_owned()),
                other => (other, value.to_owned(), default.to_owned()),
            };
            assert_eq!(error, WindowError::HintDiffers { key, rank, value, expected });
            assert_eq!(error.class(), ErrorClass::Info);
            says(&error, &[key, &format!("rank {rank} says"), "the same on all ranks"]);
        }
    }
    let mine = ["none", "rar", "war,waw"][usize::from(world.rank()) % 3];
    let window = hinted(universe, "accumulate_ordering", mine);
    still_works(&window);
    window.free().unwrap();
}

/// Sizes or units that are said to be the same and are not.
pub fn untrue(universe: &Universe) {
    let world = universe.world();
    let builder = world.window(1 + usize::from(world.rank()), 8).hint("same_size", "true").unwrap();
    let error = builder.allocate().err().unwrap();
    let max = u64::from(world.size()) * 8;
    let (key, of) = ("same_size", "sizes");
    assert_eq!(error, WindowError::HintUntrue { key, of, min: 8, max });
    says(&error, &[key, "8", &max.to_string(), "leave the hint out"]);
    let unit = 1 << (world.rank().0 % 2);
    let builder = world.window(8 / unit, unit).hint("same_size", "true").unwrap();
    let both = builder.clone().hint("same_disp_unit", "true").unwrap();
    let error = both.allocate().err().unwrap();
    let (key, of) = ("same_disp_unit", "displacement units");
    assert_eq!(error, WindowError::HintUntrue { key, of, min: 1, max: 2 });
    builder.allocate().unwrap().free().unwrap();
}

/// A window for no locks refuses them, and does everything else as any other. S-B8 S-B10
pub fn no_locks(universe: &Universe) {
    let world = universe.world();
    let window = hinted(universe, "no_locks", "true");
    let (right, left) = (neighbour(world, 1), neighbour(world, -1));
    for _ in 0..2 {
        let lock = window.lock(right, LockKind::Shared).err();
        for error in [lock, window.lock_all().err(), window.lock_all_with(Assert::NO_CHECK).err()] {
            let error = error.unwrap();
            assert_eq!(error, RmaError::NoLocks { window: window.id() });
            assert_eq!(error.class(), ErrorClass::RmaSync);
            says(&error, &["no_locks", &window.id().to_string(), "leave the hint out"]);
        }
        let fence = window.fence(Assert::NONE).unwrap();
        fence.put(right, 0, &[u64::from(world.rank())]).unwrap();
        let _: u64 = fence.fetch_and_op(right, 1, Op::Sum, 5u64).unwrap();
        fence.end().unwrap();
        assert_eq!(window.local().load::<u64>(0), Ok(u64::from(left)));
        world.barrier().unwrap();
        let exposure = window.post(&[left], Assert::NONE).unwrap();
        let start = window.start(&[right], Assert::NONE).unwrap();
        start.accumulate(right, 0, Op::Sum, &[100u64]).unwrap();
        start.complete().unwrap();
        exposure.wait().unwrap();
        assert_eq!(window.local().load::<u64>(0), Ok(u64::from(left) + 100));
    }
    assert_eq!(window.local().load::<u64>(1), Ok(10));
    assert_eq!(window.set_info("no_locks", "false"), Ok(false), "as it was made");
    window.free().unwrap();
}

/// Under every subset of orders: what is asked for is kept, elements are never torn, and sums are
/// exact. S-H8 S-B10
pub fn orders(universe: &Universe) {
    let len = if cfg!(miri) { 4 } else { 3000 };
    for set in 0..16 {
        let words = ["rar", "raw", "war", "waw"].into_iter().enumerate();
        let words: Vec<&str> = words.filter(|(bit, _)| set & 1 << bit != 0).map(|w| w.1).collect();
        let hint = if set == 0 { "none".to_owned() } else { words.join(",") };
        let builder = universe.world().window(2 * len, 8);
        let window = builder.hint("accumulate_ordering", &hint).unwrap().allocate().unwrap();
        ordered(universe, &window, len, &hint);
        window.free().unwrap();
    }
}

fn ordered(universe: &Universe, window: &Window, len: usize, hint: &str) {
    let (world, rounds) = (universe.world(), times(universe, 10));
    let kept = |word| hint.contains(word);
    let right = neighbour(world, 1);
    let epoch = window.lock_all().unwrap();
    let mut old = 0;
    for round in 1..=rounds {
        let [first, second, third] = [1, 2, 3].map(|n| round * 10 + n);
        let [mut seen, mut early, mut after] = [(); 3].map(|()| vec![0; len]);
        epoch.accumulate(right, 0, Op::Replace, &vec![first; len]).unwrap();
        epoch.accumulate(right, 0, Op::Replace, &vec![second; len]).unwrap();
        let read = epoch.ops(|ops| ops.get_accumulate(right, 0, Op::NoOp, &[], &mut seen));
        read.unwrap();
        epoch.flush(right).unwrap();
        epoch.get(right, 0, &mut after).unwrap();
        for (seen, after) in seen.into_iter().zip(&after) {
            let stays: &[u64] = if kept("waw") { &[second] } else { &[first, second] };
            assert!(stays.contains(after), "{hint}: {after} of {stays:?}");
            let written = [first, second].contains(&seen);
            // A read that waits for all writes sees what stays.
            let fresh = written && (seen == *after || !kept("raw"));
            assert!(fresh || seen == old && !kept("raw"), "{hint}: {seen} before {after}");
        }
        let third_of_all = vec![third; len];
        let both = epoch.ops(|ops| {
            ops.get_accumulate(right, 0, Op::NoOp, &[], &mut early)?;
            ops.accumulate(right, 0, Op::Replace, &third_of_all)
        });
        both.unwrap();
        for (early, after) in early.into_iter().zip(&after) {
            assert!(early == *after || early == third && !kept("war"), "{hint}: {early}");
        }
        epoch.accumulate(right, len as u64, Op::Sum, &vec![round; len]).unwrap();
        epoch.accumulate(right, len as u64, Op::Sum, &vec![1u64; len]).unwrap();
        epoch.flush(right).unwrap();
        epoch.get(right, 0, &mut after).unwrap();
        assert_eq!(after, third_of_all);
        old = third;
    }
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let sum = rounds * (rounds + 1) / 2 + rounds;
    assert_eq!(local_words(window)[len..], vec![sum; len]);
    world.barrier().unwrap();
}

/// A window has no name until it is given one; a long one is cut where a character ends. S-B4
pub fn names(universe: &Universe) {
    let window = words(universe.world(), 2);
    assert_eq!(window.name(), "");
    for name in ["halo", "\u{d6}l und \u{1f600}", "", "again"] {
        window.set_name(name);
        assert_eq!(window.name(), name);
        if !name.is_empty() {
            says(&window.explain(), &[name, &window.id().to_string()]);
        }
    }
    let max = Window::NAME_MAX;
    for (given, kept) in [("x", max), ("\u{e4}", max - 1), ("\u{1f600}", max - 3)] {
        window.set_name(&given.repeat(max));
        assert_eq!(window.name(), given.repeat(kept / given.len()));
    }
    still_works(&window);
    let other = words(universe.world(), 1);
    assert_eq!(other.name(), "", "a name belongs to one window");
    other.free().unwrap();
    window.free().unwrap();
}

/// Base, size, unit, flavor and model. S-B1 S-B2
pub fn described(universe: &Universe) {
    let world = universe.world();
    let unit = 4 << (world.rank().0 % 2);
    let window = world.window(3 + usize::from(world.rank()), unit).allocate().unwrap();
    assert_eq!(window.size(), (3 + u64::from(world.rank())) * unit as u64);
    assert_eq!(window.disp_unit() as usize, unit);
    assert_eq!((window.flavor(), window.memory_model()), (Flavor::Allocate, MemoryModel::Unified));
    let view = window.local();
    let (base, size) = (view.as_ptr().addr(), view.size());
    assert!(base != 0 && base == window.local().as_ptr().addr());
    assert_eq!((size, view.disp_unit()), (window.size(), window.disp_unit()));
    let same_base = |window: &Window| window.local().as_ptr().addr() == base;
    window.fence(Assert::NONE).unwrap().end().unwrap();
    assert!(same_base(&window));
    let window = window.seal().unwrap().unseal().unwrap();
    assert!(same_base(&window));
    window.free().unwrap();
    if crate::help::near(universe) {
        let node = world.split_by_node(0).unwrap();
        let window = node.window(1, 8).allocate_shared().unwrap();
        assert_eq!(
            (window.flavor(), window.memory_model()),
            (Flavor::Shared, MemoryModel::Unified)
        );
        window.free().unwrap();
    }
}

/// What a person reads about a window says how it works.
pub fn explained(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 1 + usize::from(world.rank()));
    let text = window.explain();
    let by_messages = far(&window, neighbour(world, 1));
    let itself = far(&window, window.rank());
    let (signals, words, metadata) = match (by_messages, itself) {
        (true, true) => ("messages", "messages", "of each target asked on demand"),
        (false, _) => {
            ("bits in the peer's control words", "load and store", "a table of 2 targets")
        }
        (true, false) => (
            "bits in the peer's control words on this node, messages elsewhere",
            "load and store on this node, messages elsewhere",
            "a table of 1 targets, mapped at first use; elsewhere size and unit of each",
        ),
    };
    let signals = format!("post, complete: {signals}\n");
    let targets = if by_messages != itself { "1 targets by" } else { "2 targets by" };
    says(&text, &[targets, &signals, &format!("its words by {words}\n"), metadata]);
    assert!(!text.contains(" 0 targets"), "{text}");
    window.free().unwrap();
}

/// Counts how many of its kind are dropped.
struct Counted(Arc<AtomicU32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Attributes are set, found, replaced and removed in any order, and each is dropped once: when it
/// is replaced or removed, with the window, or when its last user lets go. S-B3
pub fn attributes(universe: &Universe) {
    let drops = Arc::new(AtomicU32::new(0));
    let dropped = || drops.load(Relaxed);
    let (window, other) = (words(universe.world(), 2), words(universe.world(), 2));
    assert!(window.attribute::<Counted>().is_none() && window.remove_attribute::<u32>().is_none());
    assert!(window.set_attribute(Counted(drops.clone())).is_none());
    assert!(window.set_attribute(7u32).is_none() && window.set_attribute("text").is_none());
    assert_eq!(window.remove_attribute::<u32>().as_deref(), Some(&7));
    assert_eq!((window.attribute::<u32>(), window.attribute().as_deref()), (None, Some(&"text")));
    assert!(other.attribute::<Counted>().is_none(), "an attribute belongs to one window");
    drop(window.set_attribute(Counted(drops.clone())).expect("the first one"));
    assert_eq!(dropped(), 1);
    drop(window.remove_attribute::<Counted>().expect("the second one"));
    assert_eq!(dropped(), 2);
    window.set_attribute(Counted(drops.clone()));
    still_works(&window);
    // A refused `free` leaves them.
    let guard = window.lock_all().unwrap();
    std::mem::forget(guard);
    let window = *window.free().expect_err("an epoch is open").value.unwrap();
    assert_eq!((dropped(), window.attribute().as_deref()), (2, Some(&"text")));
    drop(window);
    assert_eq!(dropped(), 3, "dropped with the window");
    other.set_attribute(Counted(drops.clone()));
    let used = other.attribute::<Counted>().unwrap();
    other.free().unwrap();
    assert_eq!(dropped(), 3, "still in use");
    drop(used);
    assert_eq!(dropped(), 4);
    let freed = words(universe.world(), 1);
    freed.set_attribute(Counted(drops.clone()));
    freed.free().unwrap();
    assert_eq!(dropped(), 5, "dropped by free");
}
