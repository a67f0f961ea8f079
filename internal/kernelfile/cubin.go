package kernelfile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strings"
)

// What .nv.info sections hold: records of a form and a kind, a byte each, and 2 bytes that are a value or,
// in form sized, how many bytes follow.
const (
	sized     = 4
	paramInfo = 0x17 // index, 4 bytes; ordinal and offset, 2 each; 4 bytes with the size above 18 bits
)

// machine is EM_CUDA; elfVersion is where a header of 64 bits has its version.
const (
	machine    = 190
	elfVersion = 20
)

// cubin finds the kernels of a cubin: the sections .text.NAME, whose parameters .nv.info.NAME tells.
func cubin(b []byte) (Kernels, error) {
	// From CUDA 13 on the header's version is not ELF's, 1, which debug/elf insists on.
	if len(b) > elfVersion+4 && bytes.HasPrefix(b, []byte(elf.ELFMAG)) {
		b = bytes.Clone(b)
		binary.LittleEndian.PutUint32(b[elfVersion:], uint32(elf.EV_CURRENT))
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil || f.Machine != machine {
		return nil, fmt.Errorf("it is no cubin, an ELF file of machine code for a GPU")
	}
	found := Kernels{}
	for _, s := range f.Sections {
		if name, ok := strings.CutPrefix(s.Name, ".text."); ok && s.Type == elf.SHT_PROGBITS {
			found[name] = nil
		}
	}
	for _, s := range f.Sections {
		name, ok := strings.CutPrefix(s.Name, ".nv.info.")
		if _, kernel := found[name]; !ok || !kernel || s.Size > 1<<20 || s.FileSize > 1<<20 {
			continue
		}
		if data, err := s.Data(); err == nil {
			found[name] = infoParams(data)
		}
	}
	return found, nil
}

// infoParams are the parameters in a .nv.info section; nil where it has none.
func infoParams(b []byte) []Param {
	byOrdinal := map[int]Param{}
	for len(b) >= 4 {
		form, kind, n := b[0], b[1], int(binary.LittleEndian.Uint16(b[2:]))
		b = b[4:]
		if form != sized {
			continue
		}
		if n > len(b) {
			return nil
		}
		if kind == paramInfo && n >= 12 {
			byOrdinal[int(binary.LittleEndian.Uint16(b[4:]))] = Param{Size: int(binary.LittleEndian.Uint32(b[8:]) >> 18)}
		}
		b = b[n:]
	}
	var list []Param
	for i := range len(byOrdinal) {
		p, ok := byOrdinal[i]
		if !ok {
			return nil
		}
		list = append(list, p)
	}
	return list
}
