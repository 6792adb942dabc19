//! What ranks, and those who start them, reach others by.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use rma_transport_ofi::{Libfabric, Wanted, choose};
use rustix::fs::{Access, access};

use super::super::bootstrap::{self, REACHED_IN};
use super::super::program;
use super::{Asked, Finding, Health, bad, good, poor, probe};
use crate::codec::wire_struct;

/// What libfabric says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Fabric {
    /// Nothing if it is not there.
    version: Option<String>,
    file: String,
    /// Each provider once.
    providers: Vec<String>,
    /// The one that a job takes.
    taken: Option<String>,
    /// Why there is none.
    why: String,
}

wire_struct!(Fabric { version, file, providers, taken, why });

/// Asks it, in this process.
pub(super) fn probe() -> Fabric {
    let mut fabric = Fabric::default();
    let library = match Libfabric::load() {
        Ok(library) => library,
        Err(error) => return Fabric { why: error.to_string(), ..fabric },
    };
    let (major, minor) = library.version();
    fabric.version = Some(format!("{major}.{minor}"));
    fabric.file = loaded(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default());
    let offers = match library.offers() {
        Ok(offers) => offers,
        Err(error) => return Fabric { why: error.to_string(), ..fabric },
    };
    for offer in &offers {
        if !fabric.providers.contains(&offer.provider) {
            fabric.providers.push(offer.provider.clone());
        }
    }
    let filter = crate::provider_filter();
    match choose(&offers, &Wanted { filter: filter.as_deref(), ..Wanted::default() }) {
        Ok(offer) => fabric.taken = Some(offer.provider.clone()),
        Err(error) => fabric.why = error.to_string(),
    }
    fabric
}

/// The file of libfabric, by the `maps` of a process that has loaded it.
fn loaded(maps: &str) -> String {
    let mut files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_it = |file: &&str| Path::new(file).file_name().is_some_and(is_libfabric);
    files.find(is_it).unwrap_or_default().to_owned()
}

fn is_libfabric(name: &OsStr) -> bool {
    name.to_string_lossy().starts_with("libfabric.so")
}

/// Which provider a job takes that has ranks on several hosts, or asks for libfabric.
pub(super) fn libfabric(asked: &Asked) -> Finding {
    let fabric = probe::answer(&[OsStr::new(probe::LIBFABRIC)], &asked.fabric);
    of_fabric(fabric, asked.across)
}

fn of_fabric(fabric: Result<Fabric, String>, across: bool) -> Finding {
    const TOPIC: &str = "libfabric";
    let lacking = |why: String| {
        let health = if across { Health::Bad } else { Health::Poor };
        let needed = "only ranks on several hosts, and --transport ofi, need it";
        let text = if across { why } else { format!("{why}; {needed}") };
        Finding::new(TOPIC, health, text)
    };
    let fabric = match fabric {
        Ok(fabric) => fabric,
        Err(why) => return lacking(format!("not tried: {why}")).with("version", "not known"),
    };
    let Fabric { version, file, providers, taken, why } = fabric;
    let Some(version) = version else { return lacking(why).with("version", "none") };
    let all = providers.join(", ");
    let finding = match &taken {
        Some(provider) => good(
            TOPIC,
            format!(
                "version {version} ({file}): ranks reach other hosts by {provider}; --provider \
                 takes another of {all}"
            ),
        ),
        None => lacking(format!("version {version} ({file}): {why}")),
    };
    let provider = taken.unwrap_or_else(|| "none".to_owned());
    let finding = finding.with("version", version).with("provider", provider);
    finding.with("providers", all).with("file", file)
}

const DEVICES: &str = "/sys/class/infiniband";

/// Whether there is a device of verbs.
pub(super) fn has_devices() -> bool {
    !entries(Path::new(DEVICES)).is_empty()
}

/// Names in a folder, in order.
fn entries(folder: &Path) -> Vec<String> {
    let all = std::fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<_> =
        all.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

pub(super) fn verbs() -> Finding {
    of_verbs(Path::new(DEVICES), Path::new("/dev/infiniband"))
}

/// Of devices that the kernel lists in one folder, and programs open in the other.
fn of_verbs(devices: &Path, opened: &Path) -> Finding {
    const TOPIC: &str = "verbs";
    let names = entries(devices);
    if names.is_empty() {
        let text = "no InfiniBand or RoCE device; ranks reach other hosts without";
        return good(TOPIC, text).with("devices", "").with("active", 0);
    }
    let ports = names.iter().flat_map(|name| {
        let folder = devices.join(name).join("ports");
        entries(&folder).into_iter().map(move |port| Port::read(name, &folder.join(&port), &port))
    });
    let ports: Vec<Port> = ports.collect();
    let active = ports.iter().filter(|port| port.state.contains("ACTIVE")).count();
    let told = ports.iter().map(Port::text).collect::<Vec<_>>().join("; ");
    let closed = entries(opened).into_iter().filter(|name| name.starts_with("uverbs"));
    let closed = closed.map(|name| opened.join(name)).find_map(|path| {
        access(path.as_path(), Access::READ_OK | Access::WRITE_OK).err().map(|why| (path, why))
    });
    let finding = match (active, closed) {
        (0, _) => poor(TOPIC, format!("no port is active: {told}; see ibstat, or the switch")),
        (_, Some((path, why))) => {
            poor(TOPIC, format!("{told}; but {}: {why}: let users open it", path.display()))
        }
        (_, None) => good(TOPIC, told),
    };
    finding.with("devices", names.join(", ")).with("active", active)
}

/// A port of a device.
struct Port {
    name: String,
    state: String,
    layer: String,
    rate: String,
}

impl Port {
    fn read(device: &str, folder: &Path, port: &str) -> Port {
        let read = |name: &str| {
            let text = std::fs::read_to_string(folder.join(name));
            text.map_or_else(|_| "not known".to_owned(), |text| text.trim().to_owned())
        };
        let name = format!("{device} port {port}");
        Port { name, state: read("state"), layer: read("link_layer"), rate: read("rate") }
    }

    fn text(&self) -> String {
        let Port { name, state, layer, rate } = self;
        format!("{name}: {state}, {layer}, {rate}")
    }
}

pub(super) fn loop_back() -> Finding {
    const TOPIC: &str = "loop-back";
    let tried = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| TcpStream::connect_timeout(&listener.local_addr()?, REACHED_IN));
    match tried {
        Ok(_) => good(TOPIC, "ranks join at a port of 127.0.0.1").with("address", "127.0.0.1"),
        Err(error) => bad(TOPIC, bootstrap::no_port(error).to_string()),
    }
}

pub(super) fn ports() -> Finding {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    of_ports(&range.unwrap_or_default())
}

fn of_ports(range: &str) -> Finding {
    const TOPIC: &str = "ports";
    // A rank takes one to join, and one for each peer that it connects to over TCP.
    const FEW: u32 = 2000;
    let mut numbers = range.split_whitespace().map(str::parse::<u32>);
    let (Some(Ok(first)), Some(Ok(last))) = (numbers.next(), numbers.next()) else {
        return poor(TOPIC, "the kernel does not say which it gives out")
            .with("count", "not known");
    };
    let count = last.saturating_sub(first).saturating_add(1);
    let text = format!("the kernel gives out {count}, {first} to {last}");
    let finding = match count < FEW {
        true => poor(
            TOPIC,
            format!(
                "{text}, which jobs of many ranks use up: sysctl -w \
                 net.ipv4.ip_local_port_range=\"32768 60999\""
            ),
        ),
        false => good(TOPIC, text),
    };
    finding.with("first", first).with("last", last).with("count", count)
}

pub(super) fn ssh() -> Finding {
    of_ssh(std::env::var_os("PATH").as_deref().and_then(client))
}

/// The client of ssh, in one of these folders.
fn client(path: &OsStr) -> Option<PathBuf> {
    program::find_in("ssh".as_ref(), path).ok()
}

fn of_ssh(client: Option<PathBuf>) -> Finding {
    const TOPIC: &str = "ssh";
    match client {
        Some(client) => {
            let client = client.display().to_string();
            good(TOPIC, format!("{client} starts agents on other hosts")).with("client", client)
        }
        None => poor(
            TOPIC,
            "no client in PATH: jobs on this machine need none; for --hosts, install one (Debian: \
             `apt-get install openssh-client`), name another remote shell by --ssh-command, or \
             have hosts join (rma-run serve)",
        )
        .with("client", "none"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_libfabric_lacks_matters_to_jobs_on_several_hosts() {
        let fabric = Fabric {
            version: Some("1.17".into()),
            file: "/lib/libfabric.so.1.20".into(),
            providers: vec!["tcp;ofi_rxm".into(), "shm".into()],
            taken: Some("tcp;ofi_rxm".into()),
            why: String::new(),
        };
        let found = of_fabric(Ok(fabric.clone()), true);
        assert_eq!(found.health, Health::Good);
        let values = ["version", "provider", "providers"].map(|key| found.value(key).unwrap());
        assert_eq!(values, ["1.17", "tcp;ofi_rxm", "tcp;ofi_rxm, shm"]);
        let none = Fabric { taken: None, why: "hidden".into(), ..fabric };
        for (across, health) in [(true, Health::Bad), (false, Health::Poor)] {
            let missing = Fabric { why: "install it".into(), ..Fabric::default() };
            for (fabric, part) in [
                (Ok(missing), "install it"),
                (Ok(none.clone()), "1.17 (/lib/libfabric.so.1.20): hidden"),
                (Err("it hangs".into()), "not tried: it hangs"),
            ] {
                let found = of_fabric(fabric, across);
                assert_eq!(found.health, health, "{found:?}");
                assert!(found.text.contains(part), "{found:?}");
                assert_eq!(found.text.contains("only ranks on several hosts"), !across);
            }
        }
    }

    #[test]
    fn the_file_of_a_library_is_found() {
        let maps =
            "7f-80 r--p 0 0:1 2 /lib/libc.so.6\n80-81 r--p 0 0:1 3 /opt/a b/libfabric.so.1.2\n";
        assert_eq!(loaded(maps), "/opt/a b/libfabric.so.1.2");
        assert_eq!(loaded("7f-80 rw-p 0 0:0 0\n"), "");
    }

    #[test]
    fn devices_and_their_ports_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let (devices, opened) = (dir.path().join("sys"), dir.path().join("dev"));
        assert_eq!(of_verbs(&devices, &opened).value("devices"), Some(""));
        let port = devices.join("mlx5_0/ports/1");
        std::fs::create_dir_all(&port).unwrap();
        std::fs::create_dir(&opened).unwrap();
        std::fs::write(port.join("state"), "1: DOWN\n").unwrap();
        std::fs::write(port.join("link_layer"), "InfiniBand\n").unwrap();
        let found = of_verbs(&devices, &opened);
        assert_eq!((found.health, found.value("active")), (Health::Poor, Some("0")));
        assert!(found.text.contains("mlx5_0 port 1: 1: DOWN, InfiniBand, not known"), "{found:?}");
        std::fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
        std::fs::write(port.join("rate"), "100 Gb/sec (4X EDR)\n").unwrap();
        let found = of_verbs(&devices, &opened);
        assert_eq!((found.health, found.value("active")), (Health::Good, Some("1")));
        assert!(found.text.ends_with("100 Gb/sec (4X EDR)"), "{found:?}");
        let device = opened.join("uverbs0");
        std::os::unix::fs::symlink("/no/such/device", &device).unwrap();
        let found = of_verbs(&devices, &opened);
        assert_eq!(found.health, Health::Poor);
        assert!(found.text.contains("uverbs0: No such file"), "{found:?}");
    }

    #[test]
    fn few_ports_are_told() {
        let wide = of_ports("32768\t60999\n");
        assert_eq!((wide.health, wide.value("count")), (Health::Good, Some("28232")));
        assert_eq!(of_ports("50000 50100").health, Health::Poor);
        for odd in ["", "7", "x y", "9 1"] {
            assert_eq!(of_ports(odd).health, Health::Poor, "{odd:?}");
        }
    }

    #[test]
    fn a_client_of_ssh_is_looked_for_in_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = std::env::join_paths([Path::new("/no/such"), dir.path()]).unwrap();
        let file = dir.path().join("ssh");
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        assert_eq!(client(&path), None, "it cannot be run");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(client(&path), Some(file.clone()));
        assert_eq!(of_ssh(Some(file)).health, Health::Good);
        let none = of_ssh(None);
        assert_eq!((none.health, none.value("client")), (Health::Poor, Some("none")));
        assert!(none.text.contains("--ssh-command"), "{none:?}");
    }
}
