//! Addresses of this machine.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};

/// Those of IPv4, but loop-back.
pub(crate) fn own() -> Vec<Ipv4Addr> {
    let table = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let own = local_in(&table);
    if !own.is_empty() {
        return own;
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let found = (name.trim(), 0).to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
    let addresses = found.into_iter().filter_map(|address| match address.ip() {
        IpAddr::V4(address) if !address.is_loopback() => Some(address),
        _ => None,
    });
    addresses.collect()
}

/// Those of `/proc/net/fib_trie`, where a line `|-- ADDRESS` is followed by what kind it is.
fn local_in(table: &str) -> Vec<Ipv4Addr> {
    let mut found: Vec<Ipv4Addr> = Vec::new();
    let mut last = None;
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line.starts_with("/32 host LOCAL")
            && let Some(address) = last
            && !address.is_loopback()
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// Whether others reach it by IPv6 alone.
#[cfg(feature = "server")]
pub(crate) fn are_of_ipv6_alone() -> bool {
    let table = || std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    own().is_empty() && reaches_others(&table())
}

/// Whether `/proc/net/if_inet6` has an address that is of more than a link: a line is the address,
/// the number of its interface, its prefix, its scope, flags, and the interface.
#[cfg(feature = "server")]
fn reaches_others(table: &str) -> bool {
    const GLOBAL: &str = "00";
    table.lines().any(|line| line.split_whitespace().nth(3) == Some(GLOBAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_read_from_its_routes() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                     \x20    |-- 10.0.0.0\n        /24 link UNICAST\n     |-- 10.0.0.2\n\
                     \x20       /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n\
                     \x20    |-- 127.0.0.1\n        /32 host LOCAL\nLocal:\n     |-- 10.0.0.2\n\
                     \x20       /32 host LOCAL\n";
        assert_eq!(local_in(table), [Ipv4Addr::new(10, 0, 0, 2)]);
        assert_eq!(local_in("nonsense"), Vec::<Ipv4Addr>::new());
    }

    #[cfg(feature = "server")]
    #[test]
    fn addresses_of_ipv6_that_others_reach_are_told_apart() {
        let lines = [
            "00000000000000000000000000000001 01 80 10 80       lo",
            "fe80000000000000a8bbccfffedd0001 02 40 20 80     eth0",
            "20010db8000000000000000000000001 02 40 00 80     eth0",
        ];
        assert!(!reaches_others(&lines[..2].join("\n")));
        assert!(reaches_others(&lines.join("\n")));
        assert!(!reaches_others("nonsense"));
    }
}
