//! Ranges of addresses, and operations on ascending lists of them.

use super::super::scratch::List;
use crate::refusal::Refusal;

/// A range of addresses: start and end.
pub type Range = (u64, u64);

pub fn within(range: Range, cuts: &[Range]) -> bool {
    cuts.iter().any(|cut| cut.0 <= range.0 && range.1 <= cut.1)
}

pub fn add_range(list: &mut List<Range>, start: u64, end: u64) -> Result<(), Refusal> {
    if let Some(last) = list.as_mut_slice().last_mut() {
        if last.1 == start {
            last.1 = end;
            return Ok(());
        }
    }
    list.push((start, end))
}

/// Calls `each` with every part of `wanted` that is not in `here`. Both lists ascend.
pub fn subtract(
    wanted: &[Range],
    here: &[Range],
    mut each: impl FnMut(u64, u64) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut first = 0;
    for &(start, end) in wanted {
        let mut from = start;
        while here.get(first).is_some_and(|h| h.1 <= start) {
            first += 1;
        }
        for h in here[first..].iter().take_while(|h| h.0 < end) {
            if h.0 > from {
                each(from, h.0)?;
            }
            from = from.max(h.1);
        }
        if from < end {
            each(from, end)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranges_are_found_between_and_around_present_ones() {
        let lacking = |wanted: &[Range], here: &[Range]| {
            let mut all = Vec::new();
            subtract(wanted, here, |start, end| {
                all.push((start, end));
                Ok(())
            })
            .unwrap();
            all
        };
        assert_eq!(lacking(&[(10, 20), (30, 40)], &[(10, 20), (30, 40)]), []);
        assert_eq!(lacking(&[(10, 50)], &[(5, 12), (20, 30), (45, 60)]), [(12, 20), (30, 45)]);
        assert_eq!(lacking(&[(10, 20), (30, 40)], &[(15, 35)]), [(10, 15), (35, 40)]);
        assert_eq!(lacking(&[(10, 20), (30, 40)], &[]), [(10, 20), (30, 40)]);
        assert_eq!(lacking(&[(10, 20)], &[(0, 5), (50, 60)]), [(10, 20)]);
    }
}
