//! kD sliding: along one axis each rank shifts one step towards a spare. k − 1 further axes shift
//! along with it, so that neighbours there stay neighbours ("Sliding Substitution of Failed Nodes",
//! EuroMPI 2015). The ranks of a node shift together.

use eyrie_topology::{coords, Layout, NetworkNode};

use crate::cluster::NodeState;
use crate::job::Occupancy;
use crate::traffic::Rank;

/// A slide: along `axis`, up or down, the lines of the axes in `along` (a bit set) together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slide {
    pub axis: usize,
    pub up: bool,
    pub along: u32,
    /// The published slides move every rank one step. In free form, for the search, ranks may also
    /// step over dead nodes.
    pub free_form: bool,
}

impl Slide {
    /// The number of dimensions that slide: the axis and the planes.
    pub fn k(&self) -> usize {
        1 + self.along.count_ones() as usize
    }

    /// `2D slide along +x` with x, y, z, a, b, c as axes.
    pub fn describe(&self) -> String {
        let name = ['x', 'y', 'z', 'a', 'b', 'c'].get(self.axis).copied().unwrap_or('?');
        format!("{}D slide along {}{name}", self.k(), if self.up { '+' } else { '-' })
    }

    /// Every slide of k dimensions in a grid of n.
    pub fn all(n: usize, k: usize, free_form: bool) -> Vec<Slide> {
        let mut slides = Vec::new();
        for axis in 0..n {
            for along in 0..1u32 << n {
                if along >> axis & 1 == 0 && along.count_ones() as usize + 1 == k {
                    slides.extend([true, false].map(|up| Slide { axis, up, along, free_form }));
                }
            }
        }
        slides
    }

    /// The moves of this slide away from the cell of `start`, or `None` where a line has no spare
    /// at its end. A line whose first cell has no rank stays.
    pub fn moves(
        &self,
        occupancy: &Occupancy,
        layout: &Layout,
        start: NetworkNode,
    ) -> Option<Vec<(Rank, NetworkNode)>> {
        let cell = layout.cell(start)?;
        let dims = layout.dims();
        let strides = coords::strides(dims);
        let at = coords::of(cell, dims);
        let mut moves = Vec::new();
        let axes: Vec<usize> = (0..dims.len()).filter(|a| self.along >> a & 1 == 1).collect();
        let extents: Vec<usize> = axes.iter().map(|&a| dims[a]).collect();
        // First the line of the failed node: it is the usual reason to fail, and cheap to check.
        self.line(occupancy, layout, cell, at[self.axis], strides[self.axis], &mut moves)
            .then_some(())?;
        let base = cell - axes.iter().map(|&a| at[a] * strides[a]).sum::<usize>();
        let mut feasible = true;
        coords::for_each(&extents, |c| {
            let first = base + c.iter().zip(&axes).map(|(&v, &a)| v * strides[a]).sum::<usize>();
            if feasible && first != cell {
                feasible = self.line(
                    occupancy,
                    layout,
                    first,
                    at[self.axis],
                    strides[self.axis],
                    &mut moves,
                );
            }
        });
        feasible.then_some(moves)
    }

    /// Shifts one line from cell `first` (coordinate `at` on the axis); `false` if it has no spare.
    fn line(
        &self,
        occupancy: &Occupancy,
        layout: &Layout,
        first: usize,
        at: usize,
        stride: usize,
        moves: &mut Vec<(Rank, NetworkNode)>,
    ) -> bool {
        let leave = |node: NetworkNode| occupancy.ranks_on(node).map(move |rank| (rank, node));
        let steps = if self.up { layout.dims()[self.axis] - 1 - at } else { at };
        let begin = moves.len();
        moves.extend(leave(layout.node(first)));
        if moves.len() == begin {
            return true;
        }
        // moves[begin..next] have their targets; the rest of the line still needs them, and has the
        // nodes that they leave.
        let mut next = begin;
        for step in 1..=steps {
            let cell = if self.up { first + step * stride } else { first - step * stride };
            let node = layout.node(cell);
            let mut stays = false;
            match occupancy.node[node as usize] {
                NodeState::Open => {
                    let left = moves[next].1;
                    let arriving = moves[next..].iter_mut().take_while(|(_, from)| *from == left);
                    let arrived = arriving.map(|(_, to)| *to = node).count();
                    next += arrived;
                    stays = occupancy.room(node) >= arrived;
                }
                // A dead node: the slide steps over it, or the line ends here.
                _ if self.free_form => {}
                _ => break,
            }
            if !stays {
                moves.extend(leave(node));
            }
            if next == moves.len() {
                return true;
            }
        }
        moves.truncate(begin);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;
    use crate::traffic::Traffic;
    use eyrie_topology::cartesian::Cartesian;

    /// A 3×3 job in a 4×4 mesh; the last row and column are spares.
    fn occupancy() -> (Layout, Occupancy) {
        let layout = Layout::natural(&Cartesian::mesh(&[4, 4])).unwrap();
        let mut home = Vec::new();
        let mut spares = Vec::new();
        coords::for_each(&[4, 4], |c| {
            let node = coords::index(c, &[4, 4]) as NetworkNode;
            if c[0] < 3 && c[1] < 3 { &mut home } else { &mut spares }.push(node)
        });
        let traffic = Traffic::parse("stencil5", &[3, 3], 8).unwrap();
        let job = Job::new(layout.clone(), home, traffic).unwrap();
        (layout, Occupancy::new(16, &job, &job.home, &spares))
    }

    fn slide(axis: usize, up: bool, along: u32) -> Slide {
        Slide { axis, up, along, free_form: false }
    }

    #[test]
    fn a_1d_slide_moves_one_line_and_a_2d_slide_all_lines() {
        let (layout, mut occupancy) = occupancy();
        occupancy.fail(5);
        let line = slide(0, true, 0);
        assert_eq!(line.moves(&occupancy, &layout, 5), Some(vec![(4, 9), (7, 13)]));
        let plane = slide(0, true, 0b10);
        let moves = plane.moves(&occupancy, &layout, 5).unwrap();
        assert_eq!(moves.len(), 6);
        occupancy.apply(&moves);
        assert!(occupancy.check());
        // Node 1 now has rank 1. Below node 9 the line ends at node 5, which is dead: there is no
        // target.
        assert_eq!(slide(0, false, 0).moves(&occupancy, &layout, 9), None);
    }

    #[test]
    fn a_line_without_a_spare_is_infeasible() {
        let (layout, mut occupancy) = occupancy();
        occupancy.fail(5);
        assert_eq!(slide(0, false, 0).moves(&occupancy, &layout, 5), None);
        occupancy.fail(13);
        assert_eq!(slide(0, true, 0).moves(&occupancy, &layout, 5), None);
        assert!(slide(1, true, 0).moves(&occupancy, &layout, 5).is_some());
    }

    #[test]
    fn a_dead_node_ends_the_line_unless_it_may_be_stepped_over() {
        let (layout, mut occupancy) = occupancy();
        // Ranks 3, 4, 5 on nodes 4, 5, 6; node 5 is dead and empty, rank 4 is on spare node 7.
        occupancy.apply(&[(4, 7)]);
        occupancy.fail(5);
        occupancy.fail(6);
        assert_eq!(slide(1, false, 0).moves(&occupancy, &layout, 6), None);
        occupancy.apply(&[(3, 12)]);
        assert_eq!(slide(1, false, 0).moves(&occupancy, &layout, 6), None);
        let over = Slide { free_form: true, ..slide(1, false, 0) };
        assert_eq!(over.moves(&occupancy, &layout, 6), Some(vec![(5, 4)]));
    }

    #[test]
    fn the_ranks_of_a_node_slide_together_as_far_as_they_need() {
        let layout = Layout::natural(&Cartesian::mesh(&[5])).unwrap();
        let traffic = Traffic::parse("alltoall", &[7], 8).unwrap();
        let job = Job::on_slots(layout.clone(), vec![0, 0, 1, 1, 2, 3, 3], 2, traffic).unwrap();
        let mut occupancy = Occupancy::new(5, &job, &job.home, &[4]);
        occupancy.fail(1);
        // Two do not fit beside the one of node 2. It goes to node 3, whose two go to the spare.
        let moves = [(2, 2), (3, 2), (4, 3), (5, 4), (6, 4)].to_vec();
        assert_eq!(slide(0, true, 0).moves(&occupancy, &layout, 1), Some(moves));
        // One fits.
        occupancy.apply(&[(3, 4)]);
        assert_eq!(slide(0, true, 0).moves(&occupancy, &layout, 1), Some(vec![(2, 2)]));
        occupancy.fail(0);
        assert_eq!(slide(0, true, 0).moves(&occupancy, &layout, 0), None);
    }

    #[test]
    fn one_plane_serves_two_failures_of_a_row() {
        let (layout, mut occupancy) = occupancy();
        occupancy.fail(4);
        occupancy.fail(5);
        assert_eq!(slide(1, true, 0).moves(&occupancy, &layout, 4), None);
        let moves = slide(0, true, 0b10).moves(&occupancy, &layout, 4).unwrap();
        occupancy.apply(&moves);
        assert!(occupancy.check());
    }

    #[test]
    fn there_are_n_choose_k_minus_1_planes_for_each_axis_and_direction() {
        assert_eq!(Slide::all(3, 1, false).len(), 6);
        assert_eq!(Slide::all(3, 2, false).len(), 12);
        assert_eq!(Slide::all(3, 3, false).len(), 6);
        assert_eq!(Slide::all(2, 3, false).len(), 0);
    }
}
