package hocket

import (
	"encoding/json"
	"io"
	"os"
	"time"

	"hocket.example/hocket/internal/exec"
)

// flightRecord is what Dump writes.
type flightRecord struct {
	Written  time.Time      `json:"written"`
	Process  int            `json:"process"`
	Machine  string         `json:"machine"`
	Programs []*exec.Flight `json:"programs"`
}

// Dump writes the machine's flight record, as JSON: of each plan that is loaded its last
// batches of runs; and of each stream with work what it is in, since when as far as that is
// known, which ranks it waits for, and its last commands and collectives (see
// docs/operations.md). It may be called at any time, and waits for no run.
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

// failed gives MachineOptions.Failed the record of a program whose run failed.
func (m *Machine) failed(f *exec.Flight) {
	m.onFailure(func(w io.Writer) error { return m.writeFlight(w, []*exec.Flight{f}) })
}
