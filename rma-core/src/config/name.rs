//! What a transport or a provider is called. The core knows none but the one that it falls back to.

/// Letters that one has at most: all of it travels as one word.
pub(super) const LETTERS_MAX: usize = size_of::<u64>();

/// A word of 1 to 8 lower-case letters and digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name([u8; LETTERS_MAX]);

impl Name {
    /// Shared memory, by which nodes are pretended.
    pub(super) const SHM: Self = Self(*b"shm\0\0\0\0\0");

    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let mut letters = [0; LETTERS_MAX];
        letters.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        (!text.is_empty() && text.bytes().all(is_word)).then_some(Self(letters))
    }

    pub(super) fn as_str(&self) -> &str {
        let len = self.0.iter().position(|letter| *letter == 0).unwrap_or(LETTERS_MAX);
        str::from_utf8(&self.0[..len]).unwrap_or_default()
    }

    pub(super) fn to_word(self) -> u64 {
        u64::from_le_bytes(self.0)
    }

    /// That of a word that [`to_word`](Self::to_word) gave.
    pub(super) fn of_word(word: u64) -> Option<Self> {
        Self::parse(Self(word.to_le_bytes()).as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words() {
        for text in ["a", "shm", "verbs", "psm2", "12345678"] {
            let name = Name::parse(text).unwrap();
            assert_eq!((name.as_str(), Name::of_word(name.to_word())), (text, Some(name)));
        }
        for text in ["", "123456789", "Shm", "tcp;rxm", "a b", "a\0", "é"] {
            assert_eq!(Name::parse(text), None, "{text}");
        }
        assert_eq!(Name::of_word(crate::config::form::WORD), None);
        assert_eq!(Name::parse("shm"), Some(Name::SHM));
    }
}
