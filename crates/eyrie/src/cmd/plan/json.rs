//! The JSON of `eyrie plan --json`; its schema is docs/plan-schema.json, version 1.

use eyrie_placement::Outcome;
use eyrie_topology::network::link_name;
use eyrie_topology::NetworkNode;
use serde::Serialize;

use super::Plan;

#[derive(Serialize)]
struct Document {
    version: u32,
    network: String,
    job: Vec<usize>,
    ranks: usize,
    traffic: String,
    spares: Vec<NetworkNode>,
    failed: Vec<NetworkNode>,
    notes: Vec<String>,
    before: Before,
    methods: Vec<MethodResult>,
}

#[derive(Serialize)]
struct Before {
    placement: Vec<NetworkNode>,
    busiest_link_messages: u64,
    busiest_link_bytes: u64,
    step_s: f64,
}

#[derive(Serialize)]
struct MethodResult {
    method: String,
    stuck: Option<StuckResult>,
    plan: Option<PlanResult>,
}

#[derive(Serialize)]
struct StuckResult {
    after_failures: usize,
    why: String,
}

#[derive(Serialize)]
struct PlanResult {
    busiest_link_messages: u64,
    busiest_link_bytes: u64,
    busiest_link: Option<String>,
    step_s: f64,
    slowdown: f64,
    ranks_moved: usize,
    break_even_iterations: Option<u64>,
    steps: Vec<String>,
    placement: Vec<NetworkNode>,
    moves: Vec<MoveResult>,
    squeeze: Option<SqueezeResult>,
    routes_round_dead_routers: Vec<String>,
}

#[derive(Serialize)]
struct MoveResult {
    rank: usize,
    from: NetworkNode,
    to: NetworkNode,
}

#[derive(Serialize)]
struct SqueezeResult {
    work: f64,
    partners: usize,
    efficiency: f64,
}

pub fn text(plan: &Plan) -> anyhow::Result<String> {
    let Plan { instance, planner, failed, outcomes } = plan;
    let before = planner.before();
    let document = Document {
        version: 1,
        network: instance.network.describe(),
        job: instance.shape.clone(),
        ranks: instance.job.ranks(),
        traffic: instance.job.traffic.name.clone(),
        spares: instance.laid.spares.clone(),
        failed: failed.clone(),
        notes: instance.laid.notes.clone(),
        before: Before {
            placement: instance.job.home.clone(),
            busiest_link_messages: before.score.messages,
            busiest_link_bytes: before.score.bytes,
            step_s: planner.before_s(),
        },
        methods: outcomes
            .iter()
            .map(|outcome| method(plan, outcome))
            .collect::<anyhow::Result<_>>()?,
    };
    Ok(serde_json::to_string_pretty(&document)?)
}

fn method(plan: &Plan, outcome: &Outcome) -> anyhow::Result<MethodResult> {
    let instance = plan.instance;
    let method = outcome.method.name();
    let placed = match &outcome.result {
        Ok(placed) => placed,
        Err(stuck) => {
            let stuck = StuckResult { after_failures: stuck.after, why: stuck.why.clone() };
            return Ok(MethodResult { method, stuck: Some(stuck), plan: None });
        }
    };
    let pairs = instance.job.home.iter().zip(&placed.placement).enumerate();
    let moves = pairs
        .filter(|(_, (from, to))| from != to)
        .map(|(rank, (&from, &to))| MoveResult { rank, from, to })
        .collect();
    let result = PlanResult {
        busiest_link_messages: placed.score.messages,
        busiest_link_bytes: placed.score.bytes,
        busiest_link: placed
            .loads
            .busiest_link(instance.network.as_ref())
            .map(|(_, link)| link_name(instance.network.as_ref(), link)),
        step_s: placed.step_s,
        slowdown: placed.ratio,
        ranks_moved: placed.moved,
        break_even_iterations: placed.break_even,
        steps: placed.steps.clone(),
        placement: placed.placement.clone(),
        moves,
        squeeze: placed.squeezed.as_ref().map(|s| SqueezeResult {
            work: s.work,
            partners: s.partners,
            efficiency: s.efficiency,
        }),
        routes_round_dead_routers: plan.detour_lines(outcome)?,
    };
    Ok(MethodResult { method, stuck: None, plan: Some(result) })
}
