//! Where figures come from.
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::{fmt, fs};

/// What every record says about the machine and the code.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    /// Of the machine, whatever a rank may use of them.
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// Runnable processes in the last minute, before the first benchmark.
    pub(crate) load: f64,
    /// Of the source tree; with `-dirty` if it differs from that commit.
    pub(crate) commit: Option<String>,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let load = read("/proc/loadavg");
        let load = load.split(' ').next().and_then(|load| load.parse().ok());
        let cpuinfo = read("/proc/cpuinfo");
        Self {
            cpu: cpu_model(&cpuinfo).unwrap_or("unknown").to_owned(),
            cores: cpu_count(&cpuinfo),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: load.unwrap_or(0.0),
            commit: commit(),
        }
    }

    /// Whether figures of both may stand side by side, as far as can be told.
    pub(crate) fn is_the_same(&self, other: &Self) -> bool {
        self.cpu == other.cpu && self.cores == other.cores
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, kernel, load, commit } = self;
        let commit = commit.as_deref().unwrap_or("unknown");
        write!(f, "{cpu}, {cores} CPUs, Linux {kernel}, load {load}, commit {commit}")
    }
}

/// CPUs that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// CPU time that this process has used.
pub(crate) fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

fn cpu_count(cpuinfo: &str) -> usize {
    cpuinfo.lines().filter(|line| line.starts_with("processor")).count()
}

/// If this was built in a git tree that is still there.
fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR")]).args(args).output().ok()
    };
    let head = git(&["rev-parse", "--short=12", "HEAD"]).filter(|head| head.status.success())?;
    let head = String::from_utf8(head.stdout).ok()?.trim().to_owned();
    let clean = git(&["diff-index", "--quiet", "HEAD"])?.status.success();
    Some(if clean { head } else { format!("{head}-dirty") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t: fpu\n";
        assert_eq!(cpu_model(text), Some("Some CPU @ 2 GHz"));
        assert_eq!(cpu_count(text), 1);
        assert_eq!(cpu_model(""), None);
    }
}
