//! Starting a job: the launcher `rma-run`, and the ranks' side of its bootstrap.
//!
//! `rma-run -n N PROGRAM` starts N processes and listens on a port of 127.0.0.1. Each process
//! finds four variables in its environment: `RMA_BOOTSTRAP` (where to connect), `RMA_RANK`,
//! `RMA_SECRET_FD` (a pipe that it inherits, with 32 random bytes of this job), and
//! `RMA_BULLETIN_FD` (memory that it inherits, to tell what it waits for). [`detect`] reads
//! them, and [`Client::connect`] joins the job. The connection carries what ranks need to find each
//! other, and tells the launcher how a rank left; it is on no data path.
//!
//! For programs of MPI, `rma-run` is a server of PMI-1, at a socket that each process inherits
//! (`PMI_FD`). [`detect`] does not take it for a launcher of others.
//!
//! A process that a launcher of others has started ([`Managed`]) joins by [`Client::join`]: PMI or
//! PMIx carries where rank 0 listens, and a thread of rank 0 does what `rma-run` does for the
//! bootstrap.
//!
//! # On the wire
//!
//! A frame is a length (`u32`, little-endian) and as many bytes of a message: its fields one
//! behind the other, integers little-endian, lengths in front (`codec.rs`). Before the hello is
//! over, a frame has at most 1 KiB, and 64 KiB the one that ends it; afterwards, 16 MiB.
//!
//! ```text
//! launcher                                                    rank
//!   | -- Challenge { magic "rma-boot", version, nonce L } ----> |
//!   | <-- Hello { version, rank, pid, nonce R, mac } ---------- |   mac: HMAC-SHA-256 over
//!   |                                                           |   "rank", L, R and the rest
//!   | -- Welcome { mac, job }  or  Refused(why) --------------> |   mac: HMAC-SHA-256 over
//!   |                                                           |   "launcher", R, L and job
//!   | <-- Gather { mine } ------------------------------------- |   any number of times
//!   | -- Gathered { all } | Broken { rank } | TooLarge -------> |
//!   | <-- Card { card } --------------------------------------- |   where this rank is reached
//!   | <-- Query { rank } -------------------------------------- |   when it first talks to it
//!   | -- Card { rank, card } ---------------------------------> |
//!   | <-- Note { text } --------------------------------------- |   printed once for each text
//!   | <-- Leave { failed, missed } ---------------------------- |   then end of stream
//!   | -- Gone { first, count, fate } -------------------------> |   of other hosts, at any time
//!   | <-- Departed { fate } ----------------------------------- |   then, if there are others
//! ```
//!
//! The secret itself never travels, and stands in no environment: the first that reads a rank's
//! pipe has it, and what a rank starts later has not. Both sides contribute a nonce, so nothing
//! recorded can be played again; a caller without the secret is refused, costs the launcher a
//! bounded amount of memory, and does not disturb the job. Each frame behind the hello ends with a
//! number and a checksum (`seal.rs`), by a key of the connection, the rank and the direction: one
//! that was altered, made up or sent before is refused and counted. The connection ends where one
//! is missing or 100 were refused, and, of a rank, where one was altered or made up.
//!
//! # Which process notices what
//!
//! - A rank dies: the launcher sees it, ends the others (SIGTERM, then SIGKILL), and exits as the
//!   rank did.
//! - A rank exits with 0 but never said `Leave`, or never said hello while others did: peers may
//!   be waiting for it, so that the job fails and the message says so.
//! - A rank leaves in order, or dies, and another one fails because it waited for it: that one says
//!   so with its `Leave`, and the message names the rank that left or died, whichever ends first.
//! - The launcher dies: the kernel kills its children (`PR_SET_PDEATHSIG`), and a warden process
//!   kills what they had started: what is in their process groups, and what went to a group or
//!   session of its own (`setsid`) and still has `RMA_JOB_ID` of this job in its environment.
//! - The warden dies: the launcher starts another.
//!
//! # Questions from outside
//!
//! `rma-run why` and `top` ask the launcher of a job, at an abstract socket that is named for its
//! user and process. The launcher answers its own user and the superuser, which the kernel tells
//! apart, from what ranks have written into their bulletins and what `/proc` says of them.
//!
//! The feature `server` (default) adds the library side of `rma-run`, [`run`]; without it this
//! crate is the client alone.

/// Has `Debug` of errors print what `Display` does: it is what `main` and `unwrap` show.
macro_rules! debug_as_display {
    ($error:ident) => {
        impl ::core::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                // In one piece: standard error keeps nothing back, and a process that is ended
                // between two pieces leaves half a sentence.
                f.write_str(&::std::string::ToString::to_string(self))
            }
        }
    };
}
use debug_as_display;

mod addresses;
mod bulletin;
mod cards;
mod client;
mod codec;
mod environment;
mod foreign;
mod gather;
mod inherited;
mod notes;
mod pmi;
mod rumours;
#[cfg(feature = "server")]
pub mod run;
mod seal;
mod serve;
mod start;
mod wire;

pub use bulletin::BulletinWords;
pub use client::{Client, Fate, Host, Job, SettingSource};
pub use environment::{
    ROOT_VAR, detect_process, is_launched, provider_acts_by_itself, provider_filter, root,
};
pub use pmi::Managed;
pub use start::{
    BOOTSTRAP_VAR, BULLETIN_VAR, JOB_VAR, PMI_VAR, RANK_VAR, SECRET_VAR, Settings, Start,
    StartError, detect,
};
pub use wire::Refusal;
