package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/ir"
)

// flights holds the flight record of a failed run until the command ends.
type flights struct {
	mu   sync.Mutex
	last []byte
}

// failed is used as hocket.MachineOptions.Failed.
func (f *flights) failed(dump func(io.Writer) error) {
	var b bytes.Buffer
	if dump(&b) == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.last = b.Bytes()
	}
}

// keep writes the flight record if the machine failed or the run timed out, and prints the name of the file. The record
// is written to the named file or, if no file is named, to a file in the user's cache directory, which the next record
// overwrites. If the user interrupted the run, keep writes the record only to a named file, because an interrupt is no
// failure.
func (f *flights) keep(ctx context.Context, a *app, path string, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	late := context.Cause(ctx) == errLimit // the caller classifies the error later
	interrupted := errors.Is(err, context.Canceled) && !late
	if err == nil || classified(err) != exitMachine && !late || f.last == nil || interrupted && path == "" {
		return err
	}
	var werr error
	write := files.Write
	if path == "" {
		path, werr = lastFlight()
		write = files.WriteKept
	}
	if werr == nil {
		werr = write(path, func(w io.Writer) error { _, err := w.Write(f.last); return err })
	}
	said := "the state of each rank when the run ended was written to " + path
	if werr != nil {
		said = fmt.Sprintf("the state of each rank when the run ended could not be written: %v", werr)
	}
	a.warnings = append(a.warnings, &ir.Diagnostic{Severity: ir.Warning, Kind: "flight", Message: said})
	return err
}

// lastFlight returns the default file of flight records.
func lastFlight() (string, error) {
	dir, err := files.UserFolder()
	return filepath.Join(dir, "flight.json"), err
}
