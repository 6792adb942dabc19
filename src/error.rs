//! One error for programs that handle all of them alike.
#[cfg(feature = "simulate")]
use crate::SimFailure;
use crate::{
    BatchError, CartesianError, CollectiveError, ConfigError, ConfigFileError, ErrorClass,
    HintError, LayoutError, PersistError, Refused, RmaError, StartError, WindowError,
};
#[cfg(feature = "storage")]
use crate::{PersistentError, StorageError};
use core::num::TryFromIntError;

/// Any error of this library, for `?` in `main`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job could not be started or joined.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A window could not be made.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// An operation or synchronisation of a window failed.
    #[error(transparent)]
    Rma(#[from] RmaError),
    /// A call on many places failed at one of them.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A collective operation of a communicator failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// There is no such grid of ranks.
    #[error(transparent)]
    Cartesian(#[from] CartesianError),
    /// A layout could not be made.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A hint has a value that it does not take.
    #[error(transparent)]
    Hint(#[from] HintError),
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file of settings cannot be used.
    #[error(transparent)]
    ConfigFile(#[from] ConfigFileError),
    /// There is no memory on storage.
    #[cfg(feature = "storage")]
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Memory on storage was not made durable.
    #[error(transparent)]
    Persist(#[from] PersistError),
    /// There is no persistent memory, or no version of it.
    #[cfg(feature = "storage")]
    #[error(transparent)]
    Persistent(#[from] PersistentError),
    /// A number is none of a rank, or no count: what `try_from` of integers refuses.
    #[error("{0}: ranks are below 2^32, counts and displacements below 2^63")]
    Number(#[from] TryFromIntError),
    /// A simulation came to no end.
    #[cfg(feature = "simulate")]
    #[error(transparent)]
    Simulation(#[from] SimFailure),
}

rma_core::debug_as_display!(Error);

impl Error {
    /// The MPI error class.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Start(_) => ErrorClass::Other,
            Self::Window(error) => error.class(),
            Self::Rma(error) => error.class(),
            Self::Batch(error) => error.class(),
            Self::Collective(error) => error.class(),
            Self::Cartesian(error) => error.class(),
            Self::Layout(error) => error.class(),
            Self::Hint(_) | Self::Config(_) | Self::ConfigFile(_) => ErrorClass::InfoValue,
            #[cfg(feature = "storage")]
            Self::Storage(error) => error.class(),
            Self::Persist(error) => error.class(),
            #[cfg(feature = "storage")]
            Self::Persistent(error) => error.class(),
            Self::Number(_) => ErrorClass::Other,
            #[cfg(feature = "simulate")]
            Self::Simulation(_) => ErrorClass::Other,
        }
    }
}

impl<T, E: Into<Self>> From<Refused<T, E>> for Error {
    fn from(refused: Refused<T, E>) -> Self {
        refused.error.into()
    }
}
