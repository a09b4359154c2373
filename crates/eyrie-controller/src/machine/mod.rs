//! The control state machine: events in, commands out, time passed in. It reads no clock, opens nothing,
//! waits for nothing; and it must never give a command to a node that was given up, nor let the log be
//! discarded beyond an image that is still needed.

mod checkpoint;
mod crash;
mod failure;
mod io;
mod nodes;
pub mod placement;
mod pmi;
mod rank;
pub mod schedule;
pub mod signal;
mod strike;

#[cfg(test)]
mod simulation;

pub use io::{Command, Event, Image, Life, Mark};
pub use rank::State;

use crate::inject::Injection;
use crate::record::{Record, Summary};
use eyrie_placement::{Placement, WithoutNetwork};
use eyrie_wire::control::{CheckpointMode, Ending};
use eyrie_wire::Rank;
use nodes::{NodeState, Standing};
use pmi::Pmi;
use rank::RankState;
use schedule::{Interval, Order, Schedule};
use std::time::Duration;
use strike::Strikes;

/// What a job is to be.
#[derive(Clone, Debug)]
pub struct Config {
    pub job: String,
    pub ranks: u32,
    /// Nodes that start with ranks.
    pub nodes: u32,
    pub spares: u32,
    pub routers: u32,
    pub checkpoint_every: Interval,
    pub checkpoint_order: Order,
    pub checkpoint_mode: CheckpointMode,
    /// A node that does not answer for so long is given up.
    pub heartbeat_timeout: Duration,
    pub injections: Vec<Injection>,
}

/// How long all agents may take to come up.
const AGENTS_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an agent may take to start a program.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// What a restore may take besides moving the image, and how fast that is at least, in bytes per second.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);
const SLOWEST_TRANSFER: u64 = 10 << 20;

/// The machine.
pub struct Machine {
    config: Config,
    placement: Box<dyn Placement>,
    now: Duration,
    nodes: Vec<NodeState>,
    ranks: Vec<RankState>,
    pmi: Pmi,
    schedule: Schedule,
    strikes: Strikes,
    commands: Vec<Command>,
    summary: Summary,
    started: bool,
    ended: bool,
}

impl Machine {
    pub fn new(config: Config) -> Machine {
        let nodes = (0..config.nodes + config.spares)
            .map(|node| NodeState::new(node >= config.nodes))
            .collect();
        let ranks = placement::initial(config.ranks, config.nodes)
            .enumerate()
            .map(|(rank, node)| RankState::new(rank as Rank, node))
            .collect();
        Machine {
            now: Duration::ZERO,
            nodes,
            ranks,
            pmi: Pmi::new(config.ranks),
            schedule: Schedule::new(config.checkpoint_every, config.checkpoint_order, config.ranks),
            strikes: Strikes::new(&config.injections),
            commands: Vec::new(),
            summary: Summary { ranks: config.ranks, ..Summary::default() },
            started: false,
            ended: false,
            placement: Box::new(WithoutNetwork),
            config,
        }
    }

    /// The same machine, asking `placement` for the nodes of displaced ranks.
    pub fn place_by(self, placement: Box<dyn Placement>) -> Machine {
        Machine { placement, ..self }
    }

    /// Handles one event at `now` (since the job's start, never going back) and returns what to do, in order.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Command> {
        if self.ended {
            return Vec::new();
        }
        self.pass_time(now.max(self.now));
        self.dispatch(event);
        if !self.ended {
            self.tick();
        }
        std::mem::take(&mut self.commands)
    }

    /// When [`Event::Tick`] is due at the latest.
    pub fn next_tick(&self) -> Option<Duration> {
        if self.ended {
            return None;
        }
        let ranks = self
            .ranks
            .iter()
            .flat_map(|r| [r.deadline, r.capture.map(|c| c.until)].into_iter().flatten());
        let begin = (!self.started).then_some(AGENTS_TIMEOUT);
        let mut due: Vec<Duration> = ranks.chain(begin).chain(self.next_heartbeat()).collect();
        if self.started {
            due.extend(self.schedule.next_after(self.now));
            due.extend(self.strikes.next());
        }
        due.into_iter().min()
    }

    /// Whether [`Command::End`] was given.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// What the job has been through so far.
    pub fn summary(&self) -> Summary {
        Summary { elapsed: self.now, ..self.summary.clone() }
    }

    /// For the progress line and `eyrie status`.
    pub fn rank_states(&self) -> impl Iterator<Item = (Life, eyrie_wire::Node, State)> + '_ {
        self.ranks.iter().map(|r| (r.life(), r.node, r.state))
    }

    /// Whether each node is up, in order; spares included.
    pub fn nodes_up(&self) -> impl Iterator<Item = bool> + '_ {
        self.nodes.iter().map(|n| n.standing == Standing::Up)
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Tick => {}
            Event::AgentUp(node) => self.agent_up(node),
            Event::AgentGone(node) => {
                self.lose_node(node, "its agent is gone".into(), Duration::ZERO)
            }
            Event::AgentWoke(node) => self.record(Record::NodeRefused { node }),
            Event::Pulse { node, n } => self.pulse(node, n),
            Event::Started { life, fetched, restored } => self.rank_started(life, fetched, restored),
            Event::StartFailed { life, reason, fault } => self.start_failed(life, reason, fault),
            Event::ProviderLoaded(life) => {
                if let Some(r) = self.current(life) {
                    r.loaded = true;
                    r.spoke_pmi = true;
                    self.end_if_silent();
                }
            }
            Event::NotOurs { life, library } => {
                if self.current(life).is_some() {
                    self.end(1, Some(not_ours(&library)));
                }
            }
            Event::Alone { life, library } => {
                if self.current(life).is_some() {
                    self.end(1, Some(alone(&library)));
                }
            }
            Event::PmiPut { life, key, value } => {
                if self.current(life).is_some() {
                    self.pmi.put(key, value);
                }
            }
            Event::PmiBarrier { life, barrier } => {
                if let Some(r) = self.current(life) {
                    r.spoke_pmi = true;
                    self.end_if_silent();
                    if let Some((entries, barriers)) = self.pmi.arrive(life.rank, barrier) {
                        self.commands.push(Command::Pmi { entries, barriers });
                    }
                }
            }
            Event::PmiFinalized(life) => {
                if let Some(r) = self.current(life) {
                    r.finalized = true;
                    r.spoke_pmi = true;
                }
            }
            Event::PmiAbort { life, code } => {
                if self.current(life).is_some() {
                    let text = format!("rank {} called MPI_Abort with code {code}", life.rank);
                    self.end(code & 0xff, Some(text));
                }
            }
            Event::ImageBegun { life, image } => self.image_begun(life, image),
            Event::Captured { life, image, pause } => self.captured(life, image, pause),
            Event::CaptureFailed { life, image, reason, passing } => {
                self.capture_failed(life, image, reason, passing)
            }
            Event::ImageStored { life, image } => self.image_stored(life, image),
            Event::ImageUsable { life, image } => self.image_usable(life, image),
            Event::ImageUnusable { life, image, reason } => {
                self.image_unusable(life, image, reason)
            }
            Event::ImageWanted { life, reason } => self.image_wanted(life, reason),
            Event::Fatal { life, reason } => {
                if self.current(life).is_some() {
                    self.end(1, Some(format!("rank {} cannot go on: {reason}", life.rank)));
                }
            }
            Event::Exited { life, ending, spoke_pmi } => self.exited(life, ending, spoke_pmi),
            Event::Fenced { life, mark } => self.fenced(life, mark),
            Event::Connected(life) => self.connected(life),
            Event::Disconnected(life) => {
                if self.current(life).is_some_and(|r| r.is_on_a_node() && !r.finalized) {
                    let Life { rank, incarnation } = life;
                    self.record(Record::ConnectionLost { rank, incarnation });
                }
            }
            Event::Replayed { life, messages } => self.replayed(life, messages),
            Event::Refused { rank, incarnation, reason } => {
                self.record(Record::Refused { rank, incarnation, cause: reason })
            }
            Event::Divergence { rank, reason } => self.end(
                1,
                Some(format!(
                    "rank {rank} did not repeat itself, so that it cannot be recovered: {reason}; does the program \
                     depend on clocks or random devices?"
                )),
            ),
            Event::ContentDiffers { rank, reason } => {
                self.record(Record::ContentDiffers { rank, cause: reason })
            }
            Event::Unprotected { rank, reason } => self.unprotected(rank, reason),
            Event::RouterFailed(reason) => self.end(1, Some(format!("a router failed: {reason}"))),
            Event::Inject(injection) => self.strikes.add(&injection, self.now),
            Event::Checkpoint(rank) => {
                for r in 0..self.config.ranks {
                    if rank.is_none_or(|wanted| wanted == r) {
                        self.schedule.want(r, self.now);
                    }
                }
            }
            Event::Stop { code, cause } => self.end(code, Some(cause)),
        }
    }

    /// Bytes of output of a rank that were shown, as a sign of its progress.
    pub fn output_shown(&mut self, rank: Rank, total: u64) {
        if let Some(r) = self.ranks.get_mut(rank as usize) {
            r.output = r.output.max(total);
        }
    }

    fn tick(&mut self) {
        self.begin_when_all_are_up();
        self.watch_nodes();
        self.watch_ranks();
        if self.started && !self.ended {
            self.strike_due();
            self.watch_captures();
            self.capture_due();
        }
    }

    /// The rank, when `life` is its present one and has not ended.
    fn current(&mut self, life: Life) -> Option<&mut RankState> {
        let r = self.ranks.get_mut(life.rank as usize)?;
        (r.incarnation == life.incarnation && r.is_on_a_node()).then_some(r)
    }

    fn record(&mut self, record: Record) {
        self.commands.push(Command::Record(record));
    }

    fn end(&mut self, code: i32, cause: Option<String>) {
        if self.ended {
            return;
        }
        self.ended = true;
        self.miss_all_strikes();
        let summary = self.summary();
        self.record(Record::JobEnded { code, cause, summary });
        self.commands.push(Command::End { code });
    }

    /// Starts the ranks once every agent is there.
    fn begin_when_all_are_up(&mut self) {
        if self.started || self.ended {
            return;
        }
        let missing: Vec<String> = (self.nodes.iter().enumerate())
            .filter(|(_, n)| n.standing != Standing::Up)
            .map(|(node, _)| node.to_string())
            .collect();
        if !missing.is_empty() {
            if self.now >= AGENTS_TIMEOUT {
                let text = format!(
                    "the agents of nodes {} did not come up within {}",
                    missing.join(", "),
                    eyrie_units::time(AGENTS_TIMEOUT)
                );
                self.end(1, Some(text));
            }
            return;
        }
        self.started = true;
        let Config { ranks, nodes, spares, routers, .. } = self.config;
        let job = self.config.job.clone();
        self.record(Record::JobStarted { job, ranks, nodes, spares, routers });
        self.schedule.begin(self.now);
        self.strikes.begin(self.now);
        for rank in 0..self.ranks.len() {
            let r = &mut self.ranks[rank];
            r.state = State::Starting;
            r.deadline = Some(self.now + START_TIMEOUT);
            let (life, node) = (r.life(), r.node);
            self.commands.push(Command::Start { node, life, image: None });
            let Life { rank, incarnation } = life;
            self.record(Record::RankStarted { rank, incarnation, node, image: None });
        }
    }

    fn exited(&mut self, life: Life, ending: Ending, spoke_pmi: bool) {
        let Some(r) = self.current(life) else { return };
        r.spoke_pmi |= spoke_pmi;
        match ending {
            Ending::Signal(signal) => {
                let cause = format!("killed by {}", signal::in_words(signal));
                self.fail(life.rank, rank::Death::Signal(signal), cause, None);
            }
            Ending::Code(code) if !r.spoke_pmi => self.finished(life.rank, code),
            Ending::Code(code) if r.finalized => {
                if self.config.ranks > 1 && self.pmi.passed() == 0 {
                    let text = format!(
                        "rank {} ended without having met the other ranks: each computed by itself",
                        life.rank
                    );
                    return self.end(code.max(1), Some(text));
                }
                self.finished(life.rank, code)
            }
            Ending::Code(code) => {
                let text = format!(
                    "rank {} ended with code {code} without MPI_Finalize: the job ends",
                    life.rank
                );
                self.end(code.max(1), Some(text));
            }
        }
    }

    fn finished(&mut self, rank: Rank, code: i32) {
        let r = &mut self.ranks[rank as usize];
        r.state = State::Finished;
        r.code = code;
        r.capture = None;
        r.deadline = None;
        // It came to its end before it had caught up with anything: there was nothing.
        r.recovery = None;
        self.record(Record::RankFinished { rank, code });
        if self.end_if_silent() {
            return;
        }
        if self.ranks.iter().all(|r| r.state == State::Finished) {
            let code = self.code();
            self.end(code, None);
        }
    }

    /// The job's exit code as mpiexec makes it: every bit that any rank has set.
    fn code(&self) -> i32 {
        self.ranks.iter().fold(0, |code, r| code | r.code)
    }

    /// Ends the job when a rank has ended without a word of PMI, and all have, or others speak it: these would wait for
    /// that rank for ever. Returns whether it did.
    fn end_if_silent(&mut self) -> bool {
        let Some(rank) = self.ranks.iter().position(|r| r.state == State::Finished && !r.spoke_pmi)
        else {
            return false;
        };
        let code = self.ranks[rank].code;
        let text = if self.ranks.iter().any(|r| r.spoke_pmi) {
            format!(
                "rank {rank} ended with code {code} without MPI_Init, and the others would wait for it: the job ends"
            )
        } else if self.ranks.iter().all(|r| r.state == State::Finished) {
            "the program ended without speaking PMI: it is no MPI program, or its MPI does not speak PMI-1 \
             (Open MPI does not; use MPICH 5, for instance from PyPI)"
                .into()
        } else {
            return false;
        };
        self.end(self.code().max(1), Some(text));
        true
    }
}

fn not_ours(library: &str) -> String {
    let library = if library.is_empty() { "the program's MPI library" } else { library };
    format!(
        "{library} does not use Eyrie's libfabric provider, so that the job would run unprotected: it is probably built \
         without libfabric (Debian's mpich is: ch4:ucx only); use an MPICH with ch4:ofi, for instance \
         `pip install mpich`, and build the program with its mpicc"
    )
}

fn alone(library: &str) -> String {
    let (library, remedy) = match library {
        "" => ("the program's MPI library", ""),
        open if open.contains("libmpi.so.40") => (open, " (it is Open MPI, which uses PMIx)"),
        other => (other, ""),
    };
    format!(
        "{library} did not ask through PMI-1 which rank of how many it is{remedy}: each process would compute alone, as rank 0 \
         of 1. Use MPICH 5, for instance `pip install mpich`, and build the program with its mpicc"
    )
}
