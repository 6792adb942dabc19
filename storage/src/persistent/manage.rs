//! What there is below a root: to be listed, checked, compared, returned to, deleted, exported.
use super::error::PersistentError;
use super::hints::check_name;
use super::root::Root;
use crate::lock::{lock_range, unlock_range};
use crate::store::{
    BLOCK, Catalog, Damage, ElementType, Medium, PartRef, State, Version, following, read_range,
    write_version,
};
use core::ops::Range;
use hmac_sha256::Hash;
use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

type Result<T> = std::result::Result<T, PersistentError>;

/// Where a window is put that is being deleted.
const DELETED: &str = "rma-root.deleted";

/// A persistent window below a root.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct WindowSummary {
    /// Its name.
    pub name: String,
    /// How many ranks made it.
    pub ranks: u32,
    /// Bytes of its parts together, as the newest record has them.
    pub bytes: u64,
    /// Type of its elements, as numpy writes it; empty if that was not told.
    pub element: String,
    /// It is used without transactions: its newest contents are no version.
    pub is_plain: bool,
    /// Its versions, oldest first.
    pub versions: Vec<VersionSummary>,
    /// Records that cannot be read, with what is wrong.
    pub damaged: Vec<(String, &'static str)>,
}

/// A version of a persistent window.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct VersionSummary {
    /// Its number.
    pub number: u64,
    /// When it was made.
    pub time: SystemTime,
    /// The rank that made it by itself; none if all did.
    pub alone: Option<u32>,
    /// Bytes of the parts that it has.
    pub bytes: u64,
}

fn named(version: &Version) -> VersionSummary {
    let (number, alone) = (version.number, version.alone);
    let time = UNIX_EPOCH + Duration::from_nanos(version.time_ns);
    let bytes = version.parts.iter().map(|part| part.size).sum();
    VersionSummary { number, time, alone, bytes }
}

fn type_name(element: &ElementType) -> String {
    String::from_utf8_lossy(&element.name).trim_end_matches('\0').to_owned()
}

impl Root {
    /// The windows below the root.
    ///
    /// # Errors
    ///
    /// [`PersistentError::System`].
    pub fn windows(&self) -> Result<Vec<WindowSummary>> {
        let names = self.inner.disk.list("")?.unwrap_or_default();
        let mut windows = Vec::new();
        for name in names.iter().filter(|name| check_name(name).is_ok()) {
            let catalog = Catalog::read(&self.inner.disk, name, &self.inner.key)?;
            if !catalog.is_nothing() {
                windows.push(summary(&catalog));
            }
        }
        Ok(windows)
    }

    /// One window.
    ///
    /// # Errors
    ///
    /// [`PersistentError::Name`], [`PersistentError::System`].
    pub fn window(&self, name: &str) -> Result<WindowSummary> {
        self.catalog(name).map(|catalog| summary(&catalog))
    }

    fn catalog(&self, name: &str) -> Result<Catalog> {
        check_name(name)?;
        let catalog = Catalog::read(&self.inner.disk, name, &self.inner.key)?;
        let what = "there is no such window below this root; `rma-store list` shows them";
        match catalog.is_nothing() {
            true => Err(PersistentError::Name { name: name.to_owned(), what }),
            false => Ok(catalog),
        }
    }

    /// The window, to be changed: no rank has it open.
    fn closed(&self, name: &str) -> Result<Catalog> {
        let catalog = self.catalog(name)?;
        if !self.is_locked() {
            let what = "its root is open to be listed only";
            return Err(PersistentError::Arg { name: name.to_owned(), what });
        }
        for file in catalog.files.iter().filter(|file| file.starts_with("work.")) {
            let Some(file) = self.inner.disk.open(&format!("{name}/{file}"))? else { continue };
            if lock_range(&file, 0, i64::MAX as u64) != Ok(true) {
                return Err(PersistentError::WindowInUse { name: name.to_owned() });
            }
            unlock_range(&file, 0, i64::MAX as u64);
        }
        self.inner.disk.sync_folder(name)?;
        Ok(catalog)
    }

    /// Reads all versions of a window, and says of each what is wrong with it, if anything is.
    /// `progress` hears of bytes that were read, and of all.
    ///
    /// # Errors
    ///
    /// [`PersistentError::Name`], [`PersistentError::System`]; what is damaged is no error here.
    pub fn verify(
        &self,
        name: &str,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Vec<(VersionSummary, Option<PersistentError>)>> {
        let catalog = self.catalog(name)?;
        let versions: Vec<_> = counted(&catalog).collect();
        let all = versions.iter().flat_map(|version| &version.parts).map(|part| part.size).sum();
        let (mut done, mut verdicts) = (0, Vec::new());
        for version in versions {
            let mut flaw = None;
            for (rank, part) in parts(version) {
                let before = done;
                let checked = self.read(name, rank, part, |bytes| {
                    done += bytes.len() as u64;
                    progress(done, all);
                    Ok(())
                });
                done = before + part.size;
                flaw = flaw.or(checked.err());
            }
            verdicts.push((named(version), flaw));
        }
        Ok(verdicts)
    }

    fn read(
        &self,
        name: &str,
        rank: u32,
        part: &PartRef,
        bytes: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        read_range(&self.inner.disk, &self.inner.key, name, rank, part, 0..part.size, bytes)
    }

    /// Where two versions differ: of each rank, ranges of bytes, in whole blocks.
    ///
    /// # Errors
    ///
    /// [`PersistentError::NoVersion`] if a rank holds one of them and not the other,
    /// [`PersistentError::Damaged`].
    pub fn diff(&self, name: &str, one: u64, other: u64) -> Result<Vec<(u32, Vec<Range<u64>>)>> {
        let catalog = self.catalog(name)?;
        let (first, second) = (held(&catalog, one)?, held(&catalog, other)?);
        let mut found = Vec::new();
        let ranks = |of: &[(u32, PartRef)]| of.iter().map(|(rank, _)| *rank).collect::<Vec<_>>();
        if ranks(&first) != ranks(&second) {
            return Err(no_version(&catalog, other, "all ranks"));
        }
        for ((rank, one), (_, other)) in first.iter().zip(&second) {
            let digests = |part: &PartRef| {
                let mut digests = Vec::new();
                self.read(name, *rank, part, |bytes| {
                    digests.push((Hash::hash(bytes), bytes.len()));
                    Ok(())
                })?;
                Ok::<_, PersistentError>(digests)
            };
            let (one_is, other_is) = (digests(one)?, digests(other)?);
            let size = one.size.max(other.size);
            let mut ranges: Vec<Range<u64>> = Vec::new();
            for number in 0..one_is.len().max(other_is.len()) {
                if one_is.get(number) == other_is.get(number) {
                    continue;
                }
                let start = (number * BLOCK) as u64;
                let end = size.min(start + BLOCK as u64);
                match ranges.last_mut().filter(|last| last.end == start) {
                    Some(last) => last.end = end,
                    None => ranges.push(start..end),
                }
            }
            found.push((*rank, ranges));
        }
        Ok(found)
    }

    /// Makes what a version holds the newest one, under the next number, which it returns. Nothing
    /// is copied, and no version is lost.
    ///
    /// # Errors
    ///
    /// [`PersistentError::NoVersion`] unless all ranks hold it, [`PersistentError::Damaged`],
    /// [`PersistentError::WindowInUse`]; [`PersistentError::Mode`] if the window's newest contents
    /// are no version.
    pub fn restore(&self, name: &str, number: u64) -> Result<u64> {
        let catalog = self.closed(name)?;
        let found = held(&catalog, number)?;
        let ranks = catalog.ranks().unwrap_or(0);
        if (0..ranks).any(|rank| catalog.is_plain(rank)) {
            let what = "what it holds was stored without transactions and is no version, and would \
                        be lost; open it with transactions first, which makes it one";
            return Err(PersistentError::Mode { name: name.to_owned(), what });
        }
        if found.len() != ranks as usize {
            return Err(no_version(&catalog, number, "every rank"));
        }
        for (rank, part) in &found {
            self.read(name, *rank, part, |_| Ok(()))?;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let next = following(name, catalog.highest_number())?;
        let element = catalog.versions.last().map(|version| version.element).unwrap_or_default();
        let version = Version {
            number: next,
            serial: following(name, catalog.highest_serial())?,
            highest: next,
            time_ns: since.as_nanos() as u64,
            state: State::Kept,
            ranks,
            alone: None,
            element,
            parts: found.into_iter().map(|(_, part)| part).collect(),
        };
        write_version(&self.inner.disk, &self.inner.key, name, &version)?;
        Ok(next)
    }

    /// Deletes a window, with all its versions.
    ///
    /// # Errors
    ///
    /// [`PersistentError::Name`], [`PersistentError::WindowInUse`].
    pub fn delete(&self, name: &str) -> Result<()> {
        self.closed(name)?;
        let disk = &self.inner.disk;
        let clear = || {
            for file in disk.list(DELETED)?.unwrap_or_default() {
                disk.remove(&format!("{DELETED}/{file}"))?;
            }
            disk.remove_folder(DELETED)
        };
        // What an earlier deletion has left.
        clear()?;
        // In one step: a window that is deleted in part would be an older one.
        disk.rename(name, DELETED)?;
        disk.sync_folder("")?;
        Ok(clear()?)
    }

    /// Deletes a version. Its number is not given again, and its space is used by later ones.
    ///
    /// # Errors
    ///
    /// [`PersistentError::NoVersion`], [`PersistentError::OnlyVersion`],
    /// [`PersistentError::WindowInUse`].
    pub fn delete_version(&self, name: &str, number: u64) -> Result<()> {
        let catalog = self.closed(name)?;
        let is_it = |version: &&Version| version.number == number && version.state == State::Kept;
        let found: Vec<_> = catalog.versions.iter().filter(is_it).collect();
        if found.is_empty() {
            return Err(no_version(&catalog, number, "any rank"));
        }
        let ranks = catalog.ranks().unwrap_or(0);
        let is_only = |rank: u32| catalog.numbers(rank) == [number] && !catalog.is_plain(rank);
        if (0..ranks).any(is_only) {
            return Err(PersistentError::OnlyVersion { name: name.to_owned(), version: number });
        }
        for version in found {
            // What is left remembers the number, and that earlier records no longer count.
            let mut deleted = version.clone();
            (deleted.state, deleted.parts) = (State::Deleted, Vec::new());
            write_version(&self.inner.disk, &self.inner.key, name, &deleted)?;
        }
        Ok(self.inner.disk.sync_folder(name)?)
    }

    /// Bytes that a window takes: what it lies on, blocks of versions, and records.
    ///
    /// # Errors
    ///
    /// [`PersistentError::Name`], [`PersistentError::System`].
    pub fn usage(&self, name: &str) -> Result<[u64; 3]> {
        let mut bytes = [0; 3];
        for file in self.catalog(name)?.files {
            let Some(opened) = self.inner.disk.open(&format!("{name}/{file}"))? else { continue };
            let kinds = ["work.", "blocks."];
            let kind = kinds.iter().position(|kind| file.starts_with(kind)).unwrap_or(2);
            bytes[kind] += self.inner.disk.len(&opened)?;
        }
        Ok(bytes)
    }

    /// Writes the bytes of a version, of one rank or of all in their order: as they are, or as a
    /// file of numpy.
    ///
    /// # Errors
    ///
    /// [`PersistentError::NoVersion`], [`PersistentError::Damaged`]; [`PersistentError::Arg`] if
    /// the type of elements is not known, [`PersistentError::System`] of `to`.
    pub fn export(
        &self,
        name: &str,
        number: u64,
        rank: Option<u32>,
        is_npy: bool,
        to: &mut dyn Write,
    ) -> Result<()> {
        let catalog = self.catalog(name)?;
        let mut found = held(&catalog, number)?;
        if let Some(rank) = rank {
            found.retain(|(of, _)| *of == rank);
        }
        if found.is_empty() {
            return Err(no_version(&catalog, number, "that rank"));
        }
        let mut write = |bytes: &[u8]| {
            to.write_all(bytes).map_err(|error| {
                let errno = error.raw_os_error().unwrap_or_default();
                PersistentError::System { path: "the export".to_owned(), call: "write", errno }
            })
        };
        if is_npy {
            let bytes = found.iter().map(|(_, part)| part.size).sum::<u64>();
            let element = catalog.versions.last().map(|version| version.element);
            write(&npy_head(name, &element.unwrap_or_default(), bytes)?)?;
        }
        for (rank, part) in &found {
            self.read(name, *rank, part, &mut write)?;
        }
        Ok(())
    }
}

/// What stands before the elements in a file of numpy: format 1.0, one dimension.
fn npy_head(name: &str, element: &ElementType, bytes: u64) -> Result<Vec<u8>> {
    let refused = |what| PersistentError::Arg { name: name.to_owned(), what };
    let size = u64::from(element.size);
    if size == 0 {
        return Err(refused("its type of elements was not told; export raw bytes"));
    }
    if !bytes.is_multiple_of(size) {
        return Err(refused("its parts are no whole elements; export raw bytes"));
    }
    let (kind, count) = (type_name(element), bytes / size);
    let text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({count},), }}");
    // With the ten bytes before it, and the end of the line, a multiple of 64.
    let len = (10 + text.len() + 1).next_multiple_of(64) - 10;
    let mut head = b"\x93NUMPY\x01\x00".to_vec();
    head.extend((len as u16).to_le_bytes());
    head.extend(format!("{text:<width$}\n", width = len - 1).as_bytes());
    Ok(head)
}

fn parts(version: &Version) -> impl Iterator<Item = (u32, &PartRef)> {
    (version.alone.unwrap_or(0)..).zip(&version.parts)
}

/// Those that any rank can return to.
fn counted(catalog: &Catalog) -> impl Iterator<Item = &Version> {
    let ranks = catalog.ranks().unwrap_or(0);
    let serials: BTreeSet<_> = (0..ranks)
        .flat_map(|rank| catalog.kept(rank))
        .map(|version| (version.serial, version.alone))
        .collect();
    let is_it = move |version: &&Version| serials.contains(&(version.serial, version.alone));
    catalog.versions.iter().filter(is_it)
}

/// The parts of a version, by rank.
fn held(catalog: &Catalog, number: u64) -> Result<Vec<(u32, PartRef)>> {
    let ranks = catalog.ranks().unwrap_or(0);
    let part = |rank| Some((rank, *catalog.version(rank, number)?.part_of(rank)?));
    let found: Vec<_> = (0..ranks).filter_map(part).collect();
    if found.is_empty() { Err(no_version(catalog, number, "any rank")) } else { Ok(found) }
}

fn no_version(catalog: &Catalog, number: u64, holder: &str) -> PersistentError {
    let numbers: BTreeSet<_> = counted(catalog).map(|version| version.number).collect();
    catalog.no_version(Some(number), holder.to_owned(), numbers)
}

fn summary(catalog: &Catalog) -> WindowSummary {
    let newest = catalog.versions.last();
    let ranks = newest.map_or(0, |version| version.ranks);
    let size = |rank| {
        let last = catalog.of_rank(rank).into_iter().rev();
        last.filter_map(|version| version.part_of(rank)).map(|part| part.size).next().unwrap_or(0)
    };
    let damaged = catalog.damaged.iter();
    WindowSummary {
        name: catalog.name.clone(),
        ranks,
        bytes: (0..ranks).map(size).sum(),
        element: newest.map(|version| type_name(&version.element)).unwrap_or_default(),
        is_plain: (0..ranks).any(|rank| catalog.is_plain(rank)),
        versions: counted(catalog).map(named).collect(),
        damaged: damaged.map(|Damage { file, flaw, .. }| (file.clone(), flaw.text())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_numpy_files_are_aligned() {
        let element = ElementType { name: *b"<f8\0\0\0\0\0", size: 8 };
        for count in [0, 1, 12345678] {
            let head = npy_head("n", &element, count * 8).unwrap();
            assert_eq!(head.len() % 64, 0);
            assert_eq!(head.last(), Some(&b'\n'));
            let text = String::from_utf8_lossy(&head[10..]).into_owned();
            assert!(text.starts_with(&format!(
                "{{'descr': '<f8', 'fortran_order': False, 'shape': ({count},), }}"
            )));
        }
        assert!(npy_head("n", &element, 7).is_err());
        assert!(npy_head("n", &ElementType::default(), 8).is_err());
        assert!(check_name(DELETED).is_err(), "the root's own name");
    }
}
