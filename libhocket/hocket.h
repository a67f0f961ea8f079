/* The C interface of hocket, version 4.
 *
 * Functions that can fail return 0 (or no object) and set *error, if error is not NULL, to JSON:
 *   {"kind": "...", "message": "...", ...}
 * kind is one of program, input, memory, unsupported, lost, peer, disagree, closed, cancelled, handle, machine.
 * An input error about one element of an integer parameter also has parameter, rank, index, value, low, high, and begun if
 * the run had begun.
 * The caller must free returned text by hocket_free. Options are a JSON object, or NULL or "" for none; an unknown
 * option is an error. Objects are numbers, never 0. All functions may be called by any thread.
 *
 * Memory. A function that takes tensors also takes an owner: any address except NULL, such as that of the object that
 * holds their memory. The library may use the memory until hocket_ended returns the owner. It returns the owner once
 * for each call, also if the call failed: after the run has ended, or after the parameter was bound to another tensor
 * and the runs that began before that have ended. A caller that ensures this in another way passes NULL.
 *
 * Do not call the library in a child after fork(): the child lacks the threads that the library needs. */
#ifndef HOCKET_H
#define HOCKET_H
#include <stddef.h>
#include <stdint.h>

/* A dense row-major tensor in the caller's memory. */
typedef struct {
  const char *name;     /* of the parameter or result, without % */
  const char *dtype;    /* f32, bf16, i64, ... as programs spell it */
  int64_t rank;         /* the rank whose block it is; -1 for a whole tensor */
  int64_t dims;         /* entries of shape */
  const int64_t *shape;
  void *data;
  int64_t bytes;
} hocket_tensor;

/* Functions of an interpreter with a global lock, such as CPython. The functions hocket_call_... are called with the
 * lock held, release it while they wait, and return with it held. They retain the owner, start the call and wait for it
 * as one operation, which the interpreter cannot interrupt in between. They also release the owners that have ended. */
typedef struct {
  void *(*leave)(void);      /* releases the lock: PyEval_SaveThread */
  void (*enter)(void *);     /* acquires the lock: PyEval_RestoreThread */
  int (*interrupted)(void);  /* nonzero to cancel the call: PyErr_CheckSignals */
  void (*retain)(void *);    /* keeps an owner: Py_IncRef */
  void (*release)(void *);   /* releases an owner: Py_DecRef */
} hocket_interpreter;

/* hocket_run, hocket_compare, hocket_prepare and hocket_sync, followed by hocket_wait. They return 1 on success and 0 on an error. If
 * interrupted returns nonzero they cancel the run, wait until it has ended, and return -1 without an error. They wait
 * ten seconds at most: a run that takes longer continues in the background, and its owner stays retained. */
int hocket_call_run(const hocket_interpreter *with, int64_t model, void *owner, hocket_tensor *in, int64_t ins,
                    hocket_tensor *out, int64_t outs, char *dims, char **error);
int hocket_call_compare(const hocket_interpreter *with, int64_t model, void *owner, hocket_tensor *in, int64_t ins,
                        char *dims, char **error);
int hocket_call_prepare(const hocket_interpreter *with, int64_t model, char *dims, char **error);
int hocket_call_sync(const hocket_interpreter *with, int64_t model, char **error);

/* hocket_bind, hocket_bind_device, hocket_adopt and hocket_close. They cannot be cancelled. They return 0 on an error. */
int hocket_call_bind(const hocket_interpreter *with, int64_t model, void *owner, hocket_tensor *t, char **error);
int hocket_call_bind_device(const hocket_interpreter *with, int64_t model, void *owner, hocket_tensor *t, char *dims,
                            char **error);
int hocket_call_adopt(const hocket_interpreter *with, int64_t collectives, void *owner, uint64_t *at, int64_t ranks,
                      int64_t bytes, char **error);
int hocket_call_close(const hocket_interpreter *with, int64_t object, char **error);

/* Functions of CPython for hocket_python_do. */
typedef struct {
  void *(*leave)(void);                  /* PyEval_SaveThread */
  void (*enter)(void *);                 /* PyEval_RestoreThread */
  unsigned long long (*word)(void *);    /* PyLong_AsUnsignedLongLongMask */
  void *(*number)(unsigned long long);   /* PyLong_FromUnsignedLongLong */
  void *(*failed)(void);                 /* PyErr_Occurred */
} hocket_python;

/* Sets the functions of CPython, before the first call of hocket_python_do. */
void hocket_use_python(const hocket_python *functions);

/* hocket_do as a function of CPython with the calling convention METH_FASTCALL. Its arguments are the 9 numbers of
 * hocket_do, from collectives to out. It returns the number 0, or the address of the error's text. */
void *hocket_python_do(void *self, void *const *args, ptrdiff_t n);

/* Constants for op, red and dtype of hocket_do and hocket_do_norm. */
enum { HOCKET_ALL_REDUCE, HOCKET_ALL_GATHER, HOCKET_REDUCE_SCATTER, HOCKET_ALL_TO_ALL, HOCKET_BROADCAST };
enum { HOCKET_SUM, HOCKET_AVG, HOCKET_MAX, HOCKET_MIN };
enum { HOCKET_F32, HOCKET_F64, HOCKET_F16, HOCKET_BF16, HOCKET_I32, HOCKET_I64 };

#endif
