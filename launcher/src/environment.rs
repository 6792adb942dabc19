//! The one place that reads the process's environment for the library.
use crate::start::{BOOTSTRAP_VAR, Start, StartError, detect};
use std::path::PathBuf;

/// The folder that is the instance of the application.
pub const ROOT_VAR: &str = "RMA_ROOT";

/// [`detect`] on the environment of this process.
pub fn detect_process() -> Result<Start, StartError> {
    detect(&|name| std::env::var_os(name))
}

/// `FI_PROVIDER`, which libfabric obeys by itself: it explains which providers there are.
pub fn provider_filter() -> Option<String> {
    std::env::var("FI_PROVIDER").ok()
}

/// Whether variables of libfabric have its `tcp` or `ofi_rxm` touch memory without a call, too.
pub fn provider_acts_by_itself() -> bool {
    let names = ["FI_OFI_RXM_DATA_AUTO_PROGRESS", "FI_TCP_IO_URING"];
    names.iter().any(|name| std::env::var_os(name).is_some())
}

/// What `rma-run --root`, or `RMA_ROOT` under launchers of others, says.
pub fn root() -> Option<PathBuf> {
    std::env::var_os(ROOT_VAR).filter(|root| !root.is_empty()).map(PathBuf::from)
}

/// Whether `rma-run`, or the library behind it, started this process.
pub fn is_launched() -> bool {
    std::env::var_os(BOOTSTRAP_VAR).is_some()
}
