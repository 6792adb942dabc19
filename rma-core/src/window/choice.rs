//! Which path operations take to a target.
//!
//! Load and store need nothing of the target and are the fastest, so they are taken wherever the
//! part can be mapped. Otherwise messages are, which always work.
use super::Window;
use crate::rank::Rank;
use crate::transport::Transport;
use core::fmt;

/// What may be asked for; [`Config::path`](crate::Config::path).
///
/// A window takes the last in this order that one of its ranks asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum PathChoice {
    /// The fastest that reaches the target.
    #[default]
    Auto,
    /// Messages, for operations, locks and signals, also where there is a faster path.
    Messages,
}

/// How operations reach a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// By load and store of the origin, in memory mapped here.
    LoadStore,
    /// By active messages, which the target serves.
    Messages,
}

impl PathChoice {
    const ALL: [Self; 2] = [Self::Auto, Self::Messages];

    pub(super) fn to_wire(self) -> u64 {
        self as u64
    }

    /// `None` if a rank sent nonsense.
    pub(super) fn from_wire(wire: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|choice| choice.to_wire() == wire)
    }

    /// As it is written in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Messages => "messages",
        }
    }

    /// Reads [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|choice| choice.name() == name)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LoadStore => "load and store",
            Self::Messages => "messages",
        })
    }
}

impl<T: Transport> Window<T> {
    /// How operations reach `target`; `None` if there is no such rank.
    pub fn path(&self, target: Rank) -> Option<Path> {
        if target.0 >= self.ranks() {
            return None;
        }
        let by_load = self.targets.get(target).is_some();
        Some(if by_load { Path::LoadStore } else { Path::Messages })
    }
}
