//! What can be wrong before a network is joined.

/// Why this host has no provider for a job.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OfiError {
    /// The library cannot be loaded.
    #[error(
        "libfabric cannot be loaded ({reason}): install it (Debian: `apt-get install libfabric1`), \
         or have LD_LIBRARY_PATH name its folder"
    )]
    Missing {
        /// What the loader says.
        reason: String,
    },
    /// The library lacks a function in the version that this crate calls.
    #[error("the libfabric found has no {symbol}: install libfabric 1.17 or newer")]
    Symbol {
        /// Name and version of the function.
        symbol: &'static str,
    },
    /// The library is older than 1.17.
    #[error("libfabric {}.{} is too old: install 1.17 or newer", found.0, found.1)]
    TooOld {
        /// Major and minor version of the library.
        found: (u32, u32),
    },
    /// The library could not tell what there is.
    #[error(
        "libfabric cannot say which providers there are: {reason} (error {code}): \
         FI_LOG_LEVEL=warn shows more"
    )]
    Query {
        /// The number that `fi_getinfo` returned.
        code: i32,
        /// What libfabric calls it.
        reason: String,
    },
    /// No provider has that name.
    #[error("there is no provider {wanted:?} on this host: libfabric offers {offered}")]
    Unknown {
        /// The name asked for.
        wanted: String,
        /// Names of those that are there.
        offered: String,
    },
    /// The provider asked for can send messages, but not access memory of others.
    #[error(
        "provider {wanted:?} has no remote memory access, which was asked for: take another, \
         or do without (with it: {offered})"
    )]
    NoRma {
        /// The name asked for, or "any".
        wanted: String,
        /// Names of providers that have it.
        offered: String,
    },
    /// No provider reaches other hosts.
    #[error(
        "libfabric has no provider of reliable messages that reaches other hosts (it offers \
         {offered}): take one of those by name, install the provider of this network, or see \
         whether FI_PROVIDER hides it"
    )]
    None {
        /// Names of those that are there.
        offered: String,
    },
    /// `FI_PROVIDER` hides the provider asked for.
    #[error(
        "FI_PROVIDER={filter:?} hides provider {wanted:?}, which was asked for: unset FI_PROVIDER, \
         or ask for what it lets through"
    )]
    Hidden {
        /// The name asked for.
        wanted: String,
        /// Value of the variable.
        filter: String,
    },
    /// The provider is there, but cannot be opened.
    #[error(
        "provider {provider:?} cannot be opened at {host}: {reason} ({call}, error {code}): {}",
        remedy(*code)
    )]
    Open {
        /// Name of the provider.
        provider: String,
        /// Address of this host that it was to use.
        host: String,
        /// Call of libfabric that failed.
        call: &'static str,
        /// The number that it returned.
        code: i32,
        /// What libfabric calls it.
        reason: String,
    },
    /// The system gives no random numbers.
    #[error("the operating system gives no random numbers (os error {errno})")]
    Random {
        /// Error number.
        errno: i32,
    },
    /// It lacks what rma needs of it.
    #[error("provider {provider:?} {why}: take another by name")]
    Unfit {
        /// Name of the provider.
        provider: String,
        /// What it lacks.
        why: &'static str,
    },
}

/// What to do about an error of libfabric, as an endpoint is opened or memory registered.
pub(crate) const fn remedy(code: i32) -> &'static str {
    match code {
        libc::EADDRINUSE => {
            "no port is free: widen the range from FI_TCP_PORT_LOW_RANGE to \
             FI_TCP_PORT_HIGH_RANGE, of which a rank takes up to 10, or unset both"
        }
        libc::EADDRNOTAVAIL => {
            "that address is not of this host, or no port of it is free: see the addresses of this \
             host (rma-run --explain, ip addr), and widen the range from FI_TCP_PORT_LOW_RANGE to \
             FI_TCP_PORT_HIGH_RANGE, of which a rank takes up to 10, or unset both"
        }
        libc::ENOMEM => {
            "memory that is locked may be limited (ulimit -l, memlock in \
             /etc/security/limits.conf): raise that, or have fewer ranks here"
        }
        libc::EBUSY => {
            "gets that were given up in the middle keep their endpoints to the end of the process, \
             and there are too many of them: give up less (a longer wait timeout)"
        }
        libc::EMFILE => "raise the limit of open files (ulimit -n)",
        _ => "take another by name, or see what FI_LOG_LEVEL=warn says",
    }
}

impl OfiError {
    pub(crate) fn random(errno: rustix::io::Errno) -> Self {
        Self::Random { errno: errno.raw_os_error() }
    }
}

rma_core::debug_as_display!(OfiError);
