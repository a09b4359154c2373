//! The events of a job as users see them: one JSON object each in the event stream (docs/events.md
//! is its schema), and one line for people. Nothing here decides anything.

pub use crate::move_phase::MovePhase;
use crate::seconds;
use crate::status::{Kept, Summary};
use eyrie_placement::Choice;
use eyrie_units::{self as units, counted, time};
use eyrie_wire::control::Library;
use eyrie_wire::health::HealthState;
use eyrie_wire::{ImageId, Incarnation, NodeId, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a death, a loss or a stop came about, in words.
pub type Cause = String;

/// Seconds that each phase of one recovery took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Phases {
    /// From the last sign of incarnation to knowing of the death: known for lost nodes only, else
    /// 0.
    #[serde(with = "seconds")]
    pub detected: Duration,
    /// Fencing older incarnations, gathering determinants, choosing a node.
    #[serde(with = "seconds")]
    pub placed: Duration,
    /// The image on its way from the store; 0 when started anew.
    #[serde(with = "seconds")]
    pub fetched: Duration,
    /// Mapping it, or starting the program anew, until the rank is connected to its router.
    #[serde(with = "seconds")]
    pub restored: Duration,
    /// Until the rank has caught up with its last determinant.
    #[serde(with = "seconds")]
    pub replayed: Duration,
}

impl Phases {
    /// All of them in their order, each with its name.
    pub fn named(&self) -> [(&'static str, Duration); 5] {
        [
            ("detected", self.detected),
            ("placed", self.placed),
            ("fetched", self.fetched),
            ("restored", self.restored),
            ("replayed", self.replayed),
        ]
    }

    pub fn total(&self) -> Duration {
        self.named().iter().map(|(_, took)| *took).sum()
    }
}

/// One event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Record {
    JobStarted {
        job: String,
        ranks: u32,
        nodes: u32,
        spares: u32,
        /// Names of the hosts that the nodes are, in order; empty on one machine.
        hosts: Vec<String>,
        routers: u32,
    },
    NodeUp {
        node: NodeId,
    },
    RankStarted {
        #[serde(flatten)]
        instance: RankInstance,
        node: NodeId,
        image: Option<ImageId>,
    },
    RankFailed {
        #[serde(flatten)]
        instance: RankInstance,
        node: NodeId,
        cause: Cause,
    },
    RankFinished {
        rank: Rank,
        code: i32,
    },
    Library {
        #[serde(flatten)]
        library: Library,
    },
    NodeLost {
        node: NodeId,
        cause: Cause,
        ranks: Vec<Rank>,
    },
    /// A role on a node listens (`router 0`).
    RoleStarted {
        role: String,
        node: NodeId,
    },
    /// A role on a node is lost; another takes its place. `ranks`: those that are imaged at once,
    /// because their log was lost with it.
    RoleLost {
        role: String,
        node: NodeId,
        cause: Cause,
        ranks: Vec<Rank>,
    },
    /// No node on another host answers: they are lost, or this host is cut off from them. The
    /// controller stands aside until it reaches half of the nodes, at most `alone_for`. `journal`:
    /// where another one could go on.
    CutOff {
        job: String,
        #[serde(with = "seconds")]
        silent: Duration,
        #[serde(with = "seconds")]
        alone_for: Duration,
        journal: Vec<String>,
    },
    /// The controller, which had stood aside, goes on; these nodes it does not reach yet.
    Reconnected {
        #[serde(with = "seconds")]
        after: Duration,
        missing: Vec<NodeId>,
    },
    /// What was promised to be kept twice is kept once: no host can have it, or it takes long.
    CopiesMissing {
        what: Kept,
        cause: Cause,
    },
    /// It is kept twice again.
    CopiesRestored {
        what: Kept,
    },
    /// A node that was declared dead wants to come back: it was refused.
    NodeRefused {
        node: NodeId,
    },
    SpareUsed {
        spare: NodeId,
        node: NodeId,
    },
    /// What a rank that is to move has in memory is in place on another node, as it was in this
    /// image; `bytes` had to come for that. `took`: since the round began.
    MoveRound {
        rank: Rank,
        node: NodeId,
        image: ImageId,
        round: u32,
        bytes: u64,
        #[serde(with = "seconds")]
        took: Duration,
    },
    /// A rank that is to move writes faster than its memory goes over: it is made to stand still
    /// for this share of time, in percent, until it has moved.
    MoveSlowed {
        rank: Rank,
        share: u8,
    },
    /// The memory of a rank cannot be put in place there: the rank moves all the same, and stands
    /// still for longer.
    MoveNotPrepared {
        rank: Rank,
        node: NodeId,
        cause: Cause,
    },
    /// A rank is on another node now, as it was asked for. `pause`: from when it stood still on the
    /// old one until it has caught up on the new one.
    RankMoved {
        rank: Rank,
        from: NodeId,
        node: NodeId,
        #[serde(with = "seconds")]
        pause: Duration,
    },
    /// These ranks move to these nodes, one by one of both lists, because a user has asked for all
    /// of that at once; `drains`: nodes that become free by it.
    Rearranging {
        ranks: Vec<Rank>,
        nodes: Vec<NodeId>,
        drains: Vec<NodeId>,
    },
    /// What ranks send each other was measured for the first time, on a known network: from now on
    /// they are placed by it.
    TrafficMeasured {
        pairs: u64,
        bytes: u64,
        #[serde(with = "seconds")]
        over: Duration,
    },
    /// Ranks have come back from lost nodes. So many others should move with them: what the job
    /// gains by that in the time that is left, and may lose by the moves. `steps`: what is done.
    MovesWeighed {
        moves: u32,
        #[serde(with = "seconds")]
        gain: Duration,
        #[serde(with = "seconds")]
        cost: Duration,
        #[serde(with = "seconds")]
        left: Duration,
        pays: bool,
        steps: Vec<String>,
    },
    /// Moves that were carried out as one are over. `cause`: why those that had moved have gone
    /// back, as far as they could.
    Rearranged {
        ranks: Vec<Rank>,
        cause: Option<Cause>,
    },
    /// The node is about to be taken away, by what its agent was told.
    NodeNotice {
        node: NodeId,
        cause: Cause,
    },
    /// A health rule has found something on a node, or finds it no longer. `node_state`: that of
    /// the node from now on.
    NodeHealth {
        node: NodeId,
        rule: String,
        /// The device, interface, file system ... that it is about.
        what: String,
        state: HealthState,
        node_state: HealthState,
        said: Cause,
    },
    /// A node is not well: its ranks are imaged at once. `cause`: why they do not leave it, where
    /// they should.
    Precaution {
        node: NodeId,
        ranks: Vec<Rank>,
        cause: Option<Cause>,
    },
    /// A rule has fired more than `times` times on a node within this time: nothing that it finds
    /// there counts for so long.
    RuleMuted {
        node: NodeId,
        rule: String,
        times: u32,
        #[serde(with = "seconds")]
        within: Duration,
        #[serde(with = "seconds")]
        muted_for: Duration,
    },
    /// The agent of a node that was to be taken away has ended; nothing was lost with it.
    NodeLeft {
        node: NodeId,
    },
    /// These ranks, and roles, leave a node, and none comes there.
    NodeDraining {
        node: NodeId,
        ranks: Vec<Rank>,
    },
    /// Nothing is on the node any more.
    NodeDrained {
        node: NodeId,
    },
    NodeUndrained {
        node: NodeId,
    },
    /// No spare is left: a remaining node takes a rank more.
    NodeShared {
        node: NodeId,
        rank: Rank,
        ranks: u32,
    },
    Placed {
        #[serde(flatten)]
        instance: RankInstance,
        node: NodeId,
        choice: Choice,
        image: Option<ImageId>,
    },
    Restored {
        #[serde(flatten)]
        instance: RankInstance,
        #[serde(with = "seconds")]
        fetched: Duration,
        #[serde(with = "seconds")]
        restored: Duration,
    },
    RestoreFailed {
        #[serde(flatten)]
        instance: RankInstance,
        image: Option<ImageId>,
        cause: Cause,
    },
    Recovered {
        #[serde(flatten)]
        instance: RankInstance,
        node: NodeId,
        image: Option<ImageId>,
        messages: u64,
        phases: Phases,
        #[serde(with = "seconds")]
        total: Duration,
    },
    CheckpointStarted {
        rank: Rank,
        image: ImageId,
    },
    Checkpoint {
        rank: Rank,
        image: ImageId,
        bytes: u64,
        /// Bytes of mapped files whose content it has.
        file_bytes: u64,
        #[serde(with = "seconds")]
        pause: Duration,
        #[serde(with = "seconds")]
        total: Duration,
    },
    /// `passing`: for a reason that passes by itself.
    CheckpointFailed {
        rank: Rank,
        image: ImageId,
        cause: Cause,
        passing: bool,
    },
    /// A file that the newest image needs is about to be lost to other nodes.
    CheckpointWanted {
        rank: Rank,
        cause: Cause,
    },
    /// These ranks have had no new image for longer than three intervals, which is `limit`.
    ImagesOverdue {
        ranks: Vec<Rank>,
        #[serde(with = "seconds")]
        limit: Duration,
        cause: Cause,
    },
    /// They have one again.
    ImagesAgain {
        ranks: Vec<Rank>,
    },
    Connected {
        #[serde(flatten)]
        instance: RankInstance,
    },
    ConnectionLost {
        #[serde(flatten)]
        instance: RankInstance,
    },
    /// An older incarnation of a rank, or a stranger, was refused.
    Refused {
        rank: Option<Rank>,
        incarnation: Incarnation,
        cause: Cause,
    },
    Unprotected {
        rank: Rank,
        cause: Cause,
    },
    Protected {
        rank: Rank,
    },
    ContentDiffers {
        rank: Rank,
        cause: Cause,
    },
    Injected {
        /// As on the command line.
        fault: String,
    },
    InjectionMissed {
        /// As on the command line.
        fault: String,
        cause: Cause,
    },
    /// The gateway has a line to another domain.
    LineUp {
        domain: String,
    },
    /// The line to another domain is broken. Messages wait until it is back.
    LineDown {
        domain: String,
    },
    /// The programs of all ranks of another domain have ended, with this code together.
    DomainFinished {
        domain: String,
        code: i32,
    },
    /// Another domain, whose ranks had all gone to others, has ended. The job goes on.
    DomainGone {
        domain: String,
    },
    /// A domain has joined the running job.
    DomainJoined {
        domain: String,
    },
    /// A domain that was to join the job has not, and is no part of it.
    DomainStaysOut {
        domain: String,
        cause: Cause,
    },
    /// All ranks of a domain go to another one. `took`: since that was asked for. `cause`: why they
    /// stay.
    DomainMove {
        from: String,
        to: String,
        phase: MovePhase,
        #[serde(with = "seconds")]
        took: Duration,
        cause: Option<Cause>,
    },
    /// The controller had died, and another one goes on with the job.
    Resumed,
    /// The job is being saved: its ranks are imaged, then they stop.
    Saving,
    /// The job is saved in this directory, and ends. `bytes`: what its routers held.
    Saved {
        dir: String,
        bytes: u64,
    },
    /// Something outside the state machine that users should know.
    Note {
        text: String,
    },
    JobEnded {
        code: i32,
        cause: Option<Cause>,
        summary: Summary,
    },
}

/// A line of the event stream: `R` is [`Record`] or a reference to one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Line<R> {
    /// Number of the line, from 0.
    pub seq: u64,
    /// Seconds since the job's start.
    pub time: f64,
    #[serde(flatten)]
    pub record: R,
}

/// How much an event matters to a user who watches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum LogLevel {
    /// Shown with -v.
    Detail,
    Normal,
    /// Shown also with --quiet.
    Error,
}

/// How much of an image is content of mapped files; nothing for images that need these files.
fn of_files(file_bytes: u64) -> String {
    match file_bytes {
        0 => String::new(),
        bytes => format!(" with {} of mapped files", units::bytes(bytes)),
    }
}

fn from(image: &Option<ImageId>) -> String {
    image.map_or("from the start".into(), |i| format!("from image {i}"))
}

/// `ranks 1, 2`.
pub fn list(ranks: &[Rank]) -> String {
    match ranks {
        [] => "no rank".into(),
        [one] => format!("rank {one}"),
        many => {
            format!("ranks {}", many.iter().map(Rank::to_string).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Ranks in words with a verb: for one, or none, and for several.
fn list_with(ranks: &[Rank], one: &str, several: &str) -> String {
    let verb = if ranks.len() > 1 { several } else { one };
    format!("{} {verb}", list(ranks))
}

/// The first steps.
fn few_steps(steps: &[String]) -> String {
    match steps {
        [a, b, c, rest @ ..] if !rest.is_empty() => {
            format!("{a}, {b}, {c} and {} more", rest.len())
        }
        steps => steps.join(", "),
    }
}

/// As [`list`], of which a line has room for only some.
fn few(ranks: &[Rank]) -> String {
    const SHOWN: usize = 8;
    match ranks.get(..SHOWN).filter(|shown| shown.len() < ranks.len()) {
        Some(shown) => format!("{} ({}, ...)", ranks.len(), list(shown)),
        None => list(ranks),
    }
}

/// A node for people, with the name of its host if it has one.
pub fn in_words(node: NodeId, hosts: &[String]) -> String {
    match hosts.get(node.index()) {
        Some(host) => format!("node {node} ({host})"),
        None => format!("node {node}"),
    }
}

impl Record {
    /// The event for people: its log level, and one line. `None`: nothing to tell. `hosts`: the
    /// names of the nodes, where they have some.
    pub fn line(&self, hosts: &[String]) -> Option<(LogLevel, String)> {
        use LogLevel::{Detail, Error, Normal};
        let at = |node: &NodeId| in_words(*node, hosts);
        Some(match self {
            Record::JobStarted { job, ranks, nodes, spares, routers, .. } => (
                Detail,
                format!(
                    "job {job}: {} on {}, {}, {}",
                    counted(*ranks, "rank"),
                    counted(*nodes, "node"),
                    counted(*spares, "spare"),
                    counted(*routers, "router")
                ),
            ),
            Record::NodeUp { node } => (Detail, format!("{} is up", at(node))),
            Record::RankStarted { instance: RankInstance { rank, incarnation }, node, image } => (
                Detail,
                format!("rank {rank} starts on {} {} (incarnation {incarnation})", at(node), from(image)),
            ),
            Record::Library { library: Library { name, version, tested, threads } } => {
                let untested = if *tested { "" } else { " (not a version that Eyrie is tested with)" };
                let text = format!("{name} {version}{untested}, provider eyrie, {threads}");
                (Detail, text)
            }
            Record::RankFailed { instance, node, cause } => {
                let rank = instance.rank;
                (Normal, format!("rank {rank} on {} failed: {cause}", at(node)))
            }
            Record::RankFinished { rank, code } => {
                (Detail, format!("rank {rank} finished with code {code}"))
            }
            Record::NodeLost { node, cause, ranks } => {
                (Normal, format!("{} is lost with {}: {cause}", at(node), list(ranks)))
            }
            Record::RoleStarted { role, node } => (Detail, format!("{role} runs on {}", at(node))),
            Record::RoleLost { role, node, cause, ranks } => {
                let next = if ranks.is_empty() {
                    "another takes its place".to_string()
                } else {
                    let are = list_with(ranks, "is", "are");
                    format!("another takes its place, {are} imaged at once")
                };
                (Normal, format!("{role} on {} is lost: {cause}; {next}", at(node)))
            }
            Record::CutOff { job, silent, alone_for, journal } => {
                let elsewhere = match journal[..] {
                    [] => String::new(),
                    _ => format!(
                        " To go on elsewhere, run `eyrie resume {job}` on {}.",
                        journal.join(" or ")
                    ),
                };
                let (silent, alone_for) = (time(*silent), time(*alone_for));
                let text = format!(
                    "no node on another host has answered for {silent}: they are lost, or this host is cut off. The \
                     ranks compute on without this controller, for at most {alone_for}. It goes on by itself when it \
                     reaches half of the nodes.{elsewhere}"
                );
                (Normal, text)
            }
            Record::Reconnected { after, missing } => {
                let missing: Vec<String> = missing.iter().map(at).collect();
                let missing = match missing[..] {
                    [] => String::new(),
                    _ => format!("; {} not yet", missing.join(", ")),
                };
                (Normal, format!("other hosts are reached again after {}{missing}", time(*after)))
            }
            Record::CopiesMissing { cause, .. } => {
                (Normal, format!("not everything is kept twice: {cause}"))
            }
            Record::CopiesRestored { what } => {
                let what = match what {
                    Kept::Images => "images are in two stores again",
                    Kept::Logs => "routers are on other hosts than their ranks again",
                    Kept::Journal => "the journal has its copies on other hosts again",
                };
                (Normal, what.into())
            }
            Record::Saving => (Normal, "the job is being saved: its ranks are imaged and stop".into()),
            Record::Saved { dir, bytes } => {
                let bytes = units::bytes(*bytes);
                (Detail, format!("the job is saved in {dir}: {bytes} of messages besides the images"))
            }
            Record::LineUp { domain } => (Normal, format!("there is a line to domain {domain}")),
            Record::LineDown { domain } => (
                Normal,
                format!("the line to domain {domain} is broken: messages wait until it is back"),
            ),
            Record::DomainFinished { domain, code } => {
                let with = if *code == 0 { String::new() } else { format!(", with code {code}") };
                (Detail, format!("all ranks of domain {domain} have finished{with}"))
            }
            Record::DomainGone { domain } => {
                (Normal, format!("domain {domain} has ended: its ranks are in other domains"))
            }
            Record::DomainJoined { domain } => {
                (Normal, format!("domain {domain} has joined the job: ranks can go there"))
            }
            Record::DomainStaysOut { domain, cause } => {
                (Normal, format!("domain {domain} has not joined the job: {cause}"))
            }
            Record::Resumed => {
                (Normal, "another controller goes on with the job, from its journal".into())
            }
            Record::NodeRefused { node } => (
                Normal,
                format!("{} woke up after it was declared dead: refused, its ranks end", at(node)),
            ),
            Record::SpareUsed { spare, node } => {
                (Normal, format!("spare {} takes the ranks of {}", at(spare), at(node)))
            }
            Record::MoveRound { rank, node, round, bytes, took, .. } => {
                let to = at(node);
                let bytes = units::bytes(*bytes);
                let took = time(*took);
                (Detail, format!("rank {rank} moves to {to}, round {round}: {bytes} in {took}"))
            }
            Record::MoveSlowed { rank, share } => {
                (Normal, format!("rank {rank} is slowed: it stands still for {share} % of the time"))
            }
            Record::MoveNotPrepared { rank, node, cause } => (
                Normal,
                format!("rank {rank} stands still for longer as it moves to {}: {cause}", at(node)),
            ),
            Record::RankMoved { rank, from, node, pause } => {
                let (from, to) = (at(from), at(node));
                (Normal, format!("rank {rank} moved from {from} to {to}, and stood still {}", time(*pause)))
            }
            Record::Rearranging { ranks, nodes, .. } => {
                let moves: Vec<String> = ranks
                    .iter()
                    .zip(nodes)
                    .map(|(rank, node)| format!("rank {rank} to {}", at(node)))
                    .collect();
                (Normal, format!("ranks move: {}", moves.join(", ")))
            }
            Record::TrafficMeasured { pairs, bytes, over } => {
                let (pairs, over) = (counted(*pairs, "pair"), time(*over));
                let bytes = units::bytes(*bytes);
                (Detail, format!("ranks are placed by what {pairs} of them sent in {over}: {bytes}"))
            }
            Record::MovesWeighed { moves: 0, .. } => {
                (Normal, "no rank that lives moves: no other placement is better".into())
            }
            Record::MovesWeighed { moves, gain, cost, left, pays, steps } => {
                let moves = counted(u64::from(*moves), "more rank");
                let what = if *pays { "they move" } else { "it does not pay" };
                let gain = time(*gain);
                let cost = time(*cost);
                let left = time(*left);
                let steps = few_steps(steps);
                (
                    Normal,
                    format!(
                        "moving {moves} gains {gain} in the {left} that are left, and may cost \
                         {cost}: {what} ({steps})"
                    ),
                )
            }
            Record::Rearranged { ranks, cause: None } => {
                (Normal, format!("{} where planned", list_with(ranks, "is", "are")))
            }
            Record::Rearranged { ranks, cause: Some(cause) } => {
                let ranks = list(ranks);
                (Normal, format!("the moves of {ranks} are cancelled and taken back: {cause}"))
            }
            Record::NodeNotice { node, cause } => {
                (Normal, format!("{} is about to be taken away: {cause}", at(node)))
            }
            Record::NodeHealth { node, rule, what, state: HealthState::Ok, node_state, .. } => {
                (Normal, format!("{} is {node_state}: {rule} finds nothing about {what} now", at(node)))
            }
            Record::NodeHealth { node, rule, what, state, node_state, said } => {
                let part = if state == node_state { String::new() } else { format!(" ({state})") };
                (Normal, format!("{} is {node_state}: {rule}, {what}{part}: {said}", at(node)))
            }
            Record::Precaution { node, ranks, cause } => {
                let are = list_with(ranks, "is", "are");
                let why = cause.as_ref().map_or(String::new(), |why| format!("; not drained: {why}"));
                (Normal, format!("{} is not well: {are} imaged at once{why}", at(node)))
            }
            Record::RuleMuted { node, rule, times, within, muted_for } => {
                let (within, muted_for) = (time(*within), time(*muted_for));
                let text = format!(
                    "{rule} fires too often on {}, more than {times} times in {within}: nothing is done about it for {muted_for}",
                    at(node)
                );
                (Normal, text)
            }
            Record::NodeLeft { node } => (Normal, format!("{} is gone; nothing was there", at(node))),
            Record::NodeDraining { node, ranks } => {
                let ranks = list_with(ranks, "leaves", "leave");
                (Normal, format!("{} is being drained: {ranks} it", at(node)))
            }
            Record::NodeDrained { node } => (Normal, format!("{} is free", at(node))),
            Record::NodeUndrained { node } => (Normal, format!("{} takes ranks again", at(node))),
            Record::NodeShared { node, rank, ranks } => (
                Normal,
                format!("no spare is left: {} takes rank {rank} too and has {ranks} ranks now", at(node)),
            ),
            Record::Placed { instance: RankInstance { rank, .. }, node, image, .. } => {
                (Detail, format!("rank {rank} goes to {} {}", at(node), from(image)))
            }
            Record::Restored { instance: RankInstance { rank, .. }, fetched, restored, .. } => (
                Detail,
                format!("rank {rank} is restored: fetched {}, mapped {}", time(*fetched), time(*restored)),
            ),
            Record::RestoreFailed { instance: RankInstance { rank, .. }, image, cause, .. } => {
                (Normal, format!("rank {rank} could not be restored {}: {cause}", from(image)))
            }
            Record::Recovered { instance: RankInstance { rank, .. }, node, image, messages, phases, total, .. } => (
                Normal,
                format!(
                    "rank {rank} recovered on {} {} in {}: detected {}, placed {}, fetched {}, restored \
                     {}, replayed {} ({})",
                    at(node),
                    from(image),
                    time(*total),
                    time(phases.detected),
                    time(phases.placed),
                    time(phases.fetched),
                    time(phases.restored),
                    time(phases.replayed),
                    counted(*messages, "message")
                ),
            ),
            Record::CheckpointStarted { .. } => return None,
            Record::Checkpoint { rank, image, bytes, file_bytes, pause, total } => (
                Detail,
                format!(
                    "checkpoint of rank {rank}: image {image}, {}{}, stood still {}, \
                     stored after {}",
                    units::bytes(*bytes),
                    of_files(*file_bytes),
                    time(*pause),
                    time(*total)
                ),
            ),
            Record::CheckpointFailed { rank, cause, passing, .. } => (
                if *passing { Detail } else { Normal },
                format!("no checkpoint of rank {rank}: {cause}; it goes on with its last one"),
            ),
            Record::CheckpointWanted { rank, cause } => {
                (Detail, format!("rank {rank} is checkpointed before its time: {cause}"))
            }
            Record::ImagesOverdue { ranks, limit, cause } => {
                let have = if ranks.len() == 1 { "has" } else { "have" };
                let text = format!(
                    "{} {have} had no new image for more than {}: {cause}; after a failure all since \
                     the last one is done again",
                    few(ranks),
                    time(*limit)
                );
                (Normal, text)
            }
            Record::ImagesAgain { ranks } => {
                let have = if ranks.len() == 1 { "has" } else { "have" };
                (Normal, format!("{} {have} a new image again", few(ranks)))
            }
            Record::Connected { instance: RankInstance { rank, incarnation } } => {
                (Detail, format!("rank {rank} is connected to its router (incarnation {incarnation})"))
            }
            Record::ConnectionLost { instance: RankInstance { rank, .. }, .. } => {
                (Detail, format!("rank {rank} lost the connection to its router"))
            }
            Record::Refused { rank, incarnation, cause } => {
                let who = rank.map_or("a stranger".into(), |r| format!("rank {r}, incarnation {incarnation}"));
                // Older incarnations that are refused are what recovery is made for; a stranger is
                // not.
                let level = if rank.is_some() { Detail } else { Normal };
                (level, format!("{who} was refused: {cause}"))
            }
            Record::DomainMove { from, to, phase, took, cause } => {
                let took = time(*took);
                match phase {
                    MovePhase::Requested => (Normal, format!("the ranks of {from} go to {to}")),
                    MovePhase::Flushed => {
                        (Detail, format!("no message is on its way into {from} any more, after {took}"))
                    }
                    MovePhase::Imaged => {
                        (Detail, format!("{to} has the images of all ranks of {from}, after {took}"))
                    }
                    MovePhase::Moved => {
                        (Normal, format!("the ranks of {from} are ranks of {to} now, after {took}"))
                    }
                    MovePhase::Resumed => {
                        (Normal, format!("the ranks of {from} run in {to}, after {took}"))
                    }
                    MovePhase::Cancelled => {
                        let cause = cause.as_deref().unwrap_or("it was asked for");
                        (Normal, format!("the ranks of {from} do not go to {to}: {cause}"))
                    }
                }
            }
            Record::Unprotected { rank, cause } => (
                Normal,
                format!(
                    "rank {rank} is not protected until its next checkpoint: {cause}; free space, or give more with \
                     --log-memory"
                ),
            ),
            Record::Protected { rank } => (Normal, format!("rank {rank} is protected again")),
            Record::ContentDiffers { rank, cause } => (
                Normal,
                format!(
                    "rank {rank} sent other content than before under the same envelope (a clock, or threads that add up in another order, perhaps): {cause}"
                ),
            ),
            Record::Injected { fault } => (Normal, format!("injected: {fault}")),
            Record::InjectionMissed { fault, cause } => {
                (Normal, format!("{fault} hit nothing: {cause}"))
            }
            Record::Note { text } => (Normal, text.clone()),
            Record::JobEnded { cause: Some(cause), .. } => (Error, cause.clone()),
            Record::JobEnded { summary, .. } => (
                if summary.recoveries > 0 { Normal } else { Detail },
                format!(
                    "done in {}: {} checkpoints, {} recoveries{}",
                    time(summary.elapsed),
                    summary.checkpoints,
                    summary.recoveries,
                    if summary.recoveries > 0 {
                        format!(", the longest {}", time(summary.longest_recovery))
                    } else {
                        String::new()
                    }
                ),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// One of each.
    fn one_of_each() -> Vec<Record> {
        let rank = Rank(3);
        let incarnation = Incarnation(2);
        let node = NodeId(1);
        let image = Some(ImageId(4));
        let instance = RankInstance { rank, incarnation };
        let cause = || "because".to_string();
        let time = Duration::from_millis(1500);
        vec![
            Record::JobStarted {
                job: "j".into(),
                ranks: 4,
                nodes: 2,
                spares: 1,
                hosts: vec!["a".into()],
                routers: 1,
            },
            Record::NodeUp { node },
            Record::Library {
                library: Library {
                    name: "MPICH".into(),
                    version: "5.0.2".into(),
                    tested: true,
                    threads: "MPI_THREAD_SINGLE".into(),
                },
            },
            Record::RankStarted { instance, node, image: None },
            Record::RankFailed { instance, node, cause: cause() },
            Record::RankFinished { rank, code: 0 },
            Record::NodeLost { node, cause: cause(), ranks: vec![Rank(1), Rank(2)] },
            Record::RoleStarted { role: "router 0".into(), node },
            Record::RoleLost {
                role: "router 0".into(),
                node,
                cause: cause(),
                ranks: vec![Rank(1)],
            },
            Record::CutOff {
                job: "j".into(),
                silent: time,
                alone_for: time,
                journal: vec!["node 1".into()],
            },
            Record::Reconnected { after: time, missing: vec![NodeId(1)] },
            Record::CopiesMissing { what: Kept::Images, cause: cause() },
            Record::CopiesRestored { what: Kept::Journal },
            Record::NodeRefused { node },
            Record::LineUp { domain: "cloud".into() },
            Record::LineDown { domain: "cloud".into() },
            Record::DomainFinished { domain: "cloud".into(), code: 0 },
            Record::DomainGone { domain: "cloud".into() },
            Record::DomainJoined { domain: "lab".into() },
            Record::DomainStaysOut { domain: "lab".into(), cause: "it has ended".into() },
            Record::DomainMove {
                from: "cloud".into(),
                to: "home".into(),
                phase: MovePhase::Cancelled,
                took: time,
                cause: Some(cause()),
            },
            Record::Resumed,
            Record::Saving,
            Record::Saved { dir: "/d".into(), bytes: 7 },
            Record::SpareUsed { spare: NodeId(2), node },
            Record::MoveRound { rank, node, image: ImageId(7), round: 2, bytes: 4096, took: time },
            Record::MoveSlowed { rank, share: 20 },
            Record::MoveNotPrepared { rank, node, cause: cause() },
            Record::RankMoved { rank, from: NodeId(0), node, pause: time },
            Record::Rearranging {
                ranks: vec![Rank(1)],
                nodes: vec![NodeId(0)],
                drains: vec![NodeId(2)],
            },
            Record::TrafficMeasured { pairs: 3, bytes: 4096, over: time },
            Record::MovesWeighed {
                moves: 2,
                gain: time,
                cost: time,
                left: time,
                pays: true,
                steps: vec!["1D slide along +x from 2,2".into()],
            },
            Record::Rearranged { ranks: vec![Rank(1)], cause: Some(cause()) },
            Record::NodeNotice { node, cause: cause() },
            Record::NodeHealth {
                node,
                rule: "heat".into(),
                what: "chip".into(),
                state: HealthState::Suspect,
                node_state: HealthState::Failing,
                said: cause(),
            },
            Record::Precaution { node, ranks: vec![rank], cause: Some(cause()) },
            Record::RuleMuted {
                node,
                rule: "heat".into(),
                times: 3,
                within: time,
                muted_for: time,
            },
            Record::NodeLeft { node },
            Record::NodeDraining { node, ranks: vec![Rank(1), Rank(2)] },
            Record::NodeDrained { node },
            Record::NodeUndrained { node },
            Record::NodeShared { node, rank, ranks: 3 },
            Record::Placed { instance, node, choice: Choice::Spare, image },
            Record::Restored { instance, fetched: time, restored: time },
            Record::RestoreFailed { instance, image, cause: cause() },
            Record::Recovered {
                instance,
                node,
                image,
                messages: 9,
                phases: Phases::default(),
                total: time,
            },
            Record::CheckpointStarted { rank, image: ImageId(4) },
            Record::Checkpoint {
                rank,
                image: ImageId(4),
                bytes: 1 << 20,
                file_bytes: 1 << 10,
                pause: time,
                total: time,
            },
            Record::CheckpointFailed { rank, image: ImageId(4), cause: cause(), passing: false },
            Record::CheckpointWanted { rank, cause: cause() },
            Record::ImagesOverdue { ranks: vec![Rank(1), Rank(2)], limit: time, cause: cause() },
            Record::ImagesAgain { ranks: vec![Rank(1)] },
            Record::Connected { instance },
            Record::ConnectionLost { instance },
            Record::Refused { rank: None, incarnation, cause: cause() },
            Record::Unprotected { rank, cause: cause() },
            Record::Protected { rank },
            Record::ContentDiffers { rank, cause: cause() },
            Record::Injected { fault: "kill-rank=1".into() },
            Record::InjectionMissed { fault: "kill-rank=1".into(), cause: cause() },
            Record::Note { text: "text".into() },
            Record::JobEnded { code: 0, cause: None, summary: Summary::default() },
        ]
    }

    fn keys(value: &Value) -> BTreeSet<String> {
        value.as_object().map(|o| o.keys().cloned().collect()).unwrap_or_default()
    }

    #[test]
    fn schema_page_and_code_agree() {
        let schema: Value =
            serde_json::from_str(include_str!("../../../docs/events-schema.json")).unwrap();
        let page = include_str!("../../../docs/events.md");
        let mut documented: BTreeSet<&str> = BTreeSet::new();
        let events = schema["oneOf"].as_array().unwrap();
        for record in one_of_each() {
            let value = serde_json::to_value(&record).unwrap();
            let name = value["event"].as_str().unwrap();
            let entry = events.iter().find(|e| e["title"] == name);
            let entry = entry.unwrap_or_else(|| panic!("{name} is not in the schema"));
            documented.insert(entry["title"].as_str().unwrap());
            let mut expected = keys(&value);
            expected.extend(["seq".to_string(), "time".to_string()]);
            assert_eq!(keys(&entry["properties"]), expected, "{name}");
            for nested in ["phases", "summary"] {
                let properties = &entry["properties"][nested]["properties"];
                assert_eq!(keys(properties), keys(&value[nested]), "{name}.{nested}");
            }
            assert!(page.contains(&format!("| `{name}` |")), "{name} is not on the page");
        }
        assert_eq!(documented.len(), events.len(), "the schema has events that do not happen");
        let variants = include_str!("record.rs").split("pub enum Record {").nth(1).unwrap();
        let variants = variants.split("\n}").next().unwrap();
        let variants = variants.lines().filter(|l| {
            l.starts_with("    ")
                && l.trim_start().len() == l.len() - 4
                && l.trim_start().starts_with(|c: char| c.is_ascii_uppercase())
        });
        assert_eq!(variants.count(), one_of_each().len(), "an event is missing in this test");
    }

    #[test]
    fn every_event_is_one_line_for_people() {
        for record in one_of_each() {
            if let Some((_, line)) = record.line(&[]) {
                assert!(!line.is_empty() && !line.contains('\n'), "{line}");
            }
        }
    }
}
