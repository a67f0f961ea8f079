package main

import (
	"os"
	"path/filepath"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/tensor"
)

// writable checks, before anything runs, that the requested files can be written.
func (j *job) writable() error {
	if !j.first {
		return nil
	}
	var err error
	if j.flags.save != "" {
		if err = os.MkdirAll(j.flags.save, 0o777); err == nil {
			err = files.Check(outputsFile(j.flags.save))
		}
	}
	for _, file := range []string{j.flags.trace, j.flags.svg, j.flags.report, j.flags.flight} {
		if err == nil && file != "" {
			err = files.Check(file)
		}
	}
	if err != nil {
		return &failure{code: exitUsage, kind: "output", err: err}
	}
	return nil
}

// write writes the requested files, with the results of the last repetition.
func (j *job) write(rep *hocket.Report) error {
	if !j.first {
		return nil
	}
	var err error
	if j.flags.save != "" {
		err = save(j.flags.save, rep)
	}
	if err == nil && j.flags.trace != "" {
		err = files.Write(j.flags.trace, rep.WriteTrace)
	}
	if err == nil && j.flags.svg != "" {
		err = files.Write(j.flags.svg, rep.WriteSVG)
	}
	if err == nil && j.flags.report != "" {
		err = j.report(rep.WriteHTML)
	}
	if err != nil {
		return &failure{code: exitUsage, kind: "output", err: err}
	}
	return nil
}

// save writes the results, global tensors named as in the text, to
// DIR/outputs.safetensors.
func save(dir string, rep *hocket.Report) error {
	var list []tensor.Named
	for _, name := range rep.OutNames {
		list = append(list, tensor.Named{Name: name, Tensor: (*tensor.Tensor)(rep.Out[name])})
	}
	return tensor.WriteSafetensorsFile(outputsFile(dir), list, nil)
}

func outputsFile(dir string) string { return filepath.Join(dir, "outputs.safetensors") }
