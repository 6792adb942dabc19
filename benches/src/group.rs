//! A control group with a limit of memory, which processes enter and leave.
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A group below the one of the process that made it, removed with the value.
pub(crate) struct MemoryGroup {
    folder: PathBuf,
    /// Where the processes come from, and go back to.
    parent: PathBuf,
    is_owner: bool,
}

impl MemoryGroup {
    /// Processes in it, and the pages of files that they touch first, have so many bytes together.
    pub(crate) fn make(name: &str, bytes: u64) -> io::Result<Self> {
        let mut group = Self::of(name)?;
        fs::create_dir(&group.folder)?;
        group.is_owner = true;
        // The first is of version 1, the second of version 2.
        let names = ["memory.limit_in_bytes", "memory.max"];
        let limit =
            names.map(|name| group.folder.join(name)).into_iter().find(|path| path.exists());
        let limit =
            limit.ok_or_else(|| io::Error::other("groups below have no limit of memory"))?;
        fs::write(limit, bytes.to_string())?;
        Ok(group)
    }

    /// The one that a process of the same group has made.
    pub(crate) fn of(name: &str) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let parent = folder(&mounts, &groups);
        let parent = parent.ok_or_else(|| io::Error::other("there are no groups of memory"))?;
        Ok(Self { folder: parent.join(name), parent, is_owner: false })
    }

    /// Moves this process there.
    pub(crate) fn enter(&self) -> io::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), "0")
    }

    /// Whether its limit was reached at any time.
    pub(crate) fn was_full(&self) -> io::Result<bool> {
        let read = |name| fs::read_to_string(self.folder.join(name));
        let count = match read("memory.failcnt") {
            Ok(count) => count,
            Err(_) => {
                let events = read("memory.events")?;
                let count = events.lines().find_map(|line| line.strip_prefix("max "));
                count.unwrap_or_default().to_owned()
            }
        };
        count.trim().parse::<u64>().map(|count| count > 0).map_err(io::Error::other)
    }

    /// Moves it back.
    pub(crate) fn leave(&self) -> io::Result<()> {
        fs::write(self.parent.join("cgroup.procs"), "0")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        if self.is_owner {
            // After an error, this process may be in it.
            _ = self.leave();
            _ = fs::remove_dir(&self.folder);
        }
    }
}

/// The folder of the process's group that has to do with memory, by its mounts and its groups.
fn folder(mounts: &str, groups: &str) -> Option<PathBuf> {
    let mut found = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        // Version 1 names its controllers; version 2 has one line, without any.
        let is_first = controllers.split(',').any(|name| name == "memory");
        let mount = mounts.lines().find_map(|line| mount(line, is_first))?;
        let path = Path::new(path).strip_prefix(mount.0).ok()?;
        (is_first || controllers.is_empty()).then(|| (is_first, Path::new(mount.1).join(path)))
    });
    // With both, version 1 has the memory.
    let all: Vec<_> = found.by_ref().collect();
    all.into_iter().max_by_key(|(is_first, _)| *is_first).map(|(_, folder)| folder)
}

/// Root and place of a mount, if it is one of that version.
fn mount(line: &str, is_first: bool) -> Option<(&str, &str)> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, place) = (fields.next()?, fields.next()?);
    let mut fields = after.split(' ');
    let (kind, options) = (fields.next()?, fields.nth(1)?);
    let fits = match is_first {
        true => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
        false => kind == "cgroup2",
    };
    fits.then_some((root, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "30 1 0:1 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        31 1 0:2 /outer /sys/fs/cgroup/memory rw shared:7 - cgroup cgroup rw,memory\n\
        32 1 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_group_with_memory_is_found() {
        let of = |groups| folder(BOTH, groups);
        let first = "5:cpu:/x\n4:memory:/outer/a b\n0::/y\n";
        assert_eq!(of(first), Some("/sys/fs/cgroup/memory/a b".into()));
        assert_eq!(of("0::/y\n"), Some("/sys/fs/cgroup/unified/y".into()));
        assert_eq!(of("4:memory:/elsewhere\n"), None, "outside of what is mounted");
        assert_eq!(of("5:cpu:/x\n"), None);
        assert_eq!(folder("", first), None);
    }
}
