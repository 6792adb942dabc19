//! Memory of a part, and what becomes of it. S-A5
#![allow(unsafe_code)]

use super::user::{RawPart, Rebuild, WindowMemory};
use crate::memory::target::Span;
use crate::transport::{Descriptor, Mapped, Mapping, Region};
use crate::universe::Process;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory of a part, mapped as long as this value lives.
pub(crate) enum Memory {
    Own(Own),
    Imported(Box<dyn Mapped>),
    /// Of the user, who keeps it mapped.
    Raw(RawPart),
}

/// Memory that this rank allocated.
///
/// Unless the window was freed, peers may still write there: then it goes to the graveyard when
/// dropped, where it stays allocated until the universe ends; or for as long as the process, if
/// they do so by its address.
pub(crate) struct Own {
    process: Arc<Process>,
    // `Some` until drop.
    region: Option<Box<dyn Region>>,
    freed: AtomicBool,
    /// Peers know its address in this process, and copy there.
    by_address: bool,
}

/// Memory of windows that were dropped on this rank and not freed.
#[derive(Default)]
pub(crate) struct Graveyard(Mutex<Vec<Box<dyn Region>>>);

impl Memory {
    pub(crate) fn own(process: &Arc<Process>, region: Box<dyn Region>, by_address: bool) -> Self {
        let process = process.clone();
        Self::Own(Own { process, region: Some(region), freed: AtomicBool::new(false), by_address })
    }

    pub(crate) fn mapping(&self) -> Mapping {
        match self {
            Self::Own(own) => own.region.as_ref().expect("taken by drop only").mapping(),
            Self::Imported(import) => import.mapping(),
            Self::Raw(part) => Mapping { base: part.as_ptr(), len: part.len() },
        }
    }

    /// What a peer imports; `None` if it is not memory of this rank that peers can map.
    pub(crate) fn export(&self) -> Option<Descriptor> {
        match self {
            Self::Own(own) => own.region.as_ref().map(|region| region.descriptor()),
            Self::Imported(_) | Self::Raw(_) => None,
        }
    }

    /// Copies `bytes`, no more than it holds, into memory that nobody else knows yet.
    pub(crate) fn fill(&self, bytes: &[u8]) {
        self.span(0, bytes.len()).into_iter().for_each(|all| all.write(bytes));
    }

    /// Gives `len` bytes at `offset` back to their user; raw memory as a whole.
    pub(crate) fn rebuild<M: WindowMemory>(&self, offset: u64, len: usize) -> Option<M> {
        let mut fill = |bytes: &mut [u8]| {
            self.span(offset, bytes.len()).into_iter().for_each(|part| part.read(bytes));
        };
        M::rebuild(match self {
            Self::Raw(part) => Rebuild::At(*part),
            _ => Rebuild::Bytes { len, fill: &mut fill },
        })
    }

    /// Whether it stays where its user put it.
    pub(crate) fn is_raw(&self) -> bool {
        matches!(self, Self::Raw(_))
    }

    fn span(&self, offset: u64, len: usize) -> Option<Span<'_>> {
        let mapping = self.mapping();
        // SAFETY: mapped as long as `self`. No reference into it exists: its user gave it away,
        // and the core makes none but of sealed windows, which have no operations.
        unsafe { Span::of_part(mapping.base, mapping.len as u64, offset, len) }
    }

    /// No rank can reach the memory any more: it may be given back when dropped.
    pub(crate) fn set_freed(&self) {
        if let Self::Own(own) = self {
            own.freed.store(true, Relaxed);
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if *self.freed.get_mut() {
            return;
        }
        if self.by_address {
            // A mapping of its own keeps memory that this rank gives back, an address does not: it
            // may be anything's by the time a peer copies there. So it is never given back.
            self.region.take().into_iter().for_each(|region| region.abandon());
        } else {
            let graveyard = &self.process.graveyard.0;
            graveyard.lock().unwrap_or_else(PoisonError::into_inner).extend(self.region.take());
        }
    }
}
