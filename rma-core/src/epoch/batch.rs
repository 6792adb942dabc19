//! Many small operations at once, to many places of many targets.
use super::{Access, Ops, Peer};
use crate::element::{BasicElement, Element, Op};
use crate::error::{BatchError, RmaError};
use crate::integer::Integer;
use crate::layout::Layout;
use crate::memory::target::Span;
use crate::object::Flavor;
use crate::protocol::rows::WireRow;
use crate::rank::Rank;
use crate::route::Path;
use bytemuck::{bytes_of, bytes_of_mut};
use core::mem;
use core::ops::Range;
use core::slice::from_mut;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// Places in the parts of targets, for as many elements each: from [`Access::batch`].
///
/// Near targets are reached element by element, at the speed of a loop; to each of the others, all
/// elements travel together. A place may be named twice, and [`Rank::NULL`] be a target, where
/// nothing is done.
///
/// A call fails at the first place that is none, which [`BatchError`] names; it is open then which
/// of the others were reached.
pub struct Batch<'e, I> {
    access: &'e Access<'e>,
    places: &'e [(Rank, I)],
}

/// Places that load and store do not reach.
#[derive(Default)]
struct Rest {
    /// As the caller numbers them: by target, and in the caller's order for each.
    order: Vec<usize>,
    targets: Vec<RestThere>,
}

/// What is left for one target: where, and which of [`Rest::order`].
struct RestThere {
    target: Rank,
    layout: Layout,
    entries: Range<usize>,
}

/// How many places are looked up before the first of them is combined: the machine loads nothing
/// past an atomic access before that is done.
const AHEAD: usize = 16;

/// What becomes of elements whose places meet.
#[derive(Clone, Copy)]
enum Repeats {
    /// Bytes are copied, in any order.
    Copy,
    /// Elements are combined, which are aligned so: in the caller's order where they meet.
    Combine { align: usize },
}

/// How a place is reached.
#[derive(Clone, Copy)]
enum Way {
    /// By load and store, if nothing stands in the way of that.
    Near,
    Any,
}

impl<'w> Access<'w> {
    /// Names places by target and displacement, in the target's units: one element is at each.
    ///
    /// ```
    /// # // Run as two ranks by the crate `rma`; here for the compiler.
    /// # use rma_core::{BatchError, Op, Rank, Window};
    /// # fn example(window: &Window) -> Result<(), Box<dyn std::error::Error>> {
    /// let epoch = window.lock_all()?;
    /// let places = [(Rank(1), 7), (Rank(0), 3), (Rank(1), 7)];
    /// epoch.batch(&places).accumulate(Op::Sum, &[1u64, 10, 100])?;
    /// epoch.flush_all()?;
    /// let mut sums = [0u64; 3];
    /// epoch.batch(&places).get(&mut sums)?;
    /// epoch.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch<'e, I: Integer>(&'e self, places: &'e [(Rank, I)]) -> Batch<'e, I> {
        Batch { access: self, places }
    }
}

impl<I: Integer> Batch<'_, I> {
    /// As [`Access::put`], of one element to each place: `values[i]` to `places[i]`.
    ///
    /// `values` is yours again on return. Of several values for one place, one is there after a
    /// flush or the end of the epoch.
    ///
    /// # Errors
    ///
    /// As [`Access::put`], and [`RmaError::WrongCount`].
    pub fn put<E: Element>(&self, values: &[E]) -> Result<(), BatchError> {
        self.check_count(values.len())?;
        let put = |way, i: usize, peer: &Peer<'_>, disp: u64| match way {
            Way::Near => Ok(peer.near(disp, size_of::<E>()).is_some_and(|span| {
                span.write(bytes_of(&values[i]));
                true
            })),
            Way::Any => peer.put(disp, &values[i..=i]).map(|()| true),
        };
        let left = self.each::<E>(0, Repeats::Copy, put)?;
        self.send(&left, values, |peer, there, values| peer.put(there.at(0), values))
    }

    /// As [`Access::get`], of one element from each place: `places[i]` to `values[i]`.
    ///
    /// # Errors
    ///
    /// As [`Access::get`], and [`RmaError::WrongCount`].
    pub fn get<E: Element>(&self, values: &mut [E]) -> Result<(), BatchError> {
        self.check_count(values.len())?;
        let get = |way, i: usize, peer: &Peer<'_>, disp: u64| match way {
            Way::Near => Ok(peer.near(disp, size_of::<E>()).is_some_and(|span| {
                span.read(bytes_of_mut(&mut values[i]));
                true
            })),
            Way::Any => peer.get(disp, from_mut(&mut values[i])).map(|()| true),
        };
        let left = self.each::<E>(0, Repeats::Copy, get)?;
        let mut found = vec![E::zeroed(); left.order.len()];
        self.fetch(&left, &mut found, |ops, there, found| {
            ops.get(there.target, there.layout.at(0), found)
        })?;
        left.order.iter().zip(found).for_each(|(i, found)| values[*i] = found);
        Ok(())
    }

    /// As [`Access::accumulate`], of one element at each place: `places[i] op= values[i]`, in this
    /// order where a place is named twice.
    ///
    /// `values` is yours again on return.
    ///
    /// # Errors
    ///
    /// As [`Access::accumulate`], and [`RmaError::WrongCount`].
    pub fn accumulate<E: BasicElement>(&self, op: Op, values: &[E]) -> Result<(), BatchError> {
        self.check_count(values.len())?;
        let combine = |way, i: usize, peer: &Peer<'_>, disp: u64| match way {
            Way::Near if op == Op::NoOp => Ok(false),
            Way::Near => Ok(combine_near(peer, disp, op, values[i]).is_some()),
            Way::Any => peer.accumulate(disp, op, &values[i..=i]).map(|()| true),
        };
        let first = match op {
            Op::NoOp => 0,
            _ => self.by_atomics::<E>(|i, span| span.fetch_and_op(op, values[i]).is_some()),
        };
        let left = self.each::<E>(first, Repeats::Combine { align: E::BASIC.align() }, combine)?;
        self.send(&left, values, |peer, there, values| peer.accumulate(there.at(0), op, values))
    }

    /// As [`Access::get_accumulate`], of one element at each place: `results[i]` is what
    /// `values[i]` was combined with.
    ///
    /// `values` and `results` are yours on return, the latter filled (unchanged where the target is
    /// [`Rank::NULL`]).
    ///
    /// # Errors
    ///
    /// As [`Access::get_accumulate`], and [`RmaError::WrongCount`].
    pub fn get_accumulate<E: BasicElement>(
        &self,
        op: Op,
        values: &[E],
        results: &mut [E],
    ) -> Result<(), BatchError> {
        self.check_count(values.len())?;
        self.check_count(results.len())?;
        let first = self.by_atomics::<E>(|i, span| match span.fetch_and_op(op, values[i]) {
            Some(old) => {
                results[i] = old;
                true
            }
            None => false,
        });
        let combine = |way, i: usize, peer: &Peer<'_>, disp: u64| match way {
            Way::Near => Ok(combine_near(peer, disp, op, values[i]).is_some_and(|old| {
                results[i] = old;
                true
            })),
            Way::Any => {
                let result = from_mut(&mut results[i]);
                peer.get_accumulate(disp, op, &values[i..=i], result).map(|()| true)
            }
        };
        let left = self.each::<E>(first, Repeats::Combine { align: E::BASIC.align() }, combine)?;
        let operands: Vec<E> = left.order.iter().map(|i| values[*i]).collect();
        let mut found = vec![E::zeroed(); operands.len()];
        self.fetch(&left, &mut found, |ops, there, found| {
            let operands = &operands[there.entries.clone()];
            ops.get_accumulate(there.target, there.layout.at(0), op, operands, found)
        })?;
        left.order.iter().zip(found).for_each(|(i, found)| results[*i] = found);
        Ok(())
    }

    fn check_count(&self, values: usize) -> Result<(), BatchError> {
        if values == self.places.len() {
            return Ok(());
        }
        let index = values.min(self.places.len());
        let (window, target) = (self.access.window().id(), Rank::NULL);
        let (origin, result) = (values as u64, self.places.len() as u64);
        let target = self.places.get(index).map_or(target, |place| place.0);
        Err(BatchError { index, error: RmaError::WrongCount { window, target, origin, result } })
    }

    /// Combines one place after the other by `combine`, as far as the machine does it atomically
    /// and nothing stands in the way; returns how many.
    #[inline(always)]
    fn by_atomics<E: BasicElement>(
        &self,
        mut combine: impl FnMut(usize, Span<'_>) -> bool,
    ) -> usize {
        if !E::BASIC.is_atomic() {
            return 0;
        }
        let mut spans = [None; AHEAD];
        let mut done = 0;
        for places in self.places.chunks(AHEAD) {
            for (span, (target, disp)) in spans.iter_mut().zip(places) {
                *span = self.access.to(*target).near_atomic(disp.to_u64(), size_of::<E>());
            }
            for span in &spans[..places.len()] {
                if !span.is_some_and(|span| combine(done, span)) {
                    return done;
                }
                done += 1;
            }
        }
        done
    }

    /// Reaches each place from the `first` on by `reach`: where that cannot be done near, any way
    /// if its target is near all the same. Gives what is left.
    #[inline(always)]
    fn each<E: Element>(
        &self,
        first: usize,
        what: Repeats,
        mut reach: impl FnMut(Way, usize, &Peer<'_>, u64) -> Result<bool, RmaError>,
    ) -> Result<Rest, BatchError> {
        // As long as all are near, the loop has nothing else to know.
        for (index, (target, disp)) in self.places.iter().enumerate().skip(first) {
            let (peer, disp) = (self.access.to(*target), disp.to_u64());
            if !matches!(reach(Way::Near, index, &peer, disp), Ok(true)) {
                return self.each_from::<E>(index, what, reach);
            }
        }
        Ok(Rest::default())
    }

    /// As `each`, from a place on that is not reached near.
    #[cold]
    #[inline(never)]
    fn each_from<E: Element>(
        &self,
        first: usize,
        what: Repeats,
        mut reach: impl FnMut(Way, usize, &Peer<'_>, u64) -> Result<bool, RmaError>,
    ) -> Result<Rest, BatchError> {
        let (mut left, mut far) = (Rest::default(), FxHashSet::default());
        for (index, (target, disp)) in self.places.iter().enumerate().skip(first) {
            let (peer, disp) = (self.access.to(*target), disp.to_u64());
            // What comes after something that is left for its target is left, too: for the order.
            let is_left = !far.is_empty() && far.contains(target);
            if !is_left && matches!(reach(Way::Near, index, &peer, disp), Ok(true)) {
                continue;
            }
            if !is_left && self.is_one_by_one(*target) {
                if let Err(error) = reach(Way::Any, index, &peer, disp) {
                    // All that is left comes before.
                    self.sort::<E>(&mut left, what)?;
                    return Err(BatchError { index, error });
                }
            } else if *target != Rank::NULL {
                left.order.push(index);
                far.insert(*target);
            }
        }
        if !left.order.is_empty() {
            self.sort::<E>(&mut left, what)?;
        }
        Ok(left)
    }

    /// Sorts what is left by target, and in turns where places meet that are combined.
    #[cold]
    fn sort<E: Element>(&self, left: &mut Rest, what: Repeats) -> Result<(), BatchError> {
        let mut all = mem::take(&mut left.order);
        all.sort_by_key(|index| self.places[*index].0);
        let same = |a: &usize, b: &usize| self.places[*a].0 == self.places[*b].0;
        let mut failed: Option<BatchError> = None;
        for group in all.chunk_by(same) {
            let target = self.places[group[0]].0;
            let mut found = match self.positions_of::<E>(target, group, what) {
                Ok(positions) => self.in_turns::<E>(target, group, positions, what),
                Err(error) => {
                    let first = failed.is_none_or(|failed| error.index < failed.index);
                    failed = if first { Some(error) } else { failed };
                    continue;
                }
            };
            found.sort_by_key(|place| place.0);
            for turn in found.chunk_by(|a, b| a.0 == b.0) {
                let begin = left.order.len();
                left.order.extend(turn.iter().map(|place| place.1));
                let positions: Vec<u64> = turn.iter().map(|place| place.2).collect();
                let layout = Layout::scattered::<E>(&positions);
                left.targets.push(RestThere { target, layout, entries: begin..left.order.len() });
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// In which turn each entry of a group travels, which it is, and where its element is: after
    /// those before it that share a byte with it, because the transfers of one operation overtake
    /// each other; unless one message holds all.
    fn in_turns<E: Element>(
        &self,
        target: Rank,
        group: &[usize],
        positions: Vec<u64>,
        what: Repeats,
    ) -> Vec<(u32, usize, u64)> {
        let (window, len) = (self.access.window(), size_of::<E>() as u64);
        let bytes = positions.len() as u64 * (len + WireRow::LEN as u64);
        let alone =
            bytes <= window.engine().body_max() as u64 && window.path(target) != Some(Path::Device);
        let entries = group.iter().zip(positions);
        if matches!(what, Repeats::Copy) || alone {
            return entries.map(|(index, at)| (0, *index, at)).collect();
        }
        // The turn after the last one, of the places that were met.
        let mut next: BTreeMap<u64, u32> = BTreeMap::new();
        let turn = |(index, at): (&usize, u64)| {
            let meets = next.range((at + 1).saturating_sub(len)..at + len);
            let turn = meets.map(|met| *met.1).max().unwrap_or(0);
            next.insert(at, turn + 1);
            (turn, *index, at)
        };
        entries.map(turn).collect()
    }

    /// Whether elements of a target do not travel together.
    #[cold]
    fn is_one_by_one(&self, target: Rank) -> bool {
        let window = self.access.window();
        // Each place of a dynamic window may lie in another region.
        let path = window.path(target);
        window.flavor() == Flavor::Dynamic || matches!(path, None | Some(Path::LoadStore))
    }

    /// Where the elements of a group of places are in the part of their target, in bytes.
    fn positions_of<E: Element>(
        &self,
        target: Rank,
        group: &[usize],
        what: Repeats,
    ) -> Result<Vec<u64>, BatchError> {
        let (window, len) = (self.access.window(), size_of::<E>() as u64);
        let world = window.group().world_rank(target);
        let part = world.ok_or_else(|| window.no_such_rank(target));
        let part = part.and_then(|world| window.part_of((target, world), None));
        let (size, disp_unit) = part.map_err(|error| BatchError { index: group[0], error })?;
        let aligned = match what {
            Repeats::Copy => None,
            Repeats::Combine { align } => window.alignment_of(target).map(|base| (base, align)),
        };
        let position = |index: &usize| {
            let (index, disp) = (*index, self.places[*index].1.to_u64());
            let at = disp.checked_mul(u64::from(disp_unit));
            let inside = |at: &u64| at.checked_add(len).is_some_and(|end| end <= size);
            let Some(at) = at.filter(inside) else {
                let window = window.id();
                let error = RmaError::OutOfRange { window, target, disp, disp_unit, len, size };
                return Err(BatchError { index, error });
            };
            match aligned {
                Some((base, align)) if !base.wrapping_add(at).is_multiple_of(align as u64) => {
                    let error = window.misaligned_cold(target, disp, align);
                    Err(BatchError { index, error })
                }
                _ => Ok(at),
            }
        };
        group.iter().map(position).collect()
    }

    /// Sends what is left, all of a target at once.
    fn send<E: Element>(
        &self,
        left: &Rest,
        values: &[E],
        send: impl Fn(&Peer<'_>, &Layout, &[E]) -> Result<(), RmaError>,
    ) -> Result<(), BatchError> {
        for RestThere { target, layout, entries } in &left.targets {
            let entries = &left.order[entries.clone()];
            let values: Vec<E> = entries.iter().map(|i| values[*i]).collect();
            let sent = send(&self.access.to(*target), layout, &values);
            sent.map_err(|error| BatchError { index: entries[0], error })?;
        }
        Ok(())
    }

    /// Fetches what is left into `found`, in its order: from all targets at the same time.
    fn fetch<'a, E: Element>(
        &'a self,
        left: &'a Rest,
        found: &'a mut [E],
        fetch: impl for<'s> Fn(&'s Ops<'s, 'a>, &RestThere, &'s mut [E]) -> Result<(), RmaError>,
    ) -> Result<(), BatchError> {
        if left.order.is_empty() {
            return Ok(());
        }
        let mut begun = None;
        let fetched = self.access.ops(|ops| {
            let mut rest = found;
            left.targets.iter().try_for_each(|there| {
                let (found, further) = mem::take(&mut rest).split_at_mut(there.entries.len());
                rest = further;
                begun = left.order[there.entries.clone()].iter().min();
                fetch(ops, there, found)
            })?;
            begun = None;
            Ok(())
        });
        fetched.map_err(|error| {
            // The peer that ended the wait for all, or the first.
            let gone = match error {
                RmaError::PeerFailed { world, .. } | RmaError::PeerLeft { world, .. } => {
                    self.access.window().group().rank_of(world)
                }
                RmaError::Device { target, .. } => Some(target),
                _ => None,
            };
            let of_gone = left.order.iter().filter(|index| gone == Some(self.places[**index].0));
            let index = of_gone.min().or(begun).or(left.order.iter().min());
            BatchError { index: index.copied().unwrap_or(0), error }
        })
    }
}
/// Combines one element, if nothing stands in the way of load and store.
#[inline(always)]
fn combine_near<E: BasicElement>(peer: &Peer<'_>, disp: u64, op: Op, operand: E) -> Option<E> {
    let by_lock = || peer.combine_one_by_lock(disp, op, operand);
    peer.combine_one(disp, op, operand).or_else(by_lock)
}
