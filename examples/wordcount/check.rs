//! The same count once more, by one rank alone.
use super::input::for_each_word;
use std::collections::HashMap;
use std::path::PathBuf;

/// A word that has another count in the table than in the sequential count.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the result is wrong: \"{word}\" was counted {table} times by all ranks together and \
     {sequential} times by rank 0 alone; if no file has changed meanwhile, this is a bug"
)]
pub(crate) struct Difference {
    /// The first one that differs, in the order of bytes.
    pub(crate) word: String,
    /// How often it is in the table.
    pub(crate) table: u64,
    /// How often a sequential run finds it.
    pub(crate) sequential: u64,
}

/// Counts the words of `files`, skipping those that cannot be read.
pub(crate) fn count(files: &[PathBuf]) -> HashMap<String, u64> {
    let mut counts = HashMap::new();
    for bytes in files.iter().filter_map(|file| std::fs::read(file).ok()) {
        for_each_word(&String::from_utf8_lossy(&bytes), |word| match counts.get_mut(word) {
            Some(count) => *count += 1,
            None => _ = counts.insert(word.to_owned(), 1),
        });
    }
    counts
}

/// Compares all of `table` with all of `sequential`. A word that is twice in `table` differs, too.
pub(crate) fn compare(
    table: &[(String, u64)],
    mut sequential: HashMap<String, u64>,
) -> Result<(), Difference> {
    let mut first: Option<Difference> = None;
    let mut differs = |word: &str, table, sequential| {
        if first.as_ref().is_none_or(|first| word < first.word.as_str()) {
            first = Some(Difference { word: word.to_owned(), table, sequential });
        }
    };
    for (word, count) in table {
        match sequential.remove(word) {
            Some(expected) if expected == *count => {}
            other => differs(word, *count, other.unwrap_or(0)),
        }
    }
    for (word, count) in &sequential {
        differs(word, 0, *count);
    }
    first.map_or(Ok(()), Err)
}
