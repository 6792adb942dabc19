//! What the ranks of a node tell each other of their parts.
use crate::collective::{Near, Node};
use crate::config::{Hint, PathHint, RequestedPart};
use crate::create::WindowBuilder;
use crate::create::material::{Made, Material};
use crate::create::plan::{NO_RANK, Plan, Proposal, Wish};
use crate::error::{CollectiveError, WindowError};
use crate::memory::control_block::Agreement;
use crate::object::{Flavor, NO_OBJECT};
use crate::rank::Rank;
use crate::transport::{Descriptor, EXTENTS_MAX};
use crate::window::{BeforeFirst, Extents, PeerPart, Peers, kind};
use bytemuck::{Pod, Zeroable};
use core::sync::atomic::Ordering::Relaxed;
use std::sync::OnceLock;

/// What each rank says of its part.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Share {
    /// How to map its first extent.
    first: [u8; Descriptor::LEN],
    block: [u8; Descriptor::LEN],
    pub(super) size: u64,
    /// Where the part lies in this process.
    address: u64,
    /// What is counted in the block already.
    pub(super) before: BeforeFirst,
    pub(super) disp_unit: u32,
    /// Extents to map, none if the part stays where its user put it; or [`NOT_MADE`], or
    /// [`NOT_YET`].
    extents: u32,
    /// Of the window: a rank that makes several at the same time may be at another.
    id: u64,
}

/// Instead of a number of extents: there was no making it.
const NOT_MADE: u32 = u32::MAX;
/// Instead of a number of extents: the rank makes it when it knows what the others want.
const NOT_YET: u32 = u32::MAX - 1;

/// A further extent of a part.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Further {
    data: [u8; Descriptor::LEN],
    /// Of the window.
    id: u64,
}

/// What a rank said.
pub(super) struct ToldOfPart {
    pub(super) rank: Rank,
    pub(super) share: Share,
    /// Its extents behind the first.
    further: Vec<Descriptor>,
}

impl Share {
    /// As [`new`](Self::new), of a part that is made later if there is none.
    pub(super) fn early(mine: Option<&Result<Made, WindowError>>, id: u64, wish: &Wish) -> Self {
        let share = Self::new(mine.and_then(|made| made.as_ref().ok()), id, wish);
        Self { extents: if mine.is_some() { share.extents } else { NOT_YET }, ..share }
    }

    pub(super) fn new(mine: Option<&Made>, id: u64, wish: &Wish) -> Self {
        let Wish { size, disp_unit, .. } = *wish;
        let share = Self { id, size, disp_unit, extents: NOT_MADE, ..Self::zeroed() };
        let Some(Made { memory, data, block }) = mine else { return share };
        let words = block.get();
        let before = BeforeFirst {
            arrivals: words.arrivals().load(Relaxed),
            agreements: [Agreement::Free, Agreement::Seal]
                .map(|on| words.agreements(on).load(Relaxed)),
        };
        let address = memory.mapping().base.expose_provenance() as u64;
        let first = data.first().map_or([0; Descriptor::LEN], |first| first.0);
        // No more than the plan says, which knows of the material.
        let (extents, block) = (data.len() as u32, block.descriptor().0);
        Self { first, block, address, before, extents, ..share }
    }

    /// Whether the part is there.
    pub(super) fn is_made(&self) -> bool {
        !matches!(self.extents, NOT_MADE | NOT_YET)
    }

    /// Whether it is of that window, and of no more extents than the ranks agreed on.
    fn is_sound(&self, id: u64, most: u64) -> bool {
        self.id == id && (!self.is_made() || u64::from(self.extents) <= most)
    }
}

impl ToldOfPart {
    fn new(rank: Rank, share: Share) -> Self {
        Self { rank, share, further: Vec::new() }
    }

    /// Whether no other rank can map it.
    fn stays(&self) -> bool {
        !(1..NOT_YET).contains(&self.share.extents)
    }

    /// All its extents.
    pub(super) fn extents(&self) -> Extents {
        let first = Descriptor(self.share.first);
        match self.further.as_slice() {
            _ if self.stays() => Extents::None,
            [] => Extents::One(first),
            further => Extents::Several([&[first], further].concat()),
        }
    }
}

/// What a rank knows after [one meeting](WindowBuilder::meet_once).
pub(super) struct MetOnce {
    pub(super) plan: Plan,
    /// This rank's part, if it made it before.
    pub(super) made: Option<Result<Made, WindowError>>,
    /// What all said of theirs, if all have made them or failed.
    pub(super) shares: Option<Vec<ToldOfPart>>,
}

impl WindowBuilder<'_> {
    /// The id of the window, if it is known before the ranks meet, and what they tell each other
    /// then fits one meeting.
    pub(super) fn known_id(&self) -> Option<u64> {
        self.comm.collective_block().and_then(Near::take_next_window)
    }

    /// Does at one meeting what takes two where parts are large, or made of something that not all
    /// have: agrees on a plan, and exchanges what ranks say of parts that they have made already.
    /// What was made for no window is given back. S-B7
    pub(super) fn meet_once(
        &mut self,
        (id, material): (u64, &Material<'_>),
        wish: &Wish,
        checked: Result<(), WindowError>,
    ) -> Result<MetOnce, WindowError> {
        let made = checked.is_ok().then(|| self.make_early(material, wish)).flatten();
        let share = Share::early(made.as_ref(), id, wish);
        let mine = self.proposal(wish, checked.is_ok(), share);
        let give_back = || made.iter().flatten().for_each(Made::give_back);
        let mut all: Option<Plan> = None;
        let mut shares = Vec::with_capacity(self.comm.size() as usize);
        let each = |told: &Proposal| {
            let rank = Rank(shares.len() as u32);
            let plan = Plan::of(rank, id, told);
            match &mut all {
                Some(all) => all.add(&plan),
                None => all = Some(plan),
            }
            shares.push(ToldOfPart::new(rank, told.share));
        };
        self.comm.share_near_each(kind::PROPOSAL, mine, each).inspect_err(|error| {
            // All pass a meeting or none does: others wait for this rank with the same id, and
            // have not read what it told.
            if !matches!(error, CollectiveError::Malformed { .. }) {
                give_back();
                self.comm.set_next_window(id);
            }
        })?;
        // This rank is among them.
        let all = all.unwrap_or_else(|| Plan::of(self.comm.rank(), NO_OBJECT, &mine));
        self.comm.set_next_window(all.next);
        let plan = self.check_plan(wish, checked, all).inspect_err(|error| {
            made.iter().flatten().for_each(|made| made.give_up(error));
        })?;
        let most = plan.extents.min(EXTENTS_MAX as u64);
        if let Some(told) = shares.iter().find(|told| !told.share.is_sound(id, most)) {
            return Err(malformed(told.rank));
        }
        let is_complete = shares.iter().all(|told| told.share.extents != NOT_YET);
        Ok(MetOnce { plan, shares: is_complete.then_some(shares), made })
    }

    /// What the ranks of this node say, in rank order. Fails if a rank on another node has failed.
    pub(super) fn exchange(
        &self,
        mine: &Result<Made, WindowError>,
        plan: &Plan,
        wish: &Wish,
        requested: Option<RequestedPart<'_>>,
    ) -> Result<Vec<ToldOfPart>, WindowError> {
        let (id, most) = (plan.id, plan.extents.min(EXTENTS_MAX as u64));
        let share = Share::new(mine.as_ref().ok(), id, wish);
        let near = self.comm.share_near(kind::SHARE, share)?;
        let mut near: Vec<ToldOfPart> = self
            .comm
            .near_ranks()
            .zip(near)
            .map(|(rank, told)| ToldOfPart::new(rank, told))
            .collect();
        let unsound =
            |told: &&ToldOfPart| told.share.extents == NOT_YET || !told.share.is_sound(id, most);
        if let Some(told) = near.iter().find(unsound) {
            return Err(malformed(told.rank));
        }
        for number in 1..most as u32 {
            self.exchange_further(mine, id, number, &mut near)?;
        }
        let failed = near.iter().any(|told| told.share.extents == NOT_MADE);
        let overlap = match requested.filter(|_| failed) {
            Some(requested) => self.find_overlap(&requested)?,
            None => None,
        };
        if matches!(self.comm.inner.node, Node::Whole) {
            return overlap.map_or(Ok(near), Err);
        }
        // Of ranks on other nodes, it matters only whether they failed.
        let failed = if mine.is_err() { u64::from(self.comm.rank()) } else { NO_RANK };
        match self.comm.agree(kind::FAILED, failed, u64::min)? {
            NO_RANK => Ok(near),
            _ if overlap.is_some() => overlap.map_or(Ok(near), Err),
            failed => {
                mine.as_ref().map_err(Clone::clone)?;
                Err(WindowError::Peer(Rank(failed as u32)))
            }
        }
    }

    /// Completes what ranks with so many extents and more have said. The ranks of all nodes come
    /// here, as often as the plan says.
    fn exchange_further(
        &self,
        mine: &Result<Made, WindowError>,
        id: u64,
        number: u32,
        near: &mut [ToldOfPart],
    ) -> Result<(), WindowError> {
        let mine = mine.as_ref().ok().and_then(|made| made.data.get(number as usize));
        let data = mine.map_or([0; Descriptor::LEN], |data| data.0);
        let further = self.comm.share_near(kind::EXTENT, Further { data, id })?;
        for (told, further) in near.iter_mut().zip(further) {
            if further.id != id {
                return Err(malformed(told.rank));
            }
            if (number + 1..NOT_YET).contains(&told.share.extents) {
                told.further.push(Descriptor(further.data));
            }
        }
        Ok(())
    }

    /// What every rank made, if all did and the path that was asked for leads there.
    pub(super) fn check_shares(
        &mut self,
        flavor: Flavor,
        shares: Vec<ToldOfPart>,
    ) -> Result<Vec<ToldOfPart>, WindowError> {
        if let Some(told) = shares.iter().find(|told| told.share.extents == NOT_MADE) {
            return Err(WindowError::Peer(told.rank));
        }
        match self.check_path(flavor, &shares) {
            // All ranks come here, or none.
            Err(WindowError::NoPath { why, .. }) if self.is_wish(Hint::Path)? => {
                self.leave(Hint::Path, flavor, why);
            }
            checked => checked?,
        }
        Ok(shares)
    }

    /// Whether the path that was asked for leads to all ranks. They agree on the answer.
    fn check_path(&self, flavor: Flavor, shares: &[ToldOfPart]) -> Result<(), WindowError> {
        let path = self.hints.path();
        let shared = matches!(self.comm.inner.node, Node::Whole);
        let no = |path, why| Err(WindowError::NoPath { path, why });
        let engine = &self.comm.inner.engine;
        let stays = shares.iter().any(ToldOfPart::stays);
        match path {
            PathHint::LoadStore if !shared => no("load_store", "ranks that do not share memory"),
            PathHint::LoadStore if flavor == Flavor::Dynamic => no("load_store", "attached memory"),
            PathHint::LoadStore if stays => no("load_store", "memory of the user that stays there"),
            PathHint::Cma if flavor == Flavor::Dynamic => no("cma", "attached memory"),
            PathHint::Device if engine.transport.remote.is_none() => {
                no("device", "a transport without a device")
            }
            PathHint::Cma => {
                let reaches = |peer| engine.transport.cma_with(peer).is_some();
                let mine = u64::from(shared && self.comm.group().members().all(reaches));
                match self.comm.agree(kind::FAILED, mine, u64::min)? {
                    1 => Ok(()),
                    _ => no("cma", "ranks whose memory the system does not let others copy"),
                }
            }
            PathHint::Auto | PathHint::LoadStore | PathHint::Messages | PathHint::Device => Ok(()),
        }
    }
}

fn malformed(from: Rank) -> WindowError {
    CollectiveError::Malformed { what: "making a window", from }.into()
}

/// What it takes to map the parts of those ranks. `needed`: bytes that each allocates, if these are
/// directories.
pub(super) fn peers(shares: &[ToldOfPart], material: &Material<'_>, needed: u64) -> Peers {
    let one_piece = material.is_one_piece().then(|| shares.first()).flatten();
    let directory = matches!(material, Material::Directory).then_some(needed);
    let mut next = 0u64;
    let mut peer = |told: &ToldOfPart| {
        let (offset, share) = (next, &told.share);
        // Checked against the mapping where it is used: no peer is trusted to say what is true.
        next = one_piece.map_or(0, |_| offset.saturating_add(share.size));
        let has = one_piece.unwrap_or(told);
        PeerPart {
            owner: has.rank,
            data: has.extents(),
            offset,
            size: directory.unwrap_or(share.size),
            disp_unit: share.disp_unit,
            address: has.share.address.saturating_add(offset),
            block: Descriptor(share.block),
            mapped: OnceLock::new(),
        }
    };
    let first = shares.first().map_or(0, |told| told.rank.0);
    let last = shares.last().map_or(0, |told| told.rank.0);
    let mut all: Vec<Option<PeerPart>> = Vec::with_capacity((last - first) as usize + 1);
    for told in shares {
        all.resize_with((told.rank.0 - first) as usize, || None);
        all.push(Some(peer(told)));
    }
    Peers { first: Rank(first), all: all.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::ImportError;
    use crate::window::accumulate_tests::with_near;

    /// What a peer says is of another window, or of extents that no rank would wait for.
    #[test]
    fn shares_are_held_against_the_plan() {
        let sound = |id, extents| Share { id, extents, ..Share::zeroed() }.is_sound(7, 3);
        assert!([0, 1, 3, NOT_MADE, NOT_YET].into_iter().all(|extents| sound(7, extents)));
        assert!([4, 64, NOT_YET - 1].into_iter().all(|extents| !sound(7, extents)));
        assert!(!sound(8, 1) && !sound(8, NOT_MADE));
    }

    /// Sizes are what peers say: parts that lie outside of what there is have an end that says so.
    #[test]
    fn offsets_are_sums_that_do_not_wrap() {
        let share = |size| Share { size, address: 64, ..Share::zeroed() };
        let shares = [share(8), share(u64::MAX - 4), share(16), share(16)];
        let told = |(rank, share)| ToldOfPart::new(rank, share);
        let shares: Vec<ToldOfPart> = (0..).map(Rank).zip(shares).map(told).collect();
        let all = peers(&shares, &Material::OnePiece, 0);
        let all: Vec<_> = all.iter().map(|(_, peer)| peer).collect();
        let places: Vec<_> = all.iter().map(|peer| (peer.offset, peer.size)).collect();
        let end = u64::MAX;
        assert_eq!(places, [(0, 8), (8, end - 4), (end, 16), (end, 16)]);
        assert!(all.iter().skip(1).all(|peer| peer.offset.checked_add(peer.size).is_none()));
        assert_eq!(all[2].address, end);
    }

    /// A part is of memory that the sizes of all made up, and no longer, whatever they say after.
    #[test]
    fn a_part_beyond_the_memory_of_all_is_refused() {
        with_near(|universe| {
            let (mut builder, material) = (universe.world().window(8, 8), Material::OnePiece);
            for (size, fits) in [(64, true), (65, false), (u64::MAX, false)] {
                let (flavor, room) = (Flavor::Shared, (u64::MAX, "none"));
                let (needed, extents, disp_unit) = (64, 1, 8);
                let durable = false;
                let wish = Wish { flavor, size: 64, disp_unit, needed, extents, durable, room };
                let plan = builder.agree(&wish, Ok(())).unwrap();
                let mine = builder.make_part(&plan, &material, &wish, 0);
                let shares = builder.exchange(&mine, &plan, &wish, None).unwrap();
                let (comm, wish) = (universe.world().internal(plan.id), Wish { size, ..wish });
                let plan = (&plan, &wish);
                match builder.assemble(comm, plan, &material, mine.unwrap(), &shares) {
                    Ok(window) => window.free().unwrap(),
                    Err(WindowError::Import(ImportError::Malformed(_))) if !fits => continue,
                    Err(error) => panic!("{size}: {error}"),
                }
                assert!(fits, "{size} bytes of 64");
            }
        });
    }
}
