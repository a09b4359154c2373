//! The planner: a job laid out once, and a plan after each failure.

use std::ffi::{c_char, c_int};

use eyrie_placement::evaluate::Evaluator;
use eyrie_placement::spares::Arrangement;
use eyrie_placement::{
    method, CostModel, Failures, Instance, Job, Method, Planner, Weights, Words,
};
use eyrie_topology::spec::Files;
use eyrie_topology::{NetworkNode, TopologyError};

use crate::{text, write_text};

/// A job and its network, in the words of `eyrie plan`. Every text may be NULL.
#[repr(C)]
pub struct EyriePlannerWords {
    /// `torus:4x4`, `graph:FILE` ...; NULL: each process is a node at the switch of its host.
    pub network: *const c_char,
    /// Host of each process: `processes` pointers, or NULL with a network.
    pub hosts: *const *const c_char,
    /// Node of each process, below 0 where it is not known: `processes` numbers, or NULL.
    pub nodes: *const c_int,
    pub processes: usize,
    /// Extents of the grid of ranks, `4x3`; NULL: what the spares leave.
    pub job: *const c_char,
    /// A number, `nd(d,w)`, `scattered:N`, `list:NODE;NODE`, `hosts:HOST;HOST`; NULL: 1.
    pub spares: *const c_char,
    /// NULL: the star stencil of the job's axes, allreduce on a line.
    pub traffic: *const c_char,
    /// Bytes of a message.
    pub bytes: u64,
}

/// A plan, except for the placement.
#[repr(C)]
pub struct EyriePlanResult {
    /// Messages of one communication step on the busiest directed link: now, and with the plan.
    pub busiest_before: u64,
    pub busiest_after: u64,
    /// Estimated communication time of a step, divided by the same before any failure.
    pub ratio: f64,
    /// The method that found the plan.
    pub method: [c_char; 16],
    /// Why it is not by the given method, or why there is no plan; else empty.
    pub note: [c_char; 240],
}

/// `eyrie_planner_plan` found a plan.
pub const EYRIE_PLAN_FOUND: c_int = 0;
/// There are not enough free nodes.
pub const EYRIE_PLAN_STUCK: c_int = 1;
/// The arguments are wrong; the note says how.
pub const EYRIE_PLAN_REFUSED: c_int = 2;

/// A job on its network.
pub struct EyriePlanner(Instance);

/// A planner, or NULL with one line in `error` (`error_len` bytes) that says what is wrong. Free it
/// with `eyrie_planner_free`.
///
/// # Safety
/// The texts end with a zero byte; `hosts` has `processes` of them or is NULL, `nodes` as many
/// numbers; `error` has `error_len` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn eyrie_planner_new(
    words: &EyriePlannerWords,
    error: *mut c_char,
    error_len: usize,
) -> *mut EyriePlanner {
    let hosts: Vec<&str> = if words.hosts.is_null() {
        Vec::new()
    } else {
        // SAFETY: `hosts` is not NULL, and the caller promises `processes` pointers.
        let pointers = unsafe { std::slice::from_raw_parts(words.hosts, words.processes) };
        // SAFETY: the caller promises that each text ends with a zero byte.
        pointers.iter().map(|&p| unsafe { text(p) }.unwrap_or("")).collect()
    };
    let nodes = if words.nodes.is_null() {
        &[][..]
    } else {
        // SAFETY: `nodes` is not NULL, and the caller promises `processes` numbers.
        unsafe { std::slice::from_raw_parts(words.nodes, words.processes) }
    };
    // SAFETY: the caller promises that each text is NULL or ends with a zero byte.
    let (network, job, spares, traffic) =
        unsafe { (text(words.network), text(words.job), text(words.spares), text(words.traffic)) };
    let read = read(&Words {
        network,
        names: None,
        hosts: &hosts,
        nodes,
        job,
        ranks_per_node: None,
        slots: None,
        spares: Some(spares.unwrap_or("1")),
        arrangement: Arrangement::Contiguous,
        traffic,
        bytes: words.bytes,
        files: Files { text: &file, slurm_topology: None, taper: 1.0 },
    });
    match read {
        Ok(instance) => Box::into_raw(Box::new(EyriePlanner(instance))),
        Err(why) => {
            // SAFETY: the caller promises `error_len` writable bytes.
            unsafe { write_text(&why, error, error_len) };
            std::ptr::null_mut()
        }
    }
}

fn read(words: &Words) -> Result<Instance, String> {
    Instance::read(words).map_err(|e| e.to_string())
}

/// The text of a file that the words name.
fn file(path: &str) -> Result<String, TopologyError> {
    std::fs::read_to_string(path).map_err(|e| TopologyError::new(format!("reading {path}: {e}")))
}

/// # Safety
/// `planner` is NULL or came from `eyrie_planner_new` and is not used again.
#[no_mangle]
pub unsafe extern "C" fn eyrie_planner_free(planner: *mut EyriePlanner) {
    if !planner.is_null() {
        // SAFETY: the caller promises that `eyrie_planner_new` made it with Box::into_raw, and that
        // it is freed once.
        drop(unsafe { Box::from_raw(planner) });
    }
}

/// Nodes of the network.
#[no_mangle]
pub extern "C" fn eyrie_planner_nodes(planner: &EyriePlanner) -> usize {
    planner.0.network.nodes()
}

/// Writes the node of each process: the one given in the words, or found by the hosts' names.
///
/// # Safety
/// `nodes` has a place for each process.
#[no_mangle]
pub unsafe extern "C" fn eyrie_planner_process_nodes(planner: &EyriePlanner, nodes: *mut c_int) {
    for (process, &node) in planner.0.nodes.iter().enumerate() {
        // SAFETY: the caller promises a place for each process.
        unsafe { *nodes.add(process) = node as c_int };
    }
}

/// Ranks of the job.
#[no_mangle]
pub extern "C" fn eyrie_planner_ranks(planner: &EyriePlanner) -> usize {
    planner.0.job.ranks()
}

/// Spare nodes.
#[no_mangle]
pub extern "C" fn eyrie_planner_spares(planner: &EyriePlanner) -> usize {
    planner.0.laid.spares.len()
}

/// Axes of the grid of ranks; writes up to `room` of their extents.
///
/// # Safety
/// `extents` has `room` writable places.
#[no_mangle]
pub unsafe extern "C" fn eyrie_planner_shape(
    planner: &EyriePlanner,
    extents: *mut c_int,
    room: usize,
) -> usize {
    for (axis, &extent) in planner.0.laid.shape.iter().take(room).enumerate() {
        // SAFETY: `axis` is less than `room`, and the caller promises `room` places.
        unsafe { *extents.add(axis) = extent as c_int };
    }
    planner.0.laid.shape.len()
}

/// Writes the node of each rank at the start, and the spare nodes in the order of first-free.
///
/// # Safety
/// `home` has a place for each rank and `spares` for each spare.
#[no_mangle]
pub unsafe extern "C" fn eyrie_planner_layout(
    planner: &EyriePlanner,
    home: *mut u32,
    spares: *mut u32,
) {
    let laid = &planner.0.laid;
    // SAFETY: the caller promises a place for each rank and for each spare.
    unsafe {
        std::ptr::copy_nonoverlapping(laid.home.as_ptr(), home, laid.home.len());
        std::ptr::copy_nonoverlapping(laid.spares.as_ptr(), spares, laid.spares.len());
    }
}

/// Writes the name of a node: its coordinates in the network, or the network's name for it.
///
/// # Safety
/// `name` has `len` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn eyrie_planner_node_name(
    planner: &EyriePlanner,
    node: u32,
    name: *mut c_char,
    len: usize,
) {
    let network = &planner.0.network;
    let words = if (node as usize) < network.nodes() {
        network.vertex_name(node)
    } else {
        format!("no node {node}")
    };
    // SAFETY: the caller promises `len` writable bytes.
    unsafe { write_text(&words, name, len) };
}

/// Whether `eyrie_planner_plan` knows `method`; if not, writes one line with the known methods.
///
/// # Safety
/// `method` ends with a zero byte; `error` has `error_len` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn eyrie_planner_knows(
    method: *const c_char,
    error: *mut c_char,
    error_len: usize,
) -> bool {
    // SAFETY: the caller promises a zero byte at the end of `method`.
    let name = unsafe { text(method) }.unwrap_or("");
    let known = Method::parse(name).is_some();
    if !known {
        let forms = method::FORMS.trim_end_matches(" or all");
        // SAFETY: the caller promises `error_len` writable bytes.
        unsafe { write_text(&format!("method `{name:.20}`: write {forms}"), error, error_len) };
    }
    known
}

/// Where the ranks go after failures. `at` is the node of each rank (of a failed node: its last
/// one), `failed` every failed node so far, `spares` the live nodes without a rank. If a
/// substitution method is stuck, the search replaces it, and the note says why. Writes the node of
/// each rank to `placement` (squeezing moves none) unless the answer is EYRIE_PLAN_REFUSED or
/// EYRIE_PLAN_STUCK.
///
/// # Safety
/// `at` and `placement` have a place for each rank, the other two the length given; `method` ends
/// with a zero byte.
#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn eyrie_planner_plan(
    planner: &EyriePlanner,
    method: *const c_char,
    at: *const u32,
    failed: *const u32,
    failed_len: usize,
    spares: *const u32,
    spares_len: usize,
    placement: *mut u32,
    result: &mut EyriePlanResult,
) -> c_int {
    let ranks = planner.0.job.ranks();
    // SAFETY: the caller promises a zero byte at the end of `method`, and arrays of these lengths.
    let (name, at, failed, spares) = unsafe {
        (
            text(method).unwrap_or(""),
            slice(at, ranks),
            slice(failed, failed_len),
            slice(spares, spares_len),
        )
    };
    let mut job = planner.0.job.clone();
    job.at = at.to_vec();
    let (code, plan) = match Method::parse(name) {
        None => (EYRIE_PLAN_REFUSED, Err(format!("no method `{name:.20}`"))),
        Some(method) => plan(&planner.0, &job, method, failed, spares),
    };
    let (method, note) = match plan {
        Ok(found) => {
            result.busiest_before = found.before;
            result.busiest_after = found.after;
            result.ratio = found.ratio;
            // SAFETY: the caller promises a place for each rank in `placement`.
            unsafe { std::ptr::copy_nonoverlapping(found.placement.as_ptr(), placement, ranks) };
            (found.method.name(), found.note)
        }
        Err(why) => (name.to_string(), why),
    };
    let method_room = result.method.len();
    let note_room = result.note.len();
    // SAFETY: `result` is a valid reference, and the lengths are those of its arrays.
    unsafe {
        write_text(&method, result.method.as_mut_ptr(), method_room);
        write_text(&note, result.note.as_mut_ptr(), note_room);
    }
    code
}

/// # Safety
/// `items` has `len` readable items, or is anything when `len` is 0.
unsafe fn slice<'a>(items: *const u32, len: usize) -> &'a [u32] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller promises `len` readable items.
    unsafe { std::slice::from_raw_parts(items, len) }
}

struct Found {
    before: u64,
    after: u64,
    ratio: f64,
    placement: Vec<NetworkNode>,
    method: Method,
    note: String,
}

/// The code and the plan, or the reason why there is none.
fn plan(
    instance: &Instance,
    job: &Job,
    method: Method,
    failed: &[NetworkNode],
    spares: &[NetworkNode],
) -> (c_int, Result<Found, String>) {
    let planned = || -> Result<Result<Found, String>, String> {
        let network = instance.network.as_ref();
        let nodes = network.nodes();
        if let Some(outside) = job.at.iter().chain(spares).find(|&&n| n as usize >= nodes) {
            return Err(format!("node {outside} is outside the network of {nodes} nodes"));
        }
        let evaluator = Evaluator { network, traffic: &job.traffic };
        let before = evaluator.count(job.at.clone()).map_err(|e| e.to_string())?.score.messages;
        let planner = Planner::new(network, job, spares, CostModel::default(), Weights::default())
            .map_err(|e| e.to_string())?
            .shape(&instance.laid.shape);
        let failures = Failures::new(network, &[failed.to_vec()]).map_err(|e| e.to_string())?;
        let mut note = String::new();
        for method in [method, Method::Search] {
            let outcome = planner.run(method, &failures).map_err(|e| e.to_string())?;
            match outcome.result {
                Ok(placed) => {
                    return Ok(Ok(Found {
                        before,
                        after: placed.score.messages,
                        ratio: placed.ratio,
                        placement: placed.placement,
                        method,
                        note,
                    }))
                }
                Err(stuck) if method == Method::Search || method == Method::Squeeze => {
                    return Ok(Err(stuck.why));
                }
                Err(stuck) => note = format!("{} is stuck: {}", method.name(), stuck.why),
            }
        }
        unreachable!("the search returns")
    };
    match planned() {
        Ok(Ok(found)) => (EYRIE_PLAN_FOUND, Ok(found)),
        Ok(Err(why)) => (EYRIE_PLAN_STUCK, Err(why)),
        Err(why) => (EYRIE_PLAN_REFUSED, Err(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(network: &str, spares: &str) -> Instance {
        read(&Words {
            network: Some(network),
            names: None,
            hosts: &[],
            nodes: &[],
            job: None,
            ranks_per_node: None,
            slots: None,
            spares: Some(spares),
            arrangement: Arrangement::Contiguous,
            traffic: None,
            bytes: 1 << 20,
            files: Files { text: &file, slurm_topology: None, taper: 1.0 },
        })
        .unwrap()
    }

    #[test]
    fn every_method_goes_on_from_where_the_job_is() {
        for name in ["first-free", "0d", "1d", "2d", "hybrid", "search"] {
            let method = Method::parse(name).unwrap();
            let instance = instance("mesh:5x5", "2d(2,1)");
            let mut job = instance.job.clone();
            let mut failed = Vec::new();
            let mut free = instance.laid.spares.clone();
            for rank in [5, 10, 5] {
                failed.push(job.at[rank]);
                let (code, found) = plan(&instance, &job, method, &failed, &free);
                let found = found.unwrap();
                assert_eq!(code, EYRIE_PLAN_FOUND);
                assert!(found.placement.iter().all(|n| !failed.contains(n)), "{name}");
                assert!(found.method == method || found.note.contains("stuck"), "{name}");
                job.at = found.placement;
                free = (0..25).filter(|n| !failed.contains(n) && !job.at.contains(n)).collect();
            }
        }
    }

    #[test]
    fn without_a_free_node_it_is_stuck_and_squeezing_moves_no_rank() {
        let instance = instance("torus:4x3", "0");
        let failed = [4];
        let (code, found) = plan(&instance, &instance.job, Method::Hybrid, &failed, &[]);
        assert_eq!((code, found.is_err()), (EYRIE_PLAN_STUCK, true));
        let (code, found) = plan(&instance, &instance.job, Method::Squeeze, &failed, &[]);
        assert_eq!((code, found.unwrap().placement), (EYRIE_PLAN_FOUND, instance.job.at.clone()));
        let (code, found) = plan(&instance, &instance.job, Method::Search, &[99], &[]);
        assert_eq!((code, found.is_err()), (EYRIE_PLAN_REFUSED, true));
    }
}
