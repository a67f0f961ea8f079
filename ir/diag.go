package ir

import (
	"fmt"
	"slices"
	"strings"
)

// Severity is the severity of a diagnostic.
type Severity uint8

// The severities of diagnostics.
const (
	Error Severity = iota
	Warning
)

// String returns "error" or "warning".
func (s Severity) String() string { return [...]string{"error", "warning"}[s] }

// Diagnostic is one error or warning about a program.
type Diagnostic struct {
	Severity Severity
	// Kind is a word that does not change between versions, for programs that read diagnostics. The checker of programs
	// uses "parse", "scope", "type", "layout", "alias", "structure" and "lifetime". Binding uses "bind", and planning
	// "limit", "match" and "deadlock". Proofs and commands use further kinds (docs/proof.md).
	Kind    string
	File    string
	Pos     Pos
	Message string
	Notes   []Note
	// Help suggests how to correct the program. It may be empty.
	Help string
	// Line is the text of the source line at Pos, which is printed below the message. Line is empty if the source is
	// not known.
	Line string
}

// Note is an additional message of a diagnostic, usually with another position in the program.
type Note struct {
	Pos     Pos // zero if the note has no position
	Message string
}

// Error returns "file:line:col: message".
func (d *Diagnostic) Error() string {
	return fmt.Sprintf("%s%s", d.where(d.Pos), d.Message)
}

func (d *Diagnostic) where(p Pos) string {
	switch {
	case !p.Valid() && d.File == "":
		return ""
	case !p.Valid():
		return d.File + ": "
	}
	return fmt.Sprintf("%s:%d:%d: ", d.File, p.Line, p.Col)
}

// String returns the diagnostic as the command line prints it: position, message, source line, caret, notes and help.
func (d *Diagnostic) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s: %s\n", d.where(d.Pos), d.Severity, printable(d.Message))
	if d.Line != "" {
		line, indent := excerpt(d.Line, int(d.Pos.Col))
		fmt.Fprintf(&b, "    %s\n    %s^\n", line, indent)
	}
	for _, n := range d.Notes {
		fmt.Fprintf(&b, "%snote: %s\n", d.where(n.Pos), printable(n.Message))
	}
	if d.Help != "" {
		fmt.Fprintf(&b, "help: %s\n", printable(d.Help))
	}
	return b.String()
}

// Diagnostics is a list of findings. Diagnostics is an error if the list contains a finding of severity Error.
type Diagnostics []*Diagnostic

// wayOut returns the help in the form in which it is appended to a one-line message.
func (d *Diagnostic) wayOut() string {
	if d.Help == "" {
		return ""
	}
	return "; help: " + printable(d.Help)
}

// Error returns the first error in its one-line form, its help, and the number of further errors. String returns all
// diagnostics in full.
func (ds Diagnostics) Error() string {
	var first *Diagnostic
	n := 0
	for _, d := range ds {
		if d.Severity == Error {
			if first == nil {
				first = d
			}
			n++
		}
	}
	switch {
	case first == nil:
		return "no errors"
	case n == 1:
		return first.Error() + first.wayOut()
	}
	return fmt.Sprintf("%s%s (and %d more errors)", first.Error(), first.wayOut(), n-1)
}

// String returns all diagnostics in the form of Diagnostic.String.
func (ds Diagnostics) String() string {
	var b strings.Builder
	for _, d := range ds {
		b.WriteString(d.String())
	}
	return b.String()
}

// HasErrors reports whether any diagnostic is an Error.
func (ds Diagnostics) HasErrors() bool {
	return slices.ContainsFunc(ds, func(d *Diagnostic) bool { return d.Severity == Error })
}

// Err returns ds as an error, or nil if it contains no finding of severity Error.
func (ds Diagnostics) Err() error {
	if ds.HasErrors() {
		return ds
	}
	return nil
}

// Sort sorts the findings by position. Findings at the same position remain in their order.
func (ds Diagnostics) Sort() {
	slices.SortStableFunc(ds, func(a, b *Diagnostic) int {
		if a.Pos.Line != b.Pos.Line {
			return int(a.Pos.Line) - int(b.Pos.Line)
		}
		return int(a.Pos.Col) - int(b.Pos.Col)
	})
}

// Diag returns an error at pos that includes the source line.
func (p *Program) Diag(kind string, pos Pos, format string, args ...any) *Diagnostic {
	return &Diagnostic{Kind: kind, File: p.File, Pos: pos, Message: fmt.Sprintf(format, args...), Line: p.line(pos)}
}

// line returns the source line at pos, without its line end.
func (p *Program) line(pos Pos) string {
	if !pos.Valid() {
		return ""
	}
	rest := p.Source
	for n := int32(1); n < pos.Line; n++ {
		i := strings.IndexByte(rest, '\n')
		if i < 0 {
			return ""
		}
		rest = rest[i+1:]
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSuffix(line, "\r")
}
