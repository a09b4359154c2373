//! What may be asked of the machine from outside. Nothing here changes anything.

use super::components::Machine;
use super::domains::entry::OtherDomain;
use super::domains::progress::Progress;
use super::health::entry::NodeHealth;
use super::moves::entry::Move;
use super::ranks::entry::RankEntry;
use super::ranks::kept::KeptImage;
use super::roles::redundancy::Missing;
use super::saving::contents::Saved;
use super::state::{NodeStateName, RankStateName};
use eyrie_interface::Summary;
use eyrie_placement::Placement;
use eyrie_store::role::Stored;
use eyrie_wire::control::{Role, RoleKind};
use eyrie_wire::domains::{Domain, Domains};
use eyrie_wire::{DomainId, Incarnation, NodeId, Rank, RankInstance, RouterId, StoreId};
use std::collections::BTreeSet;
use std::time::Duration;

impl Machine {
    /// What is known of the health of a node, if anything was said of it.
    pub fn health_of(&self, node: NodeId) -> Option<&NodeHealth> {
        self.health.get(node)
    }

    /// The other domains of the job, and what is known of them; also one that joins.
    pub fn other_domains(&self) -> impl Iterator<Item = (DomainId, &Domain, &OtherDomain)> {
        let all = self.config.domains.iter().flat_map(|domains| domains.others());
        all.filter_map(|(id, domain)| {
            let known = self.domains.get(id).filter(|known| known.told_until().is_none());
            Some((id, domain, known?))
        })
    }

    /// Whether another domain is a part of the job.
    pub fn is_member(&self, domain: DomainId) -> bool {
        self.domains.get(domain).is_some_and(OtherDomain::is_member)
    }

    /// Whether Eyrie's own lines are shown by another domain: as soon as there was a line to it, as
    /// long as the job has not ended.
    pub fn is_shown_elsewhere(&self) -> bool {
        let shown_by = self.config.domains.as_ref().and_then(Domains::shown_by);
        let other = shown_by.and_then(|by| self.domains.get(by));
        other.is_some_and(|other| other.line().since.is_some()) && !self.out.has_ended()
    }

    /// Whether what ranks print is shown in files, after the command that has started the job.
    pub fn is_shown_in_files(&self) -> bool {
        self.domains.succession().is_in_files()
    }

    /// The domain that shows the job when this one has left it, and the file in which it does.
    pub fn successor(&self) -> Option<(&str, &str)> {
        let is_left = self.domains.are_left();
        let (id, file) = self.domains.succession().successor().filter(|_| is_left)?;
        Some((self.domains.get(id)?.name(), file))
    }

    /// All domains as they are now: ranks may have gone from one to another.
    pub fn domains(&self) -> Option<&Domains> {
        self.config.domains.as_ref()
    }

    /// All ranks of a domain that go to another one, as far as this domain knows.
    pub fn domain_moves(&self) -> Vec<Progress> {
        let own = self.config.domains.as_ref().map(|domains| domains.own);
        own.map(|own| self.handover.progress(own)).unwrap_or_default()
    }

    /// The gateway of this domain.
    pub fn gateway(&self) -> Option<RouterId> {
        self.roles.gateway().map(|(id, _)| id)
    }

    /// The newest image of a rank.
    pub fn newest_image(&self, rank: Rank) -> Option<Stored> {
        Some(self.ranks.get(rank)?.images().newest()?.image)
    }

    /// The name of a role, as users know it.
    pub fn role_in_words(&self, role: Role) -> String {
        let is_router = role.kind == RoleKind::Router;
        if is_router && self.roles.is_gateway(RouterId(role.id)) {
            "gateway".into()
        } else {
            role.to_string()
        }
    }

    /// Names of the hosts that the nodes are; empty on one machine.
    pub fn hosts(&self) -> &[String] {
        self.nodes.hosts()
    }

    /// Whether all nodes were up and the ranks were started.
    pub fn has_started(&self) -> bool {
        self.out.has_started()
    }

    /// Whether [`super::Command::End`] was given.
    pub fn has_ended(&self) -> bool {
        self.out.has_ended()
    }

    /// Whether the programs of all ranks have ended by themselves.
    pub fn has_finished(&self) -> bool {
        self.ranks.have_all_finished()
    }

    /// What the job has been through so far.
    pub fn summary(&self) -> Summary {
        self.out.summary()
    }

    /// For the progress line and `eyrie status`: of this domain, as the next two.
    pub fn rank_states(&self) -> impl Iterator<Item = (RankInstance, NodeId, RankStateName)> + '_ {
        self.ranks.of_this_domain().map(|r| (r.instance(), r.node(), r.state()))
    }

    /// Who says where ranks go.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// From one image of a rank to its next, at present; and what an image takes until it is
    /// stored.
    pub fn checkpoint_rhythm(&self) -> (Option<Duration>, Option<Duration>) {
        (self.schedule.interval(), self.schedule.cost())
    }

    /// The newest image of each rank, and in which stores it is.
    pub fn newest_images(&self) -> impl Iterator<Item = Option<(Stored, Vec<StoreId>)>> + '_ {
        let of = |kept: &KeptImage| (kept.image, kept.copies.stores().collect());
        self.ranks.of_this_domain().map(move |r| r.images().newest().map(of))
    }

    /// For each rank for how long it has had no new image, and why, if that is too long.
    pub fn overdue(&self) -> impl Iterator<Item = Option<(Duration, String)>> + '_ {
        let ages = self.ages();
        let is_saving = self.saving.is_going_on();
        let of = move |r: &RankEntry| Some((ages.overdue_for(r)?, ages.why_no_image(r.rank())));
        self.ranks.of_this_domain().map(move |r| of(r).filter(|_| !is_saving))
    }

    /// Ranks whose death, with or without their node, cannot be recovered from at present.
    pub fn unprotected_ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        self.places().unprotected_ranks()
    }

    /// For each rank which incarnation may speak.
    pub fn incarnations(&self) -> Vec<Incarnation> {
        self.ranks.iter().map(RankEntry::incarnation).collect()
    }

    /// Bytes of (standard output, standard error) of a rank that were taken to be shown.
    pub fn output_taken(&self, rank: Rank) -> [u64; 2] {
        self.output.taken(rank)
    }

    /// Whether each node is up, in order; spares included.
    pub fn nodes_up(&self) -> impl Iterator<Item = bool> + '_ {
        self.nodes.iter().map(|(_, node)| node.is_up())
    }

    /// The nodes that were declared dead.
    pub fn dead_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let dead = self.nodes.iter().filter(|(_, n)| n.state() == NodeStateName::Dead);
        dead.map(|(node, _)| node)
    }

    /// Nodes that are drained, or being drained.
    pub fn drained(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().filter(|(_, n)| n.is_drained()).map(|(node, _)| node)
    }

    /// The nodes whose agents have not come, in words.
    pub fn missing(&self) -> Vec<String> {
        self.nodes.missing_in_words()
    }

    /// The nodes that are up, and how many ranks each has or is to have.
    pub fn nodes_up_with_ranks(&self) -> impl Iterator<Item = (NodeId, u32)> {
        self.places().nodes_up_with_ranks()
    }

    /// For how long the controller has stood aside, if it does.
    pub fn cut_off_for(&self) -> Option<Duration> {
        self.contact.cut_off_for(self.out.now())
    }

    /// Pairs of nodes of which the first does not reach the second.
    pub fn unreached(&self) -> impl Iterator<Item = (NodeId, NodeId)> + '_ {
        self.reach.pairs()
    }

    /// Whether a role is the last of its kind. Those beside the controller always are.
    pub fn is_current(&self, role: Role) -> bool {
        self.roles.is_current(&self.config, role)
    }

    /// Routers and stores on nodes, and their nodes; none where they run beside the controller.
    pub fn roles(&self) -> impl Iterator<Item = (Role, NodeId)> + '_ {
        self.roles.iter()
    }

    /// Those of them that have said where they listen.
    pub fn roles_up(&self) -> impl Iterator<Item = Role> + '_ {
        self.roles.up()
    }

    /// Files in /dev/shm that ranks have made.
    pub fn leftovers(&self) -> impl Iterator<Item = &String> {
        self.leftovers.all()
    }

    /// For each rank whether this router is its primary one.
    pub fn is_primary_of(&self, id: RouterId) -> Vec<bool> {
        self.roles.is_primary_of(id)
    }

    /// The routers that ranks on this node tell nothing that no other router knows: those on their
    /// own host, and the gateway.
    pub fn not_alone(&self, node: NodeId) -> Vec<RouterId> {
        let here = self.roles.of_kind_on(RoleKind::Router, node).into_iter().map(RouterId);
        let gateway = self.roles.gateway().map(|(id, _)| id);
        let all: BTreeSet<RouterId> = here.chain(gateway).collect();
        all.into_iter().collect()
    }

    /// What was promised to be kept twice, and is not at present.
    pub fn missing_copies(&self) -> Vec<Missing> {
        if !self.out.has_started() {
            return Vec::new();
        }
        self.redundancy.missing_copies(&self.config, self.places())
    }

    /// Ranks that move.
    pub fn moves(&self) -> impl Iterator<Item = (Rank, &Move)> + '_ {
        self.moves.iter()
    }

    /// Whether the job is being saved.
    pub fn is_saving(&self) -> bool {
        self.saving.is_going_on()
    }

    /// Whether ranks were sent a signal that is to end them.
    pub fn is_told_to_end(&self) -> bool {
        self.signals.are_to_end()
    }

    /// What is needed to go on with the job as it is now.
    pub(crate) fn saved(&self) -> Saved {
        Saved {
            ranks: self.ranks.iter().map(RankEntry::saved).collect(),
            pmi: self.pmi.clone(),
            output: self.output.clone(),
            summary: self.out.summary(),
            primaries: self.roles.primaries().to_vec(),
            signals: self.signals.all().to_vec(),
        }
    }
}
