//! Progress of the target's side while the target computes and calls nothing: operations × types ×
//! layouts × kinds of epoch.
//!
//! There is no deadline in here: without progress, a case never ends. The target learns that the
//! origins are done from words of its own part, which it loads without calling in.
use crate::help::{times, words};
use core::fmt::Debug;
use rma_core::{
    Access, Assert, AtomicElement, BasicElement, Bool, Complex, Displacement, Layout, Lock,
    LockKind, Op, Origin, OriginMut, Pair, Path, Peer, Rank, RmaError, Universe, Window,
};

/// The rank whose part the others operate on.
const TARGET: Rank = Rank(0);
/// Elements that an operation moves: more than one message holds, over shared memory.
const COUNT: usize = if cfg!(miri) { 5 } else { 70 };
/// Bytes that one operation has for itself, and the operations of one type.
const ROOM: u64 = 2304;
const ROOMS: u64 = 8 * ROOM;
/// Types in [`each_type`].
const TYPES: u64 = 8;

/// What all epochs offer, towards the one target.
trait Epoch {
    fn put(&self, disp: impl Displacement, origin: impl Origin) -> Result<(), RmaError>;
    fn get<'b>(&self, disp: impl Displacement, origin: impl OriginMut<'b>) -> Result<(), RmaError>;
    fn accumulate<E: BasicElement>(&self, disp: u64, op: Op, origin: &[E]) -> Result<(), RmaError>;
    fn get_accumulate<E: BasicElement>(
        &self,
        disp: u64,
        op: Op,
        origin: &[E],
        result: &mut [E],
    ) -> Result<(), RmaError>;
    fn fetch_and_op<E: BasicElement>(&self, disp: u64, op: Op, operand: E) -> Result<E, RmaError>;
    fn compare_and_swap<E: AtomicElement>(
        &self,
        disp: u64,
        compare: E,
        swap: E,
    ) -> Result<E, RmaError>;
}

/// By methods of `$by`, which `$epoch` is or dereferences to.
macro_rules! epoch {
    ($epoch:ty, $by:ident, ($($target:expr)?)) => {
        impl Epoch for $epoch {
            fn put(&self, disp: impl Displacement, origin: impl Origin) -> Result<(), RmaError> {
                $by::put(self, $($target,)? disp, origin)
            }
            fn get<'b>(
                &self,
                disp: impl Displacement,
                origin: impl OriginMut<'b>,
            ) -> Result<(), RmaError> {
                $by::get(self, $($target,)? disp, origin)
            }
            fn accumulate<E: BasicElement>(
                &self,
                disp: u64,
                op: Op,
                origin: &[E],
            ) -> Result<(), RmaError> {
                $by::accumulate(self, $($target,)? disp, op, origin)
            }
            fn get_accumulate<E: BasicElement>(
                &self,
                disp: u64,
                op: Op,
                origin: &[E],
                result: &mut [E],
            ) -> Result<(), RmaError> {
                $by::get_accumulate(self, $($target,)? disp, op, origin, result)
            }
            fn fetch_and_op<E: BasicElement>(
                &self,
                disp: u64,
                op: Op,
                operand: E,
            ) -> Result<E, RmaError> {
                $by::fetch_and_op(self, $($target,)? disp, op, operand)
            }
            fn compare_and_swap<E: AtomicElement>(
                &self,
                disp: u64,
                compare: E,
                swap: E,
            ) -> Result<E, RmaError> {
                $by::compare_and_swap(self, $($target,)? disp, compare, swap)
            }
        }
    };
}

epoch!(Lock<'_>, Peer, ());
epoch!(Access<'_>, Access, (TARGET));

/// One type, an operation that it has, and values of it.
struct Type<E> {
    index: u64,
    op: Op,
    value: fn(u8) -> E,
}

/// Does something with each [`Type`].
macro_rules! each_type {
    ($this:ident => $body:expr) => {{
        each_type! { $this => $body;
            0, Op::Sum, |i| i;
            1, Op::Max, |i| i16::from(i) - 100;
            2, Op::BitOr, |i| u32::from(i) << 13;
            3, Op::Sum, |i| i64::from(i) - (1 << 40);
            4, Op::Prod, |i| f32::from(i) / 4.0 + 1.0;
            5, Op::Sum, |i| Complex::new(f64::from(i), -1.0);
            6, Op::LogicalXor, |i| Bool::new(i & 1 == 1);
            7, Op::MinLoc, |i| Pair { value: i32::from(i) - 150, index: i32::from(i) };
        }
    }};
    ($this:ident => $body:expr; $($index:literal, $op:expr, $value:expr;)*) => {
        $({
            let $this = Type { index: $index, op: $op, value: $value };
            $body;
        })*
    };
}

/// As [`each_type`], for those that are compared and swapped.
macro_rules! each_swapped {
    ($this:ident => $body:expr) => {
        each_type! { $this => $body;
            0, Op::Replace, |i| i;
            1, Op::Replace, |i| i16::from(i) - 100;
            2, Op::Replace, |i| u32::from(i) << 13;
            3, Op::Replace, |i| i64::from(i) - (1 << 40);
            6, Op::Replace, |i| Bool::new(i & 1 == 1);
        }
    };
}

impl<E: BasicElement + PartialEq + Debug> Type<E> {
    fn values(&self, first: u8) -> Vec<E> {
        (0..COUNT).map(|i| (self.value)(first + i as u8)).collect()
    }

    /// Where the operation `number` of `origin` finds its bytes.
    fn room(&self, origin: Rank, number: u64) -> u64 {
        ((u64::from(origin) - 1) * TYPES + self.index) * ROOMS + number * ROOM
    }

    /// At the target, before: what the origin will read.
    fn fill(&self, window: &Window, origin: Rank) {
        for number in [1, 3, 5, 6] {
            window.local().write(self.room(origin, number), &self.values(100)).unwrap();
        }
    }

    /// Every operation, at the origin.
    fn operate(&self, epoch: &impl Epoch, origin: Rank) {
        let room = |number| self.room(origin, number);
        let (mine, there) = (self.values(3), self.values(100));
        let mut got = self.values(0);
        epoch.put(room(0), &mine).unwrap();
        epoch.get(room(1), &mut got).unwrap();
        assert_eq!(got, there);
        let element = Layout::element::<E>();
        let every_other = element.vector(COUNT as u64, 1, 2).unwrap();
        epoch.put(every_other.at(room(2)), element.times(COUNT).of(&mine)).unwrap();
        let half = COUNT as u64 / 2;
        let some = element.vector(half, 1, 2).unwrap();
        got.truncate(half as usize);
        epoch.get(some.at(room(3)), element.times(half).of(&mut got)).unwrap();
        assert!(got.iter().eq(there.iter().step_by(2).take(half as usize)));
        epoch.accumulate(room(4), self.op, &mine).unwrap();
        let mut got = self.values(0);
        epoch.get_accumulate(room(5), self.op, &mine, &mut got).unwrap();
        assert_eq!(got, there);
        assert_eq!(epoch.fetch_and_op(room(6), self.op, mine[0]).unwrap(), there[0]);
    }

    /// At the target, after.
    fn check(&self, window: &Window, origin: Rank) {
        let (mine, there) = (self.values(3), self.values(100));
        let combine = |old, new| E::combine(self.op, old, new);
        let both = |(old, new): (&E, &E)| combine(*old, *new);
        let read = |number, count: usize| {
            let mut found = vec![E::zeroed(); count];
            window.local().read(self.room(origin, number), &mut found).unwrap();
            found
        };
        assert_eq!(read(0, COUNT), mine);
        assert!(read(2, 2 * COUNT - 1).iter().step_by(2).eq(&mine));
        assert!(read(2, 2 * COUNT).iter().skip(1).step_by(2).all(|gap| *gap == E::zeroed()));
        let summed: Vec<E> = mine.iter().map(|new| combine(E::zeroed(), *new)).collect();
        assert_eq!(read(4, COUNT), summed);
        assert_eq!(read(5, COUNT), there.iter().zip(&mine).map(both).collect::<Vec<E>>());
        assert_eq!(read(6, 1), [combine(there[0], mine[0])]);
    }
}

impl<E: AtomicElement + Debug> Type<E> {
    /// A swap that hits, and one that does not.
    fn swap(&self, epoch: &impl Epoch, origin: Rank) {
        let (at, value) = (self.room(origin, 7), |i| (self.value)(i));
        epoch.accumulate(at, self.op, &[value(4)]).unwrap();
        assert_eq!(epoch.compare_and_swap(at, value(4), value(5)).unwrap(), value(4));
        assert_eq!(epoch.compare_and_swap(at, value(4), value(6)).unwrap(), value(5));
    }
}

fn operate(epoch: &impl Epoch, origin: Rank) {
    each_type!(this => this.operate(epoch, origin));
    each_swapped!(this => this.swap(epoch, origin));
}

/// The windows of a case.
struct Stage {
    /// Where the operations go.
    window: Window,
    /// Where the target sees how many origins are done.
    done: Window,
}

impl Stage {
    /// **Collective.** The part of the target holds what its origins will read.
    fn new(universe: &Universe) -> Self {
        let world = universe.world();
        let is_target = world.rank() == TARGET;
        let size = TYPES * ROOMS * (u64::from(world.size()) - 1);
        let size = if is_target { size as usize } else { 8 };
        let (window, done) = (world.window(size, 1).allocate().unwrap(), words(world, 1));
        if is_target {
            for origin in world.ranks().skip(1) {
                each_type!(this => this.fill(&window, origin));
            }
        }
        world.barrier().unwrap();
        Self { window, done }
    }

    fn is_target(&self) -> bool {
        self.window.rank() == TARGET
    }

    /// The target computes until every origin is done. Others run meanwhile, but nothing in here
    /// serves them.
    fn compute(&self, universe: &Universe) {
        let (own, origins) = (self.done.local(), u64::from(self.done.ranks()) - 1);
        while own.load::<u64>(0).unwrap() < origins {
            universe.transport().relax(0);
        }
    }

    /// This origin is done.
    fn tell(&self) {
        let epoch = self.done.lock(TARGET, LockKind::Shared).unwrap();
        epoch.accumulate(0, Op::Sum, &[1u64]).unwrap();
        epoch.unlock().unwrap();
    }

    /// **Collective.** The target looks what the origins have done.
    fn end(self) {
        if self.is_target() {
            for origin in (1..self.window.ranks()).map(Rank) {
                each_type!(this => this.check(&self.window, origin));
            }
        }
        self.free();
    }

    /// **Collective.**
    fn free(self) {
        self.done.free().unwrap();
        self.window.free().unwrap();
    }
}

/// The target computes, the others do all operations in passive epochs of one kind.
fn passive(universe: &Universe, epoch: impl Fn(&Window, Rank)) {
    let stage = Stage::new(universe);
    if stage.is_target() {
        stage.compute(universe);
    } else {
        epoch(&stage.window, stage.window.rank());
        stage.tell();
    }
    stage.end();
}

/// S-E7 S-M5
pub fn shared(universe: &Universe) {
    passive(universe, |window, origin| {
        let epoch = window.lock(TARGET, LockKind::Shared).unwrap();
        operate(&epoch, origin);
        epoch.unlock().unwrap();
    });
}

/// S-E7 S-M5
pub fn exclusive(universe: &Universe) {
    passive(universe, |window, origin| {
        let epoch = window.lock(TARGET, LockKind::Exclusive).unwrap();
        operate(&epoch, origin);
        epoch.flush().unwrap();
        epoch.unlock().unwrap();
    });
}

/// S-E7 S-M5
pub fn no_check(universe: &Universe) {
    passive(universe, |window, origin| {
        let epoch = window.lock_with(TARGET, LockKind::Shared, Assert::NO_CHECK).unwrap();
        operate(&epoch, origin);
        epoch.unlock().unwrap();
    });
}

/// S-E7 S-M5
pub fn lock_all(universe: &Universe) {
    passive(universe, |window, origin| {
        let epoch = window.lock_all().unwrap();
        operate(&*epoch, origin);
        epoch.flush_all().unwrap();
        epoch.unlock().unwrap();
    });
}

/// The origin's start, its operations and its complete come to an end between the target's post
/// and its wait. S-D5 S-M5
pub fn start(universe: &Universe) {
    let stage = Stage::new(universe);
    let origins: Vec<Rank> = universe.world().ranks().skip(1).collect();
    if stage.is_target() {
        let exposure = stage.window.post(&origins, Assert::NONE).unwrap();
        stage.compute(universe);
        exposure.wait().unwrap();
    } else {
        let epoch = stage.window.start(&[TARGET], Assert::NONE).unwrap();
        operate(&*epoch, stage.window.rank());
        epoch.complete().unwrap();
        stage.tell();
    }
    stage.end();
}

/// Requests and scopes. S-E7 S-M5
pub fn requests(universe: &Universe) {
    let window = words(universe.world(), 8 * COUNT);
    let stage = Stage::new(universe);
    let room = |number: usize| (number * COUNT) as u64;
    let contents: Vec<u64> = (1..=COUNT as u64).collect();
    if stage.is_target() {
        window.local().write(room(1), &contents).unwrap();
    }
    universe.world().barrier().unwrap();
    if stage.is_target() {
        stage.compute(universe);
        for number in [0, 1, 2, 5] {
            let mut found = vec![0u64; COUNT];
            window.local().read(room(number), &mut found).unwrap();
            assert_eq!(found, contents, "{number}");
        }
    } else {
        if window.rank() == Rank(1) {
            let epoch = window.lock_all().unwrap();
            let put = epoch.rput(TARGET, room(0), contents.clone()).unwrap();
            let get = epoch.rget(TARGET, room(1), vec![0u64; COUNT]).unwrap();
            let sum = epoch.raccumulate(TARGET, room(2), Op::Sum, contents.clone()).unwrap();
            put.wait().unwrap();
            sum.wait().unwrap();
            assert_eq!(get.wait().unwrap(), contents);
            let old = vec![7u64; COUNT];
            let old = epoch.rget_accumulate(TARGET, room(3), Op::NoOp, &[], old).unwrap();
            assert_eq!(old.wait().unwrap(), vec![0; COUNT]);
            let (mut one, mut other) = (vec![0u64; COUNT], vec![0u64; COUNT]);
            epoch
                .ops(|ops| {
                    ops.get(TARGET, room(1), &mut one)?;
                    ops.put(TARGET, room(5), &contents)?;
                    ops.get(TARGET, room(1), &mut other)
                })
                .unwrap();
            assert_eq!((&one, &other), (&contents, &contents));
            epoch.unlock().unwrap();
        }
        stage.tell();
    }
    window.free().unwrap();
    // Its rooms stay as they were filled.
    stage.free();
}

/// Sizes and units of targets are asked for on demand: also that needs nothing of the target.
/// S-E7 S-M5
pub fn metadata(universe: &Universe) {
    let world = universe.world();
    let stage = Stage::new(universe);
    let window = world.window(2 + usize::from(world.rank()), 8).allocate().unwrap();
    if stage.is_target() {
        stage.compute(universe);
        assert_eq!(window.local().load(1), Ok(u64::from(world.size()) - 1));
    } else {
        let epoch = window.lock_all().unwrap();
        epoch.fetch_and_op(TARGET, 1, Op::Sum, 1u64).unwrap();
        let error = epoch.put(TARGET, 2, &[1u64]).unwrap_err();
        assert!(matches!(error, RmaError::OutOfRange { size: 16, .. }), "{error}");
        epoch.unlock().unwrap();
        stage.tell();
    }
    window.free().unwrap();
    stage.free();
}

/// Short waits and short computations take turns, so that messages come just when a rank begins
/// or ends to serve them itself. Each rank is a target and an origin. S-E7 S-M5
pub fn alternating(universe: &Universe) {
    let world = universe.world();
    let window = words(world, 2);
    let others: Vec<Rank> = world.ranks().filter(|rank| *rank != world.rank()).collect();
    let rounds = times(universe, 300);
    for round in 0..rounds {
        for to in &others {
            let epoch = window.lock(*to, LockKind::Shared).unwrap();
            epoch.accumulate(0, Op::Sum, &[1u64]).unwrap();
            epoch.unlock().unwrap();
            for _ in 0..round % 7 {
                universe.transport().relax(0);
            }
        }
    }
    // The last message of each origin is served, although its target waits for nothing.
    let all = rounds * others.len() as u64;
    while window.local().load::<u64>(0).unwrap() < all {
        universe.transport().relax(0);
    }
    window.free().unwrap();
}

/// `explain` tells which thread serves, and no thread is started for nothing.
pub fn explained(universe: &Universe) {
    let none = "none does yet";
    let text = universe.explain();
    assert!(text.contains(none), "{text}");
    let window = words(universe.world(), 1);
    let (text, by_window) = (universe.explain(), window.explain());
    let loads = |rank| window.path(rank) == Some(Path::LoadStore);
    if universe.world().ranks().all(loads) {
        assert!(text.contains(none), "{text}");
        assert!(by_window.contains("the target does nothing"), "{by_window}");
        universe.world().barrier().unwrap();
        assert_eq!(universe.counters().served_by_agent(), 0);
    } else {
        for text in [text, by_window] {
            assert!(text.contains("a parked thread; it runs here"), "{text}");
        }
    }
    window.free().unwrap();
}

/// A window of one rank gets no messages of others.
pub fn one_rank_needs_none(universe: &Universe) {
    let alone = universe.world().split(Some(universe.world().rank().0), 0).unwrap().unwrap();
    let window = words(&alone, 1);
    let epoch = window.lock_all().unwrap();
    epoch.put(Rank(0), 0, &[5u64]).unwrap();
    epoch.unlock().unwrap();
    assert_eq!(window.local().load(0), Ok(5u64));
    assert!(universe.explain().contains("none does yet"));
    window.free().unwrap();
}
