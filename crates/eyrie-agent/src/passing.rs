//! Passes the output of ranks to the controller, and standard input to a rank.

use crate::node::Agent;
use eyrie_wire::control::{FromAgent, RankReport, StandardStream};
use eyrie_wire::RankInstance;

impl Agent {
    pub fn pass_output(&mut self, instance: RankInstance, beyond_window: bool) {
        let Some(p) = self.processes.get_mut(&instance) else { return };
        let dead = p.ending.is_some();
        for (stream, output) in
            [(StandardStream::Stdout, &mut p.stdout), (StandardStream::Stderr, &mut p.stderr)]
        {
            for (offset, bytes) in output.take(beyond_window, dead) {
                self.connection.send(&FromAgent::Output { instance, stream, offset, bytes });
            }
        }
    }

    pub fn pass_input(&mut self, instance: RankInstance) {
        let Some(input) = self.processes.get_mut(&instance).and_then(|p| p.stdin.as_mut()) else {
            return;
        };
        if input.push() {
            let offset = input.wanted_from();
            self.connection.report(instance, RankReport::StdinWanted { offset });
        }
    }
}
