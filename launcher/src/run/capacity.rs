//! Whether this machine holds that many ranks, told before any of them is started.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::groups::{self, Memory, Processes, number};
use super::spec::Spec;

/// Descriptors per rank here: two pipes, a process, a connection.
const DESCRIPTORS_PER_RANK: u64 = 4;
/// And a socket, if PMI is served.
const DESCRIPTORS_OF_PMI: u64 = 1;
/// And two files, wherever the rank is, if this process writes those.
const DESCRIPTORS_OF_FILES: u64 = 2;
/// Descriptors for everything else: the event loop, the warden, a rank that is being started,
/// what was inherited, and a few callers at the port that are no ranks.
const DESCRIPTORS_BESIDES: u64 = 40;
/// And for each host that is reached from here: three pipes of a remote shell, and a process.
const DESCRIPTORS_PER_HOST: u64 = 5;
/// Callers at the port that are no ranks, at most: so many may say nothing for a while.
const STRANGERS: u64 = 100;
/// Processes besides ranks: the launcher's threads and its warden.
const PROCESSES_BESIDES: u64 = 8;

/// Memory that a rank takes at least, and as what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    bytes: u64,
    of: &'static str,
}

impl Cost {
    const PROCESS: Cost = Cost { bytes: 1 << 20, of: "the smallest process" };
    /// As measured for `sockets`, which takes the least.
    const NETWORK: Cost = Cost { bytes: 8 << 20, of: "a process with libfabric" };
    /// One endpoint of libfabric's layer `ofi_rxm`, whatever it is asked for.
    const ENDPOINT: Cost = Cost {
        bytes: 64 << 20,
        of: "an endpoint of libfabric's tcp (others take less: name one by --provider)",
    };
    /// Providers that stand on nothing which takes as much.
    const SMALL: [&str; 9] = ["cxi", "efa", "opx", "psm2", "psm3", "shm", "sockets", "ucx", "udp"];

    /// What a rank takes that reaches others by this transport and provider.
    fn new(transport: &str, provider: Option<&str>) -> Cost {
        let core = provider.map(|name| name.split(';').next().unwrap_or_default());
        match transport {
            "ofi" if core.is_some_and(|core| Cost::SMALL.contains(&core)) => Cost::NETWORK,
            "ofi" => Cost::ENDPOINT,
            _ => Cost::PROCESS,
        }
    }
}

/// More ranks than this machine holds.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{requested} ranks were asked for, but {limit} leaves room for {fits}; \
     ask for fewer, or raise that limit"
)]
pub struct Shortage {
    /// Ranks asked for.
    pub requested: u32,
    /// Ranks that would fit.
    pub fits: u64,
    /// The limit, and where it is set.
    pub limit: String,
}

crate::debug_as_display!(Shortage);

/// One thing that bounds the number of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Limit {
    fits: u64,
    what: String,
}

/// What this process has open for a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    /// Ranks are on this machine.
    here: bool,
    pmi: bool,
    files: bool,
    /// Hosts that are reached from here.
    hosts: u64,
    cost: Cost,
}

impl Open {
    /// Of ranks of this machine, whose output is in no files.
    pub(super) fn of_ranks(pmi: bool) -> Open {
        Open { here: true, pmi, files: false, hosts: 0, cost: Cost::PROCESS }
    }

    /// Of ranks that reach others by this transport and provider.
    pub(super) fn over(self, transport: &str, provider: Option<&str>) -> Open {
        Open { cost: Cost::new(transport, provider), ..self }
    }

    pub(super) fn of(spec: &Spec) -> Open {
        let files = spec.output_file.is_some() && !spec.ranks_write_files();
        let here = Open { files, ..Open::of_ranks(spec.pmi) };
        let Some(remote) = &spec.remote else {
            return here.over(spec.config.transport(), spec.config.provider());
        };
        let hosts = remote.reached_from_here() as u64;
        Open { here: false, pmi: false, hosts, ..here }
    }

    fn per_rank(self) -> u64 {
        [
            (self.here, DESCRIPTORS_PER_RANK),
            (self.pmi, DESCRIPTORS_OF_PMI),
            (self.files, DESCRIPTORS_OF_FILES),
        ]
        .into_iter()
        .filter_map(|(is_open, count)| is_open.then_some(count))
        .sum()
    }

    fn besides(self) -> u64 {
        DESCRIPTORS_BESIDES + self.hosts * DESCRIPTORS_PER_HOST
    }

    /// What that limit leaves room for; none if ranks cost no descriptors.
    fn limit(self, hard: u64) -> Option<Limit> {
        let each = self.per_rank();
        let fits = hard.saturating_sub(self.besides()).checked_div(each)?;
        let without = |is_open, count, how| {
            let fewer = each.saturating_sub(count);
            if is_open { format!(" ({fewer} {how})") } else { String::new() }
        };
        let pmi = without(self.pmi, DESCRIPTORS_OF_PMI, "with --no-pmi");
        let how = match self.here {
            true => "without --tee, --label and --timestamp",
            false => "without files of output",
        };
        let files = without(self.files, DESCRIPTORS_OF_FILES, how);
        let what = format!(
            "the hard limit of {hard} open files (RLIMIT_NOFILE, ulimit -Hn), at {each} a \
             rank{pmi}{files},"
        );
        Some(Limit { fits, what })
    }
}

/// Refuses a number of ranks that cannot work; returns one line for `--explain`.
pub(super) fn check(ranks: u32, open: Open) -> Result<String, Shortage> {
    let hard = getrlimit(Resource::Nofile).maximum;
    let mut all: Vec<_> = hard.and_then(|hard| open.limit(hard)).into_iter().collect();
    if open.here {
        all.extend(limits(open.cost));
    }
    narrowest(ranks, all)
}

fn narrowest(requested: u32, limits: Vec<Limit>) -> Result<String, Shortage> {
    match limits.into_iter().min_by_key(|limit| limit.fits) {
        None => Ok("no known limit".to_owned()),
        Some(limit) if limit.fits >= u64::from(requested) => {
            Ok(format!("at most {} ranks fit, by {}", limit.fits, limit.what))
        }
        Some(limit) => Err(Shortage { requested, fits: limit.fits, limit: limit.what }),
    }
}

/// What the limit of descriptors leaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Descriptors {
    /// The limit that ranks are to have, if this process now has another.
    pub(super) ranks: Option<Rlimit>,
    /// How many callers that are no ranks there is room for.
    pub(super) strangers: usize,
}

/// Raises the soft limit of descriptors as far as `ranks` need, and callers that are none.
pub(super) fn raise_descriptors(ranks: u32, open: Open) -> Descriptors {
    let old = getrlimit(Resource::Nofile);
    let needed = u64::from(ranks) * open.per_rank() + open.besides();
    let wanted = needed + STRANGERS;
    let mut soft = old.current.unwrap_or(u64::MAX);
    let mut ranks = None;
    if soft < wanted {
        let new = old.maximum.map_or(wanted, |hard| hard.min(wanted));
        let raised = Rlimit { current: Some(new), maximum: old.maximum };
        if new > soft && setrlimit(Resource::Nofile, raised).is_ok() {
            (soft, ranks) = (new, Some(old));
        }
    }
    // Some of what is besides ranks is theirs anyway.
    let strangers = soft.saturating_sub(needed).clamp(8, STRANGERS) as usize;
    Descriptors { ranks, strangers }
}

/// Of what ranks here need besides descriptors.
fn limits(cost: Cost) -> Vec<Limit> {
    let mut limits = Vec::new();
    let memory = |bytes, what| memory(bytes, what, cost);
    // The kernel does not hold root to this one.
    if let Some(soft) = getrlimit(Resource::Nproc).current
        && !rustix::process::geteuid().is_root()
    {
        let what = format!("the limit of {soft} processes per user (RLIMIT_NPROC, ulimit -u)");
        limits.push(processes(soft, what));
    }
    for name in ["pid_max", "threads-max"] {
        if let Some(max) = number(&Path::new("/proc/sys/kernel").join(name)) {
            limits.push(processes(max, format!("the machine's kernel.{name} of {max}")));
        }
    }
    for group in groups::of_this_process("pids") {
        if let Some(Processes { max, used, file }) = group.processes() {
            let what =
                format!("the control group's {} ({max}, of which {used} are used)", file.display());
            limits.push(processes(max.saturating_sub(used), what));
        }
    }
    for group in groups::of_this_process("memory") {
        if let Some(Memory { max, used, file }) = group.memory() {
            let what = format!(
                "the control group's {} ({max} bytes, of which {used} are used)",
                file.display()
            );
            limits.push(memory(max.saturating_sub(used), what));
        }
    }
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    if let Some(bytes) = available_memory(&meminfo) {
        limits.push(memory(bytes, format!("the free memory of {bytes} bytes (MemAvailable)")));
    }
    limits
}

fn processes(max: u64, what: String) -> Limit {
    Limit { fits: max.saturating_sub(PROCESSES_BESIDES), what }
}

fn memory(available: u64, what: String, Cost { bytes, of }: Cost) -> Limit {
    Limit { fits: available / bytes, what: format!("{what}, at {bytes} bytes for {of},") }
}

fn available_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_limit_counts_and_is_named() {
        let limit = |fits, what: &str| Limit { fits, what: what.to_owned() };
        let limits = vec![limit(100, "memory"), limit(7, "processes"), limit(9, "files")];
        assert!(narrowest(7, limits.clone()).is_ok());
        let shortage = narrowest(8, limits).unwrap_err();
        assert_eq!((shortage.requested, shortage.fits, &shortage.limit[..]), (8, 7, "processes"));
        let text = shortage.to_string();
        assert!(text.contains("8 ranks") && text.contains("room for 7"), "{text}");
        assert!(narrowest(u32::MAX, vec![]).is_ok());
    }

    #[test]
    fn this_machine_has_limits() {
        assert!(check(1, Open::of_ranks(true)).is_ok());
        assert!(check(u32::MAX, Open::of_ranks(false)).is_err());
    }

    #[test]
    fn what_is_open_counts_against_the_limit_of_descriptors() {
        let here = Open { files: true, ..Open::of_ranks(true) };
        let limit = here.limit(40 + 7 * 3).unwrap();
        assert_eq!(limit.fits, 3);
        let part = "at 7 a rank (6 with --no-pmi) (5 without --tee, --label and --timestamp),";
        assert!(limit.what.ends_with(part), "{}", limit.what);
        let hosts = Open { here: false, pmi: false, hosts: 4, ..here };
        assert_eq!(hosts.limit(40 + 4 * 5 + 2 * 9).unwrap().fits, 9);
        assert_eq!(Open { files: false, ..hosts }.limit(0), None);
    }

    #[test]
    fn ranks_of_a_network_take_its_memory() {
        let cost = |transport, provider| Open::of_ranks(true).over(transport, provider).cost;
        assert_eq!(cost("shm", None), Cost::PROCESS);
        for provider in [None, Some("tcp"), Some("tcp;ofi_rxm"), Some("verbs")] {
            assert_eq!(cost("ofi", provider), Cost::ENDPOINT, "{provider:?}");
        }
        for provider in ["cxi", "udp;ofi_rxd", "sockets"] {
            assert_eq!(cost("ofi", Some(provider)), Cost::NETWORK, "{provider}");
        }
        let limit = memory(10 << 30, "the memory".to_owned(), Cost::ENDPOINT);
        assert_eq!(limit.fits, 160);
        let text = narrowest(10_000, vec![limit]).unwrap_err().to_string();
        assert!(text.starts_with("10000 ranks were asked for, but the memory, at 67108864"));
        assert!(text.contains("libfabric's tcp") && text.contains("room for 160"), "{text}");
    }

    #[test]
    fn free_memory_is_read() {
        assert_eq!(available_memory("MemFree: 1 kB\nMemAvailable:    2 kB\n"), Some(2048));
        assert_eq!(available_memory("MemAvailable: none"), None);
        assert_eq!(available_memory(&format!("MemAvailable: {} kB", u64::MAX)), None);
    }
}
