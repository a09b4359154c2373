//! Whose a connection is that comes over loopback: every user of a host can make one, and jobs are
//! their user's own affair. The kernel says whose socket the other end is.

use std::fs;
use std::net::{IpAddr, SocketAddr};

/// Whether the other end of a connection over loopback belongs to this process's user, or to root.
/// One that has gone, or of which the kernel does not tell, does not.
pub fn is_ours(ours: SocketAddr, other: SocketAddr) -> bool {
    // A socket of IPv6 may be at the other end of one of IPv4.
    let lists = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(fs::read_to_string);
    let own = rustix::process::getuid().as_raw();
    let mut lists = lists.iter().flatten();
    lists.find_map(|list| owner(list, other, ours)).is_some_and(|uid| uid == own || uid == 0)
}

/// The user whose socket has this address and is connected to that one, by a list of the kernel's.
fn owner(list: &str, address: SocketAddr, to: SocketAddr) -> Option<u32> {
    let wanted = [address, to].map(in_hex);
    list.lines().skip(1).find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let ends = [words.next()?, words.next()?];
        let are = ends.iter().zip(&wanted).all(|(end, forms)| forms.iter().any(|form| form == end));
        // Behind them: state, queues, timer, retransmissions.
        are.then(|| words.nth(4)?.parse().ok()).flatten()
    })
}

/// An address as the kernel lists it: words of 32 bits in the host's order, and the port. One of
/// IPv4 also as IPv6 has it.
fn in_hex(address: SocketAddr) -> Vec<String> {
    let port = address.port();
    let hex = |octets: &[u8]| {
        let words = octets.chunks_exact(4).map(|word| {
            let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
            format!("{word:08X}")
        });
        format!("{}:{port:04X}", words.collect::<String>())
    };
    match address.ip() {
        IpAddr::V4(ip) => vec![hex(&ip.octets()), hex(&ip.to_ipv6_mapped().octets())],
        IpAddr::V6(ip) => vec![hex(&ip.octets())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernel_tells_whose_a_connection_is() {
        for listen in ["127.0.0.1:0", "[::1]:0"] {
            // A host without IPv6 has no such address.
            let Ok(listener) = TcpListener::bind(listen) else { continue };
            let address = listener.local_addr().unwrap();
            let _other = TcpStream::connect(address).unwrap();
            let (ours, from) = listener.accept().unwrap();
            assert!(is_ours(ours.local_addr().unwrap(), from), "{listen}");
            let mut gone = from;
            gone.set_port(from.port().wrapping_add(1).max(1));
            assert!(!is_ours(address, gone) || gone == address, "{listen}");
        }
    }

    #[test]
    fn the_list_is_read_as_the_kernel_writes_it() {
        let v4 = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n\
            \x20  0: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000  1000        0 1 1 0\n\
            \x20  1: 0100007F:C001 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 2 1 0\n";
        let at = |text: &str| text.parse().unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(owner(v4, at("127.0.0.1:49153"), at("127.0.0.1:8080")), Some(1001));
            assert_eq!(owner(v4, at("127.0.0.1:49154"), at("127.0.0.1:8080")), None);
        }
        assert_eq!(owner("", at("127.0.0.1:1"), at("127.0.0.1:2")), None);
        assert_eq!(owner("x\n1:\n2: a b\n", at("127.0.0.1:1"), at("127.0.0.1:2")), None);
    }
}
