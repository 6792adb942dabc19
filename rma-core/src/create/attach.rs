//! Dynamic windows: memory is attached and detached by its owner alone (MPI 4.1, section 12.2.4).
//!
//! A region has an address in its rank's part of the window, which no other region ever gets: so
//! an origin that holds a stale address is told, and touches nothing. Neighbours find regions in
//! the owner's directory; others send messages, which the owner looks up in its own table.
#![allow(unsafe_code)]

use crate::config::{Hint, PathHint};
use crate::engine::{On, Wait};
use crate::error::{Refused, RmaError};
use crate::memory::directory::{Entry, SLOTS_MAX, words};
use crate::view::View;
use crate::window::regions::{OwnRegion, RegionTable, Regions, Token};
use crate::window::{Contents, Memory, Window, WindowMemory};
use core::marker::PhantomData;
use core::time::Duration;
use std::sync::Arc;

/// How often a rank that detaches looks whether the last user is done: no rank rings for that.
const RECHECK: Duration = Duration::from_micros(200);

/// A region that this rank has attached; from [`Window::attach`].
///
/// Peers name its bytes by [`address`](Self::address), which is plain data to be sent to them.
/// The handle itself names the region to the rank that attached it, and to no other, whatever
/// thread it is sent to. Dropping it leaves the region attached until the window is freed.
#[derive(Debug)]
#[must_use = "detach gives the memory back"]
pub struct Attached<M> {
    token: Arc<Token>,
    /// Its address: all that an origin needs to know. S-J4 S-L2 S-L3
    start: u64,
    len: u64,
    memory: PhantomData<fn() -> M>,
}

impl<M> Attached<M> {
    /// The displacement of its first byte; those of the others follow one by one.
    pub fn address(&self) -> u64 {
        self.start
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Window {
    /// Makes memory part of a dynamic window, reachable by the ranks that learn its
    /// [address](Attached::address). Local: no other rank takes part.
    ///
    /// A vector or boxed slice moves into the window, and comes back from
    /// [`detach`](Self::detach) as it is then (MPI 4.1, section 12.2.4).
    ///
    /// # Errors
    ///
    /// [`RmaError::WrongFlavor`] if the window is not dynamic, [`RmaError::TooManyRegions`] beyond
    /// [`Config::dynamic_regions`](crate::Config::dynamic_regions), [`RmaError::NoMemory`],
    /// [`RmaError::NoAddresses`] when regions of 2^63 bytes in all were attached,
    /// [`RmaError::AttachedTwice`] for memory that overlaps some that is attached where it lies.
    /// The memory comes back with it.
    ///
    /// A [`Backing`](crate::Backing) of several extents counts as so many regions; if there is no
    /// room for these, it is reached as one that no rank maps.
    ///
    /// ```
    /// # // Run as two ranks by the guide of the crate `rma`; here for the compiler.
    /// # use rma_core::{Communicator, RmaError, Window};
    /// # fn example(world: &Communicator, window: &Window) -> Result<(), RmaError> {
    /// # let gather = |address| world.allgather(&[address]).unwrap();
    /// let attached = window.attach(vec![0u64; 100])?;
    /// // Others need the address: by a collective, or a put into another window.
    /// let addresses: Vec<u64> = gather(attached.address());
    /// // …
    /// let memory: Vec<u64> = window.detach(attached)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn attach<M: WindowMemory>(&self, memory: M) -> Result<Attached<M>, Refused<M>> {
        match self.attach_contents(&memory.contents()) {
            Ok((token, start, len)) => Ok(Attached { token, start, len, memory: PhantomData }),
            Err(error) => Err(Refused { value: memory, error }),
        }
    }

    fn attach_contents(&self, contents: &Contents<'_>) -> Result<(Arc<Token>, u64, u64), RmaError> {
        let window = self.id();
        let regions = self.regions("attach")?;
        let engine = &self.part.comm.inner.engine;
        let no_memory = |error| RmaError::NoMemory { window, error };
        let memory = Memory::of_user(engine, contents, PathHint::Auto).map_err(no_memory)?;
        // No peer knows of it before it is published.
        let described = memory.descriptors(engine).inspect_err(|_| memory.set_freed());
        let (mut descriptors, len) = (described.map_err(no_memory)?, contents.len() as u64);
        let count = descriptors.len().max(1);
        let taken = self.take_slots(&memory, count, len).inspect_err(|_| memory.set_freed());
        let (slots, start) = taken?;
        let crowded = slots.len() < count;
        if crowded {
            descriptors.clear();
        }
        let (memory, token) = (Arc::new(memory), Arc::new(Token(0)));
        // Without, messages reach it.
        let registered = self.register_region(&memory, start, len);
        let shared = token.clone();
        let region =
            OwnRegion { registered, len, slots, memory, descriptors, crowded, token: shared };
        self.publish(&mut regions.table(), start, region);
        Ok((token, start, len))
    }

    /// Slots for memory of so many extents that is to be attached, in pages of the directory; one
    /// if there are not as many. And its address.
    fn take_slots(
        &self,
        memory: &Memory,
        count: usize,
        len: u64,
    ) -> Result<(Vec<usize>, u64), RmaError> {
        let (window, regions) = (self.id(), self.regions("attach")?);
        let most = self.settings.hints.get(Hint::DynamicRegions).min(SLOTS_MAX as u64);
        let (slots, last, start) = {
            let mut table = regions.table();
            if !table.occupy(memory) {
                return Err(RmaError::AttachedTwice { window });
            }
            let slots = table.take_slots(count, most as usize);
            let Some(last) = slots.iter().copied().max() else {
                table.leave(memory);
                return Err(RmaError::TooManyRegions { window, limit: most as u32 });
            };
            let Some(start) = table.new_start(len) else {
                table.leave(memory);
                table.give_slots_back(&slots);
                return Err(RmaError::NoAddresses { window, len });
            };
            (slots, last, start)
        };
        let engine = &self.part.comm.inner.engine;
        self.part.add_page(last, engine).map_err(|error| {
            let mut table = regions.table();
            table.leave(memory);
            table.give_slots_back(&slots);
            RmaError::NoMemory { window, error }
        })?;
        Ok((slots, start))
    }

    /// Enters a region into the table and the directory.
    fn publish(&self, table: &mut RegionTable, start: u64, region: OwnRegion) {
        let slot = |number| self.part.slot(number).expect("the slot of a region is in a page");
        let (mut entry, extents) = (Entry { start, len: region.len, ..Entry::default() }, 1..);
        // From the last on: each names the next.
        let described = region.descriptors.iter().zip(&region.slots).rev();
        for ((descriptor, number), extents) in described.zip(extents) {
            entry = Entry { extents, descriptor: words(descriptor), ..entry };
            if *number != region.slot() {
                slot(*number).describe(&entry);
                entry.next = *number as u32;
            }
        }
        let own = slot(region.slot());
        table.by_start.insert(start, region);
        // Neighbours may look from here on.
        own.publish(&entry);
    }

    /// Takes a region out of the window, and gives its memory back as it is now. Local.
    ///
    /// Waits until operations that are under way there are done; later ones fail at their origin
    /// with [`RmaError::NotAttached`] (MPI 4.1, section 12.2.4).
    ///
    /// # Errors
    ///
    /// [`RmaError::WrongFlavor`]; [`RmaError::ForeignRegion`] if the handle is not of this window,
    /// at this rank; [`RmaError::PeerFailed`], [`RmaError::PeerLeft`] or [`RmaError::Timeout`] if a
    /// peer does not end its operation there: the region is attached then as before.
    pub fn detach<M: WindowMemory>(
        &self,
        attached: Attached<M>,
    ) -> Result<M, Refused<Attached<M>>> {
        match self.detach_at(&attached) {
            Ok(memory) => Ok(memory),
            Err(error) => Err(Refused { value: attached, error }),
        }
    }

    fn detach_at<M: WindowMemory>(&self, attached: &Attached<M>) -> Result<M, RmaError> {
        let regions = self.regions("detach")?;
        let start = attached.start;
        let (mut region, slot) = {
            let mut table = regions.table();
            table.named(attached.start, &attached.token).ok_or(self.foreign())?;
            let region = table.by_start.remove(&start).ok_or(self.foreign())?;
            let slot = self.part.slot(region.slot()).expect("the slot of a region is in a page");
            slot.withdraw();
            (region, slot)
        };
        // A rank that leaves in order is inside of nothing, or says so.
        let on = On::Holders(self.group(), None);
        let wait = Wait { recheck: Some(RECHECK), ..self.wait_on("a detach", on) };
        let unused = || slot.is_unused().then_some(());
        // wait: region
        if let Err(error) = self.engine().wait_until(wait, unused) {
            self.publish(&mut regions.table(), start, region);
            return Err(self.wait_failed(error));
        }
        // Only now, as it may not come to this: no transfer touches the memory afterwards.
        drop(region.registered.take());
        let memory = region.memory.rebuild(0, region.len as usize);
        let mut table = regions.table();
        table.leave(&region.memory);
        table.give_slots_back(&region.slots);
        drop(table);
        region.memory.set_freed();
        // The handle is of the type that was attached.
        memory.ok_or(self.foreign())
    }

    /// A region of this rank, to be loaded and stored; its displacements count from 0, in bytes.
    ///
    /// # Errors
    ///
    /// [`RmaError::ForeignRegion`] if the handle is not of this window, at this rank.
    pub fn region<'w, M>(&'w self, attached: &'w Attached<M>) -> Result<View<'w>, RmaError> {
        let table = self.regions("region")?.table();
        let region = table.named(attached.start, &attached.token).ok_or(self.foreign())?;
        // The handle is borrowed as long as the view, and no other names the region to `detach`.
        Ok(View::of_region(self, region, attached.start))
    }

    fn foreign(&self) -> RmaError {
        RmaError::ForeignRegion { window: self.id(), rank: self.rank() }
    }

    fn regions(&self, requested: &'static str) -> Result<&Regions, RmaError> {
        let flavor =
            RmaError::WrongFlavor { window: self.id(), requested, needed: "a dynamic window" };
        self.part.regions.as_ref().ok_or(flavor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::memory::control_block::STRIPES;
    use crate::memory::stripe::STRIPE;
    use crate::window::ADDRESSES;
    use crate::window::accumulate_tests::with_universe;
    use core::sync::atomic::AtomicU32;
    use core::sync::atomic::Ordering::Relaxed;

    /// While an origin operates on a region it is not taken away, and a detach that gives up leaves
    /// it attached. S-L6
    #[test]
    fn detach_waits_for_those_inside_and_takes_nothing_if_it_gives_up() {
        let mut config = Config::default();
        config.wait_timeout = Some(Duration::ZERO);
        with_universe(config, |universe| {
            let window = universe.world().window(0, 1).create_dynamic().unwrap();
            let attached = window.attach(vec![7u64; 4]).unwrap();
            let address = attached.address();
            let (inside, pin) = window.part.attached(address, 32).unwrap();
            let not_done = window.detach(attached).unwrap_err();
            assert!(matches!(not_done.error, RmaError::Timeout { .. }), "{}", not_done.error);
            let attached = not_done.value;
            assert_eq!(attached.address(), address);
            assert_eq!(window.region(&attached).unwrap().load::<u64>(24), Ok(7));
            assert!(window.part.attached(address, 32).is_some(), "others reach it again");
            inside.write(&[1; 32]);
            drop(pin);
            assert_eq!(window.detach(attached).unwrap(), [0x0101_0101_0101_0101; 4]);
            assert!(window.part.attached(address, 1).is_none());
            window.free().unwrap();
        });
    }

    /// Memory that a free has given back is its user's: no message is still being served there.
    #[test]
    fn free_waits_for_those_inside() {
        let mut config = Config::default();
        config.wait_timeout = Some(Duration::ZERO);
        with_universe(config, |universe| {
            let mut memory = [0u64; 4];
            // SAFETY: `memory` is not touched before the window is gone.
            let raw = unsafe { crate::RawPart::new(memory.as_mut_ptr().cast(), 32) };
            for inside in [true, false] {
                let window = universe.world().window(0, 1).create_dynamic().unwrap();
                let part = window.part.clone();
                let address = window.attach(raw).unwrap().address();
                let served = part.span(address, 32);
                if inside {
                    let refused = window.free().unwrap_err();
                    assert!(matches!(refused.error, RmaError::Timeout { .. }), "{refused}");
                    assert!(refused.value.is_none());
                } else {
                    drop(served);
                    window.free().unwrap();
                    assert!(part.span(address, 1).is_none(), "nor begins");
                }
            }
        });
    }

    /// Another thread may have detached a region, and attached one in its slot, between any two
    /// steps of a look-up. S-L6
    #[test]
    fn a_look_up_pins_the_region_that_it_found() {
        with_universe(Config::default(), |universe| {
            let window = universe.world().window(0, 1).create_dynamic().unwrap();
            let stop = core::sync::atomic::AtomicBool::new(false);
            let address = core::sync::atomic::AtomicU64::new(0);
            let (found, looks) = (AtomicU32::new(0), if cfg!(miri) { 20 } else { 20_000 });
            let mut wrong = None;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        let at = address.load(Relaxed);
                        if let Some((inside, _pin)) = window.part.attached(at, 8) {
                            inside.write(&at.to_ne_bytes());
                            found.fetch_add(1, Relaxed);
                        }
                    }
                });
                // Where they share a CPU, the other one gets it only if it is given away.
                while wrong.is_none() && found.load(Relaxed) < looks {
                    let attached = window.attach(vec![0u64; 1]).unwrap();
                    let at = attached.address();
                    address.store(at, Relaxed);
                    std::thread::yield_now();
                    let came = window.detach(attached).unwrap()[0];
                    wrong = (came != 0 && came != at).then_some((came, at));
                }
                stop.store(true, Relaxed);
            });
            assert_eq!(wrong, None, "bytes for the first came to the second");
            window.free().unwrap();
        });
    }

    /// Addresses are not given out twice, also when there are none left. S-L6
    #[test]
    fn addresses_do_not_wrap() {
        with_universe(Config::default(), |universe| {
            let window = universe.world().window(0, 1).create_dynamic().unwrap();
            let first = window.attach(vec![1u8; 100]).unwrap();
            let last = ADDRESSES - (1 << 20);
            let table = || window.part.regions.as_ref().unwrap().table();
            let aligned = last - last % (STRIPE * STRIPES as u64);
            table().set_next_start(aligned);
            let refused = window.attach(vec![2u8; 1 << 20]).unwrap_err();
            let none = matches!(refused.error, RmaError::NoAddresses { len: 0x10_0000, .. });
            assert!(none && refused.value == [2; 1 << 20], "{}", refused.error);
            let small = window.attach(vec![3u8; 100]).unwrap();
            assert_eq!(small.address(), aligned);
            let taken = core::iter::from_fn(|| window.attach(vec![4u8; 100]).ok());
            let taken: Vec<_> = taken.map(|attached| attached.address()).collect();
            assert!(taken.is_sorted() && taken.iter().all(|start| start + 100 < ADDRESSES));
            assert!(window.part.attached(first.address(), 100).is_some());
            window.free().unwrap();
        });
    }

    /// A rank that counts from the beginning of a region takes the same locks. S-H4
    #[test]
    fn regions_begin_with_the_first_stripe() {
        with_universe(Config::default(), |universe| {
            let window = universe.world().window(0, 1).create_dynamic().unwrap();
            for len in [1, 0, STRIPE as usize, 100] {
                let address = window.attach(vec![0u8; len]).unwrap().address();
                assert!(address > 0 && address.is_multiple_of(STRIPE * STRIPES as u64));
            }
            window.free().unwrap();
        });
    }
}
