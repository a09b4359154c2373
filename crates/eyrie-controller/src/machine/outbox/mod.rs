//! What comes of an event: commands, records and who listens to them, answers to users, whether the
//! job has ended, and what follows elsewhere ([`consequence`]). Every handler writes to it; it
//! never decides anything about ranks, nodes or images.

pub mod consequence;
pub mod notes;
pub mod requests;
pub mod speed;

use super::io::{Command, ToPeer};
use super::users::answer::{Answer, RequestId};
use crate::record::Record;
use consequence::Consequence;
use eyrie_interface::Summary;
use eyrie_store::role::StoreCommand;
use eyrie_wire::control::ToAgent;
use eyrie_wire::{Incarnation, NodeId, RankInstance, StoreId};
use notes::Notes;
use requests::Requests;
use serde::{Deserialize, Serialize};
use speed::Speed;
use std::collections::VecDeque;
use std::time::Duration;

/// Exit code of a job, and why it ends if that is no good end.
pub type End = (i32, Option<String>);

#[derive(Default, Serialize, Deserialize)]
pub struct Outbox {
    now: Duration,
    /// All nodes were up and the ranks were started.
    started: bool,
    ended: bool,
    /// When all ranks and nodes are to be looked at again: not at every event, or a large job would
    /// cost the square of its size.
    look_at: Duration,
    speed: Speed,
    notes: Notes,
    summary: Summary,
    /// Empty between two events, as the next two.
    #[serde(skip)]
    commands: Vec<Command>,
    #[serde(skip)]
    consequences: VecDeque<Consequence>,
    #[serde(skip)]
    end: Option<End>,
    /// A user's connection ends with the controller that has read the request.
    #[serde(skip)]
    requests: Requests,
}

impl Outbox {
    /// Of a job that goes on from `summary`.
    pub fn new(summary: Summary) -> Outbox {
        Outbox { summary, ..Outbox::default() }
    }

    /// Since the job's start.
    pub fn now(&self) -> Duration {
        self.now
    }

    pub fn set_now(&mut self, now: Duration) {
        self.now = now;
    }

    pub fn has_started(&self) -> bool {
        self.started
    }

    /// The ranks are started.
    pub fn start(&mut self) {
        self.started = true;
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }

    pub fn look_at(&self) -> Duration {
        self.look_at
    }

    pub fn set_look_at(&mut self, at: Duration) {
        self.look_at = at;
    }

    /// All ranks and nodes are to be looked at after this event.
    pub fn look_now(&mut self) {
        self.look_at = self.now;
    }

    pub fn push(&mut self, command: Command) {
        self.commands.push(command);
    }

    pub fn extend(&mut self, commands: impl IntoIterator<Item = Command>) {
        self.commands.extend(commands);
    }

    /// Sends a message to the agent of a node.
    pub fn send_agent(&mut self, node: NodeId, message: ToAgent) {
        self.push(Command::Send(ToPeer::Agent(node, message)));
    }

    /// Sends a message to a store.
    pub fn send_store(&mut self, store: StoreId, message: StoreCommand) {
        self.push(Command::Send(ToPeer::Store(store, message)));
    }

    pub fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// Something that users may see, and that answers those who wait for it.
    pub fn record(&mut self, record: Record) {
        self.requests.note(&record);
        self.speed.note(&record);
        self.commands.push(Command::Record(record));
        self.answer_requests();
    }

    /// A text for users, once.
    pub fn note(&mut self, text: String) {
        if self.notes.is_new(&text) {
            self.record(Record::Note { text });
        }
    }

    /// As [`Outbox::note`], of a record that is shown as a line.
    pub fn record_once(&mut self, record: Record) {
        let line = record.line(&[]).map_or(String::new(), |(_, line)| line);
        if self.notes.is_new(&line) {
            self.record(record);
        }
    }

    /// A router has refused an older incarnation of a rank, or a stranger.
    pub fn refused(&mut self, instance: Option<RankInstance>, cause: String) {
        if self.notes.is_first_refusal(instance) {
            let rank = instance.map(|i| i.rank);
            let incarnation = instance.map_or(Incarnation(0), |i| i.incarnation);
            self.record(Record::Refused { rank, incarnation, cause });
        }
    }

    pub fn answer(&mut self, request: RequestId, answer: Answer) {
        self.commands.push(Command::Answer { request, answer });
    }

    /// Says why something is not done: to the user who has asked, or, when it was a signal or the
    /// like, to all.
    pub fn refuse(&mut self, request: Option<RequestId>, why: String) {
        match request {
            Some(request) => self.answer(request, Answer::Refused(why)),
            None => self.note(why),
        }
    }

    /// The checkpoints that users wait for.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// As [`Outbox::requests`].
    pub fn requests_mut(&mut self) -> &mut Requests {
        &mut self.requests
    }

    /// Answers the requests for checkpoints whose wait is over.
    pub fn answer_requests(&mut self) {
        self.commands.extend(self.requests.take_answers());
    }

    pub fn speed(&self) -> &Speed {
        &self.speed
    }

    /// What the job has been through so far.
    pub fn summary(&self) -> Summary {
        Summary { elapsed: self.now, ..self.summary.clone() }
    }

    pub fn summary_mut(&mut self) -> &mut Summary {
        &mut self.summary
    }

    /// The job is over. Only the first end counts; its record is the last of all.
    pub fn end(&mut self, code: i32, cause: Option<String>) {
        if !self.ended {
            self.ended = true;
            self.end = Some((code, cause));
        }
    }

    /// The end that came with this event.
    pub fn take_end(&mut self) -> Option<End> {
        self.end.take()
    }

    pub fn follows(&mut self, consequence: Consequence) {
        self.consequences.push_back(consequence);
    }

    /// The next consequence, and those behind it: they are to be put back ([`Outbox::put_back`])
    /// when it is handled with all that follows from it.
    pub fn next_consequence(&mut self) -> Option<(Consequence, VecDeque<Consequence>)> {
        let next = self.consequences.pop_front()?;
        Some((next, std::mem::take(&mut self.consequences)))
    }

    pub fn put_back(&mut self, later: VecDeque<Consequence>) {
        self.consequences.extend(later);
    }
}
