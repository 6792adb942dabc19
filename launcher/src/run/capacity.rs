//! Whether this machine holds that many ranks, told before any of them is started.

use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors per rank here: two pipes, a process, a connection.
const DESCRIPTORS_PER_RANK: u64 = 4;
/// Descriptors for everything else: strangers at the port, the runtime, what we inherited.
const DESCRIPTORS_BESIDES: u64 = 256;
/// Processes besides ranks: the launcher's threads and its warden.
const PROCESSES_BESIDES: u64 = 8;
/// What the smallest process costs.
const BYTES_PER_RANK: u64 = 1 << 20;

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

/// Refuses a number of ranks that cannot work; returns one line for `--explain`.
pub(super) fn check(ranks: u32) -> Result<String, Shortage> {
    narrowest(ranks, limits())
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

/// Raises the soft limit of descriptors as far as `ranks` need; returns the old limit, for the
/// ranks to have it back, if it was changed.
pub(super) fn raise_descriptors(ranks: u32) -> Option<Rlimit> {
    let old = getrlimit(Resource::Nofile);
    let needed = u64::from(ranks) * DESCRIPTORS_PER_RANK + DESCRIPTORS_BESIDES;
    if old.current.is_none_or(|soft| soft >= needed) {
        return None;
    }
    let new = Rlimit { current: old.maximum, maximum: old.maximum };
    setrlimit(Resource::Nofile, new).ok().map(|()| old)
}

fn limits() -> Vec<Limit> {
    let mut limits = Vec::new();
    if let Some(hard) = getrlimit(Resource::Nofile).maximum {
        let fits = hard.saturating_sub(DESCRIPTORS_BESIDES) / DESCRIPTORS_PER_RANK;
        let what = format!("the hard limit of {hard} open files (RLIMIT_NOFILE, ulimit -Hn)");
        limits.push(Limit { fits, what });
    }
    // The kernel does not hold root to this one.
    if let Some(soft) = getrlimit(Resource::Nproc).current
        && !rustix::process::geteuid().is_root()
    {
        let what = format!("the limit of {soft} processes per user (RLIMIT_NPROC, ulimit -u)");
        limits.push(processes(soft, what));
    }
    for name in ["pid_max", "threads-max"] {
        if let Some(max) = number(Path::new("/proc/sys/kernel").join(name)) {
            limits.push(processes(max, format!("the machine's kernel.{name} of {max}")));
        }
    }
    let groups = control_groups(&std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    for group in groups {
        if let Some(max) = number(group.join("pids.max")) {
            let used = number(group.join("pids.current")).unwrap_or(0);
            let what =
                format!("{} ({max}, of which {used} are used)", in_group(&group, "pids.max"));
            limits.push(processes(max.saturating_sub(used), what));
        }
        if let Some(max) = number(group.join("memory.max")) {
            limits.push(memory(max, format!("{} ({max} bytes)", in_group(&group, "memory.max"))));
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

fn memory(bytes: u64, what: String) -> Limit {
    let what = format!("{what}, at {BYTES_PER_RANK} bytes for the smallest process,");
    Limit { fits: bytes / BYTES_PER_RANK, what }
}

fn in_group(group: &Path, file: &str) -> String {
    format!("the control group's {}", group.join(file).display())
}

/// The number in a file; none if there is no such file, or it says `max`.
fn number(file: PathBuf) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Folders of the control groups (version 2, and version 1 of `pids`) that hold this process,
/// from `/proc/self/cgroup`.
fn control_groups(text: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let root = match controllers {
            "" => Path::new("/sys/fs/cgroup"),
            _ if controllers.split(',').any(|name| name == "pids") => {
                Path::new("/sys/fs/cgroup/pids")
            }
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        folders.extend(path.ancestors().map(|folder| root.join(folder)));
    }
    folders
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
        assert!(check(1).is_ok());
        assert!(check(u32::MAX).is_err());
    }

    #[test]
    fn control_groups_are_read_with_their_parents() {
        let found = control_groups("4:memory:/a\n3:cpu,pids:/x\n0::/user/me\ngarbage\n");
        let expected = ["pids/x", "pids/", "user/me", "user", ""];
        let expected: Vec<_> =
            expected.iter().map(|end| Path::new("/sys/fs/cgroup").join(end)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn free_memory_is_read() {
        assert_eq!(available_memory("MemFree: 1 kB\nMemAvailable:    2 kB\n"), Some(2048));
        assert_eq!(available_memory("MemAvailable: none"), None);
        assert_eq!(available_memory(&format!("MemAvailable: {} kB", u64::MAX)), None);
    }
}
