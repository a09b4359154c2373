//! Measurements that the controller asks for: what is used on this node for some time.

use crate::measure::{counts, Measuring};
use crate::node::Agent;
use eyrie_wire::control::FromAgent;
use std::time::{Duration, Instant};

impl Agent {
    /// Begins a measurement.
    pub fn measure(&mut self, n: u64, over: Duration) {
        let begun = Instant::now();
        let first = counts(self.processes.values());
        self.measuring.push(Measuring { n, begun, over, first });
    }

    /// Ends the measurements whose time is over.
    pub fn watch_measurements(&mut self) {
        let now = Instant::now();
        let (over, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.measuring)
            .into_iter()
            .partition(|measuring| now >= measuring.until());
        self.measuring = rest;
        for Measuring { n, begun, first, .. } in over {
            let used = first.until(counts(self.processes.values()), begun.elapsed());
            self.connection.send(&FromAgent::Measured { n, used });
        }
    }
}
