package nvlib

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

func environment(name string) string { return os.Getenv(name) }

// systemFolders lists folders with libraries that the system's loader may not search.
var systemFolders = []string{
	"/usr/local/nvidia/lib64",
	"/usr/local/cuda/lib64",
	"/usr/local/cuda/targets/*/lib",
	"/usr/local/cuda-*/lib64",
	"/usr/lib/x86_64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu",
	"/usr/lib/wsl/lib",
}

// searchRoots lists the folders in which Python keeps packages: those of the active environment, of the python3 on
// PATH, and of the system.
func searchRoots() []string {
	var prefixes []string
	if v := os.Getenv("VIRTUAL_ENV"); v != "" {
		prefixes = append(prefixes, v)
	}
	if v := os.Getenv("CONDA_PREFIX"); v != "" {
		prefixes = append(prefixes, v)
	}
	if python, err := exec.LookPath("python3"); err == nil {
		prefixes = append(prefixes, filepath.Dir(filepath.Dir(python)))
	}
	if home, err := os.UserHomeDir(); err == nil {
		prefixes = append(prefixes, filepath.Join(home, ".local"))
	}
	prefixes = append(prefixes, "/usr/local", "/usr")
	var roots []string
	for _, p := range prefixes {
		for _, pattern := range []string{"lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages"} {
			found, _ := filepath.Glob(filepath.Join(p, pattern))
			slices.Reverse(found) // begin with the newest Python
			roots = append(roots, found...)
		}
	}
	return slices.Compact(roots)
}

// files returns the files of the library in the folders of wheels under roots and in the folders of the system. Within
// each folder the newest version comes first.
func (w want) files(roots []string) []string {
	var folders []string
	for _, root := range roots {
		for _, wheel := range w.wheels {
			folders = append(folders, filepath.Join(root, wheel))
		}
	}
	var files []string
	for _, folder := range append(folders, systemFolders...) {
		for _, v := range w.versions {
			found, _ := filepath.Glob(filepath.Join(folder, w.stem+v))
			files = append(files, found...)
		}
	}
	return files
}
