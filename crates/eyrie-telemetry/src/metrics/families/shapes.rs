//! Forms that several metrics have.

use super::super::histogram::Histogram;
use eyrie_exporter::text::Out;
use std::fmt;

/// A histogram of durations.
pub fn durations(out: &mut Out, name: &str, help: &str, all: &Histogram) -> fmt::Result {
    out.histogram(name, help, all.sum(), &all.buckets())
}

/// How many there are of each, those that there may be first.
pub fn tally<'a>(
    may_be: &[&'a str],
    there_are: impl IntoIterator<Item = &'a str>,
) -> Vec<(&'a str, f64)> {
    let mut all: Vec<(&str, f64)> = may_be.iter().map(|name| (*name, 0.0)).collect();
    for name in there_are {
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1.0,
            None => all.push((name, 1.0)),
        }
    }
    all
}
