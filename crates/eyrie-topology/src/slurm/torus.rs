//! The toruses of a topology.yaml: extents, and either all nodes (x fastest) or regions, each a box
//! with its nodes.

use serde::Deserialize;

use super::words::{Many, Names, Word};
use crate::cartesian::Cartesian;
use crate::coords;
use crate::error::TopologyError;
use crate::hostlist::{self, shorten};
use crate::names::Names as Known;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Torus {
    pub name: Word,
    dims: Dims,
    nodes: Option<Names>,
    regions: Option<Many<Region>>,
    placements: Option<Many<Placement>>,
}

/// Extents, or coordinates.
#[derive(Deserialize, Clone, Copy, Default)]
#[serde(deny_unknown_fields, default)]
struct Dims {
    x: u16,
    y: u16,
    z: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Region {
    #[serde(default)]
    anchor: Dims,
    dims: Dims,
    nodes: Names,
}

/// A shape that Slurm gives to jobs; it says nothing about the network.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Placement {
    dims: Dims,
    #[serde(default)]
    anchor_seed: Dims,
    #[serde(default)]
    anchor_spacing: Dims,
}

impl Dims {
    fn array(self) -> [usize; 3] {
        [self.x.into(), self.y.into(), self.z.into()]
    }

    fn extents(self, what: &str) -> Result<[usize; 3], TopologyError> {
        let dims = self.array();
        if dims.contains(&0) {
            return crate::refuse!("{what} needs x, y and z, each from 1 to 65535");
        }
        Ok(dims)
    }

    fn all(self, dims: &[usize; 3], holds: fn(&usize, &usize) -> bool) -> bool {
        self.array().iter().zip(dims).all(|(one, whole)| holds(one, whole))
    }
}

impl Torus {
    /// The network, and the names of its nodes in its order. They are added to `known`, too: a node
    /// is in one place only.
    pub fn read(&self, known: &mut Known) -> Result<(Cartesian, Vec<String>), TopologyError> {
        let dims = self.dims.extents("dims")?;
        coords::parse_dims(&coords::format_dims(&dims))?;
        let mut names: Vec<String> = vec![String::new(); dims.iter().product()];
        match (&self.nodes, &self.regions) {
            (Some(_), Some(_)) => return crate::refuse!("both nodes and regions: keep one"),
            (None, None) => return crate::refuse!("neither nodes nor regions"),
            (Some(nodes), None) => fill(&mut names, &dims, [0; 3], dims, &nodes.0)?,
            (None, Some(regions)) => {
                for region in &regions.0 {
                    region.fill(&mut names, &dims)?;
                }
            }
        }
        for placement in self.placements.iter().flat_map(|all| &all.0) {
            placement.check(&dims)?;
        }
        if let Some(hole) = names.iter().position(String::is_empty) {
            return crate::refuse!(
                "no node is at {} of {}: Eyrie reads toruses that are full",
                coords::format(&coords::of(hole, &dims)),
                coords::format_dims(&dims)
            );
        }
        for name in &names {
            if !known.add(name) {
                return crate::refuse!("node `{}` is in two places", shorten(name));
            }
        }
        Ok((Cartesian::torus(&dims), names))
    }
}

impl Region {
    fn fill(&self, names: &mut [String], dims: &[usize; 3]) -> Result<(), TopologyError> {
        let anchor = self.anchor.array();
        let extent = self.dims.extents("dims of a region")?;
        if (0..3).any(|i| anchor[i] + extent[i] > dims[i]) {
            return crate::refuse!(
                "region {} at {} does not fit into {}",
                coords::format_dims(&extent),
                coords::format(&anchor),
                coords::format_dims(dims)
            );
        }
        fill(names, dims, anchor, extent, &self.nodes.0)
    }
}

impl Placement {
    fn check(&self, dims: &[usize; 3]) -> Result<(), TopologyError> {
        self.dims.extents("dims of a placement")?;
        let fits = self.dims.all(dims, usize::le)
            && self.anchor_spacing.all(dims, usize::le)
            && self.anchor_seed.all(dims, usize::lt);
        if !fits {
            return crate::refuse!("a placement does not fit into {}", coords::format_dims(dims));
        }
        Ok(())
    }
}

/// Puts nodes into a box, x fastest.
fn fill(
    names: &mut [String],
    dims: &[usize; 3],
    anchor: [usize; 3],
    extent: [usize; 3],
    nodes: &str,
) -> Result<(), TopologyError> {
    let hosts = hostlist::expand(nodes)?;
    let expected: usize = extent.iter().product();
    if hosts.len() != expected {
        return crate::refuse!(
            "{} has room for {expected} nodes but `nodes` names {}",
            coords::format_dims(&extent),
            hosts.len()
        );
    }
    for (i, host) in hosts.into_iter().enumerate() {
        let x = i % extent[0];
        let y = i / extent[0] % extent[1];
        let z = i / extent[0] / extent[1];
        let at = coords::index(&[anchor[0] + x, anchor[1] + y, anchor[2] + z], dims);
        if !names[at].is_empty() {
            return crate::refuse!("regions overlap at `{}`", shorten(&host));
        }
        names[at] = host;
    }
    Ok(())
}
