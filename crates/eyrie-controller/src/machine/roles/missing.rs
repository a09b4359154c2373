//! Whether all is kept twice that was promised to be: images in two stores, the log of a rank away
//! from the rank's own host, the journal on other hosts. What is missing is said once, when no host
//! can have it, or when it has been missing for long; and when it is there again. Mends nothing:
//! stores, routers and the journal each come back by themselves.

use super::places::Places;
use super::redundancy::{JournalCopies, Missing, NO_OTHER_HOST};
use super::registry;
use crate::machine::config::Config;
use crate::record::Record;
use eyrie_interface::status::Kept;
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// So long it may take to make a copy before its absence is said.
const SAID_AFTER: Duration = Duration::from_secs(30);

/// What was said of it.
#[derive(Default, Debug, Serialize, Deserialize)]
pub struct Redundancy {
    journal: JournalCopies,
    /// What is missing: since when, and whether it was said.
    missing: BTreeMap<Kept, (Duration, bool)>,
}

impl Redundancy {
    pub fn set_journal(&mut self, copies: JournalCopies) {
        self.journal = copies;
    }

    /// The nodes that have a whole copy of the journal.
    pub fn journal_nodes(&self) -> &[NodeId] {
        &self.journal.nodes
    }

    /// What was promised to be kept twice, and is not at present. Not asked before the job has
    /// started.
    pub fn missing_copies(&self, config: &Config, places: Places<'_>) -> Vec<Missing> {
        if !config.roles_on_nodes {
            return Vec::new();
        }
        registry::missing(config, places).chain(self.missing_journal()).collect()
    }

    fn missing_journal(&self) -> Option<Missing> {
        let JournalCopies { promised, ref nodes, coming } = self.journal;
        let whole = nodes.len();
        let comes = whole + coming >= promised;
        let why = if comes { "another is being made" } else { NO_OTHER_HOST };
        let cause = format!("the journal has {whole} of {promised} copies on other hosts: {why}");
        (whole < promised).then_some(Missing { what: Kept::Journal, cause, comes })
    }

    /// Says what is missing, and what is there again.
    pub fn watch(&mut self, config: &Config, places: Places<'_>) -> Vec<Record> {
        let now = places.now;
        let mut records = Vec::new();
        let missing = self.missing_copies(config, places);
        self.missing.retain(|what, (_, said)| {
            let is_missing = missing.iter().any(|m| m.what == *what);
            if !is_missing && *said {
                records.push(Record::CopiesRestored { what: *what });
            }
            is_missing
        });
        for Missing { what, cause, comes } in missing {
            let (since, said) = self.missing.entry(what).or_insert((now, false));
            let due = !comes || now >= *since + SAID_AFTER;
            if due && !std::mem::replace(said, true) {
                records.push(Record::CopiesMissing { what, cause });
            }
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::roles::trial::{listens, Trial};
    use crate::machine::said;
    use crate::machine::{Command, Config, Event};
    use eyrie_wire::control::{RankReport, Role, RoleKind};
    use eyrie_wire::RankInstance;
    use eyrie_wire::{Incarnation, Rank};

    /// One whose rank runs.
    fn trial(nodes: u32) -> Trial {
        let mut trial = Trial::new(Config::with_roles_on(nodes));
        let instance = RankInstance { rank: Rank(0), incarnation: Incarnation(1) };
        let fetched = Duration::ZERO;
        let restored = Duration::ZERO;
        trial.handle(said::rank(instance, RankReport::Started { fetched, restored }));
        trial
    }

    impl Trial {
        /// What is said of copies after this and a look; roles that are started listen, or never
        /// say so.
        fn said(&mut self, event: Event, listen: bool) -> Vec<String> {
            let answers = |node, role| listens(node, role).filter(|_| listen);
            let mut commands = self.handle_with(event, &answers);
            commands.extend(self.handle_with(Event::Tick, &answers));
            let said = commands.into_iter().filter_map(|command| match command {
                Command::Record(Record::CopiesMissing { cause, .. }) => Some(cause),
                Command::Record(Record::CopiesRestored { what }) => Some(format!("{what:?}")),
                _ => None,
            });
            said.collect()
        }

        fn missing(&self) -> Vec<Kept> {
            self.machine.missing_copies().iter().map(|missing| missing.what).collect()
        }
    }

    #[test]
    fn what_no_host_can_have_is_said_at_once_and_so_is_that_one_can_again() {
        let mut job = trial(2);
        assert!(job.missing().is_empty());
        for _ in 0..2 {
            let said = job.said(Event::Drain { request: None, node: NodeId(1) }, true);
            assert!(said[0].contains("one store only, on node 0: no other host"), "{said:?}");
            assert_eq!(job.missing(), [Kept::Images]);
            assert!(job.said(Event::Tick, true).is_empty(), "it is said once");
            assert_eq!(job.said(Event::Undrain { request: 1, node: NodeId(1) }, true), ["Images"]);
            assert!(job.missing().is_empty());
        }
    }

    #[test]
    fn what_is_on_its_way_is_said_when_it_takes_long() {
        let mut job = trial(3);
        let journal = |nodes, coming| JournalCopies { promised: 2, nodes, coming };
        assert!(job.said(Event::JournalCopies(journal(vec![NodeId(1)], 1)), true).is_empty());
        assert_eq!(job.missing(), [Kept::Journal]);
        job.now += SAID_AFTER;
        let said = job.said(Event::Tick, true);
        assert_eq!(said, ["the journal has 1 of 2 copies on other hosts: another is being made"]);
        assert_eq!(
            job.said(Event::JournalCopies(journal(vec![NodeId(1), NodeId(2)], 0)), true),
            ["Journal"]
        );
    }

    #[test]
    fn a_store_that_could_not_be_started_is_tried_again_after_a_while() {
        let mut job = trial(2);
        let said = job.said(Event::AgentGone(NodeId(1)), true);
        assert!(said[0].contains("one store only, on node 0: no other host"), "{said:?}");
        job.said(Event::Joining { host: "late".into() }, true);
        assert!(job.said(said::joined(NodeId(2)), false).is_empty(), "it does not listen yet");
        let full =
            Event::RoleLost { role: Role::first(RoleKind::Store, 2), cause: "no space".into() };
        assert!(job.said(full, false).is_empty() && job.missing().contains(&Kept::Images));
        job.now += Duration::from_secs(60);
        assert_eq!(job.said(Event::Tick, true), ["Images"]);
    }
}
