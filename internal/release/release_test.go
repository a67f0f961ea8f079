package release

import (
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"testing"
)

func TestBuild(t *testing.T) {
	const commit = "4f2c81a90b7d4f2c81a90b7d4f2c81a90b7d4f2c"
	system := []debug.BuildSetting{{Key: "GOOS", Value: "linux"}, {Key: "GOARCH", Value: "arm64"}}
	clean := append(system, debug.BuildSetting{Key: "vcs.revision", Value: commit}, debug.BuildSetting{Key: "vcs.modified", Value: "false"})
	changed := append(system, debug.BuildSetting{Key: "vcs.revision", Value: commit}, debug.BuildSetting{Key: "vcs.modified", Value: "true"})
	build := func(main string, settings []debug.BuildSetting) Build {
		return of(&debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Path: main}, Settings: settings})
	}
	for _, tc := range []struct {
		build  Build
		text   string
		agrees bool // agrees with a build of the commit
	}{
		{build(modulePath, clean), Version + "+4f2c81a90b7d", true},
		{build(modulePath, changed), Version + "+4f2c81a90b7d.modified", false},
		{build(modulePath, system), Version, false},
		{build("example.org/train", clean), Version, false},
	} {
		if got := tc.build.String(); got != tc.text {
			t.Errorf("%+v is %s, want %s", tc.build, got, tc.text)
		}
		if got := tc.build.Agrees(build(modulePath, clean)); got != tc.agrees {
			t.Errorf("%+v agrees with a build of the commit: %t, want %t", tc.build, got, tc.agrees)
		}
		if tc.build.Platform != "linux/arm64" || tc.build.Go != "go1.26.0" {
			t.Errorf("%+v, want linux/arm64 by go1.26.0", tc.build)
		}
	}
	if b := build(modulePath, system); b.Agrees(b) {
		t.Error("builds without a commit agree")
	}
}

// TestFile checks File with the program of this test.
func TestFile(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := File(self)
	if want := This(); err != nil || b != want || b.Platform != runtime.GOOS+"/"+runtime.GOARCH || b.Go != runtime.Version() {
		t.Errorf("this program's build is %+v, %v, want %+v", b, err, want)
	}
	if _, err := File("release.go"); err == nil {
		t.Error("a text has a build")
	}
}

// TestVersion checks that Version has a form that is the same in semantic versioning and in pip.
func TestVersion(t *testing.T) {
	if !regexp.MustCompile(`^(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}$`).MatchString(Version) {
		t.Errorf("the version is %q, want three numbers with dots between them", Version)
	}
}
