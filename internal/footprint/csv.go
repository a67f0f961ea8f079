package footprint

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"

	"hocket.example/hocket/internal/names"
	"hocket.example/hocket/internal/planner/pack"
)

// Instance is a packing problem in minimalloc's CSV format. Each line describes a buffer: its size, and the half-open
// interval of steps in which it is live.
type Instance struct {
	IDs   []string
	Items []pack.Item
}

// These constants limit an instance: the number of its rows, the number of pairs of buffers that are live at the same
// time, and the size of its file in bytes.
const (
	mostRows = 1 << 20
	// the first packings examine each pair of buffers a few times, which takes one or two nanoseconds each time
	mostPairs = 1 << 28
	mostCSV   = 64 << 20
)

// ReadCSV reads an instance. The columns lower (or start), upper (or end) and size are found by
// their names in the header line; the column id is optional.
func ReadCSV(r io.Reader) (*Instance, error) {
	bounded := &io.LimitedReader{R: r, N: mostCSV + 1}
	c := csv.NewReader(bounded)
	c.ReuseRecord = true
	head, err := c.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty: its first line names the columns id,lower,upper,size")
	}
	if bounded.N == 0 {
		return nil, fmt.Errorf("more than %d bytes", mostCSV)
	}
	if err != nil {
		return nil, err
	}
	column := map[string]int{}
	for k, name := range head {
		switch name {
		case "start", "begin":
			name = "lower"
		case "end":
			name = "upper"
		}
		column[name] = k
	}
	for _, name := range []string{"lower", "upper", "size"} {
		if _, ok := column[name]; !ok {
			return nil, fmt.Errorf("line 1: there is no column %q: the first line names the columns id,lower,upper,size", name)
		}
	}
	in := &Instance{}
	total := int64(0)
	for {
		row, err := c.Read()
		if errors.Is(err, io.EOF) {
			if pack.Overlaps(in.Items) > mostPairs {
				return nil, fmt.Errorf("more than %d pairs of buffers live at once", mostPairs)
			}
			return in, nil
		}
		if bounded.N == 0 {
			return nil, fmt.Errorf("more than %d bytes", mostCSV)
		}
		if err != nil {
			return nil, err
		}
		line, _ := c.FieldPos(0)
		if len(in.Items) == mostRows {
			return nil, fmt.Errorf("line %d: more than %d buffers", line, mostRows)
		}
		var v [3]int64
		for k, name := range []string{"lower", "upper", "size"} {
			most := int64(1<<31 - 1)
			if name == "size" {
				most = 1 << 48
			}
			if v[k], err = strconv.ParseInt(row[column[name]], 10, 64); err != nil || v[k] < 0 || v[k] > most {
				return nil, fmt.Errorf("line %d: %s is %q, and must be a number from 0 to %d", line, name,
					row[column[name]], most)
			}
		}
		if v[1] < v[0] {
			return nil, fmt.Errorf("line %d: the buffer ends at %d, before it begins at %d", line, v[1], v[0])
		}
		if total += v[2]; total > 1<<60 {
			return nil, fmt.Errorf("line %d: all buffers together take more than %d bytes", line, int64(1)<<60)
		}
		id := strconv.Itoa(len(in.Items))
		if k, ok := column["id"]; ok {
			id = names.Quoted(row[k])
		}
		in.IDs = append(in.IDs, id)
		in.Items = append(in.Items, pack.Item{Size: v[2], Begin: int32(v[0]), End: int32(v[1])})
	}
}

// csvSteps limits the steps of the search for a packing. With this limit, the search takes about eight seconds,
// including the first packings.
const csvSteps = 600e6

// Pack packs the instance and reports on the packing.
func (in *Instance) Pack() (*Report, []int64) {
	off := pack.Search(in.Items, 0, csvSteps-2*int64(pack.Overlaps(in.Items)))
	load, at := pack.Load(in.Items)
	r := &Report{Peak: pack.Height(in.Items, off), Bound: load, Sequential: load, Buffers: len(in.Items)}
	r.Reserved = r.Peak
	r.GapPercent = gap(r.Peak, r.Bound)
	for i, it := range in.Items {
		if it.Begin <= at && at < it.End {
			r.AtPeak = append(r.AtPeak, Held{Name: in.IDs[i], Bytes: it.Size})
		}
	}
	return r, off
}
