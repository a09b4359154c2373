//! Finds out the network of hosts: the first of its sources that knows something counts.

use super::found::{names, Found, Sureness};
use super::measure::{self, Way};
use super::slurm;
use eyrie_topology::guess;

/// The network of these hosts. Without a way all nodes are on this host.
pub fn find(hosts: &[&str], way: Option<Way<'_>>) -> Found {
    let named = names(hosts.iter().copied());
    let Some(way) = way else {
        let source = "all nodes are on this host".into();
        return Found::conf(guess::flat(&named), source, Sureness::Unknown);
    };
    let mut notes = Vec::new();
    let mut found = slurm::look(&named, &mut notes);
    if found.is_none() {
        let by_names = guess::by_names(&named);
        found = by_names.map(|conf| {
            Found::conf(conf, "numbers of racks in the hosts' names".into(), Sureness::Guessed)
        });
    }
    let found = found.or_else(|| measure::look(hosts, &named, way, &mut notes));
    let flat = || {
        let source = "all hosts are taken to be as near to each other".into();
        Found::conf(guess::flat(&named), source, Sureness::Unknown)
    };
    Found { notes, ..found.unwrap_or_else(flat) }
}
