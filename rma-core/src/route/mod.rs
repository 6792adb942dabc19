//! Where an operation goes: decided here, once for each, and told from here by `explain` and
//! `path`.
//!
//! Load and store need nothing of the target and are the fastest, so they are taken wherever the
//! part can be mapped. Memory that its owner brought along and that stays where it is, is reached
//! by copies of the operating system, if a probe showed that those are allowed. What a device moves
//! needs nothing of the target, either. Messages always work; the target serves them.
mod device;
mod region;

pub(crate) use region::PinnedRegion;

use crate::error::RmaError;
use crate::memory::target::{Permit, Span, held};
use crate::operation::{Action, Operation, Side};
use crate::rank::{Rank, WorldRank};
use crate::transport::{Cma, Count};
use crate::window::{Counts, DeviceRoute, Where, Window};
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;
use region::PeerPin;

/// How operations reach a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// By load and store of the origin, in memory mapped here.
    LoadStore,
    /// Put and get by copies of the operating system between the two processes, the others by
    /// messages.
    Cma,
    /// By a device of the origin, as far as it goes, the others by messages.
    Device,
    /// By active messages, which the target serves.
    Messages,
    /// As each attached region allows: load and store for what was given away, as
    /// [`Cma`](Self::Cma) or [`Messages`](Self::Messages) for raw memory.
    ByRegion,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LoadStore => "load and store",
            Self::Cma => "copies between processes, and messages",
            Self::Device => "a device, and messages",
            Self::Messages => "messages",
            Self::ByRegion => "what each attached region allows",
        })
    }
}

/// The way of one operation. S-G1
pub(crate) enum Route<'w> {
    /// Nothing is to be done: no target, or no bytes.
    Null,
    /// By load and store, in a part.
    Mapped(Span<'w>),
    /// By load and store, in a region of a dynamic window. S-L4
    Region(PinnedRegion<'w>),
    /// By a copy of the operating system.
    Cma(CmaRoute<'w>),
    /// By transfers of a device.
    Device(DeviceRoute),
    /// By messages to the target.
    Messages(WorldRank),
}

/// Bytes in memory of another process, one behind the other, until this is dropped.
pub(crate) struct CmaRoute<'w> {
    pub(crate) cma: &'w dyn Cma,
    pub(crate) owner: WorldRank,
    /// In the owner's process.
    pub(crate) address: u64,
    /// Of memory that could be detached.
    _pin: Option<PeerPin<'w>>,
}

impl Counts {
    pub(super) fn count(&self, route: &Route<'_>) {
        let count = match route {
            Route::Null => return,
            Route::Mapped(_) | Route::Region(_) => &self.load_store,
            Route::Cma(_) => &self.cma,
            Route::Device(_) => &self.device,
            Route::Messages(_) => &self.messages,
        };
        count.fetch_add(1, Relaxed);
    }
}

impl Window {
    /// How operations reach `target`; `None` if there is no such rank.
    pub fn path(&self, target: Rank) -> Option<Path> {
        (target.0 < self.ranks()).then(|| self.path_to(target))
    }

    fn path_to(&self, target: Rank) -> Path {
        if self.targets.near(target).is_none() {
            if self.device.is_ok() { Path::Device } else { Path::Messages }
        } else if self.part.regions.is_some() {
            Path::ByRegion
        } else if self.loads(target) {
            Path::LoadStore
        } else if self.cma_with(target).is_some() {
            Path::Cma
        } else {
            Path::Messages
        }
    }

    /// Copies to and from the process that has a target's part, where they are allowed. A part
    /// may lie in memory of another rank.
    fn cma_with(&self, target: Rank) -> Option<(&dyn Cma, WorldRank)> {
        let owner = self.part.comm.world_rank(self.peers.get(target)?.owner);
        Some((self.engine().transport.cma_with(owner)?, owner))
    }

    /// The process that has a target's part, how long that is, and which of its bytes an operation
    /// is about, counted from its beginning. Waits for the post of a target in a start epoch.
    /// S-G10
    pub(crate) fn locate<'a>(
        &self,
        operation: &Operation<'a>,
    ) -> Result<(WorldRank, u64, Side<'a>), RmaError> {
        let target = operation.target;
        let world = self.group().world_rank(target).ok_or_else(|| self.no_such_rank(target))?;
        self.check_permit(operation)?;
        let (size, disp_unit) = self.part_of((target, world), operation.if_trying())?;
        Ok((world, size, self.place(operation, size, disp_unit)?))
    }

    /// The way of an operation, whose target exists, and the bytes that it is about.
    pub(crate) fn route<'a>(
        &self,
        operation: &Operation<'a>,
    ) -> Result<(Route<'_>, Side<'a>), RmaError> {
        let target = operation.target;
        if target == Rank::NULL {
            return Ok((Route::Null, operation.there));
        }
        let (world, size, there) = self.locate(operation)?;
        let Some((low, high)) = there.hull() else { return Ok((Route::Null, there)) };
        // `place` has seen that both are positions in a part.
        let (low, len) = (low as u64, (high - low) as u64);
        let path = self.path_to(target);
        let dense =
            matches!((operation.there, operation.from), (Side::Bytes { .. }, Side::Bytes { .. }));
        let copies = dense && matches!(operation.action, Action::Put | Action::Get);
        let route = match path {
            Path::LoadStore => {
                self.reach(target)?;
                Route::Mapped(self.loaded_part(target, size)?)
            }
            Path::ByRegion => match self.pin(target, (low, len), operation.tries)? {
                (Where::Here(memory), start, pin) => {
                    Route::Region(PinnedRegion::new(memory, start, pin))
                }
                (Where::There(base), start, pin) if copies => {
                    let owner = self.part.comm.world_rank(target);
                    let cma = self.engine().transport.cma_with(owner);
                    let address = base + (low - start);
                    let route = |cma| CmaRoute { cma, owner, address, _pin: Some(pin) };
                    cma.map_or(Route::Messages(world), |cma| Route::Cma(route(cma)))
                }
                (Where::There(_) | Where::Unasked, ..) => Route::Messages(world),
            },
            Path::Cma if copies => {
                let base = self.peers.get(target).map(|peer| peer.address);
                let route = |((cma, owner), base): (_, u64)| {
                    let address = base + low;
                    CmaRoute { cma, owner, address, _pin: None }
                };
                let way = self.cma_with(target).zip(base).map(route);
                way.map_or(Route::Messages(world), Route::Cma)
            }
            Path::Device => {
                let runs = (there.bytes().unwrap_or(0), there.runs());
                let trying = operation.if_trying();
                let does = self.device_does(operation.action, world, runs)
                    && trying.map_or(Ok(true), |it| self.device_does_at_once(it, world, runs))?;
                let (to, range) = ((target, world), (low, len));
                let device = if does { self.device_route(to, range, trying)? } else { None };
                device.map_or(Route::Messages(world), Route::Device)
            }
            Path::Cma | Path::Messages => Route::Messages(world),
        };
        self.counts.count(&route);
        if self.counts_all || matches!(route, Route::Cma(_) | Route::Device(_) | Route::Messages(_))
        {
            self.engine().counters.add(Count::Operations, 1);
        }
        Ok((route, there))
    }

    /// Fails unless the epoch of an operation may reach its target.
    fn check_permit(&self, operation: &Operation<'_>) -> Result<(), RmaError> {
        let target = operation.target;
        match operation.permit {
            Permit::All => Ok(()),
            Permit::Started if self.held(target) == held::NOT => self.admit_cold(operation),
            Permit::Locked if !held::is_locked(self.held(target)) => {
                Err(RmaError::NotLocked { window: self.id(), target })
            }
            Permit::Started | Permit::Locked => Ok(()),
        }
    }

    /// The bytes of an operation at their place in the target's part, if every one of them lies
    /// inside. S-G8
    fn place<'a>(
        &self,
        operation: &Operation<'a>,
        size: u64,
        disp_unit: u32,
    ) -> Result<Side<'a>, RmaError> {
        let (window, Operation { target, disp, there, .. }) = (self.id(), operation);
        let (target, disp) = (*target, *disp);
        let offset = disp.checked_mul(u64::from(disp_unit));
        let placed = offset.and_then(|offset| there.placed(offset));
        // Without bytes it is a place all the same.
        let start = i128::from(placed.map_or(u64::MAX, |placed| placed.start()));
        let (low, high) = placed.and_then(|placed| placed.hull()).unwrap_or((start, start));
        if let Some(placed) = placed.filter(|_| low >= 0 && high <= i128::from(size)) {
            return Ok(placed);
        }
        Err(match there {
            Side::Bytes { len, .. } => {
                RmaError::OutOfRange { window, target, disp, disp_unit, len: *len, size }
            }
            Side::Layout(layout) => {
                let far = || layout.starting_at(u64::MAX).wide_span().unwrap_or((start, start));
                let (low, high) = if placed.is_some() { (low, high) } else { far() };
                let (low, high) = (narrow(low), narrow(high));
                RmaError::LayoutOutOfRange { window, target, disp, disp_unit, low, high, size }
            }
        })
    }
}

/// As it stands in an error.
pub(crate) fn narrow(position: i128) -> i64 {
    position.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}
