//! CPUs that the job may use.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity};

/// Numbers of the CPUs that the calling thread may run on, ascending.
pub(super) fn available() -> io::Result<Vec<u32>> {
    let set = sched_getaffinity(None)?;
    let cpus: Vec<u32> =
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u32).collect();
    if cpus.is_empty() { Err(io::Error::other("no CPU below 1024 is usable")) } else { Ok(cpus) }
}

/// The set of these CPUs.
pub(super) fn set(cpus: &[u32]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu as usize));
    set
}

/// Numbers as people write them: `0-3, 8`.
pub(super) fn ranges(numbers: &[u32]) -> String {
    written(&runs(numbers.iter().copied()))
}

/// The same of [`runs`].
pub(super) fn written(runs: &[(u32, u32)]) -> String {
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Numbers as runs of those in a row: the first and the last of each.
pub(super) fn runs(numbers: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_ranges() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[7]), "7");
        assert_eq!(ranges(&[0, 1, 2, 3, 8, 10, 11]), "0-3, 8, 10-11");
        assert_eq!(ranges(&[u32::MAX]), "4294967295");
    }
}
