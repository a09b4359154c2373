//! Tofu, the K computer's network: six axes X, Y, Z, A, B, C. X, Y, Z are rings, A and C lines of
//! 2, B a ring of 3. The routing order is X, Y, Z, A, C, B. In the extended order the legs B, C, A
//! come first and serve as detours round broken nodes ("Tofu", IEEE Computer 42(11), 2009).

use crate::cartesian::{Cartesian, Trace};
use crate::coords;
use crate::error::TopologyError;
use crate::network::{Lines, LinkId, Network, NetworkNode, RouteError, Run, VertexId};

const B: usize = 4;
/// X, Y, Z, A, C, B as axis numbers.
const ORDER: [usize; 6] = [0, 1, 2, 3, 5, 4];

/// A Tofu network of X × Y × Z × A × B × C nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tofu {
    torus: Cartesian,
    /// Offsets of the first legs (a, b, c), taken by every route when not zero.
    detour: [usize; 3],
}

impl Tofu {
    /// `dims` is X, Y, Z, A, B, C with A ≤ 2, B ≤ 3, C ≤ 2.
    pub fn new(dims: &[usize]) -> Result<Self, TopologyError> {
        let [_, _, _, a, b, c] = dims else {
            return crate::refuse!(
                "tofu:{} has {} extents: give six, X x Y x Z x A x B x C",
                coords::format_dims(dims),
                dims.len()
            );
        };
        if *a > 2 || *b > 3 || *c > 2 {
            return crate::refuse!(
                "tofu:{}: A and C are at most 2 and B at most 3, not {a}, {c} and {b}",
                coords::format_dims(dims)
            );
        }
        let wrap = [true, true, true, false, true, false];
        let torus = Cartesian::new(dims, &wrap).with_order(&ORDER)?;
        Ok(Tofu { torus, detour: [0; 3] })
    }

    /// Uses the first legs B, C, A: every route first goes this far along A, B and C.
    pub fn with_detour(mut self, detour: [usize; 3]) -> Result<Self, TopologyError> {
        for (offset, (axis, name)) in detour.iter().zip([(3, 'A'), (4, 'B'), (5, 'C')]) {
            if *offset >= self.torus.dims()[axis] {
                return crate::refuse!(
                    "detour {offset} on {name}: at most {}",
                    self.torus.dims()[axis] - 1
                );
            }
        }
        self.detour = detour;
        Ok(self)
    }

    pub fn dims(&self) -> &[usize] {
        self.torus.dims()
    }

    fn route_by(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        detour: [usize; 3],
        out: &mut impl Trace,
    ) {
        let mut here = from;
        if from != to {
            let at = coords::of(from as usize, self.torus.dims());
            for axis in [4, 5, 3] {
                let target = (at[axis] + detour[axis - 3]) % self.torus.dims()[axis];
                // B is a ring of three: one step either way is the short way.
                let up = if axis == B { detour[1] == 1 } else { target > at[axis] };
                here = self.torus.walk(here, axis, target, up, out);
            }
        }
        for axis in ORDER {
            here = self.torus.correct(here, to, axis, false, out);
        }
    }
}

impl Network for Tofu {
    fn describe(&self) -> String {
        let dims = coords::format_dims(self.torus.dims());
        match self.detour {
            [0, 0, 0] => format!("tofu:{dims}"),
            detour => format!("tofu:{dims}:detour={}", coords::format(&detour)),
        }
    }

    fn nodes(&self) -> usize {
        self.torus.nodes()
    }

    fn links(&self) -> usize {
        self.torus.links()
    }

    fn route(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<LinkId>,
    ) -> Result<(), RouteError> {
        self.route_by(from, to, self.detour, out);
        Ok(())
    }

    fn lines(&self) -> Option<&dyn Lines> {
        self.torus.is_long().then_some(self as &dyn Lines)
    }

    fn link_ends(&self, link: LinkId) -> (VertexId, VertexId) {
        self.torus.link_ends(link)
    }

    fn out_links(&self, vertex: VertexId, out: &mut Vec<(LinkId, VertexId)>) {
        self.torus.out_links(vertex, out)
    }

    /// The other first legs of the extended order B, C, A, X, Y, Z, A, C, B.
    fn alternative(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        index: usize,
        out: &mut Vec<LinkId>,
    ) -> bool {
        let legs = &self.torus.dims()[3..];
        if index + 1 >= legs.iter().product() {
            return false;
        }
        let legs = coords::of(index + 1, legs);
        self.route_by(from, to, [legs[0], legs[1], legs[2]], out);
        true
    }

    /// First legs use channels of their own (2 and 3), so that the extended order has no cycle.
    fn channels(&self, from: NetworkNode, route: &[LinkId]) -> Vec<u8> {
        // The first legs are the links before the route reaches X, Y or Z or, if it never does, the
        // links before an axis comes back in the order A, C, B.
        let axis = |&link: &LinkId| self.torus.axis_and_dateline(link).0;
        let rank = |axis: usize| [10, 10, 10, 2, 0, 1][axis];
        let mut first = 0;
        let axes: Vec<usize> = route.iter().map(axis).collect();
        if axes.iter().any(|&a| a < 3) {
            first = axes.iter().take_while(|&&a| a >= 3).count();
        } else if axes.windows(2).any(|w| rank(w[0]) < rank(w[1])) {
            first = 1 + axes.windows(2).take_while(|w| rank(w[0]) <= rank(w[1])).count();
        }
        let mut channels = self.torus.channels(from, &route[..first]);
        for c in &mut channels {
            *c += 2;
        }
        channels.extend(self.torus.channels(from, &route[first..]));
        channels
    }

    fn grid(&self) -> Option<Vec<usize>> {
        Some(self.torus.dims().to_vec())
    }

    fn nodes_forward(&self) -> bool {
        true
    }
}

impl Lines for Tofu {
    fn runs(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<Run>,
    ) -> Result<(), RouteError> {
        self.route_by(from, to, self.detour, out);
        Ok(())
    }

    fn link_at(&self, place: u32) -> LinkId {
        self.torus.link_at(place)
    }

    fn place_of(&self, link: LinkId) -> u32 {
        self.torus.place_of(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::check;

    fn axes(net: &Tofu, from: [usize; 6], to: [usize; 6]) -> String {
        let dims = net.dims().to_vec();
        let mut route = Vec::new();
        net.route(coords::index(&from, &dims) as u32, coords::index(&to, &dims) as u32, &mut route)
            .unwrap();
        route
            .iter()
            .map(|&l| ['X', 'Y', 'Z', 'A', 'B', 'C'][net.torus.axis_and_dateline(l).0])
            .collect()
    }

    #[test]
    fn the_order_is_xyzacb() {
        let net = Tofu::new(&[3, 3, 3, 2, 3, 2]).unwrap();
        assert_eq!(axes(&net, [0; 6], [1, 1, 1, 1, 1, 1]), "XYZACB");
        check::routes_connect(&Tofu::new(&[2, 1, 3, 2, 3, 2]).unwrap());
    }

    #[test]
    fn the_extended_order_takes_b_c_a_first() {
        let net = Tofu::new(&[3, 3, 3, 2, 3, 2]).unwrap().with_detour([1, 1, 1]).unwrap();
        assert_eq!(axes(&net, [0; 6], [1, 1, 1, 0, 0, 0]), "BCAXYZACB");
        check::routes_connect(
            &Tofu::new(&[2, 1, 2, 2, 3, 2]).unwrap().with_detour([1, 2, 1]).unwrap(),
        );
    }

    #[test]
    fn runs_have_the_links_of_routes() {
        let net = Tofu::new(&[3, 1, 2, 2, 3, 2]).unwrap();
        check::runs_are_routes(&net, &net);
        let net = net.with_detour([1, 2, 1]).unwrap();
        check::runs_are_routes(&net, &net);
    }

    #[test]
    fn alternatives_are_the_other_eleven_first_legs() {
        let net = Tofu::new(&[3, 1, 1, 2, 3, 2]).unwrap();
        let mut seen = std::collections::HashSet::new();
        let mut route = Vec::new();
        let mut index = 0;
        while net.alternative(0, 12, index, &mut route) {
            assert_eq!(net.link_ends(*route.last().unwrap()).1, 12);
            seen.insert(std::mem::take(&mut route));
            index += 1;
        }
        assert_eq!((index, seen.len()), (11, 11));
    }

    #[test]
    fn errors_name_wrong_extents() {
        assert!(Tofu::new(&[2, 2]).unwrap_err().0.contains("give six"));
        assert!(Tofu::new(&[2, 2, 2, 3, 3, 2]).unwrap_err().0.contains("at most 2"));
    }
}
