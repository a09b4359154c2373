//! Traffic on a grid of blocks: of many ranks a block has several, so that a picture of a thousand
//! ranks is not a million cells.

use eyrie_interface::traffic::Traffic;
use eyrie_wire::traffic::Sent;
use std::collections::BTreeMap;

/// Most blocks along a side.
const MOST: u32 = 128;

/// What blocks of ranks have sent each other.
pub struct Blocks {
    /// How many ranks a block has; the last one may have fewer.
    pub size: u32,
    /// How many blocks there are along a side.
    pub count: u32,
    /// By the blocks of the sender and of the receiver; those without messages are left out.
    pub cells: BTreeMap<(u32, u32), Sent>,
}

impl Blocks {
    pub fn of(traffic: &Traffic) -> Blocks {
        let size = traffic.ranks.div_ceil(MOST).max(1);
        let mut cells: BTreeMap<(u32, u32), Sent> = BTreeMap::new();
        for pair in &traffic.pairs {
            let cell = cells.entry((pair.from.0 / size, pair.to.0 / size)).or_default();
            cell.messages += pair.sent.messages;
            cell.bytes += pair.sent.bytes;
        }
        Blocks { size, count: traffic.ranks.div_ceil(size), cells }
    }

    /// Bytes that each block has sent, and received.
    pub fn sums(&self) -> (Vec<u64>, Vec<u64>) {
        let mut sent = vec![0; self.count as usize];
        let mut received = vec![0; self.count as usize];
        for ((from, to), of) in &self.cells {
            sent[*from as usize] += of.bytes;
            received[*to as usize] += of.bytes;
        }
        (sent, received)
    }

    /// The ranks of a block, in words.
    pub fn name(&self, block: u32, ranks: u32) -> String {
        let first = block * self.size;
        let last = (first + self.size).min(ranks) - 1;
        if first == last {
            format!("rank {first}")
        } else {
            format!("ranks {first} to {last}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_interface::traffic::Pair;
    use eyrie_wire::Rank;
    use std::time::Duration;

    #[test]
    fn a_block_has_what_all_of_its_ranks_have_sent() {
        let pairs = [(0, 299, 1, 10), (2, 298, 2, 5), (299, 299, 1, 1), (150, 3, 4, 0)];
        let pair =
            |(from, to, messages, bytes)| Pair::from((Rank(from), Rank(to), messages, bytes));
        let pairs = pairs.map(pair).to_vec();
        let traffic = Traffic { job: "j".into(), ranks: 300, over: Duration::ZERO, pairs };
        let blocks = Blocks::of(&traffic);
        assert_eq!((blocks.size, blocks.count), (3, 100));
        let sent = |messages, bytes| Sent { messages, bytes };
        let wanted = [((0, 99), sent(3, 15)), ((50, 1), sent(4, 0)), ((99, 99), sent(1, 1))];
        assert_eq!(blocks.cells.clone().into_iter().collect::<Vec<_>>(), wanted);
        let (sent, received) = blocks.sums();
        assert_eq!((sent[0], sent[99], received[99], received[1]), (15, 1, 16, 0));
        assert_eq!(
            (blocks.name(99, 300), blocks.name(99, 298)),
            ("ranks 297 to 299".into(), "rank 297".into())
        );
    }
}
