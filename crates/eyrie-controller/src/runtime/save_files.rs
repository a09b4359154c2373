//! What saving a job does: files in its `--images` directory, written when the machine says so.

use super::alike::{this_host, Alike};
use super::deadline;
use super::images_dir::SavedJob;
use super::job::Job;
use super::written;
use crate::machine::Event;
use eyrie_interface::RolesAt;
use eyrie_router::{RouterCommand, SavedAt};
use eyrie_wire::RouterId;

impl Job {
    /// All routers save what they hold: those on nodes hand it over to this controller.
    pub fn save_routers(&mut self) {
        let routers = self.beginning.options.routers;
        let on_nodes = self.beginning.options.roles == RolesAt::Nodes;
        let mut files = Vec::new();
        // An earlier controller has saved nothing that is of use now.
        if !self.is_replaying {
            let Some(images) = &self.images else { return };
            files = match images.begin_to_save(routers) {
                Ok(files) => files,
                Err(e) => {
                    let reason = format!("{e:#}");
                    return self
                        .hear_later([Event::RouterNotSaved { router: RouterId(0), reason }]);
                }
            };
            self.router_files.save_to(files.clone());
        }
        for router in 0..routers {
            let at = if on_nodes {
                SavedAt::Controller(self.children.controller().clone())
            } else {
                SavedAt::File(files[router as usize].clone())
            };
            self.roles.send_router(
                self.journal.progress(),
                RouterId(router),
                RouterCommand::Save(at),
            );
        }
    }

    /// Saves what is needed besides images and routers.
    pub fn save_job(&mut self) {
        if !self.is_replaying {
            let saved = self.write_job().map_err(|e| format!("{e:#}"));
            self.hear_later([Event::JobSaved(saved)]);
        }
    }

    /// The job has come to its end while it was to be saved: what it has printed is kept.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_its_end(&mut self) -> anyhow::Result<()> {
        let Some(images) = &self.images else { return Ok(()) };
        images.begin_to_save(0)?;
        self.write_job().map(drop)
    }

    /// Has the job saved before the allocation ends that it runs in.
    pub fn watch_deadline(&self) {
        if self.images.is_some() {
            deadline::watch(self.beginning.options.save_before, self.inbound.clone());
        }
    }

    fn write_job(&mut self) -> anyhow::Result<String> {
        let beginning = self.beginning.clone();
        let machine = self.machine.saved();
        let stdin = self.stdin.saved()?;
        let alike = self.alike.saved().or_else(|| Alike::first(this_host(&beginning)).saved());
        self.outlet.let_out(u64::MAX);
        let unshown = self.outlet.kept().cloned();
        let written =
            Some(self.dir.join(written::FILE)).filter(|file| unshown.is_some() && file.exists());
        let job = SavedJob { beginning, machine, stdin, alike, unshown };
        let Some(images) = &mut self.images else { anyhow::bail!("there is no place for it") };
        images.save(&job, written.as_deref())?;
        Ok(images.path().display().to_string())
    }
}
