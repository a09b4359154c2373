//! The port at which other domains reach a gateway.

use eyrie_transport::Listener;
use eyrie_wire::role_address::{Addr, Bind, Interface, Ports, Security};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How long a port is waited for that a process before may still have.
const PORT_PATIENCE: Duration = Duration::from_secs(10);
const PORT_PAUSE: Duration = Duration::from_millis(100);

/// A listener for other domains at this port of all interfaces; 0: any port. Waits for a port that
/// a process before may still have.
///
/// # Errors
/// When the port is not free.
pub fn bind(port: u16) -> io::Result<Listener> {
    let begun = Instant::now();
    loop {
        match bind_once(port) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && begun.elapsed() < PORT_PATIENCE => {
                std::thread::sleep(PORT_PAUSE);
            }
            bound => return bound,
        }
    }
}

/// As [`bind`], but waits for nothing.
///
/// # Errors
/// When the port is not free.
pub fn bind_once(port: u16) -> io::Result<Listener> {
    let ports = if port == 0 { Ports::ANY } else { port.to_string().parse().unwrap_or(Ports::ANY) };
    let bind = |ip: IpAddr| {
        let interface = Interface::Ip(ip);
        Listener::bind(&Bind::Tcp { interface, ports, security: Security::Encrypted })
    };
    // A host without IPv6 has only the second one.
    bind(IpAddr::V6(Ipv6Addr::UNSPECIFIED)).or_else(|_| bind(IpAddr::V4(Ipv4Addr::UNSPECIFIED)))
}

/// The port of a listener over TCP.
///
/// # Errors
/// When the kernel does not say it.
pub fn port_of(listener: &Listener) -> io::Result<Option<u16>> {
    Ok(match listener.addr()? {
        Addr::Tcp { at, .. } => Some(at.port()),
        Addr::Unix(_) => None,
    })
}
