//! Whether the hosts of a job are alike enough for ranks to go from one to another: each is
//! compared with the first that has come. Nothing that a host says of itself takes unbounded
//! memory.

use eyrie_host::{differences, Facts, Severity};

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

impl Alike {
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
        let named = |host: String| match host.ends_with(EARLIER) {
            true => host,
            false => host + EARLIER,
        };
        Alike::of(saved.map(|(host, facts)| (named(host), facts)))
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
        let found = differences((host, &facts), (first, known));
        let (refused, told): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|d| d.severity == Severity::Refuse);
        let mut texts: Vec<String> = refused.into_iter().map(|d| d.text).collect();
        let more = texts.len().saturating_sub(MAX_SHOWN);
        texts.truncate(MAX_SHOWN);
        texts.extend(
            (more > 0).then(|| format!("{more} more differences: see `eyrie check --hosts`")),
        );
        let refused = (!texts.is_empty()).then(|| texts.join("; "));
        (refused, told.into_iter().map(|d| d.text).collect())
    }
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
}
