package world

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"
)

// buildVariable is the environment variable with the build that a process of a test claims to have: "VERSION DIRTY
// PROGRAM ID".
const buildVariable = "HOCKET_TEST_WORLD_BUILD"

func init() {
	if text := os.Getenv(buildVariable); text != "" {
		w := strings.Split(text, " ")
		thisBuild = func() build { return build{w[0], w[1] == "dirty", w[2], w[3]} }
	}
}

// TestBuilds checks that processes of different builds cannot join each other, and that each error
// has both builds. Processes of one build can join, whatever programs they run.
func TestBuilds(t *testing.T) {
	for _, tc := range []struct {
		name   string
		builds [3]string
		want   string // expected error in all processes; "" if they join
	}{
		{"versions", [3]string{"v1.2.0 clean hocket a", "v1.2.0 clean hocket a", "v1.1.0 clean hocket b"},
			"disagree on the build of hocket: rank 2 (pid %d on %s) has hocket of v1.1.0, the others (ranks 0-1) have hocket of v1.2.0"},
		{"changed", [3]string{"v1.2.0 dirty hocket a", "v1.2.0 dirty hocket b", "v1.2.0 dirty hocket a"},
			"rank 1 (pid %d on %s) has hocket of v1.2.0 with changes, build b, the others (ranks 0, 2) have hocket of v1.2.0 with changes, build a"},
		{"one changed", [3]string{"v1.2.0 dirty hocket a", "v1.2.0 clean hocket b", "v1.2.0 clean hocket b"},
			"rank 0 (pid %d on %s) has hocket of v1.2.0 with changes, build a, the others (ranks 1-2) have hocket of v1.2.0\n"},
		{"unknown", [3]string{" clean hocket a", " clean hocket a", " clean hocket b"},
			"rank 2 (pid %d on %s) has hocket of an unknown version, build b, the others (ranks 0-1) have hocket of an unknown version, build a"},
		{"built again", [3]string{"v1.2.0 clean hocket a", "v1.2.0 clean hocket b", "v1.2.0 clean hocket c"}, ""},
		{"library", [3]string{" clean hocket a", " clean libhocket b", " clean hocket a"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := start(t, options(t, 3), "life", func(rank int) []string {
				return []string{buildVariable + "=" + tc.builds[rank]}
			})
			host, _ := os.Hostname()
			for r := range 3 {
				code, out := f.wait(r, limit), f.out[r].String()
				if tc.want == "" {
					if code != 0 {
						t.Errorf("rank %d exits %d: %s", r, code, out)
					}
					continue
				}
				odd := strings.SplitN(tc.want, "(pid", 2)[0]
				want := fmt.Sprintf(tc.want, f.command[odd[len(odd)-2]-'0'].Process.Pid, host)
				if code != exitFailed || !strings.Contains(out, want) {
					t.Errorf("rank %d exits %d: %s\nwant %s", r, code, out, want)
				}
			}
		})
	}
}

// TestBuildOf checks that the build of hocket is found in the records of Go's linker.
func TestBuildOf(t *testing.T) {
	vcs := []debug.BuildSetting{{Key: "vcs.revision", Value: "4f2c"}, {Key: "vcs.modified", Value: "true"}}
	own := debug.Module{Path: modulePath, Version: "(devel)"}
	other := debug.Module{Path: "example.org/train", Version: "(devel)"}
	for _, tc := range []struct {
		info debug.BuildInfo
		want build
	}{
		{debug.BuildInfo{Path: "hocket", Main: own}, build{Program: "hocket"}},
		{debug.BuildInfo{Path: "hocket", Main: own, Settings: vcs},
			build{Version: "commit 4f2c", Dirty: true, Program: "hocket"}},
		{debug.BuildInfo{Path: "hocket", Main: debug.Module{Path: modulePath, Version: "v1.0.0"}, Settings: vcs[:1]},
			build{Version: "v1.0.0", Program: "hocket"}},
		{debug.BuildInfo{Path: "train", Main: other, Settings: vcs,
			Deps: []*debug.Module{{Path: "a"}, {Path: modulePath, Version: "v1.0.0"}}},
			build{Version: "v1.0.0", Program: "train"}},
		{debug.BuildInfo{Path: "train", Main: other, Settings: vcs,
			Deps: []*debug.Module{{Path: modulePath, Version: "v1.0.0", Replace: &debug.Module{Path: "../hocket"}}}},
			build{Program: "train"}},
	} {
		if got := buildOf(&tc.info); got != tc.want {
			t.Errorf("%+v: %+v, want %+v", tc.info, got, tc.want)
		}
	}
	if b := thisBuild(); b.ID == "" || b.Program == "" {
		t.Errorf("unexpected build of this program: %+v", b)
	}
}
