//! A network of its own between two nodes, with a rate, where that is asked for: each node in a
//! network namespace, a cable between them. Needs root; nothing of the machine's own network is
//! touched, and all of it is gone with the nodes.

use anyhow::{ensure, Context};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::ppmr::process::Part;

/// Addresses of source and target there.
pub const ADDRESSES: [&str; 2] = ["10.75.0.1", "10.75.0.2"];
const DEVICE: &str = "eyrie0";

/// The process is to have a network of its own.
pub fn apart(command: &mut Command) {
    // SAFETY: one system call.
    unsafe {
        command.pre_exec(|| match libc::unshare(libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
}

/// Connects two nodes that are apart, each sending at most at `rate`, in the words of tc (1gbit).
///
/// # Errors
/// What `ip` and `tc` say.
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
