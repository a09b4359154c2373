//! The time of a job and that of this process. Events have the seconds since the job began, which
//! stand still while it has no controller; monitoring systems want the time of day, and ages.

use std::time::{Duration, Instant, SystemTime};

/// How the two go together, as far as events have shown it.
#[derive(Clone, Copy, Debug)]
pub struct JobTime {
    begun: Instant,
    /// Seconds of this process at the job's beginning, which may lie before its own. What has just
    /// happened comes at once: so the event that came soonest knows it best.
    zero: Option<f64>,
}

impl JobTime {
    pub fn new() -> JobTime {
        JobTime { begun: Instant::now(), zero: None }
    }

    /// An event of this time has come.
    pub fn hear(&mut self, time: f64) {
        self.came(time, self.now());
    }

    fn came(&mut self, time: f64, now: f64) {
        let zero = now - time;
        self.zero = Some(self.zero.map_or(zero, |known| known.min(zero)));
    }

    /// Seconds of this process.
    fn now(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// How many seconds ago that was.
    pub fn age(&self, time: f64) -> f64 {
        self.age_at(time, self.now())
    }

    fn age_at(&self, time: f64, now: f64) -> f64 {
        self.zero.map_or(0.0, |zero| (now - zero - time).max(0.0))
    }

    /// The times of day that times of the job were.
    pub fn of_day(&self) -> impl Fn(f64) -> SystemTime {
        let (known, now, day) = (*self, self.now(), SystemTime::now());
        move |time| {
            let age = Duration::try_from_secs_f64(known.age_at(time, now)).unwrap_or_default();
            day.checked_sub(age).unwrap_or(day)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_that_came_soonest_says_how_old_others_are() {
        let mut time = JobTime::new();
        assert_eq!(time.age_at(5.0, 9.0), 0.0, "nothing is known");
        // Another controller has written it, long ago.
        time.came(5.0, 0.5);
        time.came(6.0, 0.5);
        // This one comes at once.
        time.came(10.0, 1.0);
        time.came(11.0, 2.25);
        assert_eq!(time.age_at(10.0, 2.0), 1.0);
        assert_eq!(time.age_at(5.0, 2.0), 6.0);
        assert_eq!(time.age_at(12.0, 2.0), 0.0);
    }
}
