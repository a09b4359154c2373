//! MPICH with ch4:ofi, as it comes from PyPI. Debian's is built for UCX alone. Nothing of Intel
//! MPI, which is made from it, belongs here.

use super::Library;

pub const MPICH: Library = Library {
    name: "MPICH",
    mark: "MPICH Version:",
    tested: &["5.0.2"],
    // No rank shares a node with another: none of its messages goes through shared memory.
    settings: &[("MPIR_CVAR_CH4_NETMOD", "ofi"), ("MPIR_CVAR_NOLOCAL", "1")],
    // It gives way by itself.
    defaults: &[],
    meets_before: 0,
    remedy:
        "it is probably built without libfabric (Debian's mpich is: ch4:ucx only); use an MPICH \
             with ch4:ofi, for instance `pip install mpich`, and build the program with its mpicc",
    segments: Some("mpich_shm_"),
};
