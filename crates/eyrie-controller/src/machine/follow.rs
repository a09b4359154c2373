//! What follows from what a handler has found: which handlers take which consequence, in which
//! order. Decides nothing.

use super::components::Machine;
use super::domains::arriving::MovedRanks;
use super::io::Mark;
use super::moves::together::MoveEnd;
use super::outbox::consequence::{Consequence, LostNode};
use super::ranks::phases::Death;
use super::recovery::gathered::Replay;
use super::timeouts::RETRY;
use eyrie_wire::control::RoleKind;
use eyrie_wire::domains::{Domain, DomainSays};
use eyrie_wire::{DomainId, RankInstance};

impl Machine {
    /// What follows from what a handler has found, until nothing is left: in order, and what
    /// follows from one consequence before the next.
    pub(super) fn follow(&mut self) {
        while let Some((consequence, later)) = self.out.next_consequence() {
            self.handle_consequence(consequence);
            self.follow();
            self.out.put_back(later);
        }
    }

    fn handle_consequence(&mut self, consequence: Consequence) {
        use Consequence as C;
        match consequence {
            C::NodesLost(lost) => self.nodes_lost(lost),
            C::RankLost { rank, death, cause, unheard } => {
                self.recovery().rank_failed(rank, death, cause, unheard)
            }
            C::RankFailed(rank) => {
                let again = self.out.now() + RETRY;
                self.saver().not_imaged(rank, true, again);
                self.mover().died(rank);
                self.handing_over().rank_died(rank);
            }
            C::RouterFenced { router, instance, rsn } => {
                self.recovery().router_fenced(router, instance, rsn, Replay::default())
            }
            C::RankFenced { instance, mark } => {
                self.saver().fenced(instance.rank);
                let leaves = self.handing_over().is_leaving(instance);
                if !self.saving.ranks_stay_fenced() && !leaves {
                    self.recovery().bring_back(instance, mark);
                }
            }
            C::RanksReturn(instances) => self.ranks_return(&instances),
            C::RankNotRestored(rank) => {
                self.mover().end_move(rank, MoveEnd::Stays("it could not be restored there"))
            }
            C::MoveFails { rank, why } => self.mover().end_move(rank, MoveEnd::Stays(&why)),
            C::PlannedMoveOver => self.mover().go_on_with_plan(),
            C::RankArrived(rank) => {
                self.mover().arrived(rank);
                self.handing_over().rank_runs(rank);
            }
            C::RankFinished(rank) => {
                self.overdue.forget(rank);
                self.mover().end_move(rank, MoveEnd::Finished);
                self.handing_over().rank_finished(rank);
                self.end_of_ranks().end_if_all_have();
                self.handing_over().rank_runs(rank);
            }
            C::NodeUnwell(node) => {
                let Some(wanted) = self.precautions().wanted(node) else { return };
                let forbidden = self.handover.forbids_moves();
                let taken = self.mover().take_precaution(node, wanted, forbidden);
                if let Some(taken) = taken {
                    self.precautions().taken(node, taken);
                }
            }
            C::CaptureBegun(rank) => self.injecting().in_checkpoint(rank),
            C::ImageCounted { rank, capture } => {
                self.saving.imaged(rank, capture.asked());
                if !self.handing_over().imaged(rank, &capture) {
                    self.mover().imaged(rank, &capture);
                }
            }
            C::ImageFailed { rank, cause, passing, again } => {
                self.saver().not_imaged(rank, passing, again);
                self.mover().not_imaged(rank, &cause, passing, again);
                self.handing_over().not_imaged(rank, &cause, passing, again);
            }
            C::NotArchived { instance, image, cause } => {
                self.saver().not_archived(instance, image, &cause)
            }
            C::StoreUp(store) => {
                self.counting().store_up(store);
                self.handing_over().tell_gateway_of_stores();
            }
            C::StoreLost(store) => {
                self.counting().store_lost(store);
                self.follow();
                // Fewer copies may be all that can be had now.
                self.counting().count_images();
                self.handing_over().store_lost(store);
                self.handing_over().tell_gateway_of_stores();
            }
            C::ArchiveLost => self.saving.no_longer_possible(),
            C::Save => self.saver().save_asked(None),
            // More ranks may come.
            C::AllFinished if self.handover.may_bring_ranks() => {}
            C::AllFinished => self.exchange().finish(),
            C::RouterLost => self.handing_over().router_lost(),
            C::RanksElsewhere => self.parting().are_elsewhere(),
            C::DomainLeaves { to, request } => self.succeeding().leave(to, request),
            C::ShownElsewhere => {
                self.handing_over().stay("another domain shows what ranks print from now on")
            }
            C::GatewayLost => {
                self.exchange().lose_lines();
                self.handing_over().gateway_lost();
            }
            C::Tell { to, says } => self.exchange().tell_to(to, *says),
            C::TellArrival => self.exchange().tell_arrival(),
            C::DomainSaid { domain, says } => self.domain_said(domain, says),
            C::PrimariesChanged => self.hosting().publish_directory(),
            C::CopiesWanted => self.counting().want_copies(),
        }
    }

    /// What another domain says of ranks that go from one to another, of what they print, and of
    /// domains that join.
    fn domain_said(&mut self, by: DomainId, says: DomainSays) {
        use DomainSays as S;
        let mut handing = self.handing_over();
        match says {
            S::Gives { to } => handing.gives(by, to),
            S::MayCome(result) => handing.may_come(by, result),
            S::ImageThere { instance, image, stores } => {
                handing.image_there(by, instance, image, stores)
            }
            S::ImageHere { rank, image, result } => handing.image_here(by, rank, image, result),
            S::Moved { ranks, entries, known } => {
                handing.moved(by, MovedRanks { ranks, entries, known })
            }
            S::Took { from, arrived } => handing.took(by, from, arrived),
            S::Run => handing.run_elsewhere(by),
            S::Gone => {
                if handing.may_go(by) {
                    self.parting().gone(by);
                    self.succeeding().gone(by);
                }
            }
            S::Left => self.parting().left(by),
            S::AskSuccessor { number, wanted } => self.succeeding().asked(by, number, wanted),
            S::CanSucceed { number, result } => self.succeeding().can_succeed(by, number, result),
            S::Successor { is } => self.succeeding().succeeded(by, is),
            S::OutputEnds => self.succeeding().output_ends(by),
            S::Signal { signal } => self.signals.send(&mut self.out, signal),
            S::Output { stream, bytes } => self.printing().output(by, stream, bytes),
            S::Shown { bytes } => self.printing().was_shown(by, bytes),
            S::Line { is_error, text } => self.printing().line(by, is_error, &text),
            S::Joins { id, name, gateway, key } => {
                let domain = Domain { name, ranks: vec![], gateway };
                self.newcomers().joins(by, id, domain, key)
            }
            S::MayJoin { id, result } => self.newcomers().may_join(by, id, result),
            S::Ready => self.newcomers().ready(by),
            S::Joined { id } => self.newcomers().joined(by, id),
            S::StaysOut { id, why } => self.newcomers().stays_out(by, id, &why),
            S::Ended { cause, .. } => self.newcomers().ended(by, &cause),
            // Taken before.
            S::Put(_) | S::Arrived { .. } | S::Finished { .. } => {}
        }
    }

    /// Ranks come back that nothing had killed: each from where it was when the job was saved, or
    /// was to be.
    fn ranks_return(&mut self, instances: &[RankInstance]) {
        self.recovery().assign_returning(instances);
        for instance in instances {
            if self.out.has_ended() {
                return;
            }
            self.recovery().bring_back(*instance, Mark::default());
            self.follow();
        }
    }

    /// Nodes are declared dead. What is lost with any of them is known before ranks are brought
    /// back, or moves begin anew.
    fn nodes_lost(&mut self, lost: Vec<LostNode>) {
        if lost.is_empty() {
            return;
        }
        let lost = self.watch().declare_dead(lost);
        for (LostNode { node, .. }, _) in &lost {
            for kind in RoleKind::ALL {
                self.hosting().lose_roles_on(kind, *node);
                self.follow();
            }
        }
        self.recovery().assign_displaced();
        for (LostNode { node, .. }, _) in &lost {
            if !self.out.has_ended() {
                self.mover().give_plan_up(*node);
                self.mover().lose_node(*node);
                self.handing_over().node_lost(*node);
            }
        }
        for (LostNode { node, unheard, .. }, ranks) in lost {
            for rank in ranks {
                if self.out.has_ended() {
                    return;
                }
                let cause = format!("node {node} is lost");
                let death = Death::Outside;
                let unheard = Some(unheard);
                self.recovery().rank_failed(rank, death, cause, unheard);
                self.follow();
            }
        }
    }
}
