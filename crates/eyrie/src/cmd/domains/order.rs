//! What the controller of another domain is told over its standard input: its part of the job and
//! the variables of the environment, and then how the job has ended, where that is to be told. Who
//! can read it can pretend to be the gateway of that domain. So it goes over ssh, or lies in a file
//! that only the user can read.

use anyhow::{bail, Context};
use eyrie_controller::hosts::Host;
use eyrie_controller::runtime::{InDomain, Ways};
use eyrie_interface::options::LaunchBy;
use eyrie_transport::frame;
use eyrie_wire::domains::Domains;
use eyrie_wire::formats::{MAGIC_LEN, ORDER};
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, Read, Write};

/// The part that a domain has in a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    pub domains: Domains,
    /// Names of the job and of its PMI key value space.
    pub job: String,
    pub kvsname: String,
    /// Its hosts; `None`: those of the allocation of Slurm that its controller runs in.
    pub hosts: Option<Vec<Host>>,
    pub spares: u32,
    pub launcher: Option<LaunchBy>,
    /// The host of its gateway, and the port at which that listens.
    pub gateway: String,
    pub port: u16,
    /// It joins a running job.
    pub joins: bool,
}

impl Part {
    /// The name of the domain.
    pub fn name(&self) -> &str {
        &self.domains.own().name
    }

    /// What the domain's controller is told of the domains. `gateway`: the node that its own
    /// gateway runs on.
    /// `ways`: to the sites of the others.
    pub fn in_domain(&self, gateway: NodeId, ways: Ways) -> InDomain {
        let Part { domains, kvsname, port, joins, .. } = self.clone();
        InDomain { domains, gateway, port, kvsname, ways, joins }
    }
}

/// What comes first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Order {
    pub part: Part,
    /// Variables of the environment, as ranks have them in all domains.
    pub environment: Vec<(OsString, OsString)>,
    /// More follows. When that breaks off, the command that has started the job is gone.
    pub is_watched: bool,
}

/// What follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Told {
    /// The job has ended where it was started: badly, which the gateways may not have said, or
    /// while this domain had no controller.
    Ended { code: i32 },
}

/// What two controllers must have in common.
pub fn this_version() -> String {
    format!("{}, protocol {}", env!("CARGO_PKG_VERSION"), eyrie_wire::VERSION)
}

/// Writes what comes first.
///
/// # Errors
/// The writer's.
pub fn write(out: &mut impl Write, order: &Order) -> io::Result<()> {
    out.write_all(&ORDER.magic)?;
    frame::write(out, &this_version())?;
    out.write_all(&frame::encode_long(order)?)
}

/// Reads what comes first.
///
/// # Errors
/// When it is no order, or one of another version.
pub fn read(from: &mut impl Read) -> anyhow::Result<Order> {
    let mut magic = [0; MAGIC_LEN];
    let none = "--domains - is what `eyrie run --domains FILE` starts at other sites: give a FILE";
    from.read_exact(&mut magic).context(none)?;
    if magic != ORDER.magic {
        bail!("{}", ORDER.mistaken(&magic).unwrap_or_else(|| none.into()));
    }
    let theirs: String = frame::read(from).context("the order of the domain is cut short")?;
    let ours = this_version();
    if theirs != ours {
        bail!("this is Eyrie {ours}, and the job is of Eyrie {theirs}: install that one here");
    }
    frame::read_long(from).context("the order of the domain is cut short")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use eyrie_wire::domains::{Domain, LineKey};
    use eyrie_wire::{DomainId, Rank};

    /// The part of the second of two domains.
    pub fn part() -> Part {
        let domain = |name: &str, rank| Domain {
            name: name.into(),
            ranks: vec![(Rank(rank), Rank(rank))],
            gateway: format!("{name}:7411"),
        };
        let all = vec![domain("home", 0), domain("cloud", 1)];
        Part {
            domains: Domains {
                own: DomainId(1),
                all,
                keys: vec![Some(LineKey::new()), None],
                shows: DomainId(0),
            },
            job: "job".into(),
            kvsname: "kvs".into(),
            hosts: None,
            spares: 1,
            launcher: Some(LaunchBy::Slurm),
            gateway: "gw".into(),
            port: 7411,
            joins: false,
        }
    }

    #[test]
    fn an_order_comes_as_it_was_and_other_bytes_are_refused() {
        let environment = vec![("A".into(), "b c".into())];
        let order = Order { part: part(), environment, is_watched: true };
        let mut bytes = Vec::new();
        write(&mut bytes, &order).unwrap();
        frame::write(&mut bytes, &Told::Ended { code: 15 }).unwrap();
        let mut input = &bytes[..];
        assert_eq!(read(&mut input).unwrap(), order);
        assert_eq!(frame::read::<Told>(&mut input).unwrap(), Told::Ended { code: 15 });
        let refused = |bytes: &[u8]| format!("{:#}", read(&mut { bytes }).unwrap_err());
        assert!(refused(b"").contains("give a FILE"));
        assert!(refused(b"[domain.home]\n").contains("give a FILE"));
        assert!(refused(b"EYRIEJNLxxxx").contains("it is the journal of a job"));
        assert!(refused(&bytes[..40]).contains("cut short"));
        let mut other = ORDER.magic.to_vec();
        frame::write(&mut other, &"0.0, protocol 1").unwrap();
        assert!(refused(&other).contains("the job is of Eyrie 0.0, protocol 1: install that one"));
    }
}
