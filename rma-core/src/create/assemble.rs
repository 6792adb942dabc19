//! The window, of what the ranks have made and told each other.
use crate::collective::{Communicator, Node};
use crate::config::{Hint, PathHint};
use crate::create::WindowBuilder;
use crate::create::material::{Made, Material};
use crate::create::plan::{Plan, Wish};
use crate::create::share::{ToldOfPart, peers};
use crate::error::WindowError;
use crate::memory::accumulate::{self, Integers};
use crate::memory::bias::Note;
use crate::memory::target::Tables;
use crate::object::{Flavor, WindowId};
use crate::rank::Rank;
use crate::transport::ImportError;
use crate::window::{
    ADDRESSES, ByMessage, Counts, Door, EpochState, Far, GlobalLock, Known, Locks, NodePool, Part,
    PeerPart, Peers, Registered, Settings, Window,
};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::Arc;

/// Bytes of the largest integer that the machine combines atomically: what needs no lock.
const ONE_ELEMENT: u64 = 8;

impl WindowBuilder<'_> {
    /// `comm` is the window's own.
    pub(super) fn assemble(
        &self,
        comm: Communicator,
        (plan, wish): (&Plan, &Wish),
        material: &Material<'_>,
        made: Made,
        shares: &[ToldOfPart],
    ) -> Result<Window, WindowError> {
        let near = if self.is_apart() { &[] } else { shares };
        let peers = peers(near, material, wish.needed);
        let offset = peers.get(self.comm.rank()).map_or(0, |peer| peer.offset);
        let Made { memory, block, .. } = made;
        // The sum of what peers said.
        if offset.checked_add(wish.size).is_none_or(|end| end > memory.mapping().len as u64) {
            return Err(ImportError::Malformed(self.comm.world_rank(Rank(0))).into());
        }
        let (mut targets, regions) = (self.targets(&peers), material.regions());
        let far = if regions.is_some() { Some((ADDRESSES, 1)) } else { plan.symmetric() };
        let mut part = Part {
            comm,
            id: WindowId(plan.id),
            registered: Registered::default(),
            memory,
            offset,
            size: wish.size,
            disp_unit: wish.disp_unit,
            integers: Integers::ByAtomics,
            biased: false,
            block,
            signals: ByMessage::new(self.is_together(), self.comm.size()),
            locks: Locks::default(),
            together: self.is_together(),
            regions,
            door: Door::new(),
            inside_peers: AtomicU32::new(0),
            epoch: EpochState::default(),
            marks: targets.marks(),
            far: Arc::new(Far::new(far)),
        };
        let device = self.agree_device(&part, plan, wish.flavor)?;
        // No device knows a lock or looks at a bias.
        if device.is_err() {
            self.choose_combining(&mut part);
        }
        if !part.biased {
            targets.set_bias_of_all(Note::shared(part.integers));
        }
        let part = Arc::new(part);
        let window = Window {
            targets,
            rank: self.comm.rank(),
            far: part.far.clone(),
            settings: Settings::new(wish.flavor, &self.hints, &part.memory, plan.durable != 0),
            part,
            all_loaded: self.is_loaded(wish.flavor, &peers),
            peers,
            nodes: NodePool::default(),
            global_lock: GlobalLock::default(),
            barriers: AtomicU64::new(0),
            agreements: Default::default(),
            before: shares[0].share.before,
            known: Known::default(),
            together: self.is_together(),
            device,
            path: self.hints.path(),
            counts: Counts::default(),
            counts_all: self.hints.is_set(Hint::Count),
        };
        self.open(window)
    }

    /// What combines elements, where CPUs do. All ranks of a node come to the same answer: the hint
    /// is checked, and their CPUs are the same.
    fn choose_combining(&self, part: &mut Part) {
        if self.hints.get(Hint::AccumulateGranularity) > ONE_ELEMENT {
            part.integers = Integers::ByLock;
        }
        part.biased = self.comm.inner.engine.transport.shared.fences_near();
        // Where many are combined at once beside atomics, no lock makes that faster.
        if part.biased && part.integers == Integers::ByAtomics && !accumulate::combines_at_once() {
            part.integers = Integers::AsTheyCome;
        }
    }

    /// Lets messages of the window in.
    fn open(&self, window: Window) -> Result<Window, WindowError> {
        let engine = &self.comm.inner.engine;
        window.map_own();
        engine.own_windows().add(window.id().0, &window.part);
        engine.count_windows(1);
        if engine.has_left() {
            window.part.epoch.set_left();
        }
        // No message may come before it is registered.
        let asked = window.settings.durable;
        if window.part.signals.is_used() || !window.all_loaded || asked {
            self.comm.meet()?;
        }
        if let Some(tell) = engine.config.on_window.filter(|_| self.comm.rank() == Rank(0)) {
            tell(&window.explain());
        }
        Ok(window)
    }

    /// The tables of the ranks that are reached by load and store.
    fn targets(&self, peers: &Peers) -> Tables {
        let near = !self.is_apart() && !self.hints.path().is_far();
        let peers_near = if near { &peers.all[..] } else { &[] };
        let unit = |peer: &Option<PeerPart>| peer.as_ref().map(|peer| peer.disp_unit);
        Tables::new(peers.first, peers_near.iter().map(unit))
    }

    /// Whether this rank shares memory with no rank, itself included.
    pub(super) fn is_apart(&self) -> bool {
        matches!(self.comm.inner.node, Node::Apart)
    }

    /// Whether control words of all ranks are reached by load and store.
    pub(super) fn is_together(&self) -> bool {
        matches!(self.comm.inner.node, Node::Whole) && !self.hints.path().is_far()
    }

    /// Whether operations on every target go by load and store.
    fn is_loaded(&self, flavor: Flavor, peers: &Peers) -> bool {
        let by_address = flavor == Flavor::Dynamic || self.hints.path() == PathHint::Cma;
        self.is_together() && !by_address && !peers.iter().any(|(_, peer)| PeerPart::stays(peer))
    }
}
