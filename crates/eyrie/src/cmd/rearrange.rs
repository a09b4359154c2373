//! `eyrie rearrange`: where the ranks of a running job should be on its network, by what they send
//! each other, and then the moves. The job decides; here it is shown, and asked to be done.

use super::proposed::{Hosts, ProposedArgs};
use eyrie_cli::table::align;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::Arranged;
use eyrie_interface::options::RUN_TIME;
use eyrie_interface::proposal::{Arrangement, Links};
use eyrie_interface::Request;
use eyrie_units::{bytes, counted, duration, nanoseconds, time};
use std::path::Path;
use std::time::Duration;

/// Move ranks of a running job closer to those that they send most to.
///
/// The job must know its network (`eyrie run --network`), and have measured for ten seconds what
/// its ranks send each other. A table shows what moves, what the job gains by that in the time that
/// is left, and what it may lose by the moves. They are carried out as one: all of them, or none.
#[derive(clap::Args)]
pub struct RearrangeArgs {
    /// How long the job still runs: moves must have paid by then
    #[arg(long, value_name = "TIME", default_value = RUN_TIME, value_parser = duration)]
    time_left: Duration,
    #[command(flatten)]
    rest: ProposedArgs,
}

pub fn run(args: &RearrangeArgs) -> anyhow::Result<i32> {
    let left = args.time_left;
    let propose = |dir: &Path| {
        let Arranged { arrangement } = ask(dir, &Request::Propose { left })?;
        Ok(arrangement)
    };
    let show = |found: &Arrangement, hosts: &Hosts| in_full(found, hosts, left);
    args.rest.run(propose, show, |found, manner| {
        let moves = found.moves.iter().map(|(rank, _, to)| (*rank, *to)).collect();
        found.pays.then_some(Request::Rearrange { moves, drains: vec![], whole: true, manner })
    })
}

fn in_full(found: &Arrangement, hosts: &Hosts, left: Duration) -> String {
    let carried = |Links { busiest, share }: Links| {
        let busiest = bytes(busiest as u64);
        format!("{busiest}/s on the busiest link, {:.1} % of the time", share * 100.0)
    };
    let now = carried(found.now);
    if found.moves.is_empty() {
        return format!("no rank should move: no better placement was found\nnow {now}\n");
    }
    let mut rows = vec![["rank", "node", ""].map(String::from).to_vec()];
    rows.extend(found.moves.iter().map(|(rank, from, to)| {
        vec![rank.to_string(), hosts.name(from.0), format!("moves to node {}", hosts.name(to.0))]
    }));
    let moves = counted(found.moves.len() as u64, "move");
    let (gain, cost) = (nanoseconds(found.gain * 1e9), nanoseconds(found.cost * 1e9));
    let pays = if found.pays { "" } else { ": they do not pay, and nothing moves" };
    format!(
        "{}\nnow {now}\nthen {}\n{moves}: the job gains {gain} in the {} that are left, and may \
         lose {cost} by them{pays}\n",
        align(&rows),
        carried(found.then),
        time(left),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::{NodeId, Rank};

    #[test]
    fn it_is_said_what_moves_and_whether_that_pays() {
        let now = Links { busiest: 8e6, share: 0.5 };
        let then = Links { busiest: 1e6, share: 0.25 };
        let moves = vec![(Rank(3), NodeId(0), NodeId(1))];
        let steps = Vec::new();
        let found = Arrangement { moves, steps, now, then, gain: 9.0, cost: 10.0, pays: false };
        let hosts = Hosts(vec!["a".into(), "b".into()]);
        assert_eq!(
            in_full(&found, &hosts, Duration::from_secs(36)),
            "rank   node\n\
             3     0 (a)  moves to node 1 (b)\n\
             \n\
             now 7.6 MiB/s on the busiest link, 50.0 % of the time\n\
             then 977 KiB/s on the busiest link, 25.0 % of the time\n\
             1 move: the job gains 9 s in the 36 s that are left, and may lose 10 s by them: they \
             do not pay, and nothing moves\n"
        );
        let none = Arrangement { moves: vec![], ..found };
        assert!(in_full(&none, &hosts, Duration::ZERO).starts_with("no rank should move"));
    }
}
