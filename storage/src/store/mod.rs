//! The store of versions: what survives any crash, over storage that may lose all that was not
//! synchronised, and any part of it.
//!
//! A window is a folder. Of each rank's part there are a file that the window lies on, a file of
//! blocks, and a manifest for each version, which says in which slots of that file the version has
//! its blocks: those that did not change are the same slots. Nothing that a version refers to is
//! ever written again. A version is there when one record of it is, which is written last and
//! appears by a rename; it names the manifests of all ranks by their checksums.
//!
//! The order of a commit is what all rests on: blocks, then `sync`; manifests, then `sync`; the
//! folder, `sync`; the record, `sync`; its name, and the folder, `sync`. Slots of versions that
//! are dropped are used again after the commit *after* the one that dropped them: only that one's
//! `sync` of the folder makes it durable that their records are gone.

mod catalog;
mod divide;
mod format;
mod medium;
mod part;

#[cfg(test)]
pub(crate) mod simulated;

pub(crate) use catalog::{Catalog, Damage, KEY_FILE, blocks_file, following, key_of, work_file};
pub(crate) use divide::{Chosen, Piece, divide};
pub(crate) use format::{BLOCK, ElementType, Key, PartRef, State, Version, tag};
pub(crate) use medium::{Disk, Medium, MediumError};
pub(crate) use part::{Decision, Opening, PartStore, read_range, write_version};
