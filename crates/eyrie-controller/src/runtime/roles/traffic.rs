//! What the ranks of a job have sent each other, as routers have told it. What is known of a pair
//! only grows, whichever router tells it: a lost router takes nothing away, and no message counts
//! twice.

use eyrie_wire::traffic::PairSent;
use eyrie_wire::Rank;
use std::cmp::Ordering;

/// What is known of all pairs that have sent something, by sender and then receiver.
#[derive(Clone, Debug, Default)]
pub struct Traffic(Vec<PairSent>);

fn pair(of: &PairSent) -> (Rank, Rank) {
    (of.from, of.to)
}

impl Traffic {
    /// A router has told what it knows, in any order.
    pub fn add(&mut self, mut told: Vec<PairSent>) {
        told.sort_unstable_by_key(pair);
        let mut all = Vec::with_capacity(self.0.len().max(told.len()));
        let mut known = std::mem::take(&mut self.0).into_iter().peekable();
        let mut told = told.into_iter().peekable();
        loop {
            let order = match (known.peek(), told.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => pair(a).cmp(&pair(b)),
            };
            match order {
                Ordering::Less => all.extend(known.next()),
                Ordering::Greater => all.extend(told.next()),
                Ordering::Equal => {
                    let both = known.next().zip(told.next());
                    all.extend(both.map(|(a, b)| PairSent { sent: a.sent.max(b.sent), ..a }));
                }
            }
        }
        self.0 = all;
    }

    /// What was sent since `before`, by the pairs that have sent something.
    pub fn since(&self, before: &Traffic) -> Vec<PairSent> {
        let mut known = before.0.iter().peekable();
        let since = |now: &PairSent| {
            while known.next_if(|known| pair(known) < pair(now)).is_some() {}
            let before = known.next_if(|known| pair(known) == pair(now));
            PairSent { sent: now.sent.since(before.map_or(Default::default(), |b| b.sent)), ..*now }
        };
        self.0.iter().map(since).filter(|pair| pair.sent.messages > 0).collect()
    }

    /// All of it.
    pub fn pairs(&self) -> &[PairSent] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::traffic::Sent;

    fn sent(from: u32, to: u32, messages: u64, bytes: u64) -> PairSent {
        PairSent { from: Rank(from), to: Rank(to), sent: Sent { messages, bytes } }
    }

    #[test]
    fn what_several_routers_know_of_a_pair_counts_once_and_what_one_does_not_know_stays() {
        let mut traffic = Traffic::default();
        traffic.add(vec![sent(2, 1, 5, 50), sent(0, 1, 3, 30)]);
        // The next one has taken over from it: it knows of one pair later, and of one less.
        let before = traffic.clone();
        traffic.add(vec![sent(0, 1, 7, 70), sent(1, 0, 1, 0), sent(2, 1, 4, 40)]);
        assert_eq!(traffic.since(&before), [sent(0, 1, 4, 40), sent(1, 0, 1, 0)]);
        traffic.add(Vec::new());
        assert_eq!(traffic.pairs(), [sent(0, 1, 7, 70), sent(1, 0, 1, 0), sent(2, 1, 5, 50)]);
    }
}
