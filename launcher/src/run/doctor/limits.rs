//! What limits of this process and of its control groups leave for a job.

use rustix::process::{Resource, getrlimit};

use super::super::groups::{self, CpuTime, Memory};
use super::super::{capacity, cpus};
use super::{Finding, bad, good, network, poor};

/// Whether so many ranks fit.
pub(super) fn room(ranks: u32) -> Finding {
    const TOPIC: &str = "ranks";
    let finding = match capacity::check(ranks, capacity::Open::of_ranks(true)) {
        Ok(room) => good(TOPIC, room),
        Err(shortage) => bad(TOPIC, shortage.to_string()),
    };
    finding.with("asked", ranks)
}

pub(super) fn open_files() -> Finding {
    const TOPIC: &str = "open files";
    // A rank with many windows holds a few descriptors for each of its peers.
    const FEW: u64 = 1024;
    let hard = getrlimit(Resource::Nofile).maximum;
    let finding = match hard {
        Some(hard) if hard < FEW => poor(
            TOPIC,
            format!("the hard limit of {hard} bounds ranks and windows; raise it (ulimit -Hn)"),
        ),
        Some(hard) => good(TOPIC, format!("at most {hard} (ulimit -Hn)")),
        None => good(TOPIC, "no limit"),
    };
    finding.with("hard", shown(hard))
}

/// Memory that devices of RDMA read and write is locked; nothing else of a job is.
pub(super) fn locked_memory() -> Finding {
    const TOPIC: &str = "locked memory";
    let soft = getrlimit(Resource::Memlock).current;
    let finding = match soft {
        None => good(TOPIC, "no limit"),
        Some(bytes) if network::has_devices() => poor(
            TOPIC,
            format!(
                "at most {bytes} bytes (ulimit -l), which windows that a verbs device reaches have \
                 to fit into: set memlock to unlimited in /etc/security/limits.conf, in the unit \
                 of the scheduler's daemon, or by --ulimit memlock=-1 of a container"
            ),
        ),
        Some(bytes) => {
            good(TOPIC, format!("at most {bytes} bytes (ulimit -l); no device here needs any"))
        }
    };
    finding.with("bytes", shown(soft))
}

pub(super) fn memory_group() -> Finding {
    const TOPIC: &str = "memory group";
    let groups = groups::of_this_process("memory");
    // What is more than any machine has is how version 1 says that there is no limit.
    let limits =
        groups.iter().filter_map(|group| group.memory()).filter(|limit| limit.max < 1 << 60);
    let finding = match limits.min_by_key(|limit| limit.max.saturating_sub(limit.used)) {
        None => good(TOPIC, "no control group limits memory").with("bytes", "unlimited"),
        Some(Memory { max, used, file }) => {
            let file = file.display();
            good(TOPIC, format!("{max} bytes, of which {used} are used ({file})"))
                .with("bytes", max)
                .with("used", used)
        }
    };
    finding.with("version", version(&groups))
}

/// Which version of control groups there is.
fn version(groups: &[groups::Group]) -> &'static str {
    let is_there = |unified| groups.iter().any(|group| group.unified == unified);
    match (is_there(false), is_there(true)) {
        (true, _) => "1",
        (false, true) => "2",
        (false, false) => "none",
    }
}

pub(super) fn cpu_time() -> Finding {
    let groups = groups::of_this_process("cpu");
    let limits = groups.iter().filter_map(|group| group.cpu_time());
    let narrowest = limits.min_by_key(CpuTime::milli_cpus);
    let count = cpus::available().map_or(1, |cpus| cpus.len() as u64);
    of_time(narrowest.as_ref(), count).with("version", version(&groups))
}

/// Of a limit of the time of so many CPUs.
fn of_time(limit: Option<&CpuTime>, cpus: u64) -> Finding {
    const TOPIC: &str = "CPU group";
    let Some(limit) = limit else {
        return good(TOPIC, "no control group limits the time of CPUs")
            .with("milli_cpus", "unlimited");
    };
    let (milli, file) = (limit.milli_cpus(), limit.file.display());
    let time = format!("the time of {}.{:03} CPUs ({file})", milli / 1000, milli % 1000);
    let finding = match milli < cpus * 1000 {
        true => poor(
            TOPIC,
            format!(
                "{time}, where ranks may run on {cpus}: more ranks that compute than that are all \
                 stopped for part of each {} ms; start fewer, or raise it",
                limit.period / 1000
            ),
        ),
        false => good(TOPIC, time),
    };
    finding.with("milli_cpus", milli)
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::Health;
    use super::*;

    #[test]
    fn less_time_than_cpus_is_told() {
        let limit = |quota| CpuTime { quota, period: 100_000, file: "/group/cpu.max".into() };
        let of = |quota| of_time(Some(&limit(quota)), 2);
        assert_eq!(
            [of(150_000), of(200_000)].map(|finding| finding.health),
            [Health::Poor, Health::Good]
        );
        let short = of(150_000);
        assert!(short.text.contains("1.500 CPUs (/group/cpu.max)"), "{short:?}");
        assert!(short.text.contains("each 100 ms"), "{short:?}");
        assert_eq!(short.value("milli_cpus"), Some("1500"));
        assert_eq!(of_time(None, 2).value("milli_cpus"), Some("unlimited"));
    }

    #[test]
    fn ranks_that_do_not_fit_are_refused() {
        assert_eq!(room(1).health, Health::Good);
        assert_eq!(room(u32::MAX).health, Health::Bad);
    }
}
