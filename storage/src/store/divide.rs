//! A window that is one array, divided among ranks anew.
use super::catalog::{Catalog, owner};
use super::format::{PartRef, State};
use crate::PersistentError;
use core::ops::Range;

/// Bytes of a part of a version, which become bytes of a part of other ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) rank: u32,
    pub(crate) part: PartRef,
    pub(crate) range: Range<u64>,
}

/// Which version of each rank is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// Its newest.
    Newest,
    /// The newest that every rank holds.
    OfAll,
    /// That one.
    Number(u64),
}

/// The pieces that become the part of `rank`, one behind the other, if parts of so many bytes
/// (`sizes`, by rank) are others than the window has; all ranks come to the same.
pub(crate) fn divide(
    catalog: &Catalog,
    chosen: Chosen,
    rank: u32,
    sizes: &[u64],
) -> Result<Option<Vec<Piece>>, PersistentError> {
    let Some(held) = catalog.ranks() else { return Ok(None) };
    let name = || catalog.name.clone();
    if (0..held).any(|rank| catalog.is_plain(rank)) {
        // Of the same ranks, the parts are what they are.
        if held as usize == sizes.len() {
            return Ok(None);
        }
        let what = "what it holds was stored without transactions, which is not divided anew; \
                    open it with transactions and the ranks that made it first";
        return Err(PersistentError::Mode { name: name(), what });
    }
    let number = match chosen {
        Chosen::Newest => None,
        Chosen::OfAll => Some(catalog.of_all(held).ok_or_else(|| {
            catalog.no_version(None, "every rank".to_owned(), catalog.numbers(rank))
        })?),
        Chosen::Number(number) => Some(number),
    };
    let mut parts = Vec::new();
    for rank in 0..held {
        let version = match number {
            None => catalog.newest(rank)?,
            Some(number) => catalog.version(rank, number),
        };
        let part = version.and_then(|version| version.part_of(rank));
        parts.push(*part.ok_or_else(|| {
            catalog.no_version(number, format!("rank {rank}"), catalog.numbers(rank))
        })?);
    }
    if parts.iter().map(|part| part.size).eq(sizes.iter().copied()) {
        return Ok(None);
    }
    let (held, requested) = (parts.iter().map(|part| part.size).sum(), sizes.iter().sum());
    if held != requested {
        return Err(PersistentError::Total { name: name(), held, requested });
    }
    let start: u64 = sizes.iter().take(rank as usize).sum();
    let end = start + sizes.get(rank as usize).copied().unwrap_or(0);
    let (mut at, mut pieces) = (0, Vec::new());
    for (rank, part) in (0..).zip(parts) {
        let range = start.clamp(at, at + part.size) - at..end.clamp(at, at + part.size) - at;
        if !range.is_empty() {
            pieces.push(Piece { rank, part, range });
        }
        at += part.size;
    }
    Ok(Some(pieces))
}

/// Files of ranks that there are no more, since the window was divided among fewer: what of
/// `catalog` the job removes whose window it is, of so many ranks. First the records, whose names
/// are gone before the files are that they refer to.
pub(crate) fn left_over(catalog: &Catalog, ranks: u32) -> (Vec<(u64, u32)>, Vec<String>) {
    // What cannot be read may be of more ranks; and if the newest is of others, it is still theirs.
    let is_ours = catalog.ranks() == Some(ranks);
    if !is_ours || !catalog.damaged.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let alone = |version: &super::Version| {
        version.alone.filter(|rank| *rank >= ranks).map(|rank| (version.serial, rank))
    };
    let records = catalog.versions.iter().filter_map(alone).collect();
    let of_all = catalog.versions.iter().filter(|version| version.alone.is_none());
    let needed = of_all.filter(|version| version.state != State::Deleted);
    let needed = needed.map(|version| version.ranks).max().unwrap_or(0).max(ranks);
    let files = catalog.files.iter();
    let files = files.filter(|file| owner(file).is_some_and(|rank| rank >= needed));
    (records, files.cloned().collect())
}
