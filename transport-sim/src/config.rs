//! What a simulated network looks like.

use rma_core::transport::{Addressing, Keys, LayoutCosts, RemoteLimits};

/// Least that `transfer_max` and `atomic_max` of a device may be: devices promise it.
const TRANSFER_MIN: u64 = 16;

/// Shape of a simulated network. Two equal values give two equal runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetConfig {
    /// Number of ranks, each a thread; at least 1.
    pub ranks: u32,
    /// What decides order and delay.
    pub seed: u64,
    /// Longest time a message travels, in ticks of one virtual microsecond.
    pub delay_max: u64,
    /// Whether messages of one rank to another arrive in the order in which they were sent.
    pub in_order: bool,
    /// Messages sent to one receiver and not yet polled by it, before `send` says `Again`; at
    /// least 1.
    pub queue_max: usize,
    /// Largest message, in bytes.
    pub message_max: usize,
    /// Yields of all ranks together before the run counts as a livelock; at least 1.
    pub step_max: u64,
    /// Window memory that all ranks together may hold, in bytes.
    pub memory_max: u64,
    /// Nodes: load and store reach ranks of the same one, of as many ranks in a row each (the last
    /// may have fewer). `None`: no memory is mapped. At least 1.
    pub nodes: Option<u32>,
    /// The device that moves bytes to and from memory of others, if there is one.
    pub device: Option<DeviceConfig>,
}

impl NetConfig {
    /// A network of `ranks` ranks driven by `seed`, with usual limits.
    #[must_use]
    pub const fn new(ranks: u32, seed: u64) -> Self {
        Self {
            ranks,
            seed,
            delay_max: 200,
            in_order: false,
            queue_max: 64,
            message_max: 16 * 1024,
            step_max: 2_000_000,
            memory_max: 1 << 30,
            nodes: None,
            device: None,
        }
    }

    /// Whether load and store of one rank reach memory of another.
    pub(crate) const fn are_near(&self, one: u32, other: u32) -> bool {
        let Some(nodes) = self.nodes else { return false };
        let each = self.ranks.div_ceil(nodes);
        one < self.ranks && other < self.ranks && one / each == other / each
    }

    /// Refuses what no network can be made of.
    pub(crate) const fn check(&self) -> Result<(), ConfigError> {
        if self.ranks == 0 {
            return Err(ConfigError::NoRanks);
        }
        if self.queue_max == 0 {
            return Err(ConfigError::NoQueue);
        }
        if self.step_max == 0 {
            return Err(ConfigError::NoSteps);
        }
        if let Some(0) = self.nodes {
            return Err(ConfigError::NoNodes);
        }
        match &self.device {
            Some(device) => device.check(),
            None => Ok(()),
        }
    }
}

/// The simulated device of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceConfig {
    /// What the core is told. It is coherent with CPUs in any case, of integers of 4 and 8 bytes.
    pub limits: RemoteLimits,
    /// A rank, and the sizes of what goes to and comes from there, which may be others than of the
    /// rest.
    pub narrow: Option<(u32, RemoteLimits)>,
    /// What it tells of the costs of layouts, if it does.
    pub costs: Option<LayoutCosts>,
    /// Transfers of one endpoint to one peer that are under way, and flushes apart from them,
    /// before it says `Again`; at least 1.
    pub queue_max: usize,
    /// Longest time of each step of a transfer, in ticks.
    pub delay_max: u64,
    /// Which atomics it does.
    pub atomics: Atomics,
    /// After so many posts of all ranks together, no device works any more.
    pub ends_after: Option<u64>,
    /// Largest memory that it registers, in bytes.
    pub register_max: u64,
}

/// Which atomics a simulated device does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomics {
    /// None.
    None,
    /// Those of InfiniBand verbs: fetch-and-add and compare-and-swap of 8-byte integers.
    Words,
    /// Each operation that a type has, of every type, and swaps.
    All,
}

impl DeviceConfig {
    /// Those of most providers of libfabric.
    pub const LIMITS: RemoteLimits = RemoteLimits {
        addressing: Addressing::Virtual,
        keys: Keys::Chosen,
        inject: 64,
        bounce: 4096,
        transfer_max: 1 << 20,
        atomic_max: 1 << 20,
        run_min: 256,
        coherent: false,
    };

    /// A device with usual limits, which does not end.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limits: Self::LIMITS,
            narrow: None,
            costs: None,
            queue_max: 16,
            delay_max: 200,
            atomics: Atomics::All,
            ends_after: None,
            register_max: u64::MAX,
        }
    }

    /// Those towards a rank.
    pub(crate) fn limits_to(&self, rank: u32) -> RemoteLimits {
        let RemoteLimits { addressing, keys, coherent, .. } = self.limits;
        match self.narrow {
            Some((narrow, sizes)) if narrow == rank => {
                RemoteLimits { addressing, keys, coherent, ..sizes }
            }
            _ => self.limits,
        }
    }

    const fn check(&self) -> Result<(), ConfigError> {
        if self.queue_max == 0 {
            return Err(ConfigError::NoDeviceQueue);
        }
        let narrow = match self.narrow {
            Some((_, narrow)) => narrow,
            None => self.limits,
        };
        let RemoteLimits { transfer_max, atomic_max, .. } = self.limits;
        // No iterators: this is `const`.
        let (transfers, atomics) =
            ([transfer_max, narrow.transfer_max], [atomic_max, narrow.atomic_max]);
        let has_atomics = !matches!(self.atomics, Atomics::None);
        let mut at = 0;
        while at < transfers.len() {
            if transfers[at] < TRANSFER_MIN {
                return Err(ConfigError::ShortTransfers(transfers[at]));
            }
            if has_atomics && atomics[at] < TRANSFER_MIN {
                return Err(ConfigError::ShortAtomics(atomics[at]));
            }
            at += 1;
        }
        Ok(())
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Why no network can be made of a [`NetConfig`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// `ranks` is 0.
    #[error("a network of 0 ranks was asked for; ask for at least 1")]
    NoRanks,
    /// `queue_max` is 0.
    #[error("queue_max is 0, so no message could ever be sent; allow at least 1")]
    NoQueue,
    /// `step_max` is 0.
    #[error("step_max is 0, so no rank could ever run; allow at least 1")]
    NoSteps,
    /// `nodes` is 0.
    #[error("a network of 0 nodes was asked for; ask for at least 1, or for no shared memory")]
    NoNodes,
    /// `queue_max` of the device is 0.
    #[error("queue_max of the device is 0, so nothing could ever be posted; allow at least 1")]
    NoDeviceQueue,
    /// `transfer_max` of the device is too small.
    #[error("transfer_max of the device is {0} bytes; allow at least 16")]
    ShortTransfers(u64),
    /// `atomic_max` of a device that has atomics is too small.
    #[error("atomic_max of the device is {0} bytes, and it has atomics; allow at least 16")]
    ShortAtomics(u64),
}

rma_core::debug_as_display!(ConfigError);
