//! The gateway of a domain: a router for the ranks of all other domains, on the one host that these
//! reach. It never moves. Nothing is lost with it: senders keep their messages until another domain
//! has confirmed them, and tell their own primary router what they have seen before they tell the
//! gateway, as they do with a router on their own host. So no rank is imaged because of it, and
//! while its host is gone everything but messages to other domains goes on.

use super::hosting::{Hosting, ATTEMPTS};
use super::places::Places;
use crate::machine::config::Config;
use crate::machine::io::{Command, ToPeer};
use crate::machine::outbox::consequence::Consequence;
use crate::machine::state::RoleStateName;
use crate::record::{in_words, Record};
use eyrie_router::RouterCommand;
use eyrie_wire::control::RoleKind;
use eyrie_wire::directory::Directory;
use eyrie_wire::{NodeId, RouterId};

impl Hosting<'_> {
    /// Starts the gateway, where the job has other domains; false when its node is not up.
    pub fn start_gateway(&mut self) -> bool {
        let Some(id) = self.config.gateway_router() else { return true };
        let Some(node) = self.places().node_for_gateway(self.config) else { return false };
        let until = self.out.now() + self.router_patience();
        self.roles.add(RoleKind::Router, id.0, node, until);
        self.order_router(id, false);
        true
    }

    /// The gateway learns where the routers of its domain are.
    pub fn tell_gateway(&mut self, directory: &Directory) {
        if let Some(id) = self.config.gateway_router() {
            let directory = RouterCommand::Directory(directory.clone());
            self.out.push(Command::Send(ToPeer::Router(id, directory)));
        }
    }

    /// The gateway is gone. Another one is started on its host, as soon as that is there.
    pub fn gateway_lost(&mut self, id: RouterId, cause: String, by_itself: bool) {
        let Some(entry) = self.roles.get_mut(RoleKind::Router, id.0) else { return };
        if !entry.is(RoleStateName::Down) {
            let node = entry.node();
            let listened = entry.lose(by_itself);
            if entry.failed() >= ATTEMPTS {
                return self.out.end(1, Some(format!("the gateway cannot be started: {cause}")));
            }
            self.out.follows(Consequence::GatewayLost);
            if listened && self.out.has_started() {
                self.out.summary_mut().roles_lost += 1;
                let role = self.router_in_words(id);
                self.out.record(Record::RoleLost { role, node, cause, ranks: vec![] });
            }
            self.end_waiting_for(id);
        }
        if self.out.has_ended() {
            return;
        }
        let Some(node) = self.places().node_for_gateway(self.config) else {
            return self.wait_for_gateway();
        };
        let until = self.out.now() + self.router_patience();
        if let Some(entry) = self.roles.get_mut(RoleKind::Router, id.0) {
            entry.replace(node, until);
        }
        let takes_over = self.out.has_started();
        self.order_router(id, takes_over);
    }

    fn wait_for_gateway(&mut self) {
        let Some(node) = self.config.gateway else { return };
        let host = in_words(node, self.nodes.hosts());
        let text = format!(
            "messages to other domains wait until the host of the gateway, {host}, is back: `eyrie \
             join` brings it"
        );
        self.out.note(text);
    }
}

impl Places<'_> {
    /// The node of the gateway, or another one on the same host; `None` while none is up.
    fn node_for_gateway(self, config: &Config) -> Option<NodeId> {
        let node = config.gateway?;
        let name = self.nodes.hosts().get(node.index());
        let is_it = |other: &NodeId| {
            let other_name = self.nodes.hosts().get(other.index());
            *other == node || name.is_some() && other_name == name
        };
        self.nodes.up().find(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::roles::trial::Trial;
    use crate::machine::users::answer::Answer;
    use crate::machine::{said, Event};
    use eyrie_interface::Manner;
    use eyrie_wire::control::{RankReport, Role};
    use eyrie_wire::{Incarnation, Rank, RankInstance};
    use std::time::Duration;

    const GATEWAY: RouterId = RouterId(1);

    /// One whose rank runs.
    fn trial(nodes: u32) -> Trial {
        let mut job = Trial::new(Config::of_domain(nodes));
        let instance = RankInstance { rank: Rank(0), incarnation: Incarnation(1) };
        let [fetched, restored] = [Duration::ZERO; 2];
        job.handle(said::rank(instance, RankReport::Started { fetched, restored }));
        job.handle(said::rank(instance, RankReport::ProviderLoaded));
        job
    }

    fn gateway_on(job: &Trial) -> Option<NodeId> {
        let (id, gateway) = job.machine.roles.gateway()?;
        assert_eq!(id, GATEWAY);
        gateway.is_up().then_some(gateway.node())
    }

    fn directory(commands: &[Command]) -> Option<&Directory> {
        commands.iter().find_map(|command| match command {
            Command::Directory(directory) => Some(directory),
            _ => None,
        })
    }

    fn killed(generation: u32) -> Event {
        let role = Role { kind: RoleKind::Router, id: GATEWAY.0, generation };
        Event::RoleLost { role, cause: "killed".into() }
    }

    #[test]
    fn it_serves_the_ranks_of_other_domains_and_is_told_where_routers_are() {
        let mut job = trial(3);
        assert_eq!(gateway_on(&job), Some(NodeId(0)));
        assert_eq!(job.machine.roles.primaries(), [RouterId(0), GATEWAY]);
        assert_eq!(job.machine.incarnations().len(), 2);
        let told = job.handle(killed(0));
        assert!(told.iter().any(|command| matches!(
            command,
            Command::StartRole {
                node: NodeId(0),
                role: Role { id: 1, generation: 1, .. },
                takes_over: true
            }
        )));
        let directory = directory(&told).expect("a directory");
        assert_eq!(directory.routers.len(), 2);
        let to_gateway = RouterCommand::Directory(directory.clone());
        assert!(told.contains(&Command::Send(ToPeer::Router(GATEWAY, to_gateway))));
        // Each rank tells its own router what it has seen, before it tells the gateway.
        assert!((0..3).all(|node| job.machine.not_alone(NodeId(node)).contains(&GATEWAY)));
        assert!(job.machine.unprotected_ranks().next().is_none(), "no log was lost");
    }

    #[test]
    fn while_its_host_is_gone_all_but_messages_to_other_domains_goes_on() {
        let mut job = trial(4);
        job.handle(Event::AgentGone(NodeId(0)));
        assert_eq!(gateway_on(&job), None);
        for _ in 0..1000 {
            job.handle(Event::Tick);
        }
        // A router is replaced, and found; a rank comes back.
        let (role, node) = job.machine.roles().find(|(role, _)| role.id == 0).unwrap();
        assert_ne!(node, NodeId(0));
        let told = job.handle(Event::RoleLost { role, cause: "killed".into() });
        assert_eq!(directory(&told).map(|directory| directory.routers.len()), Some(2));
        let role = Role { generation: role.generation + 1, ..role };
        let first = RankInstance { rank: Rank(0), incarnation: Incarnation(1) };
        job.handle(said::adopted(role, first));
        job.handle(said::heard(role, first));
        assert!(!job.machine.has_ended());
        // Its host comes back.
        job.handle(Event::Joining { host: "h9".into() });
        job.handle(said::joined(NodeId(4)));
        job.handle(Event::Tick);
        assert_eq!(gateway_on(&job), None, "that is another host");
        job.handle(Event::Joining { host: "h0".into() });
        job.handle(said::joined(NodeId(5)));
        job.handle(Event::Tick);
        assert_eq!(gateway_on(&job), Some(NodeId(5)));
    }

    #[test]
    fn a_fence_waits_for_a_gateway_only_while_one_is_there() {
        let mut job = trial(4);
        let cause = "node 3 is lost";
        let fenced = |id| {
            let instance = RankInstance { rank: Rank(0), incarnation: Incarnation(2) };
            said::fenced(RouterId(id), instance, 0)
        };
        let starts = |commands: &[Command]| commands.iter().any(|c| said::start(c).is_some());
        job.handle(Event::AgentGone(NodeId(3)));
        assert!(!starts(&job.handle(fenced(0))), "{cause}: the gateway has not confirmed it");
        let told = job.handle(Event::AgentGone(NodeId(0)));
        assert!(starts(&told), "it is gone: {told:?}");
    }

    #[test]
    fn its_node_is_not_drained() {
        let mut job = trial(3);
        let drain = Event::Drain { request: Some(1), node: NodeId(0) };
        let refused = job.handle(drain).into_iter().find_map(|command| match command {
            Command::Answer { answer: Answer::Refused(why), .. } => Some(why),
            _ => None,
        });
        assert!(refused.unwrap().contains("it has the gateway to other domains"));
        let (ranks, manner) = (vec![Rank(1)], Manner::default());
        let elsewhere = Event::Migrate { request: Some(2), ranks, to: None, manner };
        let told = format!("{:?}", job.handle(elsewhere));
        assert!(told.contains("rank 1 is in another domain"), "{told}");
    }

    #[test]
    fn one_that_cannot_be_started_ends_the_job() {
        let mut job = trial(3);
        let fails = |_: NodeId, role: Role| {
            Some(Event::RoleLost { role, cause: "the port is taken".into() })
        };
        let told = format!("{:?}", job.handle_with(killed(0), &fails));
        assert!(told.contains("the gateway cannot be started: the port is taken"), "{told}");
    }
}
