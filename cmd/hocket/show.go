package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/bench"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/exported"
	described "hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/trace/account"
	"hocket.example/hocket/internal/tune"
	"hocket.example/hocket/ir"
)

// result is the object that --json prints. Users rely on the names and meanings of the object's fields. Fields that do
// not apply are omitted.
type result struct {
	Hocket    string                 `json:"hocket"`
	Command   string                 `json:"command,omitempty"`
	Exit      int                    `json:"exit"`
	Func      string                 `json:"func,omitempty"`
	Ranks     int                    `json:"ranks,omitempty"`
	Dims      map[string]int64       `json:"dims,omitempty"`
	Machine   string                 `json:"machine,omitempty"`
	Proof     *proof                 `json:"proof,omitempty"`
	Compare   *comparison            `json:"compare,omitempty"`
	Quantized []*exported.Difference `json:"quantized,omitempty"` // the errors that --quantize causes
	// OutputsSHA256 is the hash of the results of the last repetition of run.
	OutputsSHA256 string    `json:"outputs_sha256,omitempty"`
	Overlap       []overlap `json:"overlap,omitempty"`
	// Time holds the durations that run --repeat measures.
	Time   *runTime `json:"time,omitempty"`
	Memory *memory  `json:"memory,omitempty"`
	// Detours names the pairs of devices that exchange data through host memory, each with the reason.
	Detours []string `json:"detours,omitempty"`
	// Guesses names the GEMMs whose algorithms were not timed because there was too little memory.
	Guesses []string `json:"guesses,omitempty"`
	// PassedOver is the reason why the machine's tuned table of collectives is not used.
	PassedOver string       `json:"passed_over,omitempty"`
	Stages     []stage      `json:"stages,omitempty"` // opt, import, check --fix
	Doctor     *doctor      `json:"doctor,omitempty"`
	Version    *versionInfo `json:"version,omitempty"`
	Plan       string       `json:"plan,omitempty"` // plan
	// Verdict is the verdict of check for a collective schedule: "ok", "race", "deadlock", "wrong" or "undecided".
	Verdict  string          `json:"verdict,omitempty"`
	Schedule *scheduleResult `json:"schedule,omitempty"`
	// Explain is the explanation of opt --explain.
	Explain *compile.Explanation `json:"explain,omitempty"`
	Bench   *bench.Report        `json:"bench,omitempty"`
	Tune    *tune.Tuned          `json:"tune,omitempty"`
	Across  *described.Across    `json:"across,omitempty"`
	// Report is the report of trace; its fields are embedded in this object.
	*account.Report
	Against       []account.Difference `json:"against,omitempty"`
	Unlike        []string             `json:"against_warnings,omitempty"`
	*memoryResult                      // memory
	// Diagnostics lists every failure, including failures of hocket and of the machine.
	Diagnostics []diagnostic `json:"diagnostics,omitempty"`
}

type proof struct {
	Verdict string `json:"verdict"` // "unknown", "refuted", "proved"
	Kind    string `json:"kind"`    // "structural", "plan", "loops", "symmetry"
}

type comparison struct {
	Verdict string `json:"verdict"` // "exact", "within", "undecided", "differs"
	Against string `json:"against"`
	// Detail is the verdict in one line, as in the text output. Detail is omitted if results differ.
	Detail string `json:"detail,omitempty"`
	// Results lists the measured errors of the results.
	Results []resultError `json:"results,omitempty"`
	Layers  []layerError  `json:"layers,omitempty"`
}

// resultError has the measured error of a result, compared with the reference. Error and Quotient are omitted if they
// are not finite.
type resultError struct {
	Name     string   `json:"name"`
	Error    *float64 `json:"error,omitempty"`
	Largest  float64  `json:"largest"` // value of the reference
	Quotient *float64 `json:"quotient,omitempty"`
}

// layerError has the measured error of a layer's results, compared with the reference. The layer was run on inputs that
// the reference computed.
type layerError struct {
	Name    string        `json:"name"`
	Line    int32         `json:"line"`
	Verdict string        `json:"verdict"`
	Results []resultError `json:"results"`
}

type overlap struct {
	Op string `json:"op"`
	// Line is the line of the statement or, if lowering made the statement from another one, the line of that statement.
	Line     int32  `json:"line,omitempty"`
	Strategy string `json:"strategy"`
	Bytes    int64  `json:"bytes"`
	// Algorithm names the algorithm of a collective.
	Algorithm string `json:"algorithm,omitempty"`
	// BusyUS is the duration of the communication in microseconds. ExposedUS is the part of this time in which no
	// computation ran concurrently. BusyUS and ExposedUS are omitted if the machine does not record times.
	BusyUS    *float64 `json:"busy_us,omitempty"`
	ExposedUS *float64 `json:"exposed_us,omitempty"`
}

// runTime describes the durations of runs that were executed back to back, measured with the clock of the devices.
type runTime struct {
	Runs     int     `json:"runs"`
	MedianUS float64 `json:"median_us"`
	LeastUS  float64 `json:"least_us"`
	MostUS   float64 `json:"most_us"`
}

type memory struct {
	Peak  int64 `json:"peak"`
	Bound int64 `json:"bound"`
	Host  int64 `json:"host,omitempty"`
}

type stage struct {
	Pass    string `json:"pass"`
	Changed bool   `json:"changed"`
	Text    string `json:"text"`
}

type diagnostic struct {
	Severity string `json:"severity"`
	Kind     string `json:"kind"`
	File     string `json:"file,omitempty"`
	Line     int32  `json:"line,omitempty"`
	Col      int32  `json:"col,omitempty"`
	Message  string `json:"message"`
	Notes    []note `json:"notes,omitempty"`
	Help     string `json:"help,omitempty"`
}

type note struct {
	Line    int32  `json:"line,omitempty"`
	Col     int32  `json:"col,omitempty"`
	Message string `json:"message"`
}

// writeResult prints the JSON object of --json. If the result cannot be encoded as JSON, it prints nothing and returns
// an error.
func (a *session) writeResult(ds hocket.Diagnostics) error {
	for _, d := range ds {
		x := diagnostic{Severity: d.Severity.String(), Kind: d.Kind, File: d.File,
			Line: d.Pos.Line, Col: d.Pos.Col, Message: d.Message, Help: d.Help}
		for _, n := range d.Notes {
			x.Notes = append(x.Notes, note{Line: n.Pos.Line, Col: n.Pos.Col, Message: n.Message})
		}
		a.out.Diagnostics = append(a.out.Diagnostics, x)
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(&a.out); err != nil {
		return err
	}
	_, _ = a.stdout.Write(text.Bytes()) // the writer records the error
	return nil
}

// If the result cannot be encoded as JSON, writeUnsaid prints an object with the reason instead, and returns the
// failure.
func (a *session) writeUnsaid(err error) *failure {
	f := &failure{code: exitHocket, kind: "internal", err: fmt.Errorf("the result cannot be printed as JSON: %w", err),
		help: "run without --json to print it as text; infinite numbers and NaNs result from extreme values in the inputs or dims"}
	a.out = result{Hocket: a.out.Hocket, Command: a.out.Command, Exit: f.code}
	_ = a.writeResult(f.diagnostics()) // the object with the reason can always be encoded
	return f
}

// showDiagnostics prints diagnostics as text.
func (a *session) showDiagnostics(ds hocket.Diagnostics) {
	for i, d := range ds {
		if i > 0 {
			io.WriteString(a.stderr, "\n")
		}
		text := d.String()
		if a.colour {
			text = paint(text, d.Severity)
		}
		io.WriteString(a.stderr, text)
	}
}

const (
	bold   = "\x1b[1m"
	red    = "\x1b[1;31m"
	yellow = "\x1b[1;33m"
	cyan   = "\x1b[1;36m"
	plain  = "\x1b[0m"
)

// paint colours the severity and position of a diagnostic.
func paint(text string, s ir.Severity) string {
	word, colour := s.String()+": ", red
	if s == ir.Warning {
		colour = yellow
	}
	where, message, ok := strings.Cut(text, word)
	if !ok {
		return text
	}
	message, rest, _ := strings.Cut(message, "\n")
	for _, lead := range []string{"note: ", "help: "} {
		rest = strings.ReplaceAll("\n"+rest, "\n"+lead, "\n"+cyan+lead+plain)[1:]
	}
	return bold + where + colour + word + plain + bold + message + plain + "\n" + rest
}
