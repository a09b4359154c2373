//! The users who wait for answers, and which answer each waits for. Their connections end with this
//! controller: they are in no journal.

use super::users::Unanswered;
use crate::machine::answer::RequestId;
use crossbeam_channel::Sender;
use eyrie_wire::NodeId;
use std::collections::BTreeMap;

/// Users who wait. One who has left before the answer misses nothing.
#[derive(Default)]
pub struct Users {
    /// The number of the last request.
    last: RequestId,
    waiting: BTreeMap<RequestId, Sender<String>>,
    /// Users whose hosts are to join.
    joining: BTreeMap<NodeId, Sender<String>>,
    /// The user whose request is being handled.
    asking: Option<Sender<String>>,
    /// Users whose answers are not written yet.
    unanswered: Unanswered,
}

impl Users {
    pub fn new(unanswered: Unanswered) -> Users {
        Users { unanswered, ..Users::default() }
    }

    /// The request of this user is handled now, until [`Users::end`].
    pub fn begin(&mut self, user: Sender<String>) {
        self.asking = Some(user);
    }

    /// The request is handled.
    pub fn end(&mut self) {
        self.asking = None;
    }

    /// The number that a request gets which is handled now.
    pub fn next(&self) -> RequestId {
        self.last + 1
    }

    /// The request that is handled now has the next number, and waits for its answer.
    pub fn wait(&mut self) {
        self.last += 1;
        self.waiting.extend(self.asking.take().map(|user| (self.last, user)));
    }

    /// The request that is handled now waits until the host has joined that becomes this node.
    pub fn wait_for(&mut self, node: NodeId) {
        self.joining.extend(self.asking.take().map(|user| (node, user)));
    }

    /// Answers the request that is handled now.
    pub fn answer_now(&mut self, text: &str) {
        if let Some(user) = self.asking.take() {
            let _ = user.send(text.into());
        }
    }

    /// Answers a request that has waited.
    pub fn answer(&mut self, request: RequestId, text: String) {
        if let Some(user) = self.waiting.remove(&request) {
            let _ = user.send(text);
        }
    }

    /// Answers the user whose host is this node, if there is one.
    pub fn answer_joining(&mut self, node: NodeId, text: String) {
        if let Some(user) = self.joining.remove(&node) {
            let _ = user.send(text);
        }
    }

    /// The number of the last request.
    pub fn last(&self) -> RequestId {
        self.last
    }

    /// Goes on after this request.
    pub fn go_on_after(&mut self, last: RequestId) {
        self.last = last;
    }

    /// Users whose answers are not written yet.
    pub fn unanswered(&self) -> Unanswered {
        self.unanswered.clone()
    }
}
