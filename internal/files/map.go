package files

import "fmt"

// Mapping is the content of a regular file. If the system can map files, bytes are read from the file only when they
// are used, so the file must not become shorter in the meantime.
type Mapping struct {
	Bytes []byte // must not be modified
	unmap func() error
}

// Close unmaps the file. The slice Bytes must not be used after Close.
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
		return nil, fmt.Errorf("map %s: its %d bytes are more than this host can address", path, size)
	}
	m, err := mapFile(f, int(size))
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return m, nil
}
