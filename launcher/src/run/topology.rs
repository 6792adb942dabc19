//! Which CPUs are one core, one socket or one NUMA node, as the system tells, and which of them a
//! rank is bound to.

use std::fs;
use std::path::Path;

use super::spec::{Bind, MapBy};

/// A CPU is a hardware thread of a core. Each of the others is called by a number of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cpu {
    number: u32,
    core: u32,
    socket: u32,
    numa: u32,
}

/// Which of these CPUs ranks of a host are bound to, in order; they start over when there are more
/// ranks. Empty if ranks are not bound.
pub(super) fn places(cpus: &[u32], bind: Bind, map_by: MapBy) -> Vec<Vec<u32>> {
    match bind {
        Bind::None => Vec::new(),
        _ => Topology::read(Path::new("/sys/devices/system/cpu"), cpus).places(bind, map_by),
    }
}

/// The CPUs that the job may use.
#[derive(Debug)]
struct Topology(Vec<Cpu>);

impl Topology {
    /// One of which the system tells nothing is a core of its own, of the first socket and NUMA
    /// node.
    fn read(folder: &Path, cpus: &[u32]) -> Topology {
        let of = |number: u32| {
            let folder = folder.join(format!("cpu{number}"));
            let tells = |file: &str| {
                let text = fs::read_to_string(folder.join("topology").join(file)).ok()?;
                // Of a list, such as `0,64` or `0-1`, the first.
                text.split(['\n', ',', '-']).next()?.parse().ok()
            };
            // Before Linux 5.2 it had the second name only.
            let core = tells("core_cpus_list").or_else(|| tells("thread_siblings_list"));
            let socket = tells("physical_package_id").unwrap_or(0);
            let numa = fs::read_dir(&folder).ok().and_then(|mut entries| {
                entries.find_map(|entry| {
                    entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok()
                })
            });
            Cpu { number, core: core.unwrap_or(number), socket, numa: numa.unwrap_or(0) }
        };
        Topology(cpus.iter().map(|number| of(*number)).collect())
    }

    fn places(&self, bind: Bind, map_by: MapBy) -> Vec<Vec<u32>> {
        let mut all: Vec<(usize, &Cpu)> = self.0.iter().map(|cpu| (0, cpu)).collect();
        all.sort_by_key(|(_, cpu)| (cpu.socket, cpu.numa, cpu.core, cpu.number));
        if map_by != MapBy::Thread {
            // All cores come before the second thread of any.
            number_within(&mut all, |cpu| cpu.core);
            if bind != Bind::Thread {
                all.retain(|(thread, _)| *thread == 0);
            }
            all.sort_by_key(|(thread, _)| *thread);
        }
        match map_by {
            MapBy::Thread | MapBy::Core => {}
            MapBy::Socket => deal(&mut all, |cpu| cpu.socket),
            MapBy::Numa => deal(&mut all, |cpu| cpu.numa),
        }
        let place = |(_, first): (usize, &Cpu)| {
            let is_there = |cpu: &&Cpu| match bind {
                Bind::None => false,
                Bind::Thread => cpu.number == first.number,
                Bind::Core => cpu.core == first.core,
                Bind::Socket => cpu.socket == first.socket,
                Bind::Numa => cpu.numa == first.numa,
            };
            self.0.iter().filter(is_there).map(|cpu| cpu.number).collect()
        };
        all.into_iter().map(place).collect()
    }
}

/// Numbers those of one kind, in their order.
fn number_within(all: &mut [(usize, &Cpu)], kind: impl Fn(&Cpu) -> u32) {
    for at in 0..all.len() {
        let own = kind(all[at].1);
        all[at].0 = all[..at].iter().filter(|(_, cpu)| kind(cpu) == own).count();
    }
}

/// The first of each kind, then the second of each, and so on.
fn deal(all: &mut [(usize, &Cpu)], kind: impl Fn(&Cpu) -> u32) {
    number_within(all, kind);
    all.sort_by_key(|(turn, _)| *turn);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of two cores of two threads, as Linux numbers them: second threads come last.
    fn machine() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for cpu in 0..8 {
            let (core, socket) = (cpu % 4, cpu % 4 / 2);
            let own = folder.path().join(format!("cpu{cpu}"));
            let topology = own.join("topology");
            fs::create_dir_all(&topology).unwrap();
            fs::create_dir(own.join(format!("node{socket}"))).unwrap();
            let tells = [
                ("physical_package_id", format!("{socket}\n")),
                ("core_cpus_list", format!("{core},{}\n", core + 4)),
            ];
            for (file, text) in tells {
                fs::write(topology.join(file), text).unwrap();
            }
        }
        folder
    }

    fn places(cpus: &[u32], bind: Bind, map_by: MapBy) -> Vec<Vec<u32>> {
        Topology::read(machine().path(), cpus).places(bind, map_by)
    }

    const ALL: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    #[test]
    fn cores_come_before_their_second_threads() {
        let threads = places(&ALL, Bind::Thread, MapBy::Core);
        assert_eq!(threads, [[0], [1], [2], [3], [4], [5], [6], [7]]);
        let cores = places(&ALL, Bind::Core, MapBy::Core);
        assert_eq!(cores, [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert!(super::places(&ALL, Bind::None, MapBy::Core).is_empty());
    }

    #[test]
    fn threads_of_a_core_follow_each_other_where_ranks_are_mapped_by_thread() {
        let threads = places(&ALL, Bind::Thread, MapBy::Thread);
        assert_eq!(threads, [[0], [4], [1], [5], [2], [6], [3], [7]]);
        let cores = places(&ALL, Bind::Core, MapBy::Thread);
        assert_eq!(cores, [[0, 4], [0, 4], [1, 5], [1, 5], [2, 6], [2, 6], [3, 7], [3, 7]]);
        let sockets = places(&ALL, Bind::Socket, MapBy::Thread);
        assert_eq!(sockets[..4], [[0, 1, 4, 5]; 4]);
        assert_eq!(places(&[1, 4, 5, 7], Bind::Thread, MapBy::Thread), [[4], [1], [5], [7]]);
    }

    #[test]
    fn sockets_take_turns() {
        for by in [MapBy::Socket, MapBy::Numa] {
            let cores = places(&ALL, Bind::Core, by);
            assert_eq!(cores, [[0, 4], [2, 6], [1, 5], [3, 7]]);
            let threads = places(&ALL, Bind::Thread, by);
            assert_eq!(threads, [[0], [2], [1], [3], [4], [6], [5], [7]]);
        }
        let (first, second) = ([0, 1, 4, 5], [2, 3, 6, 7]);
        for bind in [Bind::Socket, Bind::Numa] {
            assert_eq!(places(&ALL, bind, MapBy::Core), [first, first, second, second]);
            assert_eq!(places(&ALL, bind, MapBy::Socket), [first, second, first, second]);
        }
    }

    #[test]
    fn ranks_get_what_the_job_may_use() {
        let cores = places(&[1, 4, 5, 7], Bind::Core, MapBy::Core);
        assert_eq!(cores, [vec![4], vec![1, 5], vec![7]]);
        let threads = places(&[1, 4, 5, 7], Bind::Thread, MapBy::Core);
        assert_eq!(threads, [[4], [1], [7], [5]]);
    }

    #[test]
    fn where_the_system_tells_nothing_each_cpu_is_a_core() {
        let nothing = tempfile::tempdir().unwrap();
        let topology = Topology::read(nothing.path(), &[3, 9]);
        assert_eq!(topology.places(Bind::Core, MapBy::Numa), [[3], [9]]);
        assert_eq!(topology.places(Bind::Socket, MapBy::Core), [[3, 9], [3, 9]]);
    }
}
