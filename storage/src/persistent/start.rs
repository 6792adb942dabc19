//! What a persistent window begins with when it is opened.

use super::error::PersistentError;
use super::hints::{PersistentHints, PersistentMode};
use super::{Ranks, agree};
use crate::store::{Catalog, Chosen, ElementType, Key, Medium, Piece, Version, divide};

type Result<T> = std::result::Result<T, PersistentError>;

pub(super) const OPENING: &str = "opening a persistent window";

/// What a rank begins with.
pub(super) struct Beginning {
    pub(super) catalog: Catalog,
    pub(super) base: Option<Version>,
    /// What the window lies on is what it holds.
    pub(super) is_plain: bool,
    /// Bytes of this rank's part so far.
    pub(super) held: Option<u64>,
    /// What the part begins with instead of `base`, if the window is divided anew.
    pub(super) pieces: Option<Vec<Piece>>,
}

impl Beginning {
    /// What there is, and whether it is what the hints ask for.
    pub(super) fn find(
        (medium, key): (&impl Medium, &Key),
        hints: &PersistentHints,
        (rank, here): (u32, u32),
        len: u64,
    ) -> Result<Self> {
        let name = || hints.name.clone();
        // What processes that were ended have written may be seen, and lost by the machine yet.
        medium.sync_folder(&hints.name)?;
        let catalog = Catalog::read(medium, &hints.name, key)?;
        if hints.volatile && !catalog.is_nothing() {
            let what = "it is a persistent window, which pmem_volatile would remove; choose \
                        another name, or delete it";
            return Err(PersistentError::Name { name: name(), what });
        }
        if let Some(held) = catalog.ranks()
            && held != here
            && !hints.divides()
        {
            return Err(PersistentError::Ranks { name: name(), held, here });
        }
        let told = |element: &ElementType| element.size > 0;
        if let Some(version) = catalog.versions.last()
            && told(&version.element)
            && told(&hints.element)
            && version.element != hints.element
        {
            let text = |element: ElementType| {
                let name = String::from_utf8_lossy(&element.name);
                format!("type {:?}, {} bytes", name.trim_end_matches('\0'), element.size)
            };
            let (held, requested) = (text(version.element), text(hints.element));
            return Err(PersistentError::Element { name: name(), held, requested });
        }
        let is_plain = catalog.is_plain(rank);
        let mut beginning = Self { catalog, base: None, is_plain, held: None, pieces: None };
        if hints.mode != PersistentMode::Checkpoint {
            beginning.base = beginning.catalog.newest(rank)?.cloned();
            let last = beginning.catalog.of_rank(rank).into_iter().rev();
            let held = last.filter_map(|version| version.part_of(rank)).map(|part| part.size);
            beginning.held = held.clone().next();
            if !hints.divides() {
                beginning.check_size(hints, rank, len)?;
            }
        }
        Ok(beginning)
    }

    /// Divides the window among ranks of so many bytes, unless it is divided so; all come to the
    /// same. Returns whether what this rank begins with is known by that.
    pub(super) fn divide(
        &mut self,
        hints: &PersistentHints,
        rank: u32,
        sizes: &[u64],
    ) -> Result<bool> {
        let chosen = match (hints.mode, hints.checkpoint_version) {
            (PersistentMode::Checkpoint, Some(number)) => Chosen::Number(number),
            (PersistentMode::Checkpoint, None) if hints.global => Chosen::OfAll,
            _ => Chosen::Newest,
        };
        self.pieces = divide(&self.catalog, chosen, rank, sizes)?;
        match (&self.pieces, hints.mode) {
            (Some(_), _) => {
                (self.base, self.held) = (None, None);
                Ok(true)
            }
            (None, PersistentMode::Checkpoint) => Ok(false),
            (None, _) => {
                let len = sizes.get(rank as usize).copied().unwrap_or(0);
                self.check_size(hints, rank, len).map(|()| true)
            }
        }
    }

    /// Whether the window is to have a version before it is used, as this rank knows of its own
    /// part; a record is of all parts.
    pub(super) fn needs_version(&self, hints: &PersistentHints, len: u64) -> bool {
        let is_other = match hints.plain {
            true => !self.is_plain || self.held != Some(len),
            false => self.is_plain,
        };
        self.catalog.is_nothing() || self.pieces.is_some() || is_other
    }

    fn check_size(&self, hints: &PersistentHints, rank: u32, requested: u64) -> Result<()> {
        let is_it = |held: u64| match hints.mode {
            PersistentMode::Expand => held <= requested,
            _ => held == requested,
        };
        match self.held {
            Some(held) if !is_it(held) => {
                Err(PersistentError::Size { name: hints.name.clone(), rank, held, requested })
            }
            _ => Ok(()),
        }
    }

    /// Which version all ranks return to; none if each to its own newest. **Collective**
    pub(super) async fn number(
        &self,
        ranks: &impl Ranks,
        hints: &PersistentHints,
    ) -> Result<Option<u64>> {
        if hints.checkpoint_version.is_some() || !hints.global {
            return Ok(hints.checkpoint_version);
        }
        let rank = ranks.rank();
        // One that cannot be read is not passed over in silence.
        let newest = self.catalog.newest(rank).map(drop);
        agree(ranks, OPENING, newest, |()| []).await?;
        let number = self.catalog.of_all(ranks.size());
        let numbers = || self.catalog.numbers(rank);
        number
            .map(Some)
            .ok_or_else(|| self.catalog.no_version(None, "every rank".to_owned(), numbers()))
    }

    pub(super) fn choose(
        &mut self,
        hints: &PersistentHints,
        rank: u32,
        number: Option<u64>,
        len: u64,
    ) -> Result<()> {
        if self.is_plain {
            let what = "what it holds was stored without transactions and is no version; open it \
                        without pmem_mode first, which makes it one";
            return Err(PersistentError::Mode { name: hints.name.clone(), what });
        }
        let found = match number {
            Some(number) => self.catalog.version(rank, number),
            None => self.catalog.newest(rank)?,
        };
        let numbers = || self.catalog.numbers(rank);
        let missing = || self.catalog.no_version(number, format!("rank {rank}"), numbers());
        let found = found.cloned().ok_or_else(missing)?;
        self.held = found.part_of(rank).map(|part| part.size);
        self.base = Some(found);
        self.check_size(hints, rank, len)
    }
}
