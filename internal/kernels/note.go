package kernels

// Notes are small results that took long to determine, such as measurements. They are stored in the same way as
// kernels: a note is stored as a whole, and one that is truncated, modified or stored under another key is ignored.

// LoadNote returns the bytes that were stored under key, a text that contains everything that they depend on.
func (c *Cache) LoadNote(key string) ([]byte, bool) {
	return c.load(keyOf(key, nil, "note"), noteEnding)
}

// StoreNote stores b, which must not be empty, under key.
func (c *Cache) StoreNote(key string, b []byte) { c.store(keyOf(key, nil, "note"), noteEnding, b) }
