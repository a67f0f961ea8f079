package kernels

// Notes are small results that took long to compute, such as measurements. Notes are stored like machine code: a note
// that is truncated, modified or stored under another key is ignored.

// LoadNote returns the bytes that were stored under key. The key is a text that contains everything on which the bytes
// depend.
func (c *Cache) LoadNote(key string) ([]byte, bool) {
	return c.load(keyOf(key, nil, "note"), noteEnding)
}

// StoreNote stores b, which must not be empty, under key.
func (c *Cache) StoreNote(key string, b []byte) { c.store(keyOf(key, nil, "note"), noteEnding, b) }
