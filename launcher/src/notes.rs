//! What is said to users once, whichever rank or host says it, and no more of it than they read.

use std::collections::HashSet;

/// Texts at most; more are silent.
pub(crate) const NOTES_MAX: usize = 100;

/// What was said.
#[derive(Debug, Default)]
pub(crate) struct Notes(HashSet<String>);

impl Notes {
    /// Nothing more will be said.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= NOTES_MAX
    }

    /// Whether that is to be said now.
    pub(crate) fn is_new(&mut self, text: &str) -> bool {
        !self.is_full() && !self.0.contains(text) && self.0.insert(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_said_once_and_not_without_end() {
        let mut notes = Notes::default();
        assert!(notes.is_new("a") && !notes.is_new("a"));
        assert_eq!((0..2 * NOTES_MAX).filter(|text| notes.is_new(&text.to_string())).count(), 99);
        assert!(notes.is_full() && !notes.is_new("b"));
    }
}
