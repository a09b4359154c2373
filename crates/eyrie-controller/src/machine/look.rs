//! Whether a node, a rank, a role, an image or a move is late: looks at all of them, when the first
//! of them may be.

use super::components::Machine;
use super::ranks::capture::Capture;
use super::roles::registry;
use super::users::asked::not_begun;
use eyrie_wire::control::RoleKind;
use std::time::Duration;

impl Machine {
    /// Looks at all nodes, ranks and roles, whether one of them is late: when the first of them may
    /// be, and at least as often as nodes are asked for heartbeats.
    pub(super) fn look(&mut self) {
        if self.out.has_ended() {
            return;
        }
        self.watch().watch_nodes();
        self.follow();
        let now = self.out.now();
        let interval = self.nodes.heartbeat_interval();
        if self.contact.is_cut_off() {
            return self.out.set_look_at(now + interval);
        }
        self.hosting().watch_reach();
        self.follow();
        self.recovery().watch_ranks();
        self.follow();
        if self.out.has_started() && !self.out.has_ended() {
            // Before a role is started on a node that is drained by this.
            self.precautions().go_on();
            self.follow();
        }
        self.look_at_roles();
        if self.out.has_started() && !self.out.has_ended() {
            self.look_at_images_and_moves();
        }
        let ranks = (self.ranks.iter())
            .flat_map(|r| [r.until(), r.capture().map(Capture::until)].into_iter().flatten());
        let begin = (!self.out.has_started()).then_some(self.config.agents_timeout);
        let overdue = self.overdue.next(self.ages()).filter(|_| self.out.has_started());
        let heartbeat = self.nodes.next_heartbeat(now, self.config.heartbeat_timeout);
        let due = ranks.chain(begin).chain(heartbeat).chain(self.roles.next()).chain(overdue);
        // What is asked for after this is looked at in time all the same. Nodes that are due one
        // shortly after another are looked at together.
        let due = due.min().unwrap_or(Duration::MAX);
        self.out.set_look_at(due.clamp(now + interval / 16, now + interval));
    }

    /// Stores before routers: the ranks of a router that moves need room for their images.
    fn look_at_roles(&mut self) {
        for kind in RoleKind::ALL.into_iter().rev() {
            self.hosting().lose_late(kind);
            self.follow();
            for look in registry::looks(kind) {
                if self.out.has_ended() {
                    return;
                }
                look(&mut self.hosting());
                self.follow();
            }
        }
    }

    fn look_at_images_and_moves(&mut self) {
        self.counting().watch_captures();
        self.follow();
        if !self.saving.is_going_on() {
            let (overdue, ages) = self.overdue_and_ages();
            let records = overdue.watch(ages);
            for record in records {
                self.out.record(record);
            }
        }
        let why = |rank| (rank, self.ages().why_no_image(rank));
        let late = not_begun(&self.out).into_iter().map(why).collect();
        self.asked().give_up(late);
        self.follow();
        self.mover().watch_live();
        self.mover().watch_stuck_moves();
        self.mover().go_on_with_plan();
        self.follow();
        self.mover().watch_moves();
        self.mover().watch_rearrangement();
        self.balancing().watch_measurements();
        self.follow();
        let (redundancy, config, places) = self.redundancy_and_places();
        let records = redundancy.watch(config, places);
        for record in records {
            self.out.record(record);
        }
    }
}
