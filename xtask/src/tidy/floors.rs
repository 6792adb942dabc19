//! Rooms of `rma-core` stand on floors: each knows those below it only, as docs/architecture.md
//! lists them, the highest first. Names of types have one meaning in all of them.

use super::{File, Finding};
use std::collections::{BTreeMap, BTreeSet};

const RULE: &str = "floor";
const CORE: &str = "rma-core/src/";
const PAGE: &str = "docs/architecture.md";
/// Below this heading is the table, whose first column names rooms.
const HEADING: &str = "## Inside rma-core";

/// Types that stand twice on purpose: those of modules that seal a trait, and one of which a build
/// has one or the other.
const TWINS: &[&str] = &["Sealed", "CellBounds"];

/// Methods of the standard library that a guest has the name of.
const OF_STD: &[&str] = &["lock", "try_lock"];

/// Names of the rooms, the highest first.
fn listed(page: &str) -> Vec<&str> {
    let table = page.split_once(HEADING).map_or("", |(_, rest)| rest);
    let rows = table.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

/// The room of a file, as the table writes it; `None` for the root of the crate.
fn room(path: &str) -> Option<String> {
    let inside = path.strip_prefix(CORE)?;
    match inside.split_once('/') {
        Some((folder, _)) => Some(format!("{folder}/")),
        None => (inside != "lib.rs").then(|| inside.into()),
    }
}

struct House<'a> {
    rooms: Vec<&'a str>,
    /// Rooms that give a method of that name to a type which is defined elsewhere.
    guests: BTreeMap<&'a str, BTreeSet<usize>>,
    /// Rooms with methods of that name, of types of their own.
    own: BTreeMap<&'a str, BTreeSet<usize>>,
}

impl House<'_> {
    /// 0 is the highest.
    fn floor(&self, room: &str) -> Option<usize> {
        self.rooms.iter().position(|known| *known == room)
    }

    /// The floor of the room that a module below the root is.
    fn of_module(&self, name: &str) -> Option<usize> {
        self.floor(&format!("{name}/")).or_else(|| self.floor(&format!("{name}.rs")))
    }

    fn check<'f>(&'f self, file: &'f File<'_>, own: usize) -> impl Iterator<Item = Finding> + 'f {
        let is_above = move |floor: usize| floor < own;
        let paths = file.facts.paths.iter().filter(|path| !path.test);
        let paths = paths.filter_map(move |path| {
            let (_, rest) = path.what.split_once("crate::")?;
            let name = rest.split("::").next().unwrap_or(rest);
            let above = match self.of_module(name) {
                Some(floor) if is_above(floor) => self.rooms[floor],
                // A name at the root does not show which room it is of.
                None if name.starts_with(char::is_uppercase) => "the root of the crate",
                _ => return None,
            };
            let message = format!("{} knows {above}: {}", self.rooms[own], path.what);
            Some(file.finding(RULE, path.line, message))
        });
        let calls = file.facts.calls.iter().filter(|call| !call.test);
        let calls = calls.filter(|call| !OF_STD.contains(&call.what.as_str()));
        let calls = calls.filter_map(move |call| {
            let name = call.what.as_str();
            let guests = self.guests.get(name)?;
            let others = self.own.get(name).into_iter().flatten();
            let all_above = guests.iter().chain(others).all(|floor| is_above(*floor));
            let above = guests.last().filter(|_| all_above)?;
            let (own, above) = (self.rooms[own], self.rooms[*above]);
            let message = format!("{own} calls `{}`, a method that {above} has", call.what);
            Some(file.finding(RULE, call.line, message))
        });
        paths.chain(calls)
    }
}

pub(super) fn check(page: &str, files: &[File<'_>]) -> Vec<Finding> {
    let mut house = House { rooms: listed(page), guests: BTreeMap::new(), own: BTreeMap::new() };
    let core: Vec<&File<'_>> = files.iter().filter(|file| file.path.starts_with(CORE)).collect();
    let there: BTreeSet<String> = core.iter().filter_map(|file| room(file.path)).collect();
    let at_page = |message| Finding { rule: RULE, path: PAGE.into(), line: 1, message };
    let missing = there.iter().filter(|room| house.floor(room).is_none());
    let mut findings: Vec<Finding> = missing
        .map(|room| at_page(format!("the table below {HEADING:?} has no line for {room}")))
        .collect();
    let gone = house.rooms.iter().filter(|room| !there.contains(**room));
    findings
        .extend(gone.map(|room| at_page(format!("{room} is listed, and is no room of {CORE}"))));
    let defined = core.iter().filter_map(|file| {
        let floor = house.floor(&room(file.path)?)?;
        Some(file.facts.types.iter().map(move |of| (floor, &of.what)))
    });
    let types: BTreeSet<(usize, &String)> = defined.flatten().collect();
    for file in &core {
        let Some(floor) = room(file.path).and_then(|room| house.floor(&room)) else { continue };
        for method in file.facts.methods.iter().filter(|method| !method.test) {
            let (of, name) = &method.what;
            let at_home = types.contains(&(floor, of));
            let rooms = if at_home { &mut house.own } else { &mut house.guests };
            rooms.entry(name).or_default().insert(floor);
        }
    }
    for file in &core {
        let Some(floor) = room(file.path).and_then(|room| house.floor(&room)) else { continue };
        findings.extend(house.check(file, floor));
    }
    findings.extend(twice(&core));
    findings
}

/// A type name has one meaning in the core.
fn twice<'a>(core: &'a [&'a File<'a>]) -> impl Iterator<Item = Finding> + 'a {
    let mut first = BTreeMap::new();
    let code = core.iter().filter(|file| !file.path.ends_with("_tests.rs"));
    let types = code.flat_map(|file| {
        let types = file.facts.types.iter().filter(|of| !of.test && !TWINS.contains(&&*of.what));
        types.map(|of| (*file, of))
    });
    types.filter_map(move |(file, of)| {
        let there = *first.entry(&of.what).or_insert(file.path);
        let message = || format!("{} has a type of that name: {}", there, of.what);
        (there != file.path).then(|| file.finding("type-name", of.line, message()))
    })
}
