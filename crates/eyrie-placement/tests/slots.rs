//! Plans for jobs with several ranks a node: a node that fails displaces all of its ranks, no node
//! has more ranks than slots, and what is found is compared with all placements of small cases.

use eyrie_placement::evaluate::Evaluator;
use eyrie_placement::job::Occupancy;
use eyrie_placement::spares::{self, Arrangement, Laid, SpareSet};
use eyrie_placement::{CostModel, Failures, Job, Method, Placed, Planner, Rank, Traffic, Weights};
use eyrie_topology::{coords, spec, Layout, Network, NetworkNode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fmt::Write;

/// A job of which each node has a part of the grid of ranks.
struct Case {
    network: Box<dyn Network>,
    laid: Laid,
    job: Job,
    shape: Vec<usize>,
}

fn case(network: &str, nodes: Option<&str>, spares: &str, share: &str, slots: u32) -> Case {
    let parsed = spec::parse(network).unwrap();
    let nodes = nodes.map(|nodes| coords::parse_dims(nodes).unwrap());
    let laid = spares::lay(
        parsed.network.as_ref(),
        parsed.layout.as_ref(),
        nodes.as_deref(),
        &SpareSet::parse(spares).unwrap(),
        Arrangement::Contiguous,
        &|name: &str, _: &Layout| Ok(name.parse().unwrap()),
    )
    .unwrap();
    let share = coords::parse_dims(share).unwrap();
    let shape = spares::grid_of_ranks(&laid, &share).unwrap();
    let traffic = Traffic::parse("stencil5", &shape, 1 << 20)
        .or_else(|_| Traffic::parse("alltoall", &shape, 1 << 20))
        .unwrap();
    let job = spares::job_on_slots(&laid, &share, slots, traffic).unwrap();
    Case { network: parsed.network, laid, job, shape }
}

impl Case {
    /// The same with random messages between random ranks.
    fn with_random_traffic(mut self, random: &mut SmallRng) -> Case {
        let ranks = self.job.ranks() as u32;
        let mut text = String::new();
        for _ in 0..2 * ranks {
            let from = random.gen_range(0..ranks);
            let to = random.gen_range(0..ranks);
            writeln!(text, "{from} {to} {} 1", random.gen_range(1..=8) << 17).unwrap();
        }
        writeln!(text, "0 {} 8 1", ranks - 1).unwrap();
        self.job.traffic = Traffic::from_matrix(&text, ranks as usize).unwrap();
        self
    }

    fn run(&self, method: Method, failed: &[NetworkNode]) -> Result<Placed, String> {
        let network = self.network.as_ref();
        let weights = Weights::default();
        let costs = CostModel::default();
        let planner = Planner::new(network, &self.job, &self.laid.spares, costs, weights).unwrap();
        let planner = planner.shape(&self.shape);
        let failures = Failures::new(network, &[failed.to_vec()]).unwrap();
        planner.run(method, &failures).unwrap().result.map_err(|stuck| stuck.why)
    }

    fn messages(&self, placement: &[NetworkNode]) -> u64 {
        let evaluator = Evaluator { network: self.network.as_ref(), traffic: &self.job.traffic };
        evaluator.count(placement.to_vec()).unwrap().score.messages
    }

    /// The fewest messages on the busiest link over all nodes that these ranks could go to, each by
    /// itself; the others stay.
    fn fewest(&self, occupancy: &Occupancy, ranks: &[Rank]) -> u64 {
        let Some((&rank, rest)) = ranks.split_first() else {
            return self.messages(&occupancy.rank_at);
        };
        let nodes = occupancy.with_room(1, &[]).into_iter();
        let with = nodes.map(|node| {
            let mut occupancy = occupancy.clone();
            occupancy.apply(&[(rank, node)]);
            self.fewest(&occupancy, rest)
        });
        with.min().unwrap_or(u64::MAX)
    }

    /// The job after the loss of these nodes, before any rank has moved.
    fn without(&self, failed: &[NetworkNode]) -> Occupancy {
        let nodes = self.network.nodes();
        let mut occupancy = Occupancy::new(nodes, &self.job, &self.job.home, &self.laid.spares);
        failed.iter().for_each(|node| occupancy.fail(*node));
        occupancy
    }

    fn ranks_of(&self, node: NetworkNode) -> Vec<Rank> {
        let ranks = (0..).zip(&self.job.home).filter(|(_, home)| **home == node);
        ranks.map(|(rank, _)| rank).collect()
    }
}

/// Whether each rank is on a live node, and no node has more of them than slots.
fn fits(case: &Case, failed: &[NetworkNode], placement: &[NetworkNode]) {
    for node in 0..case.network.nodes() as NetworkNode {
        let ranks = placement.iter().filter(|at| **at == node).count();
        let most = if failed.contains(&node) { 0 } else { case.job.slots as usize };
        assert!(ranks <= most, "{ranks} ranks on node {node} of {most} slots: {placement:?}");
    }
}

#[test]
fn each_node_has_its_part_of_the_grid_of_ranks() {
    let case = case("mesh:3x3", Some("2x2"), "2d(2,1)", "2x2", 4);
    assert_eq!((case.shape.as_slice(), case.laid.shape.as_slice()), (&[4, 4][..], &[2, 2][..]));
    let nodes: Vec<NetworkNode> = [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3].to_vec();
    let homes: Vec<NetworkNode> = nodes.iter().map(|n| case.laid.home[*n as usize]).collect();
    assert_eq!(case.job.home, homes);
    // Of the 5-point stencil two messages a direction cross each link; those on a node cross none.
    assert_eq!(case.messages(&case.job.home), 2);
}

#[test]
fn a_node_that_fails_displaces_all_of_its_ranks_and_no_node_has_more_than_its_slots() {
    for (network, nodes, spares, share, slots) in [
        ("mesh:4x4", Some("3x3"), "2d(2,1)", "1x2", 2),
        ("torus:4x3", Some("3x3"), "contiguous:3", "2x2", 4),
        ("torus:5x5", None, "2d(2,1)", "1x3", 5),
        ("fattree:4^2", Some("12"), "contiguous:4", "3", 3),
        ("tofu:1x1x6x2x3x2:shape=6x12", None, "2d(2,1)", "2x1", 2),
    ] {
        let case = case(network, nodes, spares, share, slots);
        let axes = case.laid.layout.dims().len();
        for (step, &node) in case.laid.home.iter().enumerate().step_by(3) {
            let other = case.laid.home[(step + 1) % case.laid.home.len()];
            for failed in [vec![node], vec![node, other]] {
                for method in Method::published(axes).into_iter().chain([Method::Search]) {
                    let Ok(placed) = case.run(method, &failed) else {
                        assert!(matches!(method, Method::Slide(_)), "{method:?} {failed:?}");
                        continue;
                    };
                    fits(&case, &failed, &placed.placement);
                    let home = case.job.home.iter().zip(&placed.placement);
                    let moved = home.filter(|(home, now)| home != now).count();
                    assert!(moved >= failed.len() * case.ranks_of(node).len(), "{method:?}");
                    let from_scratch = case.messages(&placed.placement);
                    assert_eq!(placed.score.messages, from_scratch, "{method:?} {failed:?}");
                }
            }
        }
    }
}

#[test]
fn the_ranks_of_a_node_go_to_one_spare_and_where_none_has_room_to_free_slots() {
    let case = case("mesh:5", Some("3"), "contiguous:2", "2", 2);
    let spares = case.laid.spares.clone();
    let failed = case.laid.home[0];
    let first = case.run(Method::FirstFree, &[failed]).unwrap();
    assert_eq!(first.placement[..2], [spares[0]; 2]);
    assert_eq!(first.steps, [format!("ranks 0, 1 from {failed} to {}", spares[0])]);
    // Without spares the free slots of the others are what is left.
    let mut roomy = self::case("mesh:5", Some("4"), "contiguous:1", "2", 3);
    roomy.laid.spares.clear();
    let failed = roomy.laid.home[1];
    for method in [Method::FirstFree, Method::Best0D, Method::Search] {
        let placed = roomy.run(method, &[failed]).unwrap();
        fits(&roomy, &[failed], &placed.placement);
    }
    let lost: Vec<NetworkNode> = roomy.laid.home[..3].to_vec();
    let why = roomy.run(Method::Search, &lost).unwrap_err();
    assert_eq!(why, "6 ranks need a node but live nodes have room for 1 only");
}

/// The search is never worse than all placements of the displaced ranks, or than before the
/// failure. 0D is the best of those that keep them together.
#[test]
fn small_cases_are_as_good_as_all_placements() {
    let mut random = SmallRng::seed_from_u64(7);
    for (network, nodes, spares, share, slots) in [
        ("mesh:6", Some("4"), "contiguous:2", "2", 2),
        ("torus:6", Some("4"), "contiguous:2", "3", 3),
        ("torus:3x3", Some("2x3"), "contiguous:3", "1x2", 2),
        ("mesh:3x3", Some("2x2"), "2d(2,1)", "1x2", 3),
        ("torus:3x3", Some("2x3"), "contiguous:3", "1x3", 4),
        ("fattree:3^2", Some("6"), "contiguous:3", "2", 3),
    ] {
        for turn in 0..12 {
            let mut case = case(network, nodes, spares, share, slots);
            if turn > 0 {
                case = case.with_random_traffic(&mut random);
            }
            let node = case.laid.home[random.gen_range(0..case.laid.home.len())];
            let occupancy = case.without(&[node]);
            let ranks = case.ranks_of(node);
            let together = occupancy.with_room(ranks.len(), &case.laid.spares).into_iter();
            let together = together.map(|to| {
                let mut placement = case.job.home.clone();
                ranks.iter().for_each(|rank| placement[*rank as usize] = to);
                case.messages(&placement)
            });
            let best_0d = case.run(Method::Best0D, &[node]).unwrap().score.messages;
            assert_eq!(Some(best_0d), together.min(), "{network} {turn}");
            let found = case.run(Method::Search, &[node]).unwrap().score.messages;
            // The search looks no further once the busiest link has no more than before.
            let fewest = case.fewest(&occupancy, &ranks).max(case.messages(&case.job.home));
            assert!(found <= fewest, "{network} {turn}: {found}, and {fewest} can be had");
        }
    }
}
