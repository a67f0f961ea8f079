package exec

import (
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/image"
)

// TestMovesShareOne checks that the move with the addresses that all other moves have in common is recorded once, even
// if it is already known.
func TestMovesShareOne(t *testing.T) {
	at := func(at ...uintptr) *move { return &move{at: at, cmds: &image.Relocation{}} }
	m := &moves{asked: true, im: &image.Image{MovableIn: []bool{true, true}}, known: []*move{at(1, 0), at(1, 2), at(1, 3)}}
	for _, v := range m.known {
		v.in = make([]device.Memory, 2)
	}
	if list := m.toRecord(false); len(list) != 3 || list[0].at[1] != 0 || list[0].at[0] != 1 {
		t.Errorf("%d moves are recorded", len(list))
	}
}
