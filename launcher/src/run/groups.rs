//! Control groups that hold this process: what they allow, and which processes in them the
//! kernel ended for lack of memory. All that the launcher and its doctor know of groups is read
//! here; ranks, which know no launcher, read their own (`memory_limits.rs` of the transport).

use std::path::{Component, Path, PathBuf};

/// A group, and the version of control groups that it is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) folder: PathBuf,
    pub(super) unified: bool,
}

/// A limit of memory, its file, and how much of it is used, in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) max: u64,
    pub(super) used: u64,
    pub(super) file: PathBuf,
}

/// A limit of CPU time: so many microseconds of it in each period of as many, and its file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CpuTime {
    pub(super) quota: u64,
    pub(super) period: u64,
    pub(super) file: PathBuf,
}

impl CpuTime {
    /// CPUs that it is the time of, in thousandths.
    pub(super) fn milli_cpus(&self) -> u64 {
        self.quota.saturating_mul(1000) / self.period.max(1)
    }
}

/// A limit of processes, its file, and how many there are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Processes {
    pub(super) max: u64,
    pub(super) used: u64,
    pub(super) file: PathBuf,
}

/// The groups of this process that may limit `controller`, from the innermost on.
pub(super) fn of_this_process(controller: &str) -> Vec<Group> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    groups(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"), controller)
}

/// The folder of the group that limits the memory of this process, where others can be made.
pub fn of_memory() -> Option<PathBuf> {
    let groups = of_this_process("memory");
    // With both versions, the first has the memory.
    let first = groups.iter().find(|group| !group.unified).or(groups.first());
    first.map(|group| group.folder.clone())
}

/// The same, from `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn groups(cgroup: &str, mounts: &str, controller: &str) -> Vec<Group> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|name| name == controller) {
            continue;
        }
        let mount = mounts.lines().find_map(|line| mounted(line, controller, unified));
        let Some((root, at)) = mount else { continue };
        // In a container, the path may be one outside, and not below what is mounted here.
        let below = Path::new(path).strip_prefix(&root).ok();
        let below = below
            .filter(|below| below.components().all(|part| matches!(part, Component::Normal(_))));
        let folders = below.unwrap_or(Path::new("")).ancestors();
        // The last is the mount itself, without a slash behind it.
        let folders = folders.map(|below| at.components().chain(below.components()).collect());
        found.extend(folders.map(|folder| Group { folder, unified }));
    }
    found
}

/// What is mounted, and where, by a line of `/proc/self/mountinfo` such as
/// `30 23 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw`, if that is the
/// controller's, or the hierarchy of all.
fn mounted(line: &str, controller: &str, unified: bool) -> Option<(PathBuf, PathBuf)> {
    let (fields, rest) = line.split_once(" - ")?;
    let mut fields = fields.split(' ').skip(3);
    let (root, at) = (fields.next()?, fields.next()?);
    let mut rest = rest.split(' ');
    let (kind, options) = (rest.next()?, rest.nth(1)?);
    let is_it = match unified {
        true => kind == "cgroup2",
        false => kind == "cgroup" && options.split(',').any(|option| option == controller),
    };
    is_it.then(|| (unescaped(root), unescaped(at)))
}

/// There, a space, a tab, a newline and a backslash are `\` and three octal digits.
fn unescaped(field: &str) -> PathBuf {
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    plain.iter().fold(field.to_owned(), |text, (code, letter)| text.replace(code, letter)).into()
}

impl Group {
    /// Its limit of memory, if it has one.
    pub(super) fn memory(&self) -> Option<Memory> {
        let [max, current, inactive] = match self.unified {
            true => ["memory.max", "memory.current", "inactive_file"],
            false => ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"],
        };
        let file = self.folder.join(max);
        let max = number(&file)?;
        let used = number(&self.folder.join(current)).unwrap_or(0);
        let stat = std::fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        // The kernel takes back what files have cached before it ends a process.
        let cached = value(&stat, inactive).unwrap_or(0);
        Some(Memory { max, used: used.saturating_sub(cached), file })
    }

    /// Its limit of CPU time, if it has one.
    pub(super) fn cpu_time(&self) -> Option<CpuTime> {
        if !self.unified {
            // None is written as -1.
            let file = self.folder.join("cpu.cfs_quota_us");
            let quota = number(&file)?;
            let period = number(&self.folder.join("cpu.cfs_period_us"))?;
            return Some(CpuTime { quota, period, file });
        }
        let file = self.folder.join("cpu.max");
        let text = std::fs::read_to_string(&file).ok()?;
        // None is written as max.
        let (quota, period) = text.trim().split_once(' ')?;
        Some(CpuTime { quota: quota.parse().ok()?, period: period.parse().ok()?, file })
    }

    /// Its limit of processes, if it has one.
    pub(super) fn processes(&self) -> Option<Processes> {
        let file = self.folder.join("pids.max");
        let max = number(&file)?;
        let used = number(&self.folder.join("pids.current")).unwrap_or(0);
        Some(Processes { max, used, file })
    }

    /// Processes that the kernel has ended in it for lack of memory.
    fn oom_kills(&self) -> Option<u64> {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        value(&std::fs::read_to_string(self.folder.join(file)).ok()?, "oom_kill")
    }
}

/// Processes that the kernel ends for lack of memory, in this process' group or, where that cannot
/// be told, on this machine.
pub(super) struct OomKills {
    group: Option<Group>,
    before: u64,
}

impl OomKills {
    /// From now on.
    pub(super) fn begin() -> OomKills {
        let group = of_this_process("memory").into_iter().find(|it| it.oom_kills().is_some());
        let begun = OomKills { group, before: 0 };
        OomKills { before: begun.count(), ..begun }
    }

    /// Whether there was one since.
    pub(super) fn are_more(&self) -> bool {
        self.count() > self.before
    }

    fn count(&self) -> u64 {
        let known = self.group.as_ref().and_then(Group::oom_kills);
        let vmstat = || std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
        known.or_else(|| value(&vmstat(), "oom_kill")).unwrap_or(0)
    }
}

/// The number in a file; none if there is no such file, or it says `max`.
pub(super) fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number behind `key`, in lines of a key and a number.
fn value(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the first version, and of both, where the mounts are as systemd has them.
    const MOUNTS: &str = "30 23 0:26 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n\
        31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        32 23 0:28 /in /groups\\040of/pids rw - cgroup cgroup rw,cpu,pids\n\
        33 23 0:29 / /run rw - tmpfs tmpfs rw\n";

    #[test]
    fn control_groups_are_read_with_their_parents() {
        let text = "4:memory:/a\n3:cpu,pids:/in/x/y\n0::/user/me\ngarbage\n";
        let folders = |controller| {
            let found = groups(text, MOUNTS, controller).into_iter();
            found.map(|group| (group.folder, group.unified)).collect::<Vec<_>>()
        };
        let expected = |first: &[&str]| {
            let unified = ["unified/user/me", "unified/user", "unified"];
            let first = first.iter().map(|folder| (PathBuf::from(folder), false));
            let second = unified.map(|folder| (Path::new("/sys/fs/cgroup").join(folder), true));
            first.chain(second).collect::<Vec<_>>()
        };
        let pids = ["/groups of/pids/x/y", "/groups of/pids/x", "/groups of/pids"];
        assert_eq!(folders("pids"), expected(&pids));
        let memory = ["/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"];
        assert_eq!(folders("memory"), expected(&memory));
        assert_eq!(folders("io"), expected(&[]));
        assert_eq!(groups(text, "", "memory"), [], "nothing is mounted");
    }

    #[test]
    fn a_group_outside_of_what_is_mounted_is_the_mount() {
        for path in ["/elsewhere/x", "/in/../../up"] {
            let found = groups(&format!("3:cpu,pids:{path}\n"), MOUNTS, "pids");
            let expected = Group { folder: "/groups of/pids".into(), unified: false };
            assert_eq!(found, [expected], "{path}");
        }
    }

    #[test]
    fn limits_of_cpu_time_and_processes_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let group = |unified| Group { folder: dir.path().to_owned(), unified };
        let both = || [true, false].map(|unified| group(unified).cpu_time());
        assert_eq!(both(), [None, None]);
        write("cpu.max", "max 100000\n");
        write("cpu.cfs_quota_us", "-1\n");
        write("cpu.cfs_period_us", "100000\n");
        assert_eq!(both(), [None, None]);
        write("cpu.max", "150000 100000\n");
        write("cpu.cfs_quota_us", "50000\n");
        let milli = both().map(|limit| limit.unwrap().milli_cpus());
        assert_eq!(milli, [1500, 500]);
        write("pids.max", "max\n");
        assert_eq!(group(true).processes(), None);
        write("pids.max", "70\n");
        write("pids.current", "7\n");
        let file = dir.path().join("pids.max");
        assert_eq!(group(true).processes(), Some(Processes { max: 70, used: 7, file }));
    }

    #[test]
    fn limits_of_both_versions_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let group = |unified| Group { folder: dir.path().to_owned(), unified };
        assert_eq!((group(true).memory(), group(false).memory()), (None, None));
        write("memory.max", "max\n");
        assert_eq!(group(true).memory(), None);
        write("memory.max", "1000\n");
        write("memory.current", "700\n");
        write("memory.stat", "inactive_file 200\ntotal_inactive_file 400\n");
        let file = dir.path().join("memory.max");
        assert_eq!(group(true).memory(), Some(Memory { max: 1000, used: 500, file }));
        write("memory.limit_in_bytes", "2000\n");
        write("memory.usage_in_bytes", "700\n");
        let file = dir.path().join("memory.limit_in_bytes");
        assert_eq!(group(false).memory(), Some(Memory { max: 2000, used: 300, file }));
        write("memory.events", "oom 7\noom_kill 3\n");
        write("memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 4\n");
        assert_eq!((group(true).oom_kills(), group(false).oom_kills()), (Some(3), Some(4)));
    }
}
