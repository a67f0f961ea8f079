package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/torchexport"
	"hocket.example/hocket/ir"
)

// maxPlan bounds a file of a tensor-parallel plan.
const maxPlan = 1 << 20

// export is a program that was imported from an archive of torch.export, which has its weights.
type export struct {
	archive *torchexport.Archive
	params  []modelprogram.Param
}

// planFlags are the flags that lay out the parameters of exported models.
type planFlags struct {
	file   string
	shards []string
}

// plan reads the tensor-parallel plan that the flags give. A --shard counts more than the file.
func (p *planFlags) plan() (modelprogram.Plan, error) {
	var plan modelprogram.Plan
	if p.file != "" {
		text, err := files.Read(p.file, maxPlan)
		if err == nil {
			plan, err = modelprogram.ParsePlan(text)
		}
		if err != nil {
			return nil, inputf("--plan %s: %w", p.file, err)
		}
	}
	for _, s := range p.shards {
		r, err := modelprogram.ParseRule(s)
		if err != nil {
			return nil, usagef("--shard: %w", err)
		}
		plan = slices.DeleteFunc(plan, func(have modelprogram.Rule) bool { return have.Pattern == r.Pattern })
		plan = append(plan, r)
	}
	return plan, nil
}

// isExport reports whether arg names a zip, as torch.export.save writes.
func isExport(arg string) bool {
	info, err := os.Stat(arg)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, _, err := files.Open(arg)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 4)
	n, _ := io.ReadFull(f, head)
	return torchexport.IsArchive(head[:n])
}

// importExport imports the archive that arg names for so many ranks, 0 for one, and keeps its weights in a.export.
func (a *app) importExport(arg string, ranks int) (*modelprogram.Model, error) {
	plan, err := a.plan.plan()
	if err != nil {
		return nil, err
	}
	archive, err := torchexport.Open(arg)
	if err != nil {
		return nil, ofExport(err)
	}
	g, err := archive.Graph()
	var m *modelprogram.Model
	if err == nil {
		m, err = modelprogram.Make(arg, g, modelprogram.Options{Plan: plan, Ranks: ranks})
	}
	if err != nil {
		return nil, errors.Join(ofExport(err), archive.Close())
	}
	a.export = &export{archive, m.Params}
	return m, nil
}

// ofExport classifies what an import returned: a program that is refused, or a file that is wrong.
func ofExport(err error) error {
	if errors.Is(err, torchexport.ErrUnsupported) || errors.Is(err, modelprogram.ErrUnsupported) ||
		errors.Is(err, graph.ErrTooLarge) {
		return &failure{code: exitProgram, kind: "import", err: err}
	}
	return inputf("%w", err)
}

// parseExport is parseProgram of an archive.
func (a *app) parseExport(arg string, b *hocket.Binding) (*hocket.Program, error) {
	m, err := a.importExport(arg, b.Ranks)
	if err != nil {
		return nil, err
	}
	a.source = m.Text
	p, err := hocket.New(m.Info.Prog)
	if err != nil {
		return nil, err
	}
	a.warnings = p.Warnings()
	return p.Within(a.limits), nil
}

// findExported finds the weights and constants of an exported model that nothing else gives. pool has weights of other
// files, by their names there, which count more than the archive's; what it has of use is removed.
func (e *export) findExported(got map[string]found, given func(name string) bool, pool map[string]found) error {
	for _, p := range e.params {
		if p.Input || got[p.Name].header != nil || given(p.Name) {
			continue
		}
		dt, ok := ir.ParseDType(string(p.DType))
		if !ok {
			return inputf("%%%s has element type %s", p.Name, p.DType)
		}
		header := &tensor.Tensor{DType: dt, Shape: p.Shape}
		if p.Constant != nil {
			got[p.Name] = found{(*hocket.Tensor)(header), func() (*hocket.Tensor, error) {
				t, err := tensor.New(dt, p.Shape)
				if err == nil {
					for i, x := range p.Constant.Elems {
						t.SetFloat64(int64(i), x)
					}
				}
				return (*hocket.Tensor)(t), err
			}}
			continue
		}
		parts := make([]func(to *tensor.Tensor) error, len(p.Weights))
		for i, name := range p.Weights {
			if other := ofPool(pool, name); other != "" {
				f := pool[other]
				delete(pool, other)
				parts[i] = func(to *tensor.Tensor) error { return copyFound(to, f, other) }
				continue
			}
			have, err := e.archive.Header(name)
			if err != nil {
				return inputf("%w", err)
			}
			parts[i] = func(to *tensor.Tensor) error {
				to.Shape = have.Shape
				return e.archive.ReadInto(to, name)
			}
		}
		got[p.Name] = found{(*hocket.Tensor)(header), func() (*hocket.Tensor, error) { return stacked(header, parts) }}
	}
	return nil
}

// ofPool returns the name, in another file, of a weight: the longest that ends like it, since archives have the names
// of modules around the model in front of it.
func ofPool(pool map[string]found, weight string) string {
	for rest, more := weight, true; more; _, rest, more = strings.Cut(rest, ".") {
		if _, ok := pool[rest]; ok && strings.Contains(rest, ".") {
			return rest
		}
	}
	return ""
}

// copyFound reads a tensor of a file into a layer of a stack.
func copyFound(to *tensor.Tensor, f found, name string) error {
	t, err := f.load()
	if err != nil {
		return err
	}
	if t.DType != to.DType || len(t.Data) != len(to.Data) {
		return fmt.Errorf("%q is %s, which does not fit", name, t)
	}
	copy(to.Data, t.Data)
	return nil
}

// stacked reads the parts of a tensor, one behind the other.
func stacked(header *tensor.Tensor, parts []func(to *tensor.Tensor) error) (*hocket.Tensor, error) {
	t, err := tensor.New(header.DType, header.Shape)
	if err != nil {
		return nil, err
	}
	each := len(t.Data) / len(parts)
	shape := header.Shape
	if len(parts) > 1 {
		shape = shape[1:]
	}
	for i, read := range parts {
		if err := read(&tensor.Tensor{DType: t.DType, Shape: shape, Data: t.Data[i*each : (i+1)*each]}); err != nil {
			return nil, err
		}
	}
	return (*hocket.Tensor)(t), nil
}
