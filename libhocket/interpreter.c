// Functions for interpreters with a global lock: see hocket_interpreter in hocket.h.

#include <stdlib.h>
#include <string.h>
#include "_cgo_export.h"

// SLICE is the time between checks for interrupts, GRACE the longest wait for a cancelled run, both in milliseconds.
enum { SLICE = 50, GRACE = 10000 };

// collect releases the owners that have ended. The caller holds the lock.
static void collect(const hocket_interpreter *with) {
  for (void *owner; (owner = hocket_ended());) with->release(owner);
}

// finish waits for a run, whose number is 0 if it could not be started. It acquires the lock before it returns.
static int finish(const hocket_interpreter *with, void *state, int64_t run, char **error) {
  int over = run ? 0 : -1, interrupted = 0;
  for (int left = GRACE; !over && left > 0; left -= interrupted ? SLICE : 0) {
    over = hocket_wait(run, SLICE, error);
    if (over || interrupted) continue;
    with->enter(state);
    interrupted = with->interrupted();
    state = with->leave();
    if (interrupted) hocket_cancel(run, NULL);
  }
  if (!over) hocket_abandon(run, NULL);
  with->enter(state);
  collect(with);
  if (!interrupted) return over > 0;
  if (error && *error) {
    hocket_free(*error);
    *error = NULL;
  }
  return -1;
}

int hocket_call_run(const hocket_interpreter *with, int64_t model, void *owner, hocket_tensor *in, int64_t ins,
                    hocket_tensor *out, int64_t outs, char *dims, char **error) {
  with->retain(owner);
  void *state = with->leave();
  return finish(with, state, hocket_run(model, owner, in, ins, out, outs, dims, error), error);
}

int hocket_call_compare(const hocket_interpreter *with, int64_t model, void *owner, hocket_tensor *in, int64_t ins,
                        char *dims, char **error) {
  with->retain(owner);
  void *state = with->leave();
  return finish(with, state, hocket_compare(model, owner, in, ins, dims, error), error);
}

int hocket_call_prepare(const hocket_interpreter *with, int64_t model, char *dims, char **error) {
  void *state = with->leave();
  return finish(with, state, hocket_prepare(model, dims, error), error);
}

int hocket_call_sync(const hocket_interpreter *with, int64_t model, char **error) {
  void *state = with->leave();
  return finish(with, state, hocket_sync(model, error), error);
}

// ended acquires the lock and returns ok.
static int ended(const hocket_interpreter *with, void *state, int ok) {
  with->enter(state);
  collect(with);
  return ok;
}

int hocket_call_bind(const hocket_interpreter *with, int64_t model, void *owner, hocket_tensor *t, char **error) {
  with->retain(owner);
  void *state = with->leave();
  return ended(with, state, hocket_bind(model, owner, t, error));
}

int hocket_call_bind_device(const hocket_interpreter *with, int64_t model, void *owner, hocket_tensor *t, char *dims,
                            char **error) {
  with->retain(owner);
  void *state = with->leave();
  return ended(with, state, hocket_bind_device(model, owner, t, dims, error));
}

int hocket_call_adopt(const hocket_interpreter *with, int64_t collectives, void *owner, uint64_t *at, int64_t ranks,
                      int64_t bytes, char **error) {
  with->retain(owner);
  void *state = with->leave();
  return ended(with, state, hocket_adopt(collectives, owner, at, ranks, bytes, error));
}

int hocket_call_close(const hocket_interpreter *with, int64_t object, char **error) {
  void *state = with->leave();
  return ended(with, state, hocket_close(object, error));
}

static hocket_python python;

void hocket_use_python(const hocket_python *functions) { python = *functions; }

// hocket_python_do exists because collectives are frequent: a call through Python's ctypes takes a microsecond longer.
void *hocket_python_do(void *self, void *const *args, ptrdiff_t n) {
  enum { WORDS = 9 };
  uint64_t v[WORDS];
  char *error = NULL;
  (void)self;
  if (n != WORDS) {
    error = strdup("{\"kind\": \"input\", \"message\": \"a collective has 9 arguments\"}");
    return python.number((uintptr_t)error);
  }
  for (int i = 0; i < WORDS; i++) {
    v[i] = python.word(args[i]);
    if (python.failed()) return NULL;
  }
  void *state = python.leave();
  hocket_do(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], &error);
  python.enter(state);
  return python.number((uintptr_t)error);
}
