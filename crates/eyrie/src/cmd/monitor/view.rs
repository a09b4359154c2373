//! Who is shown the samples of this node: a table, lines, or a file of JSON.

use super::{plain, table};
use anyhow::Context;
use eyrie_cli::out;
use eyrie_monitor::json;
use eyrie_monitor::ring::Frame;
use eyrie_monitor::shared::{lock, Shared};
use eyrie_monitor::watch::view::{NodeView, Rates, Seen};
use eyrie_monitor::watch::{Viewer, Watch};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

pub struct View {
    shared: Arc<Shared>,
    kind: Kind,
    rates: Rates,
}

enum Kind {
    Table(table::Table),
    Lines,
    Json(Box<dyn Write + Send>),
    /// Prometheus is shown them.
    Nothing,
}

impl View {
    pub fn new(
        watch: &Watch,
        output: Option<Box<dyn Write + Send>>,
        live: bool,
    ) -> anyhow::Result<View> {
        let kind = match output {
            Some(output) => Kind::Json(output),
            None if live => Kind::Table(table::Table::open()?),
            None if watch.scraped_at.is_some() => Kind::Nothing,
            None => Kind::Lines,
        };
        Ok(View { shared: watch.shared.clone(), kind, rates: Rates::default() })
    }
}

/// The sample with its rates since the one before.
fn node(shared: &Shared, rates: &mut Rates, frame: &Frame) -> NodeView {
    lock(&shared.names).update(&frame.processes);
    rates.take(0, Seen::of_frame(&shared.node, frame, &lock(&shared.names)))
}

impl Viewer for View {
    fn until_next(&mut self, wait: Duration) -> anyhow::Result<bool> {
        match &mut self.kind {
            Kind::Table(table) => Ok(!table.keys(wait)?),
            _ => Ok(true),
        }
    }

    fn show(&mut self, frame: &Frame) -> anyhow::Result<()> {
        let shared = &self.shared;
        match &mut self.kind {
            Kind::Table(table) => {
                let node = node(shared, &mut self.rates, frame);
                table.show(vec![node], &lock(&shared.health))
            }
            Kind::Lines => out::line(plain::line(&node(shared, &mut self.rates, frame))),
            Kind::Json(output) => {
                lock(&shared.names).update(&frame.processes);
                let names = lock(&shared.names);
                let line = json::line(&shared.node, frame, &shared.started.accuracy, Some(&names));
                writeln!(output, "{line}")
                    .and_then(|()| output.flush())
                    .context("cannot write samples")
            }
            Kind::Nothing => Ok(()),
        }
    }

    fn is_live(&self) -> bool {
        matches!(self.kind, Kind::Table(_))
    }
}
