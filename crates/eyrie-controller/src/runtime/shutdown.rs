//! The end of a job: agents, ranks and files are gone when it returns.

use super::inbound::{Heard, Inbound};
use super::job::Job;
use super::journal::Journal;
use super::link::{encode, JournalProgress};
use super::output::OutputFailed;
use super::taken_output;
use crate::machine::{Event, FromPeer, Machine, Peer};
use crate::record::{LogLevel, Record};
use crossbeam_channel::Receiver;
use eyrie_supervision::{kill_children_but, segments, Reaped, Sweeper};
use eyrie_wire::control::{FromAgent, ToAgent};
use eyrie_wire::NodeId;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long agents may take to end by themselves.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);
/// How long killed processes may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

impl Job {
    /// Ends everything: agents, ranks, files; `sweeper` looks after the directory as long as it is
    /// there. Returns the exit code, which is `code` unless output was lost after all.
    pub fn finish(
        mut self,
        inbound: &Receiver<Inbound>,
        code: i32,
        sweeper: Option<&Sweeper>,
    ) -> i32 {
        // No other controller goes on with what is over.
        self.journal = Journal::default();
        self.sessions().for_each(|session| session.release(u64::MAX));
        if self.end.is_replaced() {
            // The other controller shows what comes of the job.
            self.event_file.close()
        } else {
            self.outlet.let_out(u64::MAX)
        }
        self.let_events_out(u64::MAX);
        for session in self.agents.sessions() {
            session.send(JournalProgress::NO_JOURNAL, encode(&ToAgent::Shutdown));
        }
        let until = Instant::now() + SHUTDOWN_TIMEOUT;
        // Those on other hosts are not our children.
        let mut connected: BTreeSet<NodeId> = self.agents.nodes().into_iter().collect();
        while !(self.children.is_empty() && connected.is_empty()) {
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            // Children that end wake us; agents of nodes that were declared dead will not end by
            // themselves.
            match inbound.recv_timeout(left.min(Duration::from_millis(20))) {
                Ok(
                    Inbound::Gone { by: Peer::Agent(node), .. }
                    | Inbound::Heard(Heard::Event(Event::AgentGone(node))),
                ) => drop(connected.remove(&node)),
                Ok(Inbound::Heard(
                    heard @ Heard::From(_, FromPeer::Agent(_, FromAgent::Output { .. })),
                )) => self.take(heard),
                _ => {}
            }
            self.children.reap();
            let only_lost = self.children.only_lost(&self.machine.nodes_up().collect::<Vec<_>>());
            if only_lost && connected.is_empty() {
                break;
            }
        }
        let sweeper = sweeper.and_then(Sweeper::pid);
        let spared: Vec<_> = sweeper.into_iter().chain(self.children.spared()).collect();
        if let Reaped::Left(n) = kill_children_but(&spared, KILL_TIMEOUT) {
            self.outlet.printer().line(
                LogLevel::Error,
                &format!("{n} processes hang in the kernel and could not be ended"),
            );
        }
        segments::remove(self.machine.leftovers());
        // Who only saves it has shown nothing of its output.
        let finished = self.machine.has_finished() && self.outlet.kept().is_none();
        if let Some(images) = self.images.take() {
            images.end(finished);
        }
        let within = self.end.is_quick().then_some(Duration::from_secs(1));
        let now = self.clock.time();
        let mut lines = Vec::new();
        let code = match self.outlet.finish(within) {
            // It became known when the ranks had ended already.
            Some(OutputFailed { code: failed, cause, reader_left }) if code == 0 => {
                lines.extend((!reader_left).then(|| format!("eyrie: {cause}\n")));
                // The job is over: where its events cannot be written either, nothing is left to
                // say it.
                let _ = self.event_file.add(now, &Record::Note { text: cause }, 0);
                let _ = self.event_file.let_out(0);
                failed
            }
            _ => code,
        };
        let summary = summary(&self.machine, &self.beginning.name, code);
        lines.extend(self.beginning.options.json.then(|| summary + "\n"));
        let last = taken_output::last_words(&self.machine, &self.beginning.name, code);
        let last = last.filter(|_| !self.end.is_replaced());
        lines.extend(last.map(|text| format!("eyrie: {text}\n")));
        for line in lines {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        }
        code
    }
}

fn summary(machine: &Machine, name: &str, code: i32) -> String {
    let mut value = serde_json::to_value(machine.summary()).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.insert("job".into(), name.into());
        object.insert("code".into(), code.into());
    }
    value.to_string()
}
