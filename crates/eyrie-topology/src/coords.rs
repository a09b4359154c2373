//! Mixed-radix coordinates: row-major, last axis fastest, as MPI_Cart_create numbers ranks.

use crate::error::TopologyError;

/// Coordinates of `index` in a box of extents `dims`.
pub fn of(index: usize, dims: &[usize]) -> Vec<usize> {
    let mut rest = index;
    let mut coords = vec![0; dims.len()];
    for axis in (0..dims.len()).rev() {
        coords[axis] = rest % dims[axis];
        rest /= dims[axis];
    }
    coords
}

/// Index of `coords` in a box of extents `dims`; every coordinate must be inside.
pub fn index(coords: &[usize], dims: &[usize]) -> usize {
    coords.iter().zip(dims).fold(0, |acc, (&c, &d)| {
        debug_assert!(c < d);
        acc * d + c
    })
}

/// Distance between neighbours on each axis in row-major order.
pub fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (0..dims.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * dims[axis + 1];
    }
    strides
}

/// `1,2,3`.
pub fn format(coords: &[usize]) -> String {
    coords.iter().map(|c| c.to_string()).collect::<Vec<_>>().join(",")
}

/// `4x5x6`.
pub fn format_dims(dims: &[usize]) -> String {
    dims.iter().map(|c| c.to_string()).collect::<Vec<_>>().join("x")
}

/// Reads `4x5x6`; every extent must be at least 1 and the product at most `u32::MAX / 64` nodes.
pub fn parse_dims(text: &str) -> Result<Vec<usize>, TopologyError> {
    let dims = text
        .split('x')
        .map(|part| match part.trim().parse::<usize>() {
            Ok(0) => crate::refuse!("extent 0 in `{text}`: every extent must be at least 1"),
            Ok(extent) => Ok(extent),
            Err(_) => crate::refuse!(
                "`{part}` in `{text}` is not an extent: write whole numbers joined by x, such as \
                 12x12"
            ),
        })
        .collect::<Result<Vec<usize>, _>>()?;
    const MOST: usize = (u32::MAX / 64) as usize;
    let nodes = dims.iter().try_fold(1usize, |acc, &d| acc.checked_mul(d).filter(|&n| n <= MOST));
    match nodes {
        Some(_) if dims.len() <= 16 => Ok(dims),
        Some(_) => crate::refuse!("`{text}` has {} dimensions: at most 16", dims.len()),
        None => crate::refuse!("`{text}` has too many nodes: at most {MOST}"),
    }
}

/// `total` shared out over so many axes as evenly as can be, the largest extent first, as
/// MPI_Dims_create does.
pub fn shared_out(total: usize, axes: usize) -> Vec<usize> {
    let mut dims = vec![1; axes];
    let mut rest = total;
    let mut primes = Vec::new();
    let mut prime = 2;
    while rest > 1 {
        if prime * prime > rest {
            prime = rest;
        }
        while rest % prime == 0 {
            primes.push(prime);
            rest /= prime;
        }
        prime += 1;
    }
    // The largest first, each to the axis that is the shortest by then.
    for prime in primes.into_iter().rev() {
        if let Some(shortest) = dims.iter_mut().min() {
            *shortest *= prime;
        }
    }
    dims.sort_unstable_by(|a, b| b.cmp(a));
    dims
}

/// Visits every coordinate of the box `dims`, last axis fastest.
pub fn for_each(dims: &[usize], mut visit: impl FnMut(&[usize])) {
    let total: usize = dims.iter().product();
    let mut coords = vec![0; dims.len()];
    for _ in 0..total {
        visit(&coords);
        for axis in (0..dims.len()).rev() {
            coords[axis] += 1;
            if coords[axis] < dims[axis] {
                break;
            }
            coords[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_and_coordinates_are_inverse() {
        let dims = [3, 4, 5];
        let mut expected = 0;
        for_each(&dims, |c| {
            assert_eq!(index(c, &dims), expected);
            assert_eq!(of(expected, &dims), c);
            expected += 1;
        });
        assert_eq!(expected, 60);
        assert_eq!(strides(&dims), [20, 5, 1]);
    }

    #[test]
    fn ranks_are_shared_out_as_evenly_as_can_be() {
        let shapes = [(12, 2), (144, 2), (7, 2), (24, 3), (64, 3), (1, 2)];
        let shared = shapes.map(|(ranks, axes)| format_dims(&shared_out(ranks, axes)));
        assert_eq!(shared, ["4x3", "12x12", "7x1", "4x3x2", "4x4x4", "1x1"]);
    }

    #[test]
    fn bad_extents_name_the_value() {
        assert!(parse_dims("12x0").unwrap_err().0.contains("extent 0 in `12x0`"));
        assert!(parse_dims("12xq").unwrap_err().0.contains("`q`"));
        assert!(parse_dims("99999x99999").unwrap_err().0.contains("too many nodes"));
    }
}
