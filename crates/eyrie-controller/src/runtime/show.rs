//! What users see of a job: lines, events, the progress line, its status.

use super::beside::{LineChange, LineIs};
use super::job::Job;
use super::users;
use crate::machine::redundancy::Missing;
use crate::machine::{Event, Leaving, LineState, Move, OtherDomain, Progress, RankStateName};
use crate::record::{LogLevel, Record};
use eyrie_interface::answer::refusal;
use eyrie_interface::status::{
    CopiesMissing, DomainMoveStatus, DomainStatus, ImageStatus, LeavingStatus, LineStatus,
    LineTraffic, MoveStatus, OverdueStatus, RankStatus, RoleStatus, Status,
};
use eyrie_interface::traffic::{Pair, Traffic};
use eyrie_router::LineFigures;
use eyrie_store::role::Stored;
use eyrie_wire::domains::Domain;
use eyrie_wire::traffic::PairSent;
use eyrie_wire::{DomainId, NodeId, Rank, RankInstance, StoreId};
use std::collections::BTreeMap;
use std::time::Duration;

impl Job {
    pub fn record(&mut self, record: Record) {
        self.tell_of_line(&record);
        let now = self.clock.time();
        let progress = self.journal.progress();
        let held = self.event_file.add(now, &record, progress.position);
        self.events_failed(held.err());
        if self.is_replaying || !self.journal.is_kept() {
            self.let_events_out(u64::MAX);
        }
        match &record {
            Record::CheckpointFailed { rank, cause, passing: false, .. }
                if !self.refusals.add(*rank, cause) =>
            {
                return;
            }
            Record::JobEnded { .. } => {
                let refused = self.refusals.in_words().map(|text| (LogLevel::Normal, text));
                if let Some(line) = refused {
                    self.show(line);
                }
            }
            _ => {}
        }
        if let Some(line) = record.line(self.machine.hosts()) {
            self.show(line);
        }
    }

    /// Tells of a line to another domain that has come up or is down.
    fn tell_of_line(&self, record: &Record) {
        let of = |domain: &String, line| LineChange { domain: domain.clone(), line };
        let change = match record {
            Record::LineUp { domain } => of(domain, LineIs::Up),
            Record::LineDown { domain } => of(domain, LineIs::Down),
            Record::DomainGone { domain } => of(domain, LineIs::Over),
            Record::DomainStaysOut { domain, .. } => of(domain, LineIs::Never),
            _ => return,
        };
        if let Some(lines) = &self.lines {
            // They may not be looked at any more.
            let _ = lines.send(change);
        }
    }

    /// Writes events that wait for no more of the journal.
    pub fn let_events_out(&mut self, durable: u64) {
        let written = self.event_file.let_out(durable);
        self.events_failed(written.err());
    }

    fn events_failed(&self, error: Option<std::io::Error>) {
        if let Some(e) = error {
            self.outlet
                .printer()
                .line(LogLevel::Error, &format!("no more events are written: {e}"));
        }
    }

    /// Shows a line that has come of an event, or has the domain show it that shows the job.
    fn show(&mut self, (level, text): (LogLevel, String)) {
        if !self.machine.is_shown_elsewhere() {
            self.show_here(level, &text);
        } else if level >= self.beginning.options.show {
            let is_error = level == LogLevel::Error;
            self.events.push_back(Event::Line { is_error, text });
        }
    }

    /// Shows a line, unless the reader of our output has left.
    pub fn show_here(&self, level: LogLevel, line: &str) {
        // What an earlier controller has heard it has said, too.
        if level >= self.beginning.options.show && self.outlet.is_read() && !self.is_replaying {
            self.outlet.printer().line(level, line);
        }
    }

    /// Answers users who asked for the status, once routers have told their figures.
    pub fn answer_status(&mut self) {
        let waiting = self.figures.ready_for_status(&self.roles);
        if waiting.is_empty() {
            return;
        }
        let text = users::written(&self.status_now());
        // They may have left.
        for user in waiting {
            let _ = user.send(text.clone());
        }
    }

    /// How a command reaches the site of a domain, as users get it.
    pub fn way_to(&self, domain: &str) -> String {
        let own = self.beginning.options.domains.as_ref();
        match own.zip(self.machine.domains()) {
            None => refusal(&format!("job {} has no domains", self.beginning.name)),
            Some((own, domains)) => {
                let all: Vec<&str> = domains.present().map(|(_, of)| of.name.as_str()).collect();
                match own.ways.to(domain, &domains.own().name, &all) {
                    Ok(way) => users::written(&way),
                    Err(why) => refusal(&why),
                }
            }
        }
    }

    /// Answers users who asked what ranks have sent each other, once routers have told it.
    pub fn answer_traffic(&mut self) {
        let waiting = self.figures.ready_for_traffic(&self.roles);
        if waiting.is_empty() {
            return;
        }
        let sent = |pair: &PairSent| {
            let PairSent { from, to, sent } = *pair;
            Pair { from, to, sent }
        };
        let traffic = Traffic {
            job: self.beginning.name.clone(),
            ranks: self.beginning.options.ranks,
            over: self.clock.elapsed(),
            pairs: self.figures.sent().pairs().iter().map(sent).collect(),
        };
        let text = users::written(&traffic);
        // They may have left.
        for user in waiting {
            let _ = user.send(text.clone());
        }
    }

    /// Answers users who asked what nodes have sent each other, once routers have told it.
    pub fn answer_node_traffic(&mut self) {
        let waiting = self.figures.ready_for_node_traffic(&self.roles);
        if waiting.is_empty() {
            return;
        }
        let mut nodes = vec![None; self.beginning.options.ranks as usize];
        for (instance, node, state) in self.machine.rank_states() {
            if let Some(of) = nodes.get_mut(instance.rank.index()) {
                *of = (state != RankStateName::Elsewhere).then_some(node);
            }
        }
        let at = |rank: Rank| nodes.get(rank.index()).copied().flatten();
        let text = users::written(&self.figures.sent_by_node(at).answer());
        // They may have left.
        for user in waiting {
            let _ = user.send(text.clone());
        }
    }

    fn status_now(&self) -> Status {
        let log = self.figures.stats();
        let image_status = |(image, stores): (Stored, Vec<StoreId>)| ImageStatus {
            number: image.image,
            copies: stores.len(),
            stores,
            bytes: image.bytes,
            file_bytes: image.file_bytes,
        };
        let overdue_status = |(age, cause): (Duration, String)| {
            let seconds = (age.as_secs_f64() * 10.0).round() / 10.0;
            OverdueStatus { seconds, cause }
        };
        let mut images = self.machine.newest_images().zip(self.machine.overdue());
        let rank_status = |(instance, node, state): (RankInstance, NodeId, RankStateName)| {
            let state = format!("{state:?}").to_lowercase();
            let (image, overdue) = images.next().unwrap_or_default();
            let image = image.map(image_status);
            let overdue = overdue.map(overdue_status);
            RankStatus { instance, node, state, image, overdue }
        };
        let role_status =
            |(role, node)| RoleStatus { role: self.machine.role_in_words(role), node };
        let move_status = |(rank, moving): (Rank, &Move)| {
            let of_live = moving.live().map(|l| (l.rounds(), l.bytes(), l.took().as_secs_f64()));
            let (rounds, bytes, took) = of_live.unwrap_or_default();
            MoveStatus { rank, to: moving.goes_to(), rounds, bytes, took, slowed: moving.slowed() }
        };
        let missing = self.machine.missing_copies().into_iter();
        let copies_missing = |Missing { what, cause, .. }: Missing| CopiesMissing { what, cause };
        let domains = self.beginning.options.domains.as_ref();
        let now = self.clock.time();
        let gateway = self.machine.gateway();
        let domain_status = |(id, domain, known): (DomainId, &Domain, &OtherDomain)| {
            let LineState { up, since } = known.line();
            let seconds = |since: Duration| now.saturating_sub(since).as_secs_f64();
            DomainStatus {
                name: domain.name.clone(),
                ranks: domain.ranks().count() as u32,
                gateway: domain.gateway.clone(),
                line: since.map(|since| LineStatus { up, seconds: seconds(since) }),
                traffic: self.figures.line(id).map(traffic),
                waiting_bytes: gateway
                    .map_or(0, |gateway| self.figures.waiting_bytes(gateway, domain.ranks())),
                letters: known.waiting(),
                finished: known.finished(),
                gone: known.is_gone(),
                joins: !known.is_member(),
            }
        };
        let (interval, cost) = self.machine.checkpoint_rhythm();
        let argv = self.beginning.program.argv.iter().map(|a| a.to_string_lossy());
        Status {
            job: self.beginning.name.clone(),
            program: argv.collect::<Vec<_>>().join(" "),
            nodes_up: self.machine.nodes_up().collect(),
            drained: self.machine.drained().collect(),
            hosts: self.machine.hosts().to_vec(),
            domain: domains.map(|of| of.domains.own().name.clone()),
            domains: self.machine.other_domains().map(domain_status).collect(),
            domain_moves: self.machine.domain_moves().iter().map(|of| self.move_of(of)).collect(),
            output: self.taken_output(),
            ranks: self.machine.rank_states().map(rank_status).collect(),
            moves: self.machine.moves().map(move_status).collect(),
            roles: self.machine.roles().map(role_status).collect(),
            journal: self.journal.whole_copies().collect(),
            cut_off: self.machine.cut_off_for().map(|time| time.as_secs_f64()),
            unprotected: self.machine.unprotected_ranks().collect(),
            copies_missing: missing.map(copies_missing).collect(),
            logs: self.figures.logs(&self.roles),
            log_memory_bytes: log.memory_bytes,
            log_disk_bytes: log.disk_bytes,
            messages: log.messages,
            store_bytes: self.figures.store_bytes(),
            checkpoint_interval: interval.map(|time| time.as_secs_f64()),
            checkpoint_cost: cost.map(|time| time.as_secs_f64()),
            summary: self.machine.summary(),
        }
    }

    /// Ranks on their way between domains, as users see it.
    fn move_of(&self, progress: &Progress) -> DomainMoveStatus {
        let domains = self.machine.domains();
        let name = |id: DomainId| {
            let domain = domains.and_then(|domains| domains.all.get(id.index()));
            domain.map_or(id.to_string(), |domain| domain.name.clone())
        };
        let Progress { from, to, leaving } = progress;
        let bytes = |rank: &Rank| self.machine.newest_image(*rank).map(|image| image.bytes);
        let leaving = leaving.as_ref().map(|Leaving { phase, round, left }| LeavingStatus {
            phase: *phase,
            round: *round,
            left: left.len() as u32,
            left_bytes: left.iter().filter_map(bytes).sum(),
        });
        DomainMoveStatus { from: name(*from), to: name(*to), leaving }
    }

    /// While a start takes long: for whom it waits.
    pub fn say_waiting(&mut self) {
        let now = self.clock.read();
        if self.machine.has_started() || !self.outlet.is_waiting_due(now) {
            return;
        }
        let missing = self.machine.missing();
        let all = self.machine.nodes_up().count();
        self.show_here(LogLevel::Normal, &waiting_for(now, &missing, all));
    }

    pub fn draw_progress(&mut self) {
        if !self.outlet.is_progress_due() {
            return;
        }
        let mut by_node: BTreeMap<NodeId, u32> = BTreeMap::new();
        for (_, node, state) in self.machine.rank_states() {
            if state != RankStateName::Finished {
                *by_node.entry(node).or_default() += 1;
            }
        }
        let by_node: Vec<String> = by_node.iter().map(|(n, c)| format!("{n}:{c}")).collect();
        self.figures.ask(&self.roles);
        let log = self.figures.stats();
        let s = self.machine.summary();
        self.outlet.printer().progress(format!(
            "[{} | ranks by node {} | {} checkpoints | log {} | {} recoveries]",
            eyrie_units::time(Duration::from_secs(self.clock.elapsed().as_secs())),
            by_node.join(" "),
            s.checkpoints,
            eyrie_units::bytes(log.memory_bytes + log.disk_bytes),
            s.recoveries
        ));
    }
}

/// The figures of a line, as users see them.
fn traffic(line: LineFigures) -> LineTraffic {
    let LineFigures { round_trip, received, last_second, most_in_a_second, .. } = line;
    LineTraffic {
        round_trip_s: round_trip.map(|time| time.as_secs_f64()),
        received_bytes: received,
        last_second_bytes: last_second,
        most_in_a_second_bytes: most_in_a_second,
    }
}

/// For whom the start of a job with so many nodes waits: for agents of nodes, or for routers and
/// stores when these have come.
fn waiting_for(waited: Duration, missing: &[String], all: usize) -> String {
    const SHOWN: usize = 4;
    let waited = eyrie_units::time(Duration::from_secs(waited.as_secs()));
    if missing.is_empty() {
        return format!("the start waits for routers and stores, after {waited}");
    }
    let more = if missing.len() > SHOWN { ", ..." } else { "" };
    let names = missing.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let have = if missing.len() > 1 { "have" } else { "has" };
    format!("after {waited} {} of {all} nodes {have} not come: {names}{more}", missing.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_waits_says_for_whom() {
        let of = |missing: &[&str]| {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            waiting_for(Duration::from_millis(1234), &missing, 6)
        };
        assert_eq!(of(&["node 0 (a)"]), "after 1 s 1 of 6 nodes has not come: node 0 (a)");
        assert_eq!(
            of(&["1", "2", "3", "4", "5"]),
            "after 1 s 5 of 6 nodes have not come: 1, 2, 3, 4, ..."
        );
        assert_eq!(of(&[]), "the start waits for routers and stores, after 1 s");
    }
}
