// Package nsys reads the GPU work that Nsight Systems has recorded. The input is the text or the CSV of "nsys stats
// --report cuda_gpu_trace", or the SQLite file of "nsys export".
package nsys

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/trace"
)

const (
	maxRows = 1_500_000
	maxLine = 64 << 10
)

// ErrOther is returned for text without a row of cuda_gpu_trace.
var ErrOther = errors.New("no row of nsys stats --report cuda_gpu_trace")

// ReadText reads the report as text or CSV, with or without its header. ReadText ignores lines that are not rows of the
// report. A file may contain reports of several sessions, one after another. Since nsys sorts rows by start, a row that
// starts before the previous one belongs to a new session.
func ReadText(r io.Reader, names *trace.Names) (*trace.Trace, error) {
	t := &table{ranks: map[place]int{}, words: names, unit: 1}
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 4096), maxLine)
	ended := true // the last line ends with a newline
	in.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		if atEOF && len(data) > 0 {
			ended = bytes.IndexByte(data, '\n') >= 0
		}
		return bufio.ScanLines(data, atEOF)
	})
	var totals sums
	for in.Scan() {
		t.line++
		totals.read(t.line, in.Text())
		rows := len(t.events)
		if err := t.read(in.Text()); err != nil {
			return nil, fmt.Errorf("line %d: %w", t.line, err)
		}
		if !ended && rows > 0 && len(t.events) == rows && startsWithDigit(in.Text()) {
			return nil, fmt.Errorf("line %d: the file ends within this row, so it is cut short: export it again", t.line)
		}
	}
	switch err := in.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("line %d is longer than %d bytes", t.line+1, maxLine)
	case err != nil:
		return nil, err
	case len(t.events) == 0 && len(totals.list) > 0:
		return nil, &SumsError{totals.list}
	case len(t.events) == 0:
		return nil, ErrOther
	}
	return t.finish(), nil
}

// place identifies a device by its number in a session of nsys.
type place struct{ session, device int }

// table holds the rows that have been read so far.
type table struct {
	line    int
	unit    float64 // number of nanoseconds in the report's unit of time
	columns map[string]int
	session int
	last    int64 // start of the previous row
	ranks   map[place]int
	places  []place
	events  []trace.Event
	words   *trace.Names
}

// row is one kernel or copy.
type row struct {
	start, duration, correlation int64
	device, stream               int
	name                         string
}

var (
	textRow = regexp.MustCompile(`^\s*([\d,.]+)\s+([\d,.]+)\s+(\d+)\s+(.*\S)\s*$`)
	// The name of the device ends with the number of the device. The context, in some versions a green context, and
	// the stream follow.
	devicePart = regexp.MustCompile(`\((\d+)\)\s+(\d+)\s+(?:(\d+)\s+)?(\d+)\s+(\S.*)$`)
	deviceCell = regexp.MustCompile(`\((\d+)\)\s*$`)
	headerUnit = regexp.MustCompile(`Start ?\((\w+)\)`)
)

var units = map[string]float64{"ns": 1, "nsec": 1, "us": 1e3, "usec": 1e3, "ms": 1e6, "msec": 1e6, "s": 1e9, "sec": 1e9}

func (t *table) read(line string) error {
	if m := headerUnit.FindStringSubmatch(line); m != nil {
		unit, ok := units[strings.ToLower(m[1])]
		if !ok {
			return fmt.Errorf("times in %q: known are ns, us, ms, s", m[1])
		}
		t.unit = unit
		return t.header(line)
	}
	var r row
	var err error
	switch {
	case t.columns != nil && strings.Contains(line, ","):
		r, err = t.csvRow(line)
	case !startsWithDigit(line):
		return nil // a prompt, a title or a separator
	case textRow.MatchString(line):
		r, err = t.textRow(line)
	case strings.Count(line, ",") >= 10:
		r, err = t.csvRow(line)
	default:
		return nil
	}
	switch {
	case errors.Is(err, errOther):
		return nil
	case err != nil:
		return err
	}
	return t.add(r)
}

func startsWithDigit(line string) bool {
	s := strings.TrimLeft(line, " \t\"")
	return s != "" && s[0] >= '0' && s[0] <= '9'
}

// header reads the columns of a CSV file. The text form needs no header.
func (t *table) header(line string) error {
	if strings.Count(line, ",") < 3 {
		return nil
	}
	cells, err := csv.NewReader(strings.NewReader(line)).Read()
	if err != nil {
		return err
	}
	t.columns = map[string]int{}
	for i, c := range cells {
		name, _, _ := strings.Cut(c, "(")
		t.columns[strings.ToLower(strings.TrimSpace(name))] = i
	}
	var missing []string
	for _, name := range []string{"start", "duration", "device", "strm", "name"} {
		if _, ok := t.columns[name]; !ok {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the header lacks the columns %s: export the report cuda_gpu_trace",
			strings.Join(missing, ", "))
	}
	return nil
}

func (t *table) textRow(line string) (row, error) {
	m := textRow.FindStringSubmatch(line)
	d := devicePart.FindStringSubmatch(m[4])
	switch {
	case d != nil:
		return t.row(m[1], m[2], m[3], d[1], d[4], d[5])
	case strings.Contains(m[1], "."):
		return row{}, errOther // a percentage, as in summaries
	}
	return row{}, errors.New("the row ends before its device, stream and name")
}

// errOther says that a line is not a row.
var errOther = errors.New("no row")

func (t *table) csvRow(line string) (row, error) {
	cells, err := csv.NewReader(strings.NewReader(line)).Read()
	if err != nil {
		return row{}, err
	}
	at := t.columns
	if at == nil { // without a header, the columns have the order in which nsys writes them
		device := slices.IndexFunc(cells, deviceCell.MatchString)
		if device < 3 || device+3 > len(cells)-1 {
			return row{}, errors.New("a row without a device")
		}
		at = map[string]int{"start": 0, "duration": 1, "corrid": 2, "device": device, "strm": len(cells) - 2,
			"name": len(cells) - 1}
	}
	cell := func(name string) string {
		if i, ok := at[name]; ok && i < len(cells) {
			return strings.TrimSpace(cells[i])
		}
		return ""
	}
	if !startsWithDigit(cell("start")) {
		return row{}, errOther
	}
	d := deviceCell.FindStringSubmatch(cell("device"))
	if d == nil || cell("name") == "" {
		return row{}, errors.New("the row ends before its device, stream and name")
	}
	correlation := cell("corrid")
	if correlation == "" {
		correlation = "0"
	}
	return t.row(cell("start"), cell("duration"), correlation, d[1], cell("strm"), cell("name"))
}

// row parses the texts of a row.
func (t *table) row(start, duration, correlation, device, stream, name string) (r row, err error) {
	if r.start, err = t.time(start); err != nil {
		return r, fmt.Errorf("start: %w", err)
	}
	if r.duration, err = t.time(duration); err != nil {
		return r, fmt.Errorf("duration: %w", err)
	}
	if r.correlation, err = strconv.ParseInt(correlation, 10, 64); err != nil {
		return r, fmt.Errorf("%.40q is not a correlation number", correlation)
	}
	if r.device, err = strconv.Atoi(device); err != nil {
		return r, fmt.Errorf("%.40q is no device", device)
	}
	if r.stream, err = strconv.Atoi(stream); err != nil {
		return r, fmt.Errorf("%.40q is no stream", stream)
	}
	r.name = name
	return r, nil
}

// time parses a time that is not negative. The digits may be separated into groups, as in 1,234.
func (t *table) time(text string) (int64, error) {
	v, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
	if err != nil || v < 0 || v*t.unit > 1<<60 {
		return 0, fmt.Errorf("%.40q is not a time", text)
	}
	return int64(v*t.unit + 0.5), nil
}

func (t *table) add(r row) error {
	if len(t.events) >= maxRows {
		return fmt.Errorf("more than %d rows: profile fewer iterations", maxRows)
	}
	if r.start < t.last {
		t.session++
	}
	t.last = r.start
	at := place{t.session, r.device}
	rank, ok := t.ranks[at]
	if !ok {
		rank = len(t.ranks)
		t.ranks[at] = rank
		t.places = append(t.places, at)
		if rank >= maxRanks {
			return fmt.Errorf("more than %d sessions and devices", maxRanks)
		}
	}
	t.events = append(t.events, event(rank, r, t.words.Word))
	return t.words.Err()
}

// maxRanks is the largest number of ranks in a report.
const maxRanks = 1 << 14

// event converts a row to an event.
func event(rank int, r row, word func(string) string) trace.Event {
	name := word(r.name)
	e := trace.Event{Rank: rank, Stream: word("stream " + strconv.Itoa(r.stream)), ID: r.correlation,
		Name:   word(trace.ShortName(name)),
		Detail: name, Class: trace.Compute, Start: r.start, End: r.start + r.duration, Group: trace.NoGroup}
	switch {
	case strings.HasPrefix(name, "[CUDA mem"):
		e.Class, e.Name = trace.IO, name
	case trace.MovesBetweenRanks(name):
		e.Class, e.Name = trace.Comm, trace.CollectiveOp(name)
		e.Call = &trace.Call{Seq: -1, In: -1, Out: -1, PointToPoint: e.Name == "send_recv"}
	}
	return e
}

// finish numbers the ranks: by the numbers of their devices if each device occurs in only one session, and
// otherwise in the order of the sessions.
func (t *table) finish() *trace.Trace {
	out := &trace.Trace{Ranks: len(t.places), Source: "nsys", Events: t.events}
	out.IDs, out.Clocks = number(t.places)
	devices := map[int]bool{}
	for _, p := range t.places {
		out.Repeats = out.Repeats || devices[p.device]
		devices[p.device] = true
	}
	out.Sort()
	return out
}

func number(places []place) (ids, clocks []int) {
	seen := map[int]int{}
	for _, p := range places {
		seen[p.device]++
	}
	for r, p := range places {
		id := p.device
		if len(seen) < len(places) {
			id = r
		}
		ids, clocks = append(ids, id), append(clocks, p.session)
	}
	return ids, clocks
}
