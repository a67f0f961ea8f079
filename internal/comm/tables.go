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
	"hocket.example/hocket/internal/jsontext"
)

//go:embed tables/h200.json
var h200 []byte

// Shipped returns the table that is part of the program, which was measured on H200 GPUs. All callers share it and must
// not modify it.
var Shipped = sync.OnceValue(func() *Table {
	t, err := readTable(h200, nil)
	if err != nil {
		panic("the shipped table: " + err.Error()) // a test reads it
	}
	return t
})

// Of reports whether the shipped table t was measured on the same kind of GPU as the machine with the given identity:
// t.Identity must be a prefix of the given identity.
func (t *Table) Of(identity string) bool { return strings.HasPrefix(identity, t.Identity) }

// shippedFor returns the shipped table for a machine. Callers must not modify it.
func shippedFor(identity string) *Table {
	if t := Shipped(); t.Of(identity) {
		return t
	}
	return shippedElsewhere()
}

// shippedElsewhere returns the shipped table for other kinds of GPU. It omits algorithms that use host memory, because
// their speed depends on the host and not on the kind of GPU.
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

// maxObjects is the largest number of JSON objects in the text of a table; the shipped table has 900.
const maxObjects = 1 << 17

// Identity identifies the machine that a world runs on: it returns the identity that the world's teams report, or else
// the machine's name and the processor.
func Identity(machine string, w device.World) string {
	if id := w.Identity(); id != "" {
		return id
	}
	return fmt.Sprintf("%s, %s/%s, %d CPUs", machine, runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
}

// ReadTable reads and checks a table.
func ReadTable(data []byte) (*Table, error) { return readTable(data, Shipped().Algorithms) }

// readTable is like ReadTable. known describes the algorithms that the table itself does not describe.
func readTable(data []byte, known []device.Algorithm) (*Table, error) {
	// a decoded empty object needs 100 times as much memory as its text
	if n := bytes.Count(data, []byte("{")); n > maxObjects {
		return nil, fmt.Errorf("this is not a table of collectives: it has %d JSON objects, but a table has at most %d", n,
			maxObjects)
	}
	t := &Table{}
	if err := jsontext.Decode(data, t); err != nil {
		return nil, fmt.Errorf("this is not a table of collectives: %w", err)
	}
	if err := t.Check(); err != nil {
		return t, err
	}
	t.retire(slices.Concat(t.Algorithms, known))
	return t, nil
}

// Folder returns the folder that stores tuned tables: the subfolder collectives of $HOCKET_CACHE or, if that is not
// set, of hocket's folder in the user's cache folder.
func Folder() (string, error) {
	dir, _, err := files.CacheFolder()
	if err != nil {
		return "", fmt.Errorf("tuned tables have no folder: %w", err)
	}
	return filepath.Join(dir, "collectives"), nil
}

// Path returns the name of the file that stores the tuned table of a machine for worlds of the given number of ranks.
func Path(identity string, ranks int) (string, error) {
	dir, err := Folder()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(identity))
	return filepath.Join(dir, fmt.Sprintf("%s-%d.json", hex.EncodeToString(sum[:8]), ranks)), nil
}

// Tuned reads the tuned table of a machine. It returns fs.ErrNotExist if there is none.
func Tuned(identity string, ranks int) (*Table, error) {
	path, err := Path(identity, ranks)
	if err != nil {
		return nil, err
	}
	return readKept(path, identity, ranks)
}

// Write writes the table to a file that the user names. The file is replaced as a whole or left unchanged.
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

// Writable returns nil if a table can be written to the file, or the reason why not. It creates the file's folder.
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
		return fmt.Errorf("cannot create the folder of the table: %w", err)
	}
	return nil
}

// Found is the result of looking for a table.
type Found struct {
	Identity string // identity of the machine for which a table was looked for
	Table    *Table // the table; nil if none was found; must not be modified
	// From is the name of the table's file, "shipped" (see Shipped), or empty if Table is nil.
	From string
	// Ignored is the reason why no tuned table is used; empty if a tuned table is used.
	Ignored string
	// Unknown lists algorithms of the table that the machine does not have. They are skipped.
	Unknown []string
}

// shippedFrom is the value of Found.From for the shipped table.
const shippedFrom = "shipped"

// Shipped reports whether the found table is the shipped table.
func (f *Found) Shipped() bool { return f.From == shippedFrom }

// untuned is the value of Found.Ignored if no tuned table exists.
const untuned = "this machine has not been tuned: run hocket tune"

// PassedOver reports whether a tuned table exists but cannot be used; Ignored holds the reason.
func (f *Found) PassedOver() bool { return f.Ignored != "" && f.Ignored != untuned }

// Find returns the tuned table of the machine on which w runs. If there is none, or if it cannot be used, Find returns
// the shipped table, provided that the world has teams. On any GPU, the choices of the shipped table are better than
// choices without a table.
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

// unknown returns the algorithms that the table names and the world does not have.
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

// tableMost is the largest accepted size of a table in bytes; the shipped table has about 200 KB.
const tableMost = 16 << 20

// Kept returns the stored tuned tables of all machines, one for each file. For a file that cannot be read, Ignored
// holds the reason.
func Kept() []Found {
	dir, err := Folder()
	if err != nil {
		return nil
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*.json")) // fails only for malformed patterns
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
