//! Settings that cannot be used.
use crate::config::HintError;

/// A setting that does not exist, or a value that it does not take.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No setting has that key.
    #[error("there is no setting {key:?}{} the settings are {all}", meant(nearest))]
    Unknown {
        /// What was asked for.
        key: String,
        /// The key that is written most like it, if one is.
        nearest: Option<&'static str>,
        /// All keys.
        all: String,
    },
    /// The setting does not take that value.
    #[error("setting {key} = {value:?}: {key} takes {allowed}; correct it or leave it out")]
    Value {
        /// The setting.
        key: &'static str,
        /// What it was given.
        value: String,
        /// What it takes: range and unit.
        allowed: String,
    },
    /// A hint of the whole job does not take that value.
    #[error(transparent)]
    Hint(#[from] HintError),
    /// A line of a file that is no setting.
    #[error("line {line}: {text:?} is not of the form `key = value`, empty, or a # comment")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What it says.
        text: String,
    },
    /// A line of a file whose setting cannot be used.
    #[error("line {line}: {error}")]
    At {
        /// Which, from 1.
        line: usize,
        /// Why.
        error: Box<Self>,
    },
}

crate::debug_as_display!(ConfigError);

fn meant(nearest: &Option<&'static str>) -> String {
    let meant = |nearest| format!(": did you mean {nearest:?}? Otherwise,");
    nearest.map_or(";".to_owned(), meant)
}
