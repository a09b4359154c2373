//! Traffic in text: all of it together, the heaviest pairs, and what each rank sends and receives.

use eyrie_cli::table::align;
use eyrie_interface::traffic::{Pair, Traffic};
use eyrie_units::{bytes, counted, time};
use eyrie_wire::traffic::Sent;
use eyrie_wire::NodeId;
use std::cmp::Reverse;

/// How many pairs are shown, the heaviest first.
const PAIRS: usize = 10;
/// How many ranks are shown: up to so many all of them, of more the heaviest ten.
const ALL_RANKS: usize = 32;
const RANKS: usize = 10;

/// What a rank has to do with messages.
#[derive(Clone, Copy, Default)]
struct Share {
    sent: Sent,
    received: Sent,
    /// How many ranks it sends to.
    partners: u32,
}

/// `nodes`: of each rank. `in_window`: of a time that was asked for, not of the whole job.
pub fn in_full(traffic: &Traffic, nodes: &[NodeId], in_window: bool) -> String {
    let all = sum(traffic.pairs.iter());
    let within = if in_window { "in" } else { "since its start," };
    let mut text = format!(
        "job {}, {}, {within} {}: {}, {}\n",
        traffic.job,
        counted(traffic.ranks, "rank"),
        time(traffic.over),
        counted(all.messages, "message"),
        bytes(all.bytes)
    );
    let node = |pair: &Pair| (nodes.get(pair.from.index()), nodes.get(pair.to.index()));
    let between = sum(traffic.pairs.iter().filter(|pair| {
        let (from, to) = node(pair);
        from != to
    }));
    if between.messages > 0 {
        text += &format!("between nodes {}, {}\n", percent(between, all), bytes(between.bytes));
    }
    if traffic.pairs.is_empty() {
        return text;
    }
    text + "\n" + &pairs(traffic, all) + "\n" + &ranks(traffic, nodes)
}

fn sum<'a>(pairs: impl Iterator<Item = &'a Pair>) -> Sent {
    pairs.fold(Sent::default(), |sum, pair| plus(sum, pair.sent))
}

fn plus(a: Sent, b: Sent) -> Sent {
    Sent { messages: a.messages + b.messages, bytes: a.bytes + b.bytes }
}

/// A share of the bytes; of the messages where there are no bytes.
fn percent(part: Sent, all: Sent) -> String {
    let share = match all.bytes {
        0 => part.messages as f64 / all.messages.max(1) as f64,
        bytes => part.bytes as f64 / bytes as f64,
    };
    format!("{:.1} %", 100.0 * share)
}

fn texts(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}

/// How many more there are than are shown.
fn not_shown(more: usize, what: &str) -> String {
    match more {
        0 => String::new(),
        1 => format!("and 1 more {what}\n"),
        more => format!("and {more} more {what}s\n"),
    }
}

fn pairs(traffic: &Traffic, all: Sent) -> String {
    let mut sorted: Vec<&Pair> = traffic.pairs.iter().collect();
    sorted.sort_by_key(|pair| Reverse((pair.sent.bytes, pair.sent.messages)));
    let mut rows = vec![texts(&["from", "to", "messages", "bytes", "a message", "share", ""])];
    rows.extend(sorted.iter().take(PAIRS).map(|pair| {
        let Pair { from, to, sent } = pair;
        vec![
            from.to_string(),
            to.to_string(),
            sent.messages.to_string(),
            bytes(sent.bytes),
            bytes(sent.bytes / sent.messages.max(1)),
            percent(*sent, all),
            String::new(),
        ]
    }));
    let more = sorted.len().saturating_sub(PAIRS);
    align(&rows) + &not_shown(more, "pair")
}

fn ranks(traffic: &Traffic, nodes: &[NodeId]) -> String {
    let mut shares = vec![Share::default(); traffic.ranks as usize];
    for Pair { from, to, sent } in &traffic.pairs {
        if let Some(share) = shares.get_mut(from.index()) {
            share.sent = plus(share.sent, *sent);
            share.partners += 1;
        }
        if let Some(share) = shares.get_mut(to.index()) {
            share.received = plus(share.received, *sent);
        }
    }
    let mut shown: Vec<usize> = (0..shares.len()).collect();
    if shares.len() > ALL_RANKS {
        shown.sort_by_key(|rank| Reverse(shares[*rank].sent.bytes + shares[*rank].received.bytes));
        shown.truncate(RANKS);
    }
    let header = ["rank", "node", "sends", "to ranks", "bytes", "receives", "bytes", ""];
    let mut rows = vec![texts(&header)];
    rows.extend(shown.iter().map(|rank| {
        let Share { sent, received, partners } = shares[*rank];
        vec![
            rank.to_string(),
            nodes.get(*rank).map_or(String::new(), NodeId::to_string),
            sent.messages.to_string(),
            partners.to_string(),
            bytes(sent.bytes),
            received.messages.to_string(),
            bytes(received.bytes),
            String::new(),
        ]
    }));
    let more = shares.len() - shown.len();
    align(&rows) + &not_shown(more, "rank")
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::Rank;
    use std::time::Duration;

    fn traffic(ranks: u32, pairs: &[(u32, u32, u64, u64)]) -> Traffic {
        let pair = |(from, to, messages, bytes): &(u32, u32, u64, u64)| {
            Pair::from((Rank(*from), Rank(*to), *messages, *bytes))
        };
        let over = Duration::from_millis(12_300);
        Traffic { job: "melt".into(), ranks, over, pairs: pairs.iter().map(pair).collect() }
    }

    #[test]
    fn pairs_and_ranks_are_in_a_table() {
        let traffic = traffic(3, &[(0, 1, 10, 4000), (1, 0, 2, 1000), (1, 2, 1, 0)]);
        let text = in_full(&traffic, &[0, 0, 1].map(NodeId), false);
        let wanted = "\
job melt, 3 ranks, since its start, 12.3 s: 13 messages, 4.9 KiB
between nodes 0.0 %, 0 B

from  to  messages    bytes  a message   share
0      1        10  3.9 KiB      400 B  80.0 %
1      0         2  1.0 KiB      500 B  20.0 %
1      2         1      0 B        0 B   0.0 %

rank  node  sends  to ranks    bytes  receives    bytes
0        0     10         1  3.9 KiB         2  1.0 KiB
1        0      3         2  1.0 KiB        10  3.9 KiB
2        1      0         0      0 B         1      0 B
";
        assert_eq!(text, wanted);
    }

    #[test]
    fn of_many_the_heaviest_are_shown_and_how_many_more_there_are() {
        let pairs: Vec<_> = (0..100).map(|r| (r, (r + 1) % 100, 1, u64::from(r))).collect();
        let text = in_full(&traffic(100, &pairs), &[NodeId(0); 100], true);
        assert!(text.contains(", in 12.3 s: 100 messages, "), "{text}");
        assert!(text.contains("and 90 more pairs\n") && text.ends_with("and 90 more ranks\n"));
        assert!(!text.contains("between nodes"));
        assert_eq!(in_full(&traffic(2, &[]), &[], true).lines().count(), 1);
    }
}
