//! Which other hosts this one reaches: those that have roles are connected to, again and again. The
//! controller hears when one that was reached is not any more, and when it is again; it decides
//! what that means. A host that was never reached is never told of: a firewall may be in between.

use crate::node::{Agent, Done};
use eyrie_transport::Addr;
use eyrie_wire::control::FromAgent;
use eyrie_wire::Node;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one attempt may take: packets that are lost must not make a host unreachable.
const ATTEMPT: Duration = Duration::from_millis(500);
/// How long to wait after one that failed.
const AGAIN: Duration = Duration::from_millis(100);

/// A host that is connected to, until this is dropped.
pub struct Target {
    addr: SocketAddr,
    over: Arc<AtomicBool>,
}

impl Drop for Target {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

/// Whether a host is there: also one that refuses the connection is.
fn is_reached(addr: &SocketAddr) -> bool {
    match TcpStream::connect_timeout(addr, ATTEMPT) {
        Ok(_) => true,
        Err(e) => matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset),
    }
}

/// Connects again and again; `tell` is called when a host that was reached has not been for
/// `within`, and when it is again.
fn watch(addr: SocketAddr, within: Duration, over: &AtomicBool, tell: impl Fn(bool)) {
    let (mut last, mut reached) = (None::<Instant>, true);
    while !over.load(Ordering::SeqCst) {
        if is_reached(&addr) {
            last = Some(Instant::now());
            if !std::mem::replace(&mut reached, true) {
                tell(true);
            }
            std::thread::sleep(within / 4);
            continue;
        }
        let long = last.is_some_and(|last| last.elapsed() >= within);
        if long && std::mem::replace(&mut reached, false) {
            tell(false);
        }
        std::thread::sleep(AGAIN);
    }
}

impl Agent {
    /// These hosts are connected to from now on, and no others.
    pub fn watch_hosts(&mut self, hosts: Vec<(Node, String)>, within: Duration) {
        let tcp = |(node, addr): (Node, String)| match addr.parse() {
            Ok(Addr::Tcp { at, .. }) => Some((node, at)),
            _ => None,
        };
        let hosts: Vec<(Node, SocketAddr)> = hosts.into_iter().filter_map(tcp).collect();
        self.watched.retain(|node, target| hosts.contains(&(*node, target.addr)));
        for (node, addr) in hosts {
            if self.watched.contains_key(&node) {
                continue;
            }
            let over = Arc::new(AtomicBool::new(false));
            self.watched.insert(node, Target { addr, over: Arc::clone(&over) });
            let (done, waker) = (self.done.0.clone(), Arc::clone(&self.waker));
            std::thread::spawn(move || {
                watch(addr, within, &over, |reached| {
                    crate::orphan::tell(&done, &waker, Done::Reached { node, reached });
                });
            });
        }
    }

    /// Another host is reached again, or not any more.
    pub fn host_reached(&mut self, node: Node, reached: bool) {
        self.connection.send(&FromAgent::Reached { node, reached });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    #[test]
    fn a_host_that_refuses_is_there_and_one_that_was_never_reached_is_not_told_of() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        assert!(is_reached(&addr));
        drop(listener);
        assert!(is_reached(&addr), "its host refuses");
        let (told, tells) = channel();
        let over = AtomicBool::new(false);
        // Nothing can be sent to this address: the connection fails at once.
        let nowhere = "0.0.0.0:0".parse().unwrap();
        let nothing_told = std::thread::scope(|scope| {
            scope.spawn(|| watch(nowhere, Duration::ZERO, &over, |at| drop(told.send(at))));
            let waited = tells.recv_timeout(Duration::from_millis(500));
            over.store(true, Ordering::SeqCst);
            waited.is_err()
        });
        assert!(nothing_told);
    }
}
