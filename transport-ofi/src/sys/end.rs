//! The last resort: a process that cannot take its memory back ends, before that is used otherwise.

/// Says what cannot be taken back because of which call and error, and ends the process.
pub(crate) fn end(what: &str, (call, errno): (&str, i32)) -> ! {
    eprintln!(
        "rma: {what} cannot be taken back from the network, as {call} was refused (os error \
         {errno}): run with rma_path=messages"
    );
    std::process::abort();
}
