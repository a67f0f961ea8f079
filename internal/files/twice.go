package files

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// WrittenTwice returns the names of two outputs that would write the same file, or two empty names if there are none.
// The map outputs contains the path of each output by its name. Files that exist and are not regular, such as devices,
// may be written twice.
func WrittenTwice(outputs map[string]string) (first, second string) {
	names := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(outputs)) {
		if at, err := os.Stat(outputs[name]); err == nil && !at.Mode().IsRegular() {
			continue
		}
		path, err := filepath.Abs(outputs[name])
		if err != nil {
			path = outputs[name]
		}
		if names[path] != "" {
			return names[path], name
		}
		names[path] = name
	}
	return "", ""
}
