// Package kernelfile reads files with GPU kernels for programs to launch (CUDA C++, PTX and cubins), and lists the
// kernels and their parameters.
package kernelfile

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/ir"
)

// mostBytes is the largest permitted size in bytes of a kernel file.
const mostBytes = 64 << 20

// Param is a parameter of a kernel. Size is the parameter's size in bytes, 0 if the file does not state it. Pointer is
// set if the parameter is certainly a pointer, Value if it is certainly not one.
type Param struct {
	Size           int
	Pointer, Value bool
}

// Kernels maps the names of a file's kernels to their parameters, which are nil if unknown.
type Kernels map[string][]Param

// Read reads the files that p's launches name, below dir, into p.Files, and compares each launch
// with the kernel that it names. It does not read files that p.Files already contains.
func Read(p *ir.Program, dir string) ir.Diagnostics {
	var ds ir.Diagnostics
	found := map[string]*parsed{}
	for _, f := range p.Funcs {
		f.Body.Walk(func(s *ir.Stmt) {
			if s.Op != ir.OpLaunch || len(ds) >= 50 {
				return
			}
			k := found[s.Launch.File]
			if k == nil {
				k = load(p, dir, s.Launch.File)
				found[s.Launch.File] = k
			}
			if d := k.check(p, s); d != nil {
				ds = append(ds, d)
			}
		})
	}
	return ds
}

// parsed is a parsed file, or the reason why it cannot be used.
type parsed struct {
	kernels  Kernels
	err      error
	help     string
	reported bool // whether err has been reported
}

func load(p *ir.Program, dir, name string) *parsed {
	b, ok := p.Files[name]
	if !ok {
		var err error
		if b, err = files.ReadBelow(dir, filepath.FromSlash(name), mostBytes); err != nil {
			help := "paths of kernel files are relative to the program's directory"
			if !errors.Is(err, fs.ErrNotExist) {
				help = ""
			}
			return &parsed{err: err, help: help}
		}
		if p.Files == nil {
			p.Files = map[string][]byte{}
		}
		p.Files[name] = b
	}
	kernels, err := Parse(name, b)
	return &parsed{kernels: kernels, err: err}
}

// Parse returns the kernels of a file with their parameters.
func Parse(name string, b []byte) (Kernels, error) {
	switch filepath.Ext(name) {
	case ".cu":
		return source(string(b)), nil
	case ".ptx":
		return ptx(string(b)), nil
	}
	return cubin(b)
}

func (k *parsed) check(p *ir.Program, s *ir.Stmt) *ir.Diagnostic {
	l := s.Launch
	if k.err != nil {
		if k.reported {
			return nil
		}
		k.reported = true
		d := p.Diag("launch", l.Pos, "%q cannot be read: %v", l.File, k.err)
		d.Help = k.help
		return d
	}
	params, ok := k.kernels[l.Kernel.Text]
	if !ok {
		d := p.Diag("launch", l.Kernel.Pos, "%q has no kernel %s", l.File, l.Kernel.Text)
		if d.Help = `kernels are extern "C" __global__ functions`; len(k.kernels) > 0 {
			d.Help = "it has " + strings.Join(slices.Sorted(maps.Keys(k.kernels)), ", ")
		}
		return d
	}
	if params == nil {
		return nil
	}
	if len(params) != len(l.Params) {
		d := p.Diag("launch", l.Kernel.Pos, "%s takes %d arguments, and gets %d", l.Name(), len(params), len(l.Params))
		if d.Help = "pass one argument for each of the kernel's parameters"; len(params) > len(l.Params) {
			d.Help += "; an argument that the kernel does not use may be i64 0, such as the two pointers at the end of Triton's kernels"
		}
		return d
	}
	for i, want := range params {
		if why := mismatch(want, l.Params[i]); why != "" {
			return p.Diag("launch", l.Params[i].Pos, "argument %d of %s %s", i, l.Name(), why)
		}
	}
	return nil
}

// mismatch returns the reason why an argument does not fit a parameter; "" if it does.
func mismatch(want Param, have ir.LaunchParam) string {
	size := 8
	if have.Kind == ir.LaunchNumber {
		size = int(have.DType.Size())
	}
	switch {
	case have.Kind == ir.LaunchNumber && want.Pointer && size != 8:
		return fmt.Sprintf("is a pointer, and gets a number of type %s", have.DType)
	case have.Kind != ir.LaunchNumber && want.Value:
		return "is a number, and gets a tensor"
	case want.Size != 0 && want.Size != size:
		return fmt.Sprintf("has %d bytes, and gets %d: say which type it is, i32, i64, f32 or f64", want.Size, size)
	}
	return ""
}
