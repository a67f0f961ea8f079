package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/exported"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/stablehlo"
	"hocket.example/hocket/internal/torchexport"
	"hocket.example/hocket/ir"
)

// maxPlan is the largest size of the file of a tensor-parallel plan, in bytes.
const maxPlan = 1 << 20

// planFlags holds the flags that set the layouts and types of the parameters of exported models.
type planFlags struct {
	files    []string // at most one
	quantize string   // the form in which weights of linears are quantized; empty for none
	shards   []string
}

// unset returns an error if a flag is set although arg, which contains the text src, is not an exported model.
func (f *planFlags) unset(arg, src string) error {
	if len(f.files) == 0 && len(f.shards) == 0 && f.quantize == "" {
		return nil
	}
	if strings.TrimSpace(src) == "" {
		return inputf("%s is empty", arg)
	}
	return usagef("--plan, --shard and --quantize apply only to models that torch exported, but %s is not one", arg)
}

// plan returns the tensor-parallel plan that the flags describe. A --shard flag overrides the file.
func (p *planFlags) plan() (modelprogram.Plan, error) {
	var plan modelprogram.Plan
	if len(p.files) > 1 {
		return nil, usagef("--plan is given twice").helping("--shard adds entries to a plan, and overrides them")
	}
	for _, file := range p.files {
		text, err := files.Read(file, maxPlan)
		if err != nil {
			return nil, inputf("--plan: %w", err)
		}
		if plan, err = modelprogram.ParsePlan(text); err != nil {
			return nil, inputf("--plan %s: %w", file, err)
		}
	}
	shard, err := modelprogram.ParseRules(p.shards)
	if err != nil {
		return nil, usagef("--shard: %w", err)
	}
	return plan.With(shard), nil
}

// isExport reports whether arg names a zip archive, which is the format that torch.export.save writes.
func isExport(arg string) bool { return torchexport.IsArchive(files.Begin(arg, 4)) }

// importExport imports the archive that arg names and stores the model in a.export. ranks is the number of ranks; 0
// means 1.
func (a *programs) importExport(arg string, ranks int) (*exported.Model, error) {
	plan, err := a.plan.plan()
	if err != nil {
		return nil, err
	}
	if a.plan.quantize != "" && !slices.Contains(modelprogram.Forms, a.plan.quantize) {
		return nil, usagef("--quantize is %q; it can be %s", a.plan.quantize, strings.Join(modelprogram.Forms, ", "))
	}
	m, err := exported.Open(arg, modelprogram.Options{Plan: plan, Ranks: ranks, Quantize: a.plan.quantize})
	if err != nil {
		return nil, ofExport(err)
	}
	for _, u := range m.Unused {
		if u.Overrides {
			return nil, errors.Join(usagef("--shard: %s: %s", arg, u).helping("its weights are %s",
				modelprogram.Some(m.WeightNames())), m.Close())
		}
	}
	if err := m.CheckPlan(plan); err != nil {
		return nil, errors.Join(inputf("--plan %s: %w", strings.Join(a.plan.files, ""), err), m.Close())
	}
	if n := len(m.Unused); n > 0 {
		a.ofPlan = hocket.Diagnostics{{Severity: ir.Warning, Kind: "plan", Message: fmt.Sprintf(
			"--plan: %d of %d entries match; %s", len(plan)-n, len(plan), m.UnusedText())}}
	}
	a.warnings = a.ofPlan
	a.export = m
	return m, nil
}

// ofExport classifies an error of an import: the model cannot be converted to a program, or the file is malformed.
func ofExport(err error) error {
	if errors.Is(err, torchexport.ErrUnsupported) || errors.Is(err, stablehlo.ErrUnsupported) ||
		errors.Is(err, modelprogram.ErrUnsupported) || errors.Is(err, graph.ErrTooLarge) {
		return &failure{code: exitProgram, kind: "import", err: err}
	}
	return inputf("%w", err)
}

// parseExport is like parseProgram for an archive.
func (a *programs) parseExport(arg string, b *hocket.Binding) (*hocket.Program, error) {
	m, err := a.importExport(arg, b.Ranks)
	if err != nil {
		return nil, err
	}
	why := ""
	switch {
	case b.Ranks == 0 && len(a.plan.files)+len(a.plan.shards) > 0:
		why = "without -n, " + arg + " has 1 rank, and --plan and --shard split nothing: pass -n RANKS"
	case b.Ranks > 1 && m.Whole():
		why = fmt.Sprintf("nothing is split: each of the %d ranks computes everything; --plan and --shard split weights", b.Ranks)
	}
	if why != "" {
		a.ofPlan = append(a.ofPlan, &ir.Diagnostic{Severity: ir.Warning, Kind: "plan", Message: why})
	}
	return a.programOf(m.Model)
}

// programOf returns the program into which an import has converted the model m.
func (a *programs) programOf(m *modelprogram.Model) (*hocket.Program, error) {
	a.source = m.Text
	p, err := hocket.New(m.Info.Prog)
	if err != nil {
		return nil, err
	}
	a.warnings = slices.Concat(a.ofPlan, p.Warnings())
	return p.Within(a.limits), nil
}

// find finds the tensors in files that have the names of the program's parameters, and lists the tensors that match no
// parameter. For an exported model it also finds the weights, constants and states that no input sets: tensors in files
// have the names of the model's modules, and override those in the archive.
func (a *programs) find(in *inputs, fn *ir.Func) (got map[string]found, surplus []string, err error) {
	if a.export == nil {
		return in.find(fn)
	}
	in.others, in.unnamed = map[string]exported.Source{}, nil
	in.open = append(in.open, a.export)
	if got, surplus, err = in.find(fn); err != nil {
		return nil, nil, err
	}
	for _, p := range a.export.Params {
		if _, given := in.specs[p.Name]; p.Quantized != nil && (given || got[p.Name].header != nil) {
			return nil, nil, inputf("--in: %%%s has values that --quantize computes from %s: give that weight in a "+
				".safetensors file", p.Name, strings.Join(p.Weights, ", "))
		}
	}
	list, used, err := a.export.Contents(in.others, func(name string) bool {
		_, given := in.specs[name]
		return given || got[name].header != nil
	})
	if err != nil {
		return nil, nil, inputf("%w", err)
	}
	for _, f := range in.unnamed {
		if err := a.export.CheckFile(f.path, f.tensors, used); err != nil {
			return nil, nil, inputf("--in: %w", err)
		}
	}
	in.archived = nil
	for _, c := range list {
		if c.Archived() {
			in.archived = append(in.archived, c.Param.Name)
		}
		sums := c.Checksums()
		got[c.Param.Name] = found{(*hocket.Tensor)(&c.Header), func() (*hocket.Tensor, error) {
			if in.ranks == 0 || sums == "" {
				t, err := c.Read(0, 0)
				return (*hocket.Tensor)(t), err
			}
			in.sums[c.Param.Name] = sums
			t, err := c.Read(in.rank, in.ranks)
			return (*hocket.Tensor)(t), err
		}, ""}
	}
	for name := range in.others {
		if !slices.Contains(used, name) {
			surplus = append(surplus, name)
		}
	}
	slices.Sort(surplus)
	return got, surplus, nil
}
