//! Hints: what a program says about its use of a window, before it makes one or later.
//!
//! One table, [`KNOWN`], says which there are; a hint never changes the results of a correct
//! program.
use crate::config::form::{Form, WORD};
use crate::config::settings::REGIONS_MAX;
use crate::config::{Config, PATHS, PathHint, Source};
use core::fmt::Write;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// A value of a known hint that does not parse.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("hint {key} = {value:?}: {key} takes {allowed}; correct it or leave the hint out")]
pub struct HintError {
    /// The hint.
    pub key: &'static str,
    /// What it was given.
    pub value: String,
    /// What it takes.
    pub allowed: String,
}

crate::debug_as_display!(HintError);

/// A hint that something here asks for: the first ones of [`KNOWN`]. S-B10
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hint {
    NoLocks,
    AccumulateOrdering,
    /// Bytes of elements that are combined together. S-H4
    AccumulateGranularity,
    SameSize,
    SameDispUnit,
    /// Each part of a shared window lies by itself. S-K2
    AllocSharedNoncontig,
    Path,
    Count,
    DynamicRegions,
    EagerBytes,
    TargetCache,
    /// [`WORD`]: what the device says.
    DeviceRunBytes,
    /// Whether memory is the transport's (0) or an allocator's.
    AllocType,
}

/// What there is to know of a hint.
struct KnownHint {
    key: &'static str,
    form: Form,
    default: u64,
    /// Every rank must give the same value.
    same: bool,
    /// It can change while the window exists.
    changes: bool,
    /// Instead of the default: what a window has of which nothing is said.
    setting: Option<fn(&Config) -> u64>,
    /// It is a window's own: a whole job does not wish for it.
    own: bool,
    /// What comes of it, in a line.
    doc: &'static str,
}

const COUNT: usize = 13;

/// A new hint is a line here, and a name in [`Hint`] if something asks for it. S-B8 S-L5
const KNOWN: [KnownHint; COUNT] = [
    KnownHint { same: true, ..KnownHint::flag("no_locks", "locks of the window are refused") },
    KnownHint {
        default: 0b1111,
        changes: true,
        ..KnownHint::new("accumulate_ordering", Form::Subset(ORDERS), "others may overtake")
    },
    KnownHint {
        same: true,
        ..KnownHint::new(
            "mpi_accumulate_granularity",
            Form::Number { least: 0, most: 1 << 46, unit: "bytes" },
            "of 9 or more, 32 and 64-bit integers are combined as arrays, under locks",
        )
    },
    KnownHint { same: true, ..KnownHint::flag("same_size", "all ranks pass the same size") },
    KnownHint { same: true, ..KnownHint::flag("same_disp_unit", "all ranks pass the same unit") },
    KnownHint {
        same: true,
        ..KnownHint::flag("alloc_shared_noncontig", "each part of a shared window by itself")
    },
    KnownHint {
        same: true,
        ..KnownHint::new("rma_path", Form::Choice(PATHS), "the path that operations take")
    },
    KnownHint::flag("rma_count", "operations by load and store are counted, too"),
    KnownHint::budget(
        "rma_dynamic_regions",
        Form::Or(SETTING, &Form::Number { least: 1, most: REGIONS_MAX, unit: "regions" }),
        |config| config.dynamic_regions as u64,
        "regions attached to a dynamic window of this rank at once",
    ),
    KnownHint::budget(
        "rma_eager_bytes",
        Form::Or(SETTING, &Form::Bytes { least: 0, most: 1 << 46 }),
        |config| config.eager_bytes as u64,
        "largest put to a far target that is sent at once",
    ),
    KnownHint::budget(
        "rma_target_cache",
        Form::Or(SETTING, &Form::Number { least: 1, most: 1 << 32, unit: "targets" }),
        |config| config.target_cache as u64,
        "targets, or regions that a device reaches, that are remembered",
    ),
    KnownHint::budget(
        "rma_device_run_bytes",
        Form::Or(SETTING, &Form::Bytes { least: 1, most: 1 << 46 }),
        |config| config.device_run_bytes.unwrap_or(WORD),
        "average run of a layout that a device moves by itself; smaller ones are packed",
    ),
    KnownHint {
        same: true,
        own: true,
        ..KnownHint::new("alloc_type", Form::Choice(TYPES), "what allocated parts lie on")
    },
];

/// What comes first and what after it, by the bits of [`Ordered`].
const ORDERS: &[&str] = &["rar", "raw", "war", "waw"];
/// Where memory comes from: the transport, or the allocator of the configuration.
const TYPES: &[&str] = &["memory", "storage"];
/// A budget of a window is that of the rank, which has a setting of the same name.
const SETTING: &str = "setting";

impl KnownHint {
    const fn new(key: &'static str, form: Form, doc: &'static str) -> Self {
        Self { key, form, default: 0, same: false, changes: false, setting: None, own: false, doc }
    }

    const fn flag(key: &'static str, doc: &'static str) -> Self {
        Self::new(key, Form::Flag, doc)
    }

    const fn budget(
        key: &'static str,
        form: Form,
        setting: fn(&Config) -> u64,
        doc: &'static str,
    ) -> Self {
        let new = Self::new(key, form, doc);
        Self { default: WORD, changes: true, setting: Some(setting), ..new }
    }

    fn parse(&self, value: &str) -> Result<u64, HintError> {
        let parsed = self.form.parse(value.trim());
        let allowed = || self.form.to_string();
        let error = || HintError { key: self.key, value: value.to_owned(), allowed: allowed() };
        parsed.ok_or_else(error)
    }

    /// What a window has whose hint says `value`.
    fn resolve(&self, value: u64, config: &Config) -> u64 {
        match self.setting {
            Some(setting) if value == WORD => setting(config),
            _ => value,
        }
    }
}

/// The keys that a job can give its windows.
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().filter(|known| !known.own).map(|known| known.key)
}

/// A list of them: key, default, what comes of it and what it takes.
pub(super) fn help() -> String {
    let line = |KnownHint { key, form, default, doc, .. }: &KnownHint| {
        format!(
            "{key} = {}\n    hint of every window: {doc}\n    takes {form}\n",
            form.write(*default)
        )
    };
    KNOWN.iter().filter(|known| !known.own).map(line).collect()
}

fn place(key: &str) -> Option<usize> {
    KNOWN.iter().position(|known| known.key == key)
}

/// What a whole job gives its windows, and the source of each value.
#[derive(Debug, Clone, Default)]
pub(super) struct OfJob {
    hints: Hints,
    sources: [Source; COUNT],
}

impl OfJob {
    /// Takes a hint for every window, if it is known; returns whether it is.
    pub(super) fn wish(
        &mut self,
        key: &str,
        value: &str,
        source: Source,
    ) -> Result<bool, HintError> {
        let Some(place) = place(key) else { return Ok(false) };
        if KNOWN[place].own {
            let allowed = "no value from a whole job: each window says it itself".to_owned();
            return Err(HintError { key: KNOWN[place].key, value: value.to_owned(), allowed });
        }
        self.hints.values[place] = KNOWN[place].parse(value)?;
        self.sources[place] = source;
        Ok(true)
    }

    pub(super) fn written(&self, key: &str) -> Option<String> {
        place(key).map(|place| KNOWN[place].form.write(self.hints.values[place]))
    }

    pub(super) fn source(&self, key: &str) -> Option<Source> {
        place(key).map(|place| self.sources[place].clone())
    }

    /// What a window begins with.
    pub(super) fn of_window(&self, config: &Config) -> Hints {
        let mut hints = self.hints;
        for (place, known) in KNOWN.iter().enumerate() {
            let said = self.sources[place] != Source::Default;
            hints.said |= u32::from(said) << place;
            hints.values[place] = known.resolve(hints.values[place], config);
        }
        hints
    }
}

/// The hints that a window is made with, defaults included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hints {
    values: [u64; COUNT],
    /// What the window or the job has said, a bit for each.
    said: u32,
    /// And what the window has said itself.
    own: u32,
    left: LeftOut,
}

/// What the job wishes and the window cannot have: the value, and what is in its way.
type LeftOut = [Option<(u64, &'static str)>; COUNT];

impl Default for Hints {
    fn default() -> Self {
        let values = core::array::from_fn(|place| KNOWN[place].default);
        Self { values, said: 0, own: 0, left: [None; COUNT] }
    }
}

impl Hints {
    /// Takes a hint of the window's own, if it is known.
    pub(crate) fn set(&mut self, key: &str, value: &str, config: &Config) -> Result<(), HintError> {
        let Some(place) = place(key) else { return Ok(()) };
        self.values[place] = KNOWN[place].resolve(KNOWN[place].parse(value)?, config);
        self.said |= 1 << place;
        self.own |= 1 << place;
        Ok(())
    }

    pub(crate) fn get(&self, hint: Hint) -> u64 {
        self.values[hint as usize]
    }

    pub(crate) fn is_set(&self, hint: Hint) -> bool {
        self.get(hint) != 0
    }

    pub(crate) fn path(&self) -> PathHint {
        PathHint::from_place(self.get(Hint::Path))
    }

    /// Whether the window itself asked for it, and not the job.
    pub(crate) fn is_own(&self, hint: Hint) -> bool {
        self.own & 1 << hint as u32 != 0
    }

    /// As if nothing had been said of it.
    pub(crate) fn reset(&mut self, hint: Hint) {
        self.values[hint as usize] = KNOWN[hint as usize].default;
        self.said &= !(1 << hint as u32);
        self.own &= !(1 << hint as u32);
    }

    /// Leaves a hint at its default, because the window cannot have what the job wishes; returns
    /// that, in words.
    pub(crate) fn leave(&mut self, hint: Hint, why: &'static str) -> String {
        let (place, known) = (hint as usize, &KNOWN[hint as usize]);
        let wished = core::mem::replace(&mut self.values[place], known.default);
        self.left[place] = Some((wished, why));
        in_vain(known, wished, why)
    }

    /// The values that must be the same on all ranks.
    pub(crate) fn common(&self) -> Vec<u64> {
        let all = self.values.iter().zip(&KNOWN);
        all.filter(|(_, known)| known.same).map(|(value, _)| *value).collect()
    }

    /// The hints of a rank whose [`common`](Self::common) ones are these.
    pub(crate) fn of_common(common: &[u64]) -> Self {
        let mut hints = Self::default();
        let places = (0..COUNT).filter(|place| KNOWN[*place].same);
        places.zip(common).for_each(|(place, value)| hints.values[place] = *value);
        hints
    }

    /// A number that is the same if [`common`](Self::common) is.
    pub(crate) fn digest(&self) -> u64 {
        digest(self.common())
    }

    /// The first hint of which `common` says something else, and both values.
    pub(crate) fn difference(&self, common: &[u64]) -> Option<(&'static str, String, String)> {
        let mine = self.values.iter().zip(&KNOWN).filter(|(_, known)| known.same);
        let (known, mine, other) = mine
            .zip(common)
            .find_map(|((mine, known), other)| (mine != other).then_some((known, mine, other)))?;
        Some((known.key, known.form.write(*mine), known.form.write(*other)))
    }
}

/// A number that is the same if those are (FNV-1a).
pub(crate) fn digest(of: impl IntoIterator<Item = u64>) -> u64 {
    let bytes = of.into_iter().flat_map(u64::to_le_bytes);
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, step)
}

fn in_vain(known: &KnownHint, wished: u64, why: &str) -> String {
    let (key, wished) = (known.key, known.form.write(wished));
    format!("{key}={wished}, which the job wishes, does not reach {why}")
}

/// The hints of a window that exists. S-B9
pub(crate) struct InForce {
    values: [AtomicU64; COUNT],
    said: AtomicU32,
    own: AtomicU32,
    left: LeftOut,
}

impl InForce {
    pub(crate) fn new(hints: &Hints) -> Self {
        let (said, own) = (AtomicU32::new(hints.said), AtomicU32::new(hints.own));
        Self { values: hints.values.map(AtomicU64::new), said, own, left: hints.left }
    }

    #[inline]
    pub(crate) fn is_set(&self, hint: Hint) -> bool {
        self.get(hint) != 0
    }

    #[inline]
    pub(crate) fn get(&self, hint: Hint) -> u64 {
        self.value(hint as usize)
    }

    /// The value of a budget that has none by default, and whether the window or the job says it.
    pub(crate) fn budget(&self, hint: Hint) -> Option<(u64, bool)> {
        let said = self.said.load(Relaxed) & 1 << hint as u32 != 0;
        Some((self.get(hint), said)).filter(|(value, _)| *value != WORD)
    }

    /// Which accumulates of this rank stay in order.
    pub(crate) fn ordering(&self) -> u32 {
        self.get(Hint::AccumulateOrdering) as u32
    }

    #[inline]
    fn value(&self, place: usize) -> u64 {
        self.values[place].load(Relaxed)
    }

    /// Takes a hint, if it is known and can change; returns whether the value is in force now.
    pub(crate) fn set(&self, key: &str, value: &str, config: &Config) -> Result<bool, HintError> {
        let Some(place) = place(key) else { return Ok(false) };
        let value = KNOWN[place].resolve(KNOWN[place].parse(value)?, config);
        if KNOWN[place].changes {
            self.values[place].store(value, Relaxed);
            self.said.fetch_or(1 << place, Relaxed);
            self.own.fetch_or(1 << place, Relaxed);
        }
        Ok(self.value(place) == value)
    }

    /// All, as key and value.
    pub(crate) fn list(&self) -> Vec<(&'static str, String)> {
        let entry =
            |(place, known): (usize, &KnownHint)| (known.key, known.form.write(self.value(place)));
        KNOWN.iter().enumerate().map(entry).collect()
    }

    /// Those that are not at their default, with the source of each, and what the job wishes in
    /// vain, in one line.
    pub(crate) fn explain(&self) -> String {
        let (said, own) = (self.said.load(Relaxed), self.own.load(Relaxed));
        let mut line = String::new();
        for (place, known) in KNOWN.iter().enumerate() {
            let told = known.setting.is_none() || said & 1 << place != 0;
            if told && self.value(place) != known.default {
                // Writing to a string does not fail.
                _ = write!(line, " {}={}", known.key, known.form.write(self.value(place)));
                let is = |bits: u32| bits & 1 << place != 0;
                let source = if is(own) { " (window)" } else { " (job)" };
                line.push_str(if is(said) { source } else { "" });
            }
        }
        if line.is_empty() {
            line.push_str(" all at their defaults");
        }
        for (known, left) in KNOWN.iter().zip(self.left) {
            let Some((wished, why)) = left else { continue };
            _ = write!(line, "; {}", in_vain(known, wished, why));
        }
        line
    }
}

/// What an accumulate does at its target, as far as order is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ordered {
    /// It returns what is there.
    Read,
    /// It changes what is there.
    Write,
    /// Both.
    Update,
}

impl Ordered {
    /// Whether `ordering` lets it overtake `earlier`, an operation of the same rank on the same
    /// bytes. S-H7 S-H8
    pub(crate) fn may_overtake(self, earlier: Self, ordering: u32) -> bool {
        let reads = |access| access != Self::Write;
        let writes = |access| access != Self::Read;
        let pairs = [
            reads(self) && reads(earlier),
            reads(self) && writes(earlier),
            writes(self) && reads(earlier),
            writes(self) && writes(earlier),
        ];
        (0..).zip(pairs).all(|(bit, pair)| !pair || ordering & 1 << bit == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, value: &str) -> Result<Hints, HintError> {
        let mut hints = Hints::default();
        hints.set(key, value, &Config::default()).map(|()| hints)
    }

    #[test]
    fn places_are_those_of_the_table() {
        let hints = [
            (Hint::NoLocks, "no_locks"),
            (Hint::AccumulateOrdering, "accumulate_ordering"),
            (Hint::AccumulateGranularity, "mpi_accumulate_granularity"),
            (Hint::SameSize, "same_size"),
            (Hint::SameDispUnit, "same_disp_unit"),
            (Hint::AllocSharedNoncontig, "alloc_shared_noncontig"),
            (Hint::Path, "rma_path"),
            (Hint::Count, "rma_count"),
            (Hint::DynamicRegions, "rma_dynamic_regions"),
            (Hint::EagerBytes, "rma_eager_bytes"),
            (Hint::TargetCache, "rma_target_cache"),
            (Hint::DeviceRunBytes, "rma_device_run_bytes"),
            (Hint::AllocType, "alloc_type"),
        ];
        for (hint, key) in hints {
            assert_eq!(KNOWN[hint as usize].key, key);
        }
    }

    #[test]
    fn what_is_written_parses() {
        for known in &KNOWN {
            let first = if known.setting.is_some() { 1 } else { 0 };
            for value in [first, 1, known.default] {
                let text = known.form.write(value);
                assert_eq!(known.parse(&text), Ok(value), "{} = {text}", known.key);
            }
        }
    }

    /// A window has the budgets of its rank, unless it is told others.
    #[test]
    fn budgets_are_those_of_the_settings() {
        let mut config = Config { dynamic_regions: 7, ..Config::default() };
        assert_eq!(config.hints().get(Hint::DynamicRegions), 7);
        assert!(InForce::new(&config.hints()).explain().contains("all at their defaults"));
        config.hint("rma_dynamic_regions", "8").unwrap();
        let mut hints = config.hints();
        assert_eq!(hints.get(Hint::DynamicRegions), 8);
        assert!(InForce::new(&hints).explain().contains(" rma_dynamic_regions=8"));
        hints.set("rma_dynamic_regions", "9", &config).unwrap();
        assert_eq!(hints.get(Hint::DynamicRegions), 9);
        let window = InForce::new(&hints);
        assert_eq!(window.set("rma_dynamic_regions", "setting", &config), Ok(true));
        assert_eq!(window.get(Hint::DynamicRegions), 7);
        assert_eq!(window.set("rma_eager_bytes", "1 MiB", &config), Ok(true));
        assert_eq!(window.get(Hint::EagerBytes), 1 << 20);
    }

    /// What the job wishes is not what the window asks for.
    #[test]
    fn wishes_are_left() {
        let mut config = Config::default();
        config.hint("rma_path", "cma").unwrap();
        let mut hints = config.hints();
        assert!(!hints.is_own(Hint::Path));
        let words = hints.leave(Hint::Path, "a pigeon");
        assert_eq!(words, "rma_path=cma, which the job wishes, does not reach a pigeon");
        assert_eq!(hints.path(), PathHint::Auto);
        assert!(InForce::new(&hints).explain().ends_with(&words));
        hints.set("rma_path", "cma", &config).unwrap();
        assert!(hints.is_own(Hint::Path));
    }

    #[test]
    fn the_source_of_a_hint_is_told() {
        let mut config = Config::default();
        config.hint("rma_path", "messages").unwrap();
        config.hint("rma_count", "true").unwrap();
        let mut hints = config.hints();
        hints.set("rma_path", "cma", &config).unwrap();
        let in_force = InForce::new(&hints);
        assert_eq!(in_force.explain(), " rma_path=cma (window) rma_count=true (job)");
        in_force.set("accumulate_ordering", "none", &config).unwrap();
        assert!(in_force.explain().contains("accumulate_ordering=none (window)"));
    }

    #[test]
    fn what_is_of_each_window_is_refused_of_a_job() {
        let error = Config::default().hint("alloc_type", "storage").unwrap_err().to_string();
        assert!(error.contains("alloc_type") && error.contains("each window"), "{error}");
    }

    #[test]
    fn words_may_have_space_around_them_and_come_in_any_order() {
        let spaced = set("accumulate_ordering", " waw , rar,rar ").unwrap();
        assert_eq!(spaced.get(Hint::AccumulateOrdering), 0b1001);
    }

    #[test]
    fn difference_names_the_first() {
        let (a, b) = (set("no_locks", "true").unwrap(), Hints::default());
        assert_ne!(a.digest(), b.digest());
        let difference = ("no_locks", "true".to_owned(), "false".to_owned());
        assert_eq!(a.difference(&b.common()), Some(difference));
        // What each rank may choose for itself is no difference.
        let local = set("accumulate_ordering", "none").unwrap();
        assert_eq!((local.digest(), local.difference(&b.common())), (b.digest(), None));
    }

    /// Every pair of operations, under every subset of orders. S-H8
    #[test]
    fn order_is_kept_exactly_where_it_is_asked_for() {
        use Ordered::{Read, Update, Write};
        let kinds = |access| match access {
            Read => "r",
            Write => "w",
            Update => "rw",
        };
        for ordering in 0..16 {
            for later in [Read, Write, Update] {
                for earlier in [Read, Write, Update] {
                    let asked = |word: &str| {
                        let (after, before) = word.split_once('a').unwrap();
                        kinds(later).contains(after) && kinds(earlier).contains(before)
                    };
                    let words = (0..4).filter(|bit| ordering & 1 << bit != 0);
                    let kept = words.into_iter().any(|bit| asked(ORDERS[bit]));
                    assert_eq!(later.may_overtake(earlier, ordering), !kept);
                }
            }
        }
    }
}
