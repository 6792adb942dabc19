//! How much memory may still be taken, asked before any is reserved: running into a limit would
//! end in the out-of-memory killer or in a signal, where an error is wanted.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// Left untouched of what the machine or a control group still has: the ranks, the launcher and
/// page tables need something to live on.
const HEADROOM: u64 = 16 << 20;

pub(crate) const FREE_MEMORY: &str = "free memory of this node";
pub(crate) const COMMIT: &str = "commit limit of this node, vm.overcommit_memory=2";
pub(crate) const GROUP: &str = "memory limit of the control group";
pub(crate) const ADDRESS_SPACE: &str = "address space, RLIMIT_AS, ulimit -v";
pub(crate) const FILE_SIZE: &str = "size of one segment, RLIMIT_FSIZE, ulimit -f";
const UNKNOWN: &str = "no limit known";

/// An amount in bytes, and the limit it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Available {
    pub(crate) bytes: u64,
    pub(crate) limit: &'static str,
}

impl Available {
    const UNLIMITED: Self = Self { bytes: u64::MAX, limit: UNKNOWN };

    fn min(self, bytes: Option<u64>, limit: &'static str) -> Self {
        match bytes {
            Some(bytes) if bytes < self.bytes => Self { bytes, limit },
            _ => self,
        }
    }
}

/// Where the limits of this process are written.
#[derive(Debug)]
pub(crate) struct MemoryLimits {
    groups: Vec<Group>,
    page: u64,
}

/// One control group with a memory controller.
#[derive(Debug)]
struct Group {
    limit: PathBuf,
    used: PathBuf,
    stat: PathBuf,
    /// Prefix of the fields of `stat` that count the descendants too.
    prefix: &'static str,
}

impl MemoryLimits {
    /// Finds the control groups of this process, up to the root of the hierarchy.
    pub(crate) fn discover() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (cgroup, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
        let v2 = group_folders(&cgroup, &mounts, Version::Two).into_iter().map(|at| Group {
            limit: at.join("memory.max"),
            used: at.join("memory.current"),
            stat: at.join("memory.stat"),
            prefix: "",
        });
        let v1 = group_folders(&cgroup, &mounts, Version::One).into_iter().map(|at| Group {
            limit: at.join("memory.limit_in_bytes"),
            used: at.join("memory.usage_in_bytes"),
            stat: at.join("memory.stat"),
            prefix: "total_",
        });
        let groups = v2.chain(v1).filter(|group| group.limit.exists()).collect();
        Self { groups, page: rustix::param::page_size() as u64 }
    }

    /// As in a control group that uses nothing, and may use so much that `bytes` are left.
    #[cfg(test)]
    pub(crate) fn of_group(folder: &Path, bytes: u64) -> Self {
        let [limit, used, stat] = ["max", "current", "stat"].map(|name| folder.join(name));
        fs::write(&limit, (HEADROOM + bytes).to_string()).unwrap();
        fs::write(&used, "0").unwrap();
        let group = Group { limit, used, stat, prefix: "" };
        Self { groups: vec![group], page: rustix::param::page_size() as u64 }
    }

    /// What could be reserved now in one piece, whatever limits it.
    pub(crate) fn available(&self) -> Available {
        self.of_all().min(getrlimit(Resource::Fsize).current, FILE_SIZE)
    }

    /// What could be reserved now, in as many pieces as one likes.
    pub(crate) fn of_all(&self) -> Available {
        self.memory().min(self.address_space(), ADDRESS_SPACE)
    }

    /// What the machine and the control groups still have.
    pub(crate) fn memory(&self) -> Available {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let free = meminfo_bytes(&meminfo, "MemAvailable:");
        let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
        let available = Available::UNLIMITED
            .min(less_headroom(free), FREE_MEMORY)
            .min(less_headroom(commit_left(&mode, &meminfo)), COMMIT);
        self.groups.iter().fold(available, |available, group| {
            available.min(less_headroom(group.available()), GROUP)
        })
    }

    fn address_space(&self) -> Option<u64> {
        let limit = getrlimit(Resource::As).current?;
        let used = fs::read_to_string("/proc/self/statm").ok().and_then(|text| statm_size(&text));
        Some(limit.saturating_sub(used.unwrap_or(0).saturating_mul(self.page)))
    }
}

impl Group {
    fn available(&self) -> Option<u64> {
        let limit = limit_value(&fs::read_to_string(&self.limit).ok()?)?;
        let used = fs::read_to_string(&self.used).ok()?.trim().parse::<u64>().ok()?;
        // The page cache of files counts as used, and is given up before anything fails.
        let stat = fs::read_to_string(&self.stat).unwrap_or_default();
        let cache: u64 = ["inactive_file", "active_file"]
            .iter()
            .filter_map(|field| stat_field(&stat, self.prefix, field))
            .sum();
        Some(limit.saturating_sub(used.saturating_sub(cache)))
    }
}

fn less_headroom(bytes: Option<u64>) -> Option<u64> {
    bytes.map(|bytes| bytes.saturating_sub(HEADROOM))
}

/// What may still be promised to processes, where the system promises no more than it has: each
/// page of memory that is reserved counts there, also where much is free.
fn commit_left(mode: &str, meminfo: &str) -> Option<u64> {
    let (limit, promised) = ("CommitLimit:", "Committed_AS:");
    let strict = mode.trim() == "2";
    let limit = meminfo_bytes(meminfo, limit).filter(|_| strict)?;
    Some(limit.saturating_sub(meminfo_bytes(meminfo, promised)?))
}

/// A field of /proc/meminfo.
fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The first field of /proc/self/statm: mapped pages.
fn statm_size(statm: &str) -> Option<u64> {
    statm.split_whitespace().next()?.parse().ok()
}

/// A limit file of a control group; None is "no limit", which version 1 writes as a huge number.
fn limit_value(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok().filter(|&bytes| bytes < 1 << 62)
}

/// A field of memory.stat.
fn stat_field(stat: &str, prefix: &str, field: &str) -> Option<u64> {
    stat.lines().find_map(|line| {
        let value = line.strip_prefix(prefix)?.strip_prefix(field)?.strip_prefix(' ')?;
        value.trim().parse().ok()
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The folders of this process's memory control group and of its ancestors, as far as they are
/// visible, from /proc/self/cgroup and /proc/self/mountinfo.
fn group_folders(cgroup: &str, mounts: &str, version: Version) -> Vec<PathBuf> {
    let Some(path) = group_path(cgroup, version) else { return Vec::new() };
    let Some((root, mount)) = group_mount(mounts, version) else { return Vec::new() };
    // In a container, the path may be the host's, and lie outside of what is mounted here.
    let below = Path::new(path)
        .strip_prefix(&root)
        .ok()
        .filter(|below| below.components().all(|c| matches!(c, std::path::Component::Normal(_))))
        .unwrap_or(Path::new(""));
    // The last ancestor is the empty path: the mount itself, without a slash after it.
    below.ancestors().map(|below| mount.components().chain(below.components()).collect()).collect()
}

/// The path in a line `0::/path` or `4:cpu,memory:/path`.
fn group_path(cgroup: &str, version: Version) -> Option<&str> {
    cgroup.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match version {
            Version::Two => id == "0" && controllers.is_empty(),
            Version::One => controllers.split(',').any(|controller| controller == "memory"),
        };
        found.then_some(path)
    })
}

/// Root and mount point of the hierarchy, from a line such as
/// `30 23 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw`.
fn group_mount(mounts: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (fields, rest) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (root, mount) = (fields.next()?, fields.next()?);
        let mut rest = rest.split(' ');
        let (kind, options) = (rest.next()?, rest.nth(1)?);
        let found = match version {
            Version::Two => kind == "cgroup2",
            Version::One => kind == "cgroup" && options.split(',').any(|o| o == "memory"),
        };
        found.then(|| (unescape(root), unescape(mount)))
    })
}

/// mountinfo writes a space, a tab, a newline and a backslash as `\` and three octal digits.
fn unescape(field: &str) -> PathBuf {
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    plain.iter().fold(field.to_owned(), |text, (code, c)| text.replace(code, c)).into()
}

#[cfg(test)]
#[path = "memory_limits_tests.rs"]
mod tests;
