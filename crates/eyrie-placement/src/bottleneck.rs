//! Which links of long lines can limit flows. A link whose flows all pass one of its neighbours,
//! too, is never tighter than that neighbour, so only the neighbour has to be considered. Of a line
//! that n flows pass in large groups, few links remain.

use eyrie_topology::Run;

/// The remaining links, numbered along the lines. Only for lines whose links have one bandwidth.
pub(crate) struct Bottlenecks {
    /// How many of them are before each place, and in all.
    before: Vec<u32>,
}

impl Bottlenecks {
    /// For flows over these runs, with places below `places`.
    ///
    /// Up to the next end of a flow, links only gain flows: the last link before that end has all
    /// flows of the others. If no flow has begun since the last chosen link, that link has them
    /// already.
    pub fn of(places: usize, runs: &[Run]) -> Self {
        const BEGINS: u8 = 1;
        const ENDS: u8 = 2;
        let mut marks = vec![0u8; places];
        for run in runs {
            marks[run.start as usize] |= BEGINS;
            marks[run.end as usize - 1] |= ENDS;
        }
        let mut before = Vec::with_capacity(places + 1);
        let mut chosen = 0;
        let mut begun = false;
        for mark in marks {
            before.push(chosen);
            begun |= mark & BEGINS != 0;
            if begun && mark & ENDS != 0 {
                chosen += 1;
                begun = false;
            }
        }
        before.push(chosen);
        Bottlenecks { before }
    }

    pub fn count(&self) -> usize {
        self.before.last().copied().unwrap_or(0) as usize
    }

    /// The chosen links on a run; at least one, if its flow was given to [`Self::of`].
    pub fn on(&self, run: &Run) -> Run {
        self.before[run.start as usize]..self.before[run.end as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The flows of every link all pass one of the chosen links.
        #[test]
        fn every_link_has_a_chosen_one_with_all_its_flows(
            flows in prop::collection::vec((0u32..40, 1u32..12), 1..60),
        ) {
            let runs: Vec<Run> = flows.iter().map(|&(a, len)| a..a + len).collect();
            let chosen = Bottlenecks::of(60, &runs);
            let groups: Vec<Vec<usize>> = (0..chosen.count() as u32)
                .map(|link| (0..runs.len()).filter(|&i| chosen.on(&runs[i]).contains(&link)).collect())
                .collect();
            for place in 0..60 {
                let here: Vec<usize> = (0..runs.len()).filter(|&i| runs[i].contains(&place)).collect();
                let all = |group: &Vec<usize>| here.iter().all(|i| group.contains(i));
                prop_assert!(here.is_empty() || groups.iter().any(all), "{place}");
            }
        }
    }

    #[test]
    fn a_group_of_flows_over_one_link_has_one_bottleneck() {
        let runs: Vec<Run> = (0..1000).map(|i| i..i + 1000).collect();
        assert_eq!(Bottlenecks::of(2000, &runs).count(), 1);
    }
}
