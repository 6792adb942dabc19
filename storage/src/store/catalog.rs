//! Which versions a window has, as its folder shows.
use super::format::{
    Flaw, KEY_COPY, KEY_RECORD, Key, State, Version, key_record, read_key, read_version,
};
use super::medium::{Medium, MediumError, Result};
use crate::PersistentError;

/// Behind the name of a file that is being written.
pub(crate) const NEW: &str = ".new";

/// The file of a version's record: of all ranks, or of one alone.
pub(crate) fn version_file(name: &str, serial: u64, alone: Option<u32>) -> String {
    match alone {
        None => format!("{name}/version.{serial:08}"),
        Some(rank) => format!("{name}/version.{serial:08}.{rank}"),
    }
}

/// The file of the manifest of a rank's part.
pub(crate) fn part_file(name: &str, rank: u32, serial: u64) -> String {
    format!("{name}/part.{rank}.{serial:08}")
}

pub(crate) fn blocks_file(name: &str, rank: u32) -> String {
    format!("{name}/blocks.{rank}")
}

/// What a rank's part of the window lies on.
pub(crate) fn work_file(name: &str, rank: u32) -> String {
    format!("{name}/work.{rank}")
}

/// Serial and, of one alone, rank; nothing but what [`version_file`] writes.
fn parse_version(file: &str) -> Option<(u64, Option<u32>)> {
    let rest = file.strip_prefix("version.")?;
    let (serial, alone) = match rest.split_once('.') {
        None => (rest.parse().ok()?, None),
        Some((serial, rank)) => (serial.parse().ok()?, Some(rank.parse().ok()?)),
    };
    let is_it = version_file("", serial, alone).strip_prefix('/') == Some(file);
    is_it.then_some((serial, alone))
}

/// Rank and serial.
pub(crate) fn parse_part(file: &str) -> Option<(u32, u64)> {
    let (rank, serial) = file.strip_prefix("part.")?.split_once('.')?;
    let (rank, serial) = (rank.parse().ok()?, serial.parse().ok()?);
    (part_file("", rank, serial).strip_prefix('/') == Some(file)).then_some((rank, serial))
}

/// The rank whose file it is, but for records of versions; only of names that are given here.
pub(crate) fn owner(file: &str) -> Option<u32> {
    let of = |kind: &str, name: fn(&str, u32) -> String| {
        let rank = file.strip_prefix(kind)?.parse().ok()?;
        (name("", rank).strip_prefix('/') == Some(file)).then_some(rank)
    };
    let part = parse_part(file).map(|(rank, _)| rank);
    part.or_else(|| of("blocks.", blocks_file)).or_else(|| of("work.", work_file))
}

/// The number of what comes next.
pub(crate) fn following(name: &str, number: u64) -> std::result::Result<u64, PersistentError> {
    let what = "its numbers are used up, as no commit has done: the name of a file `version.…` in \
                its folder has the last one; move that file away";
    number.checked_add(1).ok_or_else(|| PersistentError::Arg { name: name.to_owned(), what })
}

/// The file of a root's key, by which its records are checked.
pub(crate) const KEY_FILE: &str = "rma-root";

/// The key of a root: the one that it has or, if it has none, that of `fresh`, which may refuse.
/// `None` if what is there is neither of its two records.
pub(crate) fn key_of<M: Medium, E: From<MediumError>>(
    medium: &M,
    fresh: impl FnOnce() -> std::result::Result<Key, E>,
) -> std::result::Result<Option<Key>, E> {
    if let Some(bytes) = medium.read(KEY_FILE)? {
        // It may have got its name from a process that was ended before that was durable.
        medium.sync_folder("")?;
        let record = |at: usize| bytes.get(at..).and_then(|bytes| bytes.get(..KEY_RECORD));
        let keys = [0, KEY_COPY].into_iter().filter_map(record);
        return Ok(keys.filter_map(|record| read_key(record).ok()).next());
    }
    let key = fresh()?;
    let mut bytes = vec![0; KEY_COPY + KEY_RECORD];
    bytes[..KEY_RECORD].copy_from_slice(&key_record(&key));
    bytes[KEY_COPY..].copy_from_slice(&key_record(&key));
    let new = format!("{KEY_FILE}{NEW}");
    medium.write_durable(&new, &bytes)?;
    medium.rename(&new, KEY_FILE)?;
    medium.sync_folder("")?;
    Ok(Some(key))
}

/// A record that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) file: String,
    pub(crate) serial: u64,
    pub(crate) alone: Option<u32>,
    pub(crate) flaw: Flaw,
}

/// All records of versions of a window, by their serials.
#[derive(Debug, Clone, Default)]
pub(crate) struct Catalog {
    pub(crate) name: String,
    pub(crate) versions: Vec<Version>,
    pub(crate) damaged: Vec<Damage>,
    /// All files in the folder.
    pub(crate) files: Vec<String>,
}

impl Catalog {
    pub(crate) fn read<M: Medium>(medium: &M, name: &str, key: &Key) -> Result<Self> {
        let files = medium.list(name)?.unwrap_or_default();
        let (mut versions, mut damaged) = (Vec::new(), Vec::new());
        for file in &files {
            let Some((serial, alone)) = parse_version(file) else { continue };
            let path = format!("{name}/{file}");
            // Removed since, by the process that has the root.
            let Some(bytes) = medium.read(&path)? else { continue };
            match read_version(&bytes, name, key) {
                Ok(version) if (version.serial, version.alone) == (serial, alone) => {
                    versions.push(version);
                }
                Ok(_) => damaged.push(Damage { file: path, serial, alone, flaw: Flaw::Misplaced }),
                Err(flaw) => damaged.push(Damage { file: path, serial, alone, flaw }),
            }
        }
        versions.sort_by_key(|version| version.serial);
        Ok(Self { name: name.to_owned(), versions, damaged, files })
    }

    /// Whether there is no such window: its making may not have come to an end.
    pub(crate) fn is_nothing(&self) -> bool {
        self.versions.is_empty() && self.damaged.is_empty()
    }

    /// Among how many ranks the window is divided.
    pub(crate) fn ranks(&self) -> Option<u32> {
        self.versions.last().map(|version| version.ranks)
    }

    pub(crate) fn highest_serial(&self) -> u64 {
        let damaged = self.damaged.iter().map(|damage| damage.serial);
        self.versions.iter().map(|version| version.serial).chain(damaged).max().unwrap_or(0)
    }

    pub(crate) fn highest_number(&self) -> u64 {
        self.versions.iter().map(|version| version.highest.max(version.number)).max().unwrap_or(0)
    }

    /// What counts for a rank, oldest first. A version takes the place of those before it that have
    /// its number or a higher one.
    pub(crate) fn of_rank(&self, rank: u32) -> Vec<&Version> {
        let mut held: Vec<&Version> = Vec::new();
        let own = |alone: Option<u32>| alone.is_none_or(|alone| alone == rank);
        for version in self.versions.iter().filter(|version| own(version.alone)) {
            if version.state != State::Plain {
                let number = version.number;
                held.retain(|held| held.state == State::Plain || held.number < number);
            }
            held.push(version);
        }
        held
    }

    /// Versions that a rank can return to, oldest first: not those of another number of ranks, from
    /// before the window was divided anew.
    pub(crate) fn kept(&self, rank: u32) -> Vec<&Version> {
        let mut held = self.of_rank(rank);
        let ranks = self.ranks();
        held.retain(|version| version.state == State::Kept && Some(version.ranks) == ranks);
        held
    }

    /// Whether what a rank's part lies on is what it holds.
    pub(crate) fn is_plain(&self, rank: u32) -> bool {
        self.of_rank(rank).last().is_some_and(|version| version.state == State::Plain)
    }

    pub(crate) fn numbers(&self, rank: u32) -> Vec<u64> {
        self.kept(rank).iter().map(|version| version.number).collect()
    }

    /// The version of that number, as the rank holds it.
    pub(crate) fn version(&self, rank: u32, number: u64) -> Option<&Version> {
        self.kept(rank).into_iter().find(|version| version.number == number)
    }

    /// The newest number that each of so many ranks can return to.
    pub(crate) fn of_all(&self, ranks: u32) -> Option<u64> {
        let is_held = |number: &u64| (0..ranks).all(|rank| self.version(rank, *number).is_some());
        self.numbers(0).into_iter().rev().find(is_held)
    }

    /// What says that `holder`, which has those numbers, has not that one, or none.
    pub(crate) fn no_version(
        &self,
        number: Option<u64>,
        holder: String,
        there: impl IntoIterator<Item = u64>,
    ) -> PersistentError {
        let held: Vec<_> = there.into_iter().map(|number| number.to_string()).collect();
        PersistentError::NoVersion {
            name: self.name.clone(),
            version: number.map_or("at all".to_owned(), |number| number.to_string()),
            holder,
            held: if held.is_empty() { "none".to_owned() } else { held.join(", ") },
        }
    }

    /// The newest one, unless what came after it cannot be read.
    pub(crate) fn newest(
        &self,
        rank: u32,
    ) -> std::result::Result<Option<&Version>, PersistentError> {
        let newest = self.kept(rank).last().copied();
        let after = self.of_rank(rank).last().map_or(0, |version| version.serial);
        let own = |alone: Option<u32>| alone.is_none_or(|alone| alone == rank);
        match self.damaged.iter().find(|damage| damage.serial > after && own(damage.alone)) {
            None => Ok(newest),
            Some(Damage { file, flaw, .. }) => {
                let (name, what, flaw) = (self.name.clone(), file.clone(), flaw.text());
                Err(PersistentError::Damaged { name, what, flaw })
            }
        }
    }
}
