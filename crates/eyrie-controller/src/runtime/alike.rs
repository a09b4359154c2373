//! Whether the hosts of a job are alike enough for ranks to go from one to another: each is
//! compared with the first that has come; and whether they are hosts of their own.

use super::cpu::Held;
use super::journal::Beginning;
use eyrie_host::{differences, in_common, lacking, same_host};
use eyrie_host::{Difference, Images, Needs, Severity, What};
use eyrie_image::processor::Level;
use eyrie_wire::facts::Facts;
use eyrie_wire::NodeId;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Most differences of a host that are told.
const MAX_SHOWN: usize = 2;

/// Of a host that a saved job was on.
const EARLIER: &str = " as it was when the job was saved";

/// The host that all are compared with, and who is which host.
#[derive(Default)]
pub struct Alike {
    first: Option<(String, Facts)>,
    /// For each node that has come what its kernel says.
    identities: BTreeMap<NodeId, String>,
    /// What ranks are started to use of the hosts' processors.
    held: Held,
}

/// A host that is to take part.
pub struct Candidate<'a> {
    pub node: NodeId,
    pub name: &'a str,
    /// What it says of itself.
    pub facts: &'a Facts,
}

/// This host's name, and what it is for the ranks of a job.
pub fn this_host(beginning: &Beginning) -> (String, Facts) {
    let loaded: Vec<PathBuf> = beginning.provided.iter().map(|(_, at)| at.into()).collect();
    (eyrie_proc::host::name(), eyrie_agent::facts_of(&beginning.program, &loaded))
}

impl Alike {
    /// All hosts are compared with this one.
    pub fn first(host: (String, Facts)) -> Alike {
        Alike { first: Some(host), ..Alike::default() }
    }

    /// What goes on with a job on other hosts: the first host's name, and what it said of itself.
    pub fn saved(&self) -> Option<(String, Facts)> {
        self.first.clone()
    }

    /// Who is which host.
    pub fn identities(&self) -> &BTreeMap<NodeId, String> {
        &self.identities
    }

    /// All hosts are compared with that one.
    pub fn of(first: Option<(String, Facts)>, identities: BTreeMap<NodeId, String>) -> Alike {
        Alike { first, identities, held: Held::No }
    }

    /// As it is, of ranks that are held to this.
    pub fn held(self, held: Held) -> Alike {
        Alike { held, ..self }
    }

    /// The level that all hosts have which have come, if ranks are held to that and it is not
    /// settled yet. From now on it is.
    pub fn settle(&mut self) -> Option<Level> {
        let Held::Common(Some(level)) = self.held else { return None };
        self.held = Held::To(level);
        Some(level)
    }

    /// So they are with one of an earlier run of the job.
    pub fn of_earlier(saved: Option<(String, Facts)>) -> Alike {
        let named = |host: String| {
            let host = host.strip_suffix(EARLIER).unwrap_or(&host);
            format!("{host}{EARLIER}")
        };
        Alike::of(saved.map(|(host, facts)| (named(host), facts)), BTreeMap::new())
    }

    /// Why ranks that were saved elsewhere cannot go on at a host; nothing when they can.
    pub fn obstacle(&self, host: &str, facts: &Facts, images: Images) -> Option<String> {
        let (first, known) = self.first.as_ref()?;
        let needs = Needs { images, level: self.held.level() };
        let found = self.differences((host, facts), (first, known), needs);
        in_words(found.into_iter().filter(|d| d.severity == Severity::Refuse))
    }

    /// In what a host differs from the first. A rank does not go back to a host of an earlier run:
    /// what that one lacks is no obstacle.
    fn differences(
        &self,
        of: (&str, &Facts),
        first: (&str, &Facts),
        needs: Needs,
    ) -> Vec<Difference> {
        let all = differences(of, first, needs).into_iter();
        let is_earlier = first.0.ends_with(EARLIER);
        // Of ranks that are held to no level, another register state forbids both ways.
        let lacks = |what| match what {
            What::Instructions => true,
            What::RegisterState => needs.level.is_some(),
            _ => false,
        };
        all.filter(|d| !(is_earlier && lacks(d.what) && d.host == first.0)).collect()
    }

    /// Compares a host with the first one, and with those of all nodes that are up, by name: why it
    /// cannot take part, if so, and what else users should know of it.
    pub fn compare(
        &mut self,
        candidate: &Candidate,
        up: &[(NodeId, String)],
        images: Images,
    ) -> (Option<String>, Vec<String>) {
        let Candidate { node, name: host, facts } = *candidate;
        let same = up.iter().filter(|(other, _)| *other != node).find_map(|(other, name)| {
            same_host((host, &facts.identity), (name, self.identities.get(other)?))
        });
        if let Some(same) = same {
            return (Some(same.text), vec![]);
        }
        self.identities.insert(node, facts.identity.clone());
        let level = match self.level_with(facts) {
            Ok(level) => level,
            Err(why) => return (Some(why), vec![]),
        };
        let Some((first, known)) = &self.first else {
            self.first = Some((host.into(), facts.clone()));
            return (None, vec![]);
        };
        let needs = Needs { images, level: level.as_ref() };
        let found = self.differences((host, facts), (first, known), needs);
        let (refused, told): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|d| d.severity == Severity::Refuse);
        (in_words(refused.into_iter()), told.into_iter().map(|d| d.text).collect())
    }
}

impl Alike {
    /// The level that ranks are held to with this host; an error in words, if the host lacks some
    /// of it.
    fn level_with(&mut self, facts: &Facts) -> Result<Option<Level>, String> {
        let Some(has) = in_common([&facts.node].into_iter()) else { return Ok(None) };
        let level = self.held.come(has);
        match level.and_then(|level| lacking(&level, &facts.node)) {
            Some(lacking) => Err(format!(
                "its CPU lacks {lacking}, which --cpu lets ranks use: start the job with a lower \
                 level, or with --cpu common when this host takes part from the beginning"
            )),
            None => Ok(level),
        }
    }
}

/// The first of several differences in a sentence; nothing when there is none.
fn in_words(differences: impl Iterator<Item = Difference>) -> Option<String> {
    let mut texts: Vec<String> = differences.map(|d| d.text).collect();
    let more = texts.len().saturating_sub(MAX_SHOWN);
    texts.truncate(MAX_SHOWN);
    texts.extend((more > 0).then(|| format!("{more} more differences: see `eyrie check --hosts`")));
    (!texts.is_empty()).then(|| texts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(alike: &mut Alike, node: NodeId, name: &str, facts: &Facts) -> Option<String> {
        told(alike, Candidate { node, name, facts }, &[])
    }

    fn told(alike: &mut Alike, candidate: Candidate, up: &[(NodeId, String)]) -> Option<String> {
        let (refused, notes) = alike.compare(&candidate, up, Images::NeedFiles);
        assert_eq!(notes, Vec::<String>::new());
        refused
    }

    #[test]
    fn a_host_that_differs_is_refused_with_its_difference() {
        let mut alike = Alike::default();
        let mut facts = eyrie_host::gather("1.0", None, &[]);
        assert_eq!(compare(&mut alike, NodeId(0), "a", &facts), None);
        assert_eq!(compare(&mut alike, NodeId(1), "b", &facts), None);
        facts.version = "2.0".into();
        let refused = compare(&mut alike, NodeId(2), "c", &facts).unwrap();
        assert!(refused.contains("2.0") && refused.contains('c'), "{refused}");
    }

    #[test]
    fn two_names_of_one_host_are_refused_while_both_would_be_up() {
        let mut alike = Alike::default();
        let mut facts = eyrie_host::gather("1.0", None, &[]);
        assert_eq!(compare(&mut alike, NodeId(0), "a", &facts), None);
        let same = facts.clone();
        let up = [(NodeId(0), "a".to_string())];
        let again = || Candidate { node: NodeId(1), name: "10.0.0.1", facts: &same };
        let refused = told(&mut alike, again(), &up).unwrap();
        assert!(refused.starts_with("10.0.0.1 and a are one host"), "{refused}");
        // Another controller knows it, too.
        let mut alike = Alike::of(alike.saved(), alike.identities().clone());
        assert!(told(&mut alike, again(), &up).is_some());
        // It comes back, or its kernel does not say which host it is.
        assert_eq!(told(&mut alike, again(), &[]), None);
        facts.identity.clear();
        assert_eq!(compare(&mut alike, NodeId(2), "b", &facts), None);
        let other = Candidate { node: NodeId(3), name: "c", facts: &facts };
        assert_eq!(told(&mut alike, other, &[(NodeId(2), "b".into())]), None);
    }

    #[test]
    fn a_saved_job_goes_on_where_its_images_can_be_restored() {
        let mut saved = eyrie_host::gather("1.0", None, &[]);
        let at = |facts: &Facts| Some(("old".into(), facts.clone()));
        let here = saved.clone();
        assert_eq!(Alike::of_earlier(at(&saved)).obstacle("new", &here, Images::NeedFiles), None);
        let lowest = saved.node.features[0] & saved.node.features[0].wrapping_neg();
        saved.node.features[0] &= !lowest;
        assert_eq!(
            Alike::of_earlier(at(&saved)).obstacle("new", &here, Images::NeedFiles),
            None,
            "has more"
        );
        let words =
            Alike::of_earlier(at(&here)).obstacle("new", &saved, Images::NeedFiles).unwrap();
        assert!(
            words.contains("new's CPU lacks") && words.contains("old as it was when"),
            "{words}"
        );
        saved.node.kernel = "9.9.9".into();
        assert_eq!(
            Alike::of_earlier(at(&saved)).obstacle("new", &here, Images::NeedFiles),
            None,
            "another kernel"
        );
        saved.node.cpu_vendor = "Other".into();
        let words =
            Alike::of_earlier(at(&saved)).obstacle("new", &here, Images::NeedFiles).unwrap();
        assert!(words.contains("Other") && words.contains(&here.node.cpu_vendor), "{words}");
    }

    #[test]
    fn unequal_processors_take_part_in_a_job_that_is_held_to_what_they_have_in_common() {
        let rich = eyrie_host::gather("1.0", None, &[]);
        let without = |leaf: usize| {
            let mut poor = rich.clone();
            let features = &mut poor.node.features[leaf];
            *features &= !(*features & features.wrapping_neg());
            poor
        };
        let poor = without(0);
        let mut free = Alike::default();
        assert_eq!(compare(&mut free, NodeId(0), "rich", &rich), None);
        let refused = compare(&mut free, NodeId(1), "poor", &poor).unwrap();
        assert!(refused.contains("poor's CPU lacks") && refused.contains("--cpu common"));
        assert_eq!(free.settle(), None);

        let mut held = Alike::default().held(Held::Common(None));
        assert_eq!(compare(&mut held, NodeId(0), "rich", &rich), None);
        assert_eq!(compare(&mut held, NodeId(1), "poor", &poor), None);
        let level = held.settle();
        assert_eq!(level, in_common([&rich.node, &poor.node].into_iter()));
        assert_eq!(held.settle(), None, "it is settled once");
        assert_eq!(compare(&mut held, NodeId(2), "as rich", &rich), None);
        let late = compare(&mut held, NodeId(3), "late", &without(7)).unwrap();
        assert!(late.starts_with("its CPU lacks rdtscp, which --cpu lets ranks use"), "{late}");
    }
}
