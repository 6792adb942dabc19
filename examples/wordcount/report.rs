//! What rank 0 prints.
use super::Share;
use super::table::{Entry, Size};
use std::cmp::Reverse;
use std::fmt::{Display, Write};
use std::time::Duration;

/// Longer words are cut when they are printed.
const SHOWN: usize = 60;

/// The result, and how it came about.
pub(crate) struct Report<'r> {
    /// All words, sorted by [`sort`].
    pub(crate) words: &'r [Entry],
    /// What each rank did.
    pub(crate) shares: &'r [Share],
    /// From the list of files to the words at rank 0.
    pub(crate) time: Duration,
    /// What the table had at each rank in the end.
    pub(crate) size: Size,
    /// How often it grew.
    pub(crate) grown: u64,
}

/// The most frequent first; equally frequent ones by the alphabet.
pub(crate) fn sort(words: &mut [Entry]) {
    words.sort_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
}

impl Report<'_> {
    /// The text to print, with at most `top` words.
    pub(crate) fn text(&self, top: usize) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        _ = self.write(&mut text, top);
        text
    }

    fn write(&self, text: &mut String, top: usize) -> std::fmt::Result {
        let shown = &self.words[..top.min(self.words.len())];
        if !shown.is_empty() {
            writeln!(text, "{:>6} {:>13}  word", "#", "count")?;
        }
        for (place, (word, count)) in shown.iter().enumerate() {
            let cut = word.char_indices().nth(SHOWN).map(|(at, _)| at);
            let (word, dots) = (&word[..cut.unwrap_or(word.len())], cut.map_or("", |_| "…"));
            writeln!(text, "{:>6} {:>13}  {word}{dots}", place + 1, grouped(*count))?;
        }
        let sum = |of: fn(&Share) -> u64| self.shares.iter().map(of).sum::<u64>();
        let (words, bytes) = (sum(|share| share.words), sum(|share| share.bytes));
        let (different, files) = (self.words.len(), sum(|share| share.files));
        writeln!(
            text,
            "{} words, {} of them different, in {} files with {} bytes",
            grouped(words),
            grouped(different),
            grouped(files),
            grouped(bytes)
        )?;
        let (unreadable, not_utf8) = (sum(|share| share.unreadable), sum(|share| share.not_utf8));
        if unreadable > 0 {
            writeln!(text, "files that could not be read, and are not counted: {unreadable}")?;
        }
        if not_utf8 > 0 {
            writeln!(text, "files that are not UTF-8, counted as far as they are: {not_utf8}")?;
        }
        for (rank, share) in self.shares.iter().enumerate() {
            let (files, words) = (grouped(share.files), grouped(share.words));
            writeln!(text, "rank {rank} took {files} files with {words} words")?;
        }
        let Size { buckets, heap } = self.size;
        writeln!(
            text,
            "hash table: {} buckets and a heap of {} bytes at each rank; grown {} times",
            grouped(buckets),
            grouped(heap.saturating_mul(8)),
            self.grown
        )?;
        let seconds = self.time.as_secs_f64();
        let speed = grouped(format_args!("{:.0}", words as f64 / seconds.max(1e-9)));
        writeln!(text, "{seconds:.3} s, {speed} words/s")
    }
}

/// A number with commas between groups of three digits.
pub(crate) fn grouped(number: impl Display) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
