//! The network address of the host.

use std::net::Ipv4Addr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// Finds the first IPv4 interface that is up and not the loopback. Public addresses precede private ones.
#[must_use]
pub fn primary() -> (Option<Vec<u8>>, Ipv4Addr) {
    let mut private = None;
    for interface in getifaddrs().into_iter().flatten() {
        let Some(address) = interface
            .address
            .and_then(|address| address.as_sockaddr_in().map(|v4| v4.ip()))
        else {
            continue;
        };
        if !interface.flags.contains(InterfaceFlags::IFF_UP) || address.is_loopback() {
            continue;
        }
        let found = (Some(interface.interface_name.into_bytes()), address);
        if !address.is_private() && !address.is_link_local() {
            return found;
        }
        private.get_or_insert(found);
    }
    private.unwrap_or((None, Ipv4Addr::UNSPECIFIED))
}
