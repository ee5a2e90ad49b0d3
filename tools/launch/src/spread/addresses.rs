//! Addresses at which other hosts find this one.

use std::net::{IpAddr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// Returns the addresses of this host, with a port: those of IPv4 first. Without others, those of the host
/// itself.
pub(crate) fn own(port: u16) -> Vec<String> {
    let interfaces = getifaddrs().into_iter().flatten();
    let all = interfaces.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP));
    let all = all.filter_map(|interface| {
        let storage = interface.address?;
        let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let v6 = storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
        v4.or(v6)
    });
    let (of_host, mut others): (Vec<IpAddr>, Vec<IpAddr>) = all.partition(IpAddr::is_loopback);
    // Those of a single line need its name.
    others.retain(|address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()));
    if others.is_empty() {
        others = of_host;
    }
    others.sort_by_key(IpAddr::is_ipv6);
    let with_port = others
        .iter()
        .map(|address| SocketAddr::new(*address, port).to_string());
    with_port.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_addresses_with_ports() {
        for address in own(4711) {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(address.port(), 4711);
        }
    }
}
