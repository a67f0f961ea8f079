package comm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// inNodes runs f in every process of a world whose nodes have the given numbers of processes, one rank each. The
// processes are simulated inside the test's process.
func inNodes(t *testing.T, sizes []int, f func(w device.World)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd, err := unix.Dup(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, n := range sizes {
		size += n
	}
	dir, rank := t.TempDir(), 0
	var all sync.WaitGroup
	for node, n := range sizes {
		for range n {
			o := world.Options{Rank: rank, Size: size, ID: t.Name(), Dir: dir,
				Meet: l.Addr().String(), Token: "a token of this test", Node: fmt.Sprint(node)}
			if rank == 0 {
				o.MeetFD = fd
			}
			rank++
			all.Go(func() {
				p, err := world.Join(context.Background(), o)
				if err != nil {
					t.Error(err)
					return
				}
				defer p.Leave()
				w, err := cpu.New(cpu.Options{Peers: p}).Open(context.Background(), size)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() {
					if t.Failed() {
						p.Abort(errors.New("the test failed"))
					}
					w.Close()
				}()
				f(w)
				if _, err := p.Agree(context.Background(), "end", nil); err != nil { // no process may end while others compute
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
}

// sums reports whether op is a collective that computes or has uneven operands; transports do not run such collectives.
func sums(op ir.Op) bool {
	switch op {
	case ir.OpAllReduce, ir.OpReduceScatter, ir.OpReduce, ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV:
		return true
	}
	return false
}

// nodeSpecs draws collectives for members on several nodes, each with or without a pinned algorithm that supports it.
func nodeSpecs(rng *rand.Rand, team, count int) []spec {
	specs := randomSpecs(rng, team, count)
	for i := range specs {
		s := &specs[i]
		s.shared, s.algo = true, ""
		if rng.IntN(2) == 0 {
			if s.algo = "tcp"; sums(s.op) {
				s.algo = across{}.Info().Name
			}
		}
	}
	return specs
}

// TestNodes checks that random collectives of all kinds give the same bits as plain arithmetic in the order of the
// members. The collectives run one after the other, over several runs, on two channels of all ranks and on one channel
// of a subset of the ranks.
func TestNodes(t *testing.T) {
	for _, sizes := range [][]int{{1, 1}, {2, 2}, {2, 1}, {2, 2, 2}, {3, 3}} {
		t.Run(fmt.Sprint(sizes), func(t *testing.T) {
			ranMu.Lock()
			before := ranBy["across"]
			ranMu.Unlock()
			for seed := range uint64(3) {
				inNodes(t, sizes, func(w device.World) {
					rng := rand.New(rand.NewPCG(seed, 36))
					n := w.Ranks()
					part := rng.Perm(n)[:2+rng.IntN(n-1)]
					rigs := []*rig{
						newRig(t, w, "a", teamOf(n), nodeSpecs(rng, n, 12)),
						newRig(t, w, "b", rng.Perm(n), nodeSpecs(rng, n, 6)),
						newRig(t, w, "c", part, inside(w, part, nodeSpecs(rng, len(part), 4))),
					}
					for run := range int64(3) {
						for _, r := range rigs {
							for i := range r.specs {
								r.issue(i, run)
							}
						}
					}
					settle(t, w)
					for _, r := range rigs {
						r.check()
					}
				})
			}
			ranMu.Lock()
			defer ranMu.Unlock()
			if got := ranBy["across"] - before; got < 3 {
				t.Errorf("%d instances ran by the algorithms of this test", got)
			}
		})
	}
}

// inside removes the algorithms from specs if the team is on one node, so that the dispatch chooses them.
func inside(w device.World, team []int, specs []spec) []spec {
	if slices.ContainsFunc(team, func(r int) bool { return w.Node(r) != w.Node(team[0]) }) {
		return specs
	}
	for i := range specs {
		specs[i].algo = ""
	}
	return specs
}

// TestNodesChoice checks that algorithms that access peers' memory are refused, and that the algorithms that the
// dispatch chooses sum in the required order.
func TestNodesChoice(t *testing.T) {
	inNodes(t, []int{2, 2}, func(w device.World) {
		// A table is not used here, because it was measured inside a node.
		flat := Entry{Op: "all_gather", Elem: 4, Members: 4,
			Brackets: []Bracket{{Best: []Timed{{Tuning: device.Tuning{Algo: w.Transport()}}}}}}
		d := NewDispatch(w, device.Caps{}, &Table{Version: TableVersion, Entries: []Entry{flat}}, Policy{})
		var members []Member
		for r := range w.Ranks() {
			s, err := w.Device(r).NewStream(device.StreamOptions{Name: "s"})
			if err != nil {
				t.Error(err)
				return
			}
			members = append(members, Member{Rank: r, Stream: s})
		}
		large := spec{op: ir.OpAllReduce, red: ir.Sum, dt: ir.F32, n: 4, shape: []int64{64 << 10}, shared: true}
		for _, tc := range []struct {
			change func(s *spec, in *Instance)
			want   string
		}{
			{func(s *spec, in *Instance) {}, "across"},
			{func(s *spec, in *Instance) { in.AnyOrder = true }, "across"},
			{func(s *spec, in *Instance) { s.op, in.Op = ir.OpAllGather, ir.OpAllGather }, "tcp"},
			{func(s *spec, in *Instance) { s.op, in.Op = ir.OpAllToAll, ir.OpAllToAll }, "tcp"},
			{func(s *spec, in *Instance) { in.Pin.Algo = "two-shot" },
				"algorithm two-shot: not supported by this machine: it needs all members on one node, " +
					"but member 0 is on node 0 and member 2 on node 1"},
			{func(s *spec, in *Instance) { in.Pin.Algo = "tcp" }, "it runs all_gather, all_to_all"},
		} {
			s, in := large, large.instance()
			tc.change(&s, &in)
			for me := range members {
				var mem device.Memory
				r := rig{t: t}
				in.Parts = append(in.Parts, r.place(w.Device(me), s, me, &mem))
			}
			c, err := d.Design(members, []Instance{in})
			got := fmt.Sprint(err)
			if err == nil {
				got = c.Algorithm(0)
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			if !strings.Contains(got, tc.want) {
				t.Errorf("%s: got %s, want %s", s, got, tc.want)
			}
		}
	})
}

// TestNodesAreProved proves the operations that channels of members on several nodes issue, over runs without a
// barrier: no operation overwrites data that another operation still needs.
func TestNodesAreProved(t *testing.T) {
	for _, nodes := range [][]int{{0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 1, 1}, {0, 1, 1}} {
		n := len(nodes)
		took := 0
		var specs []spec
		for k, op := range collectives {
			for i, shape := range [][]int64{{7, 3}, {45}, {0, 4}, {2, 1, 5}} {
				specs = append(specs, spec{op: op, red: ir.Sum, dt: ir.I32, n: n, shape: shape,
					axis: i % len(shape), split: (i + k) % len(shape),
					root: i % n, shift: 1, overlap: overlap((i + k) % int(numOverlaps)), algo: "across", shared: true,
					unevenSpec: unevenSpec{counted: i%2 == 0, room: int64(3 * i), seed: uint64(i)}})
			}
		}
		s := newScene(t, n)
		s.tape.Nodes = nodes
		r := s.channel("s", teamOf(n), specs)
		for i := range specs {
			if r.ch.Algorithm(i) == "across" {
				took++
			}
		}
		if took == 0 {
			t.Errorf("algorithm across ran no collective on nodes %v", nodes)
		}
		proved(t, s.play(2), fmt.Sprintf("on nodes %v", nodes))
	}
}
