//! Which address of this host the others reach.

use std::net::{IpAddr, ToSocketAddrs, UdpSocket};

/// Any port: nothing is sent.
const PORT: u16 = 9;
/// So many other hosts are looked up at most: a name that no server knows may take seconds.
const LOOKED_UP: usize = 2;

/// That of its name, if that is one of this machine that others reach; else the one by which it
/// reaches them; else the one that ssh came to. `None` where nothing but loop-back is known.
pub(super) fn of_host(hosts: &[String], host: usize, ssh: Option<String>) -> Option<String> {
    let own = hosts.get(host).map(|name| addresses(name)).unwrap_or_default();
    let own = own.into_iter().find(|address| is_mine(*address) && !address.is_loopback());
    let towards = || {
        let others = hosts.iter().enumerate().filter(|(at, _)| *at != host);
        others.take(LOOKED_UP).flat_map(|(_, name)| addresses(name)).find_map(towards)
    };
    own.or_else(towards).or_else(|| of_ssh(&ssh?)).map(|address| address.to_string())
}

fn addresses(name: &str) -> Vec<IpAddr> {
    // Behind an "@" is the host; in front of it, the user to log in there.
    let name = name.rsplit('@').next().unwrap_or_default();
    let found = (name, PORT).to_socket_addrs();
    found.map(|all| all.map(|address| address.ip()).collect()).unwrap_or_default()
}

fn is_mine(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The address that this host has towards that one.
fn towards(peer: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Of a datagram socket, that is a look at the routes, and sends nothing.
    socket.connect((peer, PORT)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// From `SSH_CONNECTION`: address and port of the client, then those of this host.
fn of_ssh(connection: &str) -> Option<IpAddr> {
    let address: IpAddr = connection.split_whitespace().nth(2)?.parse().ok()?;
    (!address.is_loopback()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_tells_where_it_came_to() {
        let found = |text| of_ssh(text).map(|address| address.to_string());
        assert_eq!(found("10.0.0.1 5555 10.0.0.2 22"), Some("10.0.0.2".to_owned()));
        assert_eq!(found("127.0.0.1 5555 127.0.0.1 22"), None);
        assert_eq!(found("nonsense"), None);
    }

    #[test]
    fn loop_back_is_no_address_for_others() {
        let hosts = ["127.0.0.1".to_owned(), "127.0.0.2".to_owned()];
        let ssh = || Some("10.0.0.1 5555 10.0.0.2 22".to_owned());
        assert_eq!(of_host(&hosts, 0, None), None);
        assert_eq!(of_host(&hosts, 0, ssh()), Some("10.0.0.2".to_owned()));
    }
}
