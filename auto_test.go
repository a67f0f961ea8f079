package hocket_test

import (
	"slices"
	"testing"

	"hocket.example/hocket"
	tables "hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// sketched is a machine that can plan for GPUs but has none.
type sketched struct{ device.Machine }

func (sketched) Name() string { return "cuda" }

func (sketched) Caps() device.Caps { return device.Caps{MaxRanks: 4} }

func (sketched) Peers() *world.World { return nil }

func (sketched) DryRun(ranks int) (device.World, error) { return sketchedWorld{ranks: ranks}, nil }

type sketchedWorld struct {
	device.World
	ranks int
}

func (w sketchedWorld) Ranks() int                       { return w.ranks }
func (sketchedWorld) Identity() string                   { return "abacus, 4 GPUs" }
func (sketchedWorld) TeamAlgorithms() []device.Algorithm { return nil }
func (sketchedWorld) Transport() string                  { return "" }
func (sketchedWorld) Node(int) int                       { return 0 }

// TestAutoByTunedTable checks that strategy auto uses the collective times in the table that was tuned for the model's
// machine.
func TestAutoByTunedTable(t *testing.T) {
	device.Register(device.Kind{Name: "sketched", Open: func(*world.World) (device.Machine, error) { return sketched{}, nil }})
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{Name: "sketched"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dims := map[string]int64{"T": 2048, "H": 4096, "F": 14336}
	for us, want := range map[float64]bool{0.5: false, 5000: true} {
		t.Setenv("HOCKET_CACHE", t.TempDir())
		tab := &tables.Table{Version: tables.TableVersion, Identity: sketchedWorld{}.Identity(), Ranks: 4,
			Entries: []tables.Entry{{Op: ir.OpAllGather.String(), Elem: 2, Members: 4,
				Brackets: []tables.Bracket{{At: 1 << 20,
					Best: []tables.Timed{{Tuning: device.Tuning{Algo: "staged"}, Micros: us}}}}}}}
		path, err := tables.Path(tab.Identity, tab.Ranks)
		if err == nil {
			err = tab.Write(path)
		}
		if err != nil {
			t.Fatal(err)
		}
		model, err := m.Load(parseFile(t, "examples/mlp.hkt"), hocket.Binding{Dims: dims},
			hocket.LoadOptions{Strategy: "auto"})
		if err != nil {
			t.Fatal(err)
		}
		lines, err := model.Overlapped(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(lines,
			func(o hocket.Overlapped) bool {
				return o.Pair == "all_gather + linear" &&
					o.Strategy == "exchange"
			}); got != want {
			t.Errorf("gathers of %v µs: %q", us, lines)
		}
	}
}
