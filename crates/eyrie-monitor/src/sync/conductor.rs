//! The conductor: one process, best on a node where no job runs. It answers followers that ask for
//! its time and sends ticks to those that want them. It must never send to an address that has not
//! asked, nor keep more followers than it has room for.

use super::wire::{Datagram, Key, Kind, SIZE};
use crate::clock::{next_boundary, Clock};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::AsFd;
use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

const FOLLOWERS: usize = 65_536;
/// A follower that has not asked for this many intervals is removed. One that saves on its budget
/// asks every 64.
const FORGET: u64 = 4 * crate::budget::LONGEST_STRETCH as u64;

pub struct Conductor {
    socket: UdpSocket,
    key: Key,
    interval_ns: u64,
    start: u64,
    wall_offset: u64,
    /// The followers that want ticks, and when they last asked.
    followers: HashMap<SocketAddr, u64>,
}

impl Conductor {
    /// # Errors
    /// When the address is not available.
    pub fn new(listen: SocketAddr, interval_ns: u64, key: Key) -> Result<Conductor, String> {
        let socket =
            UdpSocket::bind(listen).map_err(|e| format!("cannot listen on {listen}: {e}"))?;
        socket.set_nonblocking(true).map_err(|e| format!("{listen}: {e}"))?;
        let wall = Clock::Realtime.now_ns();
        let start = Clock::Monotonic.now_ns();
        // Moments are multiples of the interval on the wall clock, too, as long as that is not set.
        let start = start - wall % interval_ns;
        let wall_offset = Clock::Realtime.now_ns() - Clock::Monotonic.now_ns();
        Ok(Conductor { socket, key, interval_ns, start, wall_offset, followers: HashMap::new() })
    }

    /// The address at which it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Conducts until `stop` is set, which is checked once in each interval. The calling thread
    /// should be steady ([`crate::clock::steady`]).
    pub fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let clock = Clock::Monotonic;
            let next = self.start + next_boundary(clock.now_ns() - self.start, self.interval_ns);
            self.answer_until(next);
            // The rest by an absolute sleep: a poll may end early.
            clock.sleep_until(next);
            self.tick(next);
        }
    }

    fn datagram(&self, kind: Kind) -> Datagram {
        Datagram {
            kind,
            wants_ticks: false,
            number: 0,
            sent: 0,
            received: 0,
            answered: 0,
            start: self.start,
            interval: self.interval_ns,
            wall_offset: self.wall_offset,
        }
    }

    fn answer_until(&mut self, until: u64) {
        loop {
            let left = until.saturating_sub(Clock::Monotonic.now_ns());
            if left < 100_000 {
                return;
            }
            let left = left - 100_000;
            let limit = Timespec {
                tv_sec: (left / 1_000_000_000) as i64,
                tv_nsec: (left % 1_000_000_000) as i64,
            };
            let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
            if poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0) {
                self.answer();
            }
        }
    }

    fn answer(&mut self) {
        let mut bytes = [0; SIZE + 1];
        while let Ok((read, from)) = self.socket.recv_from(&mut bytes) {
            let received = Clock::Monotonic.now_ns();
            let Some(ask) =
                Datagram::decode(&bytes[..read], &self.key).filter(|d| d.kind == Kind::Ask)
            else {
                continue;
            };
            if ask.wants_ticks
                && (self.followers.len() < FOLLOWERS || self.followers.contains_key(&from))
            {
                self.followers.insert(from, received);
            }
            let mut answer = self.datagram(Kind::Answer);
            (answer.number, answer.sent, answer.received) = (ask.number, ask.sent, received);
            answer.answered = Clock::Monotonic.now_ns();
            let _ = self.socket.send_to(&answer.encode(&self.key), from);
        }
    }

    fn tick(&mut self, moment: u64) {
        let mut tick = self.datagram(Kind::Tick);
        (tick.number, tick.answered) = ((moment - self.start) / self.interval_ns, moment);
        let bytes = tick.encode(&self.key);
        for follower in self.followers.keys() {
            let _ = self.socket.send_to(&bytes, follower);
        }
        let oldest = moment.saturating_sub(FORGET * self.interval_ns);
        self.followers.retain(|_, asked| *asked >= oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Mode, Pace};
    use super::*;

    const INTERVAL: u64 = 20_000_000;

    /// Runs `with` while a conductor runs.
    fn conducted(with: impl FnOnce(SocketAddr)) {
        let mut conductor =
            Conductor::new("127.0.0.1:0".parse().unwrap(), INTERVAL, Key::from_secret(b"s"))
                .unwrap();
        let address = conductor.address().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| conductor.run(&stop));
            with(address);
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn followers_sample_at_the_same_moments() {
        conducted(|address| {
            let take = |mode| {
                let key = Key::from_secret(b"s");
                let mut pace = Pace::new(mode, INTERVAL, Some(address), &key).unwrap();
                (0..5).map(|_| pace.wait(INTERVAL, 1)).collect::<Vec<_>>()
            };
            let (once, always) = std::thread::scope(|s| {
                let once = s.spawn(|| take(Mode::Once));
                let always = s.spawn(|| take(Mode::Always));
                (once.join().unwrap(), always.join().unwrap())
            });
            let phase = once[0].intended_ns % INTERVAL;
            for moment in once.iter().chain(&always) {
                assert_eq!(moment.intended_ns % INTERVAL, phase, "all moments are on one grid");
                assert!(!moment.alone);
            }
            assert!(once.windows(2).all(|w| w[1].intended_ns > w[0].intended_ns));
        });
    }

    #[test]
    fn strangers_get_no_answer() {
        conducted(|address| {
            let wrong = Pace::new(Mode::Once, INTERVAL * 2, Some(address), &Key::from_secret(b"s"));
            assert!(wrong.err().unwrap().contains("interval of 20 ms"));
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
            socket.send_to(&[0; SIZE], address).unwrap();
            socket.send_to(b"x", address).unwrap();
            assert!(socket.recv(&mut [0; 100]).is_err());
        });
    }

    #[test]
    fn a_follower_whose_conductor_dies_goes_on_alone() {
        let mut pace = None;
        conducted(|address| {
            pace = Some(
                Pace::new(Mode::Always, INTERVAL, Some(address), &Key::from_secret(b"s")).unwrap(),
            );
        });
        let mut pace = pace.unwrap();
        // A tick may still be in the socket.
        let moments: Vec<_> = (0..5).map(|_| pace.wait(INTERVAL, 1)).collect();
        assert!(moments.iter().filter(|m| m.alone).count() >= 4);
        // By its own clock, on the grid that was agreed; the first one comes when it has waited.
        let phase = moments[3].intended_ns % INTERVAL;
        assert_eq!(moments[4].intended_ns % INTERVAL, phase);
        assert_eq!(
            moments[4].intended_ns - moments[3].intended_ns,
            INTERVAL * u64::from(moments[4].step)
        );
    }
}
