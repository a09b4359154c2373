//! How events change the picture.

use super::moves::MovePicture;
use super::node::NodeState;
use super::rank::RankState;
use super::recovery::RecoveryPicture;
use super::{JobState, Picture};
use eyrie_interface::record::Cause;
use eyrie_interface::{Record, Summary};
use eyrie_wire::{NodeId, Rank};

impl Picture {
    /// An event has happened at this time of the job, in seconds.
    pub fn event(&mut self, time: f64, record: &Record) {
        self.version += 1;
        self.time = self.time.max(time);
        self.event_at = Some(time);
        // While a recovery that ends with this event is still known to go on.
        self.count(record);
        self.of_job(record);
        self.of_node(record);
        self.of_health(time, record);
        self.of_rank(time, record);
        self.of_image(time, record);
        self.of_move(time, record);
        self.event_at = None;
    }

    /// An event that is not known here has happened.
    pub fn unknown_event(&mut self, time: f64) {
        self.version += 1;
        self.time = self.time.max(time);
    }

    fn of_job(&mut self, record: &Record) {
        match record {
            Record::JobStarted { job, ranks, nodes, spares, hosts, .. } => {
                self.head.edit(self.version, |head| {
                    head.job = job.clone();
                    head.state = JobState::Running;
                });
                if let Some(last) = ranks.checked_sub(1) {
                    self.rank(Rank(last), |_| {});
                }
                if let Some(last) = nodes.saturating_add(*spares).checked_sub(1) {
                    self.node(NodeId(last), |_| {});
                }
                self.name_nodes(hosts);
            }
            Record::Library { library } => {
                let words = format!("{} {}", library.name, library.version);
                self.head.edit(self.version, |head| head.library = Some(words));
            }
            Record::CutOff { .. } => self.head.edit(self.version, |head| head.cut_off = true),
            Record::Reconnected { .. } => {
                self.head.edit(self.version, |head| head.cut_off = false);
            }
            Record::Saving => self.head.edit(self.version, |head| head.state = JobState::Saving),
            Record::Saved { dir, .. } => {
                let saved = Some(dir.clone());
                let state = JobState::Ended { code: 0, cause: None, saved };
                self.head.edit(self.version, |head| head.state = state);
            }
            Record::JobEnded { code, cause, .. } => self.end_job(*code, cause.clone()),
            _ => {}
        }
    }

    fn end_job(&mut self, code: i32, cause: Option<Cause>) {
        let time = self.time;
        self.head.edit(self.version, |head| {
            let saved = match &mut head.state {
                JobState::Ended { saved, .. } => saved.take(),
                _ => None,
            };
            head.state = JobState::Ended { code, cause, saved };
        });
        self.recoveries.edit_all(self.version, |of| !of.is_over(), |of| of.interrupt(time));
        self.moves.edit_all(self.version, |of| !of.is_over(), |of| of.end(time, None));
        for rank in 0..self.ranks.len() {
            self.rank(Rank(rank as u32), |rank| {
                rank.moving = false;
                rank.imaging = false;
            });
        }
    }

    /// The names of the hosts that nodes are.
    pub(super) fn name_nodes(&mut self, hosts: &[String]) {
        if self.hosts == hosts {
            return;
        }
        self.hosts = hosts.to_vec();
        for (number, host) in hosts.iter().enumerate() {
            self.node(NodeId(number as u32), |node| node.host = Some(host.clone()));
        }
    }

    fn of_node(&mut self, record: &Record) {
        match record {
            Record::NodeUp { node } => self.node(*node, |node| node.state = NodeState::Up),
            Record::NodeLost { node, .. } => self.node(*node, |node| {
                node.state = NodeState::Lost;
                node.roles.clear();
            }),
            Record::NodeLeft { node } => self.node(*node, |node| node.state = NodeState::Left),
            Record::NodeNotice { node, cause } => {
                self.node(*node, |node| node.notice = Some(cause.clone()));
            }
            Record::NodeDraining { node, .. } => self.node(*node, |node| node.drained = true),
            Record::NodeUndrained { node } => self.node(*node, |node| {
                node.drained = false;
                node.notice = None;
            }),
            Record::RoleStarted { role, node } => self.node(*node, |node| {
                if !node.roles.contains(role) {
                    node.roles.push(role.clone());
                }
            }),
            Record::RoleLost { role, node, .. } => {
                self.node(*node, |node| node.roles.retain(|known| known != role));
            }
            _ => {}
        }
    }

    fn of_rank(&mut self, time: f64, record: &Record) {
        match record {
            Record::RankStarted { instance, node, .. } => self.rank(instance.rank, |rank| {
                rank.node = Some(*node);
                rank.incarnation = instance.incarnation;
                rank.state = RankState::Starting;
            }),
            Record::Connected { instance } => self.rank(instance.rank, |rank| {
                if rank.state == RankState::Starting {
                    rank.state = RankState::Running;
                }
            }),
            Record::RankFailed { instance, node, cause } => {
                self.rank(instance.rank, |rank| rank.failures += 1);
                self.lose(instance.rank, Some(*node), cause, time);
            }
            Record::NodeLost { node, cause, ranks } => {
                ranks.iter().for_each(|rank| self.lose(*rank, Some(*node), cause, time));
            }
            Record::Placed { instance, node, image, .. } => {
                self.rank(instance.rank, |rank| {
                    rank.node = Some(*node);
                    rank.incarnation = instance.incarnation;
                    rank.state = RankState::Restoring;
                    rank.imaging = false;
                });
                let rank = instance.rank;
                self.recovery(rank, |recovery| recovery.place(time, *node, *image));
            }
            Record::Restored { instance, .. } => {
                self.rank(instance.rank, |rank| rank.state = RankState::Replaying);
                self.recovery(instance.rank, |recovery| recovery.restore(time));
            }
            Record::Recovered { instance, node, messages, phases, total, .. } => {
                self.rank(instance.rank, |rank| {
                    rank.node = Some(*node);
                    rank.state = RankState::Running;
                });
                let rank = instance.rank;
                self.recovery(rank, |of| of.recover(time, *messages, *phases, *total));
            }
            Record::RankFinished { rank, code } => self.rank(*rank, |rank| {
                rank.state = RankState::Finished;
                rank.imaging = false;
                rank.code = Some(*code);
            }),
            Record::Unprotected { rank, .. } => self.rank(*rank, |rank| rank.unprotected = true),
            Record::Protected { rank } => self.rank(*rank, |rank| rank.unprotected = false),
            _ => {}
        }
    }

    /// A rank has failed, or its node is lost: its recovery begins, and its move ends.
    fn lose(&mut self, rank: Rank, node: Option<NodeId>, cause: &Cause, time: f64) {
        let known = self.recoveries.has(|of| {
            of.rank == rank && !of.is_over() && of.placed.is_none() && of.restored.is_none()
        });
        self.rank(rank, |rank| rank.lose());
        self.end_move(rank, time);
        // It was said of its node already.
        if known {
            return;
        }
        self.recovery(rank, |recovery| recovery.interrupt(time));
        self.recoveries.begin(self.version, |number| {
            RecoveryPicture::new(number, rank, node, cause.clone(), time)
        });
    }

    /// Lets `edit` change the recovery of the rank that goes on.
    fn recovery(&mut self, rank: Rank, edit: impl FnOnce(&mut RecoveryPicture)) {
        self.recoveries.edit(self.version, |of| of.rank == rank && !of.is_over(), edit);
    }

    fn of_image(&mut self, time: f64, record: &Record) {
        match record {
            Record::CheckpointStarted { rank, .. } => self.rank(*rank, |rank| rank.imaging = true),
            Record::CheckpointFailed { rank, .. } => self.rank(*rank, |rank| rank.imaging = false),
            Record::Checkpoint { rank, image, bytes, pause, .. } => {
                self.rank(*rank, |rank| rank.keep(*image, *bytes, time));
                self.pauses.0 += pause.as_secs_f64();
                self.pauses.1 += 1;
                let mean = self.pauses.0 / self.pauses.1 as f64;
                self.figures.edit(self.version, |figures| figures.image_pause = Some(mean));
            }
            Record::ImagesOverdue { ranks, cause, .. } => {
                for rank in ranks {
                    self.rank(*rank, |rank| rank.overdue = Some(cause.clone()));
                }
            }
            Record::ImagesAgain { ranks } => {
                ranks.iter().for_each(|rank| self.rank(*rank, |rank| rank.overdue = None));
            }
            _ => {}
        }
    }

    fn of_move(&mut self, time: f64, record: &Record) {
        match record {
            Record::MoveRound { rank, node, round, bytes, took, .. } => {
                let took = took.as_secs_f64();
                let goes_on = |of: &MovePicture| of.rank == *rank && !of.is_over();
                // The one before was cancelled, which has no event.
                if *round == 1 && self.moves.has(|of| goes_on(of) && !of.rounds.is_empty()) {
                    self.end_move(*rank, time);
                }
                self.begin_move(*rank, time);
                self.moving(*rank, |of| of.round(*node, *bytes, took));
            }
            Record::MoveSlowed { rank, share } => self.moving(*rank, |of| of.slowed = *share),
            Record::RankMoved { rank, from, node, pause } => {
                let pause = pause.as_secs_f64();
                self.arrive(*rank, |of| {
                    of.from = Some(*from);
                    of.to = Some(*node);
                    of.end(time, Some(pause));
                });
                self.rank(*rank, |rank| {
                    rank.node = Some(*node);
                    rank.moving = false;
                    if rank.state != RankState::Finished {
                        rank.state = RankState::Running;
                    }
                });
            }
            Record::Rearranging { ranks, nodes, .. } => {
                for (rank, node) in ranks.iter().zip(nodes) {
                    self.begin_move(*rank, time);
                    self.moving(*rank, |of| of.to = Some(*node));
                }
            }
            // Those that never moved, as the others have gone back.
            Record::Rearranged { ranks, .. } => {
                ranks.iter().for_each(|rank| self.end_move(*rank, time));
            }
            Record::NodeDraining { ranks, .. } => {
                ranks.iter().for_each(|rank| self.begin_move(*rank, time));
            }
            Record::RankFinished { rank, .. } => self.end_move(*rank, time),
            _ => {}
        }
    }

    /// The rank moves from now on, unless it does already.
    pub(super) fn begin_move(&mut self, rank: Rank, time: f64) {
        if self.moves.has(|of| of.rank == rank && !of.is_over()) {
            return;
        }
        let from = self.place_of(rank);
        self.moves.begin(self.version, |number| MovePicture::new(number, rank, from, time));
        self.rank(rank, |rank| rank.moving = true);
    }

    /// The rank has moved. The job's status may have said before that it moves no more.
    fn arrive(&mut self, rank: Rank, edit: impl Fn(&mut MovePicture)) {
        let is = |of: &MovePicture| of.rank == rank && of.pause.is_none();
        let time = self.time;
        if !self.moves.edit(self.version, is, &edit) {
            self.begin_move(rank, time);
            self.moving(rank, edit);
        }
    }

    /// The rank moves no more, and stays where it is.
    pub(super) fn end_move(&mut self, rank: Rank, time: f64) {
        self.moving(rank, |of| of.end(time, None));
        self.rank(rank, |rank| rank.moving = false);
    }

    /// Lets `edit` change the move of the rank that goes on.
    pub(super) fn moving(&mut self, rank: Rank, edit: impl FnOnce(&mut MovePicture)) {
        self.moves.edit(self.version, |of| of.rank == rank && !of.is_over(), edit);
    }

    /// What a job has been through, for one that does not say it itself.
    fn count(&mut self, record: &Record) {
        // Moves end with the same event, and are no recoveries.
        let recoveries = &self.recoveries;
        let is_failure = |rank| recoveries.has(|of| of.rank == rank && !of.is_over());
        self.summary.edit(self.version, |of| match record {
            Record::JobStarted { ranks, .. } => of.ranks = *ranks,
            Record::Checkpoint { bytes, .. } => {
                of.checkpoints += 1;
                of.checkpoint_bytes += bytes;
            }
            Record::CheckpointFailed { .. } => of.checkpoints_failed += 1,
            Record::RankFailed { .. } => of.rank_failures += 1,
            Record::NodeLost { .. } => of.nodes_lost += 1,
            Record::RoleLost { .. } => of.roles_lost += 1,
            Record::Resumed => of.resumes += 1,
            Record::SpareUsed { .. } => of.spares_used += 1,
            Record::Recovered { instance, total, .. } if is_failure(instance.rank) => {
                of.recoveries += 1;
                of.longest_recovery = of.longest_recovery.max(*total);
            }
            Record::JobEnded { summary, .. } => {
                *of = Summary { ranks: of.ranks, ..summary.clone() }
            }
            _ => {}
        });
    }
}
