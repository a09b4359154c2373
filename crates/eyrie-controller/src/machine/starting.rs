//! The start of a job: its ranks start once all agents and roles are there, or come back where the
//! job was saved.

use super::config::Config;
use super::faults::pending::Faults;
use super::images::schedule::Schedule;
use super::io::start_rank;
use super::nodes::Nodes;
use super::outbox::consequence::Consequence;
use super::outbox::Outbox;
use super::pmi::Pmi;
use super::ranks::Ranks;
use super::timeouts::START_TIMEOUT;
use crate::record::Record;
use eyrie_wire::control::ToAgent;

/// What the start of a job changes, and what it asks.
pub struct Starting<'a> {
    pub config: &'a Config,
    pub out: &'a mut Outbox,
    pub nodes: &'a Nodes,
    pub ranks: &'a mut Ranks,
    pub pmi: &'a Pmi,
    pub schedule: &'a mut Schedule,
    pub faults: &'a mut Faults,
}

impl Starting<'_> {
    /// Whether the job is to start and all agents are there. Ends the job when they take too long.
    pub fn agents_are_up(&mut self) -> bool {
        if self.out.has_started() || self.out.has_ended() {
            return false;
        }
        let is_late = self.out.now() >= self.config.agents_timeout;
        let missing = self.nodes.missing() > 0;
        if missing && is_late {
            let text = format!(
                "the agents of {} did not come up within {}",
                self.nodes.missing_in_words().join(", "),
                eyrie_units::time(self.config.agents_timeout)
            );
            self.out.end(1, Some(text));
        }
        !missing
    }

    /// Starts the ranks, or brings those of a saved job back that have not finished.
    pub fn start(&mut self) {
        let now = self.out.now();
        self.out.start();
        let Config { ranks, nodes, routers, ref job, .. } = *self.config;
        let spares = self.nodes.spares();
        let hosts = self.nodes.hosts().to_vec();
        let job = job.clone();
        self.out.record(Record::JobStarted { job, ranks, nodes, spares, hosts, routers });
        self.schedule.begin(&self.ranks.numbers(), now);
        self.faults.begin(now);
        self.out.extend(self.pmi.so_far(None));
        let mut returning = Vec::new();
        for rank in self.ranks.numbers() {
            let r = &mut self.ranks[rank];
            if r.start(now + START_TIMEOUT) {
                let instance = r.instance();
                let node = r.node();
                self.out.send_agent(node, ToAgent::Start(start_rank(instance, None)));
                self.out.record(Record::RankStarted { instance, node, image: None });
            } else if r.go_on(now) {
                returning.push(r.instance());
            }
        }
        self.out.follows(Consequence::RanksReturn(returning));
    }
}
