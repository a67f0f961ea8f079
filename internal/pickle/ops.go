package pickle

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// The opcodes have the names of Python's pickletools.
const (
	opMark, opStop, opPop, opPopMark, opDup                = '(', '.', '0', '1', '2'
	opNone, opNewTrue, opNewFalse                          = 'N', 0x88, 0x89
	opBinInt, opBinInt1, opBinInt2, opLong1, opLong4       = 'J', 'K', 'M', 0x8a, 0x8b
	opBinFloat                                             = 'G'
	opBinUnicode, opShortBinUnicode, opBinUnicode8         = 'X', 0x8c, 0x8d
	opBinBytes, opShortBinBytes, opBinBytes8, opByteArray8 = 'B', 'C', 0x8e, 0x96
	opBinString, opShortBinString                          = 'T', 'U'
	opEmptyList, opList, opAppend, opAppends               = ']', 'l', 'a', 'e'
	opEmptyTuple, opTuple, opTuple1, opTuple2, opTuple3    = ')', 't', 0x85, 0x86, 0x87
	opEmptyDict, opDict, opSetItem, opSetItems             = '}', 'd', 's', 'u'
	opEmptySet, opAddItems, opFrozenSet                    = 0x8f, 0x90, 0x91
	opBinPut, opLongBinPut, opBinGet, opLongBinGet         = 'q', 'r', 'h', 'j'
	opMemoize, opProto, opFrame                            = 0x94, 0x80, 0x95
	opGlobal, opStackGlobal, opReduce                      = 'c', 0x93, 'R'
	opNewObj, opNewObjEx, opBuild, opBinPersID             = 0x81, 0x92, 'b', 'Q'
	opNextBuffer, opReadonlyBuffer, opExt1, opExt2, opExt4 = 0x97, 0x98, 0x82, 0x83, 0x84
	opObj, opInst, opPut, opGet, opInt, opLong, opPersID   = 'o', 'i', 'p', 'g', 'I', 'L', 'P'
	opFloat, opString, opUnicode                           = 'F', 'S', 'V'
)

// maxLong is the largest size of an integer in bytes. The limit is low because the time of a conversion is quadratic in
// the size.
const maxLong = 4096

func (d *decoder) step(op byte) error {
	if !d.begun {
		return d.begin(op)
	}
	switch op {
	case opProto:
		_, err := d.byte()
		return err
	case opFrame:
		_, err := d.uint(8)
		return err
	case opMark:
		if len(d.marks) == maxStack {
			return fmt.Errorf("values are nested more than %d deep: %w", maxStack, ErrLimit)
		}
		d.marks = append(d.marks, len(d.stack))
		return d.count(sizeMark)
	case opPop:
		_, err := d.pop()
		return err
	case opPopMark:
		_, err := d.popMark()
		return err
	case opDup:
		v, err := d.top()
		return d.pushed(v, 0, err)
	case opBinPut, opLongBinPut, opMemoize, opBinGet, opLongBinGet:
		return d.memory(op)
	case opAppend, opAppends, opAddItems, opSetItem, opSetItems, opBuild:
		return d.fill(op)
	case opList, opTuple, opTuple1, opTuple2, opTuple3, opDict, opFrozenSet:
		return d.collect(op)
	case opGlobal, opStackGlobal, opReduce, opNewObj, opNewObjEx, opBinPersID:
		return d.object(op)
	}
	v, bytes, err := d.atom(op)
	return d.pushed(v, bytes, err)
}

// begin reads the first opcode, which contains the protocol.
func (d *decoder) begin(op byte) error {
	d.begun = true
	if op != opProto {
		return errors.New("no pickle of protocol 2 or later: it does not begin with the number of the protocol")
	}
	v, err := d.byte()
	if err == nil && (v < 2 || v > 5) {
		err = fmt.Errorf("protocol %d is not supported; the supported ones are 2 to 5", v)
	}
	return err
}

func (d *decoder) pushed(v any, bytes int64, err error) error {
	if err != nil {
		return err
	}
	return d.push(v, bytes)
}

// atom decodes a value that contains no values from the stack. atom returns the value and the value's size in memory.
func (d *decoder) atom(op byte) (any, int64, error) {
	switch op {
	case opNone:
		return nil, 0, nil
	case opNewTrue, opNewFalse:
		return op == opNewTrue, 0, nil
	case opEmptyList:
		return d.lists.new(), sizeList, nil
	case opEmptyTuple:
		return d.tuples.new(), sizeList, nil
	case opEmptyDict:
		return d.dicts.new(), sizeDict, nil
	case opEmptySet:
		return d.sets.new(), sizeList, nil
	case opBinInt, opBinInt1, opBinInt2, opLong1, opLong4, opBinFloat:
		before := d.offset
		v, err := d.number(op)
		return v, sizeNumber + d.offset - before, err
	}
	before := d.offset
	v, err := d.characters(op)
	return v, sizeList + d.offset - before, err
}

func (d *decoder) number(op byte) (any, error) {
	switch op {
	case opBinInt:
		v, err := d.uint(4)
		return int64(int32(v)), err
	case opBinInt1:
		v, err := d.uint(1)
		return int64(v), err
	case opBinInt2:
		v, err := d.uint(2)
		return int64(v), err
	case opBinFloat:
		b, err := d.bytes(8)
		if err != nil {
			return nil, err
		}
		var v uint64
		for _, c := range b {
			v = v<<8 | uint64(c)
		}
		return math.Float64frombits(v), nil
	}
	size := 1
	if op == opLong4 {
		size = 4
	}
	n, err := d.uint(size)
	if err == nil && n > maxLong {
		err = fmt.Errorf("an integer of %d bytes, more than %d: %w", n, maxLong, ErrLimit)
	}
	if err != nil {
		return nil, err
	}
	b, err := d.bytes(n)
	return integer(b), err
}

func (d *decoder) characters(op byte) (any, error) {
	size := 0
	switch op {
	case opShortBinUnicode, opShortBinBytes, opShortBinString:
		size = 1
	case opBinUnicode, opBinBytes, opBinString:
		size = 4
	case opBinUnicode8, opBinBytes8, opByteArray8:
		size = 8
	default:
		return nil, unknown(op)
	}
	b, err := d.sized(size)
	if err != nil {
		return nil, err
	}
	switch op {
	case opBinBytes, opShortBinBytes, opBinBytes8, opByteArray8:
		return b, nil
	}
	return text(b)
}

func unknown(op byte) error {
	switch op {
	case opNextBuffer, opReadonlyBuffer:
		return errors.New("it refers to a buffer outside the file")
	case opExt1, opExt2, opExt4:
		return errors.New("it refers to a registry of extensions outside the file")
	case opObj, opInst, opPut, opGet, opInt, opLong, opPersID, opFloat, opString, opUnicode:
		return fmt.Errorf("opcode %q is of protocol 0 or 1; write the pickle with protocol 2 or later", op)
	}
	return fmt.Errorf("there is no opcode 0x%02x", op)
}

// memory stores the top of the stack in the memo, or pushes a value from it.
func (d *decoder) memory(op byte) error {
	var key uint64
	var err error
	switch op {
	case opMemoize:
		key = uint64(d.kept)
	case opBinPut, opBinGet:
		key, err = d.uint(1)
	default:
		key, err = d.uint(4)
	}
	if err != nil {
		return err
	}
	if op == opBinGet || op == opLongBinGet {
		v, ok := d.recall(key)
		if !ok {
			return fmt.Errorf("it reads entry %d of the memo, which was not stored", key)
		}
		return d.push(v, 0)
	}
	v, err := d.top()
	if err != nil {
		return err
	}
	return d.keep(key, v)
}

func (d *decoder) recall(key uint64) (any, bool) {
	if key < uint64(len(d.memo)) {
		return d.memo[key].v, d.memo[key].set
	}
	v, ok := d.sparse[key]
	return v, ok
}

// keep stores a value in the memo. Python numbers entries from 0 or 1.
func (d *decoder) keep(key uint64, v any) error {
	const gap = 64
	bytes := int64(0)
	if _, ok := d.recall(key); !ok {
		bytes, d.kept = sizeKept, d.kept+1
	}
	switch n := uint64(len(d.memo)); {
	case key >= n+gap:
		d.sparse[key] = v
		return d.count(bytes + sizeSparse)
	case key >= n:
		bytes += int64(key-n) * sizeKept
		for key >= uint64(len(d.memo)) {
			v, ok := d.sparse[uint64(len(d.memo))]
			d.memo = append(d.memo, kept{v, ok})
		}
	}
	d.memo[key] = kept{v, true}
	return d.count(bytes)
}

// collect makes a container from the values above the mark, or from a fixed number of values at the
// top.
func (d *decoder) collect(op byte) error {
	var items []any
	var err error
	switch op {
	case opTuple1, opTuple2, opTuple3:
		items, err = d.popN(int(op-opTuple1) + 1)
	default:
		items, err = d.popMark()
	}
	if err != nil {
		return err
	}
	if op == opDict {
		dict := d.dicts.new()
		if err := dict.set(items); err != nil {
			return err
		}
		return d.push(dict, sizeDict)
	}
	have := d.items.take(len(items))
	copy(have, items)
	bytes := sizeList + sizeItem*int64(len(items))
	switch op {
	case opList:
		v := d.lists.new()
		v.Items = have
		return d.push(v, bytes)
	case opFrozenSet:
		v := d.sets.new()
		v.Items = have
		return d.push(v, bytes)
	}
	v := d.tuples.new()
	v.Items = have
	return d.push(v, bytes)
}

func (d *Dict) set(items []any) error {
	if len(items)%2 != 0 {
		return errors.New("a key has no value")
	}
	for i := 0; i < len(items); i += 2 {
		d.Keys, d.Values = appended(d.Keys, items[i]), appended(d.Values, items[i+1])
	}
	return nil
}

// appended appends items. The capacity of a full slice of any size is doubled, because copying slices of pointers would
// otherwise take most of the time for long lists.
func appended(to []any, items ...any) []any {
	if len(to) > 0 && len(to)+len(items) > cap(to) {
		to = slices.Grow(to, len(to)+len(items))
	}
	return append(to, items...)
}

// fill moves values from the top of the stack into the container below these values.
func (d *decoder) fill(op byte) error {
	var items []any
	var err error
	switch op {
	case opAppend, opBuild:
		items, err = d.popN(1)
	case opSetItem:
		items, err = d.popN(2)
	default:
		items, err = d.popMark()
	}
	if err != nil {
		return err
	}
	into, err := d.top()
	if err != nil {
		return err
	}
	object, _ := into.(*Object)
	switch op {
	case opBuild:
		if object == nil {
			return fmt.Errorf("it gives state to %s", Brief(into))
		}
		object.State = items[0]
		return nil
	case opSetItem, opSetItems:
		if dict, ok := into.(*Dict); ok {
			return dict.set(items)
		} else if object != nil {
			return object.Entries.set(items)
		}
		return fmt.Errorf("it sets keys of %s", Brief(into))
	}
	switch v := into.(type) {
	case *List:
		v.Items = appended(v.Items, items...)
	case *Set:
		v.Items = appended(v.Items, items...)
	case *Object:
		v.Items.Items = appended(v.Items.Items, items...)
	default:
		return fmt.Errorf("it appends to %s", Brief(into))
	}
	return nil
}

// object decodes an import or a call. It stores the import or call in an Object and executes nothing.
func (d *decoder) object(op byte) error {
	switch op {
	case opGlobal:
		module, err := d.line()
		if err != nil {
			return err
		}
		name, err := d.line()
		if err != nil {
			return err
		}
		if err := d.count(int64(len(module) + len(name))); err != nil {
			return err
		}
		return d.made(Object{Module: module, Name: name})
	case opBinPersID:
		id, err := d.pop()
		if err != nil {
			return err
		}
		return d.made(Object{Name: "persistent id", Called: true, Args: &Tuple{[]any{id}}})
	}
	n := 2
	if op == opNewObjEx {
		n = 3
	}
	parts, err := d.popN(n)
	if err != nil {
		return err
	}
	if op == opStackGlobal {
		module, ok1 := parts[0].(string)
		name, ok2 := parts[1].(string)
		if !ok1 || !ok2 {
			return errors.New("it imports a module or an object whose name is not a string")
		}
		return d.made(Object{Module: module, Name: name})
	}
	callee, ok1 := parts[0].(*Object)
	args, ok2 := parts[1].(*Tuple)
	if !ok1 || !ok2 {
		return fmt.Errorf("it calls %s with %s", Brief(parts[0]), Brief(parts[1]))
	}
	object := Object{Module: callee.Module, Name: callee.Name, Called: true, Args: args}
	if n == 3 {
		if kw, ok := parts[2].(*Dict); ok {
			object.Entries = *kw
		}
	}
	return d.made(object)
}

func (d *decoder) made(o Object) error {
	v := d.objects.new()
	*v = o
	return d.push(v, sizeObject)
}
