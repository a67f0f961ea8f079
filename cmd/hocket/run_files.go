package main

import (
	"os"
	"path/filepath"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/tensor"
)

// writable checks, before anything runs, that the requested files can be written.
func (j *job) writable() error {
	if !j.first {
		return nil
	}
	outputs := []string{j.flags.trace, j.flags.svg, j.flags.html, j.flags.flight}
	if j.flags.save != "" {
		if err := os.MkdirAll(j.flags.save, 0o777); err != nil {
			return outputFailure(err)
		}
		outputs = append(outputs, outputsFile(j.flags.save))
	}
	return checkOutputs(outputs...)
}

// write writes the requested files, with the results of the last repetition.
func (j *job) write(rep *hocket.Report) error {
	if !j.first {
		return nil
	}
	if j.flags.save != "" {
		if err := save(j.flags.save, rep); err != nil {
			return outputFailure(err)
		}
	}
	if err := writeOutput(j.flags.trace, rep.WriteTrace); err != nil {
		return err
	}
	if err := writeOutput(j.flags.svg, rep.WriteSVG); err != nil {
		return err
	}
	return j.page(rep.WriteHTML)
}

// save writes the results to DIR/outputs.safetensors, as global tensors with the names in the program.
func save(dir string, rep *hocket.Report) error {
	var list []tensor.Named
	for _, name := range rep.OutNames {
		list = append(list, tensor.Named{Name: name, Tensor: (*tensor.Tensor)(rep.Out[name])})
	}
	return tensor.WriteSafetensorsFile(outputsFile(dir), list, nil)
}

func outputsFile(dir string) string { return filepath.Join(dir, "outputs.safetensors") }
