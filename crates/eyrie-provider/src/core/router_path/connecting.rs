//! The connections of a rank: its delivery stream, and other routers in the place of lost ones. A
//! rank follows a new directory, and goes on without its router where it has all that it needs.

use super::delivery::Script;
use super::host::{ConnectError, Host};
use super::send_stream::Sender;
use super::{refused, RouterPath};
use crate::core::again::behind;
use crate::core::error::RankError;
use crate::core::mutation::{active, Mutation};
use eyrie_wire::data::{self, Determinant, ObservedPart};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::page::What;
use eyrie_wire::RouterId;
use std::io::{self, ErrorKind};
use std::time::Duration;

/// How long a router may be out of reach; and how long where another one may replace it, because a
/// host that is powered off is not declared dead at once.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
const REPLACE_TIMEOUT: Duration = Duration::from_secs(180);
/// How long a router may take to answer.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// The pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

impl<H: Host> RouterPath<H> {
    /// Connects to the primary router, so that messages of others are received from the start.
    ///
    /// # Errors
    /// When it cannot be reached, or the determinants do not fit.
    pub(super) fn connect(&mut self) -> Result<(), RankError> {
        if !self.followed {
            // The rank may go on among other routers than those that its image knows.
            self.reroute();
        }
        if !self.delivery.is_connected() && !self.is_replaying_alone() {
            self.connect_delivery(self.is_live())?;
            self.report_if_replayed();
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

    /// The primary router may have been replaced while this rank waits to send. Other ranks wait
    /// until the new router knows what this rank has. One attempt.
    pub(super) fn attach_meanwhile(&mut self) -> Result<(), RankError> {
        if self.kept_until == KeptUntil::Received
            && self.followed
            && !self.delivery.is_connected()
            && !self.is_replaying_alone()
            && self.try_delivery(self.is_live())?.is_ok()
        {
            self.report_if_replayed();
        }
        Ok(())
    }

    /// Connects the delivery stream behind what has been shown. The first one of an incarnation
    /// brings the determinants that are to be followed; later those in hand go on, the router's
    /// copy of them is the same. `live`: the rank does not re-execute.
    fn connect_delivery(&mut self, live: bool) -> Result<(), RankError> {
        let router = self.host.primary_router(self.number);
        let mut attempts = self.attempts(router);
        while let Err(e) = self.try_delivery(live)? {
            attempts.failed(&mut self.host, router, e)?;
            self.look_at_directory();
        }
        Ok(())
    }

    fn try_delivery(&mut self, live: bool) -> Result<Result<(), ConnectError>, RankError> {
        let router = self.host.primary_router(self.number);
        let clock = self.replay.clock();
        match self.host.connect(router, data::StreamKind::Delivery) {
            Ok(stream) => self.delivery.begin(stream, clock, live),
            Err(e) => return Ok(Err(e)),
        }
        let Some(script) = self.await_script(router)? else {
            return Ok(Err(ConnectError::Unreachable(ErrorKind::ConnectionReset.into())));
        };
        self.host.trace(What::DeliveryBegun, clock, router.0, self.delivery.rsn());
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
    pub(super) fn report_if_replayed(&mut self) {
        let is_owed = !self.delivery.has_reported_replayed() && self.delivery.is_connected();
        if is_owed && self.replay.is_over() && self.delivery.has_all() {
            self.report_replayed();
        }
    }

    /// What is to be replayed; `None` when the stream was lost before it had come.
    fn await_script(&mut self, router: RouterId) -> Result<Option<Script>, RankError> {
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

    fn report_replayed(&mut self) {
        self.host.trace(What::Replayed, self.replay.clock(), 0, self.delivery.rsn());
        // A lost notice only delays the report: it is sent again after a reconnection.
        let _ = self.delivery.report_replayed();
    }

    pub(super) fn lose_delivery(&mut self, e: &io::Error) -> Result<(), RankError> {
        let router = self.host.primary_router(self.number);
        let code = e.raw_os_error().unwrap_or(0);
        self.host.trace(What::DeliveryLost, self.replay.clock(), router.0, code as u64);
        self.drop_delivery();
        refused(e)
    }

    pub(super) fn attempts(&self, router: RouterId) -> Attempts {
        let bound = match self.kept_until {
            // Its host may be away for hours, while the controller says so: what the domain
            // computes without it must not be lost.
            _ if self.host.is_gateway(router) => Duration::MAX,
            KeptUntil::Logged => RECONNECT_TIMEOUT,
            KeptUntil::Received => REPLACE_TIMEOUT,
        };
        Attempts { begun: self.host.now(), bound, pause: FIRST_PAUSE, count: 0 }
    }

    /// These are to be observed again.
    pub(super) fn observe_again(&mut self, parts: Vec<ObservedPart>) {
        let (bytes, again) = behind(self.host.observed(), parts);
        self.again = again;
        self.host.observe_again(bytes);
    }

    /// Leaves routers that were replaced, also those that died without closing their connections.
    /// Tells their successors at once what this rank had seen when it last spoke with the lost
    /// ones.
    pub(super) fn look_at_directory(&mut self) {
        let changed = self.host.changed_routers();
        for router in changed.iter().copied() {
            if self.kept_until == KeptUntil::Received && !active(Mutation::ForgetWhatWasSeen) {
                self.unstored.push_no_delivery(self.present());
            }
            let clock = self.replay.clock();
            self.host.trace(What::SendLost, clock, router.0, 0);
            self.senders[router.index()].replace();
            if router == self.host.primary_router(self.number) && !self.is_replaying_alone() {
                self.host.trace(What::DeliveryLost, clock, router.0, 0);
                self.drop_delivery();
            }
        }
        if !changed.is_empty() {
            self.reroute();
        }
    }

    /// Takes the directory as it is now: the streams are those to its routers, and what waits on
    /// one of them for a rank that another router serves by now goes to that one.
    pub(super) fn reroute(&mut self) {
        if self.kept_until == KeptUntil::Logged || active(Mutation::LeaveOnOldRoute) {
            // Routers serve the same ranks as long as the job lives.
            return;
        }
        let host = &self.host;
        let primary = |rank| host.primary_router(rank).index();
        let mut moved = Vec::new();
        for (k, sender) in self.senders.iter_mut().enumerate() {
            moved.extend(sender.take_misrouted(|destination| primary(destination) == k));
        }
        let ranks = self.sent.len() as u32;
        let own = primary(self.number);
        let kept_until = self.kept_until;
        let new = || Sender::new(ranks, kept_until, false);
        self.senders.resize_with(host.routers() as usize, new);
        for (k, sender) in self.senders.iter_mut().enumerate() {
            sender.set_primary(k == own);
        }
        for (destination, message) in moved {
            self.senders[primary(destination)].add_to_backlog(message);
        }
    }

    /// The delivery stream is lost. A rank that re-executes, and has read all that it needs for
    /// that, goes on without one until it is done: by then its router may be another one, which
    /// learns from it what it has.
    pub(super) fn drop_delivery(&mut self) {
        if self.can_replay_alone() && !self.delivery.is_alone() {
            self.delivery.go_on_alone()
        } else {
            self.delivery.disconnect()
        }
    }

    /// Whether a rank that re-executes does not need its primary router any more.
    fn can_replay_alone(&self) -> bool {
        self.followed && !self.is_live() && self.delivery.holds_all()
    }

    /// Whether the rank re-executes from what it has read, without a delivery stream.
    pub(super) fn is_replaying_alone(&self) -> bool {
        self.delivery.is_alone() && !self.is_live()
    }

    /// Whether it can go on when its primary router is lost: for tests.
    #[cfg(test)]
    pub fn can_lose_its_router(&self) -> bool {
        self.is_live() || self.can_replay_alone()
    }

    /// The messages that are visible up to now.
    pub(super) fn present(&self) -> Determinant {
        if self.progressing {
            self.seen
        } else {
            self.now()
        }
    }

    /// Whether a router's knowledge of this rank may be lost together with the rank, and so must be
    /// kept elsewhere. If the primary router is on the rank's own host, nothing can help.
    pub(super) fn dies_with(&self, k: usize) -> bool {
        let is_primary = self.host.primary_router(self.number).index() == k;
        self.kept_until == KeptUntil::Received
            && !is_primary
            && self.host.is_beside(RouterId(k as u32))
    }
}

/// Attempts to connect to a router.
pub(super) struct Attempts {
    begun: Duration,
    bound: Duration,
    pause: Duration,
    count: u32,
}

impl Attempts {
    /// One has failed: pauses before the next, unless there is no point in one.
    pub(super) fn failed<H: Host>(
        &mut self,
        host: &mut H,
        router: RouterId,
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
