//! The published and the measured numbers that the planner must reproduce ("Sliding Substitution of
//! Failed Nodes", EuroMPI 2015; "Overhead of using spare nodes", IJHPCA 2020). Every figure here is
//! counted.

use eyrie_placement::evaluate::Evaluator;
use eyrie_placement::spares::{self, Arrangement, Laid, SpareSet};
use eyrie_placement::Placed;
use eyrie_placement::{CostModel, Failures, Method, Planner, Traffic, Weights};
use eyrie_topology::{coords, spec, Layout, Network, NetworkNode};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::SeedableRng;
use rayon::prelude::*;

/// How many random cases of `all` are tried: a tenth; all with EYRIE_TEST_MORE (`make test-more`).
fn cases(all: u64) -> u64 {
    match std::env::var_os("EYRIE_TEST_MORE") {
        Some(_) => all,
        None => all / 10,
    }
}

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

/// The worst busiest link over every failed × spare pair, 0D, and how many pairs reach it.
fn worst_pair(network: &str, job: Option<&str>, spares: &str, traffic: &str) -> u64 {
    let Instance { network, laid } = instance(network, job, spares);
    let traffic = Traffic::parse(traffic, &laid.shape, 1 << 20).unwrap();
    let evaluator = Evaluator { network: network.as_ref(), traffic: &traffic };
    let base = evaluator.count(laid.home.clone()).unwrap();
    assert_eq!(base.score.messages, 1, "{} before any failure", network.describe());
    let pairs: Vec<_> = (0..laid.home.len() as u32)
        .flat_map(|rank| laid.spares.iter().map(move |&s| vec![(rank, s)]))
        .collect();
    let mut scratch = evaluator.scratch();
    let scores = evaluator.score_all(&base, &pairs, &mut scratch);
    scores.iter().map(|s| s.unwrap().messages).max().unwrap()
}

/// The cells at one end of an axis, as node numbers.
fn end_line(network: &str, axis: usize, last: bool) -> String {
    let layout = spec::parse(network).unwrap().layout.unwrap();
    let dims = layout.dims().to_vec();
    let end = if last { dims[axis] - 1 } else { 0 };
    let mut line = Vec::new();
    coords::for_each(&dims, |c| {
        if c[axis] == end {
            line.push(layout.node(coords::index(c, &dims)).to_string());
        }
    });
    format!("list:{}", line.join(";"))
}

#[test]
fn zero_d_worst_link_is_two_in_one_direction_and_five_in_all() {
    for (network, dims) in [
        ("mesh:6x12", [6, 12]),
        ("torus:6x12", [6, 12]),
        ("tofu:1x1x6x2x3x2:shape=6x12", [6, 12]),
        ("mesh:12x12", [12, 12]),
        ("torus:12x12", [12, 12]),
        ("tofu:2x1x6x2x3x2:shape=12x12", [12, 12]),
    ] {
        // One end line of the second axis is spare: 6 of 72 nodes, 12 of 144.
        let job = format!("{}x{}", dims[0], dims[1] - 1);
        let worst = |last: bool, traffic: &str| {
            worst_pair(network, Some(&job), &end_line(network, 1, last), traffic)
        };
        let one: Vec<u64> = ["+x", "-x", "+y", "-y"]
            .iter()
            .map(|d| worst(true, &format!("direction:{d}")))
            .collect();
        let all = [worst(true, "stencil5"), worst(false, "stencil5")];
        println!("{network} {job} one direction {one:?}, all {all:?}");
        assert_eq!(one.iter().max(), Some(&2), "{network} {one:?}");
        // On Tofu the two ends differ: a folded axis begins and ends on different sides of its
        // fold, and only the spares at the low end have all five together. (The paper does not say
        // which end was left free.)
        let expected = if network.starts_with("tofu") { [4, 5] } else { [5, 5] };
        assert_eq!(all, expected, "{network}");
    }
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
            let mut state = eyrie_placement::job::Occupancy::new(
                network.nodes(),
                &job,
                &job.home,
                &laid.spares,
            );
            state.fail(laid.home[rank]);
            let slides = eyrie_placement::slide::Slide::all(n, k, false).into_iter();
            let moves: Vec<_> =
                slides.filter_map(|s| s.moves(&state, &laid.layout, laid.home[rank])).collect();
            assert!(!moves.is_empty());
            let scores = evaluator.score_all(&base, &moves, &mut evaluator.scratch());
            scores.iter().map(|s| s.unwrap().messages).max().unwrap()
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
    let middle =
        |order| worst_slide(&format!("mesh:7x6x6:order={order}"), "3d(1,1)", "stencil7", 1);
    assert_eq!((middle("0,1,2"), middle("1,0,2"), middle("1,2,0")), (5, 3, 5));
}

/// Busiest link after each failure, until the method is stuck. With `hit` the k-th failure is that
/// of the node where rank ranks[k] is by then; without it that of the rank's first node.
fn trail(instance: &Instance, method: Method, ranks: &[usize], hit: bool) -> Vec<u64> {
    let traffic = Traffic::parse("stencil5", &instance.laid.shape, 1 << 20).unwrap();
    let job = spares::job(&instance.laid, traffic).unwrap();
    let spares = &instance.laid.spares;
    let network = instance.network.as_ref();
    let planner =
        Planner::new(network, &job, spares, CostModel::default(), Weights::default()).unwrap();
    let mut walk = planner.walk(method, &[]).unwrap();
    let reached = ranks.iter().map_while(|&rank| {
        let node = if hit { walk.placement()[rank] } else { job.home[rank] };
        walk.fail(&[node]).unwrap().result.ok()
    });
    reached.map(|p| p.score.messages).collect()
}

fn random_ranks(ranks: usize, length: usize, seed: u64) -> Vec<usize> {
    let mut all: Vec<usize> = (0..ranks).collect();
    all.shuffle(&mut SmallRng::seed_from_u64(seed));
    all.truncate(length);
    all
}

/// Counted before this planner was written: mean of 20 sequences and how many of 20 were stuck, for
/// 1, 2, 3, 5 and 8 failures.
const MEASURED: [(Method, [f64; 5], [usize; 5]); 4] = [
    (Method::FirstFree, [4.4, 6.5, 8.75, 11.4, 12.85], [0; 5]),
    (Method::Best0D, [3.7, 4.15, 4.65, 4.95, 5.2], [0; 5]),
    (Method::Slide(1), [2.75, 2.95, 3.1, 3.5, 3.77], [0, 0, 0, 2, 7]),
    (Method::Hybrid, [1.0, 1.0, 3.05, 3.75, 4.25], [0; 5]),
];

#[test]
fn several_failures_cost_what_was_measured() {
    let ours = cases(400);
    let instance = instance("mesh:13x13", None, "2d(2,1)");
    for (method, means, stuck_of_20) in MEASURED {
        let trails: Vec<Vec<u64>> = (0..ours)
            .into_par_iter()
            .map(|seed| trail(&instance, method, &random_ranks(144, 8, seed), true))
            .collect();
        for (i, failures) in [1, 2, 3, 5, 8].into_iter().enumerate() {
            let loads: Vec<Option<u64>> =
                trails.iter().map(|t| t.get(failures - 1).copied()).collect();
            let (mean, sd, max, stuck) = summary(&loads);
            println!(
                "{failures} {}: mean {mean:.2} sd {sd:.2} max {max} stuck {stuck}",
                method.name()
            );
            // Two samples, theirs of 20 and ours: three standard errors of the difference.
            let error = 3.0 * sd.max(0.2) * (1.0 / 20.0 + 1.0 / ours as f64).sqrt();
            let above = mean - means[i];
            // Ours finds better hybrids from the third failure on (the order of equal slides is not
            // published), so there the measured mean is an upper bound.
            assert!(above < error, "{failures} {}: {mean:.2} against {}", method.name(), means[i]);
            if method != Method::Hybrid || failures < 3 {
                assert!(
                    above > -error,
                    "{failures} {}: {mean:.2} against {}",
                    method.name(),
                    means[i]
                );
            }
            let share = stuck_of_20[i] as f64 / 20.0;
            let stuck = stuck as f64 / ours as f64;
            let p = (share + stuck) / 2.0;
            let error = 3.0 * (p * (1.0 - p) / 20.0).sqrt();
            assert!(
                (stuck - share).abs() <= error,
                "{failures} {}: {stuck} stuck against {share}",
                method.name()
            );
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
fn search_keeps_load_1_for_two_failures_and_3_for_up_to_five_in_random_sequences() {
    let instance = instance("mesh:13x13", None, "2d(2,1)");
    // Half of them fail wherever the rank is by then, half at the rank's first node.
    let trails: Vec<Vec<u64>> = (0..cases(1000))
        .into_par_iter()
        .map(|seed| trail(&instance, Method::Search, &random_ranks(144, 5, seed), seed % 2 == 0))
        .collect();
    for (seed, loads) in trails.iter().enumerate() {
        assert_eq!(loads.len(), 5, "seed {seed} is stuck");
        assert!(loads[..2].iter().all(|&l| l == 1), "seed {seed}: {loads:?}");
        assert!(loads.iter().all(|&l| l <= 3), "seed {seed}: {loads:?}");
    }
}

/// A random job on a random network with random failures.
fn random_instance(seed: u64) -> (Instance, Traffic, Vec<NetworkNode>) {
    use rand::Rng;
    let mut rng = SmallRng::seed_from_u64(seed);
    let a = rng.gen_range(3..6);
    let b = rng.gen_range(3..6);
    let c = rng.gen_range(2..4);
    let (network, job, spares) = match rng.gen_range(0..9) {
        0 => (format!("mesh:{a}x{b}"), None, "2d(2,1)".to_string()),
        1 => (format!("torus:{a}x{b}:order=1,0"), None, "2d(1,1)".into()),
        2 => (format!("torus:{a}x{b}x{c}"), None, "3d(2,1)".into()),
        3 => (format!("mesh:{a}x{b}x{c}"), None, format!("contiguous:{}", b * c)),
        4 => (format!("torus:{a}x{b}"), Some("2x3"), format!("scattered:{}", rng.gen_range(1..4))),
        5 => ("tofu:2x2x1x2x3x2".into(), None, "3d(2,1)".into()),
        6 => (format!("fattree:{a}^2"), Some("2x2"), "2d(2,1)".into()),
        7 => ("xgft:4,5;1,2:rails=2".into(), Some("3x4"), "2d(1,1)".into()),
        _ => (format!("dragonfly:{a}x{b}x2"), Some("3x3"), "2d(2,1)".into()),
    };
    let instance = instance(&network, job, &spares);
    let stencil = if instance.laid.shape.len() == 2 { "stencil5" } else { "stencil7" };
    let traffic = match rng.gen_range(0..12) {
        0 => "allreduce",
        1 => "alltoall",
        _ => stencil,
    };
    let traffic = Traffic::parse(traffic, &instance.laid.shape, 1 << 16).unwrap();
    let mut nodes: Vec<NetworkNode> = instance.laid.home.clone();
    nodes.extend(&instance.laid.spares);
    nodes.shuffle(&mut rng);
    nodes.truncate(rng.gen_range(1..=3usize.min(instance.laid.spares.len())));
    (instance, traffic, nodes)
}

#[test]
fn search_is_never_worse_than_the_best_of_all_methods_on_random_instances() {
    (0..cases(10_000)).into_par_iter().for_each(|seed| {
        let (instance, traffic, failed) = random_instance(seed);
        let job = spares::job(&instance.laid, traffic).unwrap();
        let may_squeeze = seed % 4 == 0;
        let weights = Weights { may_squeeze, ..Weights::default() };
        let planner = Planner::new(
            instance.network.as_ref(),
            &job,
            &instance.laid.spares,
            CostModel::default(),
            weights,
        )
        .unwrap()
        .shape(&instance.laid.shape)
        .routers_forward(seed % 3 != 0);
        let groups: Vec<Vec<NetworkNode>> = match seed % 2 {
            0 => vec![failed],
            _ => failed.into_iter().map(|n| vec![n]).collect(),
        };
        let groups = Failures::new(instance.network.as_ref(), &groups).unwrap();
        let mut methods = Method::published(instance.laid.layout.dims().len());
        if may_squeeze {
            methods.push(Method::Squeeze);
        }
        let search = planner.run(Method::Search, &groups).map(|o| o.result);
        for method in methods {
            let Ok(Ok(placed)) = planner.run(method, &groups).map(|o| o.result) else { continue };
            let Ok(Ok(best)) = &search else {
                panic!("seed {seed}: {} is placed, search {search:.200?}", method.name())
            };
            let key = |p: &Placed| {
                let messages = p.score.messages as f64;
                if job.traffic.time_first() {
                    (p.step_s, messages)
                } else {
                    (messages, p.step_s)
                }
            };
            let ours = key(best);
            let theirs = key(&placed);
            assert!(
                ours <= theirs,
                "seed {seed}: {ours:?} is worse than {} with {theirs:?}",
                method.name()
            );
        }
    });
}

#[test]
fn on_a_fat_tree_of_full_bisection_no_method_costs_more_than_a_fifth() {
    for (network, job, traffic) in [
        ("fattree:18^2", "4x4x4", "stencil7"),
        ("fattree:18^2", "5x5x5", "stencil7"),
        ("fattree:14^2", "12x12", "stencil5"),
        ("fattree:8^3", "7x7x7", "stencil7"),
    ] {
        let shape = coords::parse_dims(job).unwrap();
        let spares = format!("{}d(2,1)", shape.len());
        let Instance { network, laid } = instance(network, Some(job), &spares);
        let traffic = Traffic::parse(traffic, &laid.shape, 4 << 20).unwrap();
        let job = spares::job(&laid, traffic).unwrap();
        let planner = Planner::new(
            network.as_ref(),
            &job,
            &laid.spares,
            CostModel::default(),
            Weights::default(),
        )
        .unwrap();
        let mut methods = Method::published(shape.len());
        methods.push(Method::Search);
        let worst = (0..laid.home.len())
            .into_par_iter()
            .step_by(7)
            .map(|rank| {
                let failed = Failures::new(network.as_ref(), &[vec![laid.home[rank]]]).unwrap();
                let outcomes = planner.compare(&methods, &failed).unwrap();
                let ratios =
                    outcomes.iter().map(|o| (o.result.as_ref().map_or(0.0, |p| p.ratio), o.method));
                ratios.fold((0.0, Method::Search), |a, b| if b.0 > a.0 { b } else { a })
            })
            .reduce(|| (0.0, Method::Search), |a, b| if b.0 > a.0 { b } else { a });
        println!(
            "{} {:?}: worst ratio {:.3} by {}",
            network.describe(),
            shape,
            worst.0,
            worst.1.name()
        );
        assert!(worst.0 <= 1.2);
    }
}

/// One dimension of 100,000 nodes: walking the routes of an allreduce link by link would take 10^10
/// steps for each count.
#[test]
fn a_long_line_is_planned_without_walking_it() {
    let Instance { network, laid } = instance("mesh:100000", None, "1d(1,1)");
    let traffic = Traffic::parse("allreduce", &laid.shape, 1 << 20).unwrap();
    let job = spares::job(&laid, traffic).unwrap();
    let machine = CostModel::default();
    let planner =
        Planner::new(network.as_ref(), &job, &laid.spares, machine, Weights::default()).unwrap();
    // The last round but one sends the messages of 32,768 ranks over one link.
    assert_eq!(planner.before().score.messages, 32_768);
    let failed = Failures::new(network.as_ref(), &[vec![laid.home[5]]]).unwrap();
    let outcome = planner.run(Method::FirstFree, &failed).unwrap();
    let placed = outcome.result.unwrap();
    assert_eq!((placed.moved, placed.placement[5]), (1, 99_999));
    let transfer_s = 32_768.0 * f64::from(1 << 20) / machine.bandwidth;
    assert!(placed.step_s > planner.before_s() && planner.before_s() > transfer_s);
}

/// Routes with more links than there is memory for are refused before they are walked.
#[test]
fn routes_too_long_to_follow_are_refused() {
    let Instance { network, laid } = instance("mesh:60000", None, "1d(1,1)");
    let far = |i: u64| format!("{} {} 100 1\n", i * 7919 % 59_999, i * 104_729 % 59_999);
    let matrix: String = (0..100_000).map(far).collect();
    let traffic = Traffic::from_matrix(&matrix, laid.home.len()).unwrap();
    let job = spares::job(&laid, traffic).unwrap();
    let machine = CostModel::default();
    let planner = Planner::new(network.as_ref(), &job, &laid.spares, machine, Weights::default());
    let error = planner.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("too many to estimate its time"), "{error}");
}
