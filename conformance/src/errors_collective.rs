//! Collectives called wrongly: a typed error, and the communicator goes on (FEATURES A7).
use crate::help::says;
use rma_core::{CollectiveError, Communicator, ErrorClass, Op, Rank, Universe};

/// The ranks are still in step.
fn unharmed(world: &Communicator) {
    world.barrier().unwrap();
    let ranks: Vec<u32> = world.ranks().map(|rank| rank.0).collect();
    assert_eq!(world.allgather(&[world.rank().0]).unwrap(), ranks);
    world.barrier().unwrap();
}

/// Roots that do not exist.
pub fn no_such_root(universe: &Universe) {
    let world = universe.world();
    for root in [Rank(world.size()), Rank(99), Rank::NULL] {
        let expect = |error: CollectiveError, name: &str| {
            let CollectiveError::NoSuchRoot { what, root: named, last } = error else {
                panic!("{error}")
            };
            assert_eq!((what, named, last), (name, root, Rank(world.size() - 1)));
            assert_eq!(error.class(), ErrorClass::Root);
            says(&error, &[name, &format!("root {root}"), &format!("0 to {last}")]);
        };
        let mut buffer = [7u64];
        expect(world.bcast(&mut buffer, root).unwrap_err(), "bcast");
        assert_eq!(buffer, [7]);
        expect(world.gather(&buffer, root).unwrap_err(), "gather");
        expect(world.gatherv(&buffer, root).unwrap_err(), "gatherv");
        expect(world.reduce(&buffer, Op::Sum, root).unwrap_err(), "reduce");
        expect(world.scatter(&buffer, root).unwrap_err(), "scatter");
        expect(world.scatterv::<u64>(&[], root).unwrap_err(), "scatterv");
        expect(world.bcast_value(7, root).unwrap_err(), "bcast_value");
        let error = world.reduce_in_place(&mut buffer, Op::Sum, root).unwrap_err();
        expect(error, "reduce_in_place");
        assert_eq!(buffer, [7]);
    }
    unharmed(world);
}

fn expect_lengths(error: CollectiveError, name: &str, from: Rank, expected: u64, got: u64) {
    // The other one has seen it first, and could not go on.
    if let CollectiveError::GaveUp { what, world } = error {
        assert_eq!((what, world.0), (name, from.0));
        return;
    }
    let CollectiveError::LengthMismatch { what, from: peer, expected: e, got: g } = error else {
        panic!("{error}")
    };
    assert_eq!((what, peer, e, g), (name, from, expected, got));
    assert_eq!(error.class(), ErrorClass::Count);
    let numbers = [expected.to_string(), got.to_string()];
    says(&error, &[name, &format!("rank {from}"), &numbers[0], &numbers[1], "same count"]);
}

/// Two ranks pass different lengths: the rank that sees it says so, and both are still in step.
pub fn lengths_differ(universe: &Universe) {
    let world = universe.world();
    let (me, other) = (world.rank(), Rank(1 - world.rank().0));
    let mine = vec![1u64; 2 + usize::from(me)];
    let (my_bytes, theirs) = (16 + u64::from(me) * 8, 16 + u64::from(other) * 8);

    let mut buffer = mine.clone();
    match (world.bcast(&mut buffer, Rank(0)), me) {
        (result, Rank(0)) => result.unwrap(),
        (result, _) => {
            expect_lengths(result.unwrap_err(), "bcast", other, my_bytes, theirs);
            assert_eq!(buffer, mine);
        }
    }
    unharmed(world);
    match (world.gather(&mine, Rank(1)), me) {
        (result, Rank(0)) => assert_eq!(result, Ok(None)),
        (result, _) => expect_lengths(result.unwrap_err(), "gather", other, my_bytes, theirs),
    }
    unharmed(world);
    let error = world.allgather(&mine).unwrap_err();
    expect_lengths(error, "allgather", other, my_bytes, theirs);
    unharmed(world);
    match (world.reduce(&mine, Op::Sum, Rank(0)), me) {
        (result, Rank(1)) => assert_eq!(result, Ok(None)),
        (result, _) => expect_lengths(result.unwrap_err(), "reduce", other, my_bytes, theirs),
    }
    unharmed(world);
    let error = world.alltoall(&mine.repeat(2)).unwrap_err();
    expect_lengths(error, "alltoall", other, my_bytes, theirs);
    unharmed(world);
    match (world.exscan(&mine, Op::Sum), me) {
        (result, Rank(0)) => assert_eq!(result, Ok(None)),
        (result, _) => expect_lengths(result.unwrap_err(), "exscan", other, my_bytes, theirs),
    }
    unharmed(world);
    match (world.scan(&mine, Op::Sum), me) {
        (result, Rank(0)) => assert_eq!(result, Ok(mine.clone())),
        (result, _) => expect_lengths(result.unwrap_err(), "scan", other, my_bytes, theirs),
    }
    unharmed(world);
    // Bytes that are no whole number of elements.
    let bytes = vec![0u8; 7];
    let strange = if me == Rank(0) {
        world.gatherv(&bytes, Rank(1)).map(drop)
    } else {
        world.gatherv(&mine, Rank(1)).map(drop)
    };
    match me {
        Rank(0) => strange.unwrap(),
        _ => expect_lengths(strange.unwrap_err(), "gatherv", other, 8, 7),
    }
    unharmed(world);
}

/// As [`lengths_differ`], of buffers that the result takes the place of, and of elements.
pub fn lengths_differ_in_place(universe: &Universe) {
    let world = universe.world();
    let (me, other) = (world.rank(), Rank(1 - world.rank().0));
    let mut mine = vec![1u64; 2 + usize::from(me)];
    let before = mine.clone();
    let (my_bytes, theirs) = (16 + u64::from(me) * 8, 16 + u64::from(other) * 8);
    let expect = |error, name| expect_lengths(error, name, other, my_bytes, theirs);

    let error = world.allreduce_in_place(&mut mine, Op::Sum).unwrap_err();
    expect(error, "allreduce_in_place");
    unharmed(world);
    mine.clone_from(&before);
    match (world.scan_in_place(&mut mine, Op::Sum), me) {
        (result, Rank(0)) => result.unwrap(),
        (result, _) => expect(result.unwrap_err(), "scan_in_place"),
    }
    unharmed(world);
    mine.clone_from(&before);
    match (world.exscan_in_place(&mut mine, Op::Sum), me) {
        (result, Rank(0)) => result.unwrap(),
        (result, _) => expect(result.unwrap_err(), "exscan_in_place"),
    }
    unharmed(world);
    match (world.reduce_in_place(&mut mine, Op::Sum, Rank(0)), me) {
        (result, Rank(1)) => result.unwrap(),
        (result, _) => expect(result.unwrap_err(), "reduce_in_place"),
    }
    assert_eq!(mine, before);
    unharmed(world);
    let error = world.allgather_in_place(&mut mine.repeat(2)).unwrap_err();
    expect(error, "allgather_in_place");
    unharmed(world);
    expect(world.alltoall_in_place(&mut mine.repeat(2)).unwrap_err(), "alltoall_in_place");
    unharmed(world);
    // Bytes that are no whole number of elements.
    if me == Rank(0) {
        assert_eq!(world.scatter(&[1u8; 14], me).unwrap(), [1; 7]);
        assert_eq!(world.scatterv(&[vec![2u8], vec![3; 9]], me).unwrap(), [2]);
        assert_eq!(world.bcast_value(4u32, me), Ok(4));
    } else {
        let error = world.scatter::<u64>(&[], other).unwrap_err();
        expect_lengths(error, "scatter", other, 8, 7);
        let error = world.scatterv::<u64>(&[], other).unwrap_err();
        expect_lengths(error, "scatterv", other, 16, 9);
        let error = world.bcast_value(0u64, other).unwrap_err();
        expect_lengths(error, "bcast_value", other, 8, 4);
    }
    unharmed(world);
}

/// Only the root can be wrong about what it deals: all hear that it is.
pub fn counts_of_the_root(universe: &Universe) {
    let world = universe.world();
    for root in world.ranks() {
        let expect = |error: CollectiveError, name: &str, elements: u64| match error {
            CollectiveError::WrongCount { what, got, ranks, .. } => {
                assert_eq!((what, got, ranks), (name, elements, world.size()));
                assert_eq!(world.rank(), root);
            }
            CollectiveError::GaveUp { what, world: peer } => {
                assert_eq!((what, peer.0), (name, root.0));
                assert_ne!(world.rank(), root);
            }
            other => panic!("{other}"),
        };
        expect(world.scatter(&[1u64; 5], root).unwrap_err(), "scatter", 5);
        unharmed(world);
        expect(world.scatterv(&[vec![1u64], vec![]], root).unwrap_err(), "scatterv", 2);
        unharmed(world);
    }
}

/// Counts that an operation cannot deal out.
pub fn counts(universe: &Universe) {
    let world = universe.world();
    let expect = |error: CollectiveError, name: &str, elements: u64, hint: &str| {
        let CollectiveError::WrongCount { what, got, ranks, .. } = error else { panic!("{error}") };
        assert_eq!((what, got, ranks), (name, elements, world.size()));
        assert_eq!(error.class(), ErrorClass::Count);
        says(&error, &[name, &elements.to_string(), &format!("{ranks} ranks"), hint]);
    };
    expect(world.alltoall(&[1u64; 4]).unwrap_err(), "alltoall", 4, "multiple");
    let mut four = [1u64; 4];
    expect(world.alltoall_in_place(&mut four).unwrap_err(), "alltoall_in_place", 4, "multiple");
    expect(world.allgather_in_place(&mut four).unwrap_err(), "allgather_in_place", 4, "multiple");
    let vectors = vec![vec![1u8]; 2];
    expect(world.alltoallv(&vectors).unwrap_err(), "alltoallv", 2, "one vector for each rank");
    let scatter = |counts: &[usize]| world.reduce_scatter(&[1u64; 6], counts, Op::Sum);
    let wrong: [&[usize]; 5] =
        [&[2, 2], &[2, 2, 1], &[3, 3, 3], &[usize::MAX, 7, 0], &[2, 2, 2, 0]];
    for counts in wrong {
        expect(scatter(counts).unwrap_err(), "reduce_scatter", 6, "one count a rank");
    }
    assert_eq!(scatter(&[2, 2, 2]).unwrap(), [3, 3]);
    unharmed(world);
}

/// Bits of floating-point numbers do not combine.
pub fn float_bits(universe: &Universe) {
    let world = universe.world();
    for (op, name) in [(Op::BitAnd, "band"), (Op::BitOr, "bor"), (Op::BitXor, "bxor")] {
        let expect = |error: CollectiveError, what: &'static str| {
            let CollectiveError::WrongOp { op: found, .. } = error else { panic!("{error}") };
            assert_eq!(found, op);
            assert_eq!(error.class(), ErrorClass::Op);
            says(&error, &[what, name, "not defined on f", "integer"]);
        };
        expect(world.allreduce(&[1.0f64], op).unwrap_err(), "allreduce");
        expect(world.reduce(&[1.0f32], op, Rank(1)).unwrap_err(), "reduce");
        expect(world.exscan(&[1.0f64], op).unwrap_err(), "exscan");
        expect(world.scan(&[1.0f64], op).unwrap_err(), "scan");
        let mut buffer = [1.0f64];
        expect(world.scan_in_place(&mut buffer, op).unwrap_err(), "scan_in_place");
        expect(world.exscan_in_place(&mut buffer, op).unwrap_err(), "exscan_in_place");
        expect(world.allreduce_in_place(&mut buffer, op).unwrap_err(), "allreduce_in_place");
        let error = world.reduce_in_place(&mut buffer, op, Rank(0)).unwrap_err();
        expect(error, "reduce_in_place");
        assert_eq!(buffer, [1.0]);
        let counts = vec![1; world.size() as usize];
        let mine = vec![1.0f64; counts.len()];
        let error = world.reduce_scatter(&mine, &counts, op).unwrap_err();
        expect(error, "reduce_scatter");
    }
    unharmed(world);
}
