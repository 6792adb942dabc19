//! Operations of generated programs, as calls of the library.
use super::program::{Call, Operation, UNTOUCHED};
use super::shape::{Cell, Side};
use super::values::{Type, typed, typed_atomic};
use bytemuck::{cast_slice, cast_slice_mut};
use rma_core::{Access, AtomicElement, BasicElement, Layout, Lock, Op, Ops, Rank, RmaError, Shape};

type Done = Result<(), RmaError>;

/// Bytes that are aligned for every element.
#[derive(Debug, Clone)]
pub(super) struct Buffer {
    words: Vec<u64>,
    len: usize,
}

impl Buffer {
    fn new(len: usize, fill: u8) -> Self {
        Self { words: vec![u64::from_ne_bytes([fill; 8]); len.div_ceil(8)], len }
    }

    fn of(bytes: &[u8]) -> Self {
        let mut buffer = Self::new(bytes.len(), 0);
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }

    /// `data` where that side says.
    pub(super) fn holding(side: &Side, data: &[u8]) -> Self {
        let mut buffer = Self::new(Call::buffer_len(side), UNTOUCHED);
        let bytes = buffer.bytes_mut();
        side.positions().zip(data).for_each(|(at, byte)| bytes[at] = *byte);
        buffer
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &cast_slice(&self.words)[..self.len]
    }

    /// Replaces what it holds.
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        *self = Self::of(bytes);
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut cast_slice_mut(&mut self.words)[..self.len]
    }
}

/// The buffers of an operation: what it sends, and what it fills.
pub(super) struct Buffers {
    pub(super) origin: Buffer,
    pub(super) result: Buffer,
}

impl Buffers {
    pub(super) fn new(call: &Call) -> Self {
        let (mut origin, mut result) = (Buffer::of(&[]), Buffer::of(&[]));
        match call {
            Call::Put { from, data, .. } | Call::Accumulate { from, values: data, .. } => {
                origin = Buffer::holding(from, data);
            }
            Call::Get { to, .. } => result = Buffer::new(Call::buffer_len(to), UNTOUCHED),
            Call::GetAccumulate { from, values, into, .. } => {
                origin = Buffer::holding(from, values);
                result = Buffer::new(Call::buffer_len(into), UNTOUCHED);
            }
            Call::FetchAndOp { value, .. } => result = Buffer::new(value.len(), UNTOUCHED),
            Call::CompareAndSwap { swap, .. } => result = Buffer::new(swap.len(), UNTOUCHED),
        }
        Self { origin, result }
    }
}

/// One side's layout, how many of it, and where it begins.
pub(super) struct Laid(Layout, u64, usize);

impl Laid {
    fn new(side: &Side, start: usize) -> Self {
        let (layout, count) = side.layout().unwrap_or_else(|e| panic!("{side:?}: {e}"));
        Self(layout, count, start)
    }

    pub(super) fn shape(&self) -> Shape<'_> {
        self.0.times(self.1).starting_at(self.2 as u64)
    }
}

/// The layouts at the target and in buffers.
pub(super) struct Layouts<const BUFFERS: usize> {
    pub(super) there: Laid,
    pub(super) here: [Laid; BUFFERS],
}

impl<const BUFFERS: usize> Layouts<BUFFERS> {
    /// `None` if no call with layouts is needed.
    fn new(there: &Side, here: [&Side; BUFFERS], extra: usize) -> Option<Self> {
        // A slice of elements begins where they are aligned.
        let slice = |side: &&Side| {
            side.is_plain() && (side.cell == Cell::Word(1) || side.start.is_multiple_of(8))
        };
        let plain = there.is_plain() && here.iter().all(slice) && extra == 0;
        let laid = |side: &Side| Laid::new(side, side.start);
        (!plain).then(|| Self { there: Laid::new(there, extra), here: here.map(laid) })
    }
}

/// How a target counts displacements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    /// Of the first byte of the part.
    pub(super) base: u64,
    pub(super) unit: usize,
}

impl Scale {
    /// The displacement of a byte, which only layouts can say if it is between two.
    pub(super) fn disp(self, at: usize) -> u64 {
        self.base + (at / self.unit) as u64
    }

    /// The displacement of a side, and its layouts and those of the buffers if they are needed.
    pub(super) fn place<const BUFFERS: usize>(
        self,
        there: &Side,
        here: [&Side; BUFFERS],
    ) -> (u64, Option<Layouts<BUFFERS>>) {
        (self.disp(there.start), Layouts::new(there, here, there.start % self.unit))
    }
}

/// What a plain side takes of a buffer.
fn of<'b>(bytes: &'b [u8], side: &Side) -> &'b [u8] {
    &bytes[side.start..][..side.size()]
}

fn of_mut<'b>(bytes: &'b mut [u8], side: &Side) -> &'b mut [u8] {
    &mut bytes[side.start..][..side.size()]
}

/// What access epochs have in common.
pub(super) trait Calls {
    fn put(&self, target: Rank, disp: u64, origin: &[u8]) -> Done;
    fn get(&self, target: Rank, disp: u64, origin: &mut [u8]) -> Done;
    fn put_shaped(&self, at: (Rank, u64), to: Shape<'_>, origin: &[u8], from: Shape<'_>) -> Done;
    fn get_shaped(&self, at: (Rank, u64), from: Shape<'_>, to: &mut [u8], by: Shape<'_>) -> Done;
    fn accumulate<E: BasicElement>(&self, target: Rank, disp: u64, op: Op, from: &[E]) -> Done;
    fn get_accumulate<E: BasicElement>(
        &self,
        at: (Rank, u64),
        op: Op,
        from: &[E],
        to: &mut [E],
    ) -> Done;
    fn accumulate_shaped(
        &self,
        at: (Rank, u64),
        to: Shape<'_>,
        op: Op,
        origin: (&[u8], Shape<'_>),
    ) -> Done;
    fn get_accumulate_shaped(
        &self,
        at: (Rank, u64, Shape<'_>),
        op: Op,
        origin: (&[u8], Shape<'_>),
        result: (&mut [u8], Shape<'_>),
    ) -> Done;
    fn fetch<E: BasicElement>(&self, at: (Rank, u64), op: Op, with: E) -> Result<E, RmaError>;
    fn swap<E: AtomicElement>(&self, at: (Rank, u64), old: E, new: E) -> Result<E, RmaError>;
    /// Runs operations in a scope.
    fn scope(&self, element: Type, scales: &[Scale], list: &mut [(&Operation, Buffers)]) -> Done;
}

/// The methods, of access epochs with and of locks without a target.
macro_rules! calls { ($self:ident, $target:ident => $($named:ident)?) => {
    fn put(&$self, $target: Rank, disp: u64, origin: &[u8]) -> Done {
        $self.put($($named,)? disp, origin)
    }
    fn get(&$self, $target: Rank, disp: u64, origin: &mut [u8]) -> Done {
        $self.get($($named,)? disp, origin)
    }
    fn put_shaped(
        &$self,
        ($target, disp): (Rank, u64),
        to: Shape<'_>,
        origin: &[u8],
        from: Shape<'_>,
    ) -> Done {
        $self.put_shaped($($named,)? disp, to, origin, from)
    }
    fn get_shaped(
        &$self,
        ($target, disp): (Rank, u64),
        from: Shape<'_>,
        to: &mut [u8],
        by: Shape<'_>,
    ) -> Done {
        $self.get_shaped($($named,)? disp, from, to, by)
    }
    fn accumulate<E: BasicElement>(&$self, $target: Rank, disp: u64, op: Op, from: &[E]) -> Done {
        $self.accumulate($($named,)? disp, op, from)
    }
    fn get_accumulate<E: BasicElement>(
        &$self,
        ($target, disp): (Rank, u64),
        op: Op,
        from: &[E],
        to: &mut [E],
    ) -> Done {
        $self.get_accumulate($($named,)? disp, op, from, to)
    }
    fn accumulate_shaped(
        &$self,
        ($target, disp): (Rank, u64),
        to: Shape<'_>,
        op: Op,
        (origin, from): (&[u8], Shape<'_>),
    ) -> Done {
        $self.accumulate_shaped($($named,)? disp, to, op, origin, from)
    }
    fn get_accumulate_shaped(
        &$self,
        ($target, disp, at): (Rank, u64, Shape<'_>),
        op: Op,
        origin: (&[u8], Shape<'_>),
        result: (&mut [u8], Shape<'_>),
    ) -> Done {
        $self.get_accumulate_shaped($($named,)? disp, at, op, origin, result)
    }
    fn fetch<E: BasicElement>(
        &$self,
        ($target, disp): (Rank, u64),
        op: Op,
        with: E,
    ) -> Result<E, RmaError> {
        $self.fetch_and_op($($named,)? disp, op, with)
    }
    fn swap<E: AtomicElement>(
        &$self,
        ($target, disp): (Rank, u64),
        old: E,
        new: E,
    ) -> Result<E, RmaError> {
        $self.compare_and_swap($($named,)? disp, old, new)
    }
    fn scope(
        &$self,
        element: Type,
        scales: &[Scale],
        list: &mut [(&Operation, Buffers)],
    ) -> Done {
        $self.ops(|ops| start_all(ops, element, scales, list))?
    }
} }

impl Calls for Access<'_> {
    calls! { self, target => target }
}

impl Calls for Lock<'_> {
    calls! { self, _target => }
}

/// The target's rank.
pub(super) fn rank(target: Option<u32>) -> Rank {
    target.map_or(Rank::NULL, Rank)
}

/// Performs an operation, to a target that counts so.
pub(super) fn perform<C: Calls>(
    calls: &C,
    element: Type,
    scale: Scale,
    operation: &Operation,
    buffers: &mut Buffers,
) -> Done {
    let target = rank(operation.target);
    let (origin, result) = (buffers.origin.bytes(), buffers.result.bytes_mut());
    match &operation.call {
        Call::Put { to, from, .. } => {
            let (disp, layouts) = scale.place(to, [from]);
            let Some(by) = layouts else { return calls.put(target, disp, of(origin, from)) };
            calls.put_shaped((target, disp), by.there.shape(), origin, by.here[0].shape())
        }
        Call::Get { from, to } => {
            let (disp, layouts) = scale.place(from, [to]);
            let Some(by) = layouts else { return calls.get(target, disp, of_mut(result, to)) };
            calls.get_shaped((target, disp), by.there.shape(), result, by.here[0].shape())
        }
        Call::Accumulate { op, to, from, .. } => {
            let (disp, layouts) = scale.place(to, [from]);
            let Some(by) = layouts else {
                return typed!(element, E => {
                    calls.accumulate::<E>(target, disp, *op, cast_slice(of(origin, from)))
                });
            };
            let origin = (origin, by.here[0].shape());
            calls.accumulate_shaped((target, disp), by.there.shape(), *op, origin)
        }
        Call::GetAccumulate { op, at, from, into, .. } => {
            let (disp, layouts) = scale.place(at, [from, into]);
            let Some(by) = layouts else {
                let (from, to) = (of(origin, from), of_mut(result, into));
                return typed!(element, E => {
                    let (from, to) = (cast_slice(from), cast_slice_mut(to));
                    calls.get_accumulate::<E>((target, disp), *op, from, to)
                });
            };
            let (origin, result) = ((origin, by.here[0].shape()), (result, by.here[1].shape()));
            calls.get_accumulate_shaped((target, disp, by.there.shape()), *op, origin, result)
        }
        Call::FetchAndOp { op, at, value } => {
            let (at, with) = ((target, scale.disp(*at)), Buffer::of(value));
            typed!(element, E => {
                let old = calls.fetch::<E>(at, *op, cast_slice::<u8, E>(with.bytes())[0])?;
                cast_slice_mut::<u8, E>(result)[0] = old;
                Ok(())
            })
        }
        Call::CompareAndSwap { at, compare, swap } => {
            let (at, compare, swap) =
                ((target, scale.disp(*at)), Buffer::of(compare), Buffer::of(swap));
            typed_atomic!(element, E => {
                let (compare, swap): (&[E], &[E]) =
                    (cast_slice(compare.bytes()), cast_slice(swap.bytes()));
                cast_slice_mut::<u8, E>(result)[0] = calls.swap(at, compare[0], swap[0])?;
                Ok(())
            })
        }
    }
}

/// Starts all operations of a scope.
fn start_all<'s>(
    ops: &'s Ops<'s, '_>,
    element: Type,
    scales: &[Scale],
    list: &'s mut [(&Operation, Buffers)],
) -> Done {
    for ((operation, Buffers { origin, result }), scale) in list.iter_mut().zip(scales) {
        let (target, origin, result) = (rank(operation.target), origin.bytes(), result.bytes_mut());
        match &operation.call {
            Call::Put { to, from, .. } => match scale.place(to, [from]) {
                (disp, None) => ops.put(target, disp, of(origin, from))?,
                (disp, Some(by)) => {
                    ops.put_shaped(target, disp, by.there.shape(), origin, by.here[0].shape())?;
                }
            },
            Call::Get { from, to } => match scale.place(from, [to]) {
                (disp, None) => ops.get(target, disp, of_mut(result, to))?,
                (disp, Some(by)) => {
                    ops.get_shaped(target, disp, by.there.shape(), result, by.here[0].shape())?;
                }
            },
            Call::Accumulate { op, to, from, .. } => match scale.place(to, [from]) {
                (disp, None) => typed!(element, E => {
                    ops.accumulate::<E>(target, disp, *op, cast_slice(of(origin, from)))?;
                }),
                (disp, Some(by)) => {
                    let (there, here) = (by.there.shape(), by.here[0].shape());
                    ops.accumulate_shaped(target, disp, there, *op, origin, here)?;
                }
            },
            Call::GetAccumulate { op, at, from, into, .. } => match scale.place(at, [from, into]) {
                (disp, None) => typed!(element, E => {
                    let (from, to) =
                        (cast_slice(of(origin, from)), cast_slice_mut(of_mut(result, into)));
                    ops.get_accumulate::<E>(target, disp, *op, from, to)?;
                }),
                (disp, Some(by)) => {
                    let [from, into] = &by.here;
                    let (from, into) = ((origin, from.shape()), (result, into.shape()));
                    let there = by.there.shape();
                    ops.get_accumulate_shaped(target, disp, there, *op, from, into)?;
                }
            },
            other => unreachable!("{other:?} is no operation of a scope"),
        }
    }
    Ok(())
}
