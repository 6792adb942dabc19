//! Windows over a backing of another crate: this one.
use pieces::Pieces;
use rma::{
    Assert, LockKind, Op, Path, PersistError, Rank, RmaError, StorageFactor, StorageHints,
    StorageMemory, Universe, Window, WindowError,
};
use rma_core::transport::AllocateError;
use rma_core::{Extent, Place};
use std::sync::Arc;

mod pieces;

/// Makes a test of each case, with so many ranks.
macro_rules! tests {
    ($harness:ident; $($case:ident($ranks:literal)),* $(,)?) => {$(
        #[test]
        fn $case() {
            use rma_conformance::Harness;
            let (name, case) = (stringify!($case), &$crate::backings::$case);
            crate::$harness::run(&format!("over_backings::{name}"), $ranks, case);
        }
    )*};
}

/// All cases.
macro_rules! all {
    ($harness:ident) => {
        mod over_backings {
            $crate::backings::tests! { $harness;
                across_the_seam(3), with_other_memory(4), no_rank_maps_it(2), attached(3),
                sealed(2), given_up(2), flaws(2), is_kept(1), on_storage(3),
            }
        }
    };
}

pub(crate) use {all, tests};

const PAGE: usize = 4096;
/// Bytes of the pieces; no whole number of pages.
const LENS: [usize; 3] = [PAGE, 2 * PAGE, 1000];
const ALL: usize = 3 * PAGE + 1000;
/// Where the second piece begins.
const SEAM: u64 = PAGE as u64;

fn pieces(life: &Arc<()>) -> Arc<Pieces> {
    Arc::new(Pieces::new(&LENS, life))
}

fn right(window: &Window) -> Rank {
    window.rank().on_ring(1, window.ranks())
}

/// What a rank puts to the right: bytes that tell whose they are.
fn bytes(rank: Rank, len: usize) -> Vec<u8> {
    (0..len).map(|i| (rank.0 as usize * 31 + i * 7 + 1) as u8).collect()
}

/// Whether the path to others is the one that mapped memory has, unless a harness forces another.
fn is_mapped(window: &Window) -> bool {
    window.path(right(window)) == Some(Path::LoadStore)
}

/// Every kind of operation on both sides of the seam, and across. **Collective.**
fn operate(window: &Window) {
    let (me, right, left) =
        (window.rank(), right(window), window.rank().on_ring(-1, window.ranks()));
    let epoch = window.fence(Assert::NONE).unwrap();
    epoch.put(right, SEAM - 100, &bytes(me, 200)).unwrap();
    epoch.end().unwrap();
    let mut found = vec![0u8; 200];
    window.local().read(SEAM - 100, &mut found).unwrap();
    assert_eq!(found, bytes(left, 200));
    let epoch = window.lock(right, LockKind::Shared).unwrap();
    epoch.get(SEAM - 100, &mut found).unwrap();
    assert_eq!(found, bytes(me, 200));
    epoch.unlock().unwrap();
    window.fence(Assert::NONE).unwrap().end().unwrap();
    window.local().write(SEAM - 8, &[0u64, 0]).unwrap();
    window.fence(Assert::NONE).unwrap().end().unwrap();
    let epoch = window.lock_all().unwrap();
    for target in (0..window.ranks()).map(Rank) {
        epoch.fetch_and_op(target, SEAM - 8, Op::Sum, 1u64).unwrap();
        epoch.accumulate(target, SEAM - 8, Op::Sum, &[1u64, 2]).unwrap();
    }
    epoch.unlock().unwrap();
    window.fence(Assert::NONE).unwrap().end().unwrap();
    let mut sums = [0u64; 2];
    window.local().read(SEAM - 8, &mut sums).unwrap();
    assert_eq!(sums, [2 * u64::from(window.ranks()); 2]);
    window.fence(Assert::NONE).unwrap().end().unwrap();
}

/// Neighbours load and store on both sides of the seam, and what they store is in the files; the
/// backing comes back, and belongs to nothing else.
pub(crate) fn across_the_seam(universe: Universe) {
    let (world, life) = (universe.world(), Arc::new(()));
    let window = world.window(ALL, 1).create(pieces(&life)).unwrap();
    let near = universe.transport().is_near(rma::WorldRank(right(&window).0));
    let forced = window.get_info("rma_path").is_some_and(|path| path != "auto");
    assert_eq!(is_mapped(&window), near && !forced, "{}", window.explain());
    operate(&window);
    let end = ALL as u64;
    window.local().write(end - 3, &[7u8, 8, 9]).unwrap();
    window.persist(SEAM - 1..end).unwrap();
    let outside = window.persist(1..end + 1).unwrap_err();
    assert!(matches!(outside, RmaError::OutOfRange { .. }), "{outside}");
    let mut all = vec![0u8; ALL];
    window.local().read(0, &mut all).unwrap();
    let pieces: Arc<Pieces> = window.free_into().unwrap();
    let pieces = Arc::into_inner(pieces).expect("given back as a whole");
    assert!(pieces.contents() == all && all.ends_with(&[7, 8, 9]));
    assert_eq!(*pieces.persisted.lock().unwrap(), Some(SEAM - 1..end));
    drop(pieces);
    assert_eq!(Arc::strong_count(&life), 1);
    let window = world.window(1, 8).allocate().unwrap();
    let error = window.persist(0..8).unwrap_err();
    let RmaError::Persist { error, .. } = error else { panic!("{error}") };
    assert_eq!(error, PersistError::Volatile);
    window.free().unwrap();
    universe.finalize().unwrap();
}

/// Ranks bring different numbers of extents, and memory of other kinds; windows may be shorter.
pub(crate) fn with_other_memory(universe: Universe) {
    let (world, life) = (universe.world(), Arc::new(()));
    let (me, count) = (world.rank().0, 2 * PAGE);
    let builder = world.window(count, 1);
    let window = match me {
        0 => builder.create(vec![0u8; count]).unwrap(),
        1 => builder.create(Arc::new(Pieces::new(&[3 * PAGE], &life))).unwrap(),
        _ => builder.create(pieces(&life)).unwrap(),
    };
    operate(&window);
    let window = window.free_into::<rma::RawPart>().unwrap_err().value.unwrap();
    let refused = if me == 0 {
        window.free_into::<Arc<Pieces>>().unwrap_err()
    } else {
        window.free_into::<Vec<u8>>().unwrap_err()
    };
    refused.value.unwrap().free().unwrap();
    assert_eq!(Arc::strong_count(&life), 1, "dropped once all have freed");
    universe.finalize().unwrap();
}

/// A backing may say to no neighbour how to map it.
pub(crate) fn no_rank_maps_it(universe: Universe) {
    let (world, life) = (universe.world(), Arc::new(()));
    let mut pieces = Pieces::new(&LENS, &life);
    pieces.extents.clear();
    let window = world.window(ALL, 1).create(Arc::new(pieces)).unwrap();
    assert!(!is_mapped(&window));
    operate(&window);
    window.free().unwrap();
    assert_eq!(Arc::strong_count(&life), 1);
    universe.finalize().unwrap();
}

/// Regions of a dynamic window: those of one extent are mapped, and so are those of several, if
/// there are slots for all.
pub(crate) fn attached(universe: Universe) {
    let (world, life) = (universe.world(), Arc::new(()));
    let right = world.rank().on_ring(1, world.size());
    let near = universe.transport().is_near(universe.transport().rank());
    let hint = |regions| world.window(0, 1).hint("rma_dynamic_regions", regions).unwrap();
    let (window, crowded) = (hint("3").create_dynamic(), hint("2").create_dynamic());
    let (window, crowded) = (window.unwrap(), crowded.unwrap());
    let all = [(&window, &LENS[..], true), (&window, &[2 * PAGE], true), (&crowded, &LENS, false)];
    for (window, lens, mapped) in all {
        let twice = Arc::new(Pieces::new(lens, &life));
        let attached = window.attach(twice.clone()).unwrap();
        let refused = window.attach(twice.clone()).unwrap_err();
        assert!(matches!(refused.error, RmaError::AttachedTwice { .. }), "{refused}");
        drop((refused, twice));
        let at = world.allgather(&[attached.address()]).unwrap()[usize::from(right)] + SEAM - 8;
        let before = window.operation_counts().load_store.unwrap();
        let epoch = window.lock_all().unwrap();
        epoch.put(right, at, &[1u64, 2]).unwrap();
        epoch.flush(right).unwrap();
        assert_eq!(epoch.fetch_and_op(right, at + 8, Op::Sum, 5u64).unwrap(), 2);
        let mut got = [0u64; 2];
        epoch.get(right, at, &mut got).unwrap();
        epoch.unlock().unwrap();
        assert_eq!(got, [1, 7]);
        let loads = window.operation_counts().load_store.unwrap();
        let mapped = mapped && window.path(right) == Some(Path::ByRegion);
        assert_eq!(loads, if mapped { before + 3 } else { before }, "{}", window.explain());
        let told = window.explain().contains("1 attached here have more extents");
        assert_eq!(told, near && std::ptr::eq(window, &crowded));
        world.barrier().unwrap();
        let start = attached.address();
        window.persist(start + 5..start + SEAM + 1).unwrap();
        let gone = window.persist(start..start + 5 * SEAM).unwrap_err();
        assert!(matches!(gone, RmaError::NotAttached { .. }), "{gone}");
        let pieces = Arc::into_inner(window.detach(attached).unwrap()).expect("given back");
        assert_eq!(*pieces.persisted.lock().unwrap(), Some(5..SEAM + 1));
        let contents = pieces.contents();
        assert_eq!(
            contents[PAGE - 8..PAGE + 8],
            [[1, 0, 0, 0, 0, 0, 0, 0], [7, 0, 0, 0, 0, 0, 0, 0]].concat()
        );
    }
    window.free().unwrap();
    crowded.free().unwrap();
    universe.finalize().unwrap();
}

/// A part is a slice only if the window alone has its backing, and no other code its bytes.
pub(crate) fn sealed(universe: Universe) {
    let (world, life) = (universe.world(), Arc::new(()));
    let window = world.window(ALL, 1).create(pieces(&life)).unwrap();
    let mut sealed = window.seal().unwrap();
    sealed.bytes_mut()[PAGE - 1..PAGE + 1].copy_from_slice(&[3, 4]);
    let window = sealed.unseal().unwrap();
    let mut got = [0u8; 2];
    let epoch = window.lock(right(&window), LockKind::Shared).unwrap();
    epoch.get(SEAM - 1, &mut got).unwrap();
    epoch.unlock().unwrap();
    assert_eq!(got, [3, 4]);
    world.barrier().unwrap();
    window.free().unwrap();
    let mut shared = Pieces::new(&LENS, &life);
    shared.exclusive = false;
    let (alone, mine) = (pieces(&life), pieces(&life));
    for (pieces, of) in [(Arc::new(shared), None), (alone, Some(mine.clone())), (mine, None)] {
        let clone = of.map(|_| pieces.clone());
        let seals = clone.is_none() && pieces.exclusive;
        let window = world.window(ALL, 1).create(pieces).unwrap();
        match window.seal() {
            Ok(sealed) if seals => sealed.unseal().unwrap().free().unwrap(),
            Err(refused) if !seals => {
                let requested =
                    matches!(refused.error, RmaError::WrongFlavor { requested: "seal", .. });
                assert!(requested, "{refused}");
                refused.value.unwrap().free().unwrap();
            }
            _ => panic!("sealed or not: {seals}"),
        }
    }
    assert_eq!(Arc::strong_count(&life), 1);
    universe.finalize().unwrap();
}

/// What comes back if there is no window belongs to nothing else.
pub(crate) fn given_up(universe: Universe) {
    let (world, life) = (universe.world(), Arc::new(()));
    let count = if world.rank() == Rank(0) { ALL + 1 } else { ALL };
    let not_created = world.window(count, 1).create(pieces(&life)).unwrap_err();
    assert!(Arc::into_inner(not_created.value).is_some());
    assert_eq!(Arc::strong_count(&life), 1);
    universe.finalize().unwrap();
}

/// What a backing says of itself is checked where it is brought along.
pub(crate) fn flaws(universe: Universe) {
    let (world, life) = (universe.world(), Arc::new(()));
    let near = universe.transport().is_near(universe.transport().rank());
    let place = |pieces: &Pieces| pieces.extents[0].place;
    type Flaw<'a> = (&'a str, bool, &'a dyn Fn(&mut Pieces));
    let file = |pieces: &mut Pieces, number, offset| {
        pieces.extents[1].place = Place::File { number, offset, synchronous: false };
    };
    let all: [Flaw<'_>; 10] = [
        ("granularity", true, &|pieces| pieces.granularity = 0),
        ("granularity", true, &|pieces| pieces.granularity = 32),
        ("granularity", true, &|pieces| pieces.granularity = 96),
        ("no bytes", true, &|pieces| pieces.extents[1].len = 0),
        ("multiple of the granularity", true, &|pieces| pieces.extents[0].len -= 1),
        ("inside of the mapping", true, &|pieces| pieces.extents[2].len = u64::MAX),
        ("before the mapping does", true, &|pieces| pieces.extents[2].len -= 1),
        ("more than neighbours map", true, &|pieces| {
            pieces.extents = vec![Extent { len: 8, place: place(pieces) }; 65];
        }),
        ("with a page", near, &|pieces| file(pieces, 0, 64)),
        ("behind its file", near, &|pieces| {
            let Place::File { number, .. } = place(pieces) else { panic!("a file") };
            file(pieces, number, SEAM);
        }),
    ];
    for (says, seen, spoil) in all {
        let mut pieces = Pieces::new(&LENS, &life);
        if world.rank() == Rank(1) {
            spoil(&mut pieces);
        }
        match world.window(ALL, 1).create(Arc::new(pieces)) {
            Ok(window) if !seen => window.free().unwrap(),
            Err(not) if seen && world.rank() == Rank(1) => {
                let WindowError::Allocate { rank: Rank(1), error } = not.error else {
                    panic!("{says}: {}", not.error);
                };
                assert!(matches!(error, AllocateError::Extent { .. }), "{error}");
                assert!(error.to_string().contains(says), "{error}");
                assert!(Arc::into_inner(not.value).is_some(), "{says}");
            }
            Err(not) if seen => assert_eq!(not.error, WindowError::Peer(Rank(1))),
            other => panic!("{says}: {:?}", other.map(drop)),
        }
    }
    assert_eq!(Arc::strong_count(&life), 1);
    universe.finalize().unwrap();
}

/// Peers of a window that was not freed may write there for ever.
pub(crate) fn is_kept(universe: Universe) {
    let life = Arc::new(());
    let window = universe.world().window(ALL, 1).create(pieces(&life)).unwrap();
    drop(window);
    let dynamic = universe.world().window(0, 1).create_dynamic().unwrap();
    drop(dynamic.attach(pieces(&life)).unwrap());
    drop(dynamic);
    universe.finalize().unwrap();
    assert_eq!(Arc::strong_count(&life), 3);
}

/// Half of each part is in memory, half in a file, and the border is the seam.
pub(crate) fn on_storage(universe: Universe) {
    let (world, folder) = (universe.world(), tempfile::tempdir().unwrap());
    let half = StorageHints::file(folder.path().join("half")).factor(StorageFactor::Share(0.5));
    let memory = StorageMemory::open(&universe, &half.unwrap(), 2 * PAGE).unwrap();
    let window = world.window(2 * PAGE, 1).create(Arc::new(memory)).unwrap();
    operate(&window);
    window.sync().unwrap();
    let mut all = vec![0u8; 2 * PAGE];
    window.local().read(0, &mut all).unwrap();
    let memory: Arc<StorageMemory> = window.free_into().unwrap();
    Arc::into_inner(memory).expect("given back as a whole").close().unwrap();
    assert!(std::fs::read(folder.path().join("half")).unwrap() == all[PAGE..]);
    universe.finalize().unwrap();
}
