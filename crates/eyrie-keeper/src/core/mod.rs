//! What the keeper decides: connections, messages of ranks and commands of the controller in;
//! admissions, closes and events out. It has no socket, no clock and no thread of its own, and the
//! same code runs over memory of one process. It must never admit two processes that write one
//! region, and never release what an image that counts does not have without saying so.

mod history;
mod images;
mod output;
mod ranks;
mod regions;
mod room;
mod saved;
mod spill;
mod stalls;
mod store;

#[cfg(test)]
mod schedules;
#[cfg(test)]
mod stalled_schedules;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use eyrie_ledger::layout::Channel;
use eyrie_ledger::memory::Memory;
use eyrie_ledger::region;
use eyrie_router::space::Bounds;
use eyrie_router::{RouterCommand, RouterEvent, Stats};
use eyrie_wire::keeper::ToKeeper;
use eyrie_wire::{Incarnation, Rank, RankInstance};
use images::{Images, Received};
pub use output::{ConnId, Output};
use ranks::Ranks;
use regions::Regions;
use room::Room;
pub use saved::Head;
use spill::{Spill, Stop, Taken};
use stalls::{Help, Stalls};
use std::io::{self, Read, Write};
use std::time::Duration;
pub use store::Store;

/// The keeper of the ledgers of a job.
pub struct Core<M> {
    regions: Regions<M>,
    ranks: Ranks,
    images: Images,
    room: Room,
    spill: Spill,
    stalls: Stalls,
    /// Whether the disk has no room for messages that could be taken out.
    disk_full: bool,
    /// Messages and their bytes before the start.
    before: (u64, u64),
}

impl<M: Memory> Core<M> {
    /// Ledgers in zeroed memory: a region of `region_bytes` bytes for each rank. Together they may
    /// use `log.memory` bytes, and files `log.disk`. These incarnations may connect.
    pub fn new(
        memories: Vec<M>,
        region_bytes: u64,
        log: Bounds,
        incarnations: &[Incarnation],
    ) -> Core<M> {
        let regions = Regions::new(memories, region_bytes);
        let ranks = Ranks::new(incarnations);
        let images = Images::none(regions.count());
        let spill = Spill::new(regions.count(), log.disk);
        Core::over(regions, ranks, (images, spill), log)
    }

    /// Ledgers that go on with what [`Core::save`] has written, behind its [`Head`]. Spilled
    /// messages go to `store`.
    ///
    /// # Errors
    /// Those of the reader, and of the store; when what is read does not fit the job; when there is
    /// no memory.
    pub fn restored(
        memories: Vec<M>,
        region_bytes: u64,
        log: Bounds,
        incarnations: &[Incarnation],
        from: &mut impl Read,
        store: &mut impl Store,
    ) -> io::Result<Core<M>> {
        let regions = Regions::new(memories, region_bytes);
        let mut ranks = Ranks::new(incarnations);
        let mut images = Images::none(regions.count());
        let mut spill = Spill::new(regions.count(), log.disk);
        saved::restore(&regions, (&mut ranks, &mut images), from)?;
        saved::restore_spilled(&regions, &mut spill, from, store)?;
        Ok(Core::over(regions, ranks, (images, spill), log))
    }

    fn over(
        regions: Regions<M>,
        ranks: Ranks,
        (images, spill): (Images, Spill),
        log: Bounds,
    ) -> Core<M> {
        let room = Room::new(&regions, log.memory);
        let before = regions.sent();
        let stalls = Stalls::new(regions.count());
        Core { regions, ranks, images, room, spill, stalls, disk_full: false, before }
    }

    /// Writes all from which another keeper can go on. No rank writes meanwhile.
    ///
    /// # Errors
    /// Those of the writer, and of the store of spilled messages.
    pub fn save(&self, store: &impl Store, to: &mut impl Write) -> io::Result<()> {
        saved::save(&self.regions, &self.ranks, &self.images, to)?;
        saved::save_spilled(&self.regions, &self.spill, store, to)
    }

    /// Whether this incarnation may connect.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(&self, instance: RankInstance) -> Result<(), String> {
        self.ranks.admit(instance)
    }

    /// A rank has connected. `process`: the number of its process.
    pub fn connected(
        &mut self,
        id: ConnId,
        instance: RankInstance,
        process: u32,
        out: &mut impl Output,
    ) {
        match self.ranks.connected(id, instance, process, out) {
            Ok(()) => self.give_ledgers(instance.rank, out),
            Err(reason) => {
                out.event(RouterEvent::Refused { instance: Some(instance), reason });
                out.close(id);
            }
        }
    }

    /// Sends the ledgers to a rank that may have them and is connected.
    fn give_ledgers(&mut self, rank: Rank, out: &mut impl Output) {
        let Some(id) = self.ranks.next_admitted(rank) else { return };
        let instance = self.ranks.instance(rank);
        let (memory, layout) = self.regions.of(rank);
        if !memory.populate(0, layout.extents()) {
            let reason = format!("there is no memory for the ledger of rank {rank}");
            return out.event(RouterEvent::Fatal { reason });
        }
        region::prepare(memory, layout, instance.incarnation.0, self.room.granted(rank));
        out.admit(id, self.spill.range(rank));
        out.event(RouterEvent::Connected(instance));
    }

    /// A rank has sent a message on its connection. Those of connections that were replaced, or
    /// have no ledgers yet, mean nothing.
    pub fn message(&mut self, id: ConnId, rank: Rank, message: ToKeeper, out: &mut impl Output) {
        if !self.ranks.is_admitted(rank, id) {
            return;
        }
        match message {
            ToKeeper::Replayed { messages } => {
                let instance = self.ranks.instance(rank);
                self.ranks.replayed(rank);
                out.event(RouterEvent::Replayed { instance, messages });
            }
            ToKeeper::RoomWanted => self.room.keep(&self.regions, &self.ranks, out),
            ToKeeper::ContentDiffers { reason } => {
                if self.ranks.content_differs(rank) {
                    out.event(RouterEvent::ContentDiffers { rank, reason });
                }
            }
            ToKeeper::Diverged { reason } => out.event(RouterEvent::Divergence { rank, reason }),
        }
    }

    /// A connection of a rank has ended.
    pub fn disconnected(&mut self, id: ConnId, rank: Rank, out: &mut impl Output) {
        self.ranks.disconnected(rank, id, out);
    }

    /// The process that [`Output::end`] has killed has ended, or has not ended in time, with the
    /// reason.
    pub fn ended(&mut self, rank: Rank, result: Result<(), String>, out: &mut impl Output) {
        let Some(instance) = self.ranks.ended(rank) else { return };
        match result {
            Ok(()) => self.report_fenced(instance, out),
            Err(reason) => out.event(RouterEvent::Fatal { reason }),
        }
    }

    /// Carries out a command of the controller. [`RouterCommand::Save`] is carried out above.
    pub fn command(&mut self, command: RouterCommand, out: &mut impl Output) {
        match command {
            RouterCommand::Fence(instance) if self.regions.has(instance.rank) => {
                if self.ranks.fence(instance, out) {
                    self.report_fenced(instance, out);
                }
            }
            RouterCommand::Recover { instance, .. } => {
                if self.ranks.recover(instance) {
                    self.give_ledgers(instance.rank, out);
                }
            }
            RouterCommand::Truncate { rank, clock, rsn, observed } if self.regions.has(rank) => {
                self.truncate(rank, (clock, rsn, observed), out);
            }
            RouterCommand::BreakConnections(rank) => self.ranks.break_connection(rank, out),
            RouterCommand::Stats => out.event(RouterEvent::Stats(self.stats())),
            RouterCommand::Traffic => out.event(RouterEvent::Traffic(self.regions.traffic())),
            RouterCommand::Fence(_) | RouterCommand::Truncate { .. } | RouterCommand::Save(_) => {}
            RouterCommand::Serve(_)
            | RouterCommand::Leave(_)
            | RouterCommand::ForgetSenders
            | RouterCommand::Directory(_)
            | RouterCommand::Stores { .. }
            | RouterCommand::Domains(_)
            | RouterCommand::Fetch(_)
            | RouterCommand::ToDomain { .. } => {}
        }
    }

    fn report_fenced(&self, instance: RankInstance, out: &mut impl Output) {
        let (memory, layout) = self.regions.of(instance.rank);
        let last = history::last_determinant(memory, layout);
        let history = last.and_then(|last| Ok((last, history::beginning(memory, layout)?)));
        out.event(match history {
            Ok((last, observed)) => {
                RouterEvent::Fenced { instance, determinants: Vec::from_iter(last), observed }
            }
            Err(e) => RouterEvent::Fatal { reason: e.to_string() },
        });
    }

    /// An image of the rank counts, up to this clock, rsn and byte of its observations.
    fn truncate(&mut self, rank: Rank, image: (u64, u64, u64), out: &mut impl Output) {
        if let Err(reason) = self.images.truncate(&self.regions, rank, image) {
            return out.event(RouterEvent::Fatal { reason });
        }
        let Core { regions, ranks, images, room, spill, .. } = self;
        let imaged = images.of(rank);
        spill.image_counts(rank, imaged.clock, &imaged.counts);
        // One that re-executes reads its file.
        if ranks.is_past_replay(rank) {
            spill.free(rank, out);
        }
        room.keep(regions, ranks, out);
        room.image_counted(regions, out);
    }

    /// Takes messages out of full ledgers to disk, where it is time for that; a step of it. True:
    /// there is more to do.
    pub fn relieve(&mut self, out: &mut impl Output) -> bool {
        let Core { regions, ranks, images, room, spill, disk_full, .. } = self;
        let memory = room.bound() >> 20;
        let Some(short) = room.ranks_to_relieve() else { return false };
        let kept_for = |to: Rank| -> u64 {
            short.iter().map(|source| regions.needed_by(*source, Channel::Rank(to.0))).sum()
        };
        let mut receivers: Vec<_> =
            regions.ranks().filter(|rank| ranks.is_past_replay(*rank)).collect();
        receivers
            .sort_by_cached_key(|rank| (!spill.of(*rank).lost, std::cmp::Reverse(kept_for(*rank))));
        *disk_full = false;
        for receiver in receivers {
            let taken = match spill.of(receiver) {
                Taken { lost: false, .. } => spill.step(regions, receiver, out),
                // It cannot be recovered anyway.
                Taken { clock, counts, .. } => {
                    match images.cut(regions, receiver, Some((*clock, counts))) {
                        Ok(None) => Ok(0),
                        Ok(Some(Received { clock, counts, messages })) => {
                            spill.lose(receiver, clock, counts, out);
                            Ok(messages)
                        }
                        Err(reason) => Err(Stop::Damaged(reason)),
                    }
                }
            };
            let reason = match taken {
                Ok(0) => continue,
                Ok(_) => {
                    room.relieved();
                    room.keep(regions, ranks, out);
                    return room.ranks_to_relieve().is_some();
                }
                Err(Stop::Damaged(reason)) => {
                    room.rest();
                    out.event(RouterEvent::Fatal { reason });
                    return false;
                }
                Err(Stop::Full) => format!(
                    "the ledgers have used the {memory} MiB of --log-memory and the {} MiB of \
                     --log-disk; images make room (give more with --log-disk)",
                    spill.bound() >> 20
                ),
                Err(Stop::Failed(e)) => format!(
                    "the ledgers have used the {memory} MiB of --log-memory, and none of it can go \
                     to disk ({e}); images make room"
                ),
            };
            *disk_full = true;
            if room.hold() {
                out.event(RouterEvent::HeldBack { reason });
            }
            return false;
        }
        room.rest();
        false
    }

    /// The time that was given last.
    #[cfg(test)]
    pub fn now(&self) -> Duration {
        self.room.now()
    }

    /// Does what is due at `now` (since the keeper's start).
    pub fn tick(&mut self, now: Duration, out: &mut impl Output) {
        self.room.set_time(now);
        self.room.look_at_memory(&self.regions, out);
        self.room.keep(&self.regions, &self.ranks, out);
        self.relieve(out);
        self.release_what_is_lost();
        self.end_stalls(now, out);
        if self.room.has_waited_long() {
            if self.disk_full {
                self.cut(out);
            }
            self.room.wait_again();
            self.room.keep(&self.regions, &self.ranks, out);
        }
        self.room.report_growth(&self.regions, out);
        self.room.report_beyond(out);
    }

    /// Releases what ranks observe that cannot be recovered before their next image: none reads it.
    fn release_what_is_lost(&mut self) {
        let Core { regions, room, spill, .. } = self;
        let is_lost = |rank: &Rank| spill.of(*rank).lost;
        let is_filled = |rank: &Rank| room.is_filled_by_observed(regions, *rank);
        for rank in regions.ranks().filter(is_lost).filter(is_filled) {
            regions.release_observed(rank);
        }
    }

    /// Grants room to ranks that wait for each other, and says which rank another one waits for.
    fn end_stalls(&mut self, now: Duration, out: &mut impl Output) {
        let Core { regions, ranks, images, room, spill, stalls, .. } = self;
        stalls.look(regions, ranks, now);
        let all = match stalls.help((regions, ranks, images), now) {
            Ok(all) => all,
            Err(reason) => return out.event(RouterEvent::Fatal { reason }),
        };
        for (rank, help) in all {
            match help {
                Help::Release => {}
                Help::None if room.lacks_memory(regions, rank) => {
                    let reason = format!(
                        "the host, or the control group of this job (memory.max), has no memory \
                         left for the log of messages, and rank {rank} waits for some: give the \
                         job more, or start fewer ranks on this host"
                    );
                    if stalls.has_given_up(rank, now) {
                        return out.event(RouterEvent::Fatal { reason });
                    }
                    if stalls.report(rank, now) {
                        out.event(RouterEvent::HeldBack { reason });
                    }
                }
                // It is in the middle of a record, perhaps, and so no image of it can begin.
                Help::None
                    if ranks.is_past_replay(rank) && room.is_filled_by_observed(regions, rank) =>
                {
                    if stalls.has_waited_for_an_image(rank, now) {
                        lose_observed(regions, images, spill, rank, out);
                    }
                }
                Help::None if room.grant_beyond(regions, rank) => {}
                Help::None => {
                    let reason = format!(
                        "rank {rank}'s ledger is full, and can be no larger: give the log more \
                         with --log-memory, or take images more often"
                    );
                    return out.event(RouterEvent::Fatal { reason });
                }
                Help::Receiver(_) if room.grant_pieces(regions, rank) => {}
                Help::Receiver(other) if stalls.report(rank, now) => {
                    let reason = format!(
                        "no space is left for the log of messages: rank {rank} waits until rank \
                         {other} receives; give it more with --log-memory"
                    );
                    out.event(RouterEvent::HeldBack { reason });
                }
                Help::Receiver(_) => {}
            }
        }
    }

    /// How long it may take until the next tick.
    pub fn pause(&self) -> Duration {
        self.room.pause()
    }

    /// Releases what one receiver has, without an image: that for which most is kept, of those that
    /// have something. It cannot be recovered until its next image.
    fn cut(&mut self, out: &mut impl Output) {
        let Core { regions, ranks, images, spill, .. } = self;
        let mut receivers: Vec<_> =
            regions.ranks().filter(|rank| ranks.is_past_replay(*rank)).collect();
        receivers.sort_by_key(|rank| std::cmp::Reverse(regions.needed_for(*rank)));
        for rank in receivers {
            match images.cut(regions, rank, None) {
                Ok(None) => {}
                Ok(Some(Received { clock, counts, .. })) => {
                    spill.lose(rank, clock, counts, out);
                    let reason = format!(
                        "no space is left for the log of messages: what it has received up to \
                         clock {clock} is no longer logged"
                    );
                    return out.event(RouterEvent::Unprotected { rank, reason });
                }
                Err(reason) => return out.event(RouterEvent::Fatal { reason }),
            }
        }
    }

    /// The figures of the ledgers and files.
    pub fn stats(&self) -> Stats {
        let regions = &self.regions;
        let (messages, bytes) = regions.sent();
        Stats {
            // What is released is used again, and so is not part of the log.
            memory_bytes: regions.ranks().map(|rank| regions.needed(rank)).sum(),
            disk_bytes: self.spill.bytes(),
            messages: messages.saturating_sub(self.before.0),
            bytes: bytes.saturating_sub(self.before.1),
            log_bytes: regions
                .ranks()
                .map(|rank| regions.needed_for(rank) + self.spill.bytes_of(rank))
                .collect(),
        }
    }
}

/// Releases what a rank has observed, although no image has it. The rank cannot be recovered until
/// its next image.
fn lose_observed<M: Memory>(
    regions: &Regions<M>,
    images: &Images,
    spill: &mut Spill,
    rank: Rank,
    out: &mut impl Output,
) {
    let imaged = images.of(rank);
    let received = Received::so_far(regions, rank, (imaged.clock, &imaged.counts));
    let Received { clock, counts, .. } = match received {
        Ok(received) => received,
        Err(reason) => return out.event(RouterEvent::Fatal { reason }),
    };
    spill.lose(rank, clock, counts, out);
    let mib = regions.release_observed(rank) >> 20;
    let reason = format!(
        "{mib} MiB of what it has read from files are not recorded any more: until the next image it \
         reads more from files that have changed than the memory for logs holds"
    );
    out.event(RouterEvent::Unprotected { rank, reason });
}
