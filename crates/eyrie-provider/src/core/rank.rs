//! A rank of the job, whatever way its messages take: which receive a message is for, what
//! one-sided requests do to its memory, their answers, and when a program that only asks may sleep.
//! It must never know who orders and keeps messages: that is [`super::path`].

use super::asking::Asking;
use super::error::RankError;
use super::matching::{
    Completion, Content, Context, Envelope as Matched, Matching, Place, Posted, Probe,
};
use super::path::{Arrived, Path, Show, Turn};
use super::rma::{Answer, Applied, Done, Pending, Regions, Requests};
use super::world::World;
use eyrie_wire::data::Envelope;
use eyrie_wire::Rank;
use std::collections::BTreeMap;
use std::io;

#[cfg(test)]
mod tests;

/// What a progress call reports.
pub enum Event {
    /// A receive or a probe is over.
    Received(Completion),
    /// A one-sided request is over.
    Done(Done),
}

/// Results that the program has not read yet when it makes a progress call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Unread {
    /// Nothing: the call may sleep for a message.
    Nothing,
    /// Only that a probe has found nothing.
    Misses,
    /// That something is done: it goes on with that.
    Completions,
}

/// The rank.
pub struct RankCore<P> {
    pub path: P,
    matching: Matching,
    pub regions: Regions,
    requests: Requests,
    /// Requests of others that are applied and not answered: the newest of each.
    owed: BTreeMap<Rank, u64>,
    /// Whether the next progress call shows nothing, see [`Aside`].
    aside: Aside,
    asking: Asking,
    /// The last progress call was none that the rank is known to have made before.
    is_new: bool,
}

/// An MPI library polls the network before it handles what it has told itself by other ways
/// (MPICH's one-sided operations on its own memory, `MPIDI_progress_test_vci`). So an answer that
/// comes quickly could change that memory before the rank's own earlier operation does. Therefore
/// the first progress call after a message other than a tagged one shows nothing, but never two
/// in a row.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Aside {
    #[default]
    Nothing,
    /// A message has been sent since the last progress call.
    Sent,
    /// The last progress call showed nothing because of that.
    Stepped,
}

impl Aside {
    fn sent(&mut self) {
        if *self == Aside::Nothing {
            *self = Aside::Sent;
        }
    }

    /// A progress call has begun: whether it shows nothing.
    fn steps(&mut self) -> bool {
        let steps = *self == Aside::Sent;
        *self = if steps { Aside::Stepped } else { Aside::Nothing };
        steps
    }
}

impl<P: Path> RankCore<P> {
    /// A rank that has received nothing.
    pub fn new(path: P) -> RankCore<P> {
        RankCore {
            path,
            matching: Matching::default(),
            regions: Regions::default(),
            requests: Requests::default(),
            owed: BTreeMap::new(),
            aside: Aside::default(),
            asking: Asking::default(),
            is_new: false,
        }
    }

    // Receives.

    /// Posts a receive; messages that are visible already may complete it at once.
    pub fn post(&mut self, p: Posted, done: impl FnMut(Completion)) {
        self.asking.acted();
        self.matching.post(p, done);
    }

    pub fn probe(&mut self, probe: &Probe) -> Completion {
        self.matching.probe(probe)
    }

    pub fn receive_claimed(&mut self, p: Posted, discard: bool) -> Option<Completion> {
        self.matching.receive_claimed(p, discard)
    }

    pub fn cancel(&mut self, context: Context) -> Option<Completion> {
        self.matching.cancel(context)
    }

    pub fn forget_posted(&mut self) {
        self.matching.forget_posted();
    }

    // Sends.

    /// Sends a message; returns when it is on its way and kept.
    ///
    /// # Errors
    /// As [`Path::send`].
    pub fn send(
        &mut self,
        destination: Rank,
        envelope: Envelope,
        content: &[u8],
    ) -> Result<(), RankError> {
        self.path.send(destination, envelope, content)?;
        self.asking.acted();
        if !matches!(envelope, Envelope::Tagged { .. }) {
            self.aside.sent();
        }
        Ok(())
    }

    /// Sends a one-sided request, whose answer is reported by a progress call; one to this rank
    /// itself is over at once. Programs expect that: they tell others of memory of their own that
    /// they have just changed this way, and what these do to it then must come after.
    ///
    /// # Errors
    /// As [`RankCore::send`].
    pub fn request(
        &mut self,
        target: Rank,
        pending: Pending,
        envelope: impl FnOnce(u64) -> Envelope,
        content: &[u8],
    ) -> Result<Option<Done>, RankError> {
        if target == self.path.number() {
            // SAFETY: regions are memory that the MPI library has registered, and it leaves the
            // memory to the provider during its calls.
            return Ok(Some(unsafe { self.regions.apply_own(pending, &envelope(0), content) }));
        }
        let number = self.requests.add(target, pending);
        self.send(target, envelope(number), content)?;
        Ok(None)
    }

    // Progress.

    /// A progress call: the clock ticks, messages become visible as far as this clock allows.
    ///
    /// # Errors
    /// As [`Path::tick`] and [`Path::show_new`].
    pub fn progress(
        &mut self,
        unread: Unread,
        mut done: impl FnMut(Event),
    ) -> Result<(), RankError> {
        let result = self.advance(unread, &mut done);
        self.path.end_progress();
        result
    }

    /// The signal that the program gets at the end of this progress call: when it re-executes, what
    /// it got there before. Behind the last determinant, but before the next call, it may have sent
    /// something: so it gets nothing new there.
    #[inline]
    pub fn signal(&mut self) -> Option<i32> {
        let clock = self.path.clock();
        let is_new = self.is_new;
        self.path.world_mut().signal(clock, is_new)
    }

    fn advance(&mut self, unread: Unread, done: &mut impl FnMut(Event)) -> Result<(), RankError> {
        let steps_aside = self.aside.steps();
        let turn = self.path.tick()?;
        self.is_new = turn == Turn::New;
        match turn {
            Turn::Nothing => Ok(()),
            Turn::Again => {
                let (path, mut view) = self.view(done);
                path.show_again(&mut view)?;
                let answer = view.answer;
                self.answer(answer)
            }
            Turn::New if steps_aside => Ok(()),
            Turn::New => match unread {
                Unread::Nothing => self.show_new(done),
                Unread::Misses => Ok(()),
                Unread::Completions => {
                    self.asking.found();
                    Ok(())
                }
            },
        }
    }

    fn show_new(&mut self, done: &mut impl FnMut(Event)) -> Result<(), RankError> {
        let world = self.path.world();
        let sleep = self.asking.begin(world.ticks(), || world.processor_time_ns());
        let (path, mut view) = self.view(done);
        let found = path.show_new(sleep, &mut view)?;
        let answer = view.answer;
        if found.messages {
            self.asking.found();
        }
        self.answer(answer)?;
        let ticks = self.path.world().ticks();
        let asked = self.asking.end(ticks, !found.something);
        self.path.world_mut().asked(asked);
        self.path.look_after(found, ticks)
    }

    /// The path, and all that a message which becomes visible may change.
    fn view<'a, D>(&'a mut self, done: &'a mut D) -> (&'a mut P, View<'a, D>) {
        let RankCore { path, matching, regions, requests, owed, .. } = self;
        (path, View { matching, regions, requests, owed, done, answer: None })
    }

    /// Answers the requests that were applied in this call: `answer`, and one for all of each other
    /// rank. What became visible in this call has its determinant by now.
    fn answer(&mut self, answer: Option<ToAnswer>) -> Result<(), RankError> {
        if let Some(ToAnswer { source, request, error, content }) = answer {
            self.owed.remove(&source);
            let envelope = Envelope::Answer { request, error };
            match content {
                Answer::Nothing => self.path.send(source, envelope, &[])?,
                Answer::Before(bytes) => self.path.send(source, envelope, &bytes)?,
                Answer::Memory { at, len } => {
                    // SAFETY: within a region of this process; nothing writes to it during the
                    // call.
                    let bytes = unsafe { std::slice::from_raw_parts(at, len) };
                    self.path.send(source, envelope, bytes)?;
                }
            }
        }
        while let Some((source, request)) = self.owed.pop_first() {
            self.path.send(source, Envelope::Answer { request, error: 0 }, &[])?;
        }
        Ok(())
    }
}

/// An answer with content.
struct ToAnswer {
    source: Rank,
    request: u64,
    error: u32,
    content: Answer,
}

/// What a message that becomes visible may change.
struct View<'a, D> {
    matching: &'a mut Matching,
    regions: &'a Regions,
    requests: &'a mut Requests,
    owed: &'a mut BTreeMap<Rank, u64>,
    done: &'a mut D,
    /// A request that is answered with content: no later message may change what it reads before
    /// the answer is sent.
    answer: Option<ToAnswer>,
}

impl<D: FnMut(Event)> Show for View<'_, D> {
    fn show(&mut self, arrived: &Arrived, content: &impl Content) -> Result<bool, RankError> {
        let Arrived { source, envelope, len } = *arrived;
        let unreadable = |e: io::Error| RankError::Content(e.to_string());
        let matched = match envelope {
            Envelope::Untagged { data } => Matched { source, tagged: false, tag: 0, data, len },
            Envelope::Tagged { tag, data } => Matched { source, tagged: true, tag, data, len },
            Envelope::Answer { request, error } => {
                let report = |over| (self.done)(Event::Done(over));
                let answered = self.requests.answered(source, request, error, content, len, report);
                return answered.map(|()| true).map_err(unreadable);
            }
            Envelope::Write { request, .. }
            | Envelope::Read { request, .. }
            | Envelope::Atomic { request, .. } => {
                // SAFETY: regions are memory that the MPI library has registered, and it leaves the
                // memory to the provider during its calls.
                let applied = unsafe { self.regions.apply(&envelope, content, len) };
                match applied.map_err(unreadable)? {
                    Applied::Done => {
                        self.owed.insert(source, request);
                    }
                    Applied::Answer { error, content } => {
                        self.answer = Some(ToAnswer { source, request, error, content });
                    }
                }
                return Ok(self.answer.is_none());
            }
        };
        if let Some(completion) = self.matching.arrive(matched, content).map_err(unreadable)? {
            (self.done)(Event::Received(completion));
        }
        Ok(true)
    }

    fn place_of(&self, arrived: &Arrived) -> Option<Place> {
        let Arrived { source, envelope, len } = *arrived;
        let (tagged, tag, data) = match envelope {
            Envelope::Untagged { data } => (false, 0, data),
            Envelope::Tagged { tag, data } => (true, tag, data),
            _ => return None,
        };
        self.matching.place_of(&Matched { source, tagged, tag, data, len })
    }
}

/// What an image of this rank would hold, to be continued on another path: for tests.
#[cfg(test)]
impl<P> RankCore<P> {
    pub fn image(&self) -> impl Fn(P) -> RankCore<P> {
        let matching = self.matching.clone();
        let regions = self.regions.clone();
        let requests = self.requests.clone();
        let owed = self.owed.clone();
        let aside = self.aside;
        move |path| RankCore {
            path,
            matching: matching.clone(),
            regions: regions.clone(),
            requests: requests.clone(),
            owed: owed.clone(),
            aside,
            asking: Asking::default(),
            is_new: false,
        }
    }
}
