//! How a program sets what its ranks start with.
#[cfg(feature = "simulate")]
use crate::SimFailure;
use crate::{Config, ConfigError, HintError, StartError, Universe};
use std::path::{Path, PathBuf};

/// A file of settings that cannot be used.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConfigFileError {
    /// It cannot be read.
    #[error("settings of {}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// A line of it cannot be used.
    #[error("settings of {}: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Which, and why.
        source: ConfigError,
    },
}

rma_core::debug_as_display!(ConfigFileError);

/// Settings of a program, and the ways to start with them.
///
/// It collects a [`Config`]; [`From`] takes one whose fields were set.
///
/// ```
/// let builder = rma::Builder::new().config("outstanding_messages", "256")?;
/// let builder = builder.hint("rma_path", "messages")?;
/// let settings = builder.local(2, |universe| universe.explain())?;
/// assert!(settings[0].contains("outstanding_messages = 256 (program)"));
/// # Ok::<(), rma::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Builder {
    config: Config,
}

impl From<Config> for Builder {
    fn from(config: Config) -> Self {
        Self { config }
    }
}

impl Builder {
    /// All at their defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a setting a value, as `rma-run --config KEY=VALUE` does, which goes before it; the
    /// keys are the fields of [`Config`].
    ///
    /// # Errors
    ///
    /// A key that there is none of, and a value that it does not take.
    pub fn config(mut self, key: &str, value: &str) -> Result<Self, ConfigError> {
        self.config.set(key, value)?;
        Ok(self)
    }

    /// Takes a file of settings, one `key = value` a line; `#` begins a comment.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a line of it not be used.
    pub fn file(mut self, path: impl AsRef<Path>) -> Result<Self, ConfigFileError> {
        let path = path.as_ref();
        let failed = |source| ConfigFileError::Read { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let unusable = |source| ConfigFileError::Config { path: path.to_owned(), source };
        self.config.set_lines(&text, &path.to_string_lossy()).map_err(unusable)?;
        Ok(self)
    }

    /// Gives every window a hint, unless it says otherwise; see [`Config::hint`].
    ///
    /// # Errors
    ///
    /// A value that a known key does not take.
    pub fn hint(mut self, key: &str, value: &str) -> Result<Self, HintError> {
        self.config.hint(key, value)?;
        Ok(self)
    }

    /// Names the folder that is this instance of the application: the root of its
    /// persistent windows (`Root::of_job`), as `rma-run --root DIR` does, which goes before it.
    pub fn root(mut self, path: impl Into<PathBuf>) -> Self {
        self.config.root = Some(path.into());
        self
    }

    /// [`initialize_with`](crate::initialize_with) these settings. **Collective** over the job.
    ///
    /// # Errors
    ///
    /// As that.
    pub fn initialize(self) -> Result<Universe, StartError> {
        crate::initialize_with(self.config)
    }

    /// [`local_with`](crate::local_with) these settings.
    ///
    /// # Errors
    ///
    /// As that.
    pub fn local<R, F>(self, ranks: u32, body: F) -> Result<Vec<R>, StartError>
    where
        R: Send,
        F: Fn(Universe) -> R + Sync,
    {
        crate::local_with(self.config, ranks, body)
    }

    /// [`simulate_with`](crate::simulate_with) these settings.
    ///
    /// # Errors
    ///
    /// As that.
    #[cfg(feature = "simulate")]
    pub fn simulate<R, F>(self, ranks: u32, seed: u64, body: F) -> Result<Vec<R>, SimFailure>
    where
        R: Send,
        F: Fn(Universe) -> R + Sync,
    {
        crate::simulate_with(self.config, ranks, seed, body)
    }

    /// [`simulate_rdma_with`](crate::simulate_rdma_with) these settings.
    ///
    /// # Errors
    ///
    /// As that.
    #[cfg(feature = "simulate")]
    pub fn simulate_rdma<R, F>(self, ranks: u32, seed: u64, body: F) -> Result<Vec<R>, SimFailure>
    where
        R: Send,
        F: Fn(Universe) -> R + Sync,
    {
        crate::simulate_rdma_with(self.config, ranks, seed, body)
    }
}
