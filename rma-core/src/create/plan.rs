//! What the ranks agree on before any of them makes a part.
use crate::config::{Hint, Hints};
use crate::create::WindowBuilder;
use crate::create::share::Share;
use crate::element::Op;
use crate::error::{CollectiveError, WindowError};
use crate::object::{Flavor, NO_OBJECT};
use crate::rank::Rank;
use crate::window::kind;
use bytemuck::{Pod, Zeroable};

/// Parts of at least this many bytes are worth asking how much memory there is.
pub(super) const LARGE: u64 = 1 << 20;
/// No rank.
pub(super) const NO_RANK: u64 = u64::MAX;

/// What this rank wants.
pub(super) struct Wish {
    pub(super) flavor: Flavor,
    /// Bytes of its part.
    pub(super) size: u64,
    pub(super) disp_unit: u32,
    /// Bytes that it has to allocate, by itself.
    pub(super) needed: u64,
    /// Extents of what it brought along, if that has several.
    pub(super) extents: u64,
    /// Whether it may outlive the job.
    pub(super) durable: bool,
    /// And those that it can have.
    pub(super) room: PartRoom,
}

/// What ranks agree on before any of them allocates.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Plan {
    /// Of the window; the first rank chooses.
    pub(super) id: u64,
    /// Of the window after this one, as `id`.
    pub(super) next: u64,
    /// The first rank of those whose plan this is.
    first: u64,
    pub(super) total: u64,
    /// What the rank that can have the least can have.
    pub(super) available: u64,
    /// That rank.
    pub(super) shortest: u64,
    pub(super) size_min: u64,
    size_max: u64,
    unit_min: u64,
    unit_max: u64,
    /// Of the rank whose part has the most.
    pub(super) extents: u64,
    /// Whether the part of any rank may outlive the job, 1 for yes.
    pub(super) durable: u64,
    /// The lowest rank whose arguments are wrong.
    wrong: u64,
    /// Of the hints that must be the same everywhere.
    hints_min: u64,
    hints_max: u64,
    flavor_min: u64,
    flavor_max: u64,
}

/// What a rank tells the others of what it wants; its size and unit are in its share.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Proposal {
    /// For the window after this one.
    next: u64,
    needed: u64,
    available: u64,
    extents: u64,
    hints: u64,
    flavor: u32,
    durable: u16,
    /// Whether its arguments are right, 1 for yes.
    valid: u16,
    pub(super) share: Share,
}

/// Bytes that a rank can have, and which of its limits says so.
pub(super) type PartRoom = (u64, &'static str);

impl WindowBuilder<'_> {
    pub(super) fn room(&self, size: u64) -> PartRoom {
        let transport = &self.comm.inner.engine.transport;
        if size >= LARGE { transport.shared.available() } else { (u64::MAX, "not asked") }
    }

    /// What all ranks want, if that is a window; `checked` says whether this rank's wish is one.
    /// All ranks agree on whether there is a plan. S-B7
    pub(super) fn agree(
        &mut self,
        wish: &Wish,
        checked: Result<(), WindowError>,
    ) -> Result<Plan, WindowError> {
        let id = self.comm.inner.engine.new_object_id();
        let share = Share::new(None, NO_OBJECT, wish);
        let mine = self.proposal(wish, checked.is_ok(), share);
        let all = self.comm.agree(kind::PLAN, Plan::of(self.comm.rank(), id, &mine), Plan::join)?;
        self.comm.set_next_window(all.next);
        self.check_plan(wish, checked, all)
    }

    /// What all want, if that is a window.
    pub(super) fn check_plan(
        &mut self,
        wish: &Wish,
        checked: Result<(), WindowError>,
        all: Plan,
    ) -> Result<Plan, WindowError> {
        all.check(wish.flavor)?;
        checked?;
        if all.wrong != NO_RANK {
            return Err(WindowError::Peer(Rank(all.wrong as u32)));
        }
        self.check_hints(wish.flavor, &all)?;
        Ok(all)
    }

    /// This rank's.
    pub(super) fn proposal(&self, wish: &Wish, valid: bool, share: Share) -> Proposal {
        let Wish { flavor, needed, extents, durable, room, .. } = *wish;
        Proposal {
            // That of the first rank counts, where ranks can meet once.
            next: match (self.comm.rank(), self.comm.collective_block()) {
                (Rank(0), Some(_)) => self.comm.inner.engine.new_object_id(),
                _ => NO_OBJECT,
            },
            // What is made already is no part of what others find available.
            needed: if share.is_made() { 0 } else { needed },
            available: room.0,
            extents,
            hints: self.hints.digest(),
            flavor: flavor as u32,
            durable: u16::from(durable),
            valid: u16::from(valid),
            share,
        }
    }

    /// Whether ranks say the same where they must, and what they say is true. All ranks agree on
    /// the answer.
    fn check_hints(&mut self, flavor: Flavor, plan: &Plan) -> Result<(), WindowError> {
        if plan.hints_min != plan.hints_max {
            return Err(self.hints_differ()?);
        }
        let (sizes, units) = ((plan.size_min, plan.size_max), (plan.unit_min, plan.unit_max));
        for (hint, key, of, (min, max)) in [
            (Hint::SameSize, "same_size", "sizes", sizes),
            (Hint::SameDispUnit, "same_disp_unit", "displacement units", units),
        ] {
            if self.hints.is_set(hint) && min != max {
                if !self.is_wish(hint)? {
                    return Err(WindowError::HintUntrue { key, of, min, max });
                }
                self.leave(hint, flavor, "ranks that differ in it");
            }
        }
        Ok(())
    }

    /// Whether the job wishes it, and no rank has asked for it itself. **Collective**: ranks say
    /// the same of a hint's value, and may differ in its source.
    pub(super) fn is_wish(&self, hint: Hint) -> Result<bool, CollectiveError> {
        let mine = u64::from(!self.hints.is_own(hint));
        Ok(self.comm.agree(kind::FAILED, mine, u64::min)? == 1)
    }

    /// Does without what the job wishes, and says so.
    pub(super) fn leave(&mut self, hint: Hint, flavor: Flavor, why: &'static str) {
        let left = self.hints.leave(hint, why);
        self.tell_left(flavor, &left);
    }

    /// Tells the user, once for each kind of window.
    pub(super) fn tell_left(&self, flavor: Flavor, left: &str) {
        if self.comm.rank() == Rank(0) {
            let kind = format!("{flavor:?}").to_lowercase();
            let text = format!("{left}: windows made by {kind} do without it");
            self.comm.inner.engine.transport.members.note(&text);
        }
    }

    /// Which hint differs, and at the lowest rank that says something else than rank 0.
    fn hints_differ(&self) -> Result<WindowError, WindowError> {
        let mut first = self.hints.common();
        let runtime = self.comm.runtime("making a window")?;
        runtime.bcast(&mut first, Rank(0))?;
        let mine = self.hints.difference(&first).map_or(NO_RANK, |_| u64::from(self.comm.rank()));
        let rank = runtime.allreduce(&[mine], Op::Min)?[0];
        let rank = Rank(u32::try_from(rank).unwrap_or(0));
        let mut theirs = self.hints.common();
        runtime.bcast(&mut theirs, rank)?;
        let difference = Hints::of_common(&theirs).difference(&first);
        let (key, value, expected) = difference.unwrap_or_default();
        Ok(WindowError::HintDiffers { key, rank, value, expected })
    }
}

impl Plan {
    /// Of that rank alone.
    pub(super) fn of(rank: Rank, id: u64, told: &Proposal) -> Self {
        let (rank, hints, flavor) = (u64::from(rank), told.hints, u64::from(told.flavor));
        let (size, unit) = (told.share.size, u64::from(told.share.disp_unit));
        Self {
            id,
            next: told.next,
            first: rank,
            total: told.needed,
            available: told.available,
            shortest: rank,
            extents: told.extents,
            durable: u64::from(told.durable),
            size_min: size,
            size_max: size,
            unit_min: unit,
            unit_max: unit,
            wrong: if told.valid == 1 { NO_RANK } else { rank },
            hints_min: hints,
            hints_max: hints,
            flavor_min: flavor,
            flavor_max: flavor,
        }
    }

    pub(super) fn join(mut self, other: Self) -> Self {
        self.add(&other);
        self
    }

    /// Makes it that of other ranks, too.
    pub(super) fn add(&mut self, other: &Self) {
        if other.first < self.first {
            (self.id, self.next, self.first) = (other.id, other.next, other.first);
        }
        if (other.available, other.shortest) < (self.available, self.shortest) {
            (self.available, self.shortest) = (other.available, other.shortest);
        }
        self.total = self.total.saturating_add(other.total);
        self.extents = self.extents.max(other.extents);
        self.durable = self.durable.max(other.durable);
        self.size_min = self.size_min.min(other.size_min);
        self.size_max = self.size_max.max(other.size_max);
        self.unit_min = self.unit_min.min(other.unit_min);
        self.unit_max = self.unit_max.max(other.unit_max);
        self.wrong = self.wrong.min(other.wrong);
        self.hints_min = self.hints_min.min(other.hints_min);
        self.hints_max = self.hints_max.max(other.hints_max);
        self.flavor_min = self.flavor_min.min(other.flavor_min);
        self.flavor_max = self.flavor_max.max(other.flavor_max);
    }

    /// Whether there can be a window of that flavor. All ranks agree on the answer.
    fn check(&self, flavor: Flavor) -> Result<(), WindowError> {
        if self.id == NO_OBJECT {
            return Err(CollectiveError::TooManyObjects { what: "making a window" }.into());
        }
        if self.flavor_min != self.flavor_max {
            return Err(WindowError::FlavorDiffers(flavor));
        }
        Ok(())
    }

    /// Size and unit, if all ranks have the same.
    pub(super) fn symmetric(&self) -> Option<(u64, u32)> {
        let same = self.size_min == self.size_max && self.unit_min == self.unit_max;
        same.then_some((self.size_min, self.unit_min as u32))
    }
}
