package contest

import (
	"math"
	"strings"
	"testing"
)

// FuzzPeers checks that every measurement that is read, from a line or from vLLM's file, is valid: it has an op, a
// name, a number of ranks, a size and a time.
func FuzzPeers(f *testing.F) {
	f.Add(`{"op":"all_reduce","name":"nccl","ranks":2,"bytes":1024,"dtype":"bf16","issued":"graph","us":12.5}` +
		"\nnoise\n")
	f.Add(`{"op":"ag-gemm","name":"torch","ranks":8,"shape":"1x2x3","issued":"eager","us":1e300,"host_us":-1}`)
	f.Add(`{"op":"first_token","name":"torch","ranks":1,"prompt":128,"batch":-8,"issued":"graph","us":3}`)
	f.Add(`{"world_size":2,"dtype":"torch.bfloat16","hidden_size":4096,"results":{"16":{"timings":{"nccl":0.012}}}}`)
	f.Add(`{"world_size":2,"dtype":"torch.float16","hidden_size":9e18,"results":{"-16":{"timings":{"":-1}}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ReadPeers(strings.NewReader(text))
		if err == nil && len(list) == 0 {
			t.Error("neither figures nor an error")
		}
		for _, p := range list {
			if p.Op == "" || p.Name == "" || p.Ranks < 1 || p.Bytes < 0 || p.Prompt < 0 || p.Batch < 0 ||
				!(p.Micros > 0 && p.Micros < math.MaxFloat64) ||
				!(p.HostMicros >= 0 && p.Spread >= 0) {
				t.Errorf("it read %+v", p)
			}
		}
	})
}
