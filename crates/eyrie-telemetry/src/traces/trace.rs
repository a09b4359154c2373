//! A trace as it is put together: plain data. Times are seconds of the job.

use opentelemetry::{Key, KeyValue, Value};
use std::borrow::Cow;

/// Most spans and moments of a trace: a move may go on for long.
const MOST: usize = 64;

/// What has happened to something, from its beginning to its end.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    pub name: &'static str,
    pub start: f64,
    pub end: f64,
    pub attributes: Vec<KeyValue>,
    /// Why it did not come to its end.
    pub error: Option<String>,
    pub course: Course,
}

/// What has happened on the way.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Course {
    pub phases: Vec<Phase>,
    pub moments: Vec<Moment>,
}

/// A part of it that takes time.
#[derive(Clone, PartialEq, Debug)]
pub struct Phase {
    pub name: Cow<'static, str>,
    pub start: f64,
    pub end: f64,
    pub attributes: Vec<KeyValue>,
}

/// Something that happened meanwhile.
#[derive(Clone, PartialEq, Debug)]
pub struct Moment {
    pub name: &'static str,
    pub at: f64,
    pub text: String,
}

impl Course {
    /// One more phase. Of a long course only the first ones are kept.
    pub fn phase(&mut self, phase: Phase) {
        if self.phases.len() < MOST {
            self.phases.push(phase);
        }
    }

    /// One more moment, too.
    pub fn moment(&mut self, name: &'static str, at: f64, text: impl Into<String>) {
        if self.moments.len() < MOST {
            self.moments.push(Moment { name, at, text: text.into() });
        }
    }

    /// Phases that follow each other from `start` on, each with how long it took. Those that took
    /// no time are left out. Returns the end of the last one.
    pub fn follow(&mut self, start: f64, phases: &[(&'static str, f64)]) -> f64 {
        phases.iter().fold(start, |start, (name, took)| {
            let end = start + took;
            if *took > 0.0 {
                let name = Cow::from(*name);
                self.phase(Phase { name, start, end, attributes: vec![] });
            }
            end
        })
    }
}

/// An attribute.
pub fn attribute(name: &'static str, value: impl Into<Value>) -> KeyValue {
    KeyValue::new(Key::from_static_str(name), value)
}

/// A number as an attribute.
pub fn number(name: &'static str, value: impl TryInto<i64>) -> KeyValue {
    attribute(name, value.try_into().unwrap_or(i64::MAX))
}
