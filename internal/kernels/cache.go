package kernels

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"

	"hocket.example/hocket/internal/files"
)

// Cache stores machine code on disk, in one file for each key. An entry that is truncated, modified or stored under
// another key is ignored: the code is compiled again and the entry replaced. If the folder cannot be written, each
// process compiles its code; there is no other effect. Several processes may use one folder. A folder that is a link,
// or that other users can write to, is not used, because GPUs execute the code in it. A nil Cache stores nothing.
type Cache struct {
	dir    string
	logger *slog.Logger
	warned sync.Once
}

// OpenCache returns the cache in the folder that HOCKET_CACHE names, or in the user's cache folder if HOCKET_CACHE is
// not set. It returns nil if there is neither. The logger receives one message if the folder cannot be used; nil
// selects the default logger.
func OpenCache(logger *slog.Logger) *Cache {
	dir, named, err := files.CacheFolder()
	if err != nil {
		(&Cache{logger: logger}).warn(err)
		return nil
	}
	if !named {
		dir = filepath.Join(dir, "kernels")
	}
	return CacheIn(dir, logger)
}

// CacheIn returns the cache in a folder, which is created by the first write.
func CacheIn(dir string, logger *slog.Logger) *Cache { return &Cache{dir: dir, logger: logger} }

// Dir returns the name of the cache's folder; it is empty for a nil Cache.
func (c *Cache) Dir() string {
	if c == nil {
		return ""
	}
	return c.dir
}

// An entry consists of a magic number, the key, the length of the code, the code's hash and the code.
const magic = "hocket kernel 1\n"

const headBytes = len(magic) + 64 + 8 + sha256.Size

// The suffix of an entry's file name shows the kind of entry.
const (
	codeEnding = ".cubin"
	noteEnding = ".note"
)

// entryMost is the largest size of an entry in bytes.
const entryMost = 64 << 20

func (c *Cache) path(key, ending string) string { return filepath.Join(c.dir, key+ending) }

func (c *Cache) load(key, ending string) ([]byte, bool) {
	if c == nil {
		return nil, false
	}
	b, err := files.ReadKept(c.path(key, ending), entryMost)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			c.warn(err)
		}
		return nil, false
	}
	return unseal(b, key)
}

func (c *Cache) store(key, ending string, b []byte) {
	if c == nil {
		return
	}
	if err := files.WriteUnsynced(c.path(key, ending), seal(key, b)); err != nil {
		c.warn(err)
	}
}

func (c *Cache) warn(err error) {
	c.warned.Do(func() {
		l := c.logger
		if l == nil {
			l = slog.Default()
		}
		l.Warn("compiled kernels are not stored on disk", "why", err, "help", fmt.Sprintf("name a writable folder in %s",
			files.CacheVariable))
	})
}

func seal(key string, image []byte) []byte {
	sum := sha256.Sum256(image)
	b := append(make([]byte, 0, headBytes+len(image)), magic...)
	b = append(b, key...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(image)))
	return append(append(b, sum[:]...), image...)
}

func unseal(b []byte, key string) ([]byte, bool) {
	if len(b) < headBytes || !bytes.HasPrefix(b, []byte(magic+key)) {
		return nil, false
	}
	head, image := b[len(magic)+len(key):headBytes], b[headBytes:]
	sum := sha256.Sum256(image)
	ok := binary.LittleEndian.Uint64(head) == uint64(len(image)) && bytes.Equal(head[8:], sum[:])
	return image, ok && len(image) > 0
}
