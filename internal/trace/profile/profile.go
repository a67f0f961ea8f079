// Package profile reads the profiles of several ranks, from any supported tool, into one trace. The package detects the
// format from the contents of the files.
package profile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/internal/trace/chrome"
	"hocket.example/hocket/internal/trace/flight"
	"hocket.example/hocket/internal/trace/nsys"
)

// maxBytes is the largest size in bytes of a file after it is unpacked.
const maxBytes = 4 << 30

// maxRanks is the largest number of ranks in all files together.
const maxRanks = 1 << 16

// Profile is the content of the files: a trace of all ranks, or the flight records of the ranks.
type Profile struct {
	Trace  *trace.Trace
	Flight []*flight.Record
}

// Read reads files of one kind. Its errors name the file.
func Read(paths []string) (*Profile, error) {
	p := &Profile{}
	parts := make([]*trace.Trace, 0, len(paths))
	var names []string
	words := &trace.Names{}
	for _, path := range paths {
		t, f, err := readFile(path, words)
		var named *fs.PathError
		switch {
		case errors.As(err, &named): // it names the file
			return nil, fmt.Errorf("%s: %w", named.Path, named.Err)
		case err != nil:
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if f != nil {
			if f.Rank < 0 {
				f.Rank = rankInName(path)
			}
			p.Flight, names = append(p.Flight, f), append(names, path)
			continue
		}
		if len(t.IDs) == 1 && (t.IDs[0] < 0 || t.Source == "nsys" && len(paths) > 1) {
			if id := rankInName(path); id >= 0 {
				t.IDs[0] = id
			}
		}
		parts, names = append(parts, t), append(names, path)
	}
	switch {
	case len(parts) > 0 && len(p.Flight) > 0: // names holds both kinds
		return nil, errors.New("flight records and timelines do not go together: give one kind")
	case len(p.Flight) > 0:
		if err := flight.OneJob(p.Flight, names); err != nil {
			return nil, err
		}
		return p, flight.Number(p.Flight)
	}
	var err error
	p.Trace, err = join(parts, names)
	return p, err
}

var rankWord = regexp.MustCompile(`(?i)rank[_\-. ]?(\d{1,6})`)

// rankInName finds "rank3" in a path. rankInName returns the number, or -1 if the path has none.
func rankInName(path string) int {
	all := rankWord.FindAllStringSubmatch(path, -1)
	if len(all) == 0 {
		return -1
	}
	n, err := strconv.Atoi(all[len(all)-1][1])
	if err != nil {
		return -1
	}
	return n
}

// limited is a reader that returns an error if the reader r has more than left bytes.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(b []byte) (int, error) {
	n, err := l.r.Read(b)
	if l.left -= int64(n); l.left < 0 {
		return 0, fmt.Errorf("it holds more than %d GiB once unpacked", int64(maxBytes)>>30)
	}
	return n, err
}

// unmarked returns a reader without the byte order mark at the beginning of UTF-8 text.
func unmarked(r *bufio.Reader) *bufio.Reader {
	if head, _ := r.Peek(3); bytes.Equal(head, []byte("\ufeff")) {
		_, _ = r.Discard(len(head))
	}
	return r
}

// open calls read with the unpacked content of a file.
func open(path string, read func(r *bufio.Reader, size int64) error) error {
	f, size, err := files.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<16)
	head, _ := in.Peek(2)
	if !bytes.Equal(head, []byte{0x1f, 0x8b}) {
		return read(unmarked(bufio.NewReaderSize(&limited{in, maxBytes}, 1<<16)), size)
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return err
	}
	return read(unmarked(bufio.NewReaderSize(&limited{z, maxBytes}, 1<<16)), -1)
}

// readFile reads one file of any format.
func readFile(path string, words *trace.Names) (t *trace.Trace, f *flight.Record, err error) {
	const advice = "is not read: write it to a file; a gzipped file need not be unpacked"
	info, bad := os.Stat(path)
	switch {
	case bad == nil && info.Mode()&fs.ModeNamedPipe != 0:
		return nil, nil, errors.New("a pipe " + advice)
	case bad != nil && path == "-":
		return nil, nil, errors.New("standard input " + advice)
	}
	err = open(path, func(r *bufio.Reader, size int64) error {
		var err error
		t, f, err = read(r, path, size, words)
		return err
	})
	if errors.Is(err, chrome.ErrOther) { // JSON that is not a timeline
		err = open(path, func(r *bufio.Reader, _ int64) error {
			var err error
			f, err = flight.ReadJSON(r)
			return err
		})
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errCut
	}
	return t, f, err
}

// errCut is returned for a file that ends too early.
var errCut = errors.New("it is cut short: copy the whole file")

// errUnknown lists the supported formats.
var errUnknown = errors.New("it is none of the formats that can be read: timelines of hocket run --trace and of torch.profiler (JSON, " +
	"also gzipped), nsys stats --report cuda_gpu_trace (text, CSV), nsys export --type sqlite, torch's flight records (JSON, pickle)")

func read(r *bufio.Reader, path string, size int64, words *trace.Names) (*trace.Trace, *flight.Record, error) {
	head, err := r.Peek(16)
	if len(head) == 0 {
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, nil, err
		}
		return nil, nil, errors.New("it is empty")
	}
	start := bytes.TrimLeft(head, " \t\r\n")
	switch {
	case strings.HasSuffix(path, ".nsys-rep"), strings.HasSuffix(path, ".qdrep"):
		return nil, nil, fmt.Errorf("it is a report of nsys: export it with nsys stats --report cuda_gpu_trace %s > trace.txt", path)
	case bytes.HasPrefix(head, []byte{0xff, 0xfe}), bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		return nil, nil, errors.New("it is UTF-16 text: convert it to UTF-8, as by iconv -f UTF-16 -t UTF-8")
	case bytes.HasPrefix(head, []byte("SQLite format 3\x00")):
		if size < 0 {
			return nil, nil, errors.New("a gzipped database: unpack it first")
		}
		t, err := nsys.ReadSQLite(path, words)
		return t, nil, err
	case head[0] == 0x80:
		f, err := flight.ReadPickle(r)
		return nil, f, err
	case len(start) > 0 && (start[0] == '{' || start[0] == '['):
		if begin, _ := r.Peek(1 << 14); strings.HasPrefix(files.What(begin), "a schedule") {
			return nil, nil, errors.New("it is " + files.What(begin))
		}
		t, err := chrome.Read(r, words)
		return t, nil, err
	}
	begin, _ := r.Peek(1 << 14)
	begin = bytes.Clone(begin)
	line, _, _ := bytes.Cut(begin, []byte("\n"))
	t, err := nsys.ReadText(r, words)
	if errors.Is(err, nsys.ErrOther) {
		if err = errUnknown; bytes.Count(line, []byte(";")) >= 3 && utf8.Valid(line) {
			err = errors.New("its columns are separated by semicolons: export it with commas, as nsys stats --format csv writes it")
		} else if what := files.What(begin); what != "" {
			err = errors.New("it is " + what)
		}
	}
	return t, nil, err
}

// TwiceError is returned for two files of one rank.
type TwiceError struct {
	First, Second string // names of files
	Rank          int
}

func (e *TwiceError) Error() string {
	return fmt.Sprintf("%s and %s are both of rank %d: give each rank once", e.First, e.Second, e.Rank)
}

// join combines several traces to one. Each trace keeps its ranks and clocks, which are renumbered.
func join(parts []*trace.Trace, names []string) (*trace.Trace, error) {
	out := &trace.Trace{Source: parts[0].Source, Virtual: parts[0].Virtual}
	owner := map[int]string{}
	numbered := true
	world := 0 // index of the first trace that states the number of ranks of its job
	for i, t := range parts {
		if t.Source != out.Source {
			return nil, fmt.Errorf("%s is of %s, %s of %s: give one kind", names[0], source(out), names[i], source(t))
		}
		for _, id := range t.IDs {
			numbered = numbered && id >= 0
		}
		out.Repeats = out.Repeats || t.Repeats
		if t.World > 0 && out.World > 0 && t.World != out.World {
			return nil, fmt.Errorf("%s is of a job of %d ranks, and %s of a job of %d: give the files of one job",
				names[world],
				out.World, names[i], t.World)
		}
		if out.World == 0 {
			out.World, world = t.World, i
		}
	}
	clocks := 0
	for i, t := range parts {
		base, most := out.Ranks, 0
		for r := range t.Ranks {
			id := base + r
			if numbered {
				id = t.IDs[r]
			}
			if other, twice := owner[id]; twice {
				if t.Source != "nsys" {
					return nil, &TwiceError{other, names[i], id}
				}
				id = base + r // every container has a device 0, so take a free number
				for owner[id] != "" {
					id++
				}
			}
			owner[id] = names[i]
			out.IDs = append(out.IDs, id)
			clock := 0
			if len(t.Clocks) > 0 {
				clock = t.Clocks[r]
			}
			most = max(most, clock)
			out.Clocks = append(out.Clocks, clocks+clock)
		}
		clocks += most + 1
		out.Ranks += t.Ranks
		if out.Ranks > maxRanks {
			return nil, fmt.Errorf("more than %d ranks", maxRanks)
		}
		for j := range t.Events {
			t.Events[j].Rank += base
		}
		for j := range t.Host {
			t.Host[j].Rank += base
		}
		for j := range t.Steps {
			t.Steps[j].Rank += base
		}
		if i == 0 {
			out.Events = t.Events
		} else {
			out.Events = append(out.Events, t.Events...)
		}
		out.Host, out.Steps = append(out.Host, t.Host...), append(out.Steps, t.Steps...)
		t.Events, t.Host = nil, nil
	}
	byID(out)
	out.Sort()
	return out, nil
}

func source(t *trace.Trace) string {
	if t.Source == "" {
		return "hocket"
	}
	return t.Source
}

// byID sorts the ranks of a trace by their numbers in the job.
func byID(t *trace.Trace) {
	order := make([]int, t.Ranks)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return t.IDs[a] - t.IDs[b] })
	to := make([]int, t.Ranks)
	ids, clocks := make([]int, t.Ranks), make([]int, t.Ranks)
	for at, r := range order {
		to[r], ids[at], clocks[at] = at, t.IDs[r], t.Clocks[r]
	}
	t.IDs, t.Clocks = ids, clocks
	for i := range t.Events {
		t.Events[i].Rank = to[t.Events[i].Rank]
	}
	for i := range t.Host {
		t.Host[i].Rank = to[t.Host[i].Rank]
	}
	for i := range t.Steps {
		t.Steps[i].Rank = to[t.Steps[i].Rank]
	}
}
