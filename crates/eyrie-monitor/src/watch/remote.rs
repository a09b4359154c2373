//! Monitors on other nodes, asked for their newest samples in turn.

use super::client::{self, Place};
use super::view::{NodeView, Rates, Seen};
use anyhow::Context;
use std::time::Duration;

/// Shortest time from one request to the next.
const SHORTEST: Duration = Duration::from_millis(50);

/// Monitors that listen at known addresses.
pub struct Remote {
    addresses: Vec<String>,
    rates: Rates,
    /// Moment of the newest sample of each.
    newest_ns: Vec<u64>,
}

/// The answers of all monitors.
pub struct Answers {
    pub nodes: Vec<NodeView>,
    /// At least one of them has a new sample.
    pub changed: bool,
    /// When to ask again.
    pub interval: Duration,
}

impl Remote {
    pub fn new(addresses: &[String]) -> Remote {
        let newest_ns = vec![0; addresses.len()];
        Remote { addresses: addresses.to_vec(), rates: Rates::default(), newest_ns }
    }

    /// Asks each of them.
    ///
    /// When a monitor does not answer with a sample.
    /// When one does not answer with a sample.
    pub fn ask(&mut self) -> anyhow::Result<Answers> {
        let mut nodes = Vec::new();
        let mut changed = false;
        let mut interval = Duration::from_millis(500);
        for (at, address) in self.addresses.iter().enumerate() {
            let mut text = Vec::new();
            client::get(&Place::Port(address.clone()), "/sample", &mut text)?;
            let line: serde_json::Value = serde_json::from_slice(&text)
                .with_context(|| format!("{address} gave no sample"))?;
            let mut seen = Seen::of_json(&line);
            // Nodes may have the same name.
            seen.node = format!("{} ({address})", seen.node);
            let own = Duration::from_nanos(line["interval_ns"].as_u64().unwrap_or(0));
            interval = own.max(SHORTEST);
            changed |= self.newest_ns[at] != seen.time_ns;
            self.newest_ns[at] = seen.time_ns;
            nodes.push(self.rates.take(at, seen));
        }
        Ok(Answers { nodes, changed, interval })
    }
}
