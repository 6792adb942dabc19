//! Collectives whose payloads are large enough to pass through memory that neighbours share, in
//! pieces: what they say is what those by messages say, at the borders of the two ways and of
//! pieces, in forms of all kinds.
use crate::Harness;
use crate::help::says;
use bytemuck::{Pod, Zeroable, cast_slice};
use rma_core::{CollectiveError, Communicator, Op, Rank, Universe};

/// Words of the least payload that takes that way, and of a piece, by default.
const LEAST: usize = (8 << 10) / 8;
const PIECE: usize = (128 << 10) / 8;

/// Words: nothing, around the least payload, a piece, and as many pieces as there are places.
fn lengths() -> &'static [usize] {
    if cfg!(miri) {
        return &[0, LEAST];
    }
    &[0, LEAST - 1, LEAST, LEAST + 1, PIECE - 1, PIECE, PIECE + 1, 9 * PIECE + 5]
}

fn block(rank: Rank, len: usize) -> Vec<u64> {
    (0..len as u64).map(|i| u64::from(rank) * 1_000_003 + i * 7).collect()
}

/// First and last: every root is one more seed of the same.
fn roots(world: &Communicator) -> [Rank; 2] {
    [Rank(0), Rank(world.size() - 1)]
}

/// One rank has something, and all others get it.
pub fn from_one(universe: &Universe) {
    from_one_in(universe.world(), lengths());
}

fn from_one_in(world: &Communicator, lengths: &[usize]) {
    for &len in lengths {
        for root in roots(world) {
            let is_root = world.rank() == root;
            let mut buffer = if is_root { block(root, len) } else { vec![u64::MAX; len] };
            world.bcast(&mut buffer, root).unwrap();
            assert_eq!(buffer, block(root, len));
            let all: Vec<u64> = world.ranks().flat_map(|rank| block(rank, len)).collect();
            let mine = if is_root { &all[..] } else { &[] };
            assert_eq!(world.scatter(mine, root).unwrap(), block(world.rank(), len));
            let of = |rank: Rank| block(rank, len * (rank.0 as usize % 3));
            let shares: Vec<Vec<u64>> =
                if is_root { world.ranks().map(of).collect() } else { Vec::new() };
            assert_eq!(world.scatterv(&shares, root).unwrap(), of(world.rank()));
        }
    }
}

/// One rank gets what all have.
pub fn to_one(universe: &Universe) {
    to_one_in(universe.world(), lengths());
}

fn to_one_in(world: &Communicator, lengths: &[usize]) {
    for &len in lengths {
        let all: Vec<u64> = world.ranks().flat_map(|rank| block(rank, len)).collect();
        for root in roots(world) {
            let at_root = |all: Vec<u64>| (world.rank() == root).then_some(all);
            let gathered = world.gather(&block(world.rank(), len), root).unwrap();
            assert_eq!(gathered, at_root(all.clone()));
            let of = |rank: Rank| block(rank, len * (rank.0 as usize % 3));
            let gathered = world.gatherv(&of(world.rank()), root).unwrap();
            assert_eq!(gathered.is_some(), world.rank() == root);
            assert!(gathered.is_none_or(|all| all.into_iter().eq(world.ranks().map(of))));
        }
    }
}

/// All ranks get what all have.
pub fn from_all(universe: &Universe) {
    from_all_in(universe.world(), lengths());
}

fn from_all_in(world: &Communicator, lengths: &[usize]) {
    for &len in lengths {
        let all: Vec<u64> = world.ranks().flat_map(|rank| block(rank, len)).collect();
        let mine = block(world.rank(), len);
        assert_eq!(world.allgather(&mine).unwrap(), all);
        let mut buffer = vec![u64::MAX; all.len()];
        buffer[world.rank().0 as usize * len..][..len].copy_from_slice(&mine);
        world.allgather_in_place(&mut buffer).unwrap();
        assert_eq!(buffer, all);
        let to = |from: Rank, to: Rank| block(Rank(from.0 * 100 + to.0), len);
        let mine: Vec<u64> = world.ranks().flat_map(|rank| to(world.rank(), rank)).collect();
        let theirs: Vec<u64> = world.ranks().flat_map(|rank| to(rank, world.rank())).collect();
        assert_eq!(world.alltoall(&mine).unwrap(), theirs);
        let mut buffer = mine.clone();
        world.alltoall_in_place(&mut buffer).unwrap();
        assert_eq!(buffer, theirs);
        let uneven = |from: Rank, to: Rank| block(from, len * ((from.0 + to.0 * 2) % 3) as usize);
        let mine: Vec<_> = world.ranks().map(|rank| uneven(world.rank(), rank)).collect();
        let theirs: Vec<_> = world.ranks().map(|rank| uneven(rank, world.rank())).collect();
        assert_eq!(world.alltoallv(&mine).unwrap(), theirs);
    }
}

/// `x → a x + b`: composition is associative and does not commute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Affine {
    a: u64,
    b: u64,
}

fn then(earlier: Affine, later: Affine) -> Affine {
    let b = later.a.wrapping_mul(earlier.b).wrapping_add(later.b);
    Affine { a: earlier.a.wrapping_mul(later.a), b }
}

fn maps(rank: Rank, len: usize) -> Vec<Affine> {
    let of = |i| Affine { a: u64::from(rank) * 2 + 3 + i, b: u64::from(rank) + i + 1 };
    (0..len as u64).map(of).collect()
}

fn in_order(ranks: impl Iterator<Item = Rank>, len: usize) -> Option<Vec<Affine>> {
    let both = |a: Vec<Affine>, b: Vec<Affine>| a.into_iter().zip(b).map(|(a, b)| then(a, b));
    ranks.map(|rank| maps(rank, len)).reduce(|a, b| both(a, b).collect())
}

/// Reductions of all forms, in the order of the ranks.
pub fn combined(universe: &Universe) {
    combined_in(universe.world(), lengths());
}

fn combined_in(world: &Communicator, lengths: &[usize]) {
    let rank = world.rank();
    for len in lengths.iter().map(|len| len / 2) {
        let mine = maps(rank, len);
        let total = in_order(world.ranks(), len).unwrap();
        assert_eq!(world.allreduce(&mine, then).unwrap(), total);
        for root in roots(world) {
            let got = world.reduce(&mine, then, root).unwrap();
            assert_eq!(got.as_ref(), (rank == root).then_some(&total));
            let mut buffer = mine.clone();
            world.reduce_in_place(&mut buffer, then, root).unwrap();
            assert_eq!(&buffer, if rank == root { &total } else { &mine });
        }
        let mut buffer = mine.clone();
        world.allreduce_in_place(&mut buffer, then).unwrap();
        assert_eq!(buffer, total);
        let upto = in_order((0..=rank.0).map(Rank), len).unwrap();
        assert_eq!(world.scan(&mine, then).unwrap(), upto);
        assert_eq!(world.exscan(&mine, then).unwrap(), in_order((0..rank.0).map(Rank), len));
        // Nothing to the first, a little to the second, most to the last.
        let mut counts: Vec<usize> = world.ranks().map(|rank| rank.0.min(1) as usize).collect();
        let given: usize = counts.iter().sum();
        if given <= len {
            counts[world.size() as usize - 1] += len - given;
            let first: usize = counts[..usize::from(rank)].iter().sum();
            let share = world.reduce_scatter(&mine, &counts, then).unwrap();
            assert_eq!(share, total[first..][..counts[usize::from(rank)]]);
        }
    }
}

/// By the operations of the library, which have loops of their own.
pub fn summed(universe: &Universe) {
    let world = universe.world();
    for len in [LEAST, 3 * PIECE + 11] {
        let mine: Vec<f64> = block(world.rank(), len).into_iter().map(|x| x as f64).collect();
        let sum = |i: usize| world.ranks().map(|rank| block(rank, len)[i] as f64).sum::<f64>();
        let total = world.allreduce(&mine, Op::Sum).unwrap();
        for i in [0, 1, len / 2, len - 1] {
            assert_eq!(total[i], sum(i));
        }
        let highest = world.reduce(&mine, Op::Max, Rank(0)).unwrap();
        let last = block(Rank(world.size() - 1), len);
        assert!(highest.is_none_or(|all| all.iter().zip(last).all(|(a, b)| *a == b as f64)));
    }
}

/// Elements that no piece holds, and elements that a piece is no multiple of.
pub fn of_odd_sizes(universe: &Universe) {
    let world = universe.world();
    let of = |rank: Rank| [[rank.0 as u8 + 1; 3]; 40_001];
    let mut buffer = if world.rank() == Rank(0) { of(Rank(0)) } else { [[0; 3]; 40_001] };
    world.bcast(&mut buffer, Rank(0)).unwrap();
    assert!(buffer == of(Rank(0)));
    let add = |a: [u8; 3], b: [u8; 3]| [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
    let ranks = world.size() as u8;
    let total = world.allreduce(&of(world.rank())[..], add).unwrap();
    assert!(total.iter().all(|all| *all == [ranks * (ranks + 1) / 2; 3]));
    let huge = vec![[world.rank().0; 1 << 15]; 2];
    let later = |_: [u32; 1 << 15], later: [u32; 1 << 15]| later;
    let total = world.allreduce(&huge, later).unwrap();
    assert!(total == vec![[world.size() - 1; 1 << 15]; 2]);
}

/// Communicators have lanes of their own, and give them back.
pub fn in_several_communicators(universe: &Universe) {
    let world = universe.world();
    for round in 0..3 {
        let dup = world.dup().unwrap();
        let half = world.split(Some(world.rank().0 % 2), 0).unwrap().unwrap();
        for comm in [world, &dup, &half] {
            let mine = block(Rank(round), LEAST + 3);
            assert_eq!(comm.allgather(&mine).unwrap(), mine.repeat(comm.size() as usize));
        }
    }
}

/// In communicators where ranks of a node do not follow each other, or another one leads it.
pub fn in_other_orders(universe: &Universe) {
    let (world, lengths) = (universe.world(), &[LEAST / 2, PIECE + 1]);
    let (rank, size) = (i64::from(world.rank().0), i64::from(world.size()));
    for key in [-rank, rank % size.div_euclid(2), (rank + 1) % size] {
        let comm = world.split(Some(0), key).unwrap().unwrap();
        from_one_in(&comm, lengths);
        to_one_in(&comm, lengths);
        from_all_in(&comm, lengths);
        combined_in(&comm, lengths);
        let mut buffer = block(comm.rank(), LEAST);
        for root in comm.ranks() {
            comm.bcast(&mut buffer, root).unwrap();
            assert_eq!(buffer, block(Rank(0), LEAST));
        }
    }
}

/// A rank that returns has no part in it any more: others may still be reading.
pub fn and_gone(universe: &Universe) {
    let world = universe.world();
    let mut buffer = block(Rank(1), 9 * PIECE);
    let root = Rank(world.size() - 1);
    world.bcast(&mut buffer, root).unwrap();
    assert_eq!(world.scatter(&block(root, PIECE).repeat(world.size() as usize), root).unwrap(), {
        block(root, PIECE)
    });
}

/// Runs a case in which ranks call differently. What they send each other about that may come when
/// the communicator is gone, so no rank says that all messages are waited for.
pub fn run_differing<H: Harness>(test: &str, ranks: u32, case: fn(&Universe)) {
    H::run(test, ranks, &|universe| {
        case(&universe);
        universe.finalize().unwrap();
    });
}

/// A rank that has lost its lane, in an operation that failed, goes by messages. The others, which
/// had none yet, take what comes of it, and go on with theirs.
pub fn where_some_have_none(universe: &Universe) {
    let world = universe.world();
    for odd in [Rank(0), Rank(1), Rank(world.size() - 1)] {
        let comm = world.dup().unwrap();
        let len = if comm.rank() == odd { LEAST } else { 3 };
        expect(comm.allgather(&block(comm.rank(), len)).unwrap_err());
        let lengths = &[LEAST, PIECE + 1];
        from_one_in(&comm, lengths);
        to_one_in(&comm, lengths);
        from_all_in(&comm, lengths);
        combined_in(&comm, lengths);
    }
}

/// An operation by each rank's block, or by blocks of that length.
type Call = fn(&Communicator, &[u64]) -> Result<(), CollectiveError>;

/// Each rank hears of the lengths of all, or of one that does.
const OF_ALL: [Call; 5] = [
    |comm, mine| comm.allgather(mine).map(drop),
    |comm, mine| comm.allreduce(mine, Op::Sum).map(drop),
    |comm, mine| comm.alltoall(&mine.repeat(comm.size() as usize)).map(drop),
    |comm, mine| comm.allgather_in_place(&mut mine.repeat(comm.size() as usize)),
    |comm, mine| comm.alltoall_in_place(&mut mine.repeat(comm.size() as usize)),
];

/// Some rank may not see it: what it sends is right, or it has what it wants.
const OF_SOME: [Call; 4] = [
    |comm, mine| comm.bcast(&mut mine.to_vec(), Rank(0)),
    |comm, mine| comm.gather(mine, Rank(0)).map(drop),
    |comm, mine| comm.reduce(mine, Op::Sum, Rank(0)).map(drop),
    |comm, mine| comm.scan(mine, Op::Sum).map(drop),
];

/// One rank has another length: some rank sees it, and all that wait hear of it. Each operation is
/// of a communicator of its own, in which no rank has lost its lane before.
fn lengths_differ(world: &Communicator, (some, other): (usize, usize), odd: Rank) {
    let mine = block(world.rank(), if world.rank() == odd { other } else { some });
    for (number, call) in OF_ALL.into_iter().chain(OF_SOME).enumerate() {
        let comm = world.dup().unwrap();
        let end = call(&comm, &mine);
        let failed = world.allreduce(&[u32::from(end.is_err())], Op::Sum).unwrap()[0];
        let least = if number < OF_ALL.len() { world.size() } else { 1 };
        assert!(failed >= least, "{number}: {some}, and {other} at {odd}");
        end.unwrap_or_else(expect);
        // A rank that lost its lane does without.
        let mine = block(comm.rank(), LEAST);
        let all: Vec<u64> = comm.ranks().flat_map(|rank| block(rank, LEAST)).collect();
        assert_eq!(comm.allgather(&mine).unwrap(), all);
        assert_eq!(comm.gather(&mine, Rank(0)).unwrap(), (comm.rank().0 == 0).then_some(all));
    }
}

/// Of one rank, in turn each, the payload goes by messages.
pub fn one_is_small(universe: &Universe) {
    universe.world().ranks().for_each(|odd| lengths_differ(universe.world(), (LEAST, 3), odd));
}

/// As [`one_is_small`], but not so small that it needs not be asked for.
pub fn one_is_almost_large(universe: &Universe) {
    universe.world().ranks().for_each(|odd| lengths_differ(universe.world(), (LEAST, 700), odd));
}

/// Of one rank alone, in turn each, the payload goes by its lane.
pub fn one_is_large(universe: &Universe) {
    universe.world().ranks().for_each(|odd| lengths_differ(universe.world(), (3, LEAST), odd));
    let odd = Rank(0);
    lengths_differ(universe.world(), (700, LEAST), odd);
}

/// All go by lanes.
pub fn all_are_large(universe: &Universe) {
    let world = universe.world();
    let odd = Rank(world.size() - 2);
    lengths_differ(world, (LEAST, LEAST + 8), odd);
    lengths_differ(world, (20 * PIECE, PIECE), odd);
}

/// Calls of one length that differ otherwise: no rank reads what is for another, or waits for what
/// no rank writes. For ranks that share memory.
pub fn calls_differ(universe: &Universe) {
    let world = universe.world();
    let size = world.size() as usize;
    let mine = block(world.rank(), LEAST * size);
    for odd in world.ranks() {
        let is_odd = world.rank() == odd;
        let mut counts = vec![LEAST; size];
        if is_odd {
            counts[0] = 0;
            counts[size - 1] += LEAST;
        }
        let fails = |call: &dyn Fn(&Communicator) -> Result<(), CollectiveError>| {
            let comm = world.dup().unwrap();
            expect(call(&comm).unwrap_err());
            assert_eq!(comm.allreduce(&[1], Op::Sum).unwrap(), [world.size()]);
        };
        fails(&|comm| comm.reduce_scatter(&mine, &counts, Op::Sum).map(drop));
        fails(&|comm| comm.reduce(&mine, Op::Sum, Rank(is_odd.into())).map(drop));
        fails(&|comm| match is_odd {
            true => comm.allreduce(cast_slice::<u64, u32>(&mine), Op::Sum).map(drop),
            false => comm.allreduce(&mine, Op::Sum).map(drop),
        });
        fails(&|comm| match is_odd {
            true => comm.allreduce(&mine, Op::Sum).map(drop),
            false => comm.reduce(&mine, Op::Sum, Rank(0)).map(drop),
        });
        fails(&|comm| match is_odd {
            true => comm.alltoall(&mine).map(drop),
            false => comm.allgather(&mine[..LEAST]).map(drop),
        });
    }
}

fn expect(error: CollectiveError) {
    match error {
        CollectiveError::LengthMismatch { .. } => says(&error, &["same count"]),
        CollectiveError::Malformed { .. } => says(&error, &["same root, counts and elements"]),
        CollectiveError::GaveUp { .. } => {}
        other => panic!("{other}"),
    }
}
