package gpu

import (
	"fmt"
	"strings"
	"testing"
)

// FuzzReach checks the parser of HOCKET_P2P. A valid value is "on", "off", or a list of pairs of two GPUs. If the
// parsed pairs are written as text and parsed again, the result is the same. Errors name the variable.
func FuzzReach(f *testing.F) {
	for _, s := range []string{"", "on", "off", "0-1", "0-1,2-0", "1-1", "0-", "-1-2", "0-1,", "0-99999999999999999999",
		"+0-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, setting string) {
		r, err := NewReach(setting)
		if err != nil {
			if !strings.Contains(err.Error(), P2PVariable) {
				t.Errorf("%q: %v", setting, err)
			}
			return
		}
		if plain := setting == "" || setting == "on"; r.Deceives() == plain || plain && len(r.denied) > 0 {
			t.Errorf("%q is read as %+v", setting, r)
		}
		if len(r.denied) == 0 {
			return
		}
		var pairs []string
		for c := range r.denied {
			if c[0] < 0 || c[0] >= c[1] {
				t.Errorf("%q keeps %v apart", setting, c)
			}
			pairs = append(pairs, fmt.Sprintf("%d-%d", c[1], c[0]))
		}
		again, err := NewReach(strings.Join(pairs, ","))
		if err != nil || len(again.denied) != len(r.denied) {
			t.Fatalf("%q: %q is read as %v, %v", setting, pairs, again, err)
		}
		for c := range r.denied {
			if !again.denied[c] {
				t.Errorf("%q: pair %v is missing", setting, c)
			}
		}
	})
}
