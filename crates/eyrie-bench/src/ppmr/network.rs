//! A network of their own between two nodes, with a rate: each node is in a network namespace, with
//! a virtual cable between them. It needs root. The machine's own network is not touched, and
//! everything is gone with the nodes.

use anyhow::{ensure, Context};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::ppmr::process::Part;

/// Addresses of source and target in that network.
pub const ADDRESSES: [&str; 2] = ["10.75.0.1", "10.75.0.2"];
const DEVICE: &str = "eyrie0";

/// Gives the process a network of its own.
pub fn apart(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
    unsafe {
        command.pre_exec(|| match libc::unshare(libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
}

/// Connects two such nodes, each sending at most at `rate`, as tc writes it (1gbit).
///
/// # Errors
/// The errors of `ip` and `tc`.
pub fn connect(nodes: [&Part; 2], rate: &str) -> anyhow::Result<()> {
    let [source, target] = nodes.map(|node| node.pid().to_string());
    let cable =
        [DEVICE, "netns", &source, "type", "veth", "peer", "name", DEVICE, "netns", &target];
    run(Command::new("ip").args(["link", "add"]).args(cable))?;
    for (pid, address) in [source, target].iter().zip(ADDRESSES) {
        let within = |program: &str, words: &str| {
            let enter = ["--target", pid, "--net", program];
            run(Command::new("nsenter").args(enter).args(words.split(' ')))
        };
        within("ip", &format!("addr add {address}/24 dev {DEVICE}"))?;
        within("ip", "link set lo up")?;
        within("ip", &format!("link set {DEVICE} up"))?;
        let shaped = format!("qdisc add dev {DEVICE} root tbf rate {rate} burst 1mb latency 50ms");
        within("tc", &shaped)?;
    }
    Ok(())
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let ran = command.output().with_context(|| format!("cannot run {program}"))?;
    let said = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "{program} failed: {}", said.trim());
    Ok(())
}
