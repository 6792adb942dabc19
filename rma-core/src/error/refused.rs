//! What a call was given, and gives back because it failed.
use super::{RmaError, WindowError};
use core::fmt;

/// What a call that failed was given, and why it failed: nothing is lost.
///
/// `?` turns it into the error alone.
pub struct Refused<T, E = RmaError> {
    /// What the call was given.
    pub value: T,
    /// Why it failed.
    pub error: E,
}

// As a program that ends with it shows it; and the value need not be shown.
impl<T, E: fmt::Display> fmt::Debug for Refused<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In one piece: a process that is ended between two leaves half a sentence.
        f.write_str(&self.error.to_string())
    }
}

impl<T, E: fmt::Display> fmt::Display for Refused<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T, E: core::error::Error> core::error::Error for Refused<T, E> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T> From<Refused<T>> for RmaError {
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}

impl<T> From<Refused<T, WindowError>> for WindowError {
    fn from(refused: Refused<T, Self>) -> Self {
        refused.error
    }
}
