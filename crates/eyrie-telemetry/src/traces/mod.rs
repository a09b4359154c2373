//! A trace for each recovery and each move of a rank, and for each move of a whole domain: what
//! happened to it, phase by phase. It is put together from events when it is over, and sent by a
//! thread of its own. Nothing here waits for a collector, and what it does not take is dropped.

mod client;
mod collector;
mod domain_moves;
mod export;
mod moves;
mod recoveries;
mod trace;

pub use collector::Collector;

use crate::follow::Event;
use crate::job_time::JobTime;
use crate::named::{Named, Say};
use domain_moves::DomainMoves;
use export::Exporter;
use moves::Moves;
use recoveries::Recoveries;
use std::time::Duration;

/// The traces of a job.
pub struct Traces {
    time: JobTime,
    recoveries: Recoveries,
    moves: Moves,
    domain_moves: DomainMoves,
    exporter: Exporter,
}

impl Traces {
    /// # Errors
    /// When variables of OpenTelemetry in the environment say what cannot be.
    pub fn begin(to: Collector, named: &Named, say: Say) -> anyhow::Result<Traces> {
        Ok(Traces {
            time: JobTime::new(),
            recoveries: Recoveries::default(),
            moves: Moves::default(),
            domain_moves: DomainMoves::default(),
            exporter: Exporter::begin(to, named, say)?,
        })
    }

    /// Takes an event.
    pub fn hear(&mut self, event: &Event) {
        let Event { time, record, is_new, .. } = event;
        self.time.hear(*time);
        // An event of an earlier controller may begin what ends now, but ends nothing.
        let over = [
            self.recoveries.hear(*time, record),
            self.moves.hear(*time, record),
            self.domain_moves.hear(*time, record),
        ];
        if *is_new {
            over.iter().flatten().for_each(|trace| self.exporter.send(trace, &self.time));
        }
    }

    /// Sends what is left, but for no longer than that.
    pub fn finish(self, within: Duration) {
        self.exporter.finish(within);
    }
}
