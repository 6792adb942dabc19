//! The hosts that a scheduler has given to the job that this process is in.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;

use rma_launcher::run::HostSlots;

/// Hosts of a job, at most.
const HOSTS_MAX: usize = 1 << 16;

/// Digits of a number in a name, at most: those of the largest that is read.
const WIDEST: usize = 20;

/// Reads one environment variable.
pub(crate) type Vars<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The hosts, and the variable that names them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) hosts: Vec<HostSlots>,
    pub(crate) variable: &'static str,
}

/// What Slurm, PBS or LSF has given, if this process is in a job of one of them.
///
/// # Errors
///
/// A sentence that names the variable that cannot be understood.
pub(crate) fn find(vars: Vars) -> Result<Option<Allocation>, String> {
    let text = |name: &str| vars(name).map(|value| value.to_string_lossy().into_owned());
    let failed = |name: &str, why: String| {
        format!(
            "{name}, from which the hosts of this job are to be taken, {why}; name them by --hosts \
             or --hostfile (--hosts localhost:N for this machine alone)"
        )
    };
    let found = |variable, hosts: Result<Vec<HostSlots>, String>| match hosts {
        Ok(hosts) => Ok(Some(Allocation { hosts, variable })),
        Err(why) => Err(failed(variable, why)),
    };
    const SLURM: &str = "SLURM_JOB_NODELIST";
    if let Some(list) = text(SLURM) {
        let tasks = ["SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"];
        let tasks = tasks.iter().find_map(|name| text(name).map(|value| (*name, value)));
        let Some((name, value)) = tasks else { return found(SLURM, slurm_hosts(&list, None)) };
        let counts = counts(&value).ok_or_else(|| failed(name, format!("is {value:?}")))?;
        return found(SLURM, slurm_hosts(&list, Some((name, counts))));
    }
    for name in ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"] {
        if let Some(path) = text(name) {
            return found(name, lines_of(Path::new(&path)));
        }
    }
    match text("LSB_MCPU_HOSTS") {
        Some(list) => found("LSB_MCPU_HOSTS", pairs(&list)),
        None => Ok(None),
    }
}

/// Whether a host is the one that this process is on.
pub(crate) fn is_here(name: &str) -> bool {
    let uname = rustix::system::uname();
    let own = uname.nodename().to_string_lossy();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    name == "localhost" || short(name) == short(&own)
}

fn slurm_hosts(
    list: &str,
    counts: Option<(&'static str, Vec<u32>)>,
) -> Result<Vec<HostSlots>, String> {
    let names = expanded(list).ok_or_else(|| format!("is {list:?}"))?;
    let Some((name, counts)) = counts else {
        return Ok(names.into_iter().map(|name| HostSlots { name, slots: None }).collect());
    };
    if counts.len() != names.len() {
        return Err(format!("has {} hosts, and {name} {}", names.len(), counts.len()));
    }
    let slots = names.into_iter().zip(counts);
    Ok(slots.map(|(name, count)| HostSlots { name, slots: Some(count) }).collect())
}

/// The names in `a,n[01-03,7]x[1-2]`.
fn expanded(list: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    let mut depth = 0;
    let entries = list.split(|letter: char| {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    });
    for entry in entries {
        let mut names = vec![String::new()];
        let mut rest = entry.trim();
        while let Some((before, behind)) = rest.split_once('[') {
            let (ranges, after) = behind.split_once(']')?;
            let numbers = numbers(ranges)?;
            if all.len() + names.len().checked_mul(numbers.len())? > HOSTS_MAX {
                return None;
            }
            let with = |name: &String| {
                let name = format!("{name}{before}");
                numbers.iter().map(move |number| format!("{name}{number}")).collect::<Vec<_>>()
            };
            names = names.iter().flat_map(with).collect();
            rest = after;
        }
        names.iter_mut().for_each(|name| name.push_str(rest));
        if !names.iter().all(|name| is_host(name)) {
            return None;
        }
        all.append(&mut names);
    }
    Some(all)
}

/// What is named becomes a word of a remote shell's command line.
fn is_host(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(is_letter)
}

/// The numbers in `01-03,7`, as they are written there.
fn numbers(ranges: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (from, to): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        let many = usize::try_from(to.checked_sub(from)?).ok()?;
        let width = first.len();
        if !is_number(first) || !is_number(last) || width > WIDEST || many >= HOSTS_MAX - all.len()
        {
            return None;
        }
        all.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Some(all)
}

/// The counts in `2(x3),1`.
fn counts(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for entry in text.split(',') {
        let (count, times) = match entry.trim().split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (entry.trim(), 1),
        };
        let count: u32 = count.parse().ok().filter(|count| *count > 0)?;
        if times > HOSTS_MAX - all.len() {
            return None;
        }
        all.extend(std::iter::repeat_n(count, times));
    }
    Some(all)
}

/// A file with a host a line, as often as it takes ranks.
fn lines_of(path: &Path) -> Result<Vec<HostSlots>, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("names {shown}, which cannot be read: {error}"))?;
    let names = text.split_ascii_whitespace().map(|name| (name.to_owned(), 1));
    match counted(names) {
        Ok(hosts) if hosts.is_empty() => Err(format!("names {shown}, which names no host")),
        Ok(hosts) => Ok(hosts),
        Err(name) => {
            Err(format!("names {shown}, where {name:?} is no host's name, or one too many"))
        }
    }
}

/// `a 4 b 2`.
fn pairs(list: &str) -> Result<Vec<HostSlots>, String> {
    let words: Vec<&str> = list.split_ascii_whitespace().collect();
    let (pairs, rest) = words.as_chunks::<2>();
    let slots = |count: &str| count.parse().ok().filter(|count: &u32| *count > 0);
    let pairs = pairs.iter().map(|[name, count]| Some(((*name).to_owned(), slots(count)?)));
    let pairs: Option<Vec<_>> = pairs.collect();
    let hosts = pairs.filter(|_| rest.is_empty()).and_then(|pairs| counted(pairs.into_iter()).ok());
    hosts.filter(|hosts| !hosts.is_empty()).ok_or_else(|| format!("is {list:?}"))
}

/// Hosts in the order in which they come first; an error is no name of one, or one too many.
fn counted(names: impl Iterator<Item = (String, u32)>) -> Result<Vec<HostSlots>, String> {
    let mut places = HashMap::new();
    let mut hosts: Vec<HostSlots> = Vec::new();
    for (name, count) in names {
        if !is_host(&name) {
            return Err(name);
        }
        let many = hosts.len();
        let place = *places.entry(name.clone()).or_insert(many);
        match hosts.get_mut(place) {
            Some(HostSlots { slots: Some(slots), .. }) => *slots = slots.saturating_add(count),
            _ if many == HOSTS_MAX => return Err(name),
            _ => hosts.push(HostSlots { name, slots: Some(count) }),
        }
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(vars: &[(&str, &str)]) -> Result<Option<(&'static str, String)>, String> {
        let read = |name: &str| {
            vars.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        };
        let host = |host: HostSlots| match host.slots {
            Some(slots) => format!("{}:{slots}", host.name),
            None => host.name,
        };
        Ok(find(&read)?.map(|allocation| {
            let hosts: Vec<_> = allocation.hosts.into_iter().map(host).collect();
            (allocation.variable, hosts.join(","))
        }))
    }

    fn hosts(vars: &[(&str, &str)]) -> String {
        found(vars).unwrap().unwrap().1
    }

    /// Of `salloc -N 3 -n 5`, as in the manual of sbatch.
    #[test]
    fn slurm_names_hosts_in_brackets() {
        let recorded = [
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_JOB_NODELIST", "node[09-11]"),
            ("SLURM_TASKS_PER_NODE", "2(x2),1"),
            ("SLURM_JOB_CPUS_PER_NODE", "8(x3)"),
        ];
        let named = Some(("SLURM_JOB_NODELIST", "node09:2,node10:2,node11:1".to_owned()));
        assert_eq!(found(&recorded), Ok(named));
        let list =
            |list, counts| hosts(&[("SLURM_JOB_NODELIST", list), ("SLURM_TASKS_PER_NODE", counts)]);
        assert_eq!(list("vm", "2"), "vm:2");
        assert_eq!(list("a,n[1,3-4]", "1(x4)"), "a:1,n1:1,n3:1,n4:1");
        assert_eq!(list("r[1-2]n[8-9].x", "1(x4)"), "r1n8.x:1,r1n9.x:1,r2n8.x:1,r2n9.x:1");
        assert_eq!(list("n[098-101]", "4(x4)"), "n098:4,n099:4,n100:4,n101:4");
        assert_eq!(hosts(&[("SLURM_JOB_NODELIST", "n[1-2]")]), "n1,n2");
        let cpus = [("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_JOB_CPUS_PER_NODE", "8,4")];
        assert_eq!(hosts(&cpus), "n1:8,n2:4");
    }

    #[test]
    fn what_slurm_never_says_is_refused() {
        let lists = [
            "",
            "n[",
            "n[1",
            "n[]",
            "n[3-1]",
            "n[1-x]",
            "n[+1-2]",
            "n]1[",
            "a,,b",
            "-oProxyCommand=x",
            "a;b",
            "n[0-99999999999]",
            "n[0-9999][0-9999]",
            "n[18446744073709551615-0]",
            "n[1,0-18446744073709551615]",
            "n[000000000000000000001-2]",
            "$(x)",
        ];
        for list in lists {
            let error = found(&[("SLURM_JOB_NODELIST", list)]).unwrap_err();
            assert!(error.contains("SLURM_JOB_NODELIST") && error.contains("--hosts"), "{error}");
        }
        for counts in ["", "0", "x", "2(x", "2(x2", "2(y2)", "1(x99999999999)", "1,1,1"] {
            let vars = [("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_TASKS_PER_NODE", counts)];
            let error = found(&vars).unwrap_err();
            assert!(error.contains("SLURM_TASKS_PER_NODE"), "{counts}: {error}");
        }
    }

    #[test]
    fn pbs_and_lsf_name_a_host_for_each_rank() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nodes");
        std::fs::write(&file, "n1.cluster\nn1.cluster\nn2.cluster\nn1.cluster\n").unwrap();
        let path = file.to_str().unwrap();
        for name in ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"] {
            assert_eq!(hosts(&[(name, path)]), "n1.cluster:3,n2.cluster:1");
            let error = found(&[(name, "/nowhere/nodes")]).unwrap_err();
            assert!(error.contains(name) && error.contains("/nowhere/nodes"), "{error}");
        }
        std::fs::write(&file, "\n").unwrap();
        assert!(found(&[("PBS_NODEFILE", path)]).unwrap_err().contains("names no host"));
        std::fs::write(&file, "n1\n-oProxyCommand=x\n").unwrap();
        assert!(found(&[("PBS_NODEFILE", path)]).unwrap_err().contains("-oProxyCommand=x"));
        assert_eq!(hosts(&[("LSB_MCPU_HOSTS", "a 4 b 2")]), "a:4,b:2");
        for wrong in ["", "a", "a 4 b", "a x", "a 0", "-oProxyCommand=x 4"] {
            assert!(found(&[("LSB_MCPU_HOSTS", wrong)]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn outside_of_a_job_there_are_no_hosts() {
        assert_eq!(found(&[("SLURM_CONF", "/etc/slurm.conf")]), Ok(None));
    }

    #[test]
    fn this_machine_is_known_by_its_name() {
        let uname = rustix::system::uname();
        let own = uname.nodename().to_string_lossy();
        assert!(is_here(&own) && is_here(&format!("{own}.example.org")) && is_here("localhost"));
        assert!(!is_here(&format!("{own}x")) && !is_here(""));
    }

    proptest! {
        #[test]
        fn no_list_makes_a_reader_panic(list: String, text: String) {
            let _ = expanded(&list).map(|names| names.len());
            let _ = counts(&text);
            let _ = pairs(&text);
        }
    }
}
