//! What memory on storage is to be: the hints of the paper, and those of MPI-IO that apply.
use crate::StorageError;
use crate::striping::Striping;
use core::str::FromStr;
use rma_core::HintError;
use std::path::{Path, PathBuf};

/// How much of the memory is on storage: `storage_alloc_factor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StorageFactor {
    /// So much of it, from 0 to 1.
    Share(f64),
    /// What exceeds half of what this rank may still have of the memory of its node. That differs
    /// from run to run, and with it which bytes of the window are those of the file: for memory
    /// that is to be found again, say a share.
    Auto,
}

/// Which part comes first where some is in memory and some on storage: `storage_alloc_order`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageOrder {
    /// Memory, then storage.
    MemoryFirst,
    /// Storage, then memory.
    StorageFirst,
}

/// How the program goes through the memory: `access_style`, MPI-IO's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessStyle {
    /// Each byte is read once.
    ReadOnce,
    /// Each byte is written once.
    WriteOnce,
    /// Mostly read.
    ReadMostly,
    /// Mostly written.
    WriteMostly,
    /// From the beginning to the end.
    Sequential,
    /// From the end to the beginning.
    ReverseSequential,
    /// In no order.
    Random,
}

/// Each style by its word.
const STYLES: [(&str, AccessStyle); 7] = [
    ("read_once", AccessStyle::ReadOnce),
    ("write_once", AccessStyle::WriteOnce),
    ("read_mostly", AccessStyle::ReadMostly),
    ("write_mostly", AccessStyle::WriteMostly),
    ("sequential", AccessStyle::Sequential),
    ("reverse_sequential", AccessStyle::ReverseSequential),
    ("random", AccessStyle::Random),
];
const FILE: &str = "storage_alloc_filename";
/// All but `alloc_type`, which is the window's.
const KEYS: [&str; 11] = [
    FILE,
    "storage_alloc_offset",
    "storage_alloc_factor",
    "storage_alloc_order",
    "storage_alloc_unlink",
    "storage_alloc_discard",
    "access_style",
    "file_perm",
    "striping_factor",
    "striping_unit",
    "rma_storage_consecutive",
];
/// What stands for the number of the rank in a file's name.
const RANK: &str = "{rank}";

/// What [`StorageMemory::open`](crate::StorageMemory::open) makes: typed, or
/// [by key and value](Self::from_info).
///
/// ```
/// use rma_storage::{StorageFactor, StorageHints};
///
/// // A file for each rank, with a quarter of the window in memory.
/// let hints = StorageHints::file("table.{rank}").factor(StorageFactor::Share(0.75))?;
/// let same = StorageHints::from_info([
///     ("alloc_type", "storage"),
///     ("storage_alloc_filename", "table.{rank}"),
///     ("storage_alloc_factor", "0.75"),
/// ])?;
/// assert_eq!(Some(hints), same);
/// # Ok::<(), rma_storage::StorageError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct StorageHints {
    path: PathBuf,
    pub(crate) offset: u64,
    pub(crate) factor: StorageFactor,
    pub(crate) order: StorageOrder,
    pub(crate) unlink: bool,
    pub(crate) discard: bool,
    pub(crate) styles: Vec<AccessStyle>,
    pub(crate) permissions: u32,
    pub(crate) striping: Striping,
    /// The parts of all ranks lie one behind the other.
    pub(crate) consecutive: bool,
}

impl AccessStyle {
    /// What the system knows of it, of a file that is read and written. It reads ahead forwards
    /// only: for a program that goes backwards, not at all is better.
    pub(crate) fn advice(self) -> Option<rustix::fs::Advice> {
        match self {
            Self::Sequential => Some(rustix::fs::Advice::Sequential),
            Self::Random | Self::ReverseSequential => Some(rustix::fs::Advice::Random),
            Self::ReadOnce | Self::WriteOnce => Some(rustix::fs::Advice::NoReuse),
            Self::ReadMostly | Self::WriteMostly => None,
        }
    }
}

impl StorageHints {
    /// All of it in the file or on the block device `path`, from its first byte on. Where the name
    /// says `{rank}`, that of the process in the whole job takes its place.
    pub fn file(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            offset: 0,
            factor: StorageFactor::Share(1.0),
            order: StorageOrder::MemoryFirst,
            unlink: false,
            discard: false,
            styles: Vec::new(),
            permissions: 0o600,
            striping: Striping::default(),
            consecutive: false,
        }
    }

    /// As [`file`](Self::file), one for all ranks of a window that
    /// [`allocate`](rma_core::WindowBuilder::allocate) makes: their parts lie in it in rank order,
    /// from [`offset`](Self::offset) on, each at the next multiple of 64 KiB, pages of every
    /// machine.
    pub fn shared_file(path: impl AsRef<Path>) -> Self {
        Self { consecutive: true, ..Self::file(path) }
    }

    /// As MPI's info has them; `None` if they ask for memory, as they do without `alloc_type`.
    ///
    /// | key | values, the default first |
    /// | --- | --- |
    /// | `alloc_type` | `memory`, `storage` |
    /// | `storage_alloc_filename` | a file or block device; required for storage |
    /// | `storage_alloc_offset` | the first byte there (0) |
    /// | `storage_alloc_factor` | the share on storage, from 0 to 1 (1), or `auto` |
    /// | `storage_alloc_order` | `memory_first`, `storage_first` |
    /// | `storage_alloc_unlink` | `false`, `true` |
    /// | `storage_alloc_discard` | `false`, `true` |
    /// | `access_style` | some of MPI-IO's seven words, with commas (none) |
    /// | `file_perm` | permissions of a new file, octal (0600) |
    /// | `striping_factor` | over how many devices a new file lies (what its folder says) |
    /// | `striping_unit` | in pieces of how many bytes (what its folder says) |
    /// | `rma_storage_consecutive` | `false`, `true`: as [`shared_file`](Self::shared_file) |
    ///
    /// Other keys are ignored. Those of striping are in force on Lustre.
    ///
    /// # Errors
    ///
    /// [`StorageError::Hint`] for a value that a known key does not take, whatever the type;
    /// [`StorageError::NoFile`].
    pub fn from_info<'i>(
        info: impl IntoIterator<Item = (&'i str, &'i str)>,
    ) -> Result<Option<Self>, StorageError> {
        let (mut hints, mut on_storage) = (Self::file(""), false);
        for (key, value) in info {
            match key {
                "alloc_type" => on_storage = hints.alloc_type(value)?,
                _ => hints.set(key, value)?,
            }
        }
        match on_storage {
            false => Ok(None),
            true if hints.path.as_os_str().is_empty() => Err(StorageError::NoFile),
            true => Ok(Some(hints)),
        }
    }

    /// As [`from_info`](Self::from_info) takes them.
    ///
    /// # Errors
    ///
    /// A path that is not in UTF-8, and so no text.
    pub fn to_info(&self) -> Result<Vec<(&'static str, String)>, HintError> {
        let path = self.path.to_str();
        let not_text = || refused(FILE, &self.path.to_string_lossy(), "a path in UTF-8");
        let mut info = vec![("alloc_type", "storage".to_owned())];
        info.push((FILE, path.ok_or_else(not_text)?.to_owned()));
        info.extend(self.rest());
        info.push(("file_perm", format!("{:04o}", self.permissions)));
        info.extend(self.stripes());
        info.push(("rma_storage_consecutive", self.consecutive.to_string()));
        Ok(info)
    }

    /// What is in force of each memory, but for its file.
    pub(crate) fn rest(&self) -> Vec<(&'static str, String)> {
        let factor = match self.factor {
            StorageFactor::Auto => "auto".to_owned(),
            StorageFactor::Share(share) => share.to_string(),
        };
        let order = match self.order {
            StorageOrder::MemoryFirst => "memory_first",
            StorageOrder::StorageFirst => "storage_first",
        };
        let word = |style: &AccessStyle| {
            STYLES.iter().find(|(_, known)| known == style).map_or("", |(word, _)| *word)
        };
        let mut rest = vec![
            ("storage_alloc_offset", self.offset.to_string()),
            ("storage_alloc_factor", factor),
            ("storage_alloc_order", order.to_owned()),
            ("storage_alloc_unlink", self.unlink.to_string()),
            ("storage_alloc_discard", self.discard.to_string()),
        ];
        if !self.styles.is_empty() {
            let words: Vec<&str> = self.styles.iter().map(word).collect();
            rest.push(("access_style", words.join(",")));
        }
        rest
    }

    /// What a new file is asked to have.
    pub(crate) fn stripes(&self) -> impl Iterator<Item = (&'static str, String)> {
        let Striping { factor, unit } = self.striping;
        let keys = [("striping_factor", factor), ("striping_unit", unit)];
        keys.into_iter().filter_map(|(key, value)| Some((key, value?.to_string())))
    }

    /// The name of a key that means something here, if its value does, too.
    pub(crate) fn check(key: &str, value: &str) -> Result<Option<&'static str>, HintError> {
        let known = KEYS.iter().find(|known| **known == key).copied();
        Self::file("").set(key, value)?;
        Ok(known)
    }

    /// Whether it is storage.
    fn alloc_type(&self, value: &str) -> Result<bool, HintError> {
        choice("alloc_type", value, &[("memory", false), ("storage", true)])
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), HintError> {
        let flag = |key| choice(key, value, &[("false", false), ("true", true)]);
        match key {
            "storage_alloc_filename" if value.is_empty() || value.contains('\0') => {
                return Err(refused("storage_alloc_filename", value, "a path"));
            }
            "storage_alloc_filename" => self.path = value.into(),
            "storage_alloc_offset" => {
                self.offset = number("storage_alloc_offset", value, "bytes from 0 to 2^63 - 1")?;
            }
            "storage_alloc_factor" => self.factor = factor(value)?,
            "storage_alloc_order" => {
                let orders = [
                    ("memory_first", StorageOrder::MemoryFirst),
                    ("storage_first", StorageOrder::StorageFirst),
                ];
                self.order = choice("storage_alloc_order", value, &orders)?;
            }
            "storage_alloc_unlink" => self.unlink = flag("storage_alloc_unlink")?,
            "storage_alloc_discard" => self.discard = flag("storage_alloc_discard")?,
            "access_style" => {
                let style = |word: &str| choice("access_style", word.trim(), &STYLES);
                self.styles = value.split(',').map(style).collect::<Result<_, _>>()?;
            }
            "file_perm" => self.permissions = permissions(value)?,
            "rma_storage_consecutive" => self.consecutive = flag("rma_storage_consecutive")?,
            "striping_factor" => {
                let factor = number("striping_factor", value, "a number of devices")?;
                self.striping.factor = Some(factor);
            }
            "striping_unit" => {
                self.striping.unit = Some(number("striping_unit", value, "a number of bytes")?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Begins at byte `offset` of the file or device. Inside of a page, other ranks do not map the
    /// memory, and no part of it can be memory beside.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Has only so much of the memory on storage: of the rest, whole pages are in memory.
    ///
    /// # Errors
    ///
    /// A share that is not from 0 to 1.
    pub fn factor(mut self, factor: StorageFactor) -> Result<Self, HintError> {
        if let StorageFactor::Share(share) = factor
            && !(0.0..=1.0).contains(&share)
        {
            return Err(refused("storage_alloc_factor", &share.to_string(), FACTORS));
        }
        self.factor = factor;
        Ok(self)
    }

    /// Which part comes first.
    pub fn order(mut self, order: StorageOrder) -> Self {
        self.order = order;
        self
    }

    /// Removes the file when the memory goes, but not one that a symbolic link led to; a device is
    /// refused.
    pub fn unlink(mut self, unlink: bool) -> Self {
        self.unlink = unlink;
        self
    }

    /// Leaves what was not synchronised before the memory goes to the system, which may lose it.
    pub fn discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }

    /// Tells the system how the program goes through the memory.
    pub fn access_style(mut self, styles: &[AccessStyle]) -> Self {
        self.styles = styles.to_vec();
        self
    }

    /// Permissions of a file that is new, less those that the process withholds (`umask`).
    ///
    /// # Errors
    ///
    /// More than 0777.
    pub fn file_perm(mut self, permissions: u32) -> Result<Self, HintError> {
        if permissions > 0o777 {
            return Err(refused("file_perm", &format!("{permissions:o}"), PERMISSIONS));
        }
        self.permissions = permissions;
        Ok(self)
    }

    /// Lays a new file over so many devices: a wish, which Lustre fulfils, and others do not tell.
    pub fn striping_factor(mut self, devices: u32) -> Self {
        self.striping.factor = Some(devices.into());
        self
    }

    /// Lays it over them in pieces of so many bytes: of Lustre, multiples of 64 KiB.
    pub fn striping_unit(mut self, bytes: u64) -> Self {
        self.striping.unit = Some(bytes);
        self
    }

    /// Where the memory of that rank is.
    pub(crate) fn path_of(&self, rank: u32) -> PathBuf {
        match self.path.to_str() {
            Some(path) if path.contains(RANK) => path.replace(RANK, &rank.to_string()).into(),
            _ => self.path.clone(),
        }
    }
}

const FACTORS: &str = "a share from 0 to 1, or auto";
const PERMISSIONS: &str = "an octal number from 0 to 777";

fn refused(key: &'static str, value: &str, allowed: &str) -> HintError {
    HintError { key, value: value.to_owned(), allowed: allowed.to_owned() }
}

pub(crate) fn choice<T: Copy>(
    key: &'static str,
    value: &str,
    of: &[(&'static str, T)],
) -> Result<T, HintError> {
    let known = of.iter().find(|(word, _)| *word == value.trim());
    let words = || of.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    known.map(|(_, meaning)| *meaning).ok_or_else(|| refused(key, value, &words()))
}

pub(crate) fn number(key: &'static str, value: &str, allowed: &str) -> Result<u64, HintError> {
    let digits = Some(value.trim()).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|text| u64::from_str(text).ok());
    number.filter(|number| *number <= i64::MAX as u64).ok_or_else(|| refused(key, value, allowed))
}

fn factor(value: &str) -> Result<StorageFactor, HintError> {
    if value.trim() == "auto" {
        return Ok(StorageFactor::Auto);
    }
    let share = f64::from_str(value.trim()).ok().filter(|share| (0.0..=1.0).contains(share));
    let share = share.ok_or_else(|| refused("storage_alloc_factor", value, FACTORS))?;
    Ok(StorageFactor::Share(share))
}

fn permissions(value: &str) -> Result<u32, HintError> {
    let octal = value.trim().bytes().all(|byte| byte.is_ascii_digit());
    let bits = Some(value.trim()).filter(|_| octal);
    let bits = bits.and_then(|text| u32::from_str_radix(text, 8).ok());
    let bits = bits.filter(|bits| *bits <= 0o777);
    bits.ok_or_else(|| refused("file_perm", value, PERMISSIONS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, value: &str) -> Result<Option<StorageHints>, StorageError> {
        let required = [("alloc_type", "storage"), ("storage_alloc_filename", "f")];
        StorageHints::from_info(required.into_iter().chain([(key, value)]))
    }

    #[test]
    fn every_key_reaches_its_field() {
        let plain = StorageHints::file("f");
        for (key, value, typed) in [
            ("storage_alloc_offset", "4096", plain.clone().offset(4096)),
            ("storage_alloc_factor", "auto", plain.clone().factor(StorageFactor::Auto).unwrap()),
            (
                "storage_alloc_order",
                "storage_first",
                plain.clone().order(StorageOrder::StorageFirst),
            ),
            ("storage_alloc_unlink", "true", plain.clone().unlink(true)),
            ("storage_alloc_discard", "true", plain.clone().discard(true)),
            (
                "access_style",
                "random, write_once",
                plain.clone().access_style(&[AccessStyle::Random, AccessStyle::WriteOnce]),
            ),
            ("file_perm", "0640", plain.clone().file_perm(0o640).unwrap()),
            ("striping_unit", "1048576", plain.clone().striping_unit(1 << 20)),
            ("striping_factor", "4", plain.clone().striping_factor(4)),
            ("another_key", "anything", plain.clone()),
        ] {
            assert_eq!(set(key, value), Ok(Some(typed)), "{key}={value}");
        }
    }

    #[test]
    fn values_that_mean_nothing_are_refused_by_key_and_value() {
        for (key, value) in [
            ("alloc_type", "disk"),
            ("storage_alloc_filename", ""),
            ("storage_alloc_filename", "a\0b"),
            ("storage_alloc_offset", "-1"),
            ("storage_alloc_offset", "9223372036854775808"),
            ("storage_alloc_factor", "-1"),
            ("storage_alloc_factor", "nan"),
            ("storage_alloc_factor", "2"),
            ("storage_alloc_order", "first"),
            ("storage_alloc_unlink", "yes"),
            ("access_style", "random,sometimes"),
            ("file_perm", "0800"),
            ("file_perm", "1777"),
            ("file_perm", "+600"),
            ("striping_factor", "many"),
        ] {
            let error = set(key, value).unwrap_err().to_string();
            assert!(error.contains(key), "{key}={value}: {error}");
        }
        assert!(StorageHints::file("f").factor(StorageFactor::Share(f64::NAN)).is_err());
        assert!(StorageHints::file("f").file_perm(0o1000).is_err());
    }

    /// What is told of hints means the same when it is given again.
    #[test]
    fn hints_are_what_they_tell() {
        let all = StorageHints::shared_file("f")
            .offset(1 << 40)
            .factor(StorageFactor::Share(0.1))
            .unwrap()
            .order(StorageOrder::StorageFirst)
            .unlink(true)
            .discard(true)
            .access_style(&[AccessStyle::Random, AccessStyle::ReadMostly])
            .file_perm(0o640)
            .unwrap()
            .striping_factor(4)
            .striping_unit(1 << 20);
        for hints in
            [all.clone(), StorageHints::file("f"), all.factor(StorageFactor::Auto).unwrap()]
        {
            let info = hints.to_info().unwrap();
            let keys = info.iter().map(|(key, _)| *key).filter(|key| *key != "alloc_type");
            keys.for_each(|key| assert!(KEYS.contains(&key), "{key}"));
            let again = info.iter().map(|(key, value)| (*key, value.as_str()));
            assert_eq!(StorageHints::from_info(again), Ok(Some(hints)));
        }
        assert_eq!(StorageHints::check("another", "value"), Ok(None));
        assert_eq!(StorageHints::check("access_style", "random"), Ok(Some("access_style")));
        use std::os::unix::ffi::OsStrExt;
        let bytes = StorageHints::file(std::ffi::OsStr::from_bytes(b"a\xff"));
        assert!(bytes.to_info().unwrap_err().to_string().contains("UTF-8"));
    }

    #[test]
    fn memory_is_the_default_and_storage_needs_a_file() {
        assert_eq!(StorageHints::from_info([("storage_alloc_filename", "f")]), Ok(None));
        let no_file = StorageHints::from_info([("alloc_type", "storage")]);
        assert_eq!(no_file, Err(StorageError::NoFile));
        // Malformed is malformed, also where it is not needed.
        assert!(StorageHints::from_info([("storage_alloc_factor", "2")]).is_err());
    }

    #[test]
    fn a_rank_has_its_own_file() {
        assert_eq!(StorageHints::file("a.{rank}.b").path_of(12), Path::new("a.12.b"));
        assert_eq!(StorageHints::file("a").path_of(12), Path::new("a"));
    }
}
