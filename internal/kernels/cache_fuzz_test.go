package kernels

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzUnseal checks that an entry of the cache is used only if it equals, byte for byte, the one stored under that key.
func FuzzUnseal(f *testing.F) {
	key := strings.Repeat("0123456789abcdef", 4)
	f.Add(seal(key, []byte("code")))
	f.Add(seal(key, nil))
	f.Add(seal(strings.Repeat("f", 64), []byte("of another")))
	f.Add(append(seal(key, []byte("code")), 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if image, ok := unseal(b, key); ok && (!bytes.Equal(seal(key, image), b) || len(image) == 0) {
			t.Errorf("entry %q was accepted for code %q", b, image)
		}
		entry := seal(key, b)
		if image, ok := unseal(entry, key); ok != (len(b) > 0) || ok && !bytes.Equal(image, b) {
			t.Errorf("%q came back as %q, %v", b, image, ok)
		}
		if len(b) > 0 { // with one bit changed
			at := int(b[0]) * len(entry) / 256
			entry[at] ^= 1 << (b[0] % 8)
			if _, ok := unseal(entry, key); ok {
				t.Errorf("a change of byte %d was not detected", at)
			}
		}
	})
}
