//! A control group with a limit of memory, which processes enter and leave.
use rma_launcher::run::memory_group;
use std::fs;
use std::io;
use std::path::PathBuf;

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
        let parent =
            memory_group().ok_or_else(|| io::Error::other("there are no groups of memory"))?;
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
