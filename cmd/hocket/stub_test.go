package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
)

// stubs are libraries that stand in for NVIDIA's; see testdata/stub.c.
type stubs struct {
	*testing.T
	dir string
}

// TestBrokenGPUs makes each part of the GPU software missing, or each call of it fail. Each time the exit code must be
// 3, the message must name the missing library or the failed call and a way out, and all created objects must be
// released.
func TestBrokenGPUs(t *testing.T) {
	s := newStubs(t)
	for _, c := range []struct {
		stub    string
		env     []string
		program string // all.hkt is the program with a collective by NCCL
		words   []string
		lost    bool // the device is lost, so its objects cannot be released
	}{
		{stub: "no device", words: []string{"finds no GPU", "CUDA_VISIBLE_DEVICES"}},
		{stub: "no GPUs", words: []string{"finds no GPU", "CUDA_VISIBLE_DEVICES"}},
		{stub: "old driver", words: []string{"supports CUDA 11.4", "needs a driver for CUDA 12.0 or newer"}},
		{stub: "no driver", env: []string{"HOCKET_LIBCUDA=/none/libcuda.so.1"},
			words: []string{"/none/libcuda.so.1", "install the NVIDIA driver", "HOCKET_LIBCUDA"}},
		{stub: "no compiler", env: []string{"HOCKET_LIBNVRTC=/none/libnvrtc.so"},
			words: []string{"/none/libnvrtc.so", "pip install nvidia-cuda-nvrtc", "HOCKET_LIBNVRTC"}},
		{stub: "no products", env: []string{"HOCKET_LIBCUBLASLT=/none/libcublasLt.so"},
			words: []string{"/none/libcublasLt.so", "pip install nvidia-cublas", "HOCKET_LIBCUBLASLT"}},
		{stub: "no NCCL", program: "all.hkt",
			words: []string{"/none/libnccl.so", "pip install nvidia-nccl", "HOCKET_LIBNCCL"}},
		{stub: "out of memory", words: []string{"arena of rank 0", "out of memory", "free on GPU 0"}},
		{stub: "bad source", words: []string{"add", "p.hkt:4", "line 7: no such thing"}},
		{stub: "bad image", words: []string{"loading kernel", "p.hkt:4", "CUDA_ERROR_STUB"}},
		{stub: "refused launch", words: []string{"rank 0, stream main", "p.hkt:4", "cuLaunchKernel"}},
		{stub: "fault", lost: true, words: []string{"rank 0, stream main", "p.hkt:", "CUDA_ERROR_ILLEGAL_ADDRESS"}},
	} {
		t.Run(c.stub, func(t *testing.T) {
			code, text, left := s.run(c.stub, c.env, cmp.Or(c.program, "p.hkt"))
			if code != 3 {
				t.Errorf("exit code %d, want 3", code)
			}
			for _, w := range c.words {
				if !strings.Contains(text, w) {
					t.Errorf("%q is not said:\n%s", w, text)
				}
			}
			if left != "0" && left != "" && !c.lost {
				t.Errorf("%s things were not given back", left)
			}
		})
	}
	if code, text, left := s.run("", nil, "p.hkt"); code != 0 || left != "0" {
		t.Errorf("with nothing broken: exit code %d, %s left\n%s", code, left, text)
	}
}

// TestDoctorMulticast checks that hocket doctor reports whether the user opted in to multicast, and how many GPUs
// support it.
func TestDoctorMulticast(t *testing.T) {
	s := newStubs(t)
	for env, want := range map[string]string{"HOCKET_MULTICAST=": "off (HOCKET_MULTICAST=on opts in); 2 of 2 GPUs support it", "HOCKET_MULTICAST=on": "on; 2 of 2 GPUs support it"} {
		code, text, _ := s.hocket("", []string{env}, "doctor")
		if line := regexp.MustCompile(`(?m)^ +multicast +(.*)$`).FindStringSubmatch(text); code != 0 || line == nil ||
			line[1] != want {
			t.Errorf("%s: exit code %d, %q, want %q", env, code, line, want)
		}
	}
}

// newStubs builds stub libraries with all functions that hocket needs, which it learns from the errors about missing
// functions.
func newStubs(t *testing.T) *stubs {
	t.Helper()
	if !cabi.Callable {
		t.Skip("this build calls no C libraries")
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler to make libraries with")
	}
	s := &stubs{T: t, dir: t.TempDir()}
	for name, src := range map[string]string{
		"p.hkt":   "mesh tp[1]\nfunc f(%x: f32[8]) -> f32[8] {\n  // a kernel\n  %y = add %x, %x\n  return %y\n}\n",
		"all.hkt": "mesh tp[2]\nfunc f(%x: f32[8/tp]) -> f32[8] {\n  %y = all_gather %x, over=tp, axis=0, algorithm=nccl\n  return %y\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(src), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	stub, err := os.ReadFile(filepath.Join("testdata", "stub.c"))
	if err != nil {
		t.Fatal(err)
	}
	build := func(rest, source string) {
		t.Helper()
		for name, text := range map[string]string{"rest.h": rest, "stub.c": source} {
			if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := exec.Command(cc, "-shared", "-fPIC", "-w", "-o", s.library(),
			filepath.Join(s.dir, "stub.c")).CombinedOutput(); err != nil {
			t.Skipf("the C compiler: %v\n%s", err, out)
		}
	}
	// The error names the functions that one library lacks; these are added, and the next library is tried.
	var rest strings.Builder
	has := string(stub)
	build("", "int nothing;")
	for range 4 {
		code, text, _ := s.run("", nil, "p.hkt")
		missing := regexp.MustCompile(`has no ([\w, ]+)`).FindStringSubmatch(text)
		if missing == nil {
			break
		}
		if code != 3 || !strings.Contains(text, "too old") && !strings.Contains(text, "install it") {
			t.Fatalf("a library without its functions: exit code %d\n%s", code, text)
		}
		for _, name := range strings.Split(missing[1], ", ") {
			if name = strings.TrimSpace(name); !strings.Contains(has, " "+name+"(") {
				fmt.Fprintf(&rest, "int %s(void) { return 0; }\n", name)
				has += " " + name + "("
			}
		}
		build(rest.String(), string(stub))
	}
	return s
}

func (s *stubs) library() string { return filepath.Join(s.dir, "libstub.so") }

// run runs the program on the stub libraries, in which the call that the argument stub names fails. run also returns
// the objects that were created and not released.
func (s *stubs) run(stub string, env []string, program string) (code int, text, left string) {
	s.Helper()
	return s.hocket(stub, env, "run", filepath.Join(s.dir, program), "-m", "cuda")
}

// hocket is like run, but for any command line.
func (s *stubs) hocket(stub string, env []string, args ...string) (code int, text, left string) {
	s.Helper()
	counts := filepath.Join(s.dir, "left")
	_ = os.Remove(counts)
	c := exec.Command(os.Args[0], args...)
	c.Args[0] = "hocket"
	c.Env = slices.Concat(os.Environ(), []string{"STUB=" + stub, "STUB_LEFT=" + counts,
		"HOCKET_CACHE=" + filepath.Join(s.dir, "none", stub),
		"HOCKET_LIBCUDA=" + s.library(), "HOCKET_LIBNVRTC=" + s.library(), "HOCKET_LIBCUBLASLT=" + s.library(),
		"HOCKET_LIBNCCL=/none/libnccl.so", "HOCKET_LIBNVML=/none/libnvml.so"}, env)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		s.Fatal(err)
	}
	if b, err := os.ReadFile(counts); err == nil {
		left = string(b)
	}
	return code, out.String(), left
}
