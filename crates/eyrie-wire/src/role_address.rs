//! Where a role is reached, and where it is asked to listen. An address is data: the role that
//! listens reports it, and the others receive it. No part of the code constructs one.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// An address that can be connected to. As text: `unix:PATH` or `tcp:IP:PORT`; with
/// `tcp-authenticated` or `tcp-off` instead of `tcp`, where connections are not encrypted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Addr {
    /// A Unix socket on the same host.
    Unix(PathBuf),
    Tcp {
        at: SocketAddr,
        /// How connections to it are protected.
        security: Security,
    },
}

/// The beginnings of TCP addresses.
const TCP: [(&str, Security); 3] = [
    ("tcp", Security::Encrypted),
    ("tcp-authenticated", Security::Authenticated),
    ("tcp-off", Security::Off),
];

impl std::fmt::Display for Addr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Addr::Unix(path) => write!(f, "unix:{}", path.display()),
            Addr::Tcp { at, security } => {
                let (begin, _) = TCP.iter().find(|(_, s)| s == security).expect("all are there");
                write!(f, "{begin}:{at}")
            }
        }
    }
}

impl std::str::FromStr for Addr {
    type Err = String;

    fn from_str(text: &str) -> Result<Addr, String> {
        let neither = || format!("{text:?} is neither unix:PATH nor tcp:IP:PORT");
        let (begin, rest) = text.split_once(':').ok_or_else(neither)?;
        if begin == "unix" && !rest.is_empty() {
            return Ok(Addr::Unix(rest.into()));
        }
        let (_, security) = *TCP.iter().find(|(tcp, _)| *tcp == begin).ok_or_else(neither)?;
        let at = rest.parse().map_err(|_| format!("{rest:?} is not IP:PORT"))?;
        Ok(Addr::Tcp { at, security })
    }
}

/// Where a role is asked to listen. The role says where it then listens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Bind {
    Unix(PathBuf),
    Tcp { interface: Interface, ports: Ports, security: Security },
}

impl std::fmt::Display for Bind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bind::Unix(path) => path.display().fmt(f),
            Bind::Tcp { interface, ports: Ports::ANY, .. } => write!(f, "{interface}"),
            Bind::Tcp { interface, ports, .. } => write!(f, "{interface}, ports {ports}"),
        }
    }
}

/// The TCP ports that a role may listen at, both ends included. As text: `FIRST-LAST`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// Any port that the kernel chooses.
    pub const ANY: Ports = Ports { first: 0, last: 0 };

    /// The ports, in the order in which they are tried.
    pub fn each(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }
}

impl std::fmt::Display for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl std::str::FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Ports, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Ports { first, last }),
            _ => Err("ports are FIRST-LAST, between 1 and 65535".into()),
        }
    }
}

/// An interface as users name it: by its IP address or by its name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Interface {
    Ip(IpAddr),
    /// As `ip link` shows it; the name may have another address on each host.
    Name(String),
}

impl Interface {
    /// The interface that other hosts cannot reach.
    pub const LOOPBACK: Interface = Interface::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
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

/// How a connection between hosts is protected. Both sides prove themselves in any case.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Security {
    /// Others can neither read nor change it
    #[default]
    Encrypted = 0,
    /// Others can read it, and not change it
    Authenticated = 1,
    /// Others can read and change it
    Off = 2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_as_text_and_other_texts_are_refused() {
        for text in ["unix:/a:b.sock", "tcp:127.0.0.1:4000", "tcp-off:[fe80::1]:65535"] {
            assert_eq!(text.parse::<Addr>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "/a", "tcp:host:1", "tcp:1.2.3.4", "tcp:1.2.3.4:65536", "udp:x"] {
            assert!(text.parse::<Addr>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn ports_are_a_range_that_is_not_empty() {
        assert_eq!("7-9".parse::<Ports>().unwrap().each().collect::<Vec<_>>(), [7, 8, 9]);
        assert_eq!("7".parse::<Ports>().unwrap().to_string(), "7-7");
        for text in ["", "0-3", "9-7", "1-65536", "a-b", "-", "1-2-3"] {
            assert!(text.parse::<Ports>().is_err(), "{text:?}");
        }
    }
    #[test]
    fn an_interface_is_an_address_or_a_name() {
        let loopback = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);
        assert_eq!("::1".parse(), Ok(Interface::Ip(loopback)));
        assert_eq!("eth0".parse(), Ok(Interface::Name("eth0".into())));
        assert!("".parse::<Interface>().is_err());
    }
}
