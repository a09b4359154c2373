//! The time of a job. A controller that goes on with a job goes on with its time, so that what is
//! heard again has the time that it had.

use std::time::{Duration, Instant};

/// The time of a job, since its start.
pub struct Clock {
    begun: Instant,
    /// When what is being handled was heard.
    time: Duration,
}

impl Clock {
    /// The job starts now.
    pub fn start() -> Clock {
        Clock { begun: Instant::now(), time: Duration::ZERO }
    }

    /// When what is being handled was heard.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// How long ago the job has started.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Something is heard now.
    pub fn read(&mut self) -> Duration {
        self.time = self.begun.elapsed();
        self.time
    }

    /// Something is heard again that was heard at this time.
    pub fn set(&mut self, time: Duration) {
        self.time = time;
    }

    /// Time goes on from when something was heard last.
    pub fn go_on(&mut self) {
        let now = Instant::now();
        self.begun = now.checked_sub(self.time).unwrap_or(now);
    }
}
