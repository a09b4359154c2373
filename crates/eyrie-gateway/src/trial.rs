//! What `eyrie check` tries between two gateways before there is a job: one listens as it would in
//! a job, the other one connects, proves a key that was made for the check, and measures the way.
//! It must never give anything to anyone who has not proven the key, nor wait without a bound.

use crate::dial::{self, connect_line};
use crate::listener::bind_once;
use crate::preamble::{Kind, Preamble, PREAMBLE_LEN};
use eyrie_transport::handshake::{self, HandshakeError};
use eyrie_transport::Stream;
use eyrie_wire::control::Claim;
use eyrie_wire::domains::LineKey;
use eyrie_wire::DomainId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most callers that are served at the same time.
const MAX_CALLERS: usize = 64;
/// What a caller asks for, in a byte: a byte back, and as many as the line takes.
const ECHO: u8 = 1;
const FLOW: u8 = 2;
/// Echoes of which the fastest counts.
const ECHOES: u32 = 8;
/// How long bytes flow: so long and some round trips, since TCP begins slowly, but no longer than.
const FLOW_LEAST: Duration = Duration::from_millis(400);
const FLOW_ROUND_TRIPS: u32 = 10;
const FLOW_MOST: Duration = Duration::from_secs(3);
const PIECE: usize = 64 * 1024;

/// The way to a gateway that was reached.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reached {
    /// To and fro, seconds.
    pub round_trip_s: f64,
    /// What came from there over one connection, bytes a second.
    pub bytes_per_s: f64,
}

/// Why a gateway was not reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unreached {
    pub fault: Fault,
    /// The address from which it was called, as far as the kernel knows.
    pub from: Option<IpAddr>,
}

/// What is wrong with the way to a gateway.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fault {
    /// The name has no address.
    NoAddress(String),
    /// Nothing has answered.
    Silent,
    /// The other host, or a firewall in its name, has refused the connection.
    Refused,
    /// There is no way to it, by what the kernel says.
    NoWay(String),
    /// What has answered does not know the key.
    Other(String),
    /// The connection broke while it was measured.
    Broken(String),
}

/// Listens as a gateway at this port of all interfaces, until this process ends, for callers that
/// prove one of these keys. 0: any port. Returns the port.
///
/// # Errors
/// When the port is not free.
pub fn listen(port: u16, keys: Vec<(DomainId, LineKey)>) -> io::Result<u16> {
    let listener = bind_once(port)?;
    let port = crate::listener::port_of(&listener)?.unwrap_or(port);
    let keys: Arc<BTreeMap<_, _>> = Arc::new(keys.into_iter().collect());
    let accept = move || {
        while let Ok(stream) = listener.accept() {
            if Arc::strong_count(&keys) <= MAX_CALLERS {
                let keys = Arc::clone(&keys);
                // The caller finds out that it failed.
                std::thread::spawn(move || drop(serve(stream, &keys)));
            }
        }
    };
    std::thread::Builder::new().name("gateway-trial".into()).spawn(accept)?;
    Ok(port)
}

/// Serves a caller until it has enough.
fn serve(mut stream: Stream, keys: &BTreeMap<DomainId, LineKey>) -> Result<(), HandshakeError> {
    stream.set_timeout(Some(dial::STEP))?;
    dial::prepare_line(&stream)?;
    let mut preamble = [0; PREAMBLE_LEN];
    stream.read_exact(&mut preamble)?;
    let Some(Preamble { kind: Kind::Letters, from }) = Preamble::decode(&preamble) else {
        return Err(HandshakeError::Foreign);
    };
    let Some(key) = keys.get(&from) else { return Err(HandshakeError::Secret) };
    let is_its_own = |claim: &Claim| match claim {
        Claim::Letters { from: claimed } if *claimed == from => Ok(()),
        _ => Err("this is no connection of a check".to_string()),
    };
    handshake::accept(&mut stream, &key.secret(), is_its_own)?;
    let mut asked = [0];
    loop {
        stream.read_exact(&mut asked)?;
        match asked[0] {
            ECHO => stream.write_all(&asked)?,
            FLOW => return Ok(flow(&mut stream)?),
            _ => return Err(HandshakeError::Foreign),
        }
    }
}

/// Sends until the caller closes the connection, or long enough.
fn flow(stream: &mut Stream) -> io::Result<()> {
    let piece = vec![0; PIECE];
    let until = Instant::now() + 2 * FLOW_MOST;
    while Instant::now() < until {
        stream.write_all(&piece)?;
    }
    Ok(())
}

/// Connects to the gateway at `HOST:PORT` as that of the domain `own`, and measures the way.
///
/// # Errors
/// Says what is wrong with the way.
pub fn reach(gateway: &str, own: DomainId, key: &LineKey) -> Result<Reached, Unreached> {
    let addresses: Vec<SocketAddr> = match gateway.to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(e) => {
            return Err(Unreached { fault: Fault::NoAddress(e.to_string()), from: None });
        }
    };
    let unreached = |fault| Unreached { fault, from: addresses.iter().find_map(source_towards) };
    let mut stream = connect_line(gateway).map_err(|e| unreached(fault_of(&e)))?;
    let proven = stream
        .write_all(&Preamble { kind: Kind::Letters, from: own }.encode())
        .map_err(HandshakeError::Io)
        .and_then(|()| {
            handshake::connect(&mut stream, &key.secret(), &Claim::Letters { from: own })
        });
    proven.map_err(|e| {
        unreached(match e {
            HandshakeError::Io(e) if is_timeout(&e) => Fault::Silent,
            e => Fault::Other(e.to_string()),
        })
    })?;
    measure(&mut stream).map_err(|e| unreached(Fault::Broken(e.to_string())))
}

fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

fn fault_of(e: &io::Error) -> Fault {
    match e.kind() {
        ErrorKind::ConnectionRefused => Fault::Refused,
        _ if is_timeout(e) => Fault::Silent,
        ErrorKind::NotFound => Fault::NoAddress(e.to_string()),
        _ => Fault::NoWay(e.to_string()),
    }
}

/// The address of this host by which it sends to another one. Nothing is sent.
fn source_towards(at: &SocketAddr) -> Option<IpAddr> {
    let any = match at {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(at).ok()?;
    socket.local_addr().ok().map(|at| at.ip())
}

fn measure(stream: &mut Stream) -> io::Result<Reached> {
    let mut byte = [0];
    let mut round_trip = Duration::MAX;
    for _ in 0..ECHOES {
        let begun = Instant::now();
        stream.write_all(&[ECHO])?;
        stream.read_exact(&mut byte)?;
        round_trip = round_trip.min(begun.elapsed());
    }
    stream.write_all(&[FLOW])?;
    let begun = Instant::now();
    let lasts = (FLOW_LEAST + FLOW_ROUND_TRIPS * round_trip).min(FLOW_MOST);
    let mut piece = vec![0; PIECE];
    // The first half is TCP's beginning.
    let mut half: Option<(Instant, u64)> = None;
    let mut bytes = 0u64;
    while begun.elapsed() < lasts {
        match stream.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => bytes += n as u64,
        }
        if begun.elapsed() >= lasts / 2 {
            half.get_or_insert((Instant::now(), bytes));
        }
    }
    let (since, before) = half.filter(|(_, before)| *before < bytes).unwrap_or((begun, 0));
    let bytes_per_s = (bytes - before) as f64 / since.elapsed().as_secs_f64();
    Ok(Reached { round_trip_s: round_trip.as_secs_f64(), bytes_per_s })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_gateway_is_reached_by_who_has_its_key_and_measured() {
        let key = LineKey::new();
        let port = listen(0, vec![(DomainId(1), key.clone())]).unwrap();
        let at = format!("127.0.0.1:{port}");
        let Reached { round_trip_s, bytes_per_s } = reach(&at, DomainId(1), &key).unwrap();
        assert!(round_trip_s > 0.0 && round_trip_s < 5.0, "{round_trip_s}");
        assert!(bytes_per_s > 0.0, "{bytes_per_s}");
        for (domain, key) in [(DomainId(1), LineKey::new()), (DomainId(2), key)] {
            let Unreached { fault, from } = reach(&at, domain, &key).unwrap_err();
            assert!(matches!(fault, Fault::Other(_)), "{fault:?}");
            assert_eq!(from, Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        }
        let taken = listen(port, vec![]).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn each_fault_of_the_way_is_told_from_others() {
        let fault = |at: &str| reach(at, DomainId(0), &LineKey::new()).unwrap_err().fault;
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(fault(&free.to_string()), Fault::Refused);
        assert!(matches!(fault("no-such-host.invalid:7411"), Fault::NoAddress(_)));
        // Another service: it says something that is no answer, and closes.
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = other.local_addr().unwrap().to_string();
        let serves = std::thread::spawn(move || {
            let (mut stream, _) = other.accept().unwrap();
            stream.write_all(b"SSH-2.0-x\r\n").unwrap();
        });
        assert!(matches!(fault(&at), Fault::Other(_) | Fault::Broken(_)));
        serves.join().unwrap();
    }
}
