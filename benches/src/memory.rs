//! What a process and the machine keep in memory.
use crate::Result;
use std::fs;

/// Resident bytes of this process.
pub(crate) fn resident() -> Result<u64> {
    kib_of("/proc/self/status", "VmRSS:")
}

/// Resident bytes of this process that no file is behind.
pub(crate) fn anonymous() -> Result<u64> {
    kib_of("/proc/self/status", "RssAnon:")
}

/// Bytes of addresses that this process uses.
pub(crate) fn mapped() -> Result<u64> {
    kib_of("/proc/self/status", "VmSize:")
}

/// The most that was resident since [`forget_peak`].
pub(crate) fn peak() -> Result<u64> {
    kib_of("/proc/self/status", "VmHWM:")
}

/// The peak is what is resident now. Where the system refuses that, it stays what it was.
pub(crate) fn forget_peak() {
    _ = fs::write("/proc/self/clear_refs", "5");
}

/// Bytes of shared memory on the machine, whether or not a process has them mapped.
pub(crate) fn shared_of_machine() -> Result<u64> {
    // The kernel adds up what its CPUs have counted, at once if it is asked to, as root.
    _ = fs::read("/proc/sys/vm/stat_refresh");
    kib_of("/proc/meminfo", "Shmem:")
}

fn kib_of(path: &str, field: &str) -> Result<u64> {
    let text = fs::read_to_string(path)?;
    let kib = value(&text, field).ok_or_else(|| format!("no {field} in {path}"))?;
    Ok(kib * 1024)
}

fn value(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_name() {
        let text = "VmHWM:\t  12 kB\nVmRSS:\t   7 kB\n";
        assert_eq!((value(text, "VmRSS:"), value(text, "Vm:")), (Some(7), None));
    }
}
