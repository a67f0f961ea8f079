package main

import (
	"io"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/files"
)

// report writes the page of --report.
func (j *job) report(write func(w io.Writer, title, program string) error) error {
	title := "hocket run: " + j.sig.Func + ", " + j.flags.machine
	return files.Write(j.flags.report, func(w io.Writer) error { return write(w, title, j.app.source) })
}

// reportRefuted writes the page of --report about a program that err refutes by its plan. It returns err, or the reason
// why there is no page.
func (j *job) reportRefuted(err error, b hocket.Binding) error {
	if j.flags.report == "" || j.sig == nil {
		return err
	}
	v, bad := hocket.Check(j.program, b, hocket.CheckOptions{Strategy: j.flags.strategy})
	if bad == nil && v.Kind == hocket.Refuted {
		bad = j.report(v.WriteHTML)
	}
	if bad != nil {
		return &failure{code: exitUsage, kind: "output", err: bad}
	}
	return err
}
