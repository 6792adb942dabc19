//! `rma-run why`: what each rank waits for, on which ranks, at which window and how long.

use std::fmt::Write;
use std::time::Duration;

use super::view::{JobView, RankView, Stage, WaitView, WhomView};
use crate::run::cpus::{ranges, runs, written};

/// Ranks that wait as long have nothing to say to each other for a moment.
const LONG: Duration = Duration::from_secs(1);

/// What a job waits for.
#[derive(Debug)]
pub struct Why<'a>(pub &'a JobView);

/// What several ranks do.
struct Row {
    ranks: Vec<u32>,
    state: String,
    what: String,
    at: String,
    whom: String,
    /// The shortest, and the longest of the waits.
    ages: Option<(Duration, Duration)>,
}

impl Why<'_> {
    /// To be read by people.
    pub fn text(&self) -> String {
        let lines = lines(self.0).into_iter().map(|line| format!("{line}\n"));
        format!("{}\n{}", heading(self.0), lines.collect::<String>())
    }

    /// To be read by programs: one object.
    pub fn json(&self) -> String {
        let view = self.0;
        let ranks = view.ranks.iter().zip(0..).map(|(rank, number)| {
            let waits = waits_of(rank).iter().map(|wait| wait_json(view, wait));
            let process = rank.process.map_or("null".to_owned(), |process| process.to_string());
            format!(
                "    {{\"rank\": {number}, \"process\": {process}, \"state\": {}, \
                 \"waits\": [{}]}}",
                quoted(&state(rank)),
                waits.collect::<Vec<_>>().join(", "),
            )
        });
        format!(
            "{{\n  {},\n  \"ranks\": [\n{}\n  ]\n}}\n",
            job_json(view),
            ranks.collect::<Vec<_>>().join(",\n")
        )
    }
}

/// The fields that say which job it is.
pub(super) fn job_json(view: &JobView) -> String {
    format!(
        "\"launcher\": {}, \"name\": {}, \"program\": {}, \"host\": {}, \"seconds\": {:.3}",
        view.launcher,
        view.name.as_deref().map_or("null".to_owned(), quoted),
        quoted(&view.program),
        quoted(&view.host),
        view.age.as_secs_f64(),
    )
}

fn wait_json(view: &JobView, wait: &WaitView) -> String {
    let ranks = |runs: &[(u32, u32)]| {
        let all: Vec<_> = numbers(runs).map(|rank| rank.to_string()).collect();
        format!("[{}]", all.join(", "))
    };
    let whom = match &wait.whom {
        WhomView::Unknown => "null".to_owned(),
        WhomView::Rank(rank) => format!("{{\"kind\": \"rank\", \"rank\": {rank}}}"),
        WhomView::All(group, size) => format!(
            "{{\"kind\": \"all\", \"size\": {size}, \"ranks\": {}, \"missing\": {}}}",
            ranks(group),
            ranks(&missing(view, wait, group)),
        ),
        WhomView::Holders(group, size, home) => format!(
            "{{\"kind\": \"holders\", \"size\": {size}, \"ranks\": {}, \"home\": {}}}",
            ranks(group),
            home.map_or("null".to_owned(), |home| home.to_string()),
        ),
        WhomView::Any(group, size) => {
            format!("{{\"kind\": \"any\", \"size\": {size}, \"ranks\": {}}}", ranks(group))
        }
    };
    let at = if wait.at.is_empty() { "null".to_owned() } else { quoted(&wait.at) };
    let (what, seconds) = (quoted(&wait.what), wait.age.as_secs_f64());
    format!("{{\"what\": {what}, \"at\": {at}, \"seconds\": {seconds:.3}, \"whom\": {whom}}}")
}

/// A text in JSON.
pub(in crate::run) fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => _ = write!(quoted, "\\u{:04x}", u32::from(letter)),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// A text on one line of a terminal, which takes nothing in it for an order: it comes from another
/// process, perhaps another user's.
fn harmless(text: &str) -> String {
    // Besides control characters, those that end a line, or turn the order of what follows.
    let shown = |letter: char| match letter {
        '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => false,
        letter => !letter.is_control(),
    };
    let mut harmless = String::new();
    for letter in text.chars() {
        if shown(letter) {
            harmless.push(letter);
        } else {
            harmless.extend(letter.escape_default());
        }
    }
    harmless
}

/// Which job it is.
pub(super) fn heading(view: &JobView) -> String {
    let name = view.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    let ranks = if view.ranks.len() == 1 { "rank" } else { "ranks" };
    harmless(&format!(
        "job {}{name} on {}: {} {ranks} of {}, for {:.1} s",
        view.launcher,
        view.host,
        view.ranks.len(),
        view.program,
        view.age.as_secs_f64(),
    ))
}

/// A table of what ranks do, and what follows from it.
pub(in crate::run) fn lines(view: &JobView) -> Vec<String> {
    let rows = rows(view);
    let head = ["RANKS", "STATE", "FOR", "WAITS FOR", "AT", "WHOM"].map(str::to_owned);
    let cells = rows.iter().map(|row| {
        let ages = row.ages.map_or(String::new(), |(least, most)| {
            let (least, most) = (seconds(least), seconds(most));
            if least == most { format!("{most} s") } else { format!("{least}-{most} s") }
        });
        let [what, at, whom] = [&row.what, &row.at, &row.whom].map(String::clone);
        [ranges(&row.ranks), row.state.clone(), ages, what, at, whom]
    });
    let mut lines = aligned(&[vec![head], cells.collect()].concat());
    lines.extend(conclusion(view));
    lines
}

/// Columns under each other.
pub(super) fn aligned<const N: usize>(cells: &[[String; N]]) -> Vec<String> {
    let cells: Vec<_> = cells.iter().map(|row| row.each_ref().map(|cell| harmless(cell))).collect();
    let width = |at: usize| cells.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let padded = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    cells.iter().map(line).collect()
}

fn seconds(age: Duration) -> String {
    format!("{:.1}", age.as_secs_f64())
}

fn rows(view: &JobView) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (rank, number) in view.ranks.iter().zip(0..) {
        let state = state(rank);
        for wait in waits_of(rank) {
            let (what, at) = (wait.what.clone(), wait.at.clone());
            let does = (state.clone(), what, at, whom(view, number, wait));
            add(&mut rows, number, does, Some(wait.age));
        }
        if waits_of(rank).is_empty() {
            let (what, whom) = match rank.stage {
                Stage::Meeting => ("all to join the job", absent(view)),
                _ => ("", String::new()),
            };
            add(&mut rows, number, (state, what.to_owned(), String::new(), whom), None);
        }
    }
    rows
}

/// Adds a rank to those that do the same.
fn add(
    rows: &mut Vec<Row>,
    rank: u32,
    (state, what, at, whom): (String, String, String, String),
    age: Option<Duration>,
) {
    let same =
        |row: &&mut Row| (&row.state, &row.what, &row.at, &row.whom) == (&state, &what, &at, &whom);
    match rows.iter_mut().find(same) {
        Some(row) => {
            // Several threads of a rank may wait for the same.
            if row.ranks.last() != Some(&rank) {
                row.ranks.push(rank);
            }
            row.ages =
                row.ages.zip(age).map(|((least, most), age)| (least.min(age), most.max(age)));
        }
        None => {
            let ages = age.map(|age| (age, age));
            rows.push(Row { ranks: vec![rank], state, what, at, whom, ages });
        }
    }
}

fn waits_of(rank: &RankView) -> &[WaitView] {
    match (rank.stage, &rank.told) {
        (Stage::Joined, Some(told)) => &told.waits,
        _ => &[],
    }
}

/// What a rank does, in a word or a few.
pub(super) fn state(rank: &RankView) -> String {
    if let (Stage::Joined, None, Some(host)) = (rank.stage, rank.process, &rank.host) {
        return format!("on {host}, which does not answer");
    }
    let letter = rank.usage.as_ref().map(|usage| usage.state);
    let state = match (rank.stage, letter) {
        (Stage::Waiting, _) => "not started yet",
        (Stage::Ended, _) => "has ended",
        (_, Some(b'T')) => "is stopped",
        (_, Some(b't')) => "is stopped by a debugger",
        (Stage::Started, _) => "has not joined",
        (Stage::Meeting, _) => "joins",
        (Stage::Left, _) => "has left, still runs",
        (Stage::Joined, _) if !waits_of(rank).is_empty() => "waits",
        (Stage::Joined, _) if rank.told.is_none() => "tells nothing",
        (Stage::Joined, Some(b'S')) => "sleeps outside of rma",
        (Stage::Joined, Some(b'D')) => "waits for a device",
        (Stage::Joined, _) => "computes",
    };
    state.to_owned()
}

fn numbers(runs: &[(u32, u32)]) -> impl Iterator<Item = u32> {
    runs.iter().flat_map(|(first, last)| *first..=*last)
}

/// Those of a group that are not in the same wait.
fn missing(view: &JobView, wait: &WaitView, group: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let is_in = |rank: &u32| {
        let waits = view.ranks.get(*rank as usize).map(waits_of).unwrap_or_default();
        waits.iter().any(|other| (&other.what, &other.at) == (&wait.what, &wait.at))
    };
    runs(numbers(group).filter(|rank| !is_in(rank)))
}

/// Ranks that have not begun to join.
fn absent(view: &JobView) -> String {
    let late = |rank: &RankView| matches!(rank.stage, Stage::Waiting | Stage::Started);
    let late = view.ranks.iter().zip(0..).filter(|(rank, _)| late(rank));
    named(&runs(late.map(|(_, number)| number)))
}

fn named(runs: &[(u32, u32)]) -> String {
    match runs {
        [] => String::new(),
        [(first, last)] if first == last => format!("rank {first}"),
        _ => format!("ranks {}", written(runs)),
    }
}

/// Which ranks a wait is on, in words.
fn whom(view: &JobView, own: u32, wait: &WaitView) -> String {
    let group = |group: &[(u32, u32)], size: u32| match numbers(group).count() == size as usize {
        true => named(group),
        false => format!("{} and others, {size} in all", named(group)),
    };
    match &wait.whom {
        WhomView::Unknown => String::new(),
        WhomView::Rank(rank) if *rank == own => "another of its threads".to_owned(),
        WhomView::Rank(rank) => format!("rank {rank}"),
        WhomView::All(all, size) => match &missing(view, wait, all)[..] {
            [] => format!("all of {}", group(all, *size)),
            missing => format!("{}, of {}", named(missing), group(all, *size)),
        },
        WhomView::Holders(all, size, None) => format!("who holds it, of {}", group(all, *size)),
        WhomView::Holders(all, size, Some(home)) => {
            format!("who holds it, of {}, by rank {home}", group(all, *size))
        }
        WhomView::Any(all, size) => format!("any of {}", group(all, *size)),
    }
}

/// Which ranks are waited for and do not wait, or that all do.
fn conclusion(view: &JobView) -> Option<String> {
    let joined = || view.ranks.iter().zip(0..).filter(|(rank, _)| rank.stage == Stage::Joined);
    let waits = |(rank, _): &(&RankView, u32)| !waits_of(rank).is_empty();
    if joined().next().is_none() || !joined().any(|rank| waits(&rank)) {
        return None;
    }
    let least = joined().map(|(rank, _)| waits_of(rank).iter().map(|wait| wait.age).min());
    if joined().count() == view.ranks.len()
        && let Some(least) = least.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().min())
    {
        let text = || format!("every rank has waited for {} s or longer", seconds(least));
        return (least >= LONG).then(text);
    }
    let mut awaited: Vec<u32> = Vec::new();
    for (_, wait) in joined().flat_map(|(rank, own)| waits_of(rank).iter().map(move |w| (own, w))) {
        match &wait.whom {
            WhomView::Rank(rank) => awaited.push(*rank),
            WhomView::All(all, _) => awaited.extend(numbers(&missing(view, wait, all))),
            _ => {}
        }
    }
    awaited.sort_unstable();
    awaited.dedup();
    awaited.retain(|rank| view.ranks.get(*rank as usize).is_some_and(|r| waits_of(r).is_empty()));
    let verb = if awaited.len() == 1 { "does" } else { "do" };
    let them = named(&runs(awaited.iter().copied()));
    (!awaited.is_empty()).then(|| format!("{them} {verb} not wait, and others wait for that"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::view::{Told, Usage};
    use super::*;

    fn wait(what: &str, at: &str, whom: WhomView, seconds: f64) -> WaitView {
        let age = Duration::from_secs_f64(seconds);
        WaitView { what: what.to_owned(), at: at.to_owned(), whom, age }
    }

    fn rank(stage: Stage, state: u8, waits: Vec<WaitView>) -> RankView {
        let usage = Usage { state, cpu: Duration::from_millis(1500), resident: 3 << 20 };
        let told = Told { waits, windows: 2, operations: 10, messages: 20, parked: 30 };
        RankView { stage, host: None, process: Some(100), usage: Some(usage), told: Some(told) }
    }

    fn job(ranks: Vec<RankView>) -> JobView {
        JobView {
            launcher: 77,
            name: Some("a job".to_owned()),
            program: "./stencil".to_owned(),
            host: "vm".to_owned(),
            age: Duration::from_millis(63_250),
            ranks,
        }
    }

    /// Three ranks in a barrier, for one that computes.
    pub(in super::super) fn view() -> JobView {
        let barrier = |age| wait("a barrier", "the world", WhomView::All(vec![(0, 3)], 4), age);
        let rank = |age| rank(Stage::Joined, b'S', vec![barrier(age)]);
        job(vec![
            rank(61.26),
            rank(61.2),
            rank(58.0),
            super::tests::rank(Stage::Joined, b'R', vec![]),
        ])
    }

    #[test]
    fn ranks_that_wait_for_the_same_are_one_row() {
        let expected = "job 77 (a job) on vm: 4 ranks of ./stencil, for 63.2 s\n\
            RANKS  STATE     FOR          WAITS FOR  AT         WHOM\n\
            0-2    waits     58.0-61.3 s  a barrier  the world  rank 3, of ranks 0-3\n\
            3      computes\n\
            rank 3 does not wait, and others wait for that\n";
        assert_eq!(Why(&view()).text(), expected);
    }

    #[test]
    fn each_kind_of_wait_names_whom_it_is_on() {
        let group = || vec![(0, 1), (5, 6)];
        let text = |whom| super::whom(&view(), 1, &wait("a lock", "window #0.1", whom, 1.0));
        assert_eq!(text(WhomView::Unknown), "");
        assert_eq!(text(WhomView::Rank(2)), "rank 2");
        assert_eq!(text(WhomView::Rank(1)), "another of its threads");
        assert_eq!(text(WhomView::Holders(group(), 4, None)), "who holds it, of ranks 0-1, 5-6");
        let far = text(WhomView::Holders(group(), 9, Some(7)));
        assert_eq!(far, "who holds it, of ranks 0-1, 5-6 and others, 9 in all, by rank 7");
        assert_eq!(text(WhomView::Any(vec![(0, 0)], 1)), "any of rank 0");
    }

    #[test]
    fn stages_and_states_are_told_apart() {
        let stopped = rank(Stage::Joined, b'T', vec![wait("a lock", "", WhomView::Rank(0), 1.0)]);
        let silent = RankView { told: None, ..rank(Stage::Joined, b'S', vec![]) };
        let host = Some("node7".to_owned());
        let far = RankView { host, process: None, usage: None, ..silent.clone() };
        let ranks = [
            (rank(Stage::Waiting, b'S', vec![]), "not started yet"),
            (rank(Stage::Started, b'S', vec![]), "has not joined"),
            (rank(Stage::Meeting, b'S', vec![]), "joins"),
            (rank(Stage::Joined, b'S', vec![]), "sleeps outside of rma"),
            (rank(Stage::Joined, b'D', vec![]), "waits for a device"),
            (stopped, "is stopped"),
            (silent.clone(), "tells nothing"),
            (far, "on node7, which does not answer"),
            (rank(Stage::Left, b'R', vec![]), "has left, still runs"),
            (rank(Stage::Ended, b'Z', vec![]), "has ended"),
        ];
        for (rank, expected) in &ranks {
            assert_eq!(state(rank), *expected);
        }
        let table = lines(&job(ranks.map(|(rank, _)| rank).into()));
        assert!(table[3].contains("all to join the job") && table[3].ends_with("ranks 0-1"));
        assert!(table[6].starts_with("5      is stopped") && table[6].ends_with("rank 0"));
    }

    #[test]
    fn that_every_rank_waits_is_said() {
        let on = |peer, age| wait("a flush", "window #0.1", WhomView::Rank(peer), age);
        let ranks = |age| {
            let rank = |peer, age| rank(Stage::Joined, b'S', vec![on(peer, age)]);
            lines(&job(vec![rank(1, age), rank(0, 9.0)]))
        };
        assert_eq!(ranks(2.5).last().unwrap(), "every rank has waited for 2.5 s or longer");
        assert_eq!(ranks(0.5).len(), 3, "it may be over soon");
    }

    #[test]
    fn a_terminal_is_not_told_what_to_do() {
        let evil = "\x1b[2J\n\r\x07\u{9b}1m\u{202e}x\"'\\\u{e9}";
        let mut view = view();
        (view.name, view.program, view.host) = (Some(evil.into()), evil.into(), evil.into());
        let waits = &mut view.ranks[0].told.as_mut().unwrap().waits;
        waits[0] = wait(evil, evil, WhomView::Unknown, 1.0);
        let shown = "\\u{1b}[2J\\n\\r\\u{7}\\u{9b}1m\\u{202e}x\"'\\\u{e9}";
        let top = super::super::Top { before: &view, now: &view };
        for (text, times, lines) in [(Why(&view).text(), 5, 6), (top.text(None), 4, 7)] {
            assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
            assert_eq!(text.matches(shown).count(), times, "{text}");
            assert_eq!(text.lines().count(), lines, "{text}");
        }
    }

    #[test]
    fn programs_read_json() {
        let json = Why(&view()).json();
        let first = "{\"rank\": 0, \"process\": 100, \"state\": \"waits\", \"waits\": \
                     [{\"what\": \"a barrier\", \"at\": \"the world\", \"seconds\": 61.260, \
                     \"whom\": {\"kind\": \"all\", \"size\": 4, \"ranks\": [0, 1, 2, 3], \
                     \"missing\": [3]}}]}";
        assert!(json.contains(first), "{json}");
        assert!(json.contains("\"launcher\": 77, \"name\": \"a job\""), "{json}");
        assert_eq!(quoted("x \"y\"\n\\"), "\"x \\\"y\\\"\\u000a\\\\\"");
    }
}
