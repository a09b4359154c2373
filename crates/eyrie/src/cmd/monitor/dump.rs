//! `eyrie monitor dump`: the ring of a running monitor.

use super::sockets;
use anyhow::bail;
use clap::Args;
use eyrie_cli::out::Output;
use eyrie_monitor::watch::client::{get, living, socket, Place};
use std::io::Write;

/// Write the ring of recent samples of a running monitor, as JSON lines.
///
/// Without --from or --pid, of the only monitor that this user runs on this node. It goes on
/// undisturbed.
#[derive(Args)]
pub struct DumpArgs {
    /// Of the monitor that listens there
    #[arg(long, value_name = "HOST:PORT")]
    from: Option<String>,
    /// Of the monitor with this process number
    #[arg(long, conflicts_with = "from")]
    pid: Option<u32>,
    /// The newest sample only
    #[arg(long)]
    latest: bool,
}

pub fn run(args: &DumpArgs) -> anyhow::Result<i32> {
    let place = match (&args.from, args.pid) {
        (Some(address), _) => Place::Port(address.clone()),
        (None, Some(pid)) => Place::Socket(socket(&sockets()?, pid)),
        (None, None) => {
            let base = sockets()?;
            match living(&base)[..] {
                [pid] => Place::Socket(socket(&base, pid)),
                [] => bail!("no monitor of yours runs here: start one with `eyrie monitor`, or say --from HOST:PORT"),
                ref several => {
                    let list: Vec<String> = several.iter().map(u32::to_string).collect();
                    bail!("several monitors run here: choose with --pid one of {}", list.join(", "))
                }
            }
        }
    };
    get(&place, if args.latest { "/sample" } else { "/ring" }, &mut Output)?;
    Output.flush()?;
    Ok(0)
}
