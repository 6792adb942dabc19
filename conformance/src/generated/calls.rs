//! Operations of generated programs, as calls of the library.
use super::cell::{Cell, Side};
use super::program::{Call, Operation, UNTOUCHED};
use super::record::Tried;
use super::tries::issue;
use super::values::{Type, typed, typed_atomic};
use bytemuck::{cast_slice, cast_slice_mut};
use rma_core::{
    Access, AtomicElement, BasicElement, Displacement, Layout, LayoutAt, LayoutOf, Lock,
};
use rma_core::{Op, Operands, Ops, Origin, OriginMut, Rank, RmaError};

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

/// The buffers of an operation, what it sends and what it fills; and what became of it.
pub(super) struct Buffers {
    pub(super) origin: Buffer,
    pub(super) result: Buffer,
    /// If it was tried.
    pub(super) tried: Option<Tried>,
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
        Self { origin, result, tried: None }
    }
}

/// One side's layout, how many of it, and where in a buffer it begins.
pub(super) struct Laid(Layout, u64, usize);

impl Laid {
    /// Of a buffer.
    fn here(side: &Side) -> Self {
        let (layout, count) = side.layout().unwrap_or_else(|e| panic!("{side:?}: {e}"));
        Self(layout, count, side.start)
    }

    /// At the target, so many bytes behind a displacement.
    fn there(side: &Side, extra: usize) -> Self {
        let Self(layout, count, _) = Self::here(side);
        if extra == 0 {
            return Self(layout, count, 0);
        }
        let shifted = layout.hindexed(&[(extra as i64, count)]);
        Self(shifted.unwrap_or_else(|e| panic!("{side:?}: {e}")), 1, 0)
    }

    pub(super) fn at(&self, disp: u64) -> LayoutAt<'_> {
        self.0.times(self.1).at(disp)
    }

    pub(super) fn of<B>(&self, buffer: B) -> LayoutOf<'_, B> {
        self.0.times(self.1).of(buffer).starting_at(self.2)
    }
}

/// The layouts at the target and in buffers.
pub(super) struct Layouts {
    pub(super) there: Laid,
    pub(super) here: Vec<Laid>,
}

impl Layouts {
    /// `None` if no call with layouts is needed.
    fn new(there: &Side, here: &[&Side], extra: usize) -> Option<Self> {
        // A slice of elements begins where they are aligned.
        let slice = |side: &&Side| {
            side.is_plain() && (side.cell == Cell::Word(1) || side.start.is_multiple_of(8))
        };
        let plain = there.is_plain() && here.iter().all(slice) && extra == 0;
        let here = || here.iter().map(|side| Laid::here(side)).collect();
        (!plain).then(|| Self { there: Laid::there(there, extra), here: here() })
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

    /// The displacement of a call, and the layouts of its sides if they are needed.
    pub(super) fn place(self, call: &Call) -> (u64, Option<Layouts>) {
        let (there, here) = match call {
            Call::Put { to, from, .. } | Call::Accumulate { to, from, .. } => (to, &[from][..]),
            Call::Get { from, to } => (from, &[to][..]),
            Call::GetAccumulate { at, from, into, .. } => (at, &[from, into][..]),
            Call::FetchAndOp { at, .. } | Call::CompareAndSwap { at, .. } => {
                return (self.disp(*at), None);
            }
        };
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

/// What access epochs have in common. What may be tried is told whether it is.
pub(super) trait Calls {
    fn put(&self, tries: bool, target: Rank, disp: impl Displacement, origin: impl Origin) -> Done;
    fn get<'b>(&self, target: Rank, disp: impl Displacement, to: impl OriginMut<'b>) -> Done;
    fn accumulate(
        &self,
        tries: bool,
        at: (Rank, impl Displacement),
        op: Op,
        from: impl Operands,
    ) -> Done;
    fn get_accumulate<'b, O: Operands>(
        &self,
        at: (Rank, impl Displacement),
        op: Op,
        from: O,
        to: impl OriginMut<'b, Element = O::Element>,
    ) -> Done;
    fn fetch<E: BasicElement>(&self, at: (Rank, u64), op: Op, with: E) -> Result<E, RmaError>;
    fn swap<E: AtomicElement>(&self, at: (Rank, u64), old: E, new: E) -> Result<E, RmaError>;
    /// Runs operations in a scope.
    fn scope(&self, element: Type, scales: &[Scale], list: &mut [(&Operation, Buffers)]) -> Done;
}

/// The methods: of `$by`, which takes the target if that is named.
macro_rules! calls { ($self:ident, $target:ident => $by:expr $(, $named:ident)?) => {
    fn put(
        &$self,
        tries: bool,
        $target: Rank,
        disp: impl Displacement,
        origin: impl Origin,
    ) -> Done {
        if tries {
            $by.try_put($($named,)? disp, origin)
        } else {
            $by.put($($named,)? disp, origin)
        }
    }
    fn get<'b>(&$self, $target: Rank, disp: impl Displacement, to: impl OriginMut<'b>) -> Done {
        $by.get($($named,)? disp, to)
    }
    fn accumulate(
        &$self,
        tries: bool,
        ($target, disp): (Rank, impl Displacement),
        op: Op,
        from: impl Operands,
    ) -> Done {
        if tries {
            $by.try_accumulate($($named,)? disp, op, from)
        } else {
            $by.accumulate($($named,)? disp, op, from)
        }
    }
    fn get_accumulate<'b, O: Operands>(
        &$self,
        ($target, disp): (Rank, impl Displacement),
        op: Op,
        from: O,
        to: impl OriginMut<'b, Element = O::Element>,
    ) -> Done {
        $by.get_accumulate($($named,)? disp, op, from, to)
    }
    fn fetch<E: BasicElement>(
        &$self,
        ($target, disp): (Rank, u64),
        op: Op,
        with: E,
    ) -> Result<E, RmaError> {
        $by.fetch_and_op($($named,)? disp, op, with)
    }
    fn swap<E: AtomicElement>(
        &$self,
        ($target, disp): (Rank, u64),
        old: E,
        new: E,
    ) -> Result<E, RmaError> {
        $by.compare_and_swap($($named,)? disp, old, new)
    }
    fn scope(
        &$self,
        element: Type,
        scales: &[Scale],
        list: &mut [(&Operation, Buffers)],
    ) -> Done {
        let place = |((operation, _), scale): (&(&Operation, Buffers), &Scale)| {
            scale.place(&operation.call)
        };
        let places: Vec<_> = list.iter().zip(scales).map(place).collect();
        $self.ops(|ops| start_all(ops, element, &places, list))
    }
} }

impl Calls for Access<'_> {
    calls! { self, target => self, target }
}

impl Calls for Lock<'_> {
    // Of the peer: on the guard itself, they would be the ones below.
    calls! { self, _target => (**self) }
}

/// The target's rank.
pub(super) fn rank(target: Option<u32>) -> Rank {
    target.map_or(Rank::NULL, Rank)
}

/// Performs an operation, to a target that counts so; `again` comes between two tries.
pub(super) fn perform<C: Calls>(
    calls: &C,
    element: Type,
    scale: Scale,
    operation: &Operation,
    buffers: &mut Buffers,
    again: impl Fn() -> Done,
) -> Done {
    let target = rank(operation.target);
    let Buffers { origin, result, tried } = buffers;
    let (origin, result) = (origin.bytes(), result.bytes_mut());
    let (disp, layouts) = scale.place(&operation.call);
    match &operation.call {
        Call::Put { from, .. } => {
            let put = |tries| match &layouts {
                None => calls.put(tries, target, disp, of(origin, from)),
                Some(by) => calls.put(tries, target, by.there.at(disp), by.here[0].of(origin)),
            };
            issue(operation, tried, put, again).map(drop)
        }
        Call::Get { to, .. } => {
            let Some(by) = &layouts else { return calls.get(target, disp, of_mut(result, to)) };
            calls.get(target, by.there.at(disp), by.here[0].of(result))
        }
        Call::Accumulate { op, from, .. } => {
            let accumulate = |tries| match &layouts {
                None => typed!(element, E => {
                    let from = cast_slice::<_, E>(of(origin, from));
                    calls.accumulate(tries, (target, disp), *op, from)
                }),
                Some(by) => {
                    let at = (target, by.there.at(disp));
                    calls.accumulate(tries, at, *op, by.here[0].of(origin))
                }
            };
            issue(operation, tried, accumulate, again).map(drop)
        }
        Call::GetAccumulate { op, from, into, .. } => {
            let Some(by) = &layouts else {
                let (from, to) = (of(origin, from), of_mut(result, into));
                return typed!(element, E => {
                    let (from, to) = (cast_slice::<_, E>(from), cast_slice_mut(to));
                    calls.get_accumulate((target, disp), *op, from, to)
                });
            };
            let [from, into] = &by.here[..] else { unreachable!("two buffers") };
            let (from, into) = (from.of(origin), into.of(result));
            calls.get_accumulate((target, by.there.at(disp)), *op, from, into)
        }
        Call::FetchAndOp { op, value, .. } => {
            let (at, with) = ((target, disp), Buffer::of(value));
            typed!(element, E => {
                let old = calls.fetch::<E>(at, *op, cast_slice::<u8, E>(with.bytes())[0])?;
                cast_slice_mut::<u8, E>(result)[0] = old;
                Ok(())
            })
        }
        Call::CompareAndSwap { compare, swap, .. } => {
            let (compare, swap) = (Buffer::of(compare), Buffer::of(swap));
            typed_atomic!(element, E => {
                let (compare, swap): (&[E], &[E]) =
                    (cast_slice(compare.bytes()), cast_slice(swap.bytes()));
                let old = calls.swap((target, disp), compare[0], swap[0])?;
                cast_slice_mut::<u8, E>(result)[0] = old;
                Ok(())
            })
        }
    }
}

/// Starts all operations of a scope.
fn start_all<'s>(
    ops: &'s Ops<'s, '_>,
    element: Type,
    places: &'s [(u64, Option<Layouts>)],
    list: &'s mut [(&Operation, Buffers)],
) -> Done {
    for ((operation, Buffers { origin, result, tried }), place) in list.iter_mut().zip(places) {
        let (target, origin, result) = (rank(operation.target), origin.bytes(), result.bytes_mut());
        // Each try makes progress by itself.
        let again = || Ok(());
        match &operation.call {
            Call::Put { from, .. } => {
                let put = |tries| match place {
                    (disp, None) if tries => ops.try_put(target, *disp, of(origin, from)),
                    (disp, None) => ops.put(target, *disp, of(origin, from)),
                    (disp, Some(by)) => {
                        let (at, from) = (by.there.at(*disp), by.here[0].of(origin));
                        if tries {
                            ops.try_put(target, at, from)
                        } else {
                            ops.put(target, at, from)
                        }
                    }
                };
                issue(operation, tried, put, again)?;
            }
            Call::Get { to, .. } => match place {
                (disp, None) => ops.get(target, *disp, of_mut(result, to))?,
                (disp, Some(by)) => {
                    ops.get(target, by.there.at(*disp), by.here[0].of(result))?;
                }
            },
            Call::Accumulate { op, from, .. } => {
                let accumulate = |tries| match place {
                    (disp, None) => typed!(element, E => {
                        let from = cast_slice::<_, E>(of(origin, from));
                        if tries {
                            ops.try_accumulate(target, *disp, *op, from)
                        } else {
                            ops.accumulate(target, *disp, *op, from)
                        }
                    }),
                    (disp, Some(by)) => {
                        let (at, from) = (by.there.at(*disp), by.here[0].of(origin));
                        if tries {
                            ops.try_accumulate(target, at, *op, from)
                        } else {
                            ops.accumulate(target, at, *op, from)
                        }
                    }
                };
                issue(operation, tried, accumulate, again)?;
            }
            Call::GetAccumulate { op, from, into, .. } => match place {
                (disp, None) => typed!(element, E => {
                    let from = cast_slice::<_, E>(of(origin, from));
                    let to = cast_slice_mut(of_mut(result, into));
                    ops.get_accumulate(target, *disp, *op, from, to)?;
                }),
                (disp, Some(by)) => {
                    let [from, into] = &by.here[..] else { unreachable!("two buffers") };
                    let (from, into) = (from.of(origin), into.of(result));
                    ops.get_accumulate(target, by.there.at(*disp), *op, from, into)?;
                }
            },
            other => unreachable!("{other:?} is no operation of a scope"),
        }
    }
    Ok(())
}
