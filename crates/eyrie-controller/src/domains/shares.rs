//! Which ranks each domain gets: those that it names, and of the others blocks in the order of the
//! domains, as many as it has slots. Every rank is in one domain, and every domain has one.

use crate::hosts::Host;
use eyrie_wire::Rank;

/// Most ranks of a job over domains.
const MAX_RANKS: u32 = 1 << 20;

/// What decides about the ranks of a domain.
pub struct Asking<'a> {
    pub name: &'a str,
    /// The ranks that it names, in order.
    pub ranks: Option<&'a [u32]>,
    /// How many it has room for; `None`: that is not known here.
    pub slots: Option<u32>,
}

/// How many ranks hosts have room for, without the `spares` at their end.
///
/// # Errors
/// When all of them would be spares.
pub fn slots(hosts: &[Host], spares: u32) -> Result<u32, String> {
    let all = hosts.len() as u32;
    let Some(first) = all.checked_sub(spares).filter(|first| *first > 0) else {
        return Err(format!("of {all} hosts, {spares} cannot be spares: ranks need one at least"));
    };
    let each = hosts.iter().take(first as usize).map(|host| host.slots.unwrap_or(1));
    Ok(each.fold(0, u32::saturating_add))
}

/// The ranks of each domain, in order. `ranks`: how many the job has, where that was said.
///
/// # Errors
/// Names the domain or the rank that does not fit, and what to write.
pub fn shares(domains: &[Asking], ranks: Option<u32>) -> Result<Vec<Vec<Rank>>, String> {
    let ranks = match ranks {
        Some(ranks) => ranks,
        None => all_ranks(domains)?,
    };
    if ranks > MAX_RANKS {
        return Err(format!("{ranks} ranks are more than the {MAX_RANKS} that a job may have"));
    }
    let mut domain_of: Vec<Option<usize>> = vec![None; ranks as usize];
    for (number, domain) in domains.iter().enumerate() {
        for rank in domain.ranks.unwrap_or_default() {
            let place = domain_of.get_mut(*rank as usize).ok_or_else(|| {
                format!(
                    "domain {}: ranks: rank {rank} is not one of the job's {ranks}: name ranks \
                     from 0 to {}, or give a greater -n",
                    domain.name,
                    ranks.saturating_sub(1)
                )
            })?;
            if let Some(other) = place.replace(number) {
                return Err(format!(
                    "rank {rank} is in two domains, {} and {}: take it out of the ranks of one",
                    domains[other].name, domain.name
                ));
            }
        }
    }
    give_blocks(domains, &mut domain_of)?;
    let mut shares = vec![Vec::new(); domains.len()];
    for (rank, domain) in (0..).map(Rank).zip(domain_of) {
        let domain = domain.ok_or_else(|| {
            format!("rank {rank} is in no domain: add it to the ranks of one of them")
        })?;
        shares[domain].push(rank);
    }
    match domains.iter().zip(&shares).find(|(_, share)| share.is_empty()) {
        Some((domain, _)) => Err(format!(
            "domain {} gets no rank, because {ranks} ranks fit into the others: give a greater -n, \
             say the ranks of each, or take it out",
            domain.name
        )),
        None => Ok(shares),
    }
}

/// How many ranks the domains have room for, or name.
fn all_ranks(domains: &[Asking]) -> Result<u32, String> {
    if domains.iter().all(|domain| domain.ranks.is_some()) {
        let named = domains.iter().flat_map(|domain| domain.ranks.unwrap_or_default());
        return Ok(named.max().map_or(0, |last| last + 1));
    }
    let mut all = 0u32;
    for domain in domains {
        let its = match domain.ranks {
            Some(ranks) => ranks.len() as u32,
            None => known_slots(domain)?,
        };
        all = all.saturating_add(its);
    }
    Ok(all)
}

fn known_slots(domain: &Asking) -> Result<u32, String> {
    domain.slots.ok_or_else(|| {
        format!(
            "domain {}: how many slots its allocation of Slurm has is not known here: add ranks = \
             \"FIRST-LAST\"",
            domain.name
        )
    })
}

/// Gives the ranks that no domain has named to those that have named none, in order.
fn give_blocks(domains: &[Asking], domain_of: &mut [Option<usize>]) -> Result<(), String> {
    let blocks: Vec<(usize, &Asking)> =
        domains.iter().enumerate().filter(|(_, domain)| domain.ranks.is_none()).collect();
    if blocks.is_empty() {
        return Ok(());
    }
    let mut free = domain_of.iter_mut().filter(|domain| domain.is_none());
    let mut slots = 0u32;
    for (number, domain) in blocks {
        let its = known_slots(domain)?;
        slots = slots.saturating_add(its);
        free.by_ref().take(its as usize).for_each(|place| *place = Some(number));
    }
    match free.count() {
        0 => Ok(()),
        left => Err(format!(
            "{left} ranks do not fit into the {slots} slots of the domains that name no ranks: give \
             more hosts or slots, or a smaller -n"
        )),
    }
}

/// Ranks in order as runs of consecutive ones, the first and the last of each.
pub fn runs(ranks: &[Rank]) -> Vec<(Rank, Rank)> {
    let mut runs: Vec<(Rank, Rank)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.0 + 1 == rank.0 => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts;
    use proptest::prelude::*;

    const NAMES: [&str; 3] = ["a", "b", "c"];

    fn shared(
        domains: &[(Option<&[u32]>, Option<u32>)],
        ranks: Option<u32>,
    ) -> Result<Vec<Vec<u32>>, String> {
        let asking: Vec<Asking> = (NAMES.iter().zip(domains))
            .map(|(name, (ranks, slots))| Asking { name, ranks: *ranks, slots: *slots })
            .collect();
        let shares = shares(&asking, ranks)?;
        Ok(shares.into_iter().map(|share| share.into_iter().map(|rank| rank.0).collect()).collect())
    }

    #[test]
    fn slots_become_blocks_of_ranks() {
        let by_slots = [(None, Some(2)), (None, Some(1)), (None, Some(3))];
        assert_eq!(shared(&by_slots, None).unwrap(), [vec![0, 1], vec![2], vec![3, 4, 5]]);
        assert_eq!(shared(&by_slots, Some(4)).unwrap(), [vec![0, 1], vec![2], vec![3]]);
        // Those that are named first, the rest in blocks.
        let mixed = [(None, Some(2)), (Some(&[0u32, 3][..]), None), (None, Some(2))];
        assert_eq!(shared(&mixed, None).unwrap(), [vec![1, 2], vec![0, 3], vec![4, 5]]);
        let named = [(Some(&[0u32, 1, 4][..]), Some(1)), (Some(&[2u32, 3][..]), None)];
        assert_eq!(shared(&named, None).unwrap(), [vec![0, 1, 4], vec![2, 3]]);
        assert_eq!(shared(&named, Some(5)).unwrap(), [vec![0, 1, 4], vec![2, 3]]);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_remedy() {
        let by_slots = [(None, Some(2)), (None, Some(1))];
        let refused = |domains: &[(Option<&[u32]>, Option<u32>)], ranks, fault: &str| {
            let error = shared(domains, ranks).unwrap_err();
            assert!(error.contains(fault), "{error}\ninstead of\n{fault}");
        };
        refused(&by_slots, Some(5), "2 ranks do not fit into the 3 slots of the domains");
        refused(&by_slots, Some(u32::MAX), "are more than the 1048576 that a job may have");
        refused(&by_slots, Some(2), "domain b gets no rank, because 2 ranks fit into the others");
        let both = [(Some(&[0u32, 1][..]), None), (Some(&[1u32, 2][..]), None)];
        refused(&both, None, "rank 1 is in two domains, a and b: take it out of");
        let none = [(Some(&[0u32, 1][..]), None), (Some(&[3u32][..]), None)];
        refused(&none, None, "rank 2 is in no domain: add it to the ranks of one");
        refused(&none, Some(3), "domain b: ranks: rank 3 is not one of the job's 3");
        let slurm = [(None, Some(2)), (None, None)];
        refused(&slurm, None, "domain b: how many slots its allocation of Slurm has");
        refused(&slurm, Some(4), "domain b: how many slots its allocation of Slurm has");
    }

    #[test]
    fn slots_without_spares() {
        let list = hosts::parse_list("a:4,b,c:2").unwrap();
        assert_eq!((slots(&list, 0), slots(&list, 1), slots(&list, 2)), (Ok(7), Ok(5), Ok(4)));
        assert!(slots(&list, 3).unwrap_err().contains("3 cannot be spares"));
        assert!(slots(&list, u32::MAX).is_err());
    }

    #[test]
    fn consecutive_ranks_are_one_run() {
        let ranks = |of: &[u32]| of.iter().copied().map(Rank).collect::<Vec<_>>();
        let run = |first, last| (Rank(first), Rank(last));
        assert_eq!(runs(&ranks(&[0, 1, 2, 5, 7, 8])), [run(0, 2), run(5, 5), run(7, 8)]);
        assert_eq!(runs(&[]), []);
    }

    proptest! {
        #[test]
        fn each_rank_is_in_one_domain(
            slots in prop::collection::vec(1..9u32, 2..4), ranks in prop::option::of(0..30u32)
        ) {
            let domains: Vec<_> = slots.iter().map(|slots| (None, Some(*slots))).collect();
            if let Ok(shares) = shared(&domains, ranks) {
                let all: Vec<u32> = shares.iter().flatten().copied().collect();
                let expected = ranks.unwrap_or(slots.iter().sum());
                prop_assert_eq!(all, (0..expected).collect::<Vec<_>>());
                for (share, slots) in shares.iter().zip(&slots) {
                    prop_assert!((1..=*slots).contains(&(share.len() as u32)));
                }
            }
        }
    }
}
