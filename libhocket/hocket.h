/* The C interface of hocket, version 2.
 *
 * Functions that can fail return 0 (or no object) and set *error, if error is not NULL, to JSON:
 *   {"kind": "...", "message": "...", ...}
 * kind is one of program, input, memory, unsupported, lost, peer, disagree, closed, cancelled, handle, machine.
 * Text that is returned is to be given back by hocket_free. Options are a JSON object, NULL or "" for none; an
 * option that there is not is an error. Objects are numbers, never 0. All functions may be called by any thread.
 *
 * Memory of the caller's. A function that is given tensors takes an owner: any address but NULL that stands for their
 * memory, such as that of the object that keeps it. The library uses the memory until hocket_ended has returned the
 * owner, which it does once for each call that was given it, also for one that fails. A run's memory is no longer used
 * when the run has ended; that of a bound tensor when it is bound no more and the runs that began before have ended. A
 * caller that keeps the memory by itself for as long passes NULL.
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

/* What an interpreter has the library do on its thread: the functions hocket_call_... below are called with its lock
 * held, give it up while they wait, and return with it held. Nothing of the interpreter's runs between the moment at
 * which the library takes the owner and the moment at which the call is over, but for what interrupted runs. */
typedef struct {
  void *(*leave)(void);      /* gives up the lock; PyEval_SaveThread */
  void (*enter)(void *);     /* takes it again; PyEval_RestoreThread */
  int (*interrupted)(void);  /* not 0 if the call is to end soon; PyErr_CheckSignals */
  void (*retain)(void *);    /* keeps an owner; Py_IncRef */
  void (*release)(void *);   /* no longer; Py_DecRef */
} hocket_interpreter;

/* hocket_run and hocket_wait, hocket_prepare and hocket_wait, hocket_sync and hocket_wait in one call. They return 1 when
 * the run has ended well and 0 when it has failed. When interrupted asks for it they cancel the run, wait until it has
 * ended and return -1 without an error; a run that has not ended within ten seconds of that goes on by itself, and its
 * owner stays retained. */
int hocket_call_run(const hocket_interpreter *with, int64_t model, void *owner, hocket_tensor *in, int64_t ins,
                    hocket_tensor *out, int64_t outs, char **error);
int hocket_call_prepare(const hocket_interpreter *with, int64_t model, char *dims, char **error);
int hocket_call_sync(const hocket_interpreter *with, int64_t model, char **error);

/* hocket_bind, hocket_bind_device and hocket_adopt, likewise; 0 where they fail. They do not look for interrupts. */
int hocket_call_bind(const hocket_interpreter *with, int64_t model, void *owner, hocket_tensor *t, char **error);
int hocket_call_bind_device(const hocket_interpreter *with, int64_t model, void *owner, hocket_tensor *t, char *dims,
                            char **error);
int hocket_call_adopt(const hocket_interpreter *with, int64_t collectives, void *owner, uint64_t *at, int64_t ranks,
                      int64_t bytes, char **error);

/* Numbers of hocket_do and hocket_do_norm. */
enum { HOCKET_ALL_REDUCE, HOCKET_ALL_GATHER, HOCKET_REDUCE_SCATTER, HOCKET_ALL_TO_ALL, HOCKET_BROADCAST };
enum { HOCKET_SUM, HOCKET_AVG, HOCKET_MAX, HOCKET_MIN };
enum { HOCKET_F32, HOCKET_F64, HOCKET_F16, HOCKET_BF16, HOCKET_I32, HOCKET_I64 };

#endif
