//! Collectives that combine elements (FEATURES A8).
use crate::help::lengths;
use bytemuck::{Pod, Zeroable};
use rma_core::{Op, Rank, Universe};

fn block(rank: Rank, len: usize) -> Vec<u64> {
    (0..len as u64).map(|i| u64::from(rank) * 17 + i * i).collect()
}

fn add(a: u64, b: u64) -> u64 {
    a.wrapping_add(b)
}

/// The sum over these ranks, element by element.
fn sum(ranks: impl Iterator<Item = Rank>, len: usize) -> Vec<u64> {
    ranks.fold(vec![0; len], |sum, rank| {
        sum.into_iter().zip(block(rank, len)).map(|(a, b)| add(a, b)).collect()
    })
}

/// Every root, every length.
pub fn reduce(universe: &Universe) {
    let world = universe.world();
    for len in lengths() {
        let expected = sum(world.ranks(), *len);
        for root in world.ranks() {
            let total = world.reduce(&block(world.rank(), *len), Op::Sum, root).unwrap();
            assert_eq!(total.as_ref(), (world.rank() == root).then_some(&expected));
        }
    }
}

/// Every length.
pub fn allreduce(universe: &Universe) {
    let world = universe.world();
    for len in lengths() {
        let total = world.allreduce(&block(world.rank(), *len), add).unwrap();
        assert_eq!(total, sum(world.ranks(), *len));
    }
}

/// Equal shares.
pub fn reduce_scatter(universe: &Universe) {
    let world = universe.world();
    let ranks = world.size() as usize;
    for len in lengths() {
        let (mine, counts) = (block(world.rank(), len * ranks), vec![*len; ranks]);
        let share = world.reduce_scatter(&mine, &counts, Op::Sum).unwrap();
        let start = usize::from(world.rank()) * len;
        assert_eq!(share, sum(world.ranks(), len * ranks)[start..start + len]);
    }
}

/// Shares of different sizes, some 0.
pub fn reduce_scatter_with_zeros(universe: &Universe) {
    let world = universe.world();
    let counts: Vec<usize> = world.ranks().map(|rank| usize::from(rank) % 3 * 4).collect();
    let len = counts.iter().sum();
    let share = world.reduce_scatter(&block(world.rank(), len), &counts, add).unwrap();
    let start: usize = counts[..usize::from(world.rank())].iter().sum();
    let end = start + counts[usize::from(world.rank())];
    assert_eq!(share, sum(world.ranks(), len)[start..end]);
    let nothing = vec![0; world.size() as usize];
    assert_eq!(world.reduce_scatter::<u64>(&[], &nothing, Op::Sum).unwrap(), []);
}

/// Every length.
pub fn exscan(universe: &Universe) {
    let world = universe.world();
    for len in lengths() {
        let lower = world.exscan(&block(world.rank(), *len), Op::Sum).unwrap();
        let expected = sum((0..world.rank().0).map(Rank), *len);
        assert_eq!(lower, (world.rank() != Rank(0)).then_some(expected));
    }
}

/// Every length.
pub fn scan(universe: &Universe) {
    let world = universe.world();
    for len in lengths() {
        let upto = world.scan(&block(world.rank(), *len), Op::Sum).unwrap();
        assert_eq!(upto, sum((0..=world.rank().0).map(Rank), *len));
    }
}

/// Every predefined operation on every kind of integer; they wrap. S-H17
pub fn every_op(universe: &Universe) {
    let world = universe.world();
    assert_eq!(world.size(), 3);
    let at = |values: [u8; 3]| values[usize::from(world.rank())];
    let all = |values, op| world.allreduce(&[at(values)], op).unwrap()[0];
    assert_eq!(all([200, 100, 7], Op::Sum), 51);
    assert_eq!(all([16, 16, 3], Op::Prod), 0);
    assert_eq!(all([9, 200, 10], Op::Min), 9);
    assert_eq!(all([9, 200, 10], Op::Max), 200);
    assert_eq!(all([0b111, 0b110, 0b011], Op::BitAnd), 0b010);
    assert_eq!(all([0b100, 0b010, 0b010], Op::BitOr), 0b110);
    assert_eq!(all([0b100, 0b110, 0b011], Op::BitXor), 0b001);
    assert_eq!(all([1, 2, 3], Op::Replace), 3, "the last rank's");
    assert_eq!(all([1, 2, 3], Op::NoOp), 1, "the first rank's");
    let signed = i64::from(world.rank().0) - 2;
    assert_eq!(world.allreduce(&[signed], Op::Min).unwrap(), [-2]);
    assert_eq!(world.allreduce(&[i16::MAX], Op::Sum).unwrap(), [i16::MAX.wrapping_mul(3)]);
    assert_eq!(world.allreduce(&[1usize << 40], Op::Sum).unwrap(), [3 << 40]);
}

/// Floating point: sums, and extremes that ignore a NaN. S-H17
pub fn floats(universe: &Universe) {
    let world = universe.world();
    let me = f64::from(world.rank().0);
    let (ranks, last) = (f64::from(world.size()), f64::from(world.size() - 1));
    assert_eq!(world.allreduce(&[me, 0.5], Op::Sum).unwrap(), [last * ranks / 2.0, ranks / 2.0]);
    let mine = if world.rank() == Rank(1) { f64::NAN } else { me };
    assert_eq!(world.allreduce(&[mine], Op::Max).unwrap(), [last]);
    assert_eq!(world.allreduce(&[mine], Op::Min).unwrap(), [0.0]);
    assert_eq!(world.allreduce(&[2.0f32], Op::Prod).unwrap(), [2f32.powi(world.size() as i32)]);
    let lower = world.exscan(&[me as f32], Op::Sum).unwrap().map_or(0.0, |sum| sum[0]);
    assert_eq!(lower, (me * (me - 1.0) / 2.0) as f32);
}

/// `x → a x + b`: composition is associative and does not commute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Affine {
    a: u64,
    b: u64,
}

fn affine(rank: Rank, i: u64) -> Affine {
    Affine { a: u64::from(rank) * 2 + 3 + i, b: u64::from(rank) + 1 }
}

/// First `earlier`, then `later`.
fn then(earlier: Affine, later: Affine) -> Affine {
    let b = later.a.wrapping_mul(earlier.b).wrapping_add(later.b);
    Affine { a: earlier.a.wrapping_mul(later.a), b }
}

fn in_order(ranks: impl Iterator<Item = Rank>) -> Option<Vec<Affine>> {
    let of = |rank| (0..3).map(|i| affine(rank, i)).collect::<Vec<_>>();
    let both = |a: Vec<Affine>, b: Vec<Affine>| a.into_iter().zip(b).map(|(a, b)| then(a, b));
    ranks.map(of).reduce(|a, b| both(a, b).collect())
}

/// Functions of the user's own are applied in rank order, whatever the root.
pub fn keep_rank_order(universe: &Universe) {
    let world = universe.world();
    let mine: Vec<Affine> = (0..3).map(|i| affine(world.rank(), i)).collect();
    let expected = in_order(world.ranks()).unwrap();
    assert_eq!(world.allreduce(&mine, then).unwrap(), expected);
    for root in world.ranks() {
        let total = world.reduce(&mine, then, root).unwrap();
        assert_eq!(total.as_ref(), (world.rank() == root).then_some(&expected));
    }
    let lower = in_order((0..world.rank().0).map(Rank));
    let upto = in_order((0..=world.rank().0).map(Rank)).unwrap();
    assert_eq!(world.exscan(&mine, then).unwrap(), lower);
    assert_eq!(world.scan(&mine, then).unwrap(), upto);
    let in_place = |form: &dyn Fn(&mut [Affine])| {
        let mut buffer = mine.clone();
        form(&mut buffer);
        buffer
    };
    assert_eq!(in_place(&|all| world.allreduce_in_place(all, then).unwrap()), expected);
    assert_eq!(in_place(&|all| world.scan_in_place(all, then).unwrap()), upto);
    let lower = lower.unwrap_or_else(|| mine.clone());
    assert_eq!(in_place(&|all| world.exscan_in_place(all, then).unwrap()), lower);
    let counts: Vec<usize> = world.ranks().map(|rank| usize::from(rank.0 < 3)).collect();
    let share = world.reduce_scatter(&mine, &counts, then).unwrap();
    assert_eq!(share.first(), expected.get(usize::from(world.rank())));
}

/// The largest, and the rank that has it.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Located {
    value: f64,
    rank: u64,
}

/// A reduction over a struct of the user's own, by a closure that captures.
pub fn structs(universe: &Universe) {
    let world = universe.world();
    let values = [3.0, 9.0, 9.0, 1.0];
    let floor = 5.0;
    let mine = Located { value: values[usize::from(world.rank())], rank: world.rank().into() };
    let larger = |a: Located, b: Located| if b.value > a.value.max(floor) { b } else { a };
    assert_eq!(world.allreduce(&[mine], larger).unwrap(), [Located { value: 9.0, rank: 1 }]);
}

/// Much larger than a message.
pub fn large(universe: &Universe) {
    let world = universe.world();
    let len = if cfg!(miri) { 100 } else { 50_000 };
    let total = world.allreduce(&block(world.rank(), len), Op::Sum).unwrap();
    assert_eq!(total, sum(world.ranks(), len));
}
