//! What is to be done when the connection to the controller of another domain ends. Until there was
//! a line to that domain the job cannot be there, and ends. From then on the connection means
//! nothing: the controller may have died, and is resumed, or only the connection has. It must never
//! end a job that goes on by the lines.

use eyrie_controller::runtime::{LineIs, Stop};
use eyrie_host::shell::SSH_FAILED;
use std::time::Duration;

/// What the shell that ssh starts ends with when there is no such command or directory.
const NOT_FOUND: [i32; 2] = [126, 127];
/// How long after the end of a connection the job may end by what the domain has told: when the
/// controller has ended well, with an error, and when it was not started or has died.
const GRACE: Duration = Duration::from_secs(15);
const GRACE_OF_ERROR: Duration = Duration::from_secs(5);
const GRACE_OF_NONE: Duration = Duration::from_secs(1);
/// How long after a controller was found alive it is asked again whether one is to be resumed, and
/// how long at most after none was reached.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// A controller that has run for so long was not brought back in vain.
const RUNS: Duration = Duration::from_secs(60);
/// How often in a row it may refuse to be resumed until the job ends, and how often it may die
/// until it is left alone.
const MAX_REFUSALS: u32 = 4;
const MAX_DEATHS: u32 = 8;
/// How long a domain may be reached neither by ssh nor by a line.
const MAX_UNREACHED: Duration = Duration::from_secs(3600);

/// The domain of a controller, and where it was started.
#[derive(Debug)]
pub struct Place {
    pub name: String,
    pub destination: String,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Do {
    /// Say this to the user.
    Say(String),
    /// Resume the controller, if it has died.
    Resume,
    /// End the job.
    Stop(Stop),
}

/// What becomes of a connection.
#[derive(Debug)]
enum State {
    /// It stands since then.
    Connected { since: Duration },
    /// It has ended; the controller is to be resumed then.
    Ended { resume_at: Duration },
    /// The job is to end then.
    Stops { at: Duration, why: Stop },
    /// Nothing more is done.
    LeftAlone,
}

/// The controller of a domain, as `eyrie run` sees it. Times are since the start of that.
#[derive(Debug)]
pub struct Watch {
    place: Place,
    /// `eyrie resume` and its arguments, as the user would type it there.
    resume: String,
    state: State,
    /// Whether there is a line to the domain, and since when; none: there was none yet.
    line: Option<(bool, Duration)>,
    /// The code of the first end.
    code: i32,
    /// In a row: how often it was refused to resume it, how often it has died while there was a
    /// line, and how often ssh has failed or it has died.
    refusals: u32,
    deaths: u32,
    failed: u32,
}

impl Watch {
    /// The controller was just started.
    pub fn new(place: Place, resume: String, now: Duration) -> Watch {
        let state = State::Connected { since: now };
        let none = None;
        Watch { place, resume, state, line: none, code: 0, refusals: 0, deaths: 0, failed: 0 }
    }

    pub fn name(&self) -> &str {
        &self.place.name
    }

    /// The line to the domain has changed. One that has ended is not brought back.
    pub fn line(&mut self, line: LineIs, now: Duration) {
        if matches!(line, LineIs::Over | LineIs::Never) {
            self.state = State::LeftAlone;
            return;
        }
        let up = line == LineIs::Up;
        // It was started after all: what has ended is the connection to it.
        if up && self.line.is_none() && matches!(self.state, State::Stops { .. }) {
            self.state = State::Ended { resume_at: now + ASK_AGAIN };
        }
        if self.line.is_none_or(|(was_up, _)| was_up != up) {
            self.line = Some((up, now));
        }
    }

    /// What was started for the domain runs.
    pub fn connected(&mut self, now: Duration) {
        self.state = State::Connected { since: now };
    }

    /// It has ended with this code.
    pub fn ended(&mut self, code: i32, now: Duration) -> Option<Do> {
        let State::Connected { since } = self.state else { return None };
        if self.line.is_none() {
            let (within, why) = self.not_started(code);
            self.state = State::Stops { at: now + within, why };
            return None;
        }
        if code == 0 || now >= since + RUNS {
            (self.refusals, self.deaths, self.failed) = (0, 0, 0);
        }
        let is_first = self.code == 0 && code != 0;
        if is_first {
            self.code = code;
        }
        let pause = match code {
            // It runs, or has ended well.
            0 => ASK_AGAIN,
            SSH_FAILED => {
                self.deaths += u32::from(self.line.is_some_and(|(up, _)| up));
                self.failed += 1;
                ASK_AGAIN.min(GRACE_OF_NONE * 2u32.pow(self.failed.min(7) - 1))
            }
            _ => {
                self.refusals += 1;
                GRACE_OF_ERROR
            }
        };
        self.state = State::Ended { resume_at: now + pause };
        let Place { name, destination } = &self.place;
        if self.refusals >= MAX_REFUSALS {
            let cause = format!(
                "domain {name}: its controller at {destination} has ended with code {} and cannot \
                 be resumed",
                self.code
            );
            let code = if self.code == SSH_FAILED { 1 } else { self.code.max(1) };
            let why = Stop { code, cause };
            self.state = State::Stops { at: now, why };
            return None;
        }
        if self.deaths >= MAX_DEATHS {
            self.state = State::LeftAlone;
            return Some(Do::Say(format!(
                "domain {name}: ssh to {destination} fails, or the controller there dies again and \
                 again. The job goes on without this connection. If the controller has died, go on \
                 there by `{}`",
                self.resume
            )));
        }
        is_first.then(|| {
            Do::Say(format!(
                "domain {name}: the connection to its controller at {destination} has ended with \
                 code {code}. The job goes on; if the controller has died, it is resumed"
            ))
        })
    }

    /// Nothing more is done. Whether something was to be done until now, for a domain that is
    /// there.
    pub fn leave_alone(&mut self) -> bool {
        let before = std::mem::replace(&mut self.state, State::LeftAlone);
        self.line.is_some() && !matches!(before, State::LeftAlone)
    }

    /// What is due.
    pub fn look(&mut self, now: Duration) -> Option<Do> {
        match &self.state {
            State::Ended { resume_at } if *resume_at <= now => {
                let down = self.line.filter(|(up, _)| !up);
                if down.is_some_and(|(_, since)| now >= since + MAX_UNREACHED) {
                    return Some(self.give_up());
                }
                Some(Do::Resume)
            }
            State::Stops { at, why } if *at <= now => {
                let why = why.clone();
                self.state = State::LeftAlone;
                Some(Do::Stop(why))
            }
            _ => None,
        }
    }

    fn give_up(&mut self) -> Do {
        self.state = State::LeftAlone;
        let Place { name, destination } = &self.place;
        let waited = eyrie_units::time(MAX_UNREACHED);
        let cause = format!(
            "domain {name}: for {waited} there was no line to it, and ssh does not reach {destination}"
        );
        Do::Stop(Stop { code: 1, cause })
    }

    /// Why the job ends when what was started has ended with this code, and after how long.
    fn not_started(&self, code: i32) -> (Duration, Stop) {
        let Place { name, destination } = &self.place;
        let stop =
            |text: String| Stop { code: code.max(1), cause: format!("domain {name}: {text}") };
        match code {
            SSH_FAILED => {
                let text = format!(
                    "its controller at {destination} has died or cannot be reached: `ssh -o \
                     BatchMode=yes {destination} true` must work, with a key without a question"
                );
                (GRACE_OF_NONE, Stop { code: 1, ..stop(text) })
            }
            code if NOT_FOUND.contains(&code) => {
                let text = format!(
                    "its controller was not started at {destination}: the same Eyrie must be there, \
                     or be named by --agent-path, and the directory in which this command runs"
                );
                (GRACE_OF_NONE, stop(text))
            }
            0 => (GRACE, stop("its controller has ended before the job".into())),
            _ => (GRACE_OF_ERROR, stop(format!("its controller has ended with code {code}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn watch() -> Watch {
        let place = Place { name: "cloud".into(), destination: "me@login".into() };
        Watch::new(place, "eyrie resume job".into(), s(0))
    }

    fn stop(done: Option<Do>) -> Stop {
        let Some(Do::Stop(stop)) = done else { panic!("{done:?}") };
        stop
    }

    #[test]
    fn without_a_line_the_end_of_the_connection_ends_the_job() {
        let mut watch = watch();
        assert_eq!(watch.ended(255, s(3)), None);
        assert_eq!(watch.look(s(3)), None, "it may have told why");
        let Stop { code, cause } = stop(watch.look(s(4)));
        let begin = "domain cloud: its controller at me@login has died or cannot";
        assert!(code == 1 && cause.starts_with(begin), "{cause}");
        assert_eq!(watch.look(s(99)), None, "it is told once");
    }

    #[test]
    fn a_line_that_comes_when_the_connection_has_just_ended_shows_that_it_was_started() {
        let mut watch = watch();
        assert_eq!(watch.ended(255, s(3)), None);
        watch.line(LineIs::Up, s(3));
        assert_eq!(watch.look(s(3) + ASK_AGAIN), Some(Do::Resume));
    }

    #[test]
    fn with_a_line_a_controller_is_resumed_that_has_died() {
        let mut watch = watch();
        watch.line(LineIs::Up, s(1));
        let Some(Do::Say(text)) = watch.ended(255, s(50)) else { panic!("it is not said") };
        assert!(text.contains("cloud") && text.contains("code 255"), "{text}");
        assert_eq!((watch.look(s(50)), watch.look(s(51))), (None, Some(Do::Resume)));
        watch.connected(s(51));
        assert_eq!(watch.look(s(200)), None);
        // The one that was resumed has died as well, much later.
        assert_eq!(watch.ended(255, s(200)), None, "it was said before");
        assert_eq!(watch.look(s(201)), Some(Do::Resume));
    }

    #[test]
    fn a_controller_that_runs_is_asked_for_again_and_nothing_is_said() {
        let mut watch = watch();
        watch.line(LineIs::Up, s(1));
        watch.ended(255, s(100));
        let mut now = s(100);
        for _ in 0..100 {
            now += ASK_AGAIN;
            assert_eq!(watch.look(now), Some(Do::Resume));
            watch.connected(now);
            assert_eq!(watch.ended(0, now), None);
        }
    }

    #[test]
    fn one_that_dies_again_and_again_is_left_alone_and_the_job_goes_on() {
        let mut watch = watch();
        watch.line(LineIs::Up, s(1));
        let mut now = s(5);
        let mut said = Vec::new();
        for _ in 0..MAX_DEATHS {
            said.extend(watch.ended(255, now));
            now += ASK_AGAIN;
            if watch.look(now) == Some(Do::Resume) {
                watch.connected(now);
            }
        }
        let Some(Do::Say(last)) = said.last() else { panic!("{said:?}") };
        assert!(said.len() == 2 && last.contains("`eyrie resume job`"), "{said:?}");
        assert_eq!(watch.look(now + s(100_000)), None);
    }

    #[test]
    fn a_domain_that_is_gone_ends_the_job() {
        let mut watch = watch();
        watch.line(LineIs::Up, s(1));
        let mut now = s(100);
        watch.ended(3, now);
        for _ in 1..MAX_REFUSALS {
            now += ASK_AGAIN;
            assert_eq!(watch.look(now), Some(Do::Resume));
            watch.connected(now);
            assert_eq!(watch.ended(1, now), None);
        }
        let Stop { code, cause } = stop(watch.look(now));
        assert!(code == 3 && cause.contains("ended with code 3 and cannot be resumed"), "{cause}");
    }

    #[test]
    fn one_that_is_out_of_reach_is_waited_for_for_an_hour() {
        let mut watch = watch();
        watch.line(LineIs::Up, s(1));
        watch.line(LineIs::Down, s(100));
        watch.ended(255, s(110));
        let mut now = s(110);
        while now < s(100) + MAX_UNREACHED - ASK_AGAIN {
            now += ASK_AGAIN;
            assert_eq!(watch.look(now), Some(Do::Resume), "{now:?}");
            watch.connected(now);
            watch.ended(255, now + s(30));
            now += s(30);
        }
        let Stop { code, cause } = stop(watch.look(now + ASK_AGAIN * 2));
        assert!(code == 1 && cause.contains("no line to it"), "{cause}");
    }

    #[test]
    fn what_has_died_when_the_job_has_ended_is_seen_to_once() {
        let mut watch = watch();
        watch.line(LineIs::Up, s(1));
        watch.ended(255, s(50));
        assert!(watch.leave_alone() && !watch.leave_alone());
        let mut never = self::watch();
        never.ended(255, s(3));
        assert!(!never.leave_alone(), "it was not started");
    }

    #[test]
    fn a_domain_that_all_ranks_have_left_is_left_alone() {
        let mut watch = watch();
        watch.line(LineIs::Up, s(1));
        watch.line(LineIs::Over, s(100));
        assert_eq!((watch.ended(0, s(101)), watch.look(s(5000))), (None, None));
    }
}
