//! Intel MPI from 2021 on, with libfabric. It is derived from MPICH and adds ways through shared
//! memory: collectives within a node, a heap, copies between processes. It is told that each rank
//! is alone on its node (PMI_process_mapping, in pmi.rs); the settings here must not be its only
//! protection.

use super::Library;

pub const INTEL_MPI: Library = Library {
    name: "Intel MPI",
    mark: "Intel(R) MPI Library",
    tested: &["2021.18.1"],
    settings: &[
        ("I_MPI_FABRICS", "ofi"),
        ("I_MPI_OFI_PROVIDER", "eyrie"),
        ("I_MPI_COLL_INTRANODE", "pt2pt"),
    ],
    defaults: &[("I_MPI_THREAD_YIELD", "2"), ("I_MPI_SPIN_COUNT", "1")],
    // It finds out which rank is on which node before it opens its network.
    meets_before: 1,
    remedy:
        "it must be built with libfabric (2021 or newer), and its own libfabric or another one \
             that loads providers from FI_PROVIDER_PATH must be found; unset I_MPI_OFI_LIBRARY and \
             I_MPI_OFI_LIBRARY_INTERNAL",
};
