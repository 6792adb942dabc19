//! Which path operations take to a target.
//!
//! Load and store need nothing of the target and are the fastest, so they are taken wherever the
//! part can be mapped. Memory that its owner brought along and that stays where it is, is reached
//! by copies of the operating system, if a probe showed that those are allowed. Messages always
//! work; the target serves them.
use super::Window;
use crate::rank::Rank;
use core::fmt;

/// What the hint `rma_path` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Asked {
    /// The fastest that reaches the target.
    #[default]
    Auto,
    /// Load and store for everything, or no window.
    LoadStore,
    /// Copies by address where load and store reach too.
    Cross,
    /// Messages for everything, locks and signals too.
    Messages,
}

/// How the values of the hint are written, in the order of [`Asked`].
pub(super) const PATHS: &[&str] = &["auto", "load_store", "cross", "messages"];

impl Asked {
    /// From the place of a value in [`PATHS`].
    pub(super) fn from_place(place: u32) -> Self {
        [Self::Auto, Self::LoadStore, Self::Cross, Self::Messages]
            .into_iter()
            .find(|asked| *asked as u32 == place)
            .unwrap_or_default()
    }
}

/// How operations reach a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// By load and store of the origin, in memory mapped here.
    LoadStore,
    /// Put and get by copies of the operating system between the two processes, the others by
    /// messages.
    Cross,
    /// By active messages, which the target serves.
    Messages,
    /// As each attached region allows: load and store for what was given away, as
    /// [`Cross`](Self::Cross) or [`Messages`](Self::Messages) for raw memory.
    ByRegion,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LoadStore => "load and store",
            Self::Cross => "copies between processes, and messages",
            Self::Messages => "messages",
            Self::ByRegion => "what each attached region allows",
        })
    }
}

impl Window {
    /// How operations reach `target`; `None` if there is no such rank.
    pub fn path(&self, target: Rank) -> Option<Path> {
        if target.0 >= self.ranks() {
            return None;
        }
        Some(if self.targets.is_empty() {
            Path::Messages
        } else if self.part.regions.is_some() {
            Path::ByRegion
        } else if self.loads(target) {
            Path::LoadStore
        } else if self.process().transport.cma_with(self.part.comm.world_rank(target)).is_some() {
            Path::Cross
        } else {
            Path::Messages
        })
    }

    /// Whether the table shows the way to it, and nothing counts.
    pub(super) fn loads_at_once(&self, target: Rank) -> bool {
        self.loads(target) && !self.counts_all
    }

    /// Whether operations on `target` go by load and store.
    pub(super) fn loads(&self, target: Rank) -> bool {
        let stays = self.peers.get(usize::from(target)).is_none_or(|peer| peer.stays);
        let mapped = !stays || target == self.rank();
        mapped && !self.targets.is_empty() && self.part.regions.is_none() && !self.forced_to_cross
    }
}
