/* The C interface of hocket, version 2.
 *
 * Functions that can fail return 0 (or no object) and set *error, if error is not NULL, to JSON:
 *   {"kind": "...", "message": "...", ...}
 * kind is one of program, input, memory, unsupported, lost, peer, disagree, closed, cancelled, handle, machine.
 * An input error about one element of an integer parameter also has parameter, rank, index, value, low, high, and begun if
 * the run had begun.
 * Text that is returned is to be given back by hocket_free. Options are a JSON object, NULL or "" for none; an
 * option that there is not is an error. Objects are numbers, never 0. All functions may be called by any thread.
 *
 * Not after fork(): the child has none of the threads that the library needs. */
#ifndef HOCKET_H
#define HOCKET_H
#include <stddef.h>
#include <stdint.h>

/* A dense row-major tensor in the caller's memory. */
typedef struct {
  const char *name;     /* of the parameter or result, without % */
  const char *dtype;    /* f32, bf16, i64, ... as programs spell it */
  int64_t rank;         /* whose block it is; -1 for a whole tensor */
  int64_t dims;         /* entries of shape */
  const int64_t *shape;
  void *data;
  int64_t bytes;
} hocket_tensor;

/* Numbers of hocket_do and hocket_do_norm. */
enum { HOCKET_ALL_REDUCE, HOCKET_ALL_GATHER, HOCKET_REDUCE_SCATTER, HOCKET_ALL_TO_ALL, HOCKET_BROADCAST };
enum { HOCKET_SUM, HOCKET_AVG, HOCKET_MAX, HOCKET_MIN };
enum { HOCKET_F32, HOCKET_F64, HOCKET_F16, HOCKET_BF16, HOCKET_I32, HOCKET_I64 };

#endif
