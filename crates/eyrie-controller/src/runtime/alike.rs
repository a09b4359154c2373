//! Whether the hosts of a job are alike enough for ranks to go from one to another: each is
//! compared with the first that has come. Nothing that a host says of itself takes unbounded
//! memory.

use super::journal::Beginning;
use eyrie_host::{differences, Difference, Facts, Severity, What};
use std::path::PathBuf;

/// Longest text by which a host says what it is, in bytes.
const MAX_FACTS: usize = 4 << 20;

/// Most differences of a host that are told.
const MAX_SHOWN: usize = 2;

/// Of a host that a saved job was on.
const EARLIER: &str = " as it was when the job was saved";

/// The host that all are compared with.
#[derive(Default)]
pub struct Alike {
    first: Option<(String, Facts)>,
}

/// This host's name, and what it is for the ranks of a job.
pub fn this_host(beginning: &Beginning) -> (String, Facts) {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let loaded: Vec<PathBuf> = beginning.provided.iter().map(|(_, at)| at.into()).collect();
    (name.trim().into(), eyrie_agent::facts_of(&beginning.program, &loaded))
}

impl Alike {
    /// All hosts are compared with this one.
    pub fn first(host: (String, Facts)) -> Alike {
        Alike { first: Some(host) }
    }

    /// What goes on with a job on other hosts: the first host's name, and what it said of itself.
    pub fn saved(&self) -> Option<(String, String)> {
        let (host, facts) = self.first.as_ref()?;
        Some((host.clone(), serde_json::to_string(facts).ok()?))
    }

    /// All hosts are compared with that one.
    pub fn of(saved: Option<(String, String)>) -> Alike {
        Alike {
            first: saved.and_then(|(host, facts)| Some((host, serde_json::from_str(&facts).ok()?))),
        }
    }

    /// So they are with one of an earlier run of the job.
    pub fn of_earlier(saved: Option<(String, String)>) -> Alike {
        let named = |host: String| {
            let host = host.strip_suffix(EARLIER).unwrap_or(&host);
            format!("{host}{EARLIER}")
        };
        Alike::of(saved.map(|(host, facts)| (named(host), facts)))
    }

    /// Why ranks that were saved elsewhere cannot go on at a host; nothing when they can.
    pub fn obstacle(&self, host: &str, facts: &Facts) -> Option<String> {
        let (first, known) = self.first.as_ref()?;
        let found = self.differences((host, facts), (first, known));
        in_words(found.into_iter().filter(|d| d.severity == Severity::Refuse))
    }

    /// In what a host differs from the first. A rank does not go back to a host of an earlier run:
    /// what that one lacks is no obstacle.
    fn differences(&self, of: (&str, &Facts), first: (&str, &Facts)) -> Vec<Difference> {
        let all = differences(of, first).into_iter();
        let is_earlier = first.0.ends_with(EARLIER);
        all.filter(|d| !(is_earlier && d.what == What::Instructions && d.host == first.0)).collect()
    }

    /// Compares a host with the first one: why it cannot take part, if so, and what else users
    /// should know of it.
    pub fn compare(&mut self, host: &str, facts: &str) -> (Option<String>, Vec<String>) {
        let read = match facts.len() <= MAX_FACTS {
            true => serde_json::from_str::<Facts>(facts).map_err(|e| e.to_string()),
            false => Err("it is too long".into()),
        };
        let facts = match read {
            Ok(facts) => facts,
            Err(e) => {
                return (Some(format!("what it says of itself is not understood: {e}")), vec![])
            }
        };
        let Some((first, known)) = &self.first else {
            self.first = Some((host.into(), facts));
            return (None, vec![]);
        };
        let found = self.differences((host, &facts), (first, known));
        let (refused, told): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|d| d.severity == Severity::Refuse);
        (in_words(refused.into_iter()), told.into_iter().map(|d| d.text).collect())
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

    #[test]
    fn a_host_that_differs_is_refused_with_its_difference() {
        let mut alike = Alike::default();
        let mut facts = Facts::gather("1.0", None, &[]);
        let json = |facts: &Facts| serde_json::to_string(facts).unwrap();
        assert_eq!(alike.compare("a", &json(&facts)), (None, vec![]));
        assert_eq!(alike.compare("b", &json(&facts)), (None, vec![]));
        facts.version = "2.0".into();
        let (refused, _) = alike.compare("c", &json(&facts));
        let refused = refused.unwrap();
        assert!(refused.contains("2.0") && refused.contains('c'), "{refused}");
        assert!(alike.compare("d", "{}").0.unwrap().contains("not understood"));
        assert!(alike.compare("e", &"x".repeat(MAX_FACTS + 1)).0.unwrap().contains("too long"));
    }
    #[test]
    fn a_saved_job_goes_on_where_its_images_can_be_restored() {
        let mut saved = Facts::gather("1.0", None, &[]);
        let at = |facts: &Facts| Some(("old".into(), serde_json::to_string(facts).unwrap()));
        let here = saved.clone();
        assert_eq!(Alike::of_earlier(at(&saved)).obstacle("new", &here), None);
        let lowest = saved.node.features[0] & saved.node.features[0].wrapping_neg();
        saved.node.features[0] &= !lowest;
        assert_eq!(Alike::of_earlier(at(&saved)).obstacle("new", &here), None, "has more");
        let words = Alike::of_earlier(at(&here)).obstacle("new", &saved).unwrap();
        assert!(
            words.contains("new's CPU lacks") && words.contains("old as it was when"),
            "{words}"
        );
        saved.node.kernel = "9.9.9".into();
        let words = Alike::of_earlier(at(&saved)).obstacle("new", &here).unwrap();
        assert!(words.contains("9.9.9") && words.contains(&here.node.kernel), "{words}");
    }
}
