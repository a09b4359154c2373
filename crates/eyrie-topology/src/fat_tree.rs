//! Fat trees: the extended generalized fat tree XGFT(h; m1..mh; w1..wh) of Öhring et al. (1995),
//! which contains the k-ary n-tree, with D-mod-k routing (Zahavi 2010), tapering (smaller w) and
//! rails.

use crate::error::TopologyError;
use crate::network::{LinkId, Network, NetworkNode, RouteError, VertexId};

/// `m[i]` children of a level i+1 switch, `w[i]` parents of a level i vertex, `rails` copies of the
/// tree; a message uses rail (source + destination) mod rails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FatTree {
    m: Vec<usize>,
    w: Vec<usize>,
    rails: usize,
    /// First vertex of each level within one rail, level 0 being the nodes.
    counts: Vec<usize>,
    /// First link pair between level i and i+1 within one rail.
    link_base: Vec<usize>,
    links_per_rail: usize,
    name: String,
}

impl FatTree {
    /// An XGFT; `m` and `w` have one entry per level, nodes first.
    pub fn xgft(m: &[usize], w: &[usize], rails: usize) -> Result<Self, TopologyError> {
        let show = |v: &[usize]| crate::coords::format(v);
        if m.is_empty() || m.len() != w.len() || m.iter().chain(w).any(|&v| v == 0) || rails == 0 {
            return crate::refuse!(
                "xgft:{};{} rails {rails}: give one child count and one parent count per level, \
                 all at least 1",
                show(m),
                show(w)
            );
        }
        let mut counts = Vec::new();
        let mut link_base = Vec::new();
        let mut links = 0usize;
        for level in 0..=m.len() {
            let count = w[..level]
                .iter()
                .chain(&m[level..])
                .try_fold(1usize, |a, &b| a.checked_mul(b))
                .filter(|&c| c <= 1 << 26);
            let Some(count) = count else {
                return crate::refuse!("xgft:{};{} is too large", show(m), show(w));
            };
            counts.push(count);
            if level < m.len() {
                link_base.push(links);
                links = links.saturating_add(count.saturating_mul(w[level]));
            }
        }
        if links.saturating_mul(2 * rails) > 1 << 30 {
            return crate::refuse!("xgft:{};{} has too many links", show(m), show(w));
        }
        let mut name = format!("xgft:{};{}", show(m), show(w));
        if rails > 1 {
            name += &format!(":rails={rails}");
        }
        Ok(FatTree {
            m: m.to_vec(),
            w: w.to_vec(),
            rails,
            counts,
            link_base,
            links_per_rail: 2 * links,
            name,
        })
    }

    /// The k-ary n-tree: k^n nodes, full bisection. `taper` divides the parents of every switch
    /// level: 2 means twice as many links down as up.
    pub fn k_ary(k: usize, n: usize, taper: usize, rails: usize) -> Result<Self, TopologyError> {
        if k == 0 || n == 0 || n > 16 || taper == 0 || k % taper != 0 {
            return crate::refuse!(
                "fattree:{k}^{n} taper {taper}: k and n at least 1, n at most 16, and taper must \
                 divide k"
            );
        }
        let mut w = vec![k / taper; n];
        w[0] = 1;
        let mut tree = Self::xgft(&vec![k; n], &w, rails)?;
        tree.name = format!("fattree:{k}^{n}");
        if taper > 1 {
            tree.name += &format!(":taper={taper}");
        }
        if rails > 1 {
            tree.name += &format!(":rails={rails}");
        }
        Ok(tree)
    }

    fn levels(&self) -> usize {
        self.m.len()
    }

    /// Digits of vertex `index` at `level`: below the level in base w, from it on in base m.
    fn digits(&self, level: usize, index: usize) -> Vec<usize> {
        let mut rest = index;
        (0..self.levels())
            .map(|i| {
                let base = if i < level { self.w[i] } else { self.m[i] };
                let digit = rest % base;
                rest /= base;
                digit
            })
            .collect()
    }

    fn index(&self, level: usize, digits: &[usize]) -> usize {
        (0..self.levels()).rev().fold(0, |acc, i| {
            let base = if i < level { self.w[i] } else { self.m[i] };
            acc * base + digits[i]
        })
    }

    fn link_id(&self, rail: usize, level: usize, lower: usize, port: usize, down: bool) -> LinkId {
        let pair = self.link_base[level] + lower * self.w[level] + port;
        (rail * self.links_per_rail + 2 * pair + usize::from(down)) as LinkId
    }

    fn vertex(&self, rail: usize, level: usize, index: usize) -> VertexId {
        if level == 0 {
            return index as VertexId;
        }
        let switches: usize = self.counts[1..].iter().sum();
        let below: usize = self.counts[1..level].iter().sum();
        (self.counts[0] + rail * switches + below + index) as VertexId
    }

    fn locate(&self, vertex: VertexId) -> (usize, usize, usize) {
        let vertex = vertex as usize;
        if vertex < self.counts[0] {
            return (0, 0, vertex);
        }
        let switches: usize = self.counts[1..].iter().sum();
        let rail = (vertex - self.counts[0]) / switches;
        let mut rest = (vertex - self.counts[0]) % switches;
        let mut level = 1;
        while rest >= self.counts[level] {
            rest -= self.counts[level];
            level += 1;
        }
        (rail, level, rest)
    }
}

impl Network for FatTree {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn nodes(&self) -> usize {
        self.counts[0]
    }

    fn vertices(&self) -> usize {
        self.counts[0] + self.rails * self.counts[1..].iter().sum::<usize>()
    }

    fn links(&self) -> usize {
        self.rails * self.links_per_rail
    }

    fn route(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<LinkId>,
    ) -> Result<(), RouteError> {
        if from == to {
            return Ok(());
        }
        let rail = (from as usize + to as usize) % self.rails;
        // Finds the level of the common ancestor, and the lower vertex of each hop on both sides,
        // without allocating: a vertex at level l is (up-ports below l, own digits from l on).
        let mut top = 0;
        let mut a = from as usize;
        let mut b = to as usize;
        while a != b {
            a /= self.m[top];
            b /= self.m[top];
            top += 1;
        }
        let start = out.len();
        out.resize(start + 2 * top, 0);
        let mut up = from as usize;
        let mut down = to as usize;
        let mut port_source = to as usize;
        let mut weight = 1;
        let mut ports = 0;
        for level in 0..top {
            let port = port_source % self.w[level];
            port_source /= self.w[level];
            let (lower_up, lower_down) = (ports + weight * up, ports + weight * down);
            out[start + level] = self.link_id(rail, level, lower_up, port, false);
            out[start + 2 * top - 1 - level] = self.link_id(rail, level, lower_down, port, true);
            up /= self.m[level];
            down /= self.m[level];
            ports += weight * port;
            weight *= self.w[level];
        }
        Ok(())
    }

    fn link_ends(&self, link: LinkId) -> (VertexId, VertexId) {
        let rail = link as usize / self.links_per_rail;
        let rest = link as usize % self.links_per_rail;
        let pair = rest / 2;
        let down = rest % 2 == 1;
        let level = self.link_base.iter().rposition(|&base| base <= pair).unwrap_or(0);
        let lower = (pair - self.link_base[level]) / self.w[level];
        let port = (pair - self.link_base[level]) % self.w[level];
        let mut digits = self.digits(level, lower);
        digits[level] = port;
        let upper = self.index(level + 1, &digits);
        let ends = (self.vertex(rail, level, lower), self.vertex(rail, level + 1, upper));
        if down {
            (ends.1, ends.0)
        } else {
            ends
        }
    }

    fn out_links(&self, vertex: VertexId, out: &mut Vec<(LinkId, VertexId)>) {
        let (own_rail, level, index) = self.locate(vertex);
        let rails = if level == 0 { 0..self.rails } else { own_rail..own_rail + 1 };
        for rail in rails {
            if level < self.levels() {
                for port in 0..self.w[level] {
                    let link = self.link_id(rail, level, index, port, false);
                    out.push((link, self.link_ends(link).1));
                }
            }
            if level > 0 {
                let mut digits = self.digits(level, index);
                let port = digits[level - 1];
                for child in 0..self.m[level - 1] {
                    digits[level - 1] = child;
                    let lower = self.index(level - 1, &digits);
                    let link = self.link_id(rail, level - 1, lower, port, true);
                    out.push((link, self.vertex(rail, level - 1, lower)));
                }
            }
        }
    }

    fn vertex_name(&self, vertex: VertexId) -> String {
        let (rail, level, index) = self.locate(vertex);
        match (level, self.rails) {
            (0, _) => index.to_string(),
            (_, 1) => format!("s{level}.{index}"),
            _ => format!("r{rail}s{level}.{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::check;

    #[test]
    fn routes_connect_on_every_kind() {
        check::routes_connect(&FatTree::k_ary(4, 3, 1, 1).unwrap());
        check::routes_connect(&FatTree::k_ary(4, 2, 2, 2).unwrap());
        check::routes_connect(&FatTree::xgft(&[3, 4, 2], &[1, 2, 3], 1).unwrap());
        check::routes_connect(&FatTree::xgft(&[3, 2], &[2, 2], 3).unwrap());
    }

    #[test]
    fn d_mod_k_picks_the_parent_by_the_destination() {
        // 4-ary 2-tree: node 0 to node 13 goes up through root 13 / 1 mod 4 = 1.
        let tree = FatTree::k_ary(4, 2, 1, 1).unwrap();
        let mut route = Vec::new();
        tree.route(0, 13, &mut route).unwrap();
        let names: Vec<_> = route.iter().map(|&l| tree.vertex_name(tree.link_ends(l).1)).collect();
        assert_eq!(names, ["s1.0", "s2.1", "s1.3", "13"]);
    }

    #[test]
    fn a_shift_permutation_has_no_collisions_with_full_bisection() {
        let tree = FatTree::k_ary(4, 3, 1, 1).unwrap();
        let mut loads = vec![0; tree.links()];
        let mut route = Vec::new();
        for from in 0..64u32 {
            route.clear();
            tree.route(from, (from + 16) % 64, &mut route).unwrap();
            route.iter().for_each(|&l| loads[l as usize] += 1);
        }
        assert_eq!(loads.iter().max(), Some(&1));
    }

    #[test]
    fn tapering_halves_the_links_up_and_rails_double_them() {
        let full = FatTree::k_ary(4, 2, 1, 1).unwrap();
        let tapered = FatTree::k_ary(4, 2, 2, 1).unwrap();
        assert_eq!((full.links(), tapered.links()), (2 * (16 + 16), 2 * (16 + 8)));
        assert_eq!(FatTree::k_ary(4, 2, 1, 2).unwrap().links(), 2 * full.links());
        assert!(FatTree::k_ary(4, 2, 3, 1).unwrap_err().0.contains("taper must divide"));
    }
}
