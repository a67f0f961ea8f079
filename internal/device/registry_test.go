package device

import (
	"errors"
	"strings"
	"testing"

	"hocket.example/hocket/internal/world"
)

func TestNamed(t *testing.T) {
	_, err := Named("abacus", nil)
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), `"abacus"`) ||
		!strings.Contains(err.Error(), "importing its package: see MachineOptions.Name") {
		t.Fatalf("got %v", err)
	}
	t.Cleanup(func() { delete(kinds.byName, "abacus") })
	broken := errors.New("beads are missing")
	Register(Kind{Name: "abacus", Default: true, Open: func(*world.World) (Machine, error) { return nil, broken }})
	if _, err := Named("abacus", nil); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if _, err := Named("", nil); !errors.Is(err, broken) {
		t.Errorf("the default: got %v", err)
	}
	if _, err := Named("loom", nil); err == nil || !strings.Contains(err.Error(), "the registered machines are: abacus;") {
		t.Errorf("got %v", err)
	}
	t.Cleanup(func() { delete(kinds.byName, "harp") })
	Register(Kind{Name: "harp", Graphs: true})
	for want, has := range map[string]func(Kind) bool{
		"; harp does":       func(k Kind) bool { return k.Graphs },
		"":                  func(k Kind) bool { return k.Profiles },
		"; abacus, harp do": func(k Kind) bool { return true },
	} {
		if got := WhichDo(has); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
