//! Semantics of one-sided communication: no system call, no environment, no clock.
//!
//! Applications use the crate `rma`, which re-exports what they need from here. This crate is
//! generic over a [`Transport`](transport::Transport): the same windows, epochs, locks and
//! collectives run over shared memory and over a simulator.

mod backing;
mod collective;
mod communicator;
mod completion;
mod device;
mod element;
mod epoch;
mod error;
mod execute;
mod group;
mod memory;
mod operation;
mod protocol;
mod rank;
mod route;
mod serve;
mod sync;
mod sync_block;
pub mod transport;
mod universe;
mod window;

pub use backing::{Backing, Extent, PersistError, Place};
pub use bytemuck;
pub use collective::Reduction;
pub use communicator::{Communicator, SplitError};
pub use completion::{Counters, ProgressAgent};
pub use element::{AtomicElement, BasicElement, BasicType, Bool, Element, Pair};
pub use epoch::{
    Access, Assert, EpochCall, EpochKind, Exposure, Fence, Lock, LockAll, LockKind, LockRequest,
    Ops, OriginBuffer, Request, Start,
};
pub use error::{CollectiveError, ErrorClass, RmaError, WindowError};
pub use group::Group;
pub use num_complex::{self, Complex};
pub use operation::{Layout, LayoutError, Op, Order, Shape, Signature};
pub use rank::Rank;
pub use route::{OperationCounts, Path};
pub use universe::{Config, Universe};
pub use window::{
    Attached, Flavor, HintError, MemoryModel, NotCreated, NotDone, RawPart, Refused, Sealed, View,
    Window, WindowBuilder, WindowId, WindowMemory,
};
