//! Median and spread of a few repetitions. Pure.

use serde::Serialize;

/// The median of some samples, with their tenth and ninetieth percentile.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    pub median: f64,
    pub p10: f64,
    pub p90: f64,
    pub samples: usize,
}

impl Spread {
    /// `None` without samples.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        if sorted.is_empty() {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        Some(Spread {
            median: quantile(&sorted, 0.5),
            p10: quantile(&sorted, 0.1),
            p90: quantile(&sorted, 0.9),
            samples: sorted.len(),
        })
    }

    /// The spread of `ours / theirs`, round by round: a disturbance of the machine that lasts
    /// longer than a round affects both.
    pub fn of_ratios(ours: &[f64], theirs: &[f64]) -> Option<Spread> {
        Spread::of(ours.iter().zip(theirs).map(|(a, b)| a / b))
    }
}

/// Interpolates linearly between two samples (R's type 7).
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = (sorted.len() - 1) as f64 * q;
    let below = sorted[at.floor() as usize];
    let above = sorted[at.ceil() as usize];
    below + (above - below) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_between_samples() {
        let s = Spread::of([4.0, 1.0, 2.0, 3.0, 5.0]).unwrap();
        assert_eq!((s.median, s.samples), (3.0, 5));
        assert!((s.p10 - 1.4).abs() < 1e-12 && (s.p90 - 4.6).abs() < 1e-12);
        assert_eq!(Spread::of([1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn ratios_are_made_round_by_round() {
        // The second round was disturbed for both sides alike.
        let s = Spread::of_ratios(&[2.0, 20.0, 2.0], &[1.0, 10.0, 1.0]).unwrap();
        assert_eq!((s.median, s.p10, s.p90), (2.0, 2.0, 2.0));
    }
}
