//! What every example needs: arguments that all ranks read alike, and errors that people read.
use rma::{Rank, Universe};
use std::error::Error;
use std::fmt;
use std::io::{self, Write};

/// What `main` returns when something went wrong. Rust prints it with `Debug`, which is for
/// programmers; this one's is the message.
pub(crate) struct Failure(String);

impl Failure {
    /// A failure with this message.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// The arguments, or `None` if there is nothing to do: all ranks have the same arguments, and what
/// there is to say about them is said by rank 0.
pub(crate) fn arguments<A: clap::Parser>(universe: &Universe) -> Result<Option<A>, Failure> {
    match A::try_parse() {
        Ok(arguments) => Ok(Some(arguments)),
        Err(_) if universe.world().rank() != Rank(0) => Ok(None),
        Err(error) if error.use_stderr() => {
            let message = error.to_string();
            Err(Failure::new(message.strip_prefix("error: ").unwrap_or(&message).trim_end()))
        }
        Err(help) => {
            print(&help.to_string())?;
            Ok(None)
        }
    }
}

/// Prints to standard output; that its reader is gone is an error, and no panic as with `print!`.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
