//! A model of a bulk-synchronous job on nodes that are sampled: every node works for a grain of
//! time, then all wait for the last. A sample (an interruption) uses a node's processor for a
//! while. Pure; the same seed gives the same figures.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A job and how it is sampled. Times are in seconds.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    pub nodes: usize,
    /// Work of each node between two synchronizations.
    pub grain: f64,
    pub interval: f64,
    /// Measured costs of samples; each interruption has one of them at random.
    pub costs: &'a [f64],
    /// Measured skews from the common moment; each interruption has one of them at random. `None`:
    /// each node has a moment of its own.
    pub skews: Option<&'a [f64]>,
}

/// The time of the job with samples divided by that without, over this many intervals.
pub fn slowdown(job: &Job, intervals: usize, seed: u64) -> f64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let phases: Vec<f64> = match job.skews {
        Some(_) => vec![0.0; job.nodes],
        None => (0..job.nodes).map(|_| rng.gen_range(0.0..job.interval)).collect(),
    };
    // The first interruption can come at the end of the first interval.
    let begin = job.interval;
    let mut run = Run {
        now: begin,
        end: begin,
        loops: 0.0,
        grain: job.grain,
        delayed: Vec::new(),
        place: vec![None; job.nodes],
    };
    let mut interruptions: Vec<Interruption> = Vec::with_capacity(job.nodes);
    for number in 1..=intervals {
        interruptions.clear();
        for (node, phase) in phases.iter().enumerate() {
            let skew = job.skews.map_or(0.0, |skews| skews[rng.gen_range(0..skews.len())]);
            let at = number as f64 * job.interval + phase + skew;
            interruptions.push(Interruption {
                at,
                length: job.costs[rng.gen_range(0..job.costs.len())],
                node,
            });
        }
        interruptions.sort_by(|a, b| a.at.total_cmp(&b.at));
        for interruption in &interruptions {
            run.take(*interruption);
        }
    }
    run.advance((intervals + 1) as f64 * job.interval);
    run.finish();
    (run.now - begin) / (run.loops * job.grain)
}

#[derive(Clone, Copy, Debug)]
struct Interruption {
    at: f64,
    length: f64,
    node: usize,
}

struct Run {
    /// Beginning of the current loop: the last synchronization.
    now: f64,
    /// The end of the current loop, as known so far.
    end: f64,
    loops: f64,
    grain: f64,
    /// The nodes that were delayed in the current loop, and for each node its index among them.
    delayed: Vec<Delayed>,
    place: Vec<Option<usize>>,
}

/// A node that was delayed in the current loop, and when its work will be done.
#[derive(Clone, Copy, Debug)]
struct Delayed {
    node: usize,
    /// When its processor will be free of interruptions.
    free: f64,
    done: f64,
}

impl Run {
    /// Handles the next interruption in order of time.
    fn take(&mut self, interruption: Interruption) {
        self.advance(interruption.at);
        let at = *self.place[interruption.node].get_or_insert_with(|| {
            self.delayed.push(Delayed {
                node: interruption.node,
                free: self.now,
                done: self.now + self.grain,
            });
            self.delayed.len() - 1
        });
        let node = &mut self.delayed[at];
        let begin = interruption.at.max(node.free);
        node.free = begin + interruption.length;
        // Work that is done is not delayed, but the processor is busy.
        if begin < node.done {
            node.done += interruption.length;
        }
        self.end = self.end.max(node.done);
    }

    /// Ends the loops up to the moment `at`.
    fn advance(&mut self, at: f64) {
        loop {
            self.end = self.end.max(self.now + self.grain);
            if self.delayed.is_empty() {
                // No node is delayed: loops follow each other undisturbed.
                let whole = ((at - self.now) / self.grain).floor().max(0.0);
                self.loops += whole;
                self.now += whole * self.grain;
                self.end = self.now + self.grain;
                return;
            }
            if self.end > at {
                return;
            }
            self.next_loop();
        }
    }

    fn next_loop(&mut self) {
        self.now = self.end;
        self.loops += 1.0;
        self.end = self.now + self.grain;
        for node in &self.delayed {
            self.place[node.node] = None;
        }
        // An interruption that lasts longer delays the next loop's work as well.
        self.delayed.retain(|d| d.free > self.now);
        for (at, node) in self.delayed.iter_mut().enumerate() {
            self.place[node.node] = Some(at);
            node.done = node.free + self.grain;
            self.end = self.end.max(node.done);
        }
    }

    fn finish(&mut self) {
        while !self.delayed.is_empty() {
            self.next_loop();
        }
    }
}

/// The paper's closed form: each sample of each node delays all. Delay = loops × sampling time ×
/// samples per second × time of a loop × nodes (Kamoshida and Taura 2010, section 2), as a factor.
pub fn closed_form(nodes: usize, cost: f64, interval: f64) -> f64 {
    1.0 + nodes as f64 * cost / interval
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job<'a>(nodes: usize, costs: &'a [f64], skews: Option<&'a [f64]>) -> Job<'a> {
        Job { nodes, grain: 100e-6, interval: 0.5, costs, skews }
    }

    #[test]
    fn without_samples_nothing_is_slower() {
        assert!((slowdown(&job(64, &[0.0], None), 20, 1) - 1.0).abs() < 1e-3);
    }

    #[test]
    fn one_node_loses_what_its_samples_take() {
        let model = slowdown(&job(1, &[0.05], None), 200, 1);
        assert!((model - 1.0 / 0.9).abs() < 0.005, "{model}");
    }

    #[test]
    fn few_short_interruptions_follow_the_closed_form() {
        for (nodes, cost) in [(16, 1e-3), (64, 2e-4), (256, 20e-6)] {
            let model = slowdown(&job(nodes, &[cost], None), 400, 1);
            let closed = closed_form(nodes, cost, 0.5);
            assert!(
                ((model - 1.0) / (closed - 1.0) - 1.0).abs() < 0.12,
                "{nodes} nodes: {model} and {closed}"
            );
        }
    }

    #[test]
    fn in_step_interruptions_cost_little_more_than_one() {
        let skews: Vec<f64> = (0..100).map(|i| i as f64 * 50e-6 / 100.0).collect();
        let model = slowdown(&job(4096, &[130e-6], Some(&skews)), 100, 1);
        assert!((1.0002..1.0010).contains(&model), "{model}");
        let without = slowdown(&job(4096, &[130e-6], None), 20, 1);
        assert!(without > 1.5, "{without}");
    }

    #[test]
    fn with_too_many_interruptions_each_loop_lasts_one() {
        // Some node is always interrupted, so that each loop waits for an interruption: grain
        // 100 µs, interruption 17 ms.
        let model = slowdown(&job(4096, &[17e-3], None), 20, 1);
        assert!((150.0..200.0).contains(&model), "{model}");
    }

    #[test]
    fn the_same_seed_gives_the_same_figure() {
        let once = || slowdown(&job(100, &[1e-3, 2e-3], None), 20, 7);
        assert_eq!(once(), once());
    }
}
