package kernels

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Notes are small findings that took time to make, kept beside the kernels in
// the same way: whole or not at all, and none where an entry is cut short,
// changed or another's.

// LoadNote returns what was stored under key, a text that says all that it
// depends on.
func (c *Cache) LoadNote(key string) ([]byte, bool) {
	if c == nil {
		return nil, false
	}
	hash := keyOf(key, nil, "note")
	b, err := os.ReadFile(c.notePath(hash))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			c.warn(err)
		}
		return nil, false
	}
	return unseal(b, hash)
}

// StoreNote keeps b, which must not be empty, under key.
func (c *Cache) StoreNote(key string, b []byte) {
	if c == nil {
		return
	}
	hash := keyOf(key, nil, "note")
	if err := c.write(c.notePath(hash), seal(hash, b)); err != nil {
		c.warn(err)
	}
}

func (c *Cache) notePath(hash string) string { return filepath.Join(c.dir, hash+".note") }
