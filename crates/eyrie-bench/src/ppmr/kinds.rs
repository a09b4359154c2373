//! What ranks compute: programs like NPB's LU, BT and SP, which solve for five variables in each
//! cell of a cube, each with arrays and sweeps of its own. Every step writes nearly all of a rank's
//! memory. The numbers model no flow, and there is no communication of its own.

use serde::{Deserialize, Serialize};

/// The five variables of a cell.
type Cell = [f64; 5];
/// A block of a block-tridiagonal system.
type Block = [Cell; 5];

/// The program of NPB that it is like (Bailey et al., The NAS Parallel Benchmarks, 1991).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Symmetric successive over-relaxation: a sweep from one corner, one back.
    Lu,
    /// Systems of blocks of 5 x 5, tridiagonal, along each line in three directions.
    Bt,
    /// Scalar pentadiagonal systems along each line in three directions.
    Sp,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Lu, Kind::Bt, Kind::Sp];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Lu => "lu",
            Kind::Bt => "bt",
            Kind::Sp => "sp",
        }
    }

    /// Words of a cell in addition to the three arrays of five variables: speeds, squares,
    /// densities, and for SP its bands.
    fn others(self) -> usize {
        match self {
            Kind::Lu => 2,
            Kind::Bt => 6,
            Kind::Sp => BEFORE_BANDS + BANDS * MATRICES,
        }
    }

    /// The edge of the cube that fits into `mib` MiB, in cells.
    fn edge(self, mib: u64) -> usize {
        let cells = (mib << 17) as f64 / (3 * 5 + self.others()) as f64;
        (cells.cbrt() as usize).max(4)
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let named = Kind::ALL.into_iter().find(|kind| kind.name() == text);
        let names = || Kind::ALL.map(Kind::name).join(", ");
        named.ok_or_else(|| format!("no kind of program is called {text:?}: there are {}", names()))
    }
}

/// Bands of a pentadiagonal matrix, the number of such matrices of SP, and the words before them.
const BANDS: usize = 5;
const MATRICES: usize = 3;
const BEFORE_BANDS: usize = 7;
/// The share of the solution that a step adds.
const RELAXATION: f64 = 0.2;
/// The weight of neighbours relative to the diagonal: all systems are diagonally dominant.
const COUPLING: f64 = 0.1;

/// The arrays of a rank.
pub struct Solver {
    kind: Kind,
    /// Cells along an edge.
    edge: usize,
    state: Vec<Cell>,
    right: Vec<Cell>,
    forcing: Vec<Cell>,
    /// [`Kind::others`] words of each cell.
    others: Vec<f64>,
}

impl Solver {
    /// Arrays of `mib` MiB together, filled so that no two pages are alike.
    pub fn new(kind: Kind, mib: u64, seed: u64) -> Solver {
        let edge = kind.edge(mib);
        let cells = edge.pow(3);
        let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            1.0 + (word >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut filled = || (0..cells).map(|_| std::array::from_fn(|_| next())).collect();
        let state = filled();
        let right = filled();
        let forcing = filled();
        let others = (0..cells * kind.others()).map(|_| next()).collect();
        Solver { kind, edge, state, right, forcing, others }
    }

    /// One step. `exchange` gets the face on the far side and replaces it by that of the previous
    /// neighbour, as MPI_Sendrecv_replace does.
    ///
    /// # Errors
    /// Those of `exchange`.
    pub fn step(
        &mut self,
        exchange: impl FnOnce(&mut [Cell]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut face = self.face();
        exchange(&mut face)?;
        self.right_hand_sides(&face);
        match self.kind {
            Kind::Lu => self.relax(),
            Kind::Bt => (0..3).for_each(|direction| self.solve_blocks(direction)),
            Kind::Sp => (0..3).for_each(|direction| self.solve_bands(direction)),
        }
        for (state, right) in self.state.iter_mut().zip(&self.right) {
            (0..5).for_each(|i| state[i] = (1.0 - RELAXATION) * state[i] + RELAXATION * right[i]);
        }
        Ok(())
    }

    /// A checksum of all the bits of the state.
    pub fn sum(&self) -> u64 {
        let words = self.state.iter().flatten();
        words.fold(0, |sum, word| sum.rotate_left(5) ^ word.to_bits())
    }

    /// The cells whose first index is the largest.
    fn face(&self) -> Vec<Cell> {
        self.state.iter().skip(self.edge - 1).step_by(self.edge).copied().collect()
    }

    /// Forcing and the differences to the six neighbours, periodic except for the face. The other
    /// words of each cell come from its state.
    fn right_hand_sides(&mut self, face: &[Cell]) {
        let n = self.edge;
        let cells = self.state.len();
        let others = self.kind.others();
        for at in 0..cells {
            let own = self.state[at];
            let mut sum = [0.0; 5];
            for stride in [1, n, n * n] {
                let place = at / stride % n;
                let before = match (place, stride) {
                    (0, 1) => face[at / n],
                    (0, _) => self.state[at + stride * (n - 1)],
                    _ => self.state[at - stride],
                };
                let after = if place == n - 1 {
                    self.state[at - stride * (n - 1)]
                } else {
                    self.state[at + stride]
                };
                (0..5).for_each(|i| sum[i] += before[i] - 2.0 * own[i] + after[i]);
            }
            let forcing = self.forcing[at];
            self.right[at] = std::array::from_fn(|i| forcing[i] + COUPLING * sum[i]);
            let square = own[1] * own[1] + own[2] * own[2] + own[3] * own[3];
            for (i, word) in self.others[at * others..][..others].iter_mut().enumerate() {
                *word = 1.0 / (1.0 + square + i as f64 * own[0]);
            }
        }
    }

    /// LU: a sweep in which each cell needs the three before it, and one back.
    fn relax(&mut self) {
        let n = self.edge;
        let cells = self.state.len();
        for back in [false, true] {
            for turn in 0..cells {
                let at = if back { cells - 1 - turn } else { turn };
                let mut right = self.right[at];
                for stride in [1, n, n * n] {
                    let place = at / stride % n;
                    let neighbour = if !back && place > 0 {
                        at - stride
                    } else if back && place < n - 1 {
                        at + stride
                    } else {
                        continue;
                    };
                    let block = block(&self.state[neighbour], COUPLING, 0.0);
                    let part = times(&block, &self.right[neighbour]);
                    (0..5).for_each(|i| right[i] += part[i]);
                }
                self.right[at] = right.map(|v| v / (1.0 + 3.0 * COUPLING));
            }
        }
    }

    /// BT: along each line of a direction, forward elimination of blocks (Thomas' algorithm) and
    /// substitution.
    fn solve_blocks(&mut self, direction: u32) {
        let n = self.edge;
        let mut upper: Vec<Block> = vec![[[0.0; 5]; 5]; n];
        for line in lines(n, direction) {
            for i in 0..n {
                let at = line.cell(i);
                let mut diagonal = block(&self.state[at], COUPLING, 1.0 + 2.0 * COUPLING);
                let mut right = self.right[at];
                if i > 0 {
                    let before = line.cell(i - 1);
                    let lower = block(&self.state[before], -COUPLING, 0.0);
                    let part = times(&lower, &self.right[before]);
                    (0..5).for_each(|k| right[k] -= part[k]);
                    let product = product(&lower, &upper[i - 1]);
                    for (row, part) in diagonal.iter_mut().zip(product) {
                        (0..5).for_each(|k| row[k] -= part[k]);
                    }
                }
                upper[i] = block(&self.state[at], -COUPLING, 0.0);
                eliminate(&mut diagonal, &mut upper[i], &mut right);
                self.right[at] = right;
            }
            for i in (0..n - 1).rev() {
                let part = times(&upper[i], &self.right[line.cell(i + 1)]);
                let right = &mut self.right[line.cell(i)];
                (0..5).for_each(|k| right[k] -= part[k]);
            }
        }
    }

    /// SP: along each line of a direction three pentadiagonal matrices, one for three of the
    /// variables and one for each of the others. The bands are stored with the cells.
    fn solve_bands(&mut self, direction: u32) {
        let n = self.edge;
        let others = self.kind.others();
        for line in lines(n, direction) {
            for (matrix, variables) in [(0, 0..3), (1, 3..4), (2, 4..5)] {
                let bands = |cell: usize| cell * others + BEFORE_BANDS + matrix * BANDS;
                for i in 0..n {
                    let at = line.cell(i);
                    let c = COUPLING / (1.0 + self.state[at][matrix].abs());
                    let fresh = [c / 2.0, -c, 1.0 + 3.0 * c, -c, c / 2.0];
                    self.others[bands(at)..][..BANDS].copy_from_slice(&fresh);
                }
                for i in 0..n {
                    let at = line.cell(i);
                    // Eliminates this column from the two rows below.
                    for (down, column) in [(1, 1), (2, 0)] {
                        if i + down >= n {
                            continue;
                        }
                        let below = line.cell(i + down);
                        let (row, own) = (bands(below), bands(at));
                        let factor = self.others[row + column] / self.others[own + 2];
                        for right in 1..3 {
                            self.others[row + column + right] -=
                                factor * self.others[own + 2 + right];
                        }
                        for v in variables.clone() {
                            self.right[below][v] -= factor * self.right[at][v];
                        }
                    }
                }
                for i in (0..n).rev() {
                    let at = line.cell(i);
                    for v in variables.clone() {
                        let mut sum = self.right[at][v];
                        for ahead in 1..3 {
                            if i + ahead < n {
                                let known = self.right[line.cell(i + ahead)][v];
                                sum -= self.others[bands(at) + 2 + ahead] * known;
                            }
                        }
                        self.right[at][v] = sum / self.others[bands(at) + 2];
                    }
                }
            }
        }
    }
}

/// A line of cells through the cube.
#[derive(Clone, Copy)]
struct Line {
    first: usize,
    stride: usize,
}

impl Line {
    fn cell(&self, i: usize) -> usize {
        self.first + i * self.stride
    }
}

/// All lines of a direction.
fn lines(edge: usize, direction: u32) -> impl Iterator<Item = Line> {
    let stride = edge.pow(direction);
    let cells = (0..edge.pow(3)).filter(move |cell| cell / stride % edge == 0);
    cells.map(move |first| Line { first, stride })
}

/// `weight` times a Jacobian of the state, plus `diagonal` times the unit matrix. Without the
/// diagonal its norm is at most 2 x |weight|.
fn block(state: &Cell, weight: f64, diagonal: f64) -> Block {
    let factor = weight / (state.iter().map(|v| v * v).sum::<f64>() + 1e-9);
    std::array::from_fn(|i| {
        std::array::from_fn(|j| {
            let unit = if i == j { diagonal + weight } else { 0.0 };
            unit + factor * state[i] * state[j]
        })
    })
}

fn times(block: &Block, cell: &Cell) -> Cell {
    std::array::from_fn(|i| (0..5).map(|j| block[i][j] * cell[j]).sum())
}

fn product(a: &Block, b: &Block) -> Block {
    std::array::from_fn(|i| std::array::from_fn(|j| (0..5).map(|k| a[i][k] * b[k][j]).sum()))
}

/// Gauss-Jordan elimination, without pivots as in NPB: multiplies `upper` and `right` by the
/// inverse of the diagonal block.
fn eliminate(diagonal: &mut Block, upper: &mut Block, right: &mut Cell) {
    for pivot in 0..5 {
        let inverse = 1.0 / diagonal[pivot][pivot];
        (pivot..5).for_each(|k| diagonal[pivot][k] *= inverse);
        (0..5).for_each(|k| upper[pivot][k] *= inverse);
        right[pivot] *= inverse;
        for row in (0..5).filter(|row| *row != pivot) {
            let factor = diagonal[row][pivot];
            (pivot..5).for_each(|k| diagonal[row][k] -= factor * diagonal[pivot][k]);
            (0..5).for_each(|k| upper[row][k] -= factor * upper[pivot][k]);
            right[row] -= factor * right[pivot];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(_: &mut [Cell]) -> anyhow::Result<()> {
        Ok(())
    }

    fn after(kind: Kind, seed: u64, steps: u32, change: Option<usize>) -> Solver {
        let mut solver = Solver::new(kind, 1, seed);
        if let Some(at) = change {
            solver.state[at][4] += 1e-9;
        }
        (0..steps).for_each(|_| solver.step(alone).unwrap());
        solver
    }

    #[test]
    fn the_result_depends_on_every_cell_and_on_the_rank() {
        for kind in Kind::ALL {
            let plain = after(kind, 1, 2, None);
            assert_eq!(plain.sum(), after(kind, 1, 2, None).sum());
            assert_ne!(plain.sum(), after(kind, 2, 2, None).sum());
            for at in [0, 77, plain.state.len() - 1] {
                assert_ne!(plain.sum(), after(kind, 1, 2, Some(at)).sum(), "{kind:?} {at}");
            }
        }
    }

    #[test]
    fn the_numbers_stay_in_bounds_and_the_memory_is_what_was_asked_for() {
        for kind in Kind::ALL {
            let solver = after(kind, 3, 50, None);
            assert!(solver.state.iter().flatten().all(|v| v.abs() < 100.0), "{kind:?}");
            let words = 3 * 5 * solver.state.len() + solver.others.len();
            assert!((900 << 10..=1 << 20).contains(&(words * 8)), "{kind:?}: {words} words");
        }
    }

    #[test]
    fn the_face_of_a_neighbour_is_part_of_the_result() {
        let mut solver = Solver::new(Kind::Lu, 1, 1);
        let exchange = |face: &mut [Cell]| {
            face[0][0] += 1.0;
            Ok(())
        };
        solver.step(exchange).unwrap();
        assert_ne!(solver.sum(), after(Kind::Lu, 1, 1, None).sum());
    }

    #[test]
    fn solved_systems_are_solved() {
        // Thomas' algorithm on one line of two blocks, against the equations themselves.
        let state = [[1.0, 2.0, 0.5, 1.5, 1.0]; 2];
        let mut diagonal = block(&state[0], COUPLING, 1.0 + 2.0 * COUPLING);
        let whole = diagonal;
        let mut upper = block(&state[1], -COUPLING, 0.0);
        let mut right = [1.0, 2.0, 3.0, 4.0, 5.0];
        let asked = upper;
        let known = right;
        eliminate(&mut diagonal, &mut upper, &mut right);
        let back = times(&whole, &right);
        assert!((0..5).all(|i| (back[i] - known[i]).abs() < 1e-12));
        let back = product(&whole, &upper);
        assert!((0..25).all(|i| (back[i / 5][i % 5] - asked[i / 5][i % 5]).abs() < 1e-12));
    }
}
