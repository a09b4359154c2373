//! Metrics as OpenMetrics. The text is valid whatever the labels hold: users may choose names.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
pub use prometheus_client::registry::Unit;
use std::borrow::Cow;
use std::fmt;

/// The content type of the text.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub const SECONDS: Unit = Unit::Seconds;
pub const BYTES: Unit = Unit::Bytes;

/// Something that has metrics.
pub trait Source: fmt::Debug + Send + Sync + 'static {
    /// Writes them all.
    ///
    /// # Errors
    /// Those of `out`.
    fn write(&self, out: &mut Out) -> fmt::Result;
}

#[derive(Debug)]
struct Collected<S>(S);

impl<S: Source> Collector for Collected<S> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.0.write(&mut Out(&mut encoder))
    }
}

/// All metrics of a source as text, each with these labels besides its own.
///
/// # Errors
/// Those of formatting; none are known.
pub fn encode<'l>(
    source: impl Source,
    labels: impl IntoIterator<Item = (&'static str, &'l str)>,
) -> Result<String, fmt::Error> {
    let labels = labels.into_iter();
    let labels = labels.map(|(name, value)| (Cow::from(name), Cow::from(label_value(value))));
    let mut registry = Registry::with_labels(labels);
    registry.register_collector(Box::new(Collected(source)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// The output, one family of metrics after the other: each entry is its labels and its value.
pub struct Out<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Out<'_, '_> {
    fn family<L: EncodeLabelSet>(
        &mut self,
        (name, help, unit, kind): (&str, &str, Option<&Unit>, MetricType),
        entries: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, unit, kind)?;
        for (labels, value) in entries {
            put(encoder.encode_family(&labels)?, kind, value)?;
        }
        Ok(())
    }

    fn single(
        &mut self,
        (name, help, unit, kind): (&str, &str, Option<&Unit>, MetricType),
        value: f64,
    ) -> fmt::Result {
        put(self.0.encode_descriptor(name, help, unit, kind)?, kind, value)
    }

    /// Counters with labels; `_total` is added to their name.
    ///
    /// # Errors
    /// Those of formatting; none are known. So of all below.
    pub fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        all: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        self.family((name, help, unit, MetricType::Counter), all)
    }

    /// Gauges with labels.
    #[allow(clippy::missing_errors_doc)]
    pub fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        all: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        self.family((name, help, unit, MetricType::Gauge), all)
    }

    /// A counter without labels.
    #[allow(clippy::missing_errors_doc)]
    pub fn counter(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: f64,
    ) -> fmt::Result {
        self.single((name, help, unit, MetricType::Counter), value)
    }

    /// A gauge without labels.
    #[allow(clippy::missing_errors_doc)]
    pub fn gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: f64,
    ) -> fmt::Result {
        self.single((name, help, unit, MetricType::Gauge), value)
    }

    /// A histogram of values in seconds. `buckets`: upper bounds, each with how many values are not
    /// above it but above the one before; the last bound is [`f64::MAX`].
    #[allow(clippy::missing_errors_doc)]
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        sum: f64,
        buckets: &[(f64, u64)],
    ) -> fmt::Result {
        let kind = MetricType::Histogram;
        let mut encoder = self.0.encode_descriptor(name, help, Some(&SECONDS), kind)?;
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(sum, count, buckets, None)
    }
}

fn put(mut encoder: MetricEncoder, kind: MetricType, value: f64) -> fmt::Result {
    match kind {
        MetricType::Counter => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
        _ => encoder.encode_gauge(&value),
    }
}

/// One label, or several.
pub type Labels<const N: usize> = [(&'static str, String); N];

/// A label with its value.
pub fn label(name: &'static str, value: &str) -> Labels<1> {
    [(name, label_value(value))]
}

/// Labels with their values.
pub fn labels<const N: usize>(all: [(&'static str, &str); N]) -> Labels<N> {
    all.map(|(name, value)| (name, label_value(value)))
}

/// A value between quotes, which prometheus_client writes unchanged. Control characters other than
/// the end of a line are valid, but do not belong on a terminal.
fn label_value(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => value += "\\\\",
            '"' => value += "\\\"",
            '\n' => value += "\\n",
            c if c.is_control() => value.push('?'),
            c => value.push(c),
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_ends_where_it_should() {
        for (text, value) in [
            ("solver é", "solver é"),
            ("quo\"te\\", "quo\\\"te\\\\"),
            ("new\nline", "new\\nline"),
            ("\u{1b}[31m\t\r", "?[31m??"),
        ] {
            assert_eq!(label_value(text), value);
        }
    }

    #[derive(Debug)]
    struct One;

    impl Source for One {
        fn write(&self, out: &mut Out) -> fmt::Result {
            out.counters("c", "Counted", None, [(labels([("a", "1"), ("b", "x\"y")]), 2.0)])?;
            out.histogram("h", "Times", 3.5, &[(1.0, 1), (f64::MAX, 2)])
        }
    }

    #[test]
    fn each_metric_has_the_labels_of_all_and_its_own() {
        let text = encode(One, [("job_name", "a\nb")]).unwrap();
        assert!(text.contains("c_total{job_name=\"a\\nb\",a=\"1\",b=\"x\\\"y\"} 2"), "{text}");
        for line in [
            "h_seconds_sum{job_name=\"a\\nb\"} 3.5",
            "h_seconds_count{job_name=\"a\\nb\"} 3",
            "h_seconds_bucket{job_name=\"a\\nb\",le=\"1.0\"} 1",
            "h_seconds_bucket{job_name=\"a\\nb\",le=\"+Inf\"} 3",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
