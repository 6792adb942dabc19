//! The input: which files there are, and which words are in a text.
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

/// What a folder holds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Files to read, the largest first: what comes last should be short, or one rank works alone
    /// at the end.
    pub(crate) files: Vec<PathBuf>,
    /// Bytes in them.
    pub(crate) bytes: u64,
    /// Folders that could not be listed, and why.
    pub(crate) unreadable: Vec<(PathBuf, io::Error)>,
}

/// Finds every `.rs` and `.md` file under `folder`, but not in hidden folders or in `target`.
///
/// Links to files are followed, links to folders are not: they may lead in circles. The order
/// depends on sizes and names only.
///
/// # Errors
///
/// `folder` itself cannot be listed. What cannot be listed below it is in [`Found::unreadable`].
pub(crate) fn find(folder: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    let mut files = Vec::new();
    let mut folders = vec![(folder.to_owned(), fs::read_dir(folder)?)];
    while let Some((path, entries)) = folders.pop() {
        for entry in entries {
            match entry.and_then(|entry| look(&entry)) {
                Ok(Look::File(path, bytes)) => files.push((bytes, path)),
                Ok(Look::Folder(path)) => match fs::read_dir(&path) {
                    Ok(entries) => folders.push((path, entries)),
                    Err(error) => found.unreadable.push((path, error)),
                },
                Ok(Look::Other) => {}
                Err(error) => found.unreadable.push((path.clone(), error)),
            }
        }
    }
    files.sort_by(|(a_bytes, a), (b_bytes, b)| b_bytes.cmp(a_bytes).then_with(|| a.cmp(b)));
    found.bytes = files.iter().map(|(bytes, _)| bytes).sum();
    found.files = files.into_iter().map(|(_, path)| path).collect();
    Ok(found)
}

enum Look {
    File(PathBuf, u64),
    Folder(PathBuf),
    Other,
}

fn look(entry: &DirEntry) -> io::Result<Look> {
    let (path, kind) = (entry.path(), entry.file_type()?);
    if kind.is_dir() {
        let name = entry.file_name();
        let skip = name == "target" || name.as_encoded_bytes().starts_with(b".");
        return Ok(if skip { Look::Other } else { Look::Folder(path) });
    }
    let wanted =
        |ending: &str| ending.eq_ignore_ascii_case("rs") || ending.eq_ignore_ascii_case("md");
    if !path.extension().and_then(|ending| ending.to_str()).is_some_and(wanted) {
        return Ok(Look::Other);
    }
    match fs::metadata(&path) {
        Ok(data) if data.is_file() => Ok(Look::File(path, data.len())),
        // A pipe or a device: reading might never end.
        Ok(_) => Ok(Look::Other),
        // A link to nothing. The rank that claims it reports it as unreadable.
        Err(_) => Ok(Look::File(path, 0)),
    }
}

/// Calls `each` with every word of `text`, in lower case.
///
/// A word is a run of letters, digits and underscores with at least one letter or digit in it.
/// Apostrophes belong to a word if they stand inside it: `don't` is one word, `'quoted'` is
/// `quoted`.
pub(crate) fn for_each_word(text: &str, mut each: impl FnMut(&str)) {
    let mut word = String::new();
    let mut solid = false;
    let mut apostrophe = false;
    // The blank ends the last word.
    for letter in text.chars().chain([' ']) {
        let counts = letter.is_alphanumeric();
        if counts || letter == '_' {
            if apostrophe {
                word.push('\'');
                apostrophe = false;
            }
            solid |= counts;
            if letter.is_ascii() {
                word.push(letter.to_ascii_lowercase());
            } else {
                word.extend(letter.to_lowercase());
            }
        } else if matches!(letter, '\'' | '\u{2019}') && !word.is_empty() && !apostrophe {
            apostrophe = true;
        } else {
            if solid {
                each(&word);
            }
            word.clear();
            (solid, apostrophe) = (false, false);
        }
    }
}
