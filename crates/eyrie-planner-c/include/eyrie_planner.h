/* Of sources with the XXH3 digest 5ffe1e1aa3a2bddb. */
#ifndef EYRIE_PLANNER_H
#define EYRIE_PLANNER_H

/* Made by cbindgen from crates/eyrie-planner-c; `cargo test -p eyrie-planner-c` says when it is out of date; tests/header.rs how to make it anew. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 `eyrie_planner_plan` found a plan.
 */
#define EYRIE_PLAN_FOUND 0

/*
 There are not enough free nodes.
 */
#define EYRIE_PLAN_STUCK 1

/*
 The arguments are wrong; the note says how.
 */
#define EYRIE_PLAN_REFUSED 2

/*
 A job on its network.
 */
typedef struct EyriePlanner EyriePlanner;

/*
 A job and its network, in the words of `eyrie plan`. Every text may be NULL.
 */
typedef struct EyriePlannerWords {
  /*
   `torus:4x4`, `graph:FILE` ...; NULL: each process is a node at the switch of its host.
   */
  const char *network;
  /*
   Host of each process: `processes` pointers, or NULL with a network.
   */
  const char *const *hosts;
  /*
   Node of each process, below 0 where it is not known: `processes` numbers, or NULL.
   */
  const int *nodes;
  size_t processes;
  /*
   Extents of the grid of ranks, `4x3`; NULL: what the spares leave.
   */
  const char *job;
  /*
   A number, `nd(d,w)`, `scattered:N`, `list:NODE;NODE`, `hosts:HOST;HOST`; NULL: 1.
   */
  const char *spares;
  /*
   NULL: the star stencil of the job's axes, allreduce on a line.
   */
  const char *traffic;
  /*
   Bytes of a message.
   */
  uint64_t bytes;
} EyriePlannerWords;

/*
 A plan, except for the placement.
 */
typedef struct EyriePlanResult {
  /*
   Messages of one communication step on the busiest directed link: now, and with the plan.
   */
  uint64_t busiest_before;
  uint64_t busiest_after;
  /*
   Estimated communication time of a step, divided by the same before any failure.
   */
  double ratio;
  /*
   The method that found the plan.
   */
  char method[16];
  /*
   Why it is not by the given method, or why there is no plan; else empty.
   */
  char note[240];
} EyriePlanResult;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Checksum of `len` bytes (XXH3, 64 bits). It is fast enough to go along with a copy. It finds
 damage, but does not resist forgery.

 # Safety
 `bytes` points to `len` readable bytes; it may be NULL when `len` is 0.
 */
uint64_t eyrie_checksum(const void *bytes, size_t len);

/*
 Copies `len` bytes and returns their [`eyrie_checksum`] in one pass through memory; a copy and
 then a checksum take two. `past_cache`: the copy goes to memory directly; otherwise the
 overwritten memory is loaded first, a further pass.

 # Safety
 `from` points to `len` readable bytes and `to` to as many writable ones elsewhere; both may be
 NULL when `len` is 0.
 */
uint64_t eyrie_copy_checksum(void *to, const void *from, size_t len, bool past_cache);

/*
 Computes `parities` blocks from `count` data blocks, all of `len` bytes (even). A NULL data
 block is one of zeros. Returns 0, or 1 when these numbers cannot be encoded.

 # Safety
 `data` has `count` pointers to `len` readable bytes or NULL, `parity` has `parities` to `len`
 writable bytes; none overlap.
 */
int eyrie_parity_encode(const uint8_t *const *data,
                        size_t count,
                        uint8_t *const *parity,
                        size_t parities,
                        size_t len);

/*
 Computes the lost data block `wanted` from the others; NULL is a block that is lost. Returns 0,
 or 1 when too many are.

 # Safety
 As [`eyrie_parity_encode`]; `out` has `len` writable bytes.
 */
int eyrie_parity_decode(const uint8_t *const *data,
                        size_t count,
                        const uint8_t *const *parity,
                        size_t parities,
                        size_t len,
                        size_t wanted,
                        uint8_t *out);

/*
 A planner, or NULL with one line in `error` (`error_len` bytes) that says what is wrong. Free it
 with `eyrie_planner_free`.

 # Safety
 The texts end with a zero byte; `hosts` has `processes` of them or is NULL, `nodes` as many
 numbers; `error` has `error_len` writable bytes.
 */
struct EyriePlanner *eyrie_planner_new(const struct EyriePlannerWords *words,
                                       char *error,
                                       size_t error_len);

/*
 # Safety
 `planner` is NULL or came from `eyrie_planner_new` and is not used again.
 */
void eyrie_planner_free(struct EyriePlanner *planner);

/*
 Nodes of the network.
 */
size_t eyrie_planner_nodes(const struct EyriePlanner *planner);

/*
 Writes the node of each process: the one given in the words, or found by the hosts' names.

 # Safety
 `nodes` has a place for each process.
 */
void eyrie_planner_process_nodes(const struct EyriePlanner *planner, int *nodes);

/*
 Ranks of the job.
 */
size_t eyrie_planner_ranks(const struct EyriePlanner *planner);

/*
 Spare nodes.
 */
size_t eyrie_planner_spares(const struct EyriePlanner *planner);

/*
 Axes of the grid of ranks; writes up to `room` of their extents.

 # Safety
 `extents` has `room` writable places.
 */
size_t eyrie_planner_shape(const struct EyriePlanner *planner, int *extents, size_t room);

/*
 Writes the node of each rank at the start, and the spare nodes in the order of first-free.

 # Safety
 `home` has a place for each rank and `spares` for each spare.
 */
void eyrie_planner_layout(const struct EyriePlanner *planner, uint32_t *home, uint32_t *spares);

/*
 Writes the name of a node: its coordinates in the network, or the network's name for it.

 # Safety
 `name` has `len` writable bytes.
 */
void eyrie_planner_node_name(const struct EyriePlanner *planner,
                             uint32_t node,
                             char *name,
                             size_t len);

/*
 Whether `eyrie_planner_plan` knows `method`; if not, writes one line with the known methods.

 # Safety
 `method` ends with a zero byte; `error` has `error_len` writable bytes.
 */
bool eyrie_planner_knows(const char *method, char *error, size_t error_len);

/*
 Where the ranks go after failures. `at` is the node of each rank (of a failed node: its last
 one), `failed` every failed node so far, `spares` the live nodes without a rank. If a
 substitution method is stuck, the search replaces it, and the note says why. Writes the node of
 each rank to `placement` (squeezing moves none) unless the answer is EYRIE_PLAN_REFUSED or
 EYRIE_PLAN_STUCK.

 # Safety
 `at` and `placement` have a place for each rank, the other two the length given; `method` ends
 with a zero byte.
 */
int eyrie_planner_plan(const struct EyriePlanner *planner,
                       const char *method,
                       const uint32_t *at,
                       const uint32_t *failed,
                       size_t failed_len,
                       const uint32_t *spares,
                       size_t spares_len,
                       uint32_t *placement,
                       struct EyriePlanResult *result);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EYRIE_PLANNER_H */
