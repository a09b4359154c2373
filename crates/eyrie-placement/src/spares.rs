//! Which nodes stay spare, and where the job is on the others.
//!
//! `nD(d,w)`: spares of width w on d sides of an n-dimensional job, so that 3D(2,1) of X×Y×Z nodes
//! leaves (X−1)(Y−1)Z. We take the sides in this order: the high ends of the first axes, then the
//! low ends.

use std::fmt;

use eyrie_topology::{coords, refuse, Layout, Network, NetworkNode, TopologyError};

use crate::job::Job;
use crate::traffic::Traffic;

/// A set of spare nodes, as the user writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpareSet {
    /// `nd(d,w)`.
    Planes { n: usize, sides: usize, width: usize },
    /// The last nodes of the grid; also written as their number alone.
    Contiguous(usize),
    /// Nodes spread evenly over the grid.
    Scattered(usize),
    /// Named nodes, in the order of "first free".
    List(Vec<String>),
}

/// The forms of spares, for `--help` and errors.
pub const FORMS: &str =
    "nd(d,w) such as 2d(2,1), contiguous:COUNT (or COUNT alone), scattered:COUNT, \
     list:NODE;NODE;…, or, \
     where hosts are known, hosts:HOST;HOST;…";

impl SpareSet {
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        let wrong = || refuse!("spares `{text:.60}`: write {FORMS}");
        let count = |t: &str| match t.parse::<usize>() {
            Ok(n) => Ok(n),
            Err(_) => refuse!("spares `{text:.60}`: `{t:.20}` is not a count"),
        };
        if let Ok(last) = text.parse::<usize>() {
            return Ok(SpareSet::Contiguous(last));
        }
        if let Some((kind, rest)) = text.split_once(':') {
            return match kind {
                "contiguous" => Ok(SpareSet::Contiguous(count(rest)?)),
                "scattered" => Ok(SpareSet::Scattered(count(rest)?)),
                "list" => {
                    let names = rest.split(';').map(|n| n.trim().to_string());
                    Ok(SpareSet::List(names.filter(|n| !n.is_empty()).collect()))
                }
                _ => wrong(),
            };
        }
        let lower = text.to_ascii_lowercase();
        let Some((n, inner)) = lower.strip_suffix(')').and_then(|t| t.split_once("d(")) else {
            return wrong();
        };
        let Some((sides, width)) = inner.split_once(',') else { return wrong() };
        let n = count(n)?;
        let sides = count(sides.trim())?;
        let width = count(width.trim())?;
        if n == 0 || n > 16 || sides == 0 || sides > 2 * n || width == 0 || width > 1 << 20 {
            return refuse!(
                "spares `{text:.60}`: n is 1 to 16, d is 1 to 2n and w at least 1, not {n}, \
                 {sides} and {width}"
            );
        }
        Ok(SpareSet::Planes { n, sides, width })
    }

    /// Low and high margin on each of n axes.
    fn margins(n: usize, sides: usize, width: usize) -> Vec<(usize, usize)> {
        let side = |i: usize| if i < sides { width } else { 0 };
        (0..n).map(|axis| (side(n + axis), side(axis))).collect()
    }
}

impl fmt::Display for SpareSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpareSet::Planes { n, sides, width } => write!(f, "{n}d({sides},{width})"),
            SpareSet::Contiguous(count) => write!(f, "contiguous:{count}"),
            SpareSet::Scattered(count) => write!(f, "scattered:{count}"),
            SpareSet::List(names) => write!(f, "list:{}", names.join(";")),
        }
    }
}

/// How the extended grid of a job is laid on a network without a grid of its own. The documentation
/// of each choice is what `--help` says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Arrangement {
    /// Cell i on node i: spares are beside the lines that use them
    #[default]
    Contiguous,
    /// Ranks on the first nodes, spares together on the last
    Separate,
}

/// A job laid out with its spares.
#[derive(Debug, Clone)]
pub struct Laid {
    pub layout: Layout,
    /// Extents of the job's own grid of ranks.
    pub shape: Vec<usize>,
    /// Node of each rank.
    pub home: Vec<NetworkNode>,
    /// Spare nodes in the order of "first free".
    pub spares: Vec<NetworkNode>,
    /// Notes for the user about the layout.
    pub notes: Vec<String>,
}

/// Lays out a job of extents `shape` (or the largest that fits) with `spares` on `network`. `grid`
/// is the network's own layout, if it has one; `resolve` turns the text of a node into its number.
pub fn lay(
    network: &dyn Network,
    grid: Option<&Layout>,
    shape: Option<&[usize]>,
    spares: &SpareSet,
    arrangement: Arrangement,
    resolve: &dyn Fn(&str, &Layout) -> Result<NetworkNode, TopologyError>,
) -> Result<Laid, TopologyError> {
    let laid = match (spares, grid) {
        (SpareSet::Planes { n, sides, width }, Some(grid)) => {
            planes_in_grid(grid, shape, *n, *sides, *width)?
        }
        (SpareSet::Planes { n, sides, width }, None) => {
            planes_around(network, shape, *n, *sides, *width, arrangement)?
        }
        _ => counted(network, grid, shape, spares, resolve)?,
    };
    if laid.spares.is_empty() {
        return refuse!("no spare node is left: make the job smaller or the spares wider");
    }
    Ok(laid)
}

fn fits(shape: &[usize], dims: &[usize], what: &str) -> Result<(), TopologyError> {
    if shape.len() != dims.len() {
        return refuse!(
            "job {} has {} axes but {what} {} has {}: give as many",
            coords::format_dims(shape),
            shape.len(),
            coords::format_dims(dims),
            dims.len()
        );
    }
    match (0..dims.len()).find(|&a| shape[a] > dims[a]) {
        Some(axis) => refuse!(
            "job {} is larger than {what} {}: at most {} on axis {axis}",
            coords::format_dims(shape),
            coords::format_dims(dims),
            dims[axis]
        ),
        None => Ok(()),
    }
}

fn planes_in_grid(
    grid: &Layout,
    shape: Option<&[usize]>,
    n: usize,
    sides: usize,
    width: usize,
) -> Result<Laid, TopologyError> {
    let dims = grid.dims();
    if n != dims.len() {
        return refuse!(
            "spares {n}d({sides},{width}) need a grid of {n} axes: {} has {}",
            coords::format_dims(dims),
            dims.len()
        );
    }
    let margins = SpareSet::margins(n, sides, width);
    let mut inner = Vec::new();
    for axis in 0..n {
        let taken = margins[axis].0 + margins[axis].1;
        if taken >= dims[axis] {
            return refuse!(
                "spares {n}d({sides},{width}) take {taken} of {} on axis {axis}: nothing is left \
                 for the job",
                dims[axis]
            );
        }
        inner.push(dims[axis] - taken);
    }
    let shape = shape.unwrap_or(&inner).to_vec();
    fits(&shape, dims, "the network")?;
    // The spares surround the job if both fit, else they are on the sides of the network.
    let around: Vec<usize> = (0..n).map(|a| shape[a] + margins[a].0 + margins[a].1).collect();
    let room = (0..n).all(|a| around[a] <= dims[a]);
    let edge = if room { &around } else { dims };
    let origin: Vec<usize> = (0..n).map(|a| margins[a].0.min(edge[a] - shape[a])).collect();
    let mut home = Vec::new();
    let mut spares = Vec::new();
    let mut taken = 0;
    coords::for_each(dims, |c| {
        let node = grid.node(coords::index(c, dims));
        let in_job = (0..n).all(|a| c[a] >= origin[a] && c[a] < origin[a] + shape[a]);
        let inside = (0..n).all(|a| c[a] < edge[a]);
        let marked =
            inside && (0..n).any(|a| c[a] < margins[a].0 || c[a] + margins[a].1 >= edge[a]);
        if in_job {
            home.push(node);
            taken += usize::from(marked);
        } else if marked {
            spares.push(node);
        }
    });
    let mut notes = Vec::new();
    if taken > 0 {
        notes.push(format!(
            "job {} takes {taken} of the {} nodes that {n}d({sides},{width}) marks as spare; {} \
             remain",
            coords::format_dims(&shape),
            taken + spares.len(),
            spares.len()
        ));
    }
    Ok(Laid { layout: grid.clone(), shape, home, spares, notes })
}

fn planes_around(
    network: &dyn Network,
    shape: Option<&[usize]>,
    n: usize,
    sides: usize,
    width: usize,
    arrangement: Arrangement,
) -> Result<Laid, TopologyError> {
    let Some(shape) = shape else {
        return refuse!(
            "{} has no grid of its own: give the job's extents, such as --job 4x4",
            network.describe()
        );
    };
    if shape.len() != n {
        return refuse!(
            "spares {n}d({sides},{width}) need a job of {n} axes: {} has {}",
            coords::format_dims(shape),
            shape.len()
        );
    }
    let margins = SpareSet::margins(n, sides, width);
    let dims: Vec<usize> = (0..n).map(|a| shape[a] + margins[a].0 + margins[a].1).collect();
    coords::parse_dims(&coords::format_dims(&dims))?;
    let (cells, ranks): (usize, usize) = (dims.iter().product(), shape.iter().product());
    if cells > network.nodes() {
        return refuse!(
            "job {} with spares {n}d({sides},{width}) needs {cells} nodes: {} has {}",
            coords::format_dims(shape),
            network.describe(),
            network.nodes()
        );
    }
    let mut home = Vec::new();
    let mut spares = Vec::new();
    let mut nodes = Vec::new();
    coords::for_each(&dims, |c| {
        let in_job = (0..n).all(|a| c[a] >= margins[a].0 && c[a] < margins[a].0 + shape[a]);
        let node = match (arrangement, in_job) {
            (Arrangement::Contiguous, _) => nodes.len(),
            (Arrangement::Separate, true) => home.len(),
            (Arrangement::Separate, false) => network.nodes() - (cells - ranks) + spares.len(),
        } as NetworkNode;
        nodes.push(node);
        if in_job { &mut home } else { &mut spares }.push(node);
    });
    let layout = Layout::new(&dims, nodes, network.nodes())?;
    Ok(Laid { layout, shape: shape.to_vec(), home, spares, notes: Vec::new() })
}

fn counted(
    network: &dyn Network,
    grid: Option<&Layout>,
    shape: Option<&[usize]>,
    spares: &SpareSet,
    resolve: &dyn Fn(&str, &Layout) -> Result<NetworkNode, TopologyError>,
) -> Result<Laid, TopologyError> {
    let layout = match grid {
        Some(grid) => grid.clone(),
        None => Layout::identity(&[network.nodes()], network.nodes())?,
    };
    let cells = layout.cells();
    let check = |count: usize| {
        if count >= cells {
            return refuse!("{count} spares of {cells} nodes leave nothing for the job");
        }
        Ok(count)
    };
    let nodes: Vec<NetworkNode> = match spares {
        SpareSet::Contiguous(count) => {
            (cells - check(*count)?..cells).map(|c| layout.node(c)).collect()
        }
        SpareSet::Scattered(count) => {
            let count = check(*count)?;
            (0..count).map(|i| layout.node((2 * i + 1) * cells / (2 * count))).collect()
        }
        SpareSet::List(names) => {
            check(names.len())?;
            names.iter().map(|name| resolve(name, &layout)).collect::<Result<_, _>>()?
        }
        SpareSet::Planes { .. } => Vec::new(),
    };
    let spare: std::collections::HashSet<NetworkNode> = nodes.iter().copied().collect();
    if spare.len() < nodes.len() {
        return refuse!("a spare node is listed twice in {spares}");
    }
    let room = cells - spare.len();
    let shape = match shape {
        Some(shape) => shape.to_vec(),
        None => default_shape(layout.dims(), room, spares)?,
    };
    let ranks: usize = shape.iter().product();
    if ranks > room {
        return refuse!(
            "job {} needs {ranks} nodes: {cells} nodes less {} spares leave {room}",
            coords::format_dims(&shape),
            spare.len()
        );
    }
    let mut notes = Vec::new();
    let home = match boxed(&layout, &shape, &spare) {
        Some(home) => home,
        None => {
            notes.push(format!(
                "ranks fill the non-spare nodes in order, because a box {} does not avoid the \
                 spares",
                coords::format_dims(&shape)
            ));
            let free = (0..cells).map(|c| layout.node(c)).filter(|n| !spare.contains(n));
            free.take(ranks).collect()
        }
    };
    Ok(Laid { layout, shape, home, spares: nodes, notes })
}

/// The grid without whole slices of its first axis, if the spares leave exactly that.
fn default_shape(
    dims: &[usize],
    room: usize,
    spares: &SpareSet,
) -> Result<Vec<usize>, TopologyError> {
    let slice: usize = dims[1..].iter().product();
    if room % slice != 0 {
        return refuse!(
            "spares {spares} leave {room} nodes, which is no whole part of {}: give the job's \
             extents",
            coords::format_dims(dims)
        );
    }
    let mut shape = dims.to_vec();
    shape[0] = room / slice;
    Ok(shape)
}

/// The box at the origin, unless a spare is in it or it does not fit.
fn boxed(
    layout: &Layout,
    shape: &[usize],
    spare: &std::collections::HashSet<NetworkNode>,
) -> Option<Vec<NetworkNode>> {
    fits(shape, layout.dims(), "the network").ok()?;
    let mut home = Vec::new();
    coords::for_each(shape, |c| home.push(layout.node(coords::index(c, layout.dims()))));
    home.iter().all(|n| !spare.contains(n)).then_some(home)
}

/// The node of a host name: from `names`, in node order, or of the network.
pub fn named(host: &str, network: &dyn Network, names: &[String]) -> Option<NetworkNode> {
    let listed = names.iter().position(|n| n == host).map(|node| node as NetworkNode);
    listed.or_else(|| network.node_by_name(host))
}

/// The node of a host, whose name may be written without its domain there.
pub fn of_host(host: &str, network: &dyn Network, names: &[String]) -> Option<NetworkNode> {
    let short = host.split('.').next().unwrap_or(host);
    named(host, network, names).or_else(|| named(short, network, names))
}

/// The node of a text: a host name (from `names`, in node order, or of the network), a number,
/// coordinates in the grid, or in the network's own axes.
pub fn resolve(
    written: &str,
    network: &dyn Network,
    layout: &Layout,
    names: &[String],
) -> Result<NetworkNode, TopologyError> {
    if let Some(node) = named(written, network, names) {
        return Ok(node);
    }
    let refuse = |why: String| Err(TopologyError(why));
    let parts: Result<Vec<usize>, _> = written.split(',').map(|p| p.trim().parse()).collect();
    let Ok(at) = parts else {
        return refuse(format!("node `{written:.40}` is no node name, number or coordinates"));
    };
    let inside = |dims: &[usize]| match at.iter().zip(dims).position(|(c, d)| c >= d) {
        None => Ok(()),
        Some(axis) => Err(TopologyError(format!(
            "coordinate {} of node {written:.40} is outside {}: 0 to {} on axis {axis}",
            at[axis],
            coords::format_dims(dims),
            dims[axis] - 1
        ))),
    };
    if at.len() == layout.dims().len() && at.len() > 1 {
        inside(layout.dims())?;
        return Ok(layout.node(coords::index(&at, layout.dims())));
    }
    if let Some(own) = network.grid().filter(|own| own.len() == at.len() && at.len() > 1) {
        inside(&own)?;
        return Ok(coords::index(&at, &own) as NetworkNode);
    }
    match at[..] {
        [number] if number < network.nodes() => Ok(number as NetworkNode),
        [number] => {
            refuse(format!("node {number} is outside the network: 0 to {}", network.nodes() - 1))
        }
        _ => refuse(format!(
            "node {written:.40} has {} coordinates: the grid {} needs {}",
            at.len(),
            coords::format_dims(layout.dims()),
            layout.dims().len()
        )),
    }
}

/// A job with this layout and traffic, and one rank a node.
///
/// # Errors
/// As [`Job::new`].
pub fn job(laid: &Laid, traffic: Traffic) -> Result<Job, TopologyError> {
    Job::new(laid.layout.clone(), laid.home.clone(), traffic)
}

/// Most ranks of a job.
const MOST_RANKS: usize = 1 << 24;

/// The extents of the grid of ranks of which each node of the job has a part with these extents.
///
/// # Errors
/// When there are too many ranks.
pub fn grid_of_ranks(laid: &Laid, share: &[usize]) -> Result<Vec<usize>, TopologyError> {
    let pairs = laid.shape.iter().zip(share);
    let shape: Option<Vec<usize>> = pairs.map(|(nodes, ranks)| nodes.checked_mul(*ranks)).collect();
    let ranks = |shape: &Vec<usize>| shape.iter().try_fold(1usize, |n, axis| n.checked_mul(*axis));
    match shape.filter(|shape| ranks(shape).is_some_and(|ranks| ranks <= MOST_RANKS)) {
        Some(shape) => Ok(shape),
        None => refuse!("more than {MOST_RANKS} ranks in all"),
    }
}

/// A job with this layout and traffic, of whose grid of ranks each node has a part with these
/// extents, and up to `slots` ranks.
///
/// # Errors
/// As [`Job::on_slots`], and [`grid_of_ranks`].
pub fn job_on_slots(
    laid: &Laid,
    share: &[usize],
    slots: u32,
    traffic: Traffic,
) -> Result<Job, TopologyError> {
    let mut home = Vec::new();
    coords::for_each(&grid_of_ranks(laid, share)?, |rank| {
        let node: Vec<usize> = rank.iter().zip(share).map(|(at, ranks)| at / ranks).collect();
        home.push(laid.home[coords::index(&node, &laid.shape)]);
    });
    Job::on_slots(laid.layout.clone(), home, slots, traffic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_topology::spec;

    fn laid(network: &str, job: Option<&str>, spares: &str) -> Result<Laid, TopologyError> {
        let parsed = spec::parse(network).unwrap();
        let shape = job.map(|j| coords::parse_dims(j).unwrap());
        let resolve = |name: &str, _: &Layout| Ok(name.parse().unwrap());
        lay(
            parsed.network.as_ref(),
            parsed.layout.as_ref(),
            shape.as_deref(),
            &SpareSet::parse(spares)?,
            Arrangement::Contiguous,
            &resolve,
        )
    }

    #[test]
    fn planes_leave_as_many_nodes_as_in_the_papers() {
        let l = laid("torus:5x6x7", None, "3D(2,1)").unwrap();
        assert_eq!((l.shape, l.home.len(), l.spares.len()), (vec![4, 5, 7], 140, 70));
        let l = laid("mesh:13x13", None, "2d(2,1)").unwrap();
        assert_eq!((l.shape, l.spares.len()), (vec![12, 12], 25));
        let l = laid("mesh:14x14", None, "2d(4,1)").unwrap();
        assert_eq!((l.shape, l.home[0]), (vec![12, 12], 15));
    }

    #[test]
    fn a_job_that_takes_some_of_the_spares_is_noted() {
        let l = laid("torus:12x12", Some("11x12"), "2d(2,1)").unwrap();
        assert_eq!((l.home.len(), l.spares.len()), (132, 12));
        assert!(l.notes[0].contains("takes 11 of the 23"), "{:?}", l.notes);
    }

    #[test]
    fn a_smaller_job_has_its_spares_around_it() {
        let l = laid("mesh:9x9", Some("4x5"), "2d(2,1)").unwrap();
        assert_eq!((l.home.len(), l.spares.len()), (20, 10));
        assert!(l.spares.contains(&(4 * 9)) && l.spares.contains(&5));
    }

    #[test]
    fn counted_spares_leave_a_box_or_fill_in_order() {
        let l = laid("mesh:12x12", None, "contiguous:12").unwrap();
        assert_eq!((l.shape, l.home.len(), l.spares[0]), (vec![11, 12], 132, 132));
        let l = laid("mesh:12x12", None, "scattered:12").unwrap();
        assert_eq!((l.shape, l.home.len(), l.notes.len()), (vec![11, 12], 132, 1));
        let l = laid("fattree:4^3", Some("6x6"), "contiguous:8").unwrap();
        assert_eq!((l.home.len(), l.spares[0]), (36, 56));
    }

    #[test]
    fn on_a_network_without_a_grid_spares_are_beside_the_job_or_apart() {
        let l = laid("fattree:6^3", Some("4x4x4"), "3d(2,1)").unwrap();
        assert_eq!((l.layout.dims(), l.spares.len(), l.home[4]), (&[5, 5, 4][..], 36, 4));
        let parsed = spec::parse("fattree:6^3").unwrap();
        let spares = SpareSet::parse("3d(2,1)").unwrap();
        let resolve = |name: &str, _: &Layout| Ok(name.parse().unwrap());
        let l = lay(
            parsed.network.as_ref(),
            None,
            Some(&[4, 4, 4]),
            &spares,
            Arrangement::Separate,
            &resolve,
        )
        .unwrap();
        assert_eq!((l.home[63], l.spares[0], l.spares[35]), (63, 180, 215));
    }

    #[test]
    fn errors_name_the_fault() {
        for (network, job, spares, fault) in [
            ("mesh:4x4", None, "2d(5,1)", "d is 1 to 2n"),
            ("mesh:4x4", None, "2d(2,4)", "nothing is left for the job"),
            ("mesh:4x4", None, "3d(2,1)", "need a grid of 3 axes"),
            ("mesh:4x4", Some("5x3"), "2d(2,1)", "larger than the network 4x4"),
            ("mesh:4x4", Some("4x4"), "2d(2,1)", "no spare node is left"),
            ("mesh:4x4", None, "contiguous:3", "give the job's extents"),
            ("mesh:4x4", None, "contiguous:16", "leave nothing"),
            ("mesh:4x4", Some("4x4"), "contiguous:4", "leave 12"),
            ("mesh:4x4", None, "some", "write nd(d,w)"),
            ("mesh:4x4", None, "list:1;1;2;3", "twice"),
            ("fattree:4^2", None, "2d(2,1)", "give the job's extents"),
            ("fattree:4^2", Some("4x4"), "2d(2,1)", "needs 25 nodes"),
        ] {
            let error = laid(network, job, spares).unwrap_err().0;
            assert!(error.contains(fault), "{network} {spares}: {error}");
        }
    }
}
