//! Control groups that hold this process: what they allow, and which processes in them the
//! kernel ended for lack of memory.

use std::path::{Path, PathBuf};

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

/// The groups of this process that may limit `controller`, from the innermost on.
pub(super) fn of_this_process(controller: &str) -> Vec<Group> {
    groups(&std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default(), controller)
}

/// The same, from `/proc/self/cgroup`.
fn groups(text: &str, controller: &str) -> Vec<Group> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, unified) = match controllers {
            "" => (PathBuf::from("/sys/fs/cgroup"), true),
            _ if controllers.split(',').any(|name| name == controller) => {
                (Path::new("/sys/fs/cgroup").join(controller), false)
            }
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        let folders = path.ancestors().map(|folder| root.join(folder));
        found.extend(folders.map(|folder| Group { folder, unified }));
    }
    found
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

    /// Processes that the kernel has ended in it for lack of memory.
    fn oom_kills(&self) -> Option<u64> {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        value(&std::fs::read_to_string(self.folder.join(file)).ok()?, "oom_kill")
    }
}

/// Processes that the kernel has ended for lack of memory, in this process' group or, where that
/// cannot be told, on this machine.
pub(super) fn oom_kills() -> u64 {
    let known = of_this_process("memory").into_iter().find_map(|group| group.oom_kills());
    let vmstat = || std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    known.or_else(|| value(&vmstat(), "oom_kill")).unwrap_or(0)
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

    #[test]
    fn control_groups_are_read_with_their_parents() {
        let text = "4:memory:/a\n3:cpu,pids:/x\n0::/user/me\ngarbage\n";
        let folders = |controller| {
            let found = groups(text, controller).into_iter();
            found.map(|group| (group.folder, group.unified)).collect::<Vec<_>>()
        };
        let expected = |ends: [(&str, bool); 5]| {
            ends.map(|(end, unified)| (Path::new("/sys/fs/cgroup").join(end), unified))
        };
        let unified = [("user/me", true), ("user", true), ("", true)];
        let [me, user, root] = unified;
        assert_eq!(
            folders("pids"),
            expected([("pids/x", false), ("pids/", false), me, user, root])
        );
        assert_eq!(
            folders("memory"),
            expected([("memory/a", false), ("memory/", false), me, user, root])
        );
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
