//! Traffic in the form that the planner reads: lines of `rank rank bytes messages`.

use eyrie_interface::traffic::Traffic;
use eyrie_placement::traffic::within_bounds;
use std::fmt::Write;

/// The whole matrix. Where a pair has more than the planner takes of a step, all numbers are
/// divided by the same one, and rounded up.
///
/// # Errors
/// When no rank has sent anything to another one: there is nothing to plan by.
pub fn text(traffic: &Traffic) -> anyhow::Result<String> {
    let Traffic { job, ranks, over, pairs } = traffic;
    let others = || pairs.iter().filter(|pair| pair.from != pair.to);
    if others().next().is_none() {
        anyhow::bail!("no rank of {job} has sent anything to another one: there is no matrix");
    }
    let (messages, by) = within_bounds(
        others().map(|pair| (pair.from.0, pair.to.0, pair.sent.messages, pair.sent.bytes)),
    );
    let time = eyrie_units::time(*over);
    let mut text = format!("# {job}: {ranks} ranks, what they sent in {time}");
    if by > 1 {
        let _ = write!(text, ", divided by {by}");
    }
    text += "\n# rank rank bytes messages\n";
    for m in messages {
        let _ = writeln!(text, "{} {} {} {}", m.from, m.to, m.bytes, m.count);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_interface::traffic::Pair;
    use eyrie_placement::traffic::{RankMessage, Traffic as Planned, MOST_MESSAGES};
    use eyrie_wire::Rank;
    use std::time::Duration;

    fn traffic(pairs: &[(u32, u32, u64, u64)]) -> Traffic {
        let pair = |(from, to, messages, bytes): &(u32, u32, u64, u64)| {
            Pair::from((Rank(*from), Rank(*to), *messages, *bytes))
        };
        let over = Duration::from_secs(9);
        Traffic { job: "j".into(), ranks: 3, over, pairs: pairs.iter().map(pair).collect() }
    }

    fn planned(traffic: &Traffic) -> Vec<RankMessage> {
        let planned = Planned::from_matrix(&text(traffic).unwrap(), 3).unwrap();
        planned.phases[0].messages.clone()
    }

    #[test]
    fn the_planner_reads_what_is_written() {
        let read = planned(&traffic(&[(0, 0, 9, 9), (0, 2, 7, 4096), (2, 1, 1, 0)]));
        let message = |from, to, bytes, count| RankMessage { from, to, bytes, count };
        assert_eq!(read, [message(0, 2, 4096, 7), message(2, 1, 0, 1)]);
    }

    #[test]
    fn what_is_too_much_for_a_step_is_divided_and_no_pair_is_lost() {
        let many = 10 * u64::from(MOST_MESSAGES) + 1;
        let read = planned(&traffic(&[(0, 1, many, 11 << 30), (1, 2, 1, 1)]));
        assert_eq!((read[0].bytes, read[1].bytes, read[1].count), (1 << 30, 1, 1));
        let read = planned(&traffic(&[(0, 1, 1, 1 << 52), (1, 2, 8, 8)]));
        assert_eq!((read[0].bytes, read[0].count, read[1].bytes), (1 << 50, 1, 2));
        assert!(text(&traffic(&[(1, 1, 5, 5)])).is_err());
    }
}
