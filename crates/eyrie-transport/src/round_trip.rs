//! The time that a connection's packets take, as the kernel's TCP has measured it.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Where `tcpi_min_rtt` is in `struct tcp_info` of linux/tcp.h, bytes; its unit is a microsecond.
/// It is there since Linux 4.6, and the structure has only grown since.
const MIN_RTT: usize = 148;
const LEN: usize = MIN_RTT + 4;

/// The shortest time to and fro of the last minutes. Answers that the other side may have delayed
/// do not count. `None`: it was not measured, or the socket is not TCP's.
pub fn round_trip(socket: &impl AsFd) -> Option<Duration> {
    let mut info = [0u8; LEN];
    let mut len = LEN as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes, as many as `info` has, during the call, and
    // both are this function's own. The descriptor is open because `socket` is borrowed.
    let got = unsafe {
        let info = info.as_mut_ptr().cast();
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info, &raw mut len)
    };
    if got != 0 || (len as usize) < LEN {
        return None;
    }
    let us = u32::from_ne_bytes(*info[MIN_RTT..].first_chunk()?);
    (us != 0 && us != u32::MAX).then(|| Duration::from_micros(us.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn it_is_known_of_tcp_once_something_was_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let mut byte = [0];
        one.write_all(b"x").unwrap();
        other.read_exact(&mut byte).unwrap();
        other.write_all(b"y").unwrap();
        one.read_exact(&mut byte).unwrap();
        let took = round_trip(&one).unwrap();
        assert!(took > Duration::ZERO && took < Duration::from_secs(60), "{took:?}");
        let (unix, _other) = UnixStream::pair().unwrap();
        assert_eq!(round_trip(&unix), None);
    }
}
