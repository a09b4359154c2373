//! How nodes come to a job: agents that are started, say what their hosts are, and are told of
//! their job; at the start, and later by order of a user. A node that the machine hears of is ready
//! for ranks.

use super::alike::Candidate;
use super::inbound::Heard;
use super::job::Job;
use super::launcher::{Launcher, Target};
use super::options::JobOptions;
use super::{parts, users};
use crate::hosts::Host;
use crate::machine::Event;
use crate::record::in_words;
use eyrie_interface::answer::{refusal, Joined};
use eyrie_wire::control::{JobOnHost, Orphans, ToAgent};
use eyrie_wire::facts::Facts;
use eyrie_wire::NodeId;

impl Job {
    /// The agents that have come already can join, when it is known where all roles are.
    pub fn welcome_all(&mut self) {
        if !self.role_addresses.are_complete() {
            return;
        }
        for node in self.agents.nodes() {
            self.welcome(node);
        }
    }

    /// Tells an agent of its job, as soon as it is known where the store is.
    pub fn welcome(&mut self, node: NodeId) {
        if self.role_addresses.are_awaited() {
            return;
        }
        let job = JobOnHost {
            name: self.beginning.name.clone(),
            dir: self.dir.clone().into(),
            provided: self.beginning.provided.clone(),
            copied: self
                .beginning
                .options
                .cluster
                .as_ref()
                .is_some_and(|cluster| cluster.send_binaries),
            kvsname: self.beginning.kvsname.clone(),
            ranks: self.beginning.options.ranks,
            program: self.beginning.program.clone(),
            self_contained: self.beginning.options.self_contained,
            compared: !self.machine.hosts().is_empty(),
            orphans: self.beginning.options.can_be_resumed().then(|| self.orphans(node)),
            notices: self.beginning.options.notices.clone(),
            monitoring: self.beginning.options.monitoring.clone(),
        };
        self.send(node, &ToAgent::Join(Box::new(job)));
    }

    /// What an agent does when this controller has died.
    fn orphans(&self, node: NodeId) -> Orphans {
        let peer = self.agents.peer(node);
        let name = format!("agent-{node}");
        let listen = self.beginning.options.reach.bind_for(peer, &self.dir, &name);
        let JobOptions { orphan_timeout, heartbeat_timeout, .. } = self.beginning.options;
        let save = self.beginning.options.images.is_some();
        Orphans { timeout: orphan_timeout, save, heartbeat_timeout, listen }
    }

    /// A host is ready for ranks, or cannot take part. Returns what the machine is to know of it:
    /// the facts are compared here, since the machine asks nothing of hosts.
    pub fn joined(
        &mut self,
        node: NodeId,
        joined: Result<Option<Box<Facts>>, String>,
    ) -> Result<Option<Box<Facts>>, String> {
        let host = in_words(node, self.machine.hosts());
        let (refused, notes) = match joined {
            Ok(Some(facts)) => {
                let up = (0..).map(NodeId).zip(self.machine.nodes_up()).filter(|(_, up)| *up);
                let named = |(other, _)| (other, in_words(other, self.machine.hosts()));
                let up: Vec<(NodeId, String)> = up.map(named).collect();
                let images = self.beginning.options.image_files();
                self.alike.compare(&Candidate { node, name: &host, facts: &facts }, &up, images)
            }
            Ok(None) => (None, vec![]),
            Err(why) => (Some(why), vec![]),
        };
        for text in notes {
            self.handle_event(Event::Note(text));
        }
        match refused {
            None => {
                self.send_directory(node);
                self.users.answer_joining(node, users::written(&Joined { node }));
                Ok(None)
            }
            Some(why) => {
                let cause = format!("{host} cannot take part: {why}");
                self.users.answer_joining(node, refusal(&cause));
                Err(cause)
            }
        }
    }

    /// A line of a launcher. Until they have come, its last one may be why they do not.
    pub fn launcher_said(&mut self, node: Option<NodeId>, line: String) {
        let who = node.map_or("srun".into(), |node| in_words(node, self.machine.hosts()));
        if let Some(before) = self.agents.launcher_said(node, format!("{who}: {line}")) {
            self.handle_event(Event::Note(before));
        }
        if self.unstarted(node).is_empty() {
            let said = self.agents.launcher_words(node);
            if let Some(text) = said {
                self.handle_event(Event::Note(text));
            }
        }
    }

    /// The agent of `node` has come: who has started it is not needed any more, nor who starts
    /// those of all nodes after the last of them.
    pub fn let_go_of_launchers(&self, node: NodeId) {
        self.children.let_go(Some(node));
        // Few agents have so many before them, so that nodes are not counted with each.
        let all = self.beginning.options.nodes + self.beginning.options.spares;
        if self.agents.came() >= all as usize && self.unstarted(None).is_empty() {
            self.children.let_go(None);
        }
    }

    /// The nodes of a launcher whose agents have not come.
    fn unstarted(&self, node: Option<NodeId>) -> Vec<NodeId> {
        // Those that joined later have a launcher of their own.
        let all = 0..self.beginning.options.nodes + self.beginning.options.spares;
        let nodes = node.map_or(all, |node| node.0..node.0 + 1);
        nodes.map(NodeId).filter(|node| !self.agents.has_come(*node)).collect()
    }

    /// A launcher has ended. Where an agent has come, it is none of
    /// its business any more.
    pub fn launcher_ended(&mut self, node: Option<NodeId>) {
        let words = self.agents.launcher_words(node);
        let unstarted = self.unstarted(node);
        if let (Some(text), true) = (&words, unstarted.is_empty()) {
            self.handle_event(Event::Note(text.clone()));
        }
        for node in unstarted {
            let host = in_words(node, self.machine.hosts());
            let agent =
                self.beginning.options.cluster.as_ref().map(|c| c.agent.display().to_string());
            let agent = agent.unwrap_or_default();
            let said = match &words {
                Some(text) => format!("no agent came from {text}"),
                None => format!("no agent came from {host}, and its launcher did not say why"),
            };
            let remedy = format!("see whether it is reached, and {agent} is there (--agent-path)");
            let cause = format!("{said}; {remedy}");
            self.users.answer_joining(node, refusal(&cause));
            self.handle_event(Event::NoAgent { node, cause });
        }
    }

    /// A host is to join the running job.
    pub fn join(&mut self, host: String, allocation: Option<u64>) {
        if let Some(text) = self.cannot_join(allocation) {
            return self.users.answer_now(&refusal(text));
        }
        let Some(cluster) = &mut self.beginning.options.cluster else { return };
        let node = NodeId(cluster.hosts.len() as u32);
        cluster.hosts.push(Host { name: host.clone(), slots: None });
        self.admission.expect_node();
        self.users.wait_for(node);
        let started = if self.is_replaying {
            // The controller that has died has done it, or no agent comes.
            Ok(())
        } else {
            let tell = parts::hear_launcher(&self.inbound, Some(node));
            let files = cluster.files(&self.beginning.provided).map_err(std::io::Error::other);
            let target = Target::One(node, allocation);
            files.and_then(|files| self.children.launch(cluster, target, &files, tell))
        };
        self.handle_event(Event::Joining { host });
        if let Err(e) = started {
            let node = Some(node);
            let line = e.to_string();
            self.hear_later([Heard::LauncherSaid { node, line }, Heard::LauncherGone { node }]);
        }
    }

    /// Why no host can join the job at present.
    fn cannot_join(&self, allocation: Option<u64>) -> Option<&'static str> {
        let Some(cluster) = &self.beginning.options.cluster else {
            return Some(
                "this job runs on one host: only one that was started with --hosts, or in an \
                 allocation of Slurm, can be joined by others",
            );
        };
        if !self.machine.has_started() {
            return Some("the job is just starting; try again when its ranks run");
        }
        let by_hand = cluster.launcher == Launcher::Manual && allocation.is_none();
        by_hand.then_some("the agents of this job are started by hand (--launcher manual)")
    }
}
