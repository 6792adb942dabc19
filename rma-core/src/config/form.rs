//! How the value of a setting or a hint is written. In memory, each is a number.
use super::name::{LETTERS_MAX, Name};
use core::fmt;

/// How a value is written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form {
    /// `false` (0) or `true` (1).
    Flag,
    /// One word of these, by place.
    Choice(&'static [&'static str]),
    /// Some words of these, a bit for each; or `none`.
    Subset(&'static [&'static str]),
    /// A number, and what it counts.
    Number { least: u64, most: u64, unit: &'static str },
    /// Bytes: a number, or one with `KiB`, `MiB`, `GiB` or `TiB`.
    Bytes { least: u64, most: u64 },
    /// A time, in memory in nanoseconds.
    Time,
    /// A [`Name`], in memory its word.
    Name,
    /// That word, [`WORD`] in memory, or as the other says.
    Or(&'static str, &'static Self),
}

/// What the word of a [`Form::Or`] is in memory.
pub(crate) const WORD: u64 = u64::MAX;
/// Nanoseconds of the longest time: 10^9 seconds.
const TIME_MAX: u64 = 1_000_000_000 * SECOND;
const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

/// Names of multiples of a byte.
const MULTIPLES: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl Form {
    /// The value of a text, if it is of this form and in range.
    pub(crate) fn parse(self, value: &str) -> Option<u64> {
        let place = |words: &[&str], word| words.iter().position(|known| *known == word);
        match self {
            Self::Flag => place(&["false", "true"], value).map(|place| place as u64),
            Self::Choice(words) => place(words, value).map(|place| place as u64),
            Self::Subset(_) if value == "none" => Some(0),
            Self::Subset(words) => value
                .split(',')
                .try_fold(0, |bits, word| Some(bits | 1 << place(words, word.trim())?)),
            Self::Number { least, most, .. } => digits(value).filter(within(least, most)),
            Self::Bytes { least, most } => bytes(value).filter(within(least, most)),
            Self::Time => time(value),
            Self::Name => Name::parse(value).map(Name::to_word),
            Self::Or(word, _) if value == word => Some(WORD),
            Self::Or(_, other) => other.parse(value),
        }
    }

    /// A text that [`parse`](Self::parse) takes for that value.
    pub(crate) fn write(self, value: u64) -> String {
        match self {
            Self::Flag => (value != 0).to_string(),
            Self::Choice(words) => words.get(value as usize).copied().unwrap_or("").to_owned(),
            Self::Subset(_) if value == 0 => "none".to_owned(),
            Self::Subset(words) => {
                let set = (0..words.len()).filter(|bit| value & 1 << bit != 0);
                set.map(|bit| words[bit]).collect::<Vec<_>>().join(",")
            }
            Self::Number { .. } => value.to_string(),
            Self::Bytes { .. } => written(value),
            Self::Time if value.is_multiple_of(SECOND) => format!("{}s", value / SECOND),
            Self::Time => format!("{}ms", value as f64 / MILLISECOND as f64),
            Self::Name => Name::of_word(value).as_ref().map_or("", Name::as_str).to_owned(),
            Self::Or(word, _) if value == WORD => word.to_owned(),
            Self::Or(_, other) => other.write(value),
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("true or false"),
            Self::Choice(words) => f.write_str(&words.join(" or ")),
            Self::Subset(words) => {
                write!(f, "some of {}, with commas between them, or none", words.join(", "))
            }
            Self::Number { least, most: u64::MAX, unit } => {
                write!(f, "a number of {unit}, {least} or more")
            }
            Self::Number { least, most, unit } => {
                write!(f, "a number of {unit}, {least} to {most}")
            }
            Self::Bytes { least, most } => {
                let (least, most) = (written(*least), written(*most));
                write!(f, "bytes, {least} to {most}, also with KiB, MiB, GiB or TiB")
            }
            Self::Time => f.write_str("seconds, more than 0 and at most 1000000000, also with ms"),
            Self::Name => write!(f, "a name of 1 to {LETTERS_MAX} lower-case letters and digits"),
            Self::Or(word, other) => write!(f, "{other}; or {word}"),
        }
    }
}

fn within(least: u64, most: u64) -> impl Fn(&u64) -> bool {
    move |value| (least..=most).contains(value)
}

fn digits(text: &str) -> Option<u64> {
    // A sign is no digit, whatever `parse` takes it for.
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn bytes(text: &str) -> Option<u64> {
    let named = MULTIPLES.into_iter().find_map(|(name, each)| {
        let at = text.len().checked_sub(name.len())?;
        let (number, end) = (text.get(..at)?, text.get(at..)?);
        end.eq_ignore_ascii_case(name).then_some((number.trim_end(), each))
    });
    let (number, each) = named.unwrap_or((text, 1));
    digits(number)?.checked_mul(each)
}

/// Bytes, in the largest multiple that they are a whole number of.
fn written(bytes: u64) -> String {
    let whole = MULTIPLES.into_iter().find(|(_, each)| bytes > 0 && bytes.is_multiple_of(*each));
    let (name, each) = whole.unwrap_or(("B", 1));
    format!("{} {name}", bytes / each)
}

fn time(text: &str) -> Option<u64> {
    let milliseconds = text.strip_suffix("ms").map(|number| (number, MILLISECOND));
    let seconds = || text.strip_suffix('s').map(|number| (number, SECOND));
    let (number, each) = milliseconds.or_else(seconds).unwrap_or((text, SECOND));
    let number = number.trim_end();
    // Neither signs nor exponents, `inf` or `NaN`.
    let plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let time = plain.then(|| number.parse::<f64>().ok())?? * each as f64;
    (time >= 1.0 && time <= TIME_MAX as f64).then_some(time as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: Form = Form::Bytes { least: 0, most: 1 << 40 };

    #[test]
    fn bytes_take_suffixes() {
        for (text, bytes) in
            [("0", 0), ("16384", 16384), ("16KiB", 16384), ("16 kib", 16384), ("1 TiB", 1 << 40)]
        {
            assert_eq!(BYTES.parse(text), Some(bytes), "{text}");
        }
        assert_eq!(BYTES.write(16384), "16 KiB");
        assert_eq!(BYTES.write(16385), "16385 B");
        assert_eq!(BYTES.write(0), "0 B");
        for text in ["", "KiB", "-1", "+1", "1.5KiB", "1KB", "2TiB", "99999999999999 TiB", "é"] {
            assert_eq!(BYTES.parse(text), None, "{text}");
        }
    }

    #[test]
    fn times_take_units() {
        for (text, nanoseconds) in
            [("5", 5 * SECOND), ("0.5 s", SECOND / 2), ("250ms", SECOND / 4), ("1s", SECOND)]
        {
            assert_eq!(Form::Time.parse(text), Some(nanoseconds), "{text}");
            let written = Form::Time.write(nanoseconds);
            assert_eq!(Form::Time.parse(&written), Some(nanoseconds), "{written}");
        }
        for text in ["", "0", "-1", "inf", "NaN", "1e3", "1h", "1000000001", "ms"] {
            assert_eq!(Form::Time.parse(text), None, "{text}");
        }
        let timeout = Form::Or("none", &Form::Time);
        assert_eq!((timeout.parse("none"), timeout.parse("2s")), (Some(WORD), Some(2 * SECOND)));
        assert_eq!(timeout.write(WORD), "none");
    }

    #[test]
    fn numbers_keep_to_their_range() {
        let form = Form::Number { least: 1, most: 256, unit: "messages" };
        assert_eq!((form.parse("1"), form.parse("256")), (Some(1), Some(256)));
        for text in ["0", "257", "", "-1", "0x10", "1 000"] {
            assert_eq!(form.parse(text), None, "{text}");
        }
        assert_eq!(form.to_string(), "a number of messages, 1 to 256");
    }
}
