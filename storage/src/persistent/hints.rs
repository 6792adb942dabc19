//! What a program wants of a persistent window.
use super::error::PersistentError;
use super::tracker::DirtyTracking;
use crate::hints::{choice, number};
use crate::store::ElementType;
use core::any::TypeId;
use rma_core::{Complex, Element};

/// How a persistent window is opened (`pmem_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PersistentMode {
    /// Made if it is not there, else of the same size; what was not committed is rolled back.
    #[default]
    Same,
    /// Grown to the new size, with zeros behind what was there; older versions are dropped by the
    /// first commit.
    Expand,
    /// From a version that is there, of the same size.
    Checkpoint,
}

/// What a persistent window is called and how it is opened: the keys `pmem_*` of "Extension of MPI
/// One-Sided Communication API", typed. All ranks give the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistentHints {
    pub(crate) name: String,
    pub(crate) mode: PersistentMode,
    pub(crate) checkpoint_version: Option<u64>,
    pub(crate) append: bool,
    pub(crate) global: bool,
    pub(crate) keep_all: bool,
    pub(crate) plain: bool,
    pub(crate) volatile: bool,
    pub(crate) tracking: DirtyTracking,
    pub(crate) snapshot_bytes: u64,
    pub(crate) blocks: bool,
    pub(crate) element: ElementType,
}

/// Of what is to be a version while ranks go on, unless the program says otherwise.
const SNAPSHOT_BYTES: u64 = 64 << 20;
/// Bytes of a name, as file systems have them.
const NAME_MAX: usize = 255;
/// Names of files of the root itself begin with this.
const RESERVED: &str = "rma-root";

/// What numpy calls types; others are bytes to it.
const NUMPY: [(TypeId, &str); 14] = [
    (TypeId::of::<u8>(), "|u1"),
    (TypeId::of::<u16>(), "<u2"),
    (TypeId::of::<u32>(), "<u4"),
    (TypeId::of::<u64>(), "<u8"),
    (TypeId::of::<usize>(), "<u8"),
    (TypeId::of::<i8>(), "|i1"),
    (TypeId::of::<i16>(), "<i2"),
    (TypeId::of::<i32>(), "<i4"),
    (TypeId::of::<i64>(), "<i8"),
    (TypeId::of::<isize>(), "<i8"),
    (TypeId::of::<f32>(), "<f4"),
    (TypeId::of::<f64>(), "<f8"),
    (TypeId::of::<Complex<f32>>(), "<c8"),
    (TypeId::of::<Complex<f64>>(), "<c16"),
];

/// Whether a window can be called so, and if not why.
pub(crate) fn check_name(name: &str) -> Result<(), PersistentError> {
    let what = match name {
        "" => "a name has a character at least",
        "." | ".." => "it is a folder's own name; choose another",
        name if name.contains('/') => "a name has no /: all windows of a root lie side by side",
        name if name.contains('\0') => "a name has no NUL",
        name if name.len() > NAME_MAX => "a name has 255 bytes at most",
        name if name.starts_with(RESERVED) => "names that begin with rma-root are the root's own",
        _ => return Ok(()),
    };
    Err(PersistentError::Name { name: name.to_owned(), what })
}

impl PersistentHints {
    /// A window of that name; all else as the defaults of
    /// [`from_info`](Self::from_info) have it.
    pub fn name(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            mode: PersistentMode::Same,
            checkpoint_version: None,
            append: false,
            global: false,
            keep_all: false,
            plain: false,
            volatile: false,
            tracking: DirtyTracking::Compare,
            snapshot_bytes: SNAPSHOT_BYTES,
            blocks: false,
            element: ElementType::default(),
        }
    }

    /// By the keys of the paper; `None` unless `pmem_is_pmem` is `true`.
    ///
    /// | key | values (default) |
    /// | --- | --- |
    /// | `pmem_is_pmem` | `false`, `true` (false) |
    /// | `pmem_name` | a name below the root |
    /// | `pmem_mode` | `expand`, `checkpoint` (neither) |
    /// | `pmem_checkpoint_version` | a number (the newest) |
    /// | `pmem_append_checkpoints` | `false`, `true` (false) |
    /// | `pmem_global_checkpoint` | `false`, `true` (false) |
    /// | `pmem_keep_all_checkpoints` | `false`, `true` (false) |
    /// | `pmem_dont_use_transactions` | `false`, `true` (false) |
    /// | `pmem_volatile` | `false`, `true` (false) |
    /// | `pmem_dirty_tracking` | `auto`, `write_protect`, `compare` (compare): [`DirtyTracking`] |
    /// | `pmem_snapshot_bytes` | a number (64 MiB): [`snapshot_bytes`](Self::snapshot_bytes) |
    /// | `pmem_block_distribution` | `false`, `true` (false) |
    ///
    /// Other keys are ignored, and so is one whose condition does not hold: see
    /// [`info`](super::PersistentMemory::info).
    ///
    /// # Errors
    ///
    /// [`PersistentError::Hint`] for a value that a known key does not take,
    /// [`PersistentError::Name`], [`PersistentError::Mode`].
    pub fn from_info<'i>(
        info: impl IntoIterator<Item = (&'i str, &'i str)>,
    ) -> Result<Option<Self>, PersistentError> {
        let (mut hints, mut is_pmem) = (Self::name(""), false);
        for (key, value) in info {
            let flag = |key| choice(key, value, &[("false", false), ("true", true)]);
            match key {
                "pmem_is_pmem" => is_pmem = flag("pmem_is_pmem")?,
                "pmem_name" => hints.name = value.to_owned(),
                "pmem_mode" => {
                    let modes = [
                        ("expand", PersistentMode::Expand),
                        ("checkpoint", PersistentMode::Checkpoint),
                    ];
                    let known = choice("pmem_mode", value, &modes);
                    let (name, what) = (hints.name.clone(), "pmem_mode is expand or checkpoint");
                    hints.mode = known.map_err(|_| PersistentError::Mode { name, what })?;
                }
                "pmem_checkpoint_version" => {
                    let key = "pmem_checkpoint_version";
                    hints.checkpoint_version = Some(number(key, value, "the number of a version")?);
                }
                "pmem_append_checkpoints" => hints.append = flag("pmem_append_checkpoints")?,
                "pmem_global_checkpoint" => hints.global = flag("pmem_global_checkpoint")?,
                "pmem_keep_all_checkpoints" => {
                    hints.keep_all = flag("pmem_keep_all_checkpoints")?;
                }
                "pmem_dont_use_transactions" => {
                    hints.plain = flag("pmem_dont_use_transactions")?;
                }
                "pmem_block_distribution" => hints.blocks = flag("pmem_block_distribution")?,
                "pmem_volatile" => hints.volatile = flag("pmem_volatile")?,
                "pmem_dirty_tracking" => {
                    let ways = [
                        ("auto", DirtyTracking::Auto),
                        ("write_protect", DirtyTracking::WriteProtect),
                        ("compare", DirtyTracking::Compare),
                    ];
                    hints.tracking = choice("pmem_dirty_tracking", value, &ways)?;
                }
                "pmem_snapshot_bytes" => {
                    hints.snapshot_bytes =
                        number("pmem_snapshot_bytes", value, "a number of bytes")?;
                }
                _ => {}
            }
        }
        if !is_pmem {
            return Ok(None);
        }
        check_name(&hints.name)?;
        Ok(Some(hints))
    }

    /// How it is opened.
    pub fn mode(mut self, mode: PersistentMode) -> Self {
        self.mode = mode;
        self
    }

    /// From this version ([`PersistentMode::Checkpoint`]).
    pub fn checkpoint_version(mut self, version: u64) -> Self {
        self.mode = PersistentMode::Checkpoint;
        self.checkpoint_version = Some(version);
        self
    }

    /// Numbers on after the highest version that there ever was; otherwise after the one that is
    /// returned to, and later ones are replaced by the first commit.
    pub fn append_checkpoints(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// From the newest version that every rank holds, instead of each rank's own newest.
    pub fn global_checkpoint(mut self, global: bool) -> Self {
        self.global = global;
        self
    }

    /// Keeps all versions; otherwise a commit drops the older ones.
    pub fn keep_all_checkpoints(mut self, keep_all: bool) -> Self {
        self.keep_all = keep_all;
        self
    }

    /// Makes no versions: what is there after a crash is what was stored, as far as it was flushed.
    pub fn dont_use_transactions(mut self, dont: bool) -> Self {
        self.plain = dont;
        self
    }

    /// Neither flushes nor makes versions, and removes the window when it is dropped.
    pub fn volatile(mut self, volatile: bool) -> Self {
        self.volatile = volatile;
        self
    }

    /// How commits find out what has changed.
    pub fn dirty_tracking(mut self, tracking: DirtyTracking) -> Self {
        self.tracking = tracking;
        self
    }

    /// How much memory this rank has for copies of what is to be a version, while it goes on:
    /// [`request_commit`](super::PersistentMemory::request_commit) writes to storage at once what
    /// finds no room there. 0: all.
    pub fn snapshot_bytes(mut self, bytes: u64) -> Self {
        self.snapshot_bytes = bytes;
        self
    }

    /// The window is one array, of which each rank has the next piece, in the order of ranks:
    /// a job that opens it may have another number of ranks, or divide it otherwise, as long as all
    /// have as many bytes together. It is copied then, as a new version, durably before it is open,
    /// and older versions are dropped; see `docs/persistent.md`.
    pub fn block_distribution(mut self, blocks: bool) -> Self {
        self.blocks = blocks;
        self
    }

    /// Says of what type the elements are: a window is opened with the type that it was made with,
    /// and `rma-store export` writes it as such.
    pub fn elements<E: Element>(mut self) -> Self {
        let (id, size) = (TypeId::of::<E>(), size_of::<E>());
        let known = NUMPY.iter().find(|(of, _)| *of == id).map(|(_, name)| (*name).to_owned());
        let name = known.unwrap_or_else(|| format!("|V{size}"));
        let mut bytes = [0; 8];
        let len = name.len().min(bytes.len());
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        self.element = ElementType { name: bytes, size: size as u32 };
        self
    }

    /// Whether commits make versions.
    pub(crate) fn transactions(&self) -> bool {
        !self.plain && !self.volatile
    }

    /// Whether the window may be divided anew.
    pub(crate) fn divides(&self) -> bool {
        self.blocks && self.transactions()
    }

    pub(crate) fn check(&self) -> Result<(), PersistentError> {
        check_name(&self.name)?;
        if self.mode == PersistentMode::Expand && self.divides() {
            let what = "pmem_mode=expand grows the part of each rank, which is not to grow an \
                        array that pmem_block_distribution divides; leave out one of the two";
            return Err(PersistentError::Mode { name: self.name.clone(), what });
        }
        if self.mode == PersistentMode::Checkpoint && !self.transactions() {
            let what = "a version is returned to in transactions only; leave out \
                        pmem_dont_use_transactions and pmem_volatile, or pmem_mode";
            return Err(PersistentError::Mode { name: self.name.clone(), what });
        }
        Ok(())
    }

    /// The keys in force.
    pub(crate) fn in_force(&self, keep_all: bool, plain: bool) -> Vec<(&'static str, String)> {
        let mut keys = vec![
            ("pmem_is_pmem", "true".to_owned()),
            ("pmem_name", self.name.clone()),
            ("pmem_volatile", self.volatile.to_string()),
        ];
        if self.mode == PersistentMode::Expand {
            keys.push(("pmem_mode", "expand".to_owned()));
        }
        if !self.volatile {
            keys.push(("pmem_dont_use_transactions", plain.to_string()));
        }
        if !plain && !self.volatile {
            keys.push(("pmem_keep_all_checkpoints", keep_all.to_string()));
        }
        if self.blocks && !plain && !self.volatile {
            keys.push(("pmem_block_distribution", "true".to_owned()));
        }
        if self.mode == PersistentMode::Checkpoint {
            keys.push(("pmem_mode", "checkpoint".to_owned()));
            keys.push(("pmem_append_checkpoints", self.append.to_string()));
            match self.checkpoint_version {
                Some(version) => keys.push(("pmem_checkpoint_version", version.to_string())),
                None => keys.push(("pmem_global_checkpoint", self.global.to_string())),
            }
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rma_core::ErrorClass;

    fn set(key: &str, value: &str) -> Result<Option<PersistentHints>, PersistentError> {
        let required = [("pmem_is_pmem", "true"), ("pmem_name", "n")];
        PersistentHints::from_info(required.into_iter().chain([(key, value)]))
    }

    #[test]
    fn every_key_reaches_its_field() {
        let plain = PersistentHints::name("n");
        for (key, value, typed) in [
            ("pmem_mode", "expand", plain.clone().mode(PersistentMode::Expand)),
            ("pmem_mode", "checkpoint", plain.clone().mode(PersistentMode::Checkpoint)),
            ("pmem_append_checkpoints", "true", plain.clone().append_checkpoints(true)),
            ("pmem_global_checkpoint", "true", plain.clone().global_checkpoint(true)),
            ("pmem_keep_all_checkpoints", "true", plain.clone().keep_all_checkpoints(true)),
            ("pmem_dont_use_transactions", "true", plain.clone().dont_use_transactions(true)),
            ("pmem_volatile", "true", plain.clone().volatile(true)),
            ("pmem_block_distribution", "true", plain.clone().block_distribution(true)),
            ("pmem_dirty_tracking", "compare", plain.clone()),
            ("pmem_dirty_tracking", "auto", plain.clone().dirty_tracking(DirtyTracking::Auto)),
            ("pmem_snapshot_bytes", "4096", plain.clone().snapshot_bytes(4096)),
            (
                "pmem_dirty_tracking",
                "write_protect",
                plain.clone().dirty_tracking(DirtyTracking::WriteProtect),
            ),
            ("another_key", "anything", plain.clone()),
        ] {
            assert_eq!(set(key, value), Ok(Some(typed)), "{key}={value}");
        }
        assert_eq!(PersistentHints::from_info([("pmem_name", "n")]), Ok(None));
        let version = set("pmem_checkpoint_version", "7").unwrap().unwrap();
        assert_eq!(version.checkpoint_version, Some(7));
    }

    #[test]
    fn values_that_mean_nothing_are_refused_by_key_and_value() {
        for (key, value) in [
            ("pmem_is_pmem", "yes"),
            ("pmem_mode", "grow"),
            ("pmem_checkpoint_version", "-1"),
            ("pmem_volatile", ""),
            ("pmem_snapshot_bytes", "64M"),
        ] {
            let error = set(key, value).unwrap_err().to_string();
            assert!(error.contains(key), "{key}={value}: {error}");
        }
        let long = "n".repeat(256);
        for name in ["", ".", "..", "a/b", "/", "a\0b", "rma-root.lock", &long] {
            let error = set("pmem_name", name).unwrap_err();
            assert!(matches!(error, PersistentError::Name { .. }), "{error}");
            assert_eq!(error.class(), ErrorClass::Pmem);
        }
        let both = PersistentHints::name("n").checkpoint_version(1).dont_use_transactions(true);
        assert!(matches!(both.check(), Err(PersistentError::Mode { .. })));
        let both = PersistentHints::name("n").mode(PersistentMode::Expand).block_distribution(true);
        assert!(matches!(both.check(), Err(PersistentError::Mode { .. })));
    }

    /// A key whose condition does not hold is absent.
    #[test]
    fn keys_in_force() {
        let keys = |hints: PersistentHints| {
            let keys = hints.in_force(hints.keep_all, hints.plain);
            keys.into_iter().map(|(key, _)| &key["pmem_".len()..]).collect::<Vec<_>>()
        };
        let name = || PersistentHints::name("n");
        assert_eq!(
            keys(name().volatile(true).keep_all_checkpoints(true)),
            ["is_pmem", "name", "volatile"]
        );
        assert_eq!(
            keys(name().dont_use_transactions(true).append_checkpoints(true)),
            ["is_pmem", "name", "volatile", "dont_use_transactions"]
        );
        assert_eq!(
            keys(name().checkpoint_version(3).global_checkpoint(true))[4..],
            ["keep_all_checkpoints", "mode", "append_checkpoints", "checkpoint_version"]
        );
        assert_eq!(
            keys(name().block_distribution(true))[4..],
            ["keep_all_checkpoints", "block_distribution"]
        );
    }
}
