package device

import (
	"errors"
	"strings"
	"testing"

	"hocket.example/hocket/internal/world"
)

func TestNamed(t *testing.T) {
	_, err := Named("abacus", nil)
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), `"abacus"`) || !strings.Contains(err.Error(), "cpu") {
		t.Fatalf("got %v", err)
	}
	t.Cleanup(func() { delete(makers.byName, "abacus") })
	broken := errors.New("beads are missing")
	Register("abacus", func(*world.World) (Machine, error) { return nil, broken })
	if _, err := Named("abacus", nil); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if _, err := Named("loom", nil); err == nil || !strings.Contains(err.Error(), "abacus; importing hocket.example/hocket/cuda adds cuda") {
		t.Errorf("got %v", err)
	}
	t.Cleanup(func() { delete(makers.byName, "cuda") })
	Register("cuda", func(*world.World) (Machine, error) { return nil, broken })
	if _, err := Named("loom", nil); err == nil || strings.Contains(err.Error(), "importing") {
		t.Errorf("got %v", err)
	}
}
