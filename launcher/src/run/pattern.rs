//! Names of files that ranks' output goes to.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::output::Stream;

/// What may stand in braces.
const KNOWN: &str = "write {rank}, {host}, {job} or {stream}, and {{ and }} for braces";

/// Names of files that the output of ranks goes to, such as `log.{rank}.txt`.
///
/// `{rank}` is the number of the rank, `{host}` its host as the user calls it, `{job}` the name of
/// the job, or the process of the launcher, and `{stream}` is `out` or `err`: without it, both
/// streams of a rank go to one file. `{{` and `}}` stand for braces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePattern(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(OsString),
    Rank,
    Host,
    Job,
    Stream,
}

/// A stream that has a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamOf<'a> {
    pub(super) rank: u32,
    pub(super) host: &'a str,
    pub(super) job: &'a str,
    pub(super) stream: Stream,
}

/// Whether the name of a host or a job, as that of a file, would be a folder.
pub(super) fn is_folder(name: &str) -> bool {
    [".", ".."].contains(&name) || name.contains('/')
}

impl FilePattern {
    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// A sentence that names what is not known, and what is.
    pub fn parse(text: &str) -> Result<FilePattern, String> {
        let (mut parts, mut rest, mut plain) = (Vec::new(), text, String::new());
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let (brace, behind) = rest[at..].split_at(1);
            rest = behind;
            // Twice, it stands for itself, and so does one that closes nothing.
            if let Some(behind) = rest.strip_prefix(brace) {
                plain.push_str(brace);
                rest = behind;
            } else if brace == "}" {
                plain.push('}');
            } else {
                let Some((name, behind)) = rest.split_once('}') else {
                    return Err(format!("\"{{{rest}\" has no end: {KNOWN}"));
                };
                let part = match name {
                    "rank" => Part::Rank,
                    "host" => Part::Host,
                    "job" => Part::Job,
                    "stream" => Part::Stream,
                    _ => return Err(format!("\"{{{name}}}\" is not known: {KNOWN}")),
                };
                parts.extend([Part::Text(std::mem::take(&mut plain).into()), part]);
                rest = behind;
            }
        }
        plain.push_str(rest);
        parts.push(Part::Text(plain.into()));
        parts.retain(|part| *part != Part::Text(OsString::new()));
        match parts.is_empty() {
            true => Err("a file has a name".to_owned()),
            false => Ok(FilePattern(parts)),
        }
    }

    /// `rank-N.out` and `rank-N.err` in that folder.
    pub fn in_folder(folder: &Path) -> FilePattern {
        let before = folder.join("rank-").into_os_string();
        FilePattern(vec![Part::Text(before), Part::Rank, Part::Text(".".into()), Part::Stream])
    }

    /// Whether the name of the job is part of it.
    pub(super) fn names_job(&self) -> bool {
        self.0.contains(&Part::Job)
    }

    /// The file of a stream.
    pub(super) fn path(&self, of: StreamOf<'_>) -> PathBuf {
        let mut path = OsString::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => path.push(text),
                Part::Rank => path.push(of.rank.to_string()),
                Part::Host => path.push(OsStr::new(of.host)),
                Part::Job => path.push(of.job),
                Part::Stream => path.push(match of.stream {
                    Stream::Out => "out",
                    Stream::Err => "err",
                }),
            }
        }
        path.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(pattern: &str) -> String {
        let of = StreamOf { rank: 3, host: "node1", job: "heat", stream: Stream::Err };
        FilePattern::parse(pattern).unwrap().path(of).display().to_string()
    }

    #[test]
    fn names_are_put_into_patterns() {
        assert_eq!(path("log.{rank}.txt"), "log.3.txt");
        assert_eq!(path("{host}/{job}-{rank}{rank}.{stream}"), "node1/heat-33.err");
        assert_eq!(path("plain"), "plain");
        assert_eq!(path("{{rank}}{{{rank}}}"), "{rank}{3}");
        assert_eq!(path("a}b%t"), "a}b%t");
        let of = StreamOf { rank: 0, host: "a", job: "b", stream: Stream::Out };
        let folder = FilePattern::in_folder(Path::new("/x/{rank}"));
        assert_eq!(folder.path(of), Path::new("/x/{rank}/rank-0.out"), "a folder is no pattern");
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (pattern, part) in [
            ("log.{rnak}", "\"{rnak}\" is not known: write {rank}, {host}"),
            ("log.{}", "\"{}\" is not known"),
            ("log.{Rank}", "\"{Rank}\" is not known"),
            ("log.{rank", "\"{rank\" has no end"),
            ("{{{", "\"{\" has no end"),
            ("", "a file has a name"),
        ] {
            let error = FilePattern::parse(pattern).unwrap_err();
            assert!(error.starts_with(part), "{pattern}: {error}");
        }
    }
}
