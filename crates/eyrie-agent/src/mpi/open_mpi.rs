//! Open MPI: it starts through PMIx, which agents do not speak, so its ranks are refused. Nothing
//! here may let one of them compute alone.

use super::Library;

pub const OPEN_MPI: Library = Library {
    name: "Open MPI",
    mark: "Open MPI v",
    tested: &[],
    settings: &[],
    meets_before: 0,
    remedy: "it starts through PMIx, which Eyrie does not speak; use MPICH 5, for instance `pip \
             install mpich`, and build the program with its mpicc",
    segments: None,
};
