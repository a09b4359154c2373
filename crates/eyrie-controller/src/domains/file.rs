//! The file of domains: a table of TOML for each, in the order in which they get ranks. Every fault
//! is one line that names the line or the domain, and says what to write.

use crate::hosts::{self, Host};
use eyrie_interface::options::LaunchBy;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Longest name of a domain in bytes.
const MAX_NAME: usize = 32;
/// Most ranks that the file may name.
const MAX_RANK: u32 = 1 << 20;

/// A domain, as the file has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InFile {
    pub name: String,
    pub hosts: From,
    /// Hosts at the end of the list that no rank starts on, where that was said.
    pub spares: Option<u32>,
    pub launcher: Option<LaunchBy>,
    pub gateway: GatewayAt,
    pub via: Via,
    /// Its ranks, where they were said.
    pub ranks: Option<Vec<u32>>,
}

/// Where the hosts of a domain stand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum From {
    List(Vec<Host>),
    /// A file of hosts; a relative path begins where the file of domains is.
    File(PathBuf),
    /// They are those of the allocation of Slurm that the domain's controller runs in.
    Slurm,
}

/// Where the gateway of a domain is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatewayAt {
    /// The host that it runs on, as the domain's launcher is told it.
    pub host: String,
    /// `HOST:PORT` by which other domains reach it.
    pub address: String,
    /// The port at which it listens.
    pub port: u16,
}

/// How the controller of a domain is started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Via {
    /// It is the process that reads the file.
    Here,
    /// Over ssh, at this destination.
    Ssh(String),
    /// The user does it, by the line that is shown.
    Manual,
}

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    domain: InOrder,
}

/// Tables in the order of the file, which decides who gets the first ranks.
#[derive(Default)]
struct InOrder(Vec<(String, Table)>);

impl<'de> Deserialize<'de> for InOrder {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<InOrder, D::Error> {
        struct Tables;
        impl<'de> Visitor<'de> for Tables {
            type Value = InOrder;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a table [domain.NAME] for each domain")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InOrder, A::Error> {
                let mut tables = Vec::new();
                while let Some(table) = map.next_entry()? {
                    tables.push(table);
                }
                Ok(InOrder(tables))
            }
        }
        from.deserialize_map(Tables)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    hosts: Option<String>,
    hostfile: Option<PathBuf>,
    #[serde(default)]
    slurm: bool,
    spares: Option<u32>,
    launcher: Option<LaunchBy>,
    gateway: Option<GatewayTable>,
    via: Option<String>,
    ranks: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GatewayTable {
    host: String,
    address: String,
    port: Option<u16>,
}

/// Reads the file of domains.
///
/// # Errors
/// Names the first fault, and what to write.
pub fn parse(text: &str) -> Result<Vec<InFile>, String> {
    let domains = parse_some(text)?;
    if domains.len() == 1 {
        return Err("it has one domain only: add another one, or give --hosts alone".into());
    }
    check_here(&domains)?;
    Ok(domains)
}

/// Reads a file that need not have all domains of a job.
///
/// # Errors
/// Names the first fault, and what to write.
pub fn parse_some(text: &str) -> Result<Vec<InFile>, String> {
    let Text { domain: InOrder(tables) } =
        toml::from_str(text).map_err(|e| in_one_line(text, &e))?;
    if tables.is_empty() {
        return Err("it names no domain: write a table [domain.NAME] for each".into());
    }
    let mut domains = Vec::new();
    for (name, table) in tables {
        let is_first = domains.is_empty();
        let read = domain(&name, table, is_first);
        domains.push(read.map_err(|e| format!("domain {name}: {e}"))?);
    }
    check_addresses(&domains)?;
    Ok(domains)
}

/// What the reader of TOML says, with the line.
fn in_one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    let before = error.span().and_then(|span| text.get(..span.start));
    match before.map(|before| before.matches('\n').count() + 1) {
        Some(line) => format!("line {line}: {message}"),
        None => message,
    }
}

/// A domain, looked at alone.
fn domain(name: &str, table: Table, is_first: bool) -> Result<InFile, String> {
    check_name(name)?;
    let from = match (table.hosts, table.hostfile, table.slurm) {
        (Some(list), None, false) => {
            From::List(hosts::parse_list(&list).map_err(|e| format!("hosts: {e}"))?)
        }
        (None, Some(file), false) => From::File(file),
        (None, None, true) => From::Slurm,
        (None, None, false) => {
            return Err("it has no hosts: add hosts = \"a:4,b:4\", hostfile or slurm = true".into())
        }
        _ => return Err("of hosts, hostfile and slurm it has more than one: leave one".into()),
    };
    let gateway = table.gateway.ok_or(
        "it has no gateway: add gateway = { host = \"HOST\", address = \"HOST:PORT\" }, the host \
         that other domains can reach",
    )?;
    Ok(InFile {
        name: name.into(),
        hosts: from,
        spares: table.spares,
        launcher: table.launcher,
        gateway: gateway_at(gateway)?,
        via: via(table.via, is_first)?,
        ranks: table.ranks.map(|text| ranks(&text)).transpose()?,
    })
}

fn check_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= MAX_NAME && name.chars().all(good) {
        return Ok(());
    }
    Err(format!(
        "that is no name for a domain: use up to {MAX_NAME} letters, digits, - and _, a letter or \
         a digit first"
    ))
}

fn gateway_at(table: GatewayTable) -> Result<GatewayAt, String> {
    let GatewayTable { host, address, port } = table;
    let one = hosts::parse_list(&host).map_err(|e| format!("the gateway's host: {e}"))?;
    match one.as_slice() {
        [Host { slots: None, .. }] => {}
        _ => return Err(format!("the gateway's host is {host:?}: write the name of one host")),
    }
    let seen = port_of(&address).ok_or_else(|| {
        format!(
            "the gateway's address is {address:?}: write HOST:PORT or [ADDRESS]:PORT, the port \
             that other domains may connect to"
        )
    })?;
    let port = port.unwrap_or(seen);
    if port == 0 {
        return Err("the gateway's port is 0: write the one at which it is to listen".into());
    }
    let name = one.into_iter().map(|host| host.name).collect();
    Ok(GatewayAt { host: name, address, port })
}

/// The port of `HOST:PORT` or `[ADDRESS]:PORT`.
fn port_of(address: &str) -> Option<u16> {
    let (host, port) = address.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_good = match bare {
        Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let letters = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            !host.is_empty() && !host.starts_with('-') && host.chars().all(letters)
        }
    };
    port.parse().ok().filter(|port| is_good && *port != 0)
}

fn via(text: Option<String>, is_first: bool) -> Result<Via, String> {
    match text.as_deref() {
        None if is_first => Ok(Via::Here),
        Some("here") => Ok(Via::Here),
        Some("manual") => Ok(Via::Manual),
        Some(bad)
            if bad.is_empty() || bad.starts_with('-') || bad.contains(char::is_whitespace) =>
        {
            Err(format!("via is {bad:?}: write an ssh destination like \"login.site\""))
        }
        Some(destination) => Ok(Via::Ssh(destination.into())),
        None => Err("it has no via: add via = \"SSH DESTINATION\" of its login node, or via = \
                     \"manual\" to start it there yourself"
            .into()),
    }
}

/// Reads `0-7,12`.
fn ranks(text: &str) -> Result<Vec<u32>, String> {
    let bad = |part: &str| {
        format!("ranks: {part:?} is no rank and no range of ranks: write it like \"0-7,12\"")
    };
    let number = |text: &str, part: &str| match text.trim().parse() {
        Ok(rank) if rank < MAX_RANK => Ok(rank),
        _ => Err(bad(part)),
    };
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = number(first, part)?;
        let last = number(last, part)?;
        if last < first {
            return Err(bad(part));
        }
        all.extend(first..=last);
    }
    all.sort_unstable();
    match all.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(format!("ranks: rank {} comes twice: name it once", two[0])),
        None => Ok(all),
    }
}

/// One domain is that of the command.
fn check_here(domains: &[InFile]) -> Result<(), String> {
    let here: Vec<&str> =
        domains.iter().filter(|d| d.via == Via::Here).map(|d| d.name.as_str()).collect();
    match here.as_slice() {
        [] => {
            Err("no domain is the one that this command runs in: write via = \"here\" in it".into())
        }
        [_] => Ok(()),
        [first, second, ..] => Err(format!(
            "domains {first} and {second} both have via = \"here\": this command runs in one only; \
             write the ssh destination of the other one"
        )),
    }
}

/// Each gateway has an address of its own.
fn check_addresses(domains: &[InFile]) -> Result<(), String> {
    let mut addresses = BTreeMap::new();
    for domain in domains {
        let address = &domain.gateway.address;
        if let Some(other) = addresses.insert(address, &domain.name) {
            return Err(format!(
                "domains {other} and {} have the same gateway address {address}: each has one of \
                 its own",
                domain.name
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO: &str = r#"
        [domain.zoo]
        hosts = "n[0-1]:2"
        spares = 1
        gateway = { host = "gw1", address = "203.0.113.7:7411" }
        [domain.cloud]
        hostfile = "cloud.hosts"
        launcher = "manual"
        via = "me@login.cloud"
        ranks = "0-2,5"
        gateway = { host = "head", address = "[2001:db8::9]:7411", port = 7000 }
    "#;

    #[test]
    fn domains_come_in_the_order_of_the_file() {
        let domains = parse(TWO).unwrap();
        let gateway = |host: &str, address: &str, port| GatewayAt {
            host: host.into(),
            address: address.into(),
            port,
        };
        let zoo = InFile {
            name: "zoo".into(),
            hosts: From::List(hosts::parse_list("n0:2,n1:2").unwrap()),
            spares: Some(1),
            launcher: None,
            gateway: gateway("gw1", "203.0.113.7:7411", 7411),
            via: Via::Here,
            ranks: None,
        };
        let cloud = InFile {
            name: "cloud".into(),
            hosts: From::File("cloud.hosts".into()),
            spares: None,
            launcher: Some(LaunchBy::Manual),
            gateway: gateway("head", "[2001:db8::9]:7411", 7000),
            via: Via::Ssh("me@login.cloud".into()),
            ranks: Some(vec![0, 1, 2, 5]),
        };
        assert_eq!(domains, [zoo, cloud]);
    }

    /// The file with one thing changed.
    fn changed(from: &str, to: &str) -> String {
        assert!(TWO.contains(from), "{from}");
        TWO.replacen(from, to, 1)
    }

    #[test]
    fn bad_input_is_refused_in_one_line_with_the_remedy() {
        let first_gateway = r#"gateway = { host = "gw1", address = "203.0.113.7:7411" }"#;
        for (text, fault) in [
            (String::new(), "it names no domain: write a table [domain.NAME]"),
            (TWO.split("[domain.cloud]").next().unwrap().into(), "one domain only: add another"),
            (changed("[domain.zoo]", "[domains.zoo]"), "line 2: unknown field `domains`"),
            (changed("spares", "spare"), "line 4: unknown field `spare`, expected one of"),
            (changed("host = \"gw1\"", "hots = \"gw1\""), "line 5: unknown field `hots`"),
            (changed("spares = 1", "spares = -1"), "line 4: invalid value: integer `-1`"),
            (changed("spares = 1", "spares ="), "line 4: "),
            (
                changed("\"manual\"\n", "\"rsh\"\n"),
                "line 8: unknown variant `rsh`, expected one of",
            ),
            (changed(first_gateway, ""), "domain zoo: it has no gateway: add gateway = { host"),
            (changed("7:7411", "7"), "domain zoo: the gateway's address is \"203.0.113.7\": write"),
            (changed("7:7411", "7:x"), "write HOST:PORT or [ADDRESS]:PORT"),
            (changed("7:7411", "7:0"), "write HOST:PORT or [ADDRESS]:PORT"),
            (changed("[2001:db8::9]", "2001:db8::9"), "write HOST:PORT or [ADDRESS]:PORT"),
            (changed("7000", "0"), "domain cloud: the gateway's port is 0"),
            (changed("\"gw1\"", "\"gw[1-2]\""), "write the name of one host"),
            (changed("\"gw1\"", "\"gw1:4\""), "write the name of one host"),
            (changed("hosts = \"n[0-1]:2\"", ""), "domain zoo: it has no hosts: add hosts ="),
            (changed("spares = 1", "slurm = true"), "of hosts, hostfile and slurm it has more"),
            (changed("n[0-1]:2", "n[0-1]:0"), "domain zoo: hosts: \"0\" is no number of slots"),
            (changed("via = \"me@login.cloud\"", ""), "domain cloud: it has no via: add via ="),
            (changed("me@login.cloud", "-oProxyCommand=x"), "write an ssh destination"),
            (changed("me@login.cloud", "here"), "domains zoo and cloud both have via = \"here\""),
            (
                changed("spares = 1", "via = \"a\""),
                "no domain is the one that this command runs in",
            ),
            (changed("[2001:db8::9]:7411", "203.0.113.7:7411"), "have the same gateway address"),
            (changed("0-2,5", "0-2,x"), "domain cloud: ranks: \"x\" is no rank"),
            (changed("0-2,5", "2-0"), "ranks: \"2-0\" is no rank"),
            (changed("0-2,5", "0-4000000000"), "is no rank"),
            (changed("0-2,5", "0-2,1"), "domain cloud: ranks: rank 1 comes twice"),
            (changed("[domain.zoo]", "[domain.\"a b\"]"), "that is no name for a domain: use up"),
            (changed("[domain.cloud]", "[domain.zoo]"), "line 6: duplicate key"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(fault), "{error}\ninstead of\n{fault}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_does_harm(text in ".{0,200}", at in 0..TWO.len(), piece in "[ -~]{0,8}") {
            let _ = parse(&text);
            let mut text = TWO.to_string();
            text.insert_str(at, &piece);
            if let Err(e) = parse(&text) {
                prop_assert!(!e.contains('\n'), "{}", e);
            }
        }
    }
}
