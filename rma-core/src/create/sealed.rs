//! A window between epochs: plain memory.
#![allow(unsafe_code)]

use crate::create::free::No;
use crate::element::Element;
use crate::error::{Refused, RmaError};
use crate::memory::control_block::Agreement;
use crate::sync::EpochCall;
use crate::window::Window;

/// A window on which no rank can operate, so that this rank's part is ordinary memory.
///
/// The peers' parts are not reachable before [`unseal`](Self::unseal). Forgetting it leaves the
/// peers waiting in their `unseal`, and the memory allocated.
pub struct Sealed {
    window: Window,
}

impl Window {
    /// Closes the window, to work on this rank's part as a plain slice. **Collective.**
    ///
    /// All operations of all ranks are complete when it returns. Refused, everywhere, if some rank
    /// has an epoch open, or brought its part along as a [`RawPart`](crate::RawPart), or as a
    /// [`Backing`](crate::Backing) that others may have, too.
    pub fn seal(self) -> Result<Sealed, Refused<Option<Box<Self>>>> {
        let (window, requested) = (self.id(), EpochCall::Seal.name());
        let needed = "memory that is the window's alone";
        let alone = self.part.memory.is_exclusive();
        let not_alone = (!alone).then_some(RmaError::WrongFlavor { window, requested, needed });
        let agreed = self.agree_idle(EpochCall::Seal, not_alone);
        match agreed.and_then(|()| self.shut_door("seal").map_err(No::Unknown)) {
            Ok(()) => Ok(Sealed { window: self }),
            Err(no) => Err(self.refused(no)),
        }
    }
}

impl Sealed {
    /// This rank's part, as bytes.
    pub fn bytes(&self) -> &[u8] {
        let Some(base) = self.base() else { return &[] };
        // SAFETY: as `bytes_mut`, and `&self` excludes a mutable borrow.
        unsafe { core::slice::from_raw_parts(base, self.window.size() as usize) }
    }

    /// This rank's part, as bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(base) = self.base() else { return &mut [] };
        // SAFETY: the part is mapped and initialised as long as `self.window` lives, and of no
        // other value: `seal` saw that its backing is exclusive, and that the window alone has the
        // `Arc`, which stays there while it is sealed. By load and store no rank can reach it: all
        // have given their window away to `seal`, in whose agreement this rank saw them, and get it
        // back from `unseal` only, which waits for this rank and consumes `self`. By message none
        // can, whatever is still on its way: `seal` shut the part's door and saw no thread inside,
        // and `unseal`, which opens it, consumes `self`. So it is with a device, whose registration
        // `seal` took back. `&mut self` makes the borrow unique on this rank.
        unsafe { core::slice::from_raw_parts_mut(base, self.window.size() as usize) }
    }

    /// This rank's part as elements; an error if its size is not a multiple of the element's, or
    /// its address not aligned for it.
    pub fn as_slice<E: Element>(&self) -> Result<&[E], RmaError> {
        if self.base().is_none() {
            return Ok(&[]);
        }
        bytemuck::try_cast_slice(self.bytes()).map_err(|_| self.wrong_element::<E>())
    }

    /// As [`as_slice`](Self::as_slice), to be written.
    pub fn as_mut_slice<E: Element>(&mut self) -> Result<&mut [E], RmaError> {
        if self.base().is_none() {
            return Ok(&mut []);
        }
        let error = self.wrong_element::<E>();
        bytemuck::try_cast_slice_mut(self.bytes_mut()).map_err(|_| error)
    }

    /// Opens the window again. **Collective.** Waits until every rank has come here.
    pub fn unseal(mut self) -> Result<Window, RmaError> {
        // Before others can know: what they send then is to be served.
        let registered = self.window.register_again();
        self.window.part.door.open();
        if self.window.agree(Agreement::Seal, !registered)?.is_some() {
            self.window.leave_device();
        }
        Ok(self.window)
    }

    /// Where the part lies. One without bytes may lie nowhere, or where no element could.
    fn base(&self) -> Option<*mut u8> {
        (self.window.size() > 0).then(|| self.window.part.base())
    }

    fn wrong_element<E>(&self) -> RmaError {
        let (window, rank, width) = (self.window.id(), self.window.rank(), size_of::<E>() as u32);
        let size = self.window.size();
        if width > 0 && !size.is_multiple_of(width.into()) {
            return RmaError::NotWhole { window, rank, size, width };
        }
        RmaError::Misaligned { window, target: rank, disp: 0, width }
    }
}
