//! The nodes of one domain: where its ranks start, and which of them is the gateway's. The host of
//! the gateway is a node of the job even where no rank may start on it.

use crate::hosts::{self, Host};
use eyrie_wire::{NodeId, Rank};
use std::collections::BTreeMap;

/// The nodes of a domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nodes {
    /// The spares last.
    pub hosts: Vec<Host>,
    /// For each rank of the job a node; for one of another domain the gateway's.
    pub start: Vec<NodeId>,
    pub spares: u32,
    /// The one that other domains reach.
    pub gateway: NodeId,
}

/// Places the ranks of a domain, in order, on its hosts. In one without ranks hosts that are no
/// spares wait for them.
///
/// # Errors
/// When there are too few hosts or slots.
pub fn nodes(
    mut hosts: Vec<Host>,
    spares: u32,
    own: &[Rank],
    ranks: u32,
    gateway: &str,
) -> Result<Nodes, String> {
    let mut start = hosts::start(&hosts, spares, Some(own.len() as u32))?;
    if own.is_empty() {
        start.spares = spares;
    }
    let place = |name: &str| place(name).to_string();
    let at = match hosts.iter().position(|host| place(&host.name) == place(gateway)) {
        Some(at) => at,
        None => {
            // No rank may start there, and it is no spare.
            let at = hosts.len() - start.spares as usize;
            hosts.insert(at, Host { name: gateway.into(), slots: Some(0) });
            at
        }
    };
    let gateway = NodeId(at as u32);
    let mut all = vec![gateway; ranks as usize];
    for (rank, node) in own.iter().zip(start.nodes) {
        all[rank.index()] = node;
    }
    Ok(Nodes { hosts, start: all, spares: start.spares, gateway })
}

/// The host of `USER@HOST`.
pub fn place(name: &str) -> &str {
    name.rsplit('@').next().unwrap_or(name)
}

/// Refuses a host that is in two domains. Each entry: the name of a domain, its hosts, and the host
/// of its gateway.
///
/// # Errors
/// Names the host, and both domains.
pub fn check_apart<'a>(
    domains: impl IntoIterator<Item = (&'a str, &'a [Host], &'a str)>,
) -> Result<(), String> {
    let mut domain_of = BTreeMap::new();
    for (domain, hosts, gateway) in domains {
        for host in hosts.iter().map(|host| host.name.as_str()).chain([gateway]) {
            match domain_of.insert(place(host), domain) {
                Some(other) if other != domain => {
                    return Err(format!(
                        "host {host} is in two domains, {other} and {domain}: take it out of one, \
                         or write other names for two hosts that are called the same"
                    ))
                }
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &str, spares: u32, own: &[u32], gateway: &str) -> Result<Nodes, String> {
        let own: Vec<Rank> = own.iter().copied().map(Rank).collect();
        nodes(hosts::parse_list(list).unwrap(), spares, &own, 6, gateway)
    }

    #[test]
    fn the_gateway_is_one_of_the_hosts_or_one_more_in_front_of_the_spares() {
        let at = |nodes: &[u32]| nodes.iter().copied().map(NodeId).collect::<Vec<_>>();
        let among = of("a:2,me@b:2,c:2", 1, &[1, 2, 4], "b").unwrap();
        assert_eq!((among.gateway, among.spares, among.hosts.len()), (NodeId(1), 1, 3));
        assert_eq!(among.start, at(&[1, 0, 0, 1, 1, 1]));
        let besides = of("a:2,b:2,c:2", 1, &[1, 2, 4], "gw").unwrap();
        assert_eq!((besides.gateway, besides.spares), (NodeId(2), 1));
        assert_eq!(besides.start, at(&[2, 0, 0, 2, 1, 2]));
        assert_eq!(besides.hosts[2], Host { name: "gw".into(), slots: Some(0) });
        assert_eq!(besides.hosts[3].name, "c");
        assert!(of("a:2", 0, &[0, 1, 2], "a").unwrap_err().contains("do not fit"));
        let without = of("a:2,b:2,c:2", 1, &[], "gw").unwrap();
        assert_eq!((without.gateway, without.spares), (NodeId(2), 1));
        assert_eq!(without.start, at(&[2; 6]));
    }

    #[test]
    fn a_host_is_in_one_domain() {
        let lists: Vec<Vec<Host>> =
            ["a,b", "c,b", "d"].map(|list| hosts::parse_list(list).unwrap()).into();
        let check = |domains: &[(&str, usize, &str)]| {
            check_apart(domains.iter().map(|(name, list, gw)| (*name, &lists[*list][..], *gw)))
        };
        assert_eq!(check(&[("x", 0, "a"), ("y", 2, "gw")]), Ok(()));
        let error = check(&[("x", 0, "a"), ("y", 1, "gw")]).unwrap_err();
        assert!(error.contains("host b is in two domains, x and y"), "{error}");
        let error = check(&[("x", 0, "gw"), ("y", 2, "me@gw")]).unwrap_err();
        assert!(error.contains("host me@gw is in two domains, x and y"), "{error}");
    }
}
