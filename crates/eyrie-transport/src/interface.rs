//! Network interfaces: which IP address of this host a role listens at. It asks the kernel and
//! changes nothing.

use eyrie_wire::role_address::Interface;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address of an interface on this host: the first one of IPv4, else of IPv6 that is not
/// link-local.
///
/// # Errors
/// When there is no such interface here, or it has no address.
pub fn ip(interface: &Interface) -> io::Result<IpAddr> {
    let name = match interface {
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

/// The addresses of this host's interfaces, with their names. Link-local addresses are left out.
fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs only writes the pointer `list`, which lives on this stack. The list is
    // freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: `at` is null or an entry of the list that getifaddrs made, which is freed only below.
    while let Some(entry) = unsafe { at.as_ref() } {
        // SAFETY: getifaddrs fills in every entry: the name is a C string, and the address is null
        // or as long as its family says.
        let (name, ip) = unsafe {
            let name = std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            (name, ip_of(entry.ifa_addr))
        };
        found.extend(ip.map(|ip| (name, ip)));
        at = entry.ifa_next;
    }
    // SAFETY: `list` is from getifaddrs and freed once. `found` has copies, so nothing refers to
    // it.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// # Safety
/// `address` is null or a socket address as long as its family says.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller promises that the address is as long as its family says, so each cast
    // reads within it. `read_unaligned` needs no alignment.
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
        assert!(ip(&lo).unwrap().is_loopback());
        let none: Interface = "no-such-interface".parse().unwrap();
        assert!(ip(&none).unwrap_err().to_string().contains("no-such-interface"));
    }
}
