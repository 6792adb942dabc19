//! Operations of generated programs, as calls of the library.
use super::program::{Call, MARGIN, Operation, UNTOUCHED};
use super::shape::Side;
use super::values::{Type, typed, typed_atomic};
use bytemuck::{cast_slice, cast_slice_mut};
use rma_core::transport::Transport;
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
            Call::Put { from, data, .. } => {
                origin = Buffer::new(Call::buffer_len(from), UNTOUCHED);
                let bytes = origin.bytes_mut();
                from.positions().zip(data).for_each(|(at, byte)| bytes[at] = *byte);
            }
            Call::Get { to, .. } => result = Buffer::new(Call::buffer_len(to), UNTOUCHED),
            Call::Accumulate { values, .. } => origin = Buffer::of(values),
            Call::GetAccumulate { values, len, .. } => {
                (origin, result) = (Buffer::of(values), Buffer::new(*len, UNTOUCHED));
            }
            Call::FetchAndOp { value, .. } => result = Buffer::new(value.len(), UNTOUCHED),
            Call::CompareAndSwap { swap, .. } => result = Buffer::new(swap.len(), UNTOUCHED),
        }
        Self { origin, result }
    }
}

/// The layouts of both sides.
struct Layouts {
    there: (Layout, u64),
    here: (Layout, u64),
}

impl Layouts {
    /// `None` if both are bytes in a row, and no bytes come after the displacement.
    fn new(there: &Side, here: &Side, extra: usize) -> Option<Self> {
        let layout = |side: &Side| side.layout().unwrap_or_else(|e| panic!("{side:?}: {e}"));
        let plain = there.is_plain() && here.is_plain() && extra == 0;
        (!plain).then(|| Self { there: layout(there), here: layout(here) })
    }

    fn there(&self, extra: usize) -> Shape<'_> {
        self.there.0.times(self.there.1).starting_at(extra as u64)
    }

    fn here(&self, side: &Side) -> Shape<'_> {
        self.here.0.times(self.here.1).starting_at(side.start as u64)
    }
}

/// A place as calls take it: the displacement, and the bytes after it that only layouts can say.
fn place(at: usize, unit: usize) -> (u64, usize) {
    ((at / unit) as u64, at % unit)
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
    fn fetch<E: BasicElement>(&self, at: (Rank, u64), op: Op, with: E) -> Result<E, RmaError>;
    fn swap<E: AtomicElement>(&self, at: (Rank, u64), old: E, new: E) -> Result<E, RmaError>;
    /// Runs operations in a scope.
    fn scope(&self, element: Type, units: &[usize], list: &mut [(&Operation, Buffers)]) -> Done;
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
    fn scope(&$self, element: Type, units: &[usize], list: &mut [(&Operation, Buffers)]) -> Done {
        $self.ops(|ops| start_all(ops, element, units, list))?
    }
} }

impl<T: Transport, const LAZY: bool> Calls for Access<'_, T, LAZY> {
    calls! { self, target => target }
}

impl<T: Transport> Calls for Lock<'_, T> {
    calls! { self, _target => }
}

/// The target's rank.
pub(super) fn rank(target: Option<u32>) -> Rank {
    target.map_or(Rank::NULL, Rank)
}

/// Performs an operation, to a target with that displacement unit.
pub(super) fn perform<C: Calls>(
    calls: &C,
    element: Type,
    unit: usize,
    operation: &Operation,
    buffers: &mut Buffers,
) -> Done {
    let target = rank(operation.target);
    let Buffers { origin, result } = buffers;
    match &operation.call {
        Call::Put { to, from, .. } => {
            let (disp, extra) = place(to.start, unit);
            match Layouts::new(to, from, extra) {
                None => calls.put(target, disp, &origin.bytes()[from.start..][..from.size()]),
                Some(by) => {
                    calls.put_shaped((target, disp), by.there(extra), origin.bytes(), by.here(from))
                }
            }
        }
        Call::Get { from, to } => {
            let (disp, extra) = place(from.start, unit);
            let bytes = result.bytes_mut();
            match Layouts::new(from, to, extra) {
                None => calls.get(target, disp, &mut bytes[to.start..][..to.size()]),
                Some(by) => calls.get_shaped((target, disp), by.there(extra), bytes, by.here(to)),
            }
        }
        Call::Accumulate { op, at, .. } => {
            let disp = place(*at, unit).0;
            typed!(element, E => {
                calls.accumulate::<E>(target, disp, *op, cast_slice(origin.bytes()))
            })
        }
        Call::GetAccumulate { op, at, .. } => {
            let at = (target, place(*at, unit).0);
            let (from, to) = (origin.bytes(), result.bytes_mut());
            typed!(element, E => {
                calls.get_accumulate::<E>(at, *op, cast_slice(from), cast_slice_mut(to))
            })
        }
        Call::FetchAndOp { op, at, value } => {
            let (at, with) = ((target, place(*at, unit).0), Buffer::of(value));
            let result = result.bytes_mut();
            typed!(element, E => {
                let old = calls.fetch::<E>(at, *op, cast_slice::<u8, E>(with.bytes())[0])?;
                cast_slice_mut::<u8, E>(result)[0] = old;
                Ok(())
            })
        }
        Call::CompareAndSwap { at, compare, swap } => {
            let (at, compare, swap) =
                ((target, place(*at, unit).0), Buffer::of(compare), Buffer::of(swap));
            let result = result.bytes_mut();
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
fn start_all<'s, T: Transport, const LAZY: bool>(
    ops: &'s Ops<'s, '_, T, LAZY>,
    element: Type,
    units: &[usize],
    list: &'s mut [(&Operation, Buffers)],
) -> Done {
    for ((operation, Buffers { origin, result }), unit) in list.iter_mut().zip(units) {
        let (target, origin, result) = (rank(operation.target), origin.bytes(), result.bytes_mut());
        match &operation.call {
            Call::Put { to, from, .. } => {
                let (disp, extra) = place(to.start, *unit);
                match Layouts::new(to, from, extra) {
                    None => ops.put(target, disp, &origin[from.start..][..from.size()])?,
                    Some(by) => {
                        ops.put_shaped(target, disp, by.there(extra), origin, by.here(from))?;
                    }
                }
            }
            Call::Get { from, to } => {
                let (disp, extra) = place(from.start, *unit);
                match Layouts::new(from, to, extra) {
                    None => ops.get(target, disp, &mut result[to.start..][..to.size()])?,
                    Some(by) => {
                        ops.get_shaped(target, disp, by.there(extra), result, by.here(to))?;
                    }
                }
            }
            Call::Accumulate { op, at, .. } => {
                let disp = place(*at, *unit).0;
                typed!(element, E => ops.accumulate::<E>(target, disp, *op, cast_slice(origin))?);
            }
            Call::GetAccumulate { op, at, .. } => {
                let disp = place(*at, *unit).0;
                typed!(element, E => {
                    let (origin, result) = (cast_slice(origin), cast_slice_mut(result));
                    ops.get_accumulate::<E>(target, disp, *op, origin, result)?;
                });
            }
            other => unreachable!("{other:?} is no operation of a scope"),
        }
    }
    Ok(())
}

/// What a get of plain bytes into a buffer without a margin filled, with the margin.
pub(super) fn with_margin(bytes: &[u8]) -> Vec<u8> {
    [&[UNTOUCHED; MARGIN], bytes, &[UNTOUCHED; MARGIN]].concat()
}
