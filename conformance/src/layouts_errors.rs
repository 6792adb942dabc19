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
    let (word, float) = (Layout::of::<u64>(), Layout::of::<f32>());
    let particle = Layout::of::<Particle>();
    let mut buffer = [5u64; 2];
    let epoch = window.lock_all().unwrap();
    let targets = world.ranks().map(|rank| (rank, 2, 0));
    for (target, disp, count) in targets.chain([(Rank::NULL, 99, 7)]) {
        for (there, here) in [(&word, &word), (&word, &float), (&particle, &float)] {
            let (there, here) = (there.times(count), here.times(count));
            let op = Op::Sum;
            epoch.accumulate_shaped(target, disp, there, op, &[5u64; 7], here).unwrap();
            let origin = (&[1u64][..], here);
            epoch
                .get_accumulate_shaped(target, disp, there, op, origin, (&mut buffer[..], here))
                .unwrap();
            let put = epoch.rput_shaped(target, disp, there, vec![1u64], here).unwrap();
            assert_eq!(put.wait(), (vec![1], Ok(())));
            let get = epoch.rget_shaped(target, disp, there, vec![2u64], here).unwrap();
            assert_eq!(get.wait(), (vec![2], Ok(())));
            let add = epoch.raccumulate_shaped(target, disp, there, op, vec![3u64], here).unwrap();
            assert_eq!(add.wait(), (vec![3], Ok(())));
            let result = (vec![4u64], here);
            let fetch = epoch.rget_accumulate_shaped(target, disp, there, op, origin, result);
            assert_eq!(fetch.unwrap().wait(), (vec![4], Ok(())));
        }
    }
    epoch.unlock().unwrap();
    let lock = window.lock(Rank::NULL, LockKind::Shared).unwrap();
    lock.accumulate_shaped(0, &word, Op::Sum, &[1u8], &word).unwrap();
    lock.rput_shaped(0, &word, vec![1u8], &word).unwrap().wait().1.unwrap();
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
    let (word, float) = (Layout::of::<u64>(), Layout::of::<f64>());
    let mixed = Layout::structure(&[(0, 1, word.clone()), (8, 1, float.clone())]).unwrap();
    let structs = Layout::of::<Particle>();
    let mut buffer = [3u64; 8];
    let epoch = window.lock_all().unwrap();
    for layout in [&mixed, &structs, &Layout::of::<u128>()] {
        let error = epoch.accumulate_shaped(right, 0, layout, Op::Sum, &buffer, layout);
        let error = error.unwrap_err();
        assert!(matches!(error, RmaError::NotBasic { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Type);
        let element = layout.signature(1).element;
        says(&error, &[element, "an accumulate", "one basic type", &window.id().to_string()]);
        let result = (&mut buffer[..], layout);
        let origin = (&[3u64; 8][..], layout);
        let error = epoch.get_accumulate_shaped(right, 0, layout, Op::NoOp, origin, result);
        says(&error.unwrap_err(), &["a get_accumulate", &right.to_string()]);
    }
    // A put of the same bytes is legal, and so is each type by itself.
    epoch.put_shaped(right, 0, &mixed, &buffer, &mixed).unwrap();
    epoch.flush(right).unwrap();
    let first = Layout::structure(&[(0, 1, word.clone())]).unwrap();
    epoch.accumulate_shaped(right, 0, &first, Op::Sum, &buffer, &first).unwrap();
    let errors = [
        epoch.accumulate_shaped(right, 0, &word, Op::NoOp, &buffer, &word),
        epoch.accumulate_shaped(right, 0, &float, Op::BitOr, &buffer, &float),
        epoch.accumulate_shaped(right, 0, &word, Op::MinLoc, &buffer, &word),
    ];
    for error in errors.into_iter().map(Result::unwrap_err) {
        assert!(matches!(error, RmaError::WrongOp { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Op);
    }
    let result = (&mut buffer[..], &word);
    let error =
        epoch.get_accumulate_shaped(right, 0, &float, Op::NoOp, (&[0u8; 0][..], &word), result);
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
    let (word, half) = (Layout::of::<u64>(), Layout::of::<i16>());
    let complex = Layout::of::<Complex<f64>>();
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
        let error = epoch.accumulate_shaped(right, *disp, layout, Op::Sum, &buffer, dense);
        let error = error.unwrap_err();
        assert!(matches!(error, RmaError::Misaligned { .. }), "{layout:?}: {error}");
        says(&error, &["layout", &format!("displacement {disp}"), "natural alignment"]);
        let result = (&mut buffer[..], dense);
        let origin = (&[0u8; 0][..], dense);
        let error = epoch.get_accumulate_shaped(right, *disp, layout, Op::NoOp, origin, result);
        assert_eq!(error.unwrap_err().class(), ErrorClass::Disp);
    }
    let apart = word.resized(0, 12).unwrap();
    let error = epoch.accumulate_shaped(right, 0, apart.times(2), Op::Sum, &buffer, apart.times(2));
    assert!(matches!(error, Err(RmaError::Misaligned { .. })), "{error:?}");
    // Halves of its width are enough for a complex number, and so is what a layout makes good.
    epoch.accumulate_shaped(right, 8, &complex, Op::Replace, &[0u8; 16], &complex).unwrap();
    let back = word.hindexed(&[(-4, 1), (12, 1)]).unwrap();
    let from = word.hindexed(&[(3, 1), (17, 1)]).unwrap();
    epoch.accumulate_shaped(right, 12, &back, Op::Sum, &buffer, &from).unwrap();
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
    let word = Layout::of::<u64>();
    let (down, twice) = (word.vector(3, 1, -2).unwrap(), word.vector(3, 2, 1).unwrap());
    let mut buffer = [3u64; 10];
    let epoch = window.lock_all().unwrap();
    let mut refuse = |target: Rank, disp: u64, there: &Layout, here: &Layout, into: &Layout| {
        let (there, here, into) = (there.times(1), here.times(1), into.times(1));
        let origin = (&[3u64; 10][..], here);
        let result = (&mut buffer[..], into);
        let get = epoch.get_accumulate_shaped(target, disp, there, Op::Sum, origin, result);
        let get = get.unwrap_err();
        let result = (vec![0u64; 10], into);
        let request = epoch.rget_accumulate_shaped(target, disp, there, Op::Sum, origin, result);
        assert_eq!(request.err(), Some(get));
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
    let error = epoch.accumulate_shaped(right, 0, &twice, Op::Sum, &buffer, &six).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Type);
    // Operands may be read twice.
    epoch.accumulate_shaped(right, 4, &six, Op::Sum, &[1u64, 2, 3, 4], &twice).unwrap();
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
    let (window, word) = (words(world, 2), Layout::of::<u64>());
    let epoch = window.lock(Rank(0), LockKind::Shared).unwrap();
    let mut buffer = [0u64];
    let (add, get) = epoch
        .ops(|ops| {
            let add = ops.accumulate_shaped(Rank(1), 0, &word, Op::Sum, &[1u64], &word);
            let (origin, result) = ((&[1u64][..], &word), (&mut buffer[..], &word));
            (add, ops.get_accumulate_shaped(Rank(1), 0, &word, Op::Sum, origin, result))
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
    let word = Layout::of::<u64>();
    let (point, mut buffer) = (word.resized(0, 0).unwrap(), [0u64; 4]);
    let epoch = window.lock_all().unwrap();
    let mut ask = |there: &Layout, here: &Layout, count: u64| {
        let (there, here) = (there.times(count), here.times(count));
        let (origin, result) = ((&[1u64; 4][..], here), (&mut buffer[..], here));
        let fetch = epoch.get_accumulate_shaped(right, 0, there, Op::Sum, origin, result);
        let add = epoch.accumulate_shaped(right, 0, there, Op::Sum, &[1u64; 4], here);
        assert_eq!(fetch, add);
        let put = epoch.rput_shaped(right, 0, there, vec![1u64; 4], here).err();
        assert_eq!(put, add.err());
        add.unwrap_err()
    };
    for count in [1 << 60, 1 << 61, u64::MAX] {
        let error = ask(&word, &word, count);
        assert!(matches!(error, RmaError::LayoutTooLarge { .. }), "{error}");
    }
    for count in [1 << 29, 1 << 32, 1 << 40, (1 << 60) - 1] {
        let error = ask(&word, &word, count);
        assert_eq!(error.class(), ErrorClass::Count);
        let RmaError::OriginOutOfRange { low: 0, high, len: 32, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(high, count as i64 * 8);
    }
    // All copies at one place: inside, but there more than once.
    let error = epoch.accumulate_shaped(
        right,
        0,
        point.times(1 << 40),
        Op::Sum,
        &[1u64],
        point.times(1 << 40),
    );
    assert!(matches!(error, Err(RmaError::Overlap { .. })), "{error:?}");
    let far = word.hvector(2, 1, 1 << 40).unwrap();
    let error = epoch.accumulate_shaped(right, 0, &far, Op::Sum, &[1u64; 2], word.times(2));
    assert!(matches!(error, Err(RmaError::LayoutOutOfRange { high, .. }) if high == (1 << 40) + 8));
    let nothing = Layout::structure(&[]).unwrap();
    let none = nothing.times(u64::MAX);
    epoch.accumulate_shaped(right, 0, none, Op::Sum, &[1u64; 2], word.times(0)).unwrap();
    epoch.unlock().unwrap();
    world.barrier().unwrap();
    assert_eq!((buffer, local_words(&window)), ([0; 4], vec![0; 4]));
    window.free().unwrap();
}
