package main

import (
	"errors"
	"io"
	"os"
	"slices"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/exported"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/torchexport"
)

// maxPlan bounds a file of a tensor-parallel plan.
const maxPlan = 1 << 20

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

// importExport imports the archive that arg names for so many ranks, 0 for one, and keeps it in a.export.
func (a *app) importExport(arg string, ranks int) (*exported.Model, error) {
	plan, err := a.plan.plan()
	if err != nil {
		return nil, err
	}
	m, err := exported.Open(arg, modelprogram.Options{Plan: plan, Ranks: ranks})
	if err != nil {
		return nil, ofExport(err)
	}
	a.export = m
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

// findExported finds the weights, constants and states of an exported model that nothing else gives. files has tensors
// of other files, by their names there, which count more than the archive's; those of use are removed.
func findExported(m *exported.Model, got map[string]found, given func(name string) bool,
	files map[string]exported.Source) error {
	list, used, err := m.Contents(files, func(name string) bool { return got[name].header != nil || given(name) })
	if err != nil {
		return inputf("%w", err)
	}
	for _, name := range used {
		delete(files, name)
	}
	for _, c := range list {
		got[c.Param.Name] = found{(*hocket.Tensor)(&c.Header), func() (*hocket.Tensor, error) {
			t, err := c.Read(0, 0)
			return (*hocket.Tensor)(t), err
		}}
	}
	return nil
}

// checkpointSource reads tensors of a checkpoint's folder.
type checkpointSource struct{ *hocket.Checkpoint }

func (c checkpointSource) Header(name string) (*tensor.Tensor, error) {
	t, err := c.Checkpoint.Header(name)
	return (*tensor.Tensor)(t), err
}

func (c checkpointSource) ReadAt(to []byte, name string, from int64) error {
	t, err := c.Tensor(name)
	if err == nil {
		copy(to, t.Data[from:])
	}
	return err
}
