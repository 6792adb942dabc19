//! Semantics of one-sided communication: no system call, no environment, no clock.
//!
//! Applications use the crate `rma`, which re-exports what they need from here. What a
//! [`Transport`](transport::Transport) can do are objects: the same windows, epochs, locks and
//! collectives run over shared memory and over a simulator.

#![deny(unnameable_types)]

mod cartesian;
mod class;
mod collective;
mod config;
mod create;
mod element;
mod engine;
mod epoch;
mod error;
mod execute;
mod group;
mod integer;
mod layout;
mod memory;
mod object;
mod observe;
mod operation;
mod protocol;
mod rank;
mod route;
mod serve;
mod sync;
mod thread;
pub mod transport;
mod universe;
mod view;
mod window;
mod word;

pub use bytemuck;
pub use cartesian::{Cartesian, CartesianError};
pub use class::ErrorClass;
pub use collective::{Communicator, Reduction};
pub use config::{Allocator, AllocatorError, Claim, RequestedPart};
pub use config::{Config, ConfigError, HintError, ProgressAgent, Source};
pub use create::{Attached, Sealed, WindowBuilder};
pub use element::{AtomicElement, BasicElement, BasicType, Bool, Element, Op, Pair};
pub use engine::Counters;
pub use epoch::{
    Access, Assert, Batch, Exposure, Fence, Lock, LockAll, LockRequest, Operands, Ops,
};
pub use epoch::{OwnedLock, OwnedLockAll, OwnedOperands, Peer, Request, Start};
pub use error::{BatchError, CollectiveError, Refused, RmaError, Shortage, TryLimit, WindowError};
pub use group::Group;
pub use integer::Integer;
pub use layout::{Copies, Layout, LayoutAt, LayoutError, LayoutOf, Order, Signature};
pub use num_complex::{self, Complex};
pub use object::{Flavor, WindowId};
pub use observe::OperationCounts;
pub use operation::{Displacement, Origin, OriginBuffer, OriginMut, OwnedOrigin};
pub use rank::Rank;
pub use route::Path;
pub use sync::{EpochCall, EpochKind, LockKind};
pub use transport::{Backing, CommitGroup, Extent, HintChange, PersistError, Place};
pub use universe::Universe;
pub use view::{DurableRequest, View};
pub use window::{MemoryModel, RawPart, Window, WindowMemory};
