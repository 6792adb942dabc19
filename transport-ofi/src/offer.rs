//! What a provider offers.

/// What makes progress of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The provider, by a thread or hardware of its own.
    Auto,
    /// The threads that call it.
    Manual,
}

/// How a provider names registered memory of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Positions are addresses of the target (`FI_MR_VIRT_ADDR`), and otherwise count from the
    /// beginning of the memory.
    pub by_address: bool,
    /// The provider makes keys (`FI_MR_PROV_KEY`), and otherwise takes ours.
    pub by_provider: bool,
    /// Local buffers must be registered, too (`FI_MR_LOCAL`).
    pub local: bool,
}

/// One way to other ranks: a provider on one domain of one fabric, with reliable endpoints that
/// need no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Name of the provider, in layers: `tcp;ofi_rxm`.
    pub provider: String,
    /// Name of the network.
    pub fabric: String,
    /// Name of the device.
    pub domain: String,
    /// Messages and remote memory access at once (`FI_MSG | FI_RMA`).
    pub has_rma: bool,
    /// Both, and atomics; of which types, `fi_query_atomic` says.
    pub has_atomics: bool,
    /// How memory is named.
    pub keys: Keys,
    /// What makes progress of data.
    pub progress: Progress,
    /// Bytes of the largest message.
    pub max_message: usize,
    /// Bytes that a provider takes without keeping the buffer.
    pub inject: usize,
}

impl Offer {
    /// The provider below all layers: `tcp` of `tcp;ofi_rxm`.
    pub fn core(&self) -> &str {
        core_of(&self.provider)
    }

    /// Whether atomics are the provider's, of which it is known that it tells of each what has
    /// become of it (ADR 70).
    pub(crate) fn has_own_atomics(&self) -> bool {
        self.has_atomics && ATOMICS_TRIED.contains(&self.provider.as_str())
    }

    /// Whether a user who writes `name` means this provider: by its whole name, or its core.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.provider.eq_ignore_ascii_case(name) || self.core().eq_ignore_ascii_case(name)
    }
}

/// Providers whose atomics passed the conformance suite, those whose connection ends among them.
const ATOMICS_TRIED: [&str; 1] = ["sockets"];

/// The first layer that is no utility of libfabric.
pub(crate) fn core_of(name: &str) -> &str {
    let is_core = |layer: &&str| !layer.starts_with("ofi_");
    name.split(';').find(is_core).unwrap_or(name)
}
