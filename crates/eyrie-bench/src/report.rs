//! The results of a measurement: a table for people (Markdown, so that it can be kept) and JSON for
//! programs.

use crate::effort::Effort;
use crate::machine::Conditions;
use crate::plot::Chart;
use crate::statistics::Spread;
use serde_json::{json, Value};
use std::fmt;

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    pub title: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(title: &str, header: &[&str]) -> Table {
        let header = header.iter().map(|h| h.to_string()).collect();
        Table { title: title.into(), header, rows: Vec::new() }
    }
}

/// The results of one measurement.
pub struct Measured {
    pub tables: Vec<Table>,
    /// Notes for reading the tables.
    pub notes: Vec<String>,
    /// The same for programs, by table.
    pub data: Value,
    /// The figure, where the paper has one.
    pub chart: Option<Chart>,
}

/// The report of a run.
pub struct Report {
    name: &'static str,
    effort: Effort,
    measured: Measured,
    conditions: Conditions,
}

impl Report {
    pub(crate) fn new(
        name: &'static str,
        effort: Effort,
        measured: Measured,
        conditions: Conditions,
    ) -> Report {
        Report { name, effort, measured, conditions }
    }

    pub fn chart(&self) -> Option<&Chart> {
        self.measured.chart.as_ref()
    }

    pub fn json(&self) -> Value {
        json!({
            "bench": self.name,
            "rounds": self.effort.rounds,
            "quick": self.effort.quick,
            "machine": self.conditions,
            "results": self.measured.data,
        })
    }

    /// What makes the figures doubtful, if anything does.
    pub fn warning(&self) -> Option<String> {
        let c = &self.conditions;
        c.busy.then(|| {
            format!(
                "others kept {:.2} of {} cores busy meanwhile ({:.2} more were stolen by the \
                 host): these figures are noisy",
                c.others_cores, c.cores, c.stolen_cores
            )
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for table in &self.measured.tables {
            writeln!(f, "**{}**\n\n{table}", table.title)?;
        }
        for note in &self.measured.notes {
            writeln!(f, "- {note}")?;
        }
        let c = &self.conditions;
        writeln!(
            f,
            "- Medians of {} rounds in turn about, tenth to ninetieth percentile in parentheses{}.",
            self.effort.rounds,
            if self.effort.quick { "; --quick: too few and too short to rely on" } else { "" }
        )?;
        writeln!(
            f,
            "- {}, {} cores, {:.0} GiB, Linux {}; load average {:.2} before and {:.2} after {:.0} \
             s; other processes used {:.2} cores meanwhile.",
            c.cpu,
            c.cores,
            c.memory_gib,
            c.kernel,
            c.load_before,
            c.load_after,
            c.seconds,
            c.others_cores
        )?;
        match self.warning() {
            Some(warning) => writeln!(f, "- Beware: {warning}."),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&self.header]).filter_map(|r| r.get(column));
            cells.map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let line = |f: &mut fmt::Formatter, cells: &[String]| {
            for (cell, width) in cells.iter().zip(&widths) {
                write!(f, "| {cell:width$} ")?;
            }
            writeln!(f, "|")
        };
        line(f, &self.header)?;
        for width in &widths {
            write!(f, "|{}", "-".repeat(width + 2))?;
        }
        writeln!(f, "|")?;
        self.rows.iter().try_for_each(|row| line(f, row))
    }
}

/// A median with its spread, formatted by `unit`.
pub fn cell(spread: Option<Spread>, unit: impl Fn(f64) -> String) -> String {
    match spread {
        Some(s) if s.samples > 1 => {
            format!("{} ({} to {})", unit(s.median), unit(s.p10), unit(s.p90))
        }
        Some(s) => unit(s.median),
        None => "-".into(),
    }
}

/// A ratio as 1.25×.
pub fn times(ratio: f64) -> String {
    format!("{ratio:.2}×")
}

/// With three significant digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// By how much a ratio is above 1: +25.0 %.
pub fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_markdown_and_aligned() {
        let mut table = Table::new("t", &["a", "long"]);
        table.rows.push(vec!["1.20×".into(), "b".into()]);
        assert_eq!(table.to_string(), "| a     | long |\n|-------|------|\n| 1.20× | b    |\n");
    }

    #[test]
    fn numbers() {
        assert_eq!(percent(1.05), "+5.0 %");
        assert_eq!(digits(1234.4), "1234");
        let spread = Spread::of([1.0, 2.0, 3.0]);
        assert_eq!(cell(spread, digits), "2.00 (1.20 to 2.80)");
        assert_eq!(cell(None, digits), "-");
    }
}
