package cuda

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/ir"
)

// TestDryRun checks that a dry run predicts the same kernels as the opened world. The dry run may make no driver calls
// except queries of devices.
func TestDryRun(t *testing.T) {
	const ranks, most = 4, 1 << 20
	l := &seers{meetings: meetings{GPU: fakedriver.New(t, ranks)}}
	m := newMachine(system(l.GPU), Options{Kernels: l})
	before := maps.Clone(l.Called)
	drawn, err := m.DryRun(ranks)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.DryRun(ranks + 1); err == nil {
		t.Error("a dry run of more ranks than GPUs succeeded")
	}
	// foreseen returns the kernels that each algorithm launches for each collective.
	foreseen := func(w device.World) map[string]bool {
		var members []device.Member
		var in, out []device.Memory
		for r := range w.Ranks() {
			s, err := w.Device(r).NewStream(device.StreamOptions{Name: "main"})
			if err != nil {
				t.Fatal(err)
			}
			members = append(members, device.Member{Rank: r, Stream: s})
			for _, list := range []*[]device.Memory{&in, &out} {
				mem, err := w.Device(r).Alloc(most, device.Shared)
				if err != nil {
					t.Fatal(err)
				}
				*list = append(*list, mem)
			}
		}
		team, err := w.OpenTeam(members)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]bool{}
		for _, name := range device.AlgorithmNames(w.TeamAlgorithms()) {
			for _, op := range []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather, ir.OpAllToAll, ir.OpBroadcast} {
				for _, n := range []int64{most / 2, 8 << 10} {
					c := &device.Collective{Op: op, Red: ir.Sum, Together: true}
					for r := range ranks {
						part := device.Part{Reads: op != ir.OpBroadcast || r == 0, Writes: true, To: -1, From: -1}
						at := func(mem device.Memory, n int64) device.View {
							return device.View{Mem: mem, DType: ir.BF16, Shape: []int64{n}, Strides: []int64{1}}
						}
						part.In, part.Out = at(in[r], n), at(out[r], n)
						switch op {
						case ir.OpReduceScatter:
							part.Out.Shape[0] /= ranks
						case ir.OpAllGather:
							part.In.Shape[0] /= ranks
						}
						c.Parts = append(c.Parts, part)
					}
					l.forget()
					team.PrepareAhead(device.Tuning{Algo: name}, c)
					for k := range l.early {
						all[fmt.Sprint(name, " ", op, " ", n, " ", k)] = true
					}
				}
			}
		}
		return all
	}
	early := foreseen(drawn)
	questions := []string{"cuDeviceCanAccessPeer", "cuDeviceGetP2PAttribute", "cuDriverGetVersion"}
	if drawn.Identity() == "" {
		t.Error("the dry run has no identity")
	}
	for name, n := range l.Called {
		if n != before[name] && !slices.Contains(questions, name) {
			t.Errorf("%s was called", name)
		}
	}
	if drawn.Device(ranks) != nil || drawn.Device(-1) != nil {
		t.Error("the dry run has more devices than ranks")
	}
	w, err := m.Open(t.Context(), ranks)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if diff := cmp.Diff(foreseen(w), early); diff != "" || len(early) < 50 {
		t.Errorf("%d kernels: %s", len(early), diff)
	}
	if got, want := drawn.Identity(), w.Identity(); got != want {
		t.Errorf("the identity of the dry run is %q, of the opened world %q", got, want)
	}
	if _, err := drawn.OpenTeam(nil); err == nil {
		t.Error("a team without members was created")
	}
}

// TestDryRunApart checks that a dry run reads from the user's setting which GPUs have no peer access. The dry run and
// the opened world then have the same identity, by which a tuning table is looked up.
func TestDryRunApart(t *testing.T) {
	m := newMachine(system(fakedriver.New(t, 2)), Options{})
	whole, err := m.DryRun(2)
	if err != nil {
		t.Fatal(err)
	}
	if m.sys.Reach, err = gpu.NewReach("off"); err != nil {
		t.Fatal(err)
	}
	apart, err := m.DryRun(2)
	if err != nil {
		t.Fatal(err)
	}
	w, err := m.Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	got, want := apart.Identity(), w.Identity()
	if got != want || got == whole.Identity() {
		t.Errorf("the identity of the dry run is %q, of the opened world %q", got, want)
	}
}
