//! Which of the other hosts with roles this one reaches: a thread connects to each again and again.
//! It reports when a host that was reached is no longer reached, and when it is again. The
//! controller decides what that means. A host that was never reached is never reported: a firewall
//! may be in between.

use crate::background::{Background, Done};
use eyrie_wire::role_address::Addr;
use eyrie_wire::NodeId;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one attempt may take. Lost packets must not make a host unreachable.
const ATTEMPT: Duration = Duration::from_millis(500);
/// How long to wait after a failed attempt.
const AGAIN: Duration = Duration::from_millis(100);

/// The other hosts with roles to which this one connects.
#[derive(Default)]
pub struct Reach(BTreeMap<NodeId, Target>);

impl Reach {
    /// Connects to these hosts from now on, and to no others.
    pub fn watch(&mut self, hosts: Vec<(NodeId, Addr)>, within: Duration, reports: &Background) {
        let tcp = |(node, addr): (NodeId, Addr)| match addr {
            Addr::Tcp { at, .. } => Some((node, at)),
            Addr::Unix(_) => None,
        };
        let hosts: Vec<(NodeId, SocketAddr)> = hosts.into_iter().filter_map(tcp).collect();
        self.0.retain(|node, target| hosts.contains(&(*node, target.addr)));
        for (node, addr) in hosts {
            let reporter = reports.reporter();
            let report = move |reached| reporter.report(Done::Reached { node, reached });
            self.0.entry(node).or_insert_with(|| Target::new(addr, within, report));
        }
    }
}

/// A host that is connected to, until this is dropped.
struct Target {
    addr: SocketAddr,
    over: Arc<AtomicBool>,
}

impl Target {
    /// Connects to the host from now on. `report` is called with false when the host was reached
    /// before and has not been for `within`, and with true when it is again.
    fn new(addr: SocketAddr, within: Duration, report: impl Fn(bool) + Send + 'static) -> Target {
        let over = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&over);
        std::thread::spawn(move || watch(addr, within, &watched, report));
        Target { addr, over }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

/// Whether a host answers; a refused connection is an answer, too.
fn is_reached(addr: &SocketAddr) -> bool {
    match TcpStream::connect_timeout(addr, ATTEMPT) {
        Ok(_) => true,
        Err(e) => matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset),
    }
}

fn watch(addr: SocketAddr, within: Duration, over: &AtomicBool, report: impl Fn(bool)) {
    let mut last = None::<Instant>;
    let mut reached = true;
    while !over.load(Ordering::SeqCst) {
        if is_reached(&addr) {
            last = Some(Instant::now());
            if !std::mem::replace(&mut reached, true) {
                report(true);
            }
            std::thread::sleep(within / 4);
            continue;
        }
        let long = last.is_some_and(|last| last.elapsed() >= within);
        if long && std::mem::replace(&mut reached, false) {
            report(false);
        }
        std::thread::sleep(AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    #[test]
    fn a_host_that_refuses_is_reached_and_one_that_never_was_is_not_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        assert!(is_reached(&addr));
        drop(listener);
        assert!(is_reached(&addr), "its host refuses");
        let (sender, reports) = channel();
        let over = AtomicBool::new(false);
        // Nothing can be sent to this address: the connection fails at once.
        let nowhere = "0.0.0.0:0".parse().unwrap();
        let nothing_reported = std::thread::scope(|scope| {
            scope.spawn(|| {
                watch(nowhere, Duration::ZERO, &over, |at| sender.send(at).unwrap_or_default())
            });
            let waited = reports.recv_timeout(Duration::from_millis(500));
            over.store(true, Ordering::SeqCst);
            waited.is_err()
        });
        assert!(nothing_reported);
    }
}
