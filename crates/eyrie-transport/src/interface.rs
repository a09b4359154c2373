//! Network interfaces: which IP address of this host a role listens at. It asks the kernel and
//! changes nothing.

use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An interface as users name it: by its IP address or by its name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Interface {
    Ip(IpAddr),
    /// As `ip link` shows it; it may be another address on each host.
    Name(String),
}

impl Interface {
    /// The interface that no other host reaches.
    pub const LOOPBACK: Interface = Interface::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST));

    /// Its address on this host: the first of IPv4, else of IPv6 beyond the link.
    ///
    /// # Errors
    /// When there is no such interface here, or it has no address.
    pub fn ip(&self) -> io::Result<IpAddr> {
        let name = match self {
            Interface::Ip(ip) => return Ok(*ip),
            Interface::Name(name) => name,
        };
        let of_it = addresses()?.into_iter().filter(|(of, _)| of == name).map(|(_, ip)| ip);
        let none = || {
            let text = format!("this host has no network interface {name} with an IP address");
            io::Error::new(io::ErrorKind::NotFound, text)
        };
        of_it.min_by_key(IpAddr::is_ipv6).ok_or_else(none)
    }
}

impl std::fmt::Display for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Interface::Ip(ip) => ip.fmt(f),
            Interface::Name(name) => name.fmt(f),
        }
    }
}

impl std::str::FromStr for Interface {
    type Err = String;

    fn from_str(text: &str) -> Result<Interface, String> {
        if text.is_empty() {
            return Err("an interface is an IP address or a name".into());
        }
        Ok(text.parse().map_or_else(|_| Interface::Name(text.into()), Interface::Ip))
    }
}

/// The addresses of this host's interfaces with their names; those that mean something on one link
/// only are left out.
fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the pointer is written to, and freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: the list that the C library has made, each entry of which is whole.
    while let Some(entry) = unsafe { at.as_ref() } {
        // SAFETY: the name is a C string, the address null or a socket address of its family.
        let (name, ip) = unsafe {
            let name = std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            (name, ip_of(entry.ifa_addr))
        };
        found.extend(ip.map(|ip| (name, ip)));
        at = entry.ifa_next;
    }
    // SAFETY: the list from above, once.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// # Safety
/// `address` is null or a socket address as long as its family says.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: as the caller vouches.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(IpAddr::V4(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes())))
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                (!ip.is_unicast_link_local()).then_some(IpAddr::V6(ip))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found_by_name_and_others_are_not() {
        let lo: Interface = "lo".parse().unwrap();
        assert!(lo.ip().unwrap().is_loopback());
        assert_eq!("::1".parse(), Ok(Interface::Ip(Ipv6Addr::LOCALHOST.into())));
        let none: Interface = "no-such-interface".parse().unwrap();
        assert!(none.ip().unwrap_err().to_string().contains("no-such-interface"));
        assert!("".parse::<Interface>().is_err());
    }
}
