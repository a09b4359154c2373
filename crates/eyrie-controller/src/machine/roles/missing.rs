//! Whether all is kept twice that was promised to be: images in two stores, the log of a rank away
//! from the rank's own host, the journal on other hosts. What is missing is said once, when no host
//! can have it, or when it has been missing for long; and when it is there again. Mends nothing:
//! stores, routers and the journal each come back by themselves.

use super::redundancy::{JournalCopies, Kept, Missing, Redundancy};
use crate::machine::view::View;
use crate::record::{in_words, list, Record};
use eyrie_transport::RouterId;
use eyrie_wire::{Node, Rank};
use std::time::Duration;

/// So long it may take to make a copy before its absence is said.
const SAID_AFTER: Duration = Duration::from_secs(30);
const NO_OTHER_HOST: &str =
    "no other host is up, has room and is not drained; `eyrie join` adds one";

impl Redundancy {
    pub fn set_journal(&mut self, copies: JournalCopies) {
        self.journal = copies;
    }

    /// The nodes that have a whole copy of the journal.
    pub fn journal_nodes(&self) -> &[Node] {
        &self.journal.nodes
    }

    /// What was promised to be kept twice, and is not at present.
    pub fn missing_copies(&self, view: View<'_>) -> Vec<Missing> {
        if !view.config.roles_on_nodes || !view.out.has_started() {
            return Vec::new();
        }
        let all = [view.missing_images(), view.missing_logs(), self.missing_journal()];
        all.into_iter().flatten().collect()
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
    pub fn watch(&mut self, view: View<'_>) -> Vec<Record> {
        let (now, mut records) = (view.out.now(), Vec::new());
        let missing = self.missing_copies(view);
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

impl View<'_> {
    fn missing_images(self) -> Option<Missing> {
        let what = Kept::Images;
        let (stores, wanted) = (&self.roles.stores, self.config.stores as usize);
        let up: Vec<Node> = stores.values().filter(|s| s.is_up()).map(|s| s.node).collect();
        if up.len() < wanted {
            let on = up.first().map_or("no store".into(), |node| {
                format!("one store only, on {}", in_words(*node, self.nodes.hosts()))
            });
            let comes = stores.len() >= wanted || self.node_for_missing_store().is_some();
            let why = if comes { "another is being started" } else { NO_OTHER_HOST };
            return Some(Missing { what, cause: format!("images are in {on}: {why}"), comes });
        }
        let promised = self.config.image_copies as usize;
        let short = self.ranks.living();
        let short =
            short.filter(|r| r.images.last().is_some_and(|i| i.copies.stores.len() < promised));
        let short: Vec<Rank> = short.map(|r| r.rank).collect();
        let cause = format!("the images of {} are in one store only, and copied", list(&short));
        (!short.is_empty()).then_some(Missing { what, cause, comes: true })
    }

    fn missing_logs(self) -> Option<Missing> {
        let beside = |id: &RouterId| {
            let node = self.roles.routers[*id as usize].node;
            self.nodes_served(*id)[node as usize]
        };
        let mut routers = (0..self.roles.routers.len() as RouterId).filter(beside);
        let first = routers.next()?;
        let names = match routers.count() {
            0 => format!("router {first}"),
            others => format!("router {first} and {others} more"),
        };
        let better = |id: RouterId| {
            let node = self.node_for_router(id);
            node.is_some_and(|node| !self.nodes_served(id)[node as usize])
        };
        let comes = better(first);
        let why = if comes { "that ends when all ranks are whole" } else { NO_OTHER_HOST };
        let cause = format!("messages are logged on their receivers' own host, by {names}: {why}");
        Some(Missing { what: Kept::Logs, cause, comes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Command, Config, Event, Machine};
    use eyrie_transport::Addr;
    use eyrie_wire::control::{RankReport, Role};
    use eyrie_wire::RankInstance;

    /// A machine of so many nodes with one rank, and the time.
    struct Job {
        machine: Machine,
        now: Duration,
    }

    impl Job {
        fn new(nodes: u32) -> Job {
            let machine = Machine::new(Config::with_roles_on(nodes));
            let mut job = Job { machine, now: Duration::ZERO };
            (0..nodes).for_each(|node| drop(job.tell(Event::AgentUp(node), true)));
            let instance = RankInstance { rank: 0, incarnation: 1 };
            let (fetched, restored) = (Duration::ZERO, Duration::ZERO);
            job.tell(Event::Rank(instance, RankReport::Started { fetched, restored }), true);
            job
        }

        /// What is said of copies after this and a look; roles that are started listen, or never
        /// say so.
        fn tell(&mut self, event: Event, listen: bool) -> Vec<String> {
            let mut said = Vec::new();
            for event in [event, Event::Tick] {
                self.now += Duration::from_millis(1);
                for command in self.machine.handle(self.now, event) {
                    match command {
                        Command::StartRole { role, .. } if listen => {
                            let addr = Addr::Unix(format!("/{role}").into());
                            said.extend(self.tell(Event::RoleUp { role, addr }, true));
                        }
                        Command::Record(Record::CopiesMissing { cause, .. }) => said.push(cause),
                        Command::Record(Record::CopiesRestored { what }) => {
                            said.push(format!("{what:?}"));
                        }
                        _ => {}
                    }
                }
            }
            said
        }

        fn missing(&self) -> Vec<Kept> {
            self.machine.missing_copies().iter().map(|missing| missing.what).collect()
        }
    }

    #[test]
    fn what_no_host_can_have_is_said_at_once_and_so_is_that_one_can_again() {
        let mut job = Job::new(2);
        assert!(job.missing().is_empty());
        for _ in 0..2 {
            let said = job.tell(Event::Drain { request: None, node: 1 }, true);
            assert!(said[0].contains("one store only, on node 0: no other host"), "{said:?}");
            assert_eq!(job.missing(), [Kept::Images]);
            assert!(job.tell(Event::Tick, true).is_empty(), "it is said once");
            assert_eq!(job.tell(Event::Undrain { request: 1, node: 1 }, true), ["Images"]);
            assert!(job.missing().is_empty());
        }
    }

    #[test]
    fn what_is_on_its_way_is_said_when_it_takes_long() {
        let mut job = Job::new(3);
        let journal = |nodes, coming| JournalCopies { promised: 2, nodes, coming };
        assert!(job.tell(Event::JournalCopies(journal(vec![1], 1)), true).is_empty());
        assert_eq!(job.missing(), [Kept::Journal]);
        job.now += SAID_AFTER;
        let said = job.tell(Event::Tick, true);
        assert_eq!(said, ["the journal has 1 of 2 copies on other hosts: another is being made"]);
        assert_eq!(job.tell(Event::JournalCopies(journal(vec![1, 2], 0)), true), ["Journal"]);
    }

    #[test]
    fn a_store_that_could_not_be_started_is_tried_again_after_a_while() {
        let mut job = Job::new(2);
        let said = job.tell(Event::AgentGone(1), true);
        assert!(said[0].contains("one store only, on node 0: no other host"), "{said:?}");
        job.tell(Event::Joining { host: "late".into() }, true);
        assert!(job.tell(Event::AgentUp(2), false).is_empty(), "it does not listen yet");
        let full = Event::RoleLost { role: Role::Store { id: 2 }, cause: "no space".into() };
        assert!(job.tell(full, false).is_empty() && job.missing().contains(&Kept::Images));
        job.now += Duration::from_secs(60);
        assert_eq!(job.tell(Event::Tick, true), ["Images"]);
    }
}
