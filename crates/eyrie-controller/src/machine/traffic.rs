//! What the ranks of a job send each other, as it was measured: the placement asks for it on a
//! known network. Decides nothing.

use eyrie_placement::traffic::{within_bounds, RankMessage};
use eyrie_wire::traffic::PairSent;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What pairs of ranks have sent each other in some time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MeasuredTraffic {
    pub over: Duration,
    /// Those that have sent something.
    pub pairs: Vec<PairSent>,
}

impl MeasuredTraffic {
    /// The same as the planner takes it.
    pub fn messages(&self) -> Vec<RankMessage> {
        let pair = |p: &PairSent| (p.from.0, p.to.0, p.sent.messages, p.sent.bytes);
        within_bounds(self.pairs.iter().map(pair)).0
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.pairs.iter().map(|p| p.sent.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Config, Event, Machine};
    use eyrie_wire::traffic::Sent;
    use eyrie_wire::Rank;

    #[test]
    fn another_controller_knows_what_was_measured() {
        let mut machine = Machine::new(Config::of_one_rank());
        let sent = Sent { messages: 3, bytes: 4 };
        let pairs = vec![PairSent { from: Rank(0), to: Rank(1), sent }];
        let traffic = MeasuredTraffic { over: Duration::from_secs(10), pairs };
        machine.handle(Duration::ZERO, Event::Traffic(traffic.clone()));
        let mut other = Machine::new(Config::of_one_rank());
        other.restore(&machine.snapshot().unwrap()).unwrap();
        assert_eq!(other.traffic, traffic);
        assert_eq!((traffic.bytes(), traffic.messages()[0].count), (4, 3));
    }
}
