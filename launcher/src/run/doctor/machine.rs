//! What the kernel of this machine offers.

use std::path::Path;

use rustix::fs::{MemfdFlags, memfd_create};

use super::super::cpus;
use super::super::hosts::Print;
use super::{Finding, bad, good, poor, system};

pub(super) fn versions() -> Finding {
    const TOPIC: &str = "versions";
    let uname = rustix::system::uname();
    let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
    let (kernel, machine) = (text(uname.release()), text(uname.machine()));
    let libc = system::libc_version();
    let build = match Print::of(Path::new("/proc/self/exe")) {
        Ok(print) => format!("{:016x}", print.sum),
        Err(error) => format!("not known: {error}"),
    };
    let rma = env!("CARGO_PKG_VERSION");
    good(TOPIC, format!("rma-run {rma} (build {build}), Linux {kernel} on {machine}, libc {libc}"))
        .with("rma-run", rma)
        .with("build", build)
        .with("kernel", kernel)
        .with("machine", machine)
        .with("libc", libc)
}

pub(super) fn cpu() -> Finding {
    const TOPIC: &str = "CPUs";
    match cpus::available() {
        Ok(cpus) => {
            let ranges = cpus::ranges(&cpus);
            let count = cpus.len();
            let text = format!(
                "{count} ({ranges}); with more ranks than that, waiting ranks sleep instead of \
                 spinning"
            );
            good(TOPIC, text).with("count", count).with("numbers", ranges)
        }
        Err(error) => bad(TOPIC, error.to_string()),
    }
}

pub(super) fn proc() -> Finding {
    const TOPIC: &str = "/proc";
    match std::fs::read_link("/proc/self/exe") {
        Ok(_) => {
            good(TOPIC, "a warden ends what is left if rma-run is killed").with("mounted", true)
        }
        Err(error) => poor(
            TOPIC,
            format!("/proc/self/exe: {error}: there will be no warden; mount -t proc proc /proc"),
        ),
    }
}

pub(super) fn memory() -> Finding {
    const TOPIC: &str = "memory";
    match memfd_create("rma-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) {
        Ok(_) => good(TOPIC, "windows are shared by memfd_create").with("by", "memfd_create"),
        Err(error) => bad(
            TOPIC,
            format!(
                "memfd_create, which windows need: {error}; a container needs a seccomp profile \
                 that allows it"
            ),
        ),
    }
}

pub(super) fn pages() -> Finding {
    const TOPIC: &str = "huge pages";
    let file = Path::new("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let chosen = chosen.map(|(chosen, _)| chosen);
    let finding = match chosen {
        None => poor(TOPIC, "this kernel has none for shared memory"),
        Some("never" | "deny") => {
            poor(TOPIC, format!("large windows could use them: echo advise > {}", file.display()))
        }
        Some(chosen) => good(TOPIC, format!("for shared memory: {chosen}")),
    };
    finding.with("shared_memory", chosen.unwrap_or("none"))
}

/// The rest of a line of `/proc/self/status`.
fn status<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.trim())
}

pub(super) fn seccomp() -> Finding {
    of_seccomp(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
}

fn of_seccomp(text: &str) -> Finding {
    const TOPIC: &str = "seccomp";
    let mode = status(text, "Seccomp");
    let finding = match mode {
        None => poor(TOPIC, "/proc/self/status does not say whether calls are filtered"),
        Some("0") => good(TOPIC, "no filter: the kernel takes all calls"),
        Some(_) => {
            let count = status(text, "Seccomp_filters").unwrap_or("some");
            let text = format!(
                "{count} filters decide which calls the kernel takes; what they forbid of what a \
                 job needs is told by the tries of memory, peers and copies"
            );
            good(TOPIC, text)
        }
    };
    finding.with("mode", mode.unwrap_or("not known"))
}

pub(super) fn user_namespace() -> Finding {
    const TOPIC: &str = "user namespace";
    /// The number of the first one, in all kernels.
    const FIRST: &str = "user:[4026531837]";
    let name = match std::fs::read_link("/proc/self/ns/user") {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(error) => {
            let text =
                format!("this kernel has none (/proc/self/ns/user: {error}); none is needed");
            return good(TOPIC, text).with("name", "none");
        }
    };
    let text = match name == FIRST {
        true => "the first one".to_owned(),
        false => format!(
            "{name}, of a container: ranks that share memory have to be in the same one, so start \
             rma-run inside"
        ),
    };
    good(TOPIC, text).with("name", name)
}

pub(super) fn clock() -> Finding {
    let folder = Path::new("/sys/devices/system/clocksource/clocksource0");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let (current, available) = (read("current_clocksource"), read("available_clocksource"));
    of_clock(current.as_deref().map(str::trim), available.as_deref().unwrap_or_default().trim())
}

fn of_clock(current: Option<&str>, available: &str) -> Finding {
    const TOPIC: &str = "clock";
    /// Those that a process reads without a call of the kernel.
    const FAST: [&str; 5] =
        ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase"];
    let finding = match current {
        None => poor(TOPIC, "/sys does not say what the clock is read from"),
        Some(current) if FAST.contains(&current) => {
            good(TOPIC, format!("{current}, which is read without a call of the kernel"))
        }
        Some(current) => {
            let has = |name: &&&str| available.split_whitespace().any(|known| known == **name);
            let remedy = match FAST.iter().find(has) {
                Some(name) => format!(
                    "echo {name} > /sys/devices/system/clocksource/clocksource0/current_clocksource"
                ),
                None => format!("there is no other one ({available})"),
            };
            let text = format!("{current}: each look at it is a call of the kernel; {remedy}");
            poor(TOPIC, text)
        }
    };
    finding.with("source", current.unwrap_or("not known"))
}

#[cfg(test)]
mod tests {
    use super::super::Health;
    use super::*;

    #[test]
    fn filters_of_calls_are_told() {
        let of = |text: &str| {
            let Finding { health, text, values, .. } = of_seccomp(text);
            (health, text.split(' ').next().unwrap().to_owned(), values[0].1.clone())
        };
        let expected = |health, word: &str, mode: &str| (health, word.into(), mode.into());
        assert_eq!(of("Name:\tx\nSeccomp:\t0\n"), expected(Health::Good, "no", "0"));
        let filtered = "Seccomp:\t2\nSeccomp_filters:\t3\n";
        assert_eq!(of(filtered), expected(Health::Good, "3", "2"));
        assert_eq!(of(""), expected(Health::Poor, "/proc/self/status", "not known"));
    }

    #[test]
    fn a_slow_clock_has_a_remedy_if_there_is_a_faster_one() {
        assert_eq!(of_clock(Some("kvm-clock"), "kvm-clock tsc").health, Health::Good);
        let slow = of_clock(Some("hpet"), "tsc hpet");
        assert_eq!((slow.health, slow.value("source")), (Health::Poor, Some("hpet")));
        assert!(slow.text.contains("echo tsc > /sys/"), "{slow:?}");
        let only = of_clock(Some("hpet"), "hpet");
        assert!(only.text.contains("no other one (hpet)"), "{only:?}");
    }
}
