//! Which hosts there are, and which ranks are on each.

use std::ops::Range;
use std::path::Path;

use super::super::pattern::is_folder;
use crate::wire::RANKS_MAX;

/// A host, as the user names it, and ranks that there may be on it, if that was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSlots {
    /// Its name or address.
    pub name: String,
    /// Ranks that it takes.
    pub slots: Option<u32>,
}

/// The ranks of a host: `ranks` in a row from `first` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPart {
    /// Its name or address.
    pub name: String,
    /// Its first rank.
    pub first: u32,
    /// How many it has.
    pub ranks: u32,
}

impl HostPart {
    /// Its ranks.
    pub(in super::super) fn range(&self) -> Range<u32> {
        self.first..self.first + self.ranks
    }
}

/// Reads `a:2,b:2`.
///
/// # Errors
///
/// A sentence that names what is wrong.
pub fn parse_hosts(text: &str) -> Result<Vec<HostSlots>, String> {
    let hosts = text.split(',').map(|entry| parse_host(entry.trim()));
    distinct(hosts.collect::<Result<_, _>>()?)
}

/// Reads a file with a host a line: `a`, `a:2` or `a slots=2`; `#` begins a comment.
///
/// # Errors
///
/// A sentence that names the file, and what is wrong.
pub fn read_hosts(path: &Path) -> Result<Vec<HostSlots>, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("hosts of {shown}: cannot be read: {error}"))?;
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let host = parse_line(line).map_err(|why| format!("{shown}, line {number}: {why}"))?;
        hosts.push(host);
    }
    if hosts.is_empty() {
        return Err(format!("{shown} names no host: write one a line, such as `node1 slots=4`"));
    }
    distinct(hosts).map_err(|why| format!("{shown}: {why}"))
}

fn parse_line(line: &str) -> Result<HostSlots, String> {
    let mut words = line.split_whitespace();
    let mut host = parse_host(words.next().unwrap_or_default())?;
    for word in words {
        match word.strip_prefix("slots=") {
            Some(slots) => host.slots = Some(parse_slots(slots, &host.name)?),
            None => return Err(format!("{word:?} is not known: write `{} slots=N`", host.name)),
        }
    }
    Ok(host)
}

fn parse_host(entry: &str) -> Result<HostSlots, String> {
    // An address of the sixth version has colons of its own.
    let (name, slots) = match entry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, rest)) => match rest.strip_prefix(':') {
            Some(slots) => (name, Some(slots)),
            None if rest.is_empty() => (name, None),
            None => return Err(format!("{entry:?} is no host: write it as [ADDRESS]:RANKS")),
        },
        None => match entry.split_once(':') {
            Some((name, slots)) => (name, Some(slots)),
            None => (entry, None),
        },
    };
    // What begins with a dash would be an option of ssh.
    let named = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@:%".contains(&byte);
    if name.is_empty() || name.starts_with('-') || is_folder(name) || !name.bytes().all(named) {
        return Err(format!("{name:?} is no name of a host: write hosts as a:2,b:2"));
    }
    let slots = slots.map(|slots| parse_slots(slots, name)).transpose()?;
    Ok(HostSlots { name: name.to_owned(), slots })
}

fn parse_slots(text: &str, name: &str) -> Result<u32, String> {
    let slots = text.parse().ok().filter(|slots| *slots > 0);
    slots.ok_or_else(|| format!("host {name} takes {text:?} ranks: write a number from 1 on"))
}

fn distinct(hosts: Vec<HostSlots>) -> Result<Vec<HostSlots>, String> {
    let mut seen = std::collections::HashSet::new();
    match hosts.iter().find(|host| !seen.insert(&host.name)) {
        Some(HostSlots { name, .. }) => {
            Err(format!("host {name} stands there twice: name it once, as {name}:RANKS"))
        }
        None => Ok(hosts),
    }
}

/// Which host the next rank is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fill {
    /// The same one, until that is full; hosts that no number was said for share equally.
    #[default]
    HostByHost,
    /// The next one that has room.
    InTurn,
}

/// Places `ranks` ranks, or as many as the hosts take; `each` is how many a host takes at most.
/// Those of a host have numbers in a row, however hosts are filled.
///
/// # Errors
///
/// A sentence: there is no room for them.
pub fn place(
    hosts: &[HostSlots],
    ranks: Option<u32>,
    each: Option<u32>,
    fill: Fill,
) -> Result<Vec<HostPart>, String> {
    let count = u32::try_from(hosts.len()).unwrap_or(u32::MAX).max(1);
    let said: u32 = hosts.iter().filter_map(|host| host.slots).fold(0, u32::saturating_add);
    let unsaid = hosts.iter().filter(|host| host.slots.is_none()).count();
    let unsaid = u32::try_from(unsaid).unwrap_or(count);
    let share = match (each, ranks) {
        (Some(each), _) => each,
        (None, Some(ranks)) if fill == Fill::InTurn => ranks,
        (None, Some(ranks)) => ranks.saturating_sub(said).div_ceil(unsaid.max(1)).max(1),
        (None, None) => 1,
    };
    let room = |host: &HostSlots| match (host.slots, each) {
        (Some(slots), Some(each)) => slots.min(each),
        (Some(slots), None) => slots,
        (None, _) => share,
    };
    let all = hosts.iter().map(room).fold(0, u32::saturating_add);
    let ranks = ranks.unwrap_or(all);
    if ranks > all {
        return Err(format!(
            "{ranks} ranks were asked for, but the hosts take {all} ({}): ask for fewer, or raise \
             a number",
            hosts
                .iter()
                .map(|host| format!("{}:{}", host.name, room(host)))
                .collect::<Vec<_>>()
                .join(",")
        ));
    }
    if ranks > RANKS_MAX {
        return Err(format!(
            "{ranks} ranks on hosts were asked for, which is more than {RANKS_MAX}: ask for fewer"
        ));
    }
    let rooms: Vec<u32> = hosts.iter().map(room).collect();
    let counts = match fill {
        Fill::HostByHost => one_by_one(&rooms, ranks),
        Fill::InTurn => in_turn(&rooms, ranks),
    };
    let mut first = 0;
    let mut parts = Vec::new();
    for (host, ranks) in hosts.iter().zip(counts).filter(|(_, ranks)| *ranks > 0) {
        parts.push(HostPart { name: host.name.clone(), first, ranks });
        first += ranks;
    }
    Ok(parts)
}

/// How many ranks each host gets, when one is full before the next has any.
fn one_by_one(rooms: &[u32], ranks: u32) -> Vec<u32> {
    let mut left = ranks;
    let mut take = |room: &u32| {
        let count = (*room).min(left);
        left -= count;
        count
    };
    rooms.iter().map(&mut take).collect()
}

/// The same, when each gets one after the other. There is room for all.
fn in_turn(rooms: &[u32], ranks: u32) -> Vec<u32> {
    let mut counts = vec![0; rooms.len()];
    let mut left = ranks;
    while left > 0 {
        for (count, room) in counts.iter_mut().zip(rooms) {
            if left > 0 && *count < *room {
                *count += 1;
                left -= 1;
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(hosts: &str, ranks: Option<u32>, each: Option<u32>) -> Result<Vec<u32>, String> {
        filled(hosts, ranks, each, Fill::HostByHost)
    }

    fn filled(
        hosts: &str,
        ranks: Option<u32>,
        each: Option<u32>,
        fill: Fill,
    ) -> Result<Vec<u32>, String> {
        let parts = place(&parse_hosts(hosts)?, ranks, each, fill)?;
        let mut next = 0;
        for part in &parts {
            assert_eq!(part.first, next, "in a row");
            next += part.ranks;
        }
        Ok(parts.iter().map(|part| part.ranks).collect())
    }

    #[test]
    fn ranks_fill_the_hosts() {
        assert_eq!(placed("a:2,b:3", None, None), Ok(vec![2, 3]));
        assert_eq!(placed("a:2,b:3", Some(3), None), Ok(vec![2, 1]));
        assert_eq!(placed("a:2,b:3", Some(2), None), Ok(vec![2]));
        assert_eq!(placed("a,b", None, None), Ok(vec![1, 1]));
        assert_eq!(placed("a,b", Some(5), None), Ok(vec![3, 2]));
        assert_eq!(placed("a,b", None, Some(4)), Ok(vec![4, 4]));
        assert_eq!(placed("a:8,b", Some(6), Some(4)), Ok(vec![4, 2]));
        assert_eq!(placed("a:1,b", Some(6), None), Ok(vec![1, 5]));
        let error = placed("a:2,b:2", Some(5), None).unwrap_err();
        assert!(error.contains("5 ranks") && error.contains("take 4 (a:2,b:2)"), "{error}");
        assert!(placed("a:2,b:2", Some(4), Some(1)).is_err());
        let error = placed("a:2000000000,b:1", None, None).unwrap_err();
        assert!(error.starts_with("2000000001 ranks on hosts"), "{error}");
        assert_eq!(placed("a:65536", None, None), Ok(vec![RANKS_MAX]));
    }

    #[test]
    fn hosts_take_turns() {
        let dealt = |hosts, ranks, each| filled(hosts, ranks, each, Fill::InTurn);
        assert_eq!(dealt("a:4,b:4,c:4", Some(6), None), Ok(vec![2, 2, 2]));
        assert_eq!(dealt("a:4,b:4", Some(5), None), Ok(vec![3, 2]));
        assert_eq!(dealt("a:1,b:4,c:2", Some(7), None), Ok(vec![1, 4, 2]));
        assert_eq!(dealt("a:8,b", Some(6), None), Ok(vec![3, 3]));
        assert_eq!(dealt("a:8,b", Some(6), Some(4)), Ok(vec![3, 3]));
        assert_eq!(dealt("a:2,b:3", None, None), Ok(vec![2, 3]));
        assert_eq!(dealt("a,b,c", Some(2), None), Ok(vec![1, 1]));
        let error = dealt("a:2,b:2", Some(5), None).unwrap_err();
        assert!(error.contains("take 4 (a:2,b:2)"), "{error}");
        assert_eq!(dealt("a:65536,b:1", Some(RANKS_MAX), None), Ok(vec![RANKS_MAX - 1, 1]));
    }

    #[test]
    fn names_of_hosts_are_checked() {
        let name = |text: &str| parse_hosts(text).unwrap().pop().unwrap();
        assert_eq!(name("[fe80::1%eth0]:2").name, "fe80::1%eth0");
        assert_eq!(name("[::1]").slots, None);
        assert_eq!(name("me@node1.example.org:3").slots, Some(3));
        for bad in [
            "",
            "a,",
            ".",
            "..:2",
            "-oProxyCommand=x",
            "a b",
            "a;b",
            "a:0",
            "a:x",
            "[::1]2",
            "$(x)",
        ] {
            assert!(parse_hosts(bad).is_err(), "{bad:?}");
        }
        let twice = parse_hosts("a:1,b:2,a:1").unwrap_err();
        assert!(twice.contains("host a stands there twice"), "{twice}");
    }

    #[test]
    fn a_file_of_hosts_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let path = dir.path().join("hosts");
            std::fs::write(&path, text).unwrap();
            read_hosts(&path)
        };
        let hosts = read("# mine\n\na slots=2 # two\nb:3\nc\n").unwrap();
        let slots: Vec<_> = hosts.iter().map(|host| (&*host.name, host.slots)).collect();
        assert_eq!(slots, [("a", Some(2)), ("b", Some(3)), ("c", None)]);
        assert!(read("\n").unwrap_err().contains("names no host"));
        assert!(read("a\nb tasks=2").unwrap_err().contains("line 2: \"tasks=2\""));
        assert!(read("a\na").unwrap_err().contains("twice"));
        assert!(read_hosts(Path::new("/no/such")).unwrap_err().contains("/no/such"));
    }
}
