//go:build python

package main

// Built with this tag, and not as a shared library, libhocket is a program: Python with the library linked in. It exists
// for the race detector, which does not work in shared libraries. HOCKET_LIBPYTHON names Python's shared library, and
// HOCKET_LIBRARY must be "-".

/*
#cgo LDFLAGS: -rdynamic -ldl
#include <dlfcn.h>
#include <stdio.h>

static int run_python(const char *name, int argc, char **argv) {
  void *lib = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  int (*run)(int, char **) = lib ? (int (*)(int, char **))dlsym(lib, "Py_BytesMain") : NULL;
  if (!run) {
    fprintf(stderr, "HOCKET_LIBPYTHON: %s\n", dlerror());
    return 2;
  }
  return run(argc, argv);
}
*/
import "C"

import (
	"os"
	"runtime"
)

func init() {
	runtime.LockOSThread() // Python must run on the main thread
	program = func() {
		argv := make([]*C.char, len(os.Args)+1)
		for i, arg := range os.Args {
			argv[i] = C.CString(arg)
		}
		os.Exit(int(C.run_python(C.CString(os.Getenv("HOCKET_LIBPYTHON")), C.int(len(os.Args)), &argv[0])))
	}
}
