/* The fault tolerance functions under one set of names: MPI_Comm_revoke and so on where the MPI
 * library has them (the build tries), MPIX_Comm_revoke and so on elsewhere. */
#ifndef EYRIE_ULFM_MPI_FT_H
#define EYRIE_ULFM_MPI_FT_H

#include <mpi.h>
#if !defined(EYRIE_MPI5_NAMES)
#include <mpi-ext.h>
#endif

#if defined(EYRIE_MPI5_NAMES)
#define FT_Comm_revoke MPI_Comm_revoke
#define FT_Comm_shrink MPI_Comm_shrink
#define FT_Comm_iagree MPI_Comm_iagree
#define FT_Comm_get_failed MPI_Comm_get_failed
#define FT_Comm_ack_failed MPI_Comm_ack_failed
#define FT_ERR_PROC_FAILED MPI_ERR_PROC_FAILED
#define FT_ERR_PROC_FAILED_PENDING MPI_ERR_PROC_FAILED_PENDING
#define FT_ERR_REVOKED MPI_ERR_REVOKED
#else
#define FT_Comm_revoke MPIX_Comm_revoke
#define FT_Comm_shrink MPIX_Comm_shrink
#define FT_Comm_iagree MPIX_Comm_iagree
#define FT_Comm_get_failed MPIX_Comm_get_failed
#define FT_Comm_ack_failed MPIX_Comm_ack_failed
#define FT_ERR_PROC_FAILED MPIX_ERR_PROC_FAILED
#define FT_ERR_PROC_FAILED_PENDING MPIX_ERR_PROC_FAILED_PENDING
#define FT_ERR_REVOKED MPIX_ERR_REVOKED
#endif

#endif
