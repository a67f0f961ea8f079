package bench

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/ir"
)

func TestReadPeers(t *testing.T) {
	peers, err := contest.ReadPeers(strings.NewReader(`W1122 torchrun says hello
{"op": "all_reduce", "name": "nccl", "ranks": 2, "bytes": 1024, "issued": "graph", "us": 7.5}
{"op": "all_reduce", "name": "nccl", "ranks": 2, "bytes": 1024, "issued": "eager", "us": 20}

{"op": "all_reduce", "name": "torch two-shot", "ranks": 4, "bytes": 1024, "issued": "graph", "us": 9}
`))
	if err != nil || len(peers) != 3 {
		t.Fatalf("%v, %v", peers, err)
	}
	got := peersOf(peers, contest.Call{Op: ir.OpAllReduce, Bytes: 1024}, 2)
	if diff := cmp.Diff(map[string]float64{"nccl": 7.5, "nccl, eager": 20}, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"", "no figures\n", "{\n", `{"op": "all_reduce", "name": "x", "ranks": 2}`,
		`{"op": "all_reduce", "ranks": 2, "us": 1}`} {
		if _, err := contest.ReadPeers(strings.NewReader(bad)); !errors.Is(err, contest.ErrUsage) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
