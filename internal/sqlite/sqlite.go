// Package sqlite reads tables of SQLite databases row by row, such as those that nsys export writes. It supports the
// file format's table b-trees and overflow pages, but no SQL, no indices and no writing.
package sqlite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

const (
	magic = "SQLite format 3\x00"
	// maxDepth is larger than the depth of any b-tree of a database with 2³² pages.
	maxDepth = 24
	// maxRow is the largest size of a row.
	maxRow = 16 << 20
	// maxTables and maxColumns limit the schema and a table, as SQLite does.
	maxTables  = 1 << 14
	maxColumns = 1<<15 - 1
)

// ErrWAL is wrapped by the error for a database with changes in a write-ahead log.
var ErrWAL = errors.New(`changes are in a write-ahead log: run "PRAGMA wal_checkpoint(TRUNCATE)" on it first`)

// DB is a database.
type DB struct {
	r        io.ReaderAt
	pageSize int64
	usable   int // usable bytes of a page
	pages    int64
	tables   []Table
}

// Table is a table.
type Table struct {
	Name    string
	Columns []string
	root    int64
	rowID   int // the column that is an alias of the row number; -1 if there is none
}

// Open reads the schema of a database of size bytes. walBytes is the size of the file whose name
// has "-wal" appended; 0 if there is none.
func Open(r io.ReaderAt, size, walBytes int64) (*DB, error) {
	var head [100]byte
	if _, err := r.ReadAt(head[:], 0); err != nil || string(head[:16]) != magic {
		return nil, errors.New("no SQLite database, or one cut short")
	}
	db := &DB{r: r, pageSize: int64(binary.BigEndian.Uint16(head[16:]))}
	if db.pageSize == 1 {
		db.pageSize = 1 << 16
	}
	if db.pageSize < 512 || db.pageSize > 1<<16 || db.pageSize&(db.pageSize-1) != 0 {
		return nil, fmt.Errorf("pages of %d bytes, which SQLite does not have", db.pageSize)
	}
	db.usable = int(db.pageSize) - int(head[20])
	db.pages = size / db.pageSize
	switch encoding := binary.BigEndian.Uint32(head[56:]); {
	case db.usable < 480:
		return nil, fmt.Errorf("%d bytes of every page are reserved, more than SQLite allows", head[20])
	case head[19] > 2:
		return nil, fmt.Errorf("file format %d; known are 1 and 2", head[19])
	case walBytes > 0:
		return nil, ErrWAL
	case encoding > 1:
		return nil, errors.New("text is UTF-16; only UTF-8 can be read")
	}
	if said := int64(binary.BigEndian.Uint32(head[28:])); said > db.pages {
		return nil, fmt.Errorf("the file is cut short: it has %d pages of %d", db.pages, said)
	}
	schema := Table{Name: "sqlite_schema", Columns: []string{"type", "name", "tbl_name", "rootpage", "sql"}, root: 1,
		rowID: -1}
	err := db.scan(&schema, func(row []any) error {
		kind, _ := row[0].(string)
		name, _ := row[1].(string)
		root, _ := row[3].(int64)
		sql, _ := row[4].(string)
		if kind != "table" || root < 1 {
			return nil
		}
		if len(db.tables) >= maxTables {
			return fmt.Errorf("more than %d tables", maxTables)
		}
		t := Table{Name: name, root: root}
		if t.Columns, t.rowID = columns(sql); len(t.Columns) > maxColumns {
			return fmt.Errorf("table %.100q has more than %d columns", name, maxColumns)
		}
		db.tables = append(db.tables, t)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	return db, nil
}

// Table returns the table with a name; nil if there is none.
func (db *DB) Table(name string) *Table {
	i := slices.IndexFunc(db.tables, func(t Table) bool { return strings.EqualFold(t.Name, name) })
	if i < 0 {
		return nil
	}
	return &db.tables[i]
}

// Column returns the index of the column with a name; -1 if there is none.
func (t *Table) Column(name string) int {
	return slices.IndexFunc(t.Columns, func(c string) bool { return strings.EqualFold(c, name) })
}

// Rows calls each for every row of a table. row has a value for each column: nil, int64, float64, string or []byte. The
// slice row is valid only during the call.
func (db *DB) Rows(t *Table, each func(row []any) error) error {
	if err := db.scan(t, each); err != nil {
		return fmt.Errorf("table %s: %w", t.Name, err)
	}
	return nil
}

// walk traverses one b-tree.
type walk struct {
	db   *DB
	t    *Table
	each func(row []any) error
	left int64 // number of pages that may still be read: each page occurs only once
	row  []any
	used int // number of values in row that the latest record has set
}

func (db *DB) scan(t *Table, each func(row []any) error) error {
	w := &walk{db: db, t: t, each: each, left: db.pages, row: make([]any, len(t.Columns))}
	return w.page(t.root, 0)
}

// read returns a page. The first page begins with the header of the file.
func (w *walk) read(n int64) ([]byte, error) {
	if n < 1 || n > w.db.pages {
		return nil, fmt.Errorf("page %d of %d", n, w.db.pages)
	}
	if w.left--; w.left < 0 {
		return nil, errors.New("its pages refer to each other in a circle")
	}
	b := make([]byte, w.db.pageSize)
	if _, err := w.db.r.ReadAt(b, (n-1)*w.db.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", n, err)
	}
	return b, nil
}

const (
	interiorTable = 5
	leafTable     = 13
)

func (w *walk) page(n int64, depth int) error {
	if depth > maxDepth {
		return errors.New("its pages are nested too deep")
	}
	b, err := w.read(n)
	if err != nil {
		return err
	}
	at := 0
	if n == 1 {
		at = 100
	}
	kind, cells := b[at], int(binary.BigEndian.Uint16(b[at+3:]))
	pointers := at + 8
	switch kind {
	case interiorTable:
		pointers += 4
	case leafTable:
	case 2, 10:
		return errors.New("it has no row numbers (WITHOUT ROWID), which cannot be read")
	default:
		return fmt.Errorf("page %d is of kind %d, which no table has", n, kind)
	}
	if pointers+2*cells > w.db.usable {
		return fmt.Errorf("page %d has %d cells, more than it has room for", n, cells)
	}
	room := w.db.usable - pointers - 2*cells // bytes for rows; rows must not share bytes
	for i := range cells {
		cell := int(binary.BigEndian.Uint16(b[pointers+2*i:]))
		if cell+4 > w.db.usable {
			return fmt.Errorf("page %d: a cell lies outside of it", n)
		}
		if kind == interiorTable {
			err = w.page(int64(binary.BigEndian.Uint32(b[cell:])), depth+1)
		} else {
			var bytes int
			bytes, err = w.leaf(b[cell:w.db.usable])
			if room -= bytes; room < 0 && err == nil {
				err = fmt.Errorf("page %d: its rows have more bytes than the page", n)
			}
		}
		if err != nil {
			return err
		}
	}
	if kind == interiorTable {
		return w.page(int64(binary.BigEndian.Uint32(b[at+8:])), depth+1)
	}
	return nil
}

var errCell = errors.New("a row is cut short")

// leaf reads a row, and returns the number of bytes that the row occupies on its page.
func (w *walk) leaf(b []byte) (int, error) {
	size, n := varint(b)
	id, m := varint(b[n:])
	if n == 0 || m == 0 {
		return 0, errCell
	}
	if size < 0 || size > maxRow {
		return 0, fmt.Errorf("a row of %d bytes; at most %d", size, maxRow)
	}
	payload, local, err := w.payload(b[n+m:], int(size))
	if err != nil {
		return 0, err
	}
	clear(w.row[:w.used])
	if w.used, err = decode(payload, w.row); err != nil {
		return 0, err
	}
	if k := w.t.rowID; k >= 0 && w.row[k] == nil {
		w.row[k] = id
		w.used = max(w.used, k+1)
	}
	return n + m + local, w.each(w.row)
}

// payload returns the data of a row of the given size, which may continue on overflow pages, and the number of these
// bytes that are on the row's page.
func (w *walk) payload(b []byte, size int) (row []byte, local int, err error) {
	u := w.db.usable
	local = size
	if size > u-35 {
		least := (u-12)*32/255 - 23
		if local = least + (size-least)%(u-4); local > u-35 {
			local = least
		}
	}
	if local == size {
		if len(b) < size {
			return nil, 0, errCell
		}
		return b[:size], local, nil
	}
	if len(b) < local+4 {
		return nil, 0, errCell
	}
	out := append([]byte(nil), b[:local]...)
	next := int64(binary.BigEndian.Uint32(b[local:]))
	for len(out) < size {
		page, err := w.read(next)
		if err != nil {
			return nil, 0, err
		}
		next = int64(binary.BigEndian.Uint32(page))
		out = append(out, page[4:4+min(u-4, size-len(out))]...)
	}
	return out, local + 4, nil
}

// varint reads a number of up to nine bytes, and returns the number and its size in bytes; the size is 0 if the number
// is cut short.
func varint(b []byte) (v int64, n int) {
	for n < len(b) && n < 8 {
		v = v<<7 | int64(b[n]&0x7f)
		n++
		if b[n-1] < 0x80 {
			return v, n
		}
	}
	if n < 8 || len(b) < 9 {
		return 0, 0
	}
	return v<<8 | int64(b[8]), 9
}

// decode fills a row from its record, and returns how many values it has set. Columns that were
// added to the table after the row was written have no value.
func decode(b []byte, row []any) (set int, err error) {
	size, n := varint(b)
	if n == 0 || size < int64(n) || size > int64(len(b)) {
		return 0, errCell
	}
	head, body := b[n:size], b[size:]
	for i := range row {
		if len(head) == 0 {
			return i, nil
		}
		kind, n := varint(head)
		if n == 0 {
			return i, errCell
		}
		head = head[n:]
		if row[i], body, err = value(kind, body); err != nil {
			return i, err
		}
	}
	return len(row), nil
}

// value reads a value of the given serial type.
func value(kind int64, b []byte) (any, []byte, error) {
	var n int64
	switch {
	case kind >= 12:
		n = (kind - 12) / 2
	case kind == 5:
		n = 6
	case kind == 6 || kind == 7:
		n = 8
	case kind >= 1 && kind <= 4:
		n = kind
	}
	if kind < 0 || n > int64(len(b)) {
		return nil, nil, errCell
	}
	data, rest := b[:n], b[n:]
	switch kind {
	case 0:
		return nil, rest, nil
	case 8, 9:
		return kind - 8, rest, nil
	case 10, 11:
		return nil, nil, fmt.Errorf("a value of type %d, which SQLite reserves", kind)
	}
	switch {
	case kind == 7:
		return math.Float64frombits(binary.BigEndian.Uint64(data)), rest, nil
	case kind < 7:
		v := int64(int8(data[0]))
		for _, c := range data[1:] {
			v = v<<8 | int64(c)
		}
		return v, rest, nil
	case kind%2 == 1:
		return string(data), rest, nil
	}
	return append([]byte(nil), data...), rest, nil
}
