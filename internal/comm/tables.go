package comm

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // shipped tables
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/files"
)

//go:embed tables/h200.json
var h200 []byte

// Shipped returns the table that is part of the program, measured on H200s. It is
// everybody's: nobody may change it.
var Shipped = sync.OnceValue(func() *Table {
	t, err := readTable(h200, nil)
	if err != nil {
		panic("the shipped table: " + err.Error()) // a test reads it
	}
	return t
})

// Of reports whether the shipped table was measured on GPUs like a machine's: its
// identity is how theirs begin.
func (t *Table) Of(identity string) bool { return strings.HasPrefix(identity, t.Identity) }

// shippedFor returns the shipped table for a machine, which nobody may change.
func shippedFor(identity string) *Table {
	if t := Shipped(); t.Of(identity) {
		return t
	}
	return shippedElsewhere()
}

// shippedElsewhere is the shipped table for other GPUs. What goes by way of host memory
// is as fast as the box that a GPU is in: there that is no guess to make.
var shippedElsewhere = sync.OnceValue(func() *Table {
	t := Shipped().Clone()
	for i := range t.Entries {
		for j := range t.Entries[i].Brackets {
			b := &t.Entries[i].Brackets[j]
			b.Best = slices.DeleteFunc(b.Best, func(x Timed) bool { return t.info(x.Algo).HostLink })
		}
	}
	return t
})

// maxObjects is how many objects the text of a table may have: the shipped ones have 900.
const maxObjects = 1 << 17

// Identity says which machine a world is on: what its teams say, else the
// machine's name and the processor.
func Identity(machine string, w device.World) string {
	if id := w.Identity(); id != "" {
		return id
	}
	return fmt.Sprintf("%s, %s/%s, %d CPUs", machine, runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
}

// ReadTable reads and checks a table.
func ReadTable(data []byte) (*Table, error) { return readTable(data, Shipped().Algorithms) }

// readTable is ReadTable; known describes algorithms that the table does not describe itself.
func readTable(data []byte, known []device.Algorithm) (*Table, error) {
	if n := bytes.Count(data, []byte("{")); n > maxObjects { // an empty one takes a hundred times its text
		return nil, fmt.Errorf("it is no table of collectives: it has %d objects; a table may have %d", n, maxObjects)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	t := &Table{}
	if err := d.Decode(t); err != nil {
		return nil, fmt.Errorf("it is no table of collectives: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("there is something behind the table, which ends at byte %d", d.InputOffset())
	}
	if err := t.Check(); err != nil {
		return t, err
	}
	t.retire(slices.Concat(t.Algorithms, known))
	return t, nil
}

// Folder is where tuned tables are kept: under HOCKET_CACHE, or else in the
// user's cache folder.
func Folder() (string, error) {
	dir, _, err := files.CacheFolder()
	if err != nil {
		return "", fmt.Errorf("there is no folder for tuned tables: %w", err)
	}
	return filepath.Join(dir, "collectives"), nil
}

// Path is the file of the tuned table of a machine for worlds of ranks.
func Path(identity string, ranks int) (string, error) {
	dir, err := Folder()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(identity))
	return filepath.Join(dir, fmt.Sprintf("%s-%d.json", hex.EncodeToString(sum[:8]), ranks)), nil
}

// Tuned reads the tuned table of a machine; fs.ErrNotExist where there is none.
func Tuned(identity string, ranks int) (*Table, error) {
	path, err := Path(identity, ranks)
	if err != nil {
		return nil, err
	}
	return readKept(path, identity, ranks)
}

// Write writes the table to a file that the user names, which appears whole or not at all.
func (t *Table) Write(path string) error {
	if err := makeFolder(path); err != nil {
		return err
	}
	return t.write(path, files.Write)
}

func (t *Table) write(path string, to func(string, func(io.Writer) error) error) error {
	if err := t.Check(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(t, "", " ")
	if err != nil {
		return err
	}
	return to(path, func(w io.Writer) error {
		_, err := w.Write(append(data, '\n'))
		return err
	})
}

// Writable reports whether a table can be written to a file, whose folder it makes:
// nil, or why not.
func Writable(path string) error {
	if dir, err := Folder(); err == nil && dir == filepath.Dir(path) {
		return files.CheckKept(path)
	}
	if err := makeFolder(path); err != nil {
		return err
	}
	return files.Check(path)
}

func makeFolder(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("no folder for the table: %w", err)
	}
	return nil
}

// Found is a table and where it comes from.
type Found struct {
	Identity string // of the machine that it was looked for
	Table    *Table // nil for none; not to be changed
	// From is a file, "shipped" (see Shipped), or empty where there is no table.
	From string
	// Ignored says why there is no tuned table; empty where there is one.
	Ignored string
	// Unknown are algorithms in the table that the machine does not have: they are
	// passed over.
	Unknown []string
}

// shippedFrom is the place of the shipped table.
const shippedFrom = "shipped"

// Shipped reports whether the table is the shipped one.
func (f *Found) Shipped() bool { return f.From == shippedFrom }

// untuned is why there is no table where none was made.
const untuned = "this machine has not been tuned; hocket tune does it"

// PassedOver reports whether there is a tuned table that cannot be used: Ignored says why.
func (f *Found) PassedOver() bool { return f.Ignored != "" && f.Ignored != untuned }

// Find returns the tuned table of a world's machine, or else, where the world
// has teams, the shipped one: whatever GPU it is, that is a better guess than
// none. A tuned table that cannot be used is as good as none.
func Find(machine string, w device.World) Found {
	identity := Identity(machine, w)
	t, err := Tuned(identity, w.Ranks())
	if err == nil {
		path, _ := Path(identity, w.Ranks())
		return Found{Identity: identity, Table: t, From: path, Unknown: t.unknown(w)}
	}
	f := Found{Identity: identity, Ignored: err.Error()}
	if errors.Is(err, fs.ErrNotExist) {
		f.Ignored = untuned
	}
	if w.Identity() != "" {
		f.Table, f.From = shippedFor(identity), shippedFrom
	}
	return f
}

// unknown lists the algorithms of the table that a world does not have.
func (t *Table) unknown(w device.World) []string {
	all := NewDispatch(w, device.Caps{}, nil, Policy{}).Algorithms()
	var list []string
	note := func(name string) {
		if !slices.Contains(all, name) && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	for i := range t.Entries {
		if f := t.Entries[i].Fixed; f != nil {
			note(f.Algo)
		}
		for _, b := range t.Entries[i].Brackets {
			for _, x := range b.Best {
				note(x.Algo)
			}
		}
	}
	return list
}

// tableMost is how large a table may be, in bytes: shipped ones have some 200 KB.
const tableMost = 16 << 20

// Kept lists the tuned tables that are kept for all machines, by file; of one that
// cannot be read why.
func Kept() []Found {
	dir, err := Folder()
	if err != nil {
		return nil
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*.json")) // fails for bad patterns only
	var list []Found
	for _, file := range names {
		f := Found{From: file}
		data, err := files.ReadKept(file, tableMost)
		if err == nil {
			f.Table, err = ReadTable(data)
		}
		if err != nil {
			f.Table, f.Ignored = nil, err.Error()
		}
		list = append(list, f)
	}
	return list
}
