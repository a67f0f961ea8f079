package kernelfile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strings"
)

// A .nv.info section consists of records. Each record begins with a byte for its form, a byte for its kind, and 2
// bytes, which are a value or, in the form sized, the number of bytes that follow.
const (
	sized     = 4
	paramInfo = 0x17 // a parameter: index, 4 bytes; ordinal and offset, 2 bytes each; 4 bytes with the size above bit 18
)

// machine is EM_CUDA, the number of CUDA in an ELF header. elfVersion is the offset of the version in a 64-bit header.
const (
	machine    = 190
	elfVersion = 20
)

// cubin returns the kernels of a cubin file with their parameters. Section .text.NAME has the code of the kernel NAME,
// and .nv.info.NAME describes its parameters.
func cubin(b []byte) (Kernels, error) {
	// Since CUDA 13 the version in the header is not 1, ELF's version, which debug/elf requires.
	if len(b) > elfVersion+4 && bytes.HasPrefix(b, []byte(elf.ELFMAG)) {
		b = bytes.Clone(b)
		binary.LittleEndian.PutUint32(b[elfVersion:], uint32(elf.EV_CURRENT))
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil || f.Machine != machine {
		return nil, fmt.Errorf("the file is no cubin, an ELF file of machine code for a GPU")
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

// infoParams returns the parameters that a .nv.info section describes; nil if it describes none.
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
