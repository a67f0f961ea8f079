package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/checkpoint"
	"hocket.example/hocket/internal/exported"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// inputs holds the parsed values of --in.
type inputs struct {
	specs map[string]tensor.Spec // by parameter
	files []string               // whole safetensors files
	dirs  []string               // checkpoints
	rest  tensor.Spec            // the default input, for parameters without an input
	fixed bool                   // the command line sets rest
	open  []io.Closer            // the files in which tensors were found
	// small sets every integer parameter without an input to random values -1, 0 and 1, independent of rest.
	small bool
	// others holds the tensors in files that have the name of no parameter. If others is nil, these tensors are an
	// error. The weights of an exported model have other names than the parameters into which they are stacked.
	others map[string]exported.Source
	// unnamed holds the files and checkpoints of which no tensor has a parameter's name.
	unnamed []unnamedFile
	// rank is the rank whose part of an archive's weights is read, and ranks is the number of ranks. If ranks is 0, all
	// elements of the weights are read. sums holds the checksums of weights of which only a part is read.
	rank, ranks int
	sums        map[string]string
	// archived lists the parameters whose values are read from the model's archive.
	archived []string
}

// unnamedFile is a file or checkpoint and the names of its tensors.
type unnamedFile struct {
	path    string
	tensors []string
}

// reals returns inputs in which parameters without an input have random real numbers instead of small integers. If
// small is set, integer parameters keep small integers.
func (in *inputs) reals(small bool) *inputs {
	out := *in
	out.rest.Kind, out.small = tensor.SpecRand, small
	return &out
}

var namedInput = regexp.MustCompile(`^%?([A-Za-z_][A-Za-z0-9_.]*)=(.*)$`)

// parseInputs parses the --in flags. seed is the seed of the default input, ints:SEED.
func parseInputs(list []string, seed uint64) (*inputs, error) {
	in := &inputs{specs: map[string]tensor.Spec{}, rest: tensor.Spec{Kind: tensor.SpecInts, Seed: seed}}
	for _, s := range list {
		name, text := "", s
		if m := namedInput.FindStringSubmatch(s); m != nil {
			name, text = m[1], m[2]
		}
		if info, err := os.Stat(text); err == nil && info.IsDir() && name == "" &&
			!strings.HasSuffix(text, ".safetensors") {
			in.dirs = append(in.dirs, text)
			continue
		}
		spec, err := tensor.ParseSpec(text)
		if err != nil {
			return nil, usagef("--in: %w", err)
		}
		if err := in.add(s, name, spec); err != nil {
			return nil, err
		}
	}
	return in, nil
}

func (in *inputs) add(flag, name string, spec tensor.Spec) error {
	_, twice := in.specs[name]
	switch {
	case twice:
		return usagef("--in: %s is given twice", name)
	case name != "":
		in.specs[name] = spec
	case spec.Kind == tensor.SpecSafetensors && spec.Name == "":
		in.files = append(in.files, spec.File)
	case spec.Kind == tensor.SpecSafetensors || spec.Kind == tensor.SpecNpy:
		return usagef("--in %s: the parameter's name is missing: write NAME=%s", flag, flag)
	case in.fixed:
		return usagef("--in %s: the default for all other parameters is given twice", flag)
	default:
		in.rest, in.fixed = spec, true
	}
	return nil
}

// found describes a tensor that was found in an input file. found holds the tensor's header until the tensor is loaded.
type found struct {
	header *hocket.Tensor
	load   func() (*hocket.Tensor, error)
	from   string // the file; "" for the archive of the model
}

// headers returns the headers of the tensors in files, keyed by parameter.
func headers(got map[string]found) map[string]*hocket.Tensor {
	list := map[string]*hocket.Tensor{}
	for name, f := range got {
		list[name] = f.header
	}
	return list
}

// loadAll reads the elements of the tensors.
func loadAll(got map[string]found) (map[string]*hocket.Tensor, error) {
	list := map[string]*hocket.Tensor{}
	for name, f := range got {
		t, err := f.load()
		if err != nil {
			return nil, inputf("input %s: %w", name, err)
		}
		list[name] = t
	}
	return list, nil
}

// find reads the headers of the tensors in the files, so that they can be compared with the function's parameters
// before any elements are read. find also returns the names of tensors in checkpoints that match no parameter.
func (in *inputs) find(fn *ir.Func) (map[string]found, []string, error) {
	var names []string
	for _, p := range fn.Params {
		names = append(names, p.Name)
	}
	got := map[string]found{}
	for name, spec := range in.specs {
		if !slices.Contains(names, name) {
			return nil, nil, unknownInput(fn, name, "--in")
		}
		f, err := in.findSpec(name, spec)
		if err != nil {
			return nil, nil, inputf("input %s: %w", name, err)
		}
		if f.header != nil {
			got[name] = f
		}
	}
	for _, path := range in.files {
		f, err := tensor.OpenSafetensors(path)
		if err != nil {
			return nil, nil, inputf("%w", err)
		}
		if surplus, err := in.findAll(path, f, names, got); err != nil {
			return nil, nil, err
		} else if len(surplus) > 0 {
			return nil, nil, unknownInput(fn, surplus[0], path)
		}
	}
	var surplus []string
	for _, dir := range in.dirs {
		c, err := checkpoint.Open(dir)
		if err != nil {
			return nil, nil, inputf("--in %s: %w", dir, err)
		}
		more, err := in.findAll(dir, c, names, got)
		if err != nil {
			return nil, nil, err
		}
		if len(more) == len(c.Names()) {
			return nil, nil, inputf("--in %s: no tensor has the name of a parameter: its tensors are %s", dir,
				modelprogram.Some(more)).helping("the parameters are %s", modelprogram.Some(names))
		}
		surplus = append(surplus, more...)
	}
	return got, surplus, nil
}

// tensorFile is an open safetensors file or checkpoint.
type tensorFile interface {
	exported.Source
	io.Closer
	Names() []string
	Read(name string) (*tensor.Tensor, error)
}

// findAll assigns the tensors in a file to the parameters of the same names. findAll adds the other tensors to
// in.others, or returns their names if in.others is nil.
func (in *inputs) findAll(path string, f tensorFile, names []string, got map[string]found) (surplus []string, err error) {
	in.open = append(in.open, f)
	unnamed := true
	for _, name := range f.Names() {
		_, named := in.specs[name]
		switch {
		case !slices.Contains(names, name) && in.others != nil:
			in.others[name] = f
			continue
		case !slices.Contains(names, name):
			surplus = append(surplus, name)
			continue
		case named:
			return nil, inputf("%s: parameter %%%s is given twice: --in %[2]s=%s", path, name, in.specs[name])
		case got[name].header != nil:
			return nil, inputf("%s: parameter %%%s is given twice: %s has it, too", path, name, got[name].from)
		}
		header, err := f.Header(name)
		if err != nil {
			return nil, inputf("%w", err)
		}
		got[name], unnamed = foundIn(f, path, name, header), false
	}
	if unnamed && in.others != nil {
		in.unnamed = append(in.unnamed, unnamedFile{path, f.Names()})
	}
	return surplus, nil
}

// foundIn describes a tensor in a file that stays open.
func foundIn(f tensorFile, path, name string, header *tensor.Tensor) found {
	return found{(*hocket.Tensor)(header), func() (*hocket.Tensor, error) {
		t, err := f.Read(name)
		return (*hocket.Tensor)(t), err
	}, path}
}

// closeFiles closes the files in which tensors were found.
func (in *inputs) closeFiles() {
	for _, f := range in.open {
		_ = f.Close() // the files were only read, so an error has no consequence
	}
	in.open = nil
}

// ofSurplus returns a warning about tensors that match no parameter.
func ofSurplus(fn *ir.Func, names []string) *ir.Diagnostic {
	return &ir.Diagnostic{Severity: ir.Warning, Kind: "input",
		Message: fmt.Sprintf("%s has no parameters for these tensors, which are ignored: %s", fn.Name, modelprogram.Some(names))}
}

// unset returns a warning about the parameters that get random values although the command line names files of tensors.
// unset returns nil if there are no such parameters, or if the command line gives a default input for them.
func (in *inputs) unset(fn *ir.Func, got map[string]found) *ir.Diagnostic {
	var left []string
	for _, p := range fn.Params {
		if _, given := in.specs[p.Name]; !given && got[p.Name].header == nil {
			left = append(left, p.Name)
		}
	}
	if len(in.files)+len(in.dirs) == 0 || in.fixed || len(left) == 0 {
		return nil
	}
	return &ir.Diagnostic{Severity: ir.Warning, Kind: "input",
		Message: fmt.Sprintf("%d of the %d parameters of %s have no tensor in %s, and get random values: %s", len(left),
			len(fn.Params), fn.Name, modelprogram.Some(slices.Concat(in.files, in.dirs)), modelprogram.Some(left)),
		Help: fmt.Sprintf("--in NAME=INPUT gives a parameter another value; --in %s generates them without this warning",
			in.rest)}
}

// sources describes the origin of the values of a run's parameters: files, the archive, or generated numbers.
func (in *inputs) sources(fn *ir.Func, got map[string]*hocket.Tensor) string {
	var files, archive, zeros []string
	generated := map[string][]string{}
	for _, p := range fn.Params {
		spec, ok := in.specs[p.Name]
		switch t := got[p.Name]; {
		case t != nil:
			if slices.Contains(in.archived, p.Name) {
				archive = append(archive, "%"+p.Name)
			} else {
				files = append(files, "%"+p.Name)
			}
			if p.Inout && len(bytes.Trim(t.Data, "\x00")) == 0 {
				zeros = append(zeros, "%"+p.Name)
			}
			continue
		case !ok:
			spec = in.rest
		}
		text := spec.String()
		switch spec.Kind {
		case tensor.SpecInts:
			text = fmt.Sprintf("random integers (%s)", text)
		case tensor.SpecRand:
			text = fmt.Sprintf("random reals (%s)", text)
		}
		generated[text] = append(generated[text], "%"+p.Name)
	}
	var parts []string
	for _, text := range slices.Sorted(maps.Keys(generated)) {
		parts = append(parts, fmt.Sprintf("%s for %s", text, modelprogram.Some(generated[text])))
	}
	if len(files) > 0 {
		parts = append(parts, "files for "+modelprogram.Some(files))
	}
	if len(archive) > 0 {
		parts = append(parts, "the archive for "+modelprogram.Few(archive))
	}
	if len(zeros) > 0 {
		parts = append(parts, "state that starts at 0: "+modelprogram.Some(zeros))
	}
	if len(parts) == 0 {
		return "inputs: none"
	}
	return "inputs: " + strings.Join(parts, "; ")
}

func unknownInput(fn *ir.Func, name, where string) error {
	var list []string
	for _, p := range fn.Params {
		list = append(list, fmt.Sprintf("%%%s: %s", p.Name, p.Type))
	}
	if len(name) > 100 {
		name = strings.ToValidUTF8(name[:100], "") + "…"
	}
	f := inputf("%s: %s has no parameter %%%s", where, fn.Name, name)
	if len(list) == 0 {
		return f.helping("it has none")
	}
	more := ""
	if strings.HasSuffix(name, ".weight") {
		more = "; only archives (.pt2) take weights by the names of modules: see docs/models.md"
	}
	return f.helping("its parameters are %s%s", strings.Join(list, ", "), more)
}

// findSpec returns the header of the tensor that an input selects from a file. For generated inputs it returns nil.
func (in *inputs) findSpec(name string, spec tensor.Spec) (found, error) {
	switch spec.Kind {
	case tensor.SpecNpy:
		t, err := tensor.NpyHeader(spec.File)
		return found{(*hocket.Tensor)(t), func() (*hocket.Tensor, error) {
			t, err := tensor.ReadNpyFile(spec.File)
			return (*hocket.Tensor)(t), err
		}, spec.File}, err
	case tensor.SpecSafetensors:
		f, err := tensor.OpenSafetensors(spec.File)
		if err != nil {
			return found{}, err
		}
		in.open = append(in.open, f)
		if spec.Name != "" {
			name = spec.Name
		}
		t, err := f.Header(name)
		return foundIn(f, spec.File, name, t), err
	}
	return found{}, nil
}

// inferDims sets dims from the shapes of tensors in files. inferDims sets each dim that alone is the extent of a
// parameter's dimension, unless the command line sets the dim.
func inferDims(fn *ir.Func, got map[string]*hocket.Tensor, b hocket.Binding) error {
	from := map[string]string{} // by dim: the parameter that has set it
	for name := range b.Dims {
		from[name] = "--dim"
	}
	for _, p := range fn.Params {
		t := got[p.Name]
		if t == nil || len(t.Shape) != len(p.Type.Dims) {
			continue // checkInputs returns an error about this tensor
		}
		for i, d := range p.Type.Dims {
			name := d.Extent.Name
			if _, defined := b.Defines[name]; defined || d.Extent.Kind != ir.ExprName {
				continue
			}
			if v, ok := b.Dims[name]; ok && v != t.Shape[i] {
				return inputf("dimension %d of %%%s is %d, but %s=%d (%s)", i, p.Name, t.Shape[i], name, v, from[name])
			}
			if from[name] == "" {
				b.Dims[name], from[name] = t.Shape[i], "from %"+p.Name
			}
		}
	}
	return nil
}

// checkInputs compares the tensors in files with the function's parameters.
func checkInputs(sig *hocket.Signature, got map[string]*hocket.Tensor) error {
	var wrong []string
	for _, p := range sig.In {
		t := got[p.Name]
		if t == nil || t.DType == p.DType && slices.Equal(t.Shape, p.Shape) {
			continue
		}
		want := hocket.Tensor{DType: p.DType, Shape: p.Shape}
		wrong = append(wrong, fmt.Sprintf("%%%s is %s, want %s", p.Name, t, &want))
	}
	if len(wrong) > 0 {
		return inputf("wrong inputs: %s", strings.Join(wrong, "; "))
	}
	return nil
}

// make returns the arguments of repetition rep. Tensors from files are the same in every repetition; all others are
// generated again with the seed plus rep.
func (in *inputs) make(sig *hocket.Signature, got map[string]*hocket.Tensor, rep int) (hocket.Args, error) {
	args := hocket.Args{In: map[string]*hocket.Tensor{}}
	for _, p := range sig.In {
		if t := got[p.Name]; t != nil {
			args.In[p.Name] = t
			continue
		}
		spec, ok := in.specs[p.Name]
		if !ok {
			spec = in.rest
			if in.small && p.DType.IsInt() {
				spec.Kind = tensor.SpecInts
			}
		}
		spec.Below, spec.Ascending = p.Below, p.Ascending
		spec.Seed += uint64(rep)
		t, err := hocket.NewTensor(p.DType, p.Shape...)
		if err == nil {
			err = tensor.Fill((*tensor.Tensor)(t), p.Name, spec)
		}
		if err != nil {
			return args, inputf("%%%s: %w", p.Name, err)
		}
		args.In[p.Name] = t
	}
	return args, nil
}
