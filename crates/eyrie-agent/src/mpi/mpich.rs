//! MPICH with ch4:ofi, as PyPI has it. Debian's is built for UCX only. Nothing of Intel MPI, which
//! is derived from it, belongs here.

use super::Library;

pub const MPICH: Library = Library {
    name: "MPICH",
    mark: "MPICH Version:",
    tested: &["5.0.2"],
    // No rank shares a node with another: none of its messages goes through shared memory.
    settings: &[("MPIR_CVAR_CH4_NETMOD", "ofi"), ("MPIR_CVAR_NOLOCAL", "1")],
    // It yields the processor by default.
    defaults: &[],
    meets_before: 0,
    remedy:
        "it is probably built without libfabric (Debian's mpich is: ch4:ucx only); use an MPICH \
             with ch4:ofi, for instance `pip install mpich`, and build the program with its mpicc",
};
