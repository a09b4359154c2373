//! A rank of the job: what it sends, what becomes visible to it and when. It must never let a
//! message be seen outside a progress call, nor let anything out before the determinants it depends
//! on. It waits here and nowhere below, with bounds; what it cannot go on after is an error.

use super::again::Again;
use super::asking::Asking;
use super::delivery::{Delivery, Payload, Script};
use super::error::RankError;
use super::host::{ConnectError, Host, Interest};
use super::matching::{Completion, Context, Envelope as Matched, Matching, Posted, Probe};
use super::mutation::{active, Mutation};
use super::replay::{Replay, Turn};
use super::rma::{Answer, Applied, Done, Pending, Regions, Requests};
use super::sender::{Offer, Outgoing, Sender, Unstored};
use eyrie_wire::data::{self, Deliver, Determinant, Envelope, Message};
use eyrie_wire::page::What;
use eyrie_wire::Rank;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::time::Duration;

/// How long a router may be out of reach, and how long where another may take its place: a host
/// that is powered off is not missed at once.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
const REPLACE_TIMEOUT: Duration = Duration::from_secs(180);
/// Determinants that the home router is not known to hold, where it must, before they are sent by
/// themselves; tests are short.
pub(super) const MAX_UNSTORED: usize = if cfg!(test) { 8 } else { 64 };
/// How long a router may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a replaying rank waits for the next message from the log.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest single wait, and the pauses between attempts to connect.
const WAIT: Duration = Duration::from_millis(100);
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Ticks between two looks at whether the send streams of a waiting rank still stand: about a
/// millisecond.
const LOOK_GAP: u64 = 3_000_000;

/// What a progress call reports.
pub enum Event {
    /// A receive or a probe is over.
    Received(Completion),
    /// A one-sided request is over.
    Done(Done),
}

/// A world in which images are taken in the middle of calls.
pub trait ImagePoint: Host {
    /// An image may be taken here, in a call that waits: the state of the rank bears being
    /// continued elsewhere.
    fn image_point(rank: &mut RankCore<Self>);
}

/// What the program has not been told yet when it makes a progress call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Untold {
    /// Nothing: the call may sleep for a message.
    Nothing,
    /// Only that a probe has found nothing.
    Misses,
    /// That something is done: it goes on with that.
    Completions,
}

/// The rank.
pub struct RankCore<H: Host> {
    pub host: H,
    pub(super) number: Rank,
    matching: Matching,
    pub regions: Regions,
    requests: Requests,
    /// Requests of others that are applied and not answered: the newest of each.
    owed: BTreeMap<Rank, u64>,
    pub(super) replay: Replay,
    pub(super) delivery: Delivery<H>,
    pub(super) senders: Vec<Sender<H>>,
    pub(super) unstored: Unstored,
    pub(super) again: Again,
    /// Routers may be lost and replaced.
    pub(super) until_received: bool,
    /// What this incarnation is to follow is known.
    pub(super) followed: bool,
    /// The last clock of which it is known what was visible, while a progress call is under way.
    pub(super) seen: Determinant,
    /// Messages sent to each rank.
    ssn: Vec<u64>,
    /// A progress call is under way.
    pub(super) progressing: bool,
    /// Whether the next progress call shows nothing, see [`Aside`].
    aside: Aside,
    asking: Asking,
    /// When the send streams were last looked after.
    last_look: u64,
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

/// What a sender is waited for.
#[derive(Clone, Copy)]
pub(super) enum Want {
    Greeting,
    Written,
    Room,
    Segment,
    AllAcknowledged,
    /// What was shown up to this clock is safe, and what was observed up to this byte.
    Stored {
        clock: u64,
        observed: u64,
    },
}

impl<H: ImagePoint> RankCore<H> {
    /// Rank `number` of `ranks`, without any connection.
    pub fn new(host: H, number: Rank, ranks: u32) -> RankCore<H> {
        let (home, until_received) = (host.home(number), host.until_received());
        let sender = |k| Sender::new(ranks, until_received, k == home);
        RankCore {
            number,
            matching: Matching::default(),
            regions: Regions::default(),
            requests: Requests::default(),
            owed: BTreeMap::new(),
            replay: Replay::default(),
            delivery: Delivery::new(if until_received { ranks } else { 0 }),
            senders: (0..host.routers()).map(sender).collect(),
            unstored: Unstored::default(),
            again: Again::default(),
            until_received,
            followed: false,
            seen: Determinant { clock: 0, rsn: 0 },
            ssn: vec![0; ranks as usize],
            progressing: false,
            aside: Aside::default(),
            asking: Asking::default(),
            last_look: 0,
            host,
        }
    }

    pub fn number(&self) -> Rank {
        self.number
    }

    /// Progress calls so far.
    pub fn clock(&self) -> u64 {
        self.replay.clock()
    }

    /// Receive sequence number of the last visible message.
    pub fn rsn(&self) -> u64 {
        self.delivery.rsn()
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
    /// When its router cannot be reached or does not answer.
    pub fn send(
        &mut self,
        destination: Rank,
        envelope: Envelope,
        content: &[u8],
    ) -> Result<(), RankError> {
        if !active(Mutation::SendUnobserved) {
            self.cut_observed();
        }
        let ssn = self.ssn[destination as usize] + 1;
        let (clock, size) = (self.replay.clock(), content.len() as u64);
        let message = Message { destination, ssn, clock, envelope, size, place: None };
        let k = self.host.home(destination) as usize;
        if self.dies_with(k) {
            self.store_determinants()?;
        }
        loop {
            self.ready_sender(k)?;
            if !self.senders[k].has(&message) {
                self.host.before_new();
            }
            match self.senders[k].offer(&Outgoing { message, content }, &mut self.unstored) {
                Ok(Offer::Kept) => break,
                Ok(Offer::NoRoom) => self.await_sender(k, Want::Room)?,
                Ok(Offer::NoSegment) => self.await_sender(k, Want::Segment)?,
                Err(e) => self.lose_sender(k, &e)?,
            }
        }
        self.ssn[destination as usize] = ssn;
        if !self.progressing {
            self.asking.acted();
            if !matches!(envelope, Envelope::Tagged { .. }) {
                self.aside.sent();
            }
        }
        self.host.trace(What::Sent, clock, destination, ssn);
        self.write_sender(k)
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
        if target == self.number {
            // SAFETY: regions are memory that the MPI library has registered, and it leaves the
            // memory to the provider during its calls.
            return Ok(Some(unsafe { self.regions.apply_own(pending, &envelope(0), content) }));
        }
        let number = self.requests.add(target, pending);
        self.send(target, envelope(number), content)?;
        Ok(None)
    }

    /// Gives the router everything that is kept, over a new connection if this one breaks; the
    /// router always reads, so this ends.
    fn write_sender(&mut self, k: usize) -> Result<(), RankError> {
        loop {
            self.ready_sender(k)?;
            match self.senders[k].write() {
                Ok(true) => return Ok(()),
                Ok(false) => self.await_sender(k, Want::Written)?,
                Err(e) => self.lose_sender(k, &e)?,
            }
        }
    }

    /// The stream is lost; what is kept is given to the next one. A refusal is final.
    fn lose_sender(&mut self, k: usize, e: &io::Error) -> Result<(), RankError> {
        let code = e.raw_os_error().unwrap_or(0) as u64;
        self.host.trace(What::SendLost, self.replay.clock(), k as u32, code);
        self.senders[k].disconnect();
        refused(e)
    }

    /// Connects the stream to a router if it is not, and gives it what earlier ones were left with.
    pub(super) fn ready_sender(&mut self, k: usize) -> Result<(), RankError> {
        if self.senders[k].is_ready() {
            return Ok(());
        }
        let mut attempts = self.attempts();
        while !self.senders[k].is_ready() {
            self.look_at_directory();
            if self.senders[k].stream().is_none() {
                if self.dies_with(k) {
                    self.store_determinants()?;
                }
                match self.host.connect(k as u32, data::StreamKind::Send) {
                    Ok(stream) => self.senders[k].begin(stream),
                    Err(e) => {
                        attempts.failed(&mut self.host, k as u32, e)?;
                        continue;
                    }
                }
            }
            if !self.senders[k].is_greeted() {
                self.await_sender(k, Want::Greeting)?;
                continue;
            }
            match self.senders[k].offer_backlog(&mut self.unstored)? {
                Ok(Offer::Kept) => {}
                Ok(Offer::NoRoom) => self.await_sender(k, Want::Room)?,
                Ok(Offer::NoSegment) => self.await_sender(k, Want::Segment)?,
                Err(e) => self.lose_sender(k, &e)?,
            }
        }
        let again = self.senders[k].unacknowledged() as u64;
        self.host.trace(What::SendBegun, self.replay.clock(), k as u32, again);
        self.senders[k].end_backlog(&self.unstored);
        Ok(())
    }

    fn attempts(&self) -> Attempts {
        let bound = if self.until_received { REPLACE_TIMEOUT } else { RECONNECT_TIMEOUT };
        Attempts { begun: self.host.now(), bound, pause: FIRST_PAUSE, count: 0 }
    }

    /// Waits until a sender has what is wanted, or has lost its stream.
    pub(super) fn await_sender(&mut self, k: usize, want: Want) -> Result<(), RankError> {
        let mut begun = self.host.now();
        let mut given = self.senders[k].given();
        loop {
            let (written, came) = match self.exchange(k) {
                Ok(step) => step,
                Err(e) => return self.lose_sender(k, &e),
            };
            let sender = &self.senders[k];
            let has = match want {
                Want::Greeting => sender.is_greeted(),
                Want::Written => written,
                Want::Room => came,
                Want::Segment => !sender.has_segment_request(),
                Want::AllAcknowledged => !sender.is_busy(),
                Want::Stored { clock, observed } => self.unstored.are_stored(clock, observed),
            };
            if has {
                return Ok(());
            }
            if came {
                continue;
            }
            if given != self.senders[k].given() {
                // A large message takes its time.
                (begun, given) = (self.host.now(), self.senders[k].given());
            }
            let waited = self.host.now().saturating_sub(begun);
            if waited > ANSWER_TIMEOUT {
                return Err(RankError::NoAnswer { router: k as u32, waited });
            }
            let unacknowledged = self.senders[k].unacknowledged() as u64;
            self.host.trace(What::Waits, self.replay.clock(), k as u32, unacknowledged);
            self.wait_for_sender(k, written, WAIT);
            self.look_at_directory();
            self.attach_meanwhile()?;
            if !self.progressing {
                // Whoever holds this sender back may wait for an image of this very rank.
                H::image_point(self);
            }
        }
    }

    /// Gives a stream what it takes, and takes what has come over it: whether everything was given,
    /// and whether something came.
    fn exchange(&mut self, k: usize) -> io::Result<(bool, bool)> {
        let written = self.senders[k].write()?;
        Ok((written, self.senders[k].receive(&mut self.unstored)?))
    }

    /// Waits until something may have come over a stream, or, where not everything is `written`, it
    /// takes more.
    fn wait_for_sender(&mut self, k: usize, written: bool, timeout: Duration) {
        let interest = if written { Interest::Read } else { Interest::Write };
        if let Some(stream) = self.senders[k].stream() {
            self.host.wait(stream, interest, timeout);
        }
    }

    // Progress.

    /// Connects to the home router, so that others' messages are taken from the start.
    ///
    /// # Errors
    /// When it cannot be reached, or the determinants do not fit.
    pub fn attach(&mut self) -> Result<(), RankError> {
        if !self.delivery.is_connected() && !self.is_replaying_alone() {
            self.connect_delivery(self.is_live())?;
            self.tell_if_replayed();
        }
        Ok(())
    }

    /// What has become visible at the present clock, when nothing more does.
    pub(super) fn now(&self) -> Determinant {
        Determinant { clock: self.replay.clock(), rsn: self.delivery.rsn() }
    }

    /// Whether this rank does not re-execute, has all that it ever received and has observed again
    /// all that it ever observed, between two progress calls. An image of it then needs no router
    /// for any of that.
    pub(super) fn is_live(&self) -> bool {
        let observed =
            active(Mutation::ForgetWhatToObserve) || self.again.is_over(self.host.observed());
        let over = self.replay.is_over() && self.delivery.has_all() && observed;
        self.followed && (over || active(Mutation::HideReplay))
    }

    /// The home router may have been replaced while this rank waits to send: others wait until the
    /// new one has heard what this rank has. One attempt.
    fn attach_meanwhile(&mut self) -> Result<(), RankError> {
        if self.until_received
            && self.followed
            && !self.delivery.is_connected()
            && !self.is_replaying_alone()
            && self.try_delivery(self.is_live())?.is_ok()
        {
            self.tell_if_replayed();
        }
        Ok(())
    }

    /// Connects the delivery stream behind what has been shown. The first one of an incarnation
    /// brings the determinants that are to be followed; later those in hand go on, the router's
    /// copy of them is the same. `live`: the rank does not re-execute.
    fn connect_delivery(&mut self, live: bool) -> Result<(), RankError> {
        let router = self.host.home(self.number);
        let mut attempts = self.attempts();
        while let Err(e) = self.try_delivery(live)? {
            attempts.failed(&mut self.host, router, e)?;
            self.look_at_directory();
        }
        Ok(())
    }

    fn try_delivery(&mut self, live: bool) -> Result<Result<(), ConnectError>, RankError> {
        let (router, clock) = (self.host.home(self.number), self.replay.clock());
        match self.host.connect(router, data::StreamKind::Delivery) {
            Ok(stream) => self.delivery.begin(stream, clock, live),
            Err(e) => return Ok(Err(e)),
        }
        let Some(script) = self.await_script(router)? else {
            return Ok(Err(ConnectError::Unreachable(ErrorKind::ConnectionReset.into())));
        };
        self.host.trace(What::DeliveryBegun, clock, router, self.delivery.rsn());
        if !self.followed {
            self.followed = true;
            let Script { determinants, observed } = script;
            let count = determinants.len() as u32;
            let last = determinants.last().map_or(0, |d| d.clock);
            self.replay.load(determinants, self.delivery.rsn()).map_err(RankError::Determinants)?;
            self.observe_again(observed);
            self.host.trace(What::Replay, clock, count, last);
        }
        Ok(Ok(()))
    }

    /// Tells the router when this rank re-executes no more: it depends no longer on what that
    /// router alone has.
    pub(super) fn tell_if_replayed(&mut self) {
        let told = self.delivery.has_told_replayed() || !self.delivery.is_connected();
        if !told && self.replay.is_over() && self.delivery.has_all() {
            self.tell_replayed();
        }
    }

    /// What is to be replayed; `None` when the stream was lost before it had come.
    fn await_script(&mut self, router: u32) -> Result<Option<Script>, RankError> {
        let mut begun = self.host.now();
        loop {
            let step = match self.delivery.take_script() {
                Ok(Some(script)) => return Ok(Some(script)),
                Ok(None) => self.delivery.receive(true),
                Err(e) => Err(e),
            };
            match step {
                // A long log takes its time.
                Ok(true) => begun = self.host.now(),
                Ok(false) => {}
                Err(e) => {
                    self.delivery.disconnect();
                    refused(&e)?;
                    return Ok(None);
                }
            }
            let waited = self.host.now().saturating_sub(begun);
            if waited > ANSWER_TIMEOUT {
                return Err(RankError::NoAnswer { router, waited });
            }
            self.look_at_directory();
        }
    }

    fn tell_replayed(&mut self) {
        self.host.trace(What::Replayed, self.replay.clock(), 0, self.delivery.rsn());
        // A lost notice only delays the report: it is told again after a reconnection.
        let _ = self.delivery.tell_replayed();
    }

    /// A progress call: the clock ticks, messages become visible as far as this clock allows.
    ///
    /// # Errors
    /// When a router cannot be reached or does not answer, or the log cannot be read.
    pub fn progress(
        &mut self,
        untold: Untold,
        mut done: impl FnMut(Event),
    ) -> Result<(), RankError> {
        self.progressing = true;
        let result = self.advance(untold, &mut done);
        self.progressing = false;
        result
    }

    /// The signal that the program gets at the end of this progress call: when it re-executes, what
    /// it got there before.
    #[inline]
    pub fn signal(&mut self) -> Option<i32> {
        self.host.signal(self.replay.clock(), self.replay.is_over())
    }

    fn advance(&mut self, untold: Untold, done: &mut impl FnMut(Event)) -> Result<(), RankError> {
        self.seen = self.now();
        self.look_at_directory();
        self.attach()?;
        let steps_aside = self.aside.steps();
        let turn = self.replay.tick();
        if let Turn::Free = turn {
            self.host.before_new();
        }
        self.end_observed();
        match turn {
            Turn::Nothing => Ok(()),
            Turn::Free if steps_aside => Ok(()),
            Turn::UpTo { rsn, last } => self.show_again(rsn, last, done),
            Turn::Free => match untold {
                Untold::Nothing => self.show_new(done),
                Untold::Misses => Ok(()),
                Untold::Completions => {
                    self.asking.found();
                    Ok(())
                }
            },
        }
    }

    fn show_new(&mut self, done: &mut impl FnMut(Event)) -> Result<(), RankError> {
        let before = self.delivery.rsn();
        let (ticks, host) = (self.host.ticks(), &self.host);
        let sleep = self.asking.begin(ticks, || host.processor_time_ns());
        let mut told = Ok(());
        if sleep {
            self.send_determinants()?;
            told = self.delivery.tell_received();
        }
        let came = told.and_then(|()| self.delivery.receive(sleep));
        let nothing = !matches!(came, Ok(true));
        let mut answer = None;
        let shown = match came {
            Ok(_) if self.delivery.is_all_shown() => Ok(()),
            Ok(_) => self.show(u64::MAX, &mut answer, done)?,
            Err(e) => Err(e),
        };
        if let Err(e) = shown {
            self.lose_delivery(&e)?;
        }
        let rsn = self.delivery.rsn();
        if rsn > before {
            self.unstored.push(Determinant { clock: self.replay.clock(), rsn });
            self.asking.found();
        }
        if self.until_received {
            self.seen = self.now();
            self.keep_home_informed()?;
        }
        self.answer(answer)?;
        let now = self.host.ticks();
        self.host.polled(self.asking.end(now, nothing));
        if !nothing {
            self.send_much_observed()?;
        } else if now.wrapping_sub(self.last_look) > LOOK_GAP {
            self.last_look = now;
            self.send_much_observed()?;
            self.look_after_senders()?;
        }
        Ok(())
    }

    /// Shows what was shown at this clock before; waits for it.
    fn show_again(
        &mut self,
        rsn: u64,
        last: bool,
        done: &mut impl FnMut(Event),
    ) -> Result<(), RankError> {
        let mut begun = self.host.now();
        let mut answer = None;
        loop {
            let shown = self.show(rsn, &mut answer, done)?;
            if self.delivery.rsn() == rsn {
                break;
            }
            match shown.and_then(|()| self.delivery.receive(true)) {
                // A large message takes its time.
                Ok(true) => begun = self.host.now(),
                Ok(false) if self.delivery.is_alone() => {
                    // It was not all: only the router can have it, or say that it has not.
                    self.delivery.disconnect();
                    self.attach()?;
                }
                Ok(false) => {}
                Err(e) => {
                    self.lose_delivery(&e)?;
                    self.attach()?;
                }
            }
            self.look_at_directory();
            let waited = self.host.now().saturating_sub(begun);
            if waited > REPLAY_TIMEOUT {
                let router = self.host.home(self.number);
                let rsn = self.delivery.rsn() + 1;
                return Err(RankError::NoReplay { router, rsn, waited });
            }
        }
        if last {
            self.tell_if_replayed();
        }
        self.seen = self.now();
        self.answer(answer)
    }

    pub(super) fn lose_delivery(&mut self, e: &io::Error) -> Result<(), RankError> {
        let (router, code) = (self.host.home(self.number), e.raw_os_error().unwrap_or(0));
        self.host.trace(What::DeliveryLost, self.replay.clock(), router, code as u64);
        self.drop_delivery();
        refused(e)
    }

    /// Shows messages that have been read, up to `up_to`, or up to a request that is answered with
    /// content: no later message may change what it reads before the answer is sent.
    fn show(
        &mut self,
        up_to: u64,
        answer: &mut Option<ToAnswer>,
        done: &mut impl FnMut(Event),
    ) -> Result<io::Result<()>, RankError> {
        let mut view = View {
            host: &mut self.host,
            matching: &mut self.matching,
            regions: &self.regions,
            requests: &mut self.requests,
            owed: &mut self.owed,
            clock: self.replay.clock(),
        };
        self.delivery.show(up_to, |deliver, payload| {
            *answer = view.take(deliver, payload, done)?;
            Ok(answer.is_none())
        })
    }

    /// Answers the requests that were applied in this call: `answer`, and one for all of each other
    /// rank. What became visible in this call has its determinant by now.
    fn answer(&mut self, answer: Option<ToAnswer>) -> Result<(), RankError> {
        if let Some(ToAnswer { source, request, error, content }) = answer {
            self.owed.remove(&source);
            let envelope = Envelope::Answer { request, error };
            match content {
                Answer::Nothing => self.send(source, envelope, &[])?,
                Answer::Before(bytes) => self.send(source, envelope, &bytes)?,
                Answer::Memory { at, len } => {
                    // SAFETY: within a region of this process; nothing writes to it during the
                    // call.
                    let bytes = unsafe { std::slice::from_raw_parts(at, len) };
                    self.send(source, envelope, bytes)?;
                }
            }
        }
        while let Some((source, request)) = self.owed.pop_first() {
            self.send(source, Envelope::Answer { request, error: 0 }, &[])?;
        }
        Ok(())
    }

    // Streams of a rank that waits.

    /// Finds out whether a router has closed a stream with messages on it that it never
    /// acknowledged, and sends them again: what the rank waits for may be the answer to one of
    /// them, and nothing else would notice.
    fn look_after_senders(&mut self) -> Result<(), RankError> {
        for k in 0..self.senders.len() {
            if !self.senders[k].is_busy() {
                continue;
            }
            if self.senders[k].stream().is_some() {
                match self.senders[k].receive(&mut self.unstored) {
                    Ok(_) => continue,
                    Err(e) => self.lose_sender(k, &e)?,
                }
            }
            self.write_sender(k)?;
        }
        Ok(())
    }

    pub(super) fn send_determinants(&mut self) -> Result<(), RankError> {
        self.cut_observed();
        if self.unstored.is_empty() {
            return Ok(());
        }
        let k = self.host.home(self.number) as usize;
        self.ready_sender(k)?;
        self.senders[k].offer_determinants(&self.unstored);
        self.write_sender(k)
    }

    /// Waits until everything sent is safe, as far as receivers receive it in time.
    ///
    /// # Errors
    /// When a router cannot be reached or does not answer.
    pub fn flush(&mut self) -> Result<(), RankError> {
        self.host.before_new();
        if let Err(e) = self.delivery.tell_received() {
            self.lose_delivery(&e)?;
        }
        for k in 0..self.senders.len() {
            while self.senders[k].is_busy() {
                self.ready_sender(k)?;
                if self.senders[k].is_busy() {
                    self.senders[k].offer_flush(&self.unstored);
                    self.await_sender(k, Want::AllAcknowledged)?;
                }
            }
        }
        Ok(())
    }

    // Images.

    /// Whether an image taken now would hold all that it needs: waits shortly for payloads on their
    /// way to a router.
    pub fn settled(&mut self, timeout: Duration) -> bool {
        // What is lost with the stream is told again by the next one.
        let _ = self.delivery.tell_received();
        self.cut_observed();
        let end = self.host.now() + timeout;
        for k in 0..self.senders.len() {
            while self.senders[k].names_segments() {
                self.senders[k].ask_about_segments(&self.unstored);
                let left = end.saturating_sub(self.host.now());
                match self.exchange(k) {
                    Ok((_, true)) => {}
                    Ok((written, false)) if !left.is_zero() => {
                        self.wait_for_sender(k, written, left);
                    }
                    _ => return false,
                }
            }
        }
        true
    }

    /// All descriptors of the streams.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        self.delivery.descriptors().chain(self.senders.iter().flat_map(Sender::descriptors))
    }

    /// This process has come back from an image: all connections are gone.
    pub fn forget_connections(&mut self) {
        self.followed = false;
        self.delivery.disconnect();
        self.senders.iter_mut().for_each(Sender::disconnect);
    }

    /// A restored rank connects at once, because the program may compute for long before it asks
    /// for a message: until then it could not be imaged, and others may wait for what it has sent.
    ///
    /// # Errors
    /// When a router cannot be reached or does not let it in.
    pub fn reconnect(&mut self) -> Result<(), RankError> {
        self.attach()?;
        self.look_after_senders()
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
struct View<'a, H: Host> {
    host: &'a mut H,
    matching: &'a mut Matching,
    regions: &'a Regions,
    requests: &'a mut Requests,
    owed: &'a mut BTreeMap<Rank, u64>,
    clock: u64,
}

impl<H: Host> View<'_, H> {
    fn take(
        &mut self,
        deliver: &Deliver,
        payload: &Payload<'_, H::File>,
        done: &mut impl FnMut(Event),
    ) -> Result<Option<ToAnswer>, RankError> {
        self.host.trace(What::Shown, self.clock, deliver.source, deliver.rsn);
        let (source, len) = (deliver.source, deliver.size as usize);
        let unreadable = |e: io::Error| RankError::Content(e.to_string());
        let matched = match deliver.envelope {
            Envelope::Untagged { data } => Matched { source, tagged: false, tag: 0, data, len },
            Envelope::Tagged { tag, data } => Matched { source, tagged: true, tag, data, len },
            Envelope::Answer { request, error } => {
                let report = |over| done(Event::Done(over));
                let answered = self.requests.answered(source, request, error, payload, len, report);
                return answered.map(|()| None).map_err(unreadable);
            }
            Envelope::Write { request, .. }
            | Envelope::Read { request, .. }
            | Envelope::Atomic { request, .. } => {
                // SAFETY: regions are memory that the MPI library has registered, and it leaves the
                // memory to the provider during its calls.
                let applied = unsafe { self.regions.apply(&deliver.envelope, payload, len) };
                return Ok(match applied.map_err(unreadable)? {
                    Applied::Done => {
                        self.owed.insert(source, request);
                        None
                    }
                    Applied::Answer { error, content } => {
                        Some(ToAnswer { source, request, error, content })
                    }
                });
            }
        };
        if let Some(completion) = self.matching.arrive(matched, payload).map_err(unreadable)? {
            done(Event::Received(completion));
        }
        Ok(None)
    }
}

/// A router's refusal is final.
fn refused(e: &io::Error) -> Result<(), RankError> {
    match e.kind() {
        ErrorKind::ConnectionRefused if e.get_ref().is_some() => {
            Err(RankError::Refused(e.to_string()))
        }
        _ => Ok(()),
    }
}

/// Attempts to connect to a router.
struct Attempts {
    begun: Duration,
    bound: Duration,
    pause: Duration,
    count: u32,
}

impl Attempts {
    /// One has failed: pauses before the next, unless there is no point in one.
    fn failed<H: Host>(
        &mut self,
        host: &mut H,
        router: u32,
        e: ConnectError,
    ) -> Result<(), RankError> {
        let cause = match e {
            ConnectError::Refused(reason) => return Err(RankError::Refused(reason)),
            ConnectError::Secret => return Err(RankError::Secret { router }),
            ConnectError::Unreachable(e) => e,
        };
        let waited = host.now().saturating_sub(self.begun);
        if waited > self.bound {
            return Err(RankError::OutOfReach { router, waited, cause: cause.to_string() });
        }
        host.pause(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.count += 1;
        Ok(())
    }
}

/// What an image of this rank would hold, to be continued with another host: for tests.
#[cfg(test)]
impl<H: Host> RankCore<H> {
    pub fn image(&self) -> impl Fn(H) -> RankCore<H> {
        let (number, matching, regions) =
            (self.number, self.matching.clone(), self.regions.clone());
        let (requests, owed, replay) =
            (self.requests.clone(), self.owed.clone(), self.replay.clone());
        let (delivery, senders) = (self.delivery.clone(), self.senders.clone());
        let (unstored, ssn, aside) = (self.unstored.clone(), self.ssn.clone(), self.aside);
        let until_received = self.until_received;
        move |host| RankCore {
            host,
            number,
            matching: matching.clone(),
            regions: regions.clone(),
            requests: requests.clone(),
            owed: owed.clone(),
            replay: replay.clone(),
            delivery: delivery.clone(),
            senders: senders.clone(),
            unstored: unstored.clone(),
            again: Again::default(),
            until_received,
            followed: false,
            seen: Determinant { clock: 0, rsn: 0 },
            ssn: ssn.clone(),
            progressing: false,
            aside,
            asking: Asking::default(),
            last_look: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Aside;

    #[test]
    fn the_first_call_after_a_message_steps_aside_but_never_two_in_a_row() {
        let mut aside = Aside::default();
        let mut calls = |sends: &[bool]| -> Vec<bool> {
            let mut call = |sent: &bool| {
                if *sent {
                    aside.sent();
                }
                aside.steps()
            };
            sends.iter().map(&mut call).collect()
        };
        assert_eq!(calls(&[false, true, false, false]), [false, true, false, false]);
        // A program that sends before every call still sees what comes.
        assert_eq!(calls(&[true; 5]), [true, false, true, false, true]);
    }
}
