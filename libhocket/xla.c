// A foreign function for XLA, which enqueues a run of a model on XLA's stream, with XLA's buffers. JAX registers
// hocket_xla, and passes the number that hocket_foreign returned in the attribute "foreign" of each call.

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "_cgo_export.h"

// The parts of XLA's interface for foreign functions that are used here (xla/ffi/api/c_api.h), in the layout of version
// 0.1, which later versions keep. Each structure begins with its size and a list of extensions.
enum { MAJOR = 0, MINOR = 1 };
enum { EXTENSION_METADATA = 1, STAGE_EXECUTE = 3, ARGUMENT_BUFFER = 1, ATTRIBUTE_SCALAR = 3, TYPE_S64 = 5 };
enum { ERROR_INVALID = 3, ERROR_INTERNAL = 13 };

typedef struct extension {
  size_t size;
  int type;
  struct extension *next;
} extension;

typedef struct {
  size_t size;
  extension *extensions;
  int major, minor;
} version;

typedef struct {
  size_t size;
  version api;
  uint32_t traits;
} metadata;

typedef struct {
  extension base;
  metadata *data;
} metadata_extension;

typedef struct {
  size_t size;
  extension *extensions;
  const char *message;
  int code;
} error_create;

typedef struct {
  size_t size;
  extension *extensions;
  void *context;
  void *stream;
} stream_get;

typedef struct {
  size_t size;
  extension *extensions;
  version api;
  void *internal;
  void *(*create_error)(error_create *);
  void (*error_message)(void *);
  void (*destroy_error)(void *);
  void *(*register_handler)(void *);
  void *(*get_stream)(stream_get *);
} interface;

typedef struct {
  size_t size;
  extension *extensions;
  int type;
  void *data;
  int64_t rank;
  int64_t *dims;
} buffer;

typedef struct {
  size_t size;
  extension *extensions;
  int64_t count;
  int *types;
  void **items;
} buffers;

typedef struct {
  const char *at;
  size_t length;
} span;

typedef struct {
  int type;
  void *value;
} scalar;

typedef struct {
  size_t size;
  extension *extensions;
  int64_t count;
  int *types;
  span **names;
  void **items;
} attributes;

typedef struct {
  size_t size;
  extension *extensions;
  const interface *api;
  void *context;
  int stage;
  buffers args, rets;
  attributes attrs;
} frame;

static void *failure(const frame *f, int code, const char *why) {
  error_create e = {.size = sizeof e, .message = why, .code = code};
  return f->api->create_error(&e);
}

// device returns the number of the GPU that owns the memory at an address; -1 if the driver does not know it.
static int device(uint64_t address) {
  enum { POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9 };
  static int (*ask)(void *, int, uint64_t);
  if (!ask) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    ask = driver ? (int (*)(void *, int, uint64_t))dlsym(driver, "cuPointerGetAttribute") : NULL;
  }
  int number = -1;
  if (!ask || ask(&number, POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)) return -1;
  return number;
}

// addresses stores the addresses of buffers in to, and in *on the GPU of the first buffer that is not empty. It returns
// 0 if one of them is not a buffer.
static int addresses(const buffers *from, uint64_t *to, int *on) {
  for (int64_t i = 0; i < from->count; i++) {
    if (from->types[i] != ARGUMENT_BUFFER) return 0;
    to[i] = (uint64_t)(uintptr_t)((buffer *)from->items[i])->data;
    if (*on < 0 && to[i]) *on = device(to[i]);
  }
  return 1;
}

void *hocket_xla(void *call) {
  const frame *f = call;
  for (extension *x = f->extensions; x; x = x->next)
    if (x->type == EXTENSION_METADATA) {
      metadata *m = ((metadata_extension *)x)->data;
      m->api.major = MAJOR;
      m->api.minor = MINOR;
      m->traits = 0;
      return NULL;
    }
  if (f->stage != STAGE_EXECUTE) return NULL;

  int64_t foreign = 0;
  for (int64_t i = 0; i < f->attrs.count; i++) {
    const span *name = f->attrs.names[i];
    const scalar *value = f->attrs.items[i];
    if (name->length == 7 && !memcmp(name->at, "foreign", 7) && f->attrs.types[i] == ATTRIBUTE_SCALAR &&
        value->type == TYPE_S64)
      foreign = *(const int64_t *)value->value;
  }
  stream_get s = {.size = sizeof s, .context = f->context};
  void *no_stream = f->api->get_stream(&s);
  if (no_stream) return no_stream;

  uint64_t *at = malloc((f->args.count + f->rets.count + 1) * sizeof *at);
  int on = -1;
  if (!at) return failure(f, ERROR_INTERNAL, "hocket has no memory for the addresses of buffers");
  if (!addresses(&f->args, at, &on) || !addresses(&f->rets, at + f->args.count, &on)) {
    free(at);
    return failure(f, ERROR_INVALID, "hocket takes buffers");
  }
  char *why = NULL;
  hocket_call_foreign(foreign, on, (uint64_t)(uintptr_t)s.stream, at, f->args.count, at + f->args.count, f->rets.count,
                      &why);
  free(at);
  if (!why) return NULL;
  void *e = failure(f, ERROR_INTERNAL, why);
  hocket_free(why);
  return e;
}
