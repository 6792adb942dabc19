//! Whether this process is the one that joined the job, and not a fork of it.
#![allow(unsafe_code)] // room: a page that the kernel wipes in a fork

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::mm::{Advice, madvise};
use rustix::process::{Pid, getpid};

use crate::segment::Span;

/// Of the process that made it: so cheap to ask that every guard can.
pub(crate) struct Parent {
    pid: Pid,
    /// Holds [`HERE`] in that process, and zeros in its forks; `None` where the kernel wipes none.
    page: Option<Span>,
}

const HERE: u32 = 1;

impl Parent {
    pub(crate) fn new() -> Self {
        let page = Span::anonymous(rustix::param::page_size()).ok().filter(|page| {
            // SAFETY: the page is this value's alone, and holds nothing yet.
            let advised =
                unsafe { madvise(page.base().cast(), page.len(), Advice::LinuxWipeOnFork) };
            advised.is_ok()
        });
        let this = Self { pid: getpid(), page };
        if let Some(word) = this.word() {
            word.store(HERE, Relaxed);
        }
        this
    }

    fn word(&self) -> Option<&AtomicU32> {
        let page = self.page.as_ref()?;
        // SAFETY: aligned to a page, mapped as long as `self`, and used as this word only.
        Some(unsafe { AtomicU32::from_ptr(page.base().cast()) })
    }

    /// Whether this is another process.
    pub(crate) fn is_fork(&self) -> bool {
        match self.word() {
            Some(word) => word.load(Relaxed) != HERE,
            None => getpid() != self.pid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_no_fork_of_itself() {
        assert!(!Parent::new().is_fork());
        let by_pid = Parent { pid: getpid(), page: None };
        assert!(!by_pid.is_fork());
        assert!(Parent { pid: Pid::INIT, page: None }.is_fork());
    }
}
