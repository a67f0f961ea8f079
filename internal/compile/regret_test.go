package compile

import (
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// measuredShape is a layer of docs/measured with its times under several strategies.
type measuredShape struct {
	layer
	machine string
	// runs holds the microseconds of each strategy, for each run: a run is the rows of one log with the same way to
	// issue work and the same time of the GEMM.
	runs map[string]map[string]float64
}

// unsound lists the commits whose measurements are wrong, for the reasons in docs/measured/README.md.
var unsound = []string{"4ea3074", "35949f4", "3a9a112"}

// readShapes reads the layers of docs/measured for which a machine is described.
func readShapes(t *testing.T) (list []*measuredShape) {
	t.Helper()
	machines := map[string]string{"2xH200": "h200x2", "4xH200": "h200x4", "2xH100": "h100x2"}
	shapes := map[string]*measuredShape{}
	for _, file := range []string{"layers.tsv", "predictions.tsv"} {
		text, err := os.ReadFile("../../docs/measured/" + file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		head := strings.Split(lines[0], "\t")
		for _, line := range lines[1:] {
			r := map[string]string{}
			for i, cell := range strings.Split(line, "\t") {
				r[head[i]] = cell
			}
			machine := machines[r["machine"]]
			if machine == "" || r["who"] != "hocket" || r["op"] == "gemm-ag" || slices.Contains(unsound, r["commit"]) ||
				strings.Contains(r["strategy"], " ") || r["ranks"] != r["machine"][:1] {
				continue
			}
			number := func(column string) float64 {
				x, err := strconv.ParseFloat(r[column], 64)
				if err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				return x
			}
			key := strings.Join([]string{r["machine"], r["op"], r["m"], r["n"], r["k"]}, " ")
			s := shapes[key]
			if s == nil {
				s = &measuredShape{machine: machine, runs: map[string]map[string]float64{}}
				s.op, s.ranks = r["op"], int(number("ranks"))
				s.m, s.n, s.k = int64(number("m")), int64(number("n")), int64(number("k"))
				shapes[key] = s
				list = append(list, s)
			}
			run := strings.Join([]string{r["log"], r["issue"], r["gemm_us"]}, " ")
			if s.runs[run] == nil {
				s.runs[run] = map[string]float64{}
			}
			s.runs[run][r["strategy"]] = number("us")
		}
	}
	return list
}

// over returns the median, over the runs that measured both, of the time of strategy a divided by that of b, and the
// number of these runs.
func (s *measuredShape) over(a, b string) (ratio float64, runs int) {
	var list []float64
	for _, us := range s.runs {
		if us[a] > 0 && us[b] > 0 {
			list = append(list, us[a]/us[b])
		}
	}
	if len(list) == 0 {
		return math.NaN(), 0
	}
	slices.Sort(list)
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2, n
}

// TestRegret compares the choice of auto with every strategy that was measured, for every layer of docs/measured with
// several strategies. The regret of a layer is the fraction by which the chosen strategy took longer than another, in
// the median of the runs that measured both. Runs of one layer differ by several percent, also in the strategy that is
// the fastest, and many layers were measured in one run only, so some regret remains.
func TestRegret(t *testing.T) {
	const near, mean, most = 0.01, 0.0075, 0.13
	layers, within, sum := 0, 0, 0.0
	for _, s := range readShapes(t) {
		u, err := Build(check(t, s.text()), Options{Strategy: Auto, Machine: s.machine})
		if err != nil {
			t.Fatal(err)
		}
		e, err := u.Explain(ir.Binding{Func: "f"})
		if err != nil {
			t.Fatal(err)
		}
		p := e.Pairs[len(e.Pairs)-1] // the first gather has no preceding GEMM during which blocks could be sent
		known := slices.DeleteFunc(slices.Clone(p.Strategies), func(e Estimate) bool {
			_, runs := s.over("sequential", e.Strategy)
			return runs == 0
		})
		if len(known) < 2 {
			continue
		}
		chosen := best(known).Strategy
		regret, fastest := 0.0, chosen
		for _, e := range known {
			if r, runs := s.over(chosen, e.Strategy); runs > 0 && r-1 > regret {
				regret, fastest = r-1, e.Strategy
			}
		}
		layers, sum = layers+1, sum+regret
		if regret <= near {
			within++
			continue
		}
		_, runs := s.over(chosen, fastest)
		t.Logf("%s, %s of %d, %dx%dx%d: auto takes %s, which took %.1f %% longer than %s in %d runs", s.machine, s.op, s.ranks,
			s.m, s.n, s.k, chosen, 100*regret, fastest, runs)
		if regret > most {
			t.Errorf("the largest regret is %.3f", regret)
		}
	}
	t.Logf("%d of %d layers within %.2f of the fastest, mean regret %.4f", within, layers, near, sum/float64(layers))
	if layers < 90 || within*6 < layers*5 || sum/float64(layers) > mean {
		t.Error("auto chooses worse than when this test was written: 77 of 92 layers within 0.01, mean 0.0064")
	}
}
