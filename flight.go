package hocket

import (
	"encoding/json"
	"io"
	"os"
	"time"

	"hocket.example/hocket/internal/exec"
)

// flightRecord is the value that Dump writes as JSON.
type flightRecord struct {
	Written  time.Time      `json:"written"`
	Process  int            `json:"process"`
	Machine  string         `json:"machine"`
	Programs []*exec.Flight `json:"programs"`
}

// Dump writes the machine's flight record as JSON. The record contains the latest batches of runs of each loaded plan.
// For each stream that has unfinished work, it contains the current command, the start time of that command if it is
// known, the ranks for which the command waits, and the latest commands and collectives; see docs/operations.md. Dump
// may be called at any time and does not wait for runs.
func (m *Machine) Dump(w io.Writer) error {
	list := []*exec.Flight{}
	for _, p := range m.plans.Programs(nil) {
		list = append(list, p.Flight())
	}
	return m.writeFlight(w, list)
}

func (m *Machine) writeFlight(w io.Writer, list []*exec.Flight) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	return e.Encode(flightRecord{time.Now(), os.Getpid(), m.dev.Name(), list})
}

// failed passes the flight record of a program whose run has failed to MachineOptions.Failed.
func (m *Machine) failed(f *exec.Flight) {
	m.onFailure(func(w io.Writer) error { return m.writeFlight(w, []*exec.Flight{f}) })
}
