//! Hints: what a program says about its use of a window, before it makes one or later.
//!
//! One table, [`KNOWN`], says which there are; a hint never changes the results of a correct
//! program. S-B8 S-B9 S-B10
use crate::config::{Asked, PATHS};
use core::fmt::Write;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

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

/// A hint that something here asks for: the first ones of [`KNOWN`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hint {
    NoLocks,
    AccumulateOrdering,
    SameSize,
    SameDispUnit,
    AllocSharedNoncontig,
    Path,
    Count,
}

/// How a value is written. In memory, each is a number.
#[derive(Clone, Copy)]
enum Form {
    /// `false` (0) or `true` (1).
    Flag,
    /// One word of these, by place.
    Choice(&'static [&'static str]),
    /// Some words of these, a bit for each; or `none`.
    Subset(&'static [&'static str]),
}

/// What there is to know of a hint.
struct KnownHint {
    key: &'static str,
    form: Form,
    default: u32,
    /// Every rank must give the same value.
    same: bool,
    /// It can change while the window exists.
    changes: bool,
}

const COUNT: usize = 7;

/// A new hint is a line here, and a name in [`Hint`] if something asks for it.
const KNOWN: [KnownHint; COUNT] = [
    KnownHint { same: true, ..KnownHint::flag("no_locks", false) },
    KnownHint { default: 0b1111, ..KnownHint::local("accumulate_ordering", Form::Subset(ORDERS)) },
    KnownHint { same: true, ..KnownHint::flag("same_size", false) },
    KnownHint { same: true, ..KnownHint::flag("same_disp_unit", false) },
    KnownHint { same: true, ..KnownHint::flag("alloc_shared_noncontig", false) },
    KnownHint { same: true, changes: false, ..KnownHint::local("rma_path", Form::Choice(PATHS)) },
    KnownHint::flag("rma_count", false),
];

/// What comes first and what after it, by the bits of [`Ordered`].
const ORDERS: &[&str] = &["rar", "raw", "war", "waw"];

impl KnownHint {
    const fn flag(key: &'static str, default: bool) -> Self {
        Self { key, form: Form::Flag, default: default as u32, same: false, changes: false }
    }

    const fn local(key: &'static str, form: Form) -> Self {
        Self { key, form, default: 0, same: false, changes: true }
    }

    fn parse(&self, value: &str) -> Result<u32, HintError> {
        let parsed = self.form.parse(value.trim());
        let allowed = || self.form.to_string();
        let error = || HintError { key: self.key, value: value.to_owned(), allowed: allowed() };
        parsed.ok_or_else(error)
    }
}

impl Form {
    fn parse(self, value: &str) -> Option<u32> {
        let place = |words: &[&str], word| words.iter().position(|known| *known == word);
        match self {
            Self::Flag => place(&["false", "true"], value).map(|place| place as u32),
            Self::Choice(words) => place(words, value).map(|place| place as u32),
            Self::Subset(_) if value == "none" => Some(0),
            Self::Subset(words) => value
                .split(',')
                .try_fold(0, |bits, word| Some(bits | 1 << place(words, word.trim())?)),
        }
    }

    fn write(self, value: u32) -> String {
        match self {
            Self::Flag => (value != 0).to_string(),
            Self::Choice(words) => words.get(value as usize).copied().unwrap_or("").to_owned(),
            Self::Subset(_) if value == 0 => "none".to_owned(),
            Self::Subset(words) => {
                let set = (0..words.len()).filter(|bit| value & 1 << bit != 0);
                set.map(|bit| words[bit]).collect::<Vec<_>>().join(",")
            }
        }
    }
}

impl core::fmt::Display for Form {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Flag => f.write_str("true or false"),
            Self::Choice(words) => f.write_str(&words.join(" or ")),
            Self::Subset(words) => {
                write!(f, "some of {}, with commas between them, or none", words.join(", "))
            }
        }
    }
}

/// The hints that a window is made with, defaults included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hints([u32; COUNT], Option<NotTaken>);

/// A path that the job wishes for, and what of the window it does not reach.
type NotTaken = (&'static str, &'static str);

impl Default for Hints {
    fn default() -> Self {
        Self(core::array::from_fn(|place| KNOWN[place].default), None)
    }
}

impl Hints {
    /// Takes a hint, if it is known.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), HintError> {
        let place = KNOWN.iter().position(|known| known.key == key);
        place.map_or(Ok(()), |place| KNOWN[place].parse(value).map(|value| self.0[place] = value))
    }

    pub(crate) fn get(&self, hint: Hint) -> u32 {
        self.0[hint as usize]
    }

    pub(crate) fn is_set(&self, hint: Hint) -> bool {
        self.get(hint) != 0
    }

    pub(crate) fn path(&self) -> Asked {
        Asked::from_place(self.get(Hint::Path))
    }

    /// Leaves the path to the window, because the one that the job wishes for does not reach `why`.
    pub(crate) fn leave_path(&mut self, why: &'static str) {
        let value = &mut self.0[Hint::Path as usize];
        self.1 = PATHS.get(*value as usize).map(|path| (*path, why));
        *value = KNOWN[Hint::Path as usize].default;
    }

    /// The values that must be the same on all ranks.
    pub(crate) fn common(&self) -> Vec<u32> {
        let all = self.0.iter().zip(&KNOWN);
        all.filter(|(_, known)| known.same).map(|(value, _)| *value).collect()
    }

    /// The hints of a rank whose [`common`](Self::common) ones are these.
    pub(crate) fn of_common(common: &[u32]) -> Self {
        let mut hints = Self::default();
        let places = (0..COUNT).filter(|place| KNOWN[*place].same);
        places.zip(common).for_each(|(place, value)| hints.0[place] = *value);
        hints
    }

    /// A number that is the same if [`common`](Self::common) is (FNV-1a).
    pub(crate) fn digest(&self) -> u64 {
        let bytes = self.common().into_iter().flat_map(u32::to_le_bytes);
        let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        bytes.fold(0xcbf2_9ce4_8422_2325, step)
    }

    /// The first hint of which `common` says something else, and both values.
    pub(crate) fn difference(&self, common: &[u32]) -> Option<(&'static str, String, String)> {
        let mine = self.0.iter().zip(&KNOWN).filter(|(_, known)| known.same);
        let (known, mine, other) = mine
            .zip(common)
            .find_map(|((mine, known), other)| (mine != other).then_some((known, mine, other)))?;
        Some((known.key, known.form.write(*mine), known.form.write(*other)))
    }
}

/// The hints of a window that exists.
pub(crate) struct InForce([AtomicU32; COUNT], Option<NotTaken>);

impl InForce {
    pub(crate) fn new(hints: &Hints) -> Self {
        Self(hints.0.map(AtomicU32::new), hints.1)
    }

    pub(crate) fn is_set(&self, hint: Hint) -> bool {
        self.value(hint as usize) != 0
    }

    /// Which accumulates of this rank stay in order.
    pub(crate) fn ordering(&self) -> u32 {
        self.value(Hint::AccumulateOrdering as usize)
    }

    fn value(&self, place: usize) -> u32 {
        self.0[place].load(Relaxed)
    }

    /// Takes a hint, if it is known and can change; returns whether the value is in force now.
    pub(crate) fn set(&self, key: &str, value: &str) -> Result<bool, HintError> {
        let Some(place) = KNOWN.iter().position(|known| known.key == key) else { return Ok(false) };
        let value = KNOWN[place].parse(value)?;
        if KNOWN[place].changes {
            self.0[place].store(value, Relaxed);
        }
        Ok(self.value(place) == value)
    }

    /// All, as key and value.
    pub(crate) fn list(&self) -> Vec<(&'static str, String)> {
        let entry =
            |(place, known): (usize, &KnownHint)| (known.key, known.form.write(self.value(place)));
        KNOWN.iter().enumerate().map(entry).collect()
    }

    /// Those that are not at their default, and what the job wishes in vain, in one line.
    pub(crate) fn explain(&self) -> String {
        let mut line = String::new();
        for (place, known) in KNOWN.iter().enumerate() {
            if self.value(place) != known.default {
                // Writing to a string does not fail.
                _ = write!(line, " {}={}", known.key, known.form.write(self.value(place)));
            }
        }
        if line.is_empty() {
            line.push_str(" all at their defaults");
        }
        if let Some((path, why)) = self.1 {
            _ = write!(line, "; rma_path={path}, which the job wishes, does not reach {why}");
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
        hints.set(key, value).map(|()| hints)
    }

    #[test]
    fn places_are_those_of_the_table() {
        let hints = [
            (Hint::NoLocks, "no_locks"),
            (Hint::AccumulateOrdering, "accumulate_ordering"),
            (Hint::SameSize, "same_size"),
            (Hint::SameDispUnit, "same_disp_unit"),
            (Hint::AllocSharedNoncontig, "alloc_shared_noncontig"),
            (Hint::Path, "rma_path"),
            (Hint::Count, "rma_count"),
        ];
        for (hint, key) in hints {
            assert_eq!(KNOWN[hint as usize].key, key);
        }
    }

    #[test]
    fn what_is_written_parses() {
        for known in &KNOWN {
            for value in [0, 1, known.default] {
                let text = known.form.write(value);
                assert_eq!(known.parse(&text), Ok(value), "{} = {text}", known.key);
            }
        }
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
