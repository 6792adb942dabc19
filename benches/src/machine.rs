//! Where figures come from.
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::{fmt, fs};

/// What every record says about the machine and the code.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    /// Of the machine, whatever a rank may use of them.
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// Runnable processes in the last minute, before the first benchmark.
    pub(crate) load: f64,
    /// Of the source tree; with `-dirty` if it differs from that commit.
    pub(crate) commit: Option<String>,
    /// These tell CPUs apart that virtual machines give the same name.
    #[serde(default)]
    pub(crate) vendor: Option<String>,
    #[serde(default)]
    pub(crate) family: Option<u32>,
    #[serde(default)]
    pub(crate) model: Option<u32>,
    /// Caches of the first CPU, as the system tells.
    #[serde(default)]
    pub(crate) l2_kib: Option<u64>,
    #[serde(default)]
    pub(crate) l3_kib: Option<u64>,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let number = |name| field(&read("/proc/cpuinfo"), name)?.parse().ok();
        let cache = |level: &str| {
            let folder = |index| format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
            let is_it = |folder: &String| read(&format!("{folder}/level")).trim() == level;
            let found = (0..8).map(folder).find(is_it)?;
            kib(read(&format!("{found}/size")).trim())
        };
        let load = read("/proc/loadavg");
        let load = load.split(' ').next().and_then(|load| load.parse().ok());
        let cpuinfo = read("/proc/cpuinfo");
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cores: cpu_count(&cpuinfo),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: load.unwrap_or(0.0),
            commit: commit(),
            vendor: field(&cpuinfo, "vendor_id").map(str::to_owned),
            family: number("cpu family"),
            model: number("model"),
            l2_kib: cache("2"),
            l3_kib: cache("3"),
        }
    }

    /// Whether figures of both may stand side by side, as far as can be told.
    pub(crate) fn is_the_same(&self, other: &Self) -> bool {
        let differ = |one: Option<u32>, other| one.zip(other).is_some_and(|(a, b)| a != b);
        self.cpu == other.cpu
            && self.cores == other.cores
            && !differ(self.family, other.family)
            && !differ(self.model, other.model)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, kernel, load, commit, .. } = self;
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

/// Of the first CPU.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut fields = fields.map(|(name, value)| (name.trim(), value.trim()));
    fields.find_map(|(field, value)| (field == name).then_some(value))
}

/// A size like `1024K` or `32M`.
fn kib(size: &str) -> Option<u64> {
    match size.split_at_checked(size.len().checked_sub(1)?)? {
        (number, "K") => number.parse().ok(),
        (number, "M") => number.parse::<u64>().ok()?.checked_mul(1024),
        _ => None,
    }
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
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2 GHz"));
        assert_eq!(cpu_count(text), 1);
        assert_eq!((field(text, "model"), field("", "model name")), (None, None));
    }

    #[test]
    fn sizes_of_caches_have_units() {
        assert_eq!([kib("1024K"), kib("32M")], [Some(1024), Some(32_768)]);
        assert_eq!([kib(""), kib("K"), kib("12"), kib("1G")], [None; 4]);
    }

    #[test]
    fn two_generations_of_one_name_are_two_machines() {
        let of = |family| Machine { cpu: "C".into(), family, ..Machine::default() };
        assert!(of(Some(25)).is_the_same(&of(Some(25))));
        assert!(!of(Some(25)).is_the_same(&of(Some(26))));
        assert!(of(None).is_the_same(&of(Some(26))), "an older file does not tell");
    }
}
