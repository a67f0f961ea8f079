package hocket

import (
	"encoding/json"
	"io"
	"os"
	"time"

	"hocket.example/hocket/internal/exec"
)

// flightRecord is the JSON that Dump writes.
type flightRecord struct {
	Written  time.Time      `json:"written"`
	Process  int            `json:"process"`
	Machine  string         `json:"machine"`
	Programs []*exec.Flight `json:"programs"`
}

// Dump writes the machine's flight record, as JSON. The record has the last batches of runs of each loaded plan. For
// each stream with work it has the current command, its start as far as that is known, the ranks it waits for, and
// the last commands and collectives; see docs/operations.md. Dump may be called at any time and waits for no run.
func (m *Machine) Dump(w io.Writer) error {
	m.plans.mu.Lock()
	var progs []*exec.Program
	for _, l := range m.plans.plans {
		progs = append(progs, l.prog)
	}
	m.plans.mu.Unlock()
	list := []*exec.Flight{}
	for _, p := range progs {
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

// failed passes the record of a program whose run failed to MachineOptions.Failed.
func (m *Machine) failed(f *exec.Flight) {
	m.onFailure(func(w io.Writer) error { return m.writeFlight(w, []*exec.Flight{f}) })
}
