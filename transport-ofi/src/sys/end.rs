//! The last resort: a process that cannot take its memory back ends, before that is used otherwise.

/// Says what cannot be taken back because of which call, and ends the process.
pub(crate) fn end(what: &str, call: &str) -> ! {
    eprintln!(
        "rma: {what} cannot be taken back from the network, as {call} was refused: run with \
         rma_path=messages"
    );
    std::process::abort();
}
