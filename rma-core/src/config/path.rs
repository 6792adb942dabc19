//! The path that operations of a window are asked to take.

/// What the hint `rma_path` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum PathHint {
    /// The fastest that reaches the target.
    #[default]
    Auto,
    /// Load and store for everything, or no window.
    LoadStore,
    /// Copies by address where load and store reach too.
    Cma,
    /// Messages for everything, locks and signals too.
    Messages,
    /// As [`Messages`](Self::Messages), but what a device does.
    Device,
}

/// How the values of the hint are written, in the order of [`PathHint`].
pub(crate) const PATHS: &[&str] = &["auto", "load_store", "cma", "messages", "device"];

impl PathHint {
    /// From the place of a value in [`PATHS`].
    pub(crate) fn from_place(place: u64) -> Self {
        [Self::Auto, Self::LoadStore, Self::Cma, Self::Messages, Self::Device]
            .into_iter()
            .find(|hint| *hint as u64 == place)
            .unwrap_or_default()
    }

    /// Whether load and store reach no rank.
    pub(crate) fn is_far(self) -> bool {
        matches!(self, Self::Messages | Self::Device)
    }
}
