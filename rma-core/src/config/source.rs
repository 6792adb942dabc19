//! Who gave a setting its value.
use core::fmt;
use std::sync::Arc;

/// Who gave a setting, or a hint of the whole job, the value that is in force. Later ones go before
/// earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Source {
    /// Nobody.
    #[default]
    Default,
    /// The program, by [`Config`](crate::Config).
    Program,
    /// A file of settings, by its path.
    File(Arc<str>),
    /// An option of `rma-run`.
    CommandLine(Arc<str>),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Program => f.write_str("program"),
            Self::File(path) => write!(f, "file {path}"),
            Self::CommandLine(option) => write!(f, "rma-run {option}"),
        }
    }
}
