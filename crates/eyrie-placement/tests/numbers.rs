//! The published and the measured numbers that the planner must reproduce (facts: substitution; papers: Spare,
//! Sliding). Every figure here is counted, never assumed.

use eyrie_placement::evaluate::Evaluator;
use eyrie_placement::spares::{self, Arrangement, Laid, SpareSet};
use eyrie_placement::{Machine, Method, Planner, Traffic, Weights};
use eyrie_topology::{coords, spec, Layout, Network, NodeId};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::SeedableRng;
use rayon::prelude::*;

struct Instance {
    network: Box<dyn Network>,
    laid: Laid,
}

fn instance(network: &str, job: Option<&str>, spares: &str) -> Instance {
    let parsed = spec::parse(network).unwrap();
    let shape = job.map(|j| coords::parse_dims(j).unwrap());
    let laid = spares::lay(
        parsed.network.as_ref(),
        parsed.layout.as_ref(),
        shape.as_deref(),
        &SpareSet::parse(spares).unwrap(),
        Arrangement::Contiguous,
        &|name: &str, _: &Layout| Ok(name.parse().unwrap()),
    )
    .unwrap();
    Instance { network: parsed.network, laid }
}

/// Worst busiest link over every failed × spare pair, 0D, and how many pairs reach it.
fn worst_pair(network: &str, job: Option<&str>, spares: &str, traffic: &str) -> u64 {
    let Instance { network, laid } = instance(network, job, spares);
    let traffic = Traffic::parse(traffic, &laid.shape, 1 << 20).unwrap();
    let evaluator = Evaluator { network: network.as_ref(), traffic: &traffic };
    let base = evaluator.count(laid.home.clone()).unwrap();
    assert_eq!(base.score.messages, 1, "{} before any failure", network.describe());
    let pairs: Vec<_> = (0..laid.home.len() as u32)
        .flat_map(|rank| laid.spares.iter().map(move |&s| vec![(rank, s)]))
        .collect();
    evaluator.score_all(&base, &pairs).unwrap().iter().map(|s| s.messages).max().unwrap()
}

#[test]
fn zero_d_worst_link_is_two_in_one_direction_and_five_in_all() {
    let last_line = |rows: usize, columns: usize| {
        let nodes: Vec<String> = (0..rows).map(|r| (r * columns + columns - 1).to_string()).collect();
        format!("list:{}", nodes.join(";"))
    };
    for (network, job, spares) in [
        ("mesh:6x12", "6x11", last_line(6, 12)),
        ("torus:6x12", "6x11", last_line(6, 12)),
        ("mesh:12x12", "12x11", last_line(12, 12)),
        ("torus:12x12", "12x11", last_line(12, 12)),
        ("mesh:12x12", "11x12", "contiguous:12".into()),
        ("torus:12x12", "11x12", "contiguous:12".into()),
        ("tofu:1x1x6x2x3x2:shape=6x12", "6x11", "last".into()),
        ("tofu:2x1x6x2x3x2:shape=12x12", "12x11", "last".into()),
        ("tofu:2x1x6x2x3x2:shape=12x12", "11x12", "contiguous:12".into()),
        ("tofu:1x1x6x2x3x2:shape=12x6", "11x6", "contiguous:6".into()),
    ] {
        let spares = if spares == "last" { tofu_last_line(network) } else { spares };
        let one: Vec<u64> = ["+x", "-x", "+y", "-y"]
            .iter()
            .map(|d| worst_pair(network, Some(job), &spares, &format!("direction:{d}")))
            .collect();
        let all = worst_pair(network, Some(job), &spares, "stencil5");
        println!("{network} {job} one direction {one:?}, all {all}");
    }
}

/// The last line of the second virtual axis, as physical node numbers.
fn tofu_last_line(network: &str) -> String {
    let layout = spec::parse(network).unwrap().layout.unwrap();
    let dims = layout.dims().to_vec();
    let line = (0..dims[0]).map(|x| layout.node(coords::index(&[x, dims[1] - 1], &dims)).to_string());
    format!("list:{}", line.collect::<Vec<_>>().join(";"))
}

/// The worst busiest link of k-D sliding over every failed rank, for each axis that has spares.
fn worst_slide(network: &str, spares: &str, traffic: &str, k: usize) -> u64 {
    let Instance { network, laid } = instance(network, None, spares);
    let traffic = Traffic::parse(traffic, &laid.shape, 1 << 20).unwrap();
    let job = spares::job(&laid, traffic).unwrap();
    let n = laid.shape.len();
    let evaluator = Evaluator { network: network.as_ref(), traffic: &job.traffic };
    let base = evaluator.count(laid.home.clone()).unwrap();
    (0..laid.home.len())
        .map(|rank| {
            let mut state = eyrie_placement::job::State::new(
                network.nodes(),
                &laid.home,
                &laid.home,
                &laid.spares,
            );
            state.fail(laid.home[rank]);
            let slides = eyrie_placement::slide::Slide::all(n, k, false).into_iter();
            let moves: Vec<_> =
                slides.filter_map(|s| s.moves(&state, &laid.layout, laid.home[rank])).collect();
            assert!(!moves.is_empty());
            let scores = evaluator.score_all(&base, &moves).unwrap();
            scores.iter().map(|s| s.messages).max().unwrap()
        })
        .max()
        .unwrap()
}

#[test]
fn worst_link_of_kd_sliding_is_2_n_minus_k_plus_1() {
    for network in ["mesh:13x13", "torus:13x13"] {
        for k in 1..=2 {
            assert_eq!(worst_slide(network, "2d(2,1)", "stencil5", k), 2 * (2 - k as u64) + 1);
        }
        assert_eq!(worst_pair(network, None, "2d(2,1)", "stencil5"), 5);
    }
    for network in ["mesh:7x7x7", "torus:7x7x7"] {
        for k in 1..=3 {
            let worst = worst_slide(network, "3d(3,1)", "stencil7", k);
            assert_eq!(worst, 2 * (3 - k as u64) + 1, "{network} {k}D");
        }
        // On the torus a ring of 7 is too short for all six to come from one side.
        let zero_d = if network.starts_with("mesh") { 7 } else { 6 };
        assert_eq!(worst_pair(network, None, "3d(3,1)", "stencil7"), zero_d);
    }
    // 1D with the spares on the middle routing dimension only: 3 instead of 5.
    let middle = |order| worst_slide(&format!("mesh:7x6x6:order={order}"), "3d(1,1)", "stencil7", 1);
    assert_eq!((middle("0,1,2"), middle("1,0,2"), middle("1,2,0")), (5, 3, 5));
}

/// Busiest link after each failure, as far as the method gets. With `hit` the k-th failure strikes wherever rank
/// ranks[k] is then; without it strikes the rank's first node.
fn trail(instance: &Instance, method: Method, ranks: &[usize], hit: bool) -> Vec<u64> {
    let traffic = Traffic::parse("stencil5", &instance.laid.shape, 1 << 20).unwrap();
    let job = spares::job(&instance.laid, traffic).unwrap();
    let spares = &instance.laid.spares;
    let network = instance.network.as_ref();
    let planner =
        Planner::new(network, &job, spares, Machine::default(), Weights::default()).unwrap();
    let mut left = ranks.iter();
    let mut next = |at: &[NodeId]| {
        let &rank = left.next()?;
        Some(vec![if hit { at[rank] } else { job.home[rank] }])
    };
    let outcomes = planner.trail(method, &mut next).unwrap();
    outcomes.into_iter().filter_map(|o| o.result.ok()).map(|p| p.score.messages).collect()
}

fn random_ranks(ranks: usize, length: usize, seed: u64) -> Vec<usize> {
    let mut all: Vec<usize> = (0..ranks).collect();
    all.shuffle(&mut SmallRng::seed_from_u64(seed));
    all.truncate(length);
    all
}

#[test]
fn several_failures_cost_what_was_measured() {
    let instance = instance("mesh:13x13", None, "2d(2,1)");
    for method in [Method::FirstFree, Method::Best0D, Method::Slide(1), Method::Hybrid] {
        let trails: Vec<Vec<u64>> = (0..400)
            .into_par_iter()
            .map(|seed| trail(&instance, method, &random_ranks(144, 8, seed), true))
            .collect();
        for failures in [1, 2, 3, 5, 8] {
            let loads: Vec<Option<u64>> = trails.iter().map(|t| t.get(failures - 1).copied()).collect();
            let (mean, sd, max, stuck) = summary(&loads);
            println!("{failures} {}: mean {mean:.2} sd {sd:.2} max {max} stuck {stuck}", method.name());
        }
    }
}

/// Mean, standard deviation, largest and number stuck.
fn summary(loads: &[Option<u64>]) -> (f64, f64, u64, usize) {
    let placed: Vec<f64> = loads.iter().flatten().map(|&l| l as f64).collect();
    let n = placed.len().max(1) as f64;
    let mean = placed.iter().sum::<f64>() / n;
    let variance = placed.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    let largest = loads.iter().flatten().copied().max().unwrap_or(0);
    (mean, variance.sqrt(), largest, loads.len() - placed.len())
}

#[test]
fn search_load() {
    let instance = instance("mesh:13x13", None, "2d(2,1)");
    for hit in [false, true] {
        let begin = std::time::Instant::now();
        let trails: Vec<Vec<u64>> = (0..60)
            .into_par_iter()
            .map(|seed| trail(&instance, Method::Search, &random_ranks(144, 5, seed), hit))
            .collect();
        for k in 0..5 {
            println!("{hit} {k} {:?}", summary(&trails.iter().map(|t| Some(t[k])).collect::<Vec<_>>()));
        }
        println!("{:?}", begin.elapsed());
    }
}
