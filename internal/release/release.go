// Package release states the version of hocket and describes builds of it.
package release

import (
	"debug/buildinfo"
	"runtime/debug"
)

// Version is the version of hocket. The command, the library, the Python package and the files of a release read the
// version from here; it is stated nowhere else.
const Version = "0.1.0"

const modulePath = "hocket.example/hocket"

// Build describes how a program or a library of hocket's module was built. Commit is empty if it was built outside a
// checkout or with -buildvcs=false.
type Build struct {
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // the checkout had uncommitted changes
	Go       string `json:"go"`
	Platform string `json:"platform"` // as linux/amd64
}

// The function This returns the build of the running program. For a program of another module, only Go and Platform are
// set.
func This() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Build{}
	}
	return of(info)
}

// File returns the build of a program or shared library, without loading it.
func File(path string) (Build, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return Build{}, err
	}
	return of(info), nil
}

func of(info *debug.BuildInfo) Build {
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	b := Build{Go: info.GoVersion, Platform: set["GOOS"] + "/" + set["GOARCH"]}
	if info.Main.Path == modulePath { // for another module, the commit would be that module's
		b.Commit, b.Modified = set["vcs.revision"], set["vcs.modified"] == "true"
	}
	return b
}

// String returns the version with the commit as build metadata of semantic versioning: 0.1.0+703982d6abcd.
func (b Build) String() string {
	if b.Commit == "" {
		return Version
	}
	text := Version + "+" + b.Commit[:min(len(b.Commit), 12)]
	if b.Modified {
		text += ".modified"
	}
	return text
}

// Agrees reports whether two files can be from one build, that is from the same commit without changes. A build without
// a commit agrees with no build.
func (b Build) Agrees(o Build) bool {
	return b.Commit != "" && b.Commit == o.Commit && !b.Modified && !o.Modified
}
