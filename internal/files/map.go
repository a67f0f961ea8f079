package files

import "fmt"

// Mapping is a regular file's contents. Where the system maps files they are read as they
// are used, so the file must not be cut short meanwhile.
type Mapping struct {
	Bytes []byte // not to be written to
	unmap func() error
}

// Close unmaps the file. Bytes must not be used any more.
func (m *Mapping) Close() error {
	unmap := m.unmap
	m.Bytes, m.unmap = nil, nil
	if unmap == nil {
		return nil
	}
	return unmap()
}

// Map maps a regular file for reading.
func Map(path string) (*Mapping, error) {
	f, size, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size == 0 {
		return &Mapping{}, nil
	}
	if int64(int(size)) != size {
		return nil, fmt.Errorf("map %s: %d bytes are more than this host can address", path, size)
	}
	m, err := mapFile(f, int(size))
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return m, nil
}
