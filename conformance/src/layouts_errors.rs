//! Accumulates and requests with layouts that do nothing, or are refused (FEATURES A4, A7).
use crate::help::{local_words, neighbour, says, still_works, words};
use bytemuck::{Pod, Zeroable};
use rma_core::{Complex, ErrorClass, Layout, LockKind, Op, Rank, RmaError, Universe};

/// An element that is not basic.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Particle {
    id: u64,
    charge: f64,
}

/// Nothing at the null target, nothing of nothing, of any types. S-G3 S-G4 S-I7
pub fn null_and_nothing(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let (word, float) = (Layout::element::<u64>(), Layout::element::<f32>());
    let particle = Layout::element::<Particle>();
    let mut buffer = [5u64; 2];
    let epoch = window.lock_all().unwrap();
    let targets = world.ranks().map(|rank| (rank, 2, 0));
    for (target, disp, count) in targets.chain([(Rank::NULL, 99, 7)]) {
        for (there, here) in [(&word, &word), (&word, &float), (&particle, &float)] {
            let (there, here) = (there.times(count), here.times(count));
            let op = Op::Sum;
            epoch.accumulate(target, there.at(disp), op, here.of(&[5u64; 7])).unwrap();
            let origin = here.of(&[1u64]);
            epoch
                .get_accumulate(target, there.at(disp), op, origin, here.of(&mut buffer[..]))
                .unwrap();
            let put = epoch.rput(target, there.at(disp), here.of(vec![1u64])).unwrap();
            assert_eq!(put.wait().unwrap(), [1]);
            let get = epoch.rget(target, there.at(disp), here.of(vec![2u64])).unwrap();
            assert_eq!(get.wait().unwrap(), [2]);
            let add = epoch.raccumulate(target, there.at(disp), op, here.of(vec![3u64])).unwrap();
            assert_eq!(add.wait().unwrap(), [3]);
            let result = here.of(vec![4u64]);
            let fetch = epoch.rget_accumulate(target, there.at(disp), op, origin, result);
            assert_eq!(fetch.unwrap().wait().unwrap(), [4]);
        }
    }
    epoch.unlock().unwrap();
    let lock = window.lock(Rank::NULL, LockKind::Shared).unwrap();
    lock.accumulate(word.at(0), Op::Sum, word.of(&[1u8])).unwrap();
    lock.rput(word.at(0), word.of(vec![1u8])).unwrap().wait().unwrap();
    lock.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!((buffer, local_words(&window)), ([5; 2], vec![0; 2]));
    window.free().unwrap();
}

/// Only elements of one basic type are combined. S-H13 S-H14
pub fn not_basic(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 8);
    let right = neighbour(world, 1);
    let (word, float) = (Layout::element::<u64>(), Layout::element::<f64>());
    let mixed = Layout::structure(&[(0, 1, word.clone()), (8, 1, float.clone())]).unwrap();
    let structs = Layout::element::<Particle>();
    let mut buffer = [3u64; 8];
    let epoch = window.lock_all().unwrap();
    for layout in [&mixed, &structs, &Layout::element::<u128>()] {
        let error = epoch.accumulate(right, layout.at(0), Op::Sum, layout.of(&buffer));
        let error = error.unwrap_err();
        assert!(matches!(error, RmaError::NotBasic { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Type);
        let element = layout.signature(1).element;
        says(&error, &[element, "an accumulate", "one basic type", &window.id().to_string()]);
        let (origin, result) = (layout.of(&[3u64; 8]), layout.of(&mut buffer));
        let error = epoch.get_accumulate(right, layout.at(0), Op::NoOp, origin, result);
        says(&error.unwrap_err(), &["a get_accumulate", &right.to_string()]);
    }
    // A put of the same bytes is legal, and so is each type by itself.
    epoch.put(right, mixed.at(0), mixed.of(&buffer)).unwrap();
    epoch.flush(right).unwrap();
    let first = Layout::structure(&[(0, 1, word.clone())]).unwrap();
    epoch.accumulate(right, first.at(0), Op::Sum, first.of(&buffer)).unwrap();
    let errors = [
        epoch.accumulate(right, word.at(0), Op::NoOp, word.of(&buffer)),
        epoch.accumulate(right, float.at(0), Op::BitOr, float.of(&buffer)),
        epoch.accumulate(right, word.at(0), Op::MinLoc, word.of(&buffer)),
    ];
    for error in errors.into_iter().map(Result::unwrap_err) {
        assert!(matches!(error, RmaError::WrongOp { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Op);
    }
    let (origin, result) = (word.of(&[0u64; 0]), word.of(&mut buffer));
    let error = epoch.get_accumulate(right, float.at(0), Op::NoOp, origin, result);
    assert!(matches!(error, Err(RmaError::SignatureMismatch { .. })), "{error:?}");
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window)[..3], [6, 3, 0]);
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// Every element at the target is aligned; at the origin it need not be. S-H14
pub fn misaligned(universe: &Universe) {
    let world = universe.world();
    let window = world.window(64, 1).allocate().unwrap();
    let right = neighbour(world, 1);
    let (word, half) = (Layout::element::<u64>(), Layout::element::<i16>());
    let complex = Layout::element::<Complex<f64>>();
    let buffer = [1u8; 64];
    let epoch = window.lock_all().unwrap();
    let wrong = [
        (4, word.clone()),
        (0, word.hvector(2, 1, 12).unwrap()),
        (4, word.hindexed(&[(0, 1), (12, 1)]).unwrap()),
        (1, half.contiguous(3).unwrap()),
        (0, half.hvector(2, 2, 5).unwrap()),
        (4, complex.clone()),
    ];
    for (disp, layout) in &wrong {
        let mut buffer = buffer;
        let dense = layout.times(1);
        let error = epoch.accumulate(right, layout.at(*disp), Op::Sum, dense.of(&buffer));
        let error = error.unwrap_err();
        assert!(matches!(error, RmaError::Misaligned { .. }), "{layout:?}: {error}");
        says(&error, &["layout", &format!("displacement {disp}"), "natural alignment"]);
        let (origin, result) = (dense.of(&[0u8; 0]), dense.of(&mut buffer));
        let error = epoch.get_accumulate(right, layout.at(*disp), Op::NoOp, origin, result);
        assert_eq!(error.unwrap_err().class(), ErrorClass::Disp);
    }
    let apart = word.resized(0, 12).unwrap();
    let error = epoch.accumulate(right, apart.times(2).at(0), Op::Sum, apart.times(2).of(&buffer));
    assert!(matches!(error, Err(RmaError::Misaligned { .. })), "{error:?}");
    // Halves of its width are enough for a complex number, and so is what a layout makes good.
    epoch.accumulate(right, complex.at(8), Op::Replace, complex.of(&[0u8; 16])).unwrap();
    let back = word.hindexed(&[(-4, 1), (12, 1)]).unwrap();
    let from = word.hindexed(&[(3, 1), (17, 1)]).unwrap();
    epoch.accumulate(right, back.at(12), Op::Sum, from.of(&buffer)).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    let mut mine = [0u8; 64];
    window.local().read(0, &mut mine).unwrap();
    let expected: Vec<u8> =
        (0..64).map(|at| u8::from((8..16).contains(&at) || at / 8 == 3)).collect();
    assert_eq!(&mine[..], &expected[..]);
    window.free().unwrap();
}

/// What does not fit is refused, and nothing is combined. S-G8 S-G9 S-G10 S-J8
pub fn refused(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 10);
    let right = neighbour(world, 1);
    let word = Layout::element::<u64>();
    let (down, twice) = (word.vector(3, 1, -2).unwrap(), word.vector(3, 2, 1).unwrap());
    let mut buffer = [3u64; 10];
    let epoch = window.lock_all().unwrap();
    let mut refuse = |target: Rank, disp: u64, there: &Layout, here: &Layout, into: &Layout| {
        let (there, here, into) = (there.times(1), here.times(1), into.times(1));
        let (origin, result) = (here.of(&[3u64; 10]), into.of(&mut buffer));
        let get = epoch.get_accumulate(target, there.at(disp), Op::Sum, origin, result);
        let get = get.unwrap_err();
        let result = into.of(vec![0u64; 10]);
        let request = epoch.rget_accumulate(target, there.at(disp), Op::Sum, origin, result);
        assert_eq!(request.err().map(RmaError::from), Some(get));
        get
    };
    let three = word.contiguous(3).unwrap();
    let error = refuse(right, 3, &down, &three, &three);
    assert!(matches!(error, RmaError::LayoutOutOfRange { low: -8, high: 32, .. }), "{error}");
    let error = refuse(right, u64::MAX, &three, &three, &three);
    assert!(matches!(error, RmaError::LayoutOutOfRange { .. }), "{error}");
    let error = refuse(right, 0, &three, &down, &three);
    assert!(matches!(error, RmaError::OriginOutOfRange { low: -32, high: 8, .. }), "{error}");
    let error = refuse(right, 0, &three, &three, &down);
    assert!(matches!(error, RmaError::OriginOutOfRange { .. }), "{error}");
    let error = refuse(right, 0, &three, &word, &three);
    assert!(matches!(error, RmaError::SignatureMismatch { .. }), "{error}");
    let error = refuse(right, 0, &three, &three, &word);
    assert!(matches!(error, RmaError::SignatureMismatch { .. }), "{error}");
    let error = refuse(Rank(77), 0, &three, &three, &three);
    assert!(matches!(error, RmaError::NoSuchRank { .. }), "{error}");
    let six = word.contiguous(6).unwrap();
    says(&refuse(right, 0, &twice, &six, &six), &["target's layout of an accumulate", "overlap"]);
    says(&refuse(right, 0, &six, &six, &twice), &["result's layout of a get_accumulate"]);
    assert_eq!(buffer, [3; 10]);
    let error = epoch.accumulate(right, twice.at(0), Op::Sum, six.of(&buffer)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Type);
    // Operands may be read twice.
    epoch.accumulate(right, six.at(4), Op::Sum, twice.of(&[1u64, 2, 3, 4])).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!(local_words(&window), [0, 0, 0, 0, 1, 2, 2, 3, 3, 4]);
    world.barrier().unwrap();
    still_works(&window);
    window.free().unwrap();
}

/// A scope of a lock has one target.
pub fn other_target_of_a_lock(universe: &Universe) {
    let world = universe.world();
    let (window, word) = (words(world, 2), Layout::element::<u64>());
    let epoch = window.lock(Rank(0), LockKind::Shared).unwrap();
    let mut buffer = [0u64];
    let (add, get) = epoch
        .ops(|ops| {
            let add = ops.accumulate(Rank(1), word.at(0), Op::Sum, word.of(&[1u64]));
            let (origin, result) = (word.of(&[1u64]), word.of(&mut buffer));
            Ok((add, ops.get_accumulate(Rank(1), word.at(0), Op::Sum, origin, result)))
        })
        .unwrap();
    assert!(matches!(add, Err(RmaError::NotLocked { .. })), "{add:?}");
    assert!(matches!(get, Err(RmaError::NotLocked { .. })), "{get:?}");
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    window.free().unwrap();
}

/// Counts beyond 32 bits: counted right, refused where they do not fit, cheap. S-J9
pub fn huge_counts(universe: &Universe) {
    let world = universe.world();
    let (window, right) = (words(world, 4), neighbour(world, 1));
    let word = Layout::element::<u64>();
    let (point, mut buffer) = (word.resized(0, 0).unwrap(), [0u64; 4]);
    let epoch = window.lock_all().unwrap();
    let mut refused = |there: &Layout, here: &Layout, count: u64| {
        let (there, here) = (there.times(count), here.times(count));
        let (origin, result) = (here.of(&[1u64; 4]), here.of(&mut buffer));
        let fetch = epoch.get_accumulate(right, there.at(0), Op::Sum, origin, result);
        let add = epoch.accumulate(right, there.at(0), Op::Sum, here.of(&[1u64; 4]));
        assert_eq!(fetch, add);
        let put = epoch.rput(right, there.at(0), here.of(vec![1u64; 4])).err();
        assert_eq!(put.map(RmaError::from), add.err());
        add.unwrap_err()
    };
    for count in [1 << 60, 1 << 61, u64::MAX] {
        let error = refused(&word, &word, count);
        assert!(matches!(error, RmaError::LayoutTooLarge { .. }), "{error}");
    }
    for count in [1 << 29, 1 << 32, 1 << 40, (1 << 60) - 1] {
        let error = refused(&word, &word, count);
        assert_eq!(error.class(), ErrorClass::Count);
        let RmaError::OriginOutOfRange { low: 0, high, len: 32, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(high, count as i64 * 8);
    }
    // All copies at one place: inside, but there more than once.
    let error = epoch.accumulate(
        right,
        point.times(1u64 << 40).at(0),
        Op::Sum,
        point.times(1u64 << 40).of(&[1u64]),
    );
    assert!(matches!(error, Err(RmaError::Overlap { .. })), "{error:?}");
    let far = word.hvector(2, 1, 1i64 << 40).unwrap();
    let error = epoch.accumulate(right, far.at(0), Op::Sum, word.times(2).of(&[1u64; 2]));
    assert!(matches!(error, Err(RmaError::LayoutOutOfRange { high, .. }) if high == (1 << 40) + 8));
    let nothing = Layout::structure(&[]).unwrap();
    let none = nothing.times(u64::MAX);
    epoch.accumulate(right, none.at(0), Op::Sum, word.times(0).of(&[1u64; 2])).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!((buffer, local_words(&window)), ([0; 4], vec![0; 4]));
    window.free().unwrap();
}
