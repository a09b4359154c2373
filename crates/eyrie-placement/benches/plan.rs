//! How long a plan for one failure takes as the network grows (all methods and the search, stencil
//! traffic, one core), and what incremental re-evaluation and parallel counting gain.
//! `bench/placement.sh` runs and plots it.

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion};
use eyrie_placement::evaluate::Evaluator;
use eyrie_placement::spares::{self, Arrangement, Laid, SpareSet};
use eyrie_placement::{CostModel, Failures, Method, Planner, Traffic, Weights};
use eyrie_topology::{spec, Layout, Network};

fn instance(network: &str) -> (Box<dyn Network>, Laid, Traffic) {
    let parsed = spec::parse(network).expect("a network");
    let axes = parsed.layout.as_ref().map_or(1, |l| l.dims().len());
    let spares = SpareSet::parse(&format!("{axes}d(2,1)")).expect("spares");
    let laid = spares::lay(
        parsed.network.as_ref(),
        parsed.layout.as_ref(),
        None,
        &spares,
        Arrangement::Contiguous,
        &|_: &str, _: &Layout| unreachable!("no spare is named"),
    )
    .expect("a layout");
    let traffic = Traffic::parse("stencil7", &laid.shape, 1 << 20).expect("traffic");
    (parsed.network, laid, traffic)
}

fn growth(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    group.sample_size(10);
    for network in ["torus:10x10x10", "torus:22x22x21", "torus:34x34x34", "tofu:24x23x24x2x3x2"] {
        let (net, laid, traffic) = instance(network);
        let job = spares::job(&laid, traffic).expect("a job");
        let failed = laid.home[laid.home.len() / 2 + 5];
        let failures = Failures::new(net.as_ref(), &[vec![failed]]).expect("a node");
        let mut methods = Method::published(laid.shape.len());
        methods.push(Method::Search);
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool");
        group.bench_function(BenchmarkId::from_parameter(net.nodes()), |b| {
            b.iter(|| {
                one.install(|| {
                    let planner = Planner::new(
                        net.as_ref(),
                        &job,
                        &laid.spares,
                        CostModel::default(),
                        Weights::default(),
                    )
                    .expect("a planner");
                    planner.compare(&methods, &failures).expect("outcomes")
                })
            })
        });
    }
    group.finish();
}

fn evaluation(c: &mut Criterion) {
    let (net, laid, traffic) = instance("torus:34x34x34");
    let evaluator = Evaluator { network: net.as_ref(), traffic: &traffic };
    let base = evaluator.count(laid.home.clone()).expect("loads");
    let mut scratch = evaluator.scratch();
    let moves = [(17u32, laid.spares[3])];
    let mut group = c.benchmark_group("evaluate");
    group.sample_size(20);
    group.bench_function("incremental", |b| {
        b.iter(|| evaluator.score_moves(&base, &moves, &mut scratch).expect("a score"))
    });
    group.bench_function("full", |b| b.iter(|| evaluator.count(laid.home.clone()).expect("loads")));
    // Here counting in parallel pays: there are many messages for each link.
    let (net, laid, _) = instance("torus:10x10x10");
    let traffic = Traffic::parse("alltoall", &laid.shape, 1 << 10).expect("traffic");
    let evaluator = Evaluator { network: net.as_ref(), traffic: &traffic };
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        group.bench_function(BenchmarkId::new("alltoall", threads), |b| {
            b.iter(|| pool.install(|| evaluator.count(laid.home.clone()).expect("loads")))
        });
    }
    group.finish();
}

criterion_group!(benches, growth, evaluation);
criterion_main!(benches);
