//! A node that follows a conductor: it asks for the conductor's time after a sample (never between
//! samples), estimates the drift of its own clock, and either uses that clock or waits for ticks.
//! While ticks stay out it uses its own clock, too. It must never wait for another node for longer
//! than three intervals.

use super::drift::{Drift, Exchange};
use super::moment::{Mode, Moment};
use super::wire::{Datagram, Key, Kind, SIZE};
use crate::clock::Clock;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::AsFd;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// How long to wait for the first answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Exchanges before the first sample.
const FIRST: usize = 8;

pub struct Follower {
    mode: Mode,
    socket: UdpSocket,
    key: Key,
    drift: Drift,
    /// The agreed start, and the difference from the conductor's clock to the time since 1970.
    start: u64,
    wall_offset: u64,
    /// The last moment, by the conductor's clock.
    last: Option<u64>,
    number: u64,
    /// A tick has stayed out, and nothing has come from the conductor since.
    alone: bool,
}

impl Follower {
    /// Agrees with the conductor.
    ///
    /// # Errors
    /// When it does not answer, or has another interval.
    pub fn join(
        mode: Mode,
        interval_ns: u64,
        with: SocketAddr,
        key: Key,
    ) -> Result<Follower, String> {
        let local = if with.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(local)
            .and_then(|s| s.connect(with).map(|()| s))
            .and_then(|s| s.set_read_timeout(Some(Duration::from_millis(200))).map(|()| s))
            .map_err(|e| format!("cannot reach {with}: {e}"))?;
        let drift = Drift::default();
        let mut follower = Follower {
            mode,
            socket,
            key,
            drift,
            start: 0,
            wall_offset: 0,
            last: None,
            number: 0,
            alone: false,
        };
        let begin = Instant::now();
        let mut answers = 0;
        while answers < FIRST {
            if begin.elapsed() > PATIENCE {
                return Err(format!(
                    "{with} has not answered for {} s: is `eyrie monitor conduct` running there, \
                     with the same secret?",
                    PATIENCE.as_secs()
                ));
            }
            follower.ask();
            let mut bytes = [0; SIZE + 1];
            let Ok(read) = follower.socket.recv(&mut bytes) else { continue };
            let Some(datagram) = follower.take(&bytes[..read]) else { continue };
            if datagram.kind != Kind::Answer {
                continue;
            }
            if datagram.interval != interval_ns {
                return Err(format!(
                    "{with} keeps an interval of {} ms: say --interval {}ms here too",
                    datagram.interval as f64 / 1e6,
                    datagram.interval as f64 / 1e6
                ));
            }
            (follower.start, follower.wall_offset) = (datagram.start, datagram.wall_offset);
            answers += 1;
        }
        follower.socket.set_nonblocking(true).map_err(|e| format!("{with}: {e}"))?;
        Ok(follower)
    }

    fn ask(&mut self) {
        self.number += 1;
        let datagram = Datagram {
            kind: Kind::Ask,
            wants_ticks: self.mode == Mode::Always,
            number: self.number,
            sent: Clock::Monotonic.now_ns(),
            received: 0,
            answered: 0,
            start: 0,
            interval: 0,
            wall_offset: 0,
        };
        // If it is lost, the next one will arrive.
        let _ = self.socket.send(&datagram.encode(&self.key));
    }

    /// Handles a datagram; `None` when it is not from the conductor.
    fn take(&mut self, bytes: &[u8]) -> Option<Datagram> {
        let returned = Clock::Monotonic.now_ns();
        let datagram = Datagram::decode(bytes, &self.key)?;
        self.alone = false;
        if datagram.kind == Kind::Answer && datagram.number == self.number {
            let Datagram { sent, received, answered, .. } = datagram;
            self.drift.add(Exchange { sent, received, answered, returned });
        }
        Some(datagram)
    }

    pub fn wait(&mut self, interval_ns: u64, stretch: u32) -> Moment {
        match self.mode {
            Mode::Always if !self.alone => self.wait_for_tick(interval_ns, stretch),
            _ => self.wait_by_own_clock(interval_ns, stretch),
        }
    }

    /// Asks once, and handles the answer if it comes soon: an exchange of some tens of
    /// microseconds, right after a sample, so that it disturbs no other moment.
    fn exchange(&mut self) {
        self.ask();
        let mut bytes = [0; SIZE + 1];
        if readable(&self.socket, 1_000_000) {
            while let Ok(read) = self.socket.recv(&mut bytes) {
                self.take(&bytes[..read]);
            }
        }
    }

    fn wait_by_own_clock(&mut self, interval_ns: u64, stretch: u32) -> Moment {
        self.exchange();
        let gap = interval_ns * u64::from(stretch);
        let now =
            self.drift.theirs(Clock::Monotonic.now_ns()).unwrap_or(self.start).max(self.start);
        let theirs = self.start + ((now - self.start) / gap + 1) * gap;
        let intended = self.drift.ours(theirs).unwrap_or(theirs);
        Clock::Monotonic.sleep_until(intended);
        let skew_ns = Clock::Monotonic.now_ns() as i64 - intended as i64;
        self.moment(theirs, skew_ns, interval_ns, self.alone)
    }

    fn wait_for_tick(&mut self, interval_ns: u64, stretch: u32) -> Moment {
        // Then the conductor knows that this follower lives, and the follower the conductor's
        // clock.
        self.exchange();
        let gap = interval_ns * u64::from(stretch);
        let until = Clock::Monotonic.now_ns() + 3 * gap;
        let mut bytes = [0; SIZE + 1];
        loop {
            let now = Clock::Monotonic.now_ns();
            if now >= until || !readable(&self.socket, until - now) {
                self.alone = true;
                let theirs = self.drift.theirs(Clock::Monotonic.now_ns()).unwrap_or(self.start);
                return self.moment(theirs, 0, interval_ns, true);
            }
            while let Ok(read) = self.socket.recv(&mut bytes) {
                let arrived = Clock::Monotonic.now_ns();
                let Some(tick) = self.take(&bytes[..read]).filter(|d| d.kind == Kind::Tick) else {
                    continue;
                };
                // A delayed old tick is no moment to sample at. Of the ticks in a stretch only the
                // last one is.
                let due =
                    self.last.is_none_or(|last| tick.answered >= last + gap - interval_ns / 2);
                let intended = self.drift.ours(tick.answered).unwrap_or(arrived);
                if due && arrived.saturating_sub(intended) < interval_ns {
                    return self.moment(
                        tick.answered,
                        arrived as i64 - intended as i64,
                        interval_ns,
                        false,
                    );
                }
            }
        }
    }

    /// `theirs` is the intended moment by the conductor's clock.
    fn moment(&mut self, theirs: u64, skew_ns: i64, interval_ns: u64, alone: bool) -> Moment {
        let gone = self.last.map_or(interval_ns, |last| theirs.saturating_sub(last));
        let step = ((gone + interval_ns / 2) / interval_ns).clamp(1, u32::MAX.into()) as u32;
        self.last = Some(theirs);
        Moment { intended_ns: theirs.saturating_add(self.wall_offset), skew_ns, step, alone }
    }
}

/// Waits until there is something to read, for at most `ns` nanoseconds.
fn readable(socket: &UdpSocket, ns: u64) -> bool {
    let limit =
        Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0)
}
