package sqlite

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
)

// values returns the database that testdata/make.py wrote with SQLite 3.
func values(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/values.sqlite")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func open(t *testing.T, b []byte) *DB {
	t.Helper()
	db, err := Open(bytes.NewReader(b), int64(len(b)), 0)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestKinds(t *testing.T) {
	db := open(t, values(t))
	table := db.Table("KINDS")
	if want := []string{"an id", "v, (w)", "text", "blob"}; !reflect.DeepEqual(table.Columns, want) {
		t.Fatalf("columns %q", table.Columns)
	}
	want := []any{nil, int64(0), int64(1), int64(-1), int64(127), int64(-128), int64(32767), int64(-32768),
		int64(8388607), int64(-8388608),
		int64(1<<31 - 1), int64(-1 << 31), int64(1<<47 - 1), int64(-1 << 47), int64(1<<63 - 1), int64(-1 << 63), 0.5,
		-1e300, "text", "",
		"ä\U0001d11e", []byte{0, 255}}
	i := 0
	err := db.Rows(table, func(row []any) error {
		if row[0] != int64(i-3) || !reflect.DeepEqual(row[1], want[i]) {
			t.Errorf("row %d: %v, %v; want %v", i, row[0], row[1], want[i])
		}
		if row[2] != strings.Repeat("t", 100*i) || !bytes.Equal(row[3].([]byte), bytes.Repeat([]byte("b"), 97*i)) {
			t.Errorf("row %d: text and blob are wrong", i)
		}
		i++
		return nil
	})
	if err != nil || i != len(want) {
		t.Errorf("%d rows; want %d: %v", i, len(want), err)
	}
}

func TestLevels(t *testing.T) {
	db := open(t, values(t))
	n := int64(0)
	err := db.Rows(db.Table("many"), func(row []any) error {
		if row[0] != n || row[1] != n*n {
			t.Fatalf("row %d: %v", n, row)
		}
		n++
		return nil
	})
	if err != nil || n != 3000 {
		t.Errorf("%d rows: %v", n, err)
	}
}

func TestOdd(t *testing.T) {
	db := open(t, values(t))
	none := func([]any) error { return nil }
	if err := db.Rows(db.Table("keyed"), none); err == nil || !strings.Contains(err.Error(), "WITHOUT ROWID") {
		t.Errorf("a table without row numbers: %v", err)
	}
	if db.Table("nothing") != nil {
		t.Error("Table returns a table that does not exist")
	}
	err := db.Rows(db.Table("check"), func(row []any) error {
		if !reflect.DeepEqual(row, []any{int64(1), int64(2), nil}) {
			t.Errorf("a row older than a column: %v", row)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	stop := errors.New("stop")
	if err := db.Rows(db.Table("many"), func([]any) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Rows returns %v, want the error of each", err)
	}
}

// TestRefused checks that files that are not databases, or that have unsupported features, are
// refused.
func TestRefused(t *testing.T) {
	b := values(t)
	changed := func(at int, to ...byte) []byte {
		c := bytes.Clone(b)
		copy(c[at:], to)
		return c
	}
	for want, c := range map[string][]byte{
		"no SQLite database": []byte("SQLite format 4"),
		"cut short: it has":  b[:len(b)-100],
		"pages of 513 bytes": changed(16, 2, 1),
		"are reserved":       changed(20, 200),
		"file format 3":      changed(19, 3),
		"text is UTF-16":     changed(56, 0, 0, 0, 2),
		"kind 99":            changed(100, 99),
		"more than it has":   changed(103, 0xff, 0xff),
	} {
		if _, err := Open(bytes.NewReader(c), int64(len(c)), 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if _, err := Open(bytes.NewReader(b), int64(len(b)), 32); !errors.Is(err, ErrWAL) {
		t.Errorf("with a write-ahead log: %v", err)
	}
}

// TestCircle checks that an interior page that refers to itself is an error.
func TestCircle(t *testing.T) {
	b := values(t)
	db := open(t, b)
	root := db.Table("many").root
	page := b[(root-1)*512:]
	if page[0] != interiorTable {
		t.Fatal("the table has only one level")
	}
	binary.BigEndian.PutUint32(page[8:], uint32(root))
	err := open(t, b).Rows(db.Table("many"), func([]any) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "circle") && !strings.Contains(err.Error(), "too deep") {
		t.Errorf("%v", err)
	}
}

func FuzzRows(f *testing.F) {
	b := values(f)
	f.Add(uint32(100), []byte{99})
	f.Add(uint32(5000), []byte{255, 255, 255, 255})
	f.Fuzz(func(_ *testing.T, at uint32, with []byte) {
		c := bytes.Clone(b)
		copy(c[int(at)%len(c):], with)
		db, err := Open(bytes.NewReader(c), int64(len(c)), 0)
		if err != nil {
			return
		}
		for i := range db.tables {
			_ = db.Rows(&db.tables[i], func([]any) error { return nil })
		}
	})
}

// TestSharedBytes checks that rows of a page that share bytes are refused: otherwise a page could
// contain gigabytes of rows.
func TestSharedBytes(t *testing.T) {
	b := values(t)
	table := open(t, b).Table("KINDS")
	page := b[(table.root-1)*512:]
	for page[0] == interiorTable {
		n := binary.BigEndian.Uint32(page[8:])
		page = b[(n-1)*512:]
	}
	cells := int(binary.BigEndian.Uint16(page[3:]))
	at := binary.BigEndian.Uint16(page[8:])
	const many = 6
	for i := range many {
		binary.BigEndian.PutUint16(page[8+2*i:], at)
	}
	binary.BigEndian.PutUint16(page[3:], many)
	rows := 0
	err := open(t, b).Rows(table, func([]any) error { rows++; return nil })
	if err == nil || !strings.Contains(err.Error(), "more bytes than the page") {
		t.Errorf("the page was changed from %d to %d cells, and %d rows were read: %v", cells, many, rows, err)
	}
}

// TestColumnsOfComments checks that comments in a schema are removed in time proportional to their
// number.
func TestColumnsOfComments(t *testing.T) {
	names, _ := columns("CREATE TABLE t (a INTEGER, " + strings.Repeat("-- x, y\n/* , */", 1<<18) + "b TEXT /* end")
	if want := []string{"a", "b"}; !reflect.DeepEqual(names, want) {
		t.Errorf("columns %.100q", names)
	}
}

// FuzzColumns checks that, for any schema, the index of the row number is a valid column or -1.
func FuzzColumns(f *testing.F) {
	f.Add("CREATE TABLE t (a INTEGER PRIMARY KEY, [b c] TEXT -- d\n, e /* ( */ REAL, CHECK (a > 0))")
	f.Add("(\"")
	f.Fuzz(func(t *testing.T, sql string) {
		if names, id := columns(sql); id < -1 || id >= len(names) {
			t.Errorf("column %d of %q", id, names)
		}
	})
}
