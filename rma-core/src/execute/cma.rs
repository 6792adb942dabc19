//! Operations by a copy of the operating system, to or from memory of another process.
#![allow(unsafe_code)]

use crate::error::RmaError;
use crate::operation::{Action, Operation, Sink};
use crate::route::CmaRoute;
use crate::transport::{CmaError, ImportError};
use crate::window::Window;

impl Window {
    /// Performs a put or a get of bytes that lie one behind the other on both sides.
    pub(super) fn execute_cma(
        &self,
        operation: &Operation<'_>,
        route: &CmaRoute<'_>,
        sink: Sink<'_>,
    ) -> Result<(), RmaError> {
        let CmaRoute { cma, owner, address, .. } = *route;
        let copied = if operation.action == Action::Get {
            cma.copy_from(owner, address, sink.bytes)
        } else {
            // SAFETY: the owner vouched for its part (`RawPart::new`), as long as it is part of the
            // window; or it gives it back once all have given the window away, or never
            // (`Memory`). Only as many bytes are written as were checked to lie
            // inside.
            unsafe { cma.copy_to(owner, address, operation.origin) }
        };
        copied.map_err(|error| match error {
            CmaError::PeerGone(peer) => self.import_failed(ImportError::PeerGone(peer)),
            error => RmaError::Cma { window: self.id(), target: operation.target, error },
        })
    }
}
