//! The source of a setting's value.
use core::fmt;
use std::sync::Arc;

/// The source of the value in force of a setting, or of a hint of the whole job. Later ones go
/// before earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Source {
    /// None: the default.
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
