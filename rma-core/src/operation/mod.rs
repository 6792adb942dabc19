//! What an operation is: what is done, to which target, with which bytes on either side.
mod buffer;
mod contiguous;
mod displacement;
mod origin;
mod side;

pub use buffer::{OriginBuffer, OwnedOrigin};
pub(crate) use contiguous::{Contiguous, OwnedOperation};
pub use displacement::Displacement;
pub(crate) use displacement::Spot;
pub(crate) use origin::for_each_slice;
pub(crate) use origin::sealed::Slice;
pub use origin::{Origin, OriginMut};
pub(crate) use side::{Piece, PieceRoom, Pieces, Side};

use crate::element::{BasicType, Op};
use crate::memory::target::Permit;
use crate::rank::Rank;

/// What happens to the bytes at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// They become the origin's.
    Put,
    /// They are copied to the sink.
    Get,
    /// They are combined with the origin's, element by element.
    Combine {
        op: Op,
        /// `None` if the layout at the target holds no elements, or not of one basic type.
        basic: Option<BasicType>,
        /// What was there is copied to the sink.
        fetches: bool,
    },
    /// One element becomes the second of the origin if it is the first; what was there is copied
    /// to the sink.
    Swap { basic: BasicType },
}

/// An operation on one target.
#[derive(Clone, Copy)]
pub(crate) struct Operation<'a> {
    /// As errors name it.
    pub(crate) what: &'static str,
    pub(crate) action: Action,
    /// By which epoch of this rank it may reach its target.
    pub(crate) permit: Permit,
    pub(crate) target: Rank,
    /// In the target's units.
    pub(crate) disp: u64,
    /// Which bytes of the target's part, counted from the displacement.
    pub(crate) there: Side<'a>,
    /// What goes to the target; not looked at for a get or for no_op.
    pub(crate) origin: &'a [u8],
    /// Which bytes of `origin`.
    pub(crate) from: Side<'a>,
    /// It is issued at once, or not at all: it waits for no room, and for no peer.
    pub(crate) tries: bool,
}

impl Operation<'_> {
    /// This, if it does not wait.
    pub(crate) fn if_trying(&self) -> Option<&Self> {
        self.tries.then_some(self)
    }

    /// The same, issued at once or not at all, if that is said.
    pub(crate) fn trying(self, tries: bool) -> Self {
        Self { tries, ..self }
    }
}

/// Where fetched bytes go; nowhere for puts and accumulates.
pub(crate) struct Sink<'a> {
    pub(crate) bytes: &'a mut [u8],
    /// Which of these.
    pub(crate) into: Side<'a>,
}

impl Action {
    /// Whether the origin's bytes go to the target.
    pub(crate) fn carries(self) -> bool {
        match self {
            Self::Get => false,
            Self::Put | Self::Swap { .. } => true,
            Self::Combine { op, .. } => op != Op::NoOp,
        }
    }

    /// The type of the elements that are combined.
    pub(crate) fn basic(self) -> Option<BasicType> {
        match self {
            Self::Put | Self::Get => None,
            Self::Combine { basic, .. } => basic,
            Self::Swap { basic } => Some(basic),
        }
    }
}

impl<'a> Sink<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        let into = Side::dense(bytes.len());
        Self { bytes, into }
    }

    /// Of operations that fetch nothing.
    pub(crate) fn none() -> Self {
        Self::new(&mut [])
    }

    /// For one call, after which this is used again.
    pub(crate) fn by_ref(&mut self) -> Sink<'_> {
        Sink { bytes: self.bytes, into: self.into }
    }
}
