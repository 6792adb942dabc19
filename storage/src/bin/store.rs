//! Lists, checks, compares, returns to, deletes and exports versions of persistent windows.
use rma_storage::{PersistentError, Root, VersionSummary, WindowSummary};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const USAGE: &str = "\
Persistent windows of rma, and their versions

usage: rma-store COMMAND ROOT [ARGUMENTS] [--json]

  list ROOT                          windows, with ranks, bytes and newest version
  show ROOT NAME                     all versions of a window
  verify ROOT [NAME]                 reads all versions, and names those that are damaged
  diff ROOT NAME VERSION VERSION     which bytes differ, in whole blocks
  restore ROOT NAME VERSION          makes what a version holds the newest version
  delete ROOT NAME [VERSION]         a version, or the window with all of them
  du ROOT                            bytes that windows take
  export ROOT NAME VERSION FILE      bytes of a version: numbers for numpy if FILE ends with .npy
         [--rank RANK]               of one rank; otherwise of all, in their order

Exit code: 0, 1 if something is damaged or fails, 2 for arguments that mean nothing.
";

/// Why there is no result.
enum Failure {
    Usage(String),
    Failed(String),
    /// All is said, and something is damaged.
    Damaged(String),
}

impl From<PersistentError> for Failure {
    fn from(error: PersistentError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// What the command line says.
struct Arguments {
    words: Vec<String>,
    json: bool,
    rank: Option<u32>,
}

fn main() -> ExitCode {
    let (text, code) = match parse(std::env::args_os().skip(1)).and_then(|told| run(&told)) {
        Ok(text) => (text, 0),
        Err(Failure::Damaged(text)) => (text, 1),
        Err(Failure::Failed(error)) => {
            _ = writeln!(io::stderr(), "rma-store: {error}");
            (String::new(), 1)
        }
        Err(Failure::Usage(error)) => {
            _ = writeln!(io::stderr(), "rma-store: {error}\n\n{USAGE}");
            (String::new(), 2)
        }
    };
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    }
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Arguments, Failure> {
    let mut told = Arguments { words: Vec::new(), json: false, rank: None };
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let Ok(word) = argument.clone().into_string() else {
            let text = argument.to_string_lossy();
            return Err(Failure::Usage(format!("{text:?} is not UTF-8: names of windows are")));
        };
        match word.as_str() {
            "--json" => told.json = true,
            "--rank" => {
                let rank = arguments.next().and_then(|rank| rank.to_str()?.parse().ok());
                let rank = rank.ok_or_else(|| Failure::Usage("--rank takes a number".into()))?;
                told.rank = Some(rank);
            }
            "--help" | "-h" => told.words = vec!["help".into()],
            option if option.starts_with("--") => {
                return Err(Failure::Usage(format!("there is no option {option}")));
            }
            _ => told.words.push(word),
        }
    }
    Ok(told)
}

fn run(told: &Arguments) -> Result<String, Failure> {
    let words: Vec<&str> = told.words.iter().map(String::as_str).collect();
    match words[..] {
        ["help", ..] => Ok(USAGE.into()),
        ["list", root] => list(&Root::look(root)?, told.json),
        ["show", root, name] => show(&Root::look(root)?.window(name)?, told.json),
        ["verify", root] => verify(root, None, told.json),
        ["verify", root, name] => verify(root, Some(name), told.json),
        ["diff", root, name, one, other] => {
            diff(&Root::open_alone(root)?, name, version(one)?, version(other)?, told.json)
        }
        ["restore", root, name, number] => {
            let made = Root::open_alone(root)?.restore(name, version(number)?)?;
            Ok(match told.json {
                true => format!("{{\"version\": {made}}}\n"),
                false => format!("version {made} of {name:?} is what version {number} holds\n"),
            })
        }
        ["delete", root, name] => {
            Root::open_alone(root)?.delete(name)?;
            Ok(deleted(name, None, told.json))
        }
        ["delete", root, name, number] => {
            let number = version(number)?;
            Root::open_alone(root)?.delete_version(name, number)?;
            Ok(deleted(name, Some(number), told.json))
        }
        ["du", root] => usage(&Root::look(root)?, told.json),
        ["export", root, name, number, file] => {
            export(&Root::open_alone(root)?, name, version(number)?, file, told)
        }
        [] => Err(Failure::Usage("what shall be done?".into())),
        [command, ..] => {
            let known = ["list", "show", "verify", "diff", "restore", "delete", "du", "export"];
            Err(Failure::Usage(match known.contains(&command) {
                true => format!("{command} takes other arguments"),
                false => format!("there is no command {command:?}"),
            }))
        }
    }
}

/// What is no more: nothing is said to people, who have asked for it.
fn deleted(name: &str, version: Option<u64>, is_json: bool) -> String {
    let number = version.map_or("null".into(), |number| number.to_string());
    match is_json {
        true => format!("{{\"deleted\": {}, \"version\": {number}}}\n", json(name)),
        false => String::new(),
    }
}

fn version(text: &str) -> Result<u64, Failure> {
    let number = text.parse().ok();
    number.ok_or_else(|| Failure::Usage(format!("{text:?} is no number of a version")))
}

/// Text as JSON has it.
fn json(text: &str) -> String {
    let mut out = String::from('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            char if (char as u32) < 0x20 => _ = write!(out, "\\u{:04x}", char as u32),
            char => out.push(char),
        }
    }
    out.push('"');
    out
}

/// Seconds since 1970, with three digits behind the point.
fn seconds(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    format!("{}.{:03}", since.as_secs(), since.subsec_millis())
}

/// As people write it, in UTC (days to dates by H. Hinnant's `civil_from_days`).
fn date(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (days, second) = (since / 86_400 + 719_468, since % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Rows below a head, in columns; the first is text, and the others are numbers.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<_> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let all: Vec<&Vec<String>> = [&head].into_iter().chain(rows).collect();
    let mut widths = vec![0; head.len()];
    for row in &all {
        for (width, cell) in widths.iter_mut().zip(*row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = String::new();
    for row in all {
        let mut line = format!("{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            _ = write!(line, "  {cell:>width$}");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn list(root: &Root, is_json: bool) -> Result<String, Failure> {
    let windows = root.windows()?;
    if is_json {
        let objects: Vec<_> = windows.iter().map(window_json).collect();
        return Ok(format!("[{}]\n", objects.join(",\n ")));
    }
    let row = |window: &WindowSummary| {
        let newest = window.versions.last();
        let cells = [
            window.name.clone(),
            window.ranks.to_string(),
            window.bytes.to_string(),
            window.versions.len().to_string(),
            newest.map_or("-".into(), |version| version.number.to_string()),
            newest.map_or("-".into(), |version| date(version.time)),
        ];
        cells.to_vec()
    };
    let rows: Vec<_> = windows.iter().map(row).collect();
    let mut text = table(&["window", "ranks", "bytes", "versions", "newest", "made (UTC)"], &rows);
    for window in &windows {
        notes(window, &mut text);
    }
    Ok(text)
}

/// What is out of the ordinary.
fn notes(window: &WindowSummary, text: &mut String) {
    if window.is_plain {
        let name = &window.name;
        _ = writeln!(text, "{name:?} is used without transactions: what it holds is no version");
    }
    for (file, flaw) in &window.damaged {
        _ = writeln!(text, "damaged: {file}: {flaw}");
    }
}

fn version_json(version: &VersionSummary) -> String {
    let VersionSummary { number, time, alone, bytes, .. } = version;
    let alone = alone.map_or("null".into(), |rank| rank.to_string());
    let time = seconds(*time);
    format!("{{\"version\": {number}, \"time\": {time}, \"alone\": {alone}, \"bytes\": {bytes}}}")
}

fn window_json(window: &WindowSummary) -> String {
    let versions: Vec<_> = window.versions.iter().map(version_json).collect();
    let damaged: Vec<_> = window.damaged.iter().map(|(file, _)| json(file)).collect();
    format!(
        "{{\"name\": {}, \"ranks\": {}, \"bytes\": {}, \"element\": {}, \"transactions\": {}, \
         \"versions\": [{}], \"damaged\": [{}]}}",
        json(&window.name),
        window.ranks,
        window.bytes,
        json(&window.element),
        !window.is_plain,
        versions.join(", "),
        damaged.join(", ")
    )
}

fn show(window: &WindowSummary, is_json: bool) -> Result<String, Failure> {
    if is_json {
        return Ok(window_json(window) + "\n");
    }
    let row = |version: &VersionSummary| {
        let by = version.alone.map_or("all ranks".into(), |rank| format!("rank {rank}"));
        vec![version.number.to_string(), by, version.bytes.to_string(), date(version.time)]
    };
    let rows: Vec<_> = window.versions.iter().map(row).collect();
    let mut text = table(&["version", "made by", "bytes", "made (UTC)"], &rows);
    notes(window, &mut text);
    Ok(text)
}

fn verify(root: &str, name: Option<&str>, is_json: bool) -> Result<String, Failure> {
    let root = Root::open_alone(root)?;
    let windows = match name {
        Some(name) => vec![root.window(name)?],
        None => root.windows()?,
    };
    let (mut lines, mut bad) = (Vec::new(), 0);
    let shows = io::stderr().is_terminal();
    for window in &windows {
        let name = &window.name;
        let mut told = 0;
        let verdicts = root.verify(name, |done, all| {
            let percent = done * 100 / all.max(1);
            if shows && percent > told {
                told = percent;
                _ = write!(io::stderr(), "\r{name}: {percent} %  ");
            }
        })?;
        if shows {
            _ = write!(io::stderr(), "\r");
        }
        let flaws = verdicts.iter().map(|(version, flaw)| {
            let what = format!("version {}", version.number);
            (what, flaw.as_ref().map(PersistentError::to_string))
        });
        let records = window
            .damaged
            .iter()
            .map(|(file, flaw)| (file.clone(), Some(format!("its record cannot be read: {flaw}"))));
        for (what, flaw) in flaws.chain(records) {
            bad += u32::from(flaw.is_some());
            lines.push(match (is_json, flaw) {
                (false, None) => format!("{name:?} {what}: intact"),
                (false, Some(flaw)) => format!("{name:?} {what}: damaged: {flaw}"),
                (true, flaw) => format!(
                    "{{\"window\": {}, \"what\": {}, \"flaw\": {}}}",
                    json(name),
                    json(&what),
                    flaw.map_or("null".into(), |flaw| json(&flaw))
                ),
            });
        }
    }
    let text = match is_json {
        true => format!("[{}]\n", lines.join(",\n ")),
        false => lines.iter().map(|line| format!("{line}\n")).collect(),
    };
    if bad == 0 { Ok(text) } else { Err(Failure::Damaged(text)) }
}

fn diff(root: &Root, name: &str, one: u64, other: u64, is_json: bool) -> Result<String, Failure> {
    let mut lines = Vec::new();
    for (rank, ranges) in root.diff(name, one, other)? {
        for range in ranges {
            let (start, end) = (range.start, range.end);
            lines.push(match is_json {
                true => format!("{{\"rank\": {rank}, \"start\": {start}, \"end\": {end}}}"),
                false => format!("rank {rank}: bytes {start} to {end}"),
            });
        }
    }
    Ok(match is_json {
        true => format!("[{}]\n", lines.join(", ")),
        false if lines.is_empty() => "no difference\n".into(),
        false => lines.join("\n") + "\n",
    })
}

fn usage(root: &Root, is_json: bool) -> Result<String, Failure> {
    let mut rows = Vec::new();
    for window in root.windows()? {
        let [work, blocks, records] = root.usage(&window.name)?;
        let sum = work + blocks + records;
        let cells = [work, blocks, records, sum].map(|bytes| bytes.to_string());
        rows.push([window.name].into_iter().chain(cells).collect::<Vec<_>>());
    }
    if is_json {
        let object = |row: &Vec<String>| {
            let [name, work, blocks, records, sum] = &row[..] else { return String::new() };
            let name = json(name);
            format!(
                "{{\"name\": {name}, \"window\": {work}, \"blocks\": {blocks}, \"records\": \
                 {records}, \"bytes\": {sum}}}"
            )
        };
        let objects: Vec<_> = rows.iter().map(object).collect();
        return Ok(format!("[{}]\n", objects.join(",\n ")));
    }
    Ok(table(&["name", "window", "blocks", "records", "bytes"], &rows))
}

fn export(
    root: &Root,
    name: &str,
    number: u64,
    file: &str,
    told: &Arguments,
) -> Result<String, Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("{file}: {error}"));
    let is_npy = file.ends_with(".npy");
    // A version that is damaged leaves no file that looks like one.
    let new = format!("{file}.part");
    let mut out = io::BufWriter::new(File::create(&new).map_err(failed)?);
    let wrote = root.export(name, number, told.rank, is_npy, &mut out).map_err(Failure::from);
    let wrote = wrote.and_then(|()| out.flush().map_err(failed));
    let put = wrote.and_then(|()| {
        let bytes = std::fs::metadata(&new).map_err(failed)?.len();
        std::fs::rename(&new, file).map_err(failed)?;
        Ok(bytes)
    });
    let bytes = put.inspect_err(|_| _ = std::fs::remove_file(&new))?;
    Ok(match told.json {
        true => format!("{{\"file\": {}, \"bytes\": {bytes}}}\n", json(file)),
        false => String::new(),
    })
}
