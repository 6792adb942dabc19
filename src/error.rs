//! One error for programs that handle all of them alike.
use crate::{
    CollectiveError, ConfigError, ConfigFileError, ErrorClass, HintError, LayoutError, NotCreated,
    NotDone, Refused, RmaError, StartError, WindowError,
};

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
    /// A collective operation of a communicator failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
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
}

rma_core::debug_as_display!(Error);

impl Error {
    /// The MPI error class.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Start(_) => ErrorClass::Other,
            Self::Window(error) => error.class(),
            Self::Rma(error) => error.class(),
            Self::Collective(error) => error.class(),
            Self::Layout(error) => error.class(),
            Self::Hint(_) | Self::Config(_) | Self::ConfigFile(_) => ErrorClass::InfoValue,
        }
    }
}

impl<M> From<NotCreated<M>> for Error {
    fn from(not_created: NotCreated<M>) -> Self {
        Self::Window(not_created.error)
    }
}

impl<V> From<NotDone<V>> for Error {
    fn from(not_done: NotDone<V>) -> Self {
        Self::Rma(not_done.error)
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::Rma(refused.error)
    }
}
