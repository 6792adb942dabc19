//! The one place that reads the process's environment for the library.
use crate::start::{BOOTSTRAP_VAR, Start, StartError, detect};

/// [`detect`] on the environment of this process.
pub fn detect_process() -> Result<Start, StartError> {
    detect(&|name| std::env::var_os(name))
}

/// `FI_PROVIDER`, which libfabric obeys by itself: it explains which providers there are.
pub fn provider_filter() -> Option<String> {
    std::env::var("FI_PROVIDER").ok()
}

/// Whether `rma-run`, or the library behind it, started this process.
pub fn is_launched() -> bool {
    std::env::var_os(BOOTSTRAP_VAR).is_some()
}
