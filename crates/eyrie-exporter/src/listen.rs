//! Where to listen: loopback, unless users name an address.

use anyhow::Context;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

/// A host and port; a port alone is that of this machine's loopback.
///
/// # Errors
/// When it is not an address, or its name is unknown.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let text = match text.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => text.to_string(),
    };
    let mut found =
        text.to_socket_addrs().map_err(|e| format!("{text}: {e}; write PORT or HOST:PORT"))?;
    found.next().ok_or_else(|| format!("{text} has no address"))
}

/// Listens at an address that was given with this option.
///
/// # Errors
/// When that cannot be; says what to do.
pub fn bind(address: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).with_context(|| {
        format!(
            "cannot listen on {address}: choose another {option}, or end the process that uses it"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_loopback() {
        assert_eq!(address("9464").unwrap().to_string(), "127.0.0.1:9464");
        assert_eq!(address("0.0.0.0:1").unwrap().to_string(), "0.0.0.0:1");
        assert!(address("x").unwrap_err().contains("HOST:PORT"));
    }

    #[test]
    fn an_address_that_is_taken_is_refused_with_the_remedy() {
        let taken = bind(address("0").unwrap(), "--listen").unwrap();
        let again = bind(taken.local_addr().unwrap(), "--metrics").unwrap_err();
        assert!(format!("{again:#}").contains("choose another --metrics"), "{again:#}");
    }
}
