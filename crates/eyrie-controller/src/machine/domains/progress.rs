//! How far ranks are on their way between domains, for users. It decides nothing.

use super::handover::Handover;
use super::leaving::{Departure, Stage};
use eyrie_interface::record::MovePhase;
use eyrie_wire::{DomainId, Rank};

/// All ranks of a domain go to another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Progress {
    pub from: DomainId,
    pub to: DomainId,
    /// Where they leave.
    pub leaving: Option<Leaving>,
}

/// How far ranks are that leave this domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leaving {
    /// The last phase that was reached.
    pub phase: MovePhase,
    /// The round in which images go there; 0: none does.
    pub round: u32,
    /// Ranks whose images of this round, or last images, are not there.
    pub left: Vec<Rank>,
}

impl Handover {
    /// What goes on, as far as the domain `own` knows.
    pub fn progress(&self, own: DomainId) -> Vec<Progress> {
        let mut all = Vec::new();
        if let Some(departure) = &self.departure {
            let leaving = Some(leaving(departure));
            all.push(Progress { from: own, to: departure.to(), leaving });
        }
        if let Some(arrival) = &self.arrival {
            all.push(Progress { from: arrival.from(), to: own, leaving: None });
        }
        let of_others = self.given.iter().filter(|(_, to)| **to != own);
        all.extend(of_others.map(|(from, to)| Progress { from: *from, to: *to, leaving: None }));
        all
    }
}

fn leaving(departure: &Departure) -> Leaving {
    let (phase, round) = match departure.stage() {
        Stage::Rounds { round, .. } => (MovePhase::Requested, *round),
        Stage::Asked { .. } | Stage::Flushing { .. } => (MovePhase::Requested, 0),
        Stage::Last(_) => (MovePhase::Flushed, 0),
        Stage::Fences { .. } => (MovePhase::Imaged, 0),
        Stage::Moved { .. } => (MovePhase::Moved, 0),
    };
    let left = departure.images().map(|images| images.left().collect()).unwrap_or_default();
    Leaving { phase, round, left }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_interface::Way;
    use eyrie_wire::ImageId;
    use std::time::Duration;

    #[test]
    fn each_domain_knows_what_goes_on_and_the_one_that_is_left_how_far() {
        let now = Duration::from_secs(1);
        let [home, cloud, lab] = [0, 1, 2].map(DomainId);
        let mut departure = Departure::new(cloud, Way::Live, None, now);
        departure.begin_round([Rank(0), Rank(3)], now);
        let mut handover = Handover { departure: Some(departure), ..Handover::default() };
        let of = |handover: &Handover| {
            let [Progress { from, to, leaving }] = &handover.progress(home)[..] else {
                panic!("one")
            };
            assert_eq!((*from, *to), (home, cloud));
            leaving.clone().unwrap()
        };
        let left = vec![Rank(0), Rank(3)];
        assert_eq!(of(&handover), Leaving { phase: MovePhase::Requested, round: 1, left });
        let images = handover.departure.as_mut().and_then(Departure::images_mut).unwrap();
        images.tell(Rank(0), ImageId(1), now);
        assert!(images.fetched(Rank(0), ImageId(1), true, now));
        assert_eq!(of(&handover).left, [Rank(3)]);
        handover.departure.as_mut().unwrap().begin_last([Rank(0)], now);
        assert_eq!(of(&handover).phase, MovePhase::Flushed);
        // A third domain knows only that.
        let given = [(cloud, lab)].into();
        let third = Handover { given, ..Handover::default() };
        let known = Progress { from: cloud, to: lab, leaving: None };
        assert_eq!(third.progress(home), [known]);
    }
}
