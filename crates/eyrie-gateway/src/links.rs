//! The connections that a line's courier needs, and the streams on its trunks: which of them stand,
//! and when the next ones are to be made. Decides nothing else. Nothing here may look at all of
//! them because time passes: there may be thousands.

use crate::courier::Link;
use crate::sockets::Token;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// The pauses between attempts to connect.
pub const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a courier needs: a trunk to the other gateway, or a stream of its own, which is a
/// connection to a router of this domain or is on a trunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Need {
    Trunk(usize),
    Stream(Link),
}

/// How it is with it.
#[derive(Clone, Copy)]
pub enum State {
    /// It is to be made from then on; with the pause until another attempt.
    Idle {
        from: Instant,
        pause: Duration,
    },
    Calling {
        pause: Duration,
    },
    Up(Token),
}

impl State {
    pub fn wanted(now: Instant) -> State {
        State::Idle { from: now, pause: FIRST_PAUSE }
    }

    pub fn lost() -> State {
        State::Idle { from: Instant::now() + FIRST_PAUSE, pause: FIRST_PAUSE }
    }

    pub fn failed(pause: Duration) -> State {
        State::Idle { from: Instant::now() + pause, pause: (pause * 2).min(LONGEST_PAUSE) }
    }

    pub fn token(self) -> Option<Token> {
        match self {
            State::Up(token) => Some(token),
            _ => None,
        }
    }

    /// The pause, if an attempt is due.
    pub fn due(self, now: Instant) -> Option<Duration> {
        match self {
            State::Idle { from, pause } if from <= now => Some(pause),
            _ => None,
        }
    }
}

/// All that a line's courier needs.
#[derive(Default)]
pub struct Links {
    all: FxHashMap<Need, State>,
    /// When the next attempt may be due; `None`: none before something changes.
    due: Option<Instant>,
}

impl Links {
    /// This is needed; how it is with it.
    pub fn want(&mut self, need: Need, now: Instant) -> State {
        match self.all.get(&need) {
            Some(state) => *state,
            None => {
                self.set(need, State::wanted(now));
                State::wanted(now)
            }
        }
    }

    pub fn set(&mut self, need: Need, state: State) {
        if let State::Idle { from, .. } = state {
            self.look_at(from);
        }
        self.all.insert(need, state);
    }

    pub fn get(&self, need: Need) -> Option<State> {
        self.all.get(&need).copied()
    }

    pub fn token(&self, need: Need) -> Option<Token> {
        self.get(need)?.token()
    }

    /// The connections of those that stand, of which `which` says so.
    pub fn tokens(&self, which: impl Fn(Need) -> bool) -> Vec<Token> {
        let needs = self.all.iter().filter(|(need, _)| which(**need));
        needs.filter_map(|(_, state)| state.token()).collect()
    }

    /// Attempts may be due then that were not before.
    pub fn look_at(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// When the next attempt may be due.
    pub fn next(&self) -> Option<Instant> {
        self.due
    }

    /// Gives `call` each that is to be made by now. True: it is being made. Otherwise it waits
    /// until something else changes.
    pub fn call(&mut self, now: Instant, mut call: impl FnMut(Need) -> bool) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        for (need, state) in &mut self.all {
            if let Some(pause) = state.due(now) {
                if call(*need) {
                    *state = State::Calling { pause };
                }
            } else if let State::Idle { from, .. } = *state {
                self.due = Some(self.due.map_or(from, |due| due.min(from)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::Rank;

    fn due(links: &mut Links, now: Instant) -> Vec<Need> {
        let mut called = Vec::new();
        links.call(now, |need| {
            called.push(need);
            true
        });
        called
    }

    #[test]
    fn each_is_called_when_it_is_due_and_none_is_looked_at_before() {
        let now = Instant::now();
        let [first, second] = [0, 1].map(Need::Trunk);
        let mut links = Links::default();
        links.want(first, now);
        assert_eq!(due(&mut links, now), [first]);
        assert!(links.next().is_none());
        links.set(first, State::failed(FIRST_PAUSE));
        links.set(second, State::lost());
        let next = links.next().unwrap();
        assert!(next > now && due(&mut links, next - FIRST_PAUSE / 2).is_empty());
        let later = next + LONGEST_PAUSE;
        assert_eq!(due(&mut links, later).len(), 2);
        links.set(first, State::Up(7));
        assert_eq!((links.token(first), links.next()), (Some(7), None));
    }

    #[test]
    fn what_is_not_called_waits_until_it_is_looked_at_again() {
        let now = Instant::now();
        let need = Need::Stream(Link::Fetch(Rank(0)));
        let mut links = Links::default();
        links.want(need, now);
        links.call(now, |_| false);
        assert!(links.next().is_none() && due(&mut links, now).is_empty());
        links.look_at(now);
        assert_eq!(due(&mut links, now), [need]);
    }
}
