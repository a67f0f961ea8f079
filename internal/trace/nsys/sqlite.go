package nsys

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/sqlite"
	"hocket.example/hocket/internal/trace"
)

// These are the names of tables in an export of nsys.
const (
	kernelTable  = "CUPTI_ACTIVITY_KIND_KERNEL"
	memcpyTable  = "CUPTI_ACTIVITY_KIND_MEMCPY"
	memsetTable  = "CUPTI_ACTIVITY_KIND_MEMSET"
	runtimeTable = "CUPTI_ACTIVITY_KIND_RUNTIME"
	stringTable  = "StringIds"
	nvtxTable    = "NVTX_EVENTS"
)

// globalID is a bit mask for the part of nsys's number of a process or thread that identifies the process.
const globalID = ^int64(0xFFFFFF)

// processDevice is a device as one process sees it.
type processDevice struct{ process, device int64 }

// export holds the contents of a database that have been read so far.
type export struct {
	db     *sqlite.DB
	ranks  map[processDevice]int
	places []place
	of     []int64 // by rank: its process
	events []trace.Event
	names  []int64 // for each event: the id of its name in the table of strings
	words  *trace.Names
}

// ReadSQLite reads the database that nsys export --type sqlite writes.
func ReadSQLite(path string, names *trace.Names) (*trace.Trace, error) {
	f, size, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var wal int64
	if info, err := os.Stat(path + "-wal"); err == nil {
		wal = info.Size()
	}
	return readDatabase(f, size, wal, names)
}

func readDatabase(r io.ReaderAt, size, wal int64, names *trace.Names) (*trace.Trace, error) {
	db, err := sqlite.Open(r, size, wal)
	if err != nil {
		return nil, err
	}
	x := &export{db: db, ranks: map[processDevice]int{}, words: names}
	if db.Table(kernelTable) == nil {
		return nil, fmt.Errorf("it has no table %s: it is not an export of nsys, or the profile was made without "+
			"--trace=cuda",
			kernelTable)
	}
	for _, read := range []func() error{x.kernels, x.copies, x.strings, x.issued} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	if len(x.events) == 0 {
		return nil, errors.New("it has no kernels and no copies")
	}
	t := &trace.Trace{Ranks: len(x.places), Source: "nsys", Events: x.events}
	t.IDs, t.Clocks = number(x.places)
	if t.Steps, err = x.steps(); err != nil {
		return nil, err
	}
	t.Sort()
	return t, nil
}

// record holds the integers of one row, in the order of the requested columns; -1 stands for null.
type record []int64

// rows reads integer columns of a table. The table may be missing, but if it exists, it must have the required columns.
func (x *export) rows(table string, required, optional []string, each func(r record, row []any) error) error {
	t := x.db.Table(table)
	if t == nil {
		return nil
	}
	var at []int
	var missing []string
	for i, name := range append(append([]string(nil), required...), optional...) {
		c := t.Column(name)
		if c < 0 && i < len(required) {
			missing = append(missing, name)
		}
		at = append(at, c)
	}
	if len(missing) > 0 {
		return fmt.Errorf("table %s lacks the columns %s", table, strings.Join(missing, ", "))
	}
	r := make(record, len(at))
	n := 0
	return x.db.Rows(t, func(row []any) error {
		if n++; n > maxRows {
			return fmt.Errorf("more than %d rows: profile fewer iterations", maxRows)
		}
		for i, c := range at {
			r[i] = -1
			if c >= 0 {
				if v, ok := row[c].(int64); ok {
					r[i] = v
				} else if i < len(required) {
					return fmt.Errorf("row %d has no number in column %s", n, required[i])
				}
			}
		}
		return each(r, row)
	})
}

// add adds an event on a device to the trace.
func (x *export) add(process, device, start, end, stream, correlation int64, name string, nameID int64) error {
	switch {
	case end < start:
		return fmt.Errorf("an event ends %d ns before it begins", start-end)
	case start < -1<<60 || end > 1<<60:
		return errors.New("the time of an event is out of range")
	case device < 0 || device > 1<<20 || stream < 0 || stream > 1<<40:
		return fmt.Errorf("an event has device %d and stream %d", device, stream)
	case len(x.events) >= maxRows:
		return fmt.Errorf("more than %d events: profile fewer iterations", maxRows)
	}
	key := processDevice{process & globalID, device}
	rank, ok := x.ranks[key]
	if !ok {
		rank = len(x.ranks)
		if rank >= maxRanks {
			return fmt.Errorf("more than %d processes and devices", maxRanks)
		}
		x.ranks[key] = rank
		x.places = append(x.places, place{0, int(device)})
		x.of = append(x.of, key.process)
	}
	e := event(rank, row{start: start, duration: end - start, correlation: correlation, device: int(device),
		stream: int(stream), name: name}, x.words.Word)
	x.events, x.names = append(x.events, e), append(x.names, nameID)
	return x.words.Err()
}

func (x *export) kernels() error {
	return x.rows(kernelTable, []string{"start", "end", "deviceId", "streamId", "demangledName"}, []string{"globalPid",
		"correlationId"},
		func(r record, _ []any) error { return x.add(r[5], r[2], r[0], r[1], r[3], r[6], "", r[4]) })
}

// copyKinds maps the kind of a copy in the database to the name that nsys stats prints.
var copyKinds = map[int64]string{1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 10: "Peer-to-Peer"}

func (x *export) copies() error {
	err := x.rows(memcpyTable, []string{"start", "end", "deviceId", "streamId"}, []string{"globalPid", "correlationId",
		"copyKind", "bytes"},
		func(r record, _ []any) error {
			name := "[CUDA memcpy]"
			if kind := copyKinds[r[6]]; kind != "" {
				name = "[CUDA memcpy " + kind + "]"
			}
			err := x.add(r[4], r[2], r[0], r[1], r[3], r[5], name, -1)
			if err == nil && r[7] > 0 {
				x.events[len(x.events)-1].Bytes = r[7]
			}
			return err
		})
	if err != nil {
		return err
	}
	return x.rows(memsetTable, []string{"start", "end", "deviceId", "streamId"}, []string{"globalPid", "correlationId"},
		func(r record, _ []any) error { return x.add(r[4], r[2], r[0], r[1], r[3], r[5], "[CUDA memset]", -1) })
}

// strings sets the names of kernels, which the database has in a separate table.
func (x *export) strings() error {
	t := x.db.Table(stringTable)
	if t == nil || t.Column("id") < 0 || t.Column("value") < 0 {
		return fmt.Errorf("it has no table %s with the columns id, value: kernels have no names", stringTable)
	}
	named := map[int64]*trace.Event{} // each name is converted only once, because names may be long
	for _, id := range x.names {
		named[id] = nil
	}
	event := func(id int64, name string) *trace.Event {
		e := event(0, row{name: name}, x.words.Word)
		named[id] = &e
		return &e
	}
	value := t.Column("value")
	err := x.rows(stringTable, []string{"id"}, nil, func(r record, row []any) error {
		if e, wanted := named[r[0]]; wanted && e == nil {
			if name, _ := row[value].(string); name != "" {
				event(r[0], name)
			}
		}
		return x.words.Err()
	})
	if err != nil {
		return err
	}
	for i, id := range x.names {
		if id < 0 {
			continue
		}
		of := named[id]
		if of == nil {
			of = event(id, fmt.Sprintf("kernel %d", id))
		}
		e := &x.events[i]
		e.Name, e.Detail, e.Class = of.Name, of.Detail, of.Class
		if of.Call != nil {
			call := *of.Call
			e.Call = &call
		}
	}
	return x.words.Err()
}

// issued sets the time at which the host issued each event.
func (x *export) issued() error {
	type call struct{ process, correlation int64 }
	at := map[call]int64{}
	err := x.rows(runtimeTable, []string{"start", "globalTid", "correlationId"}, nil, func(r record, _ []any) error {
		at[call{r[1] & globalID, r[2]}] = r[0]
		return nil
	})
	if err != nil {
		return err
	}
	for i := range x.events {
		e := &x.events[i]
		e.Issued = at[call{x.of[e.Rank], e.ID}]
	}
	return nil
}

var stepName = regexp.MustCompile(`(?i)^(step|iter|iteration|profilerstep)[ #_:]*\d+$`)

// steps reads the iterations that the program marked with NVTX.
func (x *export) steps() ([]trace.Step, error) {
	t := x.db.Table(nvtxTable)
	if t == nil || t.Column("text") < 0 {
		return nil, nil
	}
	ranks := map[int64][]int{} // ranks by process
	for rank, process := range x.of {
		ranks[process] = append(ranks[process], rank)
	}
	text := t.Column("text")
	var out []trace.Step
	err := x.rows(nvtxTable, []string{"start"}, []string{"end", "globalTid"}, func(r record, row []any) error {
		name, _ := row[text].(string)
		if r[1] < r[0] || !stepName.MatchString(name) {
			return nil
		}
		list := ranks[r[2]&globalID]
		if len(x.of) == 1 {
			list = []int{0}
		}
		if len(out)+len(list) > maxRows {
			return fmt.Errorf("more than %d iterations: profile fewer", maxRows)
		}
		for _, rank := range list {
			out = append(out, trace.Step{Rank: rank, Name: x.words.Word(name), Start: r[0], End: r[1]})
		}
		return x.words.Err()
	})
	return out, err
}
