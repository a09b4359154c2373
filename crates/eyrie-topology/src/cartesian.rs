//! Mesh and torus of any dimension with dimension-order routing: the axes are corrected one after
//! the other in a selectable order, on a ring the shorter way round (ties go to the higher
//! coordinate).

use crate::coords;
use crate::error::TopologyError;
use crate::network::{Lines, LinkId, Network, NetworkNode, RouteError, Run, VertexId};
use std::ops::Range;

/// From this extent on an axis is long: routes along it can be given as runs.
const LONG: usize = 16;

/// A box of nodes; each axis is a line or a ring. Link id = node × 2n + 2·axis + (0 up, 1 down).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cartesian {
    dims: Vec<usize>,
    strides: Vec<usize>,
    wrap: Vec<bool>,
    order: Vec<usize>,
    /// Coordinates of every node, one node after the other: routing does little else than read
    /// them.
    at: Vec<u32>,
}

impl Cartesian {
    /// A mesh: no axis wraps round.
    pub fn mesh(dims: &[usize]) -> Self {
        Self::new(dims, &vec![false; dims.len()])
    }

    /// A torus: every axis wraps round.
    pub fn torus(dims: &[usize]) -> Self {
        Self::new(dims, &vec![true; dims.len()])
    }

    /// Lines and rings mixed. Axes are routed in the order 0, 1, 2, … until [`Self::with_order`].
    pub fn new(dims: &[usize], wrap: &[bool]) -> Self {
        assert_eq!(dims.len(), wrap.len());
        let mut at = Vec::with_capacity(dims.iter().product::<usize>() * dims.len());
        coords::for_each(dims, |c| at.extend(c.iter().map(|&v| v as u32)));
        Cartesian {
            at,
            dims: dims.to_vec(),
            strides: coords::strides(dims),
            wrap: wrap.to_vec(),
            order: (0..dims.len()).collect(),
        }
    }

    /// Routes the axes in this order; it must be a permutation of `0..n`.
    pub fn with_order(mut self, order: &[usize]) -> Result<Self, TopologyError> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if sorted != (0..self.dims.len()).collect::<Vec<_>>() {
            return crate::refuse!(
                "routing order {} must name each of the {} axes once",
                coords::format(order),
                self.dims.len()
            );
        }
        self.order = order.to_vec();
        Ok(self)
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    #[inline]
    fn coordinate(&self, node: NetworkNode, axis: usize) -> usize {
        self.at[node as usize * self.dims.len() + axis] as usize
    }

    /// Whether the short way from `a` to `b` on `axis` goes up.
    #[inline]
    fn goes_up(&self, a: usize, b: usize, axis: usize) -> bool {
        if !self.wrap[axis] {
            return b > a;
        }
        let up = if b >= a { b - a } else { b + self.dims[axis] - a };
        2 * up <= self.dims[axis]
    }

    /// Walks `axis` from `node` to coordinate `target`; returns where it ends.
    #[inline]
    pub(crate) fn walk(
        &self,
        node: NetworkNode,
        axis: usize,
        target: usize,
        up: bool,
        out: &mut impl Trace,
    ) -> NetworkNode {
        let extent = self.dims[axis];
        let stride = self.strides[axis];
        let at = self.coordinate(node, axis);
        let base = node as usize - at * stride;
        let mut add = |span| out.add(self, base, axis, up, span);
        // Up to the end of the axis and on from its other end, as ranges, whose length is known in
        // advance.
        match (up, at <= target) {
            (true, true) => add(at..target),
            (true, false) => {
                add(at..extent);
                add(0..target);
            }
            (false, false) => add(target + 1..at + 1),
            (false, true) if at == target => {}
            (false, true) => {
                add(0..at + 1);
                add(target + 1..extent);
            }
        }
        (base + target * stride) as NetworkNode
    }

    /// Walks `axis` the short way; `reverse` takes the long way round a ring instead.
    #[inline]
    pub(crate) fn correct(
        &self,
        node: NetworkNode,
        to: NetworkNode,
        axis: usize,
        reverse: bool,
        out: &mut impl Trace,
    ) -> NetworkNode {
        let (a, b) = (self.coordinate(node, axis), self.coordinate(to, axis));
        if a == b {
            return node;
        }
        let up = self.goes_up(a, b, axis) != (reverse && self.wrap[axis]);
        self.walk(node, axis, b, up, out)
    }

    /// Corrects every axis the short way.
    fn walk_all(&self, from: NetworkNode, to: NetworkNode, out: &mut impl Trace) {
        let mut here = from;
        for &axis in &self.order {
            here = self.correct(here, to, axis, false, out);
        }
    }

    /// Whether routes should be taken as runs.
    pub(crate) fn is_long(&self) -> bool {
        self.dims.iter().any(|&extent| extent >= LONG)
    }

    /// The first place of a line. The lines of an axis and a direction follow each other. `base`:
    /// the line's first node.
    fn first_place(&self, base: usize, axis: usize, up: bool) -> usize {
        let extent = self.dims[axis];
        let stride = self.strides[axis];
        let line = base / (extent * stride) * stride + base % stride;
        (2 * axis + usize::from(!up)) * self.nodes() + line * extent
    }

    fn link(&self, link: LinkId) -> (usize, usize, bool) {
        let ports = 2 * self.dims.len();
        let node = link as usize / ports;
        let port = link as usize % ports;
        (node, port / 2, port % 2 == 0)
    }

    fn neighbour(&self, node: usize, axis: usize, up: bool) -> Option<usize> {
        let at = self.coordinate(node as NetworkNode, axis);
        let extent = self.dims[axis];
        let stride = self.strides[axis];
        if extent == 1 {
            return None;
        }
        match (up, self.wrap[axis]) {
            (true, _) if at + 1 < extent => Some(node + stride),
            (true, true) => Some(node - at * stride),
            (false, _) if at > 0 => Some(node - stride),
            (false, true) => Some(node + (extent - 1) * stride),
            _ => None,
        }
    }

    /// Axis of a link, and whether it is the wrap-around link of its ring.
    pub(crate) fn axis_and_dateline(&self, link: LinkId) -> (usize, bool) {
        let (node, axis, up) = self.link(link);
        let at = self.coordinate(node as NetworkNode, axis);
        (axis, if up { at + 1 == self.dims[axis] } else { at == 0 })
    }
}

impl Network for Cartesian {
    fn describe(&self) -> String {
        let kind = if self.wrap.iter().any(|&w| w) { "torus" } else { "mesh" };
        let straight = self.order.iter().enumerate().all(|(i, &a)| i == a);
        let order = if straight {
            String::new()
        } else {
            format!(":order={}", coords::format(&self.order))
        };
        format!("{kind}:{}{order}", coords::format_dims(&self.dims))
    }

    fn nodes(&self) -> usize {
        self.dims.iter().product()
    }

    fn links(&self) -> usize {
        self.nodes() * 2 * self.dims.len()
    }

    fn route(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<LinkId>,
    ) -> Result<(), RouteError> {
        self.walk_all(from, to, out);
        Ok(())
    }

    fn lines(&self) -> Option<&dyn Lines> {
        self.is_long().then_some(self as &dyn Lines)
    }

    fn link_ends(&self, link: LinkId) -> (VertexId, VertexId) {
        let (node, axis, up) = self.link(link);
        let to = self.neighbour(node, axis, up).unwrap_or(node);
        (node as VertexId, to as VertexId)
    }

    fn out_links(&self, vertex: VertexId, out: &mut Vec<(LinkId, VertexId)>) {
        for axis in 0..self.dims.len() {
            for (port, up) in [(0, true), (1, false)] {
                if let Some(to) = self.neighbour(vertex as usize, axis, up) {
                    let link = vertex as usize * 2 * self.dims.len() + 2 * axis + port;
                    out.push((link as LinkId, to as VertexId));
                }
            }
        }
    }

    /// The long way round one or more rings, axes still in order.
    fn alternative(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        index: usize,
        out: &mut Vec<LinkId>,
    ) -> bool {
        let rings: Vec<usize> = (0..self.dims.len())
            .filter(|&a| self.wrap[a] && self.coordinate(from, a) != self.coordinate(to, a))
            .collect();
        let choice = index + 1;
        if choice >= 1 << rings.len() {
            return false;
        }
        let mut here = from;
        for &axis in &self.order {
            let long = rings.iter().position(|&r| r == axis).is_some_and(|b| choice >> b & 1 == 1);
            here = self.correct(here, to, axis, long, out);
        }
        true
    }

    /// Channel 1 from a ring's wrap-around link on (the dateline), 0 before, again on each axis.
    fn channels(&self, _from: NetworkNode, route: &[LinkId]) -> Vec<u8> {
        let mut last = usize::MAX;
        let mut crossed = 0;
        route
            .iter()
            .map(|&link| {
                let (axis, dateline) = self.axis_and_dateline(link);
                if axis != last {
                    (last, crossed) = (axis, 0);
                }
                if dateline {
                    crossed = 1;
                }
                crossed
            })
            .collect()
    }

    fn grid(&self) -> Option<Vec<usize>> {
        Some(self.dims.clone())
    }

    fn nodes_forward(&self) -> bool {
        true
    }
}

impl Lines for Cartesian {
    fn runs(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<Run>,
    ) -> Result<(), RouteError> {
        self.walk_all(from, to, out);
        Ok(())
    }

    fn link_at(&self, place: u32) -> LinkId {
        let port = place as usize / self.nodes();
        let rest = place as usize % self.nodes();
        let extent = self.dims[port / 2];
        let stride = self.strides[port / 2];
        let line = rest / extent;
        let at = rest % extent;
        let node = line / stride * extent * stride + at * stride + line % stride;
        (node * 2 * self.dims.len() + port) as LinkId
    }

    fn place_of(&self, link: LinkId) -> u32 {
        let (node, axis, up) = self.link(link);
        let at = self.coordinate(node as NetworkNode, axis);
        (self.first_place(node - at * self.strides[axis], axis, up) + at) as u32
    }
}

/// What a walk collects: its links in order, or runs of them.
pub(crate) trait Trace {
    /// The links that leave coordinates `span` of a line upwards, or downwards from its last one.
    /// `base`: the line's first node.
    fn add(&mut self, net: &Cartesian, base: usize, axis: usize, up: bool, span: Range<usize>);
}

impl Trace for Vec<LinkId> {
    #[inline]
    fn add(&mut self, net: &Cartesian, base: usize, axis: usize, up: bool, span: Range<usize>) {
        let stride = net.strides[axis];
        let ports = 2 * net.dims.len();
        let link = |at| ((base + at * stride) * ports + 2 * axis + usize::from(!up)) as LinkId;
        if up {
            self.extend(span.map(link));
        } else {
            self.extend(span.rev().map(link));
        }
    }
}

impl Trace for Vec<Run> {
    fn add(&mut self, net: &Cartesian, base: usize, axis: usize, up: bool, span: Range<usize>) {
        if !span.is_empty() {
            let first = net.first_place(base, axis, up);
            self.push((first + span.start) as u32..(first + span.end) as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::check;

    fn hops(net: &dyn Network, from: &[usize], to: &[usize]) -> Vec<String> {
        let dims = net.grid().unwrap();
        let (a, b) = (coords::index(from, &dims) as u32, coords::index(to, &dims) as u32);
        let mut route = Vec::new();
        net.route(a, b, &mut route).unwrap();
        route.iter().map(|&l| net.vertex_name(net.link_ends(l).1)).collect()
    }

    #[test]
    fn routes_connect_every_pair() {
        check::routes_connect(&Cartesian::mesh(&[3, 4, 2]));
        check::routes_connect(&Cartesian::torus(&[4, 3, 2, 1]));
        check::routes_connect(&Cartesian::torus(&[5]));
    }

    #[test]
    fn runs_have_the_links_of_routes() {
        for dims in [&[3, 4, 2][..], &[5], &[7, 1], &[2, 2, 2, 3]] {
            for net in [Cartesian::mesh(dims), Cartesian::torus(dims)] {
                check::runs_are_routes(&net, &net);
            }
        }
        let yx = Cartesian::torus(&[4, 5]).with_order(&[1, 0]).unwrap();
        check::runs_are_routes(&yx, &yx);
        assert!(yx.lines().is_none() && Cartesian::mesh(&[2, LONG]).lines().is_some());
    }

    #[test]
    fn dimension_order_corrects_the_first_axis_first_by_default() {
        let mesh = Cartesian::mesh(&[4, 4]);
        assert_eq!(hops(&mesh, &[0, 0], &[2, 1]), ["1,0", "2,0", "2,1"]);
        let yx = Cartesian::mesh(&[4, 4]).with_order(&[1, 0]).unwrap();
        assert_eq!(hops(&yx, &[0, 0], &[2, 1]), ["0,1", "1,1", "2,1"]);
        assert!(Cartesian::mesh(&[4, 4]).with_order(&[1, 1]).is_err());
    }

    #[test]
    fn a_torus_takes_the_short_way_round_and_a_mesh_never_wraps() {
        assert_eq!(hops(&Cartesian::torus(&[6]), &[0], &[4]), ["5", "4"]);
        assert_eq!(hops(&Cartesian::torus(&[6]), &[0], &[3]), ["1", "2", "3"]);
        assert_eq!(hops(&Cartesian::torus(&[6]), &[3], &[0]), ["4", "5", "0"]);
        assert_eq!(hops(&Cartesian::mesh(&[6]), &[0], &[4]).len(), 4);
    }

    #[test]
    fn route_length_is_the_ring_distance() {
        let dims = [5, 6, 3];
        let torus = Cartesian::torus(&dims);
        let mut route = Vec::new();
        for a in 0..torus.nodes() as u32 {
            for b in 0..torus.nodes() as u32 {
                route.clear();
                torus.route(a, b, &mut route).unwrap();
                let (ca, cb) = (coords::of(a as usize, &dims), coords::of(b as usize, &dims));
                let distance: usize = (0..3)
                    .map(|i| {
                        let d = ca[i].abs_diff(cb[i]);
                        d.min(dims[i] - d)
                    })
                    .sum();
                assert_eq!(route.len(), distance);
            }
        }
    }
}
