package kernels

// Notes are small findings that took time to make, kept beside the kernels in
// the same way: whole or not at all, and none where an entry is cut short,
// changed or another's.

// LoadNote returns what was stored under key, a text that says all that it
// depends on.
func (c *Cache) LoadNote(key string) ([]byte, bool) {
	return c.load(keyOf(key, nil, "note"), noteEnding)
}

// StoreNote keeps b, which must not be empty, under key.
func (c *Cache) StoreNote(key string, b []byte) { c.store(keyOf(key, nil, "note"), noteEnding, b) }
