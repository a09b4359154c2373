//! Keeps the journal of a running job short, and goes on from what a short one begins with: the
//! state of the job, taken between two things that are heard.

use super::agents::Agents;
use super::alike::Alike;
use super::cpu::Held;
use super::job::Job;
use super::snapshot::Snapshot;
use anyhow::Context;

impl Job {
    /// Has the journal begin anew when it has become long. Nothing may wait to be handled.
    pub fn shorten_journal(&mut self) {
        if !self.journal.is_long() || self.end.has_come() || !self.machine.has_started() {
            return;
        }
        // With the hosts that have joined.
        let beginning = self.beginning.clone();
        let snapshot = self.snapshot().map_err(std::io::Error::other);
        let begun = snapshot.and_then(|s| self.journal.begin_anew(beginning, s));
        match begun {
            Ok(()) => tracing::info!("the journal has begun anew"),
            // It goes on as it is, and what becomes of it is said when it can be written no more.
            Err(e) => tracing::warn!("the journal cannot begin anew: {e}"),
        }
    }

    fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        let machine = self.machine.snapshot()?;
        let stdin = self.stdin.saved()?;
        Ok(Snapshot {
            time: self.clock.time(),
            machine,
            agents: self.agents.saved(),
            roles: self.roles.saved(),
            store_bytes: self.figures.store_bytes(),
            directory: self.role_addresses.directory().clone(),
            alike: self.alike.saved(),
            identities: self.alike.identities().clone(),
            stdin,
            stdin_wanted: self.stdin.wanted(),
            refusals: self.refusals.clone(),
            last_request: self.users.last(),
            events: self.event_file.saved(),
            output: self.outlet.unwritten(),
        })
    }

    /// Goes on from a snapshot, in a job that was just put together.
    ///
    /// # Errors
    /// When it is none, or what it has of the job's input cannot be kept.
    pub fn go_on_from(&mut self, snapshot: Snapshot) -> anyhow::Result<()> {
        let restored = self.machine.restore(&snapshot.machine);
        restored.context("the journal's snapshot of the job cannot be read")?;
        self.stdin.go_on(&snapshot.stdin).context("cannot keep the job's input")?;
        self.clock.set(snapshot.time);
        self.admit_again();
        self.agents = Agents::of(snapshot.agents);
        self.roles.go_on_with(snapshot.roles);
        self.figures.set_store_bytes(snapshot.store_bytes);
        self.role_addresses.set_directory(snapshot.directory);
        let held = Held::of(self.beginning.options.cpu, &self.beginning.program.env);
        self.alike = Alike::of(snapshot.alike, snapshot.identities).held(held);
        self.stdin.go_on_wanting(snapshot.stdin_wanted);
        self.refusals = snapshot.refusals;
        self.users.go_on_after(snapshot.last_request);
        let events = self.event_file.go_on_from(snapshot.events);
        events.context("cannot write the job's events")?;
        self.take_output_again()?;
        self.outlet.write_again(snapshot.output);
        Ok(())
    }

    /// Who may connect: the nodes and roles that the machine knows.
    fn admit_again(&mut self) {
        let nodes = self.machine.nodes_up().count() as u32;
        let known = self.beginning.options.nodes + self.beginning.options.spares;
        (known..nodes).for_each(|_| self.admission.expect_node());
        self.machine.dead_nodes().for_each(|node| self.admission.refuse_node(node));
        self.machine.roles().for_each(|(role, _)| self.admission.expect_role(role));
    }
}
